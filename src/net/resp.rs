//! RESP as bytes: writing commands into a reused buffer, and finding one's way through replies in
//! place. Nothing here copies a payload or allocates in proportion to a length the peer claims.

/// Why scanning stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// More bytes are needed: at least up to this offset from the start of the slice.
    Short(usize),
    /// These are not the bytes of a reply.
    Bad(&'static str),
}

/// What scanning one thing gives.
pub(crate) type Scan<T> = Result<T, Stop>;

/// The longest payload any server sends (`proto-max-bulk-len` is 512 MiB unless raised).
const MAX_BULK: usize = 1 << 30;
/// The longest line that is not a payload: numbers, and error replies.
const MAX_LINE: usize = 64 * 1024;

/// Where a payload lies in the slice scanned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Span {
    pub(crate) at: u32,
    pub(crate) len: u32,
}

impl Span {
    pub(crate) fn of(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.at as usize..][..self.len as usize]
    }
}

/// The first part of a value: all of it for a scalar, the size for an aggregate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Head {
    /// A bulk, simple or verbatim string.
    Text(Span),
    /// An error reply, without its mark and line end.
    Error(Span),
    /// Nil, in any spelling.
    Nil,
    /// Another scalar: a number, a boolean.
    Scalar(Span),
    /// An array or set of so many values.
    Array(usize),
    /// A map of so many pairs.
    Map(usize),
    /// So many values that the peer pushes out of turn.
    Push(usize),
    /// So many pairs of remarks about the value that follows.
    Attribute(usize),
}

