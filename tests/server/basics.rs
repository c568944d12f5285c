use std::time::{Duration, Instant};

use streamlane::*;

use crate::support::*;

#[test]
fn what_is_published_is_handled_in_order_and_its_position_is_stored() {
    let server = server();
    let streams = open(&server.url(), "orders", 4);
    let seen = Seen::default();
    let publisher = streams.publisher("orders").unwrap();
    let mut ids = Vec::new();
    for n in 0..1000 {
        let key = format!("key-{}", n % 7);
        ids.push((
            key.clone(),
            publisher.publish(&key, "T", n.to_string()).unwrap(),
        ));
    }
    let handler_seen = seen.clone();
    let consumer = streams
        .consumer("orders")
        .name("billing")
        .messages(move |_| {
            let seen = handler_seen.clone();
            move |m: &Message<'_>| {
                seen.push((m.key().to_string(), m.id()));
                Ok(())
            }
        })
        .start()
        .unwrap();
    let stopped = consumer.drain(PATIENCE).unwrap();
    assert!(stopped.unsaved.is_empty() && stopped.still_running.is_empty());
    let seen = seen.all();
    assert_eq!(seen.len(), 1000);
    for k in 0..7 {
        let key = format!("key-{k}");
        let of = |all: &[(String, StreamId)]| -> Vec<StreamId> {
            all.iter()
                .filter(|(k, _)| *k == key)
                .map(|(_, id)| *id)
                .collect()
        };
        assert_eq!(of(&seen), of(&ids), "{key}");
    }
    let stored = server
        .command(&["HGETALL", "re:p:{orders}:billing"])
        .unwrap();
    for id in &stopped.positions {
        assert!(
            stored
                .items()
                .iter()
                .any(|v| v.text().starts_with(&format!("{id}|"))),
            "{id} in {stored:?}"
        );
    }
}

#[test]
fn an_idle_consumer_stops_at_once_whatever_its_block_is() {
    let server = server();
    let streams = open(&server.url(), "quiet", 2);
    let consumer = recording(
        streams
            .consumer("quiet")
            .name("c")
            .block(Duration::from_secs(30)),
        &Seen::default(),
    )
    .start()
    .unwrap();
    running(&consumer);
    let t = Instant::now();
    consumer.stop();
    assert!(t.elapsed() < Duration::from_secs(1), "{:?}", t.elapsed());
    let again = Instant::now();
    consumer.stop();
    assert!(again.elapsed() < Duration::from_secs(1));
}
