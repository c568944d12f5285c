//! Looking after what reads cannot show: entries that went missing, a stream that is another one, a
//! stored position that is gone, a stream that is about to be deleted.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use crate::{
    Persist, PositionAhead, Result, StreamId, clock,
    error::{Error, ErrorKind, Outcome, ServerClass},
    net::{
        Skim,
        resp::{self, Cursor, Head},
    },
    quiet::{HeldBack, Quiet},
};

use super::{
    extent::Extent,
    gap::{Gap, GapCause, Past, Place, Verdict, judge},
    lane::Lane,
    positions::Positions,
};

/// How often a lane looks, between two reads. It looks at every new connection as well.
const LOOK_EVERY_MS: u64 = 2000;
/// A look that takes long, as where entries are large, is taken less often: the share of the time that
/// looks may take is one in so many.
const SHARE: u64 = 100;
/// What a stream is like is written down with one look in so many.
const NOTE_EVERY: u32 = 16;
/// So many looks in a row that broke the connection are no accident: the next connection is read from
/// before it is asked again.
const ENOUGH: u32 = 2;
/// How often the time between looks is doubled while they break the connection.
const DOUBLINGS: u32 = 7;

/// What a user wants done about a gap.
pub(crate) type GapHook = Arc<dyn Fn(&Gap) + Send + Sync>;

/// What a lane's position is worth.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Footing {
    /// It is what was stored, and whether it fits the stream is not known.
    #[default]
    Stored,
    /// It fits: the lane has looked.
    Firm,
    /// It lies ahead of the stream, and a person has to decide.
    Ahead,
}

/// What one lane knows of its stream beside what it reads.
#[derive(Default)]
pub(super) struct Watch {
    /// The questions and how many they are, rendered for a lane with this footing.
    question: Vec<u8>,
    rendered: Option<(Footing, usize)>,
    /// The answers hold whole entries, which can be large.
    skim: Skim,
    /// On the coarse clock.
    due_ms: u64,
    /// What the stream was like at the last look, or as it was written down in another life.
    seen: Option<Extent>,
    /// Looks until that is written down again.
    unnoted: u32,
    footing: Footing,
    /// Looks in a row that ended with the connection.
    broke: u32,
    /// The server does not tell what has to be known, and that was said.
    blind: bool,
    /// The stream has a time to live, and that was said.
    expires: bool,
    quiet_gaps: Quiet,
    quiet_gone: Quiet,
}

/// What the server answered.
struct Answers {
    extent: Result<Extent>,
    /// In milliseconds, where the stream has a time to live.
    ttl: Option<u64>,
    /// Whether the position is stored, where that was asked and answered.
    is_stored: Option<bool>,
    /// What the stream was like when that was last written down.
    noted: Option<Extent>,
}

impl Watch {
    /// A connection was made: it may lead to another server than the one before.
    pub(super) fn reconnected(&mut self) {
        if self.broke < ENOUGH {
            self.due_ms = 0;
            self.unnoted = 0;
        }
    }

    /// Somebody said where to go on: whether that fits the stream is to be seen.
    pub(super) fn begin_anew(&mut self) {
        self.footing = Footing::Stored;
        self.due_ms = 0;
    }

    /// This is the first entry of what was read last. What a stream begins with is worth knowing.
    pub(super) fn read_first(&mut self, id: StreamId) {
        if let Some(seen) = self.seen.as_mut().filter(|s| s.first.is_none()) {
            seen.first = Some(id);
            self.due_ms = 0;
            self.unnoted = 0;
        }
    }

    pub(super) fn is_due(&self) -> bool {
        clock::coarse_ms() >= self.due_ms
    }

    /// Whether the lane waits for a person, with the connection in good order.
    pub(super) fn is_ahead(&self) -> bool {
        self.footing == Footing::Ahead
    }

    fn next_after(&mut self, began_ms: u64) {
        let now = clock::coarse_ms();
        let took = now.saturating_sub(began_ms);
        self.due_ms = now + LOOK_EVERY_MS.max(took * SHARE);
    }
}

