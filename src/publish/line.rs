//! One connection shared by many callers in both directions at once, and no thread of its own.
//!
//! A caller puts its command on the line and gets a place in it, a *ticket*. Two roles go round among
//! the callers that wait. The *writer* sends what is there: its own command straight away, then what
//! others have queued meanwhile, all of it in one write. The *reader* receives, and hands each answer to
//! the first ticket in line. A caller alone takes both roles, one after the other, and meets nobody.
//!
//! What keeps this from going wrong:
//!
//! - Everything but the bytes themselves is decided under one lock, which is held during no read and no
//!   write. Taking a reply, and telling the ticket's caller, are one step.
//! - A role is only ever given to a caller that is *parked*: one that does nothing else until it is told
//!   something. So the writer, whose answer may arrive while it still writes, is not made to read for
//!   others before it is through, and the reader is not made to write while it sleeps in a read.
//! - The writer's role goes to a caller whose own command is still in the queue, for no answer can reach
//!   it before it has taken the role up; the reader's, to one whose command has gone out. So whoever is
//!   parked can take over one of the two, and no writer has to go on past its own time.
//! - Nothing is queued while nobody writes. Nobody waits for an answer to what was sent while nobody
//!   reads, unless the writer is about to: it is the next reader when it is through.
//! - Where the line is dead, whoever is still parked hears from the writer how far it got.
//! - A caller that gives up leaves its ticket in line, so that its answer is taken by nobody else. When
//!   nothing was said in most of its time, the line takes no more calls: those on it keep their own time,
//!   but others need not find out for themselves, and somebody will be the last.

mod seat;
mod state;

use std::{fmt, mem, sync::Arc, time::Duration};

use crate::{
    Result, clock,
    error::{Error, ErrorKind, Outcome},
    net::{Deadline, Inbox, resp::Head},
    sync::{self, AtomicU32, Mutex, MutexGuard, Ordering},
};

pub(super) use seat::Seat;
use {
    seat::Word,
    state::{Standing, State, Ticket},
};

/// What a line leads to.
pub(super) trait Far {
    /// What a caller is told.
    type Answer;

    /// Writes all of `bytes` within `timeout`, or says how many were taken before it failed.
    fn send(&self, bytes: &[u8], timeout: Duration) -> Result<(), (usize, Error)>;

    /// Reads what has arrived; `None` when nothing does within `timeout`.
    fn receive(&self, buf: &mut [u8], timeout: Duration) -> Result<Option<usize>>;

    /// Whether, after a pause, it is still there and has said nothing.
    fn check_idle(&self) -> Result<()>;

    /// Ends it for having said nothing in `timeout`: whoever sends or receives returns at once.
    fn give_up(&self, timeout: Duration) -> Error;

    /// Ends it for having said what it should not.
    fn shut(&self);

    /// What a reply means for the caller that gave this `tag`, and whether none but what is on its way
    /// should go over this line any more.
    fn answer(&self, reply: Head, text: &[u8], tag: u32) -> (Result<Self::Answer>, bool);

    /// Says in an error what the caller that gave this `tag` was about.
    fn about(&self, e: Error, tag: u32) -> Error;
}

/// A line that was not written to for so long is looked at first: the server may have closed it, and a
/// message written to it would be neither stored nor known not to be.
const IDLE_MS: u64 = 5;

/// Past this many bytes a queue's buffer is given back after use.
const KEPT_BYTES: usize = 1024 * 1024;

pub(super) struct Line<F: Far> {
    far: F,
    state: Mutex<State<F::Answer>>,
    /// Locked by nobody but the reader.
    reading: Mutex<Reading<F::Answer>>,
    /// How many callers have what they waited for and have not left yet, most of them because they have
    /// not run since. A hint, no more.
    leaving: AtomicU32,
}

/// What the reader works with.
struct Reading<A> {
    inbox: Inbox,
    /// Whom to wake once the lock of the state is free.
    told: Vec<Arc<Seat<A>>>,
}

