//! What members of a group were given and have not acknowledged, page by page; and how a group stands.

use std::{cmp::Reverse, collections::BTreeMap, fmt, sync::Arc, time::Duration};

use redis::Value;

use crate::{
    Admin, Error, Result, StreamId,
    consume::{Extent, RETRIES},
    error::ErrorKind,
    net::{Connection, Deadline},
    queue::is_gone,
    wire::{check_consumer, check_topic},
};

use super::{
    Shared, TIMEOUT,
    groups::{MOST_MEMBERS, groups_of, members_of},
    stream,
    topics::{WINDOW, never_created},
};

/// How many entries one question is about.
const STEP: usize = 500;
/// How many questions a page asks at most.
const MOST_STEPS: usize = 200;
/// The most messages of a page.
const LARGEST_PAGE: usize = 10_000;
/// So many unread entries are counted one by one.
const MOST_COUNTED: u64 = 10_000;

impl Admin {
    /// What the members of a group were given and have not acknowledged: of all partitions, and of what waited to
    /// be tried again. All of it, until it is said which.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use streamlane::{PendingOrder, Streams};
    ///
    /// # fn main() -> Result<(), streamlane::Error> {
    /// # let streams = Streams::connect("redis://127.0.0.1:6379")?;
    /// let stuck = streams.admin().pending("mails", "sender").min_idle(Duration::from_secs(60));
    /// let mut page = stuck.page(None, 100)?; // page.next is where the next page begins
    /// page.sort_by(PendingOrder::Idle);
    /// for message in &page.messages {
    ///     println!("{message}");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn pending(
        &self,
        topic: impl Into<String>,
        consumer: impl Into<String>,
    ) -> PendingMessages {
        PendingMessages {
            shared: Arc::clone(&self.shared),
            topic: topic.into(),
            consumer: consumer.into(),
            partition: None,
            member: None,
            min_idle: Duration::ZERO,
            timeout: TIMEOUT,
        }
    }

    /// How a consumer that is a group stands: what each partition has pending and unread, and what each member has.
    /// `None` where no partition has such a group. Changes nothing. Blocks for up to 30 s, usually for a few round
    /// trips for every 64 partitions.
    ///
    /// # Errors
    ///
    /// A name that no topic or consumer can have, or a topic that was never created; a server that cannot be
    /// reached or refuses.
    pub fn group(
        &self,
        topic: impl AsRef<str>,
        consumer: impl AsRef<str>,
    ) -> Result<Option<GroupDescription>> {
        let (topic, consumer) = (topic.as_ref(), consumer.as_ref());
        check_topic(topic)?;
        check_consumer(consumer)?;
        let by = Deadline::after(TIMEOUT);
        let mut c = self.shared.connect(by)?;
        let described = self.shared.group(&mut c, topic, consumer, by);
        described.map_err(|e| e.during("describe a group"))
    }
}

/// What is pending in a group, or those of it that are wanted; see [`Admin::pending`].
///
/// Every call connects for itself, and each of its round trips takes up to the timeout (30 s). The server is never
/// asked for more than 500 entries at once, whatever is wanted.
#[derive(Clone)]
#[must_use = "nothing is asked before `page` or `count`"]
pub struct PendingMessages {
    shared: Arc<Shared>,
    topic: String,
    consumer: String,
    partition: Option<u32>,
    member: Option<String>,
    min_idle: Duration,
    timeout: Duration,
}

/// One message that a member was given and has not acknowledged.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PendingMessage {
    /// The partition it is of, or [`RETRIES`](crate::PartitionStatus::RETRIES).
    pub partition: u32,
    /// Its id there.
    pub id: StreamId,
    /// Who has it: of this library's members the pod, a `#`, and what tells one start of it from another.
    pub member: String,
    /// How long ago it was given out, or kept alive by whoever has it.
    pub idle: Duration,
    /// How often it was given out.
    pub deliveries: u64,
}

impl fmt::Display for PendingMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.partition {
            RETRIES => f.write_str("retries")?,
            p => write!(f, "p{p}")?,
        }
        let (id, member, idle) = (self.id, &self.member, self.idle);
        let n = self.deliveries;
        write!(f, "  {id}  {member}  idle {idle:.1?}  deliveries {n}")
    }
}

/// Some pending messages: partition by partition, and by id in each.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PendingPage {
    /// The messages.
    pub messages: Vec<PendingMessage>,
    /// The partition and the id at which the next page begins; `None` when there is none.
    pub next: Option<(u32, StreamId)>,
}

/// An order of pending messages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum PendingOrder {
    /// The oldest first.
    Id,
    /// Those first that were given out longest ago.
    Idle,
    /// Those first that were given out most often.
    Deliveries,
}

