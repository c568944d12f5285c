//! How much of a stream lies between two places.

use redis::Value;

use crate::{
    Error, Result, StreamId,
    consume::Extent,
    error::ErrorKind,
    net::{Connection, Deadline},
};

/// The bytes of entries that one page aims at; what they hold is not wanted, but cannot be left out.
const PAGE_BYTES: usize = 1 << 20;
const FIRST_PAGE: usize = 16;
const LARGEST_PAGE: usize = 1000;

/// How many entries lie after `after` and up to `upto`, and whether these are all: counting ends at `cap`
/// of them or at `until`. Blocks for a round trip for every 1000 of them, or more when they are large.
pub(super) fn count(
    connection: &mut Connection,
    key: &str,
    (after, upto): (StreamId, StreamId),
    stream: &Extent,
    cap: u64,
    [until, by]: [Deadline; 2],
) -> Result<(u64, bool)> {
    let Some((oldest, newest)) = stream.first.zip(stream.newest) else {
        return Ok((0, true));
    };
    if after < oldest && upto >= newest {
        return Ok((stream.length(), true));
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
