//! Publishing under a dedupe id: one entry however often it is sent, and the truth about which.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use streamlane::{
    testing::{Answer, Aof, Fault, PrivateServer, Relay, Reply, Stub, Way},
    *,
};

use crate::{
    publishing::{answering, entries, failed, length, one_partition},
    support::*,
};

const HOUR: Duration = Duration::from_hours(1);

fn text(server: &PrivateServer, command: &[&str]) -> String {
    server.command(command).unwrap().text()
}

/// How many calls of a command the server counted, and how many of them it refused.
fn calls(server: &PrivateServer, name: &str) -> (u64, u64) {
    let stats = text(server, &["INFO", "commandstats"]);
    let line = stats
        .lines()
        .find(|l| l.starts_with(&format!("cmdstat_{name}:")));
    let number = |field: &str| {
        let at = line?.split(field).nth(1)?;
        at.split(',').next()?.parse().ok()
    };
    (
        number("calls=").unwrap_or(0),
        number("failed_calls=").unwrap_or(0),
    )
}

fn bodies(server: &PrivateServer, topic: &str, partition: u32) -> Vec<String> {
    let all = entries(server, topic, partition).into_iter();
    all.map(|(_, fields)| fields[1].clone()).collect()
}

#[test]
fn the_second_call_stores_nothing_and_learns_the_first_id() {
    let server = server();
    let streams = open(&server.url(), "orders", 2);
    let publisher = streams.publisher("orders").unwrap();
    let mut dedicated = publisher.dedicated();
    let draft = || {
        publisher
            .message("T", "B")
            .key("k")
            .header("a", "b")
            .correlation_id("c")
    };
    let first = draft().dedupe("id", HOUR).publish().unwrap();
    assert!(!first.repeated);
    let plain = draft().publish().unwrap();
    for again in [
        draft().dedupe("id", HOUR).publish().unwrap(),
        publisher
            .message("other", "body")
            .key("k")
            .dedupe("id", HOUR)
            .publish()
            .unwrap(),
        dedicated
            .message("T", "B")
            .key("k")
            .dedupe("id", HOUR)
            .publish()
            .unwrap(),
    ] {
        assert_eq!((again.id, again.repeated), (first.id, true));
    }
    let p = (0..2).find(|p| length(&server, "orders", *p) > 0).unwrap();
    let all = entries(&server, "orders", p);
    assert_eq!(all.len(), 2, "{all:?}");
    assert_eq!(
        (&all[0].0, &all[1].0),
        (&first.id.to_string(), &plain.to_string())
    );
    assert_eq!(all[0].1, all[1].1, "the entry is that of a plain publish");
    let marker = "re:once:{orders}:id";
    assert_eq!(text(&server, &["GET", marker]), first.id.to_string());
    let left = server.command(&["PTTL", marker]).unwrap().int().unwrap();
    assert!(left > 3_000_000 && left <= 3_600_000, "{left}");
    let status = streams.published().remove(0);
    let counted = (
        status.stored.iter().sum::<u64>(),
        status.repeated,
        status.refused,
    );
    assert_eq!(counted, (2, 3, 0));
}

/// The hash that names the script is that of the script: after one call in full none is needed.
#[test]
fn the_script_is_sent_once_and_again_when_the_server_forgets_it() {
    let server = server();
    let publisher = open(&server.url(), "orders", 1)
        .publisher("orders")
        .unwrap();
    let publish = |n: u32| {
        let id = n.to_string();
        publisher
            .message("T", &id)
            .dedupe(&id, HOUR)
            .publish()
            .unwrap();
    };
    (0..5).for_each(publish);
    assert_eq!(
        (calls(&server, "evalsha").0, calls(&server, "eval").0),
        (5, 1)
    );
    assert_eq!(
        calls(&server, "evalsha").1,
        1,
        "the first was not known yet"
    );
    text(&server, &["SCRIPT", "FLUSH"]);
    (5..10).for_each(publish);
    assert_eq!(
        (calls(&server, "evalsha").0, calls(&server, "eval").0),
        (10, 2)
    );
    let all: Vec<_> = (0..10).map(|n| n.to_string()).collect();
    assert_eq!(bodies(&server, "orders", 0), all);
}

