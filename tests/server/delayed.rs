//! Messages that are published later: not before their time, in order, each once, whoever lives then.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::{
    collections::BTreeSet,
    fs,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use streamlane::{
    testing::{Aof, Fault, PrivateServer, Relay, Reply, Way},
    *,
};

use crate::{
    publishing::{entries, length},
    support::*,
};

const HOUR: Duration = Duration::from_hours(1);
const SOON: Duration = Duration::from_millis(50);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn text(server: &PrivateServer, command: &[&str]) -> String {
    server.command(command).unwrap().text()
}

fn int(server: &PrivateServer, command: &[&str]) -> i64 {
    server.command(command).unwrap().int().unwrap()
}

/// The server's clock.
fn server_ms(server: &PrivateServer) -> u64 {
    let time = server.command(&["TIME"]).unwrap();
    let part = |i: usize| time.items()[i].int().unwrap().cast_unsigned();
    part(0) * 1000 + part(1) / 1000
}

fn due_ms(delayed: &Delayed) -> u64 {
    delayed
        .due()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_millis() as u64
}

fn bodies(server: &PrivateServer, topic: &str, partition: u32) -> Vec<String> {
    let all = entries(server, topic, partition).into_iter();
    all.map(|(_, fields)| fields[1].clone()).collect()
}

fn total(server: &PrivateServer, topic: &str, partitions: u32) -> i64 {
    (0..partitions).map(|p| length(server, topic, p)).sum()
}

/// The keys that delayed messages live under.
fn keys(server: &PrivateServer) -> Vec<String> {
    let keys = server.command(&["KEYS", "re:d[il]:*"]).unwrap();
    keys.items().iter().map(Reply::text).collect()
}

fn status(streams: &Streams, topic: &str) -> PublishStatus {
    let mut all = streams.published().into_iter();
    all.find(|s| s.topic == topic).unwrap()
}

#[test]
fn messages_come_when_they_are_due_in_that_order_and_leave_nothing_behind() {
    let server = server();
    let streams = open(&server.url(), "later", 1);
    let publisher = streams.publisher("later").unwrap();
    let delay = |body: &str, d: u64| {
        let m = publisher.message("T", body).key("k");
        m.deliver_after(ms(d)).publish().unwrap()
    };
    let before = server_ms(&server);
    let last = delay("last", 700);
    let after = server_ms(&server);
    assert!(
        (before + 700..=after + 701).contains(&due_ms(&last)),
        "{before} {last} {after}: on the server's clock"
    );
    let first = delay("first", 150);
    let moment = first.due() + ms(200);
    // of one millisecond, in the order in which they were added
    let same = (0..50).map(|n| {
        let body = format!("same-{n}");
        let m = publisher.message("T", &body).key("k");
        m.deliver_at(moment).publish().unwrap()
    });
    let same: Vec<_> = same.collect();
    let now = publisher.publish("k", "T", "now").unwrap();
    assert!(
        same.iter()
            .all(|d| d.due() == moment && !d.repeated() && d.partition() == 0)
    );
    expect("all to be published", || length(&server, "later", 0) == 53);
    let all = entries(&server, "later", 0);
    let mut order = vec!["now".to_owned(), "first".to_owned()];
    order.extend((0..50).map(|n| format!("same-{n}")));
    order.push("last".to_owned());
    assert_eq!(bodies(&server, "later", 0), order);
    let id = |n: usize| all[n].0.parse::<StreamId>().unwrap();
    assert!(id(0) == now && id(1).ms() >= due_ms(&first) && id(2).ms() >= due_ms(&same[0]));
    assert!(id(52).ms() >= due_ms(&last), "not before its time");
    expect("nothing to be left", || keys(&server).is_empty());
    let status = status(&streams, "later");
    assert_eq!(
        (status.scheduled, status.moved, status.put_off),
        (52, 52, 0)
    );
    assert_eq!((status.stored, status.refused), (vec![1], 0));
}

