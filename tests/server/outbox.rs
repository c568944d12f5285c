//! State and messages in one transaction: both or neither, and what a caller knows when it fails.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use streamlane::{
    testing::{self, Answer, Fault, PrivateServer, Relay, Stub, Way},
    *,
};

use crate::{
    publishing::{entries, length, one_partition},
    support::*,
};

const STATE: &str = "re:{orders}:state:o1";

fn text(server: &PrivateServer, command: &[&str]) -> String {
    server.command(command).unwrap().text()
}

fn outbox(url: &str) -> Outbox {
    open(url, "orders", 1).outbox("orders").unwrap()
}

/// A transaction that sets the version in the state and publishes a message about it.
fn set_version(outbox: &Outbox, version: u64) -> Transaction<'_> {
    outbox
        .transaction()
        .command(Command::new("HSET").key(STATE).arg("version").arg(version))
        .publish(Outgoing::new("Set", "B").key("o1"))
}

#[track_caller]
fn done(commit: Result<Commit>) -> Committed {
    commit.unwrap().committed().expect("the conditions hold")
}

#[track_caller]
fn refused(commit: Result<Commit>, kind: ErrorKind, outcome: Outcome) -> Error {
    let e = commit.unwrap_err();
    assert_eq!((e.kind(), e.outcome()), (kind, outcome), "{e}");
    assert!(e.key().is_some() && e.endpoint().is_some(), "{e}");
    e
}

/// That nothing of [`set_version`] is on the server.
#[track_caller]
fn nothing(server: &PrivateServer) {
    assert_eq!(text(server, &["EXISTS", STATE]), "0");
    assert_eq!(length(server, "orders", 0), 0);
}

#[test]
fn state_and_messages_are_changed_together_and_answered_in_order() {
    let server = server();
    let streams = open(&server.url(), "orders", 4);
    let outbox = streams.outbox("orders").unwrap();
    let key = outbox.state_key("o1").unwrap();
    assert_eq!(key, STATE);
    let message = || {
        Outgoing::new("OrderPaid", "naïve\0日本")
            .key("o1")
            .correlation_id("c")
            .header("n", "v")
    };
    let committed = done(
        outbox
            .transaction()
            .command(
                Command::new("HSET")
                    .key(&key)
                    .arg("n")
                    .arg(5)
                    .arg("s")
                    .arg("a b"),
            )
            .command(Command::new("HINCRBY").key(&key).arg("n").arg(-7))
            .command(Command::new("HGETALL").key(&key))
            .publish(message())
            .publish(Outgoing::new("T", "0").partition(3))
            .commit(),
    );
    let text = |t: &str| Reply::Text(t.into());
    let all = [text("n"), text("-2"), text("s"), text("a b")];
    assert_eq!(
        committed.replies,
        [Reply::Int(2), Reply::Int(-2), Reply::Array(all.into())]
    );
    // byte for byte what a publisher stores
    let published = streams
        .publisher("orders")
        .unwrap()
        .publish_batch(&[message()]);
    let all: Vec<_> = (0..4).flat_map(|p| entries(&server, "orders", p)).collect();
    let (explicit, stored): (Vec<_>, Vec<_>) = all.iter().partition(|(_, f)| f[1] == "0");
    assert_eq!(explicit[0].0, committed.ids[1].to_string());
    let [(first, ours), (second, theirs)] = &stored[..] else {
        panic!("{stored:?}");
    };
    assert_eq!(ours, theirs);
    assert_eq!(*first, committed.ids[0].to_string());
    assert_eq!(*second, published[0].as_ref().unwrap().to_string());
    let counts = &streams.published()[0];
    assert_eq!(counts.stored.iter().sum::<u64>(), 3);
    assert_eq!((counts.refused, counts.unknown), (0, 0));
}

