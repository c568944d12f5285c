//! A small listener for those who look from outside: one thread that waits for all its clients at once, so that
//! none holds up another, and a bounded number of them.

mod exchange;

use std::{
    fmt, io,
    net::{SocketAddr, TcpListener, ToSocketAddrs},
    os::unix::net::UnixStream,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{Error, Result, clock};

use exchange::{Exchange, Wants};

/// So many clients are served at a time. One more takes the place of the one that came first.
const MOST: usize = 32;
/// After so long a client is given up, whatever it does.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause after a failure to accept, as when there are no more descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// What is answered to a path.
pub(crate) trait Pages: Send + Sync {
    /// The page there is under a path; `None` when there is none. Asks no server.
    fn page(&self, path: &str) -> Option<Page>;
}

/// A page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Page {
    /// 200 or 503.
    pub(crate) is_fine: bool,
    pub(crate) content_type: &'static str,
    pub(crate) body: String,
}

/// A listener for metrics and health, made by [`Streams::serve_http`](crate::Streams::serve_http). Dropping it
/// closes its socket, gives up who is connected, and waits for its thread, which takes no longer than making
/// one page.
#[must_use = "dropping it closes it"]
pub struct HttpServer {
    addr: SocketAddr,
    /// Closed to end the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl HttpServer {
    /// Listens at the first of these addresses that can be listened at.
    pub(crate) fn start(addr: impl ToSocketAddrs, pages: Arc<dyn Pages>) -> Result<Self> {
        let failed = |e| Error::io("listen for HTTP", e);
        let listener = TcpListener::bind(addr).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let addr = listener.local_addr().map_err(failed)?;
        let (stop, stopped) = UnixStream::pair().map_err(failed)?;
        let serving = Serving {
            listener,
            stopped,
            pages,
            clients: Vec::with_capacity(MOST),
        };
        let thread = thread::Builder::new().name("http".into());
        let thread = thread.spawn(move || serving.run()).map_err(failed)?;
        Ok(Self {
            addr,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Where it listens: of port 0 the one that was chosen.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it catches what pages throw
        }
    }
}

impl fmt::Debug for HttpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpServer")
            .field("addr", &self.addr)
            .finish_non_exhaustive()
    }
}

/// What the thread has.
struct Serving {
    listener: TcpListener,
    stopped: UnixStream,
    pages: Arc<dyn Pages>,
    /// Those who came first are first.
    clients: Vec<Exchange>,
}

impl Serving {
    fn run(mut self) {
        let mut rests_until = None;
        loop {
            let ready = match self.wait(rests_until) {
                Ok(Some(ready)) => ready,
                Ok(None) => return,
                Err(e) => {
                    log::error!("metrics and health are not served any more: {e}");
                    return;
                }
            };
            let now = clock::now();
            let pages = &*self.pages;
            let mut at = 0;
            self.clients.retain_mut(|client| {
                let is_ready = ready.get(at).copied().unwrap_or(false);
                at += 1;
                now < client.until && (!is_ready || client.step(|path| page(pages, path)))
            });
            rests_until = match self.accept(now) {
                Ok(()) => None,
                Err(_) => Some(now + PAUSE),
            };
        }
    }

    /// Waits until there is something to do. Says which clients are ready; `None` when all is over.
    fn wait(&self, rests_until: Option<Instant>) -> io::Result<Option<Vec<bool>>> {
        let now = clock::now();
        let mut fds = vec![PollFd::new(&self.stopped, PollFlags::IN)];
        if rests_until.is_none_or(|until| until <= now) {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        let first = fds.len();
        fds.extend(self.clients.iter().map(|client| {
            let flags = match client.wants() {
                Wants::ToRead => PollFlags::IN,
                Wants::ToWrite => PollFlags::OUT,
            };
            PollFd::new(&client.stream, flags)
        }));
        let ends = self.clients.iter().map(|client| client.until);
        let soonest = ends.chain(rests_until).min();
        let time = soonest.map(|at| at.saturating_duration_since(now) + Duration::from_millis(1));
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        match poll(&mut fds, time.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Some(Vec::new())),
            Err(e) => return Err(e.into()),
        }
        if !fds[0].revents().is_empty() {
            return Ok(None);
        }
        let ready = fds[first..].iter().map(|fd| !fd.revents().is_empty());
        Ok(Some(ready.collect()))
    }

    /// Takes in who waits to be served.
    fn accept(&mut self, now: Instant) -> io::Result<()> {
        for _ in 0..MOST {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // the client has gone already
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            stream.set_nonblocking(true)?;
            if self.clients.len() == MOST {
                self.clients.remove(0);
            }
            self.clients.push(Exchange::new(stream, now + PATIENCE));
        }
        Ok(())
    }
}

/// A page, or that it could not be made.
fn page(pages: &dyn Pages, path: &str) -> Option<Page> {
    // The logger is foreign code, and so are error texts.
    catch_unwind(AssertUnwindSafe(|| pages.page(path))).unwrap_or_else(|_| {
        Some(Page {
            is_fine: false,
            content_type: "text/plain; charset=utf-8",
            body: "this page could not be made: that panicked\n".into(),
        })
    })
}

#[cfg(test)]
mod tests;
