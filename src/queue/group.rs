//! Progress as acknowledgements: what a lane does that is a member of a consumer group.

use std::{
    collections::BTreeMap,
    mem,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use crate::{
    LaneState, Result, StreamId,
    batch::{Aside, Record},
    clock,
    consume::{Before, Brought, Failures, Flow, Handler, Lane, Plan, Progress, RESET, Seat},
    error::{Error, ErrorKind, Outcome},
    monitor::count,
    net::{
        Connection, Inbox, STOP,
        script::{Form, by_hash_first},
    },
    publish::bucket::Due,
    quiet::{HeldBack, Quiet},
    wire::DeadLetterReason,
};

use super::{
    acks::{Debts, Late},
    birth::{self, Reborn},
    hand::Hand,
    origin::Origin,
    plan::{GroupPlan, Source},
    scripts::ACK,
    successor::Fate,
    take::take_all,
};

/// From how many deliveries on an entry is handed over alone: it may be what ends the process, and those beside
/// it are not to be taken for it.
const SUSPECT: u32 = 3;
/// How often a lane whose claim may have ended looks whether it holds again.
const LOOK: Duration = Duration::from_millis(20);
/// How many own fields a letter about a broken item has, the times and the error included.
const LETTER_PAIRS: &str = "12";
/// So many finished messages are remembered when their group was lost, the newest.
const MOST_FINISHED: usize = 100_000;

/// What a lane knows of its part in the group.
pub(crate) struct Group {
    pub(super) plan: Arc<GroupPlan>,
    pub(super) source: Source,
    /// The number of the lane.
    lane: u32,
    hand: Arc<Hand>,
    /// What is pending under our name has to be read before anything new.
    behind: bool,
    /// Where partitions are claimed: what was another's has been taken over since this one was.
    acquired: bool,
    debts: Debts,
    /// Finished here, and not acknowledged, since the group was lost: not to be handled again when it is given
    /// to us again.
    finished: Vec<StreamId>,
    next_ack_ms: u64,
    /// Whether acknowledgements were sent over this connection, so that the server knows how.
    has_acked: bool,
    /// Of each record that is in hand, where there is something to know.
    known: Vec<Known>,
    /// What was pending under our name before it was read, and how often it had been given to somebody.
    given: Vec<(StreamId, u32)>,
    /// The records before this one have their acknowledgement, or owe it.
    settled: usize,
    /// Of the retry stream, whose messages are of all partitions: the handlers of those that none is in hand of.
    handlers: BTreeMap<u32, Handler>,
    quiet_late: Quiet,
    quiet_gone: Quiet,
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

impl Group {
    /// Makes what a lane of this seat begins with, and begins anew with after a panic.
    pub(crate) fn keep(plan: &Arc<GroupPlan>, seat: &Seat) -> impl FnMut() -> Option<Self> + use<> {
        let (plan, lane) = (Arc::clone(plan), seat.partition);
        let stream: Box<[u8]> = seat.key.clone();
        move || {
            Some(Self {
                source: Source::of(lane),
                lane,
                hand: plan.lanes.join(lane, &stream),
                plan: Arc::clone(&plan),
                behind: true,
                acquired: false,
                debts: Debts::default(),
                finished: Vec::new(),
                given: Vec::new(),
                next_ack_ms: 0,
                has_acked: false,
                known: Vec::new(),
                settled: 0,
                handlers: BTreeMap::new(),
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

    /// The records from the last settled one up to `end` are finished.
    fn owe(&mut self, records: &[Record], end: usize) {
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
        self.debts.unasked();
    }

    fn read(lane: &mut Lane<Self>) -> Result<Brought> {
        match Self::try_read(lane) {
            Err(e) if birth::is_gone(&e) => {
                Self::heal(lane, &e)?;
                Ok(Brought::Nothing)
            }
            Err(e) => {
                if let Some(lease) = &lane.progress.plan.lease
                    && matches!(e.server_code(), Some("UNCLAIMED" | "CLAIMED"))
                {
                    lease.desk().look_again();
                }
                Err(e)
            }
            read => read,
        }
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
        let mut gone = (0, None);
        for (id, why) in reader.index().aside() {
            progress.debts.add(*id);
            if *why == Aside::Gone {
                gone = (gone.0 + 1, gone.1.or(Some(*id)));
            }
        }
        let given_before = reader.is_given_before();
        let (bytes, records) = reader.records_mut();
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
        Self::tell_of_gone(lane, gone);
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
        if partition != lane.context.partition {
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
        let reason = match record.malformed {
            Some(_) => DeadLetterReason::Malformed,
            None => failures.reason,
        };
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
            Ok(late) => Self::tell_of_late(lane, late),
            Err(e) => log::warn!(
                "{lane}: {owed} finished messages could not be acknowledged, and will be handled again: {e}"
            ),
        }
    }
}

impl Group {
    fn try_read(lane: &mut Lane<Self>) -> Result<Brought> {
        lane.connect()?;
        Self::acquire(lane)?;
        let due = Self::move_due(lane)?;
        if lane.progress.hand.has_more() {
            lane.progress.behind = true;
        }
        match lane.progress.hand.lost() {
            0 => {}
            lost => lane.monitor.note_gap(Some(lost), true),
        }
        if !lane.reader.is_outstanding() {
            Self::request(lane, due)?;
        }
        let Lane {
            progress, reader, ..
        } = lane;
        let was_given_before = reader.is_given_before();
        let before = usize::from(progress.debts.is_asked());
        let (mut late, debts) = (Late::default(), &mut progress.debts);
        let brought = reader.receive(before, None, |answer| {
            late = debts.settle(answer)?;
            Ok(())
        });
        Self::tell_of_late(lane, late);
        match brought {
            Err(e) if before > 0 && e.operation() == "acknowledge" => {
                let key = String::from_utf8_lossy(lane.reader.key()).into_owned();
                Err(ACK.saying_what_to_grant(e, &[&key]))
            }
            // now for what is new
            Ok(Brought::Nothing) if was_given_before => Self::try_read(lane),
            brought => brought,
        }
    }

    /// Asks for what was given to us before, if there may be any, else for what is new, with the
    /// acknowledgements that are owed in front.
    fn request(lane: &mut Lane<Self>, due: Option<Duration>) -> Result<()> {
        if !lane.progress.has_acked || lane.progress.behind {
            // What is finished is not to be among what is pending.
            Self::pay_now(lane)?;
        }
        if lane.progress.behind && !lane.reader.is_given_before() {
            lane.progress.behind = false;
            lane.reader.begin_with_given();
        }
        if lane.reader.is_given_before() {
            Self::look_at_given(lane)?;
        } else {
            lane.reader.at_most(u32::MAX);
        }
        lane.reader.wait_at_most(due.unwrap_or(Duration::MAX));
        lane.commands.clear();
        let Lane {
            progress,
            reader,
            commands,
            ..
        } = lane;
        if !progress.debts.is_empty() {
            let (plan, of) = (&progress.plan, (progress.source, reader.key()));
            progress.debts.render(plan, Form::Known, commands, of);
            progress.next_ack_ms = clock::coarse_ms() + plan.ack_ms();
        }
        let brief = lane.monitor.state() != LaneState::Running;
        lane.reader.request(&lane.commands, brief)
    }

    /// Acknowledges what is owed, on the lane's connection. Nothing may be outstanding.
    fn pay_now(lane: &mut Lane<Self>) -> Result<()> {
        if lane.progress.debts.is_empty() {
            return Ok(());
        }
        let Lane {
            progress,
            reader,
            inbox,
            commands,
            plan,
            ..
        } = lane;
        let (Some(connection), key) = reader.connection_to() else {
            return Err(Error::new(ErrorKind::Io, "acknowledge", "not connected"));
        };
        let late = progress.pay(connection, key, (commands, inbox), plan.read.slack);
        let late = late.map_err(|e| e.on_key(key).at(plan.target.endpoint()))?;
        lane.progress.has_acked = true;
        Self::tell_of_late(lane, late);
        Ok(())
    }

    fn pay(
        &mut self,
        connection: &mut Connection,
        stream: &[u8],
        (commands, inbox): (&mut Vec<u8>, &mut Inbox),
        timeout: Duration,
    ) -> Result<Late> {
        let Self {
            plan,
            source,
            debts,
            ..
        } = self;
        let paid = by_hash_first(|form| {
            commands.clear();
            debts.render(plan, form, commands, (*source, stream));
            let mut late = Ok(Late::default());
            inbox.exchange(connection, commands, 1, timeout, |_, answer| {
                late = debts.settle(answer);
            })?;
            late
        });
        debts.unasked();
        self.next_ack_ms = clock::coarse_ms() + self.plan.ack_ms();
        paid.map_err(|e| {
            let keys = [&*String::from_utf8_lossy(stream)];
            ACK.saying_what_to_grant(e.during("acknowledge"), &keys)
        })
    }

    /// In the middle of what was read. What cannot be acknowledged now is owed until it can.
    fn pay_meanwhile(lane: &mut Lane<Self>) {
        if !lane.reader.is_connected() || lane.reader.is_outstanding() {
            return;
        }
        if let Err(e) = Self::pay_now(lane) {
            log::debug!("{lane}: finished messages are not acknowledged yet: {e}");
            lane.progress.next_ack_ms = clock::coarse_ms() + lane.progress.plan.ack_ms();
            if !e.keeps_connection() {
                lane.reader.disconnect();
            }
        }
    }

    /// Of what is pending under our name: how often it was given to somebody, as far as the next read goes.
    fn look_at_given(lane: &mut Lane<Self>) -> Result<()> {
        let (key, after) = (lane.reader.key().to_vec(), lane.reader.cursor());
        let most = lane.plan.read.batch_size;
        let member = &lane.progress.plan.member;
        let mut cmd = redis::cmd("XPENDING");
        cmd.arg(&key)
            .arg(&*member.group)
            .arg(after.next().to_string())
            .arg("+");
        cmd.arg(most).arg(&*member.name);
        let slack = lane.plan.read.slack;
        let Some(connection) = lane.reader.connection() else {
            return Err(Error::new(
                ErrorKind::Io,
                "look at what is pending",
                "not connected",
            ));
        };
        let found: Vec<(String, String, u64, u32)> = connection.ask(&cmd, slack)?;
        let given = found
            .iter()
            .filter_map(|(id, _, _, times)| Some((StreamId::parse(id.as_bytes())?, *times)));
        lane.progress.given.clear();
        lane.progress.given.extend(given);
        let suspect = lane
            .progress
            .given
            .iter()
            .position(|(_, times)| *times >= SUSPECT);
        lane.reader.at_most(match suspect {
            Some(0) => 1,
            Some(innocent) => innocent as u32,
            None => u32::MAX,
        });
        Ok(())
    }

    /// Where partitions are claimed: takes over what others have of this one, once it is ours.
    fn acquire(lane: &mut Lane<Self>) -> Result<()> {
        let claimed = lane.progress.plan.lease.is_some() && lane.progress.source != Source::Retries;
        if lane.progress.acquired || !claimed {
            return Ok(());
        }
        let (key, plan) = (lane.reader.key().to_vec(), Arc::clone(&lane.progress.plan));
        let source = lane.progress.source;
        let Some(connection) = lane.reader.connection() else {
            return Err(Error::new(ErrorKind::Io, "take over", "not connected"));
        };
        let taken = take_all(connection, &plan, (source, &key), "")?;
        if taken.entries > 0 {
            log::info!(
                "{lane}: took over {} messages that others had not finished",
                taken.entries
            );
        }
        Self::tell_of_gone(lane, (taken.gone.len() as u64, taken.gone.first().copied()));
        lane.progress.behind = true;
        lane.progress.acquired = true;
        Ok(())
    }

    /// Writes what comes in the place of a record, however often that takes.
    fn succeed(
        lane: &mut Lane<Self>,
        index: usize,
        mut attempt: impl FnMut(&mut Lane<Self>) -> Result<Fate>,
        told: impl FnOnce(&mut Lane<Self>, Option<StreamId>),
    ) -> Flow {
        let Lane {
            progress, reader, ..
        } = lane;
        progress.owe(reader.records(), index);
        let mut may_be_done = false;
        loop {
            match lane.heed_signals() {
                Flow::On => {}
                away => return away,
            }
            match attempt(lane) {
                Ok(fate) => {
                    lane.reads_again();
                    lane.progress.settled = index + 1;
                    match fate {
                        Fate::Done(letter) => told(lane, letter),
                        Fate::Anothers if may_be_done => log::info!(
                            "{lane}: an answer was lost: a failed message has its successor, or is another's"
                        ),
                        Fate::Anothers => {
                            let first = Some(lane.reader.records()[index].id);
                            Self::tell_of_late(lane, Late { many: 1, first });
                        }
                    }
                    return Flow::On;
                }
                Err(e) => {
                    may_be_done |= e.outcome() != Outcome::NotApplied;
                    if birth::is_gone(&e) {
                        // Whoever is given it next deals with it.
                        lane.progress.settled = index + 1;
                        return Flow::On;
                    }
                    lane.wait_out(&e);
                }
            }
        }
    }

    /// The group is gone: makes it again, and says what that means.
    fn heal(lane: &mut Lane<Self>, e: &Error) -> Result<()> {
        if lane.reader.is_outstanding() || !e.keeps_connection() {
            lane.reader.disconnect();
        }
        lane.connect()?;
        let (plan, n, key) = (
            Arc::clone(&lane.progress.plan),
            lane.progress.lane,
            lane.reader.key().to_vec(),
        );
        let Some(connection) = lane.reader.connection() else {
            return Err(Error::new(
                ErrorKind::Io,
                "make the group again",
                "not connected",
            ));
        };
        let reborn = birth::again(connection, &plan, n, &key)?;
        let progress = &mut lane.progress;
        let owed = progress.debts.forget();
        progress.finished.extend(owed);
        let surplus = progress.finished.len().saturating_sub(MOST_FINISHED);
        progress.finished.drain(..surplus);
        progress.behind = true;
        let Some(Reborn { after, why, mark }) = reborn else {
            return Ok(()); // another was quicker, and has said so
        };
        lane.monitor.note_gap(None, true);
        let was = mark.map_or("nobody knows how far it was".into(), |mark| {
            mark.to_string()
        });
        log::error!(
            "{lane}: the consumer group {:?} of the stream {} was LOST (the server says {}), and was made again \
             after {after}, {why}; when it was last looked at {was}; what was published since may be gone with \
             the stream, and what was finished behind may be handled again",
            plan.member.group,
            key.escape_ascii(),
            e.server_code().unwrap_or("nothing"),
        );
        Ok(())
    }

    /// Acknowledgements came too late, and another has the entries, or had them.
    fn tell_of_late(lane: &mut Lane<Self>, late: Late) {
        let Late {
            many,
            first: Some(first),
        } = late
        else {
            return;
        };
        count(&lane.monitor.late, many);
        if let Some(held) = lane.progress.quiet_late.permit() {
            log::warn!(
                "{lane}: {many} messages (the first: {first}) were finished here when another member had taken \
                 them over: they are handled twice; see whether this process was suspended, or raise \
                 Claim:IdleMs{}",
                HeldBack(held)
            );
        }
    }

    /// Entries were deleted while they were pending.
    fn tell_of_gone(lane: &mut Lane<Self>, (many, first): (u64, Option<StreamId>)) {
        let Some(first) = first else {
            return;
        };
        lane.monitor.note_gap(Some(many), true);
        if let Some(held) = lane.progress.quiet_gone.permit() {
            log::error!(
                "{lane}: {many} messages (the first: {first}) were deleted from the stream after they had been \
                 given out and before they were finished: they are LOST; find out who trims or deletes there{}",
                HeldBack(held)
            );
        }
    }

    /// Of the retry stream: has what is due moved into it. Says when the next will be.
    fn move_due(lane: &mut Lane<Self>) -> Result<Option<Duration>> {
        if lane.progress.source != Source::Retries || lane.reader.is_outstanding() {
            return Ok(None);
        }
        let (plan, slack) = (Arc::clone(&lane.progress.plan), lane.plan.read.slack);
        let keys = &plan.keys;
        let most = lane.plan.parking.keep.0.to_string();
        // A letter about an item that nobody can read, as far as it is the same for all of them.
        let letter = [
            ["MAXLEN", "~"],
            [&most, "*"],
            ["!", LETTER_PAIRS],
            ["!topic", &lane.context.topic],
            ["!partition", "0"],
            ["!first", "0-0"],
            ["!last", "0-0"],
            ["!attempts", "0"],
            ["!deliveries", "0"],
            ["!consumer", &lane.context.consumer],
            ["!reason", DeadLetterReason::Malformed.as_str()],
        ];
        let letter: Vec<&[u8]> = letter.as_flattened().iter().map(|t| t.as_bytes()).collect();
        let due = Due {
            bucket: keys.bucket.as_bytes(),
            items: keys.items.as_bytes(),
            letters: Some((keys.letters.as_bytes(), &letter)),
            targets: &[&keys.retries],
        };
        let Some(connection) = lane.reader.connection() else {
            return Err(Error::new(
                ErrorKind::Io,
                "move what is due",
                "not connected",
            ));
        };
        let moved = due.publish(connection, slack)?;
        if let Some(e) = moved.refused {
            return Err(e.on_key(keys.retries.as_bytes()));
        }
        for (item, why) in &moved.put_off {
            if let Some(held) = lane.progress.quiet_gone.permit() {
                log::error!(
                    "{lane}: the item {item:?} of {} cannot be moved: {why}{}",
                    keys.bucket,
                    HeldBack(held)
                );
            }
        }
        Ok(moved.next)
    }
}

impl Lane<Group> {
    /// Has the handler of another partition, which is made when there is none yet: each is given the messages
    /// of its own.
    fn change_to(&mut self, partition: u32) {
        let other = self.progress.handlers.remove(&partition);
        let other = other.unwrap_or_else(|| (self.plan.factory)(partition));
        let before = mem::replace(&mut self.handler, other);
        let of = mem::replace(&mut self.context.partition, partition);
        self.progress.handlers.insert(of, before);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.plan.lanes.leave(self.lane, &self.hand);
    }
}
