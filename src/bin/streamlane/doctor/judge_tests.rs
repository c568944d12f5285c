use super::*;

fn facts(info: &[(&str, &str)], config: &[(&str, &str)]) -> Facts {
    let map = |pairs: &[(&str, &str)]| {
        pairs
            .iter()
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
            .collect()
    };
    Facts {
        info: map(info),
        config: map(config),
        ..Facts::default()
    }
}

fn verdict(all: &[Finding], check: &str) -> Verdict {
    let found = all.iter().find(|f| f.check == check);
    found
        .unwrap_or_else(|| panic!("no {check} in {all:?}"))
        .verdict
}

use Verdict::{Fix, Note, Ok as Fine, Unknown};

#[test]
fn versions_that_break_things_are_known() {
    for (field, text, expected) in [
        ("redis_version", "7.0.15", Fine),
        ("redis_version", "6.2.14", Fix),
        ("redis_version", "7.0.3", Fix),
        ("redis_version", "7.0.4", Fix),
        ("redis_version", "7.0.5", Fine),
        ("redis_version", "8.2.0", Fix),
        ("redis_version", "8.2.1", Fix),
        ("redis_version", "8.2.2", Fix),
        ("redis_version", "8.2.3", Fine),
        ("redis_version", "8.4-rc1", Fine),
        ("valkey_version", "8.2.1", Fine),
        ("redis_version", "unstable", Unknown),
    ] {
        // Valkey says so beside a version of Redis that it is like.
        let found = version(&facts(&[("redis_version", "7.2.4"), (field, text)], &[]));
        assert_eq!(found.verdict, expected, "{field} {text}: {found:?}");
    }
    assert_eq!(version(&Facts::default()).verdict, Unknown);
}

#[test]
fn what_would_be_lost_is_said() {
    for (config, expected) in [
        (&[("save", ""), ("appendonly", "no")][..], Fix),
        (&[("save", "3600 1"), ("appendonly", "no")], Note),
        (
            &[
                ("save", ""),
                ("appendonly", "yes"),
                ("appendfsync", "everysec"),
            ],
            Fine,
        ),
        (
            &[("save", ""), ("appendonly", "yes"), ("appendfsync", "no")],
            Note,
        ),
        (&[], Unknown),
    ] {
        assert_eq!(
            verdict(&persistence(&facts(&[], config)), "persistence"),
            expected,
            "{config:?}"
        );
    }
    for field in [
        "rdb_last_bgsave_status",
        "aof_last_write_status",
        "aof_last_bgrewrite_status",
    ] {
        assert_eq!(
            verdict(&persistence(&facts(&[(field, "err")], &[])), "disk"),
            Fix
        );
        assert_eq!(persistence(&facts(&[(field, "ok")], &[])).len(), 1);
    }
}

#[test]
fn memory_and_what_is_deleted_when_it_is_short() {
    let mb = |n: u64| (n << 20).to_string();
    let (limit, low, high) = (mb(100), mb(89), mb(90));
    for (used, limit, expected) in [
        (&low, &*limit, Fine),
        (&high, &limit, Fix),
        (&high, "0", Note),
    ] {
        let found = memory(&facts(&[("used_memory", used)], &[("maxmemory", limit)]));
        assert_eq!(verdict(&found, "memory"), expected, "{used} of {limit}");
    }
    for (policy, limit, evicted, expected) in [
        ("noeviction", "1", "0", Fine),
        ("allkeys-lru", "1", "0", Fix),
        ("volatile-ttl", "1", "0", Fix),
        ("allkeys-lru", "0", "0", Note),
        ("allkeys-lru", "0", "3", Fix),
    ] {
        let config = [("maxmemory-policy", policy), ("maxmemory", limit)];
        let found = memory(&facts(&[("evicted_keys", evicted)], &config));
        assert_eq!(
            verdict(&found, "eviction"),
            expected,
            "{policy} {limit} {evicted}"
        );
    }
    let silent = memory(&Facts::default());
    assert_eq!(
        (verdict(&silent, "memory"), verdict(&silent, "eviction")),
        (Unknown, Unknown)
    );
}

