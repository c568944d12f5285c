//! Every instrument: what it is called, what it tells, and how it is read. The page `docs/metrics.md` is made of
//! this table.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    LaneState, PartitionStatus, TrimReason,
    monitor::{BOUNDS, Bounds, Counted, SIZES, TIMES},
};

use super::{
    Emit, Instrument,
    InstrumentKind::{self, Counter, Gauge, Histogram},
    Seen, Value,
    seen::{ConsumerSeen, LaneSeen, TopicSeen},
};

/// An instrument and how it is read.
pub(super) struct Row {
    pub(super) instrument: Instrument,
    pub(super) read: Read,
}

type Read = fn(&Seen, &mut Emit<'_>);

const T: &[&str] = &["topic"];
const TP: &[&str] = &["topic", "partition"];
const TC: &[&str] = &["topic", "consumer"];
const TPC: &[&str] = &["topic", "partition", "consumer"];
const TRIM: &[&str] = &["topic", "partition", "reason"];
const ERROR: &[&str] = &["topic", "consumer", "policy", "exception.type"];

const MESSAGES: &str = "messages";
const PARTITIONS: &str = "partitions";
const MS: &str = "ms";

/// In the order in which they are visited.
pub(super) static INSTRUMENTS: &[Row] = &[
    row(
        (Counter, "streams.published", MESSAGES, TP),
        "Messages stored, whatever published them; not those that wait for their time.",
        |seen, to| {
            for topic in &seen.topics {
                let name = &*topic.published.topic;
                for (partition, n) in topic.published.stored.iter().enumerate() {
                    to.send(&[name, &partition.to_string()], Value::Counter(*n));
                }
            }
        },
    ),
    row(
        (Counter, "streams.publish.refused", MESSAGES, T),
        "Messages that are certainly not stored.",
        |seen, to| of_topics(seen, to, |t| t.published.refused),
    ),
    row(
        (Counter, "streams.publish.unknown", MESSAGES, T),
        "Messages that may or may not be stored, since the answer was lost.",
        |seen, to| of_topics(seen, to, |t| t.published.unknown),
    ),
    row(
        (Counter, "streams.publish.repeated", MESSAGES, T),
        "Messages that were stored before, under the same dedupe id.",
        |seen, to| of_topics(seen, to, |t| t.published.repeated),
    ),
    row(
        (Gauge, "streams.buffer.queued", MESSAGES, T),
        "Messages that wait in the queue of a buffered publisher; gone when it is closed.",
        |seen, to| {
            for topic in seen.topics.iter().filter(|t| t.has_queue) {
                let queued = gauge(topic.published.queued);
                to.send(&[&topic.published.topic], queued);
            }
        },
    ),
    row(
        (Counter, "streams.buffer.dropped", MESSAGES, T),
        "Messages pushed out of a full queue. They are not stored.",
        |seen, to| of_topics(seen, to, |t| t.published.dropped),
    ),
    row(
        (Counter, "streams.buffer.returned", MESSAGES, T),
        "Messages given back from a queue that was closed. They are not stored.",
        |seen, to| of_topics(seen, to, |t| t.published.returned),
    ),
    row(
        (Counter, "streams.delayed.scheduled", MESSAGES, T),
        "Messages kept on the server until their time has come.",
        |seen, to| of_topics(seen, to, |t| t.published.scheduled),
    ),
    row(
        (Counter, "streams.delayed.moved", MESSAGES, T),
        "Messages published here when their time had come.",
        |seen, to| of_topics(seen, to, |t| t.published.moved),
    ),
    row(
        (Counter, "streams.delayed.put_off", "attempts", T),
        "Attempts at that which failed; the log says what follows.",
        |seen, to| of_topics(seen, to, |t| t.published.put_off),
    ),
    row(
        (Counter, "streams.consumed", MESSAGES, TPC),
        "Messages handled successfully.",
        |seen, to| of_lanes(seen, to, |_, l| Some(Value::Counter(l.status.handled))),
    ),
    row(
        (Counter, "streams.filtered", MESSAGES, TC),
        "Entries left out by the filter.",
        |seen, to| of_consumers(seen, to, |c| Some(Value::Counter(c.filtered))),
    ),
    row(
        (Counter, "streams.errors", "failures", ERROR),
        "Failed handler calls, by what was done about them and by the type of the error, or failed reads.",
        |seen, to| {
            for c in &seen.consumers {
                for e in &c.errors {
                    let labels = [&*c.topic, &*c.name, e.remedy, e.type_name];
                    to.send(&labels, Value::Counter(e.many));
                }
            }
        },
    ),
    row(
        (Counter, "streams.skipped", MESSAGES, TPC),
        "Messages stepped over after a failure.",
        |seen, to| of_lanes(seen, to, |_, l| Some(Value::Counter(l.status.skipped))),
    ),
    row(
        (Counter, "streams.dead", MESSAGES, TPC),
        "Messages that became dead letters.",
        |seen, to| of_lanes(seen, to, |_, l| Some(Value::Counter(l.status.parked))),
    ),
    row(
        (Counter, "streams.payload.missing", "attempts", TPC),
        "Attempts at messages whose bodies are not where they were kept.",
        |seen, to| of_lanes(seen, to, |_, l| Some(Value::Counter(l.payload_missing))),
    ),
    row(
        (Counter, "streams.acked", MESSAGES, TPC),
        "Queues: messages acknowledged, whatever became of them.",
        |seen, to| of_queues(seen, to, |l| Some(Value::Counter(l.acked))),
    ),
    row(
        (Counter, "streams.retried", MESSAGES, TPC),
        "Queues: messages put aside, to be handed over again later.",
        |seen, to| of_queues(seen, to, |l| Some(Value::Counter(l.status.retried))),
    ),
    row(
        (Counter, "streams.late", MESSAGES, TPC),
        "Queues: messages finished here when another member had taken them over. They are handled twice.",
        |seen, to| of_queues(seen, to, |l| Some(Value::Counter(l.status.late))),
    ),
    row(
        (Gauge, "streams.unread", MESSAGES, TPC),
        "Queues: messages that no member was given yet.",
        |seen, to| of_queues(seen, to, |l| l.status.unread.map(gauge)),
    ),
    row(
        (Gauge, "streams.pending", MESSAGES, TPC),
        "Queues: messages given to a member and not acknowledged.",
        |seen, to| of_queues(seen, to, |l| l.status.pending.map(gauge)),
    ),
    row(
        (Gauge, "streams.pending.oldest_idle_ms", MS, TPC),
        "Queues: of the first hundred of these, for how long the most neglected had no sign of life.",
        |seen, to| of_queues(seen, to, |l| l.status.oldest_idle.map(ms)),
    ),
    row(
        (Gauge, "streams.pending.most_deliveries", "deliveries", TPC),
        "Queues: of the same, how often the one was given out that was most often.",
        |seen, to| of_queues(seen, to, |l| l.status.most_deliveries.map(gauge)),
    ),
    row(
        (Gauge, "streams.lag.entries", "entries", TPC),
        "Messages that are not finished; of queues, that no member was given yet.",
        |seen, to| of_lanes(seen, to, |_, l| l.status.lag_entries.map(gauge)),
    ),
    row(
        (Gauge, "streams.lag.ms", MS, TPC),
        "For how long the oldest of these has been waiting, at most.",
        |seen, to| of_lanes(seen, to, |_, l| l.status.lag.map(ms)),
    ),
    row(
        (Gauge, "streams.sample.age_ms", MS, TPC),
        "How old what was asked of the server is: lag, lengths, and what is pending.",
        |seen, to| of_lanes(seen, to, |_, l| l.status.sample_age.map(ms)),
    ),
    row(
        (Gauge, "streams.stream.length", "entries", TP),
        "Entries in the stream of a partition that is read here.",
        |seen, to| {
            // Several consumers may read one; the youngest sample counts.
            let lanes = seen.consumers.iter().flat_map(ConsumerSeen::live);
            let mut lengths = BTreeMap::new();
            for PartitionStatus {
                topic,
                partition,
                stream_length,
                sample_age,
                ..
            } in lanes.map(|l| &l.status)
            {
                if let (Some(length), false) =
                    (*stream_length, *partition == PartitionStatus::RETRIES)
                {
                    let age = sample_age.unwrap_or(Duration::MAX);
                    let known = lengths
                        .entry((&**topic, *partition))
                        .or_insert((age, length));
                    *known = (age, length).min(*known);
                }
            }
            for ((topic, partition), (_, length)) in lengths {
                to.send(&[topic, &partition.to_string()], gauge(length));
            }
        },
    ),
    row(
        (Counter, "streams.gaps", "gaps", TPC),
        "How often messages had gone missing before they were read.",
        |seen, to| of_lanes(seen, to, |_, l| Some(Value::Counter(l.status.gaps))),
    ),
    row(
        (Counter, "streams.gaps.untold", "gaps", TPC),
        "How often nobody could tell how many were missing, or whether any.",
        |seen, to| of_lanes(seen, to, |_, l| Some(Value::Counter(l.status.untold_gaps))),
    ),
    row(
        (Counter, "streams.lost", MESSAGES, TPC),
        "Messages known to be missing.",
        |seen, to| of_lanes(seen, to, |_, l| Some(Value::Counter(l.status.lost))),
    ),
    row(
        (Counter, "streams.connections", "connections", TPC),
        "Connections made to read.",
        |seen, to| of_lanes(seen, to, |_, l| Some(Value::Counter(l.status.connects))),
    ),
    row(
        (Counter, "streams.positions.flush_failures", "failures", TC),
        "Attempts of the timer at storing positions that failed.",
        |seen, to| {
            of_consumers(seen, to, |c| {
                (!c.is_queue).then_some(Value::Counter(c.flush_failures))
            });
        },
    ),
    row(
        (Histogram, "streams.batch.duration", MS, TC),
        "How long a batch was in the hands of the handler: one call, or the messages of one read.",
        |seen, to| times(seen, to, |c| Some(&c.durations)),
    ),
    row(
        (Histogram, "streams.batch.size", MESSAGES, TC),
        "How many messages those were.",
        |seen, to| {
            for c in &seen.consumers {
                send_counted(to, c, &SIZES, &c.sizes, 1.0);
            }
        },
    ),
    row(
        (Histogram, "streams.backpressure.wait", MS, TC),
        "Under MaxInFlight: how long handler calls that had to wait for others waited.",
        |seen, to| times(seen, to, |c| c.max_in_flight.map(|_| &c.held_up)),
    ),
    row(
        (Gauge, "streams.in_flight", "calls", TC),
        "Handler calls that run now.",
        |seen, to| {
            of_consumers(seen, to, |c| {
                let runs = |l: &&LaneSeen| l.status.handler_for.is_some();
                Some(gauge(c.lanes.iter().filter(runs).count() as u64))
            });
        },
    ),
    row(
        (Gauge, "streams.in_flight.max", "calls", TC),
        "How many may run at once: MaxInFlight, or one for each lane.",
        |seen, to| {
            of_consumers(seen, to, |c| {
                let lanes = c.live().count() as u64;
                Some(gauge(c.max_in_flight.map_or(lanes, u64::from)))
            });
        },
    ),
    row(
        (Gauge, "streams.blocked", "status", TPC),
        "1 while the partition is blocked by a message that must not be skipped, else 0.",
        |seen, to| {
            of_lanes(seen, to, |_, l| {
                Some(gauge(u64::from(l.status.state == LaneState::Blocked)))
            });
        },
    ),
    row(
        (Gauge, "streams.block.duration_ms", MS, TPC),
        "For how long it has been; 0 while it is not.",
        |seen, to| {
            of_lanes(seen, to, |_, l| {
                let is_blocked = l.status.state == LaneState::Blocked;
                let since = Some(l.status.in_state).filter(|_| is_blocked);
                Some(ms(since.unwrap_or_default()))
            });
        },
    ),
    row(
        (Gauge, "streams.stopped", "status", TPC),
        "1 when the partition was stopped by its error policy, or left to another, else 0.",
        |seen, to| {
            of_lanes(seen, to, |_, l| {
                Some(gauge(u64::from(l.status.state == LaneState::Stopped)))
            });
        },
    ),
    row(
        (Gauge, "streams.paused", "status", TPC),
        "1 while the partition is paused, else 0.",
        |seen, to| {
            of_lanes(seen, to, |_, l| {
                Some(gauge(u64::from(l.status.state == LaneState::Paused)))
            });
        },
    ),
    row(
        (Gauge, "streams.handler.busy_ms", MS, TPC),
        "For how long the handler call that runs has been running; 0 while none does.",
        |seen, to| {
            of_lanes(seen, to, |_, l| {
                Some(ms(l.status.handler_for.unwrap_or_default()))
            });
        },
    ),
    row(
        (Gauge, "streams.partitions.eligible", PARTITIONS, TC),
        "Partitions that this instance may take.",
        |seen, to| of_consumers(seen, to, |c| Some(gauge(c.eligible))),
    ),
    row(
        (Gauge, "streams.partitions.leased", PARTITIONS, TC),
        "Partitions that this instance owns.",
        |seen, to| {
            of_consumers(seen, to, |c| Some(gauge(c.ownership.owned.len() as u64)));
        },
    ),
    row(
        (Gauge, "streams.partitions.leased.max", PARTITIONS, TC),
        "How many it takes at most (Instances:MaxPartitions); not there without a limit.",
        |seen, to| of_consumers(seen, to, |c| c.max_partitions.map(|n| gauge(n.into()))),
    ),
    row(
        (Gauge, "streams.partitions.unowned", PARTITIONS, TC),
        "Partitions that nobody owns; not there when there are none.",
        |seen, to| {
            of_consumers(seen, to, |c| some(c.ownership.unowned().len()));
        },
    ),
    row(
        (Gauge, "streams.partitions.contested", PARTITIONS, TC),
        "Partitions that two instances take for their own; not there when there are none.",
        |seen, to| of_consumers(seen, to, |c| some(c.ownership.contested.len())),
    ),
    row(
        (Counter, "streams.trimmed", MESSAGES, TRIM),
        "Messages deleted by this process, apart from those that publishing trims to MaxLen.",
        |seen, to| {
            for t in &seen.trimmed {
                for reason in TrimReason::ALL {
                    let labels = [&*t.topic, &*t.partition.to_string(), reason.as_str()];
                    to.send(&labels, Value::Counter(t.messages(reason)));
                }
            }
        },
    ),
    row(
        (Counter, "streams.trimmed.unread", MESSAGES, TP),
        "Those of them that a consumer had yet to read, since it held too much back.",
        |seen, to| {
            for t in &seen.trimmed {
                let labels = [&*t.topic, &*t.partition.to_string()];
                to.send(&labels, Value::Counter(t.unread));
            }
        },
    ),
    row(
        (Counter, "streams.clamp.released", "releases", TPC),
        "How often a consumer came to hold back so much that it was not waited for any more.",
        |seen, to| {
            for t in &seen.trimmed {
                for (consumer, n) in &t.released {
                    let labels = [&*t.topic, &*t.partition.to_string(), &**consumer];
                    to.send(&labels, Value::Counter(*n));
                }
            }
        },
    ),
    row(
        (Counter, "streams.dead.replayed", MESSAGES, TC),
        "Dead letters replayed from this process.",
        |seen, to| {
            for ((topic, consumer), n) in &seen.letters {
                to.send(&[topic, consumer], Value::Counter(n.replayed));
            }
        },
    ),
    row(
        (Counter, "streams.dead.replay_failures", "attempts", TC),
        "Dead letters that could not be replayed: refused, or no proper messages.",
        |seen, to| {
            for ((topic, consumer), n) in &seen.letters {
                to.send(&[topic, consumer], Value::Counter(n.not_replayed));
            }
        },
    ),
    row(
        (Counter, "streams.dead.deleted", MESSAGES, TC),
        "Dead letters deleted from this process.",
        |seen, to| {
            for ((topic, consumer), n) in &seen.letters {
                to.send(&[topic, consumer], Value::Counter(n.deleted));
            }
        },
    ),
];

type Named = (
    InstrumentKind,
    &'static str,
    &'static str,
    &'static [&'static str],
);

