//! Topics as operators see them: found without a search, described, made, enlarged and deleted.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use streamlane::{
    testing::{self, PrivateServer},
    *,
};

use crate::{
    queues::{as_pod, worker},
    support::*,
};

fn text(server: &PrivateServer, command: &[&str]) -> String {
    server.command(command).unwrap().text()
}

fn int(server: &PrivateServer, command: &[&str]) -> i64 {
    server.command(command).unwrap().int().unwrap()
}

fn names(server: &PrivateServer) -> Vec<String> {
    let all = server.command(&["ZRANGE", "re:topics", "0", "-1"]).unwrap();
    all.items().iter().map(testing::Reply::text).collect()
}

/// Every key there is, sorted.
fn keys(server: &PrivateServer) -> Vec<String> {
    let all = server.command(&["KEYS", "*"]).unwrap();
    let mut all: Vec<_> = all.items().iter().map(testing::Reply::text).collect();
    all.sort();
    all
}

/// How often a command was called, by anybody.
fn calls(server: &PrivateServer, command: &str) -> u64 {
    let stats = text(server, &["INFO", "commandstats"]);
    let of = format!("cmdstat_{command}:calls=");
    let line = stats.lines().find_map(|line| line.strip_prefix(&of));
    line.map_or(0, |l| l.split(',').next().unwrap().parse().unwrap())
}

fn admin(server: &PrivateServer) -> Admin {
    Streams::connect(server.url()).unwrap().admin()
}

fn topic_of(streams: &Streams, topic: &str, partitions: u32) {
    let settings = TopicSettings::default().partitions(partitions);
    assert!(streams.admin().create(topic, settings).unwrap());
}

