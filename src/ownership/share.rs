//! What one renewal after the other means for the partitions of an instance. No clock, no server.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use crate::wire::Claimant;

/// What a renewal found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct View {
    /// What is ours, what was free and is ours now included.
    pub(super) held: BTreeSet<u32>,
    /// What of it is meant for another.
    pub(super) surplus: BTreeSet<u32>,
    /// Who lives.
    pub(super) members: BTreeSet<Claimant>,
    pub(super) owners: BTreeMap<u32, Claimant>,
    /// What had been deleted though it was ours, and was claimed anew.
    pub(super) restored: BTreeSet<u32>,
    /// Our sign of life had been deleted.
    pub(super) presence_gone: bool,
    /// When something of another ends unless it is renewed.
    pub(super) first_end: Option<Duration>,
    /// How many fields the hash had afterwards, by the server's count.
    pub(super) length: u64,
    /// The server's clock.
    pub(super) now_ms: u64,
}

/// What is to be done after a renewal.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Step {
    /// New here: a lane is to be started.
    pub(super) taken: BTreeSet<u32>,
    /// Somebody else's all of a sudden: its lane must not go on.
    pub(super) lost: BTreeSet<u32>,
    /// To be finished, stored and released.
    pub(super) give_up: BTreeSet<u32>,
    /// When to renew again.
    pub(super) next: Duration,
}

/// How often what one has is renewed while all is well.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rhythm {
    pub(super) renew: Duration,
    /// How long claims last.
    pub(super) ttl: Duration,
}

impl Rhythm {
    /// How often one looks for changes in between. Who comes, goes, or gives something up changes the
    /// [length](View::length) of the hash, which costs the server next to nothing to say.
    pub(super) fn look(self) -> Duration {
        LOOK.min(self.renew / 2)
    }
}

/// See [`Rhythm::look`].
const LOOK: Duration = Duration::from_millis(500);

/// So many looks are time enough for everybody to have had one.
const LOOKS: u32 = 4;

/// For so many intervals a partition is kept that another did not come for; for twice as many each time
/// it does not come again, up to so many times.
const KEPT: u32 = 10;
const DOUBLINGS: u32 = 10;

/// How often one renews while anything is unowned.
const UNOWNED: Duration = Duration::from_secs(1);

/// What has ended at a moment is gone a moment later.
const A_MOMENT: Duration = Duration::from_millis(1);

/// An instance's memory between two renewals.
#[derive(Debug, Default)]
pub(super) struct Share {
    held: BTreeSet<u32>,
    /// Told to be given up, and still ours on the server.
    leaving: BTreeSet<u32>,
    free_since: BTreeMap<u32, Instant>,
    /// Claimed though it was meant for another, who did not come for it; kept until somebody comes or goes,
    /// or until it is time to see whether the other comes by now.
    beyond: BTreeMap<u32, Kept>,
    members: BTreeSet<Claimant>,
    /// What others had at the last renewal.
    others: BTreeSet<u32>,
    deleted: Option<Deleted>,
}

/// A partition that another did not come for.
#[derive(Debug)]
struct Kept {
    /// Unless it was given back.
    since: Option<Instant>,
    /// How often it was given back, and nobody came.
    vain: u32,
}

impl Kept {
    /// Whether it is kept yet: ever longer, so that it is nobody's ever more seldom.
    fn lasts(&self, now: Instant, rhythm: Rhythm) -> bool {
        let time = KEPT * rhythm.renew * (1 << self.vain.min(DOUBLINGS));
        self.since
            .is_some_and(|then| now.duration_since(then) < time)
    }
}

/// Claims were found deleted: others may not have made theirs again yet.
#[derive(Debug)]
struct Deleted {
    at: Instant,
    /// What others had before, and have not made again.
    missing: BTreeSet<u32>,
}

impl Share {
    /// What is held, as of the last renewal.
    pub(super) fn held(&self) -> &BTreeSet<u32> {
        &self.held
    }

    /// What may be claimed and kept whoever it is meant for: what was free for a whole renewal interval,
    /// unless others may be holding off.
    pub(super) fn beyond(&self, now: Instant, rhythm: Rhythm) -> BTreeSet<u32> {
        let since = |then: &Instant| now.duration_since(*then);
        let kept = self
            .beyond
            .iter()
            .filter(|(_, kept)| kept.lasts(now, rhythm))
            .map(|(p, _)| *p);
        let others_hold_off = self
            .deleted
            .as_ref()
            .is_some_and(|d| since(&d.at) < rhythm.ttl + rhythm.renew);
        let overdue = self
            .free_since
            .iter()
            .filter(|(_, then)| !others_hold_off && since(then) >= rhythm.renew)
            .map(|(p, _)| *p);
        kept.chain(overdue).collect()
    }