const fn row((kind, name, unit, labels): Named, help: &'static str, read: Read) -> Row {
    Row {
        instrument: Instrument {
            name,
            kind,
            unit,
            labels,
            help,
        },
        read,
    }
}

fn of_topics(seen: &Seen, to: &mut Emit<'_>, read: fn(&TopicSeen) -> u64) {
    for topic in &seen.topics {
        to.send(&[&topic.published.topic], Value::Counter(read(topic)));
    }
}

fn of_consumers(seen: &Seen, to: &mut Emit<'_>, read: fn(&ConsumerSeen) -> Option<Value<'static>>) {
    for c in &seen.consumers {
        if let Some(value) = read(c) {
            to.send(&[&c.topic, &c.name], value);
        }
    }
}

type ReadLane = fn(&ConsumerSeen, &LaneSeen) -> Option<Value<'static>>;

fn of_lanes(seen: &Seen, to: &mut Emit<'_>, read: ReadLane) {
    for c in &seen.consumers {
        send_lanes(to, c, |l| read(c, l));
    }
}

fn of_queues(seen: &Seen, to: &mut Emit<'_>, read: fn(&LaneSeen) -> Option<Value<'static>>) {
    for c in seen.consumers.iter().filter(|c| c.is_queue) {
        send_lanes(to, c, read);
    }
}

