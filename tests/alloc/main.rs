//! In steady state nothing is allocated on the heap: an allocator that counts by thread looks over the
//! shoulder of lanes, publishers and flushers while a hundred thousand messages go by.
#![allow(
    unsafe_code,
    unreachable_pub,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::print_stdout,
    clippy::unwrap_used,
    missing_docs
)]

mod counting;
mod window;

use std::{
    env,
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use streamlane::{
    As, Batch, BufferedPublisher, Codec, Consumer, ConsumerBuilder, DedicatedPublisher, Delivery,
    HandlerResult, HasHandler, Message, MessageType, Outgoing, Persist, ProducerSettings, Result,
    Schema, Scratch, Settings, StreamId, Streams, TopicSettings, TypedBatchHandler,
    testing::{PrivateServer, Reply},
    typed, typed_batch,
};

use counting::Count;
use window::{Pacer, Window};

/// Messages of the window, over all threads.
const MESSAGES: usize = 100_000;
/// Messages of each thread before it: buffers find their size, reads theirs.
const WARM_UP: usize = 5000;
const PARTITIONS: usize = 2;
const BATCH: usize = 100;
/// A position flush every millisecond.
const OFTEN: Duration = Duration::from_millis(1);

const BODY: &[u8] =
    br#"{"id":4711,"customer":"a customer's name","items":[{"sku":"A-1","count":2}]}"#;
/// Longer than what any message of these has.
const LARGE: [u8; 500] = [b'x'; 500];
/// More than is kept in an entry where bodies are kept apart.
const APART: [u8; 1100] = [b'x'; 1100];
const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// What stays the same from path to path.
struct Scene {
    server: PrivateServer,
    streams: Streams,
}

type Path = (&'static str, fn(&Scene) -> Vec<Count>);

const PATHS: [Path; 22] = [
    ("dedicated publish", dedicated_publish),
    ("dedicated batches", dedicated_batches),
    ("publish under a dedupe id", publish_once),
    ("publish with the body kept apart", publish_apart),
    ("shared publish", shared_publish),
    ("buffered publish", buffered_publish),
    ("buffered JSON publish", buffered_json_publish),
    ("shared JSON publish", shared_json_publish),
    ("dedicated JSON batches", dedicated_json_batches),
    ("JSON publish with options", json_with_options),
    ("batch read", batch_read),
    ("message handler", message_handler),
    ("JSON handler", json_handler),
    ("JSON batch handler", json_batch_handler),
    ("codec handler", codec_handler),
    ("codec batch handler", codec_batch_handler),
    ("filtered read", filtered_read),
    ("batches of a group, acknowledged", group_batches),
    ("messages of a group, acknowledged", group_messages),
    ("read of bodies kept apart", apart_read),
    ("positions stored with each batch", sync_positions),
    ("position flush, publishing to handling", position_flush),
];

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    if args.iter().any(|a| a == "--list") {
        for (name, _) in PATHS {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    let wanted = |name: &str| {
        let mut words = args.iter().filter(|a| !a.starts_with('-')).peekable();
        words.peek().is_none() || words.any(|w| name.contains(w.as_str()))
    };
    let started = Instant::now();
    let scene = Scene::new();
    let (mut passed, mut failed, mut left_out) = (0, 0, 0);
    for (name, path) in PATHS {
        if !wanted(name) {
            left_out += 1;
            continue;
        }
        let Ok(counts) = catch_unwind(AssertUnwindSafe(|| path(&scene))) else {
            println!("{name} ... FAILED");
            failed += 1;
            continue;
        };
        let calls: u64 = counts.iter().map(|c| c.calls).sum();
        let bytes: u64 = counts.iter().map(|c| c.bytes).sum();
        let clean = calls == 0 && !counts.is_empty();
        println!(
            "{name}: {MESSAGES} messages, {calls} allocations, {bytes} bytes ... {}",
            if clean { "ok" } else { "FAILED" }
        );
        for c in counts.iter().filter(|c| c.calls > 0) {
            println!("    {}: {} allocations, {} bytes", c.name, c.calls, c.bytes);
        }
        passed += u32::from(clean);
        failed += u32::from(!clean);
    }
    println!(
        "\ntest result: {}. {passed} passed; {failed} failed; 0 ignored; 0 measured; \
         {left_out} filtered out; finished in {:.2}s\n",
        if failed == 0 { "ok" } else { "FAILED" },
        started.elapsed().as_secs_f64()
    );
    ExitCode::from(u8::from(failed > 0))
}

impl Scene {
    /// A server, and a topic with enough in it for every path that reads.
    fn new() -> Self {
        let server = PrivateServer::start().unwrap();
        let topic = || {
            TopicSettings::default()
                .partitions(PARTITIONS as u32)
                .max_len(10_000_000)
        };
        let apart = |ttl| {
            topic()
                .claim_check(true)
                .payload_inline_max(1024)
                .payload_ttl(ttl)
        };
        let settings = Settings::default()
            .connection_string(server.url())
            .with_topic("orders", topic())
            .with_topic("live", topic())
            .with_topic("apart", apart(Duration::from_hours(1)))
            .with_topic("passing", apart(Duration::from_secs(1)));
        let streams = Streams::open(settings).unwrap();
        let scene = Self { server, streams };
        scene.fill("orders", &order());
        scene
    }

    /// Publishes as many of these as any path reads.
    fn fill(&self, topic: &str, message: &Outgoing<'static>) {
        let mut publisher = self.streams.publisher(topic).unwrap().dedicated();
        // A window of batches may begin and end up to a batch late.
        let each = WARM_UP + MESSAGES / PARTITIONS + 2 * BATCH;
        for p in 0..PARTITIONS as u32 {
            let chunk = vec![message.clone().partition(p); 500];
            for _ in 0..each.div_ceil(chunk.len()) {
                assert!(publisher.publish_batch(&chunk).iter().all(Result::is_ok));
            }
        }
    }

    /// A consumer of the prepared topic, from its beginning.
    fn reader(&self, name: &str) -> ConsumerBuilder {
        self.streams
            .consumer("orders")
            .name(name)
            .batch_size(BATCH as u32)
    }
}

fn order() -> Outgoing<'static> {
    Outgoing::new("OrderPlaced", BODY)
        .key("order-4711")
        .correlation_id("checkout-77")
        .traceparent(TRACE)
        .header("source", "web")
        .header("tenant", "north")
}

/// A value to publish.
#[derive(Clone, Copy, Serialize)]
struct Placed {
    id: u64,
    customer: &'static str,
    paid: f64,
}

impl MessageType for Placed {
    const MESSAGE_TYPE: &'static str = "OrderPlaced";
}

const PLACED: Placed = Placed {
    id: 4711,
    customer: "a customer's name",
    paid: 12.5,
};

// -- publishing

/// Runs `calls` on threads of their own, each in turn for the warm-up and for its share of the messages.
fn on_publisher_threads(calls: Vec<Box<dyn FnMut(usize) + Send>>, step: usize) -> Vec<Count> {
    on_publisher_threads_and(&[], calls, step)
}

/// The same, with an eye on threads of these names as well.
fn on_publisher_threads_and(
    others: &[&str],
    calls: Vec<Box<dyn FnMut(usize) + Send>>,
    step: usize,
) -> Vec<Count> {
    let window = Arc::new(Window::new(calls.len()));
    let share = MESSAGES / calls.len();
    thread::scope(|s| {
        for mut call in calls {
            let window = Arc::clone(&window);
            let name = "publisher".to_owned();
            let run = move || {
                (0..WARM_UP).step_by(step).for_each(&mut call);
                window.hold();
                (0..share).step_by(step).for_each(&mut call);
                window.hold();
            };
            thread::Builder::new()
                .name(name)
                .spawn_scoped(s, run)
                .unwrap();
        }
        window.measure(&[&["publisher"], others].concat())
    })
}

fn publish_one(publisher: &mut DedicatedPublisher, n: usize) {
    if n.is_multiple_of(2) {
        let key = [b'k', n as u8];
        publisher.publish(key, "OrderPlaced", BODY).unwrap();
    } else {
        let id = publisher
            .message("OrderPlaced", BODY)
            .key("order-4711")
            .correlation_id("checkout-77")
            .traceparent(TRACE)
            .header("source", "web")
            .publish();
        id.unwrap();
    }
}

fn with_room(results: usize) -> Vec<Result<StreamId>> {
    Vec::with_capacity(results)
}

fn dedicated_publish(scene: &Scene) -> Vec<Count> {
    let mut publisher = scene.streams.publisher("published").unwrap().dedicated();
    let call = move |n| publish_one(&mut publisher, n);
    on_publisher_threads(vec![Box::new(call)], 1)
}

fn publish_once(scene: &Scene) -> Vec<Count> {
    let mut publisher = scene.streams.publisher("published").unwrap().dedicated();
    let call = move |n: usize| {
        let id = n.to_be_bytes();
        let draft = publisher.message("OrderPlaced", BODY).key(&id);
        let published = draft.dedupe(&id, Duration::from_mins(1)).publish();
        assert_ne!(published.unwrap().id, StreamId::MIN);
    };
    on_publisher_threads(vec![Box::new(call)], 1)
}

fn publish_apart(scene: &Scene) -> Vec<Count> {
    let mut publisher = scene.streams.publisher("passing").unwrap().dedicated();
    let call = move |_| {
        let id = publisher.publish("order-4711", "OrderPlaced", APART);
        id.unwrap();
    };
    on_publisher_threads(vec![Box::new(call)], 1)
}

fn dedicated_batches(scene: &Scene) -> Vec<Count> {
    let mut publisher = scene.streams.publisher("published").unwrap().dedicated();
    let (batch, mut results) = (vec![order(); BATCH], with_room(BATCH));
    let call = move |_| {
        results.clear();
        publisher.publish_batch_into(&batch, &mut results);
        assert!(results.len() == BATCH && results.iter().all(Result::is_ok));
    };
    on_publisher_threads(vec![Box::new(call)], BATCH)
}

fn shared_publish(scene: &Scene) -> Vec<Count> {
    let publisher = scene.streams.publisher("published").unwrap();
    let call = || -> Box<dyn FnMut(usize) + Send> {
        let publisher = publisher.clone();
        Box::new(move |n| {
            let id = if n.is_multiple_of(2) {
                publisher.publish([b'k', n as u8], "OrderPlaced", BODY)
            } else {
                publisher
                    .message("OrderPlaced", BODY)
                    .header("a", "b")
                    .publish()
            };
            id.unwrap();
        })
    };
    on_publisher_threads(vec![call(), call()], 1)
}

fn buffered_publish(scene: &Scene) -> Vec<Count> {
    through_a_queue(scene, |publisher| publisher.enqueue(&order()))
}

fn buffered_json_publish(scene: &Scene) -> Vec<Count> {
    through_a_queue(scene, |publisher| publisher.enqueue_json("k", &PLACED))
}

/// So small that callers wait for room during the warm-up already.
const QUEUE: usize = 64;
const TAKEN: usize = 32;

/// The caller and the pump, with a queue that is full most of the time.
fn through_a_queue(scene: &Scene, enqueue: fn(&BufferedPublisher) -> Result<()>) -> Vec<Count> {
    let producer = ProducerSettings::new("buffered")
        .max_queue(QUEUE as u32)
        .max_batch(TAKEN as u32);
    let settings = scene.streams.settings().clone().with_producer(producer);
    let streams = Streams::open(settings).unwrap();
    let publisher = streams.buffered("buffered").unwrap();
    let large = order().header("text", &LARGE);
    publisher.enqueue(&large).unwrap();
    // As many buffers as there can be at a time: a full queue, and behind it a full batch.
    let mut most = 0;
    while most < (QUEUE + TAKEN) as u64 {
        assert!(publisher.flush(Duration::from_secs(20)).is_clean());
        scene.server.pause().unwrap();
        for _ in 0..2 {
            while publisher.try_enqueue(&large).is_ok() {}
            // the pump takes a batch
            let _ = publisher.flush(Duration::from_millis(50));
        }
        most = publisher.queued();
        scene.server.resume().unwrap();
    }
    assert!(publisher.flush(Duration::from_secs(20)).is_clean());
    let theirs = publisher.clone();
    let call = move |_| enqueue(&theirs).unwrap();
    // The first wait for room makes what all later ones use; it comes while the server stands still.
    scene.server.pause().unwrap();
    let counts = thread::scope(|s| {
        s.spawn(|| {
            while publisher.queued() < (QUEUE + TAKEN) as u64 {
                thread::sleep(Duration::from_millis(1));
            }
            thread::sleep(Duration::from_millis(50));
            scene.server.resume().unwrap();
        });
        on_publisher_threads_and(&["pump"], vec![Box::new(call)], 1)
    });
    assert_eq!(counts.len(), 2, "{counts:?}");
    assert!(publisher.flush(Duration::from_secs(20)).is_clean());
    counts
}

fn shared_json_publish(scene: &Scene) -> Vec<Count> {
    let publisher = scene.streams.publisher("published").unwrap();
    let call = || -> Box<dyn FnMut(usize) + Send> {
        let publisher = publisher.clone();
        Box::new(move |n| {
            let id = if n.is_multiple_of(2) {
                publisher.publish_json([b'k', n as u8], &PLACED)
            } else {
                publisher.publish_json("k", &As("OrderNoted", &PLACED))
            };
            id.unwrap();
        })
    };
    on_publisher_threads(vec![call(), call()], 1)
}

fn dedicated_json_batches(scene: &Scene) -> Vec<Count> {
    let mut publisher = scene.streams.publisher("published").unwrap().dedicated();
    let (batch, mut results) = ([("k", PLACED); BATCH], Vec::with_capacity(BATCH));
    let call = move |_| {
        results.clear();
        publisher.publish_json_batch_into(&batch, &mut results);
        assert!(results.iter().all(Result::is_ok));
    };
    on_publisher_threads(vec![Box::new(call)], BATCH)
}

fn json_with_options(scene: &Scene) -> Vec<Count> {
    let publisher = scene.streams.publisher("published").unwrap();
    let mut scratch = Scratch::default();
    let call = move |_| {
        let body = scratch.encode_json(&PLACED).unwrap();
        let message = publisher.message(Placed::MESSAGE_TYPE, body).key("k");
        message.header("source", "web").publish().unwrap();
    };
    on_publisher_threads(vec![Box::new(call)], 1)
}

// -- reading

/// Measures the lanes, and the flusher if there is one, of a consumer made with a pacer for each lane.
fn on_lanes(
    flusher: bool,
    start: impl FnOnce(Box<dyn Fn() -> Pacer + Send + Sync>) -> ConsumerBuilder<HasHandler>,
) -> Vec<Count> {
    let window = Arc::new(Window::new(PARTITIONS));
    let theirs = Arc::clone(&window);
    let pacer = move || Pacer::new(&theirs, WARM_UP, MESSAGES / PARTITIONS);
    let consumer: Consumer = start(Box::new(pacer)).start().unwrap();
    let counts = window.measure(&["lane", "positions"]);
    assert_eq!(
        counts.len(),
        PARTITIONS + usize::from(flusher),
        "{counts:?}"
    );
    assert!(consumer.partitions().iter().all(|p| p.failures == 0));
    let stopped = consumer.stop();
    assert!(stopped.still_running.is_empty() && stopped.unsaved.is_empty());
    counts
}

/// Looks at everything a message has.
fn look(m: &Message<'_>) -> HandlerResult {
    assert!(m.body() == BODY && m.message_type() == "OrderPlaced" && m.key() == "order-4711");
    assert!(m.correlation_id() == "checkout-77" && m.traceparent().is_some_and(|t| t == TRACE));
    assert_eq!(m.headers().get("tenant")?, Some(&b"north"[..]));
    assert!(m.headers().iter().count() == 2 && m.fields().count() == 6 && m.attempt() == 1);
    assert!(m.id().ms() > 0 && m.key().as_str().is_ok());
    Ok(())
}

fn batch_read(scene: &Scene) -> Vec<Count> {
    on_lanes(true, |pacer| {
        let builder = scene.reader("batches").persist_interval(OFTEN);
        builder.batches(move |_| {
            let mut pacer = pacer();
            move |b: &Batch<'_>| -> HandlerResult {
                b.each(look)?;
                pacer.saw(b.len());
                Ok(())
            }
        })
    })
}

fn reading_messages(
    builder: ConsumerBuilder,
    pacer: Box<dyn Fn() -> Pacer + Send + Sync>,
) -> ConsumerBuilder<HasHandler> {
    builder.messages(move |_| {
        let mut pacer = pacer();
        move |m: &Message<'_>| -> HandlerResult {
            look(m)?;
            pacer.saw(1);
            Ok(())
        }
    })
}

