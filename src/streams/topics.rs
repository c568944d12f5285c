//! Notices when topics grow: one thread that looks up the number of partitions of each topic in use.
//!
//! It serves everybody in the process and disturbs nobody: what it cannot find out it asks again later,
//! and everything goes on with the partitions that are known.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;

use super::Consumers;
use crate::{
    Result, TopicSettings,
    consumer::Running,
    error::{Error, ErrorKind},
    net::{Background, Connection, Deadline, Inbox, Interrupt, STOP, Target, resp},
    publish::{GROWN, Partitions, Registry, Subject, restore},
    quiet::{HeldBack, Quiet},
    wire::{
        Keys,
        topic::{TopicRecord, field},
    },
};

/// The topics in use, and the thread that watches them.
pub(super) struct Topics {
    shared: Arc<Shared>,
    thread: Background,
}

/// What the watcher is told once.
pub(super) struct Watch {
    pub(super) target: Arc<Target>,
    pub(super) keys: Keys,
    pub(super) client_name: String,
    /// How often it looks.
    pub(super) interval: Duration,
    pub(super) timeout: Duration,
    /// Whom to tell.
    pub(super) consumers: Arc<Consumers>,
}

struct Shared {
    watch: Watch,
    interrupt: Arc<Interrupt>,
    registry: Arc<Registry>,
    topics: Mutex<BTreeMap<String, Arc<Topic>>>,
}

struct Topic {
    name: String,
    meta: String,
    settings: TopicSettings,
    /// Gone when nobody uses the topic any more.
    partitions: Weak<Partitions>,
}

impl Topics {
    pub(super) fn new(watch: Watch) -> Self {
        let interrupt = Arc::<Interrupt>::default();
        Self {
            thread: Background::new(Arc::clone(&interrupt), Duration::ZERO),
            shared: Arc::new(Shared {
                registry: Arc::new(Registry::new(&watch.keys)),
                watch,
                interrupt,
                topics: Mutex::default(),
            }),
        }
    }

    /// How many partitions a topic has, from now on kept up to date for as long as somebody holds it.
    pub(super) fn partitions(&self, name: &str, settings: &TopicSettings) -> Arc<Partitions> {
        let shared = &self.shared;
        let partitions = {
            let mut topics = shared.topics.lock();
            if let Some(p) = topics.get(name).and_then(|t| t.partitions.upgrade()) {
                return p;
            }
            let (watcher, registry) = (&shared.interrupt, &shared.registry);
            let partitions = Partitions::new(Arc::clone(watcher), Arc::clone(registry));
            let partitions = Arc::new(partitions);
            let topic = Topic {
                name: name.to_owned(),
                meta: shared.watch.keys.topic_meta(name),
                settings: settings.clone(),
                partitions: Arc::downgrade(&partitions),
            };
            topics.insert(name.to_owned(), Arc::new(topic));
            partitions
        };
        self.start();
        partitions
    }

    /// Starts the thread unless it runs. Without it everything goes on with the partitions that are known.
    fn start(&self) {
        let watch = || {
            let mut watcher = Watcher::new(Arc::clone(&self.shared));
            move || watcher.run()
        };
        let without = "it is not noticed when topics grow";
        self.thread.start("topics", without, watch);
    }
}

struct Watcher {
    shared: Arc<Shared>,
    connection: Option<Connection>,
    /// What is looked up this time.
    topics: Vec<(Arc<Topic>, Arc<Partitions>)>,
    /// Who is told this time.
    consumers: Vec<Arc<Running>>,
    commands: Vec<u8>,
    inbox: Inbox,
    quiet: Quiet,
}

