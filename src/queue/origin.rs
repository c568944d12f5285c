//! Where a message of the retry stream comes from: fields of its own in front of those of the message.
//!
//! The first of them, `!`, says how many they are, itself included; what follows is the message, whatever its
//! fields are called. Own fields are found by name among so many, and unknown ones are passed over.
//!
//! | field | what it holds |
//! |---|---|
//! | `!` | how many own fields there are |
//! | `!partition` | where it was published |
//! | `!first` | the id it had there |
//! | `!since` | when it failed first, in milliseconds of our clock; 0 where it did not |
//! | `!attempts` | how often it has been handed over again by policy, the time to come included |
//! | `!deliveries` | how often it was given to somebody so far; where that is not said, as often as it was tried |

use crate::{StreamId, batch::Record, net::resp::Cursor, wire::decimal};

/// What an entry was when it was published, and how it fared since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Origin {
    pub(super) partition: u32,
    pub(super) first: StreamId,
    pub(super) since_ms: u64,
    pub(super) attempts: u32,
    /// Those under ids of before included.
    pub(super) deliveries: u32,
}

/// How many own fields there are.
const OWN: usize = 6;

impl Origin {
    /// Of a message that begins anew, as one that is replayed does.
    pub(crate) fn anew(partition: u32, first: StreamId) -> Self {
        Self {
            partition,
            first,
            since_ms: 0,
            attempts: 0,
            deliveries: 0,
        }
    }

    /// The own fields, as they are stored.
    pub(crate) fn pairs(&self) -> [(&'static str, String); OWN] {
        [
            ("!", OWN.to_string()),
            ("!partition", self.partition.to_string()),
            ("!first", self.first.to_string()),
            ("!since", self.since_ms.to_string()),
            ("!attempts", self.attempts.to_string()),
            ("!deliveries", self.deliveries.to_string()),
        ]
    }

    /// Takes the own fields off a record that was read from the retry stream. `None`, and the record is as it
    /// was, when there are none: somebody else has put it there.
    pub(super) fn take_off(bytes: &[u8], record: &mut Record) -> Option<Self> {
        let mut c = Cursor::new(bytes, record.fields as usize);
        let mut pair = || {
            let name = c.text().ok()??;
            let value = c.text().ok()??;
            Some((name.of(bytes), value.of(bytes), c.at()))
        };
        let (name, own, _) = pair().filter(|_| record.pairs > 0)?;
        let own = u32::try_from(decimal::parse(own)?).ok()?;
        if name != b"!" || own == 0 || own > record.pairs {
            return None;
        }
        let (mut partition, mut first, mut at) = (None, None, 0);
        let (mut since_ms, mut attempts, mut deliveries) = (0, 0, None);
        for _ in 1..own {
            let (name, value, end) = pair()?;
            at = end;
            match name {
                b"!partition" => partition = u32::try_from(decimal::parse(value)?).ok(),
                b"!first" => first = StreamId::parse(value),
                b"!since" => since_ms = decimal::parse(value)?,
                b"!attempts" => attempts = u32::try_from(decimal::parse(value)?).ok()?,
                b"!deliveries" => deliveries = Some(u32::try_from(decimal::parse(value)?).ok()?),
                _ => {}
            }
        }
        let origin = Self {
            partition: partition?,
            first: first?,
            since_ms,
            attempts,
            deliveries: deliveries.unwrap_or(attempts),
        };
        record.fields = at as u32;
        record.pairs -= own;
        Some(origin)
    }
}
