//! How far a partition is trimmed by age: a pure function of what was seen of it.

use crate::StreamId;

/// What was seen of a partition, without what everybody has finished.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sight {
    /// What lies before is older than messages are kept.
    pub(crate) cutoff: StreamId,
    /// How many entries there are.
    pub(crate) length: u64,
    /// Up to where everybody is finished; `None` where nobody keeps anything.
    pub(crate) low: Option<StreamId>,
    /// Whether there is an entry behind that and before the cutoff.
    pub(crate) unread: bool,
}

/// The settings that decide.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Terms {
    /// `MaxLen`.
    pub(crate) max_len: u64,
    /// `ClampReleaseThreshold`.
    pub(crate) threshold: f64,
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// What is too old goes: nobody has yet to read it.
    Free,
    /// What is too old stays where somebody has yet to read it.
    Held,
    /// What is too old goes although somebody has yet to read it, and of the rest all but the newest of this
    /// number; `None` for all of the rest stays.
    Released(Option<u64>),
}

impl Terms {
    /// From how many entries on nobody is waited for.
    fn release_at(&self) -> u64 {
        if self.threshold.is_nan() || self.threshold <= 0.0 {
            return 0;
        }
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_sign_loss,
            reason = "peers compute it with the same loss"
        )]
        let share = (self.max_len as f64 * self.threshold.min(1.0)) as u64;
        share.max(1)
    }

    /// How many are kept when nobody is waited for any more: so many fewer that there is room for a while, and no
    /// more than that makes.
    fn target(&self, length: u64) -> Option<u64> {
        let release_at = self.release_at();
        if release_at == 0 {
            return None; // age alone decides
        }
        let room = self.max_len.saturating_sub(release_at).max(1);
        Some(length.saturating_sub(room).min(release_at).max(1))
    }
}

