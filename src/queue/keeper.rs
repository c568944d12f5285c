//! The thread that looks after what is pending in a consumer's group: it keeps alive what handlers are at, and
//! makes pending here what members had that are no more. It never reads messages, and runs no user code.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use redis::Value;

use crate::{
    AckDelete, Result, StreamId, TrimReason, clock,
    consume::RETRIES,
    error::{Error, ErrorKind},
    fence::Fence,
    net::{
        Connection, Interrupt, STOP, ServerTrouble, Target,
        script::{Script, by_hash_first},
    },
    quiet::{HeldBack, Quiet},
    wire::Claimant,
};

use super::{
    birth::{Mark, is_gone, mark_field},
    hand::Hand,
    low_water::{Low, low_water, readers},
    plan::{GroupPlan, Source},
    scripts::{KEEP, LIVE, MARK, PRUNE},
    take::{Taken, shown, take_over},
    trim::{How, Leave, has_holes, trim},
};

/// How often it looks who lives, and writes down how far the group is.
const LOOK: Duration = Duration::from_secs(1);
/// A lane that has been at the same for so long is not given more to do, if another can have it.
const BUSY_MS: u64 = 2000;
/// How many entries are kept alive by one command: more would hold the server up.
const KEPT: usize = 2000;
/// How often something is taken over from one member before it is looked for the next.
const ROUNDS: usize = 10;
/// Whoever begins is in the way of deleting for a moment, which is not worth a word.
const ENOUGH: u32 = 5;
/// How many idle entries are claimed from one stream at once.
const CLAIMED: usize = 100;
/// Members that were not seen for so long are not remembered.
const MOST_DEAD: usize = 10_000;

/// The terms on which entries of others are claimed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// From when on an entry that nobody gave a sign of is claimed.
    pub(crate) idle: Duration,
    /// How often such entries are looked for.
    pub(crate) interval: Duration,
    /// When a member is no more that gave no sign of life.
    pub(crate) ttl: Duration,
    /// Whether members share the partitions, so that what is pending of one is for any other to take over.
    pub(crate) shares: bool,
}

/// Looks after what is pending.
pub(crate) struct Keeper {
    name: String,
    plan: Arc<GroupPlan>,
    terms: Terms,
    fence: Arc<Fence>,
    target: Arc<Target>,
    client_name: String,
    interrupt: Arc<Interrupt>,
    connection: Option<Connection>,
    /// Who lived at the last look.
    live: BTreeSet<String>,
    /// Whether that has changed in the middle of a turn.
    has_changed: bool,
    /// Since when members are known to live no more.
    dead: BTreeMap<String, Instant>,
    /// Some of them were met in this turn.
    saw_dead: bool,
    /// The lanes that have looked for what the dead had since anything changed. Others were not there, or busy.
    looked: BTreeSet<u32>,
    /// Where the search for idle entries goes on, by lane.
    cursors: BTreeMap<u32, String>,
    /// Whether the server may know how to trim what its groups have acknowledged, and nothing else.
    looks_at_groups: bool,
    /// Lanes in whose streams there is something left to be deleted when others have finished it.
    undeleted: BTreeSet<u32>,
    /// How often in a row it could not be told up to where that is.
    in_the_way: u32,
    next_look: Instant,
    next_search: Instant,
    quiet: Quiet,
    quiet_taken: Quiet,
    quiet_gone: Quiet,
    quiet_undeleted: Quiet,
}

impl Keeper {
    pub(crate) fn new(
        name: String,
        plan: Arc<GroupPlan>,
        terms: Terms,
        fence: Arc<Fence>,
        (target, client_name): (Arc<Target>, String),
        interrupt: Arc<Interrupt>,
    ) -> Self {
        Self {
            name,
            plan,
            terms,
            fence,
            target,
            client_name,
            interrupt,
            connection: None,
            live: BTreeSet::new(),
            has_changed: false,
            dead: BTreeMap::new(),
            saw_dead: false,
            looked: BTreeSet::new(),
            cursors: BTreeMap::new(),
            looks_at_groups: true,
            undeleted: BTreeSet::new(),
            in_the_way: 0,
            next_look: clock::now(),
            next_search: clock::now(),
            quiet: Quiet::default(),
            quiet_taken: Quiet::default(),
            quiet_gone: Quiet::default(),
            quiet_undeleted: Quiet::default(),
        }
    }

