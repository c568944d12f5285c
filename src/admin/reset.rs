//! Moving a consumer to another place in its topic.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use crate::{
    Error, Result, StartFrom, StreamId,
    clock::{self, RoundTrip},
    consume::{Extent, registered},
    error::ErrorKind,
    net::{Connection, Deadline},
    wire::{
        InstanceId, POSITION_MAX, PRESENCE, PositionValue, ResetMarker, check_consumer,
        check_topic, topic::TopicRecord,
    },
};

use super::{
    Shared, TIMEOUT,
    ownership::claims,
    preview::{PartitionPreview, ResetDirection, ResetPreview},
    regroup::{self, Pending},
    stream,
};

/// Entries counted of a partition at most, unless told otherwise.
const MOST_COUNTED: u64 = 250_000;

/// Where a consumer is to go on. No position is ever set beyond the last id that its stream gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ResetTo {
    /// Every entry that is there is read again.
    Start,
    /// Nothing that is there now is read.
    End,
    /// Strictly after this id, in every partition concerned.
    Id(StreamId),
    /// With the first entry of this millisecond or later.
    Date(SystemTime),
}

/// A reset of a consumer that is being described; see [`Admin::reset`](super::Admin::reset).
///
/// ```no_run
/// # fn main() -> Result<(), streamlane::Error> {
/// use streamlane::{ResetTo, Streams};
///
/// let streams = Streams::connect("redis://127.0.0.1:6379")?;
/// let reset = streams.admin().reset("orders", "billing", ResetTo::Start).partition(3);
/// let preview = reset.preview()?;
/// println!("{preview}");
/// if !preview.any_trimmed_away() {
///     reset.apply()?;
/// }
/// # Ok(()) }
/// ```
///
/// A reset writes, in one step, the position and a marker for each partition. A consumer that does not
/// run begins at the marker when it starts next. One that runs looks for markers every
/// `PersistIntervalMs`: it drops what it has read and not handled, finishes the call it is in, and goes
/// on at the target; what it had finished before moves the position no more. The marker stays until the
/// new position is stored, so that a crash on the way loses nothing of it.
///
/// Of a consumer that is a group ([`Delivery`](crate::Delivery)) the group is set to the target, partition by
/// partition and at once, and what its members have in hand is dealt with as [`pending`](Self::pending) says. A
/// consumer with `Persist: None` never looks.
#[derive(Clone)]
#[must_use = "nothing is done before `preview` or `apply`"]
pub struct Reset {
    shared: Arc<Shared>,
    topic: String,
    consumer: String,
    to: ResetTo,
    partition: Option<u32>,
    when_missing: StartFrom,
    most_counted: u64,
    force: bool,
    pending: Option<Pending>,
    timeout: Duration,
}

/// What was found about a partition that is to be moved.
struct Place {
    partition: u32,
    key: String,
    current: Option<StreamId>,
    owner: Option<String>,
    /// Of a group: how many entries its members have.
    pending: Option<u64>,
    stream: Extent,
    target: StreamId,
}

impl Reset {
    pub(super) fn new(shared: Arc<Shared>, topic: String, consumer: String, to: ResetTo) -> Self {
        Self {
            shared,
            topic,
            consumer,
            to,
            partition: None,
            when_missing: StartFrom::Beginning,
            most_counted: MOST_COUNTED,
            force: false,
            pending: None,
            timeout: TIMEOUT,
        }
    }

    /// Only this partition (default: all).
    pub fn partition(mut self, partition: u32) -> Self {
        self.partition = Some(partition);
        self
    }

    /// Where the consumer begins in a partition that has no position stored: `Beginning` (the default) or
    /// `Now`. Only the preview depends on it, which tells from there how many entries are concerned.
    pub fn when_missing(mut self, from: StartFrom) -> Self {
        self.when_missing = from;
        self
    }

    /// Entries that a preview counts one by one in a partition; from there on it says "at least"
    /// (default 250 000, which 0 means too). To count them the server has to send them.
    pub fn most_counted(mut self, entries: u64) -> Self {
        self.most_counted = if entries == 0 { MOST_COUNTED } else { entries };
        self
    }

    /// Applies it even if an instance owns a partition. The owner takes the reset while it runs.
    pub fn force(mut self) -> Self {
        self.force = true;
        self
    }