#[test]
fn a_transaction_happens_only_while_its_conditions_hold() {
    let server = server();
    server
        .command(&["HSET", STATE, "version", "7", "gone", ""])
        .unwrap();
    server.command(&["SET", "{orders}s", "text"]).unwrap();
    server
        .command(&["XADD", "{orders}x", "*", "a", "b"])
        .unwrap();
    let streams = open(&server.url(), "orders", 1);
    let outbox = streams.outbox("orders").unwrap();
    let mut stored = 0;
    let version = |test: fn(&Reply) -> bool| {
        Condition::check(Command::new("HGET").key(STATE).arg("version"), test)
    };
    for (conditions, holds) in [
        (vec![Condition::hash_equal(STATE, "version", 7)], true),
        (vec![Condition::hash_equal(STATE, "version", 8)], false),
        (vec![Condition::hash_equal(STATE, "none", "")], false),
        (vec![Condition::hash_not_equal(STATE, "version", 8)], true),
        (vec![Condition::hash_not_equal(STATE, "none", 8)], true),
        (vec![Condition::hash_not_equal(STATE, "version", 7)], false),
        (vec![Condition::hash_not_exists(STATE, "none")], true),
        (vec![Condition::hash_not_exists(STATE, "gone")], false),
        (vec![Condition::key_exists("{orders}s")], true),
        (vec![Condition::key_exists("{orders}no")], false),
        (vec![Condition::key_not_exists("{orders}no")], true),
        (vec![Condition::key_not_exists("{orders}s")], false),
        (vec![Condition::string_equal("{orders}s", "text")], true),
        (vec![Condition::string_equal("{orders}s", "Text")], false),
        (vec![Condition::string_equal("{orders}no", "")], false),
        (vec![Condition::stream_len("{orders}x", 1)], true),
        (vec![Condition::stream_len("{orders}x", 2)], false),
        (vec![Condition::stream_len("{orders}no", 0)], true),
        (vec![version(|r| r.int() > Some(6))], true),
        (vec![version(|r| r.int() > Some(7))], false),
        (
            vec![
                Condition::key_exists(STATE),
                Condition::stream_len("{orders}x", 1),
                version(|r| *r == Reply::Nil),
            ],
            false,
        ),
        (
            vec![
                Condition::key_exists(STATE),
                Condition::key_exists("{orders}s"),
            ],
            true,
        ),
    ] {
        let shown = format!("{conditions:?}");
        let set = Command::new("HINCRBY").key(STATE).arg("count").arg(1);
        let mut t = outbox.transaction().command(set);
        for condition in conditions {
            t = t.when(condition);
        }
        let commit = t.publish(Outgoing::new("T", "B")).commit().unwrap();
        stored += i64::from(holds);
        assert_eq!(matches!(commit, Commit::Committed(_)), holds, "{shown}");
        assert_eq!(length(&server, "orders", 0), stored, "{shown}");
        assert_eq!(text(&server, &["HGET", STATE, "count"]), stored.to_string());
    }
    assert_eq!(
        connections(&server, "streams-outbox").len(),
        1,
        "none was lost"
    );
    let counts = &streams.published()[0];
    assert_eq!(
        (counts.refused, counts.unknown),
        (0, 0),
        "a condition is no failure"
    );
}

/// A topic that exists already, on a server that answers the rest as told.
fn answering(mut answer: impl FnMut(&[Vec<u8>]) -> Answer + Send + 'static) -> Stub {
    Stub::start(move |args, _| match &args[0][..] {
        b"HMGET" => Answer::Reply(one_partition()),
        b"EXISTS" => Answer::Reply(testing::Reply::Int(1)),
        _ => answer(args),
    })
    .unwrap()
}

