//! What the people on call see: a snapshot of every partition, and a verdict over all of them.

mod health;
#[cfg(feature = "http")]
mod http;
mod judge;
#[cfg(feature = "http")]
mod life;
mod metrics;
mod sample;
mod sampler;
mod sight;
mod status;

pub use health::{Grade, Health, HealthContext, HealthData, Reason, Rule, Silence, Status};
#[cfg(feature = "http")]
pub use http::HttpServer;
#[cfg(feature = "http")]
pub(crate) use http::{Page, Pages};
pub use judge::{evaluate, find_silent, grade};
#[cfg(feature = "http")]
pub(crate) use life::{Life, deaths};
pub(crate) use metrics::{ConsumerSeen, LaneSeen, Seen, Source, TopicSeen};
pub use metrics::{Instrument, InstrumentKind, Metrics, Sample, Value};
pub(crate) use sampler::{Sampled, Sampler, SamplerTerms, Subject};
pub(crate) use sight::Sight;
pub use status::PartitionStatus;
