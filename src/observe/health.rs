//! The verdict: a pure function of a snapshot.

use std::{fmt, sync::Arc, time::Duration};

use crate::{LaneState, Ownership, Snapshot, Standing, consume};

/// One partition of one consumer, as it is right now.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PartitionStatus {
    /// The topic.
    pub topic: Arc<str>,
    /// The consumer's name.
    pub consumer: Arc<str>,
    /// The partition, or [`RETRIES`](Self::RETRIES).
    pub partition: u32,
    /// What its lane is doing.
    pub state: LaneState,
    /// Why. Empty while it runs, and when it was told to pause or to stop.
    pub reason: String,
    /// For how long it has been in this state.
    pub in_state: Duration,
    /// Up to where it is finished.
    pub position: Snapshot,
    /// Messages handled successfully since start.
    pub handled: u64,
    /// Messages stepped over since start, after a failure under `OnError: BestEffort`.
    pub skipped: u64,
    /// Messages that became dead letters since start; see [`Admin::dead_letters`](crate::Admin::dead_letters).
    pub parked: u64,
    /// In the queue modes: messages that were put aside since start, to be handed over again later.
    pub retried: u64,
    /// In the queue modes: messages that were finished here when another member had taken them over: they were
    /// handled twice.
    pub late: u64,
    /// In the queue modes: messages that were given to a member and are not acknowledged, whichever member that
    /// is, when that was last looked at.
    pub pending: Option<u64>,
    /// Failed handler calls since start, each retry of a blocked message included.
    pub failures: u64,
    /// Entries that the consumer's filter left out since start.
    pub filtered: u64,
    /// Connections made since start.
    pub connects: u64,
    /// Gaps found since start: messages that went missing before they were read.
    pub gaps: u64,
    /// Messages known to be missing in those gaps.
    pub lost: u64,
    /// How often messages were gone and nobody could tell how many of them had not been read, or whether
    /// any. Not part of `lost`.
    pub untold_gaps: u64,
    /// How long ago the last gap was found.
    pub since_gap: Option<Duration>,
    /// For how long the handler call that runs has been running.
    pub handler_for: Option<Duration>,
    /// From when on a handler that does not come back is stalled (`StalledSeconds`); zero: never.
    pub stalled_after: Duration,
    /// From when on a blocked partition is unhealthy (`UnhealthyBlockSeconds`).
    pub unhealthy_block: Duration,
}

impl PartitionStatus {
    /// The number in the place of a partition's where a [queue](crate::Delivery) reads what it hands over once
    /// more: that has a lane of its own, with messages of all partitions.
    pub const RETRIES: u32 = consume::RETRIES;

    /// Whether it ended because it was told to: that is nothing to worry about.
    fn was_dismissed(&self) -> bool {
        self.state == LaneState::Stopped && self.reason.is_empty()
    }
}

impl fmt::Display for PartitionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (topic, consumer) = (&self.topic, &self.consumer);
        match self.partition {
            Self::RETRIES => write!(f, "{topic}[retries]/{consumer}"),
            partition => write!(f, "{topic}[{partition}]/{consumer}"),
        }
    }
}

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
mod tests {
    use super::*;
    use crate::StreamId;

    fn partition(state: LaneState, seconds: u64) -> PartitionStatus {
        PartitionStatus {
            topic: "orders".into(),
            consumer: "billing".into(),
            partition: 3,
            state,
            reason: "why".into(),
            in_state: Duration::from_secs(seconds),
            position: Snapshot {
                id: StreamId::MIN,
                ordinal: None,
                version: 0,
            },
            handled: 0,
            skipped: 0,
            parked: 0,
            retried: 0,
            late: 0,
            pending: None,
            failures: 0,
            filtered: 0,
            connects: 1,
            gaps: 0,
            lost: 0,
            untold_gaps: 0,
            since_gap: None,
            handler_for: None,
            stalled_after: Duration::from_mins(5),
            unhealthy_block: Duration::from_mins(5),
        }
    }

