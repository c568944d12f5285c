//! Resets of a running consumer: the flusher finds their markers, and the lanes go by them.
//!
//! A marker goes through the slot of its partition: *found* by the flusher, who calls the lane; *taken*
//! by the lane, which forgets what it has read and not finished; *settled* once the lane has stored the
//! new position and deleted the marker, and before it reads anything. While one is found or taken the
//! flusher leaves the stored position alone: what was finished before the reset is not to overwrite it,
//! and until it is settled the marker says where to begin.

use std::{collections::BTreeMap, mem, sync::Arc};

use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};

use crate::{
    Persist, Result, StreamId,
    error::{Error, ErrorKind},
    net::Interrupt,
    wire::ResetMarker,
};

use super::{fenced::Fate, lane::Lane, positions::Positions, store::Stored};

/// Set while a reset waits for its lane.
pub(crate) const RESET: u32 = 1 << 3;

/// A reset marker as it was found, so that it and no later one is deleted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Marker {
    pub(crate) reset: ResetMarker,
    pub(crate) value: Box<[u8]>,
}

impl Marker {
    /// `None` for a value that asks for nothing.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        Some(Self {
            reset: ResetMarker::parse(value)?,
            value: value.into(),
        })
    }

    /// The position it asks for.
    pub(crate) fn start(&self) -> Stored {
        Stored {
            id: self.reset.target,
            // Nobody has counted up to there, and whoever goes back to the beginning wants what is left.
            ordinal: None,
        }
    }
}

/// The resets of a consumer, by partition, and which partitions have a lane to take them.
#[derive(Debug, Default)]
pub(crate) struct Resets(Mutex<BTreeMap<u32, Slot>>);

#[derive(Debug, Default)]
struct Slot {
    /// How to call the lane; `None` while there is none, and then no marker is looked for.
    lane: Option<Arc<Interrupt>>,
    stage: Stage,
    /// The last position that the lane may have stored by itself, as with a dead letter.
    stored: StreamId,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    None,
    Found(Marker),
    Taken(Marker),
    /// Since the server was last asked: an answer that is still on its way may hold the marker once more.
    Settled(Marker),
}

impl Resets {
    /// A lane's end of its slot, for as long as the lane runs.
    pub(super) fn join(self: &Arc<Self>, partition: u32, interrupt: &Arc<Interrupt>) -> LaneResets {
        // What was left behind was taken again by whoever found out where this lane begins.
        *self.slot(partition) = Slot {
            lane: Some(Arc::clone(interrupt)),
            stage: Stage::None,
            stored: StreamId::MIN,
        };
        LaneResets {
            resets: Arc::clone(self),
            partition,
            interrupt: Arc::clone(interrupt),
        }
    }

    /// Whether the partition's marker is to be looked for. To be asked before the server is.
    pub(super) fn is_owned(&self, partition: u32) -> bool {
        let mut slot = self.slot(partition);
        if matches!(slot.stage, Stage::Settled(_)) {
            slot.stage = Stage::None;
        }
        slot.lane.is_some()
    }

    /// Passes a marker on to the lane, unless it is the one that it knows of already. Returns what it
    /// asks for when it is news.
    pub(super) fn found(&self, partition: u32, value: &[u8]) -> Option<ResetMarker> {
        let mut slot = self.slot(partition);
        let slot = &mut *slot;
        let lane = slot.lane.as_ref()?;
        if slot.stage.marker().is_some_and(|m| *m.value == *value) {
            return None;
        }
        let marker = Marker::parse(value)?;
        let reset = marker.reset;
        slot.stage = Stage::Found(marker);
        lane.cut(RESET);
        Some(reset)
    }

    /// Whether a reset is under way, so that the stored position is not to be touched.
    pub(crate) fn is_under_way(&self, partition: u32) -> bool {
        let stage = &self.slot(partition).stage;
        matches!(stage, Stage::Found(_) | Stage::Taken(_))
    }

