//! Forwarding: one copy of each, whoever dies between what steps, and marks that only move up.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use streamlane::{
    testing::{Answer, PrivateServer, Stub},
    *,
};

use crate::{
    publishing::{entries, length},
    support::*,
};

const MARKS: &str = "re:{shipping}:state:forward:high-water";

fn text(server: &PrivateServer, command: &[&str]) -> String {
    server.command(command).unwrap().text()
}

fn int(server: &PrivateServer, command: &[&str]) -> i64 {
    server.command(command).unwrap().int().unwrap()
}

fn forwarder(server: &PrivateServer) -> Forwarder {
    open(&server.url(), "shipping", 2)
        .forwarder("shipping")
        .unwrap()
}

fn at(position: &str) -> Source<'static> {
    Source::in_order("orders:0", position.parse().unwrap())
}

fn ship(body: &str) -> [Outgoing<'_>; 1] {
    [Outgoing::new("Ship", body).partition(0)]
}

fn bodies(server: &PrivateServer, partition: u32) -> Vec<String> {
    let all = entries(server, "shipping", partition).into_iter();
    all.map(|(_, fields)| fields[1].clone()).collect()
}

fn mark(server: &PrivateServer, source: &str) -> String {
    text(server, &["HGET", MARKS, source])
}

#[test]
fn a_message_of_an_ordered_consumer_is_forwarded_once() {
    let server = server();
    let streams = open(&server.url(), "orders", 1);
    let shipping = streams.forwarder("shipping").unwrap();
    let ids = publish_to(&streams, "orders", 0, &["a", "b", "c"]);
    // A position that is lost stands for whatever makes a message come again.
    let outcomes = Seen::default();
    for _ in 0..2 {
        server.command(&["DEL", "re:p:{orders}:c"]).unwrap();
        let (to, seen) = (shipping.clone(), outcomes.clone());
        let consumer =
            streams
                .consumer("orders")
                .name("c")
                .shared(move |m: &Message<'_>| -> HandlerResult {
                    let out = [Outgoing::new("Ship", m.body()).key("k")];
                    seen.push((m.id(), to.forward(&Source::of(m), &out).or_block()?));
                    Ok(())
                });
        consumer.start().unwrap().drain(PATIENCE).unwrap();
    }
    let outcomes = outcomes.all();
    let (first, second) = outcomes.split_at(3);
    assert!(
        first
            .iter()
            .all(|(_, o)| matches!(o, Forwarding::Forwarded(ids) if ids.len() == 1))
    );
    assert!(
        second
            .iter()
            .all(|(_, o)| *o == Forwarding::AlreadyForwarded),
        "{second:?}"
    );
    let all: Vec<_> = (0..2)
        .flat_map(|p| entries(&server, "shipping", p))
        .collect();
    assert_eq!(
        all.iter().map(|(_, f)| f[1].clone()).collect::<Vec<_>>(),
        ["a", "b", "c"]
    );
    assert_eq!(all[0].1, ["b", "a", "t", "Ship", "k", "k"]);
    assert_eq!(mark(&server, "orders:0/c"), ids[2].to_string());
    let marker = format!("re:dedupe:{{shipping}}:orders:0/c:{}", ids[0]);
    assert_eq!(text(&server, &["GET", &marker]), "");
    let week = 7 * 24 * 3600 * 1000;
    let left = int(&server, &["PTTL", &marker]);
    assert!(left <= week && left > week - 3_600_000, "{left}");
    let status = streams
        .published()
        .into_iter()
        .find(|s| s.topic == "shipping")
        .unwrap();
    assert_eq!((status.stored.iter().sum::<u64>(), status.repeated), (3, 3));
}

