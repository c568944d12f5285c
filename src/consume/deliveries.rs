//! Messages that kill their process, or never come back: how often lanes of a partition began with the
//! same message, one after the other, and did not get past it.
//!
//! A lane writes down the first message it hands over, and how many lanes have begun with it by now. That
//! is all while things go well. Where it has happened before, the lane is *wary*: it reads the messages one
//! by one, writes each down before it is handed over and stores the position behind it, so that what a
//! death is put down to is the message that was in hand. One that comes back in whatever way is taken off
//! the record again. After a batch of messages the lane reads batches, and stores the position behind each
//! for a while, so that every life of a process gets somewhere.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    ConsumerSettings, Persist, Result, StreamId, clock,
    error::{Error, ErrorKind},
    net::STOP,
};

use super::{
    fenced::Fate,
    lane::{CALLED, Flow, Lane},
    positions::Positions,
    reader::Brought,
};

/// A lane that begins with a message for so manieth time in a row is wary.
const SUSPECT: u32 = 3;
/// A lane that has been wary stores the position behind each batch for so many intervals of the flusher:
/// what earlier lanes had handled when they died was finished within one.
const CAREFUL_INTERVALS: u32 = 10;
/// How long a wary lane waits for others of its process to have their messages back, once.
const TURN: Duration = Duration::from_secs(10);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(5);
/// How long a lane that was told to stop tries to say that its message came back.
const LAST_WORD: Duration = Duration::from_secs(1);

/// What is on record of a partition: a message, and how many lanes have begun with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tally {
    pub(crate) message: StreamId,
    pub(crate) times: u32,
}

impl Tally {
    /// `None` for what nobody here has written: nothing is held against anything.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let (message, times) = std::str::from_utf8(text).ok()?.split_once(' ')?;
        Some(Self {
            message: StreamId::parse(message.as_bytes())?,
            times: times.parse().ok()?,
        })
    }

    fn without_one(self) -> Self {
        let times = self.times.saturating_sub(1);
        Self { times, ..self }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.message, self.times)
    }
}

/// How a consumer goes about messages that kill.
#[derive(Clone)]
pub(crate) struct Suspicion {
    /// After so many deliveries in vain a message is not handed over any more; 0: it always is.
    most: u32,
    /// How many messages in a row are read one by one.
    batch: u32,
    careful: Duration,
    /// Of the wary lanes of this process one at a time has a message in hand, or the death of the process
    /// would be put down to all of them.
    turn: Arc<AtomicBool>,
}

impl Suspicion {
    pub(crate) fn of(settings: &ConsumerSettings) -> Self {
        let keeps = settings.persist != Persist::None;
        Self {
            most: if keeps { settings.max_deliveries } else { 0 },
            batch: settings.batch_size,
            careful: settings.persist_interval * CAREFUL_INTERVALS,
            turn: Arc::default(),
        }
    }

    fn is_suspect(&self, times: u32) -> bool {
        times >= SUSPECT.min(self.most)
    }
}

/// What a lane does about it just now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pace {
    /// What is on record has to be looked up.
    Unknown,
    /// The first message is to be written down.
    First,
    /// Messages are read one by one: so many more.
    Wary(u32),
    /// The position is stored behind each batch, until then.
    Careful(Instant),
    /// Nothing.
    Calm,
}

/// What is to be done about a message that is next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    Hand,
    /// This is to be on record before.
    HandUnder(Tally),
    /// It was handed over so often in vain.
    Refuse(u32),
}

/// One lane's part in it.
pub(super) struct Deliveries {
    suspicion: Suspicion,
    pace: Pace,
    /// What was on record before this lane.
    found: Option<Tally>,
    /// What this lane has written, and not taken back: its message is in hand, or was finished.
    charged: Option<Tally>,
    /// How often the message that is next was handed over by lanes before.
    before: u32,
    turn: Option<Turn>,
    /// Whether it still waits for the turns of others.
    patient: bool,
}

impl Deliveries {
    pub(super) fn new(suspicion: Suspicion) -> Self {
        let pace = match suspicion.most {
            0 => Pace::Calm,
            _ => Pace::Unknown,
        };
        Self {
            suspicion,
            pace,
            found: None,
            charged: None,
            before: 0,
            turn: None,
            patient: true,
        }
    }

    /// Whether there is nothing to be done about what comes next.
    #[inline]
    pub(super) fn is_calm(&self) -> bool {
        self.pace == Pace::Calm
    }

