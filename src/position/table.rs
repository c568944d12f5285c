//! One slot per partition, each with a single writer and any number of readers.
//!
//! A slot is a sequence lock: the version is odd while a write is under way, and a reader that saw it
//! odd, or changed, tries again. A write is four plain stores between two version stores, a few
//! nanoseconds; a reader never delays a writer.
//!
//! Slots never move, so a table grows under its readers and writers: it has segments, each twice as long
//! as the one before, which are made when they are first needed.

use std::{array, sync::Arc};

use crossbeam_utils::CachePadded;

use crate::{
    StreamId,
    sync::{AtomicBool, AtomicU32, AtomicU64, OnceLock, Ordering, fence, spin},
};

/// What is stored for "not known", in a number that never gets there by counting.
const UNKNOWN: u64 = u64::MAX;

/// How many slots the first segment has. The fewer of them and of segments, the quicker is a model.
const FIRST: u64 = if cfg!(loom) { 1 } else { 16 };
/// Enough for every partition that a `u32` can name.
const SEGMENTS: usize = if cfg!(loom) {
    2
} else {
    33 - FIRST.ilog2() as usize
};

/// The positions of a consumer, by partition.
#[derive(Debug)]
pub(crate) struct Table {
    segments: [OnceLock<Box<[CachePadded<Slot>]>>; SEGMENTS],
    len: AtomicU32,
}

/// A partition's position at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Snapshot {
    /// Everything up to this id is finished.
    pub id: StreamId,
    /// How many entries of the stream lie at or before it, where that is known.
    pub ordinal: Option<u64>,
    /// Changes with every write; 0 while nothing was written.
    pub version: u64,
}

#[derive(Debug)]
struct Slot {
    version: AtomicU64,
    ms: AtomicU64,
    seq: AtomicU64,
    ordinal: AtomicU64,
    /// The version that is stored.
    stored: AtomicU64,
    claimed: AtomicBool,
}

impl Default for Slot {
    fn default() -> Self {
        Self {
            version: AtomicU64::new(0),
            ms: AtomicU64::new(0),
            seq: AtomicU64::new(0),
            ordinal: AtomicU64::new(UNKNOWN),
            stored: AtomicU64::new(0),
            claimed: AtomicBool::new(false),
        }
    }
}

/// The segment that a partition's slot is in, and its place there.
fn place(partition: u32) -> (usize, usize) {
    let n = u64::from(partition) + FIRST;
    let segment = n.ilog2() - FIRST.ilog2();
    (segment as usize, (n - (FIRST << segment)) as usize)
}

impl Table {
    pub(crate) fn new(partitions: u32) -> Self {
        let table = Self {
            segments: array::from_fn(|_| OnceLock::new()),
            len: AtomicU32::new(0),
        };
        table.grow(partitions);
        table
    }

    pub(crate) fn len(&self) -> u32 {
        // Acquire pairs with the Release of `grow`: the slots of all these partitions are there.
        self.len.load(Ordering::Acquire)
    }

    /// Makes room for partitions up to this many; a table never gets smaller. Who reads or writes a
    /// position meanwhile is not disturbed.
    pub(crate) fn grow(&self, partitions: u32) {
        let Some(last) = partitions.checked_sub(1) else {
            return;
        };
        for (i, segment) in self.segments.iter().enumerate().take(place(last).0 + 1) {
            segment.get_or_init(|| (0..FIRST << i).map(|_| CachePadded::default()).collect());
        }
        // Release pairs with the Acquire of `len`.
        self.len.fetch_max(partitions, Ordering::Release);
    }

    fn get(&self, partition: u32) -> Option<&Slot> {
        let (segment, place) = place(partition);
        let slots = self.segments[segment].get()?;
        (partition < self.len()).then(|| &*slots[place])
    }

    /// # Panics
    ///
    /// When there is no such partition.
    fn slot(&self, partition: u32) -> &Slot {
        self.slot_at(place(partition))
    }

