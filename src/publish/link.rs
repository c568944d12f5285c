//! What every publisher is made of: a topic, a connection, and the buffers between them.

use std::{sync::Arc, time::Duration};

use crate::{
    Result, StreamId, TopicSettings, Trim, clock,
    error::{Error, ErrorKind, Outcome},
    net::{
        Connection, Deadline, Inbox, Target,
        resp::{self, Head},
    },
    wire::{self, Entry, Keys, RoundRobin, partition_of},
};

use super::{Outgoing, StreamKeys, ensure};

/// What a publisher is told once.
#[derive(Clone, Debug)]
pub(crate) struct PublishPlan {
    pub(crate) target: Arc<Target>,
    pub(crate) keys: Keys,
    pub(crate) topic: String,
    pub(crate) settings: TopicSettings,
    pub(crate) client_name: String,
    pub(crate) connect_timeout: Duration,
    pub(crate) timeout: Duration,
    pub(crate) max_message_bytes: usize,
}

/// A pipeline is sent in pieces of at most so many bytes or messages, each answered before the next
/// goes out, so that neither side has to hold more.
const PIECE_BYTES: usize = 128 * 1024;
const PIECE_MESSAGES: usize = 512;

/// A connection that was idle for longer than this is looked at before it is written to: the server
/// may have closed it, and a message written to it would be neither stored nor known not to be.
const IDLE_MS: u64 = 5;

/// Past this many bytes a send buffer is given back after use.
const KEPT_BYTES: usize = 1024 * 1024;

/// A connection to one topic. One call at a time.
#[derive(Debug)]
pub(super) struct Link {
    plan: Arc<PublishPlan>,
    /// Empty until the topic is known to exist.
    streams: StreamKeys,
    /// Each partition's command from its name to the `*` that asks for an id.
    heads: Vec<Vec<u8>>,
    /// How many arguments a head holds.
    head_args: usize,
    round_robin: Arc<RoundRobin>,
    connection: Option<Connection>,
    used_ms: u64,
    out: Vec<u8>,
    packed: Vec<u8>,
    inbox: Inbox,
}

impl Link {
    pub(super) fn new(plan: Arc<PublishPlan>, round_robin: Arc<RoundRobin>) -> Self {
        Self {
            plan,
            streams: StreamKeys::new(),
            heads: Vec::new(),
            head_args: 0,
            round_robin,
            connection: None,
            used_ms: 0,
            out: Vec::with_capacity(4096),
            packed: Vec::with_capacity(256),
            inbox: Inbox::default(),
        }
    }

    pub(super) fn set_spin(&mut self, spin: Duration) {
        self.inbox.set_spin(spin);
    }

    pub(super) fn plan(&self) -> &PublishPlan {
        &self.plan
    }

    /// Publishes one message within `by`.
    pub(super) fn publish(&mut self, m: &Outgoing<'_>, by: Deadline) -> Result<StreamId> {
        self.check(m)?;
        self.make_ready(by)?;
        let p = self.route(m, None)?;
        self.out.clear();
        self.encode(m, p);
        // The server does not run a command it has only a part of.
        let sent = self
            .send(by)
            .map_err(|e| e.with_outcome(Outcome::NotApplied));
        let id = sent.and_then(|()| self.receive_id(by));
        self.used_ms = clock::coarse_ms();
        self.give_back();
        id.map_err(|e| {
            if is_over(&e) {
                self.connection = None;
            }
            self.about(e, Some(p))
        })
    }

