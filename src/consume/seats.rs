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
    /// A lane that reads another stream than that of a partition, which its connections are called by.
    pub(crate) fn seat_at(&self, lane: u32, key: &str, name: &str) -> Seat {
        let (topic, consumer) = (&self.topic, &self.consumer);
        let tag = if self.co_located { topic } else { key };
        Seat {
            topic: Arc::clone(topic),
            consumer: Arc::clone(consumer),
            partition: lane,
            key: key.as_bytes().into(),
            payloads: self.keys.payload(tag).into_bytes().into(),
            client_name: client_name(&["streams-rd", topic, consumer, name, &self.pod]),
            interrupt: Arc::default(),
            monitor: Arc::default(),
        }
    }

    pub(crate) fn seat(&self, partition: u32) -> Seat {
        let key = self.keys.stream(&self.topic, partition, self.co_located);
        self.seat_at(partition, &key, &format!("p{partition}"))
    }
}
