//! Ids of stream entries.

use std::{
    fmt,
    str::FromStr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::decimal::{self, DIGITS_MAX};
use crate::{
    clock,
    error::{Error, ErrorKind},
};

/// Bytes of the longest id.
pub(crate) const ID_MAX: usize = 2 * DIGITS_MAX + 1;

/// Implementations in other languages keep sequences as signed numbers.
const LAST_PORTABLE_SEQ: u64 = i64::MAX as u64;

/// The id of a stream entry: a time in milliseconds since the Unix epoch, and a sequence number
/// that tells entries of one millisecond apart.
///
/// The server gives ids out in growing order within a stream, and they compare in that order.
/// Written as `1726000000000-42`, which is also what parsing expects: both halves, digits only.
///
/// ```
/// use streamlane::StreamId;
///
/// let id: StreamId = "1726000000000-42".parse()?;
/// assert!(id < id.next());
/// assert_eq!(id, StreamId::new(1_726_000_000_000, 42));
/// # Ok::<(), streamlane::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct StreamId {
    ms: u64,
    seq: u64,
}

impl StreamId {
    /// `0-0`: before every entry. No entry has this id. Also the default.
    pub const MIN: Self = Self::new(0, 0);

    /// The largest id there is.
    pub const MAX: Self = Self::new(u64::MAX, u64::MAX);

    /// An id of its two halves: milliseconds since the Unix epoch, and the sequence number.
    pub const fn new(ms: u64, seq: u64) -> Self {
        Self { ms, seq }
    }

    /// Milliseconds since the Unix epoch, by the server's clock unless the writer chose the id.
    pub const fn ms(self) -> u64 {
        self.ms
    }

    /// The sequence number within the millisecond.
    pub const fn seq(self) -> u64 {
        self.seq
    }

    /// When the entry was added, to the millisecond.
    pub fn timestamp(self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.ms)
    }

    /// The smallest id an entry added at `moment` can have; fractions of a millisecond are dropped.
    /// [`MIN`](Self::MIN) for moments before 1970.
    pub fn starting_at(moment: SystemTime) -> Self {
        Self::new(clock::unix_ms(moment), 0)
    }

    /// The id to have read up to, so that the entry `self` comes next. `0-0` stays as it is.
    ///
    /// It is the largest id below `self`, save that the last sequence number of a millisecond counts
    /// as 9223372036854775807 (2⁶³ − 1): readers in other languages take a position above that for
    /// no position at all. No server gives out a sequence number that large by itself.
    #[must_use]
    pub const fn before(self) -> Self {
        match self {
            Self { ms: 0, seq: 0 } => self,
            Self { ms, seq: 0 } => Self::new(ms - 1, LAST_PORTABLE_SEQ),
            Self { ms, seq } => Self::new(ms, seq - 1),
        }
    }

    /// Whether it stands for a moment, as the place before the first entry of a millisecond does, and
    /// not for an entry: see [`before`](Self::before).
    pub(crate) const fn is_moment(self) -> bool {
        self.seq == LAST_PORTABLE_SEQ
    }

    /// The smallest id above `self`. [`MAX`](Self::MAX) stays as it is.
    #[must_use]
    pub const fn next(self) -> Self {
        match self {
            Self::MAX => self,
            Self { ms, seq: u64::MAX } => Self::new(ms + 1, 0),
            Self { ms, seq } => Self::new(ms, seq + 1),
        }
    }

    /// Reads `ms-seq`; `None` on anything else, the shorthands of commands (`5`, `$`, `*`) included.
    #[inline]
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        match decimal::usual_id(text) {
            Some((ms, seq)) => Some(Self { ms, seq }),
            None => Self::parse_any(text),
        }
    }

    #[cold]
    fn parse_any(text: &[u8]) -> Option<Self> {
        let (ms, rest) = decimal::split(text)?;
        let seq = decimal::parse(rest.strip_prefix(b"-")?)?;
        Some(Self { ms, seq })
    }

    /// Writes the id at the front of `buf` and returns what was written.
    pub(crate) fn encode(self, buf: &mut [u8; ID_MAX]) -> &[u8] {
        let end = self.write(buf, 0);
        &buf[..end]
    }

    /// Writes the id at `buf[at..]` and returns where it ends. Panics when the buffer is too short.
    pub(super) fn write(self, buf: &mut [u8], at: usize) -> usize {
        let dash = decimal::write(buf, at, self.ms);
        buf[dash] = b'-';
        decimal::write(buf, dash + 1, self.seq)
    }
}

impl FromStr for StreamId {
    type Err = Error;

    /// # Errors
    ///
    /// [`ErrorKind::Argument`] when the text is not two unsigned 64-bit decimals joined by `-`.
    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(text.as_bytes()).ok_or_else(|| {
            let message = format!("{text:?} is not of the form 1726000000000-0");
            Error::new(ErrorKind::Argument, "stream id", message)
        })
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

impl fmt::Debug for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const I64_MAX: u64 = i64::MAX as u64;

