//! The root of the settings, and what it says about one consumer or topic.

use std::{collections::BTreeMap, env, time::Duration};

use super::{
    ConnectionString, ConsumerSettings, ProducerSettings, Secret, TopicSettings,
    codec::{Codec, Flag, Opt, Password, Prefix, Server, Text, Whole, millis},
    key::{Origin, Section},
};
use crate::error::{Error, Result};

/// The prefix every peer uses unless told otherwise.
const DEFAULT_PREFIX: &str = "re:";

section! {
    /// Everything that can be set.
    ///
    /// Comes from a file ([`from_json_file`](Self::from_json_file)), the environment
    /// ([`overlay_env`](Self::overlay_env)) and code (the setters); code goes before the environment
    /// and the environment before the file, in whatever order they are applied. Setters, rather than
    /// assignments to fields, mark a value as given by code. Nothing is trusted before
    /// [`check`](Self::check), which opening a connection calls.
    ///
    /// ```
    /// use streamlane::{ConsumerSettings, Settings};
    ///
    /// let settings = Settings::from_json(r#"{ "Streams": { "ConnectionString": "localhost:6379" } }"#)?
    ///     .with_consumer(ConsumerSettings::new("orders").batch_size(500));
    /// assert!(settings.check()?.is_empty());
    /// # Ok::<(), streamlane::Error>(())
    /// ```
    ///
    #[doc = include_str!("keys.md")]
    pub struct Settings in Root {
        /// The server: a URL (`redis://host:6379/0`) or `host:port,password=...,connectTimeout=1500`. There is
        /// no default. May also be called `Url`.
        connection_string: Option<ConnectionString> = None, "ConnectionString" | "Url", Opt(Server),
            set(text: impl Into<ConnectionString>) Some(text.into());
        /// The user to log in as; goes before one in the connection string.
        username: Option<String> = None, "Username", Opt(Text),
            set(name: impl Into<String>) Some(name.into());
        /// The password; goes before one in the connection string. Never printed.
        password: Option<Secret> = None, "Password", Opt(Password),
            set(text: impl Into<Secret>) Some(text.into());
        /// The database's number; goes before one in the connection string. Unset: 0.
        database: Option<u32> = None, "Database", Opt(Whole("", 0, i32::MAX as u32)),
            set(n: u32) Some(n);
        /// The name of consumers that have none of their own. Unset: the executable's name without
        /// its extension.
        consumer: Option<String> = None, "Consumer", Opt(Text),
            set(name: impl Into<String>) Some(name.into());
        /// What every key starts with, verbatim. Must be the same for all services that share topics.
        key_prefix: String = DEFAULT_PREFIX.into(), "KeyPrefix", Prefix(DEFAULT_PREFIX),
            set(text: impl Into<String>) text.into();
        /// Whether topics may be left to grow without end (`Trim` `None`).
        allow_untrimmed: bool = false, "AllowUntrimmed", Flag;
        /// How long dialling and greeting one server may take. Unset: the `connectTimeout` of the
        /// connection string, if it says one.
        connect_timeout: Duration = Duration::from_secs(5), "ConnectTimeoutMs", millis(1, 600_000);
        /// What this instance is called, for people and in claims. Instances of one consumer have names of
        /// their own, and one that is started again should have the same. Unset: the environment's
        /// `POD_NAME`, else the name of the machine, and a random id.
        pod_name: Option<String> = None, "PodName", Opt(Text), set(name: impl Into<String>) Some(name.into());
        /// The deadline of one publish call, all included. Below 1.5 s a call just after an outage may fail
        /// without an attempt, since dials to a server that was down are a second apart.
        publish_timeout: Duration = Duration::from_secs(5), "PublishTimeoutMs",
            millis(1, 3_600_000);
        /// How long start waits for a server that answers but is not ready, as while it loads its data.
        start_timeout: Duration = Duration::from_mins(1), "StartTimeoutMs",
            millis(1, 86_400_000);
        /// How often the number of partitions of each topic in use is looked up: so long after a topic was
        /// enlarged everyone publishes to the new partitions and reads them.
        topic_refresh: Duration = Duration::from_secs(5), "TopicRefreshMs", millis(10, 3_600_000);
        /// How often the server is asked how far each partition that is consumed here is behind: what health and
        /// metrics know of lag and of what is pending is as old as that. Where the answers take long, as with
        /// large messages, less often.
        sample_interval: Duration = Duration::from_secs(15), "SampleIntervalMs", millis(1000, 3_600_000);
        /// Larger messages are refused before anything is sent.
        max_message_bytes: u32 = 64 << 20, "MaxMessageBytes", Whole("bytes", 1, 512 << 20);
    }
    plus {
        /// Topics by name. Those not listed have the defaults.
        pub topics: BTreeMap<String, TopicSettings>,
        /// The consumers of this service.
        pub consumers: Vec<ConsumerSettings>,
        /// The topics this service publishes to.
        pub producers: Vec<ProducerSettings>,
        /// The name of the environment, such as `Development`, where `Trim` `None` is allowed. Read
        /// from `ASPNETCORE_ENVIRONMENT` or `DOTNET_ENVIRONMENT` unless set. Unset: `Production`.
        pub environment: Option<String>,
        /// What loading found odd but harmless, one sentence each; [`check`](Self::check) returns
        /// these too.
        pub warnings: Vec<String>,
    }
}

