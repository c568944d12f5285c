//! How far a consumer is that may run anywhere, as the server tells: claims, positions or groups, and the ends of
//! the streams.

use std::{collections::BTreeMap, time::SystemTime};

use redis::Value;

use crate::{
    Admin, Error, Member, Result, StreamId,
    consume::{Extent, registered},
    error::ErrorKind,
    net::{Connection, Deadline},
    queue::is_gone,
    wire::{
        Claimant, Ordinal, PRESENCE, PositionValue, check_consumer, check_topic, topic::TopicRecord,
    },
};

use super::{Shared, TIMEOUT, ownership::claims};

/// So many partitions are asked about by one round trip: each answer holds two whole entries.
const WINDOW: usize = 32;

/// How far a consumer of a topic is; see [`Admin::progress`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ConsumerProgress {
    /// The topic.
    pub topic: String,
    /// The consumer.
    pub consumer: String,
    /// Whether it keeps what is finished in a consumer group; otherwise in positions.
    pub is_group: bool,
    /// When the server was asked, by its own clock.
    pub at: SystemTime,
    /// Each partition, ascending; none where there is no such topic.
    pub partitions: Vec<PartitionProgress>,
    /// The instances that are present.
    pub members: Vec<Member>,
    /// Of a group: how many messages wait to be handed over once more.
    pub retries: u64,
    /// How many dead letters there are.
    pub dead_letters: u64,
}

/// Nothing about nobody, as of 1970: to be filled, in a test of yours.
impl Default for ConsumerProgress {
    fn default() -> Self {
        Self {
            topic: String::new(),
            consumer: String::new(),
            is_group: false,
            at: SystemTime::UNIX_EPOCH,
            partitions: Vec::new(),
            members: Vec::new(),
            retries: 0,
            dead_letters: 0,
        }
    }
}

/// How far it is in one partition.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct PartitionProgress {
    /// Its number.
    pub partition: u32,
    /// Who has a claim on it.
    pub owner: Option<Member>,
    /// Everything up to here is finished; of a group, was given to a member. `None` where nothing is stored.
    pub position: Option<StreamId>,
    /// The last entry that is there.
    pub tail: Option<StreamId>,
    /// How many entries are there.
    pub length: u64,
    /// How many entries were ever added.
    pub added: u64,
    /// How many entries lie behind the position; `None` where that cannot be told.
    pub lag: Option<u64>,
    /// Of a group: how many entries were given to members and not acknowledged.
    pub pending: Option<u64>,
    /// How things stand.
    pub state: ProgressState,
}

/// How a consumer stands in a partition. The first that is so.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[non_exhaustive]
pub enum ProgressState {
    /// There is no stream: nothing was published, or it is gone.
    #[default]
    NoStream,
    /// The position lies ahead of all that the stream ever held: it belongs to another.
    Ahead,
    /// Entries behind the position were trimmed or deleted before they were read.
    Gap,
    /// Nothing is stored: it has not begun, or keeps nothing.
    NoPosition,
    /// There is nobody who would read it. Of a group without members, all partitions are so.
    Unowned,
    /// Something is to be read, or not acknowledged yet.
    Behind,
    /// Everything is finished.
    CaughtUp,
}

impl ProgressState {
    /// Whether somebody should have a look: it will not mend itself.
    pub fn is_wrong(self) -> bool {
        matches!(self, Self::Ahead | Self::Gap | Self::Unowned)
    }
}

/// What is stored about one partition.
#[derive(Clone, Copy, Default, Debug)]
struct Stored {
    position: Option<StreamId>,
    /// How many entries were added up to there.
    ordinal: Option<u64>,
    pending: Option<u64>,
}

/// What is known beside that.
#[derive(Clone, Copy, Debug)]
struct Around {
    /// Whether partitions have owners.
    exclusive: bool,
    owned: bool,
    members: bool,
}

impl Admin {
    /// How far a consumer is in each partition, and who owns what, as the server tells. It may run anywhere or not at
    /// all. Changes nothing. Blocks for up to 30 s, usually for a few round trips.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), streamlane::Error> {
    /// # let streams = streamlane::Streams::connect("redis://127.0.0.1:6379")?;
    /// let progress = streams.admin().progress("orders", "billing")?;
    /// for p in &progress.partitions {
    ///     println!("{} {:?} {:?}", p.partition, p.lag, p.state);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// A name that no topic or consumer can have; a server that cannot be reached or refuses.
    pub fn progress(
        &self,
        topic: impl AsRef<str>,
        consumer: impl AsRef<str>,
    ) -> Result<ConsumerProgress> {
        let (topic, consumer) = (topic.as_ref(), consumer.as_ref());
        check_topic(topic)?;
        check_consumer(consumer)?;
        let by = Deadline::after(TIMEOUT);
        let mut c = self.shared.connect(by)?;
        let look = Look {
            shared: &self.shared,
            topic,
            consumer,
            by,
        };
        look.at_all(&mut c)
            .map_err(|e| e.during("look how far a consumer is"))
    }
}

