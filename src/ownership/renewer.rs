//! The thread that keeps an instance's claims alive: it renews, and runs nothing else, so that nothing
//! else can keep it from renewing.
//!
//! What others leave with the [`Lease`] it acts on between two renewals: to a renewal under way what was
//! given up meanwhile would still be ours.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use redis::Value;

use crate::{
    Error, ErrorKind, Result, clock,
    fence::Sent,
    net::{
        Connection, STOP,
        script::{Form, Script, by_hash_first},
    },
    quiet::{HeldBack, Quiet},
    wire::Claimant,
};

use super::{
    desk::{CLOSE, HEAR, LOOK, Lanes},
    lease::Lease,
    map::{Member, Ranges, Standing},
    renewal::{Renewal, read},
    script::{CYCLE, RELEASE},
    share::{Rhythm, Share, View},
};

/// No call waits for less.
const LEAST_WAIT: Duration = Duration::from_millis(10);

/// The server's clock, as it was told last.
#[derive(Clone, Copy, Default)]
struct ServerClock {
    ms: u64,
    /// When it was asked for, by our own.
    asked_ms: u64,
}

impl ServerClock {
    /// What it says so long from now; rather more than less, for it was looked at after it was asked for.
    fn after(self, time: Duration) -> u64 {
        let since = clock::boot_ms().saturating_sub(self.asked_ms);
        self.ms + since + clock::ceil_ms(time)
    }
}

/// What the thread knows.
pub(super) struct Renewer<'a> {
    lease: &'a Lease,
    lanes: &'a dyn Lanes,
    share: Share,
    connection: Option<Connection>,
    server: ServerClock,
    /// No renewal has succeeded yet.
    first: bool,
    superseded: bool,
    /// Partitions whose lane could not be started, and when: they are refused for an interval.
    unable: BTreeMap<u32, Instant>,
    /// How many fields the hash had when it was last looked at.
    length: Option<u64>,
    looked: Instant,
    /// When the wait for the lanes is over.
    closing: Option<Instant>,
    is_over: bool,
    /// Since when renewals fail, where a line was written about it.
    trouble: Option<Instant>,
    quiet: Quiet,
}

impl<'a> Renewer<'a> {
    pub(super) fn new(lease: &'a Lease, lanes: &'a dyn Lanes) -> Self {
        Self {
            lease,
            lanes,
            share: Share::default(),
            connection: None,
            server: ServerClock::default(),
            first: true,
            superseded: false,
            unable: BTreeMap::new(),
            length: None,
            looked: clock::now(),
            closing: None,
            is_over: false,
            trouble: None,
            quiet: Quiet::default(),
        }
    }

    pub(super) fn run(&mut self, begun: &mut dyn FnMut(Result<()>), over: &mut dyn FnMut()) {
        let mut begun = Some(begun);
        loop {
            // First: what comes from now on is seen by the wait.
            self.lease.desk.interrupt.clear(LOOK | HEAR);
            if self.is_over {
                return;
            }
            if self.is_closed() {
                self.is_over = true;
                let stuck = self.give_everything_up(over);
                return self.linger(stuck);
            }
            let renewed = self.renew();
            let pause = match &renewed {
                Ok(pause) => *pause,
                Err(e) => self.failed(e),
            };
            if let Some(begun) = begun.take() {
                begun(renewed.map(drop));
            }
            self.watch(clock::now() + pause);
            if self.lease.desk.interrupt.bits() & STOP != 0 {
                return self.lease.fence.end();
            }
        }
    }

    /// Whether the consumer ends and its lanes have done so, or have had their time.
    fn is_closed(&mut self) -> bool {
        if self.lease.desk.interrupt.bits() & CLOSE == 0 {
            return false;
        }
        let until = clock::now() + self.lease.terms.shutdown_timeout;
        let until = *self.closing.get_or_insert(until);
        self.lanes.all_done() || clock::now() >= until
    }

    fn rhythm(&self) -> Rhythm {
        Rhythm {
            renew: self.lease.terms.renew,
            ttl: self.lease.terms.ttl,
        }
    }

