//! Groups that are lost, made again, and made by many at once; reads that are answered oddly.

use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use streamlane::{
    testing::{Answer, Fault, Relay, Reply, Way},
    *,
};

use super::{
    front::{front, has, is, without_wait},
    *,
};

/// A server may answer a read that waits long after the wait should be over, when others were quicker.
/// Commands that do something to a stream.
type Done = &'static [&'static str];

#[test]
fn r4_a_read_that_outlives_its_wait_is_no_trouble() {
    let server = server();
    let topic = "r4-late";
    let front = front(&server, |args, client| {
        let (wait, asked) = without_wait(args);
        let wait = wait.filter(|_| is(args, "XREADGROUP") && has(args, &stream("r4-late", 0)))?;
        client.send(&asked).unwrap();
        Some(match client.receive().unwrap() {
            Reply::Nil => Answer::Delay(wait.mul_f64(1.9), b"*-1\r\n".to_vec()),
            reply => Answer::Reply(reply),
        })
    });
    let (seen, streams) = (Seen::default(), open(&front.url(), topic, 1));
    let builder = member(&streams, topic).block(ms(500));
    let consumer = recording(builder, &seen).start().unwrap();
    running(&consumer);
    thread::sleep(ms(1500));
    publish(&open(&server.url(), topic, 1), topic, 0..5);
    assert_eq!(seen.wait_for(5), numbers(0, 5));
    nothing_is_left(&server, topic, 1);
    let status = &consumer.partitions()[0];
    assert_eq!((status.connects, status.failures), (1, 0), "{status:?}");
    assert_eq!(warned(topic), [""; 0]);
}

#[test]
fn r29_a_batch_whose_answer_was_lost_is_handled_when_the_connection_is_back() {
    let server = server();
    let topic = "r29-silent";
    let relay = Relay::to(&server).unwrap();
    let (seen, streams) = (Seen::default(), open(&relay.url(), topic, 1));
    // that what is pending grows idle has no part in it: nobody claims it for five minutes
    let builder = worker(&streams, topic).block(ms(5000));
    let consumer = recording(builder, &seen).start().unwrap();
    let direct = open(&server.url(), topic, 1);
    publish(&direct, topic, 0..1);
    seen.wait_for(1);
    nothing_is_left(&server, topic, 1);

    relay.fault_existing(Way::Replies, Fault::Swallow);
    publish(&direct, topic, 1..4);
    // it was given what came first, and does not know
    expect("an entry to be given out", || {
        pending(&server, &stream(topic, 0)) >= 1
    });
    thread::sleep(ms(200));
    assert_eq!(seen.len(), 1);
    relay.heal();
    relay.close();
    let begun = Instant::now();
    let all = seen.wait_for(4);
    assert!(begun.elapsed() < RESUMES, "{:?}", begun.elapsed());
    assert_eq!(
        all,
        numbers(0, 4),
        "what was given out before goes before what is new"
    );
    nothing_is_left(&server, topic, 1);
    assert!(consumer.partitions()[0].connects > 1);
}

/// Everything is deleted at once: while the lane waits for messages, and while a handler is at one.
#[test]
fn r31_a_flushed_server_gets_its_group_again_and_the_loss_is_told_once() {
    let server = server();
    let topic = "r31-flushed";
    let (seen, streams) = (Seen::default(), open(&server.url(), topic, 1));
    let (held, all) = (Arc::new(AtomicBool::new(false)), seen.clone());
    let hold = Arc::clone(&held);
    let consumer = member(&streams, topic)
        .block(ms(5000))
        .shared(move |m: &Message<'_>| {
            all.push(text(m));
            while hold.load(SeqCst) {
                thread::sleep(ms(2));
            }
            Ok(())
        });
    let consumer = consumer.start().unwrap();
    let told = || {
        let mut lines = warned(&stream(topic, 0));
        lines.retain(|l| l.contains("LOST"));
        lines
    };
    let marked = |id: StreamId| {
        let mark = ["HGET", &format!("re:p:{{{topic}}}:c:meta"), "0:group"];
        let mark = server.command(&mark).unwrap().text();
        // nothing is pending, and the member itself knows it
        mark == format!(" {id}") && consumer.partitions()[0].pending == Some(0)
    };
    let ids = publish_to(&streams, topic, 0, &["0", "1"]);
    seen.wait_for(2);
    expect("it to be written down how far the group is", || {
        marked(ids[1])
    });

    server.command(&["FLUSHALL"]).unwrap();
    let ids = publish_to(&streams, topic, 0, &["2"]);
    let begun = Instant::now();
    seen.wait_for(3);
    assert!(begun.elapsed() < RESUMES, "{:?}", begun.elapsed());
    let lines = told();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    // what is known of the one that is lost
    assert!(lines[0].contains("nothing was pending"), "{}", lines[0]);
    expect("it to be written down how far the group is", || {
        marked(ids[0])
    });

    held.store(true, SeqCst);
    publish_to(&streams, topic, 0, &["3"]);
    seen.wait_for(4);
    server.command(&["FLUSHALL"]).unwrap();
    held.store(false, SeqCst);
    publish_to(&streams, topic, 0, &["4"]);
    let begun = Instant::now();
    seen.wait_for(5);
    assert!(begun.elapsed() < RESUMES, "{:?}", begun.elapsed());
    assert_eq!(told().len(), 2, "{:#?}", told());
    nothing_is_left(&server, topic, 1);
    assert_eq!(seen.all(), numbers(0, 5), "each once");
    assert_eq!(consumer.partitions()[0].gaps, 2);
}

