//! Replies as servers, proxies and mistakes shape them: what is nothing, what is an error, and what is
//! cut off for its size.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc::{Receiver, Sender, channel},
    },
    time::Duration,
};

use streamlane::{
    testing::{Answer, Client, PrivateServer, Reply, Stub, eventually},
    *,
};

use crate::support::*;

/// A stand-in for a server: what `script` does not answer, the server does, given the command and its
/// reply to it. Reads never wait there.
fn standing_in(
    server: &PrivateServer,
    mut script: impl FnMut(&[Vec<u8>], &mut dyn FnMut() -> Reply) -> Option<Answer> + Send + 'static,
) -> Stub {
    let mut client = server.client().unwrap();
    Stub::start(move |args, _| {
        let mut ask = || asked(&mut client, args);
        match script(args, &mut ask) {
            Some(answer) => answer,
            None => Answer::Reply(ask()),
        }
    })
    .unwrap()
}

fn asked(client: &mut Client, args: &[Vec<u8>]) -> Reply {
    let mut args = args.to_vec();
    if let Some(at) = args.iter().position(|a| a == b"BLOCK") {
        args.drain(at..at + 2);
    }
    client.send(&args).unwrap();
    client.receive().unwrap()
}

fn is_read(args: &[Vec<u8>]) -> bool {
    args[0] == b"XREAD"
}

/// The partition a read is of.
fn partition(args: &[Vec<u8>]) -> usize {
    let key = String::from_utf8_lossy(&args[args.len() - 2]);
    key.rsplit(':').next().unwrap().parse().unwrap()
}

fn fill(server: &PrivateServer, topic: &str, partitions: usize) {
    for p in 0..partitions {
        let key = format!("re:s:{{{topic}}}:{p}");
        for id in ["5-0", "5-1"] {
            let body = format!("{p} {id}");
            let xadd = ["XADD", &key, id, "b", &body, "t", "T", "k", "K"];
            server.command(&xadd).unwrap();
        }
    }
}

/// What [`fill`] makes, sorted.
fn filled(partitions: usize) -> Vec<String> {
    let both = |p| [format!("{p} 5-0"), format!("{p} 5-1")];
    (0..partitions).flat_map(both).collect()
}

fn sorted(mut all: Vec<String>) -> Vec<String> {
    all.sort();
    all
}

#[test]
fn a_server_that_says_nothing_at_once_is_asked_seldom_and_is_no_error() {
    let spellings = [
        "*-1\r\n",
        "$-1\r\n",
        "_\r\n",
        "*0\r\n",
        "%0\r\n",
        "*1\r\n*2\r\nKEY*0\r\n",
        "*1\r\n*2\r\nKEY*-1\r\n",
        "*2\r\nKEY*0\r\n",
        "%1\r\nKEY_\r\n",
    ];
    let server = server();
    let full = Arc::new(AtomicBool::new(false));
    let script_full = Arc::clone(&full);
    let stub = standing_in(&server, move |args, _| {
        if !is_read(args) || script_full.load(SeqCst) {
            return None;
        }
        let key = Reply::Bulk(args[args.len() - 2].clone()).to_bytes();
        let spelling = spellings[partition(args)];
        let key = String::from_utf8(key).unwrap();
        Some(Answer::Bytes(spelling.replace("KEY", &key).into_bytes()))
    });
    let streams = open(&stub.url(), "empty", spellings.len() as u32);
    let seen = Seen::default();
    let consumer = recording(streams.consumer("empty").name("c"), &seen)
        .start()
        .unwrap();
    let reads = || {
        let mut by_partition: BTreeMap<usize, Vec<_>> = BTreeMap::new();
        for s in stub.seen().iter().filter(|s| is_read(&s.args)) {
            by_partition
                .entry(partition(&s.args))
                .or_default()
                .push(s.at);
        }
        by_partition
    };
    expect("25 reads of each partition", || {
        let reads = reads();
        reads.len() == spellings.len() && reads.values().all(|at| at.len() >= 25)
    });
    for (p, at) in reads() {
        for window in at.windows(21) {
            let took = window[20] - window[0];
            assert!(
                took >= Duration::from_secs(1),
                "{:?}: 21 reads in {took:?}",
                spellings[p]
            );
        }
    }
    for p in consumer.partitions() {
        assert_eq!(
            (p.state, p.failures, p.connects),
            (LaneState::Running, 0, 1),
            "{p}: {}",
            p.reason
        );
    }
    assert_eq!(streams.health().status, Status::Healthy);
    fill(&server, "empty", spellings.len());
    full.store(true, SeqCst);
    let seen = seen.wait_for(2 * spellings.len());
    assert_eq!(sorted(seen), filled(spellings.len()));
}

