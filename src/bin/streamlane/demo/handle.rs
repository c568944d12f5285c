//! The handling side: writes down what it is given.

use crossbeam_channel::Sender;
use streamlane::{HandlerResult, Message, MessageHandler, StreamId, testing::now_ns};

use super::plan::{Name, PARTITIONS, Plan};

/// One call of a handler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handled {
    pub(crate) id: StreamId,
    pub(crate) name: Name,
    pub(crate) sent_ns: u64,
    pub(crate) at_ns: u64,
}

/// What the handler of one partition was given, in the order of calls.
pub(crate) type Log = Vec<Handled>;

/// The handler of one lane. It has its log to itself, and hands it over when the lane ends.
#[derive(Debug)]
pub(crate) struct Recording {
    partition: u32,
    log: Log,
    to: Sender<(u32, Log)>,
}

impl Recording {
    /// Has room for twice a fair share, so that the log does not grow while it is measured.
    pub(crate) fn new(partition: u32, plan: Plan, to: Sender<(u32, Log)>) -> Self {
        Self {
            partition,
            log: Vec::with_capacity(2 * plan.messages / PARTITIONS as usize),
            to,
        }
    }
}

impl MessageHandler for Recording {
    fn handle(&mut self, m: &Message<'_>) -> HandlerResult {
        let at_ns = now_ns();
        let (name, sent_ns) =
            Name::read(m.key().as_bytes(), m.body()).unwrap_or((Name::STRANGER, at_ns));
        self.log.push(Handled {
            id: m.id(),
            name,
            sent_ns,
            at_ns,
        });
        Ok(())
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let log = std::mem::take(&mut self.log);
        // Refused only when the run has been given up.
        let _ = self.to.send((self.partition, log));
    }
}
