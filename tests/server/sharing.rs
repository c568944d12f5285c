//! One publisher in the hands of many threads while things go wrong: everybody is told in time, and told
//! the truth.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used
)]

use std::{
    cell::RefCell,
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use serde::{Serialize, Serializer};
use streamlane::{
    testing::{Aof, Fault, PrivateServer, Relay, Way},
    *,
};

use crate::{
    publishing::{entries, failed, open_with_timeout},
    support::*,
};

const CALLERS: usize = 16;

/// How long a call may take in these tests, ...
const TIMEOUT: Duration = Duration::from_millis(500);
/// ... and how much longer it may be until its thread runs again, even here.
const MARGIN: Duration = Duration::from_secs(5);

const TOPIC: &str = "shared";

/// What one call said.
struct Call {
    body: String,
    told: Result<StreamId>,
    took: Duration,
}

/// How often each caller was told that its message is stored.
#[derive(Default)]
struct Stored([AtomicU32; CALLERS]);

impl Stored {
    /// Waits until each caller has stored so many more.
    #[track_caller]
    fn wait_for_more(&self, n: u32) {
        let before = self.0.each_ref().map(|n| n.load(Relaxed));
        let each = || self.0.iter().zip(before);
        expect("every caller to store more", || {
            each().all(|(now, before)| now.load(Relaxed) >= before + n)
        });
    }
}

/// Publishes from many threads at once, as fast as they can, until `meanwhile` has done its worst.
fn crowd(publisher: &Publisher, meanwhile: impl FnOnce(&Stored)) -> Vec<Vec<Call>> {
    let (stored, over) = (Stored::default(), AtomicBool::new(false));
    let caller = |c: usize| {
        let mut calls = Vec::new();
        while !over.load(Relaxed) {
            let body = format!("{c}-{}", calls.len());
            let start = Instant::now();
            let told = publisher.publish(c.to_string(), "T", &body);
            let took = start.elapsed();
            stored.0[c].fetch_add(u32::from(told.is_ok()), Relaxed);
            calls.push(Call { body, told, took });
        }
        calls
    };
    thread::scope(|scope| {
        let caller = &caller;
        let callers: Vec<_> = (0..CALLERS)
            .map(|c| scope.spawn(move || caller(c)))
            .collect();
        let ending = Over(&over);
        stored.wait_for_more(3);
        meanwhile(&stored);
        drop(ending);
        callers.into_iter().map(|c| c.join().unwrap()).collect()
    })
}

/// Holds what callers were told against what the server has, and returns how many were told of an error.
fn check(server: &PrivateServer, calls: &[Vec<Call>]) -> usize {
    let mut kept = HashMap::new();
    for (id, fields) in entries(server, TOPIC, 0) {
        let again = kept.insert(fields[1].clone(), id.parse::<StreamId>().unwrap());
        assert!(again.is_none(), "{} is stored twice", fields[1]);
    }
    let mut failures = 0;
    for calls in calls {
        let mut last = StreamId::MIN;
        for Call { body, told, took } in calls {
            assert!(*took < TIMEOUT + MARGIN, "{body} took {took:?}: {told:?}");
            let kept = kept.get(body);
            match told {
                Ok(id) => {
                    assert_eq!(kept, Some(id), "{body}");
                    assert!(*id > last, "{body} was stored before the one before it");
                    last = *id;
                }
                Err(e) => {
                    failures += 1;
                    assert!(e.key().is_some() && e.endpoint().is_some(), "{e}");
                    assert_eq!(e.operation(), "publish", "{e}");
                    let not_applied = e.outcome() == Outcome::NotApplied;
                    assert!(!not_applied || kept.is_none(), "{body} is stored: {e}");
                }
            }
        }
    }
    failures
}

/// Has a crowd publish through a relay while `fault` does what it wants and undoes it; then publishing goes
/// on, over one connection, beside that of who looks for delayed messages. Returns how many calls failed.
fn survive(server: &PrivateServer, fault: impl FnOnce(&Relay)) -> usize {
    let relay = Relay::to(server).unwrap();
    let streams = open_with_timeout(&relay.url(), TOPIC, TIMEOUT);
    let publisher = streams.publisher(TOPIC).unwrap();
    expect("the topic", || publisher.publish("", "T", "first").is_ok());
    let calls = crowd(&publisher, |stored| {
        fault(&relay);
        stored.wait_for_more(3);
    });
    expect("one connection to be left, and one for delays", || {
        relay.open() == 2
    });
    publisher.publish("", "T", "last").unwrap();
    let (told, stored) = (streams.published(), calls.iter().flatten());
    let stored = stored.filter(|c| c.told.is_ok()).count() as u64;
    let failures = check(server, &calls);
    let counted = &told[0];
    assert_eq!(counted.stored.iter().sum::<u64>(), stored + 2);
    assert!(counted.refused + counted.unknown >= failures as u64);
    failures
}

/// Lets time pass in which callers are left to what was done to them.
fn let_pass(time: Duration) {
    thread::sleep(time);
}

#[test]
fn replies_that_are_lost_cost_those_who_wait_for_them() {
    let server = server();
    let failures = survive(&server, |relay| {
        relay.fault_existing(Way::Replies, Fault::Swallow);
        let_pass(2 * TIMEOUT);
    });
    assert!(failures >= CALLERS);
}

#[test]
fn replies_that_are_late_cost_time() {
    let late = Fault::Delay(Duration::from_millis(20));
    let failures = survive(&server(), |relay| {
        relay.fault_existing(Way::Replies, late);
        let_pass(TIMEOUT);
        relay.fault_existing(Way::Replies, Fault::Pass);
    });
    assert_eq!(failures, 0);
    // some in time, some not
    let late = Fault::Delay(TIMEOUT + TIMEOUT / 5);
    survive(&server(), |relay| {
        relay.fault_existing(Way::Replies, late);
        let_pass(2 * TIMEOUT);
        relay.fault_existing(Way::Replies, Fault::Pass);
    });
}

#[test]
fn replies_that_trickle_in_are_nobody_elses() {
    for way in [Way::Replies, Way::Requests] {
        survive(&server(), |relay| {
            relay.fault_existing(way, Fault::Trickle(Duration::from_millis(2)));
            let_pass(2 * TIMEOUT);
            relay.fault_existing(way, Fault::Pass);
        });
    }
}

#[test]
fn connections_that_are_reset_or_cut_in_mid_word_cost_what_was_on_its_way() {
    let server = server();
    survive(&server, |relay| {
        for n in 0..10 {
            let_pass(Duration::from_millis(10));
            match n % 3 {
                0 => relay.reset(),
                1 => relay.close(),
                _ => relay.fault_existing(Way::Requests, Fault::CutAfter(1000 + n)),
            }
        }
    });
}

#[test]
fn a_dead_link_costs_each_caller_no_more_than_its_deadline() {
    let server = server();
    let failures = survive(&server, |relay| {
        relay.fault(Way::Requests, Fault::BlackHole);
        relay.fault(Way::Replies, Fault::BlackHole);
        let_pass(3 * TIMEOUT);
        relay.heal();
    });
    assert!(failures >= CALLERS);
}

#[test]
fn a_server_that_stands_still_longer_than_a_deadline_is_found_again() {
    let server = server();
    let failures = survive(&server, |_| {
        server.pause().unwrap();
        let_pass(3 * TIMEOUT);
        server.resume().unwrap();
    });
    assert!(failures >= CALLERS);
}

#[test]
fn a_server_that_is_killed_has_all_that_was_stored_when_it_is_back() {
    let server = PrivateServer::builder().tcp().aof(Aof::Always);
    let server = server.start().unwrap();
    survive(&server, |_| {
        for _ in 0..2 {
            server.kill();
            let_pass(TIMEOUT / 2);
            server.restart().unwrap();
        }
    });
}

#[test]
fn a_server_that_becomes_a_replica_stores_nothing_and_says_so() {
    let server = server();
    let failures = survive(&server, |_| {
        server.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
        let_pass(Duration::from_millis(100));
        server.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    });
    assert!(failures >= CALLERS);
}

/// A value whose serializing is a bug when it says so.
struct Value {
    is_bug: bool,
    text: String,
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        assert!(!self.is_bug, "a bug in a serializer");
        serializer.serialize_str(&self.text)
    }
}

