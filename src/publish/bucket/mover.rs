//! Publishes delayed messages when they are due: one thread for all topics that are in use here.
//!
//! Of all processes that use a topic one moves what is in its bucket, the one whose lease stands: a key that
//! always expires. Moving is one script, so two that take themselves for the mover do no harm. Where nothing
//! is delayed all this is one short question for each topic about once a second.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use redis::{Value, cmd};

use crate::{
    Result,
    backoff::jittered,
    clock,
    error::{Error, ErrorKind, ServerClass},
    net::{Connection, Deadline, Inbox, STOP, resp, script::by_hash_first},
    quiet::{HeldBack, Quiet},
    wire::{
        Keys,
        topic::{TopicRecord, field},
    },
};

use super::{
    super::{
        AllCounts, StreamKeys, Subject, counts::Count, ensure::MOST_PARTITIONS,
        idempotency::RELEASE,
    },
    BucketKeys, Due, LEASE, MOVE, Moved,
    delays::{ADDED, GRACE, Shared, Topic},
};

/// How often the mover looks what there is, before the jitter.
const LOOK: Duration = Duration::from_millis(800);

/// What is due within so long is somebody's to move. More than the time between two looks.
const SOON: Duration = Duration::from_secs(2);

/// How long a bucket that may not be looked at is left alone.
const REST: Duration = Duration::from_mins(1);

/// What looking, and having the lease, needs besides the rights of [`MOVE`].
const MOVER_RIGHTS: &str = "+exists +get +set +pexpire +del";

/// The thread's own.
pub(super) struct Mover {
    shared: Arc<Shared>,
    connection: Option<Connection>,
    watched: Vec<Watched>,
    commands: Vec<u8>,
    inbox: Inbox,
    quiet: Quiet,
}

/// A topic and its buckets: one, or one for each partition where these are kept apart.
struct Watched {
    topic: Arc<Topic>,
    buckets: Vec<Bucket>,
    /// As many as are known.
    streams: StreamKeys,
    quiet: Quiet,
}

struct Bucket {
    keys: BucketKeys,
    /// Whether anything was in it at the last look.
    filled: bool,
    /// Whether the lease is held here, as far as is known.
    held: bool,
    /// When the next is due, where that is soon and the lease is held.
    next: Option<Instant>,
    /// Until when it is left alone.
    rests: Option<Instant>,
}

impl Bucket {
    fn new(keys: &Keys, tag: &str) -> Self {
        Self {
            keys: BucketKeys::new(keys, tag),
            filled: false,
            held: false,
            next: None,
            rests: None,
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        self.held && self.next.is_some_and(|next| next <= now)
    }

    /// Leaves it alone for a while where the server will not have it looked at: says whether that is so.
    fn rest_after(&mut self, e: &Error) -> bool {
        let refused = e.server_class() == Some(ServerClass::NoPermission);
        if refused {
            self.rests = Some(clock::now() + REST);
            self.filled = false;
        }
        refused
    }

    fn let_go(&mut self) {
        self.held = false;
        self.next = None;
    }
}

/// What was refused in one look: the first that is worth a warning, else the first of all.
#[derive(Default)]
struct Refused(Option<(Error, bool)>);

impl Refused {
    fn add(&mut self, e: Error, matters: bool) {
        if self.0.as_ref().is_none_or(|(_, told)| matters && !told) {
            self.0 = Some((e, matters));
        }
    }
}

impl Watched {
    /// Whether this process has anything delayed there, as far as it remembers.
    fn is_delayed_here(&self, counts: &AllCounts) -> bool {
        let counts = counts.lock();
        let counts = counts.get(&self.topic.name);
        counts.is_some_and(|c| c.get(Count::Scheduled) > 0)
    }

