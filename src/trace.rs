//! Traces: in which one a message is published, and spans for what is published and handled, for whoever wants to
//! see them. Nothing is looked up, and no clock is read, where nobody does.

use std::{
    cell::Cell,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, OnceLock},
    time::Duration,
};

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::{
    batch::{Message, Text},
    clock,
    quiet::{HeldBack, Quiet},
    wire::{StreamId, Traceparent},
};

/// What becomes of spans: implemented by whoever hands them to OpenTelemetry, `tracing` or a log; see
/// [`Streams::trace_spans`](crate::Streams::trace_spans).
///
/// Both are called on the thread that does the work, [`start`](Self::start) before and [`end`](Self::end) after
/// it, so what is made current in between is current for a handler and whatever it calls. They are on the way of
/// every call, so they should be quick. A panic in one is caught, and told in the log.
pub trait SpanHooks: Send + Sync {
    /// Work begins. What it returns is handed to [`end`](Self::end) with it.
    fn start(&self, span: &Span<'_>) -> u64;

    /// The work that [`start`](Self::start) returned `span` for has ended.
    fn end(&self, span: u64, end: &SpanEnd<'_>);
}

/// What a span is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum SpanKind {
    /// A call that publishes, from before its first byte is written until its answers are there: one span for a
    /// message, a batch or a transaction. A [`BufferedPublisher`](crate::BufferedPublisher) has none: what it is
    /// given carries the trace it was given in.
    Publish,
    /// A handler call, with one message or a batch.
    Process,
}

/// What is known of a piece of work when it begins.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Span<'a> {
    /// What it is about.
    pub kind: SpanKind,
    /// The topic.
    pub topic: &'a str,
    /// The consumer that handles; `None` where something is published.
    pub consumer: Option<&'a str>,
    /// The partition that is handled, or that a message is to go to where that was said.
    pub partition: Option<u32>,
    /// How many messages it is about.
    pub messages: usize,
    /// The type of the first of them; may be empty.
    pub message_type: Text<'a>,
    /// The id of the last of them, where something is handled.
    pub id: Option<StreamId>,
    /// In which trace it is, under which span. A span that has none begins a trace.
    ///
    /// Of what is handled it is what the message brought along. A batch has one where no two messages are of
    /// different traces. Of what is published it is what [`trace_with`](crate::Streams::trace_with) says; and that
    /// is also what the message takes along, so what is published and what is handled are siblings.
    pub parent: Option<Traceparent>,
    /// Other spans that the messages handled come from, of the first 16.
    pub links: &'a [Traceparent],
    /// For how long the last message had been in its stream, by the clocks of server and process, when its
    /// handler was called.
    pub lag: Option<Duration>,
}

/// What is known when a piece of work has ended.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SpanEnd<'a> {
    /// The id that the server gave, of the last message published.
    pub id: Option<StreamId>,
    /// The partition it went to.
    pub partition: Option<u32>,
    /// Why it failed; of several messages, the first that did.
    pub error: Option<&'a dyn SpanError>,
}

/// A reason why work failed: it can be shown.
pub trait SpanError: fmt::Display + fmt::Debug {}

impl<E: fmt::Display + fmt::Debug> SpanError for E {}

/// The value of an attribute.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum SpanValue<'a> {
    /// A number.
    Number(u64),
    /// A text, which may hold any bytes.
    Text(Text<'a>),
    /// The id of a message.
    Id(StreamId),
}

impl fmt::Display for SpanValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(n) => n.fmt(f),
            Self::Text(text) => text.fmt(f),
            Self::Id(id) => id.fmt(f),
        }
    }
}

/// What messages travel through, by the name that traces have for it.
const SYSTEM: &str = "redis_streams";

/// How many messages of a batch are looked at for spans to link to.
const MOST_LINKS: usize = 16;

