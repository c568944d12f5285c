//! Draining one lane: a stream that is there already, read to its end as fast as it goes.

use std::{
    cell::Cell,
    sync::{
        atomic::{AtomicU32, Ordering::Relaxed},
        mpsc,
    },
    time::Duration,
};

use parking_lot::Mutex;
use serde::Deserialize;
use streamlane::{Batch, HasHandler, Message, Schema, StartFrom, typed, typed_batch};

use crate::{
    Bench, Outcome,
    figures::{Way, compare},
    floor::{Request, command, fields, stream},
    machine::Mark,
};

/// What every body is: JSON, filled up to its size.
#[derive(Deserialize)]
struct Order<'a> {
    id: u64,
    customer: &'a str,
}

impl Schema for Order<'static> {
    type Of<'a> = Order<'a>;
}

/// A body of exactly so many bytes.
pub(crate) fn body(bytes: usize) -> Vec<u8> {
    let frame = br#"{"id":1234567,"customer":""}"#.len();
    let name = "x".repeat(bytes - frame);
    format!(r#"{{"id":1234567,"customer":"{name}"}}"#).into_bytes()
}

/// What a read aims at unless told otherwise.
const BATCH_BYTES: usize = 256 * 1024;
/// After this long without an end something is broken.
const PATIENCE: Duration = Duration::from_mins(5);
/// In front of each body and behind the last.
const FRAMING: usize = 100;

pub(crate) fn topic(body: usize) -> String {
    format!("drain-{body}")
}

pub(crate) fn measure(bench: &Bench) -> Outcome<()> {
    for &body in &bench.options.bodies {
        let filled = Cell::new(false);
        for &count in &bench.options.counts {
            let title = format!("drain: {body} B, batches of {count}");
            let lane = Lane {
                bench,
                body,
                count,
                filled: &filled,
            };
            let columns = ["k msg/s", "client CPU ns/msg", "server CPU ns/msg"];
            let ways = vec![
                Way::floor("bare socket", || lane.floor()),
                Way::new("batch handler", || lane.batches()),
                Way::new("message handler", || lane.messages()),
                Way::new("JSON handler", || lane.json()),
                Way::new("JSON batch handler", || lane.json_batches()),
            ];
            compare(&bench.options, &title, &columns, ways)?;
        }
        bench.server.command(&["DEL", &stream(&topic(body))])?;
    }
    Ok(())
}

/// Puts the messages there, a thousand at a time.
fn fill(bench: &Bench, bytes: usize) -> Outcome<()> {
    const PIECE: usize = 1000;
    let (key, body) = (stream(&topic(bytes)), body(bytes));
    let head: [&[u8]; 3] = [b"XADD", key.as_bytes(), b"*"];
    let one = command(&[&head[..], &fields(&body)].concat());
    let mut wire = bench.wire()?;
    let mut left = bench.options.entries_of(bytes) as usize;
    while left > 0 {
        let n = left.min(PIECE);
        wire.send(&one.repeat(n))?;
        wire.ids(n)?;
        left -= n;
    }
    Ok(())
}

/// What a drain is about.
struct Lane<'a> {
    bench: &'a Bench,
    body: usize,
    count: u32,
    filled: &'a Cell<bool>,
}