#[test]
fn a_reply_of_another_shape_is_an_error_and_the_lane_recovers_when_it_is_good() {
    let wrong: [(&[u8], &str); 7] = [
        (
            b"*1\r\n*1\r\n*2\r\n$1\r\ns\r\n*0\r\n",
            "no pair of key and entries",
        ),
        (
            b"*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*1\r\n$3\r\n1-0\r\n",
            "no pair of id and fields",
        ),
        (
            b"*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n$5\r\nabc-1\r\n*0\r\n",
            "an id that is none",
        ),
        (b"*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*-1\r\n", "only nil entries"),
        (
            b"*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n0-0\r\n*0\r\n",
            "at or before one already read",
        ),
        (b"+OK\r\n", "a scalar where streams belong"),
        (b"HTTP/1.1 400 Bad Request\r\n", "unknown type mark"),
    ];
    let n = wrong.len();
    let server = server();
    fill(&server, "wrong", n);
    let good = Arc::new(AtomicBool::new(false));
    let script_good = Arc::clone(&good);
    let stub = standing_in(&server, move |args, _| {
        let spoil = is_read(args) && !script_good.load(SeqCst);
        spoil.then(|| Answer::Bytes(wrong[partition(args)].0.to_vec()))
    });
    let streams = open(&stub.url(), "wrong", n as u32);
    let seen = Seen::default();
    let consumer = recording(streams.consumer("wrong").name("c"), &seen)
        .start()
        .unwrap();
    expect("every lane to be refused", || {
        consumer
            .partitions()
            .iter()
            .all(|p| p.state == LaneState::Refused)
    });
    for (p, (_, because)) in consumer.partitions().iter().zip(wrong) {
        let key = format!("re:s:{{wrong}}:{}", p.partition);
        for part in [because, &key, &stub.addr().to_string()] {
            assert!(p.reason.contains(part), "{part:?} in {}", p.reason);
        }
        assert_eq!(p.position.id, StreamId::MIN);
    }
    let health = streams.health();
    assert_eq!(
        (health.status, health.rule),
        (Status::Unhealthy, Rule::Refused)
    );
    assert_eq!(seen.len(), 0);
    good.store(true, SeqCst);
    assert_eq!(sorted(seen.wait_for(2 * n)), filled(n));
    running(&consumer);
    assert_eq!(streams.health().status, Status::Healthy);
}

/// A reply as RESP3 has it: lists of pairs become maps, and nil is spelled anew.
fn as_resp3(command: &str, reply: &Reply) -> Vec<u8> {
    match (command, reply) {
        (_, Reply::Nil) => b"_\r\n".to_vec(),
        ("XREAD", Reply::Array(streams)) => {
            let mut out = format!("%{}\r\n", streams.len()).into_bytes();
            out.extend(
                streams
                    .iter()
                    .flat_map(Reply::items)
                    .flat_map(Reply::to_bytes),
            );
            out
        }
        ("XINFO" | "HGETALL" | "HELLO", Reply::Array(items)) => {
            let mut out = format!("%{}\r\n", items.len() / 2).into_bytes();
            out.extend(items.iter().flat_map(Reply::to_bytes));
            out
        }
        (_, Reply::Array(items)) => {
            let mut out = format!("*{}\r\n", items.len()).into_bytes();
            out.extend(items.iter().flat_map(|i| as_resp3("", i)));
            out
        }
        (_, other) => other.to_bytes(),
    }
}

/// Publishes and consumes over a stand-in, and again after a restart of the consumer.
fn everything_works_over(stub: &Stub) {
    let streams = open(&stub.url(), "orders", 2);
    let mut published = 0..0;
    for round in 0..2 {
        let seen = Seen::default();
        published = published.end..published.end + 20;
        publish(&streams, "orders", published.clone());
        let consumer = recording(streams.consumer("orders").name("c"), &seen)
            .start()
            .unwrap();
        consumer.drain(PATIENCE).unwrap();
        let want: Vec<_> = published.clone().map(|n| n.to_string()).collect();
        assert_eq!(seen.all(), want, "round {round}");
    }
}

#[test]
fn a_peer_that_answers_in_resp3_is_understood() {
    let server = server();
    let stub = standing_in(&server, |args, ask| {
        let name = String::from_utf8_lossy(&args[0]).into_owned();
        Some(Answer::Bytes(as_resp3(&name, &ask())))
    });
    everything_works_over(&stub);
    let maps = stub.count("XREAD");
    assert!(maps > 2, "{maps} reads");
}

