use super::*;
use crate::{
    batch::{Filter, Index},
    net::resp,
};

fn reply(entries: &[(&str, &[&[u8]])]) -> Vec<u8> {
    let mut out = Vec::new();
    resp::command(&mut out, 1);
    resp::command(&mut out, 2);
    resp::arg(&mut out, b"s");
    resp::command(&mut out, entries.len());
    for (id, fields) in entries {
        resp::command(&mut out, 2);
        resp::arg(&mut out, id.as_bytes());
        resp::whole(&mut out, fields);
    }
    out
}

fn context() -> Context {
    Context {
        topic: "orders".into(),
        consumer: "billing".into(),
        partition: 3,
        interrupt: Arc::default(),
        fence: Arc::new(Fence::open()),
        in_order: true,
        attempt: AtomicU32::new(1),
    }
}

/// Lends the entries out as a handler would see them.
fn lent<R>(entries: &[(&str, &[&[u8]])], context: &Context, f: impl FnOnce(&Batch<'_>) -> R) -> R {
    let bytes = reply(entries);
    let mut index = Index::with_capacity(4);
    index
        .advance(&bytes, b"s", StreamId::MIN, &Filter::default())
        .unwrap();
    f(&Batch::new(&bytes, index.records(), context, &|_| {}))
}

const FULL: &[&[u8]] = &[
    b"b", b"{}", b"t", b"T", b"k", b"K", b"c", b"c-1", b"p", b"00-ab", b"h", b"1:a1:b", b"x", b"y",
];
const BARE: &[&[u8]] = &[b"t", b"T", b"b", b""];

#[test]
fn every_part_of_a_message_can_be_read() {
    let context = context();
    context.attempt.store(4, Ordering::Relaxed);
    lent(&[("1500-2", FULL), ("1501-0", BARE)], &context, |batch| {
        assert_eq!((batch.len(), batch.is_empty()), (2, false));
        assert_eq!((batch.topic(), batch.partition()), ("orders", 3));
        let m = batch.get(0).unwrap();
        assert_eq!(m.id(), StreamId::new(1500, 2));
        assert_eq!((m.body(), m.malformed()), (&b"{}"[..], None));
        assert!(m.key() == "K" && m.message_type() == "T" && m.correlation_id() == "c-1");
        assert_eq!(m.traceparent(), Some(Text(b"00-ab")));
        assert_eq!(
            m.headers().iter().collect::<Result<Vec<_>, _>>(),
            Ok(vec![(&b"a"[..], &b"b"[..])])
        );
        assert_eq!((m.topic(), m.partition(), m.attempt()), ("orders", 3, 4));
        assert_eq!(
            m.timestamp(),
            SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(1500)
        );
        let bare = batch.messages().next_back().unwrap();
        assert!(bare.key().is_empty() && bare.correlation_id().is_empty());
        assert_eq!(
            (bare.traceparent(), bare.headers().iter().count()),
            (None, 0)
        );
        assert!(batch.get(2).is_none());
        assert_eq!(batch.messages().len(), 2);
    });
}

#[test]
fn the_last_of_a_repeated_field_counts_and_the_raw_view_shows_all() {
    let fields: &[&[u8]] = &[
        b"b", b"1", b"c", b"one", b"t", b"T", b"b", b"2", b"c", b"two", b"", b"", b"h", b"1:a1:x",
        b"h", b"1:a1:y", b"p", b"", b"\0\xff", b"\r\n",
    ];
    lent(&[("1-0", fields)], &context(), |batch| {
        let m = batch.get(0).unwrap();
        assert_eq!(m.body(), b"2");
        assert_eq!(
            (m.correlation_id(), m.traceparent()),
            (Text(b"two"), Some(Text(b"")))
        );
        assert_eq!(
            m.headers().iter().next().unwrap(),
            Ok((&b"a"[..], &b"y"[..]))
        );
        let raw: Vec<&[u8]> = m.fields().flat_map(|(n, v)| [n, v]).collect();
        assert_eq!(raw, fields);
        assert_eq!(m.fields().size_hint(), (10, Some(10)));
    });
}

#[test]
fn a_dangling_field_is_left_out_of_the_raw_view() {
    lent(
        &[("1-0", &[b"b", b"1", b"t"]), ("2-0", &[])],
        &context(),
        |batch| {
            let m = batch.get(0).unwrap();
            assert_eq!(m.malformed(), Some(Malformed::OddFields));
            assert_eq!(m.fields().collect::<Vec<_>>(), [(&b"b"[..], &b"1"[..])]);
            assert_eq!(batch.get(1).unwrap().fields().count(), 0);
        },
    );
}

#[test]
fn progress_is_nothing_until_said_and_never_goes_back() {
    lent(
        &[("1-0", BARE), ("2-0", BARE), ("3-0", BARE)],
        &context(),
        |batch| {
            assert_eq!(batch.progress(), None);
            for (said, then) in [(0, 0), (2, 2), (1, 2), (99, 3), (0, 3)] {
                batch.done(said);
                assert_eq!(batch.progress(), Some(then), "done({said})");
            }
        },
    );
}

#[test]
fn each_marks_what_succeeds_and_ends_at_a_failure_or_a_stop() {
    let three = [("1-0", BARE), ("2-0", BARE), ("3-0", BARE)];
    let context = context();
    lent(&three, &context, |batch| {
        let failed = batch.each(|m| if m.id().ms() == 2 { Err("no") } else { Ok(()) });
        assert_eq!((failed, batch.progress()), (Err("no"), Some(1)));
    });
    lent(&three, &context, |batch| {
        let stop = |m: &Message<'_>| -> Result<(), ()> {
            if m.id().ms() == 2 {
                context.interrupt.set(STOP);
            }
            Ok(())
        };
        assert_eq!((batch.each(stop), batch.progress()), (Ok(()), Some(2)));
        assert!(batch.is_cancelled() && batch.get(0).unwrap().is_cancelled());
    });
    lent(&[("1-0", BARE)], &context, |batch| {
        let never = |_: &Message<'_>| -> Result<(), ()> { unreachable!("stopped before") };
        assert_eq!((batch.each(never), batch.progress()), (Ok(()), Some(0)));
    });
}

