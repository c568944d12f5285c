//! Draining one lane: a stream that is there already, read to its end as fast as it goes.

use std::{cell::Cell, hint::black_box, time::Duration};

use serde::Deserialize;
use streamlane::{
    Batch, ConsumerBuilder, Delivery, HasHandler, Message, Schema, typed, typed_batch,
};

use crate::{
    Bench, Outcome,
    figures::{Way, compare},
    floor::{Request, command, stream},
    meter::Meter,
    source,
};

/// A body of exactly so many bytes.
pub(crate) fn body(bytes: usize) -> Vec<u8> {
    let frame = br#"{"id":1234567,"customer":""}"#.len();
    let name = "x".repeat(bytes - frame);
    format!(r#"{{"id":1234567,"customer":"{name}"}}"#).into_bytes()
}

/// A document of 184 bytes, with a field of most kinds.
const DOCUMENT: &[u8; 184] = br#"{"id":1234567,"customer":"a customer of renown","symbol":"EURUSD","side":"buy","price":1.08425,"quantity":250000,"venue":"somewhere","comment":"at the best price there is","firm":true}"#;

#[derive(Deserialize)]
struct Trade<'a> {
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

impl Schema for Trade<'static> {
    type Of<'a> = Trade<'a>;
}

impl Trade<'_> {
    /// What a right one counts.
    fn size(&self) -> usize {
        let texts = [
            self.customer,
            self.symbol,
            self.side,
            self.venue,
            self.comment,
        ];
        let right = self.firm
            && self.id == 1_234_567
            && self.quantity == 250_000
            && self.price > 1.0
            && texts.iter().all(|t| !t.is_empty());
        if right { DOCUMENT.len() } else { 0 }
    }
}

/// What a read aims at unless told otherwise.
const BATCH_BYTES: usize = 256 * 1024;
/// In front of each body and behind the last.
const FRAMING: usize = 100;
/// So much work a message makes it worth to read ahead.
const WORK: Duration = Duration::from_nanos(500);

pub(crate) fn topic(body: usize) -> String {
    format!("drain-{body}")
}

pub(crate) const DOCUMENTS: &str = "documents";

const COLUMNS: [&str; 3] = ["k msg/s", "client CPU ns/msg", "server CPU ns/msg"];

pub(crate) fn measure(bench: &Bench) -> Outcome<()> {
    for &body in &bench.options.bodies {
        let filled = Cell::new(false);
        for &count in &bench.options.counts {
            let title = format!("drain: {body} B, batches of {count}");
            let text = self::body(body);
            let lane = Lane {
                bench,
                topic: &topic(body),
                body: &text,
                count,
                filled: &filled,
            };
            let ways = vec![
                Way::floor("bare socket", || lane.floor()),
                Way::floor("bare socket, indexing and reading ahead", || {
                    lane.floor_ahead(|b| sum(b))
                }),
                Way::new("batch handler", || lane.batches()),
                Way::new("message handler", || lane.messages(true, sum)),
            ];
            compare(&bench.options, &title, &COLUMNS, ways)?;
            let title = format!("group: {body} B, batches of {count}, read and acknowledged");
            let ways = vec![
                Way::floor("bare socket", || lane.floor_of_a_group()),
                Way::floor("an ordered consumer", || lane.batches()),
                Way::new("batch handler", || lane.group_batches()),
                Way::new("message handler", || lane.group_messages()),
            ];
            compare(&bench.options, &title, &COLUMNS, ways)?;
            if body == bench.options.bodies[0] {
                lane.work()?;
            }
        }
        bench.server.command(&["DEL", &stream(&topic(body))])?;
    }
    documents(bench)
}

