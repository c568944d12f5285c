//! `streamlane dead-letters`: what failed for good, and what is done about it.

use std::time::SystemTime;

use serde::Serialize;
use streamlane::{
    Admin, DeadLetter, DeadLetterReason, DeadLetters as Letters, Replay, ReplayTo, StreamId,
};

use crate::{
    ask,
    end::{End, Failure, Result},
    open::Global,
    out::{Out, Table, cut, shown},
    place::{date, moment},
    text::{Bytes, insert},
};

/// So many letters are fetched at a time.
const PAGE: usize = 500;

/// Look at messages that failed for good, handle them once more, or delete them
///
///   streamlane dead-letters list orders billing --reason retries
///   streamlane dead-letters show orders billing 1726000000000-0
///   streamlane dead-letters replay orders billing --all --to everyone
///   streamlane dead-letters delete orders billing --all --until 30d
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct DeadLetters {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    List(List),
    Show(Show),
    Replay(ReplayThem),
    Delete(Delete),
}

#[derive(Debug, clap::Args)]
struct Of {
    /// The topic
    topic: String,
    /// The consumer that failed at them
    consumer: String,
}

impl Of {
    fn letters(&self, admin: &Admin, global: &Global) -> Letters {
        let letters = admin.dead_letters(&self.topic, &self.consumer);
        letters.timeout(global.timeout)
    }
}

#[derive(Debug, clap::Args)]
struct Which {
    /// Only of messages of this type
    #[arg(long = "type", value_name = "TYPE")]
    message_type: Option<String>,

    /// Only those that failed for this reason
    #[arg(long, value_name = "REASON", value_parser = reason)]
    reason: Option<DeadLetterReason>,

    /// Only of this partition
    #[arg(long, value_name = "N")]
    partition: Option<u32>,

    /// Only those written then or later: a date, or how long ago
    #[arg(long, value_name = "WHEN", value_parser = moment)]
    since: Option<SystemTime>,

    /// Only those written then or earlier
    #[arg(long, value_name = "WHEN", value_parser = moment)]
    until: Option<SystemTime>,

    /// Only those that were not replayed
    #[arg(long)]
    unreplayed: bool,
}

impl Which {
    fn of(&self, mut letters: Letters) -> Letters {
        if let Some(message_type) = &self.message_type {
            letters = letters.message_type(message_type.as_bytes());
        }
        if let Some(reason) = self.reason {
            letters = letters.reason(reason);
        }
        if let Some(partition) = self.partition {
            letters = letters.partition(partition);
        }
        if let Some(since) = self.since {
            letters = letters.since(since);
        }
        if let Some(until) = self.until {
            letters = letters.until(until);
        }
        if self.unreplayed {
            letters = letters.unreplayed();
        }
        letters
    }

    fn is_everything(&self) -> bool {
        let Self {
            message_type,
            reason,
            partition,
            since,
            until,
            unreplayed,
        } = self;
        message_type.is_none()
            && reason.is_none()
            && partition.is_none()
            && since.is_none()
            && until.is_none()
            && !unreplayed
    }
}

/// List them, the oldest first
///
///   streamlane dead-letters list orders billing --since 1d --unreplayed
///
/// With --json a line for each: "id", "topic", "consumer", "partition",
/// "first_id", "last_id", "first_failure", "last_failure", "attempts",
/// "deliveries", "reason", "error", "type", "key", "body" (or "body_hex" where it
/// is no UTF-8) and "replayed" (an id, or null).
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
struct List {
    #[command(flatten)]
    of: Of,
    #[command(flatten)]
    which: Which,

    /// So many at most
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,

    /// Only how many there are
    #[arg(long, conflicts_with = "limit")]
    count: bool,
}

/// Show one of them whole
///
///   streamlane dead-letters show orders billing 1726000000000-0
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
struct Show {
    #[command(flatten)]
    of: Of,
    /// The letter
    id: StreamId,
}

/// Have them handled once more
///
///   streamlane dead-letters replay orders billing --all --to everyone
///
/// `everyone` publishes the message again for all consumers of the topic;
/// `consumer` hands it to the one that failed at it alone, which has to be a
/// queue. A letter is never replayed twice.
///
/// With --json an object: "replayed", "before", "malformed", "payload_missing",
/// "gone".
#[derive(Debug, clap::Args)]
#[command(
    verbatim_doc_comment,
    override_usage = "streamlane dead-letters replay --to <WHOM> <TOPIC> <CONSUMER> [ID]..."
)]
struct ReplayThem {
    #[command(flatten)]
    of: Of,
    /// The letters
    #[arg(
        value_name = "ID",
        required_unless_present = "all",
        conflicts_with = "all"
    )]
    ids: Vec<StreamId>,
    /// All of them, or all that the filters leave
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    which: Which,

    /// Who is to be given them
    #[arg(long, value_enum, value_name = "WHOM")]
    to: Recipient,

    /// How many a second
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,

    /// Even those whose body was kept apart and is lost
    #[arg(long)]
    even_without_body: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Recipient {
    /// Every consumer of the topic
    Everyone,
    /// The consumer that failed
    Consumer,
}

