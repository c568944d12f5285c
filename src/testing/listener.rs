//! A thread that accepts connections until it is told to stop, and ports to listen on.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    io,
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{Builder, JoinHandle},
    time::Duration,
};

use socket2::Socket;

use super::{failed, rest};

/// A loopback TCP port that no other `Port` is given while this one lives, in whatever process, also
/// while nobody listens on it: a relay that refuses, or a server that is down, would otherwise lose its
/// port to a neighbour, and their clients would meet the wrong server.
///
/// It is taken from below the range the system gives to outgoing connections: there, a client that dials
/// a server which is down could be given the server's port and end up talking to itself, and the server
/// could not come back. The port 10000 higher, where the nodes of a cluster meet, lies below that range
/// as well.
#[derive(Debug)]
pub(super) struct Port {
    number: u16,
    /// The UDP port of the same number: it is in nobody's way and says that the number is taken.
    _claim: UdpSocket,
}

impl Port {
    pub(super) fn free() -> io::Result<Self> {
        for _ in 0..1000 {
            let random = RandomState::new().hash_one(()) % 2700;
            let number = 20_000 + random as u16;
            let Ok(claim) = UdpSocket::bind((Ipv4Addr::LOCALHOST, number)) else {
                continue;
            };
            if TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Ok(Self {
                    number,
                    _claim: claim,
                });
            }
        }
        Err(failed("no free port between 20000 and 22699"))
    }

    pub(super) fn number(&self) -> u16 {
        self.number
    }

    pub(super) fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.number).into()
    }
}

/// Accepts on a loopback port. Dropping it closes the port; connections live on.
pub(super) struct Listener {
    socket: Arc<Socket>,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    pub(super) fn start(
        port: &Port,
        name: &str,
        mut accepted: impl FnMut(Socket) + Send + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(port.addr())?;
        let socket = Arc::new(Socket::from(listener));
        let stopping = Arc::new(AtomicBool::new(false));
        let (s, stop) = (Arc::clone(&socket), Arc::clone(&stopping));
        let thread = Builder::new().name(name.to_owned()).spawn(move || {
            loop {
                let peer = s.accept();
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                match peer {
                    Ok((peer, _)) => {
                        let _ = peer.set_tcp_nodelay(true);
                        accepted(peer);
                    }
                    // out of file descriptors, say: better late than a busy loop
                    Err(_) => rest(Duration::from_millis(10)),
                }
            }
        })?;
        Ok(Self {
            socket,
            stopping,
            thread: Some(thread),
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        // wakes the thread out of accept
        let _ = self.socket.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listener")
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn a_listener_that_is_gone_comes_back_on_its_port() {
        let (tx, rx) = crossbeam_channel::unbounded();
        let again = tx.clone();
        let port = Port::free().unwrap();
        let l = Listener::start(&port, "listen", move |s| tx.send(s).unwrap()).unwrap();
        let _first = TcpStream::connect(port.addr()).unwrap();
        rx.recv_timeout(Duration::from_secs(10)).unwrap();
        drop(l);
        assert!(TcpStream::connect(port.addr()).is_err());
        let _l = Listener::start(&port, "listen", move |s| again.send(s).unwrap()).unwrap();
        let _second = TcpStream::connect(port.addr()).unwrap();
        rx.recv_timeout(Duration::from_secs(10)).unwrap();
    }

    #[test]
    fn nobody_else_is_given_a_port_that_is_not_listened_on_just_now() {
        let mut ports: Vec<_> = (0..200).map(|_| Port::free().unwrap()).collect();
        ports.sort_by_key(Port::number);
        assert!(
            ports
                .windows(2)
                .all(|two| two[0].number() < two[1].number())
        );
    }
}
