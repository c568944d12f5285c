//! What is refused, and how it is said.

use std::process::Stdio;

use streamlane::testing::PrivateServer;

use crate::support::*;

/// A run of every command that asks a server.
const ASKING: &[&[&str]] = &[
    &["publish", "t", "--type", "T", "body"],
    &["doctor"],
    &["bench"],
    &["status", "t", "c"],
    &["watch", "t", "c", "--times", "1"],
    &["topics", "list"],
    &["topics", "describe", "t"],
    &["topics", "create", "t"],
    &["topics", "grow", "t", "3"],
    &["topics", "delete", "t", "--yes"],
    &["topics", "adopt"],
    &["trim", "t", "--max-len", "1", "--yes"],
    &["tail", "t"],
    &["entry", "t", "0", "1-0"],
    &["pending", "t", "c"],
    &["consumers", "list", "t"],
    &["consumers", "forget", "t", "c", "--yes"],
    &["ownership", "t", "c"],
    &["reset", "t", "c", "--to", "end"],
    &["dead-letters", "list", "t", "c"],
    &["dead-letters", "show", "t", "c", "1-0"],
    &[
        "dead-letters",
        "replay",
        "t",
        "c",
        "1-0",
        "--to",
        "everyone",
        "--yes",
    ],
    &["dead-letters", "delete", "t", "c", "1-0", "--yes"],
];

#[test]
fn a_dead_server_is_status_2_and_named() {
    let server = server();
    let place = server.socket_path().display().to_string();
    server.kill();
    for args in ASKING {
        for json in [&[][..], &["--json"]] {
            let complaint = run(&server, &[args, json].concat()).complaint(2);
            assert!(complaint.contains(&place), "{args:?}: {complaint}");
        }
    }
}

#[test]
fn a_wrong_password_is_status_2_and_never_printed() {
    let server = PrivateServer::builder()
        .tcp()
        .password("right-one")
        .start()
        .unwrap();
    let port = server.port();
    for url in [
        format!("redis://:hush-hush@127.0.0.1:{port}"),
        format!("127.0.0.1:{port},password=hush-hush"),
    ] {
        for args in ASKING {
            let out = program(args).args(["--url", &url, "-v"]).output().unwrap();
            let complaint = Said::of(&out).complaint(2);
            assert!(complaint.contains("WRONGPASS"), "{args:?}: {complaint}");
            assert!(!complaint.contains("hush"), "{args:?}: {complaint}");
        }
    }
    // Not in what it refuses to understand, either.
    let out = program(&["ownership", "t", "c", "--url", "nonsense://:hush-hush@h"])
        .output()
        .unwrap();
    let complaint = Said::of(&out).err;
    assert!(!complaint.contains("hush"), "{complaint}");
}

#[test]
fn no_server_is_status_64_and_says_how_to_name_one() {
    for args in ASKING {
        let mut command = program(args);
        for name in [
            "STREAMS__CONNECTIONSTRING",
            "Streams__ConnectionString",
            "STREAMS__URL",
        ] {
            command.env_remove(name);
        }
        let complaint = Said::of(&command.output().unwrap()).complaint(64);
        for words in ["--url", "--settings", "STREAMS__CONNECTIONSTRING"] {
            assert!(complaint.contains(words), "{args:?}: {complaint}");
        }
    }
}

#[test]
fn a_server_may_come_from_the_environment_or_a_file_and_the_prefix_from_either() {
    let server = server();
    drop(filled(&server, "places", 2, 1));
    let ownership = |extra: &[&str], env: &[(&str, &str)]| {
        let mut command = program(&["ownership", "places", "c", "--json"]);
        command.args(extra).envs(env.iter().copied());
        let map = Said::of(&command.output().unwrap()).object(1);
        map["partitions"].as_array().unwrap().len()
    };
    let url = server.url();
    assert_eq!(ownership(&[], &[("STREAMS__CONNECTIONSTRING", &url)]), 2);
    let file = server.dir().join("settings.json");
    let text =
        format!(r#"{{ "Streams": {{ "ConnectionString": "{url}", "KeyPrefix": "other:" }} }}"#);
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    // the topic of another prefix is another topic
    assert_eq!(ownership(&["--settings", file], &[]), 0);
    assert_eq!(ownership(&["--settings", file, "--prefix", "re:"], &[]), 2);
    // code over the environment over the file
    assert_eq!(
        ownership(&["--settings", file], &[("STREAMS_KEY_PREFIX", "re:")]),
        2
    );

    let complaint = run(
        &server,
        &["ownership", "t", "c", "--settings", "/nowhere.json"],
    )
    .complaint(64);
    assert!(complaint.contains("/nowhere.json"), "{complaint}");
    std::fs::write(file, r#"{ "Streams": { "Nonsense": 1 } }"#).unwrap();
    let complaint = run(&server, &["ownership", "t", "c", "--settings", file]).complaint(64);
    assert!(complaint.contains("Nonsense"), "{complaint}");
}

#[test]
fn words_that_mean_nothing_are_status_64() {
    let server = server();
    for args in [
        &["nonsense"][..],
        &[],
        &["publish", "t"],
        &["publish", "t", "--type", "T", "--lines", "body"],
        &["publish", "t", "--type", "T", "--header", "no-value"],
        &["reset", "t", "c"],
        &["reset", "t", "c", "--to", "yesterday"],
        &["dead-letters", "replay", "t", "c", "--to", "everyone"],
        &[
            "dead-letters",
            "replay",
            "t",
            "c",
            "1-0",
            "--all",
            "--to",
            "everyone",
        ],
        &["dead-letters", "delete", "t", "c", "1-0", "--type", "T"],
        &["dead-letters", "list", "t", "c", "--reason", "bad-luck"],
        &["ownership", "t", "c", "--timeout", "5"],
    ] {
        assert_eq!(run(&server, args).status, 64, "{args:?}");
    }
}

#[test]
fn who_stops_reading_is_no_failure() {
    let server = server();
    drop(filled(&server, "piped", 1, 1));
    let mut child = at(&server, &["publish", "piped", "--type", "T", "--lines"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut stdin = child.stdin.take().unwrap();
    let _ = std::io::Write::write_all(&mut stdin, "line\n".repeat(20_000).as_bytes());
    drop(stdin);
    assert_eq!(
        Said::of(&child.wait_with_output().unwrap()).complaint(0),
        ""
    );
}
