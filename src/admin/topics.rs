//! Topics: which there are, what they hold, and to make, enlarge and list them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::SystemTime,
};

use redis::Value;

use crate::{
    Admin, Error, Result, StreamId, TopicSettings,
    consume::{Extent, Keeps, registered},
    error::ErrorKind,
    net::{Connection, Deadline},
    publish::{Listed, Role, Subject, ensure},
    wire::{KeyUse, Keys, PositionValue, check_topic, escaped},
};

use super::{
    Shared, TIMEOUT,
    groups::{Group, groups_of},
    layout::Layout,
    sweep::sweep,
};

/// How many partitions are asked about by one round trip.
pub(super) const WINDOW: usize = 64;
/// The most topics of a page.
const LARGEST_PAGE: usize = 1000;

/// Some topics, by name.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TopicPage {
    /// Their names, ascending byte by byte.
    pub topics: Vec<String>,
    /// What the next page begins after; `None` when there is none.
    pub next: Option<String>,
}

/// A topic as it lies on the server.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TopicDescription {
    /// Its name.
    pub topic: String,
    /// Each partition, ascending.
    pub partitions: Vec<PartitionDescription>,
    /// Whether it has metadata. Without, its streams were counted: see what deleted it.
    pub recorded: bool,
    /// Whether it is on the list of topics ([`Admin::topics`]).
    pub listed: bool,
    /// Whether its partitions lie together.
    pub co_located: bool,
    /// When it was made, by the clock of whoever made it.
    pub created: Option<SystemTime>,
    /// What finds the partition of a key; `None` where another implementation made the topic, which means `xxh3`.
    pub partitioner: Option<String>,
    /// `MaxLen` of whoever made it. Others may publish with another.
    pub max_len: Option<u64>,
    /// How many messages wait for their time ([`Draft::deliver_after`](crate::Draft::deliver_after)).
    pub delayed: u64,
    /// Its consumers, by name: those of this library, and all groups.
    pub consumers: Vec<TopicConsumer>,
}

/// A consumer of a topic.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TopicConsumer {
    /// Its name.
    pub name: String,
    /// Whether it keeps what is finished in a consumer group; otherwise in positions, or not at all.
    pub is_group: bool,
    /// Whether it is of this library: others are found by their groups only.
    pub registered: bool,
}

/// One partition.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PartitionDescription {
    /// Its number.
    pub partition: u32,
    /// The key of its stream.
    pub key: String,
    /// Whether there is such a stream.
    pub exists: bool,
    /// How many entries it holds.
    pub length: u64,
    /// The first entry that is still there.
    pub first: Option<StreamId>,
    /// The last entry that is there.
    pub last: Option<StreamId>,
    /// The id that was given last, deleted or not.
    pub last_generated: StreamId,
    /// How many entries were ever added.
    pub added: u64,
    /// How many groups read it.
    pub groups: usize,
    /// The bytes of memory it takes, as the server estimates; `None` where it does not say.
    pub memory: Option<u64>,
}

impl TopicDescription {
    /// How many entries all partitions hold.
    pub fn entries(&self) -> u64 {
        self.partitions.iter().map(|p| p.length).sum()
    }

    /// The bytes of memory of all partitions, as the server estimates; `None` where it does not say.
    pub fn memory(&self) -> Option<u64> {
        self.partitions.iter().map(|p| p.memory).sum()
    }
}

impl Admin {
    /// Up to `most` topics (at least 1, at most 1000), in the order of their names, from behind `after` on: the
    /// `next` of the page before, or `None` for the first page. These are the topics that this library has
    /// used, and those that were [adopted](Self::adopt): nothing looks through the keys of the server. Blocks for
    /// up to 30 s, usually for a round trip.
    ///
    /// # Errors
    ///
    /// A server that cannot be reached or refuses.
    pub fn topics(&self, after: Option<&str>, most: usize) -> Result<TopicPage> {
        let by = Deadline::after(TIMEOUT);
        let most = most.clamp(1, LARGEST_PAGE);
        let mut c = self.shared.connect(by)?;
        let mut cmd = redis::cmd("ZRANGE");
        cmd.arg(self.shared.keys.topics());
        match after {
            Some(name) => cmd.arg(format!("({name}")),
            None => cmd.arg("-"),
        };
        cmd.arg("+").arg("BYLEX");
        cmd.arg("LIMIT").arg(0).arg(most + 1);
        let found: Vec<Vec<u8>> = c
            .ask(&cmd, by.left())
            .map_err(|e| e.during("list topics"))?;
        let names = found.iter().map(|n| String::from_utf8_lossy(n).into());
        let mut topics: Vec<String> = names.collect();
        let is_more = topics.len() > most;
        topics.truncate(most);
        let next = topics.last().filter(|_| is_more).cloned();
        Ok(TopicPage { topics, next })
    }

