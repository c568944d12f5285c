//! The publisher that threads share.

use std::{cell::Cell, fmt, slice, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};

use crate::{
    Error, ErrorKind, Outcome, Result, StreamId,
    net::{Connection, Deadline, Duplex, resp::Head},
    publish::message::Publish,
};

use super::{
    DedicatedPublisher, Delayed, Draft, Encoder, Outgoing, Packing, PublishPlan, Published,
    delayed::When,
    line::{Far, Line, Seat},
    link::{Link, error_of, is_over},
};

/// Publishes to one topic, from any number of threads.
///
/// Cheap to clone. Calls block until the server has answered, within the deadline of
/// `PublishTimeoutMs` (5 s by default), waiting for one another included.
///
/// Messages of all threads share one connection, in both directions at once: while one thread waits for
/// its answer others write, and whoever waits first takes the answers in for all. A thread that publishes
/// alone goes straight to the socket. Batches, messages above 64 KiB or `PayloadInlineMax` (key and type
/// included) and those with a dedupe id or a delay take turns on a second connection, made when it is first
/// needed.
#[derive(Clone)]
pub struct Publisher {
    shared: Arc<Shared>,
}

struct Shared {
    plan: Arc<PublishPlan>,
    /// Messages of more bytes are not for the line.
    line_bytes: usize,
    /// The line in use, and what is known of the topic even while there is none.
    line: Mutex<Current>,
    /// Held by the one thread that dials; a connection over which the topic could not be made yet.
    dialling: Mutex<Option<Connection>>,
    /// What is not for the line.
    link: Mutex<Link>,
}

#[derive(Default)]
struct Current {
    line: Option<Arc<Line<Server>>>,
    encoder: Option<Arc<Encoder>>,
}

/// What more than so many bytes would take too long to write while others wait.
const LINE_BYTES: usize = 64 * 1024;

impl Publisher {
    pub(crate) fn new(plan: PublishPlan) -> Self {
        let plan = Arc::new(plan);
        Self {
            shared: Arc::new(Shared {
                link: Mutex::new(Link::new(Arc::clone(&plan))),
                line_bytes: LINE_BYTES.min(plan.settings.most_inline()),
                plan,
                line: Mutex::default(),
                dialling: Mutex::default(),
            }),
        }
    }

    pub(super) fn plan(&self) -> &PublishPlan {
        &self.shared.plan
    }

    /// The topic it publishes to.
    pub fn topic(&self) -> &str {
        &self.shared.plan.topic
    }

    /// Appends one message to its topic and returns the id the server gave it. Messages with equal keys
    /// go to one partition, in the order in which calls return; messages with an empty key take the
    /// partitions in turn.
    ///
    /// The type may be empty here, as peers have it; a [buffered](crate::BufferedPublisher) publisher
    /// refuses that.
    ///
    /// Blocks for one round trip, and for connecting and creating the topic when it is the first. While
    /// the server is down it waits for it within the same deadline. Nothing is sent twice.
    ///
    /// # Errors
    ///
    /// [`Error::outcome`] tells whether the message was stored:
    /// [`NotApplied`](crate::Outcome::NotApplied) when it was refused, too large, or could not be sent;
    /// [`Unknown`](crate::Outcome::Unknown) when the answer was lost. After an unknown outcome the
    /// message may be stored already, or may yet land behind the next one; publishing it again may
    /// store it twice, unless it has a [dedupe id](Draft::dedupe).
    pub fn publish(
        &self,
        key: impl AsRef<[u8]>,
        message_type: impl AsRef<[u8]>,
        body: impl AsRef<[u8]>,
    ) -> Result<StreamId> {
        let m = Outgoing::new(message_type.as_ref(), body.as_ref()).key(key.as_ref());
        Ok(self.send(&m)?.id)
    }

