//! What the threads of a running consumer and its handles have in common, and how it all ends.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{
    Stopped,
    lanes::{Ended, Lane, Lanes, Outfit, Totals, alive},
};
use crate::{
    Error, ErrorKind, LaneState, PartitionStatus, Result, clock,
    consume::{self, FLUSH, Flusher, LaneEnd, PAUSE, Resets, Rhythm, Stored, resolve_added},
    net::{Connection, Interrupt, STOP},
    position::Table,
    publish::Partitions,
    streams::NameGuard,
};

/// Tells the flusher that the lanes are ending.
const CLOSING: u32 = 1 << 2;
/// What a handler may use of a lane's stack.
const STACK_BYTES: usize = 2 * 1024 * 1024;
/// A flush that was asked for and has not come to an end by then is asked for again.
const FLUSH_RETRY: Duration = Duration::from_secs(1);
/// The pause after one that left something unstored.
const FLUSH_PAUSE: Duration = Duration::from_millis(50);
/// Lanes whose handlers heed a stop have ended after so long.
const PROMPT_EXIT: Duration = Duration::from_millis(10);
/// How much longer than the shutdown timeout the flusher may take to notice that it is over.
const GRACE: Duration = Duration::from_millis(500);

/// A running consumer, whoever holds it.
pub(crate) struct Running {
    pub(super) topic: Arc<str>,
    pub(super) name: Arc<str>,
    /// How many the topic has.
    pub(super) partitions: Arc<Partitions>,
    /// As many as are known here.
    pub(super) table: Arc<Table>,
    pub(super) resets: Arc<Resets>,
    pub(super) lanes: Lanes,
    pub(super) shutdown_timeout: Duration,
    pub(super) unhealthy_block: Duration,
    pub(super) flush_interrupt: Arc<Interrupt>,
    /// Woken by the flusher when it has done what it was asked to.
    pub(super) flushed: Arc<Interrupt>,
    /// Empty where positions are not stored.
    pub(super) flusher: OnceLock<Ended>,
    /// Of lanes that ended some may be missing.
    pub(super) threads: Mutex<Vec<JoinHandle<()>>>,
    /// Whether `OnError: Fail` has ended it.
    pub(super) failed: AtomicBool,
    /// Partitions whose last position could not be stored.
    pub(super) unsaved: Mutex<Vec<u32>>,
    /// Given back when every thread has ended, and no sooner: two of one name would overlap.
    pub(super) guard: Mutex<Option<NameGuard>>,
}

/// What has become of a lane that was told to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "only a lane that is gone may be started elsewhere"]
pub(crate) enum Left {
    /// It has ended and its position is stored: whoever begins there misses nothing and repeats nothing.
    Gone,
    /// It has ended, but its position is not stored yet; that goes on being tried.
    Unstored,
    /// Its handler has not returned.
    StillRunning,
}

