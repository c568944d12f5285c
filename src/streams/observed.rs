//! What can be seen of what goes on in this process.

use super::Streams;
use crate::{
    Health, Ownership, PartitionStatus, net::Gate, observe::evaluate, publish::PublishStatus,
};

impl Streams {
    /// What became of the messages published here, topic by topic.
    pub fn published(&self) -> Vec<PublishStatus> {
        let published = self.inner.published.lock();
        published.iter().map(|(topic, c)| c.status(topic)).collect()
    }

    /// A snapshot of every partition of every consumer that was started here and still has a handle.
    pub fn partitions(&self) -> Vec<PartitionStatus> {
        self.running()
            .iter()
            .flat_map(|c| c.statuses().collect::<Vec<_>>())
            .collect()
    }

    /// Who owns the partitions of every consumer that was started here and still has a handle, as was seen
    /// at the last renewal. Asks no server.
    pub fn ownership(&self) -> Vec<Ownership> {
        self.running().iter().map(|c| c.ownership()).collect()
    }

    /// A verdict over everything consumed here, from memory: it asks no server, and takes one lock that
    /// is held for no longer than it takes to look.
    pub fn health(&self) -> Health {
        let down = Gate::of(&self.inner.target).down();
        evaluate(&self.partitions(), &self.ownership(), down.as_deref())
    }
}
