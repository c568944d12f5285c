//! The first words on a new connection: who we are, which database, and whether the other side is a
//! server that can be worked with. One round trip, two where the server knows no `HELLO`.

use std::time::{Duration, Instant};

use super::{
    replies::{Replies, error_text},
    resp::{self, Cursor, Head},
    socket::Socket,
    target::Target,
};
use crate::{
    clock,
    error::{Error, ErrorKind, ServerClass},
};

/// Names longer than this are cut.
const MAX_NAME: usize = 256;

/// What the server said of itself.
#[derive(Debug, Default)]
pub(super) struct Server {
    /// Such as `7.0.15`; `None` where `HELLO` is unknown or refused.
    pub(super) version: Option<Box<str>>,
    role: Option<Box<str>>,
}

/// One conversation: where its words go and until when.
pub(super) struct Handshake<'a> {
    pub(super) socket: &'a Socket,
    pub(super) replies: &'a mut Replies,
    pub(super) target: &'a Target,
    pub(super) deadline: Instant,
    /// What the deadline was made of, for people.
    pub(super) timeout: Duration,
}

impl Handshake<'_> {
    /// Makes the connection ready for use.
    ///
    /// Fails with [`ErrorKind::Connect`] and the step that failed; with [`ErrorKind::Config`] when
    /// the server has no such database; with [`ErrorKind::Protocol`] when the peer is no such server.
    pub(super) fn run(mut self, client_name: &str) -> Result<Server, Error> {
        let mut common = Vec::new();
        if self.target.db() != 0 {
            resp::command(&mut common, 2);
            resp::arg(&mut common, b"SELECT");
            resp::arg_number(&mut common, self.target.db().into());
        }
        resp::whole(
            &mut common,
            &[b"CLIENT", b"SETNAME", sanitized(client_name).as_bytes()],
        );
        // a server that still loads its data says so here, and not before
        resp::whole(&mut common, &[b"PING"]);

        let mut hello = Vec::new();
        match self.target.credentials() {
            Some((user, password)) => resp::whole(
                &mut hello,
                &[b"HELLO", b"2", b"AUTH", user.as_bytes(), password],
            ),
            None => resp::whole(&mut hello, &[b"HELLO", b"2"]),
        }
        hello.extend_from_slice(&common);
        self.send(&hello);
        let server = match self.hello()? {
            Some(server) => {
                self.select()?;
                server
            }
            None => self.without_hello(&common)?,
        };
        if let Some("replica" | "slave") = server.role.as_deref() {
            return Err(
                Error::server("connect", b"READONLY the server is a replica")
                    .of_kind(ErrorKind::Connect)
                    .saying("the server is a replica, which takes no writes"),
            );
        }
        self.named()?;
        self.pinged()?;
        Ok(server)
    }

    /// As servers from before `HELLO` are greeted.
    fn without_hello(&mut self, common: &[u8]) -> Result<Server, Error> {
        let commands_sent = if self.target.db() == 0 { 2 } else { 3 };
        for _ in 0..commands_sent {
            self.reply("HELLO")?;
        }
        let mut auth = Vec::new();
        if let Some((user, password)) = self.target.credentials() {
            if self.target.username().is_some() {
                resp::whole(&mut auth, &[b"AUTH", user.as_bytes(), password]);
            } else {
                resp::whole(&mut auth, &[b"AUTH", password]);
            }
        }
        let logs_in = !auth.is_empty();
        auth.extend_from_slice(common);
        self.send(&auth);
        if logs_in {
            let reply = self.reply("AUTH")?;
            if let Some(text) = error_text(&reply) {
                return Err(self.refused("AUTH", text));
            }
        }
        self.select()?;
        Ok(Server::default())
    }

    /// `None` when the server has to be greeted without `HELLO`.
    fn hello(&mut self) -> Result<Option<Server>, Error> {
        let reply = self.reply("HELLO")?;
        if let Some(text) = error_text(&reply) {
            return match ServerClass::of(text) {
                ServerClass::UnknownCommand | ServerClass::NoPermission => Ok(None),
                // an old server, or something in between, that wants `AUTH` before all else
                ServerClass::Auth
                    if text.starts_with(b"NOAUTH") && self.target.credentials().is_some() =>
                {
                    Ok(None)
                }
                ServerClass::Other if text.starts_with(b"ERR") || text.starts_with(b"NOPROTO") => {
                    Ok(None)
                }
                _ => Err(self.refused("HELLO", text)),
            };
        }
        match introduction(&reply) {
            Ok(server) => Ok(Some(server)),
            Err(_) => Err(self.no_server(&reply)),
        }
    }

    fn select(&mut self) -> Result<(), Error> {
        let db = self.target.db();
        if db == 0 {
            return Ok(());
        }
        let step = format!("SELECT {db}");
        let reply = self.reply(&step)?;
        let Some(text) = error_text(&reply) else {
            return Ok(());
        };
        let e = self.refused(&step, text);
        if e.server_class() != Some(ServerClass::Other) {
            return Err(e);
        }
        let why = format!(
            "the server has no database {db} ({}): choose another, or raise its `databases`",
            String::from_utf8_lossy(text)
        );
        Err(e.of_kind(ErrorKind::Config).saying(why))
    }

    /// A name helps people who look at the server; it is not worth failing for.
    fn named(&mut self) -> Result<(), Error> {
        let reply = self.reply("CLIENT SETNAME")?;
        if let Some(text) = error_text(&reply) {
            log::debug!(
                "{} does not let connections have names: {}",
                self.target.endpoint(),
                String::from_utf8_lossy(text)
            );
        }
        Ok(())
    }

    fn pinged(&mut self) -> Result<(), Error> {
        let telling: [&[u8]; 3] = [b"LOADING", b"MASTERDOWN", b"NOAUTH"];
        let reply = self.reply("PING")?;
        match error_text(&reply) {
            // Other refusals of a PING (no permission, a disk that is full) do not concern reads.
            Some(text) if telling.iter().any(|code| text.starts_with(code)) => {
                Err(self.refused("PING", text))
            }
            Some(_) => Ok(()),
            None if reply.ends_with(b"PONG\r\n") => Ok(()),
            None => Err(self.no_server(&reply)),
        }
    }

    fn send(&self, bytes: &[u8]) {
        // A server that hangs up says why before it does: the reply, or its absence, tells more.
        let left = self.deadline.saturating_duration_since(clock::now());
        let _ = self.socket.send_all(bytes, left);
    }

    fn reply(&mut self, step: &str) -> Result<Vec<u8>, Error> {
        match self.replies.next(self.socket, self.deadline) {
            Ok(place) => Ok(self.replies[place].to_vec()),
            Err(e) => Err(self.broken(step, e)),
        }
    }

    #[cold]
    fn broken(&self, step: &str, source: std::io::Error) -> Error {
        let said = self.replies.unread();
        if source.kind() == std::io::ErrorKind::InvalidData || is_tls(said) {
            return self.no_server(said);
        }
        let message = match source.kind() {
            std::io::ErrorKind::TimedOut => {
                let ms = clock::ceil_ms(self.timeout);
                return Error::new(
                    ErrorKind::Connect,
                    "connect",
                    format!("no answer to {step} within {ms} ms"),
                );
            }
            std::io::ErrorKind::UnexpectedEof if step == "HELLO" => {
                "the peer hung up on HELLO, as one that expects TLS does".to_owned()
            }
            _ => format!("the connection broke before {step} was answered"),
        };
        Error::io("connect", source)
            .of_kind(ErrorKind::Connect)
            .saying(message)
    }

    #[cold]
    fn refused(&self, step: &str, text: &[u8]) -> Error {
        let text = self.without_secrets(text);
        let e = Error::server("connect", text.as_bytes()).of_kind(ErrorKind::Connect);
        let meaning = match e.server_class() {
            _ if text.contains("max number of clients") => {
                ": it has as many connections as its `maxclients` allows"
            }
            Some(ServerClass::Auth) if self.target.credentials().is_none() => {
                ": it wants a password and none is set"
            }
            Some(ServerClass::Auth) => ": user name or password are wrong",
            Some(ServerClass::Loading) => ": it is reading its data from disk",
            _ => "",
        };
        e.saying(format!("{step} was refused{meaning}: {text}"))
    }

    /// Servers repeat the arguments of a command they do not know.
    fn without_secrets(&self, text: &[u8]) -> String {
        let text = String::from_utf8_lossy(text);
        let text = text.split(", with args").next().unwrap_or_default();
        match self.target.credentials() {
            Some((_, password)) if !password.is_empty() => {
                text.replace(&*String::from_utf8_lossy(password), "***")
            }
            _ => text.to_owned(),
        }
    }

    #[cold]
    fn no_server(&self, said: &[u8]) -> Error {
        let message = if is_tls(said) {
            "the peer speaks TLS, and this connection does not".to_owned()
        } else {
            let said = self.without_secrets(&said[..said.len().min(200)]);
            let said: String = said.chars().take(40).collect();
            format!(
                "the peer is no Redis server: it said \"{}\"",
                said.escape_debug()
            )
        };
        Error::new(ErrorKind::Protocol, "connect", message)
    }
}