impl Running {
    pub(super) fn spawn_flusher(
        self: &Arc<Self>,
        mut flusher: Flusher,
        rhythm: Rhythm,
    ) -> Result<()> {
        let running = Arc::clone(self);
        let (alive, ended) = alive();
        let _ = self.flusher.set(ended);
        self.spawn("positions".into(), move || {
            // The logger is foreign code: its panic must not end the keeping of positions.
            while catch_unwind(AssertUnwindSafe(|| flusher.run(rhythm, CLOSING))).is_err() {}
            // Handlers that end slowly still finish messages, and the process may be killed before they
            // are done: what they finish is stored as quickly as ever.
            // A tenth of the time is kept for the last flush.
            let until = clock::now() + running.shutdown_timeout.mul_f64(0.9);
            let interval = rhythm.stores.then_some(rhythm.interval);
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

    /// Starts the lane of a partition that has none, or whose lane has ended, at the position that is
    /// stored at the server. Others are not disturbed. Any thread may call it; it waits for nothing.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Stopped`] when the partition has a lane, or when the consumer ends; and a thread that
    /// cannot be started.
    pub(crate) fn start_lane(self: &Arc<Self>, partition: u32, start: Stored) -> Result<()> {
        self.table.grow(partition + 1);
        let Some(mut writer) = self.table.writer(partition) else {
            let what = format!("partition {partition} of {self} has a lane already");
            return Err(Error::new(ErrorKind::Stopped, "start", what));
        };
        let (alive, ended) = alive();
        let (lane, outfit) = self.lanes.add(partition, ended)?;
        writer.begin(start.id, start.ordinal);
        let running = Arc::clone(self);
        let name = format!("lane{partition}-{}", self.topic);
        self.spawn(name, move || {
            let end = consume::Lane::run(&outfit.plan, &lane.seat, writer);
            running.lane_ended(&lane, end, &outfit);
            drop(alive);
        })
    }

    /// Reads the partitions that were added to the topic, if any were since it was last asked, from their
    /// beginning. Blocks for a few round trips.
    ///
    /// # Errors
    ///
    /// A server that cannot be reached or refuses, or a thread that cannot be started: to be tried again.
    pub(crate) fn keep_up(
        self: &Arc<Self>,
        connection: &mut Connection,
        timeout: Duration,
    ) -> Result<()> {
        let added = self.table.len()..self.partitions.seen();
        let Some(outfit) = self.lanes.outfit().filter(|_| !added.is_empty()) else {
            return Ok(());
        };
        let starts = if self.flusher.get().is_some() {
            let store = &outfit.plan.store;
            resolve_added(connection, store, added.clone(), timeout)?
        } else {
            vec![Stored::default(); added.len()]
        };
        log::info!(
            "{self}: the topic has grown; partitions {added:?} are read from their beginning"
        );
        // one by one, so that what fails is tried again from there
        added
            .zip(starts)
            .try_for_each(|(p, start)| self.start_lane(p, start))
    }

    /// What a lane does last.
    fn lane_ended(&self, lane: &Arc<Lane>, end: LaneEnd, outfit: &Outfit) {
        let seat = &lane.seat;
        match end {
            LaneEnd::Stopped => seat.monitor.enter(LaneState::Stopped, ""),
            LaneEnd::ByPolicy(why) => {
                seat.monitor.enter(LaneState::Stopped, &why);
                log::warn!("{seat}: the partition has stopped: {why}");
            }
            LaneEnd::Failed(e) => {
                seat.monitor.enter(LaneState::Stopped, &e.to_string());
                match &outfit.on_fail {
                    None => outfit.streams.fail(e),
                    // Other lanes may fail before they hear of it.
                    Some(hook) if !self.failed.swap(true, Ordering::Relaxed) => {
                        log::error!("{self}: stopping: {e}");
                        self.signal_stop();
                        hook(&e);
                    }
                    Some(_) => {}
                }
            }
        }
        self.lanes.has_ended(lane);
    }

    /// Stops the lane of a partition and waits until it has ended and what it finished is stored, but
    /// no longer than `until`. Others are not disturbed, and the partition can be started again later.
    /// Any thread but the lane's own may call it, also for several lanes at once. A lane that has not
    /// ended by then leaves when it does.
    #[cfg_attr(not(test), expect(dead_code, reason = "for whoever settles ownership"))]
    pub(crate) fn stop_lane(&self, partition: u32, until: Instant) -> Left {
        if let Some(lane) = self.lanes.dismiss(partition) {
            if !lane.ended.by(until) {
                return Left::StillRunning;
            }
            self.lanes.has_ended(&lane); // it may have ended before it was told
        }
        if self.is_stored(partition, until) {
            Left::Gone
        } else {
            Left::Unstored
        }
    }

    /// Has everything stored, until that is so for this partition or the time is over.
    fn is_stored(&self, partition: u32, until: Instant) -> bool {
        let keeps = self.flusher.get().is_some() && partition < self.table.len();
        // Of a reset that is under way the server knows by its marker.
        let unstored =
            || self.table.unstored(partition).is_some() && !self.resets.is_under_way(partition);
        while keeps && unstored() {
            if clock::now() >= until {
                return false;
            }
            let seen = self.flushed.wakes();
            self.flush_interrupt.set(FLUSH);
            self.flushed
                .wait(seen, until.min(clock::now() + FLUSH_RETRY));
            if unstored() {
                self.flushed.pause(FLUSH_PAUSE);
            }
        }
        true
    }

    fn spawn(&self, name: String, f: impl FnOnce() + Send + 'static) -> Result<()> {
        let builder = thread::Builder::new().name(name).stack_size(STACK_BYTES);
        let thread = builder.spawn(f);
        let thread = thread.map_err(|e| Error::io("start a thread", e))?;
        let mut threads = self.threads.lock();
        // of lanes that came and went
        threads.retain(|t| !t.is_finished());
        threads.push(thread);
        Ok(())
    }

    /// Tells every thread to end. Waits for nothing.
    pub(crate) fn signal_stop(&self) {
        self.lanes.end_all();
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
                .lanes
                .all()
                .iter()
                .filter(|lane| lane.state() != LaneState::Stopped)
                .map(|lane| lane.seat.partition)
                .collect(),
        }
    }

    fn join(&self, until: Instant) {
        let lanes_ended = self.lanes.all_ended(until);
        if let Some(flusher) = self.flusher.get().filter(|f| !f.by(until)) {
            // It may be waiting for a server that does not answer.
            self.flush_interrupt.cut(STOP);
            flusher.by(clock::now() + GRACE);
        }
        if lanes_ended {
            // What a lane drops last may be a handle of this consumer, which takes the lock.
            let threads = std::mem::take(&mut *self.threads.lock());
            if !threads.is_empty() {
                let Totals { handled, skipped } = self.lanes.totals();
                log::info!("{self}: stopped; handled {handled}, stepped over {skipped}");
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
        self.lanes.all().into_iter().map(|lane| self.status(&lane))
    }

    pub(super) fn status(&self, lane: &Lane) -> PartitionStatus {
        let seat = &lane.seat;
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
    }
}

impl fmt::Display for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.name)
    }
}
