//! One publisher in the hands of many threads, beside what they would do without it: take turns at one
//! socket, or have one each.
//!
//! A thread that lets go of a mutex mostly has it again before the others are awake. Its calls are the many
//! quick ones, so the median flatters a mutex; the 99th percentile tells what the others wait.

use parking_lot::Mutex;

use crate::{
    Bench, KEY, Outcome, TYPE, drain,
    figures::{Way, compare},
    floor::{Wire, xadd},
    load::{self, together},
};

pub(crate) const TOPIC: &str = "sharing";

const BODY: usize = 100;

pub(crate) fn measure(bench: &Bench) -> Outcome<()> {
    let body = drain::body(BODY);
    let bytes = xadd(TOPIC, &body);
    let ask = |wire: &mut Wire| -> Outcome<()> {
        wire.send(&bytes)?;
        Ok(wire.ids(1)?)
    };
    let publisher = bench.streams.publisher(TOPIC)?;
    let publish = || -> Outcome<()> {
        publisher.publish(KEY, TYPE, &body)?;
        Ok(())
    };
    let one = Mutex::new(bench.wire()?);
    for &threads in &bench.options.threads {
        let title = format!("shared publisher: {BODY} B, threads: {threads}");
        let mut each = Vec::new();
        for _ in 0..threads {
            each.push(bench.wire()?);
        }
        let ways = vec![
            Way::floor("a mutex around a socket", || {
                together(bench, 1, vec![|| ask(&mut one.lock()); threads])
            }),
            Way::floor("a socket per thread", || {
                let callers = each.iter_mut().map(|wire| || ask(wire));
                together(bench, 1, callers.collect())
            }),
            Way::new("shared publisher", || {
                together(bench, 1, vec![publish; threads])
            }),
        ];
        compare(&bench.options, &title, &load::COLUMNS, ways)?;
    }
    Ok(())
}