/// One of several messages that have much or little, as a draft of whatever publisher.
macro_rules! nth {
    ($publisher:expr, $n:expr, $all:expr, $large:expr) => {{
        let (message_type, body): (&[u8], &[u8]) = match $n {
            1 => (b"", b""),
            2 => (b"T", b""),
            3 => ($all, $all),
            4 => (b"T", $large),
            _ => (b"T", b"B"),
        };
        let draft = $publisher.message(message_type, body);
        match $n {
            2 => draft.key("").correlation_id("").traceparent(""),
            3 => draft.key($all).correlation_id($all).traceparent($all),
            4 => draft.key("k"),
            5 => draft.header("a", "").header("b", $all),
            _ => draft,
        }
    }};
}

/// Whatever a message has, it has it still, and what it has not it does not get.
#[test]
fn what_is_delayed_is_what_is_published_at_once() {
    let server = server();
    let streams = open(&server.url(), "bytes", 1);
    let publisher = streams.publisher("bytes").unwrap();
    let mut dedicated = publisher.dedicated();
    let all: &Vec<u8> = &(0..=255).collect();
    let large = &all.repeat(40_000);
    let mut expected = 0;
    let mut published = |what| {
        expected += 1;
        expect(what, || length(&server, "bytes", 0) == expected);
    };
    for n in 0..6 {
        nth!(publisher, n, all, large).publish().unwrap();
        published("the one of now");
        let later = nth!(publisher, n, all, large).deliver_after(SOON);
        later.publish().unwrap();
        published("the one of later");
        let past = nth!(dedicated, n, all, large).deliver_at(UNIX_EPOCH);
        past.publish().unwrap();
        published("the one of before");
    }
    let range = server.command(&["XRANGE", "re:s:{bytes}:0", "-", "+"]);
    let range = range.unwrap();
    let fields: Vec<_> = range.items().iter().map(|e| &e.items()[1]).collect();
    for (n, same) in fields.chunks(3).enumerate() {
        assert!(same[0] == same[1] && same[1] == same[2], "message {n}");
    }
}

#[test]
fn what_is_due_already_comes_at_once_and_what_is_no_time_is_refused() {
    let server = server();
    let streams = open(&server.url(), "times", 1);
    let publisher = streams.publisher("times").unwrap();
    let draft = || publisher.message("T", "B").key("k");
    let moments = [UNIX_EPOCH, SystemTime::now() - HOUR, SystemTime::now()];
    for moment in moments {
        draft().deliver_at(moment).publish().unwrap();
    }
    draft().deliver_after(Duration::ZERO).publish().unwrap();
    expect("all of them", || length(&server, "times", 0) == 4);
    let years = 366 * 24 * HOUR;
    for (refused, named) in [
        (draft().deliver_at(UNIX_EPOCH - SOON).publish(), "1970"),
        (
            draft().deliver_at(SystemTime::now() + 11 * years).publish(),
            "10 years",
        ),
        (
            draft().deliver_at(UNIX_EPOCH + 5000 * years).publish(),
            "10 years",
        ),
        (draft().deliver_after(11 * years).publish(), "10 years"),
        (draft().deliver_after(Duration::MAX).publish(), "10 years"),
    ] {
        let e = refused.unwrap_err();
        assert_eq!(
            (e.kind(), e.outcome()),
            (ErrorKind::Argument, Outcome::NotApplied),
            "{e}"
        );
        assert!(e.to_string().contains(named), "{e}");
    }
    let far = draft().deliver_after(9 * years).publish().unwrap();
    assert!(publisher.cancel(&far).unwrap());
    let large = vec![b'x'; 6_000_000];
    let small = settings(&server.url(), "times", 1).max_message_bytes(5_000_000);
    let small = Streams::open(small).unwrap().publisher("times").unwrap();
    let e = small
        .message("T", &large)
        .deliver_after(SOON)
        .publish()
        .unwrap_err();
    assert_eq!(
        (e.kind(), e.outcome()),
        (ErrorKind::TooLarge, Outcome::NotApplied),
        "{e}"
    );
    let status = status(&streams, "times");
    assert_eq!((status.scheduled, status.refused), (5, 5));
    assert!(keys(&server).is_empty(), "{:?}", keys(&server));
}

