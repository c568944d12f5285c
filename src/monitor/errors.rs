//! Failures by what was done about them and by the type of the error.

use std::{
    array,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// What was done about a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Remedy {
    /// Stepped over.
    BestEffort,
    /// The partition stopped.
    StopPartition,
    /// Every consumer stopped.
    Fail,
    /// Handed over again until it succeeds.
    Block,
    /// Handed over again in its place, or made a dead letter.
    Park,
    /// Handed over again later.
    Retry,
    /// It kept the lane from reading, and it tried again.
    Transport,
    /// Nothing: by then the partition was reset, or another's.
    Void,
}

const REMEDIES: usize = 8;

impl Remedy {
    const ALL: [Self; REMEDIES] = [
        Self::BestEffort,
        Self::StopPartition,
        Self::Fail,
        Self::Block,
        Self::Park,
        Self::Retry,
        Self::Transport,
        Self::Void,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::BestEffort => "best_effort",
            Self::StopPartition => "stop_partition",
            Self::Fail => "fail",
            Self::Block => "block",
            Self::Park => "park",
            Self::Retry => "retry",
            Self::Transport => "transport",
            Self::Void => "none",
        }
    }
}

/// So many types of errors have counters of their own.
const TYPES: usize = 32;
/// What the others are counted under.
const OTHER: &str = "other";

/// The failures of a consumer. Never larger than it is, whatever handlers come up with; any thread may count.
#[derive(Debug)]
pub(crate) struct Errors {
    types: [OnceLock<&'static str>; TYPES],
    /// By type, the last being all others, and by remedy.
    counts: [[AtomicU64; REMEDIES]; TYPES + 1],
}

impl Default for Errors {
    fn default() -> Self {
        Self {
            types: array::from_fn(|_| OnceLock::new()),
            counts: array::from_fn(|_| array::from_fn(|_| AtomicU64::new(0))),
        }
    }
}

/// Failures of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Counts {
    pub(crate) remedy: &'static str,
    pub(crate) type_name: &'static str,
    pub(crate) many: u64,
}

impl Errors {
    /// Counts a failure. Allocates nothing.
    #[cold]
    pub(crate) fn count(&self, remedy: Remedy, type_name: &'static str) {
        let is_it = |t: &OnceLock<&'static str>| *t.get_or_init(|| type_name) == type_name;
        let at = self.types.iter().position(is_it).unwrap_or(TYPES);
        self.counts[at][remedy as usize].fetch_add(1, Relaxed);
    }

    /// Those that there were, in the order in which their types were seen first.
    pub(crate) fn look(&self) -> Vec<Counts> {
        let mut found = Vec::new();
        for (at, counts) in self.counts.iter().enumerate() {
            let seen = self.types.get(at).map_or(Some(&OTHER), OnceLock::get);
            let Some(type_name) = seen else { continue };
            for (remedy, many) in Remedy::ALL.iter().zip(counts) {
                let many = many.load(Relaxed);
                if many > 0 {
                    let remedy = remedy.name();
                    found.push(Counts {
                        remedy,
                        type_name,
                        many,
                    });
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_beyond_the_limit_are_counted_together() {
        let errors = Errors::default();
        assert_eq!(errors.look(), []);
        let name = |n: usize| &*format!("E{n}").leak();
        let last = name(TYPES - 1);
        for n in 0..100 {
            errors.count(Remedy::Block, name(n));
        }
        errors.count(Remedy::Transport, last);
        let found = errors.look();
        assert_eq!(found.len(), TYPES + 2);
        let of = |type_name, remedy| {
            let mut of = found.iter().filter(|c| c.type_name == type_name);
            of.find(|c| c.remedy == remedy).map(|c| c.many)
        };
        assert_eq!(
            (of("E0", "block"), of(last, "transport")),
            (Some(1), Some(1))
        );
        assert_eq!((of(OTHER, "block"), of("E32", "block")), (Some(68), None));
    }

    #[test]
    fn every_remedy_has_its_place_and_name() {
        for (at, remedy) in Remedy::ALL.into_iter().enumerate() {
            assert_eq!(remedy as usize, at);
            let errors = Errors::default();
            errors.count(remedy, "E");
            assert_eq!(errors.look()[0].remedy, remedy.name());
        }
    }
}
