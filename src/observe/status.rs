//! One partition as it is right now.

use std::{fmt, sync::Arc, time::Duration};

use crate::{ConsumerSettings, Delivery, LaneState, Snapshot, StreamId, consume};

/// One partition of one consumer, as it is right now.
///
/// What a thread of its own asks the server, every `SampleIntervalMs`, is as old as
/// [`sample_age`](Self::sample_age) says, and `None` where it is not known, whatever the reason: nothing
/// here is 0 because nobody could tell. All of it goes away with the lane when the partition is another's. An ACL
/// user needs the right to `XINFO` for it, and in the queue modes to `XPENDING`; without, one warning says so.
///
/// The default is a partition of which nothing is known, with the thresholds that settings have by default:
/// something to begin with in a test of one's own.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PartitionStatus {
    /// The topic.
    pub topic: Arc<str>,
    /// The consumer's name.
    pub consumer: Arc<str>,
    /// The partition, or [`RETRIES`](Self::RETRIES).
    pub partition: u32,
    /// What tells this start of the process from another in claims: see [`Member::epoch`](crate::Member::epoch).
    pub epoch: Arc<str>,
    /// What its lane is doing.
    pub state: LaneState,
    /// Why. Empty while it runs, and when it was told to pause or to stop.
    pub reason: String,
    /// For how long it has been in this state.
    pub in_state: Duration,
    /// Whether it stopped because another instance takes the partition for its own, and not because the
    /// policy said so.
    pub escalates: bool,
    /// Up to where it is finished. A [queue](crate::Delivery) has no position: there it is the default.
    pub position: Snapshot,
    /// For how long the position has been where it is, as is looked once a second; in the queue modes, since when
    /// the group was given nothing new.
    pub position_unchanged: Option<Duration>,
    /// Whether everything there is is known to be finished: the lane's last read found nothing, or, where it
    /// does not read now, the last sample says so.
    pub caught_up: bool,
    /// How many messages there are that are not finished; in the queue modes, that nobody was given. Counted,
    /// not estimated: `None` where that cannot be told, as where messages in the middle were deleted.
    pub lag_entries: Option<u64>,
    /// For how long the oldest message that is not finished has been waiting, at most; in the queue modes, the
    /// oldest that nobody was given. Zero where everything is [known](Self::caught_up) to be finished.
    pub lag: Option<Duration>,
    /// Whether there is a stream. Who consumes or publishes makes it, so one that is missing was deleted.
    pub stream_exists: Option<bool>,
    /// How many messages the stream holds, read or not.
    pub stream_length: Option<u64>,
    /// The last message in the stream; 0-0 where it is empty.
    pub tail: Option<StreamId>,
    /// How old what was asked of the server is; `None` where nothing is known.
    pub sample_age: Option<Duration>,
    /// Whether that is young enough to judge by: at most a minute, or four intervals where that is longer.
    pub sample_is_fresh: bool,
    /// Since when no other message was seen at the end of the stream.
    pub tail_unchanged: Option<Duration>,
    /// For how long the position has been before the end of the stream without moving at all. `None` where it is
    /// not, or where the sample is too old to say.
    pub behind_for: Option<Duration>,
    /// Messages handled successfully since start.
    pub handled: u64,
    /// Messages stepped over since start, after a failure under `OnError: BestEffort`.
    pub skipped: u64,
    /// Messages that became dead letters since start; see [`Admin::dead_letters`](crate::Admin::dead_letters).
    pub parked: u64,
    /// Those of them that did within the last 10 minutes, about.
    pub parked_lately: u64,
    /// In the queue modes: messages that were put aside since start, to be handed over again later.
    pub retried: u64,
    /// In the queue modes: messages that were finished here when another member had taken them over: they were
    /// handled twice.
    pub late: u64,
    /// In the queue modes: messages that no member was given yet, when that was last looked at. `None` where it
    /// cannot be told.
    pub unread: Option<u64>,
    /// In the queue modes: messages that were given to a member and are not acknowledged, whichever member that
    /// is, when that was last looked at. They are not among the [unread](Self::unread).
    pub pending: Option<u64>,
    /// In the queue modes: of the first hundred pending messages, for how long the most neglected has had no sign
    /// of life. A handler that runs gives one every now and then.
    pub oldest_idle: Option<Duration>,
    /// In the queue modes: of the first hundred pending messages, how often the one was given out that was most
    /// often.
    pub most_deliveries: Option<u64>,
    /// Failed handler calls since start, each retry of a blocked message included.
    pub failures: u64,
    /// Entries that the consumer's filter left out since start.
    pub filtered: u64,
    /// Connections made since start.
    pub connects: u64,
    /// Gaps found since start: messages that went missing before they were read.
    pub gaps: u64,
    /// Messages known to be missing in those gaps.
    pub lost: u64,
    /// How often messages were gone and nobody could tell how many of them had not been read, or whether
    /// any. Not part of `lost`.
    pub untold_gaps: u64,
    /// How long ago the last gap was found.
    pub since_gap: Option<Duration>,
    /// For how long the handler call that runs has been running.
    pub handler_for: Option<Duration>,
    /// Which attempt at what is in hand runs, or was the last one made, here and since it was read: 1 is the
    /// first. 0 while nothing is in hand.
    pub attempt: u32,
    /// From when on a handler that does not come back is stalled (`StalledSeconds`); zero: never.
    pub stalled_after: Duration,
    /// From when on a blocked partition is unhealthy (`UnhealthyBlockSeconds`).
    pub unhealthy_block: Duration,
    /// From when on a partition that was left to another instance is unhealthy, with messages waiting
    /// (`UnhealthyStoppedSeconds`).
    pub unhealthy_stopped: Duration,
    /// From when on a partition that is behind and does not move is unhealthy (`UnhealthyBehindSeconds`);
    /// zero: never.
    pub unhealthy_behind: Duration,
    /// From which lag on a partition is degraded (`UnhealthyLagMs`).
    pub unhealthy_lag: Duration,
    /// From when on a consumer to which nothing is published is degraded (`DegradedSilenceSeconds`); zero:
    /// never.
    pub degraded_silence: Duration,
    /// From when on a pending message without a sign of life is a reason to look (`DegradedPendingSeconds`, or
    /// `Claim:IdleMs` where that is longer); zero: never.
    pub degraded_pending: Duration,
    /// From how many deliveries of one message on that is a reason to look (`DegradedDeliveries`); 0: never.
    pub degraded_deliveries: u64,
    /// From how many dead letters within about 10 minutes on that is a reason to look (`DegradedDeadLetters`);
    /// 0: never.
    pub degraded_dead_letters: u64,
}