    /// Takes up partitions that are known by now.
    fn keep_up(&mut self, keys: &Keys, partitions: u32) {
        let Topic { name, settings, .. } = &*self.topic;
        let known = self.streams.len() as u32;
        if known < partitions {
            let subject = Subject {
                keys,
                name,
                settings,
            };
            self.streams.extend(subject.streams(known..partitions));
        }
        if settings.co_locate_partitions {
            if self.buckets.is_empty() {
                self.buckets.push(Bucket::new(keys, name));
            }
        } else {
            let more = &self.streams[self.buckets.len()..];
            let tags = more.iter().map(|key| String::from_utf8_lossy(key));
            let buckets = tags.map(|tag| Bucket::new(keys, &tag));
            self.buckets.extend(buckets);
        }
    }
}

impl Mover {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            connection: None,
            watched: Vec::new(),
            commands: Vec::new(),
            inbox: Inbox::default(),
            quiet: Quiet::default(),
        }
    }

    /// Until it is told to stop.
    pub(super) fn run(&mut self) {
        let interrupt = Arc::clone(&self.shared.interrupt);
        // Not at once: a process that lives for a moment moves nothing.
        let mut look_at = clock::now() + jittered(LOOK);
        loop {
            let next = self.next().map_or(look_at, |next| next.min(look_at));
            interrupt.sleep(next.saturating_duration_since(clock::now()), STOP | ADDED);
            let bits = interrupt.bits();
            if bits & STOP != 0 {
                self.hand_back();
                return;
            }
            interrupt.clear(ADDED); // first: what is added from now on is looked at again
            let added = bits & ADDED != 0;
            let mut done = Ok(());
            if added || clock::now() >= look_at {
                look_at = clock::now() + jittered(LOOK);
                done = self.with_connection(|mover, c| mover.look(c, added));
            }
            if done.is_ok() && self.buckets().any(|b| b.is_due(clock::now())) {
                done = self.with_connection(Self::move_due);
            }
            if let Err(e) = done {
                self.buckets().for_each(Bucket::let_go);
                self.failed(&e, true);
            }
        }
    }

    fn buckets(&mut self) -> impl Iterator<Item = &mut Bucket> {
        self.watched.iter_mut().flat_map(|w| &mut w.buckets)
    }

    /// When the next is due that is to be moved here.
    fn next(&mut self) -> Option<Instant> {
        self.buckets().filter_map(|b| b.next).min()
    }

    /// Makes a connection if there is none. It is kept as long as it is of use.
    fn with_connection(
        &mut self,
        f: impl FnOnce(&mut Self, &mut Connection) -> Result<()>,
    ) -> Result<()> {
        if self.connection.is_none() {
            self.collect(); // without a connection no lease is held
            if self.watched.is_empty() {
                return Ok(());
            }
        }
        let kept = self.connection.take();
        let kept = kept.and_then(|mut c| c.check_idle().is_ok().then_some(c));
        let terms = &self.shared.terms;
        let mut connection = match kept {
            Some(connection) => connection,
            None => Connection::dial(
                &terms.target,
                &terms.client_name,
                Some(&self.shared.interrupt),
                terms.timeout,
            )?,
        };
        let done = f(self, &mut connection);
        let keeps = done.as_ref().err().is_none_or(Error::keeps_connection);
        if keeps && !self.watched.is_empty() {
            self.connection = Some(connection);
        }
        done
    }

    /// The topics that somebody uses, and their buckets. Returns those that nobody uses any more.
    fn collect(&mut self) -> Vec<Watched> {
        let mut topics = self.shared.topics.lock();
        topics.retain(|_, t| t.partitions.strong_count() > 0);
        let is_unused = |w: &mut Watched| {
            let topic = topics.get(&w.topic.name);
            topic.is_none_or(|t| !Arc::ptr_eq(t, &w.topic))
        };
        let unused = self.watched.extract_if(.., is_unused).collect();
        for topic in topics.values() {
            if !self.watched.iter().any(|w| Arc::ptr_eq(topic, &w.topic)) {
                self.watched.push(Watched {
                    topic: Arc::clone(topic),
                    buckets: Vec::new(),
                    streams: Vec::new(),
                    quiet: Quiet::default(),
                });
            }
        }
        drop(topics);
        for w in &mut self.watched {
            let partitions = w.topic.partitions.upgrade().map_or(0, |p| p.seen());
            w.keep_up(&self.shared.terms.keys, partitions);
        }
        unused
    }

    /// Finds out which buckets are to be moved here, and when.
    fn look(&mut self, c: &mut Connection, added: bool) -> Result<()> {
        let (unused, terms) = (self.collect(), &self.shared.terms);
        for b in unused.iter().flat_map(|w| &w.buckets).filter(|b| b.held) {
            give_back(c, &b.keys, &self.shared.token, terms.timeout)?;
        }
        let now = clock::now();
        for b in self.buckets() {
            b.rests = b.rests.filter(|until| *until > now && !added);
        }
        let mut refused = Refused::default();
        self.ask_which_are_filled(c, &mut refused)?;
        if self.buckets().any(|b| b.filled) {
            self.claim(c, &mut refused)?;
        }
        // What is refused about one bucket is no matter of the others.
        if let Refused(Some((e, matters))) = refused {
            self.failed(&e, matters);
        }
        Ok(())
    }

    /// Allocates nothing once it is warm.
    fn ask_which_are_filled(&mut self, c: &mut Connection, refused: &mut Refused) -> Result<()> {
        let by = Deadline::after(self.shared.terms.timeout);
        self.commands.clear();
        let buckets = self.watched.iter().flat_map(|w| &w.buckets);
        for b in buckets.filter(|b| b.rests.is_none()) {
            resp::whole(&mut self.commands, &[b"EXISTS", b.keys.bucket.as_bytes()]);
        }
        if self.commands.is_empty() {
            return Ok(());
        }
        self.inbox.clear();
        c.send(&self.commands, by.wait())?;
        let counts = &self.shared.terms.counts;
        for w in &mut self.watched {
            let mut without_rights = None;
            for b in &mut w.buckets {
                b.filled = false;
                if b.rests.is_some() {
                    continue;
                }
                let head = self.inbox.next(c, by)?;
                let text = self.inbox.bytes_of(head);
                if let resp::Head::Error(_) = head {
                    let e = Error::server("look for delayed messages", text).on_key(&b.keys.bucket);
                    c.heed(&e);
                    if b.rest_after(&e) {
                        without_rights.get_or_insert(e);
                    } else {
                        refused.add(e, true);
                    }
                } else {
                    b.filled = text != b"0";
                }
                if !b.filled {
                    b.let_go();
                }
            }
            if let Some(e) = without_rights {
                // Who may not look has nothing delayed, but for one whose rights end there.
                refused.add(e, w.is_delayed_here(counts));
            }
        }
        Ok(())
    }

    /// Claims the buckets in which something is due soon, unless somebody else has them.
    fn claim(&mut self, c: &mut Connection, refused: &mut Refused) -> Result<()> {
        let (terms, token) = (&self.shared.terms, &*self.shared.token);
        let mut cmds = vec![cmd("TIME")];
        for w in &self.watched {
            for b in w.buckets.iter().filter(|b| b.filled) {
                let mut head = cmd("ZRANGE");
                head.arg(&b.keys.bucket).arg(0).arg(0).arg("WITHSCORES");
                let mut lease = cmd("GET");
                lease.arg(&b.keys.lease);
                let mut partitions = cmd("HGET");
                let meta = terms.keys.topic_meta(&w.topic.name);
                partitions.arg(meta).arg(field::PARTITIONS);
                cmds.extend([head, lease, partitions]);
            }
        }
        let mut answers = c.pipeline(&cmds, terms.timeout)?.into_iter();
        let now = clock::now();
        let time = answers.next().unwrap_or(Ok(Value::Nil))?;
        let time = redis::from_redis_value::<(u64, u64)>(time);
        let (seconds, micros) = time.map_err(|_| odd("the answer is no time"))?;
        let server_ms = seconds * 1000 + micros / 1000;
        let mut claims = Vec::new();
        for w in &mut self.watched {
            let mut recorded = 0;
            for b in w.buckets.iter_mut().filter(|b| b.filled) {
                let mut answer = |is_needed| match answers.next() {
                    Some(Ok(value)) => value,
                    Some(Err(e)) => {
                        if is_needed {
                            b.rest_after(&e);
                        }
                        refused.add(e, true);
                        Value::Nil
                    }
                    None => Value::Nil,
                };
                // without what is recorded, those that are known have to do
                let (head, lease, partitions) = (answer(true), answer(true), answer(false));
                let partitions = bytes(&partitions);
                let record = TopicRecord::parse([partitions, None, None]);
                recorded = recorded.max(record.partitions.unwrap_or(0).min(MOST_PARTITIONS));
                b.let_go();
                if b.rests.is_some() {
                    continue;
                }
                let Some(wait) = due_ms(&head).map(|due| due.saturating_sub(server_ms)) else {
                    continue;
                };
                let wait = Duration::from_millis(wait);
                let mine = bytes(&lease) == Some(token.as_bytes());
                if wait > SOON || !mine && lease != Value::Nil {
                    continue;
                }
                b.next = Some(now + wait);
                let ms = clock::ceil_ms(LEASE);
                claims.push(if mine {
                    let mut renew = cmd("PEXPIRE");
                    renew.arg(&b.keys.lease).arg(ms);
                    renew
                } else {
                    let mut take = cmd("SET");
                    take.arg(&b.keys.lease)
                        .arg(token)
                        .arg("NX")
                        .arg("PX")
                        .arg(ms);
                    take
                });
            }
            if w.topic.settings.co_locate_partitions {
                w.keep_up(&terms.keys, recorded);
            }
        }
        let answers = c.pipeline(&claims, terms.timeout)?;
        let waiting = self.watched.iter_mut().flat_map(|w| &mut w.buckets);
        for (b, answer) in waiting.filter(|b| b.next.is_some()).zip(answers) {
            match answer {
                Ok(Value::Okay | Value::Int(1)) => b.held = true,
                Ok(_) => b.let_go(),
                Err(e) => {
                    b.let_go();
                    b.rest_after(&e);
                    refused.add(e, true);
                }
            }
        }
        Ok(())
    }

    /// Moves what is due, from each bucket as much as one script may.
    fn move_due(&mut self, c: &mut Connection) -> Result<()> {
        let Shared { terms, token, .. } = &*self.shared;
        for w in &mut self.watched {
            let Watched {
                topic,
                buckets,
                streams,
                quiet,
            } = w;
            for (i, b) in buckets.iter_mut().enumerate() {
                if !b.is_due(clock::now()) {
                    continue;
                }
                let due = Due {
                    bucket: b.keys.bucket.as_bytes(),
                    items: b.keys.items.as_bytes(),
                    letters: None,
                    targets: if topic.settings.co_locate_partitions {
                        &streams[..]
                    } else {
                        &streams[i..=i]
                    },
                };
                let moved = due.publish(c, terms.timeout);
                let moved = moved.and_then(|mut m| m.refused.take().map_or(Ok(m), Err));
                let over = match moved {
                    Ok(moved) => {
                        tell(topic, quiet, &terms.counts, &moved);
                        b.next = moved.next.map(|wait| clock::now() + wait);
                        b.next.is_none()
                    }
                    Err(e) if e.keeps_connection() => {
                        c.heed(&e);
                        if let Some(more) = quiet.permit() {
                            let more = HeldBack(more);
                            log::error!(
                                "topic {}: delayed messages that are due are NOT PUBLISHED: {e}; tried \
                                 again{more}",
                                topic.name
                            );
                        }
                        b.next = None; // until the next look
                        b.rest_after(&e)
                    }
                    Err(e) => return Err(e),
                };
                if over {
                    give_back(c, &b.keys, token, terms.timeout)?;
                    b.let_go();
                }
            }
        }
        Ok(())
    }

    /// Lets others go on at once.
    fn hand_back(&mut self) {
        let Some(mut c) = self.connection.take() else {
            return;
        };
        let token = &self.shared.token;
        for b in self.watched.iter().flat_map(|w| &w.buckets) {
            if b.held && give_back(&mut c, &b.keys, token, GRACE / 2).is_err() {
                return; // they expire
            }
        }
    }

    /// `matters` unless nothing is known to be delayed where it failed.
    fn failed(&mut self, e: &Error, matters: bool) {
        // Of a server that is away others tell.
        let told_elsewhere = matches!(
            e.kind(),
            ErrorKind::Connect | ErrorKind::Io | ErrorKind::Timeout | ErrorKind::Stopped
        );
        if told_elsewhere || !matters {
            log::debug!("whether delayed messages are due is not known: {e}");
        } else if let Some(more) = self.quiet.permit() {
            let (more, mut grant) = (HeldBack(more), String::new());
            if e.server_class() == Some(ServerClass::NoPermission) {
                let (rights, prefix) = (MOVE.commands, self.shared.terms.keys.prefix());
                grant = format!(
                    "; to publish them needs ACL SETUSER <user> {rights} {MOVER_RIGHTS} ~{prefix}dl:* \
                     ~{prefix}di:* besides the keys of the topic"
                );
            }
            log::warn!(
                "whether delayed messages are due is not known: {e}{grant}; asked again{more}"
            );
        }
    }
}

