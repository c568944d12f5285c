//! What entries may hold: any bytes at all, come back as they were; and what is no message goes
//! through the error policy while its neighbours are handled.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use streamlane::{testing::PrivateServer, *};

use crate::support::*;

/// What a handler can see of a message, in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Content {
    key: Vec<u8>,
    message_type: Vec<u8>,
    body: Vec<u8>,
    correlation_id: Vec<u8>,
    traceparent: Option<Vec<u8>>,
    headers: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Content {
    fn of(m: &Message<'_>) -> Self {
        Self {
            key: m.key().as_bytes().to_vec(),
            message_type: m.message_type().as_bytes().to_vec(),
            body: m.body().to_vec(),
            correlation_id: m.correlation_id().as_bytes().to_vec(),
            traceparent: m.traceparent().map(|t| t.as_bytes().to_vec()),
            headers: m
                .headers()
                .iter()
                .map(|h| h.map(|(n, v)| (n.to_vec(), v.to_vec())).unwrap())
                .collect(),
        }
    }

    fn outgoing(&self) -> Outgoing<'_> {
        let mut m = Outgoing::new(&self.message_type, &self.body)
            .key(&self.key)
            .correlation_id(&self.correlation_id);
        if let Some(t) = &self.traceparent {
            m = m.traceparent(t);
        }
        self.headers.iter().fold(m, |m, (n, v)| m.header(n, v))
    }
}

fn odd_contents() -> Vec<Content> {
    let all: Vec<u8> = (0..=255).collect();
    let odd = [
        &b""[..],
        b"\0",
        b"\r\n",
        b"\xff\xfe",
        b"$5\r\nhello\r\n",
        b":1:",
        "naïve 日本".as_bytes(),
        &all,
    ];
    let mut contents: Vec<_> = odd
        .iter()
        .map(|bytes| Content {
            key: bytes.to_vec(),
            message_type: bytes.to_vec(),
            body: bytes.to_vec(),
            correlation_id: bytes.to_vec(),
            traceparent: Some(bytes.to_vec()),
            headers: odd.iter().map(|v| (bytes.to_vec(), v.to_vec())).collect(),
        })
        .collect();
    contents.push(Content::default());
    contents.push(Content {
        body: (0..20 << 20)
            .map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect(),
        ..Content::default()
    });
    contents
}

#[test]
fn any_bytes_come_back_as_they_were_published() {
    let server = server();
    let streams = open(&server.url(), "odd", 1);
    let publisher = streams.publisher("odd").unwrap();
    let contents = odd_contents();
    let mut dedicated = publisher.dedicated();
    for c in &contents {
        let mut m = dedicated
            .message(&c.message_type, &c.body)
            .key(&c.key)
            .correlation_id(&c.correlation_id);
        if let Some(t) = &c.traceparent {
            m = m.traceparent(t);
        }
        let m = c.headers.iter().fold(m, |m, (n, v)| m.header(n, v));
        m.publish().unwrap();
    }
    let outgoing: Vec<_> = contents.iter().map(Content::outgoing).collect();
    for result in publisher.publish_batch(&outgoing) {
        result.unwrap();
    }
    let seen = Seen::default();
    let handler_seen = seen.clone();
    let handle = move |m: &Message<'_>| -> HandlerResult {
        handler_seen.push(Content::of(m));
        Ok(())
    };
    let consumer = streams
        .consumer("odd")
        .name("c")
        .shared(handle)
        .start()
        .unwrap();
    consumer.drain(PATIENCE * 2).unwrap();
    let seen = seen.all();
    assert_eq!(seen.len(), 2 * contents.len());
    for (i, (got, want)) in seen.iter().zip(contents.iter().cycle()).enumerate() {
        // not assert_eq: nobody reads 20 MB of a failure
        assert!(
            got == want,
            "message {i}: {} bytes became {}",
            want.body.len(),
            got.body.len()
        );
    }
}

#[test]
fn repeated_and_unknown_fields_are_all_in_the_raw_view() {
    let server = server();
    let fields = ["b", "1", "t", "T", "b", "2", "x", "", "", "y", "x", "z"];
    let xadd: Vec<_> = ["XADD", "re:s:{raw}:0", "*"]
        .into_iter()
        .chain(fields)
        .collect();
    server.command(&xadd).unwrap();
    let seen = Seen::default();
    let handler_seen = seen.clone();
    let handle = move |m: &Message<'_>| -> HandlerResult {
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        handler_seen.push((
            text(m.body()),
            m.fields()
                .flat_map(|(n, v)| [text(n), text(v)])
                .collect::<Vec<_>>(),
        ));
        Ok(())
    };
    let streams = open(&server.url(), "raw", 1);
    let _consumer = streams
        .consumer("raw")
        .name("c")
        .shared(handle)
        .start()
        .unwrap();
    let (body, raw) = &seen.wait_for(1)[0];
    assert_eq!(body, "2", "the last of a repeated field counts");
    assert_eq!(raw, &fields);
}

