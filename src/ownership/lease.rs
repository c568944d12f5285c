//! The thread that keeps an instance's claims alive: it renews, and does nothing else, so that nothing
//! else can keep it from renewing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use redis::{Cmd, Value};

use crate::{
    Error, ErrorKind, Result, clock,
    fence::{Fence, Sent},
    net::{
        Connection, Interrupt, Target,
        script::{Form, by_hash_first},
    },
    quiet::{HeldBack, Quiet},
    wire::{Claimant, PRESENCE},
};

use super::{
    script::{CYCLE, RELEASE},
    share::{Rhythm, Share, View},
};

/// What the lanes of a consumer are told. None of these calls may wait for a server or a handler.
pub(crate) trait Lanes: Send + Sync {
    /// How many partitions the topic has.
    fn partitions(&self) -> u32;
    /// These are ours from now on: their lanes are to be started.
    fn take(&self, partitions: &BTreeSet<u32>);
    /// These are to be finished and stored, and then [released](Lease::release).
    fn give_up(&self, partitions: &BTreeSet<u32>);
    /// These are not ours any more: nothing of them may be begun or stored.
    fn cut(&self, partitions: &BTreeSet<u32>, why: &str);
}

/// What a lease is told once.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    /// What it is for, in logs.
    pub(crate) name: String,
    pub(crate) target: Arc<Target>,
    pub(crate) client_name: String,
    pub(crate) connect_timeout: Duration,
    /// The hash of claims, and the set of expiries beside it.
    pub(crate) hash: String,
    pub(crate) set: String,
    pub(crate) ttl: Duration,
    pub(crate) renew: Duration,
    /// The most partitions this instance takes.
    pub(crate) most: u32,
}

/// The claims of one instance of a consumer.
pub(crate) struct Lease {
    terms: Terms,
    fence: Arc<Fence>,
    /// What partitions this instance takes.
    accepts: Box<dyn Fn(u32) -> bool + Send + Sync>,
    /// Whether the server's hash fields expire by themselves.
    by_field: bool,
    /// Wakes the thread, and ends it.
    interrupt: Arc<Interrupt>,
    share: Mutex<Share>,
    /// Who owned what at the last renewal.
    map: Mutex<BTreeMap<u32, Claimant>>,
}

/// The interrupt's bit for "renew now".
pub(crate) const RENEW: u32 = 1 << 5;

/// What a renewal came to.
enum Renewal {
    Renewed(View),
    /// A later process has taken our place.
    Superseded(Claimant),
}

