//! Whole replies, read off a socket under one deadline however many pieces they come in.

use std::{
    io,
    ops::{Index, Range},
    time::Instant,
};

use super::{
    resp::{Cursor, Stop},
    socket::Socket,
};

/// The smallest room to read into.
const ROOM: usize = 8 * 1024;
/// A buffer that grew beyond this is given back once it is empty.
const KEEP: usize = 1 << 20;

/// What was received and not yet taken.
#[derive(Debug, Default)]
pub(super) struct Replies {
    buf: Vec<u8>,
    unread: Range<usize>,
}

impl Replies {
    /// The place of the next whole reply, good until the next call.
    ///
    /// Fails as [`Socket::recv_by`] does, and with `InvalidData` when the bytes are no reply. After a
    /// failure part of a reply may have been read: the connection is of no more use.
    pub(super) fn next(&mut self, socket: &Socket, deadline: Instant) -> io::Result<Range<usize>> {
        self.tidy();
        let mut needed = 1;
        loop {
            if self.unread.len() >= needed {
                let mut cursor = Cursor::new(&self.buf[self.unread.clone()], 0);
                match cursor.skip() {
                    Ok(()) => {
                        let end = self.unread.start + cursor.at();
                        let reply = self.unread.start..end;
                        self.unread.start = end;
                        return Ok(reply);
                    }
                    Err(Stop::Short(upto)) => needed = upto,
                    Err(Stop::Bad(why)) => {
                        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
                    }
                }
            }
            if self.unread.end == self.buf.len() {
                // doubled, not as large as the peer says: it may be lying
                self.buf.resize((self.buf.len() * 2).max(ROOM), 0);
            }
            self.unread.end += socket.recv_by(&mut self.buf[self.unread.end..], deadline)?;
        }
    }

    /// What was received after the last reply taken.
    pub(super) fn unread(&self) -> &[u8] {
        &self.buf[self.unread.clone()]
    }

    fn tidy(&mut self) {
        if self.unread.is_empty() {
            self.unread = 0..0;
            if self.buf.len() > KEEP {
                self.buf = Vec::new();
            }
        }
    }
}

impl Index<Range<usize>> for Replies {
    type Output = [u8];

    fn index(&self, place: Range<usize>) -> &[u8] {
        &self.buf[place]
    }
}

/// The text of an error reply, in either version of the protocol.
pub(super) fn error_text(reply: &[u8]) -> Option<&[u8]> {
    match Cursor::new(reply, 0).head() {
        Ok(super::resp::Head::Error(text)) => Some(text.of(reply)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use super::*;
    use crate::clock;

    const LONG: Duration = Duration::from_secs(20);

    fn deadline() -> Instant {
        clock::now() + LONG
    }

    #[test]
    fn replies_come_out_whole_however_they_are_cut() {
        let big = format!("$100000\r\n{}\r\n", "x".repeat(100_000));
        let wire = format!("+OK\r\n*2\r\n:1\r\n$2\r\nab\r\n{big}-ERR no\r\n");
        let (ours, theirs) = Socket::pair();
        for step in [1 << 20, 4093, 7] {
            thread::scope(|s| {
                s.spawn(|| {
                    for piece in wire.as_bytes().chunks(step) {
                        theirs.send_all(piece, LONG).unwrap();
                    }
                });
                let mut replies = Replies::default();
                for want in ["+OK\r\n", "*2\r\n:1\r\n$2\r\nab\r\n", &big, "-ERR no\r\n"] {
                    let place = replies.next(&ours, deadline()).unwrap();
                    assert_eq!(&replies[place], want.as_bytes());
                }
                assert!(replies.unread().is_empty());
            });
        }
    }

    #[test]
    fn a_trickle_does_not_stretch_the_deadline() {
        let (ours, theirs) = Socket::pair();
        let time = Duration::from_millis(100);
        thread::scope(|s| {
            let reader = s.spawn(|| {
                let r = Replies::default().next(&ours, clock::now() + time);
                ours.shutdown();
                r.unwrap_err().kind()
            });
            // a byte now and then, until the other side has had enough
            while theirs.send_all(b"*1\r\n", LONG).is_ok() {
                let silent = theirs.recv(&mut [0], Duration::from_millis(10));
                assert!(silent.is_err());
            }
            assert_eq!(reader.join().unwrap(), io::ErrorKind::TimedOut);
        });
    }

    #[test]
    fn other_bytes_are_no_reply_and_errors_have_a_text() {
        let (ours, theirs) = Socket::pair();
        theirs.send_all(b"HTTP/1.1 400\r\n", LONG).unwrap();
        let mut replies = Replies::default();
        let e = replies.next(&ours, deadline()).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::InvalidData);
        assert!(replies.unread().starts_with(b"HTTP"));

        assert_eq!(error_text(b"-ERR no\r\n"), Some(&b"ERR no"[..]));
        assert_eq!(error_text(b"!6\r\nERR no\r\n"), Some(&b"ERR no"[..]));
        assert_eq!(error_text(b"+ERR no\r\n"), None);
    }
}
