//! Where positions are kept: what is read of them, and what is rendered about them.

mod park;
mod tally;
mod write;

use std::{
    fmt::{self, Write as _},
    ops::Range,
    sync::Arc,
    time::Duration,
};

use crate::{
    Result, StreamId,
    net::{Connection, resp},
    ownership::{Claims, Lease, Rivals},
    wire::{InstanceId, Keys, Ordinal, POSITION_MAX, PositionValue, ResetMarker},
};

use super::{extent::Extent, resets::Marker};

/// At most so many partitions are written by one command: a larger one would hold the server up.
pub(crate) const GROUP: usize = 8;

/// The field of the meta hash that says how many partitions of the topic the consumer has known. Those
/// beyond were added later: nothing of them was passed over, whatever a start point says.
pub(crate) const KNOWN: &str = "partitions";

/// The position hashes of one consumer.
#[derive(Clone, Debug)]
pub(crate) struct PositionStore {
    positions_key: Box<[u8]>,
    meta_key: Box<[u8]>,
    ownership_key: Box<[u8]>,
    expiries_key: Box<[u8]>,
    letters_key: Box<[u8]>,
    letters_meta_key: Box<[u8]>,
    instance: InstanceId,
    /// What writes are made under; `None` where partitions are not claimed.
    lease: Option<Arc<Lease>>,
    /// Who is told of others who write the same; `None` where leases keep them out.
    rivals: Option<Arc<Rivals>>,
    flushes: u32,
    text: String,
}

/// A position as it was stored. By default the beginning of a stream of which nothing is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
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

/// What is stored of a consumer.
pub(crate) struct OnRecord {
    /// Of each partition that was asked for.
    pub(crate) positions: Vec<Loaded>,
    /// How many partitions of the topic it has known; `None` before it ever began.
    pub(crate) known: Option<u32>,
}

impl PositionStore {
    pub(crate) fn new(keys: &Keys, topic: &str, consumer: &str, instance: InstanceId) -> Self {
        Self {
            positions_key: keys.positions(topic, consumer).into_bytes().into(),
            meta_key: keys.positions_meta(topic, consumer).into_bytes().into(),
            ownership_key: keys.ownership(topic, consumer).into_bytes().into(),
            expiries_key: keys.expiries(topic, consumer).into_bytes().into(),
            letters_key: keys.dead_letters(topic, consumer).into_bytes().into(),
            letters_meta_key: keys.dead_letters_meta(topic, consumer).into_bytes().into(),
            instance,
            lease: None,
            rivals: None,
            flushes: 0,
            text: String::with_capacity(128),
        }
    }

    /// From now on nothing is written but under these claims, where they decide; else they are told of
    /// others who write the same.
    pub(crate) fn under(mut self, claims: &Claims) -> Self {
        self.lease = claims.lease().cloned();
        self.rivals = claims.rivals().cloned();
        self
    }

    /// What writes are made under; `None` where partitions are not claimed.
    pub(crate) fn lease(&self) -> Option<&Arc<Lease>> {
        self.lease.as_ref()
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.positions_key
    }

    pub(crate) fn letters_key(&self) -> &[u8] {
        &self.letters_key
    }

    pub(crate) fn meta_key(&self) -> &[u8] {
        &self.meta_key
    }

    /// Reads the stored positions of partitions. Blocks for two round trips.
    pub(crate) fn load(
        &self,
        connection: &mut Connection,
        partitions: Range<u32>,
        timeout: Duration,
    ) -> Result<OnRecord> {
        let mut positions = redis::cmd("HMGET");
        positions.arg(&*self.positions_key);
        let mut ordinals = redis::cmd("HMGET");
        ordinals.arg(&*self.meta_key);
        let n = partitions.len();
        for p in partitions {
            positions.arg(p);
            ordinals.arg(format!("{p}:ordinal"));
        }
        ordinals.arg(KNOWN);
        // In this order, for they are written in the other: another instance that begins between the two does
        // not look as if positions had been deleted.
        let mut ordinals = connection.ask_fields(&ordinals, n + 1, timeout)?;
        let positions = connection.ask_fields(&positions, n, timeout)?;
        let known = ordinals.pop().flatten();
        let positions = positions
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
            .collect();
        Ok(OnRecord {
            positions,
            known: known.and_then(|n| str::from_utf8(&n).ok()?.parse().ok()),
        })
    }

    /// Says that the positions of so many partitions are stored.
    pub(crate) fn know(
        &self,
        connection: &mut Connection,
        partitions: u32,
        timeout: Duration,
    ) -> Result<()> {
        let mut cmd = redis::cmd("HSET");
        cmd.arg(&*self.meta_key).arg(KNOWN).arg(partitions);
        connection.call(&cmd, timeout).map(drop)
    }

    /// Renders the command that reads the reset markers of these partitions: a value for each.
    pub(crate) fn render_marker_poll(&mut self, out: &mut Vec<u8>, partitions: &[u32]) {
        resp::command(out, 2 + partitions.len());
        resp::arg(out, b"HMGET");
        resp::arg(out, &self.positions_key);
        for p in partitions {
            self.arg(out, format_args!("{}{p}", ResetMarker::FIELD));
        }
    }

    /// Reads the reset markers of partitions. Blocks for one round trip.
    pub(crate) fn markers(
        &self,
        connection: &mut Connection,
        partitions: Range<u32>,
        timeout: Duration,
    ) -> Result<Vec<Option<Marker>>> {
        let n = partitions.len();
        let mut cmd = redis::cmd("HMGET");
        cmd.arg(&*self.positions_key);
        for p in partitions {
            cmd.arg(format!("{}{p}", ResetMarker::FIELD));
        }
        let values = connection.ask_fields(&cmd, n, timeout)?;
        let parse = |value: Option<Vec<u8>>| Marker::parse(&value?);
        Ok(values.into_iter().map(parse).collect())
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

    /// A position as it is stored, for where a few allocations do not matter.
    pub(super) fn value_of(&self, id: StreamId) -> Vec<u8> {
        let value = PositionValue {
            id,
            writer: self.instance,
        };
        value.encode(&mut [0; POSITION_MAX]).to_vec()
    }

    /// Adds an argument rendered in a reused buffer.
    fn arg(&mut self, out: &mut Vec<u8>, text: fmt::Arguments<'_>) {
        self.text.clear();
        let _ = self.text.write_fmt(text);
        resp::arg(out, self.text.as_bytes());
    }
}

pub(super) use park::Parked;

#[cfg(test)]
mod tests;
