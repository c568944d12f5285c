//! The clients. Each is used as its documentation shows, and as well as it can be.

mod bare;
mod fred_client;
#[cfg(feature = "hiredis")]
mod hiredis;
mod own;
mod redis_crate;
mod sea_streamer;

use crate::{
    KEY, Outcome, TYPE,
    meter::Meter,
    site::{Address, Site},
};

/// A client at work on a [`Site`].
pub(crate) trait Peer: Send {
    /// Reads the stream from its beginning to its end, a batch at a time, and shows the meter every
    /// body. May return before that is done: it goes on until the client is dropped.
    fn drain(&mut self, meter: &Meter) -> Outcome<()>;

    /// Publishes a message, and waits until it is stored.
    fn publish(&mut self) -> Outcome<()>;

    /// Publishes a batch of messages at once, and waits until all are stored.
    fn publish_batch(&mut self) -> Outcome<()>;
}

/// What a row is about.
pub(crate) struct Kind {
    /// What it is called when it reads.
    pub(crate) reads: &'static str,
    /// What it is called when it publishes; nothing when another does so in the same way.
    pub(crate) publishes: Option<&'static str>,
    pub(crate) open: fn(&Site) -> Outcome<Box<dyn Peer>>,
    tcp_only: bool,
}

const fn kind(name: &'static str, open: fn(&Site) -> Outcome<Box<dyn Peer>>) -> Kind {
    Kind {
        reads: name,
        publishes: Some(name),
        open,
        tcp_only: false,
    }
}

/// The two that all are compared with.
pub(crate) const FLOOR: &str = "floor";
pub(crate) const TYPED: &str = "redis typed";

const PEERS: &[Kind] = &[
    kind(FLOOR, bare::scanning),
    Kind {
        publishes: None,
        ..kind("floor, reading ahead", bare::reading_ahead)
    },
    Kind {
        publishes: Some("streamlane, dedicated"),
        ..kind("streamlane, batch handler", own::batches)
    },
    Kind {
        publishes: Some("streamlane, shared"),
        ..kind("streamlane, message handler", own::messages)
    },
    kind("redis raw", redis_crate::raw),
    kind(TYPED, redis_crate::typed),
    #[cfg(feature = "hiredis")]
    kind("hiredis", hiredis::open),
    kind("fred", fred_client::open),
    Kind {
        tcp_only: true,
        ..kind("sea-streamer", sea_streamer::open)
    },
];

/// Those that can work there.
pub(crate) fn on(site: &Site) -> impl Iterator<Item = &'static Kind> + use<> {
    let is_tcp = matches!(site.address, Address::Tcp(_));
    PEERS.iter().filter(move |p| is_tcp || !p.tcp_only)
}

/// Names and values of an entry, as streamlane writes them.
fn items(body: &'static [u8]) -> [(&'static str, &'static [u8]); 3] {
    [("b", body), ("t", TYPE), ("k", KEY)]
}