/// Entries that other tools may write, each between two good ones.
fn strangers() -> Vec<Vec<String>> {
    let words = |w: &[&str]| w.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
    let many = (0..10_000)
        .flat_map(|n| [n.to_string(), "v".into()])
        .collect();
    vec![
        words(&["foo", "bar"]),
        words(&["", ""]),
        words(&["b", "B"]),
        words(&["t", "T"]),
        words(&["b", "B", "t", "T", "h", "6:source3:w"]),
        words(&["b", "B", "t", "T", "h", "garbage"]),
        many,
    ]
}

/// Fills partition 0 with strangers between good entries, and partition 1 with good ones.
fn fill(server: &PrivateServer, topic: &str) -> Vec<StreamId> {
    let add = |p: u32, id: &str, fields: &[String]| {
        let head = [
            "XADD".to_owned(),
            format!("re:s:{{{topic}}}:{p}"),
            id.to_owned(),
        ];
        server.command(&[&head, fields].concat()).unwrap();
    };
    let good = |body: String| ["b", &body, "t", "T"].map(str::to_owned);
    let mut ids = Vec::new();
    for (n, stranger) in (1..).zip(strangers()) {
        add(0, &format!("{n}-0"), &good(format!("good {n}")));
        add(0, &format!("{n}-1"), &stranger);
        add(1, &format!("{n}-0"), &good(format!("other {n}")));
        ids.push(StreamId::new(n, 1));
    }
    add(0, "99-0", &good("good 99".into()));
    ids
}

fn bodies(seen: &Seen<String>, of: &str) -> Vec<String> {
    seen.all()
        .into_iter()
        .filter(|b| b.starts_with(of))
        .collect()
}

#[test]
fn what_is_no_message_is_stepped_over_and_its_neighbours_are_handled() {
    let server = server();
    let strange = fill(&server, "mixed").len();
    let streams = open(&server.url(), "mixed", 2);
    let seen = Seen::default();
    let consumer = recording(streams.consumer("mixed").name("c"), &seen)
        .start()
        .unwrap();
    seen.wait_for(2 * strange + 1);
    let want: Vec<_> = (1..=strange)
        .chain([99])
        .map(|n| format!("good {n}"))
        .collect();
    assert_eq!(bodies(&seen, "good"), want);
    expect("the position to reach the end", || {
        consumer
            .position(0)
            .is_some_and(|p| p.id == StreamId::new(99, 0))
    });
    let status = &consumer.partitions()[0];
    assert_eq!(
        (status.failures, status.skipped),
        (strange as u64, strange as u64)
    );
    assert_eq!((status.state, status.connects), (LaneState::Running, 1));
    let lines = warned("mixed[0]/c");
    for word in ["1-1", "no body"] {
        assert!(lines[0].contains(word), "{word}: {lines:?}");
    }
}

#[test]
fn a_batch_handler_sees_what_is_no_message_in_its_place() {
    use Malformed::{Headers, NoBody, NoType};
    let server = server();
    let strange = fill(&server, "places");
    let streams = open(&server.url(), "places", 2);
    let seen = Seen::default();
    let handler_seen = seen.clone();
    let handle = move |batch: &Batch<'_>| -> HandlerResult {
        for m in batch.messages().filter(|m| m.partition() == 0) {
            handler_seen.push((m.id(), m.malformed()));
        }
        Ok(())
    };
    let consumer = streams
        .consumer("places")
        .name("c")
        .shared_batches(handle)
        .start()
        .unwrap();
    consumer.drain(PATIENCE).unwrap();
    let seen = seen.all();
    assert_eq!(seen.len(), 2 * strange.len() + 1);
    let malformed: Vec<_> = seen
        .iter()
        .filter(|(_, m)| m.is_some())
        .map(|(id, _)| *id)
        .collect();
    assert_eq!(malformed, strange);
    let kinds: Vec<_> = seen.iter().filter_map(|(_, m)| *m).collect();
    assert_eq!(
        kinds,
        [NoBody, NoBody, NoType, NoBody, Headers, Headers, NoBody]
    );
}

#[test]
fn under_stop_partition_it_stops_its_own_partition_and_no_other() {
    let server = server();
    let strange = fill(&server, "strict").len();
    let streams = open(&server.url(), "strict", 2);
    let seen = Seen::default();
    let builder = streams
        .consumer("strict")
        .name("c")
        .on_error(OnError::StopPartition);
    let consumer = recording(builder, &seen).start().unwrap();
    expect("partition 0 to stop", || {
        consumer.partitions()[0].state == LaneState::Stopped
    });
    expect("partition 1 to be handled", || {
        bodies(&seen, "other").len() == strange
    });
    assert_eq!(bodies(&seen, "good"), ["good 1"]);
    let status = &consumer.partitions()[0];
    assert_eq!(
        status.position.id,
        StreamId::new(1, 0),
        "the position stays before it"
    );
    for word in ["1-1", "no body"] {
        assert!(status.reason.contains(word), "{word}: {}", status.reason);
    }
    assert_eq!(consumer.partitions()[1].state, LaneState::Running);
}
