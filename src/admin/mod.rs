//! What an operator does from outside: to look at a consumer that may run anywhere, and to move it.

mod consumers;
mod dead_letters;
mod delete;
mod entries;
mod follow;
mod groups;
mod layout;
mod ownership;
mod pending;
mod preview;
mod progress;
mod regroup;
mod replay;
mod reset;
mod session;
mod stream;
mod sweep;
mod topics;
mod trim;

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    Result, Settings,
    monitor::Letters,
    net::{Connection, Deadline, Target},
    trims::AllTrims,
    wire::Keys,
};

pub use consumers::{ConsumerInfo, ConsumerKind, Forget, Forgotten};
pub use dead_letters::{DeadLetter, DeadLetterPage, DeadLetters, ReplayedAll};
pub use delete::{DeletePreview, DeleteTopic};
pub use entries::{Entries, EntryPage, StoredEntry};
pub use follow::Follow;
pub use pending::{
    GroupDescription, GroupMember, GroupPartition, PendingMessage, PendingMessages, PendingOrder,
    PendingPage,
};
pub use preview::{PartitionPreview, ResetDirection, ResetPreview};
pub use progress::{ConsumerProgress, PartitionProgress, ProgressState};
pub use regroup::Pending;
pub use replay::{Replay, ReplayTo, Replayed};
pub use reset::{Reset, ResetTo};
pub use session::Session;
pub use topics::{PartitionDescription, TopicConsumer, TopicDescription, TopicPage};
pub use trim::{PartitionTrim, TrimTo, TrimTopic};

/// Looks at and moves consumers, which may run in this process, elsewhere or not at all.
///
/// Made by [`Streams::admin`](crate::Streams::admin). Cheap to clone; every call connects for itself.
#[derive(Clone)]
pub struct Admin {
    shared: Arc<Shared>,
}

/// What every call needs.
struct Shared {
    target: Arc<Target>,
    keys: Keys,
    settings: Settings,
    client_name: String,
    trims: Arc<AllTrims>,
    /// What was done with dead letters.
    counts: Arc<Letters>,
}

/// How long a call may take unless it is told otherwise.
const TIMEOUT: Duration = Duration::from_secs(30);

impl Admin {
    pub(crate) fn new(
        target: Arc<Target>,
        keys: Keys,
        settings: Settings,
        client_name: String,
        trims: Arc<AllTrims>,
        counts: Arc<Letters>,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                target,
                keys,
                settings,
                client_name,
                trims,
                counts,
            }),
        }
    }

    /// Begins to describe where a consumer of a topic is to go on; nothing is done before
    /// [`preview`](Reset::preview) or [`apply`](Reset::apply).
    pub fn reset(
        &self,
        topic: impl Into<String>,
        consumer: impl Into<String>,
        to: ResetTo,
    ) -> Reset {
        let shared = Arc::clone(&self.shared);
        Reset::new(shared, topic.into(), consumer.into(), to)
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin")
            .field("endpoint", &self.shared.target.endpoint())
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn connect(&self, by: Deadline) -> Result<Connection> {
        let timeout = by.left().min(self.settings.connect_timeout);
        Connection::dial(&self.target, &self.client_name, None, timeout)
    }
}