/// Delete them for good
///
///   streamlane dead-letters delete orders billing --all --until 30d
///
/// With --json an object: "deleted".
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
struct Delete {
    #[command(flatten)]
    of: Of,
    /// The letters
    #[arg(
        value_name = "ID",
        required_unless_present = "all",
        conflicts_with = "all"
    )]
    ids: Vec<StreamId>,
    /// All of them, or all that the filters leave
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    which: Which,
}

#[derive(Serialize, Default)]
struct Outcome {
    replayed: u64,
    before: u64,
    malformed: u64,
    payload_missing: u64,
    gone: u64,
}

impl DeadLetters {
    pub(crate) fn run(&self, global: &Global) -> Result {
        let admin = global.admin()?;
        let mut out = Out::of(global);
        let end = match &self.what {
            What::List(list) => list.run(&admin, global, &mut out),
            What::Show(show) => show.run(&admin, global, &mut out),
            What::Replay(replay) => replay.run(&admin, global, &mut out),
            What::Delete(delete) => delete.run(&admin, global, &mut out),
        }?;
        out.flush()?;
        Ok(end)
    }
}

impl List {
    fn run(&self, admin: &Admin, global: &Global, out: &mut Out) -> Result {
        let letters = self.which.of(self.of.letters(admin, global));
        if self.count {
            let count = letters.count()?;
            out.object(&serde_json::json!({ "count": count }))?;
            out.line(count)?;
            return Ok(End::Done);
        }
        let (mut from, mut left) = (None, self.limit);
        let head = [
            ">partition",
            "id",
            "failed",
            "reason",
            ">handed over",
            "type",
            "key",
            "error",
            "replayed as",
        ];
        let mut table = Table::new(&head);
        loop {
            let page = letters.page(from, left.min(PAGE))?;
            left -= page.letters.len().min(left);
            for letter in &page.letters {
                out.object(&json(letter))?;
                table.row(row(letter));
            }
            from = page.next;
            if left == 0 || from.is_none() {
                break;
            }
        }
        if !out.is_json() {
            out.raw(table.to_string().as_bytes())?;
        }
        if from.is_some() {
            out.line(format_args!(
                "and more: --limit shows them, --count counts them"
            ))?;
        }
        Ok(End::Done)
    }
}

impl Show {
    fn run(&self, admin: &Admin, global: &Global, out: &mut Out) -> Result {
        let Some(letter) = self.of.letters(admin, global).show(self.id)? else {
            crate::stderr::say(format_args!("there is no dead letter {}", self.id));
            return Ok(End::Wrong);
        };
        out.object(&json(&letter))?;
        for (name, value) in whole(&letter) {
            out.line(format_args!("{name:14} {value}"))?;
        }
        Ok(End::Done)
    }
}

impl ReplayThem {
    fn run(&self, admin: &Admin, global: &Global, out: &mut Out) -> Result {
        refuse_filters(&self.ids, &self.which)?;
        let mut letters = self.which.of(self.of.letters(admin, global));
        if self.even_without_body {
            letters = letters.even_without_body();
        }
        let (to, whom) = match self.to {
            Recipient::Everyone => (
                ReplayTo::EveryConsumerOfTheTopic,
                "to every consumer of the topic",
            ),
            Recipient::Consumer => (ReplayTo::ThisConsumer, "to this consumer alone"),
        };
        let n = if self.all {
            letters.count()?
        } else {
            self.ids.len() as u64
        };
        let Of { topic, consumer } = &self.of;
        ask::before(
            global,
            &format!(
                "This hands {n} dead letter(s) of {consumer} on topic {topic} over once more, {whom}."
            ),
        )?;
        let mut done = Outcome::default();
        if self.all {
            let all = letters.replay_all(to, self.rate)?;
            done.replayed = all.replayed;
            done.before = all.before;
            done.malformed = all.malformed;
            done.payload_missing = all.payload_missing;
        }
        for id in &self.ids {
            match letters.replay(*id, to)? {
                Replay::Replayed(_) => done.replayed += 1,
                Replay::Before(_) => done.before += 1,
                Replay::Malformed => done.malformed += 1,
                Replay::PayloadMissing => done.payload_missing += 1,
                _ => done.gone += 1,
            }
        }
        out.show(&done, |d| {
            format!(
                "replayed {}, replayed before {}, no proper messages {}, bodies lost {}, not there {}",
                d.replayed, d.before, d.malformed, d.payload_missing, d.gone
            )
        })?;
        Ok(End::well(
            done.malformed + done.payload_missing + done.gone == 0,
        ))
    }
}

