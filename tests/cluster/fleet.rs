//! A server, a stream of messages, and the processes that handle them.

use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

use streamlane::{
    StreamId,
    testing::{Aof, PrivateServer, eventually},
};

use crate::{
    PARTITIONS,
    claims::Claims,
    common::{
        PATIENCE, SLACK, TOPIC,
        load::Load,
        open, positions_key,
        proof::Logs,
        worker::{Job, Keeps, Worker},
    },
};

pub const TTL: Duration = Duration::from_millis(1500);
pub const RENEW: Duration = Duration::from_millis(300);
/// How often positions are stored.
pub const INTERVAL: Duration = Duration::from_millis(200);
/// How old a finished message may be that is handled again after a kill.
pub const WINDOW: Duration = INTERVAL.saturating_add(SLACK);

pub struct Fleet {
    pub server: PrivateServer,
    pub logs: Logs,
    /// By pod.
    pub up: BTreeMap<String, Worker>,
    pub keeps: Keeps,
    load: Option<Load>,
    /// How many processes were ever started.
    started: usize,
}

impl Fleet {
    /// Nobody yet, and messages that pour in.
    pub fn new(keeps: Keeps, pause: Duration) -> Self {
        let server = PrivateServer::builder()
            .aof(Aof::EverySecond)
            .config("auto-aof-rewrite-percentage 0")
            .start()
            .unwrap();
        let logs = Logs::of(&server);
        Self {
            load: Some(Load::start(&open(&server.url()), &logs.published, pause)),
            server,
            logs,
            keeps,
            up: BTreeMap::new(),
            started: 0,
        }
    }

    /// Starts a process under this name.
    pub fn join(&mut self, pod: &str) {
        let instance = format!("{pod}.{}", self.started);
        self.started += 1;
        let worker = Worker::start(Job {
            pod: pod.into(),
            waits_for: 0,
            lease: (TTL, RENEW),
            keeps: self.keeps,
            batches: self.started.is_multiple_of(2),
            work: Duration::from_millis(1),
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
            let id = last.items()[0].items()[0].text();
            id.parse::<StreamId>().unwrap()
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
        if !thread::panicking() {
            return;
        }
        if let Ok(dir) = std::env::var("KEEP_DBG") {
            let _ = std::process::Command::new("cp")
                .arg("-r")
                .arg(self.server.dir())
                .arg(dir)
                .status();
            return;
        }
        for n in 0..self.started {
            for file in std::fs::read_dir(self.server.dir()).unwrap().flatten() {
                let name = file.file_name().into_string().unwrap();
                if name.starts_with("lines-") && name.ends_with(&format!(".{n}")) {
                    let lines = std::fs::read_to_string(file.path()).unwrap();
                    let loud = lines.lines().filter(|l| !l.contains(" DEBUG "));
                    let loud: Vec<_> = loud.collect();
                    eprintln!("{name}, {} lines:", loud.len());
                    for line in &loud[loud.len().saturating_sub(25)..] {
                        eprintln!("  {line}");
                    }
                }
            }
        }
    }
}
