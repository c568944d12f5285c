//! The buffered publisher: batches, order, what happens to what cannot be stored, and accounts that add
//! up whatever breaks.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    fs,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use streamlane::{
    testing::{Answer, Aof, Fault, PrivateServer, Relay, Reply, Way},
    *,
};

use crate::{
    publishing::{answering, entries, length},
    support::*,
};

/// More than a close may overrun its time, even here: half a second is what it promises.
const MARGIN: Duration = Duration::from_secs(3);

fn with(url: &str, topic: &str, partitions: u32, producer: ProducerSettings) -> Streams {
    Streams::open(settings(url, topic, partitions).with_producer(producer)).unwrap()
}

fn producer(topic: &str) -> ProducerSettings {
    ProducerSettings::new(topic).buffered(true)
}

fn message(body: &str) -> Outgoing<'_> {
    Outgoing::new("T", body).key("k")
}

fn bodies(server: &PrivateServer, topic: &str, partition: u32) -> Vec<String> {
    let entries = entries(server, topic, partition);
    entries.into_iter().map(|(_, f)| f[1].clone()).collect()
}

fn numbers(server: &PrivateServer, topic: &str, partition: u32) -> Vec<u64> {
    let bodies = bodies(server, topic, partition);
    bodies.iter().map(|b| b.parse().unwrap()).collect()
}

fn rises(numbers: &[u64]) -> bool {
    numbers.windows(2).all(|w| w[0] < w[1])
}

/// The numbers of a report: stored, refused, unknown, dropped, returned, queued.
fn sums(f: &Flushed) -> [u64; 6] {
    [
        f.stored, f.refused, f.unknown, f.dropped, f.returned, f.queued,
    ]
}

fn status(streams: &Streams) -> PublishStatus {
    streams.published().pop().unwrap()
}

#[test]
fn what_is_enqueued_arrives_as_it_was_given() {
    let server = server();
    let streams = with(&server.url(), "orders", 4, producer("orders"));
    let orders = streams.buffered("orders").unwrap();
    let key = "order-\u{e9}";
    let mut receipt = {
        // copied: what it was made of is gone when it is sent
        let body = b"a\0b\xff".to_vec();
        let m = Outgoing::new("OrderPlaced", &body)
            .key(key)
            .correlation_id("c-1")
            .traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
            .header("source", "web")
            .header("", "x:y");
        orders.enqueue_tracked(&m).unwrap()
    };
    let id = receipt.wait(PATIENCE).expect("settled").unwrap();
    assert_eq!(
        receipt.wait(Duration::ZERO).expect("settled").unwrap(),
        id,
        "once more"
    );
    orders
        .enqueue(&Outgoing::new("T", "p3").partition(3).key(key))
        .unwrap();
    let flushed = orders.flush(PATIENCE);
    assert_eq!(sums(&flushed), [2, 0, 0, 0, 0, 0], "{flushed:?}");
    assert!(flushed.is_clean() && flushed.into_result().is_ok());

    let direct = Streams::open(settings(&server.url(), "orders", 4)).unwrap();
    let same = direct.publisher("orders").unwrap();
    let m = same
        .message("OrderPlaced", b"a\0b\xff")
        .key(key)
        .correlation_id("c-1");
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let m = m
        .traceparent(trace)
        .header("source", "web")
        .header("", "x:y");
    let direct_id = m.publish().unwrap();
    let all: Vec<_> = (0..4).map(|p| entries(&server, "orders", p)).collect();
    let home = all
        .iter()
        .find(|e| e.iter().any(|(i, _)| *i == id.to_string()))
        .unwrap();
    let fields = |id: StreamId| &home.iter().find(|(i, _)| *i == id.to_string()).unwrap().1;
    assert_eq!(
        fields(id),
        fields(direct_id),
        "byte for byte, in the same partition"
    );
    let (_, explicit) = all[3].iter().find(|(_, f)| f[1] == "p3").unwrap();
    assert_eq!(explicit[5], key, "the key is kept");
    let status = status(&streams);
    assert_eq!((status.stored.iter().sum::<u64>(), status.queued), (2, 0));
}

