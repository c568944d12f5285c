//! The log of a proof: what was published and what became of it, one line an event.

use std::{
    borrow::Cow,
    fs::File,
    io::{self, Write},
    path::Path,
};

use rustix::time::{ClockId, clock_gettime};

use super::failed;

/// Nanoseconds on the machine's monotonic clock. Unlike an `Instant` it can be written down, and all
/// processes of the machine read the same one; it means nothing after a reboot.
pub fn now_ns() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec.cast_unsigned() * 1_000_000_000 + t.tv_nsec.cast_unsigned()
}

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// A publish returned this id: from here on the message must not get lost.
    Published,
    /// A message with this key may or may not exist: a publish whose outcome is unknown, or one that is
    /// about to be made by a process that may be killed before it can write down the answer. The id
    /// does not count. Each such line lets one message of that key be handled that was never published.
    Unknown,
    /// A handler call begins.
    Started,
    /// The handler has finished the message. A process that may be killed writes this down before the
    /// handler returns.
    Handled,
    /// A policy skipped the message.
    Skipped,
    /// The message lies in a dead-letter stream.
    Parked,
    /// The service itself reported the message as lost, trimmed before it was read, say.
    Lost,
    /// The instance was killed, frozen or cut off at this moment. Only `instance` and `time_ns` count.
    Killed,
}

