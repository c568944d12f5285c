//! The settings of publishing to one topic.

use super::codec::{Codec, Text};

section! {
    /// One topic a service publishes to. An entry of `Producers`.
    pub struct ProducerSettings in Producers {
        /// The topic. Required.
        topic: String = String::new(), "Topic", Text, set(topic: impl Into<String>) topic.into();
    }
}

impl ProducerSettings {
    /// Defaults for publishing to `topic`.
    pub fn new(topic: impl Into<String>) -> Self {
        Self::default().topic(topic)
    }
}
