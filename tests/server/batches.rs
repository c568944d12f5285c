//! What a failure does to a batch: how far it got, and what is handed over again.
#![allow(clippy::unwrap_used)]

use std::{
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::Duration,
};

use streamlane::{testing::PrivateServer, *};

use crate::{
    contract::{LedgerDown, becomes, text, topic_of},
    support::*,
};

fn texts(batch: &Batch<'_>) -> String {
    batch
        .messages()
        .map(|m| text(&m))
        .collect::<Vec<_>>()
        .join(" ")
}

/// How far a batch handler says that it got before it fails.
enum Progress {
    Unsaid,
    Done(usize),
    Each,
}

#[test]
fn best_effort_skips_a_batch_whole_unless_the_handler_said_how_far_it_got() {
    // batches of five; what fails is the message 2, once
    let table: [(&str, Progress, &[&str], u64, u64); 5] = [
        ("whole", Progress::Unsaid, &["0 1 2 3 4", "5 6 7 8 9"], 5, 5),
        (
            "done0",
            Progress::Done(0),
            &["0 1 2 3 4", "1 2 3 4", "5 6 7 8 9"],
            9,
            1,
        ),
        (
            "done2",
            Progress::Done(2),
            &["0 1 2 3 4", "3 4", "5 6 7 8 9"],
            9,
            1,
        ),
        (
            "done5",
            Progress::Done(5),
            &["0 1 2 3 4", "5 6 7 8 9"],
            10,
            0,
        ),
        (
            "each",
            Progress::Each,
            &["0 1 2 3 4", "3 4", "5 6 7 8 9"],
            9,
            1,
        ),
    ];
    let server = server();
    for (topic, progress, calls, handled, skipped) in table {
        let streams = open(&server.url(), topic, 1);
        publish_to(
            &streams,
            topic,
            0,
            &["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"],
        );
        let (seen, failed) = (Seen::default(), AtomicBool::new(false));
        let record = seen.clone();
        let consumer = streams
            .consumer(topic)
            .name("c")
            .batch_size(5)
            .shared_batches(move |batch| {
                record.push(texts(batch));
                if failed.load(SeqCst) {
                    return Ok(());
                }
                match progress {
                    Progress::Each => {
                        return batch.each(|m| {
                            if text(m) == "2" && !failed.swap(true, SeqCst) {
                                return Err(LedgerDown.into());
                            }
                            Ok(())
                        });
                    }
                    Progress::Done(n) => batch.done(n),
                    Progress::Unsaid => {}
                }
                failed.store(true, SeqCst);
                Err(LedgerDown)?
            })
            .start()
            .unwrap();
        consumer.drain(PATIENCE).unwrap();
        assert_eq!(seen.all(), calls, "{topic}");
        let status = &consumer.partitions()[0];
        assert_eq!(
            (status.handled, status.skipped),
            (handled, skipped),
            "{topic}"
        );
    }
}

#[test]
fn a_blocked_batch_is_handed_over_from_its_first_message_not_done() {
    let (server, streams, ids) = topic_of("half", 5);
    let seen = Seen::default();
    let record = seen.clone();
    let consumer = streams
        .consumer("half")
        .name("c")
        .persist_interval(Duration::from_millis(20))
        .shared_batches(move |batch| {
            let attempt = batch.get(0).unwrap().attempt();
            record.push(format!("{} ({attempt})", texts(batch)));
            match record.len() {
                1 => batch.done(2),
                2 => batch.done(1),
                _ => return Ok(()),
            }
            Err(LedgerDown).or_block()
        })
        .start()
        .unwrap();
    seen.wait_for(1);
    expect("what is done to be stored", || {
        stored(&server, "half", "c", 0) == Some(ids[1])
    });
    assert_eq!(seen.wait_for(3), ["0 1 2 3 4 (1)", "2 3 4 (2)", "3 4 (2)"]);
    assert_eq!(consumer.drain(PATIENCE).unwrap().positions, [ids[4]]);
    assert_eq!(consumer.partitions()[0].handled, 5);
}

#[test]
fn a_panic_in_a_batch_keeps_what_was_done() {
    let (_server, streams, _ids) = topic_of("batch-panics", 5);
    let seen = Seen::default();
    let record = seen.clone();
    let consumer = streams
        .consumer("batch-panics")
        .name("c")
        .shared_batches(move |batch| {
            record.push(texts(batch));
            batch.each(|m| {
                assert!(text(m) != "2");
                Ok(())
            })
        })
        .start()
        .unwrap();
    consumer.drain(PATIENCE).unwrap();
    assert_eq!(seen.all(), ["0 1 2 3 4", "3 4"]);
}