struct Look<'a> {
    shared: &'a Shared,
    topic: &'a str,
    consumer: &'a str,
    by: Deadline,
}

impl Look<'_> {
    fn at_all(&self, c: &mut Connection) -> Result<ConsumerProgress> {
        let Self {
            topic, consumer, ..
        } = *self;
        let keys = &self.shared.keys;
        let mut owners = BTreeMap::new();
        let mut members = Vec::new();
        for (field, value) in claims(c, keys, topic, consumer, self.by)? {
            let member = Member::from(&Claimant::read(value.as_bytes()));
            if field.starts_with(PRESENCE) {
                members.push(member);
            } else if let Ok(p) = field.parse::<u32>() {
                owners.insert(p, member);
            }
        }
        let streams = self.streams(c)?;
        let registered = registered(c, keys, topic, self.by.left())?;
        let keeps = registered.get(consumer);
        let mut is_group = keeps.is_some_and(|keeps| keeps.is_group());
        let (retries, dead_letters, at) = self.beside(c)?;

        let mut found = Vec::with_capacity(streams.len());
        for (n, window) in streams.chunks(WINDOW).enumerate() {
            let first = (n * WINDOW) as u32;
            let mut stored = if is_group {
                self.groups(c, window)?
            } else {
                self.positions(c, first, window.len())?
            };
            // One of another implementation is in no list, and may be either.
            if keeps.is_none() && stored.iter().all(|s| s.position.is_none()) && n == 0 {
                let groups = self.groups(c, window)?;
                if groups.iter().any(|g| g.position.is_some()) {
                    (is_group, stored) = (true, groups);
                }
            }
            let extents = Extent::of_all(c, window, self.by.left())?;
            found.extend((first..).zip(stored.into_iter().zip(extents)));
        }
        let around = |owned| Around {
            // Nobody owns anything where members share everything.
            exclusive: !is_group || !owners.is_empty(),
            owned,
            members: !members.is_empty(),
        };
        let partitions = found.into_iter().map(|(p, (stored, extent))| {
            let owner = owners.get(&p).cloned();
            let around = around(owner.is_some());
            progress_of(p, owner, stored, extent.as_ref(), around)
        });
        Ok(ConsumerProgress {
            topic: topic.into(),
            consumer: consumer.into(),
            is_group,
            at,
            partitions: partitions.collect(),
            members,
            retries,
            dead_letters,
        })
    }

    /// The keys of all streams.
    fn streams(&self, c: &mut Connection) -> Result<Vec<String>> {
        let (topic, keys) = (self.topic, &self.shared.keys);
        let mut cmd = redis::cmd("HMGET");
        cmd.arg(keys.topic_meta(topic)).arg(&TopicRecord::FIELDS);
        let values = c.ask_fields(&cmd, TopicRecord::FIELDS.len(), self.by.left())?;
        let field = |i: usize| values[i].as_deref();
        let record = TopicRecord::parse([field(0), field(1), field(2)]);
        let n = record.partitions.unwrap_or(0);
        let spread = {
            let mut cmd = redis::cmd("EXISTS");
            cmd.arg(keys.stream(topic, 0, false));
            c.ask::<u64>(&cmd, self.by.left())? > 0
        };
        Ok((0..n).map(|p| keys.stream(topic, p, !spread)).collect())
    }

    fn positions(&self, c: &mut Connection, first: u32, n: usize) -> Result<Vec<Stored>> {
        let (topic, keys) = (self.topic, &self.shared.keys);
        let mut positions = redis::cmd("HMGET");
        positions.arg(keys.positions(topic, self.consumer));
        let mut ordinals = redis::cmd("HMGET");
        ordinals.arg(keys.positions_meta(topic, self.consumer));
        for p in (first..).take(n) {
            positions.arg(p);
            ordinals.arg(format!("{p}:ordinal"));
        }
        let positions = c.ask_fields(&positions, n, self.by.left())?;
        let ordinals = c.ask_fields(&ordinals, n, self.by.left())?;
        let both = positions.into_iter().zip(ordinals);
        Ok(both
            .map(|(position, ordinal)| {
                let position = position.and_then(|v| Some(PositionValue::parse(&v)?.id));
                let ordinal = ordinal.as_deref().and_then(Ordinal::parse);
                Stored {
                    position,
                    ordinal: ordinal
                        .filter(|o| Some(o.id) == position)
                        .map(|o| o.entries),
                    pending: None,
                }
            })
            .collect())
    }

    fn groups(&self, c: &mut Connection, streams: &[String]) -> Result<Vec<Stored>> {
        let ask = |key: &String| {
            let mut cmd = redis::cmd("XINFO");
            cmd.arg("GROUPS").arg(key);
            cmd
        };
        let cmds: Vec<_> = streams.iter().map(ask).collect();
        let answers = c.pipeline(&cmds, self.by.left())?;
        answers
            .into_iter()
            .map(|answer| match answer {
                Ok(answer) => Ok(group_of(answer, self.consumer)),
                Err(e) if is_gone(&e) => Ok(Stored::default()),
                Err(e) => Err(e),
            })
            .collect()
    }

    /// What waits to be handed over once more, the dead letters, and the time.
    fn beside(&self, c: &mut Connection) -> Result<(u64, u64, SystemTime)> {
        let Self {
            topic, consumer, ..
        } = *self;
        let keys = &self.shared.keys;
        let ask = |name: &str, key: Option<String>| {
            let mut cmd = redis::cmd(name);
            cmd.arg(key);
            cmd
        };
        let cmds = [
            ask("ZCARD", Some(keys.retry_bucket(topic, consumer))),
            ask("XLEN", Some(keys.retries(topic, consumer))),
            ask("XLEN", Some(keys.dead_letters(topic, consumer))),
            ask("TIME", None),
        ];
        let mut answers = c.pipeline(&cmds, self.by.left())?.into_iter();
        let mut number = || -> Result<u64> {
            match answers.next() {
                Some(Ok(Value::Int(n))) => Ok(n.unsigned_abs()),
                Some(Err(e)) => Err(e),
                _ => Err(Error::new(ErrorKind::Protocol, "call", "no number")),
            }
        };
        let (waiting, due, letters) = (number()?, number()?, number()?);
        let time = answers.next().transpose()?.unwrap_or(Value::Nil);
        let (s, us): (u64, u64) = redis::from_redis_value(time)
            .map_err(|e| Error::new(ErrorKind::Protocol, "TIME", e.to_string()))?;
        let at = StreamId::new(s * 1000 + us / 1000, 0).timestamp();
        Ok((waiting + due, letters, at))
    }
}

