use super::*;

fn partition(state: LaneState, seconds: u64) -> PartitionStatus {
    PartitionStatus {
        topic: "orders".into(),
        consumer: "billing".into(),
        partition: 3,
        state,
        reason: "why".into(),
        in_state: Duration::from_secs(seconds),
        connects: 1,
        ..PartitionStatus::default()
    }
}

#[test]
fn the_first_rule_that_applies_decides() {
    use LaneState::{Ahead, Blocked, Disconnected, Paused, Refused, Running, Starting, Stopped};
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
