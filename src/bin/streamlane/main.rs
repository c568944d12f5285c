//! The operator's tool.

mod demo;
mod stderr;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Ordered, durable messaging over Redis Streams, from the command line.
#[derive(Debug, Parser)]
#[command(name = "streamlane", version, max_term_width = 80)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Demo),
}

fn main() -> ExitCode {
    let Command::Demo(demo) = Cli::parse().command;
    stderr::install();
    match demo.run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            stderr::say(format_args!("streamlane: {e}"));
            ExitCode::from(2)
        }
    }
}
