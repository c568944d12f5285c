//! The settings of one consumer.

use std::time::{Duration, SystemTime};

use super::codec::{Codec, Flag, Moment, Opt, Text, Texts, Whole, choice, micros, millis, seconds};
use super::key::Section as _;

/// A day, in seconds.
const DAY: u64 = 86_400;

section! {
    /// How one consumer reads one topic. An entry of `Consumers`.
    pub struct ConsumerSettings in Consumers {
        /// The topic it reads. Required.
        topic: String = String::new(), "Topic", Text, set(topic: impl Into<String>) topic.into();
        /// The consumer's name; positions are kept under it. Unset: the `Consumer` of the root.
        /// Two services with one name share its positions.
        consumer: Option<String> = None, "Consumer", Opt(Text),
            set(name: impl Into<String>) Some(name.into());
        /// The most messages handed over at once.
        batch_size: u32 = 100, "BatchSize", Whole("messages", 1, 1_000_000);
        /// How much one read aims at; fewer than `BatchSize` are read of large messages. A single
        /// message may be larger.
        batch_bytes: u32 = 262_144, "BatchBytes", Whole("bytes", 4096, 268_435_456);
        /// The message types to handle, compared byte by byte; the others are passed over and count
        /// as finished. Empty: all.
        filter: Vec<String> = Vec::new(), "Filter", Texts,
            set(types: impl IntoIterator<Item = impl Into<String>>)
                types.into_iter().map(Into::into).collect();
        /// Where to begin: `Stored` resumes at the stored position; `Beginning`, `Now` and `Date`
        /// are applied as a reset, once per consumer and while no other instance is present.
        start_from: StartFrom = StartFrom::Stored, "StartFrom", choice::<StartFrom>();
        /// The moment `Date` means: the first message handled is of then or later.
        start_from_date: Option<SystemTime> = None, "StartFromDate", Opt(Moment),
            set(moment: SystemTime) Some(moment);
        /// Where `Stored` begins when nothing is stored: `Beginning`, `Now` or `Date`.
        start_from_when_missing: StartFrom = StartFrom::Beginning, "StartFromWhenMissing",
            choice::<StartFrom>();
        /// What is done when the stored position lies ahead of a stream that it does not belong to, as
        /// after a backup of another was restored: `Stop` waits for a person, `Beginning` reads what
        /// there is, `Tail` reads what is to come.
        position_ahead: PositionAhead = PositionAhead::Stop, "PositionAhead",
            choice::<PositionAhead>();
        /// When positions are stored: `AsyncBatch` in the background, `SyncBatch` before the next
        /// batch, `SyncMessage` before the next message, `None` never.
        persist: Persist = Persist::AsyncBatch, "Persist", choice::<Persist>();
        /// How long after a message is finished its position is stored, under `AsyncBatch`: a crash
        /// hands over again what was handled since. In every mode, how often the consumer looks
        /// whether it is to be reset. In the queue modes, how long a finished message waits at most for its
        /// acknowledgement while others of its batch are handled, as is looked between calls.
        persist_interval: Duration = Duration::from_secs(1), "PersistIntervalMs",
            millis(1, 3_600_000);
        /// Whether a batch is read ahead while the one before it is handled. False is the same as a
        /// capacity of 1.
        backpressure_enabled: bool = true, "Backpressure:Enabled", Flag;
        /// 1: nothing is read ahead. 2 or more: one batch is.
        backpressure_capacity: u32 = 4, "Backpressure:Capacity", Whole("batches", 1, 1_000_000);
        /// How new messages are waited for: `Block` in the server (the lowest latency), `Poll` by
        /// asking again at growing intervals.
        read_mode: ReadMode = ReadMode::Block, "ReadMode", choice::<ReadMode>();
        /// How long one read waits in the server, under `Block`. 0 would mean for ever and is refused.
        block: Duration = Duration::from_secs(1), "BlockMs", millis(1, 3_600_000);
        /// How much later than expected an answer may come before the connection is given up.
        read_slack: Duration = Duration::from_secs(3), "ReadSlackMs", millis(1, 600_000);
        /// The longest pause between two reads that find nothing, under `Poll`.
        max_idle_delay: Duration = Duration::from_millis(50), "MaxIdleDelayMs", millis(0, 60_000);
        /// How long a lane looks for an answer without sleeping before it waits, under `Block`.
        /// It buys latency with a whole core; 0 is off.
        spin: Duration = Duration::ZERO, "SpinMicros", micros(0, 1_000_000);
        /// How messages are delivered: `Ordered` by one owner of each partition, in order; `WorkQueue` to
        /// whichever instance is free, each message for itself; `LeasedQueue` by one owner of each partition
        /// that acknowledges each message for itself.
        delivery: Delivery = Delivery::Ordered, "Delivery", choice::<Delivery>();
        /// In the queue modes: from when on a message is given to another member that nobody gave a sign of. A
        /// handler that runs gives signs of it, however long it does.
        claim_idle: Duration = Duration::from_mins(5), "Claim:IdleMs", millis(100, 86_400_000);
        /// In the queue modes: how often such messages are looked for.
        claim_interval: Duration = Duration::from_secs(30), "Claim:IntervalMs",
            millis(50, 3_600_000);
        /// How many handler calls of this consumer may run at once in this process, whatever the number of
        /// partitions. Unset: one for each partition, and in the queue modes one for what is tried again.
        max_in_flight: Option<u32> = None, "MaxInFlight", Opt(Whole("calls", 1, 65_536)),
            set(calls: u32) Some(calls);
        /// In the queue modes: whether messages are deleted once they are finished: `None` leaves that to
        /// trimming; `Immediate` deletes each when it is acknowledged, and is for topics that nobody else
        /// reads; `AllGroups` deletes what every consumer of the topic has finished.
        ack_delete: AckDelete = AckDelete::None, "AckDelete", choice::<AckDelete>();
        /// What an ordinary failure of the handler does: `BestEffort` skips the message,
        /// `StopPartition` stops its partition, `Fail` ends the consumer, `Park` hands the message over
        /// again, in its place, and then makes it a dead letter; `Retry`, in the queue modes, hands it over
        /// again later and behind others, and then makes it a dead letter.
        on_error: OnError = OnError::BestEffort, "OnError", choice::<OnError>();
        /// How often a message may be handed over at which the process dies, or whose handler never comes
        /// back: after that it fails without being handed over, and `OnError` decides. Stops and restarts
        /// in which its handler is cut off count, so leave room for some. 0: it is handed over for ever.
        max_deliveries: u32 = 20, "MaxDeliveries", Whole("deliveries", 0, 1_000_000);
        /// How often a message that failed is handed over again, under `Park`, before it becomes a dead
        /// letter. 0: at its first failure. A message may ask for less in its header
        /// `streamlane-max-attempts`.
        park_attempts: u32 = 5, "Park:Attempts", Whole("attempts", 0, 1_000_000);
        /// The pause before the first of these attempts; it doubles from one to the next.
        park_backoff_base: Duration = Duration::from_millis(100), "Park:BackoffBaseMs",
            millis(0, 3_600_000);
        /// The longest of these pauses, lengthening aside.
        park_backoff_max: Duration = Duration::from_secs(10), "Park:BackoffMaxMs",
            millis(0, 86_400_000);
        /// By how much of itself each pause is lengthened at most, at random.
        park_jitter: u32 = 25, "Park:JitterPercent", Whole("percent", 0, 100);
        /// How often a message that failed is handed over again, under `Retry`, before it becomes a dead letter.
        /// 0: at its first failure. A message may say less in the header `streamlane-max-attempts`.
        retry_attempts: u32 = 5, "Retry:Attempts", Whole("attempts", 0, 1_000_000);
        /// The pause before the first of these attempts; it doubles from one to the next.
        retry_backoff_base: Duration = Duration::from_secs(1), "Retry:BackoffBaseMs",
            millis(0, 86_400_000);
        /// The longest of these pauses, lengthening aside.
        retry_backoff_max: Duration = Duration::from_mins(1), "Retry:BackoffMaxMs",
            millis(0, 86_400_000);
        /// By how much of itself each of these pauses is lengthened at most, at random.
        retry_jitter: u32 = 25, "Retry:JitterPercent", Whole("percent", 0, 100);
        /// About how many dead letters are kept, the newest: the others are deleted when one is added.
        dead_letters_max_len: u64 = 100_000, "DeadLetters:MaxLen",
            Whole("messages", 1, 1_000_000_000);
        /// For how long dead letters are kept, about: older ones are deleted when one is added, and by a running
        /// consumer at least each minute. 0: until there are too many.
        dead_letters_max_age: Duration = Duration::ZERO, "DeadLetters:MaxAgeSeconds",
            seconds(0, 3650 * DAY);
        /// A partition blocked for longer is Unhealthy, before that Degraded.
        unhealthy_block: Duration = Duration::from_mins(5), "UnhealthyBlockSeconds",
            seconds(0, 365 * DAY);
        /// A partition that was left to another instance which takes it for its own, and that has messages
        /// waiting, is Unhealthy after so long, before that Degraded. One that `OnError` stopped never is
        /// more than Degraded.
        unhealthy_stopped: Duration = Duration::from_mins(5), "UnhealthyStoppedSeconds",
            seconds(0, 365 * DAY);
        /// A partition that is read and has been before the end of its stream for so long without moving at all
        /// is Unhealthy. 0: never.
        unhealthy_behind: Duration = Duration::ZERO, "UnhealthyBehindSeconds",
            seconds(0, 365 * DAY);
        /// A partition in which messages have waited for longer is Degraded.
        unhealthy_lag: Duration = Duration::from_mins(2), "UnhealthyLagMs",
            millis(0, 365 * DAY * 1000);
        /// A consumer that has finished everything and to which nothing has been published for longer is
        /// Degraded. 0: never.
        degraded_silence: Duration = Duration::ZERO, "DegradedSilenceSeconds",
            seconds(0, 365 * DAY);
        /// In the queue modes: a partition with a pending message that has had no sign of life for longer, and for
        /// longer than `Claim:IdleMs`, is Degraded. 0: never.
        degraded_pending: Duration = Duration::from_mins(15), "DegradedPendingSeconds",
            seconds(0, 365 * DAY);
        /// In the queue modes: a partition with a pending message that was given out so often is Degraded.
        /// 0: never.
        degraded_deliveries: u32 = 10, "DegradedDeliveries", Whole("deliveries", 0, 1_000_000);
        /// A partition of which so many messages became dead letters here within 10 minutes is Degraded. 0: never.
        degraded_dead_letters: u32 = 100, "DegradedDeadLetters", Whole("messages", 0, 1_000_000);
        /// How the partitions are divided between the instances of the consumer: `Lease` by claims in
        /// Redis that are renewed, so that instances may come and go; `Static` by the numbers
        /// `Instances:Count` and `Instances:Index`.
        instances: Instances = Instances::Lease, "Instances:Mode", choice::<Instances>();
        /// How many instances there are, under `Static`. Unset: the environment's
        /// `STREAMS_INSTANCE_COUNT`, else 1.
        instances_count: Option<u32> = None, "Instances:Count", Opt(Whole("instances", 1, 65_536)),
            set(instances: u32) Some(instances);
        /// Which of them this one is, from 0, under `Static`. Unset: the environment's
        /// `STREAMS_INSTANCE_INDEX`, else the number at the end of `POD_NAME`, else 0.
        instances_index: Option<u32> = None, "Instances:Index", Opt(Whole("", 0, 65_535)),
            set(index: u32) Some(index);
        /// How long a claim lasts that is not renewed: so long after an instance died without a word,
        /// or was cut off, its partitions are another's.
        lease_ttl: Duration = Duration::from_secs(30), "Instances:LeaseTtlMs", millis(200, 86_400_000);
        /// `Instances:LeaseTtlMs` in seconds, as peers have it.
        lease_ttl_seconds: Option<Duration> = None, "Instances:LeaseTtlSeconds",
            Opt(seconds(1, DAY)), set(ttl: Duration) Some(ttl);
        /// How often claims are renewed; less than half of how long they last, so that one renewal may
        /// fail.
        lease_renew: Duration = Duration::from_secs(10), "Instances:LeaseRenewMs",
            millis(20, 43_200_000);
        /// `Instances:LeaseRenewMs` in seconds, as peers have it.
        lease_renew_seconds: Option<Duration> = None, "Instances:LeaseRenewSeconds",
            Opt(seconds(1, DAY)), set(interval: Duration) Some(interval);
        /// The most partitions this instance takes, under `Lease`. What it leaves others may claim
        /// above their share. Unset: as many as there are.
        max_partitions: Option<u32> = None, "Instances:MaxPartitions",
            Opt(Whole("partitions", 0, 65_536)), set(partitions: u32) Some(partitions);
        /// Of the partitions, this instance takes those that leave `Instances:PartitionRemainder` when
        /// divided by this, under `Lease`. 1: all.
        partition_modulo: u32 = 1, "Instances:PartitionModulo", Whole("", 1, 65_536);
        /// See `Instances:PartitionModulo`.
        partition_remainder: u32 = 0, "Instances:PartitionRemainder", Whole("", 0, 65_535);
        /// Under `Static`: how long another instance that stores positions of the same partition is
        /// only warned of; then the one with the greater id stands down.
        contested_grace: Duration = Duration::from_mins(1), "ContestedGraceSeconds", seconds(0, DAY);
        /// Under `Static`: how often a partition that was left to another instance is looked at, to take
        /// it up again when that one is gone. 0: never.
        contested_recheck: Duration = Duration::from_secs(30), "ContestedRecheckSeconds",
            seconds(0, DAY);
        /// A partition whose handler has not come back for so long is Degraded. 0: never. A blocked one
        /// is none of these.
        stalled: Duration = Duration::from_mins(5), "StalledSeconds" | "UnhealthyStalledSeconds",
            seconds(0, 365 * DAY);
        /// Whether a partition whose handler has not come back for `StalledSeconds` is given to another
        /// instance, under `Lease`, until it does. A handler that is merely slow looks the same.
        hand_over_when_stalled: bool = false, "HandOverWhenStalled", Flag;
        /// How long stopping waits for handlers to return and positions to be stored.
        shutdown_timeout: Duration = Duration::from_secs(10), "ShutdownTimeoutSeconds",
            seconds(1, DAY);
    }
}

