//! Partitions read through a consumer group: who is given what, and what becomes of it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use streamlane::{
    testing::{PrivateServer, Reply},
    *,
};

use crate::support::*;

pub(crate) const SHORT: Duration = Duration::from_millis(100);

/// A member of the group `c` that shares the topic's messages with others.
pub(crate) fn worker(streams: &Streams, topic: &str) -> ConsumerBuilder {
    let builder = streams.consumer(topic).name("c");
    builder.delivery(Delivery::WorkQueue).block(SHORT)
}

/// Streams of another process, as far as a group can tell: its pod has a name of its own.
pub(crate) fn as_pod(server: &PrivateServer, topic: &str, partitions: u32, pod: &str) -> Streams {
    let settings = settings(&server.url(), topic, partitions);
    Streams::open(settings.pod_name(pod)).unwrap()
}

pub(crate) fn stream(topic: &str, partition: u32) -> String {
    format!("re:s:{{{topic}}}:{partition}")
}

/// How many messages of a stream are pending in group `c`.
pub(crate) fn pending(server: &PrivateServer, key: &str) -> i64 {
    let summary = server.command(&["XPENDING", key, "c"]).unwrap();
    summary.items()[0].int().unwrap()
}

#[test]
fn members_share_the_messages_and_each_is_handled_once() {
    let server = server();
    let seen = Seen::default();
    let pods = ["a", "b", "c"].map(|pod| as_pod(&server, "shared-work", 2, pod));
    let consumers = pods.each_ref().map(|streams| {
        recording(worker(streams, "shared-work"), &seen)
            .start()
            .unwrap()
    });
    consumers.iter().for_each(running);
    publish(&pods[0], "shared-work", 0..200);
    seen.wait_for(200);
    for consumer in &consumers {
        consumer.drain(PATIENCE).unwrap();
    }
    let mut all = seen.all();
    all.sort_by_key(|n| n.parse::<u32>().unwrap());
    assert_eq!(all, (0..200).map(|n| n.to_string()).collect::<Vec<_>>());
    for p in 0..2 {
        assert_eq!(pending(&server, &stream("shared-work", p)), 0);
    }
}

#[test]
fn what_fails_is_tried_again_later_and_then_it_is_a_dead_letter_while_others_go_on() {
    let server = server();
    let streams = open(&server.url(), "retried", 1);
    let seen = Seen::default();
    let handle = {
        let seen = seen.clone();
        move |m: &Message<'_>| -> HandlerResult {
            let text = String::from_utf8_lossy(m.body()).into_owned();
            seen.push((text.clone(), m.attempt(), m.id()));
            if text == "1" {
                Err("no such account")?;
            }
            Ok(())
        }
    };
    let consumer = worker(&streams, "retried")
        .retry(2)
        .retry_pauses(SHORT, SHORT)
        .shared(handle)
        .start()
        .unwrap();
    publish(&streams, "retried", 0..5);
    let all = seen.wait_for(7);
    let of_1: Vec<_> = all.iter().filter(|(text, ..)| text == "1").collect();
    assert_eq!(
        of_1.iter().map(|(_, n, _)| *n).collect::<Vec<_>>(),
        [1, 2, 3]
    );
    assert!(
        of_1.iter().all(|(.., id)| *id == of_1[0].2),
        "it keeps its id"
    );
    expect("a dead letter", || {
        streams
            .admin()
            .dead_letters("retried", "c")
            .count()
            .unwrap()
            == 1
    });
    let page = streams
        .admin()
        .dead_letters("retried", "c")
        .page(None, 10)
        .unwrap();
    let letter = &page.letters[0];
    assert_eq!((letter.attempts, letter.deliveries), (2, 3));
    assert_eq!(letter.first_id, of_1[0].2);
    assert_eq!(letter.reason, Some(DeadLetterReason::Retries));
    consumer.stop();
    assert_eq!(pending(&server, &stream("retried", 0)), 0);
    for key in ["re:r:{retried}:c", "re:ri:{retried}:c"] {
        assert_eq!(
            server.command(&["EXISTS", key]).unwrap(),
            Reply::Int(0),
            "{key}"
        );
    }
    assert_eq!(
        server.command(&["XLEN", "re:rt:{retried}:c"]).unwrap(),
        Reply::Int(0)
    );
}

