//! Counts what lanes have seen. The clock runs from when the first of them has seen a tenth of its share,
//! and everything is warm, to when the last has seen all.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use crossbeam_utils::CachePadded;
use parking_lot::{Condvar, Mutex};

use crate::{Bench, Outcome, machine::Mark};

/// After this long without an end something is broken.
const PATIENCE: Duration = Duration::from_mins(5);

#[derive(Clone)]
pub(crate) struct Meter(Arc<Shared>);

struct Shared {
    lanes: Vec<CachePadded<AtomicU64>>,
    sum: AtomicU64,
    /// What each lane is to see.
    share: u64,
    running: AtomicUsize,
    server_pid: u32,
    marks: Mutex<Marks>,
    ended: Condvar,
}

/// How many messages had been seen at which moment.
#[derive(Default)]
struct Marks {
    first: Option<(u64, Mark)>,
    last: Option<(u64, Mark)>,
}

impl Meter {
    /// For so many lanes with so many messages each.
    pub(crate) fn new(bench: &Bench, lanes: u32, share: u64) -> Outcome<Self> {
        Ok(Self(Arc::new(Shared {
            lanes: (0..lanes).map(|_| CachePadded::default()).collect(),
            sum: AtomicU64::new(0),
            share,
            running: AtomicUsize::new(lanes as usize),
            server_pid: bench.server_pid()?,
            marks: Mutex::default(),
            ended: Condvar::new(),
        })))
    }

    /// The part of it that one lane keeps.
    pub(crate) fn lap(&self, lane: u32) -> Lap {
        Lap {
            of: self.clone(),
            lane: lane as usize,
            seen: 0,
            sum: 0,
            next: self.0.share / 10,
        }
    }

    /// Waits until all is seen.
    pub(crate) fn wait(&self) -> Outcome<()> {
        let mut marks = self.0.marks.lock();
        let ended = || "not everything was seen".into();
        while marks.last.is_none() {
            if self.0.ended.wait_for(&mut marks, PATIENCE).timed_out() {
                return Err(ended());
            }
        }
        Ok(())
    }

    /// Thousands of messages a second, and the client's and the server's CPU nanoseconds a message. Their
    /// bytes were added up.
    pub(crate) fn figures(&self, body: usize) -> Outcome<Vec<f64>> {
        let all = self.0.share * self.0.lanes.len() as u64;
        self.figures_of(all * body as u64)
    }

    /// The same, when it is known what is added up to what.
    pub(crate) fn figures_of(&self, sum: u64) -> Outcome<Vec<f64>> {
        if self.0.sum.load(Relaxed) != sum {
            return Err("not every body was seen once".into());
        }
        let marks = self.0.marks.lock();
        let (Some((from, before)), Some((to, after))) = (marks.first, marks.last) else {
            return Err("it has not ended".into());
        };
        let n = (to - from) as f64;
        Ok(vec![
            n * 1e6 / (after.at - before.at) as f64,
            (after.client - before.client) as f64 / n,
            (after.server - before.server) as f64 / n,
        ])
    }

    /// What all have seen so far, and when that is.
    fn here(&self) -> (u64, Mark) {
        let seen = self.0.lanes.iter().map(|n| n.load(Relaxed)).sum();
        (seen, Mark::now(self.0.server_pid))
    }
}

pub(crate) struct Lap {
    of: Meter,
    lane: usize,
    seen: u64,
    sum: u64,
    next: u64,
}

impl Lap {
    pub(crate) fn is_running(&self) -> bool {
        self.seen < self.of.0.share
    }

    /// Messages were seen, with so many bytes, or with whatever else is added up of all of them.
    #[inline]
    pub(crate) fn add(&mut self, messages: usize, sum: usize) {
        self.seen += messages as u64;
        self.sum = self.sum.wrapping_add(sum as u64);
        self.of.0.lanes[self.lane].store(self.seen, Relaxed);
        if self.seen >= self.next {
            self.mark();
        }
    }

    #[cold]
    fn mark(&mut self) {
        let shared = &self.of.0;
        self.next = if self.is_running() {
            shared.share
        } else {
            u64::MAX
        };
        let mut marks = shared.marks.lock();
        if marks.first.is_none() {
            marks.first = Some(self.of.here());
        }
        if self.seen >= shared.share {
            shared.sum.fetch_add(self.sum, Relaxed);
            if shared.running.fetch_sub(1, Relaxed) == 1 {
                marks.last = Some(self.of.here());
                shared.ended.notify_all();
            }
        }
    }
}
