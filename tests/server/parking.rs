//! Messages that fail for good become dead letters: when, with what in them, and never but with the position.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::{Duration, SystemTime},
};

use streamlane::{
    testing::{Fault, PrivateServer, Relay, Reply, Way},
    *,
};

use crate::{
    contract::{LedgerDown, text, topic_of},
    support::*,
};

const NONE: Duration = Duration::ZERO;

/// A consumer that hands a message over twice more at once before it parks it.
fn parking(streams: &Streams, topic: &str) -> ConsumerBuilder {
    let builder = streams.consumer(topic).name("c");
    builder.park(2).park_pauses(NONE, NONE)
}

/// All dead letters of consumer `c`.
pub(crate) fn letters(streams: &Streams, topic: &str) -> Vec<DeadLetter> {
    let page = streams.admin().dead_letters(topic, "c").page(None, 10_000);
    let page = page.unwrap();
    assert_eq!(page.next, None);
    page.letters
}

fn last_ids(letters: &[DeadLetter]) -> Vec<StreamId> {
    letters.iter().map(|l| l.last_id).collect()
}

/// The fields of an entry as the server has them.
fn fields(server: &PrivateServer, topic: &str, id: StreamId) -> Vec<(String, String)> {
    let (key, id) = (format!("re:s:{{{topic}}}:0"), id.to_string());
    let range = server.command(&["XRANGE", &key, &id, &id]).unwrap();
    let pair = |p: &[Reply]| (p[0].text(), p[1].text());
    let entry = range.items()[0].items()[1].items();
    entry.chunks(2).map(pair).collect()
}

fn of_letter(letter: &DeadLetter) -> Vec<(String, String)> {
    let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
    let fields = letter.fields.iter();
    fields.map(|(n, v)| (text(n), text(v))).collect()
}

/// Fails at the message of this body.
fn failing_at(
    body: &'static str,
    seen: &Seen<String>,
) -> impl Fn(&Message<'_>) -> HandlerResult + use<> {
    let seen = seen.clone();
    move |m: &Message<'_>| {
        seen.push(format!("{} {}", text(m), m.attempt()));
        if text(m) == body {
            Err(LedgerDown)?;
        }
        Ok(())
    }
}

#[test]
fn a_message_is_tried_in_its_place_so_often_and_then_it_is_a_dead_letter() {
    let (server, streams, ids) = topic_of("tried-in-place", 5);
    let seen = Seen::default();
    let consumer = parking(&streams, "tried-in-place")
        .shared(failing_at("2", &seen))
        .start()
        .unwrap();
    let stopped = consumer.drain(PATIENCE).unwrap();
    assert_eq!(
        seen.all(),
        ["0 1", "1 1", "2 1", "2 2", "2 3", "3 1", "4 1"]
    );
    assert_eq!(stopped.positions, [ids[4]]);
    assert_eq!(stored(&server, "tried-in-place", "c", 0), Some(ids[4]));
    let status = &consumer.partitions()[0];
    let counted = (
        status.handled,
        status.skipped,
        status.failures,
        status.parked,
    );
    assert_eq!(counted, (4, 0, 3, 1));

    let letters = letters(&streams, "tried-in-place");
    let [letter] = &letters[..] else {
        panic!("{letters:?}")
    };
    assert_eq!(
        (&*letter.topic, &*letter.consumer, letter.partition),
        ("tried-in-place", "c", 0)
    );
    assert_eq!((letter.first_id, letter.last_id), (ids[2], ids[2]));
    assert_eq!((letter.attempts, letter.deliveries), (2, 3));
    assert_eq!(letter.reason, Some(DeadLetterReason::Retries));
    assert_eq!(letter.error, "the ledger is down");
    assert_eq!(of_letter(letter), fields(&server, "tried-in-place", ids[2]));
    assert_eq!((letter.omitted, letter.replayed), (0, None));
    let now = letter.id.timestamp();
    assert!(letter.first_failure <= letter.last_failure && letter.last_failure <= now);
    assert!(letter.first_failure + Duration::from_secs(1) >= ids[2].timestamp());

    let lines = logged(&["tried-in-place[0]/c", "DEAD LETTER"]);
    assert_eq!(lines.len(), 1, "{lines:?}");
    let (id, letter) = (ids[2].to_string(), letter.id.to_string());
    for part in [
        "ERROR",
        &id,
        &letter,
        "type T",
        "deliveries 3",
        "retries",
        "the ledger is down",
        r#"admin().dead_letters("tried-in-place", "c")"#,
        "replay or delete",
    ] {
        assert!(lines[0].contains(part), "{part} in {}", lines[0]);
    }
}