#[test]
fn copies_hold_the_same_and_outlive_the_arena() {
    let broken: &[&[u8]] = &[b"b", b"B", b"t", b"T", b"h", b"1:a1:b9:x"];
    let copy = lent(
        &[("1-0", FULL), ("2-0", BARE), ("3-0", broken)],
        &context(),
        |batch| {
            assert_eq!(batch.len(), 3);
            batch.to_owned()
        },
    );
    assert_eq!(
        (&*copy.topic, copy.partition, copy.messages.len()),
        ("orders", 3, 3)
    );
    let m = &copy.messages[0];
    assert_eq!((m.id, m.partition), (StreamId::new(1, 0), 3));
    assert_eq!(
        [&*m.body, &*m.message_type, &*m.key, &*m.correlation_id],
        [&b"{}"[..], b"T", b"K", b"c-1"]
    );
    assert_eq!(m.traceparent.as_deref(), Some(&b"00-ab"[..]));
    let header = || -> (Box<[u8]>, Box<[u8]>) { ((*b"a").into(), (*b"b").into()) };
    assert_eq!(m.headers, [header()]);
    assert_eq!(copy.messages[1].traceparent, None);
    assert_eq!(
        copy.messages[2].headers,
        [header()],
        "as far as the block can be read"
    );
}

#[test]
fn texts_need_not_be_utf8() {
    let odd = Text(b"a\xff\0\r\n");
    assert_eq!(odd.as_bytes(), b"a\xff\0\r\n");
    assert_eq!(odd.as_str().unwrap_err().valid_up_to(), 1);
    assert_eq!(odd.to_string(), "a\u{fffd}\0\r\n");
    assert_eq!(odd.to_string_lossy(), odd.to_string());
    assert_eq!(format!("{odd:?}"), r#""a\xff\x00\r\n""#);
    let plain = Text::from(&b"naiv"[..]);
    assert!(plain == "naiv" && plain == *"naiv" && plain != "Naiv" && plain < Text(b"nb"));
    assert_eq!(plain.as_str(), Ok("naiv"));
    assert!(matches!(plain.to_string_lossy(), Cow::Borrowed("naiv")));
    assert!(Text::default().is_empty() && !plain.is_empty());
}

#[test]
fn what_logs_print_shows_no_bodies_and_no_keys() {
    let secret: &[&[u8]] = &[b"b", b"SECRET", b"t", b"T", b"k", b"SECRET"];
    lent(&[("1-0", secret)], &context(), |batch| {
        let told = format!("{batch:?} {:?}", batch.get(0).unwrap());
        assert!(
            !told.contains("SECRET") && told.contains("orders") && told.contains("1-0"),
            "{told}"
        );
        assert!(told.contains("body_len: 6"), "{told}");
    });
}

#[test]
fn a_body_is_decoded_on_demand_and_stays_as_it_was() {
    let json: &[&[u8]] = &[b"b", br#"{"a":"x"}"#, b"t", b"T"];
    lent(&[("1-0", json), ("2-0", BARE)], &context(), |batch| {
        let mut scratch = Scratch::default();
        let m = batch.get(0).unwrap();
        for _ in 0..2 {
            let read: std::collections::BTreeMap<&str, &str> = m.decode_json(&mut scratch).unwrap();
            assert_eq!(read["a"], "x");
        }
        assert_eq!(m.body(), br#"{"a":"x"}"#);
        let e = batch
            .get(1)
            .unwrap()
            .decode_json::<u8>(&mut scratch)
            .unwrap_err();
        assert!(
            e.kind() == ErrorKind::Malformed && e.to_string().contains("2-0"),
            "{e}"
        );
    });
}
