//! Settings for eyes: one line of what is in effect, and the table of all keys.

use std::fmt::Write;

use super::{
    ConsumerSettings, ProducerSettings, Settings, TopicSettings,
    key::{Key, Origin, Section},
    problem::printable,
};

impl Settings {
    /// One line for the log: every value in effect, and for those that were given by whom (`file`,
    /// `env` or `code`). Passwords are masked, also within the connection string.
    pub fn summary(&self) -> String {
        let mut root = self.clone();
        root.consumer = Some(self.default_consumer_name());
        let mut line = format!("Streams: {}", values(&root));
        for (name, topic) in &self.topics {
            let _ = write!(line, "; Topics:{}: {}", printable(name), values(topic));
        }
        for (i, entry) in self.consumers.iter().enumerate() {
            let mut entry = entry.clone();
            entry.consumer = Some(self.name_of(&entry));
            let _ = write!(line, "; Consumers[{i}]: {}", values(&entry));
        }
        for (i, entry) in self.producers.iter().enumerate() {
            let _ = write!(line, "; Producers[{i}]: {}", values(entry));
        }
        line
    }
}

fn values<S: Section>(section: &S) -> String {
    let mut out = Vec::new();
    for key in S::KEYS {
        let shown: Vec<_> = (key.show)(section).iter().map(|v| printable(v)).collect();
        let shown = match (key.is_list, shown.as_slice()) {
            (true, items) => format!("[{}]", items.join(", ")),
            (false, [value]) => value.clone(),
            (false, _) => continue,
        };
        let by = match section.marks().of(key.name) {
            None => "",
            Some(Origin::File) => " (file)",
            Some(Origin::Environment) => " (env)",
            Some(Origin::Code) => " (code)",
        };
        out.push(format!("{}={shown}{by}", key.name));
    }
    out.join(", ")
}

/// The table of all keys in Markdown, as the documentation of [`Settings`] shows it.
#[doc(hidden)]
pub fn settings_table() -> String {
    let mut out = String::from(
        "| key | value | unit | default | meaning |\n| --- | --- | --- | --- | --- |\n",
    );
    rows::<Settings>("", &mut out);
    rows::<TopicSettings>("Topics:<topic>:", &mut out);
    rows::<ConsumerSettings>("Consumers[n]:", &mut out);
    rows::<ProducerSettings>("Producers[n]:", &mut out);
    out
}

fn rows<S: Section>(at: &str, out: &mut String) {
    for key in S::KEYS {
        let _ = writeln!(
            out,
            "| `{at}{}` | {} | {} | {} | {} |",
            key.name,
            (key.allowed)(),
            (key.unit)(),
            default_of(key),
            key.meaning.trim()
        );
    }
}

fn default_of<S: Section>(key: &Key<S>) -> String {
    match (key.get)(&S::default()).join(", ") {
        text if text.is_empty() => "unset".into(),
        text => text,
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::*;

    /// The names of the fields of a struct, from what its `Debug` prints.
    fn fields(of: &impl Debug) -> Vec<String> {
        let text = format!("{of:#?}");
        let lines = text.lines().filter_map(|l| l.strip_prefix("    "));
        let names = lines.filter_map(|l| l.split_once(": ").filter(|(n, _)| !n.starts_with(' ')));
        names.map(|(name, _)| name.to_string()).collect()
    }

    fn each_field_has_a_row<S: Section + Debug>(besides: &[&str]) {
        let mut rows: Vec<_> = S::KEYS.iter().map(|k| k.field).collect();
        rows.extend(besides);
        assert_eq!(fields(&S::default()), rows);
        for key in S::KEYS {
            let same = S::KEYS.iter().filter(|k| k.name == key.name);
            assert_eq!(same.count(), 1, "{} is there once", key.name);
            // BatchSize is batch_size; units are in the name of the key only
            let plain = |s: &str| s.replace([':', '_'], "").to_lowercase();
            let (whole, last) = (key.name, key.name.rsplit(':').next().unwrap_or_default());
            let named = |s: &str| plain(s).starts_with(&plain(key.field));
            assert!(named(whole) || named(last), "{whole}");
        }
    }

    #[test]
    fn each_field_has_a_row_and_each_row_a_field() {
        let sections = [
            "topics",
            "consumers",
            "producers",
            "environment",
            "warnings",
            "marks",
        ];
        each_field_has_a_row::<Settings>(&sections);
        each_field_has_a_row::<TopicSettings>(&["marks"]);
        each_field_has_a_row::<ConsumerSettings>(&["marks"]);
        each_field_has_a_row::<ProducerSettings>(&["marks"]);
    }

    #[test]
    fn the_table_in_the_documentation_is_the_table_of_keys() {
        assert_eq!(
            include_str!("keys.md"),
            settings_table(),
            "bring keys.md up to date"
        );
    }

    #[test]
    fn the_summary_is_one_line_with_origins_and_without_secrets() {
        let s = Settings::from_json(
            r#"{ "ConnectionString": "h:1,password=hunter2", "Consumers": [{ "Topic": "a\nb",
                 "BatchSize": 7, "Filter": ["x", "y"] }], "Producers": [{ "Topic": "p" }],
                 "Topics": { "t": { "MaxLen": 10000 } } }"#,
        )
        .unwrap()
        .overlay_env_with([
            ("Streams__Password", "hunter2"),
            ("STREAMS__CONSUMER", "svc"),
        ])
        .unwrap()
        .database(3);
        let line = s.summary();
        for part in [
            "ConnectionString=h:1,password=*** (file)",
            "Password=*** (env)",
            "Consumer=svc (env)",
            "Database=3 (code)",
            "KeyPrefix=re:,",
            "Topics:t: MaxLen=10000 (file)",
            "Consumers[0]: Topic=a\\nb (file), Consumer=svc",
            "BatchSize=7 (file), BatchBytes=262144,",
            "Filter=[x, y] (file)",
            "BlockMs=1000,",
            "Producers[0]: Topic=p (file)",
        ] {
            assert!(line.contains(part), "{part} in {line}");
        }
        assert!(!line.contains('\n') && !line.contains("hunter2"));
        let unset = Settings::default().summary();
        assert!(unset.contains("Consumer=streamlane"), "{unset}");
    }
}
