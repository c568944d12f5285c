//! Messages that went missing before they were read, and positions that the stream does not reach.
#![allow(clippy::disallowed_types, clippy::unwrap_used)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use streamlane::{
    testing::{PrivateServer, eventually},
    *,
};

use crate::{positions::Monitor, support::*};

const SOON: Duration = Duration::from_millis(20);
/// A far future that no clock of a test reaches.
const FAR: &str = "9999999999999-0";

fn stream(topic: &str) -> String {
    format!("re:s:{{{topic}}}:0")
}

fn positions(topic: &str) -> String {
    format!("re:p:{{{topic}}}:c")
}

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|n| n.to_string()).collect()
}

/// A consumer of one partition that writes down what it handles and what it is told of gaps.
struct Watched {
    consumer: Consumer,
    seen: Seen<String>,
    gaps: Seen<Gap>,
}

impl Watched {
    fn start(builder: ConsumerBuilder) -> Self {
        let (seen, gaps) = (Seen::default(), Seen::<Gap>::default());
        let told = gaps.clone();
        let builder = builder
            .name("c")
            .block(SOON)
            .on_gap(move |gap| told.push(gap.clone()));
        let consumer = recording(builder, &seen).start().unwrap();
        Self {
            consumer,
            seen,
            gaps,
        }
    }

    #[track_caller]
    fn expect_gap(&self) -> Gap {
        let all = self.gaps.wait_for(1);
        assert_eq!(all.len(), 1, "{all:?}");
        all[0].clone()
    }

    fn status(&self) -> PartitionStatus {
        self.consumer.partitions()[0].clone()
    }
}

/// Handles so many of those published and stops.
#[track_caller]
fn handle(streams: &Streams, topic: &str, bodies: &[&str]) -> Vec<StreamId> {
    let ids = publish_to(streams, topic, 0, bodies);
    let watched = Watched::start(streams.consumer(topic));
    watched.seen.wait_for(bodies.len());
    watched.consumer.stop();
    assert_eq!(watched.gaps.len(), 0);
    assert_eq!(watched.status().since_gap, None);
    ids
}

fn ten() -> Vec<String> {
    numbers(0..10)
}

fn refs(all: &[String]) -> Vec<&str> {
    all.iter().map(String::as_str).collect()
}

type Remove = fn(&PrivateServer, &str, &[StreamId]);

/// Ways to take entries out of a stream, given those that nobody has read.
const WAYS: [(&str, Remove); 6] = [
    ("maxlen", |s, key, _| {
        s.command(&["XTRIM", key, "MAXLEN", "5"]).unwrap();
    }),
    ("approx", |s, key, _| {
        s.command(&["XTRIM", key, "MAXLEN", "~", "5"]).unwrap();
    }),
    ("minid", |s, key, ids| {
        let min = ids[80].to_string();
        s.command(&["XTRIM", key, "MINID", &min]).unwrap();
    }),
    ("xdel", |s, key, ids| {
        for id in &ids[..7] {
            s.command(&["XDEL", key, &id.to_string()]).unwrap();
        }
        s.command(&["XTRIM", key, "MINID", &ids[3].to_string()])
            .unwrap();
    }),
    ("emptied", |s, key, _| {
        s.command(&["XTRIM", key, "MAXLEN", "0"]).unwrap();
    }),
    ("middle", |s, key, ids| {
        for id in &ids[20..23] {
            s.command(&["XDEL", key, &id.to_string()]).unwrap();
        }
    }),
];

