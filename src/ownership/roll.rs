//! The thread that calls the roll where instances are numbered: it claims what its number gives it, shows
//! that it lives, and looks who else does.
//!
//! Claims decide nothing here. They are how people and peers see who owns what, how gaps and overlaps are
//! noticed, and how an instance knows whether a rival is alive.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    Error, Instances, Result, clock,
    net::STOP,
    quiet::{HeldBack, Quiet},
    wire::{Claimant, InstanceId},
};

use super::{
    contest::{Contest, Return, Rivals, Verdict},
    desk::{self, CLOSE, Desk, HEAR, Lanes},
    fixed::{COUNT, Each, Place},
    holding::{Entries, Findings, Holding},
    map::{Member, Standing},
    register::Register,
    terms::Terms,
};

/// What is done about others that store positions of the same partitions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contention {
    /// For how long they are only warned of.
    pub(crate) grace: Duration,
    /// How often one looks whether those are gone that partitions were left to; zero: never.
    pub(crate) recheck: Duration,
}

/// The partitions of one numbered instance of a consumer.
#[derive(Debug)]
pub(crate) struct Roll {
    terms: Terms,
    place: Place,
    contention: Contention,
    claimant: Claimant,
    rivals: Arc<Rivals>,
    desk: Desk,
}

/// How often one looks whether a rival was met, or what is awaited was released.
const LOOK: Duration = Duration::from_millis(500);

/// How soon the roll is called again that could not be.
const RETRY: Duration = Duration::from_secs(1);

impl Roll {
    pub(crate) fn new(
        terms: Terms,
        place: Place,
        contention: Contention,
        claimant: Claimant,
    ) -> Self {
        Self {
            desk: Desk::new(terms.unseen(Instances::Static, &claimant)),
            rivals: Arc::new(Rivals::new(claimant.instance())),
            terms,
            place,
            contention,
            claimant,
        }
    }

    /// Who this instance is.
    pub(crate) fn claimant(&self) -> &Claimant {
        &self.claimant
    }

    /// Where whoever stores positions is to leave whose it has come across.
    pub(crate) fn rivals(&self) -> &Arc<Rivals> {
        &self.rivals
    }

    /// Where to leave what the thread has to know.
    pub(crate) fn desk(&self) -> &Desk {
        &self.desk
    }

    /// Has lanes run for what is ours, and calls the roll until the consumer ends. `begun` is told what came
    /// of the first call, when the lanes run; they do so whatever came of it, unless it was refused for
    /// good. `over` is told that what could be released was.
    pub(crate) fn run(
        &self,
        lanes: &dyn Lanes,
        mut begun: impl FnMut(Result<()>),
        mut over: impl FnMut(),
    ) {
        let mut caller = Caller::new(self, lanes);
        // The logger is foreign code: its panic must not end the roll. So nothing hangs on a line that is
        // written, and what follows from a finding is done before it is told.
        while catch_unwind(AssertUnwindSafe(|| caller.run(&mut begun, &mut over))).is_err() {
            self.desk.interrupt.sleep(RETRY, STOP | CLOSE);
        }
    }
}

impl fmt::Display for Roll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.terms.topic, self.terms.consumer)
    }
}

/// What the thread knows.
struct Caller<'a> {
    roll: &'a Roll,
    lanes: &'a dyn Lanes,
    register: Option<Register<'a>>,
    /// The first call has not come to an end yet.
    first: bool,
    introduced: bool,
    holding: Holding,
    /// What the last call left.
    seen: Entries,
    contest: Contest,
    /// Partitions whose lane could not be started yet.
    unread: Vec<u32>,
    /// When it was last looked whether rivals are gone.
    rechecked: Instant,
    /// When the wait for the lanes is over.
    closing: Option<Instant>,
    /// Since when calls fail, where a line was written about it.
    trouble: Option<Instant>,
    /// What was last told of: partitions that nobody claims, and those that two do.
    gap: Vec<u32>,
    doubles: Vec<(u32, Claimant)>,
    quiet: Quiet,
    quiet_gap: Quiet,
    quiet_doubles: Quiet,
}

