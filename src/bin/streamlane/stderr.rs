//! What is said to the person at the terminal: warnings of the library, errors, and a line of progress
//! that they do not get mixed up with.

use std::{
    fmt,
    io::{self, IsTerminal, Write},
    thread,
    time::Duration,
};

use crossbeam_channel::{RecvTimeoutError, bounded};
use log::{LevelFilter, Log, Metadata, Record};

/// Back to the beginning of the line, and nothing left on it.
const CLEAR: &str = "\r\x1b[K";
/// How often the line of progress is written anew.
const TICK: Duration = Duration::from_millis(100);

struct Logger;

impl Log for Logger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let level = record.level().as_str().to_ascii_lowercase();
        say(format_args!("{level}: {}", record.args()));
    }

    fn flush(&self) {}
}

/// Shows what the library logs: errors, and warnings if they are wanted.
pub(crate) fn install(warnings: bool) {
    if log::set_logger(&Logger).is_ok() {
        log::set_max_level(if warnings {
            LevelFilter::Warn
        } else {
            LevelFilter::Error
        });
    }
}

/// Writes a line of its own.
pub(crate) fn say(line: fmt::Arguments<'_>) {
    let mut err = io::stderr().lock();
    let clear = if err.is_terminal() { CLEAR } else { "" };
    // There is nobody left to tell when this fails.
    let _ = writeln!(err, "{clear}{line}");
}

/// Does the work, and shows meanwhile what `line` says about it, when there is a terminal to show it on.
pub(crate) fn with_progress<T>(
    line: impl Fn() -> String + Send,
    work: impl FnOnce() -> T,
) -> io::Result<T> {
    if !io::stderr().is_terminal() {
        return Ok(work());
    }
    let (working, done) = bounded::<()>(0);
    thread::scope(|scope| {
        thread::Builder::new()
            .name("progress".into())
            .spawn_scoped(scope, move || {
                while done.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                    show(&line());
                }
                show("");
            })?;
        let result = work();
        drop(working);
        Ok(result)
    })
}

fn show(line: &str) {
    let mut err = io::stderr().lock();
    let _ = write!(err, "{CLEAR}{line}").and_then(|()| err.flush());
}
