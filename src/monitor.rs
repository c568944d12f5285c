//! What a lane says about itself: atomics that it writes and anyone may read, without a lock and
//! without an allocation on the way of a message.

mod errors;
mod histogram;
mod letters;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::clock;

pub(crate) use errors::{Counts, Errors, Remedy};
pub(crate) use histogram::{BOUNDS, Bounds, Counted, Histogram, SIZES, TIMES};
pub(crate) use letters::{LetterCounts, Letters};

/// What a lane is doing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum LaneState {
    /// It has not read anything yet.
    Starting,
    /// It reads, or waits at the server for something to read.
    Running,
    /// It hands the same message over again and again, because its handler said that it must not be
    /// skipped, or because its position cannot be stored.
    Blocked,
    /// It cannot read because the server is unreachable; it goes on trying.
    Disconnected,
    /// It cannot read because the server refuses, as while it loads its data; it goes on asking.
    Refused,
    /// Its stored position lies ahead of the stream and does not belong to it; it waits for a person to
    /// decide where to go on, as the setting `PositionAhead` says.
    Ahead,
    /// The claim on its partition may have ended, and it waits until that is made again.
    Lapsed,
    /// It was told to [`pause`](crate::Consumer::pause).
    Paused,
    /// It has ended.
    Stopped,
}

impl LaneState {
    const ALL: [Self; 9] = [
        Self::Starting,
        Self::Running,
        Self::Blocked,
        Self::Disconnected,
        Self::Refused,
        Self::Ahead,
        Self::Lapsed,
        Self::Paused,
        Self::Stopped,
    ];
}

/// What the threads of a consumer count together, where that is not on the way of a message.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    pub(crate) errors: Errors,
    /// Attempts at storing positions that failed.
    pub(crate) flush_failures: AtomicU64,
    /// How long handler calls had to wait for one another (`MaxInFlight`), in ns; those that had not to are not
    /// in it.
    pub(crate) held_up: Histogram,
}

/// One lane's state and counters.
#[derive(Debug, Default)]
pub(crate) struct Monitor {
    state: AtomicU8,
    /// On the coarse clock.
    since_ms: AtomicU64,
    /// Why it is blocked, cannot read, or stopped. Written on changes of state only.
    reason: Mutex<String>,
    pub(crate) handled: AtomicU64,
    pub(crate) skipped: AtomicU64,
    /// Messages that became dead letters.
    pub(crate) parked: AtomicU64,
    /// Messages that are to be handed over again out of their place.
    pub(crate) retried: AtomicU64,
    /// Messages that were acknowledged, where a group keeps what is finished.
    pub(crate) acked: AtomicU64,
    /// Attempts at messages whose bodies are not where they were kept.
    pub(crate) payload_missing: AtomicU64,
    /// Acknowledgements that were refused, since another had taken over.
    pub(crate) late: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) filtered: AtomicU64,
    /// Reads that found nothing: proof that the lane had caught up.
    pub(crate) empty_reads: AtomicU64,
    pub(crate) connects: AtomicU64,
    /// Gaps found, whatever is known of them.
    pub(crate) gaps: AtomicU64,
    /// Messages known to be missing in them.
    pub(crate) lost: AtomicU64,
    /// Gaps of which nobody can tell how large they are.
    pub(crate) untold_gaps: AtomicU64,
    /// Since when the handler call that runs has been running, on the coarse clock; 0 while none does.
    call_since_ms: AtomicU64,
    /// When the last gap was found, on the coarse clock; 0 while there was none.
    last_gap_ms: AtomicU64,
    /// Whether the last read found nothing.
    is_caught_up: AtomicBool,
    /// When a read found nothing for the last time, on the coarse clock; 0 while none did.
    caught_up_ms: AtomicU64,
    /// How many calls in a row failed on what is in hand.
    failed_calls: AtomicU32,
    /// How long handing over took at a stretch, in ns.
    pub(crate) durations: Histogram,
    /// How many messages were handed over at a stretch.
    pub(crate) sizes: Histogram,
}

impl Monitor {
    /// Changes the state. The clock of a state starts when it is entered and goes on while it is only
    /// confirmed.
    pub(crate) fn enter(&self, state: LaneState, reason: &str) {
        if self.state() != state {
            self.since_ms.store(clock::coarse_ms(), Relaxed);
            self.state.store(state as u8, Relaxed);
        } else if reason.is_empty() {
            return; // the usual case: still running
        }
        let mut r = self.reason.lock();
        r.clear();
        r.push_str(reason);
    }

    pub(crate) fn state(&self) -> LaneState {
        LaneState::ALL[usize::from(self.state.load(Relaxed)) % LaneState::ALL.len()]
    }

