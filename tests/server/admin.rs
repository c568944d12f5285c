//! What operators see and do from outside a consumer.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use streamlane::{testing::PrivateServer, *};

use crate::support::*;

/// A millisecond long ago, and entries a minute apart from then on.
const MS: u64 = 1_700_000_000_000;
const MINUTE: u64 = 60_000;
const ADMIN: &str = "6f72616e-6765-4164-6d69-6e5265736574";

fn id(n: u64) -> StreamId {
    StreamId::new(MS + n * MINUTE, 0)
}

fn moment(n: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(MS + n * MINUTE)
}

fn add(server: &PrivateServer, key: &str, range: std::ops::Range<u64>) {
    for n in range {
        let (id, body) = (id(n).to_string(), n.to_string());
        server
            .command(&["XADD", key, &id, "b", &body, "t", "T", "k", ""])
            .unwrap();
    }
}

/// A topic of one partition with so many entries.
fn filled(server: &PrivateServer, topic: &str, n: u64) -> Streams {
    let streams = open(&server.url(), topic, 1);
    streams
        .publisher(topic)
        .unwrap()
        .publish("k", "T", "")
        .unwrap();
    let key = format!("re:s:{{{topic}}}:0");
    server.command(&["DEL", &key]).unwrap();
    add(server, &key, 0..n);
    streams
}

fn hash(topic: &str) -> String {
    format!("re:p:{{{topic}}}:c")
}

fn put(server: &PrivateServer, topic: &str, position: StreamId) {
    server
        .command(&["HSET", &hash(topic), "0", &position.to_string()])
        .unwrap();
}

fn fields(server: &PrivateServer, key: &str) -> Vec<String> {
    let all = server.command(&["HGETALL", key]).unwrap();
    let mut pairs: Vec<_> = all
        .items()
        .chunks(2)
        .map(|pair| format!("{} {}", pair[0].text(), pair[1].text()))
        .collect();
    pairs.sort();
    pairs
}

/// The one partition that a preview is about.
#[track_caller]
fn only(preview: &ResetPreview) -> &PartitionPreview {
    assert_eq!(preview.partitions.len(), 1);
    &preview.partitions[0]
}

/// Starts, handles what there is, stops, and tells what was handled.
#[track_caller]
fn run(streams: &Streams, topic: &str) -> Vec<String> {
    let seen = Seen::default();
    recording(streams.consumer(topic).name("c"), &seen)
        .start()
        .unwrap()
        .drain(PATIENCE)
        .unwrap();
    seen.all()
}

fn numbers(range: std::ops::Range<u64>) -> Vec<String> {
    range.map(|n| n.to_string()).collect()
}

#[test]
fn a_date_in_the_past_is_previewed_entry_by_entry_and_replayed() {
    let server = server();
    let streams = filled(&server, "dated", 60);
    assert_eq!(run(&streams, "dated"), numbers(0..60));
    let reset = streams
        .admin()
        .reset("dated", "c", ResetTo::Date(moment(30)));
    let before = fields(&server, &hash("dated"));
    let preview = reset.preview().unwrap();
    let p = only(&preview);
    assert_eq!(p.direction, ResetDirection::Rewind);
    assert_eq!((p.current, p.assumed), (Some(id(59)), None));
    assert_eq!(p.target, id(30).before());
    assert_eq!((p.entries, p.exact, p.length), (30, true, 60));
    assert_eq!((p.oldest, p.newest), (Some(id(0)), Some(id(59))));
    assert!(!preview.any_trimmed_away() && p.owner.is_none());
    assert_eq!(preview.total_to_reprocess(), 30);
    assert_eq!(preview.total_to_skip(), 0);
    let text = preview.to_string();
    assert!(
        text.starts_with("reset dated / c  from 2023-11-14T22:43:20.0000000+00:00\n"),
        "{text}"
    );
    assert_eq!(fields(&server, &hash("dated")), before, "only looked at");

    assert_eq!(reset.apply().unwrap(), [(0, id(30).before())]);
    assert_eq!(warned("dated/c: reset of").len(), 1);
    assert_eq!(run(&streams, "dated"), numbers(30..60), "at the next start");
    assert_eq!(run(&streams, "dated"), numbers(0..0), "and once");
}

