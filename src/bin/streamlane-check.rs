//! Reads logs of what was published and handled, and tells what was lost, doubled, reordered or handled
//! by two owners at once.

use std::{
    env,
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use streamlane::testing::{Checker, Rules};

const USAGE: &str = "\
usage: streamlane-check [OPTION]... LOG...

Checks logs written by streamlane::testing::Recorder, all together as one.

  --doubles-within MS  allow doubles whose first handling was at most MS milliseconds before the
                       end of its handler: the interval in which positions are stored
  --unordered          order per key is not promised
  --shared             a partition may have several owners at a time
  --open               others publish, too: messages nobody published are no fault

Exit status: 0 clean, 1 faults found, 2 nothing could be checked.
";

fn main() -> ExitCode {
    let mut out = io::stdout().lock();
    let done = match read(env::args().skip(1)) {
        Ok(None) => out.write_all(USAGE.as_bytes()).map(|()| 0),
        Ok(Some(checker)) => {
            let report = checker.finish();
            write!(out, "{report}").map(|()| u8::from(!report.is_clean()))
        }
        Err(message) => {
            eprintln!("streamlane-check: {message}");
            Ok(2)
        }
    };
    ExitCode::from(done.unwrap_or(2))
}

/// Nothing when help was asked for.
fn read(mut args: impl Iterator<Item = String>) -> Result<Option<Checker>, String> {
    let (mut rules, mut logs) = (Rules::default(), Vec::new());
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--help" | "-h" => return Ok(None),
            "--unordered" => rules.ordered = false,
            "--shared" => rules.exclusive = false,
            "--open" => rules.closed = false,
            "--doubles-within" => {
                let ms = args.next().and_then(|ms| ms.parse().ok());
                let ms = ms.ok_or("--doubles-within needs a number of milliseconds")?;
                rules.doubles = Duration::from_millis(ms);
            }
            option if option.starts_with('-') => {
                return Err(format!("unknown option {option}\n\n{USAGE}"));
            }
            _ => logs.push(arg),
        }
    }
    if logs.is_empty() {
        return Err(format!("no log given\n\n{USAGE}"));
    }
    let mut checker = Checker::new(rules);
    for log in logs {
        checker.add_file(log).map_err(|e| e.to_string())?;
    }
    Ok(Some(checker))
}
