//! The publishing side: two hot threads, each with a publisher and keys of its own.

use std::{
    io,
    sync::atomic::{AtomicU64, Ordering},
    thread::{self, ScopedJoinHandle},
};

use streamlane::{
    DedicatedPublisher, Error, Outgoing, Publisher, Result, StreamId, testing::now_ns,
};

use super::plan::{BATCH, BODY_BYTES, KEYS, Name, PUBLISHERS, Phase, Plan, key_text, write_body};

const MESSAGE_TYPE: &str = "Demo";

/// What one publisher has published so far, kept from phase to phase.
#[derive(Debug)]
pub(crate) struct Sent {
    /// By index: the id the server gave. [`StreamId::MIN`] where publishing failed, and the message may
    /// or may not have been stored.
    pub(crate) ids: Vec<StreamId>,
    /// A publisher gives up at its first failure.
    pub(crate) error: Option<Error>,
}

/// What one phase took.
#[derive(Debug)]
pub(crate) struct Timing {
    pub(crate) began_ns: u64,
    pub(crate) ended_ns: u64,
    pub(crate) published: u64,
    /// Of each call that succeeded, in nanoseconds.
    pub(crate) calls: Vec<u64>,
}

/// All publishing threads.
#[derive(Debug)]
pub(crate) struct Publishers {
    keys: Vec<String>,
    links: Vec<DedicatedPublisher>,
    pub(crate) sent: Vec<Sent>,
}

impl Publishers {
    pub(crate) fn new(publisher: &Publisher, plan: Plan) -> Self {
        let room = plan.messages.div_ceil(PUBLISHERS);
        let sent = |_| Sent {
            ids: Vec::with_capacity(room),
            error: None,
        };
        Self {
            keys: (0..KEYS).map(key_text).collect(),
            links: (0..PUBLISHERS).map(|_| publisher.dedicated()).collect(),
            sent: (0..PUBLISHERS).map(sent).collect(),
        }
    }

    /// Publishes all of a phase, one thread for each publisher, and counts into `published`.
    pub(crate) fn run(
        &mut self,
        plan: Plan,
        phase: Phase,
        published: &AtomicU64,
    ) -> io::Result<Timing> {
        let keys = &self.keys[..];
        let before = published.load(Ordering::Relaxed);
        let began_ns = now_ns();
        let calls = thread::scope(|scope| {
            let threads: Vec<_> = (self.links.iter_mut().zip(&mut self.sent).enumerate())
                .map(|(number, (publisher, sent))| {
                    let mut hand = Hand {
                        number,
                        publisher,
                        sent,
                        keys,
                        calls: Vec::new(),
                        published,
                    };
                    thread::Builder::new()
                        .name(format!("publisher{number}"))
                        .spawn_scoped(scope, move || {
                            hand.publish(plan, phase);
                            hand.calls
                        })
                })
                .collect::<io::Result<_>>()?;
            let calls = threads.into_iter().map(ScopedJoinHandle::join);
            calls
                .collect::<Result<Vec<_>, _>>()
                .map_err(|_| io::Error::other("a publishing thread has panicked"))
        })?;
        Ok(Timing {
            began_ns,
            ended_ns: now_ns(),
            published: published.load(Ordering::Relaxed) - before,
            calls: calls.concat(),
        })
    }
}

/// One thread at its work.
struct Hand<'a> {
    number: usize,
    publisher: &'a mut DedicatedPublisher,
    sent: &'a mut Sent,
    keys: &'a [String],
    calls: Vec<u64>,
    published: &'a AtomicU64,
}

impl Hand<'_> {
    fn publish(&mut self, plan: Plan, phase: Phase) {
        let part = plan.part(self.number, phase);
        let size = match phase {
            Phase::Single => 1,
            Phase::Batches => BATCH,
        };
        self.calls.reserve_exact(part.len().div_ceil(size));
        let mut bodies = vec![[b'.'; BODY_BYTES]; size];
        let mut results = Vec::with_capacity(size);
        for from in part.clone().step_by(size) {
            if self.sent.error.is_some() {
                return;
            }
            let names = (from..part.end.min(from + size)).map(|i| Name::of(self.number, i));
            let stamp = now_ns();
            for (body, name) in bodies.iter_mut().zip(names.clone()) {
                write_body(body, name, stamp);
            }
            if phase == Phase::Single {
                let key = &self.keys[Name::of(self.number, from).key as usize];
                results.push(self.publisher.publish(key, MESSAGE_TYPE, bodies[0]));
            } else {
                let outgoing: Vec<_> = (names.zip(&bodies))
                    .map(|(n, body)| {
                        Outgoing::new(MESSAGE_TYPE, body).key(&self.keys[n.key as usize])
                    })
                    .collect();
                self.publisher.publish_batch_into(&outgoing, &mut results);
            }
            let took = now_ns() - stamp;
            self.note(results.drain(..));
            if self.sent.error.is_none() {
                self.calls.push(took);
            }
        }
    }

    fn note(&mut self, results: impl Iterator<Item = Result<StreamId>>) {
        let mut published = 0;
        for result in results {
            published += u64::from(result.is_ok());
            let id = result.unwrap_or_else(|e| {
                self.sent.error.get_or_insert(e);
                StreamId::MIN
            });
            self.sent.ids.push(id);
        }
        self.published.fetch_add(published, Ordering::Relaxed);
    }
}
