//! What is left when publishers, their server or its answers are lost: what was told to be stored is
//! there, what was told not to be is not, nothing is there twice, and whoever says again what is uncertain
//! under a dedupe id, a condition, a version or a mark ends up with one of each in order.

use std::{
    collections::HashMap,
    env, fmt, fs,
    io::{self, BufRead},
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use streamlane::{
    Outcome, Result, Settings, Streams,
    testing::{
        Aof, Fault, Kind, Line, PrivateServer, Recorder, Relay, Rules,
        Way::{Replies, Requests},
        eventually,
    },
};

use crate::{
    PARTITIONS, PATIENCE,
    dice::Dice,
    number_from_env,
    process::Process,
    proof::{Logs, by_id, numbered, said},
    turn, untrimmed,
    ways::{Stored, Voice, Way},
};

/// Where a process that is to be killed finds its server, and the directory of its logs.
const URL: &str = "STREAMLANE_PUBLISH_URL";
const DIR: &str = "STREAMLANE_PUBLISH_DIR";

/// Between two calls of one voice, so that all get their turn.
const PAUSE: Duration = Duration::from_millis(2);

#[test]
fn a_killed_publisher_leaves_all_it_was_told_of_and_nothing_twice() {
    let _turn = turn();
    let mut kills = number_from_env("STREAMLANE_CRASH_KILLS").unwrap_or(20);
    let mut dice = Dice::new("publishers");
    while kills > 0 {
        let server = PrivateServer::start().unwrap();
        let (url, dir) = (server.url(), server.dir().to_str().unwrap());
        // Each life reads what its predecessors have written down.
        for _ in 0..kills.min(20) {
            let publishers = Process::start("publishers::entry", &[(URL, &url), (DIR, dir)]);
            // Some do not live to publish anything.
            dice.wait_ms(100..500);
            publishers.kill();
        }
        Books::of(server.dir()).check(&server);
        kills = kills.saturating_sub(20);
    }
}

/// No test: the way in of a process that publishes in all ways, until it is killed.
#[test]
fn entry() {
    let (Ok(url), Ok(dir)) = (env::var(URL), env::var(DIR)) else {
        return;
    };
    let books = Books::of(dir.as_ref());
    let begun = books.begun();
    let streams = open(&url);
    for (way, i, voice) in voices(&streams) {
        let pen = books.pen(way);
        let next = begun.get(&(way.topic(), i)).copied();
        thread::spawn(move || {
            let forever = AtomicBool::new(false);
            Speaker {
                mortal: true,
                ..Speaker::new(way, voice, pen, next.unwrap_or(Way::first_of(i)))
            }
            .speak(&forever);
        });
    }
    // until the test is dead
    io::stdin().lock().lines().for_each(drop);
    process::exit(0);
}

#[test]
fn a_killed_server_has_kept_all_that_was_told_and_nothing_twice() {
    let _turn = turn();
    let outages = number_from_env("STREAMLANE_CRASH_OUTAGES").unwrap_or(6);
    let mut dice = Dice::new("publishing through outages");
    let server = PrivateServer::builder().aof(Aof::Always).start().unwrap();
    let tallies = publish_while(&server, &server.url(), || {
        for _ in 0..outages {
            dice.wait_ms(0..100);
            server.kill();
            dice.wait_ms(0..200);
            server.restart().unwrap();
            let before = lengths(&server);
            let all = || lengths(&server).iter().zip(&before).all(|(now, b)| now > b);
            assert!(eventually(PATIENCE, all), "{:?}", lengths(&server));
        }
    });
    assert!(tallies.iter().any(|(_, t)| t.unknown > 0), "{tallies:?}");
}

#[test]
fn lost_answers_are_told_as_unknown_and_nothing_is_there_twice() {
    let _turn = turn();
    let outages = number_from_env("STREAMLANE_CRASH_OUTAGES").unwrap_or(40);
    let mut dice = Dice::new("lost answers");
    let server = PrivateServer::start().unwrap();
    let relay = Relay::to(&server).unwrap();
    let tallies = publish_while(&server, &relay.url(), || {
        for _ in 0..outages {
            dice.wait_ms(30..120);
            if dice.one_in(2) {
                relay.fault_existing(Replies, Fault::Swallow);
                dice.wait_ms(1..15);
                relay.close();
            } else {
                // each in the middle of one call or another, or of its answer
                let way = if dice.one_in(2) { Requests } else { Replies };
                relay.fault_existing(way, Fault::CutAfter(dice.below(400)));
            }
        }
    });
    for (way, tally) in tallies {
        assert!(tally.unknown > 0, "{way:?}: {tally}");
    }
}

/// How much was published in each way.
fn lengths(server: &PrivateServer) -> Vec<i64> {
    let length = |way: &Way| {
        let of = |p| server.command(&["XLEN", &way.stream(p)]).unwrap().int();
        (0..PARTITIONS).filter_map(of).sum()
    };
    Way::ALL.iter().map(length).collect()
}

/// Publishes in all ways, from this process, while that happens, and checks what is left.
fn publish_while(server: &PrivateServer, url: &str, happens: impl FnOnce()) -> Vec<(Way, Tally)> {
    let books = Books::of(server.dir());
    let over = AtomicBool::new(false);
    let streams = open(url);
    let tallies = thread::scope(|s| {
        let speak = |(way, i, voice)| {
            let speaker = Speaker::new(way, voice, books.pen(way), Way::first_of(i));
            (way, s.spawn(|| speaker.speak(&over)))
        };
        let speakers: Vec<_> = voices(&streams).map(speak).collect();
        thread::sleep(Duration::from_millis(100));
        happens();
        thread::sleep(Duration::from_millis(100));
        over.store(true, Relaxed);
        let join = |(way, s): (Way, thread::ScopedJoinHandle<'_, Tally>)| (way, s.join().unwrap());
        speakers.into_iter().map(join).collect::<Vec<_>>()
    });
    drop(streams);
    for (way, tally) in &tallies {
        eprintln!("{way:?}: {tally}");
    }
    books.check(server);
    tallies
}

/// Of a topic for each way.
fn open(url: &str) -> Streams {
    let settings = Settings::default().connection_string(url);
    let topic = |s: Settings, way: &Way| s.with_topic(way.topic(), untrimmed());
    Streams::open(Way::ALL.iter().fold(settings, topic)).unwrap()
}

/// All voices, with the number each has among those of its way.
fn voices(streams: &Streams) -> impl Iterator<Item = (Way, usize, Voice)> {
    let of = |way: Way| way.voices(streams).into_iter().enumerate();
    Way::ALL
        .into_iter()
        .flat_map(move |way| of(way).map(move |(i, voice)| (way, i, voice)))
}

/// How often a voice was told what.
#[derive(Clone, Copy, Default, Debug)]
struct Tally {
    stored: u64,
    unknown: u64,
    not_applied: u64,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (stored, unknown) = (self.stored, self.unknown);
        let not_applied = self.not_applied;
        write!(
            f,
            "stored {stored}, unknown {unknown}, not applied {not_applied}"
        )
    }
}

/// A voice that says one number after the other and writes down what it is told.
struct Speaker {
    way: Way,
    voice: Voice,
    pen: Pen,
    next: u64,
    /// Below this, numbers may be stored that were not told to be.
    uncertain: u64,
    /// Whether it may be killed: then each number is uncertain from the moment it is said.
    mortal: bool,
}

impl Speaker {
    fn new(way: Way, voice: Voice, pen: Pen, next: u64) -> Self {
        Self {
            way,
            voice,
            pen,
            next,
            uncertain: 0,
            mortal: false,
        }
    }

    fn speak(mut self, over: &AtomicBool) -> Tally {
        let mut tally = Tally::default();
        while !over.load(Relaxed) {
            let numbers: Vec<_> = (self.next..self.next + self.way.breath()).collect();
            if self.mortal {
                self.pen.write(numbers.iter().map(|n| (*n, Told::Perhaps)));
                self.uncertain = self.next + self.way.breath();
            }
            let results = (self.voice)(&numbers);
            if self.mortal && results.iter().any(Result::is_err) {
                eprintln!("{:?}: {results:?}", self.way);
                process::abort(); // found dead by the test
            }
            let told = numbers.iter().zip(&results);
            let told: Vec<_> = told
                .filter_map(|(n, result)| Some((*n, self.hear(*n, result, &mut tally)?)))
                .collect();
            self.pen.write(told.into_iter());
            let certain = results.iter().take_while(|r| r.is_ok()).count() as u64;
            self.next += if self.way.insists() {
                certain
            } else {
                self.way.breath()
            };
            thread::sleep(PAUSE);
        }
        tally
    }

    /// Nothing of a number that is not stored.
    fn hear(&mut self, n: u64, result: &Result<Stored>, tally: &mut Tally) -> Option<Told> {
        match result {
            Ok(stored) => {
                let way = self.way;
                let possible = !stored.before || n < self.uncertain;
                assert!(possible, "{way:?}: {n} was said not to be");
                tally.stored += 1;
                Some(Told::Stored(*stored))
            }
            Err(e) if e.outcome() == Outcome::NotApplied => {
                tally.not_applied += 1;
                None
            }
            Err(e) => {
                assert_eq!(e.outcome(), Outcome::Unknown, "{e}");
                tally.unknown += 1;
                self.uncertain = n + 1;
                Some(Told::Perhaps)
            }
        }
    }
}

/// What a voice was told of a number.
#[derive(Clone, Copy)]
enum Told {
    Stored(Stored),
    Perhaps,
}

/// What is known of the numbers, in two pairs of logs: by the number, as if it were the entry's id, which
/// tells losses, doubles and what was never said; and by the entry's id, which tells whether it is the one
/// that was returned.
struct Books {
    numbers: Logs,
    ids: Logs,
}

/// Writes down what one voice says.
struct Pen {
    topic: String,
    numbers: Recorder,
    ids: Recorder,
}

impl Books {
    fn of(dir: &Path) -> Self {
        let logs = |name| Logs::named(dir, name);
        Self {
            numbers: logs("numbers-"),
            ids: logs("ids-"),
        }
    }

    fn pen(&self, way: Way) -> Pen {
        let recorder = |path: &PathBuf| Logs::recorder(path);
        Pen {
            topic: way.topic(),
            numbers: recorder(&self.numbers.published),
            ids: recorder(&self.ids.published),
        }
    }

    /// By topic and voice: the number to begin with after those who died. Who insists says again what is
    /// uncertain.
    fn begun(&self) -> HashMap<(String, usize), u64> {
        let log = fs::read(&self.numbers.published).unwrap_or_default();
        let insists = Way::ALL.map(|w| (w.topic(), w.insists()));
        let insists = HashMap::from(insists);
        let mut begun = HashMap::new();
        for line in log.split(|b| *b == b'\n').flat_map(Line::parse) {
            let Line::Event(e) = line.unwrap() else {
                continue;
            };
            if e.kind == Kind::Published || !insists[&*e.topic] {
                let at = (e.topic.to_string(), Way::voice_of(e.id.0));
                let next = begun.entry(at).or_insert(0);
                *next = (*next).max(e.id.0 + 1);
            }
        }
        begun
    }

    /// Compares with what the server has.
    #[track_caller]
    fn check(&self, server: &PrivateServer) {
        let gone = || {
            let clients = server.command(&["CLIENT", "LIST"]).unwrap().text();
            !clients.contains("name=streams-")
        };
        assert!(eventually(PATIENCE, gone), "what was sent is carried out");
        for way in Way::ALL {
            self.check_way(way, server);
        }
        let report = self.numbers.check(Rules::default());
        assert!(report.counts.published > 0);
        self.ids.check(Rules {
            closed: false, // where ids are not told
            ..Rules::default()
        });
    }

    fn check_way(&self, way: Way, server: &PrivateServer) {
        let topic = way.topic();
        let (mut numbers, mut ids, mut by_number) = (vec![], vec![], vec![]);
        for p in 0..PARTITIONS {
            let here = said(server, &way.stream(p));
            let wrong = here.windows(2).find(|w| w[0].1 >= w[1].1);
            assert_eq!(wrong, None, "{way:?} in partition {p}");
            numbers.extend(here.iter().map(|(_, n)| *n));
            for (id, n) in here {
                ids.push(by_id(Kind::Handled, &topic, id, n));
                by_number.push(numbered(Kind::Handled, &topic, n));
            }
        }
        assert!(numbers.len() > 10, "{way:?} was at work: {numbers:?}");
        Logs::recorder(&self.ids.handled).record_all(&ids).unwrap();
        Logs::recorder(&self.numbers.handled)
            .record_all(&by_number)
            .unwrap();
        if way.insists() {
            let wrong = (0..).zip(&numbers).find(|(i, n)| i != *n);
            assert_eq!(wrong, None, "{way:?}");
        }
        way.check_state(server, &numbers);
    }
}

impl Pen {
    fn write(&self, told: impl Iterator<Item = (u64, Told)>) {
        let (mut by_number, mut ids) = (vec![], vec![]);
        for (n, told) in told {
            let (kind, id) = match told {
                Told::Stored(stored) => (Kind::Published, stored.id),
                Told::Perhaps => (Kind::Unknown, None),
            };
            by_number.push(numbered(kind, &self.topic, n));
            ids.extend(id.map(|id| by_id(kind, &self.topic, id, n)));
        }
        self.numbers.record_all(&by_number).unwrap();
        self.ids.record_all(&ids).unwrap();
    }
}