#[test]
fn what_cannot_be_one_transaction_is_refused_before_anything_is_sent() {
    let stub = answering(|_| Answer::Usual);
    let streams = open(&stub.url(), "orders", 1);
    let outbox = streams.outbox("orders").unwrap();
    let message = || Outgoing::new("T", "B");
    let with = |c: Command| outbox.transaction().command(c).publish(message());
    let when = |c: Condition| outbox.transaction().when(c).publish(message());
    for (transaction, said) in [
        (outbox.transaction(), vec!["at least one message"]),
        (
            with(Command::new("SET").key("re:{other}:state:1").arg(1)),
            vec!["re:{other}:state:1", "orders", "other", "cannot span slots"],
        ),
        (
            with(Command::new("SET").key("plain").arg(1)),
            vec!["plain", "orders"],
        ),
        (
            with(Command::new("RENAME").key(STATE).key("{Orders}x")),
            vec!["{Orders}x"],
        ),
        (
            with(Command::new("SET").key("").arg(1)),
            vec!["SET", "empty"],
        ),
        (with(Command::new("exec")), vec!["EXEC"]),
        (with(Command::new("SUBSCRIBE").arg("c")), vec!["SUBSCRIBE"]),
        (when(Condition::key_exists("{x}")), vec!["{x}"]),
        (
            when(Condition::check(Command::new("GET").arg(STATE), |_| true)),
            vec!["GET", "Command::key"],
        ),
    ] {
        let shown = format!("{transaction:?}");
        let e = refused(
            transaction.commit(),
            ErrorKind::Argument,
            Outcome::NotApplied,
        );
        for text in said {
            assert!(e.to_string().contains(text), "{text} in {e} for {shown}");
        }
    }
    assert_eq!(stub.count("HMGET"), 0, "no server was asked");
    refused(
        outbox
            .transaction()
            .publish(message().partition(1))
            .commit(),
        ErrorKind::Argument,
        Outcome::NotApplied,
    );
    let small = settings(&stub.url(), "orders", 1).max_message_bytes(10);
    let small = Streams::open(small).unwrap().outbox("orders").unwrap();
    let large = Outgoing::new("T", "more than ten bytes");
    refused(
        small.transaction().publish(large).commit(),
        ErrorKind::TooLarge,
        Outcome::NotApplied,
    );
    for name in ["MULTI", "WATCH", "SET", "XADD"] {
        assert_eq!(stub.count(name), 0, "{name}");
    }
    assert!(outbox.state_key(" ").is_err());
    assert_eq!(streams.published()[0].refused, 9, "messages are counted");
}

#[test]
fn a_spread_topic_has_transactions_within_one_partition() {
    let server = server();
    let topic = TopicSettings::default()
        .partitions(4)
        .co_locate_partitions(false);
    let settings = settings(&server.url(), "x", 1).with_topic("orders", topic);
    let outbox = Streams::open(settings).unwrap().outbox("orders").unwrap();
    let to = |p: u32| Outgoing::new("T", "B").partition(p);
    let two = outbox.transaction().publish(to(0)).publish(to(1));
    let e = refused(two.commit(), ErrorKind::Argument, Outcome::NotApplied);
    assert!(e.to_string().contains("CoLocatePartitions=false"), "{e}");
    let key = outbox.state_key("o1").unwrap();
    let elsewhere = outbox
        .transaction()
        .command(Command::new("SET").key(&key).arg(1))
        .publish(to(0));
    let e = refused(elsewhere.commit(), ErrorKind::Argument, Outcome::NotApplied);
    assert!(e.to_string().contains("re:s:orders:0"), "{e}");
    let committed = done(
        outbox
            .transaction()
            .command(Command::new("SET").key("{re:s:orders:2}:mine").arg(1))
            .publish(to(2))
            .publish(Outgoing::new("T", "keyless ones follow"))
            .commit(),
    );
    assert_eq!(committed.ids.len(), 2);
    assert_eq!(text(&server, &["XLEN", "re:s:orders:2"]), "2");
}

