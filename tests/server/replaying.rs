//! Dead letters are looked at, deleted and replayed.

use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

use streamlane::{testing::PrivateServer, *};

use crate::{contract::text, parking::letters, support::*};

const TO_ALL: ReplayTo = ReplayTo::EveryConsumerOfTheTopic;

/// A topic of two partitions, of which a consumer has parked the odd ones of `n` messages.
fn parked(topic: &str, n: u32) -> (PrivateServer, Streams) {
    let server = server();
    let streams = open(&server.url(), topic, 2);
    let publisher = streams.publisher(topic).unwrap();
    for i in 0..n {
        let of_type = if i % 3 == 0 { "Third" } else { "Other" };
        let (key, body) = (format!("k{i}"), i.to_string());
        let draft = publisher.message(of_type, &body).key(&key);
        let draft = draft.header("n", "1").partition(i / 2 % 2);
        draft.publish().unwrap();
    }
    consume(&streams, topic);
    assert_eq!(letters(&streams, topic).len(), n as usize / 2);
    (server, streams)
}

/// Handles what there is; whatever is odd fails for good.
fn consume(streams: &Streams, topic: &str) {
    let consumer = streams.consumer(topic).name("c").shared(|m| {
        let n: u32 = text(m).parse()?;
        if n % 4 == 1 {
            return Err("one").or_dead_letter();
        }
        if n % 2 == 1 {
            Err("odd")?;
        }
        Ok(())
    });
    let consumer = consumer_parks(consumer);
    consumer.start().unwrap().drain(PATIENCE).unwrap();
}

fn consumer_parks(builder: ConsumerBuilder<HasHandler>) -> ConsumerBuilder<HasHandler> {
    builder.park(1).park_pauses(Duration::ZERO, Duration::ZERO)
}

fn bodies(letters: &[DeadLetter]) -> Vec<u32> {
    let body = |l: &DeadLetter| String::from_utf8_lossy(l.body().unwrap()).parse().unwrap();
    let mut bodies: Vec<u32> = letters.iter().map(body).collect();
    bodies.sort_unstable();
    bodies
}

/// All of them, a few at a time.
fn by_pages(letters: &DeadLetters, most: usize) -> Vec<DeadLetter> {
    let (mut all, mut from) = (Vec::new(), None);
    loop {
        let page = letters.page(from, most).unwrap();
        assert!(page.letters.len() <= most);
        all.extend(page.letters);
        from = page.next;
        if from.is_none() {
            return all;
        }
    }
}

#[test]
fn letters_are_listed_by_pages_and_by_what_is_asked_for() {
    let (server, streams) = parked("lists", 400);
    let all = streams.admin().dead_letters("lists", "c");
    let odd: Vec<u32> = (0..400).filter(|n| n % 2 == 1).collect();
    for most in [1, 7, 100, 200, 1000] {
        let listed = by_pages(&all, most);
        assert!(listed.is_sorted_by_key(|l| l.id), "the oldest first");
        assert_eq!(bodies(&listed), odd);
    }
    assert_eq!(all.count().unwrap(), 200);
    let of = |wanted: fn(u32) -> bool| -> Vec<u32> {
        odd.iter().copied().filter(|n| wanted(*n)).collect()
    };
    let third = all.clone().message_type("Third");
    let handler = all.clone().reason(DeadLetterReason::Handler);
    let second = all.clone().partition(1);
    let both = third.clone().partition(1).reason(DeadLetterReason::Retries);
    for (some, expected) in [
        (third, of(|n| n % 3 == 0)),
        (handler, of(|n| n % 4 == 1)),
        (second, of(|n| n / 2 % 2 == 1)),
        (both, of(|n| n % 3 == 0 && n / 2 % 2 == 1 && n % 4 == 3)),
        (all.clone().message_type("Nobody's"), Vec::new()),
    ] {
        assert_eq!(bodies(&by_pages(&some, 13)), expected);
        assert_eq!(some.count().unwrap(), expected.len() as u64);
    }
    let listed = by_pages(&all, 1000);
    let middle = &listed[100];
    let at = middle.id.timestamp();
    let since = by_pages(&all.clone().since(at), 1000);
    let until = by_pages(&all.clone().until(at), 1000);
    let same = listed
        .iter()
        .filter(|l| l.id.ms() == middle.id.ms())
        .count();
    assert_eq!(since.len() + until.len(), 200 + same);
    assert!(since.iter().all(|l| l.id.ms() >= middle.id.ms()) && since.contains(middle));
    assert!(until.iter().all(|l| l.id.ms() <= middle.id.ms()) && until.contains(middle));
    let shown = all.clone().partition(9).show(middle.id).unwrap();
    assert_eq!(
        shown.as_ref(),
        Some(middle),
        "whatever is asked for otherwise"
    );
    assert_eq!(all.show(StreamId::new(1, 1)).unwrap(), None);
    let line = middle.to_string();
    for part in [
        middle.id.to_string(),
        middle.last_id.to_string(),
        "Other".into(),
        "lists[".into(),
    ] {
        assert!(
            line.contains(&part) || middle.message_type() != Some(b"Other"),
            "{line}"
        );
    }
    let none = streams.admin().dead_letters("lists", "nobody");
    assert_eq!((none.count().unwrap(), by_pages(&none, 10).len()), (0, 0));
    let stats = server.command(&["INFO", "commandstats"]).unwrap().text();
    assert!(
        !stats.contains("cmdstat_keys:") && !stats.contains("cmdstat_scan:"),
        "{stats}"
    );
}

