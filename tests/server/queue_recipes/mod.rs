//! What has failed others who work through consumer groups, by the numbers of the recipes.

mod bytes;
mod child;
mod front;
mod groups;
#[path = "../../common/leftovers.rs"]
mod leftovers;
mod members;
mod orphans;
mod pending;
mod retries;

use std::time::Duration;

use streamlane::{
    testing::{PrivateServer, Reply},
    *,
};

pub(crate) use crate::{
    leases::ms,
    queues::{SHORT, as_pod, pending, stream, worker},
    support::*,
};

/// How long a member is thought to live that gives no sign of it: long enough for a busy machine.
const TTL: Duration = ms(2000);
const RENEW: Duration = ms(300);
/// Soon, on a busy machine: what does not work by itself would take minutes, or for ever.
const RESUMES: Duration = Duration::from_secs(15);

/// A member whose death is noticed soon, and whose acknowledgements follow soon.
fn member(streams: &Streams, topic: &str) -> ConsumerBuilder {
    let builder = worker(streams, topic).lease_ttl(TTL).lease_renew(RENEW);
    builder.persist_interval(ms(50))
}

pub(crate) fn text(m: &Message<'_>) -> String {
    String::from_utf8_lossy(m.body()).into_owned()
}

/// The numbers from `from` up to `to`, as bodies say them.
fn numbers(from: u32, to: u32) -> Vec<String> {
    (from..to).map(|n| n.to_string()).collect()
}

/// In the order of the numbers that they are.
fn by_number(mut bodies: Vec<String>) -> Vec<String> {
    bodies.sort_by_key(|n| n.parse::<u32>().unwrap());
    bodies
}

/// Has a client that knows nothing of this library read so many messages, and leave them pending under the name
/// `tool`.
fn orphan(server: &PrivateServer, key: &str, many: usize) -> Vec<String> {
    read_as(server, "tool", key, many)
}

fn read_as(server: &PrivateServer, name: &str, key: &str, many: usize) -> Vec<String> {
    // there already where a member was
    let _ = server.command(&["XGROUP", "CREATE", key, "c", "0", "MKSTREAM"]);
    let many = many.to_string();
    let read = [
        "XREADGROUP",
        "GROUP",
        "c",
        name,
        "COUNT",
        &many,
        "STREAMS",
        key,
        ">",
    ];
    let read = server.command(&read).unwrap();
    let entries = read.items()[0].items()[1].items();
    entries.iter().map(|e| e.items()[0].text()).collect()
}

/// The members that a stream's group knows.
fn known(server: &PrivateServer, key: &str) -> Vec<String> {
    let all = server.command(&["XINFO", "CONSUMERS", key, "c"]).unwrap();
    all.items()
        .iter()
        .map(|c| field(c, "name").text())
        .collect()
}

/// A field of what `XINFO` tells.
fn field(fields: &Reply, name: &str) -> Reply {
    let mut pairs = fields.items().chunks(2);
    pairs.find(|p| p[0].text() == name).unwrap()[1].clone()
}

/// What is pending of a stream: id, member, and how often it was delivered.
pub(crate) fn pending_of(server: &PrivateServer, key: &str) -> Vec<(String, String, i64)> {
    let all = server
        .command(&["XPENDING", key, "c", "-", "+", "10000"])
        .unwrap();
    let entry = |e: &Reply| {
        let e = e.items();
        (e[0].text(), e[1].text(), e[3].int().unwrap())
    };
    all.items().iter().map(entry).collect()
}

/// The dead letters of the consumer `c`.
pub(crate) fn letters(streams: &Streams, topic: &str) -> Vec<DeadLetter> {
    let all = streams.admin().dead_letters(topic, "c");
    all.page(None, 10_000).unwrap().letters
}

/// What was finished is acknowledged, and nothing waits to be tried again.
#[track_caller]
pub(crate) fn nothing_is_left(server: &PrivateServer, topic: &str, partitions: u32) {
    let retries = format!("re:rt:{{{topic}}}:c");
    let keys = (0..partitions).map(|p| stream(topic, p));
    for key in keys.chain([retries.clone()]) {
        expect(&format!("nothing pending in {key}"), || {
            pending(server, &key) == 0
        });
    }
    let length = server.command(&["XLEN", &retries]).unwrap();
    assert_eq!(length, Reply::Int(0), "{retries}");
    for key in ["r", "ri"].map(|kind| format!("re:{kind}:{{{topic}}}:c")) {
        assert_eq!(server.command(&["EXISTS", &key]).unwrap(), Reply::Int(0));
    }
}
