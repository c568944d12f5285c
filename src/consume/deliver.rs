//! Handing over what was read, and carrying out what the error contract says about failures.

use std::{
    cell::RefCell,
    error::Error as StdError,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    Action, Batch, BatchHandler, Failure, HandlerResult, LaneState, Message, MessageHandler,
    OnError,
    backoff::BlockLadder,
    batch::{Body, Record},
    clock,
    error::{Error, ErrorKind},
    monitor::{Remedy, TIMES, count},
    net::STOP,
    policy::{Failed, Step, Then, decide},
    quiet::HeldBack,
    wire::DeadLetterReason,
};

use super::{
    lane::{CALLED, Flow, LOST, Lane, LaneEnd, PAUSE},
    park::Failures,
    payloads::missing,
    permits::Permit,
    progress::{Before, Progress},
    resets::RESET,
    stretch::Stretch,
};

/// Of a pause that is shorter it is not worth telling anyone.
const LONG: Duration = Duration::from_secs(1);

/// A lane's handler.
pub(crate) enum Handler {
    Batches(Box<dyn BatchHandler>),
    Messages(Box<dyn MessageHandler>),
}

impl Handler {
    /// Stands where none could be made: fails every message, saying why.
    pub(crate) fn missing(why: String) -> Self {
        let fail = move |_: &Message<'_>| -> HandlerResult { Err(why.clone().into()) };
        Self::Messages(Box::new(fail))
    }
}

/// Makes a handler for a partition; called by its lane.
pub(crate) type HandlerFactory = Arc<dyn Fn(u32) -> Handler + Send + Sync>;

