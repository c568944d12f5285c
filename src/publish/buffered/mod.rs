//! The publisher that lets messages wait in memory, so that calling it costs next to nothing.

mod bell;
mod books;
mod parcel;
mod pump;
mod receipt;
mod shared;

use std::{
    fmt,
    sync::{Arc, Weak, atomic::Ordering},
    thread,
    time::Duration,
};

use parking_lot::Mutex;

use crate::{
    ProducerSettings, Result,
    error::{Error, ErrorKind},
    net::{STOP, after},
};

use super::{Outgoing, PublishPlan};
use {
    books::{Told, Totals},
    pump::Pump,
    shared::{Room, Shared},
};

pub use parcel::Undelivered;
pub use receipt::Receipt;

/// How much longer than it was given a close waits for a pump that was called away.
const GRACE: Duration = Duration::from_millis(400);

/// Publishes to one topic from memory: messages wait in a queue and a thread of its own sends them in
/// batches, in one round trip each. For the highest rates, and for callers that must not wait for a
/// server.
///
/// Made by [`Streams::buffered`](crate::Streams::buffered), with the settings of the topic's entry in
/// `Producers`. All handles of a topic share one queue, one thread and one connection.
///
/// ```no_run
/// # fn main() -> Result<(), streamlane::Error> {
/// use std::time::Duration;
/// use streamlane::{Outgoing, Streams};
///
/// let streams = Streams::connect("redis://127.0.0.1:6379")?;
/// let ticks = streams.buffered("ticks")?;
/// ticks.enqueue(&Outgoing::new("Tick", "101.5").key("EURUSD"))?;
/// ticks.flush(Duration::from_secs(5)).into_result()?;
/// # Ok(()) }
/// ```
///
/// # What is kept
///
/// The queue is memory: a crash of the process loses what waits in it. Messages of one partition are
/// stored in the order in which they were enqueued; those with equal keys share a partition. A message
/// that is certainly not stored is tried again, before any later one of its partition, until it is
/// `RetryForMs` old, whether the server is away, takes nothing or lets nobody in; one that the server
/// refuses for good fails alone; one whose answer was lost is never sent again and counts as unknown. After an unknown outcome the old append may yet land behind
/// later messages. A message that was refused for now is given up when a later one of its partition was
/// stored.
///
/// Every message leaves the queue in exactly one way, and [`flush`](Self::flush) and
/// [`close`](Self::close) tell the numbers.
///
/// # When the queue is full
///
/// [`enqueue`](Self::enqueue) waits for room, for up to `PublishTimeoutMs`, or drops the oldest message
/// that waits, as `DropOldest` says; [`try_enqueue`](Self::try_enqueue) fails at once;
/// [`enqueue_timeout`](Self::enqueue_timeout) waits as long as it is told.
///
/// Dropping the last handle closes it, within `ShutdownTimeoutSeconds` (5 s) and half a second more.
pub struct BufferedPublisher {
    handle: Arc<Handle>,
    /// What this handle was told before.
    told: Mutex<Totals>,
}

/// What became of the messages since the last report to this handle, those of other handles included.
///
/// The numbers add up: each message that was enqueued is in one of them, once in the reports of one
/// handle, or waits still.
#[derive(Debug)]
#[must_use = "messages may be lost or wait still"]
#[non_exhaustive]
pub struct Flushed {
    /// How many were stored.
    pub stored: u64,
    /// How many were given up and are certainly not stored.
    pub refused: u64,
    /// How many may or may not be stored, because the answer was lost.
    pub unknown: u64,
    /// How many were dropped to make room, under `DropOldest`.
    pub dropped: u64,
    /// How many were given back by [`reclaim`](BufferedPublisher::reclaim) or
    /// [`close`](BufferedPublisher::close).
    pub returned: u64,
    /// How many that were to be waited for wait still. They are tried on.
    pub queued: u64,
    /// The newest reason why messages were refused, unknown or dropped; or else why they wait or were given
    /// back, if that is known.
    pub error: Option<Error>,
}

impl Flushed {
    /// Whether all were stored: none was lost or given back, and none waits.
    pub fn is_clean(&self) -> bool {
        self.lost() + self.returned + self.queued == 0
    }

    fn lost(&self) -> u64 {
        self.refused + self.unknown + self.dropped
    }

    /// An error unless all were stored.
    ///
    /// # Errors
    ///
    /// The newest reason why messages were lost; when none was, [`ErrorKind::Timeout`] if some wait, or
    /// [`ErrorKind::Stopped`] if they were given back.
    pub fn into_result(self) -> Result<()> {
        if self.is_clean() {
            return Ok(());
        }
        let (kind, what) = match self.queued {
            0 => {
                let what = format!("{} message(s) were given back", self.returned);
                (ErrorKind::Stopped, what)
            }
            n => (ErrorKind::Timeout, format!("{n} message(s) wait still")),
        };
        let unlost = Error::new(kind, "flush", what);
        let is_lost = self.lost() > 0;
        Err(match self.error {
            Some(e) if is_lost => e,
            Some(trouble) => unlost.caused_by(trouble),
            None => unlost,
        })
    }
}

