//! Claims on ids: who is the first to see one.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use redis::{Cmd, Value};

use crate::{
    Result, clock,
    error::{Error, ErrorKind},
    net::{
        Connection, Deadline, Target,
        script::{Script, by_hash_first},
    },
    wire::InstanceId,
};

use super::{
    link::is_over,
    once::{check_marker, check_ttl},
    plan::dial,
};

/// Tells the first sight of an id from the others, so that what must happen once is not done twice: for
/// handlers, which may be handed a message again, and for requests that clients repeat.
///
/// Made by [`Streams::idempotency`](crate::Streams::idempotency). Cheap to clone; threads share one
/// connection and take turns. Ids are compared byte by byte within the scope, and shared with peers
/// of other languages. Each call is one round trip and blocks for no longer than `PublishTimeoutMs`.
///
/// There are two ways, and neither is free of loss, since no marker can be set in one step with work that
/// is done elsewhere:
///
/// | | [`try_begin`](Self::try_begin) | [`claim`](Self::claim) |
/// |---|---|---|
/// | the work fails | not done, until the time is over: it is **lost** unless you see to it | the claim is released, the next call may try |
/// | the process dies between claim and work, or in it | the same | [`Claimed`](Sight::Claimed) until the claim's time is over, then as if it failed |
/// | the work takes longer than the time | may be done **twice** | the same, but [`Claim::complete`] tells |
/// | the answer to the call is lost | an error; if it was the first, nobody will be told so: **lost** as above | an error, then as above |
/// | the marker is lost (failover, eviction) | may be done **twice** | the same |
///
/// A forwarder leaves its markers in the scope that is named like its target topic: there every id that was
/// forwarded counts as done. Name scopes otherwise, such as `shipping/labels`.
///
/// Where the work is publishing, [`Draft::dedupe`](crate::Draft::dedupe) does both in one step and
/// loses nothing.
#[derive(Clone)]
pub struct Idempotency {
    shared: Arc<Shared>,
}

struct Shared {
    target: Arc<Target>,
    client_name: String,
    connect_timeout: Duration,
    timeout: Duration,
    /// What each marker begins with; the id follows.
    prefix: String,
    connection: Mutex<Option<Connection>>,
}

/// What a marker holds that is no claim; the same for everyone.
const DONE: &str = "1";

/// Key: the marker. Arguments: the claim's token, what to leave, the milliseconds to keep it for. Says
/// whether the claim still stood. One that ran out and was taken by nobody is marked all the same.
const COMPLETE: Script = Script {
    text: "#!lua flags=allow-oom
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return held and 1 or 0",
    sha1: "6788377e0dd9380fea5382bc06a6211c2d83135e",
    commands: "+eval +evalsha +get +set",
};

/// Key: the marker. Argument: the claim's token. Says whether the claim still stood.
pub(crate) const RELEASE: Script = Script {
    text: "#!lua flags=allow-oom
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])",
    sha1: "0bb7d15e4e16cb51dadf9e6431a2a10d7801b995",
    commands: "+eval +evalsha +get +del",
};

/// For the test that looks at all scripts.
#[cfg(test)]
pub(super) const SCRIPTS: [&Script; 2] = [&COMPLETE, &RELEASE];

