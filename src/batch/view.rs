//! What a handler is lent: borrowed views of the arena, valid for the length of one call.

use std::{
    borrow::Cow,
    cell::Cell,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::SystemTime,
};

use serde::Deserialize;

use crate::{
    batch::{Record, Scratch},
    error::{Error, ErrorKind, Result},
    fence::Fence,
    net::{
        Interrupt, STOP,
        resp::{Cursor, Span},
    },
    wire::{Field, Headers, Malformed, StreamId},
};

/// What all messages of a lane have in common.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) topic: Arc<str>,
    pub(crate) consumer: Arc<str>,
    pub(crate) partition: u32,
    pub(crate) interrupt: Arc<Interrupt>,
    pub(crate) fence: Arc<Fence>,
    /// How often the messages in hand have been handed over, this time included.
    pub(crate) attempt: AtomicU32,
    /// Whether they come in the order in which they were published.
    pub(crate) in_order: bool,
}

impl Context {
    fn is_cancelled(&self) -> bool {
        self.interrupt.bits() & STOP != 0 || !self.fence.holds()
    }
}

/// Messages of one partition, in stream order, lent to a handler for one call.
///
/// Every slice reached through it points into the lane's arena and is gone when the call returns; the
/// compiler holds you to that:
///
/// ```compile_fail,E0521
/// # use streamlane::{Batch, HandlerResult};
/// let mut kept: Vec<&[u8]> = Vec::new();
/// # fn takes(_: impl FnMut(&Batch<'_>) -> HandlerResult + 'static) {}
/// takes(move |batch: &Batch<'_>| {
///     for m in batch.messages() {
///         kept.push(m.body()); // borrowed data escapes the call
///     }
///     Ok(())
/// });
/// ```
///
/// The batch itself goes the same way:
///
/// ```compile_fail,E0521
/// # use streamlane::{Batch, HandlerResult};
/// let mut kept: Option<&Batch<'_>> = None;
/// # fn takes(_: impl FnMut(&Batch<'_>) -> HandlerResult + 'static) {}
/// takes(move |batch: &Batch<'_>| {
///     kept = Some(batch); // borrowed data escapes the call
///     Ok(())
/// });
/// ```
///
/// Copy what must live longer, with [`to_owned`](Self::to_owned) or [`Message::to_owned`].
pub struct Batch<'a> {
    arena: &'a [u8],
    records: &'a [Record],
    /// How many of the records it is about.
    len: Cell<usize>,
    context: &'a Context,
    /// Told of the last message that is done.
    finish: &'a dyn Fn(&Record),
    /// One more than the number of messages marked done; 0 when nothing was said.
    done: Cell<usize>,
    /// Whether `each` ended before the last message.
    cut_short: Cell<bool>,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(
        arena: &'a [u8],
        records: &'a [Record],
        context: &'a Context,
        finish: &'a dyn Fn(&Record),
    ) -> Self {
        Self {
            arena,
            records,
            len: Cell::new(records.len()),
            context,
            finish,
            done: Cell::new(0),
            cut_short: Cell::new(false),
        }
    }

    /// How many messages there are. Never 0 inside a handler.
    pub fn len(&self) -> usize {
        self.len.get()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The topic they come from.
    pub fn topic(&self) -> &'a str {
        &self.context.topic
    }

    /// The partition they come from.
    pub fn partition(&self) -> u32 {
        self.context.partition
    }

    /// The messages, in stream order.
    pub fn messages(&self) -> Messages<'a> {
        Messages {
            arena: self.arena,
            records: self.records().iter(),
            context: self.context,
        }
    }

    /// As [`messages`](Self::messages).
    pub fn iter(&self) -> Messages<'a> {
        self.messages()
    }

    /// The message at `index`, counted from 0.
    pub fn get(&self, index: usize) -> Option<Message<'a>> {
        let record = self.records().get(index)?;
        Some(Message::new(self.arena, record, self.context))
    }

    /// Says that messages `0..n` are finished and need not be handed over again if the call fails. The
    /// position moves past them at once, so that under `AsyncBatch` they are stored within
    /// `PersistIntervalMs` however long the call goes on.
    ///
    /// Once said, even as `done(0)`, a failure concerns message `n` alone: a skip steps over it and the
    /// rest is handed over again. When it is never said, a failure concerns the whole batch. Smaller
    /// numbers than before and numbers beyond the end are brought into range.
    pub fn done(&self, n: usize) {
        let n = n.min(self.len());
        let before = self.done.get();
        if n < before {
            return;
        }
        self.done.set(n + 1);
        if let Some(last) = n.checked_sub(1) {
            (self.finish)(&self.records[last]);
        }
    }

    /// Calls `f` with each message and marks those for which it succeeds as done, so that a failure
    /// concerns that one message alone. Ends early when [`is_cancelled`](Self::is_cancelled): then only
    /// what is done counts as finished, even if the handler returns `Ok`.
    ///
    /// # Errors
    ///
    /// The first failure of `f`.
    pub fn each<E>(&self, mut f: impl FnMut(&Message<'a>) -> Result<(), E>) -> Result<(), E> {
        self.done(0);
        for (i, m) in self.messages().enumerate() {
            if self.is_cancelled() {
                self.cut_short.set(true);
                break;
            }
            f(&m)?;
            self.done(i + 1);
        }
        Ok(())
    }

    /// Whether the consumer is being stopped: finish soon, or mark what is [`done`](Self::done) and
    /// return an error; what is not done is handed over again by whoever comes next.
    pub fn is_cancelled(&self) -> bool {
        self.context.is_cancelled()
    }

    /// A copy that may be kept. Allocates for each message as [`Message::to_owned`] does.
    pub fn to_owned(&self) -> OwnedBatch {
        OwnedBatch {
            topic: self.context.topic.clone(),
            partition: self.partition(),
            messages: self.messages().map(|m| m.to_owned()).collect(),
        }
    }

    /// Makes the call about its first messages alone. The others are handed over by the next call, as if
    /// they had been read later.
    pub(crate) fn shorten(&self, len: usize) {
        self.len.set(len.min(self.len()));
    }

    fn records(&self) -> &'a [Record] {
        &self.records[..self.len()]
    }

    /// Whether `each` ended early: then the handler's `Ok` is not about the rest.
    pub(crate) fn is_cut_short(&self) -> bool {
        self.cut_short.get()
    }

    /// How many were said to be done, if anything was said.
    pub(crate) fn progress(&self) -> Option<usize> {
        self.done.get().checked_sub(1)
    }
}

