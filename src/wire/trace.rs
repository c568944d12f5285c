//! The W3C trace context that travels with a message.

use std::{fmt, str};

/// A W3C `traceparent` of version 00, such as `00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01`.
///
/// Plain data of 55 bytes, so that making one costs no allocation.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Traceparent([u8; 55]);

impl Traceparent {
    /// Of a trace, a span in it, and flags (1: sampled).
    pub fn new(trace_id: [u8; 16], span_id: [u8; 8], flags: u8) -> Self {
        let mut text = *b"00-................................-................-..";
        hex(&mut text[3..35], &trace_id);
        hex(&mut text[36..52], &span_id);
        hex(&mut text[53..], &[flags]);
        Self(text)
    }

    /// Takes one that is written out. `None` when it is not of version 00, or names no trace or span.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes: [u8; 55] = text.as_bytes().try_into().ok()?;
        let lower_hex = |b: &u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
        let named = |part: &[u8]| part.iter().all(lower_hex) && part.iter().any(|b| *b != b'0');
        let whole = bytes.starts_with(b"00-")
            && named(&bytes[3..35])
            && bytes[35] == b'-'
            && named(&bytes[36..52])
            && bytes[52] == b'-'
            && bytes[53..].iter().all(lower_hex);
        whole.then_some(Self(bytes))
    }

    /// Written out.
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.0).unwrap_or_default()
    }

    /// What tells its span from others, as text.
    pub(crate) fn span_id(&self) -> &[u8] {
        &self.0[36..52]
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Traceparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Traceparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Traceparent({self})")
    }
}

fn hex(out: &mut [u8], bytes: &[u8]) {
    for (pair, byte) in out.chunks_exact_mut(2).zip(bytes) {
        pair[0] = b"0123456789abcdef"[usize::from(byte >> 4)];
        pair[1] = b"0123456789abcdef"[usize::from(byte & 15)];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn what_is_made_of_numbers_is_what_was_written() {
        let trace = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes();
        let span = 0x00f0_67aa_0ba9_02b7_u64.to_be_bytes();
        let made = Traceparent::new(trace, span, 1);
        assert_eq!(made.as_str(), TEXT);
        assert_eq!(Traceparent::parse(TEXT), Some(made));
    }

    #[test]
    fn what_is_none_is_refused() {
        for bad in [
            "",
            "00-deadbeef",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01x",
        ] {
            assert_eq!(Traceparent::parse(bad), None, "{bad}");
        }
    }
}
