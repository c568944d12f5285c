//! X-14 has nothing here that it could be about.

use std::thread;

use streamlane::{testing::Reply, *};

use super::*;
use crate::publishing::length;

#[test]
fn x_01_a_field_that_a_message_has_not_is_missing_wherever_it_is_kept() {
    let server = server();
    let streams = open(&server.url(), "x01", 1);
    let seen = Seen::default();
    let builder = retrying(&streams, "x01");
    let _consumer = builder.shared(noting(&seen, |_| true)).start().unwrap();
    ask(
        &server,
        &["XADD", &stream("x01", 0), "*", "b", "bare", "t", "T"],
    );
    let letter = letters(&streams, "x01", 1).remove(0);
    let bare: Vec<(Vec<u8>, Vec<u8>)> = vec![("b".into(), "bare".into()), ("t".into(), "T".into())];
    let mut kept = letter.fields.clone();
    kept.sort();
    assert_eq!(kept, bare);
    assert_eq!(letter.key(), None);
    for call in seen.all() {
        assert_eq!(call.fields, letter.fields);
    }
}

/// What stands where a key of ours should be keeps what is to be written there from being written.
fn in_the_way(server: &PrivateServer, key: &str) {
    ask(server, &["SET", key, "in the way"]);
}

#[test]
fn x_02_nothing_is_acknowledged_before_its_next_attempt_is_stored() {
    let server = server();
    let streams = open(&server.url(), "x02", 1);
    in_the_way(&server, "re:r:{x02}:c");
    let seen = Seen::default();
    let builder = retrying(&streams, "x02");
    let handle = noting(&seen, |m| m.attempt() == 1);
    let _consumer = builder.shared(handle).start().unwrap();
    publish(&streams, "x02", 0..1);
    seen.wait_for(1);
    // the first thing that a refused attempt to store it does
    expect("an attempt", || exists(&server, "re:ri:{x02}:c"));
    assert_eq!((seen.len(), pending(&server, &stream("x02", 0))), (1, 1));
    ask(&server, &["DEL", "re:r:{x02}:c"]);
    let calls = seen.wait_for(2);
    assert_eq!((calls[0].attempt, calls[1].attempt), (1, 2));
    settled(&server, "x02", 1);
    assert_eq!(seen.len(), 2);
}

#[test]
fn x_03_nothing_is_acknowledged_before_its_dead_letter_is_stored() {
    let server = server();
    let streams = open(&server.url(), "x03", 1);
    in_the_way(&server, "re:d:{x03}:c");
    let seen = Seen::default();
    let builder = worker(&streams, "x03").retry(0);
    let _consumer = builder.shared(noting(&seen, |_| true)).start().unwrap();
    publish(&streams, "x03", 0..1);
    expect("the refusal to be told", || {
        !warned("re:d:{x03}:c").is_empty()
    });
    assert_eq!(pending(&server, &stream("x03", 0)), 1);
    ask(&server, &["DEL", "re:d:{x03}:c"]);
    letters(&streams, "x03", 1);
    settled(&server, "x03", 1);
    assert_eq!((seen.len(), letters(&streams, "x03", 1).len()), (1, 1));
}

#[test]
fn x_04_a_dead_letter_knows_its_partition_and_is_replayed_there() {
    let server = server();
    let streams = open(&server.url(), "x04", 3);
    let seen = Seen::default();
    let builder = worker(&streams, "x04").retry(1).retry_pauses(TICK, TICK);
    let handle = noting(&seen, |m| m.attempt() < 3);
    let _consumer = builder.shared(handle).start().unwrap();
    publish_to(&streams, "x04", 2, &["body"]);
    let letter = letters(&streams, "x04", 1).remove(0);
    assert_eq!((letter.partition, length(&server, "x04", 2)), (2, 1));
    let all = letters_of(&streams, "x04");
    all.replay(letter.id, ReplayTo::EveryConsumerOfTheTopic)
        .unwrap();
    assert_eq!(length(&server, "x04", 2), 2);
    let calls = seen.wait_for(3);
    assert!(calls.iter().all(|call| call.partition == 2), "{calls:?}");
}

