//! Large bodies that are kept apart from their messages (`ClaimCheck`): they go in by every way to publish and
//! come out the same by every way to read, to park and to replay; and what refers to none leads nowhere.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use serde::Deserialize;
use streamlane::{
    testing::{Fault, PrivateServer, Relay, Reply, Way},
    *,
};

use crate::{
    every_way::{Plain, every_way},
    parking::letters,
    publishing::{entries, length},
    support::*,
};

const INLINE: usize = 64 * 1024;
const MB: usize = 1 << 20;
const SIZES: [usize; 5] = [100, INLINE - 1, INLINE, INLINE + 1, MB];
const HOUR: Duration = Duration::from_hours(1);
const TO_ALL: ReplayTo = ReplayTo::EveryConsumerOfTheTopic;
/// A reference as a publisher writes it.
const NOBODYS: &str = "0123456789abcdef0123456789abcdef 70000";

#[derive(Deserialize)]
struct Doc<'a> {
    n: u64,
    text: &'a str,
}

impl Schema for Doc<'static> {
    type Of<'a> = Doc<'a>;
}

/// A document of so many bytes, another for each `n`.
fn doc(n: usize, bytes: usize) -> String {
    let start = format!(r#"{{"n":{n},"text":""#);
    let text = bytes.saturating_sub(start.len() + 2);
    let letters = (0..text).map(|i| char::from(b'a' + ((i * 7 + i / 251 + n) % 26) as u8));
    start + &letters.collect::<String>() + r#""}"#
}

fn apart() -> TopicSettings {
    let topic = TopicSettings::default().partitions(1).max_len(1_000_000);
    topic.claim_check(true).payload_ttl(HOUR)
}

/// A topic of one partition whose large bodies are kept apart for an hour.
fn open_apart(url: &str, topic: &str) -> Streams {
    open_with(url, topic, apart())
}

fn open_with(url: &str, topic: &str, of_topic: TopicSettings) -> Streams {
    let settings = Settings::default().connection_string(url);
    Streams::open(settings.with_topic(topic, of_topic)).unwrap()
}

fn scan(server: &PrivateServer, pattern: &str) -> Vec<String> {
    let keys = server.command(&["KEYS", pattern]).unwrap();
    keys.items().iter().map(Reply::text).collect()
}

/// The keys of all payloads of a topic. Each has a time to live, of an hour at most.
#[track_caller]
fn payloads(server: &PrivateServer, topic: &str) -> Vec<String> {
    let keys = scan(server, &format!("*x:{{{topic}}}:*"));
    for key in &keys {
        let ttl = server.command(&["PTTL", key]).unwrap().int().unwrap();
        assert!((1..=3_600_000).contains(&ttl), "{key}: {ttl}");
    }
    keys
}

/// The bodies by id, as each kind of handler sees them.
fn read_by(streams: &Streams, topic: &str, kind: &str) -> Vec<(StreamId, Vec<u8>)> {
    let seen = Seen::default();
    let builder = streams.consumer(topic).name(kind);
    let to = seen.clone();
    let consumer = match kind {
        "messages" => builder.messages(move |_| {
            let to = to.clone();
            move |m: &Message<'_>| -> HandlerResult {
                to.push((m.id(), m.body().to_vec()));
                Ok(())
            }
        }),
        "batches" => builder.batches(move |_| {
            let to = to.clone();
            move |batch: &Batch<'_>| -> HandlerResult {
                batch
                    .iter()
                    .for_each(|m| to.push((m.id(), m.body().to_vec())));
                Ok(())
            }
        }),
        _ => builder.json(move |_| {
            let to = to.clone();
            typed::<Doc<'_>>(move |doc, m| {
                assert!(m.body().ends_with(format!("{}\"}}", doc.text).as_bytes()) && doc.n < 1000);
                to.push((m.id(), m.body().to_vec()));
                Ok(())
            })
        }),
    };
    consumer.start().unwrap().drain(PATIENCE).unwrap();
    seen.all()
}

#[test]
fn what_goes_in_by_every_way_comes_out_by_every_handler() {
    let server = server();
    let streams = open_apart(&server.url(), "ways");
    let mut sent = BTreeMap::new();
    let mut large = 0;
    for (way, send) in every_way(&streams, "ways") {
        for bytes in SIZES {
            let (n, before) = (sent.len(), payloads(&server, "ways").len());
            let body = doc(n, bytes);
            let message = Plain {
                key: "k",
                body: &body,
                partition: None,
            };
            send(message).unwrap();
            let added = payloads(&server, "ways").len() - before;
            assert_eq!(added, usize::from(bytes > INLINE), "{way}, {bytes} bytes");
            large += added;
            sent.insert(n, body);
        }
    }
    assert_eq!(large, 2 * 8);
    let stored = entries(&server, "ways", 0);
    assert_eq!(stored.len(), sent.len());
    let size = |fields: &[String]| fields.iter().map(String::len).sum::<usize>();
    assert!(stored.iter().all(|(_, fields)| size(fields) < INLINE + 100));
    for kind in ["messages", "batches", "json"] {
        let read = read_by(&streams, "ways", kind);
        let bodies: Vec<_> = read
            .iter()
            .map(|(_, b)| String::from_utf8_lossy(b))
            .collect();
        let expected: Vec<_> = sent.values().map(String::as_str).collect();
        assert!(
            bodies == expected,
            "{kind}: other bodies, or in another order"
        );
    }
    // The state is kept as long as it is asked for, so its bodies are not apart.
    let events = streams.state_store("ways").unwrap();
    let events = events.read("s", StreamId::MIN, 100).unwrap();
    let lengths: Vec<_> = events.iter().map(|e| e.body.len()).collect();
    assert_eq!(lengths, SIZES);
}

