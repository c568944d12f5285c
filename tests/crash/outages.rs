//! A server that is killed again and again under a consumer that stays.

use std::{
    collections::BTreeMap,
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use streamlane::{
    Consumer, Message, Publisher, StreamId, Streams,
    testing::{Aof, Event, Kind, PrivateServer, Recorder, Rules, eventually},
};

use crate::{
    CONSUMER, PARTITIONS, PATIENCE, TOPIC,
    dice::Dice,
    load::{Load, publish},
    number_from_env, positions_key,
    proof::Logs,
    settings, turn,
};

/// What is promised: every lane handles messages again so soon after the server answers.
const BOUND: Duration = Duration::from_secs(5);

/// What the consumer is at when the server dies.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Waiting,
    UnderLoad,
    InHandler,
    StoringPositions,
    /// Coming back from the outage before.
    Reconnecting,
}

const PHASES: [Phase; 5] = [
    Phase::Waiting,
    Phase::UnderLoad,
    Phase::InHandler,
    Phase::StoringPositions,
    Phase::Reconnecting,
];

#[test]
fn every_lane_resumes_after_each_kill_of_the_server_and_nothing_is_left_behind() {
    let _turn = turn();
    let rounds = number_from_env("STREAMLANE_CRASH_OUTAGES").unwrap_or(20);
    let mut scene = Scene::new();
    scene.resume();
    // these take their time at the start, for a process that is soon gone has no use for them
    for late in ["streams-delays", "streams-sampler"] {
        let there = || {
            let clients = scene.server.command(&["CLIENT", "LIST"]).unwrap().text();
            clients.contains(&format!("name={late}"))
        };
        assert!(eventually(PATIENCE, there), "{late}");
    }
    let before = Footprint::settled(|_| true);
    let mut slowest = Duration::ZERO;
    for round in 0..rounds {
        let phase = PHASES[(round % PHASES.len() as u64) as usize];
        scene.kill_in(phase);
        let took = scene.resume();
        eprintln!("round {round}, {phase:?}: resumed after {took:?}");
        assert!(took < BOUND, "round {round}, {phase:?}: took {took:?}");
        slowest = slowest.max(took);
        let now = Footprint::settled(|now| *now == before);
        assert_eq!(now, before, "round {round}, {phase:?}");
    }
    eprintln!("slowest: {slowest:?}; {}", scene.load.finish());
    let stopped = scene.consumer.drain(PATIENCE).unwrap();
    assert!(stopped.unsaved.is_empty() && stopped.still_running.is_empty());
    // This process was never killed, so it has no excuse for handling anything twice.
    scene.logs.check(Rules::default());
}

struct Scene {
    server: PrivateServer,
    logs: Logs,
    log: Recorder,
    dice: Dice,
    publisher: Publisher,
    load: Load,
    hold: Arc<Hold>,
    consumer: Consumer,
}

