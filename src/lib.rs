//! Ordered, durable messaging over Redis Streams, without async.

mod backoff;
mod clock;
mod error;
mod quiet;
mod settings;

pub use error::{Error, ErrorKind, Outcome, Result, ServerClass};
#[doc(hidden)]
pub use settings::settings_table;
pub use settings::{
    ConnectionString, ConsumerSettings, OnError, Persist, ProducerSettings, ReadMode, Secret,
    Settings, StartFrom, TopicSettings, Trim,
};
