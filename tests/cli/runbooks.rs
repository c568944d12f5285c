//! The runbooks of the README, line by line as they stand there, and whether what they promise is so.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use streamlane::{
    Consumer, HandlerResult, Message, OrAction, Streams,
    testing::{PrivateServer, Reply, eventually},
};

use crate::support::*;

const PATIENCE: Duration = Duration::from_secs(30);
const README: &str = include_str!("../../README.md");
const VARIABLE: &str = "STREAMS__CONNECTIONSTRING";
const URL: &str = "redis://127.0.0.1:6379";

/// What proves a runbook: it runs each of its lines at the time and asks the server itself.
type Proof = fn(&mut Runbook);

const PROOFS: &[(&str, Proof)] = &[
    ("Replay from a date", replay),
    ("Who owns what", owners),
    ("A stuck partition", stuck),
    ("A full Redis", full),
    ("Dead letters", letters),
];

/// The lines of one block, and which of them were run.
struct Runbook {
    title: String,
    lines: Vec<(String, bool)>,
}

impl Runbook {
    /// Runs a line as it stands there, against this server. Who is asked says yes: it comes back whether anybody was.
    #[track_caller]
    fn run(&mut self, server: &PrivateServer, n: usize) -> (Said, bool) {
        let (line, ran) = &mut self.lines[n];
        *ran = true;
        let url = server.url();
        let line = line.replace(URL, &url);
        assert!(
            !line.contains(['"', '\'', '$', '#', '|', '\\']),
            "only words: {line}"
        );
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(words[0], "streamlane", "{line}");
        let said = |more: &[&str]| {
            let mut command = program(&[&words[1..], more].concat());
            Said::of(&command.env(VARIABLE, &url).output().unwrap())
        };
        let first = said(&[]);
        if first.status == 3 {
            assert!(first.err.contains("--yes"), "{line}: {first:?}");
            (said(&["--yes"]), true)
        } else {
            (first, false)
        }
    }

    /// What a line prints that ends with this status and asks nobody.
    #[track_caller]
    fn looks(&mut self, server: &PrivateServer, n: usize, status: i32) -> String {
        let (said, asked) = self.run(server, n);
        assert!(!asked, "line {n} asks: {said:?}");
        said.well(status)
    }

    /// What a line prints that does what it says once somebody said yes.
    #[track_caller]
    fn does(&mut self, server: &PrivateServer, n: usize) -> String {
        let (said, asked) = self.run(server, n);
        assert!(asked, "line {n} asks nobody: {said:?}");
        said.well(0)
    }
}

fn section() -> &'static str {
    let (_, rest) = README.split_once("\n## Runbooks\n").unwrap();
    rest.split_once("\n## ").unwrap().0
}

fn runbooks() -> Vec<Runbook> {
    let mut all: Vec<Runbook> = Vec::new();
    let (mut title, mut inside) = ("", false);
    for line in section().lines() {
        if let Some(name) = line.strip_prefix("### ") {
            title = name;
        } else if line == "```sh" {
            inside = true;
            let (title, lines) = (title.to_owned(), Vec::new());
            all.push(Runbook { title, lines });
        } else if line.starts_with("```") {
            assert!(["```", "```rust,no_run"].contains(&line), "{line}");
            inside = false;
        } else if inside {
            all.last_mut().unwrap().lines.push((line.to_owned(), false));
        }
    }
    all
}

#[test]
fn each_does_what_it_promises() {
    assert!(section().contains(&format!("`export {VARIABLE}={URL}`")));
    let mut all = runbooks();
    let titles: Vec<_> = all.iter().map(|r| &*r.title).collect();
    let proven: Vec<_> = PROOFS.iter().map(|p| p.0).collect();
    assert_eq!(titles, proven, "each block of the README has its proof");
    for (runbook, (title, proof)) in all.iter_mut().zip(PROOFS) {
        println!("{title}");
        proof(runbook);
        for (line, ran) in &runbook.lines {
            assert!(ran, "{title}: nothing proves {line:?}");
        }
    }
}

/// The topic `orders` with so many partitions, on a server of its own.
fn orders(partitions: u32) -> (PrivateServer, Streams) {
    let server = server();
    topic(&server, "orders", partitions);
    let streams = Streams::connect(server.url()).unwrap();
    (server, streams)
}

/// Adds an entry under this id, or one that the server chooses, and returns it.
fn add(server: &PrivateServer, partition: u32, id: &str, body: &str) -> String {
    let entry = format!("t OrderPlaced k customer-7 b {body}");
    ask(
        server,
        &format!("XADD re:s:{{orders}}:{partition} {id} {entry}"),
    )
    .text()
}

type Ids = Arc<Mutex<Vec<String>>>;

