//! A server that becomes a replica while another takes its place, under owners that are at work.
#![allow(clippy::print_stdout)]

use std::{
    thread,
    time::{Duration, Instant},
};

use streamlane::{
    testing::{PrivateServer, Relay},
    *,
};

use crate::{lease_recipes::*, leases::*, support::*};

/// Two servers that may follow one another.
struct Pair([PrivateServer; 2]);

impl Pair {
    fn start() -> Self {
        listen_to_the_log();
        let start = |_| {
            let server = PrivateServer::builder().tcp();
            let server = server.config("repl-diskless-sync-delay 0");
            // so that who may not write any more can be told from who cannot
            server.config("replica-serve-stale-data yes").start()
        };
        Self([0, 1].map(|n| start(n).unwrap()))
    }

    /// Makes one follow the other, or nobody.
    fn follow(&self, who: usize, other: bool) {
        let (host, port) = if other {
            ("127.0.0.1", self.0[1 - who].port().to_string())
        } else {
            ("NO", "ONE".to_owned())
        };
        let role = ["REPLICAOF", host, &port];
        self.0[who].command(&role).unwrap();
    }

    #[track_caller]
    fn follows(&self, who: usize) {
        expect("a replica", || {
            let info = self.0[who].command(&["INFO", "replication"]).unwrap();
            info.text().contains("master_link_status:up")
        });
    }
}

/// A replica still serves what it has, and takes nothing: who cannot renew does not go on reading.
#[test]
fn recipe_12_an_owner_on_a_demoted_server_stops_in_time_and_comes_back() {
    let pair = Pair::start();
    let [one, _] = &pair.0;
    fill_up(one, "demoted", 400);
    let a = slow(&one.url(), "demoted", ms(20));
    pair.follow(1, true);
    pair.follows(1);
    a.resumes();
    pair.follow(1, false);
    pair.follow(0, true);
    let demoted = Instant::now();
    let publisher = a.streams.publisher("demoted").unwrap();
    expect("a refusal", || match publisher.publish("k", "T", "late") {
        Ok(_) => false,
        Err(e) => {
            assert!(
                e.is_retryable() && e.outcome() == Outcome::NotApplied,
                "{e}"
            );
            true
        }
    });
    pair.follows(0);
    thread::sleep((2 * TTL).saturating_sub(demoted.elapsed()));
    let late = a.between(demoted + TTL + LATE, Instant::now());
    assert_eq!(late, 0, "calls began after the claims had ended");
    assert!(
        a.between(demoted.checked_sub(ms(500)).unwrap(), demoted) > 0,
        "there was work"
    );
    assert_eq!(a.consumer.ownership().standing, Standing::Lapsed);
    pair.follow(0, false);
    let took = a.resumes();
    println!("resumed after {took:?}");
    assert!(took < RESUMES, "{took:?}");
    publisher.publish("k", "T", "late").unwrap();
}

/// The name stands for the new master by then, and the old one still answers whoever kept a connection, and
/// learns nothing new: nobody keeps one.
#[test]
fn recipe_12_whoever_finds_a_server_demoted_looks_for_its_successor_by_name() {
    thread::scope(|s| {
        s.spawn(|| moves("moved-idle", ms(0), |b| b));
        s.spawn(|| moves("moved-busy", ms(20), |b| b));
        s.spawn(|| moves("moved-sync", ms(20), |b| b.persist(Persist::SyncBatch)));
        s.spawn(|| moves("moved-static", ms(20), |b| b.instance_of(0, 1)));
    });
}

/// Handlers take so long that a lane has something to do all the time, or else wait.
fn moves(topic: &str, work: Duration, how: impl FnOnce(ConsumerBuilder) -> ConsumerBuilder) {
    let pair = Pair::start();
    let [one, other] = &pair.0;
    let name = Relay::to(one).unwrap();
    let (streams, builder) = describe(&name.url(), "a", topic);
    let calls = Seen::default();
    let all = calls.clone();
    let a = how(builder)
        .shared(move |m: &Message<'_>| {
            let body = String::from_utf8_lossy(m.body()).into_owned();
            all.push((m.partition(), body));
            thread::sleep(work);
            Ok(())
        })
        .start()
        .unwrap();
    let is_busy = !work.is_zero();
    fill_up(one, topic, if is_busy { 400 } else { 1 });
    calls.wait_for(8);
    pair.follow(1, true);
    pair.follows(1);
    let last = publish_to(&open(&one.url(), topic, 8), topic, 0, &["last"])[0];
    let stream = format!("re:s:{{{topic}}}:0");
    let read = ["XRANGE", &stream, &last.to_string(), "+"];
    expect("the replica to have everything", || {
        !other.command(&read).unwrap().items().is_empty()
    });

    name.lead_to(other).unwrap();
    pair.follow(1, false);
    one.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    let moved = Instant::now();
    fill(other, topic, &["new"]);
    let ours = || connections(one, topic).len();
    expect("the old one to be left", || ours() == 0);
    let took = moved.elapsed();
    println!("{topic}: the old one was left after {took:?}");
    assert!(took < RESUMES, "{topic}: {took:?}");
    if is_busy {
        assert!(
            calls.len() < 8 * 400,
            "{topic}: it was at work all the time"
        );
    }
    expect("what the new master has", || {
        let all = calls.all();
        (0..8).all(|p| all.contains(&(p, "new".to_owned())))
    });
    assert_eq!(a.owned().len(), 8);
    let memory = |p| a.position(p).map(|s| s.id);
    expect("the positions", || {
        (0..8).all(|p| stored(other, topic, "c", p) == memory(p))
    });
    drop((a, streams));
}