#[test]
fn letters_are_deleted_one_by_one_or_as_asked_for() {
    let (server, streams) = parked("deletes", 100);
    let all = streams.admin().dead_letters("deletes", "c");
    let listed = letters(&streams, "deletes");
    let two = [listed[0].id, listed[7].id];
    assert_eq!(all.delete(&two).unwrap(), 2);
    assert_eq!(all.delete(&two).unwrap(), 0);
    assert_eq!(all.show(two[0]).unwrap(), None);
    let handler = all.clone().reason(DeadLetterReason::Handler);
    let n = handler.count().unwrap();
    assert_eq!(handler.delete_all().unwrap(), n);
    assert_eq!(
        (handler.count().unwrap(), all.count().unwrap()),
        (0, 48 - n)
    );
    all.clone().replay_all(TO_ALL, 1000).unwrap();
    assert_eq!(all.delete_all().unwrap(), 48 - n);
    assert_eq!((all.count().unwrap(), all.delete_all().unwrap()), (0, 0));
    // nothing is left of them but the last of each partition
    let notes = server.command(&["HLEN", "re:d:{deletes}:c:meta"]).unwrap();
    assert_eq!(notes.int(), Some(2));
    assert!(all.page(None, 10).unwrap().letters.is_empty());
}

#[test]
fn a_replayed_message_comes_again_on_its_partition_and_keeps_its_first_id() {
    let (_server, streams) = parked("again-comes", 4);
    let all = streams.admin().dead_letters("again-comes", "c");
    let before = letters(&streams, "again-comes");
    assert_eq!(bodies(&before), [1, 3]);
    let letter = &before[0];
    let Replay::Replayed(new) = all.replay(letter.id, TO_ALL).unwrap() else {
        panic!("it is replayed");
    };
    let shown = all.show(letter.id).unwrap().unwrap();
    let replayed = shown.replayed.unwrap();
    assert_eq!(replayed.id, new);
    assert_eq!(replayed.at.max(new.timestamp()), replayed.at);
    assert_eq!(
        all.replay(letter.id, TO_ALL).unwrap(),
        Replay::Before(replayed)
    );
    assert_eq!(all.clone().unreplayed().count().unwrap(), 1);
    assert_eq!(
        all.replay(StreamId::new(1, 1), TO_ALL).unwrap(),
        Replay::Gone
    );

    let seen = Seen::default();
    let calls = seen.clone();
    let consumer = streams
        .consumer("again-comes")
        .name("other")
        .shared(move |m| {
            calls.push(m.to_owned());
            Ok(())
        });
    consumer.start().unwrap().drain(PATIENCE).unwrap();
    let copies = seen.all().into_iter();
    let copies: Vec<_> = copies
        .filter(|m| *m.body == *letter.body().unwrap())
        .collect();
    let [first, second] = &copies[..] else {
        panic!("{copies:?}");
    };
    assert_eq!((first.id, second.id), (letter.last_id, new));
    assert_eq!(
        (second.partition, &second.key),
        (letter.partition, &first.key)
    );
    assert_eq!(second.message_type, first.message_type);
    let headers: BTreeMap<_, _> = second.headers.iter().cloned().collect();
    let id = letter.first_id.to_string();
    assert_eq!(*headers[&b"streamlane-first-id"[..]], *id.as_bytes());
    assert_eq!(*headers[&b"n"[..]], *b"1");
    assert_eq!(headers.len(), 2);

    // It fails again, and again, and is still known by its first id.
    for n in 2..4 {
        consume(&streams, "again-comes");
        let now = letters(&streams, "again-comes");
        let theirs: Vec<_> = now.iter().filter(|l| l.body() == letter.body()).collect();
        assert_eq!(theirs.len(), n);
        let last = theirs.last().unwrap();
        assert!(theirs.iter().all(|l| l.first_id == letter.first_id));
        assert!(last.last_id > letter.last_id && last.replayed.is_none());
        assert!(matches!(
            all.replay(last.id, TO_ALL).unwrap(),
            Replay::Replayed(_)
        ));
    }
}

