//! Trimming a topic by hand.

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use crate::{
    Admin, Error, PartitionSweep, Result, StreamId, TrimReason, clock,
    consume::Extent,
    error::ErrorKind,
    net::{Connection, Deadline, Interrupt},
    queue::{How, Leave, lowest, trim, trim_oldest},
    retention::{
        Cut, Place, Policy, Search, Strangers, everybody, is_any_between, server_ms, sweep,
    },
    wire::check_topic,
};

use super::{Shared, TIMEOUT, stream};

/// Entries counted of a partition at most.
const MOST_COUNTED: u64 = 250_000;

/// What is to be left of each partition of a topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TrimTo {
    /// The newest so many messages.
    Length(u64),
    /// What is not older than this, on the server's clock.
    Age(Duration),
}

impl Admin {
    /// Trims a topic by age once, as the background trimmer does, whoever holds its lease: what is older than
    /// `RetentionSeconds` goes, but for what a consumer has yet to read; and where that is too much
    /// (`ClampReleaseThreshold`) that goes, too.
    ///
    /// Looks through all keys of the server for consumers that services in other languages have on the topic, step by
    /// step and with pauses. Blocks for that, and up to 30 s.
    ///
    /// # Errors
    ///
    /// A topic whose settings have no `RetentionSeconds`, or `Trim` `None`; a server that cannot be reached or refuses,
    /// or that has more keys than can be looked through: some partitions may have been trimmed.
    pub fn trim_now(&self, topic: impl AsRef<str>) -> Result<Vec<PartitionSweep>> {
        let topic = topic.as_ref();
        check_topic(topic)?;
        let shared = &*self.shared;
        let settings = shared.settings.topic(topic);
        let policy = Policy::of(&settings).filter(|_| settings.trim != crate::Trim::None);
        let policy = policy.ok_or_else(|| {
            Error::config(format!(
                "Streams:Topics:{topic}:RetentionSeconds: topic {topic:?} is kept for any time, so there is nothing to \
                 trim by age; set it, or trim to an age or a length that you say"
            ))
        })?;
        let by = Deadline::after(TIMEOUT);
        let work = || -> Result<Vec<PartitionSweep>> {
            let mut c = shared.connect(by)?;
            let (partitions, co_located) = places(shared, &mut c, topic, None, by)?;
            let names = strangers(shared, &mut c, topic, by)?;
            let strangers = Strangers {
                names: &names,
                complete: true,
            };
            let cutoff = policy.cutoff(server_ms(&mut c, by.left())?);
            let mut done = Vec::new();
            for partition in partitions {
                let stream = shared.keys.stream(topic, partition, co_located);
                let place = Place {
                    keys: &shared.keys,
                    topic,
                    partition,
                    stream: stream.as_bytes(),
                };
                let cut = Cut {
                    connection: &mut c,
                    stream: stream.as_bytes(),
                    counts: &shared.trims.of(topic, partition),
                    timeout: by.left(),
                    goes_on: &mut || !by.left().is_zero(),
                    trimmed: 0,
                };
                let swept = sweep(cut, &place, (&policy, cutoff), strangers);
                done.push(swept.map_err(|e| e.on_key(stream.as_bytes()))?);
            }
            Ok(done)
        };
        work().map_err(|e| e.during("trim"))
    }

    /// Begins to describe how a topic is to be trimmed; nothing is done before [`preview`](TrimTopic::preview) or
    /// [`apply`](TrimTopic::apply).
    ///
    /// ```no_run
    /// # fn main() -> Result<(), streamlane::Error> {
    /// use streamlane::{Streams, TrimTo};
    ///
    /// let streams = Streams::connect("redis://127.0.0.1:6379")?;
    /// let trim = streams.admin().trim("orders", TrimTo::Length(10_000));
    /// for p in trim.preview()? {
    ///     println!("{p}");
    /// }
    /// trim.apply()?;
    /// # Ok(()) }
    /// ```
    pub fn trim(&self, topic: impl Into<String>, to: TrimTo) -> TrimTopic {
        TrimTopic {
            shared: Arc::clone(&self.shared),
            topic: topic.into(),
            to,
            partition: None,
            force: false,
            timeout: TIMEOUT,
        }
    }
}

/// A trim of a topic that is being described; see [`Admin::trim`].
///
/// What a consumer has yet to read stays, unless it is [forced](Self::force). To find who reads the topic all keys
/// of the server are looked through for positions of services in other languages, step by step and with pauses.
/// No step holds the server up.
#[derive(Clone)]
#[must_use = "nothing is done before `preview` or `apply`"]
pub struct TrimTopic {
    shared: Arc<Shared>,
    topic: String,
    to: TrimTo,
    partition: Option<u32>,
    force: bool,
    timeout: Duration,
}

