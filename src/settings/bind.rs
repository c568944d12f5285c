//! Puts pairs into settings, and says of each that does not fit what is wrong and what to do.

use std::collections::HashSet;

use super::{
    Settings, TopicSettings,
    foreign::{self, Verdict},
    key::{Key, Origin, Place, Section},
    source::{Leaf, Pair, index},
};
use crate::error::{Error, Result};

/// The lists and maps of the root.
const SECTIONS: [&str; 3] = ["Topics", "Consumers", "Producers"];

/// Everything found wrong, one line each.
#[derive(Default)]
pub(super) struct Problems {
    lines: Vec<String>,
    /// Paths whose value was not understood: what contradicts them may only do so because of that.
    failed: HashSet<String>,
    /// Paths already given by this source.
    seen: HashSet<String>,
}

impl Problems {
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Refuses the value of one key.
    pub(super) fn refuse(&mut self, path: String, text: &str) {
        let line = format!("{path}: {text}");
        self.failed.insert(path);
        // a check after a failed load finds some things a second time
        if !self.lines.contains(&line) {
            self.lines.push(line);
        }
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

/// Binds the pairs of one source; those of an origin that was outranked before change nothing.
pub(super) fn bind(
    settings: &mut Settings,
    pairs: &[Pair],
    origin: Origin,
    problems: &mut Problems,
) {
    for pair in pairs {
        bind_one(settings, pair, origin, problems);
    }
}

fn bind_one(settings: &mut Settings, pair: &Pair, origin: Origin, problems: &mut Problems) {
    let (first, rest) = pair
        .path
        .split_first()
        .map_or(("", &[][..]), |(f, r)| (&**f, r));
    let section = SECTIONS.iter().find(|s| s.eq_ignore_ascii_case(first));
    let Some(section) = section else {
        let warnings = &mut Vec::new();
        bind_key(
            settings, "Streams", pair, &pair.path, origin, problems, warnings,
        );
        settings.warnings.append(warnings);
        return;
    };
    let path = format!("Streams:{section}");
    let Some((name, rest)) = rest.split_first() else {
        if let Leaf::Text(_) = pair.leaf {
            problems.refuse(path, "holds several entries; give them one by one");
        }
        return;
    };
    let warnings = &mut settings.warnings;
    match *section {
        "Topics" => {
            let name = match origin {
                // names of variables are often all capitals
                Origin::Environment => same_topic(settings.topics.keys(), name),
                _ => name.clone(),
            };
            let path = format!("{path}:{}", printable(&name));
            if is_entry(&path, rest, pair, problems) {
                let topic: &mut TopicSettings = settings.topics.entry(name).or_default();
                bind_key(topic, &path, pair, rest, origin, problems, warnings);
            }
        }
        "Consumers" => {
            if let Some((path, entry)) = entry_at(&path, name, &mut settings.consumers, problems)
                && is_entry(&path, rest, pair, problems)
            {
                bind_key(entry, &path, pair, rest, origin, problems, warnings);
            }
        }
        _ => {
            if let Some((path, entry)) = entry_at(&path, name, &mut settings.producers, problems)
                && is_entry(&path, rest, pair, problems)
            {
                bind_key(entry, &path, pair, rest, origin, problems, warnings);
            }
        }
    }
}

/// The topic among `known` that `name` means: the one of this name, else the only one that differs
/// in case, else a new one.
fn same_topic<'a>(known: impl Iterator<Item = &'a String> + Clone, name: &str) -> String {
    let mut similar = known.clone().filter(|k| k.eq_ignore_ascii_case(name));
    match (similar.next(), similar.next()) {
        (Some(only), None) => only.clone(),
        _ => name.into(),
    }
}

/// The entry of a list that a number names, made when it is the next.
fn entry_at<'a, S: Section>(
    list_path: &str,
    number: &str,
    list: &'a mut Vec<S>,
    problems: &mut Problems,
) -> Option<(String, &'a mut S)> {
    let Some(i) = index(number) else {
        let path = format!("{list_path}:{}", printable(number));
        problems.refuse(path, "is a list; its entries are numbered from 0");
        return None;
    };
    let path = format!("{list_path}[{i}]");
    if i > list.len() {
        let next = list.len();
        problems.refuse(path, &format!("leaves a hole; the next entry is [{next}]"));
        return None;
    }
    if i == list.len() {
        list.push(S::default());
    }
    Some((path, &mut list[i]))
}

