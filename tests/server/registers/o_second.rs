//! O-11 to O-20.

use std::{thread, time::Duration};

use streamlane::*;

use super::*;
use crate::{
    publishing::length,
    queues::{SHORT, as_pod},
};

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
    // the consumer's own: what serves the whole process comes when it likes, once
    let connected = || {
        let all = ask(&server, &["CLIENT", "LIST"]).text();
        let of_consumer = |line: &&str| line.contains(":o12:") && !line.contains("streams-pub");
        all.lines().filter(of_consumer).count()
    };
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
        assert!(
            connections >= 3,
            "one for each thread that reads: {connections}"
        );
        // one may come late
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
    let id = given_so_often(&server, "o16", "1000");
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
