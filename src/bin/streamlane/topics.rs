//! `streamlane topics`: which there are, and what becomes of them.

use std::fmt::Write;

use serde_json::json;
use streamlane::{Admin, TopicDescription, TopicSettings};

use crate::{
    ask,
    demo::grouped,
    end::{End, Failure, Result},
    open::Global,
    out::{Out, Table, shown, shown_lines},
    place::date,
    status::id,
    stderr::{say, with_progress},
};

/// So many are fetched at a time.
const PAGE: usize = 1000;

/// List, describe, make, enlarge and delete topics
///
///   streamlane topics list
///   streamlane topics describe orders
///   streamlane topics create orders --partitions 8 --max-len 1000000
///   streamlane topics grow orders 16
///   streamlane topics delete orders
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Topics {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    List(List),
    Describe(Describe),
    Create(Create),
    Grow(Grow),
    Delete(Delete),
    Adopt(Adopt),
}

/// List the topics there are, by name
///
///   streamlane topics list
///
/// These are the topics that this library has used, or that were adopted.
///
/// With --json a line for each: "topic".
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
struct List {}

/// Describe a topic: its partitions and who reads it
///
///   streamlane topics describe orders
///
/// Status 1 when there is none.
///
/// With --json an object: "topic", "recorded", "listed", "co_located", "created",
/// "partitioner", "max_len", "delayed", "entries", "memory", "consumers" (each with
/// "name", "is_group", "registered"), "partitions" (each with "partition", "key",
/// "exists", "length", "first", "last", "added", "groups", "memory").
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
struct Describe {
    /// The topic
    topic: String,
}

/// Make a topic
///
///   streamlane topics create orders --partitions 8 --max-len 1000000
///
/// Status 1 when it is there already; it is left as it is.
///
/// With --json an object: "topic", "created".
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
struct Create {
    /// The topic
    topic: String,
    /// How many partitions
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    partitions: Option<u32>,
    /// How many messages a partition keeps, by what is on record; publishers have their own settings
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_len: Option<u64>,
}

/// Give a topic more partitions
///
///   streamlane topics grow orders 16
///
/// Keys that move to another partition are not kept in order across the change.
/// A topic never shrinks.
///
/// With --json an object: "topic", "before", "partitions".
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
struct Grow {
    /// The topic
    topic: String,
    /// How many partitions it is to have
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65536))]
    partitions: u32,
}

/// Delete a topic with all that belongs to it
///
///   streamlane topics delete orders
///
/// Shows what would go and what would stay, and asks. Stop who publishes to it and
/// who reads it first. All keys of the server are looked through.
///
/// With --json an object: "topic", "partitions", "entries", "pending", "keys",
/// "deleted", "kept" (lists of objects with "kind" and "keys").
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
struct Delete {
    /// The topic
    topic: String,
    /// Delete the dead letters of its consumers, too
    #[arg(long)]
    dead_letters: bool,
    /// Delete it even while it is read
    #[arg(long)]
    force: bool,
}

/// Look through all keys for topics that are on no list, and list them
///
///   streamlane topics adopt
///
/// Such as topics of services in other languages.
///
/// With --json a line for each that is listed now: "topic".
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
struct Adopt {}

impl Topics {
    pub(crate) fn run(&self, global: &Global) -> Result {
        let admin = global.admin()?;
        let mut out = Out::of(global);
        let end = match &self.what {
            What::List(_) => {
                for topic in all(&admin)? {
                    name(&mut out, &topic)?;
                }
                Ok(End::Done)
            }
            What::Describe(describe) => describe.run(&admin, &mut out),
            What::Create(create) => create.run(&admin, &mut out),
            What::Grow(grow) => grow.run(&admin, &mut out),
            What::Delete(delete) => delete.run(&admin, global, &mut out),
            What::Adopt(_) => {
                let found =
                    with_progress(|| "looking through the keys".to_owned(), || admin.adopt())?;
                for topic in found? {
                    name(&mut out, &topic)?;
                }
                Ok(End::Done)
            }
        }?;
        out.flush()?;
        Ok(end)
    }
}

/// The names of all topics.
pub(crate) fn all(admin: &Admin) -> Result<Vec<String>> {
    let (mut topics, mut after) = (Vec::new(), None);
    loop {
        let page = admin.topics(after.as_deref(), PAGE)?;
        topics.extend(page.topics);
        after = page.next;
        if after.is_none() {
            return Ok(topics);
        }
    }
}

fn name(out: &mut Out, topic: &str) -> Result<()> {
    out.object(&json!({ "topic": topic }))?;
    out.line(shown(topic.as_bytes()))
}

impl Describe {
    fn run(&self, admin: &Admin, out: &mut Out) -> Result {
        let Some(topic) = admin.describe(&self.topic)? else {
            say(format_args!("there is no topic {:?}", self.topic));
            return Ok(End::Wrong);
        };
        out.object(&object(&topic))?;
        if !out.is_json() {
            out.raw(text(&topic).as_bytes())?;
        }
        Ok(End::Done)
    }
}

