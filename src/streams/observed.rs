//! What can be seen of what goes on in this process.

use std::sync::{Arc, Weak};

use super::{Consumers, Streams};
use crate::{
    Health, Ownership, PartitionStatus, Settings, Trimmed,
    consumer::Running,
    net::{Gate, Target},
    observe::{Sampled, Sampler, SamplerTerms, Subject, evaluate},
    publish::PublishStatus,
    wire::client_name,
};

/// What asks the server how far the consumers of this process are behind.
pub(super) fn sampler(
    settings: &Settings,
    target: &Arc<Target>,
    pod: &str,
    consumers: &Arc<Consumers>,
) -> Sampler {
    let terms = SamplerTerms {
        target: Arc::clone(target),
        client_name: client_name(&["streams-sampler", pod]),
        interval: settings.sample_interval,
        timeout: settings.connect_timeout,
    };
    Sampler::new(terms, Here(Arc::clone(consumers)))
}

/// The consumers that run in this process.
struct Here(Arc<Consumers>);

impl Here {
    fn all(&self) -> Vec<Arc<Running>> {
        let consumers = self.0.lock();
        consumers.iter().filter_map(Weak::upgrade).collect()
    }
}

impl Sampled for Here {
    fn note(&self) {
        self.all().iter().for_each(|c| c.note());
    }

    fn subjects(&self) -> Vec<Subject> {
        self.all().iter().flat_map(|c| c.subjects()).collect()
    }
}

impl Streams {
    /// What became of the messages published here, topic by topic.
    pub fn published(&self) -> Vec<PublishStatus> {
        let published = self.inner.published.lock();
        published.iter().map(|(topic, c)| c.status(topic)).collect()
    }

    /// What was deleted by this process since it began, by topic and partition: by the background trimmer
    /// (`BackgroundTrimIntervalSeconds`) and under [`AckDelete`](crate::AckDelete). What publishing trims to `MaxLen` is
    /// not among it, since servers do not tell.
    pub fn trimmed(&self) -> Vec<Trimmed> {
        self.inner.trims.snapshot()
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
