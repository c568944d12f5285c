//! Processes that end as they should, or join: nothing is handled twice, and nobody waits.

use std::{collections::BTreeMap, time::Duration};

use streamlane::testing::{Kind, Rules, now_ns};

use crate::{
    claims::Claims,
    command_log,
    common::{SLACK, turn, worker::Keeps},
    fleet::{Fleet, RENEW},
};

/// What is promised of a graceful end.
const BOUND: Duration = Duration::from_secs(1);

#[test]
fn a_graceful_leave_or_join_repeats_nothing_and_is_over_within_a_second() {
    let _turn = turn();
    come_and_go(Keeps::EachMessage);
}

/// Positions that are stored in time by nothing but the handover.
#[test]
fn what_moves_is_stored_before_it_is_anothers() {
    let _turn = turn();
    come_and_go(Keeps::Within(Duration::from_mins(1)));
}

fn come_and_go(keeps: Keeps) {
    let mut fleet = Fleet::under_load(keeps);
    let pods = ["a", "b", "c"];
    for pod in pods {
        fleet.join(pod);
    }
    fleet.await_even(3);
    let mut leaves = Vec::new();
    for pod in pods.repeat(4) {
        let owned = Claims::read(&fleet.server).of(pod);
        let instance = fleet.up[pod].job.instance.clone();
        leaves.push((now_ns(), instance, owned));
        let stopped = fleet.leave(pod);
        let owned = stopped + fleet.await_even(2);
        fleet.join(pod);
        let joined = fleet.await_even(3);
        eprintln!("{pod} ended in {stopped:?}; all owned after {owned:?}; back after {joined:?}");
        assert!(owned < BOUND + SLACK, "{owned:?}");
        // a process starts, and others hear of it with their next renewal
        assert!(joined < RENEW + BOUND + SLACK, "{joined:?}");
    }
    fleet.finish_load();
    fleet.end();
    let report = fleet.logs.check(Rules::default());
    assert!(report.counts.handled > 1000);
    let mut starts: BTreeMap<u32, Vec<(u64, String)>> = BTreeMap::new();
    fleet.logs.each_handled(|e| {
        if e.kind == Kind::Started {
            let starts = starts.entry(e.partition).or_default();
            starts.push((e.time_ns, e.instance.to_string()));
        }
    });
    for (told, instance, partitions) in leaves {
        for p in partitions {
            let others = starts[&p]
                .iter()
                .filter(|(ns, by)| *ns > told && *by != instance);
            let first = others.map(|(ns, _)| *ns).min().expect("another reads on");
            let took = Duration::from_nanos(first - told);
            assert!(took < BOUND + SLACK, "{p}, after {instance}: {took:?}");
        }
    }
    fleet.server.stop().unwrap();
    command_log::positions_only_rise(&fleet.server);
}
