//! Commands of one's own, for what no other call asks.

use std::{fmt, time::Duration};

use crate::{
    Admin, Command, Error, Reply, Result,
    error::ErrorKind,
    net::{Connection, Deadline},
};

use super::TIMEOUT;

impl Admin {
    /// A connection of its own for [commands](Command) of your own: to ask the server what no other call of this
    /// crate asks. Blocks for up to `ConnectTimeoutMs` (5 s).
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use streamlane::{Command, Streams};
    ///
    /// # fn main() -> Result<(), streamlane::Error> {
    /// # let streams = Streams::connect("redis://127.0.0.1:6379")?;
    /// let mut session = streams.admin().session()?;
    /// let length = Command::new("XLEN").key("re:s:{orders}:0");
    /// println!("{:?}", session.call(&length, Duration::from_secs(1))?.int());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// A server that cannot be reached or refuses the login.
    pub fn session(&self) -> Result<Session> {
        let connection = self.shared.connect(Deadline::after(TIMEOUT))?;
        Ok(Session {
            connection,
            out: Vec::new(),
        })
    }
}

/// A connection for commands of one's own; see [`Admin::session`]. Closed when dropped. It does not connect again:
/// after an error other than the server's own make another.
pub struct Session {
    connection: Connection,
    out: Vec<u8>,
}

impl Session {
    /// Runs a command and waits for its answer for up to `timeout`. A command that waits in the server, such as
    /// `XREAD` with `BLOCK`, needs that time on top.
    ///
    /// # Errors
    ///
    /// The server's own ([`ErrorKind::Server`]), which leaves the session as it was; a connection that was lost,
    /// or no answer in time. An argument error for a command whose answers never end, or which would change or
    /// end the connection.
    pub fn call(&mut self, command: &Command, timeout: Duration) -> Result<Reply> {
        let mut replies = self.call_all(std::slice::from_ref(command), timeout)?;
        match replies.pop() {
            Some(reply) => reply,
            None => Err(Error::new(ErrorKind::Protocol, "call", "no answer")),
        }
    }

    /// Runs commands in one round trip, and waits for the answer to each, `timeout` in all.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call). The outer error is the connection's, those within are the server's.
    pub fn call_all(
        &mut self,
        commands: &[Command],
        timeout: Duration,
    ) -> Result<Vec<Result<Reply>>> {
        self.out.clear();
        for command in commands {
            command.check_alone()?;
            command.encode(&mut self.out);
        }
        let by = Deadline::after(timeout);
        self.connection.check_idle()?;
        self.connection.send(&self.out, timeout)?;
        let answers = self.connection.answers(commands.len(), by.left())?;
        let named = |(answer, command): (Result<redis::Value>, &Command)| {
            let answer = answer.map_err(|e| e.during(command.name()));
            Ok(Reply::of(answer?))
        };
        Ok(answers.into_iter().zip(commands).map(named).collect())
    }

    /// Where the server is, `host:port` or the path of a socket.
    pub fn endpoint(&self) -> &str {
        self.connection.endpoint()
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("endpoint", &self.endpoint())
            .finish_non_exhaustive()
    }
}
