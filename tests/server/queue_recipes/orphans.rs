//! What members leave behind that are killed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use streamlane::*;

use super::{child::Job, *};

#[test]
fn r50_a_killed_members_slow_message_is_a_siblings_in_time() {
    let server = server();
    let topic = "r50-killed";
    let (idle, interval) = (ms(1000), ms(100));
    let job = Job {
        ttl: Some(Duration::from_mins(1)),
        claims: Some((idle, interval)),
        ..Job::new(&server, topic, "slow")
    };
    let victim = job.start();
    let streams = as_pod(&server, topic, 1, "sibling");
    publish_once_known(&server, &streams, topic, 1);
    job.wait_until_begun(1);
    // the victim lives, and is known to: nobody takes what it is at
    let seen = Seen::default();
    let builder = worker(&streams, topic).lease_ttl(Duration::from_mins(1));
    let builder = builder.claim_idle(idle).claim_interval(interval);
    let _sibling = recording(builder, &seen).start().unwrap();
    thread::sleep(ms(1500));
    assert_eq!(seen.len(), 0);
    victim.kill();
    let begun = Instant::now();
    seen.wait_for(1);
    let took = begun.elapsed();
    // it looks once a second
    assert!(took < idle + interval + ms(2000), "{took:?}");
    nothing_is_left(&server, topic, 1);
}

/// Publishes when the group is there, so that a member that starts meanwhile is the one that is given them.
fn publish_once_known(server: &PrivateServer, streams: &Streams, topic: &str, many: u32) {
    let key = stream(topic, 0);
    expect("the group to be made", || {
        server.command(&["XPENDING", &key, "c"]).is_ok()
    });
    publish(streams, topic, 0..many);
}

/// Whoever is killed in the middle of claiming leaves no lock behind.
#[test]
fn r52_recovery_goes_on_though_those_who_recover_are_killed_at_it() {
    let server = server();
    let topic = "r52-killed";
    let key = stream(topic, 0);
    let streams = open(&server.url(), topic, 1);
    publish(&streams, topic, 0..300);
    assert_eq!(orphan(&server, &key, 300).len(), 300);
    let job = |n: u64| Job {
        ttl: Some(ms(600)),
        claims: Some((ms(100), ms(50))),
        work: Some(ms(3)),
        ..Job::new(&server, topic, &format!("life-{n}"))
    };
    for n in 0..10_u64 {
        let life = job(n);
        let (process, before) = (life.start(), life.begun().len());
        // each at another point of its work, some before they have any
        if n % 3 != 0 {
            life.wait_until_begun(before + 1);
        }
        thread::sleep(ms(n * 37 % 120));
        process.kill();
    }
    let seen = Seen::default();
    let builder = worker(&streams, topic)
        .lease_ttl(ms(600))
        .lease_renew(ms(100));
    let builder = builder.claim_idle(ms(100)).claim_interval(ms(50));
    let _last = recording(builder, &seen).start().unwrap();
    let everything = || {
        let mut all = job(0).finished();
        all.extend(seen.all());
        all.sort_unstable();
        all.dedup();
        all.len()
    };
    expect("all of them to be finished", || everything() == 300);
    nothing_is_left(&server, topic, 1);
    expect("the dead to be forgotten", || {
        known(&server, &key).len() == 2
    });
    leftovers::only_what_is_documented(&server, topic, &["c"]);
}

/// As things are when nothing is set, but for how long the dead count as alive.
#[test]
fn r54_what_a_killed_member_had_in_its_hands_is_done_by_a_sibling_or_a_stranger() {
    // the first read of a lane brings sixteen
    const PARTITIONS: u32 = 7;
    const ALL: u32 = 16 * PARTITIONS;
    for sibling in [true, false] {
        let server = server();
        let topic = &format!("r54-killed-{sibling}");
        let streams = as_pod(&server, topic, PARTITIONS, "other");
        let job = Job {
            ttl: Some(TTL),
            partitions: PARTITIONS,
            ..Job::new(&server, topic, "victim")
        };
        let bodies = numbers(0, ALL);
        let bodies: Vec<_> = bodies.iter().map(String::as_str).collect();
        for (p, bodies) in (0..).zip(bodies.chunks(16)) {
            publish_to(&streams, topic, p, bodies);
        }
        let victim = job.start();
        let in_hand = || -> i64 {
            (0..PARTITIONS)
                .map(|p| pending(&server, &stream(topic, p)))
                .sum()
        };
        job.wait_until_begun(PARTITIONS as usize);
        assert_eq!(in_hand(), i64::from(ALL));
        let seen = Seen::default();
        let start = || {
            let builder = worker(&streams, topic).lease_ttl(TTL).lease_renew(RENEW);
            recording(builder, &seen).start().unwrap()
        };
        let there = sibling.then(start);
        if sibling {
            thread::sleep(ms(300));
            assert_eq!(seen.len(), 0);
        }
        victim.kill();
        let begun = Instant::now();
        let _later = (!sibling).then(start);
        seen.wait_for(ALL as usize);
        let took = begun.elapsed();
        assert!(took < TTL + ms(3000), "sibling {sibling}: {took:?}");
        nothing_is_left(&server, topic, PARTITIONS);
        assert_eq!(by_number(seen.all()), numbers(0, ALL), "each once");
        drop(there);
    }
}

