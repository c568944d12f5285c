//! The timer thread of a consumer: stores what lanes have finished, and looks for reset markers, a group
//! of partitions at a time.

use std::{
    fmt,
    ops::Range,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use crate::{
    ConsumerSettings, Result, clock,
    error::{Error, ErrorKind},
    monitor::Meters,
    net::{Connection, Inbox, Interrupt, Target},
    ownership::Lease,
    position::{Snapshot, Table},
    quiet::{HeldBack, Quiet},
};

use super::{
    fenced::Fate,
    resets::Resets,
    store::{GROUP, PositionStore},
};

/// Asks for everything to be stored now.
pub(crate) const FLUSH: u32 = 1 << 1;

/// Keeps the stored positions of a consumer near those in the table.
pub(crate) struct Flusher {
    name: String,
    table: Arc<Table>,
    resets: Arc<Resets>,
    store: PositionStore,
    target: Arc<Target>,
    client_name: String,
    interrupt: Arc<Interrupt>,
    /// Woken whenever everything was stored, or could not be.
    flushed: Arc<Interrupt>,
    connection: Option<Connection>,
    dirty: Vec<(u32, Snapshot)>,
    /// What became of them.
    fates: Vec<Fate>,
    /// Of a group, the partitions whose markers are looked for.
    owned: Vec<u32>,
    commands: Vec<u8>,
    inbox: Inbox,
    /// Since when positions cannot be stored, where a line was written about it.
    announced: Option<Instant>,
    quiet: Quiet,
    quiet_polls: Quiet,
    quiet_fates: Quiet,
    meters: Arc<Meters>,
    timeout: Duration,
}

/// What a flusher keeps.
pub(crate) struct Kept {
    pub(crate) table: Arc<Table>,
    pub(crate) resets: Arc<Resets>,
    pub(crate) store: PositionStore,
    pub(crate) meters: Arc<Meters>,
}

/// What a flusher does from time to time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rhythm {
    /// How often every partition has its turn.
    pub(crate) interval: Duration,
    /// Whether positions are stored by the timer. In sync modes lanes do that, and what is left at the end
    /// is the flusher's.
    pub(crate) stores: bool,
}

impl Rhythm {
    pub(crate) fn of(settings: &ConsumerSettings) -> Self {
        Self {
            interval: settings.persist_interval,
            stores: !settings.persist.is_sync(),
        }
    }
}

impl Flusher {
    pub(crate) fn new(
        name: String,
        kept: Kept,
        target: Arc<Target>,
        client_name: String,
        [interrupt, flushed]: [Arc<Interrupt>; 2],
        timeout: Duration,
    ) -> Self {
        let Kept {
            table,
            resets,
            store,
            meters,
        } = kept;
        Self {
            name,
            store,
            target,
            client_name,
            interrupt,
            flushed,
            connection: None,
            dirty: Vec::with_capacity(GROUP),
            fates: Vec::with_capacity(GROUP),
            owned: Vec::with_capacity(GROUP),
            commands: Vec::with_capacity(GROUP * 256),
            inbox: Inbox::default(),
            announced: None,
            quiet: Quiet::default(),
            quiet_polls: Quiet::default(),
            quiet_fates: Quiet::default(),
            meters,
            timeout,
            resets,
            table,
        }
    }

    /// Gives each partition a turn in every interval, until one of the bits of `until` is set: its position
    /// is stored and its reset marker looked for. The calls are spread over the interval, so that many
    /// partitions never hold the server up together. [`FLUSH`] has everything stored in between.
    pub(crate) fn run(&mut self, rhythm: Rhythm, until: u32) {
        // Before there is anything to store, so that the first positions need not wait for it.
        // What keeps it from connecting now is reported when it keeps it from storing.
        self.connection = self.dial().ok();
        let mut group = 0;
        loop {
            let groups = self.groups().max(1);
            let pause = (rhythm.interval / groups as u32).max(Duration::from_millis(1));
            if !self.interrupt.sleep(pause, until | FLUSH) {
                group %= groups;
                // A server that takes no position is not asked for markers: one line tells of the trouble.
                if !rhythm.stores || self.flush_group(group) {
                    self.look_for_resets(group);
                }
                group += 1;
            } else if self.interrupt.bits() & until != 0 {
                return;
            } else {
                self.flush_all();
            }
        }
    }

    /// Partitions are written in so many groups; there may be more of them each time.
    fn groups(&self) -> usize {
        (self.table.len() as usize).div_ceil(GROUP)
    }

    /// Writes everything that is not stored yet. Returns the partitions whose position could not be.
    pub(crate) fn flush_all(&mut self) -> Vec<u32> {
        self.interrupt.clear(FLUSH); // first: who asks from now on may have finished more
        for group in 0..self.groups() {
            if !self.flush_group(group) {
                break; // the others would fail the same way, each after its own timeout
            }
        }
        self.flushed.wake();
        (0..self.table.len())
            .filter(|p| self.unstored(*p).is_some())
            .collect()
    }

    fn partitions_of(&self, group: usize) -> Range<u32> {
        let first = (group * GROUP) as u32;
        first..(first + GROUP as u32).min(self.table.len())
    }

    /// A position that is to be stored, and by nobody else: a reset that is under way decides for itself.
    fn unstored(&self, p: u32) -> Option<Snapshot> {
        let now = self.table.unstored(p)?;
        (!self.resets.is_under_way(p)).then_some(now)
    }