impl ConsumerSettings {
    /// Defaults for reading `topic`.
    pub fn new(topic: impl Into<String>) -> Self {
        Self::default().topic(topic)
    }

    /// How long a claim lasts, in whatever unit that was said.
    pub(crate) fn ttl(&self) -> Duration {
        self.in_either(
            "Instances:LeaseTtlMs",
            self.lease_ttl,
            "Instances:LeaseTtlSeconds",
            self.lease_ttl_seconds,
        )
    }

    /// How often claims are renewed, in whatever unit that was said.
    pub(crate) fn renew(&self) -> Duration {
        let (ms, seconds) = ("Instances:LeaseRenewMs", "Instances:LeaseRenewSeconds");
        self.in_either(ms, self.lease_renew, seconds, self.lease_renew_seconds)
    }

    /// Of two keys for one thing, the one that goes before the other.
    fn in_either(
        &self,
        ms: &str,
        value: Duration,
        seconds: &str,
        other: Option<Duration>,
    ) -> Duration {
        match other {
            Some(other) if self.marks().of(seconds) >= self.marks().of(ms) => other,
            _ => value,
        }
    }

    /// Whether one batch is read while the one before it is handled.
    pub(crate) fn reads_ahead(&self) -> bool {
        self.backpressure_enabled && self.backpressure_capacity >= 2 && !self.persist.is_sync()
    }
}

