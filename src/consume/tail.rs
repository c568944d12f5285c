//! Where a stream ends, as the server tells it.

use std::time::Duration;

use crate::{Error, Result, StreamId, error::ErrorKind, net::Connection};

/// The id the server gave last in this stream, deleted or not; 0-0 when there is no stream.
pub(super) fn last_id(
    connection: &mut Connection,
    key: &[u8],
    timeout: Duration,
) -> Result<StreamId> {
    let mut cmd = redis::cmd("XINFO");
    cmd.arg("STREAM").arg(key);
    match connection.call(&cmd, timeout) {
        Ok(info) => {
            let last = tail_of(&info).map(|(_, last)| last);
            last.ok_or_else(|| {
                Error::new(
                    ErrorKind::Protocol,
                    "XINFO",
                    "the reply names no last-generated-id",
                )
                .on_key(key)
            })
        }
        Err(e) if e.server_code() == Some("ERR") && e.message().contains("no such key") => {
            Ok(StreamId::MIN)
        }
        Err(e) => Err(e),
    }
}

/// The id of the last entry that is still in this stream; 0-0 when there is none.
pub(crate) fn last_entry(
    connection: &mut Connection,
    key: &[u8],
    timeout: Duration,
) -> Result<StreamId> {
    let mut cmd = redis::cmd("XREVRANGE");
    cmd.arg(key).arg("+").arg("-").arg("COUNT").arg(1);
    let entries: Vec<(Vec<u8>, redis::Value)> = connection.ask(&cmd, timeout)?;
    Ok(entries
        .first()
        .and_then(|(id, _)| StreamId::parse(id))
        .unwrap_or_default())
}

/// The number of entries ever added and the last id, out of XINFO STREAM.
pub(super) fn tail_of(info: &redis::Value) -> Option<(u64, StreamId)> {
    let pairs: Vec<(&redis::Value, &redis::Value)> = match info {
        redis::Value::Array(items) => items.chunks_exact(2).map(|c| (&c[0], &c[1])).collect(),
        redis::Value::Map(pairs) => pairs.iter().map(|(k, v)| (k, v)).collect(),
        _ => return None,
    };
    let text = |v: &redis::Value| match v {
        redis::Value::BulkString(b) => Some(b.clone()),
        redis::Value::SimpleString(s) => Some(s.clone().into_bytes()),
        _ => None,
    };
    let get = |name: &str| {
        pairs
            .iter()
            .find(|(k, _)| text(k).is_some_and(|k| k == name.as_bytes()))
            .map(|(_, v)| *v)
    };
    let redis::Value::Int(added) = get("entries-added")? else {
        return None;
    };
    let last = text(get("last-generated-id")?)?;
    Some((u64::try_from(*added).ok()?, StreamId::parse(&last)?))
}
