//! How a thread is called away: out of a sleep, out of a wait for its turn, out of a read.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use super::socket::Socket;
use crate::clock;

/// The thread is to end: the one bit this module looks at itself. All others belong to the users.
pub(crate) const STOP: u32 = 1;

/// Bits that others set and one thread watches, together with the socket that thread may be blocked
/// on.
#[derive(Debug, Default)]
pub(crate) struct Interrupt {
    bits: AtomicU32,
    state: Mutex<State>,
    woken: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The bits that ask for more than a look: no read may block while one of them is set.
    cut: u32,
    /// Counts calls of `wake`, so that one which comes before the wait is not missed.
    wakes: u64,
    /// Weak, so that an idle interrupt keeps no descriptor open.
    socket: Weak<Socket>,
}

impl Interrupt {
    /// The bits now set. One load: cheap enough to ask before every message.
    #[inline]
    pub(crate) fn bits(&self) -> u32 {
        self.bits.load(Ordering::Acquire)
    }

    /// Sets bits and ends sleeps that wake on them. A blocked read goes on.
    pub(crate) fn set(&self, bits: u32) {
        // The lock is what makes a sleeper that has just looked see the notification.
        let _state = self.state.lock();
        self.bits.fetch_or(bits, Ordering::Release);
        self.woken.notify_all();
    }

    /// Sets bits and shuts the attached socket down, so that a blocked read or write returns at
    /// once. Until the bits are cleared, sockets attached later are shut as well.
    pub(crate) fn cut(&self, bits: u32) {
        let socket = {
            let mut state = self.state.lock();
            state.cut |= bits;
            self.bits.fetch_or(bits, Ordering::Release);
            self.woken.notify_all();
            state.socket.upgrade()
        };
        if let Some(socket) = socket {
            socket.shutdown();
        }
    }

    /// Takes bits back. A socket they have shut stays shut.
    pub(crate) fn clear(&self, bits: u32) {
        let mut state = self.state.lock();
        state.cut &= !bits;
        self.bits.fetch_and(!bits, Ordering::Release);
        self.woken.notify_all();
    }

    /// Makes `socket` the one that [`Self::cut`] shuts, in place of any other. There is no detaching:
    /// a socket that was dropped is forgotten by itself.
    pub(crate) fn attach(&self, socket: &Arc<Socket>) {
        let mut state = self.state.lock();
        state.socket = Arc::downgrade(socket);
        if state.cut != 0 {
            socket.shutdown();
        }
    }

    /// Sleeps for `time`, or until one of the bits `wake_on` is set: then it returns true, at once
    /// when the bit was set before.
    pub(crate) fn sleep(&self, time: Duration, wake_on: u32) -> bool {
        let until = super::after(time);
        let mut state = self.state.lock();
        loop {
            if self.bits() & wake_on != 0 {
                return true;
            }
            if self.woken.wait_until(&mut state, until).timed_out() {
                return self.bits() & wake_on != 0;
            }
        }
    }

    /// Waits until one of the bits `wanted` is set.
    pub(crate) fn wait_set(&self, wanted: u32) {
        let mut state = self.state.lock();
        while self.bits() & wanted == 0 {
            self.woken.wait(&mut state);
        }
    }

    /// Waits until none of the bits `held` is set, or one of `wake_on` is.
    pub(crate) fn wait_clear(&self, held: u32, wake_on: u32) {
        let mut state = self.state.lock();
        while self.bits() & held != 0 && self.bits() & wake_on == 0 {
            self.woken.wait(&mut state);
        }
    }

    /// Whether nothing may block any more: [`STOP`], or a cut whose bits are still set.
    pub(crate) fn is_cut(&self) -> bool {
        let state = self.state.lock();
        self.is_cut_under(&state)
    }

    fn is_cut_under(&self, state: &State) -> bool {
        state.cut != 0 || self.bits() & STOP != 0
    }

    /// How often [`Self::wake`] was called: to be read before looking at what one waits for.
    pub(super) fn wakes(&self) -> u64 {
        self.state.lock().wakes
    }

    /// Ends a [`Self::wait`] without setting any bit.
    pub(super) fn wake(&self) {
        self.state.lock().wakes += 1;
        self.woken.notify_all();
    }

    /// Waits for a wake-up later than `seen`, a cut, or the moment `until`.
    pub(super) fn wait(&self, seen: u64, until: Instant) {
        let mut state = self.state.lock();
        while state.wakes == seen && !self.is_cut_under(&state) {
            if self.woken.wait_until(&mut state, until).timed_out() {
                return;
            }
        }
    }

    /// Waits for `time` at most, or until a cut.
    pub(super) fn pause(&self, time: Duration) {
        self.wait(self.wakes(), clock::now() + time);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const RESET: u32 = 2;
    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn a_bit_set_before_or_during_a_sleep_ends_it() {
        let interrupt = Arc::new(Interrupt::default());
        interrupt.set(RESET);
        assert!(interrupt.sleep(LONG, RESET));
        assert!(!interrupt.sleep(Duration::from_millis(5), STOP));
        interrupt.clear(RESET);
        assert!(!interrupt.sleep(Duration::from_millis(5), RESET));

        for _ in 0..200 {
            let started = clock::now();
            thread::scope(|s| {
                let sleeper = s.spawn(|| interrupt.sleep(LONG, RESET));
                interrupt.set(RESET);
                assert!(sleeper.join().unwrap());
            });
            assert!(started.elapsed() < LONG);
            interrupt.clear(RESET);
        }
    }

    #[test]
    fn a_wake_up_between_the_look_and_the_wait_is_not_missed() {
        let interrupt = Interrupt::default();
        let started = clock::now();
        let seen = interrupt.wakes();
        interrupt.wake();
        interrupt.wait(seen, started + LONG);
        interrupt.set(STOP);
        interrupt.wait(interrupt.wakes(), started + LONG);
        assert!(started.elapsed() < LONG);
        assert!(interrupt.is_cut());
    }

    #[test]
    fn a_cut_ends_a_blocked_read_and_shuts_what_comes_later() {
        let (ours, _theirs) = Socket::pair();
        let ours = Arc::new(ours);
        let interrupt = Interrupt::default();
        interrupt.attach(&ours);
        thread::scope(|s| {
            let reader = s.spawn(|| ours.recv(&mut [0; 8], LONG));
            interrupt.cut(RESET);
            let e = reader.join().unwrap().unwrap_err();
            assert_eq!(e.kind(), std::io::ErrorKind::UnexpectedEof);
        });
        assert!(ours.is_shut() && interrupt.is_cut());

        let (later, _theirs) = Socket::pair();
        let later = Arc::new(later);
        interrupt.attach(&later);
        assert!(later.is_shut());

        interrupt.clear(RESET);
        assert!(!interrupt.is_cut());
        let (fresh, _theirs) = Socket::pair();
        let fresh = Arc::new(fresh);
        interrupt.attach(&fresh);
        assert!(!fresh.is_shut());
    }

    #[test]
    fn an_interrupt_keeps_no_socket_open() {
        let (ours, theirs) = Socket::pair();
        let ours = Arc::new(ours);
        let interrupt = Interrupt::default();
        interrupt.attach(&ours);
        drop(ours);
        let e = theirs.recv(&mut [0; 8], LONG).unwrap_err();
        assert_eq!(e.kind(), std::io::ErrorKind::UnexpectedEof);
        interrupt.cut(STOP);
    }
}