impl Lane<Positions> {
    /// Looks at the stream when it is time to; nothing may be outstanding. Blocks for one round trip.
    ///
    /// # Errors
    ///
    /// Those of the connection; the server's own when it will be ready later; and that the stored
    /// position lies ahead of the stream, as long as a person has to decide about that.
    pub(super) fn look_when_due(&mut self) -> Result<()> {
        if !self.progress.watch.is_due() {
            return Ok(());
        }
        let began_ms = clock::coarse_ms();
        let answers = match self.ask() {
            Ok(answers) => answers,
            Err(e) => {
                // Where the connection breaks every time the question is asked, reading matters more
                // than the answer.
                let wait = LOOK_EVERY_MS << self.progress.watch.broke.min(DOUBLINGS);
                self.progress.watch.broke += 1;
                self.progress.watch.due_ms = clock::coarse_ms() + wait;
                return Err(e
                    .during("look at the stream")
                    .with_outcome(Outcome::NotApplied)
                    .on_key(self.reader.key()));
            }
        };
        self.progress.watch.broke = 0;
        self.progress.watch.next_after(began_ms);
        self.heed_ttl(answers.ttl);
        match answers.extent {
            Ok(now) => {
                self.progress.watch.blind = false;
                self.progress.watch.seen = self.progress.watch.seen.or(answers.noted);
                self.heed(&now, answers.is_stored)?;
                self.note(&now);
            }
            Err(e) if e.is_retryable() && e.kind() == ErrorKind::Server => {
                self.progress.watch.due_ms = 0;
                let endpoint = self.plan.target.endpoint();
                return Err(e.on_key(self.reader.key()).at(endpoint));
            }
            Err(e) => self.go_blind(&e),
        }
        if answers.is_stored == Some(false) {
            self.store_again();
        }
        Ok(())
    }

    /// Asks all questions in one round trip.
    fn ask(&mut self) -> Result<Answers> {
        let Self {
            progress: Positions { watch, store, .. },
            reader,
            plan,
            context,
            ..
        } = self;
        let n = match watch.rendered {
            Some((footing, n)) if footing == watch.footing => n,
            _ => {
                watch.question.clear();
                Extent::ask(&mut watch.question, reader.key());
                resp::whole(&mut watch.question, &[b"PTTL", reader.key()]);
                let mut n = 2;
                if plan.persist != Persist::None {
                    store.ask_whether_stored(&mut watch.question, context.partition);
                    n += 1;
                    if watch.footing != Footing::Firm {
                        store.ask_for_stream(&mut watch.question, context.partition);
                        n += 1;
                    }
                }
                watch.rendered = Some((watch.footing, n));
                n
            }
        };
        let mut answers = Answers {
            extent: Ok(Extent::default()),
            ttl: None,
            is_stored: None,
            noted: None,
        };
        let Some(connection) = reader.connection() else {
            return Err(Error::new(ErrorKind::Io, "look", "not connected"));
        };
        let (skim, question, slack) = (&mut watch.skim, &watch.question, plan.read.slack);
        skim.exchange(connection, question, n, slack, |i, answer| match i {
            0 => answers.extent = Extent::read(answer).map(Option::unwrap_or_default),
            1 => answers.ttl = number(answer), // negative when there is none
            2 => answers.is_stored = number(answer).map(|n| n != 0),
            _ => answers.noted = text(answer).and_then(Extent::parse),
        })?;
        Ok(answers)
    }

    /// Draws the conclusions.
    fn heed(&mut self, now: &Extent, is_stored: Option<bool>) -> Result<()> {
        let place = Place {
            id: self.reader.cursor(),
            ordinal: self.progress.base,
        };
        let past = Past {
            seen: self.progress.watch.seen,
            read_here: self.progress.watch.footing == Footing::Firm,
            forgotten: is_stored == Some(false),
        };
        match judge(place, now, &past) {
            Verdict::Fine(ordinal) => {
                let learned = self.progress.base.is_none() && ordinal.is_some();
                if learned && place.id == StreamId::MIN && now.removed > 0 {
                    log::info!(
                        "{self}: begins with what there is; {} messages before it were trimmed or deleted",
                        now.removed
                    );
                }
                self.progress.base = ordinal;
                if learned {
                    // Stored when there is time to: no message has to wait for it.
                    self.progress.writer.store(place.id, ordinal);
                }
            }
            Verdict::Gap {
                cause,
                lost,
                first,
                at,
            } => {
                self.go_on_at(at, |lane| lane.report_gap(cause, lost, first, at.id))?;
            }
            Verdict::Ahead => {
                let at = match self.plan.position_ahead {
                    PositionAhead::Stop => return Err(self.wait_for_a_person(now)),
                    PositionAhead::Beginning => Place {
                        id: StreamId::MIN,
                        ordinal: Some(now.removed),
                    },
                    PositionAhead::Tail => Place {
                        id: now.last,
                        ordinal: Some(now.added),
                    },
                };
                self.go_on_at(at, |lane| {
                    lane.report_gap(GapCause::Ahead, None, None, at.id);
                })?;
            }
        }
        self.progress.watch.footing = Footing::Firm;
        self.progress.watch.seen = Some(*now);
        Ok(())
    }

    /// Writes down what the stream is like, now and then, for whoever looks at it next. It is only a help
    /// to tell streams apart: what keeps it from being written keeps nothing else.
    fn note(&mut self, now: &Extent) {
        if self.plan.persist == Persist::None {
            return;
        }
        if let Some(left) = self.progress.watch.unnoted.checked_sub(1) {
            self.progress.watch.unnoted = left;
            return;
        }
        self.progress.watch.unnoted = NOTE_EVERY;
        self.commands.clear();
        let partition = self.context.partition;
        self.progress
            .store
            .note_stream(&mut self.commands, partition, now);
        if let Some(connection) = self.reader.connection() {
            let patience = self.plan.read.slack;
            // A connection that broke over it shows with the read that follows.
            let (inbox, commands) = (&mut self.inbox, &self.commands);
            let _ = inbox.exchange(connection, commands, 1, patience, |_, _| {});
        }
    }