/// One call over the line: what stays the same while its caller goes from role to role.
struct Call<'a, A> {
    seat: &'a Arc<Seat<A>>,
    tag: u32,
    by: Deadline,
}

type Guard<'a, A> = MutexGuard<'a, State<A>>;

impl<F: Far> Line<F> {
    pub(super) fn new(far: F) -> Self {
        Self {
            far,
            state: Mutex::new(State::new()),
            reading: Mutex::new(Reading {
                inbox: Inbox::default(),
                told: Vec::with_capacity(16),
            }),
            leaving: AtomicU32::new(0),
        }
    }

    pub(super) fn far(&self) -> &F {
        &self.far
    }

    /// Whether it takes no further call.
    pub(super) fn is_over(&self) -> bool {
        !matches!(self.state.lock().standing, Standing::Open)
    }

    /// Sends a command and waits for its answer. `None` when the line takes no further call.
    ///
    /// # Errors
    ///
    /// As [`Far::answer`] has them; or the line came to its end, or `by` has passed. Then the outcome is
    /// [`NotApplied`](Outcome::NotApplied) when the command did not go out whole, for a server does not
    /// run a command that it has only a part of.
    pub(super) fn call(
        &self,
        seat: &Arc<Seat<F::Answer>>,
        command: &[u8],
        tag: u32,
        by: Deadline,
    ) -> Option<Result<F::Answer>> {
        let mut s = self.state.lock();
        if !matches!(s.standing, Standing::Open) {
            return None;
        }
        let call = Call { seat, tag, by };
        let look = s.tickets.is_empty() && s.end_rest() > IDLE_MS;
        s.queued += command.len() as u64;
        let end = s.queued;
        s.tickets.push_back(Ticket {
            end,
            tag,
            seat: Some(Arc::clone(seat)),
        });
        if s.has_writer {
            s.queue.extend_from_slice(command);
        } else if self.leaving.load(Ordering::Relaxed) > 0 {
            // Others are about to go on, and likely to come back with more: one write for all of them
            // is a write less for each, and a wake-up less for the server.
            s.has_writer = true;
            s.queue.extend_from_slice(command);
            drop(s);
            sync::pause();
            s = self.write_queue(self.state.lock(), &call);
        } else {
            s.has_writer = true;
            s = self.write(s, command, by, look);
            s = self.write_queue(s, &call);
        }
        let answer = self.settle(s, &call);
        self.leaving.fetch_sub(1, Ordering::Relaxed);
        Some(answer)
    }

