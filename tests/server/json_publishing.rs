//! Publishing values as JSON: the bytes that go out, and values that refuse, panic or publish themselves.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
};

use serde::{Deserialize, Serialize, Serializer, ser::Error as _};
use streamlane::{testing::PrivateServer, *};

use crate::{
    publishing::{entries, failed, length},
    support::*,
};

#[derive(Serialize, Deserialize, PartialEq, Debug)]
struct Placed<'a> {
    id: u32,
    customer: &'a str,
}

impl MessageType for Placed<'_> {
    const MESSAGE_TYPE: &'static str = "OrderPlaced";
}

fn placed(id: u32) -> Placed<'static> {
    Placed {
        id,
        customer: "Ada \"L\"",
    }
}

/// The type and the body of every message of partition 0.
fn messages(server: &PrivateServer, topic: &str) -> Vec<(String, String)> {
    let of = |fields: &[String], name: &str| {
        let at = fields.iter().step_by(2).position(|f| f == name).unwrap();
        fields[2 * at + 1].clone()
    };
    let entries = entries(server, topic, 0).into_iter();
    entries.map(|(_, f)| (of(&f, "t"), of(&f, "b"))).collect()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let own = |(t, b): &(&str, &str)| ((*t).to_owned(), (*b).to_owned());
    pairs.iter().map(own).collect()
}

const ONE: &str = r#"{"id":1,"customer":"Ada \"L\""}"#;
const TWO: &str = r#"{"id":2,"customer":"Ada \"L\""}"#;

#[test]
fn a_value_goes_out_as_json_under_its_type_or_the_one_it_is_given() {
    let server = server();
    let streams = open(&server.url(), "values", 1);
    let publisher = streams.publisher("values").unwrap();
    let mut dedicated = publisher.dedicated();
    let runtime = format!("Order{}", "Noted");
    publisher.publish_json("k", &placed(1)).unwrap();
    publisher
        .publish_json("k", &As("Renamed", &placed(2)))
        .unwrap();
    dedicated.publish_json(b"k", &&placed(1)).unwrap();
    dedicated.publish_json("", &As(&runtime, "text")).unwrap();
    let want = [
        ("OrderPlaced", ONE),
        ("Renamed", TWO),
        ("OrderPlaced", ONE),
        ("OrderNoted", r#""text""#),
    ];
    assert_eq!(messages(&server, "values"), pairs(&want));

    // and it comes back as it was
    let seen = Seen::default();
    let record = seen.clone();
    let builder = streams.consumer("values").name("c");
    let builder = builder.filter([Placed::MESSAGE_TYPE]).shared(move |m| {
        let mut scratch = Scratch::default();
        record.push(m.decode_json::<Placed<'_>>(&mut scratch)? == placed(1));
        Ok(())
    });
    builder.start().unwrap().drain(PATIENCE).unwrap();
    assert_eq!(seen.all(), [true, true]);
}

#[test]
fn a_body_of_json_can_have_options() {
    let server = server();
    let streams = open(&server.url(), "options", 1);
    let publisher = streams.publisher("options").unwrap();
    let mut scratch = Scratch::default();
    for id in [1, 2] {
        let value = placed(id);
        let body = scratch.encode_json(&value).unwrap();
        let message = publisher.message(Placed::MESSAGE_TYPE, body).key("k");
        message.header("source", "web").publish().unwrap();
    }
    let want = pairs(&[("OrderPlaced", ONE), ("OrderPlaced", TWO)]);
    assert_eq!(messages(&server, "options"), want);
    let (_, fields) = &entries(&server, "options", 0)[1];
    assert!(fields.iter().any(|f| f.contains("source")), "{fields:?}");
}

/// What serializing does, after it has written something.
#[derive(Clone, Copy)]
enum Does<'a> {
    Nothing,
    Refuse,
    Panic,
    Publish(&'a Publisher),
}

impl Serialize for Does<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Inner<'a>(Does<'a>);
        impl Serialize for Inner<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match self.0 {
                    Does::Nothing => {}
                    Does::Refuse => return Err(S::Error::custom("not this one")),
                    Does::Panic => panic!("a bug in a serializer"),
                    Does::Publish(publisher) => {
                        let within = [("k", As("Within", "batched"))];
                        publisher
                            .publish_json("k", &As("Within", "single"))
                            .unwrap();
                        assert!(publisher.publish_json_batch(&within)[0].is_ok());
                    }
                }
                serializer.serialize_str("done")
            }
        }
        ("before", Inner(*self), "after").serialize(serializer)
    }
}

impl fmt::Debug for Does<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Does")
    }
}

impl MessageType for Does<'_> {
    const MESSAGE_TYPE: &'static str = "Done";
}

