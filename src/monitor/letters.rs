//! What was done with dead letters from this process.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// What was done with those of one consumer.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct LetterCounts {
    /// Published once more.
    pub(crate) replayed: u64,
    /// Could not be.
    pub(crate) not_replayed: u64,
    pub(crate) deleted: u64,
}

/// The same by topic and consumer. Only those are in it whose letters were replayed or deleted.
#[derive(Debug, Default)]
pub(crate) struct Letters(Mutex<BTreeMap<(String, String), LetterCounts>>);

impl Letters {
    pub(crate) fn count(
        &self,
        topic: &str,
        consumer: &str,
        change: impl FnOnce(&mut LetterCounts),
    ) {
        let mut all = self.0.lock();
        let of = (topic.to_owned(), consumer.to_owned());
        change(all.entry(of).or_default());
    }

    pub(crate) fn look(&self) -> Vec<((String, String), LetterCounts)> {
        let all = self.0.lock();
        all.iter()
            .map(|(of, counts)| (of.clone(), *counts))
            .collect()
    }
}