/// Bodies that are parsed.
fn documents(bench: &Bench) -> Outcome<()> {
    let filled = Cell::new(false);
    for &count in &bench.options.counts {
        let lane = Lane {
            bench,
            topic: DOCUMENTS,
            body: DOCUMENT,
            count,
            filled: &filled,
        };
        let title = format!("JSON: {} B, batches of {count}", DOCUMENT.len());
        let ways = vec![
            Way::floor("bare socket and simd-json", || {
                let (mut buffers, mut failed) = (simd_json::Buffers::new(DOCUMENT.len()), false);
                let figures = lane.floor_ahead(|body| {
                    let trade = simd_json::serde::from_slice_with_buffers(body, &mut buffers);
                    failed |= trade.is_err();
                    trade.map_or(0, |t: Trade<'_>| t.size())
                });
                if failed {
                    Err("a document was not understood".into())
                } else {
                    figures
                }
            }),
            Way::new("JSON handler", || lane.json()),
            Way::new("JSON batch handler", || lane.json_batches()),
        ];
        compare(&bench.options, &title, &COLUMNS, ways)?;
    }
    bench.server.command(&["DEL", &stream(DOCUMENTS)])?;
    Ok(())
}

/// What a handler does with a body: it looks at each byte of it, and counts them.
pub(crate) fn sum(body: &[u8]) -> usize {
    let (words, rest) = body.as_chunks::<8>();
    let words = words.iter().map(|w| u64::from_le_bytes(*w));
    let rest = rest
        .iter()
        .map(|b| u64::from(*b))
        .fold(0, u64::wrapping_add);
    black_box(words.fold(rest, u64::wrapping_add));
    body.len()
}

/// As [`sum`], for longer.
fn sum_slowly(body: &[u8]) -> usize {
    let until = crate::machine::now_ns() + WORK.as_nanos() as u64;
    while crate::machine::now_ns() < until {}
    sum(body)
}

/// What a drain is about.
struct Lane<'a> {
    bench: &'a Bench,
    topic: &'a str,
    body: &'a [u8],
    count: u32,
    filled: &'a Cell<bool>,
}

