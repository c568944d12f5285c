//! The page about keys is compared with a server on which everything was used.
#![allow(clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use streamlane::{testing::PrivateServer, *};

use crate::{
    queues::{SHORT, worker},
    support::*,
};

const HOUR: Duration = Duration::from_hours(1);
const PREFIX: &str = "keys:";

/// The rows that were found, each with a key of it.
type Found = BTreeMap<String, String>;

/// Looks at every key there is now, and at what is wrong with it.
fn look(server: &PrivateServer, found: &mut Found, wrong: &mut BTreeSet<String>) {
    let mut cursor = "0".to_owned();
    loop {
        let page = server.command(&["SCAN", &cursor, "COUNT", "1000"]).unwrap();
        for key in page.items()[1].items() {
            let key = key.text();
            let holds = server.command(&["TYPE", &key]).unwrap().text();
            let left = server.command(&["PTTL", &key]).unwrap().int().unwrap();
            if holds == "none" || left == -2 {
                continue; // gone meanwhile
            }
            let rows = keys_of(PREFIX, key.as_bytes());
            let [(row, should, expires)] = &rows[..] else {
                wrong.insert(format!("{key} is of the rows {rows:?}"));
                continue;
            };
            if *should != "any" && *should != holds {
                wrong.insert(format!("{key} is a {holds}, and the page says {should}"));
            }
            // what is the user's lives as long as its user says
            if *should != "any" && *expires != (left >= 0) {
                wrong.insert(format!(
                    "{key} has {left} ms to live, and the page says {expires}"
                ));
            }
            found.insert(row.clone(), key);
        }
        cursor = page.items()[0].text();
        if cursor == "0" {
            return;
        }
    }
}

fn open_with(server: &PrivateServer, topic: &str, of_topic: TopicSettings) -> Streams {
    let settings = Settings::default()
        .connection_string(server.url())
        .key_prefix(PREFIX);
    Streams::open(settings.with_topic(topic, of_topic.partitions(2))).unwrap()
}

/// A body that is kept apart, a dedupe id and a delay, and whatever else leaves keys beside a topic.
fn publish_all_ways(streams: &Streams, topic: &str) {
    let publisher = streams.publisher(topic).unwrap();
    publisher.publish("k", "T", vec![b'x'; 4096]).unwrap();
    let once = publisher.message("T", "once").key("k");
    once.dedupe("id", HOUR).publish().unwrap();
    let later = publisher.message("T", "later").key("k");
    later.deliver_after(HOUR).publish().unwrap();
    // Due soon, so that somebody takes the lease; and published, so that this is over.
    let soon = publisher.message("T", "soon").key("k");
    soon.deliver_after(Duration::from_millis(1500))
        .publish()
        .unwrap();
    let batch = [Outgoing::new("T", "a").key("k"), Outgoing::new("T", "b")];
    for stored in publisher.publish_batch(&batch) {
        stored.unwrap();
    }
    streams
        .publisher(topic)
        .unwrap()
        .dedicated()
        .publish("k", "T", "d")
        .unwrap();
}

