//! Values of the position hashes: how far a consumer has come, how many entries that makes, and where
//! somebody wants it to go on instead.

use std::{fmt, time::SystemTime};

use super::{
    decimal::{self, DIGITS_MAX},
    id::{ID_MAX, StreamId},
    identity::{GUID_LEN, InstanceId},
};
use crate::clock::{RoundTrip, parse_moment};

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

/// Somebody wants a partition to go on elsewhere: `<id>|<moment>`, field `__reset:<partition>` of the
/// position hash, until its owner has moved there. Displayed as it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ResetMarker {
    /// The position to be: what comes after it is read next.
    pub(crate) target: StreamId,
    /// When it was asked for; `None` when the marker does not say.
    pub(crate) issued: Option<SystemTime>,
}

impl ResetMarker {
    /// What the name of its field begins with; the partition follows.
    pub(crate) const FIELD: &str = "__reset:";

    /// `None` when the id cannot be read: such a marker asks for nothing.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let (target, issued) = split_at_byte(value, b'|');
        let issued = issued.and_then(|text| parse_moment(str::from_utf8(text).ok()?).ok());
        Some(Self {
            target: StreamId::parse(target)?,
            issued,
        })
    }
}

impl fmt::Display for ResetMarker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.target)?;
        self.issued
            .map_or(Ok(()), |t| write!(f, "|{}", RoundTrip(t)))
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
    use std::time::{Duration, UNIX_EPOCH};

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
    fn markers_are_written_as_peers_do_and_read_without_their_time_too() {
        let target = StreamId::new(1_699_999_999_999, i64::MAX as u64);
        let issued = parse_moment("2026-11-29T20:21:00.1945215Z").ok();
        let marker = ResetMarker { target, issued };
        let text = "1699999999999-9223372036854775807|2026-11-29T20:21:00.1945215+00:00";
        assert_eq!(marker.to_string(), text);
        assert_eq!(ResetMarker::parse(text.as_bytes()), Some(marker));
        let timeless = ResetMarker {
            target: StreamId::MIN,
            issued: None,
        };
        assert_eq!(timeless.to_string(), "0-0");
        for value in ["0-0", "0-0|", "0-0|yesterday", "0-0|\u{e9}"] {
            assert_eq!(ResetMarker::parse(value.as_bytes()), Some(timeless));
        }
        for value in ["", "not-an-id", "5", "$", "|2026-11-29T20:21:00Z", " 5-0"] {
            assert_eq!(ResetMarker::parse(value.as_bytes()), None, "{value}");
        }
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
            let marker = ResetMarker { target: id, issued: Some(UNIX_EPOCH + Duration::from_millis(ms >> 24)) };
            prop_assert_eq!(ResetMarker::parse(marker.to_string().as_bytes()), Some(marker));
            let position = PositionValue { id, writer: InstanceId::derive(&name) };
            let mut buf = [0; POSITION_MAX];
            prop_assert_eq!(PositionValue::parse(position.encode(&mut buf)), Some(position));
            let ordinal = Ordinal { id, entries };
            let mut buf = [0; ORDINAL_MAX];
            prop_assert_eq!(Ordinal::parse(ordinal.encode(&mut buf)), Some(ordinal));
        }
    }
}
