//! The user's side: handlers, and how one says that it could not do its work.

mod failure;
mod json;
mod traits;

pub use failure::{Action, Failure, HandlerResult, OrAction};
pub(crate) use json::Typed;
pub use json::{Schema, TypedHandler, typed};
pub use traits::{BatchHandler, MessageHandler};
