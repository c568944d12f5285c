//! One partition's connection and what it brings: requests go out, whole replies come in.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    Result, StreamId,
    batch::{Arena, ArenaPool, Filter, Index, Progress, Record},
    clock,
    error::{Error, ErrorKind, Outcome},
    net::{
        Connection, Interrupt, Target,
        resp::{self, Span},
    },
    wire::ID_MAX,
};

use super::sizing::Sizing;
use payloads::Payloads;

mod payloads;

/// How a lane reads; fixed at its start.
#[derive(Clone, Debug)]
pub(crate) struct ReadPlan {
    pub(crate) batch_size: u32,
    pub(crate) batch_bytes: usize,
    /// How long a read may wait at the server; `None` to poll.
    pub(crate) block: Option<Duration>,
    /// How much later than that an answer may come.
    pub(crate) slack: Duration,
    /// How long to poll the socket before sleeping in a read.
    pub(crate) spin: Duration,
    pub(crate) connect_timeout: Duration,
    /// The largest entry taken.
    pub(crate) max_entry_bytes: usize,
    pub(crate) filter: Filter,
    /// Which consumer group reads, and as which of its members; `None` to read as nobody in particular.
    pub(crate) group: Option<Member>,
}

/// A member of a consumer group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Member {
    pub(crate) group: Box<str>,
    pub(crate) name: Box<str>,
}

impl ReadPlan {
    /// What an arena holds to begin with, and shrinks back to: one reply of the size aimed at, and the
    /// overshoot of a last entry.
    pub(crate) fn arena_bytes(&self) -> usize {
        self.batch_bytes + self.batch_bytes / 4
    }

    /// How long an answer may take.
    pub(crate) fn patience(&self) -> Duration {
        self.block.unwrap_or_default() + self.slack
    }

    /// Whether a reply that began then should be here whole by now.
    fn is_late(&self, began: Option<Instant>) -> bool {
        began.is_some_and(|since| since.elapsed() > self.slack * TAIL_SLACKS)
    }

    /// Replies larger than this are used up to their last whole entry.
    fn budget(&self) -> usize {
        (4 * self.batch_bytes).max(1024 * 1024)
    }
}

/// What a read brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Brought {
    Nothing,
    /// At least one entry, though the filter may have left all of them out.
    Entries {
        /// As many as were asked for: there are probably more.
        full: bool,
    },
}

/// What an entry holds beside what its publisher counted: its id, field names and lengths.
const FRAMING: usize = 64 * 1024;
/// The rest of a reply that has begun must arrive within so many slacks; what has not is asked for again.
const TAIL_SLACKS: u32 = 10;
/// How long a brief request waits at the server.
const BRIEF_MS: u64 = 1000;
/// After so many small replies in a row a grown arena is given back.
const SMALL_IN_A_ROW: u32 = 64;

#[derive(Debug)]
pub(crate) struct Reader {
    plan: Arc<ReadPlan>,
    target: Arc<Target>,
    client_name: String,
    interrupt: Arc<Interrupt>,
    connection: Option<Connection>,
    pool: ArenaPool,
    arena: Arena,
    index: Index,
    payloads: Payloads,
    key: Box<[u8]>,
    /// The constant part of the request, for so many entries and milliseconds; `None`: it waits for nothing.
    head: Vec<u8>,
    rendered: (u32, Option<u64>),
    /// Of a group: what comes next is what this member has been given before and not acknowledged, beyond
    /// the cursor, instead of what nobody has been given.
    given_before: bool,
    /// The most entries asked for, where fewer are wanted than a batch has.
    most: u32,
    /// The longest that a read waits, where that is less than the plan says.
    longest: Duration,
    out: Vec<u8>,
    sizing: Sizing,
    /// The last id read.
    cursor: StreamId,
    /// How many entries the request on its way asked for.
    asked: Option<u32>,
    small_in_a_row: u32,
    /// The commands sent ahead of the last request were carried out.
    confirmed: bool,
    /// The last read ended with the connection.
    broke: bool,
}

