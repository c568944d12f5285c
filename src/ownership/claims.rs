//! How an instance comes by its partitions, for whoever runs their lanes.

use std::sync::Arc;

use crate::{Result, fence::Fence};

use super::{Lanes, Lease, Ownership, Rivals, Roll};

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

    /// As [`Lease::look_again`].
    pub(crate) fn look_again(&self) {
        match self {
            Self::Lease(lease) => lease.look_again(),
            Self::Static(roll) => roll.look_again(),
        }
    }

    /// As [`Lease::left`].
    pub(crate) fn left(&self, partition: u32) {
        match self {
            Self::Lease(lease) => lease.left(partition),
            Self::Static(roll) => roll.left(partition),
        }
    }

    /// As [`Lease::hear`].
    pub(crate) fn hear(&self) {
        match self {
            Self::Lease(lease) => lease.hear(),
            Self::Static(roll) => roll.hear(),
        }
    }

    /// As [`Lease::close`].
    pub(crate) fn close(&self) {
        match self {
            Self::Lease(lease) => lease.close(),
            Self::Static(roll) => roll.close(),
        }
    }

    /// As [`Lease::abandon`].
    pub(crate) fn abandon(&self) {
        match self {
            Self::Lease(lease) => lease.abandon(),
            Self::Static(roll) => roll.abandon(),
        }
    }

    /// Who owned what when that was last looked at.
    pub(crate) fn ownership(&self) -> Ownership {
        match self {
            Self::Lease(lease) => lease.ownership(),
            Self::Static(roll) => roll.ownership(),
        }
    }

    /// As [`Lease::run`].
    pub(crate) fn run(&self, lanes: &dyn Lanes, begun: impl FnMut(Result<()>), over: impl FnMut()) {
        match self {
            Self::Lease(lease) => lease.run(lanes, begun, over),
            Self::Static(roll) => roll.run(lanes, begun, over),
        }
    }
}
