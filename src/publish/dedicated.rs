//! The publisher of one thread.

use std::{sync::Arc, time::Duration};

use crate::{Result, StreamId, net::Deadline, publish::message::Publish};

use super::{Delayed, Draft, Outgoing, PublishPlan, Published, delayed::When, link::Link};

/// A publisher for one thread, on a socket of its own: the fastest there is.
///
/// Made by [`Publisher::dedicated`](crate::Publisher::dedicated). Nothing is shared, so nothing is
/// locked; give each hot thread one. Two threads cannot use one:
///
/// ```compile_fail,E0499
/// # fn main() -> Result<(), streamlane::Error> {
/// # let publisher = streamlane::Streams::connect("redis://127.0.0.1:6379")?.publisher("orders")?;
/// let mut dedicated = publisher.dedicated();
/// std::thread::scope(|s| {
///     s.spawn(|| dedicated.publish("order-1", "OrderPlaced", b"{}"));
///     s.spawn(|| dedicated.publish("order-2", "OrderPlaced", b"{}")); // a second mutable borrow
/// });
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct DedicatedPublisher {
    link: Link,
}

impl DedicatedPublisher {
    pub(crate) fn new(plan: Arc<PublishPlan>) -> Self {
        Self {
            link: Link::new(plan),
        }
    }

    pub(super) fn plan(&self) -> &Arc<PublishPlan> {
        self.link.plan()
    }

    /// As [`Publisher::publish`](crate::Publisher::publish). Allocates nothing once warm.
    ///
    /// # Errors
    ///
    /// As for [`Publisher::publish`](crate::Publisher::publish).
    pub fn publish(
        &mut self,
        key: impl AsRef<[u8]>,
        message_type: impl AsRef<[u8]>,
        body: impl AsRef<[u8]>,
    ) -> Result<StreamId> {
        let m = Outgoing::new(message_type.as_ref(), body.as_ref()).key(key.as_ref());
        Ok(self.send(&m)?.id)
    }

    /// Begins a message with options; see [`Publisher::message`](crate::Publisher::message).
    pub fn message<'a, T, B>(
        &'a mut self,
        message_type: &'a T,
        body: &'a B,
    ) -> Draft<'a, &'a mut Self>
    where
        T: AsRef<[u8]> + ?Sized,
        B: AsRef<[u8]> + ?Sized,
    {
        Draft {
            publisher: self,
            message: Outgoing::new(message_type, body),
        }
    }

    /// As [`Publisher::publish_batch`](crate::Publisher::publish_batch).
    #[must_use = "each message has a result of its own"]
    pub fn publish_batch(&mut self, messages: &[Outgoing<'_>]) -> Vec<Result<StreamId>> {
        let mut results = Vec::with_capacity(messages.len());
        self.publish_batch_into(messages, &mut results);
        results
    }

    /// As [`publish_batch`](Self::publish_batch), with results appended to a vector of yours: of ids, or
    /// of [`Published`] to learn as well which messages had been stored before under their dedupe ids.
    pub fn publish_batch_into<R: From<Published>>(
        &mut self,
        messages: &[Outgoing<'_>],
        results: &mut Vec<Result<R>>,
    ) {
        let by = Deadline::after(self.link.plan().timeout);
        self.link.publish_batch(messages, by, results);
    }

    /// As [`Publisher::cancel`](crate::Publisher::cancel).
    ///
    /// # Errors
    ///
    /// As for [`Publisher::cancel`](crate::Publisher::cancel).
    pub fn cancel(&mut self, delayed: &Delayed) -> Result<bool> {
        let by = Deadline::after(self.link.plan().timeout);
        self.link.cancel(delayed, by)
    }

    /// Polls the socket for an answer for so long before sleeping in a read. Worth a few microseconds
    /// where this thread has a core of its own, ruinous where it has not. Off by default.
    pub fn set_spin(&mut self, spin: Duration) {
        self.link.set_spin(spin);
    }
}

impl Publish for &mut DedicatedPublisher {
    fn send(self, message: &Outgoing<'_>) -> Result<Published> {
        let by = Deadline::after(self.link.plan().timeout);
        self.link.publish(message, by)
    }

    fn delay(self, message: &Outgoing<'_>, when: When) -> Result<Delayed> {
        let by = Deadline::after(self.link.plan().timeout);
        self.link.delay(message, when, by)
    }
}