/// What a trim does to a partition, or did. Displayed as a line, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PartitionTrim {
    /// The partition.
    pub partition: u32,
    /// How many messages it has, or had before.
    pub length: u64,
    /// How many are deleted.
    pub trimmed: u64,
    /// Whether `trimmed` are all of them; in a preview they may be at least so many.
    pub exact: bool,
    /// Up to where every consumer has finished; `None` where nobody keeps positions or groups, or where that was not
    /// asked, since the trim is forced.
    pub finished: Option<StreamId>,
    /// The slowest consumers, where more would be deleted without them.
    pub held_by: Vec<String>,
}

impl fmt::Display for PartitionTrim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let least = if self.exact { "" } else { "at least " };
        let Self {
            partition,
            length,
            trimmed,
            ..
        } = self;
        write!(f, "partition {partition}: {least}{trimmed} of {length}")?;
        if let [first, ..] = &self.held_by[..] {
            let finished = self.finished.unwrap_or_default();
            let others = self.held_by.len() - 1;
            write!(f, ", held back by {first}")?;
            if others > 0 {
                write!(f, " and {others} more")?;
            }
            write!(f, " at {finished}")?;
        }
        Ok(())
    }
}

/// What was found of a partition, and what is to be done to it.
struct Plan {
    partition: u32,
    stream: String,
    extent: Extent,
    /// Up to where everybody is finished.
    low: Option<StreamId>,
    held_by: Vec<String>,
    /// What lies before goes.
    from: StreamId,
    /// No more than so many go.
    most: u64,
}

impl TrimTopic {
    /// Only this partition (default: all).
    pub fn partition(mut self, partition: u32) -> Self {
        self.partition = Some(partition);
        self
    }

    /// Deletes what consumers have yet to read, too. Whoever had it yet to read reports a gap.
    pub fn force(mut self) -> Self {
        self.force = true;
        self
    }

    /// How long [`preview`](Self::preview) and [`apply`](Self::apply) may take (default 30 s).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// What the trim would delete, as of now. Changes nothing. Blocks for up to the timeout, half of which is for
    /// counting; after that it says "at least".
    ///
    /// # Errors
    ///
    /// A topic that was never created, a partition that it does not have; a server that cannot be reached or refuses,
    /// or that has more keys than can be looked through.
    pub fn preview(&self) -> Result<Vec<PartitionTrim>> {
        self.run("preview a trim", |c, by| {
            let until = Deadline::after(self.timeout / 2);
            let mut all = Vec::new();
            for plan in self.look(c, by)? {
                let upto = plan.from.before();
                let most = plan.most.min(MOST_COUNTED);
                let between = (StreamId::MIN, upto);
                let (trimmed, counted) =
                    stream::count(c, &plan.stream, between, &plan.extent, most, [until, by])?;
                let exact = counted || trimmed >= plan.most;
                let trimmed = trimmed.min(plan.most);
                all.push(plan.told(trimmed, exact));
            }
            Ok(all)
        })
    }

    /// Does it, partition by partition. Returns what was deleted. Blocks for up to the timeout.
    ///
    /// # Errors
    ///
    /// As [`preview`](Self::preview); what was deleted until then is. It may be done again.
    pub fn apply(&self) -> Result<Vec<PartitionTrim>> {
        self.run("trim", |c, by| {
            let mut all = Vec::new();
            let done = self.trim_each(c, by, &mut all);
            // Whatever ended it: what is gone is gone, and somebody will ask where it went.
            let deleted: u64 = all.iter().map(|p| p.trimmed).sum();
            log::warn!(
                "topic {}: {deleted} messages were deleted by hand, by {:?}{}{}",
                self.topic,
                self.to,
                if self.force { ", forced" } else { "" },
                if done.is_err() {
                    "; it broke off, and may have deleted more"
                } else {
                    ""
                }
            );
            done.map(|()| all)
        })
    }

    /// Trims each partition, and adds what was deleted to `all`, also of the one in which the time is over.
    fn trim_each(
        &self,
        c: &mut Connection,
        by: Deadline,
        all: &mut Vec<PartitionTrim>,
    ) -> Result<()> {
        let reason = match self.to {
            TrimTo::Length(_) => TrimReason::MaxLen,
            TrimTo::Age(_) => TrimReason::Age,
        };
        for plan in self.look(c, by)? {
            let mut goes_on = || !by.left().is_zero();
            let (stream, timeout) = (plan.stream.as_bytes(), by.left());
            let exact = true;
            let how = How { exact, timeout };
            let trimmed = match self.to {
                TrimTo::Length(n) if self.force || plan.low.is_none() => {
                    trim(c, stream, Leave::Newest(n), how, &mut goes_on)
                }
                TrimTo::Length(_) => {
                    trim_oldest(c, stream, (plan.from, plan.most), timeout, &mut goes_on)
                }
                TrimTo::Age(_) => trim(c, stream, Leave::From(plan.from), how, &mut goes_on),
            };
            let trimmed = trimmed.map_err(|e| e.on_key(stream))?;
            let counts = self.shared.trims.of(&self.topic, plan.partition);
            counts.add(reason, trimmed);
            let partition = plan.partition;
            all.push(plan.told(trimmed, true));
            if by.left().is_zero() {
                let what = format!("the time was over in partition {partition}");
                return Err(Error::new(ErrorKind::Timeout, "trim", what));
            }
        }
        Ok(())
    }

