//! `streamlane doctor`: whether a server is fit for what is asked of it.

mod facts;
mod judge;
mod rights;

use std::fmt::Write;

use serde::Serialize;

use crate::{
    end::{End, Result},
    known,
    open::Global,
    out::{Out, shown},
    topics,
};

use self::{
    facts::{Facts, Subject},
    judge::judge,
};

/// Look whether a server is fit for it, and say what to fix
///
///   streamlane doctor
///   streamlane doctor orders payments
///   streamlane doctor --user billing-service
///
/// It looks at the version, at what is kept on disk, at memory and what is
/// deleted when it is short, at what the user may do, at the clock, at how long an
/// answer takes, and whether keys of topics would expire. Nothing is changed. It
/// takes a few seconds.
///
/// Status 1 when something must be fixed.
///
/// With --json a line for each: "check", "verdict" (ok, note, fix or unknown),
/// "what", "fix" (what to do about it, or null).
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Doctor {
    /// Topics whose keys to look at; without any, all
    topics: Vec<String>,

    /// Whose rights to look at, instead of one's own
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
}

/// What was found about one thing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Finding {
    check: &'static str,
    verdict: Verdict,
    what: String,
    fix: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Ok,
    /// To be known; nothing is wrong.
    Note,
    /// This must be fixed.
    Fix,
    /// It could not be found out.
    Unknown,
}

impl Finding {
    fn text(&self) -> String {
        let verdict = match self.verdict {
            Verdict::Ok => "ok",
            Verdict::Note => "note",
            Verdict::Fix => "FIX",
            Verdict::Unknown => "?",
        };
        let mut text = format!(
            "{verdict:5} {:12} {}",
            self.check,
            shown(self.what.as_bytes())
        );
        if let Some(fix) = &self.fix {
            let _ = write!(text, "\n{:19}-> {}", "", shown(fix.as_bytes()));
        }
        text
    }
}

impl Doctor {
    pub(crate) fn run(&self, global: &Global) -> Result {
        let streams = global.open()?;
        let admin = streams.admin();
        let mut topics = self.topics.clone();
        if topics.is_empty() {
            // Who may not read the list is told of that by what is said of rights.
            topics = topics::all(&admin).unwrap_or_default();
        }
        let mut session = admin.session()?;
        let subject = Subject {
            prefix: known::prefix(&streams),
            topics: &topics,
            user: self.user.as_deref(),
            timeout: global.timeout,
        };
        let facts = Facts::gather(&mut session, &subject)?;
        let findings = judge(&facts);
        let mut out = Out::of(global);
        for finding in &findings {
            out.show(finding, Finding::text)?;
        }
        let bad = findings
            .iter()
            .filter(|f| f.verdict == Verdict::Fix)
            .count();
        out.line(match bad {
            0 => "Nothing must be fixed".to_owned(),
            n => format!("{n} thing(s) must be fixed"),
        })?;
        out.flush()?;
        Ok(End::well(bad == 0))
    }
}