#[test]
fn a_full_batch_goes_and_a_smaller_one_waits() {
    let server = server();
    let settings = producer("orders")
        .max_batch(4)
        .max_wait(Duration::from_mins(1));
    let orders = with(&server.url(), "orders", 1, settings)
        .buffered("orders")
        .unwrap();
    for n in 0..3 {
        orders.enqueue(&message(&n.to_string())).unwrap();
    }
    // the pump has taken them in hand, and still nothing is sent
    thread::sleep(Duration::from_millis(100));
    assert_eq!((length(&server, "orders", 0), orders.queued()), (0, 3));
    orders.enqueue(&message("3")).unwrap();
    expect("the batch", || length(&server, "orders", 0) == 4);
    orders.enqueue(&message("4")).unwrap();
    assert_eq!(
        sums(&orders.flush(PATIENCE)),
        [5, 0, 0, 0, 0, 0],
        "a flush waits for no others"
    );
    orders.enqueue(&message("5")).unwrap();
    let closed = orders.close(PATIENCE);
    assert!(sums(&closed.report) == [1, 0, 0, 0, 0, 0] && closed.undelivered.is_empty());
    assert_eq!(numbers(&server, "orders", 0), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn the_oldest_message_says_when_a_batch_goes() {
    let server = server();
    let settings = producer("orders").max_wait(Duration::from_millis(150));
    let orders = with(&server.url(), "orders", 1, settings)
        .buffered("orders")
        .unwrap();
    let over = AtomicBool::new(false);
    let mut receipt = orders.enqueue_tracked(&message("0")).unwrap();
    thread::scope(|s| {
        let over = Over(&over);
        s.spawn(|| {
            // a trickle that would put a timer off for ever
            while !over.0.load(Relaxed) {
                orders.enqueue(&message("1")).unwrap();
                thread::sleep(Duration::from_millis(20));
            }
        });
        let _over = Over(over.0);
        receipt.wait(PATIENCE).expect("settled").unwrap();
    });
}

#[test]
fn a_hundred_thousand_arrive_once_and_in_order() {
    let server = server();
    let settings = producer("ticks").max_queue(5000);
    let streams = with(&server.url(), "ticks", 4, settings);
    let ticks = streams.buffered("ticks").unwrap();
    thread::scope(|s| {
        for t in 0..4u64 {
            let ticks = ticks.clone();
            s.spawn(move || {
                for n in 0..25_000u64 {
                    let (key, body) = (format!("{t}-{}", n % 10), (t * 1_000_000 + n).to_string());
                    ticks
                        .enqueue(&Outgoing::new("Tick", &body).key(&key))
                        .unwrap();
                }
            });
        }
    });
    assert_eq!(sums(&ticks.flush(PATIENCE * 3)), [100_000, 0, 0, 0, 0, 0]);
    let mut by_key = BTreeMap::<String, Vec<u64>>::new();
    for p in 0..4 {
        for (_, f) in entries(&server, "ticks", p) {
            by_key
                .entry(f[5].clone())
                .or_default()
                .push(f[1].parse().unwrap());
        }
    }
    assert_eq!(by_key.len(), 40);
    assert!(by_key.values().all(|n| n.len() == 2500 && rises(n)));
    let status = status(&streams);
    assert_eq!(
        (
            status.stored.iter().sum::<u64>(),
            status.queued,
            status.dropped
        ),
        (100_000, 0, 0)
    );
}

#[test]
fn a_flush_reports_what_lies_before_it_with_its_own_error() {
    let server = server();
    let settings = producer("orders").max_wait(Duration::from_mins(1));
    // the partition count is not configured, so only the pump finds out
    let all = Settings::default()
        .connection_string(server.url())
        .with_producer(settings);
    let orders = Streams::open(all).unwrap().buffered("orders").unwrap();
    orders.enqueue(&message("a")).unwrap();
    let mut bad = orders.enqueue_tracked(&message("b").partition(7)).unwrap();
    let other = orders.clone();
    orders.enqueue(&message("c")).unwrap();
    let flushed = orders.flush(PATIENCE);
    assert_eq!(sums(&flushed), [2, 1, 0, 0, 0, 0]);
    let e = flushed.into_result().unwrap_err();
    assert_eq!(
        (e.kind(), e.outcome()),
        (ErrorKind::Argument, Outcome::NotApplied)
    );
    assert!(e.to_string().contains("partition 7 is out of range"), "{e}");
    assert_eq!(
        bad.wait(PATIENCE)
            .expect("settled")
            .unwrap_err()
            .to_string(),
        e.to_string()
    );
    orders.enqueue(&message("d")).unwrap();
    assert!(orders.flush(PATIENCE).is_clean(), "told once");
    let late = other.flush(PATIENCE);
    assert_eq!(sums(&late), [3, 1, 0, 0, 0, 0], "and once to each handle");
    assert!(late.error.is_some());
}

#[test]
fn each_policy_of_a_full_queue_is_kept_while_the_server_is_away() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    // a batch goes when it is full, so that it is known how many it holds
    let settings = |topic: &str| {
        let p = producer(topic).max_queue(200).max_batch(50);
        p.max_wait(Duration::from_hours(1))
    };
    let all = support_two(&relay.url())
        .publish_timeout(Duration::from_millis(300))
        .with_producer(settings("waits"))
        .with_producer(settings("drops").drop_oldest(true));
    let streams = Streams::open(all).unwrap();
    let (waits, drops) = (
        streams.buffered("waits").unwrap(),
        streams.buffered("drops").unwrap(),
    );
    for p in [&waits, &drops] {
        p.enqueue(&message("0")).unwrap();
        assert!(p.flush(PATIENCE).is_clean());
    }
    relay.refuse_new(true).unwrap();
    relay.reset();

    // ten times what there is room for
    let mut taken = Vec::new();
    for n in 1..=2000u64 {
        if waits.try_enqueue(&message(&n.to_string())).is_ok() {
            taken.push(n);
        }
    }
    assert!((200..=250).contains(&taken.len()), "{}", taken.len());
    expect("a full queue behind a full batch", || {
        if waits.try_enqueue(&message("9999")).is_ok() {
            taken.push(9999);
        }
        waits.queued() == 250
    });
    let timed = |f: &dyn Fn() -> Result<()>| {
        let start = Instant::now();
        let e = f().unwrap_err();
        assert_eq!(
            (e.kind(), e.outcome()),
            (ErrorKind::Full, Outcome::NotApplied),
            "{e}"
        );
        assert!(
            e.to_string().contains("200 messages") && e.is_retryable(),
            "{e}"
        );
        start.elapsed()
    };
    let took = timed(&|| waits.enqueue(&message("x")));
    assert!(
        took >= Duration::from_millis(300) && took < MARGIN,
        "{took:?}"
    );
    let took = timed(&|| waits.enqueue_timeout(&message("x"), Duration::from_millis(50)));
    assert!(
        took >= Duration::from_millis(50) && took < MARGIN,
        "{took:?}"
    );

    let before = resident();
    let mut oldest = Vec::new();
    for n in 1..=2000u64 {
        let m = message("n");
        if n <= 2 {
            oldest.push(drops.enqueue_tracked(&m).unwrap());
        } else {
            drops.enqueue(&m).unwrap();
        }
    }
    assert!(
        resident() < before + (16 << 20),
        "{before} bytes before, {} now",
        resident()
    );
    let part = drops.flush(Duration::from_millis(50));
    assert!((1700..=1800).contains(&part.dropped), "{part:?}");
    assert_eq!(part.dropped + part.queued, 2000);
    assert_eq!(part.error.unwrap().kind(), ErrorKind::Full);
    let counted = streams.published();
    assert_eq!(counted[0].dropped, part.dropped, "{counted:?}");
    assert_eq!(counted[0].queued, part.queued);

    relay.refuse_new(false).unwrap();
    assert_eq!(sums(&drops.flush(PATIENCE))[0], part.queued);
    let rest = waits.flush(PATIENCE);
    assert_eq!(
        sums(&rest),
        [taken.len() as u64, 0, 0, 0, 0, 0],
        "recovers by itself"
    );
    taken.insert(0, 0);
    assert_eq!(numbers(&server, "waits", 0), taken);
    assert_eq!(length(&server, "drops", 0).cast_unsigned(), 1 + part.queued);
    let warned = warned("buffered publisher of drops: the queue is full");
    assert_eq!(warned.len(), 1, "{warned:?}");
    each_knows(&mut oldest);
}

/// Each of these was stored, or its caller knows that it was dropped.
fn each_knows(receipts: &mut [Receipt]) {
    for e in receipts
        .iter_mut()
        .filter_map(|r| r.wait(PATIENCE).expect("settled").err())
    {
        assert!(
            e.kind() == ErrorKind::Full && e.to_string().contains("DropOldest"),
            "{e}"
        );
    }
}

fn support_two(url: &str) -> Settings {
    let topic = || TopicSettings::default().partitions(1).max_len(1_000_000);
    settings(url, "waits", 1).with_topic("drops", topic())
}

/// The memory of this process that is in use.
fn resident() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn without_a_server_flush_close_and_drop_are_over_in_time() {
    let server = server();
    let url = server.url();
    let settings = producer("alone").shutdown_timeout(Duration::from_millis(300));
    let streams = with(&url, "alone", 1, settings);
    server.kill();
    for how in ["close", "drop"] {
        let orders = streams.buffered("alone").unwrap();
        for n in 0..10_000 {
            orders.enqueue(&message(&n.to_string())).unwrap();
        }
        let mut receipt = orders.enqueue_tracked(&message("tracked")).unwrap();
        let start = Instant::now();
        let flushed = orders.flush(Duration::from_millis(300));
        let took = start.elapsed();
        assert!(
            took >= Duration::from_millis(290) && took < MARGIN,
            "{took:?}"
        );
        assert_eq!(sums(&flushed), [0, 0, 0, 0, 0, 10_001]);
        let e = flushed.into_result().unwrap_err();
        assert!(
            e.kind() == ErrorKind::Timeout && e.to_string().contains("10001"),
            "{e}"
        );
        let yet = receipt.wait(Duration::from_millis(1));
        assert!(yet.is_none(), "nothing is known yet: {yet:?}");
        let start = Instant::now();
        if how == "close" {
            let closed = orders.close(Duration::from_millis(300));
            assert_eq!(sums(&closed.report), [0, 0, 0, 0, 10_001, 0]);
            // a person is told why, and not only that there were some
            let why = closed.report.error.as_ref().expect("a reason");
            assert_eq!(why.kind(), ErrorKind::Connect, "{why}");
            let back: Vec<_> = closed
                .undelivered
                .iter()
                .map(Undelivered::message)
                .collect();
            assert_eq!(back.len(), 10_001);
            assert!((0..10_000).all(|n| back[n].body() == n.to_string().as_bytes()));
            let e = orders.enqueue(&message("late")).unwrap_err();
            assert_eq!(
                (e.kind(), e.outcome()),
                (ErrorKind::Stopped, Outcome::NotApplied)
            );
            let again = orders.close(PATIENCE);
            assert!(again.report.is_clean() && again.undelivered.is_empty());
            assert!(orders.flush(PATIENCE).is_clean());
        } else {
            drop(orders);
            let told = warned("abandoned 10001 message(s)");
            assert!(told.len() == 1 && told[0].contains("connect"), "{told:?}");
        }
        let took = start.elapsed();
        assert!(took < Duration::from_millis(300) + MARGIN, "{took:?}");
        let e = receipt.wait(PATIENCE).expect("settled").unwrap_err();
        assert_eq!(
            (e.kind(), e.outcome()),
            (ErrorKind::Stopped, Outcome::NotApplied)
        );
        assert_eq!(status(&streams).queued, 0);
        let ended = || lane_threads("alone").0 == 0;
        expect("the thread to end", ended);
    }
}

#[test]
fn a_close_cuts_a_connection_that_says_nothing() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let orders = with(&relay.url(), "orders", 1, producer("orders").max_batch(10))
        .buffered("orders")
        .unwrap();
    orders.enqueue(&message("0")).unwrap();
    assert!(orders.flush(PATIENCE).is_clean());
    relay.fault_existing(Way::Replies, Fault::BlackHole);
    for n in 1..=25 {
        orders.enqueue(&message(&n.to_string())).unwrap();
    }
    expect("the first batch", || length(&server, "orders", 0) > 1);
    let start = Instant::now();
    let closed = orders.close(Duration::from_millis(200));
    assert!(start.elapsed() < MARGIN);
    let [stored, refused, unknown, dropped, returned, queued] = sums(&closed.report);
    assert_eq!((stored, refused, dropped, queued), (0, 0, 0, 0));
    assert_eq!(unknown + returned, 25);
    assert_eq!(unknown + 1, length(&server, "orders", 0).cast_unsigned());
    assert_eq!(returned, closed.undelivered.len() as u64);
    let first = closed.undelivered[0].message().body().to_vec();
    assert_eq!(
        first,
        (unknown + 1).to_string().as_bytes(),
        "what was never sent"
    );
}

