//! How far consumers are behind, by what the server is asked, and not by what handlers get round to saying.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use streamlane::{testing::PrivateServer, *};

use crate::support::*;

/// The shortest interval there is.
const OFTEN: Duration = Duration::from_secs(1);
const SHORT: Duration = Duration::from_millis(100);

/// Streams that ask often.
pub(crate) fn sampling(server: &PrivateServer, topic: &str, partitions: u32) -> Streams {
    let settings = settings(&server.url(), topic, partitions);
    Streams::open(settings.sample_interval(OFTEN)).unwrap()
}

/// Handlers that wait to be let go, one call at a time.
#[derive(Clone, Default)]
pub(crate) struct Turnstile {
    allowed: Arc<AtomicUsize>,
    entered: Arc<AtomicUsize>,
}

impl Turnstile {
    /// Lets so many more through.
    pub(crate) fn let_go(&self, n: usize) {
        self.allowed.fetch_add(n, SeqCst);
    }

    /// Lets everybody through from now on.
    pub(crate) fn open(&self) {
        self.allowed.store(usize::MAX / 2, SeqCst);
    }

    /// Waits until a handler stands in it, after so many that went through.
    #[track_caller]
    pub(crate) fn wait_for(&self, n: usize) {
        expect("a handler to be called", || self.entered.load(SeqCst) > n);
    }

