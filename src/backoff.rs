//! How long to wait before trying again: the ladders, as plain iterators without clocks or sleeps.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

/// The waits before each retry of a message that must not be skipped: 1, 2, 4, 8, 16, then 30 s for ever.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockLadder(u32);

impl BlockLadder {
    pub(crate) fn next_wait(&mut self) -> Duration {
        let wait = 1u64.checked_shl(self.0).map_or(30, |s| s.min(30));
        self.0 = self.0.saturating_add(1);
        Duration::from_secs(wait)
    }
}

/// The waits between polls of a stream that has nothing new: 0, 1, 2, 4, ... ms up to a cap.
#[derive(Clone, Debug)]
pub(crate) struct IdleLadder {
    next_ms: u64,
    cap_ms: u64,
}

impl IdleLadder {
    pub(crate) fn new(cap: Duration) -> Self {
        Self {
            next_ms: 0,
            cap_ms: cap.as_millis() as u64,
        }
    }

    /// To be called when something arrived.
    pub(crate) fn reset(&mut self) {
        self.next_ms = 0;
    }

    /// To be called after each read that found nothing.
    pub(crate) fn next_wait(&mut self) -> Duration {
        let wait = self.next_ms;
        self.next_ms = (wait * 2).max(1).min(self.cap_ms);
        Duration::from_millis(wait)
    }
}

/// The pause before the `nth` attempt of some, counted from 1: `base`, doubled from one to the next up to
/// `most`, then lengthened by up to `jitter` percent.
pub(crate) fn exponential(nth: u32, base: Duration, most: Duration, jitter: u32) -> Duration {
    let doubled = 1u32.checked_shl(nth.saturating_sub(1));
    let pause = doubled.and_then(|factor| base.checked_mul(factor));
    let pause = if base.is_zero() {
        base
    } else {
        pause.map_or(most, |pause| pause.min(most))
    };
    pause + pause.mul_f64(f64::from(jitter) / 100.0 * dice())
}

/// `base` lengthened by up to a quarter, so that many who wait do not come back at once.
pub(crate) fn jittered(base: Duration) -> Duration {
    base + base.mul_f64(dice() / 4.0)
}

/// Something from 0 to 1.
fn dice() -> f64 {
    // A fresh RandomState differs from call to call: enough randomness to spread a herd.
    let r = RandomState::new().hash_one(()) as u32;
    f64::from(r) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_message_is_retried_at_growing_intervals_up_to_half_a_minute() {
        let mut l = BlockLadder::default();
        let s: Vec<_> = (0..8).map(|_| l.next_wait().as_secs()).collect();
        assert_eq!(s, [1, 2, 4, 8, 16, 30, 30, 30]);
        let mut old = BlockLadder(u32::MAX);
        assert_eq!(old.next_wait().as_secs(), 30);
        assert_eq!(old.next_wait().as_secs(), 30);
    }

    #[test]
    fn idle_polling_slows_down_to_its_cap() {
        let ladder = |cap| {
            let mut l = IdleLadder::new(Duration::from_millis(cap));
            (0..9)
                .map(|_| l.next_wait().as_millis())
                .collect::<Vec<_>>()
        };
        assert_eq!(ladder(50), [0, 1, 2, 4, 8, 16, 32, 50, 50]);
        assert_eq!(ladder(64), [0, 1, 2, 4, 8, 16, 32, 64, 64]);
        assert_eq!(ladder(0), [0; 9]);
        let mut l = IdleLadder::new(Duration::from_millis(50));
        l.next_wait();
        l.next_wait();
        l.reset();
        assert_eq!(
            [l.next_wait(), l.next_wait()].map(|d| d.as_millis()),
            [0, 1]
        );
    }

    #[test]
    fn mq_07_pauses_double_up_to_their_longest_and_no_number_of_attempts_is_too_large() {
        let ms = Duration::from_millis;
        let pause = |nth, jitter| exponential(nth, ms(100), ms(1000), jitter);
        let exact: Vec<_> = (1..8).map(|n| pause(n, 0).as_millis()).collect();
        assert_eq!(exact, [100, 200, 400, 800, 1000, 1000, 1000]);
        for late in (8..=200).chain([1000, u32::MAX]) {
            assert_eq!(pause(late, 0), ms(1000));
            assert_eq!(exponential(late, Duration::MAX, ms(1000), 0), ms(1000));
            assert!(exponential(late, Duration::ZERO, ms(1000), 25).is_zero());
        }
        let waits: Vec<_> = (0..100).map(|_| pause(2, 50)).collect();
        assert!(waits.iter().all(|w| *w >= ms(200) && *w <= ms(300)));
        assert!(waits.iter().any(|w| *w != waits[0]));
    }

    #[test]
    fn jitter_only_lengthens_and_at_most_by_a_quarter() {
        let base = Duration::from_secs(1);
        let waits: Vec<_> = (0..100).map(|_| jittered(base)).collect();
        assert!(waits.iter().all(|w| *w >= base && *w <= base.mul_f64(1.25)));
        assert!(waits.iter().any(|w| *w != waits[0]));
    }
}
