//! A Redis or Valkey server of one's own: started in a directory of its own, killed, frozen and started
//! again at will, and gone when the test is.

use std::{
    env,
    fmt::{self, Write as _},
    fs::{self, File},
    io::{self, ErrorKind},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

use super::{
    failed,
    listener::Port,
    new_dir,
    resp::{Client, Reply},
    rest,
};
use crate::clock;

/// How long a start or a stop may take before it is given up. A busy machine needs seconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// When the append-only file is written through to the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aof {
    /// Before each reply.
    Always,
    /// Once a second.
    EverySecond,
}

/// The settings of a [`PrivateServer`] to be.
#[derive(Clone, Default, Debug)]
#[must_use = "call start()"]
pub struct ServerBuilder {
    binary: Option<PathBuf>,
    lines: Vec<String>,
    args: Vec<String>,
    aof: Option<Aof>,
    tcp: bool,
    password: Option<String>,
}

impl ServerBuilder {
    /// The server program. Default: what `STREAMLANE_TEST_SERVER` names, else `redis-server`.
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.binary = Some(path.into());
        self
    }

    /// Adds a line to the configuration file, such as `maxmemory 20mb`. Later lines win.
    pub fn config(mut self, line: impl Into<String>) -> Self {
        self.lines.push(line.into());
        self
    }

    /// Adds an argument to the command line, such as `--sentinel`.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Keeps the data in an append-only file, so that it outlives [`PrivateServer::kill`]. Default:
    /// nothing is kept.
    pub fn aof(mut self, sync: Aof) -> Self {
        self.aof = Some(sync);
        self
    }

    /// Listens on a loopback port, too. Default: on a Unix socket only.
    pub fn tcp(mut self) -> Self {
        self.tcp = true;
        self
    }

    /// Asks clients for this password.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Starts the server and waits until it answers, for 30 s at most.
    ///
    /// # Errors
    /// When there is no such program, or it does not come up; its log is part of the message then.
    pub fn start(self) -> io::Result<PrivateServer> {
        let binary = self
            .binary
            .clone()
            .or_else(|| env::var_os("STREAMLANE_TEST_SERVER").map(PathBuf::from))
            .unwrap_or_else(|| "redis-server".into());
        let mut server = PrivateServer {
            dir: new_dir()?,
            binary,
            args: self.args.clone(),
            password: self.password.clone(),
            port: None,
            running: Mutex::new(None),
        };
        if server.socket_path().as_os_str().len() > 107 {
            return Err(failed(format!(
                "{} is too long for a socket: set TMPDIR to something shorter",
                server.socket_path().display()
            )));
        }
        for left in (0..10).rev() {
            if self.tcp {
                server.port = Some(Port::free()?);
            }
            fs::write(server.dir.join("server.conf"), self.text(&server))?;
            match server.launch(&[], Client::is_ready) {
                // another process was quicker to take the port
                Err(e) if left > 0 && e.kind() == ErrorKind::AddrInUse => {}
                done => return done.map(|()| server),
            }
        }
        unreachable!("the last attempt returns")
    }

    fn text(&self, server: &PrivateServer) -> String {
        let mut t = String::from("bind 127.0.0.1\ndaemonize no\nenable-debug-command yes\n");
        let mut line = |name: &str, value: &str| {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"");
            let _ = writeln!(t, "{name} \"{value}\"");
        };
        let port = server.port.as_ref().map_or(0, Port::number);
        line("port", &port.to_string());
        line("unixsocket", &server.socket_path().to_string_lossy());
        line("save", "");
        line("appendonly", if self.aof.is_some() { "yes" } else { "no" });
        match self.aof {
            Some(Aof::Always) => line("appendfsync", "always"),
            Some(Aof::EverySecond) => line("appendfsync", "everysec"),
            None => {}
        }
        if let Some(password) = &self.password {
            line("requirepass", password);
        }
        for line in &self.lines {
            t.push_str(line);
            t.push('\n');
        }
        t
    }
}

/// Name and version of a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Engine {
    /// `redis` or `valkey`.
    pub name: String,
    /// Major, minor, patch: of that product, not the Redis version a Valkey server says it resembles.
    pub version: (u32, u32, u32),
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor, patch) = self.version;
        write!(f, "{} {major}.{minor}.{patch}", self.name)
    }
}

