//! What to measure, and how.

use std::time::Duration;

use crate::{Outcome, machine::Cores};

pub(crate) const HELP: &str = "\
Measures streamlane beside a bare socket on one private server.

  --unix           over a Unix socket instead of loopback TCP
  --cores 1|1+1|2  server and client together on one core (default), on one each, or together on two
  --rounds N       interleaved rounds (default 5)
  --bodies A,B     body sizes in bytes (default 100,1024)
  --counts A,B     batch sizes (default 100,1000)
  --threads A,B    threads that share a publisher (default 1,2,4,8,16)
  --lanes A,B      partitions that are read at once (default 1,4,16,64)
  --entries N      messages in a drained stream of 100 B bodies (default 300000)
  --only TEXT      only rows whose title and label contain TEXT, such as 'drain', '100 B' or 'batch handler'
  --smoke          next to nothing of everything, to see that it works; so does `cargo test --benches`

The server program is `redis-server`, or what STREAMLANE_TEST_SERVER names.";

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) unix: bool,
    pub(crate) cores: Cores,
    pub(crate) rounds: usize,
    pub(crate) bodies: Vec<usize>,
    pub(crate) counts: Vec<u32>,
    pub(crate) threads: Vec<usize>,
    pub(crate) lanes: Vec<u32>,
    pub(crate) only: Option<String>,
    /// Messages in a drained stream of small bodies; of large ones there are fewer.
    pub(crate) entries: u64,
    /// How long publishing at full speed lasts in a round.
    pub(crate) window: Duration,
    /// Messages of a round of paced publishing.
    pub(crate) paced: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            unix: false,
            cores: Cores::One,
            rounds: 5,
            bodies: vec![100, 1024],
            counts: vec![100, 1000],
            threads: vec![1, 2, 4, 8, 16],
            lanes: vec![1, 4, 16, 64],
            only: None,
            entries: 300_000,
            window: Duration::from_millis(300),
            paced: 15_000,
        }
    }
}

impl Options {
    /// Next to nothing of everything.
    fn smoke() -> Self {
        Self {
            rounds: 1,
            entries: 4000,
            window: Duration::from_millis(5),
            paced: 500,
            ..Self::default()
        }
    }

    /// Reads the command line; nothing when help is asked for.
    pub(crate) fn parse(args: impl Iterator<Item = String>) -> Outcome<Option<Self>> {
        let args: Vec<String> = args.collect();
        let given = |flag: &str| args.iter().any(|a| a == flag);
        // `cargo bench` says so; `cargo test --benches` only wants to see that it works
        let measures = given("--bench") && !given("--smoke");
        let mut o = if measures {
            Self::default()
        } else {
            Self::smoke()
        };
        let mut args = args.iter().cloned();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg} needs a value"));
            match arg.as_str() {
                "--bench" | "--smoke" => {}
                "--help" | "-h" => return Ok(None),
                "--unix" => o.unix = true,
                "--cores" => o.cores = value()?.parse()?,
                "--rounds" => o.rounds = value()?.parse()?,
                "--bodies" => o.bodies = list(&value()?)?,
                "--counts" => o.counts = list(&value()?)?,
                "--threads" => o.threads = list(&value()?)?,
                "--lanes" => o.lanes = list(&value()?)?,
                "--entries" => o.entries = value()?.parse()?,
                "--only" => o.only = Some(value()?),
                _ => return Err(format!("{arg}: no such option; see --help").into()),
            }
        }
        if o.rounds == 0 || o.threads.contains(&0) || o.lanes.contains(&0) {
            return Err("at least one round, one thread and one lane".into());
        }
        if o.bodies.iter().any(|b| *b < 64) {
            return Err("bodies have 64 bytes or more".into());
        }
        Ok(Some(o))
    }

    /// How many messages of this body size a stream to be drained has.
    pub(crate) fn entries_of(&self, body: usize) -> u64 {
        let scale = if body > 512 { 3 } else { 1 };
        self.entries / scale
    }

    /// Whether any row of a table may be wanted.
    pub(crate) fn wants_any_of(&self, title: &str) -> bool {
        let wanted = |text: &String| title.contains(&**text) || !text.contains(':');
        self.only.as_ref().is_none_or(wanted)
    }

    pub(crate) fn wants(&self, title: &str, label: &str) -> bool {
        let name = format!("{title}: {label}");
        self.only.as_ref().is_none_or(|text| name.contains(text))
    }
}

fn list<T: std::str::FromStr>(text: &str) -> Result<Vec<T>, T::Err> {
    text.split(',').map(str::parse).collect()
}
