//! O-21 to O-36.

use std::{
    collections::{BTreeMap, BTreeSet},
    thread,
    time::Duration,
};

use streamlane::{
    testing::{Fault, Relay, Way},
    *,
};

use super::*;
use crate::{
    publishing::{length, open_with_timeout},
    queues::{SHORT, as_pod},
};

#[test]
fn o_21_a_group_that_is_gone_or_yet_to_come_is_not_taken_for_one_that_has_finished() {
    let server = server();
    let late = Seen::default();
    let other = |streams: &Streams| {
        let builder = streams.consumer("o21").name("d");
        let builder = builder.delivery(Delivery::WorkQueue);
        recording(builder, &late).start().unwrap()
    };
    let before = open(&server.url(), "o21", 1);
    publish(&before, "o21", 0..3);
    other(&before).drain(PATIENCE).unwrap();
    // it is stopped, what the server knew of it is lost, and the topic grows
    ask(&server, &["XGROUP", "DESTROY", &stream("o21", 0), "d"]);
    let streams = open(&server.url(), "o21", 2);
    publish_to(&streams, "o21", 0, &["3", "4"]);
    publish_to(&streams, "o21", 1, &["5"]);
    let builder = worker(&streams, "o21").ack_delete(AckDelete::AllGroups);
    let seen = Seen::default();
    let deleting = recording(builder, &seen).start().unwrap();
    seen.wait_for(6);
    settled(&server, "o21", 2);
    thread::sleep(ms(2500)); // as two looks take
    let lengths = || [0, 1].map(|p| length(&server, "o21", p));
    assert_eq!(lengths(), [5, 1]);
    other(&streams).drain(PATIENCE).unwrap();
    let missed = ["3", "4", "5"].map(str::to_owned);
    assert!(missed.iter().all(|m| late.all().contains(m)), "{late:?}");
    for p in 0..2 {
        publish_to(&streams, "o21", p, &["6"]);
    }
    seen.wait_for(8);
    other(&streams).drain(PATIENCE).unwrap();
    expect("all to be deleted", || lengths() == [0, 0]);
    deleting.stop();
}

#[test]
fn o_22_a_message_costs_the_server_one_command() {
    const N: u32 = 1000;
    let server = server();
    let streams = open(&server.url(), "o22", 4);
    publish(&streams, "o22", 0..1);
    let all = || -> u64 {
        let stats = ask(&server, &["INFO", "commandstats"]).text();
        let calls = stats.split(":calls=").skip(1);
        calls
            .map(|rest| rest.split(',').next().unwrap().parse::<u64>().unwrap())
            .sum()
    };
    let before = (all(), calls_of(&server, "xadd"));
    publish(&streams, "o22", 0..N);
    let after = (all(), calls_of(&server, "xadd"));
    assert_eq!(after.1 - before.1, u64::from(N));
    let others = after.0 - before.0 - u64::from(N);
    assert!(others < u64::from(N) / 4, "{others} in the background");
}