#[test]
fn lost_answers_are_unknown_and_nothing_is_sent_twice() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let orders = with(&relay.url(), "orders", 1, producer("orders"))
        .buffered("orders")
        .unwrap();
    orders.enqueue(&message("0")).unwrap();
    assert!(orders.flush(PATIENCE).is_clean());
    relay.fault_existing(Way::Replies, Fault::Swallow);
    let mut receipts: Vec<_> = (1..=20)
        .map(|n: u32| orders.enqueue_tracked(&message(&n.to_string())).unwrap())
        .collect();
    expect("the batch to be stored", || {
        length(&server, "orders", 0) > 1
    });
    relay.close();
    orders.enqueue(&message("21")).unwrap();
    let flushed = orders.flush(PATIENCE);
    assert_eq!(flushed.stored + flushed.unknown, 21, "{flushed:?}");
    assert!(flushed.unknown > 0 && flushed.stored > 0);
    assert_eq!(flushed.error.unwrap().outcome(), Outcome::Unknown);
    let unknown = receipts
        .iter_mut()
        .filter_map(|r| r.wait(PATIENCE).expect("settled").err());
    assert!(unknown.count() as u64 == flushed.unknown);
    let numbers = numbers(&server, "orders", 0);
    assert!(
        rises(&numbers) && numbers.last() == Some(&21),
        "{numbers:?}"
    );
}

