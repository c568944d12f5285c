//! What is known of one partition beside what its lane says itself: what the server told last, and since when
//! nothing has moved. It lasts as long as the lane does.

use std::time::Duration;

use parking_lot::Mutex;

use crate::{LaneState, Snapshot, StreamId, clock, consume::Extent, monitor::Monitor};

use super::{
    PartitionStatus,
    sample::{self, Anchor, First, Group},
};

/// A sample is judged by for so long, or for four intervals.
const FRESH: Duration = Duration::from_mins(1);
/// Dead letters are counted by the minute, over so many of them.
const MINUTES: usize = 10;
const MINUTE_MS: u64 = 60_000;

/// What is known of one partition. All moments are of the coarse clock.
#[derive(Debug)]
pub(crate) struct Sight {
    /// For how long a sample is judged by.
    fresh_ms: u64,
    /// Whether a group keeps what is finished.
    is_queue: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What the server told last, and when.
    sample: Option<(Sample, u64)>,
    /// When it is to be asked again.
    due_ms: u64,
    /// That it refuses to tell was said.
    is_told: bool,
    anchor: Option<Anchor>,
    /// Up to where it was finished, or given out, at the last look.
    place: Option<StreamId>,
    /// Since when.
    place_ms: u64,
    /// Since when it has been before the end of the stream.
    behind_ms: Option<u64>,
    /// The last message that was seen at the end of the stream, and since when.
    tail: Option<(StreamId, u64)>,
    letters: Recent,
}

/// What the server tells in one round trip; `stream` is `None` where there is none.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Answer {
    pub(super) stream: Option<Extent>,
    pub(super) group: Option<Group>,
    pub(super) first: First,
}

/// What follows from that for the place where the consumer was then.
#[derive(Clone, Copy, Debug)]
struct Sample {
    exists: bool,
    stream: Extent,
    lag: Option<u64>,
    /// In the queue modes: for how long what nobody was given had been waiting then, at most.
    waited: Option<Duration>,
    first: First,
    pending: Option<u64>,
}

impl Sample {
    fn tail(&self) -> StreamId {
        self.stream.newest.unwrap_or_default()
    }
}

impl Sight {
    /// Of a partition that is taken up now.
    pub(crate) fn new(is_queue: bool, interval: Duration) -> Self {
        let state = State {
            place_ms: clock::coarse_ms(),
            ..State::default()
        };
        Self {
            fresh_ms: FRESH.max(4 * interval).as_millis() as u64,
            is_queue,
            state: Mutex::new(state),
        }
    }

    /// Takes note of how far the lane is, and of how many dead letters it has made.
    pub(crate) fn note(&self, position: Snapshot, letters: u64) {
        let now_ms = clock::coarse_ms();
        let mut state = self.state.lock();
        state.letters.reach(letters, now_ms);
        if !self.is_queue && position.version > 0 {
            state.moved(position.id, now_ms);
        }
    }

    pub(super) fn is_due(&self, now_ms: u64) -> bool {
        now_ms >= self.state.lock().due_ms
    }

    /// Takes note of what the server told of a partition that was there when it was asked.
    pub(super) fn sampled(&self, then: Snapshot, answer: &Answer, due_ms: u64) {
        let (now_ms, wall_ms) = (clock::coarse_ms(), clock::unix_ms(clock::wall()));
        let mut state = self.state.lock();
        let is_known = !self.is_queue && then.version > 0;
        let place = is_known.then_some((then.id, then.ordinal));
        state.take(place, answer, now_ms, wall_ms);
        state.due_ms = due_ms;
        state.is_told = false;
    }

    /// The server does not tell. True when that is news.
    pub(super) fn refused(&self, due_ms: u64) -> bool {
        let mut state = self.state.lock();
        state.sample = None;
        state.anchor = None;
        state.tail = None;
        state.behind_ms = None;
        state.due_ms = due_ms;
        !std::mem::replace(&mut state.is_told, true)
    }

    /// The server does not tell all. True when that is news.
    pub(super) fn half_refused(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().is_told, true)
    }

    /// Tells all of it, of a lane with this state and position.
    pub(crate) fn tell(&self, monitor: &Monitor, status: &mut PartitionStatus) {
        self.note(status.position, status.parked);
        let (now_ms, wall_ms) = (clock::coarse_ms(), clock::unix_ms(clock::wall()));
        let lane = LaneSight {
            reads: status.state == LaneState::Running,
            found_nothing: monitor.is_caught_up(),
            last_found_nothing_ms: monitor.caught_up_ms(),
        };
        let state = self.state.lock();
        state.tell(self, lane, status, (now_ms, wall_ms));
    }
}

/// What the lane itself knows of the end of its stream.
#[derive(Clone, Copy)]
struct LaneSight {
    /// Whether it reads now.
    reads: bool,
    /// Whether its last read found nothing.
    found_nothing: bool,
    last_found_nothing_ms: Option<u64>,
}

impl State {
    /// It is finished, or given out, up to here.
    fn moved(&mut self, place: StreamId, now_ms: u64) {
        if self.place != Some(place) {
            let begins = self.place.replace(place).is_none();
            if !begins {
                self.place_ms = now_ms;
            }
            self.behind_ms = None;
        }
        let tail = self.sample.as_ref().map(|(s, _)| s.tail());
        let is_behind = tail.is_some_and(|tail| tail > place);
        self.behind_ms = match self.behind_ms {
            _ if !is_behind => None,
            since => since.or(Some(now_ms)),
        };
    }