/// A place in a reply. After an error it means nothing: start again from a place you remember.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// The offset of the next byte.
    #[inline]
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    #[inline]
    fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// The next value's head.
    #[inline]
    pub(crate) fn head(&mut self) -> Scan<Head> {
        match self.bulk() {
            Some(text) => Ok(Head::Text(text)),
            None => self.any_head(),
        }
    }

    /// As [`head`](Self::head), and quicker where the next value is an array.
    #[inline]
    pub(crate) fn aggregate(&mut self) -> Scan<Head> {
        let Some((n, after)) = self.short(b'*') else {
            return self.any_head();
        };
        self.at = after;
        Ok(Head::Array(n))
    }

    /// A bulk string, spelled as servers do; `None` if the next value is anything else, or has not
    /// arrived whole.
    #[inline]
    fn bulk(&mut self) -> Option<Span> {
        let (n, at) = self.short(b'$')?;
        let end = at + n;
        if self.bytes.get(end..end + 2)? != b"\r\n" {
            return None;
        }
        self.at = end + 2;
        Some(Span {
            at: at as u32,
            len: n as u32,
        })
    }

    /// A number of up to five digits behind this type mark, and where its line ends. Nearly every line
    /// of a stream reply is one of these, so they are read without a search for the line's end, and
    /// all else is left to [`any_head`](Self::any_head).
    #[inline]
    fn short(&self, tag: u8) -> Option<(usize, usize)> {
        let line: &[u8; 8] = self.rest().first_chunk()?;
        if line[0] != tag {
            return None;
        }
        let mut n = 0;
        for i in 1..7 {
            match line[i] {
                d @ b'0'..=b'9' => n = n * 10 + digit(d),
                b'\r' if i > 1 && line[i + 1] == b'\n' => return Some((n, self.at + i + 2)),
                _ => return None,
            }
        }
        None
    }

    /// A one-byte text, such as the field names of our own entries; `None` if the next value is
    /// anything else.
    #[inline]
    pub(crate) fn one_byte(&mut self) -> Option<u8> {
        let text: &[u8; 7] = self.rest().first_chunk()?;
        if text[..4] != *b"$1\r\n" || text[5..] != *b"\r\n" {
            return None;
        }
        self.at += text.len();
        Some(text[4])
    }

    #[cold]
    #[inline(never)]
    fn any_head(&mut self) -> Scan<Head> {
        let line = self.line()?;
        let (&tag, text) = line
            .of(self.bytes)
            .split_first()
            .ok_or(Stop::Bad("an empty line"))?;
        let span = Span {
            at: line.at + 1,
            len: line.len - 1,
        };
        let head = match tag {
            b'+' => Head::Text(span),
            b'-' => Head::Error(span),
            b'_' if text.is_empty() => Head::Nil,
            b':' | b',' | b'#' | b'(' => Head::Scalar(span),
            b'$' | b'=' | b'!' => match size(text)? {
                None => Head::Nil,
                Some(n) => {
                    let body = self.payload(n)?;
                    match tag {
                        b'!' => Head::Error(body),
                        // "txt:" or "mkd:" comes before the text itself
                        b'=' if body.len >= 4 => Head::Text(Span {
                            at: body.at + 4,
                            len: body.len - 4,
                        }),
                        _ => Head::Text(body),
                    }
                }
            },
            b'*' | b'~' | b'%' | b'>' | b'|' => match size(text)? {
                None => Head::Nil,
                Some(n) if tag == b'%' => Head::Map(n),
                Some(n) if tag == b'>' => Head::Push(n),
                Some(n) if tag == b'|' => Head::Attribute(n),
                Some(n) => Head::Array(n),
            },
            _ => return Err(Stop::Bad("an unknown type mark")),
        };
        Ok(head)
    }

    /// `len` bytes and their line end.
    #[inline]
    fn payload(&mut self, len: usize) -> Scan<Span> {
        if len > MAX_BULK {
            return Err(Stop::Bad("a length out of range"));
        }
        let at = self.at;
        let end = at + len;
        match self.bytes.get(end..end + 2) {
            Some(b"\r\n") => {
                self.at = end + 2;
                Ok(Span {
                    at: at as u32,
                    len: len as u32,
                })
            }
            Some(_) => Err(Stop::Bad("a string without its line end")),
            None => Err(Stop::Short(end + 2)),
        }
    }

    fn line(&mut self) -> Scan<Span> {
        let rest = self.rest();
        let window = &rest[..rest.len().min(MAX_LINE)];
        let Some(n) = window.iter().position(|b| *b == b'\n') else {
            if window.len() == MAX_LINE {
                return Err(Stop::Bad("a line without end"));
            }
            return Err(Stop::Short(self.bytes.len() + 1));
        };
        if n == 0 || rest[n - 1] != b'\r' {
            return Err(Stop::Bad("a line not ended by CR LF"));
        }
        let span = Span {
            at: self.at as u32,
            len: (n - 1) as u32,
        };
        self.at += n + 1;
        Ok(span)
    }

    /// Steps over one whole value, whatever it is.
    pub(crate) fn skip(&mut self) -> Scan<()> {
        let mut left = 1usize;
        while left > 0 {
            let more = match self.head()? {
                Head::Array(n) => n,
                Head::Map(n) => n.saturating_mul(2),
                // neither counts as a value itself
                Head::Push(n) => n.saturating_add(1),
                Head::Attribute(n) => n.saturating_mul(2).saturating_add(1),
                Head::Text(_) | Head::Error(_) | Head::Nil | Head::Scalar(_) => 0,
            };
            left = (left - 1).saturating_add(more);
        }
        Ok(())
    }

    /// A text, or nothing for a nil; refuses everything else.
    #[inline]
    pub(crate) fn text(&mut self) -> Scan<Option<Span>> {
        match self.bulk() {
            Some(text) => Ok(Some(text)),
            None => self.any_text(),
        }
    }

    #[cold]
    #[inline(never)]
    fn any_text(&mut self) -> Scan<Option<Span>> {
        match self.any_head()? {
            Head::Text(s) => Ok(Some(s)),
            Head::Nil => Ok(None),
            _ => Err(Stop::Bad("something other than a string")),
        }
    }
}

#[inline]
fn digit(b: u8) -> usize {
    usize::from(b - b'0')
}

/// A length; `None` for the -1 of old nils.
fn size(text: &[u8]) -> Scan<Option<usize>> {
    if text == b"-1" {
        return Ok(None);
    }
    if text.is_empty() || text.len() > 10 {
        return Err(Stop::Bad("a length that is no number"));
    }
    text.iter()
        .try_fold(0usize, |n, b| {
            b.is_ascii_digit().then(|| n * 10 + digit(*b))
        })
        .map(Some)
        .ok_or(Stop::Bad("a length that is no number"))
}

/// Where the value that starts `bytes` ends; `None` while it is incomplete.
#[cfg(any(test, fuzzing))]
pub(crate) fn value_end(bytes: &[u8]) -> Result<Option<usize>, &'static str> {
    let mut c = Cursor::new(bytes, 0);
    match c.skip() {
        Ok(()) => Ok(Some(c.at())),
        Err(Stop::Short(_)) => Ok(None),
        Err(Stop::Bad(why)) => Err(why),
    }
}

/// Begins a command of `args` arguments, its name included.
#[inline]
pub(crate) fn command(out: &mut Vec<u8>, args: usize) {
    mark(out, b'*', args);
}

