//! Everything that is measured is measured: each series is seen above 0, for a reason of its own.

#![allow(clippy::float_cmp)]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use streamlane::{
    testing::{Fault, Relay, Way},
    *,
};

use crate::{
    leases::ms,
    queues::{SHORT, stream, worker},
    support::*,
};

#[path = "../common/prometheus.rs"]
pub(crate) mod prometheus;

const HOUR: Duration = Duration::from_hours(1);

/// The highest value that each instrument had, whatever it was about.
#[derive(Default)]
struct Peaks(BTreeMap<&'static str, f64>);

impl Peaks {
    #[allow(clippy::cast_precision_loss)]
    fn look(&mut self, metrics: &Metrics) {
        metrics.visit(&mut |sample| {
            let value = match sample.value {
                Value::Counter(n) => n as f64,
                Value::Gauge(n) => n,
                Value::Histogram { count, .. } => count as f64,
                _ => return,
            };
            let peak = self.0.entry(sample.instrument.name).or_default();
            *peak = peak.max(value);
        });
    }

    fn is_seen(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|peak| *peak > 0.0)
    }

    /// Looks until each of these has been above 0.
    #[track_caller]
    fn until(&mut self, streams: &Streams, names: &[&str]) {
        let metrics = streams.metrics();
        for name in names {
            expect(name, || {
                self.look(&metrics);
                self.is_seen(name)
            });
        }
    }
}

/// The values of one instrument, by their labels.
fn values(streams: &Streams, name: &str) -> BTreeMap<Vec<String>, f64> {
    let mut found = BTreeMap::new();
    streams.metrics().visit(&mut |sample| {
        if sample.instrument.name == name {
            let labels = sample.labels.iter().map(|(_, value)| (*value).to_owned());
            let Value::Counter(n) = sample.value else {
                let Value::Gauge(n) = sample.value else {
                    return;
                };
                found.insert(labels.collect(), n);
                return;
            };
            #[allow(clippy::cast_precision_loss)]
            found.insert(labels.collect(), n as f64);
        }
    });
    found
}

fn publishing(peaks: &mut Peaks) {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let topic = "m-publish";
    let settings = settings(&relay.url(), topic, 2).publish_timeout(ms(500));
    let streams = Streams::open(settings).unwrap();
    let publisher = streams.publisher(topic).unwrap();
    let draft = |p| publisher.message("T", "x").partition(p);
    for _ in 0..2 {
        draft(0).dedupe("once", HOUR).publish().unwrap();
    }
    draft(0).deliver_after(ms(50)).publish().unwrap();
    let broken = ["SET", &stream(topic, 1), "no stream"];
    server.command(&broken).unwrap();
    draft(1).publish().unwrap_err();
    draft(1).deliver_after(ms(50)).publish().unwrap();
    let known = [
        "streams.published",
        "streams.publish.repeated",
        "streams.publish.refused",
        "streams.delayed.scheduled",
        "streams.delayed.moved",
        "streams.delayed.put_off",
    ];
    peaks.until(&streams, &known);
    relay.fault(Way::Replies, Fault::BlackHole);
    draft(0).publish().unwrap_err();
    peaks.until(&streams, &["streams.publish.unknown"]);
}

fn buffered(peaks: &mut Peaks) {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let topic = "m-buffer";
    let producer = ProducerSettings::new(topic).buffered(true).max_queue(100);
    let producer = producer.max_batch(10).drop_oldest(true);
    let settings = settings(&relay.url(), topic, 1).with_producer(producer);
    let streams = Streams::open(settings).unwrap();
    let publisher = streams.buffered(topic).unwrap();
    let message = Outgoing::new("T", "x").key("k");
    publisher.enqueue(&message).unwrap();
    assert!(publisher.flush(PATIENCE).is_clean());
    relay.refuse_new(true).unwrap();
    relay.reset();
    for _ in 0..1000 {
        publisher.enqueue(&message).unwrap();
    }
    peaks.until(
        &streams,
        &["streams.buffer.queued", "streams.buffer.dropped"],
    );
    let closed = publisher.close(ms(50));
    assert!(!closed.undelivered.is_empty());
    peaks.until(&streams, &["streams.buffer.returned"]);
    drop(publisher);
    expect("the queue to be gone", || {
        values(&streams, "streams.buffer.queued").is_empty()
    });
}

#[derive(Debug)]
struct LedgerDown;

impl std::fmt::Display for LedgerDown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the ledger is down")
    }
}

