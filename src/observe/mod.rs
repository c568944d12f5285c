//! What the people on call see: a snapshot of every partition, and a verdict over all of them.

mod health;
mod metrics;
mod sample;
mod sampler;
mod sight;
mod status;

pub use health::{Health, Rule, Status, evaluate};
pub(crate) use metrics::{ConsumerSeen, LaneSeen, Seen, Source, TopicSeen};
pub use metrics::{Instrument, InstrumentKind, Metrics, Sample, Value};
pub(crate) use sampler::{Sampled, Sampler, SamplerTerms, Subject};
pub(crate) use sight::Sight;
pub use status::PartitionStatus;