impl Span<'_> {
    /// Its name, as `streams.publish orders` or `streams.process orders`.
    pub fn name(&self) -> impl fmt::Display + '_ {
        fmt::from_fn(|f| {
            let what = match self.kind {
                SpanKind::Publish => "publish",
                SpanKind::Process => "process",
            };
            write!(f, "streams.{what} {}", self.topic)
        })
    }

    /// Calls `visit` with the name and the value of each attribute that is known at the start.
    pub fn attributes(&self, visit: &mut dyn FnMut(&'static str, SpanValue<'_>)) {
        use SpanValue::{Id, Number, Text as T};
        visit("messaging.system", T(Text::from(SYSTEM.as_bytes())));
        visit(
            "messaging.destination",
            T(Text::from(self.topic.as_bytes())),
        );
        if let Some(p) = self.partition {
            visit("messaging.partition", Number(p.into()));
        }
        if self.kind == SpanKind::Process || self.messages > 1 {
            visit(
                "messaging.batch.message_count",
                Number(self.messages as u64),
            );
        }
        if let Some(consumer) = self.consumer {
            visit("streams.consumer", T(Text::from(consumer.as_bytes())));
        }
        if !self.message_type.is_empty() {
            visit("messaging.message.type", T(self.message_type));
        }
        if let Some(id) = self.id {
            visit("messaging.message_id", Id(id));
        }
        if let Some(lag) = self.lag {
            visit("streams.lag_ms", Number(lag.as_millis() as u64));
        }
    }
}

impl SpanEnd<'_> {
    /// Calls `visit` with the name and the value of each attribute that became known by the end.
    pub fn attributes(&self, visit: &mut dyn FnMut(&'static str, SpanValue<'_>)) {
        if let Some(p) = self.partition {
            visit("messaging.partition", SpanValue::Number(p.into()));
        }
        if let Some(id) = self.id {
            visit("messaging.message_id", SpanValue::Id(id));
        }
    }
}

/// What says in which trace a thread is, and what becomes of spans, once somebody has set it. All clones are one.
#[derive(Clone, Default)]
pub(crate) struct Tracing(Arc<Hooks>);

#[derive(Default)]
struct Hooks {
    current: OnceLock<Box<CurrentTrace>>,
    spans: OnceLock<Box<dyn SpanHooks>>,
    quiet: Mutex<Quiet>,
}

type CurrentTrace = dyn Fn() -> Option<Traceparent> + Send + Sync;

thread_local! {
    /// What a thread is publishing under a span; `None` otherwise.
    static PUBLISHING: Cell<Option<Publishing>> = const { Cell::new(None) };
}

/// What a thread is publishing under a span.
#[derive(Clone, Copy)]
struct Publishing {
    /// In which trace the thread was before the span began.
    trace: Option<Traceparent>,
    /// Where the last message that was stored went, and its id.
    stored: Option<(u32, StreamId)>,
}

impl Tracing {
    /// Whether it was set: the first one stays.
    pub(crate) fn set_current(&self, hook: Box<CurrentTrace>) -> bool {
        self.0.current.set(hook).is_ok()
    }

    /// Whether it was set: the first one stays.
    pub(crate) fn set_spans(&self, hooks: Box<dyn SpanHooks>) -> bool {
        self.0.spans.set(hooks).is_ok()
    }

    /// In which trace a message is that is being published.
    #[inline]
    pub(crate) fn current(&self) -> Option<Traceparent> {
        self.0.current.get().and_then(|hook| Self::ask(&**hook))
    }

    #[cold]
    fn ask(hook: &CurrentTrace) -> Option<Traceparent> {
        match PUBLISHING.get() {
            Some(publishing) => publishing.trace,
            None => hook(),
        }
    }

    /// A message was stored under this id. Costs a look where nobody wants to know.
    #[inline]
    pub(crate) fn stored(&self, partition: u32, id: StreamId) {
        if self.has_spans() {
            Self::note(partition, id);
        }
    }

    #[cold]
    fn note(partition: u32, id: StreamId) {
        if let Some(publishing) = PUBLISHING.get() {
            PUBLISHING.set(Some(Publishing {
                stored: Some((partition, id)),
                ..publishing
            }));
        }
    }

    /// Whether somebody wants to know of spans.
    #[inline]
    pub(crate) fn has_spans(&self) -> bool {
        self.0.spans.get().is_some()
    }

    /// Begins a span for what this thread publishes until it is over, when somebody wants to know.
    #[cold]
    pub(crate) fn publishing(
        &self,
        topic: &str,
        messages: usize,
        (message_type, partition): (&[u8], Option<u32>),
    ) -> Option<OpenSpan> {
        let hooks = &**self.0.spans.get()?;
        let trace = self.current();
        let span = Span {
            kind: SpanKind::Publish,
            topic,
            consumer: None,
            partition,
            messages,
            message_type: Text::from(message_type),
            id: None,
            parent: trace,
            links: &[],
            lag: None,
        };
        let open = self.open(hooks, &span);
        // A hook, or what a hook calls, may publish too, so this comes after it.
        PUBLISHING.set(Some(Publishing {
            trace,
            stored: None,
        }));
        Some(open)
    }

