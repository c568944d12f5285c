//! A server, the tool beside it, and what both say.

use std::{
    io::Write,
    process::{Command, Output, Stdio},
};

use serde_json::Value;
use streamlane::{
    Streams,
    testing::{PrivateServer, Reply},
};

/// The tool, with an environment that says nothing.
pub(crate) fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamlane"));
    command.args(args).stdin(Stdio::null());
    command
}

pub(crate) fn server() -> PrivateServer {
    let builder = PrivateServer::builder().config("save 3600 1");
    builder.start().unwrap()
}

/// What a run of the tool said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) status: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    pub(crate) fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Self {
            status: output.status.code().unwrap(),
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    }

    /// Standard output of a run that ended with this status and had nothing to complain about.
    #[track_caller]
    pub(crate) fn well(self, status: i32) -> String {
        assert_eq!((self.status, &*self.err), (status, ""), "{self:?}");
        self.out
    }

    /// The objects of its lines, likewise.
    #[track_caller]
    pub(crate) fn objects(self, status: i32) -> Vec<Value> {
        let out = self.well(status);
        let object = |line| serde_json::from_str(line).unwrap();
        out.lines().map(object).collect()
    }

    /// The one object it printed, likewise.
    #[track_caller]
    pub(crate) fn object(self, status: i32) -> Value {
        let mut objects = self.objects(status);
        assert_eq!(objects.len(), 1, "{objects:?}");
        objects.remove(0)
    }

    /// What it complained about, of a run that ended with this status and printed nothing.
    #[track_caller]
    pub(crate) fn complaint(self, status: i32) -> String {
        assert_eq!((self.status, &*self.out), (status, ""), "{self:?}");
        self.err
    }
}

/// Runs the tool against a server.
pub(crate) fn run(server: &PrivateServer, args: &[&str]) -> Said {
    Said::of(&at(server, args).output().unwrap())
}

/// Runs the tool against a server, with this on its standard input.
pub(crate) fn run_with(server: &PrivateServer, args: &[&str], input: &[u8]) -> Said {
    let mut child = at(server, args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // Refused by who has seen enough, which is to be seen in what it says.
    let _ = stdin.write_all(input);
    drop(stdin);
    Said::of(&child.wait_with_output().unwrap())
}

pub(crate) fn at(server: &PrivateServer, args: &[&str]) -> Command {
    let mut command = program(args);
    command.args(["--url", &server.url()]);
    command
}

/// Asks the server itself. Words are separated by blanks.
pub(crate) fn ask(server: &PrivateServer, command: &str) -> Reply {
    let words: Vec<_> = command.split(' ').collect();
    server.command(&words).unwrap()
}

pub(crate) fn number(server: &PrivateServer, command: &str) -> i64 {
    ask(server, command).int().unwrap()
}

/// The ids of all entries of a stream.
pub(crate) fn ids(server: &PrivateServer, stream: &str) -> Vec<String> {
    let entries = ask(server, &format!("XRANGE {stream} - +"));
    let id = |entry: &Reply| entry.items()[0].text();
    entries.items().iter().map(id).collect()
}

/// Names and values of one entry.
pub(crate) fn fields(server: &PrivateServer, stream: &str, id: &str) -> Vec<(String, String)> {
    let entries = ask(server, &format!("XRANGE {stream} {id} {id}"));
    let fields = entries.items()[0].items()[1].items();
    let pairs = fields.chunks(2).map(|p| (p[0].text(), p[1].text()));
    pairs.collect()
}

/// An empty topic, as another implementation makes it.
pub(crate) fn topic(server: &PrivateServer, name: &str, partitions: u32) {
    ask(
        server,
        &format!("HSET re:m:{{{name}}} partitions {partitions} v 1"),
    );
}

/// A topic of so many partitions with so many messages, whose bodies are their numbers and whose keys are
/// `k0` to `k9`.
pub(crate) fn filled(
    server: &PrivateServer,
    topic: &str,
    partitions: u32,
    messages: u32,
) -> Streams {
    let settings = streamlane::Settings::default()
        .connection_string(server.url())
        .with_topic(
            topic,
            streamlane::TopicSettings::default()
                .partitions(partitions)
                .max_len(1_000_000),
        );
    let streams = Streams::open(settings).unwrap();
    let publisher = streams.publisher(topic).unwrap();
    for n in 0..messages {
        let (key, body) = (format!("k{}", n % 10), n.to_string());
        publisher.publish(&key, "T", body).unwrap();
    }
    streams
}