    #[inline]
    fn slot_at(&self, (segment, place): (usize, usize)) -> &Slot {
        let slots = self.segments[segment].get();
        &slots.expect("a partition of the table")[place]
    }

    /// The right to write one partition's position; `None` while somebody else has it, or when there
    /// is no such partition.
    pub(crate) fn writer(self: &Arc<Self>, partition: u32) -> Option<Writer> {
        let slot = self.get(partition)?;
        let place = place(partition);
        // Acquire: what the writer before us stored is what we go on from.
        let taken = slot.claimed.swap(true, Ordering::Acquire);
        (!taken).then(|| Writer {
            table: Arc::clone(self),
            partition,
            place,
        })
    }

    /// A partition's position as of now, whole.
    ///
    /// # Panics
    ///
    /// When there is no such partition.
    pub(crate) fn load(&self, partition: u32) -> Snapshot {
        let slot = self.slot(partition);
        loop {
            if let Some(snapshot) = slot.try_load() {
                return snapshot;
            }
            spin();
        }
    }

    /// A partition's position, unless it is stored.
    pub(crate) fn unstored(&self, partition: u32) -> Option<Snapshot> {
        let now = self.load(partition);
        // No older than what the writer had marked before it wrote what was just loaded.
        let stored = self.slot(partition).stored.load(Ordering::Relaxed);
        (now.version > stored).then_some(now)
    }

    /// Says that a partition's position is stored as it was in this version.
    pub(crate) fn stored(&self, partition: u32, version: u64) {
        let slot = self.slot(partition);
        slot.stored.fetch_max(version, Ordering::Relaxed);
    }
}

impl Slot {
    /// One attempt; `None` if a write was under way.
    fn try_load(&self) -> Option<Snapshot> {
        // Acquire pairs with the Release of the last store of `Writer::store`: an even version shows
        // everything stored before it.
        let version = self.version.load(Ordering::Acquire);
        if version & 1 == 1 {
            return None;
        }
        let id = StreamId::new(
            self.ms.load(Ordering::Relaxed),
            self.seq.load(Ordering::Relaxed),
        );
        let ordinal = self.ordinal.load(Ordering::Relaxed);
        // Pairs with the Release fence of `Writer::store`: if any of the loads above saw a newer value,
        // the load below sees at least the odd version stored before it.
        fence(Ordering::Acquire);
        (self.version.load(Ordering::Relaxed) == version).then_some(Snapshot {
            id,
            ordinal: (ordinal != UNKNOWN).then_some(ordinal),
            version,
        })
    }
}

/// The one who may write a partition's position.
#[derive(Debug)]
pub(crate) struct Writer {
    table: Arc<Table>,
    partition: u32,
    /// Where its slot is, which never moves.
    place: (usize, usize),
}

impl Writer {
    /// Takes up the position that is stored at the server, in place of any that was left here. Nobody
    /// takes it for one that has yet to be stored.
    pub(crate) fn begin(&mut self, id: StreamId, ordinal: Option<u64>) {
        // Before the write, whose Release then shows the mark to whoever sees the position.
        let version = self
            .table
            .slot(self.partition)
            .version
            .load(Ordering::Relaxed)
            + 2;
        self.stored(version);
        self.store(id, ordinal);
    }

    /// Moves the position to `id`, which must not lie before the present one, unless it is a reset.
    #[inline]
    pub(crate) fn store(&mut self, id: StreamId, ordinal: Option<u64>) {
        let slot = self.table.slot_at(self.place);
        // Only we write it.
        let version = slot.version.load(Ordering::Relaxed);
        slot.version.store(version + 1, Ordering::Relaxed);
        // Orders the odd version before the stores below; pairs with the Acquire fence of `try_load`.
        fence(Ordering::Release);
        slot.ms.store(id.ms(), Ordering::Relaxed);
        slot.seq.store(id.seq(), Ordering::Relaxed);
        slot.ordinal
            .store(ordinal.unwrap_or(UNKNOWN), Ordering::Relaxed);
        // Release: whoever loads this even version sees all of the above.
        slot.version.store(version + 2, Ordering::Release);
    }

