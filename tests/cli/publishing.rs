//! `streamlane publish`, compared with what is stored.

use crate::support::*;

const STREAM: &str = "re:s:{said}:0";

#[test]
fn what_is_published_is_stored_with_all_it_has() {
    let server = server();
    topic(&server, "said", 1);
    let args = ["publish", "said", "--type", "Note"];
    let said = |more: &[&str]| run(&server, &[&args, more].concat());

    let id = said(&["hello"]).well(0);
    assert_eq!(ids(&server, STREAM), [id.trim()]);
    let stored = fields(&server, STREAM, id.trim());
    let of = |name: &str| stored.iter().find(|(n, _)| n == name).map(|(_, v)| &**v);
    assert_eq!(
        (of("b"), of("t"), of("k")),
        (Some("hello"), Some("Note"), Some(""))
    );

    let object = said(&[
        "--json",
        "--key",
        "k7",
        "--header",
        "source=shop",
        "--header",
        "empty=",
        "--correlation-id",
        "c1",
        "--partition",
        "0",
        "{\"n\":1}",
    ])
    .object(0);
    let stored = fields(&server, STREAM, object["id"].as_str().unwrap());
    let names: Vec<_> = stored.iter().map(|(n, v)| (&**n, &**v)).collect();
    assert_eq!(
        names[..4],
        [("b", "{\"n\":1}"), ("t", "Note"), ("k", "k7"), ("c", "c1")]
    );
    assert!(
        names[4].1.contains("source") && names[4].1.contains("shop"),
        "{names:?}"
    );

    let id = run_with(&server, &args, b"two\nlines\n").well(0);
    let stored = fields(&server, STREAM, id.trim());
    assert_eq!(stored[0].1, "two\nlines\n");
}

#[test]
fn lines_are_messages_in_their_order() {
    let server = server();
    topic(&server, "said", 1);
    let args = ["publish", "said", "--type", "Line"];
    let input: Vec<_> = (0..1300).map(|n| format!("line {n}\n")).collect();
    let input = input.concat();
    let said = run_with(
        &server,
        &[&args[..], &["--lines"]].concat(),
        input.as_bytes(),
    )
    .well(0);
    let said: Vec<_> = said.lines().collect();
    assert_eq!(said.len(), 1300);
    assert!(ids(&server, STREAM) == said);
    assert_eq!(fields(&server, STREAM, said[777])[0].1, "line 777");

    let keyed = [&args[..], &["--keyed", "--json"]].concat();
    let objects = run_with(&server, &keyed, b"a\tone\nb\ttwo\tmore").objects(0);
    let stored: Vec<_> = objects
        .iter()
        .map(|o| fields(&server, STREAM, o["id"].as_str().unwrap()))
        .map(|f| (f[2].1.clone(), f[0].1.clone()))
        .collect();
    assert_eq!(
        stored,
        [("a".into(), "one".into()), ("b".into(), "two\tmore".into())]
    );

    let complaint = run_with(&server, &keyed, b"a\tone\nno tab").complaint(64);
    assert!(complaint.contains("line 2"), "{complaint}");
    assert_eq!(number(&server, &format!("XLEN {STREAM}")), 1302);
}

#[test]
fn a_message_with_a_delay_waits_on_the_server() {
    let server = server();
    drop(filled(&server, "later", 2, 1));
    let delayed = run(
        &server,
        &[
            "publish", "later", "--type", "T", "--delay", "1h", "--key", "a", "x", "--json",
        ],
    );
    let delayed = delayed.object(0);
    assert!(delayed["due"].as_str().unwrap().ends_with('Z'), "{delayed}");
    assert!(!delayed["delayed"].as_str().unwrap().is_empty());
    assert_eq!(number(&server, "ZCARD re:dl:{later}"), 1);
    let text = run(
        &server,
        &["publish", "later", "--type", "T", "--delay", "90m", "x"],
    )
    .well(0);
    assert!(text.contains("due 20"), "{text}");
    assert_eq!(number(&server, "ZCARD re:dl:{later}"), 2);
}

#[test]
fn a_topic_is_made_only_when_asked_for() {
    let server = server();
    let complaint = run(&server, &["publish", "new", "--type", "T", "x"]).complaint(2);
    assert!(complaint.contains("--create"), "{complaint}");
    assert_eq!(number(&server, "DBSIZE"), 0);
    run(&server, &["publish", "new", "--type", "T", "x", "--create"]).well(0);
    run(&server, &["publish", "new", "--type", "T", "x"]).well(0);
    let lengths = number(&server, "XLEN re:s:{new}:0") + number(&server, "XLEN re:s:{new}:1");
    assert_eq!(lengths, 2);
}

#[test]
fn what_cannot_be_published_is_said() {
    let server = server();
    drop(filled(&server, "full", 1, 1));
    ask(&server, "CONFIG SET maxmemory 1");
    let args = ["publish", "full", "--type", "T"];
    let complaint = run(&server, &[&args[..], &["x"]].concat()).complaint(2);
    assert!(complaint.contains("OOM"), "{complaint}");
    let complaint = run_with(&server, &[&args[..], &["--lines"]].concat(), b"a\nb\n").complaint(2);
    assert!(
        complaint.contains("line 1") && complaint.contains("OOM"),
        "{complaint}"
    );
    assert_eq!(number(&server, "XLEN re:s:{full}:0"), 1);
}