impl Settings {
    /// Adds a topic, or replaces what was said about it.
    #[must_use]
    pub fn with_topic(mut self, name: impl Into<String>, topic: TopicSettings) -> Self {
        self.topics.insert(name.into(), topic);
        self
    }

    /// Adds a consumer behind those there are.
    #[must_use]
    pub fn with_consumer(mut self, consumer: ConsumerSettings) -> Self {
        self.consumers.push(consumer);
        self
    }

    /// Adds a topic this service publishes to.
    #[must_use]
    pub fn with_producer(mut self, producer: ProducerSettings) -> Self {
        self.producers.push(producer);
        self
    }

    /// Sets the name of the environment, before what the environment itself says.
    #[must_use]
    pub fn environment(mut self, name: impl Into<String>) -> Self {
        self.environment = Some(name.into());
        self
    }

    /// Takes the `connectTimeout` of a connection string over, unless `ConnectTimeoutMs` is set.
    pub(crate) fn heed_connect_timeout(&mut self, said: Option<Duration>) {
        if let Some(timeout) = said.filter(|_| !self.is_set("ConnectTimeoutMs")) {
            self.connect_timeout = timeout;
        }
    }

    /// What is said about a topic, or the defaults.
    pub fn topic(&self, name: &str) -> TopicSettings {
        self.topics.get(name).cloned().unwrap_or_default()
    }

    /// The entry of `Consumers` that reads `topic`, or the defaults; its consumer name is filled in.
    ///
    /// # Errors
    ///
    /// More than one entry reads the topic, so that the choice is the caller's.
    pub fn consumer_for(&self, topic: &str) -> Result<ConsumerSettings> {
        let mut found = self
            .consumers
            .iter()
            .enumerate()
            .filter(|(_, c)| c.topic == topic);
        match (found.next(), found.next()) {
            (Some((i, _)), Some((j, _))) => Err(Error::config(format!(
                "Streams:Consumers[{i}] and Streams:Consumers[{j}] both read topic {topic:?}: \
                 choose one by its index or its consumer name"
            ))),
            (Some((_, entry)), None) => Ok(self.named(entry.clone())),
            (None, _) => Ok(self.named(ConsumerSettings::new(topic))),
        }
    }

    /// The entry of `Consumers` that reads `topic` under this name, or the defaults.
    pub fn consumer_named(&self, topic: &str, name: &str) -> ConsumerSettings {
        self.consumers
            .iter()
            .map(|c| self.named(c.clone()))
            .find(|c| c.topic == topic && c.consumer.as_deref() == Some(name))
            .unwrap_or_else(|| ConsumerSettings::new(topic).consumer(name))
    }

    /// The entry of `Consumers` with this index; its consumer name is filled in.
    ///
    /// # Errors
    ///
    /// There are not that many entries.
    pub fn consumer_at(&self, index: usize) -> Result<ConsumerSettings> {
        let entry = self.consumers.get(index).ok_or_else(|| {
            let count = match self.consumers.len() {
                0 => "no entries".into(),
                1 => "1 entry".into(),
                n => format!("{n} entries"),
            };
            Error::config(format!(
                "Streams:Consumers[{index}]: there is no such consumer, Streams:Consumers has {count}"
            ))
        })?;
        Ok(self.named(entry.clone()))
    }

    /// How a topic is published to: its entry of `Producers`, or the defaults.
    ///
    /// # Errors
    ///
    /// The entry says `Buffered`, and says it otherwise. Both sources are named: who said so, and the
    /// `call` that wants it so.
    pub(crate) fn producer_for(
        &self,
        topic: &str,
        buffered: bool,
        call: &str,
    ) -> Result<ProducerSettings> {
        let mut entries = self.producers.iter().enumerate();
        let Some((i, entry)) = entries.find(|(_, p)| p.topic == topic) else {
            return Ok(ProducerSettings::new(topic));
        };
        let said = match entry.buffered {
            Some(said) if said != buffered => said,
            _ => return Ok(entry.clone()),
        };
        let source = match entry.marks().of("Buffered") {
            Some(Origin::File) => "the settings file",
            Some(Origin::Environment) => "the environment",
            Some(Origin::Code) | None => "the settings made by code",
        };
        Err(Error::config(format!(
            "Streams:Producers[{i}]:Buffered is {said} by {source}, and {call}({topic:?}) asks for the \
             opposite: change one of the two, or remove Buffered, which leaves the choice to the code"
        )))
    }

    /// The name of consumers that have none of their own: `Consumer`, else the executable's name.
    pub fn default_consumer_name(&self) -> String {
        let given = self.consumer.clone().filter(|name| !name.trim().is_empty());
        given.unwrap_or_else(executable)
    }

