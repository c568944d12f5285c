//! What the rules say of what, written by hand from the rules: both sides of each limit.

use super::*;

/// As most rows say it.
pub(super) fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(super) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A partition that has been in this state for so many seconds, with the thresholds there are by default.
pub(super) fn in_state(state: LaneState, seconds: u64) -> PartitionStatus {
    let why = if matches!(state, Running | Starting | Paused) {
        ""
    } else {
        "why"
    };
    PartitionStatus {
        topic: "orders".into(),
        consumer: "billing".into(),
        partition: 3,
        state,
        reason: why.into(),
        in_state: s(seconds),
        connects: 1,
        ..PartitionStatus::default()
    }
}

/// A partition in this state, changed.
pub(super) fn with(state: LaneState, change: impl FnOnce(&mut PartitionStatus)) -> PartitionStatus {
    let mut p = in_state(state, 9);
    change(&mut p);
    p
}

/// A stop that escalates, of a partition in which so many messages wait.
pub(super) fn left_to_another(seconds: u64, waiting: Option<u64>) -> PartitionStatus {
    PartitionStatus {
        escalates: true,
        lag_entries: waiting,
        ..in_state(Stopped, seconds)
    }
}

/// Behind the end for so long, with a threshold of three seconds.
pub(super) fn behind(state: LaneState, ms_behind: u64) -> PartitionStatus {
    with(state, |p| {
        p.unhealthy_behind = s(3);
        p.behind_for = Some(ms(ms_behind));
        p.lag_entries = Some(7);
    })
}

pub(super) fn lags(state: LaneState, lag_ms: u64, entries: Option<u64>) -> PartitionStatus {
    with(state, |p| {
        p.lag = Some(ms(lag_ms));
        p.lag_entries = entries;
    })
}

/// At its end, by a fresh sample, for so many milliseconds, with a threshold of 60 seconds.
pub(super) fn still(partition: u32, still_ms: u64) -> PartitionStatus {
    with(Running, |p| {
        p.partition = partition;
        p.degraded_silence = s(60);
        p.position_unchanged = Some(ms(still_ms));
        p.sample_is_fresh = true;
        p.tail = Some(StreamId::new(5, 0));
        p.caught_up = true;
    })
}

/// A queue's partition that was just looked at.
pub(super) fn queue(
    state: LaneState,
    change: impl FnOnce(&mut PartitionStatus),
) -> PartitionStatus {
    with(state, |p| {
        p.sample_is_fresh = true;
        change(p);
    })
}

pub(super) fn dismissed() -> PartitionStatus {
    PartitionStatus {
        reason: String::new(),
        ..in_state(Stopped, 99_999)
    }
}

/// Of so many consumers so many were not told to stop.
pub(super) fn consumers(all: usize, started: usize) -> HealthContext {
    HealthContext {
        consumers: all,
        consumers_started: started,
        ..HealthContext::default()
    }
}

pub(super) fn down() -> HealthContext {
    HealthContext {
        down: Some("refused".into()),
        ..consumers(1, 1)
    }
}

pub(super) fn shared_out(change: impl FnOnce(&mut Ownership)) -> HealthContext {
    let mut o = Ownership {
        topic: "orders".into(),
        consumer: "billing".into(),
        mode: Instances::Lease,
        me: None,
        standing: Standing::Holding,
        owned: vec![0],
        owners: vec![None],
        members: Vec::new(),
        contested: Vec::new(),
        unowned_for: None,
        unowned_alarm: s(10),
    };
    change(&mut o);
    HealthContext {
        ownership: vec![o],
        ..consumers(1, 1)
    }
}

pub(super) fn contested() -> HealthContext {
    let by = Member {
        instance: "i".into(),
        pod: "other".into(),
        epoch: String::new(),
    };
    shared_out(|o| o.contested.push((3, by)))
}

/// What there is, and what is said of it.
pub(super) type Row = (Vec<PartitionStatus>, HealthContext, Status, Rule);

