//! `streamlane completions`: what a shell needs to complete words.

use std::io::{self, Write};

use clap::CommandFactory;
use clap_complete::Shell;

use crate::{
    Cli,
    end::{End, Result},
};

/// Print what a shell needs to complete what is typed
///
///   streamlane completions bash > /etc/bash_completion.d/streamlane
///   streamlane completions zsh > "${fpath[1]}/_streamlane"
///   streamlane completions fish > ~/.config/fish/completions/streamlane.fish
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Completions {
    /// Which shell
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(&self) -> Result {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "streamlane", &mut text);
        io::stdout().write_all(&text)?;
        Ok(End::Done)
    }
}