    /// Works until `over`, which is asked every now and then, or until it is stopped.
    pub(crate) fn run(&mut self, over: impl Fn() -> bool) {
        let pause = (self.terms.idle / 10).clamp(Duration::from_millis(10), LOOK / 4);
        while !over() && self.interrupt.bits() & STOP == 0 {
            // Who may be taken for dead has no say in what is whose.
            if self.fence.holds_for_certain()
                && let Err(e) = self.turn()
            {
                self.connection = None;
                if self.interrupt.bits() & STOP == 0
                    && let Some(more) = self.quiet.permit()
                {
                    log::warn!(
                        "{}: cannot look after what is pending: {e}; it keeps trying{}",
                        self.name,
                        HeldBack(more)
                    );
                }
            }
            self.interrupt.pause(pause);
        }
    }

    fn turn(&mut self) -> Result<()> {
        let lanes = self.plan.lanes.all();
        for (_, stream, hand) in &lanes {
            self.keep_alive(stream, hand)?;
        }
        let now = clock::now();
        if now < self.next_look {
            return Ok(());
        }
        self.next_look = now + LOOK;
        for (n, stream, hand) in &lanes {
            let moved = hand.has_moved();
            if moved {
                self.mark(*n, stream)?;
            }
            let deletes = self.plan.ack_delete == AckDelete::AllGroups && *n != RETRIES;
            if deletes && (moved || self.undeleted.contains(n)) {
                self.delete_finished(*n, stream)?;
            }
            if moved {
                hand.marked();
            }
        }
        let changed = self.look_who_lives()? | mem::take(&mut self.has_changed);
        let due = now >= self.next_search;
        if due {
            self.next_search = now + self.terms.interval;
        }
        if changed || due {
            self.looked.clear();
        }
        let (mut connected, was_dead) = (None, !self.dead.is_empty());
        self.saw_dead = false;
        for (n, stream, hand) in &lanes {
            if hand.is_busy_for(BUSY_MS) || hand.is_paused() {
                continue;
            }
            let shared = self.shares(*n);
            if was_dead || !self.looked.contains(n) {
                self.take_from_the_dead(*n, stream, hand, &mut connected)?;
                self.looked.insert(*n);
            }
            if shared && due {
                self.claim_idle(*n, stream, hand)?;
            }
        }
        if !self.saw_dead {
            self.dead.clear();
        }
        Ok(())
    }

    fn keep_alive(&mut self, stream: &[u8], hand: &Hand) -> Result<()> {
        let age = self.terms.idle.as_millis() as u64 / 3;
        let ids = hand.older_than(age);
        if ids.is_empty() {
            return Ok(());
        }
        let at_ms = clock::coarse_ms();
        let texts: Vec<String> = ids.iter().map(StreamId::to_string).collect();
        let member = &Arc::clone(&self.plan).member;
        for texts in texts.chunks(KEPT) {
            let mut args: Vec<&str> = vec![&member.group, &member.name];
            args.extend(texts.iter().map(String::as_str));
            // Of a stream that is gone nothing can be kept alive, and the lane finds out for itself.
            if self.run_script(&KEEP, &[stream], &args)?.is_none() {
                return Ok(());
            }
        }
        hand.kept(at_ms);
        Ok(())
    }

    /// Writes down how far the group is.
    fn mark(&mut self, n: u32, stream: &[u8]) -> Result<()> {
        let plan = Arc::clone(&self.plan);
        let meta = plan.keys.meta.as_bytes();
        let args = [&*plan.member.group, &mark_field(n)];
        let Some(answer) = self.run_script(&MARK, &[stream, meta], &args)? else {
            return Ok(());
        };
        let parts: (u64, String, String) = redis::from_redis_value(answer)
            .map_err(|e| Error::new(ErrorKind::Protocol, "look at the group", e.to_string()))?;
        let (pending, first, delivered) = parts;
        let Some(delivered) = StreamId::parse(delivered.as_bytes()) else {
            return Ok(());
        };
        let mark = Mark {
            many: pending,
            pending: StreamId::parse(first.as_bytes()).filter(|_| pending > 0),
            delivered,
        };
        plan.marks.lock().insert(n, mark);
        Ok(())
    }

