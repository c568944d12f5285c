//! What is stored of how far a consumer has come, and when.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use streamlane::{
    testing::{Client, PrivateServer},
    *,
};

use crate::support::*;

/// Longer than any test: what is stored meanwhile was not stored by the timer.
const NEVER: Duration = Duration::from_hours(1);
const SOON: Duration = Duration::from_millis(20);

fn key(topic: &str) -> String {
    format!("re:p:{{{topic}}}:c")
}

fn field(server: &PrivateServer, key: &str, field: &str) -> String {
    server.command(&["HGET", key, field]).unwrap().text()
}

/// Makes a key one that no hash command works on.
fn spoil(server: &PrivateServer, key: &str) {
    server.command(&["SET", key, "no hash"]).unwrap();
}

/// Every command the server executes from now on, up to those that a last command marks.
pub(crate) struct Monitor(Client);

impl Monitor {
    pub(crate) fn of(server: &PrivateServer) -> Self {
        let mut client = server.client().unwrap();
        client.set_patience(PATIENCE).unwrap();
        client.command(&["MONITOR"]).unwrap();
        Self(client)
    }

    /// The words of the commands so far that begin with `start`.
    pub(crate) fn commands(mut self, server: &PrivateServer, start: &[&str]) -> Vec<Vec<String>> {
        server.command(&["ECHO", "that-is-all"]).unwrap();
        let mut found = Vec::new();
        loop {
            let line = self.0.receive().unwrap().text();
            let words: Vec<String> = line
                .split_once("] ")
                .map(|(_, words)| {
                    words
                        .split(' ')
                        .map(|w| w.trim_matches('"').to_owned())
                        .collect()
                })
                .unwrap_or_default();
            if words.iter().any(|w| w == "that-is-all") {
                return found;
            }
            if words.len() > start.len()
                && words
                    .iter()
                    .zip(start)
                    .all(|(w, s)| w.eq_ignore_ascii_case(s))
            {
                found.push(words);
            }
        }
    }
}

#[test]
fn async_positions_are_stored_by_the_timer_and_at_stop() {
    let server = server();
    for (topic, interval, by_itself) in [("timer", SOON, true), ("stop", NEVER, false)] {
        let streams = open(&server.url(), topic, 1);
        let ids = publish_to(&streams, topic, 0, &["0", "1", "2"]);
        let seen = Seen::default();
        let consumer = streams.consumer(topic).name("c").persist_interval(interval);
        let consumer = recording(consumer, &seen).start().unwrap();
        seen.wait_for(3);
        if by_itself {
            expect("the position to be stored", || {
                stored(&server, topic, "c", 0) == Some(ids[2])
            });
        } else {
            expect("it to be finished", || {
                consumer.position(0).unwrap().id == ids[2]
            });
            assert_eq!(
                stored(&server, topic, "c", 0),
                Some(StreamId::MIN),
                "as at start"
            );
        }
        assert!(consumer.stop().unsaved.is_empty());
        assert_eq!(stored(&server, topic, "c", 0), Some(ids[2]));
    }
}

#[test]
fn sync_positions_are_stored_before_the_next_handler_call() {
    let server = server();
    let bodies: Vec<String> = (0..12).map(|n| n.to_string()).collect();
    let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
    // what is stored when a call begins: everything before its batch, or before its message
    for (topic, persist, batches, calls) in [
        ("sync-batch-b", Persist::SyncBatch, true, 3),
        ("sync-batch-m", Persist::SyncBatch, false, 12),
        ("sync-message-b", Persist::SyncMessage, true, 12),
        ("sync-message-m", Persist::SyncMessage, false, 12),
    ] {
        let streams = open(&server.url(), topic, 1);
        let ids = publish_to(&streams, topic, 0, &bodies);
        let builder = streams
            .consumer(topic)
            .name("c")
            .batch_size(4)
            .persist(persist);
        let seen = Seen::default();
        let (record, socket) = (seen.clone(), server.socket_path());
        let look = move |id: StreamId| {
            let mut client = Client::connect_unix(&socket).unwrap();
            let value = client.command(&["HGET", &key(topic), "0"]).unwrap().text();
            let at: StreamId = value.split('|').next().unwrap().parse().unwrap();
            record.push((id, at));
        };
        let consumer = if batches {
            builder.shared_batches(move |batch| {
                look(batch.get(0).unwrap().id());
                Ok(())
            })
        } else {
            builder.shared(move |m| {
                look(m.id());
                Ok(())
            })
        };
        consumer.start().unwrap().drain(PATIENCE).unwrap();
        let seen = seen.all();
        assert_eq!(seen.len(), calls, "{topic}: {seen:?}");
        for (first, at) in seen {
            let n = ids.iter().position(|id| *id == first).unwrap();
            let finished = if persist == Persist::SyncBatch {
                n / 4 * 4
            } else {
                n
            };
            let before = finished.checked_sub(1).map_or(StreamId::MIN, |i| ids[i]);
            assert_eq!(at, before, "{topic}, message {n}");
        }
        assert_eq!(stored(&server, topic, "c", 0), ids.last().copied());
    }
}