impl<'a> Caller<'a> {
    fn new(roll: &'a Roll, lanes: &'a dyn Lanes) -> Self {
        Self {
            roll,
            lanes,
            register: None,
            first: true,
            introduced: false,
            holding: Holding::default(),
            seen: Entries::default(),
            contest: Contest::new(roll.claimant.instance(), roll.contention.grace),
            unread: Vec::new(),
            rechecked: clock::now(),
            closing: None,
            trouble: None,
            gap: Vec::new(),
            doubles: Vec::new(),
            quiet: Quiet::default(),
            quiet_gap: Quiet::default(),
            quiet_doubles: Quiet::default(),
        }
    }

    fn run(&mut self, begun: &mut dyn FnMut(Result<()>), over: &mut dyn FnMut()) {
        loop {
            // First: what comes from now on is seen by the wait.
            self.roll.desk.interrupt.clear(desk::LOOK | HEAR);
            if self.is_closed() {
                self.give_everything_up();
                return over();
            }
            let called = self.turn();
            let pause = match &called {
                Ok(()) if !self.awaited().is_empty() => self.until_release(),
                Ok(()) if self.contest.leaves_any() => self.until_recheck(),
                Ok(()) => self.roll.terms.renew,
                Err(e) => self.failed(e),
            };
            if std::mem::take(&mut self.first) {
                begun(called);
            }
            self.watch(clock::now() + pause.min(self.roll.terms.renew));
            if self.roll.desk.interrupt.bits() & STOP != 0 {
                return;
            }
        }
    }

    /// Whether the consumer ends and its lanes have done so, or have had their time.
    fn is_closed(&mut self) -> bool {
        if self.roll.desk.interrupt.bits() & CLOSE == 0 {
            return false;
        }
        let until = clock::now() + self.roll.terms.shutdown_timeout;
        let until = *self.closing.get_or_insert(until);
        self.lanes.all_done() || clock::now() >= until
    }

    /// One call, and what follows from it for the lanes.
    fn turn(&mut self) -> Result<()> {
        let roll = self.roll;
        let n = self.lanes.partitions();
        let range = roll.place.range(n);
        self.contest.retain(|p| range.contains(&p));
        let waived = |p| self.contest.is_left(p);
        let step = self
            .holding
            .step(range, n, &self.seen.owners, &roll.claimant, waived);
        self.unread.extend(step.take);
        self.unread
            .extend(std::mem::take(&mut *roll.desk.unread.lock()));
        for p in &step.give_up {
            if !self.lanes.give_up(*p) {
                roll.desk.left(*p);
            }
        }
        if !std::mem::replace(&mut self.introduced, true) {
            self.introduce(n);
        }
        if !step.give_up.is_empty() {
            log::info!(
                "{roll}: the topic has grown to {n} partitions, and {} go to another instance",
                Each(&step.give_up)
            );
        }
        let called = self.call(n);
        if !(self.first && called.as_ref().is_err_and(|e| !e.is_retryable())) {
            // Numbers decide who reads, whether claims can be written or not; but where all is over
            // nothing begins.
            let (lanes, holding, closing) = (self.lanes, &self.holding, self.closing);
            self.unread
                .retain(|p| closing.is_none() && holding.keeps(*p) && !lanes.take(*p));
            let mut map = roll.desk.map.lock();
            map.seen.standing = Standing::Holding;
            map.seen.owned = self.kept();
        }
        called
    }

    /// Says who this is, and what is odd about that.
    fn introduce(&self, partitions: u32) {
        let roll = self.roll;
        log::info!("{roll}: {}", roll.place.line(partitions));
        for (level, what) in roll.place.oddities(partitions) {
            log::log!(level, "{roll}: {what}");
        }
    }

