//! The checker: finds what went wrong between publishing and handling.
//!
//! Nothing here depends on the order in which events are read, only on what they say, so logs of several
//! threads and processes need no merging: events are collected per partition, sorted once, and compared.

use std::{
    borrow::Borrow,
    collections::HashMap,
    fs::File,
    hash::Hash,
    io::{self, BufRead, BufReader},
    path::Path,
    sync::Arc,
    time::Duration,
};

use super::{
    failed,
    log::{Event, Kind, Line},
    report::{Double, Overlap, Owner, Place, Reorder, Report},
};

/// What counts as a fault. The default is the strictest: everything does.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Messages of one key are handled in the order of their ids.
    pub ordered: bool,
    /// A partition has one owner at a time.
    pub exclusive: bool,
    /// Every message that is handled was published, or may have been, according to the log. To be
    /// switched off when others publish to the topic, too.
    pub closed: bool,
    /// How old a double may be, measured by [`Double::exposure`]. Zero: there may be none.
    pub doubles: Duration,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            ordered: true,
            exclusive: true,
            closed: true,
            doubles: Duration::ZERO,
        }
    }
}

/// Takes events one by one, in any order, and makes a [`Report`] of them. The events are those of one
/// consumer: what two consumers of a topic handled belongs into two logs, each with what was published.
///
/// Memory: 24 to 40 bytes an event, and each distinct key once.
#[derive(Debug, Default)]
pub struct Checker {
    report: Report,
    topics: Names<str>,
    instances: Names<str>,
    keys: Names<[u8]>,
    owners: Vec<Owner>,
    owner_numbers: HashMap<(u32, u64), u32>,
    lane_numbers: HashMap<(u32, u32), usize>,
    lanes: Vec<Lane>,
    /// By topic and key: how many messages may exist that nobody knows of.
    unknown: HashMap<(u32, u32), u64>,
    /// By instance: when it was killed.
    killed: HashMap<u32, Vec<u64>>,
}

/// All about one partition.
#[derive(Debug, Default)]
struct Lane {
    topic: u32,
    partition: u32,
    published: Vec<Mark>,
    /// Skipped, parked or reported lost.
    settled: Vec<Mark>,
    handled: Vec<Handling>,
    reigns: Reigns,
    /// The same by handler calls begun, where they were recorded.
    started: Reigns,
}

/// A message. The key is part of it: an entry handled under another key is not the one published.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Mark {
    id: (u64, u64),
    key: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Handling {
    mark: Mark,
    ns: u64,
    owner: u32,
}

/// By owner: the first and the last time it did something.
type Reigns = HashMap<u32, (u64, u64)>;

impl Checker {
    /// A checker that has seen nothing.
    pub fn new(rules: Rules) -> Self {
        let mut checker = Self::default();
        checker.report.rules = rules;
        checker
    }

    /// Takes an event.
    pub fn add(&mut self, event: &Event<'_>) {
        let counts = &mut self.report.counts;
        let instance = self.instances.number(&*event.instance);
        if event.kind == Kind::Killed {
            counts.killed += 1;
            self.killed.entry(instance).or_default().push(event.time_ns);
            return;
        }
        let topic = self.topics.number(&*event.topic);
        let key = self.keys.number(&*event.key);
        if event.kind == Kind::Unknown {
            counts.unknown += 1;
            *self.unknown.entry((topic, key)).or_default() += 1;
            return;
        }
        let at = (topic, event.partition);
        let lane = *self.lane_numbers.entry(at).or_insert_with(|| {
            self.lanes.push(Lane {
                topic,
                partition: event.partition,
                ..Lane::default()
            });
            self.lanes.len() - 1
        });
        let lane = &mut self.lanes[lane];
        let owners = &mut self.owners;
        let mut owner = || {
            let who = (instance, event.epoch);
            *self.owner_numbers.entry(who).or_insert_with(|| {
                owners.push(Owner {
                    instance: self.instances.name(instance),
                    epoch: event.epoch,
                });
                (owners.len() - 1) as u32
            })
        };
        let (mark, ns) = (Mark { id: event.id, key }, event.time_ns);
        let (count, marks) = match event.kind {
            Kind::Published => (&mut counts.published, Some(&mut lane.published)),
            Kind::Skipped => (&mut counts.skipped, Some(&mut lane.settled)),
            Kind::Parked => (&mut counts.parked, Some(&mut lane.settled)),
            Kind::Lost => (&mut counts.lost, Some(&mut lane.settled)),
            Kind::Started => {
                reign(&mut lane.started, owner(), ns);
                (&mut counts.started, None)
            }
            Kind::Handled => {
                let owner = owner();
                reign(&mut lane.reigns, owner, ns);
                lane.handled.push(Handling { mark, ns, owner });
                (&mut counts.handled, None)
            }
            Kind::Unknown | Kind::Killed => return,
        };
        *count += 1;
        if let Some(marks) = marks {
            marks.push(mark);
        }
    }

