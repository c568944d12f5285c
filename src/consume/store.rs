//! Where positions are kept: the commands that load and store them, rendered without allocation.

use std::{
    fmt::{self, Write as _},
    ops::Range,
    sync::Arc,
    time::Duration,
};

use crate::{
    Error, Result, StreamId,
    clock::{self, RoundTrip},
    error::{ErrorKind, ServerClass},
    net::{
        Connection, Inbox, resp,
        script::{Form, by_hash_first},
    },
    ownership::Lease,
    position::Snapshot,
    wire::{InstanceId, Keys, ORDINAL_MAX, Ordinal, POSITION_MAX, PositionValue, ResetMarker},
};

use super::{
    extent::Extent,
    fenced::{Fate, MOVE, STORE},
    resets::Marker,
};

/// At most so many partitions are written by one command: a larger one would hold the server up.
pub(crate) const GROUP: usize = 16;

/// Diagnostics go along with every so manieth flush.
const DIAGNOSTICS_EVERY: u32 = 10;

/// The field of the meta hash that says how many partitions of the topic the consumer has known. Those
/// beyond were added later: nothing of them was passed over, whatever a start point says.
const KNOWN: &str = "partitions";

/// The position hashes of one consumer.
#[derive(Clone, Debug)]
pub(crate) struct PositionStore {
    positions_key: Box<[u8]>,
    meta_key: Box<[u8]>,
    ownership_key: Box<[u8]>,
    expiries_key: Box<[u8]>,
    instance: InstanceId,
    /// What writes are made under; `None` where partitions are not claimed.
    lease: Option<Arc<Lease>>,
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
            instance,
            lease: None,
            flushes: 0,
            text: String::with_capacity(128),
        }
    }

    /// From now on nothing is written but under the claims of this lease.
    pub(crate) fn under(mut self, lease: &Arc<Lease>) -> Self {
        self.lease = Some(Arc::clone(lease));
        self
    }

    /// What writes are made under; `None` where partitions are not claimed.
    pub(crate) fn lease(&self) -> Option<&Arc<Lease>> {
        self.lease.as_ref()
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

    /// Moves a position to wherever it is to be, be it back, and deletes the marker that asks for it.
    /// Blocks for one round trip, or two.
    pub(super) fn relocate(
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

    /// Stores positions. `each` is told what became of which. Blocks for one round trip, or two when the
    /// server has to be told a script; `commands` and `inbox` are room to work in.
    ///
    /// # Errors
    ///
    /// The server's refusal. After any other error the connection must be given up.
    pub(super) fn store(
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
            })?;
            told
        })
    }

    /// Renders the commands that store these positions, for a server that knows the script if one is
    /// needed. Returns how many replies to expect; [`fates`](Self::fates) reads the first.
    pub(super) fn render(&mut self, out: &mut Vec<u8>, positions: &[(u32, Snapshot)]) -> usize {
        self.render_as(Form::Known, out, positions)
    }

    /// What became of `n` positions, by the first reply to what was rendered.
    pub(super) fn fates(
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

    fn render_as(&mut self, form: Form, out: &mut Vec<u8>, positions: &[(u32, Snapshot)]) -> usize {
        let diagnostics = self.flushes.is_multiple_of(DIAGNOSTICS_EVERY);
        self.flushes = self.flushes.wrapping_add(1);
        let mut replies = 1;
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

    /// A position as it is stored, for where a few allocations do not matter.
    pub(super) fn value_of(&self, id: StreamId) -> Vec<u8> {
        let value = PositionValue {
            id,
            writer: self.instance,
        };
        value.encode(&mut [0; POSITION_MAX]).to_vec()
    }

    /// Our claim, or nothing where there are none, and how claims end on this server.
    fn claim(&self) -> (&str, &'static str) {
        match &self.lease {
            Some(lease) if lease.by_field() => (lease.claimant().as_str(), "f"),
            Some(lease) => (lease.claimant().as_str(), "s"),
            None => ("", "s"),
        }
    }

    /// Adds an argument rendered in a reused buffer.
    fn arg(&mut self, out: &mut Vec<u8>, text: fmt::Arguments<'_>) {
        self.text.clear();
        let _ = self.text.write_fmt(text);
        resp::arg(out, self.text.as_bytes());
    }
}

/// Adds a position's ordinal, or nothing where none is known.
fn ordinal(out: &mut Vec<u8>, position: Snapshot) {
    match position.ordinal {
        Some(entries) => {
            let id = position.id;
            resp::arg(out, Ordinal { id, entries }.encode(&mut [0; ORDINAL_MAX]));
        }
        None => resp::arg(out, b""),
    }
}

/// The fate of the only position that was asked about.
fn only_fate(reply: &[u8]) -> Result<Fate> {
    match reply {
        [letter] => Fate::of(*letter).ok_or_else(not_fates),
        _ => Err(not_fates()),
    }
}

fn not_fates() -> Error {
    let what = "the answer is none of the script's";
    Error::new(ErrorKind::Protocol, "store positions", what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{net::Target, ownership::Terms, testing::PrivateServer, wire::Claimant};

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
            let fate = self
                .store
                .relocate(connection, 0, Some(&marker), to, LONG)
                .unwrap();
            fate == Fate::Stored
        }
    }

    /// A lease whose claims the test writes itself, on a server whose hash fields do not expire.
    fn lease(server: &PrivateServer) -> Arc<Lease> {
        let keys = Keys::default();
        let me = InstanceId::derive("me");
        let terms = Terms {
            topic: "t".into(),
            consumer: "c".into(),
            target: Arc::new(Target::parse(&server.url()).unwrap()),
            client_name: "leases".into(),
            connect_timeout: LONG,
            hash: keys.ownership("t", "c"),
            set: keys.expiries("t", "c"),
            ttl: LONG,
            renew: LONG,
            most: None,
            modulo: 1,
            remainder: 0,
            shutdown_timeout: LONG,
        };
        Arc::new(Lease::new(terms, Claimant::new(me, "me")))
    }

    fn at(ms: u64) -> Snapshot {
        Snapshot {
            id: StreamId::new(ms, 0),
            ordinal: Some(ms),
            version: 2,
        }
    }

    #[test]
    fn the_server_knows_each_script_by_its_hash() {
        let scene = Scene::new();
        for script in [&STORE, &MOVE] {
            let known = scene.server.command(&["SCRIPT", "LOAD", script.text]);
            assert_eq!(known.unwrap().text(), script.sha1, "{}", script.text);
        }
    }

    #[test]
    fn under_a_claim_a_position_is_stored_if_nothing_speaks_against_it() {
        let mut scene = Scene::new();
        let lease = lease(&scene.server);
        scene.store = scene.store.clone().under(&lease);
        let me = lease.claimant().as_str();
        let (hash, set) = ("re:o:{t}:c", "re:e:{t}:c");
        let claim = |p: &str, by: &str| drop(scene.server.command(&["HSET", hash, p, by]).unwrap());
        for (p, by) in [
            ("0", me),
            ("1", "somebody"),
            ("3", me),
            ("4", me),
            ("5", me),
            ("6", me),
        ] {
            claim(p, by);
        }
        scene.server.command(&["ZADD", set, "1", "5"]).unwrap(); // over long ago
        scene.server.command(&["ZADD", set, "1e15", "6"]).unwrap();
        let most = "18446744073709551615-18446744073709551615|x";
        scene.set(&[
            "3",
            "7-0|x",
            "__reset:3",
            "1-0",
            "4",
            "20-0|x",
            "6",
            "not an id",
        ]);
        scene.set(&["0", "9-18446744073709551615|x"]);
        let positions: Vec<_> = (0..7).map(|p| (p, at(10))).collect();
        let mut fates = Vec::new();
        let mut room = (Vec::new(), Inbox::default());
        let (store, connection) = (&mut scene.store, &mut scene.connection);
        for _ in 0..2 {
            fates.clear();
            store
                .store(
                    connection,
                    (&mut room.0, &mut room.1),
                    &positions,
                    LONG,
                    |i, f| {
                        assert_eq!(i, fates.len());
                        fates.push(f);
                    },
                )
                .unwrap();
            assert_eq!(
                fates,
                [
                    Fate::Stored,
                    Fate::Anothers,
                    Fate::Unclaimed,
                    Fate::Reset,
                    Fate::Behind,
                    Fate::Unclaimed,
                    Fate::Stored
                ]
            );
        }
        assert!(scene.get("0").starts_with("10-0|") && scene.get("6").starts_with("10-0|"));
        assert_eq!([1, 2, 5].map(|p| scene.get(&p.to_string())), ["", "", ""]);
        assert_eq!(
            [3, 4].map(|p| scene.get(&p.to_string())),
            ["7-0|x", "20-0|x"]
        );
        let ordinal = |p| {
            let field = format!("{p}:ordinal");
            scene
                .server
                .command(&["HGET", "re:p:{t}:c:meta", &field])
                .unwrap()
                .text()
        };
        assert_eq!([0, 1, 4].map(ordinal), ["10-0 10", "", ""]);

        // ids are more than what Lua can count to
        scene.set(&["0", most]);
        let almost = Snapshot {
            id: StreamId::new(u64::MAX, u64::MAX - 1),
            ..at(0)
        };
        let mut fate = None;
        let (store, connection) = (&mut scene.store, &mut scene.connection);
        let (commands, inbox) = (&mut room.0, &mut room.1);
        store
            .store(
                connection,
                (commands, inbox),
                &[(0, almost)],
                LONG,
                |_, f| fate = Some(f),
            )
            .unwrap();
        assert_eq!(fate, Some(Fate::Behind));
    }

    #[test]
    fn only_the_owner_moves_a_position_back() {
        let mut scene = Scene::new();
        let lease = lease(&scene.server);
        scene.store = scene.store.clone().under(&lease);
        let moves = |scene: &mut Scene, marker: Option<&str>| {
            let marker = marker.map(|m| Marker::parse(m.as_bytes()).unwrap());
            let (to, c) = (StreamId::new(1, 0), &mut scene.connection);
            scene
                .store
                .relocate(c, 0, marker.as_ref(), to, LONG)
                .unwrap()
        };
        let claim = |scene: &Scene, by: &str| {
            let cmd = ["HSET", "re:o:{t}:c", "0", by];
            scene.server.command(&cmd).unwrap();
        };
        scene.set(&["0", "9-0|x"]);
        assert_eq!(moves(&mut scene, None), Fate::Unclaimed);
        claim(&scene, "somebody");
        assert_eq!(moves(&mut scene, Some("1-0")), Fate::Anothers);
        assert_eq!(scene.get("0"), "9-0|x");
        claim(&scene, lease.claimant().as_str());
        scene.set(&["__reset:0", "5-0|a"]);
        assert_eq!(moves(&mut scene, None), Fate::Reset, "it goes before");
        assert_eq!(moves(&mut scene, Some("5-0|a")), Fate::Stored);
        assert!(scene.get("0").starts_with("1-0|") && scene.get("__reset:0").is_empty());
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
