//! A transaction on the wire: watched and looked at in one round trip, carried out in another.

use std::{error, fmt, sync::Arc};

use redis::Value;

use crate::{
    Result, StreamId,
    error::{Error, ErrorKind, Outcome},
    net::{Connection, Deadline, resp},
    wire::hash_tag,
};

use super::{
    Command, Commit, Committed, Condition, Encoder, Outgoing, Packing, PublishPlan, Reply,
    command::error_line,
    link::{KEPT_BYTES, Link, is_over},
};

/// What a transaction is made of.
#[derive(Debug, Default)]
pub(super) struct Parts<'a> {
    pub(super) conditions: Vec<Condition>,
    pub(super) commands: Vec<Command>,
    pub(super) messages: Vec<Outgoing<'a>>,
}

impl Parts<'_> {
    /// Refuses what can be refused before a server is asked.
    pub(super) fn check(&self, plan: &PublishPlan) -> Result<()> {
        if self.messages.is_empty() {
            let why = "a transaction of the outbox publishes at least one message: use a client of \
                       your own for commands alone";
            return Err(refused(why));
        }
        self.conditions.iter().try_for_each(Condition::check_read)?;
        self.commands.iter().try_for_each(Command::check)?;
        if plan.settings.co_locate_partitions {
            let any = plan.keys.stream(&plan.topic, 0, true);
            self.check_slot(any.as_bytes())?;
        }
        Ok(())
    }

    /// Refuses keys that a cluster might keep elsewhere than the stream. By their text, so that what works
    /// on one server works in a cluster.
    fn check_slot(&self, stream: &[u8]) -> Result<()> {
        let reads = self.conditions.iter().map(Condition::read);
        let mut keys = self.commands.iter().chain(reads).flat_map(Command::keys);
        match keys.find(|key| hash_tag(key) != hash_tag(stream)) {
            None => Ok(()),
            Some(key) => {
                let why = format!(
                    "key {} has the hash tag {}, and the stream {} has {}: a transaction cannot span \
                     slots, so name the key with Outbox::state_key, or give it the same tag in braces",
                    key.escape_ascii(),
                    hash_tag(key).escape_ascii(),
                    stream.escape_ascii(),
                    hash_tag(stream).escape_ascii(),
                );
                Err(refused(why).on_key(key))
            }
        }
    }

    /// Says which command an error is about: one of the user's, or one that publishes.
    fn about_command(&self, e: Error, i: usize, streams: &Streams<'_>) -> Error {
        let (name, key) = match self.commands.get(i) {
            Some(c) => (c.name(), c.keys().next().map(<[u8]>::to_vec)),
            None => {
                let stream = streams.of_message(i - self.commands.len());
                ("XADD".to_owned(), Some(stream.to_vec()))
            }
        };
        let e = in_step(&format!("command {i} of the transaction, {name}"), e);
        match key {
            Some(key) => e.on_key(key),
            None => e,
        }
    }
}

/// Says in which step of a transaction it went wrong.
#[cold]
fn in_step(step: &str, e: Error) -> Error {
    let what = format!("{step}: {}", e.message());
    e.saying(what)
}

#[cold]
fn refused(why: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Argument, "outbox", why)
}

/// Where the messages of a transaction go.
struct Streams<'a> {
    encoder: &'a Encoder,
    /// The partition of each message.
    routes: Vec<u32>,
}

impl Streams<'_> {
    fn of_message(&self, i: usize) -> &[u8] {
        self.encoder.stream(self.routes[i])
    }
}

/// The connection that transactions go over, one at a time.
#[derive(Debug)]
pub(super) struct Session {
    plan: Arc<PublishPlan>,
    link: Link,
    /// The first write.
    first: Vec<u8>,
    /// The second.
    second: Vec<u8>,
    packing: Packing,
}

impl Session {
    pub(super) fn new(plan: Arc<PublishPlan>) -> Self {
        Self {
            link: Link::new(Arc::clone(&plan)),
            plan,
            first: Vec::new(),
            second: Vec::new(),
            packing: Packing::default(),
        }
    }

