//! How a consumer is described.

mod parking;
mod queue;

use std::{
    error::Error as StdError,
    fmt,
    sync::{Arc, OnceLock, atomic::AtomicBool},
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use serde::Deserialize;

use super::{
    Consumer, FailHook,
    lanes::{Lanes, Outfit},
    running::Running,
};
use crate::{
    Action, Batch, BatchHandler, ConsumerSettings, Delivery, Error, HandlerResult, Instances, Json,
    Message, MessageHandler, OnError, PartitionStatus, Persist, PositionAhead, ReadMode, Result,
    StartFrom, Streams, TypedBatchHandler, TypedHandler,
    consume::{
        Backoff, Classify, Flusher, Gap, GapHook, Handler, HandlerFactory, Kept, Permits, Plan,
        Resets, Rhythm, Suspicion, traced,
    },
    handler::DecodedBy,
    monitor::Meters,
    position::Table,
    streams::Prepared,
};

/// A consumer being described. Made by [`Streams::consumer`]; a handler makes it
/// [`start`](ConsumerBuilder::start)able.
#[must_use = "a consumer does nothing before `start`"]
pub struct ConsumerBuilder<H = NoHandler> {
    streams: Streams,
    seed: Seed,
    name: Option<String>,
    changes: Vec<Change>,
    classify: Option<Classify>,
    park_backoff: Option<Backoff>,
    on_lane_start: Option<Arc<dyn Fn(u32) + Send + Sync>>,
    on_gap: Option<GapHook>,
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
            park_backoff: None,
            on_lane_start: None,
            on_gap: None,
            on_fail: None,
            handler: NoHandler,
        }
    }

    /// Handles messages batch by batch. `make` is called on each lane, with its partition, when the lane
    /// begins and after a panic; each lane has the handler it made to itself. When it panics itself, the
    /// lane begins anew a second later, or goes on with the handler it has.
    pub fn batches<F, B>(self, make: F) -> ConsumerBuilder<HasHandler>
    where
        F: Fn(u32) -> B + Send + Sync + 'static,
        B: BatchHandler + 'static,
    {
        self.handled_by(Arc::new(move |p| Handler::Batches(Box::new(make(p)))))
    }

    /// Handles messages one by one. `make` is as for [`batches`](Self::batches). A closure has to name the
    /// type of its argument: `.messages(|_partition| |m: &Message<'_>| Ok(()))`.
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
        for<'a> T::Value<'a>: Deserialize<'a>,
    {
        self.codec(Json::default(), make)
    }

    /// Handles messages with JSON bodies batch by batch, decoded. `make` is as for
    /// [`batches`](Self::batches); for closures see [`typed_batch`](crate::typed_batch).
    pub fn json_batches<F, T>(self, make: F) -> ConsumerBuilder<HasHandler>
    where
        F: Fn(u32) -> T + Send + Sync + 'static,
        T: TypedBatchHandler + 'static,
        for<'a> T::Value<'a>: Deserialize<'a>,
    {
        self.codec_batches(Json::default(), make)
    }

    /// As [`json`](Self::json), for bodies of another format: `codec` is a [`Codec`](crate::Codec) of the
    /// handler's values, and each lane has a clone of it.
    #[expect(
        private_bounds,
        reason = "a typed handler whose values the codec makes"
    )]
    pub fn codec<C, F, T>(self, codec: C, make: F) -> ConsumerBuilder<HasHandler>
    where
        C: Clone + Send + Sync + 'static,
        F: Fn(u32) -> T + Send + Sync + 'static,
        T: TypedHandler + DecodedBy<C, dyn MessageHandler> + 'static,
    {
        self.handled_by(Arc::new(move |p| {
            Handler::Messages(make(p).decoded_by(codec.clone()))
        }))
    }

    /// As [`json_batches`](Self::json_batches), for bodies of another format: `codec` is a
    /// [`Codec`](crate::Codec) of the handler's values, and each lane has clones of it.
    #[expect(
        private_bounds,
        reason = "a typed handler whose values the codec makes"
    )]
    pub fn codec_batches<C, F, T>(self, codec: C, make: F) -> ConsumerBuilder<HasHandler>
    where
        C: Clone + Send + Sync + 'static,
        F: Fn(u32) -> T + Send + Sync + 'static,
        T: TypedBatchHandler + DecodedBy<C, dyn BatchHandler> + 'static,
    {
        self.handled_by(Arc::new(move |p| {
            Handler::Batches(make(p).decoded_by(codec.clone()))
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
            park_backoff: self.park_backoff,
            on_lane_start: self.on_lane_start,
            on_gap: self.on_gap,
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

    /// The most messages in one batch (default 100).
    pub fn batch_size(self, messages: u32) -> Self {
        self.with(move |s| s.batch_size(messages))
    }

    /// How many bytes one read aims at (default 256 KiB).
    pub fn batch_bytes(self, bytes: u32) -> Self {
        self.with(move |s| s.batch_bytes(bytes))
    }

    /// How long one read waits in the server (default 1 s). Stopping never waits for it.
    pub fn block(self, at_most: Duration) -> Self {
        self.with(move |s| s.block(at_most))
    }

    /// How much later than `block` an answer may come before the connection is given up (default 3 s).
    pub fn read_slack(self, slack: Duration) -> Self {
        self.with(move |s| s.read_slack(slack))
    }

    /// Whether reads wait in the server or poll (default [`ReadMode::Block`]).
    pub fn read_mode(self, mode: ReadMode) -> Self {
        self.with(move |s| s.read_mode(mode))
    }

    /// The longest pause between polls, under [`ReadMode::Poll`] (default 50 ms).
    pub fn max_idle_delay(self, delay: Duration) -> Self {
        self.with(move |s| s.max_idle_delay(delay))
    }

    /// How long to look for an answer without sleeping (default 0: sleep at once).
    pub fn spin(self, spin: Duration) -> Self {
        self.with(move |s| s.spin(spin))
    }

    /// When positions are stored (default [`Persist::AsyncBatch`]).
    pub fn persist(self, persist: Persist) -> Self {
        self.with(move |s| s.persist(persist))
    }

    /// How long after a message is finished its position is stored, under `AsyncBatch`, and how often to
    /// look whether the consumer is to be reset, in every mode (default 1 s).
    pub fn persist_interval(self, interval: Duration) -> Self {
        self.with(move |s| s.persist_interval(interval))
    }

    /// What an ordinary failure of the handler does (default [`OnError::BestEffort`]).
    pub fn on_error(self, policy: OnError) -> Self {
        self.with(move |s| s.on_error(policy))
    }

    /// Where to begin (default [`StartFrom::Stored`]).
    pub fn start_from(self, from: StartFrom) -> Self {
        self.with(move |s| s.start_from(from))
    }

    /// Begins with the first message of this moment or later.
    pub fn start_from_date(self, moment: SystemTime) -> Self {
        self.with(move |s| s.start_from(StartFrom::Date).start_from_date(moment))
    }

    /// Where to begin when nothing is stored (default [`StartFrom::Beginning`]).
    pub fn start_from_when_missing(self, from: StartFrom) -> Self {
        self.with(move |s| s.start_from_when_missing(from))
    }

    /// What to do when the stored position lies ahead of a stream that it does not belong to (default
    /// [`PositionAhead::Stop`]).
    pub fn position_ahead(self, go_on: PositionAhead) -> Self {
        self.with(move |s| s.position_ahead(go_on))
    }

    /// The message types to handle; all others are passed over (default: all are handled).
    pub fn filter(self, types: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let types: Vec<String> = types.into_iter().map(Into::into).collect();
        self.with(move |s| s.filter(types))
    }

    /// Whether the next batch is read while one is handled (default true).
    pub fn read_ahead(self, on: bool) -> Self {
        self.with(move |s| s.backpressure_enabled(on))
    }

    /// How partitions are divided between instances (default [`Instances::Lease`]).
    pub fn instances(self, mode: Instances) -> Self {
        self.with(move |s| s.instances(mode))
    }

    /// Which instance this is and of how many, under [`Instances::Static`], which it implies.
    pub fn instance_of(self, index: u32, count: u32) -> Self {
        self.with(move |s| {
            let s = s.instances(Instances::Static);
            s.instances_index(index).instances_count(count)
        })
    }

    /// Under [`Instances::Static`]: for how long another instance that stores positions of the same partition
    /// is only warned of (default 1 min); then the one with the greater id stands down.
    pub fn contested_grace(self, grace: Duration) -> Self {
        self.with(move |s| s.contested_grace(grace))
    }

    /// Under [`Instances::Static`]: how often a partition that was left to another instance is looked at, to
    /// take it up again when that one is gone (default 30 s; zero: never).
    pub fn contested_recheck(self, interval: Duration) -> Self {
        self.with(move |s| s.contested_recheck(interval))
    }

    /// How long a claim lasts that is not renewed (default 30 s): so long after an instance died without a
    /// word its partitions are another's.
    pub fn lease_ttl(self, ttl: Duration) -> Self {
        self.with(move |s| s.lease_ttl(ttl))
    }

    /// How often claims are renewed (default 10 s).
    pub fn lease_renew(self, interval: Duration) -> Self {
        self.with(move |s| s.lease_renew(interval))
    }

    /// The most partitions this instance takes (default: no limit).
    pub fn max_partitions(self, partitions: u32) -> Self {
        self.with(move |s| s.max_partitions(partitions))
    }

    /// This instance takes the partitions that leave `remainder` when divided by `modulo` (default: all).
    pub fn partitions_where(self, modulo: u32, remainder: u32) -> Self {
        self.with(move |s| s.partition_modulo(modulo).partition_remainder(remainder))
    }

    /// From when on a handler that does not come back is a reason to look (default 5 min; zero: never).
    pub fn stalled(self, after: Duration) -> Self {
        self.with(move |s| s.stalled(after))
    }

    /// Whether the partition of a stalled handler goes to another instance (default false).
    pub fn hand_over_when_stalled(self, on: bool) -> Self {
        self.with(move |s| s.hand_over_when_stalled(on))
    }

    /// How long stopping waits for handlers (default 10 s).
    pub fn shutdown_timeout(self, timeout: Duration) -> Self {
        self.with(move |s| s.shutdown_timeout(timeout))
    }

    /// Says what an error type means, for errors thrown with a bare `?`: `None` leaves it an ordinary
    /// error, and so does a panic of it. Called on the lane, after a failure.
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

    /// Called for each [`Gap`], on the lane that found it and before it reads on: to raise an alarm, or to
    /// fetch what is missing from elsewhere. Gaps are looked for at start, at every new connection and
    /// every two seconds between reads; see [`GapCause`](crate::GapCause) for which
    /// of them call for an alarm. Each is told once, but once more by a consumer that is started
    /// again before it has handled anything behind it.
    ///
    /// ```no_run
    /// # use streamlane::{Message, Streams};
    /// # fn main() -> Result<(), streamlane::Error> {
    /// # let streams = Streams::connect("redis://127.0.0.1:6379")?;
    /// let consumer = streams
    ///     .consumer("orders")
    ///     .on_gap(|gap| eprintln!("{}[{}] after {}: {gap}", gap.topic, gap.partition, gap.position))
    ///     .messages(|_| |_: &Message<'_>| Ok(()))
    ///     .start()?;
    /// # drop(consumer); Ok(()) }
    /// ```
    pub fn on_gap(mut self, f: impl Fn(&Gap) + Send + Sync + 'static) -> Self {
        self.on_gap = Some(Arc::new(f));
        self
    }

    /// Called once, on the lane, when `OnError: Fail` ends the consumer, whose other lanes are being
    /// stopped by then. Default: every consumer of the [`Streams`] is stopped, and [`Streams::wait`]
    /// returns the error.
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
    /// Joins the instances of the consumer, starts one lane for each partition that is this one's, and
    /// returns once they run; which they are changes as instances come and go. The topic is created if it
    /// is missing, and where to begin is settled (and stored, unless `Persist` is `None`) before this
    /// returns.
    ///
    /// Blocks for a few round trips; while the server says that it is loading its data, up to
    /// `StartTimeoutMs`.
    ///
    /// # Errors
    ///
    /// Settings that contradict one another, a consumer of this topic and name that runs in this process
    /// already, a topic that does not fit its settings, or a server that cannot be reached; and
    /// [`ErrorKind::Stopped`](crate::ErrorKind::Stopped) when [`Streams::stop`] was called while it waited.
    #[expect(clippy::too_many_lines, reason = "a list of what goes where")]
    pub fn start(self) -> Result<Consumer> {
        let ConsumerBuilder {
            streams,
            seed,
            name,
            changes,
            classify,
            park_backoff,
            on_lane_start,
            on_gap,
            on_fail,
            handler,
        } = self;
        let settings = Self::settle(&streams, seed, name, changes)?;
        let Prepared {
            settings,
            seats,
            partitions,
            starts,
            store,
            group,
            claims,
            patience,
            read_plan,
            pool,
            target,
            flusher_name,
            flush_timeout,
            name_guard,
        } = streams.prepare(&settings)?;
        let resets = Arc::new(Resets::default());
        let meters = Arc::<Meters>::default();
        let plan = Plan {
            fence: claims.fence(),
            read: read_plan,
            read_ahead: settings.reads_ahead(),
            idle_cap: settings.max_idle_delay,
            persist: settings.persist,
            on_error: settings.on_error,
            classify,
            parking: parking::of(&settings, park_backoff),
            max_deliveries: settings.max_deliveries,
            suspicion: Suspicion::of(&settings),
            out_of_place: settings.delivery == Delivery::WorkQueue,
            permits: settings
                .max_in_flight
                .map(|calls| Arc::new(Permits::new(calls))),
            meters: Arc::clone(&meters),
            factory: traced(handler.0, streams.tracing()),
            on_start: on_lane_start,
            on_gap,
            position_ahead: settings.position_ahead,
            pool,
            target: Arc::clone(&target),
            store: store.clone(),
            resets: Arc::clone(&resets),
        };
        let (topic, consumer) = (&seats.topic, &seats.consumer);
        let status = PartitionStatus::of(topic, consumer, claims.epoch(), &settings);
        let running = Arc::new(Running {
            topic: Arc::clone(topic),
            name: Arc::clone(&seats.consumer),
            partitions,
            table: Arc::new(Table::new(starts.len() as u32)),
            begins: Mutex::new(starts),
            claims,
            claiming: OnceLock::new(),
            awaited: Mutex::default(),
            meters: Arc::clone(&meters),
            max_in_flight: settings.max_in_flight,
            max_partitions: settings.max_partitions,
            share: (settings.partition_modulo, settings.partition_remainder),
            stalled: settings.stalled,
            hand_over_when_stalled: settings.hand_over_when_stalled,
            resets: Arc::clone(&resets),
            group: group.clone(),
            shares: settings.delivery == Delivery::WorkQueue,
            lanes: Lanes::new(Outfit {
                plan: Arc::new(plan),
                retries: group.as_ref().map(|group| group.keys.retries.clone()),
                sample_interval: streams.settings().sample_interval,
                seats,
                on_fail,
                streams: streams.downgrade(),
            }),
            shutdown_timeout: settings.shutdown_timeout,
            status,
            flush_interrupt: Arc::default(),
            flushed: Arc::default(),
            flusher: OnceLock::new(),
            threads: Mutex::default(),
            failed: AtomicBool::new(false),
            unsaved: Mutex::default(),
            guard: Mutex::new(Some(name_guard)),
        });
        let consumer = Consumer {
            running: Arc::clone(&running),
            streams: streams.clone(),
        };
        if let Some(group) = &group {
            let reached_by = (target, flusher_name);
            running.spawn_keeper(queue::keeper(&running, group, &settings, reached_by))?;
        } else if settings.persist != Persist::None {
            let flusher = Flusher::new(
                running.to_string(),
                Kept {
                    table: Arc::clone(&running.table),
                    resets,
                    store,
                    meters,
                },
                target,
                flusher_name,
                [&running.flush_interrupt, &running.flushed].map(Arc::clone),
                flush_timeout,
            );
            running.spawn_flusher(flusher, Rhythm::of(&settings))?;
        }
        streams.register(&running);
        running.spawn_claiming(patience)?;
        if group.is_some() {
            queue::start(&running)?;
        }
        Ok(consumer)
    }
}