#[test]
fn who_scheduled_it_or_has_its_text_can_withdraw_it() {
    let server = server();
    let streams = open(&server.url(), "withdrawn", 2);
    let publisher = streams.publisher("withdrawn").unwrap();
    let delay = |key: &str| {
        let m = publisher.message("T", key).key(key);
        m.deliver_after(ms(600)).publish().unwrap()
    };
    let keys_of = ["a", "b", "c", "d"];
    let [first, second, third, fourth] = keys_of.map(delay);
    assert!(publisher.cancel(&first).unwrap());
    assert!(!publisher.cancel(&first).unwrap(), "it is gone");
    let written = second.to_string();
    let other = open(&server.url(), "withdrawn", 2)
        .publisher("withdrawn")
        .unwrap();
    let read: Delayed = written.parse().unwrap();
    assert_eq!(read, second);
    assert!(other.dedicated().cancel(&read).unwrap());
    expect("the others", || total(&server, "withdrawn", 2) == 2);
    let left: BTreeSet<_> = (0..2)
        .flat_map(|p| bodies(&server, "withdrawn", p))
        .collect();
    assert_eq!(left, ["c", "d"].map(String::from).into());
    assert!(!publisher.cancel(&third).unwrap() && !other.cancel(&fourth).unwrap());
    expect("nothing to be left", || keys(&server).is_empty());
    // of a partition that the topic has not
    let beyond: Delayed = format!("7 {}", &written[2..]).parse().unwrap();
    let e = publisher.cancel(&beyond).unwrap_err();
    assert_eq!(
        (e.kind(), e.operation()),
        (ErrorKind::Argument, "cancel"),
        "{e}"
    );
}

#[test]
fn an_answer_that_is_lost_is_said_to_be_that_of_a_withdrawal() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let streams = open(&relay.url(), "withdrawn-later", 1);
    let publisher = streams.publisher("withdrawn-later").unwrap();
    let m = publisher.message("T", "B");
    let delayed = m.deliver_after(HOUR).publish().unwrap();
    relay.fault(Way::Replies, Fault::CutAfter(0));
    let e = publisher.cancel(&delayed).unwrap_err();
    assert_eq!(
        (e.operation(), e.outcome()),
        ("cancel", Outcome::Unknown),
        "{e}"
    );
}

#[test]
fn a_partition_is_chosen_now_and_growth_does_not_move_it() {
    let server = server();
    let streams = open(&server.url(), "grown", 2);
    let publisher = streams.publisher("grown").unwrap();
    let names: Vec<_> = (0..40).map(|n| n.to_string()).collect();
    let delayed: Vec<_> = names
        .iter()
        .map(|k| {
            let m = publisher.message("T", k).key(k);
            m.deliver_after(ms(1500)).publish().unwrap()
        })
        .collect();
    let keyless: BTreeSet<_> = (0..4)
        .map(|_| {
            let m = publisher.message("T", "keyless");
            m.deliver_after(ms(1500)).publish().unwrap().partition()
        })
        .collect();
    assert_eq!(keyless.len(), 2, "in turn");
    let large = open(&server.url(), "grown", 6).publisher("grown").unwrap();
    // where only the newcomer knows of partitions
    let m = large.message("T", "new").partition(5);
    m.deliver_after(Duration::ZERO).publish().unwrap();
    expect("all of them", || total(&server, "grown", 6) == 45);
    for (delayed, k) in delayed.iter().zip(&names) {
        let there = bodies(&server, "grown", delayed.partition());
        assert!(there.contains(k), "{delayed}");
    }
    assert_eq!(bodies(&server, "grown", 5), ["new"]);
}

