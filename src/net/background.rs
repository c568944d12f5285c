//! A thread that works in the background of a process until its owner is dropped.

use std::{
    convert::Infallible,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use parking_lot::Mutex;

use super::{Interrupt, STOP};

/// How long one that panicked rests, so that what goes wrong each time costs no core.
const REST: Duration = Duration::from_secs(1);

/// Such a thread, which begins when it is first needed. It is told to stop, and waited for, when this is dropped.
pub(crate) struct Background {
    interrupt: Arc<Interrupt>,
    grace: Duration,
    thread: Mutex<Option<Thread>>,
}

struct Thread {
    handle: JoinHandle<()>,
    /// Disconnected when it has ended.
    ended: Receiver<Infallible>,
}

impl Background {
    /// `interrupt` tells it to [`STOP`]. It has the time of `grace` to end by itself, as to hand back what others
    /// wait for; then whatever it waits for is cut off.
    pub(crate) fn new(interrupt: Arc<Interrupt>, grace: Duration) -> Self {
        Self {
            interrupt,
            grace,
            thread: Mutex::default(),
        }
    }

    /// Starts it unless it runs: says whether it ran. What it `does` returns when it is told to stop, and is done
    /// again after a panic, which ends nothing: the logger, for one, is foreign code. Where there can be no thread
    /// a line says what for, and that `without` it.
    pub(crate) fn start<W>(&self, name: &str, without: &str, does: impl FnOnce() -> W) -> bool
    where
        W: FnMut() + Send + 'static,
    {
        let mut thread = self.thread.lock();
        if thread.is_some() {
            return true;
        }
        let (alive, ended) = bounded(0);
        let (mut work, interrupt) = (does(), Arc::clone(&self.interrupt));
        let what = name.to_owned();
        let run = move || {
            while catch_unwind(AssertUnwindSafe(&mut work)).is_err() {
                let tell = || log::error!("the thread {what:?} panicked; it goes on");
                let _ = catch_unwind(AssertUnwindSafe(tell));
                if interrupt.bits() & STOP != 0 {
                    break;
                }
                interrupt.sleep(REST, STOP);
            }
            drop(alive);
        };
        match thread::Builder::new().name(name.into()).spawn(run) {
            Ok(handle) => *thread = Some(Thread { handle, ended }),
            Err(e) => log::warn!("no thread {name:?}, {without}: {e}"),
        }
        false
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.interrupt.set(STOP);
        let Some(Thread { handle, ended }) = self.thread.lock().take() else {
            return;
        };
        if handle.thread().id() == thread::current().id() {
            return; // what it works for was dropped by itself, or by the logger, last of all
        }
        if ended.recv_timeout(self.grace) == Err(RecvTimeoutError::Timeout) {
            self.interrupt.cut(STOP);
        }
        let _ = handle.join(); // a panic was caught where it happened
    }
}

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.thread.lock().is_some();
        f.debug_struct("Background")
            .field("runs", &runs)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crossbeam_channel::unbounded;

    use super::*;
    use crate::{clock, net::socket::Socket};

    #[test]
    fn a_panic_ends_nothing_and_is_followed_by_a_rest() {
        let interrupt = Arc::<Interrupt>::default();
        let background = Background::new(Arc::clone(&interrupt), Duration::from_secs(30));
        let (tx, calls) = unbounded();
        let work = || {
            move || {
                tx.send(clock::now()).expect("the test waits");
                assert!(interrupt.bits() & STOP != 0, "as a logger might");
            }
        };
        assert!(!background.start("panics", "in a test", work));
        let next = || calls.recv_timeout(Duration::from_secs(30)).expect("a call");
        let (first, second) = (next(), next());
        assert!(second - first >= REST, "{:?}", second - first);
        assert!(background.start("panics", "in a test", || || ()), "it runs");
        drop(background);
        assert!(
            calls.is_empty() || calls.len() == 1,
            "the rest was cut short"
        );
    }

    #[test]
    fn what_does_not_end_in_time_is_cut_off_and_what_does_is_not() {
        for (grace, cut) in [(Duration::ZERO, true), (Duration::from_secs(30), false)] {
            let interrupt = Arc::<Interrupt>::default();
            let background = Background::new(Arc::clone(&interrupt), grace);
            let (ours, _theirs) = Socket::pair();
            let socket = Arc::new(ours);
            interrupt.attach(&socket);
            let (begun_tx, begun) = unbounded();
            let work = || {
                let (socket, interrupt) = (Arc::clone(&socket), Arc::clone(&interrupt));
                move || {
                    begun_tx.send(()).expect("the test waits");
                    while interrupt.bits() & STOP == 0 || cut && !socket.is_shut() {
                        thread::yield_now();
                    }
                }
            };
            background.start("waits", "in a test", work);
            begun
                .recv_timeout(Duration::from_secs(30))
                .expect("it begins");
            drop(background);
            assert_eq!(socket.is_shut(), cut);
        }
    }
}
