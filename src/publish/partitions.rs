//! How many partitions a topic has, as far as this process knows.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use crate::net::Interrupt;

/// Tells the watcher of topics that one has grown by the doing of this process.
pub(crate) const GROWN: u32 = 1 << 1;

/// How many partitions one topic has: shared by all that publish to it or read it. It only ever grows,
/// as topics do.
#[derive(Debug, Default)]
pub(crate) struct Partitions {
    /// 0 before anybody has looked.
    seen: AtomicU32,
    watcher: Arc<Interrupt>,
}

impl Partitions {
    pub(crate) fn new(watcher: Arc<Interrupt>) -> Self {
        Self {
            seen: AtomicU32::new(0),
            watcher,
        }
    }

    /// The number as last seen; 0 before that. One load: cheap enough to ask for every message.
    #[inline]
    pub(crate) fn seen(&self) -> u32 {
        // the number is all there is to know, nothing else is published by it
        self.seen.load(Ordering::Relaxed)
    }

    /// Takes note of what was found on record, and returns what was known before.
    pub(crate) fn note(&self, n: u32) -> u32 {
        self.seen.fetch_max(n, Ordering::Relaxed)
    }

    /// As [`note`](Self::note), for whoever may have made the topic grow: the others here are told at once.
    pub(crate) fn learn(&self, n: u32) {
        let before = self.note(n);
        if before > 0 && before < n {
            self.watcher.set(GROWN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_only_grows_and_growth_calls_the_watcher() {
        let watcher = Arc::<Interrupt>::default();
        let p = Partitions::new(Arc::clone(&watcher));
        p.learn(4);
        assert_eq!((p.seen(), watcher.bits()), (4, 0), "no news to anybody");
        p.learn(4);
        p.learn(2);
        assert_eq!((p.note(6), p.seen(), watcher.bits()), (4, 6, 0));
        p.learn(8);
        assert_eq!((p.seen(), watcher.bits()), (8, GROWN));
    }
}