#[test]
fn what_lies_below_the_mark_is_known_by_its_marker_or_reported() {
    let server = server();
    let shipping = forwarder(&server);
    for (position, body) in [("5-0", "five"), ("9-0", "nine"), ("10-0", "ten")] {
        let done = shipping.forward(&at(position), &ship(body)).unwrap();
        assert!(
            matches!(done, Forwarding::Forwarded(_)),
            "{position}: {done:?}"
        );
    }
    assert_eq!(
        shipping.forward(&at("5-0"), &ship("five")).unwrap(),
        Forwarding::AlreadyForwarded
    );
    // No marker of it, whether it never was or has ended.
    let mark_now = "10-0".parse().unwrap();
    text(&server, &["DEL", "re:dedupe:{shipping}:orders:0:5-0"]);
    for position in ["5-0", "6-0", "9-18446744073709551615"] {
        let told = shipping.forward(&at(position), &ship("late")).unwrap();
        assert_eq!(
            told,
            Forwarding::OutOfOrder { mark: mark_now },
            "{position}"
        );
    }
    // The very position of the mark was forwarded, marker or not.
    text(&server, &["DEL", "re:dedupe:{shipping}:orders:0:10-0"]);
    assert_eq!(
        shipping.forward(&at("10-0"), &ship("ten")).unwrap(),
        Forwarding::AlreadyForwarded
    );
    assert_eq!(bodies(&server, 0), ["five", "nine", "ten"]);
    assert_eq!(mark(&server, "orders:0"), "10-0");
    let told = warned("topic shipping: orders:0 is at 5-0");
    assert!(told.iter().any(|l| l.contains("10-0")), "{told:?}");
}

#[test]
fn positions_are_compared_as_ids_are() {
    const MOST: &str = "18446744073709551615";
    let server = server();
    let shipping = forwarder(&server);
    let halves = [
        "0",
        "1",
        "9",
        "10",
        "99",
        "9007199254740992",
        "9007199254740993",
        MOST,
    ];
    let ids: Vec<String> = halves
        .iter()
        .flat_map(|ms| halves.iter().map(move |seq| format!("{ms}-{seq}")))
        .collect();
    for marked in &ids {
        let below: StreamId = marked.parse().unwrap();
        // Neighbours, and some further away.
        for position in ids.iter().step_by(5).chain([marked]) {
            let id: StreamId = position.parse().unwrap();
            text(&server, &["HSET", MARKS, "orders:0", marked]);
            text(
                &server,
                &[
                    "DEL",
                    &format!("re:dedupe:{{shipping}}:orders:0:{position}"),
                ],
            );
            let done = shipping.forward(&at(position), &ship("x")).unwrap();
            let after = mark(&server, "orders:0");
            match done {
                Forwarding::Forwarded(_) => assert!(id > below && after == *position),
                Forwarding::AlreadyForwarded => assert!(id == below && after == *marked),
                Forwarding::OutOfOrder { mark } => {
                    assert!(id < below && mark == below && after == *marked);
                }
            }
        }
    }
    // Zeros before a number mean nothing, and what is no id is below everything.
    for (marked, forwarded) in [
        ("007-00", false),
        ("007-0", false),
        ("000-009", true),
        ("7-1", false),
        ("nonsense", true),
        ("7", true),
        ("-", true),
        ("", true),
    ] {
        text(&server, &["HSET", MARKS, "orders:0", marked]);
        text(&server, &["DEL", "re:dedupe:{shipping}:orders:0:7-0"]);
        let done = shipping.forward(&at("7-0"), &ship("x")).unwrap();
        assert_eq!(
            matches!(done, Forwarding::Forwarded(_)),
            forwarded,
            "{marked}: {done:?}"
        );
    }
}

#[test]
fn what_was_forwarded_from_elsewhere_moves_the_mark() {
    let server = server();
    let shipping = forwarder(&server);
    let event = |position| at(position).dedupe_id(&b"event-1"[..]);
    assert!(matches!(
        shipping.forward(&event("5-0"), &ship("event")).unwrap(),
        Forwarding::Forwarded(_)
    ));
    // The source was made anew, and its events have other places.
    assert_eq!(
        shipping.forward(&event("8-0"), &ship("event")).unwrap(),
        Forwarding::AlreadyForwarded
    );
    assert_eq!(mark(&server, "orders:0"), "8-0");
    // One that a peer of the same topic did, or a claim of the same id.
    text(&server, &["SET", "re:dedupe:{shipping}:orders:0:9-0", "1"]);
    assert_eq!(
        shipping.forward(&at("9-0"), &ship("nine")).unwrap(),
        Forwarding::AlreadyForwarded
    );
    assert_eq!(
        (mark(&server, "orders:0"), bodies(&server, 0)),
        ("9-0".into(), vec!["event".into()])
    );
}