    /// Whether what is free may be claimed. After claims were deleted, what looks free may be another's who
    /// has not found out: not before all have had a look, and not while a claim that was known of would
    /// have lasted.
    pub(super) fn may_claim(&self, now: Instant, rhythm: Rhythm) -> bool {
        self.deleted.as_ref().is_none_or(|deleted| {
            let since = now.duration_since(deleted.at);
            let quiet = deleted.missing.is_empty() && since >= LOOKS * rhythm.look();
            quiet || since >= rhythm.ttl
        })
    }

    /// A renewal has succeeded.
    pub(super) fn renewed(
        &mut self,
        view: &View,
        partitions: u32,
        now: Instant,
        rhythm: Rhythm,
    ) -> Step {
        let owned = |p: &u32| view.owners.contains_key(p);
        if view.presence_gone || !view.restored.is_empty() {
            let mut missing = std::mem::take(&mut self.others);
            missing.extend(self.deleted.take().into_iter().flat_map(|d| d.missing));
            self.deleted = Some(Deleted { at: now, missing });
        }
        if let Some(deleted) = &mut self.deleted {
            deleted.missing.retain(|p| !owned(p));
        }
        let others = view.owners.keys().filter(|p| !view.held.contains(p));
        self.others = others.copied().collect();
        let beyond = self.beyond(now, rhythm);
        if self.members == view.members {
            self.beyond.retain(|p, kept| {
                kept.since.take_if(|_| !view.held.contains(p));
                view.held.contains(p) || !owned(p) // else another came
            });
            let anew = beyond.intersection(&view.held);
            for p in anew.filter(|p| !self.held.contains(p)) {
                let vain = self.beyond.get(p).map_or(0, |kept| kept.vain + 1);
                let since = Some(now);
                self.beyond.insert(*p, Kept { since, vain });
            }
        } else {
            self.beyond.clear();
        }
        self.members.clone_from(&view.members);

        let free: BTreeSet<u32> = (0..partitions)
            .filter(|p| !view.owners.contains_key(p))
            .collect();
        self.free_since.retain(|p, _| free.contains(p));
        for p in &free {
            self.free_since.entry(*p).or_insert(now);
        }

        let taken = view.held.difference(&self.held).copied().collect();
        let lost: BTreeSet<u32> = self.held.difference(&view.held).copied().collect();
        self.leaving.retain(|p| view.held.contains(p));
        let give_up: BTreeSet<u32> = view.surplus.difference(&self.leaving).copied().collect();
        self.leaving.extend(&give_up);
        self.held.clone_from(&view.held);

        let unowned = (!free.is_empty()).then_some(UNOWNED);
        let end = view.first_end.map(|end| end + A_MOMENT);
        let next = [unowned, end].into_iter().flatten().min();
        Step {
            taken,
            lost,
            give_up,
            next: next.unwrap_or(rhythm.renew).min(rhythm.renew),
        }
    }

    /// A partition is to be given up for a reason of one's own.
    pub(super) fn leave(&mut self, partition: u32) {
        if self.held.contains(&partition) {
            self.leaving.insert(partition);
        }
    }

    /// Whether a partition is to be released when its lane has ended.
    pub(super) fn is_leaving(&self, partition: u32) -> bool {
        self.leaving.contains(&partition)
    }

    /// Partitions were released, after their lanes had ended. To be called by the thread that renews,
    /// between two renewals: one under way would see as ours what no longer is.
    pub(super) fn released(&mut self, partitions: &BTreeSet<u32>) {
        for p in partitions {
            self.held.remove(p);
            self.leaving.remove(p);
            if let Some(kept) = self.beyond.get_mut(p) {
                kept.since = None;
            }
        }
    }

    /// Nothing is held any more, whatever the server says. Returns what was.
    pub(super) fn ended(&mut self) -> BTreeSet<u32> {
        std::mem::take(self).held
    }

    /// The pause after a renewal that failed.
    pub(super) fn failed(rhythm: Rhythm) -> Duration {
        UNOWNED.min(rhythm.renew)
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::btree_set, prelude::*};

    use super::*;
    use crate::clock;

    const RENEW: Duration = Duration::from_secs(10);
    const RHYTHM: Rhythm = Rhythm {
        renew: RENEW,
        ttl: Duration::from_secs(30),
    };

    fn set(numbers: &[u32]) -> BTreeSet<u32> {
        numbers.iter().copied().collect()
    }

    fn member(name: &str) -> Claimant {
        Claimant::read(name.as_bytes())
    }