#[test]
fn a_writer_in_between_is_a_condition_that_failed() {
    let server = Arc::new(server());
    let outbox = outbox(&server.url());
    server.command(&["HSET", STATE, "version", "1"]).unwrap();
    let other = Arc::clone(&server);
    // the value it is set to is the one it had: what counts is that somebody wrote
    let interfere = move |reply: &Reply| {
        other.command(&["HSET", STATE, "version", "1"]).unwrap();
        reply.int() == Some(1)
    };
    let read = Command::new("HGET").key(STATE).arg("version");
    let commit = set_version(&outbox, 2)
        .when(Condition::check(read, interfere))
        .commit();
    assert_eq!(commit.unwrap(), Commit::ConditionFailed);
    assert_eq!(text(&server, &["HGET", STATE, "version"]), "1");
    assert_eq!(length(&server, "orders", 0), 0);
    let unchanged = Condition::hash_equal(STATE, "version", 1);
    done(set_version(&outbox, 2).when(unchanged).commit());
    assert_eq!(connections(&server, "streams-outbox").len(), 1);
}

#[test]
fn threads_that_share_an_outbox_lose_no_update() {
    let server = server();
    let outbox = outbox(&server.url());
    let (threads, each) = (4, 25);
    thread::scope(|s| {
        for _ in 0..threads {
            s.spawn(|| {
                let own = outbox.clone();
                let mut seen = 0;
                for _ in 0..each {
                    // reads by trying, as a compare-and-set does
                    loop {
                        let unchanged = if seen == 0 {
                            Condition::hash_not_exists(STATE, "version")
                        } else {
                            Condition::hash_equal(STATE, "version", seen)
                        };
                        let next = set_version(&own, seen + 1)
                            .when(unchanged)
                            .commit()
                            .unwrap();
                        seen += 1;
                        if next != Commit::ConditionFailed {
                            break;
                        }
                    }
                }
            });
        }
    });
    let total = threads * each;
    assert_eq!(
        text(&server, &["HGET", STATE, "version"]),
        total.to_string()
    );
    assert_eq!(length(&server, "orders", 0), total);
}

#[test]
fn an_observer_never_sees_one_without_the_other() {
    let server = server();
    let outbox = outbox(&server.url());
    let over = AtomicBool::new(false);
    let key = outbox.state_key("count").unwrap();
    thread::scope(|s| {
        let observer = s.spawn(|| {
            let mut client = server.client().unwrap();
            let mut looks = 0;
            while !over.load(Relaxed) {
                client.command(&["MULTI"]).unwrap();
                client.command(&["GET", &key]).unwrap();
                client.command(&["XLEN", "re:s:{orders}:0"]).unwrap();
                let seen = client.command(&["EXEC"]).unwrap();
                let [count, len] = seen.items() else {
                    panic!("{seen:?}")
                };
                assert_eq!(count.int().unwrap_or(0), len.int().unwrap());
                looks += 1;
            }
            looks
        });
        let end = Over(&over);
        for n in 0..300 {
            let add = Command::new("INCR").key(&key);
            let mut t = outbox
                .transaction()
                .command(add)
                .publish(Outgoing::new("T", "B"));
            if n > 0 {
                t = t.when(Condition::string_equal(&key, n));
            }
            done(t.commit());
        }
        drop(end);
        assert!(observer.join().unwrap() > 0);
    });
    assert_eq!(length(&server, "orders", 0), 300);
}

#[test]
fn a_transaction_that_may_not_begin_or_run_changes_nothing_and_says_why() {
    let server = server();

    for (denied, operation, said) in [
        ("-multi", "MULTI: ", "multi"),
        ("-watch", "WATCH: ", "watch"),
        ("-hget", "HGET: ", "hget"),
        ("-hset", "command 0 of the transaction, HSET", "hset"),
        ("-hdel", "command 1 of the transaction, HDEL", "hdel"),
        ("-xadd", "command 2 of the transaction, XADD", "xadd"),
        ("-exec", "EXEC: ", "exec"),
    ] {
        let user = &denied[1..];
        let rule = [
            "ACL", "SETUSER", user, "reset", "on", ">pw", "~*", "&*", "+@all", denied,
        ];
        server.command(&rule).unwrap();
        let streams = Streams::open(
            Settings::default()
                .connection_string(server.url())
                .username(user)
                .password("pw")
                .with_topic("orders", TopicSettings::default().partitions(1)),
        )
        .unwrap();

        let outbox = streams.outbox("orders").unwrap();
        let t = set_version(&outbox, 1)
            .command(Command::new("HDEL").key(STATE).arg("old"))
            .when(Condition::hash_not_equal(STATE, "version", 1));
        let e = refused(t.commit(), ErrorKind::Server, Outcome::NotApplied);
        assert_eq!(e.server_class(), Some(ServerClass::NoPermission), "{e}");
        assert!(!e.is_retryable(), "{e}");
        assert!(e.to_string().contains(said), "{e}");
        assert!(
            e.to_string().contains(operation),
            "{e} should say {operation}"
        );
        nothing(&server);
        assert_eq!(streams.published()[0].refused, 1);
    }
}