impl Idempotency {
    /// Of the scope whose markers begin with `prefix`.
    pub(crate) fn new(
        target: Arc<Target>,
        client_name: String,
        [connect_timeout, timeout]: [Duration; 2],
        prefix: String,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                target,
                client_name,
                connect_timeout,
                timeout,
                prefix,
                connection: Mutex::default(),
            }),
        }
    }

    /// Whether this is the first sight of `id` within `ttl`. The id is marked from now on, whatever
    /// becomes of the work.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), streamlane::Error> {
    /// # use std::time::Duration;
    /// # let streams = streamlane::Streams::connect("redis://127.0.0.1:6379")?;
    /// let payments = streams.idempotency("payments")?;
    /// if payments.try_begin("payment-17", Duration::from_secs(3600))? {
    ///     // do it, at most once
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Argument`] for an id that is blank or above 1024 bytes, or a `ttl` below 1 ms or
    /// above 100 years. Otherwise the server refused or could not be reached:
    /// [`Error::outcome`] tells whether the id may be marked all the same.
    pub fn try_begin(&self, id: impl AsRef<[u8]>, ttl: Duration) -> Result<bool> {
        let by = Deadline::after(self.shared.timeout);
        let before = self.shared.mark(id.as_ref(), DONE, ttl, by)?;
        Ok(before.is_none())
    }

    /// A claim on `id` for up to `ttl`, which is how long the work may take, unless it is done already, or
    /// claimed. Dropped without [`complete`](Claim::complete), the claim is released, so a failure lets the
    /// next call try.
    ///
    /// In a handler only [`Done`](Sight::Done) means that there is nothing to do.
    /// [`Claimed`](Sight::Claimed) may be a claim of one's own, from before a crash or a lost answer: to
    /// return `Ok` then would lose the message.
    ///
    /// ```no_run
    /// # fn work(_: &streamlane::Message<'_>) -> Result<(), std::io::Error> { Ok(()) }
    /// use std::time::Duration;
    /// use streamlane::{HandlerResult, Idempotency, Message, OrAction, Sight};
    ///
    /// const DAY: Duration = Duration::from_secs(24 * 3600);
    ///
    /// fn pay(payments: &Idempotency, m: &Message<'_>) -> HandlerResult {
    ///     match payments.claim(m.key().as_bytes(), Duration::from_secs(30)).or_block()? {
    ///         Sight::Mine(claim) => {
    ///             work(m).or_block()?; // the claim is released, and this is tried again
    ///             let _in_time = claim.complete(DAY).or_block()?;
    ///             Ok(())
    ///         }
    ///         Sight::Done => Ok(()),
    ///         Sight::Claimed => Err("claimed, perhaps by a process that died").or_block(),
    ///     }
    /// }
    /// # let _: fn(&Idempotency, &Message<'_>) -> HandlerResult = pay;
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`try_begin`](Self::try_begin). After [`Unknown`](crate::Outcome::Unknown) the id may stay
    /// claimed until `ttl` is over.
    pub fn claim(&self, id: impl AsRef<[u8]>, ttl: Duration) -> Result<Sight> {
        let by = Deadline::after(self.shared.timeout);
        let token = InstanceId::random().to_string();
        let asked = clock::now();
        let id = id.as_ref();
        Ok(match self.shared.mark(id, &token, ttl, by)? {
            None => Sight::Mine(Claim {
                shared: Arc::clone(&self.shared),
                key: self.shared.key(id),
                // From before it was sent: here it is never over later than on the server.
                until: asked + ttl,
                open: true,
                token,
            }),
            Some(held) if is_token(&held) => Sight::Claimed,
            Some(_) => Sight::Done,
        })
    }
}

/// What a claim found; see [`Idempotency::claim`].
#[derive(Debug)]
#[must_use = "a claim that is dropped is released"]
pub enum Sight {
    /// Nobody has seen the id: the work is to be done now.
    Mine(Claim),
    /// It is done, as far as can be told: marked for good by a claim that was completed, by
    /// [`Idempotency::try_begin`], by a forwarder or by a peer.
    Done,
    /// Somebody has a claim on it: at work, or dead, in which case the id is free when the claim's time
    /// is over. In a handler: try again later.
    Claimed,
}

impl Sight {
    /// The claim, if it was made.
    pub fn mine(self) -> Option<Claim> {
        match self {
            Self::Mine(claim) => Some(claim),
            Self::Done | Self::Claimed => None,
        }
    }
}

/// Whether a claim was completed in its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "somebody else may have done the same work"]
pub enum Completion {
    /// The claim stood: nobody else can have done the work under one.
    InTime,
    /// Its time was over before: somebody else may have done the same work, or be about it.
    Late,
}

/// Whether a marker holds a claim of ours, rather than what is left when the work is done.
fn is_token(held: &[u8]) -> bool {
    InstanceId::parse(held).is_some()
}

impl fmt::Debug for Idempotency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotency")
            .field("keys", &self.shared.prefix)
            .field("endpoint", &self.shared.target.endpoint())
            .finish_non_exhaustive()
    }
}

