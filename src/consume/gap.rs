//! What a stream says about a position in it: whether everything behind the position is still there.

use std::{fmt, sync::Arc};

use crate::StreamId;

use super::extent::Extent;

/// Messages that the server no longer had when their turn came. Told to
/// [`on_gap`](crate::ConsumerBuilder::on_gap), once each.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Gap {
    /// The topic.
    pub topic: Arc<str>,
    /// The consumer's name.
    pub consumer: Arc<str>,
    /// The partition.
    pub partition: u32,
    /// How far it had been read: what is missing came after this.
    pub position: StreamId,
    /// The first message behind the gap that is still there. `None` when there is none, or when the gap
    /// was noticed only after reading had come past it.
    pub first: Option<StreamId>,
    /// How many messages are missing, exactly; `None` when that cannot be told.
    pub lost: Option<u64>,
    /// How they went missing.
    pub cause: GapCause,
    /// Where reading goes on: after this id.
    pub resumes: StreamId,
}

/// How messages went missing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum GapCause {
    /// They were trimmed or deleted before they were read.
    Removed,
    /// Messages behind the position are gone, and it is not known how many of those had been read,
    /// perhaps all: nobody counted up to this position. No alarm, and no fault of health.
    Uncounted,
    /// The server came back without the last messages it had, as after a failover or from an older
    /// file. What is left had been handled and is not handled again.
    TailLost,
    /// The stream was deleted, or flushed, and begins anew. It is read from its beginning, what was read
    /// of it excepted.
    Recreated,
    /// The stored position lay ahead of a stream that it does not belong to, and the setting
    /// `PositionAhead` moved it.
    Ahead,
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { position, .. } = self;
        match self.lost {
            Some(1) => f.write_str("1 message")?,
            Some(n) => write!(f, "{n} messages")?,
            None => f.write_str("messages, it cannot be told how many,")?,
        }
        match self.cause {
            GapCause::Removed => write!(
                f,
                " after {position} were trimmed or deleted before they were read"
            )?,
            GapCause::Uncounted => write!(
                f,
                " after {position} were trimmed or deleted, read or not: nobody counted up to there"
            )?,
            GapCause::TailLost => write!(
                f,
                " are missing: the server came back without the end of the stream, which was read \
                 up to {position}"
            )?,
            GapCause::Recreated => write!(
                f,
                " may be missing: the stream was deleted and begins anew; it had been read up to \
                 {position}"
            )?,
            GapCause::Ahead => write!(
                f,
                " may be missing: the stored position {position} lay ahead of the stream"
            )?,
        }
        match self.first {
            Some(first) => write!(f, "; the first one behind the gap is {first}"),
            None => write!(f, "; reading goes on after {}", self.resumes),
        }
    }
}

/// How far a stream was read, and what is known of that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    /// Everything up to this id was read.
    pub(super) id: StreamId,
    /// How many entries the stream held up to there, where somebody counted.
    pub(super) ordinal: Option<u64>,
}

/// What is known of a stream beside its extent now.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Past {
    /// What it was like when it was last looked at.
    pub(super) seen: Option<Extent>,
    /// Whether the place was come to by reading this stream, and is not merely written down somewhere.
    pub(super) read_here: bool,
    /// Whether the stored position is gone from the server as well.
    pub(super) forgotten: bool,
}

/// What a look at the stream says about a place in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Nothing is missing, and so many entries lie at or before the place, as far as is known.
    Fine(Option<u64>),
    /// Something is missing, and reading goes on at `at`.
    Gap {
        cause: GapCause,
        lost: Option<u64>,
        first: Option<StreamId>,
        at: Place,
    },
    /// The place lies ahead of the stream and has nothing to do with it.
    Ahead,
}

