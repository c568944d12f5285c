//! What is wrong with settings, collected and put into words.

use std::{collections::HashSet, mem};

use super::{key::Key, secret::MASK};
use crate::error::{Error, Result};

/// Everything found wrong, one line each.
#[derive(Default)]
pub(super) struct Problems {
    lines: Vec<String>,
    /// Paths whose value was not understood: what contradicts them may only do so because of that.
    pub(super) failed: HashSet<String>,
    /// Paths already given by this source.
    pub(super) seen: HashSet<String>,
}

impl Problems {
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Refuses the value of one key.
    pub(super) fn refuse(&mut self, path: String, text: &str) {
        self.lines.push(format!("{path}: {text}"));
        self.failed.insert(path);
    }

    /// Refuses values of one section that do not go together, naming the first of their keys.
    pub(super) fn contradict(&mut self, section: &str, keys: &[&str], text: &str) {
        let path = |key: &&str| format!("{section}:{key}");
        if !keys.iter().any(|key| self.failed.contains(&path(key))) {
            self.lines.push(format!("{section}:{}: {text}", keys[0]));
        }
    }

    pub(super) fn into_result(self) -> Result<()> {
        if self.lines.is_empty() {
            return Ok(());
        }
        Err(Error::config(self.lines.join("\n")))
    }
}

/// Why a value is refused, with what may be given.
pub(super) fn not_allowed<S>(key: &Key<S>, value: &str) -> String {
    let value = if key.is_secret {
        MASK.into()
    } else {
        printable(value)
    };
    let unit = match (key.unit)() {
        "" => String::new(),
        unit => format!(" ({unit})"),
    };
    format!("\"{value}\" is not allowed; give {}{unit}", (key.allowed)())
}

/// How many letters must be changed, added or removed to make `a` of `b`, in any case.
pub(super) fn distance(a: &str, b: &str) -> usize {
    const LONG: usize = 64;
    let (a, b) = (a.to_ascii_lowercase(), b.to_ascii_lowercase());
    if a.len() > LONG {
        return a.len();
    }
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = mem::replace(&mut row[0], i + 1);
        for (j, y) in b.chars().enumerate() {
            let change = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[row.len() - 1]
}

/// A text of others on one line of reasonable length.
pub(super) fn printable(text: &str) -> String {
    const MOST: usize = 100;
    let mut shown: String = text
        .chars()
        .take(MOST)
        .flat_map(char::escape_debug)
        .collect();
    if text.chars().nth(MOST).is_some() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_letters() {
        for (a, b, d) in [
            ("BatchSise", "BatchSize", 1),
            ("batchsize", "BatchSize", 0),
            ("BatcSize", "BatchSize", 1),
            ("", "abc", 3),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(a, b), d, "{a} {b}");
        }
        assert_eq!(distance(&"x".repeat(1000), "abc"), 1000);
    }

    #[test]
    fn texts_of_others_stay_on_one_line() {
        assert_eq!(printable("a\nb"), "a\\nb");
        assert_eq!(printable(&"x".repeat(500)).len(), 103);
    }
}
