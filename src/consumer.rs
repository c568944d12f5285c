//! A consumer: how one is described, and the handle to a running one.

use std::{
    collections::BTreeSet,
    error::Error as StdError,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime},
};

use parking_lot::{Condvar, Mutex};

use crate::{
    Action, Batch, BatchHandler, ConsumerSettings, Error, ErrorKind, HandlerResult, LaneState,
    Message, MessageHandler, OnError, PartitionStatus, Persist, ReadMode, Result, Snapshot,
    StartFrom, StreamId, Streams, TypedHandler, clock,
    consume::{
        Classify, Flusher, Handler, HandlerFactory, Lane, LaneEnd, PAUSE, Plan, Seat, last_entry,
    },
    handler::Typed,
    monitor::Monitor,
    net::{Interrupt, STOP},
    position::Table,
    streams::NameGuard,
};

/// Tells the flusher that the lanes are ending.
const CLOSING: u32 = 1 << 2;

/// A consumer being described. Made by [`Streams::consumer`]; a handler makes it
/// [`start`](ConsumerBuilder::start)able.
#[must_use = "a consumer does nothing before `start`"]
pub struct ConsumerBuilder<H = NoHandler> {
    streams: Streams,
    seed: Seed,
    name: Option<String>,
    changes: Vec<Change>,
    classify: Option<Classify>,
    on_lane_start: Option<Arc<dyn Fn(u32) + Send + Sync>>,
    on_fail: Option<FailHook>,
    handler: H,
}

/// What a [`ConsumerBuilder`] has before it is given a handler.
#[derive(Clone, Copy, Debug)]
pub struct NoHandler;

/// What a [`ConsumerBuilder`] has once it was given a handler.
pub struct HasHandler(HandlerFactory);

impl fmt::Debug for HasHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HasHandler")
    }
}

/// Where a consumer's settings begin.
#[derive(Clone, Debug)]
enum Seed {
    /// The entry for this topic, chosen once the name is known.
    Topic(String),
    Entry(Box<ConsumerSettings>),
}

/// What code says, which goes before what the settings say.
type Change = Box<dyn FnOnce(ConsumerSettings) -> ConsumerSettings + Send>;

type FailHook = Arc<dyn Fn(&Error) + Send + Sync>;

impl<H: fmt::Debug> fmt::Debug for ConsumerBuilder<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsumerBuilder")
            .field("seed", &self.seed)
            .field("name", &self.name)
            .field("handler", &self.handler)
            .finish_non_exhaustive()
    }
}

impl ConsumerBuilder {
    pub(crate) fn of_topic(streams: Streams, topic: String) -> Self {
        Self::new(streams, Seed::Topic(topic))
    }

    pub(crate) fn of_entry(streams: Streams, entry: ConsumerSettings) -> Self {
        Self::new(streams, Seed::Entry(Box::new(entry)))
    }

    fn new(streams: Streams, seed: Seed) -> Self {
        Self {
            streams,
            seed,
            name: None,
            changes: Vec::new(),
            classify: None,
            on_lane_start: None,
            on_fail: None,
            handler: NoHandler,
        }
    }

    /// Handles messages batch by batch. `make` is called on each lane, with its partition, when the lane
    /// begins and after a panic; each lane has the handler it made to itself.
    pub fn batches<F, B>(self, make: F) -> ConsumerBuilder<HasHandler>
    where
        F: Fn(u32) -> B + Send + Sync + 'static,
        B: BatchHandler + 'static,
    {
        self.handled_by(Arc::new(move |p| Handler::Batches(Box::new(make(p)))))
    }

    /// Handles messages one by one. `make` is as for [`batches`](Self::batches).
    pub fn messages<F, M>(self, make: F) -> ConsumerBuilder<HasHandler>
    where
        F: Fn(u32) -> M + Send + Sync + 'static,
        M: MessageHandler + 'static,
    {
        self.handled_by(Arc::new(move |p| Handler::Messages(Box::new(make(p)))))
    }

