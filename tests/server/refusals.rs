//! Servers that answer, and say no.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::{
    fmt::Debug,
    thread,
    time::{Duration, Instant},
};

use streamlane::{
    testing::{Aof, PrivateServer},
    *,
};

use crate::{sockets::ms, support::*};

const SECOND: Duration = Duration::from_secs(1);

/// How many connections the server has ever been asked for.
fn dials(server: &PrivateServer) -> u64 {
    let info = server.command(&["INFO", "stats"]).unwrap().text();
    let found = info
        .lines()
        .find_map(|l| l.strip_prefix("total_connections_received:"));
    found.unwrap().trim().parse().unwrap()
}

/// How many reads the server has said no to.
fn refused_reads(server: &PrivateServer) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]).unwrap().text();
    let line = stats.lines().find(|l| l.starts_with("cmdstat_xread:"));
    let of = |name: &str| -> u64 {
        let count = line.and_then(|l| l.split(name).nth(1));
        count.map_or(0, |n| n.split(',').next().unwrap().trim().parse().unwrap())
    };
    of("rejected_calls=") + of("failed_calls=")
}

#[track_caller]
fn refused(e: &Error, class: ServerClass, code: &str, retryable: bool) {
    let told = (e.server_class(), e.server_code(), e.outcome());
    assert_eq!(told, (Some(class), Some(code), Outcome::NotApplied), "{e}");
    assert_eq!(e.is_retryable(), retryable, "{e}");
}

/// Nothing but these lines of warning or worse about each partition.
#[track_caller]
fn quiet(topic: &str, partitions: u32, at_most: usize) {
    for p in 0..partitions {
        let lines = warned(&format!("{topic}[{p}]/"));
        assert!(lines.len() <= at_most, "{lines:#?}");
    }
}

#[test]
fn a_chosen_database_is_kept_over_every_reconnect() {
    let server = server();
    let url = format!("{}/5", server.tcp_url());
    let streams = open(&url, "base", 2);
    let seen = Seen::default();
    let consumer = streams.consumer("base").name("c");
    let consumer = recording(consumer.persist_interval(ms(5)), &seen)
        .start()
        .unwrap();
    let publisher = streams.publisher("base").unwrap();
    let mut dedicated = publisher.dedicated();
    let mut stored = 0;
    for _ in 0..50 {
        for n in 0..4 {
            stored += usize::from(publisher.publish("", "T", n.to_string()).is_ok());
        }
        stored += usize::from(dedicated.publish("", "T", "dedicated").is_ok());
        server
            .command(&["CLIENT", "KILL", "TYPE", "normal"])
            .unwrap();
    }
    expect("publishing to go on", || {
        publisher.publish("", "T", "last").is_ok()
    });
    consumer.drain(PATIENCE).unwrap();
    assert!(seen.len() > stored, "{} of {stored}", seen.len());
    assert_eq!(server.command(&["DBSIZE"]).unwrap().int(), Some(0));
    let keys = server.command(&["INFO", "keyspace"]).unwrap().text();
    assert!(keys.contains("db5:"), "{keys}");

    let url = format!("{}/99", server.tcp_url());
    let started = Instant::now();
    let e = Streams::open(settings(&url, "base", 2)).unwrap_err();
    assert!(started.elapsed() < 5 * SECOND);
    assert_eq!(e.kind(), ErrorKind::Config);
    let place = format!("127.0.0.1:{}", server.port());
    for word in ["database 99", "databases", &place] {
        assert!(e.to_string().contains(word), "{word}: {e}");
    }
}