    /// How often the message that is next was handed over in vain by lanes before.
    #[cold]
    pub(super) fn before(&self) -> u32 {
        self.before
    }

    /// The same of any message.
    pub(super) fn of(&self, message: StreamId) -> u32 {
        let on_record = self.charged.map(Tally::without_one).or(self.found);
        let its = on_record.filter(|t| t.message == message);
        its.map_or(0, |t| t.times)
    }

    /// Whether the position is to be stored before anything else is handed over.
    #[inline]
    pub(super) fn is_careful(&self) -> bool {
        matches!(self.pace, Pace::Wary(_) | Pace::Careful(_))
    }

    /// The partition is taken up, maybe not for the first time: what is on record has to be looked up.
    pub(super) fn begin_anew(&mut self) {
        self.turn = None;
        if self.suspicion.most > 0 {
            self.pace = Pace::Unknown;
        }
    }

    /// A person said where to go on: whatever is on record is forgiven.
    pub(super) fn forgive(&mut self) {
        self.begin_anew();
        (self.found, self.charged) = (None, None);
        if self.suspicion.most > 0 {
            self.pace = self.first();
        }
    }

    /// This is on record.
    fn looked_up(&mut self, mut on_record: Option<Tally>) {
        if self.charged.is_some() && self.charged == on_record {
            // nobody had the partition in between, and here the message did come back
            on_record = on_record.map(Tally::without_one);
        }
        (self.found, self.charged) = (on_record, None);
        self.pace = self.first();
    }

    fn first(&self) -> Pace {
        let times = self.found.map_or(0, |t| t.times);
        if self.suspicion.is_suspect(times.saturating_add(1)) {
            Pace::Wary(self.suspicion.batch)
        } else {
            Pace::First
        }
    }

    /// A read is to follow.
    fn before_read(&mut self, now: Instant) {
        self.pace = match self.pace {
            Pace::Wary(0) => Pace::Careful(now + self.suspicion.careful),
            Pace::Careful(until) if now >= until => Pace::Calm,
            pace => pace,
        };
        if self.is_calm() {
            self.calm_down();
        }
    }

    fn calm_down(&mut self) {
        self.pace = Pace::Calm;
        (self.found, self.charged, self.before) = (None, None, 0);
    }

    /// Entries were read.
    pub(super) fn arrived(&mut self) {
        if let Pace::Wary(more) = &mut self.pace {
            *more = more.saturating_sub(1);
        }
    }

    /// What was read is dealt with.
    pub(super) fn passed(&mut self) {
        if self.is_on_record() {
            self.calm_down();
        }
    }

    /// Everything there is was handled, and its position is stored or will be.
    pub(super) fn caught_up(&mut self) {
        let began = self.charged.is_some() || self.pace != Pace::First;
        if began && self.pace != Pace::Unknown {
            self.calm_down();
        }
    }

    /// What is to be done about the message that is next.
    fn next(&mut self, message: StreamId) -> Next {
        if self.charged.is_some_and(|t| t.message == message) {
            return Next::Hand;
        }
        self.before = 0;
        if self.charged.take().is_some() {
            self.found = None; // it was finished
            if self.pace == Pace::First {
                self.calm_down();
            }
        }
        if !matches!(self.pace, Pace::First | Pace::Wary(_)) {
            return Next::Hand;
        }
        self.before = self.of(message);
        if self.before >= self.suspicion.most {
            return Next::Refuse(self.before);
        }
        Next::HandUnder(Tally {
            message,
            times: self.before + 1,
        })
    }

    /// The server does not take what is to be on record.
    fn give_up(&mut self) {
        if self.pace == Pace::First {
            self.calm_down();
        }
    }

    /// Nothing is in hand any more, and everything up to `position` is finished: returns what is to be on
    /// record instead of what is, if a message has come back that is not.
    fn came_back(&mut self, position: StreamId) -> Option<Tally> {
        self.turn = None;
        let unfinished = self.charged.filter(|t| t.message > position)?;
        (self.found, self.charged) = (Some(unfinished.without_one()), None);
        self.found
    }

    /// Whether the message that is next is on record already.
    pub(super) fn is_on_record(&self) -> bool {
        self.pace == Pace::First && self.charged.is_some()
    }

    /// The message in hand is finished, or is not the lane's any more.
    #[cold]
    pub(super) fn over(&mut self) {
        self.turn = None;
    }
}

/// The turn of a wary lane, until it is dropped.
struct Turn(Arc<AtomicBool>);

