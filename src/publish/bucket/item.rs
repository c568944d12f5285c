//! What waits in a bucket: an entry, and where it goes, as one msgpack array that a script reads.
//!
//! All are texts: the number of the target among the streams that the script is given, from 1; the longest
//! it may get, or nothing where it is not trimmed; `~` or `=`; then field names and values alternating.
//! Written as `cmsgpack.pack` writes it, so that scripts can make and change items too.

use crate::Trim;

/// How a target is trimmed when something is appended to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Trimmed {
    pub(crate) how: Trim,
    pub(crate) max_len: u64,
}

/// Begins an item for the `target`-th stream, counted from 0. So many pairs of fields follow, each by two
/// calls of [`text`].
pub(crate) fn begin(out: &mut Vec<u8>, target: u32, trimmed: Trimmed, pairs: usize) {
    array(out, 3 + 2 * pairs);
    text(out, (u64::from(target) + 1).to_string().as_bytes());
    match trimmed.how {
        Trim::None => text(out, b""),
        Trim::Approx | Trim::Exact => text(out, trimmed.max_len.to_string().as_bytes()),
    }
    let exactly = trimmed.how == Trim::Exact;
    text(out, if exactly { b"=" } else { b"~" });
}

/// Adds one text, whatever its bytes are.
pub(crate) fn text(out: &mut Vec<u8>, bytes: &[u8]) {
    let n = bytes.len();
    match n {
        0..32 => out.push(0xa0 | n as u8),
        32..0x100 => out.extend([0xd9, n as u8]),
        0x100..0x1_0000 => {
            out.push(0xda);
            out.extend((n as u16).to_be_bytes());
        }
        _ => {
            out.push(0xdb);
            out.extend((n as u32).to_be_bytes());
        }
    }
    out.extend_from_slice(bytes);
}

fn array(out: &mut Vec<u8>, n: usize) {
    match n {
        0..16 => out.push(0x90 | n as u8),
        16..0x1_0000 => {
            out.push(0xdc);
            out.extend((n as u16).to_be_bytes());
        }
        _ => {
            out.push(0xdd);
            out.extend((n as u32).to_be_bytes());
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::testing::{PrivateServer, Reply};

    fn item(target: u32, how: Trim, fields: &[(&[u8], &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        let max_len = 10;
        begin(&mut out, target, Trimmed { how, max_len }, fields.len());
        for (name, value) in fields {
            text(&mut out, name);
            text(&mut out, value);
        }
        out
    }

    #[test]
    fn an_item_is_an_array_of_texts() {
        let bytes = item(0, Trim::Approx, &[(b"b", b"\x00\xff"), (b"k", b"")]);
        assert_eq!(bytes, b"\x97\xa11\xa210\xa1~\xa1b\xa2\x00\xff\xa1k\xa0");
        let bytes = item(65_535, Trim::None, &[]);
        assert_eq!(bytes, b"\x93\xa565536\xa0\xa1~");
        let bytes = item(1, Trim::Exact, &[]);
        assert_eq!(bytes, b"\x93\xa12\xa210\xa1=");
    }

    /// What a script reads is what was written, and it would have written the same.
    #[test]
    fn a_server_reads_what_is_written() {
        let server = PrivateServer::start().unwrap();
        let all: Vec<u8> = (0..=255).collect();
        let large = all.repeat(20_000_000 / all.len());
        let texts: [&[u8]; 12] = [
            b"",
            b"\0",
            b"x",
            &all[..31],
            &all[..32],
            &all[..255],
            &all,
            &large[..0xffff],
            &large[..0x1_0000],
            &large,
            b"\xc0\xc1\xdd",
            b"\r\n$-1\r\n",
        ];
        let few: Vec<_> = texts.iter().map(|t| (*t, *t)).collect();
        let one: &[u8] = b"1";
        let many = vec![(one, one); 3000];
        let most = vec![(&b""[..], &all[..]); 33_000]; // needs the largest kind of array
        for fields in [&few[..], &few[..6], &few[..7], &[], &many, &most] {
            let bytes = item(3, Trim::Exact, fields);
            // The texts one after the other, each behind its length, and whether packing them gives the item.
            let script = "local parts = cmsgpack.unpack(ARGV[1])
                local out = {}
                for i = 1, #parts do out[i] = #parts[i] .. ':' .. parts[i] end
                return {table.concat(out), cmsgpack.pack(parts) == ARGV[1] and 1 or 0, #parts}";
            let args = [&b"EVAL"[..], script.as_bytes(), b"0", &bytes];
            let answer = server.command(&args).unwrap();
            let mut expected = Vec::new();
            let head: [&[u8]; 3] = [b"4", b"10", b"="];
            let pairs = fields.iter().flat_map(|(n, v)| [*n, *v]);
            for part in head.into_iter().chain(pairs) {
                expected.extend(format!("{}:", part.len()).into_bytes());
                expected.extend(part);
            }
            let [texts, same, n] = answer.items() else {
                panic!("{answer:?}")
            };
            assert_eq!(n.text(), (3 + 2 * fields.len()).to_string());
            assert!(*texts == Reply::Bulk(expected), "{} fields", fields.len());
            assert_eq!(same.int(), Some(1), "{} fields", fields.len());
        }
    }
}
