//! Messages at which processes died before, by what is on record of them; and messages that say themselves how
//! often they may be tried.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use streamlane::{testing::PrivateServer, *};

use crate::{
    contract::{LedgerDown, becomes, text, topic_of},
    parking::letters,
    support::*,
};

const NONE: Duration = Duration::ZERO;

fn meta(topic: &str) -> String {
    format!("re:p:{{{topic}}}:c:meta")
}

/// Writes down that so many lanes have begun with this message.
fn put(server: &PrivateServer, topic: &str, id: StreamId, times: u32) {
    let value = format!("{id} {times}");
    let put = ["HSET", &meta(topic), "0:deliveries", &value];
    server.command(&put).unwrap();
}

fn on_record(server: &PrivateServer, topic: &str) -> String {
    let get = ["HGET", &meta(topic), "0:deliveries"];
    server.command(&get).unwrap().text()
}

#[test]
fn each_policy_has_its_way_with_a_message_that_is_not_handed_over_any_more() {
    type Make = fn(ConsumerBuilder) -> ConsumerBuilder;
    let is_ours = |e: &(dyn std::error::Error + 'static)| {
        let e = e.downcast_ref::<Error>()?;
        (e.kind() == ErrorKind::Handler).then_some(Action::DeadLetter)
    };
    let makes: [(&str, Make, bool, bool); 7] = [
        // topic, policy; whether it is kept, and whether what comes behind it is handled
        ("given-up", |b| b, false, true),
        ("given-up-batches", |b| b.batch_size(3), false, true),
        ("given-up-park", |b| b.park(3), true, true),
        (
            "given-up-sync",
            |b| b.park(3).persist(Persist::SyncMessage),
            true,
            true,
        ),
        (
            "given-up-static",
            |b| b.park(3).instance_of(0, 1),
            true,
            true,
        ),
        (
            "given-up-stop",
            |b| b.on_error(OnError::StopPartition),
            false,
            false,
        ),
        ("given-up-fail", |b| b.on_error(OnError::Fail), false, false),
    ];
    for (topic, make, kept, on) in makes {
        let (server, streams, ids) = topic_of(topic, 5);
        put(&server, topic, ids[0], 20);
        for life in 0..2 {
            let streams = streams_again(&server, topic, &streams);
            let seen = Seen::default();
            let builder = make(streams.consumer(topic).name("c"));
            let consumer = recording(builder, &seen).start().unwrap();
            if on {
                consumer.drain(PATIENCE).unwrap();
                let handled: &[&str] = if life == 0 {
                    &["1", "2", "3", "4"]
                } else {
                    &[]
                };
                assert_eq!(seen.all(), handled, "{topic}");
                assert_eq!(stored(&server, topic, "c", 0), Some(ids[4]), "{topic}");
                continue;
            }
            let status = becomes(&consumer, 0, LaneState::Stopped);
            let said = if topic.ends_with("fail") {
                streams.wait().unwrap_err().to_string()
            } else {
                status.reason.clone()
            };
            for part in [
                &*ids[0].to_string(),
                "given out 20 times",
                "ends its process",
            ] {
                assert!(said.contains(part), "{part}: {said}");
            }
            assert!(seen.all().is_empty() && status.failures == 1, "{topic}");
            let position = stored(&server, topic, "c", 0).unwrap_or(StreamId::MIN);
            assert_eq!(position, StreamId::MIN, "{topic}");
            assert_eq!(on_record(&server, topic), format!("{} 20", ids[0]));
        }
        let letters = letters(&streams, topic);
        let of: Vec<_> = letters
            .iter()
            .map(|l| (l.last_id, l.deliveries, l.attempts))
            .collect();
        let one = [(ids[0], 20, 0)];
        assert_eq!(of, if kept { &one[..] } else { &[] }, "{topic}");
        assert!(
            letters
                .iter()
                .all(|l| l.reason == Some(DeadLetterReason::Deliveries))
        );
        if on && !kept {
            let lines = logged(&[&format!("ERROR {topic}[0]/c"), "given out 20 times"]);
            assert_eq!(lines.len(), 1, "{lines:?}");
            for part in [&*ids[0].to_string(), "stepped over", "MaxDeliveries"] {
                assert!(lines[0].contains(part), "{part}: {}", lines[0]);
            }
        }
    }
    // what a hook says of it goes before the policy
    let (server, streams, ids) = topic_of("given-up-hook", 2);
    put(&server, "given-up-hook", ids[0], 22);
    let seen = Seen::default();
    let builder = streams
        .consumer("given-up-hook")
        .name("c")
        .classify(is_ours);
    let consumer = recording(builder, &seen).start().unwrap();
    consumer.drain(PATIENCE).unwrap();
    assert_eq!(seen.all(), ["1"]);
    let letters = letters(&streams, "given-up-hook");
    assert_eq!((letters.len(), letters[0].deliveries), (1, 22));
    assert_eq!(letters[0].reason, Some(DeadLetterReason::Deliveries));
}