#[test]
fn sync_positions_count_what_the_filter_left_out() {
    let server = server();
    let streams = open(&server.url(), "sync-filter", 1);
    let publisher = streams.publisher("sync-filter").unwrap();
    let ids: Vec<StreamId> = ["A", "B", "B", "A", "B"]
        .iter()
        .map(|t| publisher.message(*t, "x").partition(0).publish().unwrap())
        .collect();
    let seen = Seen::default();
    let consumer = streams.consumer("sync-filter").name("c").filter(["A"]);
    let consumer = recording(consumer.persist(Persist::SyncMessage), &seen)
        .start()
        .unwrap();
    seen.wait_for(2);
    expect("all to be finished", || {
        stored(&server, "sync-filter", "c", 0) == Some(ids[4])
    });
    assert_eq!(
        field(&server, &(key("sync-filter") + ":meta"), "0:ordinal"),
        format!("{} 5", ids[4])
    );
    drop(consumer);
}

#[test]
fn without_persistence_nothing_is_written() {
    let server = server();
    let streams = open(&server.url(), "none", 2);
    publish(&streams, "none", 0..20);
    let before = server.command(&["DBSIZE"]).unwrap();
    let seen = Seen::default();
    for handled in [20, 40] {
        let consumer = streams.consumer("none").name("c").persist(Persist::None);
        let consumer = consumer.start_from(StartFrom::Beginning);
        recording(consumer, &seen)
            .start()
            .unwrap()
            .drain(PATIENCE)
            .unwrap();
        assert_eq!(seen.len(), handled, "each start begins anew");
        // but that there is such a consumer
        let reader = server.command(&["DEL", "re:c:{none}"]).unwrap();
        assert_eq!(reader.int(), Some(1));
        assert_eq!(server.command(&["DBSIZE"]).unwrap(), before);
    }
}

#[test]
fn a_stored_position_is_an_id_and_its_writer_with_diagnostics_beside_it() {
    let server = server();
    let streams = open(&server.url(), "format", 1);
    let ids = publish_to(&streams, "format", 0, &["0", "1"]);
    let consumer = recording(streams.consumer("format").name("c"), &Seen::default());
    consumer.start().unwrap().drain(PATIENCE).unwrap();
    let value = field(&server, &key("format"), "0");
    let (id, writer) = value.split_once('|').unwrap();
    assert_eq!(id, ids[1].to_string());
    let parts: Vec<usize> = writer.split('-').map(str::len).collect();
    assert_eq!(parts, [8, 4, 4, 4, 12], "{writer}");
    assert!(
        writer
            .chars()
            .all(|c| c == '-' || c.is_ascii_digit() || ('a'..='f').contains(&c)),
        "{writer}"
    );
    let meta = key("format") + ":meta";
    assert_eq!(field(&server, &meta, "0:instanceId"), writer);
    assert_eq!(field(&server, &meta, "0:ordinal"), format!("{} 2", ids[1]));
    let at = field(&server, &meta, "0:updatedUtc");
    assert!(
        at.len() == 33 && at.ends_with("+00:00") && at.as_bytes()[19] == b'.',
        "{at}"
    );
}