#[test]
fn what_a_reset_writes_is_what_peers_read() {
    let server = server();
    let streams = open(&server.url(), "written", 3);
    let ids: Vec<_> = (0..3)
        .map(|p| publish_to(&streams, "written", p, &["a", "b"]))
        .collect();
    put(&server, "written", ids[0][0]);
    let admin = streams.admin();
    let one = admin.reset("written", "c", ResetTo::End).partition(1);
    assert_eq!(one.apply().unwrap(), [(1, ids[1][1])]);
    let now = fields(&server, &hash("written"));
    assert_eq!(now[0], format!("0 {}", ids[0][0]), "another partition");
    assert_eq!(now[1], format!("1 {}|{ADMIN}", ids[1][1]));
    let marker = now[2]
        .strip_prefix(&format!("__reset:1 {}|", ids[1][1]))
        .unwrap();
    assert!(marker.len() == 33 && marker.ends_with("+00:00"), "{marker}");
    assert_eq!(now.len(), 3);
    let meta = fields(&server, "re:p:{written}:c:meta");
    assert_eq!(
        meta,
        [
            format!("1:instanceId {ADMIN}"),
            format!("1:updatedUtc {marker}")
        ]
    );

    let all = admin.reset("written", "c", ResetTo::Start).apply().unwrap();
    assert_eq!(all, [0, 1, 2].map(|p| (p, StreamId::MIN)));
    let now = fields(&server, &hash("written"));
    assert_eq!(now.len(), 6, "{now:?}");
    let markers: Vec<_> = now.iter().filter_map(|f| f.split_once(" 0-0|")).collect();
    let times: Vec<_> = markers
        .iter()
        .filter(|(f, _)| f.starts_with("__"))
        .collect();
    assert!(
        times.len() == 3 && times.iter().all(|(_, t)| *t == times[0].1),
        "one time for all"
    );
    let seen = Seen::default();
    let consumer = recording(streams.consumer("written").name("c"), &seen)
        .start()
        .unwrap();
    consumer.drain(PATIENCE).unwrap();
    assert_eq!(seen.len(), 6);
}

#[test]
fn entries_are_counted_by_hand_or_at_least_up_to_a_cap() {
    let server = server();
    let streams = filled(&server, "counted", 3000);
    put(&server, "counted", id(2500));
    let gone: Vec<String> = (100..1100).step_by(2).map(|n| id(n).to_string()).collect();
    let mut cmd = vec!["XDEL", "re:s:{counted}:0"];
    cmd.extend(gone.iter().map(String::as_str));
    server.command(&cmd).unwrap();
    let admin = streams.admin();
    let count = |to, cap| {
        let reset = admin.reset("counted", "c", to).most_counted(cap);
        let preview = reset.preview().unwrap();
        let p = only(&preview);
        (p.direction, p.entries, p.exact)
    };
    let [none, rewind, skip] = [
        ResetDirection::None,
        ResetDirection::Rewind,
        ResetDirection::Skip,
    ];
    // every other one from the 100th to the 1098th is gone: 275 of those behind the 549th
    assert_eq!(count(ResetTo::Id(id(549)), 0), (rewind, 1951 - 275, true));
    assert_eq!(count(ResetTo::Start, 0), (rewind, 2501 - 500, true));
    assert_eq!(count(ResetTo::End, 0), (skip, 499, true));
    assert_eq!(count(ResetTo::Id(id(2500)), 0), (none, 0, true));
    assert_eq!(count(ResetTo::Id(id(549)), 1200), (rewind, 1200, false));
    assert_eq!(count(ResetTo::End, 499), (skip, 499, true), "all there are");
    assert_eq!(count(ResetTo::End, 498), (skip, 498, false));
    let text = admin.reset("counted", "c", ResetTo::End).most_counted(498);
    let text = text.preview().unwrap().to_string();
    assert!(text.contains("skip ≥498 of 2500"), "{text}");
    // beyond the end there is nothing to stand on
    for to in [ResetTo::Id(StreamId::MAX), ResetTo::Date(moment(1_000_000))] {
        let preview = admin.reset("counted", "c", to).preview().unwrap();
        assert_eq!(only(&preview).target, id(2999), "{to:?}");
    }
}

