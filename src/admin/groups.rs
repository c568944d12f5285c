//! Consumer groups as the server tells of them.

use std::{collections::BTreeMap, time::Duration};

use redis::Value;

use crate::{
    Result, StreamId,
    net::{Connection, Deadline},
    queue::is_gone,
};

/// The members of larger groups are not listed: a server stops for everybody while it does that.
pub(super) const MOST_MEMBERS: u64 = 10_000;

/// A group of one stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Group {
    pub(super) name: String,
    pub(super) members: u64,
    pub(super) pending: u64,
    /// The last entry that was given to a member.
    pub(super) delivered: StreamId,
}

/// The groups of each of these streams; none where there is no stream. Blocks for one round trip.
pub(super) fn groups_of(
    c: &mut Connection,
    streams: &[String],
    by: Deadline,
) -> Result<Vec<Vec<Group>>> {
    let ask = |key: &String| {
        let mut cmd = redis::cmd("XINFO");
        cmd.arg("GROUPS").arg(key);
        cmd
    };
    let cmds: Vec<_> = streams.iter().map(ask).collect();
    let answers = c.pipeline(&cmds, by.left())?.into_iter();
    answers
        .map(|answer| match answer {
            Ok(answer) => Ok(facts(answer).iter().filter_map(group).collect()),
            Err(e) if is_gone(&e) => Ok(Vec::new()),
            Err(e) => Err(e),
        })
        .collect()
}

/// A member of a group, in one stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct MemberInfo {
    pub(super) name: String,
    pub(super) pending: u64,
    /// Since it last asked for anything.
    pub(super) idle: Duration,
}

/// The members of a group of a stream, which has to have [few](MOST_MEMBERS); none where there is no such group.
pub(super) fn members_of(
    c: &mut Connection,
    stream: &str,
    group: &str,
    by: Deadline,
) -> Result<Vec<MemberInfo>> {
    let mut cmd = redis::cmd("XINFO");
    cmd.arg("CONSUMERS").arg(stream).arg(group);
    match c.call(&cmd, by.left()) {
        Ok(answer) => Ok(facts(answer).iter().filter_map(member).collect()),
        Err(e) if is_gone(&e) => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

type Facts = BTreeMap<String, Value>;

/// What is told about each, whatever else is told and in whatever order.
fn facts(answer: Value) -> Vec<Facts> {
    let Value::Array(items) = answer else {
        return Vec::new();
    };
    let items = items.into_iter();
    items
        .filter_map(|item| redis::from_redis_value(item).ok())
        .collect()
}

fn text(facts: &Facts, name: &str) -> Option<String> {
    match facts.get(name)? {
        Value::BulkString(text) => Some(String::from_utf8_lossy(text).into()),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

fn number(facts: &Facts, name: &str) -> Option<u64> {
    match facts.get(name)? {
        Value::Int(n) => u64::try_from(*n).ok(),
        _ => None,
    }
}

fn group(facts: &Facts) -> Option<Group> {
    Some(Group {
        name: text(facts, "name")?,
        members: number(facts, "consumers").unwrap_or(0),
        pending: number(facts, "pending")?,
        delivered: StreamId::parse(text(facts, "last-delivered-id")?.as_bytes())?,
    })
}

fn member(facts: &Facts) -> Option<MemberInfo> {
    Some(MemberInfo {
        name: text(facts, "name")?,
        pending: number(facts, "pending")?,
        idle: Duration::from_millis(number(facts, "idle").unwrap_or(0)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn what_is_not_known_of_a_group_is_stepped_over() {
        let told = Value::Array(vec![
            Value::Array(vec![
                bulk("lag"),
                Value::Nil,
                bulk("last-delivered-id"),
                bulk("5-1"),
                bulk("new-thing"),
                Value::Array(vec![Value::Int(1), Value::Nil]),
                bulk("pending"),
                Value::Int(3),
                bulk("name"),
                bulk("billing"),
            ]),
            Value::Array(vec![bulk("name"), bulk("half")]),
            Value::Int(7),
        ]);
        let groups: Vec<_> = facts(told).iter().filter_map(group).collect();
        let expected = Group {
            name: "billing".into(),
            members: 0,
            pending: 3,
            delivered: StreamId::new(5, 1),
        };
        assert_eq!(groups, [expected]);
        assert!(facts(Value::Nil).is_empty());
    }
}
