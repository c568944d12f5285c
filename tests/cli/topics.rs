//! `streamlane topics`, `trim`, `pending` and `consumers`, compared with the server.

use std::time::Duration;

use streamlane::{Delivery, HandlerResult, Message, OrAction, testing::eventually};

use crate::support::*;

const PATIENCE: Duration = Duration::from_secs(30);

#[expect(clippy::unnecessary_wraps, reason = "it is a handler")]
fn nothing(_: &Message<'_>) -> HandlerResult {
    Ok(())
}

#[test]
fn topics_are_made_listed_described_enlarged_and_deleted() {
    let server = server();
    let topics = |args: &[&str]| run(&server, &[&["topics"], args].concat());
    assert_eq!(topics(&["list"]).well(0), "");
    let made = topics(&[
        "create",
        "orders",
        "--partitions",
        "3",
        "--max-len",
        "500",
        "--json",
    ])
    .object(0);
    assert_eq!(made["created"], true);
    assert_eq!(number(&server, "HGET re:m:{orders} partitions"), 3);
    topics(&["create", "orders", "--partitions", "9"]).well(1);
    assert_eq!(number(&server, "HGET re:m:{orders} partitions"), 3);
    topics(&["create", "another"]).well(0);
    assert_eq!(topics(&["list"]).well(0), "another\norders\n");
    assert_eq!(topics(&["list", "--json"]).objects(0)[1]["topic"], "orders");

    for n in 0..20 {
        let (key, body) = (format!("k{n}"), n.to_string());
        run(
            &server,
            &["publish", "orders", "--type", "T", "--key", &key, &body],
        )
        .well(0);
    }
    let described = topics(&["describe", "orders", "--json"]).object(0);
    assert_eq!(
        (&described["entries"], &described["recorded"]),
        (&20.into(), &true.into())
    );
    for (p, partition) in described["partitions"]
        .as_array()
        .unwrap()
        .iter()
        .enumerate()
    {
        let key = format!("re:s:{{orders}}:{p}");
        assert_eq!(partition["key"], *key);
        assert_eq!(partition["length"], number(&server, &format!("XLEN {key}")));
        let stored = ids(&server, &key);
        assert_eq!(
            partition["last"].as_str(),
            stored.last().map(String::as_str)
        );
    }
    let text = topics(&["describe", "orders"]).well(0);
    assert!(
        text.contains("orders: 3 partitions, 20 entries") && text.contains("read by nobody"),
        "{text}"
    );
    topics(&["describe", "nowhere"]).complaint(1);

    let grown = topics(&["grow", "orders", "5", "--json"]).object(0);
    assert_eq!(
        (&grown["before"], &grown["partitions"]),
        (&3.into(), &5.into())
    );
    assert_eq!(number(&server, "HGET re:m:{orders} partitions"), 5);
    assert!(
        topics(&["grow", "orders", "2"])
            .complaint(2)
            .contains("never shrinks")
    );

    let refused = topics(&["delete", "orders"]);
    assert!(
        refused.status == 3 && refused.err.contains("20 entries for good"),
        "{refused:?}"
    );
    assert_eq!(number(&server, "EXISTS re:m:{orders}"), 1);
    let before = number(&server, "DBSIZE");
    let deleted = topics(&["delete", "orders", "--yes", "--json"]).object(0);
    assert_eq!(deleted["keys"], before - number(&server, "DBSIZE"));
    assert_eq!(ask(&server, "KEYS *orders*").items().len(), 0);
    assert_eq!(topics(&["list"]).well(0), "another\n");
    topics(&["delete", "orders", "--yes"]).complaint(1);

    // one that nobody listed
    topic(&server, "foreign", 1);
    ask(&server, "XADD re:s:{foreign}:0 * b x t T k k");
    assert_eq!(topics(&["list"]).well(0), "another\n");
    assert_eq!(topics(&["adopt"]).well(0), "foreign\n");
    assert_eq!(topics(&["list"]).well(0), "another\nforeign\n");
}

#[test]
fn a_topic_that_is_read_is_not_deleted() {
    let server = server();
    let streams = filled(&server, "used", 1, 5);
    let consumer = streams
        .consumer("used")
        .name("billing")
        .messages(|_| nothing)
        .start()
        .unwrap();
    let refused = run(&server, &["topics", "delete", "used", "--yes"]);
    assert!(
        refused.status == 2 && refused.err.contains("in use"),
        "{refused:?}"
    );
    assert_eq!(number(&server, "XLEN re:s:{used}:0"), 5);
    drop(consumer);
    run(&server, &["topics", "delete", "used", "--yes"]).well(0);
}

