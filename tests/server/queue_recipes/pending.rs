//! What is pending: entries that are gone, claims of what is idle, and handlers that take their time.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use streamlane::{
    testing::{Answer, Reply},
    *,
};

use super::{
    front::{forward, front, is},
    *,
};

/// When the calls for each message began and ended.
#[derive(Clone, Default)]
struct Calls(Seen<(String, u32, Instant, Instant)>);

impl Calls {
    fn handler(&self, work: Duration) -> impl Fn(&Message<'_>) -> HandlerResult + use<> {
        let all = self.0.clone();
        move |m| {
            let begun = Instant::now();
            thread::sleep(work);
            all.push((text(m), m.attempt(), begun, Instant::now()));
            Ok(())
        }
    }

    fn bodies(&self) -> Vec<String> {
        self.0.all().into_iter().map(|(body, ..)| body).collect()
    }
}

/// Redis 6.2 answers a claim with two elements, and nils for what was deleted.
#[test]
fn r45_an_old_servers_claim_with_nils_in_it_is_understood() {
    let server = server();
    let topic = "r45-nils";
    let key = stream(topic, 0);
    publish(&open(&server.url(), topic, 1), topic, 0..3);
    let ids = orphan(&server, &key, 3);
    let cursors = Seen::<String>::default();
    let (asked, of) = (cursors.clone(), key.clone());
    let gone = ids[1..].to_vec();
    let front = front(&server, move |args, client| {
        if !is(args, "XAUTOCLAIM") || args[1] != of.as_bytes() {
            return None;
        }
        asked.push(String::from_utf8_lossy(&args[5]).into_owned());
        let nil = || Reply::Nil;
        let (next, entries) = match asked.len() {
            1 => ("7-0", vec![nil(), nil()]),
            2 => {
                let claimed = forward(client, args).items()[1].items().to_vec();
                let mut delete = vec![b"XDEL".to_vec(), of.clone().into_bytes()];
                delete.extend(gone.iter().map(|id| id.clone().into_bytes()));
                forward(client, &delete);
                (
                    "0-0",
                    claimed.into_iter().take(1).chain([nil(), nil()]).collect(),
                )
            }
            _ => ("0-0", vec![]),
        };
        let answer = vec![Reply::bulk(next), Reply::Array(entries)];
        Some(Answer::Reply(Reply::Array(answer)))
    });
    let (seen, streams) = (Seen::default(), open(&front.url(), topic, 1));
    let builder = member(&streams, topic)
        .claim_idle(ms(100))
        .claim_interval(ms(50));
    let consumer = recording(builder, &seen).start().unwrap();
    assert_eq!(seen.wait_for(1), numbers(0, 1));
    expect("the others to be counted as lost", || {
        consumer.partitions()[0].lost == 2
    });
    nothing_is_left(&server, topic, 1);
    // it goes on where the server says, past the nils
    expect("more claims", || cursors.len() > 2);
    let all = cursors.all();
    assert_eq!((&*all[0], &*all[1], &*all[2]), ("0-0", "7-0", "0-0"));
    assert_eq!(seen.len(), 1);
    let lines = warned(topic);
    assert!(
        lines
            .iter()
            .any(|l| l.contains("LOST") && l.contains(&ids[1])),
        "{lines:#?}"
    );
    assert!(lines.iter().all(|l| l.contains("LOST")), "{lines:#?}");
}

/// However entries that were deleted come to light: as a claim is answered, or when a dead member's are taken.
#[test]
fn r47_pending_entries_that_were_deleted_are_counted_and_named_and_not_handled() {
    for (name, topic) in [("tool", "r47-claimed"), ("svc#0a1b2c3d", "r47-taken-over")] {
        let server = server();
        let key = stream(topic, 0);
        let streams = open(&server.url(), topic, 1);
        publish(&streams, topic, 0..3);
        let ids = read_as(&server, name, &key, 3);
        server.command(&["XDEL", &key, &ids[0], &ids[2]]).unwrap();
        let seen = Seen::default();
        let builder = member(&streams, topic).claim_interval(ms(50));
        let builder = match name {
            "tool" => builder.claim_idle(ms(100)),
            _ => builder,
        };
        let consumer = recording(builder, &seen).start().unwrap();
        assert_eq!(seen.wait_for(1), numbers(1, 2), "{topic}");
        expect("the others to be counted as lost", || {
            consumer.partitions()[0].lost == 2
        });
        nothing_is_left(&server, topic, 1);
        assert_eq!(seen.len(), 1, "{topic}");
        let told = logged(&["ERROR", topic, "LOST"]);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains(": 2 "), "how many: {told:?}");
        let named = |id: &String| told[0].contains(id.as_str());
        let all: Vec<_> = ids.iter().map(named).collect();
        assert_eq!(all, [true, false, true], "{told:?}");
        assert_eq!(consumer.partitions()[0].failures, 0);
    }
}

