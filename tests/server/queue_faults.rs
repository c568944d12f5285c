//! What could go wrong in queues without anybody dying.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use streamlane::{
    testing::{Fault, PrivateServer, Relay, Way},
    *,
};

use crate::{
    queues::{SHORT, as_pod, owner, pending, stream, worker},
    support::*,
};

fn text(m: &Message<'_>) -> String {
    String::from_utf8_lossy(m.body()).into_owned()
}

/// Adds so many entries and has a member of that name read them before any other can.
fn snatch(server: &PrivateServer, key: &str, member: &str, bodies: std::ops::Range<u32>) {
    let script =
        "for n = ARGV[2], ARGV[3] - 1 do redis.call('XADD', KEYS[1], '*', 'b', n, 't', 'T') end
        redis.call('XREADGROUP', 'GROUP', 'c', ARGV[1], 'STREAMS', KEYS[1], '>')";
    let (from, to) = (bodies.start.to_string(), bodies.end.to_string());
    let snatch = ["EVAL", script, "1", key, member, &from, &to];
    server.command(&snatch).unwrap();
}

/// An entry of the retry stream.
fn add_retry(server: &PrivateServer, topic: &str, id: &str, partition: &str, body: &str) {
    let key = format!("re:rt:{{{topic}}}:c");
    let own = ["!", "6", "!partition", partition, "!first", "4-0", "!since"];
    let more = [
        "0",
        "!attempts",
        "0",
        "!deliveries",
        "0",
        "b",
        body,
        "t",
        "T",
    ];
    let add = [&["XADD", &*key, id][..], &own, &more].concat();
    server.command(&add).unwrap();
}

#[test]
fn messages_that_wait_under_one_id_in_two_streams_are_both_kept() {
    let server = server();
    let topic = "one-id";
    let streams = open(&server.url(), topic, 1);
    streams.publisher(topic).unwrap(); // the topic is there
    server
        .command(&["XADD", &stream(topic, 0), "5-0", "b", "new", "t", "T"])
        .unwrap();
    add_retry(&server, topic, "5-0", "0", "replayed");
    let seen = Seen::default();
    let handle = {
        let seen = seen.clone();
        move |m: &Message<'_>| -> HandlerResult {
            if m.attempt() == 1 {
                Err("not yet")?;
            }
            seen.push(text(m));
            Ok(())
        }
    };
    let consumer = worker(&streams, topic)
        .retry(3)
        .retry_pauses(Duration::from_secs(1), Duration::from_secs(1));
    let _consumer = consumer.shared(handle).start().unwrap();
    let mut all = seen.wait_for(2);
    all.sort();
    assert_eq!(all, ["new", "replayed"]);
}

#[test]
fn what_is_finished_is_acknowledged_before_a_pause_begins() {
    let server = server();
    let topic = "acked-paused";
    let streams = open(&server.url(), topic, 1);
    publish(&streams, topic, 0..1);
    let (begun, seen, go) = (
        Seen::default(),
        Seen::default(),
        Arc::new(AtomicBool::new(false)),
    );
    let handle = {
        let (begun, seen, go) = (begun.clone(), seen.clone(), Arc::clone(&go));
        move |m: &Message<'_>| -> HandlerResult {
            begun.push(());
            expect("the signal", || go.load(SeqCst));
            seen.push(text(m));
            Ok(())
        }
    };
    let consumer = worker(&streams, topic).shared(handle).start().unwrap();
    begun.wait_for(1);
    consumer.pause();
    go.store(true, SeqCst);
    seen.wait_for(1);
    expect("what is finished to be acknowledged", || {
        pending(&server, &stream(topic, 0)) == 0
    });
    consumer.resume();
    assert_eq!(seen.len(), 1);
}

#[test]
fn a_factory_that_panics_for_one_partition_fails_what_is_tried_again_of_it_alone() {
    let server = server();
    let topic = "no-handler";
    let streams = open(&server.url(), topic, 2);
    streams.publisher(topic).unwrap();
    for (partition, body) in [("0", "a"), ("1", "b"), ("0", "c")] {
        add_retry(&server, topic, "*", partition, body);
    }
    let seen = Seen::default();
    let factory = {
        let seen = seen.clone();
        move |p| {
            let thread = thread::current();
            let retries = thread.name().is_some_and(|name| name.contains("retries"));
            assert!(p == 0 || !retries, "no handler for partition {p}");
            let seen = seen.clone();
            move |m: &Message<'_>| -> HandlerResult {
                seen.push(text(m));
                Ok(())
            }
        }
    };
    let consumer = worker(&streams, topic).retry(0).messages(factory);
    let consumer = consumer.start().unwrap();
    expect("a dead letter", || {
        streams.admin().dead_letters(topic, "c").count().unwrap() == 1
    });
    seen.wait_for(2);
    consumer.stop();
    assert_eq!(seen.all(), ["a", "c"]);
    assert_eq!(pending(&server, &format!("re:rt:{{{topic}}}:c")), 0);
}

