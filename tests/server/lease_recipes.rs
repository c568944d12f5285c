//! What has failed others who share partitions between processes, by the numbers of the recipes.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use streamlane::{
    testing::{Fault, PrivateServer, Relay, Way},
    *,
};

use crate::{leases::*, support::*};

/// Soon after a server answers again everything works again.
pub(crate) const RESUMES: Duration = Duration::from_secs(5);
/// How late a call may begin by this machine's scheduling rather than by ours.
pub(crate) const LATE: Duration = ms(300);

/// A member whose handler takes a while, and when its calls began.
pub(crate) struct Slow {
    pub(crate) streams: Streams,
    pub(crate) consumer: Consumer,
    pub(crate) calls: Seen<Instant>,
}

pub(crate) fn slow(url: &str, topic: &str, work: Duration) -> Slow {
    let (streams, builder) = describe(url, "slow", topic);
    let calls = Seen::default();
    let all = calls.clone();
    let consumer = builder.shared(move |_: &Message<'_>| {
        all.push(Instant::now());
        thread::sleep(work);
        Ok(())
    });
    Slow {
        consumer: consumer.start().unwrap(),
        streams,
        calls,
    }
}

impl Slow {
    /// How many calls began between these moments.
    pub(crate) fn between(&self, from: Instant, to: Instant) -> usize {
        let all = self.calls.all();
        all.iter().filter(|at| (from..to).contains(at)).count()
    }

    /// Waits until a call begins. Returns how long that took.
    #[track_caller]
    pub(crate) fn resumes(&self) -> Duration {
        let (begun, before) = (Instant::now(), self.calls.len());
        expect("a call", || self.calls.len() > before);
        begun.elapsed()
    }
}

/// Publishes so many messages to each of eight partitions.
pub(crate) fn fill_up(server: &PrivateServer, topic: &str, each: usize) {
    let bodies: Vec<_> = (0..each).map(|n| n.to_string()).collect();
    let bodies: Vec<_> = bodies.iter().map(String::as_str).collect();
    fill(server, topic, &bodies);
}

/// Each refuses in its own way for a while: claims end by the clock of the owner, positions wait.
#[test]
fn recipe_30_no_replicas_a_busy_script_and_a_pause_of_writes_pass_and_nothing_is_lost() {
    let server = server();
    server
        .command(&["CONFIG", "SET", "busy-reply-threshold", "100"])
        .unwrap();
    fill_up(&server, "refused", 100);
    let a = slow(&server.url(), "refused", ms(100));
    running(&a.consumer);
    let publisher = a.streams.publisher("refused").unwrap();
    let set = |n: &str| {
        let set = ["CONFIG", "SET", "min-replicas-to-write", n];
        server.command(&set).unwrap();
    };
    let refused = |what: &str| {
        let e = publisher.publish("k", "T", "x").unwrap_err();
        assert!(e.is_retryable(), "{what}: {e}");
    };

    // shorter than the claims last: nothing stops but positions
    let before = a.calls.len();
    set("1");
    refused("no replicas");
    thread::sleep(ms(1000));
    set("0");
    assert!(a.calls.len() > before);
    assert_eq!(a.consumer.ownership().standing, Standing::Holding);

    // longer than they last
    let (begun, url) = (Instant::now(), server.url());
    thread::scope(|s| {
        // it answers that it was killed
        s.spawn(|| server.command(&["EVAL", "while true do end", "0"]));
        thread::sleep(ms(500));
        refused("busy");
        thread::sleep(ms(3000));
        server.command(&["SCRIPT", "KILL"]).unwrap();
    });
    let late = a.between(begun + TTL + LATE, begun + ms(3400));
    assert_eq!(late, 0, "calls began after the claims had ended");
    let took = a.resumes();
    println!("resumed after {took:?} from a busy script");
    assert!(took < RESUMES, "{took:?}");

    // reads are answered meanwhile
    running(&a.consumer);
    let begun = Instant::now();
    server
        .command(&["CLIENT", "PAUSE", "3500", "WRITE"])
        .unwrap();
    thread::sleep(ms(3500));
    let late = a.between(begun + TTL + LATE, begun + ms(3400));
    assert_eq!(late, 0, "calls began after the claims had ended");
    let took = a.resumes();
    println!("resumed after {took:?} from a pause");
    assert!(took < RESUMES, "{took:?}");

    drop(a);
    let rest = join(&url, "rest", "refused");
    let tail = |p| {
        let stream = format!("re:s:{{refused}}:{p}");
        let last = ["XREVRANGE", &stream, "+", "-", "COUNT", "1"];
        let last = server.command(&last).unwrap();
        last.items()[0].items()[0].text().parse::<StreamId>().ok()
    };
    expect("everything to be handled", || {
        (0..8).all(|p| stored(&server, "refused", "c", p) == tail(p))
    });
    drop(rest);
    let loud = warned("refused");
    assert!(loud.len() < 60, "{} lines: {loud:#?}", loud.len());
}

