//! How often values fell into fixed ranges.

use std::{
    array,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use super::count;

/// How many ranges have an upper end; one more is open.
pub(crate) const BOUNDS: usize = 16;

/// Upper ends of ranges, ascending, each part of its range.
pub(crate) type Bounds = [u64; BOUNDS];

const MICROSECOND: u64 = 1000;
const MILLISECOND: u64 = 1000 * MICROSECOND;

/// Times in ns, from 10 µs to 30 s.
pub(crate) const TIMES: Bounds = [
    10 * MICROSECOND,
    50 * MICROSECOND,
    100 * MICROSECOND,
    250 * MICROSECOND,
    500 * MICROSECOND,
    MILLISECOND,
    MILLISECOND * 5 / 2,
    5 * MILLISECOND,
    10 * MILLISECOND,
    25 * MILLISECOND,
    50 * MILLISECOND,
    100 * MILLISECOND,
    500 * MILLISECOND,
    1000 * MILLISECOND,
    5000 * MILLISECOND,
    30_000 * MILLISECOND,
];

/// Numbers of messages.
pub(crate) const SIZES: Bounds = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000,
];

/// Counts of values by range, and their sum. Whoever records says in which ranges: always the same. Recording is a few instructions and allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    counts: [AtomicU64; BOUNDS + 1],
    sum: AtomicU64,
}

impl Histogram {
    /// Takes in a value; for the only thread that does.
    #[inline]
    pub(crate) fn record(&self, bounds: &Bounds, value: u64) {
        count(&self.counts[range_of(bounds, value)], 1);
        count(&self.sum, value);
    }

    /// As [`record`](Self::record), for any thread.
    pub(crate) fn record_shared(&self, bounds: &Bounds, value: u64) {
        self.counts[range_of(bounds, value)].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    pub(crate) fn look(&self) -> Counted {
        Counted {
            counts: array::from_fn(|i| self.counts[i].load(Relaxed)),
            sum: self.sum.load(Relaxed),
        }
    }
}

#[inline]
fn range_of(bounds: &Bounds, value: u64) -> usize {
    bounds.partition_point(|bound| *bound < value)
}

/// What a histogram holds at a moment; those of the same bounds can be added.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Counted {
    pub(crate) counts: [u64; BOUNDS + 1],
    pub(crate) sum: u64,
}

impl Counted {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            counts: array::from_fn(|i| self.counts[i] + other.counts[i]),
            sum: self.sum.wrapping_add(other.sum),
        }
    }

    /// How many values there were.
    pub(crate) fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_part_of_its_range_and_what_is_above_all_is_kept() {
        for bounds in [&TIMES, &SIZES] {
            assert!(bounds.is_sorted_by(|a, b| a < b));
            let h = Histogram::default();
            let mut sum = 0;
            for (i, bound) in bounds.iter().enumerate() {
                h.record(bounds, *bound);
                h.record_shared(bounds, bound + 1);
                sum += 2 * bound + 1;
                let seen = h.look();
                assert_eq!(
                    (seen.counts[i], seen.counts[i + 1]),
                    (1 + u64::from(i > 0), 1)
                );
                assert_eq!((seen.sum, seen.total()), (sum, 2 * i as u64 + 2));
            }
        }
        let h = Histogram::default();
        h.record(&SIZES, 0);
        h.record(&SIZES, u64::MAX);
        let seen = h.look();
        assert_eq!((seen.counts[0], seen.counts[BOUNDS]), (1, 1));
        let twice = seen.plus(seen);
        assert_eq!((twice.counts[0], twice.total()), (2, 4));
    }
}