    /// Begins a span for a handler call with these messages, when somebody wants to know.
    pub(crate) fn handling<'a, I>(&self, messages: &I) -> Option<OpenSpan>
    where
        I: ExactSizeIterator<Item = Message<'a>> + Clone,
    {
        let hooks = &**self.0.spans.get()?;
        let first = messages.clone().next()?;
        let last = messages.clone().last()?;
        let traces = messages
            .clone()
            .map(|m| m.traceparent().unwrap_or_default());
        let (parent, links) = lineage(traces.map(|t| t.as_bytes()));
        let lag = clock::wall().duration_since(last.timestamp());
        let span = Span {
            kind: SpanKind::Process,
            topic: first.topic(),
            consumer: Some(first.consumer()),
            partition: Some(last.partition()),
            messages: messages.len(),
            message_type: first.message_type(),
            id: Some(last.id()),
            parent,
            links: &links,
            lag: Some(lag.unwrap_or_default()),
        };
        Some(self.open(hooks, &span))
    }

    fn open(&self, hooks: &dyn SpanHooks, span: &Span<'_>) -> OpenSpan {
        OpenSpan {
            tracing: self.clone(),
            token: self.guarded(|| hooks.start(span)),
            outer: PUBLISHING.get(),
        }
    }

    /// What a hook returns, unless it panics.
    fn guarded<R>(&self, hook: impl FnOnce() -> R) -> Option<R> {
        let result = catch_unwind(AssertUnwindSafe(hook));
        if result.is_err()
            && let Some(held) = self.0.quiet.lock().permit()
        {
            let held = HeldBack(held);
            log::error!(
                "the hooks of spans panicked; what they were called about goes on without{held}"
            );
        }
        result.ok()
    }
}

/// A span that has begun.
#[must_use = "it is over when this is"]
pub(crate) struct OpenSpan {
    tracing: Tracing,
    /// `None` where the hook panicked.
    token: Option<u64>,
    /// What this thread was publishing when it began.
    outer: Option<Publishing>,
}

impl OpenSpan {
    /// It is over.
    pub(crate) fn end(mut self, error: Option<&dyn SpanError>) {
        self.close(error);
    }

    fn close(&mut self, error: Option<&dyn SpanError>) {
        let stored = PUBLISHING.replace(self.outer).and_then(|p| p.stored);
        if let Some(token) = self.token.take() {
            let end = SpanEnd {
                id: stored.map(|(_, id)| id),
                partition: stored.map(|(p, _)| p),
                error,
            };
            if let Some(hooks) = self.tracing.0.spans.get() {
                self.tracing.guarded(|| hooks.end(token, &end));
            }
        }
    }
}

impl Drop for OpenSpan {
    /// After a panic on the way.
    fn drop(&mut self) {
        if self.token.is_some() {
            self.close(Some(&"it panicked"));
        }
    }
}

impl fmt::Debug for Tracing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracing")
            .field("current", &self.0.current.get().is_some())
            .field("spans", &self.0.spans.get().is_some())
            .finish()
    }
}

#[allow(single_use_lifetimes)] // one that is not named cannot be said of what an iterator yields
/// Under which span messages with these texts are handled, and to which others that links. Empty is none.
fn lineage<'a>(
    traces: impl Iterator<Item = &'a [u8]> + Clone,
) -> (Option<Traceparent>, SmallVec<[Traceparent; MOST_LINKS]>) {
    let mut said = traces.clone().filter(|t| !t.is_empty());
    let parse = |t: &[u8]| Traceparent::parse(std::str::from_utf8(t).ok()?);
    let parent = said.next().and_then(|first| {
        let same = |t: &[u8]| {
            trace_id(t)
                .is_some_and(|id| trace_id(first).is_some_and(|f| id.eq_ignore_ascii_case(f)))
        };
        parse(first).filter(|_| said.all(same))
    });
    let alone = traces.clone().nth(1).is_none();
    let linked = traces.take(if alone { 0 } else { MOST_LINKS });
    let others = linked.filter_map(parse);
    let links = others.filter(|t| parent.is_none_or(|p| p.span_id() != t.span_id()));
    (parent, links.collect())
}