#[test]
fn a_full_server_refuses_all_of_it_and_takes_it_later() {
    let server = server();
    let outbox = outbox(&server.url());
    done(set_version(&outbox, 1).commit());
    server
        .command(&["CONFIG", "SET", "maxmemory", "1"])
        .unwrap();
    for _ in 0..2 {
        let t = set_version(&outbox, 2).when(Condition::hash_equal(STATE, "version", 1));
        let e = refused(t.commit(), ErrorKind::Server, Outcome::NotApplied);
        assert_eq!(e.server_class(), Some(ServerClass::OutOfMemory), "{e}");
        assert!(e.is_retryable(), "{e}");
        assert!(
            e.to_string().contains("command 0 of the transaction, HSET"),
            "{e}"
        );
        assert_eq!(e.key(), Some(STATE));
    }
    assert_eq!(length(&server, "orders", 0), 1);
    server
        .command(&["CONFIG", "SET", "maxmemory", "0"])
        .unwrap();
    done(
        set_version(&outbox, 2)
            .when(Condition::hash_equal(STATE, "version", 1))
            .commit(),
    );
    assert_eq!(connections(&server, "streams-outbox").len(), 1);
}

#[test]
fn a_command_that_fails_as_it_runs_is_named_with_what_was_published() {
    let server = server();
    let streams = open(&server.url(), "orders", 1);
    let outbox = streams.outbox("orders").unwrap();
    done(
        outbox
            .transaction()
            .publish(Outgoing::new("T", "first"))
            .commit(),
    );
    server.command(&["SET", STATE, "a string"]).unwrap();
    let t = outbox
        .transaction()
        .command(Command::new("INCR").key("{orders}n"))
        .command(Command::new("HSET").key(STATE).arg("a").arg("secret"))
        .publish(Outgoing::new("T", "1"))
        .publish(Outgoing::new("T", "2"));
    let e = refused(t.commit(), ErrorKind::Server, Outcome::Applied);
    assert_eq!(e.server_class(), Some(ServerClass::WrongType));
    assert_eq!((e.server_code(), e.key()), (Some("WRONGTYPE"), Some(STATE)));
    assert!(!e.is_retryable(), "{e}");
    let stored = entries(&server, "orders", 0);
    let partly = e.partly_failed().unwrap();
    assert_eq!(partly.command, 1);
    let ids: Vec<_> = partly
        .published
        .iter()
        .map(|id| id.unwrap().to_string())
        .collect();
    assert_eq!(ids, [&*stored[1].0, &*stored[2].0]);
    for said in [
        "command 1",
        "HSET",
        "WRONGTYPE",
        &*ids[0],
        &*ids[1],
        "applied",
    ] {
        assert!(e.to_string().contains(said), "{said} in {e}");
    }
    assert!(!format!("{e} {e:?}").contains("secret"));

    // the same for a stream that is none
    server
        .command(&["SET", "re:s:{orders}:0", "a string"])
        .unwrap();
    let t = set_version(&outbox, 1).command(Command::new("DEL").key(STATE));
    let e = refused(t.commit(), ErrorKind::Server, Outcome::Applied);
    assert_eq!(e.partly_failed().unwrap().command, 0);
    assert_eq!(e.partly_failed().unwrap().published, [None]);
    let alone = outbox
        .transaction()
        .publish(Outgoing::new("T", "B"))
        .commit();
    let e = refused(alone, ErrorKind::Server, Outcome::NotApplied);
    assert!(
        e.partly_failed().is_none() && e.key() == Some("re:s:{orders}:0"),
        "{e}"
    );

    let counts = &streams.published()[0];
    assert_eq!(
        (counts.stored[0], counts.refused, counts.unknown),
        (3, 2, 0)
    );
    // a condition about it is refused, and nothing is changed
    server.command(&["SET", STATE, "a string"]).unwrap();
    let t = set_version(&outbox, 1).when(Condition::hash_equal(STATE, "a", 1));
    let e = refused(t.commit(), ErrorKind::Server, Outcome::NotApplied);
    assert_eq!(
        (e.server_class(), e.key()),
        (Some(ServerClass::WrongType), Some(STATE))
    );
    assert_eq!(connections(&server, "streams-outbox").len(), 1);
}