impl Reader {
    pub(crate) fn new(
        plan: Arc<ReadPlan>,
        target: Arc<Target>,
        client_name: String,
        interrupt: Arc<Interrupt>,
        pool: ArenaPool,
        key: Box<[u8]>,
        cursor: StreamId,
    ) -> Self {
        let sizing = Sizing::new(plan.batch_size, plan.batch_bytes);
        Self {
            index: {
                let index = Index::with_capacity(plan.batch_size.min(4096) as usize);
                if plan.group.is_some() {
                    index.keeping_aside()
                } else {
                    index
                }
            },
            arena: pool.take(),
            payloads: Payloads::default(),
            sizing,
            plan,
            target,
            client_name,
            interrupt,
            connection: None,
            pool,
            key,
            head: Vec::new(),
            rendered: (0, None),
            given_before: false,
            most: u32::MAX,
            longest: Duration::MAX,
            out: Vec::with_capacity(512),
            cursor,
            asked: None,
            small_in_a_row: 0,
            confirmed: false,
            broke: false,
        }
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Gives the connection up if its server has become a replica, which goes on answering: what was asked
    /// is asked again over the next.
    pub(crate) fn leave_replica(&mut self) {
        if self
            .connection
            .as_ref()
            .is_some_and(Connection::is_outdated)
        {
            self.disconnect();
        }
    }

    /// What its connections are called.
    pub(crate) fn client_name(&self) -> &str {
        &self.client_name
    }

    pub(crate) fn cursor(&self) -> StreamId {
        self.cursor
    }

    /// Whether a request is on its way whose answer has not been received.
    pub(crate) fn is_outstanding(&self) -> bool {
        self.asked.is_some()
    }

    /// Whether the commands sent ahead of the last request were carried out.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    pub(crate) fn connection(&mut self) -> Option<&mut Connection> {
        self.connection.as_mut()
    }

    /// The connection, and the stream that it is for.
    pub(crate) fn connection_to(&mut self) -> (Option<&mut Connection>, &[u8]) {
        (self.connection.as_mut(), &self.key)
    }

    pub(crate) fn connect(&mut self) -> Result<()> {
        let timeout = self.plan.connect_timeout;
        let c = Connection::dial(
            &self.target,
            &self.client_name,
            Some(&self.interrupt),
            timeout,
        )?;
        self.connection = Some(c);
        Ok(())
    }

    /// Gives the connection up: what may still come over it must not answer a later question.
    pub(crate) fn disconnect(&mut self) {
        self.connection = None;
        self.asked = None;
    }

    /// Goes on after `id`. Nothing may be outstanding.
    pub(crate) fn move_to(&mut self, id: StreamId) {
        debug_assert!(self.asked.is_none());
        self.cursor = id;
    }

    /// Goes on after `id` as if nothing had been read: what was, and what is on its way, is dropped.
    pub(crate) fn seek(&mut self, id: StreamId) {
        self.disconnect();
        self.clear();
        self.cursor = id;
        self.broke = false;
    }

    /// Of a group: reads what this member was given before and has not acknowledged, from the first of it,
    /// so many at a time. When there is no more it [goes on](Self::is_given_before) with what is new.
    pub(crate) fn begin_with_given(&mut self) {
        debug_assert!(self.asked.is_none());
        self.given_before = true;
        self.cursor = StreamId::MIN;
    }

    /// Of a group: whether what it reads is what it was given before.
    pub(crate) fn is_given_before(&self) -> bool {
        self.given_before
    }

    /// Another connection than the one it reads from, which nothing calls away.
    pub(crate) fn dial_anew(&self, timeout: Duration) -> Result<Connection> {
        Connection::dial(&self.target, &self.client_name, None, timeout)
    }

    /// Asks for so many entries at most, until it is said otherwise.
    pub(crate) fn at_most(&mut self, entries: u32) {
        self.most = entries;
    }

    /// Waits for so long at most for something new, until it is said otherwise.
    pub(crate) fn wait_at_most(&mut self, longest: Duration) {
        self.longest = longest;
    }

    /// Asks for what comes after the cursor. Commands in `before` travel in the same write, and their
    /// replies come first. A `brief` request is answered within a second even if there is nothing: for
    /// when it is not known yet whether the server lets itself be read.
    pub(crate) fn request(&mut self, before: &[u8], brief: bool) -> Result<()> {
        debug_assert!(self.asked.is_none());
        let count = self.sizing.count().min(self.most);
        let block = self.plan.block.filter(|_| !self.given_before);
        let block = block.map(|block| {
            // 0 would wait for ever
            let block = clock::ceil_ms(block.min(self.longest)).max(1);
            if brief { block.min(BRIEF_MS) } else { block }
        });
        if self.rendered != (count, block) {
            self.render_head(count, block);
        }
        self.out.clear();
        self.out.extend_from_slice(before);
        self.out.extend_from_slice(&self.head);
        if self.plan.group.is_some() && !self.given_before {
            resp::arg(&mut self.out, b">");
        } else {
            resp::arg(&mut self.out, self.cursor.encode(&mut [0; ID_MAX]));
        }
        let Some(connection) = &mut self.connection else {
            return Err(Error::new(ErrorKind::Io, "read", "not connected"));
        };
        let sent = connection.send(&self.out, self.plan.slack);
        sent.map_err(|e| self.about(e))?;
        self.asked = Some(count);
        Ok(())
    }

