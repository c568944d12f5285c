//! What is read and written of positions, on a real server.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::{
    super::fenced::{COUNT, Fate, MOVE, PARK, STORE},
    *,
};
use crate::{
    net::{Inbox, Target},
    ownership::Terms,
    position::Snapshot,
    testing::{Answer, PrivateServer, Reply, Stub},
    wire::{Claimant, DeadLetterReason, Letter, ReadLetter},
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
    for script in [&STORE, &MOVE, &PARK, &COUNT] {
        let known = scene.server.command(&["SCRIPT", "LOAD", script.text]);
        assert_eq!(known.unwrap().text(), script.sha1, "{}", script.text);
    }
}

#[test]
fn under_a_claim_a_position_is_stored_if_nothing_speaks_against_it() {
    let mut scene = Scene::new();
    let lease = lease(&scene.server);
    scene.store = scene
        .store
        .clone()
        .under(&Claims::Lease(Arc::clone(&lease)));
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
    scene.store = scene
        .store
        .clone()
        .under(&Claims::Lease(Arc::clone(&lease)));
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
    let each = |i, value: &[u8]| seen.push((i, Marker::parse(value).map(|m| m.reset.target.ms())));
    Inbox::default()
        .ask_fields(&mut scene.connection, &out, 3, LONG, each)
        .unwrap();
    assert_eq!(seen, [(0, Some(7)), (2, Some(5))]);
}

/// A message that failed for good, of this id.
fn parks(scene: &mut Scene, ms: u64, position: bool) -> (Fate, Option<StreamId>) {
    let id = StreamId::new(ms, 0);
    let parked = Parked {
        letter: Letter {
            topic: "t",
            partition: 0,
            first: id,
            last: id,
            attempts: 1,
            deliveries: 2,
            error: "no",
            consumer: "c",
            reason: DeadLetterReason::Retries,
            omitted: 0,
            payload: None,
        },
        fields: &[(b"b", b"body"), (b"t", b"T"), (b"b", b"again")],
        position: position.then(|| at(ms)),
        ago: [Duration::from_secs(2), Duration::from_secs(1)],
        keep: (1000, Duration::ZERO),
    };
    let mut inbox = Inbox::default();
    let (store, connection) = (&mut scene.store, &mut scene.connection);
    store.park(connection, &mut inbox, &parked, LONG).unwrap()
}

/// The messages that are dead letters, by their ids, in the order in which they became ones.
fn letters(scene: &Scene) -> Vec<u64> {
    let all = scene.server.command(&["XRANGE", "re:d:{t}:c", "-", "+"]);
    let all = all.unwrap();
    let letter = |entry: &crate::testing::Reply| {
        let fields = entry.items()[1].items().chunks(2);
        let pairs = fields.map(|p| (p[0].text().into_bytes(), p[1].text().into_bytes()));
        let letter = ReadLetter::parse(pairs.collect()).unwrap();
        assert_eq!(letter.fields.len(), 3);
        assert_eq!(letter.until_ms - letter.since_ms, 1000);
        letter.last.ms()
    };
    all.items().iter().map(letter).collect()
}

