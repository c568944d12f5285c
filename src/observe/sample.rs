//! What the server tells of a stream and of a group on it, and how much of it that leaves to be read.

use std::time::Duration;

use crate::{
    StreamId,
    consume::Extent,
    net::resp::{Cursor, Head, Stop},
};

/// How far a group is on a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Group {
    /// The last entry that a member was given.
    pub(super) delivered: StreamId,
    /// How many were given out and not acknowledged.
    pub(super) pending: u64,
    /// How many were given out, as the server has counted; it cannot always.
    pub(super) read: Option<u64>,
}

/// The first of what is pending.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct First {
    /// For how long the most neglected of them has had no sign of life.
    pub(super) oldest_idle: Option<Duration>,
    /// How often the one was given out that was most often.
    pub(super) most_deliveries: Option<u64>,
}

/// A place in a stream of which it is certain how many entries were added up to there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Anchor {
    id: StreamId,
    ordinal: u64,
    read: Option<u64>,
}

fn is_at_the_end(stream: &Extent, id: StreamId) -> bool {
    id >= stream.newest.unwrap_or(stream.last)
}

/// Where a group is by our own count. The server's own (`lag`, and `entries-read` by itself) is wrong once
/// something was trimmed that nobody had read; but how much it has grown since the `last` time is right.
pub(super) fn anchor(stream: &Extent, group: &Group, last: Option<&Anchor>) -> Option<Anchor> {
    let Group {
        delivered: id,
        read,
        ..
    } = *group;
    let ordinal = match stream.first {
        Some(first) if id < first => Some(stream.removed),
        Some(_) if !is_at_the_end(stream, id) => grown(stream, group, last),
        _ => Some(stream.added),
    };
    ordinal.map(|ordinal| Anchor { id, ordinal, read })
}

/// How many entries were added up to where a group is, in the middle of a stream.
fn grown(stream: &Extent, group: &Group, last: Option<&Anchor>) -> Option<u64> {
    if let Some(last) = last {
        if last.id == group.delivered {
            return Some(last.ordinal);
        }
        // Nothing was trimmed that had not been read then.
        let whole = stream.removed <= last.ordinal || stream.first <= Some(last.id);
        if last.id < group.delivered && whole {
            return Some(last.ordinal + group.read?.checked_sub(last.read?)?);
        }
    }
    group.read.filter(|_| stream.removed == 0)
}

impl Anchor {
    /// How many entries lie behind it.
    pub(super) fn unread(&self, stream: &Extent) -> Option<u64> {
        stream.behind(self.id, Some(self.ordinal))
    }
}

/// What `XINFO GROUPS` tells of the group of this name; `None` where there is none, or in what is no such answer.
pub(super) fn group_of(answer: &[u8], name: &[u8]) -> Option<Group> {
    let mut c = Cursor::new(answer, 0);
    let Ok(Head::Array(groups)) = c.head() else {
        return None;
    };
    for _ in 0..groups {
        let (found, group) = next_group(&mut c, answer).ok()?;
        if found == Some(name) {
            return group;
        }
    }
    None
}

/// The next group: its name, and what has to be known of it.
fn next_group<'a>(
    c: &mut Cursor<'_>,
    bytes: &'a [u8],
) -> Result<(Option<&'a [u8]>, Option<Group>), Stop> {
    let pairs = match c.head()? {
        Head::Array(n) => n / 2,
        Head::Map(n) => n,
        _ => return Err(Stop::Bad("no group")),
    };
    let (mut name, mut delivered, mut pending, mut read) = (None, None, None, None);
    for _ in 0..pairs {
        let key = c.text()?.map_or(&b""[..], |key| key.of(bytes));
        let mut at_value = *c;
        c.skip()?;
        match (key, at_value.head()?) {
            (b"name", Head::Text(text)) => name = Some(text.of(bytes)),
            (b"last-delivered-id", Head::Text(id)) => delivered = StreamId::parse(id.of(bytes)),
            (b"pending", Head::Scalar(n)) => pending = number(n.of(bytes)),
            (b"entries-read", Head::Scalar(n)) => read = number(n.of(bytes)),
            _ => {}
        }
    }
    let group = delivered.zip(pending).map(|(delivered, pending)| Group {
        delivered,
        pending,
        read,
    });
    Ok((name, group))
}

/// What `XPENDING` tells of some entries; nothing in what is no such answer.
pub(super) fn first_of(answer: &[u8]) -> First {
    let mut first = First::default();
    let mut c = Cursor::new(answer, 0);
    let Ok(Head::Array(n)) = c.head() else {
        return first;
    };
    for _ in 0..n {
        let Some((idle, deliveries)) = next_pending(&mut c, answer) else {
            return First::default();
        };
        first.oldest_idle = first.oldest_idle.max(Some(idle));
        first.most_deliveries = first.most_deliveries.max(Some(deliveries));
    }
    first
}

fn next_pending(c: &mut Cursor<'_>, bytes: &[u8]) -> Option<(Duration, u64)> {
    let Ok(Head::Array(4)) = c.head() else {
        return None;
    };
    c.skip().ok()?; // id
    c.skip().ok()?; // member
    let mut scalar = || match c.head() {
        Ok(Head::Scalar(n)) => number(n.of(bytes)),
        _ => None,
    };
    Some((Duration::from_millis(scalar()?), scalar()?))
}

/// A whole number that is not negative.
fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
#[path = "sample_tests.rs"]
mod tests;
