//! How many instructions a message costs, counted by valgrind's callgrind: `cargo bench --bench
//! instructions`. Instructions are the same however busy the machine is, so this is what guards against
//! slowing down: it fails when a path costs over 5 % more than `expected.txt` says.
//!
//! `cargo bench --bench instructions -- --accept` writes what was counted into that file. Which string
//! functions the C library chooses depends on the processor, so each line there names what it was counted
//! on; on any other the counts are told and not judged.
//!
//! The paths run in a child of this program under callgrind, against a server that only repeats what it
//! has in memory, in a child beside it that is not counted. Each is run twice, for few messages and for
//! many: what a message costs is the difference by the number of messages between.
#![allow(
    clippy::print_stdout,
    clippy::cast_precision_loss,
    clippy::disallowed_methods
)]

mod canned;
mod expected;
mod paths;

use std::{
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    time::Duration,
};

use streamlane::testing::{PrivateServer, eventually};

use self::{
    expected::{Expected, Verdict},
    paths::PATHS,
};

/// What measuring gives.
pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const FEW: u64 = 10_000;
const MANY: u64 = 110_000;

const HELP: &str = "\
Counts the instructions that a message costs on each path, under valgrind, and fails when one costs over
5 % more than benches/instructions/expected.txt says.

  --accept     writes what was counted into that file
  --only TEXT  only paths whose names contain TEXT
  --list       names them";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        ["--help" | "-h", ..] => {
            println!("{HELP}");
            Ok(true)
        }
        ["--list", ..] => {
            for path in &PATHS {
                println!("{}: benchmark", path.name);
            }
            Ok(true)
        }
        ["repeat", socket, upstream] => canned::serve(socket, upstream).map(|()| true),
        ["run", name, messages, url] => paths::run(name, messages, url).map(|()| true),
        // `cargo test --benches` only wants to see that it builds
        _ if !args.contains(&"--bench") => Ok(true),
        _ => count(&args),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("instructions: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Counts, compares and tells. False when something costs too much.
fn count(args: &[&str]) -> Outcome<bool> {
    let only = args.iter().position(|a| *a == "--only");
    let only = only.and_then(|i| args.get(i + 1)).copied().unwrap_or("");
    let server = PrivateServer::start()?;
    paths::prepare(&server)?;
    let canned = Canned::start(&server)?;
    let mut expected = Expected::load()?;
    println!("instructions a message, on {}", expected.machine());
    println!("\n| path | expected | counted | |\n|---|---|---|---|");
    let mut fine = true;
    for path in PATHS.iter().filter(|p| p.name.contains(only)) {
        let few = canned.instructions(path.name, FEW)?;
        let many = canned.instructions(path.name, MANY)?;
        let each = many.saturating_sub(few) as f64 / (MANY - FEW) as f64;
        let verdict = expected.judge(path.name, each);
        fine &= verdict != Verdict::TooMany;
        let was = expected.of(path.name);
        let was = was.map_or("-".into(), |n| n.to_string());
        println!("| {} | {was} | {each:.0} | {verdict} |", path.name);
        expected.learn(path.name, each);
    }
    if args.contains(&"--accept") {
        expected.save()?;
        println!("\naccepted");
        return Ok(true);
    }
    if !fine {
        println!(
            "\nWhere that is meant so: cargo bench --bench instructions -- --accept, and commit expected.txt"
        );
    }
    Ok(fine)
}

/// The server that repeats itself.
struct Canned {
    process: Child,
    url: String,
    directory: PathBuf,
}

impl Canned {
    fn start(behind: &PrivateServer) -> Outcome<Self> {
        let directory = behind.dir().to_owned();
        let socket = directory.join("canned.sock");
        let process = Command::new(env::current_exe()?)
            .arg("repeat")
            .args([&socket, &behind.socket_path()])
            .spawn()?;
        let canned = Self {
            process,
            url: format!("unix://{}", socket.display()),
            directory,
        };
        if !eventually(Duration::from_secs(20), || socket.exists()) {
            return Err("the server that repeats itself does not start".into());
        }
        Ok(canned)
    }

    /// How many instructions one run takes.
    fn instructions(&self, path: &str, messages: u64) -> Outcome<u64> {
        let out = self.directory.join("callgrind.out");
        let run = Command::new("valgrind")
            .args(["--tool=callgrind", "--quiet", "--fair-sched=yes"])
            .arg(format!("--callgrind-out-file={}", out.display()))
            .arg(env::current_exe()?)
            .args(["run", path, &messages.to_string(), &self.url])
            .stdin(Stdio::null())
            .output()
            .map_err(|e| format!("valgrind (a package of that name) does not run: {e}"))?;
        if !run.status.success() {
            let said = String::from_utf8_lossy(&run.stderr);
            return Err(format!("{path} failed under valgrind: {said}").into());
        }
        total(&out)
    }
}

impl Drop for Canned {
    fn drop(&mut self) {
        // it ends with this program in any case
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The total in what callgrind wrote.
fn total(out: &Path) -> Outcome<u64> {
    let text = fs::read_to_string(out)?;
    let line = text
        .lines()
        .find_map(|l| l.strip_prefix("totals: ").or(l.strip_prefix("summary: ")));
    Ok(line.ok_or("callgrind wrote no total")?.trim().parse()?)
}
