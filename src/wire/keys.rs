//! The names of the keys a topic lives under, and which names a topic or a consumer may have.

use crate::error::Error;

/// What every key starts with unless set otherwise.
pub(crate) const DEFAULT_PREFIX: &str = "re:";

/// Ends the key of the diagnostics beside a position hash.
const META: &str = ":meta";

/// Builds key names. The braces around the topic put all its keys into one slot of a cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Keys {
    prefix: Box<str>,
}

impl Default for Keys {
    fn default() -> Self {
        Self {
            prefix: DEFAULT_PREFIX.into(),
        }
    }
}

impl Keys {
    /// Keys that start with `prefix`, taken as it is; [`DEFAULT_PREFIX`] when it is blank.
    ///
    /// A configuration error when the prefix holds a brace, which would change the slots of its
    /// keys, or a control character.
    pub(crate) fn with_prefix(prefix: &str) -> Result<Self, Error> {
        if prefix.trim().is_empty() {
            return Ok(Self::default());
        }
        check_characters("key prefix", prefix)?;
        Ok(Self {
            prefix: prefix.into(),
        })
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The stream of a partition. Without `co_located` the partitions of a topic spread over the
    /// slots of a cluster.
    pub(crate) fn stream(&self, topic: &str, partition: u32, co_located: bool) -> String {
        let prefix = &self.prefix;
        if co_located {
            format!("{prefix}s:{{{topic}}}:{partition}")
        } else {
            format!("{prefix}s:{topic}:{partition}")
        }
    }

    /// The hash of a consumer's positions and reset markers.
    pub(crate) fn positions(&self, topic: &str, consumer: &str) -> String {
        format!("{}p:{{{topic}}}:{consumer}", self.prefix)
    }

    /// What [`positions`](Self::positions) of a topic, or of all of them, match, as `SCAN` takes it.
    pub(crate) fn positions_pattern(&self, topic: Option<&str>) -> String {
        let topic = topic.map_or_else(|| "*".into(), escaped);
        format!("{}p:{{{topic}}}:*", escaped(&self.prefix))
    }

    /// The hash of diagnostics and ordinals beside the positions.
    pub(crate) fn positions_meta(&self, topic: &str, consumer: &str) -> String {
        format!("{}p:{{{topic}}}:{consumer}{META}", self.prefix)
    }

    /// Who owns which partition, and which instances are present.
    pub(crate) fn ownership(&self, topic: &str, consumer: &str) -> String {
        format!("{}o:{{{topic}}}:{consumer}", self.prefix)
    }

    /// When what is in the hash of [`ownership`](Self::ownership) ends, where the server has no expiry of
    /// hash fields: a sorted set of the fields by the milliseconds of the server's clock.
    pub(crate) fn expiries(&self, topic: &str, consumer: &str) -> String {
        format!("{}e:{{{topic}}}:{consumer}", self.prefix)
    }

    /// The dead letters of a consumer: a stream.
    pub(crate) fn dead_letters(&self, topic: &str, consumer: &str) -> String {
        format!("{}d:{{{topic}}}:{consumer}", self.prefix)
    }

    /// What became of its dead letters, and which was the last of each partition: a hash.
    pub(crate) fn dead_letters_meta(&self, topic: &str, consumer: &str) -> String {
        format!("{}d:{{{topic}}}:{consumer}{META}", self.prefix)
    }

    /// The consumers of a topic by name, and in which way each keeps what is finished: a hash.
    pub(crate) fn consumers(&self, topic: &str) -> String {
        format!("{}c:{{{topic}}}", self.prefix)
    }

    /// What a consumer in a group is to be handed once more, and what was replayed for it: a stream.
    pub(crate) fn retries(&self, topic: &str, consumer: &str) -> String {
        format!("{}rt:{{{topic}}}:{consumer}", self.prefix)
    }

    /// When that is to be: a sorted set of the ids of [items](Self::retry_items).
    pub(crate) fn retry_bucket(&self, topic: &str, consumer: &str) -> String {
        format!("{}r:{{{topic}}}:{consumer}", self.prefix)
    }

    /// What is to be handed over once more when it is due: a hash.
    pub(crate) fn retry_items(&self, topic: &str, consumer: &str) -> String {
        format!("{}ri:{{{topic}}}:{consumer}", self.prefix)
    }

    /// What the marker of a dedupe id begins with; the id follows. `tag` puts it into a slot of a
    /// cluster: the topic's name beside all its keys, or a stream's whole key beside that stream.
    pub(crate) fn once(&self, tag: &str) -> String {
        format!("{}once:{{{tag}}}:", self.prefix)
    }

    /// The messages that are to be published later, by when they are due: a sorted set. `tag` as for
    /// [`once`](Self::once).
    pub(crate) fn delays(&self, tag: &str) -> String {
        format!("{}dl:{{{tag}}}", self.prefix)
    }

    /// Those messages themselves: a hash.
    pub(crate) fn delay_items(&self, tag: &str) -> String {
        format!("{}di:{{{tag}}}", self.prefix)
    }

    /// Which process publishes them. It expires by itself.
    pub(crate) fn delay_lease(&self, tag: &str) -> String {
        format!("{}dl:{{{tag}}}:mover", self.prefix)
    }

    /// Which process trims the topic by age. It expires by itself.
    pub(crate) fn trim_lease(&self, topic: &str) -> String {
        format!("{}tr:{{{topic}}}", self.prefix)
    }

    /// What the key of a payload, a body that is kept apart, begins with; its id follows. `tag` as for
    /// [`once`](Self::once).
    pub(crate) fn payload(&self, tag: &str) -> String {
        format!("{}x:{{{tag}}}:", self.prefix)
    }

    /// What the idempotency markers of a scope begin with; the id follows. Shared with peers.
    pub(crate) fn dedupe(&self, scope: &str) -> String {
        format!("{}dedupe:{{{scope}}}:", self.prefix)
    }

    /// A piece of state that lives beside a topic, in its slot.
    pub(crate) fn state(&self, topic: &str, name: &str) -> String {
        format!("{}{{{topic}}}:state:{name}", self.prefix)
    }

    /// The names of all topics: a sorted set, in which all have the score 0. The only key that belongs to no
    /// topic.
    pub(crate) fn topics(&self) -> String {
        format!("{}topics", self.prefix)
    }

    /// The hash of a topic's metadata.
    pub(crate) fn topic_meta(&self, topic: &str) -> String {
        format!("{}m:{{{topic}}}", self.prefix)
    }
}

/// The topic and the consumer whose positions are under a key; `None` for any other key.
pub(crate) fn position_owner<'k>(keys: &Keys, key: &'k str) -> Option<(&'k str, &'k str)> {
    let rest = key.strip_prefix(&*keys.prefix)?.strip_prefix("p:{")?;
    let (topic, consumer) = rest.split_once("}:")?;
    (!consumer.is_empty() && !consumer.ends_with(META)).then_some((topic, consumer))
}