#[test]
fn what_was_removed_while_a_consumer_was_away_is_reported_exactly() {
    let server = server();
    let many = numbers(10..100);
    server
        .command(&["CONFIG", "SET", "stream-node-max-entries", "7"])
        .unwrap();
    for (topic, remove) in WAYS {
        let streams = open(&server.url(), topic, 1);
        let ids = handle(&streams, topic, &refs(&ten()));
        let unread = publish_to(&streams, topic, 0, &refs(&many));
        remove(&server, &stream(topic), &unread);
        let left = server.command(&["XLEN", &stream(topic)]).unwrap().int();
        let first = server
            .command(&["XRANGE", &stream(topic), &format!("({}", ids[9]), "+"])
            .unwrap();
        let kept = first.items().len();
        let lost = 90 - kept as u64;
        assert!(lost > 0, "{topic}: {left:?} left");
        let watched = Watched::start(streams.consumer(topic));
        let gap = watched.expect_gap();
        assert_eq!(
            (gap.cause, gap.lost),
            (GapCause::Removed, Some(lost)),
            "{gap}"
        );
        assert_eq!(
            (&*gap.topic, &*gap.consumer, gap.partition),
            (topic, "c", 0)
        );
        if topic != "middle" {
            assert_eq!(gap.position, ids[9], "{topic}");
            let first = first.items().first().map(|e| e.items()[0].text());
            assert_eq!(gap.first.map(|id| id.to_string()), first, "{topic}");
        }
        watched.seen.wait_for(kept);
        expect("the status to say so", || {
            let s = watched.status();
            (s.gaps, s.lost, s.untold_gaps) == (1, lost, 0) && s.since_gap.is_some()
        });
        expect("health to say so", || streams.health().rule == Rule::Gap);
        assert_eq!(streams.health().status, Status::Degraded);
        let lines = logged(&["ERROR", &format!("{topic}[0]/c: GAP"), &lost.to_string()]);
        assert_eq!(lines.len(), 1, "{lines:?}");
        // what comes next is counted from there, over a restart too
        publish_to(&streams, topic, 0, &["later"]);
        watched.seen.wait_for(kept + 1);
        watched.consumer.stop();
        assert_eq!(watched.gaps.len(), 1);
        drop(watched);
        handle(&streams, topic, &["after"]);
    }
}

#[test]
fn what_was_read_before_it_was_trimmed_is_no_gap() {
    let server = server();
    let streams = open(&server.url(), "fine", 1);
    handle(&streams, "fine", &refs(&ten()));
    for maxlen in ["4", "0"] {
        server
            .command(&["XTRIM", &stream("fine"), "MAXLEN", maxlen])
            .unwrap();
        handle(&streams, "fine", &["more"]);
    }
    // nor is what was trimmed before there was a consumer, nor what another deletes behind it
    let ids = publish_to(&streams, "fine", 0, &["a", "b", "c"]);
    server
        .command(&["XTRIM", &stream("fine"), "MAXLEN", "2"])
        .unwrap();
    let gaps = Seen::<Gap>::default();
    let told = gaps.clone();
    let seen = Seen::default();
    let builder = streams
        .consumer("fine")
        .name("new")
        .on_gap(move |gap| told.push(gap.clone()));
    let consumer = recording(builder, &seen).start().unwrap();
    assert_eq!(seen.wait_for(2), ["b", "c"]);
    server
        .command(&["XDEL", &stream("fine"), &ids[1].to_string()])
        .unwrap();
    consumer.drain(PATIENCE).unwrap();
    assert!(gaps.all().is_empty(), "{:?}", gaps.all());
    assert!(warned("fine[0]").is_empty(), "{:?}", warned("fine[0]"));
}

#[test]
fn what_is_trimmed_under_a_slow_consumer_is_reported_while_it_runs() {
    let server = server();
    for (topic, ahead) in [("slow", false), ("slow-ahead", true)] {
        let streams = open(&server.url(), topic, 1);
        let (gaps, seen) = (Seen::<Gap>::default(), Seen::<String>::default());
        let (told, record) = (gaps.clone(), seen.clone());
        let hold = Arc::new(AtomicBool::new(true));
        let held = Arc::clone(&hold);
        let bodies = numbers(0..60);
        publish_to(&streams, topic, 0, &refs(&bodies));
        let consumer = streams
            .consumer(topic)
            .name("c")
            .batch_size(4)
            .read_ahead(ahead)
            .block(SOON)
            .on_gap(move |gap| told.push(gap.clone()))
            .shared(move |m| {
                record.push(String::from_utf8_lossy(m.body()).into_owned());
                eventually(PATIENCE, || !held.load(SeqCst));
                Ok(())
            })
            .start()
            .unwrap();
        seen.wait_for(1);
        server
            .command(&["XTRIM", &stream(topic), "MAXLEN", "10"])
            .unwrap();
        // longer than a lane goes without a look
        eventually(Duration::from_millis(2100), || false);
        hold.store(false, SeqCst);
        let had = 60 - 10 - 4 * (1 + u64::from(ahead));
        let told = gaps.wait_for(1);
        assert_eq!(told[0].lost, Some(had), "{told:?}");
        assert!(told[0].first.is_some(), "before it was passed: {told:?}");
        let lost = had;
        seen.wait_for((60 - lost) as usize);
        assert_eq!(seen.all()[(50 - lost) as usize..], bodies[50..]);
        consumer.drain(PATIENCE).unwrap();
        assert_eq!(gaps.len(), 1);
    }
}

