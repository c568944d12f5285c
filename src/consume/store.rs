//! Where positions are kept: the commands that load and store them, rendered without allocation.

use std::{
    fmt::{self, Write as _},
    ops::Range,
    time::Duration,
};

use crate::{
    Error, Result, StreamId,
    clock::{self, RoundTrip},
    error::ServerClass,
    net::{
        Connection, resp,
        script::{Script, by_hash_first},
    },
    position::Snapshot,
    wire::{InstanceId, Keys, ORDINAL_MAX, Ordinal, POSITION_MAX, PositionValue, ResetMarker},
};

use super::{extent::Extent, resets::Marker};

/// At most so many partitions are written by one command: a larger one would hold the server up.
pub(crate) const GROUP: usize = 16;

/// Diagnostics go along with every so manieth flush.
const DIAGNOSTICS_EVERY: u32 = 10;

/// Key: the position hash. Arguments: the marker's field and the value it was found with, the position's
/// field and its new value. Stores the position and deletes the marker, unless another has taken its
/// place; says whether it did.
pub(super) const SETTLE: Script = Script {
    text: "#!lua flags=allow-oom
local found = redis.call('HGET', KEYS[1], ARGV[1])
if found and found ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[3], ARGV[4])
redis.call('HDEL', KEYS[1], ARGV[1])
return 1",
    sha1: "fbd6798ae00d39939a2b5548f4b3298470447937",
    commands: "+eval +evalsha +hget +hset +hdel",
};

