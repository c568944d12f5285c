//! The loop of one partition: read, hand over, move the position; and come back after any trouble.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::AtomicU32},
    time::{Duration, Instant},
};

use crate::{
    LaneState, OnError, Persist, PositionAhead, Result,
    backoff::{IdleLadder, jittered},
    batch::{ArenaPool, Context},
    clock,
    error::{Error, ErrorKind},
    fence::Fence,
    handler::panic_text,
    monitor::{Meters, Monitor, Remedy, count},
    net::{Inbox, Interrupt, STOP, Target},
    quiet::{HeldBack, Quiet},
};

use super::{
    deliver::{Classify, Handler, HandlerFactory},
    deliveries::Suspicion,
    park::Parking,
    permits::Permits,
    progress::Progress,
    reader::{Brought, ReadPlan, Reader},
    resets::{RESET, Resets},
    store::PositionStore,
    stretch::Stretch,
    watch::GapHook,
};

/// Set while a lane is to hold still.
pub(crate) const PAUSE: u32 = 1 << 1;
/// Set, with [`STOP`], when the partition is not ours any more: what the lane is at does not count.
pub(crate) const LOST: u32 = 1 << 4;
/// The number of a lane that reads what is to be handed over once more, which is no partition.
pub(crate) const RETRIES: u32 = u32::MAX;

/// What calls a lane away from whatever it waits for.
pub(crate) const CALLED: u32 = STOP | RESET;

/// How long a lane waits after a refusal before it asks again.
const RETRY: Duration = Duration::from_secs(1);
/// A connection that broke so soon after it was made was no good: the next is not made at once.
const SHORT_LIVED_MS: u64 = 1000;
/// The slowest that an empty stream is asked again where the server does not hold the question.
const POLL_CAP: Duration = Duration::from_millis(100);

/// How the lanes of a consumer work; fixed at start.
pub(crate) struct Plan {
    pub(crate) read: Arc<ReadPlan>,
    pub(crate) read_ahead: bool,
    pub(crate) idle_cap: Duration,
    pub(crate) persist: Persist,
    pub(crate) on_error: OnError,
    pub(crate) classify: Option<Classify>,
    pub(crate) parking: Parking,
    /// A message that was given to somebody so often who did not finish it is not handed over any more; 0: it
    /// always is.
    pub(crate) max_deliveries: u32,
    pub(crate) suspicion: Suspicion,
    /// Whether a message that is to wait may be handed over out of its place.
    pub(crate) out_of_place: bool,
    /// How many handler calls may run at once; `None`: one for each lane.
    pub(crate) permits: Option<Arc<Permits>>,
    pub(crate) meters: Arc<Meters>,
    pub(crate) factory: HandlerFactory,
    pub(crate) on_start: Option<Arc<dyn Fn(u32) + Send + Sync>>,
    pub(crate) on_gap: Option<GapHook>,
    pub(crate) position_ahead: PositionAhead,
    pub(crate) pool: ArenaPool,
    pub(crate) target: Arc<Target>,
    /// Nothing is handed over where it does not hold.
    pub(crate) fence: Arc<Fence>,
    pub(crate) store: PositionStore,
    pub(crate) resets: Arc<Resets>,
}

/// Why a lane ended.
#[derive(Debug)]
pub(crate) enum LaneEnd {
    /// It was told to.
    Stopped,
    /// The error policy or the handler stopped this partition.
    ByPolicy(String),
    /// The error policy ends every consumer.
    Failed(Error),
}

/// What a step of the lane leads to.
pub(crate) enum Flow {
    On,
    /// Away from what was read, which does not count any more: a reset was taken.
    Anew,
    End(LaneEnd),
}

