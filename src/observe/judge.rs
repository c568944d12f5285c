//! Judging: pure functions of what was seen.

use std::time::Duration;

use crate::{LaneState, Ownership, Standing};

use super::{Grade, Health, HealthContext, HealthData, PartitionStatus, Reason, Rule, Silence};

/// How long a gap is a reason to have a look.
const GAP_SHOWS: Duration = Duration::from_mins(10);

/// Whether a rule applies to a partition.
type Applies = fn(&PartitionStatus) -> bool;

/// The rules about one partition, in their order.
const OF_PARTITIONS: [(Rule, Applies); 15] = [
    (Rule::ConnectionDown, |p| p.state == LaneState::Disconnected),
    (Rule::Refused, |p| p.state == LaneState::Refused),
    (Rule::PositionAhead, |p| p.state == LaneState::Ahead),
    (Rule::ClaimsLapsed, |p| p.state == LaneState::Lapsed),
    (Rule::BlockedTooLong, blocked_too_long),
    (Rule::StoppedTooLong, stopped_too_long),
    (Rule::BehindTail, |p| {
        let limit = p.unhealthy_behind;
        is_read(p) && !limit.is_zero() && p.behind_for >= Some(limit)
    }),
    (Rule::Blocked, |p| {
        p.state == LaneState::Blocked && !blocked_too_long(p)
    }),
    (Rule::Stopped, |p| {
        p.state == LaneState::Stopped && !stopped_too_long(p)
    }),
    (Rule::Stalled, |p| past(p.handler_for, p.stalled_after)),
    (Rule::Lagging, |p| {
        let may_wait = is_read(p) || p.state == LaneState::Paused;
        may_wait && p.lag > Some(p.unhealthy_lag) && p.lag_entries != Some(0)
    }),
    (Rule::Gap, |p| p.since_gap.is_some_and(|t| t <= GAP_SHOWS)),
    (Rule::PendingTooLong, |p| {
        let is_meant = p.state != LaneState::Paused;
        p.sample_is_fresh && is_meant && past(p.oldest_idle, p.degraded_pending)
    }),
    (Rule::DeliveredTooOften, |p| {
        let limit = Some(p.degraded_deliveries).filter(|n| *n > 0);
        p.sample_is_fresh && limit.is_some() && p.most_deliveries >= limit
    }),
    (Rule::DeadLetters, |p| {
        p.degraded_dead_letters > 0 && p.parked_lately >= p.degraded_dead_letters
    }),
];

/// Whether something has lasted for longer than a limit that is not off.
fn past(time: Option<Duration>, limit: Duration) -> bool {
    !limit.is_zero() && time > Some(limit)
}

fn is_read(p: &PartitionStatus) -> bool {
    matches!(p.state, LaneState::Running | LaneState::Starting)
}

fn blocked_too_long(p: &PartitionStatus) -> bool {
    p.state == LaneState::Blocked && p.in_state > p.unhealthy_block
}

fn stopped_too_long(p: &PartitionStatus) -> bool {
    let waits = p.lag_entries.is_some_and(|n| n > 0);
    p.state == LaneState::Stopped && p.escalates && waits && p.in_state > p.unhealthy_stopped
}

/// The rules that apply to a partition. One that was told to stop is nothing to worry about.
fn rules_of(p: &PartitionStatus) -> impl Iterator<Item = Rule> {
    let judged = OF_PARTITIONS.iter().filter(|_| !p.was_dismissed());
    judged
        .filter(|(_, applies)| applies(p))
        .map(|(rule, _)| *rule)
}

/// Judges one partition by itself. A pure function.
///
/// ```
/// use std::time::Duration;
/// use streamlane::{LaneState, PartitionStatus, Rule, Status, grade};
///
/// let mut partition = PartitionStatus::default();
/// partition.state = LaneState::Blocked;
/// partition.in_state = Duration::from_secs(301); // UnhealthyBlockSeconds is 300
/// let grade = grade(&partition);
/// assert_eq!((grade.status, grade.rule), (Status::Unhealthy, Rule::BlockedTooLong));
/// ```
pub fn grade(partition: &PartitionStatus) -> Grade {
    Grade::by(rules_of(partition).next().unwrap_or(Rule::Fine))
}

/// The consumers that have finished everything and to which nothing has been published for longer than their
/// `DegradedSilenceSeconds`: all their partitions that are here are read, known by a fresh sample, at their end,
/// and have not moved for so long. A pure function.
pub fn find_silent(partitions: &[PartitionStatus]) -> Vec<Silence> {
    let mut found: Vec<(Silence, bool)> = Vec::new();
    for p in partitions {
        if p.was_dismissed() || p.partition == PartitionStatus::RETRIES {
            continue;
        }
        let limit = p.degraded_silence;
        let still = p.position_unchanged.unwrap_or_default();
        let at_its_end = p.sample_is_fresh && p.tail.is_some() && p.behind_for.is_none();
        let here = p.state == LaneState::Running && at_its_end;
        let is_silent = here && past(Some(still), limit);
        let known = found
            .iter_mut()
            .find(|(s, _)| s.topic == p.topic && s.consumer == p.consumer);
        if let Some((silence, all)) = known {
            silence.lasts = silence.lasts.min(still);
            *all &= is_silent;
            continue;
        }
        let silence = Silence {
            topic: p.topic.clone(),
            consumer: p.consumer.clone(),
            lasts: still,
            limit,
        };
        found.push((silence, is_silent));
    }
    let silent = found.into_iter().filter(|(_, all)| *all);
    silent.map(|(silence, _)| silence).collect()
}