    /// False when the group could not be written; what became of each position is another matter.
    fn flush_group(&mut self, group: usize) -> bool {
        self.dirty.clear();
        for p in self.partitions_of(group) {
            let now = self.unstored(p);
            self.dirty.extend(now.map(|now| (p, now)));
        }
        if self.dirty.is_empty() {
            return true;
        }
        if self
            .lease()
            .is_some_and(|lease| !lease.fence().holds_for_certain())
        {
            return false; // they may be another's by now, and the lanes are told
        }
        self.fates.clear();
        let written = self.ask("store positions", |f, connection| {
            let Self {
                store,
                commands,
                inbox,
                dirty,
                fates,
                timeout,
                ..
            } = f;
            let each = |_, fate| fates.push(fate);
            store.store(connection, (commands, inbox), dirty, *timeout, each)
        });
        match written {
            Ok(()) => {
                self.succeeded();
                self.heed_fates(group);
                true
            }
            Err(e) => {
                self.failed(&e);
                false
            }
        }
    }

    /// Draws the conclusions from what became of the positions of a group.
    fn heed_fates(&mut self, group: usize) {
        let (mut reset, mut disowned) = (false, false);
        for ((p, written), fate) in self.dirty.iter().zip(&self.fates) {
            match fate {
                Fate::Stored => self.table.stored(*p, written.version),
                Fate::Behind => {
                    // Nothing of it has to be handled again.
                    self.table.stored(*p, written.version);
                    if self.resets.stored(*p) > written.id {
                        continue; // our lane has moved it, as with a dead letter
                    }
                    if let Some(more) = self.quiet_fates.permit() {
                        log::warn!(
                            "{}: position {} of partition {p} is not stored, since what is stored lies \
                             ahead; somebody else has written it{}",
                            self.name,
                            written.id,
                            HeldBack(more)
                        );
                    }
                    continue;
                }
                Fate::Reset => reset = true,
                Fate::Unclaimed => disowned = true,
                Fate::Anothers => {
                    // It is for them to say, and they know no more than was stored before.
                    self.table.stored(*p, written.version);
                    disowned = true;
                }
            }
            if *fate != Fate::Stored {
                log::debug!("{}: partition {p} is not stored: {}", self.name, fate.why());
            }
        }
        if let Some(lease) = self.lease().filter(|_| disowned) {
            lease.desk().look_again();
        }
        if reset {
            self.look_for_resets(group);
        }
    }

    fn lease(&self) -> Option<&Arc<Lease>> {
        self.store.lease()
    }

    /// Finds the reset markers of a group and calls their lanes.
    fn look_for_resets(&mut self, group: usize) {
        self.owned.clear();
        for p in self.partitions_of(group) {
            if self.resets.is_owned(p) {
                self.owned.push(p);
            }
        }
        if self.owned.is_empty() {
            return;
        }
        self.commands.clear();
        self.store
            .render_marker_poll(&mut self.commands, &self.owned);
        let looked = self.ask("look for reset markers", |f, connection| {
            let (name, owned, resets) = (&f.name, &f.owned, &f.resets);
            let found = |i: usize, value: &[u8]| {
                let p = owned[i];
                if let Some(reset) = resets.found(p, value) {
                    log::warn!("{name}: reset marker found for partition {p}: {reset}");
                }
            };
            f.inbox
                .ask_fields(connection, &f.commands, owned.len(), f.timeout, found)
        });
        match looked {
            // What is refused here may be granted elsewhere; of a server that is away the lanes tell.
            Err(e) if e.kind() == ErrorKind::Server => {
                if let Some(more) = self.quiet_polls.permit() {
                    log::warn!("{self}: {e}; tried again{}", HeldBack(more));
                }
            }
            Err(e) => log::debug!("{self}: {e}"),
            Ok(()) => {}
        }
    }

    /// Runs commands over the connection that is kept, or a new one.
    fn ask(
        &mut self,
        operation: &'static str,
        run: impl FnOnce(&mut Self, &mut Connection) -> Result<()>,
    ) -> Result<()> {
        // Servers hang up on the idle, which is no trouble before anything was written.
        let kept = self.connection.take();
        let kept = kept.and_then(|mut c| c.check_idle().is_ok().then_some(c));
        let mut connection = match kept {
            Some(connection) => connection,
            None => self.dial()?,
        };
        let done = run(self, &mut connection);
        if done.as_ref().err().is_none_or(Error::keeps_connection) {
            self.connection = Some(connection);
        }
        done.map_err(|e| {
            e.during(operation)
                .on_key(self.store.key())
                .at(self.target.endpoint())
        })
    }

    fn dial(&self) -> Result<Connection> {
        let (name, interrupt) = (&self.client_name, Some(&self.interrupt));
        Connection::dial(&self.target, name, interrupt, self.timeout)
    }

    /// The newest positions stay in the table and are written with the next flush that succeeds.
    fn failed(&mut self, e: &Error) {
        self.meters.flush_failures.fetch_add(1, Ordering::Relaxed);
        if let Some(more) = self.quiet.permit() {
            self.announced.get_or_insert_with(clock::now);
            log::warn!(
                "{self}: positions of {} partitions are not stored: {e}; kept in memory and tried again{}",
                self.dirty.len(),
                HeldBack(more)
            );
        }
    }

    fn succeeded(&mut self) {
        if let Some(since) = self.announced.take() {
            // The window outlasts the trouble, or a server that comes and goes would fill the log.
            let seconds = since.elapsed().as_secs_f64();
            log::info!("{self}: positions are stored again after {seconds:.1} s");
        }
    }
}

impl fmt::Display for Flusher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
