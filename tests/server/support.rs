//! What the tests have in common.
#![allow(clippy::disallowed_types, clippy::unwrap_used, unreachable_pub)]

use std::{
    fs,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use streamlane::{
    Consumer, ConsumerBuilder, HandlerResult, HasHandler, Message, Settings, StreamId, Streams,
    TopicSettings,
    testing::{PrivateServer, eventually},
};

/// How long anything may take that should take no time: generous, since machines can be slow.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn server() -> PrivateServer {
    listen_to_the_log();
    PrivateServer::builder().tcp().start().unwrap()
}

/// Settings for a private server and a topic of so many partitions that is never trimmed.
pub fn settings(url: &str, topic: &str, partitions: u32) -> Settings {
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

/// Publishes bodies to one partition, in order.
pub(crate) fn publish_to(
    streams: &Streams,
    topic: &str,
    partition: u32,
    bodies: &[&str],
) -> Vec<StreamId> {
    let publisher = streams.publisher(topic).unwrap();
    bodies
        .iter()
        .map(|body| {
            let draft = publisher.message("T", *body).key("k");
            draft.partition(partition).publish().unwrap()
        })
        .collect()
}

/// The id that a consumer's position is stored as; `None` when there is none.
pub(crate) fn stored(
    server: &PrivateServer,
    topic: &str,
    consumer: &str,
    partition: u32,
) -> Option<StreamId> {
    let key = format!("re:p:{{{topic}}}:{consumer}");
    let value = server
        .command(&["HGET", &key, &partition.to_string()])
        .unwrap();
    value.text().split('|').next()?.parse().ok()
}

/// The tests of one process share its log: ask for lines by a topic or server of your own.
static LOG: Capture = Capture(Mutex::new(Vec::new()));

/// Hears every line, on the thread that logs it.
type Listener = Box<dyn Fn(&str) + Send + Sync>;

static LISTENERS: Mutex<Vec<Arc<Listener>>> = Mutex::new(Vec::new());

/// Has every line told from now on.
pub(crate) fn on_log(listener: impl Fn(&str) + Send + Sync + 'static) {
    LISTENERS.lock().unwrap().push(Arc::new(Box::new(listener)));
}

struct Capture(Mutex<Vec<String>>);

impl log::Log for Capture {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let line = format!("{} {}", record.level(), record.args());
        self.0.lock().unwrap().push(line.clone());
        // with the arguments of the record still borrowed, and no lock of ours held
        let listeners = LISTENERS.lock().unwrap().clone();
        for listen in &listeners {
            listen(&line);
        }
    }

    fn flush(&self) {}
}

pub(crate) fn listen_to_the_log() {
    if log::set_logger(&LOG).is_ok() {
        log::set_max_level(log::LevelFilter::Debug);
    }
}

/// The lines logged so far, level first, in which all of these texts occur.
pub(crate) fn logged(texts: &[&str]) -> Vec<String> {
    let lines = LOG.0.lock().unwrap();
    let wanted = |line: &&String| texts.iter().all(|t| line.contains(t));
    lines.iter().filter(wanted).cloned().collect()
}

/// The lines at warning or worse in which this text occurs.
pub(crate) fn warned(text: &str) -> Vec<String> {
    let lines = logged(&[text]).into_iter();
    let loud = |l: &String| l.starts_with("WARN") || l.starts_with("ERROR");
    lines.filter(loud).collect()
}

/// The connections whose name holds `name`: their ids, sorted.
pub(crate) fn connections(server: &PrivateServer, name: &str) -> Vec<u64> {
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
pub(crate) fn lane_threads(topic: &str) -> (usize, Duration) {
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

/// Says that it is over when it is dropped, so that a thread which waits for that ends with a test that
/// fails, too.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