/// A stream that is made anew may give ids that were given before.
#[test]
fn r31_a_message_of_a_new_stream_is_not_taken_for_one_that_was_finished_in_the_old() {
    let server = server();
    let topic = "r31-same-id";
    let key = stream(topic, 0);
    let (seen, streams) = (Seen::default(), open(&server.url(), topic, 1));
    let (held, all) = (Arc::new(AtomicBool::new(true)), seen.clone());
    let hold = Arc::clone(&held);
    let consumer = member(&streams, topic).shared(move |m: &Message<'_>| {
        all.push(text(m));
        while hold.load(SeqCst) {
            thread::sleep(ms(2));
        }
        Ok(())
    });
    let consumer = consumer.start().unwrap();
    let add = |body| {
        let add = ["XADD", &key, "5-1", "b", body, "t", "T"];
        server.command(&add).unwrap();
    };
    add("0");
    seen.wait_for(1);
    server.command(&["DEL", &key]).unwrap();
    add("1");
    held.store(false, SeqCst);
    assert_eq!(seen.wait_for(2), numbers(0, 2));
    nothing_is_left(&server, topic, 1);
    drop(consumer);
}

/// What a reader that waits is told differs by version, and by what was done to the key.
#[test]
fn r32_a_stream_that_goes_under_a_waiting_reader_heals_whatever_the_server_says() {
    let server = server();
    let ways: [(&str, Done); 5] = [
        ("r32-del", &["DEL"]),
        ("r32-unlink", &["UNLINK"]),
        ("r32-expire", &["PEXPIRE", "1"]),
        ("r32-flush", &["FLUSHDB"]),
        ("r32-set", &["SET", "x"]),
    ];
    for (way, does) in ways {
        for delivery in [Delivery::WorkQueue, Delivery::LeasedQueue] {
            let topic = &format!("{way}-{delivery:?}");
            let key = stream(topic, 0);
            let (seen, streams) = (Seen::default(), open(&server.url(), topic, 1));
            let builder = member(&streams, topic).delivery(delivery).block(ms(1000));
            let consumer = recording(builder, &seen).start().unwrap();
            publish(&streams, topic, 0..1);
            seen.wait_for(1);
            thread::sleep(ms(20)); // it waits again
            let mut does: Vec<&str> = does.to_vec();
            if does[0] != "FLUSHDB" {
                does.insert(1, &key);
            }
            server.command(&does).unwrap();
            if does[0] == "SET" {
                expect("the lane to say so", || {
                    consumer.partitions()[0].state == LaneState::Refused
                });
                server.command(&["DEL", &key]).unwrap();
            } else if does[0] == "PEXPIRE" {
                expect("it to expire", || {
                    server.command(&["EXISTS", &key]).unwrap() == Reply::Int(0)
                        || !warned(&key).is_empty()
                });
            }
            let begun = Instant::now();
            publish(&streams, topic, 1..2);
            assert_eq!(seen.wait_for(2), numbers(0, 2), "{topic}");
            let took = begun.elapsed();
            assert!(took < RESUMES, "{topic}: {took:?}");
            running(&consumer);
        }
    }
}

