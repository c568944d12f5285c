//! What can be seen of what goes on in this process.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use super::{Consumers, Streams, WeakStreams};
use crate::{
    Health, HealthContext, Metrics, Ownership, PartitionStatus, Settings, Trimmed,
    consumer::Running,
    net::{Gate, Target},
    observe::{Sampled, Sampler, SamplerTerms, Seen, Source, Subject, TopicSeen, evaluate},
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

    /// Everything that is counted and measured of what goes on here. Asks no server, now or later.
    pub fn metrics(&self) -> Metrics {
        Metrics::new(Arc::new(self.downgrade()))
    }

    /// A verdict over everything consumed here, from memory: it asks no server, and takes one lock that
    /// is held for no longer than it takes to look.
    pub fn health(&self) -> Health {
        let consumers = self.running();
        let context = HealthContext {
            ownership: consumers.iter().map(|c| c.ownership()).collect(),
            down: Gate::of(&self.inner.target).down(),
            consumers: consumers.len(),
            consumers_started: consumers.iter().filter(|c| c.is_started()).count(),
        };
        evaluate(&self.partitions(), &context)
    }
}

impl Source for WeakStreams {
    fn look(&self) -> Option<Seen> {
        let streams = self.upgrade()?;
        let buffered: Vec<String> = {
            let open = streams.inner.buffered.lock();
            let open = open.iter().filter(|(_, q)| Weak::strong_count(q) > 0);
            open.map(|(topic, _)| topic.clone()).collect()
        };
        let topics = streams.published().into_iter();
        // Of two that go by one name the first has ended, and only its handle is left.
        let mut consumers = BTreeMap::new();
        for running in streams.running() {
            let seen = running.seen();
            consumers.insert((Arc::clone(&seen.topic), Arc::clone(&seen.name)), seen);
        }
        Some(Seen {
            topics: topics
                .map(|published| TopicSeen {
                    has_queue: buffered.contains(&published.topic),
                    published,
                })
                .collect(),
            consumers: consumers.into_values().collect(),
            letters: streams.inner.letters.look(),
            trimmed: streams.trimmed(),
        })
    }
}
