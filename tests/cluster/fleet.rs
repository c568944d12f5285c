//! A server, a stream of messages, and the processes that handle them.

use std::{
    collections::{BTreeMap, HashMap},
    fs, thread,
    time::{Duration, Instant},
};

use streamlane::{
    StreamId, Streams,
    testing::{Aof, PrivateServer, eventually},
};

use crate::{
    PARTITIONS,
    claims::Claims,
    common::{
        PATIENCE, SLACK, TOPIC,
        load::{Load, publish},
        open, positions_key,
        proof::Logs,
        worker::{Job, Keeps, Worker},
    },
};

pub const TTL: Duration = Duration::from_millis(2500);
pub const RENEW: Duration = Duration::from_millis(400);
/// How often positions are stored.
pub const INTERVAL: Duration = Duration::from_millis(200);
/// How old a finished message may be that is handled again after a kill.
pub const WINDOW: Duration = INTERVAL.saturating_add(SLACK);

pub struct Fleet {
    pub server: PrivateServer,
    streams: Streams,
    pub logs: Logs,
    /// By pod.
    pub up: BTreeMap<String, Worker>,
    pub keeps: Keeps,
    /// How long a message takes those that are yet to come.
    pub work: Duration,
    load: Option<Load>,
    /// How many processes were ever started.
    started: usize,
}

impl Fleet {
    /// Nobody yet, and messages that pour in.
    pub fn under_load(keeps: Keeps) -> Self {
        let mut fleet = Self::new(keeps);
        let pause = Duration::from_millis(40);
        fleet.load = Some(Load::start(&fleet.streams, &fleet.logs.published, pause));
        fleet
    }

    /// Nobody yet, and nothing to do.
    pub fn new(keeps: Keeps) -> Self {
        let server = PrivateServer::builder()
            .aof(Aof::EverySecond)
            .config("auto-aof-rewrite-percentage 0")
            .start()
            .unwrap();
        let logs = Logs::of(&server);
        Self {
            streams: open(&server.url()),
            server,
            logs,
            keeps,
            work: Duration::from_millis(1),
            load: None,
            up: BTreeMap::new(),
            started: 0,
        }
    }

    /// Starts a process under this name.
    pub fn join(&mut self, pod: &str) {
        self.join_as(pod, None);
    }

    /// Starts a process that is one of so many, with its number at the end of its name.
    pub fn join_numbered(&mut self, pod: &str, place: (u32, u32)) {
        self.join_as(pod, Some(place));
    }

    fn join_as(&mut self, pod: &str, place: Option<(u32, u32)>) {
        let instance = format!("{pod}.{}", self.started);
        self.started += 1;
        let worker = Worker::start(Job {
            pod: pod.into(),
            waits_for: 0,
            lease: (TTL, RENEW),
            place,
            keeps: self.keeps,
            batches: self.started.is_multiple_of(2),
            work: self.work,
            ..Job::new(&self.server, &self.logs, instance)
        });
        let before = self.up.insert(pod.into(), worker);
        assert!(before.is_none(), "{pod} is up");
    }

    /// Lets a process end as it should. Returns how long that took.
    #[track_caller]
    pub fn leave(&mut self, pod: &str) -> Duration {
        let mut worker = self.up.remove(pod).unwrap();
        worker.await_ready();
        let told = Instant::now();
        worker.tell("stop");
        worker.await_end();
        told.elapsed()
    }

    /// Waits until so many members own everything evenly. Returns how long that took.
    #[track_caller]
    pub fn await_even(&self, members: usize) -> Duration {
        self.await_claims(&format!("{members} members share evenly"), |claims| {
            claims.is_even(members)
        })
    }

    #[track_caller]
    pub fn await_claims(&self, what: &str, mut are: impl FnMut(&Claims) -> bool) -> Duration {
        let begun = Instant::now();
        let happened = eventually(PATIENCE, || {
            thread::sleep(Duration::from_millis(5));
            are(&Claims::read(&self.server))
        });
        assert!(happened, "{what}: {:#?}", Claims::read(&self.server));
        begun.elapsed()
    }