    /// Takes all events of a log. A line whose writer died is counted; see [`Report::torn`].
    ///
    /// # Errors
    /// When the file cannot be read, is no log, or holds no event at all.
    pub fn add_file(&mut self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        let at = |n: u64, e: &io::Error| failed(format!("{}:{n}: {e}", path.display()));
        let mut file = BufReader::with_capacity(1 << 18, File::open(path).map_err(|e| at(0, &e))?);
        let (mut line, mut n, mut events) = (Vec::new(), 0, 0);
        while file.read_until(b'\n', &mut line).map_err(|e| at(n, &e))? > 0 {
            n += 1;
            for part in Line::parse(&line) {
                match part.map_err(|e| at(n, &e))? {
                    Line::Torn => self.report.torn += 1,
                    Line::Event(event) => {
                        self.add(&event);
                        events += 1;
                    }
                }
            }
            line.clear();
        }
        if events == 0 {
            return Err(at(n, &failed("there is no event in it")));
        }
        Ok(())
    }

    /// Compares everything. Findings are ordered by topic, partition and id.
    pub fn finish(mut self) -> Report {
        let mut lanes = std::mem::take(&mut self.lanes);
        lanes.sort_by_key(|l| (self.topics.name(l.topic), l.partition));
        for mut lane in lanes {
            lane.published.sort_unstable();
            lane.settled.sort_unstable();
            lane.handled.sort_unstable();
            self.find_losses(&lane);
            self.walk_handled(&lane);
            self.find_overlaps(&lane);
        }
        self.report
    }

    fn find_losses(&mut self, lane: &Lane) {
        let mut handled = lane.handled.iter().map(|h| h.mark).peekable();
        let mut settled = lane.settled.iter().copied().peekable();
        for mark in &lane.published {
            if !reaches(&mut handled, *mark) && !reaches(&mut settled, *mark) {
                let place = self.place(lane, *mark);
                self.report.losses.push(place);
            }
        }
    }

    /// Everything that shows in the handlings of one message, the first of which decides the order.
    fn walk_handled(&mut self, lane: &Lane) {
        let mut published = lane.published.iter().copied().peekable();
        // by key: the latest of the first handlings so far, and of which message
        let mut latest: HashMap<u32, Handling> = HashMap::new();
        for same in lane.handled.chunk_by(|a, b| a.mark == b.mark) {
            let first = same[0];
            if !reaches(&mut published, first.mark) {
                self.meet_stranger(lane, first.mark);
            }
            for again in &same[1..] {
                let double = self.double(lane, &first, again);
                self.report.doubles.push(double);
            }
            let latest = latest.entry(first.mark.key).or_insert(first);
            if first.ns < latest.ns {
                self.report.reorders.push(Reorder {
                    place: self.place(lane, first.mark),
                    overtaken: latest.mark.id,
                    by: Duration::from_nanos(latest.ns - first.ns),
                });
            } else {
                *latest = first;
            }
        }
    }

