//! O-01 to O-10.

use std::{collections::BTreeMap, thread};

use streamlane::*;

use super::*;
use crate::{publishing::length, queues::SHORT};

/// A member of another group of the same topic.
fn other(streams: &Streams, topic: &str) -> ConsumerBuilder {
    let builder = streams.consumer(topic).name("d").block(SHORT);
    builder.delivery(Delivery::WorkQueue)
}

#[test]
fn o_01_a_retry_is_the_matter_of_the_group_that_failed() {
    let server = server();
    let streams = open(&server.url(), "o01", 1);
    let (seen, others) = (Seen::default(), Seen::default());
    let builder = retrying(&streams, "o01");
    let _c = builder.shared(noting(&seen, |_| true)).start().unwrap();
    let d = other(&streams, "o01").shared(noting(&others, |_| false));
    let d = d.start().unwrap();
    publish(&streams, "o01", 0..3);
    letters(&streams, "o01", 3);
    settled(&server, "o01", 1);
    d.drain(PATIENCE).unwrap();
    assert_eq!((seen.len(), length(&server, "o01", 0)), (9, 3));
    assert_eq!(bodies(&others.all()), ["0", "1", "2"]);
    assert!(others.all().iter().all(|call| call.attempt == 1));
}

/// Larger than what belongs into a stream.
fn large(n: u32) -> String {
    format!("{n} ").repeat(50_000)
}

#[test]
fn o_02_a_large_body_is_there_for_every_group_every_reset_and_every_replay() {
    let server = server();
    let streams = open(&server.url(), "o02", 1);
    other(&streams, "o02")
        .shared(|_| Ok(()))
        .start()
        .unwrap()
        .stop();
    let (seen, late) = (Seen::default(), Seen::default());
    let builder = worker(&streams, "o02").retry(0);
    let consumer = builder.shared(noting(&seen, |m| m.body().starts_with(b"1")));
    let consumer = consumer.start().unwrap();
    publish_to(&streams, "o02", 0, &[&large(0), &large(1)]);
    let letter = letters(&streams, "o02", 1).remove(0);
    settled(&server, "o02", 1);
    assert_eq!(letter.body(), Some(large(1).as_bytes()));
    consumer.stop();
    let d = other(&streams, "o02").shared(noting(&late, |_| false));
    let d = d.start().unwrap();
    let all = letters_of(&streams, "o02");
    late.wait_for(2);
    all.replay(letter.id, ReplayTo::EveryConsumerOfTheTopic)
        .unwrap();
    let calls = late.wait_for(3);
    assert_eq!(bodies(&calls), [large(0), large(1), large(1)]);
    d.stop();
    // and for one that begins at the beginning
    let again = Seen::default();
    let ordered = recording(streams.consumer("o02").name("e"), &again);
    ordered.start().unwrap().drain(PATIENCE).unwrap();
    assert_eq!(again.all(), [large(0), large(1), large(1)]);
}

#[test]
fn o_03_no_deletion_goes_past_what_is_pending_and_what_others_trim_is_told() {
    let server = server();
    let streams = open(&server.url(), "o03", 1);
    publish(&streams, "o03", 0..3);
    given_to(&server, "o03", "ghost");
    let key = stream("o03", 0);
    let ids = ask(&server, &["XRANGE", &key, "-", "+"]);
    let first = ids.items()[0].items()[0].text();
    ask(&server, &["XACK", &key, "c", &first]);
    // another group deletes, with the second message in the hands of nobody who lives
    let seen = Seen::default();
    let deleting = other(&streams, "o03").ack_delete(AckDelete::AllGroups);
    let deleting = recording(deleting, &seen).start().unwrap();
    seen.wait_for(3);
    expect("what all have finished to be deleted", || {
        length(&server, "o03", 0) == 2
    });
    thread::sleep(ms(1500)); // as another look takes
    assert_eq!((length(&server, "o03", 0), pending(&server, &key)), (2, 2));
    deleting.stop();
    ask(&server, &["XTRIM", &key, "MAXLEN", "1"]);
    let seen = Seen::default();
    let builder = worker(&streams, "o03").claim_idle(ms(100));
    let builder = builder.claim_interval(ms(50));
    let consumer = recording(builder, &seen).start().unwrap();
    assert_eq!(seen.wait_for(1), ["2"]);
    expect("the loss to be told", || {
        consumer.partitions().iter().any(|p| p.lost == 1)
    });
    assert!(!logged(&["ERROR", "o03", "LOST"]).is_empty());
    settled(&server, "o03", 1);
}

