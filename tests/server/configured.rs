//! What settings, topics and the server's own state make of a start.
#![allow(clippy::unwrap_used)]

use streamlane::{testing::PrivateServer, *};

use crate::support::*;

/// The sizes of the batches that the messages `0..n` arrive in.
fn batches(builder: ConsumerBuilder) -> (String, Vec<usize>) {
    let seen = Seen::default();
    let record = seen.clone();
    let consumer = builder
        .shared_batches(move |batch| {
            record.push(batch.len());
            Ok(())
        })
        .start()
        .unwrap();
    consumer.drain(PATIENCE).unwrap();
    (consumer.name().to_owned(), seen.all())
}

#[test]
fn a_consumer_begins_with_its_entry_and_code_goes_before_it() {
    let server = server();
    let entry = |name: &str, size| ConsumerSettings::new("two").consumer(name).batch_size(size);
    let settings = settings(&server.url(), "one", 1)
        .with_topic("two", TopicSettings::default().partitions(1))
        .with_topic("free", TopicSettings::default().partitions(1))
        .consumer("root")
        .with_consumer(ConsumerSettings::new("one").consumer("only").batch_size(3))
        .with_consumer(entry("left", 2))
        .with_consumer(entry("right", 4));
    let streams = Streams::open(settings).unwrap();
    for topic in ["one", "two", "free"] {
        publish(&streams, topic, 0..6);
    }
    let named = |(name, sizes): (String, Vec<usize>), want: &str, want_sizes: &[usize]| {
        assert_eq!((&*name, &*sizes), (want, want_sizes));
    };
    named(batches(streams.consumer("one")), "only", &[3, 3]);
    named(batches(streams.consumer("one").name("else")), "else", &[6]);
    named(
        batches(streams.consumer("one").name("code").batch_size(5)),
        "code",
        &[5, 1],
    );
    named(batches(streams.consumer_at(1).unwrap()), "left", &[2, 2, 2]);
    named(
        batches(streams.consumer("two").name("right")),
        "right",
        &[4, 2],
    );
    named(batches(streams.consumer("free")), "root", &[6]);
    let at = streams.consumer_at(2).unwrap().name("other").batch_size(6);
    named(batches(at), "other", &[6]);

    let e = recording(streams.consumer("two"), &Seen::default())
        .start()
        .unwrap_err();
    for part in ["Consumers[1]", "Consumers[2]"] {
        assert!(
            e.kind() == ErrorKind::Config && e.to_string().contains(part),
            "{e}"
        );
    }
    let e = streams.consumer_at(3).unwrap_err();
    assert!(e.to_string().contains("3 entries"), "{e}");
}

#[test]
fn one_name_runs_once_at_a_time_in_a_process() {
    let (server, elsewhere) = (server(), server());
    let streams = open(&server.url(), "once", 1);
    let start = |streams: &Streams, topic: &str, name: &str| {
        recording(streams.consumer(topic).name(name), &Seen::default()).start()
    };
    let first = start(&streams, "once", "c").unwrap();
    // the second `Streams` of a process is no way round it
    for again in [&streams, &open(&server.url(), "once", 1)] {
        let e = start(again, "once", "c").unwrap_err();
        assert!(
            e.kind() == ErrorKind::Config && e.to_string().contains("\"c\""),
            "{e}"
        );
    }
    let others = [
        start(&streams, "once", "d").unwrap(),
        start(&streams, "twice", "c").unwrap(),
        start(&open(&elsewhere.url(), "once", 1), "once", "c").unwrap(),
    ];
    for _ in 0..20 {
        let next = start(&streams, "once", "c");
        assert!(next.is_err());
    }
    first.stop();
    drop(first);
    for _ in 0..10 {
        let next = start(&streams, "once", "c").expect("its predecessor is gone");
        next.stop();
    }
    drop(others);
}