impl Turn {
    fn take(turn: &Arc<AtomicBool>) -> Option<Self> {
        // The lanes share nothing but the turn itself.
        let taken = turn.swap(true, Ordering::Relaxed);
        (!taken).then(|| Self(Arc::clone(turn)))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Lane<Positions> {
    /// Looks up what is on record where that is to be done, and says how to read. Nothing may be
    /// outstanding. Blocks for a round trip at most.
    pub(super) fn attend_to_deliveries(&mut self) -> Result<()> {
        let deliveries = &mut self.progress.deliveries;
        if deliveries.pace == Pace::Unknown {
            let (p, slack) = (self.context.partition, self.plan.read.slack);
            let Some(connection) = self.reader.connection() else {
                return Err(not_connected());
            };
            let on_record = self.progress.store.tally(connection, p, slack)?;
            deliveries.looked_up(on_record);
            if let (Pace::Wary(_), Some(t)) = (deliveries.pace, on_record) {
                log::warn!(
                    "{self}: lanes have begun {} times with message {} and did not get past it; messages are \
                     read one by one for a while",
                    t.times,
                    t.message
                );
            }
        }
        let deliveries = &mut self.progress.deliveries;
        deliveries.before_read(clock::now());
        let one_by_one = matches!(deliveries.pace, Pace::Wary(_));
        self.reader.at_most(if one_by_one { 1 } else { u32::MAX });
        Ok(())
    }

    /// Puts the first message of the lane on record as soon as it is read, so that the next read may travel
    /// while it is handled. What does not work is for [`admit_message`](Self::admit_message) to do. Where
    /// nothing more was there to be read the lane is calm.
    pub(super) fn count_early(&mut self, brought: &Result<Brought>) {
        match brought {
            Ok(Brought::Entries { .. }) => {}
            Ok(Brought::Nothing) => {
                self.progress.deliveries.caught_up();
                self.reader.at_most(u32::MAX);
                return;
            }
            Err(_) => return,
        }
        let Some(message) = self.reader.records().first().map(|r| r.id) else {
            return;
        };
        if self.progress.deliveries.pace == Pace::First
            && let Next::HandUnder(tally) = self.progress.deliveries.next(message)
            && let Ok(Fate::Stored) = self.put_on_record(tally)
        {
            self.progress.deliveries.charged = Some(tally);
        }
    }

    /// Sees to it that the message at `start` is on record, if it has to be, before it is handed over.
    #[cold]
    pub(super) fn admit_message(&mut self, start: usize) -> Flow {
        let message = self.reader.records()[start].id;
        let since = clock::now();
        loop {
            match self.heed_signals() {
                Flow::On => {}
                away => return away,
            }
            let tally = match self.progress.deliveries.next(message) {
                Next::Hand | Next::Refuse(_) => return Flow::On,
                Next::HandUnder(tally) => tally,
            };
            if !self.has_turn(since) {
                self.context.interrupt.sleep(LOOK, CALLED);
                continue;
            }
            match self.put_on_record(tally) {
                Ok(Fate::Stored) => {
                    self.progress.deliveries.charged = Some(tally);
                    if self.trouble.is_some() {
                        self.reads_again();
                    }
                    // time has passed: the claim is looked at once more, and what is on record stays
                }
                Ok(fate) => {
                    let e = self.unstored(fate);
                    self.wait_out(&e);
                }
                Err(e) if e.keeps_connection() => {
                    // Not to be able to count is no reason not to handle.
                    log::debug!("{self}: {e}; handed over all the same");
                    self.progress.deliveries.give_up();
                    return Flow::On;
                }
                Err(e) => self.wait_out(&e),
            }
        }
    }

    /// Whether this is the wary lane of the process that may have a message in hand now. One that has
    /// waited for long goes on all the same: a handler that never comes back holds nobody else up.
    fn has_turn(&mut self, since: Instant) -> bool {
        let deliveries = &mut self.progress.deliveries;
        if !matches!(deliveries.pace, Pace::Wary(_)) || deliveries.turn.is_some() {
            return true;
        }
        deliveries.patient &= since.elapsed() < TURN;
        deliveries.turn = Turn::take(&deliveries.suspicion.turn);
        deliveries.turn.is_some() || !deliveries.patient
    }

    /// The handler has come back, and the lane waits or ends. If not even the first message was finished
    /// that is no death: it is taken off the record. What cannot be written now is held against the message
    /// as if it were one. Blocks for a round trip, or, where the lane was told to stop, for a second at most.
    pub(super) fn take_off_record(&mut self) {
        let position = self.progress.writer.load().id;
        let Some(before) = self.progress.deliveries.came_back(position) else {
            return;
        };
        let written = if self.context.interrupt.bits() & STOP == 0 {
            self.put_on_record(before)
        } else {
            // the lane's own connection is cut by then
            let p = self.context.partition;
            self.reader.dial_anew(LAST_WORD).and_then(|mut c| {
                let store = &self.progress.store;
                store.put_tally(&mut c, p, before, LAST_WORD)
            })
        };
        if let Err(e) = written {
            log::debug!("{self}: a delivery stays counted: {e}");
        }
    }

    /// After an error that does not keep the connection there is none.
    fn put_on_record(&mut self, tally: Tally) -> Result<Fate> {
        if self.reader.is_outstanding() {
            // What was asked for ahead would be answered first, into the bytes of these messages.
            self.reader.disconnect();
        }
        self.connect()?;
        let (p, slack) = (self.context.partition, self.plan.read.slack);
        let Some(connection) = self.reader.connection() else {
            return Err(not_connected());
        };
        let put = self.progress.store.put_tally(connection, p, tally, slack);
        if put.as_ref().is_err_and(|e| !e.keeps_connection()) {
            self.reader.disconnect();
        }
        put.map_err(|e| {
            e.during("count a delivery")
                .on_key(self.progress.store.meta_key())
                .at(self.plan.target.endpoint())
        })
    }
}

fn not_connected() -> Error {
    Error::new(ErrorKind::Io, "count a delivery", "not connected")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::{collection::btree_set, prelude::*};

    use super::*;

    fn id(n: u64) -> StreamId {
        StreamId::new(n, 0)
    }

    fn tally(n: u64, times: u32) -> Tally {
        Tally {
            message: id(n),
            times,
        }
    }

    fn suspicion(most: u32, batch: u32) -> Suspicion {
        Suspicion::of(
            &ConsumerSettings::new("t")
                .max_deliveries(most)
                .batch_size(batch),
        )
    }

    /// A lane that finds this on record.
    fn lane(most: u32, found: Option<Tally>) -> Deliveries {
        let mut lane = Deliveries::new(suspicion(most, 2));
        assert_eq!(lane.pace, Pace::Unknown);
        lane.looked_up(found);
        lane
    }

    /// As the lane does before it hands a message over.
    fn hands(lane: &mut Deliveries, n: u64) -> Next {
        let next = lane.next(id(n));
        if let Next::HandUnder(tally) = next {
            lane.charged = Some(tally);
        }
        next
    }

    #[test]
    fn what_is_on_record_is_written_as_it_is_read() {
        for (text, found) in [
            ("5-1 3", Some((StreamId::new(5, 1), 3))),
            ("0-0 0", Some((StreamId::MIN, 0))),
            ("5-1", None),
            ("5-1 ", None),
            ("5-1 -1", None),
            ("5-1 3 4", None),
            ("x 3", None),
            ("", None),
            ("5-1 4294967296", None),
        ] {
            let found = found.map(|(message, times)| Tally { message, times });
            assert_eq!(Tally::parse(text.as_bytes()), found, "{text:?}");
            if let Some(tally) = found {
                assert_eq!(tally.to_string(), text);
            }
        }
        assert_eq!(Tally::parse(b"\xff 1"), None);
    }

    #[test]
    fn what_is_next_as_a_table() {
        use Next::{Hand, HandUnder, Refuse};
        use Pace::{Calm, First, Wary};
        let (most, wary) = (4, Wary(2));
        #[rustfmt::skip]
        let table = [
            // on record         -> pace;  message 5 is next, and after it 6 -> then the pace is
            (None,                  First, HandUnder(tally(5, 1)), Hand,                  Calm),
            (Some(tally(5, 0)),     First, HandUnder(tally(5, 1)), Hand,                  Calm),
            (Some(tally(5, 1)),     First, HandUnder(tally(5, 2)), Hand,                  Calm),
            (Some(tally(5, 2)),     wary,  HandUnder(tally(5, 3)), HandUnder(tally(6, 1)), wary),
            (Some(tally(5, 3)),     wary,  HandUnder(tally(5, 4)), HandUnder(tally(6, 1)), wary),
            (Some(tally(5, 4)),     wary,  Refuse(4),              HandUnder(tally(6, 1)), wary),
            (Some(tally(5, 9)),     wary,  Refuse(9),              HandUnder(tally(6, 1)), wary),
            // Another message than the one that comes: that one was handled, or is gone.
            (Some(tally(4, 1)),     First, HandUnder(tally(5, 1)), Hand,                  Calm),
            (Some(tally(4, 9)),     wary,  HandUnder(tally(5, 1)), HandUnder(tally(6, 1)), wary),
            (Some(tally(6, 9)),     wary,  HandUnder(tally(5, 1)), HandUnder(tally(6, 1)), wary),
        ];
        for (found, pace, first, second, then) in table {
            let mut lane = lane(most, found);
            assert_eq!(lane.pace, pace, "{found:?}");
            assert_eq!(hands(&mut lane, 5), first, "{found:?}");
            assert_eq!(hands(&mut lane, 6), second, "{found:?}");
            assert_eq!(lane.pace, then, "{found:?}");
        }
    }

    #[test]
    fn off_there_is_nothing_to_do_ever() {
        let none = ConsumerSettings::new("t").persist(Persist::None);
        for suspicion in [suspicion(0, 2), Suspicion::of(&none)] {
            let mut lane = Deliveries::new(suspicion);
            lane.begin_anew();
            assert!(lane.is_calm());
            lane.forgive();
            assert!(lane.is_calm() && !lane.is_careful());
        }
    }

    #[test]
    fn what_came_back_is_taken_off_the_record_and_put_on_it_again_for_the_next_attempt() {
        let mut lane = lane(4, Some(tally(5, 1)));
        for _ in 0..9 {
            assert_eq!(hands(&mut lane, 5), Next::HandUnder(tally(5, 2)));
            assert_eq!(lane.came_back(id(4)), Some(tally(5, 1)));
            assert_eq!(lane.came_back(id(4)), None, "once");
        }
        assert_eq!(hands(&mut lane, 5), Next::HandUnder(tally(5, 2)));
        assert_eq!(lane.came_back(id(5)), None, "it was finished");
        assert_eq!(hands(&mut lane, 6), Next::Hand);
        assert_eq!(lane.came_back(id(5)), None);
    }

    #[test]
    fn a_lane_that_takes_its_partition_up_again_knows_its_own_hand() {
        for (others, times) in [(None, 2), (Some(tally(5, 3)), 4), (Some(tally(6, 1)), 1)] {
            let mut lane = lane(9, Some(tally(5, 1)));
            assert_eq!(hands(&mut lane, 5), Next::HandUnder(tally(5, 2)));
            lane.begin_anew();
            lane.looked_up(others.or(Some(tally(5, 2))));
            assert_eq!(hands(&mut lane, 5), Next::HandUnder(tally(5, times)));
        }
    }

    #[test]
    fn a_reset_forgives() {
        let mut lane = lane(3, Some(tally(5, 3)));
        assert_eq!(lane.next(id(5)), Next::Refuse(3));
        lane.forgive();
        assert_eq!(lane.pace, Pace::First);
        assert_eq!(hands(&mut lane, 5), Next::HandUnder(tally(5, 1)));
    }

    #[test]
    fn a_wary_lane_reads_so_many_one_by_one_then_is_careful_and_then_calm() {
        let mut lane = lane(9, Some(tally(5, 7)));
        let now = clock::now();
        for n in 0..2 {
            lane.before_read(now);
            assert!(matches!(lane.pace, Pace::Wary(_)) && lane.is_careful());
            lane.arrived();
            assert!(matches!(hands(&mut lane, 5 + n), Next::HandUnder(_)));
        }
        let careful = Duration::from_secs(1) * CAREFUL_INTERVALS;
        lane.before_read(now);
        assert_eq!(lane.pace, Pace::Careful(now + careful));
        assert_eq!(lane.next(id(8)), Next::Hand);
        assert!(lane.is_careful() && !lane.is_calm());
        lane.before_read(now + careful);
        assert!(lane.is_calm() && !lane.is_careful());
    }

    #[test]
    fn who_has_handled_everything_there_is_is_calm_and_who_has_handled_nothing_is_not() {
        let mut new = lane(9, None);
        new.caught_up();
        assert_eq!(new.pace, Pace::First);
        assert_eq!(hands(&mut new, 5), Next::HandUnder(tally(5, 1)));
        new.caught_up();
        assert!(new.is_calm());
        let mut wary = lane(9, Some(tally(5, 7)));
        wary.caught_up();
        assert!(wary.is_calm());
        let mut filtered = lane(9, None);
        filtered.passed();
        assert_eq!(filtered.pace, Pace::First, "nothing was handed over");
        hands(&mut filtered, 5);
        filtered.passed();
        assert!(filtered.is_calm());
    }

    #[test]
    fn one_wary_lane_of_a_process_at_a_time_has_its_turn() {
        let turn = Arc::default();
        let first = Turn::take(&turn);
        assert!(first.is_some() && Turn::take(&turn).is_none());
        drop(first);
        assert!(Turn::take(&turn).is_some());
    }

    /// A consumer of one partition whose process dies at some messages, and is started again each time.
    struct Lives {
        messages: u64,
        killers: std::collections::BTreeSet<u64>,
        suspicion: Suspicion,
        /// After so many messages a calm lane has its position stored; one that dies earlier has nothing.
        flush: u64,
        /// How many messages the careful time is enough for.
        careful: u64,
        stored: u64,
        record: Option<Tally>,
        handed: BTreeMap<u64, u32>,
        refused: BTreeMap<u64, u32>,
        finished: std::collections::BTreeSet<u64>,
    }

    impl Lives {
        /// One process. True when it lived to see the end.
        fn live(&mut self) -> bool {
            let mut lane = Deliveries::new(self.suspicion.clone());
            if !lane.is_calm() {
                lane.looked_up(self.record);
            }
            let (mut position, mut since_flush, mut careful) = (self.stored, 0, 0);
            let now = clock::now();
            loop {
                if !lane.is_calm() {
                    let over = lane.suspicion.careful + Duration::from_secs(1);
                    lane.before_read(if careful > self.careful {
                        now + over
                    } else {
                        now
                    });
                }
                if lane.is_careful() {
                    self.stored = position; // with the read
                }
                if position == self.messages {
                    return true;
                }
                let wary = matches!(lane.pace, Pace::Wary(_));
                let count = if wary {
                    1
                } else {
                    u64::from(self.suspicion.batch)
                };
                lane.arrived();
                for n in position + 1..=(position + count).min(self.messages) {
                    let next = if lane.is_calm() {
                        Next::Hand
                    } else {
                        lane.next(id(n))
                    };
                    if let Next::HandUnder(tally) = next {
                        self.record = Some(tally);
                        lane.charged = Some(tally);
                    }
                    if let Next::Refuse(times) = next {
                        assert_eq!(self.refused.insert(n, times), None, "once");
                    } else {
                        *self.handed.entry(n).or_default() += 1;
                        if self.killers.contains(&n) {
                            return false;
                        }
                        self.finished.insert(n);
                    }
                    position = n;
                    careful += u64::from(!wary);
                    since_flush += 1;
                    if since_flush >= self.flush {
                        (self.stored, since_flush) = (position, 0);
                    }
                }
            }
        }
    }

    proptest! {
        /// Whatever kills, wherever it lies and however rarely positions are stored: every killer is given up
        /// in the end, nothing else ever is, and each process gets somewhere.
        #[test]
        fn killers_are_given_up_and_nobody_else(
            messages in 1..60_u64,
            killers in btree_set(1..60_u64, 0..4),
            most in 1..12_u32,
            batch in 1..8_u32,
            flush in 1..100_u64,
            careful in 0..100_u64,
        ) {
            let killers: std::collections::BTreeSet<_> =
                killers.into_iter().filter(|n| *n <= messages).collect();
            let mut lives = Lives {
                messages,
                killers: killers.clone(),
                suspicion: suspicion(most, batch),
                flush,
                careful,
                stored: 0,
                record: None,
                handed: BTreeMap::new(),
                refused: BTreeMap::new(),
                finished: std::collections::BTreeSet::new(),
            };
            let mut deaths = 0;
            while !lives.live() {
                deaths += 1;
                prop_assert!(deaths < 1000, "{:?}", lives.handed);
            }
            let refused: std::collections::BTreeSet<_> = lives.refused.keys().copied().collect();
            prop_assert_eq!(&refused, &killers);
            for (killer, times) in &lives.refused {
                // on record only where it came first
                prop_assert_eq!(*times, most);
                prop_assert!(lives.handed[killer] >= most);
            }
            for n in 1..=messages {
                prop_assert!(killers.contains(&n) || lives.finished.contains(&n));
            }
            // where a careful lane lives long enough to get to the next one
            if careful > messages {
                let each = most + 2 * SUSPECT;
                prop_assert!(deaths <= each * killers.len() as u32, "{deaths}");
            }
        }
    }
}
