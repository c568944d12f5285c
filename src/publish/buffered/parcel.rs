//! A message that waits: copied once, into the bytes that will be sent. The buffers go round.

use std::fmt;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::{
    Result, StreamId, clock,
    net::resp::{Cursor, Span},
    wire::{Field, Headers, hash_of},
};

use super::super::{Encoder, Outgoing, Packing, PublishPlan, encoder::fields};

/// What of a message decides its partition.
#[derive(Clone, Copy, Debug)]
enum Route {
    Partition(u32),
    /// The hash of its key: the topic may not be known yet.
    Key(u64),
    /// It takes its turn.
    Turn,
}

/// A message that waits. Reused.
#[derive(Debug)]
pub(super) struct Parcel {
    /// The fields of its entry as arguments of a command.
    fields: Vec<u8>,
    pairs: usize,
    /// The bytes of its body.
    body: usize,
    route: Route,
    /// When it was queued, on the coarse clock.
    queued_ms: u64,
    /// How often the connection broke while it was being sent.
    pub(super) broken_sends: u32,
    packing: Packing,
    receipt: Option<Sender<Result<StreamId>>>,
}

/// What a field takes at most beside its value: its name, and the marks of both.
const AROUND_PAIR: usize = 32;

/// How it goes from hand to hand: one pointer.
pub(super) type BoxedParcel = Box<Parcel>;

impl Parcel {
    pub(super) fn new() -> Box<Self> {
        Box::new(Self {
            fields: Vec::new(),
            pairs: 0,
            body: 0,
            route: Route::Turn,
            queued_ms: 0,
            broken_sends: 0,
            packing: Packing::default(),
            receipt: None,
        })
    }

    /// Copies a message. Everything that can be refused before a server is asked is refused here.
    pub(super) fn fill(
        &mut self,
        plan: &PublishPlan,
        m: &Outgoing<'_>,
        receipt: Option<Sender<Result<StreamId>>>,
    ) -> Result<()> {
        let entry = plan.entry(m, &mut self.packing)?;
        self.fields.clear();
        let around = entry.pair_count() * AROUND_PAIR;
        self.fields.reserve(entry.size() + around);
        fields(&mut self.fields, &entry);
        self.pairs = entry.pair_count();
        self.body = entry.body.len();
        self.route = match m.partition {
            Some(p) => Route::Partition(p),
            None if m.key.is_empty() => Route::Turn,
            None => Route::Key(hash_of(m.key)),
        };
        self.queued_ms = clock::coarse_ms();
        self.broken_sends = 0;
        self.receipt = receipt;
        Ok(())
    }

    /// Its partition.
    pub(super) fn partition(&self, encoder: &Encoder) -> Result<u32> {
        match self.route {
            Route::Partition(p) => encoder.check(p),
            Route::Key(hash) => Ok(encoder.of_hash(hash)),
            Route::Turn => Ok(encoder.turn()),
        }
    }

    /// Adds the command that appends it to its partition.
    pub(super) fn write(&self, out: &mut Vec<u8>, encoder: &Encoder, partition: u32) {
        if encoder.payloads().takes(self.body) {
            let mut c = Cursor::new(&self.fields, 0);
            // the name of the first field, which is the body, and then the body
            let mut end = || c.text().map_or(0, |_| c.at());
            let (start, end) = (end(), end());
            let parts = (&self.fields[start..end], &self.fields[end..]);
            return encoder.append_written(out, self.body, parts, self.pairs, partition);
        }
        encoder.head(out, self.pairs, partition);
        out.extend_from_slice(&self.fields);
    }

    /// The bytes of its fields.
    pub(super) fn len(&self) -> usize {
        self.fields.len()
    }

    /// How long it has been queued, in milliseconds.
    pub(super) fn age_ms(&self) -> u64 {
        clock::coarse_ms().saturating_sub(self.queued_ms)
    }

    /// Tells whoever awaits its result. Only the first time counts.
    pub(super) fn tell(&mut self, result: impl FnOnce() -> Result<StreamId>) {
        if let Some(receipt) = self.receipt.take() {
            // nobody may be waiting any more
            let _ = receipt.try_send(result());
        }
    }

    fn kept(&self) -> usize {
        self.fields.capacity() + self.packing.capacity()
    }
}

/// Empty parcels. They keep their memory as long as it is little, so that a burst of large messages is
/// not paid for ever after.
#[derive(Debug)]
pub(super) struct Pool {
    put: Sender<BoxedParcel>,
    take: Receiver<BoxedParcel>,
}

/// About the most that empty parcels keep.
const POOL_BYTES: usize = 16 << 20;

impl Pool {
    pub(super) fn new(parcels: usize) -> Self {
        let (put, take) = bounded(parcels);
        Self { put, take }
    }

    pub(super) fn take(&self) -> BoxedParcel {
        self.take.try_recv().unwrap_or_else(|_| Parcel::new())
    }

    pub(super) fn put(&self, parcel: BoxedParcel) {
        // as if all were of this size, which costs no counter that threads fight over
        if self.put.len().saturating_mul(parcel.kept()) <= POOL_BYTES {
            let _ = self.put.try_send(parcel);
        }
    }
}

/// A message that a [`BufferedPublisher`](crate::BufferedPublisher) gives back: it is certainly not
/// stored.
pub struct Undelivered(pub(super) BoxedParcel);

impl Undelivered {
    /// The message as it was given, to be published or enqueued again. A trace context that was asked
    /// for when it was enqueued is part of it.
    pub fn message(&self) -> Outgoing<'_> {
        let mut m = Outgoing::default();
        let bytes = &self.0.fields;
        let mut c = Cursor::new(bytes, 0);
        let text = |span: Span| span.of(bytes);
        while let (Ok(Some(name)), Ok(Some(value))) = (c.text(), c.text()) {
            let value = text(value);
            match Field::of(text(name)) {
                Field::Body => m.body = value,
                Field::Type => m.message_type = value,
                Field::Key => m.key = value,
                Field::CorrelationId => m.correlation_id = value,
                Field::Traceparent => m.traceparent = Some(value),
                Field::Headers => m.headers.extend(Headers::new(value).iter().flatten()),
                Field::Reference | Field::Other => {}
            }
        }
        if let Route::Partition(p) = self.0.route {
            m.partition = Some(p);
        }
        m
    }
}

impl fmt::Debug for Undelivered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Undelivered").field(&self.message()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn empty_parcels_are_kept_but_not_their_bulk() {
        let pool = Pool::new(100);
        let of = |bytes| {
            let mut parcel = Parcel::new();
            parcel.fields.reserve_exact(bytes);
            parcel
        };
        (0..50).for_each(|_| pool.put(of(1000)));
        assert_eq!(pool.put.len(), 50);
        (0..50).for_each(|_| pool.put(of(1 << 20)));
        assert_eq!(pool.put.len(), 50, "with so many, none so large");
        (0..60).for_each(|_| pool.put(of(10)));
        assert_eq!(pool.put.len(), 100);
        (0..100).for_each(|_| assert!(pool.take().kept() > 0));
        assert_eq!(pool.take().kept(), 0, "a new one");
        (0..50).for_each(|_| pool.put(of(1 << 20)));
        assert!((10..=20).contains(&pool.put.len()), "{}", pool.put.len());
    }
}
