//! Members of groups that are killed, frozen or cut off, and servers that are killed under them: every message is
//! handled or a dead letter, what is to be handed over again is somewhere at any moment, and nothing is left behind.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use streamlane::{
    Consumer, Delivery, HandlerResult, Message, ReplayTo, StreamId,
    testing::{
        Aof, Event, Fault, Kind, PrivateServer, Relay, Reply, Report, Rules, Way, eventually,
    },
};

use crate::{
    CONSUMER, PARTITIONS, PATIENCE, SLACK, TOPIC,
    dice::Dice,
    leftovers,
    load::Load,
    number_from_env, open,
    proof::Logs,
    turn,
    worker::{Job, Keeps, Lot, Queue, RETRIES, Worker},
};

/// How long what is finished waits for its acknowledgement.
const INTERVAL: Duration = Duration::from_millis(50);
const TTL: Duration = Duration::from_millis(2500);
const RENEW: Duration = Duration::from_millis(250);
/// Another group of the topic, whose handler never fails.
pub const OTHERS: &str = "audit";

#[test]
fn killed_workers_lose_nothing_and_what_fails_is_tried_as_often_as_it_may_be() {
    let _turn = turn();
    let kills = number_from_env("STREAMLANE_CRASH_KILLS").unwrap_or(14);
    let mut dice = Dice::new("workers");
    let scene = Scene::new(&PrivateServer::start().unwrap().into());
    let members = 2 + dice.below(7) as usize;
    // A successor goes by the name of its predecessor, or by another.
    let life = |n: u64, at: usize| Job {
        pod: format!("pod-{at}-{}", n / 3),
        ..scene.job(format!("life-{n}"))
    };
    let mut all: Vec<_> = (0..members)
        .map(|at| Worker::start(life(1_000_000 + at as u64, at)))
        .collect();
    all.iter().for_each(Worker::await_ready);
    for n in 0..kills {
        dice.wait_ms(100..500);
        let at = dice.below(members as u64) as usize;
        mem::replace(&mut all[at], Worker::start(life(n, at))).kill();
        scene.every_failure_has_a_successor();
    }
    scene.settle(all);
    let report = scene.check("workers");
    let needed = scene.messages(|_| true).into_values();
    let needed = needed.map(|key| match Lot::of(&key) {
        Lot::Good | Lot::Hopeless => 1,
        Lot::GoodLater => 2,
        Lot::Bad => 1 + u64::from(RETRIES),
    });
    let needed = needed.sum::<u64>();
    assert!(
        report.counts.started > needed,
        "the kills hit lanes at work"
    );
}

#[test]
fn workers_that_were_given_up_for_dead_change_nothing_when_they_wake() {
    let _turn = turn();
    let freezes = number_from_env("STREAMLANE_CRASH_KILLS").map_or(2, |kills| kills.div_ceil(10));
    let mut dice = Dice::new("frozen workers");
    let scene = Scene::new(&PrivateServer::start().unwrap().into());
    let all: Vec<_> = (0..3)
        .map(|n| Worker::start(scene.job(format!("worker-{n}"))))
        .collect();
    all.iter().for_each(Worker::await_ready);
    for n in 0..freezes {
        dice.wait_ms(100..400);
        let zombie = &all[n as usize % 3];
        zombie.freeze();
        dice.wait_ms(2900..3400);
        scene.every_failure_has_a_successor();
        zombie.thaw();
        dice.wait_ms(100..300);
        scene.every_failure_has_a_successor();
    }
    scene.settle(all);
    scene.check("frozen workers");
}

/// The server is killed, its answers are lost, or all connections are cut.
#[test]
fn outages_under_workers_lose_nothing_and_try_nothing_too_often() {
    let _turn = turn();
    let outages = number_from_env("STREAMLANE_CRASH_OUTAGES").unwrap_or(9);
    let mut dice = Dice::new("workers through outages");
    let server = PrivateServer::builder().aof(Aof::Always).start().unwrap();
    let relay = Relay::to(&server).unwrap();
    let scene = Scene::new(&Arc::new(server));
    let member = |n: u64| Job {
        url: relay.url(),
        // Nobody is given up for dead meanwhile.
        lease: (Duration::from_secs(20), RENEW),
        ..scene.job(format!("worker-{n}"))
    };
    let all: Vec<_> = (0..3).map(|n| Worker::start(member(n))).collect();
    all.iter().for_each(Worker::await_ready);
    for n in 0..outages {
        dice.wait_ms(200..500);
        match n % 3 {
            0 => {
                scene.server.kill();
                dice.wait_ms(0..100);
                scene.server.restart().unwrap();
            }
            1 => {
                relay.fault_existing(Way::Replies, Fault::Swallow);
                dice.wait_ms(50..300);
                relay.heal();
                relay.close();
            }
            _ => relay.reset(),
        }
        scene.load.lock().as_ref().unwrap().resume();
        scene.every_failure_has_a_successor();
    }
    scene.settle(all);
    let report = scene.check("workers through outages");
    // Nobody died, so there is no excuse.
    assert!(report.doubles.is_empty(), "{report}");
}