#[test]
fn a_password_of_any_characters_logs_in_and_is_never_told() {
    const PASSWORD: &str = "p@s#s/%25+:=?&x";
    const ENCODED: &str = "p%40s%23s%2F%2525%2B%3A%3D%3F%26x";
    let server = PrivateServer::builder().tcp().password(PASSWORD);
    let server = server.start().unwrap();
    let place = format!("127.0.0.1:{}", server.port());
    let mut printed = Vec::new();
    let mut print = |what: &dyn Debug| printed.push(format!("{what:?} {what:#?}"));
    let mut errors = Vec::new();

    let by_url = settings(&format!("redis://:{ENCODED}@{place}"), "secret", 1);
    let by_fields = settings(&place, "secret", 1)
        .username("default")
        .password(PASSWORD);
    let by_option = settings(&format!("{place},password={PASSWORD}"), "secret", 1);
    for settings in [by_url, by_fields, by_option] {
        print(&settings);
        let streams = Streams::open(settings).unwrap();
        let seen = Seen::default();
        let consumer = recording(streams.consumer("secret").name("c"), &seen);
        print(&consumer);
        let consumer = consumer.start().unwrap();
        let publisher = streams.publisher("secret").unwrap();
        publisher.publish("k", "T", "hello").unwrap();
        consumer.drain(PATIENCE).unwrap();
        assert_eq!(seen.all(), ["hello"]);
        print(&(&streams, &publisher, &consumer, consumer.partitions()));
    }

    let raw = format!("redis://:{PASSWORD}@{place}");
    let e = Streams::connect(raw).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Config);
    for word in ["password", "%23"] {
        assert!(e.to_string().contains(word), "{word}: {e}");
    }
    errors.push(e);
    for wrong in [format!("{PASSWORD}!"), String::new()] {
        let wrong = settings(&place, "secret", 1).password(&*wrong);
        let started = Instant::now();
        let e = Streams::open(wrong).unwrap_err();
        assert!(started.elapsed() < 5 * SECOND, "nobody can mend a password");
        assert_eq!(e.server_class(), Some(ServerClass::Auth), "{e}");
        assert!(e.to_string().contains(&place) && !e.is_retryable(), "{e:?}");
        errors.push(e);
    }
    print(&errors);
    printed.extend(errors.iter().map(ToString::to_string));
    printed.extend(logged(&[]));
    for text in printed {
        assert!(
            !text.contains(PASSWORD) && !text.contains(ENCODED),
            "{text}"
        );
    }
}

#[test]
fn greetings_that_are_refused_do_no_harm_and_odd_names_are_made_fit() {
    let server = server();
    let rules = [
        "ACL", "SETUSER", "plain", "on", ">pw", "~*", "&*", "+@all", "-client",
    ];
    server.command(&rules).unwrap();
    let shy = format!("redis://plain:pw@127.0.0.1:{}", server.port());
    for (url, listed) in [(&*shy, 0), (&server.tcp_url(), 1)] {
        let streams = open(url, "greet", 1);
        let seen = Seen::default();
        let consumer = recording(streams.consumer("greet").name("büro eins"), &seen)
            .start()
            .unwrap();
        publish(&streams, "greet", 0..1);
        seen.wait_for(1);
        running(&consumer);
        assert_eq!(
            connections(&server, "streams-rd:greet:b-ro-eins:p0").len(),
            listed
        );
        consumer.drain(PATIENCE).unwrap();
        let positions = server.command(&["EXISTS", "re:p:{greet}:büro eins"]);
        assert_eq!(positions.unwrap().int(), Some(1));
    }
    assert_eq!(warned("greet"), [""; 0]);
}

#[test]
fn a_full_server_is_named_as_such_and_not_stormed() {
    let server = server();
    let streams = open(&server.tcp_url(), "full", 16);
    let publisher = streams.publisher("full").unwrap();
    publisher.publish("k", "T", "first").unwrap();
    let mut admin = server.client().unwrap();
    // this one, the publisher, and what looks for delayed messages
    let present = 3;
    expect("the first look to be over", || {
        let clients = admin.command(&["CLIENT", "LIST"]).unwrap().text();
        clients.lines().count() == present
    });
    let mut limit = |n: usize| {
        let n = n.to_string();
        admin.command(&["CONFIG", "SET", "maxclients", &n]).unwrap();
    };
    limit(present);
    let full = settings(&server.tcp_url(), "full", 16).start_timeout(ms(1500));
    let e = Streams::open(full).unwrap_err();
    refused(&e, ServerClass::Transient, "ERR", true);
    let place = format!("127.0.0.1:{}", server.port());
    for word in ["connect", "maxclients", &place] {
        assert!(e.to_string().contains(word), "{word}: {e}");
    }

    // room for the start and for some lanes
    limit(present + 6);
    let seen = Seen::default();
    let consumer = recording(streams.consumer("full").name("c"), &seen)
        .start()
        .unwrap();
    let running_lanes = || {
        let all = consumer.partitions();
        all.iter().filter(|p| p.state == LaneState::Running).count()
    };
    expect("some lanes to run", || running_lanes() >= 3);
    let told = || streams.health().description.contains("maxclients");
    expect("health to say why", told);
    let mut rejected = || {
        let info = admin.command(&["INFO", "stats"]).unwrap().text();
        let line = info
            .lines()
            .find_map(|l| l.strip_prefix("rejected_connections:"));
        line.unwrap().trim().parse::<u64>().unwrap()
    };
    let (began, before) = (Instant::now(), rejected());
    thread::sleep(4 * SECOND);
    let (dials, took) = (rejected() - before, began.elapsed());
    assert!(
        (1..=took.as_secs() + 1).contains(&dials),
        "{dials} in {took:?}"
    );
    admin
        .command(&["CONFIG", "SET", "maxclients", "1000"])
        .unwrap();
    let roomy = Instant::now();
    expect("all lanes to run", || running_lanes() == 16);
    assert!(roomy.elapsed() < 5 * SECOND, "{:?}", roomy.elapsed());
    quiet("full", 16, 1);
}

