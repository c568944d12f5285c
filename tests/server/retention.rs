//! Messages are kept for a time, and what somebody has yet to read for longer; one process deletes them.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::{thread, time::Duration};

use streamlane::{
    testing::{Fault, PrivateServer, Relay, Reply, Way, eventually},
    *,
};

use crate::support::*;

/// A millisecond long ago.
pub(crate) const MS: u64 = 1_700_000_000_000;
pub(crate) const HOUR: Duration = Duration::from_hours(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// Leases and sweeps take their time.
const LONG: Duration = Duration::from_secs(40);

pub(crate) fn int(server: &PrivateServer, command: &[&str]) -> i64 {
    server.command(command).unwrap().int().unwrap()
}

pub(crate) fn stream(topic: &str) -> String {
    format!("re:s:{{{topic}}}:0")
}

pub(crate) fn lease(topic: &str) -> String {
    format!("re:tr:{{{topic}}}")
}

pub(crate) fn len(server: &PrivateServer, topic: &str) -> i64 {
    int(server, &["XLEN", &stream(topic)])
}

/// The id of the n-th old entry.
pub(crate) fn id(n: u64) -> String {
    format!("{}-0", MS + n)
}

/// A topic of one partition with so many entries that are very old.
pub(crate) fn old(server: &PrivateServer, topic: &str, n: u64) {
    let meta = format!("re:m:{{{topic}}}");
    server
        .command(&["HSET", &meta, "partitions", "1", "v", "1"])
        .unwrap();
    add(server, topic, 0..n);
}

pub(crate) fn add(server: &PrivateServer, topic: &str, range: std::ops::Range<u64>) {
    let mut client = server.client().unwrap();
    for n in range {
        let entry = ["XADD", &stream(topic), &id(n), "b", "x", "t", "T", "k", ""];
        client.send(&entry).unwrap();
        client.receive().unwrap();
    }
}

pub(crate) fn put(server: &PrivateServer, topic: &str, consumer: &str, at: u64) {
    let key = format!("re:p:{{{topic}}}:{consumer}");
    server.command(&["HSET", &key, "0", &id(at)]).unwrap();
}

pub(crate) fn kept_for(age: Duration) -> TopicSettings {
    TopicSettings::default()
        .partitions(1)
        .trim(Trim::Exact)
        .max_len(10_000)
        .retention(age)
        .background_trim_interval(SECOND)
}

/// A process that uses the topic. As long as the publisher is there it does.
pub(crate) fn process(
    url: &str,
    topic: &str,
    settings: TopicSettings,
    pod: &str,
) -> (Streams, Publisher) {
    let settings = Settings::default()
        .connection_string(url)
        .pod_name(pod)
        .with_topic(topic, settings);
    let streams = Streams::open(settings).unwrap();
    let publisher = streams.publisher(topic).unwrap();
    (streams, publisher)
}

/// An answer may still be on its way when its effect is seen.
#[track_caller]
fn counted(streams: &Streams, reason: TrimReason, n: u64) {
    becomes("it to be counted", || trimmed(streams, reason) >= n);
    assert_eq!(trimmed(streams, reason), n);
}

fn trimmed(streams: &Streams, reason: TrimReason) -> u64 {
    streams.trimmed().iter().map(|t| t.messages(reason)).sum()
}

#[track_caller]
pub(crate) fn becomes(what: &str, happened: impl FnMut() -> bool) {
    assert!(eventually(LONG, happened), "waited in vain for: {what}");
}

/// So long that a sweep would have come.
pub(crate) fn let_sweeps_pass() {
    thread::sleep(3 * SECOND);
}

#[test]
fn what_is_old_goes_up_to_the_slowest_reader_whoever_that_is() {
    let server = server();
    old(&server, "slowest", 200);
    // Neither has written down that it reads the topic.
    put(&server, "slowest", "slow", 50);
    put(&server, "slowest", "fast", 120);
    let (streams, _publisher) = process(&server.url(), "slowest", kept_for(HOUR), "p");
    becomes("what both have read to go", || {
        len(&server, "slowest") == 150
    });
    let first = server.command(&["XRANGE", &stream("slowest"), "-", "+", "COUNT", "1"]);
    let first = first.unwrap().items()[0].items()[0].text();
    assert_eq!(first, id(50), "the last that was read stays");
    expect("a word about it", || {
        warned("topic slowest ")
            .iter()
            .any(|l| l.contains("kept for slow,"))
    });
    server.command(&["DEL", "re:p:{slowest}:slow"]).unwrap();
    becomes("the next to be waited for", || {
        len(&server, "slowest") == 80
    });
    server.command(&["DEL", "re:p:{slowest}:fast"]).unwrap();
    becomes("nobody to be waited for", || len(&server, "slowest") == 0);
    counted(&streams, TrimReason::MinId, 120);
    counted(&streams, TrimReason::Age, 80);
    assert!(
        streams
            .trimmed()
            .iter()
            .all(|t| t.unread == 0 && t.released.is_empty())
    );
    assert_eq!(logged(&["ERROR", "slowest"]), [""; 0]);
}

#[test]
fn what_is_young_stays_and_so_does_what_a_group_has_not_finished() {
    let server = server();
    for topic in ["young", "group"] {
        old(&server, topic, 10);
    }
    let group = stream("group");
    for n in 0..2 {
        // a group that no consumer of ours stands for
        let at = if n == 0 { "0" } else { "$" };
        let name = format!("g{n}");
        server
            .command(&["XGROUP", "CREATE", &group, &name, at])
            .unwrap();
    }
    let read = [
        "XREADGROUP",
        "GROUP",
        "g0",
        "m",
        "COUNT",
        "8",
        "STREAMS",
        &group,
        ">",
    ];
    server.command(&read).unwrap();
    for n in [0, 1, 2, 5] {
        server.command(&["XACK", &group, "g0", &id(n)]).unwrap();
    }
    let (_streams, publisher) = process(&server.url(), "young", kept_for(HOUR), "p");
    let (_others, _publisher) = process(&server.url(), "group", kept_for(HOUR), "q");
    for n in 0..5 {
        publisher.publish("k", "T", n.to_string()).unwrap();
    }
    becomes("what is old to go", || len(&server, "young") == 5);
    becomes("what the group has finished to go", || {
        len(&server, "group") == 7
    });
    let_sweeps_pass();
    assert_eq!((len(&server, "young"), len(&server, "group")), (5, 7));
    assert!(!warned("topic group ").is_empty(), "g0 is waited for");
    for n in [3, 4, 6, 7] {
        server.command(&["XACK", &group, "g0", &id(n)]).unwrap();
    }
    becomes("the last but two to go", || len(&server, "group") == 3);
    assert_eq!(warned("topic young "), [""; 0]);
}

#[test]
fn who_has_read_everything_and_who_keeps_nothing_hold_nothing_back() {
    let server = server();
    old(&server, "idle", 30);
    put(&server, "idle", "done", 29);
    let register = "re:c:{idle}";
    server
        .command(&["HSET", register, "forgetful", "nothing"])
        .unwrap();
    // So many that whoever held them back would not be waited for.
    let settings = kept_for(HOUR).max_len(10);
    let (streams, _publisher) = process(&server.url(), "idle", settings, "p");
    becomes("everything to go", || len(&server, "idle") == 0);
    counted(&streams, TrimReason::Age, 30);
    assert_eq!(streams.trimmed()[0].released.len(), 0);
    assert_eq!(warned("topic idle "), [""; 0]);
    add(&server, "idle", 30..31);
    let_sweeps_pass();
    assert_eq!(len(&server, "idle"), 1, "this one is unread");
}

#[test]
fn who_is_registered_and_has_no_position_yet_is_waited_for() {
    let server = server();
    old(&server, "fresh", 30);
    server
        .command(&["HSET", "re:c:{fresh}", "new", "positions"])
        .unwrap();
    let (_streams, _publisher) = process(&server.url(), "fresh", kept_for(HOUR), "p");
    expect("a word about it", || {
        warned("topic fresh ")
            .iter()
            .any(|l| l.contains("kept for new,"))
    });
    assert_eq!(len(&server, "fresh"), 30);
    server.command(&["HDEL", "re:c:{fresh}", "new"]).unwrap();
    becomes("everything to go", || len(&server, "fresh") == 0);
}

#[test]
fn r77_a_reader_that_died_is_not_waited_for_for_ever() {
    let server = server();
    let settings = kept_for(SECOND).max_len(100).clamp_release_threshold(0.5);
    let (streams, publisher) = process(&server.url(), "dead", settings, "p");
    let send = |n: u32| {
        for n in 0..n {
            publisher.publish("k", "T", n.to_string()).unwrap();
        }
    };
    send(1);
    let seen = Seen::default();
    let consumer = recording(streams.consumer("dead").name("dead-b"), &seen);
    consumer.start().unwrap().drain(PATIENCE).unwrap();
    assert_eq!(seen.all(), ["0"]);
    send(49);
    expect("a word about who holds it up", || {
        let words = warned("topic dead ").into_iter();
        words.filter(|l| l.contains("kept for dead-b,")).count() == 1
    });
    assert!(len(&server, "dead") >= 49, "all that is unread stays");
    let errors = || logged(&["ERROR topic dead ", "dead-b had yet to read"]);
    assert_eq!(errors().len(), 0, "it is below the threshold");
    // ten times what fits
    send(1000);
    becomes("nobody to be waited for", || {
        errors().len() == 1 && len(&server, "dead") == 0
    });
    let of = || {
        let mut all = streams.trimmed().into_iter();
        all.find(|t| t.topic == "dead").unwrap()
    };
    becomes("all that to be counted", || {
        let gone = of().messages(TrimReason::Age) + of().messages(TrimReason::MaxLen);
        // the first was read, if it was not gone before
        of().unread >= 100 && (0..=1).contains(&(gone - of().unread))
    });
    assert_eq!(of().released.get("dead-b"), Some(&1));
    assert!(errors()[0].contains(" messages were deleted that dead-b had yet to read"));
    // What comes now is held again, until it is too much again.
    send(20);
    let_sweeps_pass();
    assert_eq!((len(&server, "dead"), errors().len()), (20, 1));
    send(80);
    becomes("that to be told anew", || {
        of().released.get("dead-b") == Some(&2) && errors().len() == 2
    });
    becomes("it to go", || len(&server, "dead") == 0);
}

#[test]
fn a_release_leaves_what_is_young_but_no_more_than_there_is_room_for() {
    let server = server();
    old(&server, "room", 40);
    put(&server, "room", "slow", 9);
    let settings = kept_for(HOUR).max_len(100);
    let (streams, publisher) = process(&server.url(), "room", settings, "p");
    becomes("what was read to go", || len(&server, "room") == 31);
    for n in 0..55 {
        publisher.publish("k", "T", n.to_string()).unwrap();
    }
    // 86 are there, 80 may be, 66 are to be left, and 55 are young.
    becomes("the old ones to go", || len(&server, "room") == 55);
    counted(&streams, TrimReason::Age, 30);
    becomes("them to be told from the others", || {
        streams.trimmed()[0].unread > 0
    });
    let done = &streams.trimmed()[0];
    assert_eq!((done.unread, done.messages(TrimReason::MinId)), (30, 10));
    assert_eq!(done.messages(TrimReason::MaxLen), 0);
}

#[test]
fn of_two_processes_one_trims_and_the_other_goes_on_when_it_stops() {
    let server = server();
    old(&server, "two", 10);
    let one = process(&server.url(), "two", kept_for(HOUR), "one");
    becomes("a lease", || int(&server, &["EXISTS", &lease("two")]) == 1);
    let two = process(&server.url(), "two", kept_for(HOUR), "two");
    becomes("a sweep", || len(&server, "two") == 0);
    let_sweeps_pass();
    add(&server, "two", 10..20);
    becomes("another", || len(&server, "two") == 0);
    counted(&one.0, TrimReason::Age, 20);
    assert_eq!(trimmed(&two.0, TrimReason::Age), 0);
    let held = || server.command(&["GET", &lease("two")]).unwrap();
    let (before, ttl) = (held(), int(&server, &["PTTL", &lease("two")]));
    assert!((1..=6000).contains(&ttl), "{ttl}");
    drop(one);
    assert_eq!(held(), Reply::Nil, "it was handed back");
    add(&server, "two", 20..30);
    becomes("the other to go on", || len(&server, "two") == 0);
    counted(&two.0, TrimReason::Age, 10);
    assert!(held() != Reply::Nil && held() != before);
}

#[test]
fn who_is_cut_off_loses_the_lease_and_another_trims() {
    let server = server();
    old(&server, "cut", 10);
    let relay = Relay::to(&server).unwrap();
    let one = process(&relay.url(), "cut", kept_for(HOUR), "one");
    becomes("a sweep", || len(&server, "cut") == 0);
    let two = process(&server.url(), "cut", kept_for(HOUR), "two");
    let_sweeps_pass();
    for way in [Way::Requests, Way::Replies] {
        relay.fault(way, Fault::BlackHole);
    }
    add(&server, "cut", 10..20);
    becomes("another to take over", || len(&server, "cut") == 0);
    counted(&one.0, TrimReason::Age, 10);
    counted(&two.0, TrimReason::Age, 10);
    relay.heal();
    drop(one);
    let held = server.command(&["GET", &lease("cut")]).unwrap();
    assert!(
        held != Reply::Nil,
        "it does not hand back what is another's"
    );
}

#[test]
fn dead_letters_grow_old_without_new_ones() {
    let server = server();
    let streams = open(&server.url(), "letters", 1);
    publish(&streams, "letters", 0..3);
    let consumer = streams
        .consumer("letters")
        .name("c")
        .dead_letters(1000, 2 * SECOND)
        .messages(|_| {
            |_: &Message<'_>| -> HandlerResult { Err(std::io::Error::other("no")).or_dead_letter() }
        })
        .start()
        .unwrap();
    let key = "re:d:{letters}:c";
    becomes("letters", || int(&server, &["EXISTS", key]) == 1);
    becomes("them to be deleted", || int(&server, &["XLEN", key]) == 0);
    assert_eq!(consumer.partitions()[0].parked, 3);
}

#[test]
fn without_the_right_to_look_for_others_what_is_unread_is_kept() {
    let server = server();
    old(&server, "rights", 10);
    let user = [
        "ACL", "SETUSER", "u", "on", ">p", "~*", "&*", "+@all", "-scan",
    ];
    server.command(&user).unwrap();
    let url = server.tcp_url().replace("redis://", "redis://u:p@");
    let (_streams, _publisher) = process(&url, "rights", kept_for(HOUR), "p");
    expect("a word about it", || {
        warned("trimming topics by age")
            .iter()
            .any(|l| l.contains("+scan"))
            && !warned("topic rights partition 0: messages older").is_empty()
    });
    assert_eq!(len(&server, "rights"), 10);
}

#[test]
fn r95_an_approximate_trim_keeps_no_more_than_a_node_and_an_exact_one_nothing() {
    for (nodes, more) in [("4096", 100), ("0", 100)] {
        let server = PrivateServer::builder()
            .config(format!("stream-node-max-bytes {nodes}"))
            .start()
            .unwrap();
        for (size, max) in [(10, 10), (10, 300), (20_000, 10), (20_000, 150)] {
            for trim in [Trim::Approx, Trim::Exact] {
                let topic = format!("r95-{size}-{max}-{trim:?}");
                let settings = TopicSettings::default()
                    .partitions(1)
                    .max_len(max)
                    .trim(trim);
                let (_streams, publisher) = process(&server.url(), &topic, settings, "p");
                let body = vec![b'x'; size];
                let all: Vec<_> = (0..500)
                    .map(|_| Outgoing::new("T", &body[..]).key("k"))
                    .collect();
                for stored in publisher.publish_batch(&all) {
                    stored.unwrap();
                }
                let len = len(&server, &topic).cast_unsigned();
                let most = if trim == Trim::Exact { max } else { max + more };
                assert!((max..=most).contains(&len), "{nodes} {topic}: {len}");
            }
        }
        // What grew without a bound is cut as soon as there is one, and no limit leaves it long.
        old(&server, "r95", 3000);
        let settings = TopicSettings::default().partitions(1).max_len(100);
        let (_streams, publisher) = process(&server.url(), "r95", settings, "p");
        publisher.publish("k", "T", "x").unwrap();
        assert!((100..=200).contains(&len(&server, "r95")));
    }
}

#[test]
fn r96_what_a_queue_has_finished_is_bounded_and_what_is_pending_is_not_lost_in_silence() {
    let server = server();
    let settings = TopicSettings::default().partitions(1).max_len(1000);
    let (streams, publisher) = process(&server.url(), "r96", settings, "p");
    let seen = Seen::default();
    let of = seen.clone();
    let hold = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let held = hold.clone();
    let consumer = streams
        .consumer("r96")
        .name("c")
        .delivery(Delivery::WorkQueue)
        .batch_size(1)
        .messages(move |_| {
            let (of, held) = (of.clone(), held.clone());
            move |m: &Message<'_>| -> HandlerResult {
                of.push(m.id());
                while m.body() == b"first" && held.load(std::sync::atomic::Ordering::SeqCst) {
                    thread::sleep(Duration::from_millis(5));
                }
                Ok(())
            }
        })
        .start()
        .unwrap();
    publisher.publish("k", "T", "first").unwrap();
    seen.wait_for(1);
    // The first is trimmed away while it is in the hands of a member that lives.
    let all: Vec<_> = (0..500).map(|_| Outgoing::new("T", "x").key("k")).collect();
    for _ in 0..40 {
        for stored in publisher.publish_batch(&all) {
            stored.unwrap();
        }
    }
    assert!(len(&server, "r96") <= 1100, "bounded by default");
    let gone = server
        .command(&["XRANGE", &stream("r96"), "-", "+", "COUNT", "1"])
        .unwrap();
    assert!(gone.items()[0].items()[0].text() > seen.all()[0].to_string());
    hold.store(false, std::sync::atomic::Ordering::SeqCst);
    expect("the newest to be handled", || {
        let pending = server.command(&["XPENDING", &stream("r96"), "c"]).unwrap();
        seen.len() > 900 && pending.items()[0].int() == Some(0)
    });
    let status = &consumer.partitions()[0];
    assert_eq!(
        status.handled,
        seen.len() as u64,
        "what was in hand was finished"
    );
}

