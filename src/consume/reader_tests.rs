use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::{
    batch::Body,
    testing::{Answer, Reply, Stub},
};

const LONG: Duration = Duration::from_secs(20);
const MB: usize = 1024 * 1024;

/// An entry `n-0` with a body of so many bytes.
fn entry(n: u64, bytes: usize) -> (StreamId, Reply) {
    let id = StreamId::new(n, 0);
    let body = vec![b'x'; bytes];
    let fields = [&b"b"[..], &body, b"t", b"T", b"k", b"K"];
    let fields = Reply::Array(fields.map(Reply::bulk).to_vec());
    (id, Reply::Array(vec![Reply::bulk(id.to_string()), fields]))
}

fn word(args: &[Vec<u8>], after: &str) -> String {
    let at = args.iter().position(|a| a == after.as_bytes()).unwrap();
    String::from_utf8(args[at + 1].clone()).unwrap()
}

/// A server that holds these entries and answers reads of them as the real one does.
fn serving(entries: Vec<(StreamId, Reply)>) -> Stub {
    Stub::start(move |args, _| match &args[0][..] {
        b"XREAD" => Answer::Reply(read(&entries, args)),
        _ => Answer::Usual,
    })
    .unwrap()
}

fn read(entries: &[(StreamId, Reply)], args: &[Vec<u8>]) -> Reply {
    let after = StreamId::parse(args.last().unwrap()).unwrap();
    let count = word(args, "COUNT").parse().unwrap();
    let found: Vec<_> = entries
        .iter()
        .filter(|(id, _)| *id > after)
        .take(count)
        .map(|(_, e)| e.clone())
        .collect();
    if found.is_empty() {
        return Reply::Nil;
    }
    Reply::Array(vec![Reply::Array(vec![
        Reply::bulk("s"),
        Reply::Array(found),
    ])])
}

fn plan() -> ReadPlan {
    ReadPlan {
        batch_size: 100,
        batch_bytes: 64 * 1024,
        block: Some(Duration::from_millis(10)),
        slack: LONG,
        spin: Duration::ZERO,
        connect_timeout: LONG,
        max_entry_bytes: 64 * MB,
        filter: Filter::default(),
        group: None,
    }
}

fn reader(stub: &Stub, plan: ReadPlan) -> Reader {
    let pool = ArenaPool::new(plan.arena_bytes());
    Reader::new(
        Arc::new(plan),
        Arc::new(Target::parse(&stub.url()).unwrap()),
        "reader".into(),
        Arc::default(),
        pool,
        b"s"[..].into(),
        StreamId::MIN,
    )
}

/// One read, as a lane goes about it: after an error the connection is given up.
fn once(reader: &mut Reader) -> Result<Brought> {
    if !reader.is_connected() {
        reader.connect()?;
    }
    let brought = reader
        .request(&[], false)
        .and_then(|()| reader.receive(0, Some(b""), |_| Ok(())));
    if brought.is_err() {
        reader.disconnect();
    }
    brought
}

fn ids(reader: &Reader) -> Vec<u64> {
    reader.records().iter().map(|r| r.id.ms()).collect()
}

fn counts(stub: &Stub) -> Vec<u32> {
    let seen = stub.seen();
    let reads = seen.iter().filter(|s| s.name() == "XREAD");
    reads
        .map(|s| word(&s.args, "COUNT").parse().unwrap())
        .collect()
}