#[test]
fn without_a_key_the_dedupe_id_says_where() {
    let server = server();
    for (topic, together) in [("together", true), ("spread", false)] {
        let layout = TopicSettings::default()
            .partitions(4)
            .co_locate_partitions(together);
        let settings = settings(&server.url(), topic, 4).with_topic(topic, layout);
        let streams = Streams::open(settings).unwrap();
        // Each has a round robin of its own.
        for _ in 0..3 {
            let publisher = streams.publisher(topic).unwrap();
            for n in 0..20 {
                let id = format!("id-{n}");
                publisher
                    .message("T", "B")
                    .dedupe(&id, HOUR)
                    .publish()
                    .unwrap();
                let batch = [Outgoing::new("T", "B").dedupe(&id, HOUR)];
                publisher.publish_batch(&batch).remove(0).unwrap();
            }
        }
        let tag = if together {
            format!("{{{topic}}}")
        } else {
            topic.into()
        };
        let stream = |p: u32| format!("re:s:{tag}:{p}");
        let lengths: Vec<i64> = (0..4)
            .map(|p| {
                server
                    .command(&["XLEN", &stream(p)])
                    .unwrap()
                    .int()
                    .unwrap()
            })
            .collect();
        assert_eq!(lengths.iter().sum::<i64>(), 20, "{topic}: {lengths:?}");
        assert!(lengths.iter().all(|n| *n > 0), "{topic}: {lengths:?}");
        let markers = server.command(&["KEYS", "re:once:*"]).unwrap();
        let of_topic = |m: &&Reply| m.text().contains(topic);
        for marker in markers.items().iter().filter(of_topic) {
            let id = text(&server, &["GET", &marker.text()]);
            let tag = marker.text().split(['{', '}']).nth(1).unwrap().to_owned();
            if together {
                assert_eq!(tag, topic);
            } else {
                let range = server.command(&["XRANGE", &tag, &id, &id]).unwrap();
                assert_eq!(range.items().len(), 1, "{marker:?} lies beside its stream");
            }
        }
    }
}

#[test]
fn a_resend_after_a_lost_answer_appends_once() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let publisher = open(&relay.url(), "orders", 1).publisher("orders").unwrap();
    // Over the connection that such messages take, too.
    publisher
        .publish_batch(&[Outgoing::new("T", "first").key("k")])
        .remove(0)
        .unwrap();
    relay.fault_existing(Way::Replies, Fault::Swallow);
    let once = |p: &Publisher| p.message("T", "lost").key("k").dedupe("id", HOUR).publish();
    let other = publisher.clone();
    let lost = thread::spawn(move || once(&other));
    // Script and entry: the first try by hash alone stores nothing, and its answer is swallowed, too.
    expect("the script to be tried", || {
        calls(&server, "evalsha").0 == 1
    });
    relay.close();
    let e = lost.join().unwrap().unwrap_err();
    assert_eq!(e.outcome(), Outcome::Unknown, "{e}");
    assert!(
        !once(&publisher).unwrap().repeated,
        "the server did not know the script"
    );

    relay.fault_existing(Way::Replies, Fault::Swallow);
    let other = publisher.clone();
    let again = |p: &Publisher| {
        p.message("T", "again")
            .key("k")
            .dedupe("id-2", HOUR)
            .publish()
    };
    let lost = thread::spawn(move || again(&other));
    expect("the message to be stored", || {
        length(&server, "orders", 0) == 3
    });
    relay.close();
    let e = lost.join().unwrap().unwrap_err();
    assert_eq!(
        (e.kind(), e.outcome()),
        (ErrorKind::Io, Outcome::Unknown),
        "{e}"
    );
    let resent = again(&publisher).unwrap();
    let stored = entries(&server, "orders", 0);
    assert_eq!(
        (resent.id.to_string(), resent.repeated),
        (stored[2].0.clone(), true)
    );
    assert_eq!(bodies(&server, "orders", 0), ["first", "lost", "again"]);
}

