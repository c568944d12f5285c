//! Processes that end in the middle of their work, told to or not.

use std::{fs, thread, time::Duration};

use parking_lot::Mutex;
use streamlane::{
    Batch, Message, Publisher, StreamId,
    testing::{PrivateServer, Recorder, Rules, eventually},
};

use crate::{
    CONSUMER, PATIENCE, SLACK, TOPIC, load, open, positions_key,
    proof::Logs,
    turn,
    worker::{Job, Keeps, Worker},
};

const INTERVAL: Duration = Duration::from_millis(200);
/// How long a process that was told to stop is let live.
const GRACE: Duration = Duration::from_millis(1500);

#[test]
fn a_stop_that_is_cut_short_leaves_what_was_read_ahead_to_the_next_process() {
    let _turn = turn();
    for batches in [false, true] {
        let scene = Scene::new();
        let ids = scene.publish(0, 0..300);
        scene.publish(1, 1000..3000);
        let job = Job {
            keeps: Keeps::Within(INTERVAL),
            batches,
            work: Duration::from_millis(1),
            ..Job::new(&scene.server, &scene.logs, "first")
        };
        let mut worker = Worker::start(Job {
            hangs_at: Some("150".into()),
            ..job.clone()
        });
        scene.await_started(ids[150]);
        worker.tell("stop");
        thread::sleep(GRACE);
        worker.kill();
        // What was finished before and during the stop was stored as quickly as ever.
        assert_eq!(scene.stored(0), ids[149], "batches: {batches}");
        Worker::start(Job {
            work: Duration::ZERO,
            ..job.again("second")
        })
        .drain();
        scene.logs.check(Rules {
            doubles: INTERVAL + SLACK,
            ..Rules::default()
        });
    }
}

#[test]
fn with_defaults_no_position_passes_a_message_whose_handler_is_slower_than_the_flush() {
    let _turn = turn();
    for batches in [false, true] {
        let scene = Scene::new();
        let ids = scene.publish(0, 0..10);
        let job = Job {
            batches,
            ..Job::new(&scene.server, &scene.logs, "first")
        };
        let worker = Worker::start(Job {
            hangs_at: Some("3".into()),
            ..job.clone()
        });
        scene.await_started(ids[3]);
        // Positions are flushed twice meanwhile, as another partition shows.
        for n in 100..102 {
            let other = scene.publish(1, n..n + 1)[0];
            let flushed = || scene.stored(1) == other;
            assert!(eventually(PATIENCE, flushed), "positions are stored");
        }
        worker.kill();
        assert_eq!(scene.stored(0), ids[2], "batches: {batches}");
        Worker::start(job.again("second")).drain();
        let report = scene.logs.check(Rules::default());
        assert_eq!(report.counts.handled, 12);
        assert_eq!(report.counts.started, 13, "one of them twice");
    }
}

#[test]
fn a_batch_that_is_left_early_at_a_stop_goes_on_where_it_was_left() {
    let _turn = turn();
    let scene = Scene::new();
    let ids = scene.publish(0, 0..10);
    let streams = open(&scene.server.url());
    let handled = Mutex::new(Vec::new());
    let handled: &'static Mutex<Vec<StreamId>> = Box::leak(Box::new(handled));
    let start = || {
        let consumer = streams.consumer(TOPIC).name(CONSUMER);
        let handle = move |b: &Batch<'_>| {
            b.each(|m: &Message<'_>| {
                handled.lock().push(m.id());
                if m.body() == b"5" {
                    assert!(eventually(PATIENCE, || m.is_cancelled()));
                }
                Ok(())
            })
        };
        consumer.shared_batches(handle).start().unwrap()
    };
    let consumer = start();
    let reached = || handled.lock().len() == 6;
    assert!(eventually(PATIENCE, reached));
    let stopped = consumer.stop();
    assert_eq!(stopped.positions[0], ids[5]);
    assert!(stopped.unsaved.is_empty());
    drop(consumer);
    start().drain(PATIENCE).unwrap();
    assert_eq!(*handled.lock(), ids);
}

#[test]
fn a_stopped_consumer_can_be_started_again_at_once() {
    let _turn = turn();
    let scene = Scene::new();
    let streams = open(&scene.server.url());
    let mut stopped = Vec::new();
    for round in 0..50 {
        let consumer = streams.consumer(TOPIC).name(CONSUMER);
        let consumer = consumer.shared(|_: &Message<'_>| Ok(())).start();
        let consumer = consumer.unwrap_or_else(|e| panic!("round {round}: {e}"));
        consumer.stop();
        stopped.push(consumer); // a handle to what has stopped is in nobody's way
    }
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
    fn publish(&self, partition: u32, numbers: std::ops::Range<u32>) -> Vec<StreamId> {
        let one = |n: u32| {
            let (key, body) = (format!("key-{partition}"), n.to_string());
            load::publish(&self.publisher, &self.log, partition, &key, &body).unwrap()
        };
        numbers.map(one).collect()
    }

    /// Waits until a message of partition 0 is given to a handler.
    #[track_caller]
    fn await_started(&self, id: StreamId) {
        let at = format!(" {TOPIC} 0 {id} ");
        let started = || {
            let log = fs::read_to_string(&self.logs.handled).unwrap_or_default();
            log.lines()
                .any(|l| l.starts_with(">started") && l.contains(&at))
        };
        assert!(eventually(PATIENCE, started), "{id} is handed over");
    }

    /// The stored position of a partition.
    fn stored(&self, partition: u32) -> StreamId {
        let field = partition.to_string();
        let value = self
            .server
            .command(&["HGET", &positions_key(), &field])
            .unwrap()
            .text();
        value.split('|').next().unwrap().parse().unwrap()
    }
}
