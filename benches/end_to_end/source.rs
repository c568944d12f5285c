//! Topics that are there to be read, and who reads them.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use streamlane::{ConsumerBuilder, StartFrom};

use crate::{
    Bench, Outcome,
    floor::{command, fields},
};

/// A consumer of its own, from the beginning of a topic.
pub(crate) fn reader(bench: &Bench, topic: &str) -> ConsumerBuilder {
    let builder = bench.streams.consumer(topic).name(group());
    builder.start_from(StartFrom::Beginning)
}

/// A name that nobody has had.
pub(crate) fn group() -> String {
    static NTH: AtomicU32 = AtomicU32::new(0);
    format!("reader-{}", NTH.fetch_add(1, Relaxed))
}

/// Puts so many messages into a stream, a thousand at a time.
pub(crate) fn fill(bench: &Bench, key: &str, body: &[u8], messages: u64) -> Outcome<()> {
    let piece = (4 * 1024 * 1024 / body.len()).clamp(1, 1000);
    let head: [&[u8]; 3] = [b"XADD", key.as_bytes(), b"*"];
    let one = command(&[&head[..], &fields(body)].concat());
    let mut wire = bench.wire()?;
    let mut left = messages as usize;
    while left > 0 {
        let n = left.min(piece);
        wire.send(&one.repeat(n))?;
        wire.ids(n)?;
        left -= n;
    }
    Ok(())
}
