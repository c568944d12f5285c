//! Where clients work, and on what.

use std::{
    fmt::{self, Display, Formatter},
    io,
    path::PathBuf,
};

use streamlane::testing::PrivateServer;

use crate::{
    Outcome,
    floor::{self, Wire, command, fields},
    meter::Lap,
    options::Transport,
};

/// The topic that is published to.
pub(crate) const TARGET: &str = "peers";

/// What one client needs to know.
#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) address: Address,
    pub(crate) topic: String,
    /// What is published, or of the size of what is read. It lives for ever, like a constant of the caller's: no client need copy it
    /// for its own sake.
    pub(crate) body: &'static [u8],
    /// How many messages are read or published at a time.
    pub(crate) batch: u32,
}

#[derive(Clone)]
pub(crate) enum Address {
    Tcp(u16),
    Unix(PathBuf),
}

impl Site {
    pub(crate) fn new(
        server: &PrivateServer,
        transport: Transport,
        topic: &str,
        body: &'static [u8],
        batch: u32,
    ) -> Self {
        Self {
            address: match transport {
                Transport::Tcp => Address::Tcp(server.port()),
                Transport::Unix => Address::Unix(server.socket_path()),
            },
            topic: topic.to_owned(),
            body,
            batch,
        }
    }

    /// In the form that all clients with URLs read.
    pub(crate) fn url(&self) -> String {
        match &self.address {
            Address::Tcp(port) => format!("redis://127.0.0.1:{port}"),
            Address::Unix(path) => format!("redis+unix://{}", path.display()),
        }
    }

    pub(crate) fn wire(&self) -> io::Result<Wire> {
        match &self.address {
            Address::Tcp(port) => Wire::tcp(*port),
            Address::Unix(path) => Wire::unix(path),
        }
    }

    /// The stream that is read or published to.
    pub(crate) fn stream(&self) -> String {
        floor::stream(&self.topic)
    }

    /// Deletes it, under both its names.
    pub(crate) fn clear(&self, server: &PrivateServer) -> io::Result<()> {
        clear(server, &self.topic)
    }
}

impl Display for Site {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let transport = match self.address {
            Address::Tcp(_) => "loopback TCP",
            Address::Unix(_) => "Unix socket",
        };
        write!(f, "{transport}, {} B", self.body.len())
    }
}

/// A stream to be drained, and what must come out.
pub(crate) struct Filled {
    pub(crate) topic: String,
    pub(crate) entries: u64,
    pub(crate) sum: u64,
}

impl Filled {
    /// Puts so many messages with random bodies there, a thousand at a time.
    pub(crate) fn new(server: &PrivateServer, size: usize, entries: u64) -> Outcome<Self> {
        const PIECE: u64 = 1000;
        let topic = format!("drain-{size}");
        let key = floor::stream(&topic);
        let head: [&[u8]; 3] = [b"XADD", key.as_bytes(), b"*"];
        let mut wire = Wire::unix(&server.socket_path())?;
        let (mut bodies, mut sum) = (Bodies::new(size), 0_u64);
        let mut left = entries;
        while left > 0 {
            let n = left.min(PIECE);
            let mut commands = Vec::new();
            for _ in 0..n {
                let body = bodies.next();
                sum = sum.wrapping_add(checksum(body));
                commands.extend(command(&[&head[..], &fields(body)].concat()));
            }
            wire.send(&commands)?;
            wire.ids(n as usize)?;
            left -= n;
        }
        // under a name that sea-streamer can read, which has no colons
        server.command(&["COPY", &key, &topic])?;
        Ok(Self {
            topic,
            entries,
            sum,
        })
    }

    pub(crate) fn clear(self, server: &PrivateServer) -> io::Result<()> {
        clear(server, &self.topic)
    }
}

fn clear(server: &PrivateServer, topic: &str) -> io::Result<()> {
    server.command(&["DEL", &floor::stream(topic), topic])?;
    Ok(())
}

/// Random bytes, the same in every run.
pub(crate) struct Bodies {
    random: u64,
    body: Vec<u8>,
}

impl Bodies {
    pub(crate) fn new(size: usize) -> Self {
        Self {
            random: 0x9e37_79b9_7f4a_7c15,
            body: vec![0; size],
        }
    }

    pub(crate) fn next(&mut self) -> &[u8] {
        for word in self.body.chunks_mut(8) {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            word.copy_from_slice(&self.random.to_le_bytes()[..word.len()]);
        }
        &self.body
    }
}

/// Touches every byte of a body, for next to nothing.
#[inline]
fn checksum(body: &[u8]) -> u64 {
    let (words, rest) = body.as_chunks();
    let start = (body.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let sum = words.iter().fold(start, |sum, word| {
        sum.wrapping_add(u64::from_le_bytes(*word))
    });
    rest.iter()
        .fold(sum, |sum, byte| sum.wrapping_add(u64::from(*byte)))
}

impl Lap {
    /// The handler of all clients.
    #[inline]
    pub(crate) fn see(&mut self, body: &[u8]) {
        self.add(1, checksum(body) as usize);
    }
}