#[test]
fn a_message_that_succeeds_in_time_is_none() {
    let (_server, streams, _) = topic_of("mends", 3);
    let seen = Seen::default();
    let calls = seen.clone();
    let consumer = parking(&streams, "mends").shared(move |m| {
        calls.push(format!("{} {}", text(m), m.attempt()));
        // once more as asked for, and then twice by policy
        match m.attempt() {
            1 => Err(LedgerDown).or_retry_after(Duration::from_millis(1)),
            2 | 3 => Err(LedgerDown)?,
            _ => Ok(()),
        }
    });
    let consumer = consumer.start().unwrap();
    consumer.drain(PATIENCE).unwrap();
    let each = |n: u32| (1..5).map(move |attempt| format!("{n} {attempt}"));
    assert_eq!(seen.all(), (0..3).flat_map(each).collect::<Vec<_>>());
    assert_eq!(consumer.partitions()[0].parked, 0);
    assert!(letters(&streams, "mends").is_empty());
}

#[test]
fn a_handler_and_a_hook_may_ask_for_it_whatever_the_policy() {
    let server = server();
    for (i, policy) in [
        OnError::BestEffort,
        OnError::StopPartition,
        OnError::Fail,
        OnError::Park,
    ]
    .into_iter()
    .enumerate()
    {
        let topic = &format!("asks{i}");
        let streams = open(&server.url(), topic, 1);
        let ids = publish_to(&streams, topic, 0, &["0", "handler", "2", "hook", "4"]);
        let seen = Seen::default();
        let calls = seen.clone();
        let builder = streams.consumer(topic).name("c").on_error(policy);
        let consumer = builder
            .classify(|e| e.is::<LedgerDown>().then_some(Action::DeadLetter))
            .shared(move |m| {
                calls.push(text(m));
                match &*text(m) {
                    "handler" => Err("no").or_dead_letter(),
                    "hook" => Err(LedgerDown)?,
                    _ => Ok(()),
                }
            })
            .start()
            .unwrap();
        consumer.drain(PATIENCE).unwrap();
        assert_eq!(seen.all(), ["0", "handler", "2", "hook", "4"], "{policy:?}");
        let letters = letters(&streams, topic);
        assert_eq!(last_ids(&letters), [ids[1], ids[3]], "{policy:?}");
        for letter in &letters {
            assert_eq!((letter.attempts, letter.deliveries), (0, 1));
            assert_eq!(letter.reason, Some(DeadLetterReason::Handler));
        }
    }
}

/// Entries that other services may have written, the last of them a message.
fn odd_entries(server: &PrivateServer, topic: &str) -> Vec<StreamId> {
    let key = format!("re:s:{{{topic}}}:0");
    let add = |fields: &[&str]| -> StreamId {
        let cmd = [&["XADD", &key, "*"], fields].concat();
        server.command(&cmd).unwrap().text().parse().unwrap()
    };
    vec![
        add(&[
            "t", "NoBody", "k", "", "t", "Again", "!error", "theirs", "", "nameless",
        ]),
        add(&["b", "no type", "x", "1", "x", "2", "x", "1"]),
        add(&["b", "x", "t", "T", "h", "9:broken"]),
        add(&[
            "z", "unknown", "b", "first", "t", "T", "b", "", "c", "", "p", "", "!", "13",
        ]),
    ]
}

