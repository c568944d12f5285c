//! Which instance of a consumer owns which partition: claims on the server that end unless renewed.

mod lease;
mod script;
mod share;

pub(crate) use lease::{Lanes, Lease, RENEW, Terms};
