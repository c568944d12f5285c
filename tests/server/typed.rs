//! Typed handlers: what becomes of a body that does not decode, and formats of a user's own.
#![allow(clippy::unwrap_used)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use serde::Deserialize;
use streamlane::{testing::PrivateServer, *};

use crate::{
    contract::{LedgerDown, becomes},
    support::*,
};

#[derive(Deserialize)]
struct Order<'a> {
    id: u32,
    customer: &'a str,
}

impl Schema for Order<'static> {
    type Of<'a> = Order<'a>;
}

/// Publishes a word as it is, or an order with an escape in it for a number.
fn topic_of(server: &PrivateServer, topic: &str, words: &str) -> (Streams, Vec<StreamId>) {
    let streams = open(&server.url(), topic, 1);
    let bodies: Vec<String> = words
        .split(' ')
        .map(|w| match w.parse::<u32>() {
            Ok(n) => format!(r#"{{"id":{n},"customer":"\u0041\"{n}"}}"#),
            Err(_) => w.to_owned(),
        })
        .collect();
    let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
    let ids = publish_to(&streams, topic, 0, &bodies);
    (streams, ids)
}

/// The orders of a batch as words, which are made sure to be those of its messages.
fn words(orders: &[Order<'_>], batch: &Batch<'_>) -> String {
    assert_eq!(orders.len(), batch.len());
    let pairs = orders.iter().zip(batch).map(|(order, message)| {
        assert_eq!(order.customer, format!("A\"{}", order.id));
        let body = String::from_utf8_lossy(message.body());
        assert!(
            body.contains(&format!(r#"{{"id":{},"#, order.id)) && body.contains(r"\u0041"),
            "{body}"
        );
        order.id.to_string()
    });
    pairs.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_document_that_does_not_decode_costs_its_neighbours_nothing() {
    let table: [(&str, &str, &[&str], u64); 7] = [
        ("none", "0 1 2 3 4 5", &["0 1 2 3 4 5"], 0),
        ("first", "x 1 2 3 4 5", &["1 2 3 4 5"], 1),
        ("middle", "0 1 x 3 4 5", &["0 1", "3 4 5"], 1),
        ("last", "0 1 2 3 4 x", &["0 1 2 3 4"], 1),
        ("several", "0 x y 3 x 5", &["0", "3", "5"], 3),
        ("all", "x x x x x x", &[], 6),
        // well-formed, but no order
        ("other", r#"0 {"id":1} [] {"id":"3"} 4 5"#, &["0", "4 5"], 3),
    ];
    let server = server();
    for (topic, bodies, calls, skipped) in table {
        let (streams, ids) = topic_of(&server, topic, bodies);
        let seen = Seen::default();
        let record = seen.clone();
        let builder = streams.consumer(topic).name("batches").batch_size(6);
        let consumer = builder.json_batches(move |_| {
            let record = record.clone();
            typed_batch::<Order>(move |orders, batch| {
                record.push(words(orders, batch));
                Ok(())
            })
        });
        let consumer = consumer.start().unwrap();
        let stopped = consumer.drain(PATIENCE).unwrap();
        assert_eq!(seen.all(), calls, "{topic}");
        assert_eq!(stopped.positions, [ids[5]], "{topic}");
        let fared = |c: &Consumer| {
            let p = &c.partitions()[0];
            (p.handled, p.skipped, p.failures)
        };
        assert_eq!(fared(&consumer), (6 - skipped, skipped, skipped), "{topic}");

        // one by one it is the same
        let seen = Seen::default();
        let record = seen.clone();
        let consumer = streams.consumer(topic).name("messages").json(move |_| {
            let record = record.clone();
            typed::<Order>(move |order, message| {
                record.push(order.id.to_string());
                assert!(message.body().starts_with(b"{"));
                Ok(())
            })
        });
        let consumer = consumer.start().unwrap();
        consumer.drain(PATIENCE).unwrap();
        assert_eq!(seen.all().join(" "), calls.join(" "), "{topic}");
        assert_eq!(fared(&consumer), (6 - skipped, skipped, skipped), "{topic}");
    }
    let said = logged(&["ERROR middle[0]/batches", "does not decode"]);
    let id = |line: &str| line.matches("message ").count();
    assert!(said.len() == 1 && id(&said[0]) == 1, "{said:?}");
}

/// What a batch handler says of the first batch it is given, `0 1` of `0 1 x 3 4 5`.
type Says = fn(&Batch<'_>) -> HandlerResult;

#[test]
fn what_a_handler_says_is_about_the_messages_it_was_given() {
    const MOMENT: Duration = Duration::from_millis(1);
    let table: [(&str, Says, &[&str], u64, u64); 7] = [
        // a bare `?` skips what was given, and nothing else
        ("unsaid", |_| Err(LedgerDown)?, &["0 1", "3 4 5"], 3, 3),
        (
            "done-0",
            |b| {
                b.done(0);
                Err(LedgerDown)?
            },
            &["0 1", "1", "3 4 5"],
            4,
            2,
        ),
        (
            "done-1",
            |b| {
                b.done(1);
                Err(LedgerDown)?
            },
            &["0 1", "3 4 5"],
            4,
            2,
        ),
        // what it was not given it cannot finish
        (
            "done-6",
            |b| {
                b.done(6);
                Err(LedgerDown)?
            },
            &["0 1", "3 4 5"],
            5,
            1,
        ),
        (
            "retried",
            |_| Err(LedgerDown).or_retry_after(MOMENT),
            &["0 1", "0 1", "3 4 5"],
            5,
            1,
        ),
        (
            "blocked",
            |b| {
                b.done(1);
                Err(LedgerDown).or_block()
            },
            &["0 1", "1", "3 4 5"],
            5,
            1,
        ),
        ("panics", |_| panic!("a bug"), &["0 1", "3 4 5"], 3, 3),
    ];
    let server = server();
    for (topic, says, calls, handled, skipped) in table {
        let (streams, ids) = topic_of(&server, topic, "0 1 x 3 4 5");
        let seen = Seen::default();
        let record = seen.clone();
        let builder = streams.consumer(topic).name("c").batch_size(6);
        let consumer = builder.json_batches(move |_| {
            let record = record.clone();
            typed_batch::<Order>(move |orders, batch| {
                record.push(words(orders, batch));
                if record.len() == 1 {
                    return says(batch);
                }
                Ok(())
            })
        });
        let consumer = consumer.start().unwrap();
        let stopped = consumer.drain(PATIENCE).unwrap();
        assert_eq!(seen.all(), calls, "{topic}");
        assert_eq!(stopped.positions, [ids[5]], "{topic}");
        let status = &consumer.partitions()[0];
        assert_eq!(
            (status.handled, status.skipped),
            (handled, skipped),
            "{topic}"
        );
    }
}

#[test]
fn a_strict_policy_stops_before_it_with_all_before_it_handled() {
    let server = server();
    for (topic, policy) in [("stop", OnError::StopPartition), ("fail", OnError::Fail)] {
        let (streams, ids) = topic_of(&server, topic, "0 1 x 3");
        let seen = Seen::default();
        let record = seen.clone();
        let builder = streams.consumer(topic).name("c").on_error(policy);
        let consumer = builder.json_batches(move |_| {
            let record = record.clone();
            typed_batch::<Order>(move |orders, batch| {
                record.push(words(orders, batch));
                Ok(())
            })
        });
        let consumer = consumer.start().unwrap();
        let status = becomes(&consumer, 0, LaneState::Stopped);
        assert_eq!(seen.all(), ["0 1"], "{topic}");
        assert_eq!(status.position.id, ids[1], "{topic}");
        for part in ["does not decode", &ids[2].to_string()] {
            assert!(status.reason.contains(part), "{part}: {}", status.reason);
        }
    }
}

#[test]
fn an_entry_that_is_no_message_is_as_one_that_does_not_decode() {
    let server = server();
    let (streams, _) = topic_of(&server, "no-message", "0");
    let key = "re:s:{no-message}:0";
    let xadd = |fields: &[&str]| {
        server
            .command(&[&["XADD", key, "*"], fields].concat())
            .unwrap();
    };
    let good = |n: u32| format!(r#"{{"id":{n},"customer":"\u0041\"{n}"}}"#);
    xadd(&["b", &good(1), "k", ""]); // without a type
    xadd(&["b", &good(2), "t", "T", "k", ""]);
    let seen = Seen::default();
    let record = seen.clone();
    let consumer = streams
        .consumer("no-message")
        .name("c")
        .json_batches(move |_| {
            let record = record.clone();
            typed_batch::<Order>(move |orders, batch| {
                record.push(words(orders, batch));
                Ok(())
            })
        });
    let consumer = consumer.start().unwrap();
    consumer.drain(PATIENCE).unwrap();
    assert_eq!(seen.all(), ["0", "2"]);
    assert_eq!(consumer.partitions()[0].skipped, 1);
}

// -- formats of a user's own, made of nothing but what is public

/// A format of serde's, which borrows from the body as it was received.
#[derive(Clone)]
struct Straight;

impl<'a, V: Deserialize<'a>> Codec<'a, V> for Straight {
    fn decode(&mut self, body: &'a [u8], _: &'a mut Vec<u8>) -> HandlerResult<V> {
        Ok(serde_json::from_slice(body)?)
    }
}

#[derive(Deserialize)]
struct Tag<'a>(&'a str);

impl Schema for Tag<'static> {
    type Of<'a> = Tag<'a>;
}

fn lies_in(part: &str, whole: &[u8]) -> bool {
    whole.as_ptr_range().contains(&part.as_ptr())
}

#[test]
fn a_format_of_serdes_borrows_from_the_body() {
    let server = server();
    let (streams, _) = topic_of(&server, "straight", r#""a" "b" nonsense "c""#);
    let seen = Seen::default();
    let record = seen.clone();
    let one_by_one = move |_| {
        let record = record.clone();
        typed::<Tag>(move |Tag(tag), message| {
            assert!(lies_in(tag, message.body()));
            record.push(tag.to_owned());
            Ok(())
        })
    };
    let consumer = streams.consumer("straight").name("c");
    let consumer = consumer.codec(Straight, one_by_one).start().unwrap();
    consumer.drain(PATIENCE).unwrap();
    assert_eq!(seen.all(), ["a", "b", "c"]);
    assert_eq!(consumer.partitions()[0].skipped, 1);
}

/// A format that is not serde's, with values of its own kind, which is unpacked before it is read: every
/// byte is one too high. It breaks at `!`, is beyond repair after a panic at `?`, and needs a registry to
/// read `@`.
struct Shifted {
    broken: bool,
    registry: Arc<AtomicU32>,
}

impl Clone for Shifted {
    fn clone(&self) -> Self {
        assert!(!self.broken, "the one that broke was cloned");
        Self {
            broken: false,
            registry: Arc::clone(&self.registry),
        }
    }
}

trait FromText<'a> {
    fn from_text(text: &'a str) -> Self;
}

/// A value that knows nothing of serde.
struct Letters<'a>(Vec<&'a str>);

impl<'a> FromText<'a> for Letters<'a> {
    fn from_text(text: &'a str) -> Self {
        Self(text.split('-').collect())
    }
}

#[derive(Debug)]
struct Unshiftable;

impl std::fmt::Display for Unshiftable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("not shifted")
    }
}

impl std::error::Error for Unshiftable {}

impl<'a, V: FromText<'a>> Codec<'a, V> for Shifted {
    fn decode(&mut self, body: &'a [u8], room: &'a mut Vec<u8>) -> HandlerResult<V> {
        assert!(!self.broken, "it was not made anew");
        assert!(room.is_empty());
        match body {
            b"!" => return Err(Unshiftable)?,
            b"?" => {
                self.broken = true;
                panic!("a bug in a codec");
            }
            b"@" if self.registry.fetch_add(1, SeqCst) == 0 => Err(LedgerDown).or_block()?,
            _ => {}
        }
        room.extend(body.iter().map(|b| b - 1));
        Ok(V::from_text(std::str::from_utf8(room)?))
    }
}

/// Handlers can be types, too.
struct Collect(Seen<String>);

impl TypedHandler for Collect {
    type Value<'a> = Letters<'a>;

    fn handle(&mut self, Letters(letters): Letters<'_>, message: &Message<'_>) -> HandlerResult {
        assert!(!lies_in(letters[0], message.body()));
        self.0.push(letters.concat());
        Ok(())
    }
}

impl TypedBatchHandler for Collect {
    type Value<'a> = Letters<'a>;

    fn handle(&mut self, values: &[Letters<'_>], batch: &Batch<'_>) -> HandlerResult {
        for (value, m) in values.iter().zip(batch) {
            let packed: Vec<u8> = value.0.join("-").bytes().map(|b| b + 1).collect();
            assert_eq!(m.body(), packed, "the body is as it was received");
        }
        let words: Vec<String> = values.iter().map(|v| v.0.concat()).collect();
        self.0.push(words.join(" "));
        Ok(())
    }
}

#[test]
fn a_format_that_serde_knows_nothing_of_unpacks_into_a_room() {
    let server = server();
    // b.c is a-b, each a byte higher
    let table: [(&str, &str, &[&str], u64); 5] = [
        ("fine", "b.c d e.f", &["ab c de"], 0),
        ("refused", "b.c d ! ! e.f", &["ab c", "de"], 2),
        ("panicking", "b.c d ? e.f", &["ab c", "de"], 1),
        ("panicking-first", "? ? b.c d e.f", &["ab c de"], 2),
        ("waiting", "b.c d @ e.f", &["ab c", "? de"], 0),
    ];
    for (topic, bodies, calls, skipped) in table {
        let (streams, _) = topic_of(&server, topic, bodies);
        let codec = || Shifted {
            broken: false,
            registry: Arc::default(),
        };
        let fared = |consumer: ConsumerBuilder<HasHandler>| {
            let consumer = consumer.start().unwrap();
            consumer.drain(PATIENCE).unwrap();
            consumer.partitions()[0].skipped
        };
        let seen = Seen::default();
        let record = seen.clone();
        let batches = streams.consumer(topic).name("batches");
        let batches = batches.codec_batches(codec(), move |_| Collect(record.clone()));
        assert_eq!(fared(batches), skipped, "{topic}");
        assert_eq!(seen.all(), calls, "{topic}");

        let seen = Seen::default();
        let record = seen.clone();
        let messages = streams.consumer(topic).name("messages");
        let messages = messages.codec(codec(), move |_| Collect(record.clone()));
        assert_eq!(fared(messages), skipped, "{topic}");
        assert_eq!(seen.all().join(" "), calls.join(" "), "{topic}");
    }
    let said = logged(&["ERROR refused[0]/batches", "Unshiftable", "not shifted"]);
    assert_eq!(said.len(), 1, "{said:?}");
    let said = logged(&[
        "ERROR panicking[0]/batches",
        "the codec panicked: a bug in a codec",
    ]);
    assert_eq!(said.len(), 1, "{said:?}");
}

#[test]
fn a_hook_that_knows_a_codecs_error_can_say_what_it_means() {
    let server = server();
    let (streams, ids) = topic_of(&server, "classified", "b ! c");
    let classify = |e: &(dyn std::error::Error + 'static)| {
        let cause = e.source()?;
        cause.is::<Unshiftable>().then_some(Action::Stop)
    };
    let codec = Shifted {
        broken: false,
        registry: Arc::default(),
    };
    let seen = Seen::default();
    let record = seen.clone();
    let builder = streams.consumer("classified").name("c").classify(classify);
    let builder = builder.codec_batches(codec, move |_| Collect(record.clone()));
    let consumer = builder.start().unwrap();
    let status = becomes(&consumer, 0, LaneState::Stopped);
    assert_eq!(
        (seen.all(), status.position.id),
        (vec!["a".to_owned()], ids[0])
    );
}

#[test]
fn a_handler_that_stays_after_a_panic_is_given_what_there_is() {
    let server = server();
    let (streams, _) = topic_of(&server, "stays", "0 1 2 x 4");
    let (seen, made) = (Seen::default(), AtomicU32::new(0));
    let record = seen.clone();
    let builder = streams.consumer("stays").name("c").batch_size(2);
    let consumer = builder.json_batches(move |_| {
        // it cannot be made anew
        assert_eq!(made.fetch_add(1, SeqCst), 0);
        let record = record.clone();
        typed_batch::<Order>(move |orders, batch| {
            record.push(words(orders, batch));
            assert!(record.len() > 1, "a bug at first");
            Ok(())
        })
    });
    consumer.start().unwrap().drain(PATIENCE).unwrap();
    assert_eq!(seen.all(), ["0 1", "2", "4"]);
}
