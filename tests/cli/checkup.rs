//! `streamlane doctor` and `streamlane bench`.

use serde_json::Value;
use streamlane::testing::{Aof, PrivateServer};

use crate::support::*;

/// What it says of one thing, the worst first.
fn of<'a>(findings: &'a [Value], check: &str) -> Vec<&'a Value> {
    let mut found: Vec<_> = findings.iter().filter(|f| f["check"] == check).collect();
    found.sort_by_key(|f| f["verdict"] != "fix");
    assert!(!found.is_empty(), "no {check} in {findings:?}");
    found
}

#[test]
fn a_server_that_is_fit_is_well_and_what_is_said_is_so() {
    let server = PrivateServer::builder()
        .aof(Aof::EverySecond)
        .start()
        .unwrap();
    ask(&server, "CONFIG SET maxmemory 500mb");
    let before = ask(&server, "INFO keyspace").text();
    let findings = run(&server, &["doctor", "--json"]).objects(0);
    let info = ask(&server, "INFO server").text();
    let version = |name: &str| {
        let line = info.lines().find_map(|l| l.strip_prefix(name))?;
        line.strip_prefix(':').map(|v| v.trim().to_owned())
    };
    let version = version("valkey_version")
        .or_else(|| version("redis_version"))
        .unwrap();
    assert!(
        of(&findings, "version")[0]["what"]
            .as_str()
            .unwrap()
            .ends_with(&version)
    );
    for check in [
        "version",
        "role",
        "persistence",
        "memory",
        "eviction",
        "connections",
        "rights",
        "clock",
    ] {
        for found in of(&findings, check) {
            assert_eq!(
                (&found["verdict"], &found["fix"]),
                (&"ok".into(), &().into()),
                "{found}"
            );
        }
    }
    assert_eq!(of(&findings, "rights").len(), 4);
    for check in ["latency", "waiting"] {
        assert!(
            of(&findings, check)[0]["what"]
                .as_str()
                .unwrap()
                .contains("(p99)")
        );
    }
    let text = run(&server, &["doctor"]).well(0);
    assert!(
        text.contains("ok    version") && text.contains("Nothing must be fixed"),
        "{text}"
    );
    // it only looked
    assert_eq!(ask(&server, "INFO keyspace").text(), before);
}

#[test]
fn what_would_lose_something_must_be_fixed() {
    let server = PrivateServer::builder()
        .config("save \"\"")
        .start()
        .unwrap();
    drop(filled(&server, "fading", 2, 10));
    for setting in [
        "maxmemory 100mb",
        "maxmemory-policy allkeys-lru",
        "timeout 500",
    ] {
        ask(&server, &format!("CONFIG SET {setting}"));
    }
    ask(&server, "PEXPIRE re:s:{fading}:1 3600000");
    let findings = run(&server, &["doctor", "fading", "nowhere", "--json"]).objects(1);
    for (check, words, fix) in [
        ("persistence", "nothing on disk", "appendonly yes"),
        ("eviction", "allkeys-lru", "noeviction"),
        (
            "topic",
            "re:s:{fading}:1 expires",
            "PERSIST re:s:{fading}:1",
        ),
    ] {
        let found = of(&findings, check)[0];
        assert_eq!(found["verdict"], "fix", "{found}");
        assert!(found["what"].as_str().unwrap().contains(words), "{found}");
        assert!(found["fix"].as_str().unwrap().contains(fix), "{found}");
    }
    assert!(
        of(&findings, "topic")
            .iter()
            .any(|f| f["what"] == "there is no topic \"nowhere\"")
    );
    assert_eq!(of(&findings, "idle")[0]["verdict"], "note");
    let text = run(&server, &["doctor", "fading"]).well(1);
    assert!(
        text.contains("FIX   persistence") && text.contains("3 thing(s) must be fixed"),
        "{text}"
    );

    // and what was fixed is well
    ask(&server, "CONFIG SET appendonly yes");
    ask(&server, "CONFIG SET maxmemory-policy noeviction");
    ask(&server, "PERSIST re:s:{fading}:1");
    run(&server, &["doctor", "fading"]).well(0);
}

