//! Doors for the fuzz targets: one function for each, named like it.

use crate::wire::{Entry, Headers, ID_MAX, Malformed, StreamId, pack};

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