#[test]
fn each_source_and_each_name_has_a_mark_of_its_own() {
    let server = server();
    let shipping = forwarder(&server);
    let audit = shipping.clone().name("audit").unwrap();
    let forwarded = |to: &Forwarder, source: Source<'_>| {
        let done = to.forward(&source, &ship("x")).unwrap();
        matches!(done, Forwarding::Forwarded(_))
    };
    assert!(forwarded(&shipping, at("5-0")));
    assert!(forwarded(
        &shipping,
        Source::in_order("orders:1", "3-0".parse().unwrap())
    ));
    assert!(forwarded(&audit, at("4-0").dedupe_id(&b"audit 4-0"[..])));
    assert!(!forwarded(&shipping, at("5-0")));
    assert_eq!(length(&server, "shipping", 0), 3);
    let audit_marks = "re:{shipping}:state:audit:high-water";
    assert_eq!(text(&server, &["HGET", audit_marks, "orders:0"]), "4-0");
    assert_eq!(int(&server, &["HLEN", MARKS]), 2);
    // Markers live as long as they are told to.
    let brief = shipping.marker_ttl(Duration::from_mins(1)).unwrap();
    assert!(forwarded(&brief, at("6-0")));
    assert!(int(&server, &["PTTL", "re:dedupe:{shipping}:orders:0:6-0"]) <= 60_000);
}

#[test]
fn all_messages_of_a_call_go_together() {
    let server = server();
    let shipping = forwarder(&server);
    let out = [
        Outgoing::new("A", "a")
            .partition(0)
            .header("h", "v")
            .correlation_id("c"),
        Outgoing::new("B", "b").partition(1),
        Outgoing::new("C", "c").partition(0),
    ];
    let Forwarding::Forwarded(ids) = shipping.forward(&at("1-0"), &out).unwrap() else {
        panic!("it was not forwarded");
    };
    let stored: Vec<_> = [0, 1].map(|p| entries(&server, "shipping", p)).concat();
    let texts = |order: [usize; 3]| order.map(|i| stored[i].0.clone());
    assert_eq!(
        ids.iter().map(StreamId::to_string).collect::<Vec<_>>(),
        texts([0, 2, 1])
    );
    assert_eq!(
        stored[0].1,
        ["b", "a", "t", "A", "k", "", "c", "c", "h", "1:h1:v"]
    );
}

#[test]
fn mistakes_are_refused_before_anything_is_sent() {
    let stub = Stub::start(|_, _| Answer::Usual).unwrap();
    let settings = settings(&stub.url(), "shipping", 2).with_topic(
        "spread",
        TopicSettings::default().co_locate_partitions(false),
    );
    let streams = Streams::open(settings).unwrap();
    let e = streams.forwarder("spread").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Config);
    assert!(e.to_string().contains("CoLocatePartitions"), "{e}");
    let shipping = streams.forwarder("shipping").unwrap();
    let hour = Duration::from_hours(1);
    let id = StreamId::new(1, 0);
    for (source, out, named) in [
        (at("1-0"), vec![], "nothing to forward"),
        (Source::in_order(" ", id), ship("x").to_vec(), "blank"),
        (at("1-0").dedupe_id(&b""[..]), ship("x").to_vec(), "empty"),
        (
            at("1-0").dedupe_id(vec![b'x'; 1025]),
            ship("x").to_vec(),
            "1024",
        ),
        (
            at("1-0"),
            vec![Outgoing::new("T", "B").dedupe("id", hour)],
            "dedupe id",
        ),
    ] {
        let e = shipping.forward(&source, &out).unwrap_err();
        let kind = (e.kind(), e.outcome());
        assert_eq!(kind, (ErrorKind::Argument, Outcome::NotApplied), "{e}");
        assert!(e.to_string().contains(named), "{e}");
    }
    assert_eq!(stub.count("EVALSHA") + stub.count("EVAL"), 0);
    assert_eq!(
        shipping.clone().name(" ").unwrap_err().kind(),
        ErrorKind::Config
    );
    assert!(shipping.marker_ttl(Duration::from_micros(10)).is_err());
}