#[test]
fn what_is_no_message_is_parked_at_once_with_every_field_it_has() {
    type Make = fn(ConsumerBuilder) -> ConsumerBuilder;
    let park: Make = |b| b.park(3);
    let hook: Make = |b| {
        let malformed = |e: &(dyn std::error::Error + 'static)| {
            let e = e.downcast_ref::<Error>()?;
            (e.kind() == ErrorKind::Malformed).then_some(Action::DeadLetter)
        };
        b.classify(malformed)
    };
    let server = server();
    for (topic, make) in [("odd-policy", park), ("odd-hook", hook)] {
        let streams = open(&server.url(), topic, 1);
        drop(streams.publisher(topic).unwrap());
        let ids = odd_entries(&server, topic);
        let seen = Seen::default();
        let calls = seen.clone();
        let consumer = make(streams.consumer(topic).name("c")).shared(move |m| {
            calls.push(m.id());
            Err("no").or_dead_letter()
        });
        consumer.start().unwrap().drain(PATIENCE).unwrap();
        assert_eq!(seen.all(), [ids[3]], "only a message is handed over");
        let letters = letters(&streams, topic);
        assert_eq!(last_ids(&letters), ids);
        for (letter, id) in letters.iter().zip(&ids) {
            assert_eq!(of_letter(letter), fields(&server, topic, *id));
            let reason = if *id == ids[3] {
                DeadLetterReason::Handler
            } else {
                DeadLetterReason::Malformed
            };
            assert_eq!(letter.reason, Some(reason));
        }
        let said: Vec<_> = letters
            .iter()
            .map(|l| (l.body().is_some(), l.key().is_some()))
            .collect();
        // absent and empty stay distinct
        assert_eq!(
            said,
            [(false, true), (true, false), (true, false), (true, false)]
        );
        assert_eq!(letters[3].body(), Some(&b""[..]), "the last one counts");
    }
    // Without the one or the other they are ordinary errors.
    let streams = open(&server.url(), "odd-skip", 1);
    drop(streams.publisher("odd-skip").unwrap());
    odd_entries(&server, "odd-skip");
    let consumer = streams
        .consumer("odd-skip")
        .name("c")
        .shared(|_| Ok(()))
        .start()
        .unwrap();
    consumer.drain(PATIENCE).unwrap();
    assert_eq!(consumer.partitions()[0].skipped, 3);
    assert!(letters(&streams, "odd-skip").is_empty());
}

#[test]
fn every_part_of_a_message_and_the_beginning_of_its_error_are_kept() {
    let server = server();
    let streams = open(&server.url(), "parts", 1);
    let publisher = streams.publisher("parts").unwrap();
    let body: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
    let full = publisher
        .message("Order\0Placed", &body)
        .key("")
        .header("tenant", "a:b")
        .correlation_id("c1")
        .traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    full.publish().unwrap();
    publisher.publish("k", "", "").unwrap();
    let many: Vec<String> = (0..3500)
        .flat_map(|n| [format!("f{n}"), n.to_string()])
        .collect();
    let mut entry = vec!["XADD", "re:s:{parts}:0", "*", "b", "x", "t", "T"];
    entry.extend(many.iter().map(String::as_str));
    server.command(&entry).unwrap();
    let consumer = parking(&streams, "parts").shared(|_| Err("ä".repeat(2000).as_str().into()));
    consumer.start().unwrap().drain(PATIENCE).unwrap();
    let letters = letters(&streams, "parts");
    assert_eq!(letters.len(), 3);
    let entries = server
        .command(&["XRANGE", "re:s:{parts}:0", "-", "+"])
        .unwrap();
    for (letter, entry) in letters.iter().zip(entries.items()) {
        let raw = |reply: &Reply| match reply {
            Reply::Bulk(bytes) => bytes.clone(),
            other => panic!("{other:?}"),
        };
        let entry = entry.items()[1].items().chunks(2);
        let entry: Vec<_> = entry.map(|p| (raw(&p[0]), raw(&p[1]))).collect();
        assert_eq!(letter.fields, entry[..letter.fields.len()]);
        assert_eq!(letter.fields.len() + letter.omitted, entry.len());
        assert_eq!(letter.error, "ä".repeat(512));
    }
    assert_eq!(
        letters.iter().map(|l| l.omitted).collect::<Vec<_>>(),
        [0, 0, 502]
    );
    assert_eq!(letters[0].body(), Some(&body[..]));
}

#[test]
fn of_a_batch_the_message_that_failed_is_parked_or_where_nothing_was_marked_all_of_it() {
    let server = server();
    for (topic, marks) in [("marked", true), ("unmarked", false)] {
        let streams = open(&server.url(), topic, 1);
        let ids = publish_to(&streams, topic, 0, &["0", "1", "2", "3"]);
        let seen = Seen::default();
        let calls = seen.clone();
        let one = move |m: &Message<'_>| -> HandlerResult {
            if text(m) == "1" {
                Err(LedgerDown)?;
            }
            Ok(())
        };
        let consumer = parking(&streams, topic).shared_batches(move |b| {
            let bodies: Vec<_> = b.messages().map(|m| text(&m)).collect();
            calls.push(bodies.join(""));
            if marks {
                b.each(one)
            } else {
                b.messages().try_for_each(|m| one(&m))
            }
        });
        consumer.start().unwrap().drain(PATIENCE).unwrap();
        let parked = last_ids(&letters(&streams, topic));
        if marks {
            assert_eq!(seen.all(), ["0123", "123", "123", "23"]);
            assert_eq!(parked, [ids[1]]);
        } else {
            assert_eq!(seen.all(), ["0123", "0123", "0123"]);
            assert_eq!(parked, ids);
        }
    }
}

