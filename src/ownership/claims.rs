//! How an instance comes by its partitions, for whoever runs their lanes.

use std::sync::Arc;

use crate::{Result, fence::Fence};

use super::{Desk, Lanes, Lease, Rivals, Roll};

/// The claims of one instance of a consumer, whatever they are worth.
#[derive(Clone, Debug)]
pub(crate) enum Claims {
    /// They are leases, and decide who owns what.
    Lease(Arc<Lease>),
    /// They only show who owns what by its number.
    Static(Arc<Roll>),
}

impl Claims {
    /// What every handing over is to look at.
    pub(crate) fn fence(&self) -> Arc<Fence> {
        match self {
            Self::Lease(lease) => Arc::clone(lease.fence()),
            Self::Static(_) => Arc::new(Fence::open()),
        }
    }

    /// What every write is to be made under; `None` where nothing fences it.
    pub(crate) fn lease(&self) -> Option<&Arc<Lease>> {
        match self {
            Self::Lease(lease) => Some(lease),
            Self::Static(_) => None,
        }
    }

    /// Whom to tell of others who store positions, where that is not fenced.
    pub(crate) fn rivals(&self) -> Option<&Arc<Rivals>> {
        match self {
            Self::Lease(_) => None,
            Self::Static(roll) => Some(roll.rivals()),
        }
    }

    /// Where to leave what the thread that keeps them has to know.
    pub(crate) fn desk(&self) -> &Desk {
        match self {
            Self::Lease(lease) => lease.desk(),
            Self::Static(roll) => roll.desk(),
        }
    }

    /// What tells this start of the instance from another.
    pub(crate) fn epoch(&self) -> &str {
        let claimant = match self {
            Self::Lease(lease) => lease.claimant(),
            Self::Static(roll) => roll.claimant(),
        };
        claimant.incarnation()
    }

    /// As [`Lease::run`].
    pub(crate) fn run(&self, lanes: &dyn Lanes, begun: impl FnMut(Result<()>), over: impl FnMut()) {
        match self {
            Self::Lease(lease) => lease.run(lanes, begun, over),
            Self::Static(roll) => roll.run(lanes, begun, over),
        }
    }
}
