//! Progress as acknowledgements: what a lane does that is a member of a consumer group.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use crate::{
    LaneState, Result, StreamId,
    batch::{Aside, Record},
    clock,
    consume::{
        Before, Brought, CALLED, Failures, Flow, Handler, Lane, PAUSE, Plan, Progress, RESET,
        RETRIES, Seat,
    },
    error::{Error, Outcome},
    handler::panic_text,
    monitor::count,
    net::{Connection, STOP},
    quiet::{HeldBack, Quiet},
    trims::PartitionTrims,
    wire::MOST_FIELDS,
};

use super::{
    acks::Debts,
    birth,
    hand::Hand,
    origin::Origin,
    plan::{GroupPlan, Source},
    take::shown,
};

/// From how many deliveries on an entry is handed over alone: it may be what ends the process, and those beside
/// it are not to be taken for it.
pub(super) const SUSPECT: u32 = 3;
/// How often a lane whose claim may have ended looks whether it holds again.
const LOOK: Duration = Duration::from_millis(20);
/// How soon a paused lane tries again to acknowledge what is finished.
const PAY_AGAIN: Duration = Duration::from_millis(500);

/// What a lane knows of its part in the group.
pub(crate) struct Group {
    pub(super) plan: Arc<GroupPlan>,
    pub(super) source: Source,
    /// The number of the lane.
    pub(super) lane: u32,
    pub(super) hand: Arc<Hand>,
    /// What is pending under our name has to be read before anything new.
    pub(super) behind: bool,
    /// Where partitions are claimed: what was another's has been taken over since this one was.
    pub(super) acquired: bool,
    pub(super) debts: Debts,
    /// Where it is counted what acknowledgements delete from a partition, if they do.
    pub(super) deleted: Option<Arc<PartitionTrims>>,
    /// Finished here, and not acknowledged, since the group was lost: not to be handled again when it is given
    /// to us again.
    pub(super) finished: Vec<StreamId>,
    /// Until when, on the coarse clock.
    pub(super) finished_until_ms: u64,
    /// Where that is left for the lane that begins anew after a panic.
    left: Rc<RefCell<Vec<StreamId>>>,
    pub(super) next_ack_ms: u64,
    /// Whether acknowledgements were sent over this connection, so that the server knows how.
    pub(super) has_acked: bool,
    /// Of each record that is in hand, where there is something to know.
    known: Vec<Known>,
    /// What was pending under our name before it was read, and how often it had been given to somebody.
    pub(super) given: Vec<(StreamId, u32)>,
    /// The records before this one have their acknowledgement, or owe it.
    pub(super) settled: usize,
    handlers: Handlers,
    pub(super) quiet_late: Quiet,
    pub(super) quiet_gone: Quiet,
}

/// The handlers of a lane that reads messages of all partitions, as that of the retry stream does.
struct Handlers {
    /// By partition; that in hand is not among them.
    idle: BTreeMap<u32, Handler>,
    /// Whether there is one in hand: none is made where the factory panics.
    has_one: bool,
}

/// What is known of an entry beside what is in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// The id under which it is pending.
    pub(super) entry: StreamId,
    pub(super) origin: Origin,
    /// How often it was given to somebody before.
    pub(super) before: u32,
}

impl Known {
    /// How often it was handed over in all.
    pub(super) fn deliveries(&self, failures: &Failures<'_>) -> u32 {
        let earlier = self.origin.deliveries.saturating_add(self.before);
        earlier.saturating_add(failures.deliveries)
    }

    /// When it failed first, in milliseconds of our clock.
    pub(super) fn failed_since_ms(&self, failures: &Failures<'_>) -> u64 {
        match self.origin.since_ms {
            0 => {
                let ago = clock::now().duration_since(failures.since).as_millis() as u64;
                clock::unix_ms(clock::wall()).saturating_sub(ago)
            }
            ms => ms,
        }
    }
}