#[test]
fn bytes_of_any_kind_survive_and_each_reader_has_them() {
    let server = server();
    let streams = open_with(&server.url(), "bytes", apart().payload_inline_max(1024));
    let publisher = streams.publisher("bytes").unwrap();
    let body: Vec<u8> = (0..5000u32).map(|n| (n * 7 % 256) as u8).collect();
    let id = publisher.publish("k", "T", &body).unwrap();
    // who says nothing of large bodies reads them all the same, and reading takes nothing away
    let plain = open(&server.url(), "bytes", 1);
    for (kind, streams) in [("messages", &plain), ("batches", &streams)] {
        assert!(
            read_by(streams, "bytes", kind) == [(id, body.clone())],
            "{kind}"
        );
    }
    assert_eq!(payloads(&server, "bytes").len(), 1);
    let seen = Seen::default();
    let to = seen.clone();
    let consumer = plain.consumer("bytes").name("fields").shared(move |m| {
        let own = |b: &[u8]| b.escape_ascii().to_string();
        to.push(
            m.fields()
                .map(|(n, v)| (own(n), own(v)))
                .collect::<Vec<_>>(),
        );
        assert_eq!(
            (m.to_owned().body.len(), m.key().as_bytes()),
            (5000, &b"k"[..])
        );
        Ok(())
    });
    consumer.start().unwrap().drain(PATIENCE).unwrap();
    let names: Vec<_> = seen.all()[0].iter().map(|(n, _)| n.clone()).collect();
    assert_eq!(names, ["b", "t", "k", "x"], "as it is stored");
    let (body, reference) = (&seen.all()[0][0].1, &seen.all()[0][3].1);
    assert!(body.is_empty() && reference.ends_with(" 5000") && reference.len() == 37);
    let key = format!("re:x:{{bytes}}:{}", &reference[..32]);
    assert_eq!(payloads(&server, "bytes"), [key]);
}

#[test]
fn spread_partitions_and_prefixes_have_payloads_of_their_own() {
    let server = server();
    let topic = apart()
        .partitions(2)
        .co_locate_partitions(false)
        .payload_inline_max(1024);
    let settings = Settings::default()
        .connection_string(server.url())
        .key_prefix("p:");
    let streams = Streams::open(settings.with_topic("wide", topic)).unwrap();
    let publisher = streams.publisher("wide").unwrap();
    let body = doc(1, 2000);
    publisher
        .message("T", &body)
        .key("k")
        .partition(1)
        .publish()
        .unwrap();
    let once = publisher.message("T", &body).key("k").partition(0);
    once.dedupe("id", HOUR).publish().unwrap();
    for partition in 0..2 {
        let keys = scan(&server, &format!("p:x:{{p:s:wide:{partition}}}:*"));
        assert_eq!(keys.len(), 1, "{partition}");
    }
    let read = read_by(&streams, "wide", "messages");
    assert!(read.len() == 2 && read.iter().all(|(_, b)| b == body.as_bytes()));
}

