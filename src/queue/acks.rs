//! What is finished and not acknowledged yet.

use std::time::Duration;

use crate::{
    Result, StreamId, TrimReason, clock,
    consume::Lane,
    error::{Error, ErrorKind, Outcome},
    monitor::count,
    net::{
        Connection, Inbox, resp,
        script::{Form, by_hash_first},
    },
    quiet::HeldBack,
    wire::ID_MAX,
};

use super::{
    group::Group,
    plan::{GroupPlan, Source},
    scripts::ACK,
};

/// So many are acknowledged by one command at most: more would hold the server up.
const AT_ONCE: usize = 5000;

/// What a lane owes the server: acknowledgements of what is finished here. They are owed until the server has
/// answered, for what is finished is not to be handled here again.
#[derive(Debug, Default)]
pub(super) struct Debts {
    ids: Vec<StreamId>,
    /// How many of them the question that is on its way is about.
    asked: usize,
    /// An answer was lost: some may have been acknowledged already.
    doubtful: bool,
}

/// What became of acknowledgements.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Settled {
    /// How many entries are acknowledged.
    pub(super) acked: u64,
    /// How many were not ours any more.
    pub(super) late: u64,
    /// The first of those.
    pub(super) first_late: Option<StreamId>,
}

impl Debts {
    pub(super) fn add(&mut self, id: StreamId) {
        self.ids.push(id);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether one command is enough for all of them.
    pub(super) fn are_few(&self) -> bool {
        self.ids.len() <= AT_ONCE
    }

    /// Whether an answer about them is on its way.
    pub(super) fn is_asked(&self) -> bool {
        self.asked > 0
    }

    /// No answer comes any more; they may have been acknowledged, unless that is known not to be so.
    pub(super) fn unasked(&mut self, outcome: Outcome) {
        self.doubtful |= self.asked > 0 && outcome != Outcome::NotApplied;
        self.asked = 0;
    }

    /// Renders the acknowledgement of all of them, or of the first where they are [not few](Self::are_few).
    pub(super) fn render(
        &mut self,
        plan: &GroupPlan,
        form: Form,
        out: &mut Vec<u8>,
        of: (Source, &[u8]),
    ) {
        self.ids.sort_unstable(); // as they mostly are
        self.asked = self.ids.len().min(AT_ONCE);
        plan.begin((&ACK, form), out, of, &[], self.asked);
        for id in &self.ids[..self.asked] {
            resp::arg(out, id.encode(&mut [0; ID_MAX]));
        }
    }

    /// Takes in what the server has answered.
    pub(super) fn settle(&mut self, answer: &[u8]) -> Result<Settled> {
        if answer.len() != self.asked || answer.iter().any(|b| !b"dxy".contains(b)) {
            let what = "the answer is none of the script's";
            return Err(Error::new(ErrorKind::Protocol, "acknowledge", what));
        }
        let known = answer.iter().position(|letter| *letter == b'x');
        let late = answer.iter().filter(|letter| **letter != b'd').count() as u64;
        let mut found = Settled {
            acked: self.asked as u64 - late,
            late,
            first_late: known.map(|at| self.ids[at]),
        };
        if std::mem::take(&mut self.doubtful) {
            // those that are not ours may be what we have acknowledged ourselves
            found = Settled {
                acked: self.asked as u64,
                ..Settled::default()
            };
        }
        self.ids.drain(..self.asked);
        self.asked = 0;
        Ok(found)
    }

    /// They are not owed any more.
    pub(super) fn forget(&mut self) -> Vec<StreamId> {
        self.asked = 0;
        std::mem::take(&mut self.ids)
    }
}

impl Group {
    /// Acknowledges what is owed, on the lane's connection. Nothing may be outstanding.
    pub(super) fn pay_now(lane: &mut Lane<Self>) -> Result<()> {
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
        let paid = progress.pay(connection, key, (commands, inbox), plan.read.slack);
        let paid = paid.map_err(|e| e.on_key(key).at(plan.target.endpoint()))?;
        lane.progress.has_acked = true;
        Self::heed_settled(lane, paid);
        Ok(())
    }

    pub(super) fn pay(
        &mut self,
        connection: &mut Connection,
        stream: &[u8],
        (commands, inbox): (&mut Vec<u8>, &mut Inbox),
        timeout: Duration,
    ) -> Result<Settled> {
        let mut all = Settled::default();
        while !self.debts.is_empty() {
            let some = self.pay_some(connection, stream, (commands, inbox), timeout)?;
            all.acked += some.acked;
            all.late += some.late;
            all.first_late = all.first_late.or(some.first_late);
        }
        Ok(all)
    }

    fn pay_some(
        &mut self,
        connection: &mut Connection,
        stream: &[u8],
        (commands, inbox): (&mut Vec<u8>, &mut Inbox),
        timeout: Duration,
    ) -> Result<Settled> {
        let Self {
            plan,
            source,
            debts,
            ..
        } = self;
        let paid = by_hash_first(|form| {
            commands.clear();
            debts.render(plan, form, commands, (*source, stream));
            let mut settled = Ok(Settled::default());
            inbox.exchange(connection, commands, 1, timeout, |_, answer| {
                settled = debts.settle(answer);
            })?;
            settled
        });
        debts.unasked(
            paid.as_ref()
                .map_or_else(Error::outcome, |_| Outcome::Applied),
        );
        self.next_ack_ms = clock::coarse_ms() + self.plan.ack_ms();
        paid.map_err(|e| {
            let keys = [&*String::from_utf8_lossy(stream)];
            ACK.saying_what_to_grant(e.during("acknowledge"), &keys)
        })
    }

    /// In the middle of what was read. What cannot be acknowledged now is owed until it can.
    pub(super) fn pay_meanwhile(lane: &mut Lane<Self>) {
        if !lane.reader.is_connected() || lane.reader.is_outstanding() {
            return;
        }
        if let Err(e) = Self::pay_now(lane) {
            log::debug!("{lane}: finished messages are not acknowledged yet: {e}");
            lane.progress.heed_refusal(&e);
            lane.progress.next_ack_ms = clock::coarse_ms() + lane.progress.plan.ack_ms();
            if !e.keeps_connection() {
                lane.reader.disconnect();
            }
        }
    }

    /// So many were acknowledged, by scripts that delete what they acknowledge where that is wanted.
    pub(super) fn count_deleted(&self, acked: u64) {
        if let Some(deleted) = &self.deleted
            && acked > 0
        {
            deleted.add(TrimReason::Ack, acked);
        }
    }

    /// Counts acknowledgements. Where some came too late another has the entries, or had them, which is told.
    pub(super) fn heed_settled(lane: &mut Lane<Self>, settled: Settled) {
        count(&lane.monitor.acked, settled.acked);
        lane.progress.count_deleted(settled.acked);
        let (many, first) = (settled.late, settled.first_late);
        if many == 0 {
            return;
        }
        let first = first.map_or("nobody can tell".into(), |id| id.to_string());
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
}
