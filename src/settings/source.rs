//! The two sources of settings, a JSON text and the environment, brought to one shape: pairs of a
//! path and a text.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

/// One value somewhere below `Streams`.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Pair {
    pub(super) path: Vec<String>,
    pub(super) leaf: Leaf,
    /// The environment variable it came from.
    pub(super) variable: Option<String>,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Leaf {
    Text(String),
    Null,
    /// An object or a list without members.
    Empty,
}

/// The pairs of a JSON text, in its order: of its section `Streams` if it has one, else of the whole.
/// As in settings files of other platforms, comments, trailing commas and a byte order mark are fine.
pub(super) fn from_json(text: &[u8]) -> Result<Vec<Pair>, serde_json::Error> {
    let text = without_comments(text);
    let mut pairs = Vec::new();
    let mut json = serde_json::Deserializer::from_slice(&text);
    Flatten {
        path: Vec::new(),
        out: &mut pairs,
    }
    .deserialize(&mut json)?;
    json.end()?;
    if text.trim_ascii_start().first() != Some(&b'{') {
        return Err(serde_json::Error::custom("the text must be one object"));
    }
    if pairs.iter().any(is_section) {
        pairs.retain(is_section);
        for pair in &mut pairs {
            pair.path.remove(0);
        }
    }
    // the whole or the section is empty or null: nothing is set
    pairs.retain(|p| !p.path.is_empty() || matches!(p.leaf, Leaf::Text(_)));
    Ok(pairs)
}

fn is_section(pair: &Pair) -> bool {
    let first = pair.path.first();
    first.is_some_and(|name| name.eq_ignore_ascii_case("Streams"))
}

/// Replaces what JSON does not know by blanks, so that lines and columns stay what they are.
fn without_comments(text: &[u8]) -> Vec<u8> {
    let mut out = text.to_vec();
    if out.starts_with(b"\xef\xbb\xbf") {
        out[..3].fill(b' ');
    }
    let mut i = 0;
    // the last two bytes that mean something, and where the last of them is
    let mut last = (b' ', b' ', 0);
    while i < out.len() {
        let start = i;
        match (out[i], out.get(i + 1)) {
            (b'"', _) => {
                i += 1;
                while i < out.len() && out[i] != b'"' {
                    i += if out[i] == b'\\' { 2 } else { 1 };
                }
                i += 1;
            }
            (b'/', Some(b'/')) => {
                while i < out.len() && out[i] != b'\n' {
                    out[i] = b' ';
                    i += 1;
                }
                continue;
            }
            (b'/', Some(b'*')) => {
                let rest = &out[i + 2..];
                let Some(len) = rest.windows(2).position(|w| w == b"*/") else {
                    break; // let the parser say where
                };
                for b in &mut out[i..i + len + 4] {
                    if *b != b'\n' {
                        *b = b' ';
                    }
                }
                i += len + 4;
                continue;
            }
            (b']' | b'}', _) => {
                let (before, comma, at) = last;
                if comma == b',' && !matches!(before, b'[' | b'{' | b',' | b' ') {
                    out[at] = b' ';
                }
                i += 1;
            }
            _ => i += 1,
        }
        if !out[start].is_ascii_whitespace() {
            last = (last.1, out[start], start);
        }
    }
    out
}

/// Walks a JSON value and notes each of its leaves under its path. A map type would lose keys that
/// are given twice.
struct Flatten<'a> {
    path: Vec<String>,
    out: &'a mut Vec<Pair>,
}

impl Flatten<'_> {
    fn leaf(self, leaf: Leaf) {
        self.out.push(Pair {
            path: self.path,
            leaf,
            variable: None,
        });
    }

    fn text(self, text: &impl fmt::Display) {
        self.leaf(Leaf::Text(text.to_string()));
    }

    fn below(&mut self, name: String) -> Flatten<'_> {
        let mut path = self.path.clone();
        path.push(name);
        Flatten {
            path,
            out: self.out,
        }
    }
}

impl<'de> DeserializeSeed<'de> for Flatten<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Flatten<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of settings")
    }

    fn visit_bool<E>(self, v: bool) -> Result<(), E> {
        self.text(&v);
        Ok(())
    }

    fn visit_i64<E>(self, v: i64) -> Result<(), E> {
        self.text(&v);
        Ok(())
    }

    fn visit_u64<E>(self, v: u64) -> Result<(), E> {
        self.text(&v);
        Ok(())
    }

    fn visit_f64<E>(self, v: f64) -> Result<(), E> {
        self.text(&v);
        Ok(())
    }

    fn visit_str<E>(self, v: &str) -> Result<(), E> {
        self.text(&v);
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.leaf(Leaf::Null);
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        let mut empty = true;
        while let Some(name) = map.next_key::<String>()? {
            map.next_value_seed(self.below(name))?;
            empty = false;
        }
        if empty {
            self.leaf(Leaf::Empty);
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        let mut count = 0_usize;
        while seq
            .next_element_seed(self.below(count.to_string()))?
            .is_some()
        {
            count += 1;
        }
        if count == 0 {
            self.leaf(Leaf::Empty);
        }
        Ok(())
    }
}

/// What the environment says.
#[derive(Default)]
pub(super) struct Env {
    pub(super) pairs: Vec<Pair>,
    pub(super) environment: Option<String>,
}

/// Whether this library reads the variable.
pub(super) fn is_ours(variable: &str) -> bool {
    section_path(variable).is_some()
        || matches!(
            variable,
            "STREAMS_KEY_PREFIX" | "ASPNETCORE_ENVIRONMENT" | "DOTNET_ENVIRONMENT"
        )
}