/// The field of the meta hash that says how many partitions of the topic the consumer has known. Those
/// beyond were added later: nothing of them was passed over, whatever a start point says.
const KNOWN: &str = "partitions";

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
            instance,
            flushes: 0,
            text: String::with_capacity(128),
        }
    }

    pub(crate) fn instance(&self) -> InstanceId {
        self.instance
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.positions_key
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
        let positions = connection.ask_fields(&positions, n, timeout)?;
        let mut ordinals = connection.ask_fields(&ordinals, n + 1, timeout)?;
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

    /// Ends a reset: stores the position and deletes the marker that it was found by, in one step.
    /// False, and nothing was done, when another marker has taken its place.
    pub(crate) fn settle(
        &self,
        connection: &mut Connection,
        partition: u32,
        marker: &Marker,
        position: StreamId,
        timeout: Duration,
    ) -> Result<bool> {
        let field = format!("{}{partition}", ResetMarker::FIELD);
        let value = PositionValue {
            id: position,
            writer: self.instance,
        };
        let (number, mut buf) = (partition.to_string(), [0; POSITION_MAX]);
        let value = value.encode(&mut buf);
        let args = [field.as_bytes(), &marker.value, number.as_bytes(), value];
        let settled = by_hash_first(|form| {
            let cmd = SETTLE.on_key(form, &self.positions_key, &args);
            connection.ask::<u8>(&cmd, timeout)
        });
        let about = |e: Error| e.during("store the position of a reset").on_key(self.key());
        match settled {
            Ok(done) => Ok(done == 1),
            Err(e) if e.server_class() == Some(ServerClass::NoPermission) => {
                let e =
                    about(SETTLE.saying_what_to_grant(e, &[&String::from_utf8_lossy(self.key())]));
                log::warn!("{e}; the marker is deleted without a look, as peers do");
                let mut store = redis::cmd("HSET");
                store.arg(self.key()).arg(&*number).arg(value);
                let mut delete = redis::cmd("HDEL");
                delete.arg(self.key()).arg(&*field);
                let done = connection.pipeline(&[store, delete], timeout)?;
                done.into_iter()
                    .collect::<Result<Vec<_>>>()
                    .map_err(about)?;
                Ok(true)
            }
            Err(e) => Err(about(e)),
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        net::{Inbox, Target},
        testing::PrivateServer,
    };

    const LONG: Duration = Duration::from_secs(20);

    struct Scene {
        server: PrivateServer,
        connection: Connection,
        store: PositionStore,
    }

    impl Scene {
        fn new() -> Self {
            let server = PrivateServer::start().unwrap();
            let target = Target::parse(&server.url()).unwrap();
            let connection = Connection::dial(&target, "store", None, LONG).unwrap();
            let store = PositionStore::new(&Keys::default(), "t", "c", InstanceId::derive("me"));
            Self {
                server,
                connection,
                store,
            }
        }

        fn set(&self, fields: &[&str]) {
            let cmd = [&["HSET", "re:p:{t}:c"], fields].concat();
            self.server.command(&cmd).unwrap();
        }

        fn get(&self, field: &str) -> String {
            let reply = self.server.command(&["HGET", "re:p:{t}:c", field]);
            reply.unwrap().text()
        }

        fn settle(&mut self, marker: &str, to: u64) -> bool {
            let marker = Marker::parse(marker.as_bytes()).unwrap();
            let to = StreamId::new(to, 0);
            let connection = &mut self.connection;
            self.store.settle(connection, 0, &marker, to, LONG).unwrap()
        }
    }

    #[test]
    fn the_server_knows_the_script_by_its_hash() {
        let scene = Scene::new();
        let known = scene.server.command(&["SCRIPT", "LOAD", SETTLE.text]);
        assert_eq!(known.unwrap().text(), SETTLE.sha1, "{}", SETTLE.text);
    }

    #[test]
    fn a_reset_is_settled_by_its_own_marker_only() {
        let mut scene = Scene::new();
        let position = |id: &str| format!("{id}|{}", InstanceId::derive("me"));
        scene.set(&["0", "9-0", "__reset:0", "5-0|a", "__reset:1", "5-0|a"]);
        assert!(!scene.settle("5-0|b", 5), "another has come");
        assert_eq!(scene.get("0"), "9-0");
        assert!(scene.settle("5-0|a", 5));
        assert_eq!(
            (scene.get("0"), scene.get("__reset:0")),
            (position("5-0"), String::new())
        );
        assert_eq!(scene.get("__reset:1"), "5-0|a", "that of a neighbour");
        assert!(
            scene.settle("5-0|a", 6),
            "one that somebody deleted is over too"
        );
        assert_eq!(scene.get("0"), position("6-0"));
    }

    #[test]
    fn without_the_right_to_scripts_a_reset_is_settled_as_peers_do() {
        let mut scene = Scene::new();
        scene.set(&["__reset:0", "5-0|a"]);
        let no_scripts = ["ACL", "SETUSER", "default", "-@scripting"];
        scene.server.command(&no_scripts).unwrap();
        assert!(scene.settle("5-0|a", 5));
        assert!(scene.get("0").starts_with("5-0|") && scene.get("__reset:0").is_empty());
    }

    #[test]
    fn markers_are_found_for_each_partition_and_unreadable_ones_are_none() {
        let mut scene = Scene::new();
        scene.set(&["0", "1-0|x", "0:updatedUtc", "now", "__reset:0", "5-0"]);
        scene.set(&[
            "__reset:2",
            "not-an-id",
            "__reset:notanumber",
            "6-0",
            "__reset:3",
            "7-0|?",
        ]);
        let targets = |found: Vec<Option<Marker>>| -> Vec<_> {
            let target = |m: Option<Marker>| m.map(|m| m.reset.target.ms());
            found.into_iter().map(target).collect()
        };
        let found = scene
            .store
            .markers(&mut scene.connection, 0..4, LONG)
            .unwrap();
        assert_eq!(targets(found), [Some(5), None, None, Some(7)]);

        let (mut out, mut seen) = (Vec::new(), Vec::new());
        scene.store.render_marker_poll(&mut out, &[3, 1, 0]);
        let each =
            |i, value: &[u8]| seen.push((i, Marker::parse(value).map(|m| m.reset.target.ms())));
        Inbox::default()
            .ask_fields(&mut scene.connection, &out, 3, LONG, each)
            .unwrap();
        assert_eq!(seen, [(0, Some(7)), (2, Some(5))]);
    }
}