    /// How long to wait for the server: not longer than claims last that have to be ended in time.
    fn timeout(&self) -> Duration {
        let most = self.lease.terms.timeout();
        if self.share.held().is_empty() {
            return most;
        }
        most.min(self.lease.fence.left().max(LEAST_WAIT))
    }

    /// One renewal, and what follows from it. Returns when to renew again.
    fn renew(&mut self) -> Result<Duration> {
        self.connect()?;
        self.release()?;
        let (sent, renewal) = self.cycle()?;
        // Whatever was held under a fence that has ended was let go by the lanes.
        self.end_if_over();
        let view = match renewal {
            Renewal::Superseded(by) => return Ok(self.stand_down(&by)),
            Renewal::Renewed(view) => view,
        };
        self.lease.fence.extend(sent, self.lease.terms.ttl);
        if !self.lease.fence.holds_for_certain() {
            let what = "the answer came when the claims may have ended again";
            return Err(self.about(Error::new(ErrorKind::Timeout, "renew", what)));
        }
        (self.first, self.superseded) = (false, false);
        let trouble = self.trouble.take();
        let next = self.apply(&view);
        if let Some(since) = trouble {
            let seconds = since.elapsed().as_secs_f64();
            log::info!(
                "{}: claims are renewed again after {seconds:.1} s",
                self.lease
            );
        }
        Ok(next)
    }

    /// What a renewal found has consequences for the lanes.
    fn apply(&mut self, view: &View) -> Duration {
        let (lease, lanes) = (self.lease, self.lanes);
        self.length = Some(view.length);
        self.looked = clock::now();
        let rhythm = self.rhythm();
        let step = self
            .share
            .renewed(view, lanes.partitions(), clock::now(), rhythm);
        // First all that has to be done, then what is to be told: the logger is foreign code.
        step.lost.iter().for_each(|p| lanes.cut(*p));
        for p in &step.give_up {
            if !lanes.give_up(*p) {
                lease.desk.left(*p);
            }
        }
        // Where all is over nothing begins; what was claimed all the same is given up with the rest.
        for p in step.taken {
            if self.closing.is_none() && !lanes.take(p) {
                self.cannot_read(p);
            }
        }
        let changed = self.draw(view);
        if !view.restored.is_empty() || view.presence_gone {
            log::error!(
                "{lease}: claims were deleted on the server; those of partitions {} are made again from memory",
                ranges(&view.restored)
            );
        }
        for p in &step.lost {
            let owner = view.owners.get(p).map(Member::from);
            let to = owner.map_or("nobody".into(), |m| format!("{m}, epoch {:?}", m.epoch));
            log::error!(
                "{lease}: LOST partition {p} to {to}; its lane, epoch {:?}, stops, and what it is at does not \
                 count",
                lease.claimant.incarnation()
            );
        }
        if !step.give_up.is_empty() {
            let to = ranges(&step.give_up);
            log::info!("{lease}: gives up partitions {to}, which are another's share");
        }
        if changed {
            // not under the lock: the logger may ask for health
            let seen = lease.desk.map.lock().seen.clone();
            log::info!("{lease}: {seen}");
        }
        step.next
    }

    /// Brings the map up to date; true when it says something new.
    fn draw(&self, view: &View) -> bool {
        let mut map = self.lease.desk.map.lock();
        let mut seen = map.seen.clone();
        let owners = |p| view.owners.get(&p).map(Member::from);
        seen.owners = (0..self.lanes.partitions()).map(owners).collect();
        seen.members = view.members.iter().map(Member::from).collect();
        seen.owned = view.held.iter().copied().collect();
        seen.standing = Standing::Holding;
        map.draw(seen)
    }

