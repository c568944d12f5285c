//! What is counted.

use std::{sync::mpsc, thread, time::Duration};

use serde::Deserialize;
use streamlane::{
    Batch, ConsumerBuilder, HasHandler, Message, Outgoing, Schema, StreamId, Streams,
    testing::PrivateServer, typed,
};

use crate::Outcome;

pub(crate) const TYPE: &[u8] = b"OrderPlaced";
pub(crate) const KEY: &[u8] = b"order-123456";

/// 100 bytes that nobody looks at.
const PLAIN: &[u8] = &[b'x'; 100];
/// A document of 184 bytes.
const JSON: &[u8; 184] = br#"{"id":1234567,"customer":"a customer of renown","symbol":"EURUSD","side":"buy","price":1.08425,"quantity":250000,"venue":"somewhere","comment":"at the best price there is","firm":true}"#;

#[derive(Deserialize)]
struct Order<'a> {
    id: u64,
    customer: &'a str,
    symbol: &'a str,
    side: &'a str,
    price: f64,
    quantity: u64,
    venue: &'a str,
    comment: &'a str,
    firm: bool,
}

impl Schema for Order<'static> {
    type Of<'a> = Order<'a>;
}

/// How many messages a batch has, read or published.
const BATCH: u32 = 100;
/// After so long without an end something is broken. Valgrind takes its time.
const PATIENCE: Duration = Duration::from_mins(5);

/// One way of a message.
pub(crate) struct Path {
    pub(crate) name: &'static str,
    run: fn(&Streams, u64) -> Outcome<()>,
}

pub(crate) const PATHS: [Path; 7] = [
    Path {
        name: "drain-batches",
        run: batches,
    },
    Path {
        name: "drain-messages",
        run: messages,
    },
    Path {
        name: "drain-json",
        run: json,
    },
    Path {
        name: "publish-dedicated",
        run: dedicated,
    },
    Path {
        name: "publish-shared",
        run: shared,
    },
    Path {
        name: "publish-batches",
        run: publish_batches,
    },
    Path {
        name: "publish-buffered",
        run: buffered,
    },
];

/// What every message of a stream says.
pub(crate) fn body_of(stream: &[u8]) -> &'static [u8] {
    if stream.windows(4).any(|w| w == b"json") {
        JSON
    } else {
        PLAIN
    }
}

/// Makes streams whose last ids lie behind all that will be read of them, so that nobody takes the
/// positions for ones that are ahead.
pub(crate) fn prepare(server: &PrivateServer) -> Outcome<()> {
    for topic in ["plain", "json"] {
        let stream = format!("re:s:{{{topic}}}:0");
        server.command(&["HSET", &format!("re:m:{{{topic}}}"), "partitions", "1"])?;
        server.command(&["XADD", &stream, "1-1", "b", "", "t", "first"])?;
        server.command(&[
            "XSETID",
            &stream,
            "9000000000000-0",
            "ENTRIESADDED",
            "1",
            "MAXDELETEDID",
            "0-0",
        ])?;
    }
    Ok(())
}

/// Runs one path once.
pub(crate) fn run(name: &str, messages: &str, url: &str) -> Outcome<()> {
    let path = PATHS
        .iter()
        .find(|p| p.name == name)
        .ok_or("no such path")?;
    let streams = Streams::connect(url)?;
    (path.run)(&streams, messages.parse()?)?;
    streams.stop();
    Ok(())
}

/// Reads so many messages. `handler` is given what ends the run.
fn drain(
    streams: &Streams,
    topic: &str,
    n: u64,
    handler: impl FnOnce(ConsumerBuilder, Tally) -> ConsumerBuilder<HasHandler>,
) -> Outcome<()> {
    let (all, done) = mpsc::sync_channel(1);
    let builder = streams.consumer(topic).name("counted").batch_size(BATCH);
    let consumer = handler(
        builder,
        Tally {
            left: n,
            bytes: 0,
            all,
        },
    )
    .start()?;
    done.recv_timeout(PATIENCE)?;
    consumer.stop();
    Ok(())
}

/// Counts down, and holds the lane when all were seen.
#[derive(Clone)]
struct Tally {
    left: u64,
    bytes: usize,
    all: mpsc::SyncSender<()>,
}

impl Tally {
    fn add(&mut self, messages: u64, bytes: usize, cancelled: impl Fn() -> bool) {
        self.left = self.left.saturating_sub(messages);
        self.bytes += bytes;
        if self.left == 0 {
            assert!(self.bytes > 0);
            let _ = self.all.try_send(());
            while !cancelled() {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

fn batches(streams: &Streams, n: u64) -> Outcome<()> {
    drain(streams, "plain", n, |builder, tally| {
        builder.batches(move |_| {
            let mut tally = tally.clone();
            move |batch: &Batch<'_>| {
                let bytes = batch.messages().map(|m| m.body().len()).sum();
                tally.add(batch.len() as u64, bytes, || batch.is_cancelled());
                Ok(())
            }
        })
    })
}

fn messages(streams: &Streams, n: u64) -> Outcome<()> {
    drain(streams, "plain", n, |builder, tally| {
        builder.messages(move |_| {
            let mut tally = tally.clone();
            move |m: &Message<'_>| {
                tally.add(1, m.body().len(), || m.is_cancelled());
                Ok(())
            }
        })
    })
}

fn json(streams: &Streams, n: u64) -> Outcome<()> {
    drain(streams, "json", n, |builder, tally| {
        builder.json(move |_| {
            let mut tally = tally.clone();
            typed::<Order<'_>>(move |o, m| {
                let texts = [o.customer, o.symbol, o.side, o.venue, o.comment];
                let bytes = texts.iter().map(|t| t.len()).sum::<usize>();
                let right = o.firm && o.id == 1_234_567 && o.quantity == 250_000 && o.price > 1.0;
                tally.add(1, if right { bytes } else { 0 }, || m.is_cancelled());
                Ok(())
            })
        })
    })
}

fn dedicated(streams: &Streams, n: u64) -> Outcome<()> {
    let mut publisher = streams.publisher("plain")?.dedicated();
    for _ in 0..n {
        publisher.publish(KEY, TYPE, PLAIN)?;
    }
    Ok(())
}

fn shared(streams: &Streams, n: u64) -> Outcome<()> {
    let publisher = streams.publisher("plain")?;
    for _ in 0..n {
        publisher.publish(KEY, TYPE, PLAIN)?;
    }
    Ok(())
}

fn publish_batches(streams: &Streams, n: u64) -> Outcome<()> {
    let mut publisher = streams.publisher("plain")?.dedicated();
    let messages = vec![Outgoing::new(TYPE, PLAIN).key(KEY); BATCH as usize];
    let mut ids = Vec::<streamlane::Result<StreamId>>::with_capacity(messages.len());
    for _ in 0..n / u64::from(BATCH) {
        publisher.publish_batch_into(&messages, &mut ids);
        for id in ids.drain(..) {
            id?;
        }
    }
    Ok(())
}

fn buffered(streams: &Streams, n: u64) -> Outcome<()> {
    let publisher = streams.buffered("plain")?;
    let message = Outgoing::new(TYPE, PLAIN).key(KEY);
    for i in 1..=n {
        publisher.enqueue(&message)?;
        if i % u64::from(BATCH) == 0 {
            // so that the pump takes as many at a time whatever the machine does
            publisher.flush(PATIENCE).into_result()?;
        }
    }
    Ok(())
}
