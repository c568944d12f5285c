//! The logs of a test and what they prove.

use std::{
    fs,
    path::{Path, PathBuf},
};

use streamlane::{
    StreamId,
    testing::{Checker, Event, Kind, Line, PrivateServer, Recorder, Reply, Report, Rules},
};

/// Log files beside a server's own; they go when it goes.
pub struct Logs {
    pub published: PathBuf,
    pub handled: PathBuf,
}

impl Logs {
    pub fn of(server: &PrivateServer) -> Self {
        Self::named(server.dir(), "")
    }

    /// One of several pairs in a directory.
    pub fn named(dir: &Path, prefix: &str) -> Self {
        let path = |name| dir.join(format!("{prefix}{name}.log"));
        Self {
            published: path("published"),
            handled: path("handled"),
        }
    }

    pub fn recorder(path: &PathBuf) -> Recorder {
        Recorder::append(path).unwrap()
    }

    /// Everything that workers have written down, or was written down about them.
    pub fn each_handled(&self, f: impl FnMut(Event<'_>)) {
        Self::each(&self.handled, f);
    }

    /// Everything that was published, or may have been.
    pub fn each_published(&self, f: impl FnMut(Event<'_>)) {
        Self::each(&self.published, f);
    }

    fn each(path: &Path, mut f: impl FnMut(Event<'_>)) {
        let log = fs::read(path).unwrap_or_default();
        for line in log.split(|b| *b == b'\n').flat_map(Line::parse) {
            if let Line::Event(event) = line.unwrap() {
                f(event);
            }
        }
    }

    /// Compares what was published with what was handled.
    #[track_caller]
    pub fn check(&self, rules: Rules) -> Report {
        let mut checker = Checker::new(rules);
        checker.add_file(&self.published).unwrap();
        checker.add_file(&self.handled).unwrap();
        let report = checker.finish();
        eprintln!("{report}");
        assert!(report.is_clean(), "{report}");
        report
    }
}

/// What happened to a message that says a number, by that number instead of its id: so a number that was
/// stored twice is a double. It is also its own key, so that what is uncertain about one does not make up
/// for another.
pub fn numbered(kind: Kind, topic: &str, number: u64) -> Event<'_> {
    Event {
        key: number.to_string().into_bytes().into(),
        ..Event::now(kind, topic, 0, (number, 0), b"")
    }
}

/// The same by its id.
pub fn by_id(kind: Kind, topic: &str, id: StreamId, number: u64) -> Event<'_> {
    Event {
        id: (id.ms(), id.seq()),
        ..numbered(kind, topic, number)
    }
}

/// What a stream says: the ids of its entries, and the numbers in their bodies.
pub fn said(server: &PrivateServer, stream: &str) -> Vec<(StreamId, u64)> {
    let range = server.command(&["XRANGE", stream, "-", "+"]).unwrap();
    let entry = |e: &Reply| {
        let body = e.items()[1].items()[1].text();
        let id = e.items()[0].text();
        (id.parse().unwrap(), body.parse().unwrap())
    };
    range.items().iter().map(entry).collect()
}