#[test]
fn whatever_is_not_published_leaves_nothing_behind() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let streams = open_with(&relay.url(), "none", apart());
    let body = doc(1, MB);
    let message = || Plain {
        key: "k",
        body: &body,
        partition: None,
    };
    let small = Plain {
        key: "k",
        body: "small",
        partition: None,
    };
    // a stream that takes no message
    for (way, send) in every_way(&streams, "none") {
        send(small).unwrap();
        let before = length(&server, "none", 0);
        server
            .command(&["RENAME", "re:s:{none}:0", "away"])
            .unwrap();
        server
            .command(&["SET", "re:s:{none}:0", "a string"])
            .unwrap();
        let e = send(message()).unwrap_err();
        assert!(e.to_string().contains("WRONGTYPE"), "{way}: {e}");
        server
            .command(&["RENAME", "away", "re:s:{none}:0"])
            .unwrap();
        assert_eq!(
            (payloads(&server, "none").len(), length(&server, "none", 0)),
            (0, before),
            "{way}"
        );
    }
    // a connection that breaks in the middle
    for (way, send) in every_way(&streams, "none") {
        send(small).unwrap();
        let before = length(&server, "none", 0);
        relay.fault(Way::Requests, Fault::CutAfter(500_000));
        if way != "buffered" {
            send(message()).unwrap_err();
        }
        assert_eq!(
            (payloads(&server, "none").len(), length(&server, "none", 0)),
            (0, before),
            "{way}"
        );
        relay.heal();
    }
    // a second message of a dedupe id, and a transaction whose condition does not hold
    let publisher = streams.publisher("none").unwrap();
    for repeated in [false, true] {
        let published = publisher
            .message("T", &body)
            .dedupe("id", HOUR)
            .publish()
            .unwrap();
        assert_eq!(published.repeated, repeated);
    }
    let outbox = streams.outbox("none").unwrap();
    let absent = Condition::key_exists(outbox.state_key("absent").unwrap());
    let commit = outbox
        .transaction()
        .when(absent)
        .publish(Outgoing::new("T", &body))
        .commit();
    assert!(commit.unwrap().committed().is_none());
    let forwarder = streams.forwarder("none").unwrap();
    let source = Source::in_order("twice", StreamId::new(1, 0));
    for _ in 0..2 {
        let _ = forwarder
            .forward(&source, &[Outgoing::new("T", &body)])
            .unwrap();
    }
    assert_eq!(payloads(&server, "none").len(), 2);
    // a server that is full
    server
        .command(&["CONFIG", "SET", "maxmemory", "1"])
        .unwrap();
    for (way, send) in every_way(&streams, "none") {
        if way != "buffered" {
            let e = send(message()).unwrap_err();
            assert_eq!(
                e.server_class(),
                Some(ServerClass::OutOfMemory),
                "{way}: {e}"
            );
        }
    }
    assert_eq!(payloads(&server, "none").len(), 2);
}

/// Adds an entry as anybody could.
fn forge(server: &PrivateServer, topic: &str, body: &str, reference: &str) {
    let stream = format!("re:s:{{{topic}}}:0");
    let entry = [
        "XADD", &stream, "*", "b", body, "t", "T", "k", "K", "x", reference,
    ];
    server.command(&entry).unwrap();
}

/// A server without a payload, and a topic of one partition.
fn forged(topic: &str) -> (PrivateServer, Streams) {
    let server = server();
    let streams = open_apart(&server.url(), topic);
    streams
        .publisher(topic)
        .unwrap()
        .publish("k", "T", "first")
        .unwrap();
    (server, streams)
}

fn parking(streams: &Streams, topic: &str, seen: &Seen<String>) -> Consumer {
    let builder = streams.consumer(topic).name("c").park(2);
    let builder = builder.park_pauses(Duration::ZERO, Duration::ZERO);
    recording(builder, seen).start().unwrap()
}

fn reasons(streams: &Streams, topic: &str) -> Vec<DeadLetterReason> {
    letters(streams, topic)
        .iter()
        .map(|l| l.reason.unwrap())
        .collect()
}

/// How often commands of this name were called.
fn calls(server: &PrivateServer, name: &str) -> u64 {
    let info = server.command(&["INFO", "commandstats"]).unwrap().text();
    let start = format!("cmdstat_{name}:calls=");
    let line = info.lines().find_map(|l| l.strip_prefix(&start));
    line.map_or(0, |l| l.split(',').next().unwrap().parse().unwrap())
}

#[test]
fn a_forged_reference_leads_nowhere() {
    let (server, streams) = forged("forged");
    let id = &NOBODYS[..32];
    let secrets = [
        "secret",
        "re:x:{other}:1",
        "other:x:{forged}:1",
        "re:x:{forged}:*",
    ];
    let secrets = secrets.map(str::to_owned).into_iter();
    let secrets: Vec<_> = secrets.chain([format!("re:x:{{other}}:{id}")]).collect();
    for key in &secrets {
        server.command(&["SET", key, &"s".repeat(70_000)]).unwrap();
    }
    let mut tries: Vec<String> = secrets.iter().map(|key| format!("{key} 70000")).collect();
    tries.extend(secrets.iter().cloned());
    tries.extend(["", " ", "* 70000", "\r\nGET secret 1", "../secret 70000"].map(str::to_owned));
    tries.push(format!("{} 70000", id.replace('0', "*")));
    tries.push(format!("{} 70000", id.to_uppercase()));
    tries.push(format!("{}\0 70000", &id[1..]));
    tries.extend(
        ["", "0", "-1", "536870913", "99999999999999999999", "007"].map(|n| format!("{id} {n}")),
    );
    for reference in &tries {
        forge(&server, "forged", "", reference);
    }
    let looked = ["get", "getrange", "strlen"].map(|name| calls(&server, name));
    let seen = Seen::default();
    parking(&streams, "forged", &seen).drain(PATIENCE).unwrap();
    assert_eq!(seen.all(), ["first"]);
    let reasons = reasons(&streams, "forged");
    assert_eq!(reasons, vec![DeadLetterReason::Malformed; tries.len()]);
    assert_eq!(
        ["get", "getrange", "strlen"].map(|name| calls(&server, name)),
        looked
    );
    for key in &secrets {
        assert_eq!(
            server.command(&["STRLEN", key]).unwrap().int(),
            Some(70_000),
            "{key}"
        );
    }
    let all = streams.admin().dead_letters("forged", "c");
    assert_eq!(
        all.replay_all(TO_ALL, 1000).unwrap().malformed,
        tries.len() as u64
    );
    // beside a body it is a field like any other
    forge(&server, "forged", "body", "secret");
    parking(&streams, "forged", &seen).drain(PATIENCE).unwrap();
    assert_eq!(seen.all(), ["first", "body"]);
    assert_eq!(letters(&streams, "forged").len(), tries.len());
}