impl MessageType for Value {
    const MESSAGE_TYPE: &'static str = "Value";
}

#[test]
fn a_caller_that_panics_harms_nobody_else() {
    let server = server();
    let streams = open_with_timeout(&server.url(), TOPIC, TIMEOUT);
    let publisher = streams.publisher(TOPIC).unwrap();
    let asked = AtomicU32::new(0);
    let hook = move || {
        let n = asked.fetch_add(1, Relaxed);
        assert!(n % 7 != 3, "a bug in a trace hook");
        None
    };
    streams.trace_with(hook).unwrap();
    publisher.publish("", "T", "first").unwrap();
    let caller = |c: usize| {
        let values = (0..60).map(|n| Value {
            is_bug: n % 5 == c % 5,
            text: format!("{c}-{n}"),
        });
        let publish = |v: &Value| {
            let call = || publisher.publish_json("k", v);
            catch_unwind(AssertUnwindSafe(call)).ok()
        };
        let told = values.map(|v| (publish(&v), v));
        told.collect::<Vec<_>>()
    };
    let told: Vec<_> = thread::scope(|scope| {
        let caller = &caller;
        let callers = (0..CALLERS).map(|c| scope.spawn(move || caller(c)));
        let callers: Vec<_> = callers.collect();
        let told = callers.into_iter().map(|c| c.join().unwrap());
        told.flatten().collect()
    });
    let stored = entries(&server, TOPIC, 0);
    let mut stored: HashMap<_, _> = stored.iter().map(|(id, f)| (&*f[1], id)).collect();
    assert_eq!(stored.remove("first").map(|_| ()), Some(()));
    for (told, value) in &told {
        let body = format!("{:?}", value.text);
        let kept = stored.remove(&*body);
        let id = told.as_ref().map(|told| told.as_ref().unwrap().to_string());
        assert_eq!(kept, id.as_ref(), "{body}");
        assert!(id.is_none() || !value.is_bug);
    }
    assert!(stored.is_empty(), "{stored:?}");
    assert!(told.iter().filter(|(told, _)| told.is_some()).count() > 100);
    assert_eq!(connections(&server, "streams-pub").len(), 1);
}

