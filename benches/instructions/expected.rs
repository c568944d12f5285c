//! What each path is expected to cost: `expected.txt`, which is committed.

use std::{collections::BTreeMap, fmt, fmt::Write as _, fs, path::PathBuf};

use crate::Outcome;

/// How much more than expected is too much.
const MARGIN: f64 = 1.05;

/// Counts by machine and path.
pub(crate) struct Expected {
    counts: BTreeMap<(String, String), u64>,
    machine: String,
}

/// What is to be said of a count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Fine,
    /// So much less than expected that the file should learn of it.
    Fewer,
    TooMany,
    /// Nothing is known of this machine, or of this path.
    Unknown,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fine => "fine",
            Self::Fewer => "fewer: worth accepting",
            Self::TooMany => "TOO MANY",
            Self::Unknown => "nothing to compare with",
        })
    }
}

impl Expected {
    pub(crate) fn load() -> Outcome<Self> {
        let mut counts = BTreeMap::new();
        for line in fs::read_to_string(file())?.lines() {
            let line = line.split('#').next().unwrap_or_default();
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                [] => {}
                [machine, path, count] => {
                    counts.insert((machine.into(), path.into()), count.parse()?);
                }
                _ => return Err(format!("expected.txt: not machine, path, count: {line}").into()),
            }
        }
        Ok(Self {
            counts,
            machine: machine(),
        })
    }

    /// What this machine is called in the file.
    pub(crate) fn machine(&self) -> &str {
        &self.machine
    }

    pub(crate) fn of(&self, path: &str) -> Option<u64> {
        self.counts
            .get(&(self.machine.clone(), path.to_owned()))
            .copied()
    }

    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn judge(&self, path: &str, counted: f64) -> Verdict {
        match self.of(path).map(|n| counted / n as f64) {
            None => Verdict::Unknown,
            Some(by) if by > MARGIN => Verdict::TooMany,
            Some(by) if by < 1.0 / MARGIN => Verdict::Fewer,
            Some(_) => Verdict::Fine,
        }
    }

    #[allow(clippy::cast_sign_loss)]
    pub(crate) fn learn(&mut self, path: &str, counted: f64) {
        let place = (self.machine.clone(), path.to_owned());
        self.counts.insert(place, counted.round() as u64);
    }

    pub(crate) fn save(&self) -> Outcome<()> {
        let mut text = String::from(HEAD);
        for ((machine, path), count) in &self.counts {
            // never fails: it is a String
            let _ = writeln!(text, "{machine} {path} {count}");
        }
        Ok(fs::write(file(), text)?)
    }
}

const HEAD: &str = "\
# Instructions a message, by processor and path, as counted by `cargo bench --bench instructions`.
# Written by `cargo bench --bench instructions -- --accept`.
";

fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("benches/instructions/expected.txt")
}

/// What the choice of string functions depends on. Valgrind knows nothing beyond AVX2, so more does not
/// matter.
fn machine() -> String {
    let flags = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = flags
        .lines()
        .find(|l| l.starts_with("flags"))
        .unwrap_or_default();
    let has = |flag: &&&str| flags.split_whitespace().any(|f| f == **flag);
    let known = ["sse4_2", "avx2", "erms"];
    let known = known.iter().filter(has).copied().collect::<Vec<_>>();
    format!("{}+{}", std::env::consts::ARCH, known.join("+"))
}