#[test]
fn what_is_refused_for_now_is_stored_later_in_its_order() {
    let server = server();
    let streams = with(&server.url(), "later", 2, producer("later").max_batch(10));
    let orders = streams.buffered("later").unwrap();
    orders.enqueue(&message("0")).unwrap();
    assert!(orders.flush(PATIENCE).is_clean());
    let memory = |bytes: &str| {
        server
            .command(&["CONFIG", "SET", "maxmemory", bytes])
            .unwrap();
    };
    memory("1");
    for n in 1..=100 {
        let body = n.to_string();
        let m = Outgoing::new("T", &body).partition(n % 2);
        orders.enqueue(&m).unwrap();
    }
    let waiting = orders.flush(Duration::from_millis(200));
    assert_eq!(sums(&waiting), [0, 0, 0, 0, 0, 100], "{waiting:?}");
    memory("0");
    assert_eq!(sums(&orders.flush(PATIENCE)), [100, 0, 0, 0, 0, 0]);
    let all: Vec<_> = (0..2)
        .flat_map(|p| {
            let numbers = numbers(&server, "later", p);
            assert!(rises(&numbers), "{numbers:?}");
            numbers
        })
        .collect();
    assert_eq!(all.len(), 101);
    assert_eq!(
        warned("buffered publisher of later: publish on re:s:{later}").len(),
        1
    );
}

