//! `streamlane tail` and `streamlane entry`, compared with the streams.

use std::{
    io::{BufRead, BufReader},
    process::Stdio,
};

use crate::support::*;

fn all(server: &streamlane::testing::PrivateServer, topic: &str) -> Vec<String> {
    let mut all = [0, 1]
        .map(|p| ids(server, &format!("re:s:{{{topic}}}:{p}")))
        .concat();
    all.sort_by_key(|id| id.parse::<streamlane::StreamId>().unwrap());
    all
}

fn bodies(lines: &[serde_json::Value]) -> Vec<&str> {
    lines.iter().map(|l| l["body"].as_str().unwrap()).collect()
}

#[test]
fn a_topic_is_read_from_where_it_was_asked_for_without_a_trace() {
    let server = server();
    drop(filled(&server, "read", 2, 60));
    let before = ask(&server, "KEYS *").items().len();
    let stored = all(&server, "read");
    let tail =
        |more: &[&str]| run(&server, &[&["tail", "read", "--json"], more].concat()).objects(0);

    let newest = tail(&[]);
    assert_eq!(newest.len(), 10);
    let of = |lines: &[serde_json::Value]| -> Vec<String> {
        lines
            .iter()
            .map(|l| l["id"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(of(&newest), stored[50..]);
    assert_eq!(of(&tail(&["-n", "25"])), stored[35..]);
    let whole = tail(&["--from", "start"]);
    let mut sorted = of(&whole);
    sorted.sort_by_key(|id| id.parse::<streamlane::StreamId>().unwrap());
    assert_eq!(sorted, stored);
    for p in [0, 1] {
        let lines: Vec<_> = whole
            .iter()
            .filter(|l| l["partition"] == p)
            .cloned()
            .collect();
        assert_eq!(of(&lines), ids(&server, &format!("re:s:{{read}}:{p}")));
        assert_eq!(
            of(&tail(&["--from", "start", "--partition", &p.to_string()])),
            of(&lines)
        );
    }
    assert_eq!(tail(&["--from", "1h"]).len(), 60);
    assert_eq!(tail(&["--from", "end"]).len(), 0);
    assert_eq!(tail(&["--from", "start", "-n", "7"]).len(), 7);
    let key = ids(&server, "re:s:{read}:0")[3].clone();
    let rest = tail(&["--from", &key, "--partition", "0"]);
    assert_eq!(of(&rest), ids(&server, "re:s:{read}:0")[4..]);

    // by what messages are
    run(
        &server,
        &[
            "publish", "read", "--type", "Odd", "--key", "k3", "--header", "a=1", "one",
        ],
    )
    .well(0);
    run(
        &server,
        &[
            "publish", "read", "--type", "T", "--header", "a=1", "--header", "b=2", "two",
        ],
    )
    .well(0);
    assert_eq!(bodies(&tail(&["--type", "Odd"])), ["one"]);
    assert_eq!(bodies(&tail(&["--header", "a=1"])), ["one", "two"]);
    assert_eq!(
        bodies(&tail(&["--header", "a=1", "--header", "b=2"])),
        ["two"]
    );
    let keyed = tail(&["--from", "start", "--key", "k3"]);
    assert_eq!(bodies(&keyed), ["3", "13", "23", "33", "43", "53", "one"]);
    assert_eq!(keyed[6]["headers"][0]["name"], "a");

    let raw = run(
        &server,
        &["tail", "read", "--from", "start", "--key", "k3", "--raw"],
    )
    .well(0);
    assert_eq!(raw, "3\n13\n23\n33\n43\n53\none\n");
    let text = run(&server, &["tail", "read", "-n", "1"]).well(0);
    assert!(text.trim_end().ends_with(" T - two"), "{text}");
    assert_eq!(ask(&server, "KEYS *").items().len(), before);
    let complaint = run(&server, &["tail", "nowhere"]).complaint(2);
    assert!(complaint.contains("nowhere"), "{complaint}");
}

#[test]
fn what_is_published_later_is_followed() {
    let server = server();
    let streams = filled(&server, "grow", 2, 3);
    let mut child = at(&server, &["tail", "grow", "--follow", "--json", "-n", "2"])
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next =
        || -> serde_json::Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    assert_eq!(
        (next()["body"].clone(), next()["body"].clone()),
        ("1".into(), "2".into())
    );
    let publisher = streams.publisher("grow").unwrap();
    for n in 10..40 {
        let id = publisher.publish("one key", "T", n.to_string()).unwrap();
        let line = next();
        assert_eq!(
            (&line["body"], &line["id"]),
            (&n.to_string().into(), &id.to_string().into())
        );
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn an_entry_is_shown_with_all_its_fields() {
    let server = server();
    topic(&server, "single", 1);
    let id = ask(
        &server,
        "XADD re:s:{single}:0 7-1 b hello t Note k key x9 extra",
    )
    .text();
    let text = run(&server, &["entry", "single", "0", &id]).well(0);
    for words in ["entry 7-1  partition 0", "Note", "hello", "5 bytes"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let object = run(&server, &["entry", "single", "0", &id, "--json"]).object(0);
    assert_eq!(
        (&object["body"], &object["type"], &object["key"]),
        (&"hello".into(), &"Note".into(), &"key".into())
    );
    let pairs: Vec<_> = object["fields"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| {
            (
                f["name"].as_str().unwrap().to_owned(),
                f["value"].as_str().unwrap().to_owned(),
            )
        })
        .collect();
    assert_eq!(pairs, fields(&server, "re:s:{single}:0", &id));
    server
        .command(&[
            &b"XADD"[..],
            b"re:s:{single}:0",
            b"8-1",
            b"b",
            b"\xff\x00",
            b"t",
            b"\x1b[2J",
        ])
        .unwrap();
    let object = run(&server, &["entry", "single", "0", "8-1", "--json"]).object(0);
    assert_eq!(
        (&object["body_hex"], &object["type"]),
        (&"ff00".into(), &"\x1b[2J".into())
    );
    let text = run(&server, &["tail", "single", "--from", "start"]).well(0);
    assert!(!text.contains('\x1b'), "{text:?}");
    run(&server, &["entry", "single", "0", "9-9"]).complaint(1);
    assert_eq!(run(&server, &["entry", "single", "5", "9-9"]).status, 2);
}