    /// What a renewal finds where we hold these, another holds those, and these live.
    fn view(held: &[u32], others: &[u32], members: &[&str]) -> View {
        let owned = |who, partitions: &[u32]| -> Vec<_> {
            partitions.iter().map(|p| (*p, member(who))).collect()
        };
        View {
            held: set(held),
            owners: [owned("me", held), owned("other", others)]
                .into_iter()
                .flatten()
                .collect(),
            members: members.iter().map(|m| member(m)).collect(),
            ..View::default()
        }
    }

    fn step(taken: &[u32], lost: &[u32], give_up: &[u32], next: Duration) -> Step {
        Step {
            taken: set(taken),
            lost: set(lost),
            give_up: set(give_up),
            next,
        }
    }

    /// One story in steps: a moment in seconds, what the renewal found, and what is to be done.
    #[test]
    fn lanes_start_and_stop_as_renewals_find_it() {
        let start = clock::now();
        let mut share = Share::default();
        let second = Duration::from_secs(1);
        let mut surplus = view(&[0, 1, 2, 3], &[], &["me", "other"]);
        surplus.surplus = set(&[2, 3]);
        let mut less = view(&[0, 1, 3], &[2], &["me", "other"]);
        less.surplus = set(&[1, 3]);
        let mut dying = view(&[0], &[1, 2, 3], &["me", "other"]);
        dying.first_end = Some(Duration::from_millis(2300));
        let story: [(u64, View, Step); 7] = [
            (
                0,
                view(&[0, 1], &[], &["me"]),
                step(&[0, 1], &[], &[], second),
            ),
            (
                1,
                view(&[0, 1, 2, 3], &[], &["me"]),
                step(&[2, 3], &[], &[], RENEW),
            ),
            (2, surplus.clone(), step(&[], &[], &[2, 3], RENEW)),
            // still finishing: nothing is told twice
            (3, surplus, step(&[], &[], &[], RENEW)),
            // 2 is another's now, though its lane has not ended; 1 is to follow
            (4, less, step(&[], &[2], &[1], RENEW)),
            // the others' claims have an end that is near
            (
                5,
                dying,
                step(&[], &[1, 3], &[], Duration::from_millis(2301)),
            ),
            (
                6,
                view(&[], &[0, 1, 2, 3], &["other"]),
                step(&[], &[0], &[], RENEW),
            ),
        ];
        for (at, view, step) in story {
            let now = start + Duration::from_secs(at);
            assert_eq!(share.renewed(&view, 4, now, RHYTHM), step, "at {at} s");
            assert_eq!(share.held(), &view.held, "at {at} s");
        }
    }

    #[test]
    fn what_was_released_may_come_back_and_what_was_told_is_forgotten() {
        let now = clock::now();
        let mut share = Share::default();
        let mut too_much = view(&[0, 1], &[], &["me", "other"]);
        too_much.surplus = set(&[1]);
        assert_eq!(share.renewed(&too_much, 2, now, RHYTHM).give_up, set(&[1]));
        share.released(&set(&[1]));
        assert_eq!(share.held(), &set(&[0]), "not lost, but given up");
        let step = share.renewed(&too_much, 2, now, RHYTHM);
        assert_eq!(
            (step.taken, step.lost, step.give_up),
            (set(&[1]), set(&[]), set(&[1]))
        );
    }

    #[test]
    fn an_end_forgets_all() {
        let now = clock::now();
        let mut share = Share::default();
        let half = view(&[0, 1], &[], &["me"]);
        share.renewed(&half, 4, now, RHYTHM);
        assert_eq!(share.ended(), set(&[0, 1]));
        assert_eq!(share.ended(), set(&[]));
        let later = now + RENEW;
        assert_eq!(
            share.beyond(later, RHYTHM),
            set(&[]),
            "who knows who had it since"
        );
        assert_eq!(share.renewed(&half, 4, later, RHYTHM).taken, set(&[0, 1]));
    }

    #[test]
    fn what_nobody_comes_for_is_claimed_after_an_interval_and_kept_until_somebody_comes_or_goes() {
        let now = clock::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        let mut share = Share::default();
        share.renewed(&view(&[0], &[1], &["me", "other"]), 4, now, RHYTHM);
        assert_eq!(share.beyond(at(9), RHYTHM), set(&[]));
        // 2 was somebody's in between, so its time begins anew
        share.renewed(&view(&[0], &[1, 2], &["me", "other"]), 4, at(9), RHYTHM);
        assert_eq!(share.beyond(at(10), RHYTHM), set(&[3]));
        share.renewed(&view(&[0, 3], &[1], &["me", "other"]), 4, at(10), RHYTHM);
        assert_eq!(share.beyond(at(19), RHYTHM), set(&[3]));
        assert_eq!(share.beyond(at(20), RHYTHM), set(&[2, 3]));
        share.renewed(&view(&[0, 3], &[1, 2], &["me", "other"]), 4, at(20), RHYTHM);
        assert_eq!(share.beyond(at(99), RHYTHM), set(&[3]));
        // as many as before, and yet not the same
        share.renewed(&view(&[0, 3], &[1, 2], &["me", "third"]), 4, at(99), RHYTHM);
        assert_eq!(share.beyond(at(199), RHYTHM), set(&[]));
    }

