//! Short replies, received one after the other into a small reused buffer.

use std::time::Duration;

use crate::{
    Result, clock,
    error::{Error, ErrorKind},
};

use super::{
    Connection,
    resp::{Cursor, Head, Span, Stop},
};

/// When a call has to be over, on the coarse clock: precise to some milliseconds, nearly free to read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at_ms: u64,
    allowed: Duration,
}

/// The coarse clock's tick, or more.
const TICK_MS: u64 = 10;

impl Deadline {
    pub(crate) fn after(allowed: Duration) -> Self {
        Self {
            at_ms: clock::coarse_ms() + clock::ceil_ms(allowed),
            allowed,
        }
    }

    /// What the whole call was allowed.
    pub(crate) fn allowed(self) -> Duration {
        self.allowed
    }

    /// What is left of it; zero when it has passed.
    pub(crate) fn left(self) -> Duration {
        Duration::from_millis(self.at_ms.saturating_sub(clock::coarse_ms()))
    }

    /// What a single wait may take: all that was allowed while next to nothing of it is used up, so that
    /// a socket's timeout need not be set anew for every call.
    pub(crate) fn wait(self) -> Duration {
        let left = self.left();
        let untouched = left + Duration::from_millis(TICK_MS) >= self.allowed;
        if untouched { self.allowed } else { left }
    }
}

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
    pub(crate) fn next(&mut self, connection: &mut Connection, by: Deadline) -> Result<Head> {
        loop {
            let mut c = Cursor::new(&self.bytes[..self.filled], self.at);
            match c.head() {
                Ok(head @ (Head::Text(_) | Head::Error(_) | Head::Scalar(_) | Head::Nil)) => {
                    self.at = c.at();
                    return Ok(head);
                }
                Ok(_) => return Err(not_a_reply("an aggregate where a short reply belongs")),
                Err(Stop::Bad(why)) => return Err(not_a_reply(why)),
                Err(Stop::Short(_)) => self.receive(connection, by)?,
            }
        }
    }

    pub(crate) fn text(&self, span: Span) -> &[u8] {
        span.of(&self.bytes)
    }

    fn receive(&mut self, connection: &mut Connection, by: Deadline) -> Result<()> {
        if self.at > 0 {
            self.bytes.copy_within(self.at..self.filled, 0);
            self.filled -= self.at;
            self.at = 0;
        }
        if self.filled == self.bytes.len() {
            return Err(not_a_reply("a short reply that has no end"));
        }
        let wait = by.wait();
        if wait.is_zero() {
            let what = format!("no whole answer within {} ms", by.allowed().as_millis());
            return Err(Error::new(ErrorKind::Timeout, "receive", what));
        }
        self.filled += connection.recv(&mut self.bytes[self.filled..], self.spin, wait)?;
        Ok(())
    }

    /// Sends `commands` and takes their `n` replies.
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
    ) -> Result<()> {
        let by = Deadline::after(timeout);
        self.clear();
        connection.send(commands, timeout)?;
        let mut refused = None;
        for _ in 0..n {
            if let Head::Error(text) = self.next(connection, by)? {
                refused.get_or_insert_with(|| Error::server("store", self.text(text)));
            }
        }
        refused.map_or(Ok(()), Err)
    }
}

fn not_a_reply(why: &'static str) -> Error {
    Error::new(
        ErrorKind::Protocol,
        "receive",
        format!("the reply has {why}"),
    )
}