#[test]
fn bad_settings_are_refused_at_start_by_name_and_all_at_once() {
    let server = server();
    let streams = open(&server.url(), "bad", 1);
    let builder = || streams.consumer("bad").name("c");
    let ms = std::time::Duration::from_millis;
    for (builder, keys) in [
        (builder().batch_size(0), &["BatchSize"][..]),
        (builder().block(ms(0)), &["BlockMs"]),
        (builder().persist(Persist::None), &["Persist", "StartFrom"]),
        (
            builder().start_from(StartFrom::Date),
            &["StartFrom", "StartFromDate"],
        ),
        (
            builder().persist_interval(ms(0)).batch_bytes(1),
            &["PersistIntervalMs", "BatchBytes"],
        ),
        (
            builder().shutdown_timeout(ms(0)).block(ms(0)).batch_size(0),
            &["ShutdownTimeoutSeconds", "BlockMs", "BatchSize"],
        ),
        (builder().name("a{b"), &["a{b"]),
        (streams.consumer(""), &["Topic"]),
    ] {
        let e = recording(builder, &Seen::default()).start().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Config, "{e}");
        for key in keys {
            assert!(e.to_string().contains(key), "{key}: {e}");
        }
    }
    let keys = server.command(&["KEYS", "*"]).unwrap();
    assert!(keys.items().is_empty(), "nothing was touched: {keys:?}");
}

fn meta(server: &PrivateServer, topic: &str, field: &str) -> String {
    let key = format!("re:m:{{{topic}}}");
    server.command(&["HGET", &key, field]).unwrap().text()
}

/// How many partitions a consumer of the topic has.
fn lanes(streams: &Streams, topic: &str) -> Result<usize> {
    let consumer = recording(streams.consumer(topic).name("c"), &Seen::default());
    Ok(consumer.start()?.partitions().len())
}

#[test]
fn a_topic_is_made_by_whoever_needs_it_first() {
    let server = server();
    let streams = Streams::connect(server.url()).unwrap();
    streams
        .publisher("published")
        .unwrap()
        .publish("k", "T", "x")
        .unwrap();
    assert_eq!(lanes(&streams, "consumed").unwrap(), 2);
    for topic in ["published", "consumed"] {
        assert_eq!(meta(&server, topic, "partitions"), "2", "{topic}");
        assert_eq!(meta(&server, topic, "v"), "1");
        assert_eq!(meta(&server, topic, "maxLen"), "10000");
        let created = meta(&server, topic, "createdUtc");
        assert!(
            created.len() == 33 && created.ends_with("+00:00"),
            "{created}"
        );
        for p in 0..2 {
            let key = format!("re:s:{{{topic}}}:{p}");
            assert_eq!(server.command(&["TYPE", &key]).unwrap().text(), "stream");
            assert!(
                server
                    .command(&["XINFO", "GROUPS", &key])
                    .unwrap()
                    .items()
                    .is_empty()
            );
        }
        lanes(&streams, topic).unwrap();
        assert_eq!(meta(&server, topic, "createdUtc"), created, "once");
    }
}

#[test]
fn the_recorded_number_of_partitions_holds_and_only_grows() {
    let server = server();
    server
        .command(&["HSET", "re:m:{count}", "partitions", "5", "v", "1"])
        .unwrap();
    let default = Streams::connect(server.url()).unwrap();
    assert_eq!(lanes(&default, "count").unwrap(), 5);
    let fewer = open(&server.url(), "count", 4);
    for e in [
        lanes(&fewer, "count").unwrap_err(),
        fewer
            .publisher("count")
            .unwrap()
            .publish("k", "T", "x")
            .unwrap_err(),
    ] {
        let told = e.to_string();
        assert_eq!(e.kind(), ErrorKind::Config);
        assert!(
            ["\"count\"", "5", "4"].iter().all(|t| told.contains(t)),
            "{told}"
        );
    }
    assert_eq!(meta(&server, "count", "partitions"), "5");

    let before = publish_to(&default, "count", 4, &["kept"]);
    let more = open(&server.url(), "count", 8);
    let seen = Seen::default();
    let consumer = recording(more.consumer("count").name("c"), &seen)
        .start()
        .unwrap();
    assert_eq!(meta(&server, "count", "partitions"), "8");
    assert_eq!(
        logged(&["WARN topic count:", "increased from 5 to 8", "ordering"]).len(),
        1
    );
    publish_to(&more, "count", 7, &["new"]);
    consumer.drain(PATIENCE).unwrap();
    let mut seen = seen.all();
    seen.sort();
    assert_eq!(seen, ["kept", "new"]);
    assert_eq!(stored(&server, "count", "c", 4), before.first().copied());
}

