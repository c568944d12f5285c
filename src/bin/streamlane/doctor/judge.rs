//! What the facts about a server mean. Pure, so that each line is tried in a table.

use std::time::Duration;

use streamlane::ServerTrouble;

use super::{
    Finding, Verdict,
    facts::{Clock, Facts, Latency, Topic},
    rights::{Held, Right, Role},
};
use crate::place::span;

/// Answers that take longer are worth a look. Whether that must be fixed is for people to say.
const SLOW: Duration = Duration::from_millis(10);
/// An idle server looks ten times a second who has waited long enough.
const SLOW_WAIT: Duration = Duration::from_millis(250);

/// Clocks that differ by more are worth a look, or worse.
const APART_MS: u64 = 1_000;
const TOO_FAR_APART_MS: u64 = 30_000;

type Version = (u32, u32, u32);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Family {
    Redis,
    Valkey,
}

pub(crate) fn judge(facts: &Facts) -> Vec<Finding> {
    let mut all = vec![version(facts), role(facts)];
    all.extend(persistence(facts));
    all.extend(memory(facts));
    all.extend(connections(facts));
    all.extend(rights(facts.user.as_deref(), &facts.rights));
    all.push(clock(facts.clock));
    all.push(latency("latency", "an answer takes", SLOW, facts.ping));
    all.push(latency(
        "waiting",
        "a read that waits comes back later than asked by",
        SLOW_WAIT,
        facts.wait,
    ));
    all.extend(facts.topics.iter().flat_map(topic));
    all
}

fn finding(check: &'static str, verdict: Verdict, what: impl Into<String>) -> Finding {
    Finding {
        check,
        verdict,
        what: what.into(),
        fix: None,
    }
}

