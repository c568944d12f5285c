//! Dead letters: to look at them, to delete them, and to have them handled once more.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use crate::{
    Admin, DeadLetterReason, Error, Result, StreamId,
    clock::{self, RoundTrip},
    error::ErrorKind,
    net::{Connection, Deadline, Interrupt},
    wire::{ReadLetter, check_consumer, check_topic},
};

use super::{
    Shared, TIMEOUT,
    replay::{Replay, ReplayTo, Replayed},
};

/// The bytes of letters that one page aims at.
const PAGE_BYTES: usize = 1 << 20;
const FIRST_PAGE: usize = 16;
const LARGEST_PAGE: usize = 500;

impl Admin {
    /// The dead letters of a consumer: messages that failed for good under
    /// [`OnError::Park`](crate::OnError::Park), or for which the handler asked for it
    /// ([`Action::DeadLetter`](crate::Action::DeadLetter)). All of them, until it is said which.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use streamlane::{DeadLetterReason, ReplayTo, Streams};
    ///
    /// # fn main() -> Result<(), streamlane::Error> {
    /// # let streams = Streams::connect("redis://127.0.0.1:6379")?;
    /// let letters = streams.admin().dead_letters("orders", "billing");
    /// let page = letters.page(None, 20)?; // the oldest first; page.next is where the next page begins
    /// for letter in &page.letters {
    ///     println!("{letter}");
    /// }
    /// // The ledger knows these accounts by now: every consumer of the topic sees them once more.
    /// let mended = letters.reason(DeadLetterReason::Retries).message_type("OrderPlaced");
    /// let replayed = mended.replay_all(ReplayTo::EveryConsumerOfTheTopic, 50)?; // 50 a second
    /// println!("{replayed:?}");
    /// # Ok(()) }
    /// ```
    pub fn dead_letters(
        &self,
        topic: impl Into<String>,
        consumer: impl Into<String>,
    ) -> DeadLetters {
        DeadLetters {
            shared: Arc::clone(&self.shared),
            topic: topic.into(),
            consumer: consumer.into(),
            filter: Filter::default(),
            even_without_body: false,
            timeout: TIMEOUT,
        }
    }
}

/// The dead letters of one consumer, or those of them that are wanted; see [`Admin::dead_letters`].
///
/// Every call connects for itself, and each of its round trips takes up to the timeout (30 s). No call ever
/// looks at other keys of the server than those of this consumer.
#[derive(Clone)]
#[must_use = "nothing is done before one of its calls"]
pub struct DeadLetters {
    pub(super) shared: Arc<Shared>,
    pub(super) topic: String,
    pub(super) consumer: String,
    filter: Filter,
    pub(super) even_without_body: bool,
    pub(super) timeout: Duration,
}

/// Which letters are wanted.
#[derive(Clone, Default)]
struct Filter {
    message_type: Option<Vec<u8>>,
    reason: Option<DeadLetterReason>,
    partition: Option<u32>,
    since: Option<SystemTime>,
    until: Option<SystemTime>,
    unreplayed: bool,
}

impl Filter {
    /// The first and the last id that a letter of the wanted time can have.
    fn range(&self) -> (StreamId, StreamId) {
        let from = self.since.map_or(StreamId::MIN, StreamId::starting_at);
        let last = |t| StreamId::new(clock::unix_ms(t), u64::MAX);
        (from, self.until.map_or(StreamId::MAX, last))
    }

    fn is_everything(&self) -> bool {
        self.message_type.is_none()
            && self.reason.is_none()
            && self.partition.is_none()
            && self.since.is_none()
            && self.until.is_none()
            && !self.unreplayed
    }

    fn wants(&self, letter: &DeadLetter) -> bool {
        let of_type = self.message_type.as_deref();
        of_type.is_none_or(|t| letter.message_type() == Some(t))
            && self.reason.is_none_or(|r| letter.reason == Some(r))
            && self.partition.is_none_or(|p| letter.partition == p)
            && !(self.unreplayed && letter.replayed.is_some())
    }
}