/// As [`Batch::messages`].
impl<'a> IntoIterator for &Batch<'a> {
    type Item = Message<'a>;
    type IntoIter = Messages<'a>;

    fn into_iter(self) -> Messages<'a> {
        self.messages()
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("topic", &self.topic())
            .field("partition", &self.partition())
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// The messages of a [`Batch`], in stream order.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    arena: &'a [u8],
    records: std::slice::Iter<'a, Record>,
    context: &'a Context,
}

impl<'a> Messages<'a> {
    fn view(&self, record: &'a Record) -> Message<'a> {
        Message::new(self.arena, record, self.context)
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        self.records.next().map(|r| self.view(r))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.records.size_hint()
    }
}

impl DoubleEndedIterator for Messages<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.records.next_back().map(|r| self.view(r))
    }
}

impl ExactSizeIterator for Messages<'_> {}

/// One message, lent to a handler for one call.
///
/// Nothing in it has to be UTF-8: texts are [`Text`] views. A body cannot be kept past the call:
///
/// ```compile_fail,E0521
/// # use streamlane::{HandlerResult, Message};
/// let mut kept: Vec<&[u8]> = Vec::new();
/// # fn takes(_: impl FnMut(&Message<'_>) -> HandlerResult + 'static) {}
/// takes(move |m: &Message<'_>| {
///     kept.push(m.body()); // borrowed data escapes the call
///     Ok(())
/// });
/// ```
#[derive(Clone, Copy)]
pub struct Message<'a> {
    arena: &'a [u8],
    record: &'a Record,
    context: &'a Context,
}