/// Refuses entries that are no objects.
fn is_entry(path: &str, rest: &[String], pair: &Pair, problems: &mut Problems) -> bool {
    let is_object = !rest.is_empty() || pair.leaf == Leaf::Empty;
    if !is_object {
        problems.refuse(path.into(), "is no object; give its keys, or remove it");
    }
    is_object
}

fn bind_key<S: Section>(
    section: &mut S,
    at: &str,
    pair: &Pair,
    rest: &[String],
    origin: Origin,
    problems: &mut Problems,
    warnings: &mut Vec<String>,
) {
    if rest.is_empty() {
        if let Leaf::Text(_) = pair.leaf {
            problems.refuse(at.into(), "is no object; give its keys, or remove it");
        }
        return; // an entry without keys has the defaults
    }
    if let Some((key, below)) = find::<S>(rest) {
        return put(section, key, at, pair, below, origin, problems);
    }
    let path = format!("{at}:{}", printable(&rest.join(":")));
    if S::KEYS.iter().any(|k| is_below(k.name, rest)) {
        if pair.leaf != Leaf::Empty {
            problems.refuse(path, "is no object; give its keys, or remove it");
        }
        return;
    }
    let value = match &pair.leaf {
        Leaf::Text(text) => Some(&**text),
        Leaf::Null => None,
        Leaf::Empty => Some("{}"),
    };
    match foreign::judge(S::PLACE, &rest[0], value) {
        Verdict::Fine => {}
        Verdict::Idle(why) => {
            let name = foreign::names(S::PLACE).find(|n| n.eq_ignore_ascii_case(&rest[0]));
            let pattern = S::PLACE.pattern();
            let text = format!(
                "{pattern}:{} has no effect: {why}",
                name.unwrap_or_default()
            );
            if !warnings.contains(&text) {
                warnings.push(text);
            }
        }
        Verdict::Refused(why) => problems.refuse(path, &with_variable(pair, why)),
        Verdict::Unknown => {
            let (meant, text) = explain::<S>(at, rest);
            if let Some(meant) = meant {
                problems.failed.insert(meant);
            }
            problems.refuse(path, &with_variable(pair, &text));
        }
    }
}

/// The key a path begins with, and what of the path is left.
fn find<'p, S: Section>(path: &'p [String]) -> Option<(&'static Key<S>, &'p [String])> {
    S::KEYS.iter().find_map(|key| {
        let names = [Some(key.name), key.alias];
        let mut below = names
            .into_iter()
            .flatten()
            .filter_map(|name| strip(name, path));
        below.next().map(|below| (key, below))
    })
}

/// `path` behind the parts of `name`, if it begins with them.
fn strip<'p>(name: &str, path: &'p [String]) -> Option<&'p [String]> {
    let mut parts = path.iter();
    for part in name.split(':') {
        if !parts.next()?.eq_ignore_ascii_case(part) {
            return None;
        }
    }
    Some(parts.as_slice())
}

/// Whether `name` is the name of a key below `path`.
fn is_below(name: &str, path: &[String]) -> bool {
    let parts: Vec<_> = name.split(':').collect();
    parts.len() > path.len()
        && path
            .iter()
            .zip(parts)
            .all(|(a, b)| a.eq_ignore_ascii_case(b))
}

