//! Forwarding: from an ordered source into a topic, exactly once in effect.

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redis::Value;

use crate::{
    Message, Result, StreamId, clock,
    error::{Error, ErrorKind, Outcome},
    net::{
        Deadline, resp,
        script::{Form, Script, by_hash_first},
    },
    quiet::{HeldBack, Quiet},
};

use super::{
    Encoder, Outgoing, Packing, PublishPlan,
    link::{Link, is_over},
    once::{check_marker, check_ttl},
    payload::KeptApart,
};

/// Publishes to a topic what comes of the messages of ordered sources, exactly once in effect: a message
/// that is handed over again, or to two instances at once, is forwarded once.
///
/// Made by [`Streams::forwarder`](crate::Streams::forwarder). Beside the target it keeps, for each
/// source, a *mark*: the position up to which the source was forwarded; and for each message a *marker*
/// under its dedupe id, for a while. Both are written in one step with the messages that are published,
/// all or nothing, so there is no moment to die in between. The mark settles what was forwarded long ago;
/// the marker also settles a message that turns up at another position, as when the source is made anew.
///
/// ```no_run
/// # fn main() -> Result<(), streamlane::Error> {
/// use streamlane::{Forwarding, HandlerResult, Message, OrAction, Outgoing, Source, Streams};
///
/// let streams = Streams::connect("redis://127.0.0.1:6379")?;
/// let shipping = streams.forwarder("shipping")?;
/// let consumer = streams
///     .consumer("orders")
///     .name("to-shipping")
///     .shared(move |m: &Message<'_>| -> HandlerResult {
///         let out = [Outgoing::new("Ship", m.body()).key(m.key().as_bytes())];
///         match shipping.forward(&Source::of(m), &out).or_block()? {
///             Forwarding::Forwarded(_) | Forwarding::AlreadyForwarded => Ok(()),
///             Forwarding::OutOfOrder { mark } => {
///                 // A person is to look at it, rather than that it is stepped over.
///                 Err(format!("{} came after {mark}, which was forwarded", m.id())).or_stop()
///             }
///         }
///     })
///     .start()?;
/// # drop(consumer);
/// # Ok(()) }
/// ```
///
/// What is forwarded are the messages given, so a large body is kept apart or not as the target's `ClaimCheck`
/// has it, wherever it came from, and lives for the target's `PayloadTtlSeconds`.
///
/// Cheap to clone; threads share one connection and take turns. Peers of other languages share marks and
/// markers.
#[derive(Clone)]
pub struct Forwarder {
    shared: Arc<Shared>,
    /// The hash of marks.
    marks: String,
    marker_ttl: Duration,
}

struct Shared {
    plan: Arc<PublishPlan>,
    desk: Mutex<Desk>,
    quiet: Mutex<Quiet>,
}

/// What one call needs at a time.
struct Desk {
    link: Link,
    packing: Packing,
}

/// Where something to be forwarded comes from: an ordered source, a position in it, and a dedupe id.
///
/// Sources must be in order: what lies at or below the mark counts as forwarded. A [queue](crate::Delivery) is
/// none, for there a message may come after one that was published later: what is read from one is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Source<'a> {
    name: Cow<'a, str>,
    position: StreamId,
    dedupe_id: Cow<'a, [u8]>,
    in_order: bool,
}

