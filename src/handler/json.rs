//! Typed handlers: JSON bodies decoded in a reused scratch copy, with strings borrowed from it.
//!
//! Decoding in place would destroy the bytes it reads, and a message handed over again would then be
//! another one; so the arena is never written to, and the copy costs about 1 % of the parse.

use std::{fmt, marker::PhantomData, mem};

use serde::Deserialize;
use simd_json::{Buffers, Deserializer, Tape, fill_tape_padded};

use crate::{
    HandlerResult, Message, MessageHandler,
    error::{Error, ErrorKind},
};

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
/// ```compile_fail
/// # use serde::Deserialize;
/// # use streamlane::{HandlerResult, Message, TypedHandler};
/// # #[derive(Deserialize)]
/// # struct Order<'a> { customer: &'a str }
/// struct Keeper { last: &'static str }
/// impl TypedHandler for Keeper {
///     type Value<'a> = Order<'a>;
///     fn handle(&mut self, order: Order<'_>, _: &Message<'_>) -> HandlerResult {
///         self.last = order.customer; // does not live long enough
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
    /// ordinary error of kind [`ErrorKind::Malformed`].
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

/// The buffers that JSON is decoded in, reused from one message to the next.
pub struct Scratch {
    text: Vec<u8>,
    buffers: Buffers,
    tape: Tape<'static>,
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            text: Vec::new(),
            buffers: Buffers::default(),
            tape: Tape(Vec::new()),
        }
    }
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scratch")
            .field("capacity", &self.text.capacity())
            .finish_non_exhaustive()
    }
}

impl Scratch {
    /// Decodes a copy of `json`. Allocates nothing once it has seen a document of that size.
    pub(crate) fn decode<'s, T: Deserialize<'s>>(
        &'s mut self,
        json: &[u8],
    ) -> Result<T, simd_json::Error> {
        self.text.clear();
        self.text.extend_from_slice(json);
        // The parser may look past the end, at bytes it does not care about.
        self.text.resize(json.len() + simd_json::INPUT_PADDING, 0);
        let mut tape = mem::replace(&mut self.tape, Tape(Vec::new())).reset();
        let filled = fill_tape_padded(&mut self.text, json.len(), &mut self.buffers, &mut tape);
        if let Err(e) = filled {
            self.tape = tape.reset();
            return Err(e);
        }
        let mut de = Deserializer::from_tape(tape);
        let value = T::deserialize(&mut de);
        self.tape = de.into_tape().reset();
        value
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
        let body = message.body();
        let value: H::Value<'_> = self.scratch.decode(body).map_err(|e| {
            let what = format!("JSON of {} bytes does not decode", body.len());
            Error::new(ErrorKind::Malformed, "decode", what).caused_by(e)
        })?;
        self.handler.handle(value, message)
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize, PartialEq, Debug)]
    struct Order<'a> {
        id: u64,
        customer: &'a str,
    }

    #[test]
    fn strings_are_borrowed_even_with_escapes_and_the_input_is_left_alone() {
        let json = br#"{"id":1,"customer":"A\"B\u00e9"}"#.to_vec();
        let before = json.clone();
        let mut scratch = Scratch::default();
        for _ in 0..2 {
            let order: Order<'_> = scratch.decode(&json).unwrap();
            assert_eq!(
                order,
                Order {
                    id: 1,
                    customer: "A\"Bé"
                }
            );
        }
        assert_eq!(json, before);
    }

    #[test]
    fn a_bad_document_does_not_spoil_the_next() {
        let mut scratch = Scratch::default();
        for bad in [&b"{"[..], b"", b"\xff", br#"{"id":"x"}"#, b"[1,2"] {
            assert!(scratch.decode::<Order<'_>>(bad).is_err());
            let good = br#"{"id":2,"customer":""}"#;
            let order: Order<'_> = scratch.decode(good).unwrap();
            assert_eq!(order.id, 2);
        }
    }
}
