//! Members that come and go, and those that share a name.

use std::{
    thread,
    time::{Duration, Instant},
};

use streamlane::{testing::PrivateServer, *};

use super::{child::Job, *};

#[test]
fn r65_members_that_are_no_more_are_forgotten() {
    let server = server();
    let topic = "r65-ghosts";
    let keys = [stream(topic, 0), format!("re:rt:{{{topic}}}:c")];
    let quick = |streams: &Streams| {
        let builder = worker(streams, topic);
        builder.lease_ttl(ms(900)).lease_renew(ms(150))
    };
    let seen = Seen::default();
    let here = as_pod(&server, topic, 1, "here");
    let _stays = recording(quick(&here), &seen).start().unwrap();
    let mut most = 0;
    for n in 0..30 {
        let streams = as_pod(&server, topic, 1, &format!("host-{}", n * 7919));
        let consumer = recording(quick(&streams), &seen).start().unwrap();
        running(&consumer);
        most = most.max(known(&server, &keys[0]).len());
        consumer.stop();
    }
    assert!(most > 2, "they were known while they lived");
    for key in &keys {
        expect("the dead to be forgotten", || {
            known(&server, key).len() == 1
        });
        assert!(known(&server, key)[0].starts_with("here#"));
    }
    publish(&here, topic, 0..10);
    seen.wait_for(10);
    nothing_is_left(&server, topic, 1);
}

/// An empty read makes no sign of life on old servers: a member that waits looks dead.
#[test]
fn r66_members_that_have_nothing_to_do_are_not_taken_for_dead() {
    let server = server();
    let topic = "r66-quiet";
    let key = stream(topic, 0);
    let seen = Seen::default();
    let consumers = ["a", "b"].map(|pod| {
        let streams = as_pod(&server, topic, 1, pod);
        let builder = worker(&streams, topic).lease_ttl(ms(900));
        let builder = builder.lease_renew(ms(150)).claim_idle(ms(300));
        let builder = builder.claim_interval(ms(100));
        recording(builder, &seen).start().unwrap()
    });
    consumers.iter().for_each(running);
    let before = known(&server, &key);
    assert_eq!(before.len(), 2, "{before:?}");
    let begun = Instant::now();
    while begun.elapsed() < ms(4000) {
        assert_eq!(known(&server, &key), before);
        thread::sleep(ms(50));
    }
    publish(&open(&server.url(), topic, 1), topic, 0..20);
    seen.wait_for(20);
    assert_eq!(seen.len(), 20);
    assert_eq!(warned(topic), [""; 0]);
}

#[test]
fn r67_of_two_processes_of_one_name_neither_has_what_the_other_has() {
    let server = server();
    let topic = "r67-twins";
    let job = Job {
        ttl: Some(TTL),
        work: Some(ms(2)),
        ..Job::new(&server, topic, "twin")
    };
    let publisher = open(&server.url(), topic, 1);
    let first = job.start();
    publish(&publisher, topic, 0..300);
    job.wait_until_begun(10);
    let streams = as_pod(&server, topic, 1, "twin");
    let seen = Seen::default();
    let second = recording(member(&streams, topic), &seen).start().unwrap();
    publish(&publisher, topic, 300..500);
    let everything = || {
        let mut all = job.finished();
        all.extend(seen.all());
        all
    };
    expect("all of them to be finished", || everything().len() >= 500);
    nothing_is_left(&server, topic, 1);
    assert_eq!(by_number(everything()), numbers(0, 500), "each once");
    // the later one wins, which the other says
    publish(&publisher, topic, 500..510);
    expect("the second to be at work", || seen.len() >= 10);
    nothing_is_left(&server, topic, 1);
    second.stop();
    first.kill();
}

/// The same of two within one process.
#[test]
fn r67_a_second_consumer_of_the_name_in_one_process_is_refused() {
    let server = server();
    let topic = "r67-here";
    let [one, other] = ["twin", "twin"].map(|pod| as_pod(&server, topic, 1, pod));
    let seen = Seen::default();
    let _first = recording(member(&one, topic), &seen).start().unwrap();
    let e = recording(member(&other, topic), &seen).start().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Config, "{e}");
    assert!(e.to_string().contains("PodName"), "{e}");
}