impl Kind {
    const ALL: [(Self, &'static str); 8] = [
        (Self::Published, "published"),
        (Self::Unknown, "unknown"),
        (Self::Started, "started"),
        (Self::Handled, "handled"),
        (Self::Skipped, "skipped"),
        (Self::Parked, "parked"),
        (Self::Lost, "lost"),
        (Self::Killed, "killed"),
    ];

    fn word(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// One event of a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event<'a> {
    /// What happened.
    pub kind: Kind,
    /// When, as [`now_ns`] tells it.
    pub time_ns: u64,
    /// The topic.
    pub topic: Cow<'a, str>,
    /// The partition.
    pub partition: u32,
    /// The entry id: milliseconds and sequence.
    pub id: (u64, u64),
    /// The partition key; may be empty.
    pub key: Cow<'a, [u8]>,
    /// Who says so: the process, in a way that tells it from its predecessors.
    pub instance: Cow<'a, str>,
    /// The owner's epoch for this partition: larger for every new claim. 0 where there are no claims.
    pub epoch: u64,
}

impl<'a> Event<'a> {
    /// An event that happens now. Fields not named here are empty; set them with struct update syntax.
    ///
    /// ```
    /// use streamlane::testing::{Event, Kind};
    ///
    /// let e = Event {
    ///     instance: "node-a".into(),
    ///     epoch: 3,
    ///     ..Event::now(Kind::Handled, "orders", 0, (1_700_000_000_000, 0), b"order-1")
    /// };
    /// assert_eq!(e.partition, 0);
    /// ```
    pub fn now(kind: Kind, topic: &'a str, partition: u32, id: (u64, u64), key: &'a [u8]) -> Self {
        Self {
            kind,
            time_ns: now_ns(),
            topic: topic.into(),
            partition,
            id,
            key: key.into(),
            instance: "".into(),
            epoch: 0,
        }
    }

    /// The mark of the end of an instance, now.
    pub fn killed(instance: &'a str) -> Self {
        Self {
            instance: instance.into(),
            ..Self::now(Kind::Killed, "", 0, (0, 0), b"")
        }
    }

    /// Appends the event as a line: `>`, eight fields and a full stop, separated by blanks. Neither of
    /// the marks can occur in a field, so a line that a dying process left unfinished is known as such,
    /// even when another process has gone on writing right behind it.
    fn write(&self, out: &mut Vec<u8>) {
        let (word, time, (ms, seq)) = (self.kind.word(), self.time_ns, self.id);
        // writing to a Vec cannot fail
        let _ = write!(out, ">{word} {time} ");
        escape(self.topic.as_bytes(), out);
        let _ = write!(out, " {} {ms}-{seq} ", self.partition);
        escape(&self.key, out);
        out.push(b' ');
        escape(self.instance.as_bytes(), out);
        let _ = writeln!(out, " {} .", self.epoch);
    }

    /// Reads what stands between `>` and the full stop.
    fn parse(text: &'a [u8]) -> Option<Self> {
        let mut fields = text.split(|b| *b == b' ');
        let mut next = || fields.next();
        let word = next()?;
        let event = Self {
            kind: Kind::ALL.iter().find(|k| k.1.as_bytes() == word)?.0,
            time_ns: number(next()?)?,
            topic: utf8(unescape(next()?)?)?,
            partition: number(next()?)?.try_into().ok()?,
            id: {
                let id = next()?;
                let dash = id.iter().position(|b| *b == b'-')?;
                (number(&id[..dash])?, number(&id[dash + 1..])?)
            },
            key: unescape(next()?)?,
            instance: utf8(unescape(next()?)?)?,
            epoch: number(next()?)?,
        };
        fields.next().is_none().then_some(event)
    }
}

/// What a line of a log holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Line<'a> {
    /// An event.
    Event(Event<'a>),
    /// The beginning of an event whose writer died.
    Torn,
}

impl<'a> Line<'a> {
    /// Reads a line, with or without its line end. There is one event in it, unless a writer died.
    ///
    /// # Errors
    /// Each part that no [`Recorder`] has written.
    pub fn parse(line: &'a [u8]) -> impl Iterator<Item = io::Result<Self>> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let mut parts = line.split(|b| *b == b'>');
        let before = parts.next().filter(|b| !b.is_empty());
        let strange = before.map(|b| Err(not_ours(b)));
        strange.into_iter().chain(parts.map(|part| {
            let Some(event) = part.strip_suffix(b" .") else {
                return Ok(Self::Torn);
            };
            let event = Event::parse(event).ok_or_else(|| not_ours(part))?;
            Ok(Self::Event(event))
        }))
    }
}

fn not_ours(part: &[u8]) -> io::Error {
    let part = &part[..part.len().min(200)];
    failed(format!("not an event: {:?}", String::from_utf8_lossy(part)))
}

/// Appends events to a log.
///
/// Any number of threads and processes may append to one file, each call with a single write: nothing
/// is held back in memory, so that what was recorded before a `kill -9` is there after it.
#[derive(Debug)]
pub struct Recorder(File);

impl Recorder {
    /// Opens a log to append to, made when it does not exist.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn append(path: impl AsRef<Path>) -> io::Result<Self> {
        let file = File::options().create(true).append(true).open(path)?;
        Ok(Self(file))
    }

    /// Writes one event.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn record(&self, event: &Event<'_>) -> io::Result<()> {
        self.record_all([event])
    }

    /// Writes several events with one write.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn record_all<'a>(
        &self,
        events: impl IntoIterator<Item = &'a Event<'a>>,
    ) -> io::Result<()> {
        let mut lines = Vec::with_capacity(128);
        for event in events {
            event.write(&mut lines);
        }
        (&self.0).write_all(&lines)
    }
}

/// Digits only: `str::parse` would take a sign as well, and demand UTF-8 first.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |n, d| {
        let d = d.checked_sub(b'0').filter(|d| *d < 10)?;
        n.checked_mul(10)?.checked_add(d.into())
    })
}

