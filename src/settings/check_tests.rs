//! What is refused, and what is only remarked upon.

use std::time::{Duration, SystemTime};

use super::*;
use crate::settings::{AckDelete, PositionAhead};

fn refused(s: &Settings) -> Vec<String> {
    let text = s.check().expect_err("it is refused").to_string();
    let text = text
        .strip_prefix("settings: ")
        .expect("it is about settings");
    text.lines().map(Into::into).collect()
}

#[test]
fn what_instances_are_told_must_fit_together() {
    let c = || ConsumerSettings::new("t");
    let fixed = || c().instances(Instances::Static);
    let (ms, seconds) = (Duration::from_millis, Duration::from_secs);
    for (consumer, path, also) in [
        (c().instances_count(2), "Count", "Mode is Static"),
        (c().instances_index(0), "Index", "Mode is Static"),
        (fixed().max_partitions(1), "MaxPartitions", "Mode is Lease"),
        (
            fixed().instances_count(2).instances_index(2),
            "Index",
            "none of 2",
        ),
        (
            c().partition_modulo(2).partition_remainder(2),
            "PartitionRemainder",
            "no partition",
        ),
        (
            c().lease_ttl(ms(500)).lease_renew(ms(500)),
            "LeaseRenewMs",
            "every 500ms",
        ),
        (c().lease_ttl_seconds(seconds(5)), "LeaseRenewMs", "last 5s"),
        (
            c().lease_ttl(seconds(60)).lease_ttl_seconds(seconds(60)),
            "LeaseTtlMs",
            "remove one",
        ),
    ] {
        let lines = refused(&Settings::default().with_consumer(consumer));
        let at = format!("Streams:Consumers[0]:Instances:{path}");
        assert!(
            lines[0].starts_with(&at) && lines[0].contains(also),
            "{lines:#?}"
        );
        assert_eq!(lines.len(), 1, "{lines:#?}");
    }
    let stuck = c().hand_over_when_stalled(true).stalled(Duration::ZERO);
    let lines = refused(&Settings::default().with_consumer(stuck));
    assert!(lines[0].contains("HandOverWhenStalled") && lines[0].contains("StalledSeconds"));

    // a peer's file may renew rarely, which is worth a word
    let rare = c().lease_ttl(seconds(30)).lease_renew(seconds(20));
    let told = Settings::default().with_consumer(rare).check().unwrap();
    assert!(
        told[0].contains("one renewal that fails ends them"),
        "{told:?}"
    );
    let file = r#"{"Consumers": [{"Topic": "t", "Instances": {"LeaseTtlSeconds": 6, "LeaseRenewSeconds": 2}}]}"#;
    let mut of_file = Settings::from_json(file).unwrap().consumers.remove(0);
    assert_eq!((of_file.ttl(), of_file.renew()), (seconds(6), seconds(2)));
    of_file = of_file.lease_ttl(ms(1500));
    assert_eq!(of_file.ttl(), ms(1500), "code goes before the file");
}

