//! `streamlane demo`: publishes, handles, measures, and proves that nothing went wrong.

mod figures;
mod handle;
mod plan;
mod publish;
mod server;
mod text;
mod verify;

use std::{
    error::Error,
    hash::{BuildHasher, RandomState},
    io::{self, Write},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crossbeam_channel::{Receiver, unbounded};
use streamlane::{Consumer, Settings, Streams, TopicSettings, testing::now_ns};

pub(crate) use self::text::grouped;
use self::{
    figures::{Figures, PhaseFigures, Position},
    handle::{Log, Recording},
    plan::{PARTITIONS, Phase, Plan},
    publish::Publishers,
    server::Server,
    verify::{Break, verify},
};
use crate::stderr::{say, with_progress};

/// The name of the demo's consumer.
const CONSUMER: &str = "demo";
/// How long handling may go on after publishing has ended.
const PATIENCE: Duration = Duration::from_mins(2);

/// Publish a million messages, handle them, and prove that all went well
///
/// Two threads publish to a topic of four partitions while four lanes handle it:
/// first one message at a time, which shows the latency of a blocking publish,
/// then in batches, which shows how much goes through. Afterwards every single
/// message is accounted for: each must have been handled exactly once, under the
/// id its publish returned, and in the order in which its key was published; and
/// the positions stored in Redis must be those of the last messages handled.
///
/// Without --url it starts a redis-server of its own on a unix socket, which
/// keeps nothing and is gone afterwards (`STREAMLANE_TEST_SERVER` names another
/// server program, such as valkey-server).
///
/// With --url it needs some 150 bytes of the server's memory a message, since
/// nothing is trimmed. The topic's name T is new in every run, and these keys
/// are deleted at the end:
///
///   re:m:{T}            what the topic is
///   re:c:{T}            who consumes it
///   re:s:{T}:0 .. 3     the messages
///   re:p:{T}:demo       positions (and re:p:{T}:demo:meta)
///   re:o:{T}:demo       who handles what
///
/// A run that is interrupted leaves them behind.
///
/// Exit status: 0 all is well, 1 something went wrong with the messages, 2 the
/// demo could not be run.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Demo {
    /// How many messages to publish
    #[arg(long, value_name = "N", default_value_t = 1_000_000,
          value_parser = clap::value_parser!(u32).range(1..=50_000_000))]
    messages: u32,

    /// How many of them one at a time, first
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    blocking: u32,

    /// A server to use instead of one of its own
    ///
    /// Such as `redis://:password@host:6379/0` or `unix:///path`.
    #[arg(long, verbatim_doc_comment)]
    url: Option<String>,

    /// Leave the topic on the server, to be looked at
    #[arg(long, requires = "url")]
    keep: bool,

    /// Print the figures as one JSON object
    #[arg(long)]
    json: bool,

    /// Spoil what was recorded, to see that it is found
    #[arg(long, hide = true, value_name = "HOW")]
    break_it: Option<Break>,
}

impl Demo {
    /// Whether everything went as it should.
    pub(crate) fn run(&self) -> Result<bool, Box<dyn Error>> {
        let server = Server::open(self.url.as_deref())?;
        let topic = format!("demo-{:016x}", RandomState::new().hash_one(0));
        let figures = self.measure(&server, &topic);
        let deleted = if server.is_private() || self.keep {
            Ok(())
        } else {
            server.delete(&topic, &keys_of("re:", &topic, CONSUMER, PARTITIONS))
        };
        let figures = figures?;
        let mut out = io::stdout().lock();
        if self.json {
            writeln!(out, "{}", serde_json::to_string(&figures)?)?;
        } else {
            write!(out, "{figures}")?;
        }
        deleted.map_err(|e| format!("topic {topic} could not be deleted: {e}"))?;
        Ok(figures.ok)
    }

