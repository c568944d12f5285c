//! A strict reader of the text that Prometheus reads: anything that is not as the format has it is refused.
#![allow(unreachable_pub, dead_code)]

use std::collections::{BTreeMap, BTreeSet};

/// Labels, and the value.
pub type Series = (BTreeMap<String, String>, f64);

/// Ranges by their ends, the sum and the count.
type Ranges = (Vec<(f64, f64)>, Option<f64>, Option<f64>);

/// A metric with all that belongs to it.
#[derive(Debug, Default)]
pub struct Family {
    pub help: String,
    pub kind: String,
    /// By the name in the line: that of the family, or with `_bucket`, `_sum` or `_count` behind it.
    pub series: Vec<(String, Series)>,
}

/// Reads a whole text, families by their names.
pub fn parse(text: &str) -> Result<BTreeMap<String, Family>, String> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    let mut seen = BTreeSet::new();
    if !text.is_empty() && !text.ends_with('\n') {
        return Err("the last line does not end".into());
    }
    for line in text.lines() {
        let fail = |why: &str| Err(format!("{why}: {line}"));
        if let Some(help) = line.strip_prefix("# HELP ") {
            let Some((name, help)) = help.split_once(' ') else {
                return fail("no help");
            };
            check_name(name, ':')?;
            name.clone_into(&mut current);
            let family = Family {
                help: unescape(help, false)?,
                ..Family::default()
            };
            if families.insert(current.clone(), family).is_some() {
                return fail("a second head");
            }
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let Some((name, kind)) = kind.split_once(' ') else {
                return fail("no type");
            };
            let family = families.get_mut(name).filter(|_| name == current);
            let Some(family) = family.filter(|f| f.kind.is_empty() && f.series.is_empty()) else {
                return fail("a type out of place");
            };
            if !["counter", "gauge", "histogram"].contains(&kind) {
                return fail("an unknown type");
            }
            if (kind == "counter") != name.ends_with("_total") {
                return fail("_total is of counters, and of all of them");
            }
            kind.clone_into(&mut family.kind);
        } else {
            let (name, labels, value) = sample(line).map_err(|e| format!("{e}: {line}"))?;
            let Some(family) = families.get_mut(&current) else {
                return fail("a sample before any head");
            };
            let rest = name.strip_prefix(&*current);
            let belongs = match &*family.kind {
                "histogram" => matches!(rest, Some("_bucket" | "_sum" | "_count")),
                _ => rest == Some(""),
            };
            if !belongs {
                return fail("a sample out of place");
            }
            if !seen.insert((name.clone(), labels.clone())) {
                return fail("a series twice");
            }
            if family.kind != "gauge" && value < 0.0 {
                return fail("less than nothing");
            }
            family.series.push((name, (labels, value)));
        }
    }
    for (name, family) in &families {
        if family.kind.is_empty() || family.series.is_empty() || family.help.is_empty() {
            return Err(format!("{name} is not complete"));
        }
        if family.kind == "histogram" {
            check_histogram(name, family)?;
        }
    }
    Ok(families)
}

fn check_name(name: &str, also: char) -> Result<(), String> {
    let fine = |(i, c): (usize, char)| {
        c.is_ascii_alphabetic() || c == '_' || c == also || i > 0 && c.is_ascii_digit()
    };
    if name.is_empty() || !name.chars().enumerate().all(fine) {
        return Err(format!("no name: {name:?}"));
    }
    Ok(())
}

