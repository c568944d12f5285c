//! Tools that prove what a messaging service does when things break, for this crate's tests and for
//! yours (cargo feature `testing`).
//!
//! - [`PrivateServer`]: a Redis or Valkey server of your own, to kill, freeze and start again.
//! - [`Relay`]: stands between a client and a server and spoils the connection on demand.
//! - [`Stub`]: a server that answers what your script says.
//! - [`Recorder`] writes down what was published and handled, [`Checker`] reads it back and names every
//!   message that was lost, doubled, reordered or handled by two owners at once. The program
//!   `streamlane-check` does the same from the command line.
//!
//! They are made for tests: calls block, deadlines are generous, failures are [`std::io::Error`]s with
//! a sentence in them. All traffic stays on the machine. None of them uses the rest of this crate, so
//! what is tested cannot hide its own mistakes.

mod check;
mod listener;
mod log;
mod relay;
mod report;
mod resp;
mod server;
mod stub;

use std::{
    env, fs,
    io::{self, ErrorKind},
    path::PathBuf,
    process,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

pub use self::{
    check::{Checker, Rules},
    log::{Event, Kind, Line, Recorder, now_ns},
    relay::{Fault, Relay, Way},
    report::{Counts, Double, Overlap, Owner, Place, Reorder, Report},
    resp::{Client, Reply},
    server::{Aof, Engine, PrivateServer, ServerBuilder},
    stub::{Answer, Seen, Stub},
};

use crate::clock;

/// Asks every few milliseconds until `happened` says yes, for at most `patience`. Blocks meanwhile.
/// Returns whether it happened, so that an assertion can say what did not.
pub fn eventually(patience: Duration, mut happened: impl FnMut() -> bool) -> bool {
    let start = clock::now();
    loop {
        if happened() {
            return true;
        }
        if start.elapsed() >= patience {
            return false;
        }
        rest(Duration::from_millis(2));
    }
}

/// Lets time pass where there is nothing that could end the wait.
fn rest(d: Duration) {
    let _ = crossbeam_channel::never::<()>().recv_timeout(d);
}

/// An I/O error that says what went wrong in a sentence.
fn failed(message: impl Into<String>) -> io::Error {
    io::Error::other(message.into())
}

/// A new directory; one that a dead process of the same number left behind is passed over.
fn new_dir() -> io::Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = env::temp_dir().join(format!("streamlane-{}-{n}", process::id()));
        match fs::create_dir(&dir) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            done => return done.map(|()| dir),
        }
    }
}
