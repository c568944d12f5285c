//! The one error type of the crate: what was tried, where, what the server said, whether it took
//! effect, and whether trying again can help.

use std::{borrow::Cow, error, fmt};

/// What this crate's calls return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, as a small value to match on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A setting is missing, out of range or contradicts another. Found at start, or when a topic is
    /// first used and turns out to be laid out otherwise.
    Config,
    /// The arguments of one call were refused before anything was sent.
    Argument,
    /// No connection could be made: name resolution, dialling or the handshake failed.
    Connect,
    /// An established connection broke.
    Io,
    /// No whole answer came within the deadline of the call.
    Timeout,
    /// The server answered with an error; see [`Error::server_class`].
    Server,
    /// The peer sent bytes that are no valid reply to what was asked. The connection is given up.
    Protocol,
    /// An entry is not a message: a field is missing or its header block is broken.
    Malformed,
    /// The body of a message is kept apart (`ClaimCheck`), and is not there any more.
    PayloadMissing,
    /// The message is larger than the server or the settings allow. Nothing was sent.
    TooLarge,
    /// A queue had no room for the message, which was not taken into it or was dropped from it.
    Full,
    /// The handle, consumer or partition was stopped.
    Stopped,
    /// A handler failed under a policy that ends the consumer.
    Handler,
}

impl ErrorKind {
    /// As it is written here, for counters.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Config => "Config",
            Self::Argument => "Argument",
            Self::Connect => "Connect",
            Self::Io => "Io",
            Self::Timeout => "Timeout",
            Self::Server => "Server",
            Self::Protocol => "Protocol",
            Self::Malformed => "Malformed",
            Self::PayloadMissing => "PayloadMissing",
            Self::TooLarge => "TooLarge",
            Self::Full => "Full",
            Self::Stopped => "Stopped",
            Self::Handler => "Handler",
        }
    }
}

/// Whether a command that failed has changed anything on the server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// Nothing was changed. The same call may be made again.
    NotApplied,
    /// The change was made; what failed came after it.
    Applied,
    /// The answer was lost. The change may have been made, or may still be: a command on its way
    /// when the connection broke can land after the next one. Repeating the call may apply it twice.
    Unknown,
}

/// What kind of refusal an error reply of the server is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ServerClass {
    /// It will pass by itself: `MASTERDOWN`, `CLUSTERDOWN`, `TRYAGAIN`, `BUSY`, `UNBLOCKED`,
    /// `MISCONF`, `NOREPLICAS`, `NOSCRIPT`, `max number of clients`.
    Transient,
    /// The server is a replica now (`READONLY`): the name must be resolved again.
    ReadOnly,
    /// The server is reading its data set from disk (`LOADING`).
    Loading,
    /// User name or password were refused (`NOAUTH`, `WRONGPASS`).
    Auth,
    /// The user may not run the command or touch the key (`NOPERM`).
    NoPermission,
    /// The server is at its memory limit (`OOM`). Reads still work.
    OutOfMemory,
    /// The key holds another type (`WRONGTYPE`).
    WrongType,
    /// The server does not know the command or its syntax.
    UnknownCommand,
    /// The key lives on another node (`MOVED`, `ASK`).
    Moved,
    /// Anything else.
    Other,
}

impl ServerClass {
    /// Sorts an error reply, given without its leading `-` and line end.
    pub fn of(reply: &[u8]) -> Self {
        let code = reply.split(|b| *b == b' ').next().unwrap_or(reply);
        match code {
            b"LOADING" => Self::Loading,
            b"READONLY" => Self::ReadOnly,
            b"MASTERDOWN" | b"CLUSTERDOWN" | b"TRYAGAIN" | b"BUSY" | b"UNBLOCKED" | b"MISCONF"
            | b"NOREPLICAS" | b"NOTBUSY" | b"NOSCRIPT" => Self::Transient,
            b"NOAUTH" | b"WRONGPASS" => Self::Auth,
            b"NOPERM" => Self::NoPermission,
            b"OOM" => Self::OutOfMemory,
            b"WRONGTYPE" => Self::WrongType,
            b"MOVED" | b"ASK" => Self::Moved,
            b"ERR" => Self::of_plain(&reply[3..]),
            _ => Self::Other,
        }
    }