/// A consumer of `orders`, and the ids of what it has handled. What has the body `bad` it must not step past.
fn reading(streams: &Streams, name: &str) -> (Consumer, Ids) {
    let handled = Ids::default();
    let ids = handled.clone();
    let consumer = streams.consumer("orders").name(name);
    let consumer = consumer.messages(move |_| {
        let ids = ids.clone();
        move |m: &Message<'_>| -> HandlerResult {
            if m.body() == b"bad" {
                Err("no such customer").or_block()?;
            }
            ids.lock().push(m.id().to_string());
            Ok(())
        }
    });
    (consumer.start().unwrap(), handled)
}

/// Waits until somebody has handled these and nothing else, in whatever order of partitions.
#[track_caller]
fn wait_for(handled: &Ids, expected: &[&str]) {
    let sorted = || {
        let mut ids = handled.lock().clone();
        ids.sort();
        ids
    };
    eventually(PATIENCE, || sorted().len() >= expected.len());
    assert_eq!(sorted(), expected);
}

/// The id in a stored position.
fn position(server: &PrivateServer, consumer: &str, partition: u32) -> String {
    let stored = ask(
        server,
        &format!("HGET re:p:{{orders}}:{consumer} {partition}"),
    );
    stored.text().split('|').next().unwrap().to_owned()
}

fn replay(book: &mut Runbook) {
    let (server, streams) = orders(2);
    // 2026-01-31T08:00:00Z and what is around it
    let all = [
        (0, "1769846399998-0"),
        (1, "1769846399999-7"),
        (0, "1769846400000-0"),
        (0, "1769846400000-1"),
        (1, "1769846400001-0"),
        (1, "1769850000000-0"),
    ];
    for (partition, id) in all {
        add(&server, partition, id, "x");
    }
    let ids = all.map(|(_, id)| id);
    let (consumer, handled) = reading(&streams, "billing");
    wait_for(&handled, &ids);
    drop(consumer);
    let ends = ["1769846400000-1", "1769850000000-0"];
    let positions = || [0, 1].map(|p| position(&server, "billing", p));
    assert_eq!(positions(), ends);

    let shown = book.looks(&server, 0, 0);
    assert!(
        shown.contains("rewind") && shown.contains("--apply"),
        "{shown}"
    );
    assert_eq!(positions(), ends);
    book.does(&server, 1);
    assert_eq!(ask(&server, "XLEN re:s:{orders}:0").int(), Some(3));

    let (consumer, handled) = reading(&streams, "billing");
    wait_for(&handled, &ids[2..]);
    drop(consumer);
    assert_eq!(positions(), ends);
}

fn owners(book: &mut Runbook) {
    let (server, streams) = orders(3);
    let id = add(&server, 1, "*", "x");
    let (consumer, handled) = reading(&streams, "billing");
    wait_for(&handled, &[&id]);
    let claims = || {
        let claimed = |p| number(&server, &format!("HEXISTS re:o:{{orders}}:billing {p}")) == 1;
        (0..3).all(claimed)
    };
    assert!(eventually(PATIENCE, claims));
    let text = book.looks(&server, 0, 0);
    for partition in 0..3 {
        let claim = ask(
            &server,
            &format!("HGET re:o:{{orders}}:billing {partition}"),
        );
        let claim = claim.text();
        let line = text.lines().nth(1 + partition).unwrap();
        let (instance, pod) = claim.split_once('|').unwrap();
        let pod = pod.split('#').next().unwrap();
        assert!(
            line.contains(instance) && line.contains(pod),
            "{claim}: {line}"
        );
    }
    let listed = book.looks(&server, 1, 0);
    let line = listed.lines().find(|l| l.starts_with("billing"));
    assert!(line.is_some(), "{listed}");
    assert_eq!(number(&server, "HLEN re:c:{orders}"), 1);

    drop(consumer);
    assert!(book.looks(&server, 0, 1).contains("nobody"));
}

fn stuck(book: &mut Runbook) {
    let (server, streams) = orders(4);
    for (id, body) in [(0, "x"), (5, "bad"), (6, "y"), (7, "z")] {
        add(&server, 3, &format!("172600000000{id}-0"), body);
    }
    let (consumer, handled) = reading(&streams, "billing");
    wait_for(&handled, &["1726000000000-0"]);
    let stays = || {
        ask(&server, "HEXISTS re:p:{orders}:billing 3").int() == Some(1)
            && position(&server, "billing", 3) == "1726000000000-0"
            && consumer.partitions().iter().any(|p| p.failures > 0)
    };
    assert!(eventually(PATIENCE, stays), "{:?}", consumer.partitions());

    let status = book.looks(&server, 0, 0);
    let line = status.lines().nth(4).unwrap();
    let words: Vec<_> = line.split_whitespace().take(4).collect();
    assert_eq!(words, ["3", "behind", "3", "1726000000000-0"], "{status}");
    let tail = book.looks(&server, 1, 0);
    assert!(
        tail.contains("1726000000005-0") && !tail.contains("1726000000006-0"),
        "{tail}"
    );
    assert!(book.looks(&server, 2, 0).contains("bad"));

    book.does(&server, 3);
    let past = ["1726000000000-0", "1726000000006-0", "1726000000007-0"];
    wait_for(&handled, &past);
    let stored = || position(&server, "billing", 3) == past[2];
    assert!(eventually(PATIENCE, stored));
    assert_eq!(number(&server, "XLEN re:s:{orders}:3"), 4);
    drop(consumer);
}