#[test]
fn a_lane_that_is_refused_says_so_and_goes_on_when_it_may() {
    let server = server();
    let user = |more: &str| {
        let rules = [
            "ACL", "SETUSER", "reader", "on", ">pw", "~*", "&*", "+@all", more,
        ];
        server.command(&rules).unwrap()
    };
    user("+xread");
    let url = format!("redis://reader:pw@127.0.0.1:{}", server.port());
    let streams = open(&url, "refuse", 4);
    let seen = Seen::default();
    let consumer = recording(streams.consumer("refuse").name("c"), &seen)
        .start()
        .unwrap();
    running(&consumer);
    let refuse = |by: &dyn Fn(), mend: &dyn Fn(), class: &str, tag: &str| {
        by();
        expect("the refusal to be told", || {
            let health = streams.health();
            health.rule == Rule::Refused && health.description.contains(class)
        });
        assert!(
            consumer
                .partitions()
                .iter()
                .any(|p| p.state == LaneState::Refused)
        );
        let (began, before) = (Instant::now(), dials(&server));
        let (reads, used) = (refused_reads(&server), lane_threads("refuse").1);
        thread::sleep(2 * SECOND);
        let dials = dials(&server) - before - 2; // the looks themselves
        let (reads, used) = (
            refused_reads(&server) - reads,
            lane_threads("refuse").1.saturating_sub(used),
        );
        let took = began.elapsed();
        assert!(dials <= took.as_secs() + 1, "{dials} in {took:?}");
        assert!(
            (1..=4 * (took.as_secs() + 1)).contains(&reads),
            "{reads} refused reads in {took:?}"
        );
        assert!(used < took.mul_f64(0.02), "{used:?} in {took:?}");
        mend();
        let mended = Instant::now();
        let body = seen.len() as u32;
        for p in 0..4 {
            let publisher = streams.publisher("refuse").unwrap();
            publisher.message("T", tag).partition(p).publish().unwrap();
        }
        seen.wait_for(body as usize + 4);
        assert!(mended.elapsed() < 5 * SECOND, "{:?}", mended.elapsed());
    };
    refuse(
        &|| drop(user("-xread")),
        &|| drop(user("+xread")),
        "NOPERM",
        "permitted",
    );
    let key = "re:s:{refuse}:2";
    refuse(
        &|| {
            server.command(&["SET", key, "no stream"]).unwrap();
        },
        &|| {
            server.command(&["DEL", key]).unwrap();
        },
        "WRONGTYPE",
        "retyped",
    );
    quiet("refuse", 4, 1);
    for p in 0..4 {
        let lane = format!("INFO refuse[{p}]/c: reads again after ");
        let told = logged(&[&lane]);
        assert_eq!(told.len(), 1, "{told:?}");
    }
}

#[test]
fn too_few_replicas_refuse_messages_and_keep_positions_in_memory() {
    for persist in [Persist::AsyncBatch, Persist::SyncBatch] {
        let topic = format!("few{persist:?}");
        let server = PrivateServer::builder().tcp().aof(Aof::EverySecond);
        let server = server.start().unwrap();
        let streams = open(&server.url(), &topic, 4);
        let seen = Seen::default();
        let consumer = streams.consumer(&topic).name("c").persist(persist);
        let consumer = match persist {
            Persist::AsyncBatch => consumer.persist_interval(ms(20)),
            _ => consumer,
        };
        let publisher = streams.publisher(&topic).unwrap();
        let consumer = recording(consumer, &seen).start().unwrap();
        consumer.pause();
        let mut ids = Vec::new();
        for p in 0..4 {
            let draft = publisher.message("T", "kept").partition(p);
            ids.push(draft.publish().unwrap());
        }
        let need = |n: &str| server.command(&["CONFIG", "SET", "min-replicas-to-write", n]);
        need("1").unwrap();
        consumer.resume();
        let e = publisher.publish("k", "T", "refused").unwrap_err();
        refused(&e, ServerClass::Transient, "NOREPLICAS", true);
        let key = format!("publish on re:s:{{{topic}}}:");
        assert!(e.to_string().contains(&key), "{e}");
        seen.wait_for(4);
        let (began, before) = (Instant::now(), dials(&server));
        thread::sleep(2 * SECOND);
        let dials = dials(&server) - before - 1;
        // the lanes of a sync mode may have had to let go of their connection once
        assert!(dials <= 4 + began.elapsed().as_secs(), "{dials}");
        need("0").unwrap();
        let stored = |id: &StreamId| {
            let key = format!("re:p:{{{topic}}}:c");
            let all = server.command(&["HGETALL", &key]).unwrap();
            let text = format!("{id}|");
            all.items().iter().any(|v| v.text().starts_with(&text))
        };
        let mended = Instant::now();
        expect("all positions to be stored", || ids.iter().all(stored));
        assert!(mended.elapsed() < 5 * SECOND, "{:?}", mended.elapsed());
        consumer.drain(PATIENCE).unwrap();
        assert_eq!(seen.all(), ["kept"; 4]);
        quiet(&topic, 4, 1);
        let lines = warned(&format!("{topic}/c"));
        assert!(lines.len() <= 1, "{lines:#?}");
    }
}

