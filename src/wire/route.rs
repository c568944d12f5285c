//! Which partition a message goes to. Every implementation that shares a topic must agree on this,
//! or equal keys stop being handled in order.

use std::sync::atomic::{AtomicU32, Ordering};

use xxhash_rust::xxh3::xxh3_64;

/// The name of [`partition_of`] among partitioners.
pub(crate) const XXH3: &str = "xxh3";

/// The partition of a key. Whether an empty key means "no key" is the caller's to decide.
pub(crate) fn partition_of(key: &[u8], partitions: u32) -> u32 {
    if partitions <= 1 {
        return 0;
    }
    partition_of_hash(hash_of(key), partitions)
}

/// What of a key decides its partition.
pub(crate) fn hash_of(key: &[u8]) -> u64 {
    xxh3_64(key)
}

/// The partition of a key with this hash.
pub(crate) fn partition_of_hash(hash: u64, partitions: u32) -> u32 {
    (hash % u64::from(partitions.max(1))) as u32
}

/// Takes turns for messages without a key.
#[derive(Debug, Default)]
pub(crate) struct RoundRobin(AtomicU32);

impl RoundRobin {
    /// The next partition in turn. The first is partition 1, as everywhere else. When the counter
    /// wraps at 2³² the turns may skip once.
    pub(crate) fn next(&self, partitions: u32) -> u32 {
        if partitions <= 1 {
            return 0;
        }
        // only the count itself matters, nothing is published by it
        let turn = self.0.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        turn % partitions
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use sha2::{Digest, Sha256};

    use super::*;

    #[test]
    fn keys_go_where_other_implementations_put_them() {
        let golden: Value = serde_json::from_str(include_str!("vectors/partition.json")).unwrap();
        let vectors = golden["vectors"].as_array().unwrap();
        assert_eq!(vectors.len(), 48);
        for v in vectors {
            let key = v["key"].as_str().unwrap();
            let number = |field: &str| v[field].as_u64().unwrap();
            assert_eq!(key.len() as u64, number("key_utf8_len"), "{v}");
            let hash = format!("{:016x}", xxh3_64(key.as_bytes()));
            assert_eq!(hash, v["xxh3_64_hex"].as_str().unwrap(), "{v}");
            let partition = partition_of(key.as_bytes(), number("partitions") as u32);
            assert_eq!(u64::from(partition), number("partition"), "{v}");
        }
    }

    #[test]
    fn the_hash_is_the_frozen_one() {
        for (key, hash) in [
            ("", 0x2d06_8005_38d3_94c2),
            ("a", 0xe6c6_32b6_1e96_4e1f),
            ("abc", 0x78af_5f94_892f_3950),
        ] {
            assert_eq!(xxh3_64(key.as_bytes()), hash, "{key}");
        }
    }

    /// Of keys of each length up to 999, of all bytes; the sum was made with the reference implementation,
    /// xxHash 0.8.4.
    #[test]
    fn a_thousand_keys_hash_as_anywhere_else() {
        let mut sum = Sha256::new();
        for len in 0..1000usize {
            let key: Vec<u8> = (0..len).map(|i| (i * 31 + len * 7) as u8).collect();
            sum.update(xxh3_64(&key).to_le_bytes());
        }
        let reference = "9b4bddbee8d9e238559b3481a2b922e45376b7bcd55ff186f2bf65e8c2d52d23";
        assert_eq!(format!("{:x}", sum.finalize()), reference);
    }

    #[test]
    fn keys_stay_in_range_and_spread_evenly() {
        for partitions in [0, 1] {
            assert_eq!(partition_of(b"order-1", partitions), 0);
        }
        for partitions in [2u32, 3, 8, 10, 16] {
            let mut counts = vec![0u32; partitions as usize];
            for n in 0..100_000 {
                let key = format!("customer-{n:06}");
                counts[partition_of(key.as_bytes(), partitions) as usize] += 1;
            }
            let fair = 100_000 / partitions;
            let even = counts.iter().all(|n| n.abs_diff(fair) <= fair / 10);
            assert!(even, "{counts:?}");
        }
    }

    fn turns(start: u32, partitions: u32, n: usize) -> Vec<u32> {
        let robin = RoundRobin(AtomicU32::new(start));
        (0..n).map(|_| robin.next(partitions)).collect()
    }

    #[test]
    fn keyless_messages_take_turns_beginning_with_the_second_partition() {
        assert_eq!(turns(0, 4, 9), [1, 2, 3, 0, 1, 2, 3, 0, 1]);
        assert_eq!(turns(0, 3, 7), [1, 2, 0, 1, 2, 0, 1]);
        assert_eq!(RoundRobin::default().next(2), 1);
        let all = turns(0, 8, 8000);
        assert!((0..8).all(|p| all.iter().filter(|q| **q == p).count() == 1000));
    }

    #[test]
    fn the_counter_wraps_cleanly_and_rests_where_there_is_no_choice() {
        assert_eq!(turns(u32::MAX - 2, 8, 6), [6, 7, 0, 1, 2, 3]);
        assert!(turns(u32::MAX - 5, 10, 20).iter().all(|p| *p < 10));
        let robin = RoundRobin::default();
        assert_eq!([robin.next(0), robin.next(1), robin.next(4)], [0, 0, 1]);
    }
}