/// What `XINFO GROUPS` tells of the group of this name.
fn group_of(answer: Value, name: &str) -> Stored {
    let groups: Vec<BTreeMap<String, Value>> = redis::from_redis_value(answer).unwrap_or_default();
    let is_text = |value: Option<&Value>, text: &str| matches!(value, Some(Value::BulkString(b)) if b == text.as_bytes());
    let Some(group) = groups.iter().find(|g| is_text(g.get("name"), name)) else {
        return Stored::default();
    };
    let number = |field| match group.get(field) {
        Some(Value::Int(n)) => u64::try_from(*n).ok(),
        _ => None,
    };
    let position = match group.get("last-delivered-id") {
        Some(Value::BulkString(id)) => StreamId::parse(id),
        _ => None,
    };
    Stored {
        position,
        ordinal: number("entries-read"),
        pending: number("pending"),
    }
}

fn progress_of(
    partition: u32,
    owner: Option<Member>,
    stored: Stored,
    stream: Option<&Extent>,
    around: Around,
) -> PartitionProgress {
    let extent = stream.copied().unwrap_or_default();
    PartitionProgress {
        partition,
        owner,
        position: stored.position,
        tail: extent.newest,
        length: extent.length(),
        added: extent.added,
        lag: stored.position.and_then(|id| lag(&extent, id, &stored)),
        pending: stored.pending,
        state: state_of(stored, stream, around),
    }
}

/// How many entries lie behind a place. Of a group the server's count is right only while nothing was removed.
fn lag(stream: &Extent, id: StreamId, stored: &Stored) -> Option<u64> {
    let counted = stored.pending.is_none() || stream.removed == 0;
    stream.behind(id, stored.ordinal.filter(|_| counted))
}

