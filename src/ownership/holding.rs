//! What an instance holds of the partitions that its number gives it. No clock, no server.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use crate::wire::Claimant;

/// What stands in the hash of claims.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Entries {
    pub(super) owners: BTreeMap<u32, Claimant>,
    /// Who lives.
    pub(super) members: BTreeSet<Claimant>,
}

/// An instance's partitions, from one roll call to the next.
#[derive(Debug, Default)]
pub(super) struct Holding {
    /// How many partitions the topic had when that was last looked at.
    known: u32,
    /// What is claimed.
    held: BTreeSet<u32>,
    /// What of it is to be released, when its lane has ended.
    leaving: BTreeSet<u32>,
    /// What was claimed by the last roll call that succeeded.
    written: BTreeSet<u32>,
}

/// What changes before a roll call.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Step {
    /// New here: a lane is to be started.
    pub(super) take: Vec<u32>,
    /// Another's number gives it to that one now: to be finished, stored and released.
    pub(super) give_up: Vec<u32>,
}

/// What a roll call found to be wrong.
#[derive(PartialEq, Eq, Debug, Default)]
pub(super) struct Findings {
    /// Nobody claims them.
    pub(super) unowned: Vec<u32>,
    /// We claim them, and so does another.
    pub(super) contested: Vec<(u32, Claimant)>,
}

impl Holding {
    /// Brings what is held in line with the range of our number among so many partitions. `waived` are
    /// left to another for the time being.
    ///
    /// Whatever is new is taken at once, for numbers decide and not claims. But where a topic has grown, and
    /// what was another's is ours now, that one finishes and releases it first: it is taken when `owners`, as
    /// they were seen since, do not have it.
    pub(super) fn step(
        &mut self,
        range: Range<u32>,
        partitions: u32,
        owners: &BTreeMap<u32, Claimant>,
        me: &Claimant,
        waived: impl Fn(u32) -> bool,
    ) -> Step {
        let gone = self.held.difference(&self.leaving);
        let give_up: Vec<u32> = gone.copied().filter(|p| !range.contains(p)).collect();
        self.leaving.extend(&give_up);
        let known = std::mem::replace(&mut self.known, partitions);
        let is_free = |p: u32| known == partitions && owners.get(&p).is_none_or(|o| o == me);
        let take: Vec<u32> = range
            .filter(|p| !self.held.contains(p) && !waived(*p) && (*p >= known || is_free(*p)))
            .collect();
        self.held.extend(&take);
        Step { take, give_up }
    }

    /// A roll call has found `before`, claimed what is held, and left `after`.
    ///
    /// A claim of a process that goes by our own id is no wonder where we claim anew: it is that of our
    /// predecessor. Where it stands in place of a claim that we have made, that process lives.
    pub(super) fn called(
        &mut self,
        before: &Entries,
        after: &Entries,
        me: &Claimant,
        partitions: u32,
    ) -> Findings {
        let rival = |p: u32, entries: &Entries| {
            let owner = entries.owners.get(&p).filter(|owner| *owner != me)?;
            let predecessor = owner.instance() == me.instance() && !self.written.contains(&p);
            (!predecessor).then(|| owner.clone())
        };
        let contested = self.held.iter().filter_map(|p| {
            let rival = rival(*p, before).or_else(|| rival(*p, after))?;
            Some((*p, rival))
        });
        let findings = Findings {
            contested: contested.collect(),
            unowned: (0..partitions)
                .filter(|p| !after.owners.contains_key(p))
                .collect(),
        };
        self.written.clone_from(&self.held);
        findings
    }

    /// What is claimed.
    pub(super) fn held(&self) -> &BTreeSet<u32> {
        &self.held
    }

    /// Whether this is claimed, and to stay so.
    pub(super) fn keeps(&self, partition: u32) -> bool {
        self.held.contains(&partition) && !self.leaving.contains(&partition)
    }

    /// Whether this is to be released when its lane has ended.
    pub(super) fn is_leaving(&self, partition: u32) -> bool {
        self.leaving.contains(&partition)
    }

    /// This is to be released.
    pub(super) fn leave(&mut self, partition: u32) {
        if self.held.contains(&partition) {
            self.leaving.insert(partition);
        }
    }