#[test]
fn o_23_names_of_whatever_kind_never_meet_in_one_key() {
    let topics = [
        "t", "lock:t", "item:t", "t:0", "r:t", "t:c", "c", "t:meta", "state:t", "once:t",
    ];
    let server = server();
    let mut settings = settings(&server.url(), "t", 1);
    for topic in topics {
        settings = settings.with_topic(topic, TopicSettings::default().partitions(1));
    }
    let streams = Streams::open(settings).unwrap();
    for (topic, consumer) in [
        ("a{b", "c"),
        ("a}", "c"),
        ("{t}", "c"),
        ("t", "c:meta"),
        ("t", "{t}"),
    ] {
        let builder = streams
            .consumer(topic)
            .name(consumer)
            .delivery(Delivery::WorkQueue);
        let e = recording(builder, &Seen::default()).start().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Config, "{topic} {consumer}: {e}");
    }
    // Each message fails until it is a dead letter, and another is put off.
    let names = ["c", "c:c", "t"];
    let all: Vec<(&str, &str)> = topics
        .iter()
        .flat_map(|topic| names.map(|name| (*topic, name)))
        .collect();
    let mut consumers = Vec::new();
    for (topic, name) in &all {
        let (seen, mine) = (Seen::default(), (*topic).to_owned());
        let handle = noting(&seen, move |m| {
            assert_eq!(m.body(), mine.as_bytes());
            true
        });
        let builder = streams
            .consumer(*topic)
            .name(*name)
            .delivery(Delivery::WorkQueue);
        let builder = builder.retry(1).retry_pauses(TICK, TICK).block(ms(500));
        consumers.push((builder.shared(handle).start().unwrap(), seen));
    }
    for topic in topics {
        let publisher = streams.publisher(topic).unwrap();
        publisher.publish("k", "T", topic).unwrap();
        let later = publisher.message("T", topic).key("k");
        later
            .deliver_after(Duration::from_hours(1))
            .publish()
            .unwrap();
    }
    for ((topic, name), (consumer, seen)) in all.iter().zip(consumers) {
        let of = streams.admin().dead_letters(*topic, *name);
        expect("its dead letter", || of.count().unwrap() == 1);
        let letter = of.page(None, 2).unwrap().letters.remove(0);
        assert_eq!(letter.body(), Some(topic.as_bytes()), "{topic} {name}");
        assert!(letter.error.contains("no such account"), "{letter}");
        consumer.stop();
        assert_eq!(bodies(&seen.all()), [*topic, *topic], "{name}");
    }
    // and by the braces every key is one topic's, but for the list of all of them
    let keys = ask(&server, &["KEYS", "*"]);
    let mut of: BTreeMap<&str, u32> = BTreeMap::new();
    let all = keys.items().iter().map(streamlane::testing::Reply::text);
    for key in all.filter(|key| key != "re:topics") {
        let topic = topics
            .iter()
            .find(|topic| key.contains(&format!(":{{{topic}}}")));
        *of.entry(topic.unwrap_or_else(|| panic!("{key}")))
            .or_default() += 1;
    }
    assert_eq!(of.len(), topics.len(), "{of:?} {keys:?}");
    assert!(of.values().all(|keys| *keys > 8), "{of:?}");
}

#[test]
fn o_24_a_message_keeps_its_id_and_its_time_through_retry_and_replay() {
    let server = server();
    let streams = open(&server.url(), "o24", 1);
    let times = Seen::default();
    let noted = times.clone();
    let builder = retrying(&streams, "o24");
    let _consumer = builder
        .shared(move |m| {
            noted.push((m.id(), m.timestamp()));
            Err("never")?
        })
        .start()
        .unwrap();
    let id = publish_to(&streams, "o24", 0, &["body"])[0];
    let letter = letters(&streams, "o24", 1).remove(0);
    assert_eq!(
        (letter.first_id, letter.last_failure > letter.first_failure),
        (id, true)
    );
    let all = letters_of(&streams, "o24");
    all.replay(letter.id, ReplayTo::ThisConsumer).unwrap();
    assert_eq!(letters(&streams, "o24", 2)[1].first_id, id);
    assert_eq!(times.all(), vec![(id, id.timestamp()); 6]);
}

#[test]
fn o_25_processes_of_one_name_are_told_apart() {
    let server = server();
    let key = stream("o25", 0);
    let mut known = BTreeSet::new();
    for round in 1..=3 {
        let streams = as_pod(&server, "o25", 1, "pod");
        let seen = Seen::default();
        let work = recording(worker(&streams, "o25"), &seen).start().unwrap();
        let ordered = recording(streams.consumer("o25").name("e"), &seen);
        let ordered = ordered.start().unwrap();
        publish_to(&streams, "o25", 0, &["body"]);
        seen.wait_for(2);
        let members = ask(&server, &["XINFO", "CONSUMERS", &key, "c"]);
        known.extend(members.items().iter().map(|m| m.items()[1].text()));
        let claim = ask(&server, &["HGET", "re:o:{o25}:e", "0"]).text();
        known.insert(claim.split('|').nth(1).unwrap().to_owned());
        // what they are called differs from one start to the next, and each says who it is
        assert!(
            known.iter().all(|name| name.starts_with("pod#")),
            "{known:?}"
        );
        assert!(known.len() >= round, "{known:?}");
        work.stop();
        ordered.stop();
    }
}

