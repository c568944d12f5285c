//! How a thread is called away: out of a sleep, out of a wait for its turn, out of a read.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use super::socket::Socket;
use crate::{
    clock,
    sync::{AtomicU32, Condvar, Mutex, Ordering},
};

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
    pub(crate) fn wakes(&self) -> u64 {
        self.state.lock().wakes
    }

    /// Ends a [`Self::wait`] without setting any bit.
    pub(crate) fn wake(&self) {
        self.state.lock().wakes += 1;
        self.woken.notify_all();
    }

    /// Waits for a wake-up later than `seen`, a cut, or the moment `until`.
    pub(crate) fn wait(&self, seen: u64, until: Instant) {
        let mut state = self.state.lock();
        while state.wakes == seen && !self.is_cut_under(&state) {
            if self.woken.wait_until(&mut state, until).timed_out() {
                return;
            }
        }
    }

    /// Waits for `time` at most, or until a cut.
    pub(crate) fn pause(&self, time: Duration) {
        self.wait(self.wakes(), clock::now() + time);
    }
}

#[cfg(all(test, not(loom)))]
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

#[cfg(all(test, loom))]
mod model {
    use loom::thread;

    use super::*;

    const PAUSE: u32 = 2;
    const LONG: Duration = Duration::from_secs(20);

    /// Runs `ours` and `theirs` at the same time on one interrupt, in every order. A wake-up that is
    /// missed shows as a deadlock, because no wait times out here.
    fn together(
        ours: fn(&Interrupt),
        theirs: fn(&Interrupt),
        before: fn(&Interrupt),
        after: fn(&Interrupt),
    ) {
        loom::model(move || {
            let interrupt = Arc::new(Interrupt::default());
            before(&interrupt);
            let other = Arc::clone(&interrupt);
            let t = thread::spawn(move || theirs(&other));
            ours(&interrupt);
            t.join().unwrap();
            after(&interrupt);
        });
    }

    fn nothing(_: &Interrupt) {}

    #[test]
    fn a_sleep_ends_with_each_way_of_setting_its_bit() {
        let sleep = |i: &Interrupt| assert!(i.sleep(LONG, STOP), "woken for nothing");
        together(sleep, |i| i.set(STOP), nothing, nothing);
        together(sleep, |i| i.cut(STOP), nothing, nothing);
        let other_first = |i: &Interrupt| {
            i.set(PAUSE);
            i.set(STOP);
        };
        together(sleep, other_first, nothing, nothing);
    }

    #[test]
    fn who_is_held_goes_on_when_cleared_or_stopped() {
        let held = |i: &Interrupt| i.wait_clear(PAUSE, STOP);
        let pause = |i: &Interrupt| i.set(PAUSE);
        together(held, |i| i.clear(PAUSE), pause, |i| assert_eq!(i.bits(), 0));
        together(held, |i| i.cut(STOP), pause, |i| assert!(i.is_cut()));
        let both = |i: &Interrupt| {
            i.clear(PAUSE);
            i.set(STOP);
        };
        together(held, both, pause, nothing);
    }

    #[test]
    fn a_wait_ends_with_a_wake_up_after_the_look_or_with_a_cut() {
        let wait = |i: &Interrupt| {
            let seen = i.wakes();
            // here one looks for what one waits for; STOP stands for it
            if i.bits() & STOP == 0 {
                i.wait(seen, clock::now() + LONG);
            }
        };
        let tell_then_wake = |i: &Interrupt| {
            i.bits.fetch_or(STOP, Ordering::Release);
            i.wake();
        };
        together(wait, tell_then_wake, nothing, nothing);
        together(wait, |i| i.cut(PAUSE), nothing, nothing);
    }

    /// The socket that is attached in the end is shut, and so is each that was attached while the cut
    /// lasted.
    #[test]
    fn a_cut_shuts_the_socket_however_late_it_is_attached() {
        loom::model(|| {
            let interrupt = Arc::new(Interrupt::default());
            let other = Arc::clone(&interrupt);
            let t = thread::spawn(move || other.cut(PAUSE));
            let [first, second] = [Socket::pair().0, Socket::pair().0].map(Arc::new);
            interrupt.attach(&first);
            let seen = interrupt.is_cut();
            interrupt.attach(&second);
            assert!(!seen || second.is_shut(), "attached during the cut");
            t.join().unwrap();
            assert!(second.is_shut(), "the last one attached");
        });
    }

    #[test]
    fn what_is_attached_after_a_clear_stays_open() {
        loom::model(|| {
            let interrupt = Arc::new(Interrupt::default());
            let other = Arc::clone(&interrupt);
            let t = thread::spawn(move || {
                other.cut(PAUSE);
                other.clear(PAUSE);
                let socket = Arc::new(Socket::pair().0);
                other.attach(&socket);
                socket
            });
            assert!(interrupt.bits() & !PAUSE == 0);
            let socket = t.join().unwrap();
            assert!(!socket.is_shut() && !interrupt.is_cut());
        });
    }
}