#[test]
fn the_position_moves_with_the_letter_however_positions_are_kept() {
    type Make = fn(ConsumerBuilder) -> ConsumerBuilder;
    let hour = Duration::from_hours(1);
    let makes: [(&str, Make); 5] = [
        ("async", |b| b),
        ("batch", |b| b.persist(Persist::SyncBatch)),
        ("message", |b| b.persist(Persist::SyncMessage)),
        ("static", |b| b.instance_of(0, 1)),
        ("nowhere", |b| {
            b.persist(Persist::None).start_from(StartFrom::Beginning)
        }),
    ];
    let server = server();
    for (topic, make) in makes {
        let streams = open(&server.url(), topic, 1);
        let ids = publish_to(&streams, topic, 0, &["0", "1", "2", "3"]);
        let seen = Seen::default();
        let calls = seen.clone();
        let mut builder = parking(&streams, topic);
        if topic != "nowhere" {
            builder = builder.persist_interval(hour);
        }
        let consumer = make(builder).shared(move |m| {
            calls.push(text(m));
            match &*text(m) {
                "1" => Err(LedgerDown)?,
                // until the test has seen what is stored
                "2" => Err(LedgerDown).or_block(),
                _ => Ok(()),
            }
        });
        let consumer = consumer.start().unwrap();
        expect("the message behind to be handed over", || {
            seen.all().last().is_some_and(|b| b == "2")
        });
        let position = (topic != "nowhere").then_some(ids[1]);
        assert_eq!(stored(&server, topic, "c", 0), position, "{topic}");
        assert_eq!(last_ids(&letters(&streams, topic)), [ids[1]], "{topic}");
        if position.is_some() {
            let key = format!("re:p:{{{topic}}}:c:meta");
            let ordinal = server.command(&["HGET", &key, "0:ordinal"]).unwrap().text();
            assert_eq!(ordinal, format!("{} 2", ids[1]), "{topic}");
        }
        consumer.stop();
        assert_eq!(letters(&streams, topic).len(), 1, "{topic}");
    }
}

#[test]
fn a_letter_whose_answer_was_lost_is_not_written_twice() {
    type Make = fn(ConsumerBuilder) -> ConsumerBuilder;
    let makes: [(&str, Make); 2] = [
        ("unheard-parks", |b| b),
        ("unheard-parks-static", |b| b.instance_of(0, 1)),
    ];
    for (topic, make) in makes {
        let server = server();
        let relay = Arc::new(Relay::to(&server).unwrap());
        let direct = open(&server.url(), topic, 1);
        let ids = publish_to(&direct, topic, 0, &["0", "1", "2"]);
        let streams = open(&relay.url(), topic, 1);
        let builder = parking(&streams, topic).block(Duration::from_millis(100));
        // Without a read ahead the connection that is there is the one which is used.
        let builder = builder
            .read_slack(Duration::from_millis(500))
            .read_ahead(false);
        let fault = Arc::clone(&relay);
        let consumer = make(builder).shared(move |m| {
            if text(m) == "1" {
                // the server knows the script by now
                fault.fault_existing(Way::Replies, Fault::Swallow);
            }
            if text(m) == "2" {
                Ok(())
            } else {
                Err(LedgerDown).or_dead_letter()
            }
        });
        let consumer = consumer.start().unwrap();
        expect("the last one to be handled", || {
            consumer.partitions()[0].handled == 1
        });
        let status = &consumer.partitions()[0];
        assert!(status.connects > 1 && status.parked == 2, "{status:?}");
        assert_eq!(last_ids(&letters(&direct, topic)), ids[..2]);
        assert!(
            warned(&format!("{topic}[0]/c"))
                .iter()
                .any(|l| l.contains("store a dead letter"))
        );
    }
}

