//! Messages that fail: what comes in their place, when they come again, and how often that was.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    thread,
    time::Instant,
};

use streamlane::{
    testing::{Fault, Relay, Reply, Way},
    *,
};

use super::*;

/// What cannot be kept as a dead letter is not acknowledged, and holds no other partition up.
#[test]
fn r59_nothing_is_acknowledged_whose_dead_letter_cannot_be_written() {
    let server = server();
    let topic = "r59-wrongtype";
    let (streams, seen) = (open(&server.url(), topic, 2), Seen::default());
    let (key, all) = ("re:d:{r59-wrongtype}:c", seen.clone());
    server.command(&["SET", key, "x"]).unwrap();
    let builder = member(&streams, topic).retry(0);
    let consumer = builder.shared(move |m: &Message<'_>| {
        all.push(text(m));
        if text(m) == "bad" {
            Err("no such account")?;
        }
        Ok(())
    });
    let consumer = consumer.start().unwrap();
    let ids = publish_to(&streams, topic, 0, &["bad", "good"]);
    let told = |text: &str| {
        let lanes = consumer.partitions();
        lanes[0].state != LaneState::Running && lanes[0].reason.contains(text)
    };
    expect("the lane to name the key", || {
        told(key) && told("WRONGTYPE")
    });
    let begun = Instant::now();
    publish_to(&streams, topic, 1, &["elsewhere"]);
    expect("the other partition", || {
        seen.all().contains(&"elsewhere".into())
    });
    assert!(begun.elapsed() < RESUMES, "{:?}", begun.elapsed());
    thread::sleep(ms(300));
    let waits = pending_of(&server, &stream(topic, 0));
    assert!(
        waits.iter().any(|(id, ..)| *id == ids[0].to_string()),
        "{waits:?}"
    );

    server.command(&["DEL", key]).unwrap();
    expect("the one behind it", || seen.all().contains(&"good".into()));
    nothing_is_left(&server, topic, 2);
    let all = letters(&streams, topic);
    assert_eq!((all.len(), all[0].first_id), (1, ids[0]));
    assert_eq!(
        seen.len(),
        3,
        "none is handled twice for it: {:?}",
        seen.all()
    );
}

/// What was begun is brought to an end on a full server, too; what is due waits until there is room.
#[test]
fn r59_a_full_server_takes_dead_letters_and_retries_and_acknowledgements() {
    let server = server();
    let topic = "r59-oom";
    let (streams, seen) = (open(&server.url(), topic, 1), Seen::default());
    let (all, held) = (seen.clone(), Arc::new(AtomicBool::new(true)));
    let hold = Arc::clone(&held);
    let builder = member(&streams, topic).retry(1).retry_pauses(SHORT, SHORT);
    let builder = builder.shared(move |m: &Message<'_>| {
        while hold.load(SeqCst) {
            thread::sleep(ms(2));
        }
        all.push(text(m));
        match &*text(m) {
            "hopeless" => Err("no such account").or_dead_letter(),
            "bad" => Err("no such account".into()),
            _ => Ok(()),
        }
    });
    let ids = publish_to(&streams, topic, 0, &["hopeless", "bad", "good"]);
    let consumer = builder.start().unwrap();
    expect("all to be in its hands", || {
        pending(&server, &stream(topic, 0)) == 3
    });
    server
        .command(&["CONFIG", "SET", "maxmemory", "1"])
        .unwrap();
    let publisher = streams.publisher(topic).unwrap();
    assert!(publisher.publish("k", "T", "x").is_err(), "it is full");
    held.store(false, SeqCst);
    expect("nothing to be pending", || {
        pending(&server, &stream(topic, 0)) == 0
    });
    assert_eq!(seen.all(), ["hopeless", "bad", "good"]);
    assert_eq!(letters(&streams, topic)[0].first_id, ids[0]);
    let waits = server.command(&["HLEN", "re:ri:{r59-oom}:c"]).unwrap();
    assert_eq!(waits, Reply::Int(1));

    server
        .command(&["CONFIG", "SET", "maxmemory", "0"])
        .unwrap();
    let begun = Instant::now();
    expect("the other dead letter", || {
        letters(&streams, topic).len() == 2
    });
    assert!(begun.elapsed() < RESUMES, "{:?}", begun.elapsed());
    nothing_is_left(&server, topic, 1);
    assert_eq!(letters(&streams, topic)[1].first_id, ids[1]);
    assert_eq!(seen.len(), 4);
    drop(consumer);
}

/// Whether the script ran nobody knows whose answer is lost: what it wrote is not written twice.
#[test]
fn r59_a_successor_whose_answer_was_lost_is_there_once() {
    for (attempts, topic) in [(0, "r59-unheard-letter"), (1, "r59-unheard-retry")] {
        let server = server();
        let relay = Arc::new(Relay::to(&server).unwrap());
        let direct = open(&server.url(), topic, 1);
        let streams = open(&relay.url(), topic, 1);
        let calls = Arc::new(AtomicU32::new(0));
        let (all, fault) = (Arc::clone(&calls), Arc::clone(&relay));
        let builder = member(&streams, topic).read_slack(ms(500));
        let builder = builder.retry(attempts).retry_pauses(SHORT, SHORT);
        let consumer = builder.shared(move |m: &Message<'_>| {
            let swallowed = text(m) == "1" && m.attempt() == 1;
            if swallowed {
                all.fetch_add(1, SeqCst);
                fault.fault_existing(Way::Replies, Fault::Swallow);
            }
            match &*text(m) {
                "2" => Ok(()),
                _ => Err("no such account".into()),
            }
        });
        let consumer = consumer.start().unwrap();
        // the server knows the scripts when the answer of one is lost
        let mut ids = publish_to(&direct, topic, 0, &["0"]);
        expect("the first dead letter", || {
            letters(&direct, topic).len() == 1
        });
        ids.extend(publish_to(&direct, topic, 0, &["1", "2"]));
        expect("the last one to be handled", || {
            consumer.partitions()[0].handled == 1
        });
        expect("both dead letters", || letters(&direct, topic).len() == 2);
        nothing_is_left(&server, topic, 1);
        let firsts: Vec<_> = letters(&direct, topic).iter().map(|l| l.first_id).collect();
        assert_eq!(firsts, ids[..2], "{topic}");
        assert_eq!(calls.load(SeqCst), 1, "{topic}");
        assert!(consumer.partitions()[0].connects > 1, "{topic}");
    }
}