    fn failed(&mut self, e: &Error) -> Duration {
        self.connection.take_if(|_| !e.keeps_connection());
        if self.lease.desk.interrupt.bits() & STOP == 0
            && let Some(more) = self.quiet.permit()
        {
            self.trouble.get_or_insert_with(clock::now);
            let left = self.lease.fence.left().as_secs_f64();
            log::warn!(
                "{}: the claims were NOT RENEWED, and hold for {left:.1} s yet: {e}; tried again{}",
                self.lease,
                HeldBack(more)
            );
        }
        Share::failed(self.rhythm())
    }

    fn stand_down(&mut self, by: &Claimant) -> Duration {
        let (lease, by) = (self.lease, Member::from(by));
        self.end();
        lease.standing(Standing::Superseded);
        if !std::mem::replace(&mut self.superseded, true) {
            log::error!(
                "{lease}: SUPERSEDED: {by}, epoch {}, goes by the same instance id and started after this \
                 process, epoch {}, which stands down: give each process a POD_NAME of its own",
                by.epoch,
                lease.claimant.incarnation()
            );
        }
        lease.terms.renew
    }

    /// Waits for the next renewal: until the time has come, somebody asks for it, or something has
    /// changed at the server. Meanwhile it ends what is over and hears what is left.
    fn watch(&mut self, wake: Instant) {
        let wake = self.closing.map_or(wake, |until| wake.min(until));
        let interrupt = Arc::clone(&self.lease.desk.interrupt);
        loop {
            self.end_if_over();
            let now = clock::now();
            if now >= wake {
                return;
            }
            let look = self.looked + self.rhythm().look();
            let mut nap = wake.min(look).saturating_duration_since(now);
            if !self.share.held().is_empty() {
                nap = nap.min(self.lease.fence.left());
            }
            let mut called = STOP | LOOK | HEAR;
            if self.closing.is_none() {
                called |= CLOSE;
            }
            let nap = nap.max(Duration::from_millis(1));
            if interrupt.sleep(nap, called) {
                if interrupt.bits() & (called & !HEAR) != 0 || self.closing.is_some() {
                    return;
                }
                interrupt.clear(HEAR);
                if self.lease.desk.is_heard() {
                    return; // to be released, and looked at again
                }
            }
            self.hand_over();
            if clock::now() >= look && self.has_changed() {
                return;
            }
        }
    }

    /// Whether something has come or gone since the last look, or nobody can tell.
    fn has_changed(&mut self) -> bool {
        self.looked = clock::now();
        let timeout = self.timeout();
        let Some(connection) = &mut self.connection else {
            return false; // the next attempt to connect has its time
        };
        let mut cmd = redis::cmd("HLEN");
        cmd.arg(&self.lease.terms.hash);
        let length: Result<u64> = connection.ask(&cmd, timeout);
        if length.as_ref().is_err_and(|e| !e.keeps_connection()) {
            self.connection = None;
        }
        let length = length.ok();
        std::mem::replace(&mut self.length, length) != length
    }

    /// Gives the partitions of stalled lanes to whoever can handle them.
    fn hand_over(&mut self) {
        let others = self.lease.desk.map.lock().seen.members.len() > 1;
        let stalled = self.lanes.stalled();
        let mut ours: Vec<u32> = stalled.intersection(self.share.held()).copied().collect();
        let left = self.lease.desk.left.lock().clone();
        ours.retain(|p| !left.contains(p)); // else it was given up before
        if !others || ours.is_empty() || self.closing.is_some() {
            return;
        }
        for p in &ours {
            self.lanes.cut(*p);
            self.share.leave(*p);
            self.lease.desk.left(*p);
        }
        log::error!(
            "{}: the handlers of partitions {} do not come back; they go to another instance until they do \
             (HandOverWhenStalled)",
            self.lease,
            Ranges(&ours)
        );
    }

    /// Lets go of everything when it may be another's.
    fn end_if_over(&mut self) {
        if !self.share.held().is_empty() && !self.lease.fence.holds_for_certain() {
            self.end();
            log::error!(
                "{}: the claims ENDED, since they were not renewed in time: nothing is handled until they \
                 are made again",
                self.lease
            );
        }
    }

