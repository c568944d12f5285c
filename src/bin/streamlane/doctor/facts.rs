//! What there is to be known about a server. Nothing is changed to find it out.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use streamlane::{Command, ErrorKind, Reply, Session, testing::now_ns};

use crate::{end::Result, place::now, stderr::with_progress};

use super::rights::{self, Right};

/// How often the server is asked to answer at once, and how often to wait.
const PINGS: usize = 300;
const WAITS: usize = 20;

/// How long the server is asked to wait.
const WAIT: Duration = Duration::from_millis(20);

/// What is to be looked at.
pub(crate) struct Subject<'a> {
    pub(crate) prefix: &'a str,
    pub(crate) topics: &'a [String],
    /// Whose rights, if not one's own.
    pub(crate) user: Option<&'a str>,
    pub(crate) timeout: Duration,
}

#[derive(Default, Debug)]
pub(crate) struct Facts {
    /// All that `INFO` tells; nothing where it may not be asked.
    pub(crate) info: BTreeMap<String, String>,
    /// What `CONFIG GET` tells; nothing where it may not be asked.
    pub(crate) config: BTreeMap<String, String>,
    pub(crate) user: Option<String>,
    pub(crate) rights: Vec<Right>,
    pub(crate) clock: Option<Clock>,
    /// How long an answer takes.
    pub(crate) ping: Option<Latency>,
    /// How much later than asked for one comes that the server waits with.
    pub(crate) wait: Option<Latency>,
    pub(crate) topics: Vec<Topic>,
}

/// What the server's clock says beside ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Clock {
    /// By how much it is ahead, in milliseconds.
    pub(crate) ahead_ms: i64,
    /// How far that may be wrong.
    pub(crate) within_ms: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Latency {
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    pub(crate) most: Duration,
}

/// The keys of a topic.
#[derive(Debug)]
pub(crate) struct Topic {
    pub(crate) name: String,
    pub(crate) partitions: u32,
    /// Keys that will expire, and when.
    pub(crate) expiring: Vec<(String, Duration)>,
}

impl Facts {
    pub(crate) fn gather(session: &mut Session, subject: &Subject<'_>) -> Result<Self> {
        let timeout = subject.timeout;
        let facts = with_progress(
            || "looking at the server".to_owned(),
            || -> Result<Self> {
                let info = ask(session, &Command::new("INFO").arg("everything"), timeout)?;
                let info = info.as_ref().and_then(Reply::text).unwrap_or_default();
                let config = Command::new("CONFIG").arg("GET").arg("*");
                let config = ask(session, &config, timeout)?;
                let user = ask(session, &Command::new("ACL").arg("WHOAMI"), timeout)?;
                let user = user.as_ref().and_then(Reply::text);
                let user = user.map(|u| String::from_utf8_lossy(u).into_owned());
                let user = subject.user.map(str::to_owned).or(user);
                Ok(Self {
                    info: info_fields(&String::from_utf8_lossy(info)),
                    config: config.map_or(BTreeMap::new(), |c| pairs(&c)),
                    rights: rights::look(session, subject, user.as_deref())?,
                    user,
                    clock: clock(session, timeout)?,
                    ping: ping(session, timeout)?,
                    wait: wait(session, subject)?,
                    topics: topics(session, subject)?,
                })
            },
        )??;
        Ok(facts)
    }

    pub(crate) fn number(&self, field: &str) -> Option<u64> {
        self.info.get(field)?.parse().ok()
    }

    pub(crate) fn info(&self, field: &str) -> Option<&str> {
        self.info.get(field).map(String::as_str)
    }

    pub(crate) fn config(&self, field: &str) -> Option<&str> {
        self.config.get(field).map(String::as_str)
    }
}

/// Asks, and takes a refusal of the server for nothing.
pub(super) fn ask(
    session: &mut Session,
    command: &Command,
    timeout: Duration,
) -> Result<Option<Reply>> {
    match session.call(command, timeout) {
        Ok(reply) => Ok(Some(reply)),
        Err(e) if e.kind() == ErrorKind::Server => Ok(None),
        Err(e) => Err(e.into()),
    }
}

fn info_fields(text: &str) -> BTreeMap<String, String> {
    let fields = text.lines().filter_map(|l| l.trim_end().split_once(':'));
    fields.map(|(n, v)| (n.to_owned(), v.to_owned())).collect()
}

fn pairs(reply: &Reply) -> BTreeMap<String, String> {
    let text = |r: &Reply| String::from_utf8_lossy(r.text().unwrap_or_default()).into_owned();
    let all = reply.items().chunks_exact(2);
    all.map(|pair| (text(&pair[0]), text(&pair[1]))).collect()
}

