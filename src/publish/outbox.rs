//! The outbox: a change of one's own state and the messages about it, both or neither.

use std::{error, fmt, sync::Arc};

use parking_lot::{Mutex, MutexGuard};

use crate::{
    Error, ErrorKind, Result, StreamId,
    net::{Connection, Deadline},
};

use super::{
    Command, Condition, Outgoing, PublishPlan, Reply,
    counts::{Count, PublishCounts},
    link::error_of,
    transaction::{Parts, Session},
};

/// Changes state in Redis and publishes messages about it in one transaction: both happen, or neither.
///
/// ```no_run
/// # fn main() -> Result<(), streamlane::Error> {
/// use streamlane::{Command, Commit, Condition, Outgoing, Streams};
///
/// let outbox = Streams::connect("redis://127.0.0.1:6379")?.outbox("orders")?;
/// let order = outbox.state_key("order-1")?;
/// let commit = outbox
///     .transaction()
///     .when(Condition::hash_equal(&order, "version", 7))
///     .command(Command::new("HSET").key(&order).arg("version").arg(8).arg("paid").arg("yes"))
///     .publish(Outgoing::new("OrderPaid", br#"{"id":1}"#).key("order-1"))
///     .commit()?;
/// match commit {
///     Commit::Committed(done) => println!("published as {}", done.ids[0]),
///     Commit::ConditionFailed => println!("somebody else was faster: read again, decide again"),
/// }
/// # Ok(()) }
/// ```
///
/// All keys of a transaction live in the slot of the topic: take them from
/// [`state_key`](Self::state_key). A topic that is set to `CoLocatePartitions: false` has a slot for
/// each partition, so there one transaction publishes to one partition, and its keys carry the whole
/// stream key as their tag.
///
/// Cheap to clone; all clones share one connection, and their transactions take turns. Each call of
/// [`Streams::outbox`](crate::Streams::outbox) gives an outbox on a connection of its own, for threads
/// that should not wait for one another. No other thread's commands ever get between those of a transaction.
#[derive(Clone)]
pub struct Outbox {
    plan: Arc<PublishPlan>,
    session: Arc<Mutex<Session>>,
}

impl Outbox {
    pub(crate) fn new(plan: PublishPlan) -> Self {
        let plan = Arc::new(plan);
        Self {
            session: Arc::new(Mutex::new(Session::new(Arc::clone(&plan)))),
            plan,
        }
    }

    /// The topic it publishes to.
    pub fn topic(&self) -> &str {
        &self.plan.topic
    }

    /// The key of a piece of state that lives beside the topic, such as `re:{orders}:state:order-1`:
    /// the same for all services that share the topic, and in its slot.
    ///
    /// # Errors
    ///
    /// A blank name.
    pub fn state_key(&self, name: impl AsRef<str>) -> Result<String> {
        let name = name.as_ref();
        if name.trim().is_empty() {
            let what = format!("the name {name:?} of a piece of state is blank");
            return Err(Error::new(ErrorKind::Argument, "outbox", what).on_key(self.topic()));
        }
        Ok(self.plan.keys.state(&self.plan.topic, name))
    }

    /// Begins a transaction. Nothing is sent before [`commit`](Transaction::commit).
    pub fn transaction<'a>(&self) -> Transaction<'a> {
        Transaction {
            outbox: self.clone(),
            parts: Parts::default(),
        }
    }

    pub(super) fn plan(&self) -> &PublishPlan {
        &self.plan
    }

    /// Runs commands that change nothing, over the same connection.
    pub(super) fn read<T>(
        &self,
        f: impl FnOnce(&mut Connection, Deadline) -> Result<T>,
    ) -> Result<T> {
        let by = Deadline::after(self.plan.timeout);
        let answer = self.lock(by).and_then(|mut s| s.read(by, |c| f(c, by)));
        answer.map_err(|e| e.at(self.plan.target.endpoint()))
    }

    fn commit(&self, parts: &Parts<'_>) -> Result<Commit> {
        let by = Deadline::after(self.plan.timeout);
        parts.check(&self.plan)?;
        self.lock(by)?.commit(parts, by)
    }

    fn lock(&self, by: Deadline) -> Result<MutexGuard<'_, Session>> {
        if let Some(session) = self.session.try_lock() {
            return Ok(session);
        }
        self.session.try_lock_for(by.left()).ok_or_else(|| {
            let what = format!(
                "waited {} ms for other callers of this outbox",
                by.allowed().as_millis()
            );
            Error::new(ErrorKind::Timeout, "outbox", what)
        })
    }
}

impl fmt::Debug for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox")
            .field("topic", &self.plan.topic)
            .field("endpoint", &self.plan.target.endpoint())
            .finish_non_exhaustive()
    }
}

/// A transaction under construction; see [`Outbox`].
#[derive(Debug)]
#[must_use = "nothing is sent before `commit` is called"]
pub struct Transaction<'a> {
    /// Not borrowed: its messages may have been made before it was.
    outbox: Outbox,
    parts: Parts<'a>,
}

