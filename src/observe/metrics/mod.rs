//! What is counted and measured, for whoever collects it.

mod seen;
mod table;
mod text;

use std::{fmt, sync::Arc};

pub(crate) use seen::{ConsumerSeen, LaneSeen, Seen, TopicSeen};
use table::{INSTRUMENTS, Row};

/// The metrics of everything that goes on in this process through one [`Streams`](crate::Streams), as they are at
/// the moment when they are asked for. `streamlane::metrics` in the documentation lists them.
///
/// Cheap to clone. It keeps nothing alive: once the last handle of the `Streams` is gone there is nothing to see.
#[derive(Clone)]
pub struct Metrics {
    source: Arc<dyn Source>,
}

/// Where metrics come from.
pub(crate) trait Source: Send + Sync {
    /// How things are now. `None` when nothing is there any more.
    fn look(&self) -> Option<Seen>;
}

/// How the values of an instrument are to be read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum InstrumentKind {
    /// It only grows. It begins at 0 when what it is about does: the process, or the lane of a partition that was
    /// taken.
    Counter,
    /// It is as large as it is now. A series that is not there is unknown, or about nothing: never 0 instead.
    Gauge,
    /// Values by range, since the process began.
    Histogram,
}

/// What is measured in one respect, under one name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Instrument {
    /// The name, such as `streams.published`.
    pub name: &'static str,
    /// How its values are to be read.
    pub kind: InstrumentKind,
    /// What they count: `messages`, `ms` and so on.
    pub unit: &'static str,
    /// The names of its labels, in the order in which samples have them.
    pub labels: &'static [&'static str],
    /// What it tells, in a sentence.
    pub help: &'static str,
}

/// One value of an instrument.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct Sample<'a> {
    /// What was measured.
    pub instrument: &'a Instrument,
    /// Of what: names and values, in the order of the instrument's labels.
    pub labels: &'a [(&'static str, &'a str)],
    /// The value.
    pub value: Value<'a>,
}

/// The value of a [`Sample`], in the unit of its instrument.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum Value<'a> {
    /// Of a counter.
    Counter(u64),
    /// Of a gauge.
    Gauge(f64),
    /// Of a histogram.
    #[non_exhaustive]
    Histogram {
        /// The upper ends of all ranges but the last, which has none; ascending. An end is part of its range.
        bounds: &'a [f64],
        /// How many values fell into each range. There is one more than there are bounds.
        counts: &'a [u64],
        /// All values together.
        sum: f64,
        /// How many there were.
        count: u64,
    },
}

impl Metrics {
    pub(crate) fn new(source: Arc<dyn Source>) -> Self {
        Self { source }
    }

    /// Everything that is measured, in the order in which [`visit`](Self::visit) comes to it.
    pub fn instruments() -> impl ExactSizeIterator<Item = &'static Instrument> {
        INSTRUMENTS.iter().map(|row| &row.instrument)
    }

    /// Calls `visitor` with every value there is now, all of one instrument together. Asks no server. It takes
    /// locks that are held for no longer than it takes to look, and none while the visitor runs.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), streamlane::Error> {
    /// # let streams = streamlane::Streams::connect("redis://127.0.0.1:6379")?;
    /// use streamlane::{Sample, Value};
    ///
    /// streams.metrics().visit(&mut |sample: &Sample<'_>| {
    ///     if let Value::Counter(n) = sample.value {
    ///         println!("{} {:?} {n}", sample.instrument.name, sample.labels);
    ///     }
    /// });
    /// # Ok(()) }
    /// ```
    pub fn visit(&self, visitor: &mut dyn FnMut(&Sample<'_>)) {
        if let Some(seen) = self.source.look() {
            visit(&seen, visitor);
        }
    }

    /// All values as the text that Prometheus reads (`text/plain; version=0.0.4`): dots in names become
    /// underscores, counters end in `_total`, and what is measured in ms ends in `_ms`.
    pub fn to_prometheus(&self) -> String {
        let mut out = String::new();
        self.write_prometheus(&mut out);
        out
    }

    /// As [`to_prometheus`](Self::to_prometheus), to the end of `out`.
    pub fn write_prometheus(&self, out: &mut String) {
        let mut writer = text::Writer::new(out);
        self.visit(&mut |sample| writer.write(sample));
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// Every value of what was seen, all of one instrument together.
fn visit(seen: &Seen, visitor: &mut dyn FnMut(&Sample<'_>)) {
    for Row { instrument, read } in INSTRUMENTS {
        read(
            seen,
            &mut Emit {
                instrument,
                visitor,
            },
        );
    }
}

/// Passes the values of one instrument on.
struct Emit<'a> {
    instrument: &'static Instrument,
    visitor: &'a mut dyn FnMut(&Sample<'_>),
}

impl Emit<'_> {
    /// One value, with those of the labels in the order of their names.
    fn send(&mut self, labels: &[&str], value: Value<'_>) {
        debug_assert_eq!(labels.len(), self.instrument.labels.len());
        let names = self.instrument.labels.iter().copied();
        let labels: smallvec::SmallVec<[_; 4]> = names.zip(labels.iter().copied()).collect();
        (self.visitor)(&Sample {
            instrument: self.instrument,
            labels: &labels,
            value,
        });
    }
}

#[cfg(test)]
mod tests;