#[test]
fn each_contradiction_is_refused_by_the_names_of_its_keys() {
    let c = || ConsumerSettings::new("t");
    let ms = Duration::from_millis;
    for (consumer, path, also) in [
        (ConsumerSettings::default(), "Topic", "missing"),
        (c().topic(" "), "Topic", "blank"),
        (
            c().start_from(StartFrom::Date),
            "StartFrom",
            "StartFromDate",
        ),
        (
            c().start_from_when_missing(StartFrom::Date),
            "StartFromWhenMissing",
            "StartFromDate",
        ),
        (
            c().start_from_date(SystemTime::UNIX_EPOCH),
            "StartFromDate",
            "Date",
        ),
        (
            c().start_from_when_missing(StartFrom::Stored),
            "StartFromWhenMissing",
            "Beginning, Now or Date",
        ),
        (c().persist(Persist::None), "Persist", "StartFrom"),
        (
            c().persist(Persist::None)
                .start_from(StartFrom::Now)
                .persist_interval(ms(5)),
            "PersistIntervalMs",
            "Persist is None",
        ),
        (
            c().persist(Persist::None)
                .start_from(StartFrom::Now)
                .position_ahead(PositionAhead::Tail),
            "PositionAhead",
            "Persist is None",
        ),
        (
            c().persist(Persist::None)
                .start_from(StartFrom::Now)
                .max_deliveries(3),
            "MaxDeliveries",
            "Persist is None",
        ),
        (
            c().persist(Persist::SyncMessage).backpressure_capacity(4),
            "Backpressure:Capacity",
            "Persist SyncMessage",
        ),
        (
            c().max_idle_delay(ms(50)),
            "MaxIdleDelayMs",
            "ReadMode is Poll",
        ),
        (
            c().read_mode(ReadMode::Poll).block(ms(1000)),
            "BlockMs",
            "ReadMode is Block",
        ),
        (
            c().read_mode(ReadMode::Poll).spin(ms(1)),
            "SpinMicros",
            "ReadMode is Block",
        ),
        (c().batch_size(0), "BatchSize", "from 1 to"),
        (
            c().backpressure_capacity(0),
            "Backpressure:Capacity",
            "from 1 to",
        ),
        (c().block(Duration::ZERO), "BlockMs", "milliseconds"),
        (
            c().shutdown_timeout(Duration::MAX),
            "ShutdownTimeoutSeconds",
            "seconds",
        ),
    ] {
        let lines = refused(&Settings::default().with_consumer(consumer));
        assert_eq!(lines.len(), 1, "{lines:#?}");
        assert!(
            lines[0].starts_with(&format!("Streams:Consumers[0]:{path}: ")),
            "{lines:#?}"
        );
        assert!(lines[0].contains(also), "{lines:#?}");
    }
}

#[test]
fn what_only_bodies_that_are_kept_apart_heed_is_refused_where_there_are_none() {
    let t = || {
        TopicSettings::default()
            .payload_inline_max(2048)
            .payload_ttl(Duration::from_mins(1))
    };
    let with = |t| Settings::default().with_topic("orders", t);
    for off in [t(), t().claim_check(false)] {
        let lines = refused(&with(off));
        assert_eq!(lines.len(), 2, "{lines:#?}");
        for (line, key) in lines.iter().zip(["PayloadInlineMax", "PayloadTtlSeconds"]) {
            let start = format!("Streams:Topics:orders:{key}: ");
            assert!(
                line.starts_with(&start) && line.contains("ClaimCheck"),
                "{line}"
            );
        }
    }
    for fine in [
        t().claim_check(true),
        TopicSettings::default().claim_check(true),
    ] {
        assert!(with(fine).check().is_ok());
    }
    for (outside, key) in [
        (
            t().claim_check(true).payload_inline_max(1023),
            "PayloadInlineMax",
        ),
        (
            t().claim_check(true).payload_ttl(Duration::ZERO),
            "PayloadTtlSeconds",
        ),
    ] {
        let lines = refused(&with(outside));
        assert!(lines.len() == 1 && lines[0].contains(key), "{lines:#?}");
    }
    let unset = TopicSettings::default();
    assert_eq!(unset.most_inline(), usize::MAX, "nothing is kept apart");
    assert_eq!(unset.claim_check(true).most_inline(), 64 * 1024);
    let file = r#"{"Topics": {"t": {"ClaimCheck": true, "PayloadInlineMax": 4096, "PayloadTtlSeconds": 0}}}"#;
    let e = Settings::from_json(file).unwrap_err().to_string();
    assert!(e.contains("PayloadTtlSeconds"), "{e}");
}

#[test]
fn what_only_a_buffer_heeds_is_refused_where_there_is_none() {
    let p = || ProducerSettings::new("t").max_batch(5).drop_oldest(false);
    let with = |p| Settings::default().with_producer(p);
    let lines = refused(&with(p().buffered(false)));
    assert_eq!(lines.len(), 2, "{lines:#?}");
    for (line, key) in lines.iter().zip(["MaxBatch", "DropOldest"]) {
        let start = format!("Streams:Producers[0]:{key}: ");
        assert!(line.starts_with(&start) && line.contains("Buffered"));
    }
    for fine in [p(), p().buffered(true), p().max_wait(Duration::ZERO)] {
        assert!(with(fine).check().is_ok());
    }
    for (outside, key) in [
        (p().max_batch(0), "MaxBatch"),
        (p().max_queue(0), "MaxQueue"),
        (p().max_wait(Duration::from_hours(2)), "MaxWaitMs"),
    ] {
        assert!(refused(&with(outside))[0].contains(key));
    }
}

