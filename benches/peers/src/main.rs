//! Streamlane beside other clients, each doing the same work on the same private servers in one run:
//! `cargo run --release --manifest-path benches/peers/Cargo.toml --features hiredis -- --help`.
//!
//! Figures, not assertions. Ratios are medians over rounds of a row's figure by that of the floor, or of
//! the redis crate, in the same round. That all clients read the same is asserted, by a checksum.

#[allow(dead_code, reason = "end_to_end has tables of its own")]
#[path = "../../end_to_end/figures.rs"]
mod figures;
#[allow(dead_code, reason = "nobody publishes at a pace here")]
#[path = "../../end_to_end/floor.rs"]
mod floor;
#[allow(dead_code, reason = "there are other columns here")]
#[path = "../../end_to_end/load.rs"]
mod load;
#[allow(dead_code, reason = "nobody publishes at a pace here")]
#[path = "../../end_to_end/machine.rs"]
mod machine;
#[allow(dead_code, reason = "sums are others here")]
#[path = "../../end_to_end/meter.rs"]
mod meter;
mod options;
mod peers;
mod site;
mod table;
mod versions;

use std::{env, error::Error, path::Path, process::ExitCode};

use streamlane::testing::PrivateServer;

use self::{
    figures::Way,
    load::alone,
    machine::Placement,
    meter::Meter,
    options::Options,
    peers::Peer,
    site::{Bodies, Filled, Site, TARGET},
    table::{Columns, compare, counts},
};

/// What measuring gives.
pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The message type and the key of everything that is published here.
pub(crate) const TYPE: &[u8] = b"OrderPlaced";
pub(crate) const KEY: &[u8] = b"order-123456";
/// What streams that are published to are trimmed to, about.
pub(crate) const KEPT: u64 = 10_000;

/// What this was started with.
const COMMAND: &str = if cfg!(feature = "hiredis") {
    "cargo run --release --manifest-path benches/peers/Cargo.toml --features hiredis"
} else {
    "cargo run --release --manifest-path benches/peers/Cargo.toml"
};

/// A way to call a publisher, over and over.
struct Publishing {
    title: &'static str,
    /// How many messages a call publishes.
    messages: u32,
    call: fn(&mut dyn Peer) -> Outcome<()>,
    columns: Columns<'static>,
}

const PUBLISHING: [Publishing; 2] = [
    Publishing {
        title: "one after the answer to the other",
        messages: 1,
        call: |client| client.publish(),
        columns: &[("p50 us", 1), ("p99 us", 2), ("client CPU ns/msg", 3)],
    },
    Publishing {
        title: "100 at once",
        messages: 100,
        call: |client| client.publish_batch(),
        columns: &[("k msg/s", 0), ("client CPU ns/msg", 3)],
    },
];

/// What measurements on one server need.
pub(crate) struct Bench {
    pub(crate) options: Options,
    server: PrivateServer,
    engine: String,
}

impl Bench {
    fn start(engine: &Path, placement: &Placement, options: &Options) -> Outcome<Self> {
        placement.for_server()?;
        let server = PrivateServer::builder().binary(engine).tcp().start()?;
        placement.for_client()?;
        Ok(Self {
            options: options.clone(),
            engine: server.engine()?.to_string(),
            server,
        })
    }

    /// The server's process.
    pub(crate) fn server_pid(&self) -> Outcome<u32> {
        self.server.pid().ok_or_else(|| "the server is down".into())
    }

    /// Prints all tables, and returns how many do not count.
    fn measure(&self) -> Outcome<usize> {
        let mut void = 0;
        for &size in &self.options.bodies {
            let filled = Filled::new(&self.server, size, self.options.entries_of(size))?;
            let body = &*Bodies::new(size).next().to_vec().leak();
            for &transport in &self.options.transports {
                for &count in &self.options.counts {
                    let site = Site::new(&self.server, transport, &filled.topic, body, count);
                    void += usize::from(!self.drain(&site, &filled)?);
                }
                for how in &PUBLISHING {
                    let site = Site::new(&self.server, transport, TARGET, body, how.messages);
                    self.publish(&site, how)?;
                }
            }
            filled.clear(&self.server)?;
        }
        Ok(void)
    }

    /// Reading a stream that is there already, to its end. Tells whether the figures count.
    fn drain(&self, site: &Site, filled: &Filled) -> Outcome<bool> {
        let ways = peers::on(site).map(|peer| {
            Way::new(peer.reads, move || {
                let mut client = (peer.open)(site)?;
                let meter = Meter::new(self, 1, filled.entries)?;
                client.drain(&meter)?;
                meter.wait()?;
                meter.figures_of(filled.sum)
            })
        });
        let title = format!("drain: {}, {site}, batches of {}", self.engine, site.batch);
        let columns = [("k msg/s", 0), ("client CPU ns/msg", 1)];
        let times = compare(&self.options, &title, &columns, ways.collect())?;
        Ok(counts(times))
    }

    fn publish(&self, site: &Site, how: &Publishing) -> Outcome<()> {
        let ways = peers::on(site).filter_map(|peer| {
            Some(Way::new(peer.publishes?, move || {
                let mut client = (peer.open)(site)?;
                let figures = alone(self, site.batch as usize, || (how.call)(&mut *client))?;
                drop(client);
                site.clear(&self.server)?;
                Ok(figures)
            }))
        });
        let title = format!("publish: {}, {site}, {}", self.engine, how.title);
        compare(&self.options, &title, how.columns, ways.collect())?;
        Ok(())
    }
}

fn run() -> Outcome<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let Some(options) = Options::parse(&args)? else {
        println!("{}", options::HELP);
        return Ok(());
    };
    let placement = Placement::new(options.cores)?;
    println!("$ {COMMAND} -- {}", args.join(" "));
    println!("{}", versions::clients());
    println!("{}", machine::conditions(options.rounds, &placement));
    println!("floors and streamlane read 256 KiB at a time at most, however large a batch may be");
    let mut void = 0;
    for engine in &options.engines {
        void += Bench::start(engine, &placement, &options)?.measure()?;
    }
    if void > 0 {
        println!(
            "\n{void} table(s) do not count: measure again on a machine with nothing else to do."
        );
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("peers: {e}");
            ExitCode::FAILURE
        }
    }
}