#[test]
fn pauses_grow_or_are_ones_own_and_a_stop_does_not_wait_for_them() {
    let (_server, streams, ids) = topic_of("pauses-parks", 1);
    let asked = Seen::default();
    let pauses = asked.clone();
    let calls = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&calls);
    let consumer = streams
        .consumer("pauses-parks")
        .name("c")
        .park(4)
        .park_pauses(NONE, NONE)
        .park_backoff(move |nth| {
            pauses.push(nth);
            match nth {
                1 => Duration::from_millis(300),
                2 => panic!("no pause"),
                3 => NONE,
                _ => Duration::from_hours(1),
            }
        })
        .shared(move |_| {
            count.fetch_add(1, SeqCst);
            Err(LedgerDown)?
        })
        .start()
        .unwrap();
    asked.wait_for(1);
    assert_eq!(calls.load(SeqCst), 1, "it waits");
    assert_eq!(asked.wait_for(4), [1, 2, 3, 4]);
    let begun = SystemTime::now();
    let stopped = consumer.stop();
    assert!(begun.elapsed().unwrap() < PATIENCE && stopped.still_running.is_empty());
    assert_eq!(
        (calls.load(SeqCst), &stopped.positions[..]),
        (4, &[StreamId::MIN][..])
    );
    assert!(letters(&streams, "pauses-parks").is_empty() && stopped.positions[0] < ids[0]);
    assert_eq!(
        logged(&["pauses-parks[0]/c", "backoff function panicked"]).len(),
        1
    );
}

#[test]
fn a_full_server_takes_dead_letters_too() {
    let (server, streams, _) = topic_of("full-parks", 0);
    let consumer = parking(&streams, "full-parks").shared(|_| Err(LedgerDown)?);
    let consumer = consumer.start().unwrap();
    running(&consumer);
    consumer.pause();
    let ids = publish_to(&streams, "full-parks", 0, &["0", "1", "2"]);
    server
        .command(&["CONFIG", "SET", "maxmemory", "1"])
        .unwrap();
    let full = server.command(&["SET", "mine", "1"]).unwrap_err();
    assert!(full.to_string().starts_with("OOM"), "{full}");
    consumer.resume();
    expect("dead letters", || consumer.partitions()[0].parked == 3);
    assert_eq!(last_ids(&letters(&streams, "full-parks")), ids);
}

#[test]
fn a_letter_that_cannot_be_written_holds_the_partition_and_its_position() {
    let (server, streams, ids) = topic_of("refused-parks", 2);
    server
        .command(&["SET", "re:d:{refused-parks}:c", "mine"])
        .unwrap();
    let consumer = parking(&streams, "refused-parks")
        .shared(|_| Err(LedgerDown)?)
        .start()
        .unwrap();
    let held = || {
        let status = &consumer.partitions()[0];
        status.state == LaneState::Refused && status.reason.contains("WRONGTYPE")
    };
    expect("the partition to say so", held);
    let status = &consumer.partitions()[0];
    for part in ["dead letter", "re:d:{refused-parks}:c"] {
        assert!(status.reason.contains(part), "{}", status.reason);
    }
    assert_eq!((status.parked, status.position.id), (0, StreamId::MIN));
    server.command(&["DEL", "re:d:{refused-parks}:c"]).unwrap();
    consumer.drain(PATIENCE).unwrap();
    assert_eq!(last_ids(&letters(&streams, "refused-parks")), ids);
}

#[test]
fn no_more_letters_are_kept_than_wanted_and_none_for_longer() {
    let server = server();
    for (topic, most, age) in [
        ("few-parks", 100, NONE),
        ("brief", 100_000, Duration::from_secs(1)),
    ] {
        let streams = open(&server.url(), topic, 1);
        publish(&streams, topic, 0..150);
        let consumer = parking(&streams, topic).dead_letters(most, age);
        let consumer = consumer
            .shared(|_| Err(LedgerDown).or_dead_letter())
            .start()
            .unwrap();
        expect("letters", || consumer.partitions()[0].parked == 150);
        std::thread::sleep(age + age / 2);
        publish(&streams, topic, 150..300);
        expect("letters", || consumer.partitions()[0].parked == 300);
        // a node of the stream holds 100, and only whole ones go
        let kept = letters(&streams, topic);
        assert!((100..=200).contains(&kept.len()), "{topic}: {}", kept.len());
        assert_eq!(kept.last().unwrap().body(), Some(&b"299"[..]), "the newest");
    }
}

