//! `streamlane status`: how far a consumer is.

use serde::Serialize;
use streamlane::{Admin, ConsumerProgress, PartitionProgress, ProgressState, StreamId};

use crate::{
    demo::grouped,
    end::{End, Failure, Result},
    open::Global,
    out::{Out, Table, shown},
    place::date,
    topics,
};

/// Show how far consumers are in each partition, and who reads them
///
///   streamlane status
///   streamlane status orders
///   streamlane status orders billing
///
/// It asks the server, so it may run anywhere. How things stand, the first that
/// is so: `no stream`; AHEAD (the position belongs to another stream); GAP
/// (entries were trimmed before they were read); `new` (nothing is stored yet);
/// NOBODY reads it; `behind`; `caught up`. Those in capitals need somebody.
///
/// Status 1 when a partition needs somebody, or there is no such topic.
///
/// With --json a line for each partition: "topic", "consumer", "partition",
/// "state", "lag" (entries; null where that cannot be told), "pending" (of a
/// queue), "position", "tail", "length", "owner", "at" (the server's clock).
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Status {
    /// The topic; without it all
    topic: Option<String>,
    /// The consumer; without it all of the topic
    consumer: Option<String>,
}

/// A line for programs.
#[derive(Serialize)]
pub(crate) struct Line<'a> {
    topic: &'a str,
    consumer: &'a str,
    partition: u32,
    state: &'static str,
    lag: Option<u64>,
    pending: Option<u64>,
    position: Option<String>,
    tail: Option<String>,
    length: u64,
    owner: Option<String>,
    at: String,
}

impl<'a> Line<'a> {
    fn of(all: &'a ConsumerProgress, p: &PartitionProgress) -> Self {
        Self {
            topic: &all.topic,
            consumer: &all.consumer,
            partition: p.partition,
            state: word(p.state),
            lag: p.lag,
            pending: p.pending,
            position: p.position.map(|id| id.to_string()),
            tail: p.tail.map(|id| id.to_string()),
            length: p.length,
            owner: p
                .owner
                .as_ref()
                .map(|o| format!("{}|{}", o.instance, o.pod)),
            at: date(all.at),
        }
    }
}

impl Status {
    pub(crate) fn run(&self, global: &Global) -> Result {
        let admin = global.admin()?;
        let mut out = Out::of(global);
        let mut well = true;
        let topics = match &self.topic {
            Some(topic) => vec![topic.clone()],
            None => topics::all(&admin)?,
        };
        for topic in topics {
            let consumers = match &self.consumer {
                Some(consumer) => vec![consumer.clone()],
                None => consumers(&admin, &topic)?,
            };
            if consumers.is_empty() {
                out.line(format_args!("{}: read by nobody", shown(topic.as_bytes())))?;
            }
            for consumer in consumers {
                let all = admin.progress(&topic, &consumer)?;
                if self.consumer.is_none() {
                    let names = [&topic, &consumer].map(|name| shown(name.as_bytes()));
                    out.line(names.join(" / "))?;
                }
                show(&mut out, &all)?;
                well &= is_well(&all);
            }
        }
        out.flush()?;
        Ok(End::well(well))
    }
}

fn consumers(admin: &Admin, topic: &str) -> Result<Vec<String>> {
    let described = admin.describe(topic)?;
    let found = described.ok_or_else(|| Failure::failed(format!("there is no topic {topic:?}")))?;
    Ok(found.consumers.into_iter().map(|c| c.name).collect())
}

pub(crate) fn is_well(all: &ConsumerProgress) -> bool {
    !all.partitions.is_empty() && !all.partitions.iter().any(|p| p.state.is_wrong())
}

/// Writes it: a table and a line below it, or an object for each partition.
pub(crate) fn show(out: &mut Out, all: &ConsumerProgress) -> Result<()> {
    for p in &all.partitions {
        out.object(&Line::of(all, p))?;
    }
    if out.is_json() {
        return Ok(());
    }
    if all.partitions.is_empty() {
        return out.line(format_args!("there is no topic {:?}", all.topic));
    }
    let head = [
        ">partition",
        "state",
        ">lag",
        ">pending",
        "position",
        "tail",
        ">length",
        "owner",
    ];
    let rows = all.partitions.iter().map(row);
    out.raw(Table::rows(&head, rows).to_string().as_bytes())?;
    out.line(summary(all))
}

/// How a state is called: in capitals where it needs somebody.
pub(crate) fn word(state: ProgressState) -> &'static str {
    match state {
        ProgressState::NoStream => "no stream",
        ProgressState::Ahead => "AHEAD",
        ProgressState::Gap => "GAP",
        ProgressState::NoPosition => "new",
        ProgressState::Unowned => "NOBODY",
        ProgressState::Behind => "behind",
        ProgressState::CaughtUp => "caught up",
        _ => "?",
    }
}

/// All partitions together, in a line.
pub(crate) fn summary(all: &ConsumerProgress) -> String {
    let known: u64 = all.partitions.iter().filter_map(|p| p.lag).sum();
    let unknown = all.partitions.iter().any(|p| p.lag.is_none());
    let least = if unknown { "at least " } else { "" };
    let mut text = format!(
        "{} instance(s), lag {least}{}, dead letters {}",
        all.members.len(),
        grouped(known),
        grouped(all.dead_letters)
    );
    if all.is_group {
        let pending: u64 = all.partitions.iter().filter_map(|p| p.pending).sum();
        let more = format!(
            ", pending {}, to be retried {}",
            grouped(pending),
            grouped(all.retries)
        );
        text += &more;
    }
    text
}

pub(crate) fn owner(p: &PartitionProgress) -> String {
    p.owner
        .as_ref()
        .map_or(String::new(), |o| shown(o.to_string().as_bytes()))
}

pub(crate) fn number(n: Option<u64>) -> String {
    n.map_or("?".into(), grouped)
}

pub(crate) fn id(id: Option<StreamId>) -> String {
    id.map_or("-".into(), |id| id.to_string())
}

fn row(p: &PartitionProgress) -> Vec<String> {
    vec![
        p.partition.to_string(),
        word(p.state).into(),
        number(p.lag),
        p.pending.map_or(String::new(), grouped),
        id(p.position),
        id(p.tail),
        grouped(p.length),
        owner(p),
    ]
}
