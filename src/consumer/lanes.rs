//! The lanes of a running consumer, which come and go one by one.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use parking_lot::Mutex;

use super::FailHook;
use crate::{
    Error, ErrorKind, LaneState, Result, clock,
    consume::{LOST, PAUSE, Plan, RETRIES, Seat, Seats},
    monitor::{Counted, Monitor},
    net::STOP,
    observe::Sight,
    streams::WeakStreams,
};

/// What every new lane is given.
pub(super) struct Outfit {
    pub(super) plan: Arc<Plan>,
    pub(super) on_fail: Option<FailHook>,
    /// A handle of the user's would keep everything alive; a lane must not.
    pub(super) streams: WeakStreams,
    pub(super) seats: Seats,
    /// The stream that holds what is to be handed over once more, where there is one.
    pub(super) retries: Option<String>,
    /// How often the server is asked how far lanes are behind.
    pub(super) sample_interval: Duration,
}

impl Outfit {
    /// The seat of a partition, or of the lane that reads what is to be handed over once more.
    fn seat(&self, lane: u32) -> Seat {
        match &self.retries {
            Some(key) if lane == RETRIES => self.seats.seat_at(lane, key, "retries"),
            _ => self.seats.seat(lane),
        }
    }
}

/// A lane whose thread runs or has run.
pub(super) struct Lane {
    pub(super) seat: Seat,
    /// What is known of it beside what it says itself.
    pub(super) sight: Arc<Sight>,
    pub(super) ended: Ended,
    /// When it ends it is no lane of this consumer any more.
    leaves: AtomicBool,
    /// Why it is to do nothing more, though it stays to be seen.
    stood_down: OnceLock<String>,
    /// It has ended, and has been told whether it leaves: who says so from now on says it to nobody.
    through: AtomicBool,
}

/// All that are here now, by partition. The lock is never held while anything is waited for.
pub(super) struct Lanes(Mutex<State>);

struct State {
    /// None when the consumer ends: then no lane can begin.
    outfit: Option<Arc<Outfit>>,
    /// Whether the whole consumer is paused, and with it those that are yet to come.
    paused: bool,
    here: BTreeMap<u32, Arc<Lane>>,
    /// What those that left had counted.
    before: Totals,
}

/// What all lanes did together since the consumer began.
#[derive(Clone, Copy, Default)]
pub(super) struct Totals {
    pub(super) handled: u64,
    pub(super) skipped: u64,
    pub(super) parked: u64,
    pub(super) filtered: u64,
    pub(super) durations: Counted,
    pub(super) sizes: Counted,
}

impl Totals {
    fn add(self, m: &Monitor) -> Self {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Self {
            handled: self.handled + of(&m.handled),
            skipped: self.skipped + of(&m.skipped),
            parked: self.parked + of(&m.parked),
            filtered: self.filtered + of(&m.filtered),
            durations: self.durations.plus(m.durations.look()),
            sizes: self.sizes.plus(m.sizes.look()),
        }
    }
}

impl Lanes {
    pub(super) fn new(outfit: Outfit) -> Self {
        Self(Mutex::new(State {
            outfit: Some(Arc::new(outfit)),
            paused: false,
            here: BTreeMap::new(),
            before: Totals::default(),
        }))
    }

    /// A new lane, which takes the place of one that has ended; `ended` is to tell when it does so
    /// itself. For whoever may write the partition's position: there is only one.
    ///
    /// # Errors
    ///
    /// The consumer ends.
    pub(super) fn add(&self, partition: u32, ended: Ended) -> Result<(Arc<Lane>, Arc<Outfit>)> {
        let mut state = self.0.lock();
        let Some(outfit) = state.outfit.clone() else {
            return Err(Error::new(ErrorKind::Stopped, "start", "the consumer ends"));
        };
        let lane = Arc::new(Lane {
            seat: outfit.seat(partition),
            sight: Arc::new(Sight::new(outfit.retries.is_some(), outfit.sample_interval)),
            ended,
            leaves: AtomicBool::new(false),
            stood_down: OnceLock::new(),
            through: AtomicBool::new(false),
        });
        if state.paused {
            lane.seat.interrupt.set(PAUSE);
        }
        if let Some(gone) = state.here.insert(partition, Arc::clone(&lane)) {
            state.before = state.before.add(&gone.seat.monitor);
        }
        Ok((lane, outfit))
    }

    /// A lane whose thread could not be started is none.
    pub(super) fn withdraw(&self, lane: &Arc<Lane>) {
        self.0.lock().remove(lane);
    }

    /// What new lanes are given; `None` when the consumer ends.
    pub(super) fn outfit(&self) -> Option<Arc<Outfit>> {
        self.0.lock().outfit.clone()
    }

    /// Tells a lane to end and to leave, by these bits. False when it hears nothing of it: there is none,
    /// or it was [through](Self::is_through) already, and has left now.
    pub(super) fn dismiss(&self, partition: u32, bits: u32) -> bool {
        let mut state = self.0.lock();
        let Some(lane) = state.here.get(&partition).cloned() else {
            return false;
        };
        lane.leaves.store(true, Ordering::Relaxed);
        lane.seat.interrupt.cut(bits);
        let through = lane.through.load(Ordering::Relaxed);
        if through {
            state.remove(&lane);
        }
        !through
    }