impl Scene {
    fn new() -> Self {
        let dice = Dice::new("outages");
        let server = PrivateServer::builder().aof(Aof::Always).start().unwrap();
        let logs = Logs::of(&server);
        // so often that it is connected before anything is counted
        let refresh = Duration::from_millis(20);
        let settings = settings(&server.url()).topic_refresh(refresh);
        let settings = settings.sample_interval(Duration::from_secs(1));
        let streams = Streams::open(settings).unwrap();
        let hold = Arc::new(Hold::default());
        let (held, log) = (Arc::clone(&hold), Logs::recorder(&logs.handled));
        let handle = move |m: &Message<'_>| {
            held.pass();
            let (id, key) = ((m.id().ms(), m.id().seq()), m.key());
            let event = Event::now(Kind::Handled, TOPIC, m.partition(), id, key.as_bytes());
            log.record(&event).unwrap();
            Ok(())
        };
        let consumer = streams
            .consumer(TOPIC)
            .name(CONSUMER)
            .persist_interval(Duration::from_millis(10))
            .shared(handle)
            .start()
            .unwrap();
        Self {
            log: Logs::recorder(&logs.published),
            load: Load::start(&streams, &logs.published, Duration::from_millis(5)),
            publisher: streams.publisher(TOPIC).unwrap(),
            server,
            logs,
            dice,
            hold,
            consumer,
        }
    }

    /// Kills the server in this phase, and starts it again after a while.
    fn kill_in(&mut self, phase: Phase) {
        if !matches!(phase, Phase::Waiting) {
            self.load.resume();
        }
        match phase {
            Phase::Waiting => self.dice.wait_ms(0..300),
            Phase::UnderLoad => self.dice.wait_ms(50..300),
            Phase::InHandler => self.hold.catch(),
            Phase::StoringPositions => self.await_flush(),
            Phase::Reconnecting => {
                self.go_down();
                self.dice.wait_ms(0..400);
            }
        }
        self.go_down();
        self.hold.release();
    }

    fn go_down(&mut self) {
        self.server.kill();
        self.dice.wait_ms(100..1500);
        self.server.restart().unwrap();
    }

    /// Waits until positions have just been stored, with the next ones due soon.
    #[track_caller]
    fn await_flush(&self) {
        let before = self.stored();
        let flushed = eventually(PATIENCE, || self.stored() != before);
        assert!(flushed, "positions are stored");
    }

    fn stored(&self) -> Vec<String> {
        let ask = |p: u32| {
            self.server
                .command(&["HGET", &positions_key(), &p.to_string()])
        };
        (0..PARTITIONS).map(|p| ask(p).unwrap().text()).collect()
    }

    /// To be called when the server answers. Returns how long it took until a new message was handled
    /// in every partition; afterwards all is quiet, with every connection in use again.
    #[track_caller]
    fn resume(&self) -> Duration {
        let answers = Instant::now();
        let ids: Vec<_> = (0..PARTITIONS).map(|p| self.publish_fresh(p)).collect();
        self.await_handled(&ids);
        let took = answers.elapsed();
        self.load.resume();
        self.load.pause();
        let all_stored = || {
            let stored = self.stored();
            let is_position = |p: usize| stored[p].starts_with(&format!("{}|", self.position(p)));
            (0..stored.len()).all(is_position)
        };
        assert!(eventually(PATIENCE, all_stored), "{:?}", self.stored());
        took
    }

    /// Publishes a message, again and again while that fails.
    #[track_caller]
    fn publish_fresh(&self, partition: u32) -> StreamId {
        let mut id = Err(String::new());
        eventually(PATIENCE, || {
            let key = format!("fresh-{partition}");
            let result = publish(&self.publisher, &self.log, partition, &key, "");
            id = result.map_err(|e| e.to_string());
            id.is_ok()
        });
        id.unwrap()
    }

    #[track_caller]
    fn await_handled(&self, ids: &[StreamId]) {
        let all = eventually(PATIENCE, || {
            ids.iter()
                .enumerate()
                .all(|(p, id)| self.position(p) >= *id)
        });
        assert!(all, "handled: {:?}", self.consumer.partitions());
    }

    fn position(&self, partition: usize) -> StreamId {
        self.consumer.position(partition as u32).unwrap().id
    }
}

/// Holds handlers up on demand.
#[derive(Default)]
struct Hold {
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Hold {
    /// Called by handlers.
    fn pass(&self) {
        let mut state = self.state.lock();
        while state.0 {
            state.1 = true;
            self.changed.notify_all();
            self.changed.wait_for(&mut state, PATIENCE);
        }
    }

    /// Returns when a handler is being held.
    #[track_caller]
    fn catch(&self) {
        let mut state = self.state.lock();
        *state = (true, false);
        while !state.1 {
            let late = self.changed.wait_for(&mut state, PATIENCE).timed_out();
            assert!(!late, "a handler is called");
        }
    }

    fn release(&self) {
        *self.state.lock() = (false, false);
        self.changed.notify_all();
    }
}

/// The threads of this process by name, without those of the test harness, and its sockets.
#[derive(PartialEq, Eq, Debug)]
struct Footprint {
    threads: BTreeMap<String, u32>,
    sockets: usize,
}

impl Footprint {
    fn now() -> Self {
        let mut threads = BTreeMap::new();
        for task in fs::read_dir("/proc/self/task").unwrap().flatten() {
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            // Tests run on threads that are named after them.
            if !name.is_empty() && !name.contains("::") {
                *threads.entry(name.trim_end().to_owned()).or_default() += 1;
            }
        }
        let fds = fs::read_dir("/proc/self/fd").unwrap().flatten();
        let target = fds.filter_map(|fd| fs::read_link(fd.path()).ok());
        let sockets = target.filter(|t| t.to_string_lossy().starts_with("socket:"));
        Self {
            threads,
            sockets: sockets.count(),
        }
    }

    /// What it is as soon as it is as wanted and has stayed the same for a moment.
    fn settled(wanted: impl Fn(&Self) -> bool) -> Self {
        let mut last = Self::now();
        let mut since = Instant::now();
        eventually(BOUND, || {
            let now = Self::now();
            if now != last {
                (last, since) = (now, Instant::now());
            }
            wanted(&last) && since.elapsed() > Duration::from_millis(50)
        });
        last
    }
}