    /// Claims what is held, and looks who else claims what.
    fn call(&mut self, partitions: u32) -> Result<()> {
        self.connect()?;
        self.release()?;
        let Some(register) = &mut self.register else {
            return Ok(());
        };
        let [before, after] = register.call(self.holding.held())?;
        let me = &self.roll.claimant;
        let findings = self.holding.called(&before, &after, me, partitions);
        self.seen = after;
        if let Some(since) = self.trouble.take() {
            let seconds = since.elapsed().as_secs_f64();
            log::info!("{}: claims are made again after {seconds:.1} s", self.roll);
        }
        self.judge();
        self.recheck();
        self.draw(&findings, partitions);
        self.report(findings, partitions);
        Ok(())
    }

    /// What is ours, and to stay so.
    fn kept(&self) -> Vec<u32> {
        let held = self.holding.held().iter().copied();
        held.filter(|p| self.holding.keeps(*p)).collect()
    }

    /// What of our range is another's yet, and is to be released by that one.
    fn awaited(&self) -> Vec<u32> {
        let range = self.roll.place.range(self.lanes.partitions());
        let held = self.holding.held();
        range
            .filter(|p| !held.contains(p) && !self.contest.is_left(*p))
            .collect()
    }

    /// How long until the next look at whether what is awaited was released.
    fn until_release(&self) -> Duration {
        let free = |p: &u32| !self.seen.owners.contains_key(p);
        if self.awaited().iter().any(free) {
            return Duration::ZERO; // it was
        }
        LOOK.min(self.roll.terms.renew / 2)
    }

    /// Decides about those who were met.
    fn judge(&mut self) {
        let (roll, now) = (self.roll, clock::now());
        if !self.contest.leaves_any() {
            self.rechecked = now;
        }
        for (p, rival) in roll.rivals.take() {
            if !self.holding.keeps(p) {
                continue; // who was met is the rightful owner
            }
            let who = self.member(rival);
            let me = roll.claimant.instance();
            match self.contest.met(p, rival, self.is_present(rival), now) {
                Verdict::Keep => {}
                Verdict::Stale => log::info!(
                    "{roll}: partition {p} had a position that {who} stored, which is gone"
                ),
                Verdict::Warn => log::warn!(
                    "{roll}: {who} has stored a position of partition {p}, too; if it goes on for \
                     {:?}, the one with the greater id stands down (ContestedGraceSeconds)",
                    roll.contention.grace
                ),
                Verdict::Hold => log::error!(
                    "{roll}: partition {p} is processed twice: {who} stores its position, too. This \
                     instance, {me}, keeps the partition, for its id is the lesser. Run a StatefulSet, not a \
                     Deployment, so that each instance has a number of its own"
                ),
                Verdict::StandDown => {
                    let why = format!(
                        "contested position: instance {rival} was also writing it, so this instance stood \
                         down"
                    );
                    self.lanes.stand_down(p, why);
                    self.leave(p);
                    log::error!(
                        "{roll}: partition {p} is processed twice: {who} stores its position, too. This \
                         instance, {me}, STANDS DOWN, for its id is the greater. Run a StatefulSet, not a \
                         Deployment, so that each instance has a number of its own"
                    );
                }
            }
        }
    }

    /// Whether those are gone that partitions were left to. What comes back is taken with the next step.
    fn recheck(&mut self) {
        let (roll, every) = (self.roll, self.roll.contention.recheck);
        if every.is_zero() || self.rechecked.elapsed() < every {
            return;
        }
        self.rechecked = clock::now();
        let members = &self.seen.members;
        let present = |id| members.iter().any(|m| m.instance() == id);
        for (p, rival, what) in self.contest.recheck(present) {
            let who = self.member(rival);
            match what {
                Return::Back => log::warn!(
                    "{roll}: {who} is gone, to which partition {p} was left: it is taken up again"
                ),
                Return::Wait => log::warn!(
                    "{roll}: partition {p} is left to {who}, which is still there; looked at again in \
                     {every:?}"
                ),
                Return::Never => log::error!(
                    "{roll}: partition {p} was left to others too often to be taken up again, though {who} \
                     is gone: restart this instance when each has a number of its own"
                ),
            }
        }
    }

