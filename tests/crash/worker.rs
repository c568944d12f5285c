//! The process that gets killed: this test program run again, told what to do by its environment.

use std::{
    env, fs,
    io::{self, Write},
    path::PathBuf,
    process::{self, ExitStatus},
    thread,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use streamlane::{
    Batch, Consumer, Message, Persist,
    testing::{Event, Kind, PrivateServer, Recorder, eventually},
};

use crate::{CONSUMER, PATIENCE, TOPIC, open, process::Process, proof::Logs};

/// Where a worker finds its [`Job`].
const JOB: &str = "STREAMLANE_CRASH_JOB";

/// How a worker consumes.
#[derive(Clone, Serialize, Deserialize)]
pub struct Job {
    pub url: String,
    pub log: PathBuf,
    /// Made when its lanes run.
    pub ready: PathBuf,
    /// What tells this process from its predecessors.
    pub instance: String,
    pub keeps: Keeps,
    /// Whether it handles batches, or else messages.
    pub batches: bool,
    /// How long a message takes.
    pub work: Duration,
    /// The body of the message at which a handler call never returns.
    pub hangs_at: Option<String>,
}

/// When positions are stored.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub enum Keeps {
    /// As it is when nothing is set.
    Default,
    Within(Duration),
    EachMessage,
}

impl Job {
    pub fn new(server: &PrivateServer, logs: &Logs, instance: impl Into<String>) -> Self {
        let instance = instance.into();
        Self {
            url: server.url(),
            log: logs.handled.clone(),
            ready: server.dir().join(format!("ready-{instance}")),
            instance,
            keeps: Keeps::Default,
            batches: false,
            work: Duration::ZERO,
            hangs_at: None,
        }
    }

    /// The same for the next process, which gets stuck nowhere.
    pub fn again(&self, instance: &str) -> Self {
        Self {
            instance: instance.into(),
            ready: self.ready.with_file_name(format!("ready-{instance}")),
            hangs_at: None,
            ..self.clone()
        }
    }

    fn start(&self) -> Consumer {
        let log = Recorder::append(&self.log).unwrap();
        let job = self.clone();
        let handle = move |m: &Message<'_>| {
            job.record(&log, Kind::Started, m);
            while job.hangs_at.as_deref().map(str::as_bytes) == Some(m.body()) {
                thread::park();
            }
            if !job.work.is_zero() {
                thread::sleep(job.work);
            }
            job.record(&log, Kind::Handled, m);
            Ok(())
        };
        let consumer = open(&self.url).consumer(TOPIC).name(CONSUMER);
        let consumer = match self.keeps {
            Keeps::Default => consumer,
            Keeps::Within(interval) => consumer.persist_interval(interval),
            Keeps::EachMessage => consumer.persist(Persist::SyncMessage),
        };
        let consumer = if self.batches {
            consumer.shared_batches(move |b: &Batch<'_>| b.each(&handle))
        } else {
            consumer.shared(handle)
        };
        consumer.start().unwrap()
    }

    fn record(&self, log: &Recorder, kind: Kind, m: &Message<'_>) {
        let (id, key) = ((m.id().ms(), m.id().seq()), m.key());
        let event = Event::now(kind, TOPIC, m.partition(), id, key.as_bytes());
        let instance = self.instance.as_str().into();
        log.record(&Event { instance, ..event }).unwrap();
    }
}

/// No test: the worker's way in. Without a job there is nothing to do.
#[test]
fn entry() {
    let Ok(job) = env::var(JOB) else { return };
    let job: Job = serde_json::from_str(&job).unwrap();
    let consumer = job.start();
    fs::write(&job.ready, "").unwrap();
    let mut order = String::new();
    io::stdin().read_line(&mut order).unwrap();
    match order.trim_end() {
        "stop" => drop(consumer.stop()),
        "drain" => drop(consumer.drain(PATIENCE).unwrap()),
        _ => process::exit(2), // the test is dead
    }
}

/// A worker, seen by the test that started it.
pub struct Worker {
    job: Job,
    process: Process,
}

impl Worker {
    pub fn start(job: Job) -> Self {
        let text = serde_json::to_string(&job).unwrap();
        let process = Process::start("worker::entry", &[(JOB, &text)]);
        Self { job, process }
    }

    /// Waits until its lanes run.
    #[track_caller]
    pub fn await_ready(&self) {
        let ready = || self.job.ready.exists();
        assert!(eventually(PATIENCE, ready), "{} starts", self.job.instance);
    }

    /// Kills it with SIGKILL and notes the last moment at which it was surely alive: what it handled
    /// later can only have been at risk for less time.
    #[track_caller]
    pub fn kill(self) {
        let mark = Event::killed(&self.job.instance);
        self.process.kill();
        let log = Recorder::append(&self.job.log).unwrap();
        log.record(&mark).unwrap();
    }

    /// Tells it to `stop` or to `drain`.
    pub fn tell(&mut self, order: &str) {
        let stdin = self.process.0.stdin.as_mut().unwrap();
        writeln!(stdin, "{order}").unwrap();
    }

    /// Lets it handle everything there is, and end.
    #[track_caller]
    pub fn drain(mut self) {
        self.await_ready();
        self.tell("drain");
        let mut ended = None;
        let in_time = eventually(PATIENCE + PATIENCE, || {
            ended = self.process.ended();
            ended.is_some()
        });
        assert!(in_time, "{} ends", self.job.instance);
        assert!(ended.as_ref().is_some_and(ExitStatus::success), "{ended:?}");
    }
}
