//! Sockets that are slow, dead, cut or idle.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use streamlane::{
    testing::{Answer, Fault, PrivateServer, Relay, Reply, Stub, Way},
    *,
};

use crate::{publishing::one_partition, support::*};

const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// The only body that partition 0 holds under this id.
fn body_of(server: &PrivateServer, topic: &str, id: StreamId) -> String {
    let (key, id) = (format!("re:s:{{{topic}}}:0"), id.to_string());
    let found = server.command(&["XRANGE", &key, &id, &id]).unwrap();
    let fields = found.items()[0].items()[1].items().to_vec();
    let at = fields.iter().position(|f| f.text() == "b").unwrap();
    fields[at + 1].text()
}

#[track_caller]
fn assert_says_what_timed_out(e: &Error, words: &[&str]) {
    let text = e.to_string();
    for word in words {
        assert!(text.contains(word), "{word} is not in: {text}");
    }
    assert!(e.is_retryable(), "{e:?}");
    assert!(
        !text.contains("os error") && !text.contains("temporarily unavailable"),
        "{text}"
    );
}

#[test]
fn an_answer_that_comes_late_never_answers_the_next_question() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let settings = settings(&relay.url(), "late", 1).publish_timeout(ms(500));
    let streams = Streams::open(settings).unwrap();
    let publisher = streams.publisher("late").unwrap();
    publisher.publish("k", "T", "first").unwrap();

    relay.fault_existing(Way::Replies, Fault::Delay(ms(1200)));
    let e = publisher.publish("k", "T", "slow").unwrap_err();
    assert_eq!(
        (e.kind(), e.outcome()),
        (ErrorKind::Timeout, Outcome::Unknown)
    );
    let place = relay.addr().to_string();
    assert_says_what_timed_out(&e, &["publish on re:s:{late}:0", &place, "500 ms"]);
    let started = Instant::now();
    let id = publisher.publish("k", "T", "next").unwrap();
    assert!(started.elapsed() < SECOND, "{:?}", started.elapsed());
    assert_eq!(body_of(&server, "late", id), "next");
}

#[test]
fn a_server_that_hangs_for_a_moment_costs_timeouts_and_mixes_nothing_up() {
    let server = server();
    let settings = settings(&server.url(), "hang", 1).publish_timeout(ms(500));
    let streams = Streams::open(settings).unwrap();
    let seen = Seen::default();
    let consumer = recording(
        streams
            .consumer("hang")
            .name("c")
            .block(ms(100))
            .read_slack(ms(300)),
        &seen,
    )
    .start()
    .unwrap();
    running(&consumer);
    let publisher = streams.publisher("hang").unwrap();
    publisher.publish("k", "T", "before").unwrap();
    let mut sleeper = server.client().unwrap();
    sleeper.send(&["DEBUG", "SLEEP", "1.2"]).unwrap();
    let (started, mut ids, mut timeouts) = (Instant::now(), Vec::new(), 0);
    while started.elapsed() < ms(2500) {
        let body = (ids.len() + timeouts).to_string();
        match publisher.publish("k", "T", &body) {
            Ok(id) => ids.push((body, id)),
            Err(_) => timeouts += 1,
        }
    }
    assert!(timeouts > 0, "nothing was slow");
    for (body, id) in [ids.first(), ids.last()].into_iter().flatten() {
        assert_eq!(&body_of(&server, "hang", *id), body);
    }
    consumer.drain(PATIENCE).unwrap();
    let bodies = seen.all();
    let mut handled = bodies.iter();
    for (body, _) in &ids {
        assert!(handled.any(|b| b == body), "{body} is lost or out of order");
    }
    let mut once = bodies.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), bodies.len(), "something was handled twice");
}

#[test]
fn a_silent_topic_costs_no_connection_whatever_the_timeouts_of_calls_are() {
    let server = server();
    let url = format!(
        "127.0.0.1:{},syncTimeout=200,connectTimeout=5000",
        server.port()
    );
    for (topic, block) in [("idle1h", ms(3_600_000)), ("idle1s", ms(1500))] {
        let streams = open(&url, topic, 2);
        let seen = Seen::default();
        let consumer = recording(streams.consumer(topic).name("c").block(block), &seen)
            .start()
            .unwrap();
        running(&consumer);
        expect(
            "two lanes and what keeps their positions and claims to be connected",
            || connections(&server, topic).len() == 4,
        );
        let before = connections(&server, topic);
        // what passes here is time in which nothing may happen
        thread::sleep(ms(3500));
        assert_eq!(connections(&server, topic), before);
        assert!(consumer.partitions().iter().all(|p| p.connects == 1));
        publish(&streams, topic, 0..1);
        seen.wait_for(1);
        assert_eq!(warned(topic), [""; 0]);
    }
    let streams = open(&url, "idle0", 1);
    let forever = streams.consumer("idle0").block(Duration::ZERO);
    let e = recording(forever, &Seen::default()).start().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Config);
    assert!(e.to_string().contains("BlockMs"), "{e}");
}

