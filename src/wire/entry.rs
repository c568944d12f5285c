//! The fields of an entry, one letter each, and the message they make.

use std::{error, fmt};

use smallvec::SmallVec;

use crate::error::{Error, ErrorKind};

const BODY: &[u8; 1] = b"b";
const TYPE: &[u8; 1] = b"t";
const KEY: &[u8; 1] = b"k";
const CORRELATION_ID: &[u8; 1] = b"c";
const TRACEPARENT: &[u8; 1] = b"p";
const HEADERS: &[u8; 1] = b"h";
/// Where a body is that is kept apart.
pub(crate) const REFERENCE: &[u8; 1] = b"x";

/// Which field of a message a name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Field {
    Body,
    Type,
    Key,
    CorrelationId,
    Traceparent,
    Headers,
    /// Where the body is, if it is kept apart; see [`Reference`](super::Reference).
    Reference,
    /// A field somebody else gave a meaning to. Readers pass over it.
    Other,
}

impl Field {
    #[inline]
    pub(crate) const fn of(name: &[u8]) -> Self {
        match name {
            b"b" => Self::Body,
            b"t" => Self::Type,
            b"k" => Self::Key,
            b"c" => Self::CorrelationId,
            b"p" => Self::Traceparent,
            b"h" => Self::Headers,
            b"x" => Self::Reference,
            _ => Self::Other,
        }
    }
}

/// What a message is made of on the wire, borrowed from wherever it lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Entry<'a> {
    pub(crate) body: &'a [u8],
    pub(crate) message_type: &'a [u8],
    /// Empty when the message has no key.
    pub(crate) key: &'a [u8],
    /// Empty when the message has none.
    pub(crate) correlation_id: &'a [u8],
    /// Told apart from an empty one.
    pub(crate) traceparent: Option<&'a [u8]>,
    /// The packed block; see [`Headers`](super::Headers). Not checked.
    pub(crate) headers: &'a [u8],
}

impl<'a> Entry<'a> {
    /// The fields of a topic entry: name and value, in the order they are written.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let mut pairs = SmallVec::<[(&'a [u8], &'a [u8]); 6]>::new();
        self.each_pair(|name, value| pairs.push((name, value)));
        pairs.into_iter()
    }

    /// As [`pairs`](Self::pairs), for the way of every message.
    #[inline]
    pub(crate) fn each_pair(&self, mut pair: impl FnMut(&'static [u8; 1], &'a [u8])) {
        pair(BODY, self.body);
        pair(TYPE, self.message_type);
        pair(KEY, self.key);
        if !self.correlation_id.is_empty() {
            pair(CORRELATION_ID, self.correlation_id);
        }
        if let Some(traceparent) = self.traceparent {
            pair(TRACEPARENT, traceparent);
        }
        if !self.headers.is_empty() {
            pair(HEADERS, self.headers);
        }
    }

    /// The fields of an entry of a state, where the key says nothing new.
    pub(crate) fn state_pairs(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        self.pairs().filter(|(name, _)| name != KEY)
    }

    /// The bytes of all its values together.
    pub(crate) fn size(&self) -> usize {
        let traceparent = self.traceparent.unwrap_or_default();
        let strings = [
            self.body,
            self.message_type,
            self.key,
            self.correlation_id,
            traceparent,
            self.headers,
        ];
        strings.iter().map(|s| s.len()).sum()
    }

    /// How many [`pairs`](Self::pairs) there are.
    pub(crate) fn pair_count(&self) -> usize {
        3 + usize::from(!self.correlation_id.is_empty())
            + usize::from(self.traceparent.is_some())
            + usize::from(!self.headers.is_empty())
    }

    /// The message that names and values make, in whatever order they come. The last value of a
    /// name counts, and unknown names are passed over, as is a reference to where the body is.
    pub(crate) fn from_pairs(
        pairs: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Result<Self, Malformed> {
        let mut entry = Self::default();
        let (mut body, mut message_type) = (None, None);
        for (name, value) in pairs {
            match Field::of(name) {
                Field::Body => body = Some(value),
                Field::Type => message_type = Some(value),
                Field::Key => entry.key = value,
                Field::CorrelationId => entry.correlation_id = value,
                Field::Traceparent => entry.traceparent = Some(value),
                Field::Headers => entry.headers = value,
                Field::Reference | Field::Other => {}
            }
        }
        entry.body = body.ok_or(Malformed::NoBody)?;
        entry.message_type = message_type.ok_or(Malformed::NoType)?;
        Ok(entry)
    }
}

/// Why an entry of a stream is not a message.
///
/// Converts into an [`Error`] of kind [`ErrorKind::Malformed`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Malformed {
    /// It has no body, field `b`. An empty one would do.
    NoBody,
    /// It has no message type, field `t`. An empty one would do.
    NoType,
    /// Its last field has a name but no value.
    OddFields,
    /// Its header block, field `h`, is cut short or holds something else.
    Headers,
    /// Its body is empty, and its field `x`, which says where a body is that is kept apart, says nothing that
    /// a publisher writes. Nothing was looked up.
    Reference,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoBody => "the entry has no body (field `b`)",
            Self::NoType => "the entry has no message type (field `t`)",
            Self::OddFields => "the entry ends with a field name that has no value",
            Self::Headers => "the header block of the entry (field `h`) is broken",
            Self::Reference => "the reference to its body (field `x`) is broken",
        })
    }
}

