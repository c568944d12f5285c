//! A message on its way out.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use smallvec::SmallVec;

use crate::{Result, StreamId};

use super::{Delayed, DraftDelayed, Published, delayed::When, once::Dedupe};

/// A message to be published. It borrows everything; making one allocates nothing (beyond four headers).
///
/// ```
/// use streamlane::Outgoing;
///
/// let m = Outgoing::new("OrderPlaced", br#"{"id":1}"#).key("order-1").header("source", "web");
/// assert_eq!(m.body().len(), 8);
/// ```
#[derive(Clone, Default)]
pub struct Outgoing<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) message_type: &'a [u8],
    pub(crate) body: &'a [u8],
    pub(crate) correlation_id: &'a [u8],
    pub(crate) traceparent: Option<&'a [u8]>,
    pub(crate) headers: SmallVec<[(&'a [u8], &'a [u8]); 4]>,
    pub(crate) partition: Option<u32>,
    pub(crate) dedupe: Option<Dedupe<'a>>,
    pub(crate) max_attempts: Option<u32>,
}

impl<'a> Outgoing<'a> {
    /// A message of this type and payload, without a key.
    pub fn new<T, B>(message_type: &'a T, body: &'a B) -> Self
    where
        T: AsRef<[u8]> + ?Sized,
        B: AsRef<[u8]> + ?Sized,
    {
        Self {
            message_type: message_type.as_ref(),
            body: body.as_ref(),
            ..Self::default()
        }
    }

    /// Messages with equal keys go to one partition, where their order is kept. An empty key is none:
    /// such messages take the partitions in turn.
    #[must_use]
    pub fn key<K: AsRef<[u8]> + ?Sized>(mut self, key: &'a K) -> Self {
        self.key = key.as_ref();
        self
    }

    /// Adds a header. At most 64, and 8192 bytes packed; more are refused when publishing.
    #[must_use]
    pub fn header<N, V>(mut self, name: &'a N, value: &'a V) -> Self
    where
        N: AsRef<[u8]> + ?Sized,
        V: AsRef<[u8]> + ?Sized,
    {
        self.headers.push((name.as_ref(), value.as_ref()));
        self
    }

    /// What ties this message to others of the same story. An empty one is none.
    #[must_use]
    pub fn correlation_id<C: AsRef<[u8]> + ?Sized>(mut self, id: &'a C) -> Self {
        self.correlation_id = id.as_ref();
        self
    }

    /// The W3C trace context of the caller, such as `00-4bf9…-00f0…-01`.
    #[must_use]
    pub fn traceparent<T: AsRef<[u8]> + ?Sized>(mut self, traceparent: &'a T) -> Self {
        self.traceparent = Some(traceparent.as_ref());
        self
    }

    /// Sends it to this partition, whatever its key says. The key is kept all the same.
    #[must_use]
    pub fn partition(mut self, partition: u32) -> Self {
        self.partition = Some(partition);
        self
    }

    /// How often it is handed over again at most after it failed, by consumers that do that
    /// ([`OnError::Park`](crate::OnError::Park) and [`OnError::Retry`](crate::OnError::Retry)); 0: it becomes a dead letter at its first failure. It makes
    /// their own number smaller, never larger. Of a batch that fails as a whole the smallest counts.
    ///
    /// It travels in the header `streamlane-max-attempts`, as a number in decimal, and counts as one of the
    /// headers.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// The same message for as long as this one is borrowed: the compiler does not see that a shorter
    /// time would do, because of the headers.
    pub(super) fn reborrow(&self) -> Outgoing<'_> {
        Outgoing {
            key: self.key,
            message_type: self.message_type,
            body: self.body,
            correlation_id: self.correlation_id,
            traceparent: self.traceparent,
            headers: self.headers.iter().copied().collect(),
            partition: self.partition,
            dedupe: self.dedupe,
            max_attempts: self.max_attempts,
        }
    }

    /// Stores it once, however often it is published under this id within `ttl`; see
    /// [`Draft::dedupe`], whose limits hold here too. For a batch: read its results as [`Published`] to
    /// learn which messages were stored before. Where messages wait in a queue, or are part of a transaction,
    /// it is refused.
    #[must_use]
    pub fn dedupe<I: AsRef<[u8]> + ?Sized>(mut self, id: &'a I, ttl: Duration) -> Self {
        let id = id.as_ref();
        self.dedupe = Some(Dedupe { id, ttl });
        self
    }

    /// The payload.
    pub fn body(&self) -> &'a [u8] {
        self.body
    }

    /// About how many bytes it takes: all but the headers, of which there may be few.
    pub(super) fn size(&self) -> usize {
        let traceparent = self.traceparent.unwrap_or_default();
        let parts = [self.body, self.message_type, self.key, self.correlation_id];
        parts.iter().map(|part| part.len()).sum::<usize>() + traceparent.len()
    }
}

