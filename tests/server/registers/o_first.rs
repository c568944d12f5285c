//! O-01 to O-20.

use std::{collections::BTreeMap, thread, time::Duration};

use streamlane::*;

use super::*;
use crate::{
    publishing::length,
    queues::{SHORT, as_pod},
};

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

#[test]
fn o_11_what_is_abandoned_is_found_behind_any_number_that_is_not() {
    const BUSY: u16 = 1500;
    let server = server();
    let streams = open(&server.url(), "o11", 1);
    let key = stream("o11", 0);
    let fill = "for n = 1, tonumber(ARGV[1]) do redis.call('XADD', KEYS[1], '*', 'b', ARGV[2], 't', 'T') end";
    ask(
        &server,
        &["EVAL", fill, "1", &key, &BUSY.to_string(), "busy"],
    );
    given_to(&server, "o11", "busy");
    ask(&server, &["EVAL", fill, "1", &key, "2", "abandoned"]);
    given_to(&server, "o11", "ghost");
    let range = ask(
        &server,
        &["XRANGE", &key, "-", "+", "COUNT", &BUSY.to_string()],
    );
    let ids: Vec<String> = range.items().iter().map(|e| e.items()[0].text()).collect();
    let seen = Seen::default();
    let builder = worker(&streams, "o11")
        .claim_idle(ms(2000))
        .claim_interval(ms(50));
    let over = AtomicBool::new(false);
    thread::scope(|s| {
        let _over = Over(&over);
        s.spawn(|| {
            let mut busy: Vec<&str> = vec!["XCLAIM", &key, "c", "busy", "0"];
            busy.extend(ids.iter().map(String::as_str));
            busy.push("JUSTID");
            while !over.load(SeqCst) {
                ask(&server, &busy);
                thread::sleep(ms(50));
            }
        });
        let consumer = recording(builder, &seen).start().unwrap();
        assert_eq!(seen.wait_for(2), ["abandoned", "abandoned"]);
        consumer.stop();
        over.store(true, SeqCst);
    });
    assert_eq!(
        pending(&server, &key),
        i64::from(BUSY),
        "of whoever is at it"
    );
    assert_eq!(seen.len(), 2);
}

#[test]
fn o_12_what_was_stopped_and_started_again_has_one_set_of_threads() {
    let server = server();
    let streams = open(&server.url(), "o12", 2);
    let seen = Seen::default();
    // all of this server, which has no other clients but the one that asks
    let connected = || ask(&server, &["CLIENT", "LIST"]).text().lines().count();
    let mut first = (0, 0);
    for round in 0..4 {
        let builder = retrying(&streams, "o12").claim_interval(ms(50));
        let consumer = recording(builder, &seen).start().unwrap();
        publish(&streams, "o12", 0..1);
        seen.wait_for(round + 1);
        thread::sleep(ms(700)); // some connect only once there is something to do
        let (threads, connections) = (lane_threads("o12").0, connected());
        if round == 0 {
            first = (threads, connections);
        }
        assert!(threads >= 3, "two partitions and retries: {threads}");
        assert_eq!(threads, first.0, "round {round}");
        // one of the topic's own may come late
        assert!(connections <= first.1 + 1, "{connections}, first {first:?}");
        consumer.stop();
        expect("no thread to be left", || lane_threads("o12").0 == 0);
    }
    settled(&server, "o12", 2);
    assert_eq!(seen.len(), 4);
}

#[test]
fn o_13_a_late_instance_gets_its_share() {
    let server = server();
    let (first, second) = (Seen::default(), Seen::default());
    let join = |pod: &str, seen: &Seen<Call>| {
        let streams = as_pod(&server, "o13", 4, pod);
        let builder = streams
            .consumer("o13")
            .name("c")
            .delivery(Delivery::LeasedQueue);
        let builder = builder
            .lease_ttl(ms(3000))
            .lease_renew(ms(200))
            .block(SHORT);
        (
            builder.shared(noting(seen, |_| false)).start().unwrap(),
            streams,
        )
    };
    let (a, streams) = join("a", &first);
    expect("all for the first", || a.owned().len() == 4);
    let (b, _streams) = join("b", &second);
    expect("half for each", || {
        a.owned().len() == 2 && b.owned().len() == 2
    });
    for p in 0..4 {
        publish_to(&streams, "o13", p, &["0", "1"]);
    }
    expect("everything to be handled", || {
        first.len() + second.len() == 8
    });
    assert_eq!((first.len(), second.len()), (4, 4));
    settled(&server, "o13", 4);
}