#[test]
fn an_answer_well_after_its_block_is_waited_for() {
    let server = server();
    let streams = open(&server.url(), "slack", 1);
    let seen = Seen::default();
    let consumer = recording(streams.consumer("slack").name("c").block(SECOND), &seen)
        .start()
        .unwrap();
    running(&consumer);
    // longer than a read waits, so that one ends meanwhile wherever it was
    let (mut sleeper, mut adder) = (server.client().unwrap(), server.client().unwrap());
    sleeper.send(&["DEBUG", "SLEEP", "1.8"]).unwrap();
    adder
        .send(&["XADD", "re:s:{slack}:0", "*", "t", "T", "b", "kept"])
        .unwrap();
    assert_eq!(seen.wait_for(1), ["kept"]);
    consumer.drain(PATIENCE).unwrap();
    assert_eq!(seen.all(), ["kept"]);
    assert_eq!(consumer.partitions()[0].connects, 1);
    assert_eq!(warned("slack["), [""; 0]);
}

/// A server with one topic of one partition, whose reads are answered as `read` says; the first is 1.
fn scripted(read: impl Fn(usize) -> Answer + Send + 'static) -> Stub {
    let mut reads = 0;
    Stub::start(move |args, _| match &args[0][..] {
        b"HMGET" if args[1].starts_with(b"re:m:") => Answer::Reply(one_partition()),
        b"HMGET" => Answer::Reply(Reply::Array(vec![Reply::Nil; args.len() - 2])),
        b"EXISTS" | b"HSET" | b"HSETNX" | b"ZADD" | b"WATCH" | b"UNWATCH" => {
            Answer::Reply(Reply::Int(1))
        }
        b"TIME" => Answer::Reply(Reply::Array(vec![Reply::bulk("1"), Reply::bulk("1")])),
        b"HGETALL" | b"ZRANGE" | b"ZRANGEBYSCORE" => Answer::Reply(Reply::Array(Vec::new())),
        b"XREAD" => {
            reads += 1;
            read(reads)
        }
        _ => Answer::Usual,
    })
    .unwrap()
}

/// The answer to a read of topic `stub` that brings one message.
fn one_message() -> Vec<u8> {
    let fields = ["t", "T", "b", "kept"].map(Reply::bulk).to_vec();
    let entry = Reply::Array(vec![Reply::bulk("5-1"), Reply::Array(fields)]);
    let stream = vec![Reply::bulk("re:s:{stub}:0"), Reply::Array(vec![entry])];
    Reply::Array(vec![Reply::Array(stream)]).to_bytes()
}

#[test]
fn a_read_that_outlives_its_block_is_survived_with_and_without_enough_slack() {
    const NIL: &[u8] = b"*-1\r\n";
    for (slack, connects) in [(3000, 1), (100, 2)] {
        // the first answer comes after 1.9 times the block, the second brings something
        let stub = scripted(|n| match n {
            1 => Answer::Bytes(NIL.to_vec()),
            2 => Answer::Delay(ms(950), NIL.to_vec()),
            3 => Answer::Bytes(one_message()),
            _ => Answer::Delay(ms(400), NIL.to_vec()),
        });
        let streams = open(&stub.url(), "stub", 1);
        let seen = Seen::default();
        let reads = streams.consumer("stub").name("c").block(ms(500));
        let reads = reads.instances(Instances::Static);
        let consumer = recording(reads.read_slack(ms(slack)), &seen)
            .start()
            .unwrap();
        seen.wait_for(1);
        expect("two more reads", || stub.count("XREAD") >= 5);
        assert_eq!(seen.all(), ["kept"]);
        let p = &consumer.partitions()[0];
        assert_eq!((p.connects, p.failures), (connects, 0));
    }
}

