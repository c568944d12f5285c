//! What metrics are read from: how everything was at one moment.

use std::sync::Arc;

use crate::{
    Ownership, PartitionStatus, Trimmed,
    monitor::{Counted, Counts, LetterCounts},
    publish::PublishStatus,
};

/// Everything that goes on.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) topics: Vec<TopicSeen>,
    /// No two of one topic and name.
    pub(crate) consumers: Vec<ConsumerSeen>,
    /// What was done with dead letters, by topic and consumer.
    pub(crate) letters: Vec<((String, String), LetterCounts)>,
    pub(crate) trimmed: Vec<Trimmed>,
}

/// A topic that something is published to.
pub(crate) struct TopicSeen {
    pub(crate) published: PublishStatus,
    /// Whether it has a queue in memory now.
    pub(crate) has_queue: bool,
}

/// A consumer that runs here.
pub(crate) struct ConsumerSeen {
    pub(crate) topic: Arc<str>,
    pub(crate) name: Arc<str>,
    pub(crate) is_queue: bool,
    pub(crate) lanes: Vec<LaneSeen>,
    pub(crate) ownership: Ownership,
    /// How many partitions this instance may take, for all that others take.
    pub(crate) eligible: u64,
    pub(crate) max_partitions: Option<u32>,
    pub(crate) max_in_flight: Option<u32>,
    /// Of all lanes, those that are gone included.
    pub(crate) filtered: u64,
    pub(crate) durations: Counted,
    pub(crate) sizes: Counted,
    pub(crate) errors: Vec<Counts>,
    pub(crate) flush_failures: u64,
    pub(crate) held_up: Counted,
}

/// A partition that is read here, or what a queue hands over once more.
pub(crate) struct LaneSeen {
    pub(crate) status: PartitionStatus,
    pub(crate) acked: u64,
    pub(crate) payload_missing: u64,
}

impl ConsumerSeen {
    /// The lanes that have something to say: not those that were told to end, and did.
    pub(super) fn live(&self) -> impl Iterator<Item = &LaneSeen> {
        self.lanes.iter().filter(|l| !l.status.was_dismissed())
    }
}