#[test]
fn x_05_a_body_is_the_same_at_every_attempt() {
    let server = server();
    let streams = open(&server.url(), "x05", 1);
    let texts = [
        "hello",
        "\"hello\"",
        "\"\\\"hello\\\"\"",
        "{\"a\": 1.0}",
        "null",
    ];
    let seen = Seen::default();
    let builder = retrying(&streams, "x05");
    let _consumer = builder.shared(noting(&seen, |_| true)).start().unwrap();
    publish_to(&streams, "x05", 0, &texts);
    let dead = letters(&streams, "x05", texts.len());
    let calls = seen.all();
    for text in texts {
        assert_eq!(
            calls.iter().filter(|call| call.body == text).count(),
            3,
            "{text}"
        );
        let kept = dead
            .iter()
            .filter(|letter| letter.body() == Some(text.as_bytes()));
        assert_eq!(kept.count(), 1, "{text}");
    }
    assert_eq!(calls.len(), 3 * texts.len());
}

#[test]
fn x_06_a_message_is_tried_as_often_as_was_set_and_no_more() {
    let server = server();
    for attempts in [0, 1, 4] {
        let topic = format!("x06-{attempts}");
        let streams = open(&server.url(), &topic, 1);
        let seen = Seen::default();
        let builder = worker(&streams, &topic)
            .retry(attempts)
            .retry_pauses(TICK, TICK);
        let _consumer = builder.shared(noting(&seen, |_| true)).start().unwrap();
        publish(&streams, &topic, 0..1);
        let letter = letters(&streams, &topic, 1).remove(0);
        assert_eq!(
            (letter.attempts, letter.deliveries),
            (attempts, attempts + 1)
        );
        let made: Vec<u32> = seen.all().iter().map(|call| call.attempt).collect();
        assert_eq!(made, (1..=attempts + 1).collect::<Vec<_>>());
    }
}

/// What `XINFO GROUPS` says of group `c`.
fn last_delivered(server: &PrivateServer, key: &str) -> Option<String> {
    let groups = server.command(&["XINFO", "GROUPS", key]).ok()?;
    groups.items().iter().find_map(|group| {
        let fields: Vec<String> = group.items().iter().map(Reply::text).collect();
        let field = |name: &str| {
            fields
                .iter()
                .position(|f| f == name)
                .map(|at| &fields[at + 1])
        };
        (field("name")? == "c").then(|| field("last-delivered-id").unwrap().clone())
    })
}

#[test]
fn x_07_groups_are_there_before_the_first_message_and_begin_at_the_beginning() {
    let server = server();
    let streams = open(&server.url(), "x07", 2);
    let seen = Seen::default();
    let consumer = recording(worker(&streams, "x07"), &seen).start().unwrap();
    for key in [stream("x07", 0), stream("x07", 1), "re:rt:{x07}:c".into()] {
        assert_eq!(
            last_delivered(&server, &key).as_deref(),
            Some("0-0"),
            "{key}"
        );
    }
    publish_to(&streams, "x07", 1, &["0"]);
    seen.wait_for(1);
    consumer.drain(PATIENCE).unwrap();
}

#[test]
fn x_08_how_often_a_message_was_given_out_is_what_the_server_counted() {
    let server = server();
    let streams = open(&server.url(), "x08", 1);
    publish(&streams, "x08", 0..1);
    given_to(&server, "x08", "ghost");
    given_so_often(&server, "x08", "7");
    let seen = Seen::default();
    let builder = worker(&streams, "x08")
        .retry(0)
        .claim_idle(ms(100))
        .claim_interval(ms(50));
    let _consumer = builder.shared(noting(&seen, |_| true)).start().unwrap();
    let letter = letters(&streams, "x08", 1).remove(0);
    assert_eq!((letter.deliveries, letter.attempts), (8, 0));
    assert_eq!(seen.all()[0].attempt, 8);
}