    /// Runs commands that change nothing.
    pub(super) fn read<T>(
        &mut self,
        by: Deadline,
        f: impl FnOnce(&mut Connection) -> Result<T>,
    ) -> Result<T> {
        let mut c = self.link.take_connection(by)?;
        let answer = f(&mut c).map_err(|e| e.with_outcome(Outcome::NotApplied));
        if !answer.as_ref().is_err_and(is_over) {
            self.link.return_connection(c);
        }
        answer
    }

    /// Carries a transaction out: all of it, or nothing when a condition does not hold.
    pub(super) fn commit(&mut self, parts: &Parts<'_>, by: Deadline) -> Result<Commit> {
        let commit = self.try_commit(parts, by);
        if self.second.capacity() > KEPT_BYTES {
            self.second = Vec::new();
        }
        commit
    }

    fn try_commit(&mut self, parts: &Parts<'_>, by: Deadline) -> Result<Commit> {
        let encoder = self.link.make_ready(by)?;
        let streams = self.route(parts, &encoder)?;
        self.encode(parts, &streams)?;
        // The connection is returned only with nothing outstanding and nothing watched. However else
        // this ends, a panic in a user's test included, it is closed, and the server forgets both.
        let mut c = self.link.take_connection(by)?;
        let begun = match self.begin(parts, &mut c, by) {
            // Nothing was changed: all that is lost is a connection that was cut since the last call.
            Err(e) if e.kind() == ErrorKind::Io => {
                c = self.link.take_connection(by)?;
                self.begin(parts, &mut c, by)?
            }
            begun => begun?,
        };
        if !matches!(begun.holds, Ok(true)) {
            if !begun.holds.as_ref().is_err_and(is_over) {
                self.abandon(c, begun.in_multi, by);
            }
            return begun.holds.map(|_| Commit::ConditionFailed);
        }
        if by.left().is_zero() {
            let why = format!(
                "the {} ms were over before the commands went out",
                by.allowed().as_millis()
            );
            return Err(Error::new(ErrorKind::Timeout, "outbox", why));
        }
        // The server runs nothing before it has the EXEC, which goes out last.
        let sent = c
            .check_idle()
            .and_then(|()| c.send(&self.second, by.wait()));
        sent.map_err(|e| e.with_outcome(Outcome::NotApplied))?;
        let queued = parts.commands.len() + parts.messages.len();
        let executed = judge(c.answers(queued + 1, by.wait())?);
        if !matches!(&executed, Executed::Failed(_, e) if is_over(e)) {
            self.link.return_connection(c);
        }
        match executed {
            Executed::Done(answers) => self.sort(parts, &streams, answers),
            Executed::Raced => Ok(Commit::ConditionFailed),
            Executed::Failed(Some(i), e) => Err(parts.about_command(e, i, &streams)),
            Executed::Failed(None, e) => Err(e),
        }
    }

    /// Chooses the partition of each message.
    fn route<'e>(&self, parts: &Parts<'_>, encoder: &'e Encoder) -> Result<Streams<'e>> {
        let spread = !self.plan.settings.co_locate_partitions;
        let mut routes: Vec<u32> = Vec::with_capacity(parts.messages.len());
        for m in &parts.messages {
            let keyless = || match routes.first() {
                // they could not be stored together otherwise
                Some(p) if spread => *p,
                _ => encoder.turn(),
            };
            routes.push(encoder.route(m, keyless)?);
        }
        let streams = Streams { encoder, routes };
        if spread {
            let first = streams.routes[0];
            if let Some(other) = streams.routes.iter().find(|p| **p != first) {
                let why = format!(
                    "the messages go to partitions {first} and {other}, which CoLocatePartitions=false \
                     spreads over slots: a transaction cannot span slots, so give them one key or one \
                     partition"
                );
                return Err(refused(why));
            }
            parts.check_slot(encoder.stream(first))?;
        }
        Ok(streams)
    }

