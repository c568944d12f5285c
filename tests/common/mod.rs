//! What the programs have in common that prove something about processes and servers which come and go.
//! Each says how many `PARTITIONS` its topic has, and takes the parts that it needs.
#![allow(dead_code)]

pub mod dice;
pub mod leftovers;
pub mod load;
pub mod process;
pub mod proof;
pub mod worker;

use std::{env, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use streamlane::{Settings, Streams, TopicSettings};

use crate::PARTITIONS;

pub const TOPIC: &str = "orders";
pub const CONSUMER: &str = "billing";

/// How long anything may take that should take no time: generous, since machines can be slow.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// How much later than it should a thread may get to its work on a machine with too much to do.
pub const SLACK: Duration = Duration::from_millis(400);

/// Held by the test whose turn it is.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock()
}

/// Where the stored positions lie.
pub fn positions_key() -> String {
    format!("re:p:{{{TOPIC}}}:{CONSUMER}")
}

/// Where the claims lie.
pub fn ownership_key() -> String {
    format!("re:o:{{{TOPIC}}}:{CONSUMER}")
}

pub fn number_from_env(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|e| panic!("{name}={text}: {e}")),
    )
}

/// A topic that is never trimmed, so that whatever is missing was lost.
pub fn open(url: &str) -> Streams {
    Streams::open(settings(url)).unwrap()
}

pub fn settings(url: &str) -> Settings {
    let settings = Settings::default().connection_string(url);
    settings.with_topic(TOPIC, untrimmed())
}

pub fn untrimmed() -> TopicSettings {
    let topic = TopicSettings::default().partitions(PARTITIONS);
    topic.max_len(100_000_000)
}