/// One partition being read, with its progress kept as `P` does.
pub(crate) struct Lane<P> {
    pub(crate) plan: Arc<Plan>,
    /// For people.
    name: Box<str>,
    pub(crate) reader: Reader,
    pub(crate) handler: Handler,
    pub(crate) context: Context,
    pub(crate) monitor: Arc<Monitor>,
    pub(super) stretch: Stretch,
    pub(crate) quiet_failures: Quiet,
    pub(crate) quiet_skips: Quiet,
    pub(crate) quiet_parked: Quiet,
    /// What is finished, and how the server is told of it.
    pub(crate) progress: P,
    pub(crate) commands: Vec<u8>,
    pub(crate) inbox: Inbox,
    pub(super) trouble: Option<Trouble>,
    quiet_trouble: Quiet,
    idle: IdleLadder,
    connected_ms: u64,
    short_lived: bool,
}

/// What keeps a lane from reading.
pub(super) struct Trouble {
    since: Instant,
    /// Whether a line was written about it, so that its end deserves one.
    announced: bool,
}

/// What makes one lane differ from its siblings.
pub(crate) struct Seat {
    pub(crate) topic: Arc<str>,
    pub(crate) consumer: Arc<str>,
    pub(crate) partition: u32,
    pub(crate) key: Box<[u8]>,
    /// What the keys of its payloads begin with.
    pub(crate) payloads: Box<[u8]>,
    pub(crate) client_name: String,
    pub(crate) interrupt: Arc<Interrupt>,
    pub(crate) monitor: Arc<Monitor>,
}

impl fmt::Display for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (topic, consumer) = (&self.topic, &self.consumer);
        match self.partition {
            RETRIES => write!(f, "{topic}[retries]/{consumer}"),
            partition => write!(f, "{topic}[{partition}]/{consumer}"),
        }
    }
}

impl<P: Progress> Lane<P> {
    /// Runs a lane on this thread until it is told to stop or its policy ends it. A panic that gets
    /// past the handler's own guard is reported, and the lane begins anew with what `keep` makes; nothing
    /// when that is for another lane to do by then.
    pub(crate) fn run(
        plan: &Arc<Plan>,
        seat: &Seat,
        mut keep: impl FnMut() -> Option<P>,
    ) -> LaneEnd {
        let mut quiet = Quiet::default();
        while let Some(progress) = keep() {
            let attempt = catch_unwind(AssertUnwindSafe(|| {
                let mut lane = Self::new(Arc::clone(plan), seat, progress);
                (lane.turns(), lane)
            }));
            let panic = match attempt {
                Ok((end, lane)) => {
                    // Its handler's drop is user code too, and whatever it does, this was the end.
                    let _ = catch_unwind(AssertUnwindSafe(|| drop(lane)));
                    return end;
                }
                Err(panic) => panic,
            };
            let what = format!("the lane panicked: {}", panic_text(&*panic));
            seat.monitor.enter(LaneState::Refused, &what);
            if let Some(more) = quiet.permit() {
                // The logger may be what panicked.
                let _ = catch_unwind(AssertUnwindSafe(|| {
                    let more = HeldBack(more);
                    log::error!("{seat}: {what}; it begins anew{more}");
                }));
            }
            seat.interrupt.sleep(RETRY, STOP);
            if seat.interrupt.bits() & STOP != 0 {
                break;
            }
        }
        LaneEnd::Stopped
    }

