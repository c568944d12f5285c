//! Trimming by hand.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use streamlane::{testing::PrivateServer, *};

use crate::{
    retention::{HOUR, add, id, int, kept_for, len, old, process, put, stream},
    support::*,
};

fn admin(server: &PrivateServer) -> Admin {
    Streams::connect(server.url()).unwrap().admin()
}

fn first(server: &PrivateServer, topic: &str) -> String {
    let found = server.command(&["XRANGE", &stream(topic), "-", "+", "COUNT", "1"]);
    found.unwrap().items()[0].items()[0].text()
}

fn only(mut all: Vec<PartitionTrim>) -> PartitionTrim {
    assert_eq!(all.len(), 1);
    all.remove(0)
}

#[test]
fn a_length_is_cut_to_the_message_and_what_is_unread_stays_unless_forced() {
    let server = server();
    old(&server, "cutlen", 350);
    let admin = admin(&server);
    let to = |n| admin.trim("cutlen", TrimTo::Length(n));
    let told = only(to(345).preview().unwrap());
    assert_eq!((told.length, told.trimmed, told.exact), (350, 5, true));
    assert_eq!(len(&server, "cutlen"), 350, "only looked at");
    assert_eq!(only(to(345).apply().unwrap()), told);
    assert_eq!(first(&server, "cutlen"), id(5));
    // A service in another language has come as far as this.
    put(&server, "cutlen", "slow", 210);
    let told = only(to(100).preview().unwrap());
    assert_eq!(
        (told.trimmed, &told.held_by[..]),
        (205, &["slow".into()][..])
    );
    assert_eq!(told.finished.unwrap().to_string(), id(210));
    assert!(
        told.to_string()
            .contains("205 of 345, held back by slow at ")
    );
    assert_eq!(only(to(100).apply().unwrap()), told);
    assert_eq!(
        (len(&server, "cutlen"), &*first(&server, "cutlen")),
        (140, &*id(210))
    );
    // Of less than may go nobody is in the way.
    put(&server, "cutlen", "slow", 300);
    let done = only(to(100).apply().unwrap());
    assert_eq!((done.trimmed, done.held_by.len()), (40, 0));
    assert_eq!(only(to(3).force().preview().unwrap()).trimmed, 97);
    assert_eq!(only(to(3).force().apply().unwrap()).trimmed, 97);
    assert_eq!(
        (len(&server, "cutlen"), &*first(&server, "cutlen")),
        (3, &*id(347))
    );
    assert_eq!(only(to(3).force().apply().unwrap()).trimmed, 0);
    assert_eq!(
        warned("topic cutlen: 97 messages were deleted by hand").len(),
        1
    );
}

#[test]
fn an_age_is_cut_on_the_clock_of_the_server() {
    let server = server();
    old(&server, "cutage", 20);
    let streams = open(&server.url(), "cutage", 1);
    publish(&streams, "cutage", 0..5);
    put(&server, "cutage", "slow", 7);
    let to = streams.admin().trim("cutage", TrimTo::Age(HOUR));
    let told = only(to.preview().unwrap());
    assert_eq!((told.trimmed, &told.held_by[..]), (7, &["slow".into()][..]));
    assert_eq!(only(to.clone().force().preview().unwrap()).trimmed, 20);
    assert_eq!(only(to.apply().unwrap()), told);
    assert_eq!(only(to.force().apply().unwrap()).trimmed, 13);
    assert_eq!(len(&server, "cutage"), 5);
    let trimmed = &streams.trimmed()[0];
    assert_eq!(trimmed.messages(TrimReason::Age), 20);
}

#[test]
fn what_cannot_be_trimmed_is_refused() {
    let server = server();
    let admin = admin(&server);
    let e = admin
        .trim("nothing", TrimTo::Length(1))
        .apply()
        .unwrap_err();
    assert!(e.to_string().contains("never been created"), "{e}");
    old(&server, "something", 1);
    let e = admin.trim("something", TrimTo::Length(1)).partition(1);
    let e = e.preview().unwrap_err();
    assert!(e.to_string().contains("partition 1 does not exist"), "{e}");
    let e = admin.trim_now("something").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Config);
    assert!(e.to_string().contains("RetentionSeconds"), "{e}");
}