#[test]
fn o_04_the_bound_of_a_stream_is_exact_and_kept_by_the_append_itself() {
    let server = server();
    let layout = TopicSettings::default()
        .partitions(1)
        .max_len(50)
        .trim(Trim::Exact);
    let settings = settings(&server.url(), "o04", 1).with_topic("o04", layout);
    let streams = Streams::open(settings).unwrap();
    let publisher = streams.publisher("o04").unwrap();
    for n in 1..=200 {
        publisher.publish("k", "T", n.to_string()).unwrap();
        assert_eq!(length(&server, "o04", 0), n.min(50));
    }
    let calls = ["xadd", "xtrim", "xdel", "eval", "evalsha"].map(|c| calls_of(&server, c));
    assert_eq!((calls[0], calls[1], calls[2]), (200, 0, 0));
    assert!(calls[3] + calls[4] < 10, "none for each message: {calls:?}");
}

#[test]
fn o_05_what_is_written_of_progress_is_what_is_read_of_it() {
    let server = server();
    let streams = open(&server.url(), "o05", 1);
    let ids = publish_to(&streams, "o05", 0, &["0", "1", "2"]);
    let consumer = streams.consumer("o05").name("c").shared(|_| Ok(()));
    let consumer = consumer.start().unwrap();
    expect("the end", || {
        consumer.position(0).is_some_and(|p| p.id == ids[2])
    });
    consumer.stop();
    assert_eq!(stored(&server, "o05", "c", 0), Some(ids[2]));
    let preview = streams
        .admin()
        .reset("o05", "c", ResetTo::Start)
        .preview()
        .unwrap();
    assert_eq!(preview.partitions[0].current, Some(ids[2]));
    // and what a group is made again from is what was written of it
    let work = || {
        let seen = Seen::default();
        let builder = streams
            .consumer("o05")
            .name("g")
            .delivery(Delivery::WorkQueue);
        (recording(builder, &seen).start().unwrap(), seen)
    };
    let (consumer, seen) = work();
    seen.wait_for(3);
    let mark = || ask(&server, &["HGET", "re:p:{o05}:g:meta", "0:group"]).text();
    expect("a mark", || mark() == format!(" {}", ids[2]));
    consumer.stop();
    ask(&server, &["XGROUP", "DESTROY", &stream("o05", 0), "g"]);
    let (consumer, seen) = work();
    publish_to(&streams, "o05", 0, &["3"]);
    assert_eq!(seen.wait_for(1), ["3"]);
    consumer.stop();
}

