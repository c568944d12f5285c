//! Publishing: the bytes that go out, what comes back, and what a caller may know after a failure.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    thread,
    time::Duration,
};

use streamlane::{
    testing::{Answer, PrivateServer, Reply, Stub},
    *,
};

use crate::support::*;

fn key(topic: &str, partition: u32) -> String {
    format!("re:s:{{{topic}}}:{partition}")
}

pub fn length(server: &PrivateServer, topic: &str, partition: u32) -> i64 {
    let len = server.command(&["XLEN", &key(topic, partition)]);
    len.unwrap().int().unwrap()
}

/// Every entry of a partition: its id and its fields.
pub fn entries(server: &PrivateServer, topic: &str, partition: u32) -> Vec<(String, Vec<String>)> {
    let range = server.command(&["XRANGE", &key(topic, partition), "-", "+"]);
    let text = |fields: &Reply| fields.items().iter().map(Reply::text).collect();
    let range = range.unwrap();
    let pair = |e: &Reply| (e.items()[0].text(), text(&e.items()[1]));
    range.items().iter().map(pair).collect()
}

pub fn open_with_timeout(url: &str, topic: &str, timeout: Duration) -> Streams {
    Streams::open(settings(url, topic, 1).publish_timeout(timeout)).unwrap()
}

#[track_caller]
pub fn failed(result: Result<StreamId>, kind: ErrorKind, outcome: Outcome) -> Error {
    let e = result.unwrap_err();
    assert_eq!((e.kind(), e.outcome()), (kind, outcome), "{e}");
    e
}

/// The record of a topic of one partition, as asked for.
pub fn one_partition() -> Reply {
    let one = || Reply::bulk("1");
    Reply::Array(vec![one(), one(), Reply::Nil])
}

/// A topic that exists already, and answers every XADD as told.
pub fn answering(mut answer: impl FnMut(&[Vec<u8>]) -> Answer + Send + 'static) -> Stub {
    Stub::start(move |args, _| match &args[0][..] {
        b"HMGET" => Answer::Reply(one_partition()),
        b"EXISTS" => Answer::Reply(Reply::Int(1)),
        b"XADD" => answer(args),
        _ => Answer::Usual,
    })
    .unwrap()
}

/// The connections that messages came over.
pub fn writers(stub: &Stub) -> BTreeSet<u64> {
    let seen = stub.seen();
    let adds = seen.iter().filter(|s| s.name() == "XADD");
    adds.map(|s| s.connection).collect()
}

/// What was sent to a server, handshakes and the look for advice aside.
fn commands(stub: &Stub) -> Vec<String> {
    let seen = stub.seen();
    let own = |s: &&testing::Seen| !["HELLO", "CLIENT", "PING", "CONFIG"].contains(&&*s.name());
    seen.iter().filter(own).map(testing::Seen::text).collect()
}

#[test]
fn every_part_of_a_message_arrives_and_its_id_is_the_one_returned() {
    let server = server();
    let streams = open(&server.url(), "orders", 8);
    let publisher = streams.publisher("orders").unwrap();
    let body = "naïve\0日本";
    let id = publisher
        .message("OrderPlaced", body)
        .key("order-1")
        .correlation_id("c-1")
        .traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
        .header("source", "web")
        .publish()
        .unwrap();
    let seen = Seen::default();
    let handler_seen = seen.clone();
    let handle = move |m: &Message<'_>| -> HandlerResult {
        handler_seen.push((m.partition(), m.timestamp(), m.to_owned()));
        Ok(())
    };
    let _consumer = streams
        .consumer("orders")
        .name("c")
        .shared(handle)
        .start()
        .unwrap();
    let (partition, at, m) = seen.wait_for(1).remove(0);
    assert_eq!(
        (m.id, &*m.body, &*m.key),
        (id, body.as_bytes(), &b"order-1"[..])
    );
    assert_eq!(
        (&*m.message_type, &*m.correlation_id),
        (&b"OrderPlaced"[..], &b"c-1"[..])
    );
    assert!(m.traceparent.unwrap().starts_with(b"00-4bf9"));
    assert_eq!(m.headers, [((*b"source").into(), (*b"web").into())]);
    assert_eq!(at, std::time::UNIX_EPOCH + Duration::from_millis(id.ms()));
    // XXH3-64 of "order-1" is 5fc46503368e2876
    assert_eq!(u64::from(partition), 0x5fc4_6503_368e_2876 % 8);
}

