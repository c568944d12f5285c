use super::*;

const S: u64 = 1000;
/// Ids are milliseconds of the wall clock, which is so much ahead of the coarse one.
const WALL: u64 = 1_000_000_000;

fn id(ms: u64) -> StreamId {
    StreamId::new(WALL + ms, 0)
}

fn at(ms: u64, ordinal: u64) -> Snapshot {
    Snapshot {
        id: id(ms),
        ordinal: Some(ordinal),
        version: 2,
    }
}

/// The stream at some moment, in milliseconds of the coarse clock: `length` entries, the last of them then.
fn stream(first: u64, last: u64, length: u64) -> Extent {
    Extent {
        first: (length > 0).then(|| id(first)),
        newest: (length > 0).then(|| id(last)),
        deleted: None,
        last: id(last),
        added: length,
        removed: 0,
    }
}

/// A partition on a clock of its own.
struct World {
    sight: Sight,
    position: Snapshot,
    lane: LaneSight,
    running: LaneState,
}

impl World {
    fn new(is_queue: bool) -> Self {
        let sight = Sight::new(is_queue, Duration::from_secs(15));
        *sight.state.lock() = State::default();
        Self {
            sight,
            position: at(0, 0),
            lane: LaneSight {
                reads: true,
                found_nothing: false,
                last_found_nothing_ms: None,
            },
            running: LaneState::Running,
        }
    }

    fn note(&self, now_ms: u64) {
        self.sight.state.lock().moved(self.position.id, now_ms);
    }

    fn sample(&self, stream: Extent, now_ms: u64) {
        let answer = Answer {
            stream: Some(stream),
            ..Answer::default()
        };
        let place = (self.position.id, self.position.ordinal);
        let mut state = self.sight.state.lock();
        state.take(Some(place), &answer, now_ms, WALL + now_ms);
    }

    fn sample_group(&self, stream: Extent, group: Group, now_ms: u64) {
        let answer = Answer {
            stream: Some(stream),
            group: Some(group),
            first: First::default(),
        };
        let mut state = self.sight.state.lock();
        state.take(None, &answer, now_ms, WALL + now_ms);
    }

    fn status(&self, now_ms: u64) -> PartitionStatus {
        let mut status = PartitionStatus {
            state: self.running,
            position: if self.sight.is_queue {
                Snapshot::default()
            } else {
                self.position
            },
            ..PartitionStatus::default()
        };
        let state = self.sight.state.lock();
        let now = (now_ms, WALL + now_ms);
        state.tell(&self.sight, self.lane, &mut status, now);
        status
    }
}

/// As most rows expect it.
#[allow(clippy::unnecessary_wraps)]
fn seconds(n: u64) -> Option<Duration> {
    Some(Duration::from_secs(n))
}

#[test]
fn nothing_is_known_before_the_first_sample() {
    let mut w = World::new(false);
    w.note(0);
    let s = w.status(7 * S);
    assert_eq!((s.lag_entries, s.tail, s.stream_length), (None, None, None));
    assert_eq!((s.sample_age, s.tail_unchanged), (None, None));
    assert_eq!((s.stream_exists, s.behind_for), (None, None));
    assert!(!s.caught_up && !s.sample_is_fresh);
    assert_eq!(s.position_unchanged, seconds(7));
    // and not even where it is, nor for how long anything waits
    w = World::new(false);
    w.position = Snapshot::default();
    let s = w.status(7 * S);
    assert_eq!((s.position_unchanged, s.lag), (None, None));
}

#[test]
fn a_position_before_the_end_that_does_not_move_is_behind() {
    let mut w = World::new(false);
    w.position = at(5 * S, 1);
    w.note(5 * S);
    w.sample(stream(5 * S, 5 * S, 1), 6 * S);
    assert_eq!(w.status(90 * S / 10).behind_for, None);
    // an entry after a long idle starts the clock at 0
    w.sample(stream(5 * S, 100 * S, 2), 105 * S);
    assert_eq!(w.status(105 * S).behind_for, seconds(0));
    assert_eq!(w.status(120 * S).behind_for, seconds(15));
    // more entries do not start it again,
    w.sample(stream(5 * S, 119 * S, 3), 120 * S);
    assert_eq!(w.status(130 * S).behind_for, seconds(25));
    assert_eq!(w.status(130 * S).tail_unchanged, seconds(10));
    assert_eq!(w.status(130 * S).lag_entries, Some(2));
    // a position that moves does, in either direction
    w.position = at(100 * S, 2);
    w.note(131 * S);
    assert_eq!(w.status(132 * S).behind_for, seconds(1));
    assert_eq!(w.status(132 * S).position_unchanged, seconds(1));
    w.position = at(5 * S, 1);
    w.note(140 * S);
    assert_eq!(w.status(142 * S).behind_for, seconds(2));
    // and at the end it is not behind
    w.position = at(119 * S, 3);
    w.note(143 * S);
    assert_eq!(w.status(150 * S).behind_for, None);
    w.position = at(500 * S, 3);
    w.note(151 * S);
    assert_eq!(w.status(152 * S).behind_for, None, "past the end");
}

