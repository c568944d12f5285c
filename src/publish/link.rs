//! A connection to one topic, with the buffers between it and a publisher. One call at a time.

mod delay;

use std::{mem, slice, sync::Arc, time::Duration};

use crate::{
    Result, StreamId, clock,
    error::{Error, ErrorKind, Outcome},
    net::{
        Connection, Deadline, Inbox, Interrupt,
        resp::Head,
        script::{Form, by_hash_first},
    },
};

use super::{Encoder, Outgoing, Packing, PublishPlan, Published};

/// A pipeline is sent in pieces of at most so many bytes or messages, each answered before the next
/// goes out, so that neither side has to hold more.
pub(super) const PIECE_BYTES: usize = 128 * 1024;
const PIECE_MESSAGES: usize = 512;

/// Whether a piece of so many messages takes no more, or not the next one, of so many bytes. One that makes
/// up a piece by itself is sent by itself: if the server takes offence at its size, no other is touched.
pub(super) fn is_full(piece: &[u8], messages: usize, next: usize) -> bool {
    messages == PIECE_MESSAGES
        || piece.len() >= PIECE_BYTES
        || next >= PIECE_BYTES && !piece.is_empty()
}

/// A connection that was idle for longer than this is looked at before it is written to: the server
/// may have closed it, and a message written to it would be neither stored nor known not to be.
const IDLE_MS: u64 = 5;

/// Past this many bytes a send buffer is given back after use.
const KEPT_BYTES: usize = 1024 * 1024;

/// A connection to one topic. One call at a time.
#[derive(Debug)]
pub(super) struct Link {
    plan: Arc<PublishPlan>,
    /// None until the topic is known to exist.
    encoder: Option<Arc<Encoder>>,
    connection: Option<Connection>,
    used_ms: u64,
    out: Vec<u8>,
    packing: Packing,
    /// Where what is kept for later is written. Reused.
    item: Vec<u8>,
    /// Of each message of a piece, unless it was refused before it was sent. Reused.
    routes: Vec<Result<Route>>,
    inbox: Inbox,
    /// Calls whoever waits here away, where there is somebody to do so.
    interrupt: Option<Arc<Interrupt>>,
}

/// Where a message went, and what kind of reply it will have.
#[derive(Clone, Copy, Debug)]
struct Route {
    partition: u32,
    /// Whether it was sent by the script.
    once: bool,
}

impl Link {
    pub(super) fn new(plan: Arc<PublishPlan>) -> Self {
        Self {
            plan,
            encoder: None,
            connection: None,
            used_ms: 0,
            out: Vec::with_capacity(4096),
            packing: Packing::default(),
            item: Vec::new(),
            routes: Vec::new(),
            inbox: Inbox::default(),
            interrupt: None,
        }
    }

    /// A link whose waits end when `interrupt` is cut.
    pub(super) fn interruptible(plan: Arc<PublishPlan>, interrupt: Arc<Interrupt>) -> Self {
        Self {
            interrupt: Some(interrupt),
            ..Self::new(plan)
        }
    }

    pub(super) fn set_spin(&mut self, spin: Duration) {
        self.inbox.set_spin(spin);
    }

    pub(super) fn plan(&self) -> &Arc<PublishPlan> {
        &self.plan
    }

    /// Publishes one message within `by`.
    pub(super) fn publish(&mut self, m: &Outgoing<'_>, by: Deadline) -> Result<Published> {
        if self.plan.trace.has_spans() {
            let plan = Arc::clone(&self.plan);
            return plan.under_span(slice::from_ref(m), || self.publish_one(m, by), error_of);
        }
        self.publish_one(m, by)
    }

    #[inline]
    fn publish_one(&mut self, m: &Outgoing<'_>, by: Deadline) -> Result<Published> {
        let published = self.try_publish(m, by);
        self.rest();
        published.inspect_err(|e| self.plan.counts.failed(e))
    }

    fn try_publish(&mut self, m: &Outgoing<'_>, by: Deadline) -> Result<Published> {
        let mut packing = mem::take(&mut self.packing);
        let (entry, dedupe) = self.plan.entry_once(m, &mut packing)?;
        let encoder = self.make_ready(by)?;
        let partition = encoder.route(m, || encoder.turn())?;
        let once = dedupe.is_some();
        let route = Route { partition, once };
        let published = match dedupe {
            None => {
                self.out.clear();
                encoder.append(&mut self.out, &entry, partition);
                self.exchange(&encoder, route, by)
            }
            Some(dedupe) => by_hash_first(|form| {
                self.out.clear();
                encoder.once(&mut self.out, &entry, dedupe, partition, form);
                self.exchange(&encoder, route, by)
            }),
        };
        self.packing = packing;
        match &published {
            Ok(p) => self.plan.trace.stored(partition, p.id),
            Err(e) if is_over(e) => self.connection = None,
            Err(_) => {}
        }
        published
    }

    /// Sends what is in the buffer, one command, and takes its reply.
    #[inline]
    fn exchange(&mut self, encoder: &Encoder, route: Route, by: Deadline) -> Result<Published> {
        // The server does not run a command it has only a part of.
        self.send(by)
            .map_err(|e| encoder.about(e.with_outcome(Outcome::NotApplied), route.partition))?;
        self.receive(encoder, route, by)
    }