/// A text as patterns of keys have it, so that it is found as it is.
pub(crate) fn escaped(text: &str) -> String {
    let special = |c| matches!(c, '*' | '?' | '[' | ']' | '\\' | '^' | '-');
    let escape = |c| [special(c).then_some('\\'), Some(c)].into_iter().flatten();
    text.chars().flat_map(escape).collect()
}

/// What a cluster places a key by: the text between the first `{` and the next `}`, unless that is
/// empty or missing; then the whole key.
pub(crate) fn hash_tag(key: &[u8]) -> &[u8] {
    let tag = || {
        let start = key.iter().position(|b| *b == b'{')? + 1;
        let len = key[start..].iter().position(|b| *b == b'}')?;
        Some(&key[start..start + len])
    };
    tag().filter(|tag| !tag.is_empty()).unwrap_or(key)
}

/// Refuses, with a configuration error, what cannot be a topic: an empty name, braces, control
/// characters, blanks around the name.
pub(crate) fn check_topic(topic: &str) -> Result<(), Error> {
    check_name("topic", topic)
}

/// Refuses what [`check_topic`] does, and a name ending in `:meta`: its position hash would be the
/// diagnostics of another consumer.
pub(crate) fn check_consumer(consumer: &str) -> Result<(), Error> {
    check_name("consumer name", consumer)?;
    if consumer.ends_with(META) {
        return Err(Error::config(format!(
            "consumer name {consumer:?} ends in {META:?}, which is kept for the diagnostics of the \
             consumer named before it: choose another ending"
        )));
    }
    Ok(())
}

/// Refuses what [`check_topic`] does.
pub(crate) fn check_scope(scope: &str) -> Result<(), Error> {
    check_name("idempotency scope", scope)
}

fn check_name(what: &str, name: &str) -> Result<(), Error> {
    if name.is_empty() {
        return Err(Error::config(format!("the {what} is empty")));
    }
    if name.trim() != name {
        return Err(Error::config(format!(
            "{what} {name:?} begins or ends with a blank: remove it"
        )));
    }
    check_characters(what, name)
}

