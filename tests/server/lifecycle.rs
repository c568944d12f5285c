//! Stopping, pausing, draining, and what handlers may do meanwhile.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used
)]

use std::{
    env, fs,
    process::Command,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use streamlane::{testing::PrivateServer, *};

use crate::support::*;

/// So long does a read wait in the server here, and whatever waited for one would show.
pub(crate) const BLOCK: Duration = Duration::from_secs(30);
/// Far less than that, and time enough for a machine that is busy with other things.
const AT_ONCE: Duration = Duration::from_secs(5);

#[track_caller]
pub(crate) fn at_once<T>(what: &str, f: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = f();
    assert!(
        start.elapsed() < AT_ONCE,
        "{what} took {:?}",
        start.elapsed()
    );
    result
}

pub(crate) fn idle(server: &PrivateServer, topic: &str) -> (Streams, Consumer, Seen<String>) {
    let streams = open(&server.url(), topic, 2);
    let seen = Seen::default();
    let consumer = recording(streams.consumer(topic).name("c").block(BLOCK), &seen);
    let consumer = consumer.start().unwrap();
    (streams, consumer, seen)
}

#[track_caller]
pub(crate) fn ended(consumer: &Consumer) {
    expect("every lane to end", || {
        consumer
            .partitions()
            .iter()
            .all(|p| p.state == LaneState::Stopped)
    });
}

#[test]
fn stopping_is_prompt_however_it_is_asked_for() {
    let server = server();
    let (_streams, consumer, _) = idle(&server, "twice");
    let first = at_once("the first stop", || consumer.stop());
    let second = at_once("the second", || consumer.stop());
    assert_eq!(first, second);
    assert!(first.still_running.is_empty() && first.unsaved.is_empty());

    let (_streams, consumer, _) = idle(&server, "threads");
    at_once("stopping from two threads", || {
        thread::scope(|s| {
            let other = s.spawn(|| consumer.stop());
            assert_eq!(consumer.stop(), other.join().unwrap());
        });
    });

    let (_streams, consumer, _) = idle(&server, "dropped");
    at_once("dropping", || drop(consumer));

    let (streams, consumer, _) = idle(&server, "all");
    let waiting = streams.clone();
    let waits = thread::spawn(move || waiting.wait());
    at_once("stopping all", || streams.stop());
    at_once("waiting for the stop", || waits.join().unwrap().unwrap());
    ended(&consumer);

    let (_streams, consumer, seen) = idle(&server, "paused");
    consumer.pause();
    let streams = open(&server.url(), "paused", 2);
    publish(&streams, "paused", 0..10);
    at_once("stopping while paused", || consumer.stop());
    assert!(seen.all().is_empty());
}

#[test]
fn nothing_is_handled_after_stop_has_returned() {
    let server = server();
    let streams = open(&server.url(), "after", 4);
    let over = AtomicBool::new(false);
    thread::scope(|s| {
        s.spawn(|| {
            let publisher = streams.publisher("after").unwrap();
            let mut n = 0;
            while !over.load(SeqCst) {
                n += 1;
                publisher.publish(n.to_string(), "T", "x").unwrap();
            }
        });
        for round in 0..5 {
            let seen = Seen::default();
            let consumer = recording(streams.consumer("after").name("c"), &seen)
                .start()
                .unwrap();
            seen.wait_for(50);
            let stopped = consumer.stop();
            let handled = seen.len();
            // time for a stray call: what was published by now is handled by another consumer
            let other = streams.consumer("after").name(format!("other{round}"));
            let others = Seen::default();
            let other = recording(other.start_from(StartFrom::Now), &others)
                .start()
                .unwrap();
            others.wait_for(20);
            drop(other);
            assert_eq!(seen.len(), handled);
            for p in 0..4 {
                assert_eq!(
                    stored(&server, "after", "c", p),
                    Some(stopped.positions[p as usize])
                );
            }
        }
        over.store(true, SeqCst);
    });
    assert_eq!(
        ["after[", "after/c"].map(warned).concat(),
        [""; 0],
        "a stop is nothing to complain about"
    );
}

/// A place for a consumer that its own handler can reach.
type Own = Arc<OnceLock<Consumer>>;

#[test]
fn a_handler_may_stop_its_own_consumer() {
    let server = server();
    for (topic, batches) in [("own-m", false), ("own-b", true)] {
        let streams = open(&server.url(), topic, 1);
        let ids = publish_to(&streams, topic, 0, &["0", "1", "2"]);
        let (own, seen) = (Own::default(), Seen::default());
        let (me, record) = (Arc::clone(&own), seen.clone());
        let handle = move |m: &Message<'_>| {
            expect("the consumer to be there", || me.get().is_some());
            record.push(String::from_utf8_lossy(m.body()).into_owned());
            if m.body() == b"1" {
                me.get().unwrap().stop();
                assert!(m.is_cancelled());
            }
        };
        let builder = streams.consumer(topic).name("c").block(BLOCK);
        let consumer = if batches {
            builder.shared_batches(move |batch| {
                batch.each(|m| {
                    handle(m);
                    Ok(())
                })
            })
        } else {
            builder.shared(move |m| {
                handle(m);
                Ok(())
            })
        };
        own.set(consumer.start().unwrap()).unwrap();
        let consumer = own.get().unwrap();
        ended(consumer);
        assert_eq!(
            at_once("the stop outside", || consumer.stop()).positions,
            [ids[1]]
        );
        assert_eq!(seen.all(), ["0", "1"]);
        assert_eq!(stored(&server, topic, "c", 0), Some(ids[1]));
    }
}