    /// Handles messages with JSON bodies one by one, decoded. `make` is as for
    /// [`batches`](Self::batches); for closures see [`typed`](crate::typed).
    pub fn json<F, T>(self, make: F) -> ConsumerBuilder<HasHandler>
    where
        F: Fn(u32) -> T + Send + Sync + 'static,
        T: TypedHandler + 'static,
    {
        self.handled_by(Arc::new(move |p| {
            Handler::Messages(Box::new(Typed::new(make(p))))
        }))
    }

    /// Handles messages one by one with one function that all lanes share, several at a time.
    pub fn shared<F>(self, handle: F) -> ConsumerBuilder<HasHandler>
    where
        F: Fn(&Message<'_>) -> HandlerResult + Send + Sync + 'static,
    {
        let handle = Arc::new(handle);
        self.messages(move |_| {
            let handle = Arc::clone(&handle);
            move |m: &Message<'_>| handle(m)
        })
    }

    /// As [`shared`](Self::shared), batch by batch.
    pub fn shared_batches<F>(self, handle: F) -> ConsumerBuilder<HasHandler>
    where
        F: Fn(&Batch<'_>) -> HandlerResult + Send + Sync + 'static,
    {
        let handle = Arc::new(handle);
        self.batches(move |_| {
            let handle = Arc::clone(&handle);
            move |b: &Batch<'_>| handle(b)
        })
    }

    fn handled_by(self, factory: HandlerFactory) -> ConsumerBuilder<HasHandler> {
        ConsumerBuilder {
            streams: self.streams,
            seed: self.seed,
            name: self.name,
            changes: self.changes,
            classify: self.classify,
            on_lane_start: self.on_lane_start,
            on_fail: self.on_fail,
            handler: HasHandler(factory),
        }
    }
}

/// Every option is also a key of [`ConsumerSettings`], where units, defaults and ranges are.
impl<H> ConsumerBuilder<H> {
    /// The consumer's name: positions are stored under it. Default: the `Consumer` of the settings, else
    /// the executable's name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The most messages in one batch.
    pub fn batch_size(self, messages: u32) -> Self {
        self.with(move |s| s.batch_size(messages))
    }

    /// How many bytes one read aims at.
    pub fn batch_bytes(self, bytes: u32) -> Self {
        self.with(move |s| s.batch_bytes(bytes))
    }

    /// How long one read waits in the server.
    pub fn block(self, at_most: Duration) -> Self {
        self.with(move |s| s.block(at_most))
    }

    /// How much later than `block` an answer may come before the connection is given up.
    pub fn read_slack(self, slack: Duration) -> Self {
        self.with(move |s| s.read_slack(slack))
    }

    /// Whether reads wait in the server or poll.
    pub fn read_mode(self, mode: ReadMode) -> Self {
        self.with(move |s| s.read_mode(mode))
    }

    /// The longest pause between polls.
    pub fn max_idle_delay(self, delay: Duration) -> Self {
        self.with(move |s| s.max_idle_delay(delay))
    }

    /// How long to look for an answer without sleeping.
    pub fn spin(self, spin: Duration) -> Self {
        self.with(move |s| s.spin(spin))
    }

    /// When positions are stored.
    pub fn persist(self, persist: Persist) -> Self {
        self.with(move |s| s.persist(persist))
    }

    /// How long after a message is finished its position is stored.
    pub fn persist_interval(self, interval: Duration) -> Self {
        self.with(move |s| s.persist_interval(interval))
    }

    /// What an ordinary failure of the handler does.
    pub fn on_error(self, policy: OnError) -> Self {
        self.with(move |s| s.on_error(policy))
    }

    /// Where to begin.
    pub fn start_from(self, from: StartFrom) -> Self {
        self.with(move |s| s.start_from(from))
    }

    /// Begins with the first message of this moment or later.
    pub fn start_from_date(self, moment: SystemTime) -> Self {
        self.with(move |s| s.start_from(StartFrom::Date).start_from_date(moment))
    }

    /// Where to begin when nothing is stored.
    pub fn start_from_when_missing(self, from: StartFrom) -> Self {
        self.with(move |s| s.start_from_when_missing(from))
    }

    /// The message types to handle; all others are passed over.
    pub fn filter(self, types: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let types: Vec<String> = types.into_iter().map(Into::into).collect();
        self.with(move |s| s.filter(types))
    }

    /// Whether the next batch is read while one is handled.
    pub fn read_ahead(self, on: bool) -> Self {
        self.with(move |s| s.backpressure_enabled(on))
    }

    /// How long stopping waits for handlers.
    pub fn shutdown_timeout(self, timeout: Duration) -> Self {
        self.with(move |s| s.shutdown_timeout(timeout))
    }

    /// Says what an error type means, for errors thrown with a bare `?`: `None` leaves it an ordinary
    /// error. Called on the lane, after a failure.
    ///
    /// ```no_run
    /// # use streamlane::{Action, Message, Streams};
    /// # #[derive(Debug)] struct LedgerError;
    /// # impl std::fmt::Display for LedgerError {
    /// #     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str("down") }
    /// # }
    /// # impl std::error::Error for LedgerError {}
    /// # fn post(_: &Message<'_>) -> Result<(), LedgerError> { Ok(()) }
    /// # fn main() -> Result<(), streamlane::Error> {
    /// # let streams = Streams::connect("redis://127.0.0.1:6379")?;
    /// let consumer = streams
    ///     .consumer("orders")
    ///     .classify(|e| e.is::<LedgerError>().then_some(Action::Block))
    ///     .messages(|_| |m: &Message<'_>| Ok(post(m)?)) // never skipped while the ledger is down
    ///     .start()?;
    /// # drop(consumer); Ok(()) }
    /// ```
    pub fn classify<F>(mut self, classify: F) -> Self
    where
        F: Fn(&(dyn StdError + 'static)) -> Option<Action> + Send + Sync + 'static,
    {
        self.classify = Some(Arc::new(classify));
        self
    }

    /// Called on each new lane, with its partition, before it reads: to pin it to a core, or to raise
    /// its priority.
    pub fn on_lane_start(mut self, f: impl Fn(u32) + Send + Sync + 'static) -> Self {
        self.on_lane_start = Some(Arc::new(f));
        self
    }

    /// Called once, on the lane, when `OnError: Fail` ends the consumer. Default: every consumer of
    /// the [`Streams`] is stopped, and [`Streams::wait`] returns the error.
    pub fn on_fail(mut self, f: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        self.on_fail = Some(Arc::new(f));
        self
    }

    fn with(
        mut self,
        change: impl FnOnce(ConsumerSettings) -> ConsumerSettings + Send + 'static,
    ) -> Self {
        self.changes.push(Box::new(change));
        self
    }

    /// What the settings say and code says on top.
    fn settle(
        streams: &Streams,
        seed: Seed,
        name: Option<String>,
        changes: Vec<Change>,
    ) -> Result<ConsumerSettings> {
        let all = streams.settings();
        let seed = match (seed, name) {
            (Seed::Topic(topic), Some(name)) => all.consumer_named(&topic, &name),
            (Seed::Topic(topic), None) => all.consumer_for(&topic)?,
            (Seed::Entry(entry), Some(name)) => entry.consumer(name),
            (Seed::Entry(entry), None) => *entry,
        };
        Ok(changes
            .into_iter()
            .fold(seed, |settings, change| change(settings)))
    }
}

impl ConsumerBuilder<HasHandler> {
    /// Starts one lane per partition and returns once they run. The topic is created if it is missing,
    /// and where to begin is settled (and stored, unless `Persist` is `None`) before this returns.
    ///
    /// Blocks for a few round trips; while the server says that it is loading its data, up to
    /// `StartTimeoutMs`.
    ///
    /// # Errors
    ///
    /// Settings that contradict one another, a consumer of this topic and name that runs in this process
    /// already, a topic that does not fit its settings, or a server that cannot be reached.
    pub fn start(self) -> Result<Consumer> {
        let ConsumerBuilder {
            streams,
            seed,
            name,
            changes,
            classify,
            on_lane_start,
            on_fail,
            handler,
        } = self;
        let settings = Self::settle(&streams, seed, name, changes)?;
        let prepared = streams.prepare(&settings)?;
        let persisted = prepared.settings.persist != Persist::None;
        let table = Arc::new(Table::new(prepared.starts.len() as u32));
        for (p, start) in prepared.starts.iter().enumerate() {
            if let Some(mut w) = table.writer(p as u32) {
                w.store(start.id, start.ordinal);
            }
        }
        let plan = Arc::new(Plan {
            read: Arc::clone(&prepared.read_plan),
            read_ahead: prepared.settings.reads_ahead(),
            idle_cap: prepared.settings.max_idle_delay,
            persist: prepared.settings.persist,
            on_error: prepared.settings.on_error,
            classify,
            factory: handler.0,
            on_start: on_lane_start,
            pool: prepared.pool.clone(),
            target: Arc::clone(&prepared.target),
            store: prepared.store.clone(),
        });
        let lanes: Vec<LaneHandle> = (0..table.len())
            .map(|p| LaneHandle {
                seat: Arc::new(Seat {
                    topic: Arc::clone(&prepared.topic),
                    consumer: Arc::clone(&prepared.consumer),
                    partition: p,
                    key: prepared.streams[p as usize].clone(),
                    client_name: prepared.client_name(&format!("p{p}")),
                    interrupt: Arc::default(),
                    monitor: Arc::default(),
                }),
            })
            .collect();
        let shared = Arc::new(Shared {
            topic: Arc::clone(&prepared.topic),
            name: Arc::clone(&prepared.consumer),
            table: Arc::clone(&table),
            flush_interrupt: Arc::default(),
            live: Live::new(lanes.len() + usize::from(persisted), prepared.name_guard),
            threads: Mutex::default(),
            stopping: AtomicBool::new(false),
            unsaved: Mutex::default(),
            shutdown_timeout: prepared.settings.shutdown_timeout,
            unhealthy_block: prepared.settings.unhealthy_block,
            stream_keys: prepared.streams,
            lanes,
        });
        let consumer = Consumer {
            shared: Arc::clone(&shared),
            streams: streams.clone(),
        };
        if persisted {
            let flusher = Flusher::new(
                format!("{}/{}", shared.topic, shared.name),
                table,
                prepared.store,
                prepared.target,
                prepared.flusher_name,
                Arc::clone(&shared.flush_interrupt),
                prepared.flush_timeout,
            );
            shared.spawn_flusher(flusher, prepared.settings.persist_interval)?;
        }
        streams.register(&shared);
        for lane in &shared.lanes {
            shared.spawn_lane(lane, &plan, on_fail.clone(), &streams)?;
        }
        log::info!(
            "{}/{}: {} lanes started, instance {}",
            shared.topic,
            shared.name,
            shared.lanes.len(),
            streams.instance()
        );
        Ok(consumer)
    }
}

/// One partition's lane, seen from outside.
struct LaneHandle {
    seat: Arc<Seat>,
}

/// What a running consumer's threads and handles have in common.
pub(crate) struct Shared {
    topic: Arc<str>,
    name: Arc<str>,
    table: Arc<Table>,
    lanes: Vec<LaneHandle>,
    stream_keys: Vec<Box<[u8]>>,
    flush_interrupt: Arc<Interrupt>,
    live: Live,
    threads: Mutex<Vec<JoinHandle<()>>>,
    stopping: AtomicBool,
    /// Partitions whose last position could not be stored.
    unsaved: Mutex<Vec<u32>>,
    shutdown_timeout: Duration,
    unhealthy_block: Duration,
}

/// How many threads of a consumer are still at work.
struct Live {
    count: Mutex<usize>,
    changed: Condvar,
    /// Free for another as soon as no thread is left, whoever still holds a handle.
    name: Mutex<Option<NameGuard>>,
}

impl Live {
    fn new(n: usize, name: NameGuard) -> Self {
        Self {
            count: Mutex::new(n),
            changed: Condvar::new(),
            name: Mutex::new(Some(name)),
        }
    }

    fn leave(&self) {
        let mut count = self.count.lock();
        *count -= 1;
        if *count == 0 {
            *self.name.lock() = None;
        }
        self.changed.notify_all();
    }

    /// Waits until at most `n` are left. False when the time is up.
    fn wait_for(&self, n: usize, until: Instant) -> bool {
        let mut count = self.count.lock();
        while *count > n {
            if self.changed.wait_until(&mut count, until).timed_out() {
                return *count <= n;
            }
        }
        true
    }
}

/// Leaves when the thread ends, however it ends.
struct Leave(Arc<Shared>);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.live.leave();
    }
}

impl Shared {
    fn spawn_flusher(self: &Arc<Self>, mut flusher: Flusher, interval: Duration) -> Result<()> {
        let leave = Leave(Arc::clone(self));
        self.spawn("positions".into(), move || {
            let shared = &leave.0;
            flusher.run(interval, CLOSING);
            // The lanes' last positions are in the table once all have left.
            let until = clock::now() + shared.shutdown_timeout;
            shared.live.wait_for(1, until);
            let unsaved = flusher.flush_all();
            if !unsaved.is_empty() {
                log::warn!(
                    "{}/{}: stopped, and the positions of partitions {unsaved:?} are not stored: \
                     their last messages will be handled again",
                    shared.topic,
                    shared.name
                );
            }
            *shared.unsaved.lock() = unsaved;
        })
    }

    fn spawn_lane(
        self: &Arc<Self>,
        lane: &LaneHandle,
        plan: &Arc<Plan>,
        on_fail: Option<FailHook>,
        streams: &Streams,
    ) -> Result<()> {
        let (seat, plan) = (Arc::clone(&lane.seat), Arc::clone(plan));
        let leave = Leave(Arc::clone(self));
        // A handle of the user's would keep everything alive; the lane must not.
        let streams = streams.downgrade();
        let Some(writer) = self.table.writer(seat.partition) else {
            return Err(Error::new(
                ErrorKind::Stopped,
                "start",
                "the partition has a lane already",
            ));
        };
        let name = format!("lane{}-{}", seat.partition, seat.topic);
        self.spawn(name, move || {
            match Lane::run(&plan, &seat, writer) {
                LaneEnd::Stopped => seat.monitor.enter(LaneState::Stopped, "stopped"),
                LaneEnd::ByPolicy(why) => {
                    seat.monitor.enter(LaneState::Stopped, &why);
                    log::warn!(
                        "{}[{}]/{}: the partition has stopped while the others go on: {why}",
                        seat.topic,
                        seat.partition,
                        seat.consumer
                    );
                }
                LaneEnd::Failed(e) => {
                    seat.monitor.enter(LaneState::Stopped, &e.to_string());
                    match &on_fail {
                        Some(hook) => hook(&e),
                        None => streams.fail(e),
                    }
                }
            }
            drop(leave);
        })
    }

    fn spawn(&self, name: String, f: impl FnOnce() + Send + 'static) -> Result<()> {
        let t = thread::Builder::new()
            .name(name)
            .stack_size(STACK_BYTES)
            .spawn(f);
        let t = t.map_err(|e| Error::io("start a thread", e))?;
        self.threads.lock().push(t);
        Ok(())
    }

    /// Tells every thread to end. Waits for nothing.
    pub(crate) fn signal_stop(&self) {
        self.stopping.store(true, Ordering::Release);
        for lane in &self.lanes {
            lane.seat.interrupt.cut(STOP);
        }
        self.flush_interrupt.set(CLOSING);
    }

    /// Tells every thread to end and waits for them, within the shutdown timeout. On a thread of its own
    /// it only tells: that thread cannot wait for itself.
    pub(crate) fn stop(&self) -> Stopped {
        self.signal_stop();
        let me = thread::current().id();
        let ours = |t: &JoinHandle<()>| t.thread().id() == me;
        if !self.threads.lock().iter().any(ours) {
            self.join();
        }
        Stopped {
            positions: (0..self.table.len())
                .map(|p| self.table.load(p).id)
                .collect(),
            unsaved: self.unsaved.lock().clone(),
            still_running: self
                .lanes
                .iter()
                .filter(|l| l.seat.monitor.state() != LaneState::Stopped)
                .map(|l| l.seat.partition)
                .collect(),
        }
    }

    fn join(&self) {
        let until = clock::now() + self.shutdown_timeout;
        let over = self.live.wait_for(0, until) || {
            // The flusher may be waiting for a server that does not answer.
            self.flush_interrupt.cut(STOP);
            self.live.wait_for(0, clock::now() + GRACE)
        };
        let mut threads = self.threads.lock();
        // A thread that has left is at its very end, if not past it.
        let (ended, stuck): (Vec<_>, Vec<_>) =
            threads.drain(..).partition(|t| over || t.is_finished());
        for t in ended {
            let _ = t.join(); // a lane's panic was reported where it was caught
        }
        if !stuck.is_empty() {
            let names: Vec<_> = stuck.iter().filter_map(|t| t.thread().name()).collect();
            log::warn!(
                "{}/{}: stopped after {:.1} s with handlers still running on {names:?}; \
                 what they are at will be handled again",
                self.topic,
                self.name,
                self.shutdown_timeout.as_secs_f64()
            );
        }
    }

    pub(crate) fn statuses(&self) -> impl Iterator<Item = PartitionStatus> {
        self.lanes.iter().map(|l| {
            let (seat, m): (&Seat, &Monitor) = (&l.seat, &l.seat.monitor);
            PartitionStatus {
                topic: Arc::clone(&self.topic),
                consumer: Arc::clone(&self.name),
                partition: seat.partition,
                state: m.state(),
                reason: m.reason(),
                in_state: Duration::from_millis(m.in_state_ms()),
                position: self.table.load(seat.partition),
                handled: m.handled.load(Ordering::Relaxed),
                skipped: m.skipped.load(Ordering::Relaxed),
                failures: m.failures.load(Ordering::Relaxed),
                filtered: m.filtered.load(Ordering::Relaxed),
                connects: m.connects.load(Ordering::Relaxed),
                unhealthy_block: self.unhealthy_block,
            }
        })
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

/// What a handler may use of a lane's stack.
const STACK_BYTES: usize = 2 * 1024 * 1024;
/// How much longer than the shutdown timeout the flusher may take to notice that it is over.
const GRACE: Duration = Duration::from_millis(500);
/// How often a draining consumer is looked at.
const DRAIN_TICK: Duration = Duration::from_millis(2);

/// A running consumer. Dropping it stops it, which blocks for up to its shutdown timeout.
#[must_use = "dropping it stops the consumer"]
pub struct Consumer {
    shared: Arc<Shared>,
    streams: Streams,
}

/// What a consumer left when it stopped.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Stopped {
    /// The position of each partition: everything up to it is finished.
    pub positions: Vec<StreamId>,
    /// Partitions whose position could not be stored; what they handled last will be handled again.
    pub unsaved: Vec<u32>,
    /// Partitions whose handler did not return in time.
    pub still_running: Vec<u32>,
}

impl Consumer {
    /// The topic it reads.
    pub fn topic(&self) -> &str {
        &self.shared.topic
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Stops: no handler call starts any more, those that run are told (`is_cancelled`) and waited for,
    /// and positions are stored. Returns what was left.
    ///
    /// Blocks for up to the shutdown timeout (10 s by default), usually far less: reads that wait in the
    /// server are cut short. Calling it again, or from several threads, is fine. From inside a handler it
    /// returns at once, and the consumer stops when the handler returns.
    pub fn stop(&self) -> Stopped {
        self.shared.stop()
    }

    /// Handles everything that is in the topic at this moment, then [`stop`](Self::stop)s.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`] when it was not done in time, and [`ErrorKind::Stopped`] when a partition
    /// was stopped by its error policy; the consumer is stopped in either case. Any error of asking the
    /// server how far there is to go.
    pub fn drain(&self, timeout: Duration) -> Result<Stopped> {
        let until = clock::now() + timeout;
        let outcome = self.await_tail(until);
        let stopped = self.stop();
        outcome.map(|()| stopped)
    }

    /// Holds all partitions: no handler call starts until [`resume`](Self::resume), and positions stay.
    /// Calls that run are not waited for.
    pub fn pause(&self) {
        self.shared
            .lanes
            .iter()
            .for_each(|l| l.seat.interrupt.set(PAUSE));
    }

    /// Lets all partitions go on.
    pub fn resume(&self) {
        self.shared
            .lanes
            .iter()
            .for_each(|l| l.seat.interrupt.clear(PAUSE));
    }

    /// Holds one partition. False when there is no such partition.
    pub fn pause_partition(&self, partition: u32) -> bool {
        let lane = self.shared.lanes.get(partition as usize);
        lane.map(|l| l.seat.interrupt.set(PAUSE)).is_some()
    }

    /// Lets one partition go on. False when there is no such partition.
    pub fn resume_partition(&self, partition: u32) -> bool {
        let lane = self.shared.lanes.get(partition as usize);
        lane.map(|l| l.seat.interrupt.clear(PAUSE)).is_some()
    }

    /// How far a partition is finished, in memory: what is stored follows within `PersistIntervalMs`.
    /// `None` when there is no such partition.
    pub fn position(&self, partition: u32) -> Option<Snapshot> {
        (partition < self.shared.table.len()).then(|| self.shared.table.load(partition))
    }

    /// A snapshot of every partition.
    pub fn partitions(&self) -> Vec<PartitionStatus> {
        self.shared.statuses().collect()
    }

    /// Waits until every partition is where its stream ends now.
    fn await_tail(&self, until: Instant) -> Result<()> {
        let tails = self.streams.on_control(|connection, timeout| {
            let keys = self.shared.stream_keys.iter();
            keys.map(|key| last_entry(connection, key, timeout))
                .collect::<Result<Vec<_>>>()
        })?;
        let empty_reads = |p: usize| {
            self.shared.lanes[p]
                .seat
                .monitor
                .empty_reads
                .load(Ordering::Relaxed)
        };
        let before: Vec<u64> = (0..tails.len()).map(empty_reads).collect();
        let mut left: BTreeSet<usize> = (0..tails.len()).collect();
        let pause = Interrupt::default();
        loop {
            left.retain(|p| {
                // The last entry may be deleted before it is reached: then two reads that find nothing,
                // the second of which began after this call, are proof enough.
                let reached = self.shared.table.load(*p as u32).id >= tails[*p];
                !reached && empty_reads(*p) < before[*p] + 2
            });
            let Some(p) = left.first() else { return Ok(()) };
            let status = self.shared.statuses().nth(*p);
            let told = status
                .map(|s| format!("{s} is {:?} {}", s.state, s.reason))
                .unwrap_or_default();
            let ended = self.shared.lanes[*p].seat.monitor.state() == LaneState::Stopped;
            if ended {
                return Err(Error::new(ErrorKind::Stopped, "drain", told));
            }
            if clock::now() >= until {
                let what = format!(
                    "{} partitions did not reach their end in time: {told}",
                    left.len()
                );
                return Err(Error::new(ErrorKind::Timeout, "drain", what));
            }
            pause.sleep(DRAIN_TICK, STOP);
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("topic", &self.shared.topic)
            .field("name", &self.shared.name)
            .field("partitions", &self.shared.lanes.len())
            .finish_non_exhaustive()
    }
}