#[test]
fn o_26_a_member_that_is_cut_off_begins_nothing_and_its_results_do_not_count() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let join = |url: &str, pod: &str, seen: &Seen<String>| {
        let streams = Streams::open(settings(url, "o26", 1).pod_name(pod)).unwrap();
        let calls = seen.clone();
        let builder = worker(&streams, "o26")
            .lease_ttl(ms(1000))
            .lease_renew(ms(200));
        let consumer = builder.claim_interval(ms(100)).shared(move |m| {
            let body = String::from_utf8_lossy(m.body()).into_owned();
            calls.push(body.clone());
            if body == "slow" && calls.len() == 1 {
                let told = testing::eventually(PATIENCE, || m.is_cancelled());
                calls.push(format!("told: {told}"));
            }
            Ok(())
        });
        (consumer.start().unwrap(), streams)
    };
    let (first, second) = (Seen::default(), Seen::default());
    let (a, _streams) = join(&relay.url(), "a", &first);
    running(&a);
    let publisher = open(&server.url(), "o26", 1);
    publish_to(&publisher, "o26", 0, &["slow"]);
    first.wait_for(1);
    relay.fault(Way::Requests, Fault::BlackHole);
    relay.fault(Way::Replies, Fault::BlackHole);
    second.push("not the first".into());
    let (b, _others) = join(&server.url(), "b", &second);
    assert_eq!(first.wait_for(2), ["slow", "told: true"]);
    publish_to(&publisher, "o26", 0, &["1", "2", "3"]);
    let mut its = second.wait_for(5);
    its.sort();
    assert_eq!(its, ["1", "2", "3", "not the first", "slow"]);
    relay.heal();
    running(&a);
    settled(&server, "o26", 1);
    b.stop();
    publish_to(&publisher, "o26", 0, &["4"]);
    assert_eq!(first.wait_for(3), ["slow", "told: true", "4"]);
    settled(&server, "o26", 1);
}

#[test]
fn o_27_what_may_have_been_stored_is_not_sent_again() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let streams = open_with_timeout(&relay.url(), "o27", ms(500));
    let publisher = streams.publisher("o27").unwrap();
    publisher.publish("k", "T", "0").unwrap();
    relay.fault(Way::Replies, Fault::Swallow);
    let e = publisher.publish("k", "T", "1").unwrap_err();
    assert_eq!(e.outcome(), Outcome::Unknown, "{e}");
    relay.heal();
    publisher.publish("k", "T", "2").unwrap();
    assert_eq!(length(&server, "o27", 0), 3);
    // and with an id of its own it may be
    let again = || {
        publisher
            .message("T", "3")
            .key("k")
            .dedupe("id", Duration::from_mins(1))
            .publish()
    };
    assert!(!again().unwrap().repeated);
    relay.fault(Way::Replies, Fault::Swallow);
    assert_eq!(again().unwrap_err().outcome(), Outcome::Unknown);
    relay.heal();
    assert!(again().unwrap().repeated);
    assert_eq!(length(&server, "o27", 0), 4);
}

