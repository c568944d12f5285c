//! How positions are written: under a claim where partitions are claimed, else as peers do. Rendered
//! without allocation.

use std::time::Duration;

use crate::{
    Error, Result, StreamId,
    clock::{self, RoundTrip},
    error::{ErrorKind, ServerClass},
    net::{
        Connection, Inbox, resp,
        script::{Form, by_hash_first},
    },
    position::Snapshot,
    wire::{ORDINAL_MAX, Ordinal, POSITION_MAX, PositionValue, ResetMarker},
};

use super::{
    super::{
        fenced::{Fate, MOVE, STORE},
        resets::Marker,
    },
    PositionStore,
};

/// Diagnostics go along with every so manieth flush.
const DIAGNOSTICS_EVERY: u32 = 10;

impl PositionStore {
    /// Moves a position to wherever it is to be, be it back, and deletes the marker that asks for it.
    /// Blocks for one round trip, or two.
    pub(in crate::consume) fn relocate(
        &self,
        connection: &mut Connection,
        partition: u32,
        marker: Option<&Marker>,
        position: StreamId,
        timeout: Duration,
    ) -> Result<Fate> {
        let value = PositionValue {
            id: position,
            writer: self.instance,
        };
        let (number, mut buf) = (partition.to_string(), [0; POSITION_MAX]);
        let value = value.encode(&mut buf);
        let (me, mode) = self.claim();
        let marker = marker.map_or(&b""[..], |m| &m.value);
        let moved = by_hash_first(|form| {
            let (name, script) = MOVE.named(form);
            let mut cmd = redis::cmd(name);
            cmd.arg(script).arg(3).arg(self.key());
            cmd.arg(&*self.ownership_key).arg(&*self.expiries_key);
            cmd.arg(me).arg(mode).arg(&*number).arg(value).arg(marker);
            connection.ask::<String>(&cmd, timeout)
        });
        let about = |e: Error| e.during("move the position").on_key(self.key());
        match moved {
            Ok(letter) => only_fate(letter.as_bytes()).map_err(about),
            Err(e)
                if self.lease.is_none() && e.server_class() == Some(ServerClass::NoPermission) =>
            {
                let e =
                    about(MOVE.saying_what_to_grant(e, &[&String::from_utf8_lossy(self.key())]));
                log::warn!("{e}; done without a look, as peers do");
                let mut store = redis::cmd("HSET");
                store.arg(self.key()).arg(&*number).arg(value);
                let mut delete = redis::cmd("HDEL");
                delete.arg(self.key());
                delete.arg(format!("{}{partition}", ResetMarker::FIELD));
                let done = connection.pipeline(&[store, delete], timeout)?;
                done.into_iter()
                    .collect::<Result<Vec<_>>>()
                    .map_err(about)?;
                Ok(Fate::Stored)
            }
            Err(e) => Err(about(e)),
        }
    }

    /// Stores positions. `each` is told what became of which. Blocks for one round trip, or two when the
    /// server has to be told a script; `commands` and `inbox` are room to work in.
    ///
    /// # Errors
    ///
    /// The server's refusal. After any other error the connection must be given up.
    pub(in crate::consume) fn store(
        &mut self,
        connection: &mut Connection,
        (commands, inbox): (&mut Vec<u8>, &mut Inbox),
        positions: &[(u32, Snapshot)],
        timeout: Duration,
        mut each: impl FnMut(usize, Fate),
    ) -> Result<()> {
        by_hash_first(|form| {
            commands.clear();
            let n = self.render_as(form, commands, positions);
            let mut told = Ok(());
            inbox.exchange(connection, commands, n, timeout, |i, reply| {
                if i == 0 {
                    told = self.fates(reply, positions.len(), &mut each);
                }
                if let Some((p, _)) = positions.get(i) {
                    self.heed(*p, reply);
                }
            })?;
            told
        })
    }

    /// Renders the commands that store these positions, for a server that knows the script if one is
    /// needed. Returns how many replies to expect; [`fates`](Self::fates) reads the first, and
    /// [`heed`](Self::heed) that in the place of each.
    pub(in crate::consume) fn render(
        &mut self,
        out: &mut Vec<u8>,
        positions: &[(u32, Snapshot)],
    ) -> usize {
        self.render_as(Form::Known, out, positions)
    }