/// The user's say on what an error type means.
pub(crate) type Classify = Arc<dyn Fn(&(dyn StdError + 'static)) -> Option<Action> + Send + Sync>;

/// How the messages in hand fared so far.
#[derive(Default)]
struct Attempts {
    /// Calls that were given the first of them.
    made: u32,
    retried: bool,
    /// How often it was handed over again because the policy is `Park`.
    parkings: u32,
    /// When the first of them failed first.
    failed_since: Option<Instant>,
    ladder: BlockLadder,
    blocked_since: Option<Instant>,
}

/// What a handler call was about.
struct Called {
    /// The first message of the read that it was given.
    start: usize,
    /// How many it was given, or took of them.
    handed: usize,
    /// How many of those it marked as done, if it said anything.
    done: Option<usize>,
}

impl<P: Progress> Lane<P> {
    /// Hands over every message of the last read, until all are finished or the lane has to end.
    pub(super) fn deliver(&mut self) -> Flow {
        let total = self.reader.records().len();
        let mut start = 0;
        let mut attempts = Attempts::default();
        self.stretch = Stretch::default();
        let each_call = self.stretches_no_further();
        while start < total {
            let mut now_ms = match self.make_ready(start, attempts.made) {
                Ok(now_ms) => now_ms,
                Err(away) => return away,
            };
            if !self.progress.is_calm() {
                self.stretch_ends(start);
                match P::admit(self, start) {
                    Flow::On => {}
                    away => return away,
                }
                now_ms = clock::coarse_ms(); // that may have taken a while
            }
            let Some((permit, now_ms)) = self.permitted(start, now_ms) else {
                continue; // called away, or not ours any more after the wait
            };
            attempts.made += 1;
            let before = self.progress.before(start);
            P::about(self, start, attempts.made);
            self.monitor.call_begins(now_ms);
            self.stretches_from(start);
            let (result, called) = if self.is_hopeless(before) {
                refused(start, before)
            } else {
                self.call(start)
            };
            self.monitor.call_ends();
            let handed = start + called.handed;
            if result.is_err() || handed >= total || each_call {
                self.stretch_ends(handed);
            }
            drop(permit);
            let bits = self.context.interrupt.bits();
            if bits & (RESET | LOST) != 0 || result.is_err() && !self.plan.fence.holds() {
                self.count_out(result, &called);
                return self.heed_signals();
            }
            let flow = match result {
                Ok(()) => {
                    start = handed;
                    count(&self.monitor.handled, called.handed as u64);
                    if attempts.made > 1 {
                        self.recovered(&attempts);
                        attempts = Attempts::default();
                    }
                    attempts.made = 0;
                    P::finished(self, start, total)
                }
                Err(failure) if self.context.interrupt.bits() & STOP != 0 => {
                    // Being told to stop is no failure: what is not done stays for whoever comes next.
                    let done = called.done.unwrap_or(0);
                    count(&self.monitor.handled, done as u64);
                    P::finished_at_the_end(self, start + done);
                    let why = describe(&failure);
                    log::debug!("{self}: a handler gave up while stopping: {why}");
                    Flow::End(LaneEnd::Stopped)
                }
                Err(failure) => {
                    let done = called.done.unwrap_or(0);
                    if done > 0 {
                        // another message is at the head now, and this call was the first that was given it
                        attempts = Attempts {
                            made: 1,
                            ..Attempts::default()
                        };
                    }
                    attempts.failed_since.get_or_insert_with(clock::now);
                    let action = failure.action().or_else(|| self.classify(&failure));
                    let step = decide(&Failed {
                        policy: self.plan.on_error,
                        action,
                        handed: called.handed,
                        done: called.done,
                        retried: attempts.retried || before.attempts > 0,
                        attempts: before.attempts.saturating_add(attempts.parkings),
                        most: self.most_attempts(&called),
                        hopeless: self.is_hopeless(before) || self.is_about_no_message(&called),
                        out_of_place: self.plan.out_of_place,
                    });
                    self.count_failure(step.then.remedy(), &failure);
                    self.monitor.calls_failed(attempts.made);
                    count(&self.monitor.handled, done as u64);
                    count(&self.monitor.skipped, (step.finished - done) as u64);
                    self.report(&failure, &called, step, attempts.made);
                    start += step.finished;
                    let failed = (failure, action, before);
                    let flow = self.carry_out(step, failed, &mut start, total, &mut attempts);
                    self.monitor.calls_failed(attempts.made);
                    flow
                }
            };
            if !matches!(flow, Flow::On) {
                return flow;
            }
        }
        Flow::On
    }

    /// Sees to it that the message at `start`, which has been handed over so often, has its body, if there is one,
    /// and that nothing calls the lane away. Returns the coarse time.
    #[inline]
    fn make_ready(&mut self, start: usize, made: u32) -> Result<u64, Flow> {
        if self.reader.waits_for_body(start) || made > 0 && self.lacks_body(start) {
            self.stretch_ends(start);
            match self.fetch(start) {
                Flow::On => {}
                away => return Err(away),
            }
        }
        let now_ms = clock::coarse_ms();
        let called = self.context.interrupt.bits() & (CALLED | PAUSE) != 0;
        if called || !self.plan.fence.holds_at(now_ms) {
            self.stretch_ends(start);
            match self.heed_signals() {
                Flow::On => {}
                away => return Err(away),
            }
        }
        Ok(now_ms)
    }

    /// The right to make a call, where that takes one, and the coarse time then. Waits for other calls to end.
    #[inline]
    fn permitted(&mut self, start: usize, now_ms: u64) -> Option<(Option<Permit>, u64)> {
        let Some(permits) = &self.plan.permits else {
            return Some((None, now_ms));
        };
        let permit = match permits.try_take() {
            Some(permit) => permit,
            None => self.wait_for_permit(start)?,
        };
        let now_ms = clock::coarse_ms();
        let holds = self.plan.fence.holds_at(now_ms);
        holds.then_some((Some(permit), now_ms))
    }

    #[cold]
    fn wait_for_permit(&mut self, start: usize) -> Option<Permit> {
        self.stretch_ends(start);
        let permits = self.plan.permits.as_ref()?;
        let since = clock::now();
        let permit = permits.take(&self.context.interrupt, CALLED | PAUSE);
        let waited = since.elapsed().as_nanos() as u64;
        self.plan.meters.held_up.record_shared(&TIMES, waited);
        permit
    }

    #[cold]
    fn count_failure(&self, remedy: Remedy, failure: &Failure) {
        count(&self.monitor.failures, 1);
        let errors = &self.plan.meters.errors;
        errors.count(remedy, failure.type_name());
    }

    /// A call ended when a reset waited, or when the partition was another's: it was about what does not
    /// count here any more, so its result moves no position and no policy looks at it.
    fn count_out(&mut self, result: HandlerResult, called: &Called) {
        let Err(failure) = result else {
            count(&self.monitor.handled, called.handed as u64);
            return;
        };
        self.count_failure(Remedy::Void, &failure);
        count(&self.monitor.handled, called.done.unwrap_or(0) as u64);
        let ids = Ids(&self.reader.records()[called.start..][..called.handed]);
        let why = describe(&failure);
        log::warn!(
            "{self}: handler failed on {ids}: {why}; it does not count, since the partition was reset or is \
             another's by now"
        );
    }

    /// One handler call, for the messages from `start` on.
    fn call(&mut self, start: usize) -> (HandlerResult, Called) {
        let Self {
            reader,
            handler,
            context,
            plan,
            progress,
            ..
        } = self;
        let (bytes, records) = (reader.bytes(), reader.ready_from(start));
        let records = &records[..progress.together(plan, start, records.len())];
        let (result, handed, done) = match handler {
            _ if records[0].kept == Body::Missing => {
                count(&self.monitor.payload_missing, 1);
                let message = Message::new(bytes, &records[0], context);
                (Ok(Err(missing(&message))), 1, None)
            }
            Handler::Batches(h) => {
                let progress = RefCell::new(progress);
                let finish = |r: &Record| {
                    if context.interrupt.bits() & LOST != 0 {
                        return; // the partition is another's, whose position it would be
                    }
                    progress.borrow_mut().done(r);
                };
                let batch = Batch::new(bytes, records, context, &finish);
                let result = catch_unwind(AssertUnwindSafe(|| h.handle(&batch)));
                let result = match result {
                    Ok(Ok(())) if batch.is_cut_short() => {
                        Ok(Err("stopping before the end of the batch".into()))
                    }
                    result => result,
                };
                (result, batch.len(), batch.progress())
            }
            Handler::Messages(h) => {
                let message = Message::new(bytes, &records[0], context);
                let result = match message.malformed() {
                    Some(why) => Ok(Err(Failure::malformed(why))),
                    None => catch_unwind(AssertUnwindSafe(|| h.handle(&message))),
                };
                (result, 1, None)
            }
        };
        let result = result.unwrap_or_else(|panic| {
            self.make_handler_anew();
            Err(Failure::panicked("handler", &*panic))
        });
        (
            result,
            Called {
                start,
                handed,
                done,
            },
        )
    }

    fn carry_out(
        &mut self,
        step: Step,
        (failure, action, before): (Failure, Option<Action>, Before),
        start: &mut usize,
        total: usize,
        attempts: &mut Attempts,
    ) -> Flow {
        if step.finished > 0 {
            match P::finished(self, *start, total) {
                Flow::On => {}
                away => return away,
            }
        }
        // what it is about, or, where all was done, what it came after
        let id = self.reader.records()[(*start).min(total - 1)].id;
        match step.then {
            Then::GoOn => {
                self.monitor.enter(LaneState::Running, "");
                *attempts = Attempts::default();
                Flow::On
            }
            Then::Retry(pause) => {
                attempts.retried = true;
                self.rest(pause);
                Flow::On
            }
            Then::TryAgain => {
                attempts.parkings += 1;
                let pause = self.pause_before(attempts.parkings);
                self.rest(pause);
                Flow::On
            }
            Then::Park(messages) | Then::Later(messages, _) => {
                let until = clock::now();
                let failures = Failures {
                    attempts: attempts.parkings,
                    deliveries: attempts.made - u32::from(self.is_hopeless(before)),
                    since: attempts.failed_since.unwrap_or(until),
                    until,
                    error: &describe(&failure),
                    reason: match action {
                        _ if self.is_hopeless(before) => DeadLetterReason::Deliveries,
                        Some(Action::DeadLetter) => DeadLetterReason::Handler,
                        _ => DeadLetterReason::Retries,
                    },
                };
                let pause =
                    match step.then {
                        Then::Later(_, pause) => Some(pause.unwrap_or_else(|| {
                            self.pause_before(before.attempts.saturating_add(1))
                        })),
                        _ => None,
                    };
                for _ in 0..messages {
                    let gone = match pause {
                        Some(pause) => P::retry_later(self, *start, pause, &failures),
                        None => P::park(self, *start, &failures),
                    };
                    match gone {
                        Flow::On => *start += 1,
                        away => return away,
                    }
                }
                *attempts = Attempts::default();
                P::finished(self, *start, total)
            }
            Then::Block => {
                attempts.blocked_since.get_or_insert_with(clock::now);
                let reason = format!("message {id}: {}", describe(&failure));
                self.monitor.enter(LaneState::Blocked, &reason);
                let wait = attempts.ladder.next_wait();
                self.rest(wait);
                Flow::On
            }
            Then::StopPartition => Flow::End(LaneEnd::ByPolicy(format!(
                "{} at message {id} after {}: {}",
                // whatever the policy, nothing else stops a partition under it
                if self.plan.on_error == OnError::StopPartition && failure.action().is_none() {
                    "OnError StopPartition"
                } else {
                    "the handler or the classify hook asked to stop"
                },
                failure.type_name(),
                describe(&failure)
            ))),
            Then::Fail => {
                let after = failure.type_name();
                let what = format!("{self}: OnError Fail at message {id} after {after}");
                let error =
                    Error::new(ErrorKind::Handler, "handle", what).caused_by(failure.into_error());
                Flow::End(LaneEnd::Failed(error))
            }
        }
    }

    /// The pause before what is in hand is handed over again.
    #[cold]
    fn rest(&mut self, pause: Duration) {
        if pause >= LONG && !self.progress.is_calm() {
            P::came_back(self);
        }
        self.context.interrupt.sleep(pause, CALLED);
    }

    /// Whether a message was given out too often to be handed over once more.
    #[inline]
    fn is_hopeless(&self, before: Before) -> bool {
        let most = self.plan.max_deliveries;
        // mostly there are none, which is seen without a look at the plan
        before.deliveries > 0 && most > 0 && before.deliveries >= most
    }

    /// Whether a failure is about a single entry that is no proper message.
    fn is_about_no_message(&self, called: &Called) -> bool {
        let nth = match called.done {
            None if called.handed > 1 => return false,
            None => 0,
            Some(done) => done,
        };
        let record = self.reader.records()[called.start..][..called.handed].get(nth);
        record.is_some_and(|r| r.malformed.is_some() || r.kept == Body::Missing)
    }

    /// Whether the body of a message is known to be missing.
    fn lacks_body(&self, nth: usize) -> bool {
        self.reader.records()[nth].kept == Body::Missing
    }

    /// How often what a failed call concerns may be handed over again.
    #[cold]
    fn most_attempts(&self, called: &Called) -> u32 {
        let bytes = self.reader.bytes();
        let caps = self.concerned(called).iter();
        let caps = caps.filter_map(|r| Message::new(bytes, r, &self.context).max_attempts());
        caps.fold(self.plan.parking.attempts, u32::min)
    }

    /// The messages that a failure is about: where progress was marked, the first that is not done.
    fn concerned(&self, called: &Called) -> &[Record] {
        let records = &self.reader.records()[called.start..][..called.handed];
        match called.done {
            None => records,
            Some(done) => &records[done.min(records.len() - 1)..][..1],
        }
    }

    fn classify(&self, failure: &Failure) -> Option<Action> {
        let classify = self.plan.classify.as_ref()?;
        let ask = || classify(failure.error());
        catch_unwind(AssertUnwindSafe(ask)).unwrap_or_else(|_| {
            log::error!("{self}: the classify hook panicked; the error counts as an ordinary one");
            None
        })
    }

    /// What went wrong, with which messages, and what is done about it. One line a window; the others
    /// at debug level.
    fn report(&mut self, failure: &Failure, called: &Called, step: Step, attempt: u32) {
        let verdict = match step.then {
            Then::GoOn => "stepped over (OnError BestEffort does not retry)",
            Then::Retry(_) => "to be handed over once more",
            Then::TryAgain => "to be handed over again (OnError Park)",
            Then::Later(..) => "to be handed over again later, behind others",
            Then::Park(_) => "it is to be a dead letter",
            Then::Block => {
                "BLOCKED: to be handed over again until it succeeds; the position is NOT advanced"
            }
            Then::StopPartition => "the partition STOPS; the position is NOT advanced",
            Then::Fail => "the consumer STOPS (OnError Fail); the position is NOT advanced",
        };
        // Each has a window of its own: a retry must not hide that a message was dropped.
        let quiet = match step.then {
            Then::GoOn => &mut self.quiet_skips,
            _ => &mut self.quiet_failures,
        };
        let held_back = match step.then {
            Then::Park(_) => None, // that it is one is said when it is
            _ => quiet.permit(),
        };
        let level = match (step.then, held_back) {
            (
                Then::GoOn
                | Then::Block
                | Then::Retry(_)
                | Then::TryAgain
                | Then::Later(..)
                | Then::Park(_),
                None,
            ) => log::Level::Debug,
            (Then::Retry(_) | Then::TryAgain | Then::Later(..), Some(_)) => log::Level::Warn,
            _ => log::Level::Error,
        };
        if !log::log_enabled!(level) {
            return;
        }
        let concerned = self.concerned(called);
        let of_type = concerned[0]
            .message_type
            .of(self.reader.bytes())
            .escape_ascii();
        log::log!(
            level,
            "{self}: handler failed on {} (type {of_type}, attempt {attempt}): {}: {}; {verdict}{}",
            Ids(concerned),
            failure.type_name(),
            describe(failure),
            HeldBack(held_back.unwrap_or(0)),
        );
    }

    fn recovered(&mut self, attempts: &Attempts) {
        self.monitor.calls_failed(0);
        self.monitor.enter(LaneState::Running, "");
        if let Some(since) = attempts.blocked_since {
            self.quiet_failures.reset();
            log::info!(
                "{self}: recovered after {} attempts and {:.1} s; the position moves again",
                attempts.made,
                since.elapsed().as_secs_f64()
            );
        }
    }

    fn make_handler_anew(&mut self) {
        let partition = self.context.partition;
        let factory = &self.plan.factory;
        match catch_unwind(AssertUnwindSafe(|| factory(partition))) {
            Ok(handler) => {
                let old = std::mem::replace(&mut self.handler, handler);
                // Its drop is user code too, and what it owns is in an unknown state.
                if catch_unwind(AssertUnwindSafe(|| drop(old))).is_err() {
                    log::warn!("{self}: dropping a handler that had panicked panicked again");
                }
            }
            Err(_) => log::error!("{self}: the handler factory panicked; the old handler stays"),
        }
    }
}

/// Fails a message without handing it over.
#[cold]
fn refused(start: usize, before: Before) -> (HandlerResult, Called) {
    let what = format!(
        "it was given out {} times and nobody came back with a result, as of one that ends its process; it is not handed \
         over any more (MaxDeliveries)",
        before.deliveries
    );
    let called = Called {
        start,
        handed: 1,
        done: None,
    };
    let e = Error::new(ErrorKind::Handler, "hand over", what);
    (Err(e.into()), called)
}

/// The ids that a failure concerns.
struct Ids<'a>(&'a [Record]);

impl fmt::Display for Ids<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [only] => write!(f, "{}", only.id),
            [first, .., last] => write!(f, "{}..{}", first.id, last.id),
            [] => Ok(()),
        }
    }
}

/// A failure's text. Formatting it is user code, which may panic.
pub(super) fn describe(failure: &Failure) -> String {
    catch_unwind(AssertUnwindSafe(|| failure.to_string()))
        .unwrap_or_else(|_| "an error whose text could not be made: formatting it panicked".into())
}
