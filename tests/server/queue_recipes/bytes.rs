//! What comes back is what went in, and what is broken holds up nothing else.

use std::{collections::BTreeMap, time::Instant};

use streamlane::{
    testing::{PrivateServer, Reply},
    *,
};

use super::*;

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// What a handler was given: whether it may fail, the attempt, and all that the message consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Given {
    fields: Fields,
    key: Vec<u8>,
    body: Vec<u8>,
    message_type: Vec<u8>,
    headers: Fields,
    partition: u32,
}

impl Given {
    fn of(m: &Message<'_>) -> Self {
        let own = |(n, v): (&[u8], &[u8])| (n.to_vec(), v.to_vec());
        Self {
            fields: m.fields().map(own).collect(),
            key: m.key().as_bytes().to_vec(),
            body: m.body().to_vec(),
            message_type: m.message_type().as_bytes().to_vec(),
            headers: m
                .headers()
                .iter()
                .map(|pair| pair.unwrap())
                .map(own)
                .collect(),
            partition: m.partition(),
        }
    }
}

fn fields_of(entry: &Reply) -> Fields {
    let bytes = |r: &Reply| match r {
        Reply::Bulk(bytes) => bytes.clone(),
        other => other.text().into_bytes(),
    };
    let pairs = entry.items()[1].items().chunks(2);
    pairs.map(|p| (bytes(&p[0]), bytes(&p[1]))).collect()
}

fn add(server: &PrivateServer, key: &str, fields: &[&[u8]]) {
    let mut add: Vec<&[u8]> = vec![b"XADD", key.as_bytes(), b"*"];
    add.extend(fields);
    server.command(&add).unwrap();
}

/// Handed over again, as a dead letter, and replayed: nothing is taken for something else, nothing that is not there
/// for something empty.
#[test]
fn every_byte_of_a_message_survives_retries_dead_letters_and_replays() {
    let server = server();
    let topic = "same-bytes";
    let key = stream(topic, 1);
    let streams = open(&server.url(), topic, 2);
    let publisher = streams.publisher(topic).unwrap();
    let all: Vec<u8> = (0..=255).collect();
    let draft = publisher.message("T", &all).key(b"k\0\r\n\xff");
    let draft = draft.header("name", b"\0value\xff").header("empty", "");
    let draft = draft.correlation_id("corr").partition(1);
    draft.publish().unwrap();
    add(&server, &key, &[b"b", b"", b"t", b"T", b"k", b""]);
    add(&server, &key, &[b"b", b"", b"t", b"T"]);
    // a body that is not there, which an empty one is not: no message
    add(&server, &key, &[b"t", b"T", b"k", b"no body"]);
    add(
        &server,
        &key,
        &[
            b"x", b"y", b"b", b"1", b"t", b"T", b"b", b"2", b"!", b"9", b"!first", b"0-0", b"", b"",
        ],
    );
    let entries = server.command(&["XRANGE", &key, "-", "+"]).unwrap();
    let mut there: BTreeMap<StreamId, Fields> = entries
        .items()
        .iter()
        .map(|e| (e.items()[0].text().parse().unwrap(), fields_of(e)))
        .collect();
    assert_eq!(there.len(), 5);

    let seen = Seen::default();
    let given = seen.clone();
    let builder = member(&streams, topic).retry(2).retry_pauses(SHORT, SHORT);
    let consumer = builder.shared(move |m: &Message<'_>| {
        given.push((m.id(), Given::of(m)));
        Err("no such account".into())
    });
    let _consumer = consumer.start().unwrap();
    expect("dead letters", || {
        letters(&streams, topic).len() == there.len()
    });
    let first = letters(&streams, topic);
    let admin = streams.admin().dead_letters(topic, "c");
    let done = admin.replay_all(ReplayTo::ThisConsumer, 1000).unwrap();
    assert_eq!((done.replayed, done.malformed), (4, 1));
    expect("more of them", || letters(&streams, topic).len() == 5 + 4);
    nothing_is_left(&server, topic, 2);

    for letter in letters(&streams, topic) {
        assert_eq!(letter.fields, there[&letter.first_id], "{letter}");
        assert_eq!((letter.partition, letter.omitted), (1, 0));
    }
    let absent = |id: &StreamId| first.iter().find(|l| l.first_id == *id).unwrap();
    let keys: Vec<_> = there
        .keys()
        .map(|id| absent(id).key().map(<[u8]>::to_vec))
        .collect();
    assert_eq!(keys[1..3], [Some(vec![]), None], "an empty key, and none");
    let malformed = |l: &&DeadLetter| l.reason == Some(DeadLetterReason::Malformed);
    let malformed: Vec<_> = first.iter().filter(malformed).collect();
    assert_eq!(malformed.len(), 1);
    assert_eq!(
        (malformed[0].body(), malformed[0].key()),
        (None, Some(&b"no body"[..]))
    );
    there.remove(&malformed[0].first_id);

    let mut by_id: BTreeMap<StreamId, Vec<Given>> = BTreeMap::new();
    for (id, given) in seen.all() {
        by_id.entry(id).or_default().push(given);
    }
    assert_eq!(
        by_id.keys().collect::<Vec<_>>(),
        there.keys().collect::<Vec<_>>()
    );
    for (id, times) in by_id {
        assert_eq!(times.len(), 6, "{id}: twice three times");
        assert!(times.iter().all(|t| *t == times[0]), "{id}: {times:#?}");
        assert_eq!(times[0].fields, there[&id]);
        assert_eq!(times[0].partition, 1);
    }
}

/// Items that nobody can read, in the bucket and in the retry stream.
#[test]
fn broken_retry_items_hold_up_neither_partitions_nor_other_retries() {
    let server = server();
    let topic = "broken-items";
    let (streams, seen) = (open(&server.url(), topic, 2), Seen::default());
    let all = seen.clone();
    let builder = member(&streams, topic).retry(2).retry_pauses(SHORT, SHORT);
    let consumer = builder.shared(move |m: &Message<'_>| {
        all.push(text(m));
        if text(m).starts_with("later") && m.attempt() == 1 {
            Err("not yet")?;
        }
        Ok(())
    });
    let consumer = consumer.start().unwrap();
    running(&consumer);
    let [bucket, items, retries] = ["r", "ri", "rt"].map(|kind| format!("re:{kind}:{{{topic}}}:c"));
    for n in 0..50 {
        let item = format!("0-{n}-1-0");
        server.command(&["HSET", &items, &item, "garbage"]).unwrap();
        server.command(&["ZADD", &bucket, "1", &item]).unwrap();
    }
    // due, and nowhere
    server.command(&["ZADD", &bucket, "2", "0-0-2-0"]).unwrap();
    add(&server, &retries, &[b"!", b"4000000000"]);
    add(&server, &retries, &[b"!", b"6", b"!partition", b"x"]);
    let begun = Instant::now();
    for p in 0..2 {
        publish_to(
            &streams,
            topic,
            p,
            &[&format!("new {p}"), &format!("later {p}")],
        );
    }
    let came = |body: &str, times: usize| seen.all().iter().filter(|b| *b == body).count() == times;
    expect("all of them", || {
        (0..2).all(|p| came(&format!("new {p}"), 1) && came(&format!("later {p}"), 2))
    });
    assert!(begun.elapsed() < RESUMES, "{:?}", begun.elapsed());
    nothing_is_left(&server, topic, 2);
    let broken = letters(&streams, topic);
    let malformed = broken
        .iter()
        .filter(|l| l.reason == Some(DeadLetterReason::Malformed));
    assert!(malformed.count() >= 50, "they are kept: {}", broken.len());
    running(&consumer);
}
