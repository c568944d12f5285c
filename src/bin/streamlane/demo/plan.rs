//! What a run publishes. Everything follows from a message's number, so publishers, handlers and
//! verification agree without telling each other anything.

use std::ops::Range;

use serde::Serialize;

pub(crate) const PUBLISHERS: usize = 2;
pub(crate) const PARTITIONS: u32 = 4;
pub(crate) const KEYS: usize = 1000;
/// How many messages one `publish_batch` takes.
pub(crate) const BATCH: usize = 500;
pub(crate) const BODY_BYTES: usize = 100;

const KEYS_EACH: usize = KEYS / PUBLISHERS;

/// Which message: the `seq`-th of its key, counted from 0. This is also what travels: the key as the
/// message's key, `seq` in its body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Name {
    pub(crate) key: u32,
    pub(crate) seq: u32,
}

impl Name {
    /// What a message is called that no publisher of ours has sent.
    pub(crate) const STRANGER: Self = Self {
        key: u32::MAX,
        seq: u32::MAX,
    };

    /// The `index`-th message of a publisher. Each takes its own keys in turn, so a key is always
    /// published by the same thread.
    pub(crate) fn of(publisher: usize, index: usize) -> Self {
        Self {
            key: (index % KEYS_EACH * PUBLISHERS + publisher) as u32,
            seq: (index / KEYS_EACH) as u32,
        }
    }

    /// The other way round: the publisher and its index.
    pub(crate) fn place(self) -> (usize, usize) {
        let (key, seq) = (self.key as usize, self.seq as usize);
        (key % PUBLISHERS, seq * KEYS_EACH + key / PUBLISHERS)
    }

    /// Reads a message as [`write_body`] and [`key_text`] made it.
    pub(crate) fn read(key: &[u8], body: &[u8]) -> Option<(Self, u64)> {
        let key = str::from_utf8(key.strip_prefix(b"key-")?).ok()?;
        let key = key.parse().ok().filter(|k| (*k as usize) < KEYS)?;
        let (seq, rest) = body.split_first_chunk()?;
        let seq = u32::from_le_bytes(*seq);
        let sent_ns = u64::from_le_bytes(*rest.first_chunk()?);
        Some((Self { key, seq }, sent_ns))
    }
}

pub(crate) fn key_text(key: usize) -> String {
    format!("key-{key:03}")
}

/// Where a message is in its key's sequence and when it was handed to the publisher; the rest is filler.
pub(crate) fn write_body(body: &mut [u8; BODY_BYTES], name: Name, sent_ns: u64) {
    body[..4].copy_from_slice(&name.seq.to_le_bytes());
    body[4..12].copy_from_slice(&sent_ns.to_le_bytes());
}

/// A way of publishing that is measured by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(crate) enum Phase {
    /// Each call sends one message and waits for its id.
    #[serde(rename = "one at a time")]
    Single,
    /// Each call sends [`BATCH`] messages.
    #[serde(rename = "in batches")]
    Batches,
}

/// How many messages there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) messages: usize,
    /// The first of them, to be published one at a time.
    pub(crate) singles: usize,
}

impl Plan {
    /// The indices a publisher sends in a phase.
    pub(crate) fn part(&self, publisher: usize, phase: Phase) -> Range<usize> {
        let singles = share(self.singles, publisher);
        match phase {
            Phase::Single => 0..singles,
            Phase::Batches => singles..singles + share(self.messages - self.singles, publisher),
        }
    }

    /// The phase a message belongs to.
    pub(crate) fn phase(&self, name: Name) -> Phase {
        let (publisher, index) = name.place();
        if index < share(self.singles, publisher) {
            Phase::Single
        } else {
            Phase::Batches
        }
    }
}

/// What of a total is one publisher's.
fn share(total: usize, publisher: usize) -> usize {
    (total + PUBLISHERS - 1 - publisher) / PUBLISHERS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_has_one_place_and_comes_back_from_the_wire_as_itself() {
        let plan = Plan {
            messages: 4321,
            singles: 1235,
        };
        let mut seen = std::collections::HashSet::new();
        for publisher in 0..PUBLISHERS {
            for phase in [Phase::Single, Phase::Batches] {
                for index in plan.part(publisher, phase) {
                    let name = Name::of(publisher, index);
                    assert_eq!(name.place(), (publisher, index));
                    assert_eq!(plan.phase(name), phase);
                    assert!(seen.insert((name.key, name.seq)));
                    let mut body = [b'.'; BODY_BYTES];
                    write_body(&mut body, name, 77 << 40);
                    let key = key_text(name.key as usize);
                    assert_eq!(
                        Name::read(key.as_bytes(), &body),
                        Some((name, 77 << 40)),
                        "{key}"
                    );
                }
            }
        }
        assert_eq!(seen.len(), plan.messages);
    }

    #[test]
    fn what_others_published_is_not_taken_for_ours() {
        let body = [0; BODY_BYTES];
        for key in ["", "key", "key-", "key-x", "key-1000", "key--1", "other-1"] {
            assert_eq!(Name::read(key.as_bytes(), &body), None, "{key}");
        }
        assert_eq!(Name::read(b"key-001", &body[..11]), None);
        assert!(Name::read(b"key-001", &body[..12]).is_some());
    }
}
