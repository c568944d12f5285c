//! What has to end, or to get on, however others behave.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used
)]

use std::{
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use streamlane::{
    testing::{Answer, Fault, PrivateServer, Relay, Reply, Stub, Way},
    *,
};

use crate::{
    lifecycle::{at_once, ended},
    publishing::one_partition,
    support::*,
};

/// A server of one topic with one partition, which holds two messages and whose other answers are
/// those of a real one, unless `other` has one.
fn two_messages(
    topic: &str,
    mut other: impl FnMut(&[Vec<u8>]) -> Option<Answer> + Send + 'static,
) -> Stub {
    let stream = format!("re:s:{{{topic}}}:0");
    let meta = format!("re:m:{{{topic}}}");
    Stub::start(move |args, _| {
        if let Some(answer) = other(args) {
            return answer;
        }
        let entry = |id: &str| {
            let fields = ["b", id, "t", "T", "k", "K"].map(Reply::bulk).to_vec();
            Reply::Array(vec![Reply::bulk(id), Reply::Array(fields)])
        };
        Answer::Reply(match &args[0][..] {
            b"HMGET" if args[1] == meta.as_bytes() => one_partition(),
            b"HMGET" => Reply::Array(vec![Reply::Nil; args.len() - 2]),
            b"EXISTS" | b"HSET" | b"HSETNX" | b"ZADD" | b"WATCH" | b"UNWATCH" => Reply::Int(1),
            b"TIME" => Reply::Array(vec![Reply::bulk("1"), Reply::bulk("1")]),
            b"HGETALL" | b"ZRANGE" | b"ZRANGEBYSCORE" => Reply::Array(Vec::new()),
            b"XREAD" if args.last().unwrap() == b"0-0" => {
                let entries = Reply::Array(vec![entry("1-0"), entry("2-0")]);
                Reply::Array(vec![Reply::Array(vec![Reply::bulk(&stream), entries])])
            }
            _ => return Answer::Usual,
        })
    })
    .unwrap()
}

#[test]
fn a_server_that_hangs_up_on_each_position_is_not_stormed() {
    listen_to_the_log();
    let mut reads = false;
    let stub = two_messages("hangs-up", move |args| {
        reads |= args[0] == b"XREAD";
        (reads && args[0] == b"HSET" && args[1] == b"re:p:{hangs-up}:c").then_some(Answer::Close)
    });
    let streams = open(&stub.url(), "hangs-up", 1);
    let seen = Seen::default();
    let consumer = recording(
        streams
            .consumer("hangs-up")
            .name("c")
            .instances(Instances::Static) // whose writes need no script
            .persist(Persist::SyncMessage),
        &seen,
    );
    let consumer = consumer.start().unwrap();
    seen.wait_for(1);
    thread::sleep(Duration::from_secs(3));
    let dials = stub.accepted();
    assert!(dials < 20, "{dials} connections in 3 s");
    assert_eq!(seen.len(), 1, "the second waits for the first's position");
    drop(consumer);
}

#[test]
fn a_drain_ends_in_time_when_the_server_says_nothing() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let settings = settings(&relay.url(), "mute", 4).connect_timeout(PATIENCE);
    let streams = Streams::open(settings).unwrap();
    let consumer = recording(streams.consumer("mute").name("c"), &Seen::default());
    let consumer = consumer.start().unwrap();
    running(&consumer);
    relay.fault(Way::Replies, Fault::BlackHole);
    let start = Instant::now();
    consumer.drain(Duration::from_millis(300)).unwrap_err();
    assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
}

/// However little of a reply arrives in the time it may take, what is there whole is progress.
#[test]
fn a_link_too_slow_for_a_whole_reply_still_brings_messages() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let streams = open(&relay.url(), "slow", 1);
    let seen = Seen::default();
    let consumer = streams
        .consumer("slow")
        .name("c")
        .read_slack(Duration::from_millis(300));
    let consumer = recording(consumer, &seen).start().unwrap();
    running(&consumer);
    consumer.pause();
    let body = "x".repeat(300);
    publish_to(&open(&server.url(), "slow", 1), "slow", 0, &[&*body; 40]);
    expect("it to hold still", || {
        consumer.partitions()[0].state == LaneState::Paused
    });
    relay.fault(Way::Replies, Fault::Trickle(Duration::from_millis(1)));
    consumer.resume();
    seen.wait_for(10);
    relay.heal();
    seen.wait_for(40);
    assert_eq!(seen.len(), 40);
}

