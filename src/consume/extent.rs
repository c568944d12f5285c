//! Where a stream begins and ends, and what it ever held, as the server tells it.

use std::{fmt, time::Duration};

use crate::{
    Error, Result, StreamId,
    error::ErrorKind,
    net::{
        Connection, Skim,
        resp::{self, Cursor, Head, Span, Stop},
    },
};

/// A stream at one moment. The default is one in which nothing ever was.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Extent {
    /// The first entry that is still there; `None` when there is none.
    pub(crate) first: Option<StreamId>,
    /// The last that is still there. Not part of what is written down.
    pub(crate) newest: Option<StreamId>,
    /// The greatest id that was ever deleted by itself, which is not by trimming; `None` where none was, or where
    /// the server does not say. Not part of what is written down.
    pub(crate) deleted: Option<StreamId>,
    /// The id the server gave last, deleted or not; 0-0 when it gave none.
    pub(crate) last: StreamId,
    /// How many entries were ever added.
    pub(crate) added: u64,
    /// How many of those are gone, trimmed or deleted.
    pub(crate) removed: u64,
}

impl Extent {
    /// Renders the question.
    pub(crate) fn ask(out: &mut Vec<u8>, key: &[u8]) {
        resp::whole(out, &[b"XINFO", b"STREAM", key]);
    }

    /// How many entries are there.
    pub(crate) fn length(&self) -> u64 {
        self.added - self.removed
    }

    /// How many entries lie behind this one, before which, and with it, so many were added; `None` where that
    /// cannot be told.
    ///
    /// The server counts what it ever added. Trimming takes from the front, so that all that was added behind the
    /// place is still there; what was deleted from the middle is not, and how many those are nobody knows.
    pub(crate) fn behind(&self, id: StreamId, ordinal: Option<u64>) -> Option<u64> {
        let at_the_end = id >= self.newest.unwrap_or(self.last);
        let Some(first) = self.first.filter(|_| !at_the_end) else {
            return Some(0);
        };
        if id < first {
            return Some(self.length());
        }
        if self.deleted.is_some_and(|deleted| deleted > id) {
            return None;
        }
        // The first one is not behind it, and the last one is: a count that says otherwise is of another stream.
        let behind = self.added.checked_sub(ordinal?)?;
        (1..self.length()).contains(&behind).then_some(behind)
    }

    /// Reads one whole answer; `None` where there is no stream. What is not known is stepped over, in
    /// whatever order it comes.
    ///
    /// # Errors
    ///
    /// The server's own, without a word of what was asked; and [`ErrorKind::Protocol`] when the answer
    /// does not say what has to be known, as with servers older than Redis 7.
    pub(crate) fn read(answer: &[u8]) -> Result<Option<Self>> {
        let mut c = Cursor::new(answer, 0);
        match c.head() {
            Ok(Head::Error(text)) => {
                let text = text.of(answer);
                if text.ends_with(b"no such key") {
                    return Ok(None);
                }
                Err(Error::server("XINFO", text))
            }
            Ok(Head::Array(n)) => Self::of_pairs(c, answer, n / 2).map(Some),
            Ok(Head::Map(n)) => Self::of_pairs(c, answer, n).map(Some),
            _ => Err(odd("no list of facts")),
        }
    }

