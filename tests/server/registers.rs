//! The mistakes that earlier libraries of this kind made, by the numbers of the registers in which they are
//! kept: a test for each that would fail if it were made here, or the reason why it cannot be.

mod mq;
mod o_first;
mod o_second;
mod o_third;
mod x;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use streamlane::{
    testing::{PrivateServer, Reply},
    *,
};

use crate::{
    queues::{pending, stream, worker},
    support::*,
};

/// Where there is nothing that could be wrong, and why.
const WITHOUT: [(&str, &str); 1] = [(
    "X-14",
    "a stream is not opened with a name and a codec that could change places: key names are made in one file, \
     and a codec belongs to a handler by its type",
)];

/// How many numbers each register has.
const REGISTERS: [(&str, u32); 3] = [("MQ", 15), ("X", 14), ("O", 36)];

const SOURCES: [&str; 7] = [
    include_str!("registers/mq.rs"),
    include_str!("registers/x.rs"),
    include_str!("registers/o_first.rs"),
    include_str!("registers/o_second.rs"),
    include_str!("registers/o_third.rs"),
    // where what is tested cannot be reached from outside
    include_str!("../../src/backoff.rs"),
    include_str!("../../src/consume/permits.rs"),
];

#[test]
fn each_number_has_a_test_or_a_reason_and_not_both() {
    let lines = || SOURCES.iter().flat_map(|source| source.lines());
    let tests = lines()
        .zip(lines().skip(1))
        .filter(|(before, _)| before.trim() == "#[test]");
    let tests: Vec<&str> = tests.map(|(_, line)| line.trim()).collect();
    let (mut tested, mut without) = (0, 0);
    for (register, last) in REGISTERS {
        for n in 1..=last {
            let name = format!("fn {}_{n:02}_", register.to_lowercase());
            let of = tests.iter().filter(|line| line.starts_with(&name)).count();
            let number = format!("{register}-{n:02}");
            let reasons = WITHOUT.iter().filter(|(id, _)| *id == number).count();
            assert_eq!(of + reasons, 1, "{number}: {of} tests, {reasons} reasons");
            (tested, without) = (tested + of, without + reasons);
        }
    }
    let numbered = |line: &&&str| {
        let kinds = ["fn mq_", "fn x_", "fn o_"];
        kinds.iter().any(|kind| line.starts_with(kind))
    };
    assert_eq!(tests.iter().filter(numbered).count(), tested, "no others");
    assert_eq!((tested + without, WITHOUT.len()), (65, without));
    println!("{tested} tested, {without} without a mechanism here");
}

/// What must hold at every step, and the tests that kill, freeze or cut off between any two of them.
const INVARIANTS: [(&str, &[&str]); 8] = [
    (
        "nothing is acknowledged before its successor is stored",
        &[
            "killed_workers_lose_nothing_and_what_fails_is_tried_as_often_as_it_may_be",
            "outages_under_workers_lose_nothing_and_try_nothing_too_often",
            "r59_nothing_is_acknowledged_whose_dead_letter_cannot_be_written",
        ],
    ),
    (
        "what is retried or replayed comes to the group that failed it and to no other",
        &["killed_workers_lose_nothing_and_what_fails_is_tried_as_often_as_it_may_be"],
    ),
    (
        "nothing that a reader still needs is trimmed or deleted",
        &[
            "what_is_trimmed_deleted_taken_over_and_reloaded_for_long_loses_nothing_and_leaves_nothing",
            "what_the_slowest_reader_finishes_last_is_deleted_though_nothing_new_comes",
        ],
    ),
    (
        "a position passes nothing that is not finished",
        &[
            "a_killed_consumer_leaves_a_dead_letter_and_a_position_behind_it_or_neither",
            "with_defaults_no_position_passes_a_message_whose_handler_is_slower_than_the_flush",
        ],
    ),
    (
        "an owner of before changes nothing",
        &["workers_that_were_given_up_for_dead_change_nothing_when_they_wake"],
    ),
    (
        "what always fails is tried so often, and then it is one dead letter",
        &[
            "killed_workers_lose_nothing_and_what_fails_is_tried_as_often_as_it_may_be",
            "what_fails_is_tried_again_later_and_then_it_is_a_dead_letter_while_others_go_on",
        ],
    ),
    (
        "the bytes that went in come out, whatever way they went",
        &["every_byte_of_a_message_survives_retries_dead_letters_and_replays"],
    ),
    (
        "what is bad delays no other partition, and its own for as long as its policy says",
        &[
            "broken_retry_items_hold_up_neither_partitions_nor_other_retries",
            "r60_retries_that_fail_delay_neither_a_good_one_nor_what_is_new",
        ],
    ),
];

/// The recipes about groups, each of which has tests that bear its number.
const RECIPES: [u32; 30] = [
    4, 29, 31, 32, 34, 35, 41, 45, 47, 49, 50, 51, 52, 53, 54, 55, 56, 58, 59, 60, 63, 65, 66, 67,
    69, 70, 71, 72, 73, 74,
];

/// Where they are.
const ELSEWHERE: [&str; 15] = [
    include_str!("../crash/parking.rs"),
    include_str!("../crash/queues.rs"),
    include_str!("../crash/soak.rs"),
    include_str!("../crash/stops.rs"),
    include_str!("lag.rs"),
    include_str!("queue_faults.rs"),
    include_str!("queue_recipes/bytes.rs"),
    include_str!("queue_recipes/child.rs"),
    include_str!("queue_recipes/front.rs"),
    include_str!("queue_recipes/groups.rs"),
    include_str!("queue_recipes/members.rs"),
    include_str!("queue_recipes/orphans.rs"),
    include_str!("queue_recipes/pending.rs"),
    include_str!("queue_recipes/retries.rs"),
    include_str!("queues.rs"),
];