fn message_handler(scene: &Scene) -> Vec<Count> {
    on_lanes(true, |pacer| {
        let builder = scene.reader("messages").persist_interval(OFTEN).park(3);
        reading_messages(builder, pacer)
    })
}

#[derive(Deserialize)]
struct Order<'a> {
    id: u64,
    customer: &'a str,
}

impl Schema for Order<'static> {
    type Of<'a> = Order<'a>;
}

fn json_handler(scene: &Scene) -> Vec<Count> {
    on_lanes(true, |pacer| {
        let builder = scene.reader("json").persist_interval(OFTEN);
        builder.json(move |_| {
            let mut pacer = pacer();
            typed::<Order>(move |order, _| {
                assert!(order.id == 4711 && order.customer == "a customer's name");
                pacer.saw(1);
                Ok(())
            })
        })
    })
}

/// How a handler of batches of decoded orders keeps pace.
fn orders(mut pacer: Pacer) -> impl for<'a> TypedBatchHandler<Value<'a> = Order<'a>> {
    typed_batch::<Order>(move |orders, batch| {
        assert_eq!(orders.len(), batch.len());
        for order in orders {
            assert!(order.id == 4711 && order.customer == "a customer's name");
        }
        pacer.saw(orders.len());
        Ok(())
    })
}

