//! A message on its way out.

use smallvec::SmallVec;

use crate::{Result, StreamId};

/// A message to be published. It borrows everything; making one allocates nothing (beyond four headers).
///
/// ```
/// use streamlane::Outgoing;
///
/// let m = Outgoing::new("OrderPlaced", br#"{"id":1}"#).key("order-1").header("source", "web");
/// assert_eq!(m.body().len(), 8);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Outgoing<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) message_type: &'a [u8],
    pub(crate) body: &'a [u8],
    pub(crate) correlation_id: &'a [u8],
    pub(crate) traceparent: Option<&'a [u8]>,
    pub(crate) headers: SmallVec<[(&'a [u8], &'a [u8]); 4]>,
    pub(crate) partition: Option<u32>,
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
        }
    }

    /// The payload.
    pub fn body(&self) -> &'a [u8] {
        self.body
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
    fn send(self, message: &Outgoing<'_>) -> Result<StreamId>;
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

    /// Publishes it and waits for its id.
    ///
    /// # Errors
    ///
    /// As for [`Publisher::publish`](crate::Publisher::publish).
    pub fn publish(self) -> Result<StreamId> {
        self.publisher.send(&self.message)
    }
}