#[test]
fn each_invariant_and_each_recipe_of_groups_has_tests() {
    let lines = || ELSEWHERE.iter().flat_map(|source| source.lines());
    let tests = lines()
        .zip(lines().skip(1))
        .filter(|(before, _)| before.trim() == "#[test]");
    let tests: Vec<&str> = tests
        .filter_map(|(_, line)| line.trim().strip_prefix("fn ")?.split('(').next())
        .collect();
    for (what, by) in INVARIANTS {
        for test in by {
            assert!(tests.contains(test), "{what}: no test is called {test}");
        }
    }
    for n in RECIPES {
        let named = format!("r{n}_");
        let found = tests.iter().any(|test| test.starts_with(&named));
        assert!(found, "no test of recipe {n}");
    }
}

const TICK: Duration = Duration::from_millis(20);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn ask(server: &PrivateServer, command: &[&str]) -> Reply {
    server.command(command).unwrap()
}

fn int(server: &PrivateServer, command: &[&str]) -> i64 {
    ask(server, command).int().unwrap()
}

fn exists(server: &PrivateServer, key: &str) -> bool {
    int(server, &["EXISTS", key]) == 1
}

/// How often the server ran a command, calls from scripts included.
fn calls_of(server: &PrivateServer, command: &str) -> u64 {
    let all = ask(server, &["INFO", "commandstats"]).text();
    let found = all.split(&format!("cmdstat_{command}:calls=")).nth(1);
    found.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
}

/// A message as a handler was given it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Call {
    id: StreamId,
    partition: u32,
    attempt: u32,
    body: String,
    fields: Vec<(Vec<u8>, Vec<u8>)>,
}

/// A handler that writes down what it is given, and fails where it is told to.
fn noting(
    seen: &Seen<Call>,
    fails: impl Fn(&Message<'_>) -> bool + Send + Sync + 'static,
) -> impl Fn(&Message<'_>) -> HandlerResult + Send + Sync + 'static {
    let seen = seen.clone();
    move |m| {
        let own = |(name, value): (&[u8], &[u8])| (name.to_vec(), value.to_vec());
        seen.push(Call {
            id: m.id(),
            partition: m.partition(),
            attempt: m.attempt(),
            body: String::from_utf8_lossy(m.body()).into_owned(),
            fields: m.fields().map(own).collect(),
        });
        if fails(m) {
            Err("no such account")?;
        }
        Ok(())
    }
}

/// A member of group `c` that has what fails handed over twice more, soon.
fn retrying(streams: &Streams, topic: &str) -> ConsumerBuilder {
    let builder = worker(streams, topic).retry(2);
    builder.retry_pauses(TICK, TICK).retry_jitter(0)
}

/// A switch that handlers look at.
#[derive(Clone, Default)]
struct Switch(Arc<AtomicBool>);

impl Switch {
    fn turn_on(&self) {
        self.0.store(true, SeqCst);
    }

    fn is_on(&self) -> bool {
        self.0.load(SeqCst)
    }
}

fn bodies(calls: &[Call]) -> Vec<&str> {
    calls.iter().map(|call| &*call.body).collect()
}

/// Waits until nothing of consumer `c` is pending, or waits for another attempt.
#[track_caller]
fn settled(server: &PrivateServer, topic: &str, partitions: u32) {
    expect("nothing to be left undone", || {
        let bucket = format!("re:r:{{{topic}}}:c");
        let retries = format!("re:rt:{{{topic}}}:c");
        (0..partitions).all(|p| pending(server, &stream(topic, p)) == 0)
            && !exists(server, &bucket)
            && int(server, &["XLEN", &retries]) == 0
    });
}

/// Has the ghost of [`given_to`] have been given the first message so often already. Returns its id.
fn given_so_often(server: &PrivateServer, topic: &str, times: &str) -> String {
    let key = stream(topic, 0);
    let id = ask(server, &["XRANGE", &key, "-", "+"]).items()[0].items()[0].text();
    let claim = ["XCLAIM", &key, "c", "ghost", "0", &id];
    ask(
        server,
        &[&claim[..], &["RETRYCOUNT", times, "JUSTID"]].concat(),
    );
    id
}

/// Has somebody be given everything there is, who never comes back. The group begins at the beginning.
fn given_to(server: &PrivateServer, topic: &str, ghost: &str) {
    let key = stream(topic, 0);
    let _ = server.command(&["XGROUP", "CREATE", &key, "c", "0"]);
    ask(
        server,
        &[
            "XREADGROUP",
            "GROUP",
            "c",
            ghost,
            "COUNT",
            "10000",
            "STREAMS",
            &key,
            ">",
        ],
    );
}

fn letters_of(streams: &Streams, topic: &str) -> DeadLetters {
    streams.admin().dead_letters(topic, "c")
}

/// Waits until there are so many dead letters, and says what they are.
#[track_caller]
fn letters(streams: &Streams, topic: &str, n: usize) -> Vec<DeadLetter> {
    let all = letters_of(streams, topic);
    expect("dead letters", || all.count().unwrap() >= n as u64);
    let page = all.page(None, 10_000).unwrap();
    assert_eq!(page.letters.len(), n, "{:?}", page.letters);
    page.letters
}
