//! What may be handled twice, and nothing else: what an instance had finished just before it was killed or
//! frozen, and what it had in hand when it was frozen.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use streamlane::testing::{Double, Kind, Owner, Report, Rules};

use crate::common::proof::Logs;

/// A message in the hands of an owner.
type Hand = (String, u64, u32, (u64, u64));

pub struct Excuses {
    /// When instances were killed or frozen.
    ends: HashMap<String, Vec<u64>>,
    /// Handler calls that were under way then, and came back.
    in_hand: HashSet<Hand>,
}

impl Excuses {
    pub fn of(logs: &Logs) -> Self {
        let mut ends: HashMap<String, Vec<u64>> = HashMap::new();
        let (mut started, mut finished) = (HashMap::<Hand, u64>::new(), Vec::new());
        logs.each_handled(|e| {
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

    /// Fails unless the logs are clean, but for what is excused: positions are stored within `window`.
    /// Whether there was one owner at a time is for others to say.
    #[track_caller]
    pub fn check(logs: &Logs, window: Duration) -> Report {
        let report = logs.check(Rules {
            doubles: Duration::MAX,
            exclusive: false,
            ..Rules::default()
        });
        let excuses = Self::of(logs);
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