/// Counts what was moved, and tells of what could not be.
fn tell(topic: &Topic, quiet: &mut Quiet, counts: &AllCounts, moved: &Moved) {
    let n = moved.put_off.len() as u64;
    if n > 0 || moved.published > 0 {
        let counts = Arc::clone(counts.lock().entry(topic.name.clone()).or_default());
        counts.add(Count::Moved, moved.published);
        counts.add(Count::PutOff, n);
    }
    for (id, why) in &moved.put_off {
        if let Some(more) = quiet.permit() {
            let more = HeldBack(more);
            log::error!(
                "topic {}: the delayed message {id} was NOT PUBLISHED when it was due: {why}{more}",
                topic.name
            );
        }
    }
}

/// Deletes the lease if it is held here.
fn give_back(c: &mut Connection, keys: &BucketKeys, token: &str, timeout: Duration) -> Result<()> {
    let key = keys.lease.as_bytes();
    let given =
        by_hash_first(|form| c.call(&RELEASE.on_key(form, key, &[token.as_bytes()]), timeout));
    match given {
        // it expires
        Err(e) if e.keeps_connection() => log::debug!("a lease is not handed back: {e}"),
        Err(e) => return Err(e),
        Ok(_) => {}
    }
    Ok(())
}

fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}

fn text(value: &Value) -> Option<&str> {
    str::from_utf8(bytes(value)?).ok()
}

/// When the first of a bucket is due; scores may be written as any number may.
fn due_ms(answer: &Value) -> Option<u64> {
    let Value::Array(parts) = answer else {
        return None;
    };
    let score: f64 = text(parts.get(1)?)?.parse().ok()?;
    #[expect(clippy::cast_sign_loss, reason = "what is below is due, too")]
    Some(score.ceil() as u64)
}

#[cold]
fn odd(why: &'static str) -> Error {
    Error::new(ErrorKind::Protocol, "look for delayed messages", why)
}