    fn measure(&self, server: &Server, topic: &str) -> Result<Figures, Box<dyn Error>> {
        let began_ns = now_ns();
        let messages = self.messages as usize;
        let plan = Plan {
            messages,
            singles: messages.min(self.blocking as usize),
        };
        let settings = Settings::default()
            .connection_string(server.url())
            .with_topic(
                topic,
                TopicSettings::default()
                    .partitions(PARTITIONS)
                    .max_len(messages as u64),
            );
        let streams = Streams::open(settings)?;
        let mut figures = Figures::new(server.describe()?, topic.to_owned(), plan);
        let (consumer, logs) = consume(&streams, topic, plan)?;
        let mut publishers = Publishers::new(&streams.publisher(topic)?, plan);

        let published = AtomicU64::new(0);
        let progress = || progress(plan, &published, &consumer);
        let timings = with_progress(progress, || -> io::Result<_> {
            let single = publishers.run(plan, Phase::Single, &published)?;
            let batches = publishers.run(plan, Phase::Batches, &published)?;
            // Everything counts from here on, so what is missing is found below.
            if let Err(e) = consumer.drain(PATIENCE) {
                say(format_args!("error: {e}"));
            }
            Ok([(Phase::Single, single), (Phase::Batches, batches)])
        })??;
        drop(consumer);
        for error in publishers.sent.iter().filter_map(|s| s.error.as_ref()) {
            say(format_args!("error: {error}"));
        }

        let mut logs = by_partition(&logs);
        if let Some(how) = self.break_it {
            how.apply(&mut logs);
        }
        for (phase, timing) in timings {
            figures
                .phases
                .extend(PhaseFigures::of(plan, phase, timing, &logs));
        }
        let stored = server.positions(&positions_key(topic), PARTITIONS);
        let stored = stored.unwrap_or_else(|e| {
            say(format_args!("error: stored positions cannot be read: {e}"));
            vec![None; PARTITIONS as usize]
        });
        figures.positions = (logs.iter().zip(stored).enumerate())
            .map(|(p, (log, stored))| Position::of(p, log, stored))
            .collect();
        let sent: Vec<_> = publishers.sent.iter().map(|s| &s.ids[..]).collect();
        figures.verdict = verify(&sent, &logs);
        figures.ok = figures.verdict.is_clean() && figures.positions.iter().all(|p| p.matches);
        figures.seconds = Duration::from_nanos(now_ns() - began_ns).as_secs_f64();
        Ok(figures)
    }
}

/// Starts the lanes; their logs arrive when they end.
fn consume(
    streams: &Streams,
    topic: &str,
    plan: Plan,
) -> streamlane::Result<(Consumer, Receiver<(u32, Log)>)> {
    let (to, logs) = unbounded();
    let consumer = streams
        .consumer(topic)
        .name(CONSUMER)
        .batch_size(plan::BATCH as u32)
        .messages(move |partition| Recording::new(partition, plan, to.clone()))
        .start()?;
    Ok((consumer, logs))
}

fn by_partition(logs: &Receiver<(u32, Log)>) -> Vec<Log> {
    let mut sorted = vec![Log::new(); PARTITIONS as usize];
    for (partition, log) in logs.try_iter() {
        sorted[partition as usize].extend(log);
    }
    sorted
}

fn progress(plan: Plan, published: &AtomicU64, consumer: &Consumer) -> String {
    let published = published.load(Ordering::Relaxed) as usize;
    let handled: u64 = consumer.partitions().iter().map(|p| p.handled).sum();
    let how = match published {
        n if n < plan.singles => "one at a time",
        n if n < plan.messages => "in batches",
        _ => "handling the rest",
    };
    let percent = handled * 100 / plan.messages as u64;
    format!(
        "{percent:3}%  published {:>10}  handled {:>10}  {how}",
        grouped(published as u64),
        grouped(handled)
    )
}

fn positions_key(topic: &str) -> String {
    format!("re:p:{{{topic}}}:{CONSUMER}")
}

/// All that a topic leaves on its server that one ordered consumer has read.
pub(crate) fn keys_of(prefix: &str, topic: &str, consumer: &str, partitions: u32) -> Vec<String> {
    let mut keys: Vec<_> = ["m", "c", "dl", "di"]
        .map(|kind| format!("{prefix}{kind}:{{{topic}}}"))
        .into();
    keys.extend(["p", "o", "e"].map(|kind| format!("{prefix}{kind}:{{{topic}}}:{consumer}")));
    keys.push(format!("{prefix}p:{{{topic}}}:{consumer}:meta"));
    keys.extend((0..partitions).map(|p| format!("{prefix}s:{{{topic}}}:{p}")));
    keys
}
