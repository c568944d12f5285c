//! The accounts of a queue: each message that was taken into it leaves it in exactly one way.

use std::ops::{AddAssign, Sub};

use crossbeam_channel::Receiver;

use crate::error::{Error, Outcome};

use super::parcel::{BoxedParcel, Undelivered};

/// How messages have left the queue, by their number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Totals {
    pub(super) stored: u64,
    pub(super) refused: u64,
    pub(super) unknown: u64,
    pub(super) dropped: u64,
    pub(super) returned: u64,
}

impl Totals {
    /// Counts a message that was given up with an error of this outcome.
    pub(super) fn failed(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::NotApplied => self.refused += 1,
            Outcome::Applied | Outcome::Unknown => self.unknown += 1,
        }
    }

    /// The later of two, of which one was counted after the other.
    pub(super) fn max(self, other: Self) -> Self {
        if other.all() > self.all() {
            other
        } else {
            self
        }
    }

    pub(super) fn all(&self) -> u64 {
        self.stored + self.refused + self.unknown + self.dropped + self.returned
    }

    pub(super) fn lost(&self) -> u64 {
        self.refused + self.unknown + self.dropped
    }
}

impl AddAssign for Totals {
    fn add_assign(&mut self, more: Self) {
        self.stored += more.stored;
        self.refused += more.refused;
        self.unknown += more.unknown;
        self.dropped += more.dropped;
        self.returned += more.returned;
    }
}

impl Sub for Totals {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            stored: self.stored - before.stored,
            refused: self.refused - before.refused,
            unknown: self.unknown - before.unknown,
            dropped: self.dropped - before.dropped,
            returned: self.returned - before.returned,
        }
    }
}

/// What a flush is told.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) totals: Totals,
    /// Of the messages it was to wait for, those that wait still.
    pub(super) queued: u64,
    /// The newest reason why messages were lost.
    pub(super) error: Option<Error>,
    /// Why messages wait, or were given back, if the last try says.
    pub(super) trouble: Option<Error>,
}

/// Somebody waits until everything up to a place in the queue is settled.
#[derive(Debug)]
struct Flush {
    number: u64,
    /// How many messages will have left the channel by then.
    place: u64,
    told: Option<Told>,
}

/// The receiving end of the queue and its accounts. Behind one lock, since a place in the queue means
/// something only while nobody takes from it.
#[derive(Debug)]
pub(super) struct Books {
    queue: Receiver<BoxedParcel>,
    /// How many messages were taken from the channel, ever.
    taken: u64,
    /// How many of these the pump has and has not settled.
    in_hand: u64,
    totals: Totals,
    /// The newest reason why a message was refused, or its answer lost.
    error: Option<Error>,
    /// Why what was tried last has to be tried again.
    trouble: Option<Error>,
    flushes: Vec<Flush>,
    flushes_ever: u64,
    /// What is left when the pump has gone.
    left: Vec<Undelivered>,
    pub(super) ended: bool,
}

impl Books {
    pub(super) fn new(queue: Receiver<BoxedParcel>) -> Self {
        Self {
            queue,
            taken: 0,
            in_hand: 0,
            totals: Totals::default(),
            error: None,
            trouble: None,
            flushes: Vec::new(),
            flushes_ever: 0,
            left: Vec::new(),
            ended: false,
        }
    }

    /// How many messages wait or are on their way.
    pub(super) fn queued(&self) -> u64 {
        self.in_hand + self.queue.len() as u64
    }

    /// Moves messages into the pump's hand until it holds `most`, but none from beyond a place that
    /// somebody waits for.
    pub(super) fn take_into(&mut self, hand: &mut Vec<BoxedParcel>, most: usize) {
        let places = self.open().map(|f| f.place.saturating_sub(self.taken));
        let most = match places.min() {
            Some(n) => most.min(hand.len().saturating_add(n as usize)),
            None => most,
        };
        while hand.len() < most
            && let Ok(parcel) = self.queue.try_recv()
        {
            hand.push(parcel);
            self.taken += 1;
            self.in_hand += 1;
        }
    }