#[test]
fn what_was_trimmed_away_is_said() {
    let server = server();
    let streams = filled(&server, "trimmed", 40);
    put(&server, "trimmed", id(39));
    let admin = streams.admin();
    let preview = |to| admin.reset("trimmed", "c", to).preview().unwrap();
    assert!(
        !preview(ResetTo::Start).any_trimmed_away(),
        "all of it is there"
    );
    server
        .command(&["XTRIM", "re:s:{trimmed}:0", "MAXLEN", "10"])
        .unwrap();
    let older = preview(ResetTo::Date(moment(5)));
    let p = only(&older);
    assert!(p.trimmed_away && p.oldest == Some(id(30)) && p.entries == 10);
    assert!(older.to_string().contains("that data is gone"), "{older}");
    assert!(preview(ResetTo::Start).any_trimmed_away());
    for inside in [ResetTo::Date(moment(30)), ResetTo::Id(id(35)), ResetTo::End] {
        assert!(!preview(inside).any_trimmed_away(), "{inside:?}");
    }
}

#[test]
fn without_a_stored_position_the_preview_says_what_it_assumes() {
    let server = server();
    let streams = filled(&server, "unstored", 4);
    let reset = streams.admin().reset("unstored", "c", ResetTo::Id(id(0)));
    let preview = reset.preview().unwrap();
    let p = only(&preview);
    assert_eq!((p.direction, p.entries), (ResetDirection::Skip, 1));
    assert!(
        preview.to_string().contains("current (none, assuming 0-0)"),
        "{preview}"
    );
    let preview = reset
        .clone()
        .when_missing(StartFrom::Now)
        .preview()
        .unwrap();
    let p = only(&preview);
    assert_eq!((p.direction, p.entries), (ResetDirection::Rewind, 3));
    assert_eq!((p.current, p.assumed), (None, Some(id(3))));
    for other in [StartFrom::Stored, StartFrom::Date] {
        let e = reset.clone().when_missing(other).preview().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Argument, "{e}");
    }
}

#[test]
fn topics_are_found_as_they_are_laid_out() {
    let server = server();
    // a service that knows nothing of the topic
    let streams = Streams::connect(server.url()).unwrap();
    let admin = streams.admin();
    let end = |topic: &str| admin.reset(topic, "c", ResetTo::End);
    let e = end("nowhere").apply().unwrap_err();
    assert!(
        e.kind() == ErrorKind::Config && e.to_string().contains("never been created"),
        "{e}"
    );
    server
        .command(&["HSET", "re:m:{spread}", "partitions", "2"])
        .unwrap();
    for p in 0..2 {
        add(&server, &format!("re:s:spread:{p}"), 0..3 + p);
    }
    assert_eq!(end("spread").apply().unwrap(), [(0, id(2)), (1, id(3))]);
    server
        .command(&["HSET", "re:m:{tagged}", "partitions", "2"])
        .unwrap();
    add(&server, "re:s:{tagged}:0", 0..3);
    let e = end("tagged").apply().unwrap_err();
    assert!(
        e.kind() == ErrorKind::Config && e.to_string().contains("re:s:{tagged}:1"),
        "{e}"
    );
    assert_eq!(
        fields(&server, &hash("tagged")),
        [""; 0],
        "nothing is written"
    );
    assert_eq!(end("tagged").partition(0).apply().unwrap(), [(0, id(2))]);
    let e = end("tagged").partition(9).apply().unwrap_err();
    assert!(e.to_string().contains("partition 9 does not exist"), "{e}");
    for (topic, consumer) in [
        ("", "c"),
        ("a{b", "c"),
        ("tagged", ""),
        ("tagged", "c:meta"),
    ] {
        let e = admin
            .reset(topic, consumer, ResetTo::Start)
            .apply()
            .unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Config, "{e}");
    }
    // the end of a stream whose entries are all gone is where it ended
    server
        .command(&["XTRIM", "re:s:{tagged}:0", "MAXLEN", "0"])
        .unwrap();
    assert_eq!(end("tagged").partition(0).apply().unwrap(), [(0, id(2))]);
}

