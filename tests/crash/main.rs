//! What processes and servers that die at any moment leave behind: nothing lost, little handled twice,
//! everything at work again soon.
//!
//! Each test starts servers of its own, of the engine that `STREAMLANE_TEST_SERVER` names, and prints
//! the seed of its random moments. The tests run one after the other, since they judge times.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `STREAMLANE_CRASH_KILLS` | how often processes are killed, in each test that does it | 20 or 30 |
//! | `STREAMLANE_CRASH_OUTAGES` | how often the server is killed, or its answers are lost | 4 to 40 |
//! | `STREAMLANE_CRASH_SEED` | the seed, to run the same moments again | the clock |
//!
//! For a long run, say
//! `STREAMLANE_CRASH_KILLS=2000 STREAMLANE_CRASH_OUTAGES=500 cargo test --test crash -- --nocapture`:
//! a kill takes about half a second, an outage about three.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, unreachable_pub)]

mod claims;
mod dice;
mod forwards;
mod kills;
mod load;
mod outages;
mod process;
mod proof;
mod publishers;
mod stops;
mod ways;
mod worker;

use std::{env, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use streamlane::{Settings, Streams, TopicSettings};

const TOPIC: &str = "orders";
const CONSUMER: &str = "billing";
const PARTITIONS: u32 = 4;

/// How long anything may take that should take no time: generous, since machines can be slow.
const PATIENCE: Duration = Duration::from_mins(1);

/// How much later than it should a thread may get to its work on a machine with too much to do.
const SLACK: Duration = Duration::from_millis(400);

/// Held by the test whose turn it is.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock()
}

/// Where the stored positions lie.
fn positions_key() -> String {
    format!("re:p:{{{TOPIC}}}:{CONSUMER}")
}

fn number_from_env(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|e| panic!("{name}={text}: {e}")),
    )
}

/// A topic that is never trimmed, so that whatever is missing was lost.
fn open(url: &str) -> Streams {
    Streams::open(settings(url)).unwrap()
}

fn settings(url: &str) -> Settings {
    let settings = Settings::default().connection_string(url);
    settings.with_topic(TOPIC, untrimmed())
}

fn untrimmed() -> TopicSettings {
    let topic = TopicSettings::default().partitions(PARTITIONS);
    topic.max_len(100_000_000)
}