#[test]
fn x_09_lost_metadata_leaves_a_topic_its_partitions() {
    let server = server();
    let streams = open(&server.url(), "x09", 3);
    publish_to(&streams, "x09", 0, &["0"]);
    publish_to(&streams, "x09", 2, &["2"]);
    ask(&server, &["DEL", "re:m:{x09}"]);
    // one that has no opinion of its own
    let settings = Settings::default().connection_string(server.url());
    let follower = Streams::open(settings).unwrap();
    let seen = Seen::default();
    let _consumer = recording(worker(&follower, "x09"), &seen).start().unwrap();
    let mut all = seen.wait_for(2);
    all.sort();
    assert_eq!(all, ["0", "2"]);
    assert_eq!(
        ask(&server, &["HGET", "re:m:{x09}", "partitions"]).text(),
        "3"
    );
}

#[test]
fn x_10_a_drain_waits_for_what_a_read_is_about_to_bring() {
    let server = server();
    let streams = open(&server.url(), "x10", 2);
    for round in 0..20 {
        let seen = Seen::default();
        let builder = worker(&streams, "x10").block(ms(300));
        let consumer = recording(builder, &seen).start().unwrap();
        if round % 2 == 0 {
            running(&consumer); // else while it is yet to begin
        }
        publish_to(&streams, "x10", 0, &["0", "1"]);
        publish_to(&streams, "x10", 1, &["2"]);
        consumer.drain(PATIENCE).unwrap();
        assert_eq!(seen.len(), 3, "round {round}");
        settled(&server, "x10", 2);
    }
}

#[test]
fn x_11_an_acknowledgement_that_is_refused_is_told_and_made_later() {
    let server = server();
    let streams = open(&server.url(), "x11", 1);
    let seen = Seen::default();
    let _consumer = recording(worker(&streams, "x11"), &seen).start().unwrap();
    publish_to(&streams, "x11", 0, &["0"]);
    seen.wait_for(1);
    settled(&server, "x11", 1);
    ask(&server, &["ACL", "SETUSER", "default", "-xack"]);
    publish_to(&streams, "x11", 0, &["1"]);
    seen.wait_for(2);
    expect("the refusal to be told", || {
        warned("x11[0]/c").iter().any(|line| line.contains("xack"))
    });
    assert_eq!(pending(&server, &stream("x11", 0)), 1);
    ask(&server, &["ACL", "SETUSER", "default", "+xack"]);
    settled(&server, "x11", 1);
    publish_to(&streams, "x11", 0, &["2"]);
    assert_eq!(seen.wait_for(3), ["0", "1", "2"], "each once");
}

#[test]
fn x_12_a_stream_that_is_not_there_is_made_with_its_group() {
    let server = server();
    let streams = open(&server.url(), "x12", 1);
    let seen = Seen::default();
    let consumer = recording(worker(&streams, "x12"), &seen).start().unwrap();
    running(&consumer);
    publish_to(&streams, "x12", 0, &["0"]);
    seen.wait_for(1);
    ask(&server, &["DEL", &stream("x12", 0)]);
    expect("the group to be back", || {
        last_delivered(&server, &stream("x12", 0)).is_some()
    });
    publish_to(&streams, "x12", 0, &["1", "2"]);
    assert_eq!(seen.wait_for(3), ["0", "1", "2"]);
    assert!(!logged(&["ERROR", "x12", "was LOST"]).is_empty());
    settled(&server, "x12", 1);
}

#[test]
fn x_13_any_bytes_go_through_the_buckets() {
    let server = server();
    let streams = open(&server.url(), "x13", 1);
    let all: Vec<u8> = (0..=255).collect();
    let seen = Seen::default();
    let builder = retrying(&streams, "x13");
    let handle = noting(&seen, |m| m.attempt() < 3);
    let _consumer = builder.shared(handle).start().unwrap();
    let publisher = streams.publisher("x13").unwrap();
    let draft = || {
        let draft = publisher.message(&all, &all).key(&all);
        draft.header("h", &all).correlation_id(&all)
    };
    draft().publish().unwrap();
    draft().deliver_after(TICK).publish().unwrap();
    let calls = seen.wait_for(6);
    for call in &calls {
        assert_eq!(call.fields, calls[0].fields);
        for name in ["b", "t", "k"] {
            let found = call.fields.iter().find(|(n, _)| n == name.as_bytes());
            assert_eq!(found.unwrap().1, all, "{name}");
        }
    }
    settled(&server, "x13", 1);
    thread::sleep(TICK);
    assert_eq!(seen.len(), 6);
}
