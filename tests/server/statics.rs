//! Instances that are numbered: who owns what, and what is said and done where numbers go wrong.
//!
//! Instances of one process differ by their `PodName`.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used
)]

use std::{collections::BTreeSet, thread, time::Duration};

use streamlane::{testing::PrivateServer, *};

use crate::support::*;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const TTL: Duration = ms(2500);
const RENEW: Duration = ms(300);

/// An instance, and what it has handled: partition and body.
struct Member {
    streams: Streams,
    consumer: Consumer,
    seen: Seen<(u32, String)>,
}

fn join_as(
    server: &PrivateServer,
    pod: &str,
    (topic, partitions): (&str, u32),
    [index, count]: [u32; 2],
    how: impl FnOnce(ConsumerBuilder) -> ConsumerBuilder,
) -> Member {
    let settings = settings(&server.url(), topic, partitions).topic_refresh(ms(100));
    let streams = Streams::open(settings.pod_name(pod)).unwrap();
    let builder = streams.consumer(topic).name("c").instance_of(index, count);
    let builder = builder.lease_ttl(TTL).lease_renew(RENEW);
    let builder = builder.persist_interval(ms(50)).block(ms(500));
    let seen = Seen::default();
    let all = seen.clone();
    let consumer = how(builder).shared(move |m: &Message<'_>| {
        let body = String::from_utf8_lossy(m.body()).into_owned();
        all.push((m.partition(), body));
        Ok(())
    });
    Member {
        consumer: consumer.start().unwrap(),
        streams,
        seen,
    }
}

fn join(server: &PrivateServer, pod: &str, topic: &str, place: [u32; 2]) -> Member {
    join_as(server, pod, (topic, 8), place, |b| b)
}

impl Member {
    fn map(&self) -> Ownership {
        self.consumer.ownership()
    }

    fn id(&self) -> String {
        self.map().me.unwrap().instance
    }

    fn status(&self, partition: u32) -> PartitionStatus {
        let all = self.consumer.partitions();
        all.into_iter().find(|p| p.partition == partition).unwrap()
    }
}

fn claims(server: &PrivateServer, topic: &str) -> BTreeSet<String> {
    let key = format!("re:o:{{{topic}}}:c");
    let all = server.command(&["HKEYS", &key]).unwrap();
    all.items().iter().map(testing::Reply::text).collect()
}

fn errors(topic: &str) -> Vec<String> {
    let all = warned(&format!("{topic}/c"));
    all.into_iter().filter(|l| l.starts_with("ERROR")).collect()
}

#[test]
fn numbers_divide_the_partitions_and_each_message_is_handled_once() {
    let server = server();
    let a = join(&server, "svc-0", "numbers", [0, 2]);
    let b = join(&server, "svc-1", "numbers", [1, 2]);
    assert_eq!(a.consumer.owned(), [0, 1, 2, 3], "before start returns");
    assert_eq!(b.consumer.owned(), [4, 5, 6, 7]);
    expect("a whole map", || a.map().is_whole() && b.map().is_whole());
    let line = "instance 0/2 (pod svc-0) owns partitions [0,1,2,3] of 8 | full map: 0->svc-0";
    assert_eq!(logged(&["INFO numbers/c", line]).len(), 1);
    for (pod, own) in [("svc-0", "0,1,2,3"), ("svc-1", "4,5,6,7")] {
        let claims = format!("claims partitions {own}; {pod}(");
        assert!(!logged(&["INFO numbers/c", &claims, "full map:"]).is_empty());
    }
    let fields = claims(&server, "numbers");
    let numbers = fields.iter().filter(|f| f.parse::<u32>().is_ok());
    assert_eq!((numbers.count(), fields.len()), (8, 10), "{fields:?}");

    let publisher = open(&server.url(), "numbers", 8);
    for p in 0..8 {
        publish_to(&publisher, "numbers", p, &["0", "1"]);
    }
    expect("all to be handled", || a.seen.len() + b.seen.len() >= 16);
    thread::sleep(3 * RENEW);
    assert_eq!((a.seen.len(), b.seen.len()), (8, 8));
    assert_eq!(errors("numbers"), [""; 0]);
    assert_eq!(a.streams.health().status, Status::Healthy);
    drop((a, b));
    assert_eq!(claims(&server, "numbers"), BTreeSet::new());
}