    fn end(&mut self) {
        self.lease.fence.end();
        self.lease.standing(Standing::Lapsed);
        self.lease.desk.left.lock().clear();
        for p in self.share.ended() {
            self.lanes.cut(p);
        }
    }

    /// No lane could be started: others are to have a try.
    fn cannot_read(&mut self, partition: u32) {
        self.share.leave(partition);
        self.lease.desk.left(partition);
        self.unable.insert(partition, clock::now());
    }

    /// Gives up what lanes have left.
    fn release(&mut self) -> Result<()> {
        let unread = std::mem::take(&mut *self.lease.desk.unread.lock());
        for p in unread {
            self.cannot_read(p);
        }
        let mut left = self.lease.desk.left.lock().clone();
        // Of an earlier tenure of a partition that was taken anew meanwhile nothing follows.
        left.retain(|p| self.share.is_leaving(*p));
        if !left.is_empty() {
            self.give_up(&left, false)?;
            self.share.released(&left);
        }
        // Those that come from now on are of the next turn.
        let leaving = |p: &u32| self.share.is_leaving(*p) && !left.contains(p);
        self.lease.desk.left.lock().retain(leaving);
        if !left.is_empty() {
            log::info!("{}: released partitions {}", self.lease, ranges(&left));
        }
        Ok(())
    }

    /// The end: all claims but those of lanes that have not ended, and the sign of life. Returns the
    /// partitions of such lanes.
    fn give_everything_up(&mut self, over: &mut dyn FnMut()) -> BTreeSet<u32> {
        let lease = self.lease;
        let running = self.lanes.running();
        let held = self.share.held();
        let free = held.difference(&running).copied().collect();
        let stuck = held.intersection(&running).copied().collect();
        let done = self.connect().and_then(|()| self.give_up(&free, true));
        lease.fence.end();
        self.share.ended();
        lease.standing(Standing::Joining);
        over();
        match done {
            Ok(()) => log::debug!("{lease}: released partitions {}", ranges(&free)),
            Err(e) => log::warn!(
                "{lease}: the claims could not be released, and end by themselves within {:?}: {e}",
                lease.terms.ttl
            ),
        }
        stuck
    }

    /// Releases the claims of lanes that end late, for as long as those claims last without renewal.
    fn linger(&mut self, mut stuck: BTreeSet<u32>) {
        let until = clock::now() + self.lease.terms.ttl;
        while !stuck.is_empty() && clock::now() < until {
            let left = until.saturating_duration_since(clock::now());
            if self.lease.desk.interrupt.sleep(left, STOP | HEAR)
                && self.lease.desk.interrupt.bits() & STOP != 0
            {
                return;
            }
            self.lease.desk.interrupt.clear(HEAR);
            let running = self.lanes.running();
            let ended = stuck.difference(&running).copied().collect();
            if self
                .connect()
                .and_then(|()| self.give_up(&ended, false))
                .is_err()
            {
                return;
            }
            stuck.retain(|p| running.contains(p));
        }
    }

    /// Deletes claims; what is another's meanwhile is left alone.
    fn give_up(&mut self, partitions: &BTreeSet<u32>, presence: bool) -> Result<()> {
        let claimant = &self.lease.claimant;
        let mut args = vec![claimant.as_str().to_owned()];
        args.extend(partitions.iter().map(u32::to_string));
        if presence {
            args.push(claimant.presence());
        }
        self.call(&RELEASE, &args, "release claims").map(drop)
    }

    /// Makes a connection unless there is one, and finds out what its server can do.
    fn connect(&mut self) -> Result<()> {
        let kept = self.connection.take();
        if let Some(kept) = kept.and_then(|mut c| c.check_idle().is_ok().then_some(c)) {
            self.connection = Some(kept);
            return Ok(());
        }
        let Lease { terms, desk, .. } = self.lease;
        let timeout = self.timeout();
        let (mut connection, by_field) = terms.dial(&desk.interrupt, timeout)?;
        let asked_ms = clock::boot_ms();
        let ms = terms.time(&mut connection, timeout).map_err(|e| {
            let e = e.during("renew claims");
            CYCLE.saying_what_to_grant(e, &[&terms.hash, &terms.set])
        })?;
        self.server = ServerClock { ms, asked_ms };
        self.lease.by_field.store(by_field, Relaxed);
        self.connection = Some(connection);
        Ok(())
    }

