//! Replies of which only the short texts are wanted: the long ones are let go of as they arrive, so that
//! a reply about large entries takes no more memory than one about small ones.

use std::time::Duration;

use crate::{
    Result,
    error::{Error, ErrorKind},
};

use super::{
    Connection, Deadline,
    resp::{Cursor, Head, Stop},
};

/// Texts longer than this are left out: an empty one stands in their place.
const LONGEST: usize = 256;
/// What is received at once. No line and no text that is kept is longer.
const ROOM: usize = 8 * 1024;

/// A reused receive buffer for replies that are skimmed.
#[derive(Debug, Default)]
pub(crate) struct Skim {
    bytes: Vec<u8>,
    at: usize,
    filled: usize,
    /// The reply so far, long texts left out.
    kept: Vec<u8>,
}

/// What a line begins.
enum Begun {
    /// So many values, which are still to come, in its place.
    Values(usize),
    /// A text of so many bytes.
    Text(usize),
}

impl Skim {
    /// Sends `commands` and hands each of their `n` replies to `take`, errors included, within `timeout`
    /// in total. Allocates nothing in steady state.
    ///
    /// # Errors
    ///
    /// The connection must be given up.
    pub(crate) fn exchange(
        &mut self,
        connection: &mut Connection,
        commands: &[u8],
        n: usize,
        timeout: Duration,
        mut take: impl FnMut(usize, &[u8]),
    ) -> Result<()> {
        let by = Deadline::after(timeout);
        self.bytes.resize(ROOM, 0);
        (self.at, self.filled) = (0, 0);
        connection.send(commands, timeout)?;
        for i in 0..n {
            self.next(|room| connection.recv(room, Duration::ZERO, by.wait_for_answer()?))?;
            take(i, &self.kept);
        }
        if self.at < self.filled {
            return Err(not_a_reply("more than was asked for"));
        }
        Ok(())
    }

    /// Receives one whole reply into `kept`.
    fn next(&mut self, mut recv: impl FnMut(&mut [u8]) -> Result<usize>) -> Result<()> {
        self.kept.clear();
        let mut left = 1usize;
        while left > 0 {
            left -= 1;
            let line = loop {
                let here = &self.bytes[self.at..self.filled];
                match here.windows(2).position(|w| w == b"\r\n") {
                    Some(end) => break self.at..self.at + end + 2,
                    None => self.receive(&mut recv)?,
                }
            };
            self.at = line.end;
            let line = &self.bytes[line];
            match begun(line)? {
                Begun::Values(n) => {
                    left = left.saturating_add(n);
                    self.kept.extend_from_slice(line);
                }
                Begun::Text(n) if n <= LONGEST => {
                    self.kept.extend_from_slice(line);
                    while self.filled - self.at < n + 2 {
                        self.receive(&mut recv)?;
                    }
                    let text = self.at..self.at + n + 2;
                    self.at = text.end;
                    self.kept.extend_from_slice(&self.bytes[text]);
                }
                Begun::Text(n) => {
                    self.kept.extend_from_slice(b"$0\r\n\r\n");
                    let mut n = n.saturating_add(2);
                    while n > self.filled - self.at {
                        n -= self.filled - self.at;
                        self.at = self.filled;
                        self.receive(&mut recv)?;
                    }
                    self.at += n;
                }
            }
        }
        Ok(())
    }

    /// One receive, behind what is there and not used yet.
    fn receive(&mut self, recv: &mut impl FnMut(&mut [u8]) -> Result<usize>) -> Result<()> {
        self.bytes.copy_within(self.at..self.filled, 0);
        (self.at, self.filled) = (0, self.filled - self.at);
        if self.filled == self.bytes.len() {
            return Err(not_a_reply("a line that has no end"));
        }
        self.filled += recv(&mut self.bytes[self.filled..])?;
        Ok(())
    }
}