    /// The first round trip: watches what the conditions are about, reads it, and opens a transaction,
    /// whose beginning must be certain before the first command of it is sent: behind a MULTI that was
    /// refused the commands would simply run.
    fn begin(&mut self, parts: &Parts<'_>, c: &mut Connection, by: Deadline) -> Result<Begun> {
        let conditions = &parts.conditions;
        let keys: Vec<&[u8]> = conditions.iter().flat_map(|c| c.read().keys()).collect();
        self.first.clear();
        if !keys.is_empty() {
            resp::command(&mut self.first, 1 + keys.len());
            resp::arg(&mut self.first, b"WATCH");
            keys.iter().for_each(|key| resp::arg(&mut self.first, key));
        }
        for condition in conditions {
            condition.read().encode(&mut self.first);
        }
        resp::whole(&mut self.first, &[b"MULTI"]);
        let n = usize::from(!keys.is_empty()) + conditions.len() + 1;
        let sent = c.send(&self.first, by.wait());
        let answers = sent.and_then(|()| c.answers(n, by.wait()));
        let answers = answers.map_err(|e| e.with_outcome(Outcome::NotApplied))?;
        Ok(look(conditions, answers))
    }

    /// Leaves a transaction that has no commands yet.
    fn abandon(&mut self, mut c: Connection, in_multi: bool, by: Deadline) {
        let name = if in_multi { "DISCARD" } else { "UNWATCH" };
        // otherwise it is closed, which does the same
        if let Ok(Value::Okay) = c.call(&redis::cmd(name), by.wait()) {
            self.link.return_connection(c);
        }
    }

    /// The second write: the commands in their order, then the messages in theirs.
    fn encode(&mut self, parts: &Parts<'_>, streams: &Streams<'_>) -> Result<()> {
        self.second.clear();
        for command in &parts.commands {
            command.encode(&mut self.second);
        }
        for (m, partition) in parts.messages.iter().zip(&streams.routes) {
            let entry = self.plan.entry(m, &mut self.packing)?;
            streams.encoder.xadd(&mut self.second, &entry, *partition);
        }
        resp::whole(&mut self.second, &[b"EXEC"]);
        Ok(())
    }

    /// Takes the answers of commands that were run apart: replies, ids, and the first that failed.
    fn sort(
        &self,
        parts: &Parts<'_>,
        streams: &Streams<'_>,
        mut answers: Vec<Value>,
    ) -> Result<Commit> {
        let first_failed = answers
            .iter()
            .enumerate()
            .find_map(|(i, answer)| match answer {
                Value::ServerError(e) => {
                    Some((i, Error::server("outbox", error_line(e).as_bytes())))
                }
                _ => None,
            });
        let mut published = Vec::with_capacity(parts.messages.len());
        for (answer, partition) in answers.drain(parts.commands.len()..).zip(&streams.routes) {
            published.push(match answer {
                Value::BulkString(text) => match StreamId::parse(&text) {
                    Some(id) => {
                        streams.encoder.count(*partition);
                        Some(id)
                    }
                    None => return Err(odd("the answer to XADD is no stream id")),
                },
                Value::ServerError(_) => None,
                _ => return Err(odd("the answer to XADD is no stream id")),
            });
        }
        let Some((command, e)) = first_failed else {
            return Ok(Commit::Committed(Committed {
                ids: published.into_iter().flatten().collect(),
                replies: answers.into_iter().map(Reply::of).collect(),
            }));
        };
        let e = parts.about_command(e, command, streams);
        if parts.commands.is_empty() && published.iter().all(Option::is_none) {
            return Err(e);
        }
        let partly = PartlyFailed { command, published };
        Err(e.with_outcome(Outcome::Applied).caused_by(partly))
    }
}

/// What the answers to the first write mean.
struct Begun {
    /// Whether all conditions hold, or what was refused first.
    holds: Result<bool>,
    in_multi: bool,
}