fn check_characters(what: &str, name: &str) -> Result<(), Error> {
    match name
        .chars()
        .find(|c| matches!(c, '{' | '}') || c.is_control())
    {
        None => Ok(()),
        Some(c) => Err(Error::config(format!(
            "{what} {name:?} contains {c:?}: braces decide where a cluster keeps the key, and \
             control characters cannot be typed, so neither is allowed"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn keys_are_named_as_everywhere() {
        let keys = Keys::default();
        assert_eq!(keys.stream("orders", 0, true), "re:s:{orders}:0");
        assert_eq!(keys.stream("orders", 12, false), "re:s:orders:12");
        assert_eq!(keys.positions("orders", "billing"), "re:p:{orders}:billing");
        assert_eq!(
            keys.positions_meta("orders", "billing"),
            "re:p:{orders}:billing:meta"
        );
        assert_eq!(
            keys.dead_letters("orders", "billing"),
            "re:d:{orders}:billing"
        );
        assert_eq!(
            keys.dead_letters_meta("orders", "billing"),
            "re:d:{orders}:billing:meta"
        );
        assert_eq!(keys.consumers("orders"), "re:c:{orders}");
        assert_eq!(keys.retries("orders", "billing"), "re:rt:{orders}:billing");
        assert_eq!(
            keys.retry_bucket("orders", "billing"),
            "re:r:{orders}:billing"
        );
        assert_eq!(
            keys.retry_items("orders", "billing"),
            "re:ri:{orders}:billing"
        );
        assert_eq!(keys.topic_meta("orders"), "re:m:{orders}");
        assert_eq!(keys.topics(), "re:topics");
        assert_eq!(keys.dedupe("bets"), "re:dedupe:{bets}:");
        assert_eq!(keys.once("orders"), "re:once:{orders}:");
        let spread = keys.stream("orders", 3, false);
        assert_eq!(keys.once(&spread), "re:once:{re:s:orders:3}:");
        assert_eq!(keys.delays("orders"), "re:dl:{orders}");
        assert_eq!(keys.delay_items(&spread), "re:di:{re:s:orders:3}");
        assert_eq!(keys.delay_lease("orders"), "re:dl:{orders}:mover");
        assert_eq!(keys.trim_lease("orders"), "re:tr:{orders}");
        assert_eq!(keys.payload("orders"), "re:x:{orders}:");
        assert_eq!(keys.payload(&spread), "re:x:{re:s:orders:3}:");
        assert_eq!(keys.state("bets", "123"), "re:{bets}:state:123");

        let old = Keys::with_prefix("production:re:").unwrap();
        assert_eq!(old.stream("orders", 0, true), "production:re:s:{orders}:0");
        assert_eq!(old.prefix(), "production:re:");
        let long = "t".repeat(400);
        assert_eq!(old.topic_meta(&long), format!("production:re:m:{{{long}}}"));
    }

    #[test]
    fn positions_are_found_and_told_from_other_keys() {
        let keys = Keys::with_prefix("a*:").unwrap();
        assert_eq!(keys.positions_pattern(None), "a\\*:p:{*}:*");
        assert_eq!(
            keys.positions_pattern(Some("o?[x]")),
            "a\\*:p:{o\\?\\[x\\]}:*"
        );
        for (key, owner) in [
            ("a*:p:{orders}:billing", Some(("orders", "billing"))),
            ("a*:p:{a:b}:c:d", Some(("a:b", "c:d"))),
            ("a*:p:{orders}:billing:meta", None),
            ("a*:p:{orders}:", None),
            ("a*:p:orders:billing", None),
            ("a*:o:{orders}:billing", None),
            ("p:{orders}:billing", None),
        ] {
            assert_eq!(position_owner(&keys, key), owner, "{key}");
        }
    }

    #[test]
    fn keys_are_placed_by_their_tag_as_a_cluster_does() {
        for (key, tag) in [
            ("re:s:{orders}:0", "orders"),
            ("re:{orders}:state:{x}", "orders"),
            ("{a}{b}", "a"),
            ("re:s:orders:0", "re:s:orders:0"),
            ("{}x", "{}x"),
            ("x{}{y}", "x{}{y}"),
            ("}{y}", "y"),
            ("{open", "{open"),
            ("{{a}}", "{a"),
            ("", ""),
        ] {
            assert_eq!(hash_tag(key.as_bytes()), tag.as_bytes(), "{key}");
        }
    }

    #[test]
    fn a_blank_prefix_is_the_default_and_any_other_is_taken_as_it_is() {
        for blank in ["", " ", "\t"] {
            assert_eq!(Keys::with_prefix(blank).unwrap(), Keys::default());
        }
        assert_eq!(Keys::with_prefix(" x").unwrap().topic_meta("t"), " xm:{t}");
        for bad in ["a{b}:", "}", "a\n", "\0"] {
            let e = Keys::with_prefix(bad).unwrap_err();
            assert!(e.to_string().contains(&format!("{bad:?}")), "{e}");
        }
    }

    #[test]
    fn names_that_would_go_wrong_later_are_refused_at_once() {
        for good in [
            "orders",
            "a:b",
            "päck",
            "a b",
            "__x",
            "*?[",
            &"t".repeat(400),
        ] {
            check_topic(good).unwrap();
            check_consumer(good).unwrap();
        }
        for bad in [
            "", " ", " a", "a ", "a\n", "{a}", "a}", "a\0b", "a\r\nb", "\u{7f}",
        ] {
            for e in [check_topic(bad), check_consumer(bad)].map(Result::unwrap_err) {
                assert_eq!(e.kind(), ErrorKind::Config);
                let named = bad.is_empty() || e.to_string().contains(&format!("{bad:?}"));
                assert!(named, "{e}");
            }
        }
        check_topic("billing:meta").unwrap();
        let e = check_consumer("billing:meta").unwrap_err();
        assert!(e.to_string().contains("billing:meta"), "{e}");
    }
}
