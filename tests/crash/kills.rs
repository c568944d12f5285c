//! A consuming process that is killed again and again while messages pour in.

use std::{collections::BTreeMap, time::Duration};

use streamlane::{
    Message, Persist,
    testing::{PrivateServer, Report, Rules, eventually},
};

use crate::{
    CONSUMER, PATIENCE, SLACK, TOPIC,
    dice::Dice,
    load::Load,
    number_from_env, open, positions_key,
    proof::Logs,
    turn,
    worker::{Job, Keeps, Worker},
};

const INTERVAL: Duration = Duration::from_millis(50);

#[test]
fn a_killed_consumer_loses_nothing_and_repeats_what_the_last_flush_missed() {
    let _turn = turn();
    let report = kill_again_and_again(&Setting {
        name: "within an interval",
        keeps: Keeps::Within(INTERVAL),
        pause: Duration::from_millis(8),
        work: Duration::ZERO,
    });
    assert!(!report.doubles.is_empty(), "the kills hit lanes at work");
}

#[test]
fn a_killed_consumer_that_stores_each_message_repeats_at_most_the_one_in_hand() {
    let _turn = turn();
    // So much work that lanes are about half of the time in the middle of what one read brought.
    let report = kill_again_and_again(&Setting {
        name: "each message",
        keeps: Keeps::EachMessage,
        pause: Duration::from_millis(20),
        work: Duration::from_micros(500),
    });
    let mut repeated: BTreeMap<_, u32> = BTreeMap::new();
    for d in &report.doubles {
        let lane = (d.again_by.instance.clone(), d.place.partition);
        *repeated.entry(lane).or_default() += 1;
    }
    repeated.retain(|_, n| *n > 1);
    assert!(repeated.is_empty(), "more than one in hand: {repeated:?}");
}

#[test]
fn each_consumer_has_one_connection_for_positions_and_resets() {
    let _turn = turn();
    let server = PrivateServer::start().unwrap();
    let streams = open(&server.url());
    let start = |name: &str, persist| {
        let consumer = streams.consumer(TOPIC).name(name).persist(persist);
        consumer.shared(|_: &Message<'_>| Ok(())).start().unwrap()
    };
    let _careful = start("careful", Persist::SyncMessage);
    let lazy = start(CONSUMER, Persist::AsyncBatch);
    let publisher = streams.publisher(TOPIC).unwrap();
    // The flusher of one stores positions twice; that of the other has had reason to as well.
    for _ in 0..2 {
        publisher.publish("key", "T", "body").unwrap();
        let key = positions_key();
        let stored = || server.command(&["HGETALL", &key]).unwrap();
        let before = stored();
        let flushed = || stored() != before;
        assert!(eventually(PATIENCE, flushed), "{:?}", lazy.partitions());
    }
    let clients = server.command(&["CLIENT", "LIST"]).unwrap().text();
    let flusher = |name: &str| {
        let name = format!("name=streams-positions:{TOPIC}:{name}:");
        clients.matches(&name).count()
    };
    // that of the careful one looks for resets
    assert_eq!((flusher(CONSUMER), flusher("careful")), (1, 1), "{clients}");
}

struct Setting {
    name: &'static str,
    keeps: Keeps,
    /// Between two batches that are published.
    pause: Duration,
    /// What a message takes.
    work: Duration,
}

/// One life after the other under one consumer name, alternately with message and batch handlers.
fn kill_again_and_again(setting: &Setting) -> Report {
    let what = setting.name;
    let kills = number_from_env("STREAMLANE_CRASH_KILLS").unwrap_or(30);
    let mut dice = Dice::new(what);
    let server = PrivateServer::start().unwrap();
    let logs = Logs::of(&server);
    let load = Load::start(&open(&server.url()), &logs.published, setting.pause);
    let life = |n: u64| Job {
        keeps: setting.keeps,
        work: setting.work,
        batches: n % 2 == 1,
        ..Job::new(&server, &logs, format!("life-{n}"))
    };
    for n in 0..kills {
        let worker = Worker::start(life(n));
        // Some do not live to see their lanes run.
        if n == 0 || !dice.one_in(6) {
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
    assert_eq!(report.counts.killed, 2 * kills, "before and after each");
    report
}