/// The same from servers that there are, and that say it otherwise.
#[test]
fn r32_whatever_code_a_lost_group_has_it_is_made_again() {
    for (n, says) in (0..).zip([
        "NOGROUP No such key 's' or consumer group 'c' in XREADGROUP with GROUP option",
        "UNBLOCKED the stream key no longer exists",
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
        "ERR no such key",
    ]) {
        let server = server();
        let topic = &format!("r32-says-{n}");
        let key = stream(topic, 0);
        let gone = Arc::new(AtomicU32::new(0));
        let (times, of) = (Arc::clone(&gone), key.clone());
        let front = front(&server, move |args, _| {
            let concerned = is(args, "XREADGROUP") && has(args, &of);
            let less = |n: u32| n.checked_sub(1);
            let now = concerned && times.fetch_update(SeqCst, SeqCst, less).is_ok();
            now.then(|| Answer::Reply(Reply::Error(says.into())))
        });
        let (seen, streams) = (Seen::default(), open(&front.url(), topic, 1));
        let consumer = recording(member(&streams, topic), &seen).start().unwrap();
        let direct = open(&server.url(), topic, 1);
        publish(&direct, topic, 0..1);
        seen.wait_for(1);
        server.command(&["XGROUP", "DESTROY", &key, "c"]).unwrap();
        gone.store(2, SeqCst);
        publish(&direct, topic, 1..3);
        let begun = Instant::now();
        expect("what is new", || seen.all().contains(&"2".into()));
        assert!(begun.elapsed() < RESUMES, "{says}: {:?}", begun.elapsed());
        assert!(seen.all().contains(&"1".into()), "{says}");
        assert_eq!(gone.load(SeqCst), 0, "{says}");
        running(&consumer);
        drop(consumer);
    }
}

/// Of 20 messages 8 are finished when the group is destroyed, before 5 more come.
#[test]
fn r34_a_group_that_was_destroyed_goes_on_where_it_was() {
    for stopped in [false, true] {
        let server = server();
        let topic = &format!("r34-destroyed-{stopped}");
        let key = stream(topic, 0);
        let (seen, streams) = (Seen::<String>::default(), open(&server.url(), topic, 1));
        let ids = publish_to(
            &streams,
            topic,
            0,
            &numbers(1, 21)
                .iter()
                .map(String::as_str)
                .collect::<Vec<_>>(),
        );
        let (held, all) = (Arc::new(AtomicBool::new(true)), seen.clone());
        let hold = Arc::clone(&held);
        let start = || {
            let (hold, all) = (Arc::clone(&hold), all.clone());
            let consumer = member(&streams, topic).shared(move |m: &Message<'_>| {
                if text(m) == "9" {
                    while hold.load(SeqCst) && !m.is_cancelled() {
                        thread::sleep(ms(2));
                    }
                    if hold.load(SeqCst) {
                        Err("not now").or_block()?;
                    }
                }
                all.push(text(m));
                // what is finished is acknowledged before the next, sooner or later
                thread::sleep(ms(60));
                Ok(())
            });
            consumer.start().unwrap()
        };
        let consumer = start();
        seen.wait_for(8);
        let mark = ["HGET", &format!("re:p:{{{topic}}}:c:meta"), "0:group"];
        let first = format!("{} ", ids[8]);
        expect("it to be written down how far the group is", || {
            server.command(&mark).unwrap().text().starts_with(&first)
        });
        if stopped {
            consumer.stop();
            assert_eq!(pending_of(&server, &key)[0].0, ids[8].to_string());
        }
        server.command(&["XGROUP", "DESTROY", &key, "c"]).unwrap();
        publish(&streams, topic, 21..26);
        held.store(false, SeqCst);
        let _again = stopped.then(start);
        assert_eq!(seen.wait_for(25), numbers(1, 26), "stopped: {stopped}");
        nothing_is_left(&server, topic, 1);
        assert_eq!(seen.len(), 25, "none twice");
        let lines = warned(&key);
        let lost: Vec<_> = lines.iter().filter(|l| l.contains("LOST")).collect();
        assert_eq!(lost.len(), 1, "{lines:#?}");
        for told in [&*ids[8].to_string(), "as far as it was finished"] {
            assert!(lost[0].contains(told), "{told}: {}", lost[0]);
        }
    }
}

