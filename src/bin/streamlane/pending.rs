//! `streamlane pending`: what members of a queue have in hand.

use std::time::Duration;

use serde_json::json;
use streamlane::{PartitionStatus, PendingMessage, PendingOrder, PendingPage};

use crate::{
    end::{End, Result},
    open::Global,
    out::{Out, Table, shown},
    place::{duration, span},
};

/// So many are fetched at a time.
const PAGE: usize = 1000;

/// Show what members of a queue were given and have not acknowledged
///
///   streamlane pending mails sender
///   streamlane pending mails sender --min-idle 5m --by idle
///
/// Idle is the time since a message was given out or kept alive; what a member
/// works on is kept alive. `retries` stands for what was put aside to be tried again.
///
/// Status 1 when there is no such group.
///
/// With --json a line for each: "partition" (a number, or "retries"), "id",
/// "member", "idle_ms", "deliveries".
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Pending {
    /// The topic
    topic: String,
    /// The consumer
    consumer: String,

    /// Only of this partition
    #[arg(long, value_name = "N")]
    partition: Option<u32>,

    /// Only what this member has
    #[arg(long, value_name = "NAME")]
    member: Option<String>,

    /// Only what is idle for so long, or longer
    #[arg(long, value_name = "TIME", value_parser = duration)]
    min_idle: Option<Duration>,

    /// So many at most
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,

    /// In which order
    #[arg(long, value_enum, value_name = "ORDER", default_value = "id")]
    by: By,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum By {
    /// The oldest first
    Id,
    /// Those first that are idle longest
    Idle,
    /// Those first that were given out most often
    Deliveries,
}

impl Pending {
    pub(crate) fn run(&self, global: &Global) -> Result {
        let admin = global.admin()?;
        let Some(group) = admin.group(&self.topic, &self.consumer)? else {
            crate::stderr::say(format_args!(
                "{} has no group {}",
                self.topic, self.consumer
            ));
            return Ok(End::Wrong);
        };
        let mut pending = admin
            .pending(&self.topic, &self.consumer)
            .timeout(global.timeout);
        if let Some(partition) = self.partition {
            pending = pending.partition(partition);
        }
        if let Some(member) = &self.member {
            pending = pending.member(member);
        }
        if let Some(idle) = self.min_idle {
            pending = pending.min_idle(idle);
        }
        let mut found: Option<PendingPage> = None;
        let mut from = None;
        loop {
            let had = found.as_ref().map_or(0, |f| f.messages.len());
            let page = pending.page(from, (self.limit - had).clamp(1, PAGE))?;
            from = page.next;
            match &mut found {
                Some(found) => found.messages.extend(page.messages),
                None => found = Some(page),
            }
            let had = found.as_ref().map_or(0, |f| f.messages.len());
            if from.is_none() || had >= self.limit {
                break;
            }
        }
        let mut page = found.unwrap_or_else(|| unreachable!("a page was read"));
        page.sort_by(match self.by {
            By::Id => PendingOrder::Id,
            By::Idle => PendingOrder::Idle,
            By::Deliveries => PendingOrder::Deliveries,
        });
        let mut out = Out::of(global);
        for m in &page.messages {
            out.object(&json!({
                "partition": if m.partition == PartitionStatus::RETRIES { json!("retries") } else { json!(m.partition) },
                "id": m.id.to_string(),
                "member": m.member,
                "idle_ms": u64::try_from(m.idle.as_millis()).unwrap_or(u64::MAX),
                "deliveries": m.deliveries,
            }))?;
        }
        if !out.is_json() {
            let rows = page.messages.iter().map(row);
            let table = Table::rows(
                &[">partition", "id", "member", ">idle", ">deliveries"],
                rows,
            );
            out.raw(table.to_string().as_bytes())?;
            if from.is_some() {
                out.line("and more: --limit shows them")?;
            }
            let waiting = group.waiting;
            out.line(format_args!(
                "{} in all, {waiting} to be tried again later",
                group.pending()
            ))?;
        }
        out.flush()?;
        Ok(End::Done)
    }
}

fn row(m: &PendingMessage) -> Vec<String> {
    let partition = match m.partition {
        PartitionStatus::RETRIES => "retries".into(),
        p => p.to_string(),
    };
    vec![
        partition,
        m.id.to_string(),
        shown(m.member.as_bytes()),
        span(m.idle),
        m.deliveries.to_string(),
    ]
}
