//! Every key there can be under the prefix: what it is called, what it holds and how long it lives. One table,
//! which the page about keys shows, and by which whoever deletes a topic or looks at a server reads key names.

use std::fmt::Write as _;

use super::Keys;

/// What a key is for. The order is that of the page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum KeyUse {
    Topics,
    TopicMeta,
    Stream,
    SpreadStream,
    Consumers,
    Positions,
    PositionsMeta,
    Claims,
    Expiries,
    Retries,
    RetryBucket,
    RetryItems,
    DeadLetters,
    DeadLettersMeta,
    Payload,
    Once,
    Delays,
    DelayItems,
    DelayLease,
    TrimLease,
    State,
    Dedupe,
}

/// How long a key lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lifetime {
    /// Until somebody deletes it.
    Stays,
    /// The key stays for as long as it has fields, and these expire where the server can do that.
    FieldsExpire,
    /// It has a time to live.
    Expires,
}

/// Who a key belongs to: with what it is deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// All topics together.
    Prefix,
    Topic,
    /// A topic, or one of its partitions where they are spread over the slots of a cluster.
    Place,
    Consumer,
    /// Whoever uses the library: no call deletes it.
    User,
}

/// The text in braces, by which a cluster places a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tag {
    None,
    Topic,
    /// The topic, or the whole key of a stream.
    Place,
    Scope,
}

/// What follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tail {
    Text(&'static str),
    /// `:p`, a number.
    Partition,
    /// `T:p`, without braces.
    TopicAndPartition,
    /// `:C`.
    Consumer,
    /// `:C:meta`.
    ConsumerMeta,
    /// This text and anything behind it.
    Named(&'static str, &'static str),
}

/// One row of the table.
#[derive(Debug)]
pub(crate) struct KeyRow {
    pub(crate) of: KeyUse,
    head: &'static str,
    tag: Tag,
    tail: Tail,
    /// As `TYPE` names it; `any` where that is for its owner to say.
    pub(crate) holds: &'static str,
    pub(crate) lifetime: Lifetime,
    pub(crate) owner: Owner,
    /// For people.
    what: &'static str,
}

