#![allow(clippy::unwrap_used)]

use super::*;
use crate::{
    Trim,
    error::ServerClass,
    net::Target,
    testing::{PrivateServer, Reply},
};

const LONG: Duration = Duration::from_secs(20);

const BUCKET: &str = "re:dl:{t}";
const ITEMS: &str = "re:di:{t}";
const LETTERS: &str = "re:d:{t}:c";

/// A server, and a connection to it.
struct World {
    server: PrivateServer,
    connection: Connection,
}

fn world() -> World {
    with(PrivateServer::start().unwrap())
}

fn with(server: PrivateServer) -> World {
    let target = Target::parse(&server.url()).unwrap();
    let connection = Connection::dial(&target, "test", None, LONG).unwrap();
    World { server, connection }
}

fn streams(n: usize) -> Vec<String> {
    (0..n).map(|p| format!("re:s:{{t}}:{p}")).collect()
}

/// An item for the `target`-th stream, with one field `b`.
fn item(target: u32, body: &[u8]) -> Vec<u8> {
    trimmed(target, Trim::None, 0, body)
}

fn trimmed(target: u32, how: Trim, max_len: u64, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    item::begin(&mut out, target, item::Trimmed { how, max_len }, 1);
    item::text(&mut out, b"b");
    item::text(&mut out, body);
    out
}

impl World {
    fn command<A: AsRef<[u8]>>(&self, args: &[A]) -> Reply {
        self.server.command(args).unwrap()
    }

    fn count(&self, command: &str, key: &str) -> i64 {
        self.command(&[command, key]).int().unwrap()
    }

    /// Puts an item into the bucket, due in so many milliseconds.
    fn add(&self, id: &str, ms: i64, item: &[u8]) {
        self.add_at(id, self.now_ms() + ms, item);
    }

    fn add_at(&self, id: &str, due: i64, item: &[u8]) {
        let due = due.to_string();
        let added = self.command(&[&b"HSET"[..], ITEMS.as_bytes(), id.as_bytes(), item]);
        assert_eq!(added.int(), Some(1));
        self.command(&["ZADD", BUCKET, &due, id]);
    }

    fn now_ms(&self) -> i64 {
        let time = self.command(&["TIME"]);
        let part = |i: usize| time.items()[i].int().unwrap();
        part(0) * 1000 + part(1) / 1000
    }

    fn run(&mut self, targets: usize, letters: Option<&str>) -> Result<Moved> {
        let letter: [&[u8]; 19] = [
            b"*",
            b"!",
            b"12",
            b"!consumer",
            b"c",
            b"!topic",
            b"t",
            b"!partition",
            b"0",
            b"!first",
            b"0-0",
            b"!last",
            b"0-0",
            b"!attempts",
            b"0",
            b"!deliveries",
            b"0",
            b"!reason",
            b"malformed",
        ];
        let due = Due {
            bucket: BUCKET.as_bytes(),
            items: ITEMS.as_bytes(),
            letters: letters.map(|key| (key.as_bytes(), &letter[..])),
            targets: &streams(targets),
        };
        due.publish(&mut self.connection, LONG)
    }

    fn bodies(&self, partition: u32) -> Vec<Vec<u8>> {
        let key = format!("re:s:{{t}}:{partition}");
        let range = self.command(&["XRANGE", &key, "-", "+"]);
        let entries = range.items().iter();
        entries
            .map(|e| match &e.items()[1].items()[1] {
                Reply::Bulk(body) => body.clone(),
                other => panic!("{other:?}"),
            })
            .collect()
    }

    fn texts(&self, partition: u32) -> Vec<String> {
        let bodies = self.bodies(partition).into_iter();
        bodies.map(|b| String::from_utf8(b).unwrap()).collect()
    }
}

#[test]
fn what_is_due_is_moved_in_the_order_of_time_and_ids() {
    let mut w = world();
    assert_eq!(w.run(2, None).unwrap().next, None, "nothing at all");
    let now = w.now_ms();
    for (id, ms, target, body) in [
        ("2", -5, 1, "third"),
        ("1", -5, 1, "second"),
        ("9", -500, 1, "first"),
        ("3", -1, 0, "alone"),
        ("4", 60_000, 1, "later"),
    ] {
        w.add_at(id, now + ms, &item(target, body.as_bytes()));
    }
    let moved = w.run(2, None).unwrap();
    assert_eq!((moved.published, moved.put_off.len()), (4, 0));
    let next = moved.next.unwrap();
    assert!(
        next > Duration::from_secs(30) && next <= Duration::from_mins(1),
        "{next:?}"
    );
    assert_eq!(w.texts(1), ["first", "second", "third"]);
    assert_eq!(w.texts(0), ["alone"]);
    let again = w.run(2, None).unwrap();
    assert_eq!(again.published, 0, "the answer may have been lost");
    assert_eq!((w.count("ZCARD", BUCKET), w.count("HLEN", ITEMS)), (1, 1));
}

