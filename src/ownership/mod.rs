//! Who owns which partition: claims that are renewed, and the map that shows them.

mod claims;
mod contest;
mod desk;
mod fixed;
mod holding;
mod lease;
mod map;
mod register;
mod renewal;
mod renewer;
mod roll;
mod script;
mod share;
mod terms;

pub(crate) use claims::Claims;
pub(crate) use contest::Rivals;
pub(crate) use desk::{Desk, Lanes};
pub(crate) use fixed::Place;
pub(crate) use lease::Lease;
pub use map::{Member, Ownership, Standing};
pub(crate) use roll::{Contention, Roll};
pub(crate) use script::owner_of;
pub(crate) use terms::Terms;
