//! Messages that kill their process, or never come back: how often lanes of a partition began with the
//! same message, one after the other, and did not get past it.
//!
//! A lane writes down the first message it hands over, and how many lanes have begun with it by now. That
//! is all while things go well. Where it has happened before, the lane is *wary*: it reads the messages one
//! by one, writes each down before it is handed over and stores the position behind it, so that what a
//! death is put down to is the message that was in hand. One that comes back in whatever way is taken off
//! the record again. After a batch of messages the lane reads batches, and stores the position behind each
//! for a while, so that every life of a process gets somewhere.

mod admission;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{ConsumerSettings, Persist, StreamId};

/// A lane that begins with a message for so manieth time in a row is wary.
const SUSPECT: u32 = 3;
/// A lane that has been wary stores the position behind each batch for so many intervals of the flusher:
/// what earlier lanes had handled when they died was finished within one.
const CAREFUL_INTERVALS: u32 = 10;

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

#[cfg(test)]
mod tests;
