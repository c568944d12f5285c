//! Everything that needs a real server. Each test starts its own; the engine is chosen by
//! `STREAMLANE_TEST_SERVER`.

mod basics;
mod content;
mod outcomes;
mod publishing;
mod shapes;
mod support;
