//! What a run has found, as programs read it; [`text`](super::text) is for people.

use serde::Serialize;
use streamlane::StreamId;

use super::{
    handle::{Handled, Log},
    plan::{BODY_BYTES, KEYS, Name, PARTITIONS, PUBLISHERS, Phase, Plan},
    publish::Timing,
    verify::Verdict,
};

#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) ok: bool,
    pub(crate) server: String,
    pub(crate) topic: String,
    pub(crate) messages: usize,
    pub(crate) body_bytes: usize,
    pub(crate) keys: usize,
    pub(crate) publishers: usize,
    pub(crate) lanes: u32,
    pub(crate) phases: Vec<PhaseFigures>,
    pub(crate) positions: Vec<Position>,
    pub(crate) verdict: Verdict,
    /// From start to end, verification included.
    pub(crate) seconds: f64,
}

#[derive(Debug, Serialize)]
pub(crate) struct PhaseFigures {
    #[serde(rename = "name")]
    pub(super) phase: Phase,
    /// Published, that is: their ids were returned.
    pub(super) messages: u64,
    pub(super) published_per_s: u64,
    /// From the first publish to the last handler call.
    pub(super) handled_per_s: u64,
    /// Of one call: one message, or one batch.
    pub(super) publish: Quantiles,
    /// From just before the call that publishes a message to its handler.
    pub(super) end_to_end: Quantiles,
}

#[expect(
    clippy::struct_field_names,
    reason = "whoever reads the JSON must see the unit"
)]
#[derive(Debug, Serialize)]
pub(super) struct Quantiles {
    pub(super) p50_ns: u64,
    pub(super) p99_ns: u64,
    pub(super) p99_9_ns: u64,
}

/// A partition's position as the server has it.
#[derive(Debug, Serialize)]
pub(crate) struct Position {
    pub(super) partition: usize,
    pub(super) handled: usize,
    pub(super) last_handled: String,
    pub(super) stored: Option<String>,
    pub(super) matches: bool,
}

impl Position {
    /// A partition where nothing was handled is at `0-0`.
    pub(crate) fn of(partition: usize, log: &Log, stored: Option<String>) -> Self {
        let last = log.last().map_or(StreamId::MIN, |h| h.id).to_string();
        Self {
            partition,
            handled: log.len(),
            matches: stored.as_deref() == Some(&*last),
            last_handled: last,
            stored,
        }
    }
}

impl Figures {
    /// Everything but what was found, which is said to be nothing yet.
    pub(crate) fn new(server: String, topic: String, plan: Plan) -> Self {
        Self {
            ok: false,
            server,
            topic,
            messages: plan.messages,
            body_bytes: BODY_BYTES,
            keys: KEYS,
            publishers: PUBLISHERS,
            lanes: PARTITIONS,
            phases: Vec::new(),
            positions: Vec::new(),
            verdict: Verdict::default(),
            seconds: 0.0,
        }
    }
}

impl PhaseFigures {
    /// Nothing when the phase was empty.
    pub(crate) fn of(plan: Plan, phase: Phase, timing: Timing, logs: &[Log]) -> Option<Self> {
        let of_phase = |h: &&Handled| h.name != Name::STRANGER && plan.phase(h.name) == phase;
        let handled: Vec<_> = logs.iter().flatten().filter(of_phase).collect();
        if timing.published == 0 && handled.is_empty() {
            return None;
        }
        let last_ns = handled.iter().map(|h| h.at_ns).max();
        let last_ns = last_ns.unwrap_or(timing.ended_ns);
        let wait = |h: &&Handled| h.at_ns.saturating_sub(h.sent_ns);
        let rate = |n: u64, until_ns: u64| n * 1_000_000_000 / (until_ns - timing.began_ns).max(1);
        Some(Self {
            phase,
            messages: timing.published,
            published_per_s: rate(timing.published, timing.ended_ns),
            handled_per_s: rate(handled.len() as u64, last_ns),
            end_to_end: Quantiles::of(handled.iter().map(wait).collect()),
            publish: Quantiles::of(timing.calls),
        })
    }
}

impl Quantiles {
    /// Exact, from every single value.
    fn of(mut ns: Vec<u64>) -> Self {
        ns.sort_unstable();
        let at = |per_mille: usize| {
            let rank = (ns.len() * per_mille).div_ceil(1000);
            ns.get(rank.saturating_sub(1)).copied().unwrap_or_default()
        };
        Self {
            p50_ns: at(500),
            p99_ns: at(990),
            p99_9_ns: at(999),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let of = |n: u64| {
            let q = Quantiles::of((1..=n).rev().collect());
            [q.p50_ns, q.p99_ns, q.p99_9_ns]
        };
        assert_eq!(of(1), [1, 1, 1]);
        assert_eq!(of(100), [50, 99, 100]);
        assert_eq!(of(1000), [500, 990, 999]);
        assert_eq!(of(0), [0, 0, 0]);
    }

    #[test]
    fn a_position_has_to_be_that_of_the_last_message() {
        let at = |stored: &str| Position::of(0, &Log::new(), Some(stored.into())).matches;
        assert!(at("0-0"));
        assert!(!at("0-1"));
        assert!(!Position::of(0, &Log::new(), None).matches);
    }
}