#[test]
fn an_emptied_or_deleted_stream_never_makes_an_idle_looking_lane() {
    let server = server();
    for (topic, flush) in [("deleted", false), ("flushed", true)] {
        let streams = open(&server.url(), topic, 1);
        let watched = Watched::start(streams.consumer(topic));
        publish_to(&streams, topic, 0, &refs(&ten()));
        watched.seen.wait_for(10);
        let remove: &[&str] = if flush {
            &["FLUSHALL"]
        } else {
            &["DEL", &stream(topic)]
        };
        server.command(remove).unwrap();
        // smaller than every id it has handled
        for id in ["1-1", "1-2", "1-3"] {
            server
                .command(&["XADD", &stream(topic), id, "b", id, "t", "T", "k", ""])
                .unwrap();
        }
        let all = watched.seen.wait_for(13);
        assert_eq!(all[10..], ["1-1", "1-2", "1-3"], "{topic}");
        let gap = watched.expect_gap();
        assert_eq!((gap.cause, gap.lost), (GapCause::Recreated, None));
        expect("its position to be stored", || {
            stored(&server, topic, "c", 0) == Some(StreamId::new(1, 3))
        });
        assert_eq!(watched.status().untold_gaps, 1);
        watched.consumer.stop();
    }
}

#[test]
fn a_stream_that_was_created_anew_while_nobody_looked_is_read_from_its_beginning() {
    let server = server();
    for (topic, id) in [("anew-later", "*"), ("anew-earlier", "5-*")] {
        let streams = open(&server.url(), topic, 1);
        handle(&streams, topic, &refs(&ten()));
        server.command(&["DEL", &stream(topic)]).unwrap();
        for n in 0..3 {
            let n = n.to_string();
            server
                .command(&["XADD", &stream(topic), id, "b", &n, "t", "T", "k", ""])
                .unwrap();
        }
        let watched = Watched::start(streams.consumer(topic));
        assert_eq!(watched.seen.wait_for(3), ["0", "1", "2"], "{topic}");
        let gap = watched.expect_gap();
        assert_eq!(
            (gap.cause, gap.lost),
            (GapCause::Recreated, None),
            "{topic}: {gap}"
        );
        watched.consumer.drain(PATIENCE).unwrap();
        handle(&streams, topic, &["after"]);
    }
}

#[test]
fn a_consumer_that_never_read_anything_misses_what_came_after_its_start() {
    let server = server();
    let streams = open(&server.url(), "never", 1);
    publish_to(&streams, "never", 0, &["of old"]);
    server
        .command(&["XTRIM", &stream("never"), "MAXLEN", "0"])
        .unwrap();
    let consumer = recording(streams.consumer("never").name("c"), &Seen::default());
    consumer.start().unwrap().stop();
    publish_to(&streams, "never", 0, &["lost", "lost", "kept"]);
    server
        .command(&["XTRIM", &stream("never"), "MAXLEN", "1"])
        .unwrap();
    let watched = Watched::start(streams.consumer("never"));
    assert_eq!(watched.seen.wait_for(1), ["kept"]);
    let gap = watched.expect_gap();
    assert_eq!((gap.position, gap.lost), (StreamId::MIN, Some(2)), "{gap}");
}

#[test]
fn a_stream_is_looked_at_before_the_first_read_of_every_connection() {
    let server = server();
    let streams = open(&server.url(), "before", 1);
    let watched = Watched::start(streams.consumer("before"));
    running(&watched.consumer);
    for connects in 2..6 {
        let monitor = Monitor::of(&server);
        for id in connections(&server, "streams-rd") {
            let kill = ["CLIENT", "KILL", "ID", &id.to_string()];
            server.command(&kill).unwrap();
        }
        expect("another connection", || {
            watched.status().connects == connects
        });
        // so that there is a read after it
        publish_to(&streams, "before", 0, &["x"]);
        watched.seen.wait_for(connects as usize - 1);
        let commands = monitor.commands(&server, &[]);
        let mut words = commands.iter().map(|c| c[0].to_uppercase());
        let greeted = words.any(|w| w == "HELLO");
        let first = words.find(|w| w == "XINFO" || w == "XREAD");
        assert_eq!((greeted, first.as_deref()), (true, Some("XINFO")));
    }
}