#[test]
fn what_a_former_owner_was_given_after_the_handover_is_its_successors() {
    let server = server();
    let topic = "late-read";
    let streams = open(&server.url(), topic, 1);
    let seen = Seen::default();
    let consumer = recording(owner(&streams, topic).claim_interval(SHORT), &seen);
    let consumer = consumer.start().unwrap();
    running(&consumer);
    publish(&streams, topic, 0..1);
    seen.wait_for(1);
    // the question of one that was owner before is answered late
    snatch(&server, &stream(topic, 0), "former#0a1b2c3d", 1..3);
    let all = seen.wait_for(3);
    assert_eq!(all, ["0", "1", "2"]);
    expect("all to be acknowledged", || {
        pending(&server, &stream(topic, 0)) == 0
    });
}

#[test]
fn a_partition_that_was_added_while_nobody_was_there_is_read_from_its_beginning() {
    let server = server();
    let topic = "added-meanwhile";
    let seen = Seen::default();
    let start = |streams: &Streams| {
        let worker = worker(streams, topic).start_from_when_missing(StartFrom::Now);
        recording(worker, &seen).start().unwrap()
    };
    let streams = open(&server.url(), topic, 1);
    let consumer = start(&streams);
    running(&consumer);
    publish(&streams, topic, 0..1);
    seen.wait_for(1);
    consumer.stop();
    drop(streams);
    let streams = open(&server.url(), topic, 2);
    let publisher = streams.publisher(topic).unwrap();
    for n in 1..20 {
        publisher
            .publish(n.to_string(), "T", n.to_string())
            .unwrap();
    }
    let added = server.command(&["XLEN", &stream(topic, 1)]).unwrap();
    assert!(added.int().unwrap() > 0, "some are in what was added");
    let _consumer = start(&streams);
    seen.wait_for(20);
}

#[test]
fn who_is_paused_takes_nothing_over() {
    let server = server();
    let topic = "paused-heir";
    let pods = ["paused", "works"].map(|pod| as_pod(&server, topic, 1, pod));
    let seen = Seen::default();
    let consumers = pods.each_ref().map(|streams| {
        let worker = worker(streams, topic).claim_interval(SHORT);
        recording(worker, &seen).start().unwrap()
    });
    consumers.iter().for_each(running);
    consumers[0].pause();
    snatch(&server, &stream(topic, 0), "gone#0a1b2c3d", 0..900);
    seen.wait_for(900);
    expect("all to be acknowledged", || {
        pending(&server, &stream(topic, 0)) == 0
    });
}