#[test]
fn recipe_37_keys_that_are_deleted_under_running_owners_come_back_from_memory() {
    let server = server();
    let url = server.url();
    fill(&server, "deleted37", &["0", "1"]);
    let (a, b) = (join(&url, "a", "deleted37"), join(&url, "b", "deleted37"));
    even(&[&a, &b]);
    // a lane that has not begun has nothing in memory
    running(&a.consumer);
    running(&b.consumer);
    expect("everything to be handled", || {
        a.seen.len() + b.seen.len() >= 16
    });
    let at = || {
        let all = (0..8).map(|p| stored(&server, "deleted37", "c", p));
        all.collect::<Vec<_>>()
    };
    expect("the positions", || {
        at().iter().all(|p| *p > Some(StreamId::MIN))
    });
    let (before, lanes) = (at(), (a.lanes(), b.lanes()));
    let (handled_a, handled_b) = (a.seen.len(), b.seen.len());
    let keys = ["p:{deleted37}:c", "p:{deleted37}:c:meta", "o:{deleted37}:c"];
    let more = ["e:{deleted37}:c", "m:{deleted37}"];
    let all = keys.iter().chain(&more).map(|key| format!("re:{key}"));
    let del: Vec<_> = std::iter::once("DEL".to_owned()).chain(all).collect();
    server.command(&del).unwrap();
    expect("positions and claims", || {
        at() == before && claims(&server, "deleted37").len() >= 10
    });
    thread::sleep(TTL);
    assert_eq!((a.lanes(), b.lanes()), lanes, "no second owner");
    for p in a.lanes() {
        assert_eq!(a.connects(p), Some(1), "and no lane that began anew");
    }
    fill(&server, "deleted37", &["2"]);
    expect("more to be handled", || a.seen.len() + b.seen.len() >= 24);
    assert_eq!((a.seen.len(), b.seen.len()), (handled_a + 4, handled_b + 4));
    assert!(!warned("deleted37").is_empty(), "and somebody said so");
}

/// Whole streams may go unread, and claims and positions with them. What is lost is told of, what is kept is
/// handled once, and nobody takes what is another's.
#[test]
fn recipe_37_a_server_that_evicts_keys_is_warned_of_and_takes_nothing_in_silence() {
    const TOPIC: &str = "evicted37";
    listen_to_the_log();
    let server = PrivateServer::builder().config("maxmemory 20mb");
    let server = server
        .config("maxmemory-policy allkeys-lru")
        .start()
        .unwrap();
    let start = |pod| {
        let (streams, builder) = describe(&server.url(), pod, TOPIC);
        let seen = Seen::default();
        let all = seen.clone();
        let consumer = builder.shared(move |m: &Message<'_>| {
            all.push((m.partition(), m.id()));
            thread::sleep(ms(3));
            Ok(())
        });
        (consumer.start().unwrap(), seen, streams)
    };
    let (a, b) = (start("a"), start("b"));
    expect("a share", || {
        a.0.owned().len() == 4 && b.0.owned().len() == 4
    });
    running(&a.0);
    running(&b.0);
    let endpoint = server.socket_path().display().to_string();
    let warning = ["WARN", &endpoint, "maxmemory-policy is allkeys-lru"];
    assert!(!logged(&warning).is_empty());
    let owned = [a.0.owned(), b.0.owned()];

    let publisher = a.2.publisher(TOPIC).unwrap();
    let body = "x".repeat(50_000);
    let mut published = Vec::new();
    for n in 0..2000 {
        let publish = || publisher.message("T", &*body).partition(n % 8).publish();
        // some servers refuse now and then while they evict
        expect("room", || match publish() {
            Ok(id) => {
                published.push((n % 8, id));
                true
            }
            Err(e) => {
                assert_eq!(e.server_class(), Some(ServerClass::OutOfMemory), "{e}");
                false
            }
        });
    }
    let stats = server.command(&["INFO", "stats"]).unwrap().text();
    assert!(!stats.contains("evicted_keys:0\r"), "{stats}");
    // from now on it takes nothing more
    server
        .command(&["CONFIG", "SET", "maxmemory", "0"])
        .unwrap();
    for p in 0..8 {
        published.push((p, publish_to(&a.2, TOPIC, p, &["last"])[0]));
    }

    let handled = || [a.1.all(), b.1.all()].concat();
    let told = || -> BTreeSet<u32> {
        let all = [&a.0, &b.0].into_iter().flat_map(Consumer::partitions);
        all.filter(|p| p.gaps > 0).map(|p| p.partition).collect()
    };
    let untold = || {
        let (handled, told) = (handled(), told());
        let missing = published.iter().filter(|m| !handled.contains(m));
        missing.filter(|(p, _)| !told.contains(p)).count()
    };
    expect("each to be handled or told of", || untold() == 0);
    let last = &published[2000..];
    expect("the last", || last.iter().all(|m| handled().contains(m)));
    expect("the positions", || {
        (0..8).all(|p| last.contains(&(p, stored(&server, TOPIC, "c", p).unwrap_or_default())))
    });
    let mut once = handled();
    println!(
        "{} of {} handled, gaps in {:?}",
        once.len(),
        published.len(),
        told()
    );
    once.sort_unstable();
    let n = once.len();
    once.dedup();
    assert_eq!(n, once.len(), "nothing twice");
    expect("the claims", || claims(&server, TOPIC).len() >= 10);
    assert_eq!([a.0.owned(), b.0.owned()], owned, "no second owner");
    for (consumer, seen, _) in [&a, &b] {
        let of_others = seen.all();
        let of_others = of_others
            .iter()
            .filter(|(p, _)| !consumer.owned().contains(p));
        assert_eq!(of_others.count(), 0);
    }
    assert_eq!(logged(&[TOPIC, "LOST"]), [""; 0]);
}

