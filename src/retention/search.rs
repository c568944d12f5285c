//! Services in other languages keep positions and write no register: they are found by their keys.

use std::time::{Duration, Instant};

use crate::{
    Result, clock,
    net::Connection,
    wire::{Keys, position_owner},
};

/// How many keys one step looks at.
const STEP: u32 = 500;
/// How much longer than a step the pause after it is, so that the server has time for others.
const SHARE: u32 = 4;
/// The shortest pause.
const PAUSE: Duration = Duration::from_millis(2);

/// A walk through the keys of a server, step by step, for the positions of consumers.
#[derive(Debug)]
pub(crate) struct Search {
    cursor: Vec<u8>,
    pattern: String,
    /// When the next step may be.
    pub(crate) next: Instant,
    pub(crate) done: bool,
}

impl Search {
    /// For the consumers of one topic, or of all.
    pub(crate) fn new(keys: &Keys, topic: Option<&str>) -> Self {
        Self {
            cursor: b"0".to_vec(),
            pattern: keys.positions_pattern(topic),
            next: clock::now(),
            done: false,
        }
    }

    /// Takes one step: topics and consumers that were found, some of them again. Blocks for a round trip, and
    /// says in `next` when there may be another.
    pub(crate) fn step(
        &mut self,
        connection: &mut Connection,
        keys: &Keys,
        timeout: Duration,
    ) -> Result<Vec<(String, String)>> {
        let began = clock::now();
        let mut cmd = redis::cmd("SCAN");
        cmd.arg(&self.cursor).arg("MATCH").arg(&self.pattern);
        cmd.arg("COUNT").arg(STEP);
        let (cursor, found): (Vec<u8>, Vec<Vec<u8>>) = connection.ask(&cmd, timeout)?;
        self.done = cursor == b"0";
        self.cursor = cursor;
        let now = clock::now();
        self.next = now + (now.duration_since(began) * SHARE).max(PAUSE);
        let named = found.iter().filter_map(|key| {
            let (topic, consumer) = position_owner(keys, str::from_utf8(key).ok()?)?;
            Some((topic.to_owned(), consumer.to_owned()))
        });
        Ok(named.collect())
    }
}
