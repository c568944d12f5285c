//! Ids of entries: the server gives them out, whatever publishes, and streams whose last id lies far
//! ahead, or is the last there is.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::{collections::HashMap, time::SystemTime};

use streamlane::{
    testing::{Answer, PrivateServer, Stub},
    *,
};

use crate::{
    every_way::{Plain, every_way},
    publishing::{entries, length},
    support::*,
};

const STREAM: &str = "re:s:{orders}:0";

/// Publishes a message in each way there is.
fn in_every_way(streams: &Streams) -> Vec<(&'static str, Result<StreamId>)> {
    let message = Plain {
        key: "k",
        body: "B",
        partition: None,
    };
    let ways = every_way(streams, "orders").into_iter();
    ways.map(|(way, send)| (way, send(message))).collect()
}

#[test]
fn ids_are_left_to_the_server_whatever_publishes() {
    let server = server();
    let target = server.socket_path();
    let mut clients = HashMap::new();
    let stub = Stub::start(move |args, connection| {
        let client = clients.entry(connection);
        let client = client.or_insert_with(|| testing::Client::connect_unix(&target).unwrap());
        client.send(args).unwrap();
        Answer::Reply(client.receive().unwrap())
    })
    .unwrap();
    let results = in_every_way(&open(&stub.url(), "orders", 1));
    let ways = results.len();
    for (way, result) in results {
        assert!(result.is_ok(), "{way}: {result:?}");
    }
    assert_eq!(entries(&server, "orders", 0).len(), ways);
    let seen = stub.seen();
    let adds = |s: &&testing::Seen| {
        let script = ["EVAL", "EVALSHA"].contains(&&*s.name());
        s.name() == "XADD" || script && s.args.iter().any(|a| a == STREAM.as_bytes())
    };
    let mut n = 0;
    for add in seen.iter().filter(adds) {
        let body = add.args.iter().position(|a| a == b"b").unwrap();
        assert_eq!(add.args[body - 1], b"*", "{}", add.text());
        n += 1;
    }
    assert!(n > ways, "{n}");
}

/// What a peer whose clock was wrong has left behind.
fn left(server: &PrivateServer, id: &str) {
    let entry = ["XADD", STREAM, id, "b", "ahead", "t", "T", "k", "k"];
    server.command(&entry).unwrap();
}

#[test]
fn a_stream_that_is_far_ahead_goes_on_from_there() {
    let server = server();
    let streams = open(&server.url(), "orders", 1);
    let seen = Seen::default();
    let consumer = recording(streams.consumer("orders").name("c"), &seen);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let hour = now.unwrap().as_millis() as u64 + 3_600_000;
    left(&server, &format!("{hour}-0"));
    let soon = streams.publisher("orders").unwrap().publish("k", "T", "1");
    assert_eq!(soon.unwrap(), StreamId::new(hour, 1));
    left(&server, "9999999999999-5");
    for (way, result) in in_every_way(&streams) {
        let id = result.unwrap();
        assert!(id > StreamId::new(9_999_999_999_999, 0) || way == "state store");
    }
    let all = entries(&server, "orders", 0);
    let first = all.iter().position(|(id, _)| id == "9999999999999-5");
    for (n, (id, _)) in (5..).zip(&all[first.unwrap()..]) {
        assert_eq!(*id, format!("9999999999999-{n}"));
    }
    let consumer = consumer.start().unwrap();
    consumer.drain(PATIENCE).unwrap();
    assert_eq!(seen.len(), all.len());
    let (last, _) = all.last().unwrap();
    let position = stored(&server, "orders", "c", 0).unwrap();
    assert_eq!(position.to_string(), *last);
}

#[test]
fn a_stream_whose_ids_are_used_up_is_a_clear_error_that_nobody_tries_again() {
    let server = server();
    let streams = open(&server.url(), "orders", 1);
    let first = streams.publisher("orders").unwrap().publish("k", "T", "1");
    first.unwrap();
    left(&server, "18446744073709551615-18446744073709551615");
    for (way, result) in in_every_way(&streams) {
        let e = result.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Server, "{way}: {e}");
        assert!(!e.is_retryable(), "{way}: {e}");
        assert!(e.to_string().contains("exhausted"), "{way}: {e}");
        // the state was written before the stream had its say, as its error tells
        let applied = e.partly_failed().is_some();
        assert_eq!(applied, way == "state store", "{way}: {e}");
        let outcome = if applied {
            Outcome::Applied
        } else {
            Outcome::NotApplied
        };
        assert_eq!(e.outcome(), outcome, "{way}: {e}");
        let names_it = e.key() == Some(STREAM) || e.to_string().contains(STREAM);
        assert!(names_it || way == "forwarder", "{way}: {e}");
    }
    assert_eq!(length(&server, "orders", 0), 2);
}