#[test]
fn what_several_replay_at_a_time_is_replayed_once() {
    let (server, streams) = parked("races", 200);
    let all = streams.admin().dead_letters("races", "c");
    let length = |p: u32| {
        let key = format!("re:s:{{races}}:{p}");
        server.command(&["XLEN", &key]).unwrap().int().unwrap()
    };
    assert_eq!(length(0) + length(1), 200);
    let done: Vec<_> = thread::scope(|scope| {
        let run = || all.replay_all(TO_ALL, 100_000).unwrap();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(
        done.iter().map(|d| d.replayed).sum::<u64>(),
        100,
        "{done:?}"
    );
    assert!(
        done.iter().all(|d| d.replayed + d.before == 100),
        "{done:?}"
    );
    assert_eq!(length(0) + length(1), 300);
    let again = all.replay_all(TO_ALL, 100_000).unwrap();
    assert_eq!((again.replayed, again.before), (0, 100));
}

#[test]
fn a_replay_keeps_to_its_rate_and_to_what_was_asked_for() {
    let (_server, streams) = parked("rates", 40);
    let all = streams.admin().dead_letters("rates", "c");
    let begun = Instant::now();
    let second = all.clone().partition(1);
    let done = second.replay_all(TO_ALL, 20).unwrap();
    assert_eq!((done.replayed, done.before, done.malformed), (10, 0, 0));
    assert!(
        begun.elapsed() >= Duration::from_millis(450),
        "9 pauses of 50 ms"
    );
    let unreplayed = by_pages(&all.clone().unreplayed(), 100);
    assert!(unreplayed.len() == 10 && unreplayed.iter().all(|l| l.partition == 0));
    let e = all.replay_all(TO_ALL, 0).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Argument);
}

#[test]
fn what_cannot_be_replayed_is_not() {
    let server = server();
    let streams = open(&server.url(), "cannot", 1);
    drop(streams.publisher("cannot").unwrap());
    server
        .command(&["XADD", "re:s:{cannot}:0", "*", "t", "no body"])
        .unwrap();
    publish(&streams, "cannot", 1..2);
    consume(&streams, "cannot");
    let all = streams.admin().dead_letters("cannot", "c");
    let listed = letters(&streams, "cannot");
    assert_eq!(listed[0].reason, Some(DeadLetterReason::Malformed));
    assert_eq!(all.replay(listed[0].id, TO_ALL).unwrap(), Replay::Malformed);
    // nobody would find it there
    server
        .command(&["RENAME", "re:s:{cannot}:0", "away"])
        .unwrap();
    let e = all.replay(listed[1].id, TO_ALL).unwrap_err();
    assert!(e.to_string().contains("re:s:{cannot}:0"), "{e}");
    assert_eq!(all.clone().unreplayed().count().unwrap(), 2);
    server
        .command(&["RENAME", "away", "re:s:{cannot}:0"])
        .unwrap();
    let done = all.replay_all(TO_ALL, 1000).unwrap();
    assert_eq!((done.replayed, done.malformed), (1, 1));
    // its keys are not these
    let spread = TopicSettings::default()
        .partitions(1)
        .co_locate_partitions(false);
    let settings = Settings::default().connection_string(server.url());
    let streams = Streams::open(settings.with_topic("apart", spread)).unwrap();
    let e = streams
        .admin()
        .dead_letters("apart", "c")
        .replay_all(TO_ALL, 1)
        .unwrap_err();
    assert!(
        e.kind() == ErrorKind::Config && e.to_string().contains("CoLocatePartitions"),
        "{e}"
    );
    // and what is no letter is none
    server
        .command(&["XADD", "re:d:{cannot}:x", "*", "b", "body"])
        .unwrap();
    let e = streams
        .admin()
        .dead_letters("cannot", "x")
        .page(None, 1)
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Protocol, "{e}");
}

#[test]
fn prefixes_and_spread_partitions_have_letters_of_their_own() {
    let server = server();
    let spread = TopicSettings::default()
        .partitions(2)
        .co_locate_partitions(false);
    let settings = Settings::default().connection_string(server.url());
    let settings = settings.key_prefix("x:").with_topic("mine", spread);
    let streams = Streams::open(settings).unwrap();
    publish_to(&streams, "mine", 1, &["1"]);
    consume(&streams, "mine");
    let letters = letters(&streams, "mine");
    assert_eq!((letters.len(), letters[0].partition), (1, 1));
    let length = |key: &str| server.command(&["XLEN", key]).unwrap().int();
    assert_eq!(length("x:d:{mine}:c"), Some(1));
    // a replay goes by the prefix, too
    let topic = TopicSettings::default().partitions(1);
    let settings = Settings::default().connection_string(server.url());
    let streams = Streams::open(settings.key_prefix("x:").with_topic("ours", topic)).unwrap();
    publish_to(&streams, "ours", 0, &["1"]);
    consume(&streams, "ours");
    let done = streams
        .admin()
        .dead_letters("ours", "c")
        .replay_all(TO_ALL, 10);
    assert_eq!(done.unwrap().replayed, 1);
    assert_eq!(length("x:s:{ours}:0"), Some(2));
}
