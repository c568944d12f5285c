//! `streamlane status` and `streamlane watch`, compared with what the server says.

use std::time::Duration;

use serde_json::Value;
use streamlane::{
    Delivery, HandlerResult, Message, OrAction,
    testing::{PrivateServer, eventually},
};

use crate::support::*;

const PATIENCE: Duration = Duration::from_secs(30);

#[expect(clippy::unnecessary_wraps, reason = "it is a handler")]
fn nothing(_: &Message<'_>) -> HandlerResult {
    Ok(())
}

fn status(server: &PrivateServer, topic: &str, status: i32) -> Vec<Value> {
    run(server, &["status", topic, "billing", "--json"]).objects(status)
}

fn states(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|l| l["state"].as_str().unwrap()).collect()
}

#[test]
fn an_ordered_consumer_is_as_far_as_its_positions_say() {
    let server = server();
    let streams = filled(&server, "far", 2, 30);
    let consumer = streams
        .consumer("far")
        .name("billing")
        .messages(|_| nothing)
        .start()
        .unwrap();
    let there = || {
        let lines = run(&server, &["status", "far", "billing", "--json"]);
        lines.status == 0 && lines.out.matches("caught up").count() == 2
    };
    assert!(
        eventually(PATIENCE, there),
        "{:?}",
        status(&server, "far", 0)
    );
    for (p, line) in status(&server, "far", 0).iter().enumerate() {
        let stream = format!("re:s:{{far}}:{p}");
        let stored = ask(&server, &format!("HGET re:p:{{far}}:billing {p}")).text();
        assert_eq!(line["position"], stored.split('|').next().unwrap());
        assert_eq!(line["tail"], *ids(&server, &stream).last().unwrap());
        assert_eq!(line["length"], number(&server, &format!("XLEN {stream}")));
        assert_eq!((&line["lag"], &line["pending"]), (&0.into(), &().into()));
        let claim = ask(&server, &format!("HGET re:o:{{far}}:billing {p}")).text();
        assert!(
            claim.starts_with(line["owner"].as_str().unwrap()),
            "{claim} {line}"
        );
    }
    let everything = run(&server, &["status"]).well(0);
    assert!(everything.starts_with("far / billing\n"), "{everything}");
    assert_eq!(
        run(&server, &["status", "far", "--json"]).objects(0).len(),
        2
    );
    // one that does not get on
    consumer.pause();
    let publisher = streams.publisher("far").unwrap();
    for n in 0..7 {
        publisher
            .message("T", "x")
            .partition(1)
            .key(&format!("{n}"))
            .publish()
            .unwrap();
    }
    let lines = status(&server, "far", 0);
    assert_eq!(states(&lines), ["caught up", "behind"]);
    assert_eq!(lines[1]["lag"], 7);
    let text = run(&server, &["status", "far", "billing"]).well(0);
    assert!(
        text.contains("1 instance(s), lag 7, dead letters 0"),
        "{text}"
    );

    // and one that is not there
    drop(consumer);
    let lines = status(&server, "far", 1);
    assert!(states(&lines).contains(&"NOBODY"), "{lines:?}");
    assert!(lines.iter().all(|l| l["owner"].is_null()));
    run(&server, &["status", "nowhere", "billing"]).well(1);
}

#[test]
fn what_needs_somebody_is_in_capitals() {
    let server = server();
    let streams = filled(&server, "odd", 2, 40);
    let consumer = streams
        .consumer("odd")
        .name("billing")
        .messages(|_| nothing)
        .start()
        .unwrap();
    let handled = || consumer.partitions().iter().map(|p| p.handled).sum::<u64>() >= 40;
    assert!(eventually(PATIENCE, handled));
    drop(consumer);
    // trimmed behind its back
    let publisher = streams.publisher("odd").unwrap();
    for _ in 0..10 {
        publisher.message("T", "x").partition(0).publish().unwrap();
    }
    ask(&server, "XTRIM re:s:{odd}:0 MAXLEN 3");
    ask(&server, "HSET re:p:{odd}:billing 1 9999999999999-0");
    let lines = status(&server, "odd", 1);
    assert_eq!(states(&lines), ["GAP", "AHEAD"]);
    assert_eq!(lines[0]["lag"], 3);
    let text = run(&server, &["status", "odd", "billing"]).well(1);
    assert!(text.contains("GAP") && text.contains("AHEAD"), "{text}");
}

#[test]
fn a_queue_is_as_far_as_its_groups_say() {
    let server = server();
    let streams = filled(&server, "work", 2, 20);
    let consumer = streams
        .consumer("work")
        .name("billing")
        .delivery(Delivery::WorkQueue)
        .batch_size(5);
    let blocked = |m: &Message<'_>| -> HandlerResult {
        if m.partition() == 1 {
            Err("the ledger is down").or_block()?;
        }
        Ok(())
    };
    let consumer = consumer.messages(move |_| blocked).start().unwrap();
    let pending =
        |p: u32| ask(&server, &format!("XPENDING re:s:{{work}}:{p} billing")).items()[0].int();
    let settled = || {
        pending(0) == Some(0)
            && pending(1) > Some(0)
            && states(&status(&server, "work", 0))[0] == "caught up"
    };
    assert!(eventually(PATIENCE, settled));
    let lines = status(&server, "work", 0);
    assert_eq!(states(&lines), ["caught up", "behind"]);
    assert_eq!(lines[1]["pending"].as_i64(), pending(1));
    let group = ask(&server, "XINFO GROUPS re:s:{work}:1");
    let group: Vec<_> = group.items()[0]
        .items()
        .iter()
        .map(streamlane::testing::Reply::text)
        .collect();
    let delivered = group.iter().position(|f| f == "last-delivered-id").unwrap() + 1;
    assert_eq!(lines[1]["position"], *group[delivered]);
    let text = run(&server, &["status", "work", "billing"]).well(0);
    assert!(
        text.contains("to be retried 0") && text.contains("1 instance(s)"),
        "{text}"
    );
    drop(consumer);
    assert!(states(&status(&server, "work", 1)).contains(&"NOBODY"));
}

#[test]
fn watching_without_a_terminal_writes_as_much_as_was_asked_for() {
    let server = server();
    drop(filled(&server, "seen", 3, 5));
    let args = [
        "watch", "seen", "billing", "--every", "20ms", "--times", "3",
    ];
    let text = run(&server, &args).well(1);
    assert_eq!(text.matches("partition  state").count(), 3, "{text}");
    assert!(!text.contains('\x1b'), "{text:?}");
    let lines = run(&server, &[&args[..], &["--json"]].concat()).objects(1);
    assert_eq!(lines.len(), 9);
    assert_eq!(lines[3]["partition"], 0);
    assert!(
        lines[0]["at"].as_str() < lines[8]["at"].as_str(),
        "{lines:?}"
    );
}
