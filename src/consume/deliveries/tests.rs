//! What a lane does about what is on record, case by case and in whole lives.

use std::collections::BTreeMap;

use proptest::{collection::btree_set, prelude::*};

use super::*;
use crate::clock;

fn id(n: u64) -> StreamId {
    StreamId::new(n, 0)
}

fn tally(n: u64, times: u32) -> Tally {
    Tally {
        message: id(n),
        times,
    }
}

fn suspicion(most: u32, batch: u32) -> Suspicion {
    Suspicion::of(
        &ConsumerSettings::new("t")
            .max_deliveries(most)
            .batch_size(batch),
    )
}

/// A lane that finds this on record.
fn lane(most: u32, found: Option<Tally>) -> Deliveries {
    let mut lane = Deliveries::new(suspicion(most, 2));
    assert_eq!(lane.pace, Pace::Unknown);
    lane.looked_up(found);
    lane
}

/// As the lane does before it hands a message over.
fn hands(lane: &mut Deliveries, n: u64) -> Next {
    let next = lane.next(id(n));
    if let Next::HandUnder(tally) = next {
        lane.charged = Some(tally);
    }
    next
}

#[test]
fn what_is_on_record_is_written_as_it_is_read() {
    for (text, found) in [
        ("5-1 3", Some((StreamId::new(5, 1), 3))),
        ("0-0 0", Some((StreamId::MIN, 0))),
        ("5-1", None),
        ("5-1 ", None),
        ("5-1 -1", None),
        ("5-1 3 4", None),
        ("x 3", None),
        ("", None),
        ("5-1 4294967296", None),
    ] {
        let found = found.map(|(message, times)| Tally { message, times });
        assert_eq!(Tally::parse(text.as_bytes()), found, "{text:?}");
        if let Some(tally) = found {
            assert_eq!(tally.to_string(), text);
        }
    }
    assert_eq!(Tally::parse(b"\xff 1"), None);
}

#[test]
fn what_is_next_as_a_table() {
    use Next::{Hand, HandUnder, Refuse};
    use Pace::{Calm, First, Wary};
    let (most, wary) = (4, Wary(2));
    #[rustfmt::skip]
    let table = [
        // on record         -> pace;  message 5 is next, and after it 6 -> then the pace is
        (None,                  First, HandUnder(tally(5, 1)), Hand,                  Calm),
        (Some(tally(5, 0)),     First, HandUnder(tally(5, 1)), Hand,                  Calm),
        (Some(tally(5, 1)),     First, HandUnder(tally(5, 2)), Hand,                  Calm),
        (Some(tally(5, 2)),     wary,  HandUnder(tally(5, 3)), HandUnder(tally(6, 1)), wary),
        (Some(tally(5, 3)),     wary,  HandUnder(tally(5, 4)), HandUnder(tally(6, 1)), wary),
        (Some(tally(5, 4)),     wary,  Refuse(4),              HandUnder(tally(6, 1)), wary),
        (Some(tally(5, 9)),     wary,  Refuse(9),              HandUnder(tally(6, 1)), wary),
        // Another message than the one that comes: that one was handled, or is gone.
        (Some(tally(4, 1)),     First, HandUnder(tally(5, 1)), Hand,                  Calm),
        (Some(tally(4, 9)),     wary,  HandUnder(tally(5, 1)), HandUnder(tally(6, 1)), wary),
        (Some(tally(6, 9)),     wary,  HandUnder(tally(5, 1)), HandUnder(tally(6, 1)), wary),
    ];
    for (found, pace, first, second, then) in table {
        let mut lane = lane(most, found);
        assert_eq!(lane.pace, pace, "{found:?}");
        assert_eq!(hands(&mut lane, 5), first, "{found:?}");
        assert_eq!(hands(&mut lane, 6), second, "{found:?}");
        assert_eq!(lane.pace, then, "{found:?}");
    }
}

