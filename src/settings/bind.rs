//! Puts pairs into settings, and says of each that does not fit what is wrong and what to do.

use std::{collections::BTreeMap, mem};

use super::{
    Settings, TopicSettings,
    foreign::{self, Verdict},
    key::{Key, Origin, Place, Section},
    problem::{Problems, distance, not_allowed, printable},
    source::{Leaf, Pair, index},
};

/// The lists and maps of the root.
const SECTIONS: [&str; 3] = ["Topics", "Consumers", "Producers"];

const NO_OBJECT: &str = "is no object; give its keys, or remove it";

/// Binds the pairs of one source; where a later origin has spoken already, nothing changes.
pub(super) fn bind(
    settings: &mut Settings,
    pairs: &[Pair],
    origin: Origin,
    problems: &mut Problems,
) {
    let mut binder = Binder {
        origin,
        problems,
        warnings: mem::take(&mut settings.warnings),
    };
    for pair in pairs {
        binder.bind(settings, pair);
    }
    settings.warnings = binder.warnings;
}

struct Binder<'a> {
    origin: Origin,
    problems: &'a mut Problems,
    /// Each once, whatever the number of entries and sources it is found in.
    warnings: Vec<String>,
}

impl Binder<'_> {
    /// Finds the section a pair belongs to.
    fn bind(&mut self, s: &mut Settings, pair: &Pair) {
        let first = pair.path.first().map_or("", |first| first);
        let Some(list) = SECTIONS.iter().find(|s| s.eq_ignore_ascii_case(first)) else {
            return self.key(s, "Streams", pair, &pair.path);
        };
        let path = format!("Streams:{list}");
        let [_, name, rest @ ..] = pair.path.as_slice() else {
            if let Leaf::Text(_) = pair.leaf {
                let problem = "holds several entries; give them one by one";
                self.problems.refuse(path, problem);
            }
            return;
        };
        match *list {
            "Topics" => {
                let name = match self.origin {
                    // names of variables are often all capitals
                    Origin::Environment => same_topic(&s.topics, name),
                    _ => name.clone(),
                };
                let path = format!("{path}:{}", printable(&name));
                self.entry(s.topics.entry(name).or_default(), &path, pair, rest);
            }
            "Consumers" => {
                if let Some((path, entry)) = self.numbered(&mut s.consumers, &path, name) {
                    self.entry(entry, &path, pair, rest);
                }
            }
            _ => {
                if let Some((path, entry)) = self.numbered(&mut s.producers, &path, name) {
                    self.entry(entry, &path, pair, rest);
                }
            }
        }
    }

    /// The entry of a list that a number names, made when it is the next.
    fn numbered<'s, S: Section>(
        &mut self,
        list: &'s mut Vec<S>,
        path: &str,
        number: &str,
    ) -> Option<(String, &'s mut S)> {
        let Some(i) = index(number) else {
            let path = format!("{path}:{}", printable(number));
            let problem = "is no number, and the entries of a list are numbered from 0";
            self.problems.refuse(path, problem);
            return None;
        };
        let (path, next) = (format!("{path}[{i}]"), list.len());
        if i > next {
            let problem = format!("leaves a hole; the next entry is [{next}]");
            self.problems.refuse(path, &problem);
            return None;
        }
        if i == next {
            list.push(S::default());
        }
        Some((path, &mut list[i]))
    }

    /// An entry is an object, if an empty one; `null` is refused, as a mistake of indentation.
    fn entry<S: Section>(&mut self, section: &mut S, at: &str, pair: &Pair, rest: &[String]) {
        if rest.is_empty() && pair.leaf == Leaf::Null {
            return self.problems.refuse(at.into(), NO_OBJECT);
        }
        self.key(section, at, pair, rest);
    }

    /// Finds the key of a section that a path names, or says why there is none.
    fn key<S: Section>(&mut self, section: &mut S, at: &str, pair: &Pair, rest: &[String]) {
        let Some(first) = rest.first() else {
            if let Leaf::Text(_) = pair.leaf {
                self.problems.refuse(at.into(), NO_OBJECT);
            }
            return; // nothing set
        };
        if let Some((key, below)) = find::<S>(rest) {
            return self.put(section, key, at, pair, below);
        }
        let path = format!("{at}:{}", printable(&rest.join(":")));
        if S::KEYS.iter().any(|k| is_below(k.name, rest)) {
            if pair.leaf != Leaf::Empty {
                self.problems.refuse(path, NO_OBJECT);
            }
            return;
        }
        let value = match &pair.leaf {
            Leaf::Text(text) => Some(&**text),
            Leaf::Null => None,
            Leaf::Empty => Some("{}"),
        };
        match foreign::judge(S::PLACE, first, value) {
            Verdict::Fine => {}
            Verdict::Idle(key, why) => {
                let text = format!("{}:{key} has no effect: {why}", S::PLACE.pattern());
                if !self.warnings.contains(&text) {
                    self.warnings.push(text);
                }
            }
            Verdict::Refused(why) => self.problems.refuse(path, &with_variable(pair, why)),
            Verdict::Unknown => {
                let (meant, text) = explain::<S>(at, rest);
                self.problems.failed.extend(meant);
                self.problems.refuse(path, &with_variable(pair, &text));
            }
        }
    }

    fn put<S: Section>(
        &mut self,
        section: &mut S,
        key: &'static Key<S>,
        at: &str,
        pair: &Pair,
        below: &[String],
    ) {
        let path = format!("{at}:{}", key.name);
        let item = match below {
            [] => None,
            [part] if key.is_list && index(part).is_some() => index(part),
            _ => {
                let text = format!("has nothing below it; give {}", (key.allowed)());
                return self.problems.refuse(path, &with_variable(pair, &text));
            }
        };
        let text = match &pair.leaf {
            Leaf::Text(text) => text,
            Leaf::Null if item.is_none() => return, // as if it were not there
            Leaf::Empty if item.is_none() && key.is_list => return,
            Leaf::Null | Leaf::Empty => {
                let text = format!("has no value; give {}", (key.allowed)());
                return self.problems.refuse(path, &text);
            }
        };
        let target = item.map_or_else(|| path.clone(), |i| format!("{path}[{i}]"));
        if !self.problems.seen.insert(target.clone()) {
            let text = with_variable(pair, "is given twice; remove one");
            return self.problems.refuse(target, &text);
        }
        let outranked = section
            .marks()
            .of(key.name)
            .is_some_and(|by| by > self.origin);
        let fits = match (outranked, item) {
            (false, _) => (key.put)(section, item, text),
            // without effect, but a mistake all the same
            (true, None) => (key.put)(&mut S::default(), item, text),
            (true, Some(_)) => true,
        };
        if !fits {
            let text = with_variable(pair, &not_allowed(key, text));
            self.problems.refuse(path, &text);
        } else if !outranked && !(key.get)(section).is_empty() {
            section.marks_mut().set(key.name, self.origin);
        }
    }
}

