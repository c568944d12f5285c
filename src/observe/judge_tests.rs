use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::{Instances, Snapshot, Status, StreamId, ownership::Member, settings_table};

#[path = "judge_table_tests.rs"]
mod table;

use LaneState::{
    Ahead, Blocked, Disconnected, Lapsed, Paused, Refused, Running, Starting, Stopped,
};
use Status::{Degraded, Healthy, Unhealthy};
use table::*;

/// What goes before what.
#[allow(clippy::too_many_lines)]
fn about_order() -> Vec<Row> {
    let one = || consumers(1, 1);
    let p = in_state;
    let many = [
        behind(Running, 3000),
        lags(Running, 120_001, None),
        p(Blocked, 301),
        left_to_another(301, Some(1)),
    ];
    let without_the_first = |n: usize| {
        let mut order = [2, 3, 0, 1].map(|i| many[i].clone()).to_vec();
        order.drain(..n);
        order
    };
    let lagging = || vec![lags(Running, 120_001, None)];
    let superseded = || shared_out(|o| o.standing = Standing::Superseded);
    vec![
        (without_the_first(0), one(), Unhealthy, Rule::BlockedTooLong),
        (without_the_first(1), one(), Unhealthy, Rule::StoppedTooLong),
        (without_the_first(2), one(), Unhealthy, Rule::BehindTail),
        (without_the_first(3), one(), Degraded, Rule::Lagging),
        (
            vec![behind(Running, 3000)],
            consumers(1, 0),
            Unhealthy,
            Rule::BehindTail,
        ),
        // ownership
        (
            vec![p(Blocked, 301)],
            superseded(),
            Unhealthy,
            Rule::Superseded,
        ),
        (
            vec![p(Ahead, 0)],
            superseded(),
            Unhealthy,
            Rule::PositionAhead,
        ),
        (
            vec![p(Running, 1)],
            shared_out(|o| o.standing = Standing::Lapsed),
            Unhealthy,
            Rule::ClaimsLapsed,
        ),
        (
            vec![],
            shared_out(|o| o.standing = Standing::Joining),
            Healthy,
            Rule::Fine,
        ),
        (
            vec![p(Running, 1)],
            shared_out(|o| o.unowned_for = Some(s(10))),
            Healthy,
            Rule::Fine,
        ),
        (
            vec![p(Running, 1)],
            shared_out(|o| o.unowned_for = Some(ms(10_001))),
            Degraded,
            Rule::Unowned,
        ),
        (
            lagging(),
            shared_out(|o| o.unowned_for = Some(s(11))),
            Degraded,
            Rule::Lagging,
        ),
        (vec![p(Running, 1)], contested(), Degraded, Rule::Contested),
        (
            vec![with(Running, |p| p.since_gap = Some(s(1)))],
            contested(),
            Degraded,
            Rule::Contested,
        ),
        (vec![p(Blocked, 1)], contested(), Degraded, Rule::Blocked),
        (
            vec![still(0, 60_001)],
            contested(),
            Degraded,
            Rule::Contested,
        ),
        // Degraded ones among themselves
        (
            vec![with(Running, |p| p.since_gap = Some(s(1))), p(Stopped, 1)],
            one(),
            Degraded,
            Rule::Stopped,
        ),
        (
            vec![
                lags(Running, 120_001, None),
                with(Running, |p| p.handler_for = Some(s(301))),
            ],
            one(),
            Degraded,
            Rule::Stalled,
        ),
        (
            vec![still(0, 60_001), p(Running, 1)],
            one(),
            Healthy,
            Rule::Fine,
        ),
    ]
}

#[test]
fn the_first_rule_that_applies_decides() {
    let rows: Vec<Row> = [about_lanes(), about_progress(), about_order()].concat();
    assert!(rows.len() >= 100, "{}", rows.len());
    let mut met = BTreeSet::new();
    for (partitions, context, status, rule) in rows {
        let h = evaluate(&partitions, &context);
        let states: Vec<_> = partitions.iter().map(|p| (p.state, p.in_state)).collect();
        let shown = format!("{states:?} {context:?}: {h}");
        assert_eq!((h.status, h.rule), (status, rule), "{shown}");
        assert_eq!(h.description.is_empty(), rule == Rule::Fine, "{shown}");
        assert_eq!(h.reasons.is_empty(), rule == Rule::Fine, "{shown}");
        met.insert(rule);
    }
    let all: BTreeSet<_> = Rule::ALL.iter().copied().collect();
    assert_eq!(met, all, "each has a row");
}