/// Everything there is to use.
fn use_everything(server: &PrivateServer) {
    let apart = TopicSettings::default()
        .claim_check(true)
        .payload_inline_max(1024);
    let aging = apart.clone().max_len(10_000).retention(HOUR);
    let aging = aging.background_trim_interval(Duration::from_secs(1));
    let streams = open_with(server, "used", aging);
    publish_all_ways(&streams, "used");
    let spread = open_with(server, "used:wide", apart.co_locate_partitions(false));
    publish_all_ways(&spread, "used:wide");

    // an ordered consumer of each, which keeps positions, claims and dead letters
    let fails = |m: &Message<'_>| -> HandlerResult {
        if m.body() == b"once" {
            Err("no").or_dead_letter()?;
        }
        Ok(())
    };
    let consumers: Vec<_> = [(&streams, "used"), (&spread, "used:wide")]
        .into_iter()
        .map(|(streams, topic)| {
            let consumer = streams.consumer(topic).name("ordered");
            consumer.messages(move |_| fails).start().unwrap()
        })
        .collect();
    // and queues, one of which tries again: now, and in an hour
    let retries = worker(&streams, "used").name("queue");
    let queue = retries
        .retry(3)
        .retry_pauses(SHORT, SHORT)
        .messages(|_| {
            |m: &Message<'_>| -> HandlerResult {
                match (m.body(), m.attempt()) {
                    (b"a", 1) => Err("later").or_retry_after(HOUR)?,
                    (b"b", _) => Err("no")?,
                    (b"d", _) => Err("never").or_dead_letter()?,
                    _ => {}
                }
                Ok(())
            }
        })
        .start()
        .unwrap();
    let leased = streams.consumer("used").name("leased");
    let leased = leased.delivery(Delivery::LeasedQueue).messages(|_| {
        |m: &Message<'_>| -> HandlerResult {
            if m.body() == b"a" {
                Err("never").or_dead_letter()?;
            }
            Ok(())
        }
    });
    let leased = leased.start().unwrap();

    // state, marks and markers
    let outbox = streams.outbox("used").unwrap();
    let state = format!("{PREFIX}{{used}}:state:mine");
    let set = Command::new("HSET").key(&state).arg("version").arg(1);
    let draft = outbox.transaction().command(set);
    let done = draft.publish(Outgoing::new("T", "B").key("o1")).commit();
    assert!(done.unwrap().committed().is_some());
    let store = streams.state_store("used").unwrap();
    let event = [Outgoing::new("Deposited", "1")];
    let appended = store.append("a1", 0, &event).unwrap();
    assert!(matches!(appended, Append::Appended(_)));
    let forwarder = streams.forwarder("used").unwrap();
    let source = Source::in_order("orders:0", "5-0".parse().unwrap());
    let passed_on = [Outgoing::new("T", "f").partition(0)];
    let forwarded = forwarder.forward(&source, &passed_on).unwrap();
    assert!(matches!(forwarded, Forwarding::Forwarded(_)));
    let bets = streams.idempotency("bets").unwrap();
    assert!(bets.try_begin("id", HOUR).unwrap());
    drop(bets.claim("other", HOUR).unwrap());

    // dead letters, and one replayed
    for (name, n) in [("ordered", 1), ("queue", 2), ("leased", 1)] {
        let letters = streams.admin().dead_letters("used", name);
        expect("dead letters", || letters.count().unwrap() >= n);
    }
    let letters = streams.admin().dead_letters("used", "queue");
    let id = letters.page(None, 1).unwrap().letters[0].id;
    let replayed = letters.replay(id, ReplayTo::ThisConsumer).unwrap();
    assert!(matches!(replayed, Replay::Replayed(_)), "{replayed:?}");
    expect("what was due to be published", || {
        let all = [streams.published(), spread.published()].concat();
        all.iter().map(|p| p.moved).sum::<u64>() >= 2
    });
    streams
        .admin()
        .reset("used", "stopped", ResetTo::End)
        .apply()
        .unwrap();
    for consumer in consumers.into_iter().chain([queue, leased]) {
        consumer.stop();
    }
}

#[test]
fn every_key_there_is_stands_on_the_page_and_every_key_on_the_page_is_there() {
    let server = server();
    let (mut found, mut wrong) = (Found::new(), BTreeSet::new());
    let over = AtomicBool::new(false);
    thread::scope(|s| {
        // Some keys are there for a while only.
        let looking = s.spawn(|| {
            let (mut found, mut wrong) = (Found::new(), BTreeSet::new());
            while !over.load(Relaxed) {
                look(&server, &mut found, &mut wrong);
                thread::sleep(Duration::from_millis(5));
            }
            (found, wrong)
        });
        let ended = Over(&over);
        use_everything(&server);
        drop(ended);
        (found, wrong) = looking.join().unwrap();
    });
    look(&server, &mut found, &mut wrong);
    assert!(wrong.is_empty(), "{wrong:#?}");
    let table = keys_table();
    let rows = table.lines().skip(2);
    let mut rows: BTreeSet<_> = rows.map(|row| row.split('`').nth(1).unwrap()).collect();
    let engine = server.engine().unwrap();
    let fields_expire = match &*engine.name {
        "valkey" => engine.version >= (9, 0, 0),
        _ => engine.version >= (7, 4, 0),
    };
    if fields_expire {
        assert!(rows.remove("e:{T}:C"), "{table}");
    }
    let of: BTreeSet<_> = found.keys().map(|row| &**row).collect();
    assert_eq!(of, rows, "found: {found:#?}");
}
