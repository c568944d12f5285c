use super::*;

pub(super) const KEY: &[u8] = b"re:s:{t}:0";
pub(super) const AFTER: StreamId = StreamId::MIN;

pub(super) fn bulk(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    crate::net::resp::arg(&mut out, bytes.as_ref());
    out
}

pub(super) fn sized(mark: char, n: usize, items: &[Vec<u8>]) -> Vec<u8> {
    let mut out = format!("{mark}{n}\r\n").into_bytes();
    out.extend(items.concat());
    out
}

pub(super) fn array(items: &[Vec<u8>]) -> Vec<u8> {
    sized('*', items.len(), items)
}

fn entry(id: &str, fields: &[&str]) -> Vec<u8> {
    let fields: Vec<_> = fields.iter().map(bulk).collect();
    array(&[bulk(id), array(&fields)])
}

fn good(id: &str) -> Vec<u8> {
    entry(id, &["b", "B", "t", "T", "k", "K"])
}

/// The reply of one stream as RESP2 has it.
fn nested(entries: &[Vec<u8>]) -> Vec<u8> {
    array(&[array(&[bulk(KEY), array(entries)])])
}

/// The whole reply scanned in one piece.
fn scan_with(bytes: &[u8], cursor: StreamId, filter: &Filter) -> Result<Index, &'static str> {
    let mut index = Index::with_capacity(4);
    match index.advance(bytes, KEY, cursor, filter)? {
        Progress::Whole(end) => assert_eq!(end, bytes.len()),
        other => panic!("{other:?} of {}", bytes.escape_ascii()),
    }
    Ok(index)
}

pub(super) fn scan(bytes: &[u8]) -> Result<Index, &'static str> {
    scan_with(bytes, AFTER, &Filter::default())
}

/// The messages as text, one each.
pub(super) fn told(bytes: &[u8], index: &Index) -> Vec<String> {
    let text = |span: Span| span.of(bytes).escape_ascii().to_string();
    index
        .records()
        .iter()
        .map(|r| {
            let parts = [r.body, r.message_type, r.key].map(text);
            let why = r.malformed.map_or(String::new(), |m| format!(" {m:?}"));
            let why = why + if r.kept == Body::Here { "" } else { " apart" };
            format!("{} #{} {}{why}", r.id, r.nth, parts.join(","))
        })
        .collect()
}

#[track_caller]
fn reads(bytes: &[u8], want: &[&str]) {
    let index = scan(bytes).unwrap_or_else(|e| panic!("{e}: {}", bytes.escape_ascii()));
    assert_eq!(told(bytes, &index), want, "{}", bytes.escape_ascii());
}

#[track_caller]
fn refuses(bytes: &[u8], because: &str) {
    match scan(bytes) {
        Err(why) => assert!(why.contains(because), "{why}"),
        Ok(index) => panic!("{:?} of {}", told(bytes, &index), bytes.escape_ascii()),
    }
}

#[test]
fn the_layouts_of_both_protocol_versions_say_the_same() {
    let entries = array(&[good("1-0"), good("1-1")]);
    let want = ["1-0 #1 B,T,K", "1-1 #2 B,T,K"];
    let (key, pair) = (bulk(KEY), [bulk(KEY), entries.clone()]);
    reads(&array(&[array(&pair)]), &want);
    reads(&array(&pair), &want);
    reads(&sized('%', 1, &pair), &want);
    reads(&sized('~', 1, &[sized('~', 2, &pair)]), &want);
    let verbatim = sized('%', 1, &[b"=14\r\ntxt:re:s:{t}:0\r\n".to_vec(), entries]);
    reads(&verbatim, &want);
    let as_map = array(&[bulk("7-7"), sized('%', 2, &["b", "B", "t", "T"].map(bulk))]);
    reads(&array(&[array(&[key, array(&[as_map])])]), &["7-7 #1 B,T,"]);
}

#[test]
fn nothing_is_nothing_however_it_is_spelled() {
    let key = bulk(KEY);
    for none in ["*-1\r\n", "$-1\r\n", "_\r\n", "*0\r\n", "%0\r\n", "~0\r\n"] {
        let none = none.as_bytes().to_vec();
        reads(&none, &[]);
        if none != b"%0\r\n" {
            reads(&array(&[array(&[key.clone(), none.clone()])]), &[]);
            reads(&array(&[key.clone(), none.clone()]), &[]);
            reads(&sized('%', 1, &[key.clone(), none]), &[]);
        }
    }
    let index = scan(b"*-1\r\n").unwrap();
    assert_eq!((index.last(), index.read(), index.filtered()), (None, 0, 0));
}

