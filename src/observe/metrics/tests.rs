#![allow(clippy::float_cmp)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    sync::Arc,
    time::Duration,
};

use super::{table::INSTRUMENTS, *};
use crate::{
    Instances, LaneState, Member, Ownership, PartitionStatus, TrimReason,
    monitor::{Counts, Histogram, LetterCounts, SIZES, TIMES},
    publish::PublishStatus,
};

#[path = "../../../tests/common/prometheus.rs"]
mod prometheus;

struct Still(fn() -> Option<Seen>);

impl Source for Still {
    fn look(&self) -> Option<Seen> {
        (self.0)()
    }
}

const ODD: &str = "a:b\"c\\d\ne";

fn member() -> Member {
    Member {
        instance: "0".into(),
        pod: "p".into(),
        epoch: String::new(),
    }
}

/// A partition with something of everything.
fn status(topic: &str, consumer: &str, partition: u32) -> PartitionStatus {
    PartitionStatus {
        topic: topic.into(),
        consumer: consumer.into(),
        partition,
        state: LaneState::Blocked,
        reason: "why".into(),
        in_state: Duration::from_secs(3),
        handled: 1,
        skipped: 1,
        parked: 1,
        retried: 1,
        late: 1,
        pending: Some(1),
        unread: Some(1),
        oldest_idle: Some(Duration::from_secs(1)),
        most_deliveries: Some(2),
        lag_entries: Some(1),
        lag: Some(Duration::from_secs(1)),
        sample_age: Some(Duration::from_secs(1)),
        stream_length: Some(20),
        connects: 1,
        gaps: 1,
        lost: 1,
        untold_gaps: 1,
        handler_for: Some(Duration::from_millis(5)),
        ..PartitionStatus::default()
    }
}

fn published(topic: &str) -> PublishStatus {
    PublishStatus {
        topic: topic.into(),
        stored: vec![11, 12],
        refused: 1,
        unknown: 1,
        repeated: 1,
        dropped: 1,
        returned: 1,
        queued: 1,
        scheduled: 1,
        moved: 1,
        put_off: 1,
    }
}

fn trims() -> Vec<crate::Trimmed> {
    let all = crate::trims::AllTrims::default();
    let trims = all.of(ODD, 0);
    for reason in TrimReason::ALL {
        trims.add(reason, 2);
    }
    trims.add_unread(1);
    trims.released(ODD);
    all.snapshot()
}

/// Everything there can be, all above 0.
fn full() -> Seen {
    let sizes = Histogram::default();
    let times = Histogram::default();
    sizes.record(&SIZES, 7);
    times.record(&TIMES, 1_500_000);
    let lane = |partition| LaneSeen {
        status: status(ODD, "c", partition),
        acked: 3,
        payload_missing: 1,
    };
    let topic: Arc<str> = ODD.into();
    let mut ownership = Ownership::unseen(
        &topic,
        &"c".into(),
        Instances::Lease,
        None,
        Duration::from_secs(1),
    );
    ownership.owned = vec![0];
    ownership.owners = vec![Some(member()), None];
    ownership.contested = vec![(0, member())];
    Seen {
        topics: vec![TopicSeen {
            published: published(ODD),
            has_queue: true,
        }],
        consumers: vec![ConsumerSeen {
            topic,
            name: "c".into(),
            is_queue: true,
            lanes: vec![lane(0), lane(PartitionStatus::RETRIES)],
            ownership,
            eligible: 2,
            max_partitions: Some(1),
            max_in_flight: Some(4),
            filtered: 5,
            durations: times.look(),
            sizes: sizes.look(),
            errors: vec![Counts {
                remedy: "block",
                type_name: "LedgerDown",
                many: 2,
            }],
            flush_failures: 1,
            held_up: times.look(),
        }],
        trimmed: trims(),
        letters: vec![(
            (ODD.into(), "c".into()),
            LetterCounts {
                replayed: 1,
                not_replayed: 1,
                deleted: 1,
            },
        )],
    }
}

fn series(seen: &Seen) -> BTreeSet<(String, Vec<String>)> {
    let mut found = BTreeSet::new();
    visit(seen, &mut |sample| {
        let names: Vec<_> = sample.labels.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, sample.instrument.labels);
        let labels = sample.labels.iter().map(|(_, value)| (*value).to_owned());
        let name = sample.instrument.name.to_owned();
        assert!(found.insert((name, labels.collect())), "{sample:?}");
    });
    found
}

#[test]
fn what_is_written_can_be_read_whatever_names_hold() {
    let metrics = Metrics::new(Arc::new(Still(|| Some(full()))));
    let text = metrics.to_prometheus();
    let families = prometheus::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let of = |name: &str| {
        let found = families.get(name).unwrap_or_else(|| panic!("{name}"));
        found
            .series
            .iter()
            .map(|(_, series)| series)
            .collect::<Vec<_>>()
    };
    let published = of("streams_published_total");
    assert_eq!(published[0].0["topic"], ODD);
    assert_eq!((&*published[1].0["partition"], published[1].1), ("1", 12.0));
    let errors = of("streams_errors_total");
    assert_eq!(errors[0].0["exception_type"], "LedgerDown");
    let consumed = of("streams_consumed_total");
    let partitions: Vec<_> = consumed.iter().map(|s| &*s.0["partition"]).collect();
    assert_eq!(partitions, ["0", "retries"]);
    let durations = &families["streams_batch_duration_ms"];
    let at = |end: &str| {
        let is_it = |s: &&(String, prometheus::Series)| s.1.0.get("le").is_some_and(|le| le == end);
        durations.series.iter().find(is_it).unwrap().1.1
    };
    assert_eq!((at("1"), at("2.5"), at("+Inf")), (0.0, 1.0, 1.0));
    let sum = durations.series.iter().find(|s| s.0.ends_with("_sum"));
    assert_eq!(sum.unwrap().1.1, 1.5);
    for (row, name) in INSTRUMENTS.iter().zip(names()) {
        let instrument = row.instrument;
        let help = families.get(&name).map(|f| &*f.help);
        // which a queue has not
        let expected = instrument.name != "streams.positions.flush_failures";
        assert_eq!(help, expected.then_some(instrument.help), "{name}");
    }
}

