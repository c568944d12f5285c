//! Messages that kill their process, or never come back: they are given up after so many deliveries, and
//! nothing else is, whatever dies around it.

use std::{collections::BTreeMap, fs, ops::Range, time::Duration};

use streamlane::{
    DeadLetter, DeadLetterReason, Publisher, StreamId,
    testing::{Event, Kind, PrivateServer, Recorder, Rules, eventually},
};

use crate::{
    CONSUMER, PARTITIONS, PATIENCE, SLACK, TOPIC, load, open, positions_key,
    proof::Logs,
    turn,
    worker::{Job, Keeps, Worker},
};

const INTERVAL: Duration = Duration::from_millis(50);
/// Of deaths nobody can know at once how old the last handled message was.
const EXPOSED: Duration = Duration::from_secs(1);
const KILLER: &str = "killer";

#[test]
fn a_message_that_kills_its_process_becomes_a_dead_letter_and_its_neighbours_are_handled() {
    let _turn = turn();
    for (batches, keeps, at, most) in [
        (false, Keeps::Within(INTERVAL), 20, 4),
        (true, Keeps::Within(INTERVAL), 20, 4),
        (false, Keeps::EachMessage, 20, 4),
        (true, Keeps::EachMessage, 0, 5),
        (false, Keeps::Default, 0, 20), // as is default
        (true, Keeps::Default, 29, 1),
    ] {
        let scene = Scene::new();
        let ids = scene.publish_around(at);
        (1..PARTITIONS).for_each(|p| drop(scene.publish(p, 100 * p..100 * p + 30)));
        let deaths = scene.live_until_through(|life| Job {
            parks: true,
            batches,
            keeps,
            max_deliveries: (most != 20).then_some(most),
            aborts_at: Some((at.to_string(), Duration::ZERO)),
            ..Job::new(&scene.server, &scene.logs, format!("life-{life}"))
        });
        let [letter] = &scene.letters()[..] else {
            panic!("{:?}", scene.letters())
        };
        let case = format!("batches: {batches}, at {at}, most {most}: {deaths} deaths");
        eprintln!("{case}");
        assert_eq!(letter.last_id, ids[at], "{case}");
        assert_eq!(letter.reason, Some(DeadLetterReason::Deliveries), "{case}");
        assert_eq!((letter.deliveries, letter.attempts), (most, 0), "{case}");
        let said = format!("given out {most} times and nobody came back");
        assert!(letter.error.contains(&said), "{}", letter.error);
        // Until it is known to be the one it may die with others on record.
        assert!((most..=most + 3).contains(&deaths), "{case}");
        scene.check(&[ids[at]]);
    }
}

/// Recipe 58: restarts in the middle of its work do no harm to a message that is merely slow.
#[test]
fn a_slow_message_survives_five_kills_with_what_is_default() {
    let _turn = turn();
    for parks in [true, false] {
        let scene = Scene::new();
        let ids = scene.publish(0, 0..3);
        let job = Job {
            parks,
            ..Job::new(&scene.server, &scene.logs, "first")
        };
        for n in 0..5 {
            let worker = Worker::start(Job {
                hangs_at: Some("0".into()),
                ..job.again(&format!("life-{n}"))
            });
            scene.await_started(ids[0], n + 1);
            worker.kill();
        }
        Worker::start(job.again("last")).drain();
        assert!(scene.letters().is_empty());
        scene.check(&[]);
    }
}

/// What kills is told apart from what is at work in other partitions at that moment.
#[test]
fn a_slow_message_survives_a_killer_in_another_partition() {
    let _turn = turn();
    let scene = Scene::new();
    let killer = scene.publish_around(0)[0];
    scene.publish(1, 100..103);
    scene.live_until_through(|life| Job {
        parks: true,
        keeps: Keeps::Within(INTERVAL),
        max_deliveries: Some(5),
        aborts_at: Some(("0".into(), Duration::from_millis(100))),
        slow_at: Some(("100".into(), Duration::from_millis(700))),
        ..Job::new(&scene.server, &scene.logs, format!("life-{life}"))
    });
    let letters = scene.letters();
    let last_ids: Vec<_> = letters.iter().map(|l| l.last_id).collect();
    assert_eq!(last_ids, [killer]);
    scene.check(&[killer]);
}

/// A restart at leisure is no death, however often it hits the same message.
#[test]
fn handlers_that_give_up_at_a_stop_are_not_counted() {
    let _turn = turn();
    let scene = Scene::new();
    let ids = scene.publish(0, 0..3);
    let job = Job {
        parks: true,
        max_deliveries: Some(2),
        ..Job::new(&scene.server, &scene.logs, "first")
    };
    for n in 0..5 {
        let mut worker = Worker::start(Job {
            gives_up_at: Some("0".into()),
            ..job.again(&format!("life-{n}"))
        });
        scene.await_started(ids[0], n + 1);
        worker.tell("stop");
        worker.await_end();
        let on_record = scene.on_record(0);
        assert!(on_record.ends_with(" 0"), "life {n}: {on_record}");
    }
    Worker::start(job.again("last")).drain();
    assert!(scene.letters().is_empty());
    scene.check(&[]);
}

