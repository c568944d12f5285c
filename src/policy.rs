//! What is to be done about a failure: a pure function of the policy, the action asked for and how far
//! the handler got. The lane only carries out what is decided here.

use std::time::Duration;

use crate::{Action, OnError, monitor::Remedy};

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
    /// How often the failing message has been handed over again because the policy is `Park` or `Retry`.
    pub(crate) attempts: u32,
    /// How often that may be.
    pub(crate) most: u32,
    /// Whether another attempt would be the same: it is about a single entry that is no proper message, or that
    /// was given out too often.
    pub(crate) hopeless: bool,
    /// Whether a message that is to wait may be handed over out of its place, behind others.
    pub(crate) out_of_place: bool,
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
    /// Hand the rest over again after the pause that the policy `Park` makes.
    TryAgain,
    /// Have so many of the messages that come next handed over again after this long, or after the pause that
    /// the policy `Retry` makes, and go on behind them.
    Later(usize, Option<Duration>),
    /// Make so many of the messages that come next dead letters, and go on behind them.
    Park(usize),
    /// End this lane.
    StopPartition,
    /// End every consumer and report the error.
    Fail,
}

impl Then {
    /// What a failure that leads to this is counted under.
    pub(crate) fn remedy(self) -> Remedy {
        match self {
            Self::GoOn => Remedy::BestEffort,
            Self::Block => Remedy::Block,
            Self::Retry(_) | Self::Later(..) => Remedy::Retry,
            Self::TryAgain | Self::Park(_) => Remedy::Park,
            Self::StopPartition => Remedy::StopPartition,
            Self::Fail => Remedy::Fail,
        }
    }
}

