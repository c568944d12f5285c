//! The state store: what happened to one thing, kept in a stream of its own and published as well.

use redis::Value;

use crate::{
    Error, ErrorKind, Headers, Result, StreamId,
    error::Outcome,
    wire::{Entry, Malformed},
};

use super::{
    Command, Commit, Condition, Outbox, Outgoing, Packing, PublishPlan, Reply, Transaction,
};

/// Keeps the events of each thing (an order, an account) in a stream of its own, its *state*, and
/// publishes them to the topic: both or neither. The state is never trimmed and is what the thing is
/// rebuilt from; the topic is what others read.
///
/// The *version* of a state is how many events it has. Whoever decides on the events up to a version
/// appends under the condition that it is still the version.
///
/// ```no_run
/// # fn main() -> Result<(), streamlane::Error> {
/// use streamlane::{Append, Outgoing, StreamId, Streams};
///
/// let accounts = Streams::connect("redis://127.0.0.1:6379")?.state_store("accounts")?;
/// let (mut version, mut after) = (0, StreamId::MIN);
/// loop {
///     let page = accounts.read("account-7", after, 500)?;
///     let Some(last) = page.last() else { break };
///     (version, after) = (version + page.len() as u64, last.id);
///     // apply the events of the page to the account
/// }
/// match accounts.append("account-7", version, &[Outgoing::new("Deposited", b"100")])? {
///     Append::Appended(ids) => println!("{} is its last event", ids[0]),
///     Append::Conflict => println!("somebody else was faster: read on, decide again"),
/// }
/// # Ok(()) }
/// ```
///
/// A state lives at the key that [`Outbox::state_key`] names, as in services in other languages. Nothing
/// else may write to it, trim it or delete from it. It has all bodies in it, even where the topic's `ClaimCheck`
/// keeps those of the published messages apart, for those do not live for ever. Cheap to clone; clones share one connection and
/// take turns, as those of an [`Outbox`] do.
#[derive(Clone, Debug)]
pub struct StateStore {
    outbox: Outbox,
}

impl StateStore {
    /// # Errors
    ///
    /// A topic whose partitions do not share a slot.
    pub(crate) fn new(plan: PublishPlan) -> Result<Self> {
        if !plan.settings.co_locate_partitions {
            let why = format!(
                "topic {:?} is set to CoLocatePartitions=false, and a state store needs its state and \
                 all partitions in one slot: remove the setting, or keep the state on another topic",
                plan.topic
            );
            return Err(Error::config(why));
        }
        Ok(Self {
            outbox: Outbox::new(plan),
        })
    }

    /// The topic that events are published to.
    pub fn topic(&self) -> &str {
        self.outbox.topic()
    }

    /// Appends events to the state of this name and publishes them, if the state has `expected` events
    /// until then. 0 begins one.
    ///
    /// Events that bring no key of their own are published under the name of the state, so that those
    /// of one state stay in order. In the state itself they have type and body alone, unless
    /// `StateMetadata` is set for the topic.
    ///
    /// Blocks as [`Transaction::commit`](crate::Transaction::commit) does.
    ///
    /// # Errors
    ///
    /// A blank name, no events; otherwise as for [`Transaction::commit`](crate::Transaction::commit).
    /// After [`Outcome::Unknown`] the same call may be made again: if it answers
    /// [`Append::Conflict`], either the first one was carried out or somebody else was faster, which reading
    /// on from the last event known will tell.
    pub fn append(
        &self,
        name: impl AsRef<str>,
        expected: u64,
        events: &[Outgoing<'_>],
    ) -> Result<Append> {
        self.try_append(name.as_ref(), Some(expected), events)
            .map_err(|e| e.during("append"))
    }

    /// As [`append`](Self::append), whatever the version: for events that are true in any case. Returns
    /// their ids in the state. Repeating it after [`Outcome::Unknown`] may append twice.
    ///
    /// # Errors
    ///
    /// As for [`append`](Self::append).
    pub fn append_always(
        &self,
        name: impl AsRef<str>,
        events: &[Outgoing<'_>],
    ) -> Result<Vec<StreamId>> {
        let appended = self.try_append(name.as_ref(), None, events);
        appended
            .and_then(|appended| match appended {
                Append::Appended(ids) => Ok(ids),
                Append::Conflict => Err(unasked()),
            })
            .map_err(|e| e.during("append"))
    }

    fn try_append(
        &self,
        name: &str,
        expected: Option<u64>,
        events: &[Outgoing<'_>],
    ) -> Result<Append> {
        let transaction = self.transaction(name, expected, events).inspect_err(|e| {
            // from here on the transaction does the counting
            let counts = &self.outbox.plan().counts;
            for _ in events {
                counts.failed(e);
            }
        })?;
        Ok(match transaction.commit()? {
            Commit::ConditionFailed => Append::Conflict,
            Commit::Committed(done) => {
                let ids = done.replies.iter().map(|r| StreamId::parse(r.text()?));
                Append::Appended(ids.collect::<Option<_>>().ok_or_else(unasked)?)
            }
        })
    }

    fn transaction<'a>(
        &self,
        name: &'a str,
        expected: Option<u64>,
        events: &'a [Outgoing<'_>],
    ) -> Result<Transaction<'a>> {
        let key = self.outbox.state_key(name)?;
        if events.is_empty() {
            let why = "there are no events to append: leave the call out";
            return Err(Error::new(ErrorKind::Argument, "append", why).on_key(key));
        }
        let mut transaction = self.outbox.transaction();
        if let Some(expected) = expected {
            transaction = transaction.when(Condition::stream_len(&key, expected));
        }
        let mut packing = Packing::default();
        for event in events {
            let append = self.append_command(&key, event, &mut packing)?;
            let mut message = event.reborrow();
            if message.key.is_empty() {
                message.key = name.as_bytes();
            }
            transaction = transaction.command(append).publish(message);
        }
        Ok(transaction)
    }