#[test]
fn o_06_what_is_no_message_never_reaches_a_handler_wherever_it_lies() {
    let server = server();
    let streams = open(&server.url(), "o06", 1);
    publish(&streams, "o06", 0..1);
    let seen = Seen::default();
    let builder = retrying(&streams, "o06");
    let handle = noting(&seen, |m| m.attempt() < 4);
    let _consumer = builder.shared(handle).start().unwrap();
    let letter = letters(&streams, "o06", 1).remove(0);
    let all = letters_of(&streams, "o06");
    all.replay(letter.id, ReplayTo::ThisConsumer).unwrap();
    letters(&streams, "o06", 2);
    // what a replay writes has every field in its place
    for call in seen.all() {
        assert_eq!((&*call.body, &call.fields), ("0", &letter.fields));
    }
    assert_eq!(seen.len(), 6);
    for key in ["re:s:{o06}:0", "re:rt:{o06}:c"] {
        ask(
            &server,
            &["XADD", key, "*", "\u{3}\u{1}topi", "\u{3}\u{1}o0"],
        );
        ask(&server, &["XADD", key, "*", "b", "a body and no type"]);
    }
    let dead = letters(&streams, "o06", 6);
    let junk = dead[2..].iter();
    assert!(
        junk.clone()
            .all(|l| l.reason == Some(DeadLetterReason::Malformed)),
        "{dead:?}"
    );
    settled(&server, "o06", 1);
    assert_eq!(seen.len(), 6);
}

#[test]
fn o_07_a_replay_keeps_the_key_and_the_headers() {
    let server = server();
    let streams = open(&server.url(), "o07", 1);
    let (seen, mended) = (Seen::default(), Switch::default());
    let broken = mended.clone();
    let builder = worker(&streams, "o07").retry(0);
    let handle = noting(&seen, move |_| !broken.is_on());
    let _consumer = builder.shared(handle).start().unwrap();
    let heard = Seen::default();
    let others = heard.clone();
    let ordered = streams
        .consumer("o07")
        .name("e")
        .shared(move |m: &Message<'_>| {
            let header = |name| m.headers().get(name).unwrap().map(<[u8]>::to_vec);
            let texts = [
                m.key(),
                m.message_type(),
                m.correlation_id(),
                m.traceparent().unwrap(),
            ];
            others.push((
                texts.map(|t| t.to_string()),
                header("h"),
                header("streamlane-first-id"),
            ));
            Ok(())
        });
    let _ordered = ordered.start().unwrap();
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let publisher = streams.publisher("o07").unwrap();
    let draft = publisher.message("T", "body").key("k").header("h", "v");
    let id = draft
        .correlation_id("c-1")
        .traceparent(trace)
        .publish()
        .unwrap();
    let letter = letters(&streams, "o07", 1).remove(0);
    mended.turn_on();
    let all = letters_of(&streams, "o07");
    all.replay(letter.id, ReplayTo::EveryConsumerOfTheTopic)
        .unwrap();
    let heard = heard.wait_for(2);
    let texts = ["k", "T", "c-1", trace].map(str::to_owned);
    assert_eq!(heard[0], (texts.clone(), Some(b"v".to_vec()), None));
    assert_eq!(
        heard[1],
        (
            texts,
            Some(b"v".to_vec()),
            Some(id.to_string().into_bytes())
        )
    );
    seen.wait_for(2);
}

#[test]
fn o_08_a_replay_that_fails_leaves_nothing_behind() {
    let server = server();
    let streams = open(&server.url(), "o08", 1);
    let consumer = worker(&streams, "o08").retry(0);
    let consumer = consumer.shared(|_| Err("never")?).start().unwrap();
    publish_to(&streams, "o08", 0, &[&large(0)]);
    let letter = letters(&streams, "o08", 1).remove(0);
    settled(&server, "o08", 1);
    consumer.stop();
    let keys = || {
        let keys = ask(&server, &["KEYS", "*"]);
        let sizes = keys.items().iter().map(|key| {
            let key = key.text();
            let len = server.command(&["XLEN", &key]).ok();
            (key, len)
        });
        sizes.collect::<BTreeMap<_, _>>()
    };
    let all = letters_of(&streams, "o08");
    for (config, refuses, allows) in [("maxmemory", "1", "0"), ("min-replicas-to-write", "1", "0")]
    {
        let before = keys();
        ask(&server, &["CONFIG", "SET", config, refuses]);
        for to in [ReplayTo::ThisConsumer, ReplayTo::EveryConsumerOfTheTopic] {
            let e = all.replay(letter.id, to).unwrap_err();
            assert_eq!(e.outcome(), Outcome::NotApplied, "{e}");
        }
        ask(&server, &["CONFIG", "SET", config, allows]);
        assert_eq!(keys(), before, "{config}");
    }
    let done = all
        .replay(letter.id, ReplayTo::EveryConsumerOfTheTopic)
        .unwrap();
    assert!(matches!(done, Replay::Replayed(_)), "{done:?}");
    assert_eq!(length(&server, "o08", 0), 2);
}