fn send_lanes(
    to: &mut Emit<'_>,
    c: &ConsumerSeen,
    read: impl Fn(&LaneSeen) -> Option<Value<'static>>,
) {
    for lane in c.live() {
        let Some(value) = read(lane) else { continue };
        let partition = match lane.status.partition {
            PartitionStatus::RETRIES => "retries".to_owned(),
            partition => partition.to_string(),
        };
        to.send(&[&c.topic, &partition, &c.name], value);
    }
}

/// Histograms of times, which are kept in ns.
fn times(seen: &Seen, to: &mut Emit<'_>, read: fn(&ConsumerSeen) -> Option<&Counted>) {
    for c in &seen.consumers {
        if let Some(counted) = read(c) {
            send_counted(to, c, &TIMES, counted, 1e6);
        }
    }
}

/// A histogram whose values are `per` to the unit of the instrument.
#[allow(clippy::cast_precision_loss)]
fn send_counted(to: &mut Emit<'_>, c: &ConsumerSeen, bounds: &Bounds, counted: &Counted, per: f64) {
    let bounds: [f64; BOUNDS] = bounds.map(|bound| bound as f64 / per);
    let value = Value::Histogram {
        bounds: &bounds,
        counts: &counted.counts,
        sum: counted.sum as f64 / per,
        count: counted.total(),
    };
    to.send(&[&c.topic, &c.name], value);
}

#[allow(clippy::cast_precision_loss)]
fn gauge(n: u64) -> Value<'static> {
    Value::Gauge(n as f64)
}

/// Unless there are none.
fn some(n: usize) -> Option<Value<'static>> {
    (n > 0).then(|| gauge(n as u64))
}

fn ms(time: Duration) -> Value<'static> {
    Value::Gauge(time.as_secs_f64() * 1000.0)
}
