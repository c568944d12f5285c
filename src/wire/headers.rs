//! The header block of an entry: names and values in a row, each as its length in decimal, a colon
//! and its bytes, with nothing between them. `6:source3:web` is one header.

use std::{fmt, iter::FusedIterator};

use super::{decimal, entry::Malformed};
use crate::error::{Error, ErrorKind};

/// Headers of one message, at most.
const MAX_HEADERS: usize = 64;

/// Bytes of one packed block, at most.
const MAX_PACKED: usize = 8192;

/// The header by which a message asks to be handed over again less often than its consumer would.
const MAX_ATTEMPTS: &str = "streamlane-max-attempts";

/// Room for the value of that header.
pub(crate) const ATTEMPTS_MAX: usize = decimal::DIGITS_MAX;

/// That header, with its value written into `room`.
pub(crate) fn max_attempts(attempts: u32, room: &mut [u8; ATTEMPTS_MAX]) -> (&[u8], &[u8]) {
    let end = decimal::write(room, 0, attempts.into());
    (MAX_ATTEMPTS.as_bytes(), &room[..end])
}

/// Appends the packed form of `headers` to `out`: nothing when there are none.
///
/// Fails with [`ErrorKind::Argument`] beyond [`MAX_HEADERS`] or [`MAX_PACKED`], and then leaves `out`
/// as it was. What is being read is not held to these limits.
pub(crate) fn pack<N: AsRef<[u8]>, V: AsRef<[u8]>>(
    out: &mut Vec<u8>,
    headers: impl IntoIterator<Item = (N, V)>,
) -> Result<(), Error> {
    let start = out.len();
    for (i, (name, value)) in headers.into_iter().enumerate() {
        let (name, value) = (name.as_ref(), value.as_ref());
        // measured first, so that a huge value is refused without being copied
        let size = out.len() - start + packed_len(name) + packed_len(value);
        if i == MAX_HEADERS || size > MAX_PACKED {
            out.truncate(start);
            return Err(too_many(i, size));
        }
        pack_one(out, name);
        pack_one(out, value);
    }
    Ok(())
}

fn packed_len(field: &[u8]) -> usize {
    decimal::width(field.len() as u64) + 1 + field.len()
}

/// Appends one header's name or value, whatever the limits say.
pub(crate) fn pack_one(out: &mut Vec<u8>, field: &[u8]) {
    let mut prefix = [0; decimal::DIGITS_MAX + 1];
    let colon = decimal::write(&mut prefix, 0, field.len() as u64);
    prefix[colon] = b':';
    out.extend_from_slice(&prefix[..=colon]);
    out.extend_from_slice(field);
}

#[cold]
fn too_many(before: usize, size: usize) -> Error {
    let message = if before == MAX_HEADERS {
        format!("a message has at most {MAX_HEADERS} headers")
    } else {
        format!(
            "header {} brings the packed headers to {size} bytes; at most {MAX_PACKED} are allowed",
            before + 1
        )
    };
    Error::new(ErrorKind::Argument, "headers", message)
}

/// The headers of a message, as they lie in its entry.
///
/// A view to copy around: it borrows, allocates nothing, and is read anew by each call. The bytes
/// come from whoever wrote the entry, so every read can find the block [`Malformed`]; names and
/// values need not be UTF-8, and a name may come more than once. Two views are equal when their
/// bytes are.
///
/// `Debug` shows `name=value; name=value`, values included.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Headers<'a> {
    block: &'a [u8],
}

impl<'a> Headers<'a> {
    /// The view of a packed block; of an empty one when the entry has none.
    pub(crate) const fn new(block: &'a [u8]) -> Self {
        Self { block }
    }

