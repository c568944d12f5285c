//! The modules of the crate lie in layers, and each uses only what lies above it.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// From the top down; programs (`src/bin`) are below all of it, for they see only what is public. Modules of one line do not know one another, but for the last: a consumer is
/// described through `streams` and keeps it alive, so those two are one story in two files.
///
/// Two lines are finer than a coarse reading of the layers would have it: a rate limit is measured on
/// the clock, and a policy decides about the actions that a handler can ask for.
const LAYERS: [&[&str]; 13] = [
    &["error", "clock", "backoff", "sync"],
    &["quiet", "fence"],
    &["settings", "net", "wire"],
    &["batch", "position", "monitor", "trims"],
    &["handler", "trace"],
    &["policy"],
    &["publish", "ownership"],
    &["consume"],
    &["queue"],
    &["retention"],
    &["observe", "admin"],
    &["fuzzing", "testing"],
    &["streams", "consumer"],
];

/// The most lines of a file, its unit tests aside.
const MOST_LINES: usize = 600;

/// Runtimes and what they are built on. None may come along with the default features.
const ASYNC: [&str; 11] = [
    "tokio",
    "async-std",
    "smol",
    "futures-executor",
    "futures-util",
    "futures-core",
    "async-io",
    "async-executor",
    "mio",
    "polling",
    "glommio",
];

