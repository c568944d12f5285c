//! Claims on ids: one is the first, and what each way loses.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
    time::Duration,
};

use streamlane::{
    testing::{Answer, Fault, PrivateServer, Relay, Stub, Way},
    *,
};

use crate::support::*;

const HOUR: Duration = Duration::from_hours(1);
const MARKER: &str = "re:dedupe:{bets}:id";

fn text(server: &PrivateServer, command: &[&str]) -> String {
    server.command(command).unwrap().text()
}

fn marked(server: &PrivateServer) -> bool {
    server.command(&["EXISTS", MARKER]).unwrap().int() == Some(1)
}

/// Lets the time of the marker run out.
fn run_out(server: &PrivateServer) {
    text(server, &["PEXPIRE", MARKER, "1"]);
    expect("the marker to go", || !marked(server));
}

fn bets(url: &str) -> Idempotency {
    open(url, "orders", 1).idempotency("bets").unwrap()
}

#[test]
fn one_of_many_is_the_first_and_peers_see_the_same_marker() {
    let server = server();
    let bets = bets(&server.url());
    let firsts = AtomicUsize::new(0);
    thread::scope(|s| {
        for t in 0..8 {
            let (bets, firsts) = (bets.clone(), &firsts);
            s.spawn(move || {
                let first = match t % 2 {
                    0 => bets.try_begin("id", HOUR).unwrap(),
                    _ => bets.claim("id", HOUR).unwrap().mine().is_some_and(|c| {
                        assert!(c.remaining() > HOUR / 2 && c.remaining() <= HOUR);
                        c.complete(HOUR).unwrap() == Completion::InTime
                    }),
                };
                firsts.fetch_add(first.into(), Relaxed);
            });
        }
    });
    assert_eq!(firsts.load(Relaxed), 1);
    assert_eq!(text(&server, &["GET", MARKER]), "1");
    let left = server.command(&["PTTL", MARKER]).unwrap().int().unwrap();
    assert!(left > 3_000_000 && left <= 3_600_000, "{left}");
    // A peer's claim counts, whatever it holds; so does one of a forwarder, which holds nothing.
    for value in ["1", ""] {
        text(&server, &["SET", MARKER, value]);
        assert!(!bets.try_begin("id", HOUR).unwrap());
        assert!(matches!(bets.claim("id", HOUR).unwrap(), Sight::Done));
    }
    // Another scope is another thing.
    let other = open(&server.url(), "orders", 1)
        .idempotency("payments")
        .unwrap();
    assert!(other.try_begin("id", HOUR).unwrap());
}

#[test]
fn what_try_begin_marked_stays_marked_until_its_time_is_over() {
    let server = server();
    // Whoever was first died before the work.
    assert!(bets(&server.url()).try_begin("id", HOUR).unwrap());
    let bets = bets(&server.url());
    assert!(!bets.try_begin("id", HOUR).unwrap());
    run_out(&server);
    assert!(bets.try_begin("id", Duration::from_micros(1_999)).unwrap());
}

#[test]
fn a_claim_is_released_by_whatever_ends_the_work_early() {
    let server = server();
    let bets = bets(&server.url());
    let claim = || bets.claim("id", HOUR).unwrap().mine();
    assert!(claim().unwrap().release().unwrap());
    assert!(!marked(&server));
    drop(claim().unwrap());
    assert!(!marked(&server));
    let work = || -> Result<()> {
        let _claim = claim().unwrap();
        bets.try_begin("", HOUR).map(drop)
    };
    work().unwrap_err();
    assert!(!marked(&server));
    let panics = thread::scope(|s| {
        let work = s.spawn(|| {
            let _claim = claim().unwrap();
            panic!("as meant");
        });
        work.join().is_err()
    });
    assert!(panics && !marked(&server));
    assert_eq!(claim().unwrap().complete(HOUR).unwrap(), Completion::InTime);
    assert!(matches!(bets.claim("id", HOUR).unwrap(), Sight::Done));
    // As if it had died in between: nobody releases it.
    run_out(&server);
    let dead = claim().unwrap();
    // not done: who took this for it would lose the work
    assert!(matches!(bets.claim("id", HOUR).unwrap(), Sight::Claimed));
    run_out(&server);
    assert!(claim().is_some());
    drop(dead);
}

#[test]
fn a_claim_that_ran_out_is_told_so_and_frees_nothing_of_the_next() {
    type End = fn(Claim) -> bool;
    let server = server();
    let bets = bets(&server.url());
    let claim = || bets.claim("id", HOUR).unwrap().mine().unwrap();
    let release: End = |c| c.release().unwrap();
    let complete: End = |c| c.complete(HOUR).unwrap() == Completion::InTime;
    let forget: End = |c| {
        drop(c);
        false
    };
    for end in [release, complete, forget] {
        let late = claim();
        run_out(&server);
        let next = claim();
        let held = text(&server, &["GET", MARKER]);
        assert!(!end(late), "it was another's by then");
        assert_eq!(text(&server, &["GET", MARKER]), held);
        assert!(next.release().unwrap());
    }
    // Taken by nobody meanwhile: what was done is marked as done, and still told to be late.
    let late = claim();
    run_out(&server);
    assert_eq!(late.complete(HOUR).unwrap(), Completion::Late);
    assert!(marked(&server));
    // Without a server's word, the claim's own clock knows.
    let brief = bets
        .claim("other", Duration::from_millis(1))
        .unwrap()
        .mine()
        .unwrap();
    expect("its time to be over", || brief.remaining().is_zero());
}

