//! Several instances of one consumer: who owns what, and what becomes of it when they come and go.
//!
//! Instances of one process differ by their `PodName`.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used
)]

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use streamlane::{
    testing::{Fault, PrivateServer, Relay, Way},
    *,
};

use crate::support::*;

pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Long enough for a busy machine to renew in, and short enough to wait for.
pub(crate) const TTL: Duration = ms(2500);
pub(crate) const RENEW: Duration = ms(400);

/// An instance, and what it has handled: partition and body.
pub(crate) struct Member {
    pub(crate) streams: Streams,
    pub(crate) consumer: Consumer,
    pub(crate) seen: Seen<(u32, String)>,
}

pub(crate) fn describe(url: &str, pod: &str, topic: &str) -> (Streams, ConsumerBuilder) {
    let streams = Streams::open(settings(url, topic, 8).pod_name(pod)).unwrap();
    let builder = streams.consumer(topic).name("c");
    let builder = builder.lease_ttl(TTL).lease_renew(RENEW);
    (streams, builder.persist_interval(ms(100)).block(ms(2000)))
}

pub(crate) fn join_as(
    url: &str,
    pod: &str,
    topic: &str,
    how: impl FnOnce(ConsumerBuilder) -> ConsumerBuilder,
) -> Member {
    let (streams, builder) = describe(url, pod, topic);
    let seen = Seen::default();
    let all = seen.clone();
    let consumer = how(builder).shared(move |m: &Message<'_>| {
        all.push((
            m.partition(),
            String::from_utf8_lossy(m.body()).into_owned(),
        ));
        Ok(())
    });
    Member {
        consumer: consumer.start().unwrap(),
        streams,
        seen,
    }
}

pub(crate) fn join(url: &str, pod: &str, topic: &str) -> Member {
    join_as(url, pod, topic, |b| b)
}

impl Member {
    pub(crate) fn owns(&self) -> usize {
        self.consumer.owned().len()
    }

    /// The partitions that have a lane here.
    pub(crate) fn lanes(&self) -> Vec<u32> {
        let lanes = self.consumer.partitions();
        lanes.iter().map(|p| p.partition).collect()
    }

    pub(crate) fn connects(&self, partition: u32) -> Option<u64> {
        let all = self.consumer.partitions();
        all.iter()
            .find(|p| p.partition == partition)
            .map(|p| p.connects)
    }
}

/// Waits until each of eight partitions is owned once and nobody owns two more than another.
#[track_caller]
pub(crate) fn even(members: &[&Member]) {
    let even = || {
        let all: Vec<u32> = members.iter().flat_map(|m| m.consumer.owned()).collect();
        let lanes: Vec<u32> = members.iter().flat_map(|m| m.lanes()).collect();
        let sizes = || members.iter().map(|m| m.owns());
        let whole = |v: &[u32]| v.len() == 8 && v.iter().collect::<BTreeSet<_>>().len() == 8;
        whole(&all) && whole(&lanes) && sizes().max().unwrap() - sizes().min().unwrap() <= 1
    };
    let told: Vec<_> = members.iter().map(|m| m.consumer.owned()).collect();
    let in_time = testing::eventually(PATIENCE, even);
    assert!(
        in_time,
        "from {told:?} to {:?}",
        members
            .iter()
            .map(|m| (m.consumer.owned(), m.lanes()))
            .collect::<Vec<_>>()
    );
}

pub(crate) fn fill(server: &PrivateServer, topic: &str, bodies: &[&str]) {
    let streams = open(&server.url(), topic, 8);
    for p in 0..8 {
        publish_to(&streams, topic, p, bodies);
    }
}

pub(crate) fn claims(server: &PrivateServer, topic: &str) -> Vec<String> {
    let all = server
        .command(&["HKEYS", &format!("re:o:{{{topic}}}:c")])
        .unwrap();
    all.items().iter().map(testing::Reply::text).collect()
}