    /// Begins a message with options:
    ///
    /// ```no_run
    /// # fn main() -> Result<(), streamlane::Error> {
    /// # let publisher = streamlane::Streams::connect("redis://127.0.0.1:6379")?.publisher("orders")?;
    /// let id = publisher
    ///     .message("OrderPlaced", br#"{"id":1}"#)
    ///     .key("order-1")
    ///     .correlation_id("checkout-77")
    ///     .header("source", "web")
    ///     .publish()?;
    /// # drop(id);
    /// # Ok(()) }
    /// ```
    pub fn message<'a, T, B>(&'a self, message_type: &'a T, body: &'a B) -> Draft<'a, &'a Self>
    where
        T: AsRef<[u8]> + ?Sized,
        B: AsRef<[u8]> + ?Sized,
    {
        Draft {
            publisher: self,
            message: Outgoing::new(message_type, body),
        }
    }

    /// Publishes messages in one pipeline, in order, and returns one result for each. They are not
    /// stored all or nothing: each has its own result, and one that is too large fails alone. Those
    /// without a key go to one partition together. Memory stays bounded however many there are.
    ///
    /// Blocks for a round trip per 128 KiB or 512 messages, each within a deadline of its own. Batches of
    /// several threads take turns.
    #[must_use = "each message has a result of its own"]
    pub fn publish_batch(&self, messages: &[Outgoing<'_>]) -> Vec<Result<StreamId>> {
        let mut results = Vec::with_capacity(messages.len());
        self.publish_batch_into(messages, &mut results);
        results
    }

    /// As [`publish_batch`](Self::publish_batch), with results appended to a vector of yours: of ids, or
    /// of [`Published`] to learn as well which messages had been stored before under their dedupe ids.
    pub fn publish_batch_into<R: From<Published>>(
        &self,
        messages: &[Outgoing<'_>],
        results: &mut Vec<Result<R>>,
    ) {
        let plan = &*self.shared.plan;
        let by = Deadline::after(plan.timeout);
        match self.shared.link(by) {
            Ok(mut link) => link.publish_batch(messages, by, results),
            Err(e) => results.extend(messages.iter().map(|_| {
                plan.counts.failed(&e);
                Err(e.again())
            })),
        }
    }

    /// Withdraws a message that was scheduled on this topic, by whatever publisher or process: true when it
    /// will never be published. False when it is not there any more: it was published, or withdrawn before.
    /// A message that was withdrawn leaves nothing behind but the marker of its dedupe id, if it has one.
    ///
    /// Blocks as a message with a delay does.
    ///
    /// # Errors
    ///
    /// [`Argument`](ErrorKind::Argument) where the topic has no such partition, as far as is known here; else
    /// the server refused or could not be reached. After an unknown outcome ask again; false may then mean
    /// that the first call has withdrawn it.
    pub fn cancel(&self, delayed: &Delayed) -> Result<bool> {
        let by = Deadline::after(self.shared.plan.timeout);
        let link = self.shared.link(by);
        let mut link = link.map_err(|e| e.during("cancel"))?;
        link.cancel(delayed, by)
    }

    /// A publisher on a socket of its own, for the hottest thread.
    pub fn dedicated(&self) -> DedicatedPublisher {
        DedicatedPublisher::new(Arc::clone(&self.shared.plan))
    }
}

impl Publish for &Publisher {
    fn send(self, message: &Outgoing<'_>) -> Result<Published> {
        let shared = &*self.shared;
        let by = Deadline::after(shared.plan.timeout);
        if message.size() > shared.line_bytes || message.dedupe.is_some() {
            let link = shared.link(by);
            let mut link = link.inspect_err(|e| shared.plan.counts.failed(e))?;
            return link.publish(message, by);
        }
        let publish = || Desk::borrow(|desk| shared.publish(message, desk, by));
        let id = if shared.plan.trace.has_spans() {
            let message = slice::from_ref(message);
            shared.plan.under_span(message, publish, error_of)
        } else {
            publish()
        };
        id.map(Published::new)
            .inspect_err(|e| shared.plan.counts.failed(e))
    }

    fn delay(self, message: &Outgoing<'_>, when: When) -> Result<Delayed> {
        let shared = &*self.shared;
        let by = Deadline::after(shared.plan.timeout);
        let link = shared.link(by);
        let mut link = link.inspect_err(|e| shared.plan.counts.failed(e))?;
        link.delay(message, when, by)
    }
}

impl Shared {
    fn publish(&self, m: &Outgoing<'_>, desk: &mut Desk, by: Deadline) -> Result<StreamId> {
        let Desk {
            seat,
            packing,
            command,
        } = desk;
        let entry = self.plan.entry(m, packing)?;
        let mut again = true;
        loop {
            let line = self.line(by)?;
            let encoder = &*line.far().encoder;
            let p = encoder.route(m, || encoder.turn())?;
            command.clear();
            encoder.xadd(command, &entry, p);
            let id = line.call(seat, command, p, by);
            if !matches!(id, Some(Ok(_))) && line.is_over() {
                self.part_with(&line);
            }
            match id {
                // Nothing went out over a line that was cut since the last call: it is sent over the
                // next one.
                None => {}
                Some(Err(e)) if again && never_left(&e) && !by.left().is_zero() => again = false,
                Some(id) => return id.inspect(|id| self.plan.trace.stored(p, *id)),
            }
        }
    }

    /// A line that has come to its end makes room for the next.
    #[cold]
    fn part_with(&self, line: &Arc<Line<Server>>) {
        self.line.lock().line.take_if(|l| Arc::ptr_eq(l, line));
    }

    /// The line to publish over.
    fn line(&self, by: Deadline) -> Result<Arc<Line<Server>>> {
        // A topic that has grown is published to over a line that knows it.
        let fits = |line: &Arc<Line<Server>>| !self.plan.has_outgrown(&line.far().encoder);
        let in_use = || self.line.lock().line.clone().filter(fits);
        if let Some(line) = in_use() {
            return Ok(line);
        }
        let turn = self.dialling.try_lock_for(by.left());
        let mut spare = turn.ok_or_else(|| self.late(by))?;
        if let Some(line) = in_use() {
            return Ok(line);
        }
        let kept = spare
            .take()
            .and_then(|mut c| c.check_idle().is_ok().then_some(c));
        let mut connection = kept.map_or_else(|| self.plan.dial(by), Ok)?;
        let known = self.line.lock().encoder.clone();
        let encoder = match known {
            Some(mut encoder) => {
                self.plan.keep_up(&mut encoder);
                encoder
            }
            None => match self.plan.ensure(&mut connection, by) {
                Ok(encoder) => encoder,
                // It is not remembered: the next call tries again.
                Err(e) => {
                    *spare = Some(connection).filter(|_| !is_over(&e));
                    return Err(e);
                }
            },
        };
        let line = Arc::new(Line::new(Server {
            connection: Duplex::of(connection),
            encoder: Arc::clone(&encoder),
        }));
        *self.line.lock() = Current {
            line: Some(Arc::clone(&line)),
            encoder: Some(encoder),
        };
        Ok(line)
    }

    fn link(&self, by: Deadline) -> Result<MutexGuard<'_, Link>> {
        self.link
            .try_lock_for(by.left())
            .ok_or_else(|| self.late(by))
    }

    #[cold]
    fn late(&self, by: Deadline) -> Error {
        let ms = by.allowed().as_millis();
        let what = format!("waited {ms} ms for other callers of this publisher");
        self.plan
            .about(Error::new(ErrorKind::Timeout, "publish", what))
    }
}