choices! {
    /// How the partitions of a topic are divided between the instances of a consumer.
    pub enum Instances {
        /// By claims in Redis that are renewed: instances may come and go, and one that dies is replaced.
        Lease,
        /// By numbers: each instance is told how many there are and which of them it is.
        Static,
    }
}

choices! {
    /// How the messages of a topic are delivered to the instances of a consumer.
    pub enum Delivery {
        /// Each partition has one owner, who handles its messages in order and keeps a position.
        Ordered,
        /// Every instance reads every partition; each message goes to one of them, and is acknowledged for
        /// itself. There is no order.
        WorkQueue,
        /// Each partition has one owner, who acknowledges each message for itself.
        LeasedQueue,
    }
}

impl Delivery {
    /// Whether a consumer group keeps what is finished.
    pub(crate) fn is_queue(self) -> bool {
        self != Self::Ordered
    }
}

choices! {
    /// Whether finished messages are deleted.
    pub enum AckDelete {
        /// They stay until the topic is trimmed.
        None,
        /// Each is deleted when it is acknowledged: for topics that nobody else reads.
        Immediate,
        /// They are deleted within a second or two of having been finished by every consumer of the topic that is
        /// known here: those of this library, and all groups.
        AllGroups,
    }
}

choices! {
    /// Where a consumer begins.
    pub enum StartFrom {
        /// At the stored position.
        Stored,
        /// At the oldest message kept.
        Beginning,
        /// Behind the newest message there is at start.
        Now,
        /// At the moment given as `StartFromDate`.
        Date,
    }
}

