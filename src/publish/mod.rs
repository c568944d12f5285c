//! Publishing: one XADD, encoded into a reused buffer, one write, one read.

mod command;
mod condition;
mod counts;
mod dedicated;
mod encoder;
mod ensure;
mod json;
mod line;
mod link;
mod message;
mod outbox;
mod plan;
mod publisher;
mod state_store;
mod transaction;
mod verdict;

pub use command::{Argument, Command, Reply};
pub use condition::Condition;
pub(crate) use counts::PublishCounts;
pub use counts::PublishStatus;
pub use dedicated::DedicatedPublisher;
pub(crate) use ensure::{StreamKeys, ensure};
pub use json::{As, MessageType};
pub use message::{Draft, Outgoing};
pub use outbox::{Commit, Committed, Outbox, PartlyFailed, Transaction};
pub(crate) use plan::{PublishPlan, TraceHook};
pub use publisher::Publisher;
pub use state_store::{Append, StateEvent, StateStore};
use {encoder::Encoder, plan::Packing};