    /// Whether somebody waits for what is queued.
    pub(super) fn is_hurried(&self) -> bool {
        self.open().next().is_some()
    }

    fn open(&self) -> impl Iterator<Item = &Flush> {
        self.flushes.iter().filter(|f| f.told.is_none())
    }

    /// The messages counted here have left the pump's hand; `error` is why some of them were lost,
    /// `trouble` why others are still in it.
    pub(super) fn settle(&mut self, totals: Totals, error: Option<Error>, trouble: Option<Error>) {
        self.in_hand -= totals.all();
        // What ends with no try at all, as at a close, is no news of the server.
        if trouble.is_some() || totals.stored > 0 {
            self.trouble = trouble;
        }
        self.left_as(totals, error);
    }

    /// Takes the oldest message that waits out of the queue, as dropped.
    pub(super) fn drop_oldest(&mut self) -> Option<BoxedParcel> {
        let oldest = self.queue.try_recv().ok()?;
        self.taken += 1;
        let dropped = Totals {
            dropped: 1,
            ..Totals::default()
        };
        self.left_as(dropped, None);
        Some(oldest)
    }

    /// Takes everything that waits out of the queue, to be given back.
    pub(super) fn take_back(&mut self) -> Vec<Undelivered> {
        let back: Vec<_> = self.queue.try_iter().map(Undelivered).collect();
        self.taken += back.len() as u64;
        let returned = Totals {
            returned: back.len() as u64,
            ..Totals::default()
        };
        self.left_as(returned, None);
        back
    }

    /// Keeps messages that were never sent, and that nobody will send any more.
    pub(super) fn keep(&mut self, parcels: impl IntoIterator<Item = Undelivered>) {
        self.left.extend(parcels);
    }

    /// Takes one message back that was queued after the last look at the queue. Each that was is taken back
    /// by whoever queued one, so it does not matter whose it is; none was ever counted here.
    pub(super) fn take_late(&mut self) -> Option<BoxedParcel> {
        if self.ended {
            self.queue.try_recv().ok()
        } else {
            None
        }
    }

    pub(super) fn take_left(&mut self) -> Vec<Undelivered> {
        std::mem::take(&mut self.left)
    }

    /// Messages have left the queue, and so some flushes may be over.
    fn left_as(&mut self, totals: Totals, error: Option<Error>) {
        self.totals += totals;
        if error.is_some() {
            self.error = error;
        }
        if self.in_hand > 0 {
            return;
        }
        let reached = |f: &&mut Flush| f.told.is_none() && f.place <= self.taken;
        for flush in self.flushes.iter_mut().filter(reached) {
            flush.told = Some(Told {
                totals: self.totals,
                queued: 0,
                error: self.error.as_ref().map(Error::again),
                trouble: self.trouble.as_ref().map(Error::again),
            });
        }
    }

    /// Begins to wait for everything queued so far. The number is for [`told`](Self::told).
    pub(super) fn flush(&mut self) -> u64 {
        self.flushes_ever += 1;
        self.flushes.push(Flush {
            number: self.flushes_ever,
            place: self.taken + self.queue.len() as u64,
            told: None,
        });
        self.left_as(Totals::default(), None);
        self.flushes_ever
    }

    /// Whether a flush is over.
    pub(super) fn is_told(&self, number: u64) -> bool {
        let mut flushes = self.flushes.iter();
        flushes.any(|f| f.number == number && f.told.is_some())
    }

    /// Ends a flush: what it was told, or how things are now.
    pub(super) fn told(&mut self, number: u64) -> Told {
        let at = self.flushes.iter().position(|f| f.number == number);
        let Some(flush) = at.map(|at| self.flushes.swap_remove(at)) else {
            return self.now(0);
        };
        match flush.told {
            Some(told) => told,
            None => self.now(self.in_hand + flush.place.saturating_sub(self.taken)),
        }
    }

