//! One stream socket, TCP or Unix, with the waits of this crate: all of them end at a stated time,
//! and all of them end when the socket is shut down from another thread.

use std::{
    fmt::Write as _,
    io,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{RecvFlags, SendFlags},
};
use socket2::{Domain, SockAddr, TcpKeepalive, Type};

use super::interrupt::Interrupt;
use crate::clock;

/// How soon a dial notices that it is to end.
const SLICE: Duration = Duration::from_millis(50);
/// An idle peer is asked for a sign of life after this time, ...
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
/// ... again at this interval, ...
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// ... this many times.
const KEEPALIVE_COUNT: u32 = 3;
/// How long sent bytes may stay unacknowledged before the kernel gives the connection up.
const USER_TIMEOUT: Duration = Duration::from_secs(20);

/// A connected stream socket. Reading and writing take `&self`: one thread may read while another
/// writes, and any thread may shut it down.
#[derive(Debug)]
pub(crate) struct Socket {
    inner: socket2::Socket,
    /// What the kernel's read timeout is set to, in microseconds; 0 for none.
    read_timeout: AtomicU64,
    shut: AtomicBool,
}

/// A write that failed, and how many bytes the kernel had taken by then.
#[derive(Debug)]
pub(crate) struct SendError {
    pub(crate) written: usize,
    pub(crate) source: io::Error,
}