#[test]
fn a_message_is_tried_again_before_its_successors_or_not_at_all() {
    // refuses the first try of every third message
    let mut n = 0u64;
    let stub = answering(move |args| {
        let body = args
            .iter()
            .position(|a| a == b"b")
            .map(|i| args[i + 1].clone())
            .unwrap();
        let body: u64 = String::from_utf8(body).unwrap().parse().unwrap();
        n += 1;
        if body % 3 == 2 && !n.is_multiple_of(5) {
            return Answer::Reply(Reply::Error("OOM command not allowed".into()));
        }
        Answer::Reply(Reply::bulk(format!("{n}-{body}")))
    });
    let orders = with(&stub.url(), "orders", 1, producer("orders").max_batch(7))
        .buffered("orders")
        .unwrap();
    let mut receipts: Vec<_> = (0..60)
        .map(|n: u32| orders.enqueue_tracked(&message(&n.to_string())).unwrap())
        .collect();
    let flushed = orders.flush(PATIENCE);
    assert_eq!(flushed.stored + flushed.refused, 60, "{flushed:?}");
    assert!(flushed.refused > 0 && flushed.stored >= 40);
    let ids: Vec<_> = receipts
        .iter_mut()
        .filter_map(|r| r.wait(PATIENCE).expect("settled").ok())
        .collect();
    assert_eq!(ids.len() as u64, flushed.stored);
    assert!(
        ids.windows(2).all(|w| w[0] < w[1]),
        "in the order of the queue: {ids:?}"
    );
    let mut refused = receipts
        .iter_mut()
        .filter_map(|r| r.wait(PATIENCE).expect("settled").err());
    assert!(refused.all(|e| {
        e.outcome() == Outcome::NotApplied && e.to_string().contains("a later message")
    }));
}

#[test]
fn retrying_ends_when_the_message_is_old_enough() {
    let server = server();
    let settings = producer("orders").retry_for(Duration::from_millis(100));
    let orders = with(&server.url(), "orders", 1, settings)
        .buffered("orders")
        .unwrap();
    server
        .command(&["CONFIG", "SET", "maxmemory", "1"])
        .unwrap();
    for n in 0..10 {
        orders.enqueue(&message(&n.to_string())).unwrap();
    }
    let flushed = orders.flush(PATIENCE);
    assert_eq!(sums(&flushed), [0, 10, 0, 0, 0, 0], "{flushed:?}");
    assert_eq!(flushed.error.unwrap().server_code(), Some("OOM"));
}