fn json_batch_handler(scene: &Scene) -> Vec<Count> {
    on_lanes(true, |pacer| {
        let builder = scene.reader("json-batches").persist_interval(OFTEN);
        builder.json_batches(move |_| orders(pacer()))
    })
}

/// A user's format, for one type, which unpacks into the room before it reads.
#[derive(Clone)]
struct Unpacked;

impl<'a> Codec<'a, Order<'a>> for Unpacked {
    fn decode(&mut self, body: &'a [u8], room: &'a mut Vec<u8>) -> HandlerResult<Order<'a>> {
        room.extend_from_slice(body);
        let mut words = std::str::from_utf8(room)?.split('"');
        let id = words.nth(2).ok_or("no id")?.trim_matches([':', ',']);
        let (id, customer) = (id.parse()?, words.nth(2).ok_or("no customer")?);
        Ok(Order { id, customer })
    }
}

fn codec_handler(scene: &Scene) -> Vec<Count> {
    on_lanes(true, |pacer| {
        let builder = scene.reader("codec").persist_interval(OFTEN);
        builder.codec(Unpacked, move |_| {
            let mut pacer = pacer();
            typed::<Order>(move |order, _| {
                assert!(order.id == 4711 && order.customer == "a customer's name");
                pacer.saw(1);
                Ok(())
            })
        })
    })
}

