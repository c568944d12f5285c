//! A consumer: how one is described, and the handle to a running one.

mod builder;
mod lanes;
mod running;
mod seen;

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use crate::{
    Error, ErrorKind, LaneState, Ownership, PartitionStatus, Result, Snapshot, StreamId, Streams,
    consume::{PAUSE, last_entry},
    net::{Deadline, Interrupt, STOP},
};

pub use builder::{ConsumerBuilder, HasHandler, NoHandler};
use lanes::Lane;
pub(crate) use running::Running;

/// What a user wants to be told when `OnError: Fail` ends a consumer.
type FailHook = Arc<dyn Fn(&Error) + Send + Sync>;

/// How often a draining consumer is looked at.
const DRAIN_TICK: Duration = Duration::from_millis(2);

/// A running consumer. Dropping it stops it, which blocks for up to its shutdown timeout.
#[must_use = "dropping it stops the consumer"]
pub struct Consumer {
    running: Arc<Running>,
    streams: Streams,
}

/// What a consumer left when it stopped.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Stopped {
    /// The position of each partition: everything up to it is finished.
    pub positions: Vec<StreamId>,
    /// Partitions whose position could not be stored; what they handled last will be handled again.
    pub unsaved: Vec<u32>,
    /// Partitions whose handler did not return in time.
    pub still_running: Vec<u32>,
}

impl Consumer {
    /// The topic it reads.
    pub fn topic(&self) -> &str {
        &self.running.topic
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.running.name
    }

    /// Stops: no handler call starts any more, those that run are told (`is_cancelled`) and waited for,
    /// and positions are stored. Returns what was left.
    ///
    /// Blocks for up to the shutdown timeout (10 s by default), usually far less: reads that wait in the
    /// server are cut short. Calling it again, or from several threads, is fine. From inside a handler it
    /// returns at once, and the consumer stops when the handler returns.
    pub fn stop(&self) -> Stopped {
        self.running.stop()
    }

    /// Handles everything that is at this moment in the partitions that this instance owns, then
    /// [`stop`](Self::stop)s. What others own is theirs, and what one that died had is nobody's until its
    /// claims end: see [`owned`](Self::owned). The log says how many these are.
    ///
    /// Blocks for up to `timeout`, asking the server included, and then for as long as the stop takes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`] when it was not done in time, and [`ErrorKind::Stopped`] when a partition
    /// was stopped by its error policy; the consumer is stopped in either case. Any error of asking the
    /// server how far there is to go.
    pub fn drain(&self, timeout: Duration) -> Result<Stopped> {
        let outcome = self
            .await_tail(Deadline::after(timeout))
            .map_err(|e| e.during(format!("drain {}", self.running)));
        if outcome.is_ok() {
            self.tell_of_others();
        }
        let stopped = self.stop();
        outcome.map(|()| stopped)
    }

    /// A drain is about what is ours: says what is not.
    fn tell_of_others(&self) {
        let (owned, all) = (self.owned().len(), self.running.table.len());
        if owned < all as usize {
            log::info!(
                "{}: drained {owned} of {all} partitions; the others are claimed by other instances, or not \
                 claimed by anybody yet",
                self.running
            );
        }
    }

    /// Holds all partitions, those that are yet to come as well: no handler call starts until
    /// [`resume`](Self::resume), and positions stay. Calls that run are not waited for.
    pub fn pause(&self) {
        self.running.lanes.pause();
    }

    /// Lets all partitions go on.
    pub fn resume(&self) {
        self.running.lanes.resume();
    }

    /// Holds one partition. False when there is no such partition.
    pub fn pause_partition(&self, partition: u32) -> bool {
        let lane = self.running.lanes.get(partition);
        lane.map(|l| l.seat.interrupt.set(PAUSE)).is_some()
    }

    /// Lets one partition go on. False when there is no such partition.
    pub fn resume_partition(&self, partition: u32) -> bool {
        let lane = self.running.lanes.get(partition);
        lane.map(|l| l.seat.interrupt.clear(PAUSE)).is_some()
    }

    /// How many handler calls run in this process right now; `MaxInFlight` says how many may.
    pub fn in_flight(&self) -> usize {
        let in_call = |lane: &Arc<Lane>| lane.seat.monitor.in_call_ms().is_some();
        self.running.lanes.those(in_call).len()
    }

    /// How far a partition is finished, in memory: what is stored follows within `PersistIntervalMs`.
    /// `None` when there is no such partition.
    pub fn position(&self, partition: u32) -> Option<Snapshot> {
        let lane = self.running.lanes.get(partition)?;
        Some(self.running.position(lane.seat.partition))
    }

    /// The partitions that this instance owns now, ascending; they change as instances come and go.
    pub fn owned(&self) -> Vec<u32> {
        self.ownership().owned
    }

    /// Who owns what, as was seen at the last renewal. Asks no server.
    pub fn ownership(&self) -> Ownership {
        self.running.ownership()
    }

    /// A snapshot of every partition of this instance.
    pub fn partitions(&self) -> Vec<PartitionStatus> {
        self.running.statuses().collect()
    }

    /// Waits until every partition that is here now is where its stream ends now, or has left.
    fn await_tail(&self, by: Deadline) -> Result<()> {
        let running = &*self.running;
        let empty_reads = |lane: &Lane| lane.seat.monitor.empty_reads.load(Ordering::Relaxed);
        let mut left = self.streams.on_control(by, |connection| {
            let lanes = running.lanes.all().into_iter();
            lanes
                .map(|lane| {
                    let tail = last_entry(connection, &lane.seat.key, by.left())?;
                    // The last entry may be deleted before it is reached: then two reads that find
                    // nothing, the second of which began after this call, are proof enough.
                    let proof = empty_reads(&lane) + 2;
                    Ok((lane, tail, proof))
                })
                .collect::<Result<Vec<_>>>()
        })?;
        let pause = Interrupt::default();
        loop {
            if let Some(group) = &running.group {
                left = self.streams.on_control(by, |connection| {
                    let mut not_yet = Vec::new();
                    for (lane, tail, proof) in &left {
                        let key = &lane.seat.key;
                        if !group.is_through(connection, key, *tail, by.left())? {
                            not_yet.push((Arc::clone(lane), *tail, *proof));
                        }
                    }
                    Ok(not_yet)
                })?;
            }
            left.retain(|(lane, tail, proof)| {
                let reached = running.position(lane.seat.partition).id >= *tail;
                !reached && empty_reads(lane) < *proof && running.lanes.keeps(lane)
            });
            let hopeless = left
                .iter()
                .find(|(lane, ..)| lane.state() == LaneState::Stopped);
            let Some((lane, ..)) = hopeless.or(left.first()) else {
                return Ok(());
            };
            let status = running.status(lane);
            let told = format!("{status} is {:?}: {}", status.state, status.reason);
            if hopeless.is_some() {
                return Err(Error::new(ErrorKind::Stopped, "drain", told));
            }
            if by.left().is_zero() {
                let what = format!(
                    "{} partitions did not reach their end in time: {told}",
                    left.len()
                );
                return Err(Error::new(ErrorKind::Timeout, "drain", what));
            }
            pause.sleep(DRAIN_TICK, STOP);
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.running.stop();
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("topic", &self.running.topic)
            .field("name", &self.running.name)
            .field("partitions", &self.running.lanes.len())
            .finish_non_exhaustive()
    }
}
