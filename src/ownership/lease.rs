//! The claims of an instance, as the threads of a consumer see them. They are kept by one thread, the
//! [`Renewer`]: it alone writes claims.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::{Instances, Result, fence::Fence, net::STOP, wire::Claimant};

use super::{
    desk::{CLOSE, Desk, Lanes},
    map::Standing,
    renewer::Renewer,
    terms::Terms,
};

/// The claims of one instance of a consumer.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(super) terms: Terms,
    pub(super) claimant: Claimant,
    pub(super) fence: Arc<Fence>,
    /// Whether the server's hash fields expire by themselves.
    pub(super) by_field: AtomicBool,
    pub(super) desk: Desk,
}

/// How soon the thread goes on after it has panicked.
const RETRY: Duration = Duration::from_millis(100);

impl Lease {
    pub(crate) fn new(terms: Terms, claimant: Claimant) -> Self {
        let map = terms.unseen(Instances::Lease, &claimant);
        Self {
            fence: Arc::new(Fence::closed()),
            terms,
            claimant,
            by_field: AtomicBool::new(false),
            desk: Desk::new(map),
        }
    }

    pub(crate) fn fence(&self) -> &Arc<Fence> {
        &self.fence
    }

    /// The whole claim: what each write under it is compared with.
    pub(crate) fn claimant(&self) -> &Claimant {
        &self.claimant
    }

    /// Whether the server's hash fields expire by themselves.
    pub(crate) fn by_field(&self) -> bool {
        self.by_field.load(Relaxed)
    }

    /// Where to leave what the thread has to know.
    pub(crate) fn desk(&self) -> &Desk {
        &self.desk
    }

    /// Keeps the claims until the consumer ends. `begun` is told what came of the first attempt, and
    /// `over` that what could be released was.
    pub(crate) fn run(
        &self,
        lanes: &dyn Lanes,
        mut begun: impl FnMut(Result<()>),
        mut over: impl FnMut(),
    ) {
        let mut renewer = Renewer::new(self, lanes);
        // The logger is foreign code: its panic must not end the keeping of claims. So nothing hangs on a
        // line that is written: what follows from a finding is done before it is told.
        while catch_unwind(AssertUnwindSafe(|| renewer.run(&mut begun, &mut over))).is_err() {
            self.desk.interrupt.sleep(RETRY, STOP | CLOSE);
        }
    }

    pub(super) fn standing(&self, standing: Standing) {
        let mut map = self.desk.map.lock();
        map.seen.standing = standing;
        if standing != Standing::Holding {
            map.seen.owned.clear();
        }
    }
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.terms.topic, self.terms.consumer)
    }
}