#[test]
fn one_partition_is_graded_by_the_rules_about_it() {
    let rows = [
        (in_state(Running, 9), Healthy, Rule::Fine),
        (in_state(Starting, 9), Healthy, Rule::Fine),
        (in_state(Paused, 99_999), Healthy, Rule::Fine),
        (dismissed(), Healthy, Rule::Fine),
        (in_state(Disconnected, 0), Unhealthy, Rule::ConnectionDown),
        (in_state(Refused, 0), Unhealthy, Rule::Refused),
        (in_state(Ahead, 0), Unhealthy, Rule::PositionAhead),
        (in_state(Lapsed, 0), Unhealthy, Rule::ClaimsLapsed),
        (in_state(Blocked, 300), Degraded, Rule::Blocked),
        (in_state(Blocked, 301), Unhealthy, Rule::BlockedTooLong),
        // by itself a stop is never all there is
        (in_state(Stopped, 99_999), Degraded, Rule::Stopped),
        (
            left_to_another(301, Some(1)),
            Unhealthy,
            Rule::StoppedTooLong,
        ),
        (behind(Running, 3000), Unhealthy, Rule::BehindTail),
        (lags(Running, 120_001, Some(1)), Degraded, Rule::Lagging),
        (still(0, 99_999_999), Healthy, Rule::Fine),
    ];
    for (partition, status, rule) in rows {
        let g = grade(&partition);
        assert_eq!((g.status, g.rule), (status, rule), "{partition:?}");
    }
}

#[test]
fn silence_is_of_a_consumer_and_only_where_all_its_partitions_are_known_to_be_at_their_end() {
    let silent = |partitions: &[PartitionStatus]| {
        let found = find_silent(partitions);
        found
            .iter()
            .map(|s| (format!("{}/{}", s.topic, s.consumer), s.lasts))
            .collect::<Vec<_>>()
    };
    let of = |consumer: &str, p: PartitionStatus| PartitionStatus {
        consumer: consumer.into(),
        ..p
    };
    let quiet = || still(0, 61_000);
    assert_eq!(silent(&[]), []);
    let lasts = [("orders/billing".to_owned(), s(61))];
    assert_eq!(silent(&[quiet()]), lasts);
    assert_eq!(
        silent(&[still(1, 99_000), quiet()]),
        lasts,
        "the least of them"
    );
    // one consumer's noise is not another's
    let other = of("other", still(0, 5));
    assert_eq!(silent(&[other.clone(), quiet()]), lasts);
    let loud = of("other", still(1, 70_000));
    assert_eq!(silent(&[other, quiet(), loud]), lasts);
    for (name, change) in [
        (
            "off",
            (|p| p.degraded_silence = Duration::ZERO) as fn(&mut PartitionStatus),
        ),
        ("old", |p| p.sample_is_fresh = false),
        ("unknown", |p| p.tail = None),
        ("behind", |p| p.behind_for = Some(Duration::ZERO)),
        ("nowhere", |p| p.position_unchanged = None),
        ("blocked", |p| p.state = Blocked),
        ("starting", |p| p.state = Starting),
        ("paused", |p| p.state = Paused),
    ] {
        let mut p = quiet();
        change(&mut p);
        assert_eq!(silent(&[quiet(), p]), [], "{name}");
    }
    // what is handed over once more is no partition
    let retries = PartitionStatus {
        partition: PartitionStatus::RETRIES,
        ..still(0, 1)
    };
    assert_eq!(silent(&[retries, quiet()]), lasts);
}

