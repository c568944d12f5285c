//! Reset markers: whoever owns a partition goes where one says, running or at its next start, and
//! deletes that marker and no other.
#![allow(clippy::disallowed_types, clippy::unwrap_used)]

use std::{
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use streamlane::{
    testing::{Aof, PrivateServer},
    *,
};

use crate::support::*;

const SOON: Duration = Duration::from_millis(20);
/// Enough looks at the server for anything that should not happen to have happened.
const A_WHILE: Duration = Duration::from_millis(300);
/// Some other tool.
const FOREIGN: &str = "11c7db43-78ec-ec85-be43-a32aea5fd96e";

fn hash(topic: &str) -> String {
    format!("re:p:{{{topic}}}:c")
}

fn get(server: &PrivateServer, topic: &str, field: &str) -> String {
    server
        .command(&["HGET", &hash(topic), field])
        .unwrap()
        .text()
}

fn mark(server: &PrivateServer, topic: &str, partition: u32, value: &str) {
    let field = format!("__reset:{partition}");
    server
        .command(&["HSET", &hash(topic), &field, value])
        .unwrap();
}

#[track_caller]
fn cleared(server: &PrivateServer, topic: &str) {
    expect("the marker to be deleted", || {
        get(server, topic, "__reset:0").is_empty()
    });
}

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|n| n.to_string()).collect()
}

fn filled(server: &PrivateServer, topic: &str, n: u32) -> (Streams, Vec<StreamId>) {
    let streams = open(&server.url(), topic, 1);
    let bodies = numbers(0..n);
    let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
    let ids = publish_to(&streams, topic, 0, &bodies);
    (streams, ids)
}

/// A consumer that looks for markers often.
fn quick(streams: &Streams, topic: &str) -> ConsumerBuilder {
    let builder = streams.consumer(topic).name("c");
    builder.persist_interval(SOON)
}

#[test]
fn a_running_consumer_goes_where_a_marker_says() {
    let server = server();
    for (topic, persist) in [
        ("live-async", Persist::AsyncBatch),
        ("live-sync", Persist::SyncBatch),
        ("live-message", Persist::SyncMessage),
    ] {
        let (streams, ids) = filled(&server, topic, 20);
        let seen = Seen::default();
        let builder = quick(&streams, topic).persist(persist);
        // a read that waits is called away
        let consumer = recording(builder.block(Duration::from_secs(15)), &seen);
        let consumer = consumer.start().unwrap();
        seen.wait_for(20);
        expect("the position to be stored", || {
            stored(&server, topic, "c", 0) == Some(ids[19])
        });
        // as other tools do it: the marker, then the position under an id of their own
        let marker = format!("{}|2026-11-29T20:21:00.1945215+00:00", ids[9]);
        mark(&server, topic, 0, &marker);
        let position = format!("{}|{FOREIGN}", ids[9]);
        server
            .command(&["HSET", &hash(topic), "0", &position])
            .unwrap();

        assert_eq!(seen.wait_for(30)[20..], numbers(10..20));
        cleared(&server, topic);
        expect("the position to be back at the tail", || {
            stored(&server, topic, "c", 0) == Some(ids[19])
        });
        publish(&streams, topic, 20..22);
        assert_eq!(seen.wait_for(32)[30..], numbers(20..22));
        consumer.stop();
        assert_eq!(seen.len(), 32, "no second replay");
        let name = format!("{topic}/c: reset marker found for partition 0: {marker}");
        assert_eq!(warned(&name).len(), 1);
        let moved = format!("reset: the position was {} and is {}", ids[19], ids[9]);
        assert_eq!(warned(&moved).len(), 1);
        let lane = format!("INFO {topic}[0]/c: reset marker cleared");
        assert_eq!(logged(&[&lane]).len(), 1);
    }
}