#[test]
fn ordinals_count_every_entry_handled_or_not() {
    let server = server();
    let streams = open(&server.url(), "ordinals", 2);
    let publisher = streams.publisher("ordinals").unwrap();
    let meta = key("ordinals") + ":meta";
    let mut n = 0;
    // runs of entries that the filter takes or leaves, at the beginning, in the middle and at the end
    for (run, t) in [(3, "B"), (1, "A"), (40, "B"), (7, "A"), (1, "B")] {
        for _ in 0..run {
            n += 1;
            publisher.publish(format!("k{n}"), t, "x").unwrap();
        }
        let seen = Seen::default();
        let consumer = streams
            .consumer("ordinals")
            .name("c")
            .filter(["A"])
            .batch_size(4);
        recording(consumer, &seen)
            .start()
            .unwrap()
            .drain(PATIENCE)
            .unwrap();
        for p in 0..2 {
            let stream = format!("re:s:{{ordinals}}:{p}");
            let length = server.command(&["XLEN", &stream]).unwrap().text();
            let at = stored(&server, "ordinals", "c", p).unwrap();
            assert_eq!(
                field(&server, &meta, &format!("{p}:ordinal")),
                format!("{at} {length}")
            );
        }
    }
}

#[test]
fn an_ordinal_that_was_not_known_is_learned_at_the_tail() {
    let server = server();
    for (topic, persist) in [
        ("learns", Persist::AsyncBatch),
        ("learns-sync", Persist::SyncBatch),
    ] {
        let streams = open(&server.url(), topic, 1);
        publish_to(&streams, topic, 0, &["0", "1", "2"]);
        server
            .command(&["XTRIM", &format!("re:s:{{{topic}}}:0"), "MAXLEN", "1"])
            .unwrap();
        let seen = Seen::default();
        let consumer = streams
            .consumer(topic)
            .name("c")
            .start_from_when_missing(StartFrom::Now);
        let consumer = recording(consumer.block(SOON).persist(persist), &seen)
            .start()
            .unwrap();
        let ordinal = || field(&server, &(key(topic) + ":meta"), "0:ordinal");
        expect("it to be learned", || ordinal().ends_with(" 3"));
        let ids = publish_to(&streams, topic, 0, &["3", "4"]);
        expect("it to be counted on", || {
            ordinal() == format!("{} 5", ids[1])
        });
        assert_eq!(seen.all(), ["3", "4"]);
        drop(consumer);
    }
}

#[test]
fn a_position_hash_of_another_type_delays_storing_and_nothing_else() {
    let server = server();
    let streams = open(&server.url(), "wrong", 1);
    let seen = Seen::default();
    let consumer = streams.consumer("wrong").name("c").persist_interval(SOON);
    let consumer = recording(consumer, &seen).start().unwrap();
    running(&consumer);
    spoil(&server, &key("wrong"));
    publish_to(&streams, "wrong", 0, &["0", "1"]);
    seen.wait_for(2);
    expect("a warning", || {
        !logged(&["WARN wrong/c", "not stored", "WRONGTYPE"]).is_empty()
    });
    let ids = publish_to(&streams, "wrong", 0, &["2", "3"]);
    seen.wait_for(4);
    assert_eq!(consumer.partitions()[0].state, LaneState::Running);
    let refused = || {
        let stats = server.command(&["INFO", "commandstats"]).unwrap().text();
        let line = stats.lines().find(|l| l.starts_with("cmdstat_evalsha:"));
        let n = line.and_then(|l| l.split("failed_calls=").nth(1));
        n.map_or(0, |n| n.trim().parse::<u64>().unwrap())
    };
    let before = refused();
    expect("it to be tried again", || refused() >= before + 2);
    server.command(&["DEL", &key("wrong")]).unwrap();
    expect("the newest position", || {
        stored(&server, "wrong", "c", 0) == Some(ids[1])
    });
    expect("a line about it", || {
        !logged(&["INFO wrong/c", "stored again"]).is_empty()
    });
    // The look for resets fails, too, and says so where it was first.
    let (stores, others): (Vec<_>, Vec<_>) = warned("wrong/c")
        .into_iter()
        .partition(|line| line.contains("not stored"));
    assert_eq!(
        stores.len(),
        1,
        "one line, however often it was tried: {stores:?}"
    );
    assert!(
        others.len() <= 1 && others.iter().all(|l| l.contains("reset markers")),
        "{others:?}"
    );
    assert!(consumer.stop().unsaved.is_empty());
}

