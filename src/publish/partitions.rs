//! How many partitions a topic has, as far as this process knows.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

use super::registry::Registry;
use crate::{
    Result,
    net::{Connection, Deadline, Interrupt},
};

/// Tells the watcher of topics that one has grown by the doing of this process.
pub(crate) const GROWN: u32 = 1 << 1;

/// How many partitions one topic has: shared by all that publish to it or read it. It only ever grows,
/// as topics do.
#[derive(Debug, Default)]
pub(crate) struct Partitions {
    /// 0 before anybody has looked.
    seen: AtomicU32,
    watcher: Arc<Interrupt>,
    registry: Arc<Registry>,
    /// Whether the topic was written down in the registry, or never can be.
    listed: AtomicBool,
}

impl Partitions {
    pub(crate) fn new(watcher: Arc<Interrupt>, registry: Arc<Registry>) -> Self {
        Self {
            seen: AtomicU32::new(0),
            watcher,
            registry,
            listed: AtomicBool::new(false),
        }
    }

    /// Sees to it that the topic, of this name, is on the list of topics: once. Blocks for a round trip then.
    ///
    /// # Errors
    ///
    /// The connection is of no use any more.
    pub(crate) fn list(&self, c: &mut Connection, topic: &str, by: Deadline) -> Result<()> {
        if !self.listed.load(Ordering::Relaxed) && self.registry.list(c, topic, by)? {
            self.listed.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// As [`list`](Self::list), again: what was written down may be gone.
    pub(crate) fn list_again(&self, c: &mut Connection, topic: &str, by: Deadline) -> Result<()> {
        self.listed.store(false, Ordering::Relaxed);
        self.list(c, topic, by)
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
        let p = Partitions::new(Arc::clone(&watcher), Arc::default());
        p.learn(4);
        assert_eq!((p.seen(), watcher.bits()), (4, 0), "no news to anybody");
        p.learn(4);
        p.learn(2);
        assert_eq!((p.note(6), p.seen(), watcher.bits()), (4, 6, 0));
        p.learn(8);
        assert_eq!((p.seen(), watcher.bits()), (8, GROWN));
    }
}