#[test]
fn who_has_just_come_is_not_taken_for_dead() {
    let server = server();
    let (topic, partitions) = ("just-come", 32);
    // One that looks at every lane all the time, and takes long for that.
    let relay = Relay::to(&server).unwrap();
    let settings = settings(&relay.url(), topic, partitions).pod_name("looks");
    let looks = Streams::open(settings).unwrap();
    let seen = Seen::default();
    let worker = |streams: &Streams| worker(streams, topic).claim_interval(SHORT);
    let first = recording(worker(&looks), &seen).start().unwrap();
    running(&first);
    for way in [Way::Requests, Way::Replies] {
        relay.fault(way, Fault::Delay(Duration::from_millis(20)));
    }
    let comes = as_pod(&server, topic, partitions, "comes");
    let handle = {
        let seen = seen.clone();
        move |m: &Message<'_>| -> HandlerResult {
            seen.push(text(m));
            thread::sleep(Duration::from_secs(2));
            Ok(())
        }
    };
    thread::sleep(Duration::from_secs(1)); // it is in the middle of looking
    let second = worker(&comes).shared(handle).start().unwrap();
    let publisher = comes.publisher(topic).unwrap();
    for n in 0..100 {
        let n = n.to_string();
        publisher.publish(n.clone(), "T", n).unwrap();
    }
    seen.wait_for(100);
    relay.heal();
    let key = |p| stream(topic, p);
    expect("all to be acknowledged", || {
        (0..partitions).all(|p| pending(&server, &key(p)) == 0)
    });
    second.stop();
    first.stop();
    let mut all = seen.all();
    all.sort();
    all.dedup();
    assert_eq!((all.len(), seen.len()), (100, 100), "each is handled once");
}
#[test]
fn large_batches_do_not_hold_the_server_up() {
    let server = server();
    let (topic, many) = ("large-batch", 30_000);
    let streams = open(&server.url(), topic, 1);
    streams.publisher(topic).unwrap();
    let script = "for n = 1, ARGV[1] do redis.call('XADD', KEYS[1], '*', 'b', n, 't', 'T') end";
    let (key, all) = (stream(topic, 0), many.to_string());
    for told in [
        &["EVAL", script, "1", &*key, &all][..],
        &["CONFIG", "SET", "slowlog-max-len", "100000"],
        &["CONFIG", "SET", "slowlog-log-slower-than", "0"],
    ] {
        server.command(told).unwrap();
    }
    let (idle, seen) = (Duration::from_millis(600), Seen::default());
    let handle = {
        let seen = seen.clone();
        move |batch: &Batch<'_>| -> HandlerResult {
            if batch.len() > 8000 {
                thread::sleep(3 * idle);
            }
            seen.push(batch.len());
            Ok(())
        }
    };
    let worker = worker(&streams, topic).claim_idle(idle);
    let consumer = worker
        .batch_size(many)
        .batch_bytes(16 << 20)
        .shared_batches(handle);
    let consumer = consumer.start().unwrap();
    expect("all to be handled", || {
        seen.all().iter().sum::<usize>() == many as usize
    });
    expect("all to be acknowledged", || pending(&server, &key) == 0);
    consumer.stop();
    assert!(*seen.all().iter().max().unwrap() > 8000, "{:?}", seen.all());
    let log = server.command(&["SLOWLOG", "GET", "-1"]).unwrap();
    let of_scripts = log.items().iter().filter_map(|entry| {
        let words = entry.items()[3].items();
        (words[0].text().eq_ignore_ascii_case("EVALSHA")).then(|| words.last().unwrap().text())
    });
    let counts = of_scripts.filter_map(|last| {
        let more = last
            .strip_prefix("... (")?
            .strip_suffix(" more arguments)")?;
        more.parse::<u32>().ok()
    });
    let counts: Vec<_> = counts.collect();
    assert!(
        counts.len() >= 8,
        "three times kept alive at least, and acknowledged: {counts:?}"
    );
    assert!(counts.iter().all(|n| *n <= 5000), "{counts:?}");
}
#[test]
fn what_is_given_out_from_the_new_place_on_is_not_dropped_by_a_reset() {
    let server = server();
    let topic = "reset-drops";
    let streams = open(&server.url(), topic, 1);
    let (seen, go) = (Seen::default(), Arc::new(AtomicBool::new(true)));
    let handle = {
        let (seen, go) = (seen.clone(), Arc::clone(&go));
        move |m: &Message<'_>| -> HandlerResult {
            seen.push(text(m));
            expect("the signal", || go.load(SeqCst));
            Ok(())
        }
    };
    let _consumer = worker(&streams, topic).shared(handle).start().unwrap();
    publish(&streams, topic, 0..10);
    seen.wait_for(10);
    let key = stream(topic, 0);
    expect("all to be acknowledged", || pending(&server, &key) == 0);
    go.store(false, SeqCst);
    // Members read between any two commands of the reset.
    let relay = Relay::to(&server).unwrap();
    let far = open(&relay.url(), topic, 1);
    relay.fault(Way::Replies, Fault::Delay(5 * SHORT));
    let reset = far.admin().reset(topic, "c", ResetTo::Start);
    reset.pending(Pending::Drop).force().apply().unwrap();
    seen.wait_for(11);
    assert!(pending(&server, &key) > 0, "it is in hand");
    go.store(true, SeqCst);
    seen.wait_for(20);
    expect("all to be acknowledged", || pending(&server, &key) == 0);
}
#[test]
fn who_may_not_list_connections_takes_over_from_strangers_at_once() {
    let server = server();
    let topic = "no-list";
    let rules = ["ACL", "SETUSER", "default", "-client|list"];
    server.command(&rules).unwrap();
    let (streams, seen) = (as_pod(&server, topic, 1, "m"), Seen::default());
    let worker = worker(&streams, topic).claim_interval(SHORT);
    let worker = worker.lease_ttl(Duration::from_secs(4)).lease_renew(SHORT);
    let consumer = recording(worker, &seen).start().unwrap();
    running(&consumer);
    // The first may be a predecessor that has not heard of it, and is waited for.
    snatch(&server, &stream(topic, 0), "m#0a1b2c3d", 0..1);
    snatch(&server, &stream(topic, 0), "z#0a1b2c3d", 1..2);
    assert_eq!(seen.wait_for(2), ["1", "0"]);
}

