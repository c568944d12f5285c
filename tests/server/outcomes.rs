//! What a caller of a publisher knows after a failure: whether the message was stored, within the
//! deadline, and that the next message gets its own answer.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::{
    thread,
    time::{Duration, Instant},
};

use streamlane::{
    testing::{Answer, Fault, PrivateServer, Relay, Reply, Way},
    *,
};

use crate::{
    publishing::{answering, entries, failed, length, open_with_timeout, writers},
    support::*,
};

/// Longer than any call may overrun its deadline, even here.
const MARGIN: Duration = Duration::from_secs(5);

/// The connections whose last command was a message, by the server's own account.
fn writing(server: &PrivateServer) -> Vec<String> {
    let list = server.command(&["CLIENT", "LIST"]).unwrap().text();
    let ids = list.lines().filter(|l| l.contains("cmd=xadd"));
    ids.filter_map(|l| l.split(' ').next())
        .map(str::to_owned)
        .collect()
}

#[test]
fn a_batch_to_a_server_that_became_a_replica_looks_for_another_connection() {
    let stub = answering(|_| Answer::Reply(Reply::Error("READONLY You can't write".into())));
    let publisher = open(&stub.url(), "orders", 1).publisher("orders").unwrap();
    for round in 1..=2 {
        for result in publisher.publish_batch(&vec![Outgoing::new("T", "B"); 3]) {
            let e = failed(result, ErrorKind::Server, Outcome::NotApplied);
            assert_eq!(e.server_class(), Some(ServerClass::ReadOnly));
        }
        assert_eq!(writers(&stub).len(), round, "each batch dials anew");
    }
}

#[test]
fn a_lost_answer_is_an_unknown_outcome_and_nothing_is_sent_again() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let publisher = open(&relay.url(), "orders", 1).publisher("orders").unwrap();
    publisher.publish("k", "T", "first").unwrap();
    relay.fault_existing(Way::Replies, Fault::Swallow);
    let other = publisher.clone();
    let lost = thread::spawn(move || other.publish("k", "T", "lost"));
    expect("the message to be stored", || {
        length(&server, "orders", 0) == 2
    });
    relay.close();
    let e = failed(lost.join().unwrap(), ErrorKind::Io, Outcome::Unknown);
    assert!(e.to_string().contains(&relay.addr().to_string()), "{e}");
    let id = publisher.publish("k", "T", "next").unwrap();
    let stored = entries(&server, "orders", 0);
    let bodies: Vec<_> = stored.iter().map(|(_, f)| &*f[1]).collect();
    assert_eq!(bodies, ["first", "lost", "next"]);
    assert_eq!(stored[2].0, id.to_string());
}

#[test]
fn a_connection_lost_before_the_write_costs_nothing() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let streams = open_with_timeout(&relay.url(), "orders", Duration::from_secs(1));
    let publisher = streams.publisher("orders").unwrap();
    publisher.publish("k", "T", "first").unwrap();
    relay.refuse_new(true).unwrap();
    relay.reset();
    idle();
    let start = Instant::now();
    let e = failed(
        publisher.publish("k", "T", "down"),
        ErrorKind::Connect,
        Outcome::NotApplied,
    );
    assert!(e.is_retryable(), "{e}");
    assert!(start.elapsed() < Duration::from_secs(1) + MARGIN);
    for result in publisher.publish_batch(&vec![Outgoing::new("T", "down"); 2]) {
        assert_eq!(result.unwrap_err().outcome(), Outcome::NotApplied);
    }
    assert_eq!(length(&server, "orders", 0), 1);
    relay.refuse_new(false).unwrap();
    expect("publishing to work again", || {
        publisher.publish("k", "T", "up").is_ok()
    });
    let bodies: Vec<_> = entries(&server, "orders", 0)
        .into_iter()
        .map(|(_, f)| f[1].clone())
        .collect();
    assert_eq!(bodies, ["first", "up"]);
}

/// Lets a connection count as one that was idle.
fn idle() {
    let start = Instant::now();
    expect("a moment to pass", || {
        start.elapsed() > Duration::from_millis(30)
    });
}

#[test]
fn a_message_that_went_out_in_part_is_not_applied() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let publisher = open(&relay.url(), "orders", 1).publisher("orders").unwrap();
    let body = vec![b'x'; 40 << 20];
    publisher.publish("k", "T", &body[..100_000]).unwrap();
    relay.fault_existing(Way::Requests, Fault::CutAfter(100_000));
    failed(
        publisher.publish("k", "T", &body),
        ErrorKind::Io,
        Outcome::NotApplied,
    );
    assert_eq!(length(&server, "orders", 0), 1);
    publisher.publish("k", "T", "second").unwrap();
}

#[test]
fn a_late_answer_never_meets_the_next_message() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let timeout = Duration::from_millis(500);
    let publisher = open_with_timeout(&relay.url(), "orders", timeout)
        .publisher("orders")
        .unwrap();
    // as often as it takes on a slow machine
    expect("the first message", || {
        publisher.publish("k", "T", "first").is_ok()
    });
    relay.fault_existing(Way::Replies, Fault::BlackHole);
    let start = Instant::now();
    let e = failed(
        publisher.publish("k", "T", "late"),
        ErrorKind::Timeout,
        Outcome::Unknown,
    );
    let took = start.elapsed();
    assert!(took > timeout / 2 && took < timeout + MARGIN, "{took:?}");
    assert!(e.to_string().contains("500 ms"), "{e}");
    relay.heal();
    let mut id = None;
    expect("the next message", || {
        id = publisher.publish("k", "T", "next").ok();
        id.is_some()
    });
    let stored = entries(&server, "orders", 0);
    let (stored_id, fields) = stored.last().unwrap();
    assert_eq!((stored_id, &*fields[1]), (&id.unwrap().to_string(), "next"));
}