/// A server process that belongs to the test that started it.
///
/// It listens on a Unix socket in a temporary directory and, when asked, on a loopback port. Both stay
/// the same over [`restart`](Self::restart). The process and the directory go away on drop, and also
/// when the test itself is killed: a guard process waits for that.
///
/// All methods take `&self` and may be called from any thread.
#[derive(Debug)]
pub struct PrivateServer {
    dir: PathBuf,
    binary: PathBuf,
    args: Vec<String>,
    password: Option<String>,
    port: Option<Port>,
    running: Mutex<Option<Running>>,
}

impl PrivateServer {
    /// Starts a server on a Unix socket that keeps nothing.
    ///
    /// # Errors
    /// As [`ServerBuilder::start`].
    pub fn start() -> io::Result<Self> {
        Self::builder().start()
    }

    /// To set things first.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// Where it listens, as a `redis+unix:` URL with the password in it.
    pub fn url(&self) -> String {
        let path = self.socket_path();
        let pass = self.password.as_deref().map(escaped);
        let query = pass.map_or_else(String::new, |p| format!("?pass={p}"));
        format!("redis+unix://{}{query}", path.display())
    }

    /// Where it listens, as a `redis:` URL with the password in it.
    ///
    /// # Panics
    /// When it was started without [`ServerBuilder::tcp`].
    pub fn tcp_url(&self) -> String {
        let pass = self.password.as_deref().map(escaped);
        let auth = pass.map_or_else(String::new, |p| format!(":{p}@"));
        format!("redis://{auth}127.0.0.1:{}", self.port())
    }

    /// Its loopback port.
    ///
    /// # Panics
    /// When it was started without [`ServerBuilder::tcp`].
    pub fn port(&self) -> u16 {
        let port = self.port.as_ref();
        port.expect("the server was started without tcp()").number()
    }

    /// Its Unix socket.
    pub fn socket_path(&self) -> PathBuf {
        self.dir.join("s")
    }

    /// Its directory: configuration, log and data.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What it has logged so far, over all its starts.
    pub fn log(&self) -> String {
        let bytes = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Its process id; nothing while it is down.
    pub fn pid(&self) -> Option<u32> {
        self.running.lock().as_ref().map(|r| r.child.id())
    }

    /// Kills it with SIGKILL, like a crash. Nothing happens when it is down.
    pub fn kill(&self) {
        *self.running.lock() = None;
    }

    /// Asks it to end (SIGTERM), and kills it when it has not within 30 s.
    ///
    /// # Errors
    /// When the signal cannot be sent. Nothing happens when it is down.
    pub fn stop(&self) -> io::Result<()> {
        let mut running = self.running.lock();
        if let Some(r) = &mut *running {
            r.signal(Signal::TERM)?;
            r.signal(Signal::CONT)?;
            let start = clock::now();
            while r.child.try_wait()?.is_none() && start.elapsed() < PATIENCE {
                rest(Duration::from_millis(2));
            }
        }
        *running = None;
        Ok(())
    }

    /// Freezes it (SIGSTOP): connections stay open and connecting still works, but nothing answers.
    ///
    /// # Errors
    /// When it is down.
    pub fn pause(&self) -> io::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on after [`pause`](Self::pause).
    ///
    /// # Errors
    /// When it is down.
    pub fn resume(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        match &*self.running.lock() {
            Some(r) => r.signal(signal),
            None => Err(failed("the server is down")),
        }
    }

    /// Starts it again on the same directory, socket and port, after killing it when it is up, and waits
    /// until it has read its data and answers.
    ///
    /// # Errors
    /// As [`ServerBuilder::start`].
    pub fn restart(&self) -> io::Result<()> {
        self.relaunch(&[], Client::is_ready)
    }

    /// As [`restart`](Self::restart) with more arguments for this one run, and without waiting for the
    /// data: returns as soon as the server takes connections, so that `LOADING` can be seen.
    ///
    /// # Errors
    /// As [`ServerBuilder::start`].
    pub fn restart_with(&self, args: &[&str]) -> io::Result<()> {
        self.relaunch(args, |_| Ok(true))
    }

    /// Sends a command on a connection of its own.
    ///
    /// # Errors
    /// As [`Client::command`]; a frozen server gives an error after 10 s.
    pub fn command<A: AsRef<[u8]>>(&self, args: &[A]) -> io::Result<Reply> {
        self.client()?.command(args)
    }

    /// A connection of its own, already authenticated.
    ///
    /// # Errors
    /// When the server is down, or frozen for more than 10 s.
    pub fn client(&self) -> io::Result<Client> {
        let mut client = Client::connect_unix(self.socket_path())?;
        if let Some(password) = &self.password {
            client.command(&["AUTH", password])?;
        }
        Ok(client)
    }

    /// What kind of server this is.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub fn engine(&self) -> io::Result<Engine> {
        let info = self.command(&["INFO", "server"])?.text();
        let find = |name: &str| {
            let line = info.lines().find_map(|l| l.strip_prefix(name))?;
            line.strip_prefix(':').map(str::trim)
        };
        let name = find("server_name").unwrap_or("redis");
        let version = find(&format!("{name}_version")).or_else(|| find("redis_version"));
        let mut numbers = version.unwrap_or_default().split('.').map(str::parse);
        let mut next = || numbers.next().and_then(Result::ok).unwrap_or(0);
        Ok(Engine {
            name: name.to_owned(),
            version: (next(), next(), next()),
        })
    }

