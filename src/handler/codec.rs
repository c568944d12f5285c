//! Formats: what makes a value of a body.

use serde::Deserialize;

use crate::{HandlerResult, Json};

/// A format: makes values of type `V` from bodies, which they may borrow from for `'a`.
///
/// [`Json`] is one. A format of yours is an implementation for every value that it can make, given to
/// [`codec`](crate::ConsumerBuilder::codec) or [`codec_batches`](crate::ConsumerBuilder::codec_batches):
///
/// ```
/// use streamlane::{Codec, HandlerResult};
///
/// /// What bodies of `name=value` lines can be read into.
/// trait FromLine<'a>: Sized {
///     fn from_line(name: &'a str, value: &'a str) -> Option<Self>;
/// }
///
/// #[derive(Clone)]
/// struct Lines;
///
/// impl<'a, V: FromLine<'a>> Codec<'a, V> for Lines {
///     fn decode(&mut self, body: &'a [u8], _: &'a mut Vec<u8>) -> HandlerResult<V> {
///         let (name, value) = std::str::from_utf8(body)?.split_once('=').ok_or("no '='")?;
///         Ok(V::from_line(name, value).ok_or("not what was expected")?)
///     }
/// }
/// ```
///
/// A format of serde's is as short, with `V: Deserialize<'a>` as its bound. There is no counterpart for
/// publishing: a body is bytes, however they were made.
pub trait Codec<'a, V> {
    /// Decodes one body. `self` is for what is reused from one to the next; each lane has a clone to itself.
    ///
    /// The value may borrow from `body` as it is, which costs nothing, or from `room`, where a format that
    /// unpacks, or decodes in place, puts bytes of its own. `room` is empty at first, and keeps its capacity
    /// from call to call, so that in steady state nothing needs to be allocated.
    ///
    /// # Errors
    ///
    /// With a bare `?` it is an ordinary error of this message alone, of kind
    /// [`ErrorKind::Malformed`](crate::ErrorKind::Malformed) with yours as its source. A codec may ask for
    /// more, as a handler may: [`or_block`](crate::OrAction::or_block) is right where the registry of its
    /// schemas cannot be reached.
    ///
    /// # Panics
    ///
    /// A panic is caught and is an ordinary error of this message; the codec is then cloned anew.
    fn decode(&mut self, body: &'a [u8], room: &'a mut Vec<u8>) -> HandlerResult<V>;
}

impl<'a, V: Deserialize<'a>> Codec<'a, V> for Json {
    fn decode(&mut self, body: &'a [u8], room: &'a mut Vec<u8>) -> HandlerResult<V> {
        Ok(self.parse(body, room)?)
    }
}

/// A typed handler whose values are made by `C`, and how it becomes an `H` that a lane can call: a boxed
/// [`MessageHandler`](crate::MessageHandler) or [`BatchHandler`](crate::BatchHandler).
///
/// It says the same as a bound on the codec would. But where the handler is still to be inferred, the
/// compiler waits with a bound on it, while one on the codec it would refuse for a codec of one type.
#[diagnostic::on_unimplemented(message = "`{C}` is no `Codec` of the values that `{Self}` takes")]
pub(crate) trait DecodedBy<C, H: ?Sized> {
    fn decoded_by(self, codec: C) -> Box<H>;
}
