//! One caller, and every way it can publish: message by message, each after the answer to the one before,
//! and many at a time.

use std::time::{Duration, SystemTime};

use streamlane::{As, Command, Condition, Outgoing, Source, StreamId};

use crate::{
    Bench, KEY, Outcome, TYPE, drain,
    figures::{Way, compare},
    floor::xadd,
    load::{self, alone},
};

pub(crate) const TOPIC: &str = "paths";

/// How long a spinning publisher polls. An answer takes less where the server has a core of its own.
const SPIN: Duration = Duration::from_micros(100);

/// How many messages wait at most: few, so that what waits at the end of a round does not count, and how
/// many one call enqueues.
pub(crate) const QUEUE: u32 = 2000;
const BURST: usize = 100;

/// How long markers live here: long enough to be there, too short to fill the server.
const REMEMBERED: Duration = Duration::from_secs(1);

pub(crate) fn measure(bench: &Bench) -> Outcome<()> {
    let counts = || bench.options.counts.iter().map(|n| *n as usize);
    for &size in &bench.options.bodies {
        let (title, body) = (format!("one publisher: {size} B"), &*drain::body(size));
        let publisher = &bench.streams.publisher(TOPIC)?;
        let outbox = &bench.streams.outbox(TOPIC)?;

        let mut ways = vec![bare(bench, "bare socket".into(), body, 1)?];
        for n in counts() {
            ways.push(bare(bench, format!("bare pipeline of {n}"), body, n)?);
        }

        let mut dedicated = publisher.dedicated();
        ways.push(single(bench, "dedicated", move || {
            dedicated.publish(KEY, TYPE, body)
        }));
        let mut spinning = publisher.dedicated();
        spinning.set_spin(SPIN);
        ways.push(single(bench, "dedicated, spinning", move || {
            spinning.publish(KEY, TYPE, body)
        }));
        ways.push(single(bench, "shared", || {
            publisher.publish(KEY, TYPE, body)
        }));

        // a JSON text of the same length as the other bodies
        let text = "x".repeat(size - 2);
        ways.push(single(bench, "shared, JSON", move || {
            publisher.publish_json(KEY, &As("OrderPlaced", &text))
        }));

        let (mut once, mut ids) = (publisher.dedicated(), 0_u64..);
        ways.push(single(bench, "dedicated, dedupe id", move || {
            let id = ids.next().map(u64::to_be_bytes).unwrap_or_default();
            let m = once.message(TYPE, body).key(KEY);
            m.dedupe(&[id, body.len().to_be_bytes()].concat(), REMEMBERED)
                .publish()
                .map(StreamId::from)
        }));
        let (forwarder, mut positions) = (bench.streams.forwarder(TOPIC)?, 1_u64..);
        let forwarder = forwarder.marker_ttl(REMEMBERED)?;
        let source = format!("{size} B at {:?}", SystemTime::now());
        ways.push(many(bench, "forwarder".into(), 1, move || {
            let position = StreamId::new(positions.next().unwrap_or_default(), 0);
            let source = Source::in_order(&*source, position);
            let message = [Outgoing::new(TYPE, body).key(KEY)];
            forwarder.forward(&source, &message).map(drop)
        }));

        let (state, none) = (outbox.state_key("count")?, outbox.state_key("none")?);
        let counted = move || {
            let message = Outgoing::new(TYPE, body).key(KEY);
            let count = Command::new("INCR").key(&state);
            outbox.transaction().command(count).publish(message)
        };
        let conditional = {
            let counted = counted.clone();
            move || counted().when(Condition::key_not_exists(&none))
        };
        ways.push(many(bench, "outbox".into(), 1, move || {
            counted().commit().map(drop)
        }));
        ways.push(many(bench, "outbox, one condition".into(), 1, move || {
            conditional().commit().map(drop)
        }));

        let store = bench.streams.state_store(TOPIC)?;
        let event = [Outgoing::new(TYPE, body).key(KEY)];
        ways.push(many(bench, "state store".into(), 1, move || {
            store.append_always("events", &event).map(drop)
        }));

        // As fast as the pump makes room: what it sends is what is measured.
        let buffered = bench.streams.buffered(TOPIC)?;
        ways.push(many(bench, "buffered".into(), BURST, move || {
            let message = Outgoing::new(TYPE, body).key(KEY);
            (0..BURST).try_for_each(|_| buffered.enqueue(&message))
        }));

        for n in counts() {
            let messages = vec![Outgoing::new(TYPE, body).key(KEY); n];
            let mut dedicated = publisher.dedicated();
            let mut ids = Vec::<streamlane::Result<StreamId>>::with_capacity(n);
            ways.push(many(bench, format!("dedicated, batches of {n}"), n, {
                let messages = messages.clone();
                move || {
                    dedicated.publish_batch_into(&messages, &mut ids);
                    ids.drain(..).try_for_each(|id| id.map(drop))
                }
            }));
            ways.push(many(
                bench,
                format!("shared, batches of {n}"),
                n,
                move || {
                    let ids = publisher.publish_batch(&messages);
                    ids.into_iter().try_for_each(|id| id.map(drop))
                },
            ));
        }
        compare(&bench.options, &title, &load::COLUMNS, ways)?;
    }
    Ok(())
}

/// A floor: so many messages in one write.
fn bare<'a>(bench: &'a Bench, label: String, body: &[u8], n: usize) -> Outcome<Way<'a>> {
    let (mut wire, bytes) = (bench.wire()?, xadd(TOPIC, body).repeat(n));
    Ok(Way::floor(label, move || {
        alone(bench, n, || {
            wire.send(&bytes)?;
            Ok(wire.ids(n)?)
        })
    }))
}

/// A way that publishes one message a call.
fn single<'a>(
    bench: &'a Bench,
    label: &str,
    mut publish: impl FnMut() -> streamlane::Result<StreamId> + Send + 'a,
) -> Way<'a> {
    many(bench, label.into(), 1, move || publish().map(drop))
}

/// A way that publishes `n` messages a call.
fn many<'a>(
    bench: &'a Bench,
    label: String,
    n: usize,
    mut publish: impl FnMut() -> streamlane::Result<()> + Send + 'a,
) -> Way<'a> {
    Way::new(label, move || alone(bench, n, || Ok(publish()?)))
}