    /// Name and value of each header, in the order they were written. Ends after the first error.
    pub const fn iter(self) -> HeaderIter<'a> {
        HeaderIter { rest: self.block }
    }

    /// The value of the first header with this name, byte for byte. What lies behind it is not
    /// looked at.
    ///
    /// # Errors
    ///
    /// [`Malformed::Headers`] when the block is broken before such a header is found.
    pub fn get(self, name: &str) -> Result<Option<&'a [u8]>, Malformed> {
        for header in self {
            let (found, value) = header?;
            if found == name.as_bytes() {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// What [`MAX_ATTEMPTS`] says; `None` where that is absent or no number.
    pub(crate) fn max_attempts(self) -> Option<u32> {
        let text = self.get(MAX_ATTEMPTS).ok()??;
        let attempts = decimal::parse(text)?;
        Some(u32::try_from(attempts).unwrap_or(u32::MAX))
    }

    /// How many headers there are. Walks the whole block.
    ///
    /// # Errors
    ///
    /// [`Malformed::Headers`] when the block is broken.
    pub fn len(self) -> Result<usize, Malformed> {
        self.iter().try_fold(0, |n, header| header.map(|_| n + 1))
    }

    /// Whether there are none. Never fails: a broken block is not empty.
    pub const fn is_empty(self) -> bool {
        self.block.is_empty()
    }

    /// Whether the whole block can be read.
    ///
    /// # Errors
    ///
    /// [`Malformed::Headers`] when it cannot.
    pub fn check(self) -> Result<(), Malformed> {
        self.len().map(drop)
    }
}

impl<'a> IntoIterator for Headers<'a> {
    type Item = Result<(&'a [u8], &'a [u8]), Malformed>;
    type IntoIter = HeaderIter<'a>;

    fn into_iter(self) -> HeaderIter<'a> {
        self.iter()
    }
}

impl fmt::Debug for Headers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, header) in self.iter().enumerate() {
            let separator = if i == 0 { "" } else { "; " };
            match header {
                Ok((name, value)) => {
                    let [name, value] = [name, value].map(String::from_utf8_lossy);
                    write!(f, "{separator}{name}={value}")?;
                }
                Err(_) => write!(f, "{separator}<malformed>")?,
            }
        }
        Ok(())
    }
}

/// Iterates over [`Headers`].
#[derive(Clone, Debug)]
pub struct HeaderIter<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for HeaderIter<'a> {
    type Item = Result<(&'a [u8], &'a [u8]), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let block = std::mem::take(&mut self.rest); // nothing is left after an error
        let header = unpack_one(block).and_then(|(name, rest)| {
            let (value, rest) = unpack_one(rest)?;
            self.rest = rest;
            Some((name, value))
        });
        Some(header.ok_or(Malformed::Headers))
    }
}

impl FusedIterator for HeaderIter<'_> {}