impl error::Error for Malformed {}

impl From<Malformed> for Error {
    fn from(why: Malformed) -> Self {
        Self::new(ErrorKind::Malformed, "decode", why.to_string())
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, option, prelude::*};

    use super::*;

    fn text<'a>(pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> String {
        let words = pairs.flat_map(|(n, v)| [n, v]).map(String::from_utf8_lossy);
        words.collect::<Vec<_>>().join(" ")
    }

    const FULL: Entry<'static> = Entry {
        body: b"{}",
        message_type: b"OrderPlaced",
        key: b"order-1",
        correlation_id: b"c1",
        traceparent: Some(b"00-1-2-01"),
        headers: b"6:source3:web",
    };

    #[test]
    fn fields_are_written_in_one_order_and_absent_ones_left_out() {
        assert_eq!(
            text(FULL.pairs()),
            "b {} t OrderPlaced k order-1 c c1 p 00-1-2-01 h 6:source3:web"
        );
        let least = Entry {
            message_type: b"T",
            ..Entry::default()
        };
        assert_eq!(text(least.pairs()), "b  t T k ");
        let keyless = least.pairs().filter(|(name, _)| *name != KEY);
        assert_eq!(Entry::from_pairs(keyless), Ok(least));
    }

    #[test]
    fn fields_are_found_by_name_whatever_their_order() {
        let pairs: &[(&[u8], &[u8])] = &[
            (b"zz", b"?"),
            (b"t", b"Old"),
            (b"k", b"k1"),
            (b"", b"?"),
            (b"t", b"New"),
            (b"B", b"?"),
            (b"bb", b"?"),
            (b"p", b""),
            (b"b", b"body"),
        ];
        let entry = Entry::from_pairs(pairs.iter().copied()).unwrap();
        assert_eq!(
            entry,
            Entry {
                body: b"body",
                message_type: b"New",
                key: b"k1",
                traceparent: Some(b""),
                ..Entry::default()
            }
        );
        assert_eq!(Field::of(b"y"), Field::Other);
        assert_eq!(Field::of(REFERENCE), Field::Reference);
    }

    #[test]
    fn a_message_has_a_body_and_a_type() {
        let of = |pairs: &[(&'static [u8], &'static [u8])]| Entry::from_pairs(pairs.to_vec());
        assert_eq!(of(&[]), Err(Malformed::NoBody));
        assert_eq!(of(&[(b"t", b"T")]), Err(Malformed::NoBody));
        assert_eq!(of(&[(b"b", b"x")]), Err(Malformed::NoType));
        assert_eq!(of(&[(b"t", b""), (b"b", b"")]), Ok(Entry::default()));
        let e = Error::from(Malformed::NoType);
        assert_eq!(e.kind(), ErrorKind::Malformed);
        assert!(e.to_string().contains("`t`"), "{e}");
    }

    #[test]
    fn a_large_body_comes_back_byte_for_byte() {
        let body: Vec<u8> = (0..1u32 << 20).map(|i| (i % 251) as u8).collect();
        let entry = Entry {
            body: &body,
            ..FULL
        };
        assert_eq!(Entry::from_pairs(entry.pairs()), Ok(entry));
    }

    proptest! {
        #[test]
        fn entries_round_trip(
            fields in prop::array::uniform5(vec(any::<u8>(), 0..20)),
            traceparent in option::of(vec(any::<u8>(), 0..60)),
        ) {
            let [body, message_type, key, correlation_id, headers] = &fields;
            let traceparent = traceparent.as_deref();
            let entry = Entry { body, message_type, key, correlation_id, traceparent, headers };
            prop_assert_eq!(Entry::from_pairs(entry.pairs()), Ok(entry));
            prop_assert_eq!(entry.pairs().count(), entry.pair_count());
        }

        #[test]
        fn any_pairs_make_a_message_or_say_why_not(
            pairs in vec((vec(prop::sample::select(&b"btkcphx"[..]), 0..3), vec(any::<u8>(), 0..9)), 0..12),
        ) {
            let last = |name: &[u8]| pairs.iter().rfind(|(n, _)| n == name).map(|(_, v)| &v[..]);
            let expected = match (last(BODY), last(TYPE)) {
                (None, _) => Err(Malformed::NoBody),
                (_, None) => Err(Malformed::NoType),
                (Some(body), Some(message_type)) => Ok(Entry {
                    body,
                    message_type,
                    key: last(KEY).unwrap_or_default(),
                    correlation_id: last(CORRELATION_ID).unwrap_or_default(),
                    traceparent: last(TRACEPARENT),
                    headers: last(HEADERS).unwrap_or_default(),
                }),
            };
            let read = Entry::from_pairs(pairs.iter().map(|(n, v)| (&n[..], &v[..])));
            prop_assert_eq!(read, expected);
        }
    }
}