/// One message that failed for good: what became of it, and its fields byte for byte.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The letter's own id, which tells when it was written.
    pub id: StreamId,
    /// The topic the message comes from.
    pub topic: String,
    /// The consumer that could not handle it.
    pub consumer: String,
    /// The partition it comes from.
    pub partition: u32,
    /// The id under which it was published first: another than `last_id` when it was replayed since.
    pub first_id: StreamId,
    /// The id under which it failed.
    pub last_id: StreamId,
    /// When it failed first, on the server's clock.
    pub first_failure: SystemTime,
    /// When it failed last.
    pub last_failure: SystemTime,
    /// How often it was handed over again because the policy said so.
    pub attempts: u32,
    /// How often it was handed over in all; where an ordered consumer retried, by the process that gave up.
    pub deliveries: u32,
    /// The error of the last time, its first KiB.
    pub error: String,
    /// Why it is a dead letter; `None` for a reason that this version does not know.
    pub reason: Option<DeadLetterReason>,
    /// The message's fields as they were, unknown and repeated ones included. A body that was kept apart
    /// (`ClaimCheck`) is among them, in its place, without a reference to where it was.
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
    /// How many of its fields were too many to keep; only messages of more than 3000 have such.
    pub omitted: usize,
    /// Whether and as what it was replayed.
    pub replayed: Option<Replayed>,
    /// Whether its body was kept apart.
    pub(super) was_apart: bool,
}

impl DeadLetter {
    /// The type of the message; `None` when it had none.
    pub fn message_type(&self) -> Option<&[u8]> {
        self.field(b"t")
    }

    /// The body of the message; `None` when it had none, or when it was kept apart and is lost
    /// ([`DeadLetterReason::PayloadMissing`]).
    pub fn body(&self) -> Option<&[u8]> {
        self.field(b"b").filter(|_| self.lost_body().is_none())
    }

    /// The key of the message; `None` when it had none, which an empty one is not.
    pub fn key(&self) -> Option<&[u8]> {
        self.field(b"k")
    }

    /// The value of the last field of this name, as readers take it.
    pub(super) fn field(&self, name: &[u8]) -> Option<&[u8]> {
        let found = self.fields.iter().rfind(|(n, _)| n == name);
        found.map(|(_, value)| &value[..])
    }

    fn of(id: StreamId, letter: ReadLetter, mark: Option<&[u8]>) -> Self {
        let moment = |ms| StreamId::new(ms, 0).timestamp();
        Self {
            id,
            topic: letter.topic,
            consumer: letter.consumer,
            partition: letter.partition,
            first_id: letter.first,
            last_id: letter.last,
            first_failure: moment(letter.since_ms),
            last_failure: moment(letter.until_ms),
            attempts: letter.attempts,
            deliveries: letter.deliveries,
            error: letter.error,
            reason: letter.reason,
            fields: letter.fields,
            omitted: letter.omitted,
            was_apart: letter.was_apart,
            replayed: mark.and_then(Replayed::parse),
        }
    }
}

impl fmt::Display for DeadLetter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = self.reason.map_or("?", DeadLetterReason::as_str);
        write!(
            f,
            "{}  {}[{}] {}  type {}  {reason}, deliveries {}, {}: {}",
            self.id,
            self.topic,
            self.partition,
            self.last_id,
            self.message_type().unwrap_or(b"(none)").escape_ascii(),
            self.deliveries,
            RoundTrip(self.last_failure),
            self.error,
        )?;
        match &self.replayed {
            Some(replayed) => write!(f, "  replayed as {}", replayed.id),
            None => Ok(()),
        }
    }
}

/// Some dead letters, the oldest first.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeadLetterPage {
    /// The letters.
    pub letters: Vec<DeadLetter>,
    /// Where the next page begins; `None` when there is none.
    pub next: Option<StreamId>,
}

/// What became of the letters that were to be replayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ReplayedAll {
    /// So many were replayed now.
    pub replayed: u64,
    /// So many had been replayed before, or were by somebody else meanwhile.
    pub before: u64,
    /// So many are no proper messages, and would be none the next time.
    pub malformed: u64,
    /// So many have lost their bodies; see [`DeadLetters::even_without_body`].
    pub payload_missing: u64,
}

