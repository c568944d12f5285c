//! Which partition a message goes to, and who may say so.

use streamlane::*;

use crate::{
    publishing::{entries, failed, length},
    support::*,
};

/// Streams whose topic finds the partition of a key by `partitioner`.
fn by(url: &str, topic: &str, partitioner: &str) -> Streams {
    let topic_settings = TopicSettings::default()
        .partitions(4)
        .partitioner(partitioner);
    Streams::open(settings(url, topic, 4).with_topic(topic, topic_settings)).unwrap()
}

#[test]
fn a_topic_remembers_its_partitioner_and_publishers_by_another_are_refused() {
    let server = server();
    let record = |topic: &str| {
        let meta = format!("re:m:{{{topic}}}");
        server
            .command(&["HGET", &meta, "partitioner"])
            .unwrap()
            .text()
    };
    let murmur = by(&server.url(), "orders", "murmur2")
        .publisher("orders")
        .unwrap();
    let sent = murmur.message("T", "B").key("k").partition(3).publish();
    sent.unwrap();
    assert_eq!(record("orders"), "murmur2");

    for (url, topic, ours, theirs) in [
        (server.url(), "orders", "xxh3", "murmur2"),
        (server.url(), "plain", "murmur2", "xxh3"),
    ] {
        if topic == "plain" {
            publish(&open(&url, topic, 4), topic, 0..1);
            assert_eq!(record(topic), "xxh3");
        }
        let publisher = by(&url, topic, ours).publisher(topic).unwrap();
        for result in [
            publisher.publish("", "T", "B"),
            publisher.message("T", "B").partition(0).publish(),
            publisher
                .publish_batch(&[Outgoing::new("T", "B")])
                .remove(0),
        ] {
            let e = failed(result, ErrorKind::Config, Outcome::NotApplied);
            let text = e.to_string();
            for named in [topic, ours, theirs, "Partitioner"] {
                assert!(text.contains(named), "{named} in {text}");
            }
        }
        // A consumer takes what it finds.
        let seen = Seen::default();
        let streams = by(&url, topic, ours);
        let _consumer = recording(streams.consumer(topic).name("c"), &seen)
            .start()
            .unwrap();
        seen.wait_for(1);
    }
}

#[test]
fn a_topic_that_a_peer_made_finds_partitions_as_peers_do() {
    let server = server();
    for (field, value) in [("partitions", "4"), ("v", "1")] {
        server
            .command(&["HSET", "re:m:{orders}", field, value])
            .unwrap();
    }
    let murmur = by(&server.url(), "orders", "murmur2")
        .publisher("orders")
        .unwrap();
    failed(
        murmur.publish("", "T", "B"),
        ErrorKind::Config,
        Outcome::NotApplied,
    );
    publish(&open(&server.url(), "orders", 4), "orders", 0..1);
}

#[test]
fn where_keys_are_routed_by_others_they_need_a_partition_here() {
    let server = server();
    let streams = by(&server.url(), "orders", "murmur2");
    let publisher = streams.publisher("orders").unwrap();
    let batch = [
        Outgoing::new("T", "B").key("k"),
        Outgoing::new("T", "B").key("k").partition(2),
    ];
    let mut results = publisher.publish_batch(&batch);
    results.pop().unwrap().unwrap();
    for refused in [results.remove(0), publisher.publish("k", "T", "B")] {
        let e = failed(refused, ErrorKind::Argument, Outcome::NotApplied);
        let text = e.to_string();
        assert!(
            text.contains("murmur2") && text.contains("partition"),
            "{text}"
        );
    }
    let lengths = || {
        (0..4)
            .map(|p| length(&server, "orders", p))
            .collect::<Vec<_>>()
    };
    assert_eq!(lengths(), [0, 0, 1, 0]);
    // Without a key there is nothing to agree about.
    for _ in 0..8 {
        publisher.publish("", "T", "B").unwrap();
    }
    assert_eq!(lengths().iter().sum::<i64>(), 9);
    assert!(lengths().iter().all(|n| *n >= 1), "{:?}", lengths());
    assert_eq!(
        entries(&server, "orders", 2)[0].1,
        ["b", "B", "t", "T", "k", "k"]
    );
}

#[test]
fn a_blank_partitioner_is_refused_at_the_start() {
    let e = Settings::default()
        .connection_string("redis://localhost")
        .with_topic("orders", TopicSettings::default().partitioner(" "))
        .check()
        .unwrap_err();
    assert!(
        e.to_string().contains("Streams:Topics:orders:Partitioner"),
        "{e}"
    );
}