#[test]
fn a_dead_letter_and_its_position_are_stored_together_and_once() {
    let mut scene = Scene::new();
    scene.set(&["0", "3-0|x"]);
    let (fate, letter) = parks(&mut scene, 5, true);
    assert_eq!(fate, Fate::Stored);
    assert!(scene.get("0").starts_with("5-0|"));
    // as after a lost answer
    assert_eq!(parks(&mut scene, 5, true), (Fate::Stored, letter));
    // as where the position was written back by somebody who had an older one
    scene.set(&["0", "4-0|x"]);
    assert_eq!(parks(&mut scene, 5, true), (Fate::Stored, letter));
    assert!(scene.get("0").starts_with("5-0|"));
    assert_eq!(letters(&scene), [5]);
    // the position is past it, and it is no dead letter: somebody else had it
    scene.set(&["0", "8-0|x"]);
    assert_eq!(parks(&mut scene, 7, true), (Fate::Behind, None));
    assert_eq!(parks(&mut scene, 8, true), (Fate::Behind, None));
    let (fate, next) = parks(&mut scene, 10, true);
    assert!(fate == Fate::Stored && next > letter);
    assert_eq!(letters(&scene), [5, 10]);
    let ordinal = scene
        .server
        .command(&["HGET", "re:p:{t}:c:meta", "0:ordinal"]);
    assert_eq!(ordinal.unwrap().text(), "10-0 10");
    // gone back to: the last one is not written twice, unless it was deleted or replayed
    scene.set(&["0", "9-0|x"]);
    assert_eq!(parks(&mut scene, 10, true), (Fate::Stored, next));
    scene.set(&["0", "9-0|x"]);
    let mark = [
        "HSET",
        "re:d:{t}:c:meta",
        &next.unwrap().to_string(),
        "1 2-0",
    ];
    scene.server.command(&mark).unwrap();
    let third = parks(&mut scene, 10, true).1;
    assert!(third > next);
    scene.set(&["0", "9-0|x"]);
    let delete = ["XDEL", "re:d:{t}:c", &third.unwrap().to_string()];
    scene.server.command(&delete).unwrap();
    assert!(parks(&mut scene, 10, true).1 > third);
    assert_eq!(letters(&scene), [5, 10, 10]);
}

#[test]
fn without_positions_a_dead_letter_is_stored_alone_and_once() {
    let mut scene = Scene::new();
    scene.set(&["__reset:0", "1-0"]); // which nobody takes there
    let first = parks(&mut scene, 5, false);
    assert_eq!(parks(&mut scene, 5, false), first);
    assert!(parks(&mut scene, 6, false).1 > first.1);
    assert_eq!(letters(&scene), [5, 6]);
    assert_eq!(scene.get("0"), "");
}

#[test]
fn under_a_claim_a_message_becomes_a_dead_letter_if_nothing_speaks_against_it() {
    let mut scene = Scene::new();
    let lease = lease(&scene.server);
    let claims = Claims::Lease(Arc::clone(&lease));
    scene.store = scene.store.clone().under(&claims);
    let me = lease.claimant().as_str();
    for (by, fate) in [("", Fate::Unclaimed), ("somebody", Fate::Anothers)] {
        if !by.is_empty() {
            let claim = ["HSET", "re:o:{t}:c", "0", by];
            scene.server.command(&claim).unwrap();
        }
        assert_eq!(parks(&mut scene, 5, true), (fate, None));
        assert_eq!(parks(&mut scene, 5, false), (fate, None));
    }
    let claim = ["HSET", "re:o:{t}:c", "0", me];
    scene.server.command(&claim).unwrap();
    let over = ["ZADD", "re:e:{t}:c", "5", "0"];
    scene.server.command(&over).unwrap();
    let expired = parks(&mut scene, 5, true);
    let lasts = ["ZADD", "re:e:{t}:c", "1e15", "0"];
    scene.server.command(&lasts).unwrap();
    assert_eq!(expired, (Fate::Unclaimed, None));
    scene.set(&["__reset:0", "1-0"]);
    assert_eq!(parks(&mut scene, 5, true), (Fate::Reset, None));
    assert!(letters(&scene).is_empty() && scene.get("0").is_empty());
    scene
        .server
        .command(&["HDEL", "re:p:{t}:c", "__reset:0"])
        .unwrap();
    assert_eq!(parks(&mut scene, 5, true).0, Fate::Stored);
    assert_eq!(letters(&scene), [5]);
    assert!(scene.get("0").starts_with("5-0|"));
    // neither, where one of them cannot be
    scene
        .server
        .command(&["SET", "re:d:{t}:c", "mine"])
        .unwrap();
    let id = StreamId::new(6, 0);
    let parked = Parked {
        letter: Letter {
            topic: "t",
            partition: 0,
            first: id,
            last: id,
            attempts: 0,
            deliveries: 1,
            error: "",
            consumer: "c",
            reason: DeadLetterReason::Handler,
            omitted: 0,
            payload: None,
        },
        fields: &[],
        position: Some(at(6)),
        ago: [Duration::ZERO; 2],
        keep: (1000, Duration::ZERO),
    };
    let mut inbox = Inbox::default();
    let refused = scene
        .store
        .park(&mut scene.connection, &mut inbox, &parked, LONG);
    assert!(refused.unwrap_err().to_string().contains("WRONGTYPE"));
    assert!(scene.get("0").starts_with("5-0|"));
}