#[test]
fn o_14_no_read_waits_for_ever() {
    let server = server();
    let streams = open(&server.url(), "o14", 1);
    for delivery in [
        Delivery::Ordered,
        Delivery::WorkQueue,
        Delivery::LeasedQueue,
    ] {
        let builder = streams
            .consumer("o14")
            .delivery(delivery)
            .block(Duration::ZERO);
        let e = recording(builder, &Seen::default()).start().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Config);
        assert!(e.to_string().contains("BlockMs"), "{e}");
    }
}

#[test]
fn o_15_a_bad_item_of_the_bucket_holds_no_other_up() {
    let server = server();
    let streams = open(&server.url(), "o15", 1);
    publish(&streams, "o15", 0..3);
    for (n, junk) in ["", "no item", "\u{93}\u{1}", "null", "0"]
        .iter()
        .enumerate()
    {
        let item = format!("bad-{n}");
        ask(&server, &["HSET", "re:ri:{o15}:c", &item, junk]);
        ask(&server, &["ZADD", "re:r:{o15}:c", "1", &item]);
    }
    ask(
        &server,
        &["ZADD", "re:r:{o15}:c", "1", "there is no such item"],
    );
    let seen = Seen::default();
    let builder = retrying(&streams, "o15");
    let handle = noting(&seen, |m| m.attempt() < 3);
    let _consumer = builder.shared(handle).start().unwrap();
    assert_eq!(seen.wait_for(9).len(), 9);
    settled(&server, "o15", 1);
    let dead = letters(&streams, "o15", 5);
    assert!(
        dead.iter()
            .all(|l| l.reason == Some(DeadLetterReason::Malformed)),
        "{dead:?}"
    );
    assert!(!exists(&server, "re:ri:{o15}:c"));
}

#[test]
fn o_16_what_was_given_out_too_often_is_a_dead_letter_without_another_call() {
    let server = server();
    let streams = open(&server.url(), "o16", 1);
    publish(&streams, "o16", 0..2);
    given_to(&server, "o16", "ghost");
    let key = stream("o16", 0);
    let id = ask(&server, &["XRANGE", &key, "-", "+"]).items()[0].items()[0].text();
    let often = [
        "XCLAIM",
        &key,
        "c",
        "ghost",
        "0",
        &id,
        "RETRYCOUNT",
        "1000",
        "JUSTID",
    ];
    ask(&server, &often);
    let seen = Seen::default();
    let builder = retrying(&streams, "o16")
        .claim_idle(ms(100))
        .claim_interval(ms(50));
    let _consumer = builder.shared(noting(&seen, |_| false)).start().unwrap();
    let letter = letters(&streams, "o16", 1).remove(0);
    assert_eq!(letter.reason, Some(DeadLetterReason::Deliveries));
    assert_eq!(letter.last_id.to_string(), id);
    assert!(letter.deliveries >= 1000, "{letter}");
    seen.wait_for(1);
    settled(&server, "o16", 1);
    assert_eq!(bodies(&seen.all()), ["1"]);
}

#[test]
fn o_17_no_header_keeps_a_message_from_being_finished() {
    let server = server();
    let streams = open(&server.url(), "o17", 1);
    let publisher = streams.publisher("o17").unwrap();
    let names = [
        "x-defer-ack",
        "x-retry-group",
        "x-max-retries",
        "retryCount",
        "!",
        "!attempts",
    ];
    for name in names {
        let draft = publisher.message("T", name);
        draft
            .header(name, "true")
            .header("n", "1000000")
            .publish()
            .unwrap();
        ask(
            &server,
            &[
                "XADD",
                &stream("o17", 0),
                "*",
                "b",
                name,
                "t",
                "T",
                name,
                "true",
            ],
        );
    }
    let seen = Seen::default();
    let builder = retrying(&streams, "o17");
    let handle = noting(&seen, |m| m.attempt() == 1);
    let _consumer = builder.shared(handle).start().unwrap();
    let calls = seen.wait_for(4 * names.len());
    settled(&server, "o17", 1);
    for name in names {
        let of: Vec<_> = calls.iter().filter(|call| call.body == name).collect();
        assert_eq!(of.len(), 4, "{name}: {of:?}");
        assert_eq!(
            of.iter().filter(|call| call.attempt == 2).count(),
            2,
            "{name}"
        );
    }
    assert_eq!(seen.len(), 4 * names.len());
}