#[test]
fn what_acknowledgements_delete_at_once_is_counted_once_and_only_of_the_topic() {
    let server = server();
    let (streams, publisher) = process(&server.url(), "ack-counts", kept_for(HOUR), "p");
    // before anything is handled, so that some travel with a read and some are on their own
    for body in [["x"; 50].as_slice(), &["again", "bad"], &["x"; 30]].concat() {
        publisher.publish("k", "T", body).unwrap();
    }
    let consumer = streams
        .consumer("ack-counts")
        .name("c")
        .delivery(Delivery::WorkQueue)
        .ack_delete(AckDelete::Immediate)
        .batch_size(7)
        .messages(|_| {
            |m: &Message<'_>| -> HandlerResult {
                match m.body() {
                    b"again" if m.attempt() == 1 => Err("later").or_retry_after(SECOND)?,
                    b"bad" => Err("for good").or_dead_letter()?,
                    _ => {}
                }
                Ok(())
            }
        })
        .start()
        .unwrap();
    let retries = "re:rt:{ack-counts}:c";
    becomes("all to be finished", || {
        let handled: u64 = consumer.partitions().iter().map(|p| p.handled).sum();
        handled == 81 && len(&server, "ack-counts") == 0 && int(&server, &["XLEN", retries]) == 0
    });
    consumer.stop();
    counted(&streams, TrimReason::Ack, 82);
    assert_eq!(streams.trimmed().len(), 1, "{:?}", streams.trimmed());
}