/// The stream as it was at some moment, counters and all.
struct Backup(Vec<u8>);

impl Backup {
    fn of(server: &PrivateServer, topic: &str) -> Self {
        match server.command(&["DUMP", &stream(topic)]).unwrap() {
            streamlane::testing::Reply::Bulk(bytes) => Self(bytes),
            other => panic!("{other:?}"),
        }
    }

    fn restore(&self, server: &PrivateServer, topic: &str) {
        let key = stream(topic);
        let args: [&[u8]; 5] = [b"RESTORE", key.as_bytes(), b"0", &self.0, b"REPLACE"];
        assert_eq!(server.command(&args).unwrap().text(), "OK");
    }
}

#[test]
fn a_stream_that_lost_its_tail_delivers_nothing_twice() {
    let server = server();
    // running, or stopped meanwhile
    for (topic, running) in [("tail-running", true), ("tail-stopped", false)] {
        let streams = open(&server.url(), topic, 1);
        let watched = Watched::start(streams.consumer(topic));
        let kept = publish_to(&streams, topic, 0, &refs(&ten()));
        watched.seen.wait_for(10);
        let backup = Backup::of(&server, topic);
        let gone = publish_to(&streams, topic, 0, &["x", "y", "z"]);
        watched.seen.wait_for(13);
        expect("the position to be stored", || {
            stored(&server, topic, "c", 0) == Some(gone[2])
        });
        let watched = if running {
            backup.restore(&server, topic);
            watched
        } else {
            drop(watched);
            backup.restore(&server, topic);
            Watched::start(streams.consumer(topic))
        };
        let before = watched.seen.len();
        let gap = watched.expect_gap();
        expect("where it goes on to be stored", || {
            stored(&server, topic, "c", 0) == Some(gap.resumes)
        });
        assert_eq!(
            (gap.cause, gap.position, gap.resumes),
            (GapCause::TailLost, gone[2], kept[9]),
            "{gap}"
        );
        // an id between what was kept and what was handled, as after the clocks of two servers
        let next = StreamId::new(kept[9].ms(), kept[9].seq() + 1).to_string();
        server
            .command(&["XADD", &stream(topic), &next, "b", "new", "t", "T", "k", ""])
            .unwrap();
        let all = watched.seen.wait_for(before + 1);
        assert_eq!(all[before..], ["new"]);
        watched.consumer.drain(PATIENCE).unwrap();
        assert_eq!(watched.seen.len(), before + 1);
    }
}

#[test]
fn a_server_that_comes_back_with_older_data_delivers_nothing_twice() {
    let server = PrivateServer::builder()
        .tcp()
        .config("save \"\"")
        .start()
        .unwrap();
    let streams = open(&server.url(), "older", 1);
    let watched = Watched::start(streams.consumer("older"));
    publish_to(&streams, "older", 0, &refs(&ten()));
    watched.seen.wait_for(10);
    server.command(&["SAVE"]).unwrap();
    publish_to(&streams, "older", 0, &["x", "y", "z"]);
    watched.seen.wait_for(13);
    server.kill();
    server.restart().unwrap();
    let gap = watched.expect_gap();
    assert_eq!(gap.cause, GapCause::TailLost, "{gap}");
    publish_to(&streams, "older", 0, &["new"]);
    assert_eq!(watched.seen.wait_for(14)[13], "new");
    watched.consumer.drain(PATIENCE).unwrap();
    assert_eq!(watched.seen.len(), 14);
    handle(&streams, "older", &["after"]);
}

#[test]
fn a_position_that_fits_no_stream_waits_for_a_person() {
    let server = server();
    let streams = open(&server.url(), "far", 1);
    handle(&streams, "far", &refs(&ten()));
    server
        .command(&["HSET", &positions("far"), "0", FAR])
        .unwrap();
    let watched = Watched::start(streams.consumer("far"));
    expect("the lane to say so", || {
        watched.status().state == LaneState::Ahead
    });
    let status = watched.status();
    assert!(status.reason.contains("PositionAhead"), "{}", status.reason);
    let health = streams.health();
    assert_eq!(
        (health.status, health.rule),
        (Status::Unhealthy, Rule::PositionAhead)
    );
    publish_to(&streams, "far", 0, &["new"]);
    // a few looks, over one connection
    eventually(Duration::from_millis(2500), || false);
    assert_eq!((watched.seen.len(), watched.gaps.len()), (0, 0));
    assert_eq!(watched.status().connects, 1);
    assert_eq!(logged(&["ERROR", "far[0]/c"]).len(), 1);
    assert_eq!(
        stored(&server, "far", "c", 0),
        Some(FAR.parse().unwrap()),
        "what a person has to decide on stays"
    );
    // a reset decides
    server
        .command(&["HSET", &positions("far"), "__reset:0", "0-0"])
        .unwrap();
    assert_eq!(watched.seen.wait_for(11)[10], "new");
    running(&watched.consumer);
    assert_eq!(watched.gaps.len(), 0);
    assert_eq!(streams.health().status, Status::Healthy);
}

