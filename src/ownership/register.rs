//! The hash of claims as numbered instances keep it: plain commands, since nobody waits for another's
//! claim here, and whoever runs no scripts can do without them.

use std::collections::BTreeSet;

use redis::{Cmd, Value};

use crate::{
    Error, ErrorKind, Result, clock,
    error::ServerClass,
    net::{Connection, script::by_hash_first},
    wire::{Claimant, PRESENCE},
};

use super::{holding::Entries, script::RELEASE, terms::Terms};

/// The rights it needs, as ACL rules, besides the one to set when fields end.
const RIGHTS: &str = "+hset +hgetall +hdel +hmget +hpttl";

/// A connection to the hash.
#[derive(Debug)]
pub(super) struct Register<'a> {
    terms: &'a Terms,
    me: &'a Claimant,
    pub(super) connection: Connection,
    /// Whether the server's hash fields expire by themselves. Where they do not, the sorted set beside the
    /// hash says when they end, and whoever calls the roll removes what has ended.
    by_field: bool,
}

impl<'a> Register<'a> {
    pub(super) fn new(
        terms: &'a Terms,
        me: &'a Claimant,
        (connection, by_field): (Connection, bool),
    ) -> Self {
        Self {
            terms,
            me,
            connection,
            by_field,
        }
    }

    /// Claims these partitions for one time to live, and shows that we live. Returns what stood there before
    /// and what stands there now. Blocks for one round trip, or three where fields do not expire.
    ///
    /// # Errors
    ///
    /// Those of the connection, and the server's.
    pub(super) fn call(&mut self, held: &BTreeSet<u32>) -> Result<[Entries; 2]> {
        let fields: Vec<String> = held
            .iter()
            .map(u32::to_string)
            .chain([self.me.presence()])
            .collect();
        let ttl = clock::ceil_ms(self.terms.ttl);
        let all = self.on_hash("HGETALL");
        let mut claim = self.on_hash("HSET");
        for field in &fields {
            claim.arg(field).arg(self.me.as_str());
        }
        let commands = if self.by_field {
            let mut expire = self.on_hash("HPEXPIRE");
            expire.arg(ttl).arg("FIELDS").arg(fields.len()).arg(&fields);
            [all.clone(), claim, expire, all]
        } else {
            let now = self.sweep()?;
            let mut note = redis::cmd("ZADD");
            note.arg(&self.terms.set);
            for field in &fields {
                note.arg(now + ttl).arg(field);
            }
            // The end first: what has none would stay for ever.
            [all.clone(), note, claim, all]
        };
        let answers = self.exchange(&commands)?;
        let [before, first, second, after] = answers.try_into().map_err(|_| self.odd())?;
        if self.by_field && first.is_ok() && second.is_err() {
            let mut undo = self.on_hash("HDEL");
            undo.arg(&fields);
            let _ = self.exchange(&[undo]); // the refusal is what matters
        }
        let refused = [first, second].into_iter().find_map(Result::err);
        if let Some(e) = refused {
            return Err(self.refused(e));
        }
        let read = |answer: Result<Value>| {
            let answer = answer.map_err(|e| self.refused(e))?;
            entries(answer).ok_or_else(|| self.odd())
        };
        Ok([read(before)?, read(after)?])
    }

    /// Removes what has ended. Returns the time by the server's clock, in ms.
    fn sweep(&mut self) -> Result<u64> {
        let (terms, timeout) = (self.terms, self.terms.timeout());
        let (seconds, micros): (u64, u64) = self
            .connection
            .ask(&redis::cmd("TIME"), timeout)
            .map_err(|e| terms.about(e))?;
        let now = seconds * 1000 + micros / 1000;
        let on_set = |name: &str| {
            let mut cmd = redis::cmd(name);
            cmd.arg(&terms.set);
            cmd
        };
        // Watched, for what has ended may be claimed anew before it is removed.
        let mut over = on_set("ZRANGEBYSCORE");
        over.arg("-inf").arg(now);
        let mut answers = self.exchange(&[on_set("WATCH"), over])?.into_iter();
        let watched = answers.next().ok_or_else(|| self.odd())?;
        watched.map_err(|e| self.refused(e))?;
        let over = answers.next().ok_or_else(|| self.odd())?;
        let over = over.map_err(|e| self.refused(e))?;
        let over: Vec<Vec<u8>> = redis::from_redis_value(over).map_err(|_| self.odd())?;
        if over.is_empty() {
            self.exchange(&[redis::cmd("UNWATCH")])?;
            return Ok(now);
        }
        let (mut forget, mut remove) = (on_set("ZREM"), self.on_hash("HDEL"));
        forget.arg(&over);
        remove.arg(&over);
        let (multi, exec) = (redis::cmd("MULTI"), redis::cmd("EXEC"));
        for answer in self.exchange(&[multi, remove, forget, exec])? {
            answer.map_err(|e| self.refused(e))?;
        }
        Ok(now)
    }