    fn cycle(&mut self) -> Result<(Sent, Renewal)> {
        let (lease, lanes) = (self.lease, self.lanes);
        let (terms, me) = (&lease.terms, &lease.claimant);
        let (now, rhythm, n) = (clock::now(), self.rhythm(), lanes.partitions());
        let holds = lease.fence.holds_for_certain();
        self.unable
            .retain(|_, then| now.duration_since(*then) < terms.renew);
        let mut refused: BTreeSet<u32> = (0..n)
            .filter(|p| p % terms.modulo != terms.remainder)
            .collect();
        refused.extend(lanes.occupied());
        refused.extend(self.unable.keys());
        let may_claim = self.closing.is_none() && self.share.may_claim(now, rhythm);
        let held = if holds {
            self.share.held().clone()
        } else {
            BTreeSet::new()
        };
        let mode = if lease.by_field() { "f" } else { "s" };
        let args = [
            me.as_str().to_owned(),
            clock::ceil_ms(terms.ttl).to_string(),
            n.to_string(),
            me.presence(),
            mode.to_owned(),
            match (self.first, holds) {
                (true, _) => "first",
                (false, true) => "again",
                (false, false) => "back",
            }
            .to_owned(),
            terms.most.unwrap_or(n).to_string(),
            u8::from(may_claim).to_string(),
            blanks(&held),
            blanks(&self.share.beyond(now, rhythm)),
            blanks(&refused),
        ];
        let (sent, asked_ms) = (Sent::now(), clock::boot_ms());
        let answer = self.call(&CYCLE, &args, "renew claims")?;
        let renewal = read(answer).ok_or_else(|| {
            let what = "the answer is none of the script's";
            self.about(Error::new(ErrorKind::Protocol, "renew claims", what))
        })?;
        if let Renewal::Renewed(View { now_ms: ms, .. }) = renewal {
            self.server = ServerClock { ms, asked_ms };
        }
        Ok((sent, renewal))
    }

    /// Runs a script on the keys of the claims. It does nothing once nobody waits for the answer any more.
    fn call(&mut self, script: &Script, args: &[String], operation: &'static str) -> Result<Value> {
        let (terms, timeout, server) = (&self.lease.terms, self.timeout(), self.server);
        let Some(connection) = &mut self.connection else {
            return Err(Error::new(ErrorKind::Io, operation, "not connected"));
        };
        let answer = by_hash_first(|form: Form| {
            let (name, text) = script.named(form);
            let mut cmd = redis::cmd(name);
            cmd.arg(text)
                .arg(2)
                .arg(&terms.hash)
                .arg(&terms.set)
                .arg(args)
                .arg(server.after(timeout));
            connection.call(&cmd, timeout)
        });
        answer.map_err(|e| {
            if e.server_code() == Some("LATE") {
                // or the clocks have gone apart: of a new connection it is asked for anew
                let what = "the server had it when nobody waited for its answer any more";
                return self.about(Error::new(ErrorKind::Timeout, operation, what));
            }
            let e = script.saying_what_to_grant(e, &[&terms.hash, &terms.set]);
            self.about(e.during(operation))
        })
    }

    fn about(&self, e: Error) -> Error {
        self.lease.terms.about(e)
    }
}

fn ranges(partitions: &BTreeSet<u32>) -> String {
    let partitions: Vec<u32> = partitions.iter().copied().collect();
    Ranges(&partitions).to_string()
}

fn blanks(partitions: &BTreeSet<u32>) -> String {
    let partitions: Vec<String> = partitions.iter().map(u32::to_string).collect();
    partitions.join(" ")
}

#[cfg(all(test, not(loom)))]
mod tests;