#[test]
fn a_replica_is_told_and_not_waited_for() {
    let server = server();
    ask(&server, "REPLICAOF 127.0.0.1 1");
    let said = run(&server, &["doctor"]);
    assert!(
        said.status == 2 && said.err.contains("the server is a replica"),
        "{said:?}"
    );
}

#[test]
fn rights_are_those_of_the_user_whether_it_may_ask_or_not() {
    let server = server();
    for rule in [
        "svc on >pw ~re:* +@all -xadd",
        "poor on >pw ~re:* +ping +hello +xread",
        "narrow on >pw ~other:* +@all",
    ] {
        ask(&server, &format!("ACL SETUSER {rule}"));
    }
    let fixes = |findings: &[Value]| -> Vec<String> {
        let fix = |f: &&Value| f["fix"].as_str().unwrap_or_default().to_owned();
        of(findings, "rights").iter().map(fix).collect()
    };
    let findings = run(&server, &["doctor", "--json", "--user", "svc"]).objects(1);
    assert!(
        fixes(&findings)[0].starts_with("ACL SETUSER svc +xadd and"),
        "{findings:?}"
    );
    assert_eq!(
        of(&findings, "rights")
            .iter()
            .filter(|f| f["verdict"] == "ok")
            .count(),
        3
    );
    // keys of another prefix
    let findings = run(&server, &["doctor", "--json", "--user", "narrow"]).objects(1);
    assert!(
        of(&findings, "rights")
            .iter()
            .filter(|f| f["verdict"] == "fix")
            .count()
            == 2,
        "{findings:?}"
    );
    run(&server, &["doctor", "--user", "svc", "--prefix", "re:x:"]).well(1);

    // one that may ask for nothing sees what it is refused
    let path = server.socket_path();
    let url = format!("redis+unix://{}?user=poor&pass=pw", path.display());
    let out = program(&["doctor", "--json", "--url", &url])
        .output()
        .unwrap();
    let findings = Said::of(&out).objects(1);
    let fixes = fixes(&findings);
    assert!(fixes[0].contains("+xadd +hmget +eval"), "{fixes:?}");
    assert!(!fixes.iter().any(|f| f.contains("+xread ")), "{fixes:?}");
    for check in ["version", "persistence", "memory", "clock"] {
        assert_eq!(
            of(&findings, check)[0]["verdict"],
            "unknown",
            "{findings:?}"
        );
    }
    assert_eq!(number(&server, "DBSIZE"), 0);
}

#[test]
fn a_bench_measures_and_leaves_nothing_behind() {
    let server = server();
    let args = [
        "bench",
        "--messages",
        "3000",
        "--size",
        "64",
        "--partitions",
        "2",
    ];
    let figures = run(&server, &[&args[..], &["--json"]].concat()).object(0);
    assert_eq!(
        (
            &figures["messages"],
            &figures["size"],
            &figures["partitions"]
        ),
        (&3000.into(), &64.into(), &2.into())
    );
    assert_eq!(figures["single"]["messages"], 300);
    assert_eq!(figures["batches"]["messages"], 2700);
    assert_eq!(figures["handled"]["messages"], 3000);
    for (phase, figure) in [
        ("single", "per_s"),
        ("batches", "per_s"),
        ("handled", "per_s"),
        ("batches", "p99_us"),
    ] {
        assert!(figures[phase][figure].as_u64().unwrap() > 0, "{figures}");
    }
    // the server saw as many
    let stats = ask(&server, "INFO commandstats").text();
    assert!(stats.contains("cmdstat_xadd:calls=3000,"), "{stats}");
    assert_eq!(number(&server, "DBSIZE"), 0);
    let text = run(&server, &args).well(0);
    assert!(
        text.contains("published one at a time") && text.contains("handled"),
        "{text}"
    );
    assert_eq!(number(&server, "DBSIZE"), 0);
    for args in [["bench", "--messages", "1"], ["bench", "--partitions", "0"]] {
        assert_eq!(run(&server, &args).status, 64);
    }
}
