//! Keys of `RedisEvents` that are no keys of ours, so that a settings file can be shared and still
//! nothing is accepted that would then do nothing in silence.

use super::key::Place;

/// A key that is refused, unless its value asks for nothing.
struct Refused {
    place: Place,
    /// With everything below it.
    key: &'static str,
    /// Values that ask for what happens anyway.
    harmless: &'static [&'static str],
    why: &'static str,
}

const REFUSED: &[Refused] = &[
    Refused {
        place: Place::Consumers,
        key: "UseConsumerGroup",
        harmless: &["false"],
        why: "an older spelling; set Delivery to WorkQueue",
    },
    Refused {
        place: Place::Consumers,
        key: "ResetOnStart",
        harmless: &["false"],
        why: "refused, since every restart would handle everything again; \
              set StartFrom to Beginning, which is applied once, or reset the position by hand",
    },
];

/// Keys that bind and do nothing, with the reason.
const WITHOUT_EFFECT: &[(Place, &str, &str)] = &[
    (
        Place::Consumers,
        "ReaderThreads",
        "each partition has a thread of its own",
    ),
    (
        Place::Consumers,
        "UseConsumerGroup",
        "false is what Delivery says anyway",
    ),
];

/// What becomes of a key that is none of ours.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// It binds.
    Fine,
    /// It binds and does nothing, which is worth a warning: its name, and why.
    Idle(&'static str, &'static str),
    /// It is refused: why, and what to do.
    Refused(&'static str),
    /// Nobody knows it.
    Unknown,
}

pub(super) fn judge(place: Place, key: &str, value: Option<&str>) -> Verdict {
    let refused = REFUSED.iter().find(|r| is(r.place, r.key, place, key));
    let idle = WITHOUT_EFFECT
        .iter()
        .find(|(p, k, _)| is(*p, k, place, key));
    let harmless = |r: &Refused| {
        value.is_none_or(|v| r.harmless.iter().any(|h| h.eq_ignore_ascii_case(v.trim())))
    };
    match (refused, idle) {
        (Some(r), _) if !harmless(r) => Verdict::Refused(r.why),
        (_, Some((_, key, why))) => Verdict::Idle(key, why),
        (Some(_), None) => Verdict::Fine,
        (None, None) => Verdict::Unknown,
    }
}

fn is(place: Place, name: &str, asked_place: Place, asked_name: &str) -> bool {
    place == asked_place && name.eq_ignore_ascii_case(asked_name)
}

/// The names of such keys in one kind of section, to guess from when a name is mistyped.
pub(super) fn names(place: Place) -> impl Iterator<Item = &'static str> {
    let refused = REFUSED
        .iter()
        .filter(move |r| r.place == place)
        .map(|r| r.key);
    let idle = WITHOUT_EFFECT.iter().filter(move |(p, _, _)| *p == place);
    refused.chain(idle.map(|(_, key, _)| *key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_peers_bind_warn_or_are_refused() {
        use Place::{Consumers, Root};
        let idle = |v: &Verdict| matches!(v, Verdict::Idle(..));
        let refused = |v: &Verdict| matches!(v, Verdict::Refused(_));
        for (place, key, value) in [
            (Consumers, "UseConsumerGroup", "true"),
            (Consumers, "ResetOnStart", "True"),
        ] {
            assert!(refused(&judge(place, key, Some(value))), "{key}");
        }
        let harmless = judge(Consumers, "resetOnStart", Some(" False"));
        assert_eq!(harmless, Verdict::Fine);
        assert!(idle(&judge(Consumers, "ReaderThreads", Some("4"))));
        assert!(idle(&judge(Consumers, "useconsumergroup", Some("false"))));
        assert_eq!(judge(Root, "Delivery", Some("Ordered")), Verdict::Unknown);
    }
}
