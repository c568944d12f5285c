//! What the checker found.

use std::{fmt, sync::Arc, time::Duration};

use super::check::Rules;

/// How many events of each kind there were.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// [`Kind::Published`](super::Kind::Published).
    pub published: u64,
    /// [`Kind::Unknown`](super::Kind::Unknown).
    pub unknown: u64,
    /// [`Kind::Started`](super::Kind::Started).
    pub started: u64,
    /// [`Kind::Handled`](super::Kind::Handled).
    pub handled: u64,
    /// [`Kind::Skipped`](super::Kind::Skipped).
    pub skipped: u64,
    /// [`Kind::Parked`](super::Kind::Parked).
    pub parked: u64,
    /// [`Kind::Lost`](super::Kind::Lost).
    pub lost: u64,
    /// [`Kind::Killed`](super::Kind::Killed).
    pub killed: u64,
    /// How many of the unknown turned out to exist.
    pub unknown_handled: u64,
}

/// Which message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The topic.
    pub topic: Arc<str>,
    /// The partition.
    pub partition: u32,
    /// The entry id: milliseconds and sequence.
    pub id: (u64, u64),
    /// The partition key.
    pub key: Arc<[u8]>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (topic, partition, (ms, seq)) = (&self.topic, self.partition, self.id);
        write!(
            f,
            "{topic}/{partition} {ms}-{seq} key {:?}",
            String::from_utf8_lossy(&self.key)
        )
    }
}

/// Who handled it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The instance.
    pub instance: Arc<str>,
    /// Its epoch for the partition.
    pub epoch: u64,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} epoch {}", self.instance, self.epoch)
    }
}

/// A message handled again. Handled `n` times makes `n - 1` doubles, each against the first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Double {
    /// Which message.
    pub place: Place,
    /// Who handled it first.
    pub first_by: Owner,
    /// When.
    pub first_ns: u64,
    /// Who handled it again.
    pub again_by: Owner,
    /// When.
    pub again_ns: u64,
    /// How long the first handler had to make its progress durable: until it was killed, when the log
    /// says so, else until the message was handled again. After a crash this must not be longer than
    /// the interval in which positions are stored.
    pub exposure: Duration,
}

impl fmt::Display for Double {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let after = Duration::from_nanos(self.again_ns - self.first_ns);
        write!(
            f,
            "{}: by {}, and {after:?} later by {} (exposed for {:?})",
            self.place, self.first_by, self.again_by, self.exposure
        )
    }
}

/// Messages of one key whose *first* handlings are in another order than their ids. Handling a message
/// again, out of place or not, is a [`Double`] and never a reorder. Skipped and parked messages have no
/// place in the order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reorder {
    /// The message that was handled too early.
    pub place: Place,
    /// The message with a smaller id that was handled after it.
    pub overtaken: (u64, u64),
    /// How long before that one it was handled.
    pub by: Duration,
}

impl fmt::Display for Reorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ms, seq) = self.overtaken;
        write!(f, "{}: handled {:?} before {ms}-{seq}", self.place, self.by)
    }
}

/// An owner that handled something after a newer owner had begun. Judged by [`Kind::Started`] on a
/// partition where there is any, else by [`Kind::Handled`].
///
/// [`Kind::Started`]: super::Kind::Started
/// [`Kind::Handled`]: super::Kind::Handled
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Overlap {
    /// The topic.
    pub topic: Arc<str>,
    /// The partition.
    pub partition: u32,
    /// Who should have stopped.
    pub older: Owner,
    /// Who had begun: of several newer ones, the first.
    pub newer: Owner,
    /// From the newer one's first event to the older one's last.
    pub by: Duration,
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}/{}: {} still at work {:?} after {} had begun",
            self.topic, self.partition, self.older, self.by, self.newer
        )
    }
}

/// What a [`Checker`](super::Checker) found. Displayed, it is a summary with up to ten findings of each
/// sort.
#[derive(Clone, Default, Debug)]
pub struct Report {
    /// How many events there were.
    pub counts: Counts,
    /// How many lines were left unfinished by processes that died.
    pub torn: u64,
    /// Published, and then neither handled, skipped, parked nor reported lost.
    pub losses: Vec<Place>,
    /// Handled, and never published as far as the log knows. An entry that was handled under another key
    /// than its own shows up here, and as a loss.
    pub strangers: Vec<Place>,
    /// Handled more than once.
    pub doubles: Vec<Double>,
    /// Handled in the wrong order.
    pub reorders: Vec<Reorder>,
    /// Handled by two owners at a time.
    pub overlaps: Vec<Overlap>,
    pub(super) rules: Rules,
}

impl Report {
    /// The doubles whose [`exposure`](Double::exposure) is longer than this.
    pub fn doubles_beyond(&self, window: Duration) -> impl Iterator<Item = &Double> {
        self.doubles.iter().filter(move |d| d.exposure > window)
    }

    /// How many findings are faults under the rules.
    pub fn faults(&self) -> usize {
        let rules = &self.rules;
        let doubles = if rules.doubles.is_zero() {
            self.doubles.len()
        } else {
            self.doubles_beyond(rules.doubles).count()
        };
        let count = |counts: bool, n: usize| if counts { n } else { 0 };
        self.losses.len()
            + doubles
            + count(rules.closed, self.strangers.len())
            + count(rules.ordered, self.reorders.len())
            + count(rules.exclusive, self.overlaps.len())
    }

    /// Whether there is no fault.
    pub fn is_clean(&self) -> bool {
        self.faults() == 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.counts;
        writeln!(
            f,
            "published {} (and {} of {} unknown), handled {}, skipped {}, parked {}, reported lost {}; \
             started {}, kills {}, torn lines {}",
            c.published,
            c.unknown_handled,
            c.unknown,
            c.handled,
            c.skipped,
            c.parked,
            c.lost,
            c.started,
            c.killed,
            self.torn
        )?;
        let rules = &self.rules;
        section(f, "lost", &self.losses, true)?;
        section(f, "never published", &self.strangers, rules.closed)?;
        if rules.doubles.is_zero() {
            section(f, "doubled", &self.doubles, true)?;
        } else {
            let beyond: Vec<_> = self.doubles_beyond(rules.doubles).collect();
            let name = format!("doubled beyond {:?}", rules.doubles);
            section(f, &name, &beyond, true)?;
            writeln!(
                f,
                "doubled within it: {}",
                self.doubles.len() - beyond.len()
            )?;
        }
        section(f, "reordered", &self.reorders, rules.ordered)?;
        section(f, "overlapping", &self.overlaps, rules.exclusive)?;
        match self.faults() {
            0 => writeln!(f, "clean"),
            n => writeln!(f, "FAULTS: {n}"),
        }
    }
}

fn section<T: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    findings: &[T],
    is_fault: bool,
) -> fmt::Result {
    const SHOWN: usize = 10;
    let note = if is_fault { "" } else { " (allowed)" };
    writeln!(f, "{name}{note}: {}", findings.len())?;
    for finding in findings.iter().take(SHOWN) {
        writeln!(f, "  {finding}")?;
    }
    match findings.len().saturating_sub(SHOWN) {
        0 => Ok(()),
        more => writeln!(f, "  and {more} more"),
    }
}