impl PendingPage {
    /// Puts the messages of this page in order; what other pages have is not looked at.
    pub fn sort_by(&mut self, order: PendingOrder) {
        let messages = &mut self.messages;
        match order {
            PendingOrder::Id => messages.sort_by_key(|m| (m.id, m.partition)),
            PendingOrder::Idle => messages.sort_by_key(|m| (Reverse(m.idle), m.id)),
            PendingOrder::Deliveries => messages.sort_by_key(|m| (Reverse(m.deliveries), m.id)),
        }
    }
}

impl PendingMessages {
    /// Only those of this partition, or of [`RETRIES`](crate::PartitionStatus::RETRIES).
    pub fn partition(mut self, partition: u32) -> Self {
        self.partition = Some(partition);
        self
    }

    /// Only those of this member.
    pub fn member(mut self, member: impl Into<String>) -> Self {
        self.member = Some(member.into());
        self
    }

    /// Only those that were given out so long ago, or longer.
    pub fn min_idle(mut self, idle: Duration) -> Self {
        self.min_idle = idle;
        self
    }

    /// How long a round trip may take (default 30 s).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Up to `most` of them (at least 1, at most 10 000) from `from` on, which is the `next` of the page before, or
    /// `None` for the first. Blocks for a round trip for every 500 that are looked at, and for no more than 200: where
    /// few of very many are wanted a page may have fewer than `most`, or none, and there is a next one.
    ///
    /// # Errors
    ///
    /// A name that no topic or consumer can have, a topic that was never created, or a partition that it does not
    /// have; a server that cannot be reached or refuses.
    pub fn page(&self, from: Option<(u32, StreamId)>, most: usize) -> Result<PendingPage> {
        let page = self.connect().and_then(|mut c| {
            let streams = self.streams(&mut c)?;
            self.read(&mut c, &streams, from, most.clamp(1, LARGEST_PAGE))
        });
        page.map_err(|e| e.during("list what is pending"))
    }

    /// How many there are, whatever [`member`](Self::member) and [`min_idle`](Self::min_idle) say. Blocks for a
    /// few round trips.
    ///
    /// # Errors
    ///
    /// As [`page`](Self::page).
    pub fn count(&self) -> Result<u64> {
        let count = self.connect().and_then(|mut c| {
            let by = || Deadline::after(self.timeout);
            let streams: Vec<_> = self.streams(&mut c)?.into_iter().map(|(_, s)| s).collect();
            let mut n = 0;
            for window in streams.chunks(WINDOW) {
                let groups = groups_of(&mut c, window, by())?.into_iter().flatten();
                let ours = groups.filter(|g| g.name == self.consumer);
                n += ours.map(|g| g.pending).sum::<u64>();
            }
            Ok(n)
        });
        count.map_err(|e| e.during("count what is pending"))
    }

    fn connect(&self) -> Result<Connection> {
        check_topic(&self.topic)?;
        check_consumer(&self.consumer)?;
        self.shared.connect(Deadline::after(self.timeout))
    }

    /// The streams that are concerned, in the order in which they are read.
    fn streams(&self, c: &mut Connection) -> Result<Vec<(u32, String)>> {
        let by = Deadline::after(self.timeout);
        let mut all = lanes(&self.shared, c, &self.topic, &self.consumer, by)?;
        if let Some(p) = self.partition {
            all.retain(|(partition, _)| *partition == p);
            if all.is_empty() {
                return Err(no_such_partition(&self.topic, p));
            }
        }
        Ok(all)
    }

    fn read(
        &self,
        c: &mut Connection,
        streams: &[(u32, String)],
        from: Option<(u32, StreamId)>,
        most: usize,
    ) -> Result<PendingPage> {
        let (partition, mut at) = from.unwrap_or((0, StreamId::MIN));
        let mut messages = Vec::new();
        let mut steps = 0;
        for (p, stream) in streams.iter().filter(|(p, _)| *p >= partition) {
            if *p != partition {
                at = StreamId::MIN;
            }
            loop {
                if messages.len() == most || steps == MOST_STEPS {
                    let next = Some((*p, at));
                    return Ok(PendingPage { messages, next });
                }
                steps += 1;
                let of = (
                    stream.as_str(),
                    self.consumer.as_str(),
                    self.member.as_deref(),
                );
                let found = pending_from(c, of, *p, at, STEP, self.timeout)?;
                let is_last = found.len() < STEP;
                let Some(last) = found.last().map(|m| m.id) else {
                    break;
                };
                at = last.next();
                let mut is_full = false;
                for m in found.into_iter().filter(|m| m.idle >= self.min_idle) {
                    if messages.len() == most {
                        (at, is_full) = (m.id, true);
                        break;
                    }
                    messages.push(m);
                }
                if is_last && !is_full {
                    break;
                }
            }
        }
        Ok(PendingPage {
            messages,
            next: None,
        })
    }
}

