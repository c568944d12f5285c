//! Two processes that forward one source, killed again and again: one copy of each message, in order.

use std::{
    env,
    io::{self, BufRead},
    mem,
    time::Duration,
};

use streamlane::{
    Forwarding, HandlerResult, Message, OrAction, Outgoing, Source, StreamId, Streams,
    testing::{PrivateServer, eventually},
};

use crate::{
    PARTITIONS, PATIENCE, TOPIC, dice::Dice, load::Load, number_from_env, process::Process,
    proof::Logs, settings, turn, untrimmed,
};

/// What is forwarded to, and how far.
const TARGET: &str = "shipping";
const MARKS: &str = "re:{shipping}:state:forward:high-water";

/// Where a worker finds the address of its server, and the name it consumes under.
const URL: &str = "STREAMLANE_FORWARD_URL";
const NAME: &str = "STREAMLANE_FORWARD_NAME";

#[test]
fn two_killed_forwarders_make_one_copy_of_each_message() {
    let _turn = turn();
    let kills = number_from_env("STREAMLANE_CRASH_KILLS").unwrap_or(30);
    let mut dice = Dice::new("forwarders");
    let server = PrivateServer::start().unwrap();
    let logs = Logs::of(&server);
    let streams = open(&server.url());
    let load = Load::start(&streams, &logs.published, Duration::from_millis(25));
    let names = ["one", "other"];
    let url = server.url();
    let start = |name| Process::start("forwards::entry", &[(URL, &*url), (NAME, name)]);
    let mut workers = names.map(start);
    // How far each partition was forwarded, which the two race to move.
    let marks = || {
        let source = |p| format!("{TOPIC}:{p}");
        let get = |p| server.command(&["HGET", MARKS, &source(p)]);
        let mark = |p| get(p).unwrap().text().parse().unwrap_or(StreamId::MIN);
        (0..PARTITIONS).map(mark).collect::<Vec<_>>()
    };
    let mut before = marks();
    for n in 0..kills {
        dice.wait_ms(200..600);
        let i = n as usize % 2;
        mem::replace(&mut workers[i], start(names[i])).kill();
        let now = marks();
        let behind = before.iter().zip(&now).any(|(before, now)| now < before);
        assert!(!behind, "{before:?} went back to {now:?}");
        before = now;
    }
    eprintln!("forwarders: {}", load.finish());
    let content = |topic: &str, p: u32| -> Vec<String> {
        let key = format!("re:s:{{{topic}}}:{p}");
        let range = server.command(&["XRANGE", &key, "-", "+"]).unwrap();
        let entries = range.items().iter();
        entries.map(|e| e.items()[1].items()[1].text()).collect()
    };
    let length = |topic: &str, p: u32| {
        let key = format!("re:s:{{{topic}}}:{p}");
        server.command(&["XLEN", &key]).unwrap().int().unwrap()
    };
    let all: Vec<_> = (0..PARTITIONS).map(|p| content(TOPIC, p)).collect();
    let total: i64 = (0..PARTITIONS).map(|p| length(TOPIC, p)).sum();
    let whole = || (0..PARTITIONS).map(|p| length(TARGET, p)).sum::<i64>() >= total;
    assert!(eventually(PATIENCE, whole), "everything is forwarded");
    drop(workers);
    assert!(
        before.iter().all(|mark| *mark > StreamId::MIN),
        "{before:?}"
    );
    for (p, original) in (0..).zip(all) {
        assert_eq!(content(TARGET, p), original, "partition {p}");
    }
    eprintln!("forwarders: {total} messages, {kills} kills, one copy of each");
}

/// Of both topics, laid out alike.
fn open(url: &str) -> Streams {
    Streams::open(settings(url).with_topic(TARGET, untrimmed())).unwrap()
}

/// No test: the worker's way in.
#[test]
fn entry() {
    let (Ok(url), Ok(name)) = (env::var(URL), env::var(NAME)) else {
        return;
    };
    let streams = open(&url);
    let to = streams.forwarder(TARGET).unwrap();
    let consumer = streams.consumer(TOPIC).name(name);
    // so that a successor, which waits for the end of the claims, has its share of its short life
    let [ttl, renew] = [300, 75].map(Duration::from_millis);
    let _consumer = consumer
        .lease_ttl(ttl)
        .lease_renew(renew)
        .shared(move |m: &Message<'_>| -> HandlerResult {
            let out = [Outgoing::new("Ship", m.body()).partition(m.partition())];
            // both are at one source, which their own names would keep apart
            let source = Source::in_order(format!("{TOPIC}:{}", m.partition()), m.id());
            match to.forward(&source, &out).or_block()? {
                Forwarding::Forwarded(_) | Forwarding::AlreadyForwarded => Ok(()),
                // would show as a message that is missing
                other @ Forwarding::OutOfOrder { .. } => {
                    Err(format!("{}: {other:?}", m.id()).into())
                }
            }
        })
        .start()
        .unwrap();
    // until the test is dead
    io::stdin().lock().lines().for_each(drop);
}
