//! What became of the messages of a topic that were published here.

use std::{
    array,
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

use crate::{Error, Outcome, wire::RoundRobin};

/// The counters of one topic, shared by all its publishers in this process.
#[derive(Debug, Default)]
pub(crate) struct PublishCounts {
    /// Whose turn it is among the partitions.
    pub(super) turns: RoundRobin,
    /// By partition. The lock is for growth; publishers hold on to the counters themselves.
    stored: Mutex<Vec<Arc<AtomicU64>>>,
    others: [AtomicU64; OTHERS],
}

const OTHERS: usize = 9;

/// A count that no partition has of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Count {
    /// Certainly not stored.
    Refused,
    /// The answer was lost.
    Unknown,
    /// Stored before under the same dedupe id.
    Repeated,
    /// Pushed out of a full queue.
    Dropped,
    /// Given back from a queue.
    Returned,
    /// Waiting in a queue now.
    Queued,
    /// Stored to be published later.
    Scheduled,
    /// Published by this process when they were due.
    Moved,
    /// Could not be published when they were due.
    PutOff,
}

/// The counters of every topic that something was published to here.
pub(crate) type AllCounts = Mutex<BTreeMap<String, Arc<PublishCounts>>>;

impl PublishCounts {
    /// The counters of `partitions` partitions.
    pub(crate) fn stored(&self, partitions: usize) -> Vec<Arc<AtomicU64>> {
        let mut stored = self.stored.lock();
        let wanted = partitions.max(stored.len());
        stored.resize_with(wanted, Arc::default);
        stored[..partitions].to_vec()
    }

    pub(crate) fn add(&self, count: Count, n: u64) {
        self.others[count as usize].fetch_add(n, Ordering::Relaxed);
    }

    pub(super) fn get(&self, count: Count) -> u64 {
        self.others[count as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn sub(&self, count: Count, n: u64) {
        self.others[count as usize].fetch_sub(n, Ordering::Relaxed);
    }

    /// Counts a message that has no id to show.
    pub(crate) fn failed(&self, e: &Error) {
        let count = match e.outcome() {
            Outcome::NotApplied => Count::Refused,
            Outcome::Applied | Outcome::Unknown => Count::Unknown,
        };
        self.add(count, 1);
    }

    pub(crate) fn status(&self, topic: &str) -> PublishStatus {
        let [
            refused,
            unknown,
            repeated,
            dropped,
            returned,
            queued,
            scheduled,
            moved,
            put_off,
        ] = array::from_fn(|i| self.others[i].load(Ordering::Relaxed));
        let stored = self.stored.lock();
        PublishStatus {
            topic: topic.to_owned(),
            stored: stored.iter().map(|n| n.load(Ordering::Relaxed)).collect(),
            refused,
            unknown,
            repeated,
            dropped,
            returned,
            queued,
            scheduled,
            moved,
            put_off,
        }
    }
}

/// What became of the messages published to one topic by this process since it began, whatever
/// published them.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PublishStatus {
    /// The topic.
    pub topic: String,
    /// How many messages were stored, by partition.
    pub stored: Vec<u64>,
    /// How many were certainly not stored: refused by the server or before, or never sent.
    pub refused: u64,
    /// How many may or may not be stored, because the answer was lost.
    pub unknown: u64,
    /// How many were found to be stored already, under the same dedupe id.
    pub repeated: u64,
    /// How many were pushed out of a full queue to make room.
    pub dropped: u64,
    /// How many were given back from a buffered publisher's queue. They are not stored.
    pub returned: u64,
    /// How many wait in a buffered publisher's queue at this moment.
    pub queued: u64,
    /// How many were kept on the server, to be published later. `stored` does not count them.
    pub scheduled: u64,
    /// How many of those, whoever scheduled them, this process published when they were due.
    pub moved: u64,
    /// How often one could not be published when it was due, and was put off by a second or a minute, or
    /// is gone; the log says which and why.
    pub put_off: u64,
}
