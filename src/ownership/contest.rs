//! What an instance does about another that stores positions of the same partition: the two handle the
//! same messages, and one of them has to leave off. No clock, no server.
//!
//! It exists where partitions are divided by numbers alone; claims that are leases keep the other out.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::wire::{InstanceId, PositionValue};

/// How often partitions come back that were left to another. Who is driven out more often than that has
/// a rival that comes and goes, and stays away until it is started again.
const RECOVERIES: u32 = 5;

/// Who else has stored a position of a partition of ours, as whoever stores positions comes across it.
#[derive(Debug)]
pub(crate) struct Rivals {
    me: InstanceId,
    met: Mutex<BTreeMap<u32, InstanceId>>,
}

impl Rivals {
    pub(super) fn new(me: InstanceId) -> Self {
        Self {
            me,
            met: Mutex::default(),
        }
    }

    /// This was stored when we stored the position of a partition; empty when nothing was. Waits for nothing,
    /// and takes a lock only when somebody else had written it.
    pub(crate) fn saw(&self, partition: u32, value: &[u8]) {
        let Some(PositionValue { writer, .. }) = PositionValue::parse(value) else {
            return;
        };
        // Who does not say who it is, and an operator, are nobody's rivals.
        if ![self.me, InstanceId::default(), InstanceId::ADMIN].contains(&writer) {
            self.met.lock().insert(partition, writer);
        }
    }

    /// Whether anybody was met since they were last taken.
    pub(super) fn any(&self) -> bool {
        !self.met.lock().is_empty()
    }

    /// Those met since they were last taken, by partition: of each the last.
    pub(super) fn take(&self) -> BTreeMap<u32, InstanceId> {
        std::mem::take(&mut *self.met.lock())
    }
}

/// The disputes of one instance.
#[derive(Debug)]
pub(super) struct Contest {
    me: InstanceId,
    /// For how long a rival is only warned of.
    grace: Duration,
    disputes: BTreeMap<u32, Dispute>,
    /// Partitions that are left to another.
    left: BTreeMap<u32, InstanceId>,
    /// Partitions with a position that somebody stored who is gone, and who was told of.
    stale: BTreeSet<u32>,
    recoveries: u32,
}

#[derive(Debug)]
struct Dispute {
    rival: InstanceId,
    since: Instant,
    last: Instant,
    /// Whether it was said that we keep the partition.
    kept: bool,
}

/// What is done about a rival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Nothing new: both go on.
    Keep,
    /// It is gone, and this was its last word. To be told once.
    Stale,
    /// It is there: to be warned of, for it may leave off by itself.
    Warn,
    /// It did not leave off, and has to yield to us. To be told once.
    Hold,
    /// It did not leave off, and we have to yield to it.
    StandDown,
}

/// What becomes of a partition that was left to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Return {
    /// The other is gone: the partition is taken up again.
    Back,
    /// The other is there yet.
    Wait,
    /// The other is gone, but that has happened too often.
    Never,
}

impl Contest {
    pub(super) fn new(me: InstanceId, grace: Duration) -> Self {
        Self {
            me,
            grace,
            disputes: BTreeMap::new(),
            left: BTreeMap::new(),
            stale: BTreeSet::new(),
            recoveries: 0,
        }
    }

    /// A rival has stored a position of a partition. `present` says whether it shows that it lives.
    ///
    /// The dispute is as old as the first time that was seen, unless a whole time of grace went by between
    /// two of them: then the earlier one is forgotten.
    pub(super) fn met(
        &mut self,
        partition: u32,
        rival: InstanceId,
        present: bool,
        now: Instant,
    ) -> Verdict {
        if self.left.contains_key(&partition) {
            return Verdict::Keep;
        }
        if !present {
            self.disputes.remove(&partition);
            let is_new = self.stale.insert(partition);
            return if is_new {
                Verdict::Stale
            } else {
                Verdict::Keep
            };
        }
        let fresh = Dispute {
            rival,
            since: now,
            last: now,
            kept: false,
        };
        let (dispute, is_new) = match self.disputes.entry(partition) {
            Entry::Vacant(none) => (none.insert(fresh), true),
            Entry::Occupied(old) => {
                let old = old.into_mut();
                let over = old.rival != rival || now - old.last > self.grace;
                let kept = old.kept && old.rival == rival;
                if over {
                    *old = Dispute { kept, ..fresh };
                }
                old.last = now;
                (old, over && !kept)
            }
        };
        if now - dispute.since < self.grace {
            return if is_new { Verdict::Warn } else { Verdict::Keep };
        }
        if self.me > rival {
            self.disputes.remove(&partition);
            self.left.insert(partition, rival);
            return Verdict::StandDown;
        }
        let told = std::mem::replace(&mut dispute.kept, true);
        if told { Verdict::Keep } else { Verdict::Hold }
    }

    /// Looks whether those are gone that partitions were left to.
    pub(super) fn recheck(
        &mut self,
        present: impl Fn(InstanceId) -> bool,
    ) -> Vec<(u32, InstanceId, Return)> {
        let spent = self.recoveries >= RECOVERIES;
        let of = |(p, rival): (&u32, &InstanceId)| {
            let what = match (present(*rival), spent) {
                (true, _) => Return::Wait,
                (false, false) => Return::Back,
                (false, true) => Return::Never,
            };
            (*p, *rival, what)
        };
        let all: Vec<_> = self.left.iter().map(of).collect();
        for (p, ..) in all.iter().filter(|(.., what)| *what == Return::Back) {
            self.left.remove(p);
        }
        let some = all.iter().any(|(.., what)| *what == Return::Back);
        self.recoveries += u32::from(some);
        all
    }