#[test]
fn of_several_streams_the_one_asked_for_is_picked() {
    let stream = |key: &str, id| [bulk(key), array(&[good(id)])];
    let (ours, other) = (stream("re:s:{t}:0", "2-0"), stream("other", "1-0"));
    let want = ["2-0 #1 B,T,K"];
    for pair in [[&ours, &other], [&other, &ours]] {
        reads(&array(&pair.map(|s| array(s))), &want);
        reads(&array(&pair.map(|s| s.concat())).replace_count(4), &want);
        reads(&sized('%', 2, &pair.map(|s| s.concat())), &want);
    }
    let strangers = [array(&other), array(&stream("third", "1-0"))];
    refuses(&array(&strangers), "none that was asked for");
    let name = "a single stream is ours even where a proxy renamed it";
    assert_eq!(scan(&array(&[array(&other)])).unwrap().read(), 1, "{name}");
}

trait ReplaceCount {
    fn replace_count(self, n: usize) -> Self;
}

impl ReplaceCount for Vec<u8> {
    /// The same array with another count: a flattened list has two items for each pair.
    fn replace_count(self, n: usize) -> Self {
        sized('*', n, &[self[4..].to_vec()])
    }
}

#[test]
fn nil_entries_are_dropped_unless_there_is_nothing_else() {
    for nil in ["*-1\r\n", "$-1\r\n", "_\r\n"] {
        let nil = nil.as_bytes().to_vec();
        let some = [nil.clone(), good("1-0"), nil.clone(), good("1-1")];
        reads(&nested(&some), &["1-0 #1 B,T,K", "1-1 #2 B,T,K"]);
        for n in 1..3 {
            refuses(&nested(&vec![nil.clone(); n]), "nowhere to go on from");
        }
    }
}

#[test]
fn an_unexpected_shape_is_an_error_and_never_an_empty_reply() {
    let fields = array(&["b", "B", "t", "T"].map(bulk));
    for (entries, because) in [
        (array(&[bulk("1-0")]), "no pair of id and fields"),
        (array(&[bulk("1-0"), fields.clone(), bulk("x")]), "no pair"),
        (bulk("1-0"), "no pair of id and fields"),
        (b":1\r\n".to_vec(), "no pair of id and fields"),
        (array(&[array(&[good("1-0")])]), "no pair of id and fields"),
        (array(&[b"_\r\n".to_vec(), fields.clone()]), "without an id"),
        (array(&[array(&[]), fields.clone()]), "other than a string"),
        (array(&[bulk("x"), fields.clone()]), "an id that is none"),
        (array(&[bulk("1"), fields.clone()]), "an id that is none"),
        (array(&[bulk("1-0-0"), fields]), "an id that is none"),
        (array(&[bulk("1-0"), bulk("b")]), "other than fields"),
        (
            array(&[bulk("1-0"), array(&[array(&[]), bulk("x")])]),
            "other than a string",
        ),
        (
            array(&[bulk("1-0"), array(&[bulk("b"), b":1\r\n".to_vec()])]),
            "other than a string",
        ),
    ] {
        refuses(&nested(&[good("0-9"), entries]), because);
    }
    let entries = array(&[good("1-0")]);
    let stream = array(&[bulk(KEY), entries.clone()]);
    refuses(&array(&[array(&[stream])]), "no pair of key and entries");
    let three = array(&[bulk(KEY), entries.clone(), bulk("x")]);
    refuses(&array(&[three]), "no pair of key and entries");
    refuses(&array(&[bulk(KEY)]), "a stream key without its entries");
    refuses(
        &array(&[bulk(KEY), bulk("x")]),
        "something other than entries",
    );
    refuses(
        &array(&[array(&[array(&[]), entries])]),
        "other than a string",
    );
    for scalar in ["+OK\r\n", ":7\r\n", "$1\r\nx\r\n", "#t\r\n", ",1.5\r\n"] {
        refuses(scalar.as_bytes(), "a scalar where streams belong");
    }
}