/// The trace that a text names, in whatever version of the format.
fn trace_id(text: &[u8]) -> Option<&[u8]> {
    text.get(3..35)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A text that names this trace and this span.
    fn text(trace: u8, span: u8) -> String {
        Traceparent::new([trace; 16], [span; 8], 1).to_string()
    }

    fn of(texts: &[&str]) -> (Option<String>, Vec<String>) {
        let (parent, links) = lineage(texts.iter().map(|t| t.as_bytes()));
        let links = links.iter().map(ToString::to_string);
        (parent.map(|p| p.to_string()), links.collect())
    }

    #[test]
    fn a_message_alone_is_under_what_it_brought() {
        let a = text(1, 1);
        assert_eq!(of(&[&a]), (Some(a.clone()), vec![]));
        for none in ["", "nonsense", &a.replace("00-", "01-")] {
            assert_eq!(of(&[none]), (None, vec![]), "{none}");
        }
    }

    #[test]
    fn messages_of_one_trace_are_under_the_first_and_link_to_the_others() {
        let [a, b, c] = [0xa, 0xb, 0xc].map(|span| text(0xd, span));
        // who says nothing does not disagree, and one span is linked to once it is another
        let found = of(&["", &a, &b, "", &a, &c]);
        assert_eq!(found, (Some(a.clone()), vec![b.clone(), c]));
        // the case of the letters does not matter, but such a one is no span to link to
        let loud = b.to_uppercase();
        assert_eq!(of(&[&a, &loud]), (Some(a), vec![]));
    }

    #[test]
    fn messages_of_several_traces_are_under_none_and_linked_to() {
        let (a, b) = (text(1, 1), text(2, 2));
        assert_eq!(of(&[&a, &b]), (None, vec![a.clone(), b.clone()]));
        // one that is too short to name a trace is of another
        assert_eq!(of(&[&a, "00-short"]), (None, vec![a.clone()]));
        // the first decides, whatever can be made of it
        assert_eq!(
            of(&["nonsense", &a, &a]),
            (None, vec![a.clone(), a.clone()])
        );
        assert_eq!(of(&["", "", ""]), (None, vec![]));
        // all are asked whether they disagree, 16 are linked to
        let mut many = vec![&*a; 100];
        many[99] = &b;
        assert_eq!(of(&many), (None, vec![a.clone(); 16]));
        many[99] = &a;
        assert_eq!(of(&many), (Some(a.clone()), vec![]));
    }

    #[test]
    fn hooks_that_panic_are_in_nobodys_way() {
        struct Panics;
        impl SpanHooks for Panics {
            fn start(&self, _: &Span<'_>) -> u64 {
                panic!("no")
            }
            fn end(&self, _: u64, _: &SpanEnd<'_>) {
                unreachable!("it never began")
            }
        }
        let tracing = Tracing::default();
        assert!(tracing.publishing("t", 1, (b"", None)).is_none());
        assert!(tracing.set_spans(Box::new(Panics)));
        assert!(!tracing.set_spans(Box::new(Panics)), "the first stays");
        let span = tracing.publishing("t", 1, (b"", None)).unwrap();
        assert!(PUBLISHING.get().is_some());
        span.end(None);
        assert!(PUBLISHING.get().is_none());
    }

    #[test]
    fn a_message_takes_along_the_trace_from_before_its_span_and_spans_lie_within_one_another() {
        use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
        static NOW: AtomicU64 = AtomicU64::new(1);
        static ENDS: Mutex<Vec<(u64, Option<u32>)>> = Mutex::new(Vec::new());
        struct Current;
        impl SpanHooks for Current {
            fn start(&self, _: &Span<'_>) -> u64 {
                NOW.fetch_add(1, Relaxed) + 1
            }
            fn end(&self, span: u64, end: &SpanEnd<'_>) {
                ENDS.lock().push((span, end.partition));
            }
        }
        let now = || {
            Some(Traceparent::new(
                [1; 16],
                NOW.load(Relaxed).to_be_bytes(),
                1,
            ))
        };
        let tracing = Tracing::default();
        assert!(tracing.set_current(Box::new(now)) && tracing.set_spans(Box::new(Current)));
        let before = now();
        let outer = tracing.publishing("t", 1, (b"", None)).unwrap();
        assert_eq!(tracing.current(), before);
        let within = now();
        let inner = tracing.publishing("t", 1, (b"", None)).unwrap();
        assert_eq!(
            tracing.current(),
            before,
            "what is published within goes the same way"
        );
        tracing.stored(7, StreamId::MIN);
        inner.end(None);
        assert_eq!(tracing.current(), before);
        tracing.stored(8, StreamId::MIN);
        drop(outer);
        assert_ne!(tracing.current(), within);
        assert_eq!(tracing.current(), now());
        assert_eq!(*ENDS.lock(), [(3, Some(7)), (2, Some(8))]);
    }
}