#[test]
fn off_there_is_nothing_to_do_ever() {
    let none = ConsumerSettings::new("t").persist(Persist::None);
    for suspicion in [suspicion(0, 2), Suspicion::of(&none)] {
        let mut lane = Deliveries::new(suspicion);
        lane.begin_anew();
        assert!(lane.is_calm());
        lane.forgive();
        assert!(lane.is_calm() && !lane.is_careful());
    }
}

#[test]
fn what_came_back_is_taken_off_the_record_and_put_on_it_again_for_the_next_attempt() {
    let mut lane = lane(4, Some(tally(5, 1)));
    for _ in 0..9 {
        assert_eq!(hands(&mut lane, 5), Next::HandUnder(tally(5, 2)));
        assert_eq!(lane.came_back(id(4)), Some(tally(5, 1)));
        assert_eq!(lane.came_back(id(4)), None, "once");
    }
    assert_eq!(hands(&mut lane, 5), Next::HandUnder(tally(5, 2)));
    assert_eq!(lane.came_back(id(5)), None, "it was finished");
    assert_eq!(hands(&mut lane, 6), Next::Hand);
    assert_eq!(lane.came_back(id(5)), None);
}

#[test]
fn a_lane_that_takes_its_partition_up_again_knows_its_own_hand() {
    for (others, times) in [(None, 2), (Some(tally(5, 3)), 4), (Some(tally(6, 1)), 1)] {
        let mut lane = lane(9, Some(tally(5, 1)));
        assert_eq!(hands(&mut lane, 5), Next::HandUnder(tally(5, 2)));
        lane.begin_anew();
        lane.looked_up(others.or(Some(tally(5, 2))));
        assert_eq!(hands(&mut lane, 5), Next::HandUnder(tally(5, times)));
    }
}

#[test]
fn a_reset_forgives() {
    let mut lane = lane(3, Some(tally(5, 3)));
    assert_eq!(lane.next(id(5)), Next::Refuse(3));
    lane.forgive();
    assert_eq!(lane.pace, Pace::First);
    assert_eq!(hands(&mut lane, 5), Next::HandUnder(tally(5, 1)));
}

#[test]
fn a_wary_lane_reads_so_many_one_by_one_then_is_careful_and_then_calm() {
    let mut lane = lane(9, Some(tally(5, 7)));
    let now = clock::now();
    for n in 0..2 {
        lane.before_read(now);
        assert!(matches!(lane.pace, Pace::Wary(_)) && lane.is_careful());
        lane.arrived();
        assert!(matches!(hands(&mut lane, 5 + n), Next::HandUnder(_)));
    }
    let careful = Duration::from_secs(1) * CAREFUL_INTERVALS;
    lane.before_read(now);
    assert_eq!(lane.pace, Pace::Careful(now + careful));
    assert_eq!(lane.next(id(8)), Next::Hand);
    assert!(lane.is_careful() && !lane.is_calm());
    lane.before_read(now + careful);
    assert!(lane.is_calm() && !lane.is_careful());
}

#[test]
fn who_has_handled_everything_there_is_is_calm_and_who_has_handled_nothing_is_not() {
    let mut new = lane(9, None);
    new.caught_up();
    assert_eq!(new.pace, Pace::First);
    assert_eq!(hands(&mut new, 5), Next::HandUnder(tally(5, 1)));
    new.caught_up();
    assert!(new.is_calm());
    let mut wary = lane(9, Some(tally(5, 7)));
    wary.caught_up();
    assert!(wary.is_calm());
    let mut filtered = lane(9, None);
    filtered.passed();
    assert_eq!(filtered.pace, Pace::First, "nothing was handed over");
    hands(&mut filtered, 5);
    filtered.passed();
    assert!(filtered.is_calm());
}

#[test]
fn one_wary_lane_of_a_process_at_a_time_has_its_turn() {
    let turn = Arc::default();
    let first = Turn::take(&turn);
    assert!(first.is_some() && Turn::take(&turn).is_none());
    drop(first);
    assert!(Turn::take(&turn).is_some());
}

