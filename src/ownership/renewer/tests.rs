//! The thread against a real server, with lanes that are none.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use super::*;
use crate::{
    net::Target,
    ownership::Terms,
    testing::{Fault, PrivateServer, Relay, Way, eventually},
    wire::{InstanceId, Keys},
};

const N: u32 = 4;
const PATIENCE: Duration = Duration::from_secs(20);

/// Lanes that do as they are told, but for one of partition 2.
#[derive(Default)]
struct Obedient {
    /// How often the lane of partition 2 could not be started; where it can, nothing.
    fails: Option<AtomicU32>,
    /// Whether the handler of partition 1 does not come back.
    stalls: AtomicBool,
    cuts: AtomicU32,
}

impl Lanes for Obedient {
    fn partitions(&self) -> u32 {
        N
    }

    fn take(&self, partition: u32) -> bool {
        match &self.fails {
            Some(fails) if partition == 2 => {
                fails.fetch_add(1, Relaxed);
                false
            }
            _ => true,
        }
    }

    fn give_up(&self, _: u32) -> bool {
        false
    }

    fn cut(&self, _: u32) {
        self.cuts.fetch_add(1, Relaxed);
    }

    fn stalled(&self) -> BTreeSet<u32> {
        (1..2).filter(|_| self.stalls.load(Relaxed)).collect()
    }

    fn running(&self) -> BTreeSet<u32> {
        BTreeSet::new()
    }

    fn occupied(&self) -> BTreeSet<u32> {
        self.stalled()
    }

    fn stand_down(&self, _: u32, _: String) {}

    fn all_done(&self) -> bool {
        true
    }
}

fn lease(url: &str, pod: &str, ttl: Duration, renew: Duration) -> Lease {
    let keys = Keys::default();
    let terms = Terms {
        topic: "t".into(),
        consumer: "c".into(),
        target: Arc::new(Target::parse(url).unwrap()),
        client_name: "leases".into(),
        connect_timeout: PATIENCE,
        hash: keys.ownership("t", "c"),
        set: keys.expiries("t", "c"),
        ttl,
        renew,
        most: None,
        modulo: 1,
        remainder: 0,
        shutdown_timeout: PATIENCE,
    };
    Lease::new(terms, Claimant::new(InstanceId::derive(pod), pod))
}

/// Ends the threads of a test, also of one that fails.
struct Closing<'a>(&'a [Lease]);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|lease| lease.desk.close());
    }
}

/// How often a command was called.
fn called(server: &PrivateServer, command: &str) -> u32 {
    let all = server.command(&["INFO", "commandstats"]).unwrap().text();
    let calls = all.split(&format!("cmdstat_{command}:calls=")).nth(1);
    calls.map_or(0, |rest| {
        let n = rest.split(',').next().unwrap();
        n.parse().unwrap()
    })
}

fn standing(lease: &Lease) -> Standing {
    lease.desk.ownership().standing
}

fn owned(lease: &Lease) -> Vec<u32> {
    lease.desk.ownership().owned
}

#[test]
fn a_lane_that_cannot_be_started_is_left_to_others_and_tried_again_only_now_and_then() {
    let server = PrivateServer::start().unwrap();
    let lease = |pod| {
        lease(
            &server.url(),
            pod,
            Duration::from_secs(6),
            Duration::from_secs(2),
        )
    };
    let leases = [lease("a"), lease("b")];
    let lame = Obedient {
        fails: Some(AtomicU32::new(0)),
        ..Obedient::default()
    };
    let sound = Obedient::default();
    thread::scope(|s| {
        let _closing = Closing(&leases);
        let [a, b] = &leases;
        s.spawn(|| a.run(&lame, |_| {}, || {}));
        assert!(eventually(PATIENCE, || owned(a) == [0, 1, 3]));
        thread::sleep(Duration::from_secs(3));
        let fails = lame.fails.as_ref().unwrap().load(Relaxed);
        assert!((1..=3).contains(&fails), "{fails} times in 3 s");
        s.spawn(|| b.run(&sound, |_| {}, || {}));
        assert!(eventually(PATIENCE, || owned(b).contains(&2)));
    });
}

