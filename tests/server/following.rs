//! A topic as it grows, for who is no consumer of it.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, SystemTime};

use streamlane::{
    ErrorKind, ResetTo, StoredEntry, StreamId,
    testing::{Relay, eventually},
};

use crate::support::*;

fn bodies(entries: &[StoredEntry]) -> Vec<String> {
    let text = |e: &StoredEntry| String::from_utf8_lossy(e.body().unwrap()).into_owned();
    entries.iter().map(text).collect()
}

#[test]
fn everything_comes_once_whatever_happens_to_the_connection() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let streams = open(&server.url(), "followed-far", 3);
    publish(&streams, "followed-far", 0..50);
    let beside = open(&relay.url(), "followed-far", 3);
    let mut follow = beside
        .admin()
        .follow("followed-far", ResetTo::Start)
        .unwrap();
    let mut seen = Vec::new();
    let mut failures = 0;
    for round in 0..5 {
        publish(&streams, "followed-far", 50 + round * 10..60 + round * 10);
        let upto = 60 + 10 * round as usize;
        let there = eventually(PATIENCE, || {
            match follow.next(Duration::from_millis(50)) {
                Ok(entries) => seen.extend(bodies(&entries)),
                Err(e) => {
                    assert!(e.is_retryable(), "{e}");
                    failures += 1;
                }
            }
            seen.len() >= upto
        });
        assert!(there, "{} of {upto}: {seen:?}", seen.len());
        relay.reset();
    }
    let all: Vec<_> = (0..100).map(|n| n.to_string()).collect();
    assert_eq!(seen, all, "one key: in order, each once");
    assert!(failures >= 1, "the connection was never lost");
}

#[test]
fn it_begins_where_it_is_told_to_and_knows_how_far_it_is() {
    let server = server();
    let streams = open(&server.url(), "followed-from", 1);
    publish(&streams, "followed-from", 0..3);
    let admin = streams.admin();
    let from = |to| {
        let mut follow = admin.follow("followed-from", to).unwrap();
        let entries = follow.next(Duration::ZERO).unwrap();
        let last = entries.last().map(|e| e.id);
        assert!(last.is_none() || follow.position(0) == last);
        assert_eq!(follow.position(1), None);
        bodies(&entries)
    };
    let first = admin
        .entries("followed-from", 0)
        .page(None, 1)
        .unwrap()
        .entries[0]
        .id;
    assert_eq!(from(ResetTo::Start), ["0", "1", "2"]);
    assert_eq!(from(ResetTo::Id(first)), ["1", "2"]);
    assert_eq!(from(ResetTo::Date(first.timestamp())), ["0", "1", "2"]);
    assert_eq!(
        from(ResetTo::Date(SystemTime::now() + Duration::from_mins(1))),
        [""; 0]
    );
    assert_eq!(from(ResetTo::End), [""; 0]);
    assert_eq!(from(ResetTo::Id(StreamId::MAX)), [""; 0]);
    let nowhere = admin.follow("followed-nowhere", ResetTo::End).unwrap_err();
    assert_eq!(nowhere.kind(), ErrorKind::Config, "{nowhere}");
}

#[test]
fn large_entries_come_few_at_a_time() {
    let server = server();
    let streams = open(&server.url(), "followed-large", 1);
    let publisher = streams.publisher("followed-large").unwrap();
    let body = vec![b'x'; 400_000];
    for _ in 0..12 {
        publisher.publish("k", "T", &body).unwrap();
    }
    let mut follow = streams
        .admin()
        .follow("followed-large", ResetTo::Start)
        .unwrap();
    let mut sizes = Vec::new();
    while sizes.iter().sum::<usize>() < 12 {
        sizes.push(follow.next(Duration::from_secs(5)).unwrap().len());
    }
    assert!(sizes[1..].iter().all(|n| *n <= 2), "{sizes:?}");
    // and small ones many
    publish(&streams, "followed-large", 0..3000);
    let mut most = 0;
    let mut left = 3000;
    while left > 0 {
        let n = follow.next(Duration::from_secs(5)).unwrap().len();
        (most, left) = (most.max(n), left - n);
    }
    assert!(most >= 500, "{most}");
}
