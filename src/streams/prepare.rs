//! What a consumer needs to start.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use parking_lot::Mutex;

use super::{Inner, Streams, ambient};
use crate::{
    ConsumerSettings, Delivery, Error, ErrorKind, Instances, Persist, ReadMode, Result, Settings,
    StartFrom, StreamId,
    batch::{ArenaPool, Filter},
    consume::{
        Keeps, Member, Places, PositionStore, ReadPlan, Seats, StartPoint, Stored, register,
        resolve,
    },
    net::{Connection, Deadline, Target},
    ownership::{Claims, Contention, Lease, Place, Roll, Terms},
    publish::{Partitions, Role, Subject, ensure},
    queue::{Birth, GroupKeys, GroupPlan, Lanes, member_of},
    wire::{Claimant, check_consumer, check_topic, client_name},
};

/// What a consumer needs to start.
pub(crate) struct Prepared {
    pub(crate) settings: ConsumerSettings,
    pub(crate) seats: Seats,
    /// How many the topic has.
    pub(crate) partitions: Arc<Partitions>,
    pub(crate) starts: Vec<Stored>,
    pub(crate) store: PositionStore,
    /// Of a consumer that is a group: what its lanes have in common.
    pub(crate) group: Option<Arc<GroupPlan>>,
    /// The claims to be made.
    pub(crate) claims: Claims,
    /// How long a start waits for the first of them.
    pub(crate) patience: Duration,
    pub(crate) read_plan: Arc<ReadPlan>,
    pub(crate) pool: ArenaPool,
    pub(crate) target: Arc<Target>,
    pub(crate) flusher_name: String,
    pub(crate) flush_timeout: Duration,
    pub(crate) name_guard: NameGuard,
}

impl Streams {
    /// Everything about a consumer's start that asks the server, repeated while the server answers that
    /// it is not ready.
    pub(crate) fn prepare(&self, entry: &ConsumerSettings) -> Result<Prepared> {
        let inner = &*self.inner;
        let settings = checked(&inner.settings, entry)?;
        let (topic, consumer) = (settings.topic.clone(), inner.settings.name_of(&settings));
        check_topic(&topic)?;
        check_consumer(&consumer)?;
        let name_guard = NameGuard::take(inner, &topic, &consumer)?;
        let of_topic = inner.settings.topic(&topic);
        let partitions = inner.topics.partitions(&topic, &of_topic);
        inner.delays.watch(&topic, &of_topic, &partitions);
        inner.retention.watch(&topic, &of_topic, &partitions);
        let letters = settings.dead_letters_max_age;
        inner
            .retention
            .watch_letters((&topic, &consumer), letters, &partitions);
        let mut store = PositionStore::new(&inner.keys, &topic, &consumer, inner.instance);
        let claims = self.claims(&settings, &consumer);
        let group = settings
            .delivery
            .is_queue()
            .then(|| self.group(&settings, &consumer, &claims));
        let group = group.transpose()?.map(Arc::new);
        let starts = self.when_ready(|c| {
            let streams = self.ensure(c, &settings, &consumer)?;
            let timeout = self.connect_timeout();
            partitions.list(c, &topic, Deadline::after(timeout))?;
            let keeps = Keeps::of(settings.delivery, settings.persist, settings.ack_delete);
            register(c, &inner.keys, (&topic, &consumer), keeps, timeout)?;
            match &group {
                None => self.settle(c, &streams, &settings, &consumer, &mut store),
                Some(group) => group.found_all(c, &streams),
            }
        })?;
        partitions.learn(starts.len() as u32);
        let store = store.under(&claims);
        let read_plan = ReadPlan {
            batch_size: settings.batch_size,
            batch_bytes: settings.batch_bytes as usize,
            block: (settings.read_mode == ReadMode::Block).then_some(settings.block),
            slack: settings.read_slack,
            spin: settings.spin,
            connect_timeout: self.connect_timeout(),
            max_entry_bytes: inner.settings.max_message_bytes as usize,
            filter: Filter::new(settings.filter.iter().map(String::as_str)),
            group: group.as_ref().map(|group| group.member.clone()),
        };
        // The connections of a member tell which start of its process they belong to.
        let pod = group
            .as_ref()
            .map_or(&*inner.pod, |group| &group.member.name);
        Ok(Prepared {
            pool: ArenaPool::new(read_plan.arena_bytes()),
            read_plan: Arc::new(read_plan),
            flusher_name: client_name(&["streams-positions", &topic, &consumer, pod]),
            seats: Seats {
                topic: Arc::from(&*topic),
                consumer: consumer.into(),
                keys: inner.keys.clone(),
                co_located: inner.settings.topic(&topic).co_locate_partitions,
                pod: pod.to_owned(),
            },
            partitions,
            starts,
            store,
            group,
            claims,
            patience: 2 * self.connect_timeout(),
            target: Arc::clone(&inner.target),
            flush_timeout: self.connect_timeout().min(settings.shutdown_timeout),
            name_guard,
            settings,
        })
    }