#[test]
fn a_message_too_large_for_the_server_fails_alone() {
    let server = server();
    let set = ["CONFIG", "SET", "proto-max-bulk-len", "1mb"];
    server.command(&set).unwrap();
    let streams = with(&server.url(), "orders", 1, producer("orders"));
    let orders = streams.buffered("orders").unwrap();
    let large = "x".repeat(3 << 20);
    let mut all = Vec::new();
    for n in 0..30 {
        let body = n.to_string();
        let m = message(if n == 15 { &large } else { &body });
        all.push(orders.enqueue_tracked(&m).unwrap());
    }
    let flushed = orders.flush(PATIENCE);
    assert_eq!(sums(&flushed), [29, 1, 0, 0, 0, 0], "{flushed:?}");
    let e = all[15].wait(PATIENCE).expect("settled").unwrap_err();
    assert_eq!(e.outcome(), Outcome::NotApplied, "{e}");
    let numbers = numbers(&server, "orders", 0);
    assert!(numbers.len() == 29 && rises(&numbers));
    let too_large = "x".repeat((64 << 20) + 1);
    let e = orders.enqueue(&message(&too_large)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::TooLarge);
    let e = orders.enqueue(&Outgoing::new("", "B")).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Argument);
}

#[test]
fn a_server_killed_amid_the_stream_costs_only_what_is_reported() {
    listen_to_the_log();
    // It keeps what it has answered for.
    let builder = PrivateServer::builder().tcp().aof(Aof::Always);
    let server = builder.start().unwrap();
    let settings = producer("ticks")
        .max_batch(100)
        .max_queue(2000)
        .max_wait(Duration::ZERO);
    let streams = with(&server.tcp_url(), "ticks", 2, settings);
    let ticks = streams.buffered("ticks").unwrap();
    let (enqueued, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut receipts = thread::scope(|s| {
        let writer = s.spawn(|| {
            let mut receipts = Vec::new();
            while !over.load(Relaxed) {
                let n = enqueued.load(Relaxed);
                let body = n.to_string();
                let m = Outgoing::new("Tick", &body).partition((n % 2) as u32);
                receipts.push(ticks.enqueue_tracked(&m).unwrap());
                enqueued.fetch_add(1, Relaxed);
            }
            receipts
        });
        let more = || {
            let start = enqueued.load(Relaxed);
            expect("more messages", || enqueued.load(Relaxed) > start + 3000);
        };
        let over = Over(&over);
        for _ in 0..3 {
            more();
            server.kill();
            server.restart().unwrap();
        }
        more();
        drop(over);
        writer.join().unwrap()
    });
    let flushed = ticks.flush(PATIENCE);
    let [stored, refused, unknown, dropped, returned, queued] = sums(&flushed);
    assert_eq!(
        (refused, dropped, returned, queued),
        (0, 0, 0, 0),
        "{flushed:?}"
    );
    assert_eq!(stored + unknown, enqueued.load(Relaxed), "{flushed:?}");
    assert!(unknown <= 3 * 100, "at most a batch each time: {flushed:?}");

    let told: Vec<_> = receipts
        .iter_mut()
        .map(|r| r.wait(PATIENCE).expect("settled"))
        .collect();
    assert_eq!(told.iter().filter(|r| r.is_ok()).count() as u64, stored);
    let mut kept = BTreeMap::new();
    for p in 0..2 {
        let all = entries(&server, "ticks", p);
        let entry = |(id, f): (String, Vec<String>)| (f[1].parse::<u64>().unwrap(), id);
        let all: Vec<_> = all.into_iter().map(entry).collect();
        assert!(
            all.windows(2).all(|w| w[0].0 < w[1].0),
            "partition {p}: once, in order"
        );
        kept.extend(all);
    }
    for (n, told) in told.iter().enumerate() {
        match (told, kept.get(&(n as u64))) {
            (Ok(id), Some(there)) => assert_eq!(&id.to_string(), there),
            (Ok(id), None) => panic!("{n} was stored as {id}, and is not there"),
            (Err(e), _) => assert_eq!(e.outcome(), Outcome::Unknown),
        }
    }
}

#[test]
fn one_topic_has_one_queue_and_closing_makes_way_for_the_next() {
    let server = server();
    let streams = with(
        &server.url(),
        "solo",
        1,
        producer("solo").max_wait(Duration::ZERO),
    );
    let (a, b) = (
        streams.buffered("solo").unwrap(),
        streams.buffered("solo").unwrap(),
    );
    a.enqueue(&message("0")).unwrap();
    b.enqueue(&message("1")).unwrap();
    assert!(a.flush(PATIENCE).is_clean());
    assert_eq!(connections(&server, "streams-pump").len(), 1);
    assert_eq!(lane_threads("solo").0, 1);
    drop(a);
    b.enqueue(&message("2")).unwrap();
    assert!(b.close(PATIENCE).report.is_clean());
    let c = streams.buffered("solo").unwrap();
    c.enqueue(&message("3")).unwrap();
    drop(c);
    assert_eq!(
        numbers(&server, "solo", 0),
        [0, 1, 2, 3],
        "a drop stores what waits"
    );
    expect("nothing to stay behind", || {
        connections(&server, "streams-pump").is_empty() && lane_threads("solo").0 == 0
    });
}

#[test]
fn what_waits_can_be_taken_back_and_enqueued_again() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let streams = with(&relay.url(), "orders", 4, producer("orders").max_batch(3));
    let orders = streams.buffered("orders").unwrap();
    relay.refuse_new(true).unwrap();
    relay.reset();
    for n in 0..10 {
        let body = n.to_string();
        let m = Outgoing::new("T", &body)
            .key("k")
            .header("n", &body)
            .correlation_id("c");
        orders.enqueue(&m).unwrap();
    }
    expect("a batch in hand", || {
        orders.flush(Duration::from_millis(1)).queued == 10
    });
    let mut back = Vec::new();
    // as much as the pump has not in hand
    back.extend(orders.reclaim());
    assert!((7..=10).contains(&back.len()), "{}", back.len());
    assert!(format!("{:?}", back[0]).contains("body_len: 1"));
    let report = orders.flush(Duration::from_millis(1));
    assert_eq!(report.returned, back.len() as u64);
    assert_eq!(report.queued, 10 - report.returned);
    relay.refuse_new(false).unwrap();
    for m in &back {
        orders.enqueue(&m.message()).unwrap();
    }
    assert_eq!(sums(&orders.flush(PATIENCE)), [10, 0, 0, 0, 0, 0]);
    let all: Vec<_> = (0..4).flat_map(|p| entries(&server, "orders", p)).collect();
    assert_eq!(all.len(), 10);
    assert!(all.iter().enumerate().all(|(n, (_, f))| {
        f[1] == n.to_string() && f[7] == "c" && f[9] == format!("1:n1:{n}")
    }));
}

