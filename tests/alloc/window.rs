//! The time between two moments at which all watched threads stand still.

use std::{
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use crate::counting::{Count, between, sample};

/// How long a hundred thousand messages may take on a slow machine.
const PATIENCE: Duration = Duration::from_mins(2);

/// Where so many threads wait until a sample is taken.
pub struct Window {
    threads: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    arrived: usize,
    samples: u32,
}

impl Window {
    pub fn new(threads: usize) -> Self {
        Self {
            threads,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Called by a watched thread: stands still until the sample is taken.
    pub fn hold(&self) {
        let mut state = self.state.lock().unwrap();
        state.arrived += 1;
        let seen = state.samples;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |s| s.samples == seen));
    }

    /// Counts the threads of these names once all watched ones stand still, and lets them go on.
    pub fn sample(&self, names: &[&str]) -> Vec<Count> {
        let state = self.state.lock().unwrap();
        let missing = |s: &mut State| s.arrived < self.threads;
        let waited = self.changed.wait_timeout_while(state, PATIENCE, missing);
        let (mut state, late) = waited.unwrap();
        let counts = sample(names);
        let arrived = std::mem::take(&mut state.arrived);
        state.samples += 1;
        self.changed.notify_all();
        drop(state);
        assert!(!late.timed_out(), "only {arrived} of {} came", self.threads);
        counts
    }

    /// What the threads of these names allocate between two holds.
    pub fn measure(&self, names: &[&str]) -> Vec<Count> {
        let before = self.sample(names);
        between(&before, self.sample(names))
    }
}

/// Tells a lane when to stand still: after its warm-up, and so many messages later.
pub struct Pacer {
    window: Arc<Window>,
    seen: usize,
    next: usize,
    length: usize,
    left: u32,
}

impl Pacer {
    pub fn new(window: &Arc<Window>, warm_up: usize, length: usize) -> Self {
        Self {
            window: Arc::clone(window),
            seen: 0,
            next: warm_up,
            length,
            left: 2,
        }
    }

    pub fn saw(&mut self, messages: usize) {
        self.seen += messages;
        if self.left > 0 && self.seen >= self.next {
            self.next = self.seen + self.length;
            self.left -= 1;
            self.window.hold();
        }
    }
}