    /// The claims that a consumer makes.
    fn claims(&self, c: &ConsumerSettings, consumer: &str) -> Claims {
        let (inner, topic) = (&*self.inner, &c.topic);
        let terms = Terms {
            topic: topic.as_str().into(),
            consumer: consumer.into(),
            target: Arc::clone(&inner.target),
            client_name: client_name(&["streams-leases", topic, consumer, &inner.pod]),
            connect_timeout: self.connect_timeout(),
            hash: inner.keys.ownership(topic, consumer),
            set: inner.keys.expiries(topic, consumer),
            ttl: c.ttl(),
            renew: c.renew(),
            most: c.max_partitions,
            modulo: c.partition_modulo,
            remainder: c.partition_remainder,
            shutdown_timeout: c.shutdown_timeout,
        };
        let claimant = Claimant::new(inner.instance, &inner.pod);
        if c.instances == Instances::Lease {
            return Claims::Lease(Arc::new(Lease::new(terms, claimant)));
        }
        let (count, index) = (c.instances_count, c.instances_index);
        let (place, remarks) = Place::find(count, index, |name| ambient(&inner.settings, name));
        for (level, what) in remarks {
            log::log!(level, "{topic}/{consumer}: {what}");
        }
        let contention = Contention {
            grace: c.contested_grace,
            recheck: c.contested_recheck,
        };
        Claims::Static(Arc::new(Roll::new(terms, place, contention, claimant)))
    }

    /// What the lanes of a consumer have in common that is a group.
    fn group(&self, c: &ConsumerSettings, consumer: &str, claims: &Claims) -> Result<GroupPlan> {
        let inner = &*self.inner;
        if !inner.settings.topic(&c.topic).co_locate_partitions {
            let what = format!(
                "Delivery {:?} needs a topic whose partitions lie together: set CoLocatePartitions of topic \
                 {:?} to true",
                c.delivery, c.topic
            );
            return Err(Error::new(ErrorKind::Config, "start", what));
        }
        let lease = claims.lease().ok_or_else(|| {
            Error::new(
                ErrorKind::Config,
                "start",
                "queues need Instances:Mode Lease",
            )
        })?;
        let member = Member {
            group: consumer.into(),
            name: member_of(lease.claimant()).into(),
        };
        let from = match c.start_from {
            StartFrom::Stored => c.start_from_when_missing,
            from => from,
        };
        let birth = match (from, c.start_from_date) {
            (StartFrom::Now, _) => Birth::Tail,
            (StartFrom::Date, Some(date)) => Birth::After(StreamId::starting_at(date).before()),
            _ => Birth::After(StreamId::MIN),
        };
        Ok(GroupPlan {
            member,
            lease: (c.delivery == Delivery::LeasedQueue).then(|| Arc::clone(lease)),
            birth,
            ack_delete: c.ack_delete,
            ack_interval: c.persist_interval,
            keys: GroupKeys::new(&inner.keys, &c.topic, consumer),
            lanes: Lanes::default(),
            marks: Mutex::default(),
            topic: c.topic.as_str().into(),
            names: inner.keys.clone(),
            timeout: self.connect_timeout(),
            trims: Arc::clone(&inner.trims),
        })
    }

    fn ensure(
        &self,
        c: &mut Connection,
        settings: &ConsumerSettings,
        consumer: &str,
    ) -> Result<Vec<Box<[u8]>>> {
        let Inner {
            keys,
            settings: all,
            ..
        } = &*self.inner;
        let name = &settings.topic;
        let topic = Subject {
            keys,
            name,
            settings: &all.topic(name),
        };
        let role = Role::Consumer(consumer);
        ensure(c, topic, role, Deadline::after(self.connect_timeout()))
    }

    fn settle(
        &self,
        c: &mut Connection,
        streams: &[Box<[u8]>],
        settings: &ConsumerSettings,
        consumer: &str,
        store: &mut PositionStore,
    ) -> Result<Vec<Stored>> {
        let Inner { keys, instance, .. } = &*self.inner;
        let (name, timeout) = (&settings.topic, self.connect_timeout());
        let places = Places {
            streams,
            ownership: &keys.ownership(name, consumer),
            expiries: &keys.expiries(name, consumer),
            instance: *instance,
            timeout,
        };
        let point = StartPoint {
            from: settings.start_from,
            when_missing: settings.start_from_when_missing,
            date: settings.start_from_date,
        };
        let persisted = settings.persist != Persist::None;
        resolve(c, &places, point, persisted.then_some(store))
    }
}

/// The right to run this instance of a consumer in this process.
#[derive(Debug)]
pub(crate) struct NameGuard(String);

/// Two of one name in a process would be one member twice, and fight over its positions.
static NAMES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

impl NameGuard {
    fn take(inner: &Inner, topic: &str, consumer: &str) -> Result<Self> {
        let Inner {
            target,
            keys,
            instance,
            ..
        } = inner;
        let (endpoint, db, prefix) = (target.endpoint(), target.db(), keys.prefix());
        let name = format!("{endpoint}/{db} {prefix} {{{topic}}} {consumer} {instance}");
        if NAMES.lock().insert(name.clone()) {
            return Ok(Self(name));
        }
        let what = format!(
            "consumer {consumer:?} of topic {topic:?} runs in this process already, or was stopped and a \
             handler of it has not returned: stop it first, or give each a distinct Consumer name (or, to be \
             two instances of one consumer, a distinct PodName)"
        );
        Err(Error::new(ErrorKind::Config, "start", what))
    }
}

impl Drop for NameGuard {
    fn drop(&mut self) {
        NAMES.lock().remove(&self.0);
    }
}

/// A consumer's settings, after the same checks that those of a file go through.
fn checked(all: &Settings, entry: &ConsumerSettings) -> Result<ConsumerSettings> {
    let mut one = all.clone();
    one.consumers = vec![entry.clone()];
    one.check().map_err(|e| {
        let name = format!("consumer {}/{}", entry.topic, all.name_of(entry));
        let message = e.message().replace("Streams:Consumers[0]", &name);
        e.saying(message)
    })?;
    Ok(entry.clone())
}