#[test]
fn o_28_every_partition_that_is_owned_is_read_however_few_calls_may_run() {
    let server = server();
    let streams = open(&server.url(), "o28", 24);
    for delivery in [Delivery::WorkQueue, Delivery::LeasedQueue] {
        let name = format!("c-{delivery:?}");
        let seen = Seen::default();
        let (now, most) = (Seen::default(), Seen::default());
        let (running, highest) = (now.clone(), most.clone());
        let handle = noting(&seen, move |_| {
            running.push(1);
            highest.push(running.all().iter().sum::<i32>());
            thread::sleep(ms(5));
            running.push(-1);
            false
        });
        let builder = streams
            .consumer("o28")
            .name(name)
            .delivery(delivery)
            .block(SHORT);
        let consumer = builder.max_in_flight(2).shared(handle).start().unwrap();
        assert_eq!(
            consumer
                .partitions()
                .iter()
                .filter(|p| p.partition < 24)
                .count(),
            24
        );
        let before = usize::try_from(length(&server, "o28", 0)).unwrap();
        for p in 0..24 {
            publish_to(&streams, "o28", p, &["body"]);
        }
        let all = seen.wait_for(24 * (before + 1));
        let partitions: BTreeSet<u32> = all.iter().map(|call| call.partition).collect();
        assert_eq!(partitions, (0..24).collect());
        consumer.drain(PATIENCE).unwrap();
        assert!(most.all().iter().all(|n| *n <= 2), "{:?}", most.all());
        assert_eq!(now.all().iter().sum::<i32>(), 0);
    }
}

#[test]
fn o_29_looking_at_dead_letters_changes_nothing_about_them() {
    let server = server();
    let streams = open(&server.url(), "o29", 1);
    publish(&streams, "o29", 0..3);
    let consumer = worker(&streams, "o29").retry(0).shared(|_| Err("never")?);
    let consumer = consumer.start().unwrap();
    let first = letters(&streams, "o29", 3);
    consumer.stop();
    let stored = || ask(&server, &["XINFO", "STREAM", "re:d:{o29}:c", "FULL"]);
    let (before, all) = (stored(), letters_of(&streams, "o29"));
    for _ in 0..3 {
        assert_eq!(all.page(None, 100).unwrap().letters, first);
        assert_eq!(all.page(Some(first[1].id), 1).unwrap().letters, first[1..2]);
        assert_eq!(all.show(first[2].id).unwrap().as_ref(), Some(&first[2]));
    }
    // not even when one of them cannot be read
    ask(&server, &["XADD", "re:d:{o29}:c", "*", "no", "letter"]);
    let before_junk = stored();
    all.page(None, 100).unwrap_err();
    assert_eq!(all.page(None, 3).unwrap_err().kind(), ErrorKind::Protocol);
    assert_eq!(stored(), before_junk);
    assert_ne!(before, before_junk);
}

#[test]
fn o_30_what_was_given_out_and_never_arrived_comes_before_what_is_new() {
    let server = server();
    for delivery in [Delivery::WorkQueue, Delivery::LeasedQueue] {
        let topic = format!("o30-{delivery:?}");
        let relay = Relay::to(&server).unwrap();
        let streams = open(&relay.url(), &topic, 1);
        let seen = Seen::default();
        let builder = worker(&streams, &topic).delivery(delivery);
        let builder = builder.read_slack(ms(300));
        let consumer = recording(builder, &seen).start().unwrap();
        running(&consumer);
        let publisher = open(&server.url(), &topic, 1);
        relay.fault_existing(Way::Replies, Fault::Swallow);
        publish_to(&publisher, &topic, 0, &["0", "1", "2"]);
        expect("it to be given out", || {
            pending(&server, &stream(&topic, 0)) > 0
        });
        publish_to(&publisher, &topic, 0, &["3", "4", "5", "6", "7", "8", "9"]);
        // long before anything is claimed for being idle
        let all: Vec<String> = (0..10).map(|n| n.to_string()).collect();
        assert_eq!(seen.wait_for(10), all, "{topic}");
        settled(&server, &topic, 1);
        assert_eq!(seen.len(), 10);
    }
}

