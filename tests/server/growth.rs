//! Topics that grow while everybody is at work, and topics whose metadata is lost.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use streamlane::{testing::PrivateServer, *};

use crate::{
    every_way::{Plain, every_way},
    support::*,
};

const SOON: Duration = Duration::from_millis(20);
const NEVER: Duration = Duration::from_hours(1);

/// What handlers write down: partition, type, key and body.
type Handled = Seen<(u32, String, String, String)>;

/// A process that leaves the number of partitions to the topic.
fn follower(server: &PrivateServer, refresh: Duration) -> Streams {
    let settings = Settings::default().connection_string(server.url());
    Streams::open(settings.topic_refresh(refresh)).unwrap()
}

fn topic_of(server: &PrivateServer, topic: &str, partitions: u32) {
    let streams = open(&server.url(), topic, partitions);
    streams
        .publisher(topic)
        .unwrap()
        .publish("k", "Made", "")
        .unwrap();
}

fn handling(builder: ConsumerBuilder, seen: &Handled) -> ConsumerBuilder<HasHandler> {
    let seen = seen.clone();
    builder.shared(move |m| {
        let text = |t: Text<'_>| t.to_string();
        let body = String::from_utf8_lossy(m.body()).into_owned();
        seen.push((m.partition(), text(m.message_type()), text(m.key()), body));
        Ok(())
    })
}

fn recorded(server: &PrivateServer, topic: &str) -> String {
    let meta = format!("re:m:{{{topic}}}");
    server
        .command(&["HGET", &meta, "partitions"])
        .unwrap()
        .text()
}

#[test]
fn every_way_to_publish_and_every_consumer_take_up_what_others_add() {
    let server = server();
    topic_of(&server, "grows", 2);
    let streams = follower(&server, SOON);
    let seen = Handled::default();
    let consumer = handling(streams.consumer("grows").name("c"), &seen)
        .start()
        .unwrap();
    running(&consumer);
    let mut ways = every_way(&streams, "grows");
    let kept = std::cell::RefCell::new(streams.publisher("grows").unwrap().dedicated());
    ways.push((
        "kept",
        Box::new(move |m| kept.borrow_mut().publish(m.key, "T", m.body)),
    ));
    let mut sent = 0;
    let mut round = |n: u32| {
        for (way, send) in &ways {
            let (key, body) = (format!("{way}-{n}"), n.to_string());
            let m = Plain {
                key: &key,
                body: &body,
                partition: None,
            };
            send(m).unwrap_or_else(|e| panic!("{way}: {e}"));
            sent += 1;
        }
    };
    (0..20).for_each(&mut round);
    topic_of(&server, "grows", 6);
    expect("the consumer to take the new partitions up", || {
        consumer.partitions().len() == 6
    });
    running(&consumer);
    (20..60).for_each(&mut round);
    let handled = seen.wait_for(sent + 2);
    assert_eq!(handled.len(), sent + 2, "nothing is handled twice");
    for (way, _) in &ways {
        let of = |after: bool| {
            let ours = handled
                .iter()
                .filter(|(_, _, key, _)| key.starts_with(&format!("{way}-")));
            let mut late = ours.filter(|(.., n)| (n.parse::<u32>().unwrap() >= 20) == after);
            late.any(|(p, ..)| *p >= 2)
        };
        assert!(
            !of(false) && of(true),
            "{way} does not go to the new partitions"
        );
    }
    let partitions = consumer.partitions();
    assert!(partitions.iter().all(|p| p.connects == 1), "{partitions:?}");
    // where it is now it goes on after a restart
    consumer.drain(PATIENCE).unwrap();
    let again = handling(streams.consumer("grows").name("c"), &seen)
        .start()
        .unwrap();
    again.drain(PATIENCE).unwrap();
    assert_eq!(seen.len(), sent + 2);
    // and a partition by its number
    let draft = streams.publisher("grows").unwrap();
    draft.message("T", "").partition(5).publish().unwrap();
    draft.message("T", "").partition(6).publish().unwrap_err();
}

