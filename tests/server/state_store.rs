//! Events kept by the thing they happened to and published as well: both or neither.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::thread;

use streamlane::{
    testing::{Fault, PrivateServer, Relay, Way},
    *,
};

use crate::{
    publishing::{entries, length},
    support::*,
};

const STATE: &str = "re:{accounts}:state:a1";

fn store(url: &str) -> StateStore {
    open(url, "accounts", 1).state_store("accounts").unwrap()
}

fn event(body: &str) -> Outgoing<'_> {
    Outgoing::new("Deposited", body)
}

#[track_caller]
fn ids(appended: Result<Append>) -> Vec<StreamId> {
    match appended.unwrap() {
        Append::Appended(ids) => ids,
        Append::Conflict => panic!("a conflict"),
    }
}

/// The fields of each entry of the state.
fn state(server: &PrivateServer) -> Vec<Vec<String>> {
    let all = server.command(&["XRANGE", STATE, "-", "+"]).unwrap();
    let fields = |e: &testing::Reply| {
        e.items()[1]
            .items()
            .iter()
            .map(testing::Reply::text)
            .collect()
    };
    all.items().iter().map(fields).collect()
}

#[test]
fn what_is_appended_is_read_back_and_published_under_the_name() {
    let server = server();
    let store = store(&server.url());
    let events = [
        event("1"),
        Outgoing::new("Closed", ""),
        event("naïve\0日本"),
    ];
    let ids = ids(store.append("a1", 0, &events));
    let read = store.read("a1", StreamId::MIN, 10).unwrap();
    assert_eq!(read.iter().map(|e| e.id).collect::<Vec<_>>(), ids);
    assert!(ids.is_sorted());
    for (read, event) in read.iter().zip(["1", "", "naïve\0日本"]) {
        assert_eq!(&*read.body, event.as_bytes());
    }
    assert_eq!(&*read[1].message_type, b"Closed");
    assert_eq!(store.version("a1").unwrap(), 3);
    assert_eq!(state(&server)[0], ["b", "1", "t", "Deposited"]);
    let published = entries(&server, "accounts", 0);
    assert_eq!(published.len(), 3);
    assert_eq!(published[0].1, ["b", "1", "t", "Deposited", "k", "a1"]);
    assert_eq!(published[2].1[1], "naïve\0日本");
}

#[test]
fn pages_begin_after_an_id_and_end_at_their_size() {
    let server = server();
    let store = store(&server.url());
    assert_eq!(store.read("a1", StreamId::MIN, 10).unwrap(), []);
    assert_eq!(store.version("a1").unwrap(), 0);
    let bodies: Vec<_> = (0..7).map(|n| n.to_string()).collect();
    let events: Vec<_> = bodies.iter().map(|b| event(b)).collect();
    let ids = ids(store.append("a1", 0, &events));
    let (mut after, mut sizes, mut seen) = (StreamId::MIN, vec![], vec![]);
    loop {
        let page = store.read("a1", after, 3).unwrap();
        sizes.push(page.len());
        let Some(last) = page.last() else { break };
        after = last.id;
        seen.extend(page.into_iter().map(|e| e.id));
    }
    assert_eq!((sizes, seen), (vec![3, 3, 1, 0], ids));
    assert_eq!(store.read("a1", StreamId::MAX, 3).unwrap(), []);
}

#[test]
fn another_version_than_expected_changes_nothing() {
    let server = server();
    let store = store(&server.url());
    ids(store.append("a1", 0, &[event("1")]));
    for wrong in [0, 2, u64::MAX] {
        let appended = store.append("a1", wrong, &[event("2")]).unwrap();
        assert_eq!(appended, Append::Conflict, "{wrong}");
    }
    assert_eq!(
        (state(&server).len(), length(&server, "accounts", 0)),
        (1, 1)
    );
    let always = store
        .append_always("a1", &[event("2"), event("3")])
        .unwrap();
    assert_eq!(always.len(), 2);
    assert_eq!(store.version("a1").unwrap(), 3);
    // states do not know one another
    ids(store.append("a2", 0, &[event("1")]));
}

#[test]
fn of_those_who_append_to_one_version_one_wins() {
    let server = server();
    let streams = open(&server.url(), "accounts", 1);
    for version in 0..20 {
        let wins: usize = thread::scope(|s| {
            let racers: Vec<_> = (0..3)
                .map(|_| {
                    let store = streams.state_store("accounts").unwrap();
                    s.spawn(move || store.append("a1", version, &[event("x")]).unwrap())
                })
                .collect();
            let won = racers.into_iter().map(|r| r.join().unwrap());
            won.filter(|a| *a != Append::Conflict).count()
        });
        assert_eq!(wins, 1);
    }
    assert_eq!(
        (state(&server).len(), length(&server, "accounts", 0)),
        (20, 20)
    );
}

