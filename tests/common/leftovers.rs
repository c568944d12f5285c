//! What a consumer that is a group leaves on its server: every form of key is listed here, and no other is
//! allowed.

use streamlane::testing::{PrivateServer, Reply};

/// How a key ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ends {
    /// It stays, and what it holds is bounded by the number of partitions and members, or by a setting.
    Never,
    /// It has a time to live.
    ByItself,
    /// With its last item: it is not there when nothing is to be done.
    WithItsItems,
}

/// With `T` for the topic, `C` for the consumer and `N` for a number.
const FORMS: [(&str, Ends); 14] = [
    // the topics there are, and how many partitions each has
    ("re:topics", Ends::Never),
    ("re:m:{T}", Ends::Never),
    // the consumers it has, and how each reads
    ("re:c:{T}", Ends::Never),
    // the messages, trimmed as the topic says
    ("re:s:{T}:N", Ends::Never),
    // how far the group is; what ordered consumers call positions it has none
    ("re:p:{T}:C:meta", Ends::Never),
    // who lives and owns what, and until when where fields do not expire by themselves
    ("re:o:{T}:C", Ends::Never),
    ("re:e:{T}:C", Ends::Never),
    // dead letters, as many as are to be kept, and what became of them
    ("re:d:{T}:C", Ends::Never),
    ("re:d:{T}:C:meta", Ends::Never),
    // what is to be handed over again: a stream that entries are deleted from, and the bucket before it
    ("re:rt:{T}:C", Ends::Never),
    ("re:r:{T}:C", Ends::WithItsItems),
    ("re:ri:{T}:C", Ends::WithItsItems),
    // who publishes what was delayed
    ("re:dl:{T}:mover", Ends::ByItself),
    // bodies that are kept apart from their messages
    ("re:x:{T}:ID", Ends::ByItself),
];

/// Looks at every key of the server, when nothing is to be done any more.
#[track_caller]
pub fn only_what_is_documented(server: &PrivateServer, topic: &str, consumers: &[&str]) {
    let int = |args: &[&str]| server.command(args).unwrap().int().unwrap();
    let keys = server.command(&["KEYS", "*"]).unwrap();
    let keys: Vec<_> = keys.items().iter().map(Reply::text).collect();
    assert!(keys.len() > 3, "{keys:?}");
    for key in &keys {
        let form = FORMS
            .iter()
            .find(|(form, _)| consumers.iter().any(|c| has_form(key, form, topic, c)));
        let Some((form, ends)) = form else {
            panic!("{key} is not documented: {keys:#?}");
        };
        let ttl = int(&["PTTL", key]);
        assert_eq!(ttl >= 0, *ends == Ends::ByItself, "{key}: PTTL {ttl}");
        assert_ne!(*ends, Ends::WithItsItems, "{key} is still there");
        if form.starts_with("re:rt:") {
            assert_eq!(int(&["XLEN", key]), 0, "{key} is not empty");
        }
    }
}

fn has_form(key: &str, form: &str, topic: &str, consumer: &str) -> bool {
    let form = form.replace("{T}", &format!("{{{topic}}}"));
    let is_number = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if let Some(beginning) = form.strip_suffix(":N") {
        let rest = key
            .strip_prefix(beginning)
            .and_then(|k| k.strip_prefix(':'));
        return rest.is_some_and(is_number);
    }
    if let Some(beginning) = form.strip_suffix(":ID") {
        return key.strip_prefix(beginning).is_some_and(|k| k.len() > 1);
    }
    key == form.replace(":C", &format!(":{consumer}"))
}