#[test]
fn an_explicit_partition_wins_and_the_key_is_kept() {
    let server = server();
    let streams = open(&server.url(), "orders", 8);
    let publisher = streams.publisher("orders").unwrap();
    for p in 0..8 {
        publisher
            .message("T", "B")
            .key("same")
            .partition(p)
            .publish()
            .unwrap();
        let all = entries(&server, "orders", p);
        assert_eq!(all.len(), 1, "partition {p}");
        assert_eq!(all[0].1, ["b", "B", "t", "T", "k", "same"]);
    }
    let beyond = publisher.message("T", "B").partition(8).publish();
    failed(beyond, ErrorKind::Argument, Outcome::NotApplied);
    let batch = [
        Outgoing::new("T", "B").partition(99),
        Outgoing::new("T", "B").partition(0),
    ];
    let mut results = publisher.publish_batch(&batch);
    assert!(results.pop().unwrap().is_ok());
    let e = failed(
        results.pop().unwrap(),
        ErrorKind::Argument,
        Outcome::NotApplied,
    );
    assert!(
        e.to_string().contains("99") && e.to_string().contains('8'),
        "{e}"
    );
}

#[test]
fn mistakes_are_refused_before_anything_is_sent() {
    let stub = Stub::start(|_, _| Answer::Usual).unwrap();
    let settings = settings(&stub.url(), "orders", 4).max_message_bytes(10_000);
    let publisher = Streams::open(settings)
        .unwrap()
        .publisher("orders")
        .unwrap();
    let draft = || publisher.message("T", "B");
    let e = failed(
        draft().partition(4).publish(),
        ErrorKind::Argument,
        Outcome::NotApplied,
    );
    assert!(e.to_string().contains("out of range"), "{e}");
    let names: Vec<_> = (0..65).map(|n| n.to_string()).collect();
    let many = names.iter().fold(draft(), |d, n| d.header(n, ""));
    let e = failed(many.publish(), ErrorKind::Argument, Outcome::NotApplied);
    assert!(e.to_string().contains("64"), "{e}");
    let value = "v".repeat(8192);
    let long = draft().header("x", &value).publish();
    let e = failed(long, ErrorKind::Argument, Outcome::NotApplied);
    assert!(e.to_string().contains("8192"), "{e}");
    let large = "x".repeat(10_000);
    for too_large in [
        publisher.publish("", "", large.clone() + "x"),
        publisher.publish(&large, "T", ""),
        draft().correlation_id(&large).publish(),
        draft().traceparent(&large).publish(),
    ] {
        let e = failed(too_large, ErrorKind::TooLarge, Outcome::NotApplied);
        assert!(
            e.to_string().contains("MaxMessageBytes") && !e.is_retryable(),
            "{e}"
        );
    }
    assert_eq!(
        commands(&stub),
        [""; 0],
        "asked for a message that never could go"
    );
}

#[test]
fn a_topic_is_made_and_written_to_as_every_peer_does_it() {
    let server = server();
    let mut client = server.client().unwrap();
    let stub = Stub::start(move |args, _| {
        client.send(args).unwrap();
        Answer::Reply(client.receive().unwrap())
    })
    .unwrap();
    let topic = TopicSettings::default().partitions(4).trim(Trim::None);
    let settings = Settings::default()
        .connection_string(stub.url())
        .allow_untrimmed(true)
        .with_topic("t1", topic);
    let publisher = Streams::open(settings).unwrap().publisher("t1").unwrap();
    for n in 0..3 {
        let (body, key) = (format!("body-{n}"), format!("key-{n}"));
        let draft = publisher.message("T", &body).key(&key).correlation_id("c1");
        draft
            .header("source", "web")
            .header("k", "v")
            .publish()
            .unwrap();
    }
    let sent = commands(&stub);
    let created = server
        .command(&["HGET", "re:m:{t1}", "createdUtc"])
        .unwrap()
        .text();
    let makes = sent.iter().find(|c| c.starts_with("XGROUP"));
    let group = makes.and_then(|c| c.split(' ').nth(3)).unwrap();
    assert!(group.starts_with("__streamlane-ensure-"), "{group}");
    let read = "HMGET re:m:{t1} partitions v partitioner".to_owned();
    let mut want = vec![read.clone()];
    // whether anything is left of a topic whose metadata was lost
    want.extend((0..64).map(|p| format!("EXISTS re:s:{{t1}}:{p}")));
    want.extend(
        [
            "HSETNX re:m:{t1} partitioner xxh3",
            "HSETNX re:m:{t1} partitions 4",
            "HSETNX re:m:{t1} v 1",
        ]
        .map(str::to_owned),
    );
    want.push(format!("HSETNX re:m:{{t1}} createdUtc {created}"));
    want.push("HSETNX re:m:{t1} maxLen 10000".into());
    want.push(read);
    want.extend((0..4).map(|p| format!("EXISTS re:s:{{t1}}:{p}")));
    want.extend((0..4).flat_map(|p| {
        [
            format!("XGROUP CREATE re:s:{{t1}}:{p} {group} $ MKSTREAM"),
            format!("XGROUP DESTROY re:s:{{t1}}:{p} {group}"),
        ]
    }));
    want.push("ZADD re:topics 0 t1".into()); // which is ours alone
    want.extend([(0, 0), (1, 1), (2, 0)].map(|(n, p)| {
        format!("XADD re:s:{{t1}}:{p} * b body-{n} t T k key-{n} c c1 h 6:source3:web1:k1:v")
    }));
    assert_eq!(sent, want);
    let [date, rest] = created.split('.').collect::<Vec<_>>()[..] else {
        panic!("{created}");
    };
    assert!(
        date.len() == 19 && rest.len() == 13 && rest.ends_with("+00:00"),
        "{created}"
    );
    let record = server.command(&["HGETALL", "re:m:{t1}"]).unwrap();
    assert_eq!(record.items().len(), 10);
    let groups = server.command(&["XINFO", "GROUPS", "re:s:{t1}:0"]).unwrap();
    assert_eq!(
        groups.items().len(),
        0,
        "the group that made the stream is gone"
    );
    // A second publisher finds the topic as it is.
    open(&stub.url(), "t1", 4)
        .publisher("t1")
        .unwrap()
        .publish("key-0", "T", "")
        .unwrap();
    let repeated = commands(&stub).split_off(want.len());
    let reads = repeated.iter().filter(|c| !c.starts_with("XADD"));
    let harmless = ["HMGET", "EXISTS", "ZADD re:topics "];
    assert!(
        reads
            .clone()
            .all(|c| harmless.iter().any(|h| c.starts_with(h))),
        "{repeated:?}"
    );
    assert!(reads.count() == 6, "{repeated:?}");
}