fn state_of(stored: Stored, stream: Option<&Extent>, around: Around) -> ProgressState {
    let Some(stream) = stream else {
        return ProgressState::NoStream;
    };
    let nobody = !(if around.exclusive {
        around.owned
    } else {
        around.members
    });
    let Some(id) = stored.position else {
        return if nobody {
            ProgressState::Unowned
        } else {
            ProgressState::NoPosition
        };
    };
    // A place of a moment may lie ahead of what there is.
    if id > stream.last && !id.is_moment() {
        return ProgressState::Ahead;
    }
    let unread = stream.first.is_some_and(|first| id < first);
    let lost = stored.pending.is_none() && stored.ordinal.is_some_and(|n| n < stream.removed);
    if unread && lost {
        return ProgressState::Gap;
    }
    if nobody {
        return ProgressState::Unowned;
    }
    let finished = id >= stream.newest.unwrap_or(stream.last) && stored.pending.unwrap_or(0) == 0;
    if finished {
        ProgressState::CaughtUp
    } else {
        ProgressState::Behind
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u64) -> StreamId {
        StreamId::new(n, 0)
    }

    /// Entries `from` to `to`, of which each number is an id, after `removed` others.
    fn stream(from: u64, to: u64) -> Extent {
        let is_empty = to < from;
        Extent {
            first: (!is_empty).then_some(id(from)),
            newest: (!is_empty).then_some(id(to)),
            last: id(to.max(from - 1)),
            added: to,
            removed: if is_empty { to } else { from - 1 },
            deleted: None,
        }
    }

    fn at(n: u64, ordinal: impl Into<Option<u64>>) -> Stored {
        Stored {
            position: Some(id(n)),
            ordinal: ordinal.into(),
            pending: None,
        }
    }

    const OWNED: Around = Around {
        exclusive: true,
        owned: true,
        members: true,
    };

    #[test]
    fn how_things_stand_is_told_by_what_is_worst() {
        use ProgressState::*;
        let nobody = Around {
            owned: false,
            ..OWNED
        };
        let shared = Around {
            exclusive: false,
            owned: false,
            members: true,
        };
        let deserted = Around {
            members: false,
            ..shared
        };
        let pending = |n, pending| Stored {
            pending: Some(pending),
            ..at(n, n)
        };
        for (stored, stream, around, state, lag) in [
            (at(5, 5), Some(stream(1, 5)), OWNED, CaughtUp, Some(0)),
            (at(4, 4), Some(stream(1, 5)), OWNED, Behind, Some(1)),
            (at(3, None), Some(stream(1, 5)), OWNED, Behind, None),
            (at(0, 0), Some(stream(1, 5)), OWNED, Behind, Some(5)),
            (at(2, 2), Some(stream(3, 5)), OWNED, Behind, Some(3)),
            (at(1, 1), Some(stream(3, 5)), OWNED, Gap, Some(3)),
            (at(1, 1), Some(stream(3, 5)), nobody, Gap, Some(3)),
            (at(1, None), Some(stream(3, 5)), OWNED, Behind, Some(3)),
            (at(6, 6), Some(stream(1, 5)), OWNED, Ahead, Some(0)),
            (at(5, 5), Some(stream(6, 5)), OWNED, CaughtUp, Some(0)),
            (at(5, 5), Some(stream(1, 5)), nobody, Unowned, Some(0)),
            (
                Stored::default(),
                Some(stream(1, 5)),
                OWNED,
                NoPosition,
                None,
            ),
            (Stored::default(), Some(stream(1, 5)), nobody, Unowned, None),
            (Stored::default(), None, OWNED, NoStream, None),
            (pending(5, 0), Some(stream(1, 5)), shared, CaughtUp, Some(0)),
            (pending(5, 2), Some(stream(1, 5)), shared, Behind, Some(0)),
            (
                pending(5, 0),
                Some(stream(1, 5)),
                deserted,
                Unowned,
                Some(0),
            ),
            (pending(4, 0), Some(stream(1, 5)), shared, Behind, Some(1)),
            (pending(4, 0), Some(stream(3, 5)), shared, Behind, None),
        ] {
            let p = progress_of(0, None, stored, stream.as_ref(), around);
            assert_eq!(
                (p.state, p.lag),
                (state, lag),
                "{stored:?} {stream:?} {around:?}"
            );
        }
        let moment = Stored {
            position: Some(id(9).before()),
            ..Stored::default()
        };
        let p = progress_of(0, None, moment, Some(&stream(1, 5)), OWNED);
        assert_eq!(p.state, CaughtUp);
    }

    #[test]
    fn what_needs_a_person_is_wrong() {
        use ProgressState::*;
        let wrong = [Ahead, Gap, Unowned];
        for state in [NoStream, Ahead, Gap, NoPosition, Unowned, Behind, CaughtUp] {
            assert_eq!(state.is_wrong(), wrong.contains(&state), "{state:?}");
        }
    }
}