    fn log_path(&self) -> PathBuf {
        self.dir.join("server.log")
    }

    /// After a kill the port may be held for a moment by whoever borrowed it.
    fn relaunch(&self, args: &[&str], up: fn(&mut Client) -> io::Result<bool>) -> io::Result<()> {
        self.kill();
        let start = clock::now();
        loop {
            match self.launch(args, up) {
                Err(e) if e.kind() == ErrorKind::AddrInUse && start.elapsed() < PATIENCE => {
                    rest(Duration::from_millis(50));
                }
                done => return done,
            }
        }
    }

    fn launch(&self, args: &[&str], up: fn(&mut Client) -> io::Result<bool>) -> io::Result<()> {
        let mut running = self.running.lock();
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path())?;
        let logged_before = log.metadata()?.len() as usize;
        let child = Command::new(&self.binary)
            .arg("server.conf")
            .args(&self.args)
            .args(args)
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .stderr(log.try_clone()?)
            .stdout(log)
            .process_group(0)
            .spawn()
            .map_err(|e| self.not_started(&e))?;
        let mut r = Running::guarded(child, &self.dir)?;
        let start = clock::now();
        loop {
            if self.client().and_then(|mut c| up(&mut c)).unwrap_or(false) {
                *running = Some(r);
                return Ok(());
            }
            let ended = r.child.try_wait()?;
            if ended.is_some() || start.elapsed() > PATIENCE {
                let log = self.log();
                let log = log.get(logged_before..).unwrap_or(&log);
                let what = ended.map_or_else(|| "does not answer".into(), |s| s.to_string());
                let message = format!("{}: {what}; its log: {log}", self.binary.display());
                let taken = log.contains("ddress already in use");
                let kind = if taken {
                    ErrorKind::AddrInUse
                } else {
                    ErrorKind::Other
                };
                return Err(io::Error::new(kind, message));
            }
            rest(Duration::from_millis(2));
        }
    }

    fn not_started(&self, e: &io::Error) -> io::Error {
        let binary = self.binary.display();
        if e.kind() == ErrorKind::NotFound {
            failed(format!(
                "no {binary} here: install the package redis-server (apt-get install redis-server), \
                 or name a server program in STREAMLANE_TEST_SERVER"
            ))
        } else {
            failed(format!("{binary}: {e}"))
        }
    }
}

impl Drop for PrivateServer {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Client {
    /// Whether the server has read its data. Any other refusal comes from a server that is up.
    fn is_ready(&mut self) -> io::Result<bool> {
        self.send(&["PING"])?;
        Ok(!matches!(self.receive()?, Reply::Error(e) if e.starts_with("LOADING")))
    }
}

/// The server and its guard. Dropping it kills both.
#[derive(Debug)]
struct Running {
    child: Child,
    guard: Option<Child>,
}

impl Running {
    /// The guard is a shell that reads from a pipe only this process holds open: its end means that this
    /// process is dead, whatever killed it. Both run in groups of their own, so that Ctrl-C on the test
    /// does not end the guard before its work. (A parent-death signal would do with less, but it fires
    /// when the *thread* that started the server ends.)
    fn guarded(child: Child, dir: &Path) -> io::Result<Self> {
        let mut running = Self { child, guard: None };
        let guard = Command::new("/bin/sh")
            .args(["-c", r#"read -r _; kill -9 "$1"; rm -rf -- "$2""#, "guard"])
            .arg(running.child.id().to_string())
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        running.guard = Some(guard);
        Ok(running)
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // the guard first: once the server is reaped its number may belong to another process
        for process in self.guard.iter_mut().chain([&mut self.child]) {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Percent-encodes whatever could mean something in a URL.
fn escaped(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, b| {
        if b.is_ascii_alphanumeric() {
            out.push(b.into());
        } else {
            let _ = write!(out, "%{b:02X}");
        }
        out
    })
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
