//! What every publisher is made of: a topic, a connection, and the buffers between them.

use std::{sync::Arc, time::Duration};

use crate::{
    Result, StreamId, TopicSettings, Trim, clock,
    error::{Error, ErrorKind, Outcome},
    net::{Connection, Deadline, Replies, Target, resp::{self, Head}},
    wire::{self, Entry, Keys, RoundTrip as _, RoundRobin, partition_of},
};

use super::{Outgoing, Topic, ensure};

/// What a publisher is told once.
#[derive(Clone, Debug)]
pub(crate) struct PublishPlan {
    pub(crate) target: Arc<Target>,
    pub(crate) keys: Keys,
    pub(crate) topic: String,
    pub(crate) settings: TopicSettings,
    pub(crate) client_name: String,
    pub(crate) connect_timeout: Duration,
    pub(crate) timeout: Duration,
    pub(crate) max_message_bytes: usize,
    pub(crate) spin: Duration,
}

/// A pipeline is sent in pieces of at most so many bytes or messages, each answered before the next
/// goes out, so that neither side has to hold more.
const PIECE_BYTES: usize = 128 * 1024;
const PIECE_MESSAGES: usize = 512;

/// A connection that was idle for longer than this may have been closed by the server meanwhile.
const IDLE_MS: u64 = 1;

/// A connection to one topic. One call at a time.
#[derive(Debug)]
pub(super) struct Link {
    plan: Arc<PublishPlan>,
    topic: Option<Topic>,
    /// Each partition's command up to the entry's fields.
    heads: Vec<Box<[u8]>>,
    /// How many arguments such a head holds.
    head_args: usize,
    round_robin: Arc<RoundRobin>,
    connection: Option<Connection>,
    used_ms: u64,
    out: Vec<u8>,
    packed: Vec<u8>,
    replies: Replies,
}

impl Link {
    pub(super) fn new(plan: Arc<PublishPlan>, round_robin: Arc<RoundRobin>) -> Self {
        Self {
            plan,
            topic: None,
            heads: Vec::new(),
            head_args: 0,
            round_robin,
            connection: None,
            used_ms: 0,
            out: Vec::with_capacity(4096),
            packed: Vec::new(),
            replies: Replies::default(),
        }
    }
}
