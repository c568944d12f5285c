//! Servers that crash, hang, load their data or change their role.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use streamlane::{
    testing::{Aof, PrivateServer, Relay},
    *,
};

use crate::{sockets::ms, support::*};

/// How soon after the server answers again everything has to work.
const RESUME: Duration = Duration::from_secs(5);

fn durable() -> PrivateServer {
    listen_to_the_log();
    let server = PrivateServer::builder().tcp().aof(Aof::Always);
    server.start().unwrap()
}

/// Publishes one message to each partition, trying until it is stored, and waits until all are handled:
/// within the time a lane has to come back, counted from `up`.
#[track_caller]
fn resumes(publisher: &Publisher, partitions: u32, seen: &Seen<String>, tag: &str, up: Instant) {
    for p in 0..partitions {
        let body = format!("{tag}-{p}");
        expect("a message to be stored", || {
            let draft = publisher.message("T", &body).partition(p);
            draft.publish().is_ok()
        });
    }
    expect("each partition to be read again", || {
        let seen = seen.all();
        (0..partitions).all(|p| seen.contains(&format!("{tag}-{p}")))
    });
    assert!(up.elapsed() <= RESUME, "{tag}: {:?}", up.elapsed());
}

#[test]
fn every_lane_reads_on_after_a_crash_whatever_it_was_doing_then() {
    let server = durable();
    let streams = open(&server.url(), "crash", 4);
    let (seen, entered) = (Seen::default(), Seen::default());
    let (bodies, calls) = (seen.clone(), entered.clone());
    let consumer = streams
        .consumer("crash")
        .name("c")
        .persist_interval(ms(10))
        .shared(move |m: &Message<'_>| {
            let body = String::from_utf8_lossy(m.body()).into_owned();
            calls.push(body.clone());
            if body == "slow" {
                thread::sleep(ms(400));
            }
            bodies.push(body);
            Ok(())
        })
        .start()
        .unwrap();
    running(&consumer);
    let publisher = streams.publisher("crash").unwrap();
    let down = |streams: &Streams| streams.health().rule == Rule::ConnectionDown;
    let mut stored = 0;
    for round in 0..5 {
        match round {
            // lanes wait in a read
            0 => {}
            1 => {
                publisher.publish("k", "T", "slow").unwrap();
                expect("the handler to be called", || {
                    entered.all().contains(&"slow".into())
                });
            }
            // positions are being stored
            2 => {
                for _ in 0..200 {
                    publisher.publish("", "T", "many").unwrap();
                    stored += 1;
                }
            }
            // lanes back off, and the server that comes back goes away again
            3 => {
                server.kill();
                expect("the outage to be seen", || down(&streams));
                server.restart().unwrap();
            }
            // longer than a read waits
            _ => {
                server.kill();
                thread::sleep(ms(1500));
            }
        }
        server.kill();
        expect("the outage to be seen", || down(&streams));
        server.restart().unwrap();
        let tag = format!("round{round}");
        resumes(&publisher, 4, &seen, &tag, Instant::now());
    }
    assert_eq!(lane_threads("crash").0, 4);
    consumer.drain(PATIENCE).unwrap();
    let seen = seen.all();
    // what was handled after the last flush may be handled again
    assert!(seen.iter().filter(|b| *b == "many").count() >= stored);
    assert!(seen.contains(&"slow".into()));
    assert_eq!(
        consumer
            .partitions()
            .iter()
            .map(|p| p.failures)
            .sum::<u64>(),
        0
    );
}

