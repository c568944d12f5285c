//! Who reads a topic, and to forget who does not any more.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use redis::{Cmd, Value};

use crate::{
    Admin, Error, Member, Result, StreamId, clock,
    clock::parse_moment,
    consume::{Extent, Keeps, registered},
    error::ErrorKind,
    net::{Connection, Deadline},
    queue::{GroupInfo, groups, is_gone, is_ours},
    wire::{Claimant, Ordinal, PRESENCE, PositionValue, check_consumer, check_topic},
};

use super::{
    Shared, TIMEOUT,
    ownership::claims,
    trim::{places, strangers},
};

/// A member of a group that was seen within so long may live.
const ALIVE: Duration = Duration::from_mins(1);
/// How many pending entries are acknowledged at once.
const AT_ONCE: usize = 500;

/// In which way a consumer keeps what it has finished.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ConsumerKind {
    /// As positions ([`Delivery::Ordered`](crate::Delivery::Ordered), and services in other languages).
    Positions,
    /// In a consumer group.
    Group,
    /// Not at all ([`Persist::None`](crate::Persist::None)).
    Nothing,
}

/// Somebody who reads a topic, or did once; see [`Admin::consumers`]. Displayed as a line, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ConsumerInfo {
    /// The consumer's name, which is that of its group.
    pub name: String,
    /// How it keeps what it has finished.
    pub kind: ConsumerKind,
    /// Whether it is on the topic's register, as every consumer of this library is.
    pub registered: bool,
    /// The instances of this library, and those in other languages that claim partitions, that live: their claims have
    /// not run out.
    pub members: Vec<Member>,
    /// How far the partition in which it is least far has been finished; `None` where there is a partition of which
    /// nothing is known.
    pub finished: Option<StreamId>,
    /// How much younger than what it has finished the newest message is, in the partition where that is most; zero
    /// where it has finished everything. `None` where nothing is known of a partition that has messages.
    pub behind: Option<Duration>,
    /// How many messages it has yet to finish, where that can be told.
    pub unread: Option<u64>,
    /// Of a group: how many messages its members were given and have not acknowledged.
    pub pending: u64,
    /// When it last stored a position, or a member of its group asked for messages.
    pub last_seen: Option<SystemTime>,
    /// How many dead letters it has.
    pub dead_letters: u64,
}

impl fmt::Display for ConsumerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            ConsumerKind::Positions => "positions",
            ConsumerKind::Group => "group",
            ConsumerKind::Nothing => "keeps nothing",
        };
        write!(f, "{}: {kind}, {} members", self.name, self.members.len())?;
        match self.behind {
            None => write!(f, ", how far it is behind is unknown")?,
            Some(Duration::ZERO) => write!(f, ", not behind")?,
            Some(behind) => write!(f, ", {behind:?} behind")?,
        }
        if let Some(unread) = self.unread {
            write!(f, ", {unread} unread")?;
        }
        if let Some(seen) = self.last_seen {
            write!(f, ", last seen {}", clock::RoundTrip(seen))?;
        }
        Ok(())
    }
}

/// What is known of a topic when its consumers are looked at.
struct Topic<'a> {
    name: &'a str,
    partitions: Vec<u32>,
    streams: Vec<String>,
    extents: Vec<Extent>,
    /// Of each stream.
    groups: Vec<Vec<GroupInfo>>,
    register: BTreeMap<String, Keeps>,
    by: Deadline,
}

impl Admin {
    /// Everybody on the topic's register and every group of its streams, by name. Changes nothing, and looks at no
    /// keys but the topic's. Blocks for up to 30 s, usually for some round trips for each.
    ///
    /// # Errors
    ///
    /// A topic that was never created; a server that cannot be reached or refuses.
    pub fn consumers(&self, topic: impl AsRef<str>) -> Result<Vec<ConsumerInfo>> {
        self.list(topic.as_ref(), false)
    }

    /// As [`consumers`](Self::consumers), and whoever else keeps positions on the topic, as services in other languages do:
    /// for that all keys of the server are looked through, step by step and with pauses.
    ///
    /// # Errors
    ///
    /// As of [`consumers`](Self::consumers); and a server that has more keys than can be looked through in 30 s.
    pub fn find_consumers(&self, topic: impl AsRef<str>) -> Result<Vec<ConsumerInfo>> {
        self.list(topic.as_ref(), true)
    }

