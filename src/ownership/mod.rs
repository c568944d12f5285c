//! Who owns which partition: claims that are renewed, and the map that shows them.

mod lease;
mod map;
mod renewer;
mod script;
mod share;

pub(crate) use lease::{Lanes, Lease, Terms};
pub use map::{Member, Ownership, Standing};
