//! `streamlane reset`: to move a consumer to another place.

use serde::Serialize;
use streamlane::{PartitionPreview, Pending, ResetDirection, ResetPreview, StartFrom};

use crate::{
    ask,
    end::{End, Result},
    open::Global,
    out::Out,
    place::Place,
};

/// Move a consumer to another place in its topic
///
/// Shows what it would do, and changes nothing, unless --apply is said. A place
/// is `start`, `end`, an id (what comes after it is handled next), a date with its
/// offset, or how long ago:
///
///   streamlane reset orders billing --to 2h
///   streamlane reset orders billing --to 2026-01-31T08:00:00Z --apply
///   streamlane reset orders billing --to end --partition 3 --apply
///
/// A consumer that runs is not moved unless --force is said; then it takes the
/// reset while it runs. Of a queue it has to be said what becomes of what its
/// members have in hand: --pending.
///
/// With --json a line for each partition: "partition", "current", "assumed",
/// "target", "direction" (none, rewind or skip), "entries", "exact", "oldest",
/// "newest", "length", "trimmed_away", "pending", "owner", "applied".
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Reset {
    /// The topic
    topic: String,
    /// The consumer
    consumer: String,

    /// Where it is to go on: start, end, an id, a date, or how long ago
    #[arg(long, value_name = "PLACE")]
    to: Place,

    /// Only this partition
    #[arg(long, value_name = "N")]
    partition: Option<u32>,

    /// Do it
    #[arg(long)]
    apply: bool,

    /// Do it even while an instance owns a partition
    #[arg(long)]
    force: bool,

    /// What becomes of what members of a queue have in hand
    #[arg(long, value_enum, value_name = "WHAT")]
    pending: Option<InHand>,

    /// Where the consumer begins that has no position yet (for the preview)
    #[arg(long, value_enum, value_name = "WHERE", default_value = "beginning")]
    when_missing: Missing,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum InHand {
    /// It is still to be handled
    Keep,
    /// It is not to be handled any more
    Drop,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Missing {
    Beginning,
    Now,
}

#[derive(Serialize)]
struct Line {
    partition: u32,
    current: Option<String>,
    assumed: Option<String>,
    target: String,
    direction: &'static str,
    entries: u64,
    exact: bool,
    oldest: Option<String>,
    newest: Option<String>,
    length: u64,
    trimmed_away: bool,
    pending: Option<u64>,
    owner: Option<String>,
    applied: bool,
}

impl Line {
    fn of(p: &PartitionPreview, applied: bool) -> Self {
        let text = |id: Option<streamlane::StreamId>| id.map(|id| id.to_string());
        Self {
            partition: p.partition,
            current: text(p.current),
            assumed: text(p.assumed),
            target: p.target.to_string(),
            direction: match p.direction {
                ResetDirection::Rewind => "rewind",
                ResetDirection::Skip => "skip",
                _ => "none",
            },
            entries: p.entries,
            exact: p.exact,
            oldest: text(p.oldest),
            newest: text(p.newest),
            length: p.length,
            trimmed_away: p.trimmed_away,
            pending: p.pending,
            owner: p.owner.clone(),
            applied,
        }
    }
}

impl Reset {
    pub(crate) fn run(&self, global: &Global) -> Result {
        let reset = self.describe(global)?;
        let preview = reset.preview()?;
        let mut out = Out::of(global);
        out.line(crate::out::shown_lines(&preview.to_string()))?;
        if self.apply {
            ask::before(global, &question(&preview))?;
            let moved = reset.apply()?;
            for (partition, target) in &moved {
                out.line(format_args!("partition {partition} goes on after {target}"))?;
            }
        } else {
            out.line("Nothing was changed: say --apply to do it")?;
        }
        for p in &preview.partitions {
            out.object(&Line::of(p, self.apply))?;
        }
        out.flush()?;
        Ok(End::Done)
    }

    fn describe(&self, global: &Global) -> Result<streamlane::Reset> {
        let admin = global.admin()?;
        let mut reset = admin
            .reset(&self.topic, &self.consumer, self.to.into())
            .timeout(global.timeout)
            .when_missing(match self.when_missing {
                Missing::Beginning => StartFrom::Beginning,
                Missing::Now => StartFrom::Now,
            });
        if let Some(partition) = self.partition {
            reset = reset.partition(partition);
        }
        if self.force {
            reset = reset.force();
        }
        match self.pending {
            Some(InHand::Keep) => reset = reset.pending(Pending::Keep),
            Some(InHand::Drop) => reset = reset.pending(Pending::Drop),
            None => {}
        }
        Ok(reset)
    }
}

fn question(preview: &ResetPreview) -> String {
    let least = if preview.partitions.iter().all(|p| p.exact) {
        ""
    } else {
        "at least "
    };
    format!(
        "This moves {} of topic {} in {} partition(s): {least}{} entries will be handled again and {} never.",
        preview.consumer,
        preview.topic,
        preview.partitions.len(),
        preview.total_to_reprocess(),
        preview.total_to_skip(),
    )
}
