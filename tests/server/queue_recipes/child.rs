//! A member that is another process, to be killed.

use std::{
    env,
    fs::{self, File},
    io::{self, BufRead, Write},
    path::{Path, PathBuf},
    process, thread,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use streamlane::{
    Delivery, HandlerResult, Message,
    testing::{PrivateServer, eventually, now_ns},
};

use super::{PATIENCE, SHORT, Streams, listen_to_the_log, on_log, settings, text};

#[allow(dead_code)]
#[path = "../../common/process.rs"]
mod process_of_ones_own;
use process_of_ones_own::Process;

/// Where a member finds its [`Job`].
const JOB: &str = "STREAMLANE_MEMBER_JOB";

/// How a member works.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) url: String,
    pub(super) topic: String,
    pub(super) partitions: u32,
    pub(super) pod: String,
    pub(super) leased: bool,
    /// How long it is thought to live without a sign of life, where that is not the default.
    pub(super) ttl: Option<Duration>,
    /// From when on it claims what is idle, and how often it looks, where these are not the defaults.
    pub(super) claims: Option<(Duration, Duration)>,
    pub(super) retries: Option<u32>,
    /// How long a message takes. Without end: [`None`].
    pub(super) work: Option<Duration>,
    pub(super) log: PathBuf,
}

impl Job {
    /// One that never finishes a message, and whose settings are the defaults.
    pub(super) fn new(server: &PrivateServer, topic: &str, pod: &str) -> Self {
        Self {
            url: server.url(),
            topic: topic.into(),
            partitions: 1,
            pod: pod.into(),
            leased: false,
            ttl: None,
            claims: None,
            retries: None,
            work: None,
            log: server.dir().join(format!("{topic}.members")),
        }
    }

    pub(super) fn start(&self) -> Process {
        let job = serde_json::to_string(self).unwrap();
        Process::start("queue_recipes::child::entry", &[(JOB, &job)])
    }

    /// Calls that were begun, of whichever member: the body, and the number of the attempt.
    pub(super) fn begun(&self) -> Vec<(String, u32)> {
        let begun = notes(&self.log, "begun ");
        let split = |line: String| {
            let (attempt, body) = line.split_once(' ').unwrap();
            (body.to_owned(), attempt.parse().unwrap())
        };
        begun.into_iter().map(split).collect()
    }

    /// The bodies that were finished.
    pub(super) fn finished(&self) -> Vec<String> {
        notes(&self.log, "finished ")
    }

    /// What the library said to members last.
    fn lines(&self) -> Vec<String> {
        let lines = notes(&self.log.with_extension("lines"), "");
        lines[lines.len().saturating_sub(50)..].to_vec()
    }

    #[track_caller]
    pub(super) fn wait_until_begun(&self, calls: usize) {
        let begun = eventually(PATIENCE, || self.begun().len() >= calls);
        assert!(
            begun,
            "{calls} calls begin: {:?}; the last lines: {:#?}",
            self.begun(),
            self.lines()
        );
    }
}

/// The whole lines of a log that begin so, the beginning taken off.
fn notes(log: &Path, beginning: &str) -> Vec<String> {
    let all = fs::read_to_string(log).unwrap_or_default();
    let whole = all
        .split_inclusive('\n')
        .filter_map(|l| l.strip_suffix('\n'));
    whole
        .filter_map(|l| l.strip_prefix(beginning).map(str::to_owned))
        .collect()
}

fn append(path: &Path) -> File {
    let file = File::options().create(true).append(true).open(path);
    file.unwrap()
}

/// No test: the way in of a member.
#[test]
fn entry() {
    let Ok(job) = env::var(JOB) else { return };
    let job: Job = serde_json::from_str(&job).unwrap();
    let lines = append(&job.log.with_extension("lines"));
    listen_to_the_log();
    on_log(move |line| {
        let line = format!("{} {} {line}\n", process::id(), now_ns() / 1_000_000);
        (&lines).write_all(line.as_bytes()).unwrap();
    });
    let streams = settings(&job.url, &job.topic, job.partitions).pod_name(&*job.pod);
    let streams = Streams::open(streams).unwrap();
    let mut builder = streams.consumer(&*job.topic).name("c").block(SHORT);
    builder = builder.delivery(if job.leased {
        Delivery::LeasedQueue
    } else {
        Delivery::WorkQueue
    });
    if let Some(ttl) = job.ttl {
        builder = builder.lease_ttl(ttl).lease_renew(ttl / 6);
    }
    if let Some((idle, interval)) = job.claims {
        builder = builder.claim_idle(idle).claim_interval(interval);
    }
    if let Some(attempts) = job.retries {
        builder = builder.retry(attempts).retry_pauses(SHORT, SHORT);
    }
    let log = append(&job.log);
    let work = job.work;
    let handle = move |m: &Message<'_>| -> HandlerResult {
        let note = |line: String| (&log).write_all(line.as_bytes()).unwrap();
        note(format!("begun {} {}\n", m.attempt(), text(m)));
        match work {
            None => loop {
                thread::park();
            },
            Some(work) => thread::sleep(work),
        }
        note(format!("finished {}\n", text(m)));
        Ok(())
    };
    let _consumer = builder.shared(handle).start().unwrap();
    io::stdin().lock().lines().for_each(drop);
    process::exit(2); // the test is dead
}
