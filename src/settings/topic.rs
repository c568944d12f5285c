//! The settings of one topic.

use std::time::Duration;

use super::codec::{Codec, Flag, Opt, Share, Text, Whole, choice, seconds};

/// Seconds.
const DAY: u64 = 24 * 60 * 60;

section! {
    /// How one topic is laid out and trimmed. An entry of `Topics`, under the topic's name.
    pub struct TopicSettings in Topics {
        /// How many partitions the topic has. Unset: the count recorded on the server, or 2 for a
        /// topic that does not exist yet. More than recorded enlarges the topic, fewer is refused.
        /// Consumers and publishers that run already, here and elsewhere, take the new partitions up
        /// within `TopicRefreshMs`, and consumers read them from their beginning. Keys that move to another
        /// partition are not kept in order across the change.
        partitions: Option<u32> = None, "Partitions", Opt(Whole("partitions", 1, 65_536)),
            set(n: u32) Some(n);
        /// How many messages a partition keeps. Publishing trims what is above, read or not: choose
        /// it well above what arrives during the longest outage of a consumer.
        max_len: u64 = 10_000, "MaxLen", Whole("messages", 1, i64::MAX as u64);
        /// How publishing trims: `Approx` to `MaxLen` or somewhat more (cheap), `Exact` to the
        /// message, `None` never (memory grows without end; refused unless `AllowUntrimmed` is set
        /// or the environment is Development).
        trim: Trim = Trim::Approx, "Trim", choice::<Trim>();
        /// How long messages are kept, at least: older ones are deleted by the background trimmer, but for what a
        /// consumer has yet to read. Needs `MaxLen`, which goes on to apply. Unset: as long as there is room.
        retention: Option<Duration> = None, "RetentionSeconds", Opt(seconds(1, 3650 * DAY)),
            set(age: Duration) Some(age);
        /// How often one of the processes that use the topic looks for messages older than
        /// `RetentionSeconds`, on the server's clock. 0: nobody does.
        background_trim_interval: Duration = Duration::ZERO, "BackgroundTrimIntervalSeconds", seconds(0, 366 * DAY);
        /// From which share of `MaxLen` on the background trimmer deletes what is older than `RetentionSeconds`
        /// although a consumer has not read it, and shortens the partition; which is an error in the log and
        /// counted. Below it, what is unread stays. 0: age alone decides.
        clamp_release_threshold: f64 = 0.8, "ClampReleaseThreshold", Share;
        /// Whether all partitions live in one cluster slot. False spreads them over a cluster,
        /// without transactions across partitions.
        co_locate_partitions: bool = true, "CoLocatePartitions", Flag;
        /// Whether a state store keeps correlation id, trace context and headers of an event in the
        /// state too. They are published in any case.
        state_metadata: bool = false, "StateMetadata", Flag;
        /// What finds the partition of a key. It is recorded when the topic is made, and a publisher
        /// that names another is refused. With any other than `xxh3` nothing is routed by key here:
        /// messages that have one need an explicit partition.
        partitioner: String = String::from("xxh3"), "Partitioner", Text,
            set(name: impl Into<String>) name.into();
        /// Whether publishing keeps large bodies apart, each in a key of its own that the message refers
        /// to. Every consumer of this library fetches them, whatever its settings say; services in other
        /// languages see such messages without a body. Publishing then needs the rights to run scripts.
        claim_check: bool = false, "ClaimCheck", Flag;
        /// Bodies above this are kept apart.
        payload_inline_max: u32 = 64 << 10, "PayloadInlineMax", Whole("bytes", 1024, 512 << 20);
        /// How long a body that is kept apart lives. A message whose body has expired is not handled: choose
        /// it longer than any consumer may lag behind, or be reset.
        payload_ttl: Duration = Duration::from_hours(7 * 24), "PayloadTtlSeconds", seconds(1, 3650 * DAY);
    }
}

impl TopicSettings {
    /// Whether there is anything for a background trimmer to do.
    pub(crate) fn is_trimmed_by_age(&self) -> bool {
        self.retention.is_some()
            && !self.background_trim_interval.is_zero()
            && self.trim != Trim::None
    }

    /// Publishing keeps bodies of more bytes apart.
    pub(crate) fn most_inline(&self) -> usize {
        if self.claim_check {
            self.payload_inline_max as usize
        } else {
            usize::MAX
        }
    }
}

choices! {
    /// How publishing trims a partition.
    pub enum Trim {
        /// To `MaxLen` or somewhat more, in whole blocks; cheap.
        Approx,
        /// To exactly `MaxLen`.
        Exact,
        /// Never.
        None,
    }
}
