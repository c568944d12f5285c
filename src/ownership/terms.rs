//! What the threads that keep claims have in common: what they are told, and how they reach the claims.

use std::{sync::Arc, time::Duration};

use crate::{
    Error, Instances, Result,
    error::ServerClass,
    net::{Connection, Interrupt, Target},
    wire::{Claimant, PRESENCE},
};

use super::map::{Map, Ownership};

/// What whoever keeps claims is told once.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) topic: Arc<str>,
    pub(crate) consumer: Arc<str>,
    pub(crate) target: Arc<Target>,
    pub(crate) client_name: String,
    pub(crate) connect_timeout: Duration,
    /// The hash of claims, and the set of expiries beside it.
    pub(crate) hash: String,
    pub(crate) set: String,
    pub(crate) ttl: Duration,
    pub(crate) renew: Duration,
    /// The most partitions this instance takes; this and what follows where they are shared out anew all the
    /// time.
    pub(crate) most: Option<u32>,
    /// It takes those that leave this remainder when divided.
    pub(crate) modulo: u32,
    pub(crate) remainder: u32,
    /// How long the lanes may take when all is over.
    pub(crate) shutdown_timeout: Duration,
}

impl Terms {
    /// How long one question may take at most.
    pub(super) fn timeout(&self) -> Duration {
        self.connect_timeout.min(self.ttl / 3)
    }

    /// A map in which nothing is drawn yet.
    pub(super) fn unseen(&self, mode: Instances, me: &Claimant) -> Map {
        let (topic, consumer) = (&self.topic, &self.consumer);
        Map::of(Ownership::unseen(
            topic,
            consumer,
            mode,
            Some(me),
            self.renew,
        ))
    }

    /// Makes a connection, and finds out whether the server's hash fields expire by themselves.
    pub(super) fn dial(
        &self,
        stop: &Arc<Interrupt>,
        timeout: Duration,
    ) -> Result<(Connection, bool)> {
        let mut connection =
            Connection::dial(&self.target, &self.client_name, Some(stop), timeout)?;
        let mut probe = redis::cmd("HPTTL");
        probe.arg(&self.hash).arg("FIELDS").arg(1).arg(PRESENCE);
        let by_field = match connection.call(&probe, timeout) {
            Ok(_) => true,
            Err(e) if e.server_class() == Some(ServerClass::UnknownCommand) => false,
            // what may not be asked may not be done either, and the next step says so
            Err(e) if e.server_class() == Some(ServerClass::NoPermission) => true,
            Err(e) => return Err(self.about(e)),
        };
        Ok((connection, by_field))
    }

    /// The server's clock, in ms. Blocks for one round trip.
    pub(super) fn time(&self, connection: &mut Connection, timeout: Duration) -> Result<u64> {
        let time: Result<(u64, u64)> = connection.ask(&redis::cmd("TIME"), timeout);
        let (seconds, micros) = time.map_err(|e| self.about(e))?;
        Ok(seconds * 1000 + micros / 1000)
    }

    pub(super) fn about(&self, e: Error) -> Error {
        e.on_key(&self.hash).at(self.target.endpoint())
    }
}