    /// Deletes what every reader has finished.
    fn delete_finished(&mut self, n: u32, stream: &[u8]) -> Result<()> {
        let plan = Arc::clone(&self.plan);
        self.undeleted.insert(n); // until nothing is left to be deleted
        let of = (&*plan.topic, n, stream);
        let strangers = BTreeSet::new();
        let all = readers(
            self.connection()?,
            &plan.names,
            of,
            &strangers,
            plan.timeout,
        );
        let low = match all {
            Err(e) if e.keeps_connection() => Low::Unknown(e.to_string()),
            all => low_water(&all?),
        };
        let low = match low {
            Low::At(low) => low,
            Low::Unknown(why) => {
                self.in_the_way += 1;
                if self.in_the_way > ENOUGH
                    && let Some(more) = self.quiet_undeleted.permit()
                {
                    log::warn!(
                        "{}: nothing is deleted (AckDelete AllGroups), and the stream {} grows: {why}{}",
                        self.name,
                        stream.escape_ascii(),
                        HeldBack(more)
                    );
                }
                return Ok(());
            }
        };
        self.in_the_way = 0;
        let delivered = plan.marks.lock().get(&n).map(|mark| mark.delivered);
        if delivered.is_none_or(|delivered| low >= delivered) {
            self.undeleted.remove(&n);
        }
        let n_deleted = match self.delete_upto(stream, low.next()) {
            Err(e) if e.keeps_connection() && is_gone(&e) => 0,
            done => done?,
        };
        if n_deleted > 0 {
            let trims = plan.trims.of(&plan.topic, n);
            trims.add(TrimReason::Ack, n_deleted);
        }
        Ok(())
    }

    /// Deletes what lies before `id`, and says how many entries that were.
    fn delete_upto(&mut self, stream: &[u8], id: StreamId) -> Result<u64> {
        let timeout = self.plan.timeout;
        if self.looks_at_groups && !has_holes(self.connection()?, stream, id, timeout)? {
            // From Redis 8.2 on the server itself leaves alone what a group has not acknowledged by then.
            let mut careful = redis::cmd("XTRIM");
            careful
                .arg(stream)
                .arg("MINID")
                .arg("=")
                .arg(id.to_string());
            match self.connection()?.ask(careful.arg("ACKED"), timeout) {
                Err(e) if e.keeps_connection() && e.server_code() == Some("ERR") => {
                    self.looks_at_groups = false;
                }
                done => return done,
            }
        }
        let exact = true;
        let how = How { exact, timeout };
        let interrupt = Arc::clone(&self.interrupt);
        let mut goes_on = || interrupt.bits() & STOP == 0;
        let leave = Leave::From(id);
        trim(self.connection()?, stream, leave, how, &mut goes_on)
    }

    /// Looks who lives; whether that has changed.
    fn look_who_lives(&mut self) -> Result<bool> {
        let plan = Arc::clone(&self.plan);
        let keys = [
            plan.keys.ownership.as_bytes(),
            plan.keys.expiries.as_bytes(),
        ];
        let Some(Value::Array(values)) = self.run_script(&LIVE, &keys, &[])? else {
            return Ok(false);
        };
        let live = values.iter().filter_map(|value| match value {
            Value::BulkString(text) => Some(member_of(&Claimant::read(text))),
            _ => None,
        });
        let live: BTreeSet<String> = live.collect();
        let changed = live != self.live;
        self.live = live;
        Ok(changed)
    }

    /// Whether what is pending of one member in a lane's stream is for any other to take over; else that is for
    /// whoever owns the partition, whose lane does it.
    fn shares(&self, n: u32) -> bool {
        self.terms.shares || n == RETRIES
    }

