//! What all ways to publish have in common: what is refused before a server is asked, what is counted, where
//! traces come from, and what becomes of a message that the server does not take.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use streamlane::{
    testing::{Fault, Relay, Way},
    *,
};

use crate::{
    publishing::{entries, length, open_with_timeout},
    support::*,
};

const DAY: Duration = Duration::from_hours(24);

/// A message as each way can make it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain<'a> {
    pub key: &'a str,
    pub body: &'a str,
    pub partition: Option<u32>,
}

impl<'a> Plain<'a> {
    fn outgoing(self) -> Outgoing<'a> {
        let m = Outgoing::new("T", self.body).key(self.key);
        match self.partition {
            Some(p) => m.partition(p),
            None => m,
        }
    }
}

/// Publishes a message and returns its id; of an event, that in its state.
pub type Send = Box<dyn Fn(Plain<'_>) -> Result<StreamId>>;

/// So that ids and positions are new each time.
static NTH: AtomicU64 = AtomicU64::new(1);

/// Every way to publish one message to a topic, by name.
pub fn every_way(streams: &Streams, topic: &str) -> Vec<(&'static str, Send)> {
    let publisher = || streams.publisher(topic).unwrap();
    let (shared, dedicated, batch, once) = (publisher(), publisher(), publisher(), publisher());
    let buffered = streams.buffered(topic).unwrap();
    let outbox = streams.outbox(topic).unwrap();
    let (store, forwarder) = (
        streams.state_store(topic).unwrap(),
        streams.forwarder(topic).unwrap(),
    );
    let next = || NTH.fetch_add(1, Relaxed);
    let draft = |p: &Publisher, m: Plain<'_>, id: Option<&str>| {
        let draft = p.message("T", m.body).key(m.key);
        let draft = match m.partition {
            Some(p) => draft.partition(p),
            None => draft,
        };
        match id {
            Some(id) => draft.dedupe(id, DAY).publish().map(|p| p.id),
            None => draft.publish(),
        }
    };
    let only = |mut results: Vec<Result<StreamId>>| {
        assert_eq!(results.len(), 1);
        results.remove(0)
    };
    let dedicated = move |m: Plain<'_>| only(dedicated.dedicated().publish_batch(&[m.outgoing()]));
    vec![
        ("shared", Box::new(move |m| draft(&shared, m, None))),
        ("dedicated", Box::new(dedicated)),
        (
            "batch",
            Box::new(move |m| only(batch.publish_batch(&[m.outgoing()]))),
        ),
        (
            "once",
            Box::new(move |m| draft(&once, m, Some(&next().to_string()))),
        ),
        (
            "buffered",
            Box::new(move |m| {
                let mut receipt = buffered.enqueue_tracked(&m.outgoing())?;
                receipt.wait(PATIENCE).expect("settled")
            }),
        ),
        (
            "outbox",
            Box::new(move |m| {
                let commit = outbox.transaction().publish(m.outgoing()).commit()?;
                Ok(commit.committed().unwrap().ids[0])
            }),
        ),
        (
            "state store",
            Box::new(move |m| Ok(store.append_always("s", &[m.outgoing()])?[0])),
        ),
        (
            "forwarder",
            Box::new(move |m| {
                let source = Source::in_order("s", StreamId::new(next(), 0));
                let forwarding = forwarder.forward(&source, &[m.outgoing()])?;
                match forwarding {
                    Forwarding::Forwarded(ids) => Ok(ids[0]),
                    other => panic!("{other:?}"),
                }
            }),
        ),
    ]
}

fn status(streams: &Streams) -> PublishStatus {
    streams.published().pop().unwrap()
}

/// Stored, refused, unknown.
fn counted(streams: &Streams) -> [u64; 3] {
    let s = status(streams);
    [s.stored.iter().sum(), s.refused, s.unknown]
}