#[test]
fn recipe_37_positions_that_were_deleted_while_nobody_ran_are_missed_loudly() {
    let server = server();
    let url = server.url();
    fill(&server, "missed37", &["0", "1"]);
    let first = join(&url, "a", "missed37");
    first.seen.wait_for(16);
    drop(first);
    let keys = ["DEL", "re:p:{missed37}:c"];
    server.command(&keys).unwrap();
    fill(&server, "missed37", &["2"]);
    let second = join(&url, "a", "missed37");
    // from the beginning, as is set for positions that are missing, and never from the end
    let mut all = second.seen.wait_for(24);
    all.sort();
    assert_eq!(all.len(), 24);
    let told = warned("missed37");
    let told = told.iter().filter(|l| l.contains("position"));
    assert!(told.count() > 0, "{:#?}", logged(&["missed37"]));
}

/// Reading goes on where positions are stored in the background; where each is stored before the next
/// message, it waits.
#[test]
fn recipe_109_positions_that_cannot_be_stored_are_stored_when_they_can() {
    let server = server();
    let live_through = |topic: &str, persist: Persist| {
        let a = join_as(&server.url(), "a", topic, |b| b.persist(persist));
        fill(&server, topic, &["0"]);
        a.seen.wait_for(8);
        let memory = |p| a.consumer.position(p).map(|s| s.id);
        let all_stored = || (0..8).all(|p| stored(&server, topic, "c", p) == memory(p));
        expect("the positions", all_stored);
        let key = format!("re:p:{{{topic}}}:c");
        server.command(&["DEL", &key]).unwrap();
        server.command(&["SET", &key, "no hash"]).unwrap();
        fill(&server, topic, &["1", "2"]);
        thread::sleep(Duration::from_secs(10));
        let most = if persist == Persist::SyncMessage {
            16
        } else {
            24
        };
        assert_eq!(a.seen.len(), most, "{persist:?}");
        assert_eq!(a.consumer.ownership().standing, Standing::Holding);
        server.command(&["DEL", &key]).unwrap();
        let healed = Instant::now();
        expect("the rest", || a.seen.len() == 24);
        expect("the positions", all_stored);
        let took = healed.elapsed();
        println!("{persist:?}: all stored after {took:?}");
        assert!(took < RESUMES, "{took:?}");
        assert_eq!(a.lanes().len(), 8);
    };
    thread::scope(|s| {
        s.spawn(|| live_through("lazy109", Persist::AsyncBatch));
        live_through("careful109", Persist::SyncMessage);
    });
}

