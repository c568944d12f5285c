//! Who owns what, and moving a consumer.

use std::time::Duration;

use streamlane::{Consumer, Delivery, HandlerResult, Message, Streams, testing::eventually};

use crate::support::*;

const PATIENCE: Duration = Duration::from_secs(30);

#[expect(clippy::unnecessary_wraps, reason = "it is a handler")]
fn nothing(_: &Message<'_>) -> HandlerResult {
    Ok(())
}

/// A consumer that has handled so many.
fn handling(streams: &Streams, topic: &str, name: &str, n: u64) -> Consumer {
    let consumer = streams
        .consumer(topic)
        .name(name)
        .messages(|_| nothing)
        .start()
        .unwrap();
    let handled = || consumer.partitions().iter().map(|p| p.handled).sum::<u64>() >= n;
    assert!(eventually(PATIENCE, handled), "{:?}", consumer.partitions());
    consumer
}

#[test]
fn ownership_is_what_the_claims_say() {
    let server = server();
    let streams = filled(&server, "owned", 3, 10);
    let consumer = handling(&streams, "owned", "billing", 10);
    let said = run(&server, &["ownership", "owned", "billing", "--json"]).object(0);
    assert_eq!(
        (&said["topic"], &said["whole"]),
        (&"owned".into(), &true.into()),
        "{said}"
    );
    let partitions = said["partitions"].as_array().unwrap();
    assert_eq!(partitions.len(), 3);
    for (n, p) in partitions.iter().enumerate() {
        assert_eq!(p["partition"], n);
        let claim = ask(&server, &format!("HGET re:o:{{owned}}:billing {n}")).text();
        let instance = p["owner"]["instance"].as_str().unwrap();
        let (pod, epoch) = (
            p["owner"]["pod"].as_str().unwrap(),
            p["owner"]["epoch"].as_str().unwrap(),
        );
        assert_eq!(claim, format!("{instance}|{pod}#{epoch}"), "{said}");
    }
    assert_eq!(said["members"].as_array().unwrap().len(), 1);
    let text = run(&server, &["ownership", "owned", "billing"]).well(0);
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("partition  owner"), "{text}");
    assert!(
        lines.len() == 5 && text.contains("1 instance(s): "),
        "{text}"
    );

    // one partition that is nobody's is wrong, and so is nobody at all
    ask(&server, "HDEL re:o:{owned}:billing 1");
    let said = run(&server, &["ownership", "owned", "billing", "--json"]).object(1);
    assert_eq!(
        (&said["whole"], &said["partitions"][1]["owner"]),
        (&false.into(), &().into())
    );
    drop(consumer);
    let text = run(&server, &["ownership", "owned", "billing"]).well(1);
    assert!(
        text.contains("nobody") && text.contains("0 instance(s)"),
        "{text}"
    );
    run(&server, &["ownership", "nowhere", "billing"]).well(1);
}

#[test]
fn members_of_a_work_queue_own_nothing_and_that_is_well() {
    let server = server();
    let streams = filled(&server, "work", 2, 0);
    let consumer = streams
        .consumer("work")
        .name("sender")
        .delivery(Delivery::WorkQueue);
    let consumer = consumer.messages(|_| nothing).start().unwrap();
    let said = run(&server, &["ownership", "work", "sender", "--json"]).object(0);
    assert_eq!(said["members"].as_array().unwrap().len(), 1, "{said}");
    drop(consumer);
}

/// The ids in the stored positions of a consumer of two partitions.
fn positions(server: &streamlane::testing::PrivateServer, topic: &str) -> Vec<String> {
    let stored = ask(server, &format!("HMGET re:p:{{{topic}}}:billing 0 1"));
    let id = |v: &streamlane::testing::Reply| v.text().split('|').next().unwrap().to_owned();
    stored.items().iter().map(id).collect()
}