impl Lane<'_> {
    fn floor(&self) -> Outcome<Vec<f64>> {
        let (mut meter, done) = self.meter()?;
        let fits = (BATCH_BYTES / (self.body + FRAMING)) as u32;
        let mut request = Request::new(&topic(self.body), self.count.min(fits));
        let (mut wire, mut cursor) = (self.bench.wire()?, b"0-0".to_vec());
        while meter.is_running() {
            wire.send(request.after(&cursor))?;
            let mut bytes = 0;
            let n = wire.entries(&mut cursor, |body| bytes += body.len())?;
            if n == 0 {
                return Err("the stream ended early".into());
            }
            meter.add(n, bytes);
        }
        self.figures(&done.recv()?)
    }

    fn batches(&self) -> Outcome<Vec<f64>> {
        self.run(|builder, meter| {
            builder.batches(move |_| {
                let mut meter = meter.take();
                move |batch: &Batch<'_>| {
                    let bytes = batch.messages().map(|m| m.body().len()).sum();
                    meter.add(batch.len(), bytes);
                    Ok(())
                }
            })
        })
    }

    fn messages(&self) -> Outcome<Vec<f64>> {
        self.run(|builder, meter| {
            builder.messages(move |_| {
                let mut meter = meter.take();
                move |m: &Message<'_>| {
                    meter.add(1, m.body().len());
                    Ok(())
                }
            })
        })
    }

    fn json(&self) -> Outcome<Vec<f64>> {
        self.run(|builder, meter| {
            builder.json(move |_| {
                let mut meter = meter.take();
                typed::<Order<'_>>(move |order, m| {
                    let read = order.id == 1_234_567 && !order.customer.is_empty();
                    meter.add(1, if read { m.body().len() } else { 0 });
                    Ok(())
                })
            })
        })
    }

    fn json_batches(&self) -> Outcome<Vec<f64>> {
        self.run(|builder, meter| {
            builder.json_batches(move |_| {
                let mut meter = meter.take();
                typed_batch::<Order<'_>>(move |orders, batch| {
                    let read = |o: &Order<'_>| o.id == 1_234_567 && !o.customer.is_empty();
                    let read = orders.iter().zip(batch).filter(|(o, _)| read(o));
                    meter.add(orders.len(), read.map(|(_, m)| m.body().len()).sum());
                    Ok(())
                })
            })
        })
    }

    /// Drains with a consumer of its own.
    fn run(
        &self,
        handle: impl FnOnce(
            streamlane::ConsumerBuilder,
            Lent,
        ) -> streamlane::ConsumerBuilder<HasHandler>,
    ) -> Outcome<Vec<f64>> {
        static NTH: AtomicU32 = AtomicU32::new(0);
        let (meter, done) = self.meter()?;
        let builder = self
            .bench
            .streams
            .consumer(topic(self.body))
            .name(format!("drain-{}", NTH.fetch_add(1, Relaxed)))
            .batch_size(self.count)
            .start_from(StartFrom::Beginning);
        let consumer = handle(builder, Lent(Mutex::new(Some(meter)))).start()?;
        let marks = done.recv_timeout(PATIENCE)?;
        consumer.stop();
        self.figures(&marks)
    }

    fn meter(&self) -> Outcome<(Meter, mpsc::Receiver<Marks>)> {
        if !self.filled.replace(true) {
            fill(self.bench, self.body)?;
        }
        let total = self.bench.options.entries_of(self.body);
        let (done, marks) = mpsc::sync_channel(1);
        let meter = Meter {
            seen: 0,
            bytes: 0,
            next: total / 10,
            total,
            first: None,
            server_pid: self.bench.server_pid()?,
            done,
        };
        Ok((meter, marks))
    }

    fn figures(&self, marks: &Marks) -> Outcome<Vec<f64>> {
        if marks.bytes != self.bench.options.entries_of(self.body) * self.body as u64 {
            return Err("not every body was seen once".into());
        }
        let ((from, before), (to, after)) = (marks.first, marks.last);
        let n = (to - from) as f64;
        Ok(vec![
            n * 1e6 / (after.at - before.at) as f64,
            (after.client - before.client) as f64 / n,
            (after.server - before.server) as f64 / n,
        ])
    }
}

/// Counts messages. Its clock runs from about the tenth part of them, when everything is warm, to the last.
struct Meter {
    seen: u64,
    bytes: u64,
    next: u64,
    total: u64,
    first: Option<(u64, Mark)>,
    server_pid: u32,
    done: mpsc::SyncSender<Marks>,
}

/// How many messages had been seen at which moment.
struct Marks {
    first: (u64, Mark),
    last: (u64, Mark),
    bytes: u64,
}

impl Meter {
    fn is_running(&self) -> bool {
        self.seen < self.total
    }

    #[inline]
    fn add(&mut self, messages: usize, bytes: usize) {
        self.seen += messages as u64;
        self.bytes += bytes as u64;
        if self.seen >= self.next {
            self.mark();
        }
    }

    #[cold]
    fn mark(&mut self) {
        let here = (self.seen, Mark::now(self.server_pid));
        let first = *self.first.get_or_insert(here);
        self.next = self.total;
        if !self.is_running() {
            self.next = u64::MAX;
            // nobody listens any more when the run failed
            let _ = self.done.try_send(Marks {
                first,
                last: here,
                bytes: self.bytes,
            });
        }
    }
}

/// A meter on its way to the one handler that is made.
struct Lent(Mutex<Option<Meter>>);

impl Lent {
    fn take(&self) -> Meter {
        let meter = self.0.lock().take();
        meter.expect("one handler for the one partition")
    }
}