    fn wait_for_a_person(&mut self, now: &Extent) -> Error {
        self.progress.watch.footing = Footing::Ahead;
        self.progress.watch.due_ms = 0;
        let what = format!(
            "the stored position {} lies ahead of the stream, whose last id is {}, and does not belong \
             to it: nothing would ever be read. Reset the position, or say PositionAhead: Beginning to \
             read what there is, or PositionAhead: Tail to read what is to come",
            self.reader.cursor(),
            now.last,
        );
        Error::new(ErrorKind::Config, "begin at the stored position", what)
            .on_key(self.reader.key())
            .at(self.plan.target.endpoint())
    }

    /// Counts, logs and tells a gap.
    fn report_gap(
        &mut self,
        cause: GapCause,
        lost: Option<u64>,
        first: Option<StreamId>,
        resumes: StreamId,
    ) {
        let gap = Gap {
            topic: self.context.topic.clone(),
            consumer: self.context.consumer.clone(),
            partition: self.context.partition,
            position: self.reader.cursor(),
            first,
            lost,
            cause,
            resumes,
        };
        let alarming = cause != GapCause::Uncounted;
        self.monitor.note_gap(lost, alarming);
        if !alarming {
            log::info!("{self}: {gap}");
        } else if let Some(more) = self.progress.watch.quiet_gaps.permit() {
            let advice = match cause {
                GapCause::Removed => {
                    " (keep more of the topic, as by a larger MaxLen, or read it faster)"
                }
                _ => "",
            };
            log::error!("{self}: GAP: {gap}{advice}{}", HeldBack(more));
        }
        if let Some(hook) = &self.plan.on_gap
            && catch_unwind(AssertUnwindSafe(|| hook(&gap))).is_err()
        {
            log::error!("{self}: the on_gap hook panicked");
        }
    }

    /// Goes on at a place that need not be the one it came to: the one way in which a position goes back
    /// without having been told to, so that it is stored before anything else. `told` is what is said
    /// about it, once it is settled.
    fn go_on_at(&mut self, at: Place, told: impl FnOnce(&mut Self)) -> Result<()> {
        let moves = at.id != self.reader.cursor();
        if at.id < self.reader.cursor() {
            // First here, or what was finished before and is not stored yet would be stored over it.
            self.progress.writer.begin(at.id, at.ordinal);
            self.relocate(None, at.id)?;
        }
        told(self);
        self.progress.base = at.ordinal;
        if moves {
            self.reader.move_to(at.id);
            self.store_position(at.id, 0);
        }
        Ok(())
    }

    /// The stored position is gone, though it was stored: it is stored anew from memory.
    fn store_again(&mut self) {
        let position = self.progress.writer.load();
        if let Some(more) = self.progress.watch.quiet_gone.permit() {
            log::error!(
                "{self}: the stored position was deleted on the server; storing {} again from memory{}",
                position.id,
                HeldBack(more)
            );
        }
        self.progress.writer.store(position.id, position.ordinal);
        if self.plan.persist.is_sync() {
            self.owe(self.progress.writer.load());
        }
    }

    fn heed_ttl(&mut self, ttl: Option<u64>) {
        let told = std::mem::replace(&mut self.progress.watch.expires, ttl.is_some());
        if let Some(ms) = ttl.filter(|_| !told) {
            let left = Duration::from_millis(ms);
            log::warn!(
                "{self}: the stream {} has a time to live: in {left:?} the server deletes it, read or not \
                 (PERSIST it, and find out who sets that)",
                String::from_utf8_lossy(self.reader.key())
            );
        }
    }

    fn go_blind(&mut self, e: &Error) {
        let told = std::mem::replace(&mut self.progress.watch.blind, true);
        // What else is wrong with the stream is the read's to tell.
        let by_design = matches!(
            e.server_class(),
            None | Some(ServerClass::NoPermission | ServerClass::UnknownCommand)
        );
        if by_design && !told {
            log::warn!(
                "{self}: messages that are trimmed before they are read go unnoticed, since the server \
                 does not tell enough of its streams: {e}"
            );
        }
    }
}

fn text(answer: &[u8]) -> Option<&[u8]> {
    match Cursor::new(answer, 0).head() {
        Ok(Head::Text(text)) => Some(text.of(answer)),
        _ => None,
    }
}

/// A whole number that is not negative.
fn number(answer: &[u8]) -> Option<u64> {
    match Cursor::new(answer, 0).head() {
        Ok(Head::Scalar(n)) => std::str::from_utf8(n.of(answer)).ok()?.parse().ok(),
        _ => None,
    }
}
