//! A thread that publishes without pause and writes down what became of it.

use std::{
    fmt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use streamlane::{
    Outcome, Outgoing, Publisher, Result, StreamId, Streams,
    testing::{Event, Kind, Recorder, eventually},
};

use super::{PATIENCE, TOPIC, proof::Logs};
use crate::PARTITIONS;

/// Keys per partition.
const KEYS: u32 = 5;

/// What became of what was published.
#[derive(Default)]
pub struct Tally {
    published: u64,
    unknown: u64,
    not_applied: u64,
    took: Duration,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = u128::from(self.published) * 1000 / self.took.as_millis().max(1);
        write!(
            f,
            "published {} in {:.1} s ({rate}/s), unknown {}, not applied {}",
            self.published,
            self.took.as_secs_f64(),
            self.unknown,
            self.not_applied
        )
    }
}

/// Writes down an outcome: an id, a doubt, or nothing for what is known not to exist.
fn event<'a>(partition: u32, key: &'a str, result: &Result<StreamId>) -> Option<Event<'a>> {
    let (kind, id) = match result {
        Ok(id) => (Kind::Published, (id.ms(), id.seq())),
        Err(e) if e.outcome() == Outcome::NotApplied => return None,
        Err(_) => (Kind::Unknown, (0, 0)),
    };
    let instance = "publisher".into();
    let event = Event::now(kind, TOPIC, partition, id, key.as_bytes());
    Some(Event { instance, ..event })
}

/// Publishes one message and records it.
pub fn publish(
    publisher: &Publisher,
    log: &Recorder,
    partition: u32,
    key: &str,
    body: &str,
) -> Result<StreamId> {
    let message = publisher.message("T", body).key(key).partition(partition);
    let result = message.publish();
    log.record_all(event(partition, key, &result).iter())
        .unwrap();
    result
}

pub struct Load {
    shared: Arc<Shared>,
    /// Dropped to end the thread.
    stop: mpsc::Sender<()>,
    thread: JoinHandle<Tally>,
}

#[derive(Default)]
struct Shared {
    paused: AtomicBool,
    whole_batches: AtomicU64,
}

impl Load {
    /// Batches of two messages per key, `pause` apart. Keys stay in their partitions.
    pub fn start(streams: &Streams, log: &PathBuf, pause: Duration) -> Self {
        let (stop, stopped) = mpsc::channel();
        let shared = Arc::new(Shared::default());
        let publisher = streams.publisher(TOPIC).unwrap();
        let log = Logs::recorder(log);
        let state = Arc::clone(&shared);
        let run = move || {
            let (begun, mut tally) = (Instant::now(), Tally::default());
            let resumes = mpsc::RecvTimeoutError::Timeout;
            while stopped.recv_timeout(pause) == Err(resumes) {
                if !state.paused.load(Relaxed) && tally.publish_batch(&publisher, &log) {
                    state.whole_batches.fetch_add(1, Relaxed);
                }
            }
            tally.took = begun.elapsed();
            tally
        };
        let thread = thread::Builder::new().name("load".into()).spawn(run);
        Self {
            shared,
            stop,
            thread: thread.unwrap(),
        }
    }

    pub fn pause(&self) {
        self.shared.paused.store(true, Relaxed);
    }

    /// Publishes again; returns once a whole batch got through.
    #[track_caller]
    pub fn resume(&self) {
        let before = self.shared.whole_batches.load(Relaxed);
        self.shared.paused.store(false, Relaxed);
        let through = || self.shared.whole_batches.load(Relaxed) > before;
        assert!(eventually(PATIENCE, through), "publishing works again");
    }

    /// Ends it and says what it did.
    pub fn finish(self) -> Tally {
        drop(self.stop);
        self.thread.join().unwrap()
    }
}

impl Tally {
    /// Whether every message got its id.
    fn publish_batch(&mut self, publisher: &Publisher, log: &Recorder) -> bool {
        let keys: Vec<(u32, String)> = (0..PARTITIONS)
            .flat_map(|p| (0..KEYS).map(move |k| (p, format!("key-{p}-{k}"))))
            .collect();
        let twice = || keys.iter().chain(&keys);
        let messages: Vec<_> = twice()
            .map(|(p, key)| Outgoing::new("T", "body").key(key).partition(*p))
            .collect();
        let results = publisher.publish_batch(&messages);
        let events: Vec<_> = twice()
            .zip(&results)
            .filter_map(|((p, key), result)| event(*p, key, result))
            .collect();
        log.record_all(&events).unwrap();
        let published = results.iter().filter(|r| r.is_ok()).count();
        self.published += published as u64;
        self.unknown += (events.len() - published) as u64;
        self.not_applied += (results.len() - events.len()) as u64;
        published == results.len()
    }
}