/// TLS records that a server may begin with: an alert or a handshake, of any version.
fn is_tls(said: &[u8]) -> bool {
    matches!(said, [0x15 | 0x16, 0x03, ..])
}

/// Role and version out of the reply to `HELLO`: names and values in turn, as an array or a map.
fn introduction(reply: &[u8]) -> Result<Server, resp::Stop> {
    let mut cursor = Cursor::new(reply, 0);
    let pairs = match cursor.head()? {
        Head::Array(n) => n / 2,
        Head::Map(n) => n,
        _ => return Err(resp::Stop::Bad("no list")),
    };
    let mut server = Server::default();
    for _ in 0..pairs {
        let name = cursor.text()?.ok_or(resp::Stop::Bad("a nil for a name"))?;
        let value = match name.of(reply) {
            b"version" => &mut server.version,
            b"role" => &mut server.role,
            _ => {
                cursor.skip()?;
                continue;
            }
        };
        let text = cursor.text()?;
        *value = text.map(|t| String::from_utf8_lossy(t.of(reply)).into());
    }
    if server.version.is_none() {
        return Err(resp::Stop::Bad("no version"));
    }
    Ok(server)
}

/// `CLIENT SETNAME` takes no spaces, and tools that list names nothing unusual.
fn sanitized(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._:-".contains(c);
    let name = name.chars().map(|c| if plain(c) { c } else { '-' });
    name.take(MAX_NAME).collect()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::error::Outcome;

    const LONG: Duration = Duration::from_secs(20);
    const MASTER: &str = "*4\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n$4\r\nrole\r\n$6\r\nmaster\r\n";
    const REPLICA: &str = "%2\r\n+version\r\n+9.1\r\n+role\r\n+replica\r\n";

    /// A handshake with a peer that answers the first write with `first`, a second with `second`,
    /// and then hangs up. Returns the result and all that was written.
    fn greet(url: &str, first: &str, second: &str) -> (Result<Server, Error>, String) {
        let (ours, theirs) = Socket::pair();
        let target = Target::parse(url).unwrap();
        thread::scope(|s| {
            let peer = s.spawn(|| {
                let mut heard = Vec::new();
                for answer in [first, second] {
                    // one write of ours is one read here, as short as they are
                    let mut buf = [0; 4096];
                    let Ok(n) = theirs.recv(&mut buf, LONG) else {
                        break;
                    };
                    heard.extend_from_slice(&buf[..n]);
                    let _ = theirs.send_all(answer.as_bytes(), LONG);
                    if second.is_empty() {
                        break;
                    }
                }
                theirs.shutdown();
                String::from_utf8(heard).unwrap()
            });
            let shake = Handshake {
                socket: &ours,
                replies: &mut Replies::default(),
                target: &target,
                deadline: clock::now() + LONG,
                timeout: LONG,
            };
            let result = shake.run("my name é");
            ours.shutdown();
            (result, peer.join().unwrap())
        })
    }

    #[test]
    fn one_round_trip_does_it_all() {
        let answers = format!("{MASTER}+OK\r\n+OK\r\n+PONG\r\n");
        let (server, heard) = greet("redis://bob:pw@h/5", &answers, "");
        assert_eq!(server.unwrap().version.as_deref(), Some("7.0.15"));
        let words: Vec<_> = heard
            .split("\r\n")
            .filter(|w| !w.starts_with(['*', '$']))
            .collect();
        assert_eq!(
            words.join(" ").trim(),
            "HELLO 2 AUTH bob pw SELECT 5 CLIENT SETNAME my-name-- PING"
        );
    }

    #[test]
    fn a_server_without_hello_is_greeted_the_old_way() {
        for refusal in [
            "-ERR unknown command `HELLO`, with args beginning with: `2`, `AUTH`, `pw`",
            "-NOAUTH Authentication required.",
            "-NOPERM this user has no permissions to run the 'hello' command",
            "-NOPROTO unsupported protocol version",
        ] {
            let first = format!("{refusal}\r\n-NOAUTH x\r\n-NOAUTH x\r\n-NOAUTH x\r\n");
            let second = "+OK\r\n+OK\r\n-ERR unknown subcommand\r\n+PONG\r\n";
            let (server, heard) = greet("redis://:pw@h/5", &first, second);
            assert!(server.unwrap().version.is_none());
            assert!(
                heard.contains("AUTH\r\n$2\r\npw\r\n*2\r\n$6\r\nSELECT"),
                "{heard}"
            );
        }
        let first = "-ERR unknown command\r\n+OK\r\n+PONG\r\n";
        greet("redis://h", first, "+OK\r\n+PONG\r\n").0.unwrap();
    }

    #[test]
    fn a_refusal_names_its_step_and_its_class_and_no_secret() {
        use ErrorKind::{Config, Connect};
        let unknown = "-ERR unknown command 'AUTH', with args beginning with: 's3cret'\r\n";
        let select = format!("{MASTER}-ERR DB index is out of range\r\n+OK\r\n+PONG\r\n");
        let loading = format!("{MASTER}+OK\r\n+OK\r\n-LOADING Redis is loading\r\n");
        let replica = format!("{REPLICA}+OK\r\n+OK\r\n+PONG\r\n");
        for (first, second, told, kind, class, retry) in [
            (
                "-ERR max number of clients reached\r\n",
                "",
                "its `maxclients` allows",
                Connect,
                ServerClass::Transient,
                true,
            ),
            (
                "-WRONGPASS s3cret is not the password\r\n",
                "",
                "HELLO was refused: user name or password are wrong: WRONGPASS *** is",
                Connect,
                ServerClass::Auth,
                false,
            ),
            (
                "-DENIED Redis is running in protected mode\r\n",
                "",
                "HELLO was refused: DENIED",
                Connect,
                ServerClass::Other,
                false,
            ),
            (
                "-LOADING Redis is loading\r\n",
                "",
                "HELLO was refused: it is reading its data",
                Connect,
                ServerClass::Loading,
                true,
            ),
            (
                &format!("{unknown}+OK\r\n+OK\r\n+OK\r\n"),
                unknown,
                "AUTH was refused: ERR unknown command 'AUTH'",
                Connect,
                ServerClass::UnknownCommand,
                false,
            ),
            (
                &select,
                "",
                "no database 5",
                Config,
                ServerClass::Other,
                false,
            ),
            (
                &loading,
                "",
                "PING was refused",
                Connect,
                ServerClass::Loading,
                true,
            ),
            (
                &replica,
                "",
                "is a replica",
                Connect,
                ServerClass::ReadOnly,
                true,
            ),
        ] {
            let e = greet("redis://:s3cret@h/5", first, second).0.unwrap_err();
            let text = format!("{e} {e:?}");
            assert!(text.contains(told), "{first}: {text}");
            assert!(!text.contains("s3cret"), "{text}");
            assert_eq!((e.kind(), e.server_class()), (kind, Some(class)), "{text}");
            assert_eq!(
                (e.is_retryable(), e.outcome()),
                (retry, Outcome::NotApplied),
                "{text}"
            );
        }
        let first = "-NOAUTH HELLO must be called with the client already authenticated\r\n";
        let e = greet("redis://h", first, "").0.unwrap_err();
        assert!(e.message().contains("wants a password"), "{e}");
    }

    #[test]
    fn a_peer_of_another_kind_is_told_apart() {
        let echo = "*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n";
        for (said, told) in [
            (
                "HTTP/1.1 400 Bad Request\r\n\r\n",
                "no Redis server: it said \"HTTP/1.1 400 Bad",
            ),
            ("\x15\x03\x01\0\x02\x02\x46", "speaks TLS"),
            (echo, "no Redis server"),
            ("+OK\r\n", "no Redis server"),
        ] {
            let e = greet("redis://h", said, "").0.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Protocol, "{e}");
            assert!(e.message().contains(told), "{e}");
        }
        let e = greet("redis://h", "", "").0.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Connect);
        assert!(e.message().contains("hung up on HELLO"), "{e}");
        let e = greet("redis://h", &format!("{MASTER}+O"), "")
            .0
            .unwrap_err();
        assert!(
            e.message().contains("before CLIENT SETNAME was answered"),
            "{e}"
        );
    }

    #[test]
    fn names_are_made_fit_for_the_server() {
        assert_eq!(sanitized("streams:a b:pod-1_ü"), "streams:a-b:pod-1_-");
        assert_eq!(sanitized(&"x".repeat(300)).len(), MAX_NAME);
    }
}
