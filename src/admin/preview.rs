//! What a reset would do, told before it is done.

use std::fmt;

use crate::{StreamId, clock::RoundTrip};

use super::reset::ResetTo;

/// What a [`Reset`](super::Reset) would do to each partition, as of one moment. Displayed, it is a line
/// for each of them, for people.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct ResetPreview {
    /// The topic.
    pub topic: String,
    /// The consumer that would be moved.
    pub consumer: String,
    /// Where to.
    pub to: ResetTo,
    /// Every partition that is concerned, ascending.
    pub partitions: Vec<PartitionPreview>,
}

/// What a reset would do to one partition.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PartitionPreview {
    /// Its number.
    pub partition: u32,
    /// The stored position; `None` when there is none that can be read.
    pub current: Option<StreamId>,
    /// Where the consumer would begin without a stored position; `None` when it has one.
    pub assumed: Option<StreamId>,
    /// The position it would have: what comes after it is read next.
    pub target: StreamId,
    /// Which way that is.
    pub direction: ResetDirection,
    /// How many entries would be handled again, or never.
    pub entries: u64,
    /// Whether `entries` are all of them; otherwise there are at least so many.
    pub exact: bool,
    /// The first entry that is still there.
    pub oldest: Option<StreamId>,
    /// The last entry that is there.
    pub newest: Option<StreamId>,
    /// How many entries there are.
    pub length: u64,
    /// Whether entries that would be read from there on may be gone: the target lies before the oldest
    /// entry, and some were trimmed or deleted.
    pub trimmed_away: bool,
    /// Of a consumer that is a group: how many entries its members were given and have not acknowledged. A reset
    /// has to be told what to do with them: [`Reset::pending`](super::Reset::pending).
    pub pending: Option<u64>,
    /// Who holds a claim on the partition, or is a member of the group, as `<instance>|<pod>`: without
    /// [`force`](super::Reset::force) it is not reset.
    pub owner: Option<String>,
}

/// Which way a reset goes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ResetDirection {
    /// The position stays where it is.
    None,
    /// Back: messages are handled again.
    Rewind,
    /// Forward: messages are never handled.
    Skip,
}

impl ResetDirection {
    pub(super) fn from_to(baseline: StreamId, target: StreamId) -> Self {
        match target.cmp(&baseline) {
            std::cmp::Ordering::Less => Self::Rewind,
            std::cmp::Ordering::Equal => Self::None,
            std::cmp::Ordering::Greater => Self::Skip,
        }
    }
}

impl ResetPreview {
    /// How many entries would be handled again, in all; at least so many where a partition is not exact.
    pub fn total_to_reprocess(&self) -> u64 {
        self.total(ResetDirection::Rewind)
    }

    /// How many entries would never be handled, in all; at least so many where a partition is not exact.
    pub fn total_to_skip(&self) -> u64 {
        self.total(ResetDirection::Skip)
    }

    /// Whether entries may be missing from what would be read, in any partition.
    pub fn any_trimmed_away(&self) -> bool {
        self.partitions.iter().any(|p| p.trimmed_away)
    }

    fn total(&self, direction: ResetDirection) -> u64 {
        let those = self.partitions.iter().filter(|p| p.direction == direction);
        those.map(|p| p.entries).sum()
    }
}

impl fmt::Display for ResetPreview {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reset {} / {}", self.topic, self.consumer)?;
        if let ResetTo::Date(moment) = self.to {
            write!(f, "  from {}", RoundTrip(moment))?;
        }
        for p in &self.partitions {
            write!(f, "\n{p}")?;
        }
        for p in &self.partitions {
            if let Some(owner) = &p.owner {
                let n = p.partition;
                write!(f, "\nWarning: partition {n} has a live owner, {owner}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for PartitionPreview {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  p{}  current ", self.partition)?;
        match (self.current, self.assumed) {
            (Some(id), _) => write!(f, "{id}")?,
            (None, Some(id)) => write!(f, "(none, assuming {id})")?,
            (None, None) => f.write_str("(none)")?,
        }
        let direction = match self.direction {
            ResetDirection::None => "none",
            ResetDirection::Rewind => "rewind",
            ResetDirection::Skip => "skip",
        };
        let at_least = if self.exact { "" } else { "≥" };
        let (target, entries, length) = (self.target, self.entries, self.length);
        write!(
            f,
            " -> {target}  {direction} {at_least}{entries} of {length}  oldest "
        )?;
        match self.oldest {
            Some(id) => write!(f, "{id}")?,
            None => f.write_str("(empty)")?,
        }
        if let Some(pending) = self.pending {
            write!(f, "  pending {pending}")?;
        }
        if self.trimmed_away {
            f.write_str(
                "  (the start asked for is older than the oldest entry left: that data is gone)",
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::parse_moment;

    #[test]
    fn a_preview_reads_line_by_line() {
        let id = |ms| StreamId::new(ms, 0);
        let first = PartitionPreview {
            partition: 0,
            current: Some(id(90)),
            assumed: None,
            target: id(30),
            direction: ResetDirection::from_to(id(90), id(30)),
            entries: 250_000,
            exact: false,
            oldest: Some(id(40)),
            newest: Some(id(90)),
            length: 400_000,
            trimmed_away: true,
            pending: None,
            owner: Some("1b3a|svc-0".into()),
        };
        let second = PartitionPreview {
            partition: 1,
            current: None,
            assumed: Some(StreamId::MIN),
            direction: ResetDirection::from_to(StreamId::MIN, id(30)),
            entries: 2,
            exact: true,
            trimmed_away: false,
            owner: None,
            ..first.clone()
        };
        let third = PartitionPreview {
            partition: 2,
            current: Some(id(30)),
            assumed: None,
            direction: ResetDirection::from_to(id(30), id(30)),
            entries: 0,
            oldest: None,
            length: 0,
            pending: Some(5),
            ..second.clone()
        };
        let preview = ResetPreview {
            topic: "orders".into(),
            consumer: "billing".into(),
            to: ResetTo::Date(parse_moment("2026-01-31T08:00:00Z").unwrap()),
            partitions: vec![first, second, third],
        };
        assert_eq!(
            preview.to_string(),
            "reset orders / billing  from 2026-01-31T08:00:00.0000000+00:00\n\
             \x20 p0  current 90-0 -> 30-0  rewind ≥250000 of 400000  oldest 40-0  (the start asked for is \
             older than the oldest entry left: that data is gone)\n\
             \x20 p1  current (none, assuming 0-0) -> 30-0  skip 2 of 400000  oldest 40-0\n\
             \x20 p2  current 30-0 -> 30-0  none 0 of 0  oldest (empty)  pending 5\n\
             Warning: partition 0 has a live owner, 1b3a|svc-0"
        );
        assert_eq!(preview.total_to_reprocess(), 250_000);
        assert_eq!(
            (preview.total_to_skip(), preview.any_trimmed_away()),
            (2, true)
        );
    }
}