#[test]
fn what_is_not_what_was_written_is_missing() {
    let (server, streams) = forged("other");
    let of = |first: char, length: usize| format!("{first}{} {length}", &NOBODYS[1..32]);
    let key = |reference: &str| format!("re:x:{{other}}:{}", &reference[..32]);
    let (short, long, list, whole) = (of('a', 2000), of('b', 2000), of('c', 2000), of('d', 2000));
    let huge = of('e', 500 << 20);
    for (reference, bytes) in [(&short, 1999), (&long, 2001), (&whole, 2000), (&huge, 2000)] {
        server
            .command(&["SET", &key(reference), &"x".repeat(bytes)])
            .unwrap();
    }
    server.command(&["RPUSH", &key(&list), "x"]).unwrap();
    for reference in [NOBODYS, &short, &long, &whole, &list, &huge] {
        forge(&server, "other", "", reference);
    }
    let seen = Seen::default();
    parking(&streams, "other", &seen).drain(PATIENCE).unwrap();
    assert_eq!(seen.all(), ["first".to_owned(), "x".repeat(2000)]);
    assert_eq!(
        reasons(&streams, "other"),
        [DeadLetterReason::PayloadMissing; 5]
    );
    assert_eq!(scan(&server, "re:x:*").len(), 5, "nothing was deleted");
}

#[test]
fn one_larger_than_may_be_read_holds_the_partition_until_somebody_decides() {
    let (server, streams) = forged("oversized");
    let body = doc(1, MB);
    streams
        .publisher("oversized")
        .unwrap()
        .publish("k", "T", &body)
        .unwrap();
    let narrow = settings(&server.url(), "oversized", 1).max_message_bytes(500_000);
    let narrow = Streams::open(narrow).unwrap();
    let seen = Seen::default();
    let consumer = parking(&narrow, "oversized", &seen);
    expect("it to be said", || {
        !logged(&["oversized[0]/c", "MaxMessageBytes", "1048576"]).is_empty()
    });
    assert_eq!(seen.all(), ["first"], "those before it are handled");
    consumer.stop();
    parking(&streams, "oversized", &seen)
        .drain(PATIENCE)
        .unwrap();
    assert_eq!(seen.all(), ["first", &body]);
}

/// Publishes `n` bodies of 2000 bytes, which are kept apart, and deletes those of which that is asked.
fn with_lost(topic: &str, n: usize, is_lost: impl Fn(usize) -> bool) -> (PrivateServer, Streams) {
    let server = server();
    let streams = open_with(&server.url(), topic, apart().payload_inline_max(1024));
    let publisher = streams.publisher(topic).unwrap();
    for i in 0..n {
        let before = payloads(&server, topic);
        publisher.publish("k", "T", doc(i, 2000)).unwrap();
        let mut now = payloads(&server, topic);
        now.retain(|key| !before.contains(key));
        if is_lost(i) {
            server.command(&["DEL", &now[0]]).unwrap();
        }
    }
    (server, streams)
}

fn docs(of: impl Iterator<Item = usize>) -> Vec<String> {
    of.map(|n| doc(n, 2000)).collect()
}

