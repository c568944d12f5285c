//! What the lanes of a consumer have in common by name.

use std::sync::Arc;

use crate::wire::{Keys, client_name};

use super::lane::Seat;

/// Makes the seat of any partition of a topic.
pub(crate) struct Seats {
    pub(crate) topic: Arc<str>,
    pub(crate) consumer: Arc<str>,
    pub(crate) keys: Keys,
    pub(crate) co_located: bool,
    /// The name of this machine, for connections.
    pub(crate) pod: String,
}

impl Seats {
    pub(crate) fn seat(&self, partition: u32) -> Seat {
        let (topic, consumer) = (&self.topic, &self.consumer);
        let key = self.keys.stream(topic, partition, self.co_located);
        let lane = format!("p{partition}");
        Seat {
            topic: Arc::clone(topic),
            consumer: Arc::clone(consumer),
            partition,
            key: key.into_bytes().into(),
            client_name: client_name(&["streams-rd", topic, consumer, &lane, &self.pod]),
            interrupt: Arc::default(),
            monitor: Arc::default(),
        }
    }
}