#[test]
fn partitions_that_are_kept_apart_have_buckets_of_their_own() {
    let server = server();
    let apart = TopicSettings::default()
        .partitions(4)
        .co_locate_partitions(false);
    let settings = settings(&server.url(), "apart", 4).with_topic("apart", apart);
    let streams = Streams::open(settings).unwrap();
    let publisher = streams.publisher("apart").unwrap();
    for n in 0..40 {
        let (key, id) = (n.to_string(), format!("id-{n}"));
        let m = publisher.message("T", &key).key(&key).dedupe(&id, HOUR);
        let delayed = m.deliver_after(ms(300)).publish().unwrap();
        let stream = format!("re:s:apart:{}", delayed.partition());
        if n == 0 {
            assert_eq!(int(&server, &["EXISTS", &format!("re:dl:{{{stream}}}")]), 1);
            assert_eq!(int(&server, &["EXISTS", &format!("re:di:{{{stream}}}")]), 1);
            assert_eq!(
                int(&server, &["EXISTS", &format!("re:once:{{{stream}}}:id-0")]),
                1
            );
        }
    }
    let streams_of = |p: u32| format!("re:s:apart:{p}");
    expect("all of them", || {
        (0..4)
            .map(|p| int(&server, &["XLEN", &streams_of(p)]))
            .sum::<i64>()
            == 40
    });
    assert!((0..4).all(|p| int(&server, &["XLEN", &streams_of(p)]) > 0));
    expect("nothing to be left", || keys(&server).is_empty());
}

#[test]
fn a_dedupe_id_keeps_one_and_tells_the_others_of_it() {
    let server = server();
    let streams = open(&server.url(), "once-later", 1);
    let publisher = streams.publisher("once-later").unwrap();
    let draft = |body: &'static str| publisher.message("T", body).dedupe("id", HOUR);
    let first = draft("first").deliver_after(ms(800)).publish().unwrap();
    let again = draft("again").deliver_at(UNIX_EPOCH).publish().unwrap();
    assert!(!first.repeated() && again.repeated());
    assert_eq!(
        (first.due(), first.to_string()),
        (again.due(), again.to_string())
    );
    let e = draft("at once").publish().unwrap_err();
    assert_eq!(
        (e.kind(), e.outcome()),
        (ErrorKind::Argument, Outcome::NotApplied),
        "{e}"
    );
    assert!(int(&server, &["PTTL", "re:once:{once-later}:id"]) > 3_000_000);
    expect("the first", || length(&server, "once-later", 0) == 1);
    assert_eq!(bodies(&server, "once-later", 0), ["first"]);
    let late = draft("late").deliver_after(SOON).publish().unwrap();
    assert!(late.repeated() && !publisher.cancel(&late).unwrap());
    // published at once first
    let id = publisher
        .message("T", "B")
        .dedupe("other", HOUR)
        .publish()
        .unwrap();
    let m = publisher.message("T", "B").dedupe("other", HOUR);
    let repeated = m.deliver_after(SOON).publish().unwrap();
    assert!(repeated.repeated() && due_ms(&repeated) == id.id.ms());
    assert!(!publisher.cancel(&repeated).unwrap());
    let status = status(&streams, "once-later");
    assert_eq!((status.scheduled, status.repeated), (1, 3));
    // what nobody of ours has written
    text(&server, &["SET", "re:once:{once-later}:odd", "~1 x"]);
    let odd = || publisher.message("T", "B").dedupe("odd", HOUR);
    let e = odd().deliver_after(SOON).publish().unwrap_err();
    assert_eq!(
        (e.kind(), e.outcome()),
        (ErrorKind::Config, Outcome::NotApplied),
        "{e}"
    );
    assert_eq!(odd().publish().unwrap_err().kind(), ErrorKind::Config);
}