/// Judges a place by what the stream is like.
///
/// The server counts what it ever added, and we what we ever read of it. Entries that are gone and that
/// we did not count were not read: when all that is left lies behind the place, and when nothing does,
/// the two numbers tell exactly how many those are. In between nobody can tell, and it is told later.
pub(super) fn judge(place: Place, now: &Extent, past: &Past) -> Verdict {
    let Place { id, ordinal } = place;
    let gap = |cause, lost, first, id, ordinal| Verdict::Gap {
        cause,
        lost,
        first,
        at: Place {
            id,
            ordinal: Some(ordinal),
        },
    };
    // It reached at least to where we have come.
    let then = past
        .seen
        .map(|seen| seen.grown_to(id, ordinal.unwrap_or_default()));
    // Where nothing was ever removed, nothing of ours can be.
    let ours_is_there = now.removed > 0 || ordinal.is_none_or(|n| n == 0);
    let one_life = match now.first {
        Some(first) if id < first && !ours_is_there => false,
        _ => !past.forgotten && then.is_none_or(|then| now.may_come_of(&then)),
    };
    // The counters of a stream never go back by themselves.
    let went_back = if now.added > 0 && one_life {
        GapCause::TailLost
    } else {
        GapCause::Recreated
    };
    // All entries up to `end` are read or gone, and there were so many of them.
    let settle = |upto: u64, first: Option<StreamId>, end: StreamId| match ordinal {
        Some(n) if n == upto => Verdict::Fine(ordinal),
        Some(n) if n < upto => gap(GapCause::Removed, Some(upto - n), first, end, upto),
        Some(_) => gap(went_back, None, first, end, upto),
        None => gap(GapCause::Uncounted, None, first, end, upto),
    };
    if id == StreamId::MIN && ordinal.is_none() {
        // somebody begins with what there is
        return Verdict::Fine(Some(now.removed));
    }
    if id > now.last {
        let beginning = || {
            gap(
                GapCause::Recreated,
                None,
                now.first,
                StreamId::MIN,
                now.removed,
            )
        };
        let tail = || gap(GapCause::TailLost, None, None, now.last, now.added);
        return match ordinal {
            // a moment after all that was published so far
            _ if id.is_moment() => Verdict::Fine(Some(now.added)),
            _ if now.added == 0 => beginning(),
            None if !past.read_here => Verdict::Ahead,
            Some(n) if n < now.added && !past.read_here => Verdict::Ahead,
            Some(n) if n < now.added => beginning(),
            _ if one_life => tail(),
            _ => beginning(),
        };
    }
    if id == now.last {
        return match ordinal {
            None => Verdict::Fine(Some(now.added)),
            Some(_) => settle(now.added, None, id),
        };
    }
    match now.first {
        // nothing is left of what came after it, and of what came before
        None => settle(now.added, None, now.last),
        Some(first) if id < first => settle(now.removed, now.first, id),
        // some lie before it and some, perhaps, behind
        Some(_) => match ordinal {
            Some(n) if n > now.added => Verdict::Gap {
                cause: went_back,
                lost: None,
                first: None,
                at: Place { id, ordinal: None },
            },
            _ => Verdict::Fine(ordinal),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn id(n: u64) -> StreamId {
        StreamId::new(n, 0)
    }

    fn place(n: u64, ordinal: impl Into<Option<u64>>) -> Place {
        Place {
            id: id(n),
            ordinal: ordinal.into(),
        }
    }

    /// `first` is that of a stream with entries.
    fn extent(first: u64, last: u64, added: u64, length: u64) -> Extent {
        Extent {
            newest: None,
            deleted: None,
            first: (length > 0).then(|| id(first)),
            last: id(last),
            added,
            removed: added - length,
        }
    }

    const STORED: Past = Past {
        seen: None,
        read_here: false,
        forgotten: false,
    };

    fn read(seen: Extent) -> Past {
        Past {
            seen: Some(seen),
            read_here: true,
            forgotten: false,
        }
    }

    fn gap(
        cause: GapCause,
        lost: impl Into<Option<u64>>,
        first: impl Into<Option<u64>>,
        at: Place,
    ) -> Verdict {
        Verdict::Gap {
            cause,
            lost: lost.into(),
            first: first.into().map(id),
            at,
        }
    }

    #[track_caller]
    fn judged(rows: &[(Place, Extent, Past, Verdict)]) {
        for (place, now, past, want) in rows {
            let got = judge(*place, now, past);
            assert_eq!(got, *want, "{place:?} in {now:?}, {past:?}");
        }
    }

    #[test]
    fn what_is_missing_is_told_by_the_counters() {
        use GapCause::{Removed, Uncounted};
        use Verdict::Fine;
        let hundred = extent(1, 100, 100, 100);
        judged(&[
            // all is there
            (place(0, 0), extent(1, 100, 100, 100), STORED, Fine(Some(0))),
            (place(40, 40), hundred, STORED, Fine(Some(40))),
            (place(100, 100), hundred, STORED, Fine(Some(100))),
            (place(0, 0), Extent::default(), STORED, Fine(Some(0))),
            (place(0, None), Extent::default(), STORED, Fine(Some(0))),
            (
                place(0, None),
                extent(96, 100, 100, 5),
                STORED,
                Fine(Some(95)),
            ),
            (
                place(0, None),
                extent(0, 100, 100, 0),
                STORED,
                Fine(Some(100)),
            ),
            // what was read is gone, and nothing else
            (
                place(40, 40),
                extent(41, 100, 100, 60),
                STORED,
                Fine(Some(40)),
            ),
            (
                place(100, 100),
                extent(0, 100, 100, 0),
                STORED,
                Fine(Some(100)),
            ),
            // more is
            (
                place(10, 10),
                extent(96, 100, 100, 5),
                STORED,
                gap(Removed, 85, 96, place(10, 95)),
            ),
            (
                place(0, 0),
                extent(96, 100, 100, 5),
                STORED,
                gap(Removed, 95, 96, place(0, 95)),
            ),
            (
                place(10, 10),
                extent(0, 100, 100, 0),
                STORED,
                gap(Removed, 90, None, place(100, 100)),
            ),
            // one in the middle, noticed at the end
            (
                place(50, 50),
                extent(1, 100, 100, 99),
                STORED,
                Fine(Some(50)),
            ),
            (
                place(100, 99),
                extent(1, 100, 100, 99),
                STORED,
                gap(Removed, 1, None, place(100, 100)),
            ),
            // nobody counted
            (place(40, None), hundred, STORED, Fine(None)),
            (place(100, None), hundred, STORED, Fine(Some(100))),
            (
                place(10, None),
                extent(96, 100, 100, 5),
                STORED,
                gap(Uncounted, None, 96, place(10, 95)),
            ),
            (
                place(10, None),
                extent(0, 100, 100, 0),
                STORED,
                gap(Uncounted, None, None, place(100, 100)),
            ),
        ]);
    }

    #[test]
    fn a_stream_that_lost_its_end_is_read_on_from_what_is_left() {
        use GapCause::TailLost;
        let hundred = extent(1, 100, 100, 100);
        judged(&[
            // the end of the stream was lost
            (
                place(100, 100),
                extent(1, 90, 90, 90),
                STORED,
                gap(TailLost, None, None, place(90, 90)),
            ),
            (
                place(100, None),
                extent(1, 90, 90, 90),
                read(hundred),
                gap(TailLost, None, None, place(90, 90)),
            ),
            (
                place(100, 100),
                extent(81, 90, 90, 10),
                read(extent(91, 100, 100, 10)),
                gap(TailLost, None, None, place(90, 90)),
            ),
            // and hidden by what came since
            (
                place(100, 100),
                extent(1, 101, 91, 91),
                read(hundred),
                gap(
                    TailLost,
                    None,
                    None,
                    Place {
                        id: id(100),
                        ordinal: None,
                    },
                ),
            ),
            (
                place(101, 101),
                extent(1, 101, 91, 91),
                read(hundred),
                gap(TailLost, None, None, place(101, 91)),
            ),
        ]);
    }

    #[test]
    fn another_stream_is_read_from_its_beginning_if_ours_was_there_once() {
        use GapCause::Recreated;
        let hundred = extent(1, 100, 100, 100);
        judged(&[
            (
                place(100, 100),
                Extent::default(),
                read(hundred),
                gap(Recreated, None, None, place(0, 0)),
            ),
            (
                place(100, None),
                Extent::default(),
                STORED,
                gap(Recreated, None, None, place(0, 0)),
            ),
            (
                place(100, 100),
                extent(5, 7, 3, 3),
                Past {
                    seen: Some(hundred),
                    ..STORED
                },
                gap(Recreated, None, 5, place(0, 0)),
            ),
            (
                place(100, 100),
                extent(81, 90, 90, 10),
                Past {
                    forgotten: true,
                    ..read(extent(91, 100, 100, 10))
                },
                gap(Recreated, None, 81, place(0, 80)),
            ),
            (
                place(100, 100),
                extent(1, 90, 100, 100),
                read(extent(1, 50, 50, 50)),
                gap(Recreated, None, 1, place(0, 0)),
            ),
            (
                place(100, 100),
                extent(200, 209, 10, 10),
                STORED,
                gap(Recreated, None, 200, place(100, 0)),
            ),
            (
                place(100, 100),
                extent(7, 9, 500, 3),
                read(hundred),
                gap(Recreated, None, 7, place(0, 497)),
            ),
            (
                place(100, 100),
                extent(200, 209, 10, 10),
                read(hundred),
                gap(Recreated, None, 200, place(100, 0)),
            ),
            (
                place(209, 110),
                extent(200, 209, 10, 10),
                read(hundred),
                gap(Recreated, None, None, place(209, 10)),
            ),
            // where nothing is known that would say so, a person has to
            (
                place(100, None),
                extent(1, 90, 90, 90),
                STORED,
                Verdict::Ahead,
            ),
            (
                place(100, 80),
                extent(1, 90, 90, 90),
                STORED,
                Verdict::Ahead,
            ),
            (place(u64::MAX, None), hundred, STORED, Verdict::Ahead),
        ]);
    }
    #[test]
    fn a_moment_after_the_last_message_is_a_place_to_wait_at() {
        let moment = Place {
            id: StreamId::new(200, 0).before(),
            ordinal: None,
        };
        for now in [Extent::default(), extent(1, 100, 100, 100)] {
            let fine = Verdict::Fine(Some(now.added));
            assert_eq!(judge(moment, &now, &STORED), fine);
            let counted = Place {
                ordinal: Some(now.added),
                ..moment
            };
            assert_eq!(judge(counted, &now, &read(now)), fine);
        }
    }

    #[test]
    fn a_gap_says_what_is_missing_where_and_where_it_goes_on() {
        let gap = |lost, first, cause| Gap {
            topic: "orders".into(),
            consumer: "billing".into(),
            partition: 3,
            position: id(10),
            first,
            lost,
            cause,
            resumes: id(95),
        };
        let text = gap(Some(85), Some(id(96)), GapCause::Removed).to_string();
        assert_eq!(
            text,
            "85 messages after 10-0 were trimmed or deleted before they were read; \
             the first one behind the gap is 96-0"
        );
        let text = gap(None, None, GapCause::Removed).to_string();
        assert!(text.contains("cannot be told how many"), "{text}");
        assert!(text.ends_with("reading goes on after 95-0"), "{text}");
    }

    /// A stream as the server keeps it, and a reader that knows by itself what it never saw.
    #[derive(Default)]
    struct World {
        entries: BTreeSet<u64>,
        last: u64,
        added: u64,
        reader: u64,
        counted: Option<u64>,
        unread_lost: u64,
        told: u64,
        seen: Option<Extent>,
    }

    #[derive(Clone, Copy, Debug)]
    enum Act {
        Add(u64),
        Trim(usize),
        Delete(usize),
        Read(usize),
        Look,
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            3 => (1..4u64).prop_map(Act::Add),
            1 => (0..8usize).prop_map(Act::Trim),
            1 => (0..8usize).prop_map(Act::Delete),
            2 => (1..6usize).prop_map(Act::Read),
            2 => Just(Act::Look),
        ]
    }

    impl World {
        fn remove(&mut self, n: u64) {
            if self.entries.remove(&n) && n > self.reader {
                self.unread_lost += 1;
            }
        }

        fn extent(&self) -> Extent {
            Extent {
                newest: None,
                deleted: None,
                first: self.entries.first().map(|n| id(*n)),
                last: id(self.last),
                added: self.added,
                removed: self.added - self.entries.len() as u64,
            }
        }

        /// Looks as a lane does; `true` when everything lost so far must have been told.
        fn look(&mut self) -> bool {
            let now = self.extent();
            let place = Place {
                id: id(self.reader),
                ordinal: self.counted,
            };
            let past = Past {
                seen: self.seen,
                read_here: true,
                forgotten: false,
            };
            if let Some(seen) = self.seen {
                assert!(now.may_come_of(&seen), "{now:?} {seen:?}");
            }
            self.seen = Some(now);
            let at = match judge(place, &now, &past) {
                Verdict::Fine(ordinal) => Place { ordinal, ..place },
                Verdict::Gap {
                    cause, lost, at, ..
                } => {
                    assert_eq!(cause, GapCause::Removed);
                    self.told += lost.unwrap();
                    at
                }
                Verdict::Ahead => panic!("nothing is ahead here"),
            };
            self.reader = at.id.ms();
            self.counted = at.ordinal;
            assert_eq!(
                judge(at, &now, &past),
                Verdict::Fine(at.ordinal),
                "a gap is told once"
            );
            self.reader >= self.last || self.entries.first().is_none_or(|f| self.reader < *f)
        }
    }

    proptest! {
        /// However a stream is added to, trimmed, deleted from and read: what a look tells adds up to
        /// exactly what was never read, whenever that can be told, and to no more at any time.
        #[test]
        fn what_is_told_is_what_was_lost(acts in prop::collection::vec(act(), 0..60)) {
            let mut w = World { counted: Some(0), ..World::default() };
            for act in acts {
                match act {
                    Act::Add(step) => {
                        w.last += step;
                        w.added += 1;
                        w.entries.insert(w.last);
                    }
                    Act::Trim(n) => {
                        let gone: Vec<u64> = w.entries.iter().take(n).copied().collect();
                        for n in gone {
                            w.remove(n);
                        }
                    }
                    Act::Delete(n) => {
                        if let Some(n) = w.entries.iter().nth(n).copied() {
                            w.remove(n);
                        }
                    }
                    Act::Read(n) => {
                        let next = w.entries.range(w.reader + 1..).take(n);
                        let next: Vec<u64> = next.copied().collect();
                        w.reader = next.last().copied().unwrap_or(w.reader);
                        w.counted = w.counted.map(|c| c + next.len() as u64);
                    }
                    Act::Look => {
                        let certain = w.look();
                        prop_assert!(w.told <= w.unread_lost);
                        prop_assert!(!certain || w.told == w.unread_lost,
                            "told {} of {}", w.told, w.unread_lost);
                    }
                }
            }
        }
    }
}