    /// Publishes so many messages of one key to a partition.
    pub fn publish(&self, partition: u32, messages: usize) {
        let publisher = self.streams.publisher(TOPIC).unwrap();
        let log = Logs::recorder(&self.logs.published);
        for _ in 0..messages {
            let key = format!("key-{partition}");
            publish(&publisher, &log, partition, &key, "").unwrap();
        }
    }

    /// What any process was told, at warning or worse.
    pub fn loud(&self) -> Vec<String> {
        let lines = self.lines();
        let lines = lines.iter().flat_map(|(_, text)| text.lines());
        lines
            .filter(|l| l.contains(" WARN ") || l.contains(" ERROR "))
            .map(str::to_owned)
            .collect()
    }

    /// By instance, what tells that process from others of its pod, as far as it came to say so.
    pub fn epochs(&self) -> HashMap<String, String> {
        let of = |(instance, text): (String, String)| {
            let line = text.lines().find(|l| l.contains(" owns partitions "))?;
            let (_, epoch) = line.split_once(", epoch ")?;
            let epoch = epoch.split(' ').next()?.to_owned();
            Some((instance, epoch))
        };
        self.lines().into_iter().filter_map(of).collect()
    }

    /// What all processes that ever were were told, by instance.
    fn lines(&self) -> Vec<(String, String)> {
        let files = fs::read_dir(self.server.dir()).unwrap().flatten();
        let lines = files.filter_map(|file| {
            let name = file.file_name().into_string().ok()?;
            let instance = name.strip_prefix("lines-")?.to_owned();
            Some((instance, fs::read_to_string(file.path()).ok()?))
        });
        lines.collect()
    }

    /// Ends the stream of messages.
    pub fn finish_load(&mut self) {
        if let Some(load) = self.load.take() {
            eprintln!("{}", load.finish());
        }
    }

    /// Waits until everything that was published is handled, and its position stored.
    #[track_caller]
    pub fn settle(&mut self) {
        self.finish_load();
        let tail = |p: u32| {
            let stream = format!("re:s:{{{TOPIC}}}:{p}");
            let last = ["XREVRANGE", &stream, "+", "-", "COUNT", "1"];
            let last = self.server.command(&last).unwrap();
            let id = last.items().first().map(|e| e.items()[0].text());
            id.map_or(StreamId::MIN, |id| id.parse().unwrap())
        };
        let tails: Vec<_> = (0..PARTITIONS).map(tail).collect();
        let stored = || (0..PARTITIONS).map(|p| self.stored(p)).collect::<Vec<_>>();
        let all = || stored() == tails;
        assert!(
            eventually(PATIENCE, all),
            "{:?}, of {tails:?}, and {:#?}",
            stored(),
            Claims::read(&self.server)
        );
    }

    /// The stored position of a partition.
    pub fn stored(&self, partition: u32) -> StreamId {
        let get = ["HGET", &positions_key(), &partition.to_string()];
        let value = self.server.command(&get).unwrap().text();
        let id = value.split('|').next().unwrap();
        id.parse().unwrap_or(StreamId::MIN)
    }

    /// Lets all handle what there is, and end.
    #[track_caller]
    pub fn end(&mut self) {
        for worker in self.up.values_mut() {
            worker.await_ready();
            worker.tell("drain");
        }
        self.up.values_mut().for_each(Worker::await_end);
        self.up.clear();
    }
}

impl Drop for Fleet {
    /// What a failure may be understood by.
    fn drop(&mut self) {
        const SHOWN: usize = 25;
        if !thread::panicking() {
            return;
        }
        for (instance, text) in self.lines() {
            let lines = text.lines().filter(|l| !l.contains(" DEBUG "));
            let lines: Vec<_> = lines.collect();
            eprintln!("the last of {} lines of {instance}:", lines.len());
            for line in &lines[lines.len().saturating_sub(SHOWN)..] {
                eprintln!("  {line}");
            }
        }
    }
}