#[test]
fn an_old_sample_does_not_count_and_its_clock_goes_on() {
    let mut w = World::new(false);
    w.note(0);
    w.sample(stream(S, 2 * S, 2), 10 * S);
    assert_eq!(w.status(70 * S).behind_for, seconds(60));
    assert!(w.status(70 * S).sample_is_fresh);
    let s = w.status(70 * S + 1);
    assert_eq!((s.behind_for, s.sample_is_fresh), (None, false));
    assert_eq!(s.sample_age, Some(Duration::from_millis(60_001)));
    w.sample(stream(S, 2 * S, 2), 100 * S);
    assert_eq!(w.status(100 * S).behind_for, seconds(90));
    assert_eq!(w.status(100 * S).tail_unchanged, seconds(90));
    // where samples are far between they count for longer
    w.sight.fresh_ms = Sight::new(false, Duration::from_mins(10)).fresh_ms;
    assert!(w.status(100 * S + 40 * 60 * S).sample_is_fresh);
    assert!(!w.status(100 * S + 40 * 60 * S + 1).sample_is_fresh);
}

#[test]
fn a_stream_that_is_empty_or_missing_is_not_behind() {
    let w = World::new(false);
    w.note(0);
    w.sample(stream(S, 2 * S, 2), 10 * S);
    assert_eq!(w.status(11 * S).behind_for, seconds(1));
    w.sample(stream(0, 2 * S, 0), 20 * S);
    let s = w.status(30 * S);
    assert_eq!((s.behind_for, s.lag_entries), (None, Some(0)));
    assert_eq!(s.tail, Some(StreamId::MIN));
    // no other message was seen
    assert_eq!(s.tail_unchanged, seconds(20));
    let answer = Answer::default();
    let place = Some((StreamId::MIN, None));
    w.sight.state.lock().take(place, &answer, 40 * S, WALL);
    let s = w.status(41 * S);
    assert_eq!(s.stream_exists, Some(false));
    assert_eq!((s.lag_entries, s.stream_length), (Some(0), Some(0)));
}

#[test]
fn what_is_refused_is_unknown_and_said_once() {
    let w = World::new(false);
    w.note(0);
    w.sample(stream(S, 2 * S, 2), 10 * S);
    assert!(w.sight.refused(20 * S));
    assert!(!w.sight.refused(30 * S));
    let s = w.status(31 * S);
    assert_eq!((s.lag_entries, s.tail, s.stream_length), (None, None, None));
    assert_eq!((s.behind_for, s.sample_age), (None, None));
    assert!(!w.sight.is_due(29 * S) && w.sight.is_due(30 * S));
    w.sight.sampled(w.position, &Answer::default(), 0);
    assert!(w.sight.refused(40 * S), "it was well in between");
}

#[test]
fn caught_up_is_what_the_lane_found_or_where_it_does_not_read_what_the_sample_says() {
    let mut w = World::new(false);
    w.position = at(2 * S, 2);
    w.note(0);
    w.sample(stream(S, 9 * S, 3), 10 * S);
    w.lane.found_nothing = true;
    w.lane.last_found_nothing_ms = Some(11 * S);
    let s = w.status(12 * S);
    assert!(s.caught_up, "the sample is older than the proof");
    assert_eq!((s.lag_entries, s.lag), (Some(0), seconds(0)));
    // something was read since, and has waited for a second at most
    w.lane.found_nothing = false;
    let s = w.status(12 * S);
    assert_eq!((s.caught_up, s.lag), (false, seconds(1)));
    assert_eq!(s.lag_entries, Some(1), "as of the sample");
    // without that it may have waited since what came before it
    w.lane.last_found_nothing_ms = None;
    assert_eq!(w.status(12 * S).lag, seconds(10));

    // all that was seen is finished, so that what waits has come since
    w.position = at(9 * S, 3);
    assert_eq!(w.status(600 * S).lag, seconds(590));
    w.sample(stream(S, 9 * S, 3), 598 * S);
    assert_eq!(w.status(600 * S).lag, seconds(2));
    w.sample(stream(S, 9 * S, 3), 12 * S);
    w.position = at(2 * S, 2);

    // paused: what the lane found does not count
    (w.running, w.lane.reads) = (LaneState::Paused, false);
    w.lane.found_nothing = true;
    assert!(!w.status(13 * S).caught_up);
    w.position = at(9 * S, 3);
    assert!(w.status(13 * S).caught_up);
    assert!(!w.status(200 * S).caught_up, "nobody has looked for long");
}

