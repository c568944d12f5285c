//! What a failure does: every policy and action of the error contract.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used
)]

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use streamlane::{testing::PrivateServer, *};

use crate::support::*;

/// An error type of a user's.
#[derive(Debug)]
pub(crate) struct LedgerDown;

impl fmt::Display for LedgerDown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the ledger is down")
    }
}

impl std::error::Error for LedgerDown {}

pub(crate) fn text(m: &Message<'_>) -> String {
    String::from_utf8_lossy(m.body()).into_owned()
}

/// A server, and a topic of one partition with the bodies `0..n`.
pub(crate) fn topic_of(topic: &str, n: u32) -> (PrivateServer, Streams, Vec<StreamId>) {
    let server = server();
    let streams = open(&server.url(), topic, 1);
    let bodies: Vec<String> = (0..n).map(|n| n.to_string()).collect();
    let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
    let ids = publish_to(&streams, topic, 0, &bodies);
    (server, streams, ids)
}

#[track_caller]
pub(crate) fn becomes(consumer: &Consumer, partition: usize, state: LaneState) -> PartitionStatus {
    expect(&format!("partition {partition} to be {state:?}"), || {
        consumer.partitions()[partition].state == state
    });
    consumer.partitions().swap_remove(partition)
}

#[test]
fn best_effort_steps_over_the_failing_message_alone() {
    let (_server, streams, ids) = topic_of("skips", 10);
    let seen = Seen::default();
    let calls = seen.clone();
    let consumer = streams
        .consumer("skips")
        .name("c")
        .shared(move |m| {
            calls.push(format!("{} {}", text(m), m.attempt()));
            match &*text(m) {
                "3" => Err(LedgerDown)?,
                "7" => Err("an explicit skip".into()),
                _ => Ok(()),
            }
        })
        .start()
        .unwrap();
    let stopped = consumer.drain(PATIENCE).unwrap();
    let once: Vec<String> = (0..10).map(|n| format!("{n} 1")).collect();
    assert_eq!(seen.all(), once);
    assert_eq!(stopped.positions, [ids[9]]);
    let status = &consumer.partitions()[0];
    assert_eq!((status.handled, status.skipped, status.failures), (8, 2, 2));
}

#[test]
fn a_stopped_partition_stays_before_its_message_while_the_others_go_on() {
    type Fails = fn() -> Failure;
    let asked: Fails = || Err::<(), _>(LedgerDown).or_stop().unwrap_err();
    let ordinary: Fails = || LedgerDown.into();
    let server = server();
    for (topic, policy, fails, why) in [
        (
            "stopping",
            OnError::StopPartition,
            ordinary,
            "OnError StopPartition",
        ),
        ("asking", OnError::BestEffort, asked, "asked to stop"),
    ] {
        let streams = open(&server.url(), topic, 2);
        let ids = publish_to(&streams, topic, 0, &["a0", "a1", "poison", "a3"]);
        publish_to(&streams, topic, 1, &["b0"]);
        let seen = Seen::default();
        let record = seen.clone();
        let builder = || {
            let record = record.clone();
            let builder = streams.consumer(topic).name("c").on_error(policy);
            builder.shared(move |m| {
                record.push(text(m));
                if text(m) == "poison" {
                    Err(fails())
                } else {
                    Ok(())
                }
            })
        };
        let consumer = builder().start().unwrap();
        let status = becomes(&consumer, 0, LaneState::Stopped);
        let id = ids[2].to_string();
        for part in [why, &id, "LedgerDown", "the ledger is down"] {
            assert!(status.reason.contains(part), "{part}: {}", status.reason);
        }
        publish_to(&streams, topic, 1, &["b1"]);
        expect("the other partition to go on", || {
            seen.all().contains(&"b1".into())
        });
        let health = streams.health();
        assert_eq!(
            (health.status, health.rule),
            (Status::Degraded, Rule::Stopped)
        );
        assert!(
            health.description.contains(&format!("{topic}[0]/c")),
            "{}",
            health.description
        );
        assert_eq!(consumer.stop().positions[0], ids[1]);
        assert_eq!(stored(&server, topic, "c", 0), Some(ids[1]));
        assert!(
            !seen.all().contains(&"a3".into()),
            "nothing is handled after it"
        );
        assert_eq!(
            logged(&[
                "WARN",
                &format!("{topic}[0]/c"),
                "the partition has stopped"
            ])
            .len(),
            1
        );
        drop(consumer);
        // It begins with the message again, whose turn it still is.
        let before = seen.len();
        let consumer = builder().start().unwrap();
        assert_eq!(seen.wait_for(before + 1)[before], "poison");
        becomes(&consumer, 0, LaneState::Stopped);
    }
}