/// The topic that `name` means: the only one known that differs at most in case, else `name` itself.
fn same_topic(known: &BTreeMap<String, TopicSettings>, name: &str) -> String {
    let mut similar = known.keys().filter(|k| k.eq_ignore_ascii_case(name));
    match (similar.next(), similar.next()) {
        (Some(only), None) => only.clone(),
        _ => name.into(),
    }
}

/// The key a path begins with, and what of the path is left.
fn find<S: Section>(path: &[String]) -> Option<(&'static Key<S>, &[String])> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Trim;

    fn refused(json: &str) -> Vec<String> {
        let text = Settings::from_json(json).unwrap_err().to_string();
        let text = text
            .strip_prefix("settings: ")
            .expect("it is about settings");
        text.lines().map(Into::into).collect()
    }

    #[test]
    fn a_value_that_is_not_allowed_is_named_with_its_path_and_the_fix() {
        for (json, line) in [
            (
                r#"{"Consumers": [{"BatchSize": "many"}]}"#,
                r#"Streams:Consumers[0]:BatchSize: "many" is not allowed; give a whole number from 1 to 1000000 (messages)"#,
            ),
            (
                r#"{"Consumers": [{"Topic": "t", "BlockMs": 0}]}"#,
                r#"Streams:Consumers[0]:BlockMs: "0" is not allowed; give a whole number from 1 to 3600000 (milliseconds)"#,
            ),
            (
                r#"{"Topics": {"orders": {"Trim": "Some"}}}"#,
                r#"Streams:Topics:orders:Trim: "Some" is not allowed; give one of Approx, Exact, None"#,
            ),
            (
                r#"{"Topics": {"orders": null}}"#,
                "Streams:Topics:orders: is no object; give its keys, or remove it",
            ),
            (
                r#"{"Consumers": [{"Topic": "t", "Backpressure": null}]}"#,
                "Streams:Consumers[0]:Backpressure: is no object; give its keys, or remove it",
            ),
            (
                r#"{"Consumers": [null]}"#,
                "Streams:Consumers[0]: is no object; give its keys, or remove it",
            ),
            (
                r#"{"Consumer": {"Name": "x"}}"#,
                "Streams:Consumer: has nothing below it; give text",
            ),
            (
                r#"{"Consumers": "x"}"#,
                "Streams:Consumers: holds several entries; give them one by one",
            ),
            (
                r#"{"Consumers": [{"Topic": "t", "Filter": "x"}]}"#,
                r#"Streams:Consumers[0]:Filter: "x" is not allowed; give a list of texts, its items numbered from 0"#,
            ),
            (
                r#"{"Url": "a", "ConnectionString": "b"}"#,
                "Streams:ConnectionString: is given twice; remove one",
            ),
            (
                r#"{"Database": 1, "database": 1}"#,
                "Streams:Database: is given twice; remove one",
            ),
            (
                r#"{"Streams": 5}"#,
                "Streams: is no object; give its keys, or remove it",
            ),
        ] {
            let lines = refused(json);
            assert!(lines.contains(&line.into()), "{lines:#?} has {line}");
        }
    }

    #[test]
    fn unknown_keys_are_refused_with_the_nearest_known_one() {
        for (json, path, hint) in [
            (
                r#"{"Consumers": [{"Topic": "t", "BatchSise": 1}]}"#,
                "Streams:Consumers[0]:BatchSise: ",
                "did you mean Streams:Consumers[0]:BatchSize?",
            ),
            (
                r#"{"Consumers": [{"Topic": "t", "Backpressure": {"Capasity": 1}}]}"#,
                "Streams:Consumers[0]:Backpressure:Capasity: ",
                "did you mean Streams:Consumers[0]:Backpressure:Capacity?",
            ),
            (
                r#"{"Consumer s": []}"#,
                "Streams:Consumer s: ",
                "did you mean Streams:Consumers?",
            ),
            (
                r#"{"BatchSize": 1}"#,
                "Streams:BatchSize: ",
                "under Streams:Consumers[n]",
            ),
            (
                r#"{"Zzzzzzzzz": 1}"#,
                "Streams:Zzzzzzzzz: ",
                "the nearest known key is Streams:",
            ),
        ] {
            let lines = refused(json);
            assert_eq!(lines.len(), 1, "{lines:#?}");
            assert!(
                lines[0].starts_with(path) && lines[0].contains(hint),
                "{lines:#?}"
            );
        }
    }

    #[test]
    fn keys_of_peers_warn_once_or_are_refused_by_name() {
        let s = Settings::from_json(
            r#"{"Consumers": [
                {"Topic": "a", "ReaderThreads": 4, "Delivery": "Ordered", "ResetOnStart": false},
                {"Topic": "b", "readerthreads": 2, "UseConsumerGroup": false}],
               "Producers": [{"Topic": "a", "Buffered": false}]}"#,
        )
        .unwrap();
        assert_eq!(s.warnings.len(), 2, "{:#?}", s.warnings);
        assert!(s.warnings[0].starts_with("Streams:Consumers[n]:ReaderThreads has no effect"));
        assert!(s.warnings[1].contains("UseConsumerGroup"));
        assert_eq!(s.check().unwrap(), s.warnings);
        let lines = refused(
            r#"{"Consumers": [{"Topic": "a", "ResetOnStart": true,
                "UseConsumerGroup": true}]}"#,
        );
        assert_eq!(lines.len(), 2, "{lines:#?}");
        assert!(lines[0].contains("ResetOnStart") && lines[0].contains("StartFrom"));
        assert!(lines[1].contains("UseConsumerGroup") && lines[1].contains("Delivery"));
    }

    #[test]
    fn the_environment_changes_entries_and_adds_the_next() {
        let s = Settings::from_json(
            r#"{"Topics": {"orders": {"MaxLen": 5}}, "Consumers": [{"Topic": "a", "Filter": ["x", "y"]}]}"#,
        )
        .unwrap()
        .overlay_env_with([
            ("STREAMS__CONSUMERS__1__TOPIC", "b"),
            ("streams__consumers__0__batchsize", "7"),
            ("Streams__Consumers__0__Filter__0", "z"),
            ("Streams__Consumers__0__Backpressure__Capacity", "1"),
            ("STREAMS__TOPICS__ORDERS__PARTITIONS", "3"),
            ("Streams__Topics__Other__Trim", "Exact"),
            ("STREAMS_KEY_PREFIX", "p "),
            ("HOME", "/"),
        ])
        .unwrap();
        assert_eq!(s.consumers.len(), 2);
        assert_eq!(s.consumers[0].batch_size, 7);
        assert_eq!(s.consumers[0].filter, ["z", "y"]);
        assert_eq!(s.consumers[0].backpressure_capacity, 1);
        assert_eq!(s.consumers[1].topic, "b");
        assert_eq!(
            s.topic("orders"),
            TopicSettings::default().partitions(3).max_len(5)
        );
        assert_eq!(s.topic("Other").trim, Trim::Exact);
        assert_eq!(s.key_prefix, "p ");
    }

    #[test]
    fn mistakes_in_the_environment_name_the_variable() {
        let e = Settings::from_env_with([
            ("Streams__Consumers__1__Topic", "b"),
            ("Streams__Consumers__x__Topic", "b"),
            ("STREAMS__DATABASE", "x"),
            ("Streams__KeyPrefix", "a"),
            ("STREAMS_KEY_PREFIX", "b"),
            ("Streams__Nonsense", "b"),
        ])
        .unwrap_err()
        .to_string();
        for part in [
            "Streams:Consumers[1]: leaves a hole; the next entry is [0]",
            "Streams:Consumers:x: is no number",
            "(environment variable STREAMS__DATABASE)",
            "Streams:KeyPrefix: is given twice",
            "(environment variable Streams__Nonsense)",
        ] {
            assert!(e.contains(part), "{part} in {e}");
        }
    }
}