#[test]
fn who_it_is_and_how_many_it_serves() {
    for (info, expected) in [
        (&[("role", "master")][..], Fine),
        (&[("role", "slave")], Fix),
        (&[("role", "master"), ("cluster_enabled", "1")], Fix),
        (&[], Unknown),
    ] {
        assert_eq!(role(&facts(info, &[])).verdict, expected, "{info:?}");
    }
    for (clients, expected) in [("79", Fine), ("80", Fix)] {
        let found = connections(&facts(
            &[("connected_clients", clients), ("maxclients", "100")],
            &[],
        ));
        assert_eq!(verdict(&found, "connections"), expected);
    }
    assert_eq!(
        verdict(&connections(&facts(&[], &[("timeout", "300")])), "idle"),
        Note
    );
    assert!(connections(&facts(&[], &[("timeout", "0")])).is_empty());
}

#[test]
fn rights_that_a_service_lacks_must_be_granted() {
    let right = |role, command, held| Right {
        role,
        command,
        held,
    };
    let no = || Held::No("no permissions".into());
    let found = rights(
        Some("svc"),
        &[
            right(Role::Publish, "XADD", Held::Yes),
            right(Role::Publish, "HSET", Held::Unknown),
            right(Role::Consume, "XREAD", no()),
            right(Role::Consume, "EVAL", no()),
            right(Role::Queue, "XACK", no()),
            right(Role::Operate, "INFO", Held::Unknown),
        ],
    );
    let verdicts: Vec<_> = found.iter().map(|f| f.verdict).collect();
    assert_eq!(verdicts, [Fine, Fix, Note, Unknown]);
    assert!(
        found[1]
            .fix
            .as_ref()
            .unwrap()
            .contains("ACL SETUSER svc +xread +eval "),
        "{found:?}"
    );
}

#[test]
fn clocks_and_answers_have_bounds() {
    for (ahead_ms, within_ms, expected) in [
        (0, 1, Fine),
        (999, 0, Fine),
        (1_000, 0, Note),
        (-1_000, 0, Note),
        (1_400, 500, Fine),
        (-29_999, 0, Note),
        (30_000, 0, Fix),
        (-30_000, 0, Fix),
    ] {
        let found = clock(Some(Clock {
            ahead_ms,
            within_ms,
        }));
        assert_eq!(found.verdict, expected, "{ahead_ms} {within_ms}");
    }
    assert_eq!(clock(None).verdict, Unknown);
    for (us, expected) in [(9_999, Fine), (10_000, Note), (10_000_000, Note)] {
        let took = Duration::from_micros(us);
        let found = latency(
            "latency",
            "",
            SLOW,
            Some(Latency {
                p50: took,
                p99: took,
                most: took,
            }),
        );
        assert_eq!(found.verdict, expected, "{us}");
    }
    assert_eq!(latency("latency", "", SLOW, None).verdict, Unknown);
}

#[test]
fn keys_of_topics_must_not_expire() {
    let of = |partitions, expiring: &[(&str, u64)]| {
        let expiring = expiring
            .iter()
            .map(|(k, s)| ((*k).to_owned(), Duration::from_secs(*s)))
            .collect();
        topic(&Topic {
            name: "orders".into(),
            partitions,
            expiring,
        })
    };
    assert_eq!(verdict(&of(0, &[]), "topic"), Fix);
    assert_eq!(verdict(&of(2, &[]), "topic"), Fine);
    let found = of(2, &[("a", 60), ("b", 1)]);
    assert_eq!(found.len(), 2);
    assert_eq!(
        found[1].fix.as_ref().unwrap(),
        "PERSIST b, and find out who set that"
    );
}
