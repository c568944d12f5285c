//! A relay between client and server that spoils connections on demand.

use std::{
    collections::BTreeMap,
    fmt, io,
    io::{Read, Write},
    net::{Shutdown, SocketAddr},
    sync::Arc,
    thread::{Builder, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use socket2::{Domain, SockAddr, Socket, Type};

use super::{
    PrivateServer,
    listener::{Listener, Port},
};
use crate::clock;

/// One of the two directions through a [`Relay`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// From the client to the server.
    Requests,
    /// From the server to the client.
    Replies,
}

/// What happens to the bytes of one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// They pass.
    Pass,
    /// Nothing passes, an end of the connection included, and nobody is told: a dead link. What was held
    /// back goes on when the fault is lifted, as lost packets do once a link comes back.
    BlackHole,
    /// They are taken and thrown away.
    Swallow,
    /// Each piece waits this long; what arrives meanwhile waits behind it.
    Delay(Duration),
    /// One byte passes each interval.
    Trickle(Duration),
    /// So many more bytes pass on each connection, then it is closed on both sides. With 0 it is closed
    /// as soon as there is something to pass.
    CutAfter(u64),
}

/// A TCP relay on a loopback port, to stand between a client and a server.
///
/// Faults are set for each direction at any time, and concern the connections that exist, those to
/// come, or both. A server that is down shows as connections that are accepted and closed at once; for
/// a refused connection there is [`refuse_new`](Self::refuse_new). Everything ends on drop.
pub struct Relay {
    shared: Arc<Shared>,
    listener: Mutex<Option<Listener>>,
    port: Port,
}

struct Shared {
    state: Mutex<State>,
    /// Faults or connections have changed.
    changed: Condvar,
}

struct State {
    /// Where connections to come lead.
    target: SockAddr,
    /// By direction, for connections to come.
    faults: [Fault; 2],
    links: BTreeMap<u64, Link>,
    accepted: u64,
}

/// One connection: its ends are the client's and the server's, its directions are numbered after the
/// end they come from.
struct Link {
    ends: [Arc<Socket>; 2],
    faults: [Fault; 2],
    ended: [bool; 2],
    pumps: Vec<JoinHandle<()>>,
}

/// What a pump may do with the bytes it holds.
enum Verdict {
    Forward(usize),
    ForwardAndCut(usize),
    Drop,
    /// The connection is no more.
    Over,
}

impl Relay {
    /// A relay to a server, over its Unix socket, so the server needs no port.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn to(server: &PrivateServer) -> io::Result<Self> {
        Self::start(SockAddr::unix(server.socket_path())?)
    }

    /// A relay to whatever listens there, now or later.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn to_addr(target: SocketAddr) -> io::Result<Self> {
        Self::start(target.into())
    }

    fn start(target: SockAddr) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                target,
                faults: [Fault::Pass; 2],
                links: BTreeMap::new(),
                accepted: 0,
            }),
            changed: Condvar::new(),
        });
        let port = Port::free()?;
        let listener = shared.listen(&port)?;
        Ok(Self {
            shared,
            listener: Mutex::new(Some(listener)),
            port,
        })
    }

    /// Where clients connect to.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// The same as a `redis:` URL, without a password.
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr())
    }

    /// Sets a fault for one direction of all connections, present and to come.
    pub fn fault(&self, way: Way, fault: Fault) {
        self.fault_new(way, fault);
        self.fault_existing(way, fault);
    }

    /// Sets a fault for one direction of the connections there are.
    pub fn fault_existing(&self, way: Way, fault: Fault) {
        for link in self.shared.state.lock().links.values_mut() {
            link.faults[way as usize] = fault;
        }
        self.shared.changed.notify_all();
    }

    /// Sets a fault for one direction of connections to come.
    pub fn fault_new(&self, way: Way, fault: Fault) {
        self.shared.state.lock().faults[way as usize] = fault;
    }

    /// Lets everything pass again.
    pub fn heal(&self) {
        self.fault(Way::Requests, Fault::Pass);
        self.fault(Way::Replies, Fault::Pass);
    }

    /// Leads connections to come to another server; those there are stay where they are. So does a name
    /// that stands for another machine after a failover.
    ///
    /// # Errors
    /// When the path of its socket is none.
    pub fn lead_to(&self, server: &PrivateServer) -> io::Result<()> {
        let target = SockAddr::unix(server.socket_path())?;
        self.shared.state.lock().target = target;
        Ok(())
    }

    /// Closes the connections there are, in good order (FIN), and waits until they are gone.
    pub fn close(&self) {
        self.shared.sever(|end| {
            let _ = end.shutdown(Shutdown::Both);
        });
    }

    /// Resets the connections there are (RST): both sides see an error, and bytes on their way are lost.
    /// Waits until they are gone.
    pub fn reset(&self) {
        self.shared.sever(|end| {
            let _ = end.set_linger(Some(Duration::ZERO));
            // wakes the pump and sends nothing; the reset goes out when the last pump lets go
            let _ = end.shutdown(Shutdown::Read);
        });
    }

    /// Whether to refuse new connections, by closing the port. Those that exist are left alone.
    ///
    /// # Errors
    /// When the port cannot be opened again.
    pub fn refuse_new(&self, refuse: bool) -> io::Result<()> {
        let mut listener = self.listener.lock();
        if refuse {
            *listener = None;
        } else if listener.is_none() {
            *listener = Some(self.shared.listen(&self.port)?);
        }
        Ok(())
    }

    /// How many connections were ever accepted.
    pub fn accepted(&self) -> u64 {
        self.shared.state.lock().accepted
    }

    /// How many connections there are.
    pub fn open(&self) -> usize {
        self.shared.state.lock().links.len()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        *self.listener.lock() = None;
        self.close();
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Relay({}, {} open)", self.addr(), self.open())
    }
}