/// The right to do what an id stands for, until it is completed, released or its time is over; see
/// [`Idempotency::claim`].
///
/// Dropping it releases it, which is a round trip, blocks for up to `PublishTimeoutMs`, and is logged when
/// it fails: then the id is free when the claim's time is over. A claim never frees that of another: the
/// server compares before it deletes.
#[must_use = "a claim that is dropped is released"]
pub struct Claim {
    shared: Arc<Shared>,
    key: Vec<u8>,
    /// What the marker holds while this claim stands. To peers it is a marker as any other.
    token: String,
    until: Instant,
    /// Whether it is still to be released.
    open: bool,
}

impl Claim {
    /// How much of the claim's time is left, by this machine's clock and on the safe side. Look at it
    /// before a step that must not be made twice.
    pub fn remaining(&self) -> Duration {
        self.until.saturating_duration_since(clock::now())
    }

    /// Says that the work is done, and marks the id for `ttl` from now on.
    ///
    /// # Errors
    ///
    /// As for [`Idempotency::try_begin`]. The claim is not released then, for the work is done: it stands
    /// until its time is over.
    pub fn complete(mut self, ttl: Duration) -> Result<Completion> {
        self.open = false;
        check_ttl("complete", ttl).map_err(|e| self.shared.about(e))?;
        let ms = clock::ceil_ms(ttl).to_string();
        let args = [self.token.as_bytes(), DONE.as_bytes(), ms.as_bytes()];
        let stood = self.run("complete", &COMPLETE, &args)?;
        Ok(if stood {
            Completion::InTime
        } else {
            Completion::Late
        })
    }

    /// Frees the id, so that the next call may claim it. False when the claim's time was over before.
    ///
    /// # Errors
    ///
    /// The server refused or could not be reached: the id is free when the claim's time is over, at the
    /// latest.
    pub fn release(mut self) -> Result<bool> {
        self.free()
    }

    fn free(&mut self) -> Result<bool> {
        self.open = false;
        self.run("release", &RELEASE, &[self.token.as_bytes()])
    }

    fn run(&self, operation: &'static str, script: &Script, args: &[&[u8]]) -> Result<bool> {
        let by = Deadline::after(self.shared.timeout);
        let run = |form| self.shared.call(&script.on_key(form, &self.key, args), by);
        let answer = by_hash_first(run).map_err(|e| {
            script.saying_what_to_grant(e.during(operation), &[&self.shared.prefix])
        })?;
        Ok(answer == Value::Int(1))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.open
            && let Err(e) = self.free()
        {
            log::warn!("{e}; the id stays claimed for {:?}", self.remaining());
        }
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim")
            .field("key", &String::from_utf8_lossy(&self.key))
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn key(&self, id: &[u8]) -> Vec<u8> {
        [self.prefix.as_bytes(), id].concat()
    }

    /// Sets the marker unless it is there; then it returns what it holds.
    fn mark(&self, id: &[u8], value: &str, ttl: Duration, by: Deadline) -> Result<Option<Vec<u8>>> {
        check_marker("claim", id, ttl).map_err(|e| self.about(e))?;
        let mut cmd = redis::cmd("SET");
        cmd.arg(self.key(id)).arg(value).arg("NX").arg("GET");
        cmd.arg("PX").arg(clock::ceil_ms(ttl));
        let answer = self.call(&cmd, by).map_err(|e| e.during("claim"))?;
        Ok(match answer {
            Value::Nil => None,
            Value::BulkString(held) => Some(held),
            other => Some(format!("{other:?}").into_bytes()),
        })
    }

    fn call(&self, cmd: &Cmd, by: Deadline) -> Result<Value> {
        let Some(mut connection) = self.connection.try_lock_for(by.left()) else {
            let ms = by.allowed().as_millis();
            let what = format!("waited {ms} ms for other callers");
            return Err(self.about(Error::new(ErrorKind::Timeout, "claim", what)));
        };
        // An idle connection may have been closed by now, which is found out before anything is sent.
        if connection.as_mut().is_some_and(|c| c.check_idle().is_err()) {
            *connection = None;
        }
        let c = if let Some(c) = &mut *connection {
            c
        } else {
            let c = dial(
                &self.target,
                &self.client_name,
                self.connect_timeout,
                None,
                by,
            );
            connection.insert(c.map_err(|e| self.about(e))?)
        };
        let answer = c.call(cmd, by.left());
        if answer.as_ref().is_err_and(is_over) {
            *connection = None;
        }
        answer
    }

    fn about(&self, e: Error) -> Error {
        e.on_key(&self.prefix).at(self.target.endpoint())
    }
}
