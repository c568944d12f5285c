//! What becomes of a queue's messages that wait: because they ask for it, because they failed, or because their
//! partition is paused; and of those that are finished too late.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use streamlane::{
    testing::{PrivateServer, eventually},
    *,
};

use crate::{
    leases::ms,
    queue_recipes::{letters, nothing_is_left, pending_of, text},
    queues::{SHORT, owner, pending, stream, worker},
    support::*,
};

/// What a handler asks for with `RetryAfter`.
const AFTER: Duration = ms(300);
/// The server counts in whole milliseconds.
const TICK: Duration = ms(2);

/// The calls that there were: body, attempt, and when.
type Calls = Seen<(String, u32, Instant)>;

/// Who was called, in order.
fn order(calls: &Calls) -> Vec<(String, u32)> {
    let all = calls.all().into_iter();
    all.map(|(body, attempt, _)| (body, attempt)).collect()
}

/// How much of it there was in all lanes.
fn sum(consumer: &Consumer, of: impl Fn(&PartitionStatus) -> u64) -> u64 {
    consumer.partitions().iter().map(of).sum()
}

/// A message asks to be handed over again after a while, twice, with another behind it.
fn asks_twice(server: &PrivateServer, delivery: Delivery, policy: OnError, topic: &str) {
    let streams = open(&server.url(), topic, 1);
    let aside = delivery == Delivery::WorkQueue || policy == OnError::Retry;
    let builder = match delivery {
        Delivery::WorkQueue => worker(&streams, topic),
        _ => owner(&streams, topic),
    };
    let builder = match policy {
        // of its own it would wait for longer than this test does
        OnError::Retry => builder.retry(1).retry_pauses(2 * PATIENCE, 2 * PATIENCE),
        _ => builder.on_error(policy),
    };
    publish_to(&streams, topic, 0, &["asks", "next"]); // so that one read brings both
    let calls = Calls::default();
    let all = calls.clone();
    let consumer = builder.shared(move |m: &Message<'_>| {
        if aside && m.attempt() > 1 {
            // the other does not wait for it, however slow the machine is
            let other = || all.len() > 1;
            eventually(PATIENCE / 4, other);
        }
        all.push((text(m), m.attempt(), Instant::now()));
        match &*text(m) {
            "asks" => Err("not yet").or_retry_after(AFTER),
            _ => Ok(()),
        }
    });
    let consumer = consumer.start().unwrap();
    let of = |(body, attempt): (&str, u32)| (body.to_owned(), attempt);
    let expected = if aside {
        [("asks", 1), ("next", 1), ("asks", 2)]
    } else {
        [("asks", 1), ("asks", 2), ("next", 1)]
    };
    calls.wait_for(3);
    assert_eq!(order(&calls), expected.map(of), "{topic}");
    let all = calls.all();
    let of_it: Vec<_> = all.iter().filter(|(body, ..)| body == "asks").collect();
    let apart = of_it[1].2.duration_since(of_it[0].2);
    assert!(apart + TICK >= AFTER, "{topic}: {apart:?}");

    let skipped = || sum(&consumer, |p| p.skipped);
    if policy == OnError::Retry {
        expect("a dead letter", || letters(&streams, topic).len() == 1);
        let letter = letters(&streams, topic).remove(0);
        assert_eq!((letter.attempts, letter.deliveries), (1, 2), "{topic}");
        assert_eq!(letter.reason, Some(DeadLetterReason::Retries), "{topic}");
        assert_eq!(letter.body(), Some(&b"asks"[..]));
    } else {
        expect("it to be stepped over", || skipped() == 1);
    }
    nothing_is_left(server, topic, 1);
    let retries = policy == OnError::Retry;
    assert_eq!(skipped(), u64::from(!retries), "{topic}");
    assert_eq!(letters(&streams, topic).len(), usize::from(retries));
    assert_eq!(sum(&consumer, |p| p.retried), u64::from(aside), "{topic}");
    assert_eq!(sum(&consumer, |p| p.failures), 2, "{topic}");
    assert_eq!(calls.len(), 3, "{topic}: {:?}", calls.all());
}

#[test]
fn what_asks_for_a_pause_has_it_once_or_as_often_as_retry_allows_and_holds_up_only_whose_order_is_kept()
 {
    use Delivery::{LeasedQueue, WorkQueue};
    let server = server();
    thread::scope(|s| {
        for (delivery, policy, topic) in [
            (WorkQueue, OnError::Retry, "asks-shared-retry"),
            (WorkQueue, OnError::BestEffort, "asks-shared-best"),
            (LeasedQueue, OnError::Retry, "asks-owned-retry"),
            (LeasedQueue, OnError::BestEffort, "asks-owned-best"),
        ] {
            let server = &server;
            s.spawn(move || asks_twice(server, delivery, policy, topic));
        }
    });
}