#[test]
fn a_handler_may_hold_the_last_handle_of_its_consumer() {
    let server = server();
    let streams = open(&server.url(), "last", 1);
    publish_to(&streams, "last", 0, &["0"]);
    let (own, seen) = (Own::default(), Seen::default());
    let (me, record) = (Arc::clone(&own), seen.clone());
    let consumer = streams
        .consumer("last")
        .name("c")
        .block(BLOCK)
        .shared(move |_| {
            expect("the consumer to be there", || me.get().is_some());
            record.push(());
            Ok(())
        });
    own.set(consumer.start().unwrap()).unwrap();
    seen.wait_for(1);
    drop(own);
    at_once("stopping all", || streams.stop());
    expect("the name to be free", || {
        recording(streams.consumer("last").name("c"), &Seen::default())
            .start()
            .is_ok()
    });
}

#[test]
fn a_handler_may_publish_ask_and_stop_others() {
    let server = server();
    let streams = open(&server.url(), "chatty", 1);
    let other = recording(streams.consumer("chatty").name("other"), &Seen::default());
    let other = Arc::new(other.start().unwrap());
    let seen = Seen::default();
    let (all, record, stopped) = (streams.clone(), seen.clone(), Arc::clone(&other));
    let publisher = streams.publisher("chatty").unwrap();
    let consumer = streams.consumer("chatty").name("c").block(BLOCK);
    let consumer = consumer.shared(move |m| {
        let n: u32 = std::str::from_utf8(m.body())?.parse()?;
        if n < 5 {
            publisher.publish("k", "T", (n + 1).to_string())?;
        }
        assert_eq!(all.health().status, Status::Healthy);
        assert_eq!(all.partitions().len(), 2);
        let third = all.consumer("chatty").name("third");
        let third = recording(third, &Seen::default()).start()?;
        third.drain(PATIENCE)?;
        stopped.stop();
        record.push(n);
        Ok(())
    });
    let consumer = consumer.start().unwrap();
    streams
        .publisher("chatty")
        .unwrap()
        .publish("k", "T", "3")
        .unwrap();
    assert_eq!(seen.wait_for(3), [3, 4, 5]);
    ended(&other);
    consumer.drain(PATIENCE).unwrap();
}

