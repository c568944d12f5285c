//! Publishing batch by batch.

use streamlane::Outgoing;

use crate::{
    Bench, KEY, Outcome, TYPE, drain,
    figures::{Way, compare},
    floor::xadd,
    load::{self, alone},
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
            let ways = vec![
                Way::floor("bare socket", || {
                    alone(bench, count, || {
                        wire.send(&bytes)?;
                        Ok(wire.ids(count)?)
                    })
                }),
                Way::new("dedicated publisher", || {
                    alone(bench, count, || {
                        ids.clear();
                        publisher.publish_batch_into(&messages, &mut ids);
                        ids.drain(..).try_for_each(|id| id.map(drop))?;
                        Ok(())
                    })
                }),
            ];
            compare(&bench.options, &title, &load::COLUMNS, ways)?;
        }
    }
    Ok(())
}
