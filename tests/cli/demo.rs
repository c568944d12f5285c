//! The demo, run as a program.

use std::{
    process::{Command, Output, Stdio},
    time::Duration,
};

use serde_json::Value;
use streamlane::testing::{PrivateServer, eventually};

/// Enough for both ways of publishing, the last batch not full.
const FEW: [&str; 4] = ["--messages", "3333", "--blocking", "301"];

fn demo(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamlane"));
    command.arg("demo").args(FEW).args(args);
    command
}

/// Standard output, of a run that said nothing else and ended with this status.
#[track_caller]
fn text(out: &Output, status: i32) -> &str {
    let (stdout, stderr) = (&out.stdout, String::from_utf8_lossy(&out.stderr));
    let stdout = str::from_utf8(stdout).unwrap();
    assert_eq!(out.status.code(), Some(status), "{stdout}{stderr}");
    assert_eq!(stderr, "", "{stdout}");
    stdout
}

#[test]
fn a_demo_handles_every_message_once_and_says_so_in_80_columns() {
    let out = demo(&[]);
    let text = text(&out, 0);
    for words in [
        "3,333 messages",
        "one at a time",
        "in batches",
        "p99.9",
        "published 3,333, handled 3,333, compared id by id:\n\
         lost 0, doubled 0, reordered 0, strangers 0, not published 0\n\
         OK: ",
    ] {
        assert!(text.contains(words), "{words:?} is missing:\n{text}");
    }
    for line in text.lines() {
        assert!(line.chars().count() < 80, "{line}");
    }
}

#[test]
fn figures_for_programs_add_up() {
    let out = demo(&["--json"]);
    let figures: Value = serde_json::from_str(text(&out, 0)).unwrap();
    assert_eq!(figures["ok"], true);
    assert_eq!(figures["verdict"]["published"], 3333);
    assert_eq!(figures["verdict"]["handled"], 3333);
    let [single, batches] = &figures["phases"].as_array().unwrap()[..] else {
        panic!("{figures}")
    };
    assert_eq!(
        (&single["messages"], &batches["messages"]),
        (&301.into(), &3032.into())
    );
    for phase in [single, batches] {
        for rate in ["published_per_s", "handled_per_s"] {
            assert!(phase[rate].as_u64().unwrap() > 0, "{phase}");
        }
        for latency in ["publish", "end_to_end"] {
            let of = |q: &str| phase[latency][q].as_u64().unwrap();
            let [p50, p99, p99_9] = ["p50_ns", "p99_ns", "p99_9_ns"].map(of);
            assert!(0 < p50 && p50 <= p99 && p99 <= p99_9, "{phase}");
        }
    }
    let positions = figures["positions"].as_array().unwrap();
    assert_eq!(positions.len(), 4);
    let handled: u64 = positions.iter().filter_map(|p| p["handled"].as_u64()).sum();
    assert_eq!(handled, 3333);
    for p in positions {
        assert_eq!(p["stored"], p["last_handled"], "{figures}");
    }
}

#[test]
fn one_message_is_enough() {
    let text = |args| {
        let out = Command::new(env!("CARGO_BIN_EXE_streamlane"))
            .args(["demo", "--messages", "1", "--blocking", args])
            .output()
            .unwrap();
        text(&out, 0).to_owned()
    };
    assert!(text("1").contains("one at a time"));
    assert!(text("0").contains("in batches"));
}

#[test]
fn a_fault_is_found_and_ends_the_demo_with_status_1() {
    for (how, words) in [
        ("lose", "lost 1, doubled 0, reordered 0, strangers 0"),
        ("double", "lost 0, doubled 1, reordered 0, strangers 0"),
        ("reorder", "lost 0, doubled 0, reordered 1, strangers 0"),
        ("forge", "lost 1, doubled 0, reordered 0, strangers 1"),
    ] {
        let out = demo(&["--break-it", how]);
        let text = text(&out, 1);
        assert!(text.contains(words) && text.contains("FAILED"), "{text}");
    }
}

#[test]
fn a_given_server_is_left_as_it_was_unless_told_to_keep_the_topic() {
    let server = PrivateServer::builder()
        .tcp()
        .password("p@ss")
        .config("save 3600 1")
        .start()
        .unwrap();
    let count = || server.command(&["DBSIZE"]).unwrap().int();
    for url in [server.url(), server.tcp_url()] {
        let out = demo(&["--url", &url]);
        let text = text(&out, 0);
        assert!(!text.contains("p@ss") && !text.contains("p%40ss"), "{text}");
        assert_eq!(count(), Some(0), "{url}");
    }
    text(&demo(&["--url", &server.url(), "--keep"]), 0);
    let kept = server.command(&["KEYS", "re:s:{demo-*}:?"]).unwrap();
    let kept = kept.items().iter().map(|key| {
        let length = server.command(&["XLEN", &key.text()]).unwrap();
        length.int().unwrap()
    });
    assert_eq!(kept.sum::<i64>(), 3333);
}

#[test]
fn a_server_that_dies_on_the_way_is_told_and_what_was_done_is_judged() {
    let server = PrivateServer::builder()
        .config("save 3600 1")
        .start()
        .unwrap();
    let demo = Command::new(env!("CARGO_BIN_EXE_streamlane"))
        .args(["demo", "--messages", "5000000", "--url", &server.url()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let handling = || {
        let stored = server.command(&["KEYS", "re:p:{demo-*}:demo"]).unwrap();
        let published = server.command(&["INFO", "commandstats"]).unwrap().text();
        !stored.items().is_empty() && published.contains("cmdstat_xadd")
    };
    assert!(eventually(Duration::from_secs(20), handling));
    server.kill();
    let out = demo.wait_with_output().unwrap();
    let [stdout, stderr] = [&out.stdout, &out.stderr].map(|b| String::from_utf8_lossy(b));
    // 2 and not 1: the topic could not be deleted either
    assert_eq!(out.status.code(), Some(2), "{stdout}{stderr}");
    assert!(stdout.contains("compared id by id"), "{stdout}");
    assert!(stdout.contains("FAILED"), "{stdout}");
    for words in ["error: publish on re:s:", "could not be deleted"] {
        assert!(stderr.contains(words), "{words:?} is missing: {stderr}");
    }
    // A publish may have gone through all the same; a read has no such question.
    let about_reads = |line: &&str| line.contains(": read on re:s:");
    assert!(stderr.lines().any(|l| about_reads(&l)), "{stderr}");
    for line in stderr.lines().filter(about_reads) {
        assert!(!line.contains("applied"), "{line}");
    }
}

#[test]
fn what_keeps_it_from_running_is_said_and_no_secret() {
    let failing = |status, mut command: Command, words: &str| {
        let out = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&out.stderr);
        assert_eq!(
            (out.status.code(), &out.stdout[..]),
            (Some(status), &b""[..]),
            "{stderr}"
        );
        assert!(stderr.contains(words), "{stderr}");
        assert!(!stderr.contains("hush"), "{stderr}");
    };
    let mut without_server = command(&[]);
    without_server
        .env("PATH", "/nowhere")
        .env_remove("STREAMLANE_TEST_SERVER");
    failing(2, without_server, "apt-get install redis-server");
    for (url, words) in [
        ("redis+unix:///nowhere?pass=hush", "/nowhere"),
        ("http://:hush@localhost", "scheme"),
    ] {
        failing(2, command(&["--url", url]), words);
    }
    failing(64, command(&["--keep"]), "--url");
    failing(64, command(&["--messages", "0"]), "--messages");
}
