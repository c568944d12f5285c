//! What a topic's metadata says, and what follows from it for the number of partitions and for who may
//! route by key.

use super::route::XXH3;
use crate::error::Error;

/// The version of the entry format this crate writes, and the only one it reads.
pub(crate) const VERSION: u32 = 1;

/// Partitions of a new topic that nobody configured.
const DEFAULT_PARTITIONS: u32 = 2;

/// Fields of the metadata hash.
pub(crate) mod field {
    /// Decimal; only ever raised.
    pub(crate) const PARTITIONS: &str = "partitions";
    /// [`VERSION`](super::VERSION), decimal.
    pub(crate) const VERSION: &str = "v";
    /// When the topic was made; see [`RoundTrip`](crate::clock::RoundTrip). For people.
    pub(crate) const CREATED: &str = "createdUtc";
    /// The cap on its streams when it was made. For people.
    pub(crate) const MAX_LEN: &str = "maxLen";
    /// The name of what finds the partition of a key. Peers do not write it.
    pub(crate) const PARTITIONER: &str = "partitioner";
}

/// What the server has on record of a topic.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct TopicRecord {
    /// At least 1. `None` when the record is missing or says nothing of use.
    pub(crate) partitions: Option<u32>,
    /// `None` when missing or not a number, which is let pass.
    pub(crate) version: Option<i64>,
    /// `None` when missing, as where a peer made the topic: that means [`XXH3`].
    pub(crate) partitioner: Option<Box<str>>,
}

impl TopicRecord {
    /// The fields to ask for, in the order [`parse`](Self::parse) takes their values.
    pub(crate) const FIELDS: [&str; 3] = [field::PARTITIONS, field::VERSION, field::PARTITIONER];

    pub(crate) fn parse([partitions, version, partitioner]: [Option<&[u8]>; 3]) -> Self {
        // signed and trimmed: a number that peers can read should not look like none to us
        let number = |value| str::from_utf8(value).ok()?.trim().parse::<i64>().ok();
        Self {
            partitions: partitions
                .and_then(number)
                .and_then(|n| u32::try_from(n).ok())
                .filter(|n| *n >= 1),
            version: version.and_then(number),
            partitioner: partitioner.map(|name| String::from_utf8_lossy(name).into()),
        }
    }
}

/// Settles whether a publisher may route by the partitioner it is set to: only by the recorded one, for
/// equal keys must meet in one partition whoever publishes them.
pub(crate) fn check_partitioner(
    topic: &str,
    configured: &str,
    record: &TopicRecord,
) -> Result<(), Error> {
    let recorded = record.partitioner.as_deref().unwrap_or(XXH3);
    if configured == recorded {
        return Ok(());
    }
    Err(Error::config(format!(
        "topic {topic:?} finds the partition of a key by {recorded:?}, as recorded when it was made, and \
         its Partitioner is set to {configured:?}: set {recorded:?}, or publish to another topic, since \
         equal keys would go to different partitions"
    )))
}

/// How many partitions a topic has from now on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Decision {
    /// Nothing is on record: make the topic with this many.
    Create(u32),
    /// What is on record holds.
    Keep(u32),
    /// The configuration asks for more: raise the record. Keys are routed anew by it, which breaks
    /// their order once, so it deserves a warning.
    Grow { from: u32, to: u32 },
}

impl Decision {
    /// The count to use.
    pub(crate) fn partitions(self) -> u32 {
        match self {
            Self::Create(n) | Self::Keep(n) | Self::Grow { to: n, .. } => n,
        }
    }
}

