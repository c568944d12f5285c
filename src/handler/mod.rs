//! The user's side: handlers, and how one says that it could not do its work.

mod codec;
mod failure;
mod rooms;
mod traits;
mod typed;
mod typed_batch;

pub use codec::Codec;
pub(crate) use codec::DecodedBy;
pub(crate) use failure::panic_text;
pub use failure::{Action, Failure, HandlerResult, OrAction};
pub use traits::{BatchHandler, MessageHandler};
pub use typed::{Schema, TypedHandler, typed};
pub use typed_batch::{TypedBatchHandler, typed_batch};
