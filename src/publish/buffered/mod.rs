//! The publisher that lets messages wait in memory, so that calling it costs next to nothing.

mod bell;
mod books;
mod parcel;
mod pump;
mod receipt;

use std::{
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use crossbeam_channel::{SendTimeoutError, Sender, TrySendError, bounded};
use parking_lot::{Condvar, Mutex};

use crate::{
    ProducerSettings, Result, StreamId,
    error::{Error, ErrorKind},
    net::{Interrupt, STOP, after},
    quiet::{HeldBack, Quiet},
};

use super::{Outgoing, PublishPlan, counts::Count};
use {
    bell::Bell,
    books::{Books, Told, Totals},
    parcel::{Parcel, Pool},
    pump::Pump,
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
/// `RetryForMs` old; one that the server refuses for good fails alone; one whose answer was lost is
/// never sent again and counts as unknown. After an unknown outcome the old append may yet land behind
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
    /// The newest reason why messages were refused, unknown or dropped.
    pub error: Option<Error>,
}

impl Flushed {
    /// Whether nothing was lost and nothing waits.
    pub fn is_clean(&self) -> bool {
        self.refused + self.unknown + self.dropped + self.queued == 0
    }

    /// An error unless nothing was lost and nothing waits.
    ///
    /// # Errors
    ///
    /// The newest reason why messages were lost; [`ErrorKind::Timeout`] when none was, but some wait.
    pub fn into_result(self) -> Result<()> {
        if self.is_clean() {
            return Ok(());
        }
        let what = format!("{} message(s) wait still", self.queued);
        let waits = || Error::new(ErrorKind::Timeout, "flush", what);
        Err(self.error.unwrap_or_else(waits))
    }
}

/// What [`BufferedPublisher::close`] leaves behind.
#[derive(Debug)]
#[non_exhaustive]
pub struct Closed {
    /// What became of the messages; those given back here are among the `returned`.
    pub report: Flushed,
    /// What was certainly not stored when the time was up, oldest first.
    pub undelivered: Vec<Undelivered>,
}

/// What the handles and the pump share.
struct Shared {
    plan: Arc<PublishPlan>,
    settings: ProducerSettings,
    /// Messages are taken out of it by way of the books alone.
    queue: Sender<Box<Parcel>>,
    pool: Pool,
    bell: Bell,
    interrupt: Arc<Interrupt>,
    books: Mutex<Books>,
    /// Messages have left the queue, or the pump has ended.
    settled: Condvar,
    closing: AtomicBool,
    drops: Mutex<Quiet>,
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
    /// ([`ErrorKind::TooLarge`], [`ErrorKind::Argument`]; a message type is required here), there was no
    /// room in time ([`ErrorKind::Full`]), or the publisher was closed ([`ErrorKind::Stopped`]).
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

    /// Takes everything out of the queue that is not on its way yet, oldest first: for a caller that
    /// gives up on the server, or knows another place for it. Those who await these messages learn that
    /// they were not stored. Does not wait.
    pub fn reclaim(&self) -> Vec<Undelivered> {
        self.shared().take_back()
    }

    /// Takes no more messages, blocks for up to `timeout` until those that wait are stored, and gives back
    /// what is left, for all handles. After `timeout` the connection is cut, and messages on their way at
    /// that moment count as unknown; it returns within half a second more.
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

/// What is done about a full queue.
#[derive(Clone, Copy)]
enum Room {
    Now,
    Within(Duration),
    DropOldest,
}

impl Shared {
    fn new(plan: PublishPlan, settings: ProducerSettings) -> Self {
        let (room, batch) = (settings.max_queue as usize, settings.max_batch as usize);
        let (queue, messages) = bounded(room);
        let interrupt = Arc::<Interrupt>::default();
        Self {
            // all there can be at a time, but for those that callers are about to queue
            pool: Pool::new(room + batch),
            bell: Bell::new(Arc::clone(&interrupt)),
            books: Mutex::new(Books::new(messages)),
            settled: Condvar::new(),
            closing: AtomicBool::new(false),
            drops: Mutex::default(),
            plan: Arc::new(plan),
            queue,
            interrupt,
            settings,
        }
    }

    /// What the settings say about a full queue.
    fn room(&self) -> Room {
        if self.settings.drop_oldest {
            Room::DropOldest
        } else {
            Room::Within(self.plan.timeout)
        }
    }

    fn enqueue(
        &self,
        m: &Outgoing<'_>,
        receipt: Option<Sender<Result<StreamId>>>,
        room: Room,
    ) -> Result<()> {
        let mut parcel = self.pool.take();
        let filled = self
            .accept(m)
            .and_then(|()| parcel.fill(&self.plan, m, receipt));
        if let Err(e) = filled {
            self.pool.put(parcel);
            return Err(self.refused(e));
        }
        // before it can be settled
        self.plan.counts.add(Count::Queued, 1);
        if let Err((mut parcel, e)) = self.push(parcel, room) {
            self.plan.counts.sub(Count::Queued, 1);
            parcel.tell(|| Err(e.again()));
            self.pool.put(parcel);
            return Err(self.refused(e));
        }
        if self.bell.queued(|| self.queue.len()) {
            self.sweep();
        }
        Ok(())
    }

    fn accept(&self, m: &Outgoing<'_>) -> Result<()> {
        if self.is_closing() {
            return Err(self.closed());
        }
        if m.message_type.is_empty() {
            let what = "a buffered message needs a type";
            return Err(self.about(Error::new(ErrorKind::Argument, "enqueue", what)));
        }
        Ok(())
    }

    #[cold]
    fn refused(&self, e: Error) -> Error {
        self.plan.counts.failed(&e);
        e.during("enqueue")
    }

    fn push(&self, mut parcel: Box<Parcel>, room: Room) -> Result<(), (Box<Parcel>, Error)> {
        loop {
            parcel = match self.queue.try_send(parcel) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full(parcel)) => parcel,
                Err(TrySendError::Disconnected(parcel)) => return Err((parcel, self.closed())),
            };
            match room {
                Room::DropOldest => self.drop_oldest(),
                Room::Now => return Err((parcel, self.full(Duration::ZERO))),
                Room::Within(time) => {
                    return self.queue.send_timeout(parcel, time).map_err(|e| match e {
                        SendTimeoutError::Timeout(parcel) => (parcel, self.full(time)),
                        SendTimeoutError::Disconnected(parcel) => (parcel, self.closed()),
                    });
                }
            }
        }
    }

    #[cold]
    fn drop_oldest(&self) {
        let Some(mut oldest) = self.books.lock().drop_oldest() else {
            return;
        };
        self.settled.notify_all();
        oldest.tell(|| Err(self.dropped()));
        self.pool.put(oldest);
        self.plan.counts.sub(Count::Queued, 1);
        self.plan.counts.add(Count::Dropped, 1);
        let permit = self.drops.lock().permit();
        if let Some(n) = permit {
            log::warn!(
                "buffered publisher of {}: the queue is full, {} messages; dropping the oldest{}",
                self.plan.topic,
                self.settings.max_queue,
                HeldBack(n)
            );
        }
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Takes everything that waits out of the queue, and tells whoever awaits it.
    fn take_back(&self) -> Vec<Undelivered> {
        let mut back = self.books.lock().take_back();
        self.settled.notify_all();
        self.give_back(&mut back);
        back
    }

    fn give_back(&self, messages: &mut [Undelivered]) {
        self.plan.counts.sub(Count::Queued, messages.len() as u64);
        for m in messages {
            m.0.tell(|| {
                let what = "given back before it was sent";
                Err(self.about(Error::new(ErrorKind::Stopped, "publish", what)))
            });
        }
    }

    /// Keeps what the pump has left in the queue for whoever closes.
    fn sweep(&self) {
        let back = self.take_back();
        self.books.lock().keep(back);
    }

    /// The pump's last word: what it has in hand was never sent.
    fn pump_ended(&self, in_hand: impl Iterator<Item = Undelivered>) {
        let mut in_hand: Vec<_> = in_hand.collect();
        self.closing.store(true, Ordering::Relaxed);
        self.bell.leave();
        self.give_back(&mut in_hand);
        let returned = Totals {
            returned: in_hand.len() as u64,
            ..Totals::default()
        };
        let mut books = self.books.lock();
        books.settle(returned, None);
        books.keep(in_hand);
        drop(books);
        self.sweep();
        self.books.lock().ended = true;
        self.settled.notify_all();
    }

    fn about(&self, e: Error) -> Error {
        self.plan.about(e)
    }

    #[cold]
    fn closed(&self) -> Error {
        self.about(Error::new(
            ErrorKind::Stopped,
            "enqueue",
            "the publisher was closed",
        ))
    }

    #[cold]
    fn full(&self, waited: Duration) -> Error {
        let what = format!(
            "the queue is full: {} messages, and no room came within {} ms",
            self.settings.max_queue,
            waited.as_millis()
        );
        self.about(Error::new(ErrorKind::Full, "enqueue", what))
    }

    #[cold]
    fn dropped(&self) -> Error {
        let what = format!(
            "dropped to make room in the full queue of {} messages, as DropOldest says",
            self.settings.max_queue
        );
        self.about(Error::new(ErrorKind::Full, "publish", what))
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

impl Shared {
    /// Waits for the pump's end.
    fn has_ended(&self, time: Duration) -> bool {
        let until = after(time);
        let mut books = self.books.lock();
        while !books.ended {
            if self.settled.wait_until(&mut books, until).timed_out() {
                return books.ended;
            }
        }
        true
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let (_, left) = self.close(self.shared.settings.shutdown_timeout);
        if !left.is_empty() {
            log::warn!(
                "buffered publisher of {}: abandoned {} message(s) that were not stored by the time it was \
                 dropped",
                self.shared.plan.topic,
                left.len()
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
        publish::{PublishCounts, TraceHook},
        wire::{Keys, RoundRobin},
    };

    const LONG: Duration = Duration::from_secs(20);

    fn shared(settings: ProducerSettings) -> Arc<Shared> {
        let plan = PublishPlan {
            target: Arc::new(Target::parse("redis://127.0.0.1:1").unwrap()),
            keys: Keys::with_prefix("re:").unwrap(),
            topic: "orders".to_owned(),
            settings: TopicSettings::default(),
            client_name: "test".to_owned(),
            connect_timeout: LONG,
            timeout: LONG,
            max_message_bytes: 1000,
            counts: Arc::<PublishCounts>::default(),
            round_robin: Arc::<RoundRobin>::default(),
            trace: TraceHook::default(),
        };
        Arc::new(Shared::new(plan, settings))
    }

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
            let e = receipt.wait(LONG).unwrap_err();
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
            assert_eq!(format!("{m:?}"), format!("{:?}", back.message()));
        }
        let debug = format!("{:?}", back[0]);
        assert!(
            debug.contains("body_bytes: 5") && !debug.contains("$1"),
            "{debug}"
        );
        shared.pump_ended([].into_iter());
    }

    #[test]
    fn a_message_that_is_queued_behind_the_last_look_is_swept_up() {
        let shared = shared(ProducerSettings::new("orders").max_queue(1));
        let publisher = handle(&shared);
        let m = Outgoing::new("T", "B");
        publisher.enqueue(&m).unwrap();
        thread::scope(|s| {
            // it waits for room until the pump has gone
            let late = s.spawn(|| publisher.enqueue_timeout(&m, LONG));
            while shared.plan.counts.status("orders").queued < 2 {
                thread::yield_now();
            }
            shared.pump_ended([].into_iter());
            late.join().unwrap().unwrap();
        });
        let closed = publisher.close(LONG);
        assert_eq!((closed.report.returned, closed.undelivered.len()), (2, 2));
        assert_eq!(publisher.queued(), 0);
    }
}
