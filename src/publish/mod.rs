//! Publishing: one XADD, encoded into a reused buffer, one write, one read.

mod dedicated;
mod ensure;
mod link;
mod message;
mod publisher;

pub use dedicated::DedicatedPublisher;
pub(crate) use ensure::{StreamKeys, ensure};
pub(crate) use link::PublishPlan;
pub use message::{Draft, Outgoing};
pub use publisher::Publisher;
