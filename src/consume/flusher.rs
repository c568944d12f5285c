//! The timer thread of a consumer: stores what lanes have finished, a group of partitions at a time.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    Result, clock,
    error::Error,
    net::{Connection, Inbox, Interrupt, Target},
    position::{Snapshot, Table},
    quiet::{HeldBack, Quiet},
};

use super::store::{GROUP, PositionStore};

/// Asks for everything to be stored now.
pub(crate) const FLUSH: u32 = 1 << 1;

/// Keeps the stored positions of a consumer near those in the table.
pub(crate) struct Flusher {
    name: String,
    table: Arc<Table>,
    store: PositionStore,
    target: Arc<Target>,
    client_name: String,
    interrupt: Arc<Interrupt>,
    /// Woken whenever everything was stored, or could not be.
    flushed: Arc<Interrupt>,
    connection: Option<Connection>,
    dirty: Vec<(u32, Snapshot)>,
    commands: Vec<u8>,
    inbox: Inbox,
    /// Since when positions cannot be stored, where a line was written about it.
    announced: Option<Instant>,
    quiet: Quiet,
    timeout: Duration,
}

impl Flusher {
    pub(crate) fn new(
        name: String,
        table: Arc<Table>,
        store: PositionStore,
        target: Arc<Target>,
        client_name: String,
        [interrupt, flushed]: [Arc<Interrupt>; 2],
        timeout: Duration,
    ) -> Self {
        Self {
            name,
            store,
            target,
            client_name,
            interrupt,
            flushed,
            connection: None,
            dirty: Vec::with_capacity(GROUP),
            commands: Vec::with_capacity(GROUP * 256),
            inbox: Inbox::default(),
            announced: None,
            quiet: Quiet::default(),
            timeout,
            table,
        }
    }

    /// Writes each partition's position within `interval` of its change, until one of the bits of `until`
    /// is set; without an interval only when it is asked to ([`FLUSH`]). The calls are spread over the
    /// interval, so that many partitions never hold the server up together.
    pub(crate) fn run(&mut self, interval: Option<Duration>, until: u32) {
        if interval.is_some() {
            // Before there is anything to store, so that the first positions need not wait for it.
            // What keeps it from connecting now is reported when it keeps it from storing.
            self.connection = self.dial().ok();
        }
        let mut group = 0;
        loop {
            let groups = self.groups().max(1);
            let pause = interval.map_or(Duration::MAX, |i| i / groups as u32);
            let pause = pause.max(Duration::from_millis(1));
            if !self.interrupt.sleep(pause, until | FLUSH) {
                self.flush_group(group % groups);
                group = (group + 1) % groups;
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
            .filter(|p| self.table.unstored(*p).is_some())
            .collect()
    }

    /// True when nothing of the group is left to store.
    fn flush_group(&mut self, group: usize) -> bool {
        self.dirty.clear();
        let first = (group * GROUP) as u32;
        for p in first..(first + GROUP as u32).min(self.table.len()) {
            self.dirty
                .extend(self.table.unstored(p).map(|now| (p, now)));
        }
        if self.dirty.is_empty() {
            return true;
        }
        match self.write() {
            Ok(()) => {
                for (p, written) in &self.dirty {
                    self.table.stored(*p, written.version);
                }
                self.succeeded();
                true
            }
            Err(e) => {
                self.failed(&e);
                false
            }
        }
    }

    fn write(&mut self) -> Result<()> {
        self.commands.clear();
        let n = self.store.render(&mut self.commands, &self.dirty);
        // Servers hang up on the idle, which is no trouble before anything was written.
        let kept = self.connection.take();
        let kept = kept.and_then(|mut c| c.check_idle().is_ok().then_some(c));
        let mut connection = match kept {
            Some(connection) => connection,
            None => self.dial()?,
        };
        let written = self
            .inbox
            .exchange(&mut connection, &self.commands, n, self.timeout);
        if written.as_ref().err().is_none_or(Error::keeps_connection) {
            self.connection = Some(connection);
        }
        written.map_err(|e| {
            e.during("store positions")
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