impl<'a> Transaction<'a> {
    /// Carries it out only when this holds too.
    pub fn when(mut self, condition: Condition) -> Self {
        self.parts.conditions.push(condition);
        self
    }

    /// Adds a command of yours. Commands run in the order they were added, before the messages are
    /// published.
    pub fn command(mut self, command: Command) -> Self {
        self.parts.commands.push(command);
        self
    }

    /// Adds a message to publish. Messages are published in the order they were added.
    pub fn publish(mut self, message: Outgoing<'a>) -> Self {
        self.parts.messages.push(message);
        self
    }

    /// Carries it out: everything, or nothing when a condition does not hold.
    ///
    /// Blocks for two round trips, for the transactions of other threads over the same outbox, and for
    /// connecting and creating the topic when it is the first; all within `PublishTimeoutMs` (5 s by
    /// default). While the server is down it waits for it within the same deadline. Nothing is sent twice.
    ///
    /// # Errors
    ///
    /// - Before anything is sent: no message, a command that would break the transaction, a key in another
    ///   slot ([`ErrorKind::Argument`]), a message that is too large.
    /// - [`Outcome::NotApplied`](crate::Outcome::NotApplied): the server refused the transaction, with the
    ///   code and the key of the first command it refused; or the connection was lost before the server had all of it.
    /// - [`Outcome::Unknown`](crate::Outcome::Unknown): the answer was lost. Look at the state: it was
    ///   changed if, and only if, the messages were published.
    /// - [`Outcome::Applied`](crate::Outcome::Applied), with [`Error::partly_failed`]: a command failed
    ///   as it ran, such as one for a key of another type, which undoes nothing of the rest. The messages
    ///   were published.
    pub fn commit(self) -> Result<Commit> {
        let Self { outbox, parts } = self;
        let plan = &outbox.plan;
        let commit = plan.under_span(&parts.messages, || outbox.commit(&parts), error_of);
        let commit = commit.map_err(|e| {
            let e = match e.key() {
                Some(_) => e,
                None => e.on_key(&plan.topic),
            };
            e.during("outbox").at(plan.target.endpoint())
        });
        if let Err(e) = &commit {
            count_failed(&plan.counts, e, parts.messages.len());
        }
        commit
    }
}

/// Counts the messages of a transaction that failed. Those that were published all the same are counted.
fn count_failed(counts: &PublishCounts, e: &Error, messages: usize) {
    match e.partly_failed() {
        None => (0..messages).for_each(|_| counts.failed(e)),
        Some(partly) => {
            let not = partly.published.iter().filter(|id| id.is_none()).count();
            counts.add(Count::Refused, not as u64);
        }
    }
}

/// What became of a transaction.
#[derive(Clone, PartialEq, Debug)]
#[must_use = "the transaction may not have been carried out"]
pub enum Commit {
    /// It was carried out.
    Committed(Committed),
    /// A condition did not hold, or what it is about changed meanwhile. Nothing was changed and nothing published.
    ConditionFailed,
}

impl Commit {
    /// What the server answered, if it was carried out.
    #[must_use = "the transaction may not have been carried out"]
    pub fn committed(self) -> Option<Committed> {
        match self {
            Self::Committed(done) => Some(done),
            Self::ConditionFailed => None,
        }
    }
}

/// What the server answered to a transaction that was carried out.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Committed {
    /// The id of each message, in the order they were added.
    pub ids: Vec<StreamId>,
    /// The reply to each command, in the order they were added.
    pub replies: Vec<Reply>,
}

/// What was done of a transaction in which a command failed while it ran, and which the server does not
/// undo. Found by [`Error::partly_failed`]; the error itself says why the command failed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PartlyFailed {
    /// Which command failed, the first if several did: counted from 0 in the order they were added.
    /// Those that publish come after all of yours.
    pub command: usize,
    /// The ids of the messages that were published all the same, in the order they were added; `None`
    /// for one that was not.
    pub published: Vec<Option<StreamId>>,
}

impl fmt::Display for PartlyFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the rest of the transaction was carried out; published: ")?;
        for (i, id) in self.published.iter().enumerate() {
            f.write_str(if i == 0 { "" } else { ", " })?;
            match id {
                Some(id) => write!(f, "{id}")?,
                None => f.write_str("nothing")?,
            }
        }
        Ok(())
    }
}

impl error::Error for PartlyFailed {}

impl Error {
    /// What was done all the same, when a command failed inside a transaction of the
    /// [outbox](crate::Outbox) that was carried out. [`outcome`](Self::outcome) is then
    /// [`Applied`](crate::Outcome::Applied): repeating the transaction would publish again.
    pub fn partly_failed(&self) -> Option<&PartlyFailed> {
        error::Error::source(self)?.downcast_ref()
    }
}