#[test]
fn o_18_a_forged_reference_reads_and_deletes_nothing() {
    let server = server();
    let streams = open(&server.url(), "o18", 1);
    let length = "secret".len();
    let others = "re:x:{other}:0123456789abcdef0123456789abcdef";
    for key in ["victim", others] {
        ask(&server, &["SET", key, "secret"]);
    }
    let forged = [
        "victim".to_owned(),
        others.to_owned(),
        format!("victim {length}"),
        format!("{others} {length}"),
        format!("../{{other}}:0123456789abcdef0123456789abcdef {length}"),
        "* 99999999999999999999".to_owned(),
    ];
    let publisher = streams.publisher("o18").unwrap();
    for reference in &forged {
        let draft = publisher.message("T", "mine");
        let draft = draft
            .header("x-payload-ref", reference)
            .header("x", reference);
        draft.publish().unwrap();
        ask(
            &server,
            &[
                "XADD",
                &stream("o18", 0),
                "*",
                "b",
                "",
                "t",
                "T",
                "x",
                reference,
            ],
        );
    }
    let seen = Seen::default();
    let builder = retrying(&streams, "o18");
    let consumer = builder
        .shared(noting(&seen, |m| m.attempt() == 1))
        .start()
        .unwrap();
    seen.wait_for(2 * forged.len());
    settled(&server, "o18", 1);
    consumer.drain(PATIENCE).unwrap();
    for call in seen.all() {
        assert!(call.body.is_empty() || call.body == "mine", "{call:?}");
    }
    for key in ["victim", others] {
        assert_eq!(ask(&server, &["GET", key]).text(), "secret", "{key}");
    }
}

#[test]
fn o_19_what_is_deleted_is_ones_own_and_nothing_of_a_similar_name() {
    let server = server();
    let streams = open(&server.url(), "o19", 1);
    let decoys = [
        "o19",
        "c",
        "{o19}",
        "re:o19",
        "re:d:{o19}",
        "re:d:{o19}:c2",
        "re:d:{o19}:c:x",
        "re:s:{o19}:x",
        "re:r:{o19}:d",
        "o19:c",
        "d:{o19}:c",
    ];
    for key in decoys {
        ask(&server, &["SET", key, "decoy"]);
    }
    publish(&streams, "o19", 0..3);
    let builder = worker(&streams, "o19")
        .retry(0)
        .ack_delete(AckDelete::Immediate);
    let consumer = builder.shared(|_| Err("never")?).start().unwrap();
    let dead = letters(&streams, "o19", 3);
    settled(&server, "o19", 1);
    assert_eq!(length(&server, "o19", 0), 0);
    assert_eq!(
        letters_of(&streams, "o19").delete(&[dead[0].id]).unwrap(),
        1
    );
    assert_eq!(letters_of(&streams, "o19").delete_all().unwrap(), 2);
    consumer.stop();
    for key in decoys {
        assert_eq!(ask(&server, &["GET", key]).text(), "decoy", "{key}");
    }
    assert_eq!(letters_of(&streams, "o19").count().unwrap(), 0);
}

#[test]
fn o_20_a_topic_that_many_make_and_enlarge_at_once_never_shrinks() {
    let server = server();
    let over = AtomicBool::new(false);
    let recorded = || {
        ask(&server, &["HGET", "re:m:{o20}", "partitions"])
            .text()
            .parse::<u32>()
    };
    let url = server.url();
    thread::scope(|s| {
        let _over = Over(&over);
        let watching = s.spawn(|| {
            let mut last = 0;
            while !over.load(SeqCst) {
                let Ok(now) = recorded() else { continue };
                assert!(now >= last, "{now} after {last}");
                last = now;
            }
        });
        let makers = (2..10).map(|partitions| {
            let url = &url;
            s.spawn(move || {
                let publisher = open(url, "o20", partitions).publisher("o20").unwrap();
                publisher.publish("k", "T", "").map_err(|e| e.kind())
            })
        });
        let results: Vec<_> = makers
            .collect::<Vec<_>>()
            .into_iter()
            .map(|m| m.join().unwrap())
            .collect();
        assert!(results[7].is_ok(), "the largest: {results:?}");
        // who comes later with fewer is refused
        assert!(results.iter().all(|r| {
            r.as_ref()
                .err()
                .is_none_or(|kind| *kind == ErrorKind::Config)
        }));
        over.store(true, SeqCst);
        watching.join().unwrap();
    });
    assert_eq!(recorded(), Ok(9));
}
