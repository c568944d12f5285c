//! How many handler calls of a consumer may run at once in this process.

use std::{sync::Arc, time::Duration};

use parking_lot::{Condvar, Mutex};

use crate::net::Interrupt;

/// So many calls may run.
#[derive(Debug)]
pub(crate) struct Permits {
    most: u32,
    used: Mutex<u32>,
    returned: Condvar,
}

/// The right to make one call; given back when it is dropped, whatever ends the call.
#[derive(Debug)]
pub(crate) struct Permit(Arc<Permits>);

/// How soon a lane that waits for a permit hears that it is called away.
const TICK: Duration = Duration::from_millis(20);

impl Permits {
    pub(crate) fn new(most: u32) -> Self {
        Self {
            most,
            used: Mutex::new(0),
            returned: Condvar::new(),
        }
    }

    /// A permit, if there is one now.
    pub(crate) fn try_take(self: &Arc<Self>) -> Option<Permit> {
        let mut used = self.used.lock();
        if *used >= self.most {
            return None;
        }
        *used += 1;
        Some(Permit(Arc::clone(self)))
    }

    /// Waits for a permit. `None`, without one, as soon as one of the bits is set.
    pub(crate) fn take(self: &Arc<Self>, interrupt: &Interrupt, wake_on: u32) -> Option<Permit> {
        let mut used = self.used.lock();
        while *used >= self.most {
            if interrupt.bits() & wake_on != 0 {
                return None;
            }
            self.returned.wait_for(&mut used, TICK);
        }
        *used += 1;
        Some(Permit(Arc::clone(self)))
    }

    #[cfg(test)]
    fn used(&self) -> u32 {
        *self.used.lock()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *self.0.used.lock() -= 1;
        self.0.returned.notify_one();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{
        sync::atomic::{AtomicU32, Ordering::SeqCst},
        thread,
    };

    use super::*;
    use crate::net::STOP;

    #[test]
    fn mq_08_a_permit_is_never_lost_or_made_up_whatever_ends_the_wait() {
        let permits = Arc::new(Permits::new(3));
        let (now, most) = (AtomicU32::new(0), AtomicU32::new(0));
        let stop = Interrupt::default();
        thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| {
                    for _ in 0..200 {
                        let Some(_permit) = permits.take(&stop, STOP) else {
                            return;
                        };
                        most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                        thread::yield_now();
                        now.fetch_sub(1, SeqCst);
                    }
                });
            }
        });
        assert!(most.load(SeqCst) <= 3);
        assert_eq!(permits.used(), 0);
        let all: Vec<_> = (0..3).map(|_| permits.take(&stop, STOP).unwrap()).collect();
        thread::scope(|s| {
            let waits = s.spawn(|| permits.take(&stop, STOP).is_none());
            stop.set(STOP);
            assert!(waits.join().unwrap(), "called away without a permit");
        });
        assert_eq!(permits.used(), 3, "none was lost or made up");
        drop(all);
        assert_eq!(permits.used(), 0);
    }
}