impl std::error::Error for LedgerDown {}

/// Does what the body says.
fn obey(m: &Message<'_>, go: &AtomicBool) -> HandlerResult {
    match m.body() {
        b"skip" => Err(LedgerDown)?,
        b"park" => Err(LedgerDown).or_dead_letter(),
        b"stop" => Err(LedgerDown).or_stop(),
        b"panic" => panic!("as it was told"),
        b"block" if !go.load(SeqCst) => Err(LedgerDown).or_block(),
        b"wait" => {
            expect("the signal", || go.load(SeqCst));
            Ok(())
        }
        _ => Ok(()),
    }
}

fn consuming(peaks: &mut Peaks) {
    let server = server();
    let topic = "m-consume";
    let settings = settings(&server.url(), topic, 3).sample_interval(ms(1000));
    let streams = Streams::open(settings).unwrap();
    let go = Arc::new(AtomicBool::new(false));
    let handle = {
        let go = Arc::clone(&go);
        move |m: &Message<'_>| obey(m, &go)
    };
    let builder = streams.consumer(topic).name("c").filter(["T"]);
    let builder = builder.max_in_flight(1).max_partitions(2).block(SHORT);
    let builder = builder.lease_renew(ms(200)).lease_ttl(ms(2000));
    let consumer = builder.shared(handle).start().unwrap();
    expect("two partitions", || consumer.owned().len() == 2);
    let own = consumer.owned();
    let publisher = streams.publisher(topic).unwrap();
    publisher
        .message("U", "")
        .partition(own[0])
        .publish()
        .unwrap();
    publish_to(&streams, topic, own[0], &["fine", "skip", "park", "panic"]);
    let payload = "0123456789abcdef0123456789abcdef 70000";
    let raw = [
        "XADD",
        &stream(topic, own[0]),
        "*",
        "b",
        "",
        "t",
        "T",
        "x",
        payload,
    ];
    server.command(&raw).unwrap();
    let known = [
        "streams.consumed",
        "streams.filtered",
        "streams.errors",
        "streams.skipped",
        "streams.dead",
        "streams.payload.missing",
        "streams.connections",
        "streams.batch.duration",
        "streams.batch.size",
        "streams.in_flight.max",
        "streams.partitions.eligible",
        "streams.partitions.leased",
        "streams.partitions.leased.max",
        "streams.partitions.unowned",
    ];
    peaks.until(&streams, &known);
    let errors = |policy: &str, name: &str| {
        let labels = [topic, "c", policy, name].map(str::to_owned).to_vec();
        values(&streams, "streams.errors").get(&labels).copied()
    };
    expect("all errors", || errors("best_effort", "Error") == Some(1.0));
    assert_eq!(errors("best_effort", "LedgerDown"), Some(1.0));
    assert_eq!(errors("best_effort", "HandlerPanic"), Some(1.0));
    assert_eq!(errors("park", "LedgerDown"), Some(1.0));

    publish_to(&streams, topic, own[1], &["wait"]);
    let behind = [
        "streams.in_flight",
        "streams.handler.busy_ms",
        "streams.lag.entries",
        "streams.lag.ms",
        "streams.stream.length",
        "streams.sample.age_ms",
    ];
    peaks.until(&streams, &behind);
    publish_to(&streams, topic, own[0], &["block"]);
    // it waits for the other call to end
    thread::sleep(SHORT);
    go.store(true, SeqCst);
    peaks.until(&streams, &["streams.backpressure.wait"]);
    go.store(false, SeqCst);
    publish_to(&streams, topic, own[0], &["block"]);
    peaks.until(&streams, &["streams.blocked", "streams.block.duration_ms"]);
    go.store(true, SeqCst);
    publish_to(&streams, topic, own[1], &["stop"]);
    peaks.until(&streams, &["streams.stopped"]);
    expect("the block to end", || {
        values(&streams, "streams.blocked")
            .values()
            .all(|n| *n == 0.0)
    });
    assert!(consumer.pause_partition(own[0]));
    peaks.until(&streams, &["streams.paused"]);
    assert!(consumer.resume_partition(own[0]));
    expect("the pause to end", || {
        values(&streams, "streams.paused")
            .values()
            .all(|n| *n == 0.0)
    });

    let key = format!("re:p:{{{topic}}}:c");
    server.command(&["SET", &key, "no hash"]).unwrap();
    publish_to(&streams, topic, own[0], &["fine"]);
    peaks.until(&streams, &["streams.positions.flush_failures"]);
    server.command(&["DEL", &key]).unwrap();
}

