//! Every contradiction a user can write, found at once. Ranges are the business of each key's codec;
//! what concerns more than one key is here.

use std::collections::BTreeMap;

use super::{
    ConsumerSettings, Instances, OnError, Persist, ProducerSettings, ReadMode, Settings, StartFrom,
    TopicSettings, Trim,
    key::{Key, Section},
    problem::{Problems, not_allowed, printable},
};
use crate::error::Result;

impl Settings {
    /// Checks everything that can be checked without a server, and returns what is odd but harmless,
    /// one sentence each.
    ///
    /// # Errors
    ///
    /// Something is out of range, missing, or contradicts something else. All of it is reported at
    /// once, one a line, each with the path of the key and the fix.
    pub fn check(&self) -> Result<Vec<String>> {
        let mut problems = Problems::default();
        contradictions(self, true, &mut problems);
        problems.into_result()?;
        let mut warnings = self.warnings.clone();
        warnings.extend(oddities(self));
        Ok(warnings)
    }
}

/// Adds what is wrong to `problems`. What depends on the environment is left out until it is known.
pub(super) fn contradictions(s: &Settings, environment_known: bool, problems: &mut Problems) {
    ranges(s, "Streams", problems);
    if s.key_prefix.trim().is_empty() {
        problems.contradict(
            "Streams",
            &["KeyPrefix"],
            "is blank; remove it to have the default, or give a prefix",
        );
    }
    for (name, topic) in &s.topics {
        check_topic(s, name, topic, environment_known, problems);
    }
    for (i, consumer) in s.consumers.iter().enumerate() {
        check_consumer(&format!("Streams:Consumers[{i}]"), consumer, problems);
    }
    for (i, producer) in s.producers.iter().enumerate() {
        check_producer(&format!("Streams:Producers[{i}]"), producer, problems);
    }
    duplicates(s, problems);
}

/// Refuses values that only code can have given: what was loaded has passed its codec.
fn ranges<S: Section>(section: &S, at: &str, problems: &mut Problems) {
    let fits = |key: &Key<S>, item, value: &str| {
        let mut scratch = S::default();
        (0..item).for_each(|i| {
            (key.put)(&mut scratch, Some(i), "");
        });
        (key.put)(&mut scratch, key.is_list.then_some(item), value)
    };
    for key in S::KEYS {
        for (i, value) in (key.get)(section).iter().enumerate() {
            if !fits(key, i, value) {
                problems.refuse(format!("{at}:{}", key.name), &not_allowed(key, value));
            }
        }
    }
}

fn need_topic(topic: &str, at: &str, problems: &mut Problems) {
    if topic.trim().is_empty() {
        problems.contradict(at, &["Topic"], "is missing or blank; name the topic");
    }
}

fn check_topic(
    s: &Settings,
    name: &str,
    topic: &TopicSettings,
    environment_known: bool,
    problems: &mut Problems,
) {
    let at = format!("Streams:Topics:{}", printable(name));
    ranges(topic, &at, problems);
    if name.trim().is_empty() {
        problems.refuse(at, "has a blank name; name the topic");
        return;
    }
    if topic.partitioner.trim().is_empty() {
        problems.contradict(
            &at,
            &["Partitioner"],
            "is blank; remove it to have xxh3, or name what finds the partition of a key",
        );
    }
    if topic.trim != Trim::None {
        return;
    }
    let environment = s.environment.as_deref().unwrap_or("Production");
    let allowed = s.allow_untrimmed || environment.eq_ignore_ascii_case("Development");
    if environment_known && !allowed {
        problems.contradict(
            &at,
            &["Trim"],
            &format!(
                "None lets the topic grow until the server is full, and the environment is \
                 {environment}, not Development; use Approx or Exact, or set \
                 Streams:AllowUntrimmed to true",
                environment = printable(environment)
            ),
        );
    }
    if topic.is_set("MaxLen") {
        problems.contradict(
            &at,
            &["MaxLen", "Trim"],
            "has no effect while Trim is None; remove one of the two",
        );
    }
}

fn check_consumer(at: &str, c: &ConsumerSettings, problems: &mut Problems) {
    ranges(c, at, problems);
    need_topic(&c.topic, at, problems);
    check_start(at, c, problems);
    check_persist(at, c, problems);
    check_instances(at, c, problems);
    check_parking(at, c, problems);
    for (key, mode) in [
        ("MaxIdleDelayMs", ReadMode::Poll),
        ("BlockMs", ReadMode::Block),
        ("SpinMicros", ReadMode::Block),
    ] {
        if c.is_set(key) && c.read_mode != mode {
            problems.contradict(
                at,
                &[key, "ReadMode"],
                &format!("has no effect unless ReadMode is {mode:?}; remove it or change ReadMode"),
            );
        }
    }
}

