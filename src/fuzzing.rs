//! Doors for the fuzz targets: one function for each, named like it.

use crate::{
    batch::{Body, Filter, Index, Progress},
    net::resp::value_end,
    wire::{Entry, Headers, ID_MAX, Malformed, Reference, StreamId, pack},
};

/// Whatever is read as an id is written and read again as the same.
pub fn stream_id(data: &[u8]) {
    if let Some(id) = StreamId::parse(data) {
        let mut buf = [0; ID_MAX];
        assert_eq!(StreamId::parse(id.encode(&mut buf)), Some(id));
        assert!(id.before() <= id && id <= id.next());
    }
}

/// A block that can be read holds no more than its bytes, and packs into an equal one.
pub fn header_block(data: &[u8]) {
    let headers = Headers::new(data);
    let held = |(name, value): (&[u8], &[u8])| name.len() + value.len();
    assert!(headers.iter().flatten().map(held).sum::<usize>() <= data.len());
    assert_eq!(headers.check().is_ok(), headers.iter().all(|h| h.is_ok()));
    let mut packed = Vec::new();
    if headers.check().is_ok() && pack(&mut packed, headers.iter().flatten()).is_ok() {
        assert!(Headers::new(&packed).iter().eq(headers.iter()));
    }
}

/// Takes lines of `name=value` for fields: the entry they make is written and read as the same.
pub fn entry(data: &[u8]) {
    let pairs = || {
        data.split(|b| *b == b'\n').map(|line| {
            let equals = line.iter().position(|b| *b == b'=').unwrap_or(line.len());
            (&line[..equals], line.get(equals + 1..).unwrap_or_default())
        })
    };
    let has = |name: &[u8]| pairs().any(|(n, _)| n == name);
    match Entry::from_pairs(pairs()) {
        Ok(entry) => {
            assert_eq!(Entry::from_pairs(entry.pairs()), Ok(entry));
            assert_eq!(entry.pairs().count(), entry.pair_count());
            drop(format!("{:?}", Headers::new(entry.headers)));
        }
        Err(Malformed::NoBody) => assert!(!has(b"b")),
        Err(why) => assert!(why == Malformed::NoType && !has(b"t")),
    }
}

/// Pieces of replies, so that more than noise is put together from a few bytes.
const PIECES: [&[u8]; 32] = [
    b"*0\r\n",
    b"*1\r\n",
    b"*2\r\n",
    b"*3\r\n",
    b"*4\r\n",
    b"%0\r\n",
    b"%1\r\n",
    b"%2\r\n",
    b"~2\r\n",
    b"|1\r\n",
    b"*-1\r\n",
    b"$-1\r\n",
    b"_\r\n",
    b"$0\r\n\r\n",
    b"$1\r\nb\r\n",
    b"$1\r\nt\r\n",
    b"$1\r\nh\r\n",
    b"$1\r\ns\r\n",
    b"$5\r\nother\r\n",
    b"$3\r\n1-0\r\n",
    b"$3\r\n2-0\r\n",
    b"$6\r\n1:a1:b\r\n",
    b"+OK\r\n",
    b"-ERR x\r\n",
    b":5\r\n",
    b"#t\r\n",
    b",1.5\r\n",
    b"=7\r\ntxt:abc\r\n",
    b"!5\r\nERR x\r\n",
    b"$3\r\nabcde",
    b"$1\r\nx\r\n",
    b"$34\r\n0123456789abcdef0123456789abcdef 5\r\n",
];

fn pieces(data: &[u8]) -> Vec<u8> {
    let piece = |b: &u8| PIECES[usize::from(*b) % PIECES.len()];
    data.iter().flat_map(piece).copied().collect()
}

/// Where a value ends, what comes before decides: all of it is needed and nothing after it matters.
/// What is put together of well-formed pieces ends where the redis crate's parser says, or is refused
/// by both.
///
/// Left out of the comparison, because the two differ by intent: values pushed out of turn (there a
/// value, here something before one), lengths with signs or blanks and text after a nil's mark (taken
/// there), the content of numbers and lines that are not UTF-8 (not looked at here), line feeds inside
/// lines (taken there), and nesting of over 100 levels (refused there).
pub fn resp_value(data: &[u8]) {
    ends_by_itself(data);
    let (cut, data) = data
        .split_last()
        .map_or((0, data), |(c, d)| (usize::from(*c % 8), d));
    let mut bytes = pieces(&data[..data.len().min(90)]);
    bytes.truncate(bytes.len().saturating_sub(cut));
    match ends_by_itself(&bytes) {
        Some(end) => {
            assert!(redis::parse_redis_value(&bytes[..end]).is_ok());
            assert!(redis::parse_redis_value(&bytes[..end - 1]).is_err());
        }
        None => assert!(redis::parse_redis_value(&bytes).is_err()),
    }
}

fn ends_by_itself(bytes: &[u8]) -> Option<usize> {
    let end = value_end(bytes).ok().flatten()?;
    assert_eq!(value_end(&bytes[..end]), Ok(Some(end)));
    assert_eq!(value_end(&bytes[..end - 1]), Ok(None));
    Some(end)
}

/// An answer to a read comes out the same however it is cut into pieces, and its messages lie inside
/// of it, in order. The first byte says how it is cut, the second what the rest is.
pub fn xread_index(data: &[u8]) {
    let [step, kind, rest @ ..] = data else {
        return;
    };
    let bytes = if kind % 2 == 0 {
        rest.to_vec()
    } else {
        pieces(rest)
    };
    let filter = Filter::new((kind & 2 != 0).then_some("t"));
    let whole = index(&bytes, bytes.len().max(1), &filter);
    assert_eq!(index(&bytes, usize::from(*step).max(1), &filter), whole);
}

/// What is understood of `bytes` when `step` of them come at a time.
fn index(bytes: &[u8], step: usize, filter: &Filter) -> (Vec<String>, String) {
    let mut index = Index::with_capacity(4);
    let mut until = 0;
    let end = loop {
        let progress = index.advance(&bytes[..until], b"s", StreamId::MIN, filter);
        assert!(index.at() <= until);
        if let Ok(Progress::Partial(need)) = progress {
            assert!(need > until);
        } else {
            break format!("{progress:?}");
        }
        if until == bytes.len() {
            break "partial".into();
        }
        until = bytes.len().min(until + step);
    };
    assert!(
        index
            .records()
            .is_sorted_by(|a, b| a.id < b.id && a.nth < b.nth)
    );
    let told = index.records().iter().map(|r| {
        let parts = [r.body, r.message_type, r.key].map(|p| p.of(bytes));
        // what is to be fetched can be
        let apart = (r.kept != Body::Here).then(|| Reference::parse(parts[0]).map(Reference::len));
        assert_ne!(apart, Some(None));
        format!(
            "{} {} {} {parts:?} {:?} {apart:?}",
            r.id, r.nth, r.pairs, r.malformed
        )
    });
    (told.collect(), end)
}