impl fmt::Debug for PendingMessages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingMessages")
            .field("topic", &self.topic)
            .field("consumer", &self.consumer)
            .finish_non_exhaustive()
    }
}

/// The streams that a consumer reads through a group: its partitions, and what is to be tried again.
fn lanes(
    shared: &Shared,
    c: &mut Connection,
    topic: &str,
    consumer: &str,
    by: Deadline,
) -> Result<Vec<(u32, String)>> {
    let layout = shared.layout(c, topic, by)?;
    if layout.partitions == 0 {
        return Err(never_created(topic));
    }
    let mut all: Vec<_> = (0..).zip(shared.streams(topic, &layout)).collect();
    all.push((RETRIES, shared.keys.retries(topic, consumer)));
    Ok(all)
}

pub(super) fn no_such_partition(topic: &str, partition: u32) -> Error {
    let what = format!("topic {topic:?} has no partition {partition}");
    Error::new(ErrorKind::Argument, "look up a partition", what)
}

/// The first pending entries of a group, or of one member of it, from an id on: none where there is no such group.
fn pending_from(
    c: &mut Connection,
    (stream, group, member): (&str, &str, Option<&str>),
    partition: u32,
    from: StreamId,
    most: usize,
    timeout: Duration,
) -> Result<Vec<PendingMessage>> {
    // Not by idle time: the server would look at all there is, in one go.
    let mut cmd = redis::cmd("XPENDING");
    cmd.arg(stream).arg(group);
    cmd.arg(from.to_string()).arg("+").arg(most);
    if let Some(member) = member {
        cmd.arg(member);
    }
    let found: Vec<(Vec<u8>, Vec<u8>, u64, u64)> = match c.ask(&cmd, timeout) {
        Ok(found) => found,
        Err(e) if is_gone(&e) => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let read = |(id, member, idle, deliveries): (Vec<u8>, Vec<u8>, u64, u64)| {
        Some(PendingMessage {
            partition,
            id: StreamId::parse(&id)?,
            member: String::from_utf8_lossy(&member).into(),
            idle: Duration::from_millis(idle),
            deliveries,
        })
    };
    let n = found.len();
    let read: Vec<_> = found.into_iter().map_while(read).collect();
    if read.len() < n {
        let what = "the reply has an entry whose id is none";
        return Err(Error::new(ErrorKind::Protocol, "XPENDING", what).on_key(stream));
    }
    Ok(read)
}

/// How a consumer that is a group stands.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct GroupDescription {
    /// The topic.
    pub topic: String,
    /// The consumer, and so the group.
    pub consumer: String,
    /// Each partition, ascending; the last is [`RETRIES`](crate::PartitionStatus::RETRIES) where something was ever to be
    /// tried again.
    pub partitions: Vec<GroupPartition>,
    /// The members by name, with what they have in all partitions; `None` where a partition has more than 10 000.
    pub members: Option<Vec<GroupMember>>,
    /// How many messages wait to be tried again and are not due yet.
    pub waiting: u64,
    /// How many dead letters there are.
    pub dead_letters: u64,
}

/// How a group stands in one partition.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct GroupPartition {
    /// The partition, or [`RETRIES`](crate::PartitionStatus::RETRIES).
    pub partition: u32,
    /// The last entry that was given to a member; `None` where there is no such group.
    pub delivered: Option<StreamId>,
    /// How many entries come after that; see [`unread_exact`](Self::unread_exact).
    pub unread: u64,
    /// Whether `unread` are all; otherwise there are at least so many. Up to 10 000 are counted, one by one, since
    /// what servers say of it is wrong where entries were deleted.
    pub unread_exact: bool,
    /// How many entries were given out and not acknowledged.
    pub pending: u64,
    /// The first of these.
    pub oldest: Option<PendingMessage>,
    /// How many members there are.
    pub members: u64,
}

/// A member of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct GroupMember {
    /// Its name: of this library's members the pod, a `#`, and what tells one start of it from another.
    pub name: String,
    /// How many messages it was given and has not acknowledged.
    pub pending: u64,
    /// Since it last asked for anything, in any partition.
    pub idle: Duration,
}

impl GroupDescription {
    /// How many messages are pending in all partitions.
    pub fn pending(&self) -> u64 {
        self.partitions.iter().map(|p| p.pending).sum()
    }
}