/// A member of the group `c` that owns partitions, and acknowledges each message.
pub(crate) fn owner(streams: &Streams, topic: &str) -> ConsumerBuilder {
    let builder = streams.consumer(topic).name("c");
    let builder = builder.delivery(Delivery::LeasedQueue).block(SHORT);
    builder.lease_ttl(Duration::from_secs(1)).lease_renew(SHORT)
}

#[test]
fn owners_keep_the_order_and_the_next_begins_with_what_the_last_left() {
    let server = server();
    let pods = ["a", "b"].map(|pod| as_pod(&server, "leased-queue", 1, pod));
    let seen = Seen::<String>::default();
    publish(&pods[0], "leased-queue", 0..50);
    let begun = Seen::default();
    let first = {
        let (seen, begun) = (seen.clone(), begun.clone());
        owner(&pods[0], "leased-queue")
            .shutdown_timeout(Duration::from_secs(5))
            .shared(move |m: &Message<'_>| {
                let text = String::from_utf8_lossy(m.body()).into_owned();
                if text == "20" {
                    begun.push(());
                    expect("the stop", || m.is_cancelled());
                    return Err("not finished".into());
                }
                seen.push(text);
                Ok(())
            })
    };
    let first = first.start().unwrap();
    begun.wait_for(1);
    let second = recording(owner(&pods[1], "leased-queue"), &seen)
        .start()
        .unwrap();
    first.stop();
    publish(&pods[0], "leased-queue", 50..60);
    seen.wait_for(60);
    second.drain(PATIENCE).unwrap();
    assert_eq!(
        seen.all(),
        (0..60).map(|n| n.to_string()).collect::<Vec<_>>()
    );
    assert_eq!(pending(&server, &stream("leased-queue", 0)), 0);
}

#[test]
fn a_name_keeps_what_is_finished_in_one_way_on_a_topic() {
    let server = server();
    let streams = open(&server.url(), "two-modes", 1);
    let seen = Seen::default();
    let ordered = || streams.consumer("two-modes").name("c");
    drop(recording(ordered(), &seen).start().unwrap());
    let e = recording(worker(&streams, "two-modes"), &seen)
        .start()
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Config);
    assert!(
        e.to_string().contains("positions") && e.to_string().contains("group"),
        "{e}"
    );
    let queue = || worker(&streams, "two-modes").name("q");
    drop(recording(queue(), &seen).start().unwrap());
    let e = recording(queue().delivery(Delivery::Ordered), &seen)
        .start()
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Config, "{e}");
    drop(
        recording(queue().delivery(Delivery::LeasedQueue), &seen)
            .start()
            .unwrap(),
    );
}

#[test]
fn what_is_read_from_a_queue_is_not_forwarded() {
    let server = server();
    let streams = open(&server.url(), "not-forwarded", 1);
    let forwarder = streams.forwarder("elsewhere").unwrap();
    let told = Seen::default();
    let handle = {
        let told = told.clone();
        move |m: &Message<'_>| -> HandlerResult {
            let out = [Outgoing::new("T", m.body())];
            told.push(
                forwarder
                    .forward(&Source::of(m), &out)
                    .unwrap_err()
                    .to_string(),
            );
            Ok(())
        }
    };
    let consumer = worker(&streams, "not-forwarded")
        .shared(handle)
        .start()
        .unwrap();
    publish(&streams, "not-forwarded", 0..1);
    let told = told.wait_for(1);
    assert!(told[0].contains("read from a queue"), "{told:?}");
    consumer.stop();
}

#[test]
fn what_is_finished_is_deleted_where_nobody_else_reads_it() {
    let server = server();
    let streams = open(&server.url(), "deleting", 1);
    let seen = Seen::default();
    let builder = worker(&streams, "deleting").ack_delete(AckDelete::Immediate);
    let consumer = recording(builder, &seen).start().unwrap();
    publish(&streams, "deleting", 0..50);
    consumer.drain(PATIENCE).unwrap();
    assert_eq!(seen.len(), 50);
    // nobody else may read what is deleted under him, and who reads keeps it from being deleted
    let other = streams.consumer("deleting").name("other");
    let e = recording(other, &seen).start().unwrap_err();
    assert!(e.to_string().contains("AckDelete Immediate"), "{e}");
    let read = open(&server.url(), "read", 1);
    let _other = recording(read.consumer("read").name("other"), &seen)
        .start()
        .unwrap();
    let deleting = worker(&read, "read").ack_delete(AckDelete::Immediate);
    let e = recording(deleting, &seen).start().unwrap_err();
    assert!(e.to_string().contains("other"), "{e}");
    assert_eq!(
        server.command(&["XLEN", &stream("deleting", 0)]).unwrap(),
        Reply::Int(0)
    );
}