impl PartitionStatus {
    /// The number in the place of a partition's where a [queue](crate::Delivery) reads what it hands over once
    /// more: that has a lane of its own, with messages of all partitions.
    pub const RETRIES: u32 = consume::RETRIES;

    /// What is the same of all partitions of a consumer, at any time.
    pub(crate) fn of(
        topic: &Arc<str>,
        consumer: &Arc<str>,
        epoch: &str,
        settings: &ConsumerSettings,
    ) -> Self {
        // Where members share the partitions none of them is behind.
        let behind = match settings.delivery {
            Delivery::WorkQueue => Duration::ZERO,
            Delivery::Ordered | Delivery::LeasedQueue => settings.unhealthy_behind,
        };
        // A handler that runs gives its sign of life in time for this.
        let pending = match settings.degraded_pending {
            Duration::ZERO => Duration::ZERO,
            limit => limit.max(settings.claim_idle),
        };
        Self {
            topic: Arc::clone(topic),
            consumer: Arc::clone(consumer),
            partition: 0,
            epoch: epoch.into(),
            state: LaneState::Starting,
            reason: String::new(),
            in_state: Duration::ZERO,
            escalates: false,
            position: Snapshot::default(),
            position_unchanged: None,
            caught_up: false,
            lag_entries: None,
            lag: None,
            stream_exists: None,
            stream_length: None,
            tail: None,
            sample_age: None,
            sample_is_fresh: false,
            tail_unchanged: None,
            behind_for: None,
            handled: 0,
            skipped: 0,
            parked: 0,
            parked_lately: 0,
            retried: 0,
            late: 0,
            unread: None,
            pending: None,
            oldest_idle: None,
            most_deliveries: None,
            failures: 0,
            filtered: 0,
            connects: 0,
            gaps: 0,
            lost: 0,
            untold_gaps: 0,
            since_gap: None,
            handler_for: None,
            attempt: 0,
            stalled_after: settings.stalled,
            unhealthy_block: settings.unhealthy_block,
            unhealthy_stopped: settings.unhealthy_stopped,
            unhealthy_behind: behind,
            unhealthy_lag: settings.unhealthy_lag,
            degraded_silence: settings.degraded_silence,
            degraded_pending: pending,
            degraded_deliveries: settings.degraded_deliveries.into(),
            degraded_dead_letters: settings.degraded_dead_letters.into(),
        }
    }

    /// Whether it ended because it was told to: that is nothing to worry about.
    pub(super) fn was_dismissed(&self) -> bool {
        self.state == LaneState::Stopped && self.reason.is_empty()
    }
}

impl Default for PartitionStatus {
    fn default() -> Self {
        let nameless = Arc::from("");
        Self::of(&nameless, &nameless, "", &ConsumerSettings::default())
    }
}

impl fmt::Display for PartitionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (topic, consumer) = (&self.topic, &self.consumer);
        match self.partition {
            Self::RETRIES => write!(f, "{topic}[retries]/{consumer}"),
            partition => write!(f, "{topic}[{partition}]/{consumer}"),
        }
    }
}
