//! What a renewal means for whom, once more and apart from the script.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use super::world::{Field, Fields, N};
use crate::wire::{Claimant, PRESENCE};

/// One who lives, in the model of the plan.
pub(super) struct Party<'a> {
    pub(super) value: &'a str,
    pub(super) most: usize,
    pub(super) refuses: BTreeSet<u32>,
    /// What it is meant to have.
    pub(super) has: usize,
    /// What of it may be meant for another yet.
    pub(super) gives: Vec<u32>,
}

/// Who is meant to have each partition that anybody alive is meant to have.
pub(super) fn plan(fields: &Fields, me: &str, beyond: &BTreeSet<u32>) -> BTreeMap<u32, String> {
    let living = fields.iter().filter(|(name, _)| name.starts_with(PRESENCE));
    let mut living: Vec<_> = living.collect();
    living.sort_by_key(|(_, field)| &field.value);
    let is_ours = |value: &str| !Claimant::read(value.as_bytes()).incarnation().is_empty();
    let share = (N as usize).div_ceil(living.len());
    let all_ours = living.iter().all(|(_, field)| is_ours(&field.value));
    let keeps = if all_ours { 0 } else { share };
    let party = |(presence, field): (&String, &'_ Field)| {
        let takes = format!("takes:{}", &presence[PRESENCE.len()..]);
        let takes = fields.get(&takes).map(|f| f.value.split(' '));
        let mut takes = takes.into_iter().flatten().flat_map(str::parse::<u32>);
        let most = takes.next().unwrap_or(N) as usize;
        (most, takes.collect::<BTreeSet<_>>(), is_ours(&field.value))
    };
    let mut parties: Vec<Party<'_>> = Vec::new();
    for (presence, field) in living {
        let (most, refuses, ours) = party((presence, field));
        parties.push(Party {
            value: &field.value,
            most: if ours { most } else { keeps },
            refuses: if ours { refuses } else { BTreeSet::new() },
            has: 0,
            gives: Vec::new(),
        });
    }
    let mine = parties.iter().position(|m| m.value == me).unwrap();

    let mut plan: BTreeMap<u32, usize> = BTreeMap::new();
    let mut give = |parties: &mut Vec<Party<'_>>, p: u32, to: usize| {
        plan.insert(p, to);
        parties[to].has += 1;
        if to != mine || !beyond.contains(&p) {
            parties[to].gives.push(p);
        }
    };
    let takes = |m: &Party<'_>, p: u32| m.has < m.most && !m.refuses.contains(&p);
    let poorest = |parties: &Vec<Party<'_>>, p: u32| {
        let those = (0..parties.len()).filter(|i| takes(&parties[*i], p));
        those.min_by_key(|i| parties[*i].has)
    };
    let (owned, free): (Vec<u32>, _) = (0..N).partition(|p| fields.contains_key(&p.to_string()));
    for p in owned {
        let value = &fields[&p.to_string()].value;
        if let Some(owner) = parties.iter().position(|m| m.value == value) {
            give(&mut parties, p, owner);
        }
    }
    for p in free {
        let wanted = beyond.contains(&p) && takes(&parties[mine], p);
        let to = if wanted {
            Some(mine)
        } else {
            poorest(&parties, p)
        };
        if let Some(to) = to {
            give(&mut parties, p, to);
        }
    }
    // The richest who can gives one, until nobody can.
    loop {
        let mut richest: Vec<usize> = (0..parties.len()).collect();
        richest.sort_by_key(|i| Reverse(parties[*i].has));
        let gift = richest.into_iter().find_map(|i| {
            let m = &parties[i];
            m.gives.iter().enumerate().rev().find_map(|(at, p)| {
                let to = poorest(&parties, *p)?;
                let uneven = m.has > keeps && parties[to].has + 2 <= m.has;
                (m.refuses.contains(p) || m.has > m.most || uneven).then_some((i, at, to))
            })
        });
        let Some((from, at, to)) = gift else {
            break;
        };
        parties[from].has -= 1;
        let p = parties[from].gives.remove(at);
        give(&mut parties, p, to);
    }
    let value = |(p, i): (u32, usize)| (p, parties[i].value.to_owned());
    plan.into_iter().map(value).collect()
}
