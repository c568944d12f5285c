//! Short replies, received one after the other into a small reused buffer.

use std::time::Duration;

use crate::{
    Result,
    error::{Error, ErrorKind},
};

use super::{
    Connection, Deadline,
    resp::{Cursor, Head, Span, Stop},
};

/// A reused receive buffer for short replies.
#[derive(Debug)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    filled: usize,
    at: usize,
    /// How long to poll for an answer before sleeping.
    spin: Duration,
}

/// Enough for a few hundred ids.
const INBOX: usize = 16 * 1024;

impl Default for Inbox {
    fn default() -> Self {
        Self {
            bytes: vec![0; INBOX],
            filled: 0,
            at: 0,
            spin: Duration::ZERO,
        }
    }
}

impl Inbox {
    pub(crate) fn set_spin(&mut self, spin: Duration) {
        self.spin = spin;
    }

    /// To be called before a request goes out on a fresh connection: nothing of another may be left.
    pub(crate) fn clear(&mut self) {
        self.filled = 0;
        self.at = 0;
    }

    /// Whether every byte received was part of a reply that was asked for.
    pub(crate) fn is_drained(&self) -> bool {
        self.at == self.filled
    }

    /// The next reply. Aggregates are refused: commands that answer with one are not for here.
    ///
    /// # Errors
    ///
    /// The connection must be given up. An error *reply* is no error here but a [`Head::Error`].
    #[inline]
    pub(crate) fn next(&mut self, connection: &mut Connection, by: Deadline) -> Result<Head> {
        self.next_by(Self::take, connection, by)
    }

    #[inline]
    fn next_by(
        &mut self,
        take: impl Fn(&mut Self) -> Result<Option<Head>>,
        connection: &mut Connection,
        by: Deadline,
    ) -> Result<Head> {
        loop {
            if !self.is_drained()
                && let Some(head) = take(self)?
            {
                return Ok(head);
            }
            let spin = self.spin;
            let room = self.room()?;
            let n = connection.recv(room, spin, by.wait_for_answer()?)?;
            self.filled(n);
        }
    }

    /// The next reply of those that have arrived, if there is a whole one; as [`next`](Self::next).
    #[inline]
    pub(crate) fn take(&mut self) -> Result<Option<Head>> {
        match self.take_head()? {
            Some(Head::Array(_) | Head::Map(_) | Head::Push(_) | Head::Attribute(_)) => {
                Err(not_a_reply("an aggregate where a short reply belongs"))
            }
            short => Ok(short),
        }
    }

    /// As [`take`](Self::take), and of an aggregate its size.
    #[inline]
    fn take_head(&mut self) -> Result<Option<Head>> {
        let mut c = Cursor::new(&self.bytes[..self.filled], self.at);
        match c.head() {
            Ok(head) => {
                self.at = c.at();
                Ok(Some(head))
            }
            Err(Stop::Bad(why)) => Err(not_a_reply(why)),
            Err(Stop::Short(_)) => Ok(None),
        }
    }

    /// Where more is to be received into; [`filled`](Self::filled) says how much it was.
    #[inline]
    pub(crate) fn room(&mut self) -> Result<&mut [u8]> {
        if self.is_drained() {
            self.clear();
        } else if self.at > 0 {
            self.bytes.copy_within(self.at..self.filled, 0);
            self.filled -= self.at;
            self.at = 0;
        }
        if self.filled == self.bytes.len() {
            return Err(not_a_reply("a short reply that has no end"));
        }
        Ok(&mut self.bytes[self.filled..])
    }

    pub(crate) fn filled(&mut self, n: usize) {
        self.filled += n;
    }

    /// What the reply just taken says.
    #[inline]
    pub(crate) fn bytes_of(&self, head: Head) -> &[u8] {
        match head {
            Head::Text(span) | Head::Error(span) | Head::Scalar(span) => self.text(span),
            _ => b"",
        }
    }

    pub(crate) fn text(&self, span: Span) -> &[u8] {
        span.of(&self.bytes)
    }

