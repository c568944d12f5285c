//! Ordered, durable messaging over Redis Streams, without async.

mod backoff;
mod batch;
mod clock;
mod consume;
mod consumer;
mod error;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod handler;
mod monitor;
mod net;
mod observe;
mod policy;
mod position;
mod publish;
mod quiet;
mod settings;
mod streams;
mod sync;
#[cfg(feature = "testing")]
pub mod testing;
mod wire;

pub use batch::{Batch, Fields, Message, OwnedBatch, OwnedMessage, Text};
pub use consumer::{Consumer, ConsumerBuilder, HasHandler, NoHandler, Stopped};
pub use error::{Error, ErrorKind, Outcome, Result, ServerClass};
pub use handler::{
    Action, BatchHandler, Failure, HandlerResult, MessageHandler, OrAction, Schema, Scratch,
    TypedHandler, typed,
};
pub use monitor::LaneState;
pub use observe::{Health, PartitionStatus, Rule, Status, evaluate};
pub use position::Snapshot;
pub use publish::{DedicatedPublisher, Draft, Outgoing, Publisher};
#[doc(hidden)]
pub use settings::settings_table;
pub use settings::{
    ConnectionString, ConsumerSettings, OnError, Persist, ProducerSettings, ReadMode, Secret,
    Settings, StartFrom, TopicSettings, Trim,
};
pub use streams::Streams;
pub use wire::{HeaderIter, Headers, Malformed, StreamId};