fn letters(peaks: &mut Peaks) {
    let server = server();
    let topic = "m-letters";
    let streams = open(&server.url(), topic, 1);
    let payload = "0123456789abcdef0123456789abcdef 70000";
    publish_to(&streams, topic, 0, &["park"]);
    let raw = [
        "XADD",
        &stream(topic, 0),
        "*",
        "b",
        "",
        "t",
        "T",
        "x",
        payload,
    ];
    server.command(&raw).unwrap();
    let never = AtomicBool::new(false);
    let builder = streams.consumer(topic).name("c").park(0);
    let consumer = builder.shared(move |m: &Message<'_>| obey(m, &never));
    consumer.start().unwrap().drain(PATIENCE).unwrap();
    let letters = streams.admin().dead_letters(topic, "c");
    let all = letters.page(None, 10).unwrap().letters;
    assert_eq!(all.len(), 2);
    for letter in &all {
        let to = ReplayTo::EveryConsumerOfTheTopic;
        letters.replay(letter.id, to).unwrap();
    }
    letters.delete(&[all[0].id]).unwrap();
    let known = [
        "streams.dead.replayed",
        "streams.dead.replay_failures",
        "streams.dead.deleted",
    ];
    peaks.until(&streams, &known);
}

fn queueing(peaks: &mut Peaks) {
    let server = server();
    let topic = "m-queue";
    let settings = settings(&server.url(), topic, 1).sample_interval(ms(1000));
    let streams = Streams::open(settings).unwrap();
    let begun = Seen::default();
    let go = Arc::new(AtomicBool::new(false));
    let handle = {
        let (begun, go) = (begun.clone(), Arc::clone(&go));
        move |m: &Message<'_>| -> HandlerResult {
            begun.push(());
            match m.body() {
                b"fails" if m.attempt() == 1 => Err(LedgerDown)?,
                _ => obey(m, &go),
            }
        }
    };
    let builder = worker(&streams, topic).persist_interval(SHORT);
    let builder = builder.retry(3).retry_pauses(ms(20), ms(20));
    let consumer = builder.claim_interval(ms(100)).shared(handle);
    let _consumer = consumer.start().unwrap();
    publish_to(&streams, topic, 0, &["fails"]);
    begun.wait_for(2);
    peaks.until(&streams, &["streams.retried", "streams.acked"]);
    let id = publish_to(&streams, topic, 0, &["wait"])[0].to_string();
    begun.wait_for(3);
    // behind the one that is held, which is all there is of a batch
    publish_to(&streams, topic, 0, &["fine", "fine"]);
    let sampled = [
        "streams.pending",
        "streams.pending.oldest_idle_ms",
        "streams.pending.most_deliveries",
        "streams.unread",
    ];
    peaks.until(&streams, &sampled);
    let claim = ["XCLAIM", &stream(topic, 0), "c", "tool", "0", &id];
    server.command(&claim).unwrap();
    go.store(true, SeqCst);
    peaks.until(&streams, &["streams.late"]);
}

fn losing(peaks: &mut Peaks) {
    let server = server();
    for (topic, counted) in [("m-counted", true), ("m-uncounted", false)] {
        let streams = open(&server.url(), topic, 1);
        let seen = Seen::default();
        let builder = || streams.consumer(topic).name("c").block(SHORT);
        let ids = publish_to(&streams, topic, 0, &["0", "1", "2"]);
        let consumer = recording(builder(), &seen).start().unwrap();
        seen.wait_for(3);
        consumer.stop();
        publish_to(&streams, topic, 0, &["3", "4", "5"]);
        if !counted {
            // a peer moves it without counting
            let key = format!("re:p:{{{topic}}}:c");
            server
                .command(&["HSET", &key, "0", &ids[1].to_string()])
                .unwrap();
        }
        let key = stream(topic, 0);
        server.command(&["XTRIM", &key, "MAXLEN", "1"]).unwrap();
        let _consumer = recording(builder(), &seen).start().unwrap();
        seen.wait_for(4);
        let known: &[&str] = if counted {
            &["streams.gaps", "streams.lost"]
        } else {
            &["streams.gaps.untold"]
        };
        peaks.until(&streams, known);
    }
}

