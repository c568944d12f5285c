//! What is to be done about a failure: a pure function of the policy, the action asked for and how far
//! the handler got. The lane only carries out what is decided here.

use std::time::Duration;

use crate::{Action, OnError};

/// A failed handler call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failed {
    pub(crate) policy: OnError,
    /// What the failure, or the consumer's classify hook, asked for.
    pub(crate) action: Option<Action>,
    /// How many messages the call was given.
    pub(crate) handed: usize,
    /// How many of them the handler marked as done, if it said anything. A message handler is given one
    /// message and marks nothing.
    pub(crate) done: Option<usize>,
    /// Whether the failing message has had its `RetryAfter` already.
    pub(crate) retried: bool,
}

/// What to do next. `finished` counts messages from the start of what was handed over: positions move
/// past them, and what is left is handed over again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Step {
    pub(crate) finished: usize,
    pub(crate) then: Then,
}

/// What follows once the position has moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Then {
    /// Go on with what is left, having stepped over the message at `finished - 1` (or the whole batch).
    GoOn,
    /// Hand the rest over again at the ladder's next wait: the partition is blocked.
    Block,
    /// Hand the rest over again after this long.
    Retry(Duration),
    /// End this lane.
    StopPartition,
    /// End every consumer and report the error.
    Fail,
}

pub(crate) fn decide(f: &Failed) -> Step {
    let done = f.done.unwrap_or(0).min(f.handed);
    let then = match f.action.unwrap_or(Action::Skip) {
        Action::Block => Then::Block,
        Action::Stop => Then::StopPartition,
        Action::RetryAfter(pause) if !f.retried => Then::Retry(pause),
        Action::RetryAfter(_) | Action::Skip => match f.policy {
            OnError::BestEffort => Then::GoOn,
            OnError::StopPartition => Then::StopPartition,
            OnError::Fail => Then::Fail,
        },
    };
    let finished = match (then, f.done) {
        // Nothing was said about progress: the failure concerns everything handed over.
        (Then::GoOn, None) => f.handed,
        (Then::GoOn, Some(_)) => (done + 1).min(f.handed),
        _ => done,
    };
    Step { finished, then }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_millis(20);

    /// Every policy, action, progress and handler kind, with what must happen written out by hand.
    #[test]
    fn the_error_contract_as_a_table() {
        use Action::{Block as Blk, RetryAfter, Skip, Stop};
        use OnError::{BestEffort as Best, Fail as Fl, StopPartition as StopP};
        use Then::{Block, Fail, GoOn, Retry, StopPartition as End};
        let (m, b) = (1, 5); // a message handler is handed one message, a batch handler here five
        let again = Some(RetryAfter(PAUSE));
        #[rustfmt::skip]
        let table = [
            // policy action      handed done     retried -> finished, then
            // A bare `?` and an explicit skip are the policy's business.
            (Best,  None,         m, None,    false, 1, GoOn),
            (Best,  Some(Skip),   m, None,    false, 1, GoOn),
            (StopP, None,         m, None,    false, 0, End),
            (StopP, Some(Skip),   m, None,    false, 0, End),
            (Fl,    None,         m, None,    false, 0, Fail),
            (Fl,    Some(Skip),   m, None,    false, 0, Fail),
            // A batch without marks fails as a whole ...
            (Best,  None,         b, None,    false, 5, GoOn),
            (StopP, None,         b, None,    false, 0, End),
            (Fl,    None,         b, None,    false, 0, Fail),
            // ... with marks only the first message not done is concerned.
            (Best,  None,         b, Some(0), false, 1, GoOn),
            (Best,  Some(Skip),   b, Some(2), false, 3, GoOn),
            (Best,  None,         b, Some(4), false, 5, GoOn),
            (Best,  None,         b, Some(5), false, 5, GoOn),
            (StopP, None,         b, Some(0), false, 0, End),
            (StopP, None,         b, Some(2), false, 2, End),
            (StopP, Some(Skip),   b, Some(5), false, 5, End),
            (Fl,    None,         b, Some(0), false, 0, Fail),
            (Fl,    None,         b, Some(2), false, 2, Fail),
            (Fl,    Some(Skip),   b, Some(5), false, 5, Fail),
            // Block goes before every policy and never steps over anything.
            (Best,  Some(Blk),    m, None,    false, 0, Block),
            (StopP, Some(Blk),    m, None,    false, 0, Block),
            (Fl,    Some(Blk),    m, None,    false, 0, Block),
            (Best,  Some(Blk),    m, None,    true,  0, Block),
            (Best,  Some(Blk),    b, None,    false, 0, Block),
            (StopP, Some(Blk),    b, Some(0), false, 0, Block),
            (Best,  Some(Blk),    b, Some(2), false, 2, Block),
            (Fl,    Some(Blk),    b, Some(4), true,  4, Block),
            // RetryAfter waits in place once, then the policy decides.
            (Best,  again,        m, None,    false, 0, Retry(PAUSE)),
            (StopP, again,        m, None,    false, 0, Retry(PAUSE)),
            (Fl,    again,        m, None,    false, 0, Retry(PAUSE)),
            (Best,  again,        m, None,    true,  1, GoOn),
            (StopP, again,        m, None,    true,  0, End),
            (Fl,    again,        m, None,    true,  0, Fail),
            (Best,  again,        b, None,    false, 0, Retry(PAUSE)),
            (Best,  again,        b, None,    true,  5, GoOn),
            (Best,  again,        b, Some(2), false, 2, Retry(PAUSE)),
            (Best,  again,        b, Some(2), true,  3, GoOn),
            (StopP, again,        b, Some(2), true,  2, End),
            (Fl,    again,        b, Some(2), true,  2, Fail),
            // Stop ends the lane under every policy.
            (Best,  Some(Stop),   m, None,    false, 0, End),
            (StopP, Some(Stop),   m, None,    false, 0, End),
            (Fl,    Some(Stop),   m, None,    false, 0, End),
            (Best,  Some(Stop),   b, None,    true,  0, End),
            (Fl,    Some(Stop),   b, Some(3), false, 3, End),
        ];
        for (policy, action, handed, done, retried, finished, then) in table {
            let f = Failed {
                policy,
                action,
                handed,
                done,
                retried,
            };
            assert_eq!(decide(&f), Step { finished, then }, "{f:?}");
        }
    }

    #[test]
    fn whatever_is_asked_progress_is_kept_and_only_a_skip_steps_over_anything() {
        for policy in [OnError::BestEffort, OnError::StopPartition, OnError::Fail] {
            for action in [
                None,
                Some(Action::Skip),
                Some(Action::Block),
                Some(Action::Stop),
                Some(Action::RetryAfter(PAUSE)),
            ] {
                for handed in 1..6 {
                    for done in (0..=handed).map(Some).chain([None]) {
                        for retried in [false, true] {
                            let f = Failed {
                                policy,
                                action,
                                handed,
                                done,
                                retried,
                            };
                            let s = decide(&f);
                            assert!(s.finished >= done.unwrap_or(0) && s.finished <= handed);
                            let moved = s.finished > done.unwrap_or(0);
                            assert!(!moved || s.then == Then::GoOn, "{f:?} {s:?}");
                            // going on always gets somewhere, or it would spin
                            assert!(s.then != Then::GoOn || s.finished > 0);
                        }
                    }
                }
            }
        }
    }
}
