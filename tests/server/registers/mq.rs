//! MQ-01 to MQ-15. MQ-07 and MQ-08 are beside what they are about: pauses, and permits.

use std::{collections::BTreeSet, thread, time::Duration};

use streamlane::{testing::Reply, *};

use super::*;
use crate::{
    publishing::length,
    queues::{SHORT, as_pod},
};

#[test]
fn mq_01_a_dead_letter_whose_replay_fails_is_never_silently_dropped() {
    let server = server();
    let streams = open(&server.url(), "mq01", 1);
    let (seen, mended) = (Seen::default(), Switch::default());
    let broken = mended.clone();
    let _consumer = worker(&streams, "mq01")
        .retry(0)
        .shared(noting(&seen, move |_| !broken.is_on()))
        .start()
        .unwrap();
    publish(&streams, "mq01", 0..1);
    let first = letters(&streams, "mq01", 1)[0].id;
    let all = letters_of(&streams, "mq01");
    ask(&server, &["CONFIG", "SET", "maxmemory", "1"]);
    let e = all.replay(first, ReplayTo::ThisConsumer).unwrap_err();
    assert_eq!(e.server_class(), Some(ServerClass::OutOfMemory), "{e}");
    ask(&server, &["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(letters(&streams, "mq01", 1)[0].replayed, None);
    // it fails again, and is a letter again
    let replayed = all.replay(first, ReplayTo::ThisConsumer).unwrap();
    assert!(matches!(replayed, Replay::Replayed(_)), "{replayed:?}");
    let both = letters(&streams, "mq01", 2);
    assert!(both[0].replayed.is_some() && both[1].replayed.is_none());
    assert_eq!(both[0].first_id, both[1].first_id);
    mended.turn_on();
    all.replay(both[1].id, ReplayTo::ThisConsumer).unwrap();
    seen.wait_for(3);
    settled(&server, "mq01", 1);
    assert_eq!((seen.len(), letters(&streams, "mq01", 2).len()), (3, 2));
}

#[test]
fn mq_02_a_retry_or_replay_makes_one_copy() {
    let server = server();
    let streams = open(&server.url(), "mq02", 1);
    let seen = Seen::default();
    let fails = |m: &Message<'_>| m.attempt() == 1 || m.body() == b"1" && m.attempt() < 4;
    let consumer = retrying(&streams, "mq02");
    let _consumer = consumer.shared(noting(&seen, fails)).start().unwrap();
    publish(&streams, "mq02", 0..2);
    let letter = &letters(&streams, "mq02", 1)[0];
    settled(&server, "mq02", 1);
    let calls = seen.all();
    let of = |body: &str| calls.iter().filter(|call| call.body == body).count();
    assert_eq!((of("0"), of("1")), (2, 3));
    let info = ask(&server, &["XINFO", "STREAM", "re:rt:{mq02}:c"]);
    let at = info
        .items()
        .iter()
        .position(|i| i.text() == "entries-added");
    assert_eq!(
        info.items()[at.unwrap() + 1].int(),
        Some(3),
        "a copy for each"
    );
    assert_eq!(length(&server, "mq02", 0), 2);
    let all = letters_of(&streams, "mq02");
    let to_all = ReplayTo::EveryConsumerOfTheTopic;
    assert!(matches!(
        all.replay(letter.id, to_all),
        Ok(Replay::Replayed(_))
    ));
    assert!(matches!(
        all.replay(letter.id, to_all),
        Ok(Replay::Before(_))
    ));
    assert_eq!(length(&server, "mq02", 0), 3);
}

/// The fields of an ownership hash that do not end by themselves.
const ENDLESS: &str = "
local endless = {}
for _, f in ipairs(redis.call('HKEYS', KEYS[1])) do
  if not redis.call('ZSCORE', KEYS[2], f) then
    local left = redis.pcall('HPTTL', KEYS[1], 'FIELDS', 1, f)
    if left.err or left[1] < 0 then endless[#endless + 1] = f end
  end
end
return endless";

#[test]
fn mq_03_a_claim_always_has_an_end_and_a_late_release_takes_no_other() {
    let server = server();
    let streams = open(&server.url(), "mq03", 4);
    let (hash, set) = ("re:o:{mq03}:c", "re:e:{mq03}:c");
    let over = AtomicBool::new(false);
    thread::scope(|s| {
        let _over = Over(&over);
        let watching = s.spawn(|| {
            let (mut looks, mut held) = (0, 0);
            while !over.load(SeqCst) {
                let endless = ask(&server, &["EVAL", ENDLESS, "2", hash, set]);
                assert_eq!(endless.items(), [], "while claims come and go");
                held += int(&server, &["HLEN", hash]);
                looks += 1;
            }
            (looks, held)
        });
        for _ in 0..5 {
            let seen = Seen::default();
            let consumer = recording(streams.consumer("mq03").name("c").block(SHORT), &seen);
            let consumer = consumer.start().unwrap();
            running(&consumer);
            consumer.stop();
        }
        over.store(true, SeqCst);
        let (looks, held) = watching.join().unwrap();
        assert!(looks > 0 && held > 0, "{looks} {held}");
    });
    let seen = Seen::default();
    let consumer = recording(streams.consumer("mq03").name("c").block(SHORT), &seen);
    let consumer = consumer.start().unwrap();
    running(&consumer);
    let successor = "0f0f0f0f-0000-4000-8000-000000000000|other#0badcafe";
    ask(&server, &["HSET", hash, "1", successor]);
    consumer.stop();
    assert_eq!(ask(&server, &["HGET", hash, "1"]).text(), successor);
    // long before they would end by themselves
    expect("its own to be released", || {
        ["0", "2", "3"].map(|p| int(&server, &["HEXISTS", hash, p])) == [0; 3]
    });
}

#[test]
fn mq_04_nothing_is_deleted_that_a_stopped_group_has_yet_to_finish() {
    let server = server();
    let streams = open(&server.url(), "mq04", 1);
    let (seen, late) = (Seen::default(), Seen::default());
    let other = || {
        let builder = streams.consumer("mq04").name("d");
        recording(builder.delivery(Delivery::WorkQueue), &late)
            .start()
            .unwrap()
    };
    other().stop();
    let builder = worker(&streams, "mq04").ack_delete(AckDelete::AllGroups);
    let _consumer = recording(builder, &seen).start().unwrap();
    publish(&streams, "mq04", 0..5);
    seen.wait_for(5);
    settled(&server, "mq04", 1);
    thread::sleep(ms(2500)); // as two looks take
    assert_eq!(length(&server, "mq04", 0), 5);
    let other = other();
    assert_eq!(late.wait_for(5), seen.all());
    publish(&streams, "mq04", 5..6);
    late.wait_for(6);
    expect("all to be deleted", || length(&server, "mq04", 0) == 0);
    other.stop();
}

#[test]
fn mq_05_whatever_is_written_lies_under_the_prefix_that_was_set() {
    let server = server();
    let settings = settings(&server.url(), "mq05", 1).key_prefix("own:");
    let streams = Streams::open(settings).unwrap();
    let (seen, mended) = (Seen::default(), Switch::default());
    let broken = mended.clone();
    let consumer = worker(&streams, "mq05").retry(1).retry_pauses(TICK, TICK);
    let consumer = consumer.shared(noting(&seen, move |_| !broken.is_on()));
    let consumer = consumer.start().unwrap();
    publish(&streams, "mq05", 0..2);
    let dead = letters(&streams, "mq05", 2);
    mended.turn_on();
    let all = letters_of(&streams, "mq05");
    all.replay(dead[0].id, ReplayTo::ThisConsumer).unwrap();
    all.replay(dead[1].id, ReplayTo::EveryConsumerOfTheTopic)
        .unwrap();
    assert_eq!(seen.wait_for(6).len(), 6);
    assert_eq!(int(&server, &["XLEN", "own:s:{mq05}:0"]), 3);
    consumer.stop();
    let keys = ask(&server, &["KEYS", "*"]);
    let foreign = keys
        .items()
        .iter()
        .filter(|key| !key.text().starts_with("own:"));
    assert_eq!(foreign.count(), 0, "{keys:?}");
    assert!(keys.items().len() > 3, "{keys:?}");
}

#[test]
fn mq_06_what_is_no_message_is_one_dead_letter_whoever_held_it() {
    let server = server();
    let streams = open(&server.url(), "mq06", 1);
    publish(&streams, "mq06", 0..1);
    let junk = ["XADD", &stream("mq06", 0), "*", "timestamp", "not-a-number"];
    let junk = ask(&server, &junk).text();
    given_to(&server, "mq06", "ghost");
    let seen = Seen::default();
    let consumer = retrying(&streams, "mq06")
        .claim_idle(ms(100))
        .claim_interval(ms(50));
    let _consumer = consumer.shared(noting(&seen, |_| false)).start().unwrap();
    let letter = letters(&streams, "mq06", 1).remove(0);
    assert_eq!(letter.reason, Some(DeadLetterReason::Malformed));
    assert_eq!(letter.last_id.to_string(), junk);
    settled(&server, "mq06", 1);
    thread::sleep(ms(400)); // as several searches take
    assert_eq!(letters(&streams, "mq06", 1).len(), 1);
    assert_eq!(bodies(&seen.all()), ["0"]);
}

#[test]
fn mq_09_what_is_being_handled_is_nobody_elses_however_short_the_idle_time_is() {
    let server = server();
    let streams = open(&server.url(), "mq09", 1);
    for idle in [0, 1, 99] {
        let builder = worker(&streams, "mq09").claim_idle(ms(idle));
        let e = recording(builder, &Seen::default()).start().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Config);
        assert!(e.to_string().contains("Claim:IdleMs"), "{e}");
    }
    let seen = Seen::default();
    let join = |pod: &str, searches: Duration| {
        let streams = as_pod(&server, "mq09", 1, pod);
        let slow = noting(&seen, |_| {
            thread::sleep(ms(2100));
            false
        });
        let builder = worker(&streams, "mq09").claim_idle(ms(700));
        let builder = builder.claim_interval(searches).shared(slow);
        (builder.start().unwrap(), streams)
    };
    // who has it does not search, which would be a sign of life as well
    let first = join("a", Duration::from_hours(1));
    publish(&streams, "mq09", 0..1);
    seen.wait_for(1);
    let second = join("b", ms(50));
    settled(&server, "mq09", 1);
    second.0.drain(PATIENCE).unwrap();
    drop((first, second));
    assert_eq!(seen.len(), 1, "though it took three times as long");
}

/// Whatever could break a text that is put together by hand.
const CONTROL: &str = "\n\t\r\0\x01\x1f\"'\\{}[]:,\u{7f}\u{2028}";

#[test]
fn mq_10_headers_come_back_byte_for_byte_from_wherever_they_were_kept() {
    let server = server();
    let streams = open(&server.url(), "mq10", 1);
    let (seen, mended) = (Seen::default(), Switch::default());
    let broken = mended.clone();
    let consumer = worker(&streams, "mq10").retry(1).retry_pauses(TICK, TICK);
    let _consumer = consumer
        .shared(noting(&seen, move |m| {
            assert_eq!(m.headers().get(CONTROL).unwrap(), Some(CONTROL.as_bytes()));
            !broken.is_on()
        }))
        .start()
        .unwrap();
    let publisher = streams.publisher("mq10").unwrap();
    let draft = publisher.message("T", "body").key(CONTROL);
    draft.header(CONTROL, CONTROL).publish().unwrap();
    let letter = letters(&streams, "mq10", 1).remove(0);
    mended.turn_on();
    let all = letters_of(&streams, "mq10");
    all.replay(letter.id, ReplayTo::ThisConsumer).unwrap();
    let calls = seen.wait_for(3);
    assert_eq!(letter.fields, calls[0].fields);
    assert!(
        letter.error.contains("no such account"),
        "no panic: {letter}"
    );
    assert_eq!(calls[0].fields, calls[1].fields);
    assert_eq!(letter.key(), Some(CONTROL.as_bytes()));
}

/// Up to where everything is finished, as it is written down of a group.
fn mark(server: &PrivateServer, topic: &str) -> Option<(StreamId, String)> {
    let meta = format!("re:p:{{{topic}}}:c:meta");
    let text = ask(server, &["HGET", &meta, "0:group"]).text();
    let (first, delivered) = text.split_once(' ')?;
    let id = match first {
        "" => delivered.parse().ok()?,
        first => first.parse().ok()?,
    };
    Some((id, text))
}

#[test]
fn mq_11_how_far_a_group_is_never_goes_back_whoever_writes_it_down() {
    let server = server();
    let seen = Seen::default();
    let pods = ["a", "b", "c", "d"].map(|pod| as_pod(&server, "mq11", 1, pod));
    let consumers = pods.each_ref().map(|streams| {
        let uneven = noting(&seen, |m| {
            thread::sleep(ms(m.id().seq().wrapping_mul(7) % 5));
            false
        });
        let builder = worker(streams, "mq11").batch_size(7).persist_interval(TICK);
        builder.shared(uneven).start().unwrap()
    });
    consumers.iter().for_each(running);
    let over = AtomicBool::new(false);
    thread::scope(|s| {
        let _over = Over(&over);
        let watching = s.spawn(|| {
            let (mut last, mut moves) = (StreamId::MIN, BTreeSet::new());
            while !over.load(SeqCst) {
                if let Some((id, text)) = mark(&server, "mq11") {
                    assert!(id >= last, "{text} after {last}");
                    last = id;
                    moves.insert(text);
                }
                thread::sleep(ms(5));
            }
            moves.len()
        });
        for wave in 0..4 {
            publish(&pods[0], "mq11", wave * 200..wave * 200 + 200);
            thread::sleep(ms(500));
        }
        seen.wait_for(800);
        let newest = ask(
            &server,
            &["XREVRANGE", &stream("mq11", 0), "+", "-", "COUNT", "1"],
        );
        let newest = newest.items()[0].items()[0].text();
        expect("the mark to be at the end", || {
            mark(&server, "mq11").is_some_and(|(_, text)| text == format!(" {newest}"))
        });
        over.store(true, SeqCst);
        assert!(watching.join().unwrap() > 1, "it moved");
    });
    assert_eq!(seen.len(), 800);
}

#[test]
fn mq_12_whoever_administers_looks_at_no_key_but_his_own() {
    let server = server();
    let streams = open(&server.url(), "mq12", 2);
    for n in 0..50 {
        ask(
            &server,
            &[
                "XADD",
                &format!("re:d:{{decoy-{n}}}:c"),
                "*",
                "no",
                "letter",
            ],
        );
        ask(&server, &["SET", &format!("re:s:{{mq12}}:{n}x"), "decoy"]);
    }
    publish(&streams, "mq12", 0..3);
    let consumer = worker(&streams, "mq12").retry(0);
    let consumer = consumer.shared(|_| Err("never")?).start().unwrap();
    let dead = letters(&streams, "mq12", 3);
    consumer.stop();
    ask(&server, &["CONFIG", "RESETSTAT"]);
    let (admin, all) = (streams.admin(), letters_of(&streams, "mq12"));
    all.replay(dead[0].id, ReplayTo::ThisConsumer).unwrap();
    let replayed = all
        .replay_all(ReplayTo::EveryConsumerOfTheTopic, 1000)
        .unwrap();
    assert_eq!((replayed.replayed, replayed.before), (2, 1));
    assert_eq!(all.delete_all().unwrap(), 3);
    admin.ownership("mq12", "c").unwrap();
    admin.reset("mq12", "d", ResetTo::Start).preview().unwrap();
    for command in ["keys", "scan"] {
        assert_eq!(calls_of(&server, command), 0, "{command}");
    }
    assert!(calls_of(&server, "xrange") > 0, "what is called is counted");
}

#[test]
fn mq_13_no_trim_and_no_deletion_reads_more_than_a_page() {
    let server = server();
    let layout = TopicSettings::default()
        .partitions(1)
        .max_len(5)
        .trim(Trim::Exact);
    let settings = settings(&server.url(), "mq13", 1).with_topic("mq13", layout);
    let streams = Streams::open(settings).unwrap();
    publish(&streams, "mq13", 0..100);
    assert_eq!(length(&server, "mq13", 0), 5);
    for command in ["xrange", "xrevrange", "xread"] {
        assert_eq!(calls_of(&server, command), 0, "{command}");
    }
    let consumer = worker(&streams, "mq13").retry(0);
    let consumer = consumer.shared(|_| Err("never")?).start().unwrap();
    letters(&streams, "mq13", 5);
    consumer.stop();
    let copy = "
        local letter = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1][2]
        for _ = 1, 1200 do redis.call('XADD', KEYS[1], '*', unpack(letter)) end";
    ask(&server, &["EVAL", copy, "1", "re:d:{mq13}:c"]);
    ask(&server, &["CONFIG", "SET", "slowlog-max-len", "100000"]);
    ask(&server, &["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
    assert_eq!(
        letters_of(&streams, "mq13")
            .message_type("T")
            .count()
            .unwrap(),
        1205
    );
    assert_eq!(letters_of(&streams, "mq13").delete_all().unwrap(), 1205);
    let log = ask(&server, &["SLOWLOG", "GET", "-1"]);
    let ranges = log.items().iter().filter_map(|entry| {
        let args: Vec<String> = entry.items()[3].items().iter().map(Reply::text).collect();
        let at = args.iter().position(|a| a == "COUNT");
        args[0]
            .contains("RANGE")
            .then(|| args[at.unwrap() + 1].parse::<u32>().unwrap())
    });
    let ranges: Vec<u32> = ranges.collect();
    assert!(ranges.len() > 4, "{ranges:?}");
    assert!(ranges.iter().all(|count| *count <= 500), "{ranges:?}");
}

#[test]
fn mq_14_what_is_absent_stays_absent_and_what_is_empty_empty() {
    let server = server();
    let streams = open(&server.url(), "mq14", 1);
    let seen = Seen::default();
    let builder = retrying(&streams, "mq14");
    let _consumer = builder
        .shared(noting(&seen, |m| m.attempt() < 3))
        .start()
        .unwrap();
    let publisher = streams.publisher("mq14").unwrap();
    publisher.message("T", "").publish().unwrap();
    publisher
        .message("T", "")
        .deliver_after(ms(10))
        .publish()
        .unwrap();
    let calls = seen.wait_for(6);
    settled(&server, "mq14", 1);
    for call in &calls {
        let body: Vec<_> = call
            .fields
            .iter()
            .filter(|(name, _)| name == b"b")
            .collect();
        assert_eq!(body, [&(b"b".to_vec(), Vec::new())], "{call:?}");
        assert!(call.body.is_empty());
    }
    // without a body it is no message, and becomes no message with an empty one
    ask(&server, &["XADD", &stream("mq14", 0), "*", "t", "T"]);
    let letter = letters(&streams, "mq14", 1).remove(0);
    assert_eq!(
        (letter.body(), letter.message_type()),
        (None, Some(&b"T"[..]))
    );
    assert_eq!(seen.len(), 6);
}

#[test]
fn mq_15_whoever_ends_late_takes_no_claim_from_his_successor() {
    let server = server();
    let start = |pod: &str, seen: &Seen<Call>, slow: &Switch| {
        let streams = as_pod(&server, "mq15", 1, pod);
        let builder = streams.consumer("mq15").name("c");
        let builder = builder.lease_ttl(ms(1000)).lease_renew(ms(100));
        let slow = slow.clone();
        let handle = noting(seen, move |m| {
            if m.body() == b"slow" {
                testing::eventually(PATIENCE, || slow.is_on());
            }
            false
        });
        let builder = builder
            .shutdown_timeout(Duration::from_secs(1))
            .block(ms(100));
        (builder.shared(handle).start().unwrap(), streams)
    };
    let claim = || ask(&server, &["HGET", "re:o:{mq15}:c", "0"]);
    let (slow, first, second) = (Switch::default(), Seen::default(), Seen::default());
    let publisher = open(&server.url(), "mq15", 1);
    let (retired, streams) = start("a", &first, &slow);
    publish_to(&publisher, "mq15", 0, &["slow"]);
    first.wait_for(1);
    retired.stop();
    let over = Switch::default();
    over.turn_on();
    let (successor, _streams) = start("b", &second, &over);
    second.wait_for(1);
    let its = claim();
    slow.turn_on();
    drop((retired, streams));
    thread::sleep(ms(300)); // three renewals
    assert_eq!((claim(), successor.owned()), (its, vec![0]));
    publish_to(&publisher, "mq15", 0, &["next"]);
    assert_eq!(bodies(&second.wait_for(2)), ["slow", "next"]);
    assert_eq!(first.len(), 1);
    successor.stop();
    expect("the claim to be released", || claim() == Reply::Nil);
}