const fn row(
    of: KeyUse,
    (head, tag, tail): (&'static str, Tag, Tail),
    holds: &'static str,
    (lifetime, owner): (Lifetime, Owner),
    what: &'static str,
) -> KeyRow {
    KeyRow {
        of,
        head,
        tag,
        tail,
        holds,
        lifetime,
        owner,
        what,
    }
}

/// The table.
pub(crate) const KEY_TABLE: &[KeyRow] = {
    use Lifetime::{Expires, FieldsExpire, Stays};
    &[
        row(
            KeyUse::Topics,
            ("topics", Tag::None, Tail::Text("")),
            "zset",
            (Stays, Owner::Prefix),
            "The names of all topics, each with the score 0, so that they are found in order and page by page. \
             Written by every publisher and consumer, once for each topic it uses, and by `Admin::adopt`.",
        ),
        row(
            KeyUse::TopicMeta,
            ("m:", Tag::Topic, Tail::Text("")),
            "hash",
            (Stays, Owner::Topic),
            "How many partitions a topic has, the version of its entries, its partitioner, and when it was made. \
             Written by whoever uses it first or enlarges it.",
        ),
        row(
            KeyUse::Stream,
            ("s:", Tag::Topic, Tail::Partition),
            "stream",
            (Stays, Owner::Topic),
            "The entries of a partition, and the groups of the queues that read it. Written by publishers.",
        ),
        row(
            KeyUse::SpreadStream,
            ("s:", Tag::None, Tail::TopicAndPartition),
            "stream",
            (Stays, Owner::Topic),
            "The same, where `CoLocatePartitions` is false.",
        ),
        row(
            KeyUse::Consumers,
            ("c:", Tag::Topic, Tail::Text("")),
            "hash",
            (Stays, Owner::Topic),
            "The consumers of a topic by name, and in which way each keeps what is finished. Written by each when \
             it starts.",
        ),
        row(
            KeyUse::Positions,
            ("p:", Tag::Topic, Tail::Consumer),
            "hash",
            (Stays, Owner::Consumer),
            "The position of each partition, and reset markers. Written by the owners of the partitions.",
        ),
        row(
            KeyUse::PositionsMeta,
            ("p:", Tag::Topic, Tail::ConsumerMeta),
            "hash",
            (Stays, Owner::Consumer),
            "When each position was stored and by whom, its ordinal, what is being handled, and how far groups \
             are. Written beside positions, and by queues.",
        ),
        row(
            KeyUse::Claims,
            ("o:", Tag::Topic, Tail::Consumer),
            "hash",
            (FieldsExpire, Owner::Consumer),
            "Who owns which partition, and which instances live. Written and renewed by each instance.",
        ),
        row(
            KeyUse::Expiries,
            ("e:", Tag::Topic, Tail::Consumer),
            "zset",
            (Stays, Owner::Consumer),
            "When the claims end, on servers whose hash fields cannot expire (Redis before 7.4, Valkey before 9). \
             Written with the claims.",
        ),
        row(
            KeyUse::Retries,
            ("rt:", Tag::Topic, Tail::Consumer),
            "stream",
            (Stays, Owner::Consumer),
            "What a queue is to be handed once more, and what was replayed for it. Written by its instances and \
             by `DeadLetters::replay`.",
        ),
        row(
            KeyUse::RetryBucket,
            ("r:", Tag::Topic, Tail::Consumer),
            "zset",
            (Stays, Owner::Consumer),
            "When a queue is to be handed what failed: ids of items by milliseconds of the server's clock. Written \
             by its instances.",
        ),
        row(
            KeyUse::RetryItems,
            ("ri:", Tag::Topic, Tail::Consumer),
            "hash",
            (Stays, Owner::Consumer),
            "Those items themselves.",
        ),
        row(
            KeyUse::DeadLetters,
            ("d:", Tag::Topic, Tail::Consumer),
            "stream",
            (Stays, Owner::Consumer),
            "Messages that failed for good, with their bodies. Written by the consumer; bounded by `DeadLetters`.",
        ),
        row(
            KeyUse::DeadLettersMeta,
            ("d:", Tag::Topic, Tail::ConsumerMeta),
            "hash",
            (Stays, Owner::Consumer),
            "Which letters were replayed and as what, and which was the last of each partition.",
        ),
        row(
            KeyUse::Payload,
            ("x:", Tag::Place, Tail::Named(":", "ID")),
            "string",
            (Expires, Owner::Place),
            "A body that is kept apart (`ClaimCheck`), for `PayloadTtlSeconds`. Written with the entry that refers \
             to it.",
        ),
        row(
            KeyUse::Once,
            ("once:", Tag::Place, Tail::Named(":", "ID")),
            "string",
            (Expires, Owner::Place),
            "Under which id the message of a dedupe id was published, or that it waits for its time; for as long \
             as the publisher said.",
        ),
        row(
            KeyUse::Delays,
            ("dl:", Tag::Place, Tail::Text("")),
            "zset",
            (Stays, Owner::Place),
            "When delayed messages are due: their ids by milliseconds of the server's clock. Written by publishers.",
        ),
        row(
            KeyUse::DelayItems,
            ("di:", Tag::Place, Tail::Text("")),
            "hash",
            (Stays, Owner::Place),
            "Those messages themselves.",
        ),
        row(
            KeyUse::DelayLease,
            ("dl:", Tag::Place, Tail::Text(":mover")),
            "string",
            (Expires, Owner::Place),
            "Which process publishes them when they are due. It is there only while something is due soon.",
        ),
        row(
            KeyUse::TrimLease,
            ("tr:", Tag::Topic, Tail::Text("")),
            "string",
            (Expires, Owner::Topic),
            "Which process trims the topic by age, where that is set (`RetentionSeconds`).",
        ),
        row(
            KeyUse::State,
            ("", Tag::Topic, Tail::Named(":state:", "NAME")),
            "any",
            (Stays, Owner::User),
            "What an outbox writes beside a topic; the streams of a state store; and, under a `NAME` that ends in \
             `:high-water`, how far a forwarder is.",
        ),
        row(
            KeyUse::Dedupe,
            ("dedupe:", Tag::Scope, Tail::Named(":", "ID")),
            "string",
            (Expires, Owner::User),
            "That an id was seen: of an `Idempotency` of that scope, or of a forwarder.",
        ),
    ]
};

/// What a key name says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KeyName<'a> {
    pub(crate) of: KeyUse,
    /// The topic; of a dedupe key its scope; empty for what belongs to all of them.
    pub(crate) topic: &'a str,
    /// Empty unless it is a consumer's.
    pub(crate) consumer: &'a str,
    /// Of what lies beside one stream of a topic whose partitions are spread, and of streams.
    pub(crate) partition: Option<u32>,
}