/// After a failure for good the streams are of no more use.
fn streams_again(server: &PrivateServer, topic: &str, streams: &Streams) -> Streams {
    if topic.ends_with("fail") {
        open(&server.url(), topic, 1)
    } else {
        streams.clone()
    }
}

#[test]
fn below_the_limit_after_a_reset_or_where_it_is_off_a_message_is_handed_over() {
    type Make = fn(ConsumerBuilder) -> ConsumerBuilder;
    let makes: [(&str, Make, u32); 5] = [
        ("below", |b| b, 19),
        ("raised", |b| b.max_deliveries(21), 20),
        ("off", |b| b.max_deliveries(0), 99),
        (
            "kept-nowhere",
            |b| b.persist(Persist::None).start_from(StartFrom::Beginning),
            99,
        ),
        ("forgiven", |b| b, 20),
    ];
    for (topic, make, times) in makes {
        let (server, streams, ids) = topic_of(topic, 3);
        put(&server, topic, ids[0], times);
        if topic == "forgiven" {
            let marker = ["HSET", &format!("re:p:{{{topic}}}:c"), "__reset:0", "0-0"];
            server.command(&marker).unwrap();
        }
        let seen = Seen::default();
        let builder = make(streams.consumer(topic).name("c"));
        let consumer = recording(builder, &seen).start().unwrap();
        seen.wait_for(3);
        drop(consumer);
        assert_eq!(seen.all(), ["0", "1", "2"], "{topic}");
        let left = match topic {
            "below" | "raised" => format!("{} 1", ids[2]), // each was on record, one by one
            "forgiven" => format!("{} 1", ids[0]),
            _ => format!("{} {times}", ids[0]),
        };
        assert_eq!(on_record(&server, topic), left, "{topic}");
    }
}

#[test]
fn all_that_is_written_in_good_times_is_the_first_message_of_each_lane() {
    let server = server();
    for (topic, persist) in [
        ("once", Persist::AsyncBatch),
        ("once-sync", Persist::SyncBatch),
    ] {
        let streams = open(&server.url(), topic, 1);
        let bodies: Vec<String> = (0..500).map(|n| n.to_string()).collect();
        let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
        let ids = publish_to(&streams, topic, 0, &bodies);
        let seen = Seen::default();
        let start = || {
            let builder = streams.consumer(topic).name("c").batch_size(20);
            recording(builder.persist(persist), &seen).start().unwrap()
        };
        let consumer = start();
        seen.wait_for(500);
        assert_eq!(on_record(&server, topic), format!("{} 1", ids[0]));
        drop(consumer);
        let idle = start();
        running(&idle);
        drop(idle);
        assert_eq!(on_record(&server, topic), format!("{} 1", ids[0]));
        let consumer = start();
        let more = publish_to(&streams, topic, 0, &["a", "b"]);
        seen.wait_for(502);
        assert_eq!(on_record(&server, topic), format!("{} 1", more[0]));
        drop(consumer);
    }
}

/// However long it lasts and whatever dies meanwhile: a message that must not be stepped over is not.
#[test]
fn a_message_is_on_record_while_a_handler_has_it_and_not_while_it_blocks() {
    let (server, streams, ids) = topic_of("blocks-off-record", 2);
    let topic = "blocks-off-record";
    put(&server, topic, ids[0], 1);
    let (calls, mended) = (Seen::default(), Arc::new(AtomicBool::new(false)));
    let (record, is_mended) = (calls.clone(), Arc::clone(&mended));
    let server = Arc::new(server);
    let looks = Arc::clone(&server);
    let consumer = streams.consumer(topic).name("c").shared(move |m| {
        let field = on_record(&looks, topic);
        record.push(format!("{} {field}", text(m)));
        if is_mended.load(SeqCst) {
            Ok(())
        } else {
            Err(LedgerDown).or_block()
        }
    });
    let consumer = consumer.start().unwrap();
    for n in 2..4 {
        calls.wait_for(n);
        expect("it to be taken off", || {
            on_record(&server, topic) == format!("{} 1", ids[0])
        });
    }
    mended.store(true, SeqCst);
    consumer.drain(PATIENCE).unwrap();
    let calls = calls.all();
    let (first, second) = (format!("0 {} 2", ids[0]), format!("1 {} 2", ids[0]));
    assert!(
        calls[..calls.len() - 1].iter().all(|c| *c == first),
        "{calls:?}"
    );
    assert_eq!(calls.last(), Some(&second), "the lane has got past it");
}