#[test]
fn ids_must_rise_from_the_cursor_on() {
    let after = |cursor: &str, entries: &[Vec<u8>]| {
        let cursor = StreamId::parse(cursor.as_bytes()).unwrap();
        scan_with(&nested(entries), cursor, &Filter::default()).map(|i| i.last())
    };
    let max = "18446744073709551615-18446744073709551615";
    assert_eq!(
        after("4-9", &[good("5-0"), good(max)]),
        Ok(StreamId::parse(max.as_bytes()))
    );
    for (cursor, entries) in [
        ("5-0", &[good("5-0")][..]),
        ("5-1", &[good("5-0")]),
        ("0-0", &[good("0-0")]),
        ("0-0", &[good("5-0"), good("5-0")]),
        ("0-0", &[good("5-1"), good("5-0")]),
        (max, &[good("1-0")]),
    ] {
        assert_eq!(
            after(cursor, entries),
            Err("an id at or before one already read")
        );
    }
}

#[test]
fn entries_that_are_no_messages_are_told_apart_and_stay_in_place() {
    for (fields, want) in [
        (&["foo", "bar"][..], ",, NoBody"),
        (&[], ",, NoBody"),
        (&["", ""], ",, NoBody"),
        (&["t", "T"], ",T, NoBody"),
        (&["b", "B"], "B,, NoType"),
        (&["b", "B", "t", "T", "k"], "B,T, OddFields"),
        (&["b"], ",, OddFields"),
        (&["b", "B", "t", "T", "h", "6:sou"], "B,T, Headers"),
        (&["b", "B", "t", "T", "h", "x:a1:b"], "B,T, Headers"),
        (&["b", "B", "t", "T", "h", "1:a"], "B,T, Headers"),
        (&["b", "", "t", ""], ",,"),
        (&["t", "T", "x", "X", "k", "K", "b", "B"], "B,T,K"),
        (
            &["b", "1", "t", "T", "b", "2", "t", "U", "k", "x", "k", "y"],
            "2,U,y",
        ),
        (&["b", "B", "t", "T", "h", "1:", "h", "1:a1:b"], "B,T,"),
    ] {
        let reply = nested(&[good("1-0"), entry("2-0", fields), good("3-0")]);
        reads(
            &reply,
            &["1-0 #1 B,T,K", &format!("2-0 #2 {want}"), "3-0 #3 B,T,K"],
        );
    }
    let bare = array(&[bulk("2-0"), b"*-1\r\n".to_vec()]);
    reads(&nested(&[bare]), &["2-0 #1 ,, NoBody"]);
    let nil = || b"$-1\r\n".to_vec();
    let nils = array(&[nil(), nil(), bulk("b"), nil(), bulk("t"), bulk("T")]);
    reads(&nested(&[array(&[bulk("2-0"), nils])]), &["2-0 #1 ,T,"]);
}

#[test]
fn a_body_that_is_kept_apart_is_noticed_and_a_broken_reference_is_not_followed() {
    let good = &format!("{:032} 70000", 7);
    let apart = format!("1-0 #1 {good},T,K apart");
    let of = |body, reference| entry("1-0", &["b", body, "t", "T", "k", "K", "x", reference]);
    for (entry, want) in [
        (of("", good), &*apart),
        (
            entry("1-0", &["x", "?", "x", good, "t", "T", "b", "", "k", "K"]),
            &apart,
        ),
        (of("", ""), "1-0 #1 ,T,K Reference"),
        (of("", "re:x:{other}:1 70000"), "1-0 #1 ,T,K Reference"),
        // somebody else's field, and no body at all
        (of("B", good), "1-0 #1 B,T,K"),
        (of("B", "?"), "1-0 #1 B,T,K"),
        (
            entry("1-0", &["t", "T", "k", "K", "x", good]),
            "1-0 #1 ,T,K NoBody",
        ),
        (entry("1-0", &["b", "", "x", good]), "1-0 #1 ,, NoType"),
    ] {
        let reply = nested(&[entry]);
        reads(&reply, &[want]);
        let mut index = scan(&reply).unwrap();
        assert_eq!(index.has_apart(), want == apart);
        let reference = index.reference(0, &reply);
        assert_eq!(
            reference.map(Reference::len),
            (want == apart).then_some(70_000)
        );
        assert!(index.reference(1, &reply).is_none());
        index.clear(0);
        assert!(!index.has_apart());
    }
    let mut index = scan(&nested(&[of("", good)])).unwrap();
    index.found(0, None);
    assert_eq!(index.records()[0].kept, Body::Missing);
    let body = Span { at: 9, len: 70_000 };
    index.found(0, Some(body));
    assert_eq!(
        (index.records()[0].kept, index.records()[0].body),
        (Body::Here, body)
    );
}

