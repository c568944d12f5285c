//! Bodies that are kept apart: asked for in one pipeline, and received into the arena behind the reply that
//! refers to them. As many at a time as a batch may hold.

use std::time::{Duration, Instant};

use crate::{
    Result, StreamId,
    batch::Record,
    clock,
    error::{Error, ErrorKind, ServerClass},
    net::resp::{self, Cursor, Head, Span, Stop},
    wire::Reference,
};

use super::Reader;

/// At most so many are asked for at a time.
const MOST_AT_A_TIME: usize = 512;

/// What comes with a payload at most: the marks around it, or a refusal in its place.
const AROUND: usize = 512;

/// How far the bodies of the last read are here.
#[derive(Debug, Default)]
pub(super) struct Payloads {
    /// What the key of every payload begins with; the id follows.
    prefix: Box<[u8]>,
    /// Messages before this one can be handed over; beyond the last where that is all of them.
    ready: usize,
    /// Where the reply ends, and payloads begin.
    behind: usize,
    /// What was asked for.
    wanted: Vec<Wanted>,
}

/// A payload that was asked for.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    /// The message that refers to it.
    nth: usize,
    reference: Reference,
    found: Option<Span>,
}

impl Reader {
    /// What the keys of payloads begin with; the id follows.
    pub(crate) fn with_payloads(mut self, prefix: Box<[u8]>) -> Self {
        self.payloads.prefix = prefix;
        self
    }

    /// The messages of the last read from `start` on that can be handed over: their bodies are here, or, of one
    /// by itself, known to be missing.
    #[inline]
    pub(crate) fn ready_from(&self, start: usize) -> &[Record] {
        let records = self.index.records();
        &records[start..self.payloads.ready.min(records.len())]
    }

    /// Whether there is none of these.
    #[inline]
    pub(crate) fn waits_for_body(&self, start: usize) -> bool {
        start >= self.payloads.ready
    }