impl Group {
    /// Makes what a lane of this seat begins with, and begins anew with after a panic.
    pub(crate) fn keep(plan: &Arc<GroupPlan>, seat: &Seat) -> impl FnMut() -> Option<Self> + use<> {
        let (plan, lane) = (Arc::clone(plan), seat.partition);
        let stream: Box<[u8]> = seat.key.clone();
        let interrupt = Arc::clone(&seat.interrupt);
        // What is finished here is not handled here again, whatever ends the lane.
        let left = Rc::<RefCell<Vec<StreamId>>>::default();
        move || {
            Some(Self {
                finished: left.take(),
                finished_until_ms: clock::coarse_ms() + birth::REMEMBERED_MS,
                left: Rc::clone(&left),
                source: Source::of(lane),
                lane,
                hand: plan.lanes.join(lane, &stream, &interrupt),
                plan: Arc::clone(&plan),
                behind: true,
                acquired: false,
                debts: Debts::default(),
                deleted: plan.counts_deleted(Source::of(lane)),
                given: Vec::new(),
                next_ack_ms: 0,
                has_acked: false,
                known: Vec::new(),
                settled: 0,
                handlers: Handlers {
                    idle: BTreeMap::new(),
                    has_one: lane != RETRIES,
                },
                quiet_late: Quiet::default(),
                quiet_gone: Quiet::default(),
            })
        }
    }

    /// What is known of the record at `index`.
    pub(super) fn known(&self, index: usize, record: &Record) -> Known {
        let known = self.known.get(index).copied();
        known.unwrap_or_else(|| self.unknown(record))
    }

    fn unknown(&self, record: &Record) -> Known {
        Known {
            entry: record.id,
            origin: Origin {
                partition: self.lane,
                first: record.id,
                since_ms: 0,
                attempts: 0,
                deliveries: 0,
            },
            before: 0,
        }
    }

    /// A claim that is gone, or is another's, concerns whoever keeps the claims.
    pub(super) fn heed_refusal(&self, e: &Error) {
        if let Some(lease) = &self.plan.lease
            && matches!(e.server_code(), Some("UNCLAIMED" | "CLAIMED"))
        {
            lease.desk().look_again();
        }
    }

    /// The records from the last settled one up to `end` are finished.
    pub(super) fn owe(&mut self, records: &[Record], end: usize) {
        for (i, record) in records.iter().enumerate().take(end).skip(self.settled) {
            let entry = self.known.get(i).map_or(record.id, |known| known.entry);
            self.debts.add(entry);
        }
        self.settled = self.settled.max(end);
    }
}

impl Progress for Group {
    fn start(&self) -> StreamId {
        StreamId::MIN
    }

    fn reconnected(&mut self) {
        // What was on its way is pending under our name, and nobody has seen it.
        self.behind = true;
        self.has_acked = false;
        self.debts.unasked(Outcome::Unknown);
    }

    fn read(lane: &mut Lane<Self>) -> Result<Brought> {
        match Self::try_read(lane) {
            Err(e) if birth::is_gone(&e) => {
                Self::heal(lane, &e)?;
                Ok(Brought::Nothing)
            }
            Err(e) => {
                lane.progress.heed_refusal(&e);
                Err(e)
            }
            read => read,
        }
    }

    /// The group that was made again begins with what is pending, and nothing of it has been read.
    fn knows_the_end(&self) -> bool {
        !self.behind
    }

    /// What is read ahead would grow old in the hands of nobody.
    fn may_read_ahead(&self) -> bool {
        false
    }