#[test]
fn members_share_evenly_as_they_come_and_go_and_only_moved_lanes_notice() {
    let server = server();
    let url = server.url();
    let a = join(&url, "a", "share");
    assert_eq!(a.owns(), 8, "all before start returns");
    running(&a.consumer);
    let b = join(&url, "b", "share");
    even(&[&a, &b]);
    let stayed: Vec<u32> = a.lanes();
    let c = join(&url, "c", "share");
    even(&[&a, &b, &c]);
    for p in a.lanes() {
        assert!(stayed.contains(&p));
        assert_eq!(a.connects(p), Some(1), "a lane that stays keeps its socket");
    }
    fill(&server, "share", &["0", "1"]);
    expect("everything to be handled", || {
        a.seen.len() + b.seen.len() + c.seen.len() >= 16
    });
    let left = Instant::now();
    b.consumer.stop();
    even(&[&a, &c]);
    println!("after {:?} all was owned again", left.elapsed());
    let mut all: Vec<_> = [&a, &b, &c].iter().flat_map(|m| m.seen.all()).collect();
    all.sort();
    all.dedup();
    assert_eq!(
        (all.len(), a.seen.len() + b.seen.len() + c.seen.len()),
        (16, 16),
        "each once"
    );
    drop((a, b, c));
    assert_eq!(claims(&server, "share"), [""; 0], "all was released");
}

#[test]
fn a_stop_hands_over_at_once_and_nothing_is_handled_twice() {
    let server = server();
    let url = server.url();
    fill(&server, "hand", &["0", "1", "2"]);
    let slow = |b: ConsumerBuilder| b.persist(Persist::SyncMessage);
    let a = join_as(&url, "a", "hand", slow);
    let b = join_as(&url, "b", "hand", slow);
    even(&[&a, &b]);
    a.seen.wait_for(1);
    a.consumer.stop();
    let began = Instant::now();
    expect("the sibling to read all", || b.lanes().len() == 8);
    println!("owned after {:?}", began.elapsed());
    expect("everything to be handled", || {
        a.seen.len() + b.seen.len() >= 24
    });
    thread::sleep(ms(300));
    let mut all = [a.seen.all(), b.seen.all()].concat();
    all.sort();
    let n = all.len();
    all.dedup();
    assert_eq!((n, all.len()), (24, 24));
}

/// What is cut off stops by itself before anybody else can begin.
#[test]
fn an_instance_that_is_cut_off_handles_nothing_once_its_claims_may_have_ended() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let a = join(&relay.url(), "a", "cutoff");
    let b = join(&server.url(), "b", "cutoff");
    even(&[&a, &b]);
    relay.fault(Way::Replies, Fault::BlackHole);
    expect("the other to own all", || {
        b.owns() == 8 && b.lanes().len() == 8
    });
    assert_eq!((a.owns(), a.lanes()), (0, vec![]), "it had ended before");
    assert_eq!(a.consumer.ownership().standing, Standing::Lapsed);
    let health = a.streams.health();
    assert_eq!(health.status, Status::Unhealthy, "{health}");
    fill(&server, "cutoff", &["0"]);
    b.seen.wait_for(8);
    relay.heal();
    even(&[&a, &b]);
    assert_eq!(a.seen.len(), 0);
    fill(&server, "cutoff", &["1"]);
    expect("everything to be handled", || {
        a.seen.len() + b.seen.len() >= 16
    });
    assert!(a.seen.len() > 0);
}

