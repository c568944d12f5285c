//! Members of every kind that come, go, die and return, on a real server whose time is moved by hand,
//! beside a model that says what becomes of each field, and when it ends.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use proptest::{collection::btree_set, prelude::*};

use super::{CYCLE, RELEASE, Script};
use crate::{
    clock,
    ownership::{
        renewer::{Renewal, read},
        share::{Rhythm, Share, View},
    },
    testing::{Client, PrivateServer, Reply},
    wire::{Claimant, InstanceId, PRESENCE},
};

const N: u32 = 8;
/// Time is skipped in pieces so long that what really goes by meanwhile does not count.
const PIECE: Duration = Duration::from_secs(1000);
const RHYTHM: Rhythm = Rhythm {
    renew: Duration::from_mins(500),
    ttl: Duration::from_hours(25),
};
/// What may really have gone by while a case runs.
const SLACK: Duration = Duration::from_secs(500);

/// What a member takes.
#[derive(Clone, Debug)]
struct Taste {
    most: u32,
    refused: BTreeSet<u32>,
    /// It follows the specification and knows nothing of incarnations.
    foreign: bool,
}

impl Taste {
    fn plain() -> Self {
        Self {
            most: N,
            refused: BTreeSet::new(),
            foreign: false,
        }
    }

    fn is_narrow(&self) -> bool {
        self.most < N || !self.refused.is_empty()
    }
}

#[derive(Debug)]
struct Member {
    claimant: Claimant,
    taste: Taste,
    share: Share,
    first: bool,
    /// Until when its own clock says that its claims hold.
    until: Instant,
    alive: bool,
    superseded: bool,
}

impl Member {
    fn value(&self) -> String {
        self.claimant.as_str().to_owned()
    }

    fn takes(&self) -> String {
        format!("takes:{}", self.claimant.instance())
    }