    /// Of a consumer that is a group ([`Delivery`](crate::Delivery)): what becomes of what its members were given
    /// and have not acknowledged. It has to be said where there is any; the preview tells how many these are.
    /// What waits to be handed over once more is left alone.
    pub fn pending(mut self, what: Pending) -> Self {
        self.pending = Some(what);
        self
    }

    /// How long [`preview`](Self::preview) and [`apply`](Self::apply) may take (default 30 s). A preview
    /// stops counting after half of it.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// What the reset would do, as of now. Changes nothing. Blocks for up to the timeout.
    ///
    /// # Errors
    ///
    /// A topic that was never created, a partition that it does not have, or a `when_missing` other than
    /// `Beginning` and `Now`; or a server that cannot be reached or refuses.
    pub fn preview(&self) -> Result<ResetPreview> {
        self.run("preview a reset", |connection, by| {
            let half = Deadline::after(self.timeout / 2);
            let places = self.look(connection, by)?;
            let partitions = places
                .into_iter()
                .map(|place| self.preview_of(connection, place, [half, by]));
            Ok(ResetPreview {
                topic: self.topic.clone(),
                consumer: self.consumer.clone(),
                to: self.to,
                partitions: partitions.collect::<Result<_>>()?,
            })
        })
    }

    /// Does it. Returns each partition concerned and its new position, as [`preview`](Self::preview) names
    /// it. All of them are moved, or none; of a group one after the other, and an error says how far that came.
    /// Blocks for up to the timeout.
    ///
    /// Refused while an instance holds a claim on one of the partitions, unless [forced](Self::force):
    /// stop the consumer first. Claims are all that is seen: whoever consumes without writing any takes the
    /// reset while it runs, as if it were forced.
    ///
    /// # Errors
    ///
    /// As [`preview`](Self::preview); [`ErrorKind::Argument`] under a live owner. After
    /// [`Outcome::Unknown`](crate::Outcome::Unknown) it may be applied again, to the same effect.
    pub fn apply(&self) -> Result<Vec<(u32, StreamId)>> {
        self.run("reset", |connection, by| {
            let places = self.look(connection, by)?;
            if !self.force {
                self.refuse_owners(&places)?;
            }
            if places.iter().any(|p| p.pending.is_some()) {
                self.refuse_silence(&places)?;
                self.regroup(connection, &places, by)?;
            } else {
                self.write(connection, &places, by)?;
            }
            let moved: Vec<_> = places.iter().map(|p| (p.partition, p.target)).collect();
            log::warn!("{self}: reset of (partition, position) {moved:?} asked for");
            Ok(moved)
        })
    }

    fn run<T>(
        &self,
        operation: &'static str,
        f: impl FnOnce(&mut Connection, Deadline) -> Result<T>,
    ) -> Result<T> {
        check_topic(&self.topic)?;
        check_consumer(&self.consumer)?;
        if !matches!(self.when_missing, StartFrom::Beginning | StartFrom::Now) {
            let what = "when_missing is Beginning or Now: nothing else can be assumed";
            return Err(Error::new(ErrorKind::Argument, operation, what));
        }
        let by = Deadline::after(self.timeout);
        let mut connection = self.shared.connect(by)?;
        f(&mut connection, by).map_err(|e| e.during(operation))
    }

