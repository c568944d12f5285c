//! The thread that sends what waits, batch by batch, each settled before the next is taken.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use crate::{
    StreamId,
    backoff::{IdleLadder, jittered},
    clock,
    error::{Error, ErrorKind, Outcome, ServerClass::Auth},
    net::{Deadline, STOP},
    quiet::{HeldBack, Quiet},
};

use super::{
    super::{
        Encoder,
        counts::Count,
        link::{Link, PIECE_BYTES, is_full, is_over},
    },
    books::Totals,
    parcel::{BoxedParcel, Undelivered},
    shared::Shared,
};

/// The longest pause between two tries.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// So often the connection may break while one large message is on its way. Then it is taken for larger
/// than the server accepts.
const MAX_BROKEN_SENDS: u32 = 3;

/// What becomes of a message that was tried.
#[derive(Debug)]
enum Fate {
    /// Its answer is still to come.
    Sent,
    Stored(StreamId),
    /// It is certainly not stored, and may be tried again.
    Again(Error),
    /// It is given up.
    Lost(Error),
}

impl Fate {
    /// Of a message that failed with this error.
    fn of(e: Error) -> Self {
        // Whom the server lets in is put right while messages wait, and is about none of them. Nor is being
        // called away in the middle: then they are given back.
        let is_outside = matches!(e.kind(), ErrorKind::Connect | ErrorKind::Stopped)
            || e.server_class() == Some(Auth);
        if e.outcome() == Outcome::NotApplied && (e.is_retryable() || is_outside) {
            Self::Again(e)
        } else {
            Self::Lost(e)
        }
    }
}

/// What a pump owns.
pub(super) struct Pump {
    shared: Arc<Shared>,
    link: Link,
    /// The batch, in the order of the queue; what was settled has left it.
    hand: Vec<BoxedParcel>,
    /// Of the first messages in hand, which are tried at the moment.
    fates: Vec<Fate>,
    routes: Vec<u32>,
    /// Reused in between.
    again: Vec<BoxedParcel>,
    taken: Vec<bool>,
    pauses: IdleLadder,
    trouble: Quiet,
    losses: Quiet,
}