    /// How long until the next look at who partitions were left to, or the next call if that comes first.
    fn until_recheck(&self) -> Duration {
        let Contention { recheck, .. } = self.roll.contention;
        if recheck.is_zero() {
            return self.roll.terms.renew;
        }
        recheck.saturating_sub(self.rechecked.elapsed())
    }

    /// Gives up a partition whose lane does not count any more.
    fn leave(&mut self, partition: u32) {
        self.holding.leave(partition);
        self.roll.desk.left(partition);
    }

    fn is_present(&self, id: InstanceId) -> bool {
        self.seen.members.iter().any(|m| m.instance() == id)
    }

    /// An instance as people know it.
    fn member(&self, id: InstanceId) -> Member {
        let known = self.seen.members.iter().chain(self.seen.owners.values());
        let mut known = known.filter(|c| c.instance() == id).map(Member::from);
        known.next().unwrap_or_else(|| Member {
            instance: id.to_string(),
            pod: "instance".to_owned(),
            epoch: String::new(),
        })
    }

    /// Brings the map up to date.
    fn draw(&self, findings: &Findings, partitions: u32) {
        let roll = self.roll;
        let mut map = roll.desk.map.lock();
        let mut seen = map.seen.clone();
        let owner = |p| self.seen.owners.get(&p).map(Member::from);
        seen.owners = (0..partitions).map(owner).collect();
        seen.members = self.seen.members.iter().map(Member::from).collect();
        seen.owned = self.kept();
        let claims = findings.contested.iter();
        seen.contested = claims.map(|(p, c)| (*p, Member::from(c))).collect();
        for (p, rival) in self.contest.open() {
            if seen.contested.iter().all(|(q, _)| *q != p) {
                seen.contested.push((p, self.member(rival)));
            }
        }
        seen.contested.sort();
        seen.standing = Standing::Holding;
        let news = map.draw(seen).then(|| map.seen.clone());
        drop(map); // the logger is foreign code, and may ask for it
        if let Some(map) = news {
            log::info!("{roll}: claims partitions {}; {map}", Each(&map.owned));
        }
    }

    /// Says what is wrong: at once when it is news, and else now and then.
    fn report(&mut self, findings: Findings, partitions: u32) {
        let roll = self.roll;
        let map = roll.desk.map.lock().now();
        let Findings { unowned, contested } = findings;
        // Instances that start together are not there at the same moment.
        let lasts = map.unowned_for.is_some_and(|t| t >= roll.terms.renew);
        if unowned.is_empty() {
            self.gap.clear();
            self.quiet_gap.reset();
        } else if lasts {
            let more = self.quiet_gap.permit();
            let before = std::mem::replace(&mut self.gap, unowned);
            let unowned = &self.gap;
            if before != *unowned || more.is_some() {
                log::error!(
                    "{roll}: ownership gap: partitions {} of {partitions} are claimed by no instance and \
                     consumed by nobody. Is {COUNT} or Instances:Count, {} here, how many instances run?{}; {map}",
                    Each(unowned),
                    roll.place.count(),
                    HeldBack(more.unwrap_or(0))
                );
            }
        }
        let before = std::mem::replace(&mut self.doubles, contested);
        let contested = &self.doubles;
        let mut news = false;
        for (p, by) in contested {
            if before.iter().any(|(q, c)| q == p && c == by) {
                continue;
            }
            news = true;
            let (me, by) = (Member::from(&roll.claimant), Member::from(by));
            log::error!(
                "{roll}: partition {p} is processed twice: it is this instance's, {me}, and {by}, epoch \
                 {:?}, claims it, too. Run a StatefulSet, not a Deployment, so that each instance has a \
                 number of its own",
                by.epoch
            );
        }
        if contested.is_empty() {
            self.quiet_doubles.reset();
        } else if let Some(more) = self.quiet_doubles.permit().filter(|_| !news) {
            let those: Vec<u32> = contested.iter().map(|(p, _)| *p).collect();
            log::error!(
                "{roll}: partitions {} are still processed twice{}",
                Each(&those),
                HeldBack(more)
            );
        }
    }

