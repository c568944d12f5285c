//! The operator's tool, run as a program against servers of its own, and compared with what these say themselves.

#![allow(clippy::unwrap_used)]

mod checkup;
mod consumers;
mod demo;
mod help;
mod letters;
mod progress;
mod publishing;
mod reading;
mod refusals;
mod runbooks;
mod support;
mod topics;
