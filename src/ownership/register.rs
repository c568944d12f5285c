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

use super::{
    holding::Entries,
    script::{ALWAYS, RELEASE},
    terms::Terms,
};

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
            // The end first: whoever dies in between has then claimed nothing.
            [all.clone(), note, claim, all]
        };
        let answers = self.exchange(&commands)?;
        let [before, first, second, after] = answers.try_into().map_err(|_| self.odd())?;
        let (claimed, ends) = if self.by_field {
            (first, second)
        } else {
            (second, first)
        };
        if claimed.is_ok() && ends.is_err() {
            // A claim that has no end would outlast us.
            let mut undo = self.on_hash("HDEL");
            undo.arg(&fields);
            let _ = self.exchange(&[undo]); // the refusal is what matters
        }
        if let Some(e) = claimed.err().or(ends.err()) {
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
        let now = terms.time(&mut self.connection, timeout)?;
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
            cmd.arg(self.me.as_str()).arg(&fields).arg(ALWAYS);
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

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;
    use crate::{
        net::{Interrupt, Target},
        testing::{PrivateServer, Reply, eventually},
        wire::InstanceId,
    };

    const HASH: &str = "re:o:{t}:c";

    fn terms(server: &PrivateServer, ttl: Duration) -> Terms {
        Terms {
            topic: "t".into(),
            consumer: "c".into(),
            target: Arc::new(Target::parse(&server.url()).unwrap()),
            client_name: "roll".into(),
            connect_timeout: Duration::from_secs(20),
            hash: HASH.into(),
            set: "re:e:{t}:c".into(),
            ttl,
            renew: ttl,
            most: None,
            modulo: 1,
            remainder: 0,
            shutdown_timeout: ttl,
        }
    }

    fn register<'a>(terms: &'a Terms, me: &'a Claimant) -> Register<'a> {
        let timeout = terms.connect_timeout;
        let dialled = terms.dial(&Arc::<Interrupt>::default(), timeout);
        Register::new(terms, me, dialled.unwrap())
    }

    fn claimant(pod: &str) -> Claimant {
        Claimant::new(InstanceId::derive(pod), pod)
    }

    fn fields(server: &PrivateServer) -> BTreeSet<String> {
        let keys = server.command(&["HKEYS", HASH]).unwrap();
        keys.items().iter().map(Reply::text).collect()
    }

    #[test]
    fn a_call_claims_and_shows_what_there_was_and_what_has_ended_is_gone() {
        let server = PrivateServer::start().unwrap();
        let (brief, long) = (Duration::from_millis(200), Duration::from_mins(10));
        let (of_a, of_b) = (terms(&server, brief), terms(&server, long));
        let (a, b) = (claimant("svc-0"), claimant("svc-1"));
        let mut first = register(&of_a, &a);
        let [before, after] = first.call(&[0, 1].into()).unwrap();
        assert_eq!(before, Entries::default());
        let owners = |e: &Entries| e.owners.clone().into_iter().collect::<Vec<_>>();
        assert_eq!(owners(&after), [(0, a.clone()), (1, a.clone())]);
        assert_eq!(after.members, [a.clone()].into());

        let mut second = register(&of_b, &b);
        let gone = || {
            let [before, after] = second.call(&[1, 2].into()).unwrap();
            assert_eq!(after.owners[&1], b, "the last to write has it");
            owners(&before) == owners(&after) && after.members == [b.clone()].into()
        };
        assert!(eventually(Duration::from_secs(20), gone));
        assert_eq!(fields(&server).len(), 3, "two claims and a sign of life");
        let [before, _] = first.call(&BTreeSet::new()).unwrap();
        assert_eq!(before.members, [b].into(), "and what was renewed is not");
    }

    #[test]
    fn a_release_leaves_what_is_anothers_with_scripts_and_without() {
        let server = PrivateServer::start().unwrap();
        let terms = terms(&server, Duration::from_mins(10));
        let (a, b) = (claimant("svc-0"), claimant("svc-1"));
        for rights in ["+@all", "-@scripting"] {
            server
                .command(&["ACL", "SETUSER", "default", rights])
                .unwrap();
            let (mut ours, mut theirs) = (register(&terms, &a), register(&terms, &b));
            ours.call(&[0, 1, 2].into()).unwrap();
            theirs.call(&[1].into()).unwrap();
            ours.release(&[2].into(), false).unwrap();
            let presence = [a.presence(), b.presence()];
            let all = |claims: &[&str], of: &[String]| -> BTreeSet<String> {
                let claims = claims.iter().map(|c| (*c).to_owned());
                claims.chain(of.iter().cloned()).collect()
            };
            assert_eq!(fields(&server), all(&["0", "1"], &presence), "{rights}");
            ours.release(&[0, 1].into(), true).unwrap();
            assert_eq!(fields(&server), all(&["1"], &presence[1..]), "{rights}");
            theirs.release(&[1].into(), true).unwrap();
            assert_eq!(fields(&server), BTreeSet::new());
            let left = server.command(&["ZCARD", "re:e:{t}:c"]).unwrap();
            assert_eq!(left.text(), "0");
        }
    }

    #[test]
    fn what_is_refused_says_what_to_grant_and_leaves_no_claim_without_an_end() {
        let server = PrivateServer::start().unwrap();
        let terms = terms(&server, Duration::from_mins(10));
        let me = claimant("svc-0");
        let mut register = register(&terms, &me);
        let needed = if register.by_field {
            "hpexpire"
        } else {
            "zadd"
        };
        let without = format!("-{needed}");
        server
            .command(&["ACL", "SETUSER", "default", &without])
            .unwrap();
        let e = register.call(&[0].into()).unwrap_err();
        assert!(!e.is_retryable() && e.key() == Some(HASH), "{e}");
        assert!(e.to_string().contains(&format!("+{needed}")), "{e}");
        assert_eq!(fields(&server), BTreeSet::new());
    }
}