fn codec_batch_handler(scene: &Scene) -> Vec<Count> {
    on_lanes(true, |pacer| {
        let builder = scene.reader("codec-batches").persist_interval(OFTEN);
        builder.codec_batches(Unpacked, move |_| orders(pacer()))
    })
}

fn filtered_read(scene: &Scene) -> Vec<Count> {
    on_lanes(true, |pacer| {
        let builder = scene.reader("filtered").persist_interval(OFTEN);
        reading_messages(builder.filter(["Other", "OrderPlaced"]), pacer)
    })
}

/// A member of a group, which acknowledges what it has handled along with the next read.
fn worker(scene: &Scene, name: &str) -> ConsumerBuilder {
    scene.reader(name).delivery(Delivery::WorkQueue)
}

fn group_batches(scene: &Scene) -> Vec<Count> {
    on_lanes(false, |pacer| {
        worker(scene, "group-batches").batches(move |_| {
            let mut pacer = pacer();
            move |b: &Batch<'_>| -> HandlerResult {
                b.each(look)?;
                pacer.saw(b.len());
                Ok(())
            }
        })
    })
}

fn apart_read(scene: &Scene) -> Vec<Count> {
    scene.fill("apart", &Outgoing::new("OrderPlaced", &APART));
    on_lanes(true, |pacer| {
        let builder = scene.streams.consumer("apart").name("c");
        let builder = builder.batch_size(BATCH as u32).persist_interval(OFTEN);
        builder.messages(move |_| {
            let mut pacer = pacer();
            move |m: &Message<'_>| -> HandlerResult {
                assert!(m.body() == APART);
                pacer.saw(1);
                Ok(())
            }
        })
    })
}