#[test]
fn trimming_is_asked_for_as_it_is_set() {
    for (trim, words) in [
        (Trim::Approx, "MAXLEN ~ 1234 "),
        (Trim::Exact, "MAXLEN 1234 "),
        (Trim::None, ""),
    ] {
        let stub = answering(|_| Answer::Reply(Reply::bulk("1-0")));
        let mut topic = TopicSettings::default().partitions(1).trim(trim);
        if trim != Trim::None {
            topic = topic.max_len(1_234);
        }
        let settings = Settings::default()
            .connection_string(stub.url())
            .allow_untrimmed(true)
            .with_topic("orders", topic);
        let publisher = Streams::open(settings)
            .unwrap()
            .publisher("orders")
            .unwrap();
        let draft = publisher
            .message("OrderPlaced", "{}")
            .key("order-1")
            .correlation_id("c1");
        assert_eq!(
            draft.header("source", "web").publish().unwrap(),
            StreamId::new(1, 0)
        );
        publisher.publish("", "", "").unwrap();
        let sent = commands(&stub);
        let head = format!("XADD re:s:{{orders}}:0 {words}*");
        let full = format!("{head} b {{}} t OrderPlaced k order-1 c c1 h 6:source3:web");
        assert_eq!(sent[sent.len() - 2..], [full, format!("{head} b  t  k ")]);
    }
}

#[test]
fn each_message_of_a_batch_has_its_own_result() {
    let mut n = 0;
    let stub = answering(move |_| {
        n += 1;
        Answer::Reply(match n {
            4 | 5 => Reply::Error("OOM command not allowed when used memory > 'maxmemory'".into()),
            n => Reply::bulk(format!("{n}-0")),
        })
    });
    let settings = settings(&stub.url(), "orders", 1).max_message_bytes(100);
    let publisher = Streams::open(settings)
        .unwrap()
        .publisher("orders")
        .unwrap();
    let large = "x".repeat(101);
    let bodies = ["a", "b", &large, "c", "d", "e"];
    let results = publisher.publish_batch(&bodies.map(|b| Outgoing::new("T", b)));
    assert_eq!(results.len(), 6);
    for (result, id) in [(&results[0], 1), (&results[1], 2), (&results[3], 3)] {
        assert_eq!(*result.as_ref().unwrap(), StreamId::new(id, 0));
    }
    let mut results = results.into_iter();
    failed(
        results.nth(2).unwrap(),
        ErrorKind::TooLarge,
        Outcome::NotApplied,
    );
    for result in results.skip(1) {
        let e = failed(result, ErrorKind::Server, Outcome::NotApplied);
        assert_eq!(e.server_class(), Some(ServerClass::OutOfMemory));
        assert_eq!(e.key(), Some("re:s:{orders}:0"));
        assert_eq!(e.endpoint(), Some(&*stub.addr().to_string()));
    }
    assert_eq!(stub.count("XADD"), 5);
    let after = publisher.publish_batch(&[Outgoing::new("T", "after")]);
    assert!(after.iter().all(Result::is_ok));
    assert_eq!(
        writers(&stub).len(),
        1,
        "a refusal leaves the connection in step"
    );
    let asked = commands(&stub);
    assert!(publisher.publish_batch(&[]).is_empty());
    assert_eq!(commands(&stub), asked, "nothing to say, nothing said");
}