    fn new(plan: Arc<Plan>, seat: &Seat, progress: P) -> Self {
        if let Some(f) = plan.on_start.as_ref().filter(|_| seat.partition != RETRIES) {
            f(seat.partition);
        }
        // Of all partitions, and this is the first.
        let partition = if seat.partition == RETRIES {
            0
        } else {
            seat.partition
        };
        let reader = Reader::new(
            Arc::clone(&plan.read),
            Arc::clone(&plan.target),
            seat.client_name.clone(),
            Arc::clone(&seat.interrupt),
            plan.pool.clone(),
            seat.key.clone(),
            progress.start(),
        )
        .with_payloads(seat.payloads.clone());
        Self {
            name: seat.to_string().into(),
            handler: match seat.partition {
                RETRIES => Handler::missing("none was made yet".into()), // made when there is a message
                partition => (plan.factory)(partition),
            },
            reader,
            context: Context {
                topic: Arc::clone(&seat.topic),
                consumer: Arc::clone(&seat.consumer),
                partition,
                interrupt: Arc::clone(&seat.interrupt),
                fence: Arc::clone(&plan.fence),
                attempt: AtomicU32::new(1),
                in_order: plan.read.group.is_none(),
            },
            monitor: Arc::clone(&seat.monitor),
            stretch: Stretch::default(),
            quiet_failures: Quiet::default(),
            quiet_skips: Quiet::default(),
            quiet_parked: Quiet::default(),
            progress,
            commands: Vec::with_capacity(256),
            inbox: Inbox::default(),
            trouble: None,
            quiet_trouble: Quiet::default(),
            idle: IdleLadder::new(if plan.read.block.is_some() {
                POLL_CAP
            } else {
                plan.idle_cap
            }),
            connected_ms: 0,
            short_lived: false,
            plan,
        }
    }

    /// Reads and hands over until there is a reason to end.
    fn turns(&mut self) -> LaneEnd {
        let end = self.until_it_ends();
        if self.context.interrupt.bits() & LOST != 0 {
            self.progress.forget(); // what is not stored is another's to say by now
        } else {
            P::ended(self);
        }
        let untold = self.quiet_skips.held_back();
        if untold > 0 {
            log::warn!("{self}: {untold} more failed calls were stepped over since the last line");
        }
        let untold = self.quiet_parked.held_back();
        if untold > 0 {
            log::warn!("{self}: {untold} more messages became dead letters since the last line");
        }
        end
    }

    fn until_it_ends(&mut self) -> LaneEnd {
        loop {
            if let Flow::End(end) = self.heed_signals() {
                return end;
            }
            let asked_ms = clock::coarse_ms();
            match P::read(self) {
                Ok(Brought::Entries { full }) => {
                    self.monitor.falls_behind();
                    self.reads_again();
                    self.idle.reset();
                    if let Flow::End(end) = self.take(full) {
                        return end;
                    }
                }
                Ok(Brought::Nothing) => {
                    self.reads_again();
                    self.caught_up(asked_ms);
                }
                Err(e) => self.wait_out(&e),
            }
        }
    }

    /// Hands over what was read, with the next request under way meanwhile if there is more to come.
    fn take(&mut self, full: bool) -> Flow {
        // Between two reads nothing is outstanding, which is when the stream is looked at.
        let mut ahead = self.plan.read_ahead && full && self.progress.may_read_ahead();
        if ahead && !self.reader.is_ready() {
            match self.fetch(0) {
                Flow::On => {}
                away => return away,
            }
            ahead = self.reader.is_ready(); // or the next bodies would be asked for behind it
        }
        if ahead && self.reader.is_connected() {
            // A failure shows at the next receive, which is where failures are dealt with.
            let _ = self.reader.request(&[], false);
        }
        match self.heed_signals() {
            Flow::On => {}
            away => return away,
        }
        let filtered = self.reader.index().filtered();
        count(&self.monitor.filtered, u64::from(filtered));
        P::arrived(self);
        let flow = if self.reader.records().is_empty() {
            P::pass_over(self);
            Flow::On
        } else {
            self.deliver()
        };
        if matches!(flow, Flow::On) {
            P::passed(self);
        }
        flow
    }

    pub(crate) fn connect(&mut self) -> Result<()> {
        self.reader.leave_replica();
        if !self.reader.is_connected() {
            self.reader.connect()?;
            count(&self.monitor.connects, 1);
            self.monitor.falls_behind();
            self.connected_ms = clock::coarse_ms();
            self.progress.reconnected();
        }
        Ok(())
    }