    /// After a deletion nothing is claimed before all have had a look, nor while a claim that was known of
    /// and has not come back would have lasted; and what is free then is nobody's only later.
    #[test]
    fn after_a_deletion_what_looks_free_is_left_alone_for_a_while() {
        let now = clock::now();
        let at = |ms| now + Duration::from_millis(ms);
        let deleted = || {
            let mut share = Share::default();
            share.renewed(&view(&[0], &[1], &["me", "other"]), 3, now, RHYTHM);
            let mut gone = view(&[0], &[], &["me"]);
            gone.restored = set(&[0]);
            gone.presence_gone = true;
            let step = share.renewed(&gone, 3, now, RHYTHM);
            assert_eq!(
                (step.taken, step.lost),
                (set(&[]), set(&[])),
                "its lane runs on"
            );
            share
        };
        let mut back = deleted();
        back.renewed(&view(&[0], &[1], &["me", "other"]), 3, at(500), RHYTHM);
        for (ms, may) in [(500, false), (1999, false), (2000, true)] {
            assert_eq!(back.may_claim(at(ms), RHYTHM), may, "all are back, {ms} ms");
        }
        let missing = deleted();
        for (ms, may) in [(2000, false), (29_999, false), (30_000, true)] {
            assert_eq!(missing.may_claim(at(ms), RHYTHM), may, "1 is not, {ms} ms");
        }
        for (ms, beyond) in [(39_999, set(&[])), (40_000, set(&[1, 2]))] {
            assert_eq!(missing.beyond(at(ms), RHYTHM), beyond, "{ms} ms");
        }
        // what is deleted once more counts from then
        let mut again = deleted();
        let mut gone = view(&[0], &[], &["me"]);
        gone.restored = set(&[0]);
        again.renewed(&gone, 3, at(20_000), RHYTHM);
        assert!(!again.may_claim(at(49_999), RHYTHM) && again.may_claim(at(50_000), RHYTHM));
    }

    #[test]
    fn what_was_claimed_beyond_is_tried_again_on_the_other_after_ten_intervals() {
        let now = clock::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        let mut share = Share::default();
        share.renewed(&view(&[0], &[], &["me", "other"]), 2, now, RHYTHM);
        share.renewed(&view(&[0, 1], &[], &["me", "other"]), 2, at(10), RHYTHM);
        assert_eq!(share.beyond(at(109), RHYTHM), set(&[1]));
        assert_eq!(share.beyond(at(110), RHYTHM), set(&[]));
    }

    /// Each time in vain, it is kept for twice as long, until somebody comes or goes.
    #[test]
    fn what_another_never_takes_is_nobodys_ever_more_seldom() {
        let now = clock::now();
        let (mut share, mut of_nobody) = (Share::default(), 0);
        let mut held = vec![0, 1];
        let members = |n| if n < 1000 { "other" } else { "third" };
        for n in 0..1012 {
            let at = now + n * RENEW;
            let live = ["me", members(n)];
            share.renewed(&view(&held, &[], &live), 2, at, RHYTHM);
            // the other is meant to have 1, and never comes for it
            held = vec![0];
            held.extend(share.beyond(at + RENEW, RHYTHM));
            of_nobody += u32::from(held.len() == 1);
        }
        assert!((8..=10).contains(&of_nobody), "{of_nobody} times of 1012");
        assert_eq!(held, [0], "anew after ten intervals");
    }

    #[test]
    fn trouble_shortens_the_pause_and_nothing_prolongs_it() {
        let now = clock::now();
        let ms = Duration::from_millis;
        for (free, first_end, renew, next) in [
            (false, None, 10_000, 10_000),
            (false, Some(20_000), 10_000, 10_000),
            (false, Some(0), 10_000, 1),
            (true, None, 10_000, 1000),
            (true, Some(20_000), 10_000, 1000),
            (true, Some(10), 10_000, 11),
            (true, None, 100, 100),
            (false, Some(150), 100, 100),
        ] {
            let mut view = view(&[0], if free { &[] } else { &[1] }, &["me"]);
            view.first_end = first_end.map(ms);
            let rhythm = Rhythm {
                renew: ms(renew),
                ttl: 3 * ms(renew),
            };
            let step = Share::default().renewed(&view, 2, now, rhythm);
            assert_eq!(step.next, ms(next), "{free} {first_end:?} {renew}");
            assert_eq!(Share::failed(rhythm), ms(renew.min(1000)));
        }
    }