#[test]
fn each_is_published_once_by_whoever_is_there() {
    let server = server();
    let all = [(); 3].map(|()| open(&server.url(), "shared-delays", 4));
    let seen = Seen::default();
    let consumer = recording(all[0].consumer("shared-delays").name("c"), &seen);
    let consumer = consumer.start().unwrap();
    let publishers = all
        .each_ref()
        .map(|s| s.publisher("shared-delays").unwrap());
    for n in 0..600_u64 {
        let body = n.to_string();
        let m = publishers[n as usize % 3].message("T", &body).key(&body);
        // ever sooner and ever later, so that the mover changes
        m.deliver_after(ms(n * 7919 % 1500)).publish().unwrap();
    }
    let handled = seen.wait_for(600);
    let different: BTreeSet<_> = handled.iter().collect();
    assert_eq!(
        (different.len(), total(&server, "shared-delays", 4)),
        (600, 600)
    );
    expect("nothing to be left", || keys(&server).is_empty());
    let moved = all.iter().flat_map(Streams::published).map(|s| s.moved);
    assert_eq!(moved.sum::<u64>(), 600);
    consumer.stop();
}

/// A process may schedule something and be gone.
#[test]
fn one_that_only_consumes_moves_what_others_scheduled() {
    let server = server();
    let gone = open(&server.url(), "left", 1);
    let publisher = gone.publisher("left").unwrap();
    drop(gone);
    let m = publisher.message("T", "while it was there");
    m.deliver_after(SOON).publish().unwrap();
    expect("a publisher alone to do", || {
        length(&server, "left", 0) == 1
    });
    let m = publisher.message("T", "after it");
    m.deliver_after(ms(300)).publish().unwrap();
    drop(publisher);
    let seen = Seen::default();
    let streams = open(&server.url(), "left", 1);
    let consumer = recording(streams.consumer("left").name("c"), &seen);
    let consumer = consumer.start().unwrap();
    assert_eq!(seen.wait_for(2), ["while it was there", "after it"]);
    assert_eq!(status(&streams, "left").moved, 1);
    consumer.stop();
}

#[test]
fn nobody_waits_for_a_mover_that_is_dead_and_its_lease_always_ends() {
    let server = server();
    let streams = open(&server.url(), "leased", 1);
    let publisher = streams.publisher("leased").unwrap();
    let lease = "re:dl:{leased}:mover";
    // of a process that was killed just now
    text(&server, &["SET", lease, "another", "PX", "3000"]);
    let head = server_ms(&server).to_string();
    text(&server, &["ZADD", "re:dl:{leased}", &head, "no-item"]);
    let m = publisher.message("T", "B");
    let due = m.deliver_after(ms(100)).publish().unwrap();
    assert_eq!(
        text(&server, &["GET", lease]),
        "another",
        "it is not the next"
    );
    expect("it to be published", || length(&server, "leased", 0) == 1);
    let late = entries(&server, "leased", 0)[0]
        .0
        .parse::<StreamId>()
        .unwrap()
        .ms()
        - due_ms(&due);
    eprintln!("late by {late} ms");
    expect("nothing to be left", || keys(&server).is_empty());
    // while something waits
    let m = publisher.message("T", "B");
    m.deliver_after(ms(1500)).publish().unwrap();
    while length(&server, "leased", 0) < 2 {
        match int(&server, &["PTTL", lease]) {
            -2 => {}
            ttl => assert!((0..=3000).contains(&ttl), "{ttl}"),
        }
        std::thread::sleep(ms(5));
    }
    expect("no lease where there is nothing", || {
        int(&server, &["EXISTS", lease]) == 0
    });
    // what is far away is nobody's
    let m = publisher.message("T", "B");
    let far = m.deliver_after(HOUR).publish().unwrap();
    std::thread::sleep(ms(1200));
    assert_eq!(int(&server, &["EXISTS", lease]), 0);
    assert!(publisher.cancel(&far).unwrap());
    // at the end the lease is handed back
    let m = publisher.message("T", "B");
    m.deliver_after(ms(1900)).publish().unwrap();
    expect("the mover to have the lease", || {
        int(&server, &["PTTL", lease]) > 0
    });
    std::thread::sleep(ms(300)); // it has looked
    drop((publisher, streams));
    assert_eq!(int(&server, &["EXISTS", lease]), 0);
}