    /// As the writer, writes what is next in line. Looks whether the far end is still there when told to.
    /// When that fails the line is dead.
    fn write<'a>(
        &'a self,
        mut s: Guard<'a, F::Answer>,
        bytes: &[u8],
        by: Deadline,
        look: bool,
    ) -> Guard<'a, F::Answer> {
        s.begun += bytes.len() as u64;
        drop(s);
        let there = if look { self.far.check_idle() } else { Ok(()) };
        let there = there.map_err(|e| (0, e));
        let sent = there.and_then(|()| self.far.send(bytes, by.wait()));
        let mut s = self.state.lock();
        let taken = sent.as_ref().map_or_else(|(n, _)| *n, |()| bytes.len());
        s.written += taken as u64;
        if let Err((_, e)) = sent {
            // what was not taken is under way no more
            s.begun = s.written;
            self.end(&mut s, e);
        } else if s.is_dead() {
            // The reader has found the end of the line meanwhile, and left what was being written to us.
            self.tell_of_the_end(&mut s);
        }
        s
    }

    /// As the writer, goes on with what was queued meanwhile until nothing is left, or until the caller
    /// has no more to wait for and another can take over.
    fn write_queue<'a>(
        &'a self,
        mut s: Guard<'a, F::Answer>,
        call: &Call<'_, F::Answer>,
    ) -> Guard<'a, F::Answer> {
        while !s.queue.is_empty() {
            if (call.seat.is_told() || call.by.left().is_zero())
                && let Some(next) = s.parked_in_queue()
            {
                next.tell(Word::Write);
                next.bell.notify_one();
                return s;
            }
            let spare = mem::take(&mut s.spare);
            let mut bytes = mem::replace(&mut s.queue, spare);
            s = self.write(s, &bytes, call.by, false);
            bytes.clear();
            if bytes.capacity() <= KEPT_BYTES {
                s.spare = bytes;
            }
        }
        s.has_writer = false;
        s
    }

    /// Waits for the answer, in whatever role is left to do.
    fn settle<'a>(
        &'a self,
        mut s: Guard<'a, F::Answer>,
        call: &Call<'_, F::Answer>,
    ) -> Result<F::Answer> {
        loop {
            if let Word::Done(answer) = call.seat.take() {
                return answer;
            }
            if !s.has_reader && !s.has_writer {
                s.has_reader = true;
                drop(s);
                return self.read(call);
            }
            call.seat.tell(Word::Parked);
            drop(s);
            let word = call.seat.wait(call.by);
            match word {
                Word::Done(answer) => return answer,
                Word::Read => return self.read(call),
                Word::Write => s = self.write_queue(self.state.lock(), call),
                Word::Busy => s = self.state.lock(),
                Word::Parked => return self.give_up_waiting(call),
            }
        }
    }

    /// A parked caller's deadline has passed; it may have been told something at the last moment.
    fn give_up_waiting(&self, call: &Call<'_, F::Answer>) -> Result<F::Answer> {
        let mut s = self.state.lock();
        let word = call.seat.take();
        if let Word::Done(answer) = word {
            return answer;
        }
        let outcome = s.abandon(call.seat, call.by);
        match word {
            Word::Write => s = self.write_queue(s, call),
            Word::Read => self.stop_reading(&mut s, call),
            Word::Busy | Word::Parked | Word::Done(_) => {}
        }
        drop(s);
        Err(self.late(call, outcome))
    }

    /// As the reader, receives until the caller's own answer is there, and then passes the role on.
    fn read(&self, call: &Call<'_, F::Answer>) -> Result<F::Answer> {
        let mut reading = self.reading.lock();
        loop {
            let got = match reading.inbox.room() {
                Ok(room) => self.far.receive(room, call.by.wait()),
                Err(e) => Err(e),
            };
            let mut s = self.state.lock();
            let mut mine = None;
            let failed = match got {
                Ok(None) => None,
                Ok(Some(n)) => {
                    reading.inbox.filled(n);
                    s.used_ms = clock::coarse_ms();
                    let done = self.deliver(&mut s, &mut reading, call.seat, &mut mine);
                    s.half_read = !reading.inbox.is_drained();
                    done.err()
                }
                Err(e) => Some(e),
            };
            if let Some(e) = failed {
                self.end(&mut s, e);
            }
            let Some(answer) = mine else {
                if !s.is_dead() && !call.by.left().is_zero() {
                    drop(s);
                    reading.wake();
                    continue;
                }
                reading.wake();
                drop(reading);
                if s.is_dead() {
                    // It was told, or its command is in the write under way.
                    return self.settle(s, call);
                }
                let outcome = s.abandon(call.seat, call.by);
                self.stop_reading(&mut s, call);
                drop(s);
                return Err(self.late(call, outcome));
            };
            let next = s.pass_reading();
            drop(s);
            reading.wake();
            drop(reading);
            if let Some(next) = next {
                next.bell.notify_one();
            }
            return answer;
        }
    }

    fn tell(&self, seat: &Seat<F::Answer>, answer: Result<F::Answer>) -> Word<F::Answer> {
        self.leaving.fetch_add(1, Ordering::Relaxed);
        seat.tell(Word::Done(answer))
    }

    /// Hands every answer that has arrived to the first in line; the reader's own goes to `mine`.
    fn deliver(
        &self,
        s: &mut State<F::Answer>,
        reading: &mut Reading<F::Answer>,
        reader: &Arc<Seat<F::Answer>>,
        mine: &mut Option<Result<F::Answer>>,
    ) -> Result<()> {
        while let Some(reply) = reading.inbox.take()? {
            let begun = s.begun;
            let Some(ticket) = s.tickets.pop_front_if(|t| t.end <= begun) else {
                return Err(unasked());
            };
            let Some(seat) = ticket.seat else {
                continue;
            };
            let text = reading.inbox.bytes_of(reply);
            let (answer, is_last) = self.far.answer(reply, text, ticket.tag);
            let error = answer.as_ref().err();
            // whose the next one is would be anybody's guess
            let out_of_step = error.filter(|e| e.kind() == ErrorKind::Protocol);
            let out_of_step = out_of_step.map(Error::again);
            if is_last {
                s.close();
            }
            if Arc::ptr_eq(&seat, reader) {
                self.leaving.fetch_add(1, Ordering::Relaxed);
                *mine = Some(answer);
            } else {
                let before = self.tell(&seat, answer);
                debug_assert!(
                    !matches!(before, Word::Read | Word::Write),
                    "a role is lost"
                );
                reading.told.push(seat);
            }
            if let Some(e) = out_of_step {
                return Err(e);
            }
        }
        if s.tickets.is_empty() && !reading.inbox.is_drained() {
            return Err(unasked());
        }
        Ok(())
    }

    /// The reader has left without an answer.
    fn stop_reading(&self, s: &mut State<F::Answer>, call: &Call<'_, F::Answer>) {
        if let Some(next) = s.pass_reading() {
            next.bell.notify_one();
        }
        // Nobody waits any more? What said nothing all the time, or stopped in mid-word, is not worth
        // keeping; what is merely slow is.
        let is_silent = call.by.is_mostly_after(s.used_ms);
        let is_empty = s.tickets.iter().all(|t| t.seat.is_none());
        if is_empty && !s.is_dead() && (s.half_read || is_silent) {
            let e = self.far.give_up(call.by.allowed());
            self.end(s, e);
        }
    }

    #[cold]
    fn late(&self, call: &Call<'_, F::Answer>, outcome: Outcome) -> Error {
        self.leaving.fetch_add(1, Ordering::Relaxed);
        let what = format!("no answer within {} ms", clock::ceil_ms(call.by.allowed()));
        let e = Error::new(ErrorKind::Timeout, "publish", what);
        self.far.about(e.with_outcome(outcome), call.tag)
    }

    /// The line has come to its end; the first reason stays.
    fn end(&self, s: &mut State<F::Answer>, why: Error) {
        if !s.is_dead() {
            s.standing = Standing::Dead(why);
            // so that nobody goes on waiting for it
            self.far.shut();
        }
        self.tell_of_the_end(s);
    }

    /// Tells everybody in line, but for those whose commands are in the write under way: how far it got
    /// is for the writer to say.
    fn tell_of_the_end(&self, s: &mut State<F::Answer>) {
        let under_way = s.written..s.begun;
        let Standing::Dead(why) = &s.standing else {
            return;
        };
        s.tickets.retain_mut(|t| {
            if under_way.contains(&(t.end - 1)) {
                return true;
            }
            let outcome = if t.end <= s.written {
                Outcome::Unknown
            } else {
                Outcome::NotApplied
            };
            if let Some(seat) = t.seat.take() {
                let e = self.far.about(why.again().with_outcome(outcome), t.tag);
                self.tell(&seat, Err(e)); // a role that it was given is of no use any more
                seat.bell.notify_one();
            }
            false
        });
        s.queue.clear();
    }
}

impl<A> Reading<A> {
    fn wake(&mut self) {
        for seat in self.told.drain(..) {
            seat.bell.notify_one();
        }
    }
}

fn unasked() -> Error {
    let what = "the server said something that nobody asked for";
    Error::new(ErrorKind::Protocol, "publish", what)
}

impl<F: Far> fmt::Debug for Line<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").finish_non_exhaustive()
    }
}

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod tests;