/// A condition that does something between the two round trips, and holds.
fn between(act: impl Fn() + Send + Sync + 'static) -> Condition {
    Condition::check(Command::new("EXISTS").key(STATE), move |_| {
        act();
        true
    })
}

#[test]
fn a_connection_lost_before_the_commands_went_out_changes_nothing() {
    let server = server();
    let relay = Arc::new(Relay::to(&server).unwrap());
    let outbox = outbox(&relay.url());
    done(
        outbox
            .transaction()
            .publish(Outgoing::new("T", "B"))
            .commit(),
    );
    let r = Arc::clone(&relay);
    let cut = between(move || {
        r.close();
        expect("the relay to have closed", || r.open() == 0);
    });
    let e = refused(
        set_version(&outbox, 1).when(cut).commit(),
        ErrorKind::Io,
        Outcome::NotApplied,
    );
    assert!(e.is_retryable(), "{e}");
    assert_eq!(text(&server, &["EXISTS", STATE]), "0");
    assert_eq!(length(&server, "orders", 0), 1);
    // and the next one has a connection again
    done(set_version(&outbox, 1).commit());
    // what was cut while nothing was asked costs nothing
    relay.reset();
    done(set_version(&outbox, 2).commit());
}

#[test]
fn an_answer_lost_after_the_commands_went_out_is_an_unknown_outcome() {
    let server = server();
    let relay = Arc::new(Relay::to(&server).unwrap());
    let streams =
        Streams::open(settings(&relay.url(), "orders", 1).publish_timeout(Duration::from_secs(2)))
            .unwrap();
    let outbox = streams.outbox("orders").unwrap();
    done(
        outbox
            .transaction()
            .publish(Outgoing::new("T", "B"))
            .commit(),
    );
    let r = Arc::clone(&relay);
    let mute = between(move || r.fault_existing(Way::Replies, Fault::Swallow));
    let lost = thread::scope(|s| {
        let call = s.spawn(|| set_version(&outbox, 1).when(mute).commit());
        expect("the transaction to be carried out", || {
            length(&server, "orders", 0) == 2
        });
        relay.close();
        call.join().unwrap()
    });
    refused(lost, ErrorKind::Io, Outcome::Unknown);
    assert_eq!(
        text(&server, &["HGET", STATE, "version"]),
        "1",
        "both or neither"
    );

    // not lost, only late
    let r = Arc::clone(&relay);
    let mute = between(move || r.fault_existing(Way::Replies, Fault::BlackHole));
    let start = Instant::now();
    let e = refused(
        set_version(&outbox, 2).when(mute).commit(),
        ErrorKind::Timeout,
        Outcome::Unknown,
    );
    assert!(start.elapsed() < Duration::from_secs(2) + PATIENCE, "{e}");
    relay.heal();
    // the late answer meets no other question
    let after = done(
        outbox
            .transaction()
            .publish(Outgoing::new("T", "B"))
            .commit(),
    );
    let stored = entries(&server, "orders", 0);
    assert_eq!(stored[stored.len() - 1].0, after.ids[0].to_string());
    assert_eq!(streams.published()[0].unknown, 2);
}