    /// `ERR` says nothing; the text has to.
    fn of_plain(text: &[u8]) -> Self {
        let text = text.trim_ascii_start().to_ascii_lowercase();
        let starts = |p: &str| text.starts_with(p.as_bytes());
        if starts("unknown command") || starts("unknown subcommand") {
            Self::UnknownCommand
        } else if starts("invalid password")
            || starts("invalid username-password")
            || starts("client sent auth")
            || starts("auth ")
        {
            Self::Auth
        } else if starts("the user executing the script can't") || starts("acl failure in script") {
            // instead of NOPERM: Redis 7.0, and what came after it
            Self::NoPermission
        } else if starts("max number of clients") {
            Self::Transient
        } else {
            Self::Other
        }
    }

    /// Whether the same command can succeed later without anybody changing anything.
    pub fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::Transient | Self::ReadOnly | Self::Loading | Self::OutOfMemory
        )
    }
}

/// An error of this crate.
///
/// One pointer wide. [`Display`](fmt::Display) says what was tried, on which key and endpoint, what
/// happened and whether it took effect; no password is ever part of it.
pub struct Error(Box<Repr>);

struct Repr {
    kind: ErrorKind,
    outcome: Outcome,
    operation: Cow<'static, str>,
    key: Option<Box<str>>,
    endpoint: Option<Box<str>>,
    message: Cow<'static, str>,
    server: Option<(ServerClass, Box<str>)>,
    source: Option<Box<dyn error::Error + Send + Sync>>,
}

impl Error {
    /// The category, for matching.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether anything was changed on the server.
    pub fn outcome(&self) -> Outcome {
        self.0.outcome
    }

    /// Whether the same call can succeed later without anybody changing anything. After
    /// [`Outcome::Unknown`] a retry may apply it twice; this method does not weigh that. Never after
    /// [`Outcome::Applied`].
    pub fn is_retryable(&self) -> bool {
        match self.0.kind {
            _ if self.0.outcome == Outcome::Applied => false,
            ErrorKind::Connect | ErrorKind::Server => {
                self.server_class().is_none_or(ServerClass::is_retryable)
            }
            ErrorKind::Io | ErrorKind::Timeout | ErrorKind::Protocol | ErrorKind::Full => true,
            ErrorKind::Config
            | ErrorKind::Argument
            | ErrorKind::Malformed
            | ErrorKind::PayloadMissing
            | ErrorKind::TooLarge
            | ErrorKind::Stopped
            | ErrorKind::Handler => false,
        }
    }

    /// What kind of refusal it was, when the server answered with an error.
    pub fn server_class(&self) -> Option<ServerClass> {
        self.0.server.as_ref().map(|(class, _)| *class)
    }

    /// The server's own code, such as `OOM` or `READONLY`, when it answered with an error.
    pub fn server_code(&self) -> Option<&str> {
        self.0.server.as_ref().map(|(_, code)| &**code)
    }

    /// The Redis key the operation was about, or the topic where no partition had been chosen yet.
    pub fn key(&self) -> Option<&str> {
        self.0.key.as_deref()
    }

    /// `host:port` or socket path of the server it was about.
    pub fn endpoint(&self) -> Option<&str> {
        self.0.endpoint.as_deref()
    }

    /// What was being done, such as `publish` or `connect`.
    pub fn operation(&self) -> &str {
        &self.0.operation
    }