/// A consumer of one partition whose process dies at some messages, and is started again each time.
struct Lives {
    messages: u64,
    killers: std::collections::BTreeSet<u64>,
    suspicion: Suspicion,
    /// After so many messages a calm lane has its position stored; one that dies earlier has nothing.
    flush: u64,
    /// How many messages the careful time is enough for.
    careful: u64,
    stored: u64,
    record: Option<Tally>,
    handed: BTreeMap<u64, u32>,
    refused: BTreeMap<u64, u32>,
    finished: std::collections::BTreeSet<u64>,
}

impl Lives {
    /// One process. True when it lived to see the end.
    fn live(&mut self) -> bool {
        let mut lane = Deliveries::new(self.suspicion.clone());
        if !lane.is_calm() {
            lane.looked_up(self.record);
        }
        let (mut position, mut since_flush, mut careful) = (self.stored, 0, 0);
        let now = clock::now();
        loop {
            if !lane.is_calm() {
                let over = lane.suspicion.careful + Duration::from_secs(1);
                lane.before_read(if careful > self.careful {
                    now + over
                } else {
                    now
                });
            }
            if lane.is_careful() {
                self.stored = position; // with the read
            }
            if position == self.messages {
                return true;
            }
            let wary = matches!(lane.pace, Pace::Wary(_));
            let count = if wary {
                1
            } else {
                u64::from(self.suspicion.batch)
            };
            lane.arrived();
            for n in position + 1..=(position + count).min(self.messages) {
                let next = if lane.is_calm() {
                    Next::Hand
                } else {
                    lane.next(id(n))
                };
                if let Next::HandUnder(tally) = next {
                    self.record = Some(tally);
                    lane.charged = Some(tally);
                }
                if let Next::Refuse(times) = next {
                    assert_eq!(self.refused.insert(n, times), None, "once");
                } else {
                    *self.handed.entry(n).or_default() += 1;
                    if self.killers.contains(&n) {
                        return false;
                    }
                    self.finished.insert(n);
                }
                position = n;
                careful += u64::from(!wary);
                since_flush += 1;
                if since_flush >= self.flush {
                    (self.stored, since_flush) = (position, 0);
                }
            }
        }
    }
}

proptest! {
    /// Whatever kills, wherever it lies and however rarely positions are stored: every killer is given up
    /// in the end, nothing else ever is, and each process gets somewhere.
    #[test]
    fn killers_are_given_up_and_nobody_else(
        messages in 1..60_u64,
        killers in btree_set(1..60_u64, 0..4),
        most in 1..12_u32,
        batch in 1..8_u32,
        flush in 1..100_u64,
        careful in 0..100_u64,
    ) {
        let killers: std::collections::BTreeSet<_> =
            killers.into_iter().filter(|n| *n <= messages).collect();
        let mut lives = Lives {
            messages,
            killers: killers.clone(),
            suspicion: suspicion(most, batch),
            flush,
            careful,
            stored: 0,
            record: None,
            handed: BTreeMap::new(),
            refused: BTreeMap::new(),
            finished: std::collections::BTreeSet::new(),
        };
        let mut deaths = 0;
        while !lives.live() {
            deaths += 1;
            prop_assert!(deaths < 1000, "{:?}", lives.handed);
        }
        let refused: std::collections::BTreeSet<_> = lives.refused.keys().copied().collect();
        prop_assert_eq!(&refused, &killers);
        for (killer, times) in &lives.refused {
            // on record only where it came first
            prop_assert_eq!(*times, most);
            prop_assert!(lives.handed[killer] >= most);
        }
        for n in 1..=messages {
            prop_assert!(killers.contains(&n) || lives.finished.contains(&n));
        }
        // where a careful lane lives long enough to get to the next one
        if careful > messages {
            let each = most + 2 * SUSPECT;
            prop_assert!(deaths <= each * killers.len() as u32, "{deaths}");
        }
    }
}
