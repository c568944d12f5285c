//! A topic that is known to exist, and the commands that append to it.

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    Error, Result, StreamId, Trim,
    error::{ErrorKind, Outcome},
    net::resp::{self, Head},
    wire::{Entry, Keys, partition_of, partition_of_hash},
};

use super::{Count, Outgoing, PublishPlan, StreamKeys, payload::Payloads};

/// Turns messages into commands. It never changes: it is made anew when the topic has grown.
#[derive(Debug)]
pub(super) struct Encoder {
    plan: Arc<PublishPlan>,
    streams: StreamKeys,
    /// The arguments after an XADD's key, up to the `*` that asks for an id.
    trim: Vec<u8>,
    trim_args: usize,
    /// Each partition's command from its name to that `*`.
    heads: Vec<Vec<u8>>,
    /// What each partition's dedupe markers begin with.
    markers: Vec<Box<[u8]>>,
    payloads: Payloads,
    /// How many messages were stored, by partition.
    stored: Vec<Arc<AtomicU64>>,
}

impl Encoder {
    pub(super) fn new(plan: &Arc<PublishPlan>, streams: StreamKeys) -> Self {
        let mut trim = Vec::new();
        let mut trim_args = 1;
        if plan.settings.trim != Trim::None {
            resp::arg(&mut trim, b"MAXLEN");
            if plan.settings.trim == Trim::Approx {
                resp::arg(&mut trim, b"~");
                trim_args += 1;
            }
            resp::arg_number(&mut trim, plan.settings.max_len);
            trim_args += 2;
        }
        resp::arg(&mut trim, b"*");
        let head = |key: &[u8]| {
            let mut head = Vec::new();
            resp::arg(&mut head, b"XADD");
            resp::arg(&mut head, key);
            head.extend_from_slice(&trim);
            head
        };
        let beside = |prefix: fn(&Keys, &str) -> String| {
            let of = |key: &[u8]| prefix(&plan.keys, &tag(plan, key)).into_bytes().into();
            streams.iter().map(|key| of(key)).collect()
        };
        let (most_inline, ttl) = (plan.settings.most_inline(), plan.settings.payload_ttl);
        Self {
            markers: beside(Keys::once),
            payloads: Payloads::new(most_inline, ttl, || beside(Keys::payload)),
            heads: streams.iter().map(|key| head(key)).collect(),
            stored: plan.counts.stored(streams.len()),
            plan: Arc::clone(plan),
            streams,
            trim,
            trim_args,
        }
    }

    pub(super) fn plan(&self) -> &PublishPlan {
        &self.plan
    }