fn contesting(peaks: &mut Peaks) {
    let server = server();
    let topic = "m-contest";
    let both = ["m-a", "m-b"].map(|pod| {
        let settings = settings(&server.url(), topic, 1).pod_name(pod);
        let streams = Streams::open(settings).unwrap();
        let builder = streams.consumer(topic).name("c").instance_of(0, 1);
        let builder = builder.lease_ttl(ms(2500)).lease_renew(ms(300));
        let consumer = recording(builder, &Seen::default()).start().unwrap();
        (streams, consumer)
    });
    peaks.until(&both[0].0, &["streams.partitions.contested"]);
}

fn trimming(peaks: &mut Peaks) {
    let server = server();
    let topic = "m-trim";
    let of_topic = TopicSettings::default().partitions(1).trim(Trim::Exact);
    let of_topic = of_topic.max_len(100).clamp_release_threshold(0.5);
    let of_topic = of_topic
        .retention(ms(1000))
        .background_trim_interval(ms(1000));
    let settings = Settings::default().connection_string(server.url());
    let streams = Streams::open(settings.with_topic(topic, of_topic)).unwrap();
    let seen = Seen::default();
    publish_to(&streams, topic, 0, &["first"]);
    let consumer = recording(streams.consumer(topic).name("c"), &seen);
    consumer.start().unwrap().drain(PATIENCE).unwrap();
    publish(&streams, topic, 0..200);
    let _publisher = streams.publisher(topic).unwrap();
    let known = [
        "streams.trimmed",
        "streams.trimmed.unread",
        "streams.clamp.released",
    ];
    let until = std::time::Instant::now() + 3 * PATIENCE;
    while !known.iter().all(|n| peaks.is_seen(n)) && std::time::Instant::now() < until {
        peaks.look(&streams.metrics());
        thread::sleep(ms(20));
    }
    peaks.until(&streams, &known);
}

#[test]
fn every_series_is_seen_above_0() {
    let mut peaks = Peaks::default();
    publishing(&mut peaks);
    buffered(&mut peaks);
    consuming(&mut peaks);
    letters(&mut peaks);
    queueing(&mut peaks);
    losing(&mut peaks);
    contesting(&mut peaks);
    trimming(&mut peaks);
    let names = Metrics::instruments().map(|i| i.name);
    let unseen: Vec<_> = names.filter(|name| !peaks.is_seen(name)).collect();
    assert!(unseen.is_empty(), "{unseen:?}");
}

/// A gauge that only the worker sets stays at its last value when the worker does not come back.
#[test]
fn r79_a_gauge_is_not_frozen_by_a_handler_that_does_not_come_back() {
    let server = server();
    let topic = "m-frozen";
    let streams = open(&server.url(), topic, 2);
    let go = Arc::new(AtomicBool::new(false));
    let handle = {
        let go = Arc::clone(&go);
        move |m: &Message<'_>| obey(m, &go)
    };
    let over = Over(&go);
    let consumer = streams.consumer(topic).name("c").block(SHORT);
    let consumer = consumer.shared(handle).start().unwrap();
    running(&consumer);
    publish_to(&streams, topic, 0, &["wait"]);
    publish_to(&streams, topic, 1, &["stop"]);
    let of = |name: &str, partition: &str| {
        let labels = [topic, partition, "c"].map(str::to_owned).to_vec();
        values(&streams, name).get(&labels).copied()
    };
    let busy = |partition: &str| of("streams.handler.busy_ms", partition).unwrap();
    expect("the call", || busy("0") > 0.0);
    let first = busy("0");
    expect("it to grow by itself", || busy("0") > first);
    expect("the stop", || of("streams.stopped", "1") == Some(1.0));
    assert_eq!((busy("1"), of("streams.stopped", "0")), (0.0, Some(0.0)));
    drop(over);
    expect("the call to end", || busy("0") == 0.0);
    assert_eq!(of("streams.consumed", "0"), Some(1.0));
    consumer.stop();
    // what has ended as it was told has nothing more to say; what its policy stopped goes with the handle
    assert_eq!(
        (of("streams.consumed", "0"), of("streams.stopped", "0")),
        (None, None)
    );
    assert_eq!(of("streams.stopped", "1"), Some(1.0));
    drop(consumer);
    assert!(values(&streams, "streams.stopped").is_empty());
    assert!(values(&streams, "streams.in_flight").is_empty());
}