    /// Takes over what members had that are no more, and removes those that have nothing.
    fn take_from_the_dead(
        &mut self,
        n: u32,
        stream: &[u8],
        hand: &Hand,
        connected: &mut Option<String>,
    ) -> Result<()> {
        let plan = Arc::clone(&self.plan);
        let mut cmd = redis::cmd("XINFO");
        cmd.arg("CONSUMERS").arg(stream).arg(&*plan.member.group);
        let Some(Value::Array(consumers)) = self.ask(&cmd)? else {
            return Ok(());
        };
        for consumer in &consumers {
            let Some((name, pending)) = consumer_of(consumer) else {
                continue;
            };
            if pending > 0 && !self.shares(n) && *name != *plan.member.name {
                // A question of who owned the partition before may be answered after it was taken from him.
                hand.stray();
            }
            if *name == *plan.member.name || !is_ours(&name) || self.live.contains(&name) {
                continue;
            }
            if !self.dead.contains_key(&name) {
                // It may have come since it was looked who lives.
                self.has_changed |= self.look_who_lives()?;
                if self.live.contains(&name) {
                    continue;
                }
            }
            self.saw_dead = true;
            let now = clock::now();
            if self.dead.len() >= MOST_DEAD {
                self.dead.clear();
            }
            let since = *self.dead.entry(name.clone()).or_insert(now);
            let for_sure = now.duration_since(since) >= self.terms.ttl;
            if pending == 0 {
                if for_sure {
                    let args = [&*plan.member.group, &name];
                    self.run_script(&PRUNE, &[stream], &args)?;
                    log::debug!(
                        "{}: removed the member {name:?}, which is no more, from lane {n}",
                        self.name
                    );
                }
                continue;
            }
            if !self.shares(n) {
                continue;
            }
            // Whose presence another has written over may be a process that has not heard of it.
            if !for_sure && self.has_namesake(&name) && self.is_connected(&name, connected)? {
                continue;
            }
            let mut all = Taken::default();
            let of = (Source::of(n), stream);
            let connection = self.connection()?;
            let taken = take_over(connection, &plan, of, (&name, ROUNDS), &mut all);
            // Also what was on its way when that failed may be ours by now.
            hand.add();
            if all.entries > 0
                && let Some(more) = self.quiet_taken.permit()
            {
                log::info!(
                    "{}: took over {} unfinished messages of lane {n} from {name:?}, which is no more{}{}",
                    self.name,
                    all.entries,
                    if all.more { "; others follow" } else { "" },
                    HeldBack(more)
                );
            }
            if !all.gone.is_empty() {
                if let Some(more) = self.quiet_gone.permit() {
                    log::error!(
                        "{}: {} messages of lane {n} that {name:?} had not finished were deleted from the stream: \
                         they are LOST: {}{}",
                        self.name,
                        all.gone.len(),
                        shown(&all.gone),
                        HeldBack(more)
                    );
                }
                hand.lose(all.gone.len() as u64);
            }
            match taken {
                Err(e) if e.keeps_connection() => {
                    log::debug!("{}: cannot take over from {name:?}: {e}", self.name);
                }
                taken => taken?,
            }
        }
        Ok(())
    }

    /// Claims what nobody has given a sign of for too long.
    fn claim_idle(&mut self, n: u32, stream: &[u8], hand: &Hand) -> Result<()> {
        let plan = Arc::clone(&self.plan);
        // Told at the start.
        let trouble = self
            .connection()?
            .server_version()
            .and_then(ServerTrouble::of);
        if trouble.is_some_and(|t| t.no_autoclaim) {
            return Ok(());
        }
        let cursor = self.cursors.remove(&n).unwrap_or_else(|| "0-0".into());
        let mut cmd = redis::cmd("XAUTOCLAIM");
        cmd.arg(stream)
            .arg(&*plan.member.group)
            .arg(&*plan.member.name);
        cmd.arg(self.terms.idle.as_millis() as u64).arg(&cursor);
        cmd.arg("COUNT").arg(CLAIMED).arg("JUSTID");
        // Where the answer is lost something may be ours all the same.
        let answer = self.ask(&cmd).inspect_err(|_| hand.add())?;
        let Some(Value::Array(answer)) = answer else {
            return Ok(());
        };
        if let Some(Value::BulkString(next)) = answer.first() {
            self.cursors
                .insert(n, String::from_utf8_lossy(next).into_owned());
        }
        if let Some(Value::Array(claimed)) =
            answer.get(1).filter(|c| **c != Value::Array(Vec::new()))
        {
            log::info!(
                "{}: claimed {} messages of lane {n} that nobody gave a sign of for {:?}",
                self.name,
                claimed.len(),
                self.terms.idle
            );
            hand.add();
        }
        if let Some(Value::Array(gone)) = answer.get(2)
            && !gone.is_empty()
        {
            let ids: Vec<_> = gone
                .iter()
                .filter_map(|id| StreamId::parse(text(id)?.as_bytes()))
                .collect();
            log::error!(
                "{}: {} pending messages of lane {n} were deleted from the stream: they are LOST: {}",
                self.name,
                gone.len(),
                shown(&ids),
            );
            hand.lose(gone.len() as u64);
        }
        Ok(())
    }

    /// Whether one that lives goes by the same pod's name.
    fn has_namesake(&self, name: &str) -> bool {
        let pod = |name: &str| name.rsplit_once('#').map(|(pod, _)| pod.to_owned());
        self.live.iter().any(|l| pod(l) == pod(name))
    }

