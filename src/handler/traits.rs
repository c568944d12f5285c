//! What a handler is: of batches, or of messages.

use crate::{Batch, HandlerResult, Message};

/// Takes messages of one partition batch by batch, one call at a time.
///
/// Each lane has a handler of its own, made by the factory given to the builder, so `&mut self` needs
/// no lock. Closures of the right shape are handlers.
pub trait BatchHandler: Send {
    /// Does the work. `Ok` means that every message of the batch is finished.
    ///
    /// # Errors
    ///
    /// A [`Failure`](crate::Failure) concerns the first message that is not
    /// [`done`](Batch::done), or the whole batch when nothing was marked.
    ///
    /// # Panics
    ///
    /// A panic is caught and treated as an ordinary error; the handler is then made anew.
    fn handle(&mut self, batch: &Batch<'_>) -> HandlerResult;
}

impl<F: FnMut(&Batch<'_>) -> HandlerResult + Send> BatchHandler for F {
    fn handle(&mut self, batch: &Batch<'_>) -> HandlerResult {
        self(batch)
    }
}

/// Takes messages of one partition one by one, in order.
///
/// Each lane has a handler of its own, made by the factory given to the builder, so `&mut self` needs
/// no lock. Closures of the right shape are handlers.
pub trait MessageHandler: Send {
    /// Does the work. `Ok` means that the message is finished.
    ///
    /// # Errors
    ///
    /// A [`Failure`](crate::Failure) concerns this message alone.
    ///
    /// # Panics
    ///
    /// A panic is caught and treated as an ordinary error; the handler is then made anew.
    fn handle(&mut self, message: &Message<'_>) -> HandlerResult;
}

impl<F: FnMut(&Message<'_>) -> HandlerResult + Send> MessageHandler for F {
    fn handle(&mut self, message: &Message<'_>) -> HandlerResult {
        self(message)
    }
}