#[test]
fn who_was_superseded_looks_now_and_then_and_is_not_alarmed_each_time() {
    let server = PrivateServer::start().unwrap();
    let lease = || {
        lease(
            &server.url(),
            "a",
            Duration::from_secs(30),
            Duration::from_secs(10),
        )
    };
    let leases = [lease(), lease()];
    let lanes = Obedient::default();
    thread::scope(|s| {
        let _closing = Closing(&leases);
        let [older, newer] = &leases;
        s.spawn(|| older.run(&lanes, |_| {}, || {}));
        assert!(eventually(PATIENCE, || owned(older).len() == 4));
        s.spawn(|| newer.run(&lanes, |_| {}, || {}));
        assert!(eventually(PATIENCE, || standing(newer) == Standing::Holding));
        older.desk.look_again();
        assert!(eventually(PATIENCE, || standing(older) == Standing::Superseded));
        let odd = ["HSET", "re:o:{t}:c", "odd", "x"];
        server.command(&odd).unwrap();
        thread::sleep(Duration::from_secs(1));
        let before = called(&server, "evalsha");
        thread::sleep(Duration::from_secs(4));
        let asked = called(&server, "evalsha") - before;
        assert!(asked <= 2, "{asked} calls in 4 s");
    });
}

/// Nobody is there any more whom it could be about.
#[test]
fn a_renewal_that_comes_late_revives_nobody() {
    let server = PrivateServer::start().unwrap();
    let relay = Relay::to(&server).unwrap();
    let (ttl, renew) = (Duration::from_secs(3), Duration::from_secs(1));
    let leases = [lease(&relay.url(), "a", ttl, renew)];
    let lanes = Obedient::default();
    thread::scope(|s| {
        let _closing = Closing(&leases);
        let [a] = &leases;
        s.spawn(|| a.run(&lanes, |_| {}, || {}));
        assert!(eventually(PATIENCE, || owned(a).len() == 4));
        // the next look is some time away
        let looks = called(&server, "hlen");
        assert!(eventually(PATIENCE, || called(&server, "hlen") > looks));
        relay.fault(Way::Requests, Fault::BlackHole);
        a.desk.look_again();
        assert!(eventually(PATIENCE, || standing(a) == Standing::Lapsed));
        a.desk.abandon();
    });
    // its time is over at the server, too
    let keys = ["DEL", "re:o:{t}:c", "re:e:{t}:c"];
    server.command(&keys).unwrap();
    let before = called(&server, "evalsha");
    relay.heal();
    let arrives = || called(&server, "evalsha") > before;
    assert!(eventually(PATIENCE, arrives), "what was sent");
    let there = server.command(&["EXISTS", "re:o:{t}:c"]).unwrap();
    assert_eq!(there.text(), "0");
}

#[test]
fn a_stalled_lane_is_given_up_once_also_where_the_server_does_not_hear_of_it() {
    let server = PrivateServer::start().unwrap();
    let relay = Relay::to(&server).unwrap();
    let (ttl, renew) = (Duration::from_secs(6), Duration::from_secs(1));
    let lease = |url: &str, pod| lease(url, pod, ttl, renew);
    let leases = [lease(&relay.url(), "a"), lease(&server.url(), "b")];
    let (lanes, others) = (Obedient::default(), Obedient::default());
    thread::scope(|s| {
        let _closing = Closing(&leases);
        let [a, b] = &leases;
        s.spawn(|| a.run(&lanes, |_| {}, || {}));
        assert!(eventually(PATIENCE, || owned(a).len() == 4));
        s.spawn(|| b.run(&others, |_| {}, || {}));
        let even = eventually(PATIENCE, || owned(a) == [0, 1] && owned(b) == [2, 3]);
        assert!(even, "{:?} {:?}", a.desk.ownership(), b.desk.ownership());
        relay.refuse_new(true).unwrap();
        relay.reset();
        lanes.stalls.store(true, Relaxed);
        thread::sleep(Duration::from_secs(4));
        assert_eq!(lanes.cuts.load(Relaxed), 1);
        relay.refuse_new(false).unwrap();
        assert!(eventually(PATIENCE, || owned(b).contains(&1)));
    });
}

#[test]
fn a_lane_that_could_not_follow_the_one_before_it_is_tried_again() {
    let server = PrivateServer::start().unwrap();
    let (ttl, renew) = (Duration::from_secs(6), Duration::from_secs(1));
    let leases = [lease(&server.url(), "a", ttl, renew)];
    let lanes = Obedient::default();
    thread::scope(|s| {
        let _closing = Closing(&leases);
        let [a] = &leases;
        s.spawn(|| a.run(&lanes, |_| {}, || {}));
        assert!(eventually(PATIENCE, || owned(a).len() == 4));
        a.desk.unread(3);
        assert!(eventually(PATIENCE, || owned(a) == [0, 1, 2]));
        assert!(eventually(PATIENCE, || owned(a).len() == 4));
    });
}