/// With settings as they are by default, by which the dead count as alive for half a minute.
#[test]
fn r67_a_restarted_process_takes_over_what_its_predecessor_had_at_once() {
    let server = server();
    let topic = "r67-again";
    let streams = as_pod(&server, topic, 1, "fixed");
    publish(&streams, topic, 0..40);
    let job = Job::new(&server, topic, "fixed");
    let process = job.start();
    job.wait_until_begun(1);
    process.kill();
    let seen = Seen::default();
    let begun = Instant::now();
    let builder = worker(&streams, topic);
    let _consumer = recording(builder, &seen).start().unwrap();
    seen.wait_for(40);
    let took = begun.elapsed();
    assert!(took < RESUMES, "{took:?}");
    nothing_is_left(&server, topic, 1);
    assert_eq!(by_number(seen.all()), numbers(0, 40), "each once");
}

/// What a server has forgotten with its last moments is handled again; nothing that it has is passed over.
#[test]
fn r70_a_group_that_went_back_with_its_server_repeats_and_skips_nothing() {
    let server = PrivateServer::builder().tcp().start().unwrap();
    listen_to_the_log();
    let topic = "r70-back";
    let (streams, seen) = (open(&server.url(), topic, 1), Seen::default());
    let consumer = recording(member(&streams, topic), &seen).start().unwrap();
    publish(&streams, topic, 0..500);
    seen.wait_for(500);
    nothing_is_left(&server, topic, 1);
    server.command(&["SAVE"]).unwrap();
    let lost = publish_to(
        &streams,
        topic,
        0,
        &numbers(500, 1000)
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>(),
    );
    seen.wait_for(1000);
    server.kill();
    server.restart().unwrap();
    let there = server.command(&["XLEN", &stream(topic, 0)]).unwrap();
    assert_eq!(there.int(), Some(500), "it forgot the rest");
    let begun = Instant::now();
    running(&consumer);
    // Of the entries that come now none may be taken for one of those that were finished.
    let again = publish_to(&streams, topic, 0, &["1000", "1001"]);
    assert!(again[0] > lost[499]);
    seen.wait_for(1002);
    assert!(begun.elapsed() < RESUMES, "{:?}", begun.elapsed());
    nothing_is_left(&server, topic, 1);
    assert_eq!(by_number(seen.all()), numbers(0, 1002), "each once");

    // The same where the group went back and the stream did not: all of that comes again.
    let key = stream(topic, 0);
    let back = ["XGROUP", "SETID", &key, "c", "0"];
    server.command(&back).unwrap();
    seen.wait_for(1002 + 502);
    publish(&streams, topic, 1002..1003);
    seen.wait_for(1002 + 503);
    nothing_is_left(&server, topic, 1);
    thread::sleep(Duration::from_millis(100));
    assert_eq!(seen.len(), 1505);
}

/// What was pending before a reset is not handled on top of what comes after it, unless that is wanted.
#[test]
fn r69_a_reset_tells_what_is_pending_and_asks_what_becomes_of_it() {
    let server = server();
    let topic = "r69-reset";
    let key = stream(topic, 0);
    let streams = open(&server.url(), topic, 1);
    let refuses = member(&streams, topic).shared(|_: &Message<'_>| Err("not now").or_block());
    publish(&streams, topic, 0..5);
    let refuses = refuses.start().unwrap();
    expect("five to be given out", || pending(&server, &key) == 5);
    let admin = streams.admin();
    let reset = || admin.reset(topic, "c", ResetTo::End);
    let e = reset().pending(Pending::Drop).apply().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Argument, "a member lives: {e}");
    refuses.stop();
    assert_eq!(reset().preview().unwrap().partitions[0].pending, Some(5));
    let e = reset().apply().unwrap_err();
    assert!(e.to_string().contains("Pending::"), "{e}");
    assert_eq!(pending(&server, &key), 5, "nothing was changed");
    reset().pending(Pending::Drop).apply().unwrap();
    let seen = Seen::default();
    let consumer = recording(member(&streams, topic), &seen).start().unwrap();
    publish(&streams, topic, 5..7);
    assert_eq!(seen.wait_for(2), numbers(5, 7));
    nothing_is_left(&server, topic, 1);

    // while a member lives, if it must be
    let again = admin.reset(topic, "c", ResetTo::Start).force();
    again.pending(Pending::Keep).apply().unwrap();
    seen.wait_for(9);
    nothing_is_left(&server, topic, 1);
    assert_eq!(seen.all()[2..], numbers(0, 7));
    drop(consumer);
}
