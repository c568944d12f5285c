//! Who is in line, and what is to be sent: everything about a line but its bytes on the way.

use std::{collections::VecDeque, sync::Arc};

use crate::{Error, Outcome, clock, net::Deadline};

use super::seat::{Seat, Word};

pub(super) struct State<A> {
    /// Commands that were queued while another was being written.
    pub(super) queue: Vec<u8>,
    /// The buffer that takes turns with the queue.
    pub(super) spare: Vec<u8>,
    /// Where commands end, counted in bytes since the line began: the last in the queue; the last that
    /// was given to a write; the last byte the kernel has taken.
    pub(super) queued: u64,
    pub(super) begun: u64,
    pub(super) written: u64,
    /// In the order of their commands.
    pub(super) tickets: VecDeque<Ticket<A>>,
    pub(super) has_writer: bool,
    pub(super) has_reader: bool,
    /// When anything was last received, or asked after a rest, on the coarse clock.
    pub(super) used_ms: u64,
    /// Whether part of an answer has arrived.
    pub(super) half_read: bool,
    pub(super) standing: Standing,
}

/// Room for what some threads queue during one write.
const QUEUE: usize = 8 * 1024;

/// How a line stands.
pub(super) enum Standing {
    Open,
    /// What is on its way is waited for, but nothing more is taken.
    Closing,
    /// Everybody in line has been told why.
    Dead(Error),
}

pub(super) struct Ticket<A> {
    /// Where its command ends.
    pub(super) end: u64,
    pub(super) tag: u32,
    /// None when its caller has given up.
    pub(super) seat: Option<Arc<Seat<A>>>,
}

impl<A> State<A> {
    pub(super) fn new() -> Self {
        Self {
            queue: Vec::with_capacity(QUEUE),
            spare: Vec::with_capacity(QUEUE),
            queued: 0,
            begun: 0,
            written: 0,
            tickets: VecDeque::with_capacity(16),
            has_writer: false,
            has_reader: false,
            used_ms: clock::coarse_ms(),
            half_read: false,
            standing: Standing::Open,
        }
    }

    pub(super) fn is_dead(&self) -> bool {
        matches!(self.standing, Standing::Dead(_))
    }

    /// Lets nobody else come.
    pub(super) fn close(&mut self) {
        if matches!(self.standing, Standing::Open) {
            self.standing = Standing::Closing;
        }
    }

    /// Something is asked after a rest. Returns how long that was.
    pub(super) fn end_rest(&mut self) -> u64 {
        let now = clock::coarse_ms();
        let rest = now.saturating_sub(self.used_ms);
        self.used_ms = now;
        rest
    }

    /// A caller that does nothing but wait, and will not be told anything else before its command in the
    /// queue is written.
    pub(super) fn parked_in_queue(&self) -> Option<Arc<Seat<A>>> {
        let queued = self.tickets.iter().rev().take_while(|t| t.end > self.begun);
        let mut seats = queued.filter_map(|t| t.seat.as_ref());
        seats.find(|seat| seat.is_parked()).cloned()
    }

    /// Gives the reader's role to the first that waits for an answer. It is to be woken.
    pub(super) fn pass_reading(&mut self) -> Option<Arc<Seat<A>>> {
        self.has_reader = false;
        let sent = self.tickets.iter().take_while(|t| t.end <= self.begun);
        let mut seats = sent.filter_map(|t| t.seat.as_ref());
        let next = seats.find(|seat| seat.is_parked()).cloned()?;
        next.tell(Word::Read);
        self.has_reader = true;
        Some(next)
    }

    /// Takes a caller that has waited in vain out of the line: its command, when that has not gone out yet,
    /// else only its name. Where nothing was said in most of its time nobody else should come.
    pub(super) fn abandon(&mut self, seat: &Arc<Seat<A>>, by: Deadline) -> Outcome {
        if by.is_mostly_after(self.used_ms) {
            self.close();
        }
        let is_its = |t: &Ticket<A>| t.seat.as_ref().is_some_and(|s| Arc::ptr_eq(s, seat));
        let Some(at) = self.tickets.iter().position(is_its) else {
            return Outcome::Unknown;
        };
        let end = self.tickets[at].end;
        if end <= self.begun {
            self.tickets[at].seat = None;
            return Outcome::Unknown;
        }
        let before = at.checked_sub(1).map_or(0, |b| self.tickets[b].end);
        let start = before.max(self.begun);
        let place = |offset| (offset - self.begun) as usize;
        self.queue.drain(place(start)..place(end));
        self.tickets.remove(at);
        self.queued -= end - start;
        for later in self.tickets.iter_mut().skip(at) {
            later.end -= end - start;
        }
        Outcome::NotApplied
    }
}