#[test]
fn a_reply_over_the_budget_is_used_up_to_its_last_whole_entry() {
    let stub = serving((1..=40).map(|n| entry(n, 100_000)).collect());
    let mut r = reader(&stub, plan());
    assert_eq!(once(&mut r).unwrap(), Brought::Entries { full: false });
    let first = ids(&r);
    assert!((2..16).contains(&first.len()), "{first:?}");
    assert_eq!(r.cursor().ms(), first.len() as u64);
    assert!(r.records().iter().all(|r| r.body.len == 100_000));
    assert!(
        !r.is_connected() && !r.is_outstanding(),
        "the rest answers nothing"
    );
    let mut all = first;
    while let Brought::Entries { .. } = once(&mut r).unwrap() {
        all.extend(ids(&r));
        assert!(r.arena.capacity() <= r.plan.budget());
    }
    assert_eq!(all, (1..=40).collect::<Vec<_>>(), "all of them once");
    let counts = counts(&stub);
    assert!(counts[0] == 16 && counts[1] == 1, "{counts:?}");
    assert_eq!(stub.accepted(), 2);
}

#[test]
fn a_large_entry_grows_the_arena_once_and_it_shrinks_back() {
    let big = 20 * MB;
    let stub = serving(vec![entry(1, 10), entry(2, big)]);
    let mut r = reader(&stub, plan());
    once(&mut r).unwrap();
    assert_eq!(
        (ids(&r), r.is_connected()),
        (vec![1], false),
        "what is whole comes first"
    );
    let before = r.arena.capacity();
    once(&mut r).unwrap();
    assert_eq!((ids(&r), r.records()[0].body.len as usize), (vec![2], big));
    let grown = r.arena.capacity();
    assert!(
        before <= r.plan.budget() && grown > big && grown < big + big / 3,
        "{grown}"
    );
    let mut idle = 0;
    while r.arena.capacity() > r.plan.arena_bytes() {
        assert_eq!(r.arena.capacity(), grown, "it is kept for a while");
        once(&mut r).unwrap();
        idle += 1;
        assert!(idle < 200, "it is never given back");
    }
    assert!(idle > 10, "given back after {idle} small replies");
}

#[test]
fn an_entry_of_very_many_fields_does_not_grow_the_arena_bit_by_bit() {
    let stub = serving(Vec::new());
    let mut r = reader(&stub, plan());
    let mut grown = 0;
    while r.arena.capacity() < 40 * MB {
        let room = r.arena.room().len();
        r.arena.filled(room);
        // a line that has no end yet says no more than that
        let need = r.arena.received().len() + 1;
        assert!(!r.outgrown(need).unwrap());
        grown += 1;
    }
    assert!(grown < 30, "grown {grown} times");
}