#[test]
fn a_bad_one_is_told_and_out_of_the_way_of_the_others() {
    let server = server();
    let streams = open(&server.url(), "bad-delays", 2);
    let publisher = streams.publisher("bad-delays").unwrap();
    let draft = |body: &'static str, p: u32| publisher.message("T", body).partition(p);
    publisher.publish("", "T", "").unwrap();
    text(&server, &["SET", "re:s:{bad-delays}:1", "no stream"]);
    text(
        &server,
        &["ZADD", "re:dl:{bad-delays}", "1", "broken", "2", "gone"],
    );
    text(
        &server,
        &["HSET", "re:di:{bad-delays}", "broken", "\u{fffd}"],
    );
    draft("stuck", 1).deliver_after(SOON).publish().unwrap();
    for body in ["one", "two"] {
        draft(body, 0).deliver_after(ms(100)).publish().unwrap();
    }
    expect("the good ones", || {
        bodies(&server, "bad-delays", 0).ends_with(&["two".into()])
    });
    assert!(bodies(&server, "bad-delays", 0).contains(&"one".to_owned()));
    expect("the others to be counted", || {
        status(&streams, "bad-delays").put_off == 3
    });
    assert_eq!(
        int(&server, &["ZCARD", "re:dl:{bad-delays}"]),
        2,
        "one was empty"
    );
    let told = logged(&["ERROR", "topic bad-delays:", "NOT PUBLISHED"]);
    assert_eq!(told.len(), 1, "one in half a minute: {told:?}");
    assert!(told[0].contains("delayed message broken"), "{told:?}");
    // brought back, it is published after its minute: here sooner
    text(&server, &["DEL", "re:s:{bad-delays}:1"]);
    let left = server
        .command(&["ZRANGE", "re:dl:{bad-delays}", "0", "-1"])
        .unwrap();
    for id in left.items() {
        text(&server, &["ZADD", "re:dl:{bad-delays}", "5", &id.text()]);
    }
    expect("the one that was stuck", || {
        bodies(&server, "bad-delays", 1) == ["stuck"]
    });
}

#[test]
fn a_server_that_restarts_or_is_full_delivers_later() {
    listen_to_the_log();
    let server = PrivateServer::builder()
        .tcp()
        .aof(Aof::Always)
        .start()
        .unwrap();
    let streams = open(&server.url(), "restarted", 1);
    let publisher = streams.publisher("restarted").unwrap();
    let delay = |body: &'static str, d: u64| {
        publisher
            .message("T", body)
            .deliver_after(ms(d))
            .publish()
            .unwrap()
    };
    delay("first", 100);
    expect("the first", || length(&server, "restarted", 0) == 1);
    for _ in 0..2 {
        delay("while it was down", 50);
    }
    server.kill();
    server.restart().unwrap();
    expect("what was due meanwhile", || {
        length(&server, "restarted", 0) == 3
    });
    // full
    delay("when it was full", 700);
    text(&server, &["CONFIG", "SET", "maxmemory", "1"]);
    let e = publisher
        .message("T", "no")
        .deliver_after(SOON)
        .publish()
        .unwrap_err();
    assert_eq!(e.server_class(), Some(ServerClass::OutOfMemory), "{e}");
    expect("the refusal to be told", || {
        !logged(&["topic restarted", "NOT PUBLISHED", "OOM"]).is_empty()
            || !logged(&["delayed messages", "OOM"]).is_empty()
    });
    assert_eq!(length(&server, "restarted", 0), 3);
    text(&server, &["CONFIG", "SET", "maxmemory", "0"]);
    expect("it to come later", || length(&server, "restarted", 0) == 4);
    expect("nothing to be left", || keys(&server).is_empty());
}

