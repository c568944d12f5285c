//! Processes that schedule messages and move them, killed again and again: each message once, none before
//! it is due.

use std::{
    collections::BTreeMap,
    env,
    fs::{self, OpenOptions},
    io::{self, BufRead, Write},
    mem, process, thread,
    time::{Duration, UNIX_EPOCH},
};

use streamlane::{
    StreamId,
    testing::{PrivateServer, eventually},
};

use crate::{
    PARTITIONS, PATIENCE, TOPIC, dice::Dice, number_from_env, open, process::Process, turn,
};

/// Where a process finds its server, and what it writes down.
const URL: &str = "STREAMLANE_DELAYS_URL";
const LOG: &str = "STREAMLANE_DELAYS_LOG";

/// The longest delay of a message: longer than a process lives, and than the lease of a mover.
const LONGEST_MS: u64 = 4000;

#[test]
fn each_delayed_message_comes_once_whoever_is_killed() {
    let _turn = turn();
    let kills = number_from_env("STREAMLANE_CRASH_KILLS").unwrap_or(20);
    let mut dice = Dice::new("delays");
    let server = PrivateServer::start().unwrap();
    let (url, log) = (server.url(), server.dir().join("scheduled"));
    let log = log.to_str().unwrap();
    let start = || Process::start("delays::entry", &[(URL, &url), (LOG, log)]);
    let mut workers = [start(), start()];
    for n in 0..kills {
        dice.wait_ms(200..1500);
        mem::replace(&mut workers[n as usize % 2], start()).kill();
    }
    dice.wait_ms(200..600);
    let [one, other] = workers;
    one.kill();
    // The one that is left has everything to do, and schedules on; so it goes, too, and a fresh one comes.
    other.kill();
    let streams = open(&url);
    let _publisher = streams.publisher(TOPIC).unwrap();
    let int = |args: &[&str]| server.command(args).unwrap().int().unwrap();
    let (bucket, items) = (format!("re:dl:{{{TOPIC}}}"), format!("re:di:{{{TOPIC}}}"));
    let empty = || int(&["EXISTS", &bucket, &items]) == 0;
    assert!(eventually(PATIENCE, empty), "everything is moved");

    let mut published: BTreeMap<String, StreamId> = BTreeMap::new();
    for p in 0..PARTITIONS {
        let range = server.command(&["XRANGE", &format!("re:s:{{{TOPIC}}}:{p}"), "-", "+"]);
        for entry in range.unwrap().items() {
            let id = entry.items()[0].text().parse().unwrap();
            let body = entry.items()[1].items()[1].text();
            let twice = published.insert(body.clone(), id);
            assert_eq!(twice, None, "{body} came twice");
        }
    }
    let scheduled = fs::read_to_string(log).unwrap();
    let mut late = Vec::new();
    // A process may die in the middle of its last line.
    let whole = scheduled
        .lines()
        .filter_map(|l| l.strip_suffix('.')?.split_once(' '));
    for (body, due) in whole {
        let due: u64 = due.parse().unwrap();
        let id = published
            .get(body)
            .unwrap_or_else(|| panic!("{body} was lost"));
        assert!(id.ms() >= due, "{body} came {} ms too soon", due - id.ms());
        late.push(id.ms() - due);
    }
    late.sort_unstable();
    let (n, all) = (late.len(), published.len());
    assert!(n > 100 && all >= n, "{n} of {all}");
    eprintln!(
        "delays: {all} messages, {n} of them answered for, {kills} kills; late by {} ms in the middle, {} ms \
         for one in ten, {} ms at most",
        late[n / 2],
        late[n * 9 / 10],
        late[n - 1]
    );
}

/// No test: the way in of a process that schedules and moves.
#[test]
fn entry() {
    let (Ok(url), Ok(log)) = (env::var(URL), env::var(LOG)) else {
        return;
    };
    // until the test is dead
    thread::spawn(|| {
        io::stdin().lock().lines().for_each(drop);
        process::exit(0);
    });
    let mut log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .unwrap();
    let publisher = open(&url).publisher(TOPIC).unwrap();
    for n in 0_u64.. {
        let body = format!("{}-{n}", process::id());
        let delay = Duration::from_millis(n * 7919 % LONGEST_MS);
        let m = publisher.message("T", &body).key(&body);
        let delayed = m.deliver_after(delay).publish().unwrap();
        let due = delayed.due().duration_since(UNIX_EPOCH).unwrap();
        let line = format!("{body} {}.\n", due.as_millis());
        log.write_all(line.as_bytes()).unwrap();
        thread::sleep(Duration::from_millis(3));
    }
}