/// Before the change and after it, and never between the two.
#[test]
fn keys_are_in_order_within_the_partitions_they_have_before_and_after() {
    let server = server();
    topic_of(&server, "order", 2);
    let streams = follower(&server, SOON);
    let seen = Handled::default();
    let consumer = handling(streams.consumer("order").name("c"), &seen)
        .start()
        .unwrap();
    let done = AtomicBool::new(false);
    let sent = thread::scope(|s| {
        let over = Over(&done);
        let publishing = s.spawn(|| {
            let publisher = streams.publisher("order").unwrap();
            let mut n = 0;
            while !done.load(Relaxed) {
                publisher
                    .publish(format!("key-{}", n % 40), "T", n.to_string())
                    .unwrap();
                n += 1;
            }
            n
        });
        for partitions in [3, 7] {
            topic_of(&server, "order", partitions);
            let there = || seen.all().iter().any(|(p, ..)| *p == partitions - 1);
            expect("messages in the last partition", there);
        }
        drop(over);
        publishing.join().unwrap()
    });
    let handled = seen.wait_for(sent + 3);
    assert_eq!(handled.len(), sent + 3);
    let mut last = BTreeMap::new();
    let mut spans = BTreeMap::<_, Vec<(u32, u32)>>::new();
    for (p, _, key, n) in handled.into_iter().filter(|(_, t, ..)| t == "T") {
        let n: u32 = n.parse().unwrap();
        let before = last.insert((key.clone(), p), n);
        assert!(
            before.is_none_or(|before| before < n),
            "{key}: {n} after {before:?} in {p}"
        );
        spans.entry(key).or_default().push((n, p));
    }
    for (key, mut span) in spans {
        span.sort_unstable();
        span.dedup_by_key(|(_, p)| *p);
        assert!(span.len() <= 3, "{key} moved more than twice: {span:?}");
    }
    drop(consumer);
}

#[test]
fn what_was_there_before_a_partition_was_noticed_is_handled_whatever_the_start_point_says() {
    let server = server();
    topic_of(&server, "early", 1);
    let seen = Handled::default();
    let streams = follower(&server, Duration::from_millis(500));
    let start = |name: &str| {
        let consumer = streams.consumer("early").name(name);
        let consumer = consumer.start_from_when_missing(StartFrom::Now);
        handling(consumer, &seen).start().unwrap()
    };
    let (runs, stopped) = (start("runs"), start("stopped"));
    stopped.stop();
    let unstored = streams
        .consumer("early")
        .name("unstored")
        .persist(Persist::None);
    let unstored = handling(unstored.start_from(StartFrom::Now), &seen)
        .start()
        .unwrap();
    let other = open(&server.url(), "early", 3);
    publish_to(&other, "early", 2, &["a", "b"]);
    seen.wait_for(4);
    assert_eq!(
        stored(&server, "early", "runs", 1),
        Some(StreamId::MIN),
        "kept at once"
    );
    assert_eq!(stored(&server, "early", "stopped", 1), None);
    let stopped = start("stopped");
    let handled = seen.wait_for(6);
    assert_eq!(
        handled
            .iter()
            .filter(|(p, .., body)| *p == 2 && body == "b")
            .count(),
        3
    );
    drop((runs, stopped, unstored));
    // and from then on it is a partition like any other
    publish_to(&other, "early", 1, &["c"]);
    let back = start("runs");
    back.drain(PATIENCE).unwrap();
    assert_eq!(seen.len(), 7);
}

#[test]
fn whoever_finds_that_a_topic_has_grown_tells_the_others_in_its_process() {
    let server = server();
    topic_of(&server, "told", 2);
    let streams = follower(&server, NEVER);
    let consumer = handling(streams.consumer("told").name("c"), &Handled::default());
    let consumer = consumer.start().unwrap();
    let old = streams.publisher("told").unwrap();
    old.publish("k", "T", "").unwrap();
    topic_of(&server, "told", 4);
    old.message("T", "").partition(3).publish().unwrap_err();
    assert_eq!(consumer.partitions().len(), 2);
    streams
        .publisher("told")
        .unwrap()
        .publish("k", "T", "")
        .unwrap();
    old.message("T", "").partition(3).publish().unwrap();
    expect("the consumer to be told", || {
        consumer.partitions().len() == 4
    });
    consumer.drain(PATIENCE).unwrap();
}