/// What a whole line begins.
fn begun(line: &[u8]) -> Result<Begun> {
    if matches!(line[0], b'$' | b'=' | b'!') {
        let digits = &line[1..line.len() - 2];
        let n = std::str::from_utf8(digits)
            .ok()
            .and_then(|n| n.parse().ok());
        return match n {
            Some(n) => Ok(Begun::Text(n)),
            None if digits == b"-1" => Ok(Begun::Values(0)),
            None => Err(not_a_reply("a length that is no number")),
        };
    }
    let more = match Cursor::new(line, 0).head() {
        Ok(Head::Array(n)) => n,
        Ok(Head::Map(n)) => n.saturating_mul(2),
        // neither counts as a value itself
        Ok(Head::Push(n)) => n.saturating_add(1),
        Ok(Head::Attribute(n)) => n.saturating_mul(2).saturating_add(1),
        Ok(Head::Text(_) | Head::Error(_) | Head::Nil | Head::Scalar(_)) => 0,
        Err(Stop::Bad(why)) => return Err(not_a_reply(why)),
        Err(Stop::Short(_)) => return Err(not_a_reply("an unfinished line")),
    };
    Ok(Begun::Values(more))
}

#[cold]
fn not_a_reply(why: &'static str) -> Error {
    let what = format!("the reply has {why}");
    Error::new(ErrorKind::Protocol, "receive", what)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The replies in `bytes`, which arrive `piece` bytes at a time, and how much room they took.
    fn skimmed(bytes: &[u8], piece: usize, n: usize) -> Result<(Vec<String>, usize)> {
        let mut skim = Skim {
            bytes: vec![0; ROOM],
            ..Skim::default()
        };
        let (mut rest, mut replies) = (bytes, Vec::new());
        for _ in 0..n {
            skim.next(|room| {
                let n = piece.min(room.len()).min(rest.len());
                if n == 0 {
                    return Err(Error::new(ErrorKind::Io, "receive", "the end"));
                }
                room[..n].copy_from_slice(&rest[..n]);
                rest = &rest[n..];
                Ok(n)
            })?;
            replies.push(String::from_utf8_lossy(&skim.kept).into_owned());
        }
        assert!(rest.is_empty() && skim.at == skim.filled, "all is used up");
        Ok((replies, skim.bytes.len() + skim.kept.capacity()))
    }

    #[test]
    fn short_replies_are_kept_as_they_came_and_long_texts_left_out() {
        let long = "x\r\n".repeat(2_000_000);
        let replies = [
            ":12\r\n".to_owned(),
            "+OK\r\n".to_owned(),
            "-ERR no\r\n".to_owned(),
            "$-1\r\n".to_owned(),
            "*-1\r\n".to_owned(),
            "*2\r\n$1\r\na\r\n*1\r\n%1\r\n+k\r\n_\r\n".to_owned(),
            format!("*3\r\n$4\r\nname\r\n${}\r\n{long}\r\n:7\r\n", long.len()),
        ];
        let bytes = replies.concat();
        for piece in [1, 7, 1000, usize::MAX] {
            let (got, room) = skimmed(bytes.as_bytes(), piece, replies.len()).unwrap();
            assert_eq!(got[..6], replies[..6]);
            assert_eq!(got[6], "*3\r\n$4\r\nname\r\n$0\r\n\r\n:7\r\n");
            assert!(room < 2 * ROOM, "{room}");
        }
    }

    #[test]
    fn what_is_no_reply_is_an_error() {
        for bytes in ["$x\r\n", "$-2\r\n", "*x\r\n", "?\r\n"] {
            let e = skimmed(bytes.as_bytes(), 3, 1).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Protocol, "{bytes:?}: {e}");
        }
        let endless = format!("+{}", "x".repeat(2 * ROOM));
        let e = skimmed(endless.as_bytes(), 100, 1).unwrap_err();
        assert!(e.to_string().contains("no end"), "{e}");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), piece in 1..9usize) {
            let mut skim = Skim { bytes: vec![0; ROOM], ..Skim::default() };
            let mut rest = &bytes[..];
            let _ = skim.next(|room| {
                let n = piece.min(rest.len()).min(room.len());
                room[..n].copy_from_slice(&rest[..n]);
                rest = &rest[n..];
                if n == 0 { Err(not_a_reply("an end")) } else { Ok(n) }
            });
        }
    }
}