    /// Finds out which partitions there are and how they stand.
    fn look(&self, c: &mut Connection, by: Deadline) -> Result<Vec<Place>> {
        let Shared { keys, settings, .. } = &*self.shared;
        let partitions = self.partitions(c, by)?;
        let co_located = match settings.topics.get(&self.topic) {
            Some(topic) => topic.co_locate_partitions,
            None => self.shared.is_co_located(c, &self.topic, by)?,
        };
        let stream_keys: Vec<_> = partitions
            .iter()
            .map(|p| keys.stream(&self.topic, *p, co_located))
            .collect();

        let mut positions = redis::cmd("HMGET");
        let positions_key = keys.positions(&self.topic, &self.consumer);
        positions.arg(positions_key).arg(&partitions);
        let positions = c.ask_fields(&positions, partitions.len(), by.left())?;
        let mut owners = claims(c, keys, &self.topic, &self.consumer, by)?;
        let all = registered(c, keys, &self.topic, by.left())?;
        let is_group = all
            .get(&self.consumer)
            .is_some_and(|keeps| keeps.is_group());
        let streams = Extent::of_all(c, &stream_keys, by.left())?;

        let mut places = Vec::with_capacity(partitions.len());
        for (((partition, key), position), stream) in partitions
            .into_iter()
            .zip(stream_keys)
            .zip(positions)
            .zip(streams)
        {
            if stream.is_none() && self.to == ResetTo::End {
                let what = format!(
                    "partition {partition} has no stream {key}, so it has no end: let a publisher or \
                     consumer create it, or reset to the start"
                );
                return Err(Error::config(what));
            }
            let stream = stream.unwrap_or_default();
            let mut owner = owners.remove(&partition.to_string());
            let mut current = position.and_then(|v| Some(PositionValue::parse(&v)?.id));
            let mut pending = None;
            if is_group {
                let standing = regroup::standing(c, &key, &self.consumer, by)?;
                (current, pending) = (standing.delivered, Some(standing.pending));
                let member = || owners.iter().find(|(field, _)| field.starts_with(PRESENCE));
                owner = owner.or_else(|| Some(member()?.1.clone()));
            }
            places.push(Place {
                partition,
                key,
                current,
                owner,
                pending,
                target: target(self.to, &stream),
                stream,
            });
        }
        Ok(places)
    }

    /// The partitions that are concerned.
    fn partitions(&self, c: &mut Connection, by: Deadline) -> Result<Vec<u32>> {
        let Shared { keys, settings, .. } = &*self.shared;
        let topic = &self.topic;
        let mut cmd = redis::cmd("HMGET");
        cmd.arg(keys.topic_meta(topic)).arg(&TopicRecord::FIELDS);
        let values = c.ask_fields(&cmd, TopicRecord::FIELDS.len(), by.left())?;
        let field = |i: usize| values[i].as_deref();
        let record = TopicRecord::parse([field(0), field(1), field(2)]);
        let Some(n) = record.partitions.or(settings.topic(topic).partitions) else {
            let what =
                format!("topic {topic:?} has never been created, so there is nothing to reset");
            return Err(Error::config(what));
        };
        match self.partition {
            None => Ok((0..n).collect()),
            Some(p) if p < n => Ok(vec![p]),
            Some(p) => Err(Error::config(format!(
                "partition {p} does not exist: topic {topic:?} has {n}, numbered from 0"
            ))),
        }
    }

    fn preview_of(
        &self,
        c: &mut Connection,
        place: Place,
        deadlines: [Deadline; 2],
    ) -> Result<PartitionPreview> {
        let Place {
            partition,
            key,
            current,
            owner,
            pending,
            stream,
            target,
        } = place;
        let assumed = match self.when_missing {
            StartFrom::Now => stream.last,
            _ => StreamId::MIN,
        };
        let baseline = current.unwrap_or(assumed);
        let between = (baseline.min(target), baseline.max(target));
        let (entries, exact) =
            stream::count(c, &key, between, &stream, self.most_counted, deadlines)?;
        Ok(PartitionPreview {
            partition,
            current,
            assumed: current.is_none().then_some(assumed),
            target,
            direction: ResetDirection::from_to(baseline, target),
            entries,
            exact,
            oldest: stream.first,
            newest: stream.newest,
            length: stream.length(),
            trimmed_away: stream.first.is_some_and(|id| target < id.before()) && stream.removed > 0,
            pending,
            owner,
        })
    }

    fn refuse_owners(&self, places: &[Place]) -> Result<()> {
        let owned: Vec<_> = places
            .iter()
            .filter_map(|p| {
                Some(format!(
                    "partition {} by {}",
                    p.partition,
                    p.owner.as_ref()?
                ))
            })
            .collect();
        if owned.is_empty() {
            return Ok(());
        }
        let what = format!(
            "{self} is running and owned, {}: scale to zero and try again when the claims have run out, \
             or force it, and the owners take the reset while they run",
            owned.join(", ")
        );
        Err(Error::new(ErrorKind::Argument, "reset", what))
    }