/// A partition that goes to another instance takes its series with it, and comes back with new ones.
#[test]
fn r79_the_series_of_a_released_partition_are_gone() {
    let server = server();
    let topic = "m-released";
    let join = |pod: &str| {
        let settings = settings(&server.url(), topic, 2).pod_name(pod);
        let streams = Streams::open(settings).unwrap();
        let builder = streams.consumer(topic).name("c").block(SHORT);
        let builder = builder.lease_renew(ms(200)).lease_ttl(ms(2000));
        let consumer = recording(builder, &Seen::default()).start().unwrap();
        (streams, consumer)
    };
    let partitions = |streams: &Streams| -> Vec<String> {
        let all = values(streams, "streams.blocked").into_keys();
        all.map(|labels| labels[1].clone()).collect()
    };
    let first = join("m-first");
    expect("both", || partitions(&first.0) == ["0", "1"]);
    let batches = |streams: &Streams| {
        let text = streams.metrics().to_prometheus();
        let families = prometheus::parse(&text).unwrap();
        let all = &families["streams_batch_size"].series;
        all.iter()
            .find(|(name, _)| name.ends_with("_count"))
            .unwrap()
            .1
            .1
    };
    publish_to(&first.0, topic, 0, &["a"]);
    publish_to(&first.0, topic, 1, &["a"]);
    expect("both messages", || batches(&first.0) == 2.0);
    let second = join("m-second");
    expect("one each", || {
        partitions(&first.0).len() == 1 && partitions(&second.0).len() == 1
    });
    assert_ne!(partitions(&first.0), partitions(&second.0));
    assert_eq!(batches(&first.0), 2.0, "what is told of all goes on");
    drop(second);
    expect("both again", || partitions(&first.0) == ["0", "1"]);
    assert_eq!(batches(&first.0), 2.0);
}

/// However much goes on, there are as many series as there are topics, partitions and consumers for.
#[test]
fn r82_labels_are_bounded_whatever_keys_types_and_errors_there_are() {
    let server = server();
    let topic = "m-labels";
    let streams = open(&server.url(), topic, 2);
    let consumer = streams.consumer(topic).name("c").block(SHORT);
    let consumer = consumer.shared(|m: &Message<'_>| match text(m).parse::<u32>() {
        Ok(n) if n % 7 == 0 => Err(format!("no {n}"))?,
        _ => Ok(()),
    });
    let consumer = consumer.start().unwrap();
    // which of them each instrument has depends on what is known just now
    let labels = || {
        let text = streams.metrics().to_prometheus();
        let families = prometheus::parse(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        let all = families.into_values().flat_map(|family| family.series);
        let labels = all.map(|(_, (labels, _))| format!("{labels:?}"));
        labels.collect::<BTreeSet<_>>()
    };
    let publisher = streams.publisher(topic).unwrap();
    let publish = |range: std::ops::Range<u32>| {
        for n in range {
            let (key, of_type) = (format!("key-{n}"), format!("T{n}"));
            publisher.publish(&*key, &*of_type, n.to_string()).unwrap();
        }
    };
    let handled = || -> f64 {
        let sum = |name| values(&streams, name).values().sum::<f64>();
        sum("streams.consumed") + sum("streams.skipped")
    };
    publish(0..100);
    expect("the first", || handled() == 100.0);
    let before = labels();
    publish(100..2000);
    expect("the others", || handled() == 2000.0);
    assert_eq!(labels(), before);
    let text = streams.metrics().to_prometheus();
    assert!(!text.contains("key-") && !text.contains("T1") && !text.contains("no 7"));
    // consumers that come and go leave nothing behind
    for n in 0..50 {
        let name = format!("passing-{n}");
        let passing = streams.consumer(topic).name(&*name).max_partitions(1);
        drop(recording(passing, &Seen::default()).start().unwrap());
    }
    assert_eq!(labels(), before);
    drop(consumer);
    let left = streams.metrics().to_prometheus();
    assert!(!left.contains("consumer=\"c\""), "{left}");
}

fn text(m: &Message<'_>) -> String {
    String::from_utf8_lossy(m.body()).into_owned()
}

#[test]
fn metrics_outlive_what_they_are_about_and_keep_nothing_alive() {
    let server = server();
    let streams = open(&server.url(), "m-ends", 1);
    streams
        .publisher("m-ends")
        .unwrap()
        .publish("k", "T", "x")
        .unwrap();
    let metrics = streams.metrics();
    let other = metrics.clone();
    assert!(
        other
            .to_prometheus()
            .contains("streams_published_total{topic=\"m-ends\",partition=\"0\"} 1\n")
    );
    drop(streams);
    assert_eq!(metrics.to_prometheus(), "");
}