    fn arrived(lane: &mut Lane<Self>) {
        let Lane {
            progress, reader, ..
        } = lane;
        progress.settled = 0;
        let mut gone = Vec::new(); // mostly nothing
        for (id, why) in reader.index().aside() {
            progress.debts.add(*id);
            if *why == Aside::Gone {
                gone.push(*id);
            }
        }
        let given_before = reader.is_given_before();
        let (bytes, records) = reader.records_mut();
        if !progress.finished.is_empty() && clock::coarse_ms() > progress.finished_until_ms {
            progress.finished = Vec::new();
        }
        if !progress.finished.is_empty() {
            records.retain(
                |r| match progress.finished.iter().position(|id| *id == r.id) {
                    None => true,
                    Some(at) => {
                        progress.finished.swap_remove(at);
                        progress.debts.add(r.id);
                        false
                    }
                },
            );
        }
        progress.known.clear();
        if given_before || progress.source == Source::Retries {
            let given = mem::take(&mut progress.given);
            for record in records.iter_mut() {
                let mut known = progress.unknown(record);
                let before = given.binary_search_by_key(&record.id, |(id, _)| *id);
                known.before = before.map_or(0, |at| given[at].1);
                if progress.source == Source::Retries {
                    known.origin = Origin::take_off(bytes, record).unwrap_or(Origin {
                        partition: 0,
                        ..known.origin
                    });
                    record.id = known.origin.first;
                }
                progress.known.push(known);
            }
        }
        progress.hand.take(
            (0..)
                .zip(&*records)
                .map(|(i, r)| progress.known(i, r).entry),
        );
        Self::tell_of_gone(lane, &gone);
    }

    fn passed(lane: &mut Lane<Self>) {
        lane.progress.hand.open();
        lane.progress.known.clear();
    }

    fn together(&self, _: &Plan, start: usize, records: usize) -> usize {
        let Some(first) = self.known.get(start) else {
            return records;
        };
        if first.before >= SUSPECT {
            return 1;
        }
        let like = |k: &&Known| {
            k.origin.partition == first.origin.partition
                && k.origin.attempts == first.origin.attempts
                && k.before < SUSPECT
        };
        self.known[start..]
            .iter()
            .take_while(like)
            .count()
            .clamp(1, records)
    }

    fn about(lane: &mut Lane<Self>, start: usize, made: u32) {
        let Some(known) = lane.progress.known.get(start) else {
            lane.context.attempt.store(made, Relaxed);
            return;
        };
        let partition = known.origin.partition;
        let attempt = known
            .origin
            .deliveries
            .saturating_add(known.before)
            .saturating_add(made);
        lane.context.attempt.store(attempt, Relaxed);
        if partition != lane.context.partition || !lane.progress.handlers.has_one {
            lane.change_to(partition);
        }
    }

    fn before(&self, start: usize) -> Before {
        self.known
            .get(start)
            .map_or(Before::default(), |known| Before {
                deliveries: known.before,
                attempts: known.origin.attempts,
            })
    }

    /// Nothing is read meanwhile that an acknowledgement could travel with, and nobody keeps alive what is
    /// finished: another would be given it.
    fn holds_still(lane: &mut Lane<Self>) {
        let is_held = |lane: &Lane<Self>| {
            let bits = lane.context.interrupt.bits();
            bits & PAUSE != 0 && bits & CALLED == 0 && lane.plan.fence.holds_for_certain()
        };
        while !lane.progress.debts.is_empty() && is_held(lane) {
            if lane.connect().is_ok() {
                Self::pay_meanwhile(lane);
            }
            if !lane.progress.debts.is_empty() {
                lane.context.interrupt.sleep(PAY_AGAIN, CALLED);
            }
        }
    }

    /// Not worth a round trip: what is finished is acknowledged when the call is over.
    fn done(&mut self, _: &Record) {}

    fn finished(lane: &mut Lane<Self>, end: usize, total: usize) -> Flow {
        let Lane {
            progress, reader, ..
        } = lane;
        progress.owe(reader.records(), end);
        if end < total && clock::coarse_ms() >= progress.next_ack_ms {
            Self::pay_meanwhile(lane);
        }
        Flow::On
    }

    fn finished_at_the_end(lane: &mut Lane<Self>, end: usize) {
        lane.progress.owe(lane.reader.records(), end);
    }

    fn pass_over(lane: &mut Lane<Self>) {
        let end = lane.reader.records().len();
        lane.progress.owe(lane.reader.records(), end);
    }

    fn park(lane: &mut Lane<Self>, index: usize, failures: &Failures<'_>) -> Flow {
        let record = lane.reader.records()[index];
        let reason = failures.reason_for(&record);
        let told = |lane: &mut Lane<Self>, letter| lane.parked(&record, reason, failures, letter);
        Self::succeed(
            lane,
            index,
            |lane| lane.try_park(index, reason, failures),
            told,
        )
    }

