//! Where a consumer begins.

use std::{
    ops::Range,
    time::{Duration, SystemTime},
};

use crate::{
    Error, Result, StartFrom, StreamId,
    net::{
        Connection,
        script::{Script, by_hash_first},
    },
    wire::{InstanceId, ORDINAL_MAX, Ordinal, PRESENCE},
};

use super::{
    extent::Extent,
    store::{Loaded, OnRecord, PositionStore, Stored},
};

/// The field of the meta hash that says which start point has been applied, so that a restart goes on
/// where it left off instead of starting over.
const APPLIED: &str = "startFrom";

/// What a consumer says about where to begin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StartPoint {
    pub(crate) from: StartFrom,
    pub(crate) when_missing: StartFrom,
    pub(crate) date: Option<SystemTime>,
}

/// Where the keys of a consumer lie.
pub(crate) struct Places<'a> {
    pub(crate) streams: &'a [Box<[u8]>],
    pub(crate) ownership: &'a str,
    pub(crate) expiries: &'a str,
    pub(crate) instance: InstanceId,
    pub(crate) timeout: Duration,
}

impl StartPoint {
    /// How an applied start point is written down; `None` for the one that is no reset.
    fn label(&self) -> Result<Option<String>> {
        Ok(match self.from {
            StartFrom::Stored => None,
            StartFrom::Beginning => Some("Beginning".into()),
            StartFrom::Now => Some("Now".into()),
            StartFrom::Date => Some(format!(
                "Date {}",
                StreamId::starting_at(self.moment()?).ms()
            )),
        })
    }

    fn moment(&self) -> Result<SystemTime> {
        self.date.ok_or_else(|| {
            Error::config("StartFrom: Date needs StartFromDate, the moment to start from")
        })
    }
}

/// Where a partition begins that was added to a topic when its consumer had begun already: nothing that
/// was ever in it may be missed.
const ADDED: Stored = Stored {
    id: StreamId::MIN,
    ordinal: Some(0),
};

/// The position of each partition to begin at. With `store`, a start point other than `Stored` is
/// applied as a reset: once per consumer, and only while no other instance of it is alive; and what is not
/// stored yet is stored before this returns, so that `Now` stays what it was. Reset markers are left to the
/// lanes of whoever owns their partitions.
pub(crate) fn resolve(
    connection: &mut Connection,
    places: &Places<'_>,
    point: StartPoint,
    store: Option<&mut PositionStore>,
) -> Result<Vec<Stored>> {
    let streams = places.streams;
    let Some(store) = store else {
        return all_fresh(connection, places, point);
    };
    let partitions = streams.len() as u32;
    let label = point.label()?;
    if let Some(label) = &label {
        let applied = applied(connection, places, store)?;
        if applied.as_deref() != Some(label.as_bytes()) {
            let starts = all_fresh(connection, places, point)?;
            if apply(connection, places, store, label, &starts)? {
                store.know(connection, partitions, places.timeout)?;
                return Ok(starts);
            }
        }
    }
    let OnRecord { positions, known } = store.load(connection, 0..partitions, places.timeout)?;
    let (mut missing, mut gone) = (Vec::new(), Vec::new());
    let mut starts = Vec::with_capacity(positions.len());
    let from = if label.is_some() {
        point.from
    } else {
        point.when_missing
    };
    for ((p, stored), key) in (0..).zip(positions).zip(streams) {
        starts.push(match stored {
            Loaded::At(s) => s,
            stored => {
                if stored == Loaded::Gone {
                    gone.push(p);
                }
                let start = if known.is_some_and(|n| p >= n) {
                    ADDED
                } else {
                    fresh(connection, places, key, from, point)?
                };
                missing.push((p, start));
                start
            }
        });
    }
    if !gone.is_empty() {
        log::error!(
            "{}: the stored positions of partitions {gone:?} are gone, though they were stored once; they \
             begin where a new consumer does ({from:?}), and what was handled may be handled again, or missed",
            String::from_utf8_lossy(store.key()),
        );
    }
    for (p, begun) in begin(connection, store, &missing, places.timeout)? {
        starts[p as usize] = begun;
    }
    if known != Some(partitions) {
        store.know(connection, partitions, places.timeout)?;
    }
    Ok(starts)
}

