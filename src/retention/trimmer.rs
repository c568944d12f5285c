//! The thread that trims topics by age: which of them are to be trimmed here, and when.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    Result, StreamId,
    backoff::jittered,
    clock,
    error::{Error, ErrorKind, ServerClass},
    net::{
        Connection, STOP,
        script::{Script, by_hash_first},
    },
    publish::RELEASE,
    queue::{How, Leave, trim},
    quiet::{HeldBack, Quiet},
    wire::topic::field,
};

use super::{
    ADDED, GRACE, Shared, Topic,
    search::Search,
    sweep::{Cut, PartitionSweep, Place, Strangers, sweep},
};

/// How long a lease lasts unless it is renewed.
const LEASE: Duration = Duration::from_secs(6);
/// How often leases are renewed, or looked for.
const LOOK: Duration = Duration::from_secs(2);
/// How long after a failure it is tried again.
const REST: Duration = Duration::from_secs(3);
/// How often it is looked again who reads topics without having written it down.
const SEARCH: Duration = Duration::from_mins(10);
/// The longest time between two looks at dead letters that have an age; and the shortest.
const LETTERS: [Duration; 2] = [Duration::from_mins(1), Duration::from_secs(1)];
/// No topic has more partitions than this, whatever a field says.
const MOST_PARTITIONS: u32 = 65_536;

/// The rights that trimming takes.
const RIGHTS: &str = "+evalsha +eval +get +set +pexpire +del +time +hget +hgetall +exists +scan +xlen +xrange \
                      +xtrim +xdel +xinfo +xpending";

/// Takes or renews a lease. Key: the lease. Arguments: who; for how many milliseconds. Says whether it is held.
const HOLD: Script = Script {
    text: "#!lua flags=allow-oom
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
elseif holder then
    return 0
else
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
return 1",
    sha1: "8efa2cb0368d63486e6788ad94d5c4ea98d0de2a",
    commands: "+eval +evalsha +get +set +pexpire",
};

/// The thread's own.
pub(super) struct Trimmer {
    shared: Arc<Shared>,
    connection: Option<Connection>,
    watched: Vec<Watched>,
    /// When leases are renewed, or looked for.
    look: Instant,
    /// Nothing is tried before this.
    rest: Instant,
    search: Option<Search>,
    /// When the next search begins.
    next_search: Instant,
    /// By key.
    letters: BTreeMap<String, Instant>,
    quiet: Quiet,
}

/// A topic that is to be trimmed by somebody.
struct Watched {
    topic: Arc<Topic>,
    lease: String,
    held: bool,
    due: Instant,
    /// Who reads it without having written it down.
    strangers: BTreeSet<String>,
    /// Whether it was there when the search under way began; and whether one has ended since.
    searched: [bool; 2],
    /// The partitions in which nobody is waited for any more.
    released: BTreeSet<u32>,
    quiet: Quiet,
    quiet_failed: Quiet,
}

