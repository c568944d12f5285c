use std::{env, fs, path::Path, time::Duration};

use streamlane::{Member, StreamId};

use super::{super::history::History, *};

const BEGAN_MS: u64 = 1_769_846_400_000;

fn partition(n: u32, state: ProgressState, lag: Option<u64>) -> PartitionProgress {
    let mut p = PartitionProgress::default();
    p.partition = n;
    p.state = state;
    p.lag = lag;
    p.added = 1_000_000;
    p.length = 10_000;
    p.tail = Some(StreamId::new(BEGAN_MS + 5_000, 3));
    p.position = lag.map(|lag| StreamId::new(BEGAN_MS + 5_000 - lag, 0));
    if !matches!(state, ProgressState::Unowned | ProgressState::NoStream) {
        let mut owner = Member::default();
        owner.instance = format!("1b3a00{}7-aaaa-bbbb-cccc-000000000000", n % 2);
        owner.pod = format!("billing-{}", n % 2);
        p.owner = Some(owner);
    }
    p
}

/// A consumer of so many partitions, in all states that there are, after it was watched for so many seconds.
fn watched(partitions: u32, is_group: bool, seconds: u64) -> (ConsumerProgress, Vec<Rates>) {
    use ProgressState::{Ahead, Behind, CaughtUp, Gap, NoPosition, NoStream, Unowned};
    let mut all = ConsumerProgress::default();
    all.topic = "orders".into();
    all.consumer = "billing".into();
    all.is_group = is_group;
    all.dead_letters = 12;
    all.retries = 3 * u64::from(is_group);
    all.partitions = (0..partitions)
        .map(|n| {
            let (state, lag) = match n % 10 {
                1 => (Behind, Some(5)),
                2 => (Behind, None),
                3 => (Unowned, Some(4_900)),
                5 => (Gap, Some(1_234)),
                6 => (Ahead, Some(0)),
                7 => (NoPosition, None),
                8 => (NoStream, None),
                _ => (CaughtUp, Some(0)),
            };
            let mut p = partition(n, state, lag);
            p.pending = is_group.then_some(u64::from(n % 4));
            p
        })
        .collect();
    all.members = [0, 1]
        .map(|n| partition(n, CaughtUp, None).owner.unwrap())
        .into();
    let mut history = History::default();
    for second in 0..=seconds {
        all.at = StreamId::new(BEGAN_MS + 1000 * second, 0).timestamp();
        history.note(&all);
        for p in &mut all.partitions {
            // Each has a pace of its own, and the even ones come and go.
            let pace = u64::from(p.partition + 1) * 100;
            p.added += if p.partition % 2 == 0 {
                pace * (second % 8)
            } else {
                pace
            };
        }
    }
    (all, history.rates())
}

fn screen<'a>(
    all: &'a ConsumerProgress,
    rates: &'a [Rates],
    trouble: Option<&'a str>,
) -> Screen<'a> {
    Screen {
        place: "redis.internal:6379",
        progress: all,
        rates,
        trouble,
    }
}

/// Compares with a screen that was looked at and committed.
#[track_caller]
fn golden(name: &str, lines: &[String], width: usize, height: usize) {
    for line in lines {
        assert!(
            line.chars().count() <= width,
            "{line:?} is wider than {width}"
        );
    }
    assert_eq!(lines.len(), height);
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    let text = lines.join("\n") + "\n";
    if env::var_os("STREAMLANE_WRITE").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        text == there,
        "{name} is another by now (STREAMLANE_WRITE=1 writes it):\n{text}"
    );
}

#[test]
fn an_ordered_consumer_on_a_usual_screen() {
    let (all, rates) = watched(10, false, 30);
    golden(
        "watch-ordered-80x24.txt",
        &view(&screen(&all, &rates, None), 80, 24),
        80,
        24,
    );
}

#[test]
fn an_ordered_consumer_on_a_large_screen() {
    let (all, rates) = watched(40, false, 100);
    golden(
        "watch-ordered-200x50.txt",
        &view(&screen(&all, &rates, None), 200, 50),
        200,
        50,
    );
}

