//! Every contradiction a user can write, found at once. Ranges are the business of each key's codec;
//! what concerns more than one key is here.

use std::collections::BTreeMap;

use super::{
    ConsumerSettings, Delivery, Instances, OnError, Persist, ProducerSettings, ReadMode, Settings,
    StartFrom, TopicSettings, Trim,
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
    for key in ["PayloadInlineMax", "PayloadTtlSeconds"] {
        if topic.is_set(key) && !topic.claim_check {
            problems.contradict(
                &at,
                &[key, "ClaimCheck"],
                "has no effect while ClaimCheck is false; remove it or set ClaimCheck to true",
            );
        }
    }
    check_retention(&at, topic, problems);
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

fn check_retention(at: &str, topic: &TopicSettings, problems: &mut Problems) {
    let Some(age) = topic.retention else {
        return;
    };
    if topic.trim == Trim::None {
        problems.contradict(
            at,
            &["RetentionSeconds", "Trim"],
            "has no effect while Trim is None; remove one of the two",
        );
    } else if !topic.is_set("MaxLen") {
        problems.contradict(
            at,
            &["RetentionSeconds", "MaxLen"],
            "needs MaxLen, which is not configured, and whose default of 10000 messages would be \
             the end of most before their age is; set MaxLen to what may come in that time",
        );
    }
    if topic.claim_check && topic.payload_ttl < age {
        problems.contradict(
            at,
            &["PayloadTtlSeconds", "RetentionSeconds"],
            &format!(
                "bodies that are kept apart live for {:?} and messages for {age:?}, so that they would outlive \
                 their bodies; raise PayloadTtlSeconds",
                topic.payload_ttl
            ),
        );
    }
}

/// What is said about trimming by age and comes to nothing.
fn trims_in_vain(name: &str, topic: &TopicSettings) -> Option<String> {
    let (often, age) = (topic.background_trim_interval, topic.retention);
    let why = match (often.is_zero(), age) {
        (false, _) if topic.trim == Trim::None => {
            "BackgroundTrimIntervalSeconds has no effect while Trim is None"
        }
        (false, None) => "BackgroundTrimIntervalSeconds has no effect without RetentionSeconds",
        (true, Some(_)) => {
            "RetentionSeconds has no effect while BackgroundTrimIntervalSeconds is 0, but for a trim by hand"
        }
        _ => return None,
    };
    Some(format!("Streams:Topics:{}:{why}", printable(name)))
}

fn check_consumer(at: &str, c: &ConsumerSettings, problems: &mut Problems) {
    ranges(c, at, problems);
    need_topic(&c.topic, at, problems);
    check_start(at, c, problems);
    check_persist(at, c, problems);
    check_instances(at, c, problems);
    check_parking(at, c, problems);
    check_delivery(at, c, problems);
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

/// What belongs to a mode of delivery has no meaning in another.
fn check_delivery(at: &str, c: &ConsumerSettings, problems: &mut Problems) {
    const ORDERED: [&str; 5] = [
        "Persist",
        "PositionAhead",
        "Backpressure:Enabled",
        "Backpressure:Capacity",
        "Instances:Mode",
    ];
    const QUEUES: [&str; 5] = [
        "Claim:IdleMs",
        "Claim:IntervalMs",
        "AckDelete",
        "DegradedPendingSeconds",
        "DegradedDeliveries",
    ];
    const SHARED_OUT: [&str; 7] = [
        "Instances:MaxPartitions",
        "Instances:PartitionModulo",
        "Instances:PartitionRemainder",
        "Instances:Count",
        "Instances:Index",
        "HandOverWhenStalled",
        "UnhealthyBehindSeconds",
    ];
    let (others, needs): (&[&str], _) = if c.delivery.is_queue() {
        (&ORDERED, "Ordered")
    } else {
        (&QUEUES, "WorkQueue or LeasedQueue")
    };
    for key in others.iter().filter(|key| c.is_set(key)) {
        if *key == "Instances:Mode" && c.instances == Instances::Lease {
            continue;
        }
        problems.contradict(
            at,
            &[key, "Delivery"],
            &format!("has no effect unless Delivery is {needs}; remove it or change Delivery"),
        );
    }
    if c.delivery == Delivery::WorkQueue {
        for key in SHARED_OUT.iter().filter(|key| c.is_set(key)) {
            problems.contradict(
                at,
                &[key, "Delivery"],
                "has no effect under Delivery WorkQueue, where every instance reads every partition; \
                 remove it, or use LeasedQueue",
            );
        }
    }
    if c.on_error == OnError::Retry && !c.delivery.is_queue() {
        problems.contradict(
            at,
            &["OnError", "Delivery"],
            "is Retry, which hands messages over behind others, and Delivery Ordered keeps their order; use \
             Park, or Delivery WorkQueue",
        );
    }
    for key in [
        "Retry:Attempts",
        "Retry:BackoffBaseMs",
        "Retry:BackoffMaxMs",
        "Retry:JitterPercent",
    ] {
        if c.is_set(key) && c.on_error != OnError::Retry {
            problems.contradict(
                at,
                &[key, "OnError"],
                "has no effect unless OnError is Retry; remove it or change OnError",
            );
        }
    }
    if c.retry_backoff_max < c.retry_backoff_base {
        problems.contradict(
            at,
            &["Retry:BackoffMaxMs", "Retry:BackoffBaseMs"],
            "is shorter than the first pause; raise it or lower Retry:BackoffBaseMs",
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
    if c.is_set("MaxDeliveries") && c.max_deliveries > 0 && c.persist == Persist::None {
        problems.contradict(
            at,
            &["MaxDeliveries", "Persist"],
            "has no effect while Persist is None, which keeps nothing from one process to the next; remove \
             it or change Persist",
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
    let topics = s.topics.iter();
    found.extend(topics.filter_map(|(name, topic)| trims_in_vain(name, topic)));
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
#[path = "check_tests.rs"]
mod tests;
