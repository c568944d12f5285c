//! What the people on call see: a snapshot of every partition, and a verdict over all of them.

mod health;
mod judge;
mod metrics;
mod sample;
mod sampler;
mod sight;
mod status;

pub use health::{Grade, Health, HealthContext, HealthData, Reason, Rule, Silence, Status};
pub use judge::{evaluate, find_silent, grade};
pub(crate) use metrics::{ConsumerSeen, LaneSeen, Seen, Source, TopicSeen};
pub use metrics::{Instrument, InstrumentKind, Metrics, Sample, Value};
pub(crate) use sampler::{Sampled, Sampler, SamplerTerms, Subject};
pub(crate) use sight::Sight;
pub use status::PartitionStatus;