#[test]
fn the_marker_does_not_look_at_the_entry_and_ends_with_its_time() {
    let server = server();
    let publisher = open(&server.url(), "orders", 1)
        .publisher("orders")
        .unwrap();
    let once = |ttl| {
        publisher
            .message("T", "B")
            .dedupe("id", ttl)
            .publish()
            .unwrap()
    };
    let first = once(HOUR);
    let deleted = server.command(&["XDEL", "re:s:{orders}:0", &first.id.to_string()]);
    assert_eq!(deleted.unwrap().int(), Some(1));
    let again = once(HOUR);
    assert_eq!(
        (again.id, again.repeated),
        (first.id, true),
        "already published as"
    );
    assert_eq!(length(&server, "orders", 0), 0);
    text(&server, &["PEXPIRE", "re:once:{orders}:id", "1"]);
    expect("the marker to go", || {
        server
            .command(&["EXISTS", "re:once:{orders}:id"])
            .unwrap()
            .int()
            == Some(0)
    });
    let anew = once(Duration::from_micros(1500));
    assert!(!anew.repeated && anew.id > first.id);
    assert_eq!(length(&server, "orders", 0), 1);
}

#[test]
fn a_batch_tells_of_each_message_whether_it_was_stored_before() {
    let server = server();
    let publisher = open(&server.url(), "orders", 1)
        .publisher("orders")
        .unwrap();
    let before = publisher
        .message("T", "a")
        .dedupe("a", HOUR)
        .publish()
        .unwrap();
    text(&server, &["SCRIPT", "FLUSH"]);
    let batch = [
        Outgoing::new("T", "plain"),
        Outgoing::new("T", "a").dedupe("a", HOUR),
        Outgoing::new("T", "b").dedupe("b", HOUR),
        Outgoing::new("T", "none").dedupe("", HOUR),
        Outgoing::new("T", "b").dedupe("b", HOUR),
        Outgoing::new("T", "c").dedupe("c", HOUR),
    ];
    let mut results: Vec<Result<Published>> = Vec::new();
    publisher.publish_batch_into(&batch, &mut results);
    let e = failed(
        results.remove(3).map(StreamId::from),
        ErrorKind::Argument,
        Outcome::NotApplied,
    );
    assert!(e.to_string().contains("empty"), "{e}");
    let results: Vec<_> = results.into_iter().map(Result::unwrap).collect();
    let repeated: Vec<_> = results.iter().map(|p| p.repeated).collect();
    assert_eq!(repeated, [false, true, false, true, false]);
    assert_eq!(results[1].id, before.id);
    assert_eq!(results[3].id, results[2].id);
    assert_eq!(bodies(&server, "orders", 0), ["a", "plain", "b", "c"]);
    // More than one piece, and every message again.
    let ids: Vec<_> = (0..1500).map(|n| n.to_string()).collect();
    let many: Vec<_> = ids
        .iter()
        .map(|id| Outgoing::new("T", id).dedupe(id, HOUR))
        .collect();
    let mut dedicated = publisher.dedicated();
    let [mut once, mut twice] = [Vec::new(), Vec::new()];
    dedicated.publish_batch_into::<Published>(&many, &mut once);
    dedicated.publish_batch_into::<Published>(&many, &mut twice);
    for (a, b) in once.into_iter().zip(twice) {
        let (a, b) = (a.unwrap(), b.unwrap());
        assert!(!a.repeated && b.repeated && a.id == b.id);
    }
    assert_eq!(bodies(&server, "orders", 0)[4..], ids);
}