    fn failed(&mut self, e: &Error) -> Duration {
        self.register.take_if(|_| !e.keeps_connection());
        if self.roll.desk.interrupt.bits() & STOP == 0
            && let Some(more) = self.quiet.permit()
        {
            self.trouble.get_or_insert_with(clock::now);
            log::warn!(
                "{}: the claims could not be made: {e}; tried again, and the partitions are read all the \
                 same{}",
                self.roll,
                HeldBack(more)
            );
        }
        RETRY
    }

    /// Waits for the next call: until the time has come, somebody asks for it, a lane has left, or a rival was
    /// met.
    fn watch(&mut self, wake: Instant) {
        let wake = self.closing.map_or(wake, |until| wake.min(until));
        let interrupt = &self.roll.desk.interrupt;
        let mut called = STOP | desk::LOOK | HEAR;
        if self.closing.is_none() {
            called |= CLOSE;
        }
        loop {
            let now = clock::now();
            if now >= wake {
                return;
            }
            // Who stores positions wakes nobody, and may meet rivals with every message.
            let nap = wake.saturating_duration_since(now).min(LOOK);
            if interrupt.sleep(nap, called) {
                if interrupt.bits() & (called & !HEAR) != 0 || self.closing.is_some() {
                    return;
                }
                interrupt.clear(HEAR);
                if self.roll.desk.is_heard() {
                    return; // to be released, or tried again
                }
            } else if self.roll.rivals.any() {
                return;
            }
        }
    }

    /// Gives up what lanes have left.
    fn release(&mut self) -> Result<()> {
        let mut left = self.roll.desk.left.lock().clone();
        left.retain(|p| self.holding.is_leaving(*p));
        if let Some(register) = self.register.as_mut().filter(|_| !left.is_empty()) {
            register.release(&left, false)?;
            for p in &left {
                self.holding.released(*p);
            }
            let left: Vec<u32> = left.iter().copied().collect();
            log::info!("{}: released partitions {}", self.roll, Each(&left));
        }
        let mut all = self.roll.desk.left.lock();
        all.retain(|p| self.holding.is_leaving(*p));
        Ok(())
    }

    /// The end: all claims but those of lanes that have not ended, which end by themselves, and the sign of
    /// life.
    fn give_everything_up(&mut self) {
        let roll = self.roll;
        let running = self.lanes.running();
        let free = self.holding.held().difference(&running).copied().collect();
        let done = self.connect().and_then(|()| match &mut self.register {
            Some(register) => register.release(&free, true),
            None => Ok(()),
        });
        let mut map = roll.desk.map.lock();
        map.seen.standing = Standing::Joining;
        map.seen.owned.clear();
        drop(map); // the logger is foreign code, and may ask for it
        if let Err(e) = done {
            log::warn!(
                "{roll}: the claims could not be released, and end by themselves within {:?}: {e}",
                roll.terms.ttl
            );
        }
    }

    /// Makes a connection unless there is one.
    fn connect(&mut self) -> Result<()> {
        self.register
            .take_if(|r| r.connection.check_idle().is_err());
        if self.register.is_none() {
            let Roll {
                terms,
                claimant,
                desk,
                ..
            } = self.roll;
            self.register = Some(Register::new(
                terms,
                claimant,
                terms.dial(&desk.interrupt, terms.timeout())?,
            ));
        }
        Ok(())
    }
}
