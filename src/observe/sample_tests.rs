use super::*;

fn id(n: u64) -> StreamId {
    StreamId::new(n, 0)
}

/// A stream from `first` to `last`, to which so many were ever added, and which holds so many.
fn stream(first: u64, last: u64, added: u64, length: u64) -> Extent {
    Extent {
        first: (length > 0).then(|| id(first)),
        newest: (length > 0).then(|| id(last)),
        deleted: None,
        last: id(last),
        added,
        removed: added - length,
    }
}

fn group(delivered: u64, read: impl Into<Option<u64>>) -> Group {
    Group {
        delivered: id(delivered),
        pending: 0,
        read: read.into(),
    }
}

/// The stream, the place, how many were added up to there, and how many lie behind it.
type Row = (Extent, u64, Option<u64>, Option<u64>);

#[test]
fn what_lies_behind_a_place_is_counted_or_not_known() {
    let ten = stream(1, 10, 10, 10);
    let without_the_last = Extent {
        newest: Some(id(8)),
        deleted: Some(id(10)),
        ..stream(1, 10, 10, 8)
    };
    let without = |n| Extent {
        deleted: Some(id(n)),
        ..stream(1, 10, 10, 9)
    };
    let rows: [Row; 22] = [
        // nothing there
        (Extent::default(), 0, Some(0), Some(0)),
        (Extent::default(), 0, None, Some(0)),
        (stream(0, 10, 10, 0), 3, None, Some(0)),
        // before all of it, at its end, or behind that: no count is needed
        (ten, 0, None, Some(10)),
        (ten, 10, None, Some(0)),
        (ten, 11, None, Some(0)),
        (stream(7, 10, 10, 4), 2, None, Some(4)),
        (stream(7, 10, 10, 4), 6, None, Some(4)),
        // one message, read and not
        (stream(1, 1, 1, 1), 0, Some(0), Some(1)),
        (stream(1, 1, 1, 1), 1, Some(1), Some(0)),
        // in the middle
        (ten, 1, Some(1), Some(9)),
        (ten, 4, Some(4), Some(6)),
        (ten, 9, Some(9), Some(1)),
        (ten, 4, None, None),
        (stream(7, 10, 10, 4), 8, Some(8), Some(2)),
        // a count that cannot be of this stream
        (ten, 4, Some(11), None),
        (ten, 4, Some(10), None),
        (ten, 4, Some(0), None),
        // deleted in front of the place, behind it, and at the end
        (without(3), 5, Some(5), Some(5)),
        (without(7), 5, Some(5), None),
        (without_the_last, 8, None, Some(0)),
        (without_the_last, 5, Some(5), None),
    ];
    for (stream, at, ordinal, want) in rows {
        assert_eq!(
            stream.behind(id(at), ordinal),
            want,
            "{at} {ordinal:?} {stream:?}"
        );
    }
}

#[test]
fn a_group_is_counted_on_from_where_it_was_certain() {
    let unread = |s: &Extent, g: &Group, last: Option<&Anchor>| {
        let anchor = anchor(s, g, last);
        (anchor.and_then(|a| a.unread(s)), anchor)
    };
    let ten = stream(1, 10, 10, 10);
    // nothing was ever removed, and the server counts right
    assert_eq!(unread(&ten, &group(0, None), None).0, Some(10));
    assert_eq!(unread(&ten, &group(4, 4), None).0, Some(6));
    assert_eq!(unread(&ten, &group(10, None), None).0, Some(0));
    // it does not count
    assert_eq!(unread(&ten, &group(4, None), None).0, None);

    // Five entries, one read, all but the last trimmed: the server says that 1 was read, and then 2.
    let trimmed = stream(5, 5, 5, 1);
    assert_eq!(unread(&trimmed, &group(1, 1), None).0, Some(1));
    assert_eq!(unread(&trimmed, &group(5, 2), None).0, Some(0));
    // What was never seen at a certain place stays unknown, whatever the server says,
    let (many, after) = (stream(4, 9, 9, 6), group(6, 3));
    assert_eq!(unread(&many, &after, None).0, None);
    // and is known again as soon as it was.
    let (n, certain) = unread(&many, &group(1, 1), None);
    assert_eq!(n, Some(6));
    let (n, again) = unread(&many, &group(6, 4), certain.as_ref());
    assert_eq!((n, again.unwrap().ordinal), (Some(3), 6));
    let grown = stream(4, 12, 12, 9);
    let (n, again) = unread(&grown, &group(11, 9), again.as_ref());
    assert_eq!((n, again.unwrap().ordinal), (Some(1), 11));
    // without a move nothing has to be counted
    assert_eq!(unread(&grown, &group(11, None), again.as_ref()).0, Some(1));
    // once the server cannot count
    assert_eq!(unread(&grown, &group(12, None), again.as_ref()).0, Some(0));
    let more = stream(4, 14, 14, 11);
    assert_eq!(unread(&more, &group(13, None), again.as_ref()).0, None);
}

