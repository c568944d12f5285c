//! Who reads a topic, and to forget who does not any more.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use streamlane::{testing::PrivateServer, *};

use crate::{
    retention::{HOUR, becomes, int, kept_for, len, old, process, put, stream},
    support::*,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn find(all: Vec<ConsumerInfo>, name: &str) -> ConsumerInfo {
    all.into_iter().find(|c| c.name == name).unwrap()
}

fn keys(server: &PrivateServer, topic: &str) -> Vec<String> {
    let all = server
        .command(&["KEYS", &format!("re:*{{{topic}}}*")])
        .unwrap();
    let mut all: Vec<_> = all.items().iter().map(testing::Reply::text).collect();
    all.sort();
    all
}

#[test]
fn consumers_of_every_kind_are_listed_with_how_far_they_are() {
    let server = server();
    let streams = open(&server.url(), "listed", 2);
    let ids: Vec<_> = (0..2)
        .map(|p| publish_to(&streams, "listed", p, &["a", "b", "c"]))
        .collect();
    let seen = Seen::default();
    let through = recording(streams.consumer("listed").name("through"), &seen)
        .start()
        .unwrap();
    seen.wait_for(6);
    let group = streams
        .consumer("listed")
        .name("work")
        .delivery(Delivery::WorkQueue);
    let group = recording(group, &seen).start().unwrap();
    seen.wait_for(12);
    let nothing = streams.consumer("listed").name("nothing");
    let nothing = nothing.persist(Persist::None).start_from(StartFrom::Now);
    let nothing = recording(nothing, &seen).start().unwrap();
    for p in 0..2 {
        let key = format!("re:s:{{listed}}:{p}");
        server
            .command(&["XGROUP", "CREATE", &key, "foreign", "0"])
            .unwrap();
    }
    let read = [
        "XREADGROUP",
        "GROUP",
        "foreign",
        "m",
        "COUNT",
        "2",
        "STREAMS",
        "re:s:{listed}:0",
        ">",
    ];
    server.command(&read).unwrap();
    let position = ids[0][0].to_string();
    server
        .command(&["HSET", "re:p:{listed}:stranger", "0", &position])
        .unwrap();
    let admin = streams.admin();
    let list = || admin.consumers("listed").unwrap();
    expect("both to have finished", || {
        ["through", "work"]
            .iter()
            .all(|n| find(list(), n).unread == Some(0))
    });
    let all = list();
    let names: Vec<_> = all.iter().map(|c| &*c.name).collect();
    assert_eq!(names, ["foreign", "nothing", "through", "work"]);
    let of = |name| find(all.clone(), name);
    for (name, kind) in [
        ("through", ConsumerKind::Positions),
        ("work", ConsumerKind::Group),
    ] {
        let c = of(name);
        assert_eq!(
            (c.kind, c.registered, c.members.len()),
            (kind, true, 1),
            "{c}"
        );
        assert_eq!((c.behind, c.pending), (Some(Duration::ZERO), 0), "{c}");
        assert!(c.last_seen.is_some() && c.finished.is_some(), "{c}");
    }
    let c = of("nothing");
    assert_eq!(
        (c.kind, c.behind, c.unread),
        (ConsumerKind::Nothing, None, None)
    );
    let c = of("foreign");
    assert_eq!(
        (c.kind, c.registered, c.pending),
        (ConsumerKind::Group, false, 2)
    );
    assert_eq!((c.unread, c.finished), (None, Some(StreamId::MIN)));
    assert!(c.members.is_empty() && c.behind.is_some_and(|b| b > HOUR));
    let all = admin.find_consumers("listed").unwrap();
    let c = find(all, "stranger");
    assert_eq!((c.kind, c.registered), (ConsumerKind::Positions, false));
    assert_eq!((c.finished, c.unread, c.last_seen), (None, None, None));
    let e = admin.consumers("unheard").unwrap_err();
    assert!(e.to_string().contains("never been created"), "{e}");
    drop((through, group, nothing));
}

#[test]
fn who_lives_is_not_forgotten_and_then_all_that_is_kept_for_it_is_gone() {
    let server = server();
    let streams = open(&server.url(), "gone", 1);
    publish(&streams, "gone", 0..3);
    let queue = |name: &str, on: OnError| {
        let c = streams
            .consumer("gone")
            .name(name)
            .delivery(Delivery::WorkQueue);
        let c = c.on_error(on).lease_ttl(MS(900)).lease_renew(MS(300));
        c.messages(|_| {
            |m: &Message<'_>| -> HandlerResult {
                match m.body() {
                    b"0" => Err(std::io::Error::other("no")).or_dead_letter(),
                    b"1" => Err(std::io::Error::other("no")).or_retry_after(HOUR),
                    _ => Err(std::io::Error::other("no")).or_block(),
                }
            }
        })
    };
    let before = keys(&server, "gone");
    let stays = recording(streams.consumer("gone").name("stays"), &Seen::default());
    let stays = stays.start().unwrap();
    let consumer = queue("leaves", OnError::Retry).start().unwrap();
    let admin = streams.admin();
    let forget = || admin.forget("gone", "leaves");
    expect("one letter, one that waits and one that is pending", || {
        let found = forget().preview().unwrap();
        (found.dead_letters, found.waiting, found.pending) == (1, 1, 1)
    });
    let e = forget().apply().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Argument);
    assert!(e.to_string().contains("gone/leaves lives: "), "{e}");
    drop(consumer);
    // A process that does not say goodbye is there until its claims end.
    expect("it to be no more", || {
        forget().preview().unwrap().alive.is_empty()
    });
    let found = forget().preview().unwrap();
    assert!(found.registered && found.groups == [0], "{found}");
    let done = forget().apply().unwrap();
    assert_eq!(done, found);
    let left: Vec<_> = keys(&server, "gone")
        .into_iter()
        .filter(|k| k.contains("leaves"))
        .collect();
    assert_eq!(left[0], "re:d:{gone}:leaves", "{left:?}");
    assert!(left.iter().all(|k| k.starts_with("re:d:")), "{left:?}");
    let groups = server
        .command(&["XINFO", "GROUPS", &stream("gone")])
        .unwrap();
    assert_eq!(groups.items().len(), 0);
    assert_eq!(int(&server, &["HEXISTS", "re:c:{gone}", "leaves"]), 0);
    let letters = forget().with_dead_letters().apply().unwrap();
    assert_eq!((letters.dead_letters, letters.registered), (1, false));
    assert!(forget().preview().unwrap().is_nothing());
    assert_eq!(
        int(&server, &["XLEN", &stream("gone")]),
        3,
        "messages are nobody's"
    );
    drop(stays);
    let others = keys(&server, "gone");
    assert!(others.contains(&"re:p:{gone}:stays".into()), "{others:?}");
    assert!(before.iter().all(|k| others.contains(k)));
    admin.forget("gone", "stays").apply().unwrap();
    let after: Vec<_> = keys(&server, "gone")
        .into_iter()
        .filter(|k| !k.contains("{gone}:mover"))
        .collect();
    assert!(after.iter().all(|k| before.contains(k)), "{after:?}");
}

