//! Up to where every reader of a stream is finished, which is how far it may be deleted.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use redis::Value;

use crate::{
    Result, StreamId,
    consume::{Keeps, registered},
    net::Connection,
    wire::{Keys, PositionValue},
};

/// A consumer group as the server tells of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct GroupInfo {
    pub(crate) name: Vec<u8>,
    /// The last entry that was given to a member.
    pub(crate) delivered: StreamId,
    /// How many entries were given out and not acknowledged.
    pub(crate) pending: u64,
}

/// The groups of a stream; none when there is no stream.
pub(crate) fn groups(
    connection: &mut Connection,
    stream: &[u8],
    timeout: Duration,
) -> Result<Vec<GroupInfo>> {
    let mut cmd = redis::cmd("XINFO");
    cmd.arg("GROUPS").arg(stream);
    let found: Vec<BTreeMap<String, Value>> = match connection.ask(&cmd, timeout) {
        Err(e) if super::birth::is_gone(&e) => return Ok(Vec::new()),
        found => found?,
    };
    let read = |group: &BTreeMap<String, Value>| {
        let text = |field| match group.get(field) {
            Some(Value::BulkString(text)) => Some(text.clone()),
            _ => None,
        };
        let pending = match group.get("pending") {
            Some(Value::Int(n)) => u64::try_from(*n).ok()?,
            _ => return None,
        };
        Some(GroupInfo {
            name: text("name")?,
            delivered: StreamId::parse(&text("last-delivered-id")?)?,
            pending,
        })
    };
    Ok(found.iter().filter_map(read).collect())
}

/// The first entry that a group has given out and not acknowledged.
pub(crate) fn first_pending(
    connection: &mut Connection,
    stream: &[u8],
    group: &[u8],
    timeout: Duration,
) -> Result<Option<StreamId>> {
    let mut cmd = redis::cmd("XPENDING");
    cmd.arg(stream).arg(group);
    let summary: Vec<Value> = connection.ask(&cmd, timeout)?;
    Ok(match summary.get(1) {
        Some(Value::BulkString(id)) => StreamId::parse(id),
        _ => None,
    })
}

/// How far one reader of a partition is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// Everything up to here is finished.
    At(StreamId),
    /// It keeps positions, and has none there.
    NoPosition,
    /// It is a group, and there is none there.
    NoGroup,
    /// It keeps nothing of what it has finished.
    KeepsNothing,
}

/// Somebody who reads a partition, in whatever way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Reader {
    pub(crate) name: String,
    pub(crate) standing: Standing,
}

/// Everybody who reads a partition: every group of the stream, every consumer on the topic's register, and of the
/// `strangers`, who are on none, those that keep positions. Blocks for two round trips.
pub(crate) fn readers(
    connection: &mut Connection,
    keys: &Keys,
    (topic, partition, stream): (&str, u32, &[u8]),
    strangers: &BTreeSet<String>,
    timeout: Duration,
) -> Result<Vec<Reader>> {
    let registered = registered(connection, keys, topic, timeout)?;
    let groups = groups(connection, stream, timeout)?;
    let mut readers = Vec::new();
    let mut add = |name: &str, standing| {
        let name = name.to_owned();
        readers.push(Reader { name, standing });
    };
    let mut positions = Vec::new();
    for (name, keeps) in &registered {
        match keeps {
            Keeps::Nothing => add(name, Standing::KeepsNothing),
            Keeps::Positions => positions.push((name, true)),
            Keeps::Group | Keeps::DeletingGroup => {
                if !groups.iter().any(|g| g.name == name.as_bytes()) {
                    add(name, Standing::NoGroup);
                }
            }
        }
    }
    let strangers = strangers.iter().filter(|n| !registered.contains_key(*n));
    positions.extend(strangers.map(|name| (name, false)));
    let questions: Vec<_> = positions
        .iter()
        .flat_map(|(name, _)| {
            let key = keys.positions(topic, name);
            let (mut there, mut position) = (redis::cmd("EXISTS"), redis::cmd("HGET"));
            there.arg(&key);
            position.arg(&key).arg(partition);
            [there, position]
        })
        .collect();
    let mut answers = connection.pipeline(&questions, timeout)?.into_iter();
    for (name, is_registered) in positions {
        let mut answer = || answers.next().unwrap_or(Ok(Value::Nil));
        let (there, position) = (answer()?, answer()?);
        let position = match &position {
            Value::BulkString(value) => PositionValue::parse(value),
            _ => None,
        };
        match position {
            Some(position) => add(name, Standing::At(position.id)),
            None if is_registered || there == Value::Int(1) => add(name, Standing::NoPosition),
            // it is no more
            None => {}
        }
    }
    for group in groups {
        let mut at = group.delivered;
        if group.pending > 0
            && let Some(first) = first_pending(connection, stream, &group.name, timeout)?
        {
            at = at.min(first.before());
        }
        add(&String::from_utf8_lossy(&group.name), Standing::At(at));
    }
    Ok(readers)
}