#[test]
fn an_entry_over_the_limit_is_an_error_that_names_the_id_before_it() {
    let stub = serving(vec![entry(5, 10), entry(6, 3 * MB)]);
    let limit = 2 * MB;
    let mut r = reader(
        &stub,
        ReadPlan {
            max_entry_bytes: limit,
            ..plan()
        },
    );
    once(&mut r).unwrap();
    assert_eq!(ids(&r), [5]);
    for _ in 0..2 {
        let e = once(&mut r).unwrap_err();
        assert_eq!((e.kind(), e.key()), (ErrorKind::TooLarge, Some("s")));
        let text = e.to_string();
        for part in [
            "after 5-0",
            "MaxMessageBytes",
            &limit.to_string(),
            &stub.addr().to_string(),
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert_eq!(r.cursor(), StreamId::new(5, 0));
    }
}

#[test]
fn the_largest_message_that_may_be_published_can_be_read() {
    let limit = 2 * MB;
    let stub = serving(vec![entry(1, limit)]);
    let mut r = reader(
        &stub,
        ReadPlan {
            max_entry_bytes: limit,
            ..plan()
        },
    );
    once(&mut r).unwrap();
    assert_eq!(r.records()[0].body.len as usize, limit);
}

#[test]
fn a_server_that_hangs_up_over_a_long_reply_is_asked_for_less() {
    let entries: Vec<_> = (1..=9).map(|n| entry(n, 10)).collect();
    let stub = Stub::start(move |args, _| match &args[0][..] {
        b"XREAD" if word(args, "COUNT").parse::<u32>().unwrap() > 3 => Answer::Close,
        b"XREAD" => Answer::Reply(read(&entries, args)),
        _ => Answer::Usual,
    })
    .unwrap();
    let mut r = reader(
        &stub,
        ReadPlan {
            batch_size: 3 * 16,
            ..plan()
        },
    );
    for _ in 0..3 {
        assert_eq!(once(&mut r).unwrap_err().kind(), ErrorKind::Io);
    }
    once(&mut r).unwrap();
    assert_eq!((ids(&r), counts(&stub)), (vec![1, 2], vec![16, 8, 4, 2]));
}

#[test]
fn a_server_that_hangs_up_over_a_single_entry_is_reported_as_such() {
    let stub = Stub::start(|args, _| match &args[0][..] {
        b"XREAD" => Answer::Close,
        _ => Answer::Usual,
    })
    .unwrap();
    let mut r = reader(
        &stub,
        ReadPlan {
            batch_size: 1,
            ..plan()
        },
    );
    let first = once(&mut r).unwrap_err().to_string();
    assert!(
        !first.contains("output-buffer"),
        "once is no pattern: {first}"
    );
    let e = once(&mut r).unwrap_err();
    assert!(e.to_string().contains("client-output-buffer-limit"), "{e}");
    assert_eq!((e.kind(), e.key()), (ErrorKind::Io, Some("s")));
}

#[test]
fn a_refusal_leaves_the_connection_in_step_unless_more_came_with_it() {
    let turn = AtomicUsize::new(0);
    let stub = Stub::start(move |args, _| match &args[0][..] {
        b"XREAD" => Answer::Bytes(match turn.fetch_add(1, Ordering::Relaxed) {
            0 => b"-LOADING wait\r\n".to_vec(),
            1 => b"*-1\r\n".to_vec(),
            2 => b"-LOADING wait\r\n*1\r\n".to_vec(),
            _ => b"*-1\r\n*-1\r\n".to_vec(),
        }),
        _ => Answer::Usual,
    })
    .unwrap();
    let mut r = reader(&stub, plan());
    r.connect().unwrap();
    let ask = |r: &mut Reader| {
        r.request(&[], false)
            .and_then(|()| r.receive(0, Some(b""), |_| Ok(())))
    };
    let e = ask(&mut r).unwrap_err();
    assert_eq!(
        (e.kind(), e.server_code(), e.key()),
        (ErrorKind::Server, Some("LOADING"), Some("s"))
    );
    assert!(!r.is_outstanding());
    assert_eq!(ask(&mut r).unwrap(), Brought::Nothing);
    for _ in 0..2 {
        let e = once(&mut r).unwrap_err();
        assert!(
            e.kind() == ErrorKind::Protocol && e.to_string().contains("more than one"),
            "{e}"
        );
    }
}

#[test]
fn commands_before_a_read_are_answered_before_it() {
    let stub = serving(vec![entry(1, 10)]);
    let mut r = reader(&stub, plan());
    r.connect().unwrap();
    let mut before = Vec::new();
    resp::whole(&mut before, &[b"PING"]);
    resp::whole(&mut before, &[b"CLIENT", b"ID"]);
    r.request(&before, false).unwrap();
    r.receive(2, Some(b"p"), |_| Ok(())).unwrap();
    assert_eq!(ids(&r), [1]);
    resp::whole(&mut before, &[b"UNHEARD-OF"]);
    r.request(&before, false).unwrap();
    let e = r.receive(3, Some(b"p"), |_| Ok(())).unwrap_err();
    assert!(
        e.kind() == ErrorKind::Server && e.to_string().contains("UNHEARD-OF"),
        "{e}"
    );
    assert!(
        r.is_outstanding(),
        "the read itself was not answered: the connection must go"
    );
    assert_eq!(r.cursor(), StreamId::new(1, 0));
}

/// A read that waits is not slow, however much of the answer is there when its time has come.
#[test]
fn a_read_behind_other_commands_may_wait_as_long_as_any() {
    let entries = vec![entry(1, MB), entry(2, MB)];
    let stub = Stub::start(move |args, _| match &args[0][..] {
        b"XREAD" => Answer::Delay(Duration::from_secs(3), read(&entries, args).to_bytes()),
        _ => Answer::Usual,
    })
    .unwrap();
    let plan = ReadPlan {
        batch_bytes: 4 * MB,
        block: Some(LONG),
        slack: Duration::from_millis(200),
        ..plan()
    };
    let mut r = reader(&stub, plan);
    r.arena = Arena::with_capacity(64 * 1024); // so that the answer comes in pieces
    r.connect().unwrap();
    let mut before = Vec::new();
    resp::whole(&mut before, &[b"PING"]);
    r.request(&before, false).unwrap();
    r.receive(1, Some(b"p"), |_| Ok(())).unwrap();
    assert_eq!(ids(&r), [1, 2]);
}

#[test]
fn silence_and_half_a_reply_end_in_an_error_that_names_the_key() {
    let half = Reply::Array(vec![Reply::Array(vec![
        Reply::bulk("s"),
        Reply::Array(vec![entry(1, 10).1]),
    ])]);
    let turn = AtomicUsize::new(0);
    let stub = Stub::start(move |args, _| match &args[0][..] {
        b"XREAD" if turn.fetch_add(1, Ordering::Relaxed) == 0 => Answer::Nothing,
        b"XREAD" => Answer::Half(half.to_bytes()),
        _ => Answer::Usual,
    })
    .unwrap();
    let mut r = reader(
        &stub,
        ReadPlan {
            slack: Duration::from_millis(200),
            ..plan()
        },
    );
    for kind in [ErrorKind::Timeout, ErrorKind::Io] {
        let e = once(&mut r).unwrap_err();
        assert_eq!((e.kind(), e.key()), (kind, Some("s")), "{e}");
        assert_eq!(r.cursor(), StreamId::MIN);
    }
}

/// The reference of a body of so many bytes; each has an id of its own.
fn reference(n: u64, bytes: usize) -> String {
    format!("{n:032x} {bytes}")
}

/// An entry `n-0` whose body of so many bytes is kept apart.
fn apart(n: u64, bytes: usize) -> (StreamId, Reply) {
    let id = StreamId::new(n, 0);
    let reference = reference(n, bytes);
    let fields = ["b", "", "t", "T", "k", "K", "x", &reference];
    let fields = Reply::Array(fields.map(Reply::bulk).to_vec());
    (id, Reply::Array(vec![Reply::bulk(id.to_string()), fields]))
}

/// A server of these entries, and of the payloads of all but those that are named: as many bytes as it is asked
/// for, all of them the last digit of the message's number.
fn with_payloads(entries: Vec<(StreamId, Reply)>, without: &'static [u64]) -> Stub {
    Stub::start(move |args, _| match &args[0][..] {
        b"XREAD" => Answer::Reply(read(&entries, args)),
        b"GETRANGE" => {
            let id = args[1].strip_prefix(b"re:x:{t}:").unwrap();
            let n = u64::from_str_radix(std::str::from_utf8(id).unwrap(), 16).unwrap();
            let bytes: usize = std::str::from_utf8(&args[3]).unwrap().parse().unwrap();
            let body = vec![b'0' + (n % 10) as u8; bytes];
            Answer::Reply(Reply::bulk(if without.contains(&n) {
                &[][..]
            } else {
                &body
            }))
        }
        _ => Answer::Usual,
    })
    .unwrap()
}

/// Goes through the last read as a lane does, and returns the bodies, or what they begin with, of what could be
/// handed over at a time.
fn handed(r: &mut Reader) -> Vec<String> {
    let (mut start, mut all) = (0, Vec::new());
    while start < r.records().len() {
        if r.waits_for_body(start) {
            r.fetch(start).unwrap();
        }
        let records = r.ready_from(start);
        let told = records.iter().map(|record| match record.kept {
            Body::Here => {
                let body = record.body.of(r.bytes());
                assert!(body.iter().all(|b| *b == body[0]));
                char::from(body[0])
            }
            Body::Apart => '?',
            Body::Missing => '-',
        });
        all.push(told.collect());
        start += records.len();
    }
    all
}

#[test]
fn bodies_that_are_kept_apart_are_fetched_as_many_as_a_batch_may_hold() {
    const KB: usize = 1024;
    let all = vec![
        apart(1, 20 * KB),
        apart(2, 20 * KB),
        entry(3, 10),
        apart(4, 24 * KB),
        apart(5, KB),
        apart(6, MB),
        entry(7, 10),
        apart(8, 40 * KB),
        apart(9, 40 * KB),
        entry(10, 10),
    ];
    let stub = with_payloads(all, &[]);
    let mut r = reader(&stub, plan()).with_payloads(b"re:x:{t}:"[..].into());
    assert!(matches!(once(&mut r).unwrap(), Brought::Entries { .. }));
    assert!(!r.is_ready() && r.waits_for_body(0));
    assert_eq!(handed(&mut r), ["12x4", "5", "6x", "8", "9x"]);
    assert!(r.is_ready());
    assert!(r.arena.capacity() < MB + 128 * KB, "one window at a time");
    let asked = stub
        .seen()
        .iter()
        .filter(|s| s.name() == "GETRANGE")
        .count();
    assert_eq!(asked, 7, "each once");
    assert_eq!(once(&mut r).unwrap(), Brought::Nothing);
    assert!(r.is_ready());
    for _ in 0..=SMALL_IN_A_ROW {
        once(&mut r).unwrap();
    }
    assert_eq!(r.arena.capacity(), r.plan.arena_bytes(), "given back");
}

#[test]
fn a_missing_body_is_by_itself_and_costs_its_neighbours_nothing() {
    let all = (1..=6).map(|n| apart(n, 2000)).collect();
    let stub = with_payloads(all, &[1, 4, 6]);
    let mut r = reader(&stub, plan()).with_payloads(b"re:x:{t}:"[..].into());
    once(&mut r).unwrap();
    assert_eq!(handed(&mut r), ["-", "23", "-", "5", "-"]);
}

#[test]
fn an_answer_that_is_no_payload_is_an_error_and_is_asked_for_again() {
    let entries = vec![apart(1, 2000)];
    let odd = AtomicUsize::new(0);
    let stub = Stub::start(move |args, _| match &args[0][..] {
        b"XREAD" => Answer::Reply(read(&entries, args)),
        b"GETRANGE" => match odd.fetch_add(1, Ordering::Relaxed) {
            0 => Answer::Bytes(b"$99999999\r\nx".to_vec()),
            1 => Answer::Reply(Reply::Array(vec![Reply::bulk("x")])),
            2 => Answer::Bytes(b"-LOADING wait\r\n".to_vec()),
            3 => Answer::Half([&b"$2000\r\n"[..], &[b'x'; 2000]].concat()),
            _ => Answer::Reply(Reply::bulk([b'1'; 2000])),
        },
        _ => Answer::Usual,
    })
    .unwrap();
    let mut r = reader(&stub, plan()).with_payloads(b"re:x:{t}:"[..].into());
    once(&mut r).unwrap();
    let mut failed = Vec::new();
    while let Err(e) = r.fetch(0) {
        assert!(e.to_string().contains("kept apart"), "{e}");
        if !e.keeps_connection() {
            r.disconnect();
            r.connect().unwrap();
        }
        failed.push(e.kind());
    }
    let expected = [
        ErrorKind::Protocol,
        ErrorKind::Protocol,
        ErrorKind::Server,
        ErrorKind::Io,
    ];
    assert_eq!(failed, expected);
    assert_eq!(handed(&mut r), ["1"]);
}