    pub(crate) fn on(&self, builder: ConsumerBuilder) -> ConsumerBuilder<HasHandler> {
        let gate = self.clone();
        builder.shared(move |m: &Message<'_>| gate.stand(m))
    }

    /// Stands in it until it is let go, or told to stop.
    pub(crate) fn stand(&self, m: &Message<'_>) -> HandlerResult {
        let turn = self.entered.fetch_add(1, SeqCst);
        while self.allowed.load(SeqCst) <= turn && !m.is_cancelled() {
            thread::sleep(Duration::from_millis(1));
        }
        if m.is_cancelled() {
            Err("told to stop")?;
        }
        Ok(())
    }
}

fn queue(streams: &Streams, topic: &str) -> ConsumerBuilder {
    let builder = streams.consumer(topic).name("c").block(SHORT);
    builder.delivery(Delivery::WorkQueue).batch_size(1)
}

fn either(streams: &Streams, topic: &str, is_queue: bool) -> ConsumerBuilder {
    if is_queue {
        queue(streams, topic)
    } else {
        streams.consumer(topic).name("c").block(SHORT)
    }
}

/// One partition of a topic, as the process sees it.
fn partition(streams: &Streams, topic: &str, partition: u32) -> Option<PartitionStatus> {
    let mut all = streams.partitions().into_iter();
    all.find(|p| &*p.topic == topic && p.partition == partition)
}

/// Waits for a sample that was asked for after this call, which the second new one is.
#[track_caller]
pub(crate) fn sampled(streams: &Streams, topic: &str, p: u32) -> PartitionStatus {
    let (mut before, mut new, mut shown) = (None, 0, None);
    expect("a sample", || {
        let status = partition(streams, topic, p);
        let age = status.as_ref().and_then(|s| s.sample_age);
        if age.is_some() && before.is_none_or(|before| age < Some(before)) {
            new += 1;
        }
        before = age.or(before);
        shown = status;
        new > 2
    });
    shown.unwrap()
}

/// Waits until nobody waits in the server for anything to read.
#[track_caller]
fn nobody_reads(server: &PrivateServer) {
    expect("reads to end", || {
        let info = server.command(&["INFO", "clients"]).unwrap().text();
        info.contains("blocked_clients:0\r\n")
    });
}

fn stream(topic: &str, p: u32) -> String {
    format!("re:s:{{{topic}}}:{p}")
}

#[test]
fn r71_lag_that_the_server_cannot_tell_is_unknown_and_not_caught_up() {
    let server = server();
    let streams = sampling(&server, "r71", 1);
    let gate = Turnstile::default();
    publish(&streams, "r71", 0..5);
    let consumer = gate.on(queue(&streams, "r71")).start().unwrap();
    gate.let_go(1);
    gate.wait_for(1);
    let key = stream("r71", 0);
    let all = server.command(&["XRANGE", &key, "-", "+"]).unwrap();
    let fourth = all.items()[3].items()[0].text();
    server.command(&["XDEL", &key, &fourth]).unwrap();
    let s = sampled(&streams, "r71", 0);
    assert_eq!((s.unread, s.lag_entries), (None, None), "{s:?}");
    assert_eq!((s.stream_length, s.pending), (Some(4), Some(1)), "{s:?}");
    assert!(!s.caught_up && s.lag > Some(Duration::ZERO), "{s:?}");
    gate.open();
    expect("all to be finished", || {
        let s = partition(&streams, "r71", 0).unwrap();
        s.caught_up && s.unread == Some(0)
    });
    // and from memory alone, when nobody reads any more
    consumer.pause();
    expect("the lane to pause", || {
        partition(&streams, "r71", 0).unwrap().state == LaneState::Paused
    });
    let s = sampled(&streams, "r71", 0);
    assert_eq!((s.unread, s.caught_up), (Some(0), true), "{s:?}");
}

#[test]
fn r72_what_has_caught_up_is_told_by_ids_and_not_by_the_lag_of_the_server() {
    let server = server();
    for (topic, is_queue) in [("r72-queue", true), ("r72-ordered", false)] {
        let streams = sampling(&server, topic, 1);
        let gate = Turnstile::default();
        publish(&streams, topic, 0..5);
        let builder = either(&streams, topic, is_queue);
        let consumer = gate.on(builder.batch_size(1)).start().unwrap();
        gate.wait_for(0);
        let key = stream(topic, 0);
        server
            .command(&["XTRIM", &key, "MAXLEN", "=", "1"])
            .unwrap();
        let s = sampled(&streams, topic, 0);
        assert_eq!(s.lag_entries, Some(1), "{topic}: {s:?}");
        gate.open();
        expect("all to be finished", || {
            partition(&streams, topic, 0).unwrap().caught_up
        });
        consumer.pause();
        expect("the lane to pause", || {
            partition(&streams, topic, 0).unwrap().state == LaneState::Paused
        });
        let s = sampled(&streams, topic, 0);
        assert!(s.caught_up, "{topic}: {s:?}");
        let zero = Some(Duration::ZERO);
        assert_eq!((s.lag_entries, s.lag), (Some(0), zero), "{topic}: {s:?}");
        assert_eq!(s.stream_length, Some(1));
    }
}

#[test]
fn r73_what_waits_and_what_is_pending_are_two_numbers_and_right_to_the_one() {
    let server = server();
    for (topic, is_queue) in [("r73-queue", true), ("r73-ordered", false)] {
        let streams = sampling(&server, topic, 1);
        let gate = Turnstile::default();
        let builder = either(&streams, topic, is_queue);
        let builder = builder.batch_size(1);
        let consumer = gate.on(builder).start().unwrap();
        running(&consumer);
        // one unread, none pending
        consumer.pause();
        nobody_reads(&server);
        publish(&streams, topic, 0..1);
        let s = sampled(&streams, topic, 0);
        let of_queue = |n| is_queue.then_some(n);
        assert_eq!((s.lag_entries, s.unread), (Some(1), of_queue(1)), "{s:?}");
        assert_eq!((s.pending.unwrap_or(0), s.caught_up), (0, false), "{s:?}");
        // none unread, one pending
        consumer.resume();
        gate.wait_for(0);
        let s = sampled(&streams, topic, 0);
        let left = u64::from(!is_queue);
        assert_eq!(
            (s.lag_entries, s.unread),
            (Some(left), of_queue(0)),
            "{s:?}"
        );
        assert_eq!(s.pending, of_queue(1), "{s:?}");
        assert!(s.handler_for.is_some() && s.attempt == 1, "{s:?}");
        // a thousand, one by one
        publish(&streams, topic, 1..1000);
        let mut done = 0;
        for more in [0, 1, 499, 498] {
            gate.let_go(more);
            done += more;
            gate.wait_for(done);
            let s = sampled(&streams, topic, 0);
            let not_done = 1000 - done as u64;
            let unread = if is_queue { not_done - 1 } else { not_done };
            assert_eq!(s.lag_entries, Some(unread), "{done}: {s:?}");
            assert_eq!(s.pending, of_queue(1), "{done}: {s:?}");
            assert!(!s.caught_up, "{done}: {s:?}");
        }
        gate.open();
        expect("all to be finished", || {
            let s = partition(&streams, topic, 0).unwrap();
            s.caught_up && s.lag_entries == Some(0) && s.handled == 1000
        });
        let s = sampled(&streams, topic, 0);
        assert_eq!((s.unread, s.pending), (of_queue(0), of_queue(0)), "{s:?}");
        assert_eq!(s.stream_length, Some(1000));
    }
}

#[test]
fn r74_a_stream_that_is_not_there_yet_has_no_lag_and_others_are_not_touched() {
    let server = server();
    let streams = sampling(&server, "r74-there", 1);
    let none = recording(streams.consumer("r74-none").name("c"), &Seen::default());
    let none = none.start().unwrap();
    let gate = Turnstile::default();
    let there = gate
        .on(streams.consumer("r74-there").name("c"))
        .start()
        .unwrap();
    running(&none);
    running(&there);
    publish(&streams, "r74-there", 0..3);
    gate.wait_for(0);
    for there in [true, false] {
        for p in 0..2 {
            let s = sampled(&streams, "r74-none", p);
            assert_eq!((s.stream_exists, s.stream_length), (Some(there), Some(0)));
            assert_eq!((s.lag_entries, s.tail), (Some(0), Some(StreamId::MIN)));
            assert_eq!(s.lag, Some(Duration::ZERO));
            server.command(&["DEL", &stream("r74-none", p)]).unwrap();
        }
    }
    assert_eq!(streams.health().status, Status::Healthy);
    let s = sampled(&streams, "r74-there", 0);
    assert_eq!((s.stream_exists, s.lag_entries), (Some(true), Some(3)));
    assert_eq!(warned("r74-none"), Vec::<String>::new());
    // and as soon as there is one
    publish(&streams, "r74-none", 0..1);
    expect("the stream to be seen", || {
        (0..2).any(|p| sampled(&streams, "r74-none", p).stream_exists == Some(true))
    });
    gate.open();
}

#[test]
fn what_is_no_stream_is_unknown_and_said_once_and_others_go_on() {
    let server = server();
    let streams = sampling(&server, "no-stream", 2);
    let consumer = recording(streams.consumer("no-stream").name("c"), &Seen::default());
    let consumer = consumer.start().unwrap();
    running(&consumer);
    let key = stream("no-stream", 0);
    server.command(&["DEL", &key]).unwrap();
    server.command(&["SET", &key, "text"]).unwrap();
    publish_to(&streams, "no-stream", 1, &["a", "b"]);
    expect("it to be unknown", || {
        let s = partition(&streams, "no-stream", 0).unwrap();
        s.stream_length.is_none() && s.sample_age.is_none() && s.lag_entries.is_none()
    });
    for _ in 0..3 {
        let s = sampled(&streams, "no-stream", 1);
        assert_eq!((s.stream_length, s.lag_entries), (Some(2), Some(0)));
    }
    let about = logged(&["WARN no-stream[0]/c: how far it is behind"]);
    assert_eq!(about.len(), 1, "{about:?}");
    server.command(&["DEL", &key]).unwrap();
    expect("it to be known again", || {
        let s = partition(&streams, "no-stream", 0).unwrap();
        s.stream_length == Some(0)
    });
}

#[test]
fn where_asking_is_not_permitted_nothing_is_known_and_messages_are_handled() {
    let server = server();
    let user = ["ACL", "SETUSER", "blind", "on", ">x", "~*", "+@all"];
    server.command(&user).unwrap();
    let deny = ["ACL", "SETUSER", "blind", "-xinfo", "-xpending"];
    server.command(&deny).unwrap();
    let url = server.tcp_url().replace("//", "//blind:x@");
    let settings = settings(&url, "no-rights", 1).sample_interval(OFTEN);
    let streams = Streams::open(settings).unwrap();
    let seen = Seen::default();
    let consumer = recording(streams.consumer("no-rights").name("c"), &seen);
    let consumer = consumer.start().unwrap();
    running(&consumer);
    publish(&streams, "no-rights", 0..3);
    seen.wait_for(3);
    expect("it to be said", || {
        !logged(&[
            "WARN no-rights[0]/c: how far it is behind is not known",
            "NOPERM",
        ])
        .is_empty()
    });
    thread::sleep(2 * OFTEN);
    let lines = logged(&["WARN no-rights[0]/c: how far it is behind is not known"]);
    assert_eq!(lines.len(), 1, "{lines:?}");
    let s = partition(&streams, "no-rights", 0).unwrap();
    assert_eq!((s.stream_length, s.tail), (None, None));
    // what the lane has found out itself it still knows
    expect("the lane to have caught up", || {
        let s = partition(&streams, "no-rights", 0).unwrap();
        (s.caught_up, s.lag_entries) == (true, Some(0))
    });
    assert_eq!(streams.health().status, Status::Healthy);
}

#[test]
fn r79_what_is_shown_does_not_stand_still_when_a_handler_does_and_goes_away_with_its_partition() {
    let server = server();
    let pod = |name: &str| {
        let settings = settings(&server.url(), "r79", 2).pod_name(name);
        let settings = settings.sample_interval(OFTEN);
        Streams::open(settings).unwrap()
    };
    let streams = pod("a");
    let gate = Turnstile::default();
    let mine = streams.consumer("r79").name("c");
    let mine = mine.lease_ttl(Duration::from_secs(1)).lease_renew(SHORT);
    let consumer = gate.on(mine.shutdown_timeout(OFTEN)).start().unwrap();
    running(&consumer);
    let lag = |n| {
        expect("the lag to be seen", || {
            partition(&streams, "r79", 0).is_some_and(|s| s.lag_entries == Some(n))
        });
    };
    // wedged
    publish_to(&streams, "r79", 0, &["0", "1"]);
    gate.wait_for(0);
    lag(2);
    publish_to(&streams, "r79", 0, &["2", "3", "4"]);
    lag(5);
    let s = partition(&streams, "r79", 0).unwrap();
    assert!(s.sample_age.unwrap() < PATIENCE && !s.caught_up, "{s:?}");
    assert!(s.lag > Some(Duration::ZERO), "{s:?}");
    // paused, in the middle of it
    consumer.pause();
    gate.open();
    publish_to(&streams, "r79", 0, &["5"]);
    expect("it to stand still", || {
        let s = partition(&streams, "r79", 0).unwrap();
        s.state == LaneState::Paused && s.lag_entries > Some(0)
    });
    consumer.resume();
    lag(0);
    // its partitions are divided between two, and what went to the other is not shown here any more
    let theirs = pod("b");
    let other = theirs.consumer("r79").name("c");
    let other = other.lease_ttl(Duration::from_secs(1)).lease_renew(SHORT);
    let other = recording(other, &Seen::default()).start().unwrap();
    let shown = |s: &Streams| {
        s.partitions()
            .iter()
            .map(|p| p.partition)
            .collect::<Vec<_>>()
    };
    expect("each to have one", || {
        shown(&streams).len() == 1 && shown(&theirs).len() == 1
    });
    assert_ne!(shown(&streams), shown(&theirs));
    let (ours, theirs) = (streams.partitions(), theirs.partitions());
    assert!(!ours[0].epoch.is_empty() && ours[0].epoch != theirs[0].epoch);
    drop(other);
    drop(consumer);
    assert_eq!(shown(&streams), Vec::<u32>::new());
}

#[test]
fn a_stopped_partition_is_still_looked_at() {
    let server = server();
    let streams = sampling(&server, "stopped-lag", 2);
    let consumer = streams
        .consumer("stopped-lag")
        .name("c")
        .shared(|_: &Message<'_>| Err("it is over").or_stop())
        .start()
        .unwrap();
    running(&consumer);
    publish_to(&streams, "stopped-lag", 1, &["0"]);
    expect("it to stop", || {
        partition(&streams, "stopped-lag", 1).unwrap().state == LaneState::Stopped
    });
    publish_to(&streams, "stopped-lag", 1, &["1", "2"]);
    expect("what waits to be seen", || {
        partition(&streams, "stopped-lag", 1).unwrap().lag_entries == Some(3)
    });
    let s = partition(&streams, "stopped-lag", 1).unwrap();
    assert!(!s.escalates && s.behind_for.is_some(), "{s:?}");
    let other = partition(&streams, "stopped-lag", 0).unwrap();
    assert_eq!((other.caught_up, other.lag_entries), (true, Some(0)));
}

#[test]
fn large_messages_are_not_fetched_by_looking_at_them() {
    let server = server();
    let streams = sampling(&server, "large-lag", 4);
    let publisher = streams.publisher("large-lag").unwrap();
    let body = vec![b'x'; 8 << 20];
    for p in 0..4 {
        let draft = publisher.message("T", &body).partition(p);
        draft.publish().unwrap();
    }
    let gate = Turnstile::default();
    let consumer = streams.consumer("large-lag").name("c");
    let consumer = gate.on(consumer).start().unwrap();
    gate.wait_for(3);
    // The slower the answers, the rarer the questions: the first one has to do.
    for p in 0..4 {
        expect("it to be known", || {
            let s = partition(&streams, "large-lag", p).unwrap();
            (s.stream_length, s.lag_entries) == (Some(1), Some(1))
        });
    }
    assert!(streams.health().rule != Rule::ConnectionDown);
    gate.open();
    drop(consumer);
}