    /// Publishes messages in one pipeline and appends one result for each to `results`.
    pub(super) fn publish_batch(
        &mut self,
        messages: &[Outgoing<'_>],
        by: Deadline,
        results: &mut Vec<Result<StreamId>>,
    ) {
        if messages.is_empty() {
            return;
        }
        let first = results.len();
        if let Err(e) = self.make_ready(by) {
            return fail_rest(results, first + messages.len(), &e);
        }
        // Messages without a key stay together: one turn of the round robin for all of them.
        let any = messages
            .iter()
            .any(|m| m.key.is_empty() && m.partition.is_none());
        let keyless = if any {
            self.round_robin.next(self.heads.len() as u32)
        } else {
            0
        };
        let (mut rest, mut by) = (messages, by);
        while !rest.is_empty() {
            let ready = self.make_ready(by);
            let done = ready.and_then(|()| self.publish_piece(&mut rest, keyless, by, results));
            if let Err(e) = done {
                self.connection = None;
                fail_rest(results, first + messages.len(), &e);
                break;
            }
            by = Deadline::after(self.plan.timeout);
        }
        self.used_ms = clock::coarse_ms();
        self.give_back();
    }

    /// Sends as many messages as make up a piece and takes their replies.
    fn publish_piece(
        &mut self,
        rest: &mut &[Outgoing<'_>],
        keyless: u32,
        by: Deadline,
        results: &mut Vec<Result<StreamId>>,
    ) -> Result<()> {
        self.out.clear();
        let start = results.len();
        let (mut piece, mut sent) = (*rest, 0);
        while let Some((m, after)) = rest.split_first() {
            if sent == PIECE_MESSAGES || self.out.len() >= PIECE_BYTES {
                break;
            }
            *rest = after;
            let routed = self.check(m).and_then(|()| self.route(m, Some(keyless)));
            // The place of a message that is on its way; its reply takes the place over.
            results.push(routed.map(|p| {
                self.encode(m, p);
                sent += 1;
                StreamId::MIN
            }));
        }
        if sent == 0 {
            return Ok(());
        }
        let (mut answered, mut over) = (start, false);
        let outcome = self.send(by).and_then(|()| {
            while let (Some((m, after)), Some(place)) =
                (piece.split_first(), results.get_mut(answered))
            {
                if place.is_ok() {
                    *place = match self.receive_id(by) {
                        Err(e) if e.kind() != ErrorKind::Server => return Err(e),
                        id => id.map_err(|e| {
                            over |= is_over(&e);
                            self.about(e, self.route(m, Some(keyless)).ok())
                        }),
                    };
                }
                piece = after;
                answered += 1;
            }
            Ok(())
        });
        if over {
            self.connection = None;
        }
        outcome.map_err(|e| {
            let e = self.about(e, None);
            // What was sent and not answered has this error's own outcome; what comes after the piece
            // was never sent.
            for place in results[answered..].iter_mut().filter(|r| r.is_ok()) {
                *place = Err(e.again());
            }
            e
        })
    }

    /// Gives memory back after a large message.
    fn give_back(&mut self) {
        if self.out.capacity() > KEPT_BYTES {
            self.out = Vec::with_capacity(4096);
        }
    }

    /// Everything that can be refused before anything is sent. Leaves the headers packed.
    fn check(&mut self, m: &Outgoing<'_>) -> Result<()> {
        self.packed.clear();
        wire::pack(&mut self.packed, m.headers.iter().copied()).map_err(|e| self.about(e, None))?;
        let traceparent = m.traceparent.unwrap_or_default();
        let parts = [m.body, m.message_type, m.key, m.correlation_id, traceparent];
        let size = self.packed.len() + parts.iter().map(|p| p.len()).sum::<usize>();
        let limit = self.plan.max_message_bytes;
        if size > limit {
            let why = format!("the message has {size} bytes; MaxMessageBytes is {limit}");
            return Err(self.about(Error::new(ErrorKind::TooLarge, "publish", why), None));
        }
        m.partition.map_or(Ok(()), |p| self.check_partition(p))
    }

    /// Refuses a partition that does not exist, as far as is known yet.
    fn check_partition(&self, p: u32) -> Result<()> {
        let known = (!self.streams.is_empty()).then_some(self.streams.len() as u32);
        match known.or(self.plan.settings.partitions) {
            Some(partitions) if p >= partitions => {
                let why = format!(
                    "partition {p} is out of range: the topic has {partitions}, as far as is known here"
                );
                Err(self.about(Error::new(ErrorKind::Argument, "publish", why), None))
            }
            _ => Ok(()),
        }
    }

    /// The partition of a message: for one without key or partition `keyless`, or the next in turn.
    fn route(&self, m: &Outgoing<'_>, keyless: Option<u32>) -> Result<u32> {
        let partitions = self.heads.len() as u32;
        match m.partition {
            Some(p) => self.check_partition(p).map(|()| p),
            None if m.key.is_empty() => {
                Ok(keyless.unwrap_or_else(|| self.round_robin.next(partitions)))
            }
            None => Ok(partition_of(m.key, partitions)),
        }
    }

    /// Adds the command for a message that was just [checked](Self::check).
    fn encode(&mut self, m: &Outgoing<'_>, partition: u32) {
        let entry = Entry {
            body: m.body,
            message_type: m.message_type,
            key: m.key,
            correlation_id: m.correlation_id,
            traceparent: m.traceparent,
            headers: &self.packed,
        };
        resp::command(&mut self.out, self.head_args + 2 * entry.pair_count());
        self.out.extend_from_slice(&self.heads[partition as usize]);
        for (name, value) in entry.pairs() {
            resp::arg(&mut self.out, name);
            resp::arg(&mut self.out, value);
        }
    }

    /// A connection that can be written to, and a topic that is known to exist.
    fn make_ready(&mut self, by: Deadline) -> Result<()> {
        if let Some(c) = &mut self.connection
            && (!self.inbox.is_drained()
                || clock::coarse_ms().saturating_sub(self.used_ms) > IDLE_MS
                    && c.check_idle().is_err())
        {
            self.connection = None;
        }
        if self.connection.is_none() {
            self.connection = Some(self.dial(by)?);
            self.inbox.clear();
        }
        if self.streams.is_empty()
            && let Some(c) = &mut self.connection
        {
            // A failure is not remembered: the next call tries again.
            let ensured = ensure(
                c,
                &self.plan.keys,
                &self.plan.topic,
                &self.plan.settings,
                by,
            );
            match ensured {
                Ok(streams) => self.adopt(streams),
                Err(e) => {
                    if is_over(&e) {
                        self.connection = None;
                    }
                    return Err(e.with_outcome(Outcome::NotApplied));
                }
            }
        }
        Ok(())
    }

    /// Connects; while the server is down it is tried again until the time is up, for nothing has been
    /// sent yet. The gate sees to it that this is no storm.
    fn dial(&self, by: Deadline) -> Result<Connection> {
        loop {
            let wait = by.left().min(self.plan.connect_timeout);
            let dialled = Connection::dial(&self.plan.target, &self.plan.client_name, None, wait);
            match dialled {
                Err(e) if e.is_retryable() && !by.left().is_zero() => {}
                done => return done.map_err(|e| self.about(e, None)),
            }
        }
    }

    fn adopt(&mut self, streams: StreamKeys) {
        let (trim, max_len) = (self.plan.settings.trim, self.plan.settings.max_len);
        self.head_args = if trim == Trim::None { 3 } else { 5 };
        self.head_args += usize::from(trim == Trim::Approx);
        let head = |key: &[u8]| {
            let mut head = Vec::new();
            resp::arg(&mut head, b"XADD");
            resp::arg(&mut head, key);
            if trim != Trim::None {
                resp::arg(&mut head, b"MAXLEN");
                if trim == Trim::Approx {
                    resp::arg(&mut head, b"~");
                }
                resp::arg_number(&mut head, max_len);
            }
            resp::arg(&mut head, b"*");
            head
        };
        self.heads = streams.iter().map(|key| head(key)).collect();
        self.streams = streams;
    }

    /// Sends what is in the buffer. When nothing of it went out, as over a connection that was cut since
    /// the last call, it is sent over the next one.
    fn send(&mut self, by: Deadline) -> Result<()> {
        match self.try_send(by) {
            Err(e) if e.kind() == ErrorKind::Io && e.outcome() == Outcome::NotApplied => {
                self.connection = None;
                self.make_ready(by)?;
                self.try_send(by)
            }
            sent => sent,
        }
    }

    fn try_send(&mut self, by: Deadline) -> Result<()> {
        let Some(c) = &mut self.connection else {
            return Err(Error::new(ErrorKind::Io, "publish", "not connected"));
        };
        c.send(&self.out, by.wait())
    }

    /// Takes one id, or the server's refusal.
    fn receive_id(&mut self, by: Deadline) -> Result<StreamId> {
        let Some(c) = &mut self.connection else {
            return Err(Error::new(ErrorKind::Io, "publish", "not connected"));
        };
        let unknown = |e: Error| e.with_outcome(Outcome::Unknown);
        match self.inbox.next(c, by).map_err(unknown)? {
            Head::Text(id) => StreamId::parse(self.inbox.text(id)).ok_or_else(|| {
                unknown(Error::new(
                    ErrorKind::Protocol,
                    "publish",
                    "the reply is no stream id",
                ))
            }),
            Head::Error(text) => Err(Error::server("publish", self.inbox.text(text))),
            _ => Err(unknown(Error::new(
                ErrorKind::Protocol,
                "publish",
                "the reply is no id",
            ))),
        }
    }

    fn about(&self, e: Error, partition: Option<u32>) -> Error {
        let e = e.during("publish").at(self.plan.target.endpoint());
        match partition {
            Some(p) => e.on_key(&self.streams[p as usize]),
            None => e.on_key(&self.plan.topic),
        }
    }
}

/// Whether the connection is of no more use after this error.
fn is_over(e: &Error) -> bool {
    !e.keeps_connection() && e.kind() != ErrorKind::Config
}

/// Gives every message that has no result yet, and so was never sent, the same error.
fn fail_rest(results: &mut Vec<Result<StreamId>>, until: usize, e: &Error) {
    while results.len() < until {
        results.push(Err(e.again().with_outcome(Outcome::NotApplied)));
    }
}