impl KeyRow {
    /// The row about keys of this use.
    pub(crate) fn about(of: KeyUse) -> &'static Self {
        let found = KEY_TABLE.iter().find(|row| row.of == of);
        found.unwrap_or(&KEY_TABLE[0]) // a test sees to it that there is one
    }

    /// What a key says whose prefix was taken off; `None` when it is not of this row.
    fn read<'a>(&self, keys: &Keys, key: &'a str) -> Option<KeyName<'a>> {
        let rest = key.strip_prefix(self.head)?;
        let mut name = KeyName {
            of: self.of,
            topic: "",
            consumer: "",
            partition: None,
        };
        let rest = if self.tag == Tag::None {
            rest
        } else {
            let (tag, rest) = rest.strip_prefix('{')?.split_once('}')?;
            name.topic = tag;
            if self.tag == Tag::Place
                && let Some((topic, partition)) = keys.spread_stream(tag)
            {
                (name.topic, name.partition) = (topic, Some(partition));
            }
            rest
        };
        if rest.contains(['{', '}']) && !matches!(self.tail, Tail::Named(..)) {
            return None;
        }
        match self.tail {
            Tail::Text(text) => (rest == text).then_some(name),
            Tail::Partition => {
                name.partition = Some(partition(rest.strip_prefix(':')?)?);
                Some(name)
            }
            Tail::TopicAndPartition => {
                let (topic, p) = rest.rsplit_once(':')?;
                (name.topic, name.partition) = (topic, Some(partition(p)?));
                (!topic.is_empty()).then_some(name)
            }
            Tail::Consumer | Tail::ConsumerMeta => {
                let consumer = rest.strip_prefix(':')?;
                let is_meta = self.tail == Tail::ConsumerMeta;
                name.consumer = match consumer.strip_suffix(":meta") {
                    Some(consumer) if is_meta => consumer,
                    None if !is_meta => consumer,
                    _ => return None,
                };
                (!name.consumer.is_empty()).then_some(name)
            }
            Tail::Named(text, _) => {
                let is_more = rest.strip_prefix(text).is_some_and(|id| !id.is_empty());
                is_more.then_some(name)
            }
        }
    }

    /// The names of such keys, as the page has them.
    pub(crate) fn pattern(&self) -> String {
        let tag = match self.tag {
            Tag::None => "",
            Tag::Topic => "{T}",
            Tag::Place => "{T*}",
            Tag::Scope => "{SCOPE}",
        };
        let (tail, id) = match self.tail {
            Tail::Text(text) => (text, ""),
            Tail::Partition => (":p", ""),
            Tail::TopicAndPartition => ("T:p", ""),
            Tail::Consumer => (":C", ""),
            Tail::ConsumerMeta => (":C:meta", ""),
            Tail::Named(text, id) => (text, id),
        };
        format!("{}{tag}{tail}{id}", self.head)
    }
}