    fn take(
        &mut self,
        place: Option<(StreamId, Option<u64>)>,
        answer: &Answer,
        now_ms: u64,
        wall_ms: u64,
    ) {
        let Answer {
            stream,
            group,
            first,
        } = *answer;
        let exists = stream.is_some();
        let stream = stream.unwrap_or_default();
        self.anchor = group.and_then(|g| sample::anchor(&stream, &g, self.anchor.as_ref()));
        let lag = match (place, self.anchor, group) {
            (Some((id, ordinal)), ..) => stream.behind(id, ordinal),
            (None, Some(anchor), _) => anchor.unread(&stream),
            (None, None, Some(group)) => stream.behind(group.delivered, None),
            // of nobody there is nothing behind
            (None, None, None) => (stream.length() == 0).then_some(0),
        };
        let waited = group.map(|g| {
            let since = g.delivered.max(stream.first.unwrap_or_default());
            let waits = lag != Some(0);
            Duration::from_millis(if waits {
                wall_ms.saturating_sub(since.ms())
            } else {
                0
            })
        });
        let sample = Sample {
            exists,
            stream,
            lag,
            waited,
            first,
            pending: group.map(|g| g.pending),
        };
        let tail = sample.tail();
        let seen = self.tail.map(|(id, _)| id);
        if seen.is_none() || tail > StreamId::MIN && seen != Some(tail) {
            self.tail = Some((tail, now_ms));
        }
        self.sample = Some((sample, now_ms));
        // What was seen now may lie behind or before where it has been all along.
        let place = group.map(|g| g.delivered).or(self.place);
        if let Some(place) = place {
            self.moved(place, now_ms);
        }
    }

    fn tell(
        &self,
        sight: &Sight,
        lane: LaneSight,
        status: &mut PartitionStatus,
        (now_ms, wall_ms): (u64, u64),
    ) {
        let since = |then_ms: u64| Duration::from_millis(now_ms.saturating_sub(then_ms));
        let sample = self.sample.as_ref();
        let fresh = sample.filter(|(_, at)| now_ms.saturating_sub(*at) <= sight.fresh_ms);
        status.parked_lately = self.letters.sum(now_ms);
        status.position_unchanged = self.place.map(|_| since(self.place_ms));
        status.sample_is_fresh = fresh.is_some();
        status.behind_for = self.behind_ms.filter(|_| fresh.is_some()).map(since);
        status.tail_unchanged = self.tail.map(|(_, at)| since(at));
        if let Some((s, at)) = sample {
            status.sample_age = Some(since(*at));
            status.stream_exists = Some(s.exists);
            status.stream_length = Some(s.stream.length());
            status.tail = Some(s.tail());
            status.lag_entries = s.lag;
            status.oldest_idle = s.first.oldest_idle;
            status.most_deliveries = s.first.most_deliveries;
            if sight.is_queue {
                status.unread = s.lag;
                status.pending = status.pending.or(s.pending);
            }
        }
        status.caught_up = if lane.reads {
            lane.found_nothing
        } else {
            let position = status.position;
            let is_through = |s: &Sample| {
                let at_the_end = position.version > 0 && position.id >= s.tail();
                if sight.is_queue {
                    s.lag == Some(0)
                } else {
                    at_the_end
                }
            };
            fresh.is_some_and(|(s, _)| is_through(s))
        };
        if status.caught_up {
            status.lag_entries = Some(0);
            status.unread = sight.is_queue.then_some(0);
            status.lag = Some(Duration::ZERO);
            return;
        }
        // What came since the lane found nothing has not waited for longer than since then.
        let at_most = lane.last_found_nothing_ms.map(since);
        let waits = match sample {
            Some((s, _)) if sight.is_queue => s.waited,
            _ if sight.is_queue => None,
            sample => {
                let first = sample.and_then(|(s, _)| s.stream.first);
                let place = Some(status.position)
                    .filter(|p| p.version > 0)
                    .map(|p| p.id);
                let next = place.filter(|id| *id > StreamId::MIN).max(first);
                next.map(|id| Duration::from_millis(wall_ms.saturating_sub(id.ms())))
            }
        };
        // Nor has what was not there yet when the server was asked, where all that was is finished.
        let at_most = match sample {
            Some((s, at)) if !sight.is_queue && status.position.id >= s.tail() => {
                Some(at_most.map_or(since(*at), |t| t.min(since(*at))))
            }
            _ => at_most,
        };
        status.lag = match (waits, at_most) {
            (Some(waits), Some(at_most)) => Some(waits.min(at_most)),
            (waits, at_most) => waits.or(at_most),
        };
    }
}

/// A counter, and how much of it is of the last minutes.
#[derive(Debug, Default)]
struct Recent {
    total: u64,
    /// The minute that was counted last.
    minute: u64,
    of: [u64; MINUTES],
}

impl Recent {
    /// It has come this far.
    fn reach(&mut self, total: u64, now_ms: u64) {
        let minute = now_ms / MINUTE_MS;
        for gone in (self.minute + 1..=minute).rev().take(MINUTES) {
            self.of[gone as usize % MINUTES] = 0;
        }
        self.minute = self.minute.max(minute);
        self.of[self.minute as usize % MINUTES] += total.saturating_sub(self.total);
        self.total = total;
    }

    fn sum(&self, now_ms: u64) -> u64 {
        let minute = now_ms / MINUTE_MS;
        let minutes = (self.minute + 1).saturating_sub(MINUTES as u64)..=self.minute;
        minutes
            .filter(|m| m + MINUTES as u64 > minute)
            .map(|m| self.of[m as usize % MINUTES])
            .sum()
    }
}

#[cfg(test)]
#[path = "sight_tests.rs"]
mod tests;
