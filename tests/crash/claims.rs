//! Claims on ids while those who hold them are lost: work that is begun at most once is never done twice,
//! and work under a claim is done in the end, and twice only where its first worker was lost.

use std::{
    array,
    collections::BTreeSet,
    env, mem,
    path::Path,
    process,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use streamlane::{
    Idempotency, Publisher, Result, Settings, Sight, Streams,
    testing::{Aof, Kind, Line, PrivateServer, Recorder, Rules, eventually},
};

use crate::{
    PATIENCE,
    dice::Dice,
    number_from_env,
    process::Process,
    proof::{Logs, numbered, said},
    turn, untrimmed,
};

/// Where a worker finds its server, and the directory of its logs.
const URL: &str = "STREAMLANE_CLAIM_URL";
const DIR: &str = "STREAMLANE_CLAIM_DIR";

/// How long a claim stands: longer than the work takes anywhere.
const CLAIM: Duration = Duration::from_secs(3);
const DONE: Duration = Duration::from_hours(1);

const PAUSE: Duration = Duration::from_millis(1);

/// What the work is: a message to a topic for each of the two ways to claim.
const TOPICS: [&str; 2] = ["once-or-never", "until-done"];

#[test]
fn of_two_killed_workers_none_does_again_what_was_begun_and_all_that_was_claimed_gets_done() {
    let _turn = turn();
    let kills = number_from_env("STREAMLANE_CRASH_KILLS").unwrap_or(20);
    let mut dice = Dice::new("claims");
    let server = PrivateServer::start().unwrap();
    let (url, dir) = (server.url(), server.dir().to_str().unwrap());
    let start = || Process::start("claims::entry", &[(URL, &url), (DIR, dir)]);
    let mut workers = [start(), start()];
    for n in 0..kills as usize {
        dice.wait_ms(100..400);
        mem::replace(&mut workers[n % 2], start()).kill();
    }
    workers.into_iter().for_each(Process::kill);
    check(&server, kills + 2);
}

/// No test: a worker's way in.
#[test]
fn entry() {
    let (Ok(url), Ok(dir)) = (env::var(URL), env::var(DIR)) else {
        return;
    };
    let begun = begun(dir.as_ref());
    let worker = Worker::new(&url, dir.as_ref());
    for n in begun.saturating_sub(10).. {
        for done in [worker.begin(n), worker.claim(n)] {
            if let Err(e) = done {
                eprintln!("{n}: {e}");
                process::abort(); // found dead by the test
            }
        }
    }
}

#[test]
fn claims_outlive_a_killed_server_and_lost_answers_make_nothing_happen_twice() {
    let _turn = turn();
    let outages = number_from_env("STREAMLANE_CRASH_OUTAGES").unwrap_or(4);
    let mut dice = Dice::new("claims through outages");
    let server = PrivateServer::builder().aof(Aof::Always).start().unwrap();
    let over = AtomicBool::new(false);
    let failed: u64 = thread::scope(|s| {
        let work = || {
            let worker = Worker::new(&server.url(), server.dir());
            let numbers = (0..).take_while(|_| !over.load(Relaxed));
            let failed = numbers.map(|n| {
                let all = [worker.begin(n), worker.claim(n)];
                all.iter().filter(|done| done.is_err()).count() as u64
            });
            failed.sum::<u64>()
        };
        let workers = [s.spawn(work), s.spawn(work)];
        let length = |topic| server.command(&["XLEN", &stream(topic)]).unwrap().int();
        let lengths = || TOPICS.map(|topic| length(topic).unwrap());
        for _ in 0..outages {
            let before = lengths();
            let more = || (0..2).all(|way| lengths()[way] > before[way] + 10);
            assert!(eventually(PATIENCE, more), "{:?}", lengths());
            dice.wait_ms(0..50);
            server.kill();
            server.restart().unwrap();
        }
        over.store(true, Relaxed);
        workers.into_iter().map(|w| w.join().unwrap()).sum()
    });
    eprintln!("{failed} calls failed");
    check(&server, failed);
}

struct Worker {
    /// For each of the two ways.
    ids: [Idempotency; 2],
    publishers: [Publisher; 2],
    logs: [Recorder; 2],
}

impl Worker {
    fn new(url: &str, dir: &Path) -> Self {
        let settings = Settings::default().connection_string(url);
        let settings = TOPICS.iter().fold(settings, |s, topic| {
            s.with_topic(*topic, untrimmed().partitions(1))
        });
        let streams = Streams::open(settings).unwrap();
        Self {
            ids: TOPICS.map(|topic| streams.idempotency(topic).unwrap()),
            publishers: TOPICS.map(|topic| streams.publisher(topic).unwrap()),
            logs: TOPICS.map(|topic| Logs::recorder(&Logs::named(dir, topic).published)),
        }
    }

    /// Once, or never when it is lost in between.
    fn begin(&self, n: u64) -> Result<()> {
        if self.ids[0].try_begin(n.to_string(), DONE)? {
            self.work(0, n)?;
            self.note(0, Kind::Published, n);
        }
        Ok(())
    }

    /// Again, should it be lost in between.
    fn claim(&self, n: u64) -> Result<()> {
        if let Sight::Mine(claim) = self.ids[1].claim(n.to_string(), CLAIM)? {
            self.work(1, n)?;
            let _in_time = claim.complete(DONE)?;
            self.note(1, Kind::Published, n);
        }
        Ok(())
    }

    /// Takes so long that workers are mostly lost in the middle of it.
    fn work(&self, way: usize, n: u64) -> Result<()> {
        thread::sleep(PAUSE);
        self.note(way, Kind::Unknown, n);
        self.publishers[way].publish("", "T", n.to_string())?;
        thread::sleep(PAUSE);
        Ok(())
    }

    fn note(&self, way: usize, kind: Kind, n: u64) {
        self.logs[way]
            .record(&numbered(kind, TOPICS[way], n))
            .unwrap();
    }
}

fn stream(topic: &str) -> String {
    format!("re:s:{{{topic}}}:0")
}

/// The largest number that anybody has begun with, in either way: a worker may be lost between the two.
fn begun(dir: &Path) -> u64 {
    let logs = TOPICS.map(|topic| Logs::named(dir, topic).published);
    let logs = logs.map(|log| std::fs::read(log).unwrap_or_default());
    let lines = logs.iter().flat_map(|log| log.split(|b| *b == b'\n'));
    let numbers = lines.flat_map(Line::parse);
    let numbers = numbers.filter_map(|line| match line.unwrap() {
        Line::Event(e) => Some(e.id.0),
        Line::Torn => None,
    });
    numbers.max().unwrap_or(0)
}

/// Does what the lost have left undone once their claims are over, and compares with what was told. So many
/// were lost, workers or calls.
#[track_caller]
fn check(server: &PrivateServer, lost: u64) {
    let all = 0..=begun(server.dir());
    let worker = Worker::new(&server.url(), server.dir());
    let numbers = || -> [Vec<u64>; 2] {
        array::from_fn(|way| {
            let said = said(server, &stream(TOPICS[way])).into_iter();
            said.map(|(_, n)| n).collect()
        })
    };
    let whole = || {
        let [_, claimed] = numbers();
        let there: BTreeSet<_> = claimed.into_iter().collect();
        let missing: Vec<_> = all.clone().filter(|n| !there.contains(n)).collect();
        for n in &missing {
            worker.claim(*n).unwrap();
        }
        missing.is_empty()
    };
    assert!(eventually(PATIENCE, whole), "claims of the lost run out");
    let reports = numbers().into_iter().zip(TOPICS).map(|(numbers, topic)| {
        let logs = Logs::named(server.dir(), topic);
        let handled = Logs::recorder(&logs.handled);
        for n in numbers {
            let there = numbered(Kind::Handled, topic, n);
            handled.record(&there).unwrap();
        }
        logs.check(Rules {
            ordered: false,
            // judged below
            doubles: Duration::MAX,
            ..Rules::default()
        })
    });
    let reports: Vec<_> = reports.collect();
    let [begun, claimed] = &reports[..] else {
        unreachable!()
    };
    assert!(begun.counts.handled > 30, "{begun}");
    assert!(begun.doubles.is_empty(), "{begun}");
    let missing = all.count() as u64 - begun.counts.handled;
    assert!(missing <= lost, "{missing} never done: {begun}");
    assert!(claimed.doubles.len() as u64 <= lost, "{claimed}");
}
