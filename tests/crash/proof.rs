//! The logs of a test and what they prove.

use std::path::{Path, PathBuf};

use streamlane::testing::{Checker, PrivateServer, Recorder, Report, Rules};

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
