//! Values of the position hashes: how far a consumer has come, and how many entries that makes.

use super::{
    decimal::{self, DIGITS_MAX},
    id::{ID_MAX, StreamId},
    identity::{GUID_LEN, InstanceId},
};

/// Bytes of the longest position value.
pub(crate) const POSITION_MAX: usize = ID_MAX + 1 + GUID_LEN;

/// Bytes of the longest ordinal value.
pub(crate) const ORDINAL_MAX: usize = ID_MAX + 1 + DIGITS_MAX;

/// A stored position: `<id>|<instance>`, field `<partition>` of the position hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PositionValue {
    /// Everything up to here is finished.
    pub(crate) id: StreamId,
    /// Who stored it; all zeros when the value does not say.
    pub(crate) writer: InstanceId,
}

impl PositionValue {
    /// `None` when the id cannot be read: such a field is to be treated as if it were not there.
    /// A missing or unreadable instance is no reason to lose a position.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let (id, writer) = split_at_byte(value, b'|');
        Some(Self {
            id: StreamId::parse(id)?,
            writer: writer.and_then(InstanceId::parse).unwrap_or_default(),
        })
    }

    /// Writes the value at the front of `buf` and returns what was written.
    pub(crate) fn encode(self, buf: &mut [u8; POSITION_MAX]) -> &[u8] {
        let bar = self.id.write(buf, 0);
        buf[bar] = b'|';
        let end = bar + 1 + GUID_LEN;
        buf[bar + 1..end].copy_from_slice(&self.writer.encode());
        &buf[..end]
    }
}

/// How many entries the stream ever held at or before a position: `<id> <n>`, field
/// `<partition>:ordinal` of the diagnostics hash. It counts only while `id` is the stored position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ordinal {
    /// The position that was counted.
    pub(crate) id: StreamId,
    /// Entries at or before it.
    pub(crate) entries: u64,
}

impl Ordinal {
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let (id, entries) = split_at_byte(value, b' ');
        Some(Self {
            id: StreamId::parse(id)?,
            entries: decimal::parse(entries?)?,
        })
    }

    /// Writes the value at the front of `buf` and returns what was written.
    pub(crate) fn encode(self, buf: &mut [u8; ORDINAL_MAX]) -> &[u8] {
        let space = self.id.write(buf, 0);
        buf[space] = b' ';
        let end = decimal::write(buf, space + 1, self.entries);
        &buf[..end]
    }
}

/// What lies before the first `at`, and what lies behind it.
fn split_at_byte(text: &[u8], at: u8) -> (&[u8], Option<&[u8]>) {
    match text.iter().position(|b| *b == at) {
        Some(i) => (&text[..i], Some(&text[i + 1..])),
        None => (text, None),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn positions_are_read_generously_but_never_guessed() {
        let writer = InstanceId::derive("svc-0");
        let guid = writer.to_string();
        let id = StreamId::new(1_726_000_000_000, 42);
        let zero = InstanceId::ZERO;
        for (value, expected) in [
            (format!("1726000000000-42|{guid}"), Some(writer)),
            (
                format!("1726000000000-42|{}", guid.to_uppercase()),
                Some(writer),
            ),
            ("1726000000000-42".into(), Some(zero)),
            ("1726000000000-42|".into(), Some(zero)),
            ("1726000000000-42|not a guid".into(), Some(zero)),
            (format!("1726000000000-42|{guid}|"), Some(zero)),
            (format!("|{guid}"), None),
            (format!("1726000000000|{guid}"), None),
            (format!(" 1726000000000-42|{guid}"), None),
            (String::new(), None),
        ] {
            let expected = expected.map(|writer| PositionValue { id, writer });
            assert_eq!(PositionValue::parse(value.as_bytes()), expected, "{value}");
        }
    }

    #[test]
    fn the_longest_values_fit_their_buffers() {
        let (id, writer) = (StreamId::MAX, InstanceId::ADMIN);
        let position = PositionValue { id, writer };
        assert_eq!(
            position.encode(&mut [0; POSITION_MAX]),
            b"18446744073709551615-18446744073709551615|6f72616e-6765-4164-6d69-6e5265736574"
        );
        let ordinal = Ordinal {
            id,
            entries: u64::MAX,
        };
        let mut buf = [0; ORDINAL_MAX];
        assert_eq!(ordinal.encode(&mut buf).len(), ORDINAL_MAX);
        assert_eq!(Ordinal::parse(&buf), Some(ordinal));
    }

    #[test]
    fn what_is_no_ordinal_is_none() {
        for value in ["", "1-0", "1-0 ", "1-0  5", "1-0 -5", "1-0 5 ", "1 5", " 5"] {
            assert_eq!(Ordinal::parse(value.as_bytes()), None, "{value}");
        }
    }

    proptest! {
        #[test]
        fn values_round_trip(ms: u64, seq: u64, entries: u64, name in ".{0,8}") {
            let id = StreamId::new(ms, seq);
            let position = PositionValue { id, writer: InstanceId::derive(&name) };
            let mut buf = [0; POSITION_MAX];
            prop_assert_eq!(PositionValue::parse(position.encode(&mut buf)), Some(position));
            let ordinal = Ordinal { id, entries };
            let mut buf = [0; ORDINAL_MAX];
            prop_assert_eq!(Ordinal::parse(ordinal.encode(&mut buf)), Some(ordinal));
        }
    }
}