    /// What became of `n` positions, by the first reply to what was rendered.
    pub(in crate::consume) fn fates(
        &self,
        reply: &[u8],
        n: usize,
        mut each: impl FnMut(usize, Fate),
    ) -> Result<()> {
        if self.lease.is_none() {
            (0..n).for_each(|i| each(i, Fate::Stored));
            return Ok(());
        }
        if reply.len() != n {
            return Err(not_fates());
        }
        for (i, letter) in reply.iter().enumerate() {
            each(i, Fate::of(*letter).ok_or_else(not_fates)?);
        }
        Ok(())
    }

    /// Looks whether another has written a partition's position, by the reply in its place.
    pub(in crate::consume) fn heed(&self, partition: u32, reply: &[u8]) {
        if let Some(rivals) = &self.rivals {
            rivals.saw(partition, reply);
        }
    }

    fn render_as(&mut self, form: Form, out: &mut Vec<u8>, positions: &[(u32, Snapshot)]) -> usize {
        let diagnostics = self.flushes.is_multiple_of(DIAGNOSTICS_EVERY);
        self.flushes = self.flushes.wrapping_add(1);
        let mut replies = 1;
        if self.rivals.is_some() {
            // What stands there before it is written over.
            replies += positions.len();
            for (p, _) in positions {
                resp::command(out, 3);
                resp::arg(out, b"HGET");
                resp::arg(out, &self.positions_key);
                resp::arg_number(out, u64::from(*p));
            }
        }
        if self.lease.is_some() {
            self.render_script(form, out, positions);
        } else {
            resp::command(out, 2 + 2 * positions.len());
            resp::arg(out, b"HSET");
            resp::arg(out, &self.positions_key);
            for (p, s) in positions {
                resp::arg_number(out, u64::from(*p));
                self.value(out, *s);
            }
        }
        let ordinals = match self.lease {
            None => positions
                .iter()
                .filter(|(_, s)| s.ordinal.is_some())
                .count(),
            Some(_) => 0, // they went with the positions
        };
        let fields = ordinals + if diagnostics { 2 * positions.len() } else { 0 };
        if fields == 0 {
            return replies;
        }
        replies += 1;
        resp::command(out, 2 + 2 * fields);
        resp::arg(out, b"HSET");
        resp::arg(out, &self.meta_key);
        for (p, s) in positions {
            if ordinals > 0 && s.ordinal.is_some() {
                self.arg(out, format_args!("{p}:ordinal"));
                ordinal(out, *s);
            }
            if diagnostics {
                self.arg(out, format_args!("{p}:updatedUtc"));
                self.arg(out, format_args!("{}", RoundTrip(clock::wall())));
                self.arg(out, format_args!("{p}:instanceId"));
                resp::arg(out, &self.instance.encode());
            }
        }
        replies
    }

    fn render_script(&self, form: Form, out: &mut Vec<u8>, positions: &[(u32, Snapshot)]) {
        STORE.begin(out, form, 4, 2 + 3 * positions.len());
        resp::arg(out, &self.positions_key);
        resp::arg(out, &self.meta_key);
        resp::arg(out, &self.ownership_key);
        resp::arg(out, &self.expiries_key);
        let (me, mode) = self.claim();
        resp::arg(out, me.as_bytes());
        resp::arg(out, mode.as_bytes());
        for (p, s) in positions {
            resp::arg_number(out, u64::from(*p));
            self.value(out, *s);
            ordinal(out, *s);
        }
    }

    fn value(&self, out: &mut Vec<u8>, position: Snapshot) {
        let value = PositionValue {
            id: position.id,
            writer: self.instance,
        };
        resp::arg(out, value.encode(&mut [0; POSITION_MAX]));
    }

    /// Our claim, or nothing where there are none, and how claims end on this server.
    pub(super) fn claim(&self) -> (&str, &'static str) {
        match &self.lease {
            Some(lease) if lease.by_field() => (lease.claimant().as_str(), "f"),
            Some(lease) => (lease.claimant().as_str(), "s"),
            None => ("", "s"),
        }
    }
}

/// Adds a position's ordinal, or nothing where none is known.
pub(super) fn ordinal(out: &mut Vec<u8>, position: Snapshot) {
    match position.ordinal {
        Some(entries) => {
            let id = position.id;
            resp::arg(out, Ordinal { id, entries }.encode(&mut [0; ORDINAL_MAX]));
        }
        None => resp::arg(out, b""),
    }
}

/// The fate of the only position that was asked about.
pub(super) fn only_fate(reply: &[u8]) -> Result<Fate> {
    match reply {
        [letter] => Fate::of(*letter).ok_or_else(not_fates),
        _ => Err(not_fates()),
    }
}

pub(super) fn not_fates() -> Error {
    let what = "the answer is none of the script's";
    Error::new(ErrorKind::Protocol, "store positions", what)
}