#[test]
fn two_that_let_a_topic_grow_at_once_end_with_the_larger_number() {
    let server = server();
    // by script, and as peers do it where scripts are refused
    let rules = [
        "ACL",
        "SETUSER",
        "u",
        "reset",
        "on",
        ">p",
        "~*",
        "&*",
        "+@all",
        "-@scripting",
    ];
    server.command(&rules).unwrap();
    for (topic, user) in [("race", None), ("plain", Some("u"))] {
        for n in [2, 5, 9] {
            let grow = |partitions| {
                let settings = settings(&server.url(), topic, partitions);
                let settings = match user {
                    Some(user) => settings.username(user).password("p"),
                    None => settings,
                };
                let publisher = Streams::open(settings).unwrap().publisher(topic).unwrap();
                // one that comes too late is refused
                let _ = publisher.publish("k", "T", "");
            };
            thread::scope(|s| {
                s.spawn(|| grow(n));
                if user.is_none() {
                    s.spawn(|| grow(n + 1));
                    s.spawn(|| grow(n + 2));
                }
            });
            let expected = if user.is_none() { n + 2 } else { n };
            assert_eq!(recorded(&server, topic), expected.to_string());
        }
    }
}

#[test]
fn a_record_that_is_lost_or_lowered_while_the_topic_is_in_use_is_put_right_loudly() {
    let server = server();
    topic_of(&server, "damaged", 3);
    let streams = follower(&server, SOON);
    let publisher = streams.publisher("damaged").unwrap();
    publisher.publish("k", "T", "").unwrap();
    let meta = "re:m:{damaged}";
    let damages: [(&[&str], &str); 3] = [
        (&["DEL", meta], "is gone"),
        (&["HSET", meta, "partitions", "2"], "says 2 partitions"),
        (&["HSET", meta, "partitions", "many"], "is gone"),
    ];
    for (i, (damage, said)) in damages.iter().enumerate() {
        let told = || logged(&["ERROR", "topic damaged:", "in use with 3", said]).len();
        let before = told();
        server.command(damage).unwrap();
        expect("the record to be right again", || {
            recorded(&server, "damaged") == "3"
        });
        expect("a word about it", || told() > before);
        let all = server.command(&["HGETALL", meta]).unwrap().items().len();
        assert_eq!(all, 10, "damage {i}");
        publisher.message("T", "").partition(2).publish().unwrap();
    }
    assert_eq!(
        server
            .command(&["EXISTS", "re:s:{damaged}:3"])
            .unwrap()
            .int(),
        Some(0)
    );
}

#[test]
fn lost_metadata_is_made_anew_after_what_is_left_of_the_topic() {
    let server = server();
    let lose = |topic: &str, partitions: u32| {
        topic_of(&server, topic, partitions);
        let consumer = follower(&server, NEVER).consumer(topic).name("c");
        let consumer = handling(consumer, &Handled::default()).start().unwrap();
        consumer.drain(PATIENCE).unwrap();
        server
            .command(&["DEL", &format!("re:m:{{{topic}}}")])
            .unwrap();
    };
    let loud =
        |topic: &str| logged(&["ERROR", &format!("topic {topic}: its metadata was gone")]).len();

    lose("streams", 70); // more than one look finds
    let publisher = follower(&server, NEVER).publisher("streams").unwrap();
    publisher.publish("k", "T", "").unwrap();
    assert_eq!(
        (recorded(&server, "streams"), loud("streams")),
        ("70".into(), 1)
    );

    // with the last streams gone as well the consumer's own positions tell
    lose("positions", 5);
    for p in 3..5 {
        server
            .command(&["DEL", &format!("re:s:{{positions}}:{p}")])
            .unwrap();
    }
    let consumer = follower(&server, NEVER).consumer("positions").name("c");
    let consumer = handling(consumer, &Handled::default()).start().unwrap();
    assert_eq!((consumer.partitions().len(), loud("positions")), (5, 1));

    // and a claim
    lose("claims", 2);
    server
        .command(&["HSET", "re:o:{claims}:c", "3", "somebody", "i:x", "y"])
        .unwrap();
    let consumer = follower(&server, NEVER).consumer("claims").name("c");
    let consumer = handling(consumer, &Handled::default()).start().unwrap();
    let known = consumer.ownership().owners.len();
    assert_eq!((known, loud("claims")), (4, 1));

    // what is configured may be more, and is refused when it is less
    lose("configured", 3);
    let fewer = open(&server.url(), "configured", 2)
        .publisher("configured")
        .unwrap();
    let e = fewer.publish("k", "T", "").unwrap_err();
    assert_eq!(
        (e.kind(), recorded(&server, "configured")),
        (ErrorKind::Config, "3".into())
    );
    server.command(&["DEL", "re:m:{configured}"]).unwrap();
    topic_of(&server, "configured", 4);
    assert_eq!(
        (recorded(&server, "configured"), loud("configured")),
        ("4".into(), 2)
    );

    // of a topic that never was nothing is said
    topic_of(&server, "fresh", 2);
    assert_eq!(loud("fresh"), 0);
}

