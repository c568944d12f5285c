//! The list of all topics, in which whoever uses one writes it down, so that nobody has to look through all keys
//! of a server to find them.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::{
    Result,
    error::ServerClass,
    net::{Connection, Deadline},
    wire::Keys,
};

/// The list, as one process sees it.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    key: String,
    /// Whether it was told that the list may not be written.
    told: AtomicBool,
}

impl Registry {
    pub(crate) fn new(keys: &Keys) -> Self {
        Self {
            key: keys.topics(),
            told: AtomicBool::new(false),
        }
    }

    /// Writes a topic down. Returns false where the server refuses that for now. Blocks for a round trip.
    ///
    /// # Errors
    ///
    /// The connection is of no use any more. What the server refuses is no error: nothing but finding the topic
    /// depends on it.
    pub(super) fn list(&self, c: &mut Connection, topic: &str, by: Deadline) -> Result<bool> {
        let mut cmd = redis::cmd("ZADD");
        cmd.arg(&self.key).arg(0).arg(topic);
        let e = match c.call(&cmd, by.left()) {
            Ok(_) => return Ok(true),
            Err(e) if !e.keeps_connection() => return Err(e.during("list a topic")),
            Err(e) => e,
        };
        let for_good = e.server_class() == Some(ServerClass::NoPermission)
            || e.server_code() == Some("WRONGTYPE");
        if !for_good {
            log::debug!("topic {topic}: not written down among the topics for now: {e}");
        } else if !self.told.swap(true, Relaxed) {
            let key = &self.key;
            log::warn!(
                "topic {topic} is not written down among the topics, nor are others that this process uses: \
                 operators find them by Admin::adopt only. ACL SETUSER <user> ~{key} +zadd grants it: {e}"
            );
        }
        Ok(for_good)
    }
}
