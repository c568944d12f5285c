//! From publishing to the handler, at a fixed rate that nobody can slow down.

use std::{
    sync::{
        atomic::{AtomicU32, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use rustix::net::RecvFlags;
use streamlane::{LaneState, Message, StartFrom, testing::eventually};

use crate::{
    Bench, Outcome, drain,
    figures::{Way, compare},
    floor::{Request, fields, stream, xadd},
    machine::{Mark, now_ns, sleep_until, wake_on_time},
};

pub(crate) const TOPIC: &str = "latency";

/// Messages a second.
const RATE: u64 = 10_000;
/// How long a spinning lane polls its socket before it sleeps.
const SPIN: Duration = Duration::from_micros(100);
/// Lines in the answer to an XADD.
const LINES: u64 = 2;
/// After this long without an end something is broken.
const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) fn measure(bench: &Bench) -> Outcome<()> {
    for &size in &bench.options.bodies {
        let title = format!("publish to handler: {size} B, {RATE} messages/s");
        let columns = ["p50 us", "p99 us", "publisher and reader CPU us/msg"];
        let ways = vec![
            Way::floor("bare socket", || floor(bench, size)),
            Way::new("message handler", || lane(bench, size, Duration::ZERO)),
            Way::new("message handler, spinning", || lane(bench, size, SPIN)),
        ];
        compare(&bench.options, &title, &columns, ways)?;
    }
    Ok(())
}

fn floor(bench: &Bench, size: usize) -> Outcome<Vec<f64>> {
    let mut cursor = newest(bench, size)?.into_bytes();
    let (mut wire, mut request) = (bench.wire()?, Request::new(&stream(TOPIC), 100));
    let mut times = Times::new(bench.options.paced)?;
    let give_up = now_ns() + PATIENCE.as_nanos() as u64;
    thread::scope(|s| {
        let reader = s.spawn(move || -> Outcome<Times> {
            while times.left > 0 {
                wire.send(request.after(&cursor))?;
                if wire.entries(&mut cursor, |body| times.add(body))? == 0 && now_ns() > give_up {
                    return Err("nothing arrives any more".into());
                }
            }
            Ok(times)
        });
        let used = publish(bench, size)?;
        let times = reader.join().map_err(|_| "the reader panicked")??;
        Ok(times.figures(used))
    })
}

fn lane(bench: &Bench, size: usize, spin: Duration) -> Outcome<Vec<f64>> {
    static NTH: AtomicU32 = AtomicU32::new(0);
    newest(bench, size)?;
    let (done, all) = mpsc::sync_channel(1);
    let lent = Mutex::new(Some(Times::new(bench.options.paced)?));
    let consumer = bench
        .streams
        .consumer(TOPIC)
        .name(format!("latency-{}", NTH.fetch_add(1, Relaxed)))
        .start_from(StartFrom::Now)
        .spin(spin)
        .messages(move |_| {
            let times = lent.lock().take();
            let mut times = times.expect("one handler for the one partition");
            let done = done.clone();
            move |m: &Message<'_>| {
                times.add(m.body());
                if times.left == 0 {
                    let _ = done.try_send(times.clone());
                }
                Ok(())
            }
        })
        .start()?;
    if !eventually(PATIENCE, || {
        consumer.partitions()[0].state == LaneState::Running
    }) {
        return Err("the lane does not run".into());
    }
    let used = publish(bench, size)?;
    let figures = all.recv_timeout(PATIENCE)?.figures(used);
    consumer.stop();
    Ok(figures)
}

/// Adds a message, and returns its id.
fn newest(bench: &Bench, size: usize) -> Outcome<String> {
    let (key, body) = (stream(TOPIC), drain::body(size));
    let head: [&[u8]; 3] = [b"XADD", key.as_bytes(), b"*"];
    let id = bench
        .server
        .command(&[&head[..], &fields(&body)].concat())?;
    Ok(id.text())
}

/// Publishes at the rate, each message with the time in its first bytes. Returns the microseconds of CPU
/// that this process used meanwhile.
fn publish(bench: &Bench, size: usize) -> Outcome<f64> {
    thread::scope(|s| {
        let publisher = s.spawn(|| -> Outcome<f64> {
            wake_on_time();
            let mut wire = bench.wire()?;
            let body = drain::body(size);
            let mut bytes = xadd(TOPIC, &body);
            let stamp = place_of(&body, &bytes).ok_or("no body in the command")?;
            let before = Mark::now(bench.server_pid()?);
            let start = now_ns();
            let mut answered = 0;
            for i in 0..bench.options.paced {
                sleep_until(start + i * 1_000_000_000 / RATE);
                bytes[stamp..stamp + 8].copy_from_slice(&now_ns().to_le_bytes());
                wire.send(&bytes)?;
                answered += wire.line_ends(RecvFlags::DONTWAIT)?;
            }
            // hanging up earlier would take back what the server has not looked at yet
            while answered < bench.options.paced * LINES {
                answered += wire.line_ends(RecvFlags::empty())?;
            }
            let after = Mark::now(bench.server_pid()?);
            Ok((after.client - before.client) as f64 / 1e3)
        });
        publisher.join().map_err(|_| "the publisher panicked")?
    })
}

fn place_of(part: &[u8], whole: &[u8]) -> Option<usize> {
    whole.windows(part.len()).position(|w| w == part)
}

/// How long messages took, and how many are still to come.
#[derive(Clone)]
struct Times {
    took: Histogram<u64>,
    left: u64,
}

impl Times {
    fn new(messages: u64) -> Outcome<Self> {
        Ok(Self {
            took: Histogram::new(3)?,
            left: messages,
        })
    }

    fn add(&mut self, body: &[u8]) {
        let sent = body.first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        // never fails: it grows
        let _ = self.took.record(now_ns().saturating_sub(sent));
        self.left -= 1;
    }

    fn figures(&self, used_us: f64) -> Vec<f64> {
        let at = |q| self.took.value_at_quantile(q) as f64 / 1e3;
        vec![at(0.5), at(0.99), used_us / self.took.len() as f64]
    }
}