    /// Sends `commands` and takes their `n` replies; `each` is given those that are no refusals.
    ///
    /// # Errors
    ///
    /// The first refusal, once all replies are in. After any other error the connection must be given up.
    pub(crate) fn exchange(
        &mut self,
        connection: &mut Connection,
        commands: &[u8],
        n: usize,
        timeout: Duration,
        mut each: impl FnMut(usize, &[u8]),
    ) -> Result<()> {
        let by = Deadline::after(timeout);
        self.clear();
        connection.send(commands, timeout)?;
        let mut refused = None;
        for i in 0..n {
            match self.next(connection, by)? {
                Head::Error(text) => {
                    let e = Error::server("store", self.text(text));
                    connection.heed(&e);
                    refused.get_or_insert(e);
                }
                head => each(i, self.bytes_of(head)),
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// Sends a command that is answered with `n` values, and passes on those that are not nil.
    ///
    /// # Errors
    ///
    /// The server's refusal. After any other error the connection must be given up.
    pub(crate) fn ask_fields(
        &mut self,
        connection: &mut Connection,
        command: &[u8],
        n: usize,
        timeout: Duration,
        mut each: impl FnMut(usize, &[u8]),
    ) -> Result<()> {
        let by = Deadline::after(timeout);
        self.clear();
        connection.send(command, timeout)?;
        match self.next_by(Self::take_head, connection, by)? {
            Head::Array(size) if size == n => {}
            Head::Error(text) => return Err(Error::server("read", self.text(text))),
            _ => return Err(not_a_reply("not a value for each field")),
        }
        for i in 0..n {
            match self.next(connection, by)? {
                Head::Nil => {}
                head => each(i, self.bytes_of(head)),
            }
        }
        Ok(())
    }
}

fn not_a_reply(why: &'static str) -> Error {
    Error::new(
        ErrorKind::Protocol,
        "receive",
        format!("the reply has {why}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        net::{Target, resp},
        testing::{Answer, Stub},
    };

    const LONG: Duration = Duration::from_secs(20);

    /// A stub that answers SAY with what comes after it, and a connection to it.
    fn parrot() -> (Stub, Connection) {
        let stub = Stub::start(|args, _| match &args[0][..] {
            b"SAY" => Answer::Bytes(args[1].clone()),
            b"HALF" => Answer::Half(args[1].clone()),
            b"MUTE" => Answer::Nothing,
            _ => Answer::Usual,
        })
        .unwrap();
        let target = Target::parse(&stub.url()).unwrap();
        let connection = Connection::dial(&target, "inbox", None, LONG).unwrap();
        (stub, connection)
    }

    fn ask(connection: &mut Connection, words: &[&[u8]]) {
        let mut out = Vec::new();
        resp::whole(&mut out, words);
        connection.send(&out, LONG).unwrap();
    }

    #[test]
    fn replies_come_one_by_one_however_many_arrive_at_once() {
        let (_stub, mut c) = parrot();
        let mut inbox = Inbox::default();
        let long = "x".repeat(300);
        let each = |n| format!("$303\r\n{n:03}{long}\r\n");
        let all = (0..500).map(each).collect::<Vec<_>>().concat();
        assert!(all.len() > 4 * INBOX, "they do not fit at once");
        ask(&mut c, &[b"SAY", all.as_bytes()]);
        for n in 0..500 {
            let Head::Text(span) = inbox.next(&mut c, Deadline::after(LONG)).unwrap() else {
                panic!("not a text");
            };
            assert_eq!(inbox.text(span), format!("{n:03}{long}").as_bytes());
        }
        assert!(inbox.is_drained());
        ask(&mut c, &[b"SAY", b":1\r\n+more\r\n"]);
        inbox.next(&mut c, Deadline::after(LONG)).unwrap();
        assert!(!inbox.is_drained());
        inbox.clear();
        assert!(inbox.is_drained());
    }

    #[test]
    fn what_is_no_short_reply_is_refused() {
        let endless = format!("+{}", "x".repeat(2 * INBOX));
        for (bytes, because) in [
            ("*1\r\n:1\r\n", "an aggregate"),
            ("%0\r\n", "an aggregate"),
            ("hello\r\n", "unknown type mark"),
            (&*endless, "no end"),
        ] {
            let (_stub, mut c) = parrot();
            ask(&mut c, &[b"SAY", bytes.as_bytes()]);
            let e = Inbox::default()
                .next(&mut c, Deadline::after(LONG))
                .unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Protocol);
            assert!(e.to_string().contains(because), "{e}");
        }
    }

    #[test]
    fn a_reply_that_does_not_come_whole_is_an_error() {
        let (_stub, mut c) = parrot();
        ask(&mut c, &[b"HALF", b"$10\r\n0123456789\r\n"]);
        let e = Inbox::default()
            .next(&mut c, Deadline::after(LONG))
            .unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Io);
        let (_stub, mut c) = parrot();
        ask(&mut c, &[b"MUTE"]);
        let soon = Deadline::after(Duration::from_millis(100));
        let e = Inbox::default().next(&mut c, soon).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Timeout);
    }

    #[test]
    fn fields_are_passed_on_with_their_place_and_nils_are_not() {
        let fields = |c: &mut Connection, reply: &[u8], n| {
            let (mut out, mut seen) = (Vec::new(), Vec::new());
            resp::whole(&mut out, &[b"SAY", reply]);
            let each = |i, value: &[u8]| seen.push((i, value.to_vec()));
            let asked = Inbox::default().ask_fields(c, &out, n, LONG, each);
            asked.map(|()| seen)
        };
        let (_stub, mut c) = parrot();
        let seen = fields(&mut c, b"*3\r\n$-1\r\n$3\r\n0-0\r\n_\r\n", 3);
        assert_eq!(seen.unwrap(), [(1, b"0-0".to_vec())]);
        let e = fields(&mut c, b"-WRONGTYPE no hash\r\n", 3).unwrap_err();
        assert_eq!(e.server_code(), Some("WRONGTYPE"));
        assert_eq!(fields(&mut c, b"*0\r\n", 0).unwrap(), [], "in step");
        for odd in [
            &b"*2\r\n$-1\r\n$-1\r\n"[..],
            b":3\r\n",
            b"*3\r\n*1\r\n:1\r\n",
        ] {
            let (_stub, mut c) = parrot();
            let e = fields(&mut c, odd, 3).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Protocol, "{e}");
        }
    }

    #[test]
    fn an_exchange_takes_every_reply_before_it_reports_a_refusal() {
        let (_stub, mut c) = parrot();
        let mut inbox = Inbox::default();
        let mut three = Vec::new();
        for reply in [&b":1\r\n"[..], b"-OOM full\r\n", b"-ERR second\r\n"] {
            resp::whole(&mut three, &[b"SAY", reply]);
        }
        let e = inbox
            .exchange(&mut c, &three, 3, LONG, |_, _| {})
            .unwrap_err();
        assert_eq!(e.server_code(), Some("OOM"));
        assert!(
            inbox.is_drained() && c.check_idle().is_ok(),
            "the connection is in step"
        );
        let mut one = Vec::new();
        resp::whole(&mut one, &[b"PING"]);
        inbox.exchange(&mut c, &one, 1, LONG, |_, _| {}).unwrap();
    }
}