fn group_messages(scene: &Scene) -> Vec<Count> {
    on_lanes(false, |pacer| {
        let builder = worker(scene, "group-messages").persist_interval(OFTEN);
        reading_messages(builder.retry(3), pacer)
    })
}

fn sync_positions(scene: &Scene) -> Vec<Count> {
    on_lanes(true, |pacer| {
        let builder = scene.reader("sync").persist(Persist::SyncBatch);
        reading_messages(builder, pacer)
    })
}

// -- from end to end, with hundreds of flushes

fn position_flush(scene: &Scene) -> Vec<Count> {
    let window = Arc::new(Window::new(PARTITIONS + 1));
    let theirs = Arc::clone(&window);
    let builder = scene.streams.consumer("live").name("flushed");
    let pacer = move || Pacer::new(&theirs, WARM_UP, MESSAGES / PARTITIONS);
    let consumer = reading_messages(builder.persist_interval(OFTEN), Box::new(pacer));
    let consumer = consumer.start().unwrap();
    let mut publisher = scene.streams.publisher("live").unwrap().dedicated();
    let theirs = Arc::clone(&window);
    let publish = move || {
        let messages = [0, 1].map(|p| order().partition(p));
        let mut results = with_room(messages.len());
        let mut to_each = |n: usize| {
            for _ in 0..n {
                results.clear();
                publisher.publish_batch_into(&messages, &mut results);
                assert!(results.iter().all(Result::is_ok));
            }
        };
        to_each(WARM_UP);
        theirs.hold();
        to_each(MESSAGES / PARTITIONS);
        theirs.hold();
    };
    let thread = thread::Builder::new().name("publisher".into());
    let thread = thread.spawn(publish).unwrap();
    let names = ["lane", "positions", "publisher"];
    let before = (window.sample(&names), writes(scene), diagnosed(scene));
    let after = (window.sample(&names), writes(scene), diagnosed(scene));
    thread.join().unwrap();
    assert!(consumer.partitions().iter().all(|p| p.failures == 0));
    assert!(consumer.stop().unsaved.is_empty());
    // Each flush writes positions, and ordinals beside them.
    let flushes = (after.1 - before.1) / 2;
    assert!(flushes >= 200, "only {flushes} flushes");
    assert_ne!(before.2, after.2, "no diagnostics were written meanwhile");
    let counts = counting::between(&before.0, after.0);
    assert_eq!(counts.len(), PARTITIONS + 2, "{counts:?}");
    counts
}

/// How many HSETs the server has run.
fn writes(scene: &Scene) -> u64 {
    let stats = scene
        .server
        .command(&["INFO", "commandstats"])
        .unwrap()
        .text();
    let calls = stats.split("cmdstat_hset:calls=").nth(1).unwrap();
    calls.split(',').next().unwrap().parse().unwrap()
}

/// When the live consumer's positions were last described.
fn diagnosed(scene: &Scene) -> String {
    let keys = scene.server.command(&["KEYS", "*{live}*"]).unwrap();
    let meta = keys.items().iter().map(Reply::text).find_map(|key| {
        let said = scene
            .server
            .command(&["HGET", &key, "0:updatedUtc"])
            .ok()?
            .text();
        (said.len() > 20 && !said.starts_with("WRONGTYPE")).then_some(said)
    });
    meta.expect("diagnostics of the live consumer")
}
