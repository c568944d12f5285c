//! `streamlane watch`: how far a consumer is, again and again.

mod history;
mod terminal;
mod view;

use std::time::Duration;

use streamlane::{Admin, ConsumerProgress};

use crate::{
    end::{End, Failure, Result},
    open::Global,
    out::Out,
    place::{duration, now, wait},
    status,
};

use self::{
    history::History,
    terminal::Terminal,
    view::{Screen, view},
};

/// Watch how far a consumer is, live
///
///   streamlane watch orders billing
///
/// Shows each partition with its state, lag and rate, drawn anew each second. q or
/// ctrl-c ends it. What needs somebody is in capitals; see `status`. Where it is not
/// a terminal the same is written as plain text, or with --json as lines like those
/// of `status`.
///
/// Status as that of `status`, by what was seen last.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Watch {
    /// The topic
    topic: String,
    /// The consumer
    consumer: String,

    /// How long after each look the next one is
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    every: Duration,

    /// Only so many looks
    #[arg(long, value_name = "N")]
    times: Option<u64>,
}

/// The last look, and why there was none since.
struct Seen {
    progress: ConsumerProgress,
    trouble: Option<String>,
}

impl Watch {
    pub(crate) fn run(&self, global: &Global) -> Result {
        let streams = global.open()?;
        let admin = streams.admin();
        let place = admin.session()?.endpoint().to_owned();
        let mut seen = Seen {
            progress: admin.progress(&self.topic, &self.consumer)?,
            trouble: None,
        };
        let mut history = History::default();
        if !global.json
            && let Some(mut terminal) = Terminal::open()?
        {
            for _ in 0..self.times.unwrap_or(u64::MAX) {
                history.note(&seen.progress);
                let (width, height) = terminal.size();
                let screen = Screen {
                    place: &place,
                    progress: &seen.progress,
                    rates: &history.rates(),
                    trouble: seen.trouble.as_deref(),
                };
                terminal.draw(&view(&screen, width, height))?;
                if terminal.ended_within(self.every)? {
                    break;
                }
                self.look(&admin, &mut seen);
            }
            drop(terminal);
            return Ok(End::well(status::is_well(&seen.progress)));
        }
        self.plainly(global, &admin, seen)
    }

    fn plainly(&self, global: &Global, admin: &Admin, mut seen: Seen) -> Result {
        let mut out = Out::of(global);
        for n in 0..self.times.unwrap_or(u64::MAX) {
            if n > 0 {
                wait(self.every);
                self.look(admin, &mut seen);
                out.line("")?;
            }
            if let Some(trouble) = &seen.trouble {
                crate::stderr::say(format_args!("{}: {trouble}", crate::place::date(now())));
            } else {
                status::show(&mut out, &seen.progress)?;
                out.flush()?;
            }
        }
        if let Some(trouble) = seen.trouble {
            return Err(Failure::failed(trouble));
        }
        Ok(End::well(status::is_well(&seen.progress)))
    }

    /// Looks once more. While the server is away, what was seen last stays.
    fn look(&self, admin: &Admin, seen: &mut Seen) {
        match admin.progress(&self.topic, &self.consumer) {
            Ok(progress) => {
                *seen = Seen {
                    progress,
                    trouble: None,
                }
            }
            Err(e) => seen.trouble = Some(e.to_string()),
        }
    }
}
