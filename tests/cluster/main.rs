//! Processes that share a consumer while they come, go, are killed and are frozen: each partition has one
//! owner at a time, nothing is lost, and whoever was away too long does no harm.
//!
//! Each test starts a server of its own, of the engine that `STREAMLANE_TEST_SERVER` names, and prints the
//! seed of its random moments. The tests run one after the other, since they judge times. What foreign
//! members take part in needs python3, and a server whose hash fields expire.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `STREAMLANE_CLUSTER_STEPS` | how often a process comes, goes, is killed or is frozen | 30 |
//! | `STREAMLANE_SEED` | the seed, to have the same moments again | the clock |

#![allow(clippy::unwrap_used, clippy::disallowed_methods, unreachable_pub)]

mod churn;
mod claims;
mod command_log;
#[path = "../common/mod.rs"]
mod common;
mod excuses;
mod fleet;
mod foreign;
mod handover;
mod recipes;
mod reigns;
mod statics;

const PARTITIONS: u32 = 8;
