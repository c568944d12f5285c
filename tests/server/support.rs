//! What the tests have in common.

use std::{
    fs,
    sync::{Arc, Mutex, Once},
    time::Duration,
};

use streamlane::{
    Consumer, ConsumerBuilder, HandlerResult, HasHandler, Message, Settings, Streams,
    TopicSettings,
    testing::{PrivateServer, eventually},
};

/// How long anything may take that should take no time: generous, since machines can be slow.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn server() -> PrivateServer {
    PrivateServer::builder().tcp().start().unwrap()
}

/// Settings for a private server and a topic of so many partitions that is never trimmed.
pub fn settings(url: &str, topic: &str, partitions: u32) -> Settings {
    keep_log();
    Settings::default().connection_string(url).with_topic(
        topic,
        TopicSettings::default()
            .partitions(partitions)
            .max_len(1_000_000),
    )
}

pub fn open(url: &str, topic: &str, partitions: u32) -> Streams {
    Streams::open(settings(url, topic, partitions)).unwrap()
}

/// A list that handlers add to and tests look at.
#[derive(Clone, Debug)]
pub struct Seen<T>(Arc<Mutex<Vec<T>>>);

impl<T> Default for Seen<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Clone> Seen<T> {
    pub fn push(&self, item: T) {
        self.0.lock().unwrap().push(item);
    }

    pub fn all(&self) -> Vec<T> {
        self.0.lock().unwrap().clone()
    }

    pub fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Waits until there are so many, and says what there was if there never are.
    #[track_caller]
    pub fn wait_for(&self, n: usize) -> Vec<T>
    where
        T: std::fmt::Debug,
    {
        let there = eventually(PATIENCE, || self.len() >= n);
        assert!(
            there,
            "waited for {n}, got {}: {:.300?}",
            self.len(),
            self.all()
        );
        self.all()
    }
}

/// A consumer that writes the bodies it is given down as text.
pub fn recording(builder: ConsumerBuilder, seen: &Seen<String>) -> ConsumerBuilder<HasHandler> {
    let seen = seen.clone();
    builder.messages(move |_| {
        let seen = seen.clone();
        move |m: &Message<'_>| -> HandlerResult {
            seen.push(String::from_utf8_lossy(m.body()).into_owned());
            Ok(())
        }
    })
}

/// Publishes bodies `from..to` as text, all with one key.
pub fn publish(streams: &Streams, topic: &str, range: std::ops::Range<u32>) {
    let publisher = streams.publisher(topic).unwrap();
    for n in range {
        publisher.publish("key", "T", n.to_string()).unwrap();
    }
}

#[track_caller]
pub fn expect(what: &str, happened: impl FnMut() -> bool) {
    assert!(eventually(PATIENCE, happened), "waited in vain for: {what}");
}

/// Waits until every lane of a consumer reads.
#[track_caller]
pub fn running(consumer: &Consumer) {
    expect("all lanes to run", || {
        consumer
            .partitions()
            .iter()
            .all(|p| p.state == streamlane::LaneState::Running)
    });
}

/// What the library logged in this process, oldest first, each line with its level in front.
static LOG: Mutex<Vec<(log::Level, String)>> = Mutex::new(Vec::new());

struct Kept;

impl log::Log for Kept {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, line: &log::Record<'_>) {
        let text = format!("{} {}", line.level(), line.args());
        LOG.lock().unwrap().push((line.level(), text));
    }

    fn flush(&self) {}
}

/// Keeps what is logged from now on; [`settings`] calls it.
pub fn keep_log() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&Kept).unwrap();
        log::set_max_level(log::LevelFilter::Trace);
    });
}

/// The lines of this level or worse that hold `text`, such as a topic or an endpoint: tests run side by
/// side, so each looks for something only it has.
pub fn logged(level: log::Level, text: &str) -> Vec<String> {
    let log = LOG.lock().unwrap();
    let ours = log.iter().filter(|(l, t)| *l <= level && t.contains(text));
    ours.map(|(_, t)| t.clone()).collect()
}

/// The connections whose name holds `name`: their ids, sorted.
pub fn connections(server: &PrivateServer, name: &str) -> Vec<u64> {
    let list = server.command(&["CLIENT", "LIST"]).unwrap().text();
    let field = |line: &str, name: &str| -> Option<String> {
        let mut fields = line.split(' ');
        fields.find_map(|f| f.strip_prefix(name)?.strip_prefix('=').map(str::to_owned))
    };
    let mut ids: Vec<u64> = list
        .lines()
        .filter(|l| field(l, "name").is_some_and(|n| n.contains(name)))
        .filter_map(|l| field(l, "id")?.parse().ok())
        .collect();
    ids.sort_unstable();
    ids
}

/// The threads of this process whose name ends in `-topic` (15 bytes of it survive), and the processor
/// time they have used.
pub fn lane_threads(topic: &str) -> (usize, Duration) {
    let (mut n, mut used) = (0, Duration::ZERO);
    for task in fs::read_dir("/proc/self/task").unwrap().flatten() {
        // a thread may end between two looks
        let Ok(name) = fs::read_to_string(task.path().join("comm")) else {
            continue;
        };
        if name.trim_end().ends_with(&format!("-{topic}")) {
            let stat = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            let ns = stat.split(' ').next().and_then(|ns| ns.parse().ok());
            n += 1;
            used += Duration::from_nanos(ns.unwrap_or(0));
        }
    }
    (n, used)
}