#[test]
fn an_answer_nobody_asked_for_is_not_taken_for_the_next() {
    let mut n = 0;
    let stub = answering(move |_| {
        n += 1;
        let twice = format!("$3\r\n{n}-0\r\n$3\r\n{n}-1\r\n");
        Answer::Bytes(twice.into_bytes())
    });
    let publisher = open(&stub.url(), "orders", 1).publisher("orders").unwrap();
    for n in 1..4 {
        assert_eq!(
            publisher.publish("k", "T", "B").unwrap(),
            StreamId::new(n, 0)
        );
    }
}

#[test]
fn making_the_topic_is_part_of_the_deadline() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let streams = open_with_timeout(&relay.url(), "orders", Duration::from_secs(1));
    // each answer is in time, all of them together are not
    relay.fault(Way::Replies, Fault::Delay(Duration::from_millis(300)));
    let publisher = streams.publisher("orders").unwrap();
    let e = publisher.publish("k", "T", "B").unwrap_err();
    assert_eq!(e.outcome(), Outcome::NotApplied, "{e}");
    assert!(
        matches!(e.kind(), ErrorKind::Timeout | ErrorKind::Connect),
        "{e}"
    );
    let made = server.command(&["EXISTS", "re:s:{orders}:0"]).unwrap();
    assert_eq!(made.int(), Some(0), "five answers of 300 ms fit into 1 s");
    relay.heal();
    expect("the topic to be made after all", || {
        publisher.publish("k", "T", "B").is_ok()
    });
}

#[test]
fn a_server_without_memory_refuses_and_the_connection_stays() {
    let server = server();
    let streams = open(&server.url(), "orders", 1);
    let publisher = streams.publisher("orders").unwrap();
    let memory = |bytes: &str| {
        let set = ["CONFIG", "SET", "maxmemory", bytes];
        server.command(&set).unwrap();
    };
    memory("1");
    let out_of_memory = |result| {
        let e = failed(result, ErrorKind::Server, Outcome::NotApplied);
        assert_eq!(
            (e.server_class(), e.server_code()),
            (Some(ServerClass::OutOfMemory), Some("OOM"))
        );
        assert!(
            e.is_retryable() && e.key().is_some() && e.endpoint().is_some(),
            "{e}"
        );
    };
    out_of_memory(publisher.publish("k", "T", "no topic yet"));
    memory("0");
    publisher
        .publish("k", "T", "a failure to make the topic is not remembered")
        .unwrap();
    for result in publisher.publish_batch(&[Outgoing::new("T", "batches have another connection")])
    {
        result.unwrap();
    }
    let writers = writing(&server);
    assert_eq!(writers.len(), 2);
    memory("1");
    out_of_memory(publisher.publish("k", "T", "B"));
    for result in publisher.publish_batch(&vec![Outgoing::new("T", "B"); 3]) {
        out_of_memory(result);
    }
    memory("0");
    publisher.publish("k", "T", "B").unwrap();
    for result in publisher.publish_batch(&[Outgoing::new("T", "B")]) {
        result.unwrap();
    }
    assert_eq!(writing(&server), writers);
    assert_eq!(length(&server, "orders", 0), 4);
}

#[test]
fn the_deadline_holds_while_others_wait_for_the_same_server() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let timeout = Duration::from_millis(700);
    let publisher = open_with_timeout(&relay.url(), "orders", timeout)
        .publisher("orders")
        .unwrap();
    expect("the first message", || {
        publisher.publish("k", "T", "first").is_ok()
    });
    relay.fault(Way::Replies, Fault::BlackHole);
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let publisher = publisher.clone();
            thread::spawn(move || {
                let start = Instant::now();
                (publisher.publish("k", "T", "B"), start.elapsed())
            })
        })
        .collect();
    for thread in threads {
        let (result, took) = thread.join().unwrap();
        let e = result.unwrap_err();
        assert!(
            matches!(e.kind(), ErrorKind::Timeout | ErrorKind::Connect),
            "{e}"
        );
        assert!(took < timeout + MARGIN, "{took:?}");
    }
    relay.heal();
    expect("publishing to work again", || {
        publisher.publish("k", "T", "B").is_ok()
    });
}

#[test]
fn an_idle_connection_the_server_closed_is_noticed_before_the_write() {
    let server = server();
    let publisher = open(&server.url(), "orders", 1)
        .publisher("orders")
        .unwrap();
    let mut dedicated = publisher.dedicated();
    for round in 0..4 {
        publisher.publish("k", "T", "B").unwrap();
        dedicated.publish("k", "T", "B").unwrap();
        assert_eq!(writing(&server).len(), 2);
        if round < 2 {
            server
                .command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
                .unwrap();
        } else {
            server.command(&["CONFIG", "SET", "timeout", "1"]).unwrap();
        }
        expect("the server to hang up", || writing(&server).is_empty());
        server.command(&["CONFIG", "SET", "timeout", "0"]).unwrap();
        idle();
    }
    publisher.publish("k", "T", "B").unwrap();
    assert_eq!(length(&server, "orders", 0), 9);
}