/// A hundred that somebody keeps fresh lie in front of fifty that nobody does.
#[test]
fn r49_what_is_idle_is_found_behind_what_is_not_and_the_rest_when_it_is() {
    let server = server();
    let topic = "r49-behind";
    let key = stream(topic, 0);
    publish(&open(&server.url(), topic, 1), topic, 0..350);
    let ids = orphan(&server, &key, 350);
    let calls = Calls::default();
    let over = AtomicBool::new(false);
    thread::scope(|s| {
        s.spawn(|| {
            let mut keep = vec!["XCLAIM", &key, "c", "tool", "0"];
            keep.extend(ids[..250].iter().map(String::as_str));
            keep.push("JUSTID");
            while !over.load(SeqCst) {
                server.command(&keep).unwrap();
                thread::sleep(ms(50));
            }
        });
        let _over = Over(&over);
        let members = ["a", "b"].map(|pod| {
            let streams = as_pod(&server, topic, 1, pod);
            let builder = member(&streams, topic).claim_idle(ms(1000));
            let builder = builder.claim_interval(ms(250));
            builder.shared(calls.handler(ms(1))).start().unwrap()
        });
        calls.0.wait_for(100);
        thread::sleep(ms(600));
        assert_eq!(
            by_number(calls.bodies()),
            numbers(250, 350),
            "none that is alive"
        );
        over.store(true, SeqCst);
        calls.0.wait_for(350);
        nothing_is_left(&server, topic, 1);
        drop(members);
    });
    assert_eq!(by_number(calls.bodies()), numbers(0, 350), "each once");
}

/// A handler takes three and a half times as long as it takes a message to be thought of as abandoned.
#[test]
fn r50_a_handler_slower_than_the_idle_limit_keeps_its_message_alone_or_beside_others() {
    thread::scope(|s| {
        s.spawn(|| keeps_its_message(1));
        keeps_its_message(2);
    });
}

fn keeps_its_message(members: usize) {
    const IDLE: i64 = 1200;
    let server = server();
    let topic = &format!("r50-slow-{members}");
    let calls = Calls::default();
    let all: Vec<_> = ["a", "b"][..members]
        .iter()
        .map(|pod| {
            let streams = as_pod(&server, topic, 1, pod);
            let builder = member(&streams, topic).claim_idle(ms(IDLE.cast_unsigned()));
            let builder = builder.claim_interval(ms(100));
            builder.shared(calls.handler(ms(4200))).start().unwrap()
        })
        .collect();
    all.iter().for_each(running);
    publish(&open(&server.url(), topic, 1), topic, 0..1);
    let key = stream(topic, 0);
    expect("it to be handed over", || pending(&server, &key) == 1);
    let mut oldest = 0;
    let begun = Instant::now();
    while begun.elapsed() < ms(3900) {
        let look = ["XPENDING", &key, "c", "-", "+", "10"];
        let look = server.command(&look).unwrap();
        let entry = look.items()[0].items();
        let times = &entry[3];
        assert_eq!(
            *times,
            Reply::Int(1),
            "given out once, whatever keeps it alive"
        );
        oldest = oldest.max(entry[2].int().unwrap());
        thread::sleep(ms(20));
    }
    assert!((200..IDLE).contains(&oldest), "idle for {oldest} ms");
    nothing_is_left(&server, topic, 1);
    let calls = calls.0.all();
    assert_eq!(calls.len(), 1, "{calls:?}");
    assert_eq!(calls[0].1, 1);
}