impl Pump {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let (plan, interrupt) = (Arc::clone(&shared.plan), Arc::clone(&shared.interrupt));
        Self {
            link: Link::interruptible(plan, interrupt),
            hand: Vec::with_capacity(shared.settings.max_batch as usize),
            fates: Vec::new(),
            routes: Vec::new(),
            again: Vec::new(),
            taken: Vec::new(),
            pauses: IdleLadder::new(MAX_PAUSE),
            trouble: Quiet::default(),
            losses: Quiet::default(),
            shared,
        }
    }

    /// Sends what is queued until it is told to end.
    pub(super) fn run(self) {
        self.until_end(Self::pump);
    }

    /// Does its `work`. However that ends, nobody is left waiting.
    fn until_end(mut self, work: impl FnOnce(&mut Self)) {
        let ran = catch_unwind(AssertUnwindSafe(|| work(&mut self)));
        if ran.is_err() {
            let why = "the pump panicked while it had the message in hand";
            log::error!("buffered publisher of {}: {why}", self.shared.plan.topic);
            let lost = self.about(Error::new(ErrorKind::Stopped, "publish", why));
            let lost = lost.with_outcome(Outcome::Unknown);
            self.fates.clear();
            self.fates
                .extend(self.hand.iter().map(|_| Fate::Lost(lost.again())));
            self.settle();
        }
        self.shared.pump_ended(self.hand.drain(..).map(Undelivered));
    }

    fn pump(&mut self) {
        while self.collect() {
            while !self.hand.is_empty() {
                if self.is_stopped() {
                    return;
                }
                self.deliver();
            }
        }
    }

    fn is_stopped(&self) -> bool {
        self.shared.interrupt.bits() & STOP != 0
    }

    /// Takes a batch in hand: when enough is there, when the oldest message has waited long enough, or
    /// when somebody waits for it. False when there will be no more.
    fn collect(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let most = shared.settings.max_batch as usize;
        while !self.is_stopped() {
            let closing = shared.is_closing();
            let hurried = {
                let mut books = shared.books.lock();
                books.take_into(&mut self.hand, most);
                books.is_hurried() || closing
            };
            let (more, wait) = match self.hand.first() {
                None if closing => return false,
                None => (1, Duration::MAX),
                Some(oldest) => {
                    let waited = Duration::from_millis(oldest.age_ms());
                    let left = shared.settings.max_wait.saturating_sub(waited);
                    (most - self.hand.len(), left)
                }
            };
            if !self.hand.is_empty() && (hurried || more == 0 || wait.is_zero()) {
                return true;
            }
            shared.bell.wait(more, wait, || shared.queue.len());
        }
        false
    }

    /// Tries the first messages in hand: as many as make up a piece.
    fn deliver(&mut self) {
        let by = Deadline::after(self.shared.plan.timeout);
        self.fates.clear();
        self.routes.clear();
        match self.link.make_ready(by) {
            Ok(encoder) => {
                self.write(&encoder);
                self.exchange(&encoder, by);
                keep_order(&mut self.fates, &self.routes, &mut self.taken);
            }
            // told to end
            Err(e) if e.kind() == ErrorKind::Stopped => return,
            // None of them was sent, and it is about none of them. Rights may be granted while they wait, but
            // settings that do not fit the topic stay as they are.
            Err(e) => self.fates.extend(self.hand.iter().map(|_| match e.kind() {
                ErrorKind::Config => Fate::Lost(e.again()),
                _ => Fate::Again(e.again()),
            })),
        }
        self.link.rest();
        if let Some(e) = self.settle()
            && !self.is_stopped()
        {
            self.pause(&e);
        }
    }

    /// Writes the commands of a piece.
    fn write(&mut self, encoder: &Encoder) {
        let out = self.link.out();
        out.clear();
        for parcel in &self.hand {
            if is_full(out, self.routes.len(), parcel.len()) {
                break;
            }
            let (fate, route) = match parcel.partition(encoder) {
                Ok(p) => {
                    parcel.write(out, encoder, p);
                    (Fate::Sent, p)
                }
                Err(e) => (Fate::Lost(e), 0),
            };
            self.fates.push(fate);
            self.routes.push(route);
        }
    }

    /// Sends the piece and takes the answers to it.
    fn exchange(&mut self, encoder: &Encoder, by: Deadline) {
        if self.link.out().is_empty() {
            return;
        }
        if let Err(e) = self.link.send(by) {
            self.link.hang_up();
            return self.unsent(&self.about(e));
        }
        let mut over = false;
        for i in 0..self.fates.len() {
            if !matches!(self.fates[i], Fate::Sent) {
                continue;
            }
            self.fates[i] = match self.link.receive_id(encoder, self.routes[i], by) {
                Ok(id) => Fate::Stored(id),
                Err(e) if e.kind() == ErrorKind::Server => {
                    over |= is_over(&e);
                    Fate::of(e)
                }
                Err(e) => {
                    self.link.hang_up();
                    return self.unanswered(&self.about(e));
                }
            };
        }
        if over {
            self.link.hang_up();
        }
    }

    /// What became of a piece that did not go out whole.
    fn unsent(&mut self, e: &Error) {
        let mut sent = self.fates.iter_mut().zip(&mut self.hand).rev();
        let mut sent = sent.by_ref().filter(|(f, _)| matches!(f, Fate::Sent));
        // The server does not run a command it has only a part of, and the last one it has not whole.
        if let Some((fate, parcel)) = sent.next() {
            let again = e.again().with_outcome(Outcome::NotApplied);
            parcel.broken_sends += 1;
            let hopeless = parcel.len() >= PIECE_BYTES && parcel.broken_sends >= MAX_BROKEN_SENDS;
            *fate = if hopeless {
                let what = format!(
                    "{}; {MAX_BROKEN_SENDS} times the connection broke while this message was sent: is it \
                     larger than the server accepts (proto-max-bulk-len)?",
                    again.message()
                );
                Fate::Lost(again.saying(what))
            } else {
                Fate::of(again)
            };
        }
        sent.for_each(|(fate, _)| *fate = Fate::of(e.again()));
    }

    /// The messages that were sent and have no answer yet will have none.
    fn unanswered(&mut self, e: &Error) {
        let sent = self.fates.iter_mut().filter(|f| matches!(f, Fate::Sent));
        sent.for_each(|fate| *fate = Fate::Lost(e.again().with_outcome(Outcome::Unknown)));
    }

    fn about(&self, e: Error) -> Error {
        self.shared.plan.about(e)
    }

    /// Settles the messages that were tried; those that may be tried again stay in hand, in their order.
    /// Returns why they have to wait.
    fn settle(&mut self) -> Option<Error> {
        let shared = Arc::clone(&self.shared);
        let retry_ms = clock::ceil_ms(shared.settings.retry_for);
        let (mut totals, mut lost, mut trouble) = (Totals::default(), None, None);
        let tried = self.hand.drain(..self.fates.len());
        for (mut parcel, fate) in tried.zip(self.fates.drain(..)) {
            let e = match fate {
                Fate::Stored(id) => {
                    totals.stored += 1;
                    parcel.tell(|| Ok(id));
                    shared.pool.put(parcel);
                    continue;
                }
                Fate::Again(e) if parcel.age_ms() < retry_ms => {
                    trouble.get_or_insert(e);
                    self.again.push(parcel);
                    continue;
                }
                Fate::Again(e) | Fate::Lost(e) => e,
                Fate::Sent => unreachable!("every message that was sent has a fate"),
            };
            totals.failed(e.outcome());
            shared.plan.counts.failed(&e);
            parcel.tell(|| Err(e.again()));
            shared.pool.put(parcel);
            lost = Some(e);
        }
        if !self.again.is_empty() {
            self.hand.splice(0..0, self.again.drain(..));
        }
        if totals.stored > 0 {
            self.pauses.reset();
        }
        if let Some(e) = &lost
            && let Some(n) = self.losses.permit()
        {
            log::error!(
                "buffered publisher of {}: {} message(s) given up: {e}{}",
                shared.plan.topic,
                totals.lost(),
                HeldBack(n)
            );
        }
        shared.plan.counts.sub(Count::Queued, totals.all());
        // that it was called away says nothing about why they waited until then
        let tried = trouble.as_ref().filter(|e| e.kind() != ErrorKind::Stopped);
        let waits = tried.map(Error::again);
        shared.books.lock().settle(totals, lost, waits);
        shared.settled.notify_all();
        trouble
    }

    /// Lets some time pass before the next try.
    fn pause(&mut self, e: &Error) {
        if let Some(n) = self.trouble.permit() {
            // before the log is written: that may take its time, or publish by way of this queue
            let queued = self.shared.books.lock().queued();
            log::warn!(
                "buffered publisher of {}: {e}; trying again, {queued} message(s) wait{}",
                self.shared.plan.topic,
                HeldBack(n)
            );
        }
        let pause = jittered(self.pauses.next_wait());
        self.shared.interrupt.sleep(pause, STOP);
    }
}

