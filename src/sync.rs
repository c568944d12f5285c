//! The primitives that hand-made synchronisation is built of: the real ones, or loom's under
//! `cfg(loom)`, so that the models explore the very code that runs.

#[cfg(not(loom))]
pub(crate) use {
    parking_lot::{Condvar, Mutex, MutexGuard},
    std::sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
    },
};

#[cfg(loom)]
pub(crate) use {
    loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
    modelled::{Condvar, Mutex, MutexGuard, OnceLock},
};

/// To be called in a loop that waits for another thread's few instructions.
pub(crate) fn spin() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::hint::spin_loop();
}

/// Lets other threads that could run on this core do so first. In models they may or may not, as always:
/// loom's own yielding would have it that they do.
pub(crate) fn pause() {
    #[cfg(not(loom))]
    std::thread::yield_now();
}

/// loom's lock and condition in the shape of parking_lot's, and the standard library's cell that is
/// written once, in which loom sees who wrote it. No wait ever times out: a thread that relied on that
/// shows as a deadlock.
#[cfg(loom)]
mod modelled {
    use std::{
        ops::{Deref, DerefMut},
        sync::OnceLock as Cell,
        time::Instant,
    };

    use loom::sync::{
        self,
        atomic::{AtomicBool, Ordering},
    };

    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(sync::Mutex<T>);

    /// Empty only while its thread waits on a condition.
    #[derive(Debug)]
    pub(crate) struct MutexGuard<'a, T>(Option<sync::MutexGuard<'a, T>>);

    #[derive(Debug, Default)]
    pub(crate) struct Condvar(sync::Condvar);

    pub(crate) struct InTime;

    #[derive(Debug)]
    pub(crate) struct OnceLock<T> {
        cell: Cell<T>,
        is_written: AtomicBool,
        writing: Mutex<()>,
    }

    impl<T> OnceLock<T> {
        pub(crate) fn new() -> Self {
            Self {
                cell: Cell::new(),
                is_written: AtomicBool::new(false),
                writing: Mutex::new(()),
            }
        }

        pub(crate) fn get(&self) -> Option<&T> {
            let written = self.is_written.load(Ordering::Acquire);
            self.cell.get().filter(|_| written)
        }

        pub(crate) fn get_or_init(&self, f: impl FnOnce() -> T) -> &T {
            let _writing = self.writing.lock();
            let value = self.cell.get_or_init(f);
            self.is_written.store(true, Ordering::Release);
            value
        }
    }

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(self.0.lock().ok())
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().expect("held")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("held")
        }
    }

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self::default()
        }

        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let held = guard.0.take().expect("held");
            guard.0 = self.0.wait(held).ok();
        }

        pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _: Instant) -> InTime {
            self.wait(guard);
            InTime
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    impl InTime {
        pub(crate) fn timed_out(&self) -> bool {
            false
        }
    }
}
