//! What goes on beside the messages: positions that are stored, and lanes that have nothing to do.

use std::{fs, thread, time::Duration};

use streamlane::{
    Message, Outgoing,
    testing::{PrivateServer, Reply},
};

use crate::{
    Bench, KEY, Outcome, TYPE, drain,
    figures::{Way, compare},
    machine::Mark,
    source,
};

pub(crate) const LANES: u32 = 64;
/// A consumer stores positions so often.
const INTERVAL: Duration = Duration::from_millis(100);

pub(crate) const TOPIC: &str = "upkeep";

pub(crate) fn measure(bench: &Bench) -> Outcome<()> {
    let title = format!("positions: {LANES} partitions that all move, stored each {INTERVAL:?}");
    let columns = [
        "calls a second",
        "positions a call",
        "mean us a call",
        "slowest us",
    ];
    let ways = vec![Way::new("flusher", || flushes(bench))];
    compare(&bench.options, &title, &columns, ways)?;

    let title = format!("idle: {LANES} lanes with nothing to read");
    let columns = ["% of a core", "server % of a core", "KiB resident a lane"];
    let ways = vec![Way::new("consumer", || idle(bench))];
    compare(&bench.options, &title, &columns, ways)
}

/// Keeps every partition moving for a while, and asks the server what the storing cost it.
fn flushes(bench: &Bench) -> Outcome<Vec<f64>> {
    let consumer = source::reader(bench, TOPIC)
        .persist_interval(INTERVAL)
        .messages(|_| |_: &Message<'_>| Ok(()))
        .start()?;
    let publisher = bench.streams.publisher(TOPIC)?;
    let body = drain::body(100);
    let each: Vec<_> = (0..LANES)
        .map(|p| Outgoing::new(TYPE, &body).key(KEY).partition(p))
        .collect();
    let publish = || -> Outcome<()> {
        let ids = publisher.publish_batch(&each);
        Ok(ids.into_iter().try_for_each(|id| id.map(drop))?)
    };
    publish()?;
    thread::sleep(2 * INTERVAL);
    let server = &bench.server;
    server.command(&[
        "CONFIG",
        "SET",
        "slowlog-log-slower-than",
        "1",
        "slowlog-max-len",
        "100000",
    ])?;
    server.command(&["CONFIG", "RESETSTAT"])?;
    server.command(&["SLOWLOG", "RESET"])?;
    let rounds = (bench.options.window.as_millis() * 4 / INTERVAL.as_millis()).max(2) as u32;
    for _ in 0..4 * rounds {
        publish()?;
        thread::sleep(INTERVAL / 4);
    }
    let seconds = f64::from(rounds) * INTERVAL.as_secs_f64();
    let calls = stores(server)?;
    server.command(&["CONFIG", "SET", "slowlog-log-slower-than", "10000"])?;
    consumer.stop();
    let n = calls.len() as f64;
    let sum = |f: fn(&(f64, f64)) -> f64| calls.iter().map(f).sum::<f64>();
    let slowest = calls.iter().map(|c| c.0).fold(0.0, f64::max);
    Ok(vec![
        n / seconds,
        sum(|c| c.1) / n,
        sum(|c| c.0) / n,
        slowest,
    ])
}

/// Microseconds and positions of each call that stored some.
fn stores(server: &PrivateServer) -> Outcome<Vec<(f64, f64)>> {
    let log = server.command(&["SLOWLOG", "GET", "-1"])?;
    let calls = log.items().iter().filter_map(|entry| {
        let [_, _, took, words, ..] = entry.items() else {
            return None;
        };
        let words: Vec<_> = words.items().iter().map(Reply::text).collect();
        let stores = words[0].eq_ignore_ascii_case("EVALSHA")
            && words.iter().any(|w| w.starts_with("re:p:"));
        // of a long command the log keeps 31 words, and says how many more there were
        let (kept, more) = (words.len(), words.last()?);
        let more = more.strip_prefix("... (").and_then(|m| m.split(' ').next());
        let words = more
            .and_then(|m| m.parse::<usize>().ok())
            .map_or(kept, |m| kept - 1 + m);
        // the script, its keys, and two words come before the positions of three words each
        let positions = words.saturating_sub(9) / 3;
        stores.then(|| (took.int().unwrap_or_default() as f64, positions as f64))
    });
    let calls: Vec<_> = calls.collect();
    if calls.is_empty() {
        return Err("no position was stored".into());
    }
    Ok(calls)
}

/// A consumer of empty partitions: what it uses once it has come up.
fn idle(bench: &Bench) -> Outcome<Vec<f64>> {
    let before = resident()?;
    let consumer = source::reader(bench, TOPIC)
        .messages(|_| |_: &Message<'_>| Ok(()))
        .start()?;
    thread::sleep(bench.options.window);
    let pid = bench.server_pid()?;
    let from = Mark::now(pid);
    thread::sleep(10 * bench.options.window);
    let to = Mark::now(pid);
    let kept = resident()?.saturating_sub(before);
    consumer.stop();
    let percent = |used: u64| used as f64 * 100.0 / (to.at - from.at) as f64;
    Ok(vec![
        percent(to.client - from.client),
        percent(to.server - from.server),
        kept as f64 / f64::from(LANES),
    ])
}

/// KiB of memory that this process has in use.
fn resident() -> Outcome<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kib = line
        .and_then(|l| l.trim().split(' ').next())
        .ok_or("no VmRSS")?;
    Ok(kib.parse()?)
}
