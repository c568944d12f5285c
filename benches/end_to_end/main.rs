//! Streamlane beside a bare socket that does the least possible work on the same traffic, in one run, on
//! one private server: `cargo bench --bench end_to_end -- --help`.
//!
//! Figures, not assertions: what a machine gives depends on what else it does. The ratios in a row are
//! medians over rounds of the row's figure by that of a floor in the same round, which is the part that
//! carries over to other machines.
#![allow(
    clippy::print_stdout,
    clippy::cast_precision_loss,
    clippy::disallowed_methods
)]

mod drain;
mod figures;
mod floor;
mod lanes;
mod large;
mod latency;
mod load;
mod machine;
mod meter;
mod options;
mod paths;
mod sharing;
mod source;
mod upkeep;

use std::{error::Error, io, process::ExitCode};

use streamlane::{ProducerSettings, Settings, Streams, TopicSettings, testing::PrivateServer};

use self::{machine::Placement, options::Options};

/// What measuring gives.
pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The message type and the key of everything that is published here.
pub(crate) const TYPE: &[u8] = b"OrderPlaced";
pub(crate) const KEY: &[u8] = b"order-123456";
/// What topics that are published to are trimmed to, about.
pub(crate) const KEPT: u64 = 10_000;

/// What all measurements need.
pub(crate) struct Bench {
    pub(crate) options: Options,
    pub(crate) server: PrivateServer,
    pub(crate) streams: Streams,
}

impl Bench {
    fn open(options: Options) -> Outcome<Self> {
        let placement = Placement::new(options.cores)?;
        placement.for_server()?;
        let server = PrivateServer::builder().tcp().start()?;
        placement.for_client()?;
        let (url, transport) = if options.unix {
            (server.url(), "Unix socket")
        } else {
            (server.tcp_url(), "loopback TCP")
        };
        let (version, engine) = (env!("CARGO_PKG_VERSION"), server.engine()?);
        println!("streamlane {version} on {engine}, {transport}");
        println!("{}", machine::conditions(options.rounds, &placement));
        println!("x: by a floor's figure");
        let topic = || TopicSettings::default().partitions(1);
        let settings = [latency::TOPIC, paths::TOPIC, sharing::TOPIC]
            .into_iter()
            .fold(Settings::default(), |s, name| {
                s.with_topic(name, topic().max_len(KEPT))
            });
        let settings = options.bodies.iter().fold(settings, |s, body| {
            s.with_topic(drain::topic(*body), topic().max_len(100_000_000))
        });
        let several = options.lanes.iter().map(|n| (lanes::topic(*n), *n));
        let several = several.chain([(upkeep::TOPIC.to_owned(), upkeep::LANES)]);
        let settings = several.fold(settings, |s, (name, n)| {
            s.with_topic(
                name,
                TopicSettings::default().partitions(n).max_len(100_000_000),
            )
        });
        let settings = [drain::DOCUMENTS, large::TOPIC]
            .into_iter()
            .fold(settings, |s, name| {
                s.with_topic(name, topic().max_len(100_000_000))
            });
        let buffer = ProducerSettings::new(paths::TOPIC).max_queue(paths::QUEUE);
        let settings = settings.with_producer(buffer).connection_string(url);
        let streams = Streams::open(settings)?;
        Ok(Self {
            options,
            server,
            streams,
        })
    }

    /// A bare connection to the server.
    pub(crate) fn wire(&self) -> io::Result<floor::Wire> {
        if self.options.unix {
            floor::Wire::unix(&self.server.socket_path())
        } else {
            floor::Wire::tcp(self.server.port())
        }
    }

    /// The server's process.
    pub(crate) fn server_pid(&self) -> Outcome<u32> {
        self.server.pid().ok_or_else(|| "the server is down".into())
    }
}

fn run() -> Outcome<()> {
    let Some(options) = Options::parse(std::env::args().skip(1))? else {
        println!("{}", options::HELP);
        return Ok(());
    };
    let bench = Bench::open(options)?;
    drain::measure(&bench)?;
    paths::measure(&bench)?;
    sharing::measure(&bench)?;
    lanes::measure(&bench)?;
    large::measure(&bench)?;
    upkeep::measure(&bench)?;
    latency::measure(&bench)
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("end_to_end: {e}");
            ExitCode::FAILURE
        }
    }
}
