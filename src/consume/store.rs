//! Where positions are kept: the commands that load and store them, rendered without allocation.

use std::{
    fmt::{self, Write as _},
    time::Duration,
};

use crate::{
    Result, StreamId,
    clock::{self, RoundTrip},
    net::{Connection, resp},
    position::Snapshot,
    wire::{InstanceId, Keys, ORDINAL_MAX, Ordinal, POSITION_MAX, PositionValue},
};

/// At most so many partitions are written by one command: a larger one would hold the server up.
pub(crate) const GROUP: usize = 16;

/// Diagnostics go along with every so manieth flush.
const DIAGNOSTICS_EVERY: u32 = 10;

/// The position hashes of one consumer.
#[derive(Clone, Debug)]
pub(crate) struct PositionStore {
    positions_key: Box<[u8]>,
    meta_key: Box<[u8]>,
    instance: InstanceId,
    flushes: u32,
    text: String,
}

/// A position as it was stored. By default the beginning of a stream of which nothing is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Stored {
    pub(crate) id: StreamId,
    pub(crate) ordinal: Option<u64>,
}

impl PositionStore {
    pub(crate) fn new(keys: &Keys, topic: &str, consumer: &str, instance: InstanceId) -> Self {
        Self {
            positions_key: keys.positions(topic, consumer).into_bytes().into(),
            meta_key: keys.positions_meta(topic, consumer).into_bytes().into(),
            instance,
            flushes: 0,
            text: String::with_capacity(64),
        }
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.positions_key
    }

    pub(crate) fn meta_key(&self) -> &[u8] {
        &self.meta_key
    }

    /// Reads the stored positions of partitions `0..partitions`. Blocks for one round trip.
    pub(crate) fn load(
        &self,
        connection: &mut Connection,
        partitions: u32,
        timeout: Duration,
    ) -> Result<Vec<Option<Stored>>> {
        let mut positions = redis::cmd("HMGET");
        positions.arg(&*self.positions_key);
        let mut ordinals = redis::cmd("HMGET");
        ordinals.arg(&*self.meta_key);
        for p in 0..partitions {
            positions.arg(p);
            ordinals.arg(format!("{p}:ordinal"));
        }
        let n = partitions as usize;
        let positions = connection.ask_fields(&positions, n, timeout)?;
        let ordinals = connection.ask_fields(&ordinals, n, timeout)?;
        Ok(positions
            .into_iter()
            .zip(ordinals)
            .map(|(value, ordinal)| {
                let id = PositionValue::parse(&value?)?.id;
                let ordinal = ordinal.as_deref().and_then(Ordinal::parse);
                // An ordinal belongs to one id; a peer that moved the position did not move it along.
                let ordinal = ordinal.filter(|o| o.id == id).map(|o| o.entries);
                Some(Stored { id, ordinal })
            })
            .collect())
    }

    /// Renders the commands that store these positions. Returns how many replies to expect.
    pub(crate) fn render(&mut self, out: &mut Vec<u8>, positions: &[(u32, Snapshot)]) -> usize {
        let diagnostics = self.flushes.is_multiple_of(DIAGNOSTICS_EVERY);
        self.flushes = self.flushes.wrapping_add(1);
        resp::command(out, 2 + 2 * positions.len());
        resp::arg(out, b"HSET");
        resp::arg(out, &self.positions_key);
        for (p, s) in positions {
            resp::arg_number(out, u64::from(*p));
            resp::arg(
                out,
                PositionValue {
                    id: s.id,
                    writer: self.instance,
                }
                .encode(&mut [0; POSITION_MAX]),
            );
        }
        let ordinals = positions
            .iter()
            .filter(|(_, s)| s.ordinal.is_some())
            .count();
        let fields = ordinals + if diagnostics { 2 * positions.len() } else { 0 };
        if fields == 0 {
            return 1;
        }
        resp::command(out, 2 + 2 * fields);
        resp::arg(out, b"HSET");
        resp::arg(out, &self.meta_key);
        for (p, s) in positions {
            if let Some(n) = s.ordinal {
                self.arg(out, format_args!("{p}:ordinal"));
                let ordinal = Ordinal {
                    id: s.id,
                    entries: n,
                };
                resp::arg(out, ordinal.encode(&mut [0; ORDINAL_MAX]));
            }
            if diagnostics {
                self.arg(out, format_args!("{p}:updatedUtc"));
                self.arg(out, format_args!("{}", RoundTrip(clock::wall())));
                self.arg(out, format_args!("{p}:instanceId"));
                resp::arg(out, &self.instance.encode());
            }
        }
        2
    }

    /// Adds an argument rendered in a reused buffer.
    fn arg(&mut self, out: &mut Vec<u8>, text: fmt::Arguments<'_>) {
        self.text.clear();
        let _ = self.text.write_fmt(text);
        resp::arg(out, self.text.as_bytes());
    }
}