/// A handler that holds the calls about these messages, each the first time it is given, and says when
/// it has begun; the call ends with what it is sent.
fn holding(
    builder: ConsumerBuilder,
    seen: &Seen<String>,
    batches: bool,
    hold: &[&'static str],
) -> (
    ConsumerBuilder<HasHandler>,
    mpsc::Receiver<()>,
    mpsc::Sender<HandlerResult>,
) {
    let (begun, has_begun) = mpsc::channel();
    let (end, ends) = mpsc::channel::<HandlerResult>();
    let (seen, hold) = (seen.clone(), Arc::new(Mutex::new(hold.to_vec())));
    let ends = Arc::new(Mutex::new(ends));
    let one = move |m: &Message<'_>, begun: &mpsc::Sender<()>| -> HandlerResult {
        let body = String::from_utf8_lossy(m.body()).into_owned();
        seen.push(body.clone());
        if hold.lock().unwrap().pop_if(|next| *next == body).is_none() {
            return Ok(());
        }
        begun.send(()).unwrap();
        ends.lock().unwrap().recv_timeout(PATIENCE).unwrap()
    };
    let builder = if batches {
        builder.batches(move |_| {
            let (one, begun) = (one.clone(), begun.clone());
            move |batch: &Batch<'_>| -> HandlerResult {
                batch.done(0);
                batch.each(|m| one(m, &begun))
            }
        })
    } else {
        builder.messages(move |_| {
            let (one, begun) = (one.clone(), begun.clone());
            move |m: &Message<'_>| one(m, &begun)
        })
    };
    (builder, has_begun, end)
}

/// What a slow handler is at when a reset comes is finished, and what else was read is not handed over;
/// neither moves the position.
#[test]
fn what_was_read_before_a_reset_does_not_move_the_position() {
    let server = server();
    for persist in [
        Persist::AsyncBatch,
        Persist::SyncBatch,
        Persist::SyncMessage,
    ] {
        for batches in [false, true] {
            for (kind, to, result) in [
                ("rewind", Some(1), Ok(())),
                ("skip", Some(7), Ok(())),
                ("failed", Some(7), Err("no good".into())),
                ("begin", None, Ok(())),
            ] {
                let topic = format!("slow-{kind}-{batches}-{persist:?}");
                let (streams, ids) = filled(&server, &topic, 10);
                let seen = Seen::default();
                let builder = quick(&streams, &topic).persist(persist);
                let builder = builder.on_error(OnError::StopPartition);
                let (builder, begun, end) = holding(builder, &seen, batches, &["4"]);
                let consumer = builder.start().unwrap();
                begun.recv_timeout(PATIENCE).unwrap();
                let target = to.map_or(StreamId::MIN, |n: usize| ids[n]);
                mark(&server, &topic, 0, &target.to_string());
                let found = format!("{topic}/c: reset marker found");
                expect("the marker to be found", || !warned(&found).is_empty());
                let before = get(&server, &topic, "0");
                std::thread::sleep(A_WHILE / 3);
                assert!(!get(&server, &topic, "__reset:0").is_empty(), "not yet");
                assert_eq!(get(&server, &topic, "0"), before, "left alone");
                end.send(result).unwrap();

                let replay = numbers(to.map_or(0, |n| n as u32 + 1)..10);
                // A batch in the handler's hands is its own; messages are handed over one by one.
                let whole = batches && persist != Persist::SyncMessage && kind != "failed";
                let handled = [numbers(0..if whole { 10 } else { 5 }), replay].concat();
                assert_eq!(seen.wait_for(handled.len()), handled, "{topic}");
                cleared(&server, &topic);
                expect("the position to be at the tail", || {
                    stored(&server, &topic, "c", 0) == Some(ids[9])
                });
                assert_eq!(consumer.stop().positions, [ids[9]]);
                assert_eq!(seen.len(), handled.len(), "{topic}: {:?}", seen.all());
            }
        }
    }
}

