//! A server that follows a script: for what no real server does on demand.

use std::{
    collections::BTreeMap,
    fmt,
    io::{self, BufReader, Write},
    net::{Shutdown, SocketAddr},
    sync::Arc,
    thread::{Builder, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use socket2::Socket;

use super::{
    listener::{Listener, Port},
    resp::Reply,
};
use crate::clock;

/// What a [`Stub`] does about a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// What a harmless server would say: it shakes hands (`HELLO`, `AUTH`, `SELECT`, `CLIENT`, `PING`,
    /// `ECHO`, `INFO`, `ROLE`, `COMMAND`, `QUIT`) and knows no other command.
    Usual,
    /// A reply.
    Reply(Reply),
    /// These bytes, whatever they are: RESP3, several replies, half of one, or noise.
    Bytes(Vec<u8>),
    /// These bytes after a while. Other connections go on.
    Delay(Duration, Vec<u8>),
    /// The first half of these bytes, then the connection is closed.
    Half(Vec<u8>),
    /// Silence. The next command is read.
    Nothing,
    /// The connection is closed.
    Close,
}

/// A command a [`Stub`] received.
#[derive(Clone, Debug)]
pub struct Seen {
    /// When it was there as a whole.
    pub at: Instant,
    /// On which connection; the first is 1.
    pub connection: u64,
    /// Its words, name first.
    pub args: Vec<Vec<u8>>,
}

impl Seen {
    /// The command's name in capitals, as text.
    pub fn name(&self) -> String {
        name(&self.args)
    }

    /// The whole command as text, words separated by blanks.
    pub fn text(&self) -> String {
        let words = self.args.iter().map(|a| String::from_utf8_lossy(a));
        words.collect::<Vec<_>>().join(" ")
    }
}

type Script = dyn FnMut(&[Vec<u8>], u64) -> Answer + Send;

/// A server on a loopback port that answers as its script says, and remembers what it was asked.
///
/// ```
/// use streamlane::testing::{Answer, Client, Reply, Stub};
///
/// let stub = Stub::start(|args, _connection| match &args[0][..] {
///     b"XADD" => Answer::Reply(Reply::Error("OOM command not allowed".into())),
///     _ => Answer::Usual,
/// })?;
/// let mut client = Client::connect(stub.addr())?;
/// assert_eq!(client.command(&["PING"])?.text(), "PONG");
/// assert!(client.command(&["XADD", "s", "*", "k", "v"]).is_err());
/// assert_eq!(stub.seen()[1].text(), "XADD s * k v");
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Stub {
    shared: Arc<Shared>,
    listener: Option<Listener>,
    port: Port,
}

struct Shared {
    script: Mutex<Box<Script>>,
    seen: Mutex<Vec<Seen>>,
    connections: Mutex<Connections>,
    stopping: Condvar,
}

#[derive(Default)]
struct Connections {
    accepted: u64,
    open: BTreeMap<u64, Arc<Socket>>,
    threads: Vec<JoinHandle<()>>,
    stopping: bool,
}

impl Stub {
    /// Starts a stub. The script is given a command's words and the number of its connection (the first
    /// is 1), is called for one command at a time, and must not block: that is what [`Answer::Delay`] is
    /// for.
    ///
    /// # Errors
    /// When no port or thread can be had.
    pub fn start(
        script: impl FnMut(&[Vec<u8>], u64) -> Answer + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            script: Mutex::new(Box::new(script)),
            seen: Mutex::default(),
            connections: Mutex::default(),
            stopping: Condvar::new(),
        });
        let s = Arc::clone(&shared);
        let port = Port::free()?;
        let listener = Listener::start(&port, "stub", move |socket| {
            // without a thread for it, the connection is closed
            let _ = s.accept(socket);
        })?;
        Ok(Self {
            shared,
            listener: Some(listener),
            port,
        })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// The same as a `redis:` URL.
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr())
    }

    /// Every command so far, in the order they came.
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().clone()
    }

    /// How many commands of this name came so far, whatever their case.
    pub fn count(&self, name: &str) -> usize {
        let seen = self.shared.seen.lock();
        let is = |s: &&Seen| {
            s.args
                .first()
                .is_some_and(|a| a.eq_ignore_ascii_case(name.as_bytes()))
        };
        seen.iter().filter(is).count()
    }

    /// How many connections were ever accepted.
    pub fn accepted(&self) -> u64 {
        self.shared.connections.lock().accepted
    }

    /// How many connections are open.
    pub fn open(&self) -> usize {
        self.shared.connections.lock().open.len()
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.listener = None;
        let threads = {
            let mut c = self.shared.connections.lock();
            c.stopping = true;
            for socket in c.open.values() {
                let _ = socket.shutdown(Shutdown::Both);
            }
            std::mem::take(&mut c.threads)
        };
        self.shared.stopping.notify_all();
        for thread in threads {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Stub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stub({}, {} open)", self.addr(), self.open())
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, socket: Socket) -> io::Result<()> {
        let mut c = self.connections.lock();
        c.accepted += 1;
        let (n, socket, shared) = (c.accepted, Arc::new(socket), Arc::clone(self));
        let s = Arc::clone(&socket);
        let thread = Builder::new().name(format!("stub-{n}")).spawn(move || {
            // however it ended: the client hung up, or the script did
            let _ = shared.serve(&s, n);
            let _ = s.shutdown(Shutdown::Both);
            shared.connections.lock().open.remove(&n);
        })?;
        c.open.insert(n, socket);
        c.threads.retain(|t| !t.is_finished());
        c.threads.push(thread);
        Ok(())
    }

    fn serve(&self, mut socket: &Socket, connection: u64) -> io::Result<()> {
        let mut from = BufReader::new(socket);
        loop {
            let args = words(Reply::read(&mut from)?);
            // the same lock orders what is seen as the script sees it
            let mut script = self.script.lock();
            self.seen.lock().push(Seen {
                at: clock::now(),
                connection,
                args: args.clone(),
            });
            let answer = script(&args, connection);
            drop(script);
            match answer {
                Answer::Usual => socket.write_all(&usual(&args, connection))?,
                Answer::Reply(reply) => socket.write_all(&reply.to_bytes())?,
                Answer::Bytes(bytes) => socket.write_all(&bytes)?,
                Answer::Delay(d, bytes) => {
                    self.wait(clock::now() + d);
                    socket.write_all(&bytes)?;
                }
                Answer::Half(bytes) => return socket.write_all(&bytes[..bytes.len() / 2]),
                Answer::Nothing => {}
                Answer::Close => return Ok(()),
            }
        }
    }

    fn wait(&self, until: Instant) {
        let mut c = self.connections.lock();
        while !c.stopping && clock::now() < until {
            self.stopping.wait_until(&mut c, until);
        }
    }
}

