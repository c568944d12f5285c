//! Everything that needs a real server. Each test starts its own; the engine is chosen by
//! `STREAMLANE_TEST_SERVER`.

mod basics;
mod configured;
mod contract;
mod lifecycle;
mod positions;
mod start;
mod support;
