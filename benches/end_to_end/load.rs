//! Callers that publish as fast as they are answered, for as long as a round lasts.

use std::thread;

use hdrhistogram::Histogram;

use crate::{
    Bench, Outcome,
    machine::{Mark, now_ns, sleep_until},
};

/// What a run measures.
pub(crate) const COLUMNS: [&str; 5] = [
    "k msg/s",
    "call p50 us",
    "call p99 us",
    "client CPU ns/msg",
    "server CPU ns/msg",
];

/// How long threads have to come up before all of them begin at once.
const HEAD_START_NS: u64 = 2_000_000;

/// Lets one caller publish. Each of its calls publishes so many messages.
pub(crate) fn alone(
    bench: &Bench,
    messages: usize,
    call: impl FnMut() -> Outcome<()> + Send,
) -> Outcome<Vec<f64>> {
    together(bench, messages, vec![call])
}

/// Lets several callers publish, each on a thread of its own.
pub(crate) fn together<C>(bench: &Bench, messages: usize, mut callers: Vec<C>) -> Outcome<Vec<f64>>
where
    C: FnMut() -> Outcome<()> + Send,
{
    let (pid, window) = (bench.server_pid()?, bench.options.window.as_nanos() as u64);
    let warm_up = window / 10 / callers.len() as u64;
    for call in &mut callers {
        time(call, now_ns() + warm_up)?;
    }
    let before = Mark::now(pid);
    let start = now_ns() + HEAD_START_NS;
    let times = thread::scope(|s| {
        let threads: Vec<_> = callers
            .iter_mut()
            .map(|call| {
                s.spawn(move || {
                    sleep_until(start);
                    time(call, start + window)
                })
            })
            .collect();
        let mut all = Histogram::<u64>::new(3)?;
        for thread in threads {
            all += thread.join().map_err(|_| "a caller panicked")??;
        }
        Outcome::Ok(all)
    })?;
    let after = Mark::now(pid);
    let n = (times.len() * messages as u64) as f64;
    Ok(vec![
        n * 1e6 / (after.at - start) as f64,
        times.value_at_quantile(0.5) as f64 / 1e3,
        times.value_at_quantile(0.99) as f64 / 1e3,
        (after.client - before.client) as f64 / n,
        (after.server - before.server) as f64 / n,
    ])
}

/// Calls at least once, and until a moment of [`now_ns`]. Returns how long calls took.
fn time(call: &mut impl FnMut() -> Outcome<()>, until: u64) -> Outcome<Histogram<u64>> {
    let mut times = Histogram::new(3)?;
    let mut last = now_ns();
    loop {
        call()?;
        let now = now_ns();
        times.record(now - last)?;
        last = now;
        if now >= until {
            return Ok(times);
        }
    }
}
