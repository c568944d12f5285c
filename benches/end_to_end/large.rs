//! Messages that are larger than everything that was made for them.

use streamlane::Batch;

use crate::{
    Bench, Outcome, drain,
    figures::{Way, compare},
    floor::{Request, stream},
    meter::Meter,
    source,
};

pub(crate) const TOPIC: &str = "large";

const BODY: usize = 20 * 1024 * 1024;
const MESSAGES: u64 = 20;

pub(crate) fn measure(bench: &Bench) -> Outcome<()> {
    let title = format!("large: {} MiB", BODY >> 20);
    if !bench.options.wants_any_of(&title) {
        return Ok(());
    }
    source::fill(bench, &stream(TOPIC), &drain::body(BODY), MESSAGES)?;
    let columns = ["k msg/s", "client CPU ns/msg", "server CPU ns/msg"];
    let ways = vec![
        Way::floor("bare socket", || floor(bench)),
        Way::new("batch handler", || batches(bench)),
    ];
    compare(&bench.options, &title, &columns, ways)?;
    bench.server.command(&["DEL", &stream(TOPIC)])?;
    Ok(())
}

fn floor(bench: &Bench) -> Outcome<Vec<f64>> {
    let meter = Meter::new(bench, 1, MESSAGES)?;
    let (mut lap, mut request) = (meter.lap(0), Request::new(&stream(TOPIC), 1));
    let (mut wire, mut cursor) = (bench.wire()?, b"0-0".to_vec());
    while lap.is_running() {
        wire.send(request.after(&cursor))?;
        let mut bytes = 0;
        let n = wire.entries(&mut cursor, |body| bytes += drain::sum(body))?;
        if n == 0 {
            return Err("the stream ended early".into());
        }
        lap.add(n, bytes);
    }
    meter.figures(BODY)
}

fn batches(bench: &Bench) -> Outcome<Vec<f64>> {
    let meter = Meter::new(bench, 1, MESSAGES)?;
    let laps = meter.clone();
    let consumer = source::reader(bench, TOPIC)
        .batches(move |_| {
            let mut lap = laps.lap(0);
            move |batch: &Batch<'_>| {
                let bytes = batch.messages().map(|m| drain::sum(m.body())).sum();
                lap.add(batch.len(), bytes);
                Ok(())
            }
        })
        .start()?;
    meter.wait()?;
    consumer.stop();
    meter.figures(BODY)
}