#[test]
fn no_more_calls_run_at_once_than_may_and_a_paused_consumer_makes_none() {
    let server = server();
    let streams = open(&server.url(), "in-flight", 4);
    let running_now = Arc::new(AtomicU32::new(0));
    let most = Arc::new(AtomicU32::new(0));
    let done = Seen::default();
    let handle = {
        let (now, most, done) = (running_now.clone(), most.clone(), done.clone());
        move |_: &Message<'_>| -> HandlerResult {
            most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
            thread::sleep(Duration::from_millis(5));
            now.fetch_sub(1, SeqCst);
            done.push(());
            Ok(())
        }
    };
    let consumer = worker(&streams, "in-flight")
        .max_in_flight(2)
        .shared(handle)
        .start()
        .unwrap();
    let publisher = streams.publisher("in-flight").unwrap();
    let more = |n: u32| {
        for n in 0..n {
            publisher.publish(n.to_string(), "T", b"").unwrap();
        }
    };
    more(100);
    done.wait_for(100);
    assert_eq!(most.load(SeqCst), 2);
    assert!(consumer.in_flight() <= 2);
    consumer.pause();
    expect("no call", || running_now.load(SeqCst) == 0);
    expect("none to be shown", || consumer.in_flight() == 0);
    thread::sleep(SHORT);
    let before = done.len();
    more(20);
    thread::sleep(2 * SHORT);
    assert!(done.len() <= before + 2, "{} after {before}", done.len());
    consumer.resume();
    done.wait_for(120);
    consumer.stop();
}

#[test]
fn a_slow_handler_keeps_what_it_has_and_what_the_dead_had_is_taken_over() {
    let server = server();
    let pods = ["slow", "other"].map(|pod| as_pod(&server, "kept-alive", 1, pod));
    let idle = 3 * SHORT;
    let (begun, go, seen) = (
        Seen::default(),
        Arc::new(AtomicU32::new(0)),
        Seen::default(),
    );
    let handle = {
        let (begun, go, seen) = (begun.clone(), go.clone(), seen.clone());
        move |m: &Message<'_>| -> HandlerResult {
            begun.push(());
            expect("the signal", || go.load(SeqCst) > 0);
            seen.push(String::from_utf8_lossy(m.body()).into_owned());
            Ok(())
        }
    };
    let claims = |b: ConsumerBuilder| b.claim_idle(idle).claim_interval(SHORT / 2);
    publish(&pods[0], "kept-alive", 0..3); // so that one read brings all of them
    let slow = claims(worker(&pods[0], "kept-alive"))
        .shared(handle)
        .start()
        .unwrap();
    begun.wait_for(1);
    // one of somebody who is no more, and never was one of ours
    let key = stream("kept-alive", 0);
    publish(&pods[0], "kept-alive", 3..4);
    let read = [
        "XREADGROUP",
        "GROUP",
        "c",
        "ghost",
        "COUNT",
        "10",
        "STREAMS",
        &key,
        ">",
    ];
    let ghost = server.command(&read).unwrap();
    assert_eq!(
        ghost.items()[0].items()[1].items().len(),
        1,
        "the slow one has the others"
    );
    let other = recording(claims(worker(&pods[1], "kept-alive")), &seen)
        .start()
        .unwrap();
    seen.wait_for(1);
    thread::sleep(3 * idle);
    assert_eq!(seen.all(), ["3"], "of the slow one's nothing was claimed");
    let counts = server
        .command(&["XPENDING", &key, "c", "-", "+", "10"])
        .unwrap();
    assert!(
        counts.items().iter().all(|e| e.items()[3] == Reply::Int(1)),
        "{counts:?}"
    );
    go.store(1, SeqCst);
    seen.wait_for(4);
    slow.stop();
    other.stop();
    assert_eq!(pending(&server, &key), 0);
    assert_eq!(seen.len(), 4);
}