impl Watcher {
    fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            connection: None,
            topics: Vec::new(),
            consumers: Vec::new(),
            commands: Vec::new(),
            inbox: Inbox::default(),
            quiet: Quiet::default(),
        }
    }

    fn run(&mut self) {
        let interrupt = Arc::clone(&self.shared.interrupt);
        loop {
            interrupt.sleep(self.shared.watch.interval, STOP | GROWN);
            if interrupt.bits() & STOP != 0 {
                return;
            }
            interrupt.clear(GROWN); // first: what grows from now on is looked at again
            let looked = self.look();
            self.topics.clear();
            self.consumers.clear();
            if let Err(e) = looked {
                self.failed(&e);
            }
        }
    }

    fn look(&mut self) -> Result<()> {
        self.collect();
        if self.topics.is_empty() {
            return Ok(());
        }
        let kept = self.connection.take();
        let kept = kept.and_then(|mut c| c.check_idle().is_ok().then_some(c));
        let mut connection = match kept {
            Some(connection) => connection,
            None => self.dial()?,
        };
        let looked = self
            .look_up(&mut connection)
            .and_then(|()| self.tell(&mut connection));
        if looked.as_ref().err().is_none_or(Error::keeps_connection) {
            self.connection = Some(connection);
        }
        looked
    }

    /// The topics that somebody uses and whose partitions were counted before.
    fn collect(&mut self) {
        let mut topics = self.shared.topics.lock();
        topics.retain(|_, t| t.partitions.strong_count() > 0);
        let in_use = topics.values().filter_map(|t| {
            let partitions = t.partitions.upgrade()?;
            (partitions.seen() > 0).then(|| (Arc::clone(t), partitions))
        });
        self.topics.extend(in_use);
    }

    fn dial(&self) -> Result<Connection> {
        let (watch, interrupt) = (&self.shared.watch, &self.shared.interrupt);
        Connection::dial(
            &watch.target,
            &watch.client_name,
            Some(interrupt),
            watch.timeout,
        )
    }

    /// Takes note of what the record of each topic says. One that says less than was seen is put right.
    fn look_up(&mut self, connection: &mut Connection) -> Result<()> {
        let watch = &self.shared.watch;
        let by = Deadline::after(watch.timeout);
        self.commands.clear();
        for (topic, _) in &self.topics {
            resp::command(&mut self.commands, 3);
            resp::arg(&mut self.commands, b"HGET");
            resp::arg(&mut self.commands, topic.meta.as_bytes());
            resp::arg(&mut self.commands, field::PARTITIONS.as_bytes());
        }
        self.inbox.clear();
        connection.send(&self.commands, by.wait())?;
        let (mut refused, mut damaged) = (None, Vec::new());
        for (i, (topic, partitions)) in self.topics.iter().enumerate() {
            let head = self.inbox.next(connection, by)?;
            let text = self.inbox.bytes_of(head);
            if let resp::Head::Error(_) = head {
                let e = Error::server("look up partitions", text).on_key(&topic.meta);
                refused.get_or_insert(e);
                continue;
            }
            let found = TopicRecord::parse([Some(text), None, None]).partitions;
            match found.filter(|n| *n >= partitions.seen()) {
                Some(n) => note(topic, partitions, n),
                None => damaged.push(i),
            }
        }
        for i in damaged {
            let (topic, partitions) = &self.topics[i];
            let subject = Subject {
                keys: &watch.keys,
                name: &topic.name,
                settings: &topic.settings,
            };
            let n = restore(connection, subject, partitions.seen(), by)?;
            note(topic, partitions, n);
            partitions.list_again(connection, &topic.name, by)?;
        }
        refused.map_or(Ok(()), Err)
    }

    /// Has consumers take up what was added.
    fn tell(&mut self, connection: &mut Connection) -> Result<()> {
        let watch = &self.shared.watch;
        let mut failed = None;
        let all = watch.consumers.lock();
        self.consumers.extend(all.iter().filter_map(Weak::upgrade));
        drop(all);
        for consumer in &self.consumers {
            match consumer.keep_up(connection, watch.timeout) {
                Err(e) if !e.keeps_connection() => return Err(e),
                Err(e) => failed = Some(e),
                Ok(()) => {}
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn failed(&mut self, e: &Error) {
        // Of a server that is away others tell.
        match e.kind() {
            ErrorKind::Connect | ErrorKind::Io | ErrorKind::Timeout => {
                log::debug!("whether topics have grown is not known: {e}");
            }
            _ => {
                if let Some(more) = self.quiet.permit() {
                    let more = HeldBack(more);
                    log::warn!("whether topics have grown is not known: {e}; asked again{more}");
                }
            }
        }
    }
}

fn note(topic: &Topic, partitions: &Partitions, n: u32) {
    let before = partitions.note(n);
    if before < n {
        log::info!(
            "topic {}: it has grown from {before} to {n} partitions",
            topic.name
        );
    }
}