impl DeadLetters {
    /// Only those of messages of this type.
    pub fn message_type(mut self, message_type: impl Into<Vec<u8>>) -> Self {
        self.filter.message_type = Some(message_type.into());
        self
    }

    /// Only those of this reason.
    pub fn reason(mut self, reason: DeadLetterReason) -> Self {
        self.filter.reason = Some(reason);
        self
    }

    /// Only those of this partition.
    pub fn partition(mut self, partition: u32) -> Self {
        self.filter.partition = Some(partition);
        self
    }

    /// Only those written at this moment of the server's clock or later.
    pub fn since(mut self, moment: SystemTime) -> Self {
        self.filter.since = Some(moment);
        self
    }

    /// Only those written at this moment of the server's clock or earlier.
    pub fn until(mut self, moment: SystemTime) -> Self {
        self.filter.until = Some(moment);
        self
    }

    /// Only those that were not replayed.
    pub fn unreplayed(mut self) -> Self {
        self.filter.unreplayed = true;
        self
    }

    /// How long a round trip may take (default 30 s).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Up to `most` of them from `from` on, which is the `next` of the page before, or `None` for the oldest.
    /// Blocks for a few round trips, more when few of many letters are wanted.
    ///
    /// # Errors
    ///
    /// A server that cannot be reached or refuses, or an entry that is no dead letter.
    pub fn page(&self, from: Option<StreamId>, most: usize) -> Result<DeadLetterPage> {
        let mut letters = Vec::new();
        let mut walk = self.walk("list dead letters", from)?;
        while letters.len() < most {
            match walk.next()? {
                Some(letter) => letters.push(letter),
                None => {
                    return Ok(DeadLetterPage {
                        letters,
                        next: None,
                    });
                }
            }
        }
        let next = walk.next()?.map(|letter| letter.id);
        Ok(DeadLetterPage { letters, next })
    }

    /// The letter of this id, whether it is of those that are wanted or not. Blocks for two round trips.
    ///
    /// # Errors
    ///
    /// As [`page`](Self::page).
    pub fn show(&self, id: StreamId) -> Result<Option<DeadLetter>> {
        let all = Self {
            filter: Filter::default(),
            ..self.clone()
        };
        let mut walk = all.walk("show a dead letter", Some(id))?;
        (walk.end, walk.page) = (id, 1);
        walk.next()
    }

    /// How many there are. Blocks for a round trip, or where only some are wanted for as long as it takes to
    /// read all.
    ///
    /// # Errors
    ///
    /// As [`page`](Self::page).
    pub fn count(&self) -> Result<u64> {
        let mut walk = self.walk("count dead letters", None)?;
        if self.filter.is_everything() {
            let mut cmd = redis::cmd("XLEN");
            cmd.arg(&*walk.key);
            return walk.connection.ask(&cmd, self.timeout);
        }
        let mut n = 0;
        while walk.next()?.is_some() {
            n += 1;
        }
        Ok(n)
    }

    /// Deletes letters by their ids, whether they are of those that are wanted or not. Returns how many there
    /// were. What is deleted is gone for good. Blocks for a round trip for every 500.
    ///
    /// # Errors
    ///
    /// A server that cannot be reached or refuses. It may be done again.
    pub fn delete(&self, ids: &[StreamId]) -> Result<u64> {
        let mut walk = self.walk("delete dead letters", None)?;
        let mut n = 0;
        for ids in ids.chunks(LARGEST_PAGE) {
            n += walk.delete(ids)?;
        }
        Ok(n)
    }

    /// Deletes all that are wanted and there now, page by page. Returns how many. What is deleted is gone for
    /// good. Blocks for two round trips a page.
    ///
    /// # Errors
    ///
    /// As [`page`](Self::page); some may be deleted. It may be done again.
    pub fn delete_all(&self) -> Result<u64> {
        let mut walk = self.walk_to_the_end_of_now("delete dead letters")?;
        let (mut n, mut ids) = (0, Vec::with_capacity(LARGEST_PAGE));
        loop {
            let letter = walk.next()?;
            let over = letter.is_none();
            ids.extend(letter.map(|letter| letter.id));
            if ids.len() == LARGEST_PAGE || over && !ids.is_empty() {
                n += walk.delete(&ids)?;
                ids.clear();
            }
            if over {
                return Ok(n);
            }
        }
    }