#[test]
fn whoever_uses_a_topic_lists_it_once_and_pages_are_in_order() {
    let server = server();
    let streams = Streams::connect(server.url()).unwrap();
    for n in (0..25).rev() {
        publish(&streams, &format!("listed-{n:02}"), 0..3);
    }
    let once = calls(&server, "zadd");
    assert_eq!(once, 25, "once for a process and topic");
    let seen = Seen::default();
    let read = recording(streams.consumer("listed-read").name("c"), &seen);
    let consumer = read.start().unwrap();
    publish(&streams, "listed-00", 3..5);
    assert!(names(&server).contains(&"listed-read".to_owned()));

    let admin = streams.admin();
    let (mut all, mut after, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = admin.topics(after.as_deref(), 10).unwrap();
        assert!(page.topics.len() <= 10);
        all.extend(page.topics);
        pages += 1;
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let mut expected: Vec<_> = (0..25).map(|n| format!("listed-{n:02}")).collect();
    expected.push("listed-read".into());
    assert_eq!((all, pages), (expected, 3));
    let exact = admin.topics(Some("listed-15"), 10).unwrap();
    assert_eq!((exact.topics.len(), exact.next), (10, None));
    assert_eq!(admin.topics(Some("m"), 10).unwrap().topics.len(), 0);
    assert_eq!(calls(&server, "scan"), 0, "nothing was searched");
    drop(consumer);
}

#[test]
fn who_may_not_write_the_list_is_told_once_what_to_grant_and_works_all_the_same() {
    let server = server();
    server
        .command(&[
            "ACL",
            "SETUSER",
            "plain",
            "on",
            ">pw",
            "~re:*:{unlisted*",
            "&*",
            "+@all",
        ])
        .unwrap();
    let settings = Settings::default().connection_string(server.tcp_url());
    let streams = Streams::open(settings.username("plain").password("pw")).unwrap();
    publish(&streams, "unlisted-a", 0..3);
    publish(&streams, "unlisted-b", 0..3);
    let seen = Seen::default();
    let read = recording(streams.consumer("unlisted-a").name("c"), &seen);
    let consumer = read.start().unwrap();
    seen.wait_for(3);
    let told = warned("topic unlisted-");
    let about: Vec<_> = told.iter().filter(|l| l.contains("re:topics")).collect();
    assert_eq!(about.len(), 1, "{told:?}");
    assert!(about[0].contains("ACL SETUSER <user> ~re:topics +zadd"));
    assert!(names(&server).is_empty());
    drop(consumer);
    let adopted = admin(&server).adopt().unwrap();
    assert_eq!(adopted, ["unlisted-a", "unlisted-b"]);
    assert_eq!(names(&server), adopted);
    assert!(admin(&server).adopt().unwrap().is_empty(), "all are");
}

#[test]
fn a_list_that_is_lost_with_all_else_is_written_again() {
    let server = server();
    let settings = settings(&server.url(), "listed-again", 2);
    let streams = Streams::open(settings.topic_refresh(Duration::from_millis(20))).unwrap();
    let seen = Seen::default();
    let read = recording(streams.consumer("listed-again").name("c"), &seen);
    let consumer = read.start().unwrap();
    assert_eq!(names(&server), ["listed-again"]);
    server.command(&["FLUSHALL"]).unwrap();
    expect("the topic to be listed again", || {
        names(&server) == ["listed-again"]
    });
    drop(consumer);
}

#[test]
fn a_description_says_what_the_server_says() {
    let server = server();
    let settings = settings(&server.url(), "described", 3);
    let streams = Streams::open(settings.pod_name("svc-0")).unwrap();
    let admin = streams.admin();
    assert_eq!(admin.describe("described").unwrap(), None);
    let first = publish_to(&streams, "described", 0, &["a", "b", "c"]);
    publish_to(&streams, "described", 2, &["d"]);
    server
        .command(&["XDEL", "re:s:{described}:0", &first[2].to_string()])
        .unwrap();
    let publisher = streams.publisher("described").unwrap();
    for _ in 0..2 {
        let later = publisher.message("T", "later").key("k");
        later
            .deliver_after(Duration::from_hours(1))
            .publish()
            .unwrap();
    }
    let seen = Seen::default();
    let read = recording(streams.consumer("described").name("reads"), &seen);
    drop(read.start().unwrap());
    let queue = worker(&streams, "described").name("works");
    drop(recording(queue, &seen).start().unwrap());
    for p in 0..3 {
        let key = format!("re:s:{{described}}:{p}");
        let make = ["XGROUP", "CREATE", &key, "foreign", "0"];
        assert_eq!(text(&server, &make), "OK");
    }

    let d = admin.describe("described").unwrap().unwrap();
    assert_eq!((d.partitions.len(), d.entries()), (3, 3));
    assert!(d.recorded && d.listed && d.co_located);
    assert_eq!((d.delayed, d.max_len), (2, Some(1_000_000)));
    assert_eq!(d.partitioner.as_deref(), Some("xxh3"));
    let made = text(&server, &["HGET", "re:m:{described}", "createdUtc"]);
    let made = made.split('.').next().unwrap().to_owned();
    let created = d.created.unwrap().elapsed().unwrap();
    assert!(
        created < Duration::from_hours(1) && made.starts_with("20"),
        "{made}"
    );
    let p = &d.partitions[0];
    assert_eq!((p.partition, &*p.key), (0, "re:s:{described}:0"));
    assert_eq!((p.length, p.added, p.exists), (2, 3, true));
    assert_eq!((p.first, p.last), (Some(first[0]), Some(first[1])));
    assert_eq!((p.last_generated, p.groups), (first[2], 2));
    let memory = int(&server, &["MEMORY", "USAGE", "re:s:{described}:0"]);
    assert_eq!(p.memory, Some(memory.cast_unsigned()));
    assert_eq!(d.memory(), d.partitions.iter().map(|p| p.memory).sum());
    assert_eq!((d.partitions[1].length, d.partitions[1].first), (0, None));
    let consumers: Vec<_> = d
        .consumers
        .iter()
        .map(|c| (&*c.name, c.is_group, c.registered))
        .collect();
    assert_eq!(
        consumers,
        [
            ("foreign", true, false),
            ("reads", false, true),
            ("works", true, true)
        ]
    );
    // Without its metadata its streams are counted.
    server.command(&["DEL", "re:m:{described}"]).unwrap();
    let d = admin.describe("described").unwrap().unwrap();
    assert_eq!(
        (d.partitions.len(), d.recorded, d.created),
        (3, false, None)
    );
}

#[test]
fn a_topic_is_made_as_it_is_told_and_one_that_exists_is_left_alone() {
    let server = server();
    let admin = admin(&server);
    let spread = TopicSettings::default()
        .partitions(5)
        .max_len(77)
        .co_locate_partitions(false);
    assert!(admin.create("made-apart", spread.clone()).unwrap());
    assert_eq!(
        text(&server, &["HGET", "re:m:{made-apart}", "maxLen"]),
        "77"
    );
    assert_eq!(int(&server, &["EXISTS", "re:s:made-apart:4"]), 1);
    let before = keys(&server);
    let more = TopicSettings::default().partitions(9);
    assert!(!admin.create("made-apart", more).unwrap());
    assert_eq!(keys(&server), before, "as it was");
    let d = admin.describe("made-apart").unwrap().unwrap();
    assert_eq!((d.partitions.len(), d.co_located), (5, false));
    let wrong = TopicSettings::default().trim(Trim::None);
    let e = admin.create("made-wrong", wrong).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Config, "{e}");
    let e = admin.create("{x}", spread).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Config, "{e}");
    assert!(admin.describe("made-wrong").unwrap().is_none());
    assert_eq!(names(&server), ["made-apart"]);
}