#[test]
fn what_waits_says_why_and_what_was_given_back_is_no_success() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let all = settings(&relay.url(), "orders", 1).with_producer(producer("orders"));
    let streams = Streams::open(all.publish_timeout(Duration::from_millis(100))).unwrap();
    relay.refuse_new(true).unwrap();
    relay.reset();
    let orders = streams.buffered("orders").unwrap();
    let other = orders.clone();
    orders.enqueue(&message("0")).unwrap();
    let mut said = String::new();
    expect("the reason", || {
        let e = orders
            .flush(Duration::from_millis(10))
            .into_result()
            .unwrap_err();
        assert_eq!(
            (e.kind(), e.is_retryable()),
            (ErrorKind::Timeout, true),
            "{e}"
        );
        said = e.to_string();
        said.contains(&relay.addr().to_string())
    });
    assert!(said.contains("1 message(s) wait still"), "{said}");
    let closed = orders.close(Duration::ZERO);
    assert_eq!((closed.report.returned, closed.undelivered.len()), (1, 1));
    for report in [closed.report, other.flush(PATIENCE)] {
        assert!(!report.is_clean());
        let e = report.into_result().unwrap_err();
        assert_eq!(
            (e.kind(), e.is_retryable()),
            (ErrorKind::Stopped, false),
            "{e}"
        );
    }
    let status = status(&streams);
    assert_eq!((status.returned, status.queued), (1, 0), "{status:?}");
}

#[test]
fn a_login_that_is_refused_for_a_while_costs_no_message() {
    let server = server();
    let user = |words: &[&str]| server.command(&[&["ACL", "SETUSER", "app"], words].concat());
    user(&["on", ">old", "~*", "&*", "+@all"]).unwrap();
    let url = server.url().replacen("://", "://app:old@", 1);
    let all = settings(&url, "orders", 1).with_producer(producer("orders").max_batch(10));
    let streams = Streams::open(all).unwrap();
    let orders = streams.buffered("orders").unwrap();
    orders.enqueue(&message("0")).unwrap();
    assert!(orders.flush(PATIENCE).is_clean());
    user(&["resetpass", ">new"]).unwrap();
    server.command(&["CLIENT", "KILL", "USER", "app"]).unwrap();
    for n in 1..100 {
        orders.enqueue(&message(&n.to_string())).unwrap();
    }
    let mut e = None;
    expect("the refusal", || {
        let flushed = orders.flush(Duration::from_millis(10));
        assert_eq!(sums(&flushed), [0, 0, 0, 0, 0, 99], "{flushed:?}");
        e = flushed.error;
        e.is_some()
    });
    let e = e.unwrap();
    assert_eq!(e.server_class(), Some(ServerClass::Auth), "{e}");
    assert!(!e.to_string().contains("old"), "{e}");
    user(&["resetpass", ">old"]).unwrap();
    assert_eq!(sums(&orders.flush(PATIENCE)), [99, 0, 0, 0, 0, 0]);
    let all = numbers(&server, "orders", 0);
    assert!(all.len() == 100 && rises(&all));
}