    /// Replays one: publishes its message again, with the fields that it had, as a new message on its
    /// partition, and marks the letter as replayed; both or neither. `to` says in so many words who gets it.
    /// The id that it had first goes along in the header `streamlane-first-id`. It comes behind messages
    /// of its key that were published since. A body that was kept apart is so again, and lives for the
    /// `PayloadTtlSeconds` of the topic from now on. Blocks for a few round trips.
    ///
    /// A letter is never replayed twice, whatever answers are lost. What was replayed stays where it is until
    /// it is deleted.
    ///
    /// # Errors
    ///
    /// A server that cannot be reached or refuses; a topic whose partitions are spread over the slots of a
    /// cluster, where it cannot be both or neither. It may be done again.
    pub fn replay(&self, id: StreamId, to: ReplayTo) -> Result<Replay> {
        let Some(letter) = self.show(id)? else {
            return Ok(Replay::Gone);
        };
        self.refuse_spread()?;
        let mut walk = self.walk("replay a dead letter", Some(id))?;
        self.replay_counted(&mut walk.connection, &letter, to)
    }

    /// Replays all that are wanted and there now, as [`replay`](Self::replay) does, and no more than so many
    /// a second. Blocks for as long as that takes.
    ///
    /// # Errors
    ///
    /// As [`replay`](Self::replay); some may be replayed, and are not the next time. An argument error when
    /// `per_second` is 0.
    pub fn replay_all(&self, to: ReplayTo, per_second: u32) -> Result<ReplayedAll> {
        if per_second == 0 {
            let what = "0 a second would never end: give a number of at least 1";
            return Err(Error::new(ErrorKind::Argument, "replay dead letters", what));
        }
        self.refuse_spread()?;
        let mut walk = self.walk_to_the_end_of_now("replay dead letters")?;
        let apart = Duration::from_secs(1) / per_second;
        let (pause, mut due) = (Interrupt::default(), clock::now());
        let mut done = ReplayedAll::default();
        while let Some(letter) = walk.next()? {
            if letter.replayed.is_some() {
                done.before += 1;
                continue;
            }
            pause.sleep(due.saturating_duration_since(clock::now()), 0);
            match self.replay_counted(&mut walk.connection, &letter, to)? {
                Replay::Replayed(_) => {
                    done.replayed += 1;
                    due = clock::now().max(due) + apart;
                }
                Replay::Before(_) | Replay::Gone => done.before += 1,
                Replay::Malformed => done.malformed += 1,
                Replay::PayloadMissing => done.payload_missing += 1,
            }
        }
        Ok(done)
    }

    /// Connects, to walk through those that are wanted.
    fn walk(&self, operation: &'static str, from: Option<StreamId>) -> Result<Walk<'_>> {
        check_topic(&self.topic)?;
        check_consumer(&self.consumer)?;
        let keys = &self.shared.keys;
        let (first, end) = self.filter.range();
        let connection = self.shared.connect(Deadline::after(self.timeout));
        Ok(Walk {
            connection: connection.map_err(|e| e.during(operation))?,
            key: keys.dead_letters(&self.topic, &self.consumer),
            marks: keys.dead_letters_meta(&self.topic, &self.consumer),
            letters: self,
            operation,
            from: Some(from.map_or(first, |from| from.max(first))),
            end,
            page: FIRST_PAGE,
            read: Vec::new().into_iter(),
        })
    }

    /// As [`walk`](Self::walk), and those that come meanwhile are left alone.
    fn walk_to_the_end_of_now(&self, operation: &'static str) -> Result<Walk<'_>> {
        let mut walk = self.walk(operation, None)?;
        let mut cmd = redis::cmd("XREVRANGE");
        cmd.arg(&*walk.key).arg("+").arg("-").arg("COUNT").arg(1);
        let last: Vec<Entry> = walk.ask(&cmd)?;
        match last.first().map(|(id, _)| StreamId::parse(id)) {
            Some(Some(last)) => walk.end = walk.end.min(last),
            _ => walk.from = None,
        }
        Ok(walk)
    }
}

impl fmt::Debug for DeadLetters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetters")
            .field("topic", &self.topic)
            .field("consumer", &self.consumer)
            .finish_non_exhaustive()
    }
}

