//! One look at one partition, and the trimming that follows from it.

use std::{collections::BTreeSet, time::Duration};

use redis::Value;

use crate::{
    Result, StreamId, TopicSettings, Trim, TrimReason,
    net::Connection,
    queue::{How, Leave, Reader, Standing, lowest, readers, trim},
    trims::PartitionTrims,
    wire::Keys,
};

use super::clamp::{Sight, Terms, Verdict, decide};

/// Who is waited for while it is not known whether services that write no register read the topic.
const UNKNOWN: &str = "(others that may read it are still looked for)";

/// How a topic is trimmed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    pub(crate) age: Duration,
    pub(crate) terms: Terms,
    pub(crate) exact: bool,
}

impl Policy {
    /// `None` where messages of any age are kept.
    pub(crate) fn of(settings: &TopicSettings) -> Option<Self> {
        Some(Self {
            age: settings.retention?,
            terms: Terms {
                max_len: settings.max_len,
                threshold: settings.clamp_release_threshold,
            },
            exact: settings.trim == Trim::Exact,
        })
    }

    /// What lies before the answer is too old at this moment of the server's.
    pub(crate) fn cutoff(&self, server_ms: u64) -> StreamId {
        let age = u64::try_from(self.age.as_millis()).unwrap_or(u64::MAX);
        StreamId::new(server_ms.saturating_sub(age), 0)
    }
}

/// A partition to be looked at.
pub(crate) struct Place<'a> {
    pub(crate) keys: &'a Keys,
    pub(crate) topic: &'a str,
    pub(crate) partition: u32,
    pub(crate) stream: &'a [u8],
}

/// Who reads a topic without having written it down.
#[derive(Clone, Copy)]
pub(crate) struct Strangers<'a> {
    pub(crate) names: &'a BTreeSet<String>,
    /// Whether these are all.
    pub(crate) complete: bool,
}

/// What a sweep found of a partition and did to it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PartitionSweep {
    /// The partition.
    pub partition: u32,
    /// What lies before this is too old.
    pub cutoff: StreamId,
    /// How many messages were deleted.
    pub trimmed: u64,
    /// How many of these a consumer had yet to read.
    pub unread: u64,
    /// How many are left.
    pub length: u64,
    /// Up to where every consumer has finished; `None` where nobody keeps positions or groups.
    pub finished: Option<StreamId>,
    /// Who had too old messages yet to read, the slowest: empty when nobody had.
    pub held_by: Vec<String>,
    /// Whether nobody was waited for any more, since too much was held.
    pub released: bool,
}

/// Everybody who has a say in how far a partition is trimmed.
pub(crate) fn everybody(
    connection: &mut Connection,
    place: &Place<'_>,
    strangers: Strangers<'_>,
    timeout: Duration,
) -> Result<Vec<Reader>> {
    let of = (place.topic, place.partition, place.stream);
    let mut all = readers(connection, place.keys, of, strangers.names, timeout)?;
    if !strangers.complete {
        all.push(Reader {
            name: UNKNOWN.into(),
            standing: Standing::NoPosition,
        });
    }
    Ok(all)
}

/// A stream that is being trimmed.
pub(crate) struct Cut<'a> {
    pub(crate) connection: &'a mut Connection,
    pub(crate) stream: &'a [u8],
    pub(crate) counts: &'a PartitionTrims,
    /// How long one question may take.
    pub(crate) timeout: Duration,
    /// Asked between two steps: whether there may be another.
    pub(crate) goes_on: &'a mut dyn FnMut() -> bool,
    /// How many were deleted.
    pub(crate) trimmed: u64,
}

impl Cut<'_> {
    pub(crate) fn to(&mut self, leave: Leave, exact: bool, reason: TrimReason) -> Result<u64> {
        let timeout = self.timeout;
        let how = How { exact, timeout };
        let n = trim(self.connection, self.stream, leave, how, self.goes_on)?;
        self.counts.add(reason, n);
        self.trimmed += n;
        Ok(n)
    }

    fn length(&mut self) -> Result<u64> {
        length(self.connection, self.stream, self.timeout)
    }
}

/// Looks at a partition and trims it. After an error some may have been deleted.
pub(crate) fn sweep(
    mut cut: Cut<'_>,
    place: &Place<'_>,
    (policy, cutoff): (&Policy, StreamId),
    strangers: Strangers<'_>,
) -> Result<PartitionSweep> {
    let readers = everybody(cut.connection, place, strangers, cut.timeout)?;
    let lowest = lowest(&readers);
    let low = lowest.as_ref().map(|(low, _)| *low);
    let mut sight = Sight {
        cutoff,
        length: 0,
        low,
        unread: false,
    };
    let (exact, mut unread) = (policy.exact, 0);
    let mut verdict = Verdict::Free;
    if let Some(low) = low.filter(|low| *low < cutoff) {
        let between = (low, cutoff);
        sight.unread = is_any_between(cut.connection, cut.stream, between, cut.timeout)?;
        if sight.unread {
            // What everybody has finished goes in any case, but for the last of it.
            cut.to(Leave::From(low), exact, TrimReason::MinId)?;
            sight.length = cut.length()?;
            verdict = decide(&sight, &policy.terms);
        }
        if matches!(verdict, Verdict::Released(_)) {
            // From here on everything that goes is unread.
            cut.to(Leave::From(low.next()), true, TrimReason::MinId)?;
            sight.length = cut.length()?;
            verdict = decide(&sight, &policy.terms);
        }
    }
    match verdict {
        Verdict::Held => {}
        Verdict::Free => {
            cut.to(Leave::From(cutoff), exact, TrimReason::Age)?;
        }
        Verdict::Released(target) => {
            unread += cut.to(Leave::From(cutoff), exact, TrimReason::Age)?;
            if let Some(target) = target {
                unread += cut.to(Leave::Newest(target), exact, TrimReason::MaxLen)?;
            }
            cut.counts.add_unread(unread);
        }
    }
    let holders = lowest.filter(|_| verdict != Verdict::Free);
    let holders = holders.map_or(Vec::new(), |(_, names)| names);
    Ok(PartitionSweep {
        partition: place.partition,
        cutoff,
        length: cut.length()?,
        trimmed: cut.trimmed,
        unread,
        finished: low,
        held_by: holders.into_iter().map(String::from).collect(),
        released: matches!(verdict, Verdict::Released(_)),
    })
}

/// How many entries a stream has.
fn length(connection: &mut Connection, stream: &[u8], timeout: Duration) -> Result<u64> {
    let mut cmd = redis::cmd("XLEN");
    cmd.arg(stream);
    connection.ask(&cmd, timeout)
}

/// Whether there is an entry after `after` and before `before`.
pub(crate) fn is_any_between(
    connection: &mut Connection,
    stream: &[u8],
    (after, before): (StreamId, StreamId),
    timeout: Duration,
) -> Result<bool> {
    let mut cmd = redis::cmd("XRANGE");
    cmd.arg(stream).arg(after.next().to_string());
    cmd.arg(before.before().to_string()).arg("COUNT").arg(1);
    let found: Vec<Value> = connection.ask(&cmd, timeout)?;
    Ok(!found.is_empty())
}