#[test]
fn a_queue_on_a_usual_screen_while_the_server_is_away() {
    let (all, rates) = watched(10, true, 30);
    let trouble =
        "look how far a consumer is at redis.internal:6379: connect: reaching the server failed";
    golden(
        "watch-queue-80x24.txt",
        &view(&screen(&all, &rates, Some(trouble)), 80, 24),
        80,
        24,
    );
}

#[test]
fn more_partitions_than_lines_leave_out_what_is_well() {
    let (all, rates) = watched(100, true, 100);
    let lines = view(&screen(&all, &rates, None), 200, 50);
    golden("watch-queue-200x50.txt", &lines, 200, 50);
    let text = lines.join("\n");
    for word in ["AHEAD", "GAP", "NOBODY"] {
        assert_eq!(text.matches(word).count(), 10, "{word}");
    }
}

#[test]
fn no_screen_is_too_small() {
    let (all, rates) = watched(30, true, 3);
    for (width, height) in [(0, 0), (1, 1), (10, 3), (40, 7), (79, 8), (1000, 300)] {
        let lines = view(&screen(&all, &rates, Some("away")), width, height);
        assert_eq!(lines.len(), height, "{width}x{height}");
        assert!(
            lines.iter().all(|l| l.chars().count() <= width.max(1)),
            "{width}x{height}"
        );
    }
    let nothing = ConsumerProgress::default();
    let lines = view(&screen(&nothing, &[], None), 80, 24);
    assert!(
        lines.contains(&"there is no such topic".to_owned()),
        "{lines:?}"
    );
}

#[test]
fn a_topic_gives_the_terminal_no_orders() {
    let (mut all, rates) = watched(1, false, 1);
    all.topic = "a\x1b[2J".into();
    all.partitions[0].owner.as_mut().unwrap().pod = "b\x1b]0;x\x07".into();
    let text = view(&screen(&all, &rates, Some("c\x1b[31m")), 200, 10).concat();
    assert!(!text.contains('\x1b') && !text.contains('\x07'), "{text:?}");
}

#[test]
fn rates_are_of_what_was_finished_between_two_looks() {
    let mut history = History::default();
    let mut all = ConsumerProgress::default();
    let mut look = |second: u64, added: u64, lag: Option<u64>| {
        let mut p = PartitionProgress::default();
        (p.added, p.lag) = (added, lag);
        all.at = std::time::UNIX_EPOCH + Duration::from_secs(second);
        all.partitions = vec![p];
        history.note(&all);
        let rates = history.rates().remove(0);
        (rates.now(), rates.added)
    };
    assert_eq!(look(10, 100, Some(50)), (None, None));
    assert_eq!(look(10, 200, Some(50)), (None, None), "no time has passed");
    assert_eq!(look(12, 300, Some(50)), (Some(100.0), Some(100.0)));
    assert_eq!(look(13, 300, Some(20)), (Some(30.0), Some(0.0)));
    assert_eq!(look(14, 310, None), (None, Some(10.0)), "unknown is not 0");
    assert_eq!(look(15, 310, Some(10)), (None, Some(0.0)));
    assert_eq!(
        look(16, 310, Some(310)),
        (Some(0.0), Some(0.0)),
        "a reset is no rate"
    );
}

#[test]
fn a_sparkline_shows_what_moves() {
    let mut rates = Rates::default();
    rates.finished.extend([
        Some(9.0),
        Some(0.0),
        None,
        Some(0.01),
        Some(50.0),
        Some(100.0),
    ]);
    assert_eq!(sparkline(&rates, 5), "▁ ▂▅█");
    rates.finished = [Some(0.0), Some(0.0)].into();
    assert_eq!(sparkline(&rates, 5), "▁▁");
    assert_eq!(whole(0.0), "0");
    assert_eq!(whole(0.25), "0.2");
    assert_eq!(whole(1234.5), "1,235");
}