#[test]
fn r97_what_is_deleted_one_by_one_and_trimmed_leaves_a_stream_that_loads() {
    let server = server();
    let settings = kept_for(SECOND);
    let (streams, publisher) = process(&server.url(), "r97", settings, "p");
    let consumer = streams
        .consumer("r97")
        .name("c")
        .delivery(Delivery::WorkQueue)
        .ack_delete(AckDelete::Immediate)
        .messages(|_| {
            |m: &Message<'_>| -> HandlerResult {
                // those in the middle stay for a while, and holes lie behind them
                if m.body() == b"waits" && m.attempt() == 1 {
                    Err("later").or_retry_after(SECOND)?;
                }
                Ok(())
            }
        })
        .start()
        .unwrap();
    // A node that ends in a hole which is young, behind entries that are not.
    old(&server, "r97-hole", 120);
    let kept = kept_for(HOUR).background_trim_interval(Duration::ZERO);
    let (others, young) = process(&server.url(), "r97-hole", kept, "q");
    let last = young.publish("k", "T", "x").unwrap().to_string();
    let hole = stream("r97-hole");
    server.command(&["XDEL", &hole, &last]).unwrap();
    let swept = others.admin().trim_now("r97-hole").unwrap();
    assert_eq!((swept[0].trimmed, swept[0].length), (120, 0));
    let told = server.command(&["XINFO", "STREAM", &hole]).unwrap();
    let nodes = told
        .items()
        .chunks(2)
        .find(|p| p[0].text() == "radix-tree-keys");
    assert_eq!(nodes.unwrap()[1].int(), Some(0), "no empty node is left");
    let facts = |name: &str| {
        let facts = server
            .command(&["XINFO", "STREAM", &stream("r97")])
            .unwrap();
        let mut pairs = facts.items().chunks(2);
        pairs.find(|p| p[0].text() == name).unwrap()[1]
            .int()
            .unwrap()
    };
    for round in 0..3 {
        for n in 0..250 {
            let body = if n % 3 == 1 { "waits" } else { "x" };
            publisher.publish("k", "T", body).unwrap();
        }
        // by somebody else, behind what the trimmer cuts at
        let last = publisher.publish("k", "T", "by hand").unwrap();
        server
            .command(&["XDEL", &stream("r97"), &last.to_string()])
            .unwrap();
        becomes("all to be finished and deleted", || {
            len(&server, "r97") == 0
        });
        assert_eq!(facts("radix-tree-keys"), 0, "no empty node is left");
        let reloaded = server.command(&["DEBUG", "RELOAD"]).unwrap();
        assert_eq!(reloaded.text(), "OK", "round {round}");
    }
    drop(consumer);
    assert_eq!(logged(&["ERROR topic r97"]), [""; 0]);
}
