//! A consuming process that parks messages, killed again and again: at any moment a message that fails for
//! good lies behind its position and is a dead letter, or neither.

use std::{collections::BTreeSet, time::Duration};

use streamlane::{
    StreamId,
    testing::{PrivateServer, Reply, Rules},
};

use crate::{
    CONSUMER, PARTITIONS, SLACK, TOPIC,
    dice::Dice,
    load::Load,
    number_from_env, open, positions_key,
    proof::Logs,
    turn,
    worker::{Job, Keeps, Worker, fails},
};

const INTERVAL: Duration = Duration::from_millis(50);

#[test]
fn a_killed_consumer_leaves_a_dead_letter_and_a_position_behind_it_or_neither() {
    let _turn = turn();
    let kills = number_from_env("STREAMLANE_CRASH_KILLS").unwrap_or(20);
    let mut dice = Dice::new("parking");
    let server = PrivateServer::start().unwrap();
    let logs = Logs::of(&server);
    let load = Load::start(
        &open(&server.url()),
        &logs.published,
        Duration::from_millis(60),
    );
    let life = |n: u64| Job {
        keeps: if n % 4 < 2 {
            Keeps::Within(INTERVAL)
        } else {
            Keeps::EachMessage
        },
        batches: n % 2 == 1,
        parks: true,
        ..Job::new(&server, &logs, format!("life-{n}"))
    };
    let mut before = 0;
    for n in 0..kills {
        let worker = Worker::start(life(n));
        worker.await_ready();
        for _ in 0..3 {
            dice.wait_ms(20..150);
            both_or_neither(&server); // while it lives, too
        }
        worker.kill();
        let letters = both_or_neither(&server);
        assert!(letters >= before);
        before = letters;
    }
    eprintln!("parking: {}; {before} dead letters", load.finish());
    assert!(before > kills as usize, "the kills hit lanes that park");
    Worker::start(life(kills)).drain();
    let letters = both_or_neither(&server);
    let failing: usize = (0..PARTITIONS).map(|p| failing(&server, p).len()).sum();
    assert_eq!(letters, failing, "in the end each is one, and one only");
    logs.check(Rules {
        doubles: INTERVAL + SLACK,
        ..Rules::default()
    });
}

/// Looks at positions and dead letters as of one moment. Returns how many there are of the latter.
#[track_caller]
fn both_or_neither(server: &PrivateServer) -> usize {
    const LOOK: &str =
        "return {redis.call('HGETALL', KEYS[1]), redis.call('XRANGE', KEYS[2], '-', '+')}";
    let letters = format!("re:d:{{{TOPIC}}}:{CONSUMER}");
    let look = ["EVAL", LOOK, "2", &positions_key(), &letters];
    let look = server.command(&look).unwrap();
    let mut parked: Vec<BTreeSet<StreamId>> = vec![BTreeSet::new(); PARTITIONS as usize];
    let entries = look.items()[1].items();
    for entry in entries {
        let field = |name: &str| {
            let mut pairs = entry.items()[1].items().chunks(2);
            pairs.find(|p| p[0].text() == name).unwrap()[1].text()
        };
        let (partition, id): (usize, StreamId) = (
            field("!partition").parse().unwrap(),
            field("!last").parse().unwrap(),
        );
        assert!(
            parked[partition].insert(id),
            "{partition} {id} is a dead letter twice"
        );
    }
    let positions = look.items()[0].items().chunks(2);
    let positions: Vec<_> = positions.map(|p| (p[0].text(), p[1].text())).collect();
    for (partition, parked) in (0..PARTITIONS).zip(&parked) {
        let stored = positions.iter().find(|(p, _)| *p == partition.to_string());
        let position = stored.map_or(StreamId::MIN, |(_, value)| {
            value.split('|').next().unwrap().parse().unwrap()
        });
        let mut behind = failing(server, partition);
        behind.retain(|id| *id <= position);
        assert_eq!(*parked, behind, "partition {partition} at {position}");
    }
    entries.len()
}

/// The messages of a partition that fail.
fn failing(server: &PrivateServer, partition: u32) -> BTreeSet<StreamId> {
    let stream = format!("re:s:{{{TOPIC}}}:{partition}");
    let range = server.command(&["XRANGE", &stream, "-", "+"]).unwrap();
    let key = |entry: &Reply| entry.items()[1].items()[5].text();
    let failing = range.items().iter().filter(|e| fails(key(e).as_bytes()));
    failing
        .map(|e| e.items()[0].text().parse().unwrap())
        .collect()
}
