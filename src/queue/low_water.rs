//! Up to where every reader of a stream is finished, which is how far it may be deleted.

use std::{collections::BTreeMap, time::Duration};

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

/// Up to where a stream may be deleted.
pub(super) enum Low {
    At(StreamId),
    /// Nobody can tell, for this reason.
    Unknown(String),
}

/// Everything up to the answer is finished by every group of the stream and every consumer of the topic that
/// keeps positions; that cannot be told where one has no position or no group there yet, or has lost it, or keeps
/// none. Readers of other implementations are seen by their groups only. Blocks for a few round trips.
pub(super) fn low_water(
    connection: &mut Connection,
    keys: &Keys,
    (topic, partition, stream): (&str, u32, &[u8]),
    timeout: Duration,
) -> Result<Low> {
    let mut low = StreamId::MAX;
    let registered = registered(connection, keys, topic, timeout)?;
    let groups = groups(connection, stream, timeout)?;
    for (consumer, keeps) in registered {
        match keeps {
            Keeps::Group | Keeps::DeletingGroup => {
                if !groups.iter().any(|g| g.name == consumer.as_bytes()) {
                    return Ok(Low::Unknown(format!(
                        "consumer {consumer:?} has no group there"
                    )));
                }
            }
            Keeps::Nothing => {
                let why = "keeps nothing of what it has finished (Persist None)";
                return Ok(Low::Unknown(format!("consumer {consumer:?} {why}")));
            }
            Keeps::Positions => {
                let mut cmd = redis::cmd("HGET");
                cmd.arg(keys.positions(topic, &consumer)).arg(partition);
                let position: Option<Vec<u8>> = connection.ask(&cmd, timeout)?;
                let Some(position) = position.as_deref().and_then(PositionValue::parse) else {
                    let why = format!("consumer {consumer:?} has no position there");
                    return Ok(Low::Unknown(why));
                };
                low = low.min(position.id);
            }
        }
    }
    for group in groups {
        low = low.min(group.delivered);
        if group.pending > 0
            && let Some(first) = first_pending(connection, stream, &group.name, timeout)?
        {
            low = low.min(first.before());
        }
    }
    Ok(match low {
        StreamId::MAX => Low::Unknown("nobody reads it".into()),
        low => Low::At(low),
    })
}