/// The first field of a block, and what follows it.
fn unpack_one(block: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = decimal::split(block)?;
    rest.strip_prefix(b":")?
        .split_at_checked(usize::try_from(length).ok()?)
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn packed(headers: &[(&str, &str)]) -> Vec<u8> {
        let mut out = Vec::new();
        pack(&mut out, headers.iter().copied()).unwrap();
        out
    }

    #[test]
    fn headers_are_packed_as_everywhere() {
        for (headers, text) in [
            (&[] as &[_], ""),
            (&[("source", "web")], "6:source3:web"),
            (&[("a", "")], "1:a0:"),
            (&[("", "")], "0:0:"),
            (
                &[("k:1", "v:2"), ("trace", "12:34")],
                "3:k:13:v:25:trace5:12:34",
            ),
            (&[("naïve", "日本")], "6:naïve6:日本"),
            (&[("x", "yyyyyyyyyy")], "1:x10:yyyyyyyyyy"),
        ] {
            let block = packed(headers);
            assert_eq!(block, text.as_bytes());
            let view = Headers::new(&block);
            let read: Vec<_> = view.iter().map(Result::unwrap).collect();
            let expected: Vec<_> = headers
                .iter()
                .map(|(n, v)| (n.as_bytes(), v.as_bytes()))
                .collect();
            assert_eq!(read, expected);
            assert_eq!(view.len(), Ok(headers.len()));
            assert_eq!(view.is_empty(), headers.is_empty());
        }
    }

    #[test]
    fn the_first_header_of_a_name_is_found() {
        let block = packed(&[("a", "1"), ("b", ""), ("a", "2"), ("", "e")]);
        let view = Headers::new(&block);
        assert_eq!(view.get("a"), Ok(Some(&b"1"[..])));
        assert_eq!(view.get("b"), Ok(Some(&b""[..])));
        assert_eq!(view.get(""), Ok(Some(&b"e"[..])));
        assert_eq!(view.get("A"), Ok(None));
        assert_eq!(Headers::default().get("a"), Ok(None));
        assert_eq!(format!("{view:?}"), "a=1; b=; a=2; =e");
        let broken = Headers::new(b"1:a1:1x");
        assert_eq!(broken.get("a"), Ok(Some(&b"1"[..])));
        assert_eq!(broken.get("b"), Err(Malformed::Headers));
        assert_eq!(format!("{broken:?}"), "a=1; <malformed>");
    }

    #[test]
    fn a_cap_of_attempts_is_a_number_or_none() {
        for (text, cap) in [
            ("0", Some(0)),
            ("3", Some(3)),
            ("4294967295", Some(u32::MAX)),
            ("18446744073709551615", Some(u32::MAX)),
            ("18446744073709551616", None),
            ("", None),
            ("-1", None),
            ("+1", None),
            (" 1", None),
            ("1.5", None),
            ("many", None),
        ] {
            let block = packed(&[("a", "9"), (MAX_ATTEMPTS, text), (MAX_ATTEMPTS, "7")]);
            assert_eq!(Headers::new(&block).max_attempts(), cap, "{text:?}");
        }
        assert_eq!(Headers::default().max_attempts(), None);
        assert_eq!(Headers::new(b"broken").max_attempts(), None);
    }

    #[test]
    fn broken_blocks_are_refused_once_and_then_end() {
        for text in [
            "1:a",
            "x:a1:b",
            "1",
            "1:",
            ":",
            ":a1:b",
            "-1:a1:b",
            "+1:a1:b",
            " 1:a1:b",
            "1 :a1:b",
            "2:a",
            "1:a5:b",
            "1:a1:bc",
            "1:a1:b1",
            "18446744073709551615:a1:b",
            "99999999999999999999999:a1:b",
        ] {
            let view = Headers::new(text.as_bytes());
            assert_eq!(view.check(), Err(Malformed::Headers), "{text}");
            assert_eq!(view.len(), Err(Malformed::Headers), "{text}");
            assert!(!view.is_empty());
            let mut after = view.iter().skip_while(Result::is_ok);
            assert_eq!(after.next(), Some(Err(Malformed::Headers)), "{text}");
            assert_eq!(after.next(), None, "{text}");
        }
        assert_eq!(Headers::new(b"001:a0000:").get("a"), Ok(Some(&b""[..])));
    }

    #[test]
    fn the_limits_are_named_and_nothing_is_left_behind() {
        let mut out = b"kept".to_vec();
        pack(&mut out, vec![("n", "v"); 64]).unwrap();
        assert_eq!(Headers::new(&out[4..]).len(), Ok(64));

        // `1:n` and `4:` before 8181 bytes of value: 8192 in all
        let fits = "v".repeat(MAX_PACKED - 3 - 5);
        let over = "v".repeat(MAX_PACKED - 3 - 4);
        out.truncate(4);
        pack(&mut out, [("n", &fits)]).unwrap();
        assert_eq!(out.len(), 4 + MAX_PACKED);
        Headers::new(&out[4..]).check().unwrap();

        out.truncate(4);
        let e = pack(&mut out, [("n", &over)]).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Argument);
        assert!(e.to_string().contains("8192"), "{e}");
        let e = pack(&mut out, vec![("n", "v"); 65]).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Argument);
        assert!(e.to_string().contains("64"), "{e}");
        assert_eq!(out, b"kept");
    }

    #[test]
    fn reading_is_not_held_to_the_limits_of_writing() {
        let block = b"1:n1:v".repeat(2000);
        assert_eq!(Headers::new(&block).len(), Ok(2000));
    }

    proptest! {
        #[test]
        fn headers_round_trip(
            headers in vec((vec(any::<u8>(), 0..40), vec(any::<u8>(), 0..40)), 0..=64),
        ) {
            let mut block = Vec::new();
            pack(&mut block, headers.iter().map(|(n, v)| (n, v))).unwrap();
            let view = Headers::new(&block);
            let read: Result<Vec<_>, _> =
                view.iter().map(|h| h.map(|(n, v)| (n.to_vec(), v.to_vec()))).collect();
            prop_assert_eq!(view.len(), Ok(headers.len()));
            prop_assert_eq!(read, Ok(headers));
        }

        #[test]
        fn any_bytes_are_read_without_reaching_beyond_them(
            block in prop_oneof![vec(any::<u8>(), 0..64), "([0-9]{0,22}:?[a-z]{0,3}){0,6}".prop_map(String::into_bytes)],
        ) {
            let view = Headers::new(&block);
            let range = block.as_ptr_range();
            let mut total = 0;
            for (name, value) in view.iter().flatten() {
                for field in [name, value] {
                    let at = field.as_ptr_range();
                    prop_assert!(range.start <= at.start && at.end <= range.end);
                    total += field.len() + 2;
                }
            }
            prop_assert!(total <= block.len());
            prop_assert_eq!(view.check().is_ok(), view.iter().all(|h| h.is_ok()));
        }
    }
}
