//! What a publisher is told once, and what can be said about a message before a server is asked.

use std::{sync::Arc, time::Duration};

use crate::{
    Result, TopicSettings, Traceparent,
    error::{Error, ErrorKind, Outcome},
    net::{Connection, Deadline, Interrupt, Target},
    trace::Tracing,
    wire::{self, ATTEMPTS_MAX, Entry, Keys, XXH3},
};

use super::{
    Delays, Encoder, Outgoing, Partitions, PublishCounts, Role, Subject, ensure,
    once::{Dedupe, check_marker},
};

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
    /// Shared by all publishers of the topic.
    pub(crate) counts: Arc<PublishCounts>,
    /// Shared by all that use the topic.
    pub(crate) partitions: Arc<Partitions>,
    pub(crate) trace: Tracing,
    /// What publishes delayed messages when they are due, for as long as somebody has a plan.
    pub(crate) delays: Arc<Delays>,
}

/// Where the parts of an entry are put that a message does not bring along ready made. Reused.
#[derive(Debug, Default)]
pub(super) struct Packing {
    headers: Vec<u8>,
    trace: Option<Traceparent>,
}

impl Packing {
    /// How much memory it holds on to.
    pub(super) fn capacity(&self) -> usize {
        self.headers.capacity()
    }
}