    /// What is pending has to be spoken about.
    fn refuse_silence(&self, places: &[Place]) -> Result<()> {
        let pending: u64 = places.iter().filter_map(|p| p.pending).sum();
        if pending == 0 || self.pending.is_some() {
            return Ok(());
        }
        let what = format!(
            "members of the group {self} have {pending} messages that they have not acknowledged: say whether they \
             are still to be handled (Pending::Keep), or not (Pending::Drop)"
        );
        Err(Error::new(ErrorKind::Argument, "reset", what))
    }

    /// One partition after the other.
    fn regroup(&self, c: &mut Connection, places: &[Place], by: Deadline) -> Result<()> {
        let meta = self.shared.keys.positions_meta(&self.topic, &self.consumer);
        for (i, place) in places.iter().enumerate() {
            let at = (&*place.key, &*meta, place.partition);
            let set = regroup::set(c, at, &self.consumer, place.target, self.pending, by);
            set.map_err(|e| {
                let moved: Vec<_> = places[..i].iter().map(|p| p.partition).collect();
                let text = format!(
                    "partition {} was not moved, and partitions {moved:?} were: {}",
                    place.partition,
                    e.message()
                );
                e.saying(text)
            })?;
        }
        Ok(())
    }

    /// Markers and positions in one command, so that nobody sees one without the other.
    fn write(&self, c: &mut Connection, places: &[Place], by: Deadline) -> Result<()> {
        let keys = &self.shared.keys;
        let now = clock::wall();
        let mut positions = redis::cmd("HSET");
        positions.arg(keys.positions(&self.topic, &self.consumer));
        let mut meta = redis::cmd("HSET");
        let meta_key = keys.positions_meta(&self.topic, &self.consumer);
        meta.arg(&meta_key);
        for Place {
            partition, target, ..
        } in places
        {
            let marker = ResetMarker {
                target: *target,
                issued: Some(now),
            };
            let position = PositionValue {
                id: *target,
                writer: InstanceId::ADMIN,
            };
            positions
                .arg(format!("{}{partition}", ResetMarker::FIELD))
                .arg(marker.to_string())
                .arg(*partition)
                .arg(position.encode(&mut [0; POSITION_MAX]));
            meta.arg(format!("{partition}:updatedUtc"))
                .arg(RoundTrip(now).to_string())
                .arg(format!("{partition}:instanceId"))
                .arg(InstanceId::ADMIN.to_string());
        }
        c.call(&positions, by.left())?;
        // For people: the reset stands without it.
        if let Err(e) = c.call(&meta, by.left()) {
            log::warn!("{self}: the diagnostics of a reset were not written: {e}");
        }
        Ok(())
    }
}

/// The position to give a consumer. Ids that were never given may yet be given to others, and a position
/// beyond them looks like one of another stream.
fn target(to: ResetTo, stream: &Extent) -> StreamId {
    let wanted = match to {
        ResetTo::Start => StreamId::MIN,
        ResetTo::End => stream.last,
        ResetTo::Id(id) => id,
        ResetTo::Date(moment) => StreamId::starting_at(moment).before(),
    };
    wanted.min(stream.last)
}

impl fmt::Display for Reset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.consumer)
    }
}

impl fmt::Debug for Reset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reset")
            .field("topic", &self.topic)
            .field("consumer", &self.consumer)
            .field("to", &self.to)
            .field("partition", &self.partition)
            .field("force", &self.force)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn a_target_never_lies_beyond_the_last_id_given() {
        let stream = Extent {
            last: StreamId::new(50, 3),
            ..Extent::default()
        };
        let date = |ms| ResetTo::Date(UNIX_EPOCH + Duration::from_millis(ms));
        for (to, expected) in [
            (ResetTo::Start, StreamId::MIN),
            (ResetTo::End, stream.last),
            (ResetTo::Id(StreamId::new(50, 2)), StreamId::new(50, 2)),
            (ResetTo::Id(StreamId::MAX), stream.last),
            (date(50), StreamId::new(49, i64::MAX as u64)),
            (date(0), StreamId::MIN),
            (date(60), stream.last),
        ] {
            assert_eq!(target(to, &stream), expected, "{to:?}");
            assert_eq!(target(to, &Extent::default()), StreamId::MIN, "empty");
        }
    }
}