/// Judges the answers to the WATCH, if there is a condition, to what the conditions read, and to MULTI.
fn look(conditions: &[Condition], answers: Vec<Result<Value>>) -> Begun {
    let mut answers = answers.into_iter();
    let watch = if conditions.is_empty() {
        None
    } else {
        answers.next()
    };
    let multi = answers.next_back().unwrap_or(Ok(Value::Nil));
    let in_multi = matches!(multi, Ok(Value::Okay));
    let agreed = |step: &str, answer: Result<Value>| {
        match answer {
            Ok(Value::Okay) => Ok(()),
            Ok(_) => Err(odd("the answer is not OK").with_outcome(Outcome::NotApplied)),
            Err(e) => Err(e),
        }
        .map_err(|e| in_step(step, e))
    };
    let look = || {
        watch.map_or(Ok(()), |answer| agreed("WATCH", answer))?;
        let mut all = true;
        for (condition, answer) in conditions.iter().zip(answers) {
            let read = condition.read();
            let key = read.keys().next().unwrap_or_default();
            let reply = answer.map_err(|e| in_step(&read.name(), e).on_key(key))?;
            all = all && condition.holds(&Reply::of(reply));
        }
        agreed("MULTI", multi).map(|()| all)
    };
    Begun {
        holds: look(),
        in_multi,
    }
}

/// What the answers to the second write mean.
#[derive(Debug)]
enum Executed {
    /// All ran, with these answers.
    Done(Vec<Value>),
    /// Something watched has changed. Nothing ran.
    Raced,
    /// Which command was refused first, if it was one, and why.
    Failed(Option<usize>, Error),
}

/// Judges the answers to the commands of a transaction and, last, to its EXEC.
fn judge(mut answers: Vec<Result<Value>>) -> Executed {
    const BECAUSE: &str = "EXECABORT Transaction discarded because of: ";
    let exec = answers.pop().unwrap_or(Ok(Value::Nil));
    let queued = |a: &Result<Value>| match a {
        Ok(Value::SimpleString(text)) => text == "QUEUED",
        answer => answer.is_err(),
    };
    if !answers.iter().all(queued) {
        let why = "a command was not put in the queue of its transaction";
        return Executed::Failed(None, odd(why));
    }
    let n = answers.len();
    let mut refusals = answers.into_iter().enumerate();
    let refused = refusals.find_map(|(i, a)| Some((i, a.err()?)));
    match (exec, refused) {
        // what EXEC says then is only that there was one
        (Err(_), Some((i, e))) => Executed::Failed(Some(i), e),
        (Err(e), None) => Executed::Failed(
            None,
            match e.message().strip_prefix(BECAUSE) {
                Some(reason) => in_step("EXEC", Error::server("outbox", reason.as_bytes())),
                None => in_step("EXEC", e),
            },
        ),
        (Ok(Value::Nil), None) => Executed::Raced,
        (Ok(Value::Array(values)), None) if values.len() == n => Executed::Done(values),
        _ => Executed::Failed(None, odd("the answer to EXEC fits no transaction")),
    }
}

