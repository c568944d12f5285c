//! Names to addresses. The system's lookup cannot be interrupted, so it runs on one thread of its
//! own, and who asks waits no longer than they said.

use std::{
    collections::VecDeque,
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    sync::{Arc, LazyLock, OnceLock},
    thread,
    time::Instant,
};

use super::interrupt::Interrupt;
use crate::{
    clock,
    sync::{Condvar, Mutex},
};

type Lookup = fn(&str, u16) -> io::Result<Vec<SocketAddr>>;

static RESOLVER: LazyLock<io::Result<Arc<Resolver>>> =
    LazyLock::new(|| Resolver::start(|host, port| Ok((host, port).to_socket_addrs()?.collect())));

/// The addresses of `host`, at least one; an IP literal is its own, and needs no lookup.
///
/// Waits until `deadline` at most, and ends early when `interrupt` is cut.
pub(crate) fn resolve(
    host: &str,
    port: u16,
    deadline: Instant,
    interrupt: &Arc<Interrupt>,
) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![(ip, port).into()]);
    }
    match &*RESOLVER {
        Ok(resolver) => resolver.ask(host, port, deadline, interrupt),
        Err(e) => Err(io::Error::new(
            e.kind(),
            format!("the resolver thread could not be started: {e}"),
        )),
    }
}

struct Resolver {
    lookup: Lookup,
    /// The first is the one being looked up.
    queue: Mutex<VecDeque<Arc<Job>>>,
    filled: Condvar,
}

/// One lookup, shared by all who ask for the same name before it is answered.
struct Job {
    host: Box<str>,
    port: u16,
    answer: OnceLock<io::Result<Vec<SocketAddr>>>,
    waiting: Mutex<Vec<Arc<Interrupt>>>,
}

impl Resolver {
    fn start(lookup: Lookup) -> io::Result<Arc<Self>> {
        let resolver = Arc::new(Self {
            lookup,
            queue: Mutex::default(),
            filled: Condvar::new(),
        });
        let worker = Arc::clone(&resolver);
        thread::Builder::new()
            .name("resolver".into())
            .spawn(move || {
                loop {
                    worker.answer_next();
                }
            })?;
        Ok(resolver)
    }