/// Settles the number of partitions: the configured one, else the recorded one, else
/// [`DEFAULT_PARTITIONS`].
///
/// A configuration error when the count would be 0 or shrink, or when the topic is written in
/// another version of the format.
pub(crate) fn decide(
    topic: &str,
    configured: Option<u32>,
    record: &TopicRecord,
) -> Result<Decision, Error> {
    if let Some(version) = record.version.filter(|v| *v != i64::from(VERSION)) {
        return Err(Error::config(format!(
            "topic {topic:?} is written in version {version} of the entry format, and this release \
             reads version {VERSION} only: upgrade it, or use another topic"
        )));
    }
    match (configured, record.partitions) {
        (Some(0), _) => Err(Error::config(format!(
            "topic {topic:?} is set to 0 partitions: set 1 or more, or leave the setting out"
        ))),
        (Some(configured), Some(recorded)) if configured < recorded => Err(Error::config(format!(
            "topic {topic:?} has {recorded} partitions and is set to {configured}: fewer would \
                 leave messages unread, so set {recorded} or more, or leave the setting out"
        ))),
        (Some(to), Some(from)) if to > from => Ok(Decision::Grow { from, to }),
        (_, Some(recorded)) => Ok(Decision::Keep(recorded)),
        (configured, None) => Ok(Decision::Create(configured.unwrap_or(DEFAULT_PARTITIONS))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn record(partitions: Option<&str>, version: Option<&str>) -> TopicRecord {
        TopicRecord::parse([partitions, version, None].map(|v| v.map(str::as_bytes)))
    }

    #[test]
    fn only_usable_counts_are_taken_from_the_record() {
        for (text, n) in [
            ("1", Some(1)),
            ("16", Some(16)),
            (" 4 ", Some(4)),
            ("4294967295", Some(u32::MAX)),
            ("4294967296", None),
            ("0", None),
            ("-1", None),
            ("", None),
            ("two", None),
            ("2.0", None),
        ] {
            assert_eq!(record(Some(text), None).partitions, n, "{text:?}");
        }
        assert_eq!(
            TopicRecord::parse([Some(b"\xff"), None, None]),
            TopicRecord::default()
        );
    }

    #[test]
    fn the_configured_count_goes_before_the_recorded_and_never_below_it() {
        use Decision::{Create, Grow, Keep};
        for (configured, recorded, expected) in [
            (None, None, Some(Create(2))),
            (Some(8), None, Some(Create(8))),
            (Some(1), None, Some(Create(1))),
            (None, Some("5"), Some(Keep(5))),
            (Some(5), Some("5"), Some(Keep(5))),
            (Some(8), Some("5"), Some(Grow { from: 5, to: 8 })),
            (Some(4), Some("5"), None),
            (Some(0), Some("5"), None),
            (Some(0), None, None),
            (Some(3), Some("0"), Some(Create(3))),
            (None, Some("many"), Some(Create(2))),
        ] {
            let decision = decide("orders", configured, &record(recorded, Some("1")));
            assert_eq!(decision.ok(), expected, "{configured:?} {recorded:?}");
            if let (Some(d), Some(n)) = (expected, configured) {
                assert_eq!(d.partitions(), n);
            }
        }
        assert_eq!(Keep(5).partitions(), 5);
    }

    #[test]
    fn a_refusal_names_the_topic_and_both_counts() {
        let e = decide("orders", Some(4), &record(Some("16"), None)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Config);
        let text = e.to_string();
        assert!(
            ["\"orders\"", "16", "4"].iter().all(|s| text.contains(s)),
            "{text}"
        );
        let e = decide("orders", Some(0), &TopicRecord::default()).unwrap_err();
        assert!(e.to_string().contains("\"orders\""), "{e}");
    }

    #[test]
    fn other_versions_are_refused_and_unreadable_ones_let_pass() {
        for version in ["2", "0", "-1", " 7 "] {
            let e = decide("orders", Some(2), &record(Some("2"), Some(version))).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Config);
            let named = format!("version {} ", version.trim());
            assert!(e.to_string().contains(&named), "{e}");
        }
        for version in [Some("1"), Some("01"), Some(""), Some("one"), None] {
            let decision = decide("orders", None, &record(Some("2"), version));
            assert_eq!(decision.unwrap(), Decision::Keep(2), "{version:?}");
        }
    }

    #[test]
    fn a_publisher_routes_by_the_recorded_partitioner_or_not_at_all() {
        for (configured, recorded, fits) in [
            ("xxh3", None, true),
            ("xxh3", Some("xxh3"), true),
            ("murmur2", Some("murmur2"), true),
            ("murmur2", None, false),
            ("murmur2", Some("xxh3"), false),
            ("xxh3", Some("murmur2"), false),
            ("XXH3", Some("xxh3"), false),
            ("xxh3", Some(""), false),
        ] {
            let record = TopicRecord::parse([None, None, recorded.map(str::as_bytes)]);
            let checked = check_partitioner("orders", configured, &record);
            assert_eq!(checked.is_ok(), fits, "{configured} {recorded:?}");
            let Err(e) = checked else { continue };
            assert_eq!(e.kind(), ErrorKind::Config);
            let text = e.to_string();
            for named in ["\"orders\"", configured, recorded.unwrap_or("xxh3")] {
                assert!(text.contains(named), "{text}");
            }
        }
    }
}
