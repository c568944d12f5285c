//! A running consumer, for those who count.

use std::sync::atomic::Ordering::Relaxed;

use super::running::Running;
#[cfg(feature = "http")]
use crate::observe::Life;
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

    /// What is known of its threads. Where the consumer ends they may.
    #[cfg(feature = "http")]
    pub(crate) fn lives(&self) -> Vec<Life> {
        let lanes = self.lanes.all();
        let mut lives: Vec<Life> = lanes
            .iter()
            .map(|lane| {
                // first: what it says last it says before it ends
                let has_ended = lane.has_ended();
                let status = self.status(lane);
                Life {
                    name: status.to_string(),
                    has_ended,
                    state: Some(status.state),
                    handler_for: status.handler_for,
                    stalled_after: status.stalled_after,
                }
            })
            .collect();
        for (thread, ended) in [("positions", &self.flusher), ("leases", &self.claiming)] {
            let ended = ended.get().is_some_and(|e| e.by(crate::clock::now()));
            lives.push(Life {
                name: format!("{self}: {thread}"),
                has_ended: ended && self.lanes.outfit().is_some(),
                state: None,
                handler_for: None,
                stalled_after: std::time::Duration::ZERO,
            });
        }
        lives
    }
}