/// A batch that takes eight times as long as it takes a message to be thought of as abandoned.
#[test]
fn r51_what_waits_behind_others_in_a_batch_is_not_taken_for_abandoned() {
    const ONE_READ: u32 = 16;
    let server = server();
    let topic = "r51-waiting";
    let calls = Calls::default();
    publish(&open(&server.url(), topic, 1), topic, 0..ONE_READ);
    let start = |pod| {
        let streams = as_pod(&server, topic, 1, pod);
        let builder = member(&streams, topic).claim_idle(ms(300));
        let builder = builder.claim_interval(ms(60));
        builder.shared(calls.handler(ms(150))).start().unwrap()
    };
    let busy = start("busy");
    expect("it to have all of them", || {
        pending(&server, &stream(topic, 0)) == i64::from(ONE_READ)
    });
    // what is idle is looked for at other moments than the busy one looks
    thread::sleep(ms(500));
    let idle = start("idle");
    calls.0.wait_for(ONE_READ as usize);
    nothing_is_left(&server, topic, 1);
    assert_eq!(by_number(calls.bodies()), numbers(0, ONE_READ), "each once");
    let handled = |c: &Consumer| c.partitions()[0].handled;
    assert_eq!((handled(&busy), handled(&idle)), (ONE_READ.into(), 0));
}

#[test]
fn r53_of_eight_members_that_start_at_once_one_claims_each_orphan() {
    let server = server();
    let topic = "r53-at-once";
    let key = stream(topic, 0);
    publish(&open(&server.url(), topic, 1), topic, 0..500);
    assert_eq!(orphan(&server, &key, 500).len(), 500);
    let calls = Calls::default();
    let barrier = std::sync::Barrier::new(8);
    let members: Vec<_> = thread::scope(|s| {
        let start = |n| {
            let (server, calls, barrier) = (&server, &calls, &barrier);
            move || {
                let streams = as_pod(server, topic, 1, &format!("pod-{n}"));
                let builder = member(&streams, topic).claim_idle(ms(500));
                let builder = builder.claim_interval(ms(50));
                barrier.wait();
                builder.shared(calls.handler(ms(2))).start().unwrap()
            }
        };
        let all: Vec<_> = (0..8).map(|n| s.spawn(start(n))).collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    });
    calls.0.wait_for(500);
    nothing_is_left(&server, topic, 1);
    assert_eq!(by_number(calls.bodies()), numbers(0, 500), "each once");
    let shares = members.iter().filter(|m| m.partitions()[0].handled > 0);
    assert!(shares.count() > 1, "several had a part in it");
}

#[test]
fn r56_that_nothing_is_idle_long_enough_or_at_once_cannot_be_said() {
    let server = server();
    let streams = open(&server.url(), "r56-zero", 1);
    let refused = |b: ConsumerBuilder| {
        let e = b.shared(|_: &Message<'_>| Ok(())).start().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Config, "{e}");
        e.to_string()
    };
    let builder = || worker(&streams, "r56-zero");
    let e = refused(builder().claim_idle(Duration::ZERO));
    assert!(e.contains("Claim:IdleMs") && e.contains("100"), "{e}");
    let e = refused(builder().claim_interval(Duration::ZERO));
    assert!(e.contains("Claim:IntervalMs") && e.contains("50"), "{e}");
}

/// No attempts is what it says: the first failure is the last, and what failed is kept.
#[test]
fn r56_no_attempts_make_a_dead_letter_of_the_first_failure() {
    let server = server();
    let topic = "r56-none";
    let streams = open(&server.url(), topic, 1);
    let calls = Arc::new(AtomicUsize::new(0));
    let all = Arc::clone(&calls);
    let builder = member(&streams, topic).retry(0);
    let consumer = builder.shared(move |_: &Message<'_>| {
        all.fetch_add(1, SeqCst);
        Err("never".into())
    });
    let _consumer = consumer.start().unwrap();
    publish(&streams, topic, 0..2);
    expect("dead letters", || letters(&streams, topic).len() == 2);
    nothing_is_left(&server, topic, 1);
    assert_eq!(calls.load(SeqCst), 2);
    let each: BTreeMap<_, _> = letters(&streams, topic)
        .into_iter()
        .map(|l| (l.body().unwrap().to_vec(), (l.attempts, l.deliveries)))
        .collect();
    assert_eq!(each.values().collect::<Vec<_>>(), [&(0, 1), &(0, 1)]);
}
