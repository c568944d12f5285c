//! One connection to one server: dialled through the endpoint's gate, used by one thread at a time,
//! given up for good at the first sign that questions and answers might no longer match.

use std::{
    fmt, io,
    ops::Range,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use redis::{Arg, Cmd, RedisError, RedisResult, Value};
use socket2::SockAddr;

use super::{
    gate::{self, Gate},
    handshake::Handshake,
    interrupt::Interrupt,
    replies::{Replies, error_text},
    resolver,
    socket::{SendError, Socket},
    target::{Place, Target},
};
use crate::{
    clock,
    error::{Error, ErrorKind, Outcome, ServerClass},
};

/// The share of a dial's time kept for the dial itself, however long the wait for a turn was.
const DIAL_SHARE: u32 = 4;

/// A connection that is logged in and has its database selected.
///
/// Hot paths write and read their own bytes ([`Self::send`], [`Self::recv`]); everything else uses
/// [`Self::call`]. Do not mix the two while an answer is outstanding.
pub(crate) struct Connection {
    socket: Arc<Socket>,
    gate: Arc<Gate>,
    endpoint: Arc<str>,
    db: u32,
    server_version: Option<Box<str>>,
    /// The time of one call, where the redis crate's traits leave no place to say it.
    timeout: Duration,
    out: Vec<u8>,
    replies: Replies,
    broken: AtomicBool,
    /// Of the gate, when this was made.
    demotions: u64,
}

impl Connection {
    /// Connects within `timeout`, all included: the wait for a turn while the server is down, name
    /// resolution, connecting, and the handshake. `interrupt` can end each of these, and is left
    /// attached to the socket, so that it can end reads as well.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Stopped`] when the interrupt was cut; otherwise [`ErrorKind::Connect`],
    /// [`ErrorKind::Config`] (no such database) or [`ErrorKind::Protocol`] (not a Redis server).
    pub(crate) fn dial(
        target: &Target,
        client_name: &str,
        interrupt: Option<&Arc<Interrupt>>,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let idle = Arc::default();
        let interrupt = interrupt.unwrap_or(&idle);
        let gate = Gate::of(target);
        let deadline = super::after(timeout);
        let share = (timeout / DIAL_SHARE).min(Duration::from_secs(1));
        let pass = gate.enter(interrupt, super::after(timeout.saturating_sub(share)))?;
        if clock::now() >= deadline {
            // No news of the server, and nothing to hold others back for.
            pass.abandoned();
            let what = "no time was left to connect";
            let e = Error::new(ErrorKind::Connect, "connect", what);
            return Err(e.at(target.endpoint()));
        }
        let shared = Arc::clone(&gate);
        match Self::establish(target, client_name, interrupt, shared, deadline, timeout) {
            Ok(connection) => {
                pass.succeeded();
                Ok(connection)
            }
            Err(_) if interrupt.is_cut() => {
                pass.abandoned();
                Err(gate::stopped(target.endpoint()))
            }
            Err(e) => {
                let e = e.at(target.endpoint());
                pass.failed(&e);
                Err(e)
            }
        }
    }

    fn establish(
        target: &Target,
        client_name: &str,
        interrupt: &Arc<Interrupt>,
        gate: Arc<Gate>,
        deadline: Instant,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let failed = |step: &str, e: io::Error| {
            let ms = clock::ceil_ms(timeout);
            let error = |message| Error::new(ErrorKind::Connect, "connect", message);
            if e.kind() == io::ErrorKind::TimedOut {
                error(format!("{step}: no answer within {ms} ms"))
            } else {
                error(format!("{step} failed")).caused_by(e)
            }
        };
        let addresses = match target.place() {
            Place::Unix(path) => vec![SockAddr::unix(path).map_err(|e| failed("the path", e))?],
            Place::Tcp { host, port } => resolver::resolve(host, *port, deadline, interrupt)
                .map_err(|e| failed("looking the name up", e))?
                .into_iter()
                .map(SockAddr::from)
                .collect(),
        };
        let demotions = gate.demotions.load(Ordering::Relaxed);
        let socket = Socket::connect(&addresses, deadline, interrupt)
            .map_err(|e| failed("reaching the server", e))?;
        let socket = Arc::new(socket);
        // before the first word, so that a server which says nothing holds up no stop
        interrupt.attach(&socket);
        let mut replies = Replies::default();
        let handshake = Handshake {
            socket: &socket,
            replies: &mut replies,
            target,
            deadline,
            timeout,
        };
        let server = handshake.run(client_name)?;
        Ok(Self {
            socket,
            gate,
            endpoint: target.endpoint().into(),
            db: target.db(),
            server_version: server.version,
            timeout,
            out: Vec::new(),
            replies,
            broken: AtomicBool::new(false),
            demotions,
        })
    }

    /// To be told of refusals. A replica serves who only reads, and who does would never notice that the
    /// name stands for another server by now: so whoever is refused a write tells the others.
    #[cold]
    pub(crate) fn heed(&self, refusal: &Error) {
        if refusal.server_class() == Some(ServerClass::ReadOnly) {
            let (seen, count) = (self.demotions, &self.gate.demotions);
            // once for all connections that were made before
            let _ = count.compare_exchange(seen, seen + 1, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Whether the server was found to be a replica, by whoever, since this was made.
    #[inline]
    pub(crate) fn is_outdated(&self) -> bool {
        self.demotions != self.gate.demotions.load(Ordering::Relaxed)
    }

    /// `host:port` or socket path.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Such as `7.0.15`; `None` where the server does not say.
    pub(crate) fn server_version(&self) -> Option<&str> {
        self.server_version.as_deref()
    }

    /// Whether the connection was given up: every further use fails at once.
    #[cfg(test)]
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// The time of each call made through the redis crate's traits; at first that of the dial.
    #[cfg(test)]
    pub(crate) fn set_call_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Writes raw bytes, waiting up to `timeout` for the server to take them.
    ///
    /// A failure breaks the connection. It is `Unknown` unless not one byte was taken.
    pub(crate) fn send(&mut self, bytes: &[u8], timeout: Duration) -> Result<(), Error> {
        self.refuse_if_broken()?;
        let sent = self.socket.send_all(bytes, timeout);
        sent.map_err(|e| self.unsent(e, timeout))
    }

    /// Reads what has arrived, or the first that does within `timeout`, after up to `spin` of asking
    /// over and over.
    ///
    /// A failure breaks the connection. Its outcome is `Unknown`: what was asked may have been done.
    pub(crate) fn recv(
        &mut self,
        buf: &mut [u8],
        spin: Duration,
        timeout: Duration,
    ) -> Result<usize, Error> {
        self.refuse_if_broken()?;
        let got = if spin.is_zero() {
            self.socket.recv(buf, timeout)
        } else {
            self.socket.recv_spin(buf, spin, timeout)
        };
        got.map_err(|e| self.lost(e, timeout).with_outcome(Outcome::Unknown))
    }

    /// Looks, without waiting, whether the connection still stands and nothing lies in it. To be
    /// called before a command that must not be sent twice, after a pause: servers and networks hang
    /// up on idle clients, and here that is still `NotApplied`.
    pub(crate) fn check_idle(&mut self) -> Result<(), Error> {
        self.refuse_if_broken()?;
        if self.is_outdated() {
            let what = "the server is a replica now, as another connection has found";
            return Err(Error::new(ErrorKind::Io, "call", what).at(&*self.endpoint));
        }
        let idle = self.socket.expect_silence();
        idle.map_err(|e| self.lost(e, Duration::ZERO))
    }

    /// Runs one command and waits for its answer, `timeout` in total.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Server`] is `NotApplied` and leaves the connection as it was. Everything else
    /// breaks it: `NotApplied` when the command did not go out whole, `Unknown` when it did.
    pub(crate) fn call(&mut self, cmd: &Cmd, timeout: Duration) -> Result<Value, Error> {
        self.out.clear();
        cmd.write_packed_command(&mut self.out);
        let deadline = super::after(timeout);
        let answer = match self.send_out(timeout) {
            Ok(()) => self.answer(deadline, timeout),
            // the server does not run half a command
            Err(e) => Err(e.with_outcome(Outcome::NotApplied)),
        };
        let answer = answer.and_then(|a| self.nothing_left().and(a));
        answer.map_err(|e| about(e, cmd))
    }

    /// As [`Self::call`], and takes the answer for a `T`: anything else is [`ErrorKind::Protocol`].
    pub(crate) fn ask<T: redis::FromRedisValue>(
        &mut self,
        cmd: &Cmd,
        timeout: Duration,
    ) -> Result<T, Error> {
        let answer = self.call(cmd, timeout)?;
        redis::from_redis_value(answer).map_err(|e| self.odd(cmd, e.to_string()))
    }

    /// As [`Self::ask`], for one answer, or a nil, to each of `n` fields.
    pub(crate) fn ask_fields(
        &mut self,
        cmd: &Cmd,
        n: usize,
        timeout: Duration,
    ) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let values: Vec<_> = self.ask(cmd, timeout)?;
        if values.len() == n {
            return Ok(values);
        }
        let what = format!("{} values for {n} fields", values.len());
        Err(self.odd(cmd, what))
    }

    #[cold]
    fn odd(&self, cmd: &Cmd, what: String) -> Error {
        let e = Error::new(ErrorKind::Protocol, "call", what);
        about(e.at(&*self.endpoint), cmd)
    }

    /// Runs commands in one round trip, `timeout` in total, and returns the answer to each.
    ///
    /// # Errors
    ///
    /// As [`Self::call`], but `Unknown` covers the commands together: as soon as any byte went out
    /// some may have been run.
    pub(crate) fn pipeline(
        &mut self,
        cmds: &[Cmd],
        timeout: Duration,
    ) -> Result<Vec<Result<Value, Error>>, Error> {
        let Some(first) = cmds.first() else {
            return Ok(Vec::new());
        };
        self.out.clear();
        for cmd in cmds {
            cmd.write_packed_command(&mut self.out);
        }
        let deadline = super::after(timeout);
        self.send_out(timeout).map_err(|e| about(e, first))?;
        let mut answers = Vec::with_capacity(cmds.len());
        for cmd in cmds {
            let answer = self.answer(deadline, timeout).map_err(|e| about(e, cmd))?;
            answers.push(answer.map_err(|e| about(e, cmd)));
        }
        self.nothing_left().map_err(|e| about(e, first))?;
        Ok(answers)
    }

    /// The next `n` answers, `timeout` in total, to what was sent by [`Self::send`]. There must be no
    /// more of them.
    ///
    /// A failure breaks the connection. Its outcome is `Unknown`: what was asked may have been done.
    pub(crate) fn answers(
        &mut self,
        n: usize,
        timeout: Duration,
    ) -> Result<Vec<Result<Value, Error>>, Error> {
        self.refuse_if_broken()?;
        let deadline = super::after(timeout);
        let answers = (0..n).map(|_| self.answer(deadline, timeout));
        let answers = answers.collect::<Result<Vec<_>, _>>()?;
        self.nothing_left()?;
        Ok(answers)
    }

    fn send_out(&mut self, timeout: Duration) -> Result<(), Error> {
        self.check_idle()?;
        let sent = self.socket.send_all(&self.out, timeout);
        sent.map_err(|e| self.unsent(e, timeout))
    }

    /// The next answer; the outer error is the connection's, the inner one the server's.
    fn answer(
        &mut self,
        deadline: Instant,
        timeout: Duration,
    ) -> Result<Result<Value, Error>, Error> {
        let place = self.receive(deadline, timeout)?;
        let reply = &self.replies[place];
        if let Some(text) = error_text(reply) {
            let e = Error::server("call", text).at(&*self.endpoint);
            self.heed(&e);
            return Ok(Err(e));
        }
        redis::parse_redis_value(reply).map(Ok).map_err(|e| {
            let e = io::Error::new(io::ErrorKind::InvalidData, e.to_string());
            self.lost(e, timeout).with_outcome(Outcome::Unknown)
        })
    }

    fn receive(&mut self, deadline: Instant, timeout: Duration) -> Result<Range<usize>, Error> {
        let place = self.replies.next(&self.socket, deadline);
        place.map_err(|e| self.lost(e, timeout).with_outcome(Outcome::Unknown))
    }

    /// More answers than questions: which belongs to which is anybody's guess.
    fn nothing_left(&mut self) -> Result<(), Error> {
        if self.replies.unread().is_empty() {
            return Ok(());
        }
        let e = io::Error::new(io::ErrorKind::InvalidData, "more answers than questions");
        Err(self.lost(e, Duration::ZERO).with_outcome(Outcome::Unknown))
    }

    #[inline]
    fn refuse_if_broken(&self) -> Result<(), Error> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(Error::new(
                ErrorKind::Io,
                "call",
                "the connection was given up after an earlier failure",
            )
            .at(&*self.endpoint));
        }
        Ok(())
    }

    #[cold]
    fn unsent(&self, e: SendError, timeout: Duration) -> Error {
        let outcome = if e.written == 0 {
            Outcome::NotApplied
        } else {
            Outcome::Unknown
        };
        self.lost(e.source, timeout).with_outcome(outcome)
    }

    /// Gives the connection up: an answer that comes late must never meet the next question.
    #[cold]
    fn lost(&self, source: io::Error, timeout: Duration) -> Error {
        self.broken.store(true, Ordering::Relaxed);
        let cut_here = self.socket.is_shut();
        if source.kind() == io::ErrorKind::TimedOut {
            self.socket.abort();
        } else {
            self.socket.shutdown();
        }
        let e = match source.kind() {
            _ if cut_here => Error::new(ErrorKind::Io, "call", "cut off by this process"),
            io::ErrorKind::InvalidData => {
                Error::new(ErrorKind::Protocol, "call", source.to_string())
            }
            io::ErrorKind::TimedOut => {
                let ms = clock::ceil_ms(timeout);
                Error::io("call", source).saying(format!("no answer within {ms} ms"))
            }
            _ => Error::io("call", source),
        };
        let e = e.at(&*self.endpoint);
        match e.kind() {
            _ if cut_here => {}
            ErrorKind::Timeout => self.gate.unanswered(e.to_string()),
            _ => self.gate.suspect(),
        }
        e
    }

    fn values(&mut self, packed: &[u8], count: usize) -> RedisResult<Vec<Value>> {
        self.out.clear();
        self.out.extend_from_slice(packed);
        let deadline = super::after(self.timeout);
        self.send_out(self.timeout).map_err(foreign)?;
        let mut values = Vec::with_capacity(count);
        for _ in 0..count {
            let place = self.receive(deadline, self.timeout).map_err(foreign)?;
            values.push(redis::parse_redis_value(&self.replies[place])?);
        }
        self.nothing_left().map_err(foreign)?;
        Ok(values)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("endpoint", &self.endpoint)
            .field("db", &self.db)
            .field("server_version", &self.server_version)
            .field("broken", &self.broken)
            .finish_non_exhaustive()
    }
}

/// For the redis crate's own commands and scripts. Answers that are errors are values here.
impl redis::ConnectionLike for Connection {
    fn req_packed_command(&mut self, cmd: &[u8]) -> RedisResult<Value> {
        Ok(self.values(cmd, 1)?.remove(0))
    }

    fn req_packed_commands(
        &mut self,
        cmd: &[u8],
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        let mut values = self.values(cmd, offset + count)?;
        let wanted = values.split_off(offset);
        // a command that was refused before `EXEC` says more than `EXEC` itself
        for value in values {
            value.extract_error()?;
        }
        Ok(wanted)
    }

    fn get_db(&self) -> i64 {
        self.db.into()
    }

    fn check_connection(&mut self) -> bool {
        self.call(&redis::cmd("PING"), self.timeout).is_ok()
    }

    fn is_open(&self) -> bool {
        !self.broken.load(Ordering::Relaxed)
    }
}

/// Our errors in the terms of the redis crate, told apart as it tells its own.
fn foreign(e: Error) -> RedisError {
    let kind = match e.kind() {
        ErrorKind::Timeout => io::ErrorKind::TimedOut,
        ErrorKind::Protocol => io::ErrorKind::InvalidData,
        _ => io::ErrorKind::BrokenPipe,
    };
    io::Error::new(kind, e).into()
}

/// Names the command and its key.
#[cold]
fn about(e: Error, cmd: &Cmd) -> Error {
    let args: Vec<_> = cmd
        .args_iter()
        .map(|a| match a {
            Arg::Simple(bytes) => bytes,
            _ => &b""[..],
        })
        .collect();
    let name = String::from_utf8_lossy(args.first().unwrap_or(&&b""[..])).to_uppercase();
    let e = match key_of(&name, &args) {
        Some(key) => e.on_key(key),
        None => e,
    };
    e.during(name)
}

/// The first key among the arguments of a command of this crate.
fn key_of<'a>(name: &str, args: &[&'a [u8]]) -> Option<&'a [u8]> {
    let at = match name {
        "ACL" | "AUTH" | "CLIENT" | "CLUSTER" | "COMMAND" | "CONFIG" | "DBSIZE" | "DEBUG"
        | "DISCARD" | "ECHO" | "EXEC" | "FLUSHALL" | "FLUSHDB" | "FUNCTION" | "HELLO" | "INFO"
        | "KEYS" | "LATENCY" | "MODULE" | "MULTI" | "PING" | "REPLICAOF" | "ROLE" | "SCAN"
        | "SCRIPT" | "SELECT" | "SENTINEL" | "TIME" | "UNWATCH" | "WAIT" => return None,
        "MEMORY" | "OBJECT" | "XGROUP" | "XINFO" => 2,
        "EVAL" | "EVALSHA" | "FCALL" if *args.get(2)? == b"0" => return None,
        "EVAL" | "EVALSHA" | "FCALL" => 3,
        "XREAD" | "XREADGROUP" => {
            1 + args
                .iter()
                .position(|a| a.eq_ignore_ascii_case(b"STREAMS"))?
        }
        _ => 1,
    };
    args.get(at).copied()
}