#[test]
fn one_run_is_bounded_by_number_and_by_bytes() {
    let mut w = world();
    let now = w.now_ms();
    for n in 0..250 {
        w.add_at(&format!("{n:03}"), now, &item(0, n.to_string().as_bytes()));
    }
    let moved: Vec<_> = (0..3).map(|_| w.run(1, None).unwrap()).collect();
    let counts: Vec<_> = moved.iter().map(|m| m.published).collect();
    assert_eq!(counts, [100, 100, 50]);
    assert_eq!(moved[0].next, Some(Duration::ZERO), "at once");
    assert_eq!(moved[2].next, None);
    let all: Vec<_> = (0..250).map(|n| n.to_string()).collect();
    assert_eq!(w.texts(0), all);
    assert_eq!(w.command(&["EXISTS", BUCKET, ITEMS]).int(), Some(0));
    for n in 0..5 {
        w.add(&n.to_string(), -1000, &item(0, &vec![b'x'; 600_000]));
    }
    let counts: Vec<_> = (0..3).map(|_| w.run(1, None).unwrap().published).collect();
    assert_eq!(counts, [2, 2, 1]);
}

#[test]
fn bytes_go_through_as_they_are_many_and_large() {
    let mut w = world();
    let all: Vec<u8> = (0..=255).collect();
    let large = all.repeat(20_000_000 / all.len());
    w.add("1", -3, &item(0, &all));
    w.add("2", -2, &item(0, &large));
    w.add("3", -1, &item(0, b""));
    let mut many = Vec::new();
    let none = item::Trimmed {
        how: Trim::None,
        max_len: 0,
    };
    item::begin(&mut many, 0, none, 3000);
    for n in 0..3000 {
        item::text(&mut many, format!("field-{n}").as_bytes());
        item::text(&mut many, if n % 2 == 0 { b"" } else { &all });
    }
    w.add("4", -1, &many);
    while w.run(1, None).unwrap().next.is_some() {}
    let bodies = w.bodies(0);
    assert_eq!(bodies.len(), 4);
    assert!(bodies[0] == all && bodies[1] == large && bodies[2].is_empty());
    let last = w.command(&["XREVRANGE", "re:s:{t}:0", "+", "-", "COUNT", "1"]);
    let fields = last.items()[0].items()[1].items();
    assert_eq!(fields.len(), 6000);
    for n in 0..3000 {
        assert_eq!(fields[2 * n], Reply::bulk(format!("field-{n}")));
        let value: &[u8] = if n % 2 == 0 { b"" } else { &all };
        assert_eq!(fields[2 * n + 1], Reply::bulk(value));
    }
}

#[test]
fn a_move_trims_as_a_publish_does() {
    let mut w = world();
    for n in 0..10 {
        w.add(&format!("0{n}"), -5, &trimmed(0, Trim::Exact, 3, b"x"));
        w.add(&format!("1{n}"), -5, &trimmed(1, Trim::Approx, 3, b"x"));
        w.add(&format!("2{n}"), -5, &trimmed(2, Trim::None, 3, b"x"));
    }
    w.run(3, None).unwrap();
    let lengths: Vec<_> = streams(3).iter().map(|key| w.count("XLEN", key)).collect();
    assert_eq!(
        lengths,
        [3, 10, 10],
        "whole blocks only, where it is roughly"
    );
}