fn check_producer(at: &str, p: &ProducerSettings, problems: &mut Problems) {
    ranges(p, at, problems);
    need_topic(&p.topic, at, problems);
    // unset, the code decides
    if p.buffered != Some(false) {
        return;
    }
    for key in ProducerSettings::OF_THE_BUFFER {
        if p.is_set(key) {
            problems.contradict(
                at,
                &[key, "Buffered"],
                "has no effect while Buffered is false; remove it or set Buffered to true",
            );
        }
    }
}

fn check_start(at: &str, c: &ConsumerSettings, problems: &mut Problems) {
    let by_date = |start| start == StartFrom::Date;
    for (key, start) in [
        ("StartFrom", c.start_from),
        ("StartFromWhenMissing", c.start_from_when_missing),
    ] {
        if by_date(start) && c.start_from_date.is_none() {
            problems.contradict(
                at,
                &[key, "StartFromDate"],
                "is Date but StartFromDate is not set; set it, such as 2026-01-31T08:00:00Z",
            );
        }
    }
    if c.start_from_date.is_some() && !by_date(c.start_from) && !by_date(c.start_from_when_missing)
    {
        problems.contradict(
            at,
            &["StartFromDate", "StartFrom", "StartFromWhenMissing"],
            "has no effect while neither StartFrom nor StartFromWhenMissing is Date; \
             set one of them to Date or remove it",
        );
    }
    if c.start_from_when_missing == StartFrom::Stored {
        problems.contradict(
            at,
            &["StartFromWhenMissing"],
            "cannot be Stored, since it is asked when nothing is stored; \
             use Beginning, Now or Date",
        );
    }
    if c.persist == Persist::None && c.start_from == StartFrom::Stored {
        problems.contradict(
            at,
            &["Persist", "StartFrom"],
            "None stores no position that StartFrom Stored could resume at; \
             set StartFrom to Beginning, Now or Date, or Persist to AsyncBatch",
        );
    }
}

fn check_instances(at: &str, c: &ConsumerSettings, problems: &mut Problems) {
    const STATIC: [&str; 4] = [
        "Instances:Count",
        "Instances:Index",
        "ContestedGraceSeconds",
        "ContestedRecheckSeconds",
    ];
    const LEASE: [&str; 4] = [
        "Instances:MaxPartitions",
        "Instances:PartitionModulo",
        "Instances:PartitionRemainder",
        "HandOverWhenStalled",
    ];
    let (others, needs) = match c.instances {
        Instances::Lease => (STATIC, Instances::Static),
        Instances::Static => (LEASE, Instances::Lease),
    };
    for key in others.into_iter().filter(|key| c.is_set(key)) {
        problems.contradict(
            at,
            &[key, "Instances:Mode"],
            &format!(
                "has no effect unless Instances:Mode is {needs:?}; remove it or change the mode"
            ),
        );
    }
    for (ms, seconds) in [
        ("Instances:LeaseTtlMs", "Instances:LeaseTtlSeconds"),
        ("Instances:LeaseRenewMs", "Instances:LeaseRenewSeconds"),
    ] {
        if c.is_set(ms) && c.is_set(seconds) && c.marks().of(ms) == c.marks().of(seconds) {
            problems.contradict(at, &[ms, seconds], "both say the same thing; remove one");
        }
    }
    if c.renew() >= c.ttl() {
        problems.contradict(
            at,
            &["Instances:LeaseRenewMs", "Instances:LeaseTtlMs"],
            &format!(
                "claims that last {:?} cannot be renewed every {:?}; renew at least twice while they last",
                c.ttl(),
                c.renew()
            ),
        );
    }
    if c.partition_remainder >= c.partition_modulo {
        problems.contradict(
            at,
            &["Instances:PartitionRemainder", "Instances:PartitionModulo"],
            "leaves no partition, since a remainder is less than what is divided by; make it less",
        );
    }
    if let (Some(index), Some(count)) = (c.instances_index, c.instances_count)
        && index >= count
    {
        problems.contradict(
            at,
            &["Instances:Index", "Instances:Count"],
            &format!("{index} is none of {count} instances, which are numbered from 0"),
        );
    }
    if c.hand_over_when_stalled && c.stalled.is_zero() {
        problems.contradict(
            at,
            &["HandOverWhenStalled", "StalledSeconds"],
            "has no effect while StalledSeconds is 0; set it, or remove this",
        );
    }
}