#[test]
fn recipe_110_a_handler_of_five_ttls_keeps_its_partition_asleep_or_spinning() {
    let server = server();
    let (_streams, builder) = describe(&server.url(), "a", "slow110");
    let (ttl, renew) = (ms(1200), ms(200));
    let short = |b: ConsumerBuilder| b.lease_ttl(ttl).lease_renew(renew);
    let calls = Seen::default();
    let all = calls.clone();
    let a = short(builder)
        .shared(move |m: &Message<'_>| {
            let begun = Instant::now();
            if m.body() == b"spin" {
                while begun.elapsed() < 5 * ttl {
                    std::hint::spin_loop();
                }
            } else {
                thread::sleep(5 * ttl);
            }
            all.push(m.is_cancelled());
            Ok(())
        })
        .start()
        .unwrap();
    let b = join_as(&server.url(), "b", "slow110", short);
    expect("a share", || a.owned().len() == 4 && b.owns() == 4);
    let owned = a.owned();
    let streams = open(&server.url(), "slow110", 8);
    publish_to(&streams, "slow110", owned[0], &["sleep"]);
    publish_to(&streams, "slow110", owned[1], &["spin"]);
    assert_eq!(calls.wait_for(2), [false, false], "never told to leave");
    assert_eq!((a.owned(), b.seen.len()), (owned, 0), "nobody else began");
    thread::sleep(2 * renew);
    assert_eq!(calls.len(), 2, "and nothing is begun again");
}

/// What is to be handed over again after longer than claims last waits where it is.
#[test]
fn recipe_110_a_pause_before_the_next_attempt_outlasts_claims_and_keeps_the_partition() {
    let server = server();
    let (_streams, builder) = describe(&server.url(), "a", "later110");
    let (ttl, renew) = (ms(1200), ms(200));
    let short = |b: ConsumerBuilder| b.lease_ttl(ttl).lease_renew(renew);
    let calls = Seen::default();
    let all = calls.clone();
    let begun = Instant::now();
    let a = short(builder)
        .shared(move |m: &Message<'_>| {
            let body = String::from_utf8_lossy(m.body()).into_owned();
            all.push((body, m.attempt(), m.is_cancelled()));
            let result = |is_ready| if is_ready { Ok(()) } else { Err("not yet") };
            if m.body() == b"retried" {
                result(m.attempt() > 1).or_retry_after(3 * ttl)
            } else {
                // after 1, 2 and 4 s
                result(begun.elapsed() > 4 * ttl).or_block()
            }
        })
        .start()
        .unwrap();
    let b = join_as(&server.url(), "b", "later110", short);
    expect("a share", || a.owned().len() == 4 && b.owns() == 4);
    let owned = a.owned();
    let streams = open(&server.url(), "later110", 8);
    let ids = [(owned[0], "retried"), (owned[1], "blocked")]
        .map(|(p, body)| (p, publish_to(&streams, "later110", p, &[body])[0]));
    let is_stored = |(p, id): &(u32, StreamId)| stored(&server, "later110", "c", *p) == Some(*id);
    expect("both to be finished", || ids.iter().all(is_stored));
    assert!(begun.elapsed() > 3 * ttl);
    let all = calls.all();
    let of = |body: &str| all.iter().filter(|(b, ..)| b == body).count();
    assert!(of("retried") == 2 && of("blocked") >= 3, "{all:?}");
    assert!(all.iter().all(|(.., cancelled)| !cancelled), "{all:?}");
    assert_eq!((a.owned(), b.seen.len()), (owned, 0), "nobody else began");
}