#[test]
fn a_person_can_decide_beforehand_about_a_position_that_fits_no_stream() {
    let server = server();
    for (topic, ahead) in [
        ("far-begin", PositionAhead::Beginning),
        ("far-tail", PositionAhead::Tail),
    ] {
        let streams = open(&server.url(), topic, 1);
        handle(&streams, topic, &refs(&ten()));
        server
            .command(&["HSET", &positions(topic), "0", FAR])
            .unwrap();
        let watched = Watched::start(streams.consumer(topic).position_ahead(ahead));
        let gap = watched.expect_gap();
        assert_eq!((gap.cause, gap.lost), (GapCause::Ahead, None));
        let mut want = ten();
        if ahead == PositionAhead::Tail {
            want.clear();
        }
        let new = publish_to(&streams, topic, 0, &["new"]);
        want.push("new".into());
        assert_eq!(watched.seen.wait_for(want.len()), want);
        watched.consumer.stop();
        assert_eq!(stored(&server, topic, "c", 0), Some(new[0]));
        handle(&streams, topic, &["after"]);
    }
}

#[test]
fn a_position_that_nobody_counted_to_makes_no_alarm() {
    let server = server();
    let streams = open(&server.url(), "peer", 1);
    let ids = handle(&streams, "peer", &refs(&ten()));
    // a peer moves it without counting
    server
        .command(&["HSET", &positions("peer"), "0", &ids[5].to_string()])
        .unwrap();
    server
        .command(&["XTRIM", &stream("peer"), "MAXLEN", "2"])
        .unwrap();
    let watched = Watched::start(streams.consumer("peer"));
    assert_eq!(watched.seen.wait_for(2), ["8", "9"]);
    let gap = watched.expect_gap();
    assert_eq!((gap.cause, gap.lost), (GapCause::Uncounted, None));
    let status = watched.status();
    assert_eq!((status.gaps, status.lost, status.untold_gaps), (0, 0, 1));
    assert_eq!(streams.health().status, Status::Healthy);
    assert_eq!(logged(&["INFO peer[0]/c", "nobody counted"]).len(), 1);
    assert!(warned("peer[0]/c").is_empty());
    // from there on it is counted
    watched.consumer.stop();
    publish_to(&streams, "peer", 0, &["lost", "kept"]);
    server
        .command(&["XTRIM", &stream("peer"), "MAXLEN", "1"])
        .unwrap();
    let watched = Watched::start(streams.consumer("peer"));
    assert_eq!(watched.expect_gap().lost, Some(1));
}

#[test]
fn a_deleted_position_hash_is_written_again_from_memory() {
    let server = server();
    for (topic, persist) in [
        ("pos-async", Persist::AsyncBatch),
        ("pos-sync", Persist::SyncBatch),
    ] {
        let streams = open(&server.url(), topic, 1);
        let watched = Watched::start(streams.consumer(topic).persist(persist));
        let ids = publish_to(&streams, topic, 0, &refs(&ten()));
        expect("its position to be stored", || {
            stored(&server, topic, "c", 0) == Some(ids[9])
        });
        let meta = positions(topic) + ":meta";
        // while nothing is published
        server.command(&["DEL", &positions(topic), &meta]).unwrap();
        expect("it to be stored again", || {
            stored(&server, topic, "c", 0) == Some(ids[9])
        });
        expect("its ordinal, too", || {
            let ordinal = server.command(&["HGET", &meta, "0:ordinal"]).unwrap();
            ordinal.text() == format!("{} 10", ids[9])
        });
        let lines = logged(&["ERROR", &format!("{topic}[0]/c"), "deleted on the server"]);
        assert_eq!(lines.len(), 1, "{lines:?}");
        watched.consumer.stop();
        assert_eq!(watched.gaps.len(), 0);
    }
}