/// What a thread that ends still has to say.
struct LastWords {
    publisher: Publisher,
    told: mpsc::Sender<Result<StreamId>>,
}

impl Drop for LastWords {
    fn drop(&mut self) {
        let _ = self.told.send(self.publisher.publish("k", "T", "last"));
    }
}

thread_local! {
    static EARLY: RefCell<Option<LastWords>> = const { RefCell::new(None) };
    static LATE: RefCell<Option<LastWords>> = const { RefCell::new(None) };
}

#[test]
fn a_thread_publishes_to_its_very_end() {
    let server = server();
    let streams = open(&server.url(), TOPIC, 1);
    let publisher = streams.publisher(TOPIC).unwrap();
    let (told, hear) = mpsc::channel();
    let words = || LastWords {
        publisher: publisher.clone(),
        told: told.clone(),
    };
    // Whatever the order in which a thread's variables end, one of these ends after the publisher's own.
    let (early, late) = (words(), words());
    let thread = thread::spawn(move || {
        EARLY.set(Some(early));
        late.publisher.publish("k", "T", "first").unwrap();
        LATE.set(Some(late));
    });
    thread.join().unwrap();
    for _ in 0..2 {
        hear.recv_timeout(PATIENCE).unwrap().unwrap();
    }
    assert_eq!(entries(&server, TOPIC, 0).len(), 3);
}

#[test]
fn a_trace_hook_may_publish_and_one_that_dawdles_holds_up_only_who_wants_the_same_connection() {
    let server = server();
    let streams = open_with_timeout(&server.url(), TOPIC, TIMEOUT);
    let publisher = streams.publisher(TOPIC).unwrap();
    let (go, within) = (Arc::new(Barrier::new(2)), publisher.clone());
    let dawdle = Arc::clone(&go);
    let hook = move || {
        let message = within.message("T", "from the hook");
        message.traceparent("").publish().unwrap();
        if thread::current().name() == Some("dawdler") {
            dawdle.wait(); // the link is taken now
            dawdle.wait();
        }
        None
    };
    streams.trace_with(hook).unwrap();
    publisher.publish("k", "T", "first").unwrap();
    let once = |id: &str| {
        publisher
            .message("T", "once")
            .dedupe(id, PATIENCE)
            .publish()
    };
    thread::scope(|scope| {
        let dawdler = thread::Builder::new().name("dawdler".to_owned());
        let dawdler = dawdler.spawn_scoped(scope, || once("a")).unwrap();
        go.wait();
        publisher.publish("k", "T", "second").unwrap();
        let id = once("b").map(|p| p.id);
        let e = failed(id, ErrorKind::Timeout, Outcome::NotApplied);
        assert!(e.to_string().contains("other callers"), "{e}");
        for told in publisher.publish_batch(&[Outgoing::new("T", "x"), Outgoing::new("T", "y")]) {
            failed(told, ErrorKind::Timeout, Outcome::NotApplied);
        }
        go.wait();
        let too_late = dawdler.join().unwrap().is_err();
        assert_eq!(streams.published()[0].refused, 3 + u64::from(too_late));
    });
    once("c").unwrap();
}
