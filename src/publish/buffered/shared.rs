//! The queue between those who call and the pump, and what is done when it is full or has ended.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crossbeam_channel::{SendTimeoutError, Sender, TrySendError, bounded};
use parking_lot::{Condvar, Mutex};

use crate::{
    ProducerSettings, Result, StreamId,
    error::{Error, ErrorKind},
    net::{Gate, Interrupt, after},
    quiet::{HeldBack, Quiet},
};

use super::{
    super::{Outgoing, PublishPlan, counts::Count},
    bell::Bell,
    books::{Books, Totals},
    parcel::{BoxedParcel, Pool, Undelivered},
};

/// As many threads may be about to queue a message, each with a buffer in hand, before one too many is
/// made.
const CALLERS: usize = 64;

/// What the handles and the pump share.
pub(super) struct Shared {
    pub(super) plan: Arc<PublishPlan>,
    pub(super) settings: ProducerSettings,
    /// Messages are taken out of it by way of the books alone.
    pub(super) queue: Sender<BoxedParcel>,
    pub(super) pool: Pool,
    pub(super) bell: Bell,
    pub(super) interrupt: Arc<Interrupt>,
    pub(super) books: Mutex<Books>,
    /// Messages have left the queue, or the pump has ended.
    pub(super) settled: Condvar,
    pub(super) closing: AtomicBool,
    pub(super) drops: Mutex<Quiet>,
}

/// What is done about a full queue.
#[derive(Clone, Copy)]
pub(super) enum Room {
    Now,
    Within(Duration),
    DropOldest,
}

impl Shared {
    pub(super) fn new(plan: PublishPlan, settings: ProducerSettings) -> Self {
        let (room, batch) = (settings.max_queue as usize, settings.max_batch as usize);
        let (queue, messages) = bounded(room);
        let interrupt = Arc::<Interrupt>::default();
        Self {
            // all there can be at a time: queued, with the pump, about to be queued
            pool: Pool::new(room + batch + CALLERS),
            bell: Bell::new(Arc::clone(&interrupt)),
            books: Mutex::new(Books::new(messages)),
            settled: Condvar::new(),
            closing: AtomicBool::new(false),
            drops: Mutex::default(),
            plan: Arc::new(plan),
            queue,
            interrupt,
            settings,
        }
    }

    /// What the settings say about a full queue.
    pub(super) fn room(&self) -> Room {
        if self.settings.drop_oldest {
            Room::DropOldest
        } else {
            Room::Within(self.plan.timeout)
        }
    }

    pub(super) fn enqueue(
        &self,
        m: &Outgoing<'_>,
        receipt: Option<Sender<Result<StreamId>>>,
        room: Room,
    ) -> Result<()> {
        let mut parcel = self.pool.take();
        let filled = self
            .accept(m)
            .and_then(|()| parcel.fill(&self.plan, m, receipt));
        if let Err(e) = filled {
            self.pool.put(parcel);
            return Err(self.refused(e));
        }
        // before it can be settled
        self.plan.counts.add(Count::Queued, 1);
        if let Err((mut parcel, e)) = self.push(parcel, room) {
            self.plan.counts.sub(Count::Queued, 1);
            parcel.tell(|| Err(e.again()));
            self.pool.put(parcel);
            return Err(self.refused(e));
        }
        if self.bell.queued(|| self.queue.len()) {
            return self.take_late();
        }
        Ok(())
    }

    /// The pump has gone. What it did not see any more, such as the message of a caller that waited for
    /// room until then, was not taken.
    #[cold]
    fn take_late(&self) -> Result<()> {
        let late = self.books.lock().take_late();
        let Some(mut parcel) = late else {
            return Ok(());
        };
        self.plan.counts.sub(Count::Queued, 1);
        parcel.tell(|| Err(self.closed()));
        self.pool.put(parcel);
        Err(self.refused(self.closed()))
    }

    fn accept(&self, m: &Outgoing<'_>) -> Result<()> {
        if self.is_closing() {
            return Err(self.closed());
        }
        if m.message_type.is_empty() {
            let what = "a buffered message needs a type";
            return Err(self.about(Error::new(ErrorKind::Argument, "enqueue", what)));
        }
        Ok(())
    }

    #[cold]
    fn refused(&self, e: Error) -> Error {
        self.plan.counts.failed(&e);
        e.during("enqueue")
    }

