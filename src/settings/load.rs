//! Where settings come from: a JSON text, a file, the environment.

use std::{env, fs, path::Path};

use super::{Settings, bind::bind, check, key::Origin, problem::Problems, source};
use crate::error::{Error, Result};

impl Settings {
    /// Reads a JSON text: its section `Streams` if it has one, else the whole of it.
    ///
    /// Names of keys and their values may be spelled in any case; numbers and flags may be quoted.
    /// Comments and trailing commas are fine, and `null` is the same as leaving the key out.
    ///
    /// # Errors
    ///
    /// The text is no JSON (with line and column), or a key is unknown, given twice, or has a value
    /// that is not allowed. All of them are reported at once, one a line, with the fix.
    pub fn from_json(text: &str) -> Result<Self> {
        Self::from_json_bytes(text.as_bytes())
    }

    /// Reads a JSON file as [`from_json`](Self::from_json) does.
    ///
    /// # Errors
    ///
    /// As `from_json`, or the file cannot be read. The error names the file.
    pub fn from_json_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let named = |e: Error| e.during(format!("settings in {}", path.display()));
        let text = fs::read(path)
            .map_err(|e| named(Error::config("the file cannot be read").caused_by(e)))?;
        Self::from_json_bytes(&text).map_err(named)
    }

    fn from_json_bytes(text: &[u8]) -> Result<Self> {
        let pairs = source::from_json(text).map_err(|e| Error::config(format!("no JSON: {e}")))?;
        let mut settings = Self::default();
        let mut problems = Problems::default();
        bind(&mut settings, &pairs, Origin::File, &mut problems);
        settings.or_all(problems, false)
    }

    /// The defaults, overlaid with the environment; see [`overlay_env`](Self::overlay_env).
    ///
    /// # Errors
    ///
    /// As `overlay_env`.
    pub fn from_env() -> Result<Self> {
        Self::default().overlay_env()
    }

    /// Lays the environment over these settings.
    ///
    /// `Streams__Consumers__0__BatchSize` sets the key `BatchSize` of the first consumer; the case
    /// does not matter, and a topic's name is best written as it is. Entries of lists that are
    /// there are changed, the next number adds one. `STREAMS_KEY_PREFIX` sets `KeyPrefix` when not
    /// blank, and `ASPNETCORE_ENVIRONMENT` or else `DOTNET_ENVIRONMENT` names the environment. What
    /// code has set by a setter stays.
    ///
    /// # Errors
    ///
    /// A variable names an unknown key or has a value that is not allowed; all are reported at once.
    pub fn overlay_env(self) -> Result<Self> {
        let ours = env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok()?;
            source::is_ours(&name).then(|| match value.into_string() {
                Ok(value) => Ok((name, value)),
                Err(_) => Err(Error::config(format!(
                    "the environment variable {name} is not UTF-8"
                ))),
            })
        });
        self.overlay_env_with(ours.collect::<Result<Vec<_>>>()?)
    }

    /// As [`from_env`](Self::from_env), from variables that are given.
    ///
    /// # Errors
    ///
    /// As `overlay_env`.
    pub fn from_env_with<K, V>(variables: impl IntoIterator<Item = (K, V)>) -> Result<Self>
    where
        K: Into<String>,
        V: Into<String>,
    {
        Self::default().overlay_env_with(variables)
    }

    /// As [`overlay_env`](Self::overlay_env), from variables that are given.
    ///
    /// # Errors
    ///
    /// As `overlay_env`.
    pub fn overlay_env_with<K, V>(
        mut self,
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self>
    where
        K: Into<String>,
        V: Into<String>,
    {
        let variables = variables.into_iter();
        let env = source::from_env(variables.map(|(k, v)| (k.into(), v.into())));
        self.environment = self.environment.or(env.environment);
        let mut problems = Problems::default();
        bind(&mut self, &env.pairs, Origin::Environment, &mut problems);
        self.or_all(problems, true)
    }

    /// These settings, or, when there are problems, these together with every contradiction: nobody
    /// should have to start twice to learn of the second mistake.
    fn or_all(self, mut problems: Problems, environment_known: bool) -> Result<Self> {
        if !problems.is_empty() {
            check::contradictions(&self, environment_known, &mut problems);
        }
        problems.into_result().map(|()| self)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::settings::{
        ConsumerSettings, OnError, Persist, ProducerSettings, ReadMode, StartFrom, TopicSettings,
        Trim, key::Section,
    };

    fn refused(json: &str) -> Vec<String> {
        let text = Settings::from_json(json).unwrap_err().to_string();
        let text = text
            .strip_prefix("settings: ")
            .expect("it is about settings");
        text.lines().map(Into::into).collect()
    }

    const NO_VARIABLES: [(&str, &str); 0] = [];

    #[test]
    fn every_key_binds() {
        let s = Settings::from_json(
            r#"{ "Logging": {}, "Streams": {
            "url": "redis://h", "USERNAME": "u", "Password": "p", "Database": 2, "Consumer": "svc",
            "KeyPrefix": " x:", "AllowUntrimmed": "True", "ConnectTimeoutMs": 1,
            "PublishTimeoutMs": "2", "StartTimeoutMs": 3, "MaxMessageBytes": 4,
            "Topics": { "t": { "Partitions": 8, "MaxLen": 9, "Trim": "exact",
                "CoLocatePartitions": false }, "d": {} },
            "Consumers": [{ "Topic": "t", "Consumer": "c", "BatchSize": 5, "BatchBytes": 4096,
                "Filter": ["A", "B"], "StartFrom": "date",
                "StartFromDate": "2026-01-31T08:00:00Z", "StartFromWhenMissing": "Now",
                "Persist": "SyncBatch", "PersistIntervalMs": 6,
                "Backpressure": { "Enabled": "false", "capacity": 7 }, "ReadMode": "POLL",
                "BlockMs": 8, "ReadSlackMs": 9, "MaxIdleDelayMs": 10, "SpinMicros": 11,
                "OnError": "Fail", "UnhealthyBlockSeconds": 12, "UnhealthyStoppedSeconds": 15,
                "UnhealthyBehindSeconds": 16, "UnhealthyLagMs": 17, "DegradedSilenceSeconds": 18,
                "ShutdownTimeoutSeconds": 14 }],
            "Producers": [{ "Topic": "p" }] } }"#,
        )
        .unwrap();
        let moment = crate::clock::parse_moment("2026-01-31T08:00:00Z").unwrap();
        let ms = Duration::from_millis;
        let expected = Settings::default()
            .connection_string("redis://h")
            .username("u")
            .password("p")
            .database(2)
            .consumer("svc")
            .key_prefix(" x:")
            .allow_untrimmed(true)
            .connect_timeout(ms(1))
            .publish_timeout(ms(2))
            .start_timeout(ms(3))
            .max_message_bytes(4)
            .with_topic(
                "t",
                TopicSettings::default()
                    .partitions(8)
                    .max_len(9)
                    .trim(Trim::Exact)
                    .co_locate_partitions(false),
            )
            .with_topic("d", TopicSettings::default())
            .with_consumer(
                ConsumerSettings::new("t")
                    .consumer("c")
                    .batch_size(5)
                    .batch_bytes(4096)
                    .filter(["A", "B"])
                    .start_from(StartFrom::Date)
                    .start_from_date(moment)
                    .start_from_when_missing(StartFrom::Now)
                    .persist(Persist::SyncBatch)
                    .persist_interval(ms(6))
                    .backpressure_enabled(false)
                    .backpressure_capacity(7)
                    .read_mode(ReadMode::Poll)
                    .block(ms(8))
                    .read_slack(ms(9))
                    .max_idle_delay(ms(10))
                    .spin(Duration::from_micros(11))
                    .on_error(OnError::Fail)
                    .unhealthy_block(Duration::from_secs(12))
                    .unhealthy_stopped(Duration::from_secs(15))
                    .unhealthy_behind(Duration::from_secs(16))
                    .unhealthy_lag(ms(17))
                    .degraded_silence(Duration::from_secs(18))
                    .shutdown_timeout(Duration::from_secs(14)),
            )
            .with_producer(ProducerSettings::new("p"));
        assert_eq!(s, expected);
        assert_eq!(s.password.unwrap().reveal(), "p");
    }

    #[test]
    fn nothing_given_is_the_defaults() {
        for json in [
            "{}",
            r#"{"Streams": {}}"#,
            r#"{"Streams": {"Consumer": null, "ConnectionString": " ", "KeyPrefix": "",
                "Database": "", "Topics": {}, "Consumers": [], "Producers": null}}"#,
        ] {
            let s = Settings::from_json(json).unwrap();
            assert_eq!(s, Settings::default(), "{json}");
            assert_eq!(s.check().unwrap(), Vec::<String>::new());
        }
        assert_eq!(
            Settings::from_env_with(NO_VARIABLES).unwrap(),
            Settings::default()
        );
        // a server that is busy answers late, one that is gone does not answer
        let seconds = Duration::from_secs;
        assert_eq!(Settings::default().connect_timeout, seconds(5));
        let consumer = ConsumerSettings::new("t");
        assert_eq!(
            (consumer.block, consumer.read_slack),
            (seconds(1), seconds(3))
        );
    }

    #[test]
    fn all_mistakes_are_reported_at_once_and_none_that_follows_from_another() {
        let lines = refused(
            r#"{ "Consumr": "x", "Topics": { "a": { "Partitions": 0, "Trim": "None", "MaxLen": 5 } },
               "Consumers": [
                 { "StartFrom": "Date", "StartFromDat": "2026-01-31T08:00:00Z" },
                 { "Topic": "b", "ReadMode": "Poll", "SpinMicros": 1, "Persist": "Sync" },
                 { "Topic": "b", "StartFromWhenMissing": "Stored" } ] }"#,
        );
        let paths: Vec<_> = lines
            .iter()
            .map(|l| l.split(": ").next().unwrap())
            .collect();
        assert_eq!(
            paths,
            [
                "Streams:Consumr",
                "Streams:Topics:a:Partitions",
                "Streams:Consumers[0]:StartFromDat",
                "Streams:Consumers[1]:Persist",
                "Streams:Topics:a:MaxLen",
                "Streams:Consumers[0]:Topic",
                "Streams:Consumers[1]:SpinMicros",
                "Streams:Consumers[2]:StartFromWhenMissing",
                "Streams:Consumers[2]:Topic",
            ],
            "{lines:#?}"
        );
    }

    #[test]
    fn a_broken_text_is_refused_with_line_column_and_file() {
        let e = Settings::from_json("{\n \"Consumer\": }")
            .unwrap_err()
            .to_string();
        assert!(e.contains("line 2 column 14"), "{e}");
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/no-such-file.json");
        let e = Settings::from_json_file(file).unwrap_err().to_string();
        assert!(
            e.contains("no-such-file.json") && e.contains("cannot be read"),
            "{e}"
        );
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let e = Settings::from_json_file(file).unwrap_err().to_string();
        assert!(
            e.contains("Cargo.toml: no JSON: ") && e.contains("line 1"),
            "{e}"
        );
    }

    #[test]
    fn a_file_and_the_environment_of_the_process_are_read() {
        let name = format!("streamlane-settings-{}.json", std::process::id());
        let path = env::temp_dir().join(name);
        fs::write(
            &path,
            "\u{feff}{ \"Streams\": { \"Consumer\": \"x\" } } // end",
        )
        .unwrap();
        let read = Settings::from_json_file(&path);
        fs::remove_file(&path).unwrap();
        assert_eq!(read.unwrap().consumer.as_deref(), Some("x"));
        let given = env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        let (read, given) = (Settings::from_env(), Settings::from_env_with(given));
        assert_eq!(read.unwrap(), given.unwrap());
    }

    #[test]
    fn no_message_repeats_a_secret() {
        let json = r#"{"Password": {"x": "hunter2"}, "Url": ["redis://:hunter2@h"]}"#;
        let text = refused(json).join(" ");
        assert!(
            text.contains("Password") && !text.contains("hunter2"),
            "{text}"
        );
    }

    #[test]
    fn code_goes_before_environment_before_file_in_whatever_order() {
        let file =
            || Settings::from_json(r#"{"Consumer": "file", "Database": 1, "Username": "file"}"#);
        let env = || [("Streams__Consumer", "env"), ("Streams__Database", "2")];
        let env_first = file()
            .unwrap()
            .overlay_env_with(env())
            .unwrap()
            .consumer("code");
        let code_first = file()
            .unwrap()
            .consumer("code")
            .overlay_env_with(env())
            .unwrap();
        let backwards = env().into_iter().rev();
        let env_backwards = file()
            .unwrap()
            .overlay_env_with(backwards)
            .unwrap()
            .consumer("code");
        for s in [&env_first, &code_first, &env_backwards] {
            assert_eq!(s.consumer.as_deref(), Some("code"));
            assert_eq!(s.database, Some(2));
            assert_eq!(s.username.as_deref(), Some("file"));
            assert_eq!(s.summary(), env_first.summary());
        }
        // without effect, but wrong all the same
        let wrong = Settings::default()
            .database(1)
            .overlay_env_with([("Streams__Database", "x")]);
        assert!(wrong.is_err());
    }

    #[test]
    fn a_default_written_out_counts_as_given() {
        let topic = |json: &str| Settings::from_json(json).unwrap().topic("t");
        assert!(topic(r#"{"Topics": {"t": {"MaxLen": 10000}}}"#).is_set("MaxLen"));
        assert!(!topic(r#"{"Topics": {"t": {"MaxLen": null}}}"#).is_set("MaxLen"));
        assert!(!TopicSettings::default().is_set("MaxLen"));
        assert!(TopicSettings::default().max_len(10_000).is_set("MaxLen"));
        let mut assigned = TopicSettings::default();
        assigned.max_len = 1;
        assert!(assigned.is_set("MaxLen"));
        let blank = Settings::from_json(r#"{"Consumer": ""}"#).unwrap();
        assert!(!blank.is_set("Consumer"));
    }

    /// A value for a key: the text that `put` takes, chosen by `pick` among those it allows.
    fn candidate<S: Section>(key: &crate::settings::key::Key<S>, pick: u64) -> String {
        let moment = format!("2026-01-31T08:00:{:02}.5Z", pick % 60);
        let names = (key.allowed)();
        let names: Vec<_> = names.trim_start_matches("one of ").split(", ").collect();
        let name = names[pick as usize % names.len()].to_string();
        let number = (4096 + pick % 50_000).to_string();
        let flag = pick.is_multiple_of(2).to_string();
        let text = format!("text \"{pick}\"\n\\");
        let all = [
            number.clone(),
            (pick % 1000 + 1).to_string(),
            (pick % 100 + 1).to_string(),
            format!("0.{pick}"),
            flag,
            moment,
            name,
            text,
        ];
        let fits = |text: &String| (key.put)(&mut S::default(), None, text);
        all.into_iter().find(fits).unwrap_or(number)
    }

    /// A section as JSON, values quoted or plain.
    fn json_of<S: Section>(section: &S, quoted: bool) -> serde_json::Value {
        let mut out = serde_json::Map::new();
        for key in S::KEYS.iter().filter(|k| section.is_set(k.name)) {
            let values = (key.get)(section);
            let plain = |v: &String| match serde_json::from_str(v) {
                Ok(plain @ (serde_json::Value::Number(_) | serde_json::Value::Bool(_)))
                    if !quoted =>
                {
                    plain
                }
                _ => v.clone().into(),
            };
            let value = if key.is_list {
                values.iter().map(plain).collect()
            } else {
                plain(&values[0])
            };
            let mut place = &mut out;
            let (nest, name) = key.name.split_once(':').unwrap_or(("", key.name));
            if !nest.is_empty() {
                let nest = place.entry(nest).or_insert_with(|| serde_json::json!({}));
                place = nest.as_object_mut().unwrap();
            }
            place.insert(name.into(), value);
        }
        out.into()
    }

    fn arbitrary<S: Section>(picks: &[Option<u64>]) -> S {
        let mut section = S::default();
        for (i, (key, pick)) in S::KEYS.iter().zip(picks.iter().cycle()).enumerate() {
            let Some(pick) = pick else { continue };
            let pick = pick.wrapping_add(i as u64);
            let item = key.is_list.then_some(0);
            assert!(
                (key.put)(&mut section, item, &candidate(key, pick)),
                "{}",
                key.name
            );
            section.marks_mut().set(key.name, Origin::Code);
        }
        section
    }

    proptest! {
        #[test]
        fn settings_written_as_json_are_read_back(
            picks in proptest::collection::vec(proptest::option::of(0u64..1_000_000), 1..40),
            topic in "[a-z: \"]{1,8}",
            quoted: bool,
        ) {
            let s = arbitrary::<Settings>(&picks)
                .with_topic(&topic, arbitrary(&picks))
                .with_consumer(arbitrary(&picks))
                .with_consumer(ConsumerSettings::default())
                .with_producer(arbitrary(&picks));
            let mut json = json_of(&s, quoted);
            json["Topics"] = serde_json::json!({ &topic: json_of(&s.topics[&topic], quoted) });
            json["Consumers"] = s.consumers.iter().map(|c| json_of(c, quoted)).collect();
            json["Producers"] = s.producers.iter().map(|p| json_of(p, quoted)).collect();
            for json in [json.clone(), serde_json::json!({ "Streams": json, "Other": [1] })] {
                let back = Settings::from_json(&json.to_string()).unwrap();
                prop_assert_eq!(back.summary(), s.summary().replace("(code)", "(file)"));
                prop_assert_eq!(&back, &s);
            }
        }

        #[test]
        fn no_text_makes_loading_panic(text in "\\PC*", value in "\\PC*", name in "(Consumers|[A-Z_a-z0-9:]){0,6}") {
            let _ = Settings::from_json(&text);
            let json = serde_json::json!({ &name: [{ &value: &text }] }).to_string();
            if let Ok(s) = Settings::from_json(&json) {
                let _ = s.check();
            }
            let _ = Settings::from_env_with([(format!("Streams__{name}"), value)]);
        }
    }
}