#[test]
fn a_live_owner_is_left_alone_unless_forced() {
    let server = server();
    let streams = open(&server.url(), "owned", 2);
    for p in 0..2 {
        publish_to(&streams, "owned", p, &["a"]);
    }
    let owner = "11c7db43-78ec-ec85-be43-a32aea5fd96e|svc-1";
    server
        .command(&["HSET", "re:o:{owned}:c", "1", owner])
        .unwrap();
    let reset = streams.admin().reset("owned", "c", ResetTo::Start);
    let e = reset.apply().unwrap_err();
    assert_eq!(
        (e.kind(), e.outcome()),
        (ErrorKind::Argument, Outcome::NotApplied)
    );
    for text in ["owned/c", "scale to zero", "partition 1 by", owner] {
        assert!(e.to_string().contains(text), "{e}");
    }
    assert_eq!(
        fields(&server, &hash("owned")),
        [""; 0],
        "nothing is written"
    );
    let preview = reset.preview().unwrap();
    assert_eq!(preview.partitions[0].owner, None);
    assert_eq!(preview.partitions[1].owner.as_deref(), Some(owner));
    assert!(preview.to_string().contains("Warning:"), "{preview}");
    assert_eq!(
        reset.clone().partition(0).apply().unwrap(),
        [(0, StreamId::MIN)]
    );
    assert_eq!(reset.force().apply().unwrap().len(), 2);
    assert_eq!(stored(&server, "owned", "c", 1), Some(StreamId::MIN));
}

/// Positions are stored all the time while the reset is applied, again and again: it is never lost, and
/// happens once each time.
#[test]
fn a_forced_reset_wins_against_a_busy_consumer() {
    let server = server();
    for (topic, persist) in [
        ("hurried", Persist::AsyncBatch),
        ("hurried-sync", Persist::SyncMessage),
    ] {
        let streams = open(&server.url(), topic, 1);
        let bodies: Vec<String> = (0..50).map(|n| n.to_string()).collect();
        let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
        publish_to(&streams, topic, 0, &bodies);
        let seen = Seen::default();
        let (record, builder) = (seen.clone(), streams.consumer(topic).name("c"));
        let builder = builder
            .persist(persist)
            .persist_interval(Duration::from_millis(2));
        let consumer = builder
            .messages(move |_| {
                let record = record.clone();
                move |m: &Message<'_>| -> HandlerResult {
                    record.push(String::from_utf8_lossy(m.body()).into_owned());
                    std::thread::sleep(Duration::from_millis(1));
                    Ok(())
                }
            })
            .start()
            .unwrap();
        let reset = streams.admin().reset(topic, "c", ResetTo::Start).force();
        for round in 0..10 {
            // now and then in the middle, now and then at the end
            seen.wait_for((round + 1) * 20);
            let handled = seen.len();
            reset.apply().unwrap();
            expect("the reset to be taken", || {
                seen.all()[handled..].contains(&"0".into())
            });
        }
        let last = seen.len();
        expect("the last replay to end", || {
            seen.all()[last - 1..].contains(&"49".into())
        });
        let stopped = consumer.drain(PATIENCE).unwrap();
        assert_eq!(stored(&server, topic, "c", 0), Some(stopped.positions[0]));
        let all = seen.all();
        let replays = all.iter().filter(|b| *b == "0").count();
        assert_eq!(replays, 11, "one for each reset, and the first");
        assert!(all.ends_with(&numbers(0..50)), "the last is whole");
        assert_eq!(fields(&server, &hash(topic)).len(), 1, "no marker is left");
    }
}

#[test]
fn a_session_asks_what_it_is_told_and_outlives_refusals() {
    let server = server();
    let mut session = open(&server.url(), "asked", 1).admin().session().unwrap();
    let set = Command::new("SET").key("some key").arg("a value");
    let get = Command::new("GET").key("some key");
    assert_eq!(
        session.call(&set, PATIENCE).unwrap().text(),
        Some(&b"OK"[..])
    );
    let refused = session
        .call(&Command::new("XLEN").key("some key"), PATIENCE)
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Server);
    assert!(refused.to_string().contains("WRONGTYPE"), "{refused}");
    let all = [
        get.clone(),
        Command::new("XLEN").key("some key"),
        Command::new("DBSIZE"),
    ];
    let answers = session.call_all(&all, PATIENCE).unwrap();
    assert_eq!(answers[0].as_ref().unwrap().text(), Some(&b"a value"[..]));
    assert!(answers[1].is_err());
    assert_eq!(answers[2].as_ref().unwrap().int(), Some(1));
    for name in ["monitor", "SUBSCRIBE", "client", "SELECT", ""] {
        let refused = session.call(&Command::new(name), PATIENCE).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Argument, "{name}: {refused}");
    }
    let wait = Command::new("BLPOP").key("nothing").arg(30);
    let late = session.call(&wait, Duration::from_millis(50)).unwrap_err();
    assert!(late.is_retryable(), "{late}");
    assert!(
        session.call(&get, PATIENCE).is_err(),
        "a late answer may come"
    );
}
