//! Retention by age: what is too old is deleted, but for what somebody has yet to read.
//!
//! Of all processes that use a topic one trims it, the one whose lease stands: a key that expires within
//! seconds. Two that take themselves for the trimmer do no harm, for what they do follows from what is on the
//! server. One thread serves all topics of a process, and dead letters that have an age.

mod clamp;
mod search;
mod sweep;
mod trimmer;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;

use crate::{
    TopicSettings,
    net::{Background, Interrupt, Target},
    publish::Partitions,
    trims::AllTrims,
    wire::Keys,
};

pub(crate) use search::Search;
pub use sweep::PartitionSweep;
pub(crate) use sweep::{Cut, Place, Policy, Strangers, everybody, is_any_between, sweep};
use trimmer::Trimmer;
pub(crate) use trimmer::server_ms;

/// There is something new to look after.
const ADDED: u32 = 1 << 1;
/// How long the end of the trimmer, which hands its leases back, may take before it is cut off.
const GRACE: Duration = Duration::from_millis(300);

/// What the trimmer is told once.
pub(crate) struct Terms {
    pub(crate) target: Arc<Target>,
    pub(crate) keys: Keys,
    pub(crate) client_name: String,
    /// What tells this process from all others: 16 digits.
    pub(crate) token: String,
    pub(crate) timeout: Duration,
    pub(crate) counts: Arc<AllTrims>,
}

/// The topics that are trimmed here, and the thread that does it. It ends when this is dropped.
pub(crate) struct Retention {
    shared: Arc<Shared>,
    thread: Background,
}

/// What the trimmer and its handle share.
struct Shared {
    terms: Terms,
    interrupt: Arc<Interrupt>,
    topics: Mutex<BTreeMap<String, Arc<Topic>>>,
    letters: Mutex<BTreeMap<String, Letters>>,
}

/// A topic that is trimmed by age.
struct Topic {
    name: String,
    policy: Policy,
    interval: Duration,
    co_located: bool,
    /// Gone when nobody uses the topic any more.
    partitions: Weak<Partitions>,
}

/// Dead letters that are kept for so long; by their key.
#[derive(Clone)]
struct Letters {
    age: Duration,
    /// As of the topic.
    partitions: Weak<Partitions>,
}

impl Retention {
    pub(crate) fn new(terms: Terms) -> Self {
        let interrupt = Arc::<Interrupt>::default();
        Self {
            thread: Background::new(Arc::clone(&interrupt), GRACE),
            shared: Arc::new(Shared {
                terms,
                interrupt,
                topics: Mutex::default(),
                letters: Mutex::default(),
            }),
        }
    }

    /// Trims this topic, if its settings ask for it, for as long as somebody holds `partitions`.
    pub(crate) fn watch(&self, name: &str, settings: &TopicSettings, partitions: &Arc<Partitions>) {
        let Some(policy) = Policy::of(settings).filter(|_| settings.is_trimmed_by_age()) else {
            return;
        };
        {
            let mut topics = self.shared.topics.lock();
            let partitions = Arc::downgrade(partitions);
            if topics
                .get(name)
                .is_some_and(|t| t.partitions.ptr_eq(&partitions))
            {
                return;
            }
            let topic = Topic {
                name: name.to_owned(),
                policy,
                interval: settings.background_trim_interval,
                co_located: settings.co_locate_partitions,
                partitions,
            };
            topics.insert(name.to_owned(), Arc::new(topic));
        }
        self.start();
    }

    /// Deletes the dead letters of a consumer that are older than `age`, unless that is zero, for as long as
    /// somebody holds `partitions`.
    pub(crate) fn watch_letters(
        &self,
        (topic, consumer): (&str, &str),
        age: Duration,
        partitions: &Arc<Partitions>,
    ) {
        if age.is_zero() {
            return;
        }
        let key = self.shared.terms.keys.dead_letters(topic, consumer);
        let partitions = Arc::downgrade(partitions);
        let letters = Letters { age, partitions };
        self.shared.letters.lock().insert(key, letters);
        self.start();
    }

    fn start(&self) {
        let trim = || {
            let mut trimmer = Trimmer::new(Arc::clone(&self.shared));
            move || trimmer.run()
        };
        let without = "others have to trim topics by age";
        if self.thread.start("retention", without, trim) {
            self.shared.interrupt.set(ADDED);
        }
    }
}

impl fmt::Debug for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retention").finish_non_exhaustive()
    }
}