/// Type and length. Bodies and keys may be personal data: they stay out of logs.
impl fmt::Debug for Outgoing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outgoing")
            .field(
                "message_type",
                &self.message_type.escape_ascii().to_string(),
            )
            .field("body_len", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// A message under construction at a publisher; see [`Publisher::message`](crate::Publisher::message).
#[derive(Debug)]
#[must_use = "nothing is sent before `publish` is called"]
pub struct Draft<'a, P> {
    pub(super) publisher: P,
    pub(super) message: Outgoing<'a>,
}

/// What a draft can be published by.
pub(super) trait Publish {
    fn send(self, message: &Outgoing<'_>) -> Result<Published>;

    /// Has the server keep it until then.
    fn delay(self, message: &Outgoing<'_>, when: When) -> Result<Delayed>;
}

#[expect(private_bounds, reason = "made only by publishers of this crate")]
impl<'a, P: Publish> Draft<'a, P> {
    /// See [`Outgoing::key`].
    pub fn key<K: AsRef<[u8]> + ?Sized>(mut self, key: &'a K) -> Self {
        self.message = self.message.key(key);
        self
    }

    /// See [`Outgoing::header`].
    pub fn header<N, V>(mut self, name: &'a N, value: &'a V) -> Self
    where
        N: AsRef<[u8]> + ?Sized,
        V: AsRef<[u8]> + ?Sized,
    {
        self.message = self.message.header(name, value);
        self
    }

    /// See [`Outgoing::correlation_id`].
    pub fn correlation_id<C: AsRef<[u8]> + ?Sized>(mut self, id: &'a C) -> Self {
        self.message = self.message.correlation_id(id);
        self
    }

    /// See [`Outgoing::traceparent`].
    pub fn traceparent<T: AsRef<[u8]> + ?Sized>(mut self, traceparent: &'a T) -> Self {
        self.message = self.message.traceparent(traceparent);
        self
    }

    /// See [`Outgoing::partition`].
    pub fn partition(mut self, partition: u32) -> Self {
        self.message = self.message.partition(partition);
        self
    }

    /// See [`Outgoing::max_attempts`].
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.message = self.message.max_attempts(attempts);
        self
    }

    /// Publishes it and waits for its id.
    ///
    /// # Errors
    ///
    /// As for [`Publisher::publish`](crate::Publisher::publish).
    pub fn publish(self) -> Result<StreamId> {
        Ok(self.publisher.send(&self.message)?.id)
    }

    /// Stores it once, however often it is published under this id within `ttl`: the way to publish
    /// again after an [unknown outcome](crate::Outcome::Unknown), or from a handler that may be handed a
    /// message twice.
    ///
    /// Message and marker are stored by one script, so there is no moment between them. The marker holds
    /// the message's id and lives for `ttl` from then on: the first call appends, the others learn the id
    /// it got. What that means:
    ///
    /// - the marker does not look at the message: one that was deleted or trimmed away since is still
    ///   told as stored before. After `ttl` (on the server's clock) the next call appends again, so choose
    ///   it longer than any resend may take.
    /// - ids are compared byte by byte within the topic. With `CoLocatePartitions` false they are compared
    ///   within the partition: send a message again with the same key. One without a key or partition goes
    ///   where its dedupe id says; enlarging such a topic between the two calls may store it twice.
    /// - they are no claims of [`Idempotency`](crate::Idempotency): the same id in both is two things.
    /// - a server that loses what it acknowledged (a crash without fsync, a failover) loses both together
    ///   or the marker first, and then the message may be stored again.
    ///
    /// The id is 1 to 1024 bytes and not blank, `ttl` at least 1 ms, and rounded up to milliseconds. The user needs the
    /// rights to run scripts.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), streamlane::Error> {
    /// # use std::time::Duration;
    /// # let publisher = streamlane::Streams::connect("redis://127.0.0.1:6379")?.publisher("orders")?;
    /// let day = Duration::from_secs(24 * 60 * 60);
    /// let once = || {
    ///     let m = publisher.message("OrderPlaced", br#"{"id":1}"#).key("order-1");
    ///     m.dedupe("order-1/placed", day).publish()
    /// };
    /// let published = once().or_else(|_| once())?;
    /// if published.repeated {
    ///     println!("already published as {}", published.id);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn dedupe<I: AsRef<[u8]> + ?Sized>(mut self, id: &'a I, ttl: Duration) -> DraftOnce<'a, P> {
        self.message = self.message.dedupe(id, ttl);
        DraftOnce(self)
    }