fn check_parking(at: &str, c: &ConsumerSettings, problems: &mut Problems) {
    const PARK: [&str; 4] = [
        "Park:Attempts",
        "Park:BackoffBaseMs",
        "Park:BackoffMaxMs",
        "Park:JitterPercent",
    ];
    if c.on_error != OnError::Park {
        for key in PARK.into_iter().filter(|key| c.is_set(key)) {
            problems.contradict(
                at,
                &[key, "OnError"],
                "has no effect unless OnError is Park; remove it or set OnError to Park",
            );
        }
    } else if c.park_backoff_max < c.park_backoff_base {
        problems.contradict(
            at,
            &["Park:BackoffMaxMs", "Park:BackoffBaseMs"],
            &format!(
                "the longest pause, {:?}, is shorter than the first, {:?}; make it at least as long",
                c.park_backoff_max, c.park_backoff_base
            ),
        );
    }
}

fn check_persist(at: &str, c: &ConsumerSettings, problems: &mut Problems) {
    if c.is_set("PositionAhead") && c.persist == Persist::None {
        problems.contradict(
            at,
            &["PositionAhead", "Persist"],
            "has no effect while Persist is None, which stores no position; remove it or change Persist",
        );
    }
    if c.is_set("PersistIntervalMs") && c.persist == Persist::None {
        problems.contradict(
            at,
            &["PersistIntervalMs", "Persist"],
            "has no effect while Persist is None; remove it or set Persist to AsyncBatch",
        );
    }
    if c.persist.is_sync()
        && c.backpressure_enabled
        && c.backpressure_capacity >= 2
        && c.is_set("Backpressure:Capacity")
    {
        problems.contradict(
            at,
            &["Backpressure:Capacity", "Persist"],
            &format!(
                "{} asks to read ahead, which Persist {:?} never does; remove it, set it to 1, \
                 or set Persist to AsyncBatch",
                c.backpressure_capacity, c.persist
            ),
        );
    }
}

/// Refuses a consumer, or a declaration of what is published, that is there twice.
fn duplicates(s: &Settings, problems: &mut Problems) {
    let mut consumers = BTreeMap::new();
    for (i, c) in s.consumers.iter().enumerate() {
        let name = s.name_of(c);
        if let Some(first) = consumers.insert((&c.topic, name.clone()), i)
            && !c.topic.trim().is_empty()
        {
            let text = format!(
                "Streams:Consumers[{first}] reads topic {:?} as consumer {name:?} too; \
                 give each a distinct Consumer name, or remove one",
                c.topic
            );
            problems.contradict(
                &format!("Streams:Consumers[{i}]"),
                &["Topic", "Consumer"],
                &text,
            );
        }
    }
    let mut producers = BTreeMap::new();
    for (i, p) in s.producers.iter().enumerate() {
        if let Some(first) = producers.insert(&p.topic, i)
            && !p.topic.trim().is_empty()
        {
            let text = format!("Streams:Producers[{first}] names it already; remove one");
            problems.contradict(&format!("Streams:Producers[{i}]"), &["Topic"], &text);
        }
    }
}

/// What does no harm but is hardly meant.
fn oddities(s: &Settings) -> Vec<String> {
    let mut found = Vec::new();
    for (i, c) in s.consumers.iter().enumerate() {
        if !c.backpressure_enabled
            && c.backpressure_capacity >= 2
            && c.is_set("Backpressure:Capacity")
        {
            found.push(format!(
                "Streams:Consumers[{i}]:Backpressure:Capacity has no effect while \
                 Backpressure:Enabled is false"
            ));
        }
    }
    for (i, c) in s.consumers.iter().enumerate() {
        let (ttl, renew) = (c.ttl(), c.renew());
        if renew * 2 > ttl {
            found.push(format!(
                "Streams:Consumers[{i}]:Instances: claims that last {ttl:?} are renewed every {renew:?} only, \
                 so that one renewal that fails ends them"
            ));
        }
    }
    let consumed = s.consumers.iter().map(|c| &c.topic);
    let published = s.producers.iter().map(|p| &p.topic);
    let used: Vec<_> = consumed.chain(published).collect();
    for name in s.topics.keys() {
        let similar = used.iter().find(|u| u.eq_ignore_ascii_case(name));
        if let Some(similar) = similar.filter(|_| !used.contains(&name)) {
            found.push(format!(
                "Streams:Topics:{} is another topic than {similar:?}: names differ by case",
                printable(name)
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::settings::PositionAhead;

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
        assert!(
            warnings[1].contains("Streams:Topics:Orders") && warnings[1].contains("\"orders\"")
        );
    }
}
