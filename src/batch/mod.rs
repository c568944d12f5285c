//! What one read brought, and how a handler sees it: the arena holds the bytes as they were received,
//! the index says where the messages lie in them, and the views lend them out for one call.

mod arena;
mod index;
mod scratch;
mod view;

pub(crate) use arena::{Arena, ArenaPool};
pub(crate) use index::{Aside, Body, Filter, Index, Progress, Record};
pub(crate) use scratch::emptied;
pub use scratch::{Json, Scratch};
pub(crate) use view::Context;
pub use view::{Batch, Fields, Message, Messages, OwnedBatch, OwnedMessage, Text};