    /// Up to where the lane may have stored the position by itself, as with a dead letter.
    pub(super) fn stored(&self, partition: u32) -> StreamId {
        self.slot(partition).stored
    }

    fn slot(&self, partition: u32) -> MappedMutexGuard<'_, Slot> {
        MutexGuard::map(self.0.lock(), |slots| slots.entry(partition).or_default())
    }
}

impl Stage {
    fn marker(&self) -> Option<&Marker> {
        match self {
            Self::None => None,
            Self::Found(m) | Self::Taken(m) | Self::Settled(m) => Some(m),
        }
    }
}

/// A lane's end of its slot.
#[derive(Debug)]
pub(super) struct LaneResets {
    resets: Arc<Resets>,
    partition: u32,
    interrupt: Arc<Interrupt>,
}

impl LaneResets {
    /// Takes the reset that was found, and lets sockets live again.
    pub(super) fn take(&self) -> Option<Marker> {
        let mut slot = self.resets.slot(self.partition);
        if let Some(lane) = &slot.lane {
            lane.clear(RESET);
        }
        match mem::take(&mut slot.stage) {
            Stage::Found(marker) => {
                slot.stage = Stage::Taken(marker.clone());
                Some(marker)
            }
            other => {
                slot.stage = other;
                None
            }
        }
    }

    /// Begins with the reset that the lane has found itself, or with none.
    pub(super) fn begin_with(&self, marker: Option<&Marker>) {
        let stage = marker.map_or(Stage::None, |m| Stage::Taken(m.clone()));
        self.resets.slot(self.partition).stage = stage;
    }

    /// The reset that was taken and is not settled.
    pub(super) fn taken(&self) -> Option<Marker> {
        match &self.resets.slot(self.partition).stage {
            Stage::Taken(marker) => Some(marker.clone()),
            _ => None,
        }
    }

    /// Says that the lane is about to store this position by itself, as with a dead letter.
    pub(super) fn stores(&self, position: StreamId) {
        self.resets.slot(self.partition).stored = position;
    }

    /// Says that the reset that was taken is stored; another may have been found meanwhile.
    pub(super) fn settled(&self) {
        let mut slot = self.resets.slot(self.partition);
        slot.stored = StreamId::MIN;
        slot.stage = match mem::take(&mut slot.stage) {
            Stage::Taken(marker) => Stage::Settled(marker),
            other => other,
        };
    }
}

impl Drop for LaneResets {
    fn drop(&mut self) {
        // The stage stays: what was taken and not settled is not stored by the last flush either.
        let mut slot = self.resets.slot(self.partition);
        // The next lane may have joined already.
        slot.lane.take_if(|l| Arc::ptr_eq(l, &self.interrupt));
    }
}

impl Lane<Positions> {
    /// Goes by the reset that waits. What was read before is forgotten, and the position is the target;
    /// it is stored before the next read.
    pub(super) fn take_reset(&mut self) {
        let Some(marker) = self.progress.resets.take() else {
            return;
        };
        let (from, start) = (self.progress.writer.load().id, marker.start());
        let to = start.id;
        self.reader.seek(to);
        self.progress.deliveries.forgive();
        self.begin_at(start);
        self.progress.unsettled = Some(marker);
        log::warn!(
            "{self}: reset: the position was {from} and is {to}; what comes after it is next"
        );
    }

    /// Stores the position of a reset and deletes its marker, if there is one to settle.
    pub(super) fn settle_reset(&mut self) -> Result<()> {
        let Some(marker) = &self.progress.unsettled else {
            return Ok(());
        };
        let (marker, position) = (marker.clone(), self.progress.writer.load());
        if self.relocate(Some(&marker), position.id)? {
            self.progress.writer.stored(position.version);
            log::info!(
                "{self}: reset marker cleared, position {} stored",
                position.id
            );
        } else {
            log::info!("{self}: another reset has come meanwhile, and will be taken next");
        }
        self.progress.unsettled = None;
        self.progress.resets.settled();
        Ok(())
    }

