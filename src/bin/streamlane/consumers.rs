//! `streamlane consumers`: who reads a topic, and to forget who does not any more.

use serde_json::json;
use streamlane::{Admin, ConsumerInfo, ConsumerKind, Forgotten};

use crate::{
    ask,
    end::{End, Failure, Result},
    open::Global,
    out::{Out, Table, shown, shown_lines},
    place::{date, span},
    status::{id, number},
    stderr::{say, with_progress},
};

/// List who reads a topic, and forget who does not any more
///
///   streamlane consumers list orders
///   streamlane consumers forget orders old-billing
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Consumers {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    List(List),
    Forget(Forget),
}

/// List who reads a topic, or did once
///
///   streamlane consumers list orders
///
/// Behind is how much older what it has finished is than the newest message.
///
/// With --json a line for each: "name", "keeps" (positions, group or nothing),
/// "registered", "members" (how many live), "finished", "behind_ms", "unread",
/// "pending", "last_seen", "dead_letters".
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
struct List {
    /// The topic
    topic: String,

    /// Look through all keys for those of services in other languages, too
    #[arg(long)]
    all: bool,
}

/// Forget a consumer that nobody uses any more: its positions, claims and groups
///
///   streamlane consumers forget orders old-billing
///
/// Shows what would go, and asks. Nothing is kept for it from then on. One that
/// lives is not forgotten unless --force is said.
///
/// Status 1 when there is nothing to forget.
///
/// With --json an object: "keys", "groups" (partitions), "pending", "waiting",
/// "dead_letters".
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
struct Forget {
    /// The topic
    topic: String,
    /// The consumer
    consumer: String,
    /// Delete its dead letters, too
    #[arg(long)]
    dead_letters: bool,
    /// Do it even while it lives
    #[arg(long)]
    force: bool,
}

impl Consumers {
    pub(crate) fn run(&self, global: &Global) -> Result {
        let admin = global.admin()?;
        let mut out = Out::of(global);
        let end = match &self.what {
            What::List(list) => list.run(&admin, &mut out),
            What::Forget(forget) => forget.run(&admin, global, &mut out),
        }?;
        out.flush()?;
        Ok(end)
    }
}

impl List {
    fn run(&self, admin: &Admin, out: &mut Out) -> Result {
        let found = if self.all {
            let looking = || "looking through the keys".to_owned();
            with_progress(looking, || admin.find_consumers(&self.topic))??
        } else {
            admin.consumers(&self.topic)?
        };
        for c in &found {
            out.object(&object(c))?;
        }
        if !out.is_json() {
            let head = [
                "consumer",
                "keeps",
                ">members",
                "finished",
                ">behind",
                ">unread",
                ">pending",
                ">dead letters",
                "last seen",
            ];
            out.raw(
                Table::rows(&head, found.iter().map(row))
                    .to_string()
                    .as_bytes(),
            )?;
        }
        Ok(End::Done)
    }
}

fn keeps(kind: ConsumerKind) -> &'static str {
    match kind {
        ConsumerKind::Positions => "positions",
        ConsumerKind::Group => "group",
        _ => "nothing",
    }
}

fn object(c: &ConsumerInfo) -> serde_json::Value {
    let ms = |d: std::time::Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
    json!({
        "name": c.name,
        "keeps": keeps(c.kind),
        "registered": c.registered,
        "members": c.members.len(),
        "finished": c.finished.map(|id| id.to_string()),
        "behind_ms": c.behind.map(ms),
        "unread": c.unread,
        "pending": c.pending,
        "last_seen": c.last_seen.map(date),
        "dead_letters": c.dead_letters,
    })
}

fn row(c: &ConsumerInfo) -> Vec<String> {
    vec![
        shown(c.name.as_bytes()),
        keeps(c.kind).into(),
        c.members.len().to_string(),
        id(c.finished),
        c.behind.map_or("?".into(), span),
        number(c.unread),
        c.pending.to_string(),
        c.dead_letters.to_string(),
        c.last_seen.map_or("?".into(), date),
    ]
}

impl Forget {
    fn run(&self, admin: &Admin, global: &Global, out: &mut Out) -> Result {
        let mut forget = admin
            .forget(&self.topic, &self.consumer)
            .timeout(global.timeout);
        if self.dead_letters {
            forget = forget.with_dead_letters();
        }
        if self.force {
            forget = forget.force();
        }
        let preview = forget.preview()?;
        let Self {
            topic, consumer, ..
        } = self;
        if preview.is_nothing() {
            say(format_args!(
                "nothing is kept for {consumer} on topic {topic}"
            ));
            return Ok(End::Wrong);
        }
        out.line(shown_lines(&preview.to_string()))?;
        out.flush()?;
        if !self.force && !preview.alive.is_empty() {
            return Err(Failure::failed(format!(
                "{consumer} lives: stop it first, or say --force"
            )));
        }
        ask::before(
            global,
            &format!("This forgets how far {consumer} is on topic {topic}, for good."),
        )?;
        let done = forget.apply()?;
        out.object(&told(&done))?;
        out.line("forgotten")?;
        Ok(End::Done)
    }
}

fn told(f: &Forgotten) -> serde_json::Value {
    json!({
        "keys": f.keys,
        "groups": f.groups,
        "pending": f.pending,
        "waiting": f.waiting,
        "dead_letters": f.dead_letters,
    })
}
