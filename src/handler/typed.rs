//! Typed handlers: they are given values, decoded by a codec from the body of each message.

use std::marker::PhantomData;

use crate::{Codec, HandlerResult, Message, MessageHandler};

use super::{codec::DecodedBy, rooms::Rooms};

/// Takes decoded messages of one partition, one by one, in order.
///
/// `Value<'a>` is named with its lifetime open, so that each call can lend it strings:
///
/// ```
/// use serde::Deserialize;
/// use streamlane::{HandlerResult, Message, TypedHandler};
///
/// #[derive(Deserialize)]
/// struct Order<'a> {
///     id: u64,
///     customer: &'a str,
/// }
///
/// struct Ledger {
///     total: u64,
/// }
///
/// impl TypedHandler for Ledger {
///     type Value<'a> = Order<'a>;
///
///     fn handle(&mut self, order: Order<'_>, _: &Message<'_>) -> HandlerResult {
///         self.total += order.id;
///         Ok(())
///     }
/// }
/// ```
///
/// What is borrowed cannot be kept past the call:
///
/// ```compile_fail,E0521
/// # use serde::Deserialize;
/// # use streamlane::{HandlerResult, Message, TypedHandler};
/// # #[derive(Deserialize)]
/// # struct Order<'a> { customer: &'a str }
/// struct Postman;
/// impl TypedHandler for Postman {
///     type Value<'a> = Order<'a>;
///     fn handle(&mut self, order: Order<'_>, _: &Message<'_>) -> HandlerResult {
///         std::thread::spawn(move || println!("{}", order.customer)); // escapes the call
///         Ok(())
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no handler of decoded messages",
    note = "wrap a closure: `typed::<Order<'static>>(|order, message| Ok(()))`"
)]
pub trait TypedHandler: Send {
    /// What bodies are decoded into, borrowing for `'a` from the lane. Its [`Codec`] says what it takes to
    /// be decoded; for JSON it is to implement [`Deserialize`](serde::Deserialize).
    type Value<'a>;

    /// Does the work. `Ok` means that the message is finished.
    ///
    /// # Errors
    ///
    /// As for [`MessageHandler::handle`]. A body that does not decode never gets here: it is an
    /// ordinary error of kind [`ErrorKind::Malformed`](crate::ErrorKind::Malformed), unless the codec
    /// asks for something else.
    fn handle(&mut self, value: Self::Value<'_>, message: &Message<'_>) -> HandlerResult;
}

/// Names a value type with its lifetime open, for closures, which cannot implement [`TypedHandler`] or
/// [`TypedBatchHandler`](crate::TypedBatchHandler).
///
/// ```
/// # use serde::Deserialize;
/// use streamlane::{Schema, typed};
/// # #[derive(Deserialize)]
/// # struct Order<'a> { id: u64, customer: &'a str }
///
/// impl Schema for Order<'static> {
///     type Of<'a> = Order<'a>;
/// }
///
/// let handler = typed::<Order>(|order, message| {
///     println!("{} {} {}", message.id(), order.id, order.customer);
///     Ok(())
/// });
/// # drop(handler);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` names no type to decode into",
    note = "say which: `impl Schema for Order<'static> {{ type Of<'a> = Order<'a>; }}`; for a type that \
            borrows nothing: `impl Schema for Order {{ type Of<'a> = Order; }}`"
)]
pub trait Schema {
    /// This type at another lifetime.
    type Of<'a>;
}

/// Makes a [`TypedHandler`] of a closure; see [`Schema`].
pub fn typed<S: Schema>(
    handle: impl FnMut(S::Of<'_>, &Message<'_>) -> HandlerResult + Send,
) -> impl for<'a> TypedHandler<Value<'a> = S::Of<'a>> {
    Closure(handle, PhantomData::<fn() -> S>)
}

struct Closure<S, F>(F, PhantomData<fn() -> S>);

impl<S, F> TypedHandler for Closure<S, F>
where
    S: Schema,
    F: FnMut(S::Of<'_>, &Message<'_>) -> HandlerResult + Send,
{
    type Value<'a> = S::Of<'a>;

    fn handle(&mut self, value: S::Of<'_>, message: &Message<'_>) -> HandlerResult {
        (self.0)(value, message)
    }
}

/// Makes a [`MessageHandler`] of a [`TypedHandler`].
struct Decoded<C, H> {
    codec: C,
    handler: H,
    rooms: Rooms,
}

impl<C, H> MessageHandler for Decoded<C, H>
where
    H: TypedHandler,
    C: for<'a> Codec<'a, H::Value<'a>> + Send,
{
    fn handle(&mut self, message: &Message<'_>) -> HandlerResult {
        let room = &mut self.rooms.lend(1)[0];
        let value = self.codec.decode(message.body(), room);
        let value = value.map_err(|e| e.decoding(message));
        let result = value.and_then(|value| self.handler.handle(value, message));
        // A handler that panics takes them down with it.
        self.rooms.take_back(1);
        result
    }
}

impl<C, H> DecodedBy<C, dyn MessageHandler> for H
where
    H: TypedHandler + 'static,
    C: for<'a> Codec<'a, H::Value<'a>> + Send + 'static,
{
    fn decoded_by(self, codec: C) -> Box<dyn MessageHandler> {
        Box::new(Decoded {
            codec,
            handler: self,
            rooms: Rooms::default(),
        })
    }
}