/// Commits a transaction that leaves its number in the state and in a message.
fn number(outbox: &Outbox, n: u64) -> Result<Commit> {
    let body = n.to_string();
    let set = Command::new("HSET").key(STATE).arg(n).arg("");
    let t = outbox
        .transaction()
        .when(Condition::hash_not_exists(STATE, n));
    t.command(set).publish(Outgoing::new("T", &body)).commit()
}

/// The numbers in the state and those in messages, sorted.
fn numbers(server: &PrivateServer) -> [Vec<u64>; 2] {
    let state = server.command(&["HKEYS", STATE]).unwrap();
    let state = state.items().iter().map(|n| n.text().parse().unwrap());
    let messages = entries(server, "orders", 0);
    let messages = messages.iter().map(|(_, f)| f[1].parse().unwrap());
    let mut both = [state.collect::<Vec<_>>(), messages.collect()];
    for numbers in &mut both {
        numbers.sort_unstable();
    }
    both
}

/// That both hold the same numbers, none twice: all that were committed, and none that were said not to be.
#[track_caller]
fn as_told(server: &PrivateServer, told: &[(u64, Result<Commit>)]) {
    let [state, messages] = numbers(server);
    assert_eq!(state, messages);
    for (n, commit) in told {
        let there = state.contains(n);
        match commit {
            Ok(commit) => assert_eq!(there, *commit != Commit::ConditionFailed, "{n}"),
            Err(e) if e.outcome() == Outcome::NotApplied => assert!(!there, "{n}: {e}"),
            Err(e) => assert_eq!(e.outcome(), Outcome::Unknown, "{n}: {e}"),
        }
    }
}

#[test]
fn wherever_the_connection_is_cut_both_or_neither_happened_and_the_caller_was_told_no_lie() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let outbox = outbox(&relay.url());
    let mut told = vec![];
    let (mut kinds, mut n) = ([0; 3], 0);
    for way in [Way::Requests, Way::Replies] {
        for bytes in (0..400).step_by(3) {
            n += 1;
            told.push((n, number(&outbox, n)));
            relay.fault_existing(way, Fault::CutAfter(bytes));
            n += 1;
            let cut = number(&outbox, n);
            kinds[match &cut {
                Ok(_) => 0,
                Err(e) if e.outcome() == Outcome::NotApplied => 1,
                Err(_) => 2,
            }] += 1;
            told.push((n, cut));
            relay.fault_existing(way, Fault::Pass);
        }
    }
    as_told(&server, &told);
    let [committed, _, unknown] = kinds;
    assert!(committed > 10 && unknown > 10, "{kinds:?}");
}

#[test]
fn a_server_that_is_killed_has_kept_both_or_neither() {
    let server = PrivateServer::builder()
        .aof(testing::Aof::Always)
        .start()
        .unwrap();
    let streams = open(&server.url(), "orders", 1);
    number(&streams.outbox("orders").unwrap(), 0)
        .unwrap()
        .committed()
        .unwrap();
    let over = AtomicBool::new(false);
    let told: Vec<_> = thread::scope(|s| {
        let end = Over(&over);
        let writers: Vec<_> = (1..=3)
            .map(|w| {
                let (outbox, over) = (streams.outbox("orders").unwrap(), &over);
                s.spawn(move || {
                    let numbers = (w * 1_000_000..).take_while(|_| !over.load(Relaxed));
                    numbers.map(|n| (n, number(&outbox, n))).collect::<Vec<_>>()
                })
            })
            .collect();
        for _ in 0..3 {
            let before = length(&server, "orders", 0);
            expect("more to be written", || {
                length(&server, "orders", 0) > before + 20
            });
            server.kill();
            server.restart().unwrap();
        }
        let before = length(&server, "orders", 0);
        expect("writing to go on", || length(&server, "orders", 0) > before);
        drop(end);
        writers
            .into_iter()
            .flat_map(|w| w.join().unwrap())
            .collect()
    });
    as_told(&server, &told);
}