#[test]
fn an_answer_that_is_lost_publishes_nothing_twice() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let streams = open(&relay.url(), "never-heard", 1);
    let publisher = streams.publisher("never-heard").unwrap();
    let delay = |d: u64| {
        let m = publisher.message("T", "B");
        m.deliver_after(ms(d)).publish().unwrap()
    };
    for n in 1..=3 {
        let due = delay(1500).due();
        for _ in 0..9 {
            publisher
                .message("T", "B")
                .deliver_at(due)
                .publish()
                .unwrap();
        }
        expect("the mover to have claimed them", || {
            server_ms(&server) + 200 > due.duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
        });
        // What moves them goes out yet, and nobody hears of it.
        relay.fault_existing(Way::Replies, Fault::Swallow);
        expect("them to be published", || {
            length(&server, "never-heard", 0) == 10 * n
        });
        relay.close();
    }
    delay(10);
    expect("another one", || length(&server, "never-heard", 0) == 31);
    expect("nothing to be left", || keys(&server).is_empty());
    assert_eq!(length(&server, "never-heard", 0), 31);
}

#[test]
fn a_topic_is_trimmed_when_a_delayed_message_comes() {
    let server = server();
    let layout = TopicSettings::default()
        .partitions(1)
        .max_len(3)
        .trim(Trim::Exact);
    let settings = settings(&server.url(), "trimmed-later", 1).with_topic("trimmed-later", layout);
    let publisher = Streams::open(settings)
        .unwrap()
        .publisher("trimmed-later")
        .unwrap();
    for n in 0..10 {
        let body = n.to_string();
        publisher
            .message("T", &body)
            .deliver_after(SOON)
            .publish()
            .unwrap();
    }
    expect("the last", || {
        bodies(&server, "trimmed-later", 0) == ["7", "8", "9"]
    });
}

#[test]
fn a_topic_that_nobody_uses_any_more_is_let_go() {
    let server = server();
    let streams = open(&server.url(), "let-go", 1);
    let publisher = streams.publisher("let-go").unwrap();
    let lease = || int(&server, &["EXISTS", "re:dl:{let-go}:mover"]) == 1;
    let m = publisher.message("T", "B");
    let delayed = m.deliver_after(HOUR).publish().unwrap();
    let id = delayed.to_string();
    let id = id.rsplit(' ').next().unwrap();
    expect("the lease to be held", || {
        let later = (server_ms(&server) + 1800).to_string();
        text(&server, &["ZADD", "re:dl:{let-go}", &later, id]);
        lease()
    });
    let deleted = calls(&server, "del");
    drop(publisher);
    expect("the lease to be handed back", || {
        calls(&server, "del") > deleted
    });
    assert!(!lease());
    expect("the connection to be closed", || {
        connections(&server, "streams-delays").is_empty()
    });
    drop(streams);
}

/// Calls of a command, as the server counted them.
fn calls(server: &PrivateServer, name: &str) -> u64 {
    let stats = text(server, &["INFO", "commandstats"]);
    let line = stats
        .lines()
        .find(|l| l.starts_with(&format!("cmdstat_{name}:")));
    let calls = line.and_then(|l| l.split("calls=").nth(1)?.split(',').next()?.parse().ok());
    calls.unwrap_or(0)
}

#[test]
fn where_nothing_is_delayed_it_costs_a_question_a_second() {
    let server = server();
    let streams = open(&server.url(), "quiet-delays", 2);
    let publisher = streams.publisher("quiet-delays").unwrap();
    publisher.publish("k", "T", "B").unwrap();
    expect("the mover", || {
        !connections(&server, "streams-delays").is_empty()
    });
    let looks = calls(&server, "exists");
    expect("it to look", || calls(&server, "exists") >= looks + 2);
    assert_eq!(
        calls(&server, "zrange") + calls(&server, "evalsha") + calls(&server, "get"),
        0
    );
    assert!(keys(&server).is_empty());
    let delays = || {
        let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
        let names = tasks.filter_map(|t| fs::read_to_string(t.path().join("comm")).ok());
        names.filter(|name| name.trim_end() == "delays").count()
    };
    assert!(delays() > 0);
    assert_eq!(connections(&server, "streams-delays").len(), 1);
    drop((publisher, streams));
    expect("it to be gone", || {
        connections(&server, "streams-delays").is_empty()
    });
}