impl Socket {
    /// Connects to the first address that accepts. Each is given an equal share of the time that is
    /// left, so that a silent one does not use up what the others need. Ends early when `interrupt`
    /// is cut.
    pub(crate) fn connect(
        addresses: &[SockAddr],
        deadline: Instant,
        interrupt: &Interrupt,
    ) -> io::Result<Self> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "there is no address to connect to");
        let mut told = String::new();
        for (tried, address) in addresses.iter().enumerate() {
            let now = clock::now();
            let share = deadline.saturating_duration_since(now) / (addresses.len() - tried) as u32;
            match Self::connect_one(address, now + share, interrupt) {
                Ok(socket) => return Ok(socket),
                Err(e) if interrupt.is_cut() => return Err(e),
                Err(e) => {
                    let comma = if told.is_empty() { "" } else { ", " };
                    let _ = write!(told, "{comma}{}: {e}", shown(address));
                    last = e;
                }
            }
        }
        if addresses.len() > 1 {
            return Err(io::Error::new(last.kind(), told));
        }
        Err(last)
    }

    fn connect_one(
        address: &SockAddr,
        deadline: Instant,
        interrupt: &Interrupt,
    ) -> io::Result<Self> {
        let inner = socket2::Socket::new(address.domain(), Type::STREAM, None)?;
        inner.set_nonblocking(true)?;
        let is = |e: &io::Error, errno: Errno| e.raw_os_error() == Some(errno.raw_os_error());
        loop {
            match inner.connect(address) {
                Ok(()) => break,
                // a signal does not stop a connect that has begun
                Err(e) if is(&e, Errno::INPROGRESS) || is(&e, Errno::INTR) => {
                    await_connected(&inner, deadline, interrupt)?;
                    break;
                }
                // the queue of a Unix listener is full: nothing has begun
                Err(e) if is(&e, Errno::AGAIN) => {
                    if clock::now() >= deadline || interrupt.is_cut() {
                        return Err(e);
                    }
                    interrupt.pause(Duration::from_millis(10));
                }
                Err(e) => return Err(e),
            }
        }
        inner.set_nonblocking(false)?;
        if address.domain() != Domain::UNIX {
            // A dial to a dead local port can be given that very port as its own, and then has
            // itself as peer, while the server cannot come back because its port is in use.
            if inner.local_addr()?.as_socket() == inner.peer_addr()?.as_socket() {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            inner.set_tcp_nodelay(true)?;
            let keepalive = TcpKeepalive::new()
                .with_time(KEEPALIVE_IDLE)
                .with_interval(KEEPALIVE_INTERVAL)
                .with_retries(KEEPALIVE_COUNT);
            inner.set_tcp_keepalive(&keepalive)?;
            inner.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
        }
        Ok(Self::of(inner))
    }

    fn of(inner: socket2::Socket) -> Self {
        Self {
            inner,
            read_timeout: AtomicU64::new(0),
            shut: AtomicBool::new(false),
        }
    }

    /// Two sockets connected to one another.
    #[cfg(test)]
    pub(crate) fn pair() -> (Self, Self) {
        let (a, b) = socket2::Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
        (Self::of(a), Self::of(b))
    }

    /// Reads what is there, or waits for it up to `timeout`; one system call as long as callers
    /// agree on the timeout. `buf` must not be empty.
    ///
    /// Fails with `UnexpectedEof` when the peer, or [`Self::shutdown`], has closed the connection,
    /// and with `TimedOut`.
    pub(crate) fn recv(&self, buf: &mut [u8], timeout: Duration) -> io::Result<usize> {
        self.set_read_timeout(timeout)?;
        match self.recv_with(buf, RecvFlags::empty()) {
            // A signal starts the kernel's timeout afresh; from here on the clock is watched.
            Err(Errno::INTR) => self.recv_by(buf, super::after(timeout)),
            r => finished(r),
        }
    }

    /// As [`Self::recv`], but first asks over and over for up to `spin`, which saves the wake-up
    /// of the thread and costs the core.
    pub(crate) fn recv_spin(
        &self,
        buf: &mut [u8],
        spin: Duration,
        timeout: Duration,
    ) -> io::Result<usize> {
        let until = super::after(spin);
        loop {
            match self.recv_with(buf, RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN | Errno::INTR) if clock::now() < until => std::hint::spin_loop(),
                Err(Errno::AGAIN | Errno::INTR) => return self.recv(buf, timeout),
                r => return finished(r),
            }
        }
    }

    /// As [`Self::recv`], but ends at a moment: for what arrives in pieces. Two system calls.
    pub(crate) fn recv_by(&self, buf: &mut [u8], deadline: Instant) -> io::Result<usize> {
        loop {
            self.poll_until(PollFlags::IN, deadline)?;
            match self.recv_with(buf, RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                r => return finished(r),
            }
        }
    }

    /// Whether the peer has said nothing and has not hung up either: what is to be expected between
    /// two calls. Does not wait. Fails with `UnexpectedEof` when the connection was closed, and with
    /// `InvalidData` when there are bytes nobody asked for.
    pub(crate) fn expect_silence(&self) -> io::Result<()> {
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        match self.recv_with(&mut [0], flags) {
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Ok(n) if n > 0 => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the server said something unasked",
            )),
            r => finished(r).map(|_| ()),
        }
    }

    fn recv_with(&self, buf: &mut [u8], flags: RecvFlags) -> Result<usize, Errno> {
        debug_assert!(!buf.is_empty(), "nothing read would look like a hang-up");
        rustix::net::recv(&self.inner, buf, flags).map(|(_, n)| n)
    }

    /// Writes all of `bytes`, waiting up to `timeout` in total where the peer does not take them.
    /// After a failure the peer may hold half a command: the connection is of no more use.
    pub(crate) fn send_all(&self, bytes: &[u8], timeout: Duration) -> Result<(), SendError> {
        let mut written = 0;
        let mut deadline = None;
        while written < bytes.len() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let source = match rustix::net::send(&self.inner, &bytes[written..], flags) {
                Ok(n) => {
                    written += n;
                    continue;
                }
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {
                    let deadline = *deadline.get_or_insert_with(|| super::after(timeout));
                    match self.poll_until(PollFlags::OUT, deadline) {
                        Ok(()) => continue,
                        Err(e) => e,
                    }
                }
                Err(e) => e.into(),
            };
            return Err(SendError { written, source });
        }
        Ok(())
    }

    /// Ends the connection for both sides: whoever waits on it returns at once. The descriptor is
    /// freed when the last owner drops it.
    pub(crate) fn shutdown(&self) {
        self.shut.store(true, Ordering::Release);
        // fails only when the peer was faster
        let _ = self.inner.shutdown(std::net::Shutdown::Both);
    }

    /// As [`Self::shutdown`], and the kernel forgets what it has not delivered yet: after a time-out
    /// that could arrive much later, behind what was sent over the next connection.
    pub(crate) fn abort(&self) {
        let _ = self.inner.set_linger(Some(Duration::ZERO));
        self.shutdown();
    }

    /// Whether it was this process that ended the connection.
    pub(crate) fn is_shut(&self) -> bool {
        self.shut.load(Ordering::Acquire)
    }

    /// Costs a system call only when the value changes.
    fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        // 0 would mean for ever to the kernel
        let micros = timeout.as_micros().clamp(1, 1 << 50) as u64;
        if self.read_timeout.load(Ordering::Relaxed) != micros {
            self.inner
                .set_read_timeout(Some(Duration::from_micros(micros)))?;
            self.read_timeout.store(micros, Ordering::Relaxed);
        }
        Ok(())
    }

    fn poll_until(&self, flags: PollFlags, deadline: Instant) -> io::Result<()> {
        loop {
            let left = deadline.saturating_duration_since(clock::now());
            if poll_for(&self.inner, flags, left)? {
                return Ok(());
            }
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }
}

