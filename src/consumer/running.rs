//! What the threads of a running consumer and its handles have in common, and how it all ends.

use std::{
    convert::Infallible,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use parking_lot::Mutex;

use super::{FailHook, Stopped};
use crate::{
    Error, ErrorKind, LaneState, PartitionStatus, Result, Streams, clock,
    consume::{Flusher, Lane, LaneEnd, PAUSE, Plan, Seat},
    monitor::Monitor,
    net::{Interrupt, STOP},
    position::Table,
    streams::NameGuard,
};

/// Tells the flusher that the lanes are ending.
const CLOSING: u32 = 1 << 2;
/// What a handler may use of a lane's stack.
const STACK_BYTES: usize = 2 * 1024 * 1024;
/// Lanes whose handlers heed a stop have ended after so long.
const PROMPT_EXIT: Duration = Duration::from_millis(10);
/// How much longer than the shutdown timeout the flusher may take to notice that it is over.
const GRACE: Duration = Duration::from_millis(500);

/// A running consumer, whoever holds it.
pub(crate) struct Running {
    pub(super) topic: Arc<str>,
    pub(super) name: Arc<str>,
    pub(super) table: Arc<Table>,
    pub(super) seats: Vec<Arc<Seat>>,
    pub(super) shutdown_timeout: Duration,
    pub(super) unhealthy_block: Duration,
    pub(super) flush_interrupt: Arc<Interrupt>,
    pub(super) lanes: Alive,
    pub(super) flusher: Alive,
    pub(super) threads: Mutex<Vec<JoinHandle<()>>>,
    /// Whether `OnError: Fail` has ended it.
    pub(super) failed: AtomicBool,
    /// Partitions whose last position could not be stored.
    pub(super) unsaved: Mutex<Vec<u32>>,
    /// Given back when every thread has ended, and no sooner: two of one name would overlap.
    pub(super) guard: Mutex<Option<NameGuard>>,
}

/// Threads of which one wants to know that they have ended, however they do. Each holds a sender that
/// nothing is ever sent over; when the last is dropped the channel is disconnected.
pub(super) struct Alive {
    sender: Mutex<Option<Sender<Infallible>>>,
    receiver: Receiver<Infallible>,
}

impl Default for Alive {
    fn default() -> Self {
        let (sender, receiver) = bounded(0);
        Self {
            sender: Mutex::new(Some(sender)),
            receiver,
        }
    }
}

impl Alive {
    /// One more thread.
    fn sign(&self) -> Option<Sender<Infallible>> {
        self.sender.lock().clone()
    }

    /// Waits until all have ended; false when that is not so by `until`. There will be no more of them.
    fn all_ended(&self, until: Instant) -> bool {
        drop(self.sender.lock().take());
        matches!(
            self.receiver.recv_deadline(until),
            Err(RecvTimeoutError::Disconnected)
        )
    }
}

impl Running {
    pub(super) fn spawn_flusher(
        self: &Arc<Self>,
        mut flusher: Flusher,
        interval: Option<Duration>,
    ) -> Result<()> {
        let (running, alive) = (Arc::clone(self), self.flusher.sign());
        self.spawn("positions".into(), move || {
            // The logger is foreign code: its panic must not end the keeping of positions.
            while catch_unwind(AssertUnwindSafe(|| flusher.run(interval, CLOSING))).is_err() {}
            // Handlers that end slowly still finish messages, and the process may be killed before they
            // are done: what they finish is stored as quickly as ever.
            // A tenth of the time is kept for the last flush.
            let until = clock::now() + running.shutdown_timeout.mul_f64(0.9);
            let mut pause = interval.map_or(running.shutdown_timeout, |i| i.min(PROMPT_EXIT));
            while !running.lanes.all_ended(until.min(clock::now() + pause)) && clock::now() < until
            {
                flusher.flush_all();
                pause = interval.unwrap_or(running.shutdown_timeout);
            }
            // Now the lanes' last positions are in the table.
            let unsaved = flusher.flush_all();
            if !unsaved.is_empty() {
                log::warn!(
                    "{running}: stopped, and the positions of partitions {unsaved:?} are not stored: \
                     their last messages will be handled again"
                );
            }
            *running.unsaved.lock() = unsaved;
            drop(alive);
        })
    }

    pub(super) fn spawn_lane(
        self: &Arc<Self>,
        seat: &Arc<Seat>,
        plan: &Arc<Plan>,
        on_fail: Option<FailHook>,
        streams: &Streams,
    ) -> Result<()> {
        let (running, alive) = (Arc::clone(self), self.lanes.sign());
        let (seat, plan) = (Arc::clone(seat), Arc::clone(plan));
        // A handle of the user's would keep everything alive; a lane must not.
        let streams = streams.downgrade();
        let Some(writer) = self.table.writer(seat.partition) else {
            let what = format!("partition {} has a lane already", seat.partition);
            return Err(Error::new(ErrorKind::Stopped, "start", what));
        };
        let name = format!("lane{}-{}", seat.partition, seat.topic);
        self.spawn(name, move || {
            match Lane::run(&plan, &seat, writer) {
                LaneEnd::Stopped => seat.monitor.enter(LaneState::Stopped, ""),
                LaneEnd::ByPolicy(why) => {
                    seat.monitor.enter(LaneState::Stopped, &why);
                    log::warn!("{seat}: the partition has stopped: {why}");
                }
                LaneEnd::Failed(e) => {
                    seat.monitor.enter(LaneState::Stopped, &e.to_string());
                    match &on_fail {
                        None => streams.fail(e),
                        // Other lanes may fail before they hear of it.
                        Some(hook) if !running.failed.swap(true, Ordering::Relaxed) => {
                            log::error!("{running}: stopping: {e}");
                            running.signal_stop();
                            hook(&e);
                        }
                        Some(_) => {}
                    }
                }
            }
            drop(alive);
        })
    }

    fn spawn(&self, name: String, f: impl FnOnce() + Send + 'static) -> Result<()> {
        let builder = thread::Builder::new().name(name).stack_size(STACK_BYTES);
        let thread = builder.spawn(f);
        let thread = thread.map_err(|e| Error::io("start a thread", e))?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Tells every thread to end. Waits for nothing.
    pub(crate) fn signal_stop(&self) {
        for seat in &self.seats {
            seat.interrupt.cut(STOP);
        }
        self.flush_interrupt.set(CLOSING);
    }

    /// Tells every thread to end and waits for them, within the shutdown timeout. On a thread of its own
    /// it only tells: that thread cannot wait for itself.
    pub(crate) fn stop(&self) -> Stopped {
        self.signal_stop();
        self.stopped_since(clock::now())
    }

    /// Waits for the threads, which were told to end at the moment `told`.
    pub(crate) fn stopped_since(&self, told: Instant) -> Stopped {
        let me = thread::current().id();
        let ours = self.threads.lock().iter().any(|t| t.thread().id() == me);
        if !ours {
            self.join(told + self.shutdown_timeout);
        }
        Stopped {
            positions: (0..self.table.len())
                .map(|p| self.table.load(p).id)
                .collect(),
            unsaved: self.unsaved.lock().clone(),
            still_running: self
                .seats
                .iter()
                .filter(|s| s.monitor.state() != LaneState::Stopped)
                .map(|s| s.partition)
                .collect(),
        }
    }

    fn join(&self, until: Instant) {
        let lanes_ended = self.lanes.all_ended(until);
        if !self.flusher.all_ended(until) {
            // It may be waiting for a server that does not answer.
            self.flush_interrupt.cut(STOP);
            self.flusher.all_ended(clock::now() + GRACE);
        }
        if lanes_ended {
            // What a lane drops last may be a handle of this consumer, which takes the lock.
            let threads = std::mem::take(&mut *self.threads.lock());
            if !threads.is_empty() {
                let total = |of: fn(&Monitor) -> &AtomicU64| -> u64 {
                    let each = self
                        .seats
                        .iter()
                        .map(|s| of(&s.monitor).load(Ordering::Relaxed));
                    each.sum()
                };
                log::info!(
                    "{self}: stopped; handled {}, stepped over {}",
                    total(|m| &m.handled),
                    total(|m| &m.skipped)
                );
            }
            for thread in threads {
                let _ = thread.join(); // a panic was reported where it was caught
            }
            drop(self.guard.lock().take());
            return;
        }
        let threads = self.threads.lock();
        let stuck: Vec<_> = threads
            .iter()
            .filter(|t| !t.is_finished())
            .filter_map(|t| t.thread().name())
            .collect();
        log::warn!(
            "{self}: stopped after {:.1} s with handlers still running on {stuck:?}; \
             what they are at will be handled again",
            self.shutdown_timeout.as_secs_f64()
        );
    }

    pub(crate) fn statuses(&self) -> impl Iterator<Item = PartitionStatus> {
        self.seats.iter().map(|seat| {
            let m = &seat.monitor;
            // A lane that waits in the server notices only when the read ends.
            let paused = seat.interrupt.bits() & PAUSE != 0 && m.state() == LaneState::Running;
            PartitionStatus {
                topic: Arc::clone(&self.topic),
                consumer: Arc::clone(&self.name),
                partition: seat.partition,
                state: if paused { LaneState::Paused } else { m.state() },
                reason: m.reason(),
                in_state: Duration::from_millis(m.in_state_ms()),
                position: self.table.load(seat.partition),
                handled: m.handled.load(Ordering::Relaxed),
                skipped: m.skipped.load(Ordering::Relaxed),
                failures: m.failures.load(Ordering::Relaxed),
                filtered: m.filtered.load(Ordering::Relaxed),
                connects: m.connects.load(Ordering::Relaxed),
                gaps: m.gaps.load(Ordering::Relaxed),
                lost: m.lost.load(Ordering::Relaxed),
                untold_gaps: m.untold_gaps.load(Ordering::Relaxed),
                since_gap: m.since_gap_ms().map(Duration::from_millis),
                unhealthy_block: self.unhealthy_block,
            }
        })
    }
}

impl fmt::Display for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.name)
    }
}