impl Finding {
    fn with(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

fn parse(text: &str) -> Option<Version> {
    let mut numbers = text.split(['.', '-']).map(str::parse::<u32>);
    let mut next = || numbers.next()?.ok();
    Some((next()?, next()?, next().unwrap_or(0)))
}

fn version(facts: &Facts) -> Finding {
    let valkey = facts
        .info("valkey_version")
        .map(|text| (Family::Valkey, "Valkey", text));
    let redis = || Some((Family::Redis, "Redis", facts.info("redis_version")?));
    let Some((family, name, text)) = valkey.or_else(redis) else {
        let why = "the user may not ask for INFO";
        return finding("version", Verdict::Unknown, why)
            .with("grant +info, or run this as an administrator");
    };
    let Some(version) = parse(text) else {
        return finding("version", Verdict::Unknown, format!("{name} {text}"));
    };
    if family == Family::Redis && version < (7, 0, 0) {
        let what = format!("{name} {text} is too old");
        return finding("version", Verdict::Fix, what).with("Redis 7.0 or later, or Valkey");
    }
    if family == Family::Redis
        && let Some(trouble) = ServerTrouble::of(text)
    {
        let what = format!("{name} {text}: {}; {}", trouble.what, trouble.avoided);
        let fix = format!("upgrade to {} or later", trouble.mended);
        return finding("version", Verdict::Fix, what).with(fix);
    }
    finding("version", Verdict::Ok, format!("{name} {text}"))
}

fn role(facts: &Facts) -> Finding {
    if facts.info("cluster_enabled") == Some("1") {
        let what = "the server is part of a cluster, which this version does not use";
        return finding("role", Verdict::Fix, what).with("a server that stands for itself");
    }
    match facts.info("role") {
        Some("slave") => finding(
            "role",
            Verdict::Fix,
            "the server is a replica, which refuses to be written to",
        )
        .with("name the primary, or a name that follows it"),
        Some("master") => {
            let n = facts.number("connected_slaves").unwrap_or(0);
            finding(
                "role",
                Verdict::Ok,
                format!("a primary with {n} replica(s)"),
            )
        }
        _ => finding(
            "role",
            Verdict::Unknown,
            "the server does not say what it is",
        ),
    }
}

fn persistence(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    let aof = match facts.config("appendonly") {
        Some(text) => Some(text == "yes"),
        None => facts.info("aof_enabled").map(|text| text == "1"),
    };
    let snapshots = facts.config("save").map(|save| !save.is_empty());
    found.push(match (aof, snapshots) {
        (Some(true), _) if facts.config("appendfsync") == Some("no") => {
            let what = "each write goes to a file, but when it reaches the disk is left to the system (appendfsync no)";
            finding("persistence", Verdict::Note, what).with("appendfsync everysec")
        }
        (Some(true), _) => finding("persistence", Verdict::Ok, "each write goes to a file (appendonly yes)"),
        (Some(false), Some(true)) => {
            let what = "only snapshots are kept: a crash of the server loses what was written since the last";
            finding("persistence", Verdict::Note, what).with("appendonly yes, where that must not be")
        }
        (Some(false), Some(false)) => {
            let what = "the server keeps nothing on disk: a restart loses every message, position and claim";
            finding("persistence", Verdict::Fix, what).with("appendonly yes")
        }
        _ => finding("persistence", Verdict::Unknown, "the user may not ask for CONFIG GET").with("grant +config|get"),
    });
    for (field, what) in [
        ("rdb_last_bgsave_status", "the last snapshot failed"),
        ("aof_last_write_status", "the last write to the file failed"),
        (
            "aof_last_bgrewrite_status",
            "the last rewrite of the file failed",
        ),
    ] {
        if facts.info(field).is_some_and(|status| status != "ok") {
            let what = format!("{what}: the server may refuse every write (MISCONF)");
            found.push(
                finding("disk", Verdict::Fix, what)
                    .with("look at its log, its disk and the rights to its directory"),
            );
        }
    }
    found
}

fn memory(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    let limit = facts.config("maxmemory").and_then(|m| m.parse().ok());
    let limit: Option<u64> = limit.or_else(|| facts.number("maxmemory"));
    let used = facts.number("used_memory");
    let mb = |bytes: u64| bytes / (1 << 20);
    found.push(match (used, limit) {
        (Some(used), Some(limit)) if limit > 0 && used >= limit / 10 * 9 => {
            let what = format!(
                "{} MB of {} MB are in use: when it is full, publishing is refused",
                mb(used),
                mb(limit)
            );
            finding("memory", Verdict::Fix, what).with("raise maxmemory, or lower MaxLen of topics")
        }
        (Some(used), Some(limit)) if limit > 0 => finding(
            "memory",
            Verdict::Ok,
            format!("{} MB of {} MB are in use", mb(used), mb(limit)),
        ),
        (Some(used), Some(_)) => {
            let what = format!(
                "{} MB are in use, without a limit: the system ends the server when none is left",
                mb(used)
            );
            finding("memory", Verdict::Note, what).with("set maxmemory below what the machine has")
        }
        _ => finding(
            "memory",
            Verdict::Unknown,
            "the server does not say how much is in use",
        ),
    });
    let policy = facts
        .config("maxmemory-policy")
        .or_else(|| facts.info("maxmemory_policy"));
    found.push(match policy {
        None => finding(
            "eviction",
            Verdict::Unknown,
            "the server does not say what it deletes when memory is short",
        ),
        Some("noeviction") => finding(
            "eviction",
            Verdict::Ok,
            "nothing is deleted when memory is short (noeviction)",
        ),
        Some(policy) => {
            // volatile policies only evict keys with a TTL, of which topics and positions have none
            let what = if policy.starts_with("allkeys") {
                "whole topics and positions"
            } else {
                "claims and markers that carry a TTL"
            };
            let evicted = facts.number("evicted_keys").unwrap_or(0);
            let what = format!(
                "{policy}: when memory is short the server deletes {what} ({evicted} keys so far)"
            );
            let limited = limit.is_none_or(|limit| limit > 0);
            let verdict = if limited || evicted > 0 {
                Verdict::Fix
            } else {
                Verdict::Note
            };
            finding("eviction", verdict, what).with("maxmemory-policy noeviction")
        }
    });
    found
}

fn connections(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    let most = facts.config("maxclients").and_then(|n| n.parse().ok());
    let most: Option<u64> = most.or_else(|| facts.number("maxclients"));
    if let (Some(now), Some(most)) = (facts.number("connected_clients"), most) {
        let what = format!("{now} of {most} connections are in use");
        found.push(if now * 10 >= most * 8 {
            finding("connections", Verdict::Fix, what)
                .with("raise maxclients: each partition that is read takes one")
        } else {
            finding("connections", Verdict::Ok, what)
        });
    }
    if let Some(seconds) = facts.config("timeout").filter(|t| *t != "0") {
        let what = format!(
            "the server hangs up on clients that are idle for {seconds} s, and they connect again"
        );
        found.push(finding("idle", Verdict::Note, what).with("timeout 0"));
    }
    found
}

fn rights(user: Option<&str>, rights: &[Right]) -> Vec<Finding> {
    let user = user.unwrap_or("this user");
    let mut found = Vec::new();
    for role in [Role::Publish, Role::Consume, Role::Queue, Role::Operate] {
        let of_role = || rights.iter().filter(move |r| r.role == role);
        let missing = of_role().filter_map(|r| match &r.held {
            Held::No(why) => Some((r.command, why)),
            _ => None,
        });
        let missing: Vec<_> = missing.collect();
        let name = role.name();
        if let Some((_, why)) = missing.first() {
            let mut commands: Vec<_> = missing
                .iter()
                .map(|(c, _)| format!("+{}", c.to_ascii_lowercase()))
                .collect();
            commands.dedup();
            let what = format!("{user} lacks rights for {name}: {why}");
            let verdict = match role {
                Role::Publish | Role::Consume => Verdict::Fix,
                Role::Queue | Role::Operate => Verdict::Note,
            };
            found.push(finding("rights", verdict, what).with(format!(
                "ACL SETUSER {user} {} and the keys of the topics, if that is what it is for",
                commands.join(" ")
            )));
        } else if of_role().all(|r| r.held == Held::Unknown) {
            found.push(finding(
                "rights",
                Verdict::Unknown,
                format!("what {user} may do for {name}"),
            ));
        } else {
            found.push(finding(
                "rights",
                Verdict::Ok,
                format!("{user} may do all that is needed for {name}"),
            ));
        }
    }
    found
}

fn clock(clock: Option<Clock>) -> Finding {
    let Some(Clock {
        ahead_ms,
        within_ms,
    }) = clock
    else {
        return finding("clock", Verdict::Unknown, "the user may not ask for TIME")
            .with("grant +time");
    };
    let apart = ahead_ms.unsigned_abs().saturating_sub(within_ms);
    let (far, which) = (
        span(Duration::from_millis(ahead_ms.unsigned_abs())),
        if ahead_ms < 0 { "behind" } else { "ahead of" },
    );
    let what = format!("the server's clock is {far} {which} that of this machine");
    let fix = "let both follow a time server: dates, ages and delays are by the server's clock";
    match apart {
        TOO_FAR_APART_MS.. => finding("clock", Verdict::Fix, what).with(fix),
        APART_MS.. => finding("clock", Verdict::Note, what).with(fix),
        _ => finding(
            "clock",
            Verdict::Ok,
            "the server's clock is that of this machine, within a second",
        ),
    }
}

fn latency(check: &'static str, what: &str, slow: Duration, found: Option<Latency>) -> Finding {
    let Some(Latency { p50, p99, most }) = found else {
        return finding(check, Verdict::Unknown, "the server refuses to be asked");
    };
    let what = format!("{what} {p50:.1?} (p50), {p99:.1?} (p99), {most:.1?} at most");
    let fix = "look at SLOWLOG, at what else runs on the machine, and at the network";
    if p99 >= slow {
        finding(check, Verdict::Note, what).with(fix)
    } else {
        finding(check, Verdict::Ok, what)
    }
}

fn topic(topic: &Topic) -> Vec<Finding> {
    if topic.partitions == 0 {
        let what = format!("there is no topic {:?}", topic.name);
        return vec![
            finding("topic", Verdict::Fix, what)
                .with("look whether --prefix and the name are right"),
        ];
    }
    if topic.expiring.is_empty() {
        let what = format!(
            "{}: {} partition(s), none of whose keys expires",
            topic.name, topic.partitions
        );
        return vec![finding("topic", Verdict::Ok, what)];
    }
    let expiring = topic.expiring.iter().map(|(key, left)| {
        let what = format!(
            "{key} expires in {}: what is in it is lost then",
            span(*left)
        );
        finding("topic", Verdict::Fix, what)
            .with(format!("PERSIST {key}, and find out who set that"))
    });
    expiring.collect()
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