#[test]
fn a_batch_without_keys_stays_together_and_takes_one_turn() {
    let server = server();
    let streams = open(&server.url(), "turns", 4);
    let publisher = streams.publisher("turns").unwrap();
    let lengths = || [0, 1, 2, 3].map(|p| length(&server, "turns", p));
    let three = [(); 3].map(|()| Outgoing::new("T", "B"));
    let all_ok = |messages: &[Outgoing<'_>]| {
        assert!(publisher.publish_batch(messages).iter().all(Result::is_ok));
    };
    all_ok(&three);
    assert_eq!(lengths(), [0, 3, 0, 0], "the first turn is partition 1");
    all_ok(&three);
    publisher.publish("", "T", "B").unwrap();
    assert_eq!(lengths(), [0, 3, 3, 1]);
    all_ok(&[
        Outgoing::new("T", "B").key("k"),
        Outgoing::new("T", "B").partition(2),
    ]);
    publisher.publish("", "T", "B").unwrap();
    let last = lengths();
    assert_eq!(
        last[0] + last[1] + last[3],
        6 - last[2] + 4,
        "no turn was taken without need"
    );
    assert!(last[0] >= 1, "and the next turn was partition 0: {last:?}");
}

#[test]
fn a_batch_goes_out_in_pieces_that_are_answered_before_the_next() {
    let stub = answering(|_| Answer::Nothing);
    let streams = open_with_timeout(&stub.url(), "orders", Duration::from_secs(1));
    let publisher = streams.publisher("orders").unwrap();
    let many = vec![Outgoing::new("T", "B"); 2000];
    let results = publisher.publish_batch(&many);
    assert_eq!(results.len(), 2000);
    let unknown = results.iter().take_while(|r| {
        r.as_ref()
            .is_err_and(|e| e.outcome() == Outcome::Unknown && e.kind() == ErrorKind::Timeout)
    });
    let sent = unknown.count();
    assert!((1..1000).contains(&sent), "{sent} on their way at once");
    for result in &results[sent..] {
        assert_eq!(result.as_ref().unwrap_err().outcome(), Outcome::NotApplied);
    }
    expect("the stub to read what was sent", || {
        stub.count("XADD") == sent
    });
}

#[test]
fn a_large_batch_arrives_whole_and_in_order() {
    let server = server();
    let publisher = open(&server.url(), "many", 1).publisher("many").unwrap();
    let bodies: Vec<_> = (0..3000)
        .map(|n| format!("{n:04} {}", "x".repeat(1000)))
        .collect();
    let batch: Vec<_> = bodies
        .iter()
        .map(|b| Outgoing::new("T", b).key("k"))
        .collect();
    let ids: Vec<_> = publisher
        .publish_batch(&batch)
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let stored = entries(&server, "many", 0);
    assert_eq!(stored.len(), 3000);
    for ((id, body), (stored_id, fields)) in ids.iter().zip(&bodies).zip(&stored) {
        assert!(
            id.to_string() == *stored_id && fields[1] == *body,
            "{id} {stored_id}"
        );
    }
}

#[test]
fn many_threads_share_a_publisher_and_each_key_keeps_its_order() {
    let server = server();
    let publisher = open(&server.url(), "shared", 4)
        .publisher("shared")
        .unwrap();
    let threads: Vec<_> = (0..8)
        .map(|t| {
            let publisher = publisher.clone();
            thread::spawn(move || {
                let publish = |n: u32| {
                    publisher
                        .publish(format!("k{t}"), "T", format!("{t} {n}"))
                        .unwrap()
                };
                (0..150).map(publish).collect::<Vec<_>>()
            })
        })
        .collect();
    let mut returned = BTreeMap::new();
    for (t, thread) in threads.into_iter().enumerate() {
        let ids = thread.join().unwrap();
        assert!(ids.is_sorted_by(|a, b| a < b), "thread {t}");
        let bodies = ids
            .iter()
            .enumerate()
            .map(|(n, id)| (format!("{t} {n}"), id.to_string()));
        returned.extend(bodies);
    }
    let stored = (0..4).flat_map(|p| entries(&server, "shared", p));
    let stored: BTreeMap<_, _> = stored.map(|(id, f)| (f[1].clone(), id)).collect();
    assert_eq!(stored.len(), 8 * 150);
    assert_eq!(
        stored, returned,
        "everybody got the id of their own message"
    );
}