    /// What a topic is made of and holds; `None` where there is neither metadata nor a stream. Changes nothing.
    /// Blocks for up to 30 s, usually for a few round trips for every 64 partitions.
    ///
    /// # Errors
    ///
    /// A name that no topic can have; a server that cannot be reached or refuses.
    pub fn describe(&self, topic: impl AsRef<str>) -> Result<Option<TopicDescription>> {
        let topic = topic.as_ref();
        check_topic(topic)?;
        let by = Deadline::after(TIMEOUT);
        let mut c = self.shared.connect(by)?;
        let described = self.shared.describe(&mut c, topic, by);
        described.map_err(|e| e.during("describe a topic"))
    }

    /// Makes a topic as these settings say, with [2 partitions](TopicSettings::partitions) if they say nothing.
    /// Returns whether it was made: one that exists is left as it is, whatever it is like. Publishers and
    /// consumers make the topics that they use by themselves. Blocks for up to 30 s, usually for a few round trips.
    ///
    /// # Errors
    ///
    /// A name that no topic can have, or settings that contradict themselves; a server that cannot be reached or
    /// refuses. It may be done again.
    pub fn create(&self, topic: impl AsRef<str>, settings: TopicSettings) -> Result<bool> {
        let topic = topic.as_ref();
        check_topic(topic)?;
        let mut all = self.shared.settings.clone();
        (all.consumers, all.producers) = (Vec::new(), Vec::new());
        all = all.with_topic(topic, settings);
        all.check()?;
        let by = Deadline::after(TIMEOUT);
        let create = |c: &mut Connection| {
            let there = self.shared.layout(c, topic, by)?;
            if there.partitions == 0 {
                self.shared.ensure(c, topic, &all.topic(topic), by)?;
            }
            self.shared.list(c, topic, by)?;
            Ok(there.partitions == 0)
        };
        let made = create(&mut self.shared.connect(by)?);
        made.map_err(|e: Error| e.during("create a topic"))
    }

    /// Enlarges a topic to so many partitions, and returns how many it had. Publishers and consumers that run take
    /// the new ones up within their `TopicRefreshMs`; keys that move to another partition are not kept in order
    /// across the change. Services whose `Partitions` says less are refused from then on. Blocks for up to 30 s.
    ///
    /// # Errors
    ///
    /// A topic that was never created; fewer partitions than it has, for they would not be read any more: the error
    /// names those that hold entries which not every consumer has finished; a server that cannot be reached or
    /// refuses. It may be done again.
    pub fn grow(&self, topic: impl AsRef<str>, partitions: u32) -> Result<u32> {
        let topic = topic.as_ref();
        check_topic(topic)?;
        let by = Deadline::after(TIMEOUT);
        let grow = |c: &mut Connection| {
            let there = self.shared.layout(c, topic, by)?;
            let had = there.partitions;
            if had == 0 {
                return Err(never_created(topic));
            }
            if partitions < had {
                let unread = self.shared.unread(c, topic, &there, partitions, by)?;
                let told = match &unread[..] {
                    [] => "those above hold nothing unread now".to_owned(),
                    unread => {
                        let held = Listed(unread);
                        format!("entries that not every consumer has finished are in {held}")
                    }
                };
                let what = format!(
                    "topic {topic:?} has {had} partitions and never shrinks, so not to {partitions}: messages \
                     would be left unread; {told}. To have fewer, let consumers finish, and publish to another topic"
                );
                return Err(Error::new(ErrorKind::Argument, "grow a topic", what));
            }
            let settings = self.shared.settings.topic(topic);
            let settings = settings
                .partitions(partitions)
                .co_locate_partitions(there.co_located);
            self.shared.ensure(c, topic, &settings, by)?;
            self.shared.list(c, topic, by)?;
            Ok(had)
        };
        let grown = grow(&mut self.shared.connect(by)?);
        grown.map_err(|e| e.during("grow a topic"))
    }