#[test]
fn a_handler_that_outlives_the_claim_is_told_and_its_result_does_not_count() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let (streams, builder) = describe(&relay.url(), "a", "outlived");
    let (cancelled, finish) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (told, done) = (cancelled.clone(), finish.clone());
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    let consumer = builder.shared(move |m: &Message<'_>| {
        counted.fetch_add(1, SeqCst);
        testing::eventually(PATIENCE, || m.is_cancelled());
        told.store(m.is_cancelled(), SeqCst);
        testing::eventually(PATIENCE, || done.load(SeqCst));
        Ok(())
    });
    let a = consumer.start().unwrap();
    publish_to(
        &open(&server.url(), "outlived", 8),
        "outlived",
        3,
        &["x", "y"],
    );
    expect("the call", || calls.load(SeqCst) == 1);
    relay.fault(Way::Replies, Fault::BlackHole);
    expect("the handler to be told", || cancelled.load(SeqCst));
    let b = join(&server.url(), "b", "outlived");
    b.seen.wait_for(2);
    expect("the other's position", || {
        stored(&server, "outlived", "c", 3).is_some_and(|id| id > StreamId::MIN)
    });
    let after = stored(&server, "outlived", "c", 3);
    relay.heal();
    finish.store(true, SeqCst);
    thread::sleep(2 * RENEW);
    assert_eq!(
        stored(&server, "outlived", "c", 3),
        after,
        "nobody moved it back"
    );
    assert_eq!(calls.load(SeqCst), 1, "nothing else was begun");
    assert_eq!(b.seen.len(), 2);
    drop((a, streams));
}

#[test]
fn of_two_processes_of_one_name_the_later_stands() {
    let server = server();
    let relay = Relay::to(&server).unwrap(); // another address, so that one process may do it
    let first = join(&server.url(), "twin", "twins");
    assert_eq!(first.owns(), 8);
    let second = join(&relay.url(), "twin", "twins");
    expect("the first to stand down", || {
        first.consumer.ownership().standing == Standing::Superseded
    });
    expect("its lanes to end", || first.lanes().is_empty());
    assert_eq!(first.streams.health().rule, Rule::Superseded);
    expect("the second to own all", || second.lanes().len() == 8);
    fill(&server, "twins", &["0"]);
    second.seen.wait_for(8);
    assert_eq!(first.seen.len(), 0);
    second.consumer.stop();
    expect("the first to come back", || first.lanes().len() == 8);
    assert_eq!(logged(&["ERROR twins/c: SUPERSEDED"]).len(), 1);
}

#[test]
fn what_a_member_does_not_take_others_do() {
    let server = server();
    let url = server.url();
    let few = join_as(&url, "few", "narrow", |b| b.max_partitions(1));
    assert_eq!(few.owns(), 1);
    let even_ones = join_as(&url, "even", "narrow", |b| b.partitions_where(2, 0));
    let all = join(&url, "all", "narrow");
    let owned = || [few.lanes(), even_ones.lanes(), all.lanes()].concat();
    expect("all to be owned", || owned().len() == 8 && few.owns() == 1);
    expect("the limits to hold", || {
        even_ones.lanes().iter().all(|p| p % 2 == 0)
    });
    all.consumer.stop();
    expect("what nobody takes to be left", || {
        owned().iter().collect::<BTreeSet<_>>().len() >= 4
            && few.owns() == 1
            && even_ones.owns() >= 3
    });
    expect("health to say so", || {
        even_ones.streams.health().rule == Rule::Unowned
    });
}

#[test]
fn deleted_claims_are_made_again_and_nobody_else_profits() {
    let server = server();
    let url = server.url();
    let a = join(&url, "a", "deleted");
    let b = join(&url, "b", "deleted");
    even(&[&a, &b]);
    let before = (a.lanes(), b.lanes());
    for _ in 0..3 {
        server.command(&["DEL", "re:o:{deleted}:c"]).unwrap();
        expect("the claims to be back", || {
            claims(&server, "deleted").len() >= 10
        });
    }
    server.command(&["DEL", "re:e:{deleted}:c"]).unwrap();
    server
        .command(&["HDEL", "re:o:{deleted}:c", "0", "1", "5"])
        .unwrap();
    expect("the claims to be back", || {
        claims(&server, "deleted").len() >= 10
    });
    thread::sleep(2 * RENEW);
    assert_eq!(
        (a.lanes(), b.lanes()),
        before,
        "{:#?}",
        logged(&["deleted/c"])
    );
    for p in before.0 {
        assert_eq!(a.connects(p), Some(1));
    }
    assert!(!logged(&["ERROR deleted/c: claims were deleted"]).is_empty());
}