    /// This was released.
    pub(super) fn released(&mut self, partition: u32) {
        self.held.remove(&partition);
        self.leaving.remove(&partition);
        self.written.remove(&partition);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::InstanceId;

    fn claimant(pod: &str) -> Claimant {
        Claimant::new(InstanceId::derive(pod), pod)
    }

    fn entries(owners: &[(u32, &Claimant)]) -> Entries {
        Entries {
            owners: owners.iter().map(|(p, c)| (*p, (*c).clone())).collect(),
            members: owners.iter().map(|(_, c)| (*c).clone()).collect(),
        }
    }

    fn step(h: &mut Holding, range: Range<u32>, n: u32, owners: &Entries, me: &Claimant) -> Step {
        h.step(range, n, &owners.owners, me, |_| false)
    }

    #[test]
    fn numbers_decide_whatever_is_claimed() {
        let (me, other) = (claimant("svc-0"), claimant("svc-1"));
        let mut h = Holding::default();
        let theirs = entries(&[(0, &other), (1, &other)]);
        let first = step(&mut h, 0..2, 4, &theirs, &me);
        assert_eq!((first.take, first.give_up), (vec![0, 1], vec![]));
        let next = step(&mut h, 0..2, 4, &theirs, &me);
        assert_eq!((next.take, next.give_up), (vec![], vec![]));
    }

    #[test]
    fn what_moves_as_a_topic_grows_is_released_before_it_is_taken() {
        let (a, b) = (claimant("svc-0"), claimant("svc-1"));
        let (mut of_a, mut of_b) = (Holding::default(), Holding::default());
        let none = Entries::default();
        step(&mut of_a, 0..2, 4, &none, &a);
        step(&mut of_b, 2..4, 4, &none, &b);
        let seen = entries(&[(0, &a), (1, &a), (2, &b), (3, &b)]);

        // Of six, the third is the first one's.
        let step_of_a = step(&mut of_a, 0..3, 6, &seen, &a);
        assert_eq!(step_of_a.take, Vec::<u32>::new(), "it is the other's yet");
        let mut early = Holding::default();
        step(&mut early, 0..2, 4, &none, &a);
        let unseen = step(&mut early, 0..3, 6, &none, &a);
        assert!(unseen.take.is_empty(), "what was seen before says nothing");
        let step_of_b = step(&mut of_b, 3..6, 6, &seen, &b);
        assert_eq!(
            (step_of_b.take, step_of_b.give_up),
            (vec![4, 5], vec![2]),
            "what is new was nobody's"
        );
        assert!(of_b.is_leaving(2) && of_b.held().contains(&2));
        assert_eq!(
            step(&mut of_b, 3..6, 6, &seen, &b).give_up,
            Vec::<u32>::new(),
            "told once"
        );
        of_b.released(2);
        assert!(!of_b.held().contains(&2));
        let seen = entries(&[(0, &a), (1, &a), (3, &b)]);
        assert_eq!(step(&mut of_a, 0..3, 6, &seen, &a).take, [2]);
    }

    #[test]
    fn what_is_left_to_another_is_taken_when_that_one_is_gone() {
        let (me, other) = (claimant("svc-0"), claimant("svc-1"));
        let mut h = Holding::default();
        step(&mut h, 0..2, 2, &Entries::default(), &me);
        h.leave(1);
        h.leave(7);
        assert!(h.is_leaving(1) && !h.is_leaving(7), "only what is held");
        h.released(1);
        let theirs = entries(&[(0, &me), (1, &other)]);
        let waived = h.step(0..2, 2, &theirs.owners, &me, |p| p == 1);
        assert!(waived.take.is_empty());
        assert!(step(&mut h, 0..2, 2, &theirs, &me).take.is_empty());
        let gone = entries(&[(0, &me)]);
        assert_eq!(step(&mut h, 0..2, 2, &gone, &me).take, [1]);
    }

    #[test]
    fn another_claim_is_found_before_ours_or_after_it() {
        // What stood there before and after, whether we had claimed it, and whose claim is disputed.
        type Case<'a> = (
            &'a str,
            Option<&'a Claimant>,
            Option<&'a Claimant>,
            bool,
            Option<&'a Claimant>,
        );
        let (me, other, old) = (claimant("svc-0"), claimant("svc-1"), claimant("svc-0"));
        let foreign = Claimant::read(format!("{}|svc-0", me.instance()).as_bytes());
        let cases: &[Case<'_>] = &[
            ("nothing, then ours", None, Some(&me), false, None),
            ("ours all along", Some(&me), Some(&me), true, None),
            ("another", Some(&other), Some(&me), false, Some(&other)),
            ("another since", Some(&me), Some(&other), true, Some(&other)),
            ("a predecessor", Some(&old), Some(&me), false, None),
            ("a double", Some(&old), Some(&me), true, Some(&old)),
            ("a double since", Some(&me), Some(&old), true, Some(&old)),
            ("a peer", Some(&foreign), Some(&me), true, Some(&foreign)),
        ];
        for (what, before, after, written, rival) in cases {
            let mut h = Holding::default();
            let at =
                |c: Option<&Claimant>| entries(&c.map(|c| (0, c)).into_iter().collect::<Vec<_>>());
            step(&mut h, 0..1, 2, &Entries::default(), &me);
            if *written {
                h.called(&Entries::default(), &at(Some(&me)), &me, 2);
            }
            let found = h.called(&at(*before), &at(*after), &me, 2);
            let contested: Vec<_> = found.contested.iter().map(|(_, c)| c).collect();
            assert_eq!(
                contested,
                rival.iter().copied().collect::<Vec<_>>(),
                "{what}"
            );
            assert_eq!(found.unowned, [1]);
        }
    }
}