#[test]
fn what_only_parking_heeds_is_refused_without_it() {
    let c = || {
        let c = ConsumerSettings::new("t").park_attempts(3);
        let c = c.park_backoff_base(Duration::from_secs(1));
        c.park_backoff_max(Duration::from_secs(2)).park_jitter(0)
    };
    let with = |c| Settings::default().with_consumer(c);
    let lines = refused(&with(c()));
    assert_eq!(lines.len(), 4, "{lines:#?}");
    for (line, key) in lines
        .iter()
        .zip(["Attempts", "BackoffBaseMs", "BackoffMaxMs", "Jitter"])
    {
        let start = format!("Streams:Consumers[0]:Park:{key}");
        let fix = "remove it or set OnError to Park";
        assert!(line.starts_with(&start) && line.contains(fix), "{line}");
    }
    let parks = c().on_error(OnError::Park);
    assert!(with(parks.clone()).check().is_ok());
    let lines = refused(&with(
        parks.clone().park_backoff_base(Duration::from_secs(3)),
    ));
    assert!(
        lines[0].starts_with("Streams:Consumers[0]:Park:BackoffMaxMs: ")
            && lines[0].contains("2s, is shorter than the first, 3s; make it at least as long"),
        "{lines:#?}"
    );
    for (outside, key) in [
        (parks.clone().park_attempts(2_000_000), "Park:Attempts"),
        (parks.clone().park_jitter(101), "Park:JitterPercent"),
        (
            c().dead_letters_max_len(0).on_error(OnError::Park),
            "DeadLetters:MaxLen",
        ),
        (
            parks.dead_letters_max_age(Duration::MAX),
            "DeadLetters:MaxAgeSeconds",
        ),
    ] {
        let lines = refused(&with(outside));
        assert!(
            lines[0].contains(key) && lines[0].contains("give a whole number"),
            "{lines:#?}"
        );
    }
}

fn under(delivery: Delivery) -> ConsumerSettings {
    ConsumerSettings::new("t").delivery(delivery)
}

fn work() -> ConsumerSettings {
    under(Delivery::WorkQueue)
}

fn leased() -> ConsumerSettings {
    under(Delivery::LeasedQueue)
}

fn retrying(c: ConsumerSettings) -> ConsumerSettings {
    c.on_error(OnError::Retry)
}

/// These keys are what is refused in these words, each in a line, and no other is.
#[track_caller]
fn refused_in_words(consumer: ConsumerSettings, keys: &[&str], text: &str) {
    let check = Settings::default().with_consumer(consumer).check();
    let told = check.map_or_else(|e| e.to_string(), |told| told.join("\n"));
    let told = told.trim_start_matches("settings: ");
    let of_these: Vec<_> = told.lines().filter(|l| l.ends_with(text)).collect();
    let line = |key: &&str| format!("Streams:Consumers[0]:{key}: {text}");
    let expected: Vec<_> = keys.iter().map(line).collect();
    assert_eq!(of_these, expected, "{told}");
}

#[track_caller]
fn accepted(consumer: ConsumerSettings) {
    let s = Settings::default().with_consumer(consumer);
    assert_eq!(s.check().unwrap(), Vec::<String>::new(), "{s:?}");
}