    fn push(&self, mut parcel: BoxedParcel, room: Room) -> Result<(), (BoxedParcel, Error)> {
        loop {
            parcel = match self.queue.try_send(parcel) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full(parcel)) => parcel,
                Err(TrySendError::Disconnected(parcel)) => return Err((parcel, self.closed())),
            };
            match room {
                Room::DropOldest => self.drop_oldest(),
                Room::Now => return Err((parcel, self.full(Duration::ZERO))),
                Room::Within(time) => {
                    return self.queue.send_timeout(parcel, time).map_err(|e| match e {
                        SendTimeoutError::Timeout(parcel) => (parcel, self.full(time)),
                        SendTimeoutError::Disconnected(parcel) => (parcel, self.closed()),
                    });
                }
            }
        }
    }

    #[cold]
    fn drop_oldest(&self) {
        let Some(mut oldest) = self.books.lock().drop_oldest() else {
            return;
        };
        self.settled.notify_all();
        oldest.tell(|| Err(self.dropped()));
        self.pool.put(oldest);
        self.plan.counts.sub(Count::Queued, 1);
        self.plan.counts.add(Count::Dropped, 1);
        let permit = self.drops.lock().permit();
        if let Some(n) = permit {
            log::error!(
                "buffered publisher of {}: the queue is full, {} messages; dropping the oldest{}",
                self.plan.topic,
                self.settings.max_queue,
                HeldBack(n)
            );
        }
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Takes everything that waits out of the queue, and tells whoever awaits it.
    pub(super) fn take_back(&self) -> Vec<Undelivered> {
        let mut back = self.books.lock().take_back();
        self.settled.notify_all();
        self.give_back(&mut back);
        back
    }

    fn give_back(&self, messages: &mut [Undelivered]) {
        let n = messages.len() as u64;
        self.plan.counts.sub(Count::Queued, n);
        self.plan.counts.add(Count::Returned, n);
        for m in messages {
            m.0.tell(|| {
                let what = "given back before it was sent";
                Err(self.about(Error::new(ErrorKind::Stopped, "publish", what)))
            });
        }
    }

    /// Keeps what waits in the queue for whoever closes.
    pub(super) fn sweep(&self) {
        let back = self.take_back();
        self.books.lock().keep(back);
    }

    /// The pump's last word: what it has in hand was never sent, and it looks at the queue no more.
    pub(super) fn pump_ended(&self, in_hand: impl Iterator<Item = Undelivered>) {
        let mut in_hand: Vec<_> = in_hand.collect();
        self.closing.store(true, Ordering::Relaxed);
        self.bell.leave();
        self.give_back(&mut in_hand);
        let returned = Totals {
            returned: in_hand.len() as u64,
            ..Totals::default()
        };
        let mut books = self.books.lock();
        books.settle(returned, None, None);
        books.keep(in_hand);
        // the last look: what is queued behind it is late
        let mut back = books.take_back();
        self.give_back(&mut back);
        books.keep(back);
        books.ended = true;
        drop(books);
        self.settled.notify_all();
    }

    /// Why messages were not stored: what the last try came to, or that the server is down, when the
    /// first try is still at that.
    pub(super) fn reason(&self, trouble: Option<Error>) -> Option<Error> {
        trouble.or_else(|| {
            let down = Gate::of(&self.plan.target).down()?;
            Some(self.about(Error::new(ErrorKind::Connect, "publish", down)))
        })
    }

    fn about(&self, e: Error) -> Error {
        self.plan.about(e)
    }

    #[cold]
    fn closed(&self) -> Error {
        self.about(Error::new(
            ErrorKind::Stopped,
            "enqueue",
            "the publisher was closed",
        ))
    }

    #[cold]
    fn full(&self, waited: Duration) -> Error {
        let what = format!(
            "the queue is full: {} messages, and no room came within {} ms",
            self.settings.max_queue,
            waited.as_millis()
        );
        self.about(Error::new(ErrorKind::Full, "enqueue", what))
    }

    #[cold]
    pub(super) fn dropped(&self) -> Error {
        let what = format!(
            "dropped to make room in the full queue of {} messages, as DropOldest says",
            self.settings.max_queue
        );
        self.about(Error::new(ErrorKind::Full, "publish", what))
    }

    /// Waits for the pump's end.
    pub(super) fn has_ended(&self, time: Duration) -> bool {
        let until = after(time);
        let mut books = self.books.lock();
        while !books.ended {
            if self.settled.wait_until(&mut books, until).timed_out() {
                return books.ended;
            }
        }
        true
    }
}
