//! Spans: what hooks are told of everything that is published and handled.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use streamlane::{testing::PrivateServer, *};

use crate::{publishing::entries, support::*};

type Attributes = Vec<(&'static str, String)>;

/// What was told of a span.
#[derive(Clone, PartialEq, Debug, Default)]
struct Told {
    name: String,
    attributes: Attributes,
    parent: Option<String>,
    links: Vec<String>,
    /// What was told at the end, and why it failed.
    end: Option<(Attributes, Option<String>)>,
}

impl Told {
    #[track_caller]
    fn attribute(&self, name: &str) -> &str {
        let found = self.attributes.iter().find(|(n, _)| *n == name);
        &found.unwrap_or_else(|| panic!("{name}: {self:?}")).1
    }

    #[track_caller]
    fn at_the_end(&self, name: &str) -> &str {
        let (attributes, _) = self.end.as_ref().unwrap();
        let found = attributes.iter().find(|(n, _)| *n == name);
        &found.unwrap_or_else(|| panic!("{name}: {self:?}")).1
    }

    fn error(&self) -> Option<&str> {
        self.end.as_ref().unwrap().1.as_deref()
    }
}

/// Writes every span down.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<Told>>>);

impl Recorder {
    fn all(&self, name: &str) -> Vec<Told> {
        let all = self.0.lock().unwrap();
        all.iter().filter(|t| t.name == name).cloned().collect()
    }

    #[track_caller]
    fn only(&self, name: &str) -> Told {
        let found = self.all(name);
        assert_eq!(found.len(), 1, "{found:#?}");
        found.into_iter().next().unwrap()
    }

    /// The only span of this name since they were last taken.
    #[track_caller]
    fn take(&self, name: &str) -> Told {
        let found = self.only(name);
        self.0.lock().unwrap().clear();
        found
    }
}

impl SpanHooks for Recorder {
    fn start(&self, span: &Span<'_>) -> u64 {
        let mut told = Told {
            name: span.name().to_string(),
            parent: span.parent.map(|p| p.to_string()),
            links: span.links.iter().map(ToString::to_string).collect(),
            ..Told::default()
        };
        span.attributes(&mut |name, value| told.attributes.push((name, value.to_string())));
        let mut all = self.0.lock().unwrap();
        all.push(told);
        all.len() as u64 - 1
    }

    fn end(&self, span: u64, end: &SpanEnd<'_>) {
        let mut attributes = Vec::new();
        end.attributes(&mut |name, value| attributes.push((name, value.to_string())));
        let told = (attributes, end.error.map(ToString::to_string));
        let before = self.0.lock().unwrap()[span as usize].end.replace(told);
        assert_eq!(before, None, "a span ends once");
    }
}

fn traced(server: &PrivateServer, topic: &str) -> (Streams, Recorder) {
    let streams = open(&server.url(), topic, 2);
    let recorder = Recorder::default();
    streams.trace_spans(recorder.clone()).unwrap();
    let again = streams.trace_spans(recorder.clone()).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Argument);
    (streams, recorder)
}

fn traceparent(trace: u8, span: u8) -> Traceparent {
    Traceparent::new([trace; 16], [span; 8], 1)
}

#[test]
fn everything_that_publishes_has_one_span_that_knows_what_was_stored() {
    const NAME: &str = "streams.publish spans-out";
    let server = server();
    let (streams, spans) = traced(&server, "spans-out");
    let now = Arc::new(AtomicU64::new(1));
    let current = {
        let now = Arc::clone(&now);
        move || Some(traceparent(9, now.load(Relaxed) as u8))
    };
    streams.trace_with(current).unwrap();
    let publisher = streams.publisher("spans-out").unwrap();
    let id = publisher.publish("", "Placed", "body").unwrap();
    let span = spans.take(NAME);
    assert_eq!(
        span.attributes,
        [
            ("messaging.system", "redis_streams".to_owned()),
            ("messaging.destination", "spans-out".to_owned()),
            ("messaging.message.type", "Placed".to_owned()),
        ]
    );
    assert_eq!(span.parent, Some(traceparent(9, 1).to_string()));
    assert_eq!(span.at_the_end("messaging.message_id"), id.to_string());
    let p = span.at_the_end("messaging.partition");
    let stored = entries(&server, "spans-out", p.parse().unwrap());
    let brought = traceparent(9, 1).to_string();
    assert!(
        stored[0].0 == id.to_string() && stored[0].1.contains(&brought),
        "{stored:?}"
    );

    // over the other connection, with a partition that was said
    let once = publisher.message("Placed", "body").partition(1);
    let once = once
        .dedupe("id", Duration::from_hours(1))
        .publish()
        .unwrap();
    let span = spans.take(NAME);
    assert_eq!(span.attribute("messaging.partition"), "1");
    assert_eq!(span.at_the_end("messaging.message_id"), once.id.to_string());
    let batch = ["a", "b", "c"].map(|body| Outgoing::new(body, body).partition(0));
    let results = publisher.publish_batch(&batch);
    let span = spans.take(NAME);
    assert_eq!(span.attribute("messaging.batch.message_count"), "3");
    assert_eq!(span.attribute("messaging.message.type"), "a");
    let last = results[2].as_ref().unwrap().to_string();
    assert_eq!(span.at_the_end("messaging.message_id"), last);
    let id = publisher.dedicated().publish("k", "T", "B").unwrap();
    let span = spans.take(NAME);
    assert_eq!(span.at_the_end("messaging.message_id"), id.to_string());
    let transaction = streams.outbox("spans-out").unwrap().transaction();
    let commit = transaction.publish(Outgoing::new("T", "B").partition(1));
    let ids = commit.commit().unwrap().committed().unwrap().ids;
    let span = spans.take(NAME);
    assert_eq!(span.at_the_end("messaging.message_id"), ids[0].to_string());
    assert_eq!(span.at_the_end("messaging.partition"), "1");
    let later = publisher.message("T", "B");
    later
        .deliver_after(Duration::from_hours(1))
        .publish()
        .unwrap();
    assert_eq!(spans.take(NAME).error(), None);

    // what fails says why, and has no id
    server
        .command(&["CONFIG", "SET", "maxmemory", "1"])
        .unwrap();
    let e = publisher.publish("k", "T", "B").unwrap_err();
    let span = spans.take(NAME);
    assert_eq!(span.error(), Some(&*e.to_string()));
    assert_eq!(span.end.unwrap().0, []);
    let mut results = publisher.publish_batch(&batch);
    let e = results.remove(0).unwrap_err();
    assert_eq!(spans.take(NAME).error(), Some(&*e.to_string()));
}