/// All keys of a kind at once, and each for itself.
#[test]
fn what_keeps_positions_is_refused_for_queues_and_what_acknowledges_without_one() {
    let c = || under(Delivery::Ordered);
    let ms = Duration::from_millis;
    let of_positions = |c: ConsumerSettings| {
        let c = c.persist(Persist::SyncBatch);
        let c = c.position_ahead(PositionAhead::Tail);
        let c = c.backpressure_enabled(true).backpressure_capacity(1);
        c.instances(Instances::Static)
    };
    let of_queues = |c: ConsumerSettings| {
        let c = c.claim_idle(ms(60_000)).claim_interval(ms(1000));
        let c = c.ack_delete(AckDelete::AllGroups);
        c.degraded_pending(ms(60_000)).degraded_deliveries(3)
    };
    let positions: &[_] = &[
        "Persist",
        "PositionAhead",
        "Backpressure:Enabled",
        "Backpressure:Capacity",
        "Instances:Mode",
    ];
    let text = "has no effect unless Delivery is Ordered; remove it or change Delivery";
    for (consumer, keys) in [
        (of_positions(work()), positions),
        (of_positions(leased()), positions),
        (work().persist(Persist::SyncBatch), &positions[..1]),
        (
            leased().position_ahead(PositionAhead::Stop),
            &positions[1..2],
        ),
        (work().backpressure_enabled(false), &positions[2..3]),
        (leased().backpressure_capacity(4), &positions[3..4]),
        (work().instances(Instances::Static), &positions[4..]),
    ] {
        refused_in_words(consumer, keys, text);
    }
    let queues: &[_] = &[
        "Claim:IdleMs",
        "Claim:IntervalMs",
        "AckDelete",
        "DegradedPendingSeconds",
        "DegradedDeliveries",
    ];
    let text =
        "has no effect unless Delivery is WorkQueue or LeasedQueue; remove it or change Delivery";
    for (consumer, keys) in [
        (of_queues(c()), queues),
        (c().claim_idle(ms(1000)), &queues[..1]),
        (c().claim_interval(ms(1000)), &queues[1..2]),
        (c().ack_delete(AckDelete::None), &queues[2..3]),
        (c().degraded_pending(Duration::ZERO), &queues[3..4]),
        (c().degraded_deliveries(10), &queues[4..]),
    ] {
        refused_in_words(consumer, keys, text);
    }
    accepted(of_positions(c()));
    accepted(of_queues(work()).max_in_flight(2));
    accepted(of_queues(leased()));
    // there is no other way, and it may be said
    accepted(work().instances(Instances::Lease));
    accepted(leased().instances(Instances::Lease));
}

#[test]
fn what_divides_partitions_is_refused_where_every_instance_has_all() {
    let of_owners = |c: ConsumerSettings| {
        let c = c.max_partitions(2).partition_modulo(2);
        let c = c.partition_remainder(1).hand_over_when_stalled(true);
        let c = c.unhealthy_behind(Duration::from_mins(1));
        c.instances_count(2).instances_index(0)
    };
    let owners: &[_] = &[
        "Instances:MaxPartitions",
        "Instances:PartitionModulo",
        "Instances:PartitionRemainder",
        "Instances:Count",
        "Instances:Index",
        "HandOverWhenStalled",
        "UnhealthyBehindSeconds",
    ];
    let text = "has no effect under Delivery WorkQueue, where every instance reads every partition; \
                remove it, or use LeasedQueue";
    for (consumer, keys) in [
        (of_owners(work()), owners),
        (work().max_partitions(1), &owners[..1]),
        (work().partition_modulo(2), &owners[1..2]),
        (work().partition_remainder(0), &owners[2..3]),
        (work().instances_count(2), &owners[3..4]),
        (work().instances_index(0), &owners[4..5]),
        (work().hand_over_when_stalled(true), &owners[5..6]),
        (work().unhealthy_behind(Duration::ZERO), &owners[6..]),
        (of_owners(leased()), &[]),
        (of_owners(under(Delivery::Ordered)), &[]),
    ] {
        refused_in_words(consumer, keys, text);
    }
    accepted(leased().max_partitions(1));
    accepted(leased().partition_modulo(2).partition_remainder(1));
    accepted(leased().hand_over_when_stalled(true));
    accepted(leased().unhealthy_behind(Duration::from_secs(1)));
}

#[test]
fn what_only_retries_heed_is_refused_without_them_and_they_are_where_order_is_kept() {
    let ms = Duration::from_millis;
    let of_retries = |c: ConsumerSettings| {
        let c = c.retry_attempts(3).retry_backoff_base(ms(10));
        c.retry_backoff_max(ms(10)).retry_jitter(0)
    };
    let retries: &[_] = &[
        "Retry:Attempts",
        "Retry:BackoffBaseMs",
        "Retry:BackoffMaxMs",
        "Retry:JitterPercent",
    ];
    let text = "has no effect unless OnError is Retry; remove it or change OnError";
    for (consumer, keys) in [
        (of_retries(under(Delivery::Ordered)), retries),
        (of_retries(work()), retries),
        (of_retries(leased().on_error(OnError::Park)), retries),
        (work().retry_attempts(5), &retries[..1]),
        (work().retry_backoff_base(ms(5)), &retries[1..2]),
        (leased().retry_backoff_max(ms(5000)), &retries[2..3]),
        (work().retry_jitter(25), &retries[3..]),
        (of_retries(retrying(leased())), &[]),
    ] {
        refused_in_words(consumer, keys, text);
    }
    let text = "is Retry, which hands messages over behind others, and Delivery Ordered keeps their \
                order; use Park, or Delivery WorkQueue";
    let ordered = || retrying(under(Delivery::Ordered));
    refused_in_words(ordered(), &["OnError"], text);
    refused_in_words(of_retries(ordered()), &["OnError"], text);
    refused_in_words(retrying(ConsumerSettings::new("t")), &["OnError"], text);
    let text = "is shorter than the first pause; raise it or lower Retry:BackoffBaseMs";
    for c in [work(), leased()] {
        let c = retrying(c).retry_backoff_base(ms(20));
        let shorter = c.clone().retry_backoff_max(ms(19));
        refused_in_words(shorter, &["Retry:BackoffMaxMs"], text);
        accepted(c.retry_backoff_max(ms(20)));
    }
    accepted(of_retries(retrying(work())));
    accepted(of_retries(retrying(leased())));
    accepted(work().on_error(OnError::Park).park_attempts(1));
}

