//! What has failed others whose processes share work, by the numbers of the recipes.

use std::{
    thread,
    time::{Duration, Instant},
};

use streamlane::testing::{Kind, Rules, eventually, now_ns};

use crate::{
    PARTITIONS, command_log,
    common::{PATIENCE, turn, worker::Keeps},
    excuses::Excuses,
    fleet::{Fleet, INTERVAL, TTL, WINDOW},
    reigns,
};

#[test]
fn recipe_35_twenty_processes_start_at_once_on_an_empty_server_and_none_complains() {
    let _turn = turn();
    let mut fleet = Fleet::new(Keeps::Within(INTERVAL));
    for n in 0..20 {
        fleet.join(&format!("pod-{n}"));
    }
    fleet.await_even(20);
    for p in 0..PARTITIONS {
        fleet.publish(p, 10);
    }
    fleet.settle();
    fleet.end();
    let report = fleet.logs.check(Rules::default());
    assert_eq!(report.counts.handled, u64::from(10 * PARTITIONS));
    assert_eq!(fleet.loud(), [""; 0]);
}

#[test]
fn recipe_107_an_owner_that_was_frozen_in_a_batch_commits_nothing_over_its_successor() {
    const PARTITION: u32 = 3;
    let _turn = turn();
    let mut fleet = Fleet::new(Keeps::Within(INTERVAL));
    fleet.work = Duration::from_millis(20);
    fleet.join("frozen");
    fleet.await_even(1);
    fleet.publish(PARTITION, 50);
    let begun = || {
        let mut n = 0;
        fleet
            .logs
            .each_handled(|e| n += u32::from(e.kind == Kind::Started));
        n >= 5
    };
    assert!(eventually(PATIENCE, begun), "it is at work");
    fleet.up["frozen"].freeze();
    let thaw = Instant::now() + 3 * TTL;

    fleet.work = Duration::from_millis(1);
    fleet.join("other");
    fleet.await_claims("the other to own all", |claims| {
        let others = claims.owners.values().filter(|o| o.contains("|other#"));
        others.count() as u32 == PARTITIONS
    });
    fleet.publish(PARTITION, 100);
    fleet.settle();
    assert!(Instant::now() < thaw, "in time");
    thread::sleep(thaw.saturating_duration_since(Instant::now()));

    let thawed = now_ns();
    fleet.up["frozen"].thaw();
    fleet.await_even(2);
    thread::sleep(2 * INTERVAL);
    let lines = ["frozen", "other"].map(|pod| fleet.up[pod].lines());
    for (pod, lines) in ["frozen", "other"].iter().zip(&lines) {
        assert!(lines.contains(", epoch "), "{pod}: {lines}");
    }
    assert!(lines[0].contains("the claims ENDED"), "{}", lines[0]);
    fleet.end();

    let (mut begun, mut finished) = (0, 0);
    fleet.logs.each_handled(|e| match e.kind {
        Kind::Started if e.time_ns >= thawed => begun += 1,
        Kind::Handled if e.time_ns >= thawed => finished += 1,
        _ => {}
    });
    assert_eq!(begun, 0, "nothing was begun after it woke");
    assert!(finished <= 1, "but what was in hand may end: {finished}");
    Excuses::check(&fleet.logs, WINDOW);
    fleet.server.stop().unwrap();
    reigns::one_at_a_time(&fleet);
    let stored = command_log::positions_only_rise(&fleet.server);
    let stored: Vec<_> = stored.iter().filter(|s| s.partition == PARTITION).collect();
    let reigns = stored.chunk_by(|a, b| a.writer == b.writer).count();
    assert_eq!(reigns, 2, "one after the other: {stored:#?}");
}
