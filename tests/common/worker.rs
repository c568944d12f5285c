//! The process that gets killed: this test program run again, told what to do by its environment.

use std::{
    env,
    fs::{self, File},
    io::{self, Write},
    path::PathBuf,
    process::{self, ExitStatus},
    sync::Arc,
    thread,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use streamlane::{
    Batch, Consumer, Delivery, HandlerResult, Message, OrAction, Persist, Streams,
    testing::{Event, Kind, PrivateServer, Recorder, eventually, now_ns},
};

use super::{CONSUMER, PATIENCE, TOPIC, process::Process, proof::Logs, settings};
use crate::PARTITIONS;

/// Where a worker finds its [`Job`].
const JOB: &str = "STREAMLANE_WORKER_JOB";

/// How a worker consumes.
#[derive(Clone, Serialize, Deserialize)]
pub struct Job {
    pub url: String,
    pub log: PathBuf,
    /// Made when it owns as much as it waits for.
    pub ready: PathBuf,
    /// What the library says to this worker.
    pub lines: PathBuf,
    /// What tells this process from its predecessors.
    pub instance: String,
    /// The name that its claims go by, which a successor may share.
    pub pod: String,
    /// How many partitions it is to own before it is ready.
    pub waits_for: u32,
    /// How long its claims last, and how often they are renewed.
    pub lease: (Duration, Duration),
    /// Which of how many it is, where partitions are divided by numbers.
    pub place: Option<(u32, u32)>,
    pub keeps: Keeps,
    /// Whether it handles batches, or else messages.
    pub batches: bool,
    /// How long a message takes.
    pub work: Duration,
    /// Whether messages that [fail](fails) there are, each of which becomes a dead letter.
    pub parks: bool,
    /// The body of the message at which a handler call never returns.
    pub hangs_at: Option<String>,
    /// The body of the message that is not handled until a stop, and then given up.
    pub gives_up_at: Option<String>,
    /// The body of the message at which the process aborts, after so long.
    pub aborts_at: Option<(String, Duration)>,
    /// The body of the message that takes so long.
    pub slow_at: Option<(String, Duration)>,
    /// How often a message may be handed over in vain, where that is not the default.
    pub max_deliveries: Option<u32>,
    /// After how long a partition is given to another instance whose handler does not come back.
    pub hands_over_after: Option<Duration>,
    /// Whether a group keeps what is finished.
    pub queue: Option<Queue>,
}

/// How the members of a group are given messages.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Queue {
    /// Each partition has one owner, and what fails is [parked](Job::parks).
    Leased,
    /// Whoever is free is given them, and what fails is what its [`Lot`] says.
    Work,
}

/// What becomes of a message that is work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lot {
    Good,
    /// It fails whenever it is handled.
    Bad,
    /// It fails at its first attempt.
    GoodLater,
    /// The handler asks for a dead letter.
    Hopeless,
}

impl Lot {
    pub fn of(key: &[u8]) -> Self {
        match key.last() {
            Some(b'0') => Self::Bad,
            Some(b'1') => Self::GoodLater,
            Some(b'2') => Self::Hopeless,
            _ => Self::Good,
        }
    }
}

/// How often a [bad](Lot::Bad) message is handed over again.
pub const RETRIES: u32 = 2;

/// When positions are stored.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub enum Keeps {
    /// As it is when nothing is set.
    Default,
    Within(Duration),
    EachMessage,
}

impl Job {
    /// One who is alone, whose successor has to wait for no longer than a moment.
    pub fn new(server: &PrivateServer, logs: &Logs, instance: impl Into<String>) -> Self {
        let instance = instance.into();
        Self {
            url: server.url(),
            log: logs.handled.clone(),
            ready: server.dir().join(format!("ready-{instance}")),
            lines: server.dir().join(format!("lines-{instance}")),
            pod: instance.clone(),
            instance,
            waits_for: PARTITIONS,
            lease: (Duration::from_millis(600), Duration::from_millis(150)),
            place: None,
            keeps: Keeps::Default,
            batches: false,
            work: Duration::ZERO,
            parks: false,
            hangs_at: None,
            gives_up_at: None,
            aborts_at: None,
            slow_at: None,
            max_deliveries: None,
            hands_over_after: None,
            queue: None,
        }
    }