/// What a read gives, in the terms of this crate.
fn finished(read: Result<usize, Errno>) -> io::Result<usize> {
    match read {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(n) => Ok(n),
        Err(Errno::AGAIN) => Err(io::ErrorKind::TimedOut.into()),
        Err(e) => Err(e.into()),
    }
}

/// Whether anything happened within `time`. A signal counts as nothing.
fn poll_for(socket: &socket2::Socket, flags: PollFlags, time: Duration) -> io::Result<bool> {
    let time = Timespec::try_from(time).ok();
    match poll(&mut [PollFd::new(socket, flags)], time.as_ref()) {
        Ok(n) => Ok(n > 0),
        Err(Errno::INTR) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

fn await_connected(
    socket: &socket2::Socket,
    deadline: Instant,
    interrupt: &Interrupt,
) -> io::Result<()> {
    loop {
        if interrupt.is_cut() {
            return Err(io::Error::other("asked to end"));
        }
        let left = deadline.saturating_duration_since(clock::now());
        if poll_for(socket, PollFlags::OUT, left.min(SLICE))? {
            return socket.take_error()?.map_or(Ok(()), Err);
        }
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

fn shown(address: &SockAddr) -> String {
    match (address.as_socket(), address.as_pathname()) {
        (Some(ip), _) => ip.to_string(),
        (_, Some(path)) => path.display().to_string(),
        _ => "?".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
        thread,
    };

    use super::*;
    use crate::net::interrupt::STOP;

    const LONG: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_millis(30);

    fn connected() -> (Socket, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().into();
        let ours = Socket::connect(&[address], clock::now() + LONG, &Interrupt::default());
        (ours.unwrap(), listener.accept().unwrap().0)
    }

    /// A port nobody listens on.
    fn dead_address() -> SockAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().into()
    }

    #[test]
    fn a_connection_is_set_up_for_low_latency_and_dead_peers() {
        let (s, _peer) = connected();
        assert!(s.inner.tcp_nodelay().unwrap());
        assert!(s.inner.keepalive().unwrap());
        assert_eq!(s.inner.tcp_keepalive_time().unwrap(), KEEPALIVE_IDLE);
        assert_eq!(
            s.inner.tcp_keepalive_interval().unwrap(),
            KEEPALIVE_INTERVAL
        );
        assert_eq!(s.inner.tcp_keepalive_retries().unwrap(), KEEPALIVE_COUNT);
        assert_eq!(s.inner.tcp_user_timeout().unwrap(), Some(USER_TIMEOUT));
        assert!(!s.inner.nonblocking().unwrap());
    }

    #[test]
    fn every_address_is_tried_and_every_failure_told() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let good = listener.local_addr().unwrap().into();
        let (bad, worse) = (dead_address(), SockAddr::unix("/nonexistent/sock").unwrap());
        let go =
            |all: &[SockAddr]| Socket::connect(all, clock::now() + LONG, &Interrupt::default());
        go(&[bad.clone(), worse.clone(), good]).unwrap();
        let e = go(&[bad.clone(), worse]).unwrap_err().to_string();
        assert!(
            e.contains(&shown(&bad)) && e.contains("/nonexistent/sock: "),
            "{e}"
        );
        assert_eq!(
            go(&[bad]).unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
        assert_eq!(go(&[]).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_dial_that_hangs_ends_at_its_deadline_or_when_stopped() {
        // A Unix listener whose queue is full leaves a dial waiting, as a dead network does.
        let dir = std::env::temp_dir().join(format!("streamlane-queue-{}", std::process::id()));
        let _ = std::fs::remove_file(&dir);
        let address = SockAddr::unix(&dir).unwrap();
        let listener = socket2::Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        listener.bind(&address).unwrap();
        listener.listen(0).unwrap();
        let dial = |time, i: &Interrupt| {
            Socket::connect(std::slice::from_ref(&address), clock::now() + time, i)
        };
        let idle = Interrupt::default();
        let mut held = Vec::new();
        let refused = loop {
            match dial(SHORT, &idle) {
                Ok(s) => held.push(s),
                Err(e) => break e,
            }
        };
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);

        let interrupt = Interrupt::default();
        let started = clock::now();
        thread::scope(|s| {
            let dialler = s.spawn(|| dial(LONG, &interrupt));
            interrupt.set(STOP);
            dialler.join().unwrap().unwrap_err();
        });
        assert!(started.elapsed() < LONG);
        let _ = std::fs::remove_file(&dir);
    }

    #[test]
    fn reads_end_at_their_time_in_every_manner() {
        let (s, mut peer) = connected();
        let mut buf = [0; 8];
        for timeout in [SHORT, SHORT, Duration::ZERO] {
            let started = clock::now();
            let e = s.recv(&mut buf, timeout).unwrap_err();
            assert_eq!(e.kind(), io::ErrorKind::TimedOut);
            assert!(started.elapsed() >= timeout / 2);
        }
        let e = s.recv_by(&mut buf, clock::now() + SHORT).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::TimedOut);
        let e = s.recv_spin(&mut buf, SHORT, SHORT).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::TimedOut);
        s.expect_silence().unwrap();

        peer.write_all(b"abc").unwrap();
        assert_eq!(s.recv_spin(&mut buf[..1], LONG, LONG).unwrap(), 1);
        let e = s.expect_silence().unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::InvalidData);
        assert_eq!(s.recv(&mut buf[..1], LONG).unwrap(), 1);
        assert_eq!(s.recv_by(&mut buf, clock::now() + LONG).unwrap(), 1);

        drop(peer);
        let e = s.recv(&mut buf, LONG).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::UnexpectedEof);
        let e = s.expect_silence().unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_peer_that_takes_nothing_ends_a_write_and_how_far_it_came_is_known() {
        let (s, mut peer) = connected();
        let big = vec![7; 32 << 20];
        let e = s.send_all(&big, SHORT).unwrap_err();
        assert_eq!(e.source.kind(), io::ErrorKind::TimedOut);
        assert!(e.written > 0 && e.written < big.len());
        s.shutdown();
        let mut got = Vec::new();
        peer.read_to_end(&mut got).unwrap();
        assert_eq!(got.len(), e.written);
        let e = s.send_all(b"x", SHORT).unwrap_err();
        assert_eq!(e.written, 0);
    }

    #[test]
    fn a_large_write_goes_on_as_the_peer_reads() {
        let (s, mut peer) = connected();
        let big = vec![7; 8 << 20];
        thread::scope(|scope| {
            scope.spawn(|| {
                s.send_all(&big, LONG).unwrap();
                s.shutdown();
            });
            let mut got = Vec::new();
            peer.read_to_end(&mut got).unwrap();
            assert_eq!(got.len(), big.len());
        });
    }
}
