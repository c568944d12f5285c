use std::fs;

use super::*;
use crate::testing::Recorder;

/// An event of partition 0, `t` milliseconds after the beginning.
fn at(t: u64, kind: Kind, id: u64, key: &'static str, who: (&'static str, u64)) -> Event<'static> {
    Event {
        time_ns: t * 1_000_000,
        instance: who.0.into(),
        epoch: who.1,
        ..Event::now(kind, "orders", 0, (1000, id), key.as_bytes())
    }
}

fn published(t: u64, id: u64, key: &'static str) -> Event<'static> {
    at(t, Kind::Published, id, key, ("p", 0))
}

fn handled(t: u64, id: u64, key: &'static str, who: (&'static str, u64)) -> Event<'static> {
    at(t, Kind::Handled, id, key, who)
}

const A: (&str, u64) = ("a", 1);
const B: (&str, u64) = ("b", 2);

/// The verdict must not depend on the order of the lines, so each log is checked in three.
fn check(rules: &Rules, log: &[Event<'_>]) -> Report {
    let run = |log: &mut dyn Iterator<Item = &Event<'_>>| {
        let mut checker = Checker::new(rules.clone());
        log.for_each(|e| checker.add(e));
        checker.finish()
    };
    let report = run(&mut log.iter());
    let half = log.len() / 2;
    for other in [
        run(&mut log.iter().rev()),
        run(&mut log[half..].iter().chain(&log[..half])),
    ] {
        assert_eq!(other.to_string(), report.to_string());
    }
    report
}

/// Two keys, a handover from one owner to the next, a message skipped, one parked, one reported lost.
fn clean() -> Vec<Event<'static>> {
    vec![
        published(1, 1, "x"),
        published(2, 2, "y"),
        published(3, 3, "x"),
        published(4, 4, "x"),
        published(4, 5, "y"),
        published(4, 6, "y"),
        handled(5, 1, "x", A),
        handled(6, 2, "y", A),
        at(7, Kind::Skipped, 3, "x", A),
        handled(8, 4, "x", B),
        at(9, Kind::Parked, 5, "y", B),
        at(9, Kind::Lost, 6, "y", B),
    ]
}