#[test]
fn a_missing_instance_leaves_a_gap_that_all_tell_of() {
    let server = server();
    let a = join(&server, "svc-0", "missing", [0, 3]);
    let b = join(&server, "svc-1", "missing", [1, 3]);
    for m in [&a, &b] {
        expect("the gap", || m.map().unowned() == [6, 7]);
        assert!(m.map().to_string().contains("6->(none)"));
        expect("the verdict", || {
            let health = m.streams.health();
            health.status == Status::Degraded && health.to_string().contains("[6, 7]")
        });
    }
    expect("both to say so", || {
        let gaps = errors("missing");
        let told = |l: &&String| {
            l.contains("ownership gap: partitions 6,7 of 8")
                && l.contains("consumed by nobody")
                && l.contains("STREAMS_INSTANCE_COUNT")
        };
        gaps.iter().filter(told).count() >= 2
    });
}

/// The one with the greater id stands down, and comes back when the other is gone.
fn two_of_one_number(topic: &str, how: impl Fn(ConsumerBuilder) -> ConsumerBuilder) {
    let server = server();
    let how = |b: ConsumerBuilder| {
        let b = b.contested_grace(Duration::ZERO);
        how(b.contested_recheck(Duration::from_secs(1)))
    };
    let of = |pod: &str| join_as(&server, pod, (topic, 2), [0, 1], how);
    let pods = [format!("{topic}-a"), format!("{topic}-b")];
    let mut both = pods.map(|pod| of(&pod));
    both.sort_by_key(Member::id);
    let [lesser, greater] = both;
    for m in [&lesser, &greater] {
        expect("the contest", || m.map().contested.len() == 2);
        let other = if m.id() == lesser.id() {
            &greater
        } else {
            &lesser
        };
        let (_, by) = &m.map().contested[1];
        assert_eq!(by.pod, other.map().me.unwrap().pod);
        let health = m.streams.health();
        assert_eq!(health.status, Status::Degraded, "{health}");
    }
    for p in [0, 1] {
        let what = format!("partition {p} is processed twice");
        // the map is drawn before the line is written
        expect("both to say so", || {
            let twice = errors(topic);
            let told = twice.iter().filter(|l| l.contains(&what));
            let told = told.filter(|l| l.contains("StatefulSet, not a Deployment"));
            told.count() >= 2
        });
    }

    // Both store positions of both partitions.
    let publisher = open(&server.url(), topic, 2);
    let stood_down = |p| {
        let status = greater.status(p);
        let why = format!("contested position: instance {}", lesser.id());
        status.state == LaneState::Stopped && status.reason.contains(&why)
    };
    expect("the greater to stand down", || {
        for p in [0, 1] {
            publish_to(&publisher, topic, p, &["x"]);
        }
        stood_down(0) && stood_down(1)
    });
    expect("nothing to be its own", || {
        greater.consumer.owned().is_empty()
    });
    let stands = "STANDS DOWN, for its id is the greater";
    assert_eq!(logged(&["ERROR", topic, stands]).len(), 2);
    expect("the map to say so", || {
        let owners = lesser.map().owners;
        let ids = owners
            .iter()
            .map(|o| o.as_ref().map(|m| m.instance.clone()));
        ids.eq([Some(lesser.id()), Some(lesser.id())])
    });
    expect("a look at the other", || {
        !logged(&["WARN", topic, "which is still there"]).is_empty()
    });
    let seen = greater.seen.len();
    publish_to(&publisher, topic, 0, &["for the lesser"]);
    let last = (0, "for the lesser".to_owned());
    expect("the lesser to go on", || lesser.seen.all().contains(&last));
    assert_eq!(greater.seen.len(), seen, "it handles nothing");

    lesser.consumer.stop();
    expect("the greater to come back", || {
        greater.consumer.owned() == [0, 1]
            && (0..2).all(|p| greater.status(p).state == LaneState::Running)
    });
    assert_eq!(logged(&["WARN", topic, "is taken up again"]).len(), 2);
    publish_to(&publisher, topic, 0, &["after"]);
    let after = (0, "after".to_owned());
    expect("the rest", || greater.seen.all().contains(&after));
    assert!(!greater.seen.all().contains(&last), "from what was stored");
    expect("peace", || greater.map().contested.is_empty());
}

#[test]
fn of_two_that_store_in_the_background_one_stands_down() {
    two_of_one_number("twobatch", |b| b);
}

#[test]
fn of_two_that_store_with_each_message_one_stands_down() {
    two_of_one_number("twosync", |b| b.persist(Persist::SyncMessage));
}