    fn list(&self, topic: &str, everywhere: bool) -> Result<Vec<ConsumerInfo>> {
        check_topic(topic)?;
        let by = Deadline::after(TIMEOUT);
        let shared = &*self.shared;
        let work = || {
            let mut c = shared.connect(by)?;
            let topic = Topic::look(shared, &mut c, topic, by)?;
            let mut names: BTreeSet<_> = topic.register.keys().cloned().collect();
            let of_streams = topic.groups.iter().flatten();
            names.extend(of_streams.map(|g| String::from_utf8_lossy(&g.name).into_owned()));
            if everywhere {
                names.extend(strangers(shared, &mut c, topic.name, by)?);
            }
            let each = names.into_iter();
            each.map(|name| topic.consumer(shared, &mut c, name))
                .collect::<Result<Vec<_>>>()
        };
        work().map_err(|e: Error| e.during("list consumers"))
    }

    /// Begins to describe a consumer that is to be forgotten, since nobody uses it any more; nothing is done before
    /// [`preview`](Forget::preview) or [`apply`](Forget::apply).
    ///
    /// ```no_run
    /// # fn main() -> Result<(), streamlane::Error> {
    /// # let streams = streamlane::Streams::connect("redis://127.0.0.1:6379")?;
    /// let forget = streams.admin().forget("orders", "old-billing");
    /// println!("{}", forget.preview()?);
    /// forget.apply()?; // what is older than RetentionSeconds is not kept for it any more
    /// # Ok(()) }
    /// ```
    pub fn forget(&self, topic: impl Into<String>, consumer: impl Into<String>) -> Forget {
        Forget {
            shared: Arc::clone(&self.shared),
            topic: topic.into(),
            consumer: consumer.into(),
            dead_letters: false,
            force: false,
            timeout: TIMEOUT,
        }
    }
}

impl<'a> Topic<'a> {
    fn look(shared: &Shared, c: &mut Connection, name: &'a str, by: Deadline) -> Result<Self> {
        let (partitions, co_located) = places(shared, c, name, None, by)?;
        let key = |p: &u32| shared.keys.stream(name, *p, co_located);
        let streams: Vec<_> = partitions.iter().map(key).collect();
        let extents = Extent::of_all(c, &streams, by.left())?;
        let mut all = Vec::with_capacity(streams.len());
        for stream in &streams {
            all.push(groups(c, stream.as_bytes(), by.left())?);
        }
        Ok(Self {
            name,
            partitions,
            extents: extents.into_iter().map(Option::unwrap_or_default).collect(),
            groups: all,
            streams,
            register: registered(c, &shared.keys, name, by.left())?,
            by,
        })
    }

    fn has_group(&self, name: &str) -> bool {
        let mut all = self.groups.iter().flatten();
        all.any(|g| g.name == name.as_bytes())
    }

    fn consumer(&self, shared: &Shared, c: &mut Connection, name: String) -> Result<ConsumerInfo> {
        let (keys, by) = (&shared.keys, self.by);
        let kept = self.register.get(&name);
        let kind = match kept {
            Some(Keeps::Nothing) => ConsumerKind::Nothing,
            Some(Keeps::Group | Keeps::DeletingGroup) => ConsumerKind::Group,
            None if self.has_group(&name) => ConsumerKind::Group,
            Some(Keeps::Positions) | None => ConsumerKind::Positions,
        };
        let all = claims(c, keys, self.name, &name, by)?;
        let members = all.iter().filter(|(field, _)| field.starts_with(PRESENCE));
        let members = members.map(|(_, value)| Member::from(&Claimant::read(value.as_bytes())));
        let mut letters = redis::cmd("XLEN");
        letters.arg(keys.dead_letters(self.name, &name));
        let mut info = ConsumerInfo {
            kind,
            registered: kept.is_some(),
            members: members.collect(),
            finished: None,
            behind: None,
            unread: None,
            pending: 0,
            last_seen: None,
            dead_letters: c.ask(&letters, by.left())?,
            name,
        };
        let marks = match kind {
            ConsumerKind::Nothing => return Ok(info),
            ConsumerKind::Positions => self.positions(shared, c, &mut info)?,
            ConsumerKind::Group => self.group(c, &mut info)?,
        };
        info.finished = marks.iter().map(|(at, _)| *at).min().flatten();
        info.behind = Some(Duration::ZERO);
        info.unread = Some(0);
        for ((at, unread), extent) in marks.into_iter().zip(&self.extents) {
            let Some(newest) = extent.newest else {
                continue; // there is nothing to read
            };
            let is_through = at.is_some_and(|at| at >= newest);
            let behind = at.map(|at| newest.ms().saturating_sub(at.ms()));
            let behind = if is_through { Some(0) } else { behind };
            let behind = behind.map(Duration::from_millis);
            info.behind = info.behind.zip(behind).map(|(a, b)| a.max(b));
            let unread = if is_through { Some(0) } else { unread };
            info.unread = info.unread.zip(unread).map(|(a, b)| a + b);
        }
        Ok(info)
    }