#[test]
fn no_handler_is_called_without_the_body_and_the_others_are_in_order() {
    let is_lost = |n: usize| n % 3 == 1 || n == 0 || n == 19;
    let (server, streams) = with_lost("lost", 20, is_lost);
    let kept = docs((0..20).filter(|n| !is_lost(*n)));
    let lost = 20 - kept.len();
    // parked
    let seen = Seen::default();
    parking(&streams, "lost", &seen).drain(PATIENCE).unwrap();
    assert_eq!(seen.all(), kept);
    let all = letters(&streams, "lost");
    assert_eq!(
        reasons(&streams, "lost"),
        vec![DeadLetterReason::PayloadMissing; lost]
    );
    assert!(all.iter().all(|l| l.body().is_none() && l.deliveries == 1));
    assert!(
        all[0].error.contains("2000 bytes") && all[0].error.contains("PayloadTtlSeconds"),
        "{}",
        all[0]
    );
    // stepped over
    for kind in ["messages", "batches", "json"] {
        let read = read_by(&streams, "lost", kind).into_iter();
        let read: Vec<_> = read.map(|(_, b)| String::from_utf8(b).unwrap()).collect();
        assert_eq!(read, kept, "{kind}");
        assert!(
            !logged(&[&format!("ERROR lost[0]/{kind}"), "is not where it was kept"]).is_empty()
        );
    }
    // the end of everything
    let consumer = recording(
        streams.consumer("lost").name("f").on_error(OnError::Fail),
        &Seen::default(),
    );
    let consumer = consumer.start().unwrap();
    let e = streams.wait().unwrap_err();
    assert!(e.to_string().contains("OnError Fail"), "{e}");
    drop((consumer, server));
}

#[test]
fn a_body_that_comes_back_is_found_by_who_waits_for_it() {
    let (server, streams) = with_lost("back", 3, |n| n == 1);
    let reference = entries(&server, "back", 0)[1].1.last().unwrap().clone();
    let key = format!("re:x:{{back}}:{}", &reference[..32]);
    let seen = Seen::default();
    let waits = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&waits);
    let builder = streams.consumer("back").name("c").classify(move |e| {
        let e = e.downcast_ref::<Error>()?;
        asked.store(true, Relaxed);
        (e.kind() == ErrorKind::PayloadMissing).then_some(Action::Block)
    });
    let consumer = recording(builder, &seen).start().unwrap();
    expect("the lane to be blocked", || waits.load(Relaxed));
    assert_eq!(seen.all(), docs(0..1));
    assert_eq!(consumer.partitions()[0].state, LaneState::Blocked);
    server
        .command(&["SET", &key, &doc(1, 2000), "EX", "3600"])
        .unwrap();
    assert_eq!(seen.wait_for(3), docs(0..3));
    drop(consumer);
}

#[test]
fn what_has_expired_is_missing() {
    let server = server();
    let topic = apart().payload_ttl(Duration::from_millis(50));
    let streams = open_with(&server.url(), "expires", topic);
    streams
        .publisher("expires")
        .unwrap()
        .publish("k", "T", doc(0, MB))
        .unwrap();
    expect("it to expire", || scan(&server, "re:x:*").is_empty());
    let seen = Seen::default();
    parking(&streams, "expires", &seen).drain(PATIENCE).unwrap();
    assert_eq!(
        reasons(&streams, "expires"),
        [DeadLetterReason::PayloadMissing]
    );
    assert_eq!(seen.len(), 0);
}

/// A dead letter of each size, in a topic whose payloads are gone by now.
fn dead(topic: &str) -> (PrivateServer, Streams, Vec<String>) {
    let server = server();
    let streams = open_apart(&server.url(), topic);
    let publisher = streams.publisher(topic).unwrap();
    let bodies: Vec<_> = SIZES
        .iter()
        .enumerate()
        .map(|(n, bytes)| doc(n, *bytes))
        .collect();
    for body in &bodies {
        publisher
            .message("T", body)
            .key("k")
            .header("own", "1")
            .publish()
            .unwrap();
    }
    let consumer = streams
        .consumer(topic)
        .name("c")
        .park(1)
        .park_pauses(Duration::ZERO, Duration::ZERO);
    let consumer = consumer.shared(|_| Err("no".into())).start().unwrap();
    consumer.drain(PATIENCE).unwrap();
    assert_eq!(
        payloads(&server, topic).len(),
        2,
        "parking takes nothing away"
    );
    for key in payloads(&server, topic) {
        server.command(&["DEL", &key]).unwrap();
    }
    (server, streams, bodies)
}