/// What an owner sent in time and the server got late takes nothing from who came after it.
#[test]
fn recipe_116_a_release_or_renewal_that_comes_late_takes_nothing_from_a_successor() {
    for stops in [true, false] {
        let topic = format!("late-{}", if stops { "release" } else { "renewal" });
        let server = server();
        let relay = Relay::to(&server).unwrap();
        let a = join(&relay.url(), "a", &topic);
        assert_eq!(a.owns(), 8);
        relay.fault(Way::Requests, Fault::BlackHole);
        if stops {
            a.consumer.stop();
        }
        let b = join(&server.url(), "b", &topic);
        expect("the successor to own all", || b.lanes().len() == 8);
        fill(&server, &topic, &["0"]);
        b.seen.wait_for(8);
        // what was sent arrives
        relay.heal();
        if stops {
            thread::sleep(TTL + RENEW);
            even(&[&b]);
        } else {
            even(&[&a, &b]);
        }
        fill(&server, &topic, &["1"]);
        expect("everything to be handled", || {
            a.seen.len() + b.seen.len() >= 16
        });
        assert_eq!(logged(&[&topic, "LOST"]), [""; 0]);
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

/// What it had finished before is not stored, for want of a claim; nothing else has to wait for that.
#[test]
fn a_handler_that_outlives_the_claim_keeps_no_neighbour_from_a_reset() {
    static FIRST: AtomicBool = AtomicBool::new(false);
    static SECOND: AtomicBool = AtomicBool::new(false);
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let publisher = open(&server.url(), "neighbour", 8);
    publish_to(&publisher, "neighbour", 3, &["first", "second"]);
    let (_streams, builder) = describe(&relay.url(), "a", "neighbour");
    let calls = Seen::default();
    let all = calls.clone();
    let a = builder
        .shared(move |m: &Message<'_>| {
            let body = String::from_utf8_lossy(m.body()).into_owned();
            all.push(body.clone());
            let gate = match &*body {
                "first" => &FIRST,
                "second" => &SECOND,
                _ => return Ok(()),
            };
            testing::eventually(3 * PATIENCE, || gate.load(SeqCst));
            Ok(())
        })
        .start()
        .unwrap();
    calls.wait_for(1);
    publish_to(&publisher, "neighbour", 1, &["other"]);
    calls.wait_for(2);
    relay.fault(Way::Requests, Fault::BlackHole);
    FIRST.store(true, SeqCst);
    calls.wait_for(3);
    expect("the claims to end", || a.owned().is_empty());
    thread::sleep(TTL / 5); // at the server, too
    relay.heal();
    expect("the others to be back", || a.owned().len() == 7);
    running(&a);
    let mark = ["HSET", "re:p:{neighbour}:c", "__reset:1", "0-0"];
    server.command(&mark).unwrap();
    assert_eq!(calls.wait_for(4), ["first", "other", "second", "other"]);
    let before = called(&server, "evalsha");
    thread::sleep(ms(2000));
    let asked = called(&server, "evalsha") - before;
    assert!(asked < 12, "{asked} calls, of which 5 are renewals");
    SECOND.store(true, SeqCst);
    expect("the partition to be back", || a.owned().len() == 8);
    // what was finished and not stored is handled again
    calls.wait_for(6);
}

/// Its claim is given up as soon as the handler has come back, however far away the server is.
#[test]
fn a_lane_that_ends_after_its_consumer_still_releases_its_claim() {
    static GATE: AtomicBool = AtomicBool::new(false);
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let (_streams, builder) = describe(&relay.url(), "a", "lingers");
    let builder = builder.lease_ttl(Duration::from_mins(5));
    let calls = Seen::default();
    let all = calls.clone();
    let a = builder
        .shutdown_timeout(ms(300))
        .shared(move |_: &Message<'_>| {
            all.push(());
            testing::eventually(3 * PATIENCE, || GATE.load(SeqCst));
            Ok(())
        })
        .start()
        .unwrap();
    publish_to(&open(&server.url(), "lingers", 8), "lingers", 3, &["x"]);
    calls.wait_for(1);
    relay.fault(Way::Replies, Fault::Delay(ms(30)));
    assert_eq!(a.stop().still_running, [3]);
    expect("the others to be released", || {
        claims(&server, "lingers") == ["3"]
    });
    relay.reset();
    GATE.store(true, SeqCst);
    expect("the last to be released", || {
        claims(&server, "lingers").is_empty()
    });
}

/// Positions that are stored nowhere are those in memory, for as long as the process lives.
#[test]
fn without_stored_positions_a_lane_that_comes_back_goes_on_where_it_was() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let streams = open(&relay.url(), "memory", 8);
    let builder = streams.consumer("memory").name("c");
    let builder = builder.lease_ttl(TTL).lease_renew(RENEW);
    let builder = builder.persist(Persist::None);
    let seen = Seen::default();
    let a = recording(builder.start_from(StartFrom::Beginning), &seen);
    let a = a.start().unwrap();
    fill(&server, "memory", &["0", "1"]);
    seen.wait_for(16);
    relay.fault(Way::Replies, Fault::BlackHole);
    expect("the claims to end", || a.partitions().is_empty());
    relay.heal();
    expect("all to be back", || a.partitions().len() == 8);
    fill(&server, "memory", &["2"]);
    expect("the last of each", || {
        let all = seen.all();
        all.iter().filter(|body| *body == "2").count() >= 8
    });
    running(&a);
    assert_eq!(seen.len(), 24, "nothing twice");
}