    /// Looks through all keys of the server for topics that are on no list, such as those of services in other
    /// languages, and lists them. Returns their names. In small steps with pauses, so that the server has time for
    /// others; this takes as long as it takes, some seconds for a million keys. Each round trip takes up to 30 s.
    ///
    /// # Errors
    ///
    /// A server that cannot be reached or refuses. It may be done again.
    pub fn adopt(&self) -> Result<Vec<String>> {
        let Shared { keys, .. } = &*self.shared;
        let mut c = self.shared.connect(Deadline::after(TIMEOUT))?;
        let mut adopted = BTreeSet::new();
        let pattern = format!("{}[ms]:*", escaped(keys.prefix()));
        let swept = sweep(&mut c, &pattern, TIMEOUT, |c, found| {
            let mut topics: Vec<&str> = found.iter().filter_map(|k| topic_of(keys, k)).collect();
            topics.sort_unstable();
            topics.dedup();
            let adds: Vec<_> = topics.iter().map(|t| listing(keys, t)).collect();
            for (topic, added) in topics.iter().zip(c.pipeline(&adds, TIMEOUT)?) {
                if matches!(added?, Value::Int(1)) {
                    adopted.insert((*topic).to_owned());
                }
            }
            Ok(())
        });
        swept.map_err(|e| e.during("adopt topics"))?;
        Ok(adopted.into_iter().collect())
    }
}

pub(super) fn never_created(topic: &str) -> Error {
    Error::config(format!("topic {topic:?} has never been created"))
}

/// The topic that a key shows to exist.
fn topic_of<'a>(keys: &Keys, key: &'a [u8]) -> Option<&'a str> {
    let name = keys.read(key)?;
    let shows = matches!(
        name.of,
        KeyUse::TopicMeta | KeyUse::Stream | KeyUse::SpreadStream
    );
    (shows && check_topic(name.topic).is_ok()).then_some(name.topic)
}

fn listing(keys: &Keys, topic: &str) -> redis::Cmd {
    let mut cmd = redis::cmd("ZADD");
    cmd.arg(keys.topics()).arg(0).arg(topic);
    cmd
}

impl Shared {
    /// Puts a topic on the list.
    fn list(&self, c: &mut Connection, topic: &str, by: Deadline) -> Result<()> {
        c.call(&listing(&self.keys, topic), by.left()).map(drop)
    }

    fn ensure(
        &self,
        c: &mut Connection,
        topic: &str,
        settings: &TopicSettings,
        by: Deadline,
    ) -> Result<()> {
        let subject = Subject {
            keys: &self.keys,
            name: topic,
            settings,
        };
        ensure(c, subject, Role::Operator, by).map(drop)
    }

    fn describe(
        &self,
        c: &mut Connection,
        topic: &str,
        by: Deadline,
    ) -> Result<Option<TopicDescription>> {
        let layout = self.layout(c, topic, by)?;
        if layout.partitions == 0 {
            return Ok(None);
        }
        let keys = self.streams(topic, &layout);
        let mut partitions = Vec::with_capacity(keys.len());
        let mut consumers: BTreeMap<String, TopicConsumer> = BTreeMap::new();
        for (name, keeps) in registered(c, &self.keys, topic, by.left())? {
            let is_group = keeps.is_group();
            let consumer = TopicConsumer {
                name: name.clone(),
                is_group,
                registered: true,
            };
            consumers.insert(name, consumer);
        }
        for window in keys.chunks(WINDOW) {
            let streams = Extent::of_all(c, window, by.left())?;
            let groups = groups_of(c, window, by)?;
            let memory = memory(c, window, by)?;
            for (((key, stream), groups), memory) in
                window.iter().zip(streams).zip(groups).zip(memory)
            {
                for Group { name, .. } in &groups {
                    let consumer = TopicConsumer {
                        name: name.clone(),
                        is_group: true,
                        registered: false,
                    };
                    consumers.entry(name.clone()).or_insert(consumer);
                }
                let exists = stream.is_some();
                let stream = stream.unwrap_or_default();
                partitions.push(PartitionDescription {
                    partition: partitions.len() as u32,
                    key: key.clone(),
                    exists,
                    length: stream.length(),
                    first: stream.first,
                    last: stream.newest,
                    last_generated: stream.last,
                    added: stream.added,
                    groups: groups.len(),
                    memory,
                });
            }
        }
        let mut score = redis::cmd("ZSCORE");
        score.arg(self.keys.topics()).arg(topic);
        let listed = match c.call(&score, by.left()) {
            Ok(score) => score != Value::Nil,
            Err(e) if e.keeps_connection() => false, // nothing depends on it
            Err(e) => return Err(e),
        };
        Ok(Some(TopicDescription {
            topic: topic.into(),
            partitions,
            recorded: layout.recorded,
            listed,
            co_located: layout.co_located,
            created: layout.created,
            partitioner: layout.partitioner,
            max_len: layout.max_len,
            delayed: self.delayed(c, topic, &keys, layout.co_located, by)?,
            consumers: consumers.into_values().collect(),
        }))
    }