    /// What puts a key beside the stream of this partition in a cluster.
    pub(super) fn tag(&self, partition: u32) -> Cow<'_, str> {
        tag(&self.plan, self.stream(partition))
    }

    pub(super) fn partitions(&self) -> u32 {
        self.streams.len() as u32
    }

    pub(super) fn stream(&self, partition: u32) -> &[u8] {
        &self.streams[partition as usize]
    }

    /// What the marker of a dedupe id in this partition begins with; the id follows.
    pub(super) fn marker_prefix(&self, partition: u32) -> &[u8] {
        &self.markers[partition as usize]
    }

    pub(super) fn payloads(&self) -> &Payloads {
        &self.payloads
    }

    /// What the key of every payload begins with.
    pub(super) fn payload_family(&self) -> String {
        format!("{}x:", self.plan.keys.prefix())
    }

    /// What every marker begins with.
    pub(super) fn marker_family(&self) -> String {
        format!("{}once:", self.plan.keys.prefix())
    }

    /// The next partition in turn, for messages that have neither key nor partition.
    pub(super) fn turn(&self) -> u32 {
        self.plan.counts.turns.next(self.partitions())
    }

    /// The partition of a message; `keyless` is asked when nothing in it decides.
    #[inline]
    pub(super) fn route(&self, m: &Outgoing<'_>, keyless: impl FnOnce() -> u32) -> Result<u32> {
        let partitions = self.partitions();
        match m.partition {
            Some(p) => self.check(p),
            // So that sending it again finds the marker, whoever's turn it is.
            None if m.key.is_empty() => Ok(match m.dedupe {
                Some(dedupe) => partition_of(dedupe.id, partitions),
                None => keyless(),
            }),
            None => Ok(partition_of(m.key, partitions)),
        }
    }

    /// The partition of a key with this hash.
    pub(super) fn of_hash(&self, hash: u64) -> u32 {
        partition_of_hash(hash, self.partitions())
    }

    /// A partition that was asked for, if the topic has it.
    pub(super) fn check(&self, partition: u32) -> Result<u32> {
        self.plan.check_partition(partition, self.partitions())?;
        Ok(partition)
    }

    /// Adds the XADD of an entry.
    #[inline]
    pub(super) fn xadd(&self, out: &mut Vec<u8>, entry: &Entry<'_>, partition: u32) {
        self.head(out, entry.pair_count(), partition);
        fields(out, entry);
    }

    /// Adds the XADD of an entry up to its fields, of which there are so many pairs.
    #[inline]
    pub(super) fn head(&self, out: &mut Vec<u8>, pairs: usize, partition: u32) {
        resp::command(out, 2 + self.trim_args + 2 * pairs);
        out.extend_from_slice(&self.heads[partition as usize]);
    }

    /// The arguments after an XADD's key, up to the `*` that asks for an id.
    pub(super) fn trim(&self) -> &[u8] {
        &self.trim
    }

    /// How many these are.
    pub(super) fn trim_args(&self) -> usize {
        self.trim_args
    }

    /// How many arguments [`after_key`](Self::after_key) adds.
    pub(super) fn args_after_key(&self, entry: &Entry<'_>) -> usize {
        self.trim_args + 2 * entry.pair_count()
    }

    /// Adds what follows the key in the XADD of an entry: for a script that runs it.
    pub(super) fn after_key(&self, out: &mut Vec<u8>, entry: &Entry<'_>) {
        out.extend_from_slice(&self.trim);
        fields(out, entry);
    }

    /// What the server's reply to an XADD means; `text` gives the bytes of it. Counts the message.
    #[inline]
    pub(super) fn id(&self, head: Head, text: &[u8], partition: u32) -> Result<StreamId> {
        let id = match head {
            Head::Text(_) => StreamId::parse(text).ok_or("the reply is no stream id"),
            Head::Error(_) => {
                let e = self.refused(Error::server("publish", text));
                return Err(self.about(e, partition));
            }
            _ => Err("the reply is no id"),
        };
        match id {
            Ok(id) => {
                self.count(partition);
                Ok(id)
            }
            Err(why) => {
                let e = Error::new(ErrorKind::Protocol, "publish", why);
                Err(self.about(e.with_outcome(Outcome::Unknown), partition))
            }
        }
    }

    /// Counts a message that was stored.
    #[inline]
    pub(super) fn count(&self, partition: u32) {
        // a number to look at, nothing is published by it
        self.stored[partition as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a message that was found to be stored before.
    pub(super) fn count_repeated(&self) {
        self.plan.counts.add(Count::Repeated, 1);
    }

    pub(super) fn about(&self, e: Error, partition: u32) -> Error {
        self.plan.about(e).on_key(self.stream(partition))
    }
}

/// What puts a key beside this stream in a cluster, however the topic is laid out.
fn tag<'a>(plan: &'a PublishPlan, stream: &'a [u8]) -> Cow<'a, str> {
    if plan.settings.co_locate_partitions {
        Cow::from(&plan.topic)
    } else {
        String::from_utf8_lossy(stream)
    }
}

/// Adds the fields of an entry, names and values.
#[inline]
pub(super) fn fields(out: &mut Vec<u8>, entry: &Entry<'_>) {
    entry.each_pair(|name, value| resp::pair(out, *name, value));
}