    pub(crate) fn load(&self) -> Snapshot {
        self.table.load(self.partition)
    }

    /// Says that the position is stored as it was in this version.
    pub(crate) fn stored(&self, version: u64) {
        self.table.stored(self.partition, version);
    }

    /// A way to get the right back after this writer is gone.
    pub(crate) fn again(&self) -> impl Fn() -> Option<Writer> + use<> {
        let (table, partition) = (Arc::clone(&self.table), self.partition);
        move || table.writer(partition)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Release pairs with the Acquire of `Table::writer`.
        self.table
            .slot(self.partition)
            .claimed
            .store(false, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_what_is_loaded() {
        let table = Arc::new(Table::new(2));
        let mut w = table.writer(1).unwrap();
        assert_eq!(table.load(1).version, 0);
        w.store(StreamId::new(5, 7), Some(12));
        let s = table.load(1);
        assert_eq!((s.id, s.ordinal), (StreamId::new(5, 7), Some(12)));
        assert_eq!(table.load(0).version, 0, "its neighbour is untouched");
        w.store(StreamId::new(6, 0), None);
        assert_eq!(table.load(1).ordinal, None);
        assert!(table.load(1).version > s.version);
    }

    #[test]
    fn a_partition_has_one_writer_at_a_time() {
        let table = Arc::new(Table::new(1));
        let w = table.writer(0).unwrap();
        assert!(table.writer(0).is_none());
        drop(w);
        assert!(table.writer(0).is_some());
        assert!(table.writer(1).is_none(), "there is no partition 1");
    }

    #[test]
    fn every_partition_has_a_place_of_its_own() {
        let mut next = (0, 0);
        for p in 0..5000 {
            assert_eq!(place(p), next, "{p}");
            next.1 += 1;
            if next.1 as u64 == FIRST << next.0 {
                next = (next.0 + 1, 0);
            }
        }
        assert_eq!(place(u32::MAX).0, SEGMENTS - 1);
    }

    #[test]
    fn a_table_grows_around_its_writers_and_never_shrinks() {
        let table = Arc::new(Table::new(0));
        assert_eq!((table.len(), table.writer(0).is_none()), (0, true));
        table.grow(3);
        let mut w = table.writer(2).unwrap();
        assert!(table.writer(3).is_none());
        w.store(StreamId::new(1, 0), None);
        for (to, len) in [(100, 100), (50, 100), (0, 100), (101, 101)] {
            table.grow(to);
            assert_eq!(table.len(), len);
        }
        w.store(StreamId::new(2, 0), None);
        assert_eq!(table.load(2).id, StreamId::new(2, 0));
        assert!(table.writer(2).is_none() && table.writer(100).is_some());
        assert_eq!(table.load(100).version, 0);
    }

    #[test]
    fn what_a_writer_begins_with_is_stored_already() {
        let table = Arc::new(Table::new(1));
        let mut w = table.writer(0).unwrap();
        w.begin(StreamId::new(9, 0), Some(4));
        assert_eq!(table.load(0).id, StreamId::new(9, 0));
        assert_eq!(table.unstored(0), None);
        w.store(StreamId::new(10, 0), Some(5));
        let left = table.unstored(0).unwrap();
        drop(w);
        // the partition was elsewhere meanwhile: what was not stored here is out of date
        let mut w = table.writer(0).unwrap();
        w.begin(StreamId::new(7, 0), None);
        assert_eq!(table.unstored(0), None);
        table.stored(0, left.version);
        w.store(StreamId::new(8, 0), None);
        assert!(table.unstored(0).is_some());
    }

    #[test]
    fn readers_of_a_busy_slot_see_whole_positions_that_never_go_back() {
        let table = Arc::new(Table::new(1));
        let mut w = table.writer(0).unwrap();
        std::thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    let mut last = StreamId::MIN;
                    while last.ms() < 200_000 {
                        let now = table.load(0);
                        assert!(now.id.seq() == now.id.ms() * 3);
                        assert!(now.version == 0 || now.ordinal == Some(now.id.ms()));
                        assert!(now.id >= last);
                        last = now.id;
                    }
                });
            }
            for n in 1..=200_000 {
                w.store(StreamId::new(n, n * 3), Some(n));
            }
        });
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::thread;

    use super::*;

    /// One writer that stores twice against a reader that looks twice: every snapshot is whole, and
    /// none is older than the one before. Two looks are needed: with one, broken orderings pass.
    #[test]
    fn snapshots_are_whole_and_never_go_back() {
        loom::model(|| {
            let table = Arc::new(Table::new(1));
            let mut w = table.writer(0).unwrap();
            let writer = thread::spawn(move || {
                w.store(StreamId::new(1, 101), Some(201));
                w.store(StreamId::new(2, 102), Some(202));
            });
            let mut last = StreamId::MIN;
            for _ in 0..2 {
                let Some(now) = table.slot(0).try_load() else {
                    continue;
                };
                if now.version > 0 {
                    assert_eq!(now.id.seq(), now.id.ms() + 100, "torn");
                    assert_eq!(now.ordinal, Some(now.id.ms() + 200), "torn");
                }
                assert!(now.id >= last, "went back");
                last = now.id;
            }
            writer.join().unwrap();
            assert_eq!(table.load(0).id, StreamId::new(2, 102));
        });
    }

    /// A partition that is added while others look: what they see of it is what its writer wrote.
    #[test]
    fn a_partition_that_is_there_is_there_whole() {
        loom::model(|| {
            let table = Arc::new(Table::new(1));
            let ours = Arc::clone(&table);
            let grower = thread::spawn(move || {
                ours.grow(2);
                let mut w = ours.writer(1).expect("nobody else takes it");
                w.store(StreamId::new(1, 101), Some(201));
            });
            table.grow(2); // both at once, as when two hear of it
            if let Some(now) = table.slot(1).try_load() {
                let seen = (now.id, now.ordinal);
                let whole = (StreamId::new(1, 101), Some(201));
                assert!(now.version == 0 || seen == whole, "torn: {now:?}");
            }
            grower.join().unwrap();
            assert_eq!((table.len(), table.load(1).version), (2, 2));
        });
    }

    /// The flusher at the moment a lane begins: it never finds the beginning unstored, for by then it
    /// may be out of date at the server.
    #[test]
    fn a_beginning_is_never_taken_for_progress() {
        loom::model(|| {
            let table = Arc::new(Table::new(1));
            let mut w = table.writer(0).unwrap();
            let lane = thread::spawn(move || {
                w.begin(StreamId::new(1, 101), Some(201));
                w.store(StreamId::new(2, 102), Some(202));
            });
            let beginning = table.unstored(0).filter(|now| now.id.ms() == 1);
            assert_eq!(beginning, None);
            lane.join().unwrap();
            let left = table.unstored(0).map(|now| now.id);
            assert_eq!(left, Some(StreamId::new(2, 102)));
        });
    }

    /// A lane that ends and the one that takes its partition over.
    #[test]
    fn a_writer_goes_on_from_what_its_predecessor_stored() {
        loom::model(|| {
            let table = Arc::new(Table::new(1));
            let mut first = table.writer(0).unwrap();
            let t = thread::spawn(move || {
                first.store(StreamId::new(1, 101), Some(201));
            });
            if let Some(mut second) = table.writer(0) {
                // Without a look first: that would bring it up to date by itself.
                second.store(StreamId::new(2, 102), Some(202));
                let now = second.load();
                assert_eq!((now.id, now.version), (StreamId::new(2, 102), 4));
            }
            t.join().unwrap();
        });
    }
}