/// A message that was refused is tried again only while none that came after it in its partition may be
/// stored: otherwise it would end up behind it.
fn keep_order(fates: &mut [Fate], routes: &[u32], taken: &mut Vec<bool>) {
    if !fates.iter().any(|f| matches!(f, Fate::Again(_))) {
        return;
    }
    taken.clear();
    for (fate, route) in fates.iter_mut().zip(routes).rev() {
        let route = *route as usize;
        if taken.len() <= route {
            taken.resize(route + 1, false);
        }
        match fate {
            Fate::Stored(_) => taken[route] = true,
            Fate::Lost(e) => taken[route] |= e.outcome() != Outcome::NotApplied,
            Fate::Again(e) if taken[route] => {
                let what = format!(
                    "{}; not tried again, since a later message of the partition is stored",
                    e.message()
                );
                *fate = Fate::Lost(e.again().saying(what));
            }
            Fate::Again(_) | Fate::Sent => {}
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    impl Pump {
        /// Takes so many messages in hand, and panics.
        pub(in super::super) fn panics_with(self, n: usize) {
            self.until_end(|pump| {
                pump.shared.books.lock().take_into(&mut pump.hand, n);
                panic!("as the test wants it");
            });
        }
    }

    #[test]
    fn what_is_tried_again_never_lands_behind_its_successors() {
        let refused = || Error::server("publish", b"OOM no memory");
        let lost = |outcome| Error::new(ErrorKind::Io, "publish", "gone").with_outcome(outcome);
        let fate = |c: char| match c {
            's' => Fate::Stored(StreamId::MIN),
            'a' => Fate::Again(refused()),
            'r' => Fate::Lost(lost(Outcome::NotApplied)),
            'u' => Fate::Lost(lost(Outcome::Unknown)),
            _ => unreachable!(),
        };
        let short = |f: &Fate| match f {
            Fate::Stored(_) => 's',
            Fate::Again(_) => 'a',
            Fate::Lost(e) if e.outcome() == Outcome::Unknown => 'u',
            Fate::Lost(_) => 'r',
            Fate::Sent => '?',
        };
        for (fates, routes, kept) in [
            ("ass", [0, 0, 0], "rss"),
            ("saa", [0, 0, 0], "saa"),
            ("asa", [0, 0, 0], "rsa"),
            ("asa", [0, 1, 0], "asa"),
            ("aas", [0, 1, 1], "ars"),
            ("aar", [0, 0, 0], "aar"),
            ("aau", [0, 9, 0], "rau"),
            ("", [0, 0, 0], ""),
        ] {
            let mut all: Vec<_> = fates.chars().map(fate).collect();
            keep_order(&mut all, &routes, &mut vec![true; 2]);
            let now: String = all.iter().map(short).collect();
            assert_eq!(now, kept, "{fates} on {routes:?}");
        }
    }
}