fn full(book: &mut Runbook) {
    let (server, streams) = orders(2);
    let body = "x".repeat(20_000);
    let id = |n: u32| format!("1726000000{n:03}-0");
    add(&server, 0, &id(0), "x");
    // one that ended long ago, and one that has nearly all
    let (old, handled) = reading(&streams, "old-billing");
    wait_for(&handled, &[&id(0)]);
    drop(old);
    for n in 1..200 {
        add(&server, 0, &id(n), &body);
    }
    let read: Vec<_> = (0..200).map(id).collect();
    let read: Vec<_> = read.iter().map(|id| &**id).collect();
    let (billing, handled) = reading(&streams, "billing");
    wait_for(&handled, &read);
    drop(billing);
    let mut unread: Vec<_> = (200..203).map(|n| add(&server, 0, &id(n), &body)).collect();
    unread.push(add(&server, 0, "*", "young"));
    let memory = ask(&server, "INFO memory").text();
    let used = memory.lines().find_map(|l| l.strip_prefix("used_memory:"));
    ask(&server, &format!("CONFIG SET maxmemory {}", used.unwrap()));
    let publish = ["publish", "orders", "--type", "T", "--key", "k", "x"];
    let refused = run(&server, &publish);
    assert_eq!(refused.status, 2, "{refused:?}");
    // nothing can go yet
    let trim = ["trim", "orders", "--older-than", "7d", "--yes"];
    run(&server, &trim).well(0);
    assert_eq!(number(&server, "XLEN re:s:{orders}:0"), 204);

    let doctor = book.looks(&server, 0, 1);
    assert!(doctor.contains("FIX   memory"), "{doctor}");
    assert_eq!(book.looks(&server, 1, 0), "orders\n");
    assert!(book.looks(&server, 2, 0).contains("204 entries"));
    assert!(book.looks(&server, 3, 0).contains("old-billing"));
    book.does(&server, 4);
    assert_eq!(number(&server, "EXISTS re:p:{orders}:old-billing"), 0);
    assert_eq!(number(&server, "HEXISTS re:c:{orders} old-billing"), 0);
    assert_eq!(number(&server, "EXISTS re:p:{orders}:billing"), 1);
    book.does(&server, 5);
    // what a position names stays, too
    unread.insert(0, id(199));
    assert_eq!(ids(&server, "re:s:{orders}:0"), unread);
    run(&server, &publish).well(0);
}

fn letters(book: &mut Runbook) {
    const LETTERS: &str = "re:d:{orders}:billing";
    let (server, streams) = orders(1);
    for body in ["first", "second"] {
        add(&server, 0, "*", body);
    }
    let consumer = streams.consumer("orders").name("billing").park(0);
    let consumer = consumer.messages(|_| |_: &Message<'_>| Err("no such account".into()));
    let consumer = consumer.start().unwrap();
    let there = || number(&server, &format!("XLEN {LETTERS}")) == 2;
    assert!(eventually(PATIENCE, there));
    drop(consumer);
    // the same under the ids of the README
    let stored = ids(&server, LETTERS).into_iter();
    let stored: Vec<_> = stored.map(|id| fields(&server, LETTERS, &id)).collect();
    ask(&server, &format!("DEL {LETTERS}"));
    let names = ["1726000000000-0", "1726000000001-0"];
    for (id, fields) in names.iter().zip(&stored) {
        let mut command = vec!["XADD", LETTERS, id];
        command.extend(fields.iter().flat_map(|(name, value)| [&**name, &**value]));
        server.command(&command).unwrap();
    }
    assert_eq!(ids(&server, LETTERS), names);

    let listed = book.looks(&server, 0, 0);
    for word in ["no such account", names[0], names[1]] {
        assert!(listed.contains(word), "{word}: {listed}");
    }
    let shown = book.looks(&server, 1, 0);
    assert!(
        shown.contains("first") && !shown.contains("second"),
        "{shown}"
    );
    book.does(&server, 2);
    let stream = ids(&server, "re:s:{orders}:0");
    assert_eq!(stream.len(), 3);
    let again = fields(&server, "re:s:{orders}:0", &stream[2]);
    assert!(again.contains(&("b".into(), "first".into())), "{again:?}");
    let meta = ask(&server, "HVALS re:d:{orders}:billing:meta");
    let noted = meta.items().iter().map(Reply::text);
    assert_eq!(noted.filter(|v| v.ends_with(&stream[2])).count(), 1);
    assert_eq!(ids(&server, LETTERS), names);
    book.does(&server, 3);
    assert_eq!(number(&server, &format!("XLEN {LETTERS}")), 0);
    assert_eq!(ids(&server, "re:s:{orders}:0"), stream);
}
