//! A transaction on the wire: watched and looked at in one round trip, carried out in another.

use std::{borrow::Cow, sync::Arc};

use redis::Value;

use crate::{
    Result, StreamId,
    error::{Error, ErrorKind, Outcome},
    net::{Connection, Deadline, resp},
    wire::hash_tag,
};

use super::{
    Command, Commit, Committed, Condition, Encoder, Outgoing, Packing, PartlyFailed, PublishPlan,
    Reply,
    link::{Link, is_over},
    verdict::{Begun, Executed, in_step, judge, look, odd},
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
    fn about_command(&self, e: Error, i: usize, routes: &Routes<'_>) -> Error {
        let (name, key) = match self.commands.get(i) {
            Some(c) => (c.name(), c.keys().next()),
            None => ("XADD".into(), Some(routes.stream(i - self.commands.len()))),
        };
        let e = in_step(&format!("command {i} of the transaction, {name}"), e);
        match key {
            Some(key) => e.on_key(key),
            None => e,
        }
    }
}

#[cold]
fn refused(why: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Argument, "outbox", why)
}

/// Where the messages of a transaction go.
struct Routes<'a> {
    encoder: &'a Encoder,
    /// The partition of each message.
    partitions: Vec<u32>,
}

impl Routes<'_> {
    fn stream(&self, message: usize) -> &[u8] {
        self.encoder.stream(self.partitions[message])
    }
}

/// The connection that transactions go over, one at a time.
#[derive(Debug)]
pub(super) struct Session {
    plan: Arc<PublishPlan>,
    /// Its buffer is for the second write.
    link: Link,
    /// The first write.
    first: Vec<u8>,
    packing: Packing,
}

impl Session {
    pub(super) fn new(plan: Arc<PublishPlan>) -> Self {
        Self {
            link: Link::new(Arc::clone(&plan)),
            plan,
            first: Vec::new(),
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
        self.link.rest();
        commit
    }

    fn try_commit(&mut self, parts: &Parts<'_>, by: Deadline) -> Result<Commit> {
        let encoder = self.link.make_ready(by)?;
        let routes = self.route(parts, &encoder)?;
        self.encode(parts, &routes)?;
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
            .and_then(|()| c.send(self.link.out(), by.wait()));
        sent.map_err(|e| e.with_outcome(Outcome::NotApplied))?;
        let queued = parts.commands.len() + parts.messages.len();
        let executed = judge(c.answers(queued + 1, by.wait())?);
        if !matches!(&executed, Executed::Failed(_, e) if is_over(e)) {
            self.link.return_connection(c);
        }
        match executed {
            Executed::Done(answers) => {
                let commit = sort(parts, &routes, answers)?;
                if let Commit::Committed(Committed { ids, .. }) = &commit
                    && let (Some(p), Some(id)) = (routes.partitions.last(), ids.last())
                {
                    self.plan.trace.stored(*p, *id);
                }
                Ok(commit)
            }
            Executed::Raced => Ok(Commit::ConditionFailed),
            Executed::Failed(Some(i), e) => Err(parts.about_command(e, i, &routes)),
            Executed::Failed(None, e) => Err(e),
        }
    }

    /// Chooses the partition of each message.
    fn route<'e>(&self, parts: &Parts<'_>, encoder: &'e Encoder) -> Result<Routes<'e>> {
        let spread = !self.plan.settings.co_locate_partitions;
        let mut partitions: Vec<u32> = Vec::with_capacity(parts.messages.len());
        for m in &parts.messages {
            let keyless = || match partitions.first() {
                // they could not be stored together otherwise
                Some(p) if spread => *p,
                _ => encoder.turn(),
            };
            partitions.push(encoder.route(m, keyless)?);
        }
        let routes = Routes {
            encoder,
            partitions,
        };
        if spread {
            let first = routes.partitions[0];
            if let Some(other) = routes.partitions.iter().find(|p| **p != first) {
                let why = format!(
                    "the messages go to partitions {first} and {other}, which CoLocatePartitions=false \
                     spreads over slots: a transaction cannot span slots, so give them one key or one \
                     partition"
                );
                return Err(refused(why));
            }
            parts.check_slot(encoder.stream(first))?;
        }
        Ok(routes)
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
            for key in &keys {
                resp::arg(&mut self.first, key);
            }
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
    fn encode(&mut self, parts: &Parts<'_>, routes: &Routes<'_>) -> Result<()> {
        let out = self.link.out();
        out.clear();
        for command in &parts.commands {
            command.encode(out);
        }
        for (m, partition) in parts.messages.iter().zip(&routes.partitions) {
            let entry = self.plan.entry(m, &mut self.packing)?;
            routes.encoder.append(out, &entry, *partition);
        }
        resp::whole(out, &[b"EXEC"]);
        Ok(())
    }
}

/// Takes the answers of commands that were run apart: replies, ids, and the first that failed.
fn sort(parts: &Parts<'_>, routes: &Routes<'_>, answers: Vec<Value>) -> Result<Commit> {
    let mut replies: Vec<_> = answers.into_iter().map(Reply::of).collect();
    let mut numbered = replies.iter().enumerate();
    let failed = numbered.find_map(|(i, reply)| match reply {
        Reply::Failed(text) => Some((i, Error::server("outbox", text.as_bytes()))),
        _ => None,
    });
    let ids = replies.drain(parts.commands.len()..);
    let published: Vec<_> = ids.map(|id| published(&id)).collect::<Result<_>>()?;
    for (id, partition) in published.iter().zip(&routes.partitions) {
        if id.is_some() {
            routes.encoder.count(*partition);
        }
    }
    let Some((command, e)) = failed else {
        let ids = published.into_iter().flatten().collect();
        return Ok(Commit::Committed(Committed { ids, replies }));
    };
    let e = parts.about_command(e, command, routes);
    if parts.commands.is_empty() && published.iter().all(Option::is_none) {
        return Err(e);
    }
    let partly = PartlyFailed { command, published };
    Err(e.with_outcome(Outcome::Applied).caused_by(partly))
}

/// The id that an XADD answered, unless it failed.
fn published(reply: &Reply) -> Result<Option<StreamId>> {
    match reply {
        Reply::Failed(_) => Ok(None),
        id => match id.text().and_then(StreamId::parse) {
            Some(id) => Ok(Some(id)),
            None => Err(odd("the answer to XADD is no stream id")),
        },
    }
}