#[test]
fn what_was_trimmed_before_it_was_read_is_not_counted_as_read() {
    let (_, last) = {
        let s = stream(1, 10, 10, 10);
        let a = anchor(&s, &group(5, 5), None);
        (s, a.unwrap())
    };
    // up to 4: all of that had been read
    let s = stream(5, 20, 20, 16);
    let a = anchor(&s, &group(12, 12), Some(&last)).unwrap();
    assert_eq!(a.unread(&s), Some(8));
    // up to 8: 6 to 8 may have been read before, or not
    let s = stream(9, 20, 20, 12);
    assert_eq!(anchor(&s, &group(12, 9), Some(&last)), None);
    assert_eq!(anchor(&s, &group(12, 12), Some(&last)), None);
    // the group was moved back
    let s = stream(1, 20, 20, 20);
    assert_eq!(
        anchor(&s, &group(3, 3), Some(&last)).and_then(|a| a.unread(&s)),
        Some(17)
    );
    let s = stream(2, 20, 20, 19);
    assert_eq!(anchor(&s, &group(3, 3), Some(&last)), None);
}

#[test]
fn a_group_is_found_by_its_name_in_either_protocol() {
    let facts = |name: &str, read: &str| {
        format!(
            "$4\r\nname\r\n${}\r\n{name}\r\n+consumers\r\n:2\r\n+pending\r\n:3\r\n\
             +last-delivered-id\r\n+7-1\r\n+entries-read\r\n{read}\r\n+lag\r\n$-1\r\n",
            name.len()
        )
    };
    let (a, b) = (facts("other", ":1"), facts("mine", ":6"));
    for (all, each) in [("*2", "*12"), ("~2", "%6")] {
        let answer = format!("{all}\r\n{each}\r\n{a}{each}\r\n{b}");
        let group = group_of(answer.as_bytes(), b"mine").unwrap();
        let want = Group {
            delivered: StreamId::new(7, 1),
            pending: 3,
            read: Some(6),
        };
        assert_eq!(group, want);
        assert_eq!(group_of(answer.as_bytes(), b"nobody"), None);
    }
    let nil = format!("*1\r\n*12\r\n{}", facts("mine", "$-1"));
    assert_eq!(group_of(nil.as_bytes(), b"mine").unwrap().read, None);
    for odd in [
        "*0\r\n",
        "-ERR no\r\n",
        ":1\r\n",
        "*1\r\n:1\r\n",
        "*1\r\n*2\r\n",
    ] {
        assert_eq!(group_of(odd.as_bytes(), b"mine"), None, "{odd}");
    }
}

#[test]
fn of_the_first_pending_entries_the_worst_is_told() {
    let answer = "*2\r\n*4\r\n$3\r\n1-0\r\n+a\r\n:1500\r\n:1\r\n*4\r\n+2-0\r\n+b\r\n:20\r\n:7\r\n";
    let want = First {
        oldest_idle: Some(Duration::from_millis(1500)),
        most_deliveries: Some(7),
    };
    assert_eq!(first_of(answer.as_bytes()), want);
    for none in [
        "*0\r\n",
        "-ERR no\r\n",
        "*1\r\n*3\r\n:1\r\n:2\r\n:3\r\n",
        "*1\r\n",
    ] {
        assert_eq!(first_of(none.as_bytes()), First::default(), "{none}");
    }
}
