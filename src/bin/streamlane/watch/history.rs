//! What was seen before, for rates.

use std::{collections::VecDeque, time::SystemTime};

use streamlane::ConsumerProgress;

/// So many rates are kept.
const KEPT: usize = 120;

/// How quickly a partition moves, the oldest first; `None` where that could not be told.
#[derive(Clone, Default, PartialEq, Debug)]
pub(crate) struct Rates {
    /// Entries finished a second.
    pub(crate) finished: VecDeque<Option<f64>>,
    /// Entries added a second, now.
    pub(crate) added: Option<f64>,
}

impl Rates {
    /// Entries finished a second, now.
    pub(crate) fn now(&self) -> Option<f64> {
        *self.finished.back()?
    }
}

#[derive(Default)]
pub(crate) struct History {
    at: Option<SystemTime>,
    partitions: Vec<Partition>,
}

#[derive(Clone, Default)]
struct Partition {
    added: u64,
    /// How many were finished; `None` where that cannot be told.
    finished: Option<u64>,
    rates: Rates,
}

impl History {
    /// Takes note of what was seen. The same once more changes nothing.
    pub(crate) fn note(&mut self, seen: &ConsumerProgress) {
        let since = self.at.and_then(|at| seen.at.duration_since(at).ok());
        if since.is_some_and(|since| since.is_zero()) {
            return;
        }
        let seconds = since.map(|since| since.as_secs_f64());
        self.at = Some(seen.at);
        self.partitions
            .resize(seen.partitions.len(), Partition::default());
        for (p, seen) in self.partitions.iter_mut().zip(&seen.partitions) {
            let finished = seen.lag.map(|lag| seen.added.saturating_sub(lag));
            if let Some(seconds) = seconds {
                let grown = p.finished.zip(finished);
                p.rates
                    .finished
                    .push_back(grown.map(|(then, now)| rate(then, now, seconds)));
                p.rates.added = Some(rate(p.added, seen.added, seconds));
                while p.rates.finished.len() > KEPT {
                    p.rates.finished.pop_front();
                }
            }
            (p.added, p.finished) = (seen.added, finished);
        }
    }

    pub(crate) fn rates(&self) -> Vec<Rates> {
        self.partitions.iter().map(|p| p.rates.clone()).collect()
    }
}

/// What goes back, as behind a reset, is no rate.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn rate(then: u64, now: u64, seconds: f64) -> f64 {
    now.saturating_sub(then) as f64 / seconds
}
