//! Where one caller waits, and what it can be told there.

use std::mem;

use crate::{
    Result, clock,
    net::Deadline,
    sync::{Condvar, Mutex},
};

/// Where one caller waits. A caller brings its own and can use it for one call after another.
pub(in crate::publish) struct Seat<A> {
    word: Mutex<Word<A>>,
    pub(super) bell: Condvar,
}

/// What a caller in line is doing, or has been told to do. Changed only with the state locked.
pub(super) enum Word<A> {
    /// It writes, or reads, or is about to look.
    Busy,
    /// It waits to be told something.
    Parked,
    Write,
    Read,
    Done(Result<A>),
}

impl<A> Default for Seat<A> {
    fn default() -> Self {
        Self {
            word: Mutex::new(Word::Busy),
            bell: Condvar::new(),
        }
    }
}

impl<A> Seat<A> {
    /// Says something, and returns what was said before.
    pub(super) fn tell(&self, word: Word<A>) -> Word<A> {
        mem::replace(&mut *self.word.lock(), word)
    }

    /// What was said, and the seat is [`Busy`](Word::Busy) again.
    pub(super) fn take(&self) -> Word<A> {
        self.tell(Word::Busy)
    }

    pub(super) fn is_told(&self) -> bool {
        matches!(*self.word.lock(), Word::Done(_))
    }

    pub(super) fn is_parked(&self) -> bool {
        matches!(*self.word.lock(), Word::Parked)
    }

    /// Waits until something is said; [`Parked`](Word::Parked) when nothing is by then.
    pub(super) fn wait(&self, by: Deadline) -> Word<A> {
        let mut word = self.word.lock();
        while matches!(*word, Word::Parked) {
            let left = by.left();
            if left.is_zero() {
                // what is said from here on is found with the state locked
                return Word::Parked;
            }
            self.bell.wait_until(&mut word, clock::now() + left);
        }
        mem::replace(&mut *word, Word::Busy)
    }
}
