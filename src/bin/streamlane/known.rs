//! What the server has on record of a topic.

use std::time::Duration;

use streamlane::{Command, Streams};

use crate::end::Result;

/// How many partitions a topic has; nothing where there is no such topic.
pub(crate) fn partitions(streams: &Streams, topic: &str, timeout: Duration) -> Result<Option<u32>> {
    let key = format!("{}m:{{{topic}}}", prefix(streams));
    let ask = Command::new("HGET").key(key).arg("partitions");
    let answer = streams.admin().session()?.call(&ask, timeout)?;
    let n = answer.int().and_then(|n| u32::try_from(n).ok());
    Ok(n.filter(|n| *n > 0))
}

/// What every key begins with.
pub(crate) fn prefix(streams: &Streams) -> &str {
    match &*streams.settings().key_prefix {
        blank if blank.trim().is_empty() => "re:",
        prefix => prefix,
    }
}
