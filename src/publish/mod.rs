//! Publishing: one XADD, encoded into a reused buffer, one write, one read.

mod counts;
mod dedicated;
mod encoder;
mod ensure;
mod idempotency;
mod line;
mod link;
mod message;
mod once;
mod plan;
mod publisher;

pub(crate) use counts::PublishCounts;
pub use counts::PublishStatus;
pub use dedicated::DedicatedPublisher;
pub(crate) use ensure::{Role, StreamKeys, ensure};
pub use idempotency::{Claim, Idempotency};
pub use message::{Draft, DraftOnce, Outgoing};
pub use once::Published;
pub(crate) use plan::{PublishPlan, TraceHook};
pub use publisher::Publisher;
use {counts::Count, encoder::Encoder, plan::Packing};