fn put<S: Section>(
    section: &mut S,
    key: &'static Key<S>,
    at: &str,
    pair: &Pair,
    below: &[String],
    origin: Origin,
    problems: &mut Problems,
) {
    let path = format!("{at}:{}", key.name);
    let item = match below {
        [] => None,
        [part] if key.is_list && index(part).is_some() => index(part),
        _ => {
            let text = format!("has nothing below it; give {}", (key.allowed)());
            return problems.refuse(path, &with_variable(pair, &text));
        }
    };
    let text = match &pair.leaf {
        Leaf::Null if item.is_none() => return, // as if it were not there
        Leaf::Text(text) => text,
        Leaf::Empty if key.is_list && item.is_none() => return,
        Leaf::Null | Leaf::Empty => {
            return problems.refuse(path, &format!("has no value; give {}", (key.allowed)()));
        }
    };
    let target = item.map_or_else(|| path.clone(), |i| format!("{path}[{i}]"));
    if !problems.seen.insert(target.clone()) {
        return problems.refuse(target, &with_variable(pair, "is given twice; remove one"));
    }
    let outranked = section.marks().of(key.name).is_some_and(|by| by > origin);
    let fits = match (outranked, item) {
        (false, _) => (key.put)(section, item, text),
        (true, None) => (key.put)(&mut S::default(), item, text),
        (true, Some(_)) => true,
    };
    if !fits {
        problems.refuse(target, &with_variable(pair, &not_allowed(key, text)));
    } else if !outranked {
        section.marks_mut().set(key.name, origin);
    }
}

/// Why a value is refused, with what may be given.
pub(super) fn not_allowed<S>(key: &Key<S>, value: &str) -> String {
    let value = if key.is_secret {
        super::secret::MASK.into()
    } else {
        printable(value)
    };
    let unit = match (key.unit)() {
        "" => String::new(),
        unit => format!(" ({unit})"),
    };
    format!("\"{value}\" is not allowed; give {}{unit}", (key.allowed)())
}

fn with_variable(pair: &Pair, text: &str) -> String {
    match &pair.variable {
        Some(name) => format!("{text} (environment variable {})", printable(name)),
        None => text.into(),
    }
}

/// What an unknown key may have been meant to be, and how to say it.
fn explain<S: Section>(at: &str, rest: &[String]) -> (Option<String>, String) {
    let given = rest.join(":");
    if let Some(place) = elsewhere(S::PLACE, rest) {
        return (None, format!("does not belong here but under {place}"));
    }
    let own = S::KEYS
        .iter()
        .flat_map(|k| [Some(k.name), k.alias])
        .flatten();
    let sections = SECTIONS.into_iter().filter(|_| S::PLACE == Place::Root);
    let known = own.chain(sections).chain(foreign::names(S::PLACE));
    let nearest = known.map(|name| (distance(&given, name), name)).min();
    let (far, name) = nearest.unwrap_or_default();
    let path = format!("{at}:{name}");
    if far * 2 <= name.len() {
        let text = format!("is not known; did you mean {path}?");
        return (Some(path), text);
    }
    (
        None,
        format!("is not known; the nearest known key is {path}"),
    )
}

/// The kind of section, other than `here`, that has a key of this name.
fn elsewhere(here: Place, rest: &[String]) -> Option<&'static str> {
    fn has<S: Section>(rest: &[String]) -> Option<Place> {
        let known = find::<S>(rest).is_some_and(|(key, below)| key.is_list || below.is_empty());
        known.then_some(S::PLACE)
    }
    let places = [
        has::<Settings>(rest),
        has::<super::ConsumerSettings>(rest),
        has::<TopicSettings>(rest),
        has::<super::ProducerSettings>(rest),
    ];
    let mut places = places.into_iter().flatten().filter(|p| *p != here);
    places.next().map(Place::pattern)
}

/// How many letters must be changed, added or removed to make `a` of `b`, in any case.
fn distance(a: &str, b: &str) -> usize {
    const LONG: usize = 64;
    let (a, b) = (a.to_ascii_lowercase(), b.to_ascii_lowercase());
    if a.len() > LONG {
        return a.len();
    }
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
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