#[test]
fn a_deleted_position_hash_is_written_again_from_memory() {
    let server = server();
    fill(&server, "wiped", &["0", "1"]);
    let a = join(&server.url(), "a", "wiped");
    a.seen.wait_for(16);
    let at = |p| stored(&server, "wiped", "c", p);
    expect("the positions", || {
        (0..8).all(|p| at(p) > Some(StreamId::MIN))
    });
    let before: Vec<_> = (0..8).map(at).collect();
    server
        .command(&["DEL", "re:p:{wiped}:c", "re:p:{wiped}:c:meta"])
        .unwrap();
    expect("the positions again", || {
        (0..8).map(at).collect::<Vec<_>>() == before
    });
    assert_eq!(a.seen.len(), 16);
}

#[test]
fn a_full_server_ends_neither_claims_nor_positions() {
    let server = server();
    fill(&server, "full", &["0"]);
    let a = join(&server.url(), "a", "full");
    a.seen.wait_for(8);
    fill(&server, "full", &["1", "2"]);
    server
        .command(&["CONFIG", "SET", "maxmemory", "1"])
        .unwrap();
    a.seen.wait_for(24);
    thread::sleep(TTL + RENEW);
    assert_eq!(a.lanes().len(), 8);
    assert_eq!(a.consumer.ownership().standing, Standing::Holding);
    let at = |p| stored(&server, "full", "c", p);
    let memory = |p| a.consumer.position(p).map(|s| s.id);
    expect("the positions", || (0..8).all(|p| at(p) == memory(p)));
    a.consumer.stop();
    assert_eq!(claims(&server, "full"), [""; 0]);
}

#[test]
fn refused_writes_end_the_claims_and_all_comes_back() {
    let server = server();
    let a = join(&server.url(), "a", "misconf");
    running(&a.consumer);
    // what a server whose disk is full does
    server
        .command(&["CONFIG", "SET", "min-replicas-to-write", "1"])
        .unwrap();
    expect("the claims to end", || a.lanes().is_empty());
    expect("health to say so", || {
        a.streams.health().rule == Rule::ClaimsLapsed
    });
    server
        .command(&["CONFIG", "SET", "min-replicas-to-write", "0"])
        .unwrap();
    let healed = Instant::now();
    expect("all to be back", || a.lanes().len() == 8);
    running(&a.consumer);
    println!("back after {:?}", healed.elapsed());
    assert!(healed.elapsed() < ms(5000), "{:?}", healed.elapsed());
    fill(&server, "misconf", &["0"]);
    a.seen.wait_for(8);
    assert!(!logged(&["WARN misconf/c: the claims were NOT RENEWED"]).is_empty());
    assert_eq!(logged(&["ERROR misconf/c: the claims ENDED"]).len(), 1);
}

#[test]
fn a_stalled_partition_goes_to_another_until_its_handler_comes_back() {
    let server = server();
    let (streams, builder) = describe(&server.url(), "a", "stalled");
    let (stuck, free) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (at, release) = (stuck.clone(), free.clone());
    let builder = builder
        .stalled(Duration::from_secs(1))
        .hand_over_when_stalled(true);
    let a = builder
        .shared(move |m: &Message<'_>| {
            if m.body() == b"stuck" && !at.swap(true, SeqCst) {
                testing::eventually(3 * PATIENCE, || release.load(SeqCst));
            }
            Ok(())
        })
        .start()
        .unwrap();
    publish_to(
        &open(&server.url(), "stalled", 8),
        "stalled",
        2,
        &["stuck", "next"],
    );
    expect("it to be stuck", || stuck.load(SeqCst));
    expect("health to say so", || {
        streams.health().rule == Rule::Stalled
    });
    assert!(a.owned().contains(&2), "alone, it keeps what it has");
    let b = join(&server.url(), "b", "stalled");
    let has = b.seen.wait_for(2);
    assert_eq!(has, [(2, "stuck".into()), (2, "next".into())]);
    assert!(!a.owned().contains(&2) && b.lanes().contains(&2));
    free.store(true, SeqCst);
    expect("the stuck lane to leave", || {
        a.partitions().iter().all(|p| p.partition != 2)
    });
    thread::sleep(2 * RENEW);
    assert_eq!(b.seen.len(), 2, "nothing comes back");
    drop(b);
    expect("it to take the partition again", || a.owned().len() == 8);
}

