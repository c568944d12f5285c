//! Ordered, durable messaging over Redis Streams, without async.

mod backoff;
mod clock;
mod error;
mod quiet;
#[cfg(feature = "testing")]
pub mod testing;

pub use error::{Error, ErrorKind, Outcome, Result, ServerClass};