pub(crate) fn decide(f: &Failed) -> Step {
    let done = f.done.unwrap_or(0).min(f.handed);
    let then = match f.action.unwrap_or(Action::Skip) {
        Action::Block => Then::Block,
        Action::Stop => Then::StopPartition,
        Action::DeadLetter => park(f, done),
        Action::RetryAfter(pause) if f.policy == OnError::Retry => retry(f, done, Some(pause)),
        Action::RetryAfter(pause) if !f.retried && f.out_of_place => {
            concerned(f, done, |n| Then::Later(n, Some(pause)))
        }
        Action::RetryAfter(pause) if !f.retried => Then::Retry(pause),
        Action::RetryAfter(_) | Action::Skip => match f.policy {
            OnError::BestEffort => Then::GoOn,
            OnError::StopPartition => Then::StopPartition,
            OnError::Fail => Then::Fail,
            OnError::Park if done == f.handed => Then::GoOn,
            OnError::Park if f.attempts < f.most && !f.hopeless => Then::TryAgain,
            OnError::Park => park(f, done),
            OnError::Retry => retry(f, done, None),
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

/// The messages that the failure concerns wait for their next attempt, or become dead letters.
fn retry(f: &Failed, done: usize, pause: Option<Duration>) -> Then {
    if f.attempts < f.most && !f.hopeless {
        return concerned(f, done, |n| Then::Later(n, pause));
    }
    park(f, done)
}

/// The messages that the failure concerns become dead letters.
fn park(f: &Failed, done: usize) -> Then {
    concerned(f, done, Then::Park)
}

/// So many messages the failure concerns; where all were done there is none.
fn concerned(f: &Failed, done: usize, then: impl FnOnce(usize) -> Then) -> Then {
    match f.done {
        None => then(f.handed),
        Some(_) if done < f.handed => then(1),
        Some(_) => Then::GoOn,
    }
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
                attempts: 0,
                most: 0,
                hopeless: false,
                out_of_place: false,
            };
            assert_eq!(decide(&f), Step { finished, then }, "{f:?}");
        }
    }

    /// What `Park` and `DeadLetter` do, for every action, progress and number of attempts.
    #[test]
    fn dead_letters_as_a_table() {
        use Action::{Block as Blk, DeadLetter as Dead, RetryAfter, Skip, Stop};
        use OnError::{BestEffort as Best, Fail as Fl, Park, StopPartition as StopP};
        use Then::{Block, GoOn, Park as Letters, Retry, StopPartition as End, TryAgain as Again};
        let (m, b) = (1, 5);
        let later = Some(RetryAfter(PAUSE));
        let most = 2;
        #[rustfmt::skip]
        let table = [
            // policy action     handed done  retried attempts malformed -> finished, then
            // A message is handed over so often again, then it is a dead letter.
            (Park,  None,         m, None,    false, 0, false, 0, Again),
            (Park,  None,         m, None,    false, 1, false, 0, Again),
            (Park,  None,         m, None,    false, 2, false, 0, Letters(1)),
            (Park,  None,         m, None,    false, 3, false, 0, Letters(1)),
            (Park,  Some(Skip),   m, None,    false, 1, false, 0, Again),
            (Park,  Some(Skip),   m, None,    false, 2, false, 0, Letters(1)),
            // What is no message is none the next time either.
            (Park,  None,         m, None,    false, 0, true,  0, Letters(1)),
            (Park,  Some(Skip),   m, None,    true,  0, true,  0, Letters(1)),
            // A batch without marks is handed over again, and becomes dead letters, as a whole ...
            (Park,  None,         b, None,    false, 1, false, 0, Again),
            (Park,  None,         b, None,    false, 2, false, 0, Letters(5)),
            // ... with marks only the first message not done is concerned.
            (Park,  None,         b, Some(0), false, 1, false, 0, Again),
            (Park,  None,         b, Some(0), false, 2, false, 0, Letters(1)),
            (Park,  None,         b, Some(3), false, 0, false, 3, Again),
            (Park,  None,         b, Some(3), false, 2, false, 3, Letters(1)),
            (Park,  None,         b, Some(3), false, 0, true,  3, Letters(1)),
            (Park,  None,         b, Some(4), false, 2, false, 4, Letters(1)),
            // Where all was done nothing is left to be one.
            (Park,  None,         b, Some(5), false, 0, false, 5, GoOn),
            (Park,  None,         b, Some(5), false, 2, false, 5, GoOn),
            // What was asked for goes before the policy.
            (Park,  Some(Blk),    m, None,    false, 2, false, 0, Block),
            (Park,  Some(Blk),    b, Some(2), false, 2, true,  2, Block),
            (Park,  Some(Stop),   m, None,    false, 2, false, 0, End),
            (Park,  Some(Stop),   b, Some(2), true,  0, false, 2, End),
            (Park,  later,        m, None,    false, 2, false, 0, Retry(PAUSE)),
            (Park,  later,        m, None,    true,  0, false, 0, Again),
            (Park,  later,        m, None,    true,  2, false, 0, Letters(1)),
            (Park,  later,        b, Some(2), true,  2, false, 2, Letters(1)),
            (Park,  Some(Dead),   m, None,    false, 0, false, 0, Letters(1)),
            (Park,  Some(Dead),   b, Some(1), false, 0, false, 1, Letters(1)),
            // A dead letter that was asked for is one under every policy.
            (Best,  Some(Dead),   m, None,    false, 0, false, 0, Letters(1)),
            (StopP, Some(Dead),   m, None,    true,  0, false, 0, Letters(1)),
            (Fl,    Some(Dead),   m, None,    false, 0, true,  0, Letters(1)),
            (Best,  Some(Dead),   b, None,    false, 0, false, 0, Letters(5)),
            (StopP, Some(Dead),   b, Some(0), false, 0, false, 0, Letters(1)),
            (Fl,    Some(Dead),   b, Some(4), false, 0, false, 4, Letters(1)),
            (Best,  Some(Dead),   b, Some(5), false, 0, false, 5, GoOn),
            // What is no message is the policy's business elsewhere.
            (Best,  None,         m, None,    false, 0, true,  1, GoOn),
            (StopP, None,         m, None,    false, 0, true,  0, End),
            (Best,  later,        m, None,    true,  9, false, 1, GoOn),
        ];
        for (policy, action, handed, done, retried, attempts, malformed, finished, then) in table {
            let f = Failed {
                policy,
                action,
                handed,
                done,
                retried,
                attempts,
                most,
                hopeless: malformed,
                out_of_place: false,
            };
            assert_eq!(decide(&f), Step { finished, then }, "{f:?}");
        }
    }

    /// What `Retry` does, and `RetryAfter` where a message may wait out of its place.
    #[test]
    fn what_waits_behind_others_as_a_table() {
        use Action::{Block as Blk, DeadLetter as Dead, RetryAfter, Skip, Stop};
        use OnError::{BestEffort as Best, Fail as Fl, Park, Retry as Ret, StopPartition as StopP};
        use Then::{
            Block, Fail, GoOn, Later, Park as Letters, Retry as InPlace, StopPartition as End,
            TryAgain as Again,
        };
        let (m, b) = (1, 5);
        let after = Some(RetryAfter(PAUSE));
        let own = Some(PAUSE);
        let most = 2;
        #[rustfmt::skip]
        let table = [
            // policy action     handed done  retried attempts hopeless out_of_place -> finished, then
            // A message waits so often, wherever that is said to be allowed, then it is a dead letter.
            (Ret,   None,         m, None,    false, 0, false, true,  0, Later(1, None)),
            (Ret,   None,         m, None,    false, 1, false, true,  0, Later(1, None)),
            (Ret,   None,         m, None,    true,  1, false, true,  0, Later(1, None)),
            (Ret,   None,         m, None,    false, 2, false, true,  0, Letters(1)),
            (Ret,   None,         m, None,    false, 3, false, true,  0, Letters(1)),
            (Ret,   None,         m, None,    false, 0, false, false, 0, Later(1, None)),
            (Ret,   Some(Skip),   m, None,    false, 1, false, false, 0, Later(1, None)),
            (Ret,   Some(Skip),   m, None,    false, 2, false, false, 0, Letters(1)),
            // What would fail the next time too does not wait for that.
            (Ret,   None,         m, None,    false, 0, true,  true,  0, Letters(1)),
            (Ret,   after,        m, None,    false, 0, true,  true,  0, Letters(1)),
            (Ret,   None,         b, Some(3), false, 0, true,  true,  3, Letters(1)),
            // A batch without marks waits, and becomes dead letters, as a whole ...
            (Ret,   None,         b, None,    false, 0, false, true,  0, Later(5, None)),
            (Ret,   None,         b, None,    false, 2, false, true,  0, Letters(5)),
            // ... with marks only the first message not done is concerned, if there is one.
            (Ret,   None,         b, Some(0), false, 0, false, true,  0, Later(1, None)),
            (Ret,   None,         b, Some(3), false, 0, false, true,  3, Later(1, None)),
            (Ret,   None,         b, Some(3), false, 2, false, true,  3, Letters(1)),
            (Ret,   None,         b, Some(5), false, 0, false, true,  5, GoOn),
            (Ret,   after,        b, Some(5), false, 2, false, true,  5, GoOn),
            // The pause that was asked for is made each time, and each is one of the attempts.
            (Ret,   after,        m, None,    false, 0, false, true,  0, Later(1, own)),
            (Ret,   after,        m, None,    true,  1, false, true,  0, Later(1, own)),
            (Ret,   after,        m, None,    false, 0, false, false, 0, Later(1, own)),
            (Ret,   after,        m, None,    true,  2, false, true,  0, Letters(1)),
            (Ret,   after,        b, None,    false, 1, false, true,  0, Later(5, own)),
            (Ret,   after,        b, Some(2), false, 1, false, true,  2, Later(1, own)),
            // What was asked for goes before the policy.
            (Ret,   Some(Blk),    m, None,    false, 2, true,  true,  0, Block),
            (Ret,   Some(Blk),    b, Some(2), false, 0, false, true,  2, Block),
            (Ret,   Some(Stop),   m, None,    false, 0, false, true,  0, End),
            (Ret,   Some(Dead),   m, None,    false, 0, false, true,  0, Letters(1)),
            (Ret,   Some(Dead),   b, Some(1), false, 0, false, true,  1, Letters(1)),
            // Under the other policies a message waits out of its place once, then they decide.
            (Best,  after,        m, None,    false, 0, false, true,  0, Later(1, own)),
            (StopP, after,        m, None,    false, 0, false, true,  0, Later(1, own)),
            (Fl,    after,        m, None,    false, 0, false, true,  0, Later(1, own)),
            (Park,  after,        m, None,    false, 0, false, true,  0, Later(1, own)),
            (Best,  after,        b, None,    false, 0, false, true,  0, Later(5, own)),
            (Best,  after,        b, Some(2), false, 0, false, true,  2, Later(1, own)),
            (Best,  after,        b, Some(5), false, 0, false, true,  5, GoOn),
            (Best,  after,        m, None,    true,  1, false, true,  1, GoOn),
            (Best,  after,        b, None,    true,  1, false, true,  5, GoOn),
            (Best,  after,        b, Some(2), true,  1, false, true,  3, GoOn),
            (StopP, after,        m, None,    true,  1, false, true,  0, End),
            (Fl,    after,        m, None,    true,  1, false, true,  0, Fail),
            (Park,  after,        m, None,    true,  1, false, true,  0, Again),
            (Park,  after,        m, None,    true,  2, false, true,  0, Letters(1)),
            // In its place it waits where it may not be anywhere else.
            (Best,  after,        m, None,    false, 0, false, false, 0, InPlace(PAUSE)),
            // That it may wait elsewhere makes nothing wait that nobody asked for.
            (Best,  None,         m, None,    false, 0, false, true,  1, GoOn),
            (Park,  None,         m, None,    false, 0, false, true,  0, Again),
            (Best,  Some(Blk),    m, None,    false, 0, false, true,  0, Block),
        ];
        for row in table {
            let (policy, action, handed, done, retried, attempts, ..) = row;
            let (.., hopeless, out_of_place, finished, then) = row;
            let f = Failed {
                policy,
                action,
                handed,
                done,
                retried,
                attempts,
                most,
                hopeless,
                out_of_place,
            };
            assert_eq!(decide(&f), Step { finished, then }, "{f:?}");
        }
    }

    #[test]
    fn whatever_is_asked_progress_is_kept_and_only_a_skip_steps_over_anything() {
        for policy in [
            OnError::BestEffort,
            OnError::StopPartition,
            OnError::Fail,
            OnError::Park,
            OnError::Retry,
        ] {
            for action in [
                None,
                Some(Action::Skip),
                Some(Action::Block),
                Some(Action::Stop),
                Some(Action::DeadLetter),
                Some(Action::RetryAfter(PAUSE)),
            ] {
                for handed in 1..6 {
                    for done in (0..=handed).map(Some).chain([None]) {
                        for n in 0..24 {
                            let (retried, malformed) = (n % 2 == 1, n % 4 > 1);
                            let (out_of_place, attempts) = (n % 8 > 3, n / 8);
                            let f = Failed {
                                policy,
                                action,
                                handed,
                                done,
                                retried,
                                attempts,
                                most: 2,
                                hopeless: malformed,
                                out_of_place,
                            };
                            let s = decide(&f);
                            if let Then::Park(n) | Then::Later(n, _) = s.then {
                                assert!(n > 0 && s.finished + n <= handed, "{f:?} {s:?}");
                            }
                            let retries = policy == OnError::Retry;
                            let asked = matches!(action, Some(Action::RetryAfter(_)));
                            if let Then::Later(_, pause) = s.then {
                                let may = attempts < 2 && !malformed;
                                let once = asked && out_of_place && !retried;
                                assert!(if retries { may } else { once }, "{f:?} {s:?}");
                                assert_eq!(pause.is_some(), asked, "{f:?} {s:?}");
                            }
                            // what waits aside is never waited for in its place, and nothing that failed is dropped
                            let in_place = matches!(s.then, Then::TryAgain | Then::Retry(_));
                            assert!(!retries || !in_place, "{f:?} {s:?}");
                            let none_left = s.finished == done.unwrap_or(0);
                            assert!(!retries || none_left, "{f:?} {s:?}");
                            let again = s.then == Then::TryAgain;
                            assert!(!again || attempts < 2 && !malformed && s.finished < handed);
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
