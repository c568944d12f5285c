//! Partitions read through a consumer group: who is given what, and what becomes of it.

use std::time::Duration;

use streamlane::{
    testing::{PrivateServer, Reply},
    *,
};

use crate::support::*;

pub(crate) const SHORT: Duration = Duration::from_millis(100);
const NONE: Duration = Duration::ZERO;

/// A member of the group `c` that shares the topic's messages with others.
pub(crate) fn worker(streams: &Streams, topic: &str) -> ConsumerBuilder {
    let builder = streams.consumer(topic).name("c");
    builder.delivery(Delivery::WorkQueue).block(SHORT)
}

/// Streams of another process, as far as a group can tell: its pod has a name of its own.
pub(crate) fn as_pod(server: &PrivateServer, topic: &str, partitions: u32, pod: &str) -> Streams {
    let settings = settings(&server.url(), topic, partitions);
    Streams::open(settings.pod_name(pod)).unwrap()
}

pub(crate) fn stream(topic: &str, partition: u32) -> String {
    format!("re:s:{{{topic}}}:{partition}")
}

/// How many messages of a stream are pending in group `c`.
pub(crate) fn pending(server: &PrivateServer, key: &str) -> i64 {
    let summary = server.command(&["XPENDING", key, "c"]).unwrap();
    summary.items()[0].int().unwrap()
}

#[test]
fn members_share_the_messages_and_each_is_handled_once() {
    let server = server();
    let seen = Seen::default();
    let pods = ["a", "b", "c"].map(|pod| as_pod(&server, "shared-work", 2, pod));
    let consumers = pods.each_ref().map(|streams| {
        recording(worker(streams, "shared-work"), &seen)
            .start()
            .unwrap()
    });
    consumers.iter().for_each(running);
    publish(&pods[0], "shared-work", 0..200);
    seen.wait_for(200);
    for consumer in &consumers {
        consumer.drain(PATIENCE).unwrap();
    }
    let mut all = seen.all();
    all.sort_by_key(|n| n.parse::<u32>().unwrap());
    assert_eq!(all, (0..200).map(|n| n.to_string()).collect::<Vec<_>>());
    for p in 0..2 {
        assert_eq!(pending(&server, &stream("shared-work", p)), 0);
    }
}

#[test]
fn what_fails_is_tried_again_later_and_then_it_is_a_dead_letter_while_others_go_on() {
    let server = server();
    let streams = open(&server.url(), "retried", 1);
    let seen = Seen::default();
    let handle = {
        let seen = seen.clone();
        move |m: &Message<'_>| -> HandlerResult {
            let text = String::from_utf8_lossy(m.body()).into_owned();
            seen.push((text.clone(), m.attempt(), m.id()));
            if text == "1" {
                Err("no such account")?;
            }
            Ok(())
        }
    };
    let consumer = worker(&streams, "retried")
        .retry(2)
        .retry_pauses(SHORT, SHORT)
        .shared(handle)
        .start()
        .unwrap();
    publish(&streams, "retried", 0..5);
    let all = seen.wait_for(7);
    let of_1: Vec<_> = all.iter().filter(|(text, ..)| text == "1").collect();
    assert_eq!(
        of_1.iter().map(|(_, n, _)| *n).collect::<Vec<_>>(),
        [1, 2, 3]
    );
    assert!(
        of_1.iter().all(|(.., id)| *id == of_1[0].2),
        "it keeps its id"
    );
    expect("a dead letter", || {
        streams
            .admin()
            .dead_letters("retried", "c")
            .count()
            .unwrap()
            == 1
    });
    let page = streams
        .admin()
        .dead_letters("retried", "c")
        .page(None, 10)
        .unwrap();
    let letter = &page.letters[0];
    assert_eq!((letter.attempts, letter.deliveries), (2, 3));
    assert_eq!(letter.first_id, of_1[0].2);
    assert_eq!(letter.reason, Some(DeadLetterReason::Retries));
    consumer.stop();
    assert_eq!(pending(&server, &stream("retried", 0)), 0);
    for key in ["re:r:{retried}:c", "re:ri:{retried}:c"] {
        assert_eq!(
            server.command(&["EXISTS", key]).unwrap(),
            Reply::Int(0),
            "{key}"
        );
    }
    assert_eq!(
        server.command(&["XLEN", "re:rt:{retried}:c"]).unwrap(),
        Reply::Int(0)
    );
    let _ = NONE;
}