/// Up to where a stream may be deleted because everybody has finished it.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Low {
    At(StreamId),
    /// Nobody can tell, for this reason.
    Unknown(String),
}

/// Everything up to the answer is finished by everyone; that cannot be told where one has no position or no group
/// there yet, or has lost it, or keeps none.
pub(super) fn low_water(readers: &[Reader]) -> Low {
    let mut low = None;
    for Reader { name, standing } in readers {
        let why = match standing {
            Standing::At(id) => {
                low = Some(low.map_or(*id, |low: StreamId| low.min(*id)));
                continue;
            }
            Standing::NoGroup => "has no group there",
            Standing::NoPosition => "has no position there",
            Standing::KeepsNothing => "keeps nothing of what it has finished (Persist None)",
        };
        return Low::Unknown(format!("consumer {name:?} {why}"));
    }
    low.map_or_else(|| Low::Unknown("nobody reads it".into()), Low::At)
}

/// Up to where everybody who keeps anything is finished, and who is not further. Who has no position or group there
/// has yet to read everything. `None` where nobody keeps anything.
pub(crate) fn lowest(readers: &[Reader]) -> Option<(StreamId, Vec<&str>)> {
    let mut lowest: Option<(StreamId, Vec<&str>)> = None;
    for reader in readers {
        let at = match reader.standing {
            Standing::At(id) => id,
            Standing::NoPosition | Standing::NoGroup => StreamId::MIN,
            Standing::KeepsNothing => continue,
        };
        match &mut lowest {
            Some((low, names)) if *low == at => names.push(&reader.name),
            Some((low, _)) if *low < at => {}
            _ => lowest = Some((at, vec![&reader.name])),
        }
    }
    lowest
}

#[cfg(test)]
mod tests {
    use super::*;
    use Standing::{At, KeepsNothing, NoGroup, NoPosition};

    #[test]
    fn the_slowest_of_those_who_keep_anything_is_the_mark() {
        let id = |ms| StreamId::new(ms, 0);
        let rows: [(&[Standing], _, _); 8] = [
            (&[], None, "nobody reads it"),
            (&[At(id(5))], Some((id(5), "a")), ""),
            (&[At(id(5)), At(id(3)), At(id(9))], Some((id(3), "b")), ""),
            (&[At(id(3)), At(id(5)), At(id(3))], Some((id(3), "ac")), ""),
            (
                &[At(id(3)), NoPosition],
                Some((id(0), "b")),
                "\"b\" has no position",
            ),
            (
                &[NoGroup, At(id(3))],
                Some((id(0), "a")),
                "\"a\" has no group",
            ),
            (
                &[KeepsNothing, At(id(3))],
                Some((id(3), "b")),
                "\"a\" keeps nothing",
            ),
            (&[KeepsNothing], None, "\"a\" keeps nothing"),
        ];
        for (standings, clamp, unknown) in rows {
            let names = ["a", "b", "c"].map(String::from);
            let each = names.into_iter().zip(standings);
            let readers: Vec<_> = each
                .map(|(name, standing)| Reader {
                    name,
                    standing: *standing,
                })
                .collect();
            let found = lowest(&readers).map(|(low, names)| (low, names.concat()));
            let clamp = clamp.map(|(low, names): (_, &str)| (low, names.to_owned()));
            assert_eq!(found, clamp, "{standings:?}");
            match low_water(&readers) {
                Low::At(low) => assert_eq!((Some(low), unknown), (clamp.map(|c| c.0), "")),
                Low::Unknown(why) => {
                    assert!(!unknown.is_empty() && why.contains(unknown), "{why}");
                }
            }
        }
    }
}
