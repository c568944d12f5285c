//! Delayed messages: into their bucket, and out of it.

use std::{mem, slice, sync::Arc};

use crate::{
    Result,
    error::Outcome,
    net::{Deadline, resp::Head, script::by_hash_first},
};

use super::{
    super::{
        Delayed, Encoder, Outgoing,
        delayed::{Kept, When},
    },
    KEPT_BYTES, Link, error_of, is_over,
};

impl Link {
    /// Has the server keep a message until it is due, within `by`.
    pub(in crate::publish) fn delay(
        &mut self,
        m: &Outgoing<'_>,
        when: When,
        by: Deadline,
    ) -> Result<Delayed> {
        let delayed = if self.plan.trace.has_spans() {
            let plan = Arc::clone(&self.plan);
            plan.under_span(slice::from_ref(m), || self.try_delay(m, when, by), error_of)
        } else {
            self.try_delay(m, when, by)
        };
        self.rest();
        delayed.inspect_err(|e| self.plan.counts.failed(e))
    }

    fn try_delay(&mut self, m: &Outgoing<'_>, when: When, by: Deadline) -> Result<Delayed> {
        let when = when.encode().map_err(|e| self.plan.about(e))?;
        let mut packing = mem::take(&mut self.packing);
        let (entry, dedupe) = self.plan.entry_once(m, &mut packing)?;
        let encoder = self.make_ready(by)?;
        let partition = encoder.route(m, || encoder.turn())?;
        let kept = Kept {
            entry: &entry,
            dedupe,
            partition,
            when,
        };
        let mut room = mem::take(&mut self.item);
        let delayed = by_hash_first(|form| {
            self.out.clear();
            encoder.schedule(&mut self.out, &mut room, kept, form);
            self.ask(&encoder, partition, by, Encoder::scheduled)
        });
        if room.capacity() <= KEPT_BYTES {
            self.item = room;
        }
        self.packing = packing;
        delayed.inspect_err(|e| {
            if is_over(e) {
                self.hang_up();
            }
        })
    }

    /// Takes a message out of its bucket, if it is there.
    pub(in crate::publish) fn cancel(&mut self, delayed: &Delayed, by: Deadline) -> Result<bool> {
        let withdrawn = self.try_cancel(delayed, by);
        self.rest();
        withdrawn.map_err(|e| e.during("cancel"))
    }

    fn try_cancel(&mut self, delayed: &Delayed, by: Deadline) -> Result<bool> {
        let encoder = self.make_ready(by)?;
        let partition = encoder.check(delayed.partition())?;
        let withdrawn = by_hash_first(|form| {
            self.out.clear();
            encoder.withdraw(&mut self.out, delayed, form);
            self.ask(&encoder, partition, by, Encoder::withdrawn)
        });
        withdrawn.inspect_err(|e| {
            if is_over(e) {
                self.hang_up();
            }
        })
    }

    /// Sends what is in the buffer, one command, and takes its reply.
    fn ask<T>(
        &mut self,
        encoder: &Encoder,
        partition: u32,
        by: Deadline,
        read: fn(&Encoder, Head, &[u8], u32) -> Result<T>,
    ) -> Result<T> {
        // The server does not run a command it has only a part of.
        self.send(by)
            .map_err(|e| encoder.about(e.with_outcome(Outcome::NotApplied), partition))?;
        let (head, text) = self
            .receive_raw(by)
            .map_err(|e| encoder.about(e.with_outcome(Outcome::Unknown), partition))?;
        read(encoder, head, text, partition)
    }
}