#[test]
fn operators_see_who_owns_what_and_move_nothing_under_a_live_owner_unless_they_insist() {
    let server = server();
    let admin = open(&server.url(), "seen", 8).admin();
    fill(&server, "seen", &["0", "1"]);
    assert_eq!(admin.ownership("seen", "c").unwrap().unowned().len(), 8);
    let a = join(&server.url(), "a", "seen");
    let b = join(&server.url(), "b", "seen");
    even(&[&a, &b]);
    let map = admin.ownership("seen", "c").unwrap();
    expect("the members to see it the same way", || {
        a.consumer.ownership().owners == map.owners
    });
    assert!(map.is_whole() && map.members.len() == 2 && map.me.is_none());
    let pods: BTreeSet<_> = map
        .owners
        .iter()
        .flatten()
        .map(|m| m.pod.as_str())
        .collect();
    assert_eq!(pods, ["a", "b"].into());
    expect("everything to be handled", || {
        a.seen.len() + b.seen.len() == 16
    });

    let reset = admin.reset("seen", "c", ResetTo::Start);
    let e = reset.apply().unwrap_err();
    assert!(
        e.kind() == ErrorKind::Argument && e.to_string().contains("a#"),
        "{e}"
    );
    reset.force().apply().unwrap();
    expect("everything to be handled again", || {
        a.seen.len() + b.seen.len() == 32
    });
    drop((a, b));

    // of those that died nothing stands in the way when their time is over
    let dead = ["HSET", "re:o:{seen}:c", "0", "x|dead", "i:x", "x|dead"];
    server.command(&dead).unwrap();
    let reset = admin.reset("seen", "c", ResetTo::Start);
    reset.apply().unwrap_err();
    let over = ["ZADD", "re:e:{seen}:c", "1", "0", "1", "i:x"];
    server.command(&over).unwrap();
    assert_eq!(reset.apply().unwrap().len(), 8);
    assert_eq!(admin.ownership("seen", "c").unwrap().unowned().len(), 8);
}

#[test]
fn lanes_that_come_to_a_paused_consumer_are_paused() {
    let server = server();
    let a = join(&server.url(), "a", "held");
    let b = join(&server.url(), "b", "held");
    even(&[&a, &b]);
    b.consumer.pause();
    a.consumer.stop();
    expect("it to own all", || b.lanes().len() == 8);
    fill(&server, "held", &["0"]);
    thread::sleep(ms(300));
    assert_eq!(b.seen.len(), 0);
    b.consumer.resume();
    b.seen.wait_for(8);
}

/// From A to B to A: who comes back begins where the other left off.
#[test]
fn a_partition_that_was_elsewhere_goes_on_where_it_is_stored() {
    let server = server();
    let url = server.url();
    let a = join(&url, "a", "back");
    fill(&server, "back", &["0"]);
    a.seen.wait_for(8);
    let b = join(&url, "b", "back");
    even(&[&a, &b]);
    let moved = b.lanes();
    fill(&server, "back", &["1", "2"]);
    expect("the others' share", || {
        b.seen.len() == 8 && a.seen.len() == 16
    });
    b.consumer.stop();
    even(&[&a]);
    fill(&server, "back", &["3"]);
    a.seen.wait_for(24);
    for p in moved {
        let all = a.seen.all().into_iter();
        let bodies: Vec<_> = all
            .filter(|(of, _)| *of == p)
            .map(|(_, body)| body)
            .collect();
        assert_eq!(bodies, ["0", "3"], "partition {p}");
    }
}