#[test]
fn metadata_is_kept_in_the_state_only_when_asked_for() {
    let server = server();
    let full = || {
        event("1")
            .key("k1")
            .correlation_id("c1")
            .traceparent("00-1-2-01")
            .header("source", "web")
    };
    ids(store(&server.url()).append("a1", 0, &[full()]));
    let topic = TopicSettings::default().partitions(1).state_metadata(true);
    let settings = Settings::default().connection_string(server.url());
    let streams = Streams::open(settings.with_topic("accounts", topic)).unwrap();
    let keeping = streams.state_store("accounts").unwrap();
    ids(keeping.append("a1", 1, &[full(), event("2")]));
    let [plain, kept, least] = &state(&server)[..] else {
        panic!("{:?}", state(&server));
    };
    assert_eq!(*plain, ["b", "1", "t", "Deposited"]);
    assert_eq!(
        kept.join(" "),
        "b 1 t Deposited c c1 p 00-1-2-01 h 6:source3:web"
    );
    assert_eq!(*least, ["b", "2", "t", "Deposited"]);
    let read = keeping.read("a1", StreamId::MIN, 10).unwrap();
    assert_eq!(read[0].traceparent, None);
    assert_eq!(&*read[1].correlation_id, b"c1");
    assert_eq!(read[1].traceparent.as_deref(), Some(&b"00-1-2-01"[..]));
    let header: (Box<[u8]>, Box<[u8]>) = (b"source"[..].into(), b"web"[..].into());
    assert_eq!(read[1].headers, [header]);
    for published in &entries(&server, "accounts", 0)[..2] {
        assert_eq!(
            published.1.join(" "),
            "b 1 t Deposited k k1 c c1 p 00-1-2-01 h 6:source3:web"
        );
    }
}

#[test]
fn a_state_is_never_trimmed_and_its_topic_is() {
    let server = server();
    let topic = TopicSettings::default()
        .partitions(1)
        .max_len(2)
        .trim(Trim::Exact);
    let settings = Settings::default().connection_string(server.url());
    let streams = Streams::open(settings.with_topic("accounts", topic)).unwrap();
    let store = streams.state_store("accounts").unwrap();
    for n in 0..5 {
        ids(store.append("a1", n, &[event("x")]));
    }
    assert_eq!(
        (state(&server).len(), length(&server, "accounts", 0)),
        (5, 2)
    );
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let server = server();
    let spread = TopicSettings::default().co_locate_partitions(false);
    let settings = settings(&server.url(), "accounts", 1).with_topic("spread", spread);
    let streams = Streams::open(settings).unwrap();
    let e = streams.state_store("spread").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Config);
    assert!(e.to_string().contains("CoLocatePartitions"), "{e}");
    let store = streams.state_store("accounts").unwrap();
    for e in [
        store.append("a1", 0, &[]).unwrap_err(),
        store.append_always("a1", &[]).unwrap_err(),
        store.append(" ", 0, &[event("1")]).unwrap_err(),
        store.read("a1", StreamId::MIN, 0).unwrap_err(),
        store.read("", StreamId::MIN, 1).unwrap_err(),
        store.version("").unwrap_err(),
    ] {
        assert_eq!(
            (e.kind(), e.outcome()),
            (ErrorKind::Argument, Outcome::NotApplied),
            "{e}"
        );
        assert!(e.key().is_some(), "{e}");
    }
    server.command(&["SET", STATE, "a string"]).unwrap();
    for e in [
        store.append("a1", 0, &[event("1")]).unwrap_err(),
        store.read("a1", StreamId::MIN, 1).unwrap_err(),
        store.version("a1").unwrap_err(),
    ] {
        assert_eq!(e.server_class(), Some(ServerClass::WrongType), "{e}");
        assert_eq!(
            (e.outcome(), e.key()),
            (Outcome::NotApplied, Some(STATE)),
            "{e}"
        );
    }
    assert_eq!(length(&server, "accounts", 0), 0);
    let e = store.append_always("a1", &[event("1")]).unwrap_err();
    assert_eq!((e.outcome(), e.operation()), (Outcome::Applied, "append"));
    assert_eq!(
        length(&server, "accounts", 0),
        1,
        "which is what the error says"
    );
    assert!(e.partly_failed().unwrap().published[0].is_some());

    server.command(&["DEL", STATE]).unwrap();
    server
        .command(&["XADD", STATE, "1-1", "t", "no body"])
        .unwrap();
    let e = store.read("a1", StreamId::MIN, 1).unwrap_err();
    assert_eq!((e.kind(), e.key()), (ErrorKind::Malformed, Some(STATE)));
    assert!(e.to_string().contains("1-1"), "{e}");
}

#[test]
fn an_append_whose_answer_was_lost_can_be_made_again() {
    let server = server();
    let relay = Relay::to(&server).unwrap();
    let store = store(&relay.url());
    ids(store.append("a1", 0, &[event("1")]));
    // what goes back for a first round trip passes, and the first byte of the second
    let first = "+OK\r\n:1\r\n+OK\r\n".len() as u64;
    relay.fault_existing(Way::Replies, Fault::CutAfter(first + 1));
    let e = store.append("a1", 1, &[event("2")]).unwrap_err();
    assert_eq!(
        (e.kind(), e.outcome()),
        (ErrorKind::Io, Outcome::Unknown),
        "{e}"
    );
    expect("it to be carried out", || state(&server).len() == 2);
    let again = store.append("a1", 1, &[event("2")]).unwrap();
    assert_eq!(again, Append::Conflict, "the first one landed");
    let read = store.read("a1", StreamId::MIN, 10).unwrap();
    assert_eq!((read.len(), length(&server, "accounts", 0)), (2, 2));
}