#[test]
fn a_position_hash_that_is_gone_at_start_is_told_loudly() {
    let server = server();
    let streams = open(&server.url(), "pos-gone", 1);
    handle(&streams, "pos-gone", &refs(&ten()));
    server.command(&["DEL", &positions("pos-gone")]).unwrap();
    let watched = Watched::start(streams.consumer("pos-gone"));
    assert_eq!(watched.seen.wait_for(10), ten());
    let lines = logged(&["ERROR", "re:p:{pos-gone}:c", "gone", "Beginning"]);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(watched.gaps.len(), 0);
    drop(watched);
    // of a new consumer nothing is gone
    recording(streams.consumer("pos-gone").name("other"), &Seen::default())
        .start()
        .unwrap()
        .drain(PATIENCE)
        .unwrap();
    assert!(warned("re:p:{pos-gone}:other").is_empty());
}

#[test]
fn a_stream_with_a_time_to_live_is_warned_about_and_its_end_reported() {
    let server = server();
    let streams = open(&server.url(), "mortal", 1);
    let ids = publish_to(&streams, "mortal", 0, &["0"]);
    server
        .command(&["PEXPIRE", &stream("mortal"), "3000"])
        .unwrap();
    let watched = Watched::start(streams.consumer("mortal"));
    watched.seen.wait_for(1);
    expect("a warning", || {
        !logged(&["WARN mortal[0]/c", "time to live", "PERSIST"]).is_empty()
    });
    let gap = watched.expect_gap();
    assert_eq!((gap.cause, gap.position), (GapCause::Recreated, ids[0]));
    publish_to(&streams, "mortal", 0, &["1"]);
    assert_eq!(watched.seen.wait_for(2), ["0", "1"]);
    assert_eq!(warned("time to live").len(), 1);
}

/// What was read before is handled, and what comes later stays; how much was in between died with the
/// stream.
#[test]
fn recipe_38_a_stream_that_expires_under_a_slow_consumer_is_warned_of_and_missed() {
    let server = server();
    let streams = open(&server.url(), "expires38", 1);
    let builder = streams
        .consumer("expires38")
        .batch_size(1)
        .read_ahead(false);
    let (seen, gaps) = (Seen::default(), Seen::<Gap>::default());
    let (all, told) = (seen.clone(), gaps.clone());
    let builder = builder.name("c").block(SOON);
    let builder = builder.on_gap(move |gap| told.push(gap.clone()));
    let consumer = builder.shared(move |m: &Message<'_>| {
        all.push(String::from_utf8_lossy(m.body()).into_owned());
        std::thread::sleep(Duration::from_millis(150));
        Ok(())
    });
    let consumer = consumer.start().unwrap();
    running(&consumer);
    let bodies = numbers(0..40);
    let ids = publish_to(&streams, "expires38", 0, &refs(&bodies));
    seen.wait_for(2);
    let key = stream("expires38");
    server.command(&["PEXPIRE", &key, "3000"]).unwrap();
    expect("a warning", || {
        !logged(&["WARN expires38[0]/c", "time to live", "PERSIST"]).is_empty()
    });
    let gap = gaps.wait_for(1)[0].clone();
    assert_eq!(gap.cause, GapCause::Recreated);
    let handled = seen.len();
    assert!((2..40).contains(&handled), "it was at work");
    let reported = (gap.position, gap.lost);
    assert_eq!(reported, (ids[handled - 1], None), "{gap:?}");
    publish_to(&streams, "expires38", 0, &["later"]);
    expect("what came later", || {
        seen.all().last().is_some_and(|b| b == "later")
    });
    assert_eq!(seen.len(), handled + 1);
    let left = server.command(&["PTTL", &key]).unwrap();
    assert_eq!(left.int(), Some(-1), "it has no end any more");
    assert_eq!(gaps.len(), 1);
}

