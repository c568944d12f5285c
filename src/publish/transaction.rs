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
    link::{Link, is_over},
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
        let what = format!("command {i} of the transaction, {name}: {}", e.message());
        let e = e.saying(what);
        match key {
            Some(key) => e.on_key(key),
            None => e,
        }
    }
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
        let looked_at = begun.reads.and_then(|replies| {
            let mut pairs = parts.conditions.iter().zip(&replies);
            Ok(pairs.all(|(condition, reply)| condition.holds(reply)))
        });
        if !matches!(looked_at, Ok(true)) {
            if !looked_at.as_ref().is_err_and(is_over) {
                self.abandon(c, begun.in_multi, by);
            }
            return looked_at.map(|_| Commit::ConditionFailed);
        }
        // The server runs nothing before it has the EXEC, which goes out last.
        let sent = c.send(&self.second, by.wait());
        sent.map_err(|e| e.with_outcome(Outcome::NotApplied))?;
        let queued = parts.commands.len() + parts.messages.len();
        let executed = judge(c.answers(queued + 1, by.wait())?);
        if !matches!(&executed, Executed::Odd(_))
            && !matches!(&executed, Executed::Refused(_, e) if is_over(e))
        {
            self.link.return_connection(c);
        }
        match executed {
            Executed::Done(answers) => self.sort(parts, &streams, answers),
            Executed::Raced => Ok(Commit::ConditionFailed),
            Executed::Refused(Some(i), e) => Err(parts.about_command(e, i, &streams)),
            Executed::Refused(None, e) => Err(e),
            Executed::Odd(why) => Err(odd(why)),
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
        let mut answers = answers.map_err(|e| e.with_outcome(Outcome::NotApplied))?;
        let multi = answers.pop().unwrap_or(Ok(Value::Nil));
        let in_multi = matches!(multi, Ok(Value::Okay));
        if !in_multi && multi.is_ok() {
            return Err(odd("MULTI was not answered with OK").with_outcome(Outcome::NotApplied));
        }
        let watch = (!keys.is_empty()).then(|| answers.remove(0));
        let refused = watch.and_then(Result::err);
        let reads = answers
            .into_iter()
            .zip(conditions)
            .map(|(answer, condition)| {
                let about = |e: Error| {
                    let e = e.during(condition.read().name());
                    let key = condition.read().keys().next();
                    e.on_key(key.unwrap_or_default())
                };
                answer.map(Reply::of).map_err(about)
            });
        let reads = match refused {
            Some(e) => Err(e.during("WATCH").on_key(keys[0])),
            None => reads.collect::<Result<Vec<_>>>(),
        };
        let reads = reads.and_then(|r| multi.map(|_| r).map_err(|e| e.during("MULTI")));
        Ok(Begun { reads, in_multi })
    }

    /// Leaves a transaction that has no commands yet.
    fn abandon(&mut self, mut c: Connection, in_multi: bool, by: Deadline) {
        let name = if in_multi { "DISCARD" } else { "UNWATCH" };
        // otherwise it is closed, which does the same
        if c.call(&redis::cmd(name), by.wait()).is_ok() {
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

/// After the first round trip.
struct Begun {
    /// What the conditions look at, or who refused first.
    reads: Result<Vec<Reply>>,
    in_multi: bool,
}

/// What the answers to the second write mean.
#[derive(Debug)]
enum Executed {
    /// All ran, with these answers.
    Done(Vec<Value>),
    /// Something watched has changed. Nothing ran.
    Raced,
    /// Nothing ran: which command was refused first, if it was one, and why.
    Refused(Option<usize>, Error),
    /// Nobody can tell.
    Odd(&'static str),
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
        return Executed::Odd("a command was not put in the queue of its transaction");
    }
    let n = answers.len();
    let mut refusals = answers.into_iter().enumerate();
    let refused = refusals.find_map(|(i, a)| Some((i, a.err()?)));
    match (exec, refused) {
        // what EXEC says then is only that there was one
        (Err(_), Some((i, e))) => Executed::Refused(Some(i), e),
        (Err(e), None) => Executed::Refused(
            None,
            match e.message().strip_prefix(BECAUSE) {
                Some(reason) => Error::server("EXEC", reason.as_bytes()),
                None => e.during("EXEC"),
            },
        ),
        (Ok(Value::Nil), None) => Executed::Raced,
        (Ok(Value::Array(values)), None) if values.len() == n => Executed::Done(values),
        _ => Executed::Odd("the answer to EXEC fits no transaction"),
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
                Executed::Refused(at, e) => {
                    assert_eq!((at, e.server_class()), (command, Some(class)), "{e}");
                    assert_eq!(e.is_retryable(), retryable, "{e}");
                    assert_eq!(e.outcome(), Outcome::NotApplied);
                }
                other => panic!("{other:?}"),
            }
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
            let judged = judge(answers);
            assert!(matches!(judged, Executed::Odd(_)), "{shown}: {judged:?}");
        }
    }
}