#[test]
fn a_message_is_counted_carries_its_trace_and_has_a_largest_size() {
    let server = server();
    let all = settings(&server.url(), "orders", 2).max_message_bytes(1000);
    let topic = TopicSettings::default().partitions(2).state_metadata(true);
    let streams = Streams::open(all.with_topic("orders", topic)).unwrap();
    let trace = Traceparent::new([7; 16], [8; 8], 1);
    streams.trace_with(move || Some(trace)).unwrap();
    for (way, send) in every_way(&streams, "orders") {
        let before = counted(&streams);
        send(Plain {
            key: "k",
            body: way,
            partition: Some(1),
        })
        .unwrap();
        let last = entries(&server, "orders", 1).pop().unwrap().1;
        let wanted = ["b", way, "t", "T", "k", "k", "p"].map(str::to_owned);
        assert_eq!(last[..7], wanted, "{way}");
        assert_eq!(last[7], trace.to_string(), "{way}");

        let body = "x".repeat(1000);
        let large = Plain {
            key: "k",
            body: &body,
            partition: None,
        };
        let e = send(large).unwrap_err();
        assert_eq!(
            (e.kind(), e.outcome()),
            (ErrorKind::TooLarge, Outcome::NotApplied),
            "{way}: {e}"
        );
        let [stored, refused, unknown] = before;
        let now = [stored + 1, refused + 1, unknown];
        assert_eq!(counted(&streams), now, "{way}");
    }
    assert_eq!(length(&server, "orders", 0), 0);
}

#[test]
fn a_key_is_routed_by_the_topics_own_partitioner_or_not_at_all() {
    let server = server();
    let open = |topic: TopicSettings| {
        let all = Settings::default().connection_string(server.url());
        Streams::open(all.with_topic("orders", topic)).unwrap()
    };
    let other = || {
        TopicSettings::default()
            .partitioner("murmur2")
            .partitions(4)
    };
    let streams = open(other());
    for (way, send) in every_way(&streams, "orders") {
        let m = Plain {
            key: "k",
            body: way,
            partition: None,
        };
        let e = send(m).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Argument, "{way}: {e}");
        assert!(e.to_string().contains("murmur2"), "{way}: {e}");
        let to = Some(3);
        send(Plain { partition: to, ..m }).unwrap();
    }
    assert_eq!(length(&server, "orders", 3), 8);
    // somebody who knows nothing of it
    let streams = open(TopicSettings::default());
    for (way, send) in every_way(&streams, "orders") {
        let m = Plain {
            key: "k",
            body: way,
            partition: Some(3),
        };
        let e = send(m).unwrap_err();
        assert_eq!(
            (e.kind(), e.outcome()),
            (ErrorKind::Config, Outcome::NotApplied),
            "{way}: {e}"
        );
    }
    assert_eq!(length(&server, "orders", 3), 8);
    assert_eq!(counted(&streams), [0, 8, 0]);
}

#[test]
fn messages_without_a_key_take_turns_whoever_publishes_them() {
    let server = server();
    let streams = open(&server.url(), "orders", 4);
    let m = Plain::default();
    for _ in 0..2 {
        for (_, send) in &every_way(&streams, "orders")[..3] {
            send(m).unwrap();
        }
        let passing = streams.publisher("orders").unwrap();
        passing.publish("", "T", "b").unwrap();
    }
    assert_eq!(status(&streams).stored, [2; 4]);
}

#[test]
fn no_payload_and_no_key_is_shown() {
    let server = server();
    let streams = open(&server.url(), "orders", 1);
    let m = Outgoing::new("T", "payload").key("person");
    let outbox = streams.outbox("orders").unwrap();
    let publisher = streams.publisher("orders").unwrap();
    let draft = publisher.message("T", "payload").key("person");
    for shown in [
        format!("{m:?}"),
        format!("{:?}", outbox.transaction().publish(m.clone())),
        format!("{draft:?}"),
        format!("{:?}", draft.dedupe("person", DAY)),
    ] {
        let bytes = format!("{:?}", b"payload");
        let told = [&bytes[1..8], "payload", "person"].map(|t| shown.contains(t));
        assert!(
            shown.contains("body_len: 7") && told == [false; 3],
            "{shown}"
        );
    }
}