#[test]
fn a_dead_link_is_noticed_by_readers_and_publishers_within_their_deadlines() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let settings = settings(&relay.url(), "dead", 1)
        .connect_timeout(2 * SECOND)
        .publish_timeout(ms(700));
    let streams = Streams::open(settings).unwrap();
    let (block, slack) = (ms(1000), ms(500));
    let publisher = streams.publisher("dead").unwrap();
    publisher.publish("k", "T", "before").unwrap();
    let seen = Seen::default();
    let consumer = recording(
        streams
            .consumer("dead")
            .name("c")
            .block(block)
            .read_slack(slack),
        &seen,
    )
    .start()
    .unwrap();
    seen.wait_for(1);
    running(&consumer);

    relay.fault_existing(Way::Requests, Fault::BlackHole);
    relay.fault_existing(Way::Replies, Fault::BlackHole);
    let cut = Instant::now();
    server
        .command(&["XADD", "re:s:{dead}:0", "*", "t", "T", "b", "direct"])
        .unwrap();
    let e = publisher.publish("k", "T", "swallowed").unwrap_err();
    assert!(cut.elapsed() < ms(700) + SECOND, "{:?}", cut.elapsed());
    assert_eq!(
        (e.kind(), e.outcome()),
        (ErrorKind::Timeout, Outcome::Unknown)
    );
    assert_eq!(seen.wait_for(2), ["before", "direct"]);
    let took = cut.elapsed();
    assert!(took <= block + slack + 2 * SECOND, "{took:?}");
    let lines = warned("dead[0]/");
    assert_eq!(lines.len(), 1, "{lines:?}");
    let place = relay.addr().to_string();
    for word in ["read on re:s:{dead}:0", &place, "no answer within 1500 ms"] {
        assert!(lines[0].contains(word), "{word}: {}", lines[0]);
    }
    let id = publisher.publish("k", "T", "after").unwrap();
    assert_eq!(seen.wait_for(3)[2], "after");
    expect("the position to be stored over another connection", || {
        stored(&server, "dead", "c", 0) == Some(id)
    });
}

#[test]
fn the_server_is_told_the_exact_milliseconds_and_never_to_block_for_ever() {
    let server = server();
    let streams = open(&server.url(), "millis", 1);
    let mut monitor = server.client().unwrap();
    monitor.command(&["MONITOR"]).unwrap();
    for block in [1000, 250_000, 999_000, 1_500_000, 500] {
        let block = Duration::from_micros(block);
        let reads = streams.consumer("millis").name("c").block(block);
        let consumer = match recording(reads, &Seen::default()).start() {
            Ok(consumer) => consumer,
            Err(e) => {
                assert!(block < ms(1) && e.kind() == ErrorKind::Config, "{e}");
                continue;
            }
        };
        let wanted = block.as_millis().max(1);
        let told = || loop {
            let line = monitor.receive().unwrap().text();
            if let Some((_, rest)) = line.split_once("\"XREAD\" \"BLOCK\" \"") {
                let told: u128 = rest.split('"').next().unwrap().parse().unwrap();
                // while it is not known whether it may read, a lane asks for a second at most
                assert!(told == wanted || told == wanted.min(1000), "{line}");
                break told;
            }
        };
        assert!(std::iter::repeat_with(told).take(5).any(|t| t == wanted));
        consumer.stop();
        // what the stopped lane said is not taken for the next one's
        let mark = wanted.to_string();
        server.command(&["ECHO", &mark]).unwrap();
        while !monitor.receive().unwrap().text().contains("\"ECHO\"") {}
    }
}

#[test]
fn a_server_that_accepts_and_says_nothing_is_given_up_in_time_and_by_name() {
    let mute = Stub::start(|_, _| Answer::Nothing).unwrap();
    let server = server();
    let (live, block) = (open(&server.tcp_url(), "mute", 2), Duration::from_secs(30));
    let lanes = recording(
        live.consumer("mute").name("c").block(block),
        &Seen::default(),
    )
    .start()
    .unwrap();
    running(&lanes);
    server.pause().unwrap();
    let frozen = format!("127.0.0.1:{}", server.port());
    for place in [frozen, mute.addr().to_string()] {
        let settings = settings(&place, "t", 1).connect_timeout(ms(400));
        let started = Instant::now();
        let e = Streams::open(settings).unwrap_err();
        assert!(started.elapsed() < 2 * SECOND, "{:?}", started.elapsed());
        assert_eq!(
            (e.kind(), e.outcome()),
            (ErrorKind::Connect, Outcome::NotApplied)
        );
        assert_says_what_timed_out(&e, &["connect at", &place, "HELLO", "within 400 ms"]);
    }
    let started = Instant::now();
    lanes.stop();
    assert!(started.elapsed() < SECOND, "{:?}", started.elapsed());
    server.resume().unwrap();
}