#[test]
fn a_decrease_is_refused_with_the_partitions_it_would_leave_unread() {
    let server = server();
    let streams = open(&server.url(), "less*", 5);
    let start = |streams: &Streams, name: &str| {
        handling(streams.consumer("less*").name(name), &Handled::default()).start()
    };
    let refused = |name: &str| {
        let fewer = open(&server.url(), "less*", 2);
        let e = start(&fewer, name).map(drop).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Config);
        e.to_string()
    };
    start(&streams, "first").unwrap().stop();
    assert!(
        refused("first").ends_with("hold nothing unread now"),
        "{}",
        refused("first")
    );
    let second = start(&streams, "second").unwrap();
    for p in [0, 2, 4] {
        publish_to(&streams, "less*", p, &["x"]);
    }
    second.drain(PATIENCE).unwrap();
    let told = refused("second");
    assert!(
        told.ends_with("not every consumer has read are in partitions 2, 4"),
        "{told}"
    );
    start(&streams, "first").unwrap().drain(PATIENCE).unwrap();
    assert!(refused("second").ends_with("hold nothing unread now"));

    let publisher = open(&server.url(), "less*", 2).publisher("less*").unwrap();
    let e = publisher.publish("k", "T", "").unwrap_err();
    assert_eq!(
        (e.kind(), e.outcome()),
        (ErrorKind::Config, Outcome::NotApplied)
    );
    let told = e.to_string();
    assert!(told.contains("has 5 partitions and is set to 2"), "{told}");
    assert!(
        told.ends_with("may be unread are in partitions 2, 4"),
        "{told}"
    );
    assert_eq!(recorded(&server, "less*"), "5");
}

#[test]
fn a_watch_that_cannot_look_disturbs_nobody_and_says_so_once() {
    let server = server();
    topic_of(&server, "blind", 2);
    let streams = follower(&server, Duration::from_millis(10));
    let seen = Handled::default();
    let consumer = handling(streams.consumer("blind").name("c"), &seen)
        .start()
        .unwrap();
    let publisher = streams.publisher("blind").unwrap();
    publisher.publish("k", "T", "0").unwrap();
    let meta = "re:m:{blind}";
    server.command(&["RENAME", meta, "aside"]).unwrap();
    server.command(&["SET", meta, "no hash"]).unwrap();
    let told = || logged(&["WARN", "whether topics have grown is not known", meta]).len();
    expect("a line about it", || told() > 0);
    for n in 1..50 {
        publisher.publish("k", "T", n.to_string()).unwrap();
        thread::sleep(Duration::from_millis(4));
    }
    seen.wait_for(51);
    assert_eq!(told(), 1);
    server.command(&["DEL", meta]).unwrap();
    server.command(&["RENAME", "aside", meta]).unwrap();
    topic_of(&server, "blind", 4);
    expect("growth to be noticed again", || {
        consumer.partitions().len() == 4
    });
}

#[test]
fn growth_is_noticed_after_the_server_was_away() {
    let server = server();
    topic_of(&server, "away", 2);
    let streams = follower(&server, SOON);
    let consumer = handling(streams.consumer("away").name("c"), &Handled::default());
    let consumer = consumer.start().unwrap();
    server.command(&["SAVE"]).unwrap();
    for partitions in [3, 4] {
        server.restart().unwrap();
        topic_of(&server, "away", partitions);
        server.command(&["SAVE"]).unwrap();
        expect("growth to be noticed", || {
            consumer.partitions().len() == partitions as usize
        });
    }
    running(&consumer);
    let begun = std::time::Instant::now();
    drop((consumer, streams));
    assert!(begun.elapsed() < PATIENCE / 2, "the watch ends at once");
    assert!(connections(&server, "streams-topics").is_empty());
}
