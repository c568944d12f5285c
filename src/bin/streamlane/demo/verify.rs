//! The verdict: compares, id by id, what publishing returned with what handlers were given.
//!
//! Since a message's name tells its key and its place in it, three arrays decide everything: the ids that
//! publishing returned, which of them were handled, and how far each key has come.

use serde::Serialize;
use streamlane::StreamId;

use super::{
    handle::Log,
    plan::{KEYS, Name},
};

/// How many findings of each kind are described.
const EXAMPLES: usize = 3;

/// What was found. Clean when all but `published` and `handled` is zero.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub(crate) struct Verdict {
    /// Messages whose publish returned an id.
    pub(crate) published: usize,
    /// Handler calls.
    pub(crate) handled: usize,
    /// Published and never handled.
    pub(crate) lost: usize,
    /// Handler calls beyond the first for a message.
    pub(crate) doubled: usize,
    /// Handled after a later message of the same key, or on another lane than the key's others.
    pub(crate) reordered: usize,
    /// Handled under an id that publishing never returned for it.
    pub(crate) strangers: usize,
    /// Messages whose publish failed. Stored or not, they count neither as lost nor as strangers.
    pub(crate) unpublished: usize,
    /// The first few findings of each kind, in words.
    pub(crate) examples: Vec<String>,
}

impl Verdict {
    /// Whether every message was published, and handled exactly once, in order per key.
    pub(crate) fn is_clean(&self) -> bool {
        let faults = [
            self.lost,
            self.doubled,
            self.reordered,
            self.strangers,
            self.unpublished,
        ];
        faults == [0; 5]
    }
}

/// Compares `sent`, by publisher and index the ids that publishing returned ([`StreamId::MIN`] where it
/// failed), with `logs`, by partition what was handled.
pub(crate) fn verify(sent: &[&[StreamId]], logs: &[Log]) -> Verdict {
    let mut seen: Vec<Vec<bool>> = sent.iter().map(|ids| vec![false; ids.len()]).collect();
    // By key: its partition, and the latest message of it that was handled.
    let mut latest: Vec<Option<(usize, u32)>> = vec![None; KEYS];
    let mut verdict = Verdict {
        handled: logs.iter().map(Vec::len).sum(),
        ..Verdict::default()
    };
    let Verdict {
        doubled,
        reordered,
        strangers,
        lost,
        examples,
        ..
    } = &mut verdict;
    let mut find = |count: &mut usize, what: &str, id: StreamId, Name { key, seq }| {
        *count += 1;
        if *count <= EXAMPLES {
            examples.push(format!("{what}: key {key}, message {seq} of it, id {id}"));
        }
    };
    for (partition, log) in logs.iter().enumerate() {
        for h in log {
            let (publisher, index) = h.name.place();
            let id = sent.get(publisher).and_then(|ids| ids.get(index));
            if id.is_none_or(|id| *id != h.id && *id != StreamId::MIN) {
                find(strangers, "nobody published this", h.id, h.name);
            } else if std::mem::replace(&mut seen[publisher][index], true) {
                find(doubled, "handled again", h.id, h.name);
            } else {
                let latest = &mut latest[h.name.key as usize];
                if latest.is_some_and(|(p, seq)| p != partition || seq > h.name.seq) {
                    find(reordered, "handled out of order", h.id, h.name);
                } else {
                    *latest = Some((partition, h.name.seq));
                }
            }
        }
    }
    for (publisher, (ids, seen)) in sent.iter().zip(&seen).enumerate() {
        for (index, (id, seen)) in ids.iter().zip(seen).enumerate() {
            if !seen && *id != StreamId::MIN {
                find(lost, "lost", *id, Name::of(publisher, index));
            }
        }
    }
    let all = || sent.iter().copied().flatten();
    verdict.unpublished = all().filter(|id| **id == StreamId::MIN).count();
    verdict.published = all().count() - verdict.unpublished;
    verdict
}

/// A fault put in on purpose, to see that it is found.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Break {
    /// One message is never handled.
    Lose,
    /// One message is handled twice.
    Double,
    /// Two messages of a key change places.
    Reorder,
    /// One message is handled under another id.
    Forge,
}

