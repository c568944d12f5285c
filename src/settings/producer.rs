//! The settings of publishing to one topic.

use std::time::Duration;

use super::codec::{Codec, Flag, Opt, Text, Whole, millis, seconds};

/// A day, in seconds.
const DAY: u64 = 86_400;

section! {
    /// How a service publishes to one topic. An entry of `Producers`.
    pub struct ProducerSettings in Producers {
        /// The topic. Required.
        topic: String = String::new(), "Topic", Text, set(topic: impl Into<String>) topic.into();
        /// Whether messages wait in memory and are sent in batches by a thread of their own. True or
        /// false holds the code to it; unset leaves the choice to the code.
        buffered: Option<bool> = None, "Buffered", Opt(Flag), set(yes: bool) Some(yes);
        /// The most messages of one batch.
        max_batch: u32 = 500, "MaxBatch", Whole("messages", 1, 100_000);
        /// How long a message waits for others to make a batch with. 0 sends whatever is there.
        max_wait: Duration = Duration::from_millis(20), "MaxWaitMs", millis(0, 3_600_000);
        /// The most messages that wait. They are held in memory, with their bodies, and so are up to
        /// `MaxBatch` more that are being made into a batch or sent.
        max_queue: u32 = 100_000, "MaxQueue", Whole("messages", 1, 10_000_000);
        /// What happens when the queue is full: true drops the oldest message that waits, false lets
        /// the caller wait for room, for up to `PublishTimeoutMs`.
        drop_oldest: bool = false, "DropOldest", Flag;
        /// How long after it was enqueued a message that is certainly not stored is tried again; then
        /// it is given up. It is tried once in any case.
        retry_for: Duration = Duration::from_mins(2), "RetryForMs", millis(0, DAY * 1000);
        /// How long dropping the last handle waits for what is queued to be stored. What is left then
        /// is discarded.
        shutdown_timeout: Duration = Duration::from_secs(5), "ShutdownTimeoutSeconds",
            seconds(0, DAY);
    }
}

impl ProducerSettings {
    /// Defaults for publishing to `topic`.
    pub fn new(topic: impl Into<String>) -> Self {
        Self::default().topic(topic)
    }

    /// The keys that only a buffered publisher heeds.
    pub(super) const OF_THE_BUFFER: [&str; 6] = [
        "MaxBatch",
        "MaxWaitMs",
        "MaxQueue",
        "DropOldest",
        "RetryForMs",
        "ShutdownTimeoutSeconds",
    ];
}