    /// Ends the lane if it is to stop; takes a reset that waits; holds the lane while it is paused.
    pub(crate) fn heed_signals(&mut self) -> Flow {
        let mut flow = Flow::On;
        loop {
            let bits = self.context.interrupt.bits();
            if bits & STOP != 0 {
                return Flow::End(LaneEnd::Stopped);
            }
            if !self.plan.fence.holds_for_certain() {
                self.monitor.begins_anew();
                P::wait_for_claim(self);
                flow = Flow::Anew;
                continue;
            }
            if bits & RESET != 0 {
                self.monitor.begins_anew();
                P::take_reset(self);
                flow = Flow::Anew;
            }
            if bits & PAUSE == 0 {
                return flow;
            }
            // A lane that is in trouble says so, paused or not.
            let runs = self.monitor.state() == LaneState::Running;
            if runs {
                self.monitor.enter(LaneState::Paused, "");
            }
            P::holds_still(self);
            self.context.interrupt.wait_clear(PAUSE, CALLED);
            if runs {
                self.monitor.enter(LaneState::Running, "");
            }
        }
    }

    /// A read found nothing: everything there is has been handled.
    fn caught_up(&mut self, asked_ms: u64) {
        count(&self.monitor.empty_reads, 1);
        if self.progress.knows_the_end() {
            self.monitor.caught_up();
        }
        // A server that answers at once instead of holding the question must not be asked at full speed.
        let held = self.plan.read.block.is_some_and(|block| {
            clock::coarse_ms().saturating_sub(asked_ms) >= block.as_millis() as u64 / 2
        });
        if held {
            self.idle.reset();
        } else {
            let wait = self.idle.next_wait();
            if !wait.is_zero() {
                self.context.interrupt.sleep(wait, CALLED);
            }
        }
    }

    pub(crate) fn reads_again(&mut self) {
        self.monitor.enter(LaneState::Running, "");
        self.short_lived = false;
        if let Some(trouble) = self.trouble.take() {
            // The window outlasts the trouble, or a server that comes and goes would fill the log.
            let level = if trouble.announced {
                log::Level::Info
            } else {
                log::Level::Debug
            };
            let seconds = trouble.since.elapsed().as_secs_f64();
            log::log!(level, "{self}: reads again after {seconds:.1} s");
        }
    }

    pub(super) fn is_in_trouble(&self) -> bool {
        self.trouble.is_some()
    }

    /// Reports what keeps the lane from reading and waits as long as is sensible before it tries again.
    pub(crate) fn wait_out(&mut self, e: &Error) {
        if self.context.interrupt.bits() & CALLED != 0 {
            return;
        }
        let trouble = self.trouble.get_or_insert_with(|| Trouble {
            since: clock::now(),
            announced: false,
        });
        let state = match e.kind() {
            _ if self.progress.waits_for_a_person() => LaneState::Ahead,
            _ if self.progress.owes() => LaneState::Blocked,
            ErrorKind::Connect | ErrorKind::Io | ErrorKind::Timeout => LaneState::Disconnected,
            _ => LaneState::Refused,
        };
        self.monitor.enter(state, &e.to_string());
        let errors = &self.plan.meters.errors;
        errors.count(Remedy::Transport, e.kind().name());
        if let Some(more) = self.quiet_trouble.permit() {
            trouble.announced = true;
            log::error!(
                "{self}: cannot go on: {e}; it keeps trying{}",
                HeldBack(more)
            );
        }
        let keeps = e.keeps_connection() || self.progress.waits_for_a_person();
        if !keeps || self.reader.is_outstanding() {
            self.reader.disconnect();
        }
        // A failed dial has waited at the gate. A connection that worked for a while is replaced at once.
        let at_once = match e.kind() {
            ErrorKind::Connect => true,
            ErrorKind::Io | ErrorKind::Timeout => {
                let lived = clock::coarse_ms().saturating_sub(self.connected_ms);
                let short = lived < SHORT_LIVED_MS;
                !(short && std::mem::replace(&mut self.short_lived, true))
            }
            _ => false,
        };
        if !at_once {
            self.context.interrupt.sleep(jittered(RETRY), CALLED);
        }
    }
}

impl<P> fmt::Display for Lane<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