#[test]
fn what_is_wrong_with_one_topic_is_no_matter_of_the_others() {
    let server = server();
    let streams = open(&server.url(), "sane", 1);
    text(&server, &["SET", "re:dl:{insane}", "no set"]);
    text(
        &server,
        &["SET", "re:dl:{another}:mover", "x", "PX", "3000"],
    );
    text(&server, &["ZADD", "re:dl:{another}", "1", "x"]);
    text(&server, &["SET", "re:di:{another}", "no hash"]);
    let all = ["insane", "another", "sane"].map(|topic| streams.publisher(topic).unwrap());
    for publisher in &all {
        publisher.publish("k", "T", "B").unwrap();
    }
    for n in 1..=3 {
        let m = all[2].message("T", "B");
        m.deliver_after(ms(1000)).publish().unwrap();
        expect("it to come", || length(&server, "sane", 0) == 1 + n);
    }
    expect("the others to be told of", || {
        let told = warned("delayed messages");
        let of = |what| {
            told.iter()
                .any(|l| l.contains("WRONGTYPE") && l.contains(what))
        };
        of("{insane}") && of("topic another")
    });
}

/// A user who may not look is left in peace, and one who delays is told what to grant.
#[test]
fn a_user_without_the_rights_is_told_when_it_matters() {
    let server = server();
    let acl = "on >x ~re:topics ~re:s:* ~re:m:* ~re:p:* ~re:o:* ~re:e:* +@all";
    let mut setuser = vec!["ACL", "SETUSER", "poor"];
    setuser.extend(acl.split(' '));
    assert_eq!(text(&server, &setuser), "OK");
    let settings = settings(&server.url(), "denied-delays", 1)
        .username("poor")
        .password("x");
    let streams = Streams::open(settings).unwrap();
    let publisher = streams.publisher("denied-delays").unwrap();
    publisher.publish("k", "T", "B").unwrap();
    expect("a look that is refused", || {
        !logged(&[
            "whether delayed messages are due is not known",
            "denied-delays",
        ])
        .is_empty()
    });
    let looks = calls(&server, "exists");
    std::thread::sleep(ms(2500));
    assert!(calls(&server, "exists") <= looks + 1, "it rests");
    assert!(
        warned("denied-delays").is_empty(),
        "{:?}",
        warned("denied-delays")
    );
    let e = publisher
        .message("T", "B")
        .deliver_after(SOON)
        .publish()
        .unwrap_err();
    assert_eq!(e.server_class(), Some(ServerClass::NoPermission), "{e}");
    assert!(
        e.to_string().contains("~re:dl:*") && e.to_string().contains("+zadd"),
        "{e}"
    );
}

/// Who may delay but not publish what is due is told, for nobody else may be there.
#[test]
fn one_who_has_delayed_and_may_not_move_is_told_what_to_grant() {
    for (topic, denied) in [
        ("no-exists", "exists"),
        ("no-zrange", "zrange"),
        ("no-hget", "hget"),
        ("no-time", "time"),
    ] {
        let server = server();
        let deny = format!("-{denied}");
        text(
            &server,
            &["ACL", "SETUSER", "part", "on", ">x", "~*", "+@all"],
        );
        let settings = settings(&server.url(), topic, 1)
            .username("part")
            .password("x");
        let streams = Streams::open(settings).unwrap();
        let publisher = streams.publisher(topic).unwrap();
        publisher.publish("k", "T", "B").unwrap();
        let m = publisher.message("T", "B");
        m.deliver_after(HOUR).publish().unwrap();
        text(&server, &["ACL", "SETUSER", "part", &deny]);
        expect("a warning", || {
            let told = warned("delayed messages");
            let grant = "+exists +get +set +pexpire +del ~re:dl:* ~re:di:*";
            told.iter()
                .any(|l| l.contains(&format!("'{denied}'")) && l.contains(grant))
        });
        if denied == "zrange" {
            let looks = calls(&server, "exists");
            std::thread::sleep(ms(2500));
            assert!(calls(&server, "exists") <= looks + 1, "it rests");
        }
    }
}