/// What [`BufferedPublisher::close`] leaves behind.
#[derive(Debug)]
#[must_use = "messages may be lost or given back"]
#[non_exhaustive]
pub struct Closed {
    /// What became of the messages; those given back here are among the `returned`.
    pub report: Flushed,
    /// What was certainly not stored when the time was up, oldest first.
    pub undelivered: Vec<Undelivered>,
}

/// What keeps the pump running.
pub(crate) struct Handle {
    shared: Arc<Shared>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

impl BufferedPublisher {
    pub(crate) fn start(plan: PublishPlan, settings: ProducerSettings) -> Result<Self> {
        let shared = Arc::new(Shared::new(plan, settings));
        let pump = Pump::new(Arc::clone(&shared));
        let name = format!("pump-{}", shared.plan.topic);
        let thread = thread::Builder::new().name(name).spawn(move || pump.run());
        let thread = thread.map_err(|e| Error::io("start a thread", e))?;
        Ok(Self::of(Arc::new(Handle {
            shared,
            thread: Mutex::new(Some(thread)),
        })))
    }

    fn of(handle: Arc<Handle>) -> Self {
        let told = handle.shared.books.lock().now(0).totals;
        Self {
            handle,
            told: Mutex::new(told),
        }
    }

    /// Another handle, unless the publisher was closed.
    pub(crate) fn upgrade(handle: &Weak<Handle>) -> Option<Self> {
        let handle = handle.upgrade().filter(|h| !h.shared.is_closing())?;
        Some(Self::of(handle))
    }

    pub(crate) fn downgrade(&self) -> Weak<Handle> {
        Arc::downgrade(&self.handle)
    }

    pub(super) fn plan(&self) -> &PublishPlan {
        &self.shared().plan
    }

    /// The topic it publishes to.
    pub fn topic(&self) -> &str {
        &self.shared().plan.topic
    }

    /// How many messages wait or are on their way.
    pub fn queued(&self) -> u64 {
        self.shared().books.lock().queued()
    }

    /// Copies a message into the queue. Allocates nothing once warm.
    ///
    /// Returns at once while there is room. When there is none, it waits for up to `PublishTimeoutMs` or,
    /// under `DropOldest`, drops the oldest message that waits.
    ///
    /// # Errors
    ///
    /// The message was not taken: it is too large or otherwise not fit to be published
    /// ([`ErrorKind::TooLarge`], [`ErrorKind::Argument`]; here a message needs a type and has no dedupe
    /// id), there was no room in time ([`ErrorKind::Full`]), or the publisher was closed ([`ErrorKind::Stopped`]).
    pub fn enqueue(&self, message: &Outgoing<'_>) -> Result<()> {
        self.shared().enqueue(message, None, self.shared().room())
    }

    /// As [`enqueue`](Self::enqueue), but fails at once when there is no room, whatever the settings say.
    ///
    /// # Errors
    ///
    /// As for [`enqueue`](Self::enqueue).
    pub fn try_enqueue(&self, message: &Outgoing<'_>) -> Result<()> {
        self.shared().enqueue(message, None, Room::Now)
    }

    /// As [`enqueue`](Self::enqueue), but waits for up to `timeout` when there is no room, whatever the
    /// settings say.
    ///
    /// # Errors
    ///
    /// As for [`enqueue`](Self::enqueue).
    pub fn enqueue_timeout(&self, message: &Outgoing<'_>, timeout: Duration) -> Result<()> {
        self.shared().enqueue(message, None, Room::Within(timeout))
    }

    /// As [`enqueue`](Self::enqueue), with a handle to learn what becomes of the message. Allocates that
    /// handle.
    ///
    /// # Errors
    ///
    /// As for [`enqueue`](Self::enqueue).
    pub fn enqueue_tracked(&self, message: &Outgoing<'_>) -> Result<Receipt> {
        let (tell, receipt) = Receipt::new();
        let room = self.shared().room();
        self.shared().enqueue(message, Some(tell), room)?;
        Ok(receipt)
    }

    /// Sends what is queued without waiting for more, and blocks for up to `timeout` until all that was
    /// enqueued before has been settled. What is not settled by then stays queued.
    ///
    /// Reports everything since the last report to this handle; give each thread that flushes a
    /// [clone](Clone) of its own, or two of them share one report.
    pub fn flush(&self, timeout: Duration) -> Flushed {
        let shared = self.shared();
        let until = after(timeout);
        let number = shared.books.lock().flush();
        shared.bell.ring();
        let mut books = shared.books.lock();
        while !books.is_told(number) && !books.ended {
            if shared.settled.wait_until(&mut books, until).timed_out() {
                break;
            }
        }
        let told = books.told(number);
        drop(books);
        self.report(told)
    }

