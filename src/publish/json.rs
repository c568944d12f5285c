//! Publishing values as JSON: what they are called, and where their bodies are made.

use std::{cell::Cell, mem, ops::Range};

use serde::{Serialize, Serializer};

use crate::{Error, Json, Result, StreamId, batch::emptied};

use super::{BufferedPublisher, DedicatedPublisher, Outgoing, PublishPlan, Publisher};

/// Says which message type a value is published as.
///
/// ```
/// use serde::Serialize;
/// use streamlane::MessageType;
///
/// #[derive(Serialize)]
/// struct OrderPlaced<'a> {
///     id: u64,
///     customer: &'a str,
/// }
///
/// impl MessageType for OrderPlaced<'_> {
///     const MESSAGE_TYPE: &'static str = "OrderPlaced";
/// }
/// ```
///
/// [`As`] gives a type to a value that has none, or has another one each time.
pub trait MessageType {
    /// The type, as consumers see it in [`Message::message_type`](crate::Message::message_type) and name
    /// it in [`filter`](crate::ConsumerBuilder::filter).
    const MESSAGE_TYPE: &'static str;
}

impl<T: MessageType + ?Sized> MessageType for &T {
    const MESSAGE_TYPE: &'static str = T::MESSAGE_TYPE;
}

/// A value together with the message type it is published as:
///
/// ```no_run
/// # fn main() -> Result<(), streamlane::Error> {
/// # let publisher = streamlane::Streams::connect("redis://127.0.0.1:6379")?.publisher("orders")?;
/// use streamlane::As;
///
/// publisher.publish_json("order-1", &As("OrderNoted", &["gift", "fragile"]))?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct As<'a, T: ?Sized>(
    /// The message type.
    pub &'a str,
    /// The value.
    pub &'a T,
);

impl<T: ?Sized> Clone for As<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: ?Sized> Copy for As<'_, T> {}

impl<T: Serialize + ?Sized> Serialize for As<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.1.serialize(serializer)
    }
}

/// What can be published as JSON: a value with a [`MessageType`], or one that is given one by [`As`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be published as JSON",
    note = "implement `Serialize` and `MessageType` for it, or give it a type with `As`"
)]
pub(crate) trait JsonMessage: Serialize {
    fn message_type(&self) -> &str;
}

impl<T: MessageType + Serialize + ?Sized> JsonMessage for T {
    fn message_type(&self) -> &str {
        T::MESSAGE_TYPE
    }
}

impl<T: Serialize + ?Sized> JsonMessage for As<'_, T> {
    fn message_type(&self) -> &str {
        self.0
    }
}

#[expect(private_bounds, reason = "a value with a `MessageType`, or `As` one")]
impl Publisher {
    /// Publishes a value that has a [`MessageType`], or that is given one by [`As`], with a body of JSON.
    /// Blocks as [`publish`](Self::publish) does, and allocates nothing once warm.
    ///
    /// For headers and the like, make the body with
    /// [`Scratch::encode_json`](crate::Scratch::encode_json) and publish it with
    /// [`message`](Self::message).
    ///
    /// ```no_run
    /// # use serde::Serialize;
    /// # use streamlane::MessageType;
    /// # #[derive(Serialize)] struct OrderPlaced<'a> { id: u64, customer: &'a str }
    /// # impl MessageType for OrderPlaced<'_> { const MESSAGE_TYPE: &'static str = "OrderPlaced"; }
    /// # fn main() -> Result<(), streamlane::Error> {
    /// # let publisher = streamlane::Streams::connect("redis://127.0.0.1:6379")?.publisher("orders")?;
    /// publisher.publish_json("order-1", &OrderPlaced { id: 1, customer: "Ada" })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`publish`](Self::publish), and of kind [`ErrorKind::Argument`](crate::ErrorKind::Argument)
    /// when the value refuses to be serialized; nothing is sent then.
    ///
    /// # Panics
    ///
    /// When serializing the value does. Nothing is sent then, and other callers notice nothing.
    pub fn publish_json<V>(&self, key: impl AsRef<[u8]>, value: &V) -> Result<StreamId>
    where
        V: JsonMessage + ?Sized,
    {
        Workbench::borrow(|workbench| {
            let body = workbench.one(value, self.plan())?;
            self.publish(key, value.message_type(), body)
        })
    }

