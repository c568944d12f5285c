//! Members of every kind that come, go, die and return, on a real server whose time is moved by hand,
//! beside a simple model of what may become of each field.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::{Duration, Instant},
};

use proptest::prelude::*;

use super::{CYCLE, RELEASE, Script};
use crate::{
    clock,
    ownership::{
        renewer::{Renewal, read},
        share::{Rhythm, Share, View},
    },
    testing::{Client, PrivateServer, Reply},
    wire::{Claimant, InstanceId},
};

const N: u32 = 8;
const TTL: Duration = Duration::from_secs(90);
const RHYTHM: Rhythm = Rhythm {
    renew: Duration::from_secs(30),
    ttl: TTL,
};
/// What may really have gone by while a case runs.
const SLACK: Duration = Duration::from_secs(5);

/// What a member takes.
#[derive(Clone, Debug)]
struct Taste {
    most: u32,
    refused: BTreeSet<u32>,
    /// It follows the specification and knows nothing of incarnations.
    foreign: bool,
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

/// A field of the hash: its value and its end.
type Fields = BTreeMap<String, (String, Instant)>;

struct World {
    client: Client,
    by_field: bool,
    hash: String,
    set: String,
    began: Instant,
    /// How much time was skipped.
    skipped: Duration,
    members: Vec<Member>,
    fields: Fields,
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
            began: clock::now(),
            skipped: Duration::ZERO,
            members: Vec::new(),
            fields: Fields::new(),
        }
    }

    /// The moment it is here: time passes by being skipped.
    fn now(&self) -> Instant {
        self.began + self.skipped
    }

    fn command(&mut self, args: &[&str]) -> Reply {
        self.client.command(args).unwrap()
    }

    fn run(&mut self, script: &Script, args: &[String]) -> Reply {
        let (hash, set) = (self.hash.clone(), self.set.clone());
        let mut all = vec!["EVAL", script.text, "2", &hash, &set];
        all.extend(args.iter().map(String::as_str));
        self.command(&all)
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
            until: self.now(),
            alive: true,
            superseded: false,
        });
    }

    /// Lets time pass, for the server too.
    fn wait(&mut self, time: Duration) {
        self.skipped += time;
        let now = self.now();
        self.fields.retain(|_, (_, end)| *end > now);
        let ms = i64::try_from(time.as_millis()).unwrap();
        let (hash, set) = (self.hash.clone(), self.set.clone());
        if !self.by_field {
            for name in self.command(&["ZRANGE", &set, "0", "-1"]).items().to_vec() {
                let name = name.text();
                self.command(&["ZINCRBY", &set, &(-ms).to_string(), &name]);
            }
            return;
        }
        for name in self.command(&["HKEYS", &hash]).items().to_vec() {
            let name = name.text();
            let left = self.command(&["HPTTL", &hash, "FIELDS", "1", &name]);
            let left: i64 = left.items()[0].text().parse().unwrap();
            let left = left - ms;
            if left > 0 {
                let left = left.to_string();
                self.command(&["HPEXPIRE", &hash, &left, "FIELDS", "1", &name]);
            } else if left + ms > 0 {
                self.command(&["HDEL", &hash, &name]);
            }
        }
    }

    /// What the server has that has not ended, and how long it lasts: negative where it has no end.
    fn there(&mut self) -> BTreeMap<String, (String, i64)> {
        let (hash, set) = (self.hash.clone(), self.set.clone());
        let all = self.command(&["HGETALL", &hash]).items().to_vec();
        let time = self.command(&["TIME"]).items().to_vec();
        let number = |r: &Reply| r.text().parse::<f64>().unwrap();
        let now = number(&time[0]) * 1000.0 + number(&time[1]) / 1000.0;
        let mut there = BTreeMap::new();
        for pair in all.chunks_exact(2) {
            let (name, value) = (pair[0].text(), pair[1].text());
            let left = if self.by_field {
                let left = self.command(&["HPTTL", &hash, "FIELDS", "1", &name]);
                left.items()[0].text().parse().unwrap()
            } else {
                let score = self.command(&["ZSCORE", &set, &name]);
                match score {
                    Reply::Nil => -1,
                    score => (number(&score) - now) as i64,
                }
            };
            if left > 0 || left == -1 && !self.fields_ended(&name) {
                there.insert(name, (value, left));
            }
        }
        there
    }

    /// Whether a field without an end on the server is one that the model knows to have ended.
    fn fields_ended(&self, name: &str) -> bool {
        !self.fields.contains_key(name)
    }

    fn extended(&mut self, name: String, value: &str) {
        let end = self.now() + TTL;
        self.fields.insert(name, (value.to_owned(), end));
    }

    /// What a member passes to a renewal.
    fn arguments(
        &self,
        i: usize,
        standing: &str,
        may_claim: bool,
        certain: &BTreeSet<u32>,
    ) -> [String; 11] {
        let m = &self.members[i];
        [
            m.claimant.as_str().to_owned(),
            TTL.as_millis().to_string(),
            N.to_string(),
            m.claimant.presence(),
            if self.by_field { "f" } else { "s" }.to_owned(),
            standing.to_owned(),
            m.taste.most.to_string(),
            u8::from(may_claim).to_string(),
            numbers(certain),
            numbers(&m.share.beyond(self.now(), RHYTHM)),
            numbers(&m.taste.refused),
        ]
    }

    /// One renewal, and everything that may be said about it.
    fn cycle(&mut self, i: usize) {
        if self.members[i].taste.foreign {
            return self.foreign_cycle(i);
        }
        let now = self.now();
        let m = &self.members[i];
        let (me, presence) = (m.claimant.as_str().to_owned(), m.claimant.presence());
        let holds = !m.first && now < m.until;
        let standing = match (m.first, holds) {
            (true, _) => "first",
            (false, true) => "again",
            (false, false) => "back",
        };
        if !holds {
            self.members[i].share.ended();
        }
        let m = &self.members[i];
        let may_claim = m.share.may_claim(now, RHYTHM);
        let certain = if holds {
            m.share.held().clone()
        } else {
            BTreeSet::new()
        };
        let args = self.arguments(i, standing, may_claim, &certain);
        let taste = m.taste.clone();
        let first = m.first;
        let answer = self.run(&CYCLE, &args);
        let renewal = read(value_of(&answer)).expect("an answer of the script's");

        let live = self.fields.get(&presence).map(|(value, _)| value.clone());
        let other = live.as_ref().filter(|value| **value != me);
        let view = match (renewal, other) {
            (Renewal::Superseded(by), Some(other)) if !first => {
                assert_eq!(by.as_str(), other);
                self.members[i].superseded = true;
                self.members[i].share.ended();
                return self.compare();
            }
            (Renewal::Renewed(view), other) => {
                assert!(first || other.is_none(), "a later process has this name");
                view
            }
            (renewal, _) => panic!("{renewal:?}, though {live:?} was there"),
        };

        // What was ours is, for longer; what was certain and gone is again.
        let ours_before: BTreeSet<u32> = self.owned_by(&me);
        let restored: BTreeSet<u32> = certain
            .iter()
            .filter(|p| !self.fields.contains_key(&p.to_string()))
            .copied()
            .collect();
        assert_eq!(view.restored, restored);
        assert_eq!(view.presence_gone, standing == "again" && live.is_none());
        let may_claim = may_claim && !view.presence_gone;
        let mut claimed = view.held.clone();
        claimed.retain(|p| !ours_before.contains(p) && !restored.contains(p));
        for p in &claimed {
            assert!(may_claim, "{p} was claimed when nothing might be");
            assert!(
                !self.fields.contains_key(&p.to_string()),
                "{p} was not free"
            );
            assert!(!taste.refused.contains(p), "{p} is refused");
        }
        assert!(
            claimed.is_empty()
                || view.held.len() as u32 <= taste.most.max(ours_before.len() as u32)
        );
        assert!(view.held.is_superset(&ours_before) && view.held.is_superset(&restored));
        assert!(view.surplus.is_subset(&view.held) && (may_claim || view.surplus.is_empty()));
        self.extended(presence, &me);
        for p in &view.held {
            self.extended(p.to_string(), &me);
        }
        let takes = format!("takes:{}", self.members[i].claimant.instance());
        if taste.most < N || !taste.refused.is_empty() {
            let text = format!("{} {}", taste.most, numbers(&taste.refused));
            self.extended(takes, &text);
        } else {
            self.fields.remove(&takes);
        }
        // what had no end has one now
        let until = now + TTL;
        for (_, end) in self.fields.values_mut() {
            *end = (*end).min(until);
        }
        self.compare();
        self.compare_view(&view);

        let m = &mut self.members[i];
        (m.first, m.superseded, m.until) = (false, false, now + TTL.saturating_sub(SLACK));
        let before = m.share.held().clone();
        let step = m.share.renewed(&view, N, now, RHYTHM);
        assert!(step.taken.is_disjoint(&before) && step.lost.is_subset(&before));
        assert!(
            step.taken.is_disjoint(&restored),
            "its lane has never stopped"
        );
    }

    fn foreign_cycle(&mut self, i: usize) {
        let me = self.members[i].claimant.as_str().to_owned();
        let presence = self.members[i].claimant.presence();
        let hash = self.hash.clone();
        let (seconds, n) = (TTL.as_secs().to_string(), N.to_string());
        let args = ["EVAL", FOREIGN, "1", &hash, &me, &seconds, &n, &presence];
        let held: BTreeSet<u32> = self
            .command(&args)
            .items()
            .iter()
            .map(|r| r.text().parse().unwrap())
            .collect();
        for p in self.owned_by(&me) {
            if !held.contains(&p) {
                self.fields.remove(&p.to_string());
            }
        }
        self.extended(presence, &me);
        for p in &held {
            let before = self.fields.get(&p.to_string());
            assert!(before.is_none_or(|(value, _)| *value == me));
            self.extended(p.to_string(), &me);
        }
        self.compare();
    }

    fn owned_by(&self, value: &str) -> BTreeSet<u32> {
        let all = self.fields.iter().filter(|(_, (v, _))| v == value);
        all.filter_map(|(name, _)| name.parse().ok()).collect()
    }

    /// The server has what the model has, and for as long.
    fn compare(&mut self) {
        let there = self.there();
        let names = |of: Vec<(&String, &String)>| -> Vec<(String, String)> {
            of.into_iter()
                .map(|(n, v)| (n.clone(), v.clone()))
                .collect()
        };
        let server = names(there.iter().map(|(n, (v, _))| (n, v)).collect());
        let model = names(self.fields.iter().map(|(n, (v, _))| (n, v)).collect());
        assert_eq!(server, model);
        let now = self.now();
        for (name, (_, left)) in &there {
            if *left < 0 {
                continue; // deleted with the set, until the next renewal
            }
            let left = Duration::from_millis(left.unsigned_abs());
            let expected = self.fields[name].1 - now;
            assert!(
                left <= expected + SLACK && left + SLACK >= expected,
                "{name}: {left:?} are left, not {expected:?}"
            );
        }
    }

    fn compare_view(&self, view: &View) {
        for p in 0..N {
            let owner = self
                .fields
                .get(&p.to_string())
                .map(|(value, _)| value.as_str());
            assert_eq!(view.owners.get(&p).map(Claimant::as_str), owner);
        }
        let present = self.fields.keys().filter(|name| name.starts_with("i:"));
        assert_eq!(view.members.len(), present.count());
    }

    /// Gives up what was told to be; all of it, or some.
    fn release(&mut self, i: usize, some: bool) {
        let m = &self.members[i];
        let mut leaving: BTreeSet<u32> = (0..N).filter(|p| m.share.is_leaving(*p)).collect();
        if some {
            leaving = leaving.into_iter().take(1).collect();
        }
        if leaving.is_empty() || m.taste.foreign {
            return;
        }
        let me = m.claimant.as_str().to_owned();
        let mut args = vec![me.clone()];
        args.extend(leaving.iter().map(u32::to_string));
        self.run(&RELEASE, &args);
        for p in &leaving {
            let name = p.to_string();
            if self
                .fields
                .get(&name)
                .is_some_and(|(value, _)| *value == me)
            {
                self.fields.remove(&name);
            }
        }
        self.members[i].share.released(&leaving);
        self.compare();
    }

    /// Ends as it should: everything is given up, with what shows that it lives.
    fn leave(&mut self, i: usize) {
        let m = &mut self.members[i];
        m.alive = false;
        let (me, presence) = (m.claimant.as_str().to_owned(), m.claimant.presence());
        let takes = format!("takes:{}", m.claimant.instance());
        let mut args = vec![me.clone(), presence.clone()];
        args.extend((0..N).map(|p| p.to_string()));
        self.run(&RELEASE, &args);
        let was_ours = self
            .fields
            .get(&presence)
            .is_some_and(|(value, _)| *value == me);
        self.fields
            .retain(|name, (value, _)| *value != me && (*name != takes || !was_ours));
        self.compare();
    }

    fn alive(&self) -> Vec<usize> {
        (0..self.members.len())
            .filter(|i| self.members[*i].alive)
            .collect()
    }

    /// All live on undisturbed, for longer than anything lasts that somebody left behind.
    fn settle(&mut self) {
        for _ in 0..25 {
            for i in self.alive() {
                self.cycle(i);
                self.release(i, false);
            }
            self.wait(RHYTHM.renew);
        }
    }

    /// Everything that somebody takes is owned, evenly among our own, and stays where it is.
    fn assert_settled(&mut self) {
        let alive: Vec<usize> = self.alive();
        let live: Vec<usize> = alive
            .iter()
            .copied()
            .filter(|i| !self.members[*i].superseded)
            .collect();
        let owners = |w: &Self| -> Vec<Option<String>> {
            (0..N)
                .map(|p| w.fields.get(&p.to_string()).map(|(value, _)| value.clone()))
                .collect()
        };
        let settled = owners(self);
        let counts: BTreeMap<usize, u32> = live
            .iter()
            .map(|i| {
                (
                    *i,
                    self.owned_by(self.members[*i].claimant.as_str()).len() as u32,
                )
            })
            .collect();
        for p in 0..N {
            let Some(owner) = &settled[p as usize] else {
                for i in &live {
                    let taste = &self.members[*i].taste;
                    let takes =
                        !taste.refused.contains(&p) && counts[i] < taste.most && !taste.foreign;
                    assert!(
                        !takes,
                        "{p} is nobody's, and {i} would take it: {settled:?}"
                    );
                }
                continue;
            };
            let of_the_living = live
                .iter()
                .any(|i| self.members[*i].claimant.as_str() == owner);
            assert!(of_the_living, "{p} is {owner}'s, who is no more");
        }
        for (i, n) in &counts {
            let taste = &self.members[*i].taste;
            assert!(
                *n <= taste.most
                    && self
                        .owned_by(self.members[*i].claimant.as_str())
                        .is_disjoint(&taste.refused)
            );
        }
        let plain = |i: &&usize| {
            let t = &self.members[**i].taste;
            !t.foreign && t.most >= N && t.refused.is_empty()
        };
        if !live.is_empty() && live.iter().all(|i| plain(&i)) {
            let (most, least) = (
                counts.values().max().unwrap(),
                counts.values().min().unwrap(),
            );
            assert!(most - least <= 1, "{counts:?}");
        }
        for _ in 0..2 {
            for i in alive.clone() {
                self.cycle(i);
            }
            assert_eq!(owners(self), settled, "it stays where it is");
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
enum Event {
    Join(u32, Taste),
    Cycle(usize),
    Release(usize),
    Leave(usize),
    Die(usize),
    Wait(u64),
    Delete(u32),
}

fn tastes() -> impl Strategy<Value = Taste> {
    let plain = Taste {
        most: N,
        refused: BTreeSet::new(),
        foreign: false,
    };
    let foreign = Taste {
        foreign: true,
        ..plain.clone()
    };
    let narrow =
        (0..=N, prop::collection::btree_set(0..N, 0..6)).prop_map(|(most, refused)| Taste {
            most,
            refused,
            foreign: false,
        });
    prop_oneof![6 => Just(plain), 2 => narrow, 1 => Just(foreign)]
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => (0..5u32, tastes()).prop_map(|(id, taste)| Event::Join(id, taste)),
        16 => (0..8usize).prop_map(Event::Cycle),
        6 => (0..8usize).prop_map(Event::Release),
        1 => (0..8usize).prop_map(Event::Leave),
        1 => (0..8usize).prop_map(Event::Die),
        6 => (1..60u64).prop_map(Event::Wait),
        1 => (0..N + 2).prop_map(Event::Delete),
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
        // A server of its own is quickly started, and leaves nothing behind.
        static SERVER: std::sync::OnceLock<PrivateServer> = std::sync::OnceLock::new();
        let server = SERVER.get_or_init(|| PrivateServer::start().unwrap());
        let mut world = World::new(server);
        for event in events {
            let pick = |w: &World, i: usize| {
                let alive = w.alive();
                (!alive.is_empty()).then(|| alive[i % alive.len()])
            };
            match event {
                Event::Join(id, mut taste) => {
                    // where fields do not expire, peers cannot take part
                    taste.foreign &= world.by_field;
                    // a foreign process of a name that is taken knows of no incarnations
                    let pod = InstanceId::derive(&id.to_string());
                    let taken = world.members.iter().any(|m| m.alive && m.claimant.instance() == pod);
                    if world.alive().len() < 5 && !(taken && taste.foreign) {
                        let foreign_there = world.members.iter()
                            .any(|m| m.taste.foreign && m.alive && m.claimant.instance() == pod);
                        if !foreign_there {
                            world.join(id, taste);
                        }
                    }
                }
                Event::Cycle(i) => if let Some(i) = pick(&world, i) { world.cycle(i) },
                Event::Release(i) => if let Some(i) = pick(&world, i) { world.release(i, true) },
                Event::Leave(i) => if let Some(i) = pick(&world, i) { world.leave(i) },
                Event::Die(i) => if let Some(i) = pick(&world, i) { world.members[i].alive = false },
                Event::Wait(seconds) => world.wait(Duration::from_secs(seconds)),
                Event::Delete(what) => {
                    let (hash, set) = (world.hash.clone(), world.set.clone());
                    match what {
                        p if p < N => {
                            world.command(&["HDEL", &hash, &p.to_string()]);
                            world.fields.remove(&p.to_string());
                        }
                        N => {
                            world.command(&["DEL", &hash]);
                            world.fields.clear();
                        }
                        _ => {
                            world.command(&["DEL", &set]);
                            if !world.by_field {
                                let never = world.now() + 1000 * TTL;
                                world.fields.values_mut().for_each(|(_, end)| *end = never);
                            }
                        }
                    }
                }
            }
        }
        if world.alive().is_empty() {
            world.join(9, Taste { most: N, refused: BTreeSet::new(), foreign: false });
        }
        world.settle();
        world.assert_settled();
    }
}
