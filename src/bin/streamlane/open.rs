//! Which server, and how: what every command is told.

use std::{path::PathBuf, time::Duration};

use streamlane::{Admin, Settings, Streams};

use crate::{
    end::{Failure, Result},
    place::duration,
};

/// The longest that connecting may take, whatever `--timeout` says.
const CONNECT: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Everywhere")]
pub(crate) struct Global {
    /// The server, where neither STREAMS__CONNECTIONSTRING nor --settings says it
    ///
    /// Such as redis://:password@host:6379/0, unix:///path or host:port,password=...
    #[arg(long, global = true, value_name = "URL")]
    url: Option<String>,

    /// A file of settings, such as services have
    #[arg(long, global = true, value_name = "FILE")]
    settings: Option<PathBuf>,

    /// What every key begins with, where that is not "re:"
    #[arg(long, global = true, value_name = "TEXT")]
    prefix: Option<String>,

    /// Print JSON: one object, or one a line for lists
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Do what destroys something without asking
    #[arg(long, short, global = true)]
    pub(crate) yes: bool,

    /// How long a call to the server may take, such as 500ms, 10s or 2m
    #[arg(long, global = true, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub(crate) timeout: Duration,

    /// Show the warnings of the library, too
    #[arg(long, short, global = true)]
    pub(crate) verbose: bool,
}

impl Global {
    /// The settings: the file, the environment over it, and what was said here over both.
    pub(crate) fn settings(&self) -> Result<Settings> {
        let wrong = |e: streamlane::Error| Failure::usage(e.to_string());
        let file = self.settings.as_ref().map(Settings::from_json_file);
        let file = file.transpose().map_err(wrong)?;
        let mut settings = file.unwrap_or_default().overlay_env().map_err(wrong)?;
        if let Some(url) = &self.url {
            settings = settings.connection_string(url.as_str());
        }
        if let Some(prefix) = &self.prefix {
            settings = settings.key_prefix(prefix);
        }
        if settings.connection_string.is_none() {
            return Err(Failure::usage(
                "no server is given: say --url redis://host:6379, or name a file with --settings, or set \
                 STREAMS__CONNECTIONSTRING in the environment",
            ));
        }
        settings.check().map_err(wrong)?;
        // Who asks wants to know that a server is not ready rather than wait until it is.
        Ok(settings
            .connect_timeout(self.timeout.min(CONNECT))
            .publish_timeout(self.timeout)
            .start_timeout(Duration::from_millis(1)))
    }

    /// Connects.
    pub(crate) fn open(&self) -> Result<Streams> {
        Ok(Streams::open(self.settings()?)?)
    }

    pub(crate) fn admin(&self) -> Result<Admin> {
        Ok(self.open()?.admin())
    }
}