#[test]
fn stopping_waits_for_a_frozen_server_no_longer_than_it_is_told() {
    let server = server();
    let timeout = Duration::from_secs(2);
    for (topic, persist) in [
        ("frozen", Persist::AsyncBatch),
        ("frozen-sync", Persist::SyncMessage),
    ] {
        let streams = open(&server.url(), topic, 2);
        let seen = Seen::default();
        let mut consumer = streams
            .consumer(topic)
            .name("c")
            .persist(persist)
            .block(BLOCK);
        if persist == Persist::AsyncBatch {
            consumer = consumer.persist_interval(Duration::from_hours(1));
        }
        let consumer = recording(consumer.shutdown_timeout(timeout), &seen);
        let consumer = consumer.start().unwrap();
        publish(&streams, topic, 0..3);
        seen.wait_for(3);
        expect("them to be finished", || {
            let status = consumer.partitions();
            status.iter().map(|p| p.handled).sum::<u64>() == 3
        });
        server.pause().unwrap();
        let start = Instant::now();
        let stopped = consumer.stop();
        let took = start.elapsed();
        server.resume().unwrap();
        assert!(
            took <= timeout + Duration::from_secs(1),
            "{topic}: {took:?}"
        );
        assert!(stopped.still_running.is_empty());
        if persist == Persist::AsyncBatch {
            assert_eq!(
                stopped.unsaved.len(),
                1,
                "the partition that moved is named"
            );
        }
    }
}

/// Lanes of a server that is gone wait for their next try, those of one that hangs for an answer to
/// their greeting.
#[test]
fn stopping_ends_the_wait_for_a_server_that_is_away() {
    let server = server();
    for (topic, hangs) in [("away-hangs", true), ("away-gone", false)] {
        let streams = open(&server.url(), topic, 3);
        let short = Duration::from_millis(200);
        let consumer = streams.consumer(topic).name("c").read_slack(short);
        let consumer = recording(consumer.block(short), &Seen::default());
        let consumer = consumer.start().unwrap();
        running(&consumer);
        if hangs {
            server.pause().unwrap();
        } else {
            server.kill();
        }
        expect("the lanes to notice", || {
            let all = consumer.partitions();
            all.iter().all(|p| p.state == LaneState::Disconnected)
        });
        let start = Instant::now();
        let stopped = consumer.stop();
        let took = start.elapsed();
        if hangs {
            server.resume().unwrap();
        }
        assert!(took < Duration::from_secs(1), "{topic}: {took:?}");
        assert!(stopped.still_running.is_empty() && stopped.unsaved.is_empty());
        ended(&consumer);
    }
}