    /// The consumer name an entry works under.
    pub(crate) fn name_of(&self, entry: &ConsumerSettings) -> String {
        let own = entry
            .consumer
            .clone()
            .filter(|name| !name.trim().is_empty());
        own.unwrap_or_else(|| self.default_consumer_name())
    }

    fn named(&self, mut entry: ConsumerSettings) -> ConsumerSettings {
        entry.consumer = Some(self.name_of(&entry));
        entry
    }
}

/// The executable's name without directory and extension.
fn executable() -> String {
    let path = env::current_exe().ok();
    let stem = path.as_deref().and_then(|p| p.file_stem());
    stem.map_or_else(|| "unknown".into(), |s| s.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_that_contradicts_what_is_said_of_buffering_is_refused_by_both_names() {
        let s = Settings::from_json(
            r#"{ "Streams": { "Producers": [
                { "Topic": "open", "MaxBatch": 7 }, { "Topic": "direct", "Buffered": false },
                { "Topic": "waits", "Buffered": true } ] } }"#,
        )
        .unwrap()
        .with_producer(ProducerSettings::new("code").buffered(true));
        let ask = |topic: &str, buffered| s.producer_for(topic, buffered, "streams.say");
        assert_eq!(ask("open", true).unwrap().max_batch, 7);
        assert_eq!(ask("other", true).unwrap(), ProducerSettings::new("other"));
        for (topic, agreed) in [("direct", false), ("waits", true), ("code", true)] {
            assert!(ask(topic, agreed).is_ok(), "{topic}");
            assert!(ask("open", agreed).is_ok() && ask("other", agreed).is_ok());
        }
        for (topic, wanted, texts) in [
            ("direct", true, ["Producers[1]:Buffered is false", "file"]),
            ("waits", false, ["Producers[2]:Buffered is true", "file"]),
            ("code", false, ["Producers[3]:Buffered is true", "code"]),
        ] {
            let text = ask(topic, wanted).unwrap_err().to_string();
            let call = format!("streams.say({topic:?})");
            for part in [texts[0], texts[1], &call] {
                assert!(text.contains(part), "{part} in {text}");
            }
        }
    }

    #[test]
    fn consumers_are_found_by_topic_name_and_index() {
        let s = Settings::default()
            .consumer("svc")
            .with_consumer(ConsumerSettings::new("a").batch_size(1))
            .with_consumer(ConsumerSettings::new("b").consumer("x").batch_size(2))
            .with_consumer(ConsumerSettings::new("b").batch_size(3));
        let a = s.consumer_for("a").unwrap();
        assert_eq!((a.batch_size, a.consumer.as_deref()), (1, Some("svc")));
        let other = s.consumer_for("c").unwrap();
        assert_eq!((&*other.topic, other.batch_size), ("c", 100));
        let e = s.consumer_for("b").unwrap_err().to_string();
        assert!(
            e.contains("Consumers[1]") && e.contains("Consumers[2]"),
            "{e}"
        );
        assert_eq!(s.consumer_named("b", "x").batch_size, 2);
        assert_eq!(s.consumer_named("b", "svc").batch_size, 3);
        assert_eq!(s.consumer_named("b", "y").batch_size, 100);
        assert_eq!(s.consumer_at(2).unwrap().batch_size, 3);
        let e = s.consumer_at(3).unwrap_err().to_string();
        assert!(e.contains("Consumers[3]") && e.contains("3 entries"), "{e}");
    }

    #[test]
    fn a_consumer_without_a_name_is_called_after_the_executable() {
        let s = Settings::default();
        assert!(s.default_consumer_name().starts_with("streamlane"));
        assert_eq!(s.consumer(" ").default_consumer_name(), executable());
    }

    #[test]
    fn topics_not_listed_have_the_defaults() {
        let s = Settings::default().with_topic("a", TopicSettings::default().partitions(8));
        assert_eq!(s.topic("a").partitions, Some(8));
        assert_eq!(s.topic("b"), TopicSettings::default());
    }

    #[test]
    fn printing_settings_prints_no_secret() {
        let s = Settings::default()
            .connection_string("redis://u:hunter2@h")
            .password("hunter2");
        assert!(!format!("{s:?} {s:#?}").contains("hunter2"));
    }

    #[test]
    fn a_timeout_of_the_connection_string_counts_unless_the_key_is_set() {
        let said = Some(Duration::from_millis(1500));
        let mut settings = Settings::default();
        settings.heed_connect_timeout(None);
        assert_eq!(settings.connect_timeout, Duration::from_secs(5));
        settings.heed_connect_timeout(said);
        assert_eq!(settings.connect_timeout, Duration::from_millis(1500));
        // the default, but said aloud
        let mut settings = Settings::default().connect_timeout(Duration::from_secs(5));
        settings.heed_connect_timeout(said);
        assert_eq!(settings.connect_timeout, Duration::from_secs(5));
    }
}