#[test]
fn a_bad_item_is_out_of_the_way_of_the_others() {
    let mut w = world();
    w.command(&["SET", "re:s:{t}:1", "no stream"]);
    let good = item(0, b"good");
    let mut cut = good.clone();
    cut.pop();
    let mut more = good.clone();
    more.push(0xc0);
    let bad: [(&str, &[u8]); 9] = [
        ("bytes", b"\xc1\xff"),
        ("empty", b""),
        ("cut", &cut),
        ("more", &more),
        ("number", b"\x07"),
        ("nil inside", b"\x95\xa11\xa0\xa1~\xa1b\xc0"),
        ("number inside", b"\x95\xa11\xa0\xa1~\xa1b\x07"),
        ("odd", b"\x96\xa11\xa0\xa1~\xa1b\xa0\xa1c"),
        ("no number", b"\x95\xa1x\xa0\xa1~\xa1b\xa0"),
    ];
    for (i, (_, bytes)) in bad.iter().enumerate() {
        w.add(&format!("0{i}"), -10, bytes);
    }
    w.add("10", -9, &item(1, b"wrong type"));
    w.add("11", -9, &item(7, b"unknown"));
    w.add("12", -9, b"\x95\xa21x\xa0\xa1~\xa1b\xa0");
    w.add("13", -9, &trimmed(0, Trim::Exact, 1 << 63, b"no length"));
    w.command(&["ZADD", BUCKET, "5", "20"]); // without an item
    w.add("30", -1, &good);
    let moved = w.run(2, None).unwrap();
    assert_eq!((moved.published, moved.put_off.len()), (1, 14), "{moved:?}");
    assert_eq!(w.texts(0), ["good"]);
    let why = |id: &str| {
        let found = moved.put_off.iter().find(|(i, _)| i == id);
        found.unwrap().1.clone()
    };
    for (i, (what, _)) in bad.iter().enumerate() {
        assert!(why(&format!("0{i}")).contains("broken"), "{what}");
    }
    assert!(why("10").starts_with("WRONGTYPE"), "{}", why("10"));
    assert!(why("11").contains("partition"));
    assert!(why("20").contains("gone"));
    for (id, what) in [
        ("00", "; no dead letter: there is no place for letters; it"),
        ("00", "; it is tried again in a minute"),
        ("10", "; it is tried again in a minute"),
        ("11", "; it is tried again in a second"),
    ] {
        assert!(why(id).contains(what), "{id}: {}", why(id));
    }
    assert!(!why("20").contains("again"), "{}", why("20"));
    assert!(!why("13").is_empty());
    // Each is there yet, and due in a minute, but for what a moment may bring.
    assert_eq!((w.count("ZCARD", BUCKET), w.count("HLEN", ITEMS)), (13, 13));
    let now = w.now_ms();
    for (id, least, most) in [
        ("00", 30_000, 60_000),
        ("10", 30_000, 60_000),
        ("11", -20_000, 1000),
    ] {
        let due = w.command(&["ZSCORE", BUCKET, id]).int().unwrap() - now;
        assert!(due > least && due <= most, "{id}: {due}");
    }
    assert!(moved.next.unwrap() <= Duration::from_secs(1));
}

#[test]
fn a_broken_item_becomes_a_letter_where_there_is_a_place_for_it() {
    let mut w = world();
    w.add("1", -2, b"\xc1\xff");
    w.add("2", -1, &item(0, b"good"));
    let moved = w.run(1, Some(LETTERS)).unwrap();
    assert_eq!(
        (moved.published, moved.put_off.len(), moved.next),
        (1, 1, None)
    );
    let kept = "its item is broken; it is kept as a dead letter";
    assert_eq!(moved.put_off[0].1, kept);
    let letters = w.command(&["XRANGE", LETTERS, "-", "+"]);
    let fields = letters.items()[0].items()[1].items();
    let pairs = fields.chunks(2).map(|pair| match pair {
        [Reply::Bulk(name), Reply::Bulk(value)] => (name.clone(), value.clone()),
        other => panic!("{other:?}"),
    });
    let letter = crate::wire::ReadLetter::parse(pairs.collect()).unwrap();
    assert_eq!(letter.fields, [(b"item".to_vec(), b"\xc1\xff".to_vec())]);
    assert!(
        letter.error.contains("broken") && letter.since_ms > 0,
        "{letter:?}"
    );
    assert_eq!(letter.reason, Some(crate::DeadLetterReason::Malformed));
    // Where that is no place either, it waits.
    w.command(&["SET", LETTERS, "no stream"]);
    w.add("3", -2, b"\xc1\xff");
    let moved = w.run(1, Some(LETTERS)).unwrap();
    assert_eq!((moved.published, w.count("ZCARD", BUCKET)), (0, 1));
    let why = &moved.put_off[0].1;
    assert!(why.contains("no dead letter: WRONGTYPE"), "{why}");
    assert!(why.ends_with("tried again in a minute"), "{why}");
}

#[test]
fn a_server_that_takes_nothing_leaves_all_where_it_is() {
    let mut w = world();
    w.add("1", -2, &item(0, b"one"));
    w.add("2", -1, &item(0, b"two"));
    w.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let e = w.run(1, None).unwrap_err();
    assert_eq!(e.server_class(), Some(ServerClass::OutOfMemory), "{e}");
    w.command(&["CONFIG", "SET", "maxmemory", "0"]);
    w.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let e = w.run(1, None).unwrap_err();
    assert_eq!(e.server_class(), Some(ServerClass::ReadOnly), "{e}");
    w.command(&["REPLICAOF", "NO", "ONE"]);
    let mut w = with(w.server);
    assert_eq!((w.count("ZCARD", BUCKET), w.count("HLEN", ITEMS)), (2, 2));
    assert_eq!(w.run(1, None).unwrap().published, 2);
}