fn sample(line: &str) -> Result<(String, BTreeMap<String, String>, f64), String> {
    let end = line.find(['{', ' ']).ok_or("no value")?;
    let (name, mut rest) = line.split_at(end);
    check_name(name, ':')?;
    let mut labels = BTreeMap::new();
    if let Some(after) = rest.strip_prefix('{') {
        rest = after;
        loop {
            let (label, after) = rest.split_once("=\"").ok_or("no label")?;
            check_name(label, '_')?;
            let mut escaped = false;
            let end = after.find(|c| {
                let ends = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                ends
            });
            let (value, after) = after.split_at(end.ok_or("a label without an end")?);
            if labels
                .insert(label.into(), unescape(value, true)?)
                .is_some()
            {
                return Err("a label twice".into());
            }
            match after.as_bytes().get(1) {
                Some(b',') => rest = &after[2..],
                Some(b'}') => {
                    rest = &after[2..];
                    break;
                }
                _ => return Err("labels that do not end".into()),
            }
        }
    }
    let value = rest.strip_prefix(' ').ok_or("no blank before the value")?;
    let number: f64 = value.parse().map_err(|e| format!("{e}"))?;
    if !number.is_finite() || value.contains(char::is_whitespace) {
        return Err("no number".into());
    }
    Ok((name.into(), labels, number))
}

fn unescape(text: &str, quotes: bool) -> Result<String, String> {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, quotes) {
            ('\\', _) => match (chars.next(), quotes) {
                (Some('\\'), _) => out.push('\\'),
                (Some('n'), _) => out.push('\n'),
                (Some('"'), true) => out.push('"'),
                (other, _) => return Err(format!("{other:?} was escaped")),
            },
            ('"', true) => return Err("a quote was not escaped".into()),
            _ => out.push(c),
        }
    }
    Ok(out)
}

fn check_histogram(name: &str, family: &Family) -> Result<(), String> {
    let mut by_labels: BTreeMap<_, Ranges> = BTreeMap::new();
    for (line, (labels, value)) in &family.series {
        let mut labels = labels.clone();
        let end = labels.remove("le");
        let of = by_labels.entry(labels).or_default();
        match (&line[name.len()..], end) {
            ("_bucket", Some(end)) => {
                let end = if end == "+Inf" {
                    f64::INFINITY
                } else {
                    end.parse().map_err(|e| format!("{e}"))?
                };
                of.0.push((end, *value));
            }
            ("_sum", None) => of.1 = Some(*value),
            ("_count", None) => of.2 = Some(*value),
            _ => return Err(format!("{line} has no place in a histogram")),
        }
    }
    for (labels, (buckets, sum, count)) in by_labels {
        let grows = buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1);
        let last = buckets.last().copied();
        if !grows || last != count.map(|n| (f64::INFINITY, n)) || sum.is_none() {
            return Err(format!(
                "{name}{labels:?} is no histogram: {buckets:?} {sum:?} {count:?}"
            ));
        }
    }
    Ok(())
}

#[test]
fn what_is_wrong_is_refused() {
    let fine = "# HELP a_total A \\\\ b.\n# TYPE a_total counter\na_total{x=\"q\\\"\\\\\\n\",y=\"\"} 1\na_total{x=\"\",y=\"\"} 2.5\n";
    let families = parse(fine).unwrap();
    let family = &families["a_total"];
    assert_eq!(
        (&*family.help, &*family.series[0].1.0["x"]),
        ("A \\ b.", "q\"\\\n")
    );
    for (from, to) in [
        ("a_total counter", "a_total gauge"),
        ("# TYPE a_total counter\n", ""),
        ("# HELP", "# HELP b c\n# TYPE b gauge\n# HELP"),
        ("a_total{x=\"\",y=\"\"} 2.5", "b_total 1"),
        ("x=\"\",y=\"\"", "x=\"q\\\"\\\\\\n\",y=\"\""),
        ("x=\"\"", "x=\"\n\""),
        ("x=\"\"", "x=\"\"\""),
        ("x=\"\"", "1x=\"\""),
        ("x=\"\"", "y=\"\""),
        ("2.5", "NaN"),
        ("2.5", "-1"),
        ("2.5", "2.5 7"),
        ("2.5\n", "2.5"),
        ("A \\\\", "A \\x"),
    ] {
        let wrong = fine.replacen(from, to, 1);
        assert_ne!(wrong, fine, "{from}");
        assert!(parse(&wrong).is_err(), "{wrong}");
    }
}