#[test]
fn every_module_uses_only_layers_above_its_own() {
    let root = Root::read();
    let mut wrong = Vec::new();
    let mut edges = 0;
    for file in sources() {
        let module = module_of(&file);
        if module == "bin" {
            continue; // there, `crate` is the program
        }
        for used in root.uses(&code_of(&file)) {
            edges += 1;
            if !may_use(&module, &used) {
                wrong.push(format!("{}: {module} uses {used}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(edges > 100, "only {edges} uses were found");
}

#[test]
fn every_module_has_its_place() {
    let placed: BTreeSet<&str> = LAYERS.iter().flat_map(|l| l.iter().copied()).collect();
    for module in Root::read().modules {
        assert!(placed.contains(&*module), "{module} is in no layer");
    }
}

#[test]
fn no_path_goes_around_the_crate_root() {
    for file in sources() {
        let depth = file.strip_prefix(src()).unwrap().components().count();
        let stem = file.file_stem().unwrap();
        let way_out = match depth {
            1 => "super::",
            2 if stem == "mod" => "super::",
            2 => "super::super::",
            _ => continue,
        };
        let code = code_of(&file);
        let at = code.lines().find(|l| l.contains(way_out));
        assert!(at.is_none(), "{}: {at:?}: say crate::", file.display());
    }
}

#[test]
fn a_use_is_found_however_it_is_written() {
    let root = Root {
        modules: ["net", "wire", "batch"].map(String::from).into(),
        exports: BTreeMap::from([("Message".into(), "batch".into())]),
    };
    let uses = |code| root.uses(code).into_iter().collect::<Vec<_>>().join(" ");
    assert_eq!(uses("use crate::net::{Socket, resp::Span};"), "net");
    assert_eq!(
        uses("use crate::{\n    Message,\n    wire::{Keys, x::{a, b}},\n};"),
        "batch wire"
    );
    assert_eq!(
        uses("fn f(m: crate::Message) -> $crate::net::X {}"),
        "batch net"
    );
    assert_eq!(uses("use crate::{net as n, wire};"), "net wire");
    assert!(!may_use("wire", "net") && !may_use("net", "batch") && !may_use("quiet", "handler"));
    assert!(may_use("batch", "wire") && may_use("net", "net") && may_use("streams", "consumer"));
}

#[test]
fn every_file_tells_one_story() {
    for file in sources() {
        let lines = code_of(&file).lines().count();
        assert!(lines <= MOST_LINES, "{} has {lines} lines", file.display());
    }
}

#[test]
fn no_async_runtime_comes_along() {
    let cargo = env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let tree = Command::new(cargo)
        .args(["tree", "-e", "normal", "--offline", "--prefix", "none"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let (out, err) = (tree.stdout, tree.stderr);
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&err));
    let out = String::from_utf8(out).unwrap();
    let names: BTreeSet<&str> = out.lines().filter_map(|l| l.split(' ').next()).collect();
    assert!(
        names.contains("streamlane") && names.contains("redis"),
        "{names:?}"
    );
    for runtime in ASYNC {
        assert!(!names.contains(runtime), "{runtime} is in the default tree");
    }
}

/// What `lib.rs` says: the modules there are, and the module each re-exported name comes from.
struct Root {
    modules: BTreeSet<String>,
    exports: BTreeMap<String, String>,
}

impl Root {
    fn read() -> Self {
        let code = code_of(&src().join("lib.rs"));
        let mut root = Self {
            modules: BTreeSet::new(),
            exports: BTreeMap::new(),
        };
        for line in code.lines() {
            let line = line.trim_start_matches("pub ");
            if let Some(module) = line.strip_prefix("mod ").and_then(|l| l.strip_suffix(';')) {
                root.modules.insert(module.to_owned());
            }
        }
        for export in code.split("pub use ").skip(1) {
            let export = export.split(';').next().unwrap();
            let (module, names) = export.split_once("::").unwrap();
            for name in names.split(|c: char| !c.is_alphanumeric() && c != '_') {
                root.exports.insert(name.to_owned(), module.to_owned());
            }
        }
        root
    }

    /// The modules whose names, or re-exported names, follow a `crate::` in the code.
    fn uses(&self, code: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for rest in code.split("crate::").skip(1) {
            for name in first_names(rest) {
                let module = self.modules.get(name).or_else(|| self.exports.get(name));
                let module = module.unwrap_or_else(|| panic!("{name} is unknown to lib.rs"));
                found.insert(module.clone());
            }
        }
        found
    }
}

/// The first name of each path in a tree of them, such as `a::b`, or `{a::{b, c}, d as e}`.
fn first_names(tree: &str) -> Vec<&str> {
    let name = |s| -> &str {
        let s: &str = str::trim_start(s);
        let end = s.find(|c: char| !c.is_alphanumeric() && c != '_');
        &s[..end.unwrap_or(s.len())]
    };
    let Some(group) = tree.strip_prefix('{') else {
        return vec![name(tree)];
    };
    let (mut depth, mut from, mut names) = (0, 0, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                names.push(name(&group[from..at]));
                from = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    names.retain(|n| !n.is_empty());
    names
}

fn may_use(module: &str, used: &str) -> bool {
    let layer = |m| LAYERS.iter().position(|l| l.contains(&m));
    let last = LAYERS.len() - 1;
    match (layer(module), layer(used)) {
        (Some(own), Some(other)) => other < own || module == used || (own == last && other == last),
        _ => false,
    }
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Every source file but `lib.rs` and files of tests.
fn sources() -> Vec<PathBuf> {
    let (mut found, mut dirs) = (Vec::new(), vec![src()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() {
                dirs.extend((name != "tests").then_some(path));
            } else if path.extension().is_some_and(|e| e == "rs")
                && name != "lib.rs"
                && !name.ends_with("tests.rs")
            {
                found.push(path);
            }
        }
    }
    assert!(found.len() > 50, "only {} files", found.len());
    found.sort();
    found
}

/// `src/net/socket.rs` and `src/net.rs` are both of `net`.
fn module_of(file: &Path) -> String {
    let inside = file.strip_prefix(src()).unwrap();
    let first = inside.components().next().unwrap().as_os_str();
    first.to_str().unwrap().trim_end_matches(".rs").to_owned()
}

/// A file's lines without comments, up to its unit tests.
fn code_of(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let end = ["\n#[cfg(test)]\nmod ", "\n#[cfg(all(test"]
        .iter()
        .filter_map(|tests| text.find(tests))
        .min();
    text[..end.unwrap_or(text.len())]
        .lines()
        .filter(|l| !l.trim_start().starts_with("//"))
        .collect::<Vec<_>>()
        .join("\n")
}