#[test]
fn nothing_is_left_behind_by_lanes_that_come_and_go() {
    let server = server();
    let a = join(&server.tcp_url(), "a", "traffic");
    let count = || {
        let list = server.command(&["CLIENT", "LIST"]).unwrap().text();
        list.lines().filter(|l| l.contains("traffic")).count()
    };
    running(&a.consumer);
    expect("ten connections", || count() == 10);
    for n in 0..5 {
        let b = join(&server.tcp_url(), &format!("b{n}"), "traffic");
        even(&[&a, &b]);
        b.consumer.stop();
        even(&[&a]);
    }
    running(&a.consumer);
    expect("ten connections", || count() == 10);
}

/// What a server does whose disk is full.
#[test]
fn a_server_that_cannot_save_ends_the_claims_and_all_is_back_when_it_can() {
    let server = server();
    let a = join(&server.url(), "a", "nodisk");
    running(&a.consumer);
    let file = server.command(&["CONFIG", "GET", "dbfilename"]).unwrap();
    let file = server.dir().join(file.items()[1].text());
    let _ = std::fs::remove_file(&file);
    std::fs::create_dir_all(file.join("in the way")).unwrap();
    server
        .command(&["CONFIG", "SET", "save", "3600 1"])
        .unwrap();
    let refuses = || {
        let _ = server.command(&["BGSAVE"]);
        let write = server.command(&["SET", "x", "y"]);
        write.is_err_and(|e| e.to_string().contains("MISCONF"))
    };
    expect("writes to be refused", refuses);
    expect("the claims to end", || a.lanes().is_empty());
    assert!(!logged(&["WARN nodisk/c: the claims were NOT RENEWED", "MISCONF"]).is_empty());
    std::fs::remove_dir_all(&file).unwrap();
    expect("writes to be taken", || {
        let _ = server.command(&["BGSAVE"]);
        server.command(&["SET", "x", "y"]).is_ok()
    });
    let healed = Instant::now();
    expect("all to be back", || a.lanes().len() == 8);
    running(&a.consumer);
    assert!(healed.elapsed() < ms(5000), "{:?}", healed.elapsed());
    fill(&server, "nodisk", &["0"]);
    a.seen.wait_for(8);
}

/// Whoever has a claim has the partition, however that came about.
#[test]
fn a_claim_that_is_another_s_all_of_a_sudden_ends_that_lane_alone() {
    let server = server();
    let a = join(&server.url(), "a", "robbed");
    running(&a.consumer);
    let taken = ["HSET", "re:o:{robbed}:c", "5", "somebody|else#0badcafe"];
    server.command(&taken).unwrap();
    let ends = ["ZADD", "re:e:{robbed}:c", "1e15", "5"];
    server.command(&ends).unwrap();
    fill(&server, "robbed", &["0"]);
    expect("the lane to end", || !a.lanes().contains(&5));
    expect("the others' messages", || a.seen.len() >= 7);
    assert_eq!(a.lanes().len(), 7, "{:#?}", logged(&["robbed"]));
    for p in a.lanes() {
        assert_eq!(a.connects(p), Some(1));
    }
    // it may have been handed over before anybody knew, and does not count
    assert_eq!(stored(&server, "robbed", "c", 5), Some(StreamId::MIN));
    let lost = logged(&["ERROR robbed/c: LOST partition 5", "0badcafe"]);
    assert_eq!(lost.len(), 1, "and it is told from a renewal that failed");
    assert!(logged(&["robbed/c", "NOT RENEWED"]).is_empty());
}

#[test]
fn without_the_right_to_scripts_a_start_says_what_to_grant() {
    let server = server();
    open(&server.url(), "ungranted", 8)
        .publisher("ungranted")
        .unwrap()
        .publish("k", "T", "")
        .unwrap();
    let user = ["ACL", "SETUSER", "default", "-@scripting"];
    server.command(&user).unwrap();
    let (_streams, builder) = describe(&server.url(), "a", "ungranted");
    let e = builder
        .shared(|_: &Message<'_>| Ok(()))
        .start()
        .unwrap_err();
    for word in [
        "renew claims",
        "re:o:{ungranted}:c",
        "ACL SETUSER",
        "+evalsha",
    ] {
        assert!(e.to_string().contains(word), "{word}: {e}");
    }
    assert!(!e.is_retryable());
}