#[test]
fn a_server_that_became_a_replica_is_left_for_another_connection() {
    let server = server();
    let outbox = outbox(&server.url());
    done(set_version(&outbox, 1).commit());
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    let e = refused(
        set_version(&outbox, 2).commit(),
        ErrorKind::Server,
        Outcome::NotApplied,
    );
    assert_eq!(e.server_class(), Some(ServerClass::ReadOnly), "{e}");
    assert!(e.is_retryable(), "{e}");
    expect("the connection to be gone", || {
        connections(&server, "streams-outbox").is_empty()
    });
    server.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    done(set_version(&outbox, 2).commit());
    assert_eq!(length(&server, "orders", 0), 2);
}

#[test]
fn a_server_that_hangs_up_on_every_beginning_is_asked_twice() {
    let stub = answering(|args| match &args[0][..] {
        b"MULTI" => Answer::Close,
        _ => Answer::Usual,
    });
    let outbox = outbox(&stub.url());
    refused(
        set_version(&outbox, 1).commit(),
        ErrorKind::Io,
        Outcome::NotApplied,
    );
    assert_eq!(
        (stub.count("MULTI"), stub.count("HSET"), stub.count("XADD")),
        (2, 0, 0)
    );
}

#[test]
fn a_queue_that_is_none_is_an_unknown_outcome() {
    use testing::Reply::{Int, Status};
    let stub = answering(|args| match &args[0][..] {
        b"MULTI" => Answer::Reply(Status("OK".into())),
        // as behind a proxy that has forgotten the MULTI
        b"HSET" => Answer::Reply(Int(1)),
        b"XADD" => Answer::Reply(testing::Reply::bulk("1-1")),
        _ => Answer::Usual,
    });
    let outbox = outbox(&stub.url());
    let e = refused(
        set_version(&outbox, 1).commit(),
        ErrorKind::Protocol,
        Outcome::Unknown,
    );
    assert!(e.to_string().contains("queue"), "{e}");
}

#[test]
fn a_test_that_panics_leaves_nothing_behind() {
    let server = server();
    let outbox = outbox(&server.url());
    let t = set_version(&outbox, 1).when(between(|| panic!("on purpose")));
    assert!(catch_unwind(AssertUnwindSafe(|| t.commit())).is_err());
    assert_eq!(text(&server, &["EXISTS", STATE]), "0");
    expect("the connection to be gone", || {
        connections(&server, "streams-outbox").is_empty()
    });
    done(set_version(&outbox, 1).commit());
}

#[test]
fn waiting_for_other_callers_ends_at_the_deadline() {
    let server = server();
    let streams = Streams::open(
        settings(&server.url(), "orders", 1).publish_timeout(Duration::from_millis(200)),
    )
    .unwrap();
    let outbox = streams.outbox("orders").unwrap();
    let (enter, entered) = mpsc::channel();
    let (leave, left) = mpsc::channel::<()>();
    let left = std::sync::Mutex::new(left);
    let hold = between(move || {
        enter.send(()).unwrap();
        let _ = left.lock().unwrap().recv();
    });
    thread::scope(|s| {
        let slow = s.spawn(|| set_version(&outbox, 1).when(hold).commit());
        entered.recv().unwrap();
        let e = refused(
            set_version(&outbox, 2).commit(),
            ErrorKind::Timeout,
            Outcome::NotApplied,
        );
        assert!(e.to_string().contains("other callers"), "{e}");
        // another outbox has a connection of its own
        done(
            streams
                .outbox("orders")
                .unwrap()
                .transaction()
                .publish(Outgoing::new("T", "B"))
                .commit(),
        );
        drop(leave);
        // its own time has passed, too
        refused(
            slow.join().unwrap(),
            ErrorKind::Timeout,
            Outcome::NotApplied,
        );
    });
}
