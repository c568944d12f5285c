//! What a run has found, for people (`Display`) and for programs (`Serialize`).

use std::{fmt, time::Duration};

use serde::Serialize;
use streamlane::StreamId;

use super::{
    handle::{Handled, Log},
    plan::{BATCH, BODY_BYTES, KEYS, PARTITIONS, PUBLISHERS, Phase, Plan},
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
    name: &'static str,
    messages: usize,
    published_per_s: u64,
    /// From the first publish to the last handler call.
    handled_per_s: u64,
    /// Of one call: one message, or one batch.
    publish: Quantiles,
    /// From just before the call that publishes a message to its handler.
    end_to_end: Quantiles,
}

#[expect(
    clippy::struct_field_names,
    reason = "whoever reads the JSON must see the unit"
)]
#[derive(Debug, Serialize)]
struct Quantiles {
    p50_ns: u64,
    p99_ns: u64,
    p99_9_ns: u64,
}

/// A partition's position as the server has it.
#[derive(Debug, Serialize)]
pub(crate) struct Position {
    partition: usize,
    handled: usize,
    last_handled: StoredId,
    stored: Option<String>,
    matches: bool,
}

/// An id as it is written in Redis.
#[derive(Debug)]
struct StoredId(StreamId);

impl Serialize for StoredId {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&self.0)
    }
}

impl Position {
    /// A partition where nothing was handled is at `0-0`.
    pub(crate) fn of(partition: usize, log: &Log, stored: Option<String>) -> Self {
        let last = log.last().map_or(StreamId::MIN, |h| h.id);
        Self {
            partition,
            handled: log.len(),
            matches: stored.as_deref() == Some(&*last.to_string()),
            last_handled: StoredId(last),
            stored,
        }
    }

    pub(crate) fn matches(&self) -> bool {
        self.matches
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
        let messages: usize = (0..PUBLISHERS).map(|p| plan.part(p, phase).len()).sum();
        let handled = || {
            logs.iter()
                .flatten()
                .filter(|h| plan.phase(h.name) == phase)
        };
        let last_ns = handled().map(|h| h.at_ns).max()?;
        let waits = handled().map(|h: &Handled| h.at_ns - h.sent_ns);
        let rate =
            |until_ns: u64| messages as u64 * 1_000_000_000 / (until_ns - timing.began_ns).max(1);
        Some(Self {
            name: match phase {
                Phase::Single => "one at a time",
                Phase::Batches => "in batches",
            },
            messages,
            published_per_s: rate(timing.ended_ns),
            handled_per_s: rate(last_ns),
            end_to_end: Quantiles::of(waits.collect()),
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

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            keys,
            body_bytes,
            publishers,
            lanes,
            verdict: v,
            ..
        } = self;
        let messages = grouped(self.messages as u64);
        writeln!(f, "{messages} messages of {body_bytes} bytes, {keys} keys")?;
        writeln!(f, "{publishers} publishing threads, {lanes} lanes")?;
        writeln!(f, "server: {}", self.server)?;
        writeln!(f, "topic:  {}\n", self.topic)?;

        writeln!(
            f,
            "{:26}{:>12}{:>15}{:>15}",
            "", "messages", "published/s", "handled/s"
        )?;
        for p in &self.phases {
            let [n, published, handled] =
                [p.messages as u64, p.published_per_s, p.handled_per_s].map(grouped);
            write!(f, "  {:24}{:>12}", p.name, n)?;
            writeln!(f, "{published:>15}{handled:>15}")?;
        }

        let size = format!("publish, a batch of {BATCH}");
        writeln!(
            f,
            "\n{:26}{:>12}{:>15}{:>15}",
            "latency", "p50", "p99", "p99.9"
        )?;
        for p in &self.phases {
            let single = p.name == "one at a time";
            let call = if single {
                "publish, one at a time"
            } else {
                &size
            };
            let way = if single {
                "to handler, one at a time"
            } else {
                "to handler, batches *"
            };
            row(f, call, &p.publish)?;
            row(f, way, &p.end_to_end)?;
        }
        writeln!(
            f,
            "  * includes waiting behind messages published before it\n"
        )?;

        writeln!(
            f,
            "partition{:>10}   {:25}stored position",
            "handled", "last handled"
        )?;
        for p in &self.positions {
            let stored = p.stored.as_deref().unwrap_or("none");
            let mark = if p.matches { "" } else { "  DIFFERS" };
            let last = p.last_handled.0.to_string();
            let handled = grouped(p.handled as u64);
            writeln!(
                f,
                "{:>9}{handled:>10}   {last:25}{stored}{mark}",
                p.partition
            )?;
        }

        let Verdict {
            lost,
            doubled,
            reordered,
            strangers,
            unpublished,
            ..
        } = v;
        let (published, handled) = (grouped(v.published as u64), grouped(v.handled as u64));
        writeln!(
            f,
            "\npublished {published}, handled {handled}, compared id by id:"
        )?;
        write!(f, "lost {lost}, doubled {doubled}, reordered {reordered}, ")?;
        writeln!(f, "strangers {strangers}, not published {unpublished}")?;
        for example in &v.examples {
            writeln!(f, "  {example}")?;
        }
        if self.ok {
            write!(
                f,
                "OK: each message was handled exactly once, in order per key"
            )?;
        } else {
            write!(f, "FAILED")?;
        }
        writeln!(f, " ({:.1} s)", self.seconds)
    }
}

fn row(f: &mut fmt::Formatter<'_>, what: &str, q: &Quantiles) -> fmt::Result {
    let [p50, p99, p99_9] = [q.p50_ns, q.p99_ns, q.p99_9_ns].map(time);
    writeln!(f, "  {what:25}{p50:>11}{p99:>15}{p99_9:>15}")
}

/// A duration with a unit that suits.
fn time(ns: u64) -> String {
    format!("{:.1?}", Duration::from_nanos(ns))
}

/// A number with commas between thousands.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
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
    fn numbers_are_written_for_people() {
        for (n, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (100_000, "100,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(grouped(n), text);
        }
        for (ns, text) in [
            (312, "312.0ns"),
            (42_130, "42.1µs"),
            (999_940, "999.9µs"),
            (2_000_000, "2.0ms"),
            (1_500_000_000, "1.5s"),
        ] {
            assert_eq!(time(ns), text);
        }
    }

    #[test]
    fn a_position_has_to_be_that_of_the_last_message() {
        let at = |stored: &str| Position::of(0, &Log::new(), Some(stored.into())).matches();
        assert!(at("0-0"));
        assert!(!at("0-1"));
        assert!(!Position::of(0, &Log::new(), None).matches());
    }
}