#[test]
fn a_rival_is_only_warned_of_at_first() {
    let server = server();
    let a = join_as(&server, "grace-0", ("grace", 1), [0, 1], |b| b);
    let rival = "00000000-0000-0000-0000-000000000001";
    let publisher = open(&server.url(), "grace", 1);
    let (presence, value) = (format!("i:{rival}"), format!("{rival}|other"));
    server
        .command(&["HSET", "re:o:{grace}:c", &presence, &value])
        .unwrap();
    let position = format!("1-0|{rival}");
    expect("a warning", || {
        server
            .command(&["HSET", "re:p:{grace}:c", "0", &position])
            .unwrap();
        publish_to(&publisher, "grace", 0, &["x"]);
        thread::sleep(ms(60));
        !warned("stored a position of partition 0, too").is_empty()
    });
    let all = warned("stored a position of partition 0, too");
    assert!(
        all.len() == 1 && all[0].contains("other(00000000)"),
        "{all:?}"
    );
    assert_eq!(a.consumer.owned(), [0], "it keeps it for now");
    assert_eq!(errors("grace"), [""; 0]);
}

#[test]
fn a_process_of_the_same_name_is_a_predecessor_at_first_and_a_double_later() {
    let server = server();
    let hash = "re:o:{double}:c";
    let of_before = |id: &str| format!("{id}|double-0#deadbeef");
    let id = join(&server, "double-0", "double", [0, 1]).id();
    let claim = |p: &str| {
        let claim = ["HSET", hash, p, &of_before(&id)];
        server.command(&claim).unwrap();
    };
    claim("3");
    let a = join(&server, "double-0", "double", [0, 1]);
    assert_eq!(a.map().contested, []);
    thread::sleep(2 * RENEW);
    assert_eq!(errors("double"), [""; 0]);
    claim("5");
    expect("the double to be told of", || {
        let errors = errors("double");
        let told =
            |l: &String| l.contains("partition 5 is processed twice") && l.contains("deadbeef");
        errors.iter().any(told)
    });
    expect("it to be over", || a.map().is_whole());
}

/// Of four partitions the third is the second instance's, and of six it is the first one's.
#[test]
fn what_moves_as_a_topic_grows_is_finished_before_it_is_taken() {
    let server = server();
    let a = join_as(&server, "grow-0", ("grow", 4), [0, 2], |b| b);
    let b = join_as(&server, "grow-1", ("grow", 4), [1, 2], |b| b);
    let publisher = open(&server.url(), "grow", 4);
    publish_to(&publisher, "grow", 2, &["before"]);
    b.seen.wait_for(1);
    let publisher = open(&server.url(), "grow", 6);
    publisher
        .publisher("grow")
        .unwrap()
        .publish("k", "T", "x")
        .unwrap();
    expect("the new division", || {
        a.consumer.owned() == [0, 1, 2] && b.consumer.owned() == [3, 4, 5]
    });
    for p in 0..6 {
        publish_to(&publisher, "grow", p, &["after"]);
    }
    expect("all to be handled", || a.seen.len() + b.seen.len() >= 8);
    thread::sleep(2 * RENEW);
    let mut all = [a.seen.all(), b.seen.all()].concat();
    all.sort();
    assert_eq!(all.len(), 8, "{all:?}");
    assert!(a.seen.all().contains(&(2, "after".to_owned())));
    expect("a whole map", || a.map().is_whole() && b.map().is_whole());
    assert_eq!(
        warned("is processed twice: it is this instance's, grow"),
        [""; 0]
    );
}

/// The logger is foreign code, and panics on every line about the claims.
#[test]
fn a_panic_of_the_logger_ends_neither_the_claims_nor_the_reading() {
    let server = server();
    on_log(|line| assert!(!line.contains("panics/c: ") || !line.contains("partition")));
    let a = join_as(&server, "panics-0", ("panics", 2), [0, 1], |b| b);
    expect("its claims", || a.map().owners.len() == 2);
    assert_eq!(a.consumer.owned(), [0, 1]);
    let hash = ["HSET", "re:o:{panics}:c", "0", "somebody"];
    server.command(&hash).unwrap();
    expect("the contest", || !a.map().contested.is_empty());
    let publisher = open(&server.url(), "panics", 2);
    publish_to(&publisher, "panics", 0, &["x"]);
    a.seen.wait_for(1);
    expect("its claim", || a.map().is_whole());
    drop(a);
    assert_eq!(claims(&server, "panics"), BTreeSet::new());
}