#[test]
fn a_server_that_does_not_know_hello_is_greeted_the_old_way() {
    for refusal in [
        "ERR unknown command 'HELLO'",
        "NOPROTO unsupported protocol version",
    ] {
        let server = server();
        let stub = standing_in(&server, move |args, _| {
            (args[0] == b"HELLO").then(|| Answer::Reply(Reply::Error(refusal.into())))
        });
        everything_works_over(&stub);
        assert!(stub.count("HELLO") > 0);
    }
}

/// A consumer whose handler reports each id and then holds on until it is told to stop.
fn one_at_a_time(streams: &Streams, tell: Sender<StreamId>) -> Consumer {
    let builder = streams.consumer("ids").name("c").batch_size(1);
    let one = move |_| {
        let tell = tell.clone();
        move |m: &Message<'_>| -> HandlerResult {
            tell.send(m.id()).unwrap();
            assert!(
                eventually(PATIENCE, || m.is_cancelled()),
                "never told to stop"
            );
            Ok(())
        }
    };
    builder.messages(one).start().unwrap()
}

#[test]
fn ids_of_one_millisecond_are_told_apart_over_restarts() {
    let server = server();
    let all = ["1-0", "1-1", "1-2", "2-0", "2-18446744073709551615", "3-0"];
    for id in all {
        server
            .command(&["XADD", "re:s:{ids}:0", id, "b", "B", "t", "T"])
            .unwrap();
    }
    let mut handled = Vec::new();
    for _ in all {
        let streams = open(&server.url(), "ids", 1);
        let (tell, told): (_, Receiver<StreamId>) = channel();
        let consumer = one_at_a_time(&streams, tell);
        let id = told.recv_timeout(PATIENCE).unwrap();
        let stopped = consumer.stop();
        assert!(stopped.unsaved.is_empty() && stopped.still_running.is_empty());
        handled.push(id);
        handled.extend(told.try_iter());
    }
    let handled: Vec<_> = handled.iter().map(StreamId::to_string).collect();
    assert_eq!(handled, all);
    let streams = open(&server.url(), "ids", 1);
    let (tell, told) = channel();
    let consumer = one_at_a_time(&streams, tell);
    consumer.drain(PATIENCE).unwrap();
    assert_eq!(
        told.try_iter().count(),
        0,
        "nothing is left, and nothing comes twice"
    );
}

#[test]
fn a_server_that_cuts_replies_for_their_size_is_asked_for_less_until_they_fit() {
    let limited = PrivateServer::builder()
        .tcp()
        .config("client-output-buffer-limit normal 300kb 0 0")
        .start()
        .unwrap();
    let streams = open(&limited.url(), "large", 1);
    let publisher = streams.publisher("large").unwrap();
    for n in 0..20 {
        let body = format!("{n} {}", "x".repeat(50_000));
        publisher.publish("key", "T", body).unwrap();
    }
    let seen = Seen::default();
    let handler_seen = seen.clone();
    let first_word = move |m: &Message<'_>| -> HandlerResult {
        let body = String::from_utf8_lossy(m.body()).into_owned();
        handler_seen.push(body.split(' ').next().unwrap().to_owned());
        Ok(())
    };
    let consumer = streams
        .consumer("large")
        .name("c")
        .shared(first_word)
        .start()
        .unwrap();
    let want: Vec<_> = (0..20).map(|n: u32| n.to_string()).collect();
    assert_eq!(seen.wait_for(20), want);
    let connects = consumer.partitions()[0].connects;
    assert!(connects > 1, "no reply was ever cut, so nothing was shown");
}

#[test]
fn an_entry_no_reply_may_hold_is_reported_as_that_until_the_server_allows_it() {
    let limited = PrivateServer::builder()
        .tcp()
        .config("client-output-buffer-limit normal 300kb 0 0")
        .start()
        .unwrap();
    let streams = open(&limited.url(), "huge", 1);
    let publisher = streams.publisher("huge").unwrap();
    publisher.publish("key", "T", vec![b'x'; 900_000]).unwrap();
    let seen = Seen::default();
    let consumer = recording(streams.consumer("huge").name("c").batch_size(2), &seen)
        .start()
        .unwrap();
    expect("the reason to name the limit", || {
        consumer.partitions()[0]
            .reason
            .contains("client-output-buffer-limit")
    });
    let status = &consumer.partitions()[0];
    assert_eq!(
        (status.state, status.position.id),
        (LaneState::Disconnected, StreamId::MIN)
    );
    assert!(status.reason.contains("re:s:{huge}:0"), "{}", status.reason);
    let raise = [
        "CONFIG",
        "SET",
        "client-output-buffer-limit",
        "normal 0 0 0",
    ];
    limited.command(&raise).unwrap();
    assert_eq!(seen.wait_for(1)[0].len(), 900_000);
}
