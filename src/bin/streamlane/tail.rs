//! `streamlane tail`: what is published.

use std::time::Duration;

use streamlane::{Admin, Follow, ResetTo, StoredEntry};

use crate::{
    end::{End, Result},
    entry,
    open::Global,
    out::Out,
    place::{Place, wait},
    publish::pair,
    stderr::say,
};

/// How long one read waits in the server.
const WAIT: Duration = Duration::from_secs(1);
/// The most that can be asked for without saying from where.
const MOST_RECENT: usize = 1000;

/// Show what is published to a topic
///
///   streamlane tail orders
///   streamlane tail orders --follow --type OrderPlaced
///   streamlane tail orders --from 2h --key customer-7 --json
///   streamlane tail orders --from start --raw > bodies
///
/// Without --from the newest messages. A place is `start`, `end`, an id (what comes
/// after it), a date with its offset, or how long ago; from there to what is the
/// end now, or with --follow for ever. It reads without a group and leaves no trace.
/// Messages of one partition are in order; between partitions order is by time.
///
/// With --json a line for each, as `entry` has it, without "fields".
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Tail {
    /// The topic
    topic: String,

    /// Go on with what is published later
    #[arg(long, short)]
    follow: bool,

    /// From where on
    #[arg(long, value_name = "PLACE")]
    from: Option<Place>,

    /// So many of the newest; with --from, no more than so many
    #[arg(long, short = 'n', value_name = "N")]
    lines: Option<usize>,

    /// Only of this partition
    #[arg(long, value_name = "N")]
    partition: Option<u32>,

    /// Only of this key
    #[arg(long)]
    key: Option<String>,

    /// Only of this type
    #[arg(long = "type", value_name = "TYPE")]
    message_type: Option<String>,

    /// Only with this header; may be given more than once
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = pair)]
    headers: Vec<(String, String)>,

    /// Only the bodies, as they are, each with a line break behind it
    #[arg(long, conflicts_with = "json")]
    raw: bool,
}

impl Tail {
    pub(crate) fn run(&self, global: &Global) -> Result {
        let admin = global.admin()?;
        let mut out = Out::of(global);
        if self.follow {
            out = out.at_once();
        }
        let mut left = self.lines.unwrap_or(usize::MAX);
        let mut follow =
            admin.follow(&self.topic, self.from.map_or(ResetTo::End, ResetTo::from))?;
        if self.from.is_none() {
            self.recent(&admin, &follow, &mut out)?;
            left = usize::MAX;
        }
        if self.from.is_some() && !self.follow {
            self.up_to_now(&admin, &mut follow, &mut left, &mut out)?;
        }
        while self.follow && left > 0 {
            match follow.next(WAIT) {
                Ok(entries) => self.show(&entries, &mut left, &mut out)?,
                Err(e) if e.is_retryable() => {
                    say(format_args!("{e}; trying again"));
                    wait(WAIT);
                }
                Err(e) => return Err(e.into()),
            }
        }
        out.flush()?;
        Ok(End::Done)
    }

    /// The newest that were there before what is followed.
    fn recent(&self, admin: &Admin, follow: &Follow, out: &mut Out) -> Result<()> {
        let wanted = self.lines.unwrap_or(10);
        let mut recent = admin.recent(
            &self.topic,
            if self.is_filtered() {
                MOST_RECENT
            } else {
                wanted
            },
        )?;
        recent.retain(|e| Some(e.id) <= follow.position(e.partition) && self.wants(e));
        recent.truncate(wanted);
        recent.reverse();
        self.show(&recent, &mut usize::MAX.clone(), out)
    }

    /// Everything up to where the topic ends now.
    fn up_to_now(
        &self,
        admin: &Admin,
        follow: &mut Follow,
        left: &mut usize,
        out: &mut Out,
    ) -> Result<()> {
        let ends = admin.follow(&self.topic, ResetTo::End)?;
        while *left > 0 {
            let mut entries = follow.next(Duration::ZERO)?;
            if entries.is_empty() {
                break;
            }
            entries.retain(|e| Some(e.id) <= ends.position(e.partition));
            if entries.is_empty() {
                break;
            }
            self.show(&entries, left, out)?;
        }
        Ok(())
    }

    fn show(&self, entries: &[StoredEntry], left: &mut usize, out: &mut Out) -> Result<()> {
        for entry in entries.iter().filter(|e| self.wants(e)) {
            if *left == 0 {
                break;
            }
            *left -= 1;
            if self.raw {
                let body = entry.body().unwrap_or_default();
                out.raw(&[body, b"\n"].concat())?;
            } else if out.is_json() {
                out.object(&entry::object(entry))?;
            } else {
                out.line(entry::line(entry))?;
            }
        }
        Ok(())
    }

    fn is_filtered(&self) -> bool {
        self.partition.is_some()
            || self.key.is_some()
            || self.message_type.is_some()
            || !self.headers.is_empty()
    }

    fn wants(&self, e: &StoredEntry) -> bool {
        let same = |wanted: &Option<String>, there: Option<&[u8]>| {
            wanted
                .as_ref()
                .is_none_or(|w| there == Some(w.as_bytes()) || w.is_empty() && there.is_none())
        };
        self.partition.is_none_or(|p| p == e.partition)
            && same(&self.key, e.key())
            && same(&self.message_type, e.message_type())
            && self.headers.iter().all(|(name, value)| {
                let mut all = e.headers().iter().flatten();
                all.any(|(n, v)| n == name.as_bytes() && v == value.as_bytes())
            })
    }
}
