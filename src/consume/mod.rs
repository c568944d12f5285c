//! Reading: the loop of one lane, from the socket to the stored position.

mod deliver;
mod extent;
mod flusher;
mod gap;
mod lane;
mod reader;
mod sizing;
mod start;
mod store;
mod watch;

pub(crate) use deliver::{Classify, Handler, HandlerFactory};
pub(crate) use extent::last_entry;
pub(crate) use flusher::Flusher;
pub use gap::{Gap, GapCause};
pub(crate) use lane::{Lane, LaneEnd, PAUSE, Plan, Seat};
pub(crate) use reader::ReadPlan;
pub(crate) use start::{Places, StartPoint, resolve};
pub(crate) use store::{PositionStore, Stored};
pub(crate) use watch::GapHook;