    fn render_head(&mut self, count: u32, block: Option<u64>) {
        self.rendered = (count, block);
        self.head.clear();
        let mut words = 6;
        if block.is_some() {
            words += 2;
        }
        if self.plan.group.is_some() {
            words += 3;
        }
        resp::command(&mut self.head, words);
        match &self.plan.group {
            None => resp::arg(&mut self.head, b"XREAD"),
            Some(member) => {
                for word in ["XREADGROUP", "GROUP", &member.group, &member.name] {
                    resp::arg(&mut self.head, word.as_bytes());
                }
            }
        }
        if let Some(block) = block {
            resp::arg(&mut self.head, b"BLOCK");
            resp::arg_number(&mut self.head, block);
        }
        resp::arg(&mut self.head, b"COUNT");
        resp::arg_number(&mut self.head, u64::from(count));
        resp::arg(&mut self.head, b"STREAMS");
        resp::arg(&mut self.head, &self.key);
    }

    /// Receives the replies to `before` commands about `about_key`, or about the stream itself, then the answer to the request,
    /// blocking until it is there whole. What the first of those replies says has to be accepted, or the
    /// request is left without an answer. Afterwards [`records`](Self::records) are the messages.
    ///
    /// # Errors
    ///
    /// The connection must be given up after any error but the server's own.
    pub(crate) fn receive(
        &mut self,
        before: usize,
        about_key: Option<&[u8]>,
        accept: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<Brought> {
        self.clear();
        self.confirmed = false;
        let (at, first) = self.skip_replies(before, about_key)?;
        if let Some(first) = first {
            accept(first.of(self.arena.received()))?;
        }
        self.confirmed = true;
        self.index.clear(at);
        // What a group is given need not lie beyond what it was given before.
        let after = if self.plan.group.is_some() && !self.given_before {
            StreamId::MIN
        } else {
            self.cursor
        };
        let mut began = None;
        loop {
            let progress = self
                .index
                .advance(self.arena.received(), &self.key, after, &self.plan.filter)
                .map_err(|why| self.not_a_reply(why))?;
            match progress {
                Progress::Whole(end) if end == self.arena.received().len() => break,
                Progress::Whole(_) => return Err(self.not_a_reply("more than one reply")),
                Progress::Refused(text) => {
                    let received = self.arena.received();
                    if text.at as usize + text.len as usize + 2 < received.len() {
                        return Err(self.not_a_reply("more than one reply"));
                    }
                    self.asked = None;
                    return Err(self.about(Error::server("read", text.of(received))));
                }
                Progress::Partial(need) => {
                    if self.outgrown(need)? {
                        return Ok(self.cut_short("is too large"));
                    }
                    if self.index.read() > 0 && self.plan.is_late(began) {
                        self.sizing.halve();
                        return Ok(self.cut_short("comes too slowly"));
                    }
                    self.fill(at, &mut began)?;
                }
            }
        }
        self.broke = false;
        let asked = self.asked.take().unwrap_or_default();
        let (read, bytes) = (self.index.read(), self.arena.received().len());
        self.sizing.learn(read, bytes);
        self.watch_size(bytes);
        self.heed_payloads();
        let Some(last) = self.index.last() else {
            self.given_before = false;
            return Ok(Brought::Nothing);
        };
        self.cursor = last;
        Ok(Brought::Entries {
            full: read >= asked,
        })
    }

    /// The messages of the last read.
    pub(crate) fn records(&self) -> &[Record] {
        self.index.records()
    }

    /// As [`records`](Self::records), with their bytes, to be looked at closely and left out.
    pub(crate) fn records_mut(&mut self) -> (&[u8], &mut Vec<Record>) {
        (self.arena.received(), self.index.records_mut())
    }

    pub(crate) fn index(&self) -> &Index {
        &self.index
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.arena.received()
    }

    /// One receive for the reply whose place is `at`. Its first may wait as long as the read does, the
    /// others only for what is on its way.
    fn fill(&mut self, at: usize, began: &mut Option<Instant>) -> Result<()> {
        let partial = self.arena.received().len() > at;
        match self.receive_more(partial, began, self.plan.patience()) {
            Ok(()) => Ok(()),
            Err(e) => {
                // Servers end connections whose replies outgrow their output limits, most often before
                // the first byte. A connection lost for another reason costs a few smaller reads.
                if e.kind() == ErrorKind::Io {
                    let again = std::mem::replace(&mut self.broke, true);
                    if !self.sizing.halve() && (partial || again) {
                        let why = "the connection breaks whenever the next entry is read, \
                                   which may exceed the server's client-output-buffer-limit";
                        return Err(self.about(e.saying(why)));
                    }
                }
                Err(self.about(e))
            }
        }
    }

    /// Makes room for a reply that needs bytes up to `need`. True when it is larger than a reply may
    /// be and should be cut short after its last whole entry.
    fn outgrown(&mut self, need: usize) -> Result<bool> {
        let capacity = self.arena.capacity();
        if need <= capacity && !self.arena.room().is_empty() {
            return Ok(false);
        }
        let want = need.max(self.arena.received().len() + 1);
        if want > self.plan.budget() {
            if self.index.read() > 0 {
                return Ok(true);
            }
            // A single entry is larger than a whole reply should be. It has to be taken all the same.
            let size = want - self.index.at();
            if size > self.plan.max_entry_bytes + FRAMING {
                let what = format!(
                    "the entry after {} is {size} bytes or more, over the limit of {} \
                     (raise MaxMessageBytes, or delete the entry)",
                    self.cursor, self.plan.max_entry_bytes
                );
                return Err(self.about(Error::new(ErrorKind::TooLarge, "read", what)));
            }
        }
        // Twice as much for a reply of many entries; a quarter more for one large one, whose next fields
        // should not each make it grow again.
        let grown = if want > self.plan.budget() {
            want + want / 4
        } else {
            want.max(2 * capacity).min(self.plan.budget())
        };
        if !self.arena.grow_to(grown) {
            return Err(self.about(Error::new(
                ErrorKind::TooLarge,
                "read",
                "a reply of over 4 GiB",
            )));
        }
        Ok(false)
    }

    /// Takes the whole entries that are here and gives up the connection with the rest.
    fn cut_short(&mut self, why: &str) -> Brought {
        let (read, bytes) = (self.index.read(), self.index.at());
        log::debug!(
            "a reply on {} {why}: taking its first {read} entries, {bytes} bytes, and asking anew",
            String::from_utf8_lossy(&self.key),
        );
        self.sizing.learn(read, bytes);
        self.cursor = self.index.last().unwrap_or(self.cursor);
        self.heed_payloads();
        self.disconnect();
        Brought::Entries { full: false }
    }

    /// Receives `n` replies that are not entries; returns where they end, and what the first says.
    fn skip_replies(&mut self, n: usize, key: Option<&[u8]>) -> Result<(usize, Option<Span>)> {
        let (mut at, mut began) = (0, None);
        let (mut refused, mut first) = (None, None);
        for _ in 0..n {
            loop {
                let mut c = resp::Cursor::new(self.arena.received(), at);
                match c.head() {
                    Ok(resp::Head::Error(text)) => {
                        refused.get_or_insert(text);
                        at = c.at();
                        break;
                    }
                    Ok(resp::Head::Scalar(text) | resp::Head::Text(text)) => {
                        first.get_or_insert(text);
                        at = c.at();
                        break;
                    }
                    Ok(_) => return Err(self.not_a_reply("an aggregate where a number belongs")),
                    Err(resp::Stop::Bad(why)) => return Err(self.not_a_reply(why)),
                    Err(resp::Stop::Short(_)) => self.fill(at, &mut began)?,
                }
            }
        }
        match refused {
            None => Ok((at, first)),
            // The read that travelled along is still to be answered, by nobody who listens.
            Some(text) => {
                let text = text.of(self.arena.received());
                let operation = match self.plan.group {
                    Some(_) => "acknowledge",
                    None => "store position",
                };
                let e = Error::server(operation, text);
                self.connection.iter().for_each(|c| c.heed(&e));
                Err(e
                    .on_key(key.unwrap_or(&self.key))
                    .at(self.target.endpoint()))
            }
        }
    }

    /// Forgets the last read; every record of it is gone.
    fn clear(&mut self) {
        self.index.clear(0);
        self.arena.clear();
        if self.small_in_a_row >= SMALL_IN_A_ROW {
            self.small_in_a_row = 0;
            self.arena.shrink_to(self.plan.arena_bytes());
        }
    }

    fn watch_size(&mut self, bytes: usize) {
        let normal = self.plan.arena_bytes();
        if self.arena.capacity() > normal {
            self.small_in_a_row = if bytes > normal {
                0
            } else {
                self.small_in_a_row + 1
            };
        }
    }

    fn not_a_reply(&self, why: &'static str) -> Error {
        self.about(Error::new(
            ErrorKind::Protocol,
            "read",
            format!("the reply has {why}"),
        ))
    }

    /// A read changes nothing, so whether it was applied is no question.
    fn about(&self, e: Error) -> Error {
        e.during("read")
            .with_outcome(Outcome::NotApplied)
            .on_key(&self.key)
            .at(self.target.endpoint())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let arena = std::mem::replace(&mut self.arena, Arena::with_capacity(0));
        self.pool.give_back(arena);
    }
}

#[cfg(test)]
#[path = "reader_tests.rs"]
mod tests;
