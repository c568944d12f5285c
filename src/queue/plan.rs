//! What all lanes of one consumer in its group have in common.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;

use redis::Cmd;

use crate::{
    AckDelete, Result, StreamId,
    consume::{Member, RETRIES},
    net::{
        Connection, Interrupt, resp,
        script::{Form, Script},
    },
    ownership::Lease,
    trims::{AllTrims, PartitionTrims},
    wire::Keys,
};

use super::{
    birth::{Birth, Mark},
    hand::Hand,
    low_water::groups,
};

/// What a lane reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    Partition(u32),
    /// The retry stream, with messages of all partitions.
    Retries,
}

impl Source {
    /// Of the lane of this number.
    pub(crate) fn of(lane: u32) -> Self {
        match lane {
            RETRIES => Self::Retries,
            partition => Self::Partition(partition),
        }
    }
}

/// What all lanes of one consumer in its group have in common.
#[derive(Debug)]
pub(crate) struct GroupPlan {
    /// The group is called as the consumer is.
    pub(crate) member: Member,
    /// What writes to a partition are made under; `None` where every member reads every partition.
    pub(crate) lease: Option<Arc<Lease>>,
    /// Where groups begin.
    pub(crate) birth: Birth,
    pub(crate) ack_delete: AckDelete,
    /// How long a finished message waits for its acknowledgement at most, while others are handled.
    pub(crate) ack_interval: Duration,
    pub(crate) keys: GroupKeys,
    pub(crate) lanes: Lanes,
    /// How far the group is on each lane's stream, as was last seen.
    pub(crate) marks: Mutex<BTreeMap<u32, Mark>>,
    pub(crate) topic: Arc<str>,
    /// How the keys of everything are called.
    pub(crate) names: Keys,
    /// How long one question may take.
    pub(crate) timeout: Duration,
    /// What was deleted here.
    pub(crate) trims: Arc<AllTrims>,
}

/// The keys of a consumer beside the streams of its topic.
#[derive(Debug)]
pub(crate) struct GroupKeys {
    pub(super) ownership: String,
    pub(super) expiries: String,
    pub(super) meta: String,
    pub(super) letters: String,
    pub(crate) retries: String,
    pub(super) bucket: String,
    pub(super) items: String,
}

impl GroupKeys {
    pub(crate) fn new(keys: &Keys, topic: &str, consumer: &str) -> Self {
        Self {
            ownership: keys.ownership(topic, consumer),
            expiries: keys.expiries(topic, consumer),
            meta: keys.positions_meta(topic, consumer),
            letters: keys.dead_letters(topic, consumer),
            retries: keys.retries(topic, consumer),
            bucket: keys.retry_bucket(topic, consumer),
            items: keys.retry_items(topic, consumer),
        }
    }
}

/// The lanes that there are, for the thread that looks after what they hold.
#[derive(Debug, Default)]
pub(crate) struct Lanes(Mutex<BTreeMap<u32, Joined>>);

/// The stream that a lane reads, and what it has in its hands.
type Joined = (Arc<[u8]>, Arc<Hand>);

impl Lanes {
    /// A lane begins, or begins anew.
    pub(super) fn join(&self, lane: u32, stream: &[u8], interrupt: &Arc<Interrupt>) -> Arc<Hand> {
        let mut all = self.0.lock();
        let hand = Arc::new(Hand::of(Arc::clone(interrupt)));
        all.insert(lane, (stream.into(), Arc::clone(&hand)));
        hand
    }

    /// A lane has ended, which had this in its hands.
    pub(super) fn leave(&self, lane: u32, hand: &Arc<Hand>) {
        let mut all = self.0.lock();
        if all.get(&lane).is_some_and(|(_, h)| Arc::ptr_eq(h, hand)) {
            all.remove(&lane);
        }
    }

    /// All that are here: what each reads, and has in its hands.
    pub(super) fn all(&self) -> Vec<(u32, Arc<[u8]>, Arc<Hand>)> {
        let all = self.0.lock();
        let each = all.iter();
        each.map(|(n, (key, hand))| (*n, Arc::clone(key), Arc::clone(hand)))
            .collect()
    }
}