#[test]
fn a_long_outage_is_quiet_cheap_and_over_at_once() {
    let server = durable();
    let relay = Relay::to(&server).unwrap();
    let place = relay.addr().to_string();
    // ports are used again
    let of_others = logged(&[&place]).len();
    let settings = settings(&relay.url(), "long", 16).publish_timeout(ms(300));
    let streams = Streams::open(settings).unwrap();
    let seen = Seen::default();
    let consumer = recording(streams.consumer("long").name("c"), &seen)
        .start()
        .unwrap();
    running(&consumer);
    let publisher = streams.publisher("long").unwrap();
    publisher.publish("k", "T", "first").unwrap();
    seen.wait_for(1);

    let over = AtomicBool::new(false);
    thread::scope(|s| {
        let end = Over(&over);
        let hammering = s.spawn(|| {
            let mut last = None;
            while !over.load(Relaxed) {
                match publisher.publish("k", "T", "during") {
                    Ok(_) => {}
                    Err(e) => last = Some(e),
                }
            }
            last
        });
        server.kill();
        let (began, dials, (threads, used)) =
            (Instant::now(), relay.accepted(), lane_threads("long"));
        thread::sleep(Duration::from_secs(8));
        let (dials, took) = (relay.accepted() - dials, began.elapsed());
        let (threads_now, used_now) = lane_threads("long");
        drop(end);
        // one for the connections that were lost, then one a second
        assert!(
            (4..=took.as_secs() + 2).contains(&dials),
            "{dials} in {took:?}"
        );
        assert_eq!((threads, threads_now), (16, 16));
        let used = used_now.saturating_sub(used);
        assert!(used < took.mul_f64(0.02), "{used:?} in {took:?}");
        let e = hammering.join().unwrap().expect("publishing to fail");
        assert_eq!(
            (e.kind(), e.outcome()),
            (ErrorKind::Connect, Outcome::NotApplied)
        );
        assert!(e.is_retryable());
        let text = e.to_string();
        for word in ["publish", "long", &relay.addr().to_string()] {
            assert!(text.contains(word), "{word} is not in: {text}");
        }
    });
    let mut lines = logged(&[&place]).split_off(of_others);
    lines.retain(|l| !l.starts_with("DEBUG"));
    for p in 0..16 {
        let of = format!("long[{p}]/");
        let n = lines.iter().filter(|l| l.contains(&of)).count();
        assert!(n <= 1, "{n} lines of partition {p}");
    }
    // besides: the address in use, the outage, the positions, the claims
    assert!(lines.len() <= 16 + 4, "{lines:#?}");
    assert!(streams.health().description.contains(&place));

    server.restart().unwrap();
    resumes(&publisher, 16, &seen, "after", Instant::now());
    let mut told = logged(&[&place]).split_off(of_others);
    told.retain(|l| l.contains("answers again after"));
    assert_eq!(told.len(), 1, "{told:?}");
}

#[test]
fn health_tells_an_outage_in_time_and_its_end_whether_one_reads_or_publishes() {
    let server = durable();
    let (block, slack) = (ms(500), ms(500));
    let reads = open(&server.url(), "health", 2);
    let consumer = reads.consumer("health").name("c");
    let consumer = recording(consumer.block(block).read_slack(slack), &Seen::default())
        .start()
        .unwrap();
    running(&consumer);
    // another address of the same server, so that one does not see what the other finds out; what tells
    // is the call without an answer, for the dial after it takes as long again
    let url = format!("redis://127.0.0.1:{}", server.port());
    let settings = settings(&url, "health", 2).publish_timeout(ms(1100));
    let writes = Streams::open(settings).unwrap();
    let publisher = writes.publisher("health").unwrap();
    publisher.publish("k", "T", "first").unwrap();

    let over = AtomicBool::new(false);
    thread::scope(|s| {
        let _end = Over(&over);
        s.spawn(|| {
            while !over.load(Relaxed) {
                let _ = publisher.publish("k", "T", "more");
                thread::sleep(ms(5));
            }
        });
        for kind in ["hangs", "is dead"] {
            for (who, streams) in [("reader", &reads), ("publisher", &writes)] {
                expect(who, || streams.health().status == Status::Healthy);
            }
            match kind {
                "hangs" => server.pause().unwrap(),
                _ => server.kill(),
            }
            let began = Instant::now();
            for (who, streams) in [("reader", &reads), ("publisher", &writes)] {
                expect(who, || streams.health().rule == Rule::ConnectionDown);
                let took = began.elapsed();
                assert!(took < block + slack + ms(1000), "{kind}, {who}: {took:?}");
                let health = streams.health();
                assert_eq!(health.status, Status::Unhealthy);
                assert!(!health.description.is_empty());
            }
            let all = |state| consumer.partitions().iter().all(|p| p.state == state);
            expect("each lane to say so", || all(LaneState::Disconnected));
            match kind {
                "hangs" => server.resume().unwrap(),
                _ => server.restart().unwrap(),
            }
            let up = Instant::now();
            for (who, streams) in [("reader", &reads), ("publisher", &writes)] {
                expect(who, || streams.health().status == Status::Healthy);
                assert!(up.elapsed() < RESUME, "{kind}, {who}: {:?}", up.elapsed());
            }
        }
    });
}