impl Shared {
    fn listen(self: &Arc<Self>, port: &Port) -> io::Result<Listener> {
        let shared = Arc::clone(self);
        Listener::start(port, "relay", move |client| {
            // a client whose server is down, or for which there is no thread, is closed here
            let _ = shared.link(client);
        })
    }

    fn link(self: &Arc<Self>, client: Socket) -> io::Result<()> {
        let target = {
            let mut state = self.state.lock();
            state.accepted += 1;
            state.target.clone()
        };
        let server = Socket::new(target.domain(), Type::STREAM, None)?;
        server.connect(&target)?;
        if target.domain() != Domain::UNIX {
            server.set_tcp_nodelay(true)?;
        }
        for end in [&client, &server] {
            // so that a pump whose peer takes nothing looks up now and then
            end.set_write_timeout(Some(Duration::from_millis(50)))?;
        }
        let mut state = self.state.lock();
        let id = state.accepted;
        let faults = state.faults;
        let link = state.links.entry(id).insert_entry(Link {
            ends: [client, server].map(Arc::new),
            faults,
            ended: [false; 2],
            pumps: Vec::new(),
        });
        let link = link.into_mut();
        for way in 0..2 {
            let (shared, from) = (Arc::clone(self), Arc::clone(&link.ends[way]));
            let to = Arc::clone(&link.ends[1 - way]);
            let pump = Builder::new().name(format!("relay-{id}-{way}"));
            match pump.spawn(move || shared.pump(id, way, &from, &to)) {
                Ok(pump) => link.pumps.push(pump),
                Err(e) => {
                    drop(state);
                    self.cut(id);
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    fn pump(&self, id: u64, way: usize, mut from: &Socket, to: &Socket) {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(n @ 1..) = from.read(&mut buffer) {
            let (mut rest, mut since) = (&buffer[..n], clock::now());
            while !rest.is_empty() {
                let (n, cut) = match self.judge(id, way, rest.len(), since) {
                    Verdict::Forward(n) => (n, false),
                    Verdict::ForwardAndCut(n) => (n, true),
                    Verdict::Drop => break,
                    Verdict::Over => return,
                };
                if self.write(id, to, &rest[..n]).is_err() || cut {
                    return self.cut(id);
                }
                (rest, since) = (&rest[n..], clock::now());
            }
        }
        self.end(id, way);
    }

    /// Waits until something can be done with `len` bytes that were here `since` then.
    fn judge(&self, id: u64, way: usize, len: usize, since: Instant) -> Verdict {
        let mut state = self.state.lock();
        loop {
            let Some(link) = state.links.get_mut(&id) else {
                return Verdict::Over;
            };
            let (wait, n) = match &mut link.faults[way] {
                Fault::Pass => return Verdict::Forward(len),
                Fault::Swallow => return Verdict::Drop,
                Fault::CutAfter(left) => {
                    let n = len.min(usize::try_from(*left).unwrap_or(len));
                    *left -= n as u64;
                    return if *left == 0 {
                        Verdict::ForwardAndCut(n)
                    } else {
                        Verdict::Forward(n)
                    };
                }
                Fault::BlackHole => {
                    self.changed.wait(&mut state);
                    continue;
                }
                Fault::Delay(d) => (*d, len),
                Fault::Trickle(d) => (*d, 1),
            };
            if since.elapsed() >= wait {
                return Verdict::Forward(n);
            }
            self.changed.wait_until(&mut state, since + wait);
        }
    }

    fn write(&self, id: u64, mut to: &Socket, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match to.write(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if !self.state.lock().links.contains_key(&id) {
                        return Err(e);
                    }
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// One side has sent its last byte: the other is told, unless the link is dead.
    fn end(&self, id: u64, way: usize) {
        let mut state = self.state.lock();
        while let Some(link) = state.links.get_mut(&id) {
            if link.faults[way] == Fault::BlackHole {
                self.changed.wait(&mut state);
                continue;
            }
            let _ = link.ends[1 - way].shutdown(Shutdown::Write);
            link.ended[way] = true;
            if link.ended == [true; 2] {
                state.links.remove(&id);
            }
            return;
        }
    }

    /// Closes one connection. Its pumps end by themselves.
    fn cut(&self, id: u64) {
        if let Some(link) = self.state.lock().links.remove(&id) {
            for end in &link.ends {
                let _ = end.shutdown(Shutdown::Both);
            }
        }
        self.changed.notify_all();
    }

    /// Ends all connections in the given manner and waits for their pumps.
    fn sever(&self, end: impl Fn(&Socket)) {
        let links = std::mem::take(&mut self.state.lock().links);
        self.changed.notify_all();
        for mut link in links.into_values() {
            link.ends.iter().for_each(|e| end(e));
            let pumps = std::mem::take(&mut link.pumps);
            drop(link);
            for pump in pumps {
                let _ = pump.join();
            }
        }
    }
}

#[cfg(test)]
#[path = "relay_tests.rs"]
mod tests;
