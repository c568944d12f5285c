//! What to measure, and how.

use std::{
    env,
    path::{self, PathBuf},
    str::FromStr,
    time::Duration,
};

use crate::{Outcome, machine::Cores};

pub(crate) const HELP: &str = "\
Measures streamlane beside other clients on private servers.

  --engine PATH     a server program; may be given again (default: what STREAMLANE_TEST_SERVER names, else redis-server)
  --transports A,B  tcp, unix (default: both)
  --cores 1|1+1|2   server and client together on one core (default), on one each, or together on two
  --rounds N        interleaved rounds (default 5)
  --bodies A,B      body sizes in bytes (default 100,1024)
  --counts A,B      batch sizes (default 100,1000)
  --entries N       messages in a drained stream of 100 B bodies (default 300000)
  --only TEXT       only rows whose title and label contain TEXT, such as 'drain', ' 100 B' or 'hiredis'
  --smoke           next to nothing of everything, to see that it works";

/// How a server is reached.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Transport {
    Tcp,
    Unix,
}

impl FromStr for Transport {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "tcp" => Ok(Self::Tcp),
            "unix" => Ok(Self::Unix),
            _ => Err("the transports are tcp and unix"),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) engines: Vec<PathBuf>,
    pub(crate) transports: Vec<Transport>,
    pub(crate) cores: Cores,
    pub(crate) rounds: usize,
    pub(crate) bodies: Vec<usize>,
    pub(crate) counts: Vec<u32>,
    only: Option<String>,
    /// Messages in a drained stream of small bodies; of large ones there are fewer.
    entries: u64,
    /// How long publishing lasts in a round.
    pub(crate) window: Duration,
}

impl Options {
    fn new(smoke: bool) -> Self {
        Self {
            engines: Vec::new(),
            transports: vec![Transport::Tcp, Transport::Unix],
            cores: Cores::One,
            rounds: if smoke { 1 } else { 5 },
            bodies: vec![100, 1024],
            counts: vec![100, 1000],
            only: None,
            entries: if smoke { 4000 } else { 300_000 },
            window: Duration::from_millis(if smoke { 5 } else { 300 }),
        }
    }

    /// Reads the command line; nothing when help is asked for.
    pub(crate) fn parse(args: &[String]) -> Outcome<Option<Self>> {
        let mut o = Self::new(args.iter().any(|a| a == "--smoke"));
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg} needs a value"));
            match arg.as_str() {
                "--smoke" => {}
                "--help" | "-h" => return Ok(None),
                "--engine" => o.engines.push(program(value()?)?),
                "--transports" => o.transports = list(value()?)?,
                "--cores" => o.cores = value()?.parse()?,
                "--rounds" => o.rounds = value()?.parse()?,
                "--bodies" => o.bodies = list(value()?)?,
                "--counts" => o.counts = list(value()?)?,
                "--entries" => o.entries = value()?.parse()?,
                "--only" => o.only = Some(value()?.clone()),
                _ => return Err(format!("{arg}: no such option; see --help").into()),
            }
        }
        if o.rounds == 0 {
            return Err("at least one round".into());
        }
        if o.engines.is_empty() {
            let named = env::var_os("STREAMLANE_TEST_SERVER");
            o.engines
                .push(named.unwrap_or_else(|| "redis-server".into()).into());
        }
        Ok(Some(o))
    }

    /// How many messages of this body size a stream to be drained has.
    pub(crate) fn entries_of(&self, body: usize) -> u64 {
        let scale = if body > 512 { 3 } else { 1 };
        self.entries / scale
    }

    pub(crate) fn wants(&self, title: &str, label: &str) -> bool {
        let name = format!("{title}: {label}");
        self.only.as_ref().is_none_or(|text| name.contains(text))
    }
}

/// A path is made absolute, for servers are started in directories of their own. It may be a link, whose
/// name tells the program what to be. A mere name is looked up when it is started.
fn program(text: &str) -> Outcome<PathBuf> {
    if !text.contains('/') {
        return Ok(text.into());
    }
    let path = path::absolute(text)?;
    path.metadata().map_err(|e| format!("{text}: {e}"))?;
    Ok(path)
}

fn list<T: FromStr>(text: &str) -> Result<Vec<T>, T::Err> {
    text.split(',').map(str::parse).collect()
}
