//! What a consumer that is a group is told, and the thread that looks after what is pending in it.

use std::{sync::Arc, time::Duration};

use super::{super::running::Running, ConsumerBuilder};
use crate::{
    AckDelete, ConsumerSettings, Delivery, OnError, Result,
    consume::RETRIES,
    net::Target,
    queue::{GroupPlan, Keeper, Terms},
};

/// Messages as work to be shared.
impl<H> ConsumerBuilder<H> {
    /// How messages are delivered to the instances of the consumer (default [`Delivery::Ordered`]).
    pub fn delivery(self, delivery: Delivery) -> Self {
        self.with(move |s| s.delivery(delivery))
    }

    /// In the queue modes: hands a message that failed over again up to so many times, after growing pauses
    /// and behind others; then it becomes a dead letter: [`OnError::Retry`].
    pub fn retry(self, attempts: u32) -> Self {
        self.with(move |s| s.on_error(OnError::Retry).retry_attempts(attempts))
    }

    /// The pause before the first of these attempts, which doubles from one to the next, and the longest
    /// (default 1 s and 1 min).
    pub fn retry_pauses(self, first: Duration, longest: Duration) -> Self {
        self.with(move |s| s.retry_backoff_base(first).retry_backoff_max(longest))
    }

    /// By how many percent of itself each of these pauses is lengthened at most, at random (default 25).
    pub fn retry_jitter(self, percent: u32) -> Self {
        self.with(move |s| s.retry_jitter(percent))
    }

    /// Pauses of one's own; as [`park_backoff`](Self::park_backoff).
    pub fn retry_backoff(self, pause: impl Fn(u32) -> Duration + Send + Sync + 'static) -> Self {
        self.park_backoff(pause)
    }

    /// In the queue modes: from when on a message is given to another member that nobody gave a sign of
    /// (default 5 min). A handler that runs gives signs of it.
    pub fn claim_idle(self, idle: Duration) -> Self {
        self.with(move |s| s.claim_idle(idle))
    }

    /// In the queue modes: how often such messages are looked for (default 30 s).
    pub fn claim_interval(self, interval: Duration) -> Self {
        self.with(move |s| s.claim_interval(interval))
    }

    /// How many handler calls may run at once in this process (default: one for each partition,
    /// and in the queue modes one for what is tried again).
    pub fn max_in_flight(self, calls: u32) -> Self {
        self.with(move |s| s.max_in_flight(calls))
    }

    /// In the queue modes: whether finished messages are deleted (default [`AckDelete::None`]).
    pub fn ack_delete(self, policy: AckDelete) -> Self {
        self.with(move |s| s.ack_delete(policy))
    }
}

/// Starts what a group needs beside the lanes of its partitions, and those too where every instance has all.
pub(super) fn start(running: &Arc<Running>) -> Result<()> {
    let all = if running.shares {
        running.table.len()
    } else {
        0
    };
    (0..all)
        .chain([RETRIES])
        .try_for_each(|lane| running.start_lane(lane))
}

/// Looks after what is pending in the group.
pub(super) fn keeper(
    running: &Arc<Running>,
    group: &Arc<GroupPlan>,
    settings: &ConsumerSettings,
    (target, client_name): (Arc<Target>, String),
) -> Keeper {
    let terms = Terms {
        idle: settings.claim_idle,
        interval: settings.claim_interval,
        ttl: settings.ttl(),
        shares: running.shares,
    };
    Keeper::new(
        running.to_string(),
        Arc::clone(group),
        terms,
        running.claims.fence(),
        (target, client_name),
        Arc::clone(&running.flush_interrupt),
    )
}