/// However long the batch goes on, and whatever it marks as done.
#[test]
fn what_a_batch_marks_as_done_is_not_stored_over_a_reset() {
    let server = server();
    let (streams, ids) = filled(&server, "marks", 6);
    let seen = Seen::default();
    let (builder, begun, end) = holding(quick(&streams, "marks"), &seen, true, &["4", "1"]);
    let consumer = builder.start().unwrap();
    begun.recv_timeout(PATIENCE).unwrap();
    expect("what was done to be stored", || {
        stored(&server, "marks", "c", 0) == Some(ids[0])
    });
    mark(&server, "marks", 0, "0-0");
    expect("the marker to be found", || {
        !warned("marks/c: reset marker found").is_empty()
    });
    end.send(Ok(())).unwrap();
    begun.recv_timeout(PATIENCE).unwrap();
    assert_eq!(consumer.position(0).unwrap().id, ids[3], "in memory");
    std::thread::sleep(A_WHILE);
    assert_eq!(stored(&server, "marks", "c", 0), Some(ids[0]));
    end.send(Ok(())).unwrap();
    assert_eq!(seen.wait_for(12)[6..], numbers(0..6));
    cleared(&server, "marks");
}

#[test]
fn a_reset_leads_a_blocked_lane_past_what_blocks_it() {
    let server = server();
    let (streams, ids) = filled(&server, "poison", 5);
    let (seen, tries) = (Seen::default(), Seen::default());
    let (record, tried) = (seen.clone(), tries.clone());
    let builder = quick(&streams, "poison").messages(move |_| {
        let (record, tried) = (record.clone(), tried.clone());
        move |m: &Message<'_>| -> HandlerResult {
            if m.body() == b"2" {
                tried.push(());
                return Err::<(), _>("it always fails").or_block();
            }
            record.push(String::from_utf8_lossy(m.body()).into_owned());
            Ok(())
        }
    });
    let consumer = builder.start().unwrap();
    tries.wait_for(2); // the wait for the third is 2 s, for the next 4
    mark(&server, "poison", 0, &ids[2].to_string());
    assert_eq!(seen.wait_for(4), ["0", "1", "3", "4"]);
    cleared(&server, "poison");
    running(&consumer);
    assert!(tries.len() <= 3);
}

#[test]
fn resets_in_a_row_are_all_taken_even_if_they_look_the_same() {
    let server = server();
    let (streams, ids) = filled(&server, "row", 6);
    let seen = Seen::default();
    let consumer = recording(quick(&streams, "row"), &seen).start().unwrap();
    seen.wait_for(6);
    let mut expected = 6;
    // without a time, as other tools may write them
    for to in [3, 3, 1] {
        mark(&server, "row", 0, &ids[to].to_string());
        expected += 5 - to;
        seen.wait_for(expected);
        cleared(&server, "row");
    }
    // one right after the other: the last one wins, and what it asks for happens
    for (to, time) in [(1, "2026-01-01T00:00:00Z"), (4, "2026-01-01T00:00:01Z")] {
        mark(&server, "row", 0, &format!("{}|{time}", ids[to]));
    }
    cleared(&server, "row");
    expect("the position to be at the tail", || {
        consumer.position(0).unwrap().id == ids[5]
    });
    assert!(seen.len() > expected && seen.all().ends_with(&["5".into()]));
    consumer.stop();
    assert_eq!(stored(&server, "row", "c", 0), Some(ids[5]));
}