#[test]
fn a_dead_letter_has_the_body_for_as_long_as_it_lives_and_a_replay_keeps_it_apart_again() {
    let (server, streams, bodies) = dead("letters");
    let all = streams.admin().dead_letters("letters", "c");
    for letter in letters(&streams, "letters").iter().zip(&bodies) {
        let (letter, body) = (all.show(letter.0.id).unwrap().unwrap(), letter.1);
        assert!(letter.body() == Some(body.as_bytes()), "{letter}");
        assert_eq!(letter.reason, Some(DeadLetterReason::Retries));
        let names: Vec<_> = letter.fields.iter().map(|(n, _)| &n[..]).collect();
        assert_eq!(names, [&b"b"[..], b"t", b"k", b"h"]);
    }
    for round in 1..=2 {
        let done = all.clone().unreplayed().replay_all(TO_ALL, 1000).unwrap();
        assert_eq!(done.replayed, 5, "{done:?}");
        assert_eq!(payloads(&server, "letters").len(), 2 * round);
        let seen = Seen::default();
        let to = seen.clone();
        let consumer = streams.consumer("letters").name("c").shared(move |m| {
            let first = m.headers().get("streamlane-first-id")?.map(<[u8]>::to_vec);
            to.push((
                m.body().to_vec(),
                first.is_some(),
                m.headers().get("own")?.is_some(),
            ));
            Err("no").or_dead_letter()
        });
        consumer.start().unwrap().drain(PATIENCE).unwrap();
        let expected = bodies.iter().map(|b| (b.clone().into_bytes(), true, true));
        assert!(
            seen.all() == expected.collect::<Vec<_>>(),
            "the same bytes, in order"
        );
    }
    // whoever replays need not know of large bodies
    let plain = open(&server.url(), "letters", 1);
    let plain = plain.admin().dead_letters("letters", "c").unreplayed();
    assert_eq!(plain.replay_all(TO_ALL, 1000).unwrap().replayed, 5);
    let ttls = scan(&server, "re:x:*").into_iter();
    let ttls: Vec<_> = ttls
        .map(|key| server.command(&["TTL", &key]).unwrap().int().unwrap())
        .collect();
    assert_eq!(ttls.len(), 6);
    assert!(
        ttls.iter().all(|s| (1..=7 * 86_400).contains(s)),
        "{ttls:?}"
    );
    // nobody would find it there
    let lost = all.page(None, 1).unwrap().letters.remove(0);
    server
        .command(&["RENAME", "re:s:{letters}:0", "away"])
        .unwrap();
    let last = letters(&streams, "letters").pop().unwrap();
    server
        .command(&["HDEL", "re:d:{letters}:c:meta", &last.id.to_string()])
        .unwrap();
    all.replay(last.id, TO_ALL).unwrap_err();
    assert_eq!(scan(&server, "re:x:*").len(), 6);
    assert!(matches!(
        all.replay(lost.id, TO_ALL).unwrap(),
        Replay::Before(_)
    ));
}

#[test]
fn what_is_lost_is_replayed_only_when_asked_and_says_so() {
    let (server, streams) = with_lost("gone", 3, |n| n > 0);
    parking(&streams, "gone", &Seen::default())
        .drain(PATIENCE)
        .unwrap();
    let all = streams.admin().dead_letters("gone", "c");
    let first = letters(&streams, "gone")[0].id;
    assert_eq!(all.replay(first, TO_ALL).unwrap(), Replay::PayloadMissing);
    let done = all.replay_all(TO_ALL, 1000).unwrap();
    assert_eq!((done.replayed, done.payload_missing), (0, 2));
    let asked = all.clone().even_without_body();
    assert!(matches!(
        asked.replay(first, TO_ALL).unwrap(),
        Replay::Replayed(_)
    ));
    let done = asked.replay_all(TO_ALL, 1000).unwrap();
    assert_eq!((done.replayed, done.before), (1, 1));
    let seen = Seen::default();
    let to = seen.clone();
    let consumer = streams.consumer("gone").name("d").shared(move |m| {
        let marked = m.headers().get("streamlane-payload-missing")?;
        to.push((
            m.body().len(),
            marked.map(|n| String::from_utf8_lossy(n).into_owned()),
        ));
        Ok(())
    });
    consumer.start().unwrap().drain(PATIENCE).unwrap();
    let empty = (0, Some("2000".to_owned()));
    assert_eq!(seen.all(), [(2000, None), empty.clone(), empty]);
    drop(server);
}

#[test]
fn memory_is_bounded_by_the_batch_however_many_large_bodies_wait() {
    let server = server();
    let streams = open_apart(&server.url(), "many");
    let body = doc(0, MB);
    let messages = vec![Outgoing::new("T", &body).key("k"); 100];
    let publisher = streams.publisher("many").unwrap();
    assert!(publisher.publish_batch(&messages).iter().all(Result::is_ok));
    assert_eq!(payloads(&server, "many").len(), 100);
    for (bytes, most) in [(256 << 10, 1), (3 << 20, 3)] {
        let seen = Seen::default();
        let to = seen.clone();
        let name = format!("c{most}");
        let builder = streams.consumer("many").name(&name).batch_bytes(bytes);
        let consumer = builder.batches(move |_| {
            let to = to.clone();
            move |batch: &Batch<'_>| -> HandlerResult {
                assert!(batch.iter().all(|m| m.body().len() == MB));
                to.push(batch.len());
                Ok(())
            }
        });
        consumer.start().unwrap().drain(PATIENCE).unwrap();
        let sizes = seen.all();
        assert_eq!(sizes.iter().sum::<usize>(), 100);
        assert!(sizes.iter().all(|n| *n <= most), "{sizes:?}");
        assert!(sizes.len() < 100 || most == 1, "{sizes:?}");
    }
}