impl PublishPlan {
    /// Publishes these messages under a span; `error` says why that failed, if it did. For where somebody wants
    /// to know of spans: where nobody does, less is to be done than to ask.
    #[cold]
    pub(super) fn under_span<R>(
        self: &Arc<Self>,
        messages: &[Outgoing<'_>],
        publish: impl FnOnce() -> R,
        error: impl FnOnce(&R) -> Option<Error>,
    ) -> R {
        let first = messages.first();
        let first = first.map_or((&[][..], None), |m| (m.message_type, m.partition));
        let span = self.trace.publishing(&self.topic, messages.len(), first);
        let done = publish();
        if let Some(span) = span {
            match error(&done) {
                None => span.end(None),
                Some(e) => span.end(Some(&e)),
            }
        }
        done
    }

    /// The entry of a message where there is no way to store it once.
    pub(super) fn entry<'a>(
        &self,
        m: &'a Outgoing<'_>,
        packing: &'a mut Packing,
    ) -> Result<Entry<'a>> {
        if m.dedupe.is_none() {
            return self.entry_of(m, packing);
        }
        let why = "a dedupe id has no place here: publish the message by itself or in a batch";
        Err(self.about(Error::new(ErrorKind::Argument, "publish", why)))
    }

    /// The entry of a message, and how it is to be stored once, if it is.
    #[inline]
    pub(super) fn entry_once<'a>(
        &self,
        m: &'a Outgoing<'_>,
        packing: &'a mut Packing,
    ) -> Result<(Entry<'a>, Option<Dedupe<'a>>)> {
        if let Some(Dedupe { id, ttl }) = m.dedupe {
            check_marker("publish", id, ttl).map_err(|e| self.about(e))?;
        }
        Ok((self.entry_of(m, packing)?, m.dedupe))
    }

    /// Everything that can be refused before a server is asked is refused here.
    #[inline]
    fn entry_of<'a>(&self, m: &'a Outgoing<'_>, packing: &'a mut Packing) -> Result<Entry<'a>> {
        packing.headers.clear();
        match m.max_attempts {
            None => wire::pack(&mut packing.headers, m.headers.iter().copied()),
            Some(attempts) => pack_with_cap(&mut packing.headers, m, attempts),
        }
        .map_err(|e| self.about(e))?;
        packing.trace = match m.traceparent {
            Some(_) => None,
            None => self.trace.current(),
        };
        let current = packing.trace.as_ref().map(Traceparent::as_bytes);
        let entry = Entry {
            body: m.body,
            message_type: m.message_type,
            key: m.key,
            correlation_id: m.correlation_id,
            traceparent: m.traceparent.or(current),
            headers: &packing.headers,
        };
        let (size, limit) = (entry.size(), self.max_message_bytes);
        if size > limit {
            let why = format!("the message has {size} bytes; MaxMessageBytes is {limit}");
            return Err(self.about(Error::new(ErrorKind::TooLarge, "publish", why)));
        }
        match (m.partition, self.settings.partitions) {
            (Some(p), Some(set)) => self.check_partition(p, set.max(self.partitions.seen()))?,
            (None, _) if !m.key.is_empty() => self.check_routing()?,
            _ => {}
        }
        Ok(entry)
    }

    /// Whether a partition can be found for a key.
    fn check_routing(&self) -> Result<()> {
        let partitioner = &*self.settings.partitioner;
        if partitioner == XXH3 {
            return Ok(());
        }
        let why = format!(
            "the topic's Partitioner is {partitioner:?}, which is not known here, so a message with a key \
             needs an explicit partition"
        );
        Err(self.about(Error::new(ErrorKind::Argument, "publish", why)))
    }

    pub(super) fn check_partition(&self, p: u32, partitions: u32) -> Result<()> {
        if p < partitions {
            return Ok(());
        }
        let why = format!(
            "partition {p} is out of range: the topic has {partitions}, as far as is known here"
        );
        Err(self.about(Error::new(ErrorKind::Argument, "publish", why)))
    }

    /// As [`dial`], for this topic.
    pub(super) fn dial(&self, by: Deadline) -> Result<Connection> {
        self.dial_unless(None, by)
    }

    /// The same, until `interrupt` is cut.
    pub(super) fn dial_unless(
        &self,
        interrupt: Option<&Arc<Interrupt>>,
        by: Deadline,
    ) -> Result<Connection> {
        let (target, name) = (&self.target, &self.client_name);
        let c = dial(target, name, self.connect_timeout, interrupt, by);
        c.map_err(|e| self.about(e))
    }

    /// Sees to it that the topic exists.
    pub(super) fn ensure(
        self: &Arc<Self>,
        c: &mut Connection,
        by: Deadline,
    ) -> Result<Arc<Encoder>> {
        let streams = ensure(c, self.subject(), Role::Publisher, by).and_then(|streams| {
            self.partitions.list(c, &self.topic, by)?;
            Ok(streams)
        });
        let streams = streams.map_err(|e| e.with_outcome(Outcome::NotApplied))?;
        self.partitions.learn(streams.len() as u32);
        Ok(Arc::new(Encoder::new(self, streams)))
    }

    /// Whether the topic has more partitions by now than this knows.
    #[inline]
    pub(super) fn has_outgrown(&self, encoder: &Encoder) -> bool {
        encoder.partitions() < self.partitions.seen()
    }

    /// Replaces an encoder that the topic has outgrown.
    pub(super) fn keep_up(self: &Arc<Self>, encoder: &mut Arc<Encoder>) {
        if self.has_outgrown(encoder) {
            let streams = self.subject().streams(0..self.partitions.seen());
            *encoder = Arc::new(Encoder::new(self, streams));
        }
    }

    fn subject(&self) -> Subject<'_> {
        Subject {
            keys: &self.keys,
            name: &self.topic,
            settings: &self.settings,
        }
    }

    /// An error of a call about no partition in particular.
    pub(super) fn about(&self, e: Error) -> Error {
        e.during("publish")
            .at(self.target.endpoint())
            .on_key(&self.topic)
    }
}

/// Connects; while the server is down it is tried again until the time is up, for nothing has been sent
/// yet. The gate sees to it that this is no storm. `interrupt` can end it.
pub(super) fn dial(
    target: &Target,
    client_name: &str,
    connect_timeout: Duration,
    interrupt: Option<&Arc<Interrupt>>,
    by: Deadline,
) -> Result<Connection> {
    loop {
        let wait = by.left().min(connect_timeout);
        match Connection::dial(target, client_name, interrupt, wait) {
            Err(e) if e.is_retryable() && !by.left().is_zero() => {}
            done => return done,
        }
    }
}

/// The headers of a message, and how often it is to be handed over again at most in front of them: the first
/// of a name counts.
fn pack_with_cap(out: &mut Vec<u8>, m: &Outgoing<'_>, attempts: u32) -> Result<()> {
    let mut room = [0; ATTEMPTS_MAX];
    let cap = wire::max_attempts(attempts, &mut room);
    wire::pack(out, [cap].into_iter().chain(m.headers.iter().copied()))
}