    /// Adds an event to its state: never trimmed, and with no more than the topic's settings ask for.
    fn append_command(
        &self,
        key: &str,
        event: &Outgoing<'_>,
        packing: &mut Packing,
    ) -> Result<Command> {
        let plan = self.outbox.plan();
        let entry = if plan.settings.state_metadata {
            plan.entry(event, packing)?
        } else {
            Entry {
                body: event.body,
                message_type: event.message_type,
                ..Entry::default()
            }
        };
        let append = Command::new("XADD").key(key).arg("*");
        Ok(entry
            .state_pairs()
            .fold(append, |append, (name, value)| append.arg(name).arg(value)))
    }

    /// Up to `max` events of the state of this name, from the first after the id `after`;
    /// [`StreamId::MIN`] begins at the beginning. Empty at the end, and for a state that has none.
    ///
    /// Blocks for one round trip, within the deadline of `PublishTimeoutMs`.
    ///
    /// # Errors
    ///
    /// A blank name, a `max` of 0, a server that cannot be reached or refuses, an entry that is no event.
    pub fn read(
        &self,
        name: impl AsRef<str>,
        after: StreamId,
        max: usize,
    ) -> Result<Vec<StateEvent>> {
        let key = self.outbox.state_key(name)?;
        if max == 0 {
            let why = "a page of 0 events would look like the end: ask for 1 or more";
            return Err(Error::new(ErrorKind::Argument, "read state", why).on_key(key));
        }
        if after == StreamId::MAX {
            return Ok(Vec::new());
        }
        let mut cmd = redis::cmd("XRANGE");
        cmd.arg(&key)
            .arg(format!("({after}"))
            .arg("+")
            .arg("COUNT")
            .arg(max);
        let page = self.outbox.read(|c, by| c.call(&cmd, by.wait()));
        let page = page.and_then(|page| match page {
            Value::Array(entries) => entries.into_iter().map(StateEvent::of).collect(),
            Value::Nil => Ok(Vec::new()),
            _ => Err(odd("the answer to XRANGE is no list of entries")),
        });
        page.map_err(|e| e.during("read state").on_key(&key))
    }

    /// How many events the state of this name has; 0 when there is none.
    ///
    /// Blocks for one round trip, within the deadline of `PublishTimeoutMs`.
    ///
    /// # Errors
    ///
    /// A blank name, a server that cannot be reached or refuses.
    pub fn version(&self, name: impl AsRef<str>) -> Result<u64> {
        let key = self.outbox.state_key(name)?;
        let mut cmd = redis::cmd("XLEN");
        cmd.arg(&key);
        let version = self.outbox.read(|c, by| c.ask(&cmd, by.wait()));
        version.map_err(|e| e.during("version").on_key(&key))
    }
}

#[cold]
fn odd(why: &'static str) -> Error {
    Error::new(ErrorKind::Protocol, "read state", why)
}

