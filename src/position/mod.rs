//! How far each partition is finished: a lock-free table that lanes write and the flusher reads.

mod table;

pub use table::Snapshot;
pub(crate) use table::{Table, Writer};
