//! How the pump is called to work: once, by whoever queues the message it waits for.

use std::{sync::Arc, time::Duration};

use crate::{
    net::{Interrupt, STOP},
    sync::{AtomicU64, Ordering, fence},
};

/// Somebody wants the pump to look around.
const RING: u32 = 1 << 1;

/// The pump is at work and will look at the queue by itself.
const BUSY: u64 = u64::MAX;
/// The pump has gone and will not look again.
const GONE: u64 = 0;

/// Between those who queue messages and the pump. Queueing wakes nobody, unless the message completes
/// what the pump waits for.
#[derive(Debug)]
pub(super) struct Bell {
    /// How many queued messages the pump waits for.
    wanted: AtomicU64,
    interrupt: Arc<Interrupt>,
}

impl Bell {
    pub(super) fn new(interrupt: Arc<Interrupt>) -> Self {
        Self {
            wanted: AtomicU64::new(BUSY),
            interrupt,
        }
    }

    /// To be called after a message was queued; `len` tells how many there are. True when the pump has
    /// gone and will never see the message.
    #[inline]
    #[must_use]
    pub(super) fn queued(&self, len: impl FnOnce() -> usize) -> bool {
        // Either the pump sees the message, or it is seen here what the pump waits for.
        fence(Ordering::SeqCst);
        let wanted = self.wanted.load(Ordering::Relaxed);
        if wanted == BUSY {
            return false;
        }
        wanted == GONE || self.queued_for(wanted, len() as u64)
    }

    #[cold]
    fn queued_for(&self, wanted: u64, len: u64) -> bool {
        if len < wanted {
            return false;
        }
        let (to, how) = (BUSY, Ordering::Relaxed);
        match self.wanted.compare_exchange(wanted, to, how, how) {
            Ok(_) => self.ring(),
            Err(now) => return now == GONE,
        }
        false
    }

    /// Calls the pump whatever it waits for.
    pub(super) fn ring(&self) {
        self.interrupt.set(RING);
    }

    /// Waits until `n` messages are queued, somebody rings, or `time` has passed; perhaps for less. Only
    /// the pump calls it.
    pub(super) fn wait(&self, n: usize, time: Duration, len: impl FnOnce() -> usize) {
        self.wanted.store(n as u64, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if len() < n {
            self.interrupt.sleep(time, RING | STOP);
        }
        self.interrupt.clear(RING);
        self.wanted.store(BUSY, Ordering::Relaxed);
    }

    /// The pump goes. It looks at the queue once more after this.
    pub(super) fn leave(&self) {
        self.wanted.store(GONE, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::clock;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn only_the_message_that_is_waited_for_rings() {
        let interrupt = Arc::<Interrupt>::default();
        let bell = Bell::new(Arc::clone(&interrupt));
        assert!(!bell.queued(|| 1000), "the pump is at work");
        bell.wanted.store(3, Ordering::Relaxed);
        let rung = || interrupt.bits() == RING;
        for n in 1..3 {
            assert!(!bell.queued(|| n) && !rung());
        }
        assert!(!bell.queued(|| 3) && rung());
        interrupt.clear(RING);
        assert!(!bell.queued(|| 4) && !rung(), "once is enough");
        bell.leave();
        assert!(bell.queued(|| 1));
    }

    #[test]
    fn a_wait_ends_with_what_is_there_a_ring_a_stop_or_in_time() {
        let interrupt = Arc::<Interrupt>::default();
        let bell = Bell::new(Arc::clone(&interrupt));
        let start = clock::now();
        bell.wait(3, LONG, || 3);
        bell.ring();
        bell.wait(3, LONG, || 0);
        bell.wait(3, Duration::from_millis(1), || 2);
        interrupt.cut(STOP);
        bell.wait(3, LONG, || 0);
        assert!(start.elapsed() < LONG);
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    /// A queue of which only the length matters.
    #[derive(Debug, Default)]
    struct Queue(AtomicU64);

    impl Queue {
        fn push(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn len(&self) -> usize {
            self.0.load(Ordering::Relaxed) as usize
        }

        fn take_all(&self) -> u64 {
            self.0.swap(0, Ordering::Relaxed)
        }
    }

    fn of_two() -> Arc<(Bell, Queue)> {
        Arc::new((Bell::new(Arc::default()), Queue::default()))
    }

    /// A call that is missed shows as a deadlock, because no wait times out here.
    #[test]
    fn the_pump_is_called_for_the_last_message_it_waits_for() {
        loom::model(|| {
            let shared = of_two();
            let other = Arc::clone(&shared);
            let t = thread::spawn(move || {
                for _ in 0..2 {
                    other.1.push();
                    assert!(!other.0.queued(|| other.1.len()));
                }
            });
            while shared.1.len() < 2 {
                shared.0.wait(2, LONG, || shared.1.len());
            }
            t.join().unwrap();
        });
    }

    #[test]
    fn of_two_messages_one_calls_the_pump() {
        loom::model(|| {
            let shared = of_two();
            let others: Vec<_> = (0..2)
                .map(|_| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || {
                        shared.1.push();
                        assert!(!shared.0.queued(|| shared.1.len()));
                    })
                })
                .collect();
            if shared.1.len() < 2 {
                shared.0.wait(2, LONG, || shared.1.len());
            }
            for other in others {
                other.join().unwrap();
            }
        });
    }

    #[test]
    fn no_message_stays_behind_when_the_pump_goes() {
        loom::model(|| {
            let shared = of_two();
            let other = Arc::clone(&shared);
            let t = thread::spawn(move || {
                other.1.push();
                if other.0.queued(|| other.1.len()) {
                    other.1.take_all();
                }
            });
            shared.0.leave();
            shared.1.take_all();
            t.join().unwrap();
            assert_eq!(shared.1.len(), 0);
        });
    }
}