    /// As [`publish_batch`](Self::publish_batch), with a key and a body of JSON for each value; one that
    /// refuses to be serialized fails alone. All bodies are made before the first is sent.
    ///
    /// # Panics
    ///
    /// When serializing a value does. Nothing is sent then.
    #[must_use = "each value has a result of its own"]
    pub fn publish_json_batch<K, V>(&self, values: &[(K, V)]) -> Vec<Result<StreamId>>
    where
        K: AsRef<[u8]>,
        V: JsonMessage,
    {
        let mut results = Vec::new();
        Workbench::borrow(|workbench| {
            workbench.many(values, self.plan(), &mut results, |messages, results| {
                *results = self.publish_batch(messages);
            });
        });
        results
    }
}

#[expect(private_bounds, reason = "a value with a `MessageType`, or `As` one")]
impl DedicatedPublisher {
    /// As [`Publisher::publish_json`](crate::Publisher::publish_json).
    ///
    /// # Errors
    ///
    /// As for [`Publisher::publish_json`](crate::Publisher::publish_json).
    ///
    /// # Panics
    ///
    /// When serializing the value does. Nothing is sent then.
    pub fn publish_json<V>(&mut self, key: impl AsRef<[u8]>, value: &V) -> Result<StreamId>
    where
        V: JsonMessage + ?Sized,
    {
        Workbench::borrow(|workbench| {
            let body = workbench.one(value, self.plan())?;
            self.publish(key, value.message_type(), body)
        })
    }

    /// As [`Publisher::publish_json_batch`](crate::Publisher::publish_json_batch).
    ///
    /// # Panics
    ///
    /// When serializing a value does. Nothing is sent then.
    #[must_use = "each value has a result of its own"]
    pub fn publish_json_batch<K, V>(&mut self, values: &[(K, V)]) -> Vec<Result<StreamId>>
    where
        K: AsRef<[u8]>,
        V: JsonMessage,
    {
        let mut results = Vec::with_capacity(values.len());
        self.publish_json_batch_into(values, &mut results);
        results
    }

    /// As [`publish_json_batch`](Self::publish_json_batch), with results appended to a vector of yours.
    /// Allocates nothing once warm.
    ///
    /// # Panics
    ///
    /// When serializing a value does. Nothing is sent then.
    pub fn publish_json_batch_into<K, V>(
        &mut self,
        values: &[(K, V)],
        results: &mut Vec<Result<StreamId>>,
    ) where
        K: AsRef<[u8]>,
        V: JsonMessage,
    {
        let plan = self.plan().clone();
        Workbench::borrow(|workbench| {
            workbench.many(values, &plan, results, |messages, results| {
                self.publish_batch_into(messages, results);
            });
        });
    }
}

#[expect(private_bounds, reason = "a value with a `MessageType`, or `As` one")]
impl BufferedPublisher {
    /// As [`enqueue`](Self::enqueue), with a value that has a [`MessageType`], or that is given one by
    /// [`As`], and a body of JSON, made on the calling thread. Allocates nothing once warm.
    ///
    /// For headers and the like, and for the other ways to enqueue, make the body with
    /// [`Scratch::encode_json`](crate::Scratch::encode_json).
    ///
    /// # Errors
    ///
    /// As for [`enqueue`](Self::enqueue), and of kind [`ErrorKind::Argument`](crate::ErrorKind::Argument)
    /// when the value refuses to be serialized; it is not taken then.
    ///
    /// # Panics
    ///
    /// When serializing the value does. It is not taken then.
    pub fn enqueue_json<V>(&self, key: impl AsRef<[u8]>, value: &V) -> Result<()>
    where
        V: JsonMessage + ?Sized,
    {
        Workbench::borrow(|workbench| {
            let body = workbench.one(value, self.plan())?;
            self.enqueue(&Outgoing::new(value.message_type(), body).key(key.as_ref()))
        })
    }
}

/// Past so many bytes a thread's workbench is given up after use.
const KEPT_BYTES: usize = 1024 * 1024;

thread_local! {
    static WORKBENCH: Cell<Workbench> = const { Cell::new(Workbench::new()) };
}

