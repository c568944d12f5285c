//! Random moments that can be had again.

use std::{ops::Range, thread, time::Duration};

use streamlane::testing::now_ns;

use super::number_from_env;

pub struct Dice(u64);

impl Dice {
    /// Seeded by `STREAMLANE_SEED`, else by the clock; says with what.
    pub fn new(test: &str) -> Self {
        let seed = number_from_env("STREAMLANE_SEED").unwrap_or_else(now_ns);
        eprintln!("{test}: STREAMLANE_SEED={seed}");
        Self(seed)
    }

    /// The generator called `SplitMix64`.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn ms(&mut self, range: Range<u64>) -> Duration {
        let width = (range.end - range.start) * 1000;
        Duration::from_micros(range.start * 1000 + self.below(width))
    }

    /// Lets a random time pass.
    pub fn wait_ms(&mut self, range: Range<u64>) {
        thread::sleep(self.ms(range));
    }
}
