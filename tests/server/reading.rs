//! How lanes read, what they leave out, and how they are drained.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used
)]

use std::{
    sync::{Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use streamlane::{testing::PrivateServer, *};

use crate::{
    lifecycle::{BLOCK, at_once, ended, idle, threads},
    support::*,
};

#[test]
fn draining_ends_where_the_topic_ended() {
    let server = server();
    // nothing there at all
    let (_streams, consumer, _) = idle(&server, "empty");
    at_once("draining nothing", || consumer.drain(PATIENCE)).unwrap();

    // the last entries are deleted, before and while it drains
    let streams = open(&server.url(), "deleted", 1);
    let ids = publish_to(&streams, "deleted", 0, &["0", "1", "2", "3"]);
    let delete = |id: StreamId| {
        let xdel = ["XDEL", "re:s:{deleted}:0", &id.to_string()];
        server.command(&xdel).unwrap();
    };
    delete(ids[3]);
    let (entered, (hold, held)) = (Seen::default(), mpsc::channel::<()>());
    let (enter, held) = (entered.clone(), Mutex::new(held));
    let consumer = streams.consumer("deleted").name("c").batch_size(1);
    let consumer = consumer.block(Duration::from_millis(50)).read_ahead(false);
    let consumer = consumer.shared(move |m| {
        enter.push(m.id());
        if m.body() == b"0" {
            let _ = held.lock().unwrap().recv();
        }
        Ok(())
    });
    let consumer = consumer.start().unwrap();
    entered.wait_for(1);
    thread::scope(|s| {
        let drain = s.spawn(|| at_once("draining", || consumer.drain(PATIENCE)));
        expect("it to ask for the end", || {
            let stats = server.command(&["INFO", "commandstats"]).unwrap().text();
            stats.contains("cmdstat_xrevrange")
        });
        expect("it to have been told", || !drain.is_finished());
        delete(ids[2]);
        drop(hold);
        assert_eq!(drain.join().unwrap().unwrap().positions, [ids[1]]);
    });
    assert_eq!(entered.all(), ids[..2]);
}

#[test]
fn draining_says_why_it_did_not_get_there() {
    let server = server();
    for (topic, kind, told) in [
        ("drain-blocked", ErrorKind::Timeout, "Blocked"),
        ("drain-stopped", ErrorKind::Stopped, "Stopped"),
        (
            "drain-paused",
            ErrorKind::Timeout,
            "did not reach their end",
        ),
    ] {
        let streams = open(&server.url(), topic, 2);
        publish_to(&streams, topic, 1, &["x"]);
        let consumer = streams.consumer(topic).name("c").block(BLOCK);
        let consumer = consumer.shared(move |_| match kind {
            ErrorKind::Stopped => Err("no more").or_stop(),
            _ => Err("not yet").or_block(),
        });
        let consumer = consumer.start().unwrap();
        if topic == "drain-paused" {
            consumer.pause();
        }
        let e = consumer.drain(Duration::from_millis(500)).unwrap_err();
        assert_eq!(e.kind(), kind, "{e}");
        assert!(e.to_string().contains(told), "{e}");
        assert!(e.to_string().contains(&format!("{topic}[1]/c")), "{e}");
        ended(&consumer);
    }
}

#[test]
fn a_filter_takes_types_whole_and_moves_past_the_others() {
    let server = server();
    let streams = open(&server.url(), "filtered", 1);
    let publisher = streams.publisher("filtered").unwrap();
    let types = ["A", "AB", "a", "B", "", "A", "C", "C"];
    let ids: Vec<StreamId> = types
        .iter()
        .map(|t| publisher.message(*t, *t).partition(0).publish().unwrap())
        .collect();
    for (name, filter, want, left_out) in [
        ("some", &["A", "B", "", "A"][..], &["A", "B", "A"][..], 5),
        ("none", &["X"], &[], 8),
        ("blank", &[" "], &types, 0),
    ] {
        let seen = Seen::default();
        let consumer = streams
            .consumer("filtered")
            .name(name)
            .filter(filter.iter().copied());
        let consumer = recording(consumer, &seen).start().unwrap();
        assert_eq!(
            consumer.drain(PATIENCE).unwrap().positions,
            [ids[7]],
            "{name}"
        );
        assert_eq!(seen.all(), want, "{name}");
        let status = &consumer.partitions()[0];
        assert_eq!(
            (status.filtered, status.handled),
            (left_out, want.len() as u64),
            "{name}"
        );
        assert_eq!(stored(&server, "filtered", name, 0), Some(ids[7]));
    }
}

fn reads(server: &PrivateServer) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]).unwrap().text();
    let line = stats
        .lines()
        .find_map(|l| l.strip_prefix("cmdstat_xread:calls="));
    line.map_or(0, |l| l.split(',').next().unwrap().parse().unwrap())
}