#[test]
fn ten_thousand_fields_and_every_byte_value_are_taken() {
    let all: Vec<u8> = (0..=255).collect();
    let mut fields: Vec<_> = (0..10_000)
        .flat_map(|n| [bulk(n.to_string()), bulk(&all)])
        .collect();
    fields.extend([
        bulk("b"),
        bulk(&all),
        bulk("t"),
        bulk(&all),
        bulk("k"),
        bulk(&all),
    ]);
    let reply = nested(&[array(&[bulk("1-0"), array(&fields)])]);
    let index = scan(&reply).unwrap();
    let r = index.records()[0];
    assert_eq!((r.pairs, r.malformed), (10_003, None));
    for span in [r.body, r.message_type, r.key] {
        assert_eq!(span.of(&reply), all);
    }
}

#[test]
fn a_filter_keeps_the_types_named_and_counts_the_rest() {
    let reply = nested(&[
        entry("1-0", &["b", "1", "t", "A.On"]),
        entry("2-0", &["b", "2", "t", "A.Ones"]),
        entry("3-0", &["foo", "bar"]),
        entry("4-0", &["b", "4", "t", "B", "t", "A.On"]),
        entry("5-0", &["b", "5", "t", "a.on"]),
        entry("6-0", &["b", "6", "t", ""]),
        entry("7-0", &["b", "7", "t", "A.On"]),
    ]);
    let kept = |types: &[&str]| {
        let index = scan_with(&reply, AFTER, &Filter::new(types.iter().copied())).unwrap();
        assert_eq!(
            index.last(),
            StreamId::parse(b"7-0"),
            "dropped ones move the cursor too"
        );
        let kept: Vec<u32> = index.records().iter().map(|r| r.nth).collect();
        assert_eq!((index.read(), index.filtered()), (7, 7 - kept.len() as u32));
        kept
    };
    assert_eq!(
        kept(&["A.On"]),
        [1, 7],
        "the first type decides, case and all"
    );
    assert_eq!(kept(&["B", "A.Ones", "A.On", "A.On", " "]), [1, 2, 4, 7]);
    assert_eq!(kept(&["nobody"]), [0u32; 0]);
    for all in [&[][..], &["", "  "]] {
        assert_eq!(kept(all), [1, 2, 3, 4, 5, 6, 7]);
    }
}

#[test]
fn a_refusal_and_what_comes_out_of_turn_are_told_from_an_answer() {
    let mut index = Index::with_capacity(1);
    for refusal in [&b"-LOADING wait\r\n"[..], b"!12\r\nLOADING wait\r\n"] {
        index.clear(0);
        match index.advance(refusal, KEY, AFTER, &Filter::default()) {
            Ok(Progress::Refused(text)) => assert_eq!(text.of(refusal), b"LOADING wait"),
            other => panic!("{other:?}"),
        }
    }
    let mut reply = b">2\r\n+invalidate\r\n*1\r\n+k\r\n|2\r\n+a\r\n:1\r\n+b\r\n:2\r\n".to_vec();
    reply.extend(nested(&[good("1-0")]));
    reads(&reply, &["1-0 #1 B,T,K"]);
}

#[test]
fn an_index_begins_anew_behind_whatever_came_before() {
    let mut reply = b":1\r\n".to_vec();
    reply.extend(nested(&[good("1-0")]));
    let mut index = scan(&nested(&[good("9-0"), entry("9-1", &[])])).unwrap();
    index.clear(4);
    let progress = index.advance(&reply, KEY, AFTER, &Filter::default());
    assert_eq!(progress, Ok(Progress::Whole(reply.len())));
    assert_eq!(told(&reply, &index), ["1-0 #1 B,T,K"]);
}

#[test]
fn cut_at_any_byte_it_waits_for_more_and_goes_on_where_it_was() {
    let entries = [
        good("1-0"),
        entry("1-1", &["b"]),
        b"_\r\n".to_vec(),
        good("2-0"),
    ];
    let map = sized('%', 2, &[bulk("x"), array(&[]), bulk(KEY), array(&entries)]);
    for reply in [nested(&entries), map] {
        let whole = scan(&reply).unwrap();
        for cut in 0..reply.len() {
            let mut index = Index::with_capacity(4);
            let mut go = |bytes| index.advance(bytes, KEY, AFTER, &Filter::default());
            match go(&reply[..cut]) {
                Ok(Progress::Partial(need)) => assert!(cut < need && need <= reply.len()),
                other => panic!("cut at {cut}: {other:?}"),
            }
            assert_eq!(go(&reply), Ok(Progress::Whole(reply.len())));
            assert_eq!(told(&reply, &index), told(&reply, &whole));
        }
    }
}
