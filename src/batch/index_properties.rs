//! Whatever comes, in whatever pieces, is understood as another parser and the plain rules have it.

use proptest::{collection::vec, option, prelude::*, sample::select};

use super::{
    tests::{AFTER, KEY, array, bulk, scan, sized, told},
    *,
};

/// One that leads to a body, of those that these replies hold.
const REFERENCE: &[u8] = b"0123456789abcdef0123456789abcdef 70000";

/// The outcome of scanning a reply that arrives in pieces of these sizes, over and over.
fn in_pieces(bytes: &[u8], sizes: &[usize]) -> Result<Option<(Vec<String>, u32)>, &'static str> {
    let mut index = Index::with_capacity(1);
    let mut sizes = sizes.iter().cycle();
    let mut until = 0;
    loop {
        let before = index.at();
        let progress = index.advance(&bytes[..until], KEY, AFTER, &Filter::default())?;
        assert!(before <= index.at() && index.at() <= until);
        match progress {
            Progress::Whole(end) => {
                assert_eq!(end, index.at());
                return Ok(Some((told(bytes, &index), index.read())));
            }
            Progress::Refused(text) => return Ok(Some((vec![format!("{text:?}")], 0))),
            Progress::Partial(need) => assert!(need > until, "{need} of {until}"),
        }
        if until == bytes.len() {
            return Ok(None);
        }
        until = bytes
            .len()
            .min(until + sizes.next().copied().unwrap_or(1).max(1));
    }
}

/// What the redis crate's parser, which shares no code with ours, makes of a reply, read by the plain
/// rules: id, value of each field, and whether the last field lacks its value.
mod oracle {
    use redis::Value;

    /// A text, or a nil in place of one.
    type Text = Option<Vec<u8>>;
    type Entry = (String, Vec<(Vec<u8>, Vec<u8>)>, bool);

    fn text(v: &Value) -> Option<Text> {
        match v {
            Value::BulkString(b) => Some(Some(b.clone())),
            Value::SimpleString(s) => Some(Some(s.clone().into_bytes())),
            Value::Okay => Some(Some(b"OK".to_vec())),
            Value::Nil => Some(None),
            _ => None,
        }
    }

    fn entry(v: &Value) -> Option<Entry> {
        let Value::Array(pair) = v else { return None };
        let [id, fields] = &pair[..] else { return None };
        let id = String::from_utf8(text(id)??).ok()?;
        let values: Vec<Value> = match fields {
            Value::Array(values) => values.clone(),
            Value::Map(pairs) => pairs
                .iter()
                .flat_map(|(k, v)| [k.clone(), v.clone()])
                .collect(),
            Value::Nil => Vec::new(),
            _ => return None,
        };
        let mut fields = Vec::new();
        for pair in values.chunks_exact(2) {
            fields.push((
                text(&pair[0])?.unwrap_or_default(),
                text(&pair[1])?.unwrap_or_default(),
            ));
        }
        Some((id, fields, !values.len().is_multiple_of(2)))
    }

    pub(super) fn read(reply: &[u8], key: &[u8]) -> Option<Vec<Entry>> {
        let streams: Vec<(Value, Value)> = match redis::parse_redis_value(reply).unwrap() {
            Value::Nil => return Some(Vec::new()),
            Value::Map(pairs) => pairs,
            Value::Array(items) if matches!(items.first(), None | Some(Value::Array(_))) => {
                let pair = |v| match v {
                    Value::Array(p) => <[Value; 2]>::try_from(p).ok().map(|[k, v]| (k, v)),
                    _ => None,
                };
                items.into_iter().map(pair).collect::<Option<_>>()?
            }
            Value::Array(items) if items.len() % 2 == 0 => items
                .chunks_exact(2)
                .map(|p| (p[0].clone(), p[1].clone()))
                .collect(),
            _ => return None,
        };
        let several = streams.len() > 1;
        let (mut read, mut found, mut nils) = (Vec::new(), false, 0);
        for (name, entries) in &streams {
            if several && text(name)?? != key {
                continue;
            }
            text(name)??;
            found = true;
            match entries {
                Value::Nil => {}
                Value::Array(items) => {
                    for item in items {
                        match item {
                            Value::Nil => nils += 1,
                            item => read.push(entry(item)?),
                        }
                    }
                }
                _ => return None,
            }
        }
        let lost = several && !found || nils > 0 && read.is_empty();
        (!lost).then_some(read)
    }
}

/// What the rules make of an entry's fields, in the words of [`told`].
fn by_the_rules(fields: &[(Vec<u8>, Vec<u8>)], odd: bool) -> String {
    let last = |name: &[u8]| fields.iter().rfind(|(n, _)| n == name).map(|(_, v)| &v[..]);
    let why = if odd {
        " OddFields"
    } else if last(b"b").is_none() {
        " NoBody"
    } else if last(b"t").is_none() {
        " NoType"
    } else if Headers::new(last(b"h").unwrap_or_default())
        .check()
        .is_err()
    {
        " Headers"
    } else {
        match last(b"x").filter(|_| last(b"b") == Some(b"")) {
            None => "",
            Some(REFERENCE) => " apart",
            Some(_) => " Reference",
        }
    };
    let text = |name| last(name).unwrap_or_default().escape_ascii().to_string();
    let body = text(if why == " apart" { b"x" } else { b"b" });
    format!("{}{why}", [body, text(b"t"), text(b"k")].join(","))
}

