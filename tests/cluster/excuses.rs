//! What may be handled twice, and nothing else: what an instance had finished just before it was killed or
//! frozen, and what it had in hand when it was frozen. And what may begin late: the call that was being made
//! when an instance was frozen, past the last look at its claims.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use streamlane::testing::{Double, Kind, Overlap, Owner, Report, Rules};

use crate::common::proof::Logs;

/// A message in the hands of an owner.
type Hand = (String, u64, u32, (u64, u64));
/// An owner of a partition.
type Reign = (String, u64, u32);

/// How soon after the call before it one begins, with plenty to do.
const BREATH_NS: u64 = 10_000_000;

pub struct Excuses {
    /// When instances were killed or frozen.
    ends: HashMap<String, Vec<u64>>,
    /// Handler calls that were under way then, and came back.
    in_hand: HashSet<Hand>,
    /// What an owner wrote down, and when.
    events: HashMap<Reign, Vec<(u64, Kind)>>,
}

impl Excuses {
    pub fn of(logs: &Logs) -> Self {
        let mut ends: HashMap<String, Vec<u64>> = HashMap::new();
        let (mut started, mut finished) = (HashMap::<Hand, u64>::new(), Vec::new());
        let mut events: HashMap<Reign, Vec<_>> = HashMap::new();
        logs.each_handled(|e| {
            let reign = (e.instance.to_string(), e.epoch, e.partition);
            events.entry(reign).or_default().push((e.time_ns, e.kind));
            let hand = (e.instance.to_string(), e.epoch, e.partition, e.id);
            match e.kind {
                Kind::Killed => ends.entry(hand.0).or_default().push(e.time_ns),
                Kind::Started => drop(started.insert(hand, e.time_ns)),
                _ => finished.push((hand, e.time_ns)),
            }
        });
        let outlived = |(hand, end): &(Hand, u64)| {
            let begin = started[hand];
            let ends = ends.get(&hand.0).into_iter().flatten();
            ends.clone().any(|at| (begin..=*end).contains(at))
        };
        finished.retain(outlived);
        Self {
            in_hand: finished.into_iter().map(|(hand, _)| hand).collect(),
            ends,
            events,
        }
    }

    fn covers(&self, d: &Double, window: Duration) -> bool {
        let in_hand = |by: &Owner| {
            let hand = (
                by.instance.to_string(),
                by.epoch,
                d.place.partition,
                d.place.id,
            );
            self.in_hand.contains(&hand)
        };
        let ended = self
            .ends
            .get(&*d.first_by.instance)
            .is_some_and(|ends| ends.iter().any(|at| (d.first_ns..=d.again_ns).contains(at)));
        (ended && d.exposure <= window) || in_hand(&d.first_by) || in_hand(&d.again_by)
    }

    /// Whether all that began late is one call that was being made when its instance was frozen: the first
    /// thing that was written down since, and right before that the end of the call before it.
    fn covers_late_call(&self, o: &Overlap) -> bool {
        let reign = (o.older.instance.to_string(), o.older.epoch, o.partition);
        let (Some(events), Some(ends)) = (self.events.get(&reign), self.ends.get(&reign.0)) else {
            return false;
        };
        let starts = events.iter().enumerate();
        let starts: Vec<_> = starts.filter(|(_, e)| e.1 == Kind::Started).collect();
        let Some((last, (at, _))) = starts.last().copied() else {
            return false;
        };
        let began = at - o.by.as_nanos() as u64;
        let late = starts.iter().filter(|(_, e)| e.0 > began).count();
        let before = last.checked_sub(1).map(|n| events[n]);
        let frozen = |before: u64| {
            ends.iter()
                .any(|end| (before..before + BREATH_NS).contains(end))
        };
        late == 1 && before.is_some_and(|(ns, kind)| kind == Kind::Handled && frozen(ns))
    }

    /// Fails unless the logs are clean, but for what is excused: positions are stored within `window`.
    #[track_caller]
    pub fn check(logs: &Logs, window: Duration) -> Report {
        let mut report = logs.report(Rules {
            doubles: Duration::MAX,
            ..Rules::default()
        });
        let excuses = Self::of(logs);
        report.overlaps.retain(|o| {
            let excused = excuses.covers_late_call(o);
            eprintln!("excused {excused}: {o}");
            !excused
        });
        assert!(report.is_clean(), "{report}");
        let doubles = report.doubles.iter();
        let strange: Vec<_> = doubles.filter(|d| !excuses.covers(d, window)).collect();
        let shown = strange.iter().take(10).map(ToString::to_string);
        assert!(
            strange.is_empty(),
            "{} of {} doubles have no excuse: {:#?}",
            strange.len(),
            report.doubles.len(),
            shown.collect::<Vec<_>>()
        );
        report
    }
}