#[test]
fn killed_owners_of_queues_keep_the_order_of_each_key() {
    let _turn = turn();
    let kills = number_from_env("STREAMLANE_CRASH_KILLS").unwrap_or(12);
    let mut dice = Dice::new("owners of queues");
    let server = PrivateServer::start().unwrap();
    let logs = Logs::of(&server);
    let streams = open(&server.url());
    let load = Load::start(&streams, &logs.published, Duration::from_millis(50));
    let life = |n: u64| Job {
        queue: Some(Queue::Leased),
        keeps: Keeps::Within(INTERVAL),
        parks: true,
        batches: n % 2 == 1,
        waits_for: 0,
        work: Duration::from_micros(500),
        lease: (TTL, RENEW),
        ..Job::new(&server, &logs, format!("life-{n}"))
    };
    let mut all = [0, 1].map(|n| Worker::start(life(1_000_000 + n)));
    all.iter().for_each(Worker::await_ready);
    for n in 0..kills {
        dice.wait_ms(100..700);
        let at = dice.below(2) as usize;
        let next = Worker::start(life(n));
        if dice.one_in(3) {
            // it leaves in good order, and hands over
            let mut leaves = mem::replace(&mut all[at], next);
            leaves.await_ready();
            leaves.tell("stop");
            leaves.await_end();
        } else {
            mem::replace(&mut all[at], next).kill();
        }
    }
    eprintln!("owners of queues: {}", load.finish());
    let groups = Groups(&server);
    groups.wait_until_all_is_done(CONSUMER);
    let letters = groups.letters();
    let failing: usize = groups.messages(&|key: &[u8]| key.ends_with(b"-0")).len();
    assert_eq!(letters.len(), failing, "each once");
    groups.wait_until_the_dead_are_forgotten(2, &[CONSUMER]);
    for mut worker in all {
        worker.await_ready();
        worker.tell("stop");
        worker.await_end();
    }
    leftovers::only_what_is_documented(&server, TOPIC, &[CONSUMER]);
    logs.check(Rules {
        doubles: INTERVAL + SLACK,
        ..Rules::default()
    });
}

/// A topic under load, one group of workers that come and go and another that stays.
pub struct Scene {
    pub server: Arc<PrivateServer>,
    logs: Logs,
    load: Mutex<Option<Load>>,
    others: Consumer,
    others_logs: Logs,
}

