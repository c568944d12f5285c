//! `streamlane dead-letters`, compared with the stream of letters.

use std::time::Duration;

use streamlane::{
    Message,
    testing::{PrivateServer, eventually},
};

use crate::support::*;

const PATIENCE: Duration = Duration::from_secs(30);
const LETTERS: &str = "re:d:{lost}:billing";

/// A topic of one partition with so many messages, all dead letters of one consumer.
fn lost(n: u32) -> PrivateServer {
    let server = server();
    let streams = filled(&server, "lost", 1, n);
    let consumer = streams.consumer("lost").name("billing").park(0);
    let consumer = consumer.messages(|_| |_: &Message<'_>| Err("no such\taccount".into()));
    let consumer = consumer.start().unwrap();
    let there = || number(&server, &format!("XLEN {LETTERS}")) == i64::from(n);
    assert!(eventually(PATIENCE, there));
    drop(consumer);
    server
}

fn of(server: &PrivateServer, what: &str, more: &[&str]) -> Said {
    run(
        server,
        &[&["dead-letters", what, "lost", "billing"], more].concat(),
    )
}

#[test]
fn they_are_listed_counted_and_shown_as_they_are_stored() {
    let server = lost(12);
    let stored = ids(&server, LETTERS);
    let listed = of(&server, "list", &["--json"]).objects(0);
    assert_eq!(listed.len(), 12);
    for (n, (letter, id)) in listed.iter().zip(&stored).enumerate() {
        assert_eq!(letter["id"], **id);
        let fields = fields(&server, LETTERS, id);
        let of = |name: &str| {
            fields
                .iter()
                .rev()
                .find(|(n, _)| n == name)
                .unwrap()
                .1
                .clone()
        };
        assert_eq!(letter["last_id"], of("!last"));
        assert_eq!(letter["error"], of("!error"));
        assert_eq!(
            (&letter["body"], &letter["key"]),
            (&of("b").into(), &of("k").into())
        );
        assert_eq!(letter["body"], n.to_string());
        assert_eq!(
            (&letter["type"], &letter["reason"]),
            (&"T".into(), &"retries".into())
        );
        assert_eq!(
            (&letter["partition"], &letter["replayed"]),
            (&0.into(), &().into())
        );
    }
    let table = of(&server, "list", &["--limit", "5"]).well(0);
    assert_eq!(table.lines().count(), 7, "{table}");
    assert!(
        table.contains("and more") && table.contains("no such\\taccount"),
        "{table}"
    );

    assert_eq!(of(&server, "list", &["--count"]).well(0), "12\n");
    assert_eq!(
        of(&server, "list", &["--count", "--json", "--type", "U"]).object(0)["count"],
        0
    );
    assert_eq!(
        of(&server, "list", &["--json", "--reason", "handler"])
            .objects(0)
            .len(),
        0
    );
    assert_eq!(
        of(&server, "list", &["--json", "--since", "1h"])
            .objects(0)
            .len(),
        12
    );
    assert_eq!(
        of(&server, "list", &["--json", "--until", "1h"])
            .objects(0)
            .len(),
        0
    );
    assert_eq!(
        of(&server, "list", &["--json", "--partition", "1"])
            .objects(0)
            .len(),
        0
    );

    let whole = of(&server, "show", &[&stored[3]]).well(0);
    assert!(
        whole.contains(&stored[3]) && whole.contains("body           3\n"),
        "{whole}"
    );
    assert_eq!(
        of(&server, "show", &[&stored[3], "--json"]).object(0)["body"],
        "3"
    );
    assert!(of(&server, "show", &["1-1"]).complaint(1).contains("1-1"));
}

#[test]
fn replaying_asks_and_then_publishes_each_once() {
    let server = lost(4);
    let stored = ids(&server, LETTERS);
    let refused = of(&server, "replay", &["--all", "--to", "everyone"]).complaint(3);
    assert!(
        refused.contains("4 dead letter(s)") && refused.contains("every consumer"),
        "{refused}"
    );
    assert_eq!(number(&server, "XLEN re:s:{lost}:0"), 4);

    let one = of(
        &server,
        "replay",
        &[&stored[0], "9-9", "--to", "everyone", "--yes", "--json"],
    )
    .object(1);
    assert_eq!((&one["replayed"], &one["gone"]), (&1.into(), &1.into()));
    let text = of(
        &server,
        "replay",
        &["--all", "--to", "everyone", "--yes", "--rate", "1000"],
    )
    .well(0);
    assert!(text.contains("replayed 3, replayed before 1,"), "{text}");
    let stream = ids(&server, "re:s:{lost}:0");
    assert_eq!(stream.len(), 8);
    let listed = of(&server, "list", &["--json"]).objects(0);
    let replayed: Vec<_> = listed
        .iter()
        .map(|l| l["replayed"].as_str().unwrap())
        .collect();
    assert_eq!(replayed, stream[4..]);
    assert_eq!(
        of(&server, "list", &["--json", "--unreplayed"])
            .objects(0)
            .len(),
        0
    );
}

#[test]
fn deleting_asks_and_then_deletes_what_was_named() {
    let server = lost(6);
    let stored = ids(&server, LETTERS);
    let refused = of(&server, "delete", &[&stored[0]]).complaint(3);
    assert!(
        refused.contains("deletes 1 dead letter(s)") && refused.contains("--yes"),
        "{refused}"
    );
    let refused = of(&server, "delete", &["--all"]).complaint(3);
    assert!(refused.contains("deletes 6 dead letter(s)"), "{refused}");
    assert_eq!(ids(&server, LETTERS), stored);

    assert_eq!(
        of(&server, "delete", &[&stored[1], "--yes"]).well(0),
        "deleted 1\n"
    );
    assert_eq!(ids(&server, LETTERS), [&stored[..1], &stored[2..]].concat());
    assert_eq!(
        of(&server, "delete", &[&stored[1], "--yes", "--json"]).object(1)["deleted"],
        0
    );
    assert_eq!(
        of(
            &server,
            "delete",
            &["--all", "--until", "1h", "--yes", "--json"]
        )
        .object(0)["deleted"],
        0
    );
    assert_eq!(
        of(&server, "delete", &["--all", "--yes"]).well(0),
        "deleted 5\n"
    );
    assert_eq!(number(&server, &format!("XLEN {LETTERS}")), 0);
}