#[test]
fn small_and_large_bodies_come_in_order_however_positions_are_kept_and_lines_break() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let topic = apart().payload_inline_max(1024);
    let streams = open_with(&relay.url(), "assorted", topic);
    let publisher = streams.publisher("assorted").unwrap();
    let bodies: Vec<_> = (0..600)
        .map(|n| doc(n, if n % 7 < 3 { 5000 } else { 50 }))
        .collect();
    let messages: Vec<_> = bodies
        .iter()
        .map(|b| Outgoing::new("T", b).key("k"))
        .collect();
    assert!(publisher.publish_batch(&messages).iter().all(Result::is_ok));
    for (i, persist) in [
        Persist::AsyncBatch,
        Persist::SyncBatch,
        Persist::SyncMessage,
    ]
    .into_iter()
    .enumerate()
    {
        let seen = Seen::default();
        let name = format!("c{i}");
        let builder = streams
            .consumer("assorted")
            .name(&name)
            .persist(persist)
            .batch_size(200);
        let consumer = recording(builder.batch_bytes(64 << 10), &seen)
            .start()
            .unwrap();
        for cut in [20_000, 50_000, 90_000] {
            relay.fault_existing(Way::Replies, Fault::CutAfter(cut));
            let before = seen.len();
            expect("it to go on", || {
                seen.len() > before + 50 || seen.len() == 600
            });
        }
        consumer.drain(PATIENCE).unwrap();
        assert!(
            seen.all() == bodies,
            "{persist:?}: all of them, once, in order"
        );
    }
}

#[test]
fn who_may_not_read_payloads_is_told_what_to_grant() {
    let server = server();
    let streams = open_apart(&server.url(), "rights");
    streams
        .publisher("rights")
        .unwrap()
        .publish("k", "T", doc(0, MB))
        .unwrap();
    for rules in [
        "ACL SETUSER r on >p ~* &* +@all -getrange",
        "ACL SETUSER w on >p ~* &* +@all -eval",
    ] {
        let rules: Vec<_> = rules.split(' ').collect();
        server.command(&rules).unwrap();
    }
    let user = |name| {
        server
            .tcp_url()
            .replacen("redis://", &format!("redis://{name}:p@"), 1)
    };
    let reader = open_apart(&user("r"), "rights");
    let seen = Seen::default();
    let consumer = recording(reader.consumer("rights").name("c"), &seen)
        .start()
        .unwrap();
    expect("it to be said", || {
        !logged(&["rights[0]/c", "+getrange +strlen ~re:x:{rights}:*"]).is_empty()
    });
    server
        .command(&["ACL", "SETUSER", "r", "+getrange"])
        .unwrap();
    seen.wait_for(1);
    drop(consumer);
    let writer = open_apart(&user("w"), "rights")
        .publisher("rights")
        .unwrap();
    writer.publish("k", "T", "small").unwrap();
    let e = writer.publish("k", "T", doc(0, MB)).unwrap_err();
    assert!(
        e.to_string().contains("+eval") && e.to_string().contains("~re:x:*"),
        "{e}"
    );
}

#[test]
fn why_nothing_was_appended_is_told_to_who_may_not_delete_payloads_too() {
    let server = server();
    let rules = "ACL SETUSER k on >p ~* &* +@all -del";
    let rules: Vec<_> = rules.split(' ').collect();
    server.command(&rules).unwrap();
    let url = server.tcp_url().replacen("redis://", "redis://k:p@", 1);
    let publisher = open_apart(&url, "kept").publisher("kept").unwrap();
    publisher.publish("k", "T", "small").unwrap();
    server.command(&["DEL", "re:s:{kept}:0"]).unwrap();
    server
        .command(&["SET", "re:s:{kept}:0", "no stream"])
        .unwrap();
    let body = doc(0, MB);
    let message = || publisher.message("T", &body).key("k");
    let once = message().dedupe("id", HOUR).publish().map(|p| p.id);
    for refused in [message().publish(), once] {
        let e = refused.unwrap_err();
        assert!(e.to_string().contains("WRONGTYPE"), "{e}");
    }
}