/// A connection that one thread writes to while another reads from it. Who does which is for its owner
/// to see to; that answers match questions too, and what a failure means for each of them.
#[derive(Debug)]
pub(crate) struct Duplex {
    connection: Connection,
    /// What ended it. Who fails because another has failed before says what the other did.
    failure: OnceLock<Error>,
}

impl Duplex {
    /// From here on the connection is used for nothing else.
    pub(crate) fn of(connection: Connection) -> Self {
        Self {
            connection,
            failure: OnceLock::new(),
        }
    }

    /// As [`Connection::send`], but tells how many bytes were taken before a failure.
    pub(crate) fn send(&self, bytes: &[u8], timeout: Duration) -> Result<(), (usize, Error)> {
        self.refuse_if_ended().map_err(|e| (0, e))?;
        let sent = self.connection.socket.send_all(bytes, timeout);
        sent.map_err(|e| (e.written, self.lost(e.source, timeout)))
    }

    /// As [`Connection::recv`], but nothing within `timeout` is no failure: it gives `None`.
    pub(crate) fn recv(&self, buf: &mut [u8], timeout: Duration) -> Result<Option<usize>, Error> {
        self.refuse_if_ended()?;
        match self.connection.socket.recv(buf, timeout) {
            Ok(n) => Ok(Some(n)),
            Err(e) if e.kind() == io::ErrorKind::TimedOut => Ok(None),
            Err(e) => Err(self.lost(e, timeout)),
        }
    }

    /// As [`Connection::check_idle`].
    pub(crate) fn check_idle(&self) -> Result<(), Error> {
        self.refuse_if_ended()?;
        let idle = self.connection.socket.expect_silence();
        idle.map_err(|e| self.lost(e, Duration::ZERO))
    }

    /// Gives it up for having said nothing in `timeout`: whoever waits on it returns at once.
    pub(crate) fn give_up(&self, timeout: Duration) -> Error {
        self.lost(io::ErrorKind::TimedOut.into(), timeout)
    }

    /// Ends it, for having said what it should not.
    pub(crate) fn shutdown(&self) {
        self.connection.broken.store(true, Ordering::Relaxed);
        self.connection.socket.shutdown();
    }

    #[inline]
    fn refuse_if_ended(&self) -> Result<(), Error> {
        let refused = self.connection.refuse_if_broken();
        refused.map_err(|e| self.failure.get_or_init(|| e).again())
    }

    #[cold]
    fn lost(&self, source: io::Error, timeout: Duration) -> Error {
        let lost = || self.connection.lost(source, timeout);
        self.failure.get_or_init(lost).again()
    }
}

#[cfg(test)]
mod tests;
