//! `streamlane bench`: what a server and the way to it are good for, in figures.

use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use serde::Serialize;
use streamlane::{
    Command, HandlerResult, Message, Outgoing, Publisher, Streams, TopicSettings,
    testing::{eventually, now_ns},
};

use crate::{
    demo::{grouped, keys_of},
    end::{End, Failure, Result},
    known,
    open::Global,
    out::{Out, Table},
    stderr::with_progress,
};

const CONSUMER: &str = "bench";

/// Measure publishing and handling on this server, in a few seconds
///
///   streamlane bench
///   streamlane bench --messages 200000 --size 1000 --partitions 8
///
/// It publishes one message at a time, then in batches, to a topic of its own,
/// whose name is new, and handles all of them. The topic is removed at the end; a
/// run that is interrupted leaves it behind, under keys with `{bench-`.
///
/// With --json an object: "messages", "size", "partitions", "single" and "batches"
/// (each with "messages", "per_s", "p50_us", "p99_us"), "handled" ("messages",
/// "per_s").
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Bench {
    /// How many messages
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1000..=5_000_000))]
    messages: u32,

    /// How many bytes each body has
    #[arg(long, value_name = "BYTES", default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=1_048_576))]
    size: u32,

    /// How many partitions
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    partitions: u32,

    /// How many messages are published at once, in batches
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=5000))]
    batch: u32,
}

#[derive(Serialize)]
struct Figures {
    messages: u32,
    size: u32,
    partitions: u32,
    single: Published,
    batches: Published,
    handled: Handled,
}

#[derive(Serialize)]
struct Published {
    messages: u64,
    per_s: u64,
    p50_us: u64,
    p99_us: u64,
}

#[derive(Serialize)]
struct Handled {
    messages: u64,
    per_s: u64,
}

impl Bench {
    pub(crate) fn run(&self, global: &Global) -> Result {
        let topic = format!("bench-{:016x}", RandomState::new().hash_one(0));
        let settings = global.settings()?.with_topic(
            &topic,
            TopicSettings::default()
                .partitions(self.partitions)
                .max_len(u64::from(self.messages)),
        );
        let streams = Streams::open(settings)?;
        let figures = self.measure(&streams, &topic);
        let removed = remove(&streams, &topic, self.partitions, global.timeout);
        let figures = figures?;
        let mut out = Out::of(global);
        out.object(&figures)?;
        if !out.is_json() {
            out.raw(table(&figures).to_string().as_bytes())?;
        }
        out.flush()?;
        removed.map_err(|e| Failure::failed(format!("topic {topic} could not be removed: {e}")))?;
        Ok(End::Done)
    }

    fn measure(&self, streams: &Streams, topic: &str) -> Result<Figures> {
        let publisher = streams.publisher(topic)?;
        let done = AtomicU64::new(0);
        let all = u64::from(self.messages);
        let singles = (all / 10).min(5_000);
        let progress = || {
            let done = done.load(Relaxed);
            let (what, n) = if done < all {
                ("published", done)
            } else {
                ("handled", done - all)
            };
            format!("{what} {} of {}", grouped(n), grouped(all))
        };
        with_progress(progress, || {
            let single = self.publish(&publisher, singles, 1, &done)?;
            let batches = self.publish(&publisher, all - singles, self.batch as usize, &done)?;
            let handled = drain(streams, topic, all, &done)?;
            Ok(Figures {
                messages: self.messages,
                size: self.size,
                partitions: self.partitions,
                single,
                batches,
                handled,
            })
        })?
    }

    fn publish(
        &self,
        publisher: &Publisher,
        n: u64,
        at_once: usize,
        done: &AtomicU64,
    ) -> Result<Published> {
        let mut link = publisher.dedicated();
        let body = vec![b'.'; self.size as usize];
        let keys: Vec<_> = (0..64).map(|k| format!("key-{k}")).collect();
        let (mut took, mut results) = (Vec::new(), Vec::new());
        let (began, mut next) = (now_ns(), 0);
        while next < n {
            let some = at_once.min(usize::try_from(n - next).unwrap_or(at_once));
            let key = |i| &keys[usize::try_from(next).unwrap_or(0).wrapping_add(i) % keys.len()];
            let call = now_ns();
            if at_once == 1 {
                results.push(link.publish(key(0), "Bench", &body));
            } else {
                let messages = (0..some).map(|i| Outgoing::new("Bench", &body).key(key(i)));
                let messages: Vec<_> = messages.collect();
                link.publish_batch_into(&messages, &mut results);
            }
            took.push(now_ns() - call);
            for result in results.drain(..) {
                result?;
            }
            next += some as u64;
            done.fetch_add(some as u64, Relaxed);
        }
        let seconds = Duration::from_nanos(now_ns() - began).as_secs_f64();
        took.sort_unstable();
        let at = |percent: usize| took[(took.len() * percent / 100).min(took.len() - 1)] / 1000;
        Ok(Published {
            messages: n,
            per_s: rate(n, seconds),
            p50_us: at(50),
            p99_us: at(99),
        })
    }
}

/// Handles all there is.
fn drain(streams: &Streams, topic: &str, all: u64, done: &AtomicU64) -> Result<Handled> {
    let began = now_ns();
    let consumer = streams.consumer(topic).name(CONSUMER).batch_size(1000);
    let consumer = consumer.messages(|_| |_: &Message<'_>| -> HandlerResult { Ok(()) });
    let consumer = consumer.start()?;
    let handled = || consumer.partitions().iter().map(|p| p.handled).sum::<u64>();
    let finished = eventually(Duration::from_mins(5), || {
        done.store(all + handled(), Relaxed);
        handled() >= all
    });
    let seconds = Duration::from_nanos(now_ns() - began).as_secs_f64();
    if !finished {
        return Err(Failure::failed(format!(
            "only {} of {all} were handled within 5 minutes",
            handled()
        )));
    }
    drop(consumer);
    Ok(Handled {
        messages: all,
        per_s: rate(all, seconds),
    })
}

fn remove(streams: &Streams, topic: &str, partitions: u32, timeout: Duration) -> Result<()> {
    let keys = keys_of(known::prefix(streams), topic, CONSUMER, partitions);
    let unlink = keys.iter().fold(Command::new("UNLINK"), Command::key);
    let listed = format!("{}topics", known::prefix(streams));
    let unlist = Command::new("ZREM").key(listed).arg(topic);
    for answer in streams
        .admin()
        .session()?
        .call_all(&[unlink, unlist], timeout)?
    {
        answer?;
    }
    Ok(())
}

#[expect(
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "figures for people"
)]
fn rate(n: u64, seconds: f64) -> u64 {
    (n as f64 / seconds.max(1e-9)) as u64
}

fn table(f: &Figures) -> Table {
    let us = |us: u64| format!("{us} µs");
    let published = |what: &str, p: &Published| {
        let numbers = [p.messages, p.per_s].map(grouped);
        let [messages, per_s] = numbers;
        vec![what.to_owned(), messages, per_s, us(p.p50_us), us(p.p99_us)]
    };
    let handled = [f.handled.messages, f.handled.per_s].map(grouped);
    let [messages, per_s] = handled;
    Table::rows(
        &["", ">messages", ">a second", ">a call, p50", ">p99"],
        [
            published("published one at a time", &f.single),
            published("published in batches", &f.batches),
            vec![
                "handled".into(),
                messages,
                per_s,
                String::new(),
                String::new(),
            ],
        ],
    )
}