#[test]
fn a_cut_connection_is_replaced_at_once_and_no_answer_lies() {
    let server = server();
    let streams = open(&server.url(), "cut", 1);
    let seen = Seen::default();
    let consumer = recording(streams.consumer("cut").name("c"), &seen)
        .start()
        .unwrap();
    let publisher = streams.publisher("cut").unwrap();
    publisher.publish("k", "T", "first").unwrap();
    running(&consumer);
    let kill = || {
        server
            .command(&["CLIENT", "KILL", "TYPE", "normal"])
            .unwrap()
    };

    kill();
    let started = Instant::now();
    publisher.publish("k", "T", "second").unwrap();
    assert!(started.elapsed() < SECOND, "{:?}", started.elapsed());

    kill();
    let bodies = ["third", "fourth"];
    let batch = bodies.map(|b| Outgoing::new("T", b).key("k"));
    for stored in publisher.publish_batch(&batch) {
        stored.unwrap();
    }

    let (calls, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (ids, errors) = thread::scope(|s| {
        let end = Over(&over);
        let publishing = s.spawn(|| {
            let (mut ids, mut errors) = (Vec::new(), Vec::new());
            while !over.load(Relaxed) {
                let body = (ids.len() + errors.len()).to_string();
                match publisher.publish("k", "T", &body) {
                    Ok(_) => ids.push(body),
                    Err(e) => errors.push((body, e)),
                }
                calls.fetch_add(1, Relaxed);
            }
            (ids, errors)
        });
        for _ in 0..100 {
            let before = calls.load(Relaxed);
            expect("publishing to go on", || calls.load(Relaxed) > before + 2);
            kill();
        }
        drop(end);
        publishing.join().unwrap()
    });
    consumer.drain(PATIENCE).unwrap();
    let handled = seen.all();
    for body in &ids {
        assert!(
            handled.contains(body),
            "{body} was stored and never handled"
        );
    }
    assert!(!errors.is_empty(), "no call was under way at any kill");
    for (body, e) in &errors {
        // what did not go out is sent over the next connection
        assert_eq!(e.outcome(), Outcome::Unknown, "{body}: {e}");
        assert!(e.is_retryable());
    }
}

#[test]
fn lanes_that_wait_keep_nobody_else_waiting() {
    let server = server();
    let streams = open(&server.url(), "wait16", 16);
    let seen = Seen::default();
    let reads = streams.consumer("wait16").name("c").block(5 * SECOND);
    let consumer = recording(reads.persist_interval(ms(100)), &seen)
        .start()
        .unwrap();
    let publisher = streams.publisher("wait16").unwrap();
    publisher.publish("k", "T", "0").unwrap();
    seen.wait_for(1);
    running(&consumer);
    let stored = |id: StreamId| {
        let all = server.command(&["HGETALL", "re:p:{wait16}:c"]).unwrap();
        let text = format!("{id}|");
        all.items().iter().any(|v| v.text().starts_with(&text))
    };
    expect("a first flush", || {
        connections(&server, "wait16").len() == 19
    });
    let before = connections(&server, "wait16");
    let mut slowest = Duration::ZERO;
    for n in 1..200 {
        let started = Instant::now();
        let id = publisher.publish("k", "T", n.to_string()).unwrap();
        slowest = slowest.max(started.elapsed());
        if n % 50 == 0 {
            expect("the position to be stored", || stored(id));
            assert!(started.elapsed() < 2 * SECOND, "{:?}", started.elapsed());
        }
    }
    seen.wait_for(200);
    assert!(
        slowest < SECOND,
        "behind a read one waits 5 s, not {slowest:?}"
    );
    let mut published = 200;
    // a machine with other things to do may take longer now and then
    expect("99 of 100 messages to take less than 50 ms each", || {
        let quick = (0..100).filter(|_| {
            let started = Instant::now();
            publisher.publish("k", "T", "quick").unwrap();
            started.elapsed() < ms(50)
        });
        let quick = quick.count();
        published += 100;
        quick >= 99
    });
    seen.wait_for(published);
    let started = Instant::now();
    let other = streams.consumer("wait16").name("other");
    drop(recording(other.start_from(StartFrom::Now), &Seen::default()).start());
    assert!(started.elapsed() < 2 * SECOND, "{:?}", started.elapsed());
    // 16 lanes, the positions, the publisher
    expect("the same connections as before", || {
        connections(&server, "wait16") == before
    });
}

#[test]
fn a_server_that_hangs_up_on_the_idle_costs_nothing() {
    let server = server();
    server.command(&["CONFIG", "SET", "timeout", "1"]).unwrap();
    let streams = open(&server.url(), "hangup", 1);
    let seen = Seen::default();
    let reads = streams.consumer("hangup").name("c");
    // longer than the server's patience, or the timer's connection would not be idle
    let consumer = recording(reads.persist_interval(ms(3000)), &seen)
        .start()
        .unwrap();
    let publisher = streams.publisher("hangup").unwrap();
    for n in 0..2 {
        publisher.publish("k", "T", n.to_string()).unwrap();
        seen.wait_for(n + 1);
        // all but the lane, which is not idle, are hung up on
        expect("the idle to be cut", || {
            connections(&server, "streams-pub:hangup").is_empty()
                && connections(&server, "streams-positions:hangup").is_empty()
        });
    }
    publisher.publish("k", "T", "2").unwrap();
    consumer.drain(PATIENCE).unwrap();
    assert_eq!(seen.all(), ["0", "1", "2"]);
    assert_eq!(consumer.partitions()[0].connects, 1);
    assert_eq!(warned("hangup"), [""; 0]);
}
