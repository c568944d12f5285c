//! The verdict: a pure function of a snapshot.

use std::{fmt, time::Duration};

use crate::{LaneState, Ownership, Standing};

use super::PartitionStatus;

/// How long a gap is a reason to have a look.
const GAP_SHOWS: Duration = Duration::from_mins(10);

/// How well a process is doing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Status {
    /// Everything works.
    Healthy,
    /// It works, but somebody should have a look.
    Degraded,
    /// It does not do its work.
    Unhealthy,
}

/// The rule that decided a verdict, in the order in which rules are tried.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Rule {
    /// The server cannot be reached, or left a call without an answer within the last 15 s and was not
    /// dialled successfully since. Unhealthy.
    ConnectionDown,
    /// The server refuses to let a partition be read. Unhealthy.
    Refused,
    /// The stored position of a partition lies ahead of a stream that it does not belong to, and a person
    /// has to decide where to go on (`PositionAhead`). Unhealthy.
    PositionAhead,
    /// A process that started later goes by this one's name, and this one handles nothing. Unhealthy.
    Superseded,
    /// This instance could not renew its claims in time and handles nothing until it can. Unhealthy.
    ClaimsLapsed,
    /// A partition has been blocked for longer than `UnhealthyBlockSeconds`. Unhealthy.
    BlockedTooLong,
    /// Every partition was stopped by the error policy. Unhealthy.
    AllPartitionsStopped,
    /// No partition has read anything yet, as for a moment after start. Degraded.
    NotReadingYet,
    /// A partition is blocked. Degraded.
    Blocked,
    /// A partition was stopped by the error policy. Degraded.
    Stopped,
    /// The handler of a partition has not come back for longer than `StalledSeconds`. Degraded.
    Stalled,
    /// Partitions have been nobody's for longer than an interval of renewal. Degraded.
    Unowned,
    /// Two instances take a partition for their own. Degraded.
    Contested,
    /// Messages of a partition went missing before they were read, and that was found in the last 10
    /// minutes. Degraded.
    Gap,
    /// None of the above. Healthy.
    Fine,
}

/// A verdict over everything a process consumes.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Health {
    /// How well it is doing.
    pub status: Status,
    /// The rule that decided.
    pub rule: Rule,
    /// What is the matter, for people: names partitions, durations and reasons. Empty when healthy.
    pub description: String,
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.description.as_str() {
            "" => write!(f, "{:?}", self.status),
            why => write!(f, "{:?} ({:?}): {why}", self.status, self.rule),
        }
    }
}