#[test]
fn trimming_leaves_what_is_to_be_read() {
    let server = server();
    let streams = filled(&server, "long", 2, 100);
    let lengths = || [0, 1].map(|p| number(&server, &format!("XLEN re:s:{{long}}:{p}")));
    let [first, second] = lengths();
    let args = ["trim", "long", "--max-len", "10"];
    let refused = run(&server, &args);
    assert!(
        refused.status == 3 && refused.err.contains("for good"),
        "{refused:?}"
    );
    assert_eq!(lengths(), [first, second]);
    // somebody has all of it yet to read
    let consumer = streams
        .consumer("long")
        .name("billing")
        .messages(|_| nothing)
        .start()
        .unwrap();
    let handled = || consumer.partitions().iter().map(|p| p.handled).sum::<u64>() == 100;
    assert!(eventually(PATIENCE, handled));
    drop(consumer);
    run(
        &server,
        &[
            "reset", "long", "billing", "--to", "start", "--apply", "--yes",
        ],
    )
    .well(0);
    let lines = run(&server, &[&args[..], &["--yes", "--json"]].concat()).objects(0);
    assert_eq!(
        lines
            .iter()
            .map(|l| l["trimmed"].as_u64().unwrap())
            .sum::<u64>(),
        0,
        "{lines:?}"
    );
    assert_eq!(lengths(), [first, second]);

    run(
        &server,
        &[
            "reset", "long", "billing", "--to", "end", "--apply", "--yes",
        ],
    )
    .well(0);
    let lines = run(
        &server,
        &[&args[..], &["--yes", "--json", "--partition", "0"]].concat(),
    )
    .objects(0);
    assert_eq!((lines.len(), &lines[0]["length"]), (1, &first.into()));
    assert_eq!(lines[0]["trimmed"], first - lengths()[0]);
    assert_eq!(lengths(), [10, second]);
    let text = run(&server, &[&args[..], &["--yes", "--force"]].concat()).well(0);
    assert!(text.contains("were deleted"), "{text}");
    assert_eq!(lengths(), [10, 10]);
    run(&server, &["trim", "long", "--older-than", "1h", "--yes"]).well(0);
    assert_eq!(lengths(), [10, 10]);
    assert_eq!(run(&server, &["trim", "long"]).status, 64);
}

#[test]
fn what_members_have_in_hand_is_what_the_group_says() {
    let server = server();
    let streams = filled(&server, "hands", 1, 6);
    let consumer = streams
        .consumer("hands")
        .name("sender")
        .delivery(Delivery::WorkQueue)
        .batch_size(3);
    let blocked = |_: &Message<'_>| -> HandlerResult { Err("the ledger is down").or_block() };
    let consumer = consumer.messages(move |_| blocked).start().unwrap();
    let pending = || ask(&server, "XPENDING re:s:{hands}:0 sender - + 100");
    assert!(eventually(PATIENCE, || pending().items().len() >= 3));
    let lines = run(&server, &["pending", "hands", "sender", "--json"]).objects(0);
    let pending = pending();
    assert_eq!(lines.len(), pending.items().len());
    for (line, told) in lines.iter().zip(pending.items()) {
        let told = told.items();
        assert_eq!(line["id"], *told[0].text());
        assert_eq!(line["member"], *told[1].text());
        assert_eq!(line["deliveries"].as_i64(), told[3].int());
    }
    let text = run(
        &server,
        &["pending", "hands", "sender", "--limit", "2", "--by", "idle"],
    )
    .well(0);
    assert!(
        text.contains("and more") && text.contains("3 in all") || text.contains("6 in all"),
        "{text}"
    );
    assert_eq!(
        run(
            &server,
            &["pending", "hands", "sender", "--min-idle", "1h", "--json"]
        )
        .objects(0)
        .len(),
        0
    );
    run(&server, &["pending", "hands", "nobody"]).complaint(1);
    drop(consumer);
}

#[test]
fn consumers_are_listed_and_forgotten() {
    let server = server();
    let streams = filled(&server, "read", 2, 10);
    let consumer = streams
        .consumer("read")
        .name("billing")
        .messages(|_| nothing)
        .start()
        .unwrap();
    let handled = || consumer.partitions().iter().map(|p| p.handled).sum::<u64>() == 10;
    assert!(eventually(PATIENCE, handled));
    ask(&server, "XGROUP CREATE re:s:{read}:0 foreign 0");
    let lines = run(&server, &["consumers", "list", "read", "--json"]).objects(0);
    let names: Vec<_> = lines
        .iter()
        .map(|l| (l["name"].as_str().unwrap(), l["keeps"].as_str().unwrap()))
        .collect();
    assert_eq!(names, [("billing", "positions"), ("foreign", "group")]);
    assert_eq!(
        (&lines[0]["members"], &lines[0]["registered"]),
        (&1.into(), &true.into())
    );
    assert_eq!(lines[1]["registered"], false);
    let text = run(&server, &["consumers", "list", "read"]).well(0);
    assert!(
        text.starts_with("consumer") && text.contains("billing"),
        "{text}"
    );

    let refused = run(
        &server,
        &["consumers", "forget", "read", "billing", "--yes"],
    );
    assert!(
        refused.status == 2 && refused.err.contains("lives"),
        "{refused:?}"
    );
    drop(consumer);
    let refused = run(&server, &["consumers", "forget", "read", "billing"]);
    assert!(
        refused.status == 3 && refused.err.contains("forgets how far billing is"),
        "{refused:?}"
    );
    assert_eq!(number(&server, "EXISTS re:p:{read}:billing"), 1);
    let told = run(
        &server,
        &["consumers", "forget", "read", "billing", "--yes", "--json"],
    )
    .object(0);
    assert!(
        told["keys"]
            .as_array()
            .unwrap()
            .contains(&"re:p:{read}:billing".into()),
        "{told}"
    );
    assert_eq!(
        number(
            &server,
            "EXISTS re:p:{read}:billing re:p:{read}:billing:meta re:o:{read}:billing"
        ),
        0
    );
    assert_eq!(number(&server, "HEXISTS re:c:{read} billing"), 0);
    run(
        &server,
        &["consumers", "forget", "read", "foreign", "--yes"],
    )
    .well(0);
    assert_eq!(
        ask(&server, "XINFO GROUPS re:s:{read}:0")
            .items()
            .iter()
            .map(streamlane::testing::Reply::text)
            .count(),
        0
    );
    run(
        &server,
        &["consumers", "forget", "read", "billing", "--yes"],
    )
    .complaint(1);
}