#[test]
fn one_batch_is_read_ahead_unless_that_is_off() {
    for (topic, ahead, while_busy) in [("ahead", true, 2), ("behind", false, 1)] {
        let server = server();
        let streams = open(&server.url(), topic, 1);
        let bodies = ["0", "1", "2", "3", "4", "5", "6", "7", "8"];
        publish_to(&streams, topic, 0, &bodies);
        let (entered, seen, (hold, held)) =
            (Seen::default(), Seen::default(), mpsc::channel::<()>());
        let (enter, record, held) = (entered.clone(), seen.clone(), Mutex::new(held));
        let consumer = streams
            .consumer(topic)
            .name("c")
            .batch_size(3)
            .read_ahead(ahead);
        let consumer = consumer.shared_batches(move |batch| {
            enter.push(());
            let _ = held.lock().unwrap().recv();
            for m in batch.messages() {
                record.push(String::from_utf8_lossy(m.body()).into_owned());
            }
            Ok(())
        });
        let consumer = consumer.start().unwrap();
        entered.wait_for(1);
        expect("the reads there should be", || reads(&server) >= while_busy);
        assert_eq!(reads(&server), while_busy, "{topic}");
        drop(hold);
        consumer.drain(PATIENCE).unwrap();
        assert_eq!(seen.all(), bodies);
    }
}

#[test]
fn polling_slows_down_while_there_is_nothing_and_delivers_all_the_same() {
    let server = server();
    let streams = open(&server.url(), "polls", 1);
    let seen = Seen::default();
    let cap = Duration::from_millis(200);
    let consumer = streams
        .consumer("polls")
        .name("c")
        .read_mode(ReadMode::Poll);
    let consumer = recording(consumer.max_idle_delay(cap), &seen)
        .start()
        .unwrap();
    // 0, 1, 2, 4 ... 128 ms, then the cap
    expect("it to poll", || reads(&server) >= 9);
    let (start, before) = (Instant::now(), reads(&server));
    expect("it to poll on", || reads(&server) >= before + 5);
    assert!(
        start.elapsed() >= cap * 4,
        "five polls in {:?}",
        start.elapsed()
    );
    publish(&streams, "polls", 0..50);
    assert_eq!(seen.wait_for(50).len(), 50);
    let list = server.command(&["CLIENT", "LIST"]).unwrap().text();
    let lane = list
        .lines()
        .find(|l| l.contains("streams-rd:polls"))
        .unwrap();
    assert!(
        !lane.contains("flags=b"),
        "no read waits in the server: {lane}"
    );
    consumer.drain(PATIENCE).unwrap();
}

#[test]
fn a_spinning_lane_delivers_stops_and_drains_like_any_other() {
    let server = server();
    let streams = open(&server.url(), "spins", 1);
    let seen = Seen::default();
    let consumer = streams.consumer("spins").name("c").block(BLOCK);
    let consumer = recording(consumer.spin(Duration::from_millis(2)), &seen);
    let consumer = consumer.start().unwrap();
    for n in 0..20 {
        publish(&streams, "spins", n..n + 1);
        seen.wait_for(n as usize + 1);
    }
    at_once("draining", || consumer.drain(PATIENCE)).unwrap();
}

#[test]
fn each_lane_is_a_thread_of_its_name_that_begins_with_the_users_hook() {
    let server = server();
    let streams = open(&server.url(), "orders-of-ours", 3);
    let (begun, seen) = (Seen::default(), Seen::default());
    let name = || thread::current().name().unwrap_or_default().to_owned();
    let (hook, record) = (begun.clone(), seen.clone());
    let consumer = streams
        .consumer("orders-of-ours")
        .name("c")
        .on_lane_start(move |p| hook.push((p, name())))
        .messages(move |p| {
            let record = record.clone();
            record.push((p, name()));
            move |_: &Message<'_>| {
                record.push((p, name()));
                Ok(())
            }
        });
    let consumer = consumer.start().unwrap();
    for p in 0..3 {
        publish_to(&streams, "orders-of-ours", p, &["x"]);
    }
    seen.wait_for(6);
    let mut begun = begun.all();
    begun.sort();
    let names: Vec<(u32, String)> = (0..3)
        .map(|p| (p, format!("lane{p}-orders-of-ours")))
        .collect();
    assert_eq!(begun, names, "once for each");
    assert!(
        seen.all().iter().all(|call| names.contains(call)),
        "{:?}",
        seen.all()
    );
    // fifteen bytes are what the system keeps
    let lanes = || threads().iter().filter(|t| t.contains("-orders-o")).count();
    assert!(
        threads().contains(&"lane2-orders-of".to_owned()),
        "{:?}",
        threads()
    );
    assert_eq!(lanes(), 3);
    consumer.stop();
    assert_eq!(lanes(), 0, "none is left when stop returns");
}