fn names() -> impl Iterator<Item = String> {
    INSTRUMENTS
        .iter()
        .map(|row| text::Name(&row.instrument).to_string())
}

#[test]
fn nothing_is_unknown_as_0_and_what_is_released_is_gone() {
    let mut seen = full();
    let all = series(&seen);
    let c = &mut seen.consumers[0];
    c.lanes.truncate(1);
    c.lanes[0].status = PartitionStatus {
        topic: ODD.into(),
        consumer: "c".into(),
        ..PartitionStatus::default()
    };
    c.ownership.owners = vec![Some(member()); 2];
    c.ownership.contested.clear();
    (c.max_partitions, c.max_in_flight) = (None, None);
    seen.topics[0].has_queue = false;
    let rest = series(&seen);
    let gone: BTreeSet<&str> = all
        .difference(&rest)
        .filter(|(_, labels)| !labels.contains(&"retries".to_owned()))
        .map(|(name, _)| &**name)
        .collect();
    let expected = [
        "streams.backpressure.wait",
        "streams.buffer.queued",
        "streams.lag.entries",
        "streams.lag.ms",
        "streams.partitions.contested",
        "streams.partitions.leased.max",
        "streams.partitions.unowned",
        "streams.pending",
        "streams.pending.most_deliveries",
        "streams.pending.oldest_idle_ms",
        "streams.sample.age_ms",
        "streams.stream.length",
        "streams.unread",
    ];
    assert_eq!(gone.into_iter().collect::<Vec<_>>(), expected);
    assert!(!rest.iter().any(|(_, l)| l.contains(&"retries".to_owned())));
    // a lane that was told to end, and did, has nothing more to say
    let status = &mut seen.consumers[0].lanes[0].status;
    (status.state, status.reason) = (LaneState::Stopped, String::new());
    let left = series(&seen);
    let partitions = left.iter().filter(|(name, _)| *name == "streams.consumed");
    assert_eq!(partitions.count(), 0);
}

#[test]
fn a_stream_that_several_read_has_one_length_the_youngest() {
    let mut seen = full();
    let mut second = full().consumers.remove(0);
    second.name = "d".into();
    let status = &mut second.lanes[0].status;
    (status.stream_length, status.sample_age) = (Some(30), Some(Duration::ZERO));
    seen.consumers.push(second);
    for _ in 0..2 {
        let mut lengths = Vec::new();
        visit(&seen, &mut |sample| {
            if sample.instrument.name == "streams.stream.length" {
                let is_30 = sample.value == Value::Gauge(30.0);
                lengths.push((sample.labels[1].1.to_owned(), is_30));
            }
        });
        assert_eq!(lengths, [("0".to_owned(), true)]);
        seen.consumers.reverse();
    }
}

#[test]
fn what_only_queues_have_is_not_there_of_others() {
    let mut seen = full();
    let all = series(&seen);
    seen.consumers[0].is_queue = false;
    let rest = series(&seen);
    let names = |of: &BTreeSet<(String, Vec<String>)>| -> BTreeSet<String> {
        of.iter().map(|(name, _)| name.clone()).collect()
    };
    let gone = &names(&all) - &names(&rest);
    let queues = INSTRUMENTS.iter().map(|row| row.instrument);
    let queues = queues.filter(|i| i.help.starts_with("Queues: "));
    assert_eq!(gone, queues.map(|i| i.name.to_owned()).collect());
    let come = &names(&rest) - &names(&all);
    assert_eq!(
        come.into_iter().collect::<Vec<_>>(),
        ["streams.positions.flush_failures"]
    );
}

#[test]
fn there_is_nothing_to_see_when_nothing_is_there() {
    let metrics = Metrics::new(Arc::new(Still(|| None)));
    assert_eq!(metrics.to_prometheus(), "");
    assert_eq!(format!("{metrics:?}"), "Metrics { .. }");
    let empty = Metrics::new(Arc::new(Still(|| Some(Seen::default()))));
    assert_eq!(empty.to_prometheus(), "");
}

#[test]
fn names_are_names_and_no_two_are_one() {
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    for (row, name) in INSTRUMENTS.iter().zip(names()) {
        let i = &row.instrument;
        assert!(i.name.starts_with("streams."), "{i:?}");
        assert!(i.help.ends_with('.') && !i.help.contains('|'), "{i:?}");
        assert!(seen.insert(name, i.name).is_none(), "{i:?}");
    }
    assert_eq!(Metrics::instruments().len(), INSTRUMENTS.len());
}

#[test]
fn the_page_has_the_table() {
    let mut table = String::from(
        "| name | for Prometheus | kind | unit | labels | what it tells |\n|---|---|---|---|---|---|\n",
    );
    for (row, name) in INSTRUMENTS.iter().zip(names()) {
        let Instrument {
            name: own,
            kind,
            unit,
            labels,
            help,
        } = row.instrument;
        let kind = format!("{kind:?}").to_lowercase();
        let labels = labels.join("`, `");
        let _ = writeln!(
            table,
            "| `{own}` | `{name}` | {kind} | {unit} | `{labels}` | {help} |"
        );
    }
    let page = include_str!("../../docs/metrics.md");
    assert!(
        page.contains(&table),
        "bring docs/metrics.md up to date:\n{table}"
    );
}