#[test]
fn what_cannot_be_published_leaves_neither_mark_nor_marker() {
    let server = server();
    let shipping = forwarder(&server);
    let out = [
        Outgoing::new("T", "zero").partition(0),
        Outgoing::new("T", "one").partition(1),
    ];
    let forward = || shipping.forward(&at("5-0"), &out);
    assert!(matches!(
        shipping.forward(&at("1-0"), &ship("first")).unwrap(),
        Forwarding::Forwarded(_)
    ));
    let untouched = || {
        assert_eq!(mark(&server, "orders:0"), "1-0");
        let marker = "re:dedupe:{shipping}:orders:0:5-0";
        assert_eq!(int(&server, &["EXISTS", marker]), 0);
        assert_eq!(bodies(&server, 0), ["first"]);
    };
    text(&server, &["CONFIG", "SET", "maxmemory", "1"]);
    let e = forward().unwrap_err();
    assert_eq!(
        (e.server_code(), e.outcome()),
        (Some("OOM"), Outcome::NotApplied),
        "{e}"
    );
    text(&server, &["CONFIG", "SET", "maxmemory", "0"]);
    untouched();
    // Found only when the message before it is in its stream already.
    let stream = "re:s:{shipping}:1";
    text(&server, &["SET", stream, "no stream"]);
    let e = forward().unwrap_err();
    assert_eq!(e.server_class(), Some(ServerClass::WrongType), "{e}");
    untouched();
    text(&server, &["DEL", stream]);
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
    let e = forward().unwrap_err();
    assert_eq!(
        (e.kind(), e.outcome()),
        (ErrorKind::Server, Outcome::NotApplied),
        "{e}"
    );
    untouched();
    for told in ["orders:0", "5-0", MARKS, "shipping"] {
        assert!(e.to_string().contains(told), "{told}: {e}");
    }
    // A source without a mark has none afterwards.
    let new = Source::in_order("new", StreamId::new(1, 0));
    shipping.forward(&new, &out).unwrap_err();
    assert_eq!(int(&server, &["HEXISTS", MARKS, "new"]), 0);
    text(&server, &["DEL", stream]);
    assert!(matches!(forward().unwrap(), Forwarding::Forwarded(_)));
    text(&server, &["DEL", MARKS]);
    text(&server, &["SET", MARKS, "no hash"]);
    let e = shipping.forward(&at("6-0"), &ship("six")).unwrap_err();
    assert_eq!(e.server_class(), Some(ServerClass::WrongType), "{e}");
    assert_eq!(bodies(&server, 0), ["first", "zero"]);
}

#[test]
fn where_a_command_is_forbidden_nothing_is_published_and_the_error_says_what_to_grant() {
    let server = server();
    publish(&open(&server.url(), "shipping", 2), "shipping", 0..1);
    // the second message finds no stream: what the first left has to be taken back
    text(&server, &["SET", "re:s:{shipping}:1", "no stream"]);
    let before = length(&server, "shipping", 0);
    for denied in ["hset", "del", "hdel", "xdel"] {
        let rules = format!("ACL SETUSER u reset on >p ~* &* +@all -{denied}");
        text(&server, &rules.split(' ').collect::<Vec<_>>());
        let url = format!("redis://u:p@127.0.0.1:{}", server.port());
        let shipping = open(&url, "shipping", 2).forwarder("shipping").unwrap();
        let two = [0, 1].map(|p| Outgoing::new("Ship", "five").partition(p));
        let e = shipping.forward(&at("5-0"), &two).unwrap_err();
        assert_eq!(e.server_class(), Some(ServerClass::NoPermission), "{e}");
        let told = e.to_string();
        for grant in [
            &*format!("+{denied}"),
            "+xadd",
            "~re:dedupe:{shipping}:*",
            MARKS,
        ] {
            assert!(told.contains(grant), "{told}");
        }
        assert_eq!(length(&server, "shipping", 0), before, "{denied}");
        assert_eq!(int(&server, &["HEXISTS", MARKS, "orders:0"]), 0, "{denied}");
    }
}