    fn meet_stranger(&mut self, lane: &Lane, mark: Mark) {
        if let Some(n @ 1..) = self.unknown.get_mut(&(lane.topic, mark.key)) {
            *n -= 1;
            self.report.counts.unknown_handled += 1;
        } else {
            let place = self.place(lane, mark);
            self.report.strangers.push(place);
        }
    }

    fn double(&self, lane: &Lane, first: &Handling, again: &Handling) -> Double {
        let (first_by, again_by) = (first.owner as usize, again.owner as usize);
        let first_by = self.owners[first_by].clone();
        let ends = self.instances.known(&first_by.instance);
        let ends = ends.and_then(|i| self.killed.get(&i));
        let end = ends
            .into_iter()
            .flatten()
            .filter(|ns| (first.ns..=again.ns).contains(ns));
        let end = end.min().copied().unwrap_or(again.ns);
        Double {
            place: self.place(lane, first.mark),
            first_by,
            again_by: self.owners[again_by].clone(),
            first_ns: first.ns,
            again_ns: again.ns,
            exposure: Duration::from_nanos(end - first.ns),
        }
    }

    /// An owner that acts after a newer one has begun. Newer is the larger epoch; among equal ones, who
    /// began later.
    fn find_overlaps(&mut self, lane: &Lane) {
        let reigns = if lane.started.is_empty() {
            &lane.reigns
        } else {
            &lane.started
        };
        let mut reigns: Vec<_> = reigns.iter().map(|(who, r)| (*who as usize, *r)).collect();
        reigns.sort_by_key(|(who, (first, _))| (self.owners[*who].epoch, *first, *who));
        let mut found = Vec::new();
        let mut newer: Option<(usize, u64)> = None;
        for (who, (first, last)) in reigns.into_iter().rev() {
            if let Some((other, began)) = newer.filter(|(_, began)| last > *began) {
                found.push(Overlap {
                    topic: self.topics.name(lane.topic),
                    partition: lane.partition,
                    older: self.owners[who].clone(),
                    newer: self.owners[other].clone(),
                    by: Duration::from_nanos(last - began),
                });
            }
            if newer.is_none_or(|(_, began)| first < began) {
                newer = Some((who, first));
            }
        }
        self.report.overlaps.extend(found.into_iter().rev());
    }

    fn place(&self, lane: &Lane, mark: Mark) -> Place {
        Place {
            topic: self.topics.name(lane.topic),
            partition: lane.partition,
            id: mark.id,
            key: self.keys.name(mark.key),
        }
    }
}

/// Extends an owner's reign to this moment.
fn reign(reigns: &mut Reigns, owner: u32, ns: u64) {
    let (first, last) = reigns.entry(owner).or_insert((ns, ns));
    *first = ns.min(*first);
    *last = ns.max(*last);
}

/// Advances a sorted sequence up to `mark` and says whether it is in it.
fn reaches(marks: &mut std::iter::Peekable<impl Iterator<Item = Mark>>, mark: Mark) -> bool {
    while marks.next_if(|m| *m < mark).is_some() {}
    marks.peek() == Some(&mark)
}

/// Gives numbers to texts.
#[derive(Debug)]
struct Names<T: ?Sized> {
    numbers: HashMap<Arc<T>, u32>,
    names: Vec<Arc<T>>,
}

impl<T: ?Sized> Default for Names<T> {
    fn default() -> Self {
        Self {
            numbers: HashMap::new(),
            names: Vec::new(),
        }
    }
}

impl<T: ?Sized + Hash + Eq> Names<T>
where
    Arc<T>: for<'a> From<&'a T> + Borrow<T>,
{
    fn number(&mut self, name: &T) -> u32 {
        if let Some(n) = self.known(name) {
            return n;
        }
        let (n, name) = (self.names.len() as u32, Arc::<T>::from(name));
        self.names.push(Arc::clone(&name));
        self.numbers.insert(name, n);
        n
    }

    fn known(&self, name: &T) -> Option<u32> {
        self.numbers.get(name).copied()
    }

    fn name(&self, number: u32) -> Arc<T> {
        Arc::clone(&self.names[number as usize])
    }
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