fn with(more: impl IntoIterator<Item = Event<'static>>) -> Vec<Event<'static>> {
    clean().into_iter().chain(more).collect()
}

fn strict(log: &[Event<'_>]) -> Report {
    check(&Rules::default(), log)
}

/// Losses, strangers, doubles, reorders, overlaps.
fn found(r: &Report) -> [usize; 5] {
    [
        r.losses.len(),
        r.strangers.len(),
        r.doubles.len(),
        r.reorders.len(),
        r.overlaps.len(),
    ]
}

#[test]
fn a_clean_log_is_clean() {
    let r = strict(&clean());
    assert_eq!(found(&r), [0; 5], "{r}");
    assert!(r.is_clean());
    let c = r.counts;
    assert_eq!((c.published, c.handled), (6, 3));
    assert_eq!((c.skipped, c.parked, c.lost), (1, 1, 1));
    assert!(r.to_string().ends_with("clean\n"));
}

#[test]
fn a_published_message_nobody_accounts_for_is_lost() {
    let r = strict(&with([published(10, 7, "z")]));
    assert_eq!(found(&r), [1, 0, 0, 0, 0]);
    assert_eq!(r.losses[0].to_string(), "orders/0 1000-7 key \"z\"");
    assert!(!r.is_clean());
    // the same id on another partition or topic is another message
    let elsewhere = [
        Event {
            partition: 1,
            ..handled(11, 7, "z", B)
        },
        Event {
            topic: "other".into(),
            ..handled(11, 7, "z", B)
        },
    ];
    let r = strict(&with([published(10, 7, "z")].into_iter().chain(elsewhere)));
    assert_eq!(found(&r), [1, 2, 0, 0, 0]);
    // a call that only began saves nobody
    let r = strict(&[published(1, 1, "x"), at(2, Kind::Started, 1, "x", A)]);
    assert_eq!(found(&r), [1, 0, 0, 0, 0]);
}

#[test]
fn a_message_under_a_foreign_key_is_a_loss_and_a_stranger() {
    let r = strict(&[published(1, 1, "x"), handled(2, 1, "y", A)]);
    assert_eq!(found(&r), [1, 1, 0, 0, 0]);
    assert_eq!(&*r.strangers[0].key, b"y");
}

#[test]
fn an_unknown_publish_may_or_may_not_appear() {
    let unknown = || at(1, Kind::Unknown, 0, "x", ("p", 0));
    assert!(strict(&[unknown()]).is_clean());
    let r = strict(&[unknown(), handled(2, 1, "x", A)]);
    assert!(r.is_clean());
    assert_eq!(r.counts.unknown_handled, 1);
    // one of them excuses one message of its key
    let r = strict(&[unknown(), handled(2, 1, "x", A), handled(3, 2, "x", A)]);
    assert_eq!(found(&r), [0, 1, 0, 0, 0]);
    let r = strict(&[unknown(), handled(2, 1, "y", A)]);
    assert_eq!(found(&r), [0, 1, 0, 0, 0]);
    let open = Rules {
        closed: false,
        ..Rules::default()
    };
    assert!(check(&open, &[handled(2, 1, "y", A)]).is_clean());
}

#[test]
fn doubles_are_measured_from_the_first_handling_to_the_end_of_its_handler() {
    let again = [handled(30, 1, "x", B), handled(31, 2, "y", B)];
    let r = strict(&with(again.clone()));
    assert_eq!(found(&r), [0, 0, 2, 0, 0]);
    assert!(!r.is_clean());
    let d = &r.doubles[0];
    assert_eq!(d.place.id, (1000, 1));
    assert_eq!((&*d.first_by.instance, &*d.again_by.instance), ("a", "b"));
    let exposed =
        |r: &Report| -> Vec<u128> { r.doubles.iter().map(|d| d.exposure.as_millis()).collect() };
    assert_eq!(exposed(&r), [25, 25]);
    // the kill of another, or one before it all, says nothing
    let killed = |t, who: &'static str| at(t, Kind::Killed, 0, "", (who, 0));
    let more = [
        killed(2, "a"),
        killed(8, "a"),
        killed(9, "a"),
        killed(7, "b"),
    ];
    let log = with(again.into_iter().chain(more));
    assert_eq!(exposed(&strict(&log)), [3, 2]);
    let within = |ms| Rules {
        doubles: Duration::from_millis(ms),
        ..Rules::default()
    };
    assert!(check(&within(3), &log).is_clean());
    let r = check(&within(2), &log);
    assert_eq!(r.faults(), 1);
    let beyond: Vec<_> = r.doubles_beyond(Duration::from_millis(2)).collect();
    assert_eq!(beyond[0].place.id, (1000, 1));
}

#[test]
fn each_further_handling_is_a_double() {
    let r = strict(&with([handled(30, 4, "x", B), handled(31, 4, "x", B)]));
    assert_eq!(found(&r), [0, 0, 2, 0, 0]);
    assert!(r.doubles.iter().all(|d| d.first_ns == 8_000_000));
    // even in the same nanosecond
    let r = strict(&with([handled(8, 4, "x", B)]));
    assert_eq!(found(&r), [0, 0, 1, 0, 0]);
    assert!(!r.is_clean());
}

#[test]
fn a_key_whose_later_message_came_first_is_reordered() {
    let log = [
        published(1, 1, "x"),
        published(2, 2, "x"),
        published(3, 3, "y"),
        handled(5, 3, "y", A),
        handled(6, 2, "x", A),
        handled(9, 1, "x", A),
    ];
    let r = strict(&log);
    assert_eq!(found(&r), [0, 0, 0, 1, 0]);
    let first = &r.reorders[0];
    assert_eq!((first.place.id, first.overtaken), ((1000, 2), (1000, 1)));
    assert_eq!(first.by, Duration::from_millis(3));
    assert!(!r.is_clean());
    let unordered = Rules {
        ordered: false,
        ..Rules::default()
    };
    assert!(check(&unordered, &log).is_clean());
}

#[test]
fn a_redelivery_is_no_reorder() {
    // 1 2 3, and from 1 again
    let log = (1..=3).map(|n| published(n, n, "x"));
    let once = (1..=3).map(|n| handled(10 + n, n, "x", A));
    let again = (1..=3).map(|n| handled(20 + n, n, "x", B));
    let log: Vec<_> = log.chain(once).chain(again).collect();
    assert_eq!(found(&strict(&log)), [0, 0, 3, 0, 0]);
    // 3 jumped ahead before 2 was ever handled
    let log: Vec<_> = log
        .into_iter()
        .filter(|e| e.time_ns != 12_000_000)
        .collect();
    assert_eq!(found(&strict(&log)), [0, 0, 2, 1, 0]);
}

#[test]
fn an_owner_that_acts_after_a_newer_one_began_overlaps() {
    let log = with([published(10, 7, "z"), handled(11, 7, "z", A)]);
    let r = strict(&log);
    assert_eq!(found(&r), [0, 0, 0, 0, 1]);
    let o = &r.overlaps[0];
    assert_eq!((o.older.epoch, o.newer.epoch), (1, 2));
    assert_eq!(o.by, Duration::from_millis(3));
    assert!(!r.is_clean());
    let shared = Rules {
        exclusive: false,
        ..Rules::default()
    };
    assert!(check(&shared, &log).is_clean());
    // another partition is another matter
    let moved = |e: Event<'static>| Event { partition: 1, ..e };
    let r = strict(&with(
        [published(10, 7, "z"), handled(11, 7, "z", A)].map(moved),
    ));
    assert!(r.is_clean(), "{r}");
}

#[test]
fn without_epochs_whoever_began_later_is_newer() {
    let log = |last: &'static str| {
        [
            published(1, 1, "x"),
            published(1, 2, "x"),
            published(1, 3, "x"),
            handled(2, 1, "x", ("a", 0)),
            handled(3, 2, "x", ("b", 0)),
            handled(4, 3, "x", (last, 0)),
        ]
    };
    assert!(strict(&log("b")).is_clean());
    assert_eq!(found(&strict(&log("a"))), [0, 0, 0, 0, 1]);
}

#[test]
fn each_older_owner_is_held_against_the_first_of_all_newer_ones() {
    let owners = [("a", 1), ("c", 3), ("a", 1), ("b", 2), ("c", 3)];
    let log: Vec<_> = (1..)
        .zip(owners)
        .flat_map(|(n, who)| [published(n, n, "x"), handled(10 + n, n, "x", who)])
        .collect();
    let r = strict(&log);
    let pairs = r.overlaps.iter().map(|o| (o.older.epoch, o.newer.epoch));
    assert_eq!(pairs.collect::<Vec<_>>(), [(1, 3), (2, 3)]);
}

#[test]
fn where_calls_are_recorded_they_decide_who_overlaps() {
    // a's call began before b's and ended after it: fenced, as promised
    let mut log = vec![
        published(1, 1, "x"),
        published(1, 2, "y"),
        at(2, Kind::Started, 1, "x", A),
        at(3, Kind::Started, 2, "y", B),
        handled(4, 2, "y", B),
        handled(5, 1, "x", A),
    ];
    assert!(strict(&log).is_clean());
    log.push(at(6, Kind::Started, 1, "x", A));
    assert_eq!(found(&strict(&log)), [0, 0, 0, 0, 1]);
}

#[test]
fn logs_are_read_from_files_torn_lines_and_all() {
    let dir = crate::testing::new_dir().unwrap();
    let (one, two) = (dir.join("one"), dir.join("two"));
    let log = clean();
    let (first, second) = log.split_at(7);
    Recorder::append(&one).unwrap().record_all(first).unwrap();
    let recorder = Recorder::append(&two).unwrap();
    std::thread::scope(|s| {
        for e in second {
            s.spawn(|| recorder.record(e).unwrap());
        }
    });
    let mut torn = fs::read(&two).unwrap();
    torn.extend_from_slice(b">handled 12 ord");
    fs::write(&two, torn).unwrap();
    let mut checker = Checker::new(Rules::default());
    checker.add_file(&one).unwrap();
    checker.add_file(&two).unwrap();
    let r = checker.finish();
    assert!(r.is_clean(), "{r}");
    assert_eq!((r.torn, r.counts.published, r.counts.handled), (1, 6, 3));
    for (content, complaint) in [
        ("", ":0: there is no event"),
        (">killed 1 - 0 0-0 - b 0 .\nnoise\n", ":2: not an event"),
    ] {
        fs::write(&one, content).unwrap();
        let e = Checker::default().add_file(&one).unwrap_err().to_string();
        assert!(e.contains(complaint), "{e}");
    }
    assert!(Checker::default().add_file(dir.join("none")).is_err());
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn long_lists_of_findings_are_cut_short() {
    let log: Vec<_> = (1..=25).map(|n| published(n, n, "x")).collect();
    let text = strict(&log).to_string();
    assert!(
        text.contains("lost: 25\n") && text.contains("  and 15 more\n"),
        "{text}"
    );
    assert!(text.ends_with("FAULTS: 25\n"));
}