fn utf8(bytes: Cow<'_, [u8]>) -> Option<Cow<'_, str>> {
    match bytes {
        Cow::Borrowed(b) => std::str::from_utf8(b).ok().map(Cow::Borrowed),
        Cow::Owned(b) => String::from_utf8(b).ok().map(Cow::Owned),
    }
}

/// Percent-encodes what is not printable ASCII and what has a meaning here. Nothing is written as `-`.
fn escape(text: &[u8], out: &mut Vec<u8>) {
    if text.is_empty() {
        out.push(b'-');
    }
    for b in text {
        let plain = b.is_ascii_graphic() && !matches!(b, b'%' | b'>') && text != b"-";
        if plain {
            out.push(*b);
        } else {
            let _ = write!(out, "%{b:02X}");
        }
    }
}

fn unescape(text: &[u8]) -> Option<Cow<'_, [u8]>> {
    if text == b"-" {
        return Some(Cow::Borrowed(b""));
    }
    if text.is_empty() {
        return None;
    }
    if !text.contains(&b'%') {
        return Some(Cow::Borrowed(text));
    }
    let mut parts = text.split(|b| *b == b'%');
    let mut out = parts.next()?.to_vec();
    for part in parts {
        let (hex, plain) = part.split_at_checked(2)?;
        let digit = |b: u8| char::from(b).to_digit(16);
        out.push((digit(hex[0])? * 16 + digit(hex[1])?) as u8);
        out.extend_from_slice(plain);
    }
    Some(Cow::Owned(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> Event<'static> {
        Event {
            instance: "node a".into(),
            epoch: 7,
            ..Event::now(Kind::Handled, "orders", 3, (1_700_000_000_000, 2), b"k-1")
        }
    }

    fn line(event: &Event<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        event.write(&mut out);
        out
    }

    fn parse(line: &[u8]) -> io::Result<Vec<Line<'_>>> {
        Line::parse(line).collect()
    }

    #[test]
    fn events_survive_a_round_trip() {
        let all: Vec<u8> = (0..=255).collect();
        for key in [&b""[..], b"-", b"--", b"a b>c%\n", &all, b"%41"] {
            for (kind, _) in Kind::ALL {
                let e = Event {
                    kind,
                    key: key.into(),
                    topic: "bestellungen/ä".into(),
                    id: (u64::MAX, u64::MAX),
                    time_ns: u64::MAX,
                    ..event()
                };
                assert_eq!(parse(&line(&e)).unwrap(), [Line::Event(e)]);
            }
        }
    }

    #[test]
    fn the_format_is_stable_and_readable() {
        let e = Event {
            time_ns: 5,
            ..event()
        };
        let text = ">handled 5 orders 3 1700000000000-2 k-1 node%20a 7 .\n";
        assert_eq!(String::from_utf8(line(&e)).unwrap(), text);
        let e = Event {
            time_ns: 6,
            ..Event::killed("b")
        };
        assert_eq!(
            String::from_utf8(line(&e)).unwrap(),
            ">killed 6 - 0 0-0 - b 0 .\n"
        );
    }

    #[test]
    fn a_torn_line_is_never_taken_for_an_event_nor_hides_the_next() {
        let e = event();
        let whole = line(&e);
        for n in 1..whole.len() - 1 {
            assert_eq!(parse(&whole[..n]).unwrap(), [Line::Torn], "{n}");
            let glued = [&whole[..n], &whole].concat();
            assert_eq!(parse(&glued).unwrap(), [Line::Torn, Line::Event(e.clone())]);
        }
        let glued = [&whole[..whole.len() - 1], &whole].concat();
        assert_eq!(parse(&glued).unwrap().len(), 2);
    }

    #[test]
    fn what_no_recorder_wrote_is_refused() {
        for bad in [
            "hello",
            "handled 5 orders 3 1-0 k a 7 .",
            ">handled 5 orders 3 1-0 k a .",
            ">handled 5 orders 3 1-0 k a 7 8 .",
            ">eaten 5 orders 3 1-0 k a 7 .",
            ">handled +5 orders 3 1-0 k a 7 .",
            ">handled 5 orders 4294967296 1-0 k a 7 .",
            ">handled 5 orders 3 10 k a 7 .",
            ">handled 5 orders 3 1-0  a 7 .",
            ">handled 5 orders 3 1-0 %4 a 7 .",
            ">handled 5 orders 3 1-0 %+1 a 7 .",
            ">handled 5 %FF 3 1-0 k a 7 .",
            ">handled 99999999999999999999 orders 3 1-0 k a 7 .",
        ] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
        assert_eq!(parse(b"\n").unwrap(), []);
    }
}
