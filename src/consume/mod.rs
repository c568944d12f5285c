//! Reading: the loop of one lane, from the socket to the stored position.

mod acquire;
mod deliver;
mod extent;
mod fenced;
mod flusher;
mod gap;
mod lane;
mod park;
mod permits;
mod positions;
mod progress;
mod reader;
mod register;
mod resets;
mod seats;
mod sizing;
mod start;
mod store;
mod watch;

pub(crate) use deliver::{Classify, Handler, HandlerFactory};
pub(crate) use extent::{Extent, last_entry};
pub(crate) use flusher::{FLUSH, Flusher, Kept, Rhythm};
pub use gap::{Gap, GapCause};
pub(crate) use lane::{Flow, LOST, Lane, LaneEnd, PAUSE, Plan, RETRIES, Seat};
pub(crate) use park::{Backoff, Failures, Parking};
pub(crate) use permits::Permits;
pub(crate) use positions::Positions;
pub(crate) use progress::{Before, Progress};
pub(crate) use reader::{Brought, Member, ReadPlan};
pub(crate) use register::{Keeps, register, registered};
pub(crate) use resets::{RESET, Resets};
pub(crate) use seats::Seats;
pub(crate) use start::{Places, StartPoint, extend, resolve};
pub(crate) use store::{PositionStore, Stored};
pub(crate) use watch::GapHook;