/// Among them texts as long as ours, which compare otherwise than the ids in them.
#[test]
fn whoever_wrote_what_is_stored_its_id_decides() {
    let mut scene = Scene::new();
    let lease = lease(&scene.server);
    scene.store = scene
        .store
        .clone()
        .under(&Claims::Lease(Arc::clone(&lease)));
    let claim = ["HSET", "re:o:{t}:c", "0", lease.claimant().as_str()];
    scene.server.command(&claim).unwrap();
    let mut room = (Vec::new(), Inbox::default());
    let writer = |length: usize| "7".repeat(length);
    for (stored, ours, fate) in [
        (format!("10-12345|{}", writer(28)), (10, 2), Fate::Behind),
        (
            format!("10-12345|{}", writer(28)),
            (10, 12346),
            Fate::Stored,
        ),
        (format!("10-1|{}", writer(36)), (10, 23456), Fate::Stored),
        (format!("9-99|{}", writer(32)), (10, 1), Fate::Stored),
        (format!("10-2|{}", writer(32)), (10, 1), Fate::Behind),
        (format!("10-2|{}", writer(32)), (10, 2), Fate::Stored),
        (format!("10-9|{}", writer(31)), (10, 10), Fate::Stored),
        (format!("100-9|{}", writer(31)), (20, 10), Fate::Behind),
        (format!("010-3|{}", writer(31)), (10, 2), Fate::Behind),
        (format!("010-3|{}", writer(31)), (10, 4), Fate::Stored),
        ("10-5".to_owned(), (10, 4), Fate::Behind),
        ("10-5".to_owned(), (10, 5), Fate::Stored),
        ("|-".to_owned(), (0, 1), Fate::Stored),
    ] {
        scene.set(&["0", &stored]);
        let position = Snapshot {
            id: StreamId::new(ours.0, ours.1),
            ..at(0)
        };
        let mut came = None;
        let (store, connection) = (&mut scene.store, &mut scene.connection);
        let (commands, inbox) = (&mut room.0, &mut room.1);
        store
            .store(
                connection,
                (commands, inbox),
                &[(0, position)],
                LONG,
                |_, f| came = Some(f),
            )
            .unwrap();
        assert_eq!(came, Some(fate), "{ours:?} over {stored}");
        let kept = scene.get("0") == stored;
        assert_eq!(kept, fate == Fate::Behind, "{ours:?} over {stored}");
    }
}

/// Positions and ordinals are read one after the other, and another instance may begin in between.
#[test]
fn who_begins_while_positions_are_read_has_deleted_none() {
    let mut asked = 0;
    let stub = Stub::start(move |args, _| match &args[0][..] {
        b"HMGET" => {
            asked += 1;
            let value = |field: &[u8]| match (asked, field) {
                (1, _) | (_, b"partitions") => Reply::Nil,
                (_, b"0") => Reply::bulk("0-0|x"),
                _ => Reply::bulk("0-0 0"),
            };
            Answer::Reply(Reply::Array(args[2..].iter().map(|f| value(f)).collect()))
        }
        _ => Answer::Usual,
    })
    .unwrap();
    let target = Target::parse(&stub.url()).unwrap();
    let mut connection = Connection::dial(&target, "store", None, LONG).unwrap();
    let store = PositionStore::new(&Keys::default(), "t", "c", InstanceId::derive("me"));
    let OnRecord { positions, .. } = store.load(&mut connection, 0..1, LONG).unwrap();
    let began = Stored {
        id: StreamId::MIN,
        ordinal: None,
    };
    assert_eq!(positions, [Loaded::At(began)]);
}
