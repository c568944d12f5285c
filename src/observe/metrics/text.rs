//! Metrics as the text that Prometheus reads.

use std::fmt::{self, Write as _};

use super::{Instrument, InstrumentKind, Sample, Value};

/// Writes samples, all of one instrument together.
pub(super) struct Writer<'a> {
    out: &'a mut String,
    /// The instrument whose head was written last.
    of: Option<&'static str>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(out: &'a mut String) -> Self {
        Self { out, of: None }
    }

    pub(super) fn write(&mut self, sample: &Sample<'_>) {
        // Writing to a String never fails.
        let _ = self.try_write(sample);
    }

    fn try_write(
        &mut self,
        Sample {
            instrument,
            labels,
            value,
        }: &Sample<'_>,
    ) -> fmt::Result {
        let (name, out) = (Name(instrument), &mut *self.out);
        if self.of.replace(instrument.name) != Some(instrument.name) {
            let kind = match instrument.kind {
                InstrumentKind::Counter => "counter",
                InstrumentKind::Gauge => "gauge",
                InstrumentKind::Histogram => "histogram",
            };
            writeln!(out, "# HELP {name} {}", Escaped(instrument.help, false))?;
            writeln!(out, "# TYPE {name} {kind}")?;
        }
        match *value {
            Value::Counter(n) => writeln!(out, "{name}{} {n}", Labels(labels, None)),
            Value::Gauge(n) => writeln!(out, "{name}{} {n}", Labels(labels, None)),
            Value::Histogram {
                bounds,
                counts,
                sum,
                count,
            } => {
                let mut below = 0;
                for (i, n) in counts.iter().enumerate() {
                    below += n;
                    let end = bounds.get(i).copied().unwrap_or(f64::INFINITY);
                    let labels = Labels(labels, Some(end));
                    writeln!(out, "{name}_bucket{labels} {below}")?;
                }
                let labels = Labels(labels, None);
                writeln!(out, "{name}_sum{labels} {sum}")?;
                writeln!(out, "{name}_count{labels} {count}")
            }
        }
    }
}

/// What an instrument is called there.
pub(super) struct Name<'a>(pub(super) &'a Instrument);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Instrument {
            name, kind, unit, ..
        } = self.0;
        write_name(f, name)?;
        if *unit == "ms" && !name.ends_with("ms") {
            f.write_str("_ms")?;
        }
        match kind {
            InstrumentKind::Counter => f.write_str("_total"),
            InstrumentKind::Gauge | InstrumentKind::Histogram => Ok(()),
        }
    }
}

fn write_name(f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
    name.chars()
        .try_for_each(|c| f.write_char(if c == '.' { '_' } else { c }))
}

/// Labels in braces; of a range of a histogram with its upper end.
struct Labels<'a>(&'a [(&'static str, &'a str)], Option<f64>);

impl fmt::Display for Labels<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = '{';
        for (name, value) in self.0 {
            f.write_char(std::mem::replace(&mut before, ','))?;
            write_name(f, name)?;
            write!(f, "=\"{}\"", Escaped(value, true))?;
        }
        match self.1 {
            None if self.0.is_empty() => return Ok(()),
            None => {}
            Some(end) if end.is_infinite() => write!(f, "{before}le=\"+Inf\"")?,
            Some(end) => write!(f, "{before}le=\"{end}\"")?,
        }
        f.write_char('}')
    }
}

/// A text with everything escaped that would end it; quotes where they would.
struct Escaped<'a>(&'a str, bool);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '\\' => f.write_str("\\\\"),
            '\n' => f.write_str("\\n"),
            '"' if self.1 => f.write_str("\\\""),
            c => f.write_char(c),
        })
    }
}