impl Lease {
    pub(crate) fn new(
        terms: Terms,
        claimant: Claimant,
        by_field: bool,
        accepts: impl Fn(u32) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            fence: Arc::new(Fence::new(claimant)),
            terms,
            accepts: Box::new(accepts),
            by_field,
            interrupt: Arc::default(),
            share: Mutex::default(),
            map: Mutex::default(),
        }
    }

    pub(crate) fn fence(&self) -> &Arc<Fence> {
        &self.fence
    }

    pub(crate) fn interrupt(&self) -> &Arc<Interrupt> {
        &self.interrupt
    }

    /// Who owned what at the last renewal.
    pub(crate) fn owners(&self) -> BTreeMap<u32, Claimant> {
        self.map.lock().clone()
    }

    /// Renews until the interrupt's `until` is set.
    pub(crate) fn run(&self, lanes: &dyn Lanes, until: u32) {
        let rhythm = Rhythm {
            renew: self.terms.renew,
        };
        let mut connection = None;
        let (mut first, mut superseded) = (true, false);
        let mut trouble: Option<Instant> = None;
        let mut quiet = Quiet::default();
        loop {
            self.interrupt.clear(RENEW);
            let sent = Sent::now();
            let pause = match self.renew(&mut connection, lanes.partitions(), first, rhythm) {
                Ok(Renewal::Renewed(view)) => {
                    self.fence.extend(sent, self.terms.ttl);
                    if let Some(since) = trouble.take() {
                        let seconds = since.elapsed().as_secs_f64();
                        log::info!("{self}: renewed again after {seconds:.1} s");
                    }
                    (first, superseded) = (false, false);
                    self.apply(lanes, &view, rhythm)
                }
                Ok(Renewal::Superseded(by)) => {
                    self.end(lanes, "another process of this pod took over");
                    if !std::mem::replace(&mut superseded, true) {
                        log::error!(
                            "{self}: {by:?} started later under the same instance id, so this process \
                             stands down; give each process a POD_NAME of its own"
                        );
                    }
                    rhythm.renew
                }
                Err(e) => {
                    if let Some(more) = quiet.permit() {
                        trouble.get_or_insert_with(clock::now);
                        let left = self.fence.left().as_secs_f64();
                        log::warn!(
                            "{self}: the lease was not renewed, it holds for {left:.1} s yet: {e}{}",
                            HeldBack(more)
                        );
                    }
                    Share::failed(rhythm)
                }
            };
            let wake = clock::now() + pause;
            loop {
                let left = self.fence.left();
                let held = !self.share.lock().held().is_empty();
                if held && left.is_zero() {
                    self.end(lanes, "the lease could not be renewed in time");
                    continue;
                }
                let rest = wake.saturating_duration_since(clock::now());
                let nap = if held { rest.min(left) } else { rest };
                if self.interrupt.sleep(nap, until | RENEW) || rest <= nap {
                    break;
                }
            }
            if self.interrupt.bits() & until != 0 {
                return;
            }
        }
    }

    /// Gives up these partitions; with `presence` also the sign that this instance lives. What is
    /// another's meanwhile is left alone.
    pub(crate) fn release(
        &self,
        connection: &mut Connection,
        partitions: &BTreeSet<u32>,
        presence: bool,
        timeout: Duration,
    ) -> Result<()> {
        let mut fields: Vec<String> = partitions.iter().map(u32::to_string).collect();
        if presence {
            fields.push(self.fence.claimant().presence());
        }
        by_hash_first(|form| {
            let (name, script) = RELEASE.named(form);
            let mut cmd = redis::cmd(name);
            cmd.arg(script)
                .arg(2)
                .arg(&self.terms.hash)
                .arg(&self.terms.set);
            cmd.arg(self.fence.claimant().as_str()).arg(&fields);
            connection.call(&cmd, timeout)
        })?;
        self.share.lock().released(partitions);
        Ok(())
    }

    fn end(&self, lanes: &dyn Lanes, why: &str) {
        self.fence.end();
        let held = self.share.lock().ended();
        if !held.is_empty() {
            lanes.cut(&held, why);
        }
    }

    fn apply(&self, lanes: &dyn Lanes, view: &View, rhythm: Rhythm) -> Duration {
        let step = {
            let mut share = self.share.lock();
            share.renewed(view, lanes.partitions(), clock::now(), rhythm)
        };
        self.map.lock().clone_from(&view.owners);
        if !step.lost.is_empty() {
            log::error!("{self}: lost partitions {:?} to others", step.lost);
            lanes.cut(&step.lost, "another instance owns it");
        }
        if !step.taken.is_empty() {
            lanes.take(&step.taken);
        }
        if !step.give_up.is_empty() {
            lanes.give_up(&step.give_up);
        }
        if !(step.lost.is_empty() && step.taken.is_empty()) {
            log::info!("{self}: {}", self.describe(view));
        }
        step.next
    }

    fn renew(
        &self,
        kept: &mut Option<Connection>,
        partitions: u32,
        first: bool,
        rhythm: Rhythm,
    ) -> Result<Renewal> {
        let timeout = self.terms.connect_timeout.min(self.terms.ttl / 3);
        let alive = kept
            .take()
            .and_then(|mut c| c.check_idle().is_ok().then_some(c));
        let mut connection = match alive {
            Some(connection) => connection,
            None => {
                let (name, stop) = (&self.terms.client_name, Some(&self.interrupt));
                Connection::dial(&self.terms.target, name, stop, timeout)?
            }
        };
        let beyond = self.share.lock().beyond(clock::now(), rhythm);
        let answer = by_hash_first(|form| {
            connection.call(&self.cycle(form, partitions, first, &beyond), timeout)
        });
        if answer.as_ref().err().is_none_or(Error::keeps_connection) {
            *kept = Some(connection);
        }
        let about = |e: Error| e.during("renew the lease").on_key(&self.terms.hash);
        let answer = answer.map_err(about)?;
        read(answer).ok_or_else(|| {
            about(Error::new(
                ErrorKind::Protocol,
                "renew",
                "the answer is none of the script's",
            ))
        })
    }

    fn cycle(&self, form: Form, partitions: u32, first: bool, beyond: &BTreeSet<u32>) -> Cmd {
        let (name, script) = CYCLE.named(form);
        let me = self.fence.claimant();
        let refused = (0..partitions).filter(|p| !(self.accepts)(*p));
        let mut cmd = redis::cmd(name);
        cmd.arg(script)
            .arg(2)
            .arg(&self.terms.hash)
            .arg(&self.terms.set);
        cmd.arg(me.as_str());
        cmd.arg(clock::ceil_ms(self.terms.ttl)).arg(partitions);
        cmd.arg(me.presence());
        cmd.arg(if self.by_field { "f" } else { "s" });
        cmd.arg(u8::from(first)).arg(self.terms.most);
        for p in beyond {
            cmd.arg(p);
        }
        cmd.arg("-");
        for p in refused {
            cmd.arg(p);
        }
        cmd
    }

    /// The map of owners in one line.
    fn describe(&self, view: &View) -> String {
        use fmt::Write;
        let mut line = format!(
            "owns partitions {:?}, epoch {}; {} instances | full map:",
            view.held,
            self.fence.claimant().incarnation(),
            view.members.len()
        );
        let last = view.owners.keys().last().map_or(0, |p| p + 1);
        for p in 0..last {
            let _ = match view.owners.get(&p) {
                Some(c) => write!(line, " {p}->{}({:.8})", c.pod(), c.instance().to_string()),
                None => write!(line, " {p}->(none)"),
            };
        }
        line
    }
}

