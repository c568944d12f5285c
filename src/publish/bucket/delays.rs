//! The topics whose delayed messages are moved here, and the thread that does it.

use std::{
    collections::BTreeMap,
    fmt,
    hash::{BuildHasher, RandomState},
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;

use crate::{
    TopicSettings, clock,
    net::{Background, Interrupt, Target},
    wire::Keys,
};

use super::{
    super::{AllCounts, Partitions},
    mover::Mover,
};

/// Something is due before what the mover knows of.
pub(super) const ADDED: u32 = 1 << 1;

/// How long the end of the mover may take before it is cut off.
pub(super) const GRACE: Duration = Duration::from_millis(300);

/// What the mover is told once.
pub(crate) struct Terms {
    pub(crate) target: Arc<Target>,
    pub(crate) keys: Keys,
    pub(crate) client_name: String,
    pub(crate) timeout: Duration,
    pub(crate) counts: Arc<AllCounts>,
}

/// The topics whose delayed messages are moved, and the thread that does it. It ends when this is dropped.
pub(crate) struct Delays {
    shared: Arc<Shared>,
    thread: Background,
}

/// What the mover and its handle share.
pub(super) struct Shared {
    pub(super) terms: Terms,
    /// What tells this from all others that move or schedule: 16 digits.
    pub(super) token: String,
    pub(super) interrupt: Arc<Interrupt>,
    pub(super) topics: Mutex<BTreeMap<String, Arc<Topic>>>,
}

pub(super) struct Topic {
    pub(super) name: String,
    pub(super) settings: TopicSettings,
    /// Gone when nobody uses the topic any more.
    pub(super) partitions: Weak<Partitions>,
}

impl Delays {
    pub(crate) fn new(terms: Terms) -> Self {
        let salt = (std::process::id(), clock::wall());
        let token = format!("{:016x}", RandomState::new().hash_one(salt));
        let interrupt = Arc::<Interrupt>::default();
        Self {
            thread: Background::new(Arc::clone(&interrupt), GRACE),
            shared: Arc::new(Shared {
                terms,
                token,
                interrupt,
                topics: Mutex::default(),
            }),
        }
    }

    pub(crate) fn token(&self) -> &str {
        &self.shared.token
    }

    /// Moves what is delayed on this topic, for as long as somebody holds `partitions`.
    pub(crate) fn watch(&self, name: &str, settings: &TopicSettings, partitions: &Arc<Partitions>) {
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
                settings: settings.clone(),
                partitions,
            };
            topics.insert(name.to_owned(), Arc::new(topic));
        }
        self.start();
    }

    /// Has the mover look at once: something is due before what it knows of.
    pub(in crate::publish) fn wake(&self) {
        self.shared.interrupt.set(ADDED);
    }

    fn start(&self) {
        let move_all = || {
            let mut mover = Mover::new(Arc::clone(&self.shared));
            move || mover.run()
        };
        let without = "others have to publish delayed messages";
        self.thread.start("delays", without, move_all);
    }
}

impl fmt::Debug for Delays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delays")
            .field("token", &self.shared.token)
            .finish_non_exhaustive()
    }
}
