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
//! | `STREAMLANE_SOAK_SECONDS` | how long a topic is worked on, trimmed and reloaded | 8 |
//! | `STREAMLANE_SEED` | the seed, to run the same moments again | the clock |
//!
//! For a long run, say
//! `STREAMLANE_CRASH_KILLS=2000 STREAMLANE_CRASH_OUTAGES=500 cargo test --test crash -- --nocapture`:
//! a kill takes about half a second, an outage about three.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, unreachable_pub)]

mod claims;
#[path = "../common/mod.rs"]
mod common;
mod delays;
mod deliveries;
mod forwards;
mod kills;
mod outages;
mod parking;
mod publishers;
mod queues;
mod soak;
mod stops;
mod ways;

use common::*;

const PARTITIONS: u32 = 4;
