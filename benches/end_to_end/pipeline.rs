//! Publishing batch by batch.

use streamlane::Outgoing;

use crate::{
    Bench, KEY, Outcome, TYPE, drain,
    figures::{Way, compare},
    floor::xadd,
    machine::Mark,
};

pub(crate) const TOPIC: &str = "pipeline";

pub(crate) fn measure(bench: &Bench) -> Outcome<()> {
    for &size in &bench.options.bodies {
        for &count in &bench.options.counts {
            let title = format!("batch publish: {size} B, batches of {count}");
            let body = drain::body(size);
            let count = count as usize;
            let (mut wire, bytes) = (bench.wire()?, xadd(TOPIC, &body).repeat(count));
            let mut publisher = bench.streams.publisher(TOPIC)?.dedicated();
            let messages = vec![Outgoing::new(TYPE, &body).key(KEY); count];
            let mut ids = Vec::with_capacity(count);
            let columns = ["k msg/s", "client CPU ns/msg", "server CPU ns/msg"];
            let ways = vec![
                Way::new("bare socket", || {
                    timed(bench, count, || {
                        wire.send(&bytes)?;
                        Ok(wire.ids(count)?)
                    })
                }),
                Way::new("dedicated publisher", || {
                    timed(bench, count, || {
                        ids.clear();
                        publisher.publish_batch_into(&messages, &mut ids);
                        ids.drain(..).try_for_each(|id| id.map(drop))?;
                        Ok(())
                    })
                }),
            ];
            compare(&bench.options, &title, &columns, ways)?;
        }
    }
    Ok(())
}

fn timed(
    bench: &Bench,
    count: usize,
    mut publish: impl FnMut() -> Outcome<()>,
) -> Outcome<Vec<f64>> {
    let pid = bench.server_pid()?;
    publish()?;
    let before = Mark::now(pid);
    let batches = bench.options.published.div_ceil(count as u64);
    for _ in 0..batches {
        publish()?;
    }
    let after = Mark::now(pid);
    let n = (batches * count as u64) as f64;
    Ok(vec![
        n * 1e6 / (after.at - before.at) as f64,
        (after.client - before.client) as f64 / n,
        (after.server - before.server) as f64 / n,
    ])
}