    /// Milliseconds in this state.
    pub(crate) fn in_state_ms(&self) -> u64 {
        match self.since_ms.load(Relaxed) {
            0 => 0,
            since => clock::coarse_ms().saturating_sub(since),
        }
    }

    /// A handler call begins, at this moment of the coarse clock.
    #[inline]
    pub(crate) fn call_begins(&self, now_ms: u64) {
        self.call_since_ms.store(now_ms, Relaxed);
    }

    /// The handler call has ended.
    #[inline]
    pub(crate) fn call_ends(&self) {
        self.call_since_ms.store(0, Relaxed);
    }

    /// Milliseconds for which the handler call that runs has been running.
    pub(crate) fn in_call_ms(&self) -> Option<u64> {
        match self.call_since_ms.load(Relaxed) {
            0 => None,
            since => Some(clock::coarse_ms().saturating_sub(since)),
        }
    }

    /// A read found nothing: everything there is has been dealt with.
    pub(crate) fn caught_up(&self) {
        self.caught_up_ms.store(clock::coarse_ms().max(1), Relaxed);
        self.is_caught_up.store(true, Relaxed);
    }

    /// Something was read, or what was known of the stream does not count any more.
    #[inline]
    pub(crate) fn falls_behind(&self) {
        self.is_caught_up.store(false, Relaxed);
    }

    /// What was in hand is not any more, and is to be read again.
    pub(crate) fn begins_anew(&self) {
        self.falls_behind();
        self.calls_failed(0);
    }

    pub(crate) fn is_caught_up(&self) -> bool {
        self.is_caught_up.load(Relaxed)
    }

    /// When a read found nothing for the last time, on the coarse clock.
    pub(crate) fn caught_up_ms(&self) -> Option<u64> {
        match self.caught_up_ms.load(Relaxed) {
            0 => None,
            at => Some(at),
        }
    }

    /// So many calls in a row have failed on what is in hand.
    pub(crate) fn calls_failed(&self, n: u32) {
        self.failed_calls.store(n, Relaxed);
    }

    /// Which attempt at what is in hand runs, or was the last; 0 when nothing is in hand.
    pub(crate) fn attempt(&self) -> u32 {
        let runs = self.call_since_ms.load(Relaxed) != 0;
        let failed = self.failed_calls.load(Relaxed);
        failed.saturating_add(u32::from(runs))
    }

    /// Counts a gap of so many messages; one that is not `alarming` may be none.
    pub(crate) fn note_gap(&self, lost: Option<u64>, alarming: bool) {
        if alarming {
            count(&self.gaps, 1);
            self.last_gap_ms.store(clock::coarse_ms().max(1), Relaxed);
        }
        match lost {
            Some(n) => count(&self.lost, n),
            None => count(&self.untold_gaps, 1),
        }
    }

    /// Milliseconds since the last gap was found.
    pub(crate) fn since_gap_ms(&self) -> Option<u64> {
        match self.last_gap_ms.load(Relaxed) {
            0 => None,
            at => Some(clock::coarse_ms().saturating_sub(at)),
        }
    }

    pub(crate) fn reason(&self) -> String {
        self.reason.lock().clone()
    }
}

/// Adds to a counter that only this thread writes: no locked instruction.
#[inline]
pub(crate) fn count(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed) + n, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_keeps_its_clock_and_changes_its_reason() {
        let m = Monitor::default();
        assert_eq!((m.state(), m.in_state_ms()), (LaneState::Starting, 0));
        for state in LaneState::ALL {
            m.enter(state, "why");
            assert_eq!(m.state(), state);
        }
        let since = m.since_ms.load(Relaxed);
        m.enter(LaneState::Stopped, "another reason");
        assert_eq!(
            (m.reason().as_str(), m.since_ms.load(Relaxed)),
            ("another reason", since)
        );
        m.enter(LaneState::Stopped, "");
        assert_eq!(m.reason(), "another reason");
        m.enter(LaneState::Running, "");
        assert_eq!(m.reason(), "");
    }

    #[test]
    fn attempts_are_counted_while_something_is_in_hand() {
        let m = Monitor::default();
        assert_eq!(m.attempt(), 0);
        m.call_begins(7);
        assert_eq!(m.attempt(), 1);
        m.call_ends();
        m.calls_failed(1);
        assert_eq!(m.attempt(), 1, "the one that failed");
        m.call_begins(8);
        assert_eq!(m.attempt(), 2);
        m.call_ends();
        m.calls_failed(0);
        assert_eq!(m.attempt(), 0);
    }

    #[test]
    fn counters_add_up() {
        let m = Monitor::default();
        count(&m.handled, 2);
        count(&m.handled, 3);
        assert_eq!(m.handled.load(Relaxed), 5);
    }
}
