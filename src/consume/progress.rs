//! How a lane keeps what is finished: as the position of its partition, or as what a consumer group has
//! been acknowledged. The loop around it is the same.

use std::time::Duration;

use crate::{Result, StreamId, batch::Record};

use super::{
    lane::{Flow, Lane, Plan},
    park::Failures,
    reader::Brought,
};

/// One way of keeping what is finished.
pub(crate) trait Progress: Sized {
    /// After which id the first read begins.
    fn start(&self) -> StreamId;
    /// The lane has a new connection.
    fn reconnected(&mut self);
    /// Brings what comes next, once everything that has to be settled before is. Blocks for as long as a
    /// read does.
    fn read(lane: &mut Lane<Self>) -> Result<Brought>;
    /// Whether the next read may be asked for while what was read is handed over.
    fn may_read_ahead(&self) -> bool;
    /// Entries were read, and are handed over next.
    fn arrived(lane: &mut Lane<Self>);
    /// All of them are dealt with.
    fn passed(lane: &mut Lane<Self>);
    /// Of so many records from `start` on, how many may be handed over by one call.
    fn together(&self, plan: &Plan, start: usize, records: usize) -> usize;
    /// What befell the record at `start` before it was read here.
    fn before(&self, start: usize) -> Before;
    /// What is told to the handler of what comes at `start`, which has been handed over so often here.
    fn about(lane: &mut Lane<Self>, start: usize, made: u32);
    /// Whether messages are handed over without anything being done about them before.
    fn is_calm(&self) -> bool {
        true
    }
    /// Where that is not so: sees to what has to be done before the message at `start` is handed over,
    /// however often that takes.
    fn admit(_: &mut Lane<Self>, _start: usize) -> Flow {
        Flow::On
    }
    /// Where that is not so: no message is in hand for a while.
    fn came_back(_: &mut Lane<Self>) {}
    /// The lane is paused, and nobody knows for how long.
    fn holds_still(_: &mut Lane<Self>) {}
    /// The handler says, in the middle of its call, that everything up to this one is finished.
    fn done(&mut self, record: &Record);
    /// The records before `end` of `total` are finished.
    fn finished(lane: &mut Lane<Self>, end: usize, total: usize) -> Flow;
    /// As [`finished`](Self::finished), of a lane that is about to end.
    fn finished_at_the_end(lane: &mut Lane<Self>, end: usize);
    /// Everything that was read is finished, wanted or not.
    fn pass_over(lane: &mut Lane<Self>);
    /// Makes the record at `index` a dead letter, which finishes it, however often that takes.
    fn park(lane: &mut Lane<Self>, index: usize, failures: &Failures<'_>) -> Flow;
    /// Has the record at `index` handed over again after `pause`, out of its place, and finishes it here,
    /// however often that takes.
    fn retry_later(
        lane: &mut Lane<Self>,
        index: usize,
        pause: Duration,
        failures: &Failures<'_>,
    ) -> Flow;
    /// Goes by a reset that waits.
    fn take_reset(lane: &mut Lane<Self>);
    /// The claim may have ended: waits until it holds again, with nothing read.
    fn wait_for_claim(lane: &mut Lane<Self>);
    /// Whether something that is finished has to be stored before anything else is handed over.
    fn owes(&self) -> bool;
    /// Whether a read that found nothing says that there was nothing.
    fn knows_the_end(&self) -> bool {
        true
    }
    /// Whether the lane waits for a person to decide, with the connection in good order.
    fn waits_for_a_person(&self) -> bool;
    /// What was to be stored is another's to say by now.
    fn forget(&mut self);
    /// The lane has ended as it was told to, or by its policy.
    fn ended(lane: &mut Lane<Self>);
}

/// What befell a message before it was read here.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Before {
    /// How often it was given to somebody who has not finished it, whatever kept them.
    pub(crate) deliveries: u32,
    /// How often it was handed over again, out of its place, because the policy said so.
    pub(crate) attempts: u32,
}
