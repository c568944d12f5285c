//! What is compared with what.

/// What cargo linked.
const LOCK: &str = include_str!("../Cargo.lock");

/// The clients with their versions.
pub(crate) fn clients() -> String {
    let names = ["redis", "fred", "sea-streamer-redis", "tokio"];
    let mut all = vec![format!("streamlane {}", of("streamlane"))];
    all.extend(names.map(|name| format!("{name} {}", of(name))));
    all.push(match option_env!("HIREDIS_VERSION") {
        Some(version) => format!("hiredis {version}"),
        None => "no hiredis (feature `hiredis`)".into(),
    });
    all.join(", ")
}

/// The version of a crate of which there is only one.
fn of(name: &str) -> &'static str {
    let head = format!("name = \"{name}\"\nversion = \"");
    let version = LOCK.split_once(&head).map_or("", |(_, rest)| rest);
    version.split('"').next().unwrap_or_default()
}
