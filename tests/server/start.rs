//! Where a consumer begins: what is stored, what is missing, and what a start point resets.
#![allow(clippy::disallowed_types, clippy::unwrap_used)]

use std::{
    sync::mpsc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use streamlane::{testing::PrivateServer, *};

use crate::support::*;

/// A millisecond long ago, for entries with ids of a test's own.
const MS: u64 = 1_700_000_000_000;

fn moment(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}

/// Adds an entry with this id, whose body is the id.
fn add(server: &PrivateServer, topic: &str, partition: u32, id: &str) {
    let key = format!("re:s:{{{topic}}}:{partition}");
    server
        .command(&["XADD", &key, id, "b", id, "t", "T", "k", ""])
        .unwrap();
}

/// Two entries before the moment [`MS`], two in that very millisecond and one after it.
const IDS: [&str; 5] = [
    "1699999999998-0",
    "1699999999999-7",
    "1700000000000-0",
    "1700000000000-5",
    "1700000000001-0",
];

fn filled(server: &PrivateServer, topic: &str) -> Streams {
    let streams = open(&server.url(), topic, 1);
    for id in IDS {
        add(server, topic, 0, id);
    }
    streams
}

/// Starts, handles what there is, stops, and tells what was handled.
#[track_caller]
fn run(builder: ConsumerBuilder) -> Vec<String> {
    let seen = Seen::default();
    recording(builder, &seen)
        .start()
        .unwrap()
        .drain(PATIENCE)
        .unwrap();
    seen.all()
}

#[test]
fn a_consumer_with_nothing_stored_begins_where_it_is_told() {
    let server = server();
    let streams = filled(&server, "missing");
    let builder = |name: &str| streams.consumer("missing").name(name);
    assert_eq!(run(builder("default")), IDS);
    let beginning = builder("beginning").start_from_when_missing(StartFrom::Beginning);
    assert_eq!(run(beginning), IDS);
    assert!(run(builder("now").start_from_when_missing(StartFrom::Now)).is_empty());
    let date = streams_with_date(&server, "missing", "date");
    assert_eq!(run(date.consumer("missing").name("date")), IDS[2..]);
    // and goes on from there when it comes back
    add(&server, "missing", 0, "1700000000002-0");
    for name in ["default", "beginning", "now"] {
        assert_eq!(run(builder(name)), ["1700000000002-0"], "{name}");
    }
}

/// The date of `WhenMissing` comes from the settings.
fn streams_with_date(server: &PrivateServer, topic: &str, name: &str) -> Streams {
    let entry = ConsumerSettings::new(topic)
        .consumer(name)
        .start_from_when_missing(StartFrom::Date)
        .start_from_date(moment(MS));
    Streams::open(settings(&server.url(), topic, 1).with_consumer(entry)).unwrap()
}

#[test]
fn what_is_missing_is_settled_partition_by_partition() {
    let server = server();
    let streams = open(&server.url(), "grown", 2);
    add(&server, "grown", 0, "5-0");
    add(&server, "grown", 0, "6-0");
    add(&server, "grown", 1, "7-0");
    server
        .command(&["HSET", "re:p:{grown}:c", "0", "5-0"])
        .unwrap();
    let mut seen = run(streams.consumer("grown").name("c"));
    seen.sort();
    assert_eq!(seen, ["6-0", "7-0"], "a bare id is a position too");
}

#[test]
fn a_start_point_is_applied_once_and_again_when_it_changes() {
    let server = server();
    let streams = filled(&server, "points");
    let builder = || streams.consumer("points").name("c");
    let beginning = || builder().start_from(StartFrom::Beginning);
    let now = || builder().start_from(StartFrom::Now);
    let date = |ms| builder().start_from_date(moment(ms));
    let none: [&str; 0] = [];
    assert_eq!(run(builder()), IDS);
    assert_eq!(run(beginning()), IDS, "a reset");
    assert_eq!(run(beginning()), none, "once");
    assert_eq!(run(date(MS)), IDS[2..]);
    assert_eq!(run(date(MS)), none);
    assert_eq!(run(date(MS + 1)), IDS[4..], "another date is another point");
    add(&server, "points", 0, "1700000000002-0");
    assert_eq!(run(now()), none, "what came meanwhile is passed over");
    add(&server, "points", 0, "1700000000003-0");
    assert_eq!(run(now()), ["1700000000003-0"], "and only once");
    assert_eq!(run(beginning()).len(), 7);
}

#[test]
fn a_start_point_waits_until_no_other_instance_is_present() {
    let server = server();
    let streams = filled(&server, "shared");
    let beginning = || {
        streams
            .consumer("shared")
            .name("c")
            .start_from(StartFrom::Beginning)
    };
    assert_eq!(run(streams.consumer("shared").name("c")), IDS);
    let other = "i:11c7db43-78ec-ec85-be43-a32aea5fd96e";
    let value = "11c7db43-78ec-ec85-be43-a32aea5fd96e|svc-1";
    server
        .command(&["HSET", "re:o:{shared}:c", other, value])
        .unwrap();
    assert!(
        run(beginning()).is_empty(),
        "the position of another is left alone"
    );
    let line = logged(&[
        "WARN re:o:{shared}:c",
        "StartFrom Beginning is not applied",
        &other[2..],
    ]);
    assert_eq!(line.len(), 1);
    server.command(&["HDEL", "re:o:{shared}:c", other]).unwrap();
    assert_eq!(run(beginning()), IDS);
}

/// A consumer whose lanes do not read until the sender is dropped.
fn held(builder: ConsumerBuilder, seen: &Seen<String>) -> (Consumer, mpsc::Sender<()>) {
    let (hold, held) = mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    let builder = builder.on_lane_start(move |_| {
        let _ = held.lock().unwrap().recv();
    });
    (recording(builder, seen).start().unwrap(), hold)
}

#[test]
fn now_is_settled_and_stored_before_start_returns() {
    let server = server();
    for (topic, persist) in [("now", Persist::AsyncBatch), ("now-none", Persist::None)] {
        let streams = open(&server.url(), topic, 2);
        publish_to(&streams, topic, 0, &["old"]);
        let last = publish_to(&streams, topic, 0, &["deleted"])[0];
        let key = format!("re:s:{{{topic}}}:0");
        server.command(&["XDEL", &key, &last.to_string()]).unwrap();
        let seen = Seen::default();
        let builder = streams.consumer(topic).name("c").persist(persist);
        let (consumer, hold) = held(builder.start_from(StartFrom::Now), &seen);
        let kept = (persist != Persist::None).then_some([last, StreamId::MIN]);
        for p in 0..2 {
            assert_eq!(
                stored(&server, topic, "c", p),
                kept.map(|k| k[p as usize]),
                "{topic}"
            );
        }
        // the lanes have not read anything yet
        publish_to(&streams, topic, 0, &["new"]);
        publish_to(&streams, topic, 1, &["new"]);
        drop(hold);
        assert_eq!(seen.wait_for(2), ["new", "new"]);
        consumer.drain(PATIENCE).unwrap();
        assert_eq!(seen.len(), 2);
    }
}

#[test]
fn a_date_includes_its_own_millisecond() {
    let server = server();
    let streams = filled(&server, "dated");
    let seen = Seen::default();
    let builder = streams.consumer("dated").name("c");
    let (consumer, hold) = held(builder.start_from_date(moment(MS)), &seen);
    let value = server
        .command(&["HGET", "re:p:{dated}:c", "0"])
        .unwrap()
        .text();
    // the largest sequence number that all peers can read
    assert!(
        value.starts_with("1699999999999-9223372036854775807|"),
        "{value}"
    );
    drop(hold);
    consumer.drain(PATIENCE).unwrap();
    assert_eq!(seen.all(), IDS[2..]);
}

#[test]
fn without_persistence_a_start_point_counts_at_every_start() {
    let server = server();
    let streams = filled(&server, "none");
    let builder = || streams.consumer("none").name("c").persist(Persist::None);
    for _ in 0..2 {
        assert_eq!(run(builder().start_from(StartFrom::Beginning)), IDS);
        assert_eq!(run(builder().start_from_date(moment(MS))), IDS[2..]);
        assert!(run(builder().start_from(StartFrom::Now)).is_empty());
    }
    assert_eq!(
        server.command(&["KEYS", "re:p:*"]).unwrap().items().len(),
        0
    );
}

#[test]
fn start_points_that_say_nothing_are_refused() {
    let server = server();
    let streams = filled(&server, "refused");
    let builder = || streams.consumer("refused").name("c");
    for (builder, key) in [
        (builder().start_from(StartFrom::Date), "StartFromDate"),
        (
            builder().start_from_when_missing(StartFrom::Stored),
            "StartFromWhenMissing",
        ),
    ] {
        let e = recording(builder, &Seen::default()).start().unwrap_err();
        assert!(
            e.kind() == ErrorKind::Config && e.to_string().contains(key),
            "{e}"
        );
    }
}