/// What is left out of a message has to be said, which only a dead letter does.
#[test]
fn a_message_of_more_fields_than_a_script_takes_is_a_dead_letter_at_once_and_no_field_is_cut_in_silence()
 {
    let server = server();
    let streams = open(&server.url(), "many-fields", 1);
    let calls = Seen::default();
    let handle = {
        let calls = calls.clone();
        move |_: &Message<'_>| -> HandlerResult {
            calls.push(());
            Err("no such account".into())
        }
    };
    let consumer = worker(&streams, "many-fields")
        .retry(3)
        .shared(handle)
        .start()
        .unwrap();
    let mut add = vec!["XADD".to_owned(), stream("many-fields", 0), "*".into()];
    add.extend(["b", "x", "t", "T"].map(str::to_owned));
    add.extend((0..3500).flat_map(|n| [format!("f{n}"), n.to_string()]));
    server.command(&add).unwrap();
    let letters = || {
        streams
            .admin()
            .dead_letters("many-fields", "c")
            .page(None, 10)
            .unwrap()
            .letters
    };
    expect("the letter", || letters().len() == 1);
    assert_eq!(
        (letters()[0].fields.len(), letters()[0].omitted),
        (3000, 502)
    );
    assert_eq!(calls.len(), 1);
    consumer.stop();
}

/// What is finished is deleted when the last of its readers has finished it, whoever that is and however quiet the
/// topic is by then.
#[test]
fn what_the_slowest_reader_finishes_last_is_deleted_though_nothing_new_comes() {
    let server = server();
    let streams = open(&server.url(), "quiet-end", 1);
    let (fast, slow) = (Seen::default(), Seen::default());
    let deleting = worker(&streams, "quiet-end").ack_delete(AckDelete::AllGroups);
    let _deleting = recording(deleting, &fast).start().unwrap();
    let reader = streams
        .consumer("quiet-end")
        .name("slow")
        .persist_interval(SHORT);
    let reader = recording(reader, &slow).start().unwrap();
    reader.pause();
    publish(&streams, "quiet-end", 0..20);
    fast.wait_for(20);
    thread::sleep(Duration::from_secs(4)); // by then all has been looked at that moves
    let length = || {
        server
            .command(&["XLEN", &stream("quiet-end", 0)])
            .unwrap()
            .int()
    };
    assert!(length() >= Some(20 - i64::try_from(slow.len()).unwrap()));
    reader.resume();
    slow.wait_for(20);
    expect("all to be deleted", || length() == Some(0));
}

/// Whoever wonders why a topic grows is told who is in the way.
#[test]
fn a_consumer_that_keeps_nothing_is_named_as_what_keeps_all_from_being_deleted() {
    let server = server();
    let streams = open(&server.url(), "in-the-way", 1);
    let seen = Seen::default();
    let forgetful = streams
        .consumer("in-the-way")
        .name("forgetful")
        .persist(Persist::None);
    let forgetful = forgetful.start_from(StartFrom::Now);
    let _forgetful = recording(forgetful, &Seen::default()).start().unwrap();
    let deleting = worker(&streams, "in-the-way").ack_delete(AckDelete::AllGroups);
    let _deleting = recording(deleting, &seen).start().unwrap();
    publish(&streams, "in-the-way", 0..1);
    seen.wait_for(1);
    expect("a line about it", || {
        let told = warned("in-the-way/c");
        told.iter()
            .any(|l| l.contains("forgetful") && l.contains("AllGroups"))
    });
}

/// A logger is foreign code, too: its panic ends the lane, which begins anew and is given again what it has finished
/// and could not acknowledge.
#[test]
fn what_is_finished_is_not_handled_again_by_a_lane_that_begins_anew_after_a_panic() {
    let server = server();
    let streams = open(&server.url(), "lane-anew", 1);
    let panicked = Arc::new(AtomicBool::new(false));
    let once = Arc::clone(&panicked);
    on_log(move |line| {
        let fails = line.contains("lane-anew[0]/c: handler failed");
        assert!(!fails || once.swap(true, SeqCst), "the logger panics");
    });
    let seen = Seen::default();
    let handle = {
        let seen = seen.clone();
        move |m: &Message<'_>| -> HandlerResult {
            seen.push(text(m));
            if text(m) == "1" {
                Err("no such account")?;
            }
            Ok(())
        }
    };
    let consumer = worker(&streams, "lane-anew")
        .shared(handle)
        .start()
        .unwrap();
    // What is finished next waits for the next read now.
    publish_to(&streams, "lane-anew", 0, &["first"]);
    seen.wait_for(1);
    expect("it to be acknowledged", || {
        pending(&server, &stream("lane-anew", 0)) == 0
    });
    let both = "for n = 0, 1 do redis.call('XADD', KEYS[1], '*', 'b', n, 't', 'T') end";
    server
        .command(&["EVAL", both, "1", &stream("lane-anew", 0)])
        .unwrap();
    seen.wait_for(4);
    consumer.drain(PATIENCE).unwrap();
    assert!(panicked.load(SeqCst));
    assert_eq!(seen.all(), ["first", "0", "1", "1"]);
    assert_eq!(pending(&server, &stream("lane-anew", 0)), 0);
}