    /// Something that happens to a share, with what the model below needs to know.
    #[derive(Clone, Debug)]
    enum Event {
        Renewed {
            held: BTreeSet<u32>,
            surplus: BTreeSet<u32>,
            others: BTreeSet<u32>,
            members: u8,
        },
        Released(BTreeSet<u32>),
        Ended,
    }

    fn events() -> impl Strategy<Value = Vec<(u64, Event)>> {
        let some = || btree_set(0u32..8, 0..8);
        let event = prop_oneof![
            6 => (some(), some(), some(), 0u8..3)
                .prop_map(|(held, surplus, others, members)| Event::Renewed { held, surplus, others, members }),
            2 => some().prop_map(Event::Released),
            1 => Just(Event::Ended),
        ];
        prop::collection::vec((0u64..8, event), 1..40)
    }

    proptest! {
        /// Whatever a server answers: a lane is started once, stopped once, and asked to end once.
        #[test]
        fn lanes_are_told_each_thing_once(events in events()) {
            let mut now = clock::now();
            let mut share = Share::default();
            // the lanes there are, and whether each was asked to end
            let mut lanes: BTreeMap<u32, bool> = BTreeMap::new();
            let mut free_for: BTreeMap<u32, u64> = (0..8).map(|p| (p, 0)).collect();
            for (seconds, event) in events {
                now += Duration::from_secs(seconds);
                for age in free_for.values_mut() {
                    *age += seconds;
                }
                match event {
                    Event::Renewed { held, surplus, others, members } => {
                        let others: Vec<u32> = others.difference(&held).copied().collect();
                        let held: Vec<u32> = held.into_iter().collect();
                        let members = ["a", "b", "c"][usize::from(members)];
                        let mut view = view(&held, &others, &[members]);
                        view.surplus = surplus.intersection(&view.held).copied().collect();
                        let may_hold: BTreeSet<u32> = share.beyond(now, RHYTHM);
                        let step = share.renewed(&view, 8, now, RHYTHM);
                        for p in step.taken {
                            prop_assert!(lanes.insert(p, false).is_none(), "{p} was started twice");
                        }
                        for p in step.lost {
                            prop_assert!(lanes.remove(&p).is_some(), "{p} was not there to lose");
                        }
                        for p in step.give_up {
                            prop_assert_eq!(lanes.insert(p, true), Some(false));
                        }
                        let asked: BTreeSet<u32> = lanes.iter().filter(|l| *l.1).map(|l| *l.0).collect();
                        prop_assert!(asked.is_superset(&view.surplus));
                        prop_assert!(step.next <= RENEW);
                        free_for.retain(|p, _| !view.owners.contains_key(p));
                        for p in (0..8).filter(|p| !view.owners.contains_key(p)) {
                            free_for.entry(p).or_insert(0);
                        }
                        let kept = share.beyond(now, RHYTHM);
                        let kept: BTreeSet<u32> = kept.intersection(&view.held).copied().collect();
                        prop_assert!(kept.is_subset(&may_hold), "{kept:?} of {may_hold:?}");
                        let free = |p: &u32| !view.owners.contains_key(p);
                        prop_assert!(share.beyond.keys().all(|p| view.held.contains(p) || free(p)));
                    }
                    Event::Released(some) => {
                        let ended = some.iter().filter(|p| lanes.get(p) == Some(&true)).copied().collect();
                        share.released(&ended);
                        lanes.retain(|p, _| !ended.contains(p));
                    }
                    Event::Ended => {
                        let held: Vec<u32> = share.ended().into_iter().collect();
                        prop_assert_eq!(held, lanes.keys().copied().collect::<Vec<_>>());
                        lanes.clear();
                        free_for.clear();
                    }
                }
                let held: Vec<u32> = share.held().iter().copied().collect();
                prop_assert_eq!(held, lanes.keys().copied().collect::<Vec<_>>());
                for p in share.beyond(now, RHYTHM) {
                    let free = free_for.get(&p).is_some_and(|age| *age >= RENEW.as_secs());
                    prop_assert!(free || share.beyond.contains_key(&p), "{p} is not for us yet");
                }
            }
        }
    }
}