#[test]
fn an_acknowledgement_that_comes_too_late_is_refused_and_counted_and_told() {
    let server = server();
    let topic = "late-ack";
    let streams = open(&server.url(), topic, 1);
    let (begun, seen) = (Seen::default(), Seen::default());
    let go = Arc::new(AtomicBool::new(false));
    let handle = {
        let (begun, seen, go) = (begun.clone(), seen.clone(), Arc::clone(&go));
        move |m: &Message<'_>| -> HandlerResult {
            begun.push(());
            expect("the signal", || go.load(SeqCst));
            seen.push(text(m));
            Ok(())
        }
    };
    let worker = worker(&streams, topic).persist_interval(SHORT);
    let consumer = worker.shared(handle).start().unwrap();
    let id = publish_to(&streams, topic, 0, &["held"])[0].to_string();
    begun.wait_for(1);
    let key = stream(topic, 0);
    // somebody who is none of ours, and from whom nothing is taken that is not idle for long
    let claim = ["XCLAIM", &key, "c", "tool", "0", &id];
    assert_eq!(server.command(&claim).unwrap().items().len(), 1);
    go.store(true, SeqCst);
    let late = || consumer.partitions()[0].late;
    expect("it to be counted as late", || late() == 1);
    let its = || {
        let all = pending_of(&server, &key).into_iter();
        all.map(|(id, name, _)| (id, name)).collect::<Vec<_>>()
    };
    let of_the_other = [(id.clone(), "tool".to_owned())];
    assert_eq!(its(), of_the_other);

    // It goes on, and what is its own it acknowledges.
    publish_to(&streams, topic, 0, &["own"]);
    assert_eq!(seen.wait_for(2), ["held", "own"]);
    expect("its own to be acknowledged", || its() == of_the_other);
    consumer.stop();
    assert_eq!((its().len(), late(), seen.len()), (1, 1, 2));
    let told = warned("were finished here");
    let told: Vec<_> = told.iter().filter(|l| l.contains(topic)).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    let named = told[0].starts_with("WARN") && told[0].contains(": 1 messages");
    assert!(named && told[0].contains(&id), "{told:?}");
}

#[test]
fn pauses_of_ones_own_are_asked_for_by_the_number_of_the_attempt() {
    let server = server();
    let topic = "own-pauses";
    let streams = open(&server.url(), topic, 1);
    let pause = |nth: u32| ms(40) * nth;
    let (asked, calls) = (Seen::default(), Calls::default());
    let (nth, all) = (asked.clone(), calls.clone());
    let builder = worker(&streams, topic).retry(5).retry_backoff(move |n| {
        nth.push(n);
        pause(n)
    });
    let consumer = builder.shared(move |m: &Message<'_>| {
        all.push((text(m), m.attempt(), Instant::now()));
        if m.attempt() < 4 {
            Err("not yet")?;
        }
        Ok(())
    });
    let consumer = consumer.start().unwrap();
    publish(&streams, topic, 0..1);
    let all = calls.wait_for(4);
    nothing_is_left(&server, topic, 1);
    assert_eq!(asked.all(), [1, 2, 3]);
    for (n, pair) in (1..).zip(all.windows(2)) {
        assert_eq!((pair[0].1, pair[1].1), (n, n + 1));
        let apart = pair[1].2.duration_since(pair[0].2);
        assert!(apart + TICK >= pause(n), "{apart:?} after {n}");
    }
    assert_eq!(calls.len(), 4);
    assert!(letters(&streams, topic).is_empty());
    assert_eq!(sum(&consumer, |p| p.retried), 3);
}

#[test]
fn a_message_that_asks_for_fewer_attempts_than_retry_makes_has_those() {
    let server = server();
    let topic = "capped-retry";
    let streams = open(&server.url(), topic, 1);
    let calls = Calls::default();
    let all = calls.clone();
    let builder = worker(&streams, topic)
        .retry(5)
        .retry_pauses(ms(20), ms(20));
    let consumer = builder.shared(move |m: &Message<'_>| {
        all.push((text(m), m.attempt(), Instant::now()));
        match m.attempt() {
            1..4 => Err("not yet".into()),
            _ => Ok(()),
        }
    });
    let _consumer = consumer.start().unwrap();
    let publisher = streams.publisher(topic).unwrap();
    let capped = publisher.message("T", "capped").key("k").max_attempts(1);
    let id = capped.publish().unwrap();
    publish_to(&streams, topic, 0, &["other"]);
    expect("a dead letter", || letters(&streams, topic).len() == 1);
    calls.wait_for(6);
    nothing_is_left(&server, topic, 1);
    let of = |body: &str| {
        let all = order(&calls).into_iter();
        let its = all.filter(|(b, _)| b == body).map(|(_, attempt)| attempt);
        its.collect::<Vec<_>>()
    };
    assert_eq!(of("capped"), [1, 2]);
    assert_eq!(of("other"), [1, 2, 3, 4], "the others have all of theirs");
    let all = letters(&streams, topic);
    assert_eq!((all.len(), all[0].first_id), (1, id));
    assert_eq!((all[0].attempts, all[0].deliveries), (1, 2));
    assert_eq!(all[0].reason, Some(DeadLetterReason::Retries));
}

#[test]
fn a_partition_of_a_queue_is_paused_for_itself_and_goes_on_where_it_was() {
    let server = server();
    let topic = "queue-paused";
    let streams = open(&server.url(), topic, 2);
    let seen = Seen::default();
    let worker = worker(&streams, topic).batch_size(1);
    let consumer = recording(worker, &seen).start().unwrap();
    running(&consumer);
    assert!(consumer.pause_partition(0) && !consumer.pause_partition(2));
    publish_to(&streams, topic, 0, &["0", "1", "2", "3", "4"]);
    publish_to(&streams, topic, 1, &["passes"]);
    seen.wait_for(1);
    thread::sleep(3 * SHORT); // several reads' time
    assert_eq!(seen.all(), ["passes"]);
    let state = |partition: usize| consumer.partitions()[partition].state;
    assert_eq!(
        (state(0), state(1)),
        (LaneState::Paused, LaneState::Running)
    );
    // What it had asked for it is given, and what it asks for with that in its hands.
    let given = pending(&server, &stream(topic, 0));
    assert!(given <= 2, "it took {given}");
    assert!(consumer.resume_partition(0) && !consumer.resume_partition(2));
    assert_eq!(seen.wait_for(6), ["passes", "0", "1", "2", "3", "4"]);
    running(&consumer);
    nothing_is_left(&server, topic, 2);
    assert_eq!(seen.len(), 6);
}
