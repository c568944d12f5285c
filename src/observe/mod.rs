//! What the people on call see: a snapshot of every partition, and a verdict over all of them.

mod health;

pub use health::{Health, PartitionStatus, Rule, Status, evaluate};