    /// Tells a lane to end, whose partition is another's to handle, and to say why.
    pub(super) fn stand_down(&self, partition: u32, why: String) {
        if let Some(lane) = self.get(partition) {
            let _ = lane.stood_down.set(why); // the first reason is the one
            lane.seat.interrupt.cut(STOP | LOST);
        }
    }

    /// Whether a partition has a lane whose thread has not ended.
    pub(super) fn is_running(&self, partition: u32) -> bool {
        self.get(partition).is_some_and(|lane| !lane.has_ended())
    }

    /// The partitions of those that are like this.
    pub(super) fn those(&self, like: impl Fn(&Arc<Lane>) -> bool) -> BTreeSet<u32> {
        let state = self.0.lock();
        let those = state.here.values().filter(|lane| like(lane));
        those.map(|lane| lane.seat.partition).collect()
    }

    /// Asked by a lane that has ended, once: whether it was told to leave. Then it has.
    pub(super) fn is_through(&self, lane: &Arc<Lane>) -> bool {
        let mut state = self.0.lock();
        lane.through.store(true, Ordering::Relaxed);
        let leaves = lane.leaves();
        if leaves {
            state.remove(lane);
        }
        leaves
    }

    /// Whether this lane is here to stay: it neither leaves, nor has left, nor been replaced.
    pub(super) fn keeps(&self, lane: &Arc<Lane>) -> bool {
        !lane.leaves() && self.0.lock().has(lane)
    }

    /// Tells all to end. No other begins from now on.
    pub(super) fn end_all(&self) {
        let outfit = {
            let mut state = self.0.lock();
            for lane in state.here.values() {
                lane.seat.interrupt.cut(STOP);
            }
            state.outfit.take()
        };
        drop(outfit); // user code, such as a handle of this consumer
    }

    /// Waits until all that are here have ended; false when that is not so by `until`.
    pub(super) fn all_ended(&self, until: Instant) -> bool {
        self.all().iter().all(|lane| lane.ended.by(until))
    }

    pub(super) fn pause(&self) {
        let mut state = self.0.lock();
        state.paused = true;
        state.each(|seat| seat.interrupt.set(PAUSE));
    }

    pub(super) fn resume(&self) {
        let mut state = self.0.lock();
        state.paused = false;
        state.each(|seat| seat.interrupt.clear(PAUSE));
    }

    pub(super) fn get(&self, partition: u32) -> Option<Arc<Lane>> {
        self.0.lock().here.get(&partition).cloned()
    }

    /// All that are here, by partition.
    pub(super) fn all(&self) -> Vec<Arc<Lane>> {
        self.0.lock().here.values().cloned().collect()
    }

    pub(super) fn len(&self) -> usize {
        self.0.lock().here.len()
    }

    pub(super) fn totals(&self) -> Totals {
        let state = self.0.lock();
        let each = state.here.values();
        each.fold(state.before, |sum, lane| sum.add(&lane.seat.monitor))
    }
}

impl State {
    fn has(&self, lane: &Arc<Lane>) -> bool {
        let here = self.here.get(&lane.seat.partition);
        here.is_some_and(|l| Arc::ptr_eq(l, lane))
    }

    fn remove(&mut self, lane: &Arc<Lane>) {
        if self.has(lane) {
            self.here.remove(&lane.seat.partition);
            self.before = self.before.add(&lane.seat.monitor);
        }
    }

    fn each(&self, f: impl Fn(&Seat)) {
        self.here.values().for_each(|lane| f(&lane.seat));
    }
}

impl Lane {
    pub(super) fn state(&self) -> LaneState {
        self.seat.monitor.state()
    }

    /// Why it does nothing more, where its partition was left to another.
    pub(super) fn stood_down(&self) -> Option<&str> {
        self.stood_down.get().map(String::as_str)
    }

    /// Whether it was told to leave.
    fn leaves(&self) -> bool {
        self.leaves.load(Ordering::Relaxed)
    }

    /// Whether its thread has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.by(clock::now())
    }
}

/// Held by a thread for as long as it lives.
pub(super) struct Alive(
    #[expect(dead_code, reason = "dropping it is what is waited for")] Sender<Infallible>,
);

/// Tells when a thread has ended, however it does. Nothing is ever sent: when the thread drops its
/// [`Alive`] the channel is disconnected.
#[derive(Clone)]
pub(super) struct Ended(Receiver<Infallible>);

pub(super) fn alive() -> (Alive, Ended) {
    let (sender, receiver) = bounded(0);
    (Alive(sender), Ended(receiver))
}

impl Ended {
    /// Waits for it; false when it has not come by `until`.
    pub(super) fn by(&self, until: Instant) -> bool {
        matches!(
            self.0.recv_deadline(until),
            Err(RecvTimeoutError::Disconnected)
        )
    }
}