/// Fails each time, and writes down with which attempt.
fn failing(seen: &Seen<String>) -> impl Fn(&Message<'_>) -> HandlerResult + use<> {
    let seen = seen.clone();
    move |m: &Message<'_>| {
        seen.push(format!("{} {}", text(m), m.attempt()));
        Err(LedgerDown)?
    }
}

#[test]
fn a_message_may_be_tried_less_often_than_the_consumer_would() {
    let server = server();
    let topic = "caps";
    let streams = open(&server.url(), topic, 1);
    let publisher = streams.publisher(topic).unwrap();
    publisher
        .message("T", "none")
        .max_attempts(0)
        .publish()
        .unwrap();
    publisher
        .message("T", "one")
        .header("a", "b")
        .max_attempts(1)
        .publish()
        .unwrap();
    publisher
        .message("T", "more")
        .max_attempts(100)
        .publish()
        .unwrap();
    for garbage in ["", "-1", "x", "99999999999999999999999"] {
        let draft = publisher
            .message("T", "odd")
            .header("streamlane-max-attempts", garbage);
        draft.publish().unwrap();
    }
    let many = [Outgoing::new("T", "batch").max_attempts(1)];
    publisher.publish_batch(&many).remove(0).unwrap();
    let buffered = streams.buffered(topic).unwrap();
    buffered
        .enqueue(&Outgoing::new("T", "queued").max_attempts(0))
        .unwrap();
    buffered.flush(PATIENCE).into_result().unwrap();
    let seen = Seen::default();
    let builder = streams
        .consumer(topic)
        .name("c")
        .park(2)
        .park_pauses(NONE, NONE);
    let consumer = builder.shared(failing(&seen)).start().unwrap();
    consumer.drain(PATIENCE).unwrap();
    let letters = letters(&streams, topic);
    let tried: Vec<_> = letters
        .iter()
        .map(|l| (String::from_utf8_lossy(l.body().unwrap()), l.attempts))
        .collect();
    let odd = ("odd".into(), 2);
    let expected = [
        ("none".into(), 0),
        ("one".into(), 1),
        ("more".into(), 2),
        odd.clone(),
        odd.clone(),
        odd.clone(),
        odd,
        ("batch".into(), 1),
        ("queued".into(), 0),
    ];
    assert_eq!(tried, expected);
    assert_eq!(seen.all()[..3], ["none 1", "one 1", "one 2"]);
    let calls: u32 = letters.iter().map(|l| l.deliveries).sum();
    assert_eq!(seen.len(), calls as usize);
}

#[test]
fn a_cap_is_seen_by_handlers_and_counts_for_the_batch_it_is_in_and_for_no_other_policy() {
    let server = server();
    let publish = |topic: &str| {
        let streams = open(&server.url(), topic, 1);
        let publisher = streams.publisher(topic).unwrap();
        for (body, cap) in [("0", None), ("1", Some(1)), ("2", Some(9))] {
            let draft = publisher.message("T", body);
            let draft = match cap {
                None => draft,
                Some(cap) => draft.max_attempts(cap),
            };
            draft.publish().unwrap();
        }
        streams
    };
    let streams = publish("capped-batch");
    let caps = Seen::default();
    let record = caps.clone();
    let builder = streams.consumer("capped-batch").name("c").park(3);
    let consumer = builder.park_pauses(NONE, NONE).shared_batches(move |b| {
        record.push(b.messages().map(|m| m.max_attempts()).collect::<Vec<_>>());
        Err(LedgerDown)?
    });
    consumer.start().unwrap().drain(PATIENCE).unwrap();
    assert_eq!(caps.all(), vec![vec![None, Some(1), Some(9)]; 2]);
    let attempts: Vec<_> = letters(&streams, "capped-batch")
        .iter()
        .map(|l| l.attempts)
        .collect();
    assert_eq!(attempts, [1, 1, 1]);

    let streams = publish("capped-marked");
    let seen = Seen::default();
    let one = failing(&seen);
    let builder = streams.consumer("capped-marked").name("c").park(3);
    let consumer = builder.park_pauses(NONE, NONE);
    let consumer = consumer.shared_batches(move |b| b.each(|m| one(m)));
    consumer.start().unwrap().drain(PATIENCE).unwrap();
    let attempts: Vec<_> = letters(&streams, "capped-marked")
        .iter()
        .map(|l| l.attempts)
        .collect();
    assert_eq!(attempts, [3, 1, 3]);

    let streams = publish("capped-skips");
    let seen = Seen::default();
    let consumer = streams
        .consumer("capped-skips")
        .name("c")
        .shared(failing(&seen));
    consumer.start().unwrap().drain(PATIENCE).unwrap();
    assert_eq!(seen.all(), ["0 1", "1 1", "2 1"]);
    assert!(letters(&streams, "capped-skips").is_empty());
}
