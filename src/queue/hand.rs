//! What a lane has in its hands, for the thread that keeps it alive.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed},
};

use parking_lot::Mutex;

use crate::{StreamId, clock, consume::PAUSE, net::Interrupt};

/// What one lane has been given and is at. Shared with the [`Keeper`](super::Keeper).
#[derive(Debug, Default)]
pub(crate) struct Hand {
    held: Mutex<Held>,
    /// More has become pending under our name than the lane has read.
    more: AtomicBool,
    /// Something of a partition that is ours is pending under the name of another.
    strays: AtomicBool,
    /// So many entries under our name were found to be gone from the stream.
    lost: AtomicU64,
    /// How often it is yet worth writing down how far the group is.
    moved: AtomicU8,
    /// The lane's own.
    interrupt: Arc<Interrupt>,
}

/// Acknowledgements follow what the hand shows.
const MARKS: u8 = 2;

#[derive(Debug, Default)]
struct Held {
    /// Ascending.
    ids: Vec<StreamId>,
    /// On the coarse clock: when they came, and when they were last known to be alive.
    since_ms: u64,
    alive_ms: u64,
}

impl Hand {
    /// Of a lane that hears by this.
    pub(super) fn of(interrupt: Arc<Interrupt>) -> Self {
        Self {
            interrupt,
            ..Self::default()
        }
    }

    /// Whether the lane is paused: it would begin with nothing.
    pub(super) fn is_paused(&self) -> bool {
        self.interrupt.bits() & PAUSE != 0
    }

    /// The lane begins with these, which it has just been given.
    pub(super) fn take(&self, ids: impl Iterator<Item = StreamId>) {
        let mut held = self.held.lock();
        held.ids.clear();
        held.ids.extend(ids);
        held.ids.sort_unstable(); // as they mostly are
        held.since_ms = clock::coarse_ms();
        held.alive_ms = held.since_ms;
        self.moved.store(MARKS, Relaxed);
    }

    /// The lane is through with all of them.
    pub(super) fn open(&self) {
        self.held.lock().ids.clear();
        self.moved.store(MARKS, Relaxed);
    }

    /// What the lane is at, where it has had that for so long without a sign of life.
    pub(super) fn older_than(&self, ms: u64) -> Vec<StreamId> {
        let held = self.held.lock();
        match clock::coarse_ms().saturating_sub(held.alive_ms) {
            age if age >= ms => held.ids.clone(),
            _ => Vec::new(),
        }
    }

    /// What the lane was at before that moment of the coarse clock was kept alive then.
    pub(super) fn kept(&self, at_ms: u64) {
        let mut held = self.held.lock();
        held.alive_ms = held.alive_ms.max(at_ms);
    }

    /// Whether the lane has been at the same for so long: it could not begin with anything else.
    pub(super) fn is_busy_for(&self, ms: u64) -> bool {
        let held = self.held.lock();
        !held.ids.is_empty() && clock::coarse_ms().saturating_sub(held.since_ms) >= ms
    }

    /// Whether it is worth writing down how far the group is.
    pub(super) fn has_moved(&self) -> bool {
        self.moved.load(Relaxed) > 0
    }

    /// That was done.
    pub(super) fn marked(&self) {
        let less = |n: u8| n.checked_sub(1);
        let _ = self.moved.fetch_update(Relaxed, Relaxed, less);
    }

    /// More is pending under our name: the lane is to read it before anything new.
    pub(super) fn add(&self) {
        self.more.store(true, Relaxed);
    }

    /// So many entries under our name were found to be gone from the stream.
    pub(super) fn lose(&self, entries: u64) {
        self.lost.fetch_add(entries, Relaxed);
    }

    /// Asked by the lane: how many were found since it last asked.
    pub(super) fn lost(&self) -> u64 {
        match self.lost.load(Relaxed) {
            0 => 0,
            _ => self.lost.swap(0, Relaxed),
        }
    }

    /// Asked by the lane, once for each [`add`](Self::add).
    pub(super) fn has_more(&self) -> bool {
        self.more.load(Relaxed) && self.more.swap(false, Relaxed)
    }

    /// Something of a partition that is ours is pending under the name of another: the lane is to take it over.
    pub(super) fn stray(&self) {
        self.strays.store(true, Relaxed);
    }

    /// Asked by the lane, once for each [`stray`](Self::stray).
    pub(super) fn has_strays(&self) -> bool {
        self.strays.load(Relaxed) && self.strays.swap(false, Relaxed)
    }
}
