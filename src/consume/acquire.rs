//! Where a lane begins that has just been given its partition: at the position that is stored now, which
//! others may have moved since it was last known here.

use std::time::Duration;

use crate::{
    LaneState, Persist, Result,
    error::{Error, ErrorKind},
    net::STOP,
};

use super::{
    lane::Lane,
    positions::Positions,
    progress::Progress,
    store::{Loaded, Stored},
};

/// How often a lane whose claim may have ended looks whether it holds again.
const LOOK: Duration = Duration::from_millis(20);

impl Lane<Positions> {
    /// Takes up the stored position, unless that was done since the partition was claimed; a reset marker
    /// goes before it. Nothing may be outstanding. Blocks for a few round trips.
    ///
    /// # Errors
    ///
    /// Those of the connection, and the server's.
    pub(super) fn acquire(&mut self) -> Result<()> {
        if self.progress.acquired.get() || self.plan.persist == Persist::None {
            return Ok(());
        }
        let (p, slack) = (self.context.partition, self.plan.read.slack);
        let Some(connection) = self.reader.connection() else {
            return Err(Error::new(ErrorKind::Io, "load position", "not connected"));
        };
        let loaded = self
            .progress
            .store
            .load(connection, p..p + 1, slack)?
            .positions[0];
        let marker = self
            .progress
            .store
            .markers(connection, p..p + 1, slack)?
            .remove(0);
        let known = self.progress.writer.load();
        let known = Stored {
            id: known.id,
            ordinal: known.ordinal,
        };
        self.progress.unsettled = marker;
        self.progress.deliveries.begin_anew();
        self.progress
            .resets
            .begin_with(self.progress.unsettled.as_ref());
        match (&self.progress.unsettled, loaded) {
            (Some(marker), _) => {
                let (reset, start) = (marker.reset, marker.start());
                log::warn!("{self}: reset marker found at the start: {reset}");
                self.begin_at(start);
                self.progress.deliveries.forgive();
            }
            (None, Loaded::At(stored)) => {
                self.progress.writer.begin(stored.id, stored.ordinal);
                self.begin_with(stored);
            }
            (None, Loaded::Gone | Loaded::Never) => {
                log::error!(
                    "{self}: the stored position is gone, though it was stored once; the partition begins at \
                     {}, and what was handled may be handled again, or missed",
                    known.id
                );
                self.begin_at(known);
            }
        }
        self.reader.move_to(self.progress.writer.load().id);
        self.progress.acquired.set(true);
        Ok(())
    }

    /// The claim may have ended: waits until it holds again. What was read is forgotten, since another may
    /// have handled it by then.
    pub(super) fn wait_for_claim(&mut self) {
        let why = "the claim may have ended, and was not renewed yet";
        self.monitor.enter(LaneState::Lapsed, why);
        self.reader.seek(self.progress.writer.load().id);
        self.progress.forget();
        self.progress.acquired.set(false);
        let fence = &self.plan.fence;
        // A reset has to wait as well.
        while !fence.holds_for_certain() && !self.context.interrupt.sleep(LOOK, STOP) {}
    }
}