    /// Of each partition: the position, and how many entries lie behind it, where that is known.
    fn positions(
        &self,
        shared: &Shared,
        c: &mut Connection,
        info: &mut ConsumerInfo,
    ) -> Result<Vec<(Option<StreamId>, Option<u64>)>> {
        let n = self.partitions.len();
        let mut positions = redis::cmd("HMGET");
        positions.arg(shared.keys.positions(self.name, &info.name));
        positions.arg(&self.partitions);
        let positions = c.ask_fields(&positions, n, self.by.left())?;
        let mut meta = redis::cmd("HMGET");
        meta.arg(shared.keys.positions_meta(self.name, &info.name));
        for p in &self.partitions {
            meta.arg(format!("{p}:ordinal"))
                .arg(format!("{p}:updatedUtc"));
        }
        let meta = c.ask_fields(&meta, 2 * n, self.by.left())?;
        let mut marks = Vec::with_capacity(n);
        for ((position, meta), extent) in positions.iter().zip(meta.chunks(2)).zip(&self.extents) {
            let updated = meta[1].as_deref().and_then(|t| str::from_utf8(t).ok());
            let updated = updated.and_then(|text| parse_moment(text).ok());
            info.last_seen = info.last_seen.max(updated);
            let at = position.as_deref().and_then(PositionValue::parse);
            let at = at.map(|position| position.id);
            let ordinal = meta[0].as_deref().and_then(Ordinal::parse);
            let counted = ordinal.filter(|ordinal| at == Some(ordinal.id));
            let unread = counted.map(|ordinal| extent.added.saturating_sub(ordinal.entries));
            // what it had yet to read and is gone is not there to be read
            marks.push((at, unread.map(|unread| unread.min(extent.length()))));
        }
        Ok(marks)
    }

    /// As [`positions`](Self::positions), of a group.
    fn group(
        &self,
        c: &mut Connection,
        info: &mut ConsumerInfo,
    ) -> Result<Vec<(Option<StreamId>, Option<u64>)>> {
        let now = clock::wall();
        let mut marks = Vec::with_capacity(self.streams.len());
        for (stream, groups) in self.streams.iter().zip(&self.groups) {
            let Some(group) = groups.iter().find(|g| g.name == info.name.as_bytes()) else {
                marks.push((None, None));
                continue;
            };
            info.pending += group.pending;
            for (_, idle) in members(c, stream, &info.name, self.by)? {
                info.last_seen = info.last_seen.max(now.checked_sub(idle));
            }
            let mut at = group.delivered;
            if group.pending > 0 {
                let first = first_pending(c, stream, &info.name, self.by)?;
                at = at.min(first.map_or(at, StreamId::before));
            }
            marks.push((Some(at), None));
        }
        Ok(marks)
    }
}

/// A consumer that is to be forgotten; see [`Admin::forget`].
///
/// Deletes what is kept for it and nothing else: its positions, what is noted beside them, its claims, its groups with
/// what is pending in them, what waits to be handed over once more, and its place on the topic's register. Dead letters
/// stay unless [asked for](Self::with_dead_letters). A consumer that starts under the name afterwards begins as a new one.
#[derive(Clone)]
#[must_use = "nothing is done before `preview` or `apply`"]
pub struct Forget {
    shared: Arc<Shared>,
    topic: String,
    consumer: String,
    dead_letters: bool,
    force: bool,
    timeout: Duration,
}

/// What forgetting a consumer would delete, or has deleted. Displayed, it is a text for people.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Forgotten {
    /// Its instances that live, and members of its groups that were seen within the last minute: it is not forgotten
    /// while there are any, unless that is forced.
    pub alive: Vec<String>,
    /// The keys that are deleted.
    pub keys: Vec<String>,
    /// The partitions in whose streams it has a group.
    pub groups: Vec<u32>,
    /// How many messages are pending in its groups.
    pub pending: u64,
    /// How many messages wait to be handed to it once more.
    pub waiting: u64,
    /// How many dead letters it has, which stay unless asked for.
    pub dead_letters: u64,
    /// Whether it is on the topic's register.
    pub registered: bool,
}