    fn retry_later(
        lane: &mut Lane<Self>,
        index: usize,
        pause: Duration,
        failures: &Failures<'_>,
    ) -> Flow {
        if lane.reader.records()[index].pairs as usize > MOST_FIELDS {
            // More than a script takes: what is left out has to be said, as a dead letter does.
            return Self::park(lane, index, failures);
        }
        let told = |lane: &mut Lane<Self>, _| count(&lane.monitor.retried, 1);
        Self::succeed(
            lane,
            index,
            |lane| lane.try_retry(index, pause, failures),
            told,
        )
    }

    /// Positions are moved by resets, and a group has none.
    fn take_reset(lane: &mut Lane<Self>) {
        lane.context.interrupt.clear(RESET);
    }

    fn wait_for_claim(lane: &mut Lane<Self>) {
        let why = "the claim may have ended, and was not renewed yet";
        lane.monitor.enter(LaneState::Lapsed, why);
        lane.reader.seek(StreamId::MIN);
        lane.progress.hand.open();
        lane.progress.known.clear();
        lane.progress.acquired = false;
        let fence = &lane.plan.fence;
        while !fence.holds_for_certain() && !lane.context.interrupt.sleep(LOOK, STOP) {}
    }

    fn owes(&self) -> bool {
        false
    }

    fn waits_for_a_person(&self) -> bool {
        false
    }

    fn forget(&mut self) {
        drop(self.debts.forget());
    }

    /// What is finished is acknowledged, so that nobody handles it again; what is not stays pending for whoever
    /// comes next.
    fn ended(lane: &mut Lane<Self>) {
        let owed = lane.progress.debts.len();
        if owed == 0 {
            return;
        }
        // The lane's own connection was cut, so that the lane would hear.
        let timeout = lane.plan.read.connect_timeout;
        let dialled = Connection::dial(&lane.plan.target, lane.reader.client_name(), None, timeout);
        let paid = dialled.and_then(|mut connection| {
            let Lane {
                progress,
                reader,
                inbox,
                commands,
                ..
            } = lane;
            progress.pay(&mut connection, reader.key(), (commands, inbox), timeout)
        });
        match paid {
            Ok(settled) => Self::heed_settled(lane, settled),
            Err(e) => log::warn!(
                "{lane}: {owed} finished messages could not be acknowledged, and will be handled again: {e}"
            ),
        }
    }
}

impl Group {
    /// Entries were deleted while they were pending.
    pub(super) fn tell_of_gone(lane: &mut Lane<Self>, ids: &[StreamId]) {
        if ids.is_empty() {
            return;
        }
        let many = ids.len();
        lane.monitor.note_gap(Some(many as u64), true);
        if let Some(held) = lane.progress.quiet_gone.permit() {
            log::error!(
                "{lane}: {many} messages were deleted from the stream after they had been given out and before \
                 they were finished: they are LOST: {}; find out who trims or deletes there{}",
                shown(ids),
                HeldBack(held)
            );
        }
    }
}

impl Lane<Group> {
    /// Has the handler of another partition, which is made when there is none yet: each is given the messages
    /// of its own.
    fn change_to(&mut self, partition: u32) {
        let there = self.progress.handlers.idle.remove(&partition).map(Ok);
        let factory = &self.plan.factory;
        let made = there.unwrap_or_else(|| catch_unwind(AssertUnwindSafe(|| factory(partition))));
        let has_one = made.is_ok();
        let other = made.unwrap_or_else(|panic| {
            let why = panic_text(&*panic);
            Handler::missing(format!(
                "the handler factory panicked for partition {partition}: {why}"
            ))
        });
        let before = mem::replace(&mut self.handler, other);
        let of = mem::replace(&mut self.context.partition, partition);
        if mem::replace(&mut self.progress.handlers.has_one, has_one) {
            self.progress.handlers.idle.insert(of, before);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let mut left = self.left.borrow_mut();
        left.append(&mut self.debts.forget());
        left.append(&mut self.finished);
        self.plan.lanes.leave(self.lane, &self.hand);
    }
}