#[test]
fn a_batch_that_is_called_off_keeps_only_what_it_finished() {
    let server = server();
    for (topic, by_each) in [("each-off", true), ("done-off", false)] {
        let streams = open(&server.url(), topic, 1);
        let ids = publish_to(&streams, topic, 0, &["0", "1", "2", "3"]);
        let (entered, seen) = (Seen::default(), Seen::default());
        let (at, record) = (entered.clone(), seen.clone());
        let consumer = streams
            .consumer(topic)
            .name("c")
            .shared_batches(move |batch| {
                // the message 1 takes until the consumer is stopped
                let handle = |m: &Message<'_>| {
                    record.push(text(m));
                    if text(m) == "1" {
                        at.push(());
                        expect("to be called off", || m.is_cancelled());
                    }
                };
                if by_each {
                    return batch.each(|m| {
                        handle(m);
                        Ok(())
                    });
                }
                for (i, m) in batch.messages().enumerate() {
                    if batch.is_cancelled() {
                        return Err("called off".into());
                    }
                    handle(&m);
                    batch.done(i + 1);
                }
                Ok(())
            })
            .start()
            .unwrap();
        entered.wait_for(1);
        let stopped = consumer.stop();
        assert_eq!(seen.all(), ["0", "1"], "{topic}");
        assert_eq!(
            stopped.positions,
            [ids[1]],
            "{topic}: what was not handled is not finished"
        );
        assert_eq!(stored(&server, topic, "c", 0), Some(ids[1]));
        let status = &consumer.partitions()[0];
        assert_eq!((status.handled, status.failures), (2, 0), "{topic}");
        drop(consumer);
        let rest = Seen::default();
        let next = recording(streams.consumer(topic).name("c"), &rest)
            .start()
            .unwrap();
        next.drain(PATIENCE).unwrap();
        assert_eq!(rest.all(), ["2", "3"], "{topic}");
    }
}

/// A proper entry, one without a body, one without a type, one with broken headers, a proper one.
fn malformed(server: &PrivateServer, topic: &str) {
    let key = format!("re:s:{{{topic}}}:0");
    for fields in [
        &["b", "first", "t", "T", "k", ""][..],
        &["t", "T", "k", ""],
        &["b", "x", "k", ""],
        &["b", "x", "t", "T", "k", "", "h", "9:short"],
        &["b", "last", "t", "T", "k", ""],
    ] {
        let xadd = [&["XADD", &key, "*"], fields].concat();
        server.command(&xadd).unwrap();
    }
}

#[test]
fn malformed_entries_go_to_the_policy_of_message_handlers_and_to_batch_handlers_in_place() {
    let server = server();
    let streams = open(&server.url(), "malformed", 1);
    malformed(&server, "malformed");
    let seen = Seen::default();
    let consumer = recording(streams.consumer("malformed").name("messages"), &seen);
    let consumer = consumer.start().unwrap();
    consumer.drain(PATIENCE).unwrap();
    assert_eq!(seen.all(), ["first", "last"]);
    let status = &consumer.partitions()[0];
    assert_eq!((status.handled, status.skipped), (2, 3));
    assert!(!logged(&["ERROR malformed[0]/messages", "the entry is malformed"]).is_empty());

    let seen = Seen::default();
    let record = seen.clone();
    let consumer = streams
        .consumer("malformed")
        .name("batches")
        .shared_batches(move |batch| {
            for m in batch.messages() {
                record.push((text(&m), m.malformed().is_some()));
            }
            Ok(())
        })
        .start()
        .unwrap();
    consumer.drain(PATIENCE).unwrap();
    let (proper, broken) = (
        |t: &str| (t.to_owned(), false),
        |t: &str| (t.to_owned(), true),
    );
    let want = [
        proper("first"),
        broken(""),
        broken("x"),
        broken("x"),
        proper("last"),
    ];
    assert_eq!(seen.all(), want);

    let strict = streams.consumer("malformed").name("strict");
    let strict = recording(strict.on_error(OnError::StopPartition), &Seen::default());
    let strict = strict.start().unwrap();
    let status = becomes(&strict, 0, LaneState::Stopped);
    assert!(status.reason.contains("malformed"), "{}", status.reason);
}