    fn run<T>(
        &self,
        operation: &'static str,
        f: impl FnOnce(&mut Connection, Deadline) -> Result<T>,
    ) -> Result<T> {
        check_topic(&self.topic)?;
        let by = Deadline::after(self.timeout);
        let mut connection = self.shared.connect(by)?;
        f(&mut connection, by).map_err(|e| e.during(operation))
    }

    /// Finds out which partitions there are, how they stand, and what is to be done.
    fn look(&self, c: &mut Connection, by: Deadline) -> Result<Vec<Plan>> {
        let (shared, topic) = (&*self.shared, &*self.topic);
        let (partitions, co_located) = places(shared, c, topic, self.partition, by)?;
        let names = if self.force {
            BTreeSet::new()
        } else {
            strangers(shared, c, topic, by)?
        };
        let now = server_ms(c, by.left())?;
        let mut plans = Vec::new();
        for partition in partitions {
            let stream = shared.keys.stream(topic, partition, co_located);
            let extent = Extent::of(c, stream.as_bytes(), by.left())?;
            let end = extent.newest.map_or(StreamId::MIN, StreamId::next);
            let (wanted, most) = match self.to {
                TrimTo::Length(n) => (end, extent.length().saturating_sub(n)),
                TrimTo::Age(age) => {
                    let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
                    (StreamId::new(now.saturating_sub(age), 0), extent.length())
                }
            };
            let mut plan = Plan {
                partition,
                stream,
                extent,
                low: None,
                held_by: Vec::new(),
                from: wanted,
                most,
            };
            if !self.force {
                let place = Place {
                    keys: &shared.keys,
                    topic,
                    partition,
                    stream: plan.stream.as_bytes(),
                };
                let strangers = Strangers {
                    names: &names,
                    complete: true,
                };
                let readers = everybody(c, &place, strangers, by.left())?;
                if let Some((low, names)) = lowest(&readers) {
                    plan.low = Some(low);
                    let stream = plan.stream.as_bytes();
                    // Who has finished all that would go holds nothing back.
                    if low < wanted && is_any_between(c, stream, (low, wanted), by.left())? {
                        plan.from = low;
                        plan.held_by = names.into_iter().map(String::from).collect();
                    }
                }
            }
            plans.push(plan);
        }
        Ok(plans)
    }
}

impl Plan {
    fn told(self, trimmed: u64, exact: bool) -> PartitionTrim {
        let is_held = trimmed < self.most;
        PartitionTrim {
            partition: self.partition,
            length: self.extent.length(),
            trimmed,
            exact,
            finished: self.low,
            held_by: if is_held { self.held_by } else { Vec::new() },
        }
    }
}

impl fmt::Debug for TrimTopic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrimTopic")
            .field("topic", &self.topic)
            .field("to", &self.to)
            .field("partition", &self.partition)
            .field("force", &self.force)
            .finish_non_exhaustive()
    }
}

/// The partitions of a topic, or the one of them that is asked for; and whether they lie together.
pub(super) fn places(
    shared: &Shared,
    c: &mut Connection,
    topic: &str,
    only: Option<u32>,
    by: Deadline,
) -> Result<(Vec<u32>, bool)> {
    let layout = shared.layout(c, topic, by)?;
    let (n, co_located) = (layout.partitions, layout.co_located);
    if n == 0 {
        let what = format!("topic {topic:?} has never been created");
        return Err(Error::config(what));
    }
    match only {
        None => Ok(((0..n).collect(), co_located)),
        Some(p) if p < n => Ok((vec![p], co_located)),
        Some(p) => Err(Error::config(format!(
            "partition {p} does not exist: topic {topic:?} has {n}, numbered from 0"
        ))),
    }
}

/// Everybody who keeps positions on a topic, by their keys. Goes through all keys of the server, with pauses.
pub(super) fn strangers(
    shared: &Shared,
    c: &mut Connection,
    topic: &str,
    by: Deadline,
) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    let (mut search, idle) = (Search::new(&shared.keys, Some(topic)), Interrupt::default());
    while !search.done {
        let pause = search.next.saturating_duration_since(clock::now());
        if by.left() <= pause {
            let what = "the server has so many keys that they could not all be looked through for consumers of the \
                        topic that are on no register: allow more time, or do it by force";
            return Err(Error::new(ErrorKind::Timeout, "look for consumers", what));
        }
        idle.pause(pause);
        let found = search.step(c, &shared.keys, by.left())?.into_iter();
        names.extend(found.filter_map(|(t, consumer)| (t == topic).then_some(consumer)));
    }
    Ok(names)
}