impl Scene {
    pub fn new(server: &Arc<PrivateServer>) -> Self {
        let logs = Logs::of(server);
        let streams = open(&server.url());
        let others_logs = Logs {
            published: logs.published.clone(),
            handled: Logs::named(server.dir(), "others-").handled,
        };
        let log = Logs::recorder(&others_logs.handled);
        let others = streams.consumer(TOPIC).name(OTHERS);
        let others = others
            .delivery(Delivery::WorkQueue)
            .persist_interval(INTERVAL);
        let others = others.shared(move |m: &Message<'_>| -> HandlerResult {
            log.record(&event(
                Kind::Handled,
                m.partition(),
                m.id(),
                m.key().as_bytes(),
            ))?;
            Ok(())
        });
        Self {
            others: others.start().unwrap(),
            load: Some(Load::start(
                &streams,
                &logs.published,
                Duration::from_millis(80),
            ))
            .into(),
            server: Arc::clone(server),
            logs,
            others_logs,
        }
    }

    pub fn job(&self, instance: String) -> Job {
        Job {
            queue: Some(Queue::Work),
            keeps: Keeps::Within(INTERVAL),
            waits_for: 0,
            work: Duration::from_millis(4),
            lease: (TTL, RENEW),
            ..Job::new(&self.server, &self.logs, instance)
        }
    }

    /// At this moment every message that fails whenever it is handled is still to be read, in somebody's hands, about
    /// to be handed over again, or a dead letter.
    #[track_caller]
    pub fn every_failure_has_a_successor(&self) {
        const LOOK: &str = r"
local there, missing = {}, {}
local function note(fields, from)
  local p, first
  for i = from, #fields - 1, 2 do
    if fields[i] == '!partition' then p = p or fields[i + 1] end
    if fields[i] == '!first' then first = first or fields[i + 1] end
  end
  there[p .. ' ' .. first] = true
end
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+')) do note(entry[2], 1) end
for _, item in ipairs(redis.call('HVALS', KEYS[2])) do note(cmsgpack.unpack(item), 4) end
for _, letter in ipairs(redis.call('XRANGE', KEYS[3], '-', '+')) do note(letter[2], 1) end
local n = 0
for at = 4, #KEYS do
  local p, last = at - 4, nil
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[at])) do
    if group[2] == ARGV[1] then last = group[8] end
  end
  for _, entry in ipairs(redis.call('XPENDING', KEYS[at], ARGV[1], '-', '+', 1000000)) do
    there[p .. ' ' .. entry[1]] = true
  end
  for _, entry in ipairs(last and redis.call('XRANGE', KEYS[at], '-', last) or {}) do
    local fields = entry[2]
    for i = 1, #fields - 1, 2 do
      if fields[i] == 'k' and string.sub(fields[i + 1], -2) == '-0' then
        n = n + 1
        if not there[p .. ' ' .. entry[1]] then missing[#missing + 1] = p .. ' ' .. entry[1] end
      end
    end
  end
end
return {n, missing}";
        let key = |kind: &str| format!("re:{kind}:{{{TOPIC}}}:{CONSUMER}");
        let mut keys = vec![key("rt"), key("ri"), key("d")];
        keys.extend((0..PARTITIONS).map(stream));
        let n = keys.len().to_string();
        let mut look = vec!["EVAL", LOOK, &n];
        look.extend(keys.iter().map(String::as_str));
        look.push(CONSUMER);
        let look = self.server.command(&look).unwrap();
        let missing: Vec<_> = look.items()[1].items().iter().map(Reply::text).collect();
        assert!(missing.is_empty(), "acknowledged, and nowhere: {missing:?}");
    }

    /// Ends the load, and waits until everything is done and the dead are forgotten; then the members end.
    #[track_caller]
    pub fn settle(&self, members: Vec<Worker>) {
        let load = self.load.lock().take().unwrap();
        eprintln!("{}", load.finish());
        let groups = Groups(&self.server);
        groups.wait_until_all_is_done(CONSUMER);
        groups.wait_until_all_is_done(OTHERS);
        self.every_failure_has_a_successor();
        groups.wait_until_the_dead_are_forgotten(members.len(), &[CONSUMER]);
        groups.wait_until_the_dead_are_forgotten(1, &[OTHERS]);
        for mut worker in members {
            worker.await_ready();
            worker.tell("stop");
            worker.await_end();
        }
    }

    /// Judges what was done, and replays what was not.
    #[track_caller]
    pub fn check(&self, what: &str) -> Report {
        let groups = Groups(&self.server);
        let letters = groups.letters();
        let record = Logs::recorder(&self.logs.handled);
        for ((partition, id), key) in &letters {
            record
                .record(&event(Kind::Parked, *partition, *id, key))
                .unwrap();
        }
        let expected = self.messages(|key| matches!(Lot::of(key), Lot::Bad | Lot::Hopeless));
        assert_eq!(
            letters, expected,
            "{what}: one letter for each that fails for good"
        );
        self.tries(what);
        let report = self.logs.check(Rules {
            ordered: false,
            exclusive: false,
            // judged below
            doubles: Duration::MAX,
            ..Rules::default()
        });
        let ended: BTreeSet<String> = self.ended();
        for double in &report.doubles {
            let late = double.exposure > INTERVAL + SLACK;
            // Whoever was frozen with a call at its end had no way to know.
            let woke = ended.contains(&*double.again_by.instance);
            assert!(!late || woke, "{what}: {double}");
        }

        self.replay(&groups, &letters);
        // Nothing that was handed over again or replayed came to the others.
        self.others_logs.check(Rules {
            ordered: false,
            exclusive: false,
            ..Rules::default()
        });
        drop(self.others.stop());
        leftovers::only_what_is_documented(&self.server, TOPIC, &[CONSUMER, OTHERS]);
        report
    }

    /// The messages whose key is such, by partition and id: all that are there, and all that were.
    fn messages(&self, wanted: impl Fn(&[u8]) -> bool) -> BTreeMap<(u32, StreamId), Vec<u8>> {
        let mut all = Groups(&self.server).messages(&wanted);
        self.logs.each_published(|e| {
            if e.kind == Kind::Published && wanted(&e.key) {
                all.insert((e.partition, StreamId::new(e.id.0, e.id.1)), e.key.to_vec());
            }
        });
        all
    }

    /// The instances that were killed, or frozen.
    fn ended(&self) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        self.logs.each_handled(|e| {
            if e.kind == Kind::Killed {
                all.insert(e.instance.to_string());
            }
        });
        all
    }

    /// A message that fails whenever it is handled is tried so often, and once more at most for each member that
    /// ended with it in its hands.
    #[track_caller]
    fn tries(&self, what: &str) {
        let ended = self.ended();
        let mut calls: BTreeMap<_, Vec<String>> = BTreeMap::new();
        self.logs.each_handled(|e| {
            if e.kind == Kind::Started && Lot::of(&e.key) == Lot::Bad {
                let id = StreamId::new(e.id.0, e.id.1);
                let of = calls.entry((e.partition, id)).or_default();
                of.push(e.instance.to_string());
            }
        });
        let bad = self.messages(|key| Lot::of(key) == Lot::Bad);
        assert!(bad.len() > 20, "{what}: {}", bad.len());
        let mut more = 0;
        for place in bad.keys() {
            let by = calls.get(place).map_or(&[][..], |by| by);
            let most: BTreeSet<_> = by.iter().filter(|by| ended.contains(*by)).collect();
            let fewest = 1 + RETRIES as usize;
            let right = fewest..=fewest + most.len();
            assert!(
                right.contains(&by.len()),
                "{what}: {place:?} was tried by {by:?}"
            );
            more += by.len() - fewest;
        }
        eprintln!(
            "{what}: {} messages failed {} times each, {more} calls were in vain",
            bad.len(),
            1 + RETRIES
        );
    }

    /// Replays every letter to the consumer whose it is: it comes once, as what it was.
    #[track_caller]
    fn replay(&self, groups: &Groups<'_>, letters: &BTreeMap<(u32, StreamId), Vec<u8>>) {
        let before = groups.lengths();
        let streams = open(&self.server.url());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&seen);
        let consumer = streams.consumer(TOPIC).name(CONSUMER);
        let consumer = consumer
            .delivery(Delivery::WorkQueue)
            .shared(move |m: &Message<'_>| {
                let what = ((m.partition(), m.id()), m.key().as_bytes().to_vec());
                all.lock().push((what, m.body().to_vec()));
                Ok(())
            });
        let consumer = consumer.start().unwrap();
        let admin = streams.admin().dead_letters(TOPIC, CONSUMER);
        let done = admin.replay_all(ReplayTo::ThisConsumer, 100_000).unwrap();
        assert_eq!(done.replayed, letters.len() as u64);
        let there = || seen.lock().len() >= letters.len();
        assert!(eventually(PATIENCE, there), "{} came", seen.lock().len());
        groups.wait_until_all_is_done(CONSUMER);
        drop(consumer.stop());
        let seen = mem::take(&mut *seen.lock());
        assert_eq!(seen.len(), letters.len(), "each once");
        assert!(seen.iter().all(|(_, body)| body == b"body"));
        let came: BTreeMap<_, _> = seen.into_iter().map(|(what, _)| what).collect();
        assert_eq!(came, *letters);
        assert_eq!(groups.lengths(), before, "nothing was published for it");
    }
}

