//! Processes that are numbered: claims decide nothing, so nobody takes over what is another's number's, and
//! whoever comes back goes on where positions are stored.

use std::{
    collections::BTreeSet,
    thread,
    time::{Duration, Instant},
};

use streamlane::testing::{Kind, Rules, eventually, now_ns};

use crate::{
    PARTITIONS,
    claims::Claims,
    command_log,
    common::{PATIENCE, SLACK, turn, worker::Keeps},
    excuses::Excuses,
    fleet::{Fleet, INTERVAL, RENEW, TTL, WINDOW},
};

const HALF: u32 = PARTITIONS / 2;
/// How soon a process tells of what happened to a claim: when it has been so for an interval.
const NOTICE: Duration = RENEW
    .saturating_mul(2)
    .saturating_add(Duration::from_secs(1));

/// The first half is the first one's, the second the second one's.
const PODS: [&str; 2] = ["svc-0", "svc-1"];

fn join(fleet: &mut Fleet, n: u32) {
    fleet.join_numbered(PODS[n as usize], (n, 2));
}

/// Waits until exactly these claim what is theirs.
#[track_caller]
fn divided(fleet: &Fleet, present: &[u32]) -> Duration {
    let due: BTreeSet<(u32, &str)> = present
        .iter()
        .flat_map(|n| (n * HALF..(n + 1) * HALF).map(|p| (p, PODS[*n as usize])))
        .collect();
    let is_so = |claims: &Claims| {
        let pod = |value: &str| PODS.into_iter().find(|p| value.contains(&format!("|{p}#")));
        let owned = claims.owners.iter();
        let owned: BTreeSet<_> = owned.filter_map(|(p, v)| Some((*p, pod(v)?))).collect();
        owned == due && claims.owners.len() == due.len() && claims.members.len() == present.len()
    };
    fleet.await_claims(&format!("those of {present:?}"), is_so)
}

/// Waits until a process says so. Returns how long that took.
#[track_caller]
fn says(fleet: &Fleet, pod: &str, words: &[&str]) -> Duration {
    let begun = Instant::now();
    let told = || {
        let lines = fleet.up[pod].lines();
        let mut lines = lines.lines();
        lines.any(|l| words.iter().all(|w| l.contains(w)))
    };
    assert!(eventually(PATIENCE, told), "{pod}: {words:?}");
    begun.elapsed()
}

#[test]
fn what_is_a_killed_or_frozen_one_s_by_number_waits_for_it_and_all_tell_of_the_gap() {
    let _turn = turn();
    let mut fleet = Fleet::under_load(Keeps::Within(INTERVAL));
    join(&mut fleet, 0);
    join(&mut fleet, 1);
    divided(&fleet, &[0, 1]);
    fleet.up.values().for_each(|worker| worker.await_ready());
    thread::sleep(2 * INTERVAL);

    let killed = now_ns();
    fleet.up.remove("svc-0").unwrap().kill();
    let gap = "ownership gap: partitions 0,1,2,3 of 8";
    let took = says(&fleet, "svc-1", &["ERROR", gap, "consumed by nobody"]);
    eprintln!("of the killed one's partitions told after {took:?}");
    assert!(took < TTL + NOTICE, "{took:?}");
    divided(&fleet, &[1]);
    let back = now_ns();
    join(&mut fleet, 0);
    eprintln!("taken up after {:?}", divided(&fleet, &[0, 1]));

    fleet.up["svc-1"].freeze();
    let thaw = Instant::now() + 3 * TTL;
    let gap = "ownership gap: partitions 4,5,6,7 of 8";
    let took = says(&fleet, "svc-0", &["ERROR", gap, "consumed by nobody"]);
    assert!(took < TTL + NOTICE, "{took:?}");
    divided(&fleet, &[0]);
    thread::sleep(thaw.saturating_duration_since(Instant::now()));
    fleet.up["svc-1"].thaw();
    let took = divided(&fleet, &[0, 1]);
    eprintln!("claimed again after {took:?}");
    assert!(took < NOTICE + SLACK, "{took:?}");

    fleet.settle();
    fleet.end();
    let report = Excuses::check(&fleet.logs, WINDOW);
    assert!(report.counts.handled > 1000);
    let mut early = 0;
    fleet.logs.each_handled(|e| {
        if e.kind == Kind::Started {
            let pod = e.instance.split('.').next().unwrap();
            assert_eq!(pod, PODS[(e.partition / HALF) as usize], "{e:?}");
            let waits = e.partition < HALF && (killed..back).contains(&e.time_ns);
            early += u32::from(waits && e.instance != "svc-0.0");
        }
    });
    assert_eq!(early, 0, "nobody took what is another's number's");
    fleet.server.stop().unwrap();
    command_log::positions_never_fall(&fleet.server);
}

/// Numbers keep no process out that was taken for dead: nothing is lost by it, and both say so.
#[test]
fn a_frozen_one_that_was_replaced_and_comes_back_is_told_of_by_both() {
    let _turn = turn();
    let mut fleet = Fleet::under_load(Keeps::Within(INTERVAL));
    join(&mut fleet, 0);
    join(&mut fleet, 1);
    divided(&fleet, &[0, 1]);
    let frozen = fleet.up.remove("svc-1").unwrap();
    frozen.await_ready();
    frozen.freeze();
    divided(&fleet, &[0]);
    join(&mut fleet, 1);
    divided(&fleet, &[0, 1]);
    thread::sleep(2 * RENEW);
    let twice = "is processed twice";
    assert!(!fleet.up["svc-1"].lines().contains(twice), "not yet");

    frozen.thaw();
    says(&fleet, "svc-1", &["ERROR", "partition 5 ", twice]);
    let told = || frozen.lines().contains(twice);
    assert!(eventually(PATIENCE, told), "{}", frozen.lines());
    assert!(
        !fleet.up["svc-0"].lines().contains(twice),
        "it is not concerned"
    );
    frozen.kill();
    divided(&fleet, &[0, 1]);
    // What it stored last may be older than what stands there, until the other's position moves again.
    thread::sleep(5 * INTERVAL);

    fleet.settle();
    fleet.end();
    let report = fleet.logs.check(Rules {
        doubles: Duration::MAX,
        exclusive: false,
        ..Rules::default()
    });
    assert!(report.counts.handled > 1000);
    let of_others = |d: &&streamlane::testing::Double| d.place.partition < HALF;
    assert_eq!(report.doubles.iter().filter(of_others).count(), 0);
}
