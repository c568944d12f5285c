//! The way in: a server, its settings, and everything that is done with it.

mod advice;
mod observed;
#[cfg(feature = "http")]
mod pages;
mod prepare;
mod topics;
mod traced;

use std::{
    collections::BTreeMap,
    env, fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::{Condvar, Mutex};

use crate::{
    Admin, ConsumerBuilder, Error, ErrorKind, Forwarder, Idempotency, Outbox, Publisher, Result,
    Settings, StateStore,
    backoff::jittered,
    clock,
    consumer::Running,
    monitor::Letters,
    net::{self, Connection, Deadline, Target},
    observe::Sampler,
    publish::{self, AllCounts, BufferedPublisher, Delays, PublishPlan},
    retention::{self, Retention},
    trace::Tracing,
    trims::AllTrims,
    wire::{InstanceId, Keys, check_scope, check_topic, client_name, pod_name},
};

pub(crate) use prepare::{NameGuard, Prepared};
use topics::{Topics, Watch};

/// A server and what is said about it: makes publishers and consumers.
///
/// Cheap to clone; all clones are one. Running consumers hold one, so it lives as long as they do.
///
/// ```no_run
/// use std::time::Duration;
/// use streamlane::{Message, Streams};
///
/// fn main() -> Result<(), streamlane::Error> {
///     let streams = Streams::connect("redis://127.0.0.1:6379")?;
///     let consumer = streams
///         .consumer("orders")
///         .name("billing")
///         .messages(|_partition| |m: &Message<'_>| {
///             println!("{} {}", m.id(), m.message_type());
///             Ok(())
///         })
///         .start()?;
///     streams.publisher("orders")?.publish("order-1", "OrderPlaced", br#"{"id":1}"#)?;
///     consumer.drain(Duration::from_secs(5))?;
///     Ok(())
/// }
/// ```
#[derive(Clone)]
pub struct Streams {
    inner: Arc<Inner>,
}

struct Inner {
    settings: Settings,
    target: Arc<Target>,
    keys: Keys,
    instance: InstanceId,
    pod: String,
    consumers: Arc<Consumers>,
    topics: Topics,
    sampler: Sampler,
    delays: Arc<Delays>,
    retention: Retention,
    trims: Arc<AllTrims>,
    published: Arc<AllCounts>,
    /// One queue for each topic.
    buffered: Mutex<BTreeMap<String, Weak<publish::Handle>>>,
    /// What was done with dead letters.
    letters: Arc<Letters>,
    trace: Tracing,
    end: Mutex<End>,
    ended: Condvar,
}

/// All that were started and may still run.
type Consumers = Mutex<Vec<Weak<Running>>>;

#[derive(Default)]
struct End {
    stopped: bool,
    error: Option<Error>,
}

/// The pause between two tries of a start.
const START_RETRY: Duration = Duration::from_millis(250);

impl Streams {
    /// Connects to a server given as a URL (`redis://user:password@host:6379/0`, `unix:///path`) or as
    /// `host:port,password=…`, with default settings.
    ///
    /// Blocks for up to `ConnectTimeoutMs` (5 s).
    ///
    /// # Errors
    ///
    /// A text that is no address, or a server that cannot be reached or refuses the login.
    pub fn connect(url: impl Into<String>) -> Result<Self> {
        Self::open(Settings::default().connection_string(url.into()))
    }

    /// Opens what the settings describe, after checking all of them. One log line tells the values in
    /// effect, secrets masked; each oddity is a warning of its own.
    ///
    /// Blocks for up to `ConnectTimeoutMs` (5 s); while the server says that it is loading its data, up to
    /// `StartTimeoutMs` (60 s). A connection string with `abortConnect=false` lets a service start before
    /// its server does.
    ///
    /// # Errors
    ///
    /// Every setting that is wrong, all at once; or a server that cannot be reached or refuses the login.
    pub fn open(mut settings: Settings) -> Result<Self> {
        let (warnings, target) = match (settings.check(), target_of(&settings)) {
            (Ok(warnings), Ok(target)) => (warnings, Arc::new(target)),
            (Err(e), Ok(_)) | (Ok(_), Err(e)) => return Err(e),
            (Err(e), Err(address)) => {
                let both = format!("{}\n{}", e.message(), address.message());
                return Err(e.saying(both));
            }
        };
        settings.heed_connect_timeout(target.connect_timeout());
        let lookup = |name: &str| ambient(&settings, name);
        let (keys, pod) = (Keys::with_prefix(&settings.key_prefix)?, pod_name(lookup));
        let consumers = Arc::<Consumers>::default();
        let (published, trims) = (Arc::<AllCounts>::default(), Arc::<AllTrims>::default());
        let delays = Delays::new(publish::Terms {
            target: Arc::clone(&target),
            keys: keys.clone(),
            client_name: client_name(&["streams-delays", &pod]),
            timeout: settings.connect_timeout,
            counts: Arc::clone(&published),
        });
        let inner = Inner {
            retention: Retention::new(retention::Terms {
                target: Arc::clone(&target),
                keys: keys.clone(),
                client_name: client_name(&["streams-retention", &pod]),
                token: delays.token().to_owned(),
                timeout: settings.connect_timeout,
                counts: Arc::clone(&trims),
            }),
            trims,
            delays: Arc::new(delays),
            published,
            topics: Topics::new(Watch {
                target: Arc::clone(&target),
                keys: keys.clone(),
                client_name: client_name(&["streams-topics", &pod]),
                interval: settings.topic_refresh,
                timeout: settings.connect_timeout,
                consumers: Arc::clone(&consumers),
            }),
            sampler: observed::sampler(&settings, &target, &pod, &consumers),
            keys,
            instance: InstanceId::from_env(lookup),
            pod,
            target,
            consumers,
            buffered: Mutex::default(),
            letters: Arc::default(),
            trace: Tracing::default(),
            end: Mutex::default(),
            ended: Condvar::new(),
            settings,
        };
        for w in warnings {
            log::warn!("{w}");
        }
        log::info!(
            "streamlane {}: {}",
            env!("CARGO_PKG_VERSION"),
            inner.settings.summary()
        );
        let streams = Self {
            inner: Arc::new(inner),
        };
        if streams.inner.target.wait_for_server() {
            match streams.dial("streams", Duration::MAX) {
                Ok(mut c) => advice::advise(&mut c),
                Err(e) if e.is_retryable() => {
                    log::warn!("{e}; going on without, as abortConnect=false says");
                }
                Err(e) => return Err(e),
            }
        } else {
            streams.when_ready(|c| {
                advice::advise(c);
                Ok(())
            })?;
        }
        Ok(streams)
    }

    /// The settings in use.
    pub fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// A publisher for a topic, from its entry in `Topics` or with defaults. Connects on first use.
    ///
    /// # Errors
    ///
    /// A name that no topic can have, or one whose entry in `Producers` says `Buffered: true`.
    pub fn publisher(&self, topic: impl Into<String>) -> Result<Publisher> {
        let topic = topic.into();
        let settings = &self.inner.settings;
        settings.producer_for(&topic, false, "streams.publisher")?;
        Ok(Publisher::new(self.publish_plan("streams-pub", topic)?))
    }

    /// A buffered publisher for a topic, from its entries in `Producers` and `Topics` or with defaults.
    /// Connects on first use. While one is open, this is another handle of it.
    ///
    /// # Errors
    ///
    /// A name that no topic can have, one whose entry in `Producers` says `Buffered: false`, or a thread
    /// that cannot be started.
    pub fn buffered(&self, topic: impl Into<String>) -> Result<BufferedPublisher> {
        let topic = topic.into();
        let inner = &*self.inner;
        let producer = inner
            .settings
            .producer_for(&topic, true, "streams.buffered")?;
        let mut open = inner.buffered.lock();
        if let Some(publisher) = open.get(&topic).and_then(BufferedPublisher::upgrade) {
            return Ok(publisher);
        }
        let plan = self.publish_plan("streams-pump", topic.clone())?;
        let publisher = BufferedPublisher::start(plan, producer)?;
        open.insert(topic, publisher.downgrade());
        Ok(publisher)
    }

    /// An outbox for a topic, from its entry in `Topics` or with defaults, on a connection of its own.
    /// Connects on first use.
    ///
    /// # Errors
    ///
    /// A name that no topic can have.
    pub fn outbox(&self, topic: impl Into<String>) -> Result<Outbox> {
        Ok(Outbox::new(
            self.publish_plan("streams-outbox", topic.into())?,
        ))
    }

    /// A state store for a topic, from its entry in `Topics` or with defaults, on a connection of its
    /// own. Connects on first use.
    ///
    /// # Errors
    ///
    /// A name that no topic can have, or a topic that is set to `CoLocatePartitions: false`.
    pub fn state_store(&self, topic: impl Into<String>) -> Result<StateStore> {
        StateStore::new(self.publish_plan("streams-outbox", topic.into())?)
    }

    /// What is told to whoever publishes to a topic; `role` begins the name of its connections.
    fn publish_plan(&self, role: &str, topic: String) -> Result<PublishPlan> {
        check_topic(&topic)?;
        let Inner {
            settings,
            target,
            keys,
            pod,
            published,
            topics,
            trace,
            delays,
            retention,
            ..
        } = &*self.inner;
        let of_topic = settings.topic(&topic);
        let counts = Arc::clone(published.lock().entry(topic.clone()).or_default());
        let partitions = topics.partitions(&topic, &of_topic);
        delays.watch(&topic, &of_topic, &partitions);
        retention.watch(&topic, &of_topic, &partitions);
        Ok(PublishPlan {
            target: Arc::clone(target),
            keys: keys.clone(),
            partitions,
            settings: of_topic,
            client_name: client_name(&[role, &topic, pod]),
            topic,
            connect_timeout: self.connect_timeout(),
            timeout: settings.publish_timeout,
            max_message_bytes: settings.max_message_bytes as usize,
            counts,
            trace: trace.clone(),
            delays: Arc::clone(delays),
        })
    }

    /// What publishes to a topic what comes of ordered sources, exactly once in effect; see
    /// [`Forwarder`]. The topic is from its entry in `Topics` or with defaults. Connects on first use.
    ///
    /// # Errors
    ///
    /// A name that no topic can have, or a topic that is set to `CoLocatePartitions: false`.
    pub fn forwarder(&self, target: impl Into<String>) -> Result<Forwarder> {
        Forwarder::new(self.publish_plan("streams-forward", target.into())?)
    }

    /// What tells the first sight of an id from the others; see [`Idempotency`]. `scope` keeps the ids of
    /// one purpose apart from all others, on this server and for every service that names it. Connects on
    /// first use.
    ///
    /// # Errors
    ///
    /// A name that no scope can have: it is empty, or holds a brace or a control character.
    pub fn idempotency(&self, scope: impl AsRef<str>) -> Result<Idempotency> {
        let scope = scope.as_ref();
        check_scope(scope)?;
        let inner = &*self.inner;
        Ok(Idempotency::new(
            Arc::clone(&inner.target),
            client_name(&["streams-dedupe", scope, &inner.pod]),
            [self.connect_timeout(), inner.settings.publish_timeout],
            inner.keys.dedupe(scope),
        ))
    }

    /// For operators: to look at consumers, which may run anywhere, and to move them.
    pub fn admin(&self) -> Admin {
        let inner = &*self.inner;
        Admin::new(
            Arc::clone(&inner.target),
            inner.keys.clone(),
            inner.settings.clone(),
            client_name(&["streams-admin", &inner.pod]),
            Arc::clone(&inner.trims),
            Arc::clone(&inner.letters),
        )
    }

    /// Begins to describe a consumer of a topic, with its entry in `Consumers` or with defaults.
    pub fn consumer(&self, topic: impl Into<String>) -> ConsumerBuilder {
        ConsumerBuilder::of_topic(self.clone(), topic.into())
    }

    /// Begins to describe a consumer from the entry of `Consumers` with this index.
    ///
    /// # Errors
    ///
    /// There are not that many entries.
    pub fn consumer_at(&self, index: usize) -> Result<ConsumerBuilder> {
        Ok(ConsumerBuilder::of_entry(
            self.clone(),
            self.inner.settings.consumer_at(index)?,
        ))
    }

    /// Stops every consumer, all at once, and lets [`wait`](Self::wait) return. From then on no
    /// consumer's start waits for a server that is not ready. Publishers publish on, and delayed messages are
    /// moved, until the last of them and of the clones is dropped.
    ///
    /// Blocks for up to the longest of their shutdown timeouts.
    pub fn stop(&self) {
        self.stop_all();
        self.inner.end.lock().stopped = true;
        self.inner.ended.notify_all();
    }

    /// Blocks until [`stop`](Self::stop) is called on a clone, or until a consumer ends by
    /// `OnError: Fail`; for ever otherwise, even if every partition was stopped by its policy.
    ///
    /// # Errors
    ///
    /// The error that a consumer failed with, for everyone who waits; by then every consumer has been
    /// stopped.
    pub fn wait(&self) -> Result<()> {
        let mut end = self.inner.end.lock();
        while !end.stopped {
            self.inner.ended.wait(&mut end);
        }
        let error = end.error.as_ref().map(Error::again);
        drop(end);
        self.stop_all();
        error.map_or(Ok(()), Err)
    }

    fn stop_all(&self) {
        let running = self.running();
        // All are told before any is waited for.
        for consumer in &running {
            consumer.signal_stop();
        }
        let told = clock::now();
        for consumer in &running {
            consumer.stopped_since(told);
        }
    }

    fn running(&self) -> Vec<Arc<Running>> {
        let consumers = self.inner.consumers.lock();
        consumers.iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn register(&self, consumer: &Arc<Running>) {
        let mut consumers = self.inner.consumers.lock();
        consumers.retain(|c| c.strong_count() > 0);
        consumers.push(Arc::downgrade(consumer));
        drop(consumers);
        self.inner.sampler.start();
    }

    pub(crate) fn downgrade(&self) -> WeakStreams {
        WeakStreams(Arc::downgrade(&self.inner))
    }

    fn connect_timeout(&self) -> Duration {
        self.inner.settings.connect_timeout
    }

    /// Connects within `timeout`, which `ConnectTimeoutMs` may shorten.
    fn dial(&self, role: &str, timeout: Duration) -> Result<Connection> {
        let name = client_name(&[role, &self.inner.pod]);
        let timeout = timeout.min(self.connect_timeout());
        Connection::dial(&self.inner.target, &name, None, timeout)
    }

    /// Runs commands on a connection of their own, within `by`, connecting included.
    pub(crate) fn on_control<T>(
        &self,
        by: Deadline,
        f: impl FnOnce(&mut Connection) -> Result<T>,
    ) -> Result<T> {
        f(&mut self.dial("streams-admin", by.left())?)
    }

    /// Tries again while the server is there but says that it will be ready later.
    fn when_ready<T>(&self, mut f: impl FnMut(&mut Connection) -> Result<T>) -> Result<T> {
        let settings = &self.inner.settings;
        let until = clock::now() + settings.start_timeout;
        let mut told = false;
        loop {
            let e = match self
                .dial("streams-admin", Duration::MAX)
                .and_then(|mut c| f(&mut c))
            {
                Ok(done) => return Ok(done),
                Err(e) => e,
            };
            let patient = self.inner.target.wait_for_server() || e.server_class().is_some();
            if !(e.is_retryable() && patient) || clock::now() >= until {
                return Err(e);
            }
            if !std::mem::replace(&mut told, true) {
                log::warn!(
                    "the server is not ready: {e}; waiting for up to {:?}",
                    settings.start_timeout
                );
            }
            if self.stopped_within(jittered(START_RETRY)) {
                let what = format!("told to stop while the server was not ready: {e}");
                return Err(Error::new(ErrorKind::Stopped, "start", what));
            }
        }
    }

    /// Lets so much time pass, or less when everything is told to stop: then it returns true.
    fn stopped_within(&self, time: Duration) -> bool {
        let until = clock::now() + time;
        let mut end = self.inner.end.lock();
        while !end.stopped && !self.inner.ended.wait_until(&mut end, until).timed_out() {}
        end.stopped
    }
}

impl fmt::Debug for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streams")
            .field("endpoint", &self.inner.target.endpoint())
            .field("instance", &self.inner.instance)
            .finish_non_exhaustive()
    }
}

