//! Where a consumer begins.

use std::{
    ops::Range,
    time::{Duration, SystemTime},
};

use crate::{
    Error, Result, StartFrom, StreamId,
    net::Connection,
    wire::{InstanceId, ORDINAL_MAX, Ordinal, POSITION_MAX, PositionValue},
};

use super::{
    extent::Extent,
    resets::Marker,
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
/// applied as a reset: once per consumer, and only while no other instance of it is alive; a reset marker
/// goes before any of them, and is deleted when its position is stored; and what is not stored yet is stored before this returns, so that `Now` stays what it was.
pub(crate) fn resolve(
    connection: &mut Connection,
    places: &Places<'_>,
    point: StartPoint,
    store: Option<&mut PositionStore>,
) -> Result<Vec<Stored>> {
    let Some(store) = store else {
        let from = point.from;
        return places
            .streams
            .iter()
            .map(|key| fresh(connection, places, key, from, point))
            .collect();
    };
    let partitions = places.streams.len() as u32;
    let OnRecord { positions, known } = store.load(connection, 0..partitions, places.timeout)?;
    let markers = store.markers(connection, 0..partitions, places.timeout)?;
    let label = point.label()?;
    let reset = match &label {
        Some(label) => may_reset(connection, places, store, label)?,
        None => false,
    };
    let mut changed = Vec::new();
    let mut gone = Vec::new();
    let mut starts = Vec::with_capacity(positions.len());
    for (p, (stored, key)) in positions.into_iter().zip(places.streams).enumerate() {
        let start = match (&markers[p], stored) {
            // Somebody's word on this very partition goes before everything else.
            (Some(marker), _) => marker.start(),
            (None, Loaded::At(s)) if !reset => s,
            (None, stored) => {
                if stored == Loaded::Gone && !reset {
                    gone.push(p);
                }
                let from = if label.is_some() {
                    point.from
                } else {
                    point.when_missing
                };
                let s = if !reset && known.is_some_and(|n| p as u32 >= n) {
                    ADDED
                } else {
                    fresh(connection, places, key, from, point)?
                };
                changed.push((p, s));
                s
            }
        };
        starts.push(start);
    }
    if !gone.is_empty() {
        log::error!(
            "{}: the stored positions of partitions {gone:?} are gone, though they were stored once; they \
             begin where a new consumer does ({:?}), and what was handled may be handled again, or missed",
            String::from_utf8_lossy(store.key()),
            if label.is_some() {
                point.from
            } else {
                point.when_missing
            },
        );
    }
    keep(
        connection,
        places,
        store,
        &changed,
        label.as_deref().filter(|_| reset),
    )?;
    if known != Some(partitions) {
        store.know(connection, partitions, places.timeout)?;
    }
    for (p, marker) in (0..).zip(&markers) {
        if let Some(marker) = marker {
            settle(connection, store, p, marker, places.timeout)?;
        }
    }
    Ok(starts)
}

/// The position of each partition that was added to a topic while its consumer runs: the beginning, unless
/// somebody has begun it already. It is stored before this returns. A reset marker goes before both.
pub(crate) fn resolve_added(
    connection: &mut Connection,
    store: &PositionStore,
    added: Range<u32>,
    timeout: Duration,
) -> Result<Vec<Stored>> {
    let value = PositionValue {
        id: StreamId::MIN,
        writer: store.instance(),
    };
    // Only where there is none: another instance may have noticed before, and be further by now.
    let begin: Vec<_> = added
        .clone()
        .map(|p| {
            let mut cmd = redis::cmd("HSETNX");
            cmd.arg(store.key()).arg(p);
            cmd.arg(value.encode(&mut [0; POSITION_MAX]));
            cmd
        })
        .collect();
    for begun in connection.pipeline(&begin, timeout)? {
        begun?;
    }
    store.know(connection, added.end, timeout)?;
    let OnRecord { positions, .. } = store.load(connection, added.clone(), timeout)?;
    let markers = store.markers(connection, added.clone(), timeout)?;
    let mut starts = Vec::with_capacity(added.len());
    for ((p, stored), marker) in added.zip(positions).zip(markers) {
        if let Some(marker) = marker {
            settle(connection, store, p, &marker, timeout)?;
            starts.push(marker.start());
            continue;
        }
        starts.push(match stored {
            Loaded::At(s) if s.id > StreamId::MIN || s.ordinal.is_some() => s,
            _ => ADDED,
        });
    }
    Ok(starts)
}

/// Stores the position that a marker asks for at a start and deletes the marker.
fn settle(
    connection: &mut Connection,
    store: &PositionStore,
    partition: u32,
    marker: &Marker,
    timeout: Duration,
) -> Result<()> {
    let (key, reset) = (String::from_utf8_lossy(store.key()), &marker.reset);
    log::warn!("{key}: reset marker found at startup for partition {partition}: {reset}");
    // One that has taken its place meanwhile is found when the lanes run.
    let target = reset.target;
    store.settle(connection, partition, marker, target, timeout)?;
    Ok(())
}

/// Whether the start point is to be applied: it has not been before, and nobody else is at work.
fn may_reset(
    connection: &mut Connection,
    places: &Places<'_>,
    store: &PositionStore,
    label: &str,
) -> Result<bool> {
    let mut cmd = redis::cmd("HGET");
    cmd.arg(store.meta_key()).arg(APPLIED);
    let applied: Option<Vec<u8>> = connection.ask(&cmd, places.timeout)?;
    if applied.as_deref() == Some(label.as_bytes()) {
        return Ok(false);
    }
    let mut cmd = redis::cmd("HKEYS");
    cmd.arg(places.ownership);
    let fields: Vec<Vec<u8>> = connection.ask(&cmd, places.timeout)?;
    let ours = format!("i:{}", places.instance);
    let other = fields
        .iter()
        .find(|f| f.starts_with(b"i:") && **f != ours.as_bytes());
    if let Some(other) = other {
        log::warn!(
            "{}: StartFrom {label} is not applied while another instance ({}) is present",
            places.ownership,
            String::from_utf8_lossy(&other[2..])
        );
    }
    Ok(other.is_none())
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

/// Stores the starts that `changed` and, under `label`, that the start point was applied.
fn keep(
    connection: &mut Connection,
    places: &Places<'_>,
    store: &PositionStore,
    changed: &[(usize, Stored)],
    label: Option<&str>,
) -> Result<()> {
    if !changed.is_empty() {
        let mut cmd = redis::cmd("HSET");
        cmd.arg(store.key());
        for (p, s) in changed {
            let value = PositionValue {
                id: s.id,
                writer: places.instance,
            };
            cmd.arg(*p).arg(value.encode(&mut [0; POSITION_MAX]));
        }
        connection.call(&cmd, places.timeout)?;
        let mut ordinals = redis::cmd("HSET");
        ordinals.arg(store.meta_key());
        let known = changed
            .iter()
            .filter_map(|(p, s)| Some((p, s.id, s.ordinal?)));
        let mut any = false;
        for (p, id, entries) in known {
            let ordinal = Ordinal { id, entries };
            ordinals
                .arg(format!("{p}:ordinal"))
                .arg(ordinal.encode(&mut [0; ORDINAL_MAX]));
            any = true;
        }
        if any {
            connection.call(&ordinals, places.timeout)?;
        }
    }
    // Last: a start that was cut off before is applied again.
    if let Some(label) = label {
        let mut cmd = redis::cmd("HSET");
        cmd.arg(store.meta_key()).arg(APPLIED).arg(label);
        connection.call(&cmd, places.timeout)?;
    }
    Ok(())
}