    /// Takes everything out of the queue, oldest first, but for the batch that is being made or sent: for
    /// a caller that gives up on the server, or knows another place for it. Those who await these
    /// messages learn that they were not stored. Does not wait.
    #[must_use = "these messages are not stored, and nobody else has them"]
    pub fn reclaim(&self) -> Vec<Undelivered> {
        self.shared().take_back()
    }

    /// Takes no more messages, blocks for up to `timeout` until those that wait are stored, and gives back
    /// what is left, for all handles. Callers that wait for room are turned away. After `timeout` the
    /// connection is cut, and messages on their way at that moment count as unknown; it returns within half
    /// a second more.
    ///
    /// Closing again reports what the first one left.
    pub fn close(&self, timeout: Duration) -> Closed {
        let (told, undelivered) = self.handle.close(timeout);
        Closed {
            report: self.report(told),
            undelivered,
        }
    }

    fn shared(&self) -> &Shared {
        &self.handle.shared
    }

    /// What is new to this handle.
    fn report(&self, told: Told) -> Flushed {
        let mut before = self.told.lock();
        // another flush by this handle may have been told more meanwhile
        let totals = told.totals.max(*before);
        let new = totals - *before;
        *before = totals;
        drop(before);
        let error = if new.refused + new.unknown > 0 {
            told.error
        } else if new.dropped > 0 {
            Some(self.shared().dropped())
        } else if told.queued + new.returned > 0 {
            self.shared().reason(told.trouble)
        } else {
            None
        };
        Flushed {
            stored: new.stored,
            refused: new.refused,
            unknown: new.unknown,
            dropped: new.dropped,
            returned: new.returned,
            queued: told.queued,
            error,
        }
    }
}

/// A handle of the same queue. Its reports begin where those of this one are.
impl Clone for BufferedPublisher {
    fn clone(&self) -> Self {
        Self {
            handle: Arc::clone(&self.handle),
            told: Mutex::new(*self.told.lock()),
        }
    }
}

impl fmt::Debug for BufferedPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferedPublisher")
            .field("topic", &self.topic())
            .field("endpoint", &self.shared().plan.target.endpoint())
            .field("queued", &self.queued())
            .finish_non_exhaustive()
    }
}