    fn id(text: &str) -> StreamId {
        text.parse().unwrap()
    }

    #[test]
    fn ids_are_written_and_read_as_the_server_does() {
        for (ms, seq, text) in [
            (0, 0, "0-0"),
            (1, 0, "1-0"),
            (1_726_000_000_000, 42, "1726000000000-42"),
            (I64_MAX, 0, "9223372036854775807-0"),
            (0, I64_MAX, "0-9223372036854775807"),
            (
                u64::MAX,
                u64::MAX,
                "18446744073709551615-18446744073709551615",
            ),
        ] {
            let parsed = id(text);
            assert_eq!(parsed, StreamId::new(ms, seq));
            assert_eq!((parsed.ms(), parsed.seq()), (ms, seq));
            assert_eq!(format!("{parsed} {parsed:?}"), format!("{text} {text}"));
            assert_eq!(parsed.encode(&mut [0; ID_MAX]), text.as_bytes());
        }
        assert_eq!(id("0018446744073709551615-007"), StreamId::new(u64::MAX, 7));
        assert_eq!(StreamId::default(), StreamId::MIN);
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for text in [
            "",
            "-",
            "123",
            "-5",
            "5-",
            "abc-1",
            "1-abc",
            "1-2-3",
            " 1-2",
            "1-2 ",
            "+1-2",
            "1-+2",
            "-1--2",
            "1,000-0",
            "99999999999999999999-0",
            "18446744073709551616-0",
            "0-18446744073709551616",
            "$",
            ">",
            "+",
            "*",
            "1-*",
            "0-0|",
            "１-０",
        ] {
            assert_eq!(StreamId::parse(text.as_bytes()), None, "{text}");
            let e = text.parse::<StreamId>().unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Argument);
            assert!(e.to_string().contains(&format!("{text:?}")), "{e}");
        }
    }

    #[test]
    fn ids_compare_as_numbers() {
        let mut ids = ["2-0", "1-10", "10-0", "9-0", "1-9", "0-0"].map(id);
        ids.sort_unstable();
        assert_eq!(ids, ["0-0", "1-9", "1-10", "2-0", "9-0", "10-0"].map(id));
        assert!(
            ids.iter()
                .all(|i| (StreamId::MIN..=StreamId::MAX).contains(i))
        );
    }

    #[test]
    fn ids_and_moments_convert() {
        let t = clock::parse_moment("2024-09-10T20:26:40.123999Z").unwrap();
        let east = clock::parse_moment("2024-09-10T22:26:40.123999+02:00").unwrap();
        let start = StreamId::starting_at(t);
        assert_eq!(start, id("1726000000123-0"));
        assert_eq!(StreamId::starting_at(east), start);
        assert_eq!(
            id("1726000000123-9").timestamp(),
            clock::parse_moment("2024-09-10T20:26:40.123Z").unwrap()
        );
        assert_eq!(
            StreamId::starting_at(UNIX_EPOCH - Duration::from_secs(1)),
            StreamId::MIN
        );
        assert_eq!(
            StreamId::starting_at(StreamId::MAX.timestamp()).ms(),
            u64::MAX
        );
    }

    #[test]
    fn neighbours_step_over_milliseconds() {
        for (of, before) in [
            ("0-0", "0-0"),
            ("0-1", "0-0"),
            ("5-3", "5-2"),
            ("5-0", "4-9223372036854775807"),
            ("1-0", "0-9223372036854775807"),
        ] {
            assert_eq!(id(of).before(), id(before));
        }
        for (of, next) in [
            ("0-0", "0-1"),
            ("5-3", "5-4"),
            ("5-9223372036854775807", "5-9223372036854775808"),
            ("5-18446744073709551615", "6-0"),
        ] {
            assert_eq!(id(of).next(), id(next));
        }
        assert_eq!(StreamId::MAX.next(), StreamId::MAX);
    }

    proptest! {
        #[test]
        fn ids_round_trip_and_keep_their_order(a in any::<(u64, u64)>(), b in any::<(u64, u64)>()) {
            let (x, y) = (StreamId::new(a.0, a.1), StreamId::new(b.0, b.1));
            let mut buf = [0; ID_MAX];
            prop_assert_eq!(StreamId::parse(x.encode(&mut buf)), Some(x));
            prop_assert_eq!(x.to_string().parse::<StreamId>().unwrap(), x);
            prop_assert_eq!(x.cmp(&y), a.cmp(&b));
            prop_assert!(x.before() <= x && x <= x.next());
        }

        #[test]
        fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Some(id) = StreamId::parse(&bytes) {
                prop_assert_eq!(StreamId::parse(id.to_string().as_bytes()), Some(id));
            }
        }
    }
}