impl<'a> Message<'a> {
    pub(crate) fn new(arena: &'a [u8], record: &'a Record, context: &'a Context) -> Self {
        Self {
            arena,
            record,
            context,
        }
    }

    /// The id the server gave it: unique in its partition, and the same whenever it is handed over.
    pub fn id(&self) -> StreamId {
        self.record.id
    }

    /// The partition key; empty when it was published without.
    pub fn key(&self) -> Text<'a> {
        Text(self.record.key.of(self.arena))
    }

    /// What kind of message it is, as its publisher called it.
    pub fn message_type(&self) -> Text<'a> {
        Text(self.record.message_type.of(self.arena))
    }

    /// The payload, byte for byte as it was published, wherever it was kept.
    pub fn body(&self) -> &'a [u8] {
        self.record.body.of(self.arena)
    }

    /// The correlation id; empty when there is none.
    pub fn correlation_id(&self) -> Text<'a> {
        Text(self.field(Field::CorrelationId).unwrap_or_default())
    }

    /// The W3C trace context of its publisher.
    pub fn traceparent(&self) -> Option<Text<'a>> {
        self.field(Field::Traceparent).map(Text)
    }

    /// The headers; empty when there are none. Reading a broken block is an error, and
    /// [`malformed`](Self::malformed) says so beforehand.
    pub fn headers(&self) -> Headers<'a> {
        Headers::new(self.field(Field::Headers).unwrap_or_default())
    }

    /// How often its publisher wants it handed over again at most after it failed, whatever more the
    /// consumer would do; see [`Outgoing::max_attempts`](crate::Outgoing::max_attempts).
    pub fn max_attempts(&self) -> Option<u32> {
        self.headers().max_attempts()
    }

    /// Every field of the entry as it is stored, unknown and repeated ones included. Of a body that is kept apart
    /// (`ClaimCheck`) that is an empty `b` and an `x`; [`body`](Self::body) is the body itself.
    pub fn fields(&self) -> Fields<'a> {
        Fields {
            cursor: Cursor::new(self.arena, self.record.fields as usize),
            arena: self.arena,
            left: self.record.pairs,
        }
    }

    /// What keeps the entry from being a proper message: a missing body or type, a dangling field, a
    /// broken header block or reference. Message handlers never see such a message (it goes straight to the error
    /// policy); batch handlers do, in its place.
    pub fn malformed(&self) -> Option<Malformed> {
        self.record.malformed
    }

    /// The topic it comes from.
    pub fn topic(&self) -> &'a str {
        &self.context.topic
    }

    /// Whether it comes in the order in which its partition's messages were published.
    pub(crate) fn is_in_order(&self) -> bool {
        self.context.in_order
    }

    /// The name of the consumer that reads it.
    pub fn consumer(&self) -> &'a str {
        &self.context.consumer
    }

    /// The partition it comes from.
    pub fn partition(&self) -> u32 {
        self.context.partition
    }

    /// Which attempt at it this is: 1 at first, more when it is handed over again after it failed, or, in the
    /// queue modes, after it was given to somebody who did not finish it. What is replayed begins anew. In a
    /// batch it counts attempts at the first message.
    pub fn attempt(&self) -> u32 {
        self.context.attempt.load(Ordering::Relaxed)
    }

    /// When the server took it, on the server's clock, to the millisecond.
    pub fn timestamp(&self) -> SystemTime {
        self.id().timestamp()
    }

    /// Whether the consumer is being stopped; see [`Batch::is_cancelled`].
    pub fn is_cancelled(&self) -> bool {
        self.context.is_cancelled()
    }

    /// Decodes a JSON body, borrowing strings from `scratch`. The body itself stays as it is.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Malformed`] when the body is not JSON or does not fit `T`.
    pub fn decode_json<'s, T: Deserialize<'s>>(&self, scratch: &'s mut Scratch) -> Result<T> {
        scratch.decode(self.body()).map_err(|e| {
            let (id, bytes) = (self.id(), self.body().len());
            let what = format!("message {id}: JSON of {bytes} bytes does not decode");
            Error::new(ErrorKind::Malformed, "decode", what).caused_by(e)
        })
    }

    /// A copy that may be kept. Allocates for each of its parts.
    pub fn to_owned(&self) -> OwnedMessage {
        OwnedMessage {
            id: self.id(),
            partition: self.partition(),
            key: self.key().as_bytes().into(),
            message_type: self.message_type().as_bytes().into(),
            body: self.body().into(),
            correlation_id: self.correlation_id().as_bytes().into(),
            traceparent: self.traceparent().map(|t| t.as_bytes().into()),
            headers: self
                .headers()
                .iter()
                .map_while(Result::ok)
                .map(|(k, v)| (k.into(), v.into()))
                .collect(),
        }
    }

    /// The value of the last field of that name.
    fn field(&self, wanted: Field) -> Option<&'a [u8]> {
        self.fields()
            .filter(|(name, _)| Field::of(name) == wanted)
            .map(|(_, value)| value)
            .last()
    }
}