#[test]
fn a_message_too_large_for_the_server_fails_alone_in_a_batch() {
    let server = server();
    let set = ["CONFIG", "SET", "proto-max-bulk-len", "1mb"];
    server.command(&set).unwrap();
    let streams = open(&server.url(), "orders", 1);
    let publisher = streams.publisher("orders").unwrap();
    let large = "x".repeat(30 << 20);
    let bodies: Vec<String> = (0..30).map(|n| n.to_string()).collect();
    let body = |n: usize| if n % 10 == 5 { &large } else { &bodies[n] };
    let messages: Vec<_> = (0..30)
        .map(|n| Outgoing::new("T", body(n)).key("k"))
        .collect();
    for (n, result) in publisher.publish_batch(&messages).iter().enumerate() {
        match result {
            Ok(_) => assert_ne!(n % 10, 5),
            Err(e) => assert_eq!((n % 10, e.outcome()), (5, Outcome::NotApplied), "{n}: {e}"),
        }
    }
    let there: Vec<_> = entries(&server, "orders", 0);
    let there: Vec<_> = there.iter().map(|(_, f)| &*f[1]).collect();
    let small = bodies.iter().enumerate().filter(|(n, _)| n % 10 != 5);
    assert_eq!(
        there,
        small.map(|(_, b)| &**b).collect::<Vec<_>>(),
        "in order"
    );
    assert_eq!(counted(&streams), [27, 3, 0]);
}

#[test]
fn a_source_of_traces_that_panics_leaves_no_result_that_is_none() {
    let server = server();
    let streams = open(&server.url(), "orders", 1);
    let panics = Arc::new(AtomicBool::new(true));
    let hooked = Arc::clone(&panics);
    let hook = move || (!hooked.load(Relaxed)).then_some(Traceparent::new([7; 16], [8; 8], 1));
    streams
        .trace_with(move || Some(hook().expect("no trace")))
        .unwrap();
    let messages = ["a", "b"].map(|body| Outgoing::new("T", body));
    let first = messages[0].clone().traceparent("of its own");
    let messages = [first, messages[1].clone()];
    let publisher = streams.publisher("orders").unwrap();
    let mut results: Vec<Result<StreamId>> = Vec::new();
    let mut publish = || publisher.publish_batch_into(&messages, &mut results);
    catch_unwind(AssertUnwindSafe(&mut publish)).unwrap_err();
    panics.store(false, Relaxed);
    publish();
    let all: Vec<_> = results
        .into_iter()
        .map(|r| r.unwrap().to_string())
        .collect();
    let there: Vec<_> = entries(&server, "orders", 0)
        .into_iter()
        .map(|(id, _)| id)
        .collect();
    assert_eq!(all, there);
}

#[test]
fn what_waited_for_its_turn_in_vain_is_counted() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let streams = open_with_timeout(&relay.url(), "orders", Duration::from_millis(300));
    let publisher = streams.publisher("orders").unwrap();
    let once = || publisher.message("T", "b").dedupe("1", DAY).publish();
    once().unwrap();
    relay.fault(Way::Replies, Fault::BlackHole);
    thread::scope(|s| {
        let first = s.spawn(once);
        // late by the time it has its turn, or not even that
        let batch = [Outgoing::new("T", "b"), Outgoing::new("T", "c")];
        let results = publisher.publish_batch(&batch);
        assert!(results.iter().all(Result::is_err));
        assert!(first.join().unwrap().is_err() || once().is_err());
    });
    let [stored, refused, unknown] = counted(&streams);
    assert_eq!((stored, refused + unknown), (1, 3));
}

#[test]
fn events_that_make_no_append_are_counted_as_refused() {
    let server = server();
    let streams = open(&server.url(), "orders", 1);
    let store = streams.state_store("orders").unwrap();
    let event = [Outgoing::new("T", "b")];
    assert!(store.append(" ", 0, &event).is_err());
    assert_eq!(counted(&streams), [0, 1, 0]);
}
