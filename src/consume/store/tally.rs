//! How often lanes of a partition began with the same message: one field of the meta hash.

use std::time::Duration;

use crate::{
    Result,
    net::{Connection, script::by_hash_first},
};

use super::{
    super::{
        deliveries::Tally,
        fenced::{COUNT, Fate},
    },
    PositionStore,
    write::only_fate,
};

impl PositionStore {
    /// What is on record of a partition. Blocks for a round trip.
    pub(in crate::consume) fn tally(
        &self,
        connection: &mut Connection,
        partition: u32,
        timeout: Duration,
    ) -> Result<Option<Tally>> {
        let mut cmd = redis::cmd("HMGET"); // which is allowed where positions are read
        cmd.arg(self.meta_key()).arg(field(partition));
        let found = connection.ask_fields(&cmd, 1, timeout)?.pop().flatten();
        Ok(found.and_then(|text| Tally::parse(&text)))
    }

    /// Puts this on record. Blocks for a round trip, or two when the server has to be told the script.
    pub(in crate::consume) fn put_tally(
        &self,
        connection: &mut Connection,
        partition: u32,
        tally: Tally,
        timeout: Duration,
    ) -> Result<Fate> {
        let (field, value) = (field(partition), tally.to_string());
        if self.lease.is_none() {
            let mut cmd = redis::cmd("HSET");
            cmd.arg(self.meta_key()).arg(field).arg(value);
            return connection.call(&cmd, timeout).map(|_| Fate::Stored);
        }
        let (me, mode) = self.claim();
        let letter: String = by_hash_first(|form| {
            let (name, script) = COUNT.named(form);
            let mut cmd = redis::cmd(name);
            cmd.arg(script).arg(3).arg(self.meta_key());
            cmd.arg(&*self.ownership_key).arg(&*self.expiries_key);
            cmd.arg(me).arg(mode).arg(partition);
            cmd.arg(&*field).arg(&*value);
            connection.ask(&cmd, timeout)
        })?;
        only_fate(letter.as_bytes())
    }
}

fn field(partition: u32) -> String {
    format!("{partition}:deliveries")
}
