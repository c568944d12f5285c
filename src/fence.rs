//! How long what an instance claimed is certainly its own, judged from this side alone.
//!
//! The server ends a claim its time to live after it has run the renewal. Here it ends so long after the
//! renewal was *sent*, less a margin, whether or not the server answers: first here, then there. Time
//! during which the machine was suspended counts, which the coarse clock does not know; so that is looked
//! up wherever a few dozen nanoseconds do not matter.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::clock;

/// Until when the lanes of an instance may work.
#[derive(Debug)]
pub(crate) struct Fence {
    /// When it ends, on the coarse clock and on the one that counts suspension.
    coarse_ms: AtomicU64,
    boot_ms: AtomicU64,
}

/// A moment on both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    coarse_ms: u64,
    boot_ms: u64,
}

impl Sent {
    /// To be called right before a renewal is sent.
    pub(crate) fn now() -> Self {
        Self {
            coarse_ms: clock::coarse_ms(),
            boot_ms: clock::boot_ms(),
        }
    }
}

/// The least margin: ticks of the coarse clock, and what clocks of two machines gain on one another.
const LEAST_MARGIN_MS: u64 = 25;

/// What is taken off a time to live.
fn margin_ms(ttl_ms: u64) -> u64 {
    (ttl_ms / 50).max(LEAST_MARGIN_MS)
}

impl Fence {
    /// Never ends: for whoever shares with nobody.
    pub(crate) fn open() -> Self {
        Self::until(u64::MAX)
    }

    /// Nothing is held yet.
    pub(crate) fn closed() -> Self {
        Self::until(0)
    }

    fn until(ms: u64) -> Self {
        Self {
            coarse_ms: AtomicU64::new(ms),
            boot_ms: AtomicU64::new(ms),
        }
    }

    /// Whether the claims are certainly ours, for who has just read the coarse clock. To be asked before
    /// each message.
    #[inline]
    pub(crate) fn holds_at(&self, coarse_ms: u64) -> bool {
        coarse_ms < self.coarse_ms.load(Relaxed)
    }

    /// As [`holds_at`](Self::holds_at), now. Costs a few nanoseconds.
    #[inline]
    pub(crate) fn holds(&self) -> bool {
        self.holds_at(clock::coarse_ms())
    }

    /// As [`holds`](Self::holds), even after the machine was suspended; to be asked before each batch.
    pub(crate) fn holds_for_certain(&self) -> bool {
        self.holds() && clock::boot_ms() < self.boot_ms.load(Relaxed)
    }

    /// A renewal that was sent at that moment has succeeded.
    pub(crate) fn extend(&self, sent: Sent, ttl: Duration) {
        let ttl_ms = ttl.as_millis() as u64;
        let valid = ttl_ms.saturating_sub(margin_ms(ttl_ms));
        self.boot_ms.store(sent.boot_ms + valid, Relaxed);
        self.coarse_ms.store(sent.coarse_ms + valid, Relaxed);
    }

    /// Nothing is held any more.
    pub(crate) fn end(&self) {
        self.coarse_ms.store(0, Relaxed);
        self.boot_ms.store(0, Relaxed);
    }

    /// How long it holds yet.
    pub(crate) fn left(&self) -> Duration {
        let coarse = self
            .coarse_ms
            .load(Relaxed)
            .saturating_sub(clock::coarse_ms());
        let boot = self.boot_ms.load(Relaxed).saturating_sub(clock::boot_ms());
        Duration::from_millis(coarse.min(boot))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_held_before_a_renewal_nor_after_the_end() {
        let f = Fence::closed();
        assert!(!f.holds() && !f.holds_for_certain() && f.left().is_zero());
        f.extend(Sent::now(), Duration::from_secs(30));
        assert!(f.holds() && f.holds_for_certain());
        assert!(
            f.left() < Duration::from_secs(30),
            "less than the server grants"
        );
        f.end();
        assert!(!f.holds() && f.left().is_zero());
        assert!(Fence::open().holds_for_certain());
    }

    #[test]
    fn time_counts_from_the_sending_of_the_renewal() {
        let f = Fence::closed();
        let long_ago = Sent {
            coarse_ms: clock::coarse_ms().saturating_sub(29_500),
            boot_ms: clock::boot_ms().saturating_sub(29_500),
        };
        f.extend(long_ago, Duration::from_secs(30));
        assert!(!f.holds(), "within the margin of the end");
        f.extend(long_ago, Duration::from_mins(1));
        assert!(f.holds());
    }

    #[test]
    fn a_suspension_ends_it_though_the_coarse_clock_stood_still() {
        let f = Fence::closed();
        let now = Sent::now();
        f.extend(now, Duration::from_secs(30));
        f.boot_ms.store(now.boot_ms, Relaxed); // as if it had gone on for as long
        assert!(f.holds() && !f.holds_for_certain());
        assert!(f.left().is_zero());
    }

    #[test]
    fn even_a_short_time_to_live_has_its_margin() {
        assert_eq!([0, 100, 1250, 30_000].map(margin_ms), [25, 25, 25, 600]);
    }
}