#[test]
fn o_09_a_reset_says_what_it_did_to_each_partition_and_destroys_no_group() {
    let server = server();
    let streams = open(&server.url(), "o09", 2);
    let last = [0, 1].map(|p| *publish_to(&streams, "o09", p, &["a", "b"]).last().unwrap());
    let start = [(0, StreamId::MIN), (1, StreamId::MIN)];
    let end = [(0, last[0]), (1, last[1])];
    // what tells a group from another of its name: its members
    ask(&server, &["XGROUP", "CREATE", &stream("o09", 1), "c", "0"]);
    ask(
        &server,
        &[
            "XGROUP",
            "CREATECONSUMER",
            &stream("o09", 1),
            "c",
            "witness",
        ],
    );
    for (name, delivery) in [("c", Delivery::WorkQueue), ("e", Delivery::Ordered)] {
        let handled = || {
            let seen = Seen::default();
            let builder = streams.consumer("o09").name(name).delivery(delivery);
            let consumer = recording(builder, &seen).start().unwrap();
            consumer.drain(PATIENCE).unwrap();
            seen.len()
        };
        let reset = |to| {
            let reset = streams.admin().reset("o09", name, to);
            reset.apply().unwrap()
        };
        assert_eq!(handled(), 4);
        assert_eq!(reset(ResetTo::Start), start);
        assert_eq!(handled(), 4, "all of them again");
        assert_eq!(reset(ResetTo::Start), start);
        assert_eq!(reset(ResetTo::End), end);
        assert_eq!(handled(), 0);
    }
    let members = ask(&server, &["XINFO", "CONSUMERS", &stream("o09", 1), "c"]);
    let named = |m: &testing::Reply| m.items()[1].text() == "witness";
    assert!(members.items().iter().any(named), "{members:?}");
}

#[test]
fn o_10_ids_are_compared_as_numbers_and_ends_are_the_true_ones() {
    let server = server();
    let key = stream("o10", 0);
    for id in ["9-9", "9-10", "10-9", "10-10", "100-0"] {
        ask(&server, &["XADD", &key, id, "b", id, "t", "T"]);
    }
    let streams = open(&server.url(), "o10", 1);
    let seen = Seen::default();
    let ordered = recording(streams.consumer("o10").name("c"), &seen);
    ordered.start().unwrap().drain(PATIENCE).unwrap();
    assert_eq!(seen.all(), ["9-9", "9-10", "10-9", "10-10", "100-0"]);
    let id = StreamId::new;
    assert_eq!(stored(&server, "o10", "c", 0), Some(id(100, 0)));
    for (to, entries) in [
        (id(9, 9), 4),
        (id(9, 10), 3),
        (id(10, 9), 2),
        (id(10, 10), 1),
    ] {
        let reset = streams.admin().reset("o10", "c", ResetTo::Id(to));
        let partition = reset.preview().unwrap().partitions.remove(0);
        let ends = (partition.oldest, partition.newest, partition.length);
        assert_eq!(ends, (Some(id(9, 9)), Some(id(100, 0)), 5));
        assert_eq!(
            (partition.direction, partition.entries),
            (ResetDirection::Rewind, entries)
        );
    }
    let refused = ["XADD", &key, "99-0", "b", "", "t", "T"];
    let e = server.command(&refused).unwrap_err();
    assert!(e.to_string().contains("equal or smaller"), "{e}");
}