#[test]
fn members_of_a_group_have_the_bodies_through_retries_letters_and_replays() {
    for (topic, delivery) in [
        ("group", Delivery::WorkQueue),
        ("leased", Delivery::LeasedQueue),
    ] {
        let (server, streams) = with_lost(topic, 12, |n| n % 4 == 1);
        let (seen, fails) = (Seen::default(), Arc::new(AtomicBool::new(true)));
        let start = || {
            let (to, fails) = (seen.clone(), Arc::clone(&fails));
            let builder = streams.consumer(topic).name("c").delivery(delivery);
            let builder = builder.block(Duration::from_millis(50));
            let builder = builder
                .retry(1)
                .retry_pauses(Duration::ZERO, Duration::ZERO);
            let consumer = builder.shared(move |m: &Message<'_>| -> HandlerResult {
                let body = String::from_utf8_lossy(m.body()).into_owned();
                to.push((body.clone(), m.attempt()));
                if body.starts_with(r#"{"n":2,"#) && fails.load(Relaxed)
                    || m.attempt() == 1 && body.starts_with(r#"{"n":4,"#)
                {
                    Err("not now")?;
                }
                Ok(())
            });
            consumer.start().unwrap()
        };
        let consumer = start();
        // nine that have their bodies, and two of these once more
        let mut all = seen.wait_for(11);
        all.sort_by_key(|(body, _)| body[5..7].trim_end_matches(',').parse::<u32>().unwrap());
        let mut expected: Vec<_> = docs((0..12).filter(|n| n % 4 != 1))
            .into_iter()
            .map(|b| (b, 1))
            .collect();
        expected.insert(2, (doc(2, 2000), 2));
        expected.insert(5, (doc(4, 2000), 2));
        assert!(all == expected, "{topic}");
        let all = streams.admin().dead_letters(topic, "c");
        expect("four letters", || all.count().unwrap() == 4);
        let letters = letters(&streams, topic);
        let lost = letters
            .iter()
            .filter(|l| l.reason == Some(DeadLetterReason::PayloadMissing));
        assert!(
            lost.clone().count() == 3
                && lost
                    .clone()
                    .all(|l| l.body().is_none() && l.deliveries == 1)
        );
        let failed = letters
            .iter()
            .find(|l| l.reason == Some(DeadLetterReason::Retries))
            .unwrap();
        assert_eq!(
            failed.body(),
            Some(doc(2, 2000).as_bytes()),
            "it is in the letter"
        );
        fails.store(false, Relaxed);
        for key in payloads(&server, topic) {
            server.command(&["DEL", &key]).unwrap();
        }
        let to = ReplayTo::ThisConsumer;
        assert!(matches!(
            all.replay(failed.id, to).unwrap(),
            Replay::Replayed(_)
        ));
        assert_eq!(payloads(&server, topic).len(), 1, "apart again");
        let replayed = seen.wait_for(12).pop().unwrap();
        assert_eq!(replayed.0, doc(2, 2000));
        let lost = lost.map(|l| all.replay(l.id, to).unwrap());
        assert!(lost.into_iter().all(|r| r == Replay::PayloadMissing));
        drop(consumer);
    }
}

#[test]
fn a_delayed_message_has_its_body_with_it() {
    let server = server();
    let streams = open_apart(&server.url(), "later");
    let body = doc(0, MB);
    let publisher = streams.publisher("later").unwrap();
    let draft = publisher.message("T", &body).key("k");
    draft
        .deliver_after(Duration::from_millis(50))
        .publish()
        .unwrap();
    expect("it to be published", || length(&server, "later", 0) == 1);
    let read = read_by(&streams, "later", "messages");
    assert!(read.len() == 1 && read[0].1 == body.as_bytes());
    assert_eq!(
        payloads(&server, "later").len(),
        0,
        "it may wait for longer than a payload lives"
    );
}

#[test]
fn a_server_that_is_killed_has_the_message_with_its_body_or_neither() {
    listen_to_the_log();
    let server = PrivateServer::builder()
        .tcp()
        .aof(testing::Aof::Always)
        .start()
        .unwrap();
    // so that nobody waits for long for a server that is not there
    let settings = settings(&server.url(), "killed", 1).publish_timeout(Duration::from_millis(300));
    let topic = apart().payload_inline_max(1024);
    let streams = Streams::open(settings.with_topic("killed", topic)).unwrap();
    let (mut dice, mut stored) = (7_u64, 0);
    for round in 0..6 {
        let publisher = streams.publisher("killed").unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _over = Over(&over);
            for n in 0..2 {
                let (publisher, over) = (publisher.clone(), &over);
                scope.spawn(move || {
                    while !over.load(Relaxed) {
                        let _ = publisher.publish("k", "T", doc(n, 200_000));
                    }
                });
            }
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            std::thread::sleep(Duration::from_millis(30 + (dice >> 33) % 60));
            server.kill();
            over.store(true, Relaxed);
        });
        server.restart().unwrap();
        let entries = entries(&server, "killed", 0);
        let referred = entries.iter().map(|(_, fields)| {
            let reference = fields.last().unwrap();
            format!("re:x:{{killed}}:{}", &reference[..32])
        });
        let mut referred: Vec<_> = referred.collect();
        let mut kept = payloads(&server, "killed");
        referred.sort();
        kept.sort();
        assert!(
            referred == kept,
            "round {round}: {} entries, {} payloads",
            referred.len(),
            kept.len()
        );
        assert!(kept.len() >= stored);
        stored = kept.len();
    }
    assert!(stored > 0, "the kills hit a server at work");
    let read = read_by(&streams, "killed", "messages");
    assert!(read.len() == stored && read.iter().all(|(_, b)| b.len() == 200_000));
}
