//! Publishing message by message, each after the answer to the one before.

use hdrhistogram::Histogram;

use crate::{
    Bench, KEY, Outcome, TYPE, drain,
    figures::{Way, compare},
    floor::xadd,
    machine::{Mark, now_ns},
};

pub(crate) const TOPIC: &str = "blocking";

/// Calls before those that count.
const WARM_UP: u64 = 100;

pub(crate) fn measure(bench: &Bench) -> Outcome<()> {
    for &size in &bench.options.bodies {
        let (title, body) = (format!("blocking publish: {size} B"), drain::body(size));
        let publisher = bench.streams.publisher(TOPIC)?;
        let mut dedicated = publisher.dedicated();
        let (mut wire, bytes) = (bench.wire()?, xadd(TOPIC, &body));
        let columns = ["p50 us", "p99 us", "client CPU us/msg"];
        let ways = vec![
            Way::new("bare socket", || {
                timed(bench, || {
                    wire.send(&bytes)?;
                    Ok(wire.ids(1)?)
                })
            }),
            Way::new("dedicated publisher", || {
                timed(bench, || {
                    dedicated.publish(KEY, TYPE, &body)?;
                    Ok(())
                })
            }),
            Way::new("shared publisher, one caller", || {
                timed(bench, || {
                    publisher.publish(KEY, TYPE, &body)?;
                    Ok(())
                })
            }),
        ];
        compare(&bench.options, &title, &columns, ways)?;
    }
    Ok(())
}

fn timed(bench: &Bench, mut publish: impl FnMut() -> Outcome<()>) -> Outcome<Vec<f64>> {
    for _ in 0..WARM_UP {
        publish()?;
    }
    let mut times = Histogram::<u64>::new(3)?;
    let (calls, pid) = (bench.options.calls, bench.server_pid()?);
    let before = Mark::now(pid);
    let mut last = now_ns();
    for _ in 0..calls {
        publish()?;
        let now = now_ns();
        times.record(now - last)?;
        last = now;
    }
    let used = Mark::now(pid).client - before.client;
    Ok(vec![
        times.value_at_quantile(0.5) as f64 / 1e3,
        times.value_at_quantile(0.99) as f64 / 1e3,
        used as f64 / 1e3 / calls as f64,
    ])
}
