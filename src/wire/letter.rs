//! A dead letter: the fields of a message as they were, behind fields that say what became of it.
//!
//! The letter's own fields come first. The first of them, `!`, says how many they are, itself included;
//! what follows is the message, whatever its fields are called. Own fields are found by name among so many,
//! and unknown ones are passed over.
//!
//! | field | what it holds |
//! |---|---|
//! | `!` | how many own fields there are |
//! | `!since`, `!until` | when it failed first and last, in milliseconds of the server's clock |
//! | `!topic`, `!partition` | where it comes from |
//! | `!first` | the id it had when it was published first, before any replay |
//! | `!last` | the id it had there |
//! | `!attempts` | how often it was handed over again because the policy said so |
//! | `!deliveries` | how often it was handed over in all |
//! | `!error` | the error, of 1 KiB at most |
//! | `!consumer` | whose message it was |
//! | `!reason` | a [`DeadLetterReason`] |
//! | `!payload` | of a body that was kept apart, the [`Reference`](super::Reference) to it; the letter has the body itself, in its place. Absent when it was not |
//! | `!omitted` | how many fields of the message were too many to keep; absent when there are none |

use super::id::StreamId;

/// The header under which a replayed message keeps the id it had when it was published first.
pub(crate) const FIRST_ID: &str = "streamlane-first-id";

/// The header that marks a message which was replayed without the body that it had, for that was lost. It says how
/// many bytes it had.
pub(crate) const PAYLOAD_MISSING: &str = "streamlane-payload-missing";

/// More fields of one message are not kept: a script takes no more arguments.
pub(crate) const MOST_FIELDS: usize = 3000;

/// The bytes of an error that are kept, at most.
const MOST_ERROR: usize = 1024;

/// How many own fields there are at least.
const OWN: usize = 12;

/// Why a message became a dead letter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum DeadLetterReason {
    /// It failed whenever it was handed over, as often as the policy allows.
    Retries,
    /// It was delivered too often without a result, as one that kills its process.
    Deliveries,
    /// The handler, or the classify hook, asked for it.
    Handler,
    /// It is no proper message; see [`Malformed`](crate::Malformed).
    Malformed,
    /// Its body was kept apart (`ClaimCheck`), and is gone.
    PayloadMissing,
}

impl DeadLetterReason {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Retries, "retries"),
        (Self::Deliveries, "deliveries"),
        (Self::Handler, "handler"),
        (Self::Malformed, "malformed"),
        (Self::PayloadMissing, "payload-missing"),
    ];

    /// As it is stored.
    pub fn as_str(self) -> &'static str {
        let found = Self::ALL.iter().find(|(reason, _)| *reason == self);
        found.map_or("", |(_, text)| text)
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let found = Self::ALL.iter().find(|(_, t)| t.as_bytes() == text);
        found.map(|(reason, _)| *reason)
    }
}

impl std::fmt::Display for DeadLetterReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What is said of a message when it becomes a dead letter. The script that writes it adds the times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Letter<'a> {
    pub(crate) topic: &'a str,
    pub(crate) partition: u32,
    pub(crate) first: StreamId,
    pub(crate) last: StreamId,
    pub(crate) attempts: u32,
    pub(crate) deliveries: u32,
    /// Of any length.
    pub(crate) error: &'a str,
    pub(crate) consumer: &'a str,
    pub(crate) reason: DeadLetterReason,
    /// How many fields of the message are not kept.
    pub(crate) omitted: usize,
    /// What referred to its body before the letter had it.
    pub(crate) payload: Option<&'a [u8]>,
}

impl Letter<'_> {
    /// How many own fields it has.
    pub(crate) fn own(&self) -> usize {
        OWN + usize::from(self.omitted > 0) + usize::from(self.payload.is_some())
    }

    /// The own fields but for the number of them and the times.
    pub(crate) fn pairs(&self) -> Vec<(&'static str, String)> {
        let mut pairs = vec![
            ("!topic", self.topic.to_owned()),
            ("!partition", self.partition.to_string()),
            ("!first", self.first.to_string()),
            ("!last", self.last.to_string()),
            ("!attempts", self.attempts.to_string()),
            ("!deliveries", self.deliveries.to_string()),
            ("!error", cut(self.error).to_owned()),
            ("!consumer", self.consumer.to_owned()),
            ("!reason", self.reason.as_str().to_owned()),
        ];
        if let Some(payload) = self.payload {
            pairs.push(("!payload", String::from_utf8_lossy(payload).into_owned()));
        }
        if self.omitted > 0 {
            pairs.push(("!omitted", self.omitted.to_string()));
        }
        pairs
    }
}

/// The beginning of a text, of 1 KiB at most and of whole characters.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MOST_ERROR)]
}