impl Shared {
    fn group(
        &self,
        c: &mut Connection,
        topic: &str,
        consumer: &str,
        by: Deadline,
    ) -> Result<Option<GroupDescription>> {
        let lanes = lanes(self, c, topic, consumer, by)?;
        let mut partitions = Vec::with_capacity(lanes.len());
        let mut members: Option<BTreeMap<String, GroupMember>> = Some(BTreeMap::new());
        let (numbers, keys): (Vec<u32>, Vec<String>) = lanes.into_iter().unzip();
        let streams = numbers.chunks(WINDOW).zip(keys.chunks(WINDOW));
        for (numbers, keys) in streams {
            let groups = groups_of(c, keys, by)?;
            for ((partition, key), groups) in numbers.iter().zip(keys).zip(groups) {
                let group = groups.into_iter().find(|g| g.name == consumer);
                let Some(group) = group else {
                    if *partition != RETRIES {
                        partitions.push(GroupPartition::missing(*partition));
                    }
                    continue;
                };
                let (unread, unread_exact) = unread(c, key, group.delivered, by)?;
                let mut oldest = Vec::new();
                if group.pending > 0 {
                    let of = (key.as_str(), consumer, None);
                    oldest = pending_from(c, of, *partition, StreamId::MIN, 1, by.left())?;
                }
                if group.members > MOST_MEMBERS {
                    members = None;
                } else if let Some(members) = &mut members {
                    for m in members_of(c, key, consumer, by)? {
                        let all = members.entry(m.name.clone()).or_insert(GroupMember {
                            name: m.name,
                            pending: 0,
                            idle: m.idle,
                        });
                        all.pending += m.pending;
                        all.idle = all.idle.min(m.idle);
                    }
                }
                partitions.push(GroupPartition {
                    partition: *partition,
                    delivered: Some(group.delivered),
                    unread,
                    unread_exact,
                    pending: group.pending,
                    oldest: oldest.pop(),
                    members: group.members,
                });
            }
        }
        if partitions.iter().all(|p| p.delivered.is_none()) {
            return Ok(None);
        }
        let mut sizes = [redis::cmd("ZCARD"), redis::cmd("XLEN")];
        sizes[0].arg(self.keys.retry_bucket(topic, consumer));
        sizes[1].arg(self.keys.dead_letters(topic, consumer));
        let mut counted = [0; 2];
        for (n, answer) in counted.iter_mut().zip(c.pipeline(&sizes, by.left())?) {
            if let Value::Int(found) = answer? {
                *n = u64::try_from(found).unwrap_or(0);
            }
        }
        let [waiting, dead_letters] = counted;
        Ok(Some(GroupDescription {
            topic: topic.into(),
            consumer: consumer.into(),
            partitions,
            members: members.map(|members| members.into_values().collect()),
            waiting,
            dead_letters,
        }))
    }
}

/// How many entries come after an id, and whether these are all.
fn unread(c: &mut Connection, stream: &str, after: StreamId, by: Deadline) -> Result<(u64, bool)> {
    let extent = Extent::of(c, stream.as_bytes(), by.left())?;
    let between = (after, extent.last);
    stream::count(c, stream, between, &extent, MOST_COUNTED, [by, by])
}

impl GroupPartition {
    fn missing(partition: u32) -> Self {
        Self {
            partition,
            delivered: None,
            unread: 0,
            unread_exact: false,
            pending: 0,
            oldest: None,
            members: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_put_in_order_by_what_is_asked_for() {
        let message = |partition, ms, idle, deliveries| PendingMessage {
            partition,
            id: StreamId::new(ms, 0),
            member: "svc-0#00ff00ff".into(),
            idle: Duration::from_secs(idle),
            deliveries,
        };
        let mut page = PendingPage {
            messages: vec![
                message(0, 3, 10, 1),
                message(1, 1, 30, 2),
                message(1, 2, 20, 9),
            ],
            next: None,
        };
        for (order, ids) in [
            (PendingOrder::Id, [1, 2, 3]),
            (PendingOrder::Idle, [1, 2, 3]),
            (PendingOrder::Deliveries, [2, 1, 3]),
        ] {
            page.sort_by(order);
            let now: Vec<_> = page.messages.iter().map(|m| m.id.ms()).collect();
            assert_eq!(now, ids, "{order:?}");
        }
        assert_eq!(
            page.messages[0].to_string(),
            "p1  2-0  svc-0#00ff00ff  idle 20.0s  deliveries 9"
        );
        let retried = message(RETRIES, 1, 0, 1).to_string();
        assert!(retried.starts_with("retries  1-0  "), "{retried}");
    }
}