#[allow(clippy::too_many_lines)]
pub(super) fn about_lanes() -> Vec<Row> {
    let one = || consumers(1, 1);
    let p = in_state;
    let long = 99_999;
    vec![
        // nothing, and nothing to do
        (vec![], consumers(0, 0), Healthy, Rule::Fine),
        (vec![], one(), Healthy, Rule::Fine),
        (vec![p(Running, 9)], one(), Healthy, Rule::Fine),
        (vec![p(Running, long)], one(), Healthy, Rule::Fine),
        (vec![p(Paused, long)], one(), Healthy, Rule::Fine),
        (
            vec![p(Running, 9), p(Paused, long)],
            one(),
            Healthy,
            Rule::Fine,
        ),
        // the server
        (vec![], down(), Unhealthy, Rule::ConnectionDown),
        (vec![p(Running, 9)], down(), Unhealthy, Rule::ConnectionDown),
        (
            vec![p(Running, 1), p(Disconnected, 0)],
            one(),
            Unhealthy,
            Rule::ConnectionDown,
        ),
        (
            vec![p(Refused, 1), p(Disconnected, 0)],
            one(),
            Unhealthy,
            Rule::ConnectionDown,
        ),
        (
            vec![p(Running, 1), p(Refused, 0)],
            one(),
            Unhealthy,
            Rule::Refused,
        ),
        (
            vec![p(Blocked, 301), p(Refused, 0)],
            one(),
            Unhealthy,
            Rule::Refused,
        ),
        (
            vec![p(Ahead, 0), p(Refused, 0)],
            one(),
            Unhealthy,
            Rule::Refused,
        ),
        (
            vec![p(Running, 9), p(Ahead, 0)],
            one(),
            Unhealthy,
            Rule::PositionAhead,
        ),
        (
            vec![p(Running, 9), p(Lapsed, 0)],
            one(),
            Unhealthy,
            Rule::ClaimsLapsed,
        ),
        // blocked: longer than 300 s
        (
            vec![p(Running, 1), p(Blocked, 0)],
            one(),
            Degraded,
            Rule::Blocked,
        ),
        (
            vec![p(Running, 1), p(Blocked, 300)],
            one(),
            Degraded,
            Rule::Blocked,
        ),
        (
            vec![with(Blocked, |p| p.in_state = ms(300_001))],
            one(),
            Unhealthy,
            Rule::BlockedTooLong,
        ),
        (
            vec![p(Blocked, 1), p(Blocked, 301)],
            one(),
            Unhealthy,
            Rule::BlockedTooLong,
        ),
        (
            vec![with(Blocked, |p| p.unhealthy_block = Duration::ZERO)],
            one(),
            Unhealthy,
            Rule::BlockedTooLong,
        ),
        // a blocked partition answers to that rule alone
        (vec![behind(Blocked, 4000)], one(), Degraded, Rule::Blocked),
        (
            vec![lags(Blocked, 999_999, Some(9))],
            one(),
            Degraded,
            Rule::Blocked,
        ),
        // none running and none starting is still no stop
        (
            vec![p(Blocked, 1), p(Stopped, 1)],
            one(),
            Degraded,
            Rule::Blocked,
        ),
        // stopped by the policy: never more than Degraded while another is read
        (
            vec![p(Stopped, long), p(Running, 1)],
            one(),
            Degraded,
            Rule::Stopped,
        ),
        (
            vec![
                with(Stopped, |p| {
                    p.in_state = s(1_000_000);
                    p.lag_entries = Some(1_000_000);
                }),
                p(Running, 1),
            ],
            one(),
            Degraded,
            Rule::Stopped,
        ),
        // stopped for another: with messages waiting, longer than 300 s
        (
            vec![left_to_another(301, Some(42)), p(Running, 1)],
            one(),
            Unhealthy,
            Rule::StoppedTooLong,
        ),
        (
            vec![left_to_another(301, Some(1))],
            one(),
            Unhealthy,
            Rule::StoppedTooLong,
        ),
        (
            vec![left_to_another(300, Some(42)), p(Running, 1)],
            one(),
            Degraded,
            Rule::Stopped,
        ),
        (
            vec![left_to_another(long, Some(0)), p(Running, 1)],
            one(),
            Degraded,
            Rule::Stopped,
        ),
        (
            vec![left_to_another(long, None), p(Running, 1)],
            one(),
            Degraded,
            Rule::Stopped,
        ),
        // all
        (
            vec![p(Stopped, 1), p(Stopped, 1)],
            one(),
            Unhealthy,
            Rule::AllPartitionsStopped,
        ),
        (
            vec![left_to_another(1, Some(1))],
            one(),
            Unhealthy,
            Rule::AllPartitionsStopped,
        ),
        (
            vec![p(Stopped, 1), p(Paused, 1)],
            one(),
            Degraded,
            Rule::Stopped,
        ),
        (
            vec![p(Stopped, 1), p(Starting, 0)],
            one(),
            Degraded,
            Rule::NotReadingYet,
        ),
        (
            vec![
                p(Stopped, 1),
                with(Running, |p| p.partition = PartitionStatus::RETRIES),
            ],
            one(),
            Unhealthy,
            Rule::AllPartitionsStopped,
        ),
        (
            vec![with(Stopped, |p| p.partition = PartitionStatus::RETRIES)],
            one(),
            Degraded,
            Rule::Stopped,
        ),
        // told to stop
        (vec![dismissed()], one(), Healthy, Rule::Fine),
        (vec![dismissed(), p(Running, 9)], one(), Healthy, Rule::Fine),
        (
            vec![dismissed(), p(Stopped, 9)],
            one(),
            Unhealthy,
            Rule::AllPartitionsStopped,
        ),
        (
            vec![dismissed()],
            consumers(1, 0),
            Unhealthy,
            Rule::NoConsumerStarted,
        ),
        (vec![], consumers(2, 0), Unhealthy, Rule::NoConsumerStarted),
        (vec![], consumers(2, 1), Healthy, Rule::Fine),
        (
            vec![p(Stopped, 9)],
            consumers(1, 0),
            Unhealthy,
            Rule::NoConsumerStarted,
        ),
        // not reading yet
        (
            vec![p(Starting, 0), p(Starting, 0)],
            one(),
            Degraded,
            Rule::NotReadingYet,
        ),
        (
            vec![p(Starting, 0), p(Running, 1)],
            one(),
            Healthy,
            Rule::Fine,
        ),
        (
            vec![p(Starting, 0), p(Paused, 1)],
            one(),
            Healthy,
            Rule::Fine,
        ),
        (
            vec![p(Starting, 0), p(Blocked, 1)],
            one(),
            Degraded,
            Rule::Blocked,
        ),
        (
            vec![p(Starting, 0), p(Blocked, 301)],
            one(),
            Unhealthy,
            Rule::BlockedTooLong,
        ),
    ]
}