/// Judges a process by its partitions, by how they are divided between instances, and by what is known of
/// its server: `down` says why it cannot be reached. Partitions that were told to stop do not count. The
/// first rule that applies decides.
pub fn evaluate(
    partitions: &[PartitionStatus],
    ownership: &[Ownership],
    down: Option<&str>,
) -> Health {
    use LaneState::{Ahead, Blocked, Disconnected, Refused, Starting, Stopped};
    let judged = partitions.iter().filter(|p| !p.was_dismissed());
    let partitions: Vec<&PartitionStatus> = judged.collect();
    let first = |state| partitions.iter().copied().find(|p| p.state == state);
    let all = |state| !partitions.is_empty() && partitions.iter().all(|p| p.state == state);
    let verdict = |status, rule, description| Health {
        status,
        rule,
        description,
    };
    let told = |p: &PartitionStatus, what: &str| {
        format!(
            "{p} {what} for {:.1} s: {}",
            p.in_state.as_secs_f64(),
            p.reason
        )
    };
    if let Some(why) = down {
        return verdict(Status::Unhealthy, Rule::ConnectionDown, why.to_owned());
    }
    if let Some(p) = first(Disconnected) {
        return verdict(
            Status::Unhealthy,
            Rule::ConnectionDown,
            told(p, "is cut off"),
        );
    }
    if let Some(p) = first(Refused) {
        return verdict(
            Status::Unhealthy,
            Rule::Refused,
            told(p, "has been refused"),
        );
    }
    if let Some(p) = first(Ahead) {
        return verdict(
            Status::Unhealthy,
            Rule::PositionAhead,
            told(p, "has been waiting"),
        );
    }
    if let Some((rule, what)) = ownership.iter().find_map(without_claims) {
        return verdict(Status::Unhealthy, rule, what);
    }
    let too_long = |p: &&PartitionStatus| p.state == Blocked && p.in_state > p.unhealthy_block;
    if let Some(p) = partitions.iter().copied().find(too_long) {
        let limit = p.unhealthy_block.as_secs();
        let what = format!(
            "{}; UnhealthyBlockSeconds is {limit}",
            told(p, "has been blocked")
        );
        return verdict(Status::Unhealthy, Rule::BlockedTooLong, what);
    }
    if all(Stopped) {
        let what = told(partitions[0], "has been stopped");
        return verdict(Status::Unhealthy, Rule::AllPartitionsStopped, what);
    }
    if all(Starting) {
        let what = "no partition has read anything yet".to_owned();
        return verdict(Status::Degraded, Rule::NotReadingYet, what);
    }
    if let Some(p) = first(Blocked) {
        return verdict(Status::Degraded, Rule::Blocked, told(p, "has been blocked"));
    }
    if let Some(p) = first(Stopped) {
        return verdict(Status::Degraded, Rule::Stopped, told(p, "has been stopped"));
    }
    if let Some(what) = partitions.iter().copied().find_map(stalls) {
        return verdict(Status::Degraded, Rule::Stalled, what);
    }
    if let Some((rule, what)) = ownership.iter().find_map(ill_divided) {
        return verdict(Status::Degraded, rule, what);
    }
    let since_gap = |p: &PartitionStatus| p.since_gap.filter(|t| *t <= GAP_SHOWS);
    let newest = partitions
        .iter()
        .min_by_key(|p| since_gap(p).unwrap_or(Duration::MAX));
    if let Some((p, since)) = newest.and_then(|p| Some((p, since_gap(p)?))) {
        let what = format!(
            "{p} found a gap {:.1} s ago: {} messages are known to be lost since start, in {} gaps",
            since.as_secs_f64(),
            p.lost,
            p.gaps,
        );
        return verdict(Status::Degraded, Rule::Gap, what);
    }
    verdict(Status::Healthy, Rule::Fine, String::new())
}

/// Why an instance may handle nothing at all.
fn without_claims(o: &Ownership) -> Option<(Rule, String)> {
    let of = format!("{}/{}", o.topic, o.consumer);
    match o.standing {
        Standing::Superseded => {
            let me = o.me.as_ref().map_or("its name", |me| &*me.pod);
            let what =
                format!("{of}: another process called {me} has started; this one stands down");
            Some((Rule::Superseded, what))
        }
        Standing::Lapsed => Some((
            Rule::ClaimsLapsed,
            format!("{of}: the claims were not renewed in time"),
        )),
        Standing::Holding | Standing::Joining => None,
    }
}

/// What is wrong with how partitions are divided.
fn ill_divided(o: &Ownership) -> Option<(Rule, String)> {
    let of = format!("{}/{}", o.topic, o.consumer);
    if o.unowned_for > Some(o.unowned_alarm) {
        let what = format!("{of}: partitions {:?} are consumed by nobody", o.unowned());
        return Some((Rule::Unowned, what));
    }
    let (p, by) = o.contested.first()?;
    let what = format!("{of}: {by} takes partition {p} for its own, too");
    Some((Rule::Contested, what))
}

/// That a handler does not come back.
fn stalls(p: &PartitionStatus) -> Option<String> {
    let limit = Some(p.stalled_after).filter(|l| !l.is_zero())?;
    let since = p.handler_for.filter(|since| *since > limit)?;
    Some(format!(
        "{p}: the handler has not come back for {:.1} s; StalledSeconds is {}",
        since.as_secs_f64(),
        limit.as_secs()
    ))
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;
