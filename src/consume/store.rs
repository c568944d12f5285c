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

use super::extent::Extent;

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

/// A position as it was stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stored {
    pub(crate) id: StreamId,
    pub(crate) ordinal: Option<u64>,
}

/// What the hashes say of a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Loaded {
    At(Stored),
    /// There was a position once, and it is gone or cannot be read.
    Gone,
    /// Nothing.
    Never,
}

impl PositionStore {
    pub(crate) fn new(keys: &Keys, topic: &str, consumer: &str, instance: InstanceId) -> Self {
        Self {
            positions_key: keys.positions(topic, consumer).into_bytes().into(),
            meta_key: keys.positions_meta(topic, consumer).into_bytes().into(),
            instance,
            flushes: 0,
            text: String::with_capacity(128),
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
    ) -> Result<Vec<Loaded>> {
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
                let counted = ordinal.as_deref().and_then(Ordinal::parse);
                match value.as_deref().and_then(PositionValue::parse) {
                    Some(PositionValue { id, .. }) => {
                        // It belongs to one id; a peer that moved the position did not move it along.
                        let ordinal = counted.filter(|o| o.id == id).map(|o| o.entries);
                        Loaded::At(Stored { id, ordinal })
                    }
                    None if counted.is_some() => Loaded::Gone,
                    None => Loaded::Never,
                }
            })
            .collect())
    }

    /// Renders the question whether a partition's position is stored: 1 or 0.
    pub(crate) fn ask_whether_stored(&self, out: &mut Vec<u8>, partition: u32) {
        resp::command(out, 3);
        resp::arg(out, b"HEXISTS");
        resp::arg(out, &self.positions_key);
        resp::arg_number(out, u64::from(partition));
    }

    /// Renders the question what a partition's stream was like when that was last written down.
    pub(crate) fn ask_for_stream(&mut self, out: &mut Vec<u8>, partition: u32) {
        resp::command(out, 3);
        resp::arg(out, b"HGET");
        self.stream_field(out, partition);
    }

    /// Renders the command that writes down what a partition's stream is like.
    pub(crate) fn note_stream(&mut self, out: &mut Vec<u8>, partition: u32, now: &Extent) {
        resp::command(out, 4);
        resp::arg(out, b"HSET");
        self.stream_field(out, partition);
        self.arg(out, format_args!("{now}"));
    }

    fn stream_field(&mut self, out: &mut Vec<u8>, partition: u32) {
        resp::arg(out, &self.meta_key);
        self.arg(out, format_args!("{partition}:stream"));
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
