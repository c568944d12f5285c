//! A topic that is worked on for long, while its streams are trimmed, entries are deleted, members are killed and
//! the server reloads what it would find on its disk.

use std::{
    mem,
    time::{Duration, Instant},
};

use streamlane::testing::{PrivateServer, Reply};

use crate::{
    CONSUMER, PARTITIONS,
    dice::Dice,
    number_from_env,
    queues::{Groups, OTHERS, Scene, stream},
    turn,
    worker::{Job, Worker},
};

#[test]
fn what_is_trimmed_deleted_taken_over_and_reloaded_for_long_loses_nothing_and_leaves_nothing() {
    let _turn = turn();
    let seconds = number_from_env("STREAMLANE_SOAK_SECONDS").unwrap_or(8);
    let mut dice = Dice::new("soak");
    let scene = Scene::new(&PrivateServer::start().unwrap().into());
    let life = |n: u64, at: usize| Job {
        pod: format!("pod-{at}-{}", n / 3),
        ..scene.job(format!("life-{n}"))
    };
    let mut all: Vec<_> = (0..3)
        .map(|at| Worker::start(life(1_000_000 + at as u64, at)))
        .collect();
    all.iter().for_each(Worker::await_ready);
    let (begun, mut lives, mut removed, mut reloads) = (Instant::now(), 0, 0, 0);
    while begun.elapsed() < Duration::from_secs(seconds) {
        dice.wait_ms(50..250);
        match dice.below(8) {
            0 => {
                let at = dice.below(all.len() as u64) as usize;
                mem::replace(&mut all[at], Worker::start(life(lives, at))).kill();
                lives += 1;
            }
            1 => {
                reload(&scene.server);
                reloads += 1;
            }
            _ => removed += make_room(&scene.server, &mut dice),
        }
        scene.every_failure_has_a_successor();
    }
    eprintln!("soak: {lives} kills, {reloads} reloads, {removed} entries removed");
    assert!(lives > 0 && reloads > 0 && removed > 50, "it did its worst");
    scene.settle(all);
    scene.check("soak");
    let before = state(&scene.server);
    reload(&scene.server);
    assert_eq!(state(&scene.server), before);
}

/// Writes everything down as for a restart, and reads it back.
fn reload(server: &PrivateServer) {
    assert_eq!(server.command(&["DEBUG", "RELOAD"]).unwrap().text(), "OK");
}

/// The ids of a stream that all groups are finished with, when there are as many groups as that; in one step, so
/// that nothing is given out meanwhile.
const FINISHED: &str = r"
local open = {}
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local first = redis.call('XPENDING', KEYS[1], group[2])[2]
  open[#open + 1] = first or '(' .. group[8]
end
if #open < tonumber(ARGV[1]) then return {} end
local ids
for _, low in ipairs(open) do
  local to = string.sub(low, 1, 1) == '(' and string.sub(low, 2) or '(' .. low
  local these = {}
  for _, e in ipairs(redis.call('XRANGE', KEYS[1], '-', to)) do these[#these + 1] = e[1] end
  if not ids or #these < #ids then ids = these end
end
return ids";

/// Removes entries of a partition that both groups are finished with; says how many. A partition is either
/// trimmed or deleted from: servers there are that cannot read what they write after both.
fn make_room(server: &PrivateServer, dice: &mut Dice) -> i64 {
    let p = dice.below(u64::from(PARTITIONS)) as u32;
    let (key, int) = (stream(p), |args: &[&str]| {
        server.command(args).unwrap().int().unwrap()
    });
    let finished = server.command(&["EVAL", FINISHED, "1", &key, "2"]).unwrap();
    let finished: Vec<_> = finished.items().iter().map(Reply::text).collect();
    let Some(last) = finished.last() else {
        return 0;
    };
    if p % 2 == 1 {
        let some: Vec<_> = finished.iter().filter(|_| dice.one_in(2)).collect();
        let mut delete = vec!["XDEL", &key];
        delete.extend(some.iter().map(|id| id.as_str()));
        return if some.is_empty() { 0 } else { int(&delete) };
    }
    let how = if dice.one_in(2) { "=" } else { "~" };
    int(&["XTRIM", &key, "MINID", how, last])
}

/// What has to be the same after a restart.
fn state(server: &PrivateServer) -> Vec<String> {
    let groups = Groups(server);
    let mut all = vec![groups.ask(&["DEBUG", "DIGEST"]).text()];
    for key in (0..PARTITIONS).map(stream) {
        let facts = groups.ask(&["XINFO", "STREAM", &key]);
        let facts = facts.items().chunks(2);
        let counted = facts.filter(|pair| !pair[0].text().starts_with("radix"));
        all.extend(counted.map(|pair| format!("{key} {} {:?}", pair[0].text(), pair[1])));
        let of = groups.listed(&["XINFO", "GROUPS", &key], ["name", "last-delivered-id"]);
        for group in [CONSUMER, OTHERS] {
            assert!(of.iter().any(|[name, _]| name == group), "{key}: {of:?}");
        }
        all.push(format!("{key} {of:?}"));
    }
    all
}
