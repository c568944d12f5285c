//! What becomes of one message of many.

use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::{
    Result, StreamId, clock,
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

    /// Blocks for up to `timeout` until it is known what became of the message, and returns its id. May
    /// be called again.
    ///
    /// # Errors
    ///
    /// The message was given up, and [`Error::outcome`] tells whether it was stored; or nothing is known
    /// yet: [`ErrorKind::Timeout`], and the message still waits.
    pub fn wait(&mut self, timeout: Duration) -> Result<StreamId> {
        if self.told.is_none() {
            self.told = match self.from.recv_timeout(timeout) {
                Ok(result) => Some(result),
                Err(RecvTimeoutError::Timeout) => {
                    let what = format!(
                        "nothing is known of the message after {} ms; it waits still",
                        clock::ceil_ms(timeout)
                    );
                    return Err(unknown(ErrorKind::Timeout, what));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let what = "the publisher ended without saying what became of the message";
                    Some(Err(unknown(ErrorKind::Stopped, what.to_owned())))
                }
            };
        }
        match &self.told {
            Some(Ok(id)) => Ok(*id),
            Some(Err(e)) => Err(e.again()),
            None => unreachable!("it was told just now"),
        }
    }
}

fn unknown(kind: ErrorKind, what: String) -> Error {
    Error::new(kind, "await a message", what).with_outcome(Outcome::Unknown)
}