/// A dead letter as it was read: what it says, and the fields of the message.
#[derive(Debug, Default)]
pub(crate) struct ReadLetter {
    pub(crate) since_ms: u64,
    pub(crate) until_ms: u64,
    pub(crate) topic: String,
    pub(crate) partition: u32,
    pub(crate) first: StreamId,
    pub(crate) last: StreamId,
    pub(crate) attempts: u32,
    pub(crate) deliveries: u32,
    pub(crate) error: String,
    pub(crate) consumer: String,
    pub(crate) reason: Option<DeadLetterReason>,
    pub(crate) omitted: usize,
    /// Whether its body was kept apart before the letter had it.
    pub(crate) was_apart: bool,
    pub(crate) fields: Vec<(Vec<u8>, Vec<u8>)>,
}

impl ReadLetter {
    /// `None` when it is no dead letter.
    pub(crate) fn parse(fields: Vec<(Vec<u8>, Vec<u8>)>) -> Option<Self> {
        let (name, own) = fields.first()?;
        if name != b"!" {
            return None;
        }
        let own: usize = number(own)?;
        if own < OWN || own > fields.len() {
            return None;
        }
        let mut letter = Self::default();
        let mut fields = fields.into_iter();
        for (name, value) in fields.by_ref().take(own).skip(1) {
            let text = || String::from_utf8_lossy(&value).into_owned();
            match &name[..] {
                b"!since" => letter.since_ms = number(&value)?,
                b"!until" => letter.until_ms = number(&value)?,
                b"!topic" => letter.topic = text(),
                b"!partition" => letter.partition = number(&value)?,
                b"!first" => letter.first = StreamId::parse(&value)?,
                b"!last" => letter.last = StreamId::parse(&value)?,
                b"!attempts" => letter.attempts = number(&value)?,
                b"!deliveries" => letter.deliveries = number(&value)?,
                b"!error" => letter.error = text(),
                b"!consumer" => letter.consumer = text(),
                b"!reason" => letter.reason = DeadLetterReason::parse(&value),
                b"!payload" => letter.was_apart = true,
                b"!omitted" => letter.omitted = number(&value)?,
                _ => {}
            }
        }
        letter.fields = fields.collect();
        Some(letter)
    }
}

fn number<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter() -> Letter<'static> {
        Letter {
            topic: "orders",
            partition: 3,
            first: StreamId::new(5, 1),
            last: StreamId::new(9, 0),
            attempts: 2,
            deliveries: 3,
            error: "no such account",
            consumer: "billing",
            reason: DeadLetterReason::Retries,
            omitted: 0,
            payload: None,
        }
    }

    fn stored(letter: &Letter<'_>, message: &[(&str, &str)]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut all = vec![
            ("!", letter.own().to_string()),
            ("!since", "100".into()),
            ("!until", "200".into()),
        ];
        all.extend(letter.pairs());
        assert_eq!(all.len(), letter.own());
        let own = all.into_iter().map(|(n, v)| (n.into(), v.into_bytes()));
        let message = message.iter().map(|(n, v)| ((*n).into(), (*v).into()));
        own.chain(message).collect()
    }

    #[test]
    fn a_letter_comes_back_with_its_message_whatever_the_fields_of_that_are_called() {
        let message = [
            ("!error", "mine"),
            ("b", "x"),
            ("b", "y"),
            ("!", "13"),
            ("", ""),
        ];
        for omitted in [0, 7] {
            let written = Letter {
                omitted,
                ..letter()
            };
            let read = ReadLetter::parse(stored(&written, &message)).unwrap();
            assert_eq!((&*read.topic, read.partition), ("orders", 3));
            assert_eq!((read.first, read.last), (written.first, written.last));
            assert_eq!((read.attempts, read.deliveries), (2, 3));
            assert_eq!((read.since_ms, read.until_ms), (100, 200));
            assert_eq!(
                (&*read.error, &*read.consumer),
                ("no such account", "billing")
            );
            assert_eq!(read.reason, Some(DeadLetterReason::Retries));
            assert_eq!(read.omitted, omitted);
            let fields: Vec<_> = read.fields.iter().map(|(n, v)| (&n[..], &v[..])).collect();
            let same = message.map(|(n, v)| (n.as_bytes(), v.as_bytes()));
            assert_eq!(fields, same);
        }
    }

    #[test]
    fn what_is_no_letter_is_none() {
        assert!(ReadLetter::parse(Vec::new()).is_none());
        let all = stored(&letter(), &[]);
        assert!(ReadLetter::parse(all[1..].to_vec()).is_none());
        assert!(ReadLetter::parse(all[..5].to_vec()).is_none(), "cut short");
        let mut odd = all;
        odd[0].1 = b"1".to_vec();
        assert!(ReadLetter::parse(odd).is_none());
    }

    #[test]
    fn an_error_is_cut_between_characters() {
        let long = "ä".repeat(600);
        assert_eq!(cut(&long).len(), 1024);
        let odd = format!("x{long}");
        assert_eq!(cut(&odd).len(), 1023);
        assert_eq!(cut("short"), "short");
        for (reason, text) in DeadLetterReason::ALL {
            assert_eq!(DeadLetterReason::parse(text.as_bytes()), Some(reason));
            assert_eq!(reason.to_string(), text);
        }
    }
}