    fn of_pairs(mut c: Cursor<'_>, bytes: &[u8], pairs: usize) -> Result<Self> {
        let (mut first, mut newest) = (None, None);
        let (mut last, mut added, mut length, mut deleted) = (None, None, None, None);
        for _ in 0..pairs {
            let mut value = |c: &mut Cursor<'_>| -> Result<(), Stop> {
                let name = c.text()?.map_or(&b""[..], |name| name.of(bytes));
                let mut at_value = *c;
                c.skip()?;
                let head = at_value.head()?;
                match (name, head) {
                    (b"length", Head::Scalar(n)) => length = number(n, bytes),
                    (b"entries-added", Head::Scalar(n)) => added = number(n, bytes),
                    (b"last-generated-id", Head::Text(id)) => last = StreamId::parse(id.of(bytes)),
                    (b"max-deleted-entry-id", Head::Text(id)) => {
                        deleted = StreamId::parse(id.of(bytes));
                    }
                    (b"first-entry" | b"last-entry", Head::Array(n)) if n > 0 => {
                        let id = at_value.text()?;
                        let id = id.and_then(|id| StreamId::parse(id.of(bytes)));
                        *if name[0] == b'f' {
                            &mut first
                        } else {
                            &mut newest
                        } = id;
                    }
                    _ => {}
                }
                Ok(())
            };
            value(&mut c).map_err(|_| odd("what is no list of names and values"))?;
        }
        let (Some(last), Some(added), Some(length)) = (last, added, length) else {
            return Err(odd("no entries-added, length or last-generated-id"));
        };
        if (length > 0) != first.is_some() || length > added {
            return Err(odd("a length that does not go with the rest"));
        }
        Ok(Self {
            first,
            newest,
            deleted: deleted.filter(|id| *id > StreamId::MIN),
            last,
            added,
            removed: added - length,
        })
    }

    /// As [`read`](Self::read), of each of these streams, after asking. Blocks for one round trip.
    pub(crate) fn of_all<K: AsRef<[u8]>>(
        connection: &mut Connection,
        keys: &[K],
        timeout: Duration,
    ) -> Result<Vec<Option<Self>>> {
        let (mut questions, mut answers) = (Vec::new(), Vec::with_capacity(keys.len()));
        for key in keys {
            Self::ask(&mut questions, key.as_ref());
        }
        let take = |_, answer: &[u8]| answers.push(Self::read(answer));
        Skim::default().exchange(connection, &questions, keys.len(), timeout, take)?;
        let about = |(answer, key): (Result<_>, &K)| {
            answer.map_err(|e| e.on_key(key).at(connection.endpoint()))
        };
        answers.into_iter().zip(keys).map(about).collect()
    }

    /// As [`of_all`](Self::of_all), of one stream, which may not be there.
    pub(crate) fn of(connection: &mut Connection, key: &[u8], timeout: Duration) -> Result<Self> {
        let mut extents = Self::of_all(connection, &[key], timeout)?;
        Ok(extents.pop().flatten().unwrap_or_default())
    }

    /// Reads what was written down; nothing where that is anything else.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(text).ok()?.split(' ');
        let mut id = || StreamId::parse(words.next()?.as_bytes());
        let (first, last) = (id()?, id()?);
        let mut n = || words.next()?.parse().ok();
        Some(Self {
            first: (first > StreamId::MIN).then_some(first),
            newest: None,
            deleted: None,
            last,
            added: n()?,
            removed: n()?,
        })
    }

    /// This stream once it reached so far, if it had not.
    pub(super) fn grown_to(&self, last: StreamId, added: u64) -> Self {
        Self {
            last: self.last.max(last),
            added: self.added.max(added),
            ..*self
        }
    }

    /// Whether this can be what became of `then`, its last entries lost and others added instead perhaps:
    /// the same stream, and not another under its name.
    pub(super) fn may_come_of(&self, then: &Self) -> bool {
        // more entries do not end earlier
        let end = self.last >= then.last || self.added < then.added;
        // a later beginning takes a removal; and what was the first ever stays so until it is removed
        let by = |older: &Self, younger: &Self| older.removed > younger.removed;
        let beginning = match (self.first, then.first) {
            (Some(now), Some(before)) if now > before => by(self, then),
            (Some(now), Some(before)) if now < before => by(then, self),
            _ => true,
        };
        end && beginning
    }
}

/// As it is written down: `<first> <last> <added> <removed>`, with 0-0 for a first that is not there.
impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.first.unwrap_or(StreamId::MIN);
        let Self {
            last,
            added,
            removed,
            ..
        } = self;
        write!(f, "{first} {last} {added} {removed}")
    }
}

/// The id of the last entry that is still in this stream; 0-0 when there is none.
pub(crate) fn last_entry(
    connection: &mut Connection,
    key: &[u8],
    timeout: Duration,
) -> Result<StreamId> {
    let mut cmd = redis::cmd("XREVRANGE");
    cmd.arg(key).arg("+").arg("-").arg("COUNT").arg(1);
    let entries: Vec<(Vec<u8>, redis::Value)> = connection.ask(&cmd, timeout)?;
    Ok(entries
        .first()
        .and_then(|(id, _)| StreamId::parse(id))
        .unwrap_or_default())
}

fn number(span: Span, bytes: &[u8]) -> Option<u64> {
    std::str::from_utf8(span.of(bytes)).ok()?.parse().ok()
}