#[test]
fn another_version_of_the_format_is_refused() {
    let server = server();
    server
        .command(&["HSET", "re:m:{future}", "partitions", "1", "v", "2"])
        .unwrap();
    let streams = Streams::connect(server.url()).unwrap();
    for e in [
        lanes(&streams, "future").unwrap_err(),
        streams
            .publisher("future")
            .unwrap()
            .publish("k", "T", "x")
            .unwrap_err(),
    ] {
        assert!(
            e.kind() == ErrorKind::Config && e.to_string().contains("version 2"),
            "{e}"
        );
    }
    let keys = server.command(&["KEYS", "*"]).unwrap();
    assert_eq!(keys.items().len(), 1, "nothing was made: {keys:?}");
}

#[test]
fn advice_about_the_server_is_given_once() {
    listen_to_the_log();
    let server = PrivateServer::builder()
        .config("maxmemory 100mb")
        .config("maxmemory-policy allkeys-lru");
    let server = server.start().unwrap();
    let streams = Streams::connect(server.url()).unwrap();
    lanes(&streams, "advice").unwrap();
    let socket = server.socket_path();
    let socket = socket.to_str().unwrap();
    for text in ["nothing on disk", "maxmemory-policy is allkeys-lru"] {
        let lines = logged(&["WARN", socket, text]);
        assert_eq!(lines.len(), 1, "{text}: {lines:?}");
    }
    let careful = PrivateServer::builder().aof(testing::Aof::EverySecond);
    let careful = careful.start().unwrap();
    Streams::connect(careful.url()).unwrap();
    let lines = logged(&["WARN", careful.socket_path().to_str().unwrap()]);
    assert!(lines.is_empty(), "{lines:?}");
}

#[test]
fn a_password_is_used_and_never_shown() {
    listen_to_the_log();
    let secret = "hunter2-of-this-test";
    let server = PrivateServer::builder().password(secret).start().unwrap();
    let socket = server.socket_path();
    let socket = socket.to_str().unwrap();
    let plain = format!("redis+unix://{socket}");
    let settings = |password: &str| {
        Settings::default()
            .connection_string(&*plain)
            .password(password)
    };
    for streams in [
        Streams::connect(server.url()).unwrap(),
        Streams::open(settings(secret)).unwrap(),
    ] {
        assert_eq!(lanes(&streams, "secret").unwrap(), 2);
        assert!(!format!("{streams:?} {:?}", streams.settings()).contains(secret));
    }
    let lines = logged(&["INFO streamlane", "ConnectionString", socket]);
    assert_eq!(
        lines.len(),
        2,
        "one line tells the settings in effect: {lines:?}"
    );
    let wrong = "wrong-guess-of-this-test";
    let e = Streams::open(settings(wrong)).unwrap_err();
    assert_eq!(e.server_class(), Some(ServerClass::Auth), "{e}");
    assert!(!format!("{e} {e:?}").contains(wrong));
    assert!(logged(&[secret]).is_empty() && logged(&[wrong]).is_empty());
}

#[test]
fn connections_say_who_they_are() {
    let server = server();
    let streams = open(&server.url(), "named", 2);
    let consumer = recording(streams.consumer("named").name("billing"), &Seen::default());
    let consumer = consumer.start().unwrap();
    running(&consumer);
    publish(&streams, "named", 0..1);
    expect("the position to be stored", || {
        (0..2).any(|p| stored(&server, "named", "billing", p) > Some(StreamId::MIN))
    });
    let list = server.command(&["CLIENT", "LIST"]).unwrap().text();
    let pod = list
        .lines()
        .find_map(|l| {
            l.split("name=streams-rd:named:billing:p0:")
                .nth(1)?
                .split(' ')
                .next()
        })
        .unwrap_or_default()
        .to_owned();
    assert!(!pod.is_empty(), "{list}");
    for name in [
        format!("streams-rd:named:billing:p1:{pod}"),
        format!("streams-positions:named:billing:{pod}"),
    ] {
        assert!(list.contains(&format!("name={name} ")), "{name} in {list}");
    }
}