impl Trimmer {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let now = clock::now();
        Self {
            shared,
            connection: None,
            watched: Vec::new(),
            // not at once: a process that lives for a moment trims nothing
            look: now + jittered(LOOK / 8),
            rest: now,
            search: None,
            next_search: now,
            letters: BTreeMap::new(),
            quiet: Quiet::default(),
        }
    }

    /// Until it is told to stop.
    pub(super) fn run(&mut self) {
        let interrupt = Arc::clone(&self.shared.interrupt);
        loop {
            let wait = self.next().saturating_duration_since(clock::now());
            interrupt.sleep(wait, STOP | ADDED);
            if interrupt.bits() & STOP != 0 {
                self.hand_back();
                return;
            }
            interrupt.clear(ADDED);
            let unused = self.collect();
            if let Err(e) = self.turn(&unused) {
                self.connection = None;
                self.watched.iter_mut().for_each(|w| w.held = false);
                self.rest = clock::now() + REST;
                self.look = self.rest;
                self.failed(&e);
            }
        }
    }

    /// When there is something to do.
    fn next(&self) -> Instant {
        let held = self.watched.iter().filter(|w| w.held);
        let sweeps = held.map(|w| w.due);
        let step = self.search.as_ref().map(|s| s.next);
        let letters = self.letters.values().copied();
        let next = sweeps
            .chain(step)
            .chain(letters)
            .fold(self.look, Instant::min);
        next.max(self.rest)
    }

    /// The topics that somebody uses here. Returns the leases of those that nobody uses any more.
    fn collect(&mut self) -> Vec<String> {
        let now = clock::now();
        let mut topics = self.shared.topics.lock();
        topics.retain(|_, t| t.partitions.strong_count() > 0);
        let is_unused = |w: &mut Watched| {
            let topic = topics.get(&w.topic.name);
            topic.is_none_or(|t| !Arc::ptr_eq(t, &w.topic))
        };
        let unused = self.watched.extract_if(.., is_unused).filter(|w| w.held);
        let unused = unused.map(|w| w.lease).collect();
        for topic in topics.values() {
            if !self.watched.iter().any(|w| Arc::ptr_eq(topic, &w.topic)) {
                self.watched.push(Watched {
                    topic: Arc::clone(topic),
                    lease: self.shared.terms.keys.trim_lease(&topic.name),
                    held: false,
                    due: now + topic.interval,
                    strangers: BTreeSet::new(),
                    searched: [false; 2],
                    released: BTreeSet::new(),
                    quiet: Quiet::default(),
                    quiet_failed: Quiet::default(),
                });
            }
        }
        drop(topics);
        let mut letters = self.shared.letters.lock();
        letters.retain(|_, l| l.partitions.strong_count() > 0);
        self.letters.retain(|key, _| letters.contains_key(key));
        for (key, l) in letters.iter() {
            let first = || now + often(l.age);
            self.letters.entry(key.clone()).or_insert_with(first);
        }
        unused
    }

    /// Does what is due.
    fn turn(&mut self, unused: &[String]) -> Result<()> {
        let is_idle = self.watched.is_empty() && self.letters.is_empty();
        if is_idle && unused.is_empty() {
            self.connection = None;
            self.look = clock::now() + LOOK;
            return Ok(());
        }
        for lease in unused {
            self.give_back(lease)?;
        }
        if clock::now() >= self.look {
            self.hold()?;
        }
        for i in 0..self.watched.len() {
            if self.watched[i].held && clock::now() >= self.watched[i].due {
                self.sweep(i)?;
            }
        }
        self.trim_letters()?;
        self.find_strangers()
    }

    /// Renews leases, and takes those that nobody has.
    fn hold(&mut self) -> Result<()> {
        self.look = clock::now() + jittered(LOOK);
        let shared = Arc::clone(&self.shared);
        let ms = clock::ceil_ms(LEASE).to_string();
        for i in 0..self.watched.len() {
            let lease = self.watched[i].lease.clone();
            let args = [shared.terms.token.as_bytes(), ms.as_bytes()];
            let connection = connect(&mut self.connection, &shared)?;
            let held = by_hash_first(|form| {
                let cmd = HOLD.on_key(form, lease.as_bytes(), &args);
                connection.ask::<i64>(&cmd, shared.terms.timeout)
            });
            let w = &mut self.watched[i];
            match held {
                Ok(held) => {
                    if held == 1 && !mem::replace(&mut w.held, held == 1) {
                        log::info!("topic {}: it is trimmed by age here", w.topic.name);
                    }
                    w.held = held == 1;
                }
                Err(e) if e.keeps_connection() => {
                    connection.heed(&e);
                    w.held = false;
                    let e = e.on_key(lease.as_bytes());
                    self.failed(&e);
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Trims the partitions of a topic.
    fn sweep(&mut self, i: usize) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let (terms, topic) = (&shared.terms, Arc::clone(&self.watched[i].topic));
        let w = &mut self.watched[i];
        let now = clock::now();
        w.due += topic.interval;
        if w.due <= now {
            w.due = now + topic.interval;
        }
        let found = facts(connect(&mut self.connection, &shared)?, &shared, &topic);
        let (server_ms, partitions) = match found {
            Err(e) if e.keeps_connection() => {
                self.sweep_failed(i, None, &e);
                return Ok(());
            }
            found => found?,
        };
        let cutoff = topic.policy.cutoff(server_ms);
        let mut partition = 0;
        while partition < partitions {
            if clock::now() >= self.look {
                self.hold()?;
            }
            if !self.watched[i].held || shared.interrupt.bits() & STOP != 0 {
                return Ok(());
            }
            let stream = terms.keys.stream(&topic.name, partition, topic.co_located);
            let place = Place {
                keys: &terms.keys,
                topic: &topic.name,
                partition,
                stream: stream.as_bytes(),
            };
            let w = &self.watched[i];
            let strangers = Strangers {
                names: &w.strangers,
                complete: w.searched[1],
            };
            let counts = terms.counts.of(&topic.name, partition);
            let (renew_at, is_cut_short) = (self.look, Cell::new(false));
            let connection = connect(&mut self.connection, &shared)?;
            let cut = Cut {
                connection,
                stream: stream.as_bytes(),
                counts: &counts,
                timeout: terms.timeout,
                goes_on: &mut || {
                    is_cut_short.set(clock::now() >= renew_at);
                    !is_cut_short.get() && shared.interrupt.bits() & STOP == 0
                },
                trimmed: 0,
            };
            let done = sweep(cut, &place, (&topic.policy, cutoff), strangers);
            match done {
                Ok(done) => {
                    if self.watched[i].tell(&done) {
                        done.held_by.iter().for_each(|name| counts.released(name));
                    }
                }
                Err(e) if e.keeps_connection() => {
                    if let Some(connection) = &self.connection {
                        connection.heed(&e);
                    }
                    let e = e.on_key(stream.as_bytes());
                    self.sweep_failed(i, Some(partition), &e);
                }
                Err(e) => return Err(e),
            }
            // What was cut short goes on when the lease has been renewed.
            partition += u32::from(!is_cut_short.get());
        }
        Ok(())
    }

    /// Of one topic, or one partition; others are trimmed.
    fn sweep_failed(&mut self, i: usize, partition: Option<u32>, e: &Error) {
        let w = &mut self.watched[i];
        if let Some(more) = w.quiet_failed.permit() {
            let (topic, more) = (&w.topic.name, HeldBack(more));
            let of = partition.map_or(String::new(), |p| format!(" partition {p}:"));
            let grant = grant(e, self.shared.terms.keys.prefix(), topic);
            log::error!(
                "topic {topic}:{of} it is not trimmed by age: {e}{grant}; tried again{more}"
            );
        }
    }

    /// Deletes dead letters that are too old. Letters may be deleted by hand, so only whole nodes go at once, and
    /// the rest one by one.
    fn trim_letters(&mut self) -> Result<()> {
        let now = clock::now();
        let due = self.letters.iter().filter(|(_, due)| **due <= now);
        let due: Vec<String> = due.map(|(key, _)| key.clone()).collect();
        let shared = Arc::clone(&self.shared);
        for key in due {
            let found = shared.letters.lock().get(&key).cloned();
            let Some(letters) = found else {
                continue;
            };
            self.letters.insert(key.clone(), now + often(letters.age));
            let timeout = shared.terms.timeout;
            let mut goes_on = || shared.interrupt.bits() & STOP == 0;
            let connection = connect(&mut self.connection, &shared)?;
            let done = server_ms(connection, timeout).and_then(|ms| {
                let age = u64::try_from(letters.age.as_millis()).unwrap_or(u64::MAX);
                let from = StreamId::new(ms.saturating_sub(age), 0);
                let how = How {
                    exact: true,
                    timeout,
                };
                let stream = key.as_bytes();
                trim(connection, stream, Leave::From(from), how, &mut goes_on)
            });
            match done {
                Ok(0) => {}
                Ok(n) => log::info!("{key}: {n} dead letters were too old, and are deleted"),
                Err(e) if e.keeps_connection() => {
                    connection.heed(&e);
                    self.failed(&e.on_key(key.as_bytes()));
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Looks for positions of services that write no register, a step at a time: when a lease is taken, and
    /// then rarely.
    fn find_strangers(&mut self) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let now = clock::now();
        let due = now >= self.next_search || self.watched.iter().any(|w| w.held && !w.searched[0]);
        if self.search.is_none() && due && self.watched.iter().any(|w| w.held) {
            self.search = Some(Search::new(&shared.terms.keys, None));
            self.watched.iter_mut().for_each(|w| w.searched[0] = true);
        }
        let Some(mut search) = self.search.take() else {
            return Ok(());
        };
        if search.next > now {
            self.search = Some(search);
            return Ok(());
        }
        let (keys, timeout) = (&shared.terms.keys, shared.terms.timeout);
        match search.step(connect(&mut self.connection, &shared)?, keys, timeout) {
            Err(e) if e.keeps_connection() => {
                self.failed(&e);
                self.next_search = now + SEARCH;
                return Ok(());
            }
            Err(e) => {
                self.watched
                    .iter_mut()
                    .for_each(|w| w.searched[0] = w.searched[1]);
                return Err(e);
            }
            Ok(found) => {
                for (topic, consumer) in found {
                    if let Some(w) = self.watched.iter_mut().find(|w| w.topic.name == topic) {
                        w.strangers.insert(consumer);
                    }
                }
            }
        }
        if search.done {
            self.next_search = now + jittered(SEARCH);
            self.watched
                .iter_mut()
                .for_each(|w| w.searched[1] |= w.searched[0]);
        } else {
            self.search = Some(search);
        }
        Ok(())
    }

    /// Lets others go on at once.
    fn hand_back(&mut self) {
        let leases: Vec<_> = self.watched.iter().filter(|w| w.held).collect();
        let leases: Vec<_> = leases.into_iter().map(|w| w.lease.clone()).collect();
        for lease in leases {
            if self.connection.is_none() || self.give_back(&lease).is_err() {
                return; // they expire
            }
        }
    }

    /// Deletes a lease if it is held here.
    fn give_back(&mut self, lease: &str) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let (token, timeout) = (
            shared.terms.token.as_bytes(),
            shared.terms.timeout.min(GRACE),
        );
        let connection = connect(&mut self.connection, &shared)?;
        let given = by_hash_first(|form| {
            connection.call(&RELEASE.on_key(form, lease.as_bytes(), &[token]), timeout)
        });
        match given {
            // it expires
            Err(e) if e.keeps_connection() => log::debug!("a lease is not handed back: {e}"),
            given => drop(given?),
        }
        Ok(())
    }

    fn failed(&mut self, e: &Error) {
        // Of a server that is away others tell.
        let told_elsewhere = matches!(
            e.kind(),
            ErrorKind::Connect | ErrorKind::Io | ErrorKind::Timeout | ErrorKind::Stopped
        );
        if told_elsewhere {
            log::debug!("topics are not trimmed by age: {e}");
        } else if let Some(more) = self.quiet.permit() {
            let grant = grant(e, self.shared.terms.keys.prefix(), "<topic>");
            log::warn!(
                "trimming topics by age: {e}{grant}; tried again{}",
                HeldBack(more)
            );
        }
    }
}

/// The connection that there is, if it still stands, or a new one.
fn connect<'c>(kept: &'c mut Option<Connection>, shared: &Shared) -> Result<&'c mut Connection> {
    let old = kept.take();
    let old = old.and_then(|mut c| c.check_idle().is_ok().then_some(c));
    let connection = if let Some(connection) = old {
        connection
    } else {
        let terms = &shared.terms;
        let (target, name) = (&terms.target, &terms.client_name);
        Connection::dial(target, name, Some(&shared.interrupt), terms.timeout)?
    };
    Ok(kept.insert(connection))
}

impl Watched {
    /// Tells of a partition what somebody should know. Says whether nobody is waited for from now on.
    fn tell(&mut self, done: &PartitionSweep) -> bool {
        let PartitionSweep {
            partition: p,
            trimmed,
            unread,
            length,
            ..
        } = done;
        let (topic, names) = (&self.topic.name, done.held_by.join(", "));
        log::debug!("topic {topic} partition {p}: trimmed {trimmed}, {length} are left");
        if done.released {
            let finished = done.finished.unwrap_or_default();
            if self.released.insert(*p) {
                log::error!(
                    "topic {topic} partition {p}: {unread} messages were deleted that {names} had yet to read: its \
                     position is {finished}, and it held back so much that ClampReleaseThreshold was reached; {length} \
                     are left. Is it still in use? If not: admin().forget(..)"
                );
                return true;
            }
            if *unread > 0
                && let Some(more) = self.quiet.permit()
            {
                log::warn!(
                    "topic {topic} partition {p}: {unread} more messages were deleted that {names} had yet to \
                     read{}",
                    HeldBack(more)
                );
            }
            return false;
        }
        if self.released.remove(p) {
            log::info!("topic {topic} partition {p}: unread messages are kept again");
        }
        if !done.held_by.is_empty()
            && *length > 0
            && let Some(more) = self.quiet.permit()
        {
            log::warn!(
                "topic {topic} partition {p}: messages older than RetentionSeconds are kept for {names}, whose \
                 position is {}; {length} are there{}",
                done.finished.unwrap_or_default(),
                HeldBack(more)
            );
        }
        false
    }
}

/// The server's clock, and how many partitions a topic has.
fn facts(connection: &mut Connection, shared: &Shared, topic: &Topic) -> Result<(u64, u32)> {
    let (keys, timeout) = (&shared.terms.keys, shared.terms.timeout);
    let ms = server_ms(connection, timeout)?;
    let mut cmd = redis::cmd("HGET");
    cmd.arg(keys.topic_meta(&topic.name)).arg(field::PARTITIONS);
    let partitions: Option<u32> = connection.ask(&cmd, timeout)?;
    Ok((ms, partitions.unwrap_or(0).min(MOST_PARTITIONS)))
}

/// The milliseconds of the server's clock.
pub(crate) fn server_ms(connection: &mut Connection, timeout: Duration) -> Result<u64> {
    let (seconds, micros): (u64, u64) = connection.ask(&redis::cmd("TIME"), timeout)?;
    Ok(seconds * 1000 + micros / 1000)
}

/// How often dead letters of such an age are looked at.
fn often(age: Duration) -> Duration {
    let [most, least] = LETTERS;
    (age / 10).clamp(least, most)
}

/// The end of a line about a refusal: what to grant, where a right is missing.
fn grant(e: &Error, prefix: &str, topic: &str) -> String {
    if e.server_class() != Some(ServerClass::NoPermission) {
        return String::new();
    }
    format!("; trimming needs ACL SETUSER <user> {RIGHTS} ~{prefix}*{{{topic}}}*")
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::testing::PrivateServer;

    #[test]
    fn the_server_knows_the_script_by_its_hash_and_one_holds_a_lease() {
        let server = PrivateServer::start().unwrap();
        let known = server.command(&["SCRIPT", "LOAD", HOLD.text]).unwrap();
        assert_eq!(known.text(), HOLD.sha1);
        let hold = |who: &str| {
            let args = ["EVAL", HOLD.text, "1", "lease", who, "60000"];
            server.command(&args).unwrap().int()
        };
        let holds = ["a", "a", "b"].map(hold);
        assert_eq!(holds, [Some(1), Some(1), Some(0)]);
        let ttl = server.command(&["PTTL", "lease"]).unwrap().int().unwrap();
        assert!((1..=60_000).contains(&ttl), "{ttl}");
    }

    #[test]
    fn letters_are_looked_at_as_often_as_their_age_asks_for() {
        let seconds = Duration::from_secs;
        for (age, want) in [(1, 1), (10, 1), (50, 5), (600, 60), (86_400, 60)] {
            assert_eq!(often(seconds(age)), seconds(want), "{age}");
        }
    }
}
