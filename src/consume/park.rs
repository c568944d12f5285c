//! Parking: retries of a message in its place, and what becomes of one that fails for good.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    Message, Persist, Result, StreamId,
    backoff::exponential,
    batch::{Body, Record},
    clock,
    error::{Error, ErrorKind},
    monitor::count,
    position::Snapshot,
    quiet::HeldBack,
    wire::{DeadLetterReason, FIRST_ID, Letter, MOST_FIELDS},
};

use super::{
    fenced::Fate,
    lane::{Flow, Lane},
    payloads::letter_fields,
    positions::Positions,
    progress::Progress,
    store::Parked,
};

/// A user's pause before an attempt, which is counted from 1.
pub(crate) type Backoff = Arc<dyn Fn(u32) -> Duration + Send + Sync>;

/// How a consumer parks messages.
pub(crate) struct Parking {
    /// How often one that failed is handed over again.
    pub(crate) attempts: u32,
    pub(crate) base: Duration,
    pub(crate) most: Duration,
    /// In percent.
    pub(crate) jitter: u32,
    /// Instead of the above.
    pub(crate) backoff: Option<Backoff>,
    /// How many dead letters are kept, and for how long; zero: for ever.
    pub(crate) keep: (u64, Duration),
}

impl Parking {
    fn pause(&self, nth: u32) -> Duration {
        exponential(nth, self.base, self.most, self.jitter)
    }
}

/// What is known of a message's failures when it is parked.
pub(crate) struct Failures<'a> {
    /// Handed over again because the policy said so.
    pub(crate) attempts: u32,
    /// Handed over in all.
    pub(crate) deliveries: u32,
    pub(crate) since: Instant,
    pub(crate) until: Instant,
    pub(crate) error: &'a str,
    /// Why it is given up, where it is a proper message.
    pub(crate) reason: DeadLetterReason,
}

impl Failures<'_> {
    /// Why this message, of those that failed, is given up.
    pub(crate) fn reason_for(&self, record: &Record) -> DeadLetterReason {
        match record.malformed {
            Some(_) => DeadLetterReason::Malformed,
            None if record.kept == Body::Missing => DeadLetterReason::PayloadMissing,
            None => self.reason,
        }
    }
}

impl<P: Progress> Lane<P> {
    /// How long to wait before the `nth` attempt at a message, counted from 1.
    pub(super) fn pause_before(&self, nth: u32) -> Duration {
        let parking = &self.plan.parking;
        let Some(backoff) = &parking.backoff else {
            return parking.pause(nth);
        };
        catch_unwind(AssertUnwindSafe(|| backoff(nth))).unwrap_or_else(|_| {
            log::error!("{self}: the backoff function panicked; the built-in pause is made");
            parking.pause(nth)
        })
    }

    /// A message is a dead letter: counts it, and says so. One line a window; the others at debug level.
    pub(crate) fn parked(
        &mut self,
        record: &Record,
        reason: DeadLetterReason,
        failures: &Failures<'_>,
        letter: Option<StreamId>,
    ) {
        let Some(letter) = letter else {
            return; // somebody else had it
        };
        count(&self.monitor.parked, 1);
        let held_back = self.quiet_parked.permit();
        let level = match held_back {
            Some(_) => log::Level::Error,
            None => log::Level::Debug,
        };
        if !log::log_enabled!(level) {
            return;
        }
        let of_type = record.message_type.of(self.reader.bytes()).escape_ascii();
        let (topic, consumer) = (&self.context.topic, &self.context.consumer);
        log::log!(
            level,
            "{self}: message {} (type {of_type}) is DEAD LETTER {letter} (reason {reason}, deliveries \
             {}): {}; look at it with admin().dead_letters({topic:?}, {consumer:?}), then replay or \
             delete it there{}",
            record.id,
            failures.deliveries,
            failures.error,
            HeldBack(held_back.unwrap_or(0)),
        );
    }
}

impl Lane<Positions> {
    /// Makes a message of the last read a dead letter and moves the position past it, however often that
    /// takes to be stored.
    pub(super) fn park(&mut self, index: usize, failures: &Failures<'_>) -> Flow {
        let record = self.reader.records()[index];
        let reason = failures.reason_for(&record);
        loop {
            match self.heed_signals() {
                Flow::On => {}
                away => return away,
            }
            match self.try_park(&record, reason, failures) {
                Ok(letter) => {
                    self.reads_again();
                    self.parked(&record, reason, failures, letter);
                    return Flow::On;
                }
                Err(e) => self.wait_out(&e),
            }
        }
    }

    /// One attempt. Returns the id of the letter; `None` when somebody else has moved the position past the
    /// message.
    fn try_park(
        &mut self,
        record: &Record,
        reason: DeadLetterReason,
        failures: &Failures<'_>,
    ) -> Result<Option<StreamId>> {
        if self.reader.is_outstanding() {
            // What was asked for ahead would be answered first, into the bytes of these messages.
            self.reader.disconnect();
        }
        self.connect()?;
        let keeps_positions = self.plan.persist != Persist::None;
        let position = Snapshot {
            id: record.id,
            ordinal: self.progress.base.map(|n| n + u64::from(record.nth)),
            version: 0,
        };
        // So that the connection may be borrowed beside them.
        let (fields, payload, first) = {
            let message = Message::new(self.reader.bytes(), record, &self.context);
            let (fields, payload) = letter_fields(&message, record);
            let header = message.headers().get(FIRST_ID).ok().flatten();
            (fields, payload, header.and_then(StreamId::parse))
        };
        let fields: Vec<_> = fields.iter().map(|(n, v)| (&n[..], &v[..])).collect();
        let parked = Parked {
            letter: Letter {
                topic: &self.context.topic,
                partition: self.context.partition,
                first: first.unwrap_or(record.id),
                last: record.id,
                attempts: failures.attempts,
                deliveries: self.progress.deliveries.of(record.id) + failures.deliveries,
                error: failures.error,
                consumer: &self.context.consumer,
                reason,
                omitted: (record.pairs as usize).saturating_sub(MOST_FIELDS),
                payload: payload.as_deref(),
            },
            fields: &fields,
            position: keeps_positions.then_some(position),
            ago: [failures.since, failures.until].map(|t| clock::now().duration_since(t)),
            keep: self.plan.parking.keep,
        };
        let patience = self.plan.read.patience();
        let Some(connection) = self.reader.connection() else {
            return Err(Error::new(ErrorKind::Io, "park", "not connected"));
        };
        self.progress.resets.stores(record.id);
        let done = self
            .progress
            .store
            .park(connection, &mut self.inbox, &parked, patience);
        let (fate, letter) = done.map_err(|e| {
            e.during("store a dead letter")
                .on_key(self.progress.store.letters_key())
                .at(self.plan.target.endpoint())
        })?;
        match fate {
            Fate::Stored | Fate::Behind => {
                self.heed_fate(fate);
                self.store_position(record.id, record.nth);
                self.saved(); // with the letter
                Ok(letter)
            }
            fate => Err(self.unstored(fate)),
        }
    }
}
