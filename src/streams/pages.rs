//! What is answered over HTTP.

use std::{net::ToSocketAddrs, sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::{Streams, WeakStreams};
use crate::{
    Health, Member, Ownership, PartitionStatus, Result, Rule, Status,
    observe::{HttpServer, Page, Pages, deaths},
    publish::PublishStatus,
};

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
/// As Prometheus asks for it.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

const WAYS: &str = "\
/metrics  what is counted and measured, for Prometheus
/healthz  503 when only a new start of the process helps
/readyz   503 while it does not do its work
/status   all of it, as JSON
";

impl Streams {
    /// Answers over HTTP at this address, on a thread of its own, until what is returned is dropped:
    ///
    /// - `/metrics`: the [metrics](Self::metrics), as Prometheus reads them.
    /// - `/healthz`, whether the process is alive: 503 when a thread of a consumer has ended that nobody told to,
    ///   or a handler has not come back for `StalledSeconds`. An outage of the server, lag, a block or a partition
    ///   that its policy stopped is no reason: a new start would mend none of them.
    /// - `/readyz`, whether it does its work: 503 while [`health`](Self::health) is unhealthy, and until a partition
    ///   was read.
    /// - `/status`: health, partitions, ownership and what was published, as JSON.
    ///
    /// Everybody who can reach the address can read all that, names and error texts included: listen on a loopback
    /// or pod address. Nobody holds up another: at most 32 clients are served at a time, for at most 5 s each, and
    /// one more takes the place of the first. No body of a request is read. It keeps nothing alive: when the
    /// last handle of the `Streams` is gone, `/healthz` and `/readyz` answer 503.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), streamlane::Error> {
    /// # let streams = streamlane::Streams::connect("redis://127.0.0.1:6379")?;
    /// let http = streams.serve_http("127.0.0.1:9464")?;
    /// streams.wait()?;
    /// drop(http);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// An address that cannot be listened at, or a thread that cannot be started.
    pub fn serve_http(&self, addr: impl ToSocketAddrs) -> Result<HttpServer> {
        HttpServer::start(addr, Arc::new(self.downgrade()))
    }
}

impl Pages for WeakStreams {
    fn page(&self, path: &str) -> Option<Page> {
        let render = match path {
            "/" => |_: &Streams| fine(TEXT, WAYS.into()),
            "/metrics" => |s: &Streams| fine(METRICS, s.metrics().to_prometheus()),
            "/healthz" => alive,
            "/readyz" => |s: &Streams| ready(&s.health()),
            "/status" => |s: &Streams| fine(JSON, format!("{:#}\n", status(s))),
            _ => return None,
        };
        Some(
            self.upgrade()
                .map_or_else(ended, |streams| render(&streams)),
        )
    }
}

fn fine(content_type: &'static str, body: String) -> Page {
    Page {
        is_fine: true,
        content_type,
        body,
    }
}

fn ended() -> Page {
    Page {
        is_fine: false,
        ..fine(TEXT, "it has ended\n".into())
    }
}

fn alive(streams: &Streams) -> Page {
    let lives = streams.running().into_iter().flat_map(|c| c.lives());
    let deaths = deaths(&lives.collect::<Vec<_>>());
    if deaths.is_empty() {
        return fine(TEXT, "alive\n".into());
    }
    Page {
        is_fine: false,
        ..fine(TEXT, deaths.join("\n") + "\n")
    }
}

fn ready(health: &Health) -> Page {
    Page {
        is_fine: health.status != Status::Unhealthy && health.rule != Rule::NotReadingYet,
        ..fine(TEXT, format!("{health}\n"))
    }
}

fn status(streams: &Streams) -> Value {
    let health = streams.health();
    json!({
        "health": {
            "status": format!("{:?}", health.status),
            "rule": format!("{:?}", health.rule),
            "description": health.description,
        },
        "partitions": streams.partitions().iter().map(partition).collect::<Vec<_>>(),
        "ownership": streams.ownership().iter().map(ownership).collect::<Vec<_>>(),
        "published": streams.published().iter().map(published).collect::<Vec<_>>(),
    })
}

fn ms(time: Option<Duration>) -> Value {
    time.map_or(Value::Null, |t| json!(t.as_millis() as u64))
}

/// What is not known is null.
fn partition(p: &PartitionStatus) -> Value {
    let is_partition = p.partition != PartitionStatus::RETRIES;
    json!({
        "topic": &*p.topic,
        "consumer": &*p.consumer,
        "partition": is_partition.then_some(p.partition),
        "state": format!("{:?}", p.state),
        "reason": p.reason,
        "inStateMs": ms(Some(p.in_state)),
        "position": p.position.id.to_string(),
        "tail": p.tail.map(|id| id.to_string()),
        "lagEntries": p.lag_entries,
        "lagMs": ms(p.lag),
        "streamLength": p.stream_length,
        "sampleAgeMs": ms(p.sample_age),
        "unread": p.unread,
        "pending": p.pending,
        "handled": p.handled,
        "skipped": p.skipped,
        "deadLetters": p.parked,
        "retried": p.retried,
        "failures": p.failures,
        "gaps": p.gaps,
        "lost": p.lost,
        "handlerForMs": ms(p.handler_for),
        "attempt": p.attempt,
    })
}

fn member(m: &Member) -> Value {
    json!({ "instance": m.instance, "pod": m.pod, "epoch": m.epoch })
}

fn ownership(o: &Ownership) -> Value {
    let members = |some: &[Member]| some.iter().map(member).collect::<Vec<_>>();
    let owners = o.owners.iter().map(|owner| owner.as_ref().map(member));
    let contested = o.contested.iter();
    let contested = contested.map(|(p, by)| json!({ "partition": p, "by": member(by) }));
    json!({
        "topic": &*o.topic,
        "consumer": &*o.consumer,
        "mode": format!("{:?}", o.mode),
        "standing": format!("{:?}", o.standing),
        "me": o.me.as_ref().map(member),
        "owned": o.owned,
        "owners": owners.collect::<Vec<_>>(),
        "members": members(&o.members),
        "contested": contested.collect::<Vec<_>>(),
        "unownedForMs": ms(o.unowned_for),
    })
}

fn published(p: &PublishStatus) -> Value {
    json!({
        "topic": p.topic,
        "stored": p.stored,
        "refused": p.refused,
        "unknown": p.unknown,
        "repeated": p.repeated,
        "dropped": p.dropped,
        "returned": p.returned,
        "queued": p.queued,
        "scheduled": p.scheduled,
        "moved": p.moved,
        "putOff": p.put_off,
    })
}