#[test]
fn a_sweep_by_hand_is_that_of_the_background() {
    let server = server();
    old(&server, "byhand", 30);
    put(&server, "byhand", "slow", 9);
    let settings = kept_for(HOUR).background_trim_interval(Duration::ZERO);
    let (streams, publisher) = process(&server.url(), "byhand", settings, "p");
    publisher.publish("k", "T", "young").unwrap();
    let done = streams.admin().trim_now("byhand").unwrap();
    let [done] = &done[..] else {
        panic!("one partition");
    };
    assert_eq!((done.trimmed, done.unread, done.length), (9, 0, 22));
    assert_eq!(done.finished.unwrap().to_string(), id(9));
    assert!(done.held_by == ["slow"] && !done.released);
    server.command(&["DEL", "re:p:{byhand}:slow"]).unwrap();
    let done = streams.admin().trim_now("byhand").unwrap();
    assert_eq!((done[0].trimmed, done[0].length), (21, 1));
    assert_eq!(
        int(&server, &["EXISTS", "re:tr:{byhand}"]),
        0,
        "it takes no lease"
    );
}

#[test]
fn a_million_messages_are_trimmed_without_a_long_step() {
    let server = server();
    old(&server, "million", 0);
    let mut client = server.client().unwrap();
    client.set_patience(PATIENCE * 3).unwrap();
    // What makes them takes long itself.
    let make =
        "for i = 1, 100000 do redis.call('XADD', KEYS[1], ARGV[1] + i .. '-0', 'b', 'x') end";
    for n in 0..10u64 {
        let from = (1_700_000_000_000 + n * 100_000).to_string();
        client
            .command(&["EVAL", make, "1", &stream("million"), &from])
            .unwrap();
    }
    let key = stream("million");
    client
        .command(&["XGROUP", "CREATE", &key, "old", "0"])
        .unwrap();
    let read = [
        "XREADGROUP",
        "GROUP",
        "old",
        "m",
        "COUNT",
        "200000",
        "STREAMS",
        &key,
        ">",
    ];
    client.command(&read).unwrap();
    assert_eq!(len(&server, "million"), 1_000_000);
    client.command(&["CONFIG", "RESETSTAT"]).unwrap();
    let admin = admin(&server);
    let listed = admin.consumers("million").unwrap();
    assert_eq!((listed.len(), listed[0].pending), (1, 200_000));
    let to = admin.trim("million", TrimTo::Length(500_000));
    let told = only(to.preview().unwrap());
    assert_eq!((told.trimmed, &told.held_by[..]), (0, &["old".into()][..]));
    assert!(to.timeout(PATIENCE * 3).apply().unwrap()[0].trimmed == 0);
    let forget = admin.forget("million", "old").force().timeout(PATIENCE * 3);
    assert_eq!(forget.apply().unwrap().pending, 200_000);
    let to = admin
        .trim("million", TrimTo::Length(500_000))
        .timeout(PATIENCE * 3);
    let told = only(to.preview().unwrap());
    assert!(told.exact && told.trimmed == 500_000, "{told}");
    assert_eq!(only(to.apply().unwrap()).trimmed, 500_000);
    let to = admin
        .trim("million", TrimTo::Age(HOUR))
        .timeout(PATIENCE * 3);
    assert_eq!(only(to.apply().unwrap()).trimmed, 500_000);
    // However slow the machine is: so many steps that none had much to do.
    let stats = client.command(&["INFO", "commandstats"]).unwrap().text();
    let calls = |name: &str| -> u64 {
        let line = stats.lines().find_map(|l| l.strip_prefix(name));
        let calls = line.and_then(|l| l.split(',').next());
        calls.and_then(|n| n.parse().ok()).unwrap_or(0)
    };
    let trims = calls("cmdstat_xtrim:calls=");
    assert!(trims >= 1000, "a million entries in {trims} steps");
    let acks = calls("cmdstat_xack:calls=");
    assert!(acks >= 400, "200 000 pending entries in {acks} steps");
    // What is left works as before.
    add(&server, "million", 2_000_000..2_000_001);
}
