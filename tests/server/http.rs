//! Metrics and health over HTTP, and what a probe is told while things go wrong.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use streamlane::*;

use crate::{leases::ms, metrics::prometheus, queues::SHORT, support::*};

/// The status and the body.
fn get(addr: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), body.to_owned())
}

fn json(addr: SocketAddr) -> serde_json::Value {
    let (status, body) = get(addr, "/status");
    assert_eq!(status, 200);
    serde_json::from_str(&body).unwrap()
}

#[test]
fn metrics_health_and_status_are_served_until_the_server_is_dropped() {
    let server = server();
    let topic = "h-served";
    let streams = open(&server.url(), topic, 2);
    let http = streams.serve_http("127.0.0.1:0").unwrap();
    let addr = http.addr();
    assert_eq!(
        (get(addr, "/healthz").0, get(addr, "/readyz").0),
        (200, 200)
    );
    let seen = Seen::default();
    let consumer = recording(streams.consumer(topic).name("c"), &seen)
        .start()
        .unwrap();
    running(&consumer);
    let ids = publish_to(&streams, topic, 1, &["a", "b"]);
    seen.wait_for(2);
    expect("it to be counted", || {
        let families = prometheus::parse(&get(addr, "/metrics").1).unwrap();
        let consumed = &families["streams_consumed_total"].series;
        consumed.iter().map(|(_, (_, n))| n).sum::<f64>() > 1.0
    });
    assert!(get(addr, "/").1.contains("/metrics"));
    assert_eq!(get(addr, "/nowhere").0, 404);
    assert_eq!(get(addr, "/readyz"), (200, "Healthy\n".into()));
    let status = json(addr);
    assert_eq!(status["health"]["status"], "Healthy");
    let partition = &status["partitions"][1];
    assert_eq!(partition["topic"], topic);
    assert_eq!(
        (&partition["partition"], &partition["handled"]),
        (&1.into(), &2.into())
    );
    assert_eq!(partition["position"], ids[1].to_string());
    assert_eq!(status["ownership"][0]["owned"], serde_json::json!([0, 1]));
    assert_eq!(status["published"][0]["stored"], serde_json::json!([0, 2]));
    drop((consumer, streams));
    expect("it to be over", || get(addr, "/healthz").0 == 503);
    drop(http);
    assert!(TcpStream::connect(addr).is_err());
}

/// A thread that is wedged shows, and so does what went wrong before; a panic of the handler or of the logger is no
/// end of a thread.
#[test]
fn r80_no_process_is_green_whose_threads_are_dead_or_do_not_come_back() {
    let server = server();
    let topic = "h-wedged";
    let streams = open(&server.url(), topic, 2);
    let http = streams.serve_http("127.0.0.1:0").unwrap();
    let addr = http.addr();
    let go = Arc::new(AtomicBool::new(false));
    let handle = {
        let go = Arc::clone(&go);
        move |m: &Message<'_>| -> HandlerResult {
            match m.body() {
                b"panic" => panic!("as it was told"),
                b"wait" => expect("the signal", || go.load(SeqCst)),
                _ => {}
            }
            Ok(())
        }
    };
    let over = Over(&go);
    let builder = streams.consumer(topic).name("c").block(SHORT);
    let consumer = builder.stalled(ms(1000)).shared(handle).start().unwrap();
    running(&consumer);
    // so that the logger panics where the lane reports what failed
    let broken = Arc::new(AtomicBool::new(true));
    let breaks = Arc::clone(&broken);
    on_log(move |line| {
        let is_it = line.contains("h-wedged") && line.contains("HandlerPanic");
        assert!(!is_it || !breaks.load(SeqCst), "no log");
    });
    publish_to(&streams, topic, 0, &["panic", "fine"]);
    let is_told = || get(addr, "/readyz").1.contains("the lane panicked: no log");
    expect("the reason", is_told);
    assert_eq!(
        get(addr, "/healthz"),
        (200, "alive\n".into()),
        "it begins anew"
    );
    broken.store(false, SeqCst);
    expect("the lane to come back", || {
        consumer.partitions()[0].handled == 1
    });
    expect("it to be ready", || get(addr, "/readyz").0 == 200);
    publish_to(&streams, topic, 1, &["wait"]);
    expect("it to show", || get(addr, "/healthz").0 == 503);
    let why = get(addr, "/healthz").1;
    assert!(
        why.contains("h-wedged[1]/c: the handler has not come back"),
        "{why}"
    );
    assert_eq!(get(addr, "/readyz").0, 200, "degraded");
    drop(over);
    expect("it to be well again", || get(addr, "/healthz").0 == 200);
}

/// What a new start would not mend is no reason for one.
#[test]
fn r81_no_probe_restarts_who_is_idle_paused_without_partitions_blocked_stopped_or_cut_off() {
    let server = server();
    let topic = "h-idle";
    let streams = open(&server.url(), topic, 2);
    let http = streams.serve_http("127.0.0.1:0").unwrap();
    let addr = http.addr();
    let probes = || (get(addr, "/healthz").0, get(addr, "/readyz").0);
    let consumer = streams.consumer(topic).name("c").block(SHORT);
    let consumer = consumer.shared(|m: &Message<'_>| match m.body() {
        b"block" => Err("not yet").or_block(),
        b"stop" => Err("no more").or_stop(),
        _ => Ok(()),
    });
    let consumer = consumer.start().unwrap();
    running(&consumer);
    let reads = || streams.metrics().to_prometheus();
    assert_eq!(probes(), (200, 200), "idle: {}", reads());
    consumer.pause();
    let paused = || {
        consumer
            .partitions()
            .iter()
            .all(|p| p.state == LaneState::Paused)
    };
    expect("the pause", paused);
    assert_eq!(probes(), (200, 200), "paused");
    consumer.resume();
    running(&consumer);

    // one that has nothing, since another has all
    let second = settings(&server.url(), topic, 2).pod_name("h-second");
    let second = Streams::open(second).unwrap();
    let others = second.serve_http("127.0.0.1:0").unwrap();
    let has_none = second.consumer(topic).name("c").partitions_where(3, 2);
    let has_none = recording(has_none, &Seen::default()).start().unwrap();
    assert!(has_none.owned().is_empty());
    let of_other = (
        get(others.addr(), "/healthz").0,
        get(others.addr(), "/readyz").0,
    );
    assert_eq!(of_other, (200, 200), "without partitions");
    drop((has_none, others, second));

    publish_to(&streams, topic, 0, &["block"]);
    publish_to(&streams, topic, 1, &["stop"]);
    let is = |p: usize, state| consumer.partitions()[p].state == state;
    expect("both", || {
        is(0, LaneState::Blocked) && is(1, LaneState::Stopped)
    });
    assert_eq!(probes(), (200, 200), "blocked and stopped");
    server.kill();
    expect("it to be noticed", || get(addr, "/readyz").0 == 503);
    assert_eq!(get(addr, "/healthz").0, 200, "cut off");
}