#[test]
fn the_description_names_the_partition_the_time_and_the_reason() {
    let one = consumers(1, 1);
    let told = |p: &[PartitionStatus]| evaluate(p, &one).description;
    assert_eq!(evaluate(&[], &one).to_string(), "Healthy");
    let h = evaluate(&[in_state(Blocked, 301)], &one);
    assert!(
        h.to_string()
            .starts_with("Unhealthy (BlockedTooLong): orders[3]/billing")
    );
    assert_eq!(
        h.description,
        "orders[3]/billing has been blocked for 301.0 s: why; UnhealthyBlockSeconds is 300"
    );
    let text = told(&[left_to_another(301, Some(42)), in_state(Running, 1)]);
    for part in [
        "stood down",
        "42 entries behind",
        "UnhealthyStoppedSeconds of 300",
        "why",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let mut frozen = behind(Running, 3040);
    frozen.position = Snapshot {
        id: StreamId::new(7, 1),
        ..Snapshot::default()
    };
    frozen.tail = Some(StreamId::new(9, 0));
    let text = told(&[frozen]);
    for part in [
        "behind the tail for 3.0 s",
        "UnhealthyBehindSeconds of 3",
        "7-1",
        "9-0",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // the decisive one first, each rule once
    let gap = with(Running, |p| {
        p.since_gap = Some(s(1));
        (p.gaps, p.lost) = (2, 85);
    });
    let all = [
        gap,
        in_state(Blocked, 1),
        in_state(Blocked, 2),
        lags(Running, 121_000, None),
    ];
    assert_eq!(
        told(&all),
        "orders[3]/billing has been blocked for 1.0 s: why (and 1 more); orders[3]/billing: an unknown number \
         of messages waiting, the oldest for up to 121.0 s; UnhealthyLagMs is 120000; orders[3]/billing found a \
         gap 1.0 s ago: 85 messages are known to be lost since start, in 2 gaps"
    );
    let rules: Vec<_> = evaluate(&all, &one)
        .reasons
        .iter()
        .map(|r| r.rule)
        .collect();
    assert_eq!(
        rules,
        [Rule::Blocked, Rule::Blocked, Rule::Lagging, Rule::Gap]
    );
}

#[test]
fn programs_are_told_what_the_verdict_is_based_on_by_the_names_of_peers() {
    let names = |h: &Health| h.data.pairs().iter().map(|(n, _)| *n).collect::<Vec<_>>();
    let always = [
        "consumers",
        "consumersStarted",
        "partitions",
        "partitionsBlocked",
        "partitionsStopped",
        "partitionsStarting",
        "partitionsBehind",
        "ownershipDegraded",
    ];
    let h = evaluate(&[], &HealthContext::default());
    assert_eq!(names(&h), always);
    assert!(h.data.pairs().iter().all(|(_, v)| v == "0" || v == "false"));
    let partitions = [
        behind(Running, 3000),
        PartitionStatus {
            partition: 1,
            ..lags(Running, 9_500, Some(4))
        },
        lags(Running, 9_400, Some(400)),
        in_state(Blocked, 1),
        in_state(Stopped, 1),
        in_state(Starting, 1),
        dismissed(),
    ];
    let context = HealthContext {
        consumers: 3,
        consumers_started: 2,
        down: Some("away".into()),
        ..contested()
    };
    let h = evaluate(&partitions, &context);
    let of = |name| {
        let pairs = h.data.pairs();
        let mut pairs = pairs.into_iter();
        pairs.find(|(n, _)| *n == name).map(|(_, v)| v)
    };
    for (name, value) in [
        ("consumers", "3"),
        ("consumersStarted", "2"),
        ("partitions", "6"),
        ("partitionsBlocked", "1"),
        ("partitionsStopped", "1"),
        ("partitionsStarting", "1"),
        ("partitionsBehind", "1"),
        ("worstLagMs", "9500"),
        ("worstLagPartition", "orders[1]/billing"),
        ("worstLagEntries", "4"),
        ("connection", "away"),
        ("behindPartition", "orders[3]/billing"),
        ("behindMs", "3000"),
        ("ownershipDegraded", "true"),
    ] {
        assert_eq!(of(name).as_deref(), Some(value), "{name}");
    }
    assert_eq!(of("silentConsumer"), None);
    let h = evaluate(&[still(0, 60_001)], &consumers(1, 1));
    assert_eq!(h.data.silent.as_deref(), Some("orders/billing"));
}

#[test]
fn no_outage_and_no_idleness_asks_for_a_restart() {
    let live = |partitions: &[PartitionStatus], context: &HealthContext| {
        let h = evaluate(partitions, context);
        (h.is_live(), h.is_ready())
    };
    let one = consumers(1, 1);
    let worst = [behind(Running, 9999), in_state(Stopped, 9)];
    assert_eq!(live(&worst, &down()), (true, false), "the server is away");
    assert_eq!(live(&worst, &one), (false, false));
    assert_eq!(live(&[in_state(Stopped, 9)], &one), (false, false));
    assert_eq!(live(&[in_state(Paused, 99_999)], &one), (true, true));
    assert_eq!(live(&[still(0, 99_999_999)], &one), (true, true));
    assert_eq!(live(&[], &one), (true, true));
    assert_eq!(live(&[in_state(Starting, 0)], &one), (true, false));
    assert_eq!(live(&[in_state(Blocked, 999)], &one), (true, false));
    assert_eq!(live(&[in_state(Blocked, 9)], &one), (true, true));
    assert_eq!(live(&[dismissed()], &consumers(1, 0)), (true, false));
}

/// The names and their order, how bad each is, and that each threshold is a key with this default.
#[test]
fn the_table_in_the_documentation_is_the_table_of_rules() {
    let page = include_str!("../docs/health.md");
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|l| l.starts_with("| `"))
        .map(|l| l.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let told: Vec<_> = rows.iter().map(|r| (r[0], r[1])).collect();
    let want: Vec<_> = Rule::ALL
        .iter()
        .map(|r| (format!("`{}`", r.name()), format!("{:?}", r.status())))
        .collect();
    let want: Vec<_> = want.iter().map(|(n, s)| (&**n, &**s)).collect();
    assert_eq!(told, want);
    let keys = settings_table();
    let mut thresholds = 0;
    for row in &rows {
        assert_eq!(row.len(), 4, "{row:?}");
        let Some((key, default)) = row[3].split_once(' ') else {
            assert_eq!(row[3], "");
            continue;
        };
        thresholds += 1;
        let key = key.trim_matches('`');
        let default = default.trim_matches(['(', ')']).trim_end_matches(": off");
        let line = keys
            .lines()
            .find(|l| l.starts_with(&format!("| `Consumers[n]:{key}` |")));
        let line = line.unwrap_or_else(|| panic!("{key} is no key"));
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        assert_eq!(cells[4], default, "{key}");
    }
    assert_eq!(thresholds, 9);
    // the rules about one partition are tried in the same order
    assert!(OF_PARTITIONS.windows(2).all(|w| w[0].0 < w[1].0));
    assert!(Rule::ALL.windows(2).all(|w| w[0] < w[1]));
    let worse = Rule::ALL.windows(2);
    assert!(worse.into_iter().all(|w| w[0].status() >= w[1].status()));
}

fn any_state() -> impl Strategy<Value = LaneState> {
    prop::sample::select(vec![
        Starting,
        Running,
        Blocked,
        Disconnected,
        Refused,
        Ahead,
        Lapsed,
        Paused,
        Stopped,
    ])
}

/// Around thresholds of some seconds.
fn any_time() -> impl Strategy<Value = Duration> {
    prop_oneof![
        (0..8000u64).prop_map(ms),
        Just(Duration::MAX),
        Just(Duration::ZERO)
    ]
}

fn maybe_time() -> impl Strategy<Value = Option<Duration>> {
    prop::option::of(any_time())
}

prop_compose! {
    fn any_partition()(
        (state, reason, partition, in_state, escalates) in
            (any_state(), any::<bool>(), prop::sample::select(vec![0, 1, PartitionStatus::RETRIES]), any_time(), any::<bool>()),
        (entries, lag, behind_for, handler_for) in
            (prop::option::of(0..3u64), maybe_time(), maybe_time(), maybe_time()),
        (unchanged, since_gap, fresh, tail, caught_up) in
            (maybe_time(), maybe_time(), any::<bool>(), prop::option::of(0..3u64), any::<bool>()),
        (idle, deliveries, letters) in (maybe_time(), prop::option::of(0..20u64), 0..200u64),
        limits in prop::array::uniform7(any_time()),
        counts in (0..12u64, 0..120u64),
        consumer in 0..2u8,
    ) -> PartitionStatus {
        let mut p = super::super::PartitionStatus {
            state,
            partition,
            in_state,
            escalates,
            lag_entries: entries,
            lag,
            behind_for,
            handler_for,
            position_unchanged: unchanged,
            since_gap,
            sample_is_fresh: fresh,
            tail: tail.map(|n| StreamId::new(n, 0)),
            caught_up,
            oldest_idle: idle,
            most_deliveries: deliveries,
            parked_lately: letters,
            reason: if reason { "why".into() } else { String::new() },
            consumer: if consumer == 0 { "a".into() } else { "b".into() },
            ..PartitionStatus::default()
        };
        [
            p.unhealthy_block, p.unhealthy_stopped, p.unhealthy_behind, p.unhealthy_lag,
            p.stalled_after, p.degraded_silence, p.degraded_pending,
        ] = limits;
        (p.degraded_deliveries, p.degraded_dead_letters) = counts;
        p
    }
}

/// Some ways in which a partition can get worse while everything else stays as it is.
fn worsen(p: &PartitionStatus, how: usize, by: Duration) -> PartitionStatus {
    let mut p = p.clone();
    let later = |t: Option<Duration>| Some(t.unwrap_or_default().saturating_add(by));
    match how {
        0 => p.in_state = p.in_state.saturating_add(by),
        1 => p.lag = later(p.lag),
        2 => p.behind_for = p.behind_for.map(|t| t.saturating_add(by)),
        3 => p.handler_for = later(p.handler_for),
        4 => p.oldest_idle = later(p.oldest_idle),
        5 => p.most_deliveries = Some(p.most_deliveries.unwrap_or_default() + 1),
        6 => p.parked_lately += 1,
        7 => p.position_unchanged = later(p.position_unchanged),
        8 => p.since_gap = p.since_gap.map(|t| t.saturating_sub(by)),
        9 => p.lag_entries = p.lag_entries.map(|n| n + 1),
        _ => p.state = Disconnected,
    }
    p
}

const WAYS: usize = 11;

proptest! {
    /// Whatever there is: a verdict, and the same once more; it is never better than a partition's grade; and
    /// when something gets worse it does not get better.
    #[test]
    fn a_verdict_is_total_and_never_better_for_what_is_worse(
        partitions in prop::collection::vec(any_partition(), 0..5),
        (all, started, down) in (0..3usize, 0..3usize, prop::option::of(Just("away".to_owned()))),
        (which, how, by) in (any::<prop::sample::Index>(), 0..WAYS, any_time()),
    ) {
        let context = HealthContext { down, ..consumers(all, started.min(all)) };
        let h = evaluate(&partitions, &context);
        prop_assert_eq!(&h, &evaluate(&partitions, &context));
        prop_assert_eq!(h.status, h.rule.status());
        prop_assert_eq!(h.status == Healthy, h.description.is_empty());
        prop_assert!(h.reasons.windows(2).all(|w| w[0].rule <= w[1].rule));
        for p in &partitions {
            prop_assert!(h.status >= grade(p).status, "{:?}", p);
        }
        prop_assert!(h.is_live() || h.status == Unhealthy);
        prop_assert!(context.down.is_none() || h.is_live());
        if partitions.is_empty() {
            return Ok(());
        }
        let at = which.index(partitions.len());
        let worse = worsen(&partitions[at], how, by);
        prop_assert!(grade(&worse).status >= grade(&partitions[at]).status, "{:?}", worse);
        let mut after = partitions.clone();
        after[at] = worse;
        let then = evaluate(&after, &context);
        prop_assert!(then.status >= h.status, "{h}\n{then}\n{:?}", after[at]);
        // an outage hides nothing and helps nobody
        let away = HealthContext { down: Some("away".into()), ..context };
        prop_assert!(evaluate(&partitions, &away).status == Unhealthy);
    }
}