#[test]
fn a_reset_is_shown_and_done_only_when_it_is_wanted() {
    let server = server();
    let streams = filled(&server, "moved", 2, 40);
    drop(handling(&streams, "moved", "billing", 40));
    let before = positions(&server, "moved");
    let ends = [0, 1].map(|p| ids(&server, &format!("re:s:{{moved}}:{p}")));
    assert_eq!(
        before,
        [0, 1].map(|p: usize| ends[p].last().unwrap().clone())
    );

    let args = ["reset", "moved", "billing", "--to", "start"];
    let preview = run(&server, &args).well(0);
    for words in ["reset moved / billing", "p0", "p1", "rewind", "--apply"] {
        assert!(preview.contains(words), "{words}: {preview}");
    }
    let lines = run(&server, &[&args[..], &["--json"]].concat()).objects(0);
    for (p, line) in lines.iter().enumerate() {
        assert_eq!(line["partition"], p);
        assert_eq!(line["entries"], ends[p].len(), "{line}");
        assert_eq!(
            line["length"],
            number(&server, &format!("XLEN re:s:{{moved}}:{p}"))
        );
        assert_eq!(line["current"], *before[p]);
        assert_eq!(
            (&line["target"], &line["direction"]),
            (&"0-0".into(), &"rewind".into())
        );
        assert_eq!(
            (&line["exact"], &line["applied"]),
            (&true.into(), &false.into())
        );
        assert_eq!(
            (&line["oldest"], &line["newest"]),
            (&ends[p][0].clone().into(), &before[p].clone().into())
        );
    }
    // nobody can be asked here
    let refused = run(&server, &[&args[..], &["--apply"]].concat());
    assert_eq!(refused.status, 3, "{refused:?}");
    assert!(
        refused.err.contains("40 entries will be handled again"),
        "{refused:?}"
    );
    assert!(refused.err.contains("--yes"), "{refused:?}");
    assert_eq!(positions(&server, "moved"), before);

    let text = run(&server, &[&args[..], &["--apply", "--yes"]].concat()).well(0);
    assert!(text.contains("partition 1 goes on after 0-0"), "{text}");
    assert_eq!(positions(&server, "moved"), ["0-0", "0-0"]);
    assert_eq!(number(&server, "HEXISTS re:p:{moved}:billing __reset:0"), 1);

    // each kind of place
    let middle = ends[1][ends[1].len() / 2].clone();
    let to = |place: &str| {
        let args = [
            "reset",
            "moved",
            "billing",
            "--to",
            place,
            "--partition",
            "1",
            "--apply",
            "--yes",
            "--json",
        ];
        let line = run(&server, &args).object(0);
        assert_eq!(line["applied"], true);
        assert_eq!(line["target"], *positions(&server, "moved")[1]);
        line
    };
    assert_eq!(to(&middle)["target"], *middle);
    assert_eq!(to("end")["target"], *before[1]);
    assert_eq!(to("1d")["direction"], "rewind");
    assert_eq!(to("2100-01-01T00:00:00Z")["target"], *before[1]);
    assert_eq!(positions(&server, "moved")[0], "0-0");
}

#[test]
fn a_consumer_that_runs_is_not_reset_unless_forced() {
    let server = server();
    let streams = filled(&server, "live", 2, 10);
    let consumer = handling(&streams, "live", "billing", 10);
    let args = [
        "reset", "live", "billing", "--to", "start", "--apply", "--yes",
    ];
    let refused = run(&server, &args);
    assert!(
        refused.status == 2 && refused.err.contains("running and owned"),
        "{refused:?}"
    );
    assert!(refused.out.contains("has a live owner"), "{refused:?}");
    run(&server, &[&args[..], &["--force"]].concat()).well(0);
    let again = || consumer.partitions().iter().map(|p| p.handled).sum::<u64>() >= 20;
    assert!(eventually(PATIENCE, again), "{:?}", consumer.partitions());
}

#[test]
fn of_a_queue_it_is_said_what_becomes_of_what_is_in_hand() {
    let server = server();
    let streams = filled(&server, "hands", 1, 5);
    let consumer = streams
        .consumer("hands")
        .name("sender")
        .delivery(Delivery::WorkQueue);
    drop(consumer.messages(|_| nothing).start().unwrap());
    ask(&server, "XGROUP SETID re:s:{hands}:0 sender 0");
    ask(
        &server,
        "XREADGROUP GROUP sender other COUNT 2 STREAMS re:s:{hands}:0 >",
    );
    let args = [
        "reset", "hands", "sender", "--to", "end", "--apply", "--yes",
    ];
    let refused = run(&server, &args);
    assert!(
        refused.status == 2 && refused.err.contains("2 messages"),
        "{refused:?}"
    );
    let line = run(
        &server,
        &[&args[..], &["--pending", "drop", "--json"]].concat(),
    )
    .object(0);
    assert_eq!(line["pending"], 2);
    let pending = ask(&server, "XPENDING re:s:{hands}:0 sender");
    assert_eq!(pending.items()[0].int(), Some(0));
}