#[test]
fn ids_are_any_bytes_within_bounds() {
    let stub = Stub::start(|_, _| Answer::Usual).unwrap();
    let publisher = open(&stub.url(), "orders", 1).publisher("orders").unwrap();
    let once = |id: &[u8], ttl| {
        let result = publisher.message("T", "B").dedupe(id, ttl).publish();
        failed(
            result.map(StreamId::from),
            ErrorKind::Argument,
            Outcome::NotApplied,
        )
        .to_string()
    };
    assert!(once(b"", HOUR).contains("empty"));
    assert!(once(&[b'x'; 1025], HOUR).contains("1024"));
    for ttl in [Duration::ZERO, Duration::from_micros(999), Duration::MAX] {
        assert!(once(b"id", ttl).contains("1 ms"), "{ttl:?}");
    }
    assert_eq!(stub.count("HMGET"), 0, "asked for what could never go");

    let server = server();
    let publisher = open(&server.url(), "orders", 1)
        .publisher("orders")
        .unwrap();
    let ids: [&[u8]; 5] = [b"\0\r\n", b"\xff\xfe", b"{x}", b"=", &[b'x'; 1024]];
    for repeated in [false, true] {
        for id in ids {
            let done = publisher
                .message("T", "B")
                .dedupe(id, HOUR)
                .publish()
                .unwrap();
            assert_eq!(done.repeated, repeated, "{}", id.escape_ascii());
        }
    }
    assert_eq!(length(&server, "orders", 0), 5);
}

/// Rather than being stored twice without a word.
#[test]
fn queues_and_transactions_refuse_what_is_to_be_stored_once() {
    let server = server();
    let streams = open(&server.url(), "orders", 1);
    let outbox = streams.outbox("orders").unwrap();
    let state = streams.state_store("orders").unwrap();
    let mut transaction = outbox.transaction();
    transaction = transaction.publish(Outgoing::new("T", "B").dedupe("id", HOUR));
    let event = Outgoing::new("T", "B").dedupe("id", HOUR);
    let buffered = streams.buffered("orders").unwrap();
    for e in [
        transaction.commit().unwrap_err(),
        buffered.enqueue(&event).unwrap_err(),
        state.append("order-1", 0, &[event]).unwrap_err(),
    ] {
        assert_eq!(
            (e.kind(), e.outcome()),
            (ErrorKind::Argument, Outcome::NotApplied)
        );
        assert!(e.to_string().contains("dedupe id"), "{e}");
    }
    assert_eq!(length(&server, "orders", 0), 0);
}

#[test]
fn a_publish_and_a_claim_of_one_id_are_two_things() {
    let server = server();
    let streams = open(&server.url(), "orders", 1);
    let publisher = streams.publisher("orders").unwrap();
    let claims = streams.idempotency("orders").unwrap();
    assert!(claims.try_begin("id", HOUR).unwrap());
    assert!(
        !publisher
            .message("T", "B")
            .dedupe("id", HOUR)
            .publish()
            .unwrap()
            .repeated
    );
    assert!(!claims.try_begin("id", HOUR).unwrap());
}

/// A user who may do everything but this, over a connection of their own.
fn user_without(server: &PrivateServer, commands: &str) -> Streams {
    let mut rules = vec![
        "ACL", "SETUSER", "u", "reset", "on", ">p", "~*", "&*", "+@all",
    ];
    rules.extend(commands.split(' '));
    text(server, &rules);
    let url = format!("redis://u:p@127.0.0.1:{}", server.port());
    open(&url, "orders", 1)
}