/// The path below `Streams` that a variable such as `Streams__Consumers__0__Topic` names.
fn section_path(variable: &str) -> Option<Vec<String>> {
    let path = variable.replace("__", ":");
    let (first, rest) = path.split_once(':')?;
    first
        .eq_ignore_ascii_case("Streams")
        .then(|| rest.split(':').map(Into::into).collect())
}

/// Sorts variables, in whatever order they come, into pairs: items of lists in their order.
pub(super) fn from_env(variables: impl Iterator<Item = (String, String)>) -> Env {
    let mut env = Env::default();
    let mut fallback = None;
    for (variable, value) in variables {
        let blank = value.trim().is_empty();
        match (&*variable, section_path(&variable)) {
            (_, Some(path)) => env.pairs.push(Pair {
                path,
                leaf: Leaf::Text(value),
                variable: Some(variable),
            }),
            ("STREAMS_KEY_PREFIX", _) if !blank => env.pairs.push(Pair {
                path: vec!["KeyPrefix".into()],
                leaf: Leaf::Text(value),
                variable: Some(variable),
            }),
            ("ASPNETCORE_ENVIRONMENT", _) if !blank => env.environment = Some(value),
            ("DOTNET_ENVIRONMENT", _) if !blank => fallback = Some(value),
            _ => {}
        }
    }
    env.environment = env.environment.or(fallback);
    env.pairs.sort_by_cached_key(|pair| {
        let names = pair.path.iter();
        names
            .map(|s| index(s).ok_or_else(|| s.clone()))
            .collect::<Vec<_>>()
    });
    env
}

/// The place in a list that a part of a path means.
pub(super) fn index(part: &str) -> Option<usize> {
    let digits = part.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| part.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, Leaf)> {
        let pairs = from_json(text.as_bytes()).unwrap();
        pairs
            .into_iter()
            .map(|p| (p.path.join("/"), p.leaf))
            .collect()
    }

    fn text(path: &str, value: &str) -> (String, Leaf) {
        (path.into(), Leaf::Text(value.into()))
    }

    #[test]
    fn json_becomes_paths_and_texts() {
        assert_eq!(
            pairs(r#"{"A": 1, "B": [true, {"C": "x", "C": 1.5}], "D": {}, "E": [], "F": null}"#),
            [
                text("A", "1"),
                text("B/0", "true"),
                text("B/1/C", "x"),
                text("B/1/C", "1.5"),
                ("D".into(), Leaf::Empty),
                ("E".into(), Leaf::Empty),
                ("F".into(), Leaf::Null),
            ]
        );
    }

    #[test]
    fn the_streams_section_is_picked_out_of_a_larger_file() {
        assert_eq!(
            pairs(r#"{"Logging": {"Level": "Debug"}, "streams": {"A": 1}}"#),
            [text("A", "1")]
        );
        for nothing in [r#"{"Streams": {}}"#, r#"{"Streams": null}"#, "{}"] {
            assert_eq!(pairs(nothing), [], "{nothing}");
        }
        assert_eq!(pairs(r#"{"Streams": "x"}"#), [text("", "x")]);
    }

    #[test]
    fn comments_and_trailing_commas_are_passed_over() {
        let json = "\u{feff}{ // one, two\n \"A\": \"// \\\" /* */\", /* \n , } */\n\
                    \"B\": [1, 2, ], // x\n }";
        assert_eq!(
            pairs(json),
            [text("A", "// \" /* */"), text("B/0", "1"), text("B/1", "2")]
        );
        for bad in [
            "{,}",
            "[1,,]",
            "{\"A\": [,]}",
            "{ /* }",
            "\"x\"",
            "[]",
            "",
            "{} {}",
        ] {
            assert!(from_json(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn mistakes_in_the_text_keep_their_line_and_column() {
        let e = from_json(b"{ // comment\n  \"A\": 1,\n  \"B\" 2 }").unwrap_err();
        assert_eq!((e.line(), e.column()), (3, 7));
        assert!(from_json("[".repeat(100_000).as_bytes()).is_err());
    }

    #[test]
    fn variables_are_sorted_with_numbers_as_numbers() {
        let names = ["10", "1a", "9", "2"].map(|n| (format!("STREAMS__L__{n}"), n.to_string()));
        let env = from_env(names.into_iter());
        let values: Vec<_> = env.pairs.iter().map(|p| &*p.path[1]).collect();
        assert_eq!(values, ["2", "9", "10", "1a"]);
    }

    #[test]
    fn only_variables_of_ours_are_read() {
        let vars = [
            ("streams__Consumer", "a"),
            ("Streams:Url", "h"),
            ("STREAMS_PORT", "x"),
            ("STREAMS_KEY_PREFIX", " p:"),
            ("DOTNET_ENVIRONMENT", "d"),
            ("PATH", "x"),
        ];
        let vars = vars.map(|(k, v)| (k.to_string(), v.to_string()));
        let ours: Vec<_> = vars.iter().map(|(k, _)| is_ours(k)).collect();
        assert_eq!(ours, [true, true, false, true, true, false]);
        let env = from_env(vars.into_iter());
        let mut got: Vec<_> = env.pairs.iter().map(|p| p.path.join("/")).collect();
        got.sort();
        assert_eq!(got, ["Consumer", "KeyPrefix", "Url"]);
        assert_eq!(env.environment.as_deref(), Some("d"));
    }
}