#[test]
fn a_publisher_waits_out_a_short_outage_within_its_deadline() {
    let server = durable();
    let streams = open(&server.url(), "short", 1);
    let publisher = streams.publisher("short").unwrap();
    publisher.publish("k", "T", "before").unwrap();
    server.kill();
    thread::scope(|s| {
        let publishing = s.spawn(|| publisher.publish("k", "T", "during"));
        expect("the outage to be seen", || {
            streams.health().rule == Rule::ConnectionDown
        });
        server.restart().unwrap();
        publishing.join().unwrap().unwrap();
    });
    let stored = server.command(&["XLEN", "re:s:{short}:0"]).unwrap();
    assert_eq!(stored.int(), Some(2));
}

#[test]
fn a_server_that_loads_its_data_is_waited_for_at_start_and_later() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let streams = open(&relay.url(), "loading", 2);
    let seen = Seen::default();
    let consumer = recording(streams.consumer("loading").name("early"), &seen)
        .start()
        .unwrap();
    running(&consumer);
    server.command(&["DEBUG", "POPULATE", "5000"]).unwrap();
    server.command(&["SAVE"]).unwrap();
    let slowly = ["--key-load-delay", "1000"];
    let events = ["--loading-process-events-interval-bytes", "1024"];
    server.restart_with(&[slowly, events].concat()).unwrap();
    let (began, dials) = (Instant::now(), relay.accepted());

    expect("health to say what the server does", || {
        let health = streams.health();
        health.rule == Rule::ConnectionDown && health.description.contains("LOADING")
    });
    let impatient = settings(&server.url(), "loading", 2)
        .start_timeout(ms(300))
        .connect_timeout(ms(300));
    let e = Streams::open(impatient).unwrap_err();
    assert_eq!(
        (e.kind(), e.server_class(), e.server_code()),
        (
            ErrorKind::Connect,
            Some(ServerClass::Loading),
            Some("LOADING")
        )
    );
    assert!(
        e.is_retryable() && e.to_string().contains("reading its data"),
        "{e}"
    );
    thread::scope(|s| {
        let loaded = s.spawn(|| {
            let loading = || server.command(&["PING"]).is_err();
            assert!(loading(), "it was loaded too soon to prove anything");
            expect("the data to be loaded", || !loading());
            let (dials, took) = (relay.accepted() - dials, began.elapsed());
            // one for each connection that was lost, all of them when it is over, else one a second
            assert!(dials <= 3 + 4 + took.as_secs(), "{dials} in {took:?}");
            Instant::now()
        });
        let late = open(&server.url(), "loading", 2);
        let late_seen = Seen::default();
        let late = recording(late.consumer("loading").name("late"), &late_seen)
            .start()
            .unwrap();
        let publisher = streams.publisher("loading").unwrap();
        let up = loaded.join().unwrap();
        resumes(&publisher, 2, &seen, "loaded", up);
        late_seen.wait_for(2);
        assert!(up.elapsed() < RESUME, "{:?}", up.elapsed());
        for p in late.partitions().iter().chain(&consumer.partitions()) {
            assert_eq!((p.failures, p.state), (0, LaneState::Running));
        }
    });
    for p in 0..2 {
        let lines = warned(&format!("loading[{p}]/early"));
        assert!(lines.len() <= 1, "{lines:?}");
    }
}

