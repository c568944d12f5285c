//! Many lanes at once, beside as many threads with a bare socket each.

use std::thread;

use streamlane::Message;

use crate::{
    Bench, Outcome, drain,
    figures::{Way, compare},
    floor::{Request, partition},
    meter::Meter,
    source,
};

const BODY: usize = 100;
const COUNT: u32 = 100;

/// The topic of so many lanes.
pub(crate) fn topic(lanes: u32) -> String {
    format!("lanes-{lanes}")
}

pub(crate) fn measure(bench: &Bench) -> Outcome<()> {
    for &lanes in &bench.options.lanes {
        let title = format!("lanes: {lanes}, {BODY} B, batches of {COUNT}");
        if !bench.options.wants_any_of(&title) {
            continue;
        }
        let (topic, share) = (topic(lanes), bench.options.entries / u64::from(lanes));
        for p in 0..lanes {
            source::fill(bench, &partition(&topic, p), &drain::body(BODY), share)?;
        }
        let columns = ["k msg/s", "client CPU ns/msg", "server CPU ns/msg"];
        let ways = vec![
            Way::floor("bare sockets, a thread each", || floor(bench, lanes, share)),
            Way::new("message handler", || messages(bench, lanes, share)),
        ];
        compare(&bench.options, &title, &columns, ways)?;
        for p in 0..lanes {
            bench.server.command(&["DEL", &partition(&topic, p)])?;
        }
    }
    Ok(())
}

fn floor(bench: &Bench, lanes: u32, share: u64) -> Outcome<Vec<f64>> {
    let (meter, topic) = (Meter::new(bench, lanes, share)?, topic(lanes));
    thread::scope(|s| {
        let lane = |p| {
            let (mut lap, mut request) = (meter.lap(p), Request::new(&partition(&topic, p), COUNT));
            let mut cursor = b"0-0".to_vec();
            move || -> Outcome<()> {
                let mut wire = bench.wire()?;
                while lap.is_running() {
                    wire.send(request.after(&cursor))?;
                    let mut bytes = 0;
                    let n = wire.entries(&mut cursor, |body| bytes += drain::sum(body))?;
                    if n == 0 {
                        return Err("the stream ended early".into());
                    }
                    lap.add(n, bytes);
                }
                Ok(())
            }
        };
        let threads: Vec<_> = (0..lanes).map(|p| s.spawn(lane(p))).collect();
        for thread in threads {
            thread.join().map_err(|_| "a reader panicked")??;
        }
        meter.figures(BODY)
    })
}

fn messages(bench: &Bench, lanes: u32, share: u64) -> Outcome<Vec<f64>> {
    let meter = Meter::new(bench, lanes, share)?;
    let laps = meter.clone();
    let consumer = source::reader(bench, &topic(lanes))
        .batch_size(COUNT)
        .messages(move |p| {
            let mut lap = laps.lap(p);
            move |m: &Message<'_>| {
                lap.add(1, drain::sum(m.body()));
                Ok(())
            }
        })
        .start()?;
    meter.wait()?;
    consumer.stop();
    meter.figures(BODY)
}