#[test]
fn sync_modes_wait_in_sight_until_the_position_is_stored() {
    let server = server();
    for (topic, persist) in [
        ("waits-b", Persist::SyncBatch),
        ("waits-m", Persist::SyncMessage),
    ] {
        let streams = open(&server.url(), topic, 1);
        let seen = Seen::default();
        let consumer = streams
            .consumer(topic)
            .name("c")
            .persist(persist)
            .batch_size(2);
        let consumer = recording(consumer, &seen).start().unwrap();
        running(&consumer);
        spoil(&server, &key(topic));
        // one write, so that a batch holds two of them
        let xadd =
            |n: &str| format!("redis.call('XADD', KEYS[1], '*', 'b', '{n}', 't', 'T', 'k', '')");
        let script: String = ["0", "1", "2", "3"].map(xadd).join(" ");
        server
            .command(&["EVAL", &script, "1", &format!("re:s:{{{topic}}}:0")])
            .unwrap();
        expect("it to be blocked", || {
            let status = &consumer.partitions()[0];
            status.state == LaneState::Blocked && status.reason.contains("WRONGTYPE")
        });
        let unstored = if persist == Persist::SyncBatch { 2 } else { 1 };
        assert_eq!(seen.len(), unstored, "{topic}: {:?}", seen.all());
        assert_eq!(streams.health().rule, Rule::Blocked);
        server.command(&["DEL", &key(topic)]).unwrap();
        assert_eq!(seen.wait_for(4), ["0", "1", "2", "3"]);
        expect("it to be stored", || {
            stored(&server, topic, "c", 0) == consumer.position(0).map(|p| p.id)
        });
        expect("it to run", || {
            consumer.partitions()[0].state == LaneState::Running
        });
        let clients = server.command(&["CLIENT", "LIST"]).unwrap().text();
        let timer = format!("streams-positions:{topic}");
        let writes = |l: &str| l.contains(&timer) && !l.contains("cmd=hmget");
        assert!(
            !clients.lines().any(writes),
            "the timer might write an older one over it: {clients}"
        );
        drop(consumer);
    }
}

#[test]
fn stored_positions_never_move_backwards() {
    let server = server();
    for (topic, persist) in [
        ("forward-a", Persist::AsyncBatch),
        ("forward-b", Persist::SyncBatch),
        ("forward-m", Persist::SyncMessage),
    ] {
        let streams = open(&server.url(), topic, 4);
        let monitor = Monitor::of(&server);
        let seen = Seen::default();
        let mut consumer = streams
            .consumer(topic)
            .name("c")
            .batch_size(7)
            .persist(persist);
        if persist == Persist::AsyncBatch {
            consumer = consumer.persist_interval(Duration::from_millis(1));
        }
        let consumer = recording(consumer, &seen).start().unwrap();
        let publisher = streams.publisher(topic).unwrap();
        for n in 0..600 {
            publisher.publish(format!("k{n}"), "T", "x").unwrap();
        }
        consumer.drain(PATIENCE).unwrap();
        assert_eq!(seen.len(), 600);
        let mut last = [StreamId::MIN; 4];
        let writes = monitor.commands(&server, &["HSET", &key(topic)]);
        assert!(writes.len() > 4, "{writes:?}");
        for write in writes {
            for pair in write[2..].chunks(2) {
                let (p, id): (usize, StreamId) = (
                    pair[0].parse().unwrap(),
                    pair[1].split('|').next().unwrap().parse().unwrap(),
                );
                assert!(id >= last[p], "{topic}[{p}] went from {} to {id}", last[p]);
                last[p] = id;
            }
        }
        for (p, last) in last.into_iter().enumerate() {
            assert_eq!(stored(&server, topic, "c", p as u32), Some(last));
        }
    }
}

#[test]
fn many_partitions_are_stored_a_few_at_a_time() {
    let server = server();
    let streams = open(&server.url(), "forty", 40);
    let seen = Seen::default();
    let consumer = recording(
        streams.consumer("forty").name("c").persist_interval(NEVER),
        &seen,
    );
    let consumer = consumer.start().unwrap();
    for p in 0..40 {
        publish_to(&streams, "forty", p, &["x"]);
    }
    seen.wait_for(40);
    let monitor = Monitor::of(&server);
    let stopped = consumer.stop();
    let writes = monitor.commands(&server, &["HSET", &key("forty")]);
    let sizes: Vec<usize> = writes.iter().map(|w| (w.len() - 2) / 2).collect();
    assert_eq!(sizes.iter().sum::<usize>(), 40, "{sizes:?}");
    assert!(sizes.iter().all(|n| *n <= 16), "{sizes:?}");
    for (p, id) in stopped.positions.into_iter().enumerate() {
        assert_eq!(stored(&server, "forty", "c", p as u32), Some(id));
    }
}