#[test]
fn a_busy_or_paused_server_is_waited_for_without_a_loss() {
    let server = server();
    server
        .command(&["CONFIG", "SET", "lua-time-limit", "100"])
        .unwrap();
    let streams = open(&server.url(), "busy", 4);
    let seen = Seen::default();
    let handled = seen.clone();
    let consumer = streams.consumer("busy").name("c").block(ms(300));
    let consumer = consumer
        .read_slack(10 * SECOND)
        .read_ahead(false)
        .persist_interval(ms(20))
        .shared(move |m| {
            handled.push(String::from_utf8_lossy(m.body()).into_owned());
            // so that this lane asks for more while the server is busy
            if m.body() == b"0" {
                thread::sleep(ms(500));
            }
            Ok(())
        })
        .start()
        .unwrap();
    let publisher = streams.publisher("busy").unwrap();
    running(&consumer);
    publisher.publish("k", "T", "0").unwrap();
    seen.wait_for(1);

    let mut script = server.client().unwrap();
    let spin = "local t = redis.call('TIME') local till = t[1] * 1000 + t[2] / 1000 + 3000 \
                repeat t = redis.call('TIME') until t[1] * 1000 + t[2] / 1000 > till";
    script.send(&["EVAL", spin, "0"]).unwrap();
    let mut busy = 0;
    let mut stored = vec!["0".to_owned()];
    let began = Instant::now();
    while began.elapsed() < 4 * SECOND {
        let body = (stored.len() + busy).to_string();
        match publisher.publish("k", "T", &body) {
            Ok(_) => stored.push(body),
            Err(e) => {
                refused(&e, ServerClass::Transient, "BUSY", true);
                busy += 1;
            }
        }
        thread::sleep(ms(20));
    }
    assert!(busy > 0, "the server was never busy");
    seen.wait_for(stored.len());

    server
        .command(&["CLIENT", "PAUSE", "3000", "WRITE"])
        .unwrap();
    let began = Instant::now();
    publisher.publish("k", "T", "paused").unwrap();
    assert!(began.elapsed() > SECOND, "it was not paused");
    stored.push("paused".to_owned());
    consumer.drain(PATIENCE).unwrap();
    assert_eq!(seen.all(), stored);
    for p in consumer.partitions() {
        assert_eq!((p.failures, p.skipped, p.connects), (0, 0, 1), "{p}");
    }
    quiet("busy", 4, 1);
    let told = warned("busy[");
    assert!(told.iter().any(|l| l.contains("BUSY")), "no lane noticed");
}

#[test]
fn a_server_that_cuts_large_answers_off_is_asked_for_less() {
    let server = server();
    let limit = "normal 1048576 0 0";
    let limit = ["CONFIG", "SET", "client-output-buffer-limit", limit];
    server.command(&limit).unwrap();
    let streams = open(&server.url(), "large", 1);
    let publisher = streams.publisher("large").unwrap();
    let bodies: Vec<_> = (0..40)
        .map(|n| format!("{n}{}", "x".repeat(100_000)))
        .collect();
    for body in &bodies {
        publisher.publish("k", "T", body).unwrap();
    }
    let seen = Seen::default();
    let consumer = recording(streams.consumer("large").name("c"), &seen)
        .start()
        .unwrap();
    seen.wait_for(40);
    consumer.drain(PATIENCE).unwrap();
    assert!(seen.all() == bodies, "lost, doubled or out of order");
    let p = &consumer.partitions()[0];
    assert!(p.connects > 1, "nothing was cut off");
    quiet("large", 1, 1);
}