/// Decides how a partition is trimmed.
pub(crate) fn decide(sight: &Sight, terms: &Terms) -> Verdict {
    let held = sight.unread && sight.low.is_some_and(|low| low < sight.cutoff);
    if !held {
        Verdict::Free
    } else if sight.length < terms.release_at() {
        Verdict::Held
    } else {
        Verdict::Released(terms.target(sight.length))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FREE: Verdict = Verdict::Free;
    const HELD: Verdict = Verdict::Held;

    fn id(ms: u64) -> StreamId {
        StreamId::new(ms, 0)
    }

    fn released(target: u64) -> Verdict {
        Verdict::Released(Some(target))
    }

    #[test]
    fn the_table_of_the_clamp() {
        // MaxLen, threshold, length, low (cutoff is 100), unread, what is decided
        let rows = [
            // as peers have it: at 8000 of 10 000 a slice of 2000 goes
            (10_000, 0.8, 7999, Some(50), true, HELD),
            (10_000, 0.8, 8000, Some(50), true, released(6000)),
            (10_000, 0.8, 8001, Some(50), true, released(6001)),
            (10_000, 0.8, 9000, Some(50), true, released(7000)),
            (10_000, 0.8, 10_000, Some(50), true, released(8000)),
            (10_000, 0.8, 12_000, Some(50), true, released(8000)),
            (10_000, 0.8, u64::MAX, Some(50), true, released(8000)),
            // nobody reads, or nobody is behind the cutoff, or nothing lies between
            (10_000, 0.8, 12_000, None, true, FREE),
            (10_000, 0.8, 12_000, Some(100), true, FREE),
            (10_000, 0.8, 12_000, Some(101), true, FREE),
            (10_000, 0.8, 12_000, Some(50), false, FREE),
            (10_000, 0.8, 12_000, Some(99), true, released(8000)),
            (10_000, 0.8, 0, Some(0), true, HELD),
            // all of it may be held, or all but one
            (10_000, 1.0, 9999, Some(50), true, HELD),
            (10_000, 1.0, 10_000, Some(50), true, released(9999)),
            (10_000, 7.0, 9999, Some(50), true, HELD),
            // thresholds are cut off, not rounded
            (9, 0.5, 3, Some(50), true, HELD),
            (9, 0.5, 4, Some(50), true, released(1)),
            (9, 0.5, 6, Some(50), true, released(1)),
            (9, 0.5, 8, Some(50), true, released(3)),
            (9, 0.5, 9, Some(50), true, released(4)),
            // at least one stays
            (1, 0.8, 1, Some(50), true, released(1)),
            (1, 0.8, 5, Some(50), true, released(1)),
            (1, 0.0001, 0, Some(50), true, HELD),
            (100, 0.0001, 1, Some(50), true, released(1)),
            // nobody is ever waited for, and age alone decides
            (10_000, 0.0, 1, Some(50), true, Verdict::Released(None)),
            (10_000, -1.0, 9000, Some(50), true, Verdict::Released(None)),
            (10_000, f64::NAN, 1, Some(50), true, Verdict::Released(None)),
            (10_000, 0.0, 1, Some(50), false, FREE),
        ];
        for (i, (max_len, threshold, length, low, unread, want)) in rows.into_iter().enumerate() {
            let sight = Sight {
                cutoff: id(100),
                length,
                low: low.map(id),
                unread,
            };
            let terms = Terms { max_len, threshold };
            assert_eq!(decide(&sight, &terms), want, "row {i}");
        }
    }

    proptest! {
        /// Against a stream that is a list: what is done to it is what a sweep does.
        #[test]
        fn nothing_unread_goes_unless_released_and_then_no_more_than_said(
            gaps in prop::collection::vec(1u64..5, 0..200),
            readers in prop::collection::vec(0u64..500, 0..4),
            cutoff in 0u64..500,
            max_len in 1u64..250,
            threshold in 0.0f64..1.2,
        ) {
            let mut at = 0;
            let stream: Vec<u64> = gaps.iter().map(|gap| { at += gap; at }).collect();
            let low = readers.iter().min().copied();
            let finished = |e: &&u64| low.is_none_or(|low| **e <= low);
            // everybody has finished these, and they are too old
            let rest: Vec<u64> =
                stream.iter().filter(|e| !(finished(e) && **e < cutoff)).copied().collect();
            let sight = Sight {
                cutoff: id(cutoff),
                length: rest.len() as u64,
                low: low.map(id),
                unread: rest.iter().any(|e| *e < cutoff && !finished(&e)),
            };
            let terms = Terms { max_len, threshold };
            let verdict = decide(&sight, &terms);
            let young = rest.iter().filter(|e| **e >= cutoff).count() as u64;
            let left: Vec<u64> = match verdict {
                Verdict::Held => rest.clone(),
                Verdict::Free => rest.iter().filter(|e| **e >= cutoff).copied().collect(),
                Verdict::Released(target) => {
                    let most = target.unwrap_or(u64::MAX).min(young);
                    rest[rest.len() - most as usize..].to_vec()
                }
            };
            let unread_gone = stream.iter().filter(|e| !finished(e) && !left.contains(e)).count();
            match verdict {
                Verdict::Free => {
                    prop_assert_eq!(unread_gone, 0);
                    prop_assert_eq!(left.len() as u64, young);
                }
                Verdict::Held => {
                    prop_assert_eq!(unread_gone, 0);
                    prop_assert!((rest.len() as u64) < terms.release_at());
                    prop_assert!(young < sight.length, "something is held");
                }
                Verdict::Released(target) => {
                    prop_assert!(unread_gone > 0, "else there is nothing to tell");
                    prop_assert!(sight.length >= terms.release_at());
                    if let Some(target) = target {
                        prop_assert!(left.len() as u64 <= target && 1 <= target);
                        prop_assert!(target <= terms.release_at().max(1));
                        prop_assert!(target < sight.length || sight.length == 1);
                        // there is room for what comes next
                        prop_assert!(left.len() as u64 <= terms.max_len);
                    } else {
                        prop_assert_eq!(left.len() as u64, young);
                    }
                }
            }
        }
    }
}