/// Adds one argument.
#[inline]
pub(crate) fn arg(out: &mut Vec<u8>, bytes: &[u8]) {
    mark(out, b'$', bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Adds two arguments, a name of one byte and what it names.
#[inline]
pub(crate) fn pair(out: &mut Vec<u8>, [name]: [u8; 1], value: &[u8]) {
    out.extend_from_slice(&[b'$', b'1', b'\r', b'\n', name, b'\r', b'\n']);
    arg(out, value);
}

/// Adds one argument that is in two parts.
pub(crate) fn arg_joined(out: &mut Vec<u8>, first: &[u8], then: &[u8]) {
    mark(out, b'$', first.len() + then.len());
    out.extend_from_slice(first);
    out.extend_from_slice(then);
    out.extend_from_slice(b"\r\n");
}

/// Adds one argument that is a number.
#[inline]
pub(crate) fn arg_number(out: &mut Vec<u8>, n: u64) {
    arg(out, decimal(&mut [0; 20], n));
}

/// Adds a whole command.
pub(crate) fn whole(out: &mut Vec<u8>, args: &[&[u8]]) {
    command(out, args.len());
    for a in args {
        arg(out, a);
    }
}

#[inline]
fn mark(out: &mut Vec<u8>, tag: u8, n: usize) {
    let digit = |unit: usize| b'0' + (n / unit % 10) as u8;
    match n {
        0..10 => out.extend_from_slice(&[tag, digit(1), b'\r', b'\n']),
        10..100 => out.extend_from_slice(&[tag, digit(10), digit(1), b'\r', b'\n']),
        100..1000 => {
            out.extend_from_slice(&[tag, digit(100), digit(10), digit(1), b'\r', b'\n']);
        }
        _ => {
            out.push(tag);
            out.extend_from_slice(decimal(&mut [0; 20], n as u64));
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// The digits of `n`.
fn decimal(buf: &mut [u8; 20], mut n: u64) -> &[u8] {
    let mut at = buf.len();
    loop {
        at -= 1;
        buf[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            return &buf[at..];
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    #[test]
    fn heads_of_both_protocol_versions_are_understood() {
        let text = |at, len| Head::Text(Span { at, len });
        for (bytes, want) in [
            (&b"$0\r\n\r\n"[..], text(4, 0)),
            (b"$3\r\nabc\r\n", text(4, 3)),
            (b"+OK\r\n", text(1, 2)),
            (b"=7\r\ntxt:abc\r\n", text(8, 3)),
            (b"$-1\r\n", Head::Nil),
            (b"*-1\r\n", Head::Nil),
            (b"_\r\n", Head::Nil),
            (b"*0\r\n", Head::Array(0)),
            (b"*12\r\n", Head::Array(12)),
            (b"*1234\r\n", Head::Array(1234)),
            (b"~2\r\n", Head::Array(2)),
            (b"%1\r\n", Head::Map(1)),
            (b">2\r\n", Head::Push(2)),
            (b"|1\r\n", Head::Attribute(1)),
            (b"-ERR no\r\n", Head::Error(Span { at: 1, len: 6 })),
            (b"!5\r\nERR x\r\n", Head::Error(Span { at: 4, len: 5 })),
            (b":-7\r\n", Head::Scalar(Span { at: 1, len: 2 })),
            (b"#t\r\n", Head::Scalar(Span { at: 1, len: 1 })),
            (b",1.5\r\n", Head::Scalar(Span { at: 1, len: 3 })),
        ] {
            let mut c = Cursor::new(bytes, 0);
            assert_eq!(c.head(), Ok(want), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn the_quick_ways_find_what_the_thorough_one_finds() {
        for n in [0, 7, 10, 999, 9999, 99_999, 100_000] {
            let mut wire = format!("${n}\r\n{}\r\n", "x".repeat(n)).into_bytes();
            let mut slow = Cursor::new(&wire, 0);
            let text = slow.any_head().unwrap();
            let mut quick = Cursor::new(&wire, 0);
            assert_eq!(quick.text().map(|t| t.map(Head::Text)), Ok(Some(text)));
            assert_eq!(quick.at(), slow.at());
            wire = format!("*{n}\r\n$1\r\nb\r\n").into_bytes();
            let mut quick = Cursor::new(&wire, 0);
            assert_eq!(quick.aggregate(), Ok(Head::Array(n)));
            assert_eq!(quick.one_byte(), Some(b'b'), "after {n}");
        }
        for other in [
            "*\r\n$1\r\nb",
            "*1\n$1\r\nb\r\n",
            "*1:\r\n1\r\n",
            "$1\r\nbb\r\n",
        ] {
            let bad = |scan: Scan<Head>| assert!(matches!(scan, Err(Stop::Bad(_))), "{other:?}");
            bad(Cursor::new(other.as_bytes(), 0).head());
            bad(Cursor::new(other.as_bytes(), 0).aggregate());
        }
    }

    #[test]
    fn an_argument_in_two_parts_is_one() {
        let [mut joined, mut whole] = [Vec::new(), Vec::new()];
        for (first, then) in [("re:once:{t}:", "id"), ("", "x"), ("x", ""), ("", "")] {
            arg_joined(&mut joined, first.as_bytes(), then.as_bytes());
            arg(&mut whole, format!("{first}{then}").as_bytes());
        }
        assert_eq!(joined, whole);
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        for bytes in [
            &b"\r\n"[..],
            b"abc\r\n",
            b"$3\r\nabcde",
            b"$x\r\n",
            b"$-2\r\n",
            b"$99999999999\r\n",
            b"$2147483648\r\n",
            b"*-5\r\n",
            b"$?\r\n",
            b"+no\n",
        ] {
            let r = Cursor::new(bytes, 0).head();
            assert!(
                matches!(r, Err(Stop::Bad(_))),
                "{} {r:?}",
                bytes.escape_ascii()
            );
        }
    }

    #[test]
    fn a_short_string_says_how_much_is_missing() {
        let r = Cursor::new(b"$1000\r\nab", 0).head();
        assert_eq!(r, Err(Stop::Short(7 + 1000 + 2)));
        assert_eq!(Cursor::new(b"$10", 0).head(), Err(Stop::Short(4)));
        assert_eq!(Cursor::new(b"", 0).head(), Err(Stop::Short(1)));
    }

    #[test]
    fn commands_are_written_as_arrays_of_strings() {
        let mut out = Vec::new();
        whole(&mut out, &[b"SET", b"k", b"0123456789"]);
        arg_number(&mut out, u64::MAX);
        assert_eq!(
            out,
            b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$10\r\n0123456789\r\n$20\r\n18446744073709551615\r\n"
        );
    }

    #[test]
    fn sizes_of_any_length_are_written_and_read_back() {
        for n in [0, 9, 10, 99, 100, 101, 999, 1000, 12_345, 1_234_567] {
            let mut out = Vec::new();
            command(&mut out, n);
            assert_eq!(out, format!("*{n}\r\n").into_bytes());
            assert_eq!(Cursor::new(&out, 0).head(), Ok(Head::Array(n)));
        }
    }

    #[test]
    fn remarks_and_pushes_belong_to_the_value_after_them() {
        let wire = b"|1\r\n+a\r\n+b\r\n>2\r\n+x\r\n:1\r\n*2\r\n:1\r\n%1\r\n+k\r\n_\r\n+next\r\n";
        let end = value_end(wire).unwrap().unwrap();
        assert_eq!(&wire[end..], b"+next\r\n");
    }

    fn value() -> impl Strategy<Value = Vec<u8>> {
        let leaf = prop_oneof![
            vec(any::<u8>(), 0..1200).prop_map(|b| {
                let mut out = Vec::new();
                arg(&mut out, &b);
                out
            }),
            Just(b"_\r\n".to_vec()),
            Just(b"*-1\r\n".to_vec()),
            any::<i64>().prop_map(|n| format!(":{n}\r\n").into_bytes()),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            (vec(inner, 0..6), any::<bool>()).prop_map(|(items, map)| {
                let map = map && items.len() % 2 == 0;
                let n = if map { items.len() / 2 } else { items.len() };
                let mut out = format!("{}{n}\r\n", if map { '%' } else { '*' }).into_bytes();
                out.extend(items.concat());
                out
            })
        })
    }

    proptest! {
        /// The redis crate's parser, which shares no code with this one, agrees where a value ends.
        #[test]
        fn values_end_where_another_parser_says(wire in value(), cut in any::<prop::sample::Index>()) {
            prop_assert_eq!(value_end(&wire), Ok(Some(wire.len())));
            prop_assert!(redis::parse_redis_value(&wire).is_ok());
            let cut = cut.index(wire.len());
            prop_assert_eq!(value_end(&wire[..cut]), Ok(None), "cut at {}", cut);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..300)) {
            let _ = value_end(&bytes);
        }
    }
}