impl Delete {
    fn run(&self, admin: &Admin, global: &Global, out: &mut Out) -> Result {
        refuse_filters(&self.ids, &self.which)?;
        let letters = self.which.of(self.of.letters(admin, global));
        let n = if self.all {
            letters.count()?
        } else {
            self.ids.len() as u64
        };
        let Of { topic, consumer } = &self.of;
        ask::before(
            global,
            &format!("This deletes {n} dead letter(s) of {consumer} on topic {topic} for good."),
        )?;
        let deleted = if self.all {
            letters.delete_all()?
        } else {
            letters.delete(&self.ids)?
        };
        out.object(&serde_json::json!({ "deleted": deleted }))?;
        out.line(format_args!("deleted {deleted}"))?;
        Ok(End::well(self.all || deleted == n))
    }
}

/// Ids are what they are: a filter beside them would be taken for a condition that nobody heeds.
fn refuse_filters(ids: &[StreamId], which: &Which) -> Result<()> {
    if ids.is_empty() || which.is_everything() {
        return Ok(());
    }
    Err(Failure::usage(
        "filters choose among all: give ids, or --all with filters",
    ))
}

fn row(letter: &DeadLetter) -> Vec<String> {
    let text = |bytes: Option<&[u8]>| bytes.map_or(String::new(), |b| cut(&shown(b), 24));
    vec![
        letter.partition.to_string(),
        letter.id.to_string(),
        date(letter.last_failure),
        letter.reason.map_or("?", DeadLetterReason::as_str).into(),
        letter.deliveries.to_string(),
        text(letter.message_type()),
        text(letter.key()),
        cut(&shown(letter.error.as_bytes()), 60),
        letter.replayed.map_or(String::new(), |r| r.id.to_string()),
    ]
}

fn whole(letter: &DeadLetter) -> Vec<(&'static str, String)> {
    let text = |bytes: Option<&[u8]>| bytes.map_or("(none)".into(), shown);
    vec![
        ("id", letter.id.to_string()),
        ("partition", letter.partition.to_string()),
        ("published as", letter.first_id.to_string()),
        ("failed as", letter.last_id.to_string()),
        ("failed first", date(letter.first_failure)),
        ("failed last", date(letter.last_failure)),
        (
            "handed over",
            format!(
                "{}, {} of these by policy",
                letter.deliveries, letter.attempts
            ),
        ),
        (
            "reason",
            letter.reason.map_or("?", DeadLetterReason::as_str).into(),
        ),
        ("error", shown(letter.error.as_bytes())),
        ("type", text(letter.message_type())),
        ("key", text(letter.key())),
        (
            "replayed as",
            letter.replayed.map_or("not replayed".into(), |r| {
                format!("{} {}", r.id, date(r.at))
            }),
        ),
        ("body", text(letter.body())),
    ]
}

fn json(letter: &DeadLetter) -> serde_json::Value {
    let mut object = serde_json::json!({
        "id": letter.id.to_string(),
        "topic": letter.topic,
        "consumer": letter.consumer,
        "partition": letter.partition,
        "first_id": letter.first_id.to_string(),
        "last_id": letter.last_id.to_string(),
        "first_failure": date(letter.first_failure),
        "last_failure": date(letter.last_failure),
        "attempts": letter.attempts,
        "deliveries": letter.deliveries,
        "reason": letter.reason.map(DeadLetterReason::as_str),
        "error": letter.error,
        "replayed": letter.replayed.map(|r| r.id.to_string()),
    });
    for (name, value) in [
        ("type", letter.message_type()),
        ("key", letter.key()),
        ("body", letter.body()),
    ] {
        insert(&mut object, name, value.map(Bytes));
    }
    object
}

fn reason(text: &str) -> std::result::Result<DeadLetterReason, String> {
    use DeadLetterReason::{Deliveries, Handler, Malformed, PayloadMissing, Retries};
    let all = [Retries, Deliveries, Handler, Malformed, PayloadMissing];
    let found = all.into_iter().find(|r| r.as_str() == text);
    found.ok_or_else(|| format!("one of {}", all.map(DeadLetterReason::as_str).join(", ")))
}