fn words(command: Reply) -> Vec<Vec<u8>> {
    match command {
        Reply::Array(words) => words
            .into_iter()
            .map(|w| match w {
                Reply::Bulk(bytes) => bytes,
                other => other.text().into_bytes(),
            })
            .collect(),
        other => vec![other.text().into_bytes()],
    }
}

fn name(args: &[Vec<u8>]) -> String {
    let name = args.first().map(Vec::as_slice).unwrap_or_default();
    String::from_utf8_lossy(name).to_ascii_uppercase()
}

fn usual(args: &[Vec<u8>], connection: u64) -> Vec<u8> {
    let second = args.get(1);
    let id = connection.cast_signed();
    let reply = match name(args).as_str() {
        "HELLO" => return hello(second, id),
        "CLIENT" if second.is_some_and(|w| w.eq_ignore_ascii_case(b"ID")) => Reply::Int(id),
        "AUTH" | "SELECT" | "CLIENT" | "QUIT" => Reply::Status("OK".into()),
        "PING" if second.is_none() => Reply::Status("PONG".into()),
        "PING" | "ECHO" => second.map_or(Reply::Nil, Reply::bulk),
        "INFO" => Reply::bulk("redis_version:7.0.15\r\nredis_mode:standalone\r\nrole:master\r\n"),
        "ROLE" => Reply::Array(vec![
            Reply::bulk("master"),
            Reply::Int(0),
            Reply::Array(vec![]),
        ]),
        "COMMAND" => Reply::Array(vec![]),
        name => Reply::Error(format!("ERR unknown command '{name}'")),
    };
    reply.to_bytes()
}