#[test]
fn stopping_many_takes_as_long_as_stopping_one() {
    let server = server();
    let streams = open(&server.url(), "many", 1);
    publish_to(&streams, "many", 0, &["x"]);
    let (entered, (hold, held)) = (Seen::default(), mpsc::channel::<()>());
    let held = Arc::new(Mutex::new(held));
    let consumers: Vec<_> = (0..6)
        .map(|n| {
            let (entered, held) = (entered.clone(), held.clone());
            let consumer = streams.consumer("many").name(format!("c{n}"));
            let consumer = consumer.shutdown_timeout(Duration::from_secs(1));
            let consumer = consumer.shared(move |_| {
                entered.push(n);
                let _ = held.lock().unwrap().recv();
                Ok(())
            });
            consumer.start().unwrap()
        })
        .collect();
    entered.wait_for(6);
    let start = Instant::now();
    streams.stop();
    let took = start.elapsed();
    drop(hold);
    assert!(took < Duration::from_secs(4), "{took:?}");
    consumers.iter().for_each(ended);
}

/// Panics when it is dropped, unless that would be the end of the process.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(thread::panicking(), "dropped");
    }
}

#[test]
fn a_handler_that_panics_when_dropped_does_not_undo_the_end_of_its_lane() {
    let server = server();
    let streams = open(&server.url(), "bomb", 1);
    publish_to(&streams, "bomb", 0, &["x"]);
    let seen = Seen::default();
    let (enter, consumer) = (seen.clone(), streams.consumer("bomb").name("c"));
    let consumer = consumer.on_error(OnError::Fail).messages(move |_| {
        let (enter, bomb) = (enter.clone(), Bomb);
        move |m: &Message<'_>| -> HandlerResult {
            let _ = &bomb;
            enter.push(m.id());
            Err("no".into())
        }
    });
    let consumer = consumer.start().unwrap();
    seen.wait_for(1);
    ended(&consumer);
    assert_eq!(streams.wait().unwrap_err().kind(), ErrorKind::Handler);
    assert_eq!(seen.len(), 1);
}

#[test]
fn positions_that_cannot_be_read_are_not_taken_for_none() {
    for odd in [
        Reply::Status("OK".into()),
        Reply::Nil,
        Reply::Array(vec![Reply::Int(7)]),
    ] {
        let answer = odd.clone();
        let stub = two_messages("odd", move |args| {
            (args[0] == b"HMGET" && args[1].starts_with(b"re:p:"))
                .then(|| Answer::Reply(answer.clone()))
        });
        let streams = open(&stub.url(), "odd", 1);
        let seen = Seen::default();
        let started = recording(streams.consumer("odd").name("c"), &seen).start();
        let e = started.map(drop).expect_err("it is refused");
        assert_eq!(e.kind(), ErrorKind::Protocol, "{odd:?}: {e}");
        assert!(e.to_string().contains("re:p:{odd}:c"), "{e}");
        assert_eq!((stub.count("HSET"), seen.len()), (0, 0));
    }
}

/// Waits until a lane has read again, and so has been told what became of its position.
fn reads_on(server: &PrivateServer) {
    let reads = || {
        let stats = server.command(&["INFO", "commandstats"]).unwrap().text();
        let reads = stats.split("cmdstat_xread:calls=").nth(1);
        let reads = reads.and_then(|s| s.split(',').next()?.parse::<u64>().ok());
        reads.unwrap_or(0)
    };
    let before = reads();
    expect("some reads", || reads() > before + 2);
}