#[test]
fn a_log_may_be_published_by_way_of_the_queue_it_tells_of() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let settings = producer("lines")
        .max_queue(10)
        .max_batch(2)
        .drop_oldest(true);
    let all = support_two(&relay.url()).publish_timeout(Duration::from_millis(100));
    let streams = Streams::open(all.with_producer(settings)).unwrap();
    relay.refuse_new(true).unwrap();
    relay.reset();
    let lines = streams.buffered("lines").unwrap();
    let (log, told) = (lines.clone(), std::sync::Arc::new(AtomicU64::new(0)));
    let counter = told.clone();
    on_log(move |line| {
        if line.contains("buffered publisher of lines") {
            for _ in 0..10 {
                // it makes room by dropping the oldest; a closed one takes none
                let _ = log.enqueue(&message(line));
            }
            counter.fetch_add(u64::from(line.contains("trying again")), Relaxed);
        }
    });
    for n in 0..20 {
        lines.enqueue(&message(&n.to_string())).unwrap();
    }
    expect("the server to be missed", || told.load(Relaxed) > 0);
    relay.refuse_new(false).unwrap();
    assert_eq!(lines.flush(PATIENCE).queued, 0);
    assert_eq!(lines.close(PATIENCE).report.queued, 0);
}

#[test]
fn whoever_enqueues_while_it_closes_is_told_what_became_of_it() {
    let server = server();
    for round in 0..8 {
        let settings = producer("orders").max_queue(20).max_batch(7);
        let streams = with(
            &server.url(),
            "orders",
            2,
            settings.drop_oldest(round % 2 == 0),
        );
        let orders = streams.buffered("orders").unwrap();
        let (watch, taken) = (orders.clone(), AtomicU64::new(0));
        let undelivered = thread::scope(|s| {
            for _ in 0..4 {
                let (orders, taken) = (orders.clone(), &taken);
                s.spawn(move || {
                    let e = loop {
                        match orders.enqueue(&message("b")) {
                            Ok(()) => taken.fetch_add(1, Relaxed),
                            Err(e) => break e,
                        };
                    };
                    assert_eq!(e.kind(), ErrorKind::Stopped, "{e}");
                });
            }
            expect("messages", || taken.load(Relaxed) > 500);
            orders.close(Duration::ZERO).undelivered.len() as u64
        });
        let report = watch.flush(PATIENCE);
        let [stored, refused, unknown, dropped, returned, queued] = sums(&report);
        assert_eq!((refused, queued), (0, 0), "{report:?}");
        assert_eq!(
            stored + unknown + dropped + returned,
            taken.load(Relaxed),
            "{report:?}"
        );
        assert_eq!(
            returned, undelivered,
            "all of them were given to who closed it"
        );
        let again = orders.close(PATIENCE).undelivered;
        assert!(again.is_empty(), "nothing was taken afterwards");
        let status = status(&streams);
        assert_eq!(
            (status.queued, status.returned, status.dropped),
            (0, returned, dropped)
        );
    }
}

#[test]
fn settings_and_code_that_disagree_are_refused_by_both_names() {
    let server = server();
    let file = format!(
        r#"{{"Streams": {{"ConnectionString": "{}", "Producers": [
            {{"Topic": "waits", "Buffered": true, "MaxBatch": 3}},
            {{"Topic": "direct", "Buffered": false}}, {{"Topic": "open"}}]}}}}"#,
        server.tcp_url()
    );
    let streams = Streams::open(Settings::from_json(&file).unwrap()).unwrap();
    for (e, call) in [
        (
            streams.publisher("waits").unwrap_err(),
            "streams.publisher(\"waits\")",
        ),
        (
            streams.buffered("direct").unwrap_err(),
            "streams.buffered(\"direct\")",
        ),
    ] {
        assert_eq!(e.kind(), ErrorKind::Config);
        assert!(
            e.to_string().contains(call) && e.to_string().contains(":Buffered is "),
            "{e}"
        );
    }
    assert!(streams.buffered("waits").is_ok() && streams.publisher("direct").is_ok());
    for topic in ["open", "unsaid"] {
        assert!(streams.buffered(topic).is_ok() && streams.publisher(topic).is_ok());
    }
}