#[test]
fn ids_and_scopes_are_checked_before_anything_is_sent() {
    let stub = Stub::start(|_, _| Answer::Usual).unwrap();
    let streams = open(&stub.url(), "orders", 1);
    for scope in ["", " ", "{a}", "a}", "a\n"] {
        let e = streams.idempotency(scope).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Config, "{e}");
        assert!(e.to_string().contains("scope"), "{e}");
    }
    let bets = streams.idempotency("bets").unwrap();
    for (id, ttl) in [
        ("", HOUR),
        (&*"x".repeat(1025), HOUR),
        ("id", Duration::ZERO),
        ("id", Duration::from_micros(400)),
        ("id", Duration::MAX),
    ] {
        for e in [
            bets.try_begin(id, ttl).unwrap_err(),
            bets.claim(id, ttl).unwrap_err(),
        ] {
            assert_eq!(
                (e.kind(), e.outcome()),
                (ErrorKind::Argument, Outcome::NotApplied)
            );
            assert!(e.to_string().contains("re:dedupe:{bets}:"), "{e}");
        }
    }
    assert_eq!(stub.count("SET"), 0);
    let server = server();
    let claims = open(&server.url(), "orders", 1)
        .idempotency("bets")
        .unwrap();
    assert!(claims.try_begin(b"\0\xff{}\r\n", HOUR).unwrap());
    assert!(!claims.try_begin(b"\0\xff{}\r\n", HOUR).unwrap());
}

#[test]
fn lost_answers_are_unknown_and_a_claim_whose_end_is_unknown_ends_by_itself() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let streams = open(&relay.url(), "orders", 1);
    let bets = streams.idempotency("bets").unwrap();
    // From here on the server knows the script by its hash.
    let warm = bets.claim("warm", HOUR).unwrap().mine().unwrap();
    assert_eq!(warm.complete(HOUR).unwrap(), Completion::InTime);
    relay.fault_existing(Way::Replies, Fault::Swallow);
    let other = bets.clone();
    let lost = thread::spawn(move || other.try_begin("id", HOUR));
    expect("the marker", || marked(&server));
    relay.close();
    let e = lost.join().unwrap().unwrap_err();
    assert_eq!(
        (e.operation(), e.outcome()),
        ("claim", Outcome::Unknown),
        "{e}"
    );
    assert_eq!(e.key(), Some(MARKER));
    assert!(
        !bets.try_begin("id", HOUR).unwrap(),
        "whose it is nobody knows"
    );

    run_out(&server);
    let claim = bets.claim("id", HOUR).unwrap().mine().unwrap();
    relay.fault_existing(Way::Replies, Fault::Swallow);
    let done = thread::spawn(move || claim.complete(HOUR));
    expect("the claim to be completed", || {
        text(&server, &["GET", MARKER]) == "1"
    });
    relay.close();
    let e = done.join().unwrap().unwrap_err();
    assert_eq!(
        (e.operation(), e.outcome()),
        ("complete", Outcome::Unknown),
        "{e}"
    );
    assert!(
        marked(&server),
        "the work is done: its claim is not released"
    );
}

#[test]
fn a_full_server_takes_no_claims_and_lets_those_it_has_end() {
    let server = server();
    let bets = bets(&server.url());
    let [done, given_up] =
        ["done", "given up"].map(|id| bets.claim(id, HOUR).unwrap().mine().unwrap());
    text(&server, &["CONFIG", "SET", "maxmemory", "1"]);
    let e = bets.claim("id", HOUR).unwrap_err();
    assert_eq!(
        (e.server_code(), e.outcome()),
        (Some("OOM"), Outcome::NotApplied),
        "{e}"
    );
    assert_eq!(done.complete(HOUR).unwrap(), Completion::InTime);
    assert!(given_up.release().unwrap());
}

#[test]
fn without_scripts_claims_can_be_made_but_the_error_says_how_to_end_them() {
    let server = server();
    let rules = "ACL SETUSER u reset on >p ~* &* +@all -@scripting";
    text(&server, &rules.split(' ').collect::<Vec<_>>());
    let bets = bets(&format!("redis://u:p@127.0.0.1:{}", server.port()));
    assert!(bets.try_begin("simple", HOUR).unwrap());
    for end in [
        |c: Claim| c.complete(HOUR).map(drop),
        |c: Claim| c.release().map(drop),
    ] {
        let claim = bets.claim("id", HOUR).unwrap().mine().unwrap();
        let e = end(claim).unwrap_err();
        assert_eq!(e.server_class(), Some(ServerClass::NoPermission), "{e}");
        let text = e.to_string();
        assert!(
            text.contains("+evalsha") && text.contains("~re:dedupe:{bets}:*"),
            "{text}"
        );
        assert!(marked(&server));
        run_out(&server);
    }
    drop(bets.claim("id", HOUR).unwrap());
    let told = warned("re:dedupe:{bets}:id");
    assert!(told.iter().any(|l| l.contains("stays claimed")), "{told:?}");
}
