//! Trimming a stream in steps none of which holds the server up.
//!
//! A server keeps the entries of a stream in nodes of up to 100. An approximate trim drops whole nodes, which is
//! cheap and bounded; an exact one then rewrites the one node that is left to be cut.

use std::time::Duration;

use redis::{Cmd, Value};

use crate::{Result, StreamId, net::Connection};

use super::birth::is_gone;

/// The most entries of one step.
const STEP: u32 = 1000;
/// The most entries that are looked at together where they are deleted one by one.
const FEW: usize = 16;

/// What is to be left of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Leave {
    /// What has this id or a later one.
    From(StreamId),
    /// So many, the newest.
    Newest(u64),
}

/// How a stream is trimmed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    /// To the entry; else up to a node of entries may stay too many.
    pub(crate) exact: bool,
    /// How long one step may take.
    pub(crate) timeout: Duration,
}

impl Leave {
    fn command(self, stream: &[u8], token: &str) -> Cmd {
        let mut cmd = redis::cmd("XTRIM");
        cmd.arg(stream);
        match self {
            Self::From(id) => cmd.arg("MINID").arg(token).arg(id.to_string()),
            Self::Newest(n) => cmd.arg("MAXLEN").arg(token).arg(n),
        };
        cmd
    }
}

/// Trims a stream, step by step for as long as `goes_on` says so, which is asked between steps. Returns how many
/// entries were deleted; none where there is no stream. References of groups to what is deleted stay.
///
/// No step deletes much more than 1000 entries, unless the server keeps more of them in one node. After an error
/// some may have been deleted.
pub(crate) fn trim(
    connection: &mut Connection,
    stream: &[u8],
    leave: Leave,
    how: How,
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<u64> {
    if leave == Leave::From(StreamId::MIN) {
        return Ok(0);
    }
    let mut all = 0;
    let mut bounded = leave.command(stream, "~");
    bounded.arg("LIMIT").arg(STEP);
    // Where a node has more entries than a step may delete, only the server's own bound gets rid of it.
    for cmd in [bounded, leave.command(stream, "~")] {
        loop {
            let done = deleted(connection, &cmd, how.timeout)?;
            all += done;
            if done == 0 {
                break;
            }
            if !goes_on() {
                return Ok(all);
            }
        }
    }
    if !how.exact {
        return Ok(all);
    }
    if let Leave::From(id) = leave
        && has_holes(connection, stream, id, how.timeout)?
    {
        return Ok(all + one_by_one(connection, stream, id, how.timeout, goes_on)?);
    }
    let exact = leave.command(stream, "=");
    Ok(all + deleted(connection, &exact, how.timeout)?)
}

/// Deletes the oldest entries: so many at most, and none from `id` on. Otherwise as [`trim`], exact.
pub(crate) fn trim_oldest(
    connection: &mut Connection,
    stream: &[u8],
    (id, most): (StreamId, u64),
    timeout: Duration,
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<u64> {
    let mut left = most;
    while left > 0 {
        let mut cmd = Leave::From(id).command(stream, "~");
        cmd.arg("LIMIT").arg(left.min(STEP.into()));
        let done = deleted(connection, &cmd, timeout)?;
        left = left.saturating_sub(done);
        if done == 0 || !goes_on() {
            break;
        }
    }
    // What is left is part of a node.
    while left > 0 && goes_on() {
        let few = left.min(FEW as u64) as usize;
        let done = delete_few(connection, stream, id, few, timeout)?;
        left = left.saturating_sub(done);
        if done == 0 {
            break;
        }
    }
    Ok(most - left)
}

/// Whether entries from `id` on were deleted one by one. A node that ends with such, and whose other entries an
/// exact trim then deletes, is left behind empty by some servers, which refuse to load what they have saved of it.
pub(super) fn has_holes(
    connection: &mut Connection,
    stream: &[u8],
    id: StreamId,
    timeout: Duration,
) -> Result<bool> {
    let mut cmd = redis::cmd("XINFO");
    cmd.arg("STREAM").arg(stream);
    let facts = match connection.call(&cmd, timeout) {
        Err(e) if is_gone(&e) => return Ok(false),
        facts => facts?,
    };
    let Value::Array(facts) = facts else {
        return Ok(true); // who does not tell may have some
    };
    let found = facts.chunks_exact(2).find_map(|pair| match pair {
        [Value::BulkString(name), Value::BulkString(last)] if name == b"max-deleted-entry-id" => {
            StreamId::parse(last)
        }
        _ => None,
    });
    Ok(found.is_none_or(|last| last >= id))
}

/// Deletes the few entries before `id` that whole nodes have left.
fn one_by_one(
    connection: &mut Connection,
    stream: &[u8],
    id: StreamId,
    timeout: Duration,
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<u64> {
    let mut all = 0;
    loop {
        let done = delete_few(connection, stream, id, FEW, timeout)?;
        all += done;
        if done == 0 || !goes_on() {
            return Ok(all);
        }
    }
}

/// Deletes the oldest entries before `id`, up to so many, each by its id.
fn delete_few(
    connection: &mut Connection,
    stream: &[u8],
    id: StreamId,
    few: usize,
    timeout: Duration,
) -> Result<u64> {
    let mut cmd = redis::cmd("XRANGE");
    cmd.arg(stream).arg("-").arg(id.before().to_string());
    cmd.arg("COUNT").arg(few);
    let entries: Vec<(Vec<u8>, Value)> = connection.ask(&cmd, timeout)?;
    if entries.is_empty() {
        return Ok(0);
    }
    let mut cmd = redis::cmd("XDEL");
    cmd.arg(stream);
    for (id, _) in &entries {
        cmd.arg(id);
    }
    deleted(connection, &cmd, timeout)
}

fn deleted(connection: &mut Connection, cmd: &Cmd, timeout: Duration) -> Result<u64> {
    let n: i64 = connection.ask(cmd, timeout)?;
    Ok(n.unsigned_abs())
}

#[cfg(all(test, not(loom)))]
mod tests;