#[test]
fn what_goes_together_is_accepted() {
    let c = || ConsumerSettings::new("t");
    for consumer in [
        c(),
        c().start_from(StartFrom::Date)
            .start_from_date(SystemTime::UNIX_EPOCH),
        c().start_from_when_missing(StartFrom::Date)
            .start_from_date(SystemTime::UNIX_EPOCH),
        c().persist(Persist::None).start_from(StartFrom::Now),
        c().persist(Persist::SyncBatch),
        c().persist(Persist::SyncBatch).backpressure_capacity(1),
        c().persist(Persist::SyncBatch)
            .backpressure_enabled(false)
            .backpressure_capacity(1),
        c().read_mode(ReadMode::Poll).max_idle_delay(Duration::ZERO),
        c().block(Duration::from_hours(1))
            .spin(Duration::from_micros(50)),
        c().on_error(OnError::Fail),
        c().on_error(OnError::Park).park_attempts(0),
        c().on_error(OnError::Park)
            .park_backoff_base(Duration::ZERO)
            .park_backoff_max(Duration::ZERO)
            .park_jitter(0),
        c().dead_letters_max_len(5)
            .dead_letters_max_age(Duration::from_hours(1)),
        c().filter(["a", "b", ""]),
    ] {
        let s = Settings::default().with_consumer(consumer);
        assert_eq!(s.check().unwrap(), Vec::<String>::new(), "{s:?}");
    }
}

#[test]
fn reading_ahead_follows_from_capacity_and_persist() {
    let c = ConsumerSettings::new("t");
    assert!(c.reads_ahead());
    assert!(!c.clone().persist(Persist::SyncMessage).reads_ahead());
    assert!(!c.clone().backpressure_capacity(1).reads_ahead());
    assert!(!c.backpressure_enabled(false).reads_ahead());
}

#[test]
fn a_topic_without_trimming_must_be_asked_for() {
    let untrimmed = TopicSettings::default().trim(Trim::None);
    let s = Settings::default().with_topic("orders", untrimmed.clone());
    let lines = refused(&s);
    assert!(
        lines[0].starts_with("Streams:Topics:orders:Trim: "),
        "{lines:#?}"
    );
    assert!(lines[0].contains("Production") && lines[0].contains("AllowUntrimmed"));
    assert!(s.clone().allow_untrimmed(true).check().is_ok());
    assert!(s.clone().environment("development").check().is_ok());
    let env = |name, value| s.clone().overlay_env_with([(name, value)]).unwrap();
    assert!(env("DOTNET_ENVIRONMENT", "Development").check().is_ok());
    assert!(env("ASPNETCORE_ENVIRONMENT", "Staging").check().is_err());
    let limited = s
        .allow_untrimmed(true)
        .with_topic("orders", untrimmed.max_len(10_000));
    let lines = refused(&limited);
    assert!(
        lines[0].starts_with("Streams:Topics:orders:MaxLen: "),
        "{lines:#?}"
    );
    assert!(lines[0].contains("Trim"));
}