/// The server has carried out a transaction, and answered something else than was asked.
#[cold]
fn unasked() -> Error {
    let why = "the answers do not fit the commands of the transaction";
    Error::new(ErrorKind::Protocol, "append", why).with_outcome(Outcome::Unknown)
}

/// What became of an [append](StateStore::append).
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "the events may not have been appended"]
pub enum Append {
    /// The events were appended and published: their ids in the state.
    Appended(Vec<StreamId>),
    /// The state has another version than was expected. Nothing was changed and nothing published.
    Conflict,
}

/// An event of a state.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StateEvent {
    /// Its id in the state, which is another than that of the published message.
    pub id: StreamId,
    /// What kind of event it is.
    pub message_type: Box<[u8]>,
    /// The payload.
    pub body: Box<[u8]>,
    /// The correlation id; empty when there was none, or when it was not kept (`StateMetadata`).
    pub correlation_id: Box<[u8]>,
    /// The W3C trace context of its publisher, if it was kept.
    pub traceparent: Option<Box<[u8]>>,
    /// The headers, if they were kept.
    pub headers: Vec<Header>,
}

/// Name and value.
type Header = (Box<[u8]>, Box<[u8]>);

impl StateEvent {
    /// Takes an entry as XRANGE gives it: its id, and its fields in a row.
    fn of(entry: Value) -> Result<Self> {
        let Reply::Array(parts) = Reply::of(entry) else {
            return Err(odd("an entry is no list"));
        };
        let [id, fields] = &parts[..] else {
            return Err(odd("an entry is no pair of id and fields"));
        };
        let id = id.text().and_then(StreamId::parse);
        let id = id.ok_or_else(|| odd("an entry has no id"))?;
        Self::decode(id, fields.items()).map_err(|e| {
            let what = format!("the entry {id}: {}", Error::from(e).message());
            Error::new(ErrorKind::Malformed, "read state", what)
        })
    }

    fn decode(id: StreamId, fields: &[Reply]) -> Result<Self, Malformed> {
        if fields.len() % 2 == 1 {
            return Err(Malformed::OddFields);
        }
        let pairs = fields.chunks_exact(2);
        let pairs = pairs.filter_map(|pair| Some((pair[0].text()?, pair[1].text()?)));
        let entry = Entry::from_pairs(pairs)?;
        let headers = Headers::new(entry.headers).iter();
        Ok(Self {
            id,
            message_type: entry.message_type.into(),
            body: entry.body.into(),
            correlation_id: entry.correlation_id.into(),
            traceparent: entry.traceparent.map(Into::into),
            headers: headers
                .map(|header| header.map(|(name, value)| (name.into(), value.into())))
                .collect::<Result<_, _>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(wire: &str) -> Result<StateEvent> {
        StateEvent::of(redis::parse_redis_value(wire.as_bytes()).unwrap())
    }

    #[test]
    fn entries_of_every_writer_are_events_and_all_else_is_named() {
        let event =
            of("*2\r\n$3\r\n5-1\r\n*8\r\n+t\r\n+T\r\n+z\r\n+?\r\n+k\r\n+key\r\n+b\r\n$0\r\n\r\n")
                .unwrap();
        assert_eq!(
            (event.id, &*event.message_type),
            (StreamId::new(5, 1), &b"T"[..])
        );
        assert!(event.body.is_empty() && event.traceparent.is_none());
        for (wire, kind, said) in [
            (
                "*2\r\n+5-1\r\n*2\r\n+t\r\n+T\r\n",
                ErrorKind::Malformed,
                "5-1",
            ),
            (
                "*2\r\n+5-1\r\n*3\r\n+t\r\n+T\r\n+b\r\n",
                ErrorKind::Malformed,
                "no value",
            ),
            (
                "*2\r\n+5-1\r\n*6\r\n+t\r\n+T\r\n+b\r\n+B\r\n+h\r\n+x\r\n",
                ErrorKind::Malformed,
                "header",
            ),
            ("*2\r\n+5\r\n*2\r\n+b\r\n+B\r\n", ErrorKind::Protocol, "id"),
            ("*1\r\n+5-1\r\n", ErrorKind::Protocol, "pair"),
            (":1\r\n", ErrorKind::Protocol, "list"),
        ] {
            let e = of(wire).unwrap_err();
            assert_eq!(e.kind(), kind, "{e}");
            assert!(e.to_string().contains(said), "{said} in {e}");
        }
    }
}
