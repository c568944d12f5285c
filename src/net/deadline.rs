//! The time one call may take, however many waits it is made of.

use std::time::Duration;

use crate::{
    Result, clock,
    error::{Error, ErrorKind},
};

/// When a call has to be over, on the coarse clock: precise to some milliseconds, nearly free to read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at_ms: u64,
    allowed_ms: u64,
    allowed: Duration,
}

/// The coarse clock's tick, or more.
const TICK_MS: u64 = 10;

impl Deadline {
    pub(crate) fn after(allowed: Duration) -> Self {
        let allowed_ms = clock::ceil_ms(allowed);
        Self {
            at_ms: clock::coarse_ms().saturating_add(allowed_ms),
            allowed_ms,
            allowed,
        }
    }

    /// One that has just passed.
    #[cfg(test)]
    pub(crate) fn spent(allowed: Duration) -> Self {
        Self {
            at_ms: clock::coarse_ms(),
            allowed_ms: clock::ceil_ms(allowed),
            allowed,
        }
    }

    /// What the whole call was allowed.
    pub(crate) fn allowed(self) -> Duration {
        self.allowed
    }

    /// When it began, on the coarse clock.
    pub(crate) fn began_ms(self) -> u64 {
        self.at_ms.saturating_sub(self.allowed_ms)
    }

    /// What is left of it; zero when it has passed.
    pub(crate) fn left(self) -> Duration {
        Duration::from_millis(self.left_ms())
    }

    fn left_ms(self) -> u64 {
        self.at_ms.saturating_sub(clock::coarse_ms())
    }

    /// Whether three quarters of its time, or more, come after a moment of the coarse clock.
    pub(crate) fn is_mostly_after(self, ms: u64) -> bool {
        ms.saturating_add(clock::ceil_ms(self.allowed / 4 * 3)) <= self.at_ms
    }

    /// What a single wait may take: all that was allowed while next to nothing of it is used up, so that
    /// a socket's timeout need not be set anew for every call.
    pub(crate) fn wait(self) -> Duration {
        let left = self.left_ms();
        if left > 0 && left + TICK_MS >= self.allowed_ms {
            self.allowed
        } else {
            Duration::from_millis(left)
        }
    }

    /// As [`wait`](Self::wait), for the rest of an answer.
    ///
    /// # Errors
    ///
    /// The time is up.
    #[inline]
    pub(crate) fn wait_for_answer(self) -> Result<Duration> {
        let wait = self.wait();
        if wait.is_zero() {
            let what = format!("no whole answer within {} ms", self.allowed.as_millis());
            return Err(Error::new(ErrorKind::Timeout, "receive", what));
        }
        Ok(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_has_passed_leaves_nothing() {
        let d = Deadline::after(Duration::from_secs(5));
        assert!(d.left() <= Duration::from_secs(5) && d.allowed() == Duration::from_secs(5));
        assert_eq!(d.wait(), d.allowed(), "as long as nothing is used up");
        let past = Deadline::spent(d.allowed());
        assert!(past.left().is_zero() && past.wait().is_zero());
        let short = Deadline::spent(Duration::from_millis(1));
        assert!(short.wait().is_zero(), "however short it was");
    }
}