#[test]
fn ids_from_the_far_future_are_read_on_from() {
    let server = server();
    let streams = open(&server.url(), "future", 1);
    let add = |id: &str| {
        server
            .command(&["XADD", &stream("future"), id, "b", id, "t", "T", "k", ""])
            .unwrap()
    };
    let watched = Watched::start(streams.consumer("future"));
    add("9999999999999-5");
    watched.seen.wait_for(1);
    publish_to(&streams, "future", 0, &["next"]);
    assert_eq!(watched.seen.wait_for(2)[1], "next");
    add("18446744073709551615-18446744073709551615");
    watched.seen.wait_for(3);
    watched.consumer.stop();
    drop(watched);
    // and it is no position ahead after a restart, emptied stream or not
    for _ in 0..2 {
        let watched = Watched::start(streams.consumer("future"));
        running(&watched.consumer);
        watched.consumer.drain(PATIENCE).unwrap();
        assert_eq!((watched.seen.len(), watched.gaps.len()), (0, 0));
        server
            .command(&["XTRIM", &stream("future"), "MAXLEN", "0"])
            .unwrap();
    }
}

#[test]
fn a_hook_that_panics_harms_nobody() {
    let server = server();
    let streams = open(&server.url(), "hook", 1);
    handle(&streams, "hook", &refs(&ten()));
    publish_to(&streams, "hook", 0, &["lost", "kept"]);
    server
        .command(&["XTRIM", &stream("hook"), "MAXLEN", "1"])
        .unwrap();
    let seen = Seen::default();
    let builder = streams
        .consumer("hook")
        .name("c")
        .on_gap(|_| panic!("on purpose"));
    let consumer = recording(builder, &seen).start().unwrap();
    assert_eq!(seen.wait_for(1), ["kept"]);
    let status = consumer.partitions()[0].clone();
    assert_eq!((status.gaps, status.lost, status.connects), (1, 1, 1));
    assert_eq!(
        logged(&["ERROR hook[0]/c", "on_gap hook panicked"]).len(),
        1
    );
}

#[test]
fn a_user_who_may_not_look_is_told_once_and_reads_all_the_same() {
    let server = server();
    let streams = open(&server.url(), "blind", 1);
    publish_to(&streams, "blind", 0, &["0"]);
    let user = [
        "ACL", "SETUSER", "blind", "on", ">pw", "~*", "+@all", "-xinfo",
    ];
    server.command(&user).unwrap();
    let url = server.url().replace("://", "://blind:pw@");
    let streams = open(&url, "blind", 1);
    let watched = Watched::start(streams.consumer("blind"));
    watched.seen.wait_for(1);
    eventually(Duration::from_millis(2500), || false);
    publish_to(&streams, "blind", 0, &["1"]);
    assert_eq!(watched.seen.wait_for(2), ["0", "1"]);
    let mut lines = warned("blind[0]/c");
    // what else is not known without that right is told by who asks
    lines.retain(|l| !l.contains("how far it is behind"));
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("go unnoticed") && lines[0].contains("NOPERM"));
    assert_eq!(watched.status().connects, 1);
}

/// However long whoever is told of it takes: what was finished before and is not stored yet never is.
#[test]
fn a_position_that_goes_back_with_its_stream_stays_there_while_the_gap_is_told() {
    let server = server();
    let streams = open(&server.url(), "backwards", 1);
    let seen = Seen::default();
    let interval = Duration::from_secs(2);
    let told = Seen::default();
    let tell = told.clone();
    let builder = streams.consumer("backwards").name("c").block(SOON);
    let builder = builder.persist_interval(interval).on_gap(move |_| {
        tell.push(());
        std::thread::sleep(interval + interval / 2);
    });
    let consumer = recording(builder, &seen).start().unwrap();
    running(&consumer);
    let key = stream("backwards");
    let add = |id: &str, body: &str| {
        let add = ["XADD", &key, id, "b", body, "t", "T", "k", ""];
        server.command(&add).unwrap();
    };
    add("500-0", "old");
    seen.wait_for(1);
    let another = "redis.call('DEL', KEYS[1]); \
                   redis.call('XADD', KEYS[1], '100-0', 'b', 'new', 't', 'T', 'k', '')";
    server.command(&["EVAL", another, "1", &key]).unwrap();
    for id in connections(&server, "streams-rd:backwards") {
        let kill = ["CLIENT", "KILL", "ID", &id.to_string()];
        server.command(&kill).unwrap();
    }
    told.wait_for(1);
    add("200-0", "more");
    expect("the rest", || seen.all().contains(&"more".to_owned()));
    let end = "200-0".parse().ok();
    expect("its position", || {
        stored(&server, "backwards", "c", 0) == end
    });
    consumer.stop();
    assert_eq!(stored(&server, "backwards", "c", 0), end);
}