/// Two hundred messages that always fail are due all the time.
#[test]
fn r60_retries_that_fail_delay_neither_a_good_one_nor_what_is_new() {
    const PAUSE: Duration = ms(400);
    let server = server();
    let topic = "r60-many";
    let (streams, seen) = (open(&server.url(), topic, 1), Seen::default());
    let all = seen.clone();
    let builder = member(&streams, topic).retry(3).retry_jitter(0);
    let builder = builder.retry_pauses(PAUSE, PAUSE * 2);
    let consumer = builder.shared(move |m: &Message<'_>| {
        all.push((text(m), m.attempt(), Instant::now()));
        match text(m).split_once(' ') {
            Some(("bad", _)) => Err("no such account".into()),
            Some(("good", _)) if m.attempt() == 1 => Err("not yet".into()),
            _ => Ok(()),
        }
    });
    let _consumer = consumer.start().unwrap();
    let publisher = streams.publisher(topic).unwrap();
    let publish = |body: String| publisher.publish("k", "T", body).unwrap();
    for n in 0..200 {
        publish(format!("bad {n}"));
    }
    publish("good one".into());
    let calls = |beginning: &str| -> Vec<(String, u32, Instant)> {
        let mut all = seen.all();
        all.retain(|(body, ..)| body.starts_with(beginning));
        all
    };
    expect("the first failures", || calls("good").len() == 1);
    let begun = Instant::now();
    for n in 0..100 {
        publish(format!("new {n}"));
    }
    expect("what is new", || calls("new").len() == 100);
    let took = begun.elapsed();
    assert!(took < RESUMES, "what is new waited: {took:?}");
    expect("the good one", || calls("good").len() == 2);
    let good = calls("good");
    let late = good[1].2.duration_since(good[0].2).saturating_sub(PAUSE);
    assert!(late < RESUMES, "{late:?} late");
    expect("dead letters", || letters(&streams, topic).len() == 200);
    nothing_is_left(&server, topic, 1);

    // The pauses show in the times of the calls.
    let bad = calls("bad");
    assert_eq!(bad.len(), 800, "each four times");
    for n in 0..200 {
        let body = format!("bad {n}");
        let mut of: Vec<_> = bad.iter().filter(|(b, ..)| *b == body).collect();
        of.sort_by_key(|(_, attempt, _)| *attempt);
        for (pair, pause) in of.windows(2).zip([PAUSE, PAUSE * 2, PAUSE * 2]) {
            assert_eq!(pair[1].1, pair[0].1 + 1, "{body}");
            let apart = pair[1].2.duration_since(pair[0].2);
            // The server counts in whole milliseconds.
            assert!(
                apart + ms(2) >= pause,
                "{body}: {apart:?} after {}",
                pair[0].1
            );
        }
    }
}

/// Given to somebody who died, claimed, failed and handed over again, a dead letter, replayed.
#[test]
fn r63_the_number_of_the_attempt_grows_whatever_becomes_of_a_message() {
    let server = server();
    let topic = "r63-attempts";
    let (streams, seen) = (open(&server.url(), topic, 1), Seen::default());
    let ids = publish_to(&streams, topic, 0, &["x"]);
    orphan(&server, &stream(topic, 0), 1);
    let all = seen.clone();
    let builder = member(&streams, topic).retry(2).retry_pauses(SHORT, SHORT);
    let builder = builder.claim_idle(ms(300)).claim_interval(ms(50));
    let consumer = builder.shared(move |m: &Message<'_>| {
        all.push((m.attempt(), m.id(), m.partition()));
        // it is kept alive meanwhile, which counts as nothing
        thread::sleep(ms(400));
        Err("no such account".into())
    });
    let _consumer = consumer.start().unwrap();
    expect("a dead letter", || letters(&streams, topic).len() == 1);
    let of = |attempt| (attempt, ids[0], 0);
    assert_eq!(seen.all(), [of(2), of(3), of(4)]);
    let letter = letters(&streams, topic).remove(0);
    assert_eq!((letter.attempts, letter.deliveries), (2, 4));
    assert_eq!((letter.first_id, letter.partition), (ids[0], 0));

    // What is replayed begins anew.
    let all = streams.admin().dead_letters(topic, "c");
    let replay = all.replay(letter.id, ReplayTo::ThisConsumer).unwrap();
    assert!(matches!(replay, Replay::Replayed(_)), "{replay:?}");
    expect("another dead letter", || {
        letters(&streams, topic).len() == 2
    });
    nothing_is_left(&server, topic, 1);
    assert_eq!(seen.all()[3..], [of(1), of(2), of(3)]);
    let again = &letters(&streams, topic)[1];
    assert_eq!((again.attempts, again.deliveries), (2, 3));
    assert_eq!(again.first_id, ids[0], "it keeps its first id");
    let length = server.command(&["XLEN", &stream(topic, 0)]).unwrap();
    assert_eq!(length, Reply::Int(1), "nobody else sees any of it");
}
