//! Ordered, durable messaging over Redis Streams, without async.

mod backoff;
mod clock;
mod error;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod quiet;
mod wire;

pub use error::{Error, ErrorKind, Outcome, Result, ServerClass};
pub use wire::{HeaderIter, Headers, Malformed, StreamId};