#[test]
fn a_handler_that_never_comes_back_does_not_wedge_one_instance_after_the_other() {
    let _turn = turn();
    let scene = Scene::new();
    let ids = scene.publish_around(0);
    let job = |name: &str| {
        let job = Job::new(&scene.server, &scene.logs, name);
        Worker::start(Job {
            parks: true,
            waits_for: 1,
            keeps: Keeps::Within(INTERVAL),
            max_deliveries: Some(3),
            hands_over_after: Some(Duration::from_secs(1)),
            hangs_at: Some("0".into()),
            ..job
        })
    };
    let a = job("a");
    a.await_ready();
    scene.await_started(ids[0], 1);
    let b = job("b"); // which is given the partition
    scene.await_started(ids[0], 2);
    a.kill(); // as who watches its health does
    let c = job("c");
    scene.await_started(ids[0], 3);
    b.kill();
    let mut d = job("d");
    let last = ids[ids.len() - 1];
    let through = || scene.stored(0) == Some(last);
    assert!(eventually(PATIENCE, through), "{:?}", scene.letters());
    let [letter] = &scene.letters()[..] else {
        panic!("{:?}", scene.letters())
    };
    assert_eq!((letter.last_id, letter.deliveries), (ids[0], 3));
    assert_eq!(letter.reason, Some(DeadLetterReason::Deliveries));
    // whoever is stuck still does what else is to be done
    let others: Vec<_> = (1..PARTITIONS)
        .map(|p| scene.publish(p, 100 * p..100 * p + 3)[2])
        .collect();
    let done = || (1..PARTITIONS).all(|p| scene.stored(p) == Some(others[p as usize - 1]));
    assert!(eventually(PATIENCE, done), "the others are handled");
    c.kill();
    d.tell("stop");
    d.await_end();
    scene.check(&[ids[0]]);
}

struct Scene {
    server: PrivateServer,
    logs: Logs,
    log: Recorder,
    publisher: Publisher,
}

impl Scene {
    fn new() -> Self {
        let server = PrivateServer::start().unwrap();
        let logs = Logs::of(&server);
        Self {
            log: Logs::recorder(&logs.published),
            publisher: open(&server.url()).publisher(TOPIC).unwrap(),
            logs,
            server,
        }
    }

    /// Publishes messages of one key with these numbers as bodies.
    fn publish(&self, partition: u32, numbers: Range<u32>) -> Vec<StreamId> {
        let key = format!("key-{partition}-x");
        let one = |n| self.publish_one(partition, &key, n);
        numbers.map(one).collect()
    }

    /// Publishes messages to partition 0, of which that in this place has a key of its own.
    fn publish_around(&self, place: usize) -> Vec<StreamId> {
        let at = place as u32;
        let mut ids = self.publish(0, 0..at);
        ids.push(self.publish_one(0, KILLER, at));
        ids.extend(self.publish(0, at + 1..30));
        ids
    }

    fn publish_one(&self, partition: u32, key: &str, number: u32) -> StreamId {
        let body = number.to_string();
        load::publish(&self.publisher, &self.log, partition, key, &body).unwrap()
    }

    /// Starts one process after the other until one handles everything there is. Returns how many died.
    #[track_caller]
    fn live_until_through(&self, job: impl Fn(u32) -> Job) -> u32 {
        let last: BTreeMap<u32, StreamId> = (0..PARTITIONS)
            .filter_map(|p| Some((p, self.last(p)?)))
            .collect();
        for life in 0..50 {
            let mut worker = Worker::start(job(life));
            let through = || last.iter().all(|(p, id)| self.stored(*p) == Some(*id));
            if !worker.await_death(through) {
                worker.tell("stop");
                worker.await_end();
                return life;
            }
        }
        panic!("it dies for ever");
    }

    fn last(&self, partition: u32) -> Option<StreamId> {
        let stream = format!("re:s:{{{TOPIC}}}:{partition}");
        let range = ["XREVRANGE", &stream, "+", "-", "COUNT", "1"];
        let range = self.server.command(&range).unwrap();
        range.items().first()?.items()[0].text().parse().ok()
    }

    fn letters(&self) -> Vec<DeadLetter> {
        let admin = open(&self.server.url()).admin();
        let page = admin.dead_letters(TOPIC, CONSUMER).page(None, 1000);
        page.unwrap().letters
    }

    /// What is on record of a partition.
    fn on_record(&self, partition: u32) -> String {
        let (key, field) = (
            format!("{}:meta", positions_key()),
            format!("{partition}:deliveries"),
        );
        self.server.command(&["HGET", &key, &field]).unwrap().text()
    }

    /// Waits until a message of partition 0 has been given to a handler so often.
    #[track_caller]
    fn await_started(&self, id: StreamId, times: usize) {
        let at = format!(" {TOPIC} 0 {id} ");
        let started = || {
            let log = fs::read_to_string(&self.logs.handled).unwrap_or_default();
            let starts = |l: &&str| l.starts_with(">started") && l.contains(&at);
            log.lines().filter(starts).count() >= times
        };
        assert!(
            eventually(PATIENCE, started),
            "{id} is handed over {times} times"
        );
    }

    /// The stored position of a partition.
    fn stored(&self, partition: u32) -> Option<StreamId> {
        let field = partition.to_string();
        let value = self.server.command(&["HGET", &positions_key(), &field]);
        value.unwrap().text().split('|').next()?.parse().ok()
    }

    /// Everything was handled but for these of partition 0, which are dead letters without a handler's doing.
    #[track_caller]
    fn check(&self, given_up: &[StreamId]) {
        let log = Logs::recorder(&self.logs.handled);
        for id in given_up {
            let id = (id.ms(), id.seq());
            let event = Event::now(Kind::Parked, TOPIC, 0, id, KILLER.as_bytes());
            let instance = "checker".into();
            log.record(&Event { instance, ..event }).unwrap();
        }
        self.logs.check(Rules {
            doubles: INTERVAL + SLACK + EXPOSED,
            ..Rules::default()
        });
    }
}