fn event(kind: Kind, partition: u32, id: StreamId, key: &[u8]) -> Event<'_> {
    Event {
        instance: "the test".into(),
        ..Event::now(kind, TOPIC, partition, (id.ms(), id.seq()), key)
    }
}

pub fn stream(partition: u32) -> String {
    format!("re:s:{{{TOPIC}}}:{partition}")
}

/// What a server knows of groups.
pub struct Groups<'a>(pub &'a PrivateServer);

impl Groups<'_> {
    pub fn ask(&self, args: &[&str]) -> Reply {
        self.0.command(args).unwrap()
    }

    /// Of what `XINFO` lists of a stream, two fields each.
    pub fn listed(&self, ask: &[&str], fields: [&str; 2]) -> Vec<[String; 2]> {
        let all = self.ask(ask);
        let of = |item: &Reply| {
            fields.map(|name| {
                let mut pairs = item.items().chunks(2);
                pairs.find(|p| p[0].text() == name).unwrap()[1].text()
            })
        };
        all.items().iter().map(of).collect()
    }

    fn lengths(&self) -> Vec<i64> {
        let length = |p| self.ask(&["XLEN", &stream(p)]).int().unwrap();
        (0..PARTITIONS).map(length).collect()
    }

    /// Everything was given out and acknowledged, and nothing is to be handed over again.
    #[track_caller]
    fn wait_until_all_is_done(&self, group: &str) {
        let [retries, bucket, items] =
            ["rt", "r", "ri"].map(|kind| format!("re:{kind}:{{{TOPIC}}}:{group}"));
        let pending = |key: &str| {
            self.ask(&["XPENDING", key, group]).items()[0]
                .int()
                .unwrap()
        };
        let open = || {
            let mut open = Vec::new();
            for key in (0..PARTITIONS).map(stream) {
                let groups = self.listed(&["XINFO", "GROUPS", &key], ["name", "last-delivered-id"]);
                let delivered = groups.iter().find(|[name, _]| name == group);
                let last = self.ask(&["XREVRANGE", &key, "+", "-", "COUNT", "1"]);
                let last = last.items().first().map(|e| e.items()[0].text());
                if last.is_some() && last.as_deref() != delivered.map(|[_, id]| &**id) {
                    open.push(format!("{key} is read up to {delivered:?} of {last:?}"));
                }
                match pending(&key) {
                    0 => {}
                    n => open.push(format!("{n} pending in {key}")),
                }
            }
            let waits = [
                pending(&retries),
                self.ask(&["XLEN", &retries]).int().unwrap(),
                self.ask(&["EXISTS", &bucket, &items]).int().unwrap(),
            ];
            if waits != [0; 3] {
                open.push(format!("{retries} and its bucket: {waits:?}"));
            }
            open
        };
        let done = eventually(PATIENCE, || {
            thread::sleep(Duration::from_millis(20));
            open().is_empty()
        });
        assert!(done, "{group}: {:?}", open());
    }

    /// So many members live, and no other is known.
    #[track_caller]
    fn wait_until_the_dead_are_forgotten(&self, live: usize, groups: &[&str]) {
        for group in groups {
            let retries = format!("re:rt:{{{TOPIC}}}:{group}");
            for key in (0..PARTITIONS).map(stream).chain([retries]) {
                let known =
                    || self.listed(&["XINFO", "CONSUMERS", &key, group], ["name", "pending"]);
                let forgotten = eventually(PATIENCE, || known().len() <= live);
                assert!(forgotten, "{key}: {:?}", known());
            }
        }
    }

    /// The messages whose key is such, by partition and id.
    fn messages(&self, wanted: &impl Fn(&[u8]) -> bool) -> BTreeMap<(u32, StreamId), Vec<u8>> {
        let mut all = BTreeMap::new();
        for p in 0..PARTITIONS {
            for entry in self.ask(&["XRANGE", &stream(p), "-", "+"]).items() {
                let key = field(entry, "k").into_bytes();
                if wanted(&key) {
                    all.insert((p, entry.items()[0].text().parse().unwrap()), key);
                }
            }
        }
        all
    }

    /// The messages of the dead letters; none has two.
    #[track_caller]
    fn letters(&self) -> BTreeMap<(u32, StreamId), Vec<u8>> {
        let mut all = BTreeMap::new();
        let key = format!("re:d:{{{TOPIC}}}:{CONSUMER}");
        for letter in self.ask(&["XRANGE", &key, "-", "+"]).items() {
            let place: (u32, StreamId) = (
                field(letter, "!partition").parse().unwrap(),
                field(letter, "!first").parse().unwrap(),
            );
            let twice = all.insert(place, field(letter, "k").into_bytes());
            assert_eq!(twice, None, "{place:?} is a dead letter twice");
        }
        all
    }
}

/// The first field of an entry that is called so.
fn field(entry: &Reply, name: &str) -> String {
    let mut pairs = entry.items()[1].items().chunks(2);
    pairs.find(|p| p[0].text() == name).unwrap()[1].text()
}