#[test]
fn stopping_ends_the_wait_of_a_blocked_partition() {
    let server = server();
    let streams = open(&server.url(), "blocked-stop", 1);
    publish_to(&streams, "blocked-stop", 0, &["x"]);
    let attempts = Seen::default();
    let record = attempts.clone();
    let consumer = streams
        .consumer("blocked-stop")
        .name("c")
        .shared(move |m| {
            record.push(m.attempt());
            Err("not yet").or_block()
        })
        .start()
        .unwrap();
    attempts.wait_for(3); // the next comes after 4 s
    let start = Instant::now();
    let stopped = consumer.stop();
    assert!(
        start.elapsed() < Duration::from_secs(3),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(stopped.positions, [StreamId::MIN]);
    assert_eq!(attempts.len(), 3);
}

#[test]
fn a_stuck_handler_is_left_behind_and_named() {
    let server = server();
    let streams = open(&server.url(), "stuck", 2);
    publish_to(&streams, "stuck", 1, &["x"]);
    let (hold, held) = mpsc::channel::<()>();
    let (held, entered) = (Mutex::new(held), Seen::default());
    let enter = entered.clone();
    let consumer = streams
        .consumer("stuck")
        .name("c")
        .shutdown_timeout(Duration::from_secs(1))
        .shared(move |_| {
            enter.push(());
            let _ = held.lock().unwrap().recv();
            Ok(())
        })
        .start()
        .unwrap();
    entered.wait_for(1);
    let stopped = at_once("stopping", || consumer.stop());
    assert_eq!(stopped.still_running, [1]);
    assert!(!logged(&["WARN stuck/c", "lane1-stuck"]).is_empty());
    drop(hold);
    ended(&consumer);
    assert!(consumer.stop().still_running.is_empty());
}

#[test]
fn a_paused_consumer_holds_and_a_paused_partition_holds_alone() {
    let server = server();
    let (streams, consumer, seen) = idle(&server, "pauses");
    running(&consumer);
    assert!(consumer.pause_partition(0) && !consumer.pause_partition(2));
    publish_to(&streams, "pauses", 0, &["a"]);
    publish_to(&streams, "pauses", 1, &["b"]);
    seen.wait_for(1);
    expect("it to be paused", || {
        consumer.partitions()[0].state == LaneState::Paused
    });
    assert_eq!(seen.all(), ["b"]);
    assert_eq!(consumer.position(0).unwrap().id, StreamId::MIN);
    assert_eq!(
        streams.health().status,
        Status::Healthy,
        "somebody wanted it so"
    );
    assert!(consumer.resume_partition(0) && !consumer.resume_partition(2));
    assert_eq!(seen.wait_for(2), ["b", "a"]);
    running(&consumer);

    consumer.pause();
    publish_to(&streams, "pauses", 0, &["c"]);
    publish_to(&streams, "pauses", 1, &["c"]);
    expect("both to be paused", || {
        consumer
            .partitions()
            .iter()
            .all(|p| p.state == LaneState::Paused)
    });
    assert_eq!(seen.len(), 2);
    consumer.resume();
    seen.wait_for(4);
}

/// The names of this process's threads.
pub(crate) fn threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    tasks
        .filter_map(|t| fs::read_to_string(t.ok()?.path().join("comm")).ok())
        .map(|name| name.trim().to_owned())
        .collect()
}

/// In a process of its own, where all threads and descriptors are this test's.
#[test]
fn nothing_is_left_of_a_consumer_that_stopped() {
    const CHILD: &str = "STREAMLANE_TEST_CHILD";
    if env::var_os(CHILD).is_none() {
        let name = "lifecycle::nothing_is_left_of_a_consumer_that_stopped";
        let mut child = Command::new(env::current_exe().unwrap());
        let output = child.args(["--exact", name, "--nocapture"]).env(CHILD, "1");
        let output = output.output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && told.contains("1 passed"),
            "{output:?}"
        );
        return;
    }
    let server = server();
    let settings = settings(&server.url(), "leftovers", 4);
    let streams = Streams::open(settings.topic_refresh(Duration::from_millis(10))).unwrap();
    let cycle = || {
        let seen = Seen::default();
        let consumer = recording(streams.consumer("leftovers").name("c"), &seen);
        let consumer = consumer.start().unwrap();
        publish(&streams, "leftovers", 0..3);
        seen.wait_for(3);
        running(&consumer);
        assert_eq!(threads().iter().filter(|t| *t == "positions").count(), 1);
        consumer.stop();
    };
    let descriptors = || fs::read_dir("/proc/self/fd").unwrap().count();
    let sorted = || {
        let mut all = threads();
        all.sort();
        all
    };
    cycle(); // threads that the process keeps, such as the one that resolves names, are there now
    expect(
        "what stays to be there: who watches topics, who moves delayed messages",
        || {
            ["streams-topics", "streams-delays"]
                .iter()
                .all(|name| !connections(&server, name).is_empty())
        },
    );
    // The kernel lists a thread for a moment after it was joined.
    let ours = |t: &String| t.starts_with("lane") || t == "positions";
    expect("the consumer's threads to be gone", || {
        !threads().iter().any(ours)
    });
    let before = (sorted(), descriptors());
    for _ in 0..5 {
        cycle();
        expect("threads and descriptors to be as before", || {
            (sorted(), descriptors()) == before
        });
    }
}