/// Judges a process by its partitions, and by what else is known of it. Partitions that were told to stop do not
/// count. The first [rule](Rule) that applies to anything decides. A pure function.
///
/// It is never better than the worst [`grade`] of a partition.
pub fn evaluate(partitions: &[PartitionStatus], context: &HealthContext) -> Health {
    let judged = partitions.iter().filter(|p| !p.was_dismissed());
    let judged: Vec<&PartitionStatus> = judged.collect();
    let silent = find_silent(partitions);
    let mut reasons = Vec::new();
    let mut add = |rule, subject: String, what: String| {
        reasons.push(Reason {
            rule,
            subject,
            what,
        });
    };
    if let Some(why) = &context.down {
        add(Rule::ConnectionDown, String::new(), why.clone());
    }
    for p in &judged {
        for rule in rules_of(p) {
            add(rule, p.to_string(), told(rule, p));
        }
    }
    for o in &context.ownership {
        for (rule, what) in divided(o) {
            add(rule, format!("{}/{}", o.topic, o.consumer), what);
        }
    }
    for (rule, what) in together(&judged, context) {
        add(rule, String::new(), what);
    }
    for s in &silent {
        let of = format!("{}/{}", s.topic, s.consumer);
        let (lasts, limit) = (s.lasts.as_secs_f64(), s.limit.as_secs());
        let what = format!(
            "{of} has been given nothing for {lasts:.1} s, past DegradedSilenceSeconds of {limit}"
        );
        add(Rule::Silent, of, what);
    }
    reasons.sort_by_key(|r| r.rule);
    let rule = reasons.first().map_or(Rule::Fine, |r| r.rule);
    Health {
        status: rule.status(),
        rule,
        description: describe(&reasons),
        data: data(&judged, context, &reasons),
        reasons,
    }
}

/// The reasons in a sentence each, those of one rule in one.
fn describe(reasons: &[Reason]) -> String {
    let by_rule = reasons.chunk_by(|a, b| a.rule == b.rule);
    let sentences: Vec<String> = by_rule
        .map(|those| match those {
            [first] => first.what.clone(),
            [first, others @ ..] => format!("{} (and {} more)", first.what, others.len()),
            [] => String::new(),
        })
        .collect();
    sentences.join("; ")
}

/// What is the matter with a partition to which a rule applies.
fn told(rule: Rule, p: &PartitionStatus) -> String {
    let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
    let in_state = |what: &str| {
        let why = Some(&p.reason).filter(|why| !why.is_empty());
        let why = why.map_or(String::new(), |why| format!(": {why}"));
        format!("{p} {what} for {}{why}", seconds(p.in_state))
    };
    match rule {
        Rule::ConnectionDown => in_state("is cut off"),
        Rule::Refused => in_state("has been refused"),
        Rule::PositionAhead => in_state("has been waiting"),
        Rule::ClaimsLapsed => in_state("has waited for its claim"),
        Rule::BlockedTooLong => {
            let limit = p.unhealthy_block.as_secs();
            let blocked = in_state("has been blocked");
            format!("{blocked}; UnhealthyBlockSeconds is {limit}")
        }
        Rule::StoppedTooLong => format!(
            "{p} stood down {} ago and is {} entries behind, past UnhealthyStoppedSeconds of {}: {}",
            seconds(p.in_state),
            p.lag_entries.unwrap_or_default(),
            p.unhealthy_stopped.as_secs(),
            p.reason,
        ),
        Rule::BehindTail => format!(
            "{p} has been behind the tail for {} without moving, past UnhealthyBehindSeconds of {}: it is at {}, \
             and the stream ends at {}",
            seconds(p.behind_for.unwrap_or_default()),
            p.unhealthy_behind.as_secs(),
            p.position.id,
            p.tail.unwrap_or_default(),
        ),
        Rule::Blocked => in_state("has been blocked"),
        Rule::Stopped => in_state("has been stopped"),
        Rule::Stalled => format!(
            "{p}: the handler has not come back for {}; StalledSeconds is {}",
            seconds(p.handler_for.unwrap_or_default()),
            p.stalled_after.as_secs()
        ),
        Rule::Lagging => {
            let many = p.lag_entries.map_or_else(
                || "an unknown number of messages".into(),
                |n| format!("{n} messages"),
            );
            format!(
                "{p}: {many} waiting, the oldest for up to {}; UnhealthyLagMs is {}",
                seconds(p.lag.unwrap_or_default()),
                p.unhealthy_lag.as_millis()
            )
        }
        Rule::Gap => format!(
            "{p} found a gap {} ago: {} messages are known to be lost since start, in {} gaps",
            seconds(p.since_gap.unwrap_or_default()),
            p.lost,
            p.gaps,
        ),
        Rule::PendingTooLong => format!(
            "{p}: a pending message has had no sign of life for {}; DegradedPendingSeconds is {}",
            seconds(p.oldest_idle.unwrap_or_default()),
            p.degraded_pending.as_secs()
        ),
        Rule::DeliveredTooOften => format!(
            "{p}: a pending message was given out {} times; DegradedDeliveries is {}",
            p.most_deliveries.unwrap_or_default(),
            p.degraded_deliveries
        ),
        Rule::DeadLetters => format!(
            "{p}: {} messages became dead letters within 10 minutes; DegradedDeadLetters is {}",
            p.parked_lately, p.degraded_dead_letters
        ),
        _ => p.to_string(), // about no partition
    }
}

