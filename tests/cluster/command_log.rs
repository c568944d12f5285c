//! What a server was told to write, by its own command log.

use std::{collections::BTreeMap, fs};

use streamlane::{StreamId, testing::PrivateServer};

use crate::common::{ownership_key, positions_key};

/// A position as it was stored.
#[derive(Clone, Debug)]
pub struct Stored {
    pub partition: u32,
    pub id: StreamId,
    /// The instance that stored it.
    pub writer: String,
}

/// All positions that were ever stored, oldest first. Fails unless each lies behind the one stored before
/// it. For a server that has stopped and never rewrote its log.
#[track_caller]
pub fn positions_only_rise(server: &PrivateServer) -> Vec<Stored> {
    in_order(server, |before, stored| before < stored)
}

/// The same, where one that is stored already may be stored again.
#[track_caller]
pub fn positions_never_fall(server: &PrivateServer) -> Vec<Stored> {
    in_order(server, |before, stored| before <= stored)
}

#[track_caller]
fn in_order(server: &PrivateServer, are: impl Fn(StreamId, StreamId) -> bool) -> Vec<Stored> {
    let mut latest: BTreeMap<u32, StreamId> = BTreeMap::new();
    let all = positions(server);
    for stored in &all {
        let before = latest.insert(stored.partition, stored.id);
        assert!(
            before.is_none_or(|before| are(before, stored.id)),
            "{stored:?} was stored after {before:?}"
        );
    }
    all
}

/// Of each partition, the claims that were ever made on it, oldest first, however often they were renewed.
pub fn tenures(server: &PrivateServer) -> BTreeMap<u32, Vec<String>> {
    let mut all: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for command in commands(server) {
        let [name, key, fields @ ..] = &command[..] else {
            continue;
        };
        let sets = ["HSET", "HSETNX"];
        if *key != ownership_key() || !sets.iter().any(|n| n.eq_ignore_ascii_case(name)) {
            continue;
        }
        for pair in fields.chunks_exact(2) {
            if let Ok(p) = pair[0].parse() {
                let claims = all.entry(p).or_default();
                if claims.last() != Some(&pair[1]) {
                    claims.push(pair[1].clone());
                }
            }
        }
    }
    all
}

fn positions(server: &PrivateServer) -> Vec<Stored> {
    let mut all = Vec::new();
    for command in commands(server) {
        let [name, key, fields @ ..] = &command[..] else {
            continue;
        };
        if *key != positions_key() {
            continue;
        }
        // a start stores the beginning where nothing is stored yet
        let known = ["HSET", "HSETNX"]
            .iter()
            .any(|n| n.eq_ignore_ascii_case(name));
        assert!(known, "{command:?}");
        all.extend(fields.chunks_exact(2).map(|field| {
            let (id, writer) = field[1].split_once('|').unwrap();
            Stored {
                partition: field[0].parse().unwrap(),
                id: id.parse().unwrap(),
                writer: writer.to_owned(),
            }
        }));
    }
    all
}

/// All of it, oldest first.
fn commands(server: &PrivateServer) -> Vec<Vec<String>> {
    let files = fs::read_dir(server.dir().join("appendonlydir")).unwrap();
    let logs = files.map(|f| f.unwrap().path());
    let logs: Vec<_> = logs
        .filter(|f| f.to_str().unwrap().ends_with(".incr.aof"))
        .collect();
    let [log] = &logs[..] else {
        panic!("not one log: {logs:?}")
    };
    let log = fs::read(log).unwrap();
    let mut rest = &log[..];
    let mut commands = Vec::new();
    while !rest.is_empty() {
        let args = number(&mut rest, b'*');
        let arg = |rest: &mut &[u8]| {
            let length = number(rest, b'$');
            let (text, after) = rest.split_at(length);
            *rest = &after[2..];
            String::from_utf8_lossy(text).into_owned()
        };
        commands.push((0..args).map(|_| arg(&mut rest)).collect());
    }
    commands
}

/// A line that is a mark and a number.
fn number(rest: &mut &[u8], mark: u8) -> usize {
    let end = rest.iter().position(|b| *b == b'\r').unwrap();
    let (line, after) = rest.split_at(end);
    assert_eq!(line[0], mark, "{:?}", String::from_utf8_lossy(line));
    *rest = &after[2..];
    str::from_utf8(&line[1..]).unwrap().parse().unwrap()
}
