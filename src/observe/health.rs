//! The verdict, and what it is made of.

use std::{fmt, sync::Arc, time::Duration};

use crate::Ownership;

/// How well a process, or one partition, is doing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Status {
    /// Everything works.
    Healthy,
    /// It works, but somebody should have a look.
    Degraded,
    /// It does not do its work.
    Unhealthy,
}

/// The enum, and for each variant its name and how bad it is, so that no two of them can disagree.
macro_rules! rules {
    (
        $(#[$attr:meta])*
        pub enum $name:ident { $( $(#[$vattr:meta])* $variant:ident: $status:ident, )+ }
    ) => {
        $(#[$attr])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[non_exhaustive]
        pub enum $name { $( $(#[$vattr])* $variant, )+ }

        impl $name {
            /// All of them, in the order in which they are tried.
            pub const ALL: &'static [Self] = &[$( Self::$variant ),+];

            /// How well something is doing to which this rule applies.
            pub const fn status(self) -> Status {
                match self { $( Self::$variant => Status::$status, )+ }
            }

            /// Its name, as it is written here.
            pub const fn name(self) -> &'static str {
                match self { $( Self::$variant => stringify!($variant), )+ }
            }
        }
    };
}

rules! {
    /// The rule that decided a verdict, in the order in which rules are tried.
    ///
    #[doc = include_str!("../docs/health.md")]
    pub enum Rule {
        /// The server cannot be reached, or left a call without an answer within the last 15 s and was not
        /// dialled successfully since.
        ConnectionDown: Unhealthy,
        /// The server refuses to let a partition be read.
        Refused: Unhealthy,
        /// The stored position of a partition lies ahead of a stream that it does not belong to, and a person
        /// has to decide where to go on (`PositionAhead`).
        PositionAhead: Unhealthy,
        /// A process that started later goes by this one's name, and this one handles nothing.
        Superseded: Unhealthy,
        /// This instance could not renew its claims in time and handles nothing until it can.
        ClaimsLapsed: Unhealthy,
        /// A partition has been blocked for longer than `UnhealthyBlockSeconds`.
        BlockedTooLong: Unhealthy,
        /// A partition was left to another instance that takes it for its own, has messages waiting, and has
        /// been left for longer than `UnhealthyStoppedSeconds`.
        StoppedTooLong: Unhealthy,
        /// A partition that is read has been before the end of its stream for `UnhealthyBehindSeconds` without
        /// moving at all.
        BehindTail: Unhealthy,
        /// There are consumers, and every one of them was told to stop.
        NoConsumerStarted: Unhealthy,
        /// Every partition was stopped, by the error policy or for another instance.
        AllPartitionsStopped: Unhealthy,
        /// No partition is read yet, and some are about to be, as for a moment after start.
        NotReadingYet: Degraded,
        /// A partition is blocked.
        Blocked: Degraded,
        /// A partition was stopped, by the error policy or for another instance.
        Stopped: Degraded,
        /// The handler of a partition has not come back for longer than `StalledSeconds`.
        Stalled: Degraded,
        /// Messages of a partition have been waiting for longer than `UnhealthyLagMs`, as far as is known.
        Lagging: Degraded,
        /// Partitions have been nobody's for longer than an interval of renewal.
        Unowned: Degraded,
        /// Two instances take a partition for their own.
        Contested: Degraded,
        /// Messages of a partition went missing before they were read, and that was found in the last 10
        /// minutes.
        Gap: Degraded,
        /// In the queue modes: a pending message has had no sign of life for longer than
        /// `DegradedPendingSeconds`.
        PendingTooLong: Degraded,
        /// In the queue modes: a pending message was given out `DegradedDeliveries` times.
        DeliveredTooOften: Degraded,
        /// `DegradedDeadLetters` messages of a partition became dead letters here within 10 minutes.
        DeadLetters: Degraded,
        /// A consumer has finished everything, and nothing has been published to it for longer than
        /// `DegradedSilenceSeconds`.
        Silent: Degraded,
        /// None of the above.
        Fine: Healthy,
    }
}

/// How well one partition is doing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct Grade {
    /// How well.
    pub status: Status,
    /// The rule that decided: the first that applies.
    pub rule: Rule,
}

impl Grade {
    pub(super) fn by(rule: Rule) -> Self {
        let status = rule.status();
        Self { status, rule }
    }
}

/// What a verdict is about beside partitions. The default is a process that knows of nothing else.
#[derive(Clone, Default, Debug)]
#[non_exhaustive]
pub struct HealthContext {
    /// How the partitions of each consumer are divided between instances.
    pub ownership: Vec<Ownership>,
    /// Why the server cannot be reached; `None` while it can.
    pub down: Option<String>,
    /// How many consumers there are.
    pub consumers: usize,
    /// How many of them were not told to stop.
    pub consumers_started: usize,
}

/// A verdict over everything a process consumes.
///
/// Displayed as one line.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Health {
    /// How well it is doing.
    pub status: Status,
    /// The rule that decided.
    pub rule: Rule,
    /// What is the matter, for people: names partitions, durations and reasons, the one that decided first, joined by
    /// `; `. Of several that one rule is about the first is named and the others are counted. Empty when healthy.
    pub description: String,
    /// Everything that is the matter, in the order of the rules.
    pub reasons: Vec<Reason>,
    /// What the verdict is based on, for programs.
    pub data: HealthData,
}

/// One thing that is the matter.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Reason {
    /// The rule that applies.
    pub rule: Rule,
    /// To what: a partition as `topic[partition]/consumer`, a consumer as `topic/consumer`, or the process, which has
    /// no name.
    pub subject: String,
    /// What is the matter, for people.
    pub what: String,
}

/// What a verdict is based on. Partitions and consumers that were told to stop do not count, but for
/// [`consumers`](Self::consumers).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct HealthData {
    /// How many consumers there are.
    pub consumers: usize,
    /// How many of them were not told to stop.
    pub consumers_started: usize,
    /// How many partitions are read here, or were until they stopped.
    pub partitions: usize,
    /// How many of them are blocked.
    pub partitions_blocked: usize,
    /// How many have stopped.
    pub partitions_stopped: usize,
    /// How many have not read anything yet.
    pub partitions_starting: usize,
    /// How many have been seen before the end of their stream, and not moving since.
    pub partitions_behind: usize,
    /// The longest lag there is, and in which partition; `None` where no lag is known.
    pub worst_lag: Option<(String, Duration)>,
    /// How many messages wait there, where that is known.
    pub worst_lag_entries: Option<u64>,
    /// Why the server cannot be reached; `None` while it can.
    pub connection: Option<String>,
    /// The partition that `UnhealthyBehindSeconds` is about, and for how long it has been behind.
    pub behind: Option<(String, Duration)>,
    /// Whether partitions are nobody's for too long, or two instances' at once.
    pub ownership_degraded: bool,
    /// The consumer to which nothing is published.
    pub silent: Option<String>,
}

impl HealthData {
    /// All of it as names and texts, by the names that peers use: durations in whole milliseconds, and no row
    /// for what is not known.
    pub fn pairs(&self) -> Vec<(&'static str, String)> {
        let mut pairs = vec![
            ("consumers", self.consumers.to_string()),
            ("consumersStarted", self.consumers_started.to_string()),
            ("partitions", self.partitions.to_string()),
            ("partitionsBlocked", self.partitions_blocked.to_string()),
            ("partitionsStopped", self.partitions_stopped.to_string()),
            ("partitionsStarting", self.partitions_starting.to_string()),
            ("partitionsBehind", self.partitions_behind.to_string()),
        ];
        let mut add = |name, value: Option<String>| pairs.extend(value.map(|v| (name, v)));
        let ms = |(_, time): &(String, Duration)| time.as_millis().to_string();
        add("worstLagMs", self.worst_lag.as_ref().map(ms));
        add("worstLagPartition", self.worst_lag.as_ref().map(name));
        add(
            "worstLagEntries",
            self.worst_lag_entries.map(|n| n.to_string()),
        );
        add("connection", self.connection.clone());
        add("behindPartition", self.behind.as_ref().map(name));
        add("behindMs", self.behind.as_ref().map(ms));
        add(
            "ownershipDegraded",
            Some(self.ownership_degraded.to_string()),
        );
        add("silentConsumer", self.silent.clone());
        pairs
    }
}

fn name((name, _): &(String, Duration)) -> String {
    name.clone()
}

impl Health {
    /// Whether the process should be left running. It should whatever is the matter, but for what starting it
    /// again may mend: nothing is read any more here ([`AllPartitionsStopped`](Rule::AllPartitionsStopped)), or
    /// a partition does not move although there is something to handle ([`BehindTail`](Rule::BehindTail), where a
    /// threshold was set). No outage of the server, no pause and no lack of messages makes it false.
    pub fn is_live(&self) -> bool {
        !matches!(self.rule, Rule::AllPartitionsStopped | Rule::BehindTail)
    }

    /// Whether the process does its work: it is not [`Unhealthy`](Status::Unhealthy), and reads what is its
    /// own.
    pub fn is_ready(&self) -> bool {
        self.status != Status::Unhealthy && self.rule != Rule::NotReadingYet
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.description.as_str() {
            "" => write!(f, "{:?}", self.status),
            why => write!(f, "{:?} ({:?}): {why}", self.status, self.rule),
        }
    }
}

/// A consumer to which nothing is published.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Silence {
    /// The topic.
    pub topic: Arc<str>,
    /// The consumer's name.
    pub consumer: Arc<str>,
    /// For how long nothing has moved, in any of its partitions.
    pub lasts: Duration,
    /// From when on that is a reason to look (`DegradedSilenceSeconds`).
    pub limit: Duration,
}