/// The only one who could take over has no time for it when the other dies.
#[test]
fn r54_a_sibling_that_was_busy_takes_over_when_it_is_not() {
    let server = server();
    let topic = "r54-slow";
    let streams = as_pod(&server, topic, 1, "busy");
    let quick = ms(1000);
    let job = Job {
        ttl: Some(quick),
        ..Job::new(&server, topic, "victim")
    };
    let victim = job.start();
    publish_once_known(&server, &streams, topic, 1);
    job.wait_until_begun(1);
    let seen = Seen::default();
    let (all, held) = (seen.clone(), Arc::new(AtomicBool::new(true)));
    let hold = Arc::clone(&held);
    let builder = worker(&streams, topic)
        .lease_ttl(quick)
        .lease_renew(quick / 6);
    let sibling = builder.shared(move |m: &Message<'_>| {
        all.push(text(m));
        while hold.load(SeqCst) {
            thread::sleep(ms(2));
        }
        Ok(())
    });
    let _sibling = sibling.start().unwrap();
    publish(&streams, topic, 1..2);
    seen.wait_for(1);
    thread::sleep(ms(2200)); // so long that it is not given more
    victim.kill();
    thread::sleep(quick + ms(1500));
    held.store(false, SeqCst);
    let begun = Instant::now();
    assert_eq!(seen.wait_for(2), ["1", "0"]);
    // not when idle messages are looked for, which is twice a minute
    assert!(begun.elapsed() < RESUMES, "{:?}", begun.elapsed());
    nothing_is_left(&server, topic, 1);
}

/// The same however one is connected, and in both of the modes.
#[test]
fn r55_what_is_recovered_is_recovered_over_every_transport_and_in_every_queue_mode() {
    let server = server();
    let ways = [
        ("r55-tcp-work", server.tcp_url(), false),
        ("r55-unix-work", server.url(), false),
        ("r55-tcp-leased", server.tcp_url(), true),
        ("r55-unix-leased", server.url(), true),
    ];
    let victims = ways.each_ref().map(|(topic, url, leased)| {
        publish(&open(url, topic, 1), topic, 0..50);
        let job = Job {
            ttl: Some(TTL),
            url: url.clone(),
            leased: *leased,
            ..Job::new(&server, topic, "victim")
        };
        (job.start(), job)
    });
    for (victim, job) in victims {
        job.wait_until_begun(1);
        assert_eq!(pending(&server, &stream(&job.topic, 0)), 16, "{job:?}");
        victim.kill();
    }
    let rest = ways.each_ref().map(|(topic, url, leased)| {
        let streams = settings(url, topic, 1).pod_name("other");
        let streams = Streams::open(streams).unwrap();
        let seen = Seen::default();
        let builder = member(&streams, topic).delivery(if *leased {
            Delivery::LeasedQueue
        } else {
            Delivery::WorkQueue
        });
        let consumer = recording(builder, &seen).start().unwrap();
        (topic, seen, consumer)
    });
    let begun = Instant::now();
    for (topic, seen, consumer) in rest {
        let mut all = seen.wait_for(50);
        if topic.ends_with("work") {
            all = by_number(all); // where there is no order
        }
        assert_eq!(all, numbers(0, 50), "{topic}");
        assert!(
            begun.elapsed() < TTL + RESUMES,
            "{topic}: {:?}",
            begun.elapsed()
        );
        nothing_is_left(&server, topic, 1);
        consumer.stop();
    }
}

/// Deaths are counted apart from failures, and use up none of the attempts.
#[test]
fn r58_deaths_of_the_process_use_up_no_attempts_of_a_good_message() {
    let server = server();
    let topic = "r58-innocent";
    let streams = as_pod(&server, topic, 1, "fixed");
    publish(&streams, topic, 0..1);
    let job = Job {
        retries: Some(3),
        ..Job::new(&server, topic, "fixed")
    };
    for n in 1..=5 {
        let process = job.start();
        job.wait_until_begun(n);
        process.kill();
    }
    let attempts: Vec<_> = job
        .begun()
        .into_iter()
        .map(|(_, attempt)| attempt)
        .collect();
    assert_eq!(attempts, [1, 2, 3, 4, 5]);
    let key = stream(topic, 0);
    assert_eq!(
        pending_of(&server, &key)[0].2,
        5,
        "deliveries are the server's to count"
    );
    assert_eq!(letters(&streams, topic).len(), 0);

    // Now it fails, as often as it may.
    let seen = Seen::default();
    let all = seen.clone();
    let builder = member(&streams, topic).retry(3).retry_pauses(SHORT, SHORT);
    let consumer = builder.shared(move |m: &Message<'_>| {
        all.push(m.attempt());
        Err("no such account".into())
    });
    let _consumer = consumer.start().unwrap();
    expect("a dead letter", || letters(&streams, topic).len() == 1);
    nothing_is_left(&server, topic, 1);
    assert_eq!(seen.all(), [6, 7, 8, 9]);
    let letter = &letters(&streams, topic)[0];
    assert_eq!(letter.reason, Some(DeadLetterReason::Retries));
    assert_eq!((letter.attempts, letter.deliveries), (3, 9));
}