#[allow(clippy::too_many_lines)]
pub(super) fn about_progress() -> Vec<Row> {
    let one = || consumers(1, 1);
    let p = in_state;
    let day = 24 * 3600;
    let stalls = |for_ms: u64| vec![with(Running, |p| p.handler_for = Some(ms(for_ms)))];
    let gap = |ago_ms: u64| {
        vec![
            with(Running, |p| p.since_gap = Some(ms(ago_ms))),
            p(Running, 9),
        ]
    };
    vec![
        // behind: so long, or longer
        (
            vec![behind(Running, 3000)],
            one(),
            Unhealthy,
            Rule::BehindTail,
        ),
        (
            vec![behind(Starting, 3000)],
            one(),
            Unhealthy,
            Rule::BehindTail,
        ),
        (vec![behind(Running, 2999)], one(), Healthy, Rule::Fine),
        (vec![behind(Paused, 9999)], one(), Healthy, Rule::Fine),
        // off unless it is set, however long
        (
            vec![with(Running, |p| p.behind_for = Some(s(day)))],
            one(),
            Healthy,
            Rule::Fine,
        ),
        // at its end for a day
        (
            vec![with(Running, |p| {
                p.unhealthy_behind = s(3);
                p.position_unchanged = Some(s(day));
                p.caught_up = true;
                p.lag = Some(Duration::ZERO);
            })],
            one(),
            Healthy,
            Rule::Fine,
        ),
        // stalled: longer than 300 s
        (stalls(300_000), one(), Healthy, Rule::Fine),
        (stalls(300_001), one(), Degraded, Rule::Stalled),
        (
            vec![with(Running, |p| {
                p.stalled_after = Duration::ZERO;
                p.handler_for = Some(s(day));
            })],
            one(),
            Healthy,
            Rule::Fine,
        ),
        // lag: longer than 120 s, unless nothing is known to wait
        (
            vec![lags(Running, 120_000, Some(5))],
            one(),
            Healthy,
            Rule::Fine,
        ),
        (
            vec![lags(Running, 120_001, Some(5))],
            one(),
            Degraded,
            Rule::Lagging,
        ),
        (
            vec![lags(Running, 120_001, None)],
            one(),
            Degraded,
            Rule::Lagging,
        ),
        (
            vec![lags(Running, 120_001, Some(0))],
            one(),
            Healthy,
            Rule::Fine,
        ),
        (
            vec![lags(Paused, 120_001, Some(5))],
            one(),
            Degraded,
            Rule::Lagging,
        ),
        (
            vec![lags(Stopped, 120_001, Some(5)), p(Running, 1)],
            one(),
            Degraded,
            Rule::Stopped,
        ),
        (
            vec![with(Running, |p| p.lag_entries = Some(1_000_000))],
            one(),
            Healthy,
            Rule::Fine,
        ),
        // a gap shows for 10 minutes, the last moment of them included
        (gap(0), one(), Degraded, Rule::Gap),
        (gap(600_000), one(), Degraded, Rule::Gap),
        (gap(600_001), one(), Healthy, Rule::Fine),
        // queues: pending for longer than 900 s
        (
            vec![queue(Running, |p| p.oldest_idle = Some(s(900)))],
            one(),
            Healthy,
            Rule::Fine,
        ),
        (
            vec![queue(Running, |p| p.oldest_idle = Some(ms(900_001)))],
            one(),
            Degraded,
            Rule::PendingTooLong,
        ),
        (
            vec![queue(Paused, |p| p.oldest_idle = Some(s(day)))],
            one(),
            Healthy,
            Rule::Fine,
        ),
        (
            vec![with(Running, |p| p.oldest_idle = Some(s(day)))],
            one(),
            Healthy,
            Rule::Fine,
        ),
        (
            vec![queue(Running, |p| {
                p.degraded_pending = Duration::ZERO;
                p.oldest_idle = Some(s(day));
            })],
            one(),
            Healthy,
            Rule::Fine,
        ),
        // given out ten times, or more often
        (
            vec![queue(Running, |p| p.most_deliveries = Some(9))],
            one(),
            Healthy,
            Rule::Fine,
        ),
        (
            vec![queue(Running, |p| p.most_deliveries = Some(10))],
            one(),
            Degraded,
            Rule::DeliveredTooOften,
        ),
        (
            vec![with(Running, |p| p.most_deliveries = Some(99))],
            one(),
            Healthy,
            Rule::Fine,
        ),
        (
            vec![queue(Running, |p| {
                p.degraded_deliveries = 0;
                p.most_deliveries = Some(99);
            })],
            one(),
            Healthy,
            Rule::Fine,
        ),
        // a hundred dead letters, or more
        (
            vec![with(Running, |p| p.parked_lately = 99)],
            one(),
            Healthy,
            Rule::Fine,
        ),
        (
            vec![with(Running, |p| p.parked_lately = 100)],
            one(),
            Degraded,
            Rule::DeadLetters,
        ),
        (
            vec![with(Running, |p| {
                p.degraded_dead_letters = 0;
                p.parked_lately = 100;
                p.parked = 1_000_000;
            })],
            one(),
            Healthy,
            Rule::Fine,
        ),
        // silence: longer than 60 s in all partitions
        (vec![still(0, 60_000)], one(), Healthy, Rule::Fine),
        (vec![still(0, 60_001)], one(), Degraded, Rule::Silent),
        (
            vec![still(0, 60_001), still(1, 60_000)],
            one(),
            Healthy,
            Rule::Fine,
        ),
        (
            vec![still(0, 60_001), dismissed()],
            one(),
            Degraded,
            Rule::Silent,
        ),
    ]
}