    /// The same for the next process, which gets stuck nowhere.
    pub fn again(&self, instance: &str) -> Self {
        Self {
            instance: instance.into(),
            pod: instance.into(),
            ready: self.ready.with_file_name(format!("ready-{instance}")),
            lines: self.lines.with_file_name(format!("lines-{instance}")),
            hangs_at: None,
            ..self.clone()
        }
    }

    fn start(self) -> Consumer {
        let streams = Streams::open(settings(&self.url).pod_name(&*self.pod)).unwrap();
        let (ttl, renew) = self.lease;
        let consumer = streams.consumer(TOPIC).name(CONSUMER);
        let consumer = consumer.lease_ttl(ttl).lease_renew(renew);
        let consumer = match self.place {
            None => consumer,
            Some((index, count)) => consumer.instance_of(index, count),
        };
        let consumer = match self.keeps {
            Keeps::Default => consumer,
            Keeps::Within(interval) => consumer.persist_interval(interval),
            Keeps::EachMessage => consumer.persist(Persist::SyncMessage),
        };
        let consumer = if self.parks {
            consumer.park(1).park_pauses(Duration::ZERO, Duration::ZERO)
        } else {
            consumer
        };
        let consumer = match self.max_deliveries {
            None => consumer,
            Some(most) => consumer.max_deliveries(most),
        };
        let consumer = match self.hands_over_after {
            None => consumer,
            Some(after) => consumer.stalled(after).hand_over_when_stalled(true),
        };
        let consumer = match self.queue {
            None => consumer,
            Some(Queue::Leased) => consumer.delivery(Delivery::LeasedQueue),
            Some(Queue::Work) => {
                let pause = Duration::from_millis(30);
                let consumer = consumer.delivery(Delivery::WorkQueue).retry(RETRIES);
                consumer.retry_pauses(pause, 2 * pause)
            }
        };
        let batches = self.batches;
        let log = Recorder::append(&self.log).unwrap();
        let shared = Arc::new((self, log));
        let tenure = move |_| Tenure {
            shared: Arc::clone(&shared),
            epoch: now_ns(),
        };
        let consumer = if batches {
            consumer.batches(move |p| {
                let tenure = tenure(p);
                move |b: &Batch<'_>| b.each(|m| tenure.handle(m))
            })
        } else {
            consumer.messages(move |p| {
                let tenure = tenure(p);
                move |m: &Message<'_>| tenure.handle(m)
            })
        };
        consumer.start().unwrap()
    }
}

/// Whether a message of this key fails whenever it is handled.
pub fn fails(key: &[u8]) -> bool {
    key.ends_with(b"-0")
}

/// A worker on one partition, from the claim to its end.
struct Tenure {
    shared: Arc<(Job, Recorder)>,
    /// When it began: handlers are made after the claim, and claims follow one another. That they do is
    /// for the server's own log to say.
    epoch: u64,
}

impl Tenure {
    fn handle(&self, m: &Message<'_>) -> HandlerResult {
        let (job, _) = &*self.shared;
        self.record(Kind::Started, m);
        while job.hangs_at.as_deref().map(str::as_bytes) == Some(m.body()) {
            thread::park();
        }
        if job.gives_up_at.as_deref().map(str::as_bytes) == Some(m.body()) {
            assert!(eventually(PATIENCE, || m.is_cancelled()));
            return Err("stopping".into());
        }
        let about = |at: &Option<(String, Duration)>| {
            let (body, after) = at.as_ref()?;
            (body.as_bytes() == m.body()).then_some(*after)
        };
        if let Some(after) = about(&job.slow_at) {
            thread::sleep(after);
        }
        if let Some(after) = about(&job.aborts_at) {
            thread::sleep(after);
            process::abort();
        }
        if !job.work.is_zero() {
            thread::sleep(job.work);
        }
        if job.queue.is_some() && m.is_cancelled() {
            return Err("it may be another's by now".into());
        }
        if job.queue == Some(Queue::Work) {
            match Lot::of(m.key().as_bytes()) {
                Lot::Bad => return Err("for good".into()),
                Lot::GoodLater if m.attempt() == 1 => return Err("not yet".into()),
                Lot::Hopeless => return Err("for good").or_dead_letter(),
                Lot::Good | Lot::GoodLater => {}
            }
        }
        if job.parks && fails(m.key().as_bytes()) {
            // Some are dead letters because the handler says so, the others at their second failure.
            let asks = m.id().ms().is_multiple_of(2);
            if asks || m.attempt() > 1 {
                self.record(Kind::Parked, m);
            }
            return if asks {
                Err("for good").or_dead_letter()
            } else {
                Err("for good".into())
            };
        }
        self.record(Kind::Handled, m);
        Ok(())
    }