/// A partition's number as it stands in a key.
fn partition(digits: &str) -> Option<u32> {
    let plain = digits.bytes().all(|b| b.is_ascii_digit());
    let canonical = digits == "0" || !digits.starts_with('0');
    if !(plain && canonical) {
        return None;
    }
    digits.parse().ok()
}

impl Keys {
    /// The topic and partition of a stream's whole key that has no braces.
    fn spread_stream<'a>(&self, key: &'a str) -> Option<(&'a str, u32)> {
        let name = key.strip_prefix(self.prefix())?.strip_prefix("s:")?;
        let (topic, p) = name.rsplit_once(':')?;
        Some((topic, partition(p)?)).filter(|_| !topic.is_empty())
    }

    /// What the name of a key says; `None` when it is none of the table's.
    pub(crate) fn read<'a>(&self, key: &'a [u8]) -> Option<KeyName<'a>> {
        self.read_all(key).next()
    }

    fn read_all<'a>(&self, key: &'a [u8]) -> impl Iterator<Item = KeyName<'a>> {
        let key = str::from_utf8(key).ok();
        let key = key.and_then(|key| key.strip_prefix(self.prefix()));
        let rows = KEY_TABLE.iter();
        rows.filter_map(move |row| row.read(self, key?))
    }
}

/// The table as the page about keys has it. Not for use: it keeps the page and the code together.
pub fn keys_table() -> String {
    let mut out = String::from(
        "| key | type | lifetime | belongs to | what it holds, and who writes it |\n| --- | --- | --- | --- | --- |\n",
    );
    for row in KEY_TABLE {
        let lifetime = match row.lifetime {
            Lifetime::Stays => "stays",
            Lifetime::FieldsExpire => "stays while it has fields, which expire",
            Lifetime::Expires => "expires",
        };
        let owner = match row.owner {
            Owner::Prefix => "all topics",
            Owner::Topic => "topic",
            Owner::Place => "topic `T`, or its partition",
            Owner::Consumer => "consumer `C` of `T`",
            Owner::User => "you",
        };
        let (pattern, holds, what) = (row.pattern(), row.holds, row.what);
        let _ = writeln!(
            out,
            "| `{pattern}` | {holds} | {lifetime} | {owner} | {what} |"
        );
    }
    out
}