#[test]
fn what_waits_is_what_comes_after_the_position_or_the_first_there_is() {
    let mut w = World::new(false);
    w.position = at(2 * S, 2);
    w.note(0);
    assert_eq!(w.status(20 * S).lag, seconds(18));
    w.sample(stream(15 * S, 19 * S, 3), 20 * S);
    assert_eq!(w.status(20 * S).lag, seconds(5), "the others are gone");
    // nothing was finished yet
    w.position = Snapshot {
        id: StreamId::MIN,
        ordinal: Some(0),
        version: 1,
    };
    assert_eq!(w.status(20 * S).lag, seconds(5));
    assert_eq!(World::new(false).status(S).lag, seconds(1));
}

#[test]
fn a_group_tells_what_nobody_was_given_and_what_is_pending_apart() {
    let w = World::new(true);
    let group = |delivered, pending, read: u64| Group {
        delivered: id(delivered),
        pending,
        read: Some(read),
    };
    // one unread and none pending; the other way round
    w.sample_group(stream(S, S, 1), group(0, 0, 0), 10 * S);
    let s = w.status(11 * S);
    assert_eq!(
        (s.unread, s.pending, s.lag_entries),
        (Some(1), Some(0), Some(1))
    );
    assert_eq!((s.lag, s.caught_up), (seconds(9), false));
    assert_eq!(s.behind_for, seconds(1));
    w.sample_group(stream(S, S, 1), group(S, 1, 1), 20 * S);
    let s = w.status(21 * S);
    assert_eq!(
        (s.unread, s.pending, s.lag_entries),
        (Some(0), Some(1), Some(0))
    );
    assert_eq!((s.lag, s.behind_for), (seconds(0), None));
    assert_eq!(s.position_unchanged, seconds(1));
    // the lane finds nothing more to read, whatever is pending
    let mut w = w;
    w.sample_group(stream(S, 9 * S, 3), group(S, 1, 1), 30 * S);
    assert_eq!(w.status(30 * S).unread, Some(2));
    w.lane.found_nothing = true;
    let s = w.status(31 * S);
    assert_eq!((s.caught_up, s.unread, s.pending), (true, Some(0), Some(1)));
    // a group that is gone is unknown
    w.lane.found_nothing = false;
    let answer = Answer {
        stream: Some(stream(S, 9 * S, 3)),
        ..Answer::default()
    };
    w.sight.state.lock().take(None, &answer, 40 * S, WALL);
    let s = w.status(41 * S);
    assert_eq!(
        (s.unread, s.pending, s.stream_length),
        (None, None, Some(3))
    );
}

#[test]
fn dead_letters_count_for_ten_minutes() {
    let mut r = Recent::default();
    let minute = |n: u64| n * MINUTE_MS;
    r.reach(0, minute(100));
    r.reach(3, minute(100) + 1);
    r.reach(5, minute(104));
    assert_eq!(r.sum(minute(104)), 5);
    assert_eq!(r.sum(minute(109)), 5);
    assert_eq!(r.sum(minute(110)), 2);
    r.reach(5, minute(110));
    assert_eq!(r.sum(minute(110)), 2);
    r.reach(6, minute(113));
    assert_eq!((r.sum(minute(113)), r.sum(minute(114))), (3, 1));
    assert_eq!(r.sum(minute(123)), 0);
    r.reach(7, minute(1000));
    assert_eq!(r.sum(minute(1000)), 1);
    // the clock need not begin at 0, nor the counter
    let mut r = Recent::default();
    r.reach(4, 5);
    assert_eq!(r.sum(6), 4);
}
