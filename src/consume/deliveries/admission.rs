//! What a lane does so that its messages are on record before they are handed over, and not after they came back.

use std::time::{Duration, Instant};

use crate::{
    Result, clock,
    consume::{
        fenced::Fate,
        lane::{CALLED, Flow, Lane},
        positions::Positions,
        reader::Brought,
    },
    error::{Error, ErrorKind},
    net::STOP,
};

use super::{Next, Pace, Tally, Turn};

/// How long a wary lane waits for others of its process to have their messages back, once.
const TURN: Duration = Duration::from_secs(10);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(5);
/// How long a lane that was told to stop tries to say that its message came back.
const LAST_WORD: Duration = Duration::from_secs(1);

impl Lane<Positions> {
    /// Looks up what is on record where that is to be done, and says how to read. Nothing may be
    /// outstanding. Blocks for a round trip at most.
    pub(in crate::consume) fn attend_to_deliveries(&mut self) -> Result<()> {
        let deliveries = &mut self.progress.deliveries;
        if deliveries.pace == Pace::Unknown {
            let (p, slack) = (self.context.partition, self.plan.read.slack);
            let Some(connection) = self.reader.connection() else {
                return Err(not_connected());
            };
            let on_record = self.progress.store.tally(connection, p, slack)?;
            deliveries.looked_up(on_record);
            if let (Pace::Wary(_), Some(t)) = (deliveries.pace, on_record) {
                log::warn!(
                    "{self}: lanes have begun {} times with message {} and did not get past it; messages are \
                     read one by one for a while",
                    t.times,
                    t.message
                );
            }
        }
        let deliveries = &mut self.progress.deliveries;
        deliveries.before_read(clock::now());
        let one_by_one = matches!(deliveries.pace, Pace::Wary(_));
        self.reader.at_most(if one_by_one { 1 } else { u32::MAX });
        Ok(())
    }

    /// Puts the first message of the lane on record as soon as it is read, so that the next read may travel
    /// while it is handled. What does not work is for [`admit_message`](Self::admit_message) to do. Where
    /// nothing more was there to be read the lane is calm.
    pub(in crate::consume) fn count_early(&mut self, brought: &Result<Brought>) {
        match brought {
            Ok(Brought::Entries { .. }) => {}
            Ok(Brought::Nothing) => {
                self.progress.deliveries.caught_up();
                self.reader.at_most(u32::MAX);
                return;
            }
            Err(_) => return,
        }
        let Some(message) = self.reader.records().first().map(|r| r.id) else {
            return;
        };
        if self.progress.deliveries.pace == Pace::First
            && let Next::HandUnder(tally) = self.progress.deliveries.next(message)
            && let Ok(Fate::Stored) = self.put_on_record(tally)
        {
            self.progress.deliveries.charged = Some(tally);
        }
    }

    /// Sees to it that the message at `start` is on record, if it has to be, before it is handed over.
    #[cold]
    pub(in crate::consume) fn admit_message(&mut self, start: usize) -> Flow {
        let message = self.reader.records()[start].id;
        let since = clock::now();
        loop {
            match self.heed_signals() {
                Flow::On => {}
                away => return away,
            }
            let tally = match self.progress.deliveries.next(message) {
                Next::Hand | Next::Refuse(_) => return Flow::On,
                Next::HandUnder(tally) => tally,
            };
            if !self.has_turn(since) {
                self.context.interrupt.sleep(LOOK, CALLED);
                continue;
            }
            match self.put_on_record(tally) {
                Ok(Fate::Stored) => {
                    self.progress.deliveries.charged = Some(tally);
                    if self.trouble.is_some() {
                        self.reads_again();
                    }
                    // time has passed: the claim is looked at once more, and what is on record stays
                }
                Ok(fate) => {
                    let e = self.unstored(fate).during("count a delivery");
                    self.wait_out(&e);
                }
                Err(e) if e.keeps_connection() => {
                    // Not to be able to count is no reason not to handle.
                    log::debug!("{self}: {e}; handed over all the same");
                    self.progress.deliveries.give_up();
                    return Flow::On;
                }
                Err(e) => self.wait_out(&e),
            }
        }
    }

    /// Whether this is the wary lane of the process that may have a message in hand now. One that has
    /// waited for long goes on all the same: a handler that never comes back holds nobody else up.
    fn has_turn(&mut self, since: Instant) -> bool {
        let deliveries = &mut self.progress.deliveries;
        if !matches!(deliveries.pace, Pace::Wary(_)) || deliveries.turn.is_some() {
            return true;
        }
        deliveries.patient &= since.elapsed() < TURN;
        deliveries.turn = Turn::take(&deliveries.suspicion.turn);
        deliveries.turn.is_some() || !deliveries.patient
    }

    /// The handler has come back, and the lane waits or ends. If not even the first message was finished
    /// that is no death: it is taken off the record. What cannot be written now is held against the message
    /// as if it were one. Blocks for a round trip, or, where the lane was told to stop, for a second at most.
    pub(in crate::consume) fn take_off_record(&mut self) {
        let position = self.progress.writer.load().id;
        let Some(before) = self.progress.deliveries.came_back(position) else {
            return;
        };
        let written = if self.context.interrupt.bits() & STOP == 0 {
            self.put_on_record(before)
        } else {
            // the lane's own connection is cut by then
            let p = self.context.partition;
            self.reader.dial_anew(LAST_WORD).and_then(|mut c| {
                let store = &self.progress.store;
                store.put_tally(&mut c, p, before, LAST_WORD)
            })
        };
        match written {
            Ok(Fate::Stored) => {}
            Ok(fate) => log::debug!("{self}: a delivery stays counted: {}", fate.why()),
            Err(e) => log::debug!("{self}: a delivery stays counted: {e}"),
        }
    }

    /// After an error that does not keep the connection there is none.
    fn put_on_record(&mut self, tally: Tally) -> Result<Fate> {
        if self.reader.is_outstanding() {
            // What was asked for ahead would be answered first, into the bytes of these messages.
            self.reader.disconnect();
        }
        self.connect()?;
        let (p, slack) = (self.context.partition, self.plan.read.slack);
        let Some(connection) = self.reader.connection() else {
            return Err(not_connected());
        };
        let put = self.progress.store.put_tally(connection, p, tally, slack);
        if put.as_ref().is_err_and(|e| !e.keeps_connection()) {
            self.reader.disconnect();
        }
        put.map_err(|e| {
            e.during("count a delivery")
                .on_key(self.progress.store.meta_key())
                .at(self.plan.target.endpoint())
        })
    }
}

fn not_connected() -> Error {
    Error::new(ErrorKind::Io, "count a delivery", "not connected")
}
