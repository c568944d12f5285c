//! The verdict while things go wrong, as somebody reads it who looks again and again.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use streamlane::{
    testing::{Aof, PrivateServer},
    *,
};

use crate::{
    lag::{Turnstile, sampled},
    support::*,
};

const SECOND: Duration = Duration::from_secs(1);

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Streams that ask often, and what is said of their one consumer.
fn streams(
    server: &PrivateServer,
    topic: &str,
    partitions: u32,
    how: impl FnOnce(ConsumerSettings) -> ConsumerSettings,
) -> Streams {
    let settings = settings(&server.url(), topic, partitions).sample_interval(SECOND);
    let consumer = how(ConsumerSettings::new(topic).consumer("c").block(ms(200)));
    Streams::open(settings.with_consumer(consumer)).unwrap()
}

/// Reads the verdict often, until it is dropped.
struct Reader {
    seen: Arc<Mutex<Vec<(Instant, Health)>>>,
    over: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Reader {
    fn of(streams: &Streams) -> Self {
        let (seen, over) = (
            Arc::<Mutex<Vec<_>>>::default(),
            Arc::<AtomicBool>::default(),
        );
        let (all, end, streams) = (seen.clone(), over.clone(), streams.clone());
        let thread = thread::spawn(move || {
            while !end.load(SeqCst) {
                all.lock().unwrap().push((Instant::now(), streams.health()));
                thread::sleep(ms(20));
            }
        });
        Self {
            seen,
            over,
            thread: Some(thread),
        }
    }

    /// Waits for this verdict.
    #[track_caller]
    fn wait_for(&self, rule: Rule) -> Health {
        let since = Instant::now();
        let mut found = None;
        let found_it = testing::eventually(PATIENCE, || {
            let seen = self.seen.lock().unwrap();
            let last = seen.last().filter(|(at, _)| *at >= since);
            found = last.filter(|(_, h)| h.rule == rule).map(|(_, h)| h.clone());
            found.is_some()
        });
        assert!(found_it, "{rule:?}: {:?}", self.seen.lock().unwrap().last());
        found.unwrap()
    }

    /// Every verdict since a moment, those alike once.
    fn since(&self, moment: Instant) -> Vec<Health> {
        let seen = self.seen.lock().unwrap();
        let mut all: Vec<Health> = seen
            .iter()
            .filter(|(at, _)| *at >= moment)
            .map(|(_, h)| h.clone())
            .collect();
        all.dedup_by_key(|h| h.rule);
        all
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.over.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn is_bad(h: &Health) -> bool {
    h.status == Status::Unhealthy
}

#[test]
fn a_wedged_handler_shows_as_soon_as_it_may_and_not_before() {
    let server = server();
    let limit = Duration::from_secs(3);
    let streams = streams(&server, "wedged", 1, |c| {
        c.unhealthy_behind(limit).unhealthy_lag(ms(1500))
    });
    let gate = Turnstile::default();
    let consumer = gate.on(streams.consumer("wedged")).start().unwrap();
    running(&consumer);
    let reader = Reader::of(&streams);
    reader.wait_for(Rule::Fine);
    let began = Instant::now();
    publish(&streams, "wedged", 0..1);
    gate.wait_for(0);
    publish(&streams, "wedged", 1..4);
    let h = reader.wait_for(Rule::Lagging);
    assert!(h.description.contains("UnhealthyLagMs is 1500"), "{h}");
    let h = reader.wait_for(Rule::BehindTail);
    assert!(began.elapsed() >= limit, "{:?}", began.elapsed());
    for part in [
        "behind the tail",
        "UnhealthyBehindSeconds of 3",
        "wedged[0]/c",
    ] {
        assert!(h.description.contains(part), "{part}: {h}");
    }
    assert!(!h.is_live() && !h.is_ready());
    assert_eq!(h.data.behind.as_ref().unwrap().0, "wedged[0]/c");
    assert!(h.data.worst_lag_entries.is_some());
    // it moves: one is done, and the next one stands
    gate.let_go(1);
    let h = reader.wait_for(Rule::Lagging);
    assert!(h.is_live(), "{h}");
    gate.open();
    reader.wait_for(Rule::Fine);
}

#[test]
fn r81_who_has_nothing_to_do_or_is_slow_is_never_unhealthy() {
    let server = server();
    let behind = |c: ConsumerSettings| c.unhealthy_behind(2 * SECOND);
    let streams = streams(&server, "r81", 2, behind);
    let busy = streams.consumer("r81").lease_renew(ms(200));
    let busy = busy.shared(|m: &Message<'_>| {
        thread::sleep(ms(if m.body() == b"slow" { 100 } else { 0 }));
        Ok(())
    });
    let consumer = busy.start().unwrap();
    running(&consumer);
    // more members than partitions, so that one has none
    let idle = settings(&server.url(), "r81", 2).pod_name("idle");
    let idle = Streams::open(idle.sample_interval(SECOND)).unwrap();
    let none = idle.consumer("r81").name("c").max_partitions(0);
    let none = recording(none, &Seen::default()).start().unwrap();
    let readers = [Reader::of(&streams), Reader::of(&idle)];
    let began = Instant::now();
    readers[0].wait_for(Rule::Fine);
    // idle for longer than the limit, then paused, then behind all the time and moving
    thread::sleep(5 * SECOND / 2);
    consumer.pause();
    publish_to(&streams, "r81", 0, &["waits"]);
    thread::sleep(5 * SECOND / 2);
    expect("what waits to be seen", || {
        let all = streams.partitions();
        all.iter().any(|p| p.lag_entries == Some(1))
    });
    consumer.resume();
    publish_to(&streams, "r81", 1, &["slow"; 50]);
    expect("all to be finished", || {
        let all = streams.partitions();
        all.iter().map(|p| p.handled).sum::<u64>() == 51
    });
    for reader in &readers {
        let bad: Vec<_> = reader.since(began).into_iter().filter(is_bad).collect();
        assert!(bad.is_empty(), "{bad:?}");
    }
    assert!(idle.partitions().is_empty() && idle.health().is_live());
    drop(none);
}

#[test]
fn a_partition_that_stops_is_looked_after_and_all_of_them_are_the_end() {
    let server = server();
    let streams = streams(&server, "all-stop", 2, |c| c);
    let builder = streams.consumer("all-stop");
    let builder = builder.shared(|_: &Message<'_>| Err("it is over").or_stop());
    let consumer = builder.start().unwrap();
    running(&consumer);
    let reader = Reader::of(&streams);
    reader.wait_for(Rule::Fine);
    publish_to(&streams, "all-stop", 1, &["x"]);
    let h = reader.wait_for(Rule::Stopped);
    assert!(h.description.contains("all-stop[1]/c") && h.description.contains("it is over"));
    assert_eq!(
        (h.status, h.is_live(), h.is_ready()),
        (Status::Degraded, true, true)
    );
    assert_eq!((h.data.partitions, h.data.partitions_stopped), (2, 1));
    publish_to(&streams, "all-stop", 0, &["x"]);
    let h = reader.wait_for(Rule::AllPartitionsStopped);
    assert_eq!((h.is_live(), h.is_ready()), (false, false));
    consumer.stop();
    // it was not told to: its policy ended it before
    reader.wait_for(Rule::AllPartitionsStopped);
    drop(consumer);
    reader.wait_for(Rule::Fine);
}

#[test]
fn a_consumer_that_was_told_to_stop_is_missed_while_somebody_holds_it() {
    let server = server();
    let streams = streams(&server, "told", 1, |c| c);
    let consumer = recording(streams.consumer("told"), &Seen::default());
    let consumer = consumer.start().unwrap();
    running(&consumer);
    let reader = Reader::of(&streams);
    reader.wait_for(Rule::Fine);
    consumer.stop();
    let h = reader.wait_for(Rule::NoConsumerStarted);
    assert!(h.is_live() && !h.is_ready());
    assert_eq!((h.data.consumers, h.data.consumers_started), (1, 0));
    drop(consumer);
    let h = reader.wait_for(Rule::Fine);
    assert_eq!(h.data.consumers, 0);
}

#[test]
fn a_partition_that_was_left_to_another_is_unhealthy_once_messages_have_waited_for_too_long() {
    let server = server();
    let join = |pod: &str| {
        let settings = settings(&server.url(), "left", 1).sample_interval(SECOND);
        let consumer = ConsumerSettings::new("left").consumer("c");
        let consumer = consumer.instances(Instances::Static);
        let consumer = consumer
            .unhealthy_stopped(SECOND)
            .contested_grace(Duration::ZERO);
        let settings = settings.with_consumer(consumer).pod_name(pod);
        let streams = Streams::open(settings).unwrap();
        let builder = streams.consumer("left").instance_of(0, 1);
        let builder = builder.lease_ttl(2 * SECOND).lease_renew(ms(300));
        let builder = builder.persist_interval(ms(50)).block(ms(200));
        let consumer = recording(builder, &Seen::default()).start().unwrap();
        (streams, consumer)
    };
    let both = [join("left-a"), join("left-b")];
    let publisher = open(&server.url(), "left", 1);
    let readers = both.each_ref().map(|(streams, _)| Reader::of(streams));
    let mut worse = None;
    expect("one to stand down for too long", || {
        publish_to(&publisher, "left", 0, &["x"]);
        thread::sleep(ms(100));
        worse = both
            .iter()
            .position(|(streams, _)| streams.health().rule == Rule::StoppedTooLong);
        worse.is_some()
    });
    let h = readers[worse.unwrap()].wait_for(Rule::StoppedTooLong);
    for part in [
        "stood down",
        "entries behind",
        "UnhealthyStoppedSeconds of 1",
    ] {
        assert!(h.description.contains(part), "{part}: {h}");
    }
    assert!(h.is_live(), "starting it again mends nothing: {h}");
    assert_ne!(
        both[1 - worse.unwrap()].0.health().status,
        Status::Unhealthy
    );
}

#[test]
fn claims_that_cannot_be_renewed_are_told_and_so_is_their_return() {
    let server = server();
    let streams = streams(&server, "lapses", 2, |c| {
        c.lease_ttl(2 * SECOND).lease_renew(ms(200))
    });
    let consumer = recording(streams.consumer("lapses"), &Seen::default());
    let consumer = consumer.start().unwrap();
    running(&consumer);
    let reader = Reader::of(&streams);
    reader.wait_for(Rule::Fine);
    let replicas = |n: &str| {
        let set = ["CONFIG", "SET", "min-replicas-to-write", n];
        server.command(&set).unwrap();
    };
    let began = Instant::now();
    replicas("1");
    let h = reader.wait_for(Rule::ClaimsLapsed);
    assert!(h.is_live() && !h.is_ready(), "{h}");
    replicas("0");
    reader.wait_for(Rule::Fine);
    let rules: Vec<Rule> = reader.since(began).iter().map(|h| h.rule).collect();
    assert!(!rules.contains(&Rule::AllPartitionsStopped), "{rules:?}");
    assert!(reader.since(began).iter().all(Health::is_live), "{rules:?}");
}

#[test]
fn an_outage_is_told_in_time_whoever_looks_and_nobody_is_to_restart_for_it() {
    let server = PrivateServer::builder().tcp().aof(Aof::Always);
    listen_to_the_log();
    let server = server.start().unwrap();
    let (block, slack) = (ms(200), ms(800));
    let streams = streams(&server, "away", 2, |c| {
        c.block(block).read_slack(slack).unhealthy_behind(SECOND)
    });
    let gate = Turnstile::default();
    let consumer = gate.on(streams.consumer("away")).start().unwrap();
    running(&consumer);
    // one lane is in a handler all along, and its partition is behind
    publish_to(&streams, "away", 0, &["stands"]);
    gate.wait_for(0);
    let reader = Reader::of(&streams);
    reader.wait_for(Rule::BehindTail);
    for kind in ["hangs", "is dead"] {
        match kind {
            "hangs" => server.pause().unwrap(),
            _ => server.kill(),
        }
        let began = Instant::now();
        let h = reader.wait_for(Rule::ConnectionDown);
        let took = began.elapsed();
        assert!(took < block + slack + SECOND, "{kind}: {took:?}");
        assert_eq!((h.status, h.is_live()), (Status::Unhealthy, true));
        assert!(h.data.connection.is_some(), "{h}");
        thread::sleep(2 * SECOND);
        let after = reader.since(began + took);
        assert!(after.iter().all(Health::is_live), "{kind}: {after:?}");
        match kind {
            "hangs" => server.resume().unwrap(),
            _ => server.restart().unwrap(),
        }
        let up = Instant::now();
        expect("it to be over", || {
            streams.health().rule != Rule::ConnectionDown
        });
        assert!(up.elapsed() < 5 * SECOND, "{kind}: {:?}", up.elapsed());
    }
    gate.open();
    reader.wait_for(Rule::Fine);
}

#[test]
fn r38_a_stream_that_expires_under_a_handler_is_not_behind_and_shows_as_a_gap_once_it_is_missed() {
    let server = server();
    let streams = streams(&server, "r38", 1, |c| {
        c.batch_size(1).unhealthy_behind(9 * SECOND)
    });
    let (gate, gaps) = (Turnstile::default(), Seen::<Gap>::default());
    let told = gaps.clone();
    let builder = streams.consumer("r38").read_ahead(false);
    let builder = builder.on_gap(move |gap| told.push(gap.clone()));
    let consumer = gate.on(builder).start().unwrap();
    running(&consumer);
    let began = Instant::now();
    let reader = Reader::of(&streams);
    let ids = publish_to(&streams, "r38", 0, &["0", "1", "2", "3"]);
    gate.let_go(2);
    gate.wait_for(2);
    let key = ["PEXPIRE", "re:s:{r38}:0", "3000"];
    server.command(&key).unwrap();
    expect("the stream to expire", || {
        streams.partitions()[0].stream_exists == Some(false)
    });
    let s = streams.partitions()[0].clone();
    assert_eq!(
        (s.stream_length, s.lag_entries),
        (Some(0), Some(0)),
        "{s:?}"
    );
    assert_eq!(s.behind_for, None, "there is nothing to be behind of");
    gate.open();
    let gap = gaps.wait_for(1)[0].clone();
    assert_eq!((gap.cause, gap.position), (GapCause::Recreated, ids[2]));
    let h = reader.wait_for(Rule::Gap);
    assert_eq!(h.status, Status::Degraded);
    publish_to(&streams, "r38", 0, &["later"]);
    expect("what came later", || consumer.partitions()[0].handled == 4);
    let left = server.command(&["PTTL", "re:s:{r38}:0"]).unwrap();
    assert_eq!(left.int(), Some(-1));
    assert!(reader.since(began).iter().all(|h| !is_bad(h)));
}

#[test]
fn r76_messages_that_were_trimmed_before_they_were_read_are_counted_and_show() {
    let server = server();
    let streams = streams(&server, "r76", 1, |c| {
        c.batch_size(1).persist_interval(ms(20))
    });
    let bodies: Vec<String> = (0..100).map(|n| n.to_string()).collect();
    let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
    let ids = publish_to(&streams, "r76", 0, &bodies);
    let gate = Turnstile::default();
    let consumer = gate.on(streams.consumer("r76").read_ahead(false));
    let consumer = consumer.start().unwrap();
    gate.let_go(10);
    gate.wait_for(10);
    expect("ten to be stored", || {
        stored(&server, "r76", "c", 0) == Some(ids[9])
    });
    consumer.stop();
    drop(consumer);
    let trim = |n: &str| {
        let trim = ["XTRIM", "re:s:{r76}:0", "MAXLEN", "=", n];
        server.command(&trim).unwrap();
    };
    trim("5");
    let (gate, gaps) = (Turnstile::default(), Seen::<Gap>::default());
    let told = gaps.clone();
    let builder = streams.consumer("r76").read_ahead(false);
    let builder = builder.on_gap(move |gap| told.push(gap.clone()));
    let consumer = gate.on(builder).start().unwrap();
    let gap = gaps.wait_for(1)[0].clone();
    // after a restart: from where, from where on, and how many
    let first = Some(ids[95]);
    assert_eq!(
        (gap.position, gap.first, gap.lost),
        (ids[9], first, Some(85))
    );
    let h = Reader::of(&streams).wait_for(Rule::Gap);
    assert!(h.description.contains("85 messages"), "{h}");
    let s = sampled(&streams, "r76", 0);
    assert_eq!((s.lag_entries, s.lost, s.gaps), (Some(5), 85, 1), "{s:?}");
    // and under a slow consumer that runs, which stands at the 96th
    gate.wait_for(0);
    publish_to(&streams, "r76", 0, &["a", "b", "c"]);
    trim("1");
    gate.open();
    let gap = gaps.wait_for(2)[1].clone();
    assert_eq!((gap.position, gap.lost), (ids[95], Some(6)), "{gap:?}");
    expect("the rest", || consumer.partitions()[0].handled == 2);
    assert_eq!(consumer.partitions()[0].lost, 91);
}

#[test]
fn a_flushed_server_is_degraded_at_most_and_goes_on() {
    let server = server();
    let streams = streams(&server, "flushed", 2, |c| {
        let c = c.lease_ttl(2 * SECOND).lease_renew(ms(200));
        c.unhealthy_behind(2 * SECOND).persist_interval(ms(20))
    });
    let seen = Seen::default();
    let consumer = recording(streams.consumer("flushed"), &seen);
    let consumer = consumer.start().unwrap();
    running(&consumer);
    for p in 0..2 {
        publish_to(&streams, "flushed", p, &["before"]);
    }
    seen.wait_for(2);
    let reader = Reader::of(&streams);
    reader.wait_for(Rule::Fine);
    let began = Instant::now();
    server.command(&["FLUSHALL"]).unwrap();
    expect("a message to be stored", || {
        let publisher = streams.publisher("flushed").unwrap();
        let draft = |p| publisher.message("T", "after").partition(p);
        (0..2).all(|p| draft(p).publish().is_ok())
    });
    reader.wait_for(Rule::Gap);
    seen.wait_for(4);
    thread::sleep(2 * SECOND);
    let told = reader.since(began);
    assert!(told.iter().all(Health::is_live), "{told:?}");
    let rules: Vec<Rule> = told.iter().map(|h| h.rule).collect();
    for never in [
        Rule::BehindTail,
        Rule::PositionAhead,
        Rule::AllPartitionsStopped,
    ] {
        assert!(!rules.contains(&never), "{rules:?}");
    }
    assert_eq!(reader.wait_for(Rule::Gap).status, Status::Degraded);
}

#[test]
fn a_queue_tells_what_is_left_alone_what_comes_again_and_again_and_what_is_given_up() {
    let server = server();
    let streams = streams(&server, "neglect", 1, |c| {
        let c = c.delivery(Delivery::WorkQueue).claim_idle(ms(500));
        let c = c.claim_interval(3600 * SECOND).degraded_pending(SECOND);
        c.batch_size(1).degraded_dead_letters(2)
    });
    let gate = Turnstile::default();
    let inner = gate.clone();
    let builder = streams.consumer("neglect").shared(move |m: &Message<'_>| {
        if m.body() == b"hopeless" {
            Err("no").or_dead_letter()?;
        }
        inner.stand(m)
    });
    let consumer = builder.start().unwrap();
    running(&consumer);
    let reader = Reader::of(&streams);
    reader.wait_for(Rule::Fine);
    let ids = publish_to(&streams, "neglect", 0, &["stands"]);
    gate.wait_for(0);
    // a handler that runs keeps its message alive
    for _ in 0..2 {
        let s = sampled(&streams, "neglect", 0);
        assert!(
            s.oldest_idle.is_some_and(|t| t < PATIENCE) && s.pending == Some(1),
            "{s:?}"
        );
    }
    // somebody else takes it, and leaves it
    let id = ids[0].to_string();
    let take = [
        "XCLAIM",
        "re:s:{neglect}:0",
        "c",
        "ghost",
        "0",
        &id,
        "RETRYCOUNT",
        "12",
    ];
    server.command(&take).unwrap();
    let h = reader.wait_for(Rule::PendingTooLong);
    let rules: Vec<_> = h.reasons.iter().map(|r| r.rule).collect();
    assert_eq!(
        rules,
        [Rule::PendingTooLong, Rule::DeliveredTooOften],
        "{h}"
    );
    assert!(h.description.contains("given out 12 times"), "{h}");
    assert_eq!(
        (h.status, h.is_live(), h.is_ready()),
        (Status::Degraded, true, true)
    );
    let acknowledge = ["XACK", "re:s:{neglect}:0", "c", &id];
    server.command(&acknowledge).unwrap();
    reader.wait_for(Rule::Fine);
    gate.open();
    publish_to(&streams, "neglect", 0, &["hopeless", "hopeless"]);
    let h = reader.wait_for(Rule::DeadLetters);
    assert!(
        h.description.contains("2 messages became dead letters"),
        "{h}"
    );
    drop(consumer);
}

#[test]
fn silence_is_told_where_it_is_asked_for_and_over_with_the_next_message() {
    let server = server();
    let streams = streams(&server, "silence", 2, |c| c.degraded_silence(3 * SECOND));
    let seen = Seen::default();
    let consumer = recording(streams.consumer("silence"), &seen)
        .start()
        .unwrap();
    running(&consumer);
    let reader = Reader::of(&streams);
    let h = reader.wait_for(Rule::Silent);
    assert_eq!(h.status, Status::Degraded);
    assert!(h.description.contains("DegradedSilenceSeconds of 3"), "{h}");
    assert_eq!(h.data.silent.as_deref(), Some("silence/c"));
    publish_to(&streams, "silence", 1, &["x"]);
    seen.wait_for(1);
    reader.wait_for(Rule::Fine);
    reader.wait_for(Rule::Silent);
}