/// One that may run scripts but not append: others may.
#[test]
fn a_user_who_may_not_append_leaves_all_where_it_is() {
    let w = world();
    w.add("1", -2, &item(0, b"one"));
    w.command(&["ACL", "SETUSER", "poor", "on", ">x", "~*", "+@all", "-xadd"]);
    let path = w.server.socket_path();
    let target = Target::parse(&format!("unix://{}", path.display())).unwrap();
    let target = target
        .with_username("poor")
        .with_password(crate::net::Secret::new(*b"x"));
    let connection = Connection::dial(&target, "test", None, LONG).unwrap();
    let mut w = World { connection, ..w };
    let refused = match w.run(1, None) {
        Ok(moved) => {
            assert_eq!((moved.published, moved.put_off.len()), (0, 0));
            moved.refused.unwrap()
        }
        Err(e) => e,
    };
    assert!(refused.keeps_connection(), "{refused}");
    assert_eq!((w.count("ZCARD", BUCKET), w.count("HLEN", ITEMS)), (1, 1));
    let due = w.command(&["ZSCORE", BUCKET, "1"]).int().unwrap();
    assert!(due < w.now_ms(), "as it was");
}

/// As the script has it: answers when it is due and the id.
fn schedule(w: &World, how: &str, ms: &str, token: &str) -> String {
    let item = item(0, b"x");
    let args: [&[u8]; 11] = [
        b"EVAL",
        SCHEDULE.text.as_bytes(),
        b"3",
        BUCKET.as_bytes(),
        ITEMS.as_bytes(),
        b"re:dl:{t}:mover",
        how.as_bytes(),
        ms.as_bytes(),
        &item,
        token.as_bytes(),
        b"3000",
    ];
    w.command(&args).text()
}

#[test]
fn ids_of_one_moment_sort_as_they_were_added() {
    let mut w = world();
    let due = (w.now_ms() + 5).to_string();
    let token = |n: u32| format!("{:016x}", u64::MAX - u64::from(n));
    let ids: Vec<_> = (0..500)
        .map(|n| schedule(&w, "at", &due, &token(n)))
        .collect();
    let ids: Vec<_> = ids.iter().map(|a| a.split(' ').nth(1).unwrap()).collect();
    assert!(
        ids.is_sorted() && ids.iter().all(|id| id.len() == 33),
        "{ids:?}"
    );
    let members = w.command(&["ZRANGE", BUCKET, "0", "-1"]);
    let members: Vec<_> = members.items().iter().map(Reply::text).collect();
    assert_eq!(members, ids);
    // Even where the clock was ahead when one of them was added.
    let ahead = "9000000000000000-00000000000000ff";
    w.command(&["ZADD", BUCKET, &due, ahead]);
    let next = schedule(&w, "at", &due, &token(0));
    assert!(next.contains("9000000000000001-"), "{next}");
    w.command(&["ZREM", BUCKET, ahead]);
    while w.run(1, None).unwrap().next.is_some() {}
    assert_eq!(w.count("XLEN", "re:s:{t}:0"), 501);
}

#[test]
fn who_adds_what_is_due_first_and_soon_becomes_the_mover() {
    let w = world();
    let holder = || w.command(&["GET", "re:dl:{t}:mover"]).text();
    let [one, two] = [1, 2].map(|n: u64| format!("{n:016x}"));
    assert!(!schedule(&w, "after", "60000", &one).contains('!'));
    assert_eq!(holder(), "", "nothing to do yet");
    assert!(schedule(&w, "after", "1500", &one).ends_with('!'));
    assert_eq!(holder(), one);
    let ttl = w.count("PTTL", "re:dl:{t}:mover");
    assert!(ttl > 0 && ttl <= 3000, "{ttl}");
    assert!(!schedule(&w, "after", "1900", &two).contains('!'));
    assert_eq!(holder(), one, "who will be there anyway");
    assert!(schedule(&w, "after", "10", &two).ends_with('!'));
    assert_eq!(holder(), two);
    assert!(schedule(&w, "at", "0", &one).ends_with('!'), "in the past");
    assert_eq!(schedule(&w, "at", "99999999999999", &one), "far");
    assert_eq!(w.count("ZCARD", BUCKET), 5);
}