/// What is the matter with all partitions together, and with their consumers.
fn together(judged: &[&PartitionStatus], context: &HealthContext) -> Vec<(Rule, String)> {
    let mut found = Vec::new();
    let HealthContext {
        consumers,
        consumers_started,
        ..
    } = *context;
    if consumers > 0 && consumers_started == 0 {
        let what = format!("each of {consumers} consumers was told to stop");
        found.push((Rule::NoConsumerStarted, what));
    }
    // What is handed over once more is read by everybody, and by itself it is no work.
    let mut partitions = judged.iter();
    let first = partitions.find(|p| p.partition != PartitionStatus::RETRIES);
    let is_stopped = |p: &&&PartitionStatus| p.state == LaneState::Stopped;
    if let Some(first) = first.filter(is_stopped)
        && partitions.all(|p| is_stopped(&p) || p.partition == PartitionStatus::RETRIES)
    {
        let what = format!("no partition is read; {}", told(Rule::Stopped, first));
        found.push((Rule::AllPartitionsStopped, what));
    }
    let reads = |p: &&PartitionStatus| {
        matches!(
            p.state,
            LaneState::Running | LaneState::Paused | LaneState::Blocked
        )
    };
    let starts = |p: &&PartitionStatus| p.state == LaneState::Starting;
    if judged.iter().any(starts) && !judged.iter().any(reads) {
        let what = "no partition has read anything yet".to_owned();
        found.push((Rule::NotReadingYet, what));
    }
    found
}

/// What is wrong with how partitions are divided.
fn divided(o: &Ownership) -> Vec<(Rule, String)> {
    let of = format!("{}/{}", o.topic, o.consumer);
    let mut found = Vec::new();
    match o.standing {
        Standing::Superseded => {
            let me = o.me.as_ref().map_or("its name", |me| &*me.pod);
            let what =
                format!("{of}: another process called {me} has started; this one stands down");
            found.push((Rule::Superseded, what));
        }
        Standing::Lapsed => {
            let what = format!("{of}: the claims were not renewed in time");
            found.push((Rule::ClaimsLapsed, what));
        }
        Standing::Holding | Standing::Joining => {}
    }
    if o.unowned_for > Some(o.unowned_alarm) {
        let what = format!("{of}: partitions {:?} are consumed by nobody", o.unowned());
        found.push((Rule::Unowned, what));
    }
    if let Some((p, by)) = o.contested.first() {
        let what = format!("{of}: {by} takes partition {p} for its own, too");
        found.push((Rule::Contested, what));
    }
    found
}

fn data(judged: &[&PartitionStatus], context: &HealthContext, reasons: &[Reason]) -> HealthData {
    let many = |state| judged.iter().filter(|p| p.state == state).count();
    let of = |rule| reasons.iter().find(move |r: &&Reason| r.rule == rule);
    let known = judged.iter().filter(|p| p.lag.is_some());
    let worst = known.max_by_key(|p| p.lag);
    let behind = of(Rule::BehindTail);
    let behind = behind.and_then(|r| judged.iter().find(|p| p.to_string() == r.subject));
    HealthData {
        consumers: context.consumers,
        consumers_started: context.consumers_started,
        partitions: judged.len(),
        partitions_blocked: many(LaneState::Blocked),
        partitions_stopped: many(LaneState::Stopped),
        partitions_starting: many(LaneState::Starting),
        partitions_behind: judged.iter().filter(|p| p.behind_for.is_some()).count(),
        worst_lag: worst.and_then(|p| Some((p.to_string(), p.lag?))),
        worst_lag_entries: worst.and_then(|p| p.lag_entries),
        connection: of(Rule::ConnectionDown).map(|r| r.what.clone()),
        behind: behind.and_then(|p| Some((p.to_string(), p.behind_for?))),
        ownership_degraded: of(Rule::Unowned).or(of(Rule::Contested)).is_some(),
        silent: of(Rule::Silent).map(|r| r.subject.clone()),
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
