//! A running consumer, for those who count.

use std::sync::atomic::Ordering::Relaxed;

use super::running::Running;
use crate::observe::{ConsumerSeen, LaneSeen};

impl Running {
    /// How it is now.
    pub(crate) fn seen(&self) -> ConsumerSeen {
        let lanes = self.lanes.all();
        let totals = self.lanes.totals();
        let (modulo, remainder) = self.share;
        let may_take = |p: &u32| p % modulo.max(1) == remainder;
        ConsumerSeen {
            is_queue: self.group.is_some(),
            lanes: lanes
                .iter()
                .map(|lane| LaneSeen {
                    status: self.status(lane),
                    acked: lane.seat.monitor.acked.load(Relaxed),
                    payload_missing: lane.seat.monitor.payload_missing.load(Relaxed),
                })
                .collect(),
            ownership: self.ownership(),
            eligible: (0..self.table.len()).filter(may_take).count() as u64,
            max_partitions: self.max_partitions,
            max_in_flight: self.max_in_flight,
            filtered: totals.filtered,
            durations: totals.durations,
            sizes: totals.sizes,
            errors: self.meters.errors.look(),
            flush_failures: self.meters.flush_failures.load(Relaxed),
            held_up: self.meters.held_up.look(),
            topic: self.topic.clone(),
            name: self.name.clone(),
        }
    }
}
