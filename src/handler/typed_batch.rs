//! Typed batch handlers: the values of a whole batch at once, and what becomes of a body that does not
//! decode between others that do.

use std::{
    marker::PhantomData,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
};

use crate::{Batch, BatchHandler, Codec, Failure, HandlerResult, Schema, batch::emptied};

use super::{codec::DecodedBy, rooms::Rooms};

/// Takes messages of one partition batch by batch, decoded.
///
/// ```
/// use serde::Deserialize;
/// use streamlane::{Batch, HandlerResult, TypedBatchHandler};
///
/// #[derive(Deserialize)]
/// struct Order<'a> {
///     customer: &'a str,
///     cents: u64,
/// }
///
/// struct Ledger {
///     cents: u64,
/// }
///
/// impl TypedBatchHandler for Ledger {
///     type Value<'a> = Order<'a>;
///
///     fn handle(&mut self, orders: &[Order<'_>], batch: &Batch<'_>) -> HandlerResult {
///         assert_eq!(orders.len(), batch.len());
///         self.cents += orders.iter().map(|o| o.cents).sum::<u64>();
///         Ok(())
///     }
/// }
/// ```
///
/// What is borrowed cannot be kept past the call:
///
/// ```compile_fail,E0521
/// # use serde::Deserialize;
/// # use streamlane::{Batch, HandlerResult, TypedBatchHandler};
/// # #[derive(Deserialize)]
/// # struct Order<'a> { customer: &'a str }
/// struct Postman(Vec<&'static str>);
/// impl TypedBatchHandler for Postman {
///     type Value<'a> = Order<'a>;
///     fn handle(&mut self, orders: &[Order<'_>], _: &Batch<'_>) -> HandlerResult {
///         self.0.extend(orders.iter().map(|o| o.customer)); // escapes the call
///         Ok(())
///     }
/// }
/// ```
///
/// Bodies are decoded on the lane, one after the other, before the handler is called: at half a
/// microsecond for a small document, handing them to other threads would cost more than it saves.
///
/// A message that does not decode, or is [`malformed`](crate::Message::malformed), costs its neighbours nothing.
/// The batch ends before it; it is then an ordinary error of its own, which the consumer's policy decides
/// about as with message handlers; and what was read behind it is the next batch. So a handler is never
/// given a value that is none, and what it says of its batch, with [`Batch::done`] or an error, is about
/// what it was given alone.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no handler of decoded batches",
    note = "wrap a closure: `typed_batch::<Order<'static>>(|orders, batch| Ok(()))`"
)]
pub trait TypedBatchHandler: Send {
    /// What bodies are decoded into, as for [`TypedHandler`](crate::TypedHandler::Value).
    type Value<'a>: Send;

    /// Does the work. `values[i]` is of the message `batch.get(i)`. `Ok` means that all are finished.
    ///
    /// # Errors
    ///
    /// As for [`BatchHandler::handle`].
    fn handle(&mut self, values: &[Self::Value<'_>], batch: &Batch<'_>) -> HandlerResult;
}

/// Makes a [`TypedBatchHandler`] of a closure; see [`Schema`].
///
/// ```
/// # use serde::Deserialize;
/// # use streamlane::{Batch, Schema, typed_batch};
/// # #[derive(Deserialize)]
/// # struct Order<'a> { id: u64, customer: &'a str }
/// # impl Schema for Order<'static> { type Of<'a> = Order<'a>; }
/// let handler = typed_batch::<Order>(|orders, batch| {
///     for (order, message) in orders.iter().zip(batch) {
///         println!("{} {} {}", message.id(), order.id, order.customer);
///     }
///     Ok(())
/// });
/// # drop(handler);
/// ```
pub fn typed_batch<S>(
    handle: impl FnMut(&[S::Of<'_>], &Batch<'_>) -> HandlerResult + Send,
) -> impl for<'a> TypedBatchHandler<Value<'a> = S::Of<'a>>
where
    S: Schema,
    for<'a> S::Of<'a>: Send,
{
    Closure(handle, PhantomData::<fn() -> S>)
}

struct Closure<S, F>(F, PhantomData<fn() -> S>);

impl<S, F> TypedBatchHandler for Closure<S, F>
where
    S: Schema,
    for<'a> S::Of<'a>: Send,
    F: FnMut(&[S::Of<'_>], &Batch<'_>) -> HandlerResult + Send,
{
    type Value<'a> = S::Of<'a>;

    fn handle(&mut self, values: &[S::Of<'_>], batch: &Batch<'_>) -> HandlerResult {
        (self.0)(values, batch)
    }
}

/// Makes a [`BatchHandler`] of a [`TypedBatchHandler`].
struct DecodedBatches<C, H: TypedBatchHandler> {
    codec: C,
    /// What `codec` was cloned from: it is cloned anew after a panic.
    pristine: C,
    handler: H,
    rooms: Rooms,
    /// Empty between calls; kept for its memory.
    values: Vec<H::Value<'static>>,
}

impl<C, H> BatchHandler for DecodedBatches<C, H>
where
    H: TypedBatchHandler,
    C: for<'a> Codec<'a, H::Value<'a>> + Clone + Send,
{
    fn handle(&mut self, batch: &Batch<'_>) -> HandlerResult {
        // A handler that panics takes both down with it.
        let mut rooms = mem::take(&mut self.rooms);
        let mut values = emptied(mem::take(&mut self.values));
        let lent = batch.len();
        let decoded = decode_all(&mut self.codec, batch, rooms.lend(lent), &mut values);
        let decoded = decoded.unwrap_or_else(|panic| {
            self.codec = self.pristine.clone();
            Err(Failure::panicked("codec", &*panic))
        });
        let result = match decoded {
            // The first has no batch before it: the failure is about it alone.
            Err(failure) if values.is_empty() => {
                batch.shorten(1);
                Err(failure)
            }
            // Any other will be the first of the next call, and fail there.
            _ => {
                batch.shorten(values.len());
                self.handler.handle(&values, batch)
            }
        };
        self.values = emptied(values);
        rooms.take_back(lent);
        self.rooms = rooms;
        result
    }
}

impl<C, H> DecodedBy<C, dyn BatchHandler> for H
where
    H: TypedBatchHandler + 'static,
    C: for<'a> Codec<'a, H::Value<'a>> + Clone + Send + 'static,
{
    fn decoded_by(self, codec: C) -> Box<dyn BatchHandler> {
        Box::new(DecodedBatches {
            codec: codec.clone(),
            pristine: codec,
            handler: self,
            rooms: Rooms::default(),
            values: Vec::new(),
        })
    }
}

/// Decodes the messages of a batch into `values`, up to the first that does not decode or at which the
/// codec panics.
fn decode_all<'a, C: Codec<'a, V>, V>(
    codec: &mut C,
    batch: &Batch<'a>,
    rooms: &'a mut [Vec<u8>],
    values: &mut Vec<V>,
) -> thread::Result<HandlerResult> {
    catch_unwind(AssertUnwindSafe(|| {
        for (message, room) in batch.messages().zip(rooms) {
            if let Some(why) = message.malformed() {
                return Err(Failure::malformed(why));
            }
            let value = codec.decode(message.body(), room);
            values.push(value.map_err(|e| e.decoding(&message))?);
        }
        Ok(())
    }))
}