/// Has partitions begin at their beginning that were added to a topic while its consumer runs, unless
/// somebody has begun them already. Returns where they begin.
pub(crate) fn extend(
    connection: &mut Connection,
    store: &PositionStore,
    added: Range<u32>,
    timeout: Duration,
) -> Result<Vec<Stored>> {
    let end = added.end;
    let missing: Vec<_> = added.map(|p| (p, ADDED)).collect();
    let begun = begin(connection, store, &missing, timeout)?;
    store.know(connection, end, timeout)?;
    let mut starts = vec![ADDED; missing.len()];
    for (p, start) in begun {
        let first = missing.first().map_or(0, |(p, _)| *p);
        starts[(p - first) as usize] = start;
    }
    Ok(starts)
}

/// Stores where partitions begin that have no position. Another instance may have begun one of them
/// meanwhile and be further by now: such a one is left alone and returned, with its position.
fn begin(
    connection: &mut Connection,
    store: &PositionStore,
    missing: &[(u32, Stored)],
    timeout: Duration,
) -> Result<Vec<(u32, Stored)>> {
    let set = |name, p: u32, start: &Stored| {
        let mut cmd = redis::cmd(name);
        let value = store.value_of(start.id);
        cmd.arg(store.key()).arg(p).arg(value);
        cmd
    };
    let begin: Vec<_> = missing.iter().map(|(p, s)| set("HSETNX", *p, s)).collect();
    let (mut then, mut others) = (Vec::new(), Vec::new());
    for ((p, start), new) in missing.iter().zip(connection.pipeline(&begin, timeout)?) {
        let mut is_new = matches!(new?, redis::Value::Int(1));
        if !is_new {
            let there = store.load(connection, *p..*p + 1, timeout)?.positions[0];
            if let Loaded::At(stored) = there {
                others.push((*p, stored));
            } else {
                // nobody can read what is there
                then.push(set("HSET", *p, start));
                is_new = true;
            }
        }
        if let Some(entries) = start.ordinal.filter(|_| is_new) {
            let (id, mut buf) = (start.id, [0; ORDINAL_MAX]);
            let mut cmd = redis::cmd("HSET");
            cmd.arg(store.meta_key()).arg(format!("{p}:ordinal"));
            cmd.arg(Ordinal { id, entries }.encode(&mut buf));
            then.push(cmd);
        }
    }
    if !then.is_empty() {
        for done in connection.pipeline(&then, timeout)? {
            done?;
        }
    }
    Ok(others)
}

/// The start point that has been applied.
fn applied(
    connection: &mut Connection,
    places: &Places<'_>,
    store: &PositionStore,
) -> Result<Option<Vec<u8>>> {
    let mut cmd = redis::cmd("HGET");
    cmd.arg(store.meta_key()).arg(APPLIED);
    connection.ask(&cmd, places.timeout)
}

/// Resets the consumer to where `label` says, unless it has been already, or another instance is alive:
/// in one step, for instances may start at the same moment. Says whether it did.
fn apply(
    connection: &mut Connection,
    places: &Places<'_>,
    store: &PositionStore,
    label: &str,
    starts: &[Stored],
) -> Result<bool> {
    let ours = format!("{PRESENCE}{}", places.instance);
    let mut args: Vec<Vec<u8>> = vec![label.into(), ours.into()];
    for (p, start) in starts.iter().enumerate() {
        args.push(p.to_string().into());
        args.push(store.value_of(start.id));
        let ordinal = start.ordinal.map(|entries| {
            let id = start.id;
            Ordinal { id, entries }
                .encode(&mut [0; ORDINAL_MAX])
                .to_vec()
        });
        args.push(ordinal.unwrap_or_default());
    }
    let refused = by_hash_first(|form| {
        let (name, script) = RESET_TO.named(form);
        let mut cmd = redis::cmd(name);
        cmd.arg(script)
            .arg(4)
            .arg(store.key())
            .arg(store.meta_key());
        cmd.arg(places.ownership).arg(places.expiries).arg(&args);
        connection.ask::<String>(&cmd, places.timeout)
    });
    let refused = refused.map_err(|e| {
        let key = String::from_utf8_lossy(store.key());
        let keys = [&*key, places.ownership, places.expiries];
        RESET_TO.saying_what_to_grant(e.during("apply StartFrom"), &keys)
    })?;
    match refused.strip_prefix(PRESENCE) {
        Some(other) => log::warn!(
            "{}: StartFrom {label} is not applied while another instance ({other}) is present",
            places.ownership
        ),
        None if refused.is_empty() => return Ok(true),
        None => {} // another was quicker
    }
    Ok(false)
}