    #[cold]
    pub(crate) fn new(
        kind: ErrorKind,
        operation: impl Into<Cow<'static, str>>,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self(Box::new(Repr {
            kind,
            outcome: Outcome::NotApplied,
            operation: operation.into(),
            key: None,
            endpoint: None,
            message: message.into(),
            server: None,
            source: None,
        }))
    }

    /// A refused setting or combination of settings.
    #[cold]
    pub(crate) fn config(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Config, "settings", message)
    }

    /// An error reply, given without its leading `-` and line end.
    #[cold]
    pub(crate) fn server(operation: impl Into<Cow<'static, str>>, reply: &[u8]) -> Self {
        let text = String::from_utf8_lossy(reply);
        let text = text.trim_end();
        let code = text.split(' ').next().unwrap_or_default();
        let class = ServerClass::of(text.as_bytes());
        let code = if code.bytes().all(|b| b.is_ascii_uppercase()) {
            code
        } else {
            "ERR"
        };
        let mut e = Self::new(ErrorKind::Server, operation, text.to_owned());
        e.0.server = Some((class, code.into()));
        e
    }

    /// A failed read, write or dial; a timeout is told apart.
    #[cold]
    pub(crate) fn io(operation: impl Into<Cow<'static, str>>, source: std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        let (kind, message) = match source.kind() {
            Io::WouldBlock | Io::TimedOut => (ErrorKind::Timeout, "no answer in time"),
            Io::UnexpectedEof => (ErrorKind::Io, "the server closed the connection"),
            _ => (ErrorKind::Io, "the connection failed"),
        };
        let timed_out = kind == ErrorKind::Timeout;
        let mut e = Self::new(kind, operation, message);
        if !timed_out {
            // errno 11 would only confuse: the message already says what timed out
            e.0.source = Some(Box::new(source));
        }
        e
    }

    /// Whether the connection it came over is worth keeping: the server refused, and over another it
    /// would refuse the same. Not so when its role, its place in a cluster or the login has changed, or
    /// when what was sent made no sense to it, as an argument larger than it takes: then it hangs up.
    pub(crate) fn keeps_connection(&self) -> bool {
        use ServerClass::{Auth, Moved, ReadOnly};
        self.0.kind == ErrorKind::Server
            && !matches!(self.server_class(), Some(Auth | Moved | ReadOnly))
            && !self.0.message.starts_with("ERR Protocol error")
            && !matches!(
                self.server_code(),
                Some("UNBLOCKED" | "MASTERDOWN" | "CLUSTERDOWN")
            )
    }

    #[must_use]
    pub(crate) fn of_kind(mut self, kind: ErrorKind) -> Self {
        self.0.kind = kind;
        self
    }

    /// Keeps what the server said in an error about something that came of it.
    #[must_use]
    pub(crate) fn with_server(mut self, said: Option<(ServerClass, Box<str>)>) -> Self {
        self.0.server = said;
        self
    }

    pub(crate) fn server_said(&self) -> Option<(ServerClass, Box<str>)> {
        self.0.server.clone()
    }

    #[must_use]
    pub(crate) fn with_outcome(mut self, outcome: Outcome) -> Self {
        self.0.outcome = outcome;
        self
    }

    #[must_use]
    pub(crate) fn on_key(mut self, key: impl AsRef<[u8]>) -> Self {
        self.0.key = Some(String::from_utf8_lossy(key.as_ref()).into());
        self
    }

    #[must_use]
    pub(crate) fn at(mut self, endpoint: impl Into<Box<str>>) -> Self {
        self.0.endpoint = Some(endpoint.into());
        self
    }

    #[must_use]
    pub(crate) fn during(mut self, operation: impl Into<Cow<'static, str>>) -> Self {
        self.0.operation = operation.into();
        self
    }

    #[must_use]
    pub(crate) fn saying(mut self, message: impl Into<Cow<'static, str>>) -> Self {
        self.0.message = message.into();
        self
    }

    #[must_use]
    pub(crate) fn caused_by(
        mut self,
        source: impl Into<Box<dyn error::Error + Send + Sync>>,
    ) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// The same error for another call that it ended too. What caused it becomes part of its text.
    #[cold]
    pub(crate) fn again(&self) -> Self {
        let e = &*self.0;
        let message = match &e.source {
            Some(source) => Cow::Owned(format!("{}: {source}", e.message)),
            None => e.message.clone(),
        };
        Self(Box::new(Repr {
            kind: e.kind,
            outcome: e.outcome,
            operation: e.operation.clone(),
            key: e.key.clone(),
            endpoint: e.endpoint.clone(),
            message,
            server: e.server.clone(),
            source: None,
        }))
    }

    /// What happened, without the place it happened at.
    pub(crate) fn message(&self) -> &str {
        &self.0.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let e = &*self.0;
        f.write_str(&e.operation)?;
        if let Some(key) = &e.key {
            write!(f, " on {key}")?;
        }
        if let Some(endpoint) = &e.endpoint {
            write!(f, " at {endpoint}")?;
        }
        write!(f, ": {}", e.message)?;
        if let Some(source) = &e.source {
            write!(f, ": {source}")?;
        }
        match e.outcome {
            Outcome::NotApplied => Ok(()),
            Outcome::Applied => f.write_str(" (it was applied)"),
            Outcome::Unknown => f.write_str(" (it may have been applied)"),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?}/{:?}{}: {self}",
            self.0.kind,
            self.0.outcome,
            if self.is_retryable() {
                ", retryable"
            } else {
                ""
            }
        )
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.0.source.as_deref().map(|e| e as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_sorted_and_keep_their_code() {
        use ServerClass::*;
        for (reply, class, code) in [
            (
                "LOADING Redis is loading the dataset in memory",
                Loading,
                "LOADING",
            ),
            (
                "READONLY You can't write against a read only replica.",
                ReadOnly,
                "READONLY",
            ),
            (
                "MASTERDOWN Link with MASTER is down",
                Transient,
                "MASTERDOWN",
            ),
            (
                "UNBLOCKED force unblock from blocking operation",
                Transient,
                "UNBLOCKED",
            ),
            (
                "MISCONF Redis is configured to save RDB snapshots",
                Transient,
                "MISCONF",
            ),
            ("BUSY Redis is busy running a script", Transient, "BUSY"),
            (
                "BUSYGROUP Consumer Group name already exists",
                Other,
                "BUSYGROUP",
            ),
            ("NOAUTH Authentication required.", Auth, "NOAUTH"),
            (
                "WRONGPASS invalid username-password pair",
                Auth,
                "WRONGPASS",
            ),
            ("ERR invalid password", Auth, "ERR"),
            (
                "ERR AUTH <password> called without any password",
                Auth,
                "ERR",
            ),
            ("NOPERM User x has no permissions", NoPermission, "NOPERM"),
            (
                "OOM command not allowed when used memory > 'maxmemory'.",
                OutOfMemory,
                "OOM",
            ),
            ("WRONGTYPE Operation against a key", WrongType, "WRONGTYPE"),
            ("ERR unknown command 'XREAD'", UnknownCommand, "ERR"),
            ("ERR max number of clients reached", Transient, "ERR"),
            ("NOSCRIPT No matching script.", Transient, "NOSCRIPT"),
            (
                "ERR ACL failure in script: User u has no permissions to run the 'set' command",
                NoPermission,
                "ERR",
            ),
            (
                "ERR The user executing the script can't run this command or subcommand",
                NoPermission,
                "ERR",
            ),
            ("MOVED 866 127.0.0.1:7001", Moved, "MOVED"),
            ("ERR syntax error", Other, "ERR"),
            ("something else", Other, "ERR"),
            ("", Other, ""),
        ] {
            let e = Error::server("read", reply.as_bytes());
            assert_eq!(e.server_class(), Some(class), "{reply}");
            assert_eq!(e.server_code(), Some(code), "{reply}");
        }
    }

    #[test]
    fn display_tells_what_where_and_whether_it_took_effect() {
        let timeout = std::io::Error::from(std::io::ErrorKind::WouldBlock);
        let e = Error::io("publish", timeout)
            .on_key(b"re:s:{orders}:0")
            .at("127.0.0.1:6379")
            .saying("no answer within 500 ms")
            .with_outcome(Outcome::Unknown);
        assert_eq!(
            e.to_string(),
            "publish on re:s:{orders}:0 at 127.0.0.1:6379: no answer within 500 ms \
             (it may have been applied)"
        );
        assert_eq!(e.kind(), ErrorKind::Timeout);
        assert!(e.is_retryable());
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }
}
