//! What members of a consumer live through together: a topic that grows, a reset of one partition, a
//! partition for only one of them.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::{
    thread,
    time::{Duration, Instant},
};

use streamlane::{
    testing::{Fault, Relay, Way},
    *,
};

use crate::{
    lease_recipes::{LATE, fill_up, slow},
    leases::{Member, RENEW, TTL, claims, even, fill, join, join_as, ms},
    support::*,
};

#[test]
fn partitions_that_are_added_are_shared_out_and_read_from_their_beginning() {
    let server = server();
    let start = |pod: &str| {
        let settings = settings(&server.url(), "added", 4).topic_refresh(ms(100));
        let streams = Streams::open(settings.pod_name(pod)).unwrap();
        let builder = seldom(streams.consumer("added").name("c"));
        let seen = Seen::default();
        let all = seen.clone();
        let consumer = builder.shared(move |m: &Message<'_>| {
            let body = String::from_utf8_lossy(m.body()).into_owned();
            all.push((m.partition(), body));
            Ok(())
        });
        Member {
            consumer: consumer.start().unwrap(),
            streams,
            seen,
        }
    };
    let (a, b) = (start("a"), start("b"));
    expect("a share", || a.lanes().len() == 2 && b.lanes().len() == 2);
    let before = [a.lanes(), b.lanes()];
    // whoever adds them publishes at once, before anybody has noticed
    fill(&server, "added", &["0", "1"]);
    even(&[&a, &b]);
    expect("everything", || a.seen.len() + b.seen.len() >= 16);
    for (m, before) in [&a, &b].iter().zip(before) {
        for p in before {
            assert_eq!(m.connects(p), Some(1), "what one had stays as it was");
        }
    }
    b.consumer.stop();
    even(&[&a]);
    fill(&server, "added", &["2"]);
    expect("the rest", || a.seen.len() + b.seen.len() >= 24);
    let mut all = [a.seen.all(), b.seen.all()].concat();
    all.sort();
    let n = all.len();
    all.dedup();
    assert_eq!((n, all.len()), (24, 24), "each once");
}

/// Claims that are renewed so seldom that whatever happens sooner has another reason.
fn seldom(builder: ConsumerBuilder) -> ConsumerBuilder {
    let builder = builder.lease_ttl(Duration::from_mins(5));
    builder.lease_renew(Duration::from_mins(1))
}

/// However seldom claims are renewed, whoever waits looks more often.
#[test]
fn what_is_released_is_taken_and_what_is_due_is_given_long_before_the_next_renewal() {
    let server = server();
    let a = join_as(&server.url(), "a", "seldom", seldom);
    running(&a.consumer);
    let joined = Instant::now();
    let b = join_as(&server.url(), "b", "seldom", seldom);
    even(&[&a, &b]);
    println!("shared after {:?}", joined.elapsed());
    let told = Instant::now();
    b.consumer.stop();
    even(&[&a]);
    fill(&server, "seldom", &["0"]);
    a.seen.wait_for(8);
    println!("all read after {:?}", told.elapsed());
    assert!(told.elapsed() < ms(1500), "{:?}", told.elapsed());
}

/// Who cannot be heard for a while has what it had: nobody takes it because its claims were deleted.
#[test]
fn what_looks_free_after_a_deletion_is_left_to_whoever_cannot_say_so_yet() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let long = |b: ConsumerBuilder| b.lease_ttl(ms(7000));
    let a = join_as(&server.url(), "a", "unheard", long);
    let b = join_as(&relay.url(), "b", "unheard", long);
    even(&[&a, &b]);
    running(&a.consumer);
    running(&b.consumer);
    let before = (a.lanes(), b.lanes());
    relay.fault(Way::Requests, Fault::BlackHole);
    server
        .command(&["DEL", "re:o:{unheard}:c", "re:e:{unheard}:c"])
        .unwrap();
    // some renewals, and looks of all
    thread::sleep(ms(2500));
    assert_eq!(
        claims(&server, "unheard").len(),
        5,
        "its own, and that it lives"
    );
    assert_eq!((a.lanes(), b.lanes()), before);
    relay.heal();
    expect("all claims", || claims(&server, "unheard").len() == 10);
    assert_eq!((a.lanes(), b.lanes()), before);
    assert_eq!(logged(&["unheard", "LOST"]), [""; 0]);
}

