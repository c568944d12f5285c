//! What becomes of messages that fail for good, as a consumer describes it.

use std::{sync::Arc, time::Duration};

use super::ConsumerBuilder;
use crate::{
    ConsumerSettings, OnError,
    consume::{Backoff, Parking},
};

/// What becomes of messages that fail for good.
impl<H> ConsumerBuilder<H> {
    /// Hands a message that failed over again up to so many times, in its place and with growing pauses;
    /// then it becomes a dead letter, and the partition goes on: [`OnError::Park`]. See
    /// [`Admin::dead_letters`](crate::Admin::dead_letters) for what to do with those.
    pub fn park(self, attempts: u32) -> Self {
        self.with(move |s| s.on_error(OnError::Park).park_attempts(attempts))
    }

    /// The pause before the first of these attempts, which doubles from one to the next, and the longest
    /// (default 100 ms and 10 s).
    pub fn park_pauses(self, first: Duration, longest: Duration) -> Self {
        self.with(move |s| s.park_backoff_base(first).park_backoff_max(longest))
    }

    /// By how many percent of itself each of these pauses is lengthened at most, at random (default 25).
    pub fn park_jitter(self, percent: u32) -> Self {
        self.with(move |s| s.park_jitter(percent))
    }

    /// Pauses of one's own: `pause` is given the number of the attempt, from 1, and says how long to wait
    /// before it. Called on the lane. Where it panics the built-in pause is made.
    pub fn park_backoff(mut self, pause: impl Fn(u32) -> Duration + Send + Sync + 'static) -> Self {
        self.park_backoff = Some(Arc::new(pause));
        self
    }

    /// How often a message may be handed over at which the process dies, or whose handler never comes back,
    /// before it fails without being handed over: then [`OnError`] decides (default 20; 0: it is for ever).
    pub fn max_deliveries(self, most: u32) -> Self {
        self.with(move |s| s.max_deliveries(most))
    }

    /// About how many dead letters are kept, the newest (default 100 000), and for how long (default: until
    /// there are too many; zero means that, too).
    pub fn dead_letters(self, most: u64, age: Duration) -> Self {
        self.with(move |s| s.dead_letters_max_len(most).dead_letters_max_age(age))
    }
}

/// How a consumer parks messages.
pub(super) fn of(settings: &ConsumerSettings, backoff: Option<Backoff>) -> Parking {
    let s = settings;
    let (attempts, base, most, jitter) = match settings.on_error {
        OnError::Retry => (
            s.retry_attempts,
            s.retry_backoff_base,
            s.retry_backoff_max,
            s.retry_jitter,
        ),
        _ => (
            s.park_attempts,
            s.park_backoff_base,
            s.park_backoff_max,
            s.park_jitter,
        ),
    };
    Parking {
        attempts,
        base,
        most,
        jitter,
        backoff,
        keep: (settings.dead_letters_max_len, settings.dead_letters_max_age),
    }
}