/// Whether a message can be sent over another connection without a risk.
fn never_left(e: &Error) -> bool {
    e.outcome() == Outcome::NotApplied && e.kind() != ErrorKind::Server
}

thread_local! {
    static DESK: Cell<Option<Box<Desk>>> = const { Cell::new(None) };
}

/// What a thread needs to publish: its place in line, and where it writes its commands.
#[derive(Default)]
struct Desk {
    seat: Arc<Seat<StreamId>>,
    packing: Packing,
    command: Vec<u8>,
}

impl Desk {
    /// Takes the thread's desk for one call. A call within another finds none and has a new one, and so
    /// does a thread that is ending.
    fn borrow<R>(call: impl FnOnce(&mut Self) -> R) -> R {
        let desk = DESK.try_with(Cell::take);
        let mut desk = desk.ok().flatten().unwrap_or_default();
        let result = call(&mut desk);
        let _ = DESK.try_with(|place| place.set(Some(desk)));
        result
    }
}

/// A connection to a topic that exists.
struct Server {
    connection: Duplex,
    encoder: Arc<Encoder>,
}

impl Far for Server {
    type Answer = StreamId;

    fn send(&self, bytes: &[u8], timeout: Duration) -> Result<(), (usize, Error)> {
        self.connection.send(bytes, timeout)
    }

    fn receive(&self, buf: &mut [u8], timeout: Duration) -> Result<Option<usize>> {
        self.connection.recv(buf, timeout)
    }

    fn check_idle(&self) -> Result<()> {
        self.connection.check_idle()
    }

    fn give_up(&self, timeout: Duration) -> Error {
        self.connection.give_up(timeout)
    }

    fn shut(&self) {
        self.connection.shutdown();
    }

    fn answer(&self, reply: Head, text: &[u8], partition: u32) -> (Result<StreamId>, bool) {
        let id = self.encoder.id(reply, text, partition);
        let is_last = id.as_ref().is_err_and(is_over);
        (id, is_last)
    }

    fn about(&self, e: Error, partition: u32) -> Error {
        self.encoder.about(e, partition)
    }
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = &*self.shared.plan;
        f.debug_struct("Publisher")
            .field("topic", &plan.topic)
            .field("endpoint", &plan.target.endpoint())
            .finish_non_exhaustive()
    }
}
