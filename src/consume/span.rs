//! Spans around handler calls: a handler around the handler, so that where nobody wants them nothing is in the way.

use std::{iter, sync::Arc};

use crate::{
    Batch, BatchHandler, HandlerResult, Message, MessageHandler,
    trace::{OpenSpan, Tracing},
};

use super::deliver::{Handler, HandlerFactory, describe};

/// Makes what `factory` makes, with a span around each call when somebody wants to know by then.
pub(crate) fn traced(factory: HandlerFactory, trace: Tracing) -> HandlerFactory {
    Arc::new(move |partition| {
        let handler = factory(partition);
        if !trace.has_spans() {
            return handler;
        }
        let trace = trace.clone();
        match handler {
            Handler::Batches(handler) => Handler::Batches(Box::new(Traced { handler, trace })),
            Handler::Messages(handler) => Handler::Messages(Box::new(Traced { handler, trace })),
        }
    })
}

struct Traced<H> {
    handler: H,
    trace: Tracing,
}

impl BatchHandler for Traced<Box<dyn BatchHandler>> {
    fn handle(&mut self, batch: &Batch<'_>) -> HandlerResult {
        let span = self.trace.handling(&batch.messages());
        end(span, self.handler.handle(batch))
    }
}

impl MessageHandler for Traced<Box<dyn MessageHandler>> {
    fn handle(&mut self, message: &Message<'_>) -> HandlerResult {
        let span = self.trace.handling(&iter::once(*message));
        end(span, self.handler.handle(message))
    }
}

/// A span that is left by a panic says so itself.
fn end(span: Option<OpenSpan>, result: HandlerResult) -> HandlerResult {
    match (span, &result) {
        (None, _) => {}
        (Some(span), Ok(())) => span.end(None),
        (Some(span), Err(failure)) => span.end(Some(&describe(failure))),
    }
    result
}
