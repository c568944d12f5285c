//! What the threads of a running consumer and its handles have in common, and how it all ends.

use std::{
    collections::BTreeSet,
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
    lanes::{Alive, Ended, Lane, Lanes, Outfit, Totals, alive},
};
use crate::{
    Error, ErrorKind, LaneState, PartitionStatus, Result, clock,
    consume::{
        self, FLUSH, Flusher, LOST, LaneEnd, PAUSE, Plan, Positions, RETRIES, Resets, Rhythm, Seat,
        Stored,
    },
    monitor::Meters,
    net::{Connection, Interrupt, STOP},
    observe::Subject,
    ownership::{self, Claims, Ownership},
    position::{Snapshot, Table},
    publish::Partitions,
    queue::{Group, GroupPlan, Keeper},
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
    /// What is the same in every [status](Self::status).
    pub(super) status: PartitionStatus,
    pub(super) flush_interrupt: Arc<Interrupt>,
    /// Woken by the flusher when it has done what it was asked to.
    pub(super) flushed: Arc<Interrupt>,
    /// Where partitions begin of which nothing is stored.
    pub(super) begins: Mutex<Vec<Stored>>,
    /// Of a consumer that is a group.
    pub(super) group: Option<Arc<GroupPlan>>,
    /// Every instance reads every partition: what is claimed is no more than a place among the members.
    pub(super) shares: bool,
    /// Empty where positions are not stored.
    pub(super) flusher: OnceLock<Ended>,
    /// How this instance comes by its partitions.
    pub(super) claims: Claims,
    /// The end of the thread that keeps them.
    pub(super) claiming: OnceLock<Ended>,
    /// Partitions that were taken while their lane of before had not ended.
    pub(super) awaited: Mutex<BTreeSet<u32>>,
    /// What its threads count together.
    pub(super) meters: Arc<Meters>,
    /// How many handler calls may run at once, and how many partitions may be taken, where that is limited.
    pub(super) max_in_flight: Option<u32>,
    pub(super) max_partitions: Option<u32>,
    /// Of a consumer that takes only those partitions that leave a remainder when divided: both numbers.
    pub(super) share: (u32, u32),
    /// From when on a handler that does not come back is stalled; zero: never.
    pub(super) stalled: Duration,
    pub(super) hand_over_when_stalled: bool,
    /// Of lanes that ended some may be missing.
    pub(super) threads: Mutex<Vec<JoinHandle<()>>>,
    /// Whether `OnError: Fail` has ended it.
    pub(super) failed: AtomicBool,
    /// Partitions whose last position could not be stored.
    pub(super) unsaved: Mutex<Vec<u32>>,
    /// Given back when every thread has ended, and no sooner: two of one name would overlap.
    pub(super) guard: Mutex<Option<NameGuard>>,
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
            running.claims.desk().hear();
        })
    }

    /// Starts the lane of a partition that has none, or whose lane has ended. Others are not disturbed. Any
    /// thread may call it; it waits for nothing.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Stopped`] when the partition has a lane, or when the consumer ends; and a thread that
    /// cannot be started.
    pub(crate) fn start_lane(self: &Arc<Self>, partition: u32) -> Result<()> {
        if let Some(group) = &self.group {
            return self.start_group_lane(partition, group);
        }
        let Some(mut writer) = self.table.writer(partition) else {
            let what = format!("partition {partition} of {self} has a lane already");
            return Err(Error::new(ErrorKind::Stopped, "start", what));
        };
        let start = match self.table.load(partition) {
            Snapshot { version: 0, .. } => self.begins.lock().get(partition as usize).copied(),
            // as far as it was read here before
            Snapshot { id, ordinal, .. } => Some(Stored { id, ordinal }),
        };
        let (alive, ended) = alive();
        let (lane, outfit) = self.lanes.add(partition, ended)?;
        // Where positions are stored the lane looks for itself.
        let start = start.unwrap_or_default();
        writer.begin(start.id, start.ordinal);
        let name = format!("lane{partition}-{}", self.topic);
        self.spawn_lane(name, lane, outfit, alive, |plan, seat| {
            consume::Lane::run(plan, seat, Positions::keep(plan, seat, writer))
        })
    }

    /// As [`start_lane`](Self::start_lane), where a group keeps what is finished; also of what is no partition.
    fn start_group_lane(self: &Arc<Self>, number: u32, group: &Arc<GroupPlan>) -> Result<()> {
        if self.lanes.is_running(number) {
            let what = format!("partition {number} of {self} has a lane already");
            return Err(Error::new(ErrorKind::Stopped, "start", what));
        }
        let (alive, ended) = alive();
        let (lane, outfit) = self.lanes.add(number, ended)?;
        let name = match number {
            RETRIES => format!("retries-{}", self.topic),
            partition => format!("lane{partition}-{}", self.topic),
        };
        let group = Arc::clone(group);
        self.spawn_lane(name, lane, outfit, alive, move |plan, seat| {
            consume::Lane::run(plan, seat, Group::keep(&group, seat))
        })
    }

    fn spawn_lane(
        self: &Arc<Self>,
        name: String,
        lane: Arc<Lane>,
        outfit: Arc<Outfit>,
        alive: Alive,
        run: impl FnOnce(&Arc<Plan>, &Seat) -> LaneEnd + Send + 'static,
    ) -> Result<()> {
        let (running, ours) = (Arc::clone(self), Arc::clone(&lane));
        let started = self.spawn(name, move || {
            let end = run(&outfit.plan, &lane.seat);
            running.lane_ended(&lane, end, &outfit);
            drop(alive);
            running.let_go(&lane);
        });
        started.inspect_err(|_| self.lanes.withdraw(&ours))
    }

    /// Looks after what is pending on a thread of its own.
    pub(super) fn spawn_keeper(self: &Arc<Self>, mut keeper: Keeper) -> Result<()> {
        let running = Arc::clone(self);
        let over = move || {
            running.flush_interrupt.bits() & CLOSING != 0 && running.lanes.all_ended(clock::now())
        };
        self.spawn("claims".into(), move || {
            // The logger is foreign code: its panic must not end this.
            while catch_unwind(AssertUnwindSafe(|| keeper.run(&over))).is_err() {}
        })
    }

    /// Takes up the partitions that were added to the topic, if any were since it was last asked: they
    /// begin at their beginning. Blocks for a few round trips.
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
        let starts = if let Some(group) = &self.group {
            let seats = added.clone().map(|p| outfit.seats.seat(p).key);
            group.found_added(connection, seats)?;
            vec![Stored::default(); added.len()]
        } else if self.flusher.get().is_some() {
            consume::extend(connection, &outfit.plan.store, added.clone(), timeout)?
        } else {
            vec![Stored::default(); added.len()]
        };
        if self.shares {
            // First, so that one that cannot be started is tried again.
            let missing = added.clone().filter(|p| !self.lanes.is_running(*p));
            missing.into_iter().try_for_each(|p| self.start_lane(p))?;
        }
        log::info!(
            "{self}: the topic has grown; partitions {added:?} are read from their beginning"
        );
        self.begins.lock().extend(starts);
        self.table.grow(added.end);
        self.claims.desk().look_again();
        Ok(())
    }

    /// What a lane does last.
    fn lane_ended(&self, lane: &Arc<Lane>, end: LaneEnd, outfit: &Outfit) {
        let seat = &lane.seat;
        match end {
            LaneEnd::Stopped => {
                let why = lane.stood_down().unwrap_or_default();
                seat.monitor.enter(LaneState::Stopped, why);
            }
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
    }

    /// What is not stored of a partition is another's to say by now, also while a handler has not returned.
    fn forget(&self, partition: u32) {
        let position = self.table.load(partition);
        self.table.stored(partition, position.version);
    }

    /// What follows the end of a lane: its partition may be another's, or be taken again here.
    fn let_go(self: &Arc<Self>, lane: &Arc<Lane>) {
        let leaves = self.lanes.is_through(lane);
        let (desk, p) = (self.claims.desk(), lane.seat.partition);
        // Held, so that who gives the partition up meanwhile finds the new lane, or none to come.
        let mut awaited = self.awaited.lock();
        let next = awaited.remove(&p).then(|| self.begin(p, &mut awaited));
        drop(awaited);
        if let Some(begun) = next {
            if !self.told_of(p, &begun) {
                desk.unread(p);
            }
        } else if leaves && lane.seat.interrupt.bits() & LOST == 0 {
            let until = clock::now() + self.shutdown_timeout;
            let stored = self.is_stored(p, until);
            // When the consumer ends, the last flush is yet to come; then everything is released. And where
            // the claim ended meanwhile and was made again, the next lane has its own say.
            if (stored || clock::now() >= until) && self.lanes.get(p).is_none() {
                // What could not be stored in time is handled again by whoever comes next.
                self.forget(p);
                desk.left(p);
            }
        }
        desk.hear();
    }

    /// Starts the lane of a partition that is ours, when the one of before has ended.
    fn begin(self: &Arc<Self>, partition: u32, awaited: &mut BTreeSet<u32>) -> Result<()> {
        if self.start_lane(partition).is_ok() {
            return Ok(());
        }
        if self.lanes.is_running(partition) {
            awaited.insert(partition);
            return Ok(());
        }
        // it may have ended between the two
        self.start_lane(partition)
    }

    /// Whether a lane has begun, or will. Where the consumer ends nothing begins, and that is no trouble.
    fn told_of(&self, partition: u32, begun: &Result<()>) -> bool {
        if let Err(e) = begun
            && self.lanes.outfit().is_some()
        {
            log::error!("{self}: partition {partition} cannot be read here: {e}");
        }
        begun.is_ok()
    }

    /// Has everything stored, until that is so for this partition or the time is over.
    fn is_stored(&self, partition: u32, until: Instant) -> bool {
        let keeps = self.flusher.get().is_some() && partition < self.table.len();
        // Of a reset that is under way the server knows by its marker.
        let unstored =
            || self.table.unstored(partition).is_some() && !self.resets.is_under_way(partition);
        let closing = || self.flush_interrupt.bits() & CLOSING != 0;
        while keeps && unstored() {
            if clock::now() >= until || closing() {
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

    /// Keeps the claims of this instance on a thread of its own. Blocks for the first attempt, in which
    /// lanes are started.
    ///
    /// # Errors
    ///
    /// What the server refuses for good; what may pass is tried again by the thread.
    pub(super) fn spawn_claiming(self: &Arc<Self>, patience: Duration) -> Result<()> {
        let running = Arc::clone(self);
        let (alive, ended) = alive();
        let (tell, told) = crossbeam_channel::bounded(1);
        let _ = self.claiming.set(ended);
        self.spawn("leases".into(), move || {
            let lanes: &dyn ownership::Lanes = &running;
            let mut alive = Some(alive);
            // Nobody listens for more than the first.
            running.claims.run(
                lanes,
                |begun| drop(tell.try_send(begun)),
                || drop(alive.take()),
            );
        })?;
        match told.recv_timeout(patience) {
            Ok(Err(e)) if !e.is_retryable() => Err(e),
            _ => Ok(()),
        }
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
        self.claims.desk().close();
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
        if self.group.is_some() {
            // Nothing is left to be kept alive.
            self.flush_interrupt.cut(STOP);
        }
        let release = clock::now() + GRACE;
        if let Some(claiming) = self.claiming.get().filter(|c| !c.by(release)) {
            // A server that does not answer: the claims end by themselves.
            self.claims.desk().abandon();
            claiming.by(clock::now() + GRACE);
        }
        if lanes_ended {
            // What a lane drops last may be a handle of this consumer, which takes the lock.
            let threads = std::mem::take(&mut *self.threads.lock());
            if !threads.is_empty() {
                let Totals {
                    handled,
                    skipped,
                    parked,
                    ..
                } = self.lanes.totals();
                log::info!(
                    "{self}: stopped; handled {handled}, stepped over {skipped}, dead letters {parked}"
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

    /// Who owns what, as was seen at the last renewal.
    pub(crate) fn ownership(&self) -> Ownership {
        let mut seen = self.claims.desk().ownership();
        if self.shares {
            seen.owned = (0..self.table.len()).collect(); // as every other member does
        }
        seen
    }

    pub(crate) fn statuses(&self) -> impl Iterator<Item = PartitionStatus> {
        self.lanes.all().into_iter().map(|lane| self.status(&lane))
    }

    /// How far a partition is finished; a group has no positions.
    pub(super) fn position(&self, partition: u32) -> Snapshot {
        match &self.group {
            None => self.table.load(partition),
            Some(_) => Snapshot::default(),
        }
    }

    /// Has every lane noted how far it is.
    pub(crate) fn note(&self) {
        for lane in self.lanes.all() {
            let seat = &lane.seat;
            let parked = seat.monitor.parked.load(Ordering::Relaxed);
            lane.sight.note(self.position(seat.partition), parked);
        }
    }

    /// What the server can be asked about.
    pub(crate) fn subjects(&self) -> Vec<Subject> {
        let of = |lane: &Arc<Lane>| {
            let seat = &lane.seat;
            Subject {
                topic: Arc::clone(&self.topic),
                consumer: Arc::clone(&self.name),
                partition: seat.partition,
                key: seat.key.clone(),
                group: self.group.clone(),
                position: self.position(seat.partition),
                sight: Arc::clone(&lane.sight),
            }
        };
        self.lanes.all().iter().map(of).collect()
    }

    /// Whether it was not told to stop. One that ended by its policy was not.
    pub(crate) fn is_started(&self) -> bool {
        let failed = |lane: &Arc<Lane>| !lane.seat.monitor.reason().is_empty();
        self.lanes.outfit().is_some() || self.lanes.all().iter().any(failed)
    }

    pub(super) fn status(&self, lane: &Lane) -> PartitionStatus {
        let seat = &lane.seat;
        let m = &seat.monitor;
        // A lane that waits in the server notices only when the read ends.
        let paused = seat.interrupt.bits() & PAUSE != 0 && m.state() == LaneState::Running;
        let mut status = PartitionStatus {
            partition: seat.partition,
            state: if paused { LaneState::Paused } else { m.state() },
            reason: m.reason(),
            in_state: Duration::from_millis(m.in_state_ms()),
            escalates: m.state() == LaneState::Stopped && lane.stood_down().is_some(),
            position: self.position(seat.partition),
            handled: m.handled.load(Ordering::Relaxed),
            skipped: m.skipped.load(Ordering::Relaxed),
            parked: m.parked.load(Ordering::Relaxed),
            retried: m.retried.load(Ordering::Relaxed),
            late: m.late.load(Ordering::Relaxed),
            pending: self.group.as_ref().and_then(|g| g.pending(seat.partition)),
            failures: m.failures.load(Ordering::Relaxed),
            filtered: m.filtered.load(Ordering::Relaxed),
            connects: m.connects.load(Ordering::Relaxed),
            gaps: m.gaps.load(Ordering::Relaxed),
            lost: m.lost.load(Ordering::Relaxed),
            untold_gaps: m.untold_gaps.load(Ordering::Relaxed),
            since_gap: m.since_gap_ms().map(Duration::from_millis),
            handler_for: m.in_call_ms().map(Duration::from_millis),
            attempt: m.attempt(),
            ..self.status.clone()
        };
        if seat.partition == RETRIES {
            status.unhealthy_behind = Duration::ZERO; // every instance reads it
        }
        lane.sight.tell(m, &mut status);
        status
    }
}

impl ownership::Lanes for Arc<Running> {
    fn partitions(&self) -> u32 {
        if self.shares { 0 } else { self.table.len() }
    }

    fn take(&self, partition: u32) -> bool {
        // Held, so that a lane that ends at this moment is not missed.
        let begun = self.begin(partition, &mut self.awaited.lock());
        self.told_of(partition, &begun)
    }

    fn give_up(&self, partition: u32) -> bool {
        let awaited = self.awaited.lock().remove(&partition);
        let runs = self.lanes.dismiss(partition, STOP);
        runs && !awaited
    }

    fn cut(&self, partition: u32) {
        self.awaited.lock().remove(&partition);
        self.lanes.dismiss(partition, STOP | LOST);
        self.forget(partition);
    }

    fn stand_down(&self, partition: u32, why: String) {
        self.awaited.lock().remove(&partition);
        self.lanes.stand_down(partition, why);
        self.forget(partition);
    }

    fn stalled(&self) -> BTreeSet<u32> {
        let limit = self.stalled.as_millis() as u64;
        let stalls = |lane: &Arc<Lane>| lane.seat.monitor.in_call_ms().is_some_and(|ms| ms > limit);
        let on = self.hand_over_when_stalled && limit > 0;
        self.lanes.those(|lane| on && stalls(lane))
    }

    fn running(&self) -> BTreeSet<u32> {
        let is_claimed = |lane: &Arc<Lane>| !self.shares && lane.seat.partition != RETRIES;
        self.lanes
            .those(|lane| is_claimed(lane) && !lane.has_ended())
    }

    fn occupied(&self) -> BTreeSet<u32> {
        self.lanes
            .those(|lane| lane.seat.interrupt.bits() & LOST != 0 && !lane.has_ended())
    }

    fn all_done(&self) -> bool {
        let now = clock::now();
        self.lanes.all_ended(now) && self.flusher.get().is_none_or(|f| f.by(now))
    }
}

impl fmt::Display for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.name)
    }
}