#[test]
fn a_topic_grows_while_it_is_read_and_never_shrinks() {
    let server = server();
    let settings = Settings::default().connection_string(server.url());
    let streams = Streams::open(settings.topic_refresh(Duration::from_millis(20))).unwrap();
    let admin = streams.admin();
    topic_of(&streams, "grown-up", 2);
    let e = admin.grow("grown-never", 3).unwrap_err();
    assert!(e.to_string().contains("never been created"), "{e}");
    let seen = Seen::default();
    let read = recording(streams.consumer("grown-up").name("c"), &seen);
    let consumer = read.start().unwrap();
    assert_eq!(admin.grow("grown-up", 4).unwrap(), 2);
    assert_eq!(admin.grow("grown-up", 4).unwrap(), 4, "nothing to do");
    expect("the new partitions to be read", || {
        consumer.partitions().len() == 4
    });
    expect("publishers to know them", || {
        let to = streams.publisher("grown-up").unwrap();
        let draft = to.message("T", "x").key("k").partition(3);
        draft.publish().is_ok()
    });
    seen.wait_for(1);
    consumer.drain(PATIENCE).unwrap();

    let e = admin.grow("grown-up", 1).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Argument);
    assert!(e.to_string().contains("hold nothing unread now"), "{e}");
    publish_to(&streams, "grown-up", 1, &["y"]);
    publish_to(&streams, "grown-up", 3, &["z"]);
    let e = admin.grow("grown-up", 1).unwrap_err().to_string();
    assert!(e.contains("are in partitions 1, 3."), "{e}");
    let e = admin.grow("grown-up", 2).unwrap_err().to_string();
    assert!(e.contains("are in partition 3."), "{e}");
    // A group that has not acknowledged what it was given holds it, too.
    let again = recording(streams.consumer("grown-up").name("c"), &seen);
    again.start().unwrap().drain(PATIENCE).unwrap();
    let key = "re:s:{grown-up}:2";
    publish_to(&streams, "grown-up", 2, &["w"]);
    let again = recording(streams.consumer("grown-up").name("c"), &seen);
    again.start().unwrap().drain(PATIENCE).unwrap();
    let e = admin.grow("grown-up", 1).unwrap_err().to_string();
    assert!(e.contains("hold nothing unread now"), "{e}");
    server
        .command(&["XGROUP", "CREATE", key, "g", "0"])
        .unwrap();
    server
        .command(&["XREADGROUP", "GROUP", "g", "m", "STREAMS", key, ">"])
        .unwrap();
    let e = admin.grow("grown-up", 1).unwrap_err().to_string();
    assert!(e.contains("are in partition 2."), "{e}");
    assert_eq!(
        text(&server, &["HGET", "re:m:{grown-up}", "partitions"]),
        "4"
    );
}

#[test]
fn topics_that_nobody_listed_are_adopted_and_nothing_else_is() {
    let server = server();
    server.command(&["DEBUG", "POPULATE", "5000"]).unwrap();
    for (key, what) in [
        ("re:m:{peer}", "hash"),
        ("re:m:{*?[a]}", "hash"),
        ("re:s:{old}:0", "stream"),
        ("re:s:apart:with:colons:7", "stream"),
        ("re:m:peer", "hash"),
        ("re:s:x", "stream"),
        ("re:mine", "hash"),
        ("other:m:{theirs}", "hash"),
    ] {
        let command: &[&str] = match what {
            "hash" => &["HSET", key, "partitions", "2"],
            _ => &["XADD", key, "*", "b", ""],
        };
        server.command(command).unwrap();
    }
    let expected = ["*?[a]", "apart:with:colons", "old", "peer"];
    assert_eq!(admin(&server).adopt().unwrap(), expected);
    assert_eq!(names(&server), expected);
    assert!(admin(&server).describe("apart:with:colons").is_ok());
}