/// What lanes hold of their [`Streams`]: not enough to keep it alive.
#[derive(Clone)]
pub(crate) struct WeakStreams(Weak<Inner>);

impl WeakStreams {
    fn upgrade(&self) -> Option<Streams> {
        let inner = self.0.upgrade()?;
        Some(Streams { inner })
    }

    /// Ends everything with this error. Called on a lane, so it waits for nothing.
    pub(crate) fn fail(&self, error: Error) {
        log::error!("stopping every consumer: {error}");
        let Some(streams) = self.upgrade() else {
            return;
        };
        streams.running().iter().for_each(|c| c.signal_stop());
        let mut end = streams.inner.end.lock();
        end.stopped = true;
        end.error.get_or_insert(error);
        streams.inner.ended.notify_all();
    }
}

/// The server that settings name.
fn target_of(settings: &Settings) -> Result<Target> {
    let Some(text) = &settings.connection_string else {
        return Err(Error::config(
            "Streams:ConnectionString: no server is given; say redis://host:6379 or host:port,password=…",
        ));
    };
    let mut target = Target::parse(text.reveal())?;
    if let Some(name) = &settings.username {
        target = target.with_username(name);
    }
    if let Some(password) = &settings.password {
        target = target.with_password(net::Secret::new(password.reveal().as_bytes()));
    }
    if let Some(db) = settings.database {
        target = target.with_db(db);
    }
    Ok(target)
}

/// What the environment says of this instance; of its name the settings say it first.
fn ambient(settings: &Settings, name: &str) -> Option<String> {
    let named = settings.pod_name.clone().filter(|_| name == "POD_NAME");
    named.or_else(|| env::var(name).ok())
}
