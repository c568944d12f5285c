//! How a command ends, and what the shell is told of it.

use std::{error, fmt, io, process::ExitCode};

/// What `--help` and the documentation say about it.
pub(crate) const EXIT_STATUS: &str = "\
Exit status:
  0   done, and nothing is wrong
  1   something is wrong, or what was asked for is not there
  2   it failed: the server was not reached, or refused
  3   nothing was done, since nobody said yes
  64  the arguments or the settings are wrong";

/// A command that did its work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// Nothing is wrong.
    Done,
    /// Something is wrong, or what was asked for is not there. What it is has been said.
    Wrong,
}

impl End {
    /// `Wrong` unless all is well.
    pub(crate) fn well(all_is_well: bool) -> Self {
        if all_is_well { Self::Done } else { Self::Wrong }
    }

    pub(crate) fn code(self) -> ExitCode {
        match self {
            Self::Done => ExitCode::SUCCESS,
            Self::Wrong => ExitCode::from(1),
        }
    }
}

/// Why a command did not do its work.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It was asked for in a way that cannot be meant.
    Usage(String),
    /// Somebody has to say yes, and nobody did.
    Unconfirmed(String),
    /// It was tried.
    Failed(Box<dyn error::Error>),
    /// Whoever read what it writes has gone away, which is no failure.
    NobodyReads,
}

impl Failure {
    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self::Usage(what.into())
    }

    pub(crate) fn failed(what: impl Into<String>) -> Self {
        Self::Failed(what.into().into())
    }

    pub(crate) fn code(&self) -> ExitCode {
        match self {
            Self::NobodyReads => ExitCode::SUCCESS,
            Self::Failed(_) => ExitCode::from(2),
            Self::Unconfirmed(_) => ExitCode::from(3),
            Self::Usage(_) => ExitCode::from(64),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(what) | Self::Unconfirmed(what) => f.write_str(what),
            Self::Failed(e) => write!(f, "{e}"),
            Self::NobodyReads => f.write_str("nobody reads what is written"),
        }
    }
}

impl From<streamlane::Error> for Failure {
    fn from(e: streamlane::Error) -> Self {
        Self::Failed(Box::new(e))
    }
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::BrokenPipe => Self::NobodyReads,
            _ => Self::Failed(Box::new(e)),
        }
    }
}

impl From<serde_json::Error> for Failure {
    fn from(e: serde_json::Error) -> Self {
        io::Error::from(e).into()
    }
}

pub(crate) type Result<T = End> = std::result::Result<T, Failure>;