#[test]
fn a_marker_is_taken_before_anything_else_at_start() {
    let server = server();
    let streams = open(&server.url(), "cold", 3);
    for p in 0..3 {
        let bodies = numbers(10 * p..10 * p + 3);
        let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
        publish_to(&streams, "cold", p, &bodies);
    }
    let tail = |p: u32| {
        let key = format!("re:s:{{cold}}:{p}");
        let last = server.command(&["XREVRANGE", &key, "+", "-", "COUNT", "1"]);
        last.unwrap().items()[0].items()[0].text()
    };
    server
        .command(&["HSET", &hash("cold"), "0", &tail(0), "1", &tail(1)])
        .unwrap();
    mark(&server, "cold", 0, "0-0|2026-11-29T20:21:00.1945215+00:00");
    mark(&server, "cold", 1, "not-an-id");
    mark(&server, "cold", 7, "0-0"); // nobody owns it
    let seen = Seen::default();
    // the hour keeps the flusher out of it
    let builder = quick(&streams, "cold").persist_interval(Duration::from_hours(1));
    let builder = builder.start_from(StartFrom::Now);
    let consumer = recording(builder, &seen).start().unwrap();
    expect("the marker to be taken", || {
        get(&server, "cold", "__reset:0").is_empty()
    });
    assert_eq!(stored(&server, "cold", "c", 0), Some(StreamId::MIN));
    consumer.drain(PATIENCE).unwrap();
    assert_eq!(seen.all(), ["0", "1", "2"], "the others begin now");
    assert_eq!(get(&server, "cold", "__reset:1"), "not-an-id");
    assert_eq!(get(&server, "cold", "__reset:7"), "0-0");
    let line = "cold[0]/c: reset marker found at the start: 0-0";
    assert_eq!(warned(line).len(), 1);

    // and once: what came after it counts from here on
    let again = recording(quick(&streams, "cold"), &seen).start().unwrap();
    again.drain(PATIENCE).unwrap();
    assert_eq!(seen.len(), 3);
}

#[test]
fn without_persistence_markers_are_nobody_s_business() {
    let server = server();
    let (streams, _) = filled(&server, "unkept", 3);
    mark(&server, "unkept", 0, "0-0");
    let seen = Seen::default();
    let builder = streams.consumer("unkept").persist(Persist::None).name("c");
    let consumer = recording(builder.start_from(StartFrom::Now), &seen)
        .start()
        .unwrap();
    running(&consumer);
    std::thread::sleep(A_WHILE);
    consumer.stop();
    assert!(seen.all().is_empty());
    assert_eq!(get(&server, "unkept", "__reset:0"), "0-0");
}

#[test]
fn a_paused_lane_takes_a_reset_and_hands_over_nothing() {
    let server = server();
    let (streams, ids) = filled(&server, "paused", 5);
    let seen = Seen::default();
    let consumer = recording(quick(&streams, "paused"), &seen).start().unwrap();
    seen.wait_for(5);
    consumer.pause();
    mark(&server, "paused", 0, &ids[1].to_string());
    expect("the position to be reset", || {
        consumer.position(0).unwrap().id == ids[1]
    });
    std::thread::sleep(A_WHILE);
    assert_eq!(seen.len(), 5);
    consumer.resume();
    assert_eq!(seen.wait_for(8)[5..], numbers(2..5));
    cleared(&server, "paused");
}

/// Neither a stop nor a stopped partition undoes a reset: the marker is there at the next start.
#[test]
fn a_reset_that_no_lane_could_take_waits_for_the_next_start() {
    let server = server();
    let (streams, ids) = filled(&server, "later", 6);
    let seen = Seen::default();
    let builder = quick(&streams, "later").shutdown_timeout(A_WHILE);
    let (builder, begun, end) = holding(builder, &seen, false, &["4"]);
    let consumer = builder.start().unwrap();
    begun.recv_timeout(PATIENCE).unwrap();
    mark(&server, "later", 0, &ids[1].to_string());
    expect("the marker to be found", || {
        !warned("later/c: reset marker found").is_empty()
    });
    let before = get(&server, "later", "0");
    let stopped = consumer.stop();
    assert_eq!(
        (&stopped.unsaved[..], &stopped.still_running[..]),
        (&[][..], &[0][..])
    );
    end.send(Ok(())).unwrap();
    expect("the lane to end", || {
        consumer.partitions()[0].state == LaneState::Stopped
    });
    assert_eq!(get(&server, "later", "0"), before, "left alone");
    drop(consumer);
    let next = recording(quick(&streams, "later"), &seen).start().unwrap();
    assert_eq!(seen.wait_for(9)[5..], numbers(2..6));
    cleared(&server, "later");
    next.stop();

    // a partition that its policy has stopped
    let fails = |_: u32| |_: &Message<'_>| -> HandlerResult { Err("no".into()) };
    let builder = quick(&streams, "later").on_error(OnError::StopPartition);
    publish(&streams, "later", 6..7);
    let stopped = builder.messages(fails).start().unwrap();
    expect("the partition to stop", || {
        stopped.partitions()[0].state == LaneState::Stopped
    });
    mark(&server, "later", 0, &ids[4].to_string());
    std::thread::sleep(A_WHILE);
    assert!(!get(&server, "later", "__reset:0").is_empty());
    stopped.stop();
    let first = seen.len();
    let _next = recording(quick(&streams, "later"), &seen).start().unwrap();
    assert_eq!(seen.wait_for(first + 2)[first..], numbers(5..7));
    cleared(&server, "later");
}