/// Claims end on the server so long after it has run the renewal, and here so long after it was sent: an
/// answer that took its time makes them no longer.
#[test]
fn a_slow_answer_makes_no_claim_last_longer_here_than_there() {
    const HASH: &str = "re:o:{slowly}:c";
    let server = server();
    let relay = Relay::to(&server).unwrap();
    fill_up(&server, "slowly", 400);
    let a = slow(&relay.url(), "slowly", ms(40));
    running(&a.consumer);
    relay.fault(Way::Replies, Fault::Delay(ms(700)));
    // at least one renewal was sent and answered since, and more was read than is handled in time
    thread::sleep(ms(4000));
    assert_eq!(a.consumer.ownership().standing, Standing::Holding);
    relay.fault(Way::Requests, Fault::BlackHole);
    let has_ended = || {
        let end = server.command(&["ZSCORE", "re:e:{slowly}:c", "0"]).unwrap();
        let Ok(end) = end.text().parse::<f64>() else {
            return server.command(&["HEXISTS", HASH, "0"]).unwrap().int() == Some(0);
        };
        let now = server.command(&["TIME"]).unwrap();
        let [seconds, micros] = [0, 1].map(|i| now.items()[i].text().parse::<f64>().unwrap());
        end <= seconds * 1e3 + micros / 1e3
    };
    expect("the claims to end there", has_ended);
    let ended = Instant::now();
    thread::sleep(ms(1000));
    let late = a.between(ended + LATE, Instant::now());
    assert_eq!(late, 0, "calls began after the claims had ended");
    let before = ended.checked_sub(ms(500)).unwrap();
    assert!(a.between(before, ended) > 0, "there was work");
}

#[test]
fn a_reset_is_taken_by_the_owner_and_by_nobody_else() {
    let server = server();
    let url = server.url();
    let (a, b) = (join(&url, "a", "onereset"), join(&url, "b", "onereset"));
    even(&[&a, &b]);
    fill(&server, "onereset", &["0", "1"]);
    expect("everything", || a.seen.len() == 8 && b.seen.len() == 8);
    let p = b.lanes()[0];
    let reset = open(&url, "onereset", 8).admin();
    let reset = reset.reset("onereset", "c", ResetTo::Start);
    reset.partition(p).force().apply().unwrap();
    b.seen.wait_for(10);
    thread::sleep(2 * RENEW);
    assert_eq!((a.seen.len(), b.seen.len()), (8, 10));
    let found = format!("onereset/c: reset marker found for partition {p}");
    assert_eq!(warned(&found).len(), 1);
    assert_eq!(warned("onereset/c: reset marker found").len(), 1);
}

#[test]
fn a_member_with_nothing_to_do_is_well_and_steps_in() {
    let server = server();
    let start = |pod: &str| {
        let streams = Streams::open(settings(&server.url(), "spare", 1).pod_name(pod)).unwrap();
        let builder = streams.consumer("spare").name("c");
        let builder = builder.lease_ttl(TTL).lease_renew(RENEW);
        let seen = Seen::default();
        let consumer = recording(builder, &seen).start().unwrap();
        (consumer, seen, streams)
    };
    let (a, b) = (start("a"), start("b"));
    expect("a map of both", || {
        b.0.ownership().members.len() == 2 && b.0.ownership().is_whole()
    });
    assert!(b.0.owned().is_empty());
    thread::sleep(3 * RENEW);
    for m in [&a, &b] {
        let health = m.2.health();
        assert_eq!(health.status, Status::Healthy, "{health}");
    }
    assert_eq!(warned("spare/c"), [""; 0]);
    let line = [
        "INFO spare/c: b(",
        "owns partitions [] of 1, epoch ",
        "full map: 0->a(",
    ];
    assert_eq!(logged(&line).len(), 1, "one line where nothing changes");
    a.0.stop();
    publish(&b.2, "spare", 0..1);
    b.1.wait_for(1);
    assert_eq!(
        logged(&["INFO spare/c: b(", "owns partitions [0] of 1"]).len(),
        1
    );
}

/// What a new consumer does not get, and what a drain leaves to others, is told.
#[test]
fn a_drain_and_a_first_start_say_what_they_are_not_about() {
    let server = server();
    fill(&server, "about", &["0", "1", "2"]);
    let trim = ["XTRIM", "re:s:{about}:3", "MAXLEN", "1"];
    server.command(&trim).unwrap();
    let a = join(&server.url(), "a", "about");
    expect("all that is there", || a.seen.len() == 22);
    let begins = ["INFO about[3]/c", "begins with what there is; 2 messages"];
    expect("it to be told", || logged(&begins).len() == 1);
    let all = logged(&["about", "begins with what there is"]);
    assert_eq!(all.len(), 1, "{all:?}");
    // with a limit, so that it is not left alone
    let b = join_as(&server.url(), "b", "about", |b| b.max_partitions(1));
    expect("a share", || b.owns() == 1 && a.owns() == 7);
    b.consumer.drain(PATIENCE).unwrap();
    let drained = ["INFO about/c", "drained 1 of 8 partitions"];
    assert_eq!(logged(&drained).len(), 1);
    expect("all", || a.owns() == 8);
    a.consumer.drain(PATIENCE).unwrap();
    assert_eq!(
        logged(&["about/c", "drained"]).len(),
        1,
        "all of 8 is no news"
    );
}