#[test]
fn a_change_of_role_and_back_is_lived_through_quietly() {
    let server = server();
    let settings = settings(&server.url(), "role", 2).publish_timeout(ms(300));
    let streams = Streams::open(settings).unwrap();
    let seen = Seen::default();
    let consumer = recording(streams.consumer("role").name("c"), &seen)
        .start()
        .unwrap();
    running(&consumer);
    let publisher = streams.publisher("role").unwrap();
    publisher.publish("k", "T", "first").unwrap();

    server.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    let (began, used) = (Instant::now(), lane_threads("role").1);
    let mut errors = Vec::new();
    while began.elapsed() < ms(3000) {
        errors.push(publisher.publish("k", "T", "refused").unwrap_err());
    }
    let (used, took) = (lane_threads("role").1.saturating_sub(used), began.elapsed());
    assert!(used < took.mul_f64(0.02), "{used:?} in {took:?}");
    let place = server.socket_path();
    for e in &errors {
        let told = (e.server_class(), e.server_code(), e.outcome());
        let readonly = (
            Some(ServerClass::ReadOnly),
            Some("READONLY"),
            Outcome::NotApplied,
        );
        assert_eq!(told, readonly, "{e}");
        assert!(
            e.is_retryable() && e.to_string().contains(place.to_str().unwrap()),
            "{e}"
        );
    }
    expect("the lanes to have noticed", || {
        streams.health().rule == Rule::ConnectionDown
    });
    server.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    resumes(&publisher, 2, &seen, "back", Instant::now());
    assert!(!seen.all().contains(&"refused".into()));
    for p in 0..2 {
        let lines = warned(&format!("role[{p}]/"));
        assert!(lines.len() <= 1, "{lines:?}");
    }
}

/// The sockets of this process to a local port that the other side has closed and we have not.
fn left_behind(port: u16) -> usize {
    let table = fs::read_to_string("/proc/self/net/tcp").unwrap();
    let (to, close_wait) = (format!(":{port:04X}"), "08");
    let columns = table
        .lines()
        .map(|l| l.split_whitespace().collect::<Vec<_>>());
    columns
        .filter(|c| c.len() > 3 && c[2].ends_with(&to) && c[3] == close_wait)
        .count()
}

#[test]
fn many_cuts_leave_no_socket_and_no_thread_behind() {
    let server = server();
    let streams = open(&server.tcp_url(), "glitch", 4);
    let seen = Seen::default();
    let consumer = streams.consumer("glitch").name("c");
    let consumer = recording(consumer.persist_interval(ms(50)), &seen)
        .start()
        .unwrap();
    let publisher = streams.publisher("glitch").unwrap();
    publisher.publish("", "T", "first").unwrap();
    let all = || connections(&server, "glitch").len();
    // four lanes, the positions, the claims, the publisher
    expect("everybody to be connected", || all() == 7);
    running(&consumer); // a lane that is cut off before that says something else
    for _ in 0..60 {
        server
            .command(&["CLIENT", "KILL", "TYPE", "normal"])
            .unwrap();
        expect("publishing to go on", || {
            publisher.publish("", "T", "more").is_ok()
        });
    }
    resumes(&publisher, 4, &seen, "after", Instant::now());
    expect("everybody to be connected again", || all() == 7);
    assert_eq!(lane_threads("glitch").0, 4);
    let read = "read on re:s:{glitch}:0 at 127.0.0.1:";
    for line in warned("glitch[0]/") {
        assert!(line.contains(read) && !line.contains("applied"), "{line}");
    }
    expect("no dead socket", || left_behind(server.port()) == 0);
    for p in 0..4 {
        let lines = warned(&format!("glitch[{p}]/"));
        assert!(lines.len() <= 1, "{lines:?}");
    }
    consumer.stop();
}
