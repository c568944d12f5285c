//! Figures as people read them, in less than 80 columns.

use std::{
    fmt::{self, Formatter},
    time::Duration,
};

use super::{
    figures::{Figures, Quantiles},
    plan::{BATCH, Phase},
    verify::Verdict,
};

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (messages, bytes, keys) = (grouped(self.messages as u64), self.body_bytes, self.keys);
        writeln!(f, "{messages} messages of {bytes} bytes, {keys} keys")?;
        let (threads, lanes) = (self.publishers, self.lanes);
        writeln!(f, "{threads} publishing threads, {lanes} lanes")?;
        writeln!(f, "server: {}", self.server)?;
        writeln!(f, "topic:  {}", self.topic)?;
        self.rates(f)?;
        self.latencies(f)?;
        self.stored(f)?;
        self.found(f)
    }
}

impl Figures {
    fn rates(&self, f: &mut Formatter<'_>) -> fmt::Result {
        head(f, "", ["messages", "published/s", "handled/s"])?;
        for p in &self.phases {
            let name = match p.phase {
                Phase::Single => "one at a time",
                Phase::Batches => "in batches",
            };
            let numbers = [p.messages, p.published_per_s, p.handled_per_s].map(grouped);
            row(f, name, numbers)?;
        }
        Ok(())
    }

    fn latencies(&self, f: &mut Formatter<'_>) -> fmt::Result {
        head(f, "latency", ["p50", "p99", "p99.9"])?;
        for p in &self.phases {
            let (call, way) = match p.phase {
                Phase::Single => ("publish, one at a time".into(), "to handler, one at a time"),
                Phase::Batches => (
                    format!("publish, a batch of {BATCH}"),
                    "to handler, batches *",
                ),
            };
            let times = |q: &Quantiles| [q.p50_ns, q.p99_ns, q.p99_9_ns].map(time);
            row(f, &call, times(&p.publish))?;
            row(f, way, times(&p.end_to_end))?;
        }
        if self.phases.iter().any(|p| p.phase == Phase::Batches) {
            writeln!(f, "  * includes waiting behind what was published before")?;
        }
        Ok(())
    }

    fn stored(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (handled, last, stored) = ("handled", "last handled", "stored position");
        writeln!(f, "\npartition  {handled:>10}   {last:22}{stored}")?;
        for p in &self.positions {
            let (partition, handled) = (p.partition, grouped(p.handled as u64));
            let last = &p.last_handled;
            let stored = p.stored.as_deref().unwrap_or("none");
            let mark = if p.matches { "" } else { "  DIFFERS" };
            writeln!(f, "{partition:>9}  {handled:>10}   {last:22}{stored}{mark}")?;
        }
        Ok(())
    }

    fn found(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Verdict {
            lost,
            doubled,
            reordered,
            strangers,
            unpublished,
            ..
        } = self.verdict;
        let [published, handled] =
            [self.verdict.published, self.verdict.handled].map(|n| grouped(n as u64));
        writeln!(
            f,
            "\npublished {published}, handled {handled}, compared id by id:"
        )?;
        write!(f, "lost {lost}, doubled {doubled}, reordered {reordered}, ")?;
        writeln!(f, "strangers {strangers}, not published {unpublished}")?;
        for example in &self.verdict.examples {
            writeln!(f, "  {example}")?;
        }
        let verdict = if self.ok {
            "OK: each message was handled exactly once, in order per key"
        } else {
            "FAILED"
        };
        writeln!(f, "{verdict} ({:.1} s)", self.seconds)
    }
}

fn head(f: &mut Formatter<'_>, what: &str, [a, b, c]: [&str; 3]) -> fmt::Result {
    writeln!(f, "\n{what:27}{a:>12}{b:>15}{c:>15}")
}

fn row(f: &mut Formatter<'_>, what: &str, [a, b, c]: [String; 3]) -> fmt::Result {
    writeln!(f, "  {what:25}{a:>12}{b:>15}{c:>15}")
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
            (2_000_000, "2.0ms"),
            (1_500_000_000, "1.5s"),
        ] {
            assert_eq!(time(ns), text);
        }
    }
}
