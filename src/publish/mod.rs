//! Publishing: one XADD, encoded into a reused buffer, one write, one read.

mod command;
mod condition;
mod counts;
mod dedicated;
mod encoder;
mod ensure;
mod forwarder;
mod idempotency;
mod line;
mod link;
mod message;
mod once;
mod outbox;
mod plan;
mod publisher;
mod script;
mod state_store;
mod transaction;
mod verdict;

pub use command::{Argument, Command, Reply};
pub use condition::Condition;
pub(crate) use counts::PublishCounts;
pub use counts::PublishStatus;
pub use dedicated::DedicatedPublisher;
pub(crate) use ensure::{Role, StreamKeys, ensure};
pub use forwarder::{Forwarder, Forwarding, Source};
pub use idempotency::{Claim, Idempotency};
pub use message::{Draft, DraftOnce, Outgoing};
pub use once::Published;
pub use outbox::{Commit, Committed, Outbox, PartlyFailed, Transaction};
pub(crate) use plan::{PublishPlan, TraceHook};
pub use publisher::Publisher;
pub use state_store::{Append, StateEvent, StateStore};
use {counts::Count, encoder::Encoder, plan::Packing};