#[test]
fn many_letters_make_few_lines_and_no_keys_but_two() {
    let (server, streams, _) = topic_of("litters", 100);
    let consumer = parking(&streams, "litters")
        .shared(|_| Err(LedgerDown)?)
        .start()
        .unwrap();
    consumer.drain(PATIENCE).unwrap();
    assert_eq!(consumer.partitions()[0].parked, 100);
    assert_eq!(logged(&["ERROR litters[0]/c", "DEAD LETTER"]).len(), 1);
    assert_eq!(
        logged(&["WARN litters[0]/c", "99 more messages became dead letters"]).len(),
        1
    );
    assert!(logged(&["ERROR litters[0]/c"]).len() <= 2);
    let keys = server.command(&["KEYS", "*d:{litters}*"]).unwrap();
    let mut keys: Vec<_> = keys.items().iter().map(Reply::text).collect();
    keys.sort();
    assert_eq!(keys, ["re:d:{litters}:c", "re:d:{litters}:c:meta"]);
    let marks = server.command(&["HLEN", "re:d:{litters}:c:meta"]).unwrap();
    assert_eq!(marks.int(), Some(1), "one for each partition");
}

#[test]
fn what_the_settings_say_is_done() {
    let (server, _streams, ids) = topic_of("configured-parking", 1);
    let entry = ConsumerSettings::new("configured-parking")
        .consumer("c")
        .on_error(OnError::Park)
        .park_attempts(1)
        .park_backoff_base(NONE);
    let settings = settings(&server.url(), "configured-parking", 1).with_consumer(entry);
    let streams = Streams::open(settings).unwrap();
    let seen = Seen::default();
    let consumer = streams
        .consumer("configured-parking")
        .shared(failing_at("0", &seen));
    consumer.start().unwrap().drain(PATIENCE).unwrap();
    assert_eq!(seen.all(), ["0 1", "0 2"]);
    assert_eq!(last_ids(&letters(&streams, "configured-parking")), ids);
    let e = streams
        .consumer("configured-parking")
        .on_error(OnError::BestEffort)
        .shared(|_| Ok(()))
        .start()
        .map(drop)
        .unwrap_err();
    let said = e.to_string();
    assert!(
        said.contains("Park:Attempts") && said.contains("OnError"),
        "{said}"
    );
}

/// A consumer whose handler returns, with a dead letter to be, when it is told to.
fn held(streams: &Streams, topic: &str, go: &Arc<AtomicU32>, calls: &Seen<String>) -> Consumer {
    let (go, calls) = (Arc::clone(go), calls.clone());
    let builder = streams.consumer(topic).name("c");
    let builder = builder.persist_interval(Duration::from_millis(20));
    let consumer = builder.shared(move |m| {
        calls.push(text(m));
        while go.load(SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(LedgerDown).or_dead_letter()
    });
    consumer.start().unwrap()
}

#[test]
fn whoever_is_superseded_writes_no_letter_though_it_does_not_know_yet() {
    let (server, streams, ids) = topic_of("superseded", 1);
    let (go, calls) = (Arc::default(), Seen::default());
    let consumer = held(&streams, "superseded", &go, &calls);
    calls.wait_for(1);
    let claim = |by: &str| {
        let set = ["HSET", "re:o:{superseded}:c", "0", by];
        server.command(&set).unwrap();
    };
    let mine = server
        .command(&["HGET", "re:o:{superseded}:c", "0"])
        .unwrap();
    claim("somebody|else");
    go.store(1, SeqCst);
    // or the lane was cut off before it came to that, where the claims happened to be looked at meanwhile
    let told = |text| !logged(&["superseded", text]).is_empty();
    let refused = || told("another instance owns the partition") || told("LOST partition 0");
    expect("the letter to be refused", refused);
    assert!(letters(&streams, "superseded").is_empty());
    assert_eq!(stored(&server, "superseded", "c", 0), Some(StreamId::MIN));
    claim(&mine.text());
    expect("the letter", || !letters(&streams, "superseded").is_empty());
    consumer.stop();
    assert_eq!(last_ids(&letters(&streams, "superseded")), ids);
    assert_eq!(stored(&server, "superseded", "c", 0), Some(ids[0]));
}

#[test]
fn a_reset_that_waits_goes_before_a_letter() {
    let (server, streams, ids) = topic_of("reset-first", 3);
    let (go, calls) = (Arc::default(), Seen::default());
    let consumer = held(&streams, "reset-first", &go, &calls);
    calls.wait_for(1);
    // past the first, whose handler has not returned
    let marker = ids[1].to_string();
    let reset = ["HSET", "re:p:{reset-first}:c", "__reset:0", &marker];
    server.command(&reset).unwrap();
    go.store(1, SeqCst);
    consumer.drain(PATIENCE).unwrap();
    assert_eq!(calls.all(), ["0", "2"]);
    assert_eq!(last_ids(&letters(&streams, "reset-first")), ids[2..]);
}
