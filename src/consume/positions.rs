//! Progress as positions: everything up to one is finished.

use std::{
    cell::Cell,
    rc::Rc,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use crate::{
    LaneState, Persist, Result, StreamId,
    batch::Record,
    error::{Error, ErrorKind, Outcome},
    position::{Snapshot, Writer},
};

use super::{
    deliveries::Deliveries,
    fenced::Fate,
    lane::{Flow, Lane, Plan, Seat},
    park::Failures,
    progress::{Before, Progress},
    reader::Brought,
    resets::{LaneResets, Marker},
    store::{PositionStore, Stored},
    watch::Watch,
};

/// What a lane knows of the position of its partition.
pub(crate) struct Positions {
    pub(super) writer: Writer,
    /// The ordinal of the reader's position before the last read.
    pub(super) base: Option<u64>,
    pub(super) watch: Watch,
    pub(super) store: PositionStore,
    pub(super) resets: Arc<LaneResets>,
    /// Whether the position is the one stored at the server, or what came of it since.
    pub(super) acquired: Rc<Cell<bool>>,
    /// A reset whose position is not stored yet.
    pub(super) unsettled: Option<Marker>,
    /// In sync modes: a position that is not stored yet.
    unsaved: Option<Snapshot>,
    /// Whether positions were stored over this connection, so that the server knows how.
    has_stored: bool,
    pub(super) deliveries: Deliveries,
}

impl Positions {
    /// Makes what a lane of this seat begins with, and begins anew with after a panic.
    pub(crate) fn keep(plan: &Plan, seat: &Seat, writer: Writer) -> impl FnMut() -> Option<Self> {
        // A lane that begins anew after a panic knows more than the server.
        let acquired = Rc::<Cell<bool>>::default();
        let resets = Arc::new(plan.resets.join(seat.partition, &seat.interrupt));
        let store = plan.store.clone();
        let suspicion = plan.suspicion.clone();
        let table = writer.again();
        let mut first = Some(writer);
        move || {
            let writer = first.take().or_else(&table)?;
            Some(Self {
                base: writer.load().ordinal,
                writer,
                watch: Watch::default(),
                store: store.clone(),
                unsettled: resets.taken(),
                resets: Arc::clone(&resets),
                acquired: Rc::clone(&acquired),
                unsaved: None,
                has_stored: false,
                deliveries: Deliveries::new(suspicion.clone()),
            })
        }
    }
}

impl Progress for Positions {
    fn start(&self) -> StreamId {
        self.writer.load().id
    }

    fn reconnected(&mut self) {
        self.has_stored = false;
        self.watch.reconnected();
    }

    fn read(lane: &mut Lane<Self>) -> Result<Brought> {
        lane.connect()?;
        lane.acquire()?;
        lane.settle_reset()?;
        if !lane.progress.is_calm() && !lane.reader.is_outstanding() {
            lane.attend_to_deliveries()?;
        }
        let alone = lane.trouble.is_some() || !lane.progress.has_stored;
        if let Some(position) = lane.progress.unsaved.filter(|_| alone) {
            // so that a refusal leaves no answer outstanding and the connection can stay
            lane.try_save(position)?;
        }
        let mut before = 0;
        if !lane.reader.is_outstanding() {
            lane.look_when_due()?;
            lane.commands.clear();
            if let Some(position) = lane.progress.unsaved {
                let position = [(lane.context.partition, position)];
                before = lane.progress.store.render(&mut lane.commands, &position);
            }
            let brief = lane.monitor.state() != LaneState::Running;
            lane.reader.request(&lane.commands, brief)?;
        }
        let (store, partition) = (&lane.progress.store, lane.context.partition);
        let mut fate = Fate::Stored;
        let brought = lane.reader.receive(before, Some(store.key()), |answer| {
            store.fates(answer, 1, |_, f| fate = f)?;
            store.heed(partition, answer);
            match fate {
                Fate::Stored | Fate::Behind => Ok(()),
                fate => Err(refused(fate)),
            }
        });
        lane.heed_fate(fate);
        if before > 0 && lane.reader.is_confirmed() {
            lane.saved(); // whatever became of the read
        }
        if !lane.progress.is_calm() {
            lane.count_early(&brought);
        }
        brought
    }

    fn may_read_ahead(&self) -> bool {
        // Between two reads nothing is outstanding, which is when the stream is looked at.
        (self.is_calm() || self.deliveries.is_on_record()) && !self.watch.is_due()
    }

    fn arrived(lane: &mut Lane<Self>) {
        if let Some(first) = lane.reader.records().first().filter(|r| r.nth == 1) {
            lane.progress.watch.read_first(first.id);
        }
        lane.progress.deliveries.arrived();
    }

    fn passed(lane: &mut Lane<Self>) {
        let read = u64::from(lane.reader.index().read());
        lane.progress.base = lane.progress.base.map(|n| n + read);
        lane.progress.deliveries.passed();
    }

    fn together(&self, plan: &Plan, _: usize, records: usize) -> usize {
        if plan.persist == Persist::SyncMessage {
            return 1; // its position is stored before the next is handed over
        }
        records
    }

    #[inline]
    fn before(&self, _: usize) -> Before {
        if self.is_calm() {
            return Before::default(); // which is what the loop need not look at
        }
        Before {
            deliveries: self.deliveries.before(),
            attempts: 0,
        }
    }

    #[inline]
    fn about(lane: &mut Lane<Self>, _: usize, made: u32) {
        lane.context.attempt.store(made, Relaxed);
    }

    #[inline]
    fn is_calm(&self) -> bool {
        self.deliveries.is_calm()
    }

    fn admit(lane: &mut Lane<Self>, start: usize) -> Flow {
        lane.admit_message(start)
    }

    fn came_back(lane: &mut Lane<Self>) {
        lane.take_off_record();
    }

    #[inline]
    fn done(&mut self, record: &Record) {
        let ordinal = self.base.map(|n| n + u64::from(record.nth));
        self.writer.store(record.id, ordinal);
    }

    #[inline]
    fn finished(lane: &mut Lane<Self>, end: usize, total: usize) -> Flow {
        lane.move_position(end);
        if !lane.progress.is_calm() {
            lane.progress.deliveries.over();
        }
        if end < total && lane.plan.persist == Persist::SyncMessage {
            return lane.save_position();
        }
        Flow::On
    }

    fn finished_at_the_end(lane: &mut Lane<Self>, end: usize) {
        lane.move_position(end);
    }

    fn pass_over(lane: &mut Lane<Self>) {
        if let Some(last) = lane.reader.index().last() {
            let read = lane.reader.index().read();
            lane.store_position(last, read);
        }
    }

    fn park(lane: &mut Lane<Self>, index: usize, failures: &Failures<'_>) -> Flow {
        lane.park(index, failures)
    }

    /// Out of its place nothing is handed over here: what a lane is asked to put aside by mistake is kept.
    fn retry_later(
        lane: &mut Lane<Self>,
        index: usize,
        _: Duration,
        failures: &Failures<'_>,
    ) -> Flow {
        lane.park(index, failures)
    }

    fn take_reset(lane: &mut Lane<Self>) {
        lane.take_reset();
    }

    fn wait_for_claim(lane: &mut Lane<Self>) {
        lane.wait_for_claim();
    }

    fn owes(&self) -> bool {
        self.unsaved.is_some()
    }

    fn waits_for_a_person(&self) -> bool {
        self.watch.is_ahead()
    }

    /// What was to be stored is not to be any more.
    fn forget(&mut self) {
        (self.unsaved, self.unsettled) = (None, None);
        self.writer.stored(self.writer.load().version);
    }

    /// The last position is the flusher's to store.
    fn ended(lane: &mut Lane<Self>) {
        lane.take_off_record();
    }
}

impl Lane<Positions> {
    /// Moves the position past the messages before `end`.
    fn move_position(&mut self, end: usize) {
        let Some(last) = end.checked_sub(1) else {
            return;
        };
        let records = self.reader.records();
        if end == records.len() {
            // entries that were filtered out behind the last message are finished with it
            return Positions::pass_over(self);
        }
        let last = records[last];
        self.store_position(last.id, last.nth);
    }

    /// Moves the position to `id`, the `nth` entry of the last read.
    pub(super) fn store_position(&mut self, id: StreamId, nth: u32) {
        let ordinal = self.progress.base.map(|n| n + u64::from(nth));
        self.progress.writer.store(id, ordinal);
        if self.plan.persist.is_sync() {
            self.owe(self.progress.writer.load());
        } else if !self.progress.is_calm() {
            self.store_with_care(id);
        }
    }

    /// Where lanes before died: the position is stored before anything else is handed over.
    #[cold]
    fn store_with_care(&mut self, id: StreamId) {
        if self.progress.deliveries.is_careful() {
            self.progress.resets.stores(id);
            self.owe(self.progress.writer.load());
        }
    }

    /// In sync modes: this is to be stored before anything else is handed over.
    pub(super) fn owe(&mut self, position: Snapshot) {
        self.progress.unsaved = Some(position);
    }

    /// Makes this the position, whatever it was. It is not stored.
    pub(super) fn begin_at(&mut self, start: Stored) {
        self.progress.writer.store(start.id, start.ordinal);
        self.begin_with(start);
    }

    /// Goes on from this position.
    pub(super) fn begin_with(&mut self, start: Stored) {
        self.progress.base = start.ordinal;
        self.progress.watch.begin_anew();
        self.progress.unsaved = None;
    }

    /// Stores the position now, however often that takes.
    pub(super) fn save_position(&mut self) -> Flow {
        while let Some(position) = self.progress.unsaved {
            match self.heed_signals() {
                Flow::On => {}
                away => return away,
            }
            match self.try_save(position) {
                Ok(()) => self.reads_again(),
                Err(e) => self.wait_out(&e),
            }
        }
        Flow::On
    }

    fn try_save(&mut self, position: Snapshot) -> Result<()> {
        self.connect()?;
        let Some(connection) = self.reader.connection() else {
            return Err(Error::new(ErrorKind::Io, "store position", "not connected"));
        };
        let patience = self.plan.read.patience();
        let (room, mut fate) = ((&mut self.commands, &mut self.inbox), Fate::Stored);
        let position = [(self.context.partition, position)];
        let saved = self
            .progress
            .store
            .store(connection, room, &position, patience, |_, f| fate = f);
        saved.map_err(|e| {
            e.during("store position")
                .on_key(self.progress.store.key())
                .at(self.plan.target.endpoint())
        })?;
        self.progress.has_stored = true;
        match fate {
            Fate::Stored | Fate::Behind => {
                self.heed_fate(fate);
                self.saved();
                Ok(())
            }
            fate => Err(self.unstored(fate)),
        }
    }

    /// What became of the position concerns others, too.
    pub(super) fn heed_fate(&self, fate: Fate) {
        match (fate, self.progress.store.lease()) {
            (Fate::Unclaimed | Fate::Anothers, Some(lease)) => lease.desk().look_again(),
            (Fate::Behind, _) => log::warn!("{self}: {}; somebody else has written it", fate.why()),
            _ => {}
        }
    }

    /// A position was not stored, for this reason.
    pub(super) fn unstored(&self, fate: Fate) -> Error {
        self.heed_fate(fate);
        refused(fate)
            .on_key(self.progress.store.key())
            .at(self.plan.target.endpoint())
    }

    /// The position that was not is stored now.
    pub(super) fn saved(&mut self) {
        if let Some(position) = self.progress.unsaved.take() {
            self.progress.writer.stored(position.version);
        }
    }
}

fn refused(fate: Fate) -> Error {
    Error::new(ErrorKind::Server, "store position", fate.why()).with_outcome(Outcome::NotApplied)
}