/// Whoever may not claim is told at start; whoever is no instance at all owns nothing.
#[test]
fn what_is_wrong_at_start_is_said_at_start() {
    let server = server();
    server
        .command(&[
            "ACL", "SETUSER", "noclaims", "on", "nopass", "~*", "&*", "+@all", "-hgetall",
        ])
        .unwrap();
    let url = server
        .tcp_url()
        .replace("redis://", "redis://noclaims:any@");
    let streams = Streams::open(settings(&url, "wrong", 2)).unwrap();
    let consumer = streams.consumer("wrong").name("c").instance_of(0, 1);
    let e = consumer
        .shared(|_: &Message<'_>| Ok(()))
        .start()
        .unwrap_err();
    assert!(e.to_string().contains("+hgetall"), "{e}");

    let consumer = streams.consumer("wrong").name("c").instance_of(2, 2);
    let e = consumer
        .shared(|_: &Message<'_>| Ok(()))
        .start()
        .unwrap_err();
    let all = e.to_string();
    assert!(
        e.kind() == ErrorKind::Config && all.contains("Instances:Index"),
        "{all}"
    );
}

/// In sync modes positions travel with the next read, and so does the look at what stood there before.
#[test]
fn a_lane_that_stores_on_its_way_meets_a_rival_too() {
    const RIVAL: &str = "00000000-0000-0000-0000-000000000001";
    let server = server();
    let how = |b: ConsumerBuilder| {
        let b = b.persist(Persist::SyncBatch);
        b.contested_grace(Duration::ZERO)
    };
    let a = join_as(&server, "alone", ("ontheway", 1), [0, 1], how);
    let publisher = open(&server.url(), "ontheway", 1);
    let ids: Vec<_> = ["0", "1"]
        .iter()
        .enumerate()
        .map(|(n, body)| {
            let id = publish_to(&publisher, "ontheway", 0, &[body])[0];
            a.seen.wait_for(n + 1);
            id
        })
        .collect();
    expect("its first positions", || {
        stored(&server, "ontheway", "c", 0) == Some(ids[1])
    });
    let (presence, value) = (format!("i:{RIVAL}"), format!("{RIVAL}|rival"));
    let lives = ["HSET", "re:o:{ontheway}:c", &presence, &value];
    server.command(&lives).unwrap();
    let ends = ["ZADD", "re:e:{ontheway}:c", "1e15", &presence];
    server.command(&ends).unwrap();
    expect("it to stand down", || {
        let theirs = format!("{}|{RIVAL}", ids[1]);
        let write = ["HSET", "re:p:{ontheway}:c", "0", &theirs];
        server.command(&write).unwrap();
        publish_to(&publisher, "ontheway", 0, &["more"]);
        let status = a.status(0);
        status.state == LaneState::Stopped && status.reason.contains(RIVAL)
    });
}

/// Neither what was finished and not stored yet, nor what a handler that is still at it says later.
#[test]
fn who_stood_down_stores_nothing_more_however_long_its_handler_goes_on() {
    const RIVAL: &str = "00000000-0000-0000-0000-000000000001";
    let server = server();
    let bodies: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
    let ids = publish_to(&open(&server.url(), "standing", 1), "standing", 0, &bodies);
    let streams = Streams::open(settings(&server.url(), "standing", 1).pod_name("alone")).unwrap();
    let builder = streams.consumer("standing").name("c").instance_of(0, 1);
    let builder = builder.lease_ttl(TTL).lease_renew(RENEW);
    let builder = builder
        .persist_interval(ms(600))
        .contested_grace(Duration::ZERO);
    let ended = Seen::default();
    let ends = ended.clone();
    let consumer = builder.batches(move |_| {
        let ends = ends.clone();
        move |batch: &Batch<'_>| {
            let mut done = 0;
            while !batch.is_cancelled() {
                done = (done + 1).min(batch.len() - 1);
                batch.done(done);
                thread::sleep(ms(150));
            }
            batch.done(batch.len());
            thread::sleep(ms(1500));
            ends.push(batch.len());
            Ok(())
        }
    });
    let a = consumer.start().unwrap();
    expect("its first position", || {
        stored(&server, "standing", "c", 0) > Some(StreamId::MIN)
    });
    let (presence, value) = (format!("i:{RIVAL}"), format!("{RIVAL}|rival"));
    let lives = ["HSET", "re:o:{standing}:c", &presence, &value];
    server.command(&lives).unwrap();
    let ends = ["ZADD", "re:e:{standing}:c", "1e15", &presence];
    server.command(&ends).unwrap();
    let theirs = format!("{}|{RIVAL}", ids[0]);
    let position = ["HSET", "re:p:{standing}:c", "0", &theirs];
    expect("it to stand down", || {
        server.command(&position).unwrap();
        thread::sleep(ms(20));
        !logged(&["ERROR standing/c", "STANDS DOWN"]).is_empty()
    });
    // but for what is on its way
    thread::sleep(ms(100));
    server.command(&position).unwrap();
    assert_eq!(ended.len(), 0, "its handler is at work");
    ended.wait_for(1);
    thread::sleep(ms(800));
    let stays = server.command(&["HGET", "re:p:{standing}:c", "0"]);
    assert_eq!(stays.unwrap().text(), theirs, "the other's stays");
    a.stop();
    let stays = server.command(&["HGET", "re:p:{standing}:c", "0"]);
    assert_eq!(stays.unwrap().text(), theirs, "at the end, too");
}
