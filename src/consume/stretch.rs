//! How long handing over takes, and of how many messages at a time.
//!
//! A stretch is what a handler of batches is given by one call, or what a handler of messages is given one after
//! the other out of one read; a failure ends it, and so does whatever keeps the next call waiting. So the clock is
//! read twice a stretch, and not once more for each message.

use std::time::Instant;

use crate::{
    Persist, clock,
    monitor::{SIZES, TIMES},
};

use super::{deliver::Handler, lane::Lane, progress::Progress};

/// The stretch that a lane is at.
#[derive(Default)]
pub(super) struct Stretch {
    /// None while nothing is handed over.
    since: Option<Instant>,
    /// Its first message.
    first: usize,
}

impl<P: Progress> Lane<P> {
    /// The message at `start` is handed over.
    #[inline]
    pub(super) fn stretches_from(&mut self, start: usize) {
        if self.stretch.since.is_none() {
            self.stretch = Stretch {
                since: Some(clock::now()),
                first: start,
            };
        }
    }

    /// Whether a call that succeeded is a stretch by itself, whatever follows.
    pub(super) fn stretches_no_further(&self) -> bool {
        // storing each position is a round trip, which is none of the handler's
        matches!(self.handler, Handler::Batches(_)) || self.plan.persist == Persist::SyncMessage
    }

    /// Nothing is handed over any more, and the message at `end` was not.
    pub(super) fn stretch_ends(&mut self, end: usize) {
        let Some(since) = self.stretch.since.take() else {
            return;
        };
        let took = clock::now().duration_since(since).as_nanos() as u64;
        self.monitor.durations.record(&TIMES, took);
        let many = end.saturating_sub(self.stretch.first);
        self.monitor.sizes.record(&SIZES, many as u64);
    }
}