/// An entry as the server tells it.
type Entry = (Vec<u8>, Vec<(Vec<u8>, Vec<u8>)>);

/// A way through the letters that are wanted, the oldest first, page by page.
struct Walk<'a> {
    connection: Connection,
    key: String,
    marks: String,
    letters: &'a DeadLetters,
    operation: &'static str,
    /// Where the next page begins; `None` when there is none.
    from: Option<StreamId>,
    end: StreamId,
    /// How many the next page asks for.
    page: usize,
    read: std::vec::IntoIter<DeadLetter>,
}

impl Walk<'_> {
    fn next(&mut self) -> Result<Option<DeadLetter>> {
        loop {
            if let Some(letter) = self.read.next() {
                if self.letters.filter.wants(&letter) {
                    return Ok(Some(letter));
                }
                continue;
            }
            let Some(from) = self.from.filter(|from| *from <= self.end) else {
                return Ok(None);
            };
            self.read(from)?;
        }
    }

    /// Reads a page.
    fn read(&mut self, from: StreamId) -> Result<()> {
        let mut cmd = redis::cmd("XRANGE");
        cmd.arg(&*self.key).arg(from.to_string());
        cmd.arg(self.end.to_string()).arg("COUNT").arg(self.page);
        let entries: Vec<Entry> = self.ask(&cmd)?;
        self.from = None;
        if entries.is_empty() {
            return Ok(());
        }
        let mut marks = redis::cmd("HMGET");
        marks.arg(&*self.marks);
        let mut ids = Vec::with_capacity(entries.len());
        for (id, _) in &entries {
            marks.arg(id);
            ids.push(StreamId::parse(id).ok_or_else(|| self.odd("an entry whose id is none"))?);
        }
        let timeout = self.letters.timeout;
        let marks = self.connection.ask_fields(&marks, ids.len(), timeout);
        let marks = marks.map_err(|e| e.during(self.operation))?;
        if entries.len() == self.page {
            self.from = ids.last().map(|last| last.next());
        }
        let bytes =
            |(_, fields): &Entry| -> usize { fields.iter().map(|(n, v)| n.len() + v.len()).sum() };
        let bytes: usize = entries.iter().map(bytes).sum();
        self.page = (PAGE_BYTES / (bytes / entries.len()).max(1)).clamp(1, LARGEST_PAGE);
        let mut letters = Vec::with_capacity(entries.len());
        for ((id, (_, fields)), mark) in ids.into_iter().zip(entries).zip(marks) {
            let Some(letter) = ReadLetter::parse(fields) else {
                return Err(self.odd("an entry that is no dead letter"));
            };
            letters.push(DeadLetter::of(id, letter, mark.as_deref()));
        }
        self.read = letters.into_iter();
        Ok(())
    }

    /// Deletes letters, and then what is noted of them.
    fn delete(&mut self, ids: &[StreamId]) -> Result<u64> {
        let ids: Vec<_> = ids.iter().map(StreamId::to_string).collect();
        if ids.is_empty() {
            return Ok(0);
        }
        let mut letters = redis::cmd("XDEL");
        letters.arg(&*self.key).arg(&ids);
        let n: u64 = self.ask(&letters)?;
        if n > 0 {
            self.letters.count_done(|counts| counts.deleted += n);
        }
        let mut marks = redis::cmd("HDEL");
        marks.arg(&*self.marks).arg(&ids);
        let _: u64 = self.ask(&marks)?;
        Ok(n)
    }

    fn ask<T: redis::FromRedisValue>(&mut self, cmd: &redis::Cmd) -> Result<T> {
        let answer = self.connection.ask(cmd, self.letters.timeout);
        answer.map_err(|e| e.during(self.operation).on_key(&*self.key))
    }

    #[cold]
    fn odd(&self, what: &str) -> Error {
        let what = format!("the reply has {what}");
        Error::new(ErrorKind::Protocol, self.operation, what).on_key(&*self.key)
    }
}
