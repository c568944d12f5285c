//! What the tool says of itself.

use std::{env, fmt::Write, fs, path::Path};

use crate::support::*;

/// Every command there is, as its help lists them.
fn commands() -> Vec<Vec<String>> {
    let (mut found, mut open) = (Vec::new(), vec![Vec::new()]);
    while let Some(command) = open.pop() {
        let help = help(&command);
        let listed = help.split_once("Commands:\n").map_or("", |(_, rest)| rest);
        for line in listed.lines().take_while(|l| l.starts_with("  ")) {
            let name = line.split_whitespace().next().unwrap();
            if line.starts_with("   ") || name == "help" {
                continue;
            }
            let mut deeper: Vec<String> = command.clone();
            deeper.push(name.to_owned());
            open.push(deeper);
        }
        found.push(command);
    }
    found.sort();
    found
}

fn help(command: &[String]) -> String {
    let mut args: Vec<_> = command.iter().map(String::as_str).collect();
    args.push("--help");
    Said::of(&program(&args).output().unwrap()).well(0)
}

#[test]
fn help_fits_into_80_columns_and_each_command_has_an_example() {
    let commands = commands();
    assert!(commands.len() > 8, "{commands:?}");
    for command in &commands {
        let mut short: Vec<_> = command.iter().map(String::as_str).collect();
        short.push("-h");
        let short = Said::of(&program(&short).output().unwrap()).well(0);
        let long = help(command);
        for line in short.lines().chain(long.lines()) {
            assert!(line.chars().count() < 80, "{command:?}: {line}");
        }
        let name = command.join(" ");
        let taught = long.contains(&format!("streamlane {name}")) || name.starts_with("demo");
        assert!(taught, "{name}: no example in\n{long}");
    }
    assert!(help(&[]).contains("Exit status:"));
}

/// The page is the help of each command; what stands around it is written by hand.
#[test]
fn the_page_about_the_tool_has_the_help_of_every_command() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/docs/tool.md");
    let there = fs::read_to_string(&path).unwrap();
    let head = there.split("\n<!-- from here on").next().unwrap();
    let mut page =
        format!("{head}\n<!-- from here on the help of each command, written by a test -->\n");
    for command in commands() {
        let help = help(&command);
        // What every command takes is said once.
        let (own, everywhere) = help.split_once("\nEverywhere:\n").unwrap();
        let name = format!("streamlane {}", command.join(" "));
        let (name, own) = (name.trim(), trimmed(own));
        let _ = write!(page, "\n## `{name}`\n\n```text\n{own}\n```\n");
        if command.is_empty() {
            let everywhere = trimmed(everywhere);
            let _ = write!(page, "\nEverywhere:\n\n```text\n{everywhere}\n```\n");
        }
    }
    if env::var_os("STREAMLANE_WRITE").is_some() {
        fs::write(&path, &page).unwrap();
    }
    assert!(
        there == page,
        "bring src/docs/tool.md up to date: STREAMLANE_WRITE=1 writes it"
    );
}

fn trimmed(text: &str) -> String {
    let lines: Vec<_> = text.trim_end().lines().map(str::trim_end).collect();
    lines.join("\n")
}

#[test]
fn completions_name_the_commands() {
    for (shell, words) in [
        ("bash", "complete -F _streamlane"),
        ("zsh", "#compdef streamlane"),
        ("fish", "complete -c streamlane"),
    ] {
        let said = Said::of(&program(&["completions", shell]).output().unwrap());
        let text = said.well(0);
        for words in [words, "dead-letters", "--prefix"] {
            let words = if shell == "fish" {
                words.trim_start_matches("--")
            } else {
                words
            };
            assert!(text.contains(words), "{shell}: {words} is missing");
        }
    }
    let said = Said::of(&program(&["completions", "cobol"]).output().unwrap());
    assert!(said.complaint(64).contains("bash"));
}