    /// What it may handle.
    fn certain(&self, now: Instant) -> BTreeSet<u32> {
        let held = self.share.held().iter().copied();
        held.filter(|_| now < self.until).collect()
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Field {
    value: String,
    /// When it ends; it was deprived of its end where there is none.
    end: Option<Instant>,
}

type Fields = BTreeMap<String, Field>;

/// What the model says of a renewal.
struct Expected {
    held: BTreeSet<u32>,
    surplus: BTreeSet<u32>,
    restored: BTreeSet<u32>,
    presence_gone: bool,
    claimed: BTreeSet<u32>,
}

struct World {
    client: Client,
    by_field: bool,
    hash: String,
    set: String,
    now: Instant,
    members: Vec<Member>,
    /// Where fields do not end by themselves, what has ended is here until the next renewal.
    fields: Fields,
    /// Claims that somebody else deleted: two members may take them for theirs for a while.
    doubtful: BTreeSet<u32>,
}

/// The renewal of the specification, word for word.
const FOREIGN: &str = r"
local o, me, ttl, n, presence = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
redis.call('HSET', o, presence, me)
redis.call('HEXPIRE', o, ttl, 'FIELDS', 1, presence)
local members = 0
for _, name in ipairs(redis.call('HKEYS', o)) do
  if string.sub(name, 1, 2) == 'i:' then members = members + 1 end
end
local cap = math.ceil(n / math.max(members, 1))
local held = {}
for p = 0, n - 1 do
  if redis.call('HGET', o, p) == me then held[#held + 1] = p end
end
while #held > cap do redis.call('HDEL', o, table.remove(held)) end
for _, p in ipairs(held) do redis.call('HEXPIRE', o, ttl, 'FIELDS', 1, p) end
for p = 0, n - 1 do
  if #held < cap and redis.call('HSETNX', o, p, me) == 1 then
    redis.call('HEXPIRE', o, ttl, 'FIELDS', 1, p)
    held[#held + 1] = p
  end
end
return held";

/// Lets so many ms pass.
const SKIP: &str = r"
local ms = tonumber(ARGV[1])
for _, name in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
  redis.call('ZINCRBY', KEYS[2], -ms, name)
end
if ARGV[2] == 's' then return end
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  local left = redis.call('HPTTL', KEYS[1], 'FIELDS', 1, name)[1]
  if left > ms then
    redis.call('HPEXPIRE', KEYS[1], left - ms, 'FIELDS', 1, name)
  elseif left >= 0 then
    redis.call('HDEL', KEYS[1], name)
  end
end";

/// All fields: name, value, and how many ms it lasts, or nothing.
const LOOK: &str = r"
local t, found = redis.call('TIME'), {}
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local left
  if ARGV[1] == 'f' then
    left = redis.call('HPTTL', KEYS[1], 'FIELDS', 1, all[i])[1]
    left = left ~= -1 and left
  else
    left = redis.call('ZSCORE', KEYS[2], all[i])
    left = left and string.format('%.0f', left - t[1] * 1000 - math.floor(t[2] / 1000))
  end
  found[#found + 1] = {all[i], all[i + 1], tostring(left or '')}
end
return found";

impl World {
    fn new(server: &PrivateServer) -> Self {
        static WORLDS: AtomicU32 = AtomicU32::new(0);
        let world = WORLDS.fetch_add(1, Relaxed);
        let mut client = server.client().unwrap();
        let probe = ["HPTTL", "none", "FIELDS", "1", "x"];
        Self {
            by_field: client.command(&probe).is_ok(),
            client,
            hash: format!("re:o:{{t{world}}}:c"),
            set: format!("re:e:{{t{world}}}:c"),
            now: clock::now(),
            members: Vec::new(),
            fields: Fields::new(),
            doubtful: BTreeSet::new(),
        }
    }

    fn mode(&self) -> &'static str {
        if self.by_field { "f" } else { "s" }
    }

    fn run(&mut self, text: &str, args: &[&str]) -> Reply {
        let mut all = vec!["EVAL", text, "2", &self.hash, &self.set];
        all.extend(args);
        self.client.command(&all).unwrap()
    }

    fn script(&mut self, script: &Script, args: &[String]) -> Reply {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.run(script.text, &args)
    }

    fn join(&mut self, id: u32, taste: Taste) {
        let (pod, id) = (format!("pod{id}"), InstanceId::derive(&id.to_string()));
        let claimant = if taste.foreign {
            Claimant::read(format!("{id}|{pod}").as_bytes())
        } else {
            Claimant::new(id, &pod)
        };
        self.members.push(Member {
            claimant,
            taste,
            share: Share::default(),
            first: true,
            until: self.now,
            alive: true,
            superseded: false,
        });
    }

    /// Lets time pass, for the server too.
    fn wait(&mut self, pieces: u32) {
        let time = PIECE * pieces;
        self.now += time;
        if self.by_field {
            self.purge();
        }
        let ms = time.as_millis().to_string();
        self.run(SKIP, &[&ms, self.mode()]);
        self.compare();
    }

    fn purge(&mut self) {
        let now = self.now;
        self.fields
            .retain(|_, field| field.end.is_none_or(|end| end > now));
    }

    fn extend(&mut self, name: String, value: &str) {
        let field = Field {
            value: value.to_owned(),
            end: Some(self.now + RHYTHM.ttl),
        };
        self.fields.insert(name, field);
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(|field| field.value.as_str())
    }

    fn owner(&self, p: u32) -> Option<&str> {
        self.value(&p.to_string())
    }

    fn owned_by(&self, value: &str) -> BTreeSet<u32> {
        let all = self.fields.iter().filter(|(_, f)| f.value == value);
        all.filter_map(|(name, _)| name.parse().ok()).collect()
    }

    /// One renewal, and everything that may be said about it.
    fn cycle(&mut self, i: usize) {
        if self.members[i].taste.foreign {
            return self.foreign_cycle(i);
        }
        self.purge();
        let (now, m) = (self.now, &mut self.members[i]);
        let holds = !m.first && now < m.until;
        if !holds {
            m.share.ended();
        }
        let standing = match (m.first, holds) {
            (true, _) => "first",
            (false, true) => "again",
            (false, false) => "back",
        };
        let certain = m.share.held().clone();
        let beyond = m.share.beyond(now, RHYTHM);
        let may_claim = m.share.may_claim(now, RHYTHM);
        let args = [
            m.value(),
            RHYTHM.ttl.as_millis().to_string(),
            N.to_string(),
            m.claimant.presence(),
            self.mode().to_owned(),
            standing.to_owned(),
            self.members[i].taste.most.to_string(),
            u8::from(may_claim).to_string(),
            numbers(&certain),
            numbers(&beyond),
            numbers(&self.members[i].taste.refused),
        ];
        let answer = self.script(&CYCLE, &args);
        let renewal = read(value_of(&answer)).expect("an answer of the script's");

        let (me, presence) = (&args[0], &args[3]);
        let live = self.value(presence).filter(|value| value != me);
        if let Some(later) = live.filter(|_| standing != "first") {
            let by = matches!(&renewal, Renewal::Superseded(by) if by.as_str() == later);
            assert!(by, "{renewal:?} instead of {later}");
            let m = &mut self.members[i];
            m.superseded = true;
            m.share.ended();
            return self.compare();
        }
        let Renewal::Renewed(view) = renewal else {
            panic!("{renewal:?} by nobody");
        };
        let before = view.held.intersection(&self.owned_by(me)).count();
        let expected = self.expect(i, standing == "again", may_claim, &certain, &beyond);
        assert_eq!(view.restored, expected.restored);
        assert_eq!(view.presence_gone, expected.presence_gone);
        assert_eq!(view.held, expected.held, "held");
        assert_eq!(view.surplus, expected.surplus, "surplus");
        self.compare();
        self.compare_view(&view, me);

        // Whatever the model says.
        let m = &mut self.members[i];
        let (claimed, taste) = (&expected.claimed, &m.taste);
        assert!(claimed.is_empty() || may_claim && expected.restored.is_empty());
        assert!(claimed.is_disjoint(&taste.refused));
        assert!(claimed.is_empty() || before + claimed.len() <= taste.most as usize);
        assert!(claimed.is_disjoint(&view.surplus), "taken to be given up");

        (m.first, m.superseded, m.until) = (false, false, now + RHYTHM.ttl.saturating_sub(SLACK));
        let step = m.share.renewed(&view, N, now, RHYTHM);
        assert!(step.taken.is_disjoint(&certain) && step.lost.is_subset(&certain));
        assert!(step.taken.is_disjoint(&view.restored), "its lane runs on");
        assert_eq!(m.share.held(), &view.held);
        self.assert_one_holder();
    }

    /// What a renewal that is not refused does to the fields, and what it says.
    fn expect(
        &mut self,
        i: usize,
        again: bool,
        may_claim: bool,
        certain: &BTreeSet<u32>,
        beyond: &BTreeSet<u32>,
    ) -> Expected {
        let m = &self.members[i];
        let (me, presence, takes) = (m.value(), m.claimant.presence(), m.takes());
        let taste = m.taste.clone();
        let presence_gone = again && !self.fields.contains_key(&presence);
        self.extend(presence, &me);
        let mut restored = certain.clone();
        restored.retain(|p| again && self.owner(*p).is_none());
        for p in &restored {
            self.extend(p.to_string(), &me);
        }
        let may_claim = may_claim && !presence_gone && restored.is_empty();
        if taste.is_narrow() {
            let text = format!("{} {}", taste.most, numbers(&taste.refused));
            self.extend(takes, &text);
        } else {
            self.fields.remove(&takes);
        }
        let end = self.now + RHYTHM.ttl;
        for field in self.fields.values_mut() {
            field.end.get_or_insert(end);
        }

        let plan = plan(&self.fields, &me, beyond);
        let mut held = self.owned_by(&me);
        let mut claimed: BTreeSet<u32> = (0..N).collect();
        claimed.retain(|p| may_claim && self.owner(*p).is_none() && plan.get(p) == Some(&me));
        held.extend(&claimed);
        for p in &held {
            self.extend(p.to_string(), &me);
        }
        let mut surplus = held.clone();
        surplus.retain(|p| may_claim && plan[p] != me);
        Expected {
            held,
            surplus,
            restored,
            presence_gone,
            claimed,
        }
    }

    fn foreign_cycle(&mut self, i: usize) {
        let (me, presence) = (self.members[i].value(), self.members[i].claimant.presence());
        let (seconds, n) = (RHYTHM.ttl.as_secs().to_string(), N.to_string());
        let answer = self.run(FOREIGN, &[&me, &seconds, &n, &presence]);
        let held = answer.items().iter().map(|r| r.text().parse().unwrap());
        let held: BTreeSet<u32> = held.collect();
        for p in self.owned_by(&me).difference(&held) {
            self.fields.remove(&p.to_string());
        }
        self.extend(presence, &me);
        for p in &held {
            assert!(self.owner(*p).is_none_or(|value| value == me));
            self.extend(p.to_string(), &me);
        }
        self.compare();
    }

    /// The server has what the model has, and for as long.
    fn compare(&mut self) {
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

    fn compare_view(&self, view: &View, me: &str) {
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
    fn assert_one_holder(&mut self) {
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

    /// Gives up what was told to be; all of it, or some.
    fn release(&mut self, i: usize, some: bool) {
        let m = &mut self.members[i];
        let leaving = (0..N).filter(|p| m.share.is_leaving(*p));
        let leaving: BTreeSet<u32> = leaving.take(if some { 1 } else { N as usize }).collect();
        if leaving.is_empty() {
            return;
        }
        m.share.released(&leaving);
        let me = m.value();
        let names: BTreeSet<String> = leaving.iter().map(u32::to_string).collect();
        self.give_up(&me, &names);
    }

    /// Ends as it should: everything is given up, with what shows that it lives.
    fn leave(&mut self, i: usize) {
        let m = &mut self.members[i];
        m.alive = false;
        m.share.ended();
        let (me, presence, takes) = (m.value(), m.claimant.presence(), m.takes());
        let mut names: BTreeSet<String> = (0..N).map(|p| p.to_string()).collect();
        names.insert(presence.clone());
        if self.value(&presence) == Some(&me) {
            self.fields.remove(&takes);
        }
        self.give_up(&me, &names);
    }

    fn give_up(&mut self, me: &str, names: &BTreeSet<String>) {
        let mut args = vec![me.to_owned()];
        args.extend(names.iter().cloned());
        let gone = self.script(&RELEASE, &args).int();
        let before = self.fields.len();
        self.fields
            .retain(|name, field| field.value != me || !names.contains(name));
        assert_eq!(gone, i64::try_from(before - self.fields.len()).ok());
        self.compare();
    }

    /// Somebody meddles with the keys.
    fn meddle(&mut self, how: &Meddling) {
        let (hash, set) = (self.hash.clone(), self.set.clone());
        let delete = |name: &str| vec!["HDEL".to_owned(), hash.clone(), name.to_owned()];
        let command = match how {
            Meddling::Claim(p) => {
                self.fields.remove(&p.to_string());
                self.doubtful.insert(*p);
                delete(&p.to_string())
            }
            Meddling::Presence(id) => {
                let id = InstanceId::derive(&id.to_string());
                let presence = format!("{PRESENCE}{id}");
                self.fields.remove(&presence);
                delete(&presence)
            }
            Meddling::End(p) => {
                let name = p.to_string();
                if let Some(field) = self.fields.get_mut(&name) {
                    field.end = None;
                }
                if self.by_field {
                    ["HPERSIST", &hash, "FIELDS", "1", &name]
                        .map(str::to_owned)
                        .to_vec()
                } else {
                    ["ZREM", &set, &name].map(str::to_owned).to_vec()
                }
            }
            Meddling::Hash => {
                self.fields.clear();
                self.doubtful.extend(0..N);
                vec!["DEL".to_owned(), hash]
            }
            Meddling::Set => {
                if self.by_field {
                    // left behind by an older server
                    ["ZADD", &set, "1", "0"].map(str::to_owned).to_vec()
                } else {
                    self.fields.values_mut().for_each(|field| field.end = None);
                    vec!["DEL".to_owned(), set]
                }
            }
        };
        self.client.command(&command).unwrap();
        self.compare();
    }

    fn alive(&self) -> Vec<usize> {
        let all = 0..self.members.len();
        all.filter(|i| self.members[*i].alive).collect()
    }

    fn pick(&self, i: usize) -> Option<usize> {
        let alive = self.alive();
        alive.get(i % alive.len().max(1)).copied()
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Join(id, mut taste) => {
                // where fields do not end by themselves, peers cannot take part
                taste.foreign &= self.by_field;
                // a foreign process knows of no incarnations, so that none shares its name
                let instance = InstanceId::derive(&id.to_string());
                let same = |m: &&Member| m.alive && m.claimant.instance() == instance;
                let mut same = self.members.iter().filter(same);
                if self.alive().len() < 5 && same.all(|m| !m.taste.foreign && !taste.foreign) {
                    self.join(id, taste);
                }
            }
            Event::Wait(pieces) => self.wait(pieces),
            Event::Meddle(how) => self.meddle(&how),
            Event::Cycle(i) => _ = self.pick(i).map(|i| self.cycle(i)),
            Event::Release(i) => _ = self.pick(i).map(|i| self.release(i, true)),
            Event::Leave(i) => _ = self.pick(i).map(|i| self.leave(i)),
            Event::Die(i) => _ = self.pick(i).map(|i| self.members[i].alive = false),
        }
    }

    /// All live on undisturbed, for longer than anything lasts that somebody left behind.
    fn settle(&mut self) {
        for _ in 0..25 {
            for i in self.alive() {
                self.cycle(i);
                self.release(i, false);
            }
            self.wait(30);
        }
    }

    /// Everything that somebody takes is owned, evenly among our own, and stays where it is.
    fn assert_settled(&mut self) {
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

/// One who lives, in the model of the plan.
struct Party<'a> {
    value: &'a str,
    most: usize,
    refuses: BTreeSet<u32>,
    /// What it is meant to have.
    has: usize,
    /// What of it may be meant for another yet.
    gives: Vec<u32>,
}

/// Who is meant to have each partition that anybody alive is meant to have.
fn plan(fields: &Fields, me: &str, beyond: &BTreeSet<u32>) -> BTreeMap<u32, String> {
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

fn numbers(set: &BTreeSet<u32>) -> String {
    let all: Vec<_> = set.iter().map(u32::to_string).collect();
    all.join(" ")
}

/// An answer as the library reads it.
fn value_of(reply: &Reply) -> redis::Value {
    match reply {
        Reply::Array(items) => redis::Value::Array(items.iter().map(value_of).collect()),
        other => redis::Value::BulkString(other.text().into_bytes()),
    }
}

#[derive(Clone, Debug)]
enum Event {
    Join(u32, Taste),
    Cycle(usize),
    Release(usize),
    Leave(usize),
    Die(usize),
    Wait(u32),
    Meddle(Meddling),
}

/// What is deleted.
#[derive(Clone, Debug)]
enum Meddling {
    Claim(u32),
    Presence(u32),
    /// That a claim ends.
    End(u32),
    Hash,
    Set,
}

fn tastes() -> impl Strategy<Value = Taste> {
    let foreign = Taste {
        foreign: true,
        ..Taste::plain()
    };
    let narrow = (0..=N, btree_set(0..N, 0..6)).prop_map(|(most, refused)| Taste {
        most,
        refused,
        foreign: false,
    });
    prop_oneof![6 => Just(Taste::plain()), 2 => narrow, 1 => Just(foreign)]
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let meddling = prop_oneof![
        4 => (0..N).prop_map(Meddling::Claim),
        2 => (0..5u32).prop_map(Meddling::Presence),
        2 => (0..N).prop_map(Meddling::End),
        1 => Just(Meddling::Hash),
        1 => Just(Meddling::Set),
    ];
    let event = prop_oneof![
        4 => (0..5u32, tastes()).prop_map(|(id, taste)| Event::Join(id, taste)),
        16 => (0..8usize).prop_map(Event::Cycle),
        6 => (0..8usize).prop_map(Event::Release),
        1 => (0..8usize).prop_map(Event::Leave),
        1 => (0..8usize).prop_map(Event::Die),
        6 => (1..60u32).prop_map(Event::Wait),
        2 => meddling.prop_map(Event::Meddle),
    ];
    prop::collection::vec(event, 1..60)
}

#[test]
fn the_server_knows_each_script_by_its_hash() {
    let server = PrivateServer::start().unwrap();
    for script in [&CYCLE, &RELEASE] {
        let known = server.command(&["SCRIPT", "LOAD", script.text]).unwrap();
        assert_eq!(known.text(), script.sha1, "{}", script.text);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn members_never_share_a_partition_and_settle_evenly(events in events()) {
        static SERVER: OnceLock<PrivateServer> = OnceLock::new();
        let server = SERVER.get_or_init(|| PrivateServer::start().unwrap());
        let mut world = World::new(server);
        for event in events {
            world.happen(event);
        }
        // Peers leave a field that has no end as it is.
        if world
            .alive()
            .iter()
            .all(|i| world.members[*i].taste.foreign)
        {
            world.join(9, Taste::plain());
        }
        world.settle();
        world.assert_settled();
    }
}
