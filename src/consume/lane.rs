//! The loop of one partition: read, hand over, move the position; and come back after any trouble.

use std::{
    cell::Cell,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::{Arc, atomic::AtomicU32},
    time::{Duration, Instant},
};

use crate::{
    LaneState, OnError, Persist, PositionAhead, Result, StreamId,
    backoff::{IdleLadder, jittered},
    batch::{ArenaPool, Context},
    clock,
    error::{Error, ErrorKind, Outcome},
    fence::Fence,
    handler::panic_text,
    monitor::{Monitor, count},
    net::{Inbox, Interrupt, STOP, Target},
    position::{Snapshot, Writer},
    quiet::{HeldBack, Quiet},
};

use super::{
    deliver::{Classify, Handler, HandlerFactory},
    fenced::Fate,
    park::Parking,
    reader::{Brought, ReadPlan, Reader},
    resets::{LaneResets, Marker, RESET, Resets},
    store::{PositionStore, Stored},
    watch::{GapHook, Watch},
};

/// Set while a lane is to hold still.
pub(crate) const PAUSE: u32 = 1 << 1;
/// Set, with [`STOP`], when the partition is not ours any more: what the lane is at does not count.
pub(crate) const LOST: u32 = 1 << 4;
/// What calls a lane away from whatever it waits for.
pub(super) const CALLED: u32 = STOP | RESET;

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
pub(super) enum Flow {
    On,
    /// Away from what was read, which does not count any more: a reset was taken.
    Anew,
    End(LaneEnd),
}

/// One partition being read.
pub(crate) struct Lane {
    pub(super) plan: Arc<Plan>,
    pub(super) reader: Reader,
    pub(super) handler: Handler,
    pub(super) context: Context,
    pub(super) monitor: Arc<Monitor>,
    pub(super) quiet_failures: Quiet,
    pub(super) quiet_skips: Quiet,
    pub(super) quiet_parked: Quiet,
    pub(super) writer: Writer,
    /// The ordinal of the reader's position before the last read.
    pub(super) base: Option<u64>,
    pub(super) watch: Watch,
    pub(super) store: PositionStore,
    pub(super) resets: Arc<LaneResets>,
    /// Whether the position is the one stored at the server, or what came of it since.
    pub(super) acquired: Rc<Cell<bool>>,
    /// A reset whose position is not stored yet.
    pub(super) unsettled: Option<Marker>,
    /// In sync modes: a position that is not stored yet.
    unsaved: Option<Snapshot>,
    /// Whether positions were stored over this connection, so that the server knows how.
    has_stored: bool,
    pub(super) commands: Vec<u8>,
    pub(super) inbox: Inbox,
    trouble: Option<Trouble>,
    quiet_trouble: Quiet,
    idle: IdleLadder,
    connected_ms: u64,
    short_lived: bool,
}

/// What keeps a lane from reading.
struct Trouble {
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
    pub(crate) client_name: String,
    pub(crate) interrupt: Arc<Interrupt>,
    pub(crate) monitor: Arc<Monitor>,
}

impl fmt::Display for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]/{}", self.topic, self.partition, self.consumer)
    }
}