#[test]
fn a_consumer_or_producer_that_is_there_twice_is_refused_with_both_places() {
    let s = Settings::default()
        .consumer("svc")
        .with_consumer(ConsumerSettings::new("a"))
        .with_consumer(ConsumerSettings::new("a").consumer("other"))
        .with_producer(ProducerSettings::new("a"));
    assert!(s.check().is_ok());
    let lines = refused(
        &s.with_consumer(ConsumerSettings::new("a").consumer("svc"))
            .with_producer(ProducerSettings::new("a")),
    );
    assert_eq!(lines.len(), 2, "{lines:#?}");
    for part in ["Consumers[2]", "Consumers[0]", "distinct Consumer name"] {
        assert!(lines[0].contains(part), "{part} in {lines:#?}");
    }
    assert!(lines[1].contains("Producers[1]") && lines[1].contains("Producers[0]"));
}

#[test]
fn everything_is_reported_at_once() {
    let s = Settings::default()
        .key_prefix("")
        .max_message_bytes(0)
        .with_topic(" ", TopicSettings::default())
        .with_topic("t", TopicSettings::default().partitions(0).max_len(0))
        .with_consumer(ConsumerSettings::default().persist(Persist::None))
        .with_producer(ProducerSettings::default());
    let lines = refused(&s);
    let paths: Vec<_> = lines
        .iter()
        .map(|l| l.split(": ").next().unwrap())
        .collect();
    assert_eq!(
        paths,
        [
            "Streams:MaxMessageBytes",
            "Streams:KeyPrefix",
            "Streams:Topics: ",
            "Streams:Topics:t:Partitions",
            "Streams:Topics:t:MaxLen",
            "Streams:Consumers[0]:Topic",
            "Streams:Consumers[0]:Persist",
            "Streams:Producers[0]:Topic",
        ]
        .map(|p| p.trim_end_matches([' ', ':'])),
        "{lines:#?}"
    );
}

#[test]
fn what_is_odd_but_harmless_is_a_warning() {
    let s = Settings::default()
        .with_topic("Orders", TopicSettings::default())
        .with_consumer(
            ConsumerSettings::new("orders")
                .backpressure_enabled(false)
                .backpressure_capacity(4),
        );
    let warnings = s.check().unwrap();
    assert_eq!(warnings.len(), 2, "{warnings:#?}");
    assert!(warnings[0].contains("Backpressure:Capacity"));
    assert!(warnings[1].contains("Streams:Topics:Orders") && warnings[1].contains("\"orders\""));
}

#[test]
fn what_is_kept_for_a_time_needs_room_and_its_bodies() {
    let seconds = Duration::from_secs;
    let t = || TopicSettings::default().retention(seconds(3600));
    let all = |t: TopicSettings| t.max_len(5000).background_trim_interval(seconds(60));
    let with = |t| Settings::default().with_topic("orders", t);
    let told = |t| with(t).check().unwrap();
    assert_eq!(told(all(t())), [""; 0]);
    let room = all(t()).claim_check(true);
    assert_eq!(told(room.clone().payload_ttl(seconds(3600))), [""; 0]);
    for (bad, key, also) in [
        (t(), "RetentionSeconds", "MaxLen, which is not configured"),
        (
            t().trim(Trim::None),
            "RetentionSeconds",
            "while Trim is None",
        ),
        (
            room.payload_ttl(seconds(3599)),
            "PayloadTtlSeconds",
            "outlive",
        ),
        (
            all(t()).retention(Duration::ZERO),
            "RetentionSeconds",
            "from 1 to",
        ),
        (
            all(t()).clamp_release_threshold(1.5),
            "ClampReleaseThreshold",
            "a number from 0 to 1",
        ),
        (
            all(t()).clamp_release_threshold(f64::NAN),
            "ClampReleaseThreshold",
            "a number from 0 to 1",
        ),
    ] {
        let lines = refused(&with(bad).allow_untrimmed(true));
        let start = format!("Streams:Topics:orders:{key}");
        let found = lines.len() == 1 && lines[0].starts_with(&start) && lines[0].contains(also);
        assert!(found, "{key} {also}: {lines:#?}");
    }
    let idle = TopicSettings::default().background_trim_interval(seconds(60));
    for (vain, text) in [
        (idle.clone(), "without RetentionSeconds"),
        (idle.trim(Trim::None), "while Trim is None"),
        (
            t().max_len(5000),
            "while BackgroundTrimIntervalSeconds is 0",
        ),
    ] {
        let told = with(vain).allow_untrimmed(true).check().unwrap();
        assert!(told.len() == 1 && told[0].contains(text), "{told:?}");
    }
    assert_eq!(told(TopicSettings::default()), [""; 0]);
}
