//! Whether a process is alive: what only a new start of it can mend, and nothing else.

use std::time::Duration;

use crate::LaneState;

/// What is known of a thread that has to run.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    /// Whose it is, for people.
    pub(crate) name: String,
    pub(crate) has_ended: bool,
    /// Of a lane: what it says that it is doing.
    pub(crate) state: Option<LaneState>,
    /// For how long its handler has not come back.
    pub(crate) handler_for: Option<Duration>,
    /// From when on that is too long; zero: never.
    pub(crate) stalled_after: Duration,
}

/// Why a new start is called for: a thread has ended that was not told to, or does not come back from its
/// handler. An outage, lag, a block and a stop by policy are no reasons, since a new start mends none of them.
pub(crate) fn deaths(lives: &[Life]) -> Vec<String> {
    lives.iter().filter_map(death).collect()
}

fn death(life: &Life) -> Option<String> {
    let name = &life.name;
    if life.has_ended {
        // A lane that was told to end, by whomever, has said so before it did.
        let said_so = life.state == Some(LaneState::Stopped);
        return (!said_so).then(|| format!("{name}: its thread has ended, and nobody told it to"));
    }
    let limit = Some(life.stalled_after).filter(|limit| !limit.is_zero())?;
    let since = life.handler_for.filter(|since| *since > limit)?;
    Some(format!(
        "{name}: the handler has not come back for {:.1} s; StalledSeconds is {}",
        since.as_secs_f64(),
        limit.as_secs()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_dead_and_the_wedged_call_for_a_new_start() {
        use LaneState::{
            Ahead, Blocked, Disconnected, Lapsed, Paused, Refused, Running, Starting, Stopped,
        };
        let limit = Duration::from_mins(5);
        let all = [
            Starting,
            Running,
            Blocked,
            Disconnected,
            Refused,
            Ahead,
            Lapsed,
            Paused,
            Stopped,
        ];
        let lives = |has_ended, state, handler_for, stalled_after| {
            let name = "orders[3]/billing".into();
            deaths(&[Life {
                name,
                has_ended,
                state,
                handler_for,
                stalled_after,
            }])
            .is_empty()
        };
        let second = Duration::from_secs(1);
        for state in all.map(Some).into_iter().chain([None]) {
            assert!(lives(false, state, None, limit), "{state:?}");
            assert_eq!(
                lives(true, state, None, limit),
                state == Some(Stopped),
                "{state:?}"
            );
            assert!(lives(false, state, Some(limit), limit), "{state:?}");
            assert!(
                !lives(false, state, Some(limit + second), limit),
                "{state:?}"
            );
            assert!(
                lives(false, state, Some(limit * 9), Duration::ZERO),
                "never"
            );
        }
    }
}
