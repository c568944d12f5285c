//! Ordered, durable messaging over Redis Streams, without async.

mod backoff;
mod clock;
mod error;
mod net;
mod quiet;

pub use error::{Error, ErrorKind, Outcome, Result, ServerClass};
