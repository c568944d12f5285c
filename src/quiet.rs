//! Rate-limited logging: the first line at once, then at most one a window, with the number held back.

use std::{
    fmt,
    time::{Duration, Instant},
};

use crate::clock;

/// The window of all repeated lines.
const WINDOW: Duration = Duration::from_secs(30);

/// Decides whether a repeated line may be written now. One for each thing that can repeat.
#[derive(Debug, Default)]
pub(crate) struct Quiet {
    last: Option<Instant>,
    held_back: u64,
}

impl Quiet {
    /// `Some(n)` when the line may be written; `n` lines like it were held back since the last.
    pub(crate) fn permit(&mut self) -> Option<u64> {
        self.permit_at(clock::now())
    }

    fn permit_at(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|t| now.duration_since(t) < WINDOW) {
            self.held_back += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.held_back))
    }

    /// How many lines were held back since the last one written.
    pub(crate) fn held_back(&self) -> u64 {
        self.held_back
    }

    /// Forgets the past: the trouble is over and the next line is news again.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }
}

/// The end of a line that may be written again: how many like it were held back.
pub(crate) struct HeldBack(pub(crate) u64);

impl fmt::Display for HeldBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return Ok(());
        }
        write!(f, " ({} more like it since the last line)", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_window_and_none_forgotten() {
        let (mut q, t) = (Quiet::default(), clock::now());
        assert_eq!(q.permit_at(t), Some(0));
        for ms in 1..=200 {
            assert_eq!(q.permit_at(t + Duration::from_millis(ms)), None);
        }
        assert_eq!(q.permit_at(t + WINDOW), Some(200));
        assert_eq!(q.permit_at(t + WINDOW * 2), Some(0));
        q.reset();
        assert_eq!(q.permit_at(t + WINDOW * 2), Some(0));
    }
}
