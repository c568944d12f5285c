//! A stream from outside: how long it is, where it begins and ends, how much of it lies in between.

use std::collections::HashMap;

use redis::{FromRedisValue, Value};

use crate::{
    Error, Result, StreamId,
    error::ErrorKind,
    net::{Connection, Deadline},
};

/// A stream at one moment. The default is one in which nothing ever was.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Stream {
    pub(super) length: u64,
    /// How many entries it ever held.
    pub(super) added: u64,
    /// The first and the last entry that are there.
    pub(super) ends: Option<(StreamId, StreamId)>,
    /// The id that was given last, whatever became of the entry.
    pub(super) last: StreamId,
}

/// The bytes of entries that one page aims at; what they hold is not wanted, but cannot be left out.
const PAGE_BYTES: usize = 1 << 20;
const FIRST_PAGE: usize = 16;
const LARGEST_PAGE: usize = 1000;

impl Stream {
    pub(super) fn question(key: &str) -> redis::Cmd {
        let mut cmd = redis::cmd("XINFO");
        cmd.arg("STREAM").arg(key);
        cmd
    }

    /// `None` where there is no stream.
    pub(super) fn read(key: &str, answer: Result<Value>) -> Result<Option<Self>> {
        let facts = match answer {
            Ok(facts) => facts,
            Err(e) if e.server_code() == Some("ERR") && e.message().contains("no such key") => {
                return Ok(None);
            }
            Err(e) => return Err(e.on_key(key)),
        };
        let read = Self::of_facts(facts).map(Some);
        read.ok_or_else(|| {
            let what = "the reply does not say how long the stream is and where it ends";
            Error::new(ErrorKind::Protocol, "XINFO", what).on_key(key)
        })
    }

    fn of_facts(facts: Value) -> Option<Self> {
        let mut facts: HashMap<String, Value> = redis::from_redis_value(facts).ok()?;
        let mut id_of = |name: &str| match facts.remove(name)? {
            Value::Array(mut entry) if !entry.is_empty() => id(entry.swap_remove(0)),
            value => id(value),
        };
        let (oldest, newest) = (id_of("first-entry"), id_of("last-entry"));
        let last = id_of("last-generated-id")?;
        let mut number = |name: &str| u64::from_redis_value(facts.remove(name)?).ok();
        Some(Self {
            length: number("length")?,
            added: number("entries-added")?,
            ends: oldest.zip(newest),
            last,
        })
    }
}

fn id(value: Value) -> Option<StreamId> {
    StreamId::parse(&Vec::<u8>::from_redis_value(value).ok()?)
}

/// How many entries lie after `after` and up to `upto`, and whether these are all: counting ends at `cap`
/// of them or at `until`. Blocks for a round trip for every 1000 of them, or more when they are large.
pub(super) fn count(
    connection: &mut Connection,
    key: &str,
    (after, upto): (StreamId, StreamId),
    stream: &Stream,
    cap: u64,
    [until, by]: [Deadline; 2],
) -> Result<(u64, bool)> {
    let Some((oldest, newest)) = stream.ends else {
        return Ok((0, true));
    };
    if after < oldest && upto >= newest {
        return Ok((stream.length, true));
    }
    let (mut after, mut found, mut page) = (after, 0, FIRST_PAGE);
    while after < upto {
        if found >= cap || until.left().is_zero() {
            return Ok((found, false));
        }
        let asked = page.min(usize::try_from(cap - found).unwrap_or(page));
        let mut cmd = redis::cmd("XRANGE");
        cmd.arg(key)
            .arg(after.next().to_string())
            .arg(upto.to_string())
            .arg("COUNT")
            .arg(asked);
        let entries: Vec<(Vec<u8>, Value)> = connection.ask(&cmd, by.left())?;
        found += entries.len() as u64;
        match entries.last().map(|(id, _)| StreamId::parse(id)) {
            Some(Some(last)) if entries.len() == asked => after = last,
            Some(None) => {
                let what = "the reply has an entry whose id is none";
                return Err(Error::new(ErrorKind::Protocol, "XRANGE", what).on_key(key));
            }
            _ => break,
        }
        let bytes: usize = entries.iter().map(|(_, fields)| size_of(fields)).sum();
        page = (PAGE_BYTES / (bytes / asked).max(1)).clamp(1, LARGEST_PAGE);
    }
    Ok((found, true))
}

fn size_of(value: &Value) -> usize {
    match value {
        Value::BulkString(bytes) => bytes.len(),
        Value::Array(values) => values.iter().map(size_of).sum(),
        _ => 8,
    }
}