impl GroupPlan {
    /// How many messages of a lane's stream are given out and not acknowledged, as was last seen.
    pub(crate) fn pending(&self, lane: u32) -> Option<u64> {
        self.marks.lock().get(&lane).map(|mark| mark.many)
    }

    /// So many are pending on a lane's stream, as somebody else has seen.
    pub(crate) fn saw_pending(&self, lane: u32, many: u64) {
        if let Some(mark) = self.marks.lock().get_mut(&lane) {
            mark.many = many;
        }
    }

    /// Whether the group was given everything up to `tail` of a stream, and this member has nothing of it in its
    /// hands. Blocks for two round trips.
    pub(crate) fn is_through(
        &self,
        connection: &mut Connection,
        stream: &[u8],
        tail: StreamId,
        timeout: Duration,
    ) -> Result<bool> {
        let mut ours = redis::cmd("XPENDING");
        ours.arg(stream)
            .arg(&*self.member.group)
            .arg("-")
            .arg("+")
            .arg(1)
            .arg(&*self.member.name);
        // In this order: what is given out between the two is seen by the other.
        let groups = groups(connection, stream, timeout)?;
        let pending: Vec<redis::Value> = connection.ask(&ours, timeout)?;
        let of_ours = groups
            .iter()
            .find(|g| *g.name == *self.member.group.as_bytes());
        let last = of_ours.map_or(StreamId::MIN, |g| g.delivered);
        Ok(pending.is_empty() && last >= tail)
    }

    pub(super) fn ack_ms(&self) -> u64 {
        self.ack_interval.as_millis() as u64
    }

    /// Begins a script of a lane: so many keys and arguments follow those that all of them have.
    pub(super) fn begin(
        &self,
        (script, form): (&Script, Form),
        out: &mut Vec<u8>,
        (source, stream): (Source, &[u8]),
        more_keys: &[&str],
        more_args: usize,
    ) {
        script.begin(out, form, 3 + more_keys.len(), 6 + more_args);
        resp::arg(out, stream);
        resp::arg(out, self.keys.ownership.as_bytes());
        resp::arg(out, self.keys.expiries.as_bytes());
        for key in more_keys {
            resp::arg(out, key.as_bytes());
        }
        resp::arg(out, self.member.group.as_bytes());
        resp::arg(out, self.member.name.as_bytes());
        let (claim, mode, p) = self.claim(source);
        resp::arg(out, claim.as_bytes());
        resp::arg(out, mode.as_bytes());
        resp::arg_number(out, u64::from(p));
        resp::arg(out, self.deletes(source).as_bytes());
    }

    /// A script of a lane, for where a few allocations do not matter.
    pub(super) fn command(
        &self,
        (script, form): (&Script, Form),
        (source, stream): (Source, &[u8]),
        more_args: &[&str],
    ) -> Cmd {
        let (name, text) = script.named(form);
        let mut cmd = redis::cmd(name);
        cmd.arg(text).arg(3).arg(stream);
        cmd.arg(&self.keys.ownership).arg(&self.keys.expiries);
        cmd.arg(&*self.member.group).arg(&*self.member.name);
        let (claim, mode, p) = self.claim(source);
        cmd.arg(claim)
            .arg(mode)
            .arg(p)
            .arg(self.deletes(source))
            .arg(more_args);
        cmd
    }

    /// The claim on a source, how claims end on this server, and the partition.
    fn claim(&self, source: Source) -> (&str, &'static str, u32) {
        match (&self.lease, source) {
            (Some(lease), Source::Partition(p)) => {
                let mode = if lease.by_field() { "f" } else { "s" };
                (lease.claimant().as_str(), mode, p)
            }
            // whoever may read it may
            _ => ("", "s", 0),
        }
    }

    /// Whether what is acknowledged is deleted from the stream.
    fn deletes(&self, source: Source) -> &'static str {
        let deletes = source == Source::Retries || self.ack_delete == AckDelete::Immediate;
        if deletes { "x" } else { "k" }
    }

    /// Where it is counted what acknowledgements delete. The retry stream is nobody's topic.
    pub(super) fn counts_deleted(&self, source: Source) -> Option<Arc<PartitionTrims>> {
        match source {
            Source::Partition(p) if self.ack_delete == AckDelete::Immediate => {
                Some(self.trims.of(&self.topic, p))
            }
            _ => None,
        }
    }
}