    /// How things are now.
    pub(super) fn now(&self, queued: u64) -> Told {
        Told {
            totals: self.totals,
            queued,
            error: self.error.as_ref().map(Error::again),
            trouble: self.trouble.as_ref().map(Error::again),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crossbeam_channel::{Sender, bounded};

    use super::*;
    use crate::{error::ErrorKind, publish::buffered::parcel::Parcel};

    fn books() -> (Sender<BoxedParcel>, Books) {
        let (queue, messages) = bounded(100);
        (queue, Books::new(messages))
    }

    fn put(queue: &Sender<BoxedParcel>, n: usize) {
        (0..n).for_each(|_| queue.try_send(Parcel::new()).expect("room"));
    }

    fn stored(n: u64) -> Totals {
        Totals {
            stored: n,
            ..Totals::default()
        }
    }

    fn gone() -> Error {
        Error::new(ErrorKind::Io, "publish", "gone")
    }

    #[test]
    fn a_flush_is_told_of_what_lies_before_it_and_of_nothing_behind() {
        let (queue, mut books) = books();
        let mut hand = Vec::new();
        put(&queue, 3);
        let first = books.flush();
        put(&queue, 2);
        let second = books.flush();
        put(&queue, 1);
        assert!(books.is_hurried() && books.queued() == 6);
        books.take_into(&mut hand, 100);
        assert_eq!(hand.len(), 3, "none from beyond the first place");
        books.take_into(&mut hand, 100);
        assert_eq!(hand.len(), 3);
        assert!(!books.is_told(first));
        hand.clear();
        books.settle(stored(3), None, None);
        assert!(books.is_told(first) && !books.is_told(second));
        books.take_into(&mut hand, 1);
        books.take_into(&mut hand, 100);
        assert_eq!(hand.len(), 2);
        let mut lost = stored(1);
        lost.failed(Outcome::NotApplied);
        books.settle(lost, Some(gone()), None);
        let told = books.told(first);
        assert!(told.totals == stored(3) && told.error.is_none() && told.queued == 0);
        let told = books.told(second);
        assert_eq!((told.totals.stored, told.totals.refused), (4, 1));
        assert!(told.error.is_some());
        assert!(!books.is_hurried() && books.queued() == 1);
    }

    #[test]
    fn a_flush_that_is_given_up_knows_what_it_waited_for() {
        let (queue, mut books) = books();
        let mut hand = Vec::new();
        put(&queue, 5);
        let number = books.flush();
        put(&queue, 9);
        books.take_into(&mut hand, 3);
        assert_eq!(books.told(number).queued, 5);
        books.settle(stored(1), None, None);
        let number = books.flush();
        assert_eq!(books.told(number).queued, 13);
        assert!(!books.is_hurried(), "nobody waits any more");
        let number = books.flush();
        books.settle(stored(2), None, None);
        assert!(!books.is_told(number));
        assert_eq!(books.take_back().len(), 11);
        assert!(books.is_told(number), "nothing is left to wait for");
        assert_eq!(books.told(number).totals.returned, 11);
    }

    #[test]
    fn what_is_dropped_moves_the_place_but_not_past_what_is_in_hand() {
        let (queue, mut books) = books();
        let mut hand = Vec::new();
        put(&queue, 4);
        books.take_into(&mut hand, 2);
        let number = books.flush();
        assert!(books.drop_oldest().is_some() && books.drop_oldest().is_some());
        assert!(books.drop_oldest().is_none());
        assert!(!books.is_told(number), "two are on their way");
        books.settle(stored(2), None, None);
        let told = books.told(number);
        assert_eq!((told.totals.stored, told.totals.dropped), (2, 2));
        let empty = books.flush();
        assert!(books.is_told(empty), "there is nothing to wait for");
    }

    #[test]
    fn numbers_add_up() {
        let mut t = stored(5);
        t.failed(Outcome::NotApplied);
        t.failed(Outcome::Unknown);
        let mut more = t;
        more += t;
        assert_eq!((more.all(), more.lost(), (more - t).all()), (14, 4, 7));
        assert_eq!(t.max(more), more);
        assert_eq!(more.max(t), more);
    }
}
