//! What becomes of one message of many.

use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::{
    Result, StreamId,
    error::{Error, ErrorKind, Outcome},
};

/// The result of one message that was enqueued, to be waited for. Dropping it changes nothing about the
/// message.
#[derive(Debug)]
pub struct Receipt {
    from: Receiver<Result<StreamId>>,
    told: Option<Result<StreamId>>,
}

impl Receipt {
    pub(super) fn new() -> (Sender<Result<StreamId>>, Self) {
        let (tell, from) = bounded(1);
        (tell, Self { from, told: None })
    }

    /// Blocks for up to `timeout` until it is known what became of the message: its id, or why it was given
    /// up, and [`Error::outcome`] tells whether it may be stored all the same. `None` when nothing is known
    /// yet: it is queued still, or on its way. May be called again.
    pub fn wait(&mut self, timeout: Duration) -> Option<Result<StreamId>> {
        if self.told.is_none() {
            self.told = match self.from.recv_timeout(timeout) {
                Ok(result) => Some(result),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => {
                    let what = "the publisher ended without saying what became of the message";
                    let e = Error::new(ErrorKind::Stopped, "await a message", what);
                    Some(Err(e.with_outcome(Outcome::Unknown)))
                }
            };
        }
        match self.told.as_ref()? {
            Ok(id) => Some(Ok(*id)),
            Err(e) => Some(Err(e.again())),
        }
    }
}