impl fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Bodies and keys may be personal data: they stay out of logs.
        f.debug_struct("Message")
            .field("id", &self.id())
            .field("message_type", &self.message_type())
            .field("body_len", &self.body().len())
            .finish_non_exhaustive()
    }
}

/// The fields of an entry, as (name, value) pairs in stored order.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    cursor: Cursor<'a>,
    arena: &'a [u8],
    left: u32,
}

impl<'a> Iterator for Fields<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        // The entry was scanned before: neither can be missing now.
        let mut text =
            || -> Option<Span> { self.cursor.text().ok().map(Option::unwrap_or_default) };
        let (name, value) = (text()?, text()?);
        Some((name.of(self.arena), value.of(self.arena)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

/// Borrowed text that is usually UTF-8 but does not have to be.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text<'a>(&'a [u8]);

impl<'a> Text<'a> {
    /// The bytes as they are.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.0
    }

    /// The text, if it is UTF-8.
    ///
    /// # Errors
    ///
    /// Says where it stops being UTF-8.
    pub fn as_str(&self) -> Result<&'a str, std::str::Utf8Error> {
        std::str::from_utf8(self.0)
    }

    /// The text, with U+FFFD for what is not UTF-8. Allocates only in that case.
    pub fn to_string_lossy(&self) -> Cow<'a, str> {
        String::from_utf8_lossy(self.0)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'a> From<&'a [u8]> for Text<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }
}

impl PartialEq<str> for Text<'_> {
    fn eq(&self, other: &str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl PartialEq<&str> for Text<'_> {
    fn eq(&self, other: &&str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            f.write_str(chunk.valid())?;
            if !chunk.invalid().is_empty() {
                f.write_str("\u{fffd}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// A message that may be kept, made by [`Message::to_owned`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct OwnedMessage {
    /// The id the server gave it.
    pub id: StreamId,
    /// The partition it came from.
    pub partition: u32,
    /// The partition key; empty when there was none.
    pub key: Box<[u8]>,
    /// What kind of message it is.
    pub message_type: Box<[u8]>,
    /// The payload.
    pub body: Box<[u8]>,
    /// The correlation id; empty when there was none.
    pub correlation_id: Box<[u8]>,
    /// The W3C trace context of its publisher.
    pub traceparent: Option<Box<[u8]>>,
    /// The headers, as far as the block is well formed.
    pub headers: Vec<Header>,
}

/// Name and value.
type Header = (Box<[u8]>, Box<[u8]>);

/// A batch that may be kept, made by [`Batch::to_owned`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OwnedBatch {
    /// The topic it came from.
    pub topic: Arc<str>,
    /// The partition it came from.
    pub partition: u32,
    /// The messages, in stream order.
    pub messages: Vec<OwnedMessage>,
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
