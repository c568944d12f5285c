//! Claim-check: a large body lies in a key of its own, its *payload*, and the entry refers to it.
//!
//! Such an entry has an empty body (field `b`) and a field `x` with the reference: the id of the payload, which
//! is 32 hexadecimal digits in lower case, a blank, and the length of the body in bytes, a decimal of at most
//! nine digits that begins with no zero. The payload is the string under `P x:{T}:ID`, or `P x:{stream key}:ID` where
//! the partitions of the topic are spread over a cluster. It always has a time to live.
//!
//! A reference names no key. The key is built from the prefix and the topic of whoever reads, so whatever an entry
//! says, it leads to nothing but payloads of its own topic. Beside a body that is not empty a field `x` means
//! nothing: it is somebody else's.

use super::{decimal, identity::random_bytes};

/// The digits of an id.
const ID: usize = 32;

/// The most digits of a length.
const LENGTH: usize = 9;

/// The bytes of the longest reference.
pub(crate) const REFERENCE_MAX: usize = ID + 1 + LENGTH;

/// The longest body that a publisher takes, whatever `MaxMessageBytes` says.
const MOST_BYTES: u64 = 512 << 20;

/// What an entry says of its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reference {
    id: [u8; ID],
    len: u32,
}

impl Reference {
    /// A reference to a payload that nobody else has written, of so many bytes.
    pub(crate) fn mint(len: usize) -> Self {
        let mut id = [0; ID];
        for (digits, byte) in id.chunks_exact_mut(2).zip(random_bytes()) {
            for (digit, half) in digits.iter_mut().zip([byte >> 4, byte & 0x0f]) {
                *digit = b"0123456789abcdef"[usize::from(half)];
            }
        }
        Self {
            id,
            len: len as u32,
        }
    }

    /// `None` for everything that [`encode`](Self::encode) does not write.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let (id, rest) = text.split_first_chunk::<ID>()?;
        let length = rest.strip_prefix(b" ")?;
        let is_plain = |id: &[u8]| id.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if !is_plain(id) || length.len() > LENGTH || length.first() == Some(&b'0') {
            return None;
        }
        let len = decimal::parse(length).filter(|n| *n <= MOST_BYTES)?;
        Some(Self {
            id: *id,
            len: len as u32,
        })
    }

    /// As it stands in the field `x`.
    pub(crate) fn encode(self, buf: &mut [u8; REFERENCE_MAX]) -> &[u8] {
        buf[..ID].copy_from_slice(&self.id);
        buf[ID] = b' ';
        let end = decimal::write(buf, ID + 1, u64::from(self.len));
        &buf[..end]
    }

    /// What the payload's key ends in.
    pub(crate) fn id(&self) -> &[u8] {
        &self.id
    }

    /// How many bytes the body has.
    pub(crate) fn len(self) -> usize {
        self.len as usize
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const GOOD: &str = "0123456789abcdef0123456789abcdef";

    fn parse(text: impl AsRef<[u8]>) -> Option<usize> {
        Reference::parse(text.as_ref()).map(Reference::len)
    }

    #[test]
    fn a_reference_has_one_spelling() {
        assert_eq!(parse(format!("{GOOD} 65537")), Some(65537));
        assert_eq!(parse(format!("{GOOD} 1")), Some(1));
        assert_eq!(parse(format!("{GOOD} 536870912")), Some(512 << 20));
        for length in [
            "0",
            "007",
            "536870913",
            "9999999999",
            "",
            "-1",
            "+1",
            "1 ",
            " 1",
            "1e3",
            "1\0",
        ] {
            assert_eq!(parse(format!("{GOOD} {length}")), None, "{length:?}");
        }
        let (short, long) = (&GOOD[1..], format!("{GOOD}0"));
        let capital = GOOD.to_uppercase();
        let foreign = format!("re:x:{{other}}:{}", &GOOD[..20]);
        for id in [
            "",
            "*",
            short,
            &long,
            &capital,
            &foreign,
            &GOOD.replace('0', "*"),
            &GOOD.replace('0', "/"),
        ] {
            assert_eq!(parse(format!("{id} 5")), None, "{id:?}");
        }
        for text in [
            GOOD.to_owned(),
            format!("{GOOD}:5"),
            format!("{GOOD}  5"),
            format!("{GOOD}5"),
        ] {
            assert_eq!(parse(&text), None, "{text:?}");
        }
    }

    #[test]
    fn no_two_are_minted_alike() {
        let minted: BTreeSet<_> = (0..1000).map(|n| Reference::mint(n + 1).id).collect();
        assert_eq!(minted.len(), 1000);
    }

    proptest! {
        #[test]
        fn what_is_minted_is_read_and_what_is_read_is_written_the_same(len in 1..=512usize << 20) {
            let minted = Reference::mint(len);
            let mut buf = [0; REFERENCE_MAX];
            prop_assert_eq!(Reference::parse(minted.encode(&mut buf)), Some(minted));
        }

        #[test]
        fn bytes_are_read_only_where_they_would_be_written(text in proptest::collection::vec(any::<u8>(), 0..50)) {
            if let Some(read) = Reference::parse(&text) {
                let mut buf = [0; REFERENCE_MAX];
                prop_assert_eq!(read.encode(&mut buf), &text[..]);
            }
        }
    }
}