    /// Whether all messages of the last read can be handed over.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.payloads.ready >= self.index.records().len()
    }

    /// Takes note of what a read brought.
    #[inline]
    pub(super) fn heed_payloads(&mut self) {
        self.payloads.ready = if self.index.has_apart() {
            0
        } else {
            usize::MAX
        };
        self.payloads.behind = self.arena.received().len();
    }

    /// Fetches bodies from the message at `start` on, which are those of one batch; what was fetched before is
    /// gone. Nothing may be outstanding. Afterwards at least that message is [ready](Self::ready_from), and
    /// one whose body is missing is so by itself.
    ///
    /// # Errors
    ///
    /// The connection must be given up after any error but the server's own.
    pub(crate) fn fetch(&mut self, start: usize) -> Result<()> {
        debug_assert!(self.asked.is_none());
        self.payloads.ready = start;
        self.arena.truncate(self.payloads.behind);
        let end = self.ask_for_payloads(start);
        if !self.payloads.wanted.is_empty() {
            self.receive_payloads()?;
        }
        let mut ready = end;
        for wanted in &self.payloads.wanted {
            self.index.found(wanted.nth, wanted.found);
            if wanted.found.is_none() {
                // by itself; those behind it are asked for again
                ready = wanted.nth.max(start + 1);
                break;
            }
        }
        self.payloads.ready = ready;
        if self.arena.capacity() > self.plan.arena_bytes() {
            self.small_in_a_row = 0;
        }
        Ok(())
    }

    /// Writes the commands; returns the first message that is not among those they are about.
    fn ask_for_payloads(&mut self, start: usize) -> usize {
        self.out.clear();
        self.payloads.wanted.clear();
        let (n, mut bytes) = (self.index.records().len(), 0);
        for nth in start..n {
            let Some(reference) = self.index.reference(nth, self.arena.received()) else {
                continue;
            };
            let len = reference.len();
            let (first, large) = (
                self.payloads.wanted.is_empty(),
                self.is_too_large(reference),
            );
            let full = self.payloads.wanted.len() == MOST_AT_A_TIME;
            // One that is too large must not hold up those before it.
            if full || !first && bytes + len > self.plan.batch_bytes || large && nth > start {
                return nth;
            }
            resp::command(&mut self.out, if large { 2 } else { 4 });
            resp::arg(&mut self.out, if large { b"STRLEN" } else { b"GETRANGE" });
            resp::arg_joined(&mut self.out, &self.payloads.prefix, reference.id());
            if !large {
                // One byte more than there should be shows what is longer, whatever it holds.
                resp::arg(&mut self.out, b"0");
                resp::arg_number(&mut self.out, len as u64);
            }
            bytes += len;
            self.payloads.wanted.push(Wanted {
                nth,
                reference,
                found: None,
            });
            if large {
                return nth + 1;
            }
        }
        n
    }

    fn is_too_large(&self, reference: Reference) -> bool {
        reference.len() > self.plan.max_entry_bytes
    }

    fn receive_payloads(&mut self) -> Result<()> {
        let behind = self.payloads.behind;
        let room = |w: &Wanted| {
            let is_sent = !self.is_too_large(w.reference);
            AROUND + if is_sent { w.reference.len() } else { 0 }
        };
        let limit = behind + self.payloads.wanted.iter().map(room).sum::<usize>();
        if !self.arena.grow_to(limit) {
            let why = "payloads of over 4 GiB";
            return Err(self.about_payloads(Error::new(ErrorKind::TooLarge, "fetch", why)));
        }
        let Some(connection) = &mut self.connection else {
            return Err(Error::new(ErrorKind::Io, "fetch", "not connected"));
        };
        let sent = connection.send(&self.out, self.plan.slack);
        sent.map_err(|e| self.about_payloads(e))?;
        let (mut at, mut began, mut refused) = (behind, None, None);
        for i in 0..self.payloads.wanted.len() {
            let head = loop {
                let mut c = Cursor::new(self.arena.received(), at);
                match c.head() {
                    Ok(head) => {
                        at = c.at();
                        break head;
                    }
                    Err(Stop::Short(need)) if need <= limit => {
                        let partial = self.arena.received().len() > behind;
                        let more = self.receive_more(partial, &mut began, self.plan.slack);
                        more.map_err(|e| self.about_payloads(e))?;
                    }
                    Err(Stop::Short(_)) => return Err(self.no_payload("more than was asked for")),
                    Err(Stop::Bad(why)) => return Err(self.no_payload(why)),
                }
            };
            match self.judge_payload(i, head) {
                Ok(found) => self.payloads.wanted[i].found = found,
                Err(e) => {
                    refused.get_or_insert(e);
                }
            }
        }
        if at != self.arena.received().len() {
            return Err(self.no_payload("more than was asked for"));
        }
        refused.map_or(Ok(()), Err)
    }

    /// One receive, of the rest of what has begun to arrive if it is `partial`.
    pub(super) fn receive_more(
        &mut self,
        partial: bool,
        began: &mut Option<Instant>,
        patience: Duration,
    ) -> Result<()> {
        let Some(connection) = &mut self.connection else {
            return Err(Error::new(ErrorKind::Io, "read", "not connected"));
        };
        if partial {
            began.get_or_insert_with(clock::now);
            if self.plan.is_late(*began) {
                let why = "a reply came too slowly";
                return Err(Error::new(ErrorKind::Timeout, "read", why));
            }
        }
        // The rest of a reply is on its way already.
        let spin = if partial {
            Duration::ZERO
        } else {
            self.plan.spin
        };
        let n = connection.recv(self.arena.room(), spin, patience)?;
        self.arena.filled(n);
        Ok(())
    }

    /// Where the payload is that an answer holds; `None` when it is not there.
    fn judge_payload(&self, i: usize, head: Head) -> Result<Option<Span>> {
        let Wanted { nth, reference, .. } = self.payloads.wanted[i];
        let received = self.arena.received();
        match head {
            Head::Text(body) if body.len as usize == reference.len() => Ok(Some(body)),
            Head::Scalar(n) if n.of(received) == reference.len().to_string().as_bytes() => {
                let id: StreamId = self.index.records()[nth].id;
                let what = format!(
                    "the body of message {id} is {} bytes, over the limit of {} (raise MaxMessageBytes, or \
                     delete the entry)",
                    reference.len(),
                    self.plan.max_entry_bytes
                );
                Err(self.about_payloads(Error::new(ErrorKind::TooLarge, "fetch", what)))
            }
            // Nothing, or not what was written there.
            Head::Text(_) | Head::Nil | Head::Scalar(_) => Ok(None),
            Head::Error(text) => {
                let e = Error::server("fetch", text.of(received));
                if e.server_code() == Some("WRONGTYPE") {
                    return Ok(None);
                }
                self.connection.iter().for_each(|c| c.heed(&e));
                let e = if e.server_class() == Some(ServerClass::NoPermission) {
                    let prefix = String::from_utf8_lossy(&self.payloads.prefix);
                    let what = format!(
                        "{}; bodies that are kept apart need ACL SETUSER <user> +getrange +strlen ~{prefix}*",
                        e.message()
                    );
                    e.saying(what)
                } else {
                    e
                };
                Err(self.about_payloads(e))
            }
            _ => Err(self.no_payload("an aggregate")),
        }
    }

    #[cold]
    fn no_payload(&self, why: &'static str) -> Error {
        let what = format!("the reply has {why} where a payload belongs");
        self.about_payloads(Error::new(ErrorKind::Protocol, "fetch", what))
    }

    #[cold]
    fn about_payloads(&self, e: Error) -> Error {
        self.about(e).during("fetch a body that is kept apart")
    }
}