#[cold]
fn odd(what: &str) -> Error {
    let what = format!("the reply has {what}");
    Error::new(ErrorKind::Protocol, "XINFO", what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(first: u64, last: u64, added: u64, length: u64) -> Extent {
        Extent {
            first: (length > 0).then(|| StreamId::new(first, 0)),
            newest: None,
            deleted: None,
            last: StreamId::new(last, 0),
            added,
            removed: added - length,
        }
    }

    #[test]
    fn facts_are_found_among_others_in_any_order_and_either_protocol() {
        let want = Some(Extent {
            newest: Some(StreamId::new(8, 0)),
            deleted: Some(StreamId::new(6, 0)),
            ..extent(5, 9, 12, 3)
        });
        let entry = "*2\r\n$3\r\n5-0\r\n*2\r\n$1\r\nb\r\n$7\r\nentries\r\n";
        let facts = [
            "$13\r\nentries-added\r\n:12\r\n".to_owned(),
            "$6\r\nfuture\r\n*2\r\n:1\r\n*1\r\n$-1\r\n".to_owned(),
            format!("$11\r\nfirst-entry\r\n{entry}"),
            "$10\r\nlast-entry\r\n*2\r\n$3\r\n8-0\r\n*0\r\n".to_owned(),
            "$6\r\nlength\r\n:3\r\n".to_owned(),
            "$3\r\nnil\r\n$-1\r\n".to_owned(),
            "+max-deleted-entry-id\r\n$3\r\n6-0\r\n".to_owned(),
            "$17\r\nlast-generated-id\r\n$3\r\n9-0\r\n".to_owned(),
        ];
        for turn in 0..facts.len() {
            let mut facts = facts.clone();
            facts.rotate_left(turn);
            let body = facts.concat();
            for head in ["*16", "%8"] {
                let answer = format!("{head}\r\n{body}");
                assert_eq!(Extent::read(answer.as_bytes()).unwrap(), want, "{answer}");
            }
        }
    }

    #[test]
    fn a_stream_that_is_not_there_is_none_and_one_that_is_emptied_is_not_new() {
        assert_eq!(Extent::read(b"-ERR no such key\r\n").unwrap(), None);
        let emptied = "*8\r\n+length\r\n:0\r\n+entries-added\r\n:4\r\n+last-generated-id\r\n+4-0\r\n\
                       +first-entry\r\n$-1\r\n";
        let emptied = Extent::read(emptied.as_bytes()).unwrap().unwrap();
        assert_eq!(emptied, extent(0, 4, 4, 0));
        assert_eq!(emptied.removed, 4);
    }

    #[test]
    fn what_is_written_down_is_read_again() {
        for extent in [Extent::default(), extent(3, 9, 12, 3), extent(0, 4, 4, 0)] {
            assert_eq!(Extent::parse(extent.to_string().as_bytes()), Some(extent));
        }
        for text in ["", "1-0 2-0", "1-0 2-0 3", "x 2-0 3 4", "1-0 2-0 3 -4"] {
            assert_eq!(Extent::parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn what_does_not_tell_enough_is_an_error() {
        for (answer, kind) in [
            ("-NOPERM no\r\n", ErrorKind::Server),
            ("+OK\r\n", ErrorKind::Protocol),
            ("*0\r\n", ErrorKind::Protocol),
            ("*2\r\n+length\r\n:1\r\n", ErrorKind::Protocol),
            // as servers before Redis 7 answer
            (
                "*4\r\n+length\r\n:0\r\n+last-generated-id\r\n+4-0\r\n",
                ErrorKind::Protocol,
            ),
            (
                "*6\r\n+length\r\n:1\r\n+entries-added\r\n:1\r\n+last-generated-id\r\n+4-0\r\n",
                ErrorKind::Protocol,
            ),
            (
                "*6\r\n+length\r\n:-1\r\n+entries-added\r\n:1\r\n+last-generated-id\r\n+4-0\r\n",
                ErrorKind::Protocol,
            ),
        ] {
            let e = Extent::read(answer.as_bytes()).unwrap_err();
            assert_eq!(e.kind(), kind, "{answer}: {e}");
        }
    }

    #[test]
    fn moments_of_one_stream_are_told_from_those_of_two() {
        let rows = [
            // grown, trimmed, emptied, deleted from
            (extent(1, 5, 5, 5), extent(1, 9, 9, 9), true),
            (extent(1, 5, 5, 5), extent(4, 9, 9, 6), true),
            (extent(1, 5, 5, 5), extent(0, 9, 9, 0), true),
            (extent(1, 5, 5, 5), extent(1, 5, 5, 4), true),
            (extent(1, 5, 5, 5), extent(1, 5, 5, 5), true),
            (Extent::default(), extent(1, 5, 5, 5), true),
            (extent(0, 5, 5, 0), extent(6, 9, 9, 4), true),
            // rolled back, and grown since
            (extent(4, 9, 9, 6), extent(1, 5, 5, 5), true),
            (extent(0, 9, 9, 0), extent(1, 5, 5, 5), true),
            (extent(1, 9, 9, 9), extent(1, 12, 7, 7), true),
            (extent(1, 9, 9, 9), extent(1, 12, 9, 9), true),
            // more entries, and an earlier end
            (extent(1, 9, 5, 5), extent(1, 5, 9, 9), false),
            (extent(1, 6, 5, 5), extent(1, 5, 5, 5), false),
            // another first, and nothing was ever removed
            (extent(7, 9, 9, 9), extent(2, 3, 2, 2), false),
            (extent(1, 9, 9, 9), extent(20, 29, 9, 9), false),
            // a later first with fewer entries removed
            (extent(7, 9, 9, 3), extent(8, 20, 20, 18), false),
        ];
        for (then, now, one) in rows {
            assert_eq!(now.may_come_of(&then), one, "{then:?} {now:?}");
        }
    }
}
