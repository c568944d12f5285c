//! What must be so after each step, and once all has come to rest.

use std::collections::{BTreeMap, BTreeSet};

use super::world::{Field, LOOK, N, SLACK, Taste, World};
use crate::{
    ownership::share::View,
    wire::{Claimant, PRESENCE},
};

impl World {
    /// The server has what the model has, and for as long.
    pub(super) fn compare(&mut self) {
        let there = self.run(LOOK, &[self.mode()]);
        let mut server = BTreeMap::new();
        for field in there.items() {
            let [name, value, left] = field.items() else {
                panic!("{field:?}");
            };
            let left = left.text().parse::<i64>().ok();
            server.insert(name.text(), (value.text(), left));
        }
        let values = |(name, field): (&String, &Field)| (name.clone(), field.value.clone());
        let model: BTreeMap<_, _> = self.fields.iter().map(values).collect();
        let found: BTreeMap<_, _> =
            (server.iter().map(|(n, f)| (n.clone(), f.0.clone()))).collect();
        assert_eq!(found, model);
        for (name, (_, left)) in &server {
            let end = self.fields[name].end;
            assert_eq!(left.is_some(), end.is_some(), "whether {name} ends");
            if let (Some(left), Some(end)) = (left, end) {
                let ahead = end.saturating_duration_since(self.now).as_millis() as i64;
                let ago = self.now.saturating_duration_since(end).as_millis() as i64;
                let off = (left - (ahead - ago)).unsigned_abs();
                let slack = SLACK.as_millis() as u64;
                assert!(off < slack, "{name} ends {off} ms too early or too late");
            }
        }
    }

    pub(super) fn compare_view(&self, view: &View, me: &str) {
        for p in 0..N {
            assert_eq!(view.owners.get(&p).map(Claimant::as_str), self.owner(p));
        }
        let present = self.fields.iter().filter(|f| f.0.starts_with(PRESENCE));
        let present: BTreeSet<&str> = present.map(|f| f.1.value.as_str()).collect();
        let members: BTreeSet<&str> = view.members.iter().map(Claimant::as_str).collect();
        assert_eq!(members, present);
        assert_eq!(view.length, self.fields.len() as u64);
        let takes = format!("takes:{}", Claimant::read(me.as_bytes()).instance());
        let others = self
            .fields
            .iter()
            .filter(|(name, f)| f.value != me && **name != takes);
        let end = others.filter_map(|(_, field)| field.end).min();
        assert_eq!(view.first_end.is_some(), end.is_some());
        if let (Some(left), Some(end)) = (view.first_end, end) {
            let expected = end.duration_since(self.now);
            assert!(left <= expected && left + SLACK >= expected, "{left:?}");
        }
    }

    /// Nobody is certain of what another is certain of, unless a third deleted the claim.
    pub(super) fn assert_one_holder(&mut self) {
        let mut settled: BTreeSet<u32> = (0..N).collect();
        for m in &self.members {
            for p in m.certain(self.now) {
                let owner = self.owner(p);
                if owner != Some(m.claimant.as_str()) {
                    settled.remove(&p);
                    assert!(
                        self.doubtful.contains(&p),
                        "{p} is {owner:?}'s, thinks not {m:?}"
                    );
                }
            }
        }
        self.doubtful.retain(|p| !settled.contains(p));
    }

    /// All live on undisturbed, for longer than anything lasts that somebody left behind.
    pub(super) fn settle(&mut self) {
        for _ in 0..25 {
            for i in self.alive() {
                self.cycle(i);
                self.release(i, false);
            }
            self.wait(30);
        }
    }

    /// Everything that somebody takes is owned, evenly among our own, and stays where it is.
    pub(super) fn assert_settled(&mut self) {
        let live = self.members.iter().filter(|m| m.alive && !m.superseded);
        let live: Vec<(&Taste, BTreeSet<u32>)> = live
            .map(|m| (&m.taste, self.owned_by(m.claimant.as_str())))
            .collect();
        for p in (0..N).filter(|p| live.iter().all(|(_, owned)| !owned.contains(p))) {
            assert_eq!(self.owner(p), None, "{p}'s owner is no more");
            for (taste, owned) in &live {
                let full = owned.len() >= taste.most as usize;
                let takes = !taste.foreign && !full && !taste.refused.contains(&p);
                assert!(!takes, "{p} is nobody's, though one takes it: {live:?}");
            }
        }
        for (taste, owned) in &live {
            assert!(owned.len() <= taste.most as usize && owned.is_disjoint(&taste.refused));
        }
        if live
            .iter()
            .all(|(taste, _)| !taste.foreign && !taste.is_narrow())
        {
            let counts = live.iter().map(|(_, owned)| owned.len());
            let spread = counts.clone().max().unwrap() - counts.min().unwrap();
            assert!(spread <= 1, "{live:?}");
        }
        let owners = |w: &Self| {
            (0..N)
                .map(|p| w.owner(p).map(str::to_owned))
                .collect::<Vec<_>>()
        };
        let settled = owners(self);
        for _ in 0..2 {
            for i in self.alive() {
                self.cycle(i);
            }
            assert_eq!(owners(self), settled, "it stays where it is");
        }
    }
}