#[test]
fn o_31_a_new_group_is_given_the_backlog_in_its_order() {
    let server = server();
    let streams = open(&server.url(), "o31", 1);
    publish(&streams, "o31", 0..12);
    let all: Vec<String> = (0..12).map(|n| n.to_string()).collect();
    for round in 0..40 {
        let delivery = [Delivery::WorkQueue, Delivery::LeasedQueue][round % 2];
        let seen = Seen::default();
        let builder = streams.consumer("o31").name(format!("c-{round}"));
        let builder = builder
            .delivery(delivery)
            .block(SHORT)
            .batch_size(1 + round as u32 % 13);
        let consumer = recording(builder, &seen).start().unwrap();
        consumer.drain(PATIENCE).unwrap();
        assert_eq!(seen.all(), all, "round {round}");
    }
}

#[test]
fn o_32_a_retry_makes_no_entry_larger_than_the_message_was() {
    let server = server();
    let streams = open(&server.url(), "o32", 1);
    let body = "x".repeat(200_000);
    let seen = Seen::default();
    let gate = Switch::default();
    let held = gate.clone();
    let builder = retrying(&streams, "o32");
    let handle = noting(&seen, move |m| {
        if m.attempt() == 2 {
            testing::eventually(PATIENCE, || held.is_on());
        }
        m.attempt() < 3
    });
    let _consumer = builder.shared(handle).start().unwrap();
    publish_to(&streams, "o32", 0, &[&body]);
    seen.wait_for(2);
    let size = |key: &str| -> usize {
        let entries = ask(&server, &["XRANGE", key, "-", "+"]);
        let fields = entries.items()[0].items()[1].items();
        fields.iter().map(|f| f.text().len()).sum()
    };
    let (published, again) = (size(&stream("o32", 0)), size("re:rt:{o32}:c"));
    gate.turn_on();
    let calls = seen.wait_for(3);
    assert!(calls.iter().all(|call| call.body == body), "byte for byte");
    assert!(again <= published + 200, "{published}, then {again}");
    settled(&server, "o32", 1);
}

#[test]
fn o_33_no_key_and_an_empty_key_stay_two_things() {
    let server = server();
    let streams = open(&server.url(), "o33", 1);
    let (seen, mended) = (Seen::default(), Switch::default());
    let broken = mended.clone();
    let builder = worker(&streams, "o33").retry(1).retry_pauses(TICK, TICK);
    let handle = noting(&seen, move |_| !broken.is_on());
    let _consumer = builder.shared(handle).start().unwrap();
    let publisher = streams.publisher("o33").unwrap();
    // ours always have a key, if only an empty one; those of others need not
    publisher.message("T", "empty").publish().unwrap();
    let later = publisher.message("T", "empty").key("");
    later.deliver_after(TICK).publish().unwrap();
    for _ in 0..2 {
        ask(
            &server,
            &["XADD", &stream("o33", 0), "*", "b", "none", "t", "T"],
        );
    }
    let dead = letters(&streams, "o33", 4);
    mended.turn_on();
    for letter in &dead {
        let key = (letter.body() == Some(b"empty")).then_some(&b""[..]);
        assert_eq!(letter.key(), key, "{letter}");
        letters_of(&streams, "o33")
            .replay(letter.id, ReplayTo::ThisConsumer)
            .unwrap();
    }
    let calls = seen.wait_for(12);
    for call in &calls {
        let key = call.fields.iter().find(|(name, _)| name == b"k");
        let wanted = (call.body == "empty").then(|| (b"k".to_vec(), Vec::new()));
        assert_eq!(key.cloned(), wanted, "{call:?}");
    }
    assert_eq!(calls.iter().filter(|call| call.body == "empty").count(), 6);
}