    /// Partitions that are another's to dispute from now on are forgotten.
    pub(super) fn retain(&mut self, keeps: impl Fn(u32) -> bool) {
        self.disputes.retain(|p, _| keeps(*p));
        self.left.retain(|p, _| keeps(*p));
    }

    /// Whether a partition is left to another.
    pub(super) fn is_left(&self, partition: u32) -> bool {
        self.left.contains_key(&partition)
    }

    /// Whether any partition is left to another.
    pub(super) fn leaves_any(&self) -> bool {
        !self.left.is_empty()
    }

    /// The partitions that another did not leave off, and who that is.
    pub(super) fn open(&self) -> impl Iterator<Item = (u32, InstanceId)> {
        let kept = self.disputes.iter().filter(|(_, d)| d.kept);
        let kept = kept.map(|(p, d)| (*p, d.rival));
        kept.chain(self.left.iter().map(|(p, rival)| (*p, *rival)))
    }
}

#[cfg(test)]
mod tests {
    use super::{Verdict::*, *};
    use crate::clock;

    const GRACE: Duration = Duration::from_mins(1);

    /// Three ids in their order.
    fn ids() -> [InstanceId; 3] {
        let mut ids = ["svc-0", "svc-1", "svc-2"].map(InstanceId::derive);
        ids.sort();
        ids
    }

    #[test]
    fn a_rival_is_warned_of_and_then_the_greater_id_yields() {
        // When it is seen, in seconds; whether it is present; and what follows.
        type Case<'a> = (&'a str, InstanceId, &'a [(u64, bool, Verdict)]);
        let [low, me, high] = ids();
        let cases: &[Case<'_>] = &[
            (
                "yields to the lower, once",
                low,
                &[
                    (0, true, Warn),
                    (30, true, Keep),
                    (59, true, Keep),
                    (60, true, StandDown),
                    (61, true, Keep),
                    (999, true, Keep),
                ],
            ),
            (
                "keeps it against the higher, and says so once",
                high,
                &[
                    (0, true, Warn),
                    (50, true, Keep),
                    (70, true, Hold),
                    (71, true, Keep),
                    (500, true, Keep),
                    (540, true, Keep),
                    (560, true, Keep),
                    (580, true, Keep),
                ],
            ),
            (
                "who is gone left a last word",
                low,
                &[(0, false, Stale), (1, false, Keep), (99, false, Keep)],
            ),
            (
                "who goes in time ends it",
                low,
                &[(0, true, Warn), (40, false, Stale), (61, true, Warn)],
            ),
            (
                "a later one begins anew",
                low,
                &[
                    (0, true, Warn),
                    (61, true, Warn),
                    (120, true, Keep),
                    (121, true, StandDown),
                ],
            ),
        ];
        for (what, rival, seen) in cases {
            let (mut contest, start) = (Contest::new(me, GRACE), clock::now());
            for (at, present, verdict) in *seen {
                let now = start + Duration::from_secs(*at);
                let said = contest.met(3, *rival, *present, now);
                assert_eq!(said, *verdict, "{what}, at {at}");
            }
        }
    }

    #[test]
    fn without_grace_it_is_decided_at_once_and_each_partition_for_itself() {
        let [low, me, high] = ids();
        let (mut contest, now) = (Contest::new(me, Duration::ZERO), clock::now());
        assert_eq!(contest.met(0, low, true, now), StandDown);
        assert_eq!(contest.met(1, high, true, now), Hold);
        assert_eq!(contest.met(1, low, false, now), Stale);
        assert_eq!(contest.met(1, low, true, now), StandDown);
        assert_eq!(contest.met(2, high, true, now), Hold);
        assert_eq!(contest.met(2, low, true, now), StandDown, "another comes");
        assert!(contest.is_left(0) && contest.is_left(1) && !contest.is_left(3));
        let open: Vec<_> = contest.open().collect();
        assert_eq!(open, [(0, low), (1, low), (2, low)]);
        contest.retain(|p| p == 1);
        assert_eq!(contest.open().collect::<Vec<_>>(), [(1, low)]);
    }

    #[test]
    fn what_was_left_comes_back_when_the_other_is_gone_but_not_for_ever() {
        let [low, me, _] = ids();
        let (mut contest, now) = (Contest::new(me, Duration::ZERO), clock::now());
        for _ in 0..RECOVERIES {
            for p in [4, 5] {
                assert_eq!(contest.met(p, low, true, now), StandDown);
            }
            let waits = [(4, low, Return::Wait), (5, low, Return::Wait)];
            assert_eq!(contest.recheck(|_| true), waits);
            let back = [(4, low, Return::Back), (5, low, Return::Back)];
            assert_eq!(contest.recheck(|id| id != low), back);
            assert!(!contest.leaves_any() && contest.recheck(|_| false).is_empty());
        }
        assert_eq!(contest.met(4, low, true, now), StandDown);
        assert_eq!(contest.recheck(|_| true), [(4, low, Return::Wait)]);
        assert_eq!(contest.recheck(|_| false), [(4, low, Return::Never)]);
        assert!(contest.is_left(4), "it stays away");
    }

    #[test]
    fn only_another_instance_is_a_rival() {
        let [low, me, _] = ids();
        let rivals = Rivals::new(me);
        for harmless in [
            String::new(),
            "5-0".into(),
            "garbage".into(),
            format!("5-0|{me}"),
            "5-0|who knows".into(),
            format!("no id|{low}"),
            format!("5-0|{}", InstanceId::ADMIN),
        ] {
            rivals.saw(1, harmless.as_bytes());
            assert!(!rivals.any(), "{harmless}");
        }
        rivals.saw(2, format!("5-0|{low}").as_bytes());
        rivals.saw(2, format!("7-0|{me}").as_bytes());
        assert_eq!(rivals.take(), BTreeMap::from([(2, low)]));
        assert!(!rivals.any());
    }
}