/// What is stored already is not stored again: somebody else may have moved on from there.
#[test]
fn a_stop_leaves_positions_alone_that_were_stored_before() {
    let server = server();
    for persist in [
        Persist::SyncBatch,
        Persist::SyncMessage,
        Persist::AsyncBatch,
    ] {
        let topic = format!("stored-{persist:?}");
        let streams = open(&server.url(), &topic, 1);
        let ids = publish_to(&streams, &topic, 0, &["0", "1", "2"]);
        let consumer = streams.consumer(&*topic).name("c").persist(persist);
        let consumer = consumer.block(Duration::from_millis(50));
        let consumer = recording(consumer, &Seen::default()).start().unwrap();
        let last = || stored(&server, &topic, "c", 0) == Some(ids[2]);
        expect("the last position", last);
        reads_on(&server);
        let key = format!("re:p:{{{topic}}}:c");
        let further = "99999999999999-7";
        server.command(&["HSET", &key, "0", further]).unwrap();
        assert!(consumer.stop().unsaved.is_empty());
        let now = stored(&server, &topic, "c", 0).unwrap();
        assert_eq!(now.to_string(), further, "{persist:?}");
    }
}

#[test]
fn positions_stored_with_each_message_are_not_missed_when_the_server_is_gone() {
    let server = server();
    let streams = open(&server.url(), "gone", 1);
    let ids = publish_to(&streams, "gone", 0, &["0", "1"]);
    let consumer = streams
        .consumer("gone")
        .name("c")
        .persist(Persist::SyncMessage)
        .block(Duration::from_millis(50));
    let consumer = recording(consumer, &Seen::default()).start().unwrap();
    expect("the last position", || {
        stored(&server, "gone", "c", 0) == Some(ids[1])
    });
    reads_on(&server);
    server.kill();
    assert!(consumer.stop().unsaved.is_empty());
}

/// Whoever asks for positions, or stores them, gives a connection up whose answer does not come in time.
#[test]
fn late_answers_about_positions_reach_nobody() {
    let late = |reply: Reply| {
        let after = Duration::from_millis(800);
        Some(Answer::Delay(after, reply.to_bytes()))
    };
    let (mut asked, mut stores, mut started) = (0, 0, false);
    let stub = two_messages("tardy", move |args| {
        started |= args[0] == b"XREAD";
        match &args[0][..] {
            b"HMGET" if args[1].starts_with(b"re:p:") => {
                asked += 1;
                (asked == 1).then(|| late(Reply::Array(vec![Reply::bulk("9-9")])))?
            }
            b"HSET" if started && args[1] == b"re:p:{tardy}:c" => {
                stores += 1;
                (stores == 1).then(|| late(Reply::Int(1)))?
            }
            _ => None,
        }
    });
    let settings = settings(&stub.url(), "tardy", 1).connect_timeout(Duration::from_millis(500));
    let streams = Streams::open(settings.start_timeout(Duration::from_millis(1))).unwrap();
    let seen = Seen::default();
    let consumer = || {
        let consumer = streams.consumer("tardy").name("c");
        let consumer = consumer.instances(Instances::Static); // whose writes need no script
        recording(consumer.persist_interval(Duration::from_millis(10)), &seen)
    };
    let e = consumer().start().map(drop).expect_err("it is late");
    assert!(e.kind() == ErrorKind::Timeout && e.is_retryable(), "{e}");
    let place = stub.addr().to_string();
    for word in ["re:p:{tardy}:c", &place, "no answer within 500 ms"] {
        assert!(e.to_string().contains(word), "{word}: {e}");
    }
    let _consumer = consumer().start().unwrap();
    assert_eq!(seen.wait_for(2), ["1-0", "2-0"]);
    let stores = || {
        let all = stub.seen().into_iter();
        let stores = all.filter(|s| s.text().contains("HSET re:p:{tardy}:c 0 2-0|"));
        stores.map(|s| s.connection).collect::<Vec<_>>()
    };
    expect("the position to be stored again", || stores().len() >= 2);
    assert_ne!(stores()[0], stores()[1]);
}

#[test]
fn stopping_ends_a_start_that_waits_for_the_server() {
    let stub = Stub::start(|args, _| match &args[0][..] {
        b"HMGET" => Answer::Reply(Reply::Error("LOADING Redis is loading the dataset".into())),
        _ => Answer::Usual,
    })
    .unwrap();
    let streams = open(&stub.url(), "loads", 1);
    thread::scope(|s| {
        let start = || recording(streams.consumer("loads").name("c"), &Seen::default()).start();
        let starting = s.spawn(start);
        expect("it to be tried again", || stub.count("HMGET") > 1);
        streams.stop();
        let e = at_once("ending the start", || starting.join().unwrap()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Stopped);
        assert!(e.to_string().contains("LOADING"), "{e}");
    });
}
