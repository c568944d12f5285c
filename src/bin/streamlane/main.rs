//! The operator's tool.
#![allow(
    clippy::doc_markdown,
    reason = "what is said of commands is read in a terminal"
)]

mod ask;
mod bench;
mod completions;
mod consumers;
mod dead_letters;
mod demo;
mod doctor;
mod end;
mod entry;
mod known;
mod open;
mod out;
mod ownership;
mod pending;
mod place;
mod publish;
mod reset;
mod status;
mod stderr;
mod tail;
mod text;
mod topics;
mod trim;
mod watch;

use std::process::ExitCode;

use clap::{Parser, Subcommand, error::ErrorKind};

use end::{EXIT_STATUS, End, Failure, Result};
use open::Global;

/// Ordered, durable messaging over Redis Streams, from the command line
///
/// Begin with `demo`, which needs nothing but a redis-server on the machine and
/// handles a million messages. Then, with a server:
///
///   streamlane --url redis://localhost:6379 ownership orders billing
///
/// `streamlane help COMMAND` tells all about a command, with examples.
#[derive(Debug, Parser)]
#[command(name = "streamlane", version, max_term_width = 79, verbatim_doc_comment,
          after_long_help = EXIT_STATUS)]
pub(crate) struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Demo),
    Doctor(doctor::Doctor),
    Status(status::Status),
    Watch(watch::Watch),
    Topics(topics::Topics),
    Publish(publish::Publish),
    Tail(tail::Tail),
    Entry(entry::Entry),
    Consumers(consumers::Consumers),
    Ownership(ownership::Ownership),
    Reset(reset::Reset),
    Pending(pending::Pending),
    DeadLetters(dead_letters::DeadLetters),
    Trim(trim::Trim),
    Bench(bench::Bench),
    Completions(completions::Completions),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            // There is nobody left to tell when this fails.
            let _ = e.print();
            return match e.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
                _ => Failure::usage("").code(),
            };
        }
    };
    let Cli { global, command } = &cli;
    stderr::install(global.verbose || matches!(command, Command::Demo(_)));
    match run(command, global) {
        Ok(end) => end.code(),
        Err(e) => {
            if !matches!(e, Failure::NobodyReads) {
                stderr::say(format_args!("streamlane: {e}"));
            }
            e.code()
        }
    }
}

fn run(command: &Command, global: &Global) -> Result {
    match command {
        Command::Demo(demo) => demo.run().map(End::well).map_err(Failure::Failed),
        Command::Doctor(doctor) => doctor.run(global),
        Command::Bench(bench) => bench.run(global),
        Command::Status(status) => status.run(global),
        Command::Watch(watch) => watch.run(global),
        Command::Topics(topics) => topics.run(global),
        Command::Tail(tail) => tail.run(global),
        Command::Entry(entry) => entry.run(global),
        Command::Pending(pending) => pending.run(global),
        Command::Trim(trim) => trim.run(global),
        Command::Consumers(consumers) => consumers.run(global),
        Command::Publish(publish) => publish.run(global),
        Command::Ownership(ownership) => ownership.run(global),
        Command::Reset(reset) => reset.run(global),
        Command::DeadLetters(letters) => letters.run(global),
        Command::Completions(completions) => completions.run(),
    }
}