#[cold]
fn odd(why: &'static str) -> Error {
    Error::new(ErrorKind::Protocol, "outbox", why).with_outcome(Outcome::Unknown)
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
    /// [`Applied`](Outcome::Applied): repeating the transaction would publish again.
    pub fn partly_failed(&self) -> Option<&PartlyFailed> {
        error::Error::source(self)?.downcast_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ServerClass;

    fn queued() -> Result<Value> {
        Ok(Value::SimpleString("QUEUED".into()))
    }

    fn no(text: &str) -> Result<Value> {
        Err(Error::server("call", text.as_bytes()))
    }

    const ABORT: &str = "EXECABORT Transaction discarded because of previous errors.";

    #[test]
    fn the_first_refused_command_is_named_and_not_the_abort_it_caused() {
        let oom = "OOM command not allowed when used memory > 'maxmemory'.";
        for (answers, command, class, retryable) in [
            (
                vec![queued(), no("NOPERM no"), no(oom), no(ABORT)],
                Some(1),
                ServerClass::NoPermission,
                false,
            ),
            (
                vec![no(oom), queued(), no(ABORT)],
                Some(0),
                ServerClass::OutOfMemory,
                true,
            ),
            (
                vec![
                    queued(),
                    no(&format!(
                        "EXECABORT Transaction discarded because of: {oom}"
                    )),
                ],
                None,
                ServerClass::OutOfMemory,
                true,
            ),
            (
                vec![
                    queued(),
                    no("EXECABORT Transaction discarded because of: READONLY You can't"),
                ],
                None,
                ServerClass::ReadOnly,
                true,
            ),
            (
                vec![queued(), no("LOADING")],
                None,
                ServerClass::Loading,
                true,
            ),
        ] {
            match judge(answers) {
                Executed::Failed(at, e) => {
                    assert_eq!((at, e.server_class()), (command, Some(class)), "{e}");
                    assert_eq!(e.is_retryable(), retryable, "{e}");
                    assert_eq!(e.outcome(), Outcome::NotApplied);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn conditions_are_asked_only_after_all_was_granted() {
        let ok = || Ok(Value::Okay);
        let one = || Ok(Value::Int(1));
        let exists = || Condition::key_exists("{t}k");
        let err = |text: &str| no(text);
        for (conditions, answers, holds, in_multi) in [
            (vec![], vec![ok()], Some(true), true),
            (vec![exists()], vec![ok(), one(), ok()], Some(true), true),
            (
                vec![exists(), exists()],
                vec![ok(), one(), Ok(Value::Int(0)), ok()],
                Some(false),
                true,
            ),
            (vec![exists()], vec![err("NOPERM"), one(), ok()], None, true),
            (
                vec![exists()],
                vec![ok(), err("WRONGTYPE"), ok()],
                None,
                true,
            ),
            (
                vec![exists()],
                vec![ok(), one(), err("NOPERM")],
                None,
                false,
            ),
            (vec![], vec![err("NOPERM")], None, false),
            // what another command left behind would be part of this one
            (
                vec![],
                vec![Ok(Value::SimpleString("QUEUED".into()))],
                None,
                false,
            ),
            (vec![exists()], vec![queued(), one(), ok()], None, true),
        ] {
            let shown = format!("{conditions:?} {answers:?}");
            let begun = look(&conditions, answers);
            assert_eq!(begun.in_multi, in_multi, "{shown}");
            if let Err(e) = &begun.holds {
                assert_eq!(e.outcome(), Outcome::NotApplied, "{shown}");
            }
            assert_eq!(begun.holds.ok(), holds, "{shown}");
        }
    }

    #[test]
    fn nil_is_a_race_and_an_answer_to_each_is_done() {
        assert!(matches!(
            judge(vec![queued(), Ok(Value::Nil)]),
            Executed::Raced
        ));
        let id = || Value::BulkString(b"1-0".to_vec());
        let both = Ok(Value::Array(vec![Value::Int(1), id()]));
        match judge(vec![queued(), queued(), both]) {
            Executed::Done(values) => assert_eq!(values, [Value::Int(1), id()]),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_fits_no_transaction_is_known_to_nobody() {
        let array = |n| Ok(Value::Array(vec![Value::Int(1); n]));
        for answers in [
            // run at once, as behind a proxy that has lost the MULTI
            vec![Ok(Value::Int(1)), no("ERR EXEC without MULTI")],
            vec![Ok(Value::Int(1)), array(1)],
            vec![Ok(Value::Okay), Ok(Value::Nil)],
            vec![queued(), array(2)],
            vec![queued(), queued(), array(1)],
            vec![queued(), Ok(Value::Okay)],
            vec![no("OOM"), array(1)],
            vec![no("OOM"), Ok(Value::Nil)],
        ] {
            let shown = format!("{answers:?}");
            match judge(answers) {
                Executed::Failed(None, e) => {
                    let what = (e.kind(), e.outcome());
                    assert_eq!(what, (ErrorKind::Protocol, Outcome::Unknown), "{shown}");
                }
                other => panic!("{shown}: {other:?}"),
            }
        }
    }
}