#[test]
fn a_group_that_is_lost_is_made_again_where_it_was() {
    let server = server();
    let streams = open(&server.url(), "lost-group", 1);
    let seen = Seen::default();
    let consumer = recording(worker(&streams, "lost-group"), &seen)
        .start()
        .unwrap();
    publish(&streams, "lost-group", 0..20);
    seen.wait_for(20);
    let key = stream("lost-group", 0);
    let marked = || {
        let mark = server
            .command(&["HGET", "re:p:{lost-group}:c:meta", "0:group"])
            .unwrap()
            .text();
        mark.starts_with(' ') && !mark.ends_with(" 0-0")
    };
    expect("all acknowledged, and that is written down", marked);
    server.command(&["XGROUP", "DESTROY", &key, "c"]).unwrap();
    publish(&streams, "lost-group", 20..25);
    seen.wait_for(25);
    consumer.drain(PATIENCE).unwrap();
    assert_eq!(
        seen.all(),
        (0..25).map(|n| n.to_string()).collect::<Vec<_>>()
    );
    let told = warned("lost-group[0]/c");
    let lost: Vec<_> = told.iter().filter(|l| l.contains("LOST")).collect();
    assert_eq!(lost.len(), 1, "{told:?}");
}

#[test]
fn a_group_is_moved_once_it_is_said_what_becomes_of_what_is_pending() {
    let server = server();
    let streams = open(&server.url(), "moved-group", 1);
    let seen = Seen::default();
    let consumer = recording(worker(&streams, "moved-group"), &seen)
        .start()
        .unwrap();
    publish(&streams, "moved-group", 0..10);
    seen.wait_for(10);
    let admin = streams.admin();
    let reset = |to| admin.reset("moved-group", "c", to);
    let e = reset(ResetTo::Start).apply().unwrap_err();
    assert!(e.to_string().contains("owned"), "{e}");
    consumer.drain(PATIENCE).unwrap();
    let key = stream("moved-group", 0);
    publish(&streams, "moved-group", 10..15);
    let read = [
        "XREADGROUP",
        "GROUP",
        "c",
        "gone#0a1b2c3d",
        "COUNT",
        "5",
        "STREAMS",
        &key,
        ">",
    ];
    server.command(&read).unwrap();
    let preview = reset(ResetTo::Start).preview().unwrap();
    let p = &preview.partitions[0];
    assert_eq!(
        (p.pending, p.entries, p.direction),
        (Some(5), 15, ResetDirection::Rewind)
    );
    assert!(preview.to_string().contains("pending 5"), "{preview}");
    let e = reset(ResetTo::Start).apply().unwrap_err();
    assert!(e.to_string().contains("Pending::Keep"), "{e}");
    reset(ResetTo::End).pending(Pending::Keep).apply().unwrap();
    assert_eq!(pending(&server, &key), 5);
    reset(ResetTo::Start)
        .pending(Pending::Drop)
        .apply()
        .unwrap();
    assert_eq!(pending(&server, &key), 0);
    let (again, seen) = (Seen::default(), seen.len());
    assert_eq!(seen, 10);
    let consumer = recording(worker(&streams, "moved-group"), &again)
        .start()
        .unwrap();
    consumer.drain(PATIENCE).unwrap();
    assert_eq!(
        again.all(),
        (0..15).map(|n| n.to_string()).collect::<Vec<_>>()
    );
}

#[test]
fn what_every_reader_has_finished_is_deleted_and_nothing_that_one_has_not() {
    let server = server();
    let streams = open(&server.url(), "all-groups", 1);
    let (fast, slow) = (Seen::default(), Seen::default());
    let deleting = worker(&streams, "all-groups").ack_delete(AckDelete::AllGroups);
    let deleting = recording(deleting, &fast).start().unwrap();
    let ordered = || {
        streams
            .consumer("all-groups")
            .name("slow")
            .persist_interval(SHORT)
    };
    let reader = recording(ordered(), &slow).start().unwrap();
    reader.pause();
    publish(&streams, "all-groups", 0..20);
    fast.wait_for(20);
    let length = || server.command(&["XLEN", &stream("all-groups", 0)]).unwrap();
    thread::sleep(Duration::from_millis(1500));
    assert!(length().int().unwrap() >= 20 - i64::try_from(slow.len()).unwrap());
    reader.resume();
    slow.wait_for(20);
    expect("all to be deleted", || {
        publish(&streams, "all-groups", 20..21);
        thread::sleep(SHORT);
        length().int().unwrap() < 15
    });
    reader.stop();
    deleting.stop();
    assert_eq!(
        slow.all()[..20],
        (0..20).map(|n| n.to_string()).collect::<Vec<_>>()
    );
}