impl<'a> Source<'a> {
    /// The partition a message was read from by an ordered consumer, under the name
    /// `<topic>:<partition>/<consumer>`, at the message's id. The dedupe id is that name, `:` and the id. So
    /// two consumers that forward one topic, say with different filters, are two sources.
    pub fn of(message: &Message<'_>) -> Source<'static> {
        let (topic, partition) = (message.topic(), message.partition());
        let name = format!("{topic}:{partition}/{}", message.consumer());
        Source {
            in_order: message.is_in_order(),
            ..Source::in_order(name, message.id())
        }
    }

    /// A source of your own, which you know to be in order, by a name that nothing else forwarded to the
    /// target has. The dedupe id is `<name>:<position>`.
    pub fn in_order(name: impl Into<Cow<'a, str>>, position: StreamId) -> Self {
        let name = name.into();
        Self {
            dedupe_id: format!("{name}:{position}").into_bytes().into(),
            name,
            position,
            in_order: true,
        }
    }

    /// What the message is known by wherever it turns up, such as an event's own id: 1 to 1024 bytes,
    /// compared with all that is forwarded to the target and with the claims of
    /// [`Streams::idempotency`](crate::Streams::idempotency) of the target's name.
    #[must_use]
    pub fn dedupe_id(mut self, id: impl Into<Cow<'a, [u8]>>) -> Self {
        self.dedupe_id = id.into();
        self
    }
}

/// What became of what was to be forwarded.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "what came out of order was not forwarded"]
pub enum Forwarding {
    /// It was published now. The ids, in the order of the messages.
    Forwarded(Vec<StreamId>),
    /// It had been forwarded before, and nothing was published. If that was from a lower position, the
    /// mark has been moved up to this one.
    AlreadyForwarded,
    /// It lies below the mark and no marker of it is left, and nothing was published: either the source is
    /// not in order, and this message was never forwarded; or it was, longer ago than markers live. Also a
    /// warning in the log.
    OutOfOrder {
        /// How far its source had been forwarded.
        mark: StreamId,
    },
}

/// How long markers live unless set otherwise.
const MARKER_TTL: Duration = Duration::from_hours(7 * 24);

/// Whose marks they are unless set otherwise.
const NAME: &str = "forward";

/// Keys: the marks, the marker, the payload of each message whose body is kept apart, then the stream of each
/// message. Arguments: the source, the position, the milliseconds to keep the marker for, how many payloads
/// there are and how many milliseconds they live, the bodies, then for each message how many arguments follow,
/// and what follows the key in its XADD. Answers with a word for what happened, and ids.
///
/// Ids are compared as text, by the length of their halves first: numbers would lose their last digits. A
/// mark that is no id is below everything. Mark and marker are written before the messages, and each command
/// that takes something back is tried where there is nothing to take, so that whatever may be refused is
/// refused while nothing is published; a stream that takes no message (it is of another type, its ids are
/// used up) makes it all undone.
pub(super) const FORWARD: Script = Script {
    text: "#!lua
local function less(a, b)
    if #a ~= #b then return #a < #b end
    return a < b
end
local mark = redis.call('HGET', KEYS[1], ARGV[1])
local ms, seq = string.match(mark or '', '^0*(%d+)%-0*(%d+)$')
local at, nth = string.match(ARGV[2], '^(%d+)%-(%d+)$')
local seen = redis.call('EXISTS', KEYS[2]) == 1
if ms and not less(ms, at) and (ms ~= at or not less(seq, nth)) then
    if seen or (ms == at and seq == nth) then return {'already'} end
    return {'behind', mark}
end
local payloads = tonumber(ARGV[4])
if not seen then
    redis.call('DEL', KEYS[2])
    if not mark then redis.call('HDEL', KEYS[1], ARGV[1]) end
    if #KEYS > 3 + payloads then redis.call('XDEL', KEYS[3 + payloads], '0-0') end
    for k = 1, payloads do redis.call('SET', KEYS[2 + k], ARGV[5 + k], 'PX', ARGV[5]) end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
if seen then return {'already'} end
redis.call('SET', KEYS[2], '', 'PX', ARGV[3])
local done, i = {'forwarded'}, 6 + payloads
for k = 3 + payloads, #KEYS do
    local n = tonumber(ARGV[i])
    local id = redis.pcall('XADD', KEYS[k], unpack(ARGV, i + 1, i + n))
    if type(id) == 'table' then
        for d = 2, #done do redis.call('XDEL', KEYS[payloads + d + 1], done[d]) end
        redis.call('DEL', unpack(KEYS, 2, 2 + payloads))
        if mark then
            redis.call('HSET', KEYS[1], ARGV[1], mark)
        else
            redis.call('HDEL', KEYS[1], ARGV[1])
        end
        return id
    end
    done[#done + 1] = id
    i = i + n + 1
end
return done",
    sha1: "fd9626d1550421522680341d350a533869808963",
    commands: "+eval +evalsha +hget +hset +hdel +exists +set +del +xadd +xdel",
};

impl Forwarder {
    pub(crate) fn new(plan: PublishPlan) -> Result<Self> {
        if !plan.settings.co_locate_partitions {
            let what = format!(
                "topic {:?} has CoLocatePartitions false: marks are kept in one slot with all that is \
                 forwarded, so forward to a topic that is co-located",
                plan.topic
            );
            return Err(Error::config(what));
        }
        let plan = Arc::new(plan);
        Ok(Self {
            marks: marks(&plan, NAME),
            marker_ttl: MARKER_TTL,
            shared: Arc::new(Shared {
                desk: Mutex::new(Desk {
                    link: Link::new(Arc::clone(&plan)),
                    packing: Packing::default(),
                }),
                quiet: Mutex::default(),
                plan,
            }),
        })
    }

    /// Keeps its marks apart from those of other names: for two that forward the same source to the same
    /// topic for different reasons, which then also need [dedupe ids](Source::dedupe_id) of their own. The
    /// default is `forward`.
    ///
    /// # Errors
    ///
    /// A blank name.
    pub fn name(mut self, name: impl AsRef<str>) -> Result<Self> {
        let name = name.as_ref();
        if name.trim().is_empty() {
            return Err(Error::config("the name of a forwarder is blank"));
        }
        self.marks = marks(&self.shared.plan, name);
        Ok(self)
    }

    /// How long markers live: 7 days by default, at least 1 ms, rounded up to milliseconds. Longer than a
    /// message may take to come again at another position.
    ///
    /// # Errors
    ///
    /// A time out of range.
    pub fn marker_ttl(mut self, ttl: Duration) -> Result<Self> {
        check_ttl("forward", ttl)?;
        self.marker_ttl = ttl;
        Ok(self)
    }

    /// The topic it forwards to.
    pub fn topic(&self) -> &str {
        &self.shared.plan.topic
    }

    /// Publishes what comes of one message of a source, unless that was done before: all messages, the mark
    /// and the marker, or nothing. Keys, headers and partitions are those of the messages given; nothing is
    /// added.
    ///
    /// Blocks for one round trip, for the calls of other threads, and for connecting and creating the topic
    /// when it is the first; all within `PublishTimeoutMs` (5 s by default).
    ///
    /// # Errors
    ///
    /// No message, a message as for [`Publisher::publish`](crate::Publisher::publish), a blank source or
    /// dedupe id ([`ErrorKind::Argument`]); a refusal of the server, or an answer that was lost. After any
    /// error the same call may be made again: what was forwarded is not forwarded twice.
    pub fn forward(&self, source: &Source<'_>, messages: &[Outgoing<'_>]) -> Result<Forwarding> {
        let plan = &*self.shared.plan;
        let by = Deadline::after(plan.timeout);
        let forwarding = self.check(source, messages).and_then(|()| {
            let Some(mut desk) = self.shared.desk.try_lock_for(by.left()) else {
                let ms = by.allowed().as_millis();
                let what = format!("waited {ms} ms for other callers of this forwarder");
                return Err(Error::new(ErrorKind::Timeout, "forward", what));
            };
            let forwarding = desk.forward(self, source, messages, by);
            desk.link.rest();
            forwarding
        });
        match &forwarding {
            Ok(Forwarding::OutOfOrder { mark }) => self.warn(source, *mark),
            Ok(_) => {}
            Err(e) => messages.iter().for_each(|_| plan.counts.failed(e)),
        }
        forwarding.map_err(|e| {
            let what = format!(
                "{}, from {} at {}",
                e.message(),
                source.name,
                source.position
            );
            let e = match e.key() {
                Some(_) => e,
                None => e.on_key(&self.marks),
            };
            e.saying(what).during("forward").at(plan.target.endpoint())
        })
    }

    fn check(&self, source: &Source<'_>, messages: &[Outgoing<'_>]) -> Result<()> {
        let refused = |why| Err(Error::new(ErrorKind::Argument, "forward", why));
        if messages.is_empty() {
            return refused("there is nothing to forward: step over the message instead");
        }
        if !source.in_order {
            return refused(
                "the message was read from a queue (Delivery WorkQueue or LeasedQueue), where it may come after \
                 one that was published later, which would then count as forwarded: read the topic with Delivery \
                 Ordered, or publish with a dedupe id instead",
            );
        }
        if source.name.trim().is_empty() {
            return refused("the name of the source is blank");
        }
        check_marker("forward", &source.dedupe_id, self.marker_ttl)
    }

