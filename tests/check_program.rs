//! The program `streamlane-check`: its exit status and what it prints.

#![allow(clippy::unwrap_used)]

use std::{
    fs,
    path::PathBuf,
    process::{self, Command},
};

use streamlane::testing::{Event, Kind, Recorder};

/// Runs the program; returns exit status, standard output and standard error.
fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_streamlane-check"))
        .args(args)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (out.status.code(), text(out.stdout), text(out.stderr))
}

fn log(name: &str, events: &[Event<'_>]) -> PathBuf {
    let name = format!("streamlane-check-{}-{name}", process::id());
    let path = std::env::temp_dir().join(name);
    let _ = fs::remove_file(&path);
    Recorder::append(&path).unwrap().record_all(events).unwrap();
    path
}

fn event(kind: Kind, ms: u64, instance: &str) -> Event<'_> {
    Event {
        instance: instance.into(),
        time_ns: ms * 1_000_000,
        ..Event::now(kind, "orders", 0, (1, 1), b"k")
    }
}

#[test]
fn the_exit_status_tells_clean_from_faulty_from_unusable() {
    let published = log("published", &[event(Kind::Published, 1, "p")]);
    let handled = log("handled", &[event(Kind::Handled, 2, "a")]);
    let again = log("again", &[event(Kind::Handled, 7, "b")]);
    let noise = log("noise", &[]);
    fs::write(&noise, "noise\n").unwrap();
    let [p, h, a, n] = [&published, &handled, &again, &noise].map(|f| f.to_str().unwrap());

    let (status, out, _) = run(&[p, h]);
    assert_eq!(status, Some(0), "{out}");
    assert!(out.ends_with("clean\n"), "{out}");
    let (status, out, _) = run(&[p]);
    assert_eq!(status, Some(1), "{out}");
    assert!(out.contains("lost: 1\n  orders/0 1-1 key \"k\"\n"), "{out}");
    assert_eq!(run(&[p, h, a]).0, Some(1));
    assert_eq!(run(&["--doubles-within", "5", p, h, a]).0, Some(0));
    assert_eq!(run(&["--doubles-within", "4", p, h, a]).0, Some(1));
    assert_eq!(run(&[h]).0, Some(1));
    assert_eq!(run(&["--open", h]).0, Some(0));
    assert_eq!(run(&["--help"]).0, Some(0));

    for (args, complaint) in [
        (&[][..], "no log given"),
        (&[p, n], "not an event"),
        (&["/nowhere/at/all"], "No such file"),
        (&["--doubles-within", "x", p], "milliseconds"),
        (&["--what", p], "unknown option --what"),
    ] {
        let (status, out, err) = run(args);
        assert_eq!((status, out.as_str()), (Some(2), ""), "{err}");
        assert!(err.contains(complaint), "{err}");
    }
    for path in [published, handled, again, noise] {
        fs::remove_file(path).unwrap();
    }
}