#[test]
fn where_scripts_are_forbidden_the_error_says_what_to_grant_and_nothing_is_stored() {
    let server = server();
    publish(&open(&server.url(), "orders", 1), "orders", 0..1);
    for forbidden in ["-eval -evalsha", "-set", "-get", "-xadd"] {
        let publisher = user_without(&server, forbidden)
            .publisher("orders")
            .unwrap();
        let result = publisher.message("T", "B").dedupe("id", HOUR).publish();
        let e = failed(
            result.map(StreamId::from),
            ErrorKind::Server,
            Outcome::NotApplied,
        );
        assert_eq!(
            e.server_class(),
            Some(ServerClass::NoPermission),
            "{forbidden}: {e}"
        );
        let grant = "+eval +evalsha +get +set +xadd +del ~re:once:*";
        assert!(e.to_string().contains(grant), "{e}");
        assert_eq!(length(&server, "orders", 0), 1, "{forbidden}");
    }
    text(
        &server,
        &[
            "ACL",
            "SETUSER",
            "u",
            "resetkeys",
            "~re:s:*",
            "~re:m:*",
            "+@all",
        ],
    );
    let url = format!("redis://u:p@127.0.0.1:{}", server.port());
    let publisher = open(&url, "orders", 1).publisher("orders").unwrap();
    let e = publisher
        .message("T", "B")
        .dedupe("id", HOUR)
        .publish()
        .unwrap_err();
    assert!(e.to_string().contains("~re:once:*"), "{e}");
    publisher.publish("", "T", "B").unwrap();
    // None of it is remembered.
    let publisher = open(&server.url(), "orders", 1)
        .publisher("orders")
        .unwrap();
    assert!(
        !publisher
            .message("T", "B")
            .dedupe("id", HOUR)
            .publish()
            .unwrap()
            .repeated
    );
}

#[test]
fn what_the_server_refused_can_be_published_later_under_the_same_id() {
    let server = server();
    let publisher = open(&server.url(), "orders", 1)
        .publisher("orders")
        .unwrap();
    publisher.publish("", "T", "first").unwrap();
    let once = |id: &str| publisher.message("T", "B").dedupe(id, HOUR).publish();
    // Known to the server, so that it is the script itself which is refused.
    once("before").unwrap();
    text(&server, &["CONFIG", "SET", "maxmemory", "1"]);
    for _ in 0..2 {
        let e = once("id").unwrap_err();
        assert_eq!(
            (e.server_code(), e.outcome()),
            (Some("OOM"), Outcome::NotApplied),
            "{e}"
        );
        assert!(e.is_retryable(), "{e}");
    }
    text(&server, &["CONFIG", "SET", "maxmemory", "0"]);
    assert!(!once("id").unwrap().repeated);

    let stream = "re:s:{orders}:0";
    text(
        &server,
        &[
            "XADD",
            stream,
            "18446744073709551615-18446744073709551615",
            "x",
            "y",
        ],
    );
    let e = once("exhausted").unwrap_err();
    assert_eq!(
        (e.kind(), e.is_retryable()),
        (ErrorKind::Server, false),
        "{e}"
    );
    text(&server, &["DEL", stream]);
    text(&server, &["SET", stream, "no stream"]);
    let e = once("wrong").unwrap_err();
    assert_eq!(e.server_class(), Some(ServerClass::WrongType), "{e}");
    text(&server, &["DEL", stream]);
    for id in ["exhausted", "wrong"] {
        assert!(!once(id).unwrap().repeated, "{id}");
    }
}

#[test]
fn a_marker_of_somebody_else_is_told_and_left_alone() {
    let server = server();
    let publisher = open(&server.url(), "orders", 1)
        .publisher("orders")
        .unwrap();
    text(&server, &["SET", "re:once:{orders}:id", "hello"]);
    let batch = [
        Outgoing::new("T", "a").dedupe("id", HOUR),
        Outgoing::new("T", "b"),
    ];
    let mut results = publisher.publish_batch(&batch);
    results.remove(1).unwrap();
    let alone = publisher.message("T", "B").dedupe("id", HOUR).publish();
    for result in [results.remove(0), alone.map(StreamId::from)] {
        let e = failed(result, ErrorKind::Config, Outcome::NotApplied);
        assert!(e.to_string().contains("marker"), "{e}");
    }
    assert_eq!(text(&server, &["GET", "re:once:{orders}:id"]), "hello");
    assert_eq!(length(&server, "orders", 0), 1);
}