/// `KEYS`: the position hash; the hash of diagnostics; the ownership hash; the set of expiries beside it.
/// `ARGV`: what is applied; our presence field; then a partition, its value, and its ordinal or nothing,
/// and so on. It answers nothing when it was done, the presence of another instance that is alive, or
/// `done` when it had been done before.
const RESET_TO: Script = Script {
    text: r"#!lua flags=allow-oom
local positions, meta, hash, set = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
if redis.call('HGET', meta, 'startFrom') == ARGV[1] then return 'done' end
for _, name in ipairs(redis.call('HKEYS', hash)) do
  if string.sub(name, 1, 2) == 'i:' and name ~= ARGV[2] then
    local score = redis.call('ZSCORE', set, name)
    if not score or tonumber(score) > now then return name end
  end
end
for i = 3, #ARGV, 3 do
  redis.call('HSET', positions, ARGV[i], ARGV[i + 1])
  if ARGV[i + 2] ~= '' then redis.call('HSET', meta, ARGV[i] .. ':ordinal', ARGV[i + 2]) end
end
redis.call('HSET', meta, 'startFrom', ARGV[1])
return ''",
    sha1: "f0ffea3d194f3752ea50ce358ae25f915ab627d5",
    commands: "+eval +evalsha +time +hget +hset +hkeys +zscore",
};

/// Where everything begins that nothing is stored of.
fn all_fresh(
    connection: &mut Connection,
    places: &Places<'_>,
    point: StartPoint,
) -> Result<Vec<Stored>> {
    places
        .streams
        .iter()
        .map(|key| fresh(connection, places, key, point.from, point))
        .collect()
}

/// A start that does not depend on what is stored.
fn fresh(
    connection: &mut Connection,
    places: &Places<'_>,
    key: &[u8],
    from: StartFrom,
    point: StartPoint,
) -> Result<Stored> {
    Ok(match from {
        StartFrom::Beginning => Stored {
            id: StreamId::MIN,
            ordinal: gone_before(connection, key, places.timeout)?,
        },
        StartFrom::Now => {
            let now = Extent::of(connection, key, places.timeout)?;
            Stored {
                id: now.last,
                ordinal: Some(now.added),
            }
        }
        StartFrom::Date => Stored {
            id: StreamId::starting_at(point.moment()?).before(),
            ordinal: None,
        },
        StartFrom::Stored => {
            return Err(Error::config(
                "StartFromWhenMissing: Stored goes round in a circle: \
                 say Beginning, Now or Date for a consumer that has nothing stored",
            ));
        }
    })
}

/// How many entries were there once that a consumer which begins with the oldest does not miss, so that
/// all that come from now on count. Where there are entries now, the lane will see: an answer about them
/// may be larger than what the server lets through, and that is no reason not to start.
fn gone_before(connection: &mut Connection, key: &[u8], timeout: Duration) -> Result<Option<u64>> {
    let mut cmd = redis::cmd("XLEN");
    cmd.arg(key);
    let gone = connection.ask(&cmd, timeout).and_then(|length: u64| {
        let empty = (length == 0).then(|| Extent::of(connection, key, timeout));
        Ok(empty.transpose()?.map(|now| now.removed))
    });
    match gone {
        // What may not be asked can be read all the same.
        Err(e) if e.keeps_connection() && !e.is_retryable() => Ok(None),
        gone => gone,
    }
}