/// Two that race through the same source, and a third that lags behind.
#[test]
fn forwarders_that_race_make_one_copy_in_order() {
    const EVENTS: u64 = 300;
    let server = server();
    let (copies, known) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|s| {
        for start in 0..3 {
            let (server, copies, known) = (&server, &copies, &known);
            s.spawn(move || {
                let shipping = forwarder(server);
                for n in 1..=EVENTS {
                    if start == 2 && n % 10 == 0 {
                        thread::yield_now();
                    }
                    let source = Source::in_order("orders:0", StreamId::new(n, 0));
                    match shipping.forward(&source, &ship(&n.to_string())).unwrap() {
                        Forwarding::Forwarded(_) => copies.fetch_add(1, Relaxed),
                        Forwarding::AlreadyForwarded => known.fetch_add(1, Relaxed),
                        other @ Forwarding::OutOfOrder { .. } => panic!("{n}: {other:?}"),
                    };
                }
            });
        }
    });
    let all: Vec<_> = (1..=EVENTS).map(|n| n.to_string()).collect();
    assert_eq!(bodies(&server, 0), all);
    assert_eq!(copies.into_inner(), EVENTS as usize);
    assert_eq!(known.into_inner(), 2 * EVENTS as usize);
}

/// Where a connection through [`cut_after`] ends.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Cut {
    /// The server never sees the command.
    Before,
    /// The server runs it, and the client never hears.
    After,
}

/// Passes commands on to a server until the n-th, counted over all connections, where the first that
/// sends it dies.
fn cut_after(server: &PrivateServer, n: usize, cut: Cut) -> (Stub, Arc<Mutex<usize>>) {
    let mut client = server.client().unwrap();
    let seen = Arc::new(Mutex::new(0));
    let count = Arc::clone(&seen);
    let stub = Stub::start(move |args, _| {
        if matches!(
            &args[0][..],
            b"HELLO" | b"CLIENT" | b"PING" | b"CONFIG" | b"INFO"
        ) {
            return Answer::Usual;
        }
        let mut seen = count.lock().unwrap();
        *seen += 1;
        if *seen == n && cut == Cut::Before {
            return Answer::Close;
        }
        client.send(args).unwrap();
        let reply = client.receive().unwrap();
        if *seen == n {
            return Answer::Close;
        }
        Answer::Reply(reply)
    });
    (stub.unwrap(), seen)
}

#[test]
fn one_that_dies_between_any_two_commands_leaves_one_copy() {
    for cut in [Cut::Before, Cut::After] {
        let (mut n, mut died, mut forwarded) = (0, 0, 0);
        // Until a forwarder lives to forward everything.
        loop {
            n += 1;
            let server = server();
            let (stub, seen) = cut_after(&server, n, cut);
            let doomed = open(&stub.url(), "shipping", 2)
                .forwarder("shipping")
                .unwrap();
            let mut lost = None;
            for n in 1..=3 {
                let source = Source::in_order("orders:0", StreamId::new(n, 0));
                if let Err(e) = doomed.forward(&source, &ship(&n.to_string())) {
                    lost = Some(e);
                    break;
                }
            }
            drop(doomed);
            // The other takes over, from a position that was stored before all of it.
            let heir = forwarder(&server);
            let mut copies = 0;
            for n in 1..=3 {
                let source = Source::in_order("orders:0", StreamId::new(n, 0));
                match heir.forward(&source, &ship(&n.to_string())).unwrap() {
                    Forwarding::Forwarded(_) => copies += 1,
                    Forwarding::AlreadyForwarded => {}
                    other @ Forwarding::OutOfOrder { .. } => {
                        panic!("{cut:?} {n}: {other:?}")
                    }
                }
            }
            assert_eq!(
                bodies(&server, 0),
                ["1", "2", "3"],
                "{cut:?} at command {n}"
            );
            assert_eq!(mark(&server, "orders:0"), "3-0");
            forwarded += 3 - copies;
            match lost {
                Some(_) => died += 1,
                // The topic's making is tried again, so a cut there kills nobody.
                None if *seen.lock().unwrap() >= n => {}
                None => break,
            }
        }
        assert!(
            died >= 4,
            "{cut:?}: {died} of {n} died: at each script, NOSCRIPT included"
        );
        assert!(forwarded > 3, "{cut:?}: some died late: {forwarded}");
    }
}