    #[cold]
    fn warn(&self, source: &Source<'_>, mark: StreamId) {
        let permit = self.shared.quiet.lock().permit();
        if let Some(held_back) = permit {
            log::warn!(
                "forwarding to topic {}: {} is at {}, which is below its mark {mark}, and was not forwarded \
                 of late: it was not forwarded now, for the source is out of order or this is a replay of \
                 what is older than its markers{}",
                self.topic(),
                source.name,
                source.position,
                HeldBack(held_back)
            );
        }
    }
}

fn marks(plan: &PublishPlan, name: &str) -> String {
    plan.keys.state(&plan.topic, &format!("{name}:high-water"))
}

impl Desk {
    fn forward(
        &mut self,
        forwarder: &Forwarder,
        source: &Source<'_>,
        messages: &[Outgoing<'_>],
        by: Deadline,
    ) -> Result<Forwarding> {
        let plan = &forwarder.shared.plan;
        // What can be refused before a server is asked.
        for m in messages {
            plan.entry(m, &mut self.packing)?;
        }
        let encoder = self.link.make_ready(by)?;
        let routes = messages
            .iter()
            .map(|m| encoder.route(m, || encoder.turn()))
            .collect::<Result<Vec<_>>>()?;
        let answer = by_hash_first(|form| {
            self.encode(forwarder, &encoder, form, source, messages, &routes)?;
            match self.exchange(by) {
                // Nothing went out over a connection that was cut since the last call.
                Err(e) if e.kind() == ErrorKind::Io && e.outcome() == Outcome::NotApplied => {
                    self.exchange(by)
                }
                done => done,
            }
        });
        let answer = answer.map_err(|e| {
            let prefixes = [
                &*plan.keys.dedupe(&plan.topic),
                &*forwarder.marks,
                &*plan.keys.payload(&plan.topic),
            ];
            let prefixes = &prefixes[..if plan.settings.claim_check { 3 } else { 2 }];
            FORWARD.saying_what_to_grant(e, prefixes)
        })?;
        let forwarding = judge(answer, messages.len())?;
        for p in &routes {
            match forwarding {
                Forwarding::Forwarded(_) => encoder.count(*p),
                Forwarding::AlreadyForwarded => encoder.count_repeated(),
                Forwarding::OutOfOrder { .. } => {}
            }
        }
        Ok(forwarding)
    }

    fn encode(
        &mut self,
        forwarder: &Forwarder,
        encoder: &Encoder,
        form: Form,
        source: &Source<'_>,
        messages: &[Outgoing<'_>],
        routes: &[u32],
    ) -> Result<()> {
        let plan = &forwarder.shared.plan;
        let (mut appends, mut payloads) = (Vec::new(), KeptApart::default());
        let mut args = 5;
        for (m, p) in messages.iter().zip(routes) {
            let entry = plan.entry(m, &mut self.packing)?;
            args += 1 + encoder.numbered(&mut appends, &mut payloads, &entry, *p);
        }
        let out = self.link.out();
        out.clear();
        let keys = 2 + payloads.n + messages.len();
        FORWARD.begin(out, form, keys, args + payloads.n);
        resp::arg(out, forwarder.marks.as_bytes());
        let prefix = plan.keys.dedupe(&plan.topic);
        resp::arg_joined(out, prefix.as_bytes(), &source.dedupe_id);
        out.extend_from_slice(&payloads.keys);
        for p in routes {
            resp::arg(out, encoder.stream(*p));
        }
        resp::arg(out, source.name.as_bytes());
        resp::arg(out, source.position.to_string().as_bytes());
        resp::arg_number(out, clock::ceil_ms(forwarder.marker_ttl));
        resp::arg_number(out, payloads.n as u64);
        resp::arg_number(out, encoder.payloads().ttl_ms());
        out.extend_from_slice(&payloads.bodies);
        out.extend_from_slice(&appends);
        Ok(())
    }

    /// Sends what is in the buffer, one command, and takes its answer.
    fn exchange(&mut self, by: Deadline) -> Result<Value> {
        let mut c = self.link.take_connection(by)?;
        // The server does not run a command it has only a part of.
        c.send(self.link.out(), by.wait())
            .map_err(|e| e.with_outcome(Outcome::NotApplied))?;
        let answer = c.answers(1, by.wait())?.remove(0);
        if !answer.as_ref().is_err_and(is_over) {
            self.link.return_connection(c);
        }
        answer
    }
}

/// What the script's answer says of so many messages.
fn judge(answer: Value, messages: usize) -> Result<Forwarding> {
    let Value::Array(items) = answer else {
        return Err(odd());
    };
    let texts = items.iter().map(|item| match item {
        Value::BulkString(text) => Some(&**text),
        _ => None,
    });
    let texts: Vec<&[u8]> = texts.collect::<Option<_>>().ok_or_else(odd)?;
    let ids = |texts: &[&[u8]]| {
        texts
            .iter()
            .map(|t| StreamId::parse(t))
            .collect::<Option<Vec<_>>>()
    };
    match texts.split_first() {
        Some((&b"forwarded", rest)) if rest.len() == messages => {
            ids(rest).map(Forwarding::Forwarded).ok_or_else(odd)
        }
        Some((&b"already", [])) => Ok(Forwarding::AlreadyForwarded),
        Some((&b"behind", [mark])) => match StreamId::parse(mark) {
            Some(mark) => Ok(Forwarding::OutOfOrder { mark }),
            None => Err(odd()),
        },
        _ => Err(odd()),
    }
}

#[cold]
fn odd() -> Error {
    let why = "the answer is none that forwarding has";
    Error::new(ErrorKind::Protocol, "forward", why).with_outcome(Outcome::Unknown)
}

impl fmt::Debug for Forwarder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forwarder")
            .field("topic", &self.topic())
            .field("marks", &self.marks)
            .field("endpoint", &self.shared.plan.target.endpoint())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(words: &[&str]) -> Value {
        let bulk = |w: &&str| Value::BulkString(w.as_bytes().to_vec());
        Value::Array(words.iter().map(bulk).collect())
    }

    #[test]
    fn the_answer_of_the_script_is_one_of_three() {
        let id = |ms| StreamId::new(ms, 0);
        for (answer, messages, forwarding) in [
            (
                texts(&["forwarded", "1-0"]),
                1,
                Forwarding::Forwarded(vec![id(1)]),
            ),
            (
                texts(&["forwarded", "1-0", "2-0"]),
                2,
                Forwarding::Forwarded(vec![id(1), id(2)]),
            ),
            (texts(&["already"]), 2, Forwarding::AlreadyForwarded),
            (
                texts(&["behind", "9-0"]),
                1,
                Forwarding::OutOfOrder { mark: id(9) },
            ),
            // as a peer may have written it
            (
                texts(&["behind", "009-00"]),
                1,
                Forwarding::OutOfOrder { mark: id(9) },
            ),
        ] {
            assert_eq!(judge(answer, messages).unwrap(), forwarding);
        }
    }

    #[test]
    fn any_other_answer_leaves_the_outcome_open() {
        for answer in [
            Value::Nil,
            Value::Okay,
            texts(&[]),
            texts(&["forwarded"]),
            texts(&["forwarded", "1-0", "2-0"]),
            texts(&["forwarded", "one"]),
            texts(&["already", "1-0"]),
            texts(&["behind"]),
            texts(&["behind", "x"]),
            texts(&["other"]),
            Value::Array(vec![Value::Int(1)]),
        ] {
            let e = judge(answer.clone(), 1).unwrap_err();
            let kind = (e.kind(), e.outcome());
            assert_eq!(kind, (ErrorKind::Protocol, Outcome::Unknown), "{answer:?}");
        }
    }

    #[test]
    fn a_source_names_itself_and_its_messages() {
        let source = Source::in_order("orders:3", StreamId::new(7, 1));
        assert_eq!(&*source.dedupe_id, b"orders:3:7-1");
        let event = source.dedupe_id(&b"event"[..]);
        assert_eq!(
            (&*event.name, &*event.dedupe_id),
            ("orders:3", &b"event"[..])
        );
    }
}