    /// Whether a member has a connection, as far as the server tells. Where it does not, it may.
    fn is_connected(&mut self, name: &str, list: &mut Option<String>) -> Result<bool> {
        let Some((_, incarnation)) = name.rsplit_once('#') else {
            return Ok(true);
        };
        // As ours, theirs may be too long to be told in full.
        let (_, ours) = self.plan.member.name.rsplit_once('#').unwrap_or_default();
        if !self.client_name.ends_with(ours) {
            return Ok(true);
        }
        if list.is_none() {
            let mut cmd = redis::cmd("CLIENT");
            cmd.arg("LIST").arg("TYPE").arg("normal");
            *list = match self.ask(&cmd) {
                Err(e) if !e.keeps_connection() => return Err(e),
                // without the right to ask, too
                told => told.ok().flatten().and_then(|value| text(&value)),
            };
        }
        let ending = format!("-{incarnation} ");
        Ok(list.as_ref().is_none_or(|list| list.contains(&ending)))
    }

    /// What a script answers; `None` for a refusal that has to do with this stream alone.
    fn run_script(
        &mut self,
        script: &Script,
        keys: &[&[u8]],
        args: &[&str],
    ) -> Result<Option<Value>> {
        let done = by_hash_first(|form| {
            let (name, text) = script.named(form);
            let mut cmd = redis::cmd(name);
            cmd.arg(text).arg(keys.len()).arg(keys).arg(args);
            let timeout = self.plan.timeout;
            self.connection()?.call(&cmd, timeout)
        });
        let keys: Vec<_> = keys.iter().map(|k| String::from_utf8_lossy(k)).collect();
        let keys: Vec<&str> = keys.iter().map(|k| &**k).collect();
        Self::unless_gone(done.map_err(|e| script.saying_what_to_grant(e, &keys)))
    }

    fn ask(&mut self, cmd: &redis::Cmd) -> Result<Option<Value>> {
        let timeout = self.plan.timeout;
        let done = self.connection()?.call(cmd, timeout);
        Self::unless_gone(done)
    }

    fn unless_gone(done: Result<Value>) -> Result<Option<Value>> {
        match done {
            Err(e)
                if e.keeps_connection()
                    && (is_gone(&e) || e.server_code() == Some("WRONGTYPE")) =>
            {
                Ok(None)
            }
            done => done.map(Some),
        }
    }

    fn connection(&mut self) -> Result<&mut Connection> {
        if self.connection.as_ref().is_none_or(Connection::is_outdated) {
            let (target, name) = (&self.target, &self.client_name);
            let dialled = Connection::dial(target, name, Some(&self.interrupt), self.plan.timeout)?;
            self.connection = Some(dialled);
        }
        let none = || Error::new(ErrorKind::Io, "look after what is pending", "not connected");
        self.connection.as_mut().ok_or_else(none)
    }
}

/// What a process calls itself in groups: its pod, and what tells one start of it from another.
pub(crate) fn member_of(claimant: &Claimant) -> String {
    format!("{}#{}", claimant.pod(), claimant.incarnation())
}

/// Whether a member's name is one of those that this library gives: those have a presence of their own.
pub(crate) fn is_ours(name: &str) -> bool {
    let incarnation = name.rsplit_once('#').map(|(_, i)| i);
    incarnation.is_some_and(|i| i.len() == 8 && i.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// A member's name and how much it has, as `XINFO CONSUMERS` tells.
fn consumer_of(value: &Value) -> Option<(String, i64)> {
    let Value::Array(fields) = value else {
        return None;
    };
    let field = |name: &str| {
        let pairs = fields.chunks_exact(2);
        let mut found = pairs.filter(|pair| text(&pair[0]).is_some_and(|n| n == name));
        found.next().map(|pair| pair[1].clone())
    };
    match field("pending")? {
        Value::Int(pending) => Some((text(&field("name")?)?, pending)),
        _ => None,
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(text) => Some(String::from_utf8_lossy(text).into_owned()),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_our_own_end_in_an_incarnation() {
        for (name, ours) in [
            ("svc-0#0a1b2c3d", true),
            ("a#b#0a1b2c3d", true),
            ("svc-0", false),
            ("svc-0#", false),
            ("svc-0#0a1b2c3", false),
            ("svc-0#0a1b2c3g", false),
        ] {
            assert_eq!(is_ours(name), ours, "{name}");
        }
    }
}