/// Which rows of the table a key is of: name, type and whether it expires. Not for use: it is how a test
/// compares the table with a server.
pub fn keys_of(prefix: &str, key: &[u8]) -> Vec<(String, &'static str, bool)> {
    let Ok(keys) = Keys::with_prefix(prefix) else {
        return Vec::new();
    };
    let found = keys.read_all(key).map(|name| KeyRow::about(name.of));
    found
        .map(|row| {
            let expires = row.lifetime == Lifetime::Expires;
            (row.pattern(), row.holds, expires)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(key: &str) -> Option<(KeyUse, &str, &str, Option<u32>)> {
        let keys = Keys::default();
        assert!(keys.read_all(key.as_bytes()).count() <= 1, "{key}");
        let name = keys.read(key.as_bytes())?;
        Some((name.of, name.topic, name.consumer, name.partition))
    }

    #[test]
    fn every_key_that_is_built_is_read_as_what_it_is() {
        let keys = Keys::default();
        let spread = keys.stream("a:b", 3, false);
        for (key, of, consumer, partition) in [
            (keys.topics(), KeyUse::Topics, "", None),
            (keys.topic_meta("a:b"), KeyUse::TopicMeta, "", None),
            (keys.stream("a:b", 0, true), KeyUse::Stream, "", Some(0)),
            (spread.clone(), KeyUse::SpreadStream, "", Some(3)),
            (keys.consumers("a:b"), KeyUse::Consumers, "", None),
            (keys.positions("a:b", "c:d"), KeyUse::Positions, "c:d", None),
            (
                keys.positions_meta("a:b", "c:d"),
                KeyUse::PositionsMeta,
                "c:d",
                None,
            ),
            (keys.ownership("a:b", "c"), KeyUse::Claims, "c", None),
            (keys.expiries("a:b", "c"), KeyUse::Expiries, "c", None),
            (keys.retries("a:b", "c"), KeyUse::Retries, "c", None),
            (
                keys.retry_bucket("a:b", "c"),
                KeyUse::RetryBucket,
                "c",
                None,
            ),
            (keys.retry_items("a:b", "c"), KeyUse::RetryItems, "c", None),
            (
                keys.dead_letters("a:b", "c"),
                KeyUse::DeadLetters,
                "c",
                None,
            ),
            (
                keys.dead_letters_meta("a:b", "c"),
                KeyUse::DeadLettersMeta,
                "c",
                None,
            ),
            (keys.payload("a:b") + "00ff", KeyUse::Payload, "", None),
            (keys.payload(&spread) + "00ff", KeyUse::Payload, "", Some(3)),
            (keys.once("a:b") + "x}{y", KeyUse::Once, "", None),
            (keys.once(&spread) + "x", KeyUse::Once, "", Some(3)),
            (keys.delays("a:b"), KeyUse::Delays, "", None),
            (keys.delays(&spread), KeyUse::Delays, "", Some(3)),
            (keys.delay_items(&spread), KeyUse::DelayItems, "", Some(3)),
            (keys.delay_lease("a:b"), KeyUse::DelayLease, "", None),
            (keys.delay_lease(&spread), KeyUse::DelayLease, "", Some(3)),
            (keys.trim_lease("a:b"), KeyUse::TrimLease, "", None),
            (keys.state("a:b", "x:{y}"), KeyUse::State, "", None),
            (keys.dedupe("a:b") + "1", KeyUse::Dedupe, "", None),
        ] {
            let topic = if of == KeyUse::Topics { "" } else { "a:b" };
            assert_eq!(read(&key), Some((of, topic, consumer, partition)), "{key}");
        }
        let other = Keys::with_prefix("x:").unwrap();
        assert_eq!(other.read(b"re:m:{a}"), None);
        assert!(other.read(b"x:m:{a}").is_some());
    }

    #[test]
    fn what_is_of_nobody_is_read_as_nothing() {
        for key in [
            "",
            "m:{a}",
            "re:",
            "re:topics2",
            "re:m:{a}:x",
            "re:m:a",
            "re:s:{a}:x",
            "re:s:{a}:",
            "re:s:{a}:01",
            "re:s:{a}:1:2",
            "re:s:a",
            "re:s::1",
            "re:p:{a}",
            "re:p:{a}:",
            "re:p:{a}::meta",
            "re:o:{a}:c:meta",
            "re:x:{a}",
            "re:x:{a}:",
            "re:dl:{a}:other",
            "re:{a}:view:o:v",
            "re:{a}:state:",
            "re:q:{a}",
        ] {
            assert_eq!(read(key), None, "{key}");
        }
        assert_eq!(Keys::default().read(b"re:m:{\xff}"), None);
    }

    #[test]
    fn every_use_has_one_row() {
        let mut uses: Vec<_> = KEY_TABLE.iter().map(|row| row.of).collect();
        for of in &uses {
            assert_eq!(KeyRow::about(*of).of, *of);
        }
        let n = uses.len();
        uses.sort_unstable();
        uses.dedup();
        assert_eq!((uses.len(), uses.last()), (n, Some(&KeyUse::Dedupe)));
        assert_eq!(KeyUse::Dedupe as usize + 1, n, "a use without a row");
    }

    #[test]
    fn the_page_shows_the_table() {
        let (page, table) = (include_str!("../docs/keys.md"), keys_table());
        assert!(
            page.contains(&table),
            "bring docs/keys.md up to date:\n{table}"
        );
    }
}
