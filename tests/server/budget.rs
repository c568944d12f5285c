//! Memory: what a process of many lanes takes up is bounded by bytes, whatever a batch may hold.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::{
    env, fs,
    process::{Command, Stdio},
    sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use streamlane::*;

use crate::support::*;

const PARTITIONS: u32 = 16;
const EACH: usize = 4;
const BODY: usize = 5_000_000;
/// `BatchBytes` unless it is set.
const BUDGET: usize = 256 * 1024;

/// What threads take, and what the allocator does not give back at once. A batch would be far above it.
const SLACK: usize = 32 << 20;

/// Where the process that is measured finds its server.
const URL: &str = "STREAMLANE_BUDGET_URL";

#[test]
fn lanes_with_large_messages_hold_one_each_and_no_batch() {
    let server = server();
    let publisher = open(&server.url(), "large", PARTITIONS)
        .publisher("large")
        .unwrap();
    let body = vec![b'x'; BODY];
    for n in 0..PARTITIONS * EACH as u32 {
        let message = publisher.message("T", &body).partition(n % PARTITIONS);
        message.publish().unwrap();
    }
    // A process of its own, so that nothing else is in the figure.
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "budget::entry", "--nocapture"])
        .env(URL, server.url())
        .stdout(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let took: usize = said.trim().parse().unwrap_or_else(|_| panic!("{said}"));
    // The message, and a quarter of it as room for what comes after it.
    let bound = PARTITIONS as usize * (BODY + BODY / 4 + BUDGET);
    assert!(took < bound + SLACK, "{took} bytes, of {bound}");
    assert!(
        took > PARTITIONS as usize * BODY,
        "{took} bytes: who held them?"
    );
}

/// No test: the way in of the process that is measured. Says how many bytes it held at most while every
/// lane had a message in hand.
#[test]
fn entry() {
    let Ok(url) = env::var(URL) else { return };
    let before = held();
    let lanes: &Barrier = Box::leak(Box::new(Barrier::new(PARTITIONS as usize)));
    let most: &AtomicUsize = Box::leak(Box::default());
    let consumer = open(&url, "large", PARTITIONS).consumer("large").name("c");
    let consumer = consumer.batch_size(100).shared(move |m: &Message<'_>| {
        assert_eq!(m.body().len(), BODY);
        if lanes.wait().is_leader() {
            most.fetch_max(held() - before, Relaxed);
        }
        lanes.wait();
        Ok(())
    });
    let stopped = consumer.start().unwrap().drain(PATIENCE * 3).unwrap();
    assert!(stopped.unsaved.is_empty());
    eprintln!("{}", most.load(Relaxed));
}

/// The memory of this process, in bytes, without what is mapped from files.
fn held() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"));
    let kb = line.unwrap().trim().trim_end_matches(" kB");
    kb.parse::<usize>().unwrap() * 1024
}
