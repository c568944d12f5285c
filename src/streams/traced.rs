//! Traces, for whoever wants to see them.

use super::Streams;
use crate::{Error, ErrorKind, Result, SpanHooks, Traceparent, trace::Tracing};

impl Streams {
    /// Says how to find out in which trace the calling thread is: `current` is asked for every message
    /// published here that has no [`traceparent`](crate::Outgoing::traceparent) of its own, on the
    /// thread that publishes it. It should be quick. It may publish a small message that has a
    /// `traceparent`; what takes turns with others (batches, dedupe ids) could wait for itself here.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), streamlane::Error> {
    /// use streamlane::{Streams, Traceparent};
    ///
    /// # fn current_ids() -> Option<([u8; 16], [u8; 8])> { None }
    /// let streams = Streams::connect("redis://127.0.0.1:6379")?;
    /// streams.trace_with(|| current_ids().map(|(trace, span)| Traceparent::new(trace, span, 1)))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// It was said before: the first one stays.
    pub fn trace_with(
        &self,
        current: impl Fn() -> Option<Traceparent> + Send + Sync + 'static,
    ) -> Result<()> {
        if self.inner.trace.set_current(Box::new(current)) {
            return Ok(());
        }
        let what = "the source of trace contexts was set before, and stays";
        Err(Error::new(ErrorKind::Argument, "trace", what))
    }

    /// Says who is told of the spans of this process: of every call that publishes, and of every handler call.
    /// They have the names and attributes that [`Span`](crate::Span) tells. Consumers see them that are started
    /// after this. Without it nothing is looked up for them; with it, what the hooks take is added to each call.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), streamlane::Error> {
    /// use streamlane::{Span, SpanEnd, SpanHooks, Streams};
    ///
    /// struct Log;
    ///
    /// impl SpanHooks for Log {
    ///     fn start(&self, span: &Span<'_>) -> u64 {
    ///         println!("{} begins, under {:?}", span.name(), span.parent);
    ///         span.attributes(&mut |name, value| println!("  {name}={value}"));
    ///         7 // whatever tells spans apart, such as the index in a slab
    ///     }
    ///
    ///     fn end(&self, span: u64, end: &SpanEnd<'_>) {
    ///         match end.error {
    ///             None => println!("{span} is done"),
    ///             Some(why) => println!("{span} failed: {why}"),
    ///         }
    ///     }
    /// }
    ///
    /// let streams = Streams::connect("redis://127.0.0.1:6379")?;
    /// streams.trace_spans(Log)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// It was said before: the first one stays.
    pub fn trace_spans(&self, hooks: impl SpanHooks + 'static) -> Result<()> {
        if self.inner.trace.set_spans(Box::new(hooks)) {
            return Ok(());
        }
        let what = "who is told of spans was set before, and stays";
        Err(Error::new(ErrorKind::Argument, "trace", what))
    }

    pub(crate) fn tracing(&self) -> Tracing {
        self.inner.trace.clone()
    }
}
