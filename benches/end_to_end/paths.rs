//! One caller, and every way it can publish.

use std::time::Duration;

use streamlane::Outgoing;

use crate::{
    Bench, KEY, Outcome, TYPE, drain,
    figures::{Way, compare},
    floor::xadd,
    load::{self, alone},
};

pub(crate) const TOPIC: &str = "paths";

/// Messages in a pipeline or a batch.
const MANY: usize = 100;
/// How long a spinning publisher polls; an answer takes less where the server has a core of its own.
const SPIN: Duration = Duration::from_micros(100);

pub(crate) fn measure(bench: &Bench) -> Outcome<()> {
    for &size in &bench.options.bodies {
        let (title, body) = (format!("one publisher: {size} B"), drain::body(size));
        let one = xadd(TOPIC, &body);
        let many = one.repeat(MANY);
        let (mut wire, mut piped) = (bench.wire()?, bench.wire()?);
        let publisher = bench.streams.publisher(TOPIC)?;
        let (mut dedicated, mut spinning) = (publisher.dedicated(), publisher.dedicated());
        spinning.set_spin(SPIN);
        let batch = vec![Outgoing::new(TYPE, &body).key(KEY); MANY];
        let (mut batching, mut ids) = (publisher.dedicated(), Vec::with_capacity(MANY));
        let ways = vec![
            Way::floor("bare socket", || {
                alone(bench, 1, || {
                    wire.send(&one)?;
                    Ok(wire.ids(1)?)
                })
            }),
            Way::floor("bare pipeline", || {
                alone(bench, MANY, || {
                    piped.send(&many)?;
                    Ok(piped.ids(MANY)?)
                })
            }),
            Way::new("dedicated", || {
                alone(bench, 1, || {
                    dedicated.publish(KEY, TYPE, &body)?;
                    Ok(())
                })
            }),
            Way::new("dedicated, spinning", || {
                alone(bench, 1, || {
                    spinning.publish(KEY, TYPE, &body)?;
                    Ok(())
                })
            }),
            Way::new("shared", || {
                alone(bench, 1, || {
                    publisher.publish(KEY, TYPE, &body)?;
                    Ok(())
                })
            }),
            Way::new("dedicated, batches", || {
                alone(bench, MANY, || {
                    ids.clear();
                    batching.publish_batch_into(&batch, &mut ids);
                    ids.drain(..).try_for_each(|id| id.map(drop))?;
                    Ok(())
                })
            }),
            Way::new("shared, batches", || {
                alone(bench, MANY, || {
                    let ids = publisher.publish_batch(&batch);
                    ids.into_iter().try_for_each(|id| id.map(drop))?;
                    Ok(())
                })
            }),
        ];
        compare(&bench.options, &title, &load::COLUMNS, ways)?;
    }
    Ok(())
}