#[test]
fn each_handler_call_has_a_span_under_what_its_messages_brought() {
    const NAME: &str = "streams.process spans-in";
    let server = server();
    let (streams, spans) = traced(&server, "spans-in");
    let publisher = streams.publisher("spans-in").unwrap();
    let publish = |body: &str, trace: Option<Traceparent>| {
        let m = publisher.message("Placed", body).partition(0);
        match trace {
            None => m.publish().unwrap(),
            Some(t) => m.traceparent(t.as_str()).publish().unwrap(),
        }
    };
    let first = publish("first", Some(traceparent(1, 1)));
    publish("fails", None);
    publish("panics", Some(traceparent(2, 2)));
    let consumer = streams.consumer("spans-in").name("spans-c");
    let consumer = consumer.messages(|_| {
        |m: &Message<'_>| -> HandlerResult {
            match m.body() {
                b"fails" => Err("no luck")?,
                b"panics" => panic!("no luck at all"),
                _ => Ok(()),
            }
        }
    });
    consumer.start().unwrap().drain(PATIENCE).unwrap();
    let handled = spans.all(NAME);
    let [ok, failed, panicked] = &handled[..] else {
        panic!("{handled:#?}")
    };
    let facts = [
        ("messaging.system", "redis_streams"),
        ("messaging.destination", "spans-in"),
        ("messaging.partition", "0"),
        ("messaging.batch.message_count", "1"),
        ("streams.consumer", "spans-c"),
        ("messaging.message.type", "Placed"),
        ("messaging.message_id", &first.to_string()),
    ];
    for (name, value) in facts {
        assert_eq!(ok.attribute(name), value, "{name}");
    }
    let lag: u64 = ok.attribute("streams.lag_ms").parse().unwrap();
    assert!(lag < PATIENCE.as_millis() as u64, "{lag}");
    assert_eq!(ok.parent, Some(traceparent(1, 1).to_string()));
    assert_eq!((ok.error(), &ok.links[..]), (None, &[][..]));
    assert_eq!((failed.error(), &failed.parent), (Some("no luck"), &None));
    assert_eq!(panicked.error(), Some("it panicked"));
}

#[test]
fn a_batch_is_under_the_one_trace_of_its_messages_or_linked_to_all() {
    let server = server();
    let a_batch_of = |topic: &str, traces: &[Option<Traceparent>]| {
        let (streams, spans) = traced(&server, topic);
        let publisher = streams.publisher(topic).unwrap();
        for trace in traces {
            let m = publisher.message("T", "B").partition(0);
            match trace {
                None => m.publish().unwrap(),
                Some(t) => m.traceparent(t.as_str()).publish().unwrap(),
            };
        }
        let consumer = streams.consumer(topic).name("c");
        let consumer = consumer.batches(|_| |_: &Batch<'_>| HandlerResult::Ok(()));
        consumer.start().unwrap().drain(PATIENCE).unwrap();
        let span = spans.only(&format!("streams.process {topic}"));
        let n = traces.len().to_string();
        assert_eq!(span.attribute("messaging.batch.message_count"), n);
        (span.parent, span.links)
    };
    let [a, b, c] = [(1, 1), (1, 2), (2, 3)].map(|(trace, span)| traceparent(trace, span));
    let [a_text, b_text, c_text] = [a, b, c].map(|t| t.to_string());
    let one = a_batch_of("spans-one", &[None, Some(a), Some(b)]);
    assert_eq!(one, (Some(a_text.clone()), vec![b_text.clone()]));
    let several = a_batch_of("spans-several", &[Some(a), Some(b), Some(c)]);
    assert_eq!(several, (None, vec![a_text, b_text, c_text]));
}