    fn record(&self, kind: Kind, m: &Message<'_>) {
        let (job, log) = &*self.shared;
        let (id, key) = ((m.id().ms(), m.id().seq()), m.key());
        let event = Event {
            instance: job.instance.as_str().into(),
            epoch: self.epoch,
            ..Event::now(kind, TOPIC, m.partition(), id, key.as_bytes())
        };
        log.record(&event).unwrap();
    }
}

/// Writes down what the library says.
struct Lines(File);

impl log::Log for Lines {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let ms = now_ns() / 1_000_000;
        let line = format!("{ms} {} {}\n", record.level(), record.args());
        let _ = (&self.0).write_all(line.as_bytes());
    }

    fn flush(&self) {}
}

/// No test: the worker's way in. Without a job there is nothing to do.
#[test]
fn entry() {
    let Ok(job) = env::var(JOB) else { return };
    let job: Job = serde_json::from_str(&job).unwrap();
    let lines = File::options().create(true).append(true).open(&job.lines);
    log::set_logger(Box::leak(Box::new(Lines(lines.unwrap())))).unwrap();
    log::set_max_level(log::LevelFilter::Debug);
    let (ready, waits_for) = (job.ready.clone(), job.waits_for as usize);
    let consumer = job.start();
    let owns = || consumer.owned().len() >= waits_for;
    assert!(eventually(PATIENCE, owns), "it owns its partitions");
    fs::write(ready, "").unwrap();
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
    pub job: Job,
    process: Process,
}

impl Worker {
    pub fn start(job: Job) -> Self {
        let text = serde_json::to_string(&job).unwrap();
        let process = Process::start("common::worker::entry", &[(JOB, &text)]);
        Self { job, process }
    }

    /// Waits until it owns what it waits for.
    #[track_caller]
    pub fn await_ready(&self) {
        let ready = || self.job.ready.exists();
        assert!(eventually(PATIENCE, ready), "{} starts", self.job.instance);
    }

    /// Kills it with SIGKILL. Notes the last moment at which it was surely alive, for what it handled
    /// before, and the first at which it was not, for what it handled in between.
    #[track_caller]
    pub fn kill(self) {
        let Self { job, process } = self;
        mark(&job);
        process.kill();
        mark(&job);
    }

    /// Waits until it has aborted, or owns everything and has handled all there is, as `done` tells. True when
    /// it died.
    #[track_caller]
    pub fn await_death(&mut self, mut done: impl FnMut() -> bool) -> bool {
        let mut died = false;
        let either = eventually(PATIENCE, || {
            died = self.process.ended().is_some();
            died || done()
        });
        assert!(either, "{} dies or gets through", self.job.instance);
        if died {
            mark(&self.job);
        }
        died
    }

    /// Freezes it (SIGSTOP), with the same notes.
    pub fn freeze(&self) {
        mark(&self.job);
        self.process.freeze();
        mark(&self.job);
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.process.thaw();
    }

    /// What the library has said to it so far.
    pub fn lines(&self) -> String {
        fs::read_to_string(&self.job.lines).unwrap_or_default()
    }

    /// Tells it to `stop` or to `drain`.
    pub fn tell(&mut self, order: &str) {
        let stdin = self.process.0.stdin.as_mut().unwrap();
        writeln!(stdin, "{order}").unwrap();
    }

    /// Waits until it has ended as it was told.
    #[track_caller]
    pub fn await_end(&mut self) {
        let mut ended = None;
        let in_time = eventually(PATIENCE + PATIENCE, || {
            ended = self.process.ended();
            ended.is_some()
        });
        assert!(in_time, "{} ends", self.job.instance);
        assert!(ended.as_ref().is_some_and(ExitStatus::success), "{ended:?}");
    }

    /// Lets it handle everything there is, and end.
    #[track_caller]
    pub fn drain(mut self) {
        self.await_ready();
        self.tell("drain");
        self.await_end();
    }
}

/// Notes that whoever does this job has come to its end about now.
fn mark(job: &Job) {
    let log = Recorder::append(&job.log).unwrap();
    log.record(&Event::killed(&job.instance)).unwrap();
}