    /// Stores a position wherever the stored one is, for the marker that asks for it if one does. False
    /// when another marker has come.
    pub(super) fn relocate(&mut self, marker: Option<&Marker>, to: StreamId) -> Result<bool> {
        if self.plan.persist == Persist::None {
            return Ok(true);
        }
        let (partition, slack) = (self.context.partition, self.plan.read.slack);
        let Some(connection) = self.reader.connection() else {
            return Err(Error::new(
                ErrorKind::Io,
                "move the position",
                "not connected",
            ));
        };
        let fate = self
            .progress
            .store
            .relocate(connection, partition, marker, to, slack)?;
        match fate {
            Fate::Stored => Ok(true),
            Fate::Reset => Ok(false),
            fate => Err(self.unstored(fate)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StreamId;

    fn slot() -> (Arc<Resets>, Arc<Interrupt>, LaneResets) {
        let (resets, interrupt) = (Arc::<Resets>::default(), Arc::default());
        let lane = resets.join(1, &interrupt);
        (resets, interrupt, lane)
    }

    fn target(marker: Option<Marker>) -> Option<StreamId> {
        marker.map(|m| m.reset.target)
    }

    #[test]
    fn a_marker_is_handed_out_once_and_forgotten_when_it_is_settled() {
        let (resets, interrupt, lane) = slot();
        assert!(resets.is_owned(1) && !resets.is_under_way(1));
        assert!(resets.found(1, b"5-0|when").is_some());
        assert!(interrupt.is_cut() && resets.is_under_way(1));
        assert!(resets.found(1, b"5-0|when").is_none(), "no news");
        assert_eq!(target(lane.take()), Some(StreamId::new(5, 0)));
        assert!(!interrupt.is_cut() && resets.is_under_way(1));
        assert!(lane.take().is_none() && resets.found(1, b"5-0|when").is_none());
        assert_eq!(target(lane.taken()), Some(StreamId::new(5, 0)));
        lane.settled();
        assert!(!resets.is_under_way(1) && lane.taken().is_none());
    }

    #[test]
    fn an_answer_from_before_the_settling_brings_nothing_back_but_a_later_one_does() {
        let (resets, _, lane) = slot();
        resets.found(1, b"5-0");
        lane.take();
        lane.settled();
        assert!(resets.found(1, b"5-0").is_none(), "it was asked for before");
        assert!(resets.is_owned(1));
        // asked for now, and without a time two resets look the same
        assert!(resets.found(1, b"5-0").is_some());
    }

    #[test]
    fn a_newer_marker_takes_the_place_of_one_that_is_under_way() {
        let (resets, interrupt, lane) = slot();
        resets.found(1, b"5-0|a");
        resets.found(1, b"5-0|b");
        assert_eq!(*lane.take().unwrap().value, *b"5-0|b");
        assert!(resets.found(1, b"3-0").is_some() && interrupt.is_cut());
        lane.settled();
        assert!(resets.is_under_way(1), "the newer one is not settled");
        assert_eq!(target(lane.take()), Some(StreamId::new(3, 0)));
    }

    #[test]
    fn only_partitions_with_a_lane_are_looked_after() {
        let (resets, interrupt, lane) = slot();
        assert!(!resets.is_owned(0) && resets.found(0, b"5-0").is_none());
        for unreadable in [&b""[..], b"5", b"not-an-id"] {
            assert!(resets.found(1, unreadable).is_none());
        }
        resets.found(1, b"5-0");
        lane.take();
        drop(lane);
        assert!(!resets.is_owned(1) && resets.found(1, b"7-0").is_none());
        assert!(resets.is_under_way(1), "the last flush must not undo it");
        let last = resets.join(1, &interrupt);
        assert!(!resets.is_under_way(1));
        let _next = resets.join(1, &Arc::default());
        drop(last);
        assert!(resets.is_owned(1), "the next one has joined before it left");
    }
}