/// Of a few questions, what the quickest answer says.
fn clock(session: &mut Session, timeout: Duration) -> Result<Option<Clock>> {
    let mut best: Option<Clock> = None;
    for _ in 0..5 {
        let before = now();
        let Some(reply) = ask(session, &Command::new("TIME"), timeout)? else {
            return Ok(None);
        };
        let after = now();
        let [seconds, micros] = reply.items() else {
            return Ok(None);
        };
        let [Some(seconds), Some(micros)] = [seconds.int(), micros.int()] else {
            return Ok(None);
        };
        let server = seconds * 1000 + micros / 1000;
        let seen = compare(before, after, server);
        if best.is_none_or(|b| seen.within_ms < b.within_ms) {
            best = Some(seen);
        }
    }
    Ok(best)
}

fn compare(before: SystemTime, after: SystemTime, server_ms: i64) -> Clock {
    let ms = |t: SystemTime| {
        let since = t.duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    };
    let (before, after) = (ms(before), ms(after));
    let around = (after - before).unsigned_abs();
    Clock {
        ahead_ms: server_ms - before.midpoint(after),
        within_ms: around / 2 + 1,
    }
}

fn ping(session: &mut Session, timeout: Duration) -> Result<Option<Latency>> {
    let mut took = Vec::with_capacity(PINGS);
    for _ in 0..PINGS {
        let began = now_ns();
        if ask(session, &Command::new("PING"), timeout)?.is_none() {
            return Ok(None);
        }
        took.push(Duration::from_nanos(now_ns() - began));
    }
    Ok(latency(took))
}

fn wait(session: &mut Session, subject: &Subject<'_>) -> Result<Option<Latency>> {
    let key = rights::probe_key(subject.prefix, "s");
    let read = Command::new("XREAD")
        .arg("BLOCK")
        .arg(WAIT.as_millis() as u64);
    let read = read.arg("STREAMS").key(key).arg("0-0");
    let mut late = Vec::with_capacity(WAITS);
    for _ in 0..WAITS {
        let began = now_ns();
        if ask(session, &read, subject.timeout + WAIT)?.is_none() {
            return Ok(None);
        }
        late.push(Duration::from_nanos(now_ns() - began).saturating_sub(WAIT));
    }
    Ok(latency(late))
}

fn latency(mut took: Vec<Duration>) -> Option<Latency> {
    took.sort();
    let at = |percent: usize| {
        took.get((took.len() * percent / 100).min(took.len().checked_sub(1)?))
            .copied()
    };
    Some(Latency {
        p50: at(50)?,
        p99: at(99)?,
        most: *took.last()?,
    })
}

fn topics(session: &mut Session, subject: &Subject<'_>) -> Result<Vec<Topic>> {
    let mut topics = Vec::new();
    for name in subject.topics {
        let (prefix, timeout) = (subject.prefix, subject.timeout);
        let meta = format!("{prefix}m:{{{name}}}");
        let partitions = ask(
            session,
            &Command::new("HGET").key(&meta).arg("partitions"),
            timeout,
        )?;
        let partitions = partitions
            .and_then(|n| u32::try_from(n.int()?).ok())
            .unwrap_or(0);
        let mut keys = vec![meta];
        for p in 0..partitions {
            keys.push(format!("{prefix}s:{{{name}}}:{p}"));
            keys.push(format!("{prefix}s:{name}:{p}"));
        }
        let mut expiring = Vec::new();
        for keys in keys.chunks(500) {
            let asks: Vec<_> = keys
                .iter()
                .map(|key| Command::new("PTTL").key(key))
                .collect();
            for (key, ttl) in keys.iter().zip(session.call_all(&asks, timeout)?) {
                let ttl = ttl
                    .ok()
                    .and_then(|ms| ms.int())
                    .and_then(|ms| u64::try_from(ms).ok());
                expiring.extend(ttl.map(|ms| (key.clone(), Duration::from_millis(ms))));
            }
        }
        topics.push(Topic {
            name: name.clone(),
            partitions,
            expiring,
        });
    }
    Ok(topics)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_compared_with_the_middle_of_the_question() {
        let at = |ms| UNIX_EPOCH + Duration::from_millis(ms);
        let clock = |ahead_ms, within_ms| Clock {
            ahead_ms,
            within_ms,
        };
        assert_eq!(compare(at(1000), at(1010), 1005), clock(0, 6));
        assert_eq!(compare(at(1000), at(1000), 900), clock(-100, 1));
        assert_eq!(compare(at(1000), at(1020), 3010), clock(2000, 11));
    }

    #[test]
    fn percentiles_are_of_what_was_measured() {
        let ms = Duration::from_millis;
        let of = latency((1..=100).rev().map(ms).collect()).unwrap();
        assert_eq!((of.p50, of.p99, of.most), (ms(51), ms(100), ms(100)));
        assert_eq!(latency(vec![ms(7)]).unwrap().p99, ms(7));
        assert!(latency(Vec::new()).is_none());
    }

    #[test]
    fn info_is_read_line_by_line() {
        let info = info_fields("# Server\r\nredis_version:7.0.15\r\nos:Linux 6:1\r\n\r\n");
        assert_eq!(info["redis_version"], "7.0.15");
        assert_eq!(info["os"], "Linux 6:1");
        assert_eq!(info.len(), 2);
    }
}