impl Lane<'_> {
    /// What a handler that takes its time gains from the next batch being under way meanwhile.
    fn work(&self) -> Outcome<()> {
        let title = format!(
            "read-ahead: {} ns of work a message, batches of {}",
            WORK.as_nanos(),
            self.count
        );
        let ways = vec![
            Way::floor("without", || self.messages(false, sum_slowly)),
            Way::new("with", || self.messages(true, sum_slowly)),
        ];
        compare(&self.bench.options, &title, &COLUMNS, ways)
    }

    fn request(&self) -> Request {
        let fits = (BATCH_BYTES / (self.body.len() + FRAMING)) as u32;
        Request::new(&stream(self.topic), self.count.min(fits))
    }

    /// Looks at each body as soon as it has found it, and asks for more when it has seen all.
    fn floor(&self) -> Outcome<Vec<f64>> {
        let meter = self.meter()?;
        let (mut lap, mut request) = (meter.lap(0), self.request());
        let (mut wire, mut cursor) = (self.bench.wire()?, b"0-0".to_vec());
        while lap.is_running() {
            wire.send(request.after(&cursor))?;
            let mut bytes = 0;
            let n = wire.entries(&mut cursor, |body| bytes += sum(body))?;
            if n == 0 {
                return Err("the stream ended early".into());
            }
            lap.add(n, bytes);
        }
        self.figures(&meter)
    }

    /// Finds all bodies, asks for more, and only then looks at them.
    fn floor_ahead(&self, mut look: impl FnMut(&mut [u8]) -> usize) -> Outcome<Vec<f64>> {
        let meter = self.meter()?;
        let (mut lap, mut request) = (meter.lap(0), self.request());
        let (mut wire, mut cursor) = (self.bench.wire()?, b"0-0".to_vec());
        let mut places = Vec::with_capacity(self.count as usize);
        wire.send(request.after(&cursor))?;
        while lap.is_running() {
            let n = wire.index(&mut cursor, &mut places)?;
            if n == 0 {
                return Err("the stream ended early".into());
            }
            wire.send(request.after(&cursor))?;
            let bytes = places.iter().map(|place| look(wire.body(*place))).sum();
            lap.add(n, bytes);
        }
        self.figures(&meter)
    }

    /// As [`floor`](Self::floor), as a member of a group that acknowledges what it was given before with each
    /// read.
    fn floor_of_a_group(&self) -> Outcome<Vec<f64>> {
        let (key, group) = (stream(self.topic), source::group());
        let meter = self.meter()?;
        let made = ["XGROUP", "CREATE", &key, &group, "0"];
        self.bench.server.command(&made)?;
        let fits = (BATCH_BYTES / (self.body.len() + FRAMING)) as u32;
        let count = self.count.min(fits).to_string();
        let read = [
            "XREADGROUP",
            "GROUP",
            &group,
            "m",
            "COUNT",
            &count,
            "BLOCK",
            "1000",
        ];
        let read: Vec<&[u8]> = read.iter().map(|w| w.as_bytes()).collect();
        let read = command(&[&read[..], &[b"STREAMS", key.as_bytes(), b">"]].concat());
        let (mut lap, mut wire) = (meter.lap(0), self.bench.wire()?);
        let (mut out, mut ids, mut given) = (Vec::new(), Vec::new(), 0);
        while lap.is_running() {
            out.clear();
            if given > 0 {
                let head = command(&[b"XACK", key.as_bytes(), group.as_bytes()]);
                let names = head.iter().position(|b| *b == b'\n').map_or(0, |at| at + 1);
                out.extend_from_slice(format!("*{}\r\n", 3 + given).as_bytes());
                out.extend_from_slice(&head[names..]);
                out.extend_from_slice(&ids);
            }
            out.extend_from_slice(&read);
            wire.send(&out)?;
            let mut bytes = 0;
            given = wire.given(given > 0, &mut ids, |body| bytes += sum(body))?;
            if given == 0 {
                return Err("the stream ended early".into());
            }
            lap.add(given, bytes);
        }
        self.figures(&meter)
    }

    fn group_batches(&self) -> Outcome<Vec<f64>> {
        self.run(|builder, meter| {
            builder.delivery(Delivery::WorkQueue).batches(move |_| {
                let mut lap = meter.lap(0);
                move |batch: &Batch<'_>| {
                    let bytes = batch.messages().map(|m| sum(m.body())).sum();
                    lap.add(batch.len(), bytes);
                    Ok(())
                }
            })
        })
    }

    fn group_messages(&self) -> Outcome<Vec<f64>> {
        self.run(|builder, meter| {
            builder.delivery(Delivery::WorkQueue).messages(move |_| {
                let mut lap = meter.lap(0);
                move |m: &Message<'_>| {
                    lap.add(1, sum(m.body()));
                    Ok(())
                }
            })
        })
    }

    fn batches(&self) -> Outcome<Vec<f64>> {
        self.run(|builder, meter| {
            builder.batches(move |_| {
                let mut lap = meter.lap(0);
                move |batch: &Batch<'_>| {
                    let bytes = batch.messages().map(|m| sum(m.body())).sum();
                    lap.add(batch.len(), bytes);
                    Ok(())
                }
            })
        })
    }

    fn messages(&self, read_ahead: bool, look: fn(&[u8]) -> usize) -> Outcome<Vec<f64>> {
        self.run(|builder, meter| {
            builder.read_ahead(read_ahead).messages(move |_| {
                let mut lap = meter.lap(0);
                move |m: &Message<'_>| {
                    lap.add(1, look(m.body()));
                    Ok(())
                }
            })
        })
    }

    fn json(&self) -> Outcome<Vec<f64>> {
        self.run(|builder, meter| {
            builder.json(move |_| {
                let mut lap = meter.lap(0);
                typed::<Trade<'_>>(move |trade, _| {
                    lap.add(1, trade.size());
                    Ok(())
                })
            })
        })
    }

    fn json_batches(&self) -> Outcome<Vec<f64>> {
        self.run(|builder, meter| {
            builder.json_batches(move |_| {
                let mut lap = meter.lap(0);
                typed_batch::<Trade<'_>>(move |trades, _| {
                    lap.add(trades.len(), trades.iter().map(Trade::size).sum());
                    Ok(())
                })
            })
        })
    }

    /// Drains with a consumer of its own.
    fn run(
        &self,
        handle: impl FnOnce(ConsumerBuilder, Meter) -> ConsumerBuilder<HasHandler>,
    ) -> Outcome<Vec<f64>> {
        let meter = self.meter()?;
        let builder = source::reader(self.bench, self.topic).batch_size(self.count);
        let consumer = handle(builder, meter.clone()).start()?;
        meter.wait()?;
        consumer.stop();
        self.figures(&meter)
    }

    fn meter(&self) -> Outcome<Meter> {
        let n = self.bench.options.entries_of(self.body.len());
        if !self.filled.replace(true) {
            source::fill(self.bench, &stream(self.topic), self.body, n)?;
        }
        Meter::new(self.bench, 1, n)
    }

    fn figures(&self, meter: &Meter) -> Outcome<Vec<f64>> {
        meter.figures(self.body.len())
    }
}
