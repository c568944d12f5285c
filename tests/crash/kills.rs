//! A consuming process that is killed again and again while messages pour in.

use std::{collections::BTreeMap, time::Duration};

use streamlane::testing::{PrivateServer, Report, Rules};

use crate::{
    SLACK,
    dice::Dice,
    load::Load,
    number_from_env, open,
    proof::Logs,
    turn,
    worker::{Job, Keeps, Worker},
};

const INTERVAL: Duration = Duration::from_millis(50);

#[test]
fn a_killed_consumer_loses_nothing_and_repeats_what_the_last_flush_missed() {
    let _turn = turn();
    let pause = Duration::from_millis(8);
    let report = kill_again_and_again("within an interval", Keeps::Within(INTERVAL), pause);
    assert!(report.counts.handled > report.counts.published / 2);
}

#[test]
fn a_killed_consumer_that_stores_each_message_repeats_at_most_the_one_in_hand() {
    let _turn = turn();
    let pause = Duration::from_millis(25);
    let report = kill_again_and_again("each message", Keeps::EachMessage, pause);
    let mut repeated: BTreeMap<_, u32> = BTreeMap::new();
    for d in &report.doubles {
        let lane = (d.again_by.instance.clone(), d.place.partition);
        *repeated.entry(lane).or_default() += 1;
    }
    repeated.retain(|_, n| *n > 1);
    assert!(repeated.is_empty(), "more than one in hand: {repeated:?}");
}

/// One life after the other under one consumer name, alternately with message and batch handlers.
fn kill_again_and_again(what: &str, keeps: Keeps, pause: Duration) -> Report {
    let kills = number_from_env("STREAMLANE_CRASH_KILLS").unwrap_or(30);
    let mut dice = Dice::new(what);
    let server = PrivateServer::start().unwrap();
    let logs = Logs::of(&server);
    let load = Load::start(&open(&server.url()), &logs.published, pause);
    let life = |n: u64| Job {
        keeps,
        batches: n % 2 == 1,
        ..Job::new(&server, &logs, format!("life-{n}"))
    };
    for n in 0..kills {
        let worker = Worker::start(life(n));
        // Some do not live to see their lanes run.
        if !dice.one_in(6) {
            worker.await_ready();
        }
        // Some live so long that a position which is not stored shows.
        let life = if dice.one_in(10) {
            1200..1500
        } else {
            100..600
        };
        dice.wait_ms(life);
        worker.kill();
    }
    eprintln!("{what}: {}", load.finish());
    Worker::start(life(kills)).drain();
    let report = logs.check(Rules {
        doubles: INTERVAL + SLACK,
        ..Rules::default()
    });
    assert_eq!(report.counts.killed, kills);
    report
}