#[test]
fn o_34_no_retry_and_no_delay_makes_a_stream_longer_than_it_may_be() {
    let server = server();
    let layout = TopicSettings::default()
        .partitions(1)
        .max_len(10)
        .trim(Trim::Exact);
    let settings = settings(&server.url(), "o34", 1).with_topic("o34", layout);
    let streams = Streams::open(settings).unwrap();
    let publisher = streams.publisher("o34").unwrap();
    publish(&streams, "o34", 0..10);
    let seen = Seen::default();
    let builder = retrying(&streams, "o34");
    let _consumer = builder.shared(noting(&seen, |_| true)).start().unwrap();
    letters(&streams, "o34", 10);
    settled(&server, "o34", 1);
    assert_eq!((seen.len(), length(&server, "o34", 0)), (30, 10));
    for n in 0..10 {
        let body = format!("late-{n}");
        publisher
            .message("T", &body)
            .deliver_after(TICK)
            .publish()
            .unwrap();
    }
    let all = letters_of(&streams, "o34");
    expect("all that were delayed", || all.count().unwrap() == 20);
    all.replay_all(ReplayTo::ThisConsumer, 1000).unwrap();
    expect("all that were replayed", || all.count().unwrap() == 40);
    settled(&server, "o34", 1);
    assert_eq!(length(&server, "o34", 0), 10);
}

#[test]
fn o_35_when_a_message_is_due_is_decided_by_the_servers_clock() {
    let server = server();
    let streams = open(&server.url(), "o35", 1);
    let clock = || {
        let time = ask(&server, &["TIME"]);
        let part = |i: usize| time.items()[i].text().parse::<i64>().unwrap();
        part(0) * 1000 + part(1) / 1000
    };
    let hour = Duration::from_hours(1);
    let seen = Seen::default();
    let builder = worker(&streams, "o35")
        .retry(3)
        .retry_pauses(hour, hour)
        .retry_jitter(0);
    let handle = noting(&seen, |m| m.attempt() == 1);
    let _consumer = builder.shared(handle).start().unwrap();
    let before = clock();
    publish(&streams, "o35", 0..1);
    let due = || {
        ask(
            &server,
            &["ZRANGE", "re:r:{o35}:c", "0", "-1", "WITHSCORES"],
        )
    };
    expect("it to be put aside", || due().items().len() == 2);
    let after = clock();
    let (item, at) = (due().items()[0].text(), due().items()[1].text());
    let at: i64 = at.parse().unwrap();
    assert!(
        (before + 3_600_000..=after + 3_600_000).contains(&at),
        "{before} {at} {after}"
    );
    // It is not ours to say that it is due: a little later by the server's clock it is.
    thread::sleep(ms(300));
    assert_eq!(seen.len(), 1);
    let soon = (clock() + 200).to_string();
    ask(&server, &["ZADD", "re:r:{o35}:c", &soon, &item]);
    let handled = seen.wait_for(2);
    assert!(clock() >= soon.parse().unwrap(), "{handled:?}");
    settled(&server, "o35", 1);
}

#[test]
fn o_36_a_failed_message_has_one_successor_whatever_answer_is_lost() {
    let server = server();
    for (topic, attempts, expected) in [("o36-once", 0, 1), ("o36-again", 1, 2)] {
        let relay = Arc::new(Relay::to(&server).unwrap());
        let direct = open(&server.url(), topic, 1);
        let streams = open(&relay.url(), topic, 1);
        let seen = Seen::default();
        let fault = Arc::clone(&relay);
        let builder = worker(&streams, topic).read_slack(ms(300)).retry(attempts);
        let handle = noting(&seen, move |m| {
            if m.body() == b"1" && m.attempt() == 1 {
                // the server knows the script by now
                fault.fault_existing(Way::Replies, Fault::Swallow);
            }
            true
        });
        let builder = builder.retry_pauses(TICK, TICK);
        let consumer = builder.shared(handle).start().unwrap();
        publish_to(&direct, topic, 0, &["0", "1", "2"]);
        let dead = letters(&direct, topic, 3);
        settled(&server, topic, 1);
        let connects = consumer.partitions().iter().map(|p| p.connects).max();
        assert!(connects > Some(1), "{topic}: an answer was lost");
        for body in ["0", "1", "2"] {
            let of = dead
                .iter()
                .filter(|letter| letter.body() == Some(body.as_bytes()));
            assert_eq!(of.count(), 1, "{topic} {body}");
        }
        consumer.stop();
        assert_eq!(letters(&direct, topic, 3), dead);
        assert_eq!(seen.len(), 3 * expected, "{topic}");
    }
}