impl Create {
    fn run(&self, admin: &Admin, out: &mut Out) -> Result {
        let mut settings = TopicSettings::default();
        if let Some(n) = self.partitions {
            settings = settings.partitions(n);
        }
        if let Some(n) = self.max_len {
            settings = settings.max_len(n);
        }
        let created = admin.create(&self.topic, settings)?;
        out.object(&json!({ "topic": self.topic, "created": created }))?;
        out.line(if created {
            "made"
        } else {
            "it is there already, and was left as it is"
        })?;
        Ok(End::well(created))
    }
}

impl Grow {
    fn run(&self, admin: &Admin, out: &mut Out) -> Result {
        let before = admin.grow(&self.topic, self.partitions)?;
        let now = self.partitions;
        out.object(&json!({ "topic": self.topic, "before": before, "partitions": now }))?;
        out.line(format_args!("{before} partitions before, {now} now"))?;
        Ok(End::Done)
    }
}

impl Delete {
    fn run(&self, admin: &Admin, global: &Global, out: &mut Out) -> Result {
        let mut delete = admin.delete(&self.topic).timeout(global.timeout);
        if self.dead_letters {
            delete = delete.dead_letters();
        }
        if self.force {
            delete = delete.force();
        }
        let looking = || "looking through the keys".to_owned();
        let preview = with_progress(looking, || delete.preview())??;
        if preview.partitions == 0 && preview.keys() == 0 {
            say(format_args!("there is no topic {:?}", self.topic));
            return Ok(End::Wrong);
        }
        out.line(shown_lines(&preview.to_string()))?;
        if !self.force && !preview.alive.is_empty() {
            out.flush()?;
            return Err(Failure::failed(format!(
                "{} is in use: stop who reads it, or say --force",
                self.topic
            )));
        }
        out.flush()?;
        ask::before(
            global,
            &format!(
                "This deletes topic {} with {} entries for good.",
                self.topic,
                grouped(preview.entries)
            ),
        )?;
        let keys = with_progress(|| "deleting".to_owned(), || delete.apply())??;
        let kinds = |all: &[(String, u64)]| -> Vec<_> {
            let kind = |(kind, n): &(String, u64)| json!({ "kind": kind, "keys": n });
            all.iter().map(kind).collect()
        };
        out.object(&json!({
            "topic": preview.topic,
            "partitions": preview.partitions,
            "entries": preview.entries,
            "pending": preview.pending,
            "keys": keys,
            "deleted": kinds(&preview.deleted),
            "kept": kinds(&preview.kept),
        }))?;
        out.line(format_args!("{keys} keys were deleted"))?;
        Ok(End::Done)
    }
}

fn object(t: &TopicDescription) -> serde_json::Value {
    let text = |id: Option<streamlane::StreamId>| id.map(|id| id.to_string());
    let partition = |p: &streamlane::PartitionDescription| {
        json!({
            "partition": p.partition,
            "key": p.key,
            "exists": p.exists,
            "length": p.length,
            "first": text(p.first),
            "last": text(p.last),
            "added": p.added,
            "groups": p.groups,
            "memory": p.memory,
        })
    };
    let consumer = |c: &streamlane::TopicConsumer| json!({ "name": c.name, "is_group": c.is_group, "registered": c.registered });
    json!({
        "topic": t.topic,
        "recorded": t.recorded,
        "listed": t.listed,
        "co_located": t.co_located,
        "created": t.created.map(date),
        "partitioner": t.partitioner,
        "max_len": t.max_len,
        "delayed": t.delayed,
        "entries": t.entries(),
        "memory": t.memory(),
        "consumers": t.consumers.iter().map(consumer).collect::<Vec<_>>(),
        "partitions": t.partitions.iter().map(partition).collect::<Vec<_>>(),
    })
}

fn text(t: &TopicDescription) -> String {
    let unknown = || "?".to_owned();
    let mut lines = format!(
        "{}: {} partitions, {} entries, {} bytes of memory, {} delayed\n",
        shown(t.topic.as_bytes()),
        t.partitions.len(),
        grouped(t.entries()),
        t.memory().map_or_else(unknown, grouped),
        grouped(t.delayed),
    );
    let _ = writeln!(
        lines,
        "made {}, max length {}, partitioner {}{}{}",
        t.created.map_or_else(unknown, date),
        t.max_len.map_or_else(unknown, grouped),
        t.partitioner.as_deref().unwrap_or("xxh3"),
        if t.recorded { "" } else { ", WITHOUT METADATA" },
        if t.listed {
            ""
        } else {
            ", on no list (topics adopt)"
        },
    );
    let consumers: Vec<_> = (t.consumers.iter())
        .map(|c| {
            format!(
                "{}{}",
                shown(c.name.as_bytes()),
                if c.is_group { " (a group)" } else { "" }
            )
        })
        .collect();
    let _ = writeln!(
        lines,
        "read by {}",
        if consumers.is_empty() {
            "nobody".into()
        } else {
            consumers.join(", ")
        }
    );
    let rows = t.partitions.iter().map(|p| {
        vec![
            p.partition.to_string(),
            if p.exists {
                grouped(p.length)
            } else {
                "no stream".into()
            },
            grouped(p.added),
            id(p.first),
            id(p.last),
            p.groups.to_string(),
            p.memory.map_or_else(unknown, grouped),
        ]
    });
    let head = [
        ">partition",
        ">length",
        ">ever added",
        "first",
        "last",
        ">groups",
        ">memory",
    ];
    lines + &Table::rows(&head, rows).to_string()
}