fn hello(version: Option<&Vec<u8>>, id: i64) -> Vec<u8> {
    let resp3 = version.is_some_and(|v| v == b"3");
    let fields = [
        ("server", Reply::bulk("redis")),
        ("version", Reply::bulk("7.0.15")),
        ("proto", Reply::Int(if resp3 { 3 } else { 2 })),
        ("id", Reply::Int(id)),
        ("mode", Reply::bulk("standalone")),
        ("role", Reply::bulk("master")),
        ("modules", Reply::Array(vec![])),
    ];
    let head = if resp3 { "%7\r\n" } else { "*14\r\n" };
    let mut out = head.as_bytes().to_vec();
    for (field, value) in fields {
        out.extend(Reply::bulk(field).to_bytes());
        out.extend(value.to_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Client, eventually};

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn a_stub_without_a_script_shakes_hands() {
        let stub = Stub::start(|_, _| Answer::Usual).unwrap();
        let mut c = Client::connect(stub.addr()).unwrap();
        for hello in [&["HELLO"][..], &["hello", "3", "AUTH", "u", "p"]] {
            let reply = c.command(hello).unwrap();
            assert_eq!(reply.items().len(), 14);
            assert_eq!(reply.items()[11].text(), "master");
        }
        assert_eq!(c.command(&["select", "5"]).unwrap().text(), "OK");
        assert_eq!(c.command(&["CLIENT", "SETNAME", "x"]).unwrap().text(), "OK");
        assert_eq!(c.command(&["CLIENT", "ID"]).unwrap().int(), Some(1));
        let unknown = c.command(&["XADD"]).unwrap_err().to_string();
        assert_eq!(unknown, "ERR unknown command 'XADD'");
        let mut second = Client::connect(stub.addr()).unwrap();
        assert_eq!(second.command(&["CLIENT", "ID"]).unwrap().int(), Some(2));
        assert_eq!((stub.accepted(), stub.open()), (2, 2));
        assert_eq!(stub.count("client"), 3);
        assert_eq!(stub.seen()[6].connection, 2);
        drop((c, second));
        assert!(eventually(LONG, || stub.open() == 0));
    }

    #[test]
    fn a_script_can_misbehave_in_every_way() {
        let mut gets = 0;
        let stub = Stub::start(move |args, _| match &args[0][..] {
            b"GET" => {
                gets += 1;
                Answer::Reply(Reply::Int(gets))
            }
            b"SLOW" => Answer::Delay(Duration::from_millis(50), b"+late\r\n".to_vec()),
            b"NEVER" => Answer::Delay(Duration::from_hours(1), vec![]),
            b"HALF" => Answer::Half(b"+half\r\n".to_vec()),
            b"MUTE" => Answer::Nothing,
            b"NOISE" => Answer::Bytes(b"noise\r\n".to_vec()),
            b"BYE" => Answer::Close,
            _ => Answer::Usual,
        })
        .unwrap();
        let connect = || Client::connect(stub.addr()).unwrap();
        let mut c = connect();
        assert_eq!(c.command(&["GET"]).unwrap().int(), Some(1));
        let start = clock::now();
        assert_eq!(c.command(&["SLOW"]).unwrap().text(), "late");
        assert!(start.elapsed() >= Duration::from_millis(50));
        c.send(&["MUTE"]).unwrap();
        assert_eq!(c.command(&["GET"]).unwrap().int(), Some(2));
        assert!(c.command(&["NOISE"]).is_err());
        let mut half = connect();
        half.send(&["HALF"]).unwrap();
        for want in [Some(b'+'), Some(b'h'), Some(b'a'), None] {
            assert_eq!(half.byte().unwrap(), want);
        }
        let mut closed = connect();
        closed.send(&["BYE"]).unwrap();
        assert_eq!(closed.byte().unwrap(), None);
        // a drop does not wait for a delay to pass
        connect().send(&["NEVER"]).unwrap();
        assert!(eventually(LONG, || stub.count("NEVER") == 1));
        drop(stub);
        assert!(start.elapsed() < LONG * 10);
    }
}
