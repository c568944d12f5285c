//! How the lanes of a consumer and the thread that keeps its claims speak with one another: the thread calls
//! the [`Lanes`], and what they and others find out, such as a claim that is gone or a lane that has ended,
//! they leave at its [`Desk`].

use std::{collections::BTreeSet, sync::Arc};

use parking_lot::Mutex;

use crate::net::{Interrupt, STOP};

use super::map::{Map, Ownership};

/// What the lanes of a consumer are told, and asked. No call may wait for a server or a handler.
pub(crate) trait Lanes {
    /// How many partitions the topic has.
    fn partitions(&self) -> u32;
    /// This is ours from now on: its lane is to be started. False when that cannot be.
    fn take(&self, partition: u32) -> bool;
    /// This is to be finished and stored; then the desk [hears](Desk::left) of it. False when there is
    /// nothing to wait for.
    fn give_up(&self, partition: u32) -> bool;
    /// This is not ours any more: nothing of it may be begun or stored.
    fn cut(&self, partition: u32);
    /// Partitions whose handler has not come back for so long that another instance should have a try.
    fn stalled(&self) -> BTreeSet<u32>;
    /// Partitions whose lane has not ended.
    fn running(&self) -> BTreeSet<u32>;
    /// Those of them whose lane was cut.
    fn occupied(&self) -> BTreeSet<u32>;
    /// This is another's to handle, for this reason, and nothing of it may be begun or stored; but it stays
    /// ours to show.
    fn stand_down(&self, partition: u32, why: String);
    /// Whether all lanes have ended, and what they finished is stored if it can be.
    fn all_done(&self) -> bool;
}

/// Look at the claims now.
pub(super) const LOOK: u32 = 1 << 1;
/// Somebody has left something.
pub(super) const HEAR: u32 = 1 << 2;
/// The consumer ends.
pub(super) const CLOSE: u32 = 1 << 3;

/// What was left for the thread that keeps the claims, and what it shows of them. No call waits for anything.
#[derive(Debug)]
pub(crate) struct Desk {
    /// Wakes the thread, and ends it.
    pub(super) interrupt: Arc<Interrupt>,
    /// Partitions whose lane has ended as it was asked to.
    pub(super) left: Mutex<BTreeSet<u32>>,
    /// Partitions that have no lane, since its thread could not be started when the one of before had ended.
    pub(super) unread: Mutex<BTreeSet<u32>>,
    pub(super) map: Mutex<Map>,
}

impl Desk {
    pub(super) fn new(map: Map) -> Self {
        Self {
            interrupt: Arc::default(),
            left: Mutex::default(),
            unread: Mutex::default(),
            map: Mutex::new(map),
        }
    }

    /// A claim was found to be gone, or to be another's, or the topic has grown: looks at once.
    pub(crate) fn look_again(&self) {
        self.interrupt.set(LOOK);
    }

    /// A lane has ended as it was asked to, and what it finished is stored: another may have its partition.
    pub(crate) fn left(&self, partition: u32) {
        self.left.lock().insert(partition);
        self.interrupt.set(HEAR);
    }

    /// The lane of a partition that was [taken](Lanes::take) could not be started after all.
    pub(crate) fn unread(&self, partition: u32) {
        self.unread.lock().insert(partition);
        self.interrupt.set(HEAR);
    }

    /// Whether anything was left that is to be acted on at once.
    pub(super) fn is_heard(&self) -> bool {
        !self.left.lock().is_empty() || !self.unread.lock().is_empty()
    }

    /// Something about the lanes has changed that the thread may wait for.
    pub(crate) fn hear(&self) {
        self.interrupt.set(HEAR);
    }

    /// The consumer ends: when all lanes have ended, everything is given up.
    pub(crate) fn close(&self) {
        self.interrupt.set(CLOSE);
    }

    /// Ends the thread, whatever it waits for.
    pub(crate) fn abandon(&self) {
        self.interrupt.cut(STOP);
    }

    /// Who owned what when that was last looked at.
    pub(crate) fn ownership(&self) -> Ownership {
        self.map.lock().now()
    }
}