impl Forgotten {
    /// Whether there is nothing to forget.
    pub fn is_nothing(&self) -> bool {
        self.keys.is_empty() && self.groups.is_empty() && !self.registered
    }
}

impl fmt::Display for Forgotten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_nothing() {
            return f.write_str("nothing is kept for it");
        }
        let Self {
            pending,
            waiting,
            dead_letters,
            ..
        } = self;
        for key in &self.keys {
            writeln!(f, "key {key}")?;
        }
        writeln!(f, "groups in {} partitions", self.groups.len())?;
        write!(
            f,
            "{pending} messages pending, {waiting} waiting for another try, {dead_letters} dead letters"
        )?;
        if !self.alive.is_empty() {
            write!(f, "\nit LIVES: {}", self.alive.join(", "))?;
        }
        Ok(())
    }
}

impl Forget {
    /// Deletes its dead letters, too.
    pub fn with_dead_letters(mut self) -> Self {
        self.dead_letters = true;
        self
    }

    /// Does it even while it lives. Who runs on keeps what it finishes anew.
    pub fn force(mut self) -> Self {
        self.force = true;
        self
    }

    /// How long [`preview`](Self::preview) and [`apply`](Self::apply) may take (default 30 s).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// What would be deleted, as of now. Changes nothing. Blocks for up to the timeout.
    ///
    /// # Errors
    ///
    /// A topic that was never created; a server that cannot be reached or refuses.
    pub fn preview(&self) -> Result<Forgotten> {
        self.run("preview forgetting", |c, by| Ok(self.look(c, by)?.0))
    }

    /// Does it, and tells what was deleted. Blocks for up to the timeout.
    ///
    /// Refused while one of its instances lives, or a member of its group in another language was seen within the last
    /// minute, unless [forced](Self::force). Who consumes without claims and groups, as under
    /// [`Instances::Static`](crate::Instances::Static), is not seen.
    ///
    /// # Errors
    ///
    /// As [`preview`](Self::preview); [`ErrorKind::Argument`] while it lives. After any other error some may be deleted:
    /// it may be done again.
    pub fn apply(&self) -> Result<Forgotten> {
        self.run("forget", |c, by| {
            let (found, streams) = self.look(c, by)?;
            if !self.force && !found.alive.is_empty() {
                let what = format!(
                    "{self} lives: {}: stop it and try again when its claims have run out, or force it",
                    found.alive.join(", ")
                );
                return Err(Error::new(ErrorKind::Argument, "forget", what));
            }
            for stream in &streams {
                disband(c, stream, &self.consumer, by)?;
            }
            if !found.keys.is_empty() {
                let mut unlink = redis::cmd("UNLINK");
                unlink.arg(&found.keys);
                c.call(&unlink, by.left())?;
            }
            // Last, so that what is not done yet can be found.
            let mut register = redis::cmd("HDEL");
            register.arg(self.shared.keys.consumers(&self.topic));
            c.call(register.arg(&self.consumer), by.left())?;
            log::warn!("{self}: the consumer was forgotten, as asked for");
            Ok(found)
        })
    }

    fn run<T>(
        &self,
        operation: &'static str,
        f: impl FnOnce(&mut Connection, Deadline) -> Result<T>,
    ) -> Result<T> {
        check_topic(&self.topic)?;
        check_consumer(&self.consumer)?;
        let by = Deadline::after(self.timeout);
        let mut connection = self.shared.connect(by)?;
        f(&mut connection, by).map_err(|e| e.during(operation))
    }