/// A topic with something of everything that a deletion concerns.
fn furnished(server: &PrivateServer, topic: &str) -> Streams {
    let of_topic = TopicSettings::default()
        .partitions(2)
        .claim_check(true)
        .payload_inline_max(1024);
    let settings = Settings::default().connection_string(server.url());
    let streams = Streams::open(settings.pod_name("svc-0").with_topic(topic, of_topic)).unwrap();
    let publisher = streams.publisher(topic).unwrap();
    publisher.publish("k", "Bad", "x").unwrap();
    publisher.publish("k", "Good", vec![b'y'; 4096]).unwrap();
    let draft = publisher.message("Good", "once").key("k");
    draft
        .dedupe("one", Duration::from_hours(1))
        .publish()
        .unwrap();
    let later = publisher.message("Good", "later").key("k");
    later
        .deliver_after(Duration::from_hours(1))
        .publish()
        .unwrap();
    for (name, delivery) in [("o", Delivery::Ordered), ("q", Delivery::WorkQueue)] {
        let seen = Seen::default();
        let consumer = streams.consumer(topic).name(name).delivery(delivery);
        let handled = seen.clone();
        let consumer = consumer.messages(move |_| {
            let handled = handled.clone();
            move |m: &Message<'_>| -> HandlerResult {
                handled.push(m.id());
                if m.message_type() == "Bad" {
                    Err("bad").or_dead_letter()?;
                }
                Ok(())
            }
        });
        let consumer = consumer.start().unwrap();
        seen.wait_for(3);
        consumer.drain(PATIENCE).unwrap();
    }
    let state = format!("re:{{{topic}}}:state:mine");
    server.command(&["SET", &state, "1"]).unwrap();
    streams
}

#[test]
fn a_topic_is_deleted_with_exactly_what_belongs_to_it() {
    let server = server();
    let other = furnished(&server, "gone2");
    let bystander = ["re:s:my:gone:0", "re:m:gone", "re:x:{a}:{gone}"];
    for key in bystander {
        server.command(&["SET", key, "1"]).unwrap();
    }
    let before = keys(&server);
    let streams = furnished(&server, "gone");
    let admin = streams.admin();
    let all = keys(&server);
    let delete = admin.delete("gone");
    let preview = delete.preview().unwrap();
    assert_eq!(keys(&server), all, "only looked at");
    assert_eq!((preview.partitions, preview.pending), (2, 0));
    assert_eq!(preview.entries, 3);
    assert!(preview.alive.is_empty(), "{preview}");
    let of = |kind: &str| {
        let all = preview.deleted.iter().chain(&preview.kept);
        let found = all.clone().find(|(k, _)| k == kind);
        found.map_or(0, |(_, n)| *n)
    };
    for (kind, n) in [
        ("s:{T}:p", 2),
        ("m:{T}", 1),
        ("c:{T}", 1),
        ("p:{T}:C", 1),
        ("x:{T*}:ID", 1),
        ("once:{T*}:ID", 1),
        ("dl:{T*}", 1),
        ("di:{T*}", 1),
        ("d:{T}:C", 2),
        ("{T}:state:NAME", 1),
    ] {
        assert_eq!(of(kind), n, "{kind} in\n{preview}");
    }
    let kept: Vec<_> = preview.kept.iter().map(|(kind, _)| &**kind).collect();
    assert_eq!(kept, ["d:{T}:C", "d:{T}:C:meta", "{T}:state:NAME"]);

    assert_eq!(delete.apply().unwrap(), preview.keys());
    let mut stays = before.clone();
    let letters = ["d:{gone}:o", "d:{gone}:o:meta", "d:{gone}:q"];
    let letters = letters
        .iter()
        .chain(&["d:{gone}:q:meta", "{gone}:state:mine"]);
    stays.extend(
        letters
            .map(|key| format!("re:{key}"))
            .filter(|key| all.contains(key)),
    );
    stays.sort();
    assert_eq!(keys(&server), stays);
    assert!(admin.describe("gone").unwrap().is_none());
    assert_eq!(names(&server), ["gone2"]);
    assert_eq!(warned("topic gone: deleted").len(), 1);

    assert_eq!(delete.apply().unwrap(), 0, "it may be done again");
    assert!(admin.delete("gone").dead_letters().apply().unwrap() >= 2);
    stays.retain(|key| !key.starts_with("re:d:{gone}:"));
    assert_eq!(keys(&server), stays);
    drop(other);
}