fn some_text() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        20 => vec(any::<u8>(), 0..20).prop_map(bulk),
        1 => vec(any::<u8>(), 90..1200).prop_map(bulk),
        3 => select(vec![&b""[..], REFERENCE]).prop_map(bulk),
        1 => Just(b"+OK\r\n".to_vec()),
        1 => Just(b"$-1\r\n".to_vec()),
        1 => Just(b"_\r\n".to_vec()),
    ]
}

fn some_fields() -> impl Strategy<Value = Vec<u8>> {
    let name = select(vec!["b", "t", "k", "c", "p", "h", "x", "", "bb"]).prop_map(bulk);
    let pairs = vec((name, some_text()), 0..6).prop_map(|p| {
        p.into_iter()
            .map(|(n, v)| [n, v].concat())
            .collect::<Vec<_>>()
    });
    (
        pairs,
        select(vec!['*', '*', '*', '%']),
        option::weighted(0.1, some_text()),
    )
        .prop_map(|(pairs, mark, odd)| {
            let n = pairs.len() * if mark == '*' { 2 } else { 1 };
            match odd {
                Some(odd) if mark == '*' => sized('*', n + 1, &[pairs.concat(), odd]),
                _ => sized(mark, n, &pairs),
            }
        })
}

/// An entry `step` behind the one before it, or something else in an entry's place.
fn some_entry() -> impl Strategy<Value = (u64, Vec<u8>)> {
    let wrong = select(vec![
        "*-1\r\n",
        "_\r\n",
        "*-1\r\n",
        ":1\r\n",
        "*1\r\n$3\r\n9-9\r\n",
        "*0\r\n",
    ]);
    prop_oneof![
        30 => (1..3u64, some_fields()),
        1 => (0..1u64, some_fields()),
        1 => (1..3u64, Just(b"*-1\r\n".to_vec())),
        1 => (1..3u64, Just(b":3\r\n".to_vec())),
        2 => wrong.prop_map(|w| (u64::MAX, w.as_bytes().to_vec())),
    ]
}

fn some_entries() -> impl Strategy<Value = Vec<u8>> {
    let entries = vec(some_entry(), 0..8).prop_map(|entries| {
        let mut seq = 0;
        let entries = entries.into_iter().map(|(step, rest)| {
            if step == u64::MAX {
                return rest;
            }
            seq += step;
            array(&[bulk(format!("0-{seq}")), rest])
        });
        array(&entries.collect::<Vec<_>>())
    });
    prop_oneof![30 => entries, 1 => Just(b"_\r\n".to_vec()), 1 => Just(b":1\r\n".to_vec())]
}

fn some_reply() -> impl Strategy<Value = Vec<u8>> {
    let key =
        prop_oneof![8 => Just(bulk(KEY)), 2 => Just(bulk("other")), 1 => Just(b"_\r\n".to_vec())];
    let streams = prop_oneof![9 => vec((key.clone(), some_entries()), 1..2), 2 => vec((key, some_entries()), 0..4)];
    (streams, select(vec!["nested", "flat", "map"])).prop_map(|(streams, layout)| {
        let pairs = streams.into_iter().map(|(k, e)| [k, e]);
        match layout {
            "nested" => array(&pairs.map(|p| array(&p)).collect::<Vec<_>>()),
            "flat" => array(&pairs.flatten().collect::<Vec<_>>()),
            _ => sized('%', pairs.len(), &pairs.flatten().collect::<Vec<_>>()),
        }
    })
}

proptest! {
    /// Another parser and the plain rules come to the same messages, or also find none.
    #[test]
    fn another_parser_reads_the_same(reply in some_reply()) {
        let theirs = oracle::read(&reply, KEY).and_then(|entries| {
            let mut last = AFTER;
            let entries = entries.into_iter().enumerate().map(|(i, (id, fields, odd))| {
                let parsed = StreamId::parse(id.as_bytes()).filter(|id| *id > last)?;
                last = parsed;
                Some(format!("{id} #{} {}", i + 1, by_the_rules(&fields, odd)))
            });
            entries.collect::<Option<Vec<_>>>()
        });
        let ours = scan(&reply).ok().map(|index| told(&reply, &index));
        prop_assert_eq!(ours, theirs, "{}", reply.escape_ascii());
    }

    #[test]
    fn how_a_reply_is_cut_into_pieces_does_not_matter(
        reply in some_reply(),
        sizes in vec(1..40usize, 1..5),
    ) {
        let whole = in_pieces(&reply, &[reply.len()]);
        prop_assert_eq!(in_pieces(&reply, &sizes), whole.clone());
        prop_assert_eq!(in_pieces(&reply, &[1]), whole);
    }

    #[test]
    fn noise_never_panics_in_any_pieces(
        mut reply in some_reply(),
        noise in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        for (at, byte) in noise {
            let at = at.index(reply.len());
            reply[at] = byte;
        }
        reply.truncate(cut.index(reply.len()) + 1);
        prop_assert_eq!(in_pieces(&reply, &[1]), in_pieces(&reply, &[reply.len()]));
    }
}