    /// Publishes messages in one pipeline and appends one result for each to `results`.
    pub(super) fn publish_batch<R: From<Published>>(
        &mut self,
        messages: &[Outgoing<'_>],
        by: Deadline,
        results: &mut Vec<Result<R>>,
    ) {
        if self.plan.trace.has_spans() {
            let (plan, first) = (Arc::clone(&self.plan), results.len());
            let publish = || {
                self.publish_all(messages, by, results);
                let errors = results[first..].iter().filter_map(|r| r.as_ref().err());
                errors.map(Error::again).next()
            };
            plan.under_span(messages, publish, |e| e.as_ref().map(Error::again));
        } else {
            self.publish_all(messages, by, results);
        }
    }

    fn publish_all<R: From<Published>>(
        &mut self,
        messages: &[Outgoing<'_>],
        by: Deadline,
        results: &mut Vec<Result<R>>,
    ) {
        let first = results.len();
        if let Err(e) = self.try_publish_batch(messages, by, results) {
            self.connection = None;
            fail_rest(results, first + messages.len(), &self.plan.about(e));
        }
        self.rest();
        for e in results[first..].iter().filter_map(|r| r.as_ref().err()) {
            self.plan.counts.failed(e);
        }
    }

    fn try_publish_batch<R: From<Published>>(
        &mut self,
        messages: &[Outgoing<'_>],
        mut by: Deadline,
        results: &mut Vec<Result<R>>,
    ) -> Result<()> {
        let (mut rest, mut turn) = (messages, None);
        while !rest.is_empty() {
            let encoder = self.make_ready(by)?;
            // Messages without a key stay together: one turn of the round robin for all of them.
            let keyless = || *turn.get_or_insert_with(|| encoder.turn());
            self.publish_piece(&encoder, &mut rest, keyless, by, results)?;
            by = Deadline::after(self.plan.timeout);
        }
        Ok(())
    }

    /// Sends as many messages as make up a piece, takes their replies and appends a result for each. An
    /// error says that those behind the piece are not to be tried.
    fn publish_piece<R: From<Published>>(
        &mut self,
        encoder: &Encoder,
        rest: &mut &[Outgoing<'_>],
        mut keyless: impl FnMut() -> u32,
        by: Deadline,
        results: &mut Vec<Result<R>>,
    ) -> Result<()> {
        let mut routes = mem::take(&mut self.routes);
        routes.clear();
        self.out.clear();
        let mut known = false;
        while let Some((m, after)) = rest.split_first()
            && !is_full(&self.out, routes.len(), m.size())
        {
            *rest = after;
            let routed = encoder.route(m, &mut keyless);
            routes.push(routed.and_then(|p| self.encode(encoder, m, p, &mut known)));
        }
        let (tried, last) = (routes.len(), routes.iter().rposition(Result::is_ok));
        let unsent = last.and_then(|_| self.send(by).err());
        // The server does not run a command it has only a part of, and the last one it has not whole.
        let cut_off = last.filter(|_| unsent.is_some());
        let took_offence = tried == 1 && unsent.as_ref().is_some_and(|e| e.kind() == ErrorKind::Io);
        let (mut lost, mut over) = (unsent, false);
        for (i, route) in routes.drain(..).enumerate() {
            let published = match (route, &lost) {
                (Err(e), _) => Err(e),
                (Ok(route), None) => {
                    let partition = route.partition;
                    let received = self.receive(encoder, route, by);
                    match &received {
                        Ok(p) => self.plan.trace.stored(partition, p.id),
                        Err(e) => {
                            over |= is_over(e);
                            lost = Some(e).filter(|e| !is_about_one(e)).map(Error::again);
                        }
                    }
                    received
                }
                (Ok(route), Some(e)) => {
                    let e = encoder.about(e.again(), route.partition);
                    Err(match cut_off {
                        Some(last) if last == i => e.with_outcome(Outcome::NotApplied),
                        _ => e,
                    })
                }
            };
            results.push(published.map(R::from));
        }
        self.routes = routes;
        if over || lost.is_some() {
            self.connection = None;
        }
        match lost {
            // It was sent by itself, and may be larger than the server accepts: the others are still tried.
            Some(_) if took_offence => Ok(()),
            Some(e) => Err(e),
            None => Ok(()),
        }
    }

    /// Adds the command that appends a message to its partition; `known` is whether the script is by now.
    fn encode(
        &mut self,
        encoder: &Encoder,
        m: &Outgoing<'_>,
        partition: u32,
        known: &mut bool,
    ) -> Result<Route> {
        let (entry, dedupe) = self.plan.entry_once(m, &mut self.packing)?;
        // The first of a piece makes the script known to the rest: order would be lost if one had to be
        // sent again.
        let once = dedupe.is_some();
        let form = if once && mem::replace(known, true) {
            Form::Known
        } else {
            Form::Whole
        };
        match dedupe {
            None => encoder.append(&mut self.out, &entry, partition),
            Some(dedupe) => encoder.once(&mut self.out, &entry, dedupe, partition, form),
        }
        Ok(Route { partition, once })
    }

    /// The commands to send next.
    pub(super) fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// To be called when nothing is on its way any more. Gives memory back after a large message.
    #[inline]
    pub(super) fn rest(&mut self) {
        self.used_ms = clock::coarse_ms();
        if self.out.capacity() > KEPT_BYTES {
            self.out = Vec::with_capacity(4096);
        }
    }

    /// Gives the connection up.
    pub(super) fn hang_up(&mut self) {
        self.connection = None;
    }

    /// A connection that can be written to, and a topic that is known to exist.
    pub(super) fn make_ready(&mut self, by: Deadline) -> Result<Arc<Encoder>> {
        if let Some(c) = &mut self.connection
            && (!self.inbox.is_drained()
                || by.began_ms().saturating_sub(self.used_ms) > IDLE_MS && c.check_idle().is_err())
        {
            self.connection = None;
        }
        let c = if let Some(c) = &mut self.connection {
            c
        } else {
            let c = self.plan.dial_unless(self.interrupt.as_ref(), by)?;
            self.inbox.clear();
            self.connection.insert(c)
        };
        if let Some(encoder) = &mut self.encoder {
            self.plan.keep_up(encoder);
            return Ok(Arc::clone(encoder));
        }
        // A failure is not remembered: the next call tries again.
        match self.plan.ensure(c, by) {
            Ok(encoder) => Ok(Arc::clone(self.encoder.insert(encoder))),
            Err(e) => {
                if is_over(&e) {
                    self.connection = None;
                }
                Err(e)
            }
        }
    }

    /// Hands the connection over, ready, for an exchange that must not be left half done. Who takes it
    /// [returns](Self::return_connection) it once nothing is outstanding on it, and drops it otherwise.
    pub(super) fn take_connection(&mut self, by: Deadline) -> Result<Connection> {
        self.make_ready(by)?;
        let c = self.connection.take();
        c.ok_or_else(|| Error::new(ErrorKind::Io, "publish", "not connected"))
    }

    pub(super) fn return_connection(&mut self, c: Connection) {
        self.connection = Some(c);
        self.used_ms = clock::coarse_ms();
    }

    /// Sends what is in the buffer. When nothing of it went out, as over a connection that was cut since
    /// the last call, it is sent over the next one.
    #[inline]
    pub(super) fn send(&mut self, by: Deadline) -> Result<()> {
        match self.try_send(by) {
            Err(e) if e.kind() == ErrorKind::Io && e.outcome() == Outcome::NotApplied => {
                self.connection = None;
                self.make_ready(by)?;
                self.try_send(by)
            }
            sent => sent,
        }
    }

    #[inline]
    fn try_send(&mut self, by: Deadline) -> Result<()> {
        let Some(c) = &mut self.connection else {
            return Err(Error::new(ErrorKind::Io, "publish", "not connected"));
        };
        c.send(&self.out, by.wait())
    }

    /// Takes one id, or the server's refusal.
    pub(super) fn receive_id(
        &mut self,
        encoder: &Encoder,
        partition: u32,
        by: Deadline,
    ) -> Result<StreamId> {
        let once = false;
        let published = self.receive(encoder, Route { partition, once }, by);
        published.map(|p| p.id)
    }

    /// Takes the reply to one message.
    #[inline]
    fn receive(&mut self, encoder: &Encoder, route: Route, by: Deadline) -> Result<Published> {
        let Some(c) = &mut self.connection else {
            return Err(Error::new(ErrorKind::Io, "publish", "not connected"));
        };
        let Route { partition, once } = route;
        let head = self
            .inbox
            .next(c, by)
            .map_err(|e| encoder.about(e.with_outcome(Outcome::Unknown), partition))?;
        let text = self.inbox.bytes_of(head);
        if once {
            encoder.published(head, text, partition)
        } else {
            encoder.id(head, text, partition).map(Published::new)
        }
    }

    /// Takes one reply, whatever it is the reply to.
    fn receive_raw(&mut self, by: Deadline) -> Result<(Head, &[u8])> {
        let Some(c) = &mut self.connection else {
            return Err(Error::new(ErrorKind::Io, "publish", "not connected"));
        };
        let head = self.inbox.next(c, by)?;
        Ok((head, self.inbox.bytes_of(head)))
    }
}

/// Whether an error is about one message, and the replies to the others are still to come.
fn is_about_one(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Server | ErrorKind::Config)
}

/// Whether the connection is of no more use after this error.
pub(super) fn is_over(e: &Error) -> bool {
    !e.keeps_connection() && e.kind() != ErrorKind::Config
}

/// Why something failed, if it did.
pub(super) fn error_of<T>(result: &Result<T>) -> Option<Error> {
    result.as_ref().err().map(Error::again)
}

/// Gives every message that has no result yet, and so was never sent, the same error.
fn fail_rest<R>(results: &mut Vec<Result<R>>, until: usize, e: &Error) {
    while results.len() < until {
        results.push(Err(e.again().with_outcome(Outcome::NotApplied)));
    }
}
