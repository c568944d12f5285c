//! Publishing: one XADD, encoded into a reused buffer, one write, one read.

mod buffered;
mod counts;
mod dedicated;
mod encoder;
mod ensure;
mod link;
mod message;
mod plan;
mod publisher;

pub(crate) use buffered::Handle;
pub use buffered::{BufferedPublisher, Closed, Flushed, Receipt, Undelivered};
pub(crate) use counts::PublishCounts;
pub use counts::PublishStatus;
pub use dedicated::DedicatedPublisher;
pub(crate) use ensure::{StreamKeys, ensure};
pub use message::{Draft, Outgoing};
pub(crate) use plan::{PublishPlan, TraceHook};
pub use publisher::Publisher;
use {encoder::Encoder, plan::Packing};
