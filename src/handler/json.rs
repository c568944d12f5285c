//! Typed handlers: JSON bodies decoded in a reused scratch copy, with strings borrowed from it.

use std::marker::PhantomData;

use serde::Deserialize;

use crate::{HandlerResult, Message, MessageHandler, Scratch};

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
pub trait TypedHandler: Send {
    /// What bodies are decoded into, borrowing from the lane's scratch copy for `'a`.
    type Value<'a>: Deserialize<'a>;

    /// Does the work. `Ok` means that the message is finished.
    ///
    /// # Errors
    ///
    /// As for [`MessageHandler::handle`]. A body that does not decode never gets here: it is an
    /// ordinary error of kind [`ErrorKind::Malformed`](crate::ErrorKind::Malformed).
    fn handle(&mut self, value: Self::Value<'_>, message: &Message<'_>) -> HandlerResult;
}

/// Names a value type with its lifetime open, for closures, which cannot implement [`TypedHandler`].
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
pub trait Schema {
    /// This type at another lifetime.
    type Of<'a>: Deserialize<'a>;
}

/// Makes a [`TypedHandler`] of a closure; see [`Schema`].
pub fn typed<S: Schema>(
    handle: impl FnMut(S::Of<'_>, &Message<'_>) -> HandlerResult + Send,
) -> impl TypedHandler {
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
pub(crate) struct Typed<H> {
    handler: H,
    scratch: Scratch,
}

impl<H> Typed<H> {
    pub(crate) fn new(handler: H) -> Self {
        Self {
            handler,
            scratch: Scratch::default(),
        }
    }
}

impl<H: TypedHandler> MessageHandler for Typed<H> {
    fn handle(&mut self, message: &Message<'_>) -> HandlerResult {
        let value: H::Value<'_> = message.decode_json(&mut self.scratch)?;
        self.handler.handle(value, message)
    }
}
