//! Members of every kind and the server they share, beside a model of what may become of each field.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::{Duration, Instant},
};

use super::{
    super::{ALWAYS, CYCLE, RELEASE, Script},
    plan::plan,
};
use crate::{
    clock,
    ownership::{
        renewal::{Renewal, read},
        share::{Rhythm, Share},
    },
    testing::{Client, PrivateServer, Reply},
    wire::{Claimant, InstanceId, PRESENCE},
};

pub(super) const N: u32 = 8;
/// Time is skipped in pieces so long that what really goes by meanwhile does not count.
pub(super) const PIECE: Duration = Duration::from_secs(1000);
pub(super) const RHYTHM: Rhythm = Rhythm {
    renew: Duration::from_mins(500),
    ttl: Duration::from_hours(25),
};
/// What may really have gone by while a case runs.
pub(super) const SLACK: Duration = Duration::from_secs(500);

/// What a member takes.
#[derive(Clone, Debug)]
pub(super) struct Taste {
    pub(super) most: u32,
    pub(super) refused: BTreeSet<u32>,
    /// It follows the specification and knows nothing of incarnations.
    pub(super) foreign: bool,
}

impl Taste {
    pub(super) fn plain() -> Self {
        Self {
            most: N,
            refused: BTreeSet::new(),
            foreign: false,
        }
    }

    pub(super) fn is_narrow(&self) -> bool {
        self.most < N || !self.refused.is_empty()
    }
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) claimant: Claimant,
    pub(super) taste: Taste,
    pub(super) share: Share,
    pub(super) first: bool,
    /// Until when its own clock says that its claims hold.
    pub(super) until: Instant,
    pub(super) alive: bool,
    pub(super) superseded: bool,
}

impl Member {
    pub(super) fn value(&self) -> String {
        self.claimant.as_str().to_owned()
    }

    pub(super) fn takes(&self) -> String {
        format!("takes:{}", self.claimant.instance())
    }

    /// What it may handle.
    pub(super) fn certain(&self, now: Instant) -> BTreeSet<u32> {
        let held = self.share.held().iter().copied();
        held.filter(|_| now < self.until).collect()
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Field {
    pub(super) value: String,
    /// When it ends; it was deprived of its end where there is none.
    pub(super) end: Option<Instant>,
}

pub(super) type Fields = BTreeMap<String, Field>;

/// What the model says of a renewal.
pub(super) struct Expected {
    pub(super) held: BTreeSet<u32>,
    pub(super) surplus: BTreeSet<u32>,
    pub(super) restored: BTreeSet<u32>,
    pub(super) presence_gone: bool,
    pub(super) claimed: BTreeSet<u32>,
}

pub(super) struct World {
    pub(super) client: Client,
    pub(super) by_field: bool,
    pub(super) hash: String,
    pub(super) set: String,
    pub(super) now: Instant,
    pub(super) members: Vec<Member>,
    /// Where fields do not end by themselves, what has ended is here until the next renewal.
    pub(super) fields: Fields,
    /// Claims that somebody else deleted: two members may take them for theirs for a while.
    pub(super) doubtful: BTreeSet<u32>,
}

/// The renewal of the specification, word for word.
pub(super) const FOREIGN: &str = r"
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
pub(super) const SKIP: &str = r"
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
pub(super) const LOOK: &str = r"
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
    pub(super) fn new(server: &PrivateServer) -> Self {
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

    pub(super) fn mode(&self) -> &'static str {
        if self.by_field { "f" } else { "s" }
    }

    pub(super) fn run(&mut self, text: &str, args: &[&str]) -> Reply {
        let mut all = vec!["EVAL", text, "2", &self.hash, &self.set];
        all.extend(args);
        self.client.command(&all).unwrap()
    }

    pub(super) fn script(&mut self, script: &Script, args: &[String]) -> Reply {
        let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
        let always = ALWAYS.to_string();
        args.push(&always);
        self.run(script.text, &args)
    }

    pub(super) fn join(&mut self, id: u32, taste: Taste) {
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
    pub(super) fn wait(&mut self, pieces: u32) {
        let time = PIECE * pieces;
        self.now += time;
        if self.by_field {
            self.purge();
        }
        let ms = time.as_millis().to_string();
        self.run(SKIP, &[&ms, self.mode()]);
        self.compare();
    }

    pub(super) fn purge(&mut self) {
        let now = self.now;
        self.fields
            .retain(|_, field| field.end.is_none_or(|end| end > now));
    }

    pub(super) fn extend(&mut self, name: String, value: &str) {
        let field = Field {
            value: value.to_owned(),
            end: Some(self.now + RHYTHM.ttl),
        };
        self.fields.insert(name, field);
    }

    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(|field| field.value.as_str())
    }

    pub(super) fn owner(&self, p: u32) -> Option<&str> {
        self.value(&p.to_string())
    }

    pub(super) fn owned_by(&self, value: &str) -> BTreeSet<u32> {
        let all = self.fields.iter().filter(|(_, f)| f.value == value);
        all.filter_map(|(name, _)| name.parse().ok()).collect()
    }

    /// One renewal, and everything that may be said about it.
    pub(super) fn cycle(&mut self, i: usize) {
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
            let end = now + RHYTHM.ttl;
            for field in self.fields.values_mut() {
                field.end.get_or_insert(end);
            }
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
    pub(super) fn expect(
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

    pub(super) fn foreign_cycle(&mut self, i: usize) {
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

    /// Gives up what was told to be; all of it, or some.
    pub(super) fn release(&mut self, i: usize, some: bool) {
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
    pub(super) fn leave(&mut self, i: usize) {
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

    pub(super) fn give_up(&mut self, me: &str, names: &BTreeSet<String>) {
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
    pub(super) fn meddle(&mut self, how: &Meddling) {
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

    pub(super) fn alive(&self) -> Vec<usize> {
        let all = 0..self.members.len();
        all.filter(|i| self.members[*i].alive).collect()
    }

    pub(super) fn pick(&self, i: usize) -> Option<usize> {
        let alive = self.alive();
        alive.get(i % alive.len().max(1)).copied()
    }

    pub(super) fn happen(&mut self, event: Event) {
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
pub(super) enum Event {
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
pub(super) enum Meddling {
    Claim(u32),
    Presence(u32),
    /// That a claim ends.
    End(u32),
    Hash,
    Set,
}