impl Lane {
    /// Runs a lane on this thread until it is told to stop or its policy ends it. A panic that gets
    /// past the handler's own guard is reported, and the lane begins anew at its position.
    pub(crate) fn run(plan: &Arc<Plan>, seat: &Seat, mut writer: Writer) -> LaneEnd {
        let mut quiet = Quiet::default();
        // A lane that begins anew after a panic knows more than the server.
        let acquired = Rc::default();
        let resets = Arc::new(plan.resets.join(seat.partition, &seat.interrupt));
        loop {
            let table = writer.again();
            let attempt = catch_unwind(AssertUnwindSafe(|| {
                let mut lane = Self::new(Arc::clone(plan), seat, &resets, &acquired, writer);
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
            match table() {
                Some(w) if seat.interrupt.bits() & STOP == 0 => writer = w,
                _ => return LaneEnd::Stopped,
            }
        }
    }

    fn new(
        plan: Arc<Plan>,
        seat: &Seat,
        resets: &Arc<LaneResets>,
        acquired: &Rc<Cell<bool>>,
        writer: Writer,
    ) -> Self {
        if let Some(f) = &plan.on_start {
            f(seat.partition);
        }
        let start = writer.load();
        let reader = Reader::new(
            Arc::clone(&plan.read),
            Arc::clone(&plan.target),
            seat.client_name.clone(),
            Arc::clone(&seat.interrupt),
            plan.pool.clone(),
            seat.key.clone(),
            start.id,
        );
        Self {
            handler: (plan.factory)(seat.partition),
            reader,
            context: Context {
                topic: Arc::clone(&seat.topic),
                consumer: Arc::clone(&seat.consumer),
                partition: seat.partition,
                interrupt: Arc::clone(&seat.interrupt),
                fence: Arc::clone(&plan.fence),
                attempt: AtomicU32::new(1),
            },
            monitor: Arc::clone(&seat.monitor),
            quiet_failures: Quiet::default(),
            quiet_skips: Quiet::default(),
            quiet_parked: Quiet::default(),
            writer,
            base: start.ordinal,
            watch: Watch::default(),
            store: plan.store.clone(),
            resets: Arc::clone(resets),
            unsettled: resets.taken(),
            acquired: Rc::clone(acquired),
            unsaved: None,
            has_stored: false,
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
            self.forget_debts(); // what is not stored is another's to say by now
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
            match self.read() {
                Ok(Brought::Entries { full }) => {
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
        let ahead = self.plan.read_ahead && full && !self.watch.is_due();
        if ahead && self.reader.is_connected() {
            // A failure shows at the next receive, which is where failures are dealt with.
            let _ = self.reader.request(&[], false);
        }
        match self.heed_signals() {
            Flow::On => {}
            away => return away,
        }
        let (read, filtered) = (self.reader.index().read(), self.reader.index().filtered());
        count(&self.monitor.filtered, u64::from(filtered));
        if let Some(first) = self.reader.records().first().filter(|r| r.nth == 1) {
            self.watch.read_first(first.id);
        }
        let flow = if read == filtered {
            self.pass_over();
            Flow::On
        } else {
            self.deliver()
        };
        if matches!(flow, Flow::On) {
            self.base = self.base.map(|n| n + u64::from(read));
        }
        flow
    }

    fn read(&mut self) -> Result<Brought> {
        self.connect()?;
        self.acquire()?;
        self.settle_reset()?;
        let alone = self.trouble.is_some() || !self.has_stored;
        if let Some(position) = self.unsaved.filter(|_| alone) {
            // so that a refusal leaves no answer outstanding and the connection can stay
            self.try_save(position)?;
        }
        let mut before = 0;
        if !self.reader.is_outstanding() {
            self.look_when_due()?;
            self.commands.clear();
            if let Some(position) = self.unsaved {
                let position = [(self.context.partition, position)];
                before = self.store.render(&mut self.commands, &position);
            }
            let brief = self.monitor.state() != LaneState::Running;
            self.reader.request(&self.commands, brief)?;
        }
        let (store, partition) = (&self.store, self.context.partition);
        let mut fate = Fate::Stored;
        let brought = self.reader.receive(before, store.key(), |answer| {
            store.fates(answer, 1, |_, f| fate = f)?;
            store.heed(partition, answer);
            match fate {
                Fate::Stored | Fate::Behind => Ok(()),
                fate => Err(refused(fate)),
            }
        });
        self.heed_fate(fate);
        if before > 0 && self.reader.is_confirmed() {
            self.saved(); // whatever became of the read
        }
        brought
    }

    pub(super) fn connect(&mut self) -> Result<()> {
        self.reader.leave_replica();
        if !self.reader.is_connected() {
            self.reader.connect()?;
            count(&self.monitor.connects, 1);
            self.has_stored = false;
            self.connected_ms = clock::coarse_ms();
            self.watch.reconnected();
        }
        Ok(())
    }

    /// Ends the lane if it is to stop; takes a reset that waits; holds the lane while it is paused.
    pub(super) fn heed_signals(&mut self) -> Flow {
        let mut flow = Flow::On;
        loop {
            let bits = self.context.interrupt.bits();
            if bits & STOP != 0 {
                return Flow::End(LaneEnd::Stopped);
            }
            if !self.plan.fence.holds_for_certain() {
                self.wait_for_claim();
                flow = Flow::Anew;
                continue;
            }
            if bits & RESET != 0 {
                self.take_reset();
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
            self.context.interrupt.wait_clear(PAUSE, CALLED);
            if runs {
                self.monitor.enter(LaneState::Running, "");
            }
        }
    }

    /// Moves the position to `id`, the `nth` entry of the last read.
    pub(super) fn store_position(&mut self, id: StreamId, nth: u32) {
        let ordinal = self.base.map(|n| n + u64::from(nth));
        self.writer.store(id, ordinal);
        if self.plan.persist.is_sync() {
            self.owe(self.writer.load());
        }
    }

    /// In sync modes: this is to be stored before anything else is handed over.
    pub(super) fn owe(&mut self, position: Snapshot) {
        self.unsaved = Some(position);
    }

    /// Makes this the position, whatever it was. It is not stored.
    pub(super) fn begin_at(&mut self, start: Stored) {
        self.writer.store(start.id, start.ordinal);
        self.begin_with(start);
    }

    /// Goes on from this position.
    pub(super) fn begin_with(&mut self, start: Stored) {
        self.base = start.ordinal;
        self.watch.begin_anew();
        self.unsaved = None;
    }

    /// What was to be stored is not to be any more.
    pub(super) fn forget_debts(&mut self) {
        (self.unsaved, self.unsettled) = (None, None);
        self.writer.stored(self.writer.load().version);
    }

    /// Stores the position now, however often that takes.
    pub(super) fn save_position(&mut self) -> Flow {
        while let Some(position) = self.unsaved {
            match self.heed_signals() {
                Flow::On => {}
                away => return away,
            }
            match self.try_save(position) {
                Ok(()) => self.reads_again(),
                Err(e) => self.wait_out(&e),
            }
        }
        Flow::On
    }

    fn try_save(&mut self, position: Snapshot) -> Result<()> {
        self.connect()?;
        let Some(connection) = self.reader.connection() else {
            return Err(Error::new(ErrorKind::Io, "store position", "not connected"));
        };
        let patience = self.plan.read.patience();
        let (room, mut fate) = ((&mut self.commands, &mut self.inbox), Fate::Stored);
        let position = [(self.context.partition, position)];
        let saved = self
            .store
            .store(connection, room, &position, patience, |_, f| fate = f);
        saved.map_err(|e| {
            e.during("store position")
                .on_key(self.store.key())
                .at(self.plan.target.endpoint())
        })?;
        self.has_stored = true;
        match fate {
            Fate::Stored | Fate::Behind => {
                self.heed_fate(fate);
                self.saved();
                Ok(())
            }
            fate => Err(self.unstored(fate)),
        }
    }

    /// What became of the position concerns others, too.
    pub(super) fn heed_fate(&self, fate: Fate) {
        match (fate, self.store.lease()) {
            (Fate::Unclaimed | Fate::Anothers, Some(lease)) => lease.desk().look_again(),
            (Fate::Behind, _) => log::warn!("{self}: {}; somebody else has written it", fate.why()),
            _ => {}
        }
    }

    /// A position was not stored, for this reason.
    pub(super) fn unstored(&self, fate: Fate) -> Error {
        self.heed_fate(fate);
        refused(fate)
            .on_key(self.store.key())
            .at(self.plan.target.endpoint())
    }

    /// The position that was not is stored now.
    pub(super) fn saved(&mut self) {
        if let Some(position) = self.unsaved.take() {
            self.writer.stored(position.version);
        }
    }

    /// A read found nothing: everything there is has been handled.
    fn caught_up(&mut self, asked_ms: u64) {
        count(&self.monitor.empty_reads, 1);
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

    pub(super) fn reads_again(&mut self) {
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

    /// Reports what keeps the lane from reading and waits as long as is sensible before it tries again.
    pub(super) fn wait_out(&mut self, e: &Error) {
        if self.context.interrupt.bits() & CALLED != 0 {
            return;
        }
        let trouble = self.trouble.get_or_insert_with(|| Trouble {
            since: clock::now(),
            announced: false,
        });
        let state = match e.kind() {
            _ if self.watch.is_ahead() => LaneState::Ahead,
            _ if self.unsaved.is_some() => LaneState::Blocked,
            ErrorKind::Connect | ErrorKind::Io | ErrorKind::Timeout => LaneState::Disconnected,
            _ => LaneState::Refused,
        };
        self.monitor.enter(state, &e.to_string());
        if let Some(more) = self.quiet_trouble.permit() {
            trouble.announced = true;
            log::error!(
                "{self}: cannot go on: {e}; it keeps trying{}",
                HeldBack(more)
            );
        }
        let keeps = e.keeps_connection() || self.watch.is_ahead();
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

fn refused(fate: Fate) -> Error {
    Error::new(ErrorKind::Server, "store position", fate.why()).with_outcome(Outcome::NotApplied)
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.context;
        write!(f, "{}[{}]/{}", c.topic, c.partition, c.consumer)
    }
}
