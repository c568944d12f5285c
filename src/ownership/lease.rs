//! The claims of an instance, as the threads of a consumer see them. They are kept by one thread, the
//! [`Renewer`]: it alone writes claims. What others find out, such as a claim that is gone or a lane that
//! has ended, they leave here.

use std::{
    collections::BTreeSet,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    Instances, Result,
    fence::Fence,
    net::{Interrupt, STOP, Target},
    wire::Claimant,
};

use super::{
    map::{Ownership, Standing},
    renewer::Renewer,
};

/// What the lanes of a consumer are told, and asked. No call may wait for a server or a handler.
pub(crate) trait Lanes {
    /// How many partitions the topic has.
    fn partitions(&self) -> u32;
    /// This is ours from now on: its lane is to be started. False when that cannot be.
    fn take(&self, partition: u32) -> bool;
    /// This is to be finished and stored; then the lease [hears](Lease::left) of it. False when there is
    /// nothing to wait for.
    fn give_up(&self, partition: u32) -> bool;
    /// This is not ours any more: nothing of it may be begun or stored.
    fn cut(&self, partition: u32);
    /// Partitions whose handler has not come back for so long that another instance should have a try.
    fn stalled(&self) -> BTreeSet<u32>;
    /// Partitions whose lane has not ended.
    fn running(&self) -> BTreeSet<u32>;
    /// Those of them whose lane was cut.
    fn occupied(&self) -> BTreeSet<u32>;
    /// Whether all lanes have ended, and what they finished is stored if it can be.
    fn all_done(&self) -> bool;
}

/// What a lease is told once.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) topic: Arc<str>,
    pub(crate) consumer: Arc<str>,
    pub(crate) target: Arc<Target>,
    pub(crate) client_name: String,
    pub(crate) connect_timeout: Duration,
    /// The hash of claims, and the set of expiries beside it.
    pub(crate) hash: String,
    pub(crate) set: String,
    pub(crate) ttl: Duration,
    pub(crate) renew: Duration,
    /// The most partitions this instance takes.
    pub(crate) most: Option<u32>,
    /// It takes those that leave this remainder when divided.
    pub(crate) modulo: u32,
    pub(crate) remainder: u32,
    /// How long the lanes may take when all is over.
    pub(crate) shutdown_timeout: Duration,
}

/// The claims of one instance of a consumer.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(super) terms: Terms,
    pub(super) claimant: Claimant,
    pub(super) fence: Arc<Fence>,
    /// Whether the server's hash fields expire by themselves.
    pub(super) by_field: AtomicBool,
    /// Wakes the thread, and ends it.
    pub(super) interrupt: Arc<Interrupt>,
    /// Partitions whose lane has ended as it was asked to.
    pub(super) left: Mutex<BTreeSet<u32>>,
    pub(super) map: Mutex<Map>,
}

/// What is known of who owns what.
#[derive(Debug)]
pub(super) struct Map {
    pub(super) seen: Ownership,
    pub(super) unowned_since: Option<Instant>,
}

/// Renew now.
pub(super) const RENEW: u32 = 1 << 1;
/// Somebody has left something.
pub(super) const HEAR: u32 = 1 << 2;
/// The consumer ends.
pub(super) const CLOSE: u32 = 1 << 3;

impl Lease {
    pub(crate) fn new(terms: Terms, claimant: Claimant) -> Self {
        let map = Map {
            seen: Ownership::unseen(
                &terms.topic,
                &terms.consumer,
                Instances::Lease,
                Some(&claimant),
                terms.renew,
            ),
            unowned_since: None,
        };
        Self {
            fence: Arc::new(Fence::closed()),
            terms,
            claimant,
            by_field: AtomicBool::new(false),
            interrupt: Arc::default(),
            left: Mutex::default(),
            map: Mutex::new(map),
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

    /// A claim was found to be gone, or to be another's: looks at once. Waits for nothing.
    pub(crate) fn look_again(&self) {
        self.interrupt.set(RENEW);
    }

    /// A lane has ended as it was asked to, and what it finished is stored: another may have its
    /// partition. Waits for nothing.
    pub(crate) fn left(&self, partition: u32) {
        self.left.lock().insert(partition);
        self.interrupt.set(HEAR);
    }

    /// Something about the lanes has changed that the thread may wait for.
    pub(crate) fn hear(&self) {
        self.interrupt.set(HEAR);
    }

    /// The consumer ends: when all lanes have ended, everything is given up. Waits for nothing.
    pub(crate) fn close(&self) {
        self.interrupt.set(CLOSE);
    }

    /// Ends the thread, whatever it waits for.
    pub(crate) fn abandon(&self) {
        self.interrupt.cut(STOP);
    }

    /// Who owned what at the last renewal.
    pub(crate) fn ownership(&self) -> Ownership {
        let map = self.map.lock();
        Ownership {
            unowned_for: map.unowned_since.map(|since| since.elapsed()),
            ..map.seen.clone()
        }
    }

    /// Keeps the claims until the consumer ends. `begun` is told what came of the first attempt, and
    /// `over` that what could be released was.
    pub(crate) fn run(
        &self,
        lanes: &dyn Lanes,
        mut begun: impl FnMut(Result<()>),
        mut over: impl FnMut(),
    ) {
        // The logger is foreign code: its panic must not end the keeping of claims.
        while catch_unwind(AssertUnwindSafe(|| {
            Renewer::new(self, lanes).run(&mut begun, &mut over);
        }))
        .is_err()
        {
            // What was held is not known any more.
            self.fence.end();
            lanes.running().into_iter().for_each(|p| lanes.cut(p));
        }
    }

    pub(super) fn standing(&self, standing: Standing) {
        let mut map = self.map.lock();
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