impl Break {
    /// Does it, to the first log that is long enough.
    pub(crate) fn apply(self, logs: &mut [Log]) {
        let Some(log) = logs.iter_mut().find(|log| !log.is_empty()) else {
            return;
        };
        let first = log[0];
        match self {
            Self::Lose => drop(log.remove(0)),
            Self::Double => log.push(first),
            Self::Reorder => {
                let next = log
                    .iter()
                    .skip(1)
                    .position(|h| h.name.key == first.name.key);
                log.swap(0, next.map_or(0, |i| i + 1));
            }
            Self::Forge => log[0].id = first.id.next(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{handle::Handled, plan::PUBLISHERS};
    use super::*;

    /// Three messages of each key, handled as they should be on two partitions: keys below 500, and the
    /// others.
    fn clean() -> (Vec<Vec<StreamId>>, Vec<Log>) {
        let each = 3 * KEYS / PUBLISHERS;
        let mut sent = vec![Vec::new(); PUBLISHERS];
        let mut logs = vec![Log::new(); 2];
        for index in 0..each {
            for (publisher, ids) in sent.iter_mut().enumerate() {
                let (id, name) = (
                    StreamId::new(1 + index as u64, publisher as u64),
                    Name::of(publisher, index),
                );
                ids.push(id);
                logs[usize::from(name.key >= 500)].push(Handled {
                    id,
                    name,
                    sent_ns: 0,
                    at_ns: 0,
                });
            }
        }
        (sent, logs)
    }

    fn judge(sent: &[Vec<StreamId>], logs: &[Log]) -> Verdict {
        let sent: Vec<&[StreamId]> = sent.iter().map(Vec::as_slice).collect();
        verify(&sent, logs)
    }

    /// Lost, doubled, reordered, strangers, unpublished.
    fn faults(v: &Verdict) -> [usize; 5] {
        [v.lost, v.doubled, v.reordered, v.strangers, v.unpublished]
    }

    #[test]
    fn what_went_well_is_clean() {
        let (sent, logs) = clean();
        let v = judge(&sent, &logs);
        assert_eq!((v.published, v.handled, v.is_clean()), (3000, 3000, true));
        assert!(v.examples.is_empty());
    }

    #[test]
    fn each_fault_is_found_and_called_by_its_name() {
        for (fault, expected, words) in [
            (
                Break::Lose,
                [1, 0, 0, 0, 0],
                "lost: key 0, message 0 of it, id 1-0",
            ),
            (
                Break::Double,
                [0, 1, 0, 0, 0],
                "handled again: key 0, message 0",
            ),
            (
                Break::Reorder,
                [0, 0, 1, 0, 0],
                "handled out of order: key 0, message 0",
            ),
            // under the wrong id it is no message of ours, and ours is missing
            (
                Break::Forge,
                [1, 0, 0, 1, 0],
                "nobody published this: key 0",
            ),
        ] {
            let (sent, mut logs) = clean();
            fault.apply(&mut logs);
            let v = judge(&sent, &logs);
            assert_eq!(faults(&v), expected, "{fault:?}");
            assert!(!v.is_clean());
            assert!(v.examples[0].starts_with(words), "{:?}", v.examples);
        }
    }

    #[test]
    fn a_key_that_changes_lanes_is_out_of_order() {
        let (sent, mut logs) = clean();
        let moved = logs[0].pop().unwrap();
        logs[1].push(moved);
        assert_eq!(faults(&judge(&sent, &logs)), [0, 0, 1, 0, 0]);
    }

    #[test]
    fn what_nobody_can_have_published_is_a_stranger() {
        let (sent, mut logs) = clean();
        for name in [
            Name::STRANGER,
            Name { key: 0, seq: 3 },
            Name {
                key: 0,
                seq: u32::MAX,
            },
        ] {
            let like = logs[0][0];
            logs[0].push(Handled { name, ..like });
        }
        assert_eq!(faults(&judge(&sent, &logs)), [0, 0, 0, 3, 0]);
    }

    #[test]
    fn a_failed_publish_is_a_fault_but_its_message_may_be_handled_or_not() {
        let (mut sent, mut logs) = clean();
        sent[0][0] = StreamId::MIN;
        assert_eq!(faults(&judge(&sent, &logs)), [0, 0, 0, 0, 1]);
        Break::Lose.apply(&mut logs);
        let v = judge(&sent, &logs);
        assert_eq!(faults(&v), [0, 0, 0, 0, 1]);
        assert_eq!((v.published, v.handled), (2999, 2999));
    }

    #[test]
    fn a_flood_of_findings_is_counted_whole_and_shown_in_part() {
        let (sent, _) = clean();
        let v = judge(&sent, &[]);
        assert_eq!((v.lost, v.examples.len()), (3000, EXAMPLES));
    }
}