#[test]
fn a_topic_that_is_read_is_not_deleted_unless_forced() {
    let server = server();
    let streams = as_pod(&server, "in-use", 2, "svc-7");
    publish_to(&streams, "in-use", 0, &["a", "b"]);
    let looks = admin(&server);
    for (name, delivery) in [("o", Delivery::Ordered), ("q", Delivery::WorkQueue)] {
        let seen = Seen::default();
        let consumer = streams.consumer("in-use").name(name).delivery(delivery);
        let consumer = recording(consumer, &seen).start().unwrap();
        let delete = looks.delete("in-use");
        let alive = delete.preview().unwrap().alive;
        assert_eq!(alive.len(), 1, "{alive:?}");
        assert!(alive[0].starts_with(&format!("{name}: ")) && alive[0].contains("|svc-7#"));
        let before = keys(&server);
        let e = delete.apply().unwrap_err();
        assert_eq!(
            (e.kind(), e.outcome()),
            (ErrorKind::Argument, Outcome::NotApplied)
        );
        assert!(e.to_string().contains("svc-7"), "{e}");
        assert_eq!(keys(&server), before);
        consumer.drain(PATIENCE).unwrap();
    }
    // members of other implementations are seen by their groups
    let key = "re:s:{in-use}:0";
    server
        .command(&["XGROUP", "CREATE", key, "foreign", "0"])
        .unwrap();
    server
        .command(&[
            "XREADGROUP",
            "GROUP",
            "foreign",
            "m1",
            "COUNT",
            "1",
            "STREAMS",
            key,
            ">",
        ])
        .unwrap();
    let preview = looks.delete("in-use").preview().unwrap();
    assert_eq!(preview.alive, ["foreign: m1"]);
    assert_eq!(preview.pending, 1);
    looks.delete("in-use").apply().unwrap_err();
    let n = looks.delete("in-use").force().apply().unwrap();
    assert_eq!(n, preview.keys());
    assert_eq!(keys(&server).len(), 0);
}

#[test]
fn a_topic_whose_partitions_lie_apart_is_deleted_with_what_lies_beside_each() {
    let server = server();
    let of_topic = TopicSettings::default()
        .partitions(3)
        .co_locate_partitions(false)
        .claim_check(true)
        .payload_inline_max(1024);
    let settings = Settings::default().connection_string(server.url());
    let streams = Streams::open(settings.with_topic("a:part", of_topic)).unwrap();
    topic_of(&streams, "art", 1);
    let publisher = streams.publisher("a:part").unwrap();
    for p in 0..3 {
        let large = publisher.message("T", &[b'y'; 4096]).key("k");
        large.partition(p).publish().unwrap();
        let later = publisher.message("T", "l").key("k").partition(p);
        later
            .deliver_after(Duration::from_hours(1))
            .publish()
            .unwrap();
    }
    server
        .command(&["SET", "re:x:{re:s:b:a:part:1}:00", "1"])
        .unwrap();
    let admin = streams.admin();
    let d = admin.describe("a:part").unwrap().unwrap();
    assert_eq!((d.delayed, d.co_located, d.entries()), (3, false, 3));
    let preview = admin.delete("a:part").preview().unwrap();
    // streams, payloads, buckets and their items; and the metadata
    assert_eq!(preview.keys(), 4 * 3 + 1, "{preview}");
    drop(streams);
    assert_eq!(admin.delete("a:part").apply().unwrap(), 13);
    let left = [
        "re:m:{art}",
        "re:s:{art}:0",
        "re:topics",
        "re:x:{re:s:b:a:part:1}:00",
    ];
    assert_eq!(keys(&server), left);
}