#[test]
fn r35_twenty_members_that_start_at_once_make_one_group_and_none_complains() {
    let server = server();
    let topic = "r35-at-once";
    let (seen, barrier) = (Seen::default(), Barrier::new(20));
    let members: Vec<_> = thread::scope(|s| {
        let start = |n| {
            let (server, seen, barrier) = (&server, &seen, &barrier);
            move || {
                let streams = as_pod(server, topic, 1, &format!("pod-{n}"));
                barrier.wait();
                recording(worker(&streams, topic), seen).start().unwrap()
            }
        };
        let all: Vec<_> = (0..20).map(|n| s.spawn(start(n))).collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    });
    for key in [stream(topic, 0), format!("re:rt:{{{topic}}}:c")] {
        let groups = server.command(&["XINFO", "GROUPS", &key]).unwrap();
        assert_eq!(groups.items().len(), 1, "{key}");
        let at = field(&groups.items()[0], "last-delivered-id").text();
        assert_eq!(at, "0-0", "{key}");
    }
    publish(&open(&server.url(), topic, 1), topic, 0..400);
    seen.wait_for(400);
    nothing_is_left(&server, topic, 1);
    assert_eq!(by_number(seen.all()), numbers(0, 400));
    assert_eq!(warned(topic), [""; 0]);
    drop(members);
}

/// Another makes the topic between the look at what is recorded of it and the look at what there is.
#[test]
fn r35_a_topic_that_another_makes_meanwhile_is_not_taken_for_one_that_was_lost() {
    let server = server();
    let topic = "r35-meanwhile";
    publish(&open(&server.url(), topic, 1), topic, 0..1);
    let looks = AtomicU32::new(0);
    let front = front(&server, move |args, _| {
        let concerned = is(args, "HMGET") && has(args, "re:m:{r35-meanwhile}");
        let first = concerned && looks.fetch_add(1, SeqCst) == 0;
        first.then(|| Answer::Reply(Reply::Array(vec![Reply::Nil; args.len() - 2])))
    });
    let (seen, streams) = (Seen::default(), open(&front.url(), topic, 1));
    let _consumer = recording(member(&streams, topic), &seen).start().unwrap();
    seen.wait_for(1);
    assert!(front.count("HMGET") > 1);
    assert_eq!(warned(topic), [""; 0]);
}

/// A read of what one was given before never waits: whoever goes on with that asks without end.
#[test]
fn r41_a_restarted_member_finishes_what_it_had_and_then_asks_in_peace() {
    let server = server();
    let topic = "r41-restarted";
    let streams = as_pod(&server, topic, 1, "fixed");
    let refuses = worker(&streams, topic).shared(|_: &Message<'_>| Err("not now").or_block());
    publish(&streams, topic, 0..3);
    let refuses = refuses.start().unwrap();
    expect("three to be given out", || {
        pending(&server, &stream(topic, 0)) == 3
    });
    refuses.stop();
    assert_eq!(pending(&server, &stream(topic, 0)), 3);

    let seen = Seen::default();
    let builder = worker(&streams, topic).block(ms(1000));
    let begun = Instant::now();
    let consumer = recording(builder, &seen).start().unwrap();
    assert_eq!(seen.wait_for(3), numbers(0, 3));
    assert!(begun.elapsed() < RESUMES, "{:?}", begun.elapsed());
    publish(&streams, topic, 3..5);
    seen.wait_for(5);
    nothing_is_left(&server, topic, 1);
    running(&consumer);
    thread::sleep(ms(1200));
    server.command(&["CONFIG", "RESETSTAT"]).unwrap();
    let (begun, seconds) = (Instant::now(), 4);
    thread::sleep(Duration::from_secs(seconds));
    let all = server.command(&["INFO", "commandstats"]).unwrap().text();
    let passed = begun.elapsed().as_secs_f64();
    let calls = |name: &str| -> f64 {
        let begins = format!("cmdstat_{name}:calls=");
        let found = all.lines().find_map(|l| l.strip_prefix(&*begins));
        found.map_or(0.0, |rest| rest.split(',').next().unwrap().parse().unwrap())
    };
    // of each of two lanes: the partition's, and that of retries
    let reads = calls("xreadgroup") / 2.0 / passed;
    assert!((0.1..2.0).contains(&reads), "{reads} reads a second: {all}");
    assert_eq!(seen.all(), numbers(0, 5));
}