    /// Deletes claims of ours, and none that has come to be another's; and the sign of life, if `presence`.
    /// Blocks for a round trip or two.
    ///
    /// # Errors
    ///
    /// Those of the connection, and the server's.
    pub(super) fn release(&mut self, partitions: &BTreeSet<u32>, presence: bool) -> Result<()> {
        let mut fields: Vec<String> = partitions.iter().map(u32::to_string).collect();
        fields.extend(presence.then(|| self.me.presence()));
        if fields.is_empty() {
            return Ok(());
        }
        let (terms, timeout) = (self.terms, self.terms.timeout());
        let released = by_hash_first(|form| {
            let (name, text) = RELEASE.named(form);
            let mut cmd = redis::cmd(name);
            cmd.arg(text).arg(2).arg(&terms.hash).arg(&terms.set);
            cmd.arg(self.me.as_str()).arg(&fields);
            self.connection.call(&cmd, timeout).map(drop)
        });
        match released {
            Err(e) if e.server_class() == Some(ServerClass::NoPermission) => {
                self.release_plainly(&fields)
            }
            released => released.map_err(|e| terms.about(e.during("release claims"))),
        }
    }

    /// Without a script: between the look and the deletion another may have claimed what we delete, which its
    /// next roll call makes good.
    fn release_plainly(&mut self, fields: &[String]) -> Result<()> {
        let (terms, timeout) = (self.terms, self.terms.timeout());
        let mut look = self.on_hash("HMGET");
        look.arg(fields);
        let values = self.connection.ask_fields(&look, fields.len(), timeout);
        let values = values.map_err(|e| terms.about(e.during("release claims")))?;
        let me = Some(self.me.as_str().as_bytes());
        let ours = fields.iter().zip(&values);
        let ours: Vec<_> = ours.filter(|(_, v)| v.as_deref() == me).collect();
        if ours.is_empty() {
            return Ok(());
        }
        let (mut delete, mut forget) = (self.on_hash("HDEL"), redis::cmd("ZREM"));
        forget.arg(&terms.set);
        for (field, _) in ours {
            delete.arg(field);
            forget.arg(field);
        }
        let commands = if self.by_field {
            vec![delete]
        } else {
            vec![delete, forget]
        };
        for answer in self.exchange(&commands)? {
            answer.map_err(|e| self.refused(e))?;
        }
        Ok(())
    }

    fn on_hash(&self, name: &str) -> Cmd {
        let mut cmd = redis::cmd(name);
        cmd.arg(&self.terms.hash);
        cmd
    }

    fn exchange(&mut self, commands: &[Cmd]) -> Result<Vec<Result<Value>>> {
        let terms = self.terms;
        let answers = self.connection.pipeline(commands, terms.timeout());
        answers.map_err(|e| terms.about(e.during("claim partitions")))
    }

    /// The server's refusal, and what to grant if it is for want of rights.
    fn refused(&self, e: Error) -> Error {
        let terms = self.terms;
        let e = terms.about(e);
        if e.server_class() != Some(ServerClass::NoPermission) {
            return e;
        }
        let more = if self.by_field {
            "+hpexpire"
        } else {
            "+time +zadd +zrem +zrangebyscore +watch +unwatch +multi +exec"
        };
        let what = format!(
            "{}; claims need ACL SETUSER <user> {RIGHTS} {more} ~{}* ~{}*",
            e.message(),
            terms.hash,
            terms.set
        );
        e.saying(what)
    }

    fn odd(&self) -> Error {
        let what = "the answer is none to what was asked";
        let e = Error::new(ErrorKind::Protocol, "claim partitions", what);
        self.terms.about(e)
    }
}

/// Reads the whole hash.
fn entries(answer: Value) -> Option<Entries> {
    let fields: Vec<(Vec<u8>, Vec<u8>)> = redis::from_redis_value(answer).ok()?;
    let mut all = Entries::default();
    for (field, value) in fields {
        let Ok(field) = str::from_utf8(&field) else {
            continue;
        };
        if field.starts_with(PRESENCE) {
            all.members.insert(Claimant::read(&value));
        } else if field.bytes().all(|b| b.is_ascii_digit())
            && let Ok(p) = field.parse()
        {
            all.owners.insert(p, Claimant::read(&value));
        }
    }
    Some(all)
}
