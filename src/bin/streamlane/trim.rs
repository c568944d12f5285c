//! `streamlane trim`: to delete what is oldest.

use std::time::Duration;

use serde_json::json;
use streamlane::{PartitionTrim, TrimTo};

use crate::{
    ask,
    demo::grouped,
    end::{End, Result},
    open::Global,
    out::{Out, shown},
    place::duration,
    stderr::with_progress,
};

/// Delete what is oldest in a topic, but for what somebody has yet to read
///
///   streamlane trim orders --older-than 7d
///   streamlane trim orders --max-len 100000 --partition 3
///
/// Shows what would go, and asks. What a consumer has yet to read stays, unless
/// --force is said. All keys of the server are looked through for consumers.
///
/// With --json a line for each partition: "partition", "length" (before),
/// "trimmed", "exact", "finished" (up to where every consumer is), "held_by".
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Trim {
    /// The topic
    topic: String,

    /// Keep the newest so many messages of each partition
    #[arg(
        long,
        value_name = "N",
        required_unless_present = "older_than",
        conflicts_with = "older_than"
    )]
    max_len: Option<u64>,

    /// Delete what is older than this, such as 7d
    #[arg(long, value_name = "TIME", value_parser = duration)]
    older_than: Option<Duration>,

    /// Only this partition
    #[arg(long, value_name = "N")]
    partition: Option<u32>,

    /// Delete what consumers have yet to read, too
    #[arg(long)]
    force: bool,
}

impl Trim {
    pub(crate) fn run(&self, global: &Global) -> Result {
        let to = match (self.older_than, self.max_len) {
            (Some(age), _) => TrimTo::Age(age),
            (None, n) => TrimTo::Length(n.unwrap_or(u64::MAX)),
        };
        let mut trim = global
            .admin()?
            .trim(&self.topic, to)
            .timeout(global.timeout);
        if let Some(partition) = self.partition {
            trim = trim.partition(partition);
        }
        if self.force {
            trim = trim.force();
        }
        let mut out = Out::of(global);
        let preview = with_progress(|| "counting".to_owned(), || trim.preview())??;
        for p in &preview {
            out.line(shown(p.to_string().as_bytes()))?;
        }
        out.flush()?;
        let all: u64 = preview.iter().map(|p| p.trimmed).sum();
        let least = if preview.iter().all(|p| p.exact) {
            ""
        } else {
            "at least "
        };
        let what = if self.force {
            ", whether they were read or not"
        } else {
            ""
        };
        ask::before(
            global,
            &format!(
                "This deletes {least}{} messages of topic {} for good{what}.",
                grouped(all),
                self.topic
            ),
        )?;
        let done = with_progress(|| "trimming".to_owned(), || trim.apply())??;
        for p in &done {
            out.object(&object(p))?;
        }
        let all = done.iter().map(|p| p.trimmed).sum();
        out.line(format_args!("{} were deleted", grouped(all)))?;
        out.flush()?;
        Ok(End::Done)
    }
}

fn object(p: &PartitionTrim) -> serde_json::Value {
    json!({
        "partition": p.partition,
        "length": p.length,
        "trimmed": p.trimmed,
        "exact": p.exact,
        "finished": p.finished.map(|id| id.to_string()),
        "held_by": p.held_by,
    })
}