#[test]
fn fail_ends_every_consumer_and_wait_tells_the_error() {
    let (server, streams, ids) = topic_of("failing", 3);
    publish(&streams, "other", 0..5);
    let seen = Seen::default();
    let other = recording(streams.consumer("other").name("c"), &seen);
    let other = other.start().unwrap();
    seen.wait_for(5);
    let record = seen.clone();
    let failing = streams
        .consumer("failing")
        .name("c")
        .on_error(OnError::Fail)
        .shared(move |m| {
            record.push(text(m));
            if text(m) == "1" {
                Err(LedgerDown)?;
            }
            Ok(())
        })
        .start()
        .unwrap();
    let e = streams.wait().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Handler);
    let told = e.to_string();
    for part in ["failing[0]/c", &ids[1].to_string(), "the ledger is down"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    for consumer in [&failing, &other] {
        for p in consumer.partitions() {
            assert_eq!(p.state, LaneState::Stopped, "{p}");
        }
    }
    assert_eq!(seen.all()[5..], ["0", "1"]);
    assert_eq!(stored(&server, "failing", "c", 0), Some(ids[0]));
    let again = streams.wait().unwrap_err();
    assert_eq!(again.to_string(), told, "everyone who waits is told");
}

#[test]
fn a_fail_hook_is_called_once_and_only_its_own_consumer_ends() {
    let server = server();
    let streams = open(&server.url(), "hooked", 2);
    let (seen, hooked) = (Seen::default(), Seen::default());
    let other = recording(streams.consumer("bystander").name("c"), &seen);
    let other = other.start().unwrap();
    // both partitions fail, the first to do so ends the consumer
    publish_to(&streams, "hooked", 0, &["0"]);
    publish_to(&streams, "hooked", 1, &["1"]);
    let told = hooked.clone();
    let consumer = streams
        .consumer("hooked")
        .name("c")
        .on_error(OnError::Fail)
        .on_fail(move |e| told.push(e.to_string()))
        .shared(|_| Err(LedgerDown)?)
        .start()
        .unwrap();
    hooked.wait_for(1);
    becomes(&consumer, 0, LaneState::Stopped);
    becomes(&consumer, 1, LaneState::Stopped);
    assert_eq!(hooked.len(), 1, "{:?}", hooked.all());
    publish(&streams, "bystander", 0..3);
    seen.wait_for(3);
    running(&other);
}

#[test]
fn a_blocked_message_is_handed_over_again_until_it_succeeds_and_only_its_partition_waits() {
    let server = server();
    for classified in [false, true] {
        let topic = if classified { "classified" } else { "blocked" };
        let streams = open(&server.url(), topic, 2);
        let ids = publish_to(&streams, topic, 0, &["a0", "stubborn", "a2"]);
        let (seen, tries, others) = (Seen::default(), Seen::default(), Seen::default());
        let (record, attempts, flow) = (seen.clone(), tries.clone(), others.clone());
        let mut builder = streams
            .consumer(topic)
            .name("c")
            .persist_interval(Duration::from_millis(20));
        if classified {
            builder = builder.classify(|e| e.is::<LedgerDown>().then_some(Action::Block));
        }
        let consumer = builder
            .shared(move |m| {
                if m.partition() == 1 {
                    flow.push(text(m));
                    return Ok(());
                }
                record.push(format!("{} {}", text(m), m.attempt()));
                if text(m) == "stubborn" {
                    attempts.push(Instant::now());
                    if m.attempt() < 3 {
                        return if classified {
                            Err(LedgerDown)?
                        } else {
                            Err(LedgerDown).or_block()
                        };
                    }
                }
                Ok(())
            })
            .start()
            .unwrap();
        let status = becomes(&consumer, 0, LaneState::Blocked);
        for part in [&*ids[1].to_string(), "the ledger is down"] {
            assert!(status.reason.contains(part), "{part}: {}", status.reason);
        }
        assert_eq!(streams.health().rule, Rule::Blocked);
        publish_to(&streams, topic, 1, &["b0", "b1"]);
        others.wait_for(2);
        expect("what was before it to be stored", || {
            stored(&server, topic, "c", 0) == Some(ids[0])
        });
        assert_eq!(consumer.position(0).unwrap().id, ids[0]);
        let all = ["a0 1", "stubborn 1", "stubborn 2", "stubborn 3", "a2 1"];
        assert_eq!(seen.wait_for(5), all);
        let tries = tries.all();
        let waits = [tries[1] - tries[0], tries[2] - tries[1]];
        assert!(
            waits[0] >= Duration::from_secs(1) && waits[1] >= Duration::from_secs(2),
            "{waits:?}"
        );
        becomes(&consumer, 0, LaneState::Running);
        expect("its position to be stored", || {
            stored(&server, topic, "c", 0) == Some(ids[2])
        });
        assert_eq!(streams.health().rule, Rule::Fine);
        assert_eq!(consumer.partitions()[0].failures, 2);
        let line = logged(&[&format!("{topic}[0]/c"), "recovered after 3 attempts"]);
        assert!(line.len() == 1 && line[0].starts_with("INFO"), "{line:?}");
    }
}