const DONE: (&str, &str) = ("Done", r#"["before","done","after"]"#);

/// Publishes one value by itself and another in a batch, over both kinds of publisher.
fn in_every_way(publisher: &Publisher, value: Does<'_>) -> Vec<Result<StreamId>> {
    let mut dedicated = publisher.dedicated();
    let mut results = vec![publisher.publish_json("k", &value)];
    results.extend(publisher.publish_json_batch(&[("k", value)]));
    results.push(dedicated.publish_json("k", &value));
    dedicated.publish_json_batch_into(&[("k", &value)], &mut results);
    results
}

#[test]
fn a_value_that_refuses_is_an_argument_error_and_nothing_is_sent() {
    let server = server();
    let streams = open(&server.url(), "refusing", 1);
    let publisher = streams.publisher("refusing").unwrap();
    let results = in_every_way(&publisher, Does::Refuse);
    assert_eq!(results.len(), 4);
    for result in results {
        let e = failed(result, ErrorKind::Argument, Outcome::NotApplied);
        assert!(!e.is_retryable());
        let told = e.to_string();
        for part in ["publish on refusing at ", "JSON", "not this one"] {
            assert!(told.contains(part), "{part}: {told}");
        }
    }
    assert_eq!(streams.published()[0].refused, 4);
    let keys = server.command(&["KEYS", "*"]).unwrap();
    assert!(keys.items().is_empty(), "not even the topic was made");
    let mut scratch = Scratch::default();
    let e = scratch.encode_json(&Does::Refuse).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Argument);
    assert_eq!(scratch.encode_json("next").unwrap(), br#""next""#);
}

#[test]
fn a_value_that_refuses_in_a_batch_fails_alone() {
    let server = server();
    let streams = open(&server.url(), "batches", 1);
    let publisher = streams.publisher("batches").unwrap();
    let values = [
        ("k", Does::Refuse),
        ("k", Does::Nothing),
        ("", Does::Refuse),
        ("k", Does::Nothing),
        ("k", Does::Refuse),
    ];
    let refused = |results: &[Result<StreamId>]| {
        let kinds = results.iter().map(|r| r.as_ref().err().map(Error::kind));
        kinds.collect::<Vec<_>>()
    };
    let no = Some(ErrorKind::Argument);
    let want = [no, None, no, None, no];
    assert_eq!(refused(&publisher.publish_json_batch(&values)), want);
    let mut dedicated = publisher.dedicated();
    let mut results = vec![Ok(StreamId::new(7, 7))];
    dedicated.publish_json_batch_into(&values, &mut results);
    assert_eq!(results[0].as_ref().unwrap(), &StreamId::new(7, 7));
    assert_eq!(refused(&results[1..]), want);
    assert!(results[2].as_ref().unwrap() < results[4].as_ref().unwrap());
    assert_eq!(messages(&server, "batches"), pairs(&[DONE; 4]));

    // types and keys of their own
    let values = [("a", As("A", &placed(1))), ("b", As("B", &placed(2)))];
    assert!(
        publisher
            .publish_json_batch(&values)
            .iter()
            .all(Result::is_ok)
    );
    let (a, b) = (("A", ONE), ("B", TWO));
    assert_eq!(messages(&server, "batches")[4..], pairs(&[a, b]));
    assert!(
        publisher
            .publish_json_batch::<&str, Does<'_>>(&[])
            .is_empty()
    );
}

#[test]
fn a_value_that_panics_harms_nobody_else() {
    let server = server();
    let streams = open(&server.url(), "panicking", 1);
    let publisher = streams.publisher("panicking").unwrap();
    thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                for _ in 0..20 {
                    let panics = || in_every_way(&publisher, Does::Panic);
                    catch_unwind(AssertUnwindSafe(panics)).unwrap_err();
                    let batch = [("k", Does::Nothing), ("k", Does::Panic)];
                    let panics = || publisher.publish_json_batch(&batch);
                    catch_unwind(AssertUnwindSafe(panics)).unwrap_err();
                    publisher.publish_json("k", &Does::Nothing).unwrap();
                }
            });
        }
    });
    assert_eq!(messages(&server, "panicking"), pairs(&[DONE; 40]));
}

#[test]
fn a_value_may_publish_while_it_is_serialized() {
    let server = server();
    let streams = open(&server.url(), "nested", 1);
    let publisher = streams.publisher("nested").unwrap();
    for result in in_every_way(&publisher, Does::Publish(&publisher)) {
        result.unwrap();
    }
    let (single, batched) = (("Within", r#""single""#), ("Within", r#""batched""#));
    let one = [single, batched, DONE];
    assert_eq!(messages(&server, "nested"), pairs(&one.repeat(4)));
    assert_eq!(length(&server, "nested", 0), 12);
}

#[test]
fn a_value_waits_in_a_queue_as_json_or_is_not_taken_at_all() {
    let server = server();
    let streams = open(&server.url(), "queued", 1);
    let publisher = streams.buffered("queued").unwrap();
    let e = publisher.enqueue_json("k", &Does::Refuse).unwrap_err();
    assert_eq!(
        (e.kind(), e.outcome()),
        (ErrorKind::Argument, Outcome::NotApplied)
    );
    let panics = || publisher.enqueue_json("k", &Does::Panic);
    catch_unwind(AssertUnwindSafe(panics)).unwrap_err();
    publisher.enqueue_json("k", &placed(1)).unwrap();
    publisher
        .enqueue_json("k", &As("Renamed", &placed(2)))
        .unwrap();
    let flushed = publisher.flush(PATIENCE);
    assert!(flushed.is_clean(), "{flushed:?}");
    assert_eq!((flushed.stored, streams.published()[0].refused), (2, 1));
    let want = pairs(&[("OrderPlaced", ONE), ("Renamed", TWO)]);
    assert_eq!(messages(&server, "queued"), want);
}