#[test]
fn ids_are_left_to_the_server() {
    let stub = answering(|_| Answer::Reply(Reply::bulk("1-0")));
    let publisher = open(&stub.url(), "orders", 1).publisher("orders").unwrap();
    publisher.publish("k", "T", "B").unwrap();
    publisher
        .publish_batch(&[Outgoing::new("T", "B")])
        .remove(0)
        .unwrap();
    let script = Stub::start(|args, _| match &args[0][..] {
        b"HMGET" => Answer::Reply(one_partition()),
        b"EXISTS" => Answer::Reply(Reply::Int(1)),
        b"EVALSHA" => Answer::Reply(Reply::bulk("2-0")),
        _ => Answer::Usual,
    })
    .unwrap();
    let publisher = open(&script.url(), "orders", 1)
        .publisher("orders")
        .unwrap();
    publisher
        .message("T", "B")
        .dedupe("id", HOUR)
        .publish()
        .unwrap();
    let seen = [stub.seen(), script.seen()].concat();
    let appends = seen
        .iter()
        .filter(|s| ["XADD", "EVALSHA"].contains(&&*s.name()));
    let mut n = 0;
    for append in appends {
        let id = append.args.iter().position(|a| a == b"b").unwrap() - 1;
        assert_eq!(append.args[id], b"*", "{}", append.text());
        n += 1;
    }
    assert_eq!(n, 3);
}

/// Whatever dies, whoever publishes until told that it is stored has stored one message.
#[test]
fn a_server_killed_again_and_again_ends_up_with_one_of_each() {
    const EACH: u32 = 120;
    listen_to_the_log();
    let builder = PrivateServer::builder().aof(Aof::Always);
    let server = builder.start().unwrap();
    let layout = settings(&server.url(), "orders", 2).publish_timeout(Duration::from_millis(500));
    let streams = Streams::open(layout).unwrap();
    let publisher = streams.publisher("orders").unwrap();
    let over = &AtomicBool::new(false);
    let stored: Vec<BTreeMap<String, StreamId>> = thread::scope(|s| {
        let threads: Vec<_> = (0..2)
            .map(|t| {
                let publisher = publisher.clone();
                s.spawn(move || {
                    let mut stored = BTreeMap::new();
                    for n in 0..EACH {
                        let id = format!("{t}-{n}");
                        let once = || publisher.message("T", &id).dedupe(&id, HOUR).publish();
                        let mut done = None;
                        expect("a message to be stored", || {
                            done = once().ok();
                            done.is_some()
                        });
                        stored.insert(id.clone(), done.unwrap().id);
                    }
                    stored
                })
            })
            .collect();
        let killer = s.spawn({
            let server = &server;
            move || {
                let mut kills = 0;
                while kills < 3 || !over.load(Relaxed) && kills < 6 {
                    let before = length(server, "orders", 0);
                    let moved = || over.load(Relaxed) || length(server, "orders", 0) > before + 5;
                    expect("some messages", moved);
                    server.kill();
                    server.restart().unwrap();
                    kills += 1;
                }
            }
        });
        let stored = threads.into_iter().map(|t| t.join().unwrap()).collect();
        over.store(true, Relaxed);
        killer.join().unwrap();
        stored
    });
    let mut found = BTreeMap::new();
    for p in 0..2 {
        for (id, fields) in entries(&server, "orders", p) {
            let twice = found.insert(fields[1].clone(), id);
            assert_eq!(twice, None, "{} is there twice", fields[1]);
        }
    }
    let told: BTreeMap<_, _> = stored
        .into_iter()
        .flatten()
        .map(|(body, id)| (body, id.to_string()))
        .collect();
    assert_eq!(found, told);
}