    /// Has it published when so much time has passed on the server's clock: the server keeps it until then,
    /// and consumers do not see it before. At most 10 years; rounded up to milliseconds. Zero is as soon as
    /// the next move.
    ///
    /// What that means:
    ///
    /// - every process that publishes to the topic or consumes it looks once a second for what is due, and
    ///   one at a time publishes it: the one that added what is due next, or one that holds a lease of 3 s.
    ///   So a message comes within milliseconds of its time while the process that scheduled it runs, within
    ///   some 4 s when that one died, and when the next process comes where there is none.
    /// - it gets its id and its place in its partition when it is published, behind what was published until
    ///   then: the order per key is that in which messages are due, and of those due in one millisecond
    ///   the order in which they were scheduled.
    /// - its partition is chosen now, as for any other message: a topic that grows until then does not move
    ///   it. So is `MaxLen`, to which its partition is trimmed when it is published.
    /// - what is kept counts for nobody's `MaxLen`: it takes memory of the server until it is due, and
    ///   nothing else bounds it. Its body is with it, however large, and is not kept apart (`ClaimCheck`) later.
    /// - one that cannot be published when it is due, because its partition's key holds something else, say,
    ///   is put off by a minute, again and again, and is an error in the log. The others go on.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), streamlane::Error> {
    /// # use std::time::Duration;
    /// # let publisher = streamlane::Streams::connect("redis://127.0.0.1:6379")?.publisher("orders")?;
    /// let reminder = publisher
    ///     .message("PaymentDue", br#"{"id":1}"#)
    ///     .key("order-1")
    ///     .deliver_after(Duration::from_secs(15 * 60))
    ///     .publish()?;
    /// // it was paid in time
    /// let withdrawn = publisher.cancel(&reminder)?;
    /// # drop(withdrawn);
    /// # Ok(()) }
    /// ```
    pub fn deliver_after(self, delay: Duration) -> DraftDelayed<'a, P> {
        DraftDelayed::new(self, When::After(delay))
    }

    /// As [`deliver_after`](Self::deliver_after), at a moment, as the server's clock has it; rounded up to
    /// milliseconds. One in the past is as soon as the next move.
    pub fn deliver_at(self, moment: SystemTime) -> DraftDelayed<'a, P> {
        DraftDelayed::new(self, When::At(moment))
    }
}

/// A message under construction that is stored once; see [`Draft::dedupe`].
#[derive(Debug)]
#[must_use = "nothing is sent before `publish` is called"]
pub struct DraftOnce<'a, P>(Draft<'a, P>);

#[expect(private_bounds, reason = "made only by publishers of this crate")]
impl<P: Publish> DraftOnce<'_, P> {
    /// Publishes it, or finds that it was published before, and waits for its id.
    ///
    /// # Errors
    ///
    /// As for [`Publisher::publish`](crate::Publisher::publish), and for an id or time out of bounds. After
    /// any error the same call may be made again: it stores the message once.
    pub fn publish(self) -> Result<Published> {
        self.0.publisher.send(&self.0.message)
    }
}

impl<'a, P> DraftOnce<'a, P> {
    /// As [`Draft::deliver_after`], and kept once, however often it is scheduled under its dedupe id: the
    /// others learn [what was scheduled](Delayed) by the first. What is published with this id but without a
    /// delay meanwhile is refused. Withdrawing it leaves the marker where it is. The time for which the id is
    /// remembered begins now: choose a `ttl` longer than the delay plus any resend.
    pub fn deliver_after(self, delay: Duration) -> DraftDelayed<'a, P> {
        DraftDelayed::new(self.0, When::After(delay))
    }

    /// As [`deliver_after`](Self::deliver_after), at a moment.
    pub fn deliver_at(self, moment: SystemTime) -> DraftDelayed<'a, P> {
        DraftDelayed::new(self.0, When::At(moment))
    }
}