impl Handle {
    fn close(&self, timeout: Duration) -> (Told, Vec<Undelivered>) {
        let shared = &*self.shared;
        shared.closing.store(true, Ordering::Relaxed);
        shared.bell.ring();
        if !shared.has_ended(timeout) {
            shared.interrupt.cut(STOP);
            if !shared.has_ended(GRACE) {
                log::error!(
                    "buffered publisher of {}: its thread does not end",
                    shared.plan.topic
                );
                shared.bell.leave();
                shared.sweep();
            }
        }
        let mut books = shared.books.lock();
        let (left, ended) = (books.take_left(), books.ended);
        let queued = books.queued();
        let told = books.now(queued);
        drop(books);
        let thread = self.thread.lock().take();
        if let Some(thread) = thread.filter(|_| ended) {
            // what it panicked with, it has said
            let _ = thread.join();
        }
        (told, left)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let (told, left) = self.close(self.shared.settings.shutdown_timeout);
        if !left.is_empty() {
            let reason = self.shared.reason(told.trouble).map(|e| format!(": {e}"));
            log::error!(
                "buffered publisher of {}: abandoned {} message(s) that were not stored by the time it was \
                 dropped{}",
                self.shared.plan.topic,
                left.len(),
                reason.unwrap_or_default()
            );
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("topic", &self.shared.plan.topic)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{
        Outcome, TopicSettings,
        net::Target,
        publish::{Delays, PublishCounts, Terms},
        trace::Tracing,
        wire::Keys,
    };

    const LONG: Duration = Duration::from_secs(20);

    fn shared(settings: ProducerSettings) -> Arc<Shared> {
        let target = Arc::new(Target::parse("redis://127.0.0.1:1").expect("a URL"));
        let keys = Keys::with_prefix("re:").expect("a prefix");
        let plan = PublishPlan {
            delays: Arc::new(Delays::new(Terms {
                target: Arc::clone(&target),
                keys: keys.clone(),
                client_name: "test".to_owned(),
                timeout: LONG,
                counts: Arc::default(),
            })),
            target,
            keys,
            topic: "orders".to_owned(),
            settings: TopicSettings::default(),
            client_name: "test".to_owned(),
            connect_timeout: LONG,
            timeout: LONG,
            max_message_bytes: 1000,
            counts: Arc::<PublishCounts>::default(),
            partitions: Arc::default(),
            trace: Tracing::default(),
        };
        Arc::new(Shared::new(plan, settings))
    }

    /// A handle without a pump.
    fn handle(shared: &Arc<Shared>) -> BufferedPublisher {
        BufferedPublisher::of(Arc::new(Handle {
            shared: Arc::clone(shared),
            thread: Mutex::new(None),
        }))
    }

    #[test]
    fn a_pump_that_panics_leaves_nobody_waiting() {
        let shared = shared(ProducerSettings::new("orders"));
        let publisher = handle(&shared);
        let m = Outgoing::new("T", "B");
        let mut tracked: Vec<_> = (0..5)
            .map(|_| publisher.enqueue_tracked(&m).unwrap())
            .collect();
        let others = publisher.clone();
        thread::scope(|s| {
            let flusher = s.spawn(move || others.flush(LONG));
            while !shared.books.lock().is_hurried() {
                thread::yield_now();
            }
            Pump::new(Arc::clone(&shared)).panics_with(2);
            let flushed = flusher.join().unwrap();
            assert_eq!((flushed.unknown, flushed.returned), (2, 3), "{flushed:?}");
        });
        for (i, receipt) in tracked.iter_mut().enumerate() {
            let e = receipt.wait(LONG).expect("settled").unwrap_err();
            let outcome = [Outcome::NotApplied, Outcome::Unknown][usize::from(i < 2)];
            assert_eq!((e.kind(), e.outcome()), (ErrorKind::Stopped, outcome));
        }
        let e = publisher.enqueue(&m).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Stopped);
        assert!(publisher.flush(LONG).error.is_some());
        assert_eq!(publisher.close(LONG).undelivered.len(), 3);
        let status = shared.plan.counts.status("orders");
        assert_eq!((status.queued, status.unknown), (0, 2));
    }

    /// All there is to a message.
    fn parts(m: &Outgoing<'_>) -> String {
        let texts = [m.key, m.message_type, m.body, m.correlation_id];
        let (trace, headers, p) = (m.traceparent, &m.headers, m.partition);
        format!("{texts:?} {trace:?} {headers:?} {p:?}")
    }

    #[test]
    fn a_message_comes_back_as_it_was_given() {
        let shared = shared(ProducerSettings::new("orders"));
        let publisher = handle(&shared);
        let full = Outgoing::new("T\0", "b\r\n$1")
            .key("k")
            .correlation_id("c")
            .traceparent("")
            .header("", "v")
            .header("n", "1:2")
            .partition(3);
        let given = [
            full,
            Outgoing::new("T", ""),
            Outgoing::new("T", "x").key("k"),
        ];
        for m in &given {
            publisher.enqueue(m).unwrap();
        }
        let back = publisher.reclaim();
        assert_eq!(back.len(), given.len());
        for (m, back) in given.iter().zip(&back) {
            assert_eq!(parts(m), parts(&back.message()));
        }
        let debug = format!("{:?}", back[0]);
        assert!(
            debug.contains("body_len: 5") && !debug.contains("$1") && !debug.contains('k'),
            "{debug}"
        );
        shared.pump_ended([].into_iter());
    }

    #[test]
    fn a_message_that_is_queued_behind_the_last_look_is_not_taken() {
        let shared = shared(ProducerSettings::new("orders").max_queue(1));
        let publisher = handle(&shared);
        let m = Outgoing::new("T", "B");
        publisher.enqueue(&m).unwrap();
        let late = thread::scope(|s| {
            // they wait for room until the pump has gone
            let wait = || s.spawn(|| publisher.enqueue_timeout(&m, LONG));
            let late: Vec<_> = (0..4).map(|_| wait()).collect();
            while shared.plan.counts.status("orders").queued < 5 {
                thread::yield_now();
            }
            shared.pump_ended([].into_iter());
            late.into_iter()
                .map(|t| t.join().unwrap())
                .collect::<Vec<_>>()
        });
        // the last look may have seen some of them
        let seen = 1 + late.iter().filter(|r| r.is_ok()).count();
        let refused = late.iter().filter_map(|r| r.as_ref().err());
        for e in refused {
            assert_eq!(
                (e.kind(), e.outcome()),
                (ErrorKind::Stopped, Outcome::NotApplied)
            );
        }
        let closed = publisher.close(LONG);
        assert_eq!(
            (closed.report.returned, closed.undelivered.len()),
            (seen as u64, seen)
        );
        assert!(publisher.queued() == 0 && publisher.close(LONG).undelivered.is_empty());
        let status = shared.plan.counts.status("orders");
        assert_eq!((status.queued, status.returned), (0, seen as u64));
        assert_eq!(status.refused, 5 - seen as u64);
    }
}
