//! The publisher that threads share.

use std::{fmt, sync::Arc};

use parking_lot::{Mutex, MutexGuard};

use crate::{Error, ErrorKind, Result, StreamId, net::Deadline, publish::message::Publish};

use super::{DedicatedPublisher, Draft, Outgoing, PublishPlan, Published, link::Link};

/// Publishes to one topic, from any number of threads over one connection.
///
/// Cheap to clone. Calls block until the server has answered, within the deadline of
/// `PublishTimeoutMs` (5 s by default), waiting for one another included.
#[derive(Clone)]
pub struct Publisher {
    plan: Arc<PublishPlan>,
    link: Arc<Mutex<Link>>,
}

impl Publisher {
    pub(crate) fn new(plan: PublishPlan) -> Self {
        let plan = Arc::new(plan);
        let link = Link::new(Arc::clone(&plan));
        Self {
            plan,
            link: Arc::new(Mutex::new(link)),
        }
    }

    /// The topic it publishes to.
    pub fn topic(&self) -> &str {
        &self.plan.topic
    }

    /// Appends one message to its topic and returns the id the server gave it. Messages with equal keys
    /// go to one partition, in the order in which calls return; messages with an empty key take the
    /// partitions in turn.
    ///
    /// Blocks for one round trip, and for connecting and creating the topic when it is the first. While
    /// the server is down it waits for it within the same deadline. Nothing is sent twice.
    ///
    /// # Errors
    ///
    /// [`Error::outcome`] tells whether the message was stored:
    /// [`NotApplied`](crate::Outcome::NotApplied) when it was refused, too large, or could not be sent;
    /// [`Unknown`](crate::Outcome::Unknown) when the answer was lost. After an unknown outcome the
    /// message may be stored already, or may yet land behind the next one; publishing it again may
    /// store it twice.
    pub fn publish(
        &self,
        key: impl AsRef<[u8]>,
        message_type: impl AsRef<[u8]>,
        body: impl AsRef<[u8]>,
    ) -> Result<StreamId> {
        let m = Outgoing::new(message_type.as_ref(), body.as_ref()).key(key.as_ref());
        Ok(self.send(&m)?.id)
    }

    /// Begins a message with options:
    ///
    /// ```no_run
    /// # fn main() -> Result<(), streamlane::Error> {
    /// # let publisher = streamlane::Streams::connect("redis://127.0.0.1:6379")?.publisher("orders")?;
    /// let id = publisher
    ///     .message("OrderPlaced", br#"{"id":1}"#)
    ///     .key("order-1")
    ///     .correlation_id("checkout-77")
    ///     .header("source", "web")
    ///     .publish()?;
    /// # drop(id);
    /// # Ok(()) }
    /// ```
    pub fn message<'a, T, B>(&'a self, message_type: &'a T, body: &'a B) -> Draft<'a, &'a Self>
    where
        T: AsRef<[u8]> + ?Sized,
        B: AsRef<[u8]> + ?Sized,
    {
        Draft {
            publisher: self,
            message: Outgoing::new(message_type, body),
        }
    }

    /// Publishes messages in one pipeline, in order, and returns one result for each. They are not
    /// stored all or nothing: each has its own result, and one that is too large fails alone. Those
    /// without a key go to one partition together. Memory stays bounded however many there are.
    ///
    /// Blocks for a round trip per 128 KiB or 512 messages, each within a deadline of its own.
    pub fn publish_batch(&self, messages: &[Outgoing<'_>]) -> Vec<Result<StreamId>> {
        let mut results = Vec::with_capacity(messages.len());
        self.publish_batch_into(messages, &mut results);
        results
    }

    /// As [`publish_batch`](Self::publish_batch), with results appended to a vector of yours: of ids, or
    /// of [`Published`] to learn as well which messages had been stored before under their dedupe ids.
    pub fn publish_batch_into<R: From<Published>>(
        &self,
        messages: &[Outgoing<'_>],
        results: &mut Vec<Result<R>>,
    ) {
        let by = Deadline::after(self.plan.timeout);
        match self.lock(by) {
            Ok(mut link) => link.publish_batch(messages, by, results),
            Err(e) => results.extend(messages.iter().map(|_| Err(e.again()))),
        }
    }

    /// A publisher on a socket of its own, for the hottest thread.
    pub fn dedicated(&self) -> DedicatedPublisher {
        DedicatedPublisher::new(Arc::clone(&self.plan))
    }

    fn lock(&self, by: Deadline) -> Result<MutexGuard<'_, Link>> {
        if let Some(link) = self.link.try_lock() {
            return Ok(link);
        }
        self.link.try_lock_for(by.left()).ok_or_else(|| {
            let what = format!(
                "waited {} ms for other callers of this publisher",
                by.allowed().as_millis()
            );
            Error::new(ErrorKind::Timeout, "publish", what)
                .on_key(&self.plan.topic)
                .at(self.plan.target.endpoint())
        })
    }
}

impl Publish for &Publisher {
    fn send(self, message: &Outgoing<'_>) -> Result<Published> {
        let by = Deadline::after(self.plan.timeout);
        self.lock(by)?.publish(message, by)
    }
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publisher")
            .field("topic", &self.plan.topic)
            .field("endpoint", &self.plan.target.endpoint())
            .finish_non_exhaustive()
    }
}
