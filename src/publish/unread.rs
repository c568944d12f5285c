//! What would be left unread if a topic had fewer partitions.

use std::{fmt, ops::Range, time::Duration};

use crate::{
    Result, StreamId,
    net::{Connection, Deadline},
    wire::{PositionValue, escaped},
};

use super::ensure::{Role, Subject};

/// How long it may take to find the consumers of a topic: the server is asked for every key it has.
const SEARCH: Duration = Duration::from_secs(1);
/// How many keys are looked at by one question.
const KEYS: u32 = 1000;
/// How many partitions are asked about by one write.
const WINDOW: usize = 64;
/// How many partitions are named.
const NAMED: usize = 16;

/// Says which of these partitions hold entries that are not read yet. On a publisher's behalf, which asks
/// again with every message, nobody looks for consumers.
pub(super) fn tell(
    connection: &mut Connection,
    topic: Subject<'_>,
    role: Role<'_>,
    partitions: Range<u32>,
    by: Deadline,
) -> String {
    let first = partitions.start;
    let told = last_entries(connection, topic, partitions.clone(), by).and_then(|last| {
        let read = match role {
            Role::Publisher => None,
            Role::Consumer(_) | Role::Operator => positions(connection, topic, &partitions, by)?,
        };
        Ok((last, read))
    });
    match told {
        Err(e) => format!("which partitions hold unread entries cannot be told: {e}"),
        Ok((last, None)) => match &held(first, &last, &[])[..] {
            [] => "the partitions above hold no entries now".to_owned(),
            held => format!("entries that may be unread are in {}", Listed(held)),
        },
        Ok((last, Some(read))) => match &held(first, &last, &read)[..] {
            [] => "the partitions above hold nothing unread now".to_owned(),
            held => format!(
                "entries that not every consumer has read are in {}",
                Listed(held)
            ),
        },
    }
}

/// The partitions, counted from `first`, that hold an entry above the position of some consumer; every
/// entry is if there is none.
fn held(first: u32, last: &[Option<StreamId>], read: &[Vec<StreamId>]) -> Vec<u32> {
    let unread = |i: usize, last: StreamId| read.is_empty() || read.iter().any(|r| r[i] < last);
    (first..)
        .zip(last)
        .enumerate()
        .filter_map(|(i, (p, last))| last.filter(|last| unread(i, *last)).map(|_| p))
        .collect()
}

/// The last entry of each partition that has one.
fn last_entries(
    connection: &mut Connection,
    topic: Subject<'_>,
    partitions: Range<u32>,
    by: Deadline,
) -> Result<Vec<Option<StreamId>>> {
    let mut last = Vec::with_capacity(partitions.len());
    for window in topic.streams(partitions).chunks(WINDOW) {
        let ask = |key: &[u8]| {
            let mut cmd = redis::cmd("XREVRANGE");
            cmd.arg(key).arg("+").arg("-").arg("COUNT").arg(1);
            cmd
        };
        let cmds: Vec<_> = window.iter().map(|key| ask(key)).collect();
        for answer in connection.pipeline(&cmds, by.left())? {
            let entries: Vec<(Vec<u8>, redis::Value)> =
                redis::from_redis_value(answer?).unwrap_or_default();
            last.push(entries.first().and_then(|(id, _)| StreamId::parse(id)));
        }
    }
    Ok(last)
}

/// How far each consumer of the topic has read these partitions: 0-0 where nothing is stored. `None` when
/// the consumers could not be found in time.
fn positions(
    connection: &mut Connection,
    topic: Subject<'_>,
    partitions: &Range<u32>,
    by: Deadline,
) -> Result<Option<Vec<Vec<StreamId>>>> {
    let until = Deadline::after(by.left().min(SEARCH));
    let all = topic.keys.positions(topic.name, "");
    let pattern = format!("{}*", escaped(&all));
    let (mut cursor, mut found) = (0_u64, Vec::new());
    loop {
        let mut cmd = redis::cmd("SCAN");
        cmd.arg(cursor)
            .arg("MATCH")
            .arg(&pattern)
            .arg("COUNT")
            .arg(KEYS);
        let (next, keys): (u64, Vec<Vec<u8>>) = connection.ask(&cmd, by.left())?;
        found.extend(keys.into_iter().filter(|key| !key.ends_with(b":meta")));
        cursor = next;
        if cursor == 0 {
            break;
        }
        if until.left().is_zero() {
            return Ok(None);
        }
    }
    // a key may be found twice
    found.sort_unstable();
    found.dedup();
    let mut read = Vec::with_capacity(found.len());
    for key in found {
        let mut cmd = redis::cmd("HMGET");
        cmd.arg(&key).arg(partitions.clone().collect::<Vec<u32>>());
        let values = connection.ask_fields(&cmd, partitions.len(), by.left())?;
        let at = |value: Option<Vec<u8>>| Some(PositionValue::parse(&value?)?.id);
        let ids = values
            .into_iter()
            .map(|value| at(value).unwrap_or_default());
        read.push(ids.collect());
    }
    Ok(Some(read))
}

/// Partitions as people read them.
pub(crate) struct Listed<'a>(pub(crate) &'a [u32]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.len() == 1 {
            "partition "
        } else {
            "partitions "
        })?;
        for (i, p) in self.0.iter().take(NAMED).enumerate() {
            f.write_str(if i == 0 { "" } else { ", " })?;
            write!(f, "{p}")?;
        }
        match self.0.len().saturating_sub(NAMED) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_some_consumer_has_not_read_is_held() {
        let id = |n| StreamId::new(n, 0);
        let last = [None, Some(id(5)), Some(id(7)), Some(id(1))];
        for (read, expected) in [
            (vec![], vec![5, 6, 7]),
            (vec![vec![id(0), id(5), id(7), id(1)]], vec![]),
            (vec![vec![id(9), id(4), id(9), id(1)]], vec![5]),
            (
                vec![vec![id(9); 4], vec![id(0), id(5), id(6), id(0)]],
                vec![6, 7],
            ),
        ] {
            assert_eq!(held(4, &last, &read), expected, "{read:?}");
        }
    }

    #[test]
    fn a_long_list_is_cut_short() {
        assert_eq!(Listed(&[3]).to_string(), "partition 3");
        assert_eq!(Listed(&[3, 5]).to_string(), "partitions 3, 5");
        let many: Vec<u32> = (0..20).collect();
        let told = Listed(&many).to_string();
        assert!(told.ends_with("14, 15 and 4 more"), "{told}");
    }
}