    #[test]
    fn the_first_rule_that_applies_decides() {
        use LaneState::{
            Ahead, Blocked, Disconnected, Paused, Refused, Running, Starting, Stopped,
        };
        use Status::{Degraded, Healthy, Unhealthy};
        type Row<'a> = (&'a [(LaneState, u64)], Option<&'a str>, Status, Rule);
        let table: &[Row<'_>] = &[
            (&[], None, Healthy, Rule::Fine),
            (&[], Some("refused"), Unhealthy, Rule::ConnectionDown),
            (&[(Running, 9)], None, Healthy, Rule::Fine),
            (
                &[(Running, 9)],
                Some("refused"),
                Unhealthy,
                Rule::ConnectionDown,
            ),
            (&[(Running, 9), (Paused, 99_999)], None, Healthy, Rule::Fine),
            (&[(Paused, 99_999)], None, Healthy, Rule::Fine),
            (
                &[(Running, 1), (Disconnected, 0)],
                None,
                Unhealthy,
                Rule::ConnectionDown,
            ),
            (
                &[(Refused, 1), (Disconnected, 0)],
                None,
                Unhealthy,
                Rule::ConnectionDown,
            ),
            (
                &[(Running, 1), (Refused, 0)],
                None,
                Unhealthy,
                Rule::Refused,
            ),
            (
                &[(Blocked, 301), (Refused, 0)],
                None,
                Unhealthy,
                Rule::Refused,
            ),
            (
                &[(Running, 1), (Blocked, 301)],
                None,
                Unhealthy,
                Rule::BlockedTooLong,
            ),
            (
                &[(Blocked, 1), (Blocked, 301)],
                None,
                Unhealthy,
                Rule::BlockedTooLong,
            ),
            (
                &[(Running, 1), (Blocked, 300)],
                None,
                Degraded,
                Rule::Blocked,
            ),
            (&[(Stopped, 1), (Blocked, 1)], None, Degraded, Rule::Blocked),
            (
                &[(Stopped, 1), (Stopped, 1)],
                None,
                Unhealthy,
                Rule::AllPartitionsStopped,
            ),
            (
                &[(Stopped, 99_999), (Running, 1)],
                None,
                Degraded,
                Rule::Stopped,
            ),
            (
                &[(Starting, 0), (Starting, 0)],
                None,
                Degraded,
                Rule::NotReadingYet,
            ),
            (&[(Starting, 0), (Running, 1)], None, Healthy, Rule::Fine),
            (
                &[(Blocked, 301), (Ahead, 0)],
                None,
                Unhealthy,
                Rule::PositionAhead,
            ),
        ];
        for (states, down, status, rule) in table {
            let partitions: Vec<_> = states.iter().map(|(s, t)| partition(*s, *t)).collect();
            let h = evaluate(&partitions, &[], *down);
            assert_eq!((h.status, h.rule), (*status, *rule), "{states:?} {down:?}");
            assert_eq!(h.description.is_empty(), h.rule == Rule::Fine);
        }
    }

    #[test]
    fn a_gap_shows_for_a_while() {
        let with = |state, since_gap: Option<u64>| PartitionStatus {
            gaps: 2,
            lost: 85,
            since_gap: since_gap.map(Duration::from_secs),
            ..partition(state, 9)
        };
        let running = LaneState::Running;
        let h = evaluate(&[with(running, None), with(running, Some(599))], &[], None);
        assert_eq!((h.status, h.rule), (Status::Degraded, Rule::Gap));
        assert!(h.description.contains("85 messages"), "{h}");
        let old = [with(running, Some(601)), with(running, None)];
        assert_eq!(evaluate(&old, &[], None).rule, Rule::Fine);
        let other = [with(running, Some(1)), with(LaneState::Blocked, None)];
        assert_eq!(evaluate(&other, &[], None).rule, Rule::Blocked);
    }

    #[test]
    fn partitions_that_were_told_to_stop_do_not_count() {
        let dismissed = || PartitionStatus {
            reason: String::new(),
            ..partition(LaneState::Stopped, 9)
        };
        let rule = |partitions: &[PartitionStatus]| evaluate(partitions, &[], None).rule;
        assert_eq!(rule(&[dismissed()]), Rule::Fine);
        let running = partition(LaneState::Running, 9);
        assert_eq!(rule(&[dismissed(), running]), Rule::Fine);
        // what is left of a consumer whose policy ended it
        let failed = partition(LaneState::Stopped, 9);
        assert_eq!(rule(&[dismissed(), failed]), Rule::AllPartitionsStopped);
    }

    #[test]
    fn the_description_names_the_partition_the_time_and_the_reason() {
        let h = evaluate(&[partition(LaneState::Blocked, 301)], &[], None);
        let shown = evaluate(&[], &[], None).to_string();
        assert_eq!(shown, "Healthy");
        assert!(
            h.to_string()
                .starts_with("Unhealthy (BlockedTooLong): orders[3]/billing")
        );
        assert_eq!(
            h.description,
            "orders[3]/billing has been blocked for 301.0 s: why; UnhealthyBlockSeconds is 300"
        );
    }
}