#[test]
fn a_consumer_in_another_language_lives_while_it_asks_for_messages() {
    let server = server();
    old(&server, "tongue", 5);
    let key = stream("tongue");
    server
        .command(&["XGROUP", "CREATE", &key, "theirs", "0"])
        .unwrap();
    let read = ["XREADGROUP", "GROUP", "theirs", "m", "STREAMS", &key, ">"];
    server.command(&read).unwrap();
    let admin = Streams::connect(server.url()).unwrap().admin();
    let e = admin.forget("tongue", "theirs").apply().unwrap_err();
    assert!(e.to_string().contains("tongue/theirs lives: m"), "{e}");
    let done = admin.forget("tongue", "theirs").force().apply().unwrap();
    assert_eq!((done.pending, done.registered), (5, false));
    assert!(admin.consumers("tongue").unwrap().is_empty());
}

#[test]
fn r77_what_was_kept_for_a_consumer_goes_when_it_is_forgotten() {
    let server = server();
    old(&server, "freed", 100);
    put(&server, "freed", "dead", 9);
    put(&server, "freed", "fast", 99);
    let (streams, _publisher) = process(&server.url(), "freed", kept_for(HOUR), "p");
    becomes("what both have read to go", || len(&server, "freed") == 91);
    let done = streams.admin().forget("freed", "dead").apply().unwrap();
    assert_eq!(done.keys, ["re:p:{freed}:dead"]);
    becomes("the rest to go", || len(&server, "freed") == 0);
    assert!(streams.trimmed().iter().all(|t| t.unread == 0));
}