    fn answer_next(&self) {
        let job = self.next_wanted();
        let mut answer = (self.lookup)(&job.host, job.port);
        if answer.as_ref().is_ok_and(Vec::is_empty) {
            answer = Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the name has no address",
            ));
        }
        // whoever joins from here on starts a lookup of their own
        self.queue.lock().pop_front();
        let _ = job.answer.set(answer);
        for waiter in job.waiting.lock().drain(..) {
            waiter.wake();
        }
    }

    /// Waits for a job somebody still waits for; it stays first in the queue.
    fn next_wanted(&self) -> Arc<Job> {
        let mut queue = self.queue.lock();
        loop {
            match queue.front() {
                None => self.filled.wait(&mut queue),
                // the queue alone holds it: all who asked have given up
                Some(job) if Arc::strong_count(job) == 1 => _ = queue.pop_front(),
                Some(job) => return Arc::clone(job),
            }
        }
    }

    fn ask(
        &self,
        host: &str,
        port: u16,
        deadline: Instant,
        interrupt: &Arc<Interrupt>,
    ) -> io::Result<Vec<SocketAddr>> {
        let job = self.join(host, port);
        job.waiting.lock().push(Arc::clone(interrupt));
        loop {
            let seen = interrupt.wakes();
            match job.answer.get() {
                Some(Ok(found)) => return Ok(found.clone()),
                Some(Err(e)) => return Err(io::Error::new(e.kind(), e.to_string())),
                None if interrupt.is_cut() => return Err(io::Error::other("asked to end")),
                None if clock::now() >= deadline => return Err(io::ErrorKind::TimedOut.into()),
                None => interrupt.wait(seen, deadline),
            }
        }
    }

    fn join(&self, host: &str, port: u16) -> Arc<Job> {
        let mut queue = self.queue.lock();
        if let Some(job) = queue.iter().find(|j| &*j.host == host && j.port == port) {
            return Arc::clone(job);
        }
        let job = Arc::new(Job {
            host: host.into(),
            port,
            answer: OnceLock::new(),
            waiting: Mutex::default(),
        });
        queue.push_back(Arc::clone(&job));
        self.filled.notify_one();
        job
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{
        sync::atomic::{AtomicU32, Ordering},
        time::Duration,
    };

    use super::*;
    use crate::net::interrupt::STOP;

    const LONG: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_millis(30);

    fn resolved(host: &str) -> io::Result<Vec<SocketAddr>> {
        resolve(host, 7, clock::now() + LONG, &Arc::default())
    }

    #[test]
    fn names_and_literals_become_addresses() {
        assert_eq!(resolved("::1").unwrap(), ["[::1]:7".parse().unwrap()]);
        assert_eq!(
            resolved("127.0.0.1").unwrap(),
            ["127.0.0.1:7".parse().unwrap()]
        );
        let local = resolved("localhost").unwrap();
        assert!(local.iter().all(|a| a.ip().is_loopback() && a.port() == 7));
        resolved("name with spaces.invalid").unwrap_err();
    }

    #[test]
    fn a_stuck_lookup_holds_nobody_beyond_their_time_and_the_same_name_is_asked_for_once() {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        static GATE: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());
        let resolver = Resolver::start(|_, port| {
            STARTED.fetch_add(1, Ordering::SeqCst);
            let mut open = GATE.0.lock();
            while !*open {
                GATE.1.wait(&mut open);
            }
            Ok(vec![([127, 0, 0, 1], port).into()])
        })
        .unwrap();
        let ask = |host, time, i: &Arc<Interrupt>| resolver.ask(host, 1, clock::now() + time, i);
        let idle = Arc::default();

        thread::scope(|s| {
            let patient = || s.spawn(|| ask("stuck", LONG, &Arc::default()));
            let mut patients = vec![patient()];
            while STARTED.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            for host in ["stuck", "other"] {
                let e = ask(host, SHORT, &idle).unwrap_err();
                assert_eq!(e.kind(), io::ErrorKind::TimedOut);
            }
            let stopped = Arc::new(Interrupt::default());
            stopped.set(STOP);
            ask("stuck", LONG, &stopped).unwrap_err();

            patients.extend((0..4).map(|_| patient()));
            let job = resolver.join("stuck", 1);
            // the two who gave up are still on the list
            while job.waiting.lock().len() < 5 + 2 {
                thread::yield_now();
            }
            *GATE.0.lock() = true;
            GATE.1.notify_all();
            for p in patients {
                assert_eq!(p.join().unwrap().unwrap().len(), 1);
            }
        });
        assert_eq!(
            STARTED.load(Ordering::SeqCst),
            1,
            "nobody waits for `other`"
        );
        ask("other", LONG, &idle).unwrap();
    }
}

#[cfg(all(test, loom))]
mod model {
    use std::time::Duration;

    use loom::thread;

    use super::*;

    /// Neither the resolver's wake-up nor that of who asks is missed: each would be a deadlock.
    #[test]
    fn who_asks_is_answered_whoever_is_first() {
        loom::model(|| {
            let resolver = Arc::new(Resolver {
                lookup: |_, port| Ok(vec![([127, 0, 0, 1], port).into()]),
                queue: Mutex::default(),
                filled: Condvar::new(),
            });
            let worker = Arc::clone(&resolver);
            let worker = thread::spawn(move || worker.answer_next());
            let deadline = clock::now() + Duration::from_secs(20);
            let found = resolver.ask("host", 7, deadline, &Arc::default()).unwrap();
            assert_eq!(found[0].port(), 7);
            worker.join().unwrap();
            assert!(resolver.queue.lock().is_empty());
        });
    }
}
