//! Publishing: one XADD, encoded into a reused buffer, one write, one read.

pub(crate) mod bucket;
mod buffered;
mod command;
mod condition;
mod counts;
mod dedicated;
mod delayed;
mod encoder;
mod ensure;
mod forwarder;
mod idempotency;
mod json;
mod line;
mod link;
mod message;
mod once;
mod outbox;
mod partitions;
mod payload;
mod plan;
mod publisher;
mod registry;
mod state_store;
mod transaction;
mod unread;
mod verdict;

pub(crate) use bucket::{Delays, Terms};
pub(crate) use buffered::Handle;
pub use buffered::{BufferedPublisher, Closed, Flushed, Receipt, Undelivered};
pub use command::{Argument, Command, Reply};
pub use condition::Condition;
pub use counts::PublishStatus;
pub(crate) use counts::{AllCounts, PublishCounts};
pub use dedicated::DedicatedPublisher;
pub use delayed::{Delayed, DraftDelayed};
use ensure::StreamKeys;
pub(crate) use ensure::{Role, Subject, ensure, restore, survey};
pub use forwarder::{Forwarder, Forwarding, Source};
pub(crate) use idempotency::RELEASE;
pub use idempotency::{Claim, Completion, Idempotency, Sight};
pub use json::{As, MessageType};
pub use message::{Draft, DraftOnce, Outgoing};
pub use once::Published;
pub use outbox::{Commit, Committed, Outbox, PartlyFailed, Transaction};
pub(crate) use partitions::{GROWN, Partitions};
pub(crate) use plan::PublishPlan;
pub use publisher::Publisher;
pub(crate) use registry::Registry;
pub use state_store::{Append, StateEvent, StateStore};
pub(crate) use unread::Listed;
use {counts::Count, encoder::Encoder, plan::Packing};

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{
        bucket, ensure::RAISE, forwarder::FORWARD, idempotency, once::ONCE, payload::APART,
    };
    use crate::testing::PrivateServer;

    #[test]
    fn the_server_knows_each_script_by_its_hash() {
        let server = PrivateServer::start().unwrap();
        let [complete, release] = idempotency::SCRIPTS;
        let [due, schedule, cancel] = [&bucket::MOVE, &bucket::SCHEDULE, &bucket::CANCEL];
        for script in [
            &APART, &ONCE, &FORWARD, &RAISE, complete, release, due, schedule, cancel,
        ] {
            let known = server.command(&["SCRIPT", "LOAD", script.text]).unwrap();
            assert_eq!(known.text(), script.sha1, "{}", script.text);
            // Redis 7 checks a script with a shebang as a whole: nothing of it runs on a full server.
            assert!(script.text.starts_with("#!lua"));
        }
    }
}