#[test]
fn retry_after_waits_in_place_once_and_then_the_policy_decides() {
    let pause = Duration::from_millis(50);
    let server = server();
    for (topic, policy, calls) in [
        (
            "again",
            OnError::BestEffort,
            &[
                "0 1",
                "hopeless 1",
                "hopeless 2",
                "passing 1",
                "passing 2",
                "3 1",
            ][..],
        ),
        (
            "again-stop",
            OnError::StopPartition,
            &["0 1", "hopeless 1", "hopeless 2"],
        ),
    ] {
        let streams = open(&server.url(), topic, 1);
        publish_to(&streams, topic, 0, &["0", "hopeless", "passing", "3"]);
        let (seen, times) = (Seen::default(), Seen::default());
        let (record, clock) = (seen.clone(), times.clone());
        let consumer = streams
            .consumer(topic)
            .name("c")
            .on_error(policy)
            .shared(move |m| {
                record.push(format!("{} {}", text(m), m.attempt()));
                clock.push(Instant::now());
                let fails = text(m) == "hopeless" || text(m) == "passing" && m.attempt() == 1;
                if fails {
                    Err(LedgerDown).or_retry_after(pause)
                } else {
                    Ok(())
                }
            })
            .start()
            .unwrap();
        seen.wait_for(calls.len());
        let stops = policy == OnError::StopPartition;
        assert_eq!(consumer.drain(PATIENCE).is_err(), stops, "{topic}");
        assert_eq!(seen.all(), calls);
        let times = times.all();
        assert!(times[2] - times[1] >= pause);
        assert_eq!(consumer.partitions()[0].skipped, u64::from(!stops));
    }
}

#[test]
fn a_panic_is_an_ordinary_error_and_the_handler_is_made_anew() {
    struct Fragile {
        calls: u32,
        seen: Seen<String>,
    }
    impl MessageHandler for Fragile {
        fn handle(&mut self, m: &Message<'_>) -> HandlerResult {
            self.calls += 1;
            self.seen.push(format!("{} {}", text(m), self.calls));
            assert!(text(m) != "1", "handler of {}", text(m));
            Ok(())
        }
    }
    let (_server, streams, ids) = topic_of("panics", 4);
    let (seen, made) = (Seen::default(), Arc::new(AtomicU32::new(0)));
    let (record, makes) = (seen.clone(), Arc::clone(&made));
    let consumer = streams
        .consumer("panics")
        .name("c")
        .messages(move |_| {
            makes.fetch_add(1, SeqCst);
            Fragile {
                calls: 0,
                seen: record.clone(),
            }
        })
        .start()
        .unwrap();
    assert_eq!(consumer.drain(PATIENCE).unwrap().positions, [ids[3]]);
    assert_eq!(seen.all(), ["0 1", "1 2", "2 1", "3 2"]);
    assert_eq!(made.load(SeqCst), 2);
    let line = logged(&["panics[0]/c", "the handler panicked: handler of 1"]);
    assert!(line.len() == 1 && line[0].starts_with("ERROR"), "{line:?}");
}

#[test]
fn a_line_about_a_failure_says_where_it_happened_to_what_and_what_follows() {
    let (_server, streams, ids) = topic_of("told", 1);
    let consumer = streams
        .consumer("told")
        .name("teller")
        .shared(|_| Err(LedgerDown)?)
        .start()
        .unwrap();
    consumer.drain(PATIENCE).unwrap();
    let lines = logged(&["told[0]/teller", "handler failed"]);
    assert_eq!(lines.len(), 1, "{lines:?}");
    let id = ids[0].to_string();
    for part in [
        "ERROR",
        &id,
        "type T",
        "attempt 1",
        "LedgerDown",
        "the ledger is down",
        "stepped over",
    ] {
        assert!(lines[0].contains(part), "{part} in {}", lines[0]);
    }
}

#[test]
fn many_failures_make_few_lines_that_count_the_others() {
    let (_server, streams, _ids) = topic_of("noisy", 200);
    let consumer = streams
        .consumer("noisy")
        .name("c")
        .shared(|_| Err(LedgerDown)?)
        .start()
        .unwrap();
    consumer.drain(PATIENCE).unwrap();
    assert_eq!(consumer.partitions()[0].skipped, 200);
    assert!(
        logged(&["ERROR noisy[0]/c"]).len() <= 3,
        "one line in half a minute"
    );
    assert_eq!(
        logged(&["noisy[0]/c", "handler failed"]).len(),
        200,
        "all of them for who looks closer"
    );
}
