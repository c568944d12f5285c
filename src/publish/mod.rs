//! Publishing: one XADD, encoded into a reused buffer, one write, one read.

mod counts;
mod dedicated;
mod encoder;
mod ensure;
mod link;
mod message;
mod plan;
mod publisher;

pub(crate) use counts::PublishCounts;
pub use counts::PublishStatus;
pub use dedicated::DedicatedPublisher;
pub(crate) use ensure::{Role, StreamKeys, ensure};
pub use message::{Draft, Outgoing};
pub(crate) use plan::{PublishPlan, TraceHook};
pub use publisher::Publisher;
use {encoder::Encoder, plan::Packing};