    /// What there is, and the streams in which it has groups.
    fn look(&self, c: &mut Connection, by: Deadline) -> Result<(Forgotten, Vec<String>)> {
        let (keys, topic, name) = (&self.shared.keys, &*self.topic, &*self.consumer);
        let all = Topic::look(&self.shared, c, topic, by)?;
        let mut found = Forgotten {
            alive: Vec::new(),
            keys: Vec::new(),
            groups: Vec::new(),
            pending: 0,
            waiting: 0,
            dead_letters: 0,
            registered: all.register.contains_key(name),
        };
        for (field, value) in claims(c, keys, topic, name, by)? {
            if field.starts_with(PRESENCE) {
                found.alive.push(value);
            }
        }
        let mut streams = Vec::new();
        for ((p, stream), groups) in all.partitions.iter().zip(all.streams).zip(&all.groups) {
            if let Some(group) = groups.iter().find(|g| g.name == name.as_bytes()) {
                found.groups.push(*p);
                found.pending += group.pending;
                for (member, idle) in members(c, &stream, name, by)? {
                    // Ours have a sign of life of their own.
                    if idle < ALIVE && !is_ours(&member) && !found.alive.contains(&member) {
                        found.alive.push(member);
                    }
                }
                streams.push(stream);
            }
        }
        let letters = [
            keys.dead_letters(topic, name),
            keys.dead_letters_meta(topic, name),
        ];
        let bucket = keys.retry_bucket(topic, name);
        let counted = [cmd("XLEN", &letters[0]), cmd("ZCARD", &bucket)];
        let mut counts = c.pipeline(&counted, by.left())?.into_iter();
        let mut count = || match counts.next() {
            Some(Ok(Value::Int(n))) => n.unsigned_abs(),
            _ => 0,
        };
        (found.dead_letters, found.waiting) = (count(), count());
        let mut own = vec![
            keys.positions(topic, name),
            keys.positions_meta(topic, name),
            keys.ownership(topic, name),
            keys.expiries(topic, name),
            keys.retries(topic, name),
            bucket,
            keys.retry_items(topic, name),
        ];
        if self.dead_letters {
            own.extend(letters);
        }
        let there: Vec<Cmd> = own.iter().map(|key| cmd("EXISTS", key)).collect();
        for (key, there) in own.into_iter().zip(c.pipeline(&there, by.left())?) {
            if there? == Value::Int(1) {
                found.keys.push(key);
            }
        }
        Ok((found, streams))
    }
}

impl fmt::Display for Forget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.consumer)
    }
}

impl fmt::Debug for Forget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forget")
            .field("topic", &self.topic)
            .field("consumer", &self.consumer)
            .field("dead_letters", &self.dead_letters)
            .field("force", &self.force)
            .finish_non_exhaustive()
    }
}

fn cmd(name: &str, key: &str) -> Cmd {
    let mut cmd = redis::cmd(name);
    cmd.arg(key);
    cmd
}

/// Deletes a group. What is pending goes before, in pieces: all of it at once could hold the server up.
fn disband(c: &mut Connection, stream: &str, group: &str, by: Deadline) -> Result<()> {
    loop {
        let mut cmd = redis::cmd("XPENDING");
        cmd.arg(stream).arg(group).arg("-").arg("+").arg(AT_ONCE);
        let pending: Vec<Vec<Value>> = match c.ask(&cmd, by.left()) {
            Err(e) if is_gone(&e) => return Ok(()),
            pending => pending?,
        };
        let mut ack = redis::cmd("XACK");
        ack.arg(stream).arg(group);
        for entry in &pending {
            if let Some(Value::BulkString(id)) = entry.first() {
                ack.arg(id);
            }
        }
        if !pending.is_empty() {
            c.call(&ack, by.left())?;
        }
        if pending.len() < AT_ONCE {
            break;
        }
    }
    let mut destroy = redis::cmd("XGROUP");
    destroy.arg("DESTROY").arg(stream).arg(group);
    match c.call(&destroy, by.left()) {
        Err(e) if is_gone(&e) => Ok(()),
        done => done.map(drop),
    }
}

/// The members of a group by name, and how long ago each asked for something.
fn members(
    c: &mut Connection,
    stream: &str,
    group: &str,
    by: Deadline,
) -> Result<Vec<(String, Duration)>> {
    let mut cmd = redis::cmd("XINFO");
    cmd.arg("CONSUMERS").arg(stream).arg(group);
    let all: Vec<BTreeMap<String, Value>> = match c.ask(&cmd, by.left()) {
        Err(e) if is_gone(&e) => return Ok(Vec::new()),
        all => all?,
    };
    let read = |member: &BTreeMap<String, Value>| {
        let Some(Value::BulkString(name)) = member.get("name") else {
            return None;
        };
        let idle = match member.get("idle") {
            Some(Value::Int(ms)) => Duration::from_millis(u64::try_from(*ms).ok()?),
            _ => return None,
        };
        Some((String::from_utf8_lossy(name).into_owned(), idle))
    };
    Ok(all.iter().filter_map(read).collect())
}

fn first_pending(
    c: &mut Connection,
    stream: &str,
    group: &str,
    by: Deadline,
) -> Result<Option<StreamId>> {
    match crate::queue::first_pending(c, stream.as_bytes(), group.as_bytes(), by.left()) {
        Err(e) if is_gone(&e) => Ok(None),
        found => found,
    }
}