    /// How many messages wait for their time.
    fn delayed(
        &self,
        c: &mut Connection,
        topic: &str,
        streams: &[String],
        co_located: bool,
        by: Deadline,
    ) -> Result<u64> {
        let buckets: Vec<_> = if co_located {
            vec![self.keys.delays(topic)]
        } else {
            streams.iter().map(|key| self.keys.delays(key)).collect()
        };
        let mut n = 0;
        for window in buckets.chunks(WINDOW) {
            let ask = |key: &String| {
                let mut cmd = redis::cmd("ZCARD");
                cmd.arg(key);
                cmd
            };
            let cmds: Vec<_> = window.iter().map(ask).collect();
            for answer in c.pipeline(&cmds, by.left())? {
                if let Value::Int(more) = answer? {
                    n += u64::try_from(more).unwrap_or(0);
                }
            }
        }
        Ok(n)
    }

    /// Which partitions from `first` on hold entries that some consumer has not finished: all that hold any if
    /// there is no consumer.
    fn unread(
        &self,
        c: &mut Connection,
        topic: &str,
        layout: &Layout,
        first: u32,
        by: Deadline,
    ) -> Result<Vec<u32>> {
        let keys = self.streams(topic, layout);
        let keys = &keys[first as usize..];
        let mut readers: BTreeSet<String> = BTreeSet::new();
        let registered = registered(c, &self.keys, topic, by.left())?;
        let by_position = registered.iter().filter(|(_, k)| **k == Keeps::Positions);
        readers.extend(by_position.map(|(name, _)| name.clone()));
        // and those of other implementations
        let pattern = format!("{}*", escaped(&self.keys.positions(topic, "")));
        sweep(c, &pattern, by.left(), |_, found| {
            let names = found.iter().filter_map(|key| self.keys.read(key));
            let names = names.filter(|name| name.of == KeyUse::Positions);
            readers.extend(names.map(|name| name.consumer.to_owned()));
            Ok(())
        })?;
        let partitions: Vec<u32> = (first..layout.partitions).collect();
        let mut finished: Vec<Option<StreamId>> = vec![None; keys.len()];
        let lower = |at: &mut Option<StreamId>, id: StreamId| {
            *at = Some(at.map_or(id, |at| at.min(id)));
        };
        for reader in readers {
            let mut cmd = redis::cmd("HMGET");
            cmd.arg(self.keys.positions(topic, &reader))
                .arg(&partitions);
            let values = c.ask_fields(&cmd, partitions.len(), by.left())?;
            for (at, value) in finished.iter_mut().zip(values) {
                let id = value.and_then(|v| Some(PositionValue::parse(&v)?.id));
                lower(at, id.unwrap_or_default());
            }
        }
        let mut unread = Vec::new();
        for (i, window) in keys.chunks(WINDOW).enumerate() {
            let streams = Extent::of_all(c, window, by.left())?;
            let groups = groups_of(c, window, by)?;
            for (j, (stream, groups)) in streams.into_iter().zip(groups).enumerate() {
                let n = i * WINDOW + j;
                let newest = stream.and_then(|s| s.newest);
                for group in groups {
                    let pending = group.pending > 0;
                    lower(
                        &mut finished[n],
                        if pending {
                            StreamId::MIN
                        } else {
                            group.delivered
                        },
                    );
                }
                if newest.is_some_and(|newest| finished[n].is_none_or(|at| at < newest)) {
                    unread.push(partitions[n]);
                }
            }
        }
        Ok(unread)
    }
}

/// The bytes of memory of each key; `None` where the server does not say.
fn memory(c: &mut Connection, keys: &[String], by: Deadline) -> Result<Vec<Option<u64>>> {
    let ask = |key: &String| {
        let mut cmd = redis::cmd("MEMORY");
        cmd.arg("USAGE").arg(key);
        cmd
    };
    let cmds: Vec<_> = keys.iter().map(ask).collect();
    let answers = c.pipeline(&cmds, by.left())?.into_iter();
    let bytes = |answer| match answer {
        Ok(Value::Int(n)) => u64::try_from(n).ok(),
        _ => None,
    };
    Ok(answers.map(bytes).collect())
}