/// Reads what [`CYCLE`] answers.
fn read(answer: Value) -> Option<Renewal> {
    let Value::Array(parts) = answer else {
        return None;
    };
    let mut parts = parts.into_iter();
    let first = text(&parts.next()?)?;
    if first == "superseded" {
        return Some(Renewal::Superseded(Claimant::read(
            text(&parts.next()?)?.as_bytes(),
        )));
    }
    let held = numbers(&first)?;
    let surplus = numbers(&text(&parts.next()?)?)?;
    let times = text(&parts.next()?)?;
    let (first_end, length) = times.split_once(' ')?;
    let first_end: i64 = first_end.parse().ok()?;
    let Value::Array(fields) = parts.next()? else {
        return None;
    };
    let mut view = View {
        held,
        surplus,
        first_end: u64::try_from(first_end).ok().map(Duration::from_millis),
        length: length.parse().ok()?,
        ..View::default()
    };
    for pair in fields.chunks_exact(2) {
        let (field, claimant) = (text(&pair[0])?, Claimant::read(text(&pair[1])?.as_bytes()));
        if field.starts_with(PRESENCE) {
            view.members.insert(claimant);
        } else if let Ok(p) = field.parse() {
            view.owners.insert(p, claimant);
        }
    }
    Some(Renewal::Renewed(view))
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

fn numbers(text: &str) -> Option<BTreeSet<u32>> {
    text.split_ascii_whitespace()
        .map(|n| n.parse().ok())
        .collect()
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.terms.name)
    }
}