choices! {
    /// What is done when the stored position lies ahead of a stream that it does not belong to.
    pub enum PositionAhead {
        /// The partition is not read until a person has decided.
        Stop,
        /// It is read from its oldest message.
        Beginning,
        /// It is read from behind its newest message.
        Tail,
    }
}

choices! {
    /// When positions are stored.
    pub enum Persist {
        /// In the background, within `PersistIntervalMs`.
        AsyncBatch,
        /// After each batch, before the next is handed over.
        SyncBatch,
        /// After each message, before the next is handed over; batch handlers are given them one by one.
        SyncMessage,
        /// Never: a restart begins anew.
        None,
    }
}

impl Persist {
    /// Whether the next message waits for the position to be stored.
    pub(crate) fn is_sync(self) -> bool {
        matches!(self, Self::SyncBatch | Self::SyncMessage)
    }
}

choices! {
    /// How new messages are waited for.
    pub enum ReadMode {
        /// The server holds the read until something arrives.
        Block,
        /// Reads that return at once, at growing intervals while nothing arrives.
        Poll,
    }
}

choices! {
    /// What an ordinary failure of the handler does.
    pub enum OnError {
        /// The message is logged and skipped.
        BestEffort,
        /// The partition stops before the message; the others go on.
        StopPartition,
        /// The consumer ends with the error.
        Fail,
        /// The message is handed over again up to `Park:Attempts` times, in its place and with growing
        /// pauses, while the partition waits; then it becomes a dead letter, and the partition goes on.
        Park,
        /// In the queue modes: the message is put aside, and handed over again up to `Retry:Attempts` times
        /// after growing pauses, behind whatever came meanwhile; then it becomes a dead letter.
        Retry,
    }
}