#[test]
fn a_reset_survives_a_server_that_goes_away_before_it_is_taken() {
    listen_to_the_log();
    let server = PrivateServer::builder().aof(Aof::Always).start().unwrap();
    let (streams, ids) = filled(&server, "away", 6);
    let seen = Seen::default();
    let (builder, begun, end) = holding(quick(&streams, "away"), &seen, false, &["4"]);
    let consumer = builder.start().unwrap();
    begun.recv_timeout(PATIENCE).unwrap();
    mark(&server, "away", 0, &ids[1].to_string());
    expect("the marker to be found", || {
        !warned("away/c: reset marker found").is_empty()
    });
    server.kill();
    end.send(Ok(())).unwrap();
    expect("the lane to notice", || {
        consumer.position(0).unwrap().id == ids[1]
    });
    assert_eq!(seen.len(), 5, "nothing is handed over before it is stored");
    server.restart().unwrap();
    assert_eq!(seen.wait_for(9)[5..], numbers(2..6));
    cleared(&server, "away");
    consumer.stop();
    assert_eq!(stored(&server, "away", "c", 0), Some(ids[5]));
}

#[test]
fn a_hash_that_is_none_keeps_markers_from_being_found_until_it_is_one_again() {
    let server = server();
    let (streams, ids) = filled(&server, "spoilt", 3);
    let seen = Seen::default();
    let consumer = recording(quick(&streams, "spoilt"), &seen).start().unwrap();
    seen.wait_for(3);
    expect("the position to be stored", || {
        stored(&server, "spoilt", "c", 0) == Some(ids[2])
    });
    server
        .command(&["SET", &hash("spoilt"), "no hash"])
        .unwrap();
    let line = [
        "spoilt/c: look for reset markers on re:p:{spoilt}:c",
        "WRONGTYPE",
    ];
    expect("a line about it", || !logged(&line).is_empty());
    std::thread::sleep(A_WHILE);
    assert_eq!(logged(&line).len(), 1, "one line a window");
    server.command(&["DEL", &hash("spoilt")]).unwrap();
    mark(&server, "spoilt", 0, &ids[0].to_string());
    assert_eq!(seen.wait_for(5)[3..], numbers(1..3));
    cleared(&server, "spoilt");
    drop(consumer);
}

/// Positions are stored in groups; one that may not be stored keeps none of another group from it.
#[test]
fn a_reset_that_waits_keeps_no_other_position_from_being_stored_at_the_end() {
    let server = server();
    let streams = open(&server.url(), "groups", 20);
    let seen = Seen::default();
    let builder = streams.consumer("groups").name("c");
    let builder = builder.persist_interval(Duration::from_mins(1));
    let consumer = recording(builder, &seen).start().unwrap();
    let ids = [0, 17].map(|p| publish_to(&streams, "groups", p, &["x"])[0]);
    seen.wait_for(2);
    mark(&server, "groups", 0, "0-0");
    let stopped = consumer.stop();
    assert_eq!(stopped.unsaved, [0], "a reset decides about that one");
    assert_eq!(stored(&server, "groups", "c", 17), Some(ids[1]));
}
