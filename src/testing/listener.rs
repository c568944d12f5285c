//! A thread that accepts connections until it is told to stop, and ports to listen on.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    io,
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{Builder, JoinHandle},
    time::Duration,
};

use socket2::Socket;

use super::{failed, rest};

/// A loopback port nobody listens on. It is taken from below the range the system gives to outgoing
/// connections: there, a client that dials a server which is down could be given the server's port and
/// end up talking to itself, and the server could not come back. The port 10000 higher, where the nodes
/// of a cluster meet, lies below that range as well.
pub(super) fn free_port() -> io::Result<u16> {
    for _ in 0..1000 {
        let random = RandomState::new().hash_one(()) % 2700;
        let port = 20_000 + random as u16;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    Err(failed("no free port between 20000 and 22699"))
}

/// Accepts on a loopback port. Dropping it closes the port; connections live on.
pub(super) struct Listener {
    socket: Arc<Socket>,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    port: u16,
}

impl Listener {
    /// Listens on a free port, or, to come back after a pause, on the same one as before.
    pub(super) fn start(
        port: Option<u16>,
        name: &str,
        mut accepted: impl FnMut(Socket) + Send + 'static,
    ) -> io::Result<Self> {
        let (listener, port) = match port {
            Some(port) => (TcpListener::bind((Ipv4Addr::LOCALHOST, port))?, port),
            None => bind_free()?,
        };
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
            port,
        })
    }

    pub(super) fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }
}

/// Another process may take the port between the look and the bind.
fn bind_free() -> io::Result<(TcpListener, u16)> {
    let mut tries = 0;
    loop {
        let port = free_port()?;
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(listener) => return Ok((listener, port)),
            Err(e) if tries == 10 => return Err(e),
            Err(_) => tries += 1,
        }
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
        write!(f, "Listener({})", self.port)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn a_dropped_listener_frees_its_port_for_the_next() {
        let (tx, rx) = crossbeam_channel::unbounded();
        let again = tx.clone();
        let l = Listener::start(None, "listen", move |s| tx.send(s).unwrap()).unwrap();
        let addr = l.addr();
        let _first = TcpStream::connect(addr).unwrap();
        rx.recv_timeout(Duration::from_secs(10)).unwrap();
        drop(l);
        assert!(TcpStream::connect(addr).is_err());
        let l = Listener::start(Some(addr.port()), "listen", move |s| again.send(s).unwrap());
        let _second = TcpStream::connect(l.as_ref().unwrap().addr()).unwrap();
        rx.recv_timeout(Duration::from_secs(10)).unwrap();
    }
}
