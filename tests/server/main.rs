//! Everything that needs a real server. Each test starts its own; the engine is chosen by
//! `STREAMLANE_TEST_SERVER`.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used,
    unreachable_pub
)]

mod admin;
mod basics;
mod batches;
mod bounds;
mod budget;
mod buffered;
mod configured;
mod content;
mod contract;
mod delayed;
mod deliveries;
mod entry_ids;
mod every_way;
mod following;
mod forgetting;
mod forwarder;
mod gaps;
mod growth;
mod health;
#[cfg(feature = "http")]
mod http;
mod idempotency;
mod json_publishing;
mod keyspace;
mod lag;
mod lease_failover;
mod lease_life;
mod lease_recipes;
mod leases;
mod lifecycle;
mod looking;
mod metrics;
mod once;
mod outage;
mod outbox;
mod outcomes;
mod parking;
mod payloads;
mod positions;
mod publishing;
mod queue_faults;
mod queue_outcomes;
mod queue_recipes;
mod queues;
mod reading;
mod refusals;
mod registers;
mod replaying;
mod resets;
mod retention;
mod routing;
mod shapes;
mod sharing;
mod sockets;
mod spans;
mod start;
mod state_store;
mod statics;
mod support;
mod topics;
mod trimming;
mod typed;