/// What a thread makes bodies on.
#[derive(Default)]
struct Workbench {
    bodies: Vec<u8>,
    /// Where each body lies; `None` for a value that refused.
    spans: Vec<Option<Range<usize>>>,
    /// Empty between calls; kept for its memory.
    messages: Vec<Outgoing<'static>>,
}

impl Workbench {
    const fn new() -> Self {
        Self {
            bodies: Vec::new(),
            spans: Vec::new(),
            messages: Vec::new(),
        }
    }

    /// Takes the thread's workbench for one call. Serializing is the user's code: one that publishes meanwhile
    /// finds an empty workbench, and one that panics takes it down with it.
    fn borrow<R>(call: impl FnOnce(&mut Self) -> R) -> R {
        // a thread that is ending has none any more
        let mut workbench = WORKBENCH.try_with(Cell::take).unwrap_or_default();
        let result = call(&mut workbench);
        if workbench.held() <= KEPT_BYTES {
            let _ = WORKBENCH.try_with(|b| b.set(workbench));
        }
        result
    }

    fn held(&self) -> usize {
        self.bodies.capacity()
            + self.spans.capacity() * size_of::<Option<Range<usize>>>()
            + self.messages.capacity() * size_of::<Outgoing<'_>>()
    }

    /// The body of a value.
    fn one<V: Serialize + ?Sized>(&mut self, value: &V, plan: &PublishPlan) -> Result<&[u8]> {
        self.bodies.clear();
        Json::write(value, &mut self.bodies).map_err(|e| refused(e, plan))?;
        Ok(&self.bodies)
    }

    /// Has `publish` append a result for each value that has a body, and puts those that refused in their
    /// places between them.
    fn many<K: AsRef<[u8]>, V: JsonMessage>(
        &mut self,
        values: &[(K, V)],
        plan: &PublishPlan,
        results: &mut Vec<Result<StreamId>>,
        publish: impl FnOnce(&[Outgoing<'_>], &mut Vec<Result<StreamId>>),
    ) {
        self.bodies.clear();
        self.spans.clear();
        let (mut refusals, first) = (Vec::new(), results.len());
        for (_, value) in values {
            let start = self.bodies.len();
            let written = Json::write(value, &mut self.bodies);
            self.spans.push(match written {
                Ok(()) => Some(start..self.bodies.len()),
                Err(e) => {
                    refusals.push(refused(e, plan));
                    None
                }
            });
        }
        let mut messages = emptied(mem::take(&mut self.messages));
        for ((key, value), span) in values.iter().zip(&self.spans) {
            if let Some(span) = span.clone() {
                let body = &self.bodies[span];
                messages.push(Outgoing::new(value.message_type(), body).key(key));
            }
        }
        publish(&messages, results);
        self.messages = emptied(messages);
        if !refusals.is_empty() {
            let published = results.split_off(first);
            let (mut published, mut refusals) = (published.into_iter(), refusals.into_iter());
            results.extend(self.spans.iter().filter_map(|span| match span {
                Some(_) => published.next(),
                None => refusals.next().map(Err),
            }));
        }
    }
}

/// A value that refused to be serialized is a message that was refused.
#[cold]
fn refused(e: Error, plan: &PublishPlan) -> Error {
    let e = plan.about(e);
    plan.counts.failed(&e);
    e
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_what_it_makes_bodies_on_unless_it_grew_too_large() {
        let grown = |by: usize| {
            Workbench::borrow(|b| b.bodies.reserve(by));
            Workbench::borrow(|b| b.held())
        };
        assert!(grown(1000) >= 1000);
        assert_eq!(grown(KEPT_BYTES + 1), 0);
        let within = Workbench::borrow(|outer| {
            outer.bodies.extend_from_slice(b"half a bo");
            Workbench::borrow(|inner| inner.bodies.len())
        });
        assert_eq!(within, 0, "a value that publishes meanwhile has another");
        Workbench::borrow(|b| b.bodies.reserve(1000));
        let fails = || Workbench::borrow(|_| panic!("serializing"));
        std::panic::catch_unwind(fails).unwrap_err();
        assert_eq!(Workbench::borrow(|b| b.held()), 0);
    }
}
