//! What this process has trimmed, and where that took what somebody had yet to read.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;

/// Why messages were deleted from a partition.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum TrimReason {
    /// There were too many. What publishing trims is not counted, since servers do not tell.
    MaxLen,
    /// Every consumer had finished them, and another held back what follows.
    MinId,
    /// They were older than `RetentionSeconds`.
    Age,
    /// They were finished, under [`AckDelete`](crate::AckDelete). Under `Immediate` each that was acknowledged counts,
    /// also where somebody else had deleted it by then.
    Ack,
}

impl TrimReason {
    /// All there are, in the order of [`as_str`](Self::as_str) `maxlen`, `minid`, `age`, `ack`.
    pub const ALL: [Self; 4] = [Self::MaxLen, Self::MinId, Self::Age, Self::Ack];

    /// As metrics call it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MaxLen => "maxlen",
            Self::MinId => "minid",
            Self::Age => "age",
            Self::Ack => "ack",
        }
    }
}

/// What was deleted from one partition by this process since it began; see
/// [`Streams::trimmed`](crate::Streams::trimmed).
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Trimmed {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: u32,
    /// How many of these were deleted although a consumer had yet to read them, since it held too much back.
    pub unread: u64,
    /// How often a consumer came to hold back so much that it was not waited for any more.
    pub released: BTreeMap<String, u64>,
    messages: [u64; 4],
}

impl Trimmed {
    /// How many messages were deleted for this reason.
    pub fn messages(&self, reason: TrimReason) -> u64 {
        self.messages[reason as usize]
    }
}

/// The counters of one partition.
#[derive(Debug, Default)]
pub(crate) struct PartitionTrims {
    messages: [AtomicU64; 4],
    unread: AtomicU64,
    released: Mutex<BTreeMap<String, u64>>,
}

impl PartitionTrims {
    pub(crate) fn add(&self, reason: TrimReason, messages: u64) {
        self.messages[reason as usize].fetch_add(messages, Relaxed);
    }

    pub(crate) fn add_unread(&self, messages: u64) {
        self.unread.fetch_add(messages, Relaxed);
    }

    /// This consumer is not waited for any more.
    pub(crate) fn released(&self, consumer: &str) {
        *self.released.lock().entry(consumer.to_owned()).or_default() += 1;
    }
}

/// The counters of every partition that was trimmed here. The lock is for finding them: who trims often
/// keeps what it found.
#[derive(Debug, Default)]
pub(crate) struct AllTrims(Mutex<BTreeMap<(String, u32), Arc<PartitionTrims>>>);

impl AllTrims {
    pub(crate) fn of(&self, topic: &str, partition: u32) -> Arc<PartitionTrims> {
        let mut all = self.0.lock();
        Arc::clone(all.entry((topic.to_owned(), partition)).or_default())
    }

    /// By topic and partition.
    pub(crate) fn snapshot(&self) -> Vec<Trimmed> {
        let all = self.0.lock();
        let each = all.iter().map(|((topic, partition), trims)| Trimmed {
            topic: topic.clone(),
            partition: *partition,
            unread: trims.unread.load(Relaxed),
            released: trims.released.lock().clone(),
            messages: TrimReason::ALL.map(|r| trims.messages[r as usize].load(Relaxed)),
        });
        each.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trims_are_counted_by_partition_and_reason() {
        let all = AllTrims::default();
        all.of("b", 0).add(TrimReason::Ack, 1);
        for (i, reason) in (1..).zip(TrimReason::ALL) {
            all.of("a", 1).add(reason, i);
        }
        all.of("a", 1).add(TrimReason::Age, 10);
        all.of("a", 1).add_unread(7);
        all.of("a", 1).released("slow");
        all.of("a", 1).released("slow");
        let [a, b] = &all.snapshot()[..] else {
            panic!("two partitions");
        };
        assert_eq!((&*a.topic, a.partition, a.unread), ("a", 1, 7));
        let counts = TrimReason::ALL.map(|r| (r.as_str(), a.messages(r)));
        let want = [("maxlen", 1), ("minid", 2), ("age", 13), ("ack", 4)];
        assert_eq!(counts, want);
        assert_eq!(a.released, BTreeMap::from([("slow".into(), 2)]));
        assert_eq!((&*b.topic, b.messages(TrimReason::Ack)), ("b", 1));
    }
}
