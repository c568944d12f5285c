//! What may be handled twice, and nothing else: what an instance had finished just before it was killed or
//! frozen, and what it had in hand when it was frozen.
//!
//! And what may seem to begin late: the one call of a lane that was frozen when it had been allowed, and
//! before it had noted that it began.

use std::{collections::HashMap, time::Duration};

use streamlane::testing::{Double, Kind, Overlap, Owner, Report, Rules};

use crate::common::proof::Logs;

/// A message in the hands of an owner.
type Hand = (String, u64, u32, (u64, u64));
/// An owner of a partition.
type Lane = (String, u64, u32);

pub struct Excuses {
    /// When instances were killed or frozen.
    ends: HashMap<String, Vec<u64>>,
    /// Handler calls that were under way then, or were just about to begin, and came back; and when they began.
    in_hand: HashMap<Hand, u64>,
    /// When calls began.
    begun: HashMap<Lane, Vec<u64>>,
}

impl Excuses {
    pub fn of(logs: &Logs) -> Self {
        let mut ends: HashMap<String, Vec<u64>> = HashMap::new();
        let (mut begins, mut finished) = (HashMap::<Hand, u64>::new(), Vec::new());
        logs.each_handled(|e| {
            let hand = (e.instance.to_string(), e.epoch, e.partition, e.id);
            match e.kind {
                Kind::Killed => ends.entry(hand.0).or_default().push(e.time_ns),
                Kind::Started => drop(begins.insert(hand, e.time_ns)),
                _ => finished.push((e.time_ns, hand)),
            }
        });
        finished.sort_unstable();
        let mut this = Self {
            ends,
            in_hand: HashMap::new(),
            begun: HashMap::new(),
        };
        // by lane: when the call before had finished
        let mut before: HashMap<Lane, u64> = HashMap::new();
        for (end, hand) in finished {
            let (begin, lane) = (begins[&hand], (hand.0.clone(), hand.1, hand.2));
            this.begun.entry(lane.clone()).or_default().push(begin);
            let idle_since = before.insert(lane, end).unwrap_or(begin);
            if this.ended_within(&hand.0, idle_since, end) {
                this.in_hand.insert(hand, begin);
            }
        }
        this
    }

    fn ended_within(&self, instance: &str, from: u64, to: u64) -> bool {
        let mut ends = self.ends.get(instance).into_iter().flatten();
        ends.any(|at| (from..=to).contains(at))
    }

    /// Whether the older owner began a single call after the newer one had come, and was frozen between
    /// that and the end of its call before.
    fn explains(&self, o: &Overlap) -> bool {
        let lane = |by: &Owner| (by.instance.to_string(), by.epoch, o.partition);
        let begun = |by: &Owner| self.begun.get(&lane(by)).map_or(&[][..], Vec::as_slice);
        let (older, Some(came)) = (begun(&o.older), begun(&o.newer).first()) else {
            return false;
        };
        let late: Vec<_> = older.iter().filter(|ns| *ns > came).collect();
        let [late] = late[..] else { return false };
        self.in_hand
            .iter()
            .any(|((i, e, p, _), begin)| (i.clone(), *e, *p) == lane(&o.older) && begin == late)
    }

    fn covers(&self, d: &Double, window: Duration) -> bool {
        let in_hand = |by: &Owner| {
            let hand = (
                by.instance.to_string(),
                by.epoch,
                d.place.partition,
                d.place.id,
            );
            self.in_hand.contains_key(&hand)
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
        for overlap in &report.overlaps {
            assert!(excuses.explains(overlap), "{overlap}");
        }
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
