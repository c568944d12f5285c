use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::net::UnixStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use redis::{ConnectionLike, cmd};

use super::*;
use crate::{
    error::ServerClass,
    net::{STOP, Secret},
};

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(200);
const GREETING: &[u8] =
    b"*4\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n$4\r\nrole\r\n$6\r\nmaster\r\n+OK\r\n+PONG\r\n";

fn dial(target: &Target) -> Result<Connection, Error> {
    Connection::dial(target, "test", None, LONG)
}

fn attempts(target: &Target) -> u64 {
    Gate::of(target).attempts()
}

/// What a loop that waits for another thread does in between.
fn nap() {
    Interrupt::default().sleep(Duration::from_millis(1), 0);
}

/// A server of its own, on a Unix socket in a directory of its own.
struct Server {
    child: Child,
    dir: PathBuf,
    args: Vec<&'static str>,
}

impl Server {
    fn start(args: &[&'static str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("streamlane-net-{}-{count}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let mut server = Self {
            child: Self::spawn(&dir, args),
            dir,
            args: args.to_vec(),
        };
        server.await_up();
        server
    }

    fn spawn(dir: &PathBuf, args: &[&str]) -> Child {
        Command::new("redis-server")
            .args([
                "--port",
                "0",
                "--unixsocket",
                "s",
                "--save",
                "",
                "--dir",
                ".",
            ])
            .args(args)
            .current_dir(dir)
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn await_up(&mut self) {
        let started = clock::now();
        while UnixStream::connect(self.dir.join("s")).is_err() {
            assert!(started.elapsed() < LONG && self.child.try_wait().unwrap().is_none());
            nap();
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn restart(&mut self) {
        self.child = Self::spawn(&self.dir, &self.args);
        self.await_up();
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args([name, &pid])
                .status()
                .unwrap()
                .success()
        );
    }

    fn target(&self, query: &str) -> Target {
        Target::parse(&format!("unix://{}/s{query}", self.dir.display())).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A listener that gives each connection to the next of `scripts`, in turn.
fn stub(scripts: Vec<Box<dyn FnOnce(TcpStream) + Send>>) -> Target {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = Target::parse(&listener.local_addr().unwrap().to_string()).unwrap();
    thread::Builder::new()
        .name("stub".into())
        .spawn(move || {
            for script in scripts {
                script(listener.accept().unwrap().0);
            }
        })
        .unwrap();
    target
}

/// Reads until a `PING` came by, which ends every handshake.
fn hear_ping(peer: &mut TcpStream) {
    let mut heard = Vec::new();
    let mut buf = [0; 512];
    while !heard.ends_with(b"PING\r\n") {
        let n = peer.read(&mut buf).unwrap();
        assert!(n > 0, "hung up before the end of the handshake");
        heard.extend_from_slice(&buf[..n]);
    }
}

/// Greets, waits for a command, and goes on with `then`.
fn after_a_command(
    then: impl FnOnce(TcpStream) + Send + 'static,
) -> Box<dyn FnOnce(TcpStream) + Send> {
    Box::new(move |mut peer| {
        hear_ping(&mut peer);
        peer.write_all(GREETING).unwrap();
        let n = peer.read(&mut [0; 512]).unwrap();
        assert!(n > 0);
        then(peer);
    })
}

/// Says nothing until the other side hangs up.
fn silence(mut peer: TcpStream) {
    let _ = peer.read_to_end(&mut Vec::new());
}

#[test]
fn awkward_passwords_work_encoded_or_by_themselves_and_the_database_is_selected() {
    let server = Server::start(&["--requirepass", "p@s#s/%25+:=?&x", "--databases", "6"]);
    let encoded = server.target("?db=5&pass=p%40s%23s%2F%2525%2B%3A%3D%3F%26x");
    let plain = server
        .target("")
        .with_password(Secret::new(*b"p@s#s/%25+:=?&x"));
    let mut con = dial(&encoded).unwrap();
    assert!(con.server_version().unwrap().starts_with("7.0."));
    assert_eq!(con.get_db(), 5);
    con.call(cmd("SET").arg("k").arg("v"), LONG).unwrap();
    let name = con.call(cmd("CLIENT").arg("GETNAME"), LONG).unwrap();
    assert_eq!(name, Value::BulkString(b"test".to_vec()));
    let mut other = dial(&plain).unwrap();
    assert_eq!(other.call(&cmd("DBSIZE"), LONG).unwrap(), Value::Int(0));
    let mut named = dial(&plain.clone().with_username("default").with_db(5)).unwrap();
    assert_eq!(named.call(&cmd("DBSIZE"), LONG).unwrap(), Value::Int(1));

    let e = dial(&server.target("?pass=wr0ng")).unwrap_err();
    assert_eq!(
        (e.kind(), e.server_class()),
        (ErrorKind::Connect, Some(ServerClass::Auth))
    );
    assert!(e.endpoint().unwrap().ends_with("/s") && !e.to_string().contains("wr0ng"));
    let e = dial(&server.target("")).unwrap_err();
    assert!(e.message().contains("wants a password"), "{e}");
    let e = dial(&plain.with_db(99)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Config);
    assert!(e.message().contains("no database 99"), "{e}");
}

#[test]
fn what_a_user_may_not_do_in_the_handshake_is_done_without() {
    let server = Server::start(&[
        "--user", "bob", "on", ">pw", "~*", "&*", "+@all", "-client", "-ping",
    ]);
    let target = server.target("?user=bob&pass=pw&db=3");
    let mut con = Connection::dial(&target, "ein Name mit Lücken", None, LONG).unwrap();
    let user = con.call(cmd("ACL").arg("WHOAMI"), LONG).unwrap();
    assert_eq!(user, Value::BulkString(b"bob".to_vec()));
    let e = con.call(cmd("CLIENT").arg("ID"), LONG).unwrap_err();
    assert_eq!(
        (e.server_class(), e.key()),
        (Some(ServerClass::NoPermission), None)
    );
}

#[test]
fn refusals_leave_the_connection_as_it_was_and_say_what_was_tried() {
    let server = Server::start(&[]);
    let mut con = dial(&server.target("")).unwrap();
    con.call(cmd("SET").arg("k").arg("v"), LONG).unwrap();
    let e = con.call(cmd("xlen").arg("k"), LONG).unwrap_err();
    assert_eq!(
        (e.operation(), e.key(), e.server_code()),
        ("XLEN", Some("k"), Some("WRONGTYPE"))
    );
    assert_eq!(
        (e.kind(), e.outcome()),
        (ErrorKind::Server, Outcome::NotApplied)
    );
    assert_eq!(e.endpoint(), Some(con.endpoint()));

    let mut read = cmd("XREAD");
    read.arg("STREAMS").arg("k").arg("0");
    let cmds = [
        cmd("INCR").arg("n").clone(),
        read,
        cmd("GET").arg("k").clone(),
    ];
    let answers = con.pipeline(&cmds, LONG).unwrap();
    assert_eq!(answers[0].as_ref().unwrap(), &Value::Int(1));
    let e = answers[1].as_ref().unwrap_err();
    assert_eq!((e.operation(), e.key()), ("XREAD", Some("k")));
    assert_eq!(
        answers[2].as_ref().unwrap(),
        &Value::BulkString(b"v".to_vec())
    );
    assert!(con.pipeline(&[], LONG).unwrap().is_empty());
    assert!(!con.is_broken());
}

#[test]
fn the_redis_crate_runs_its_commands_and_transactions_on_it() {
    let server = Server::start(&[]);
    let mut con = dial(&server.target("")).unwrap();
    con.set_call_timeout(SHORT);
    assert!(con.check_connection() && con.is_open());
    let both = redis::pipe()
        .atomic()
        .incr("n", 2)
        .get("n")
        .query::<(i64, i64)>(&mut con);
    assert_eq!(both.unwrap(), (2, 2));
    let e = redis::cmd("LPUSH")
        .arg("n")
        .arg(1)
        .exec(&mut con)
        .unwrap_err();
    assert_eq!(e.code(), Some("WRONGTYPE"));
    let e = redis::pipe()
        .atomic()
        .cmd("NOSUCH")
        .exec(&mut con)
        .unwrap_err();
    assert!(e.to_string().contains("unknown command"), "{e}");
    let e = redis::cmd("BLPOP")
        .arg("nothing")
        .arg(0)
        .exec(&mut con)
        .unwrap_err();
    assert!(
        e.is_timeout() && e.to_string().contains("within 200 ms"),
        "{e}"
    );
    assert!(!con.is_open() && !con.check_connection());
}

#[test]
fn a_frozen_server_is_given_up_in_time_and_its_late_answer_reaches_nobody() {
    let server = Server::start(&[]);
    let target = server.target("");
    let mut con = dial(&target).unwrap();
    con.call(cmd("MSET").arg("a").arg("1").arg("b").arg("2"), LONG)
        .unwrap();
    server.signal("-STOP");
    let started = clock::now();
    let e = con.call(cmd("GET").arg("a"), SHORT).unwrap_err();
    assert!(started.elapsed() < LONG);
    assert_eq!(
        (e.kind(), e.outcome()),
        (ErrorKind::Timeout, Outcome::Unknown)
    );
    assert!(e.is_retryable() && e.key() == Some("a"));
    assert!(e.to_string().contains(": no answer within 200 ms"), "{e}");

    let e = Connection::dial(&target, "test", None, SHORT).unwrap_err();
    assert_eq!(
        (e.kind(), e.message()),
        (ErrorKind::Connect, "no answer to HELLO within 200 ms")
    );
    server.signal("-CONT");
    let e = con.call(cmd("GET").arg("b"), LONG).unwrap_err();
    assert!(con.is_broken());
    assert_eq!(
        (e.kind(), e.outcome()),
        (ErrorKind::Io, Outcome::NotApplied)
    );
    let mut con = dial(&target).unwrap();
    let b = con.call(cmd("GET").arg("b"), LONG).unwrap();
    assert_eq!(b, Value::BulkString(b"2".to_vec()));
}

#[test]
fn a_connection_closed_while_idle_fails_before_anything_is_sent() {
    let server = Server::start(&[]);
    let target = server.target("");
    let mut admin = dial(&target).unwrap();
    for _ in 0..50 {
        let mut con = dial(&target).unwrap();
        let before = attempts(&target);
        let mut kill = cmd("CLIENT");
        kill.arg("KILL")
            .arg("TYPE")
            .arg("normal")
            .arg("SKIPME")
            .arg("yes");
        admin.call(&kill, LONG).unwrap();
        let e = con.call(cmd("INCR").arg("n"), LONG).unwrap_err();
        assert_eq!(
            (e.kind(), e.outcome()),
            (ErrorKind::Io, Outcome::NotApplied),
            "{e}"
        );
        dial(&target)
            .unwrap()
            .call(cmd("INCR").arg("n"), LONG)
            .unwrap();
        assert_eq!(attempts(&target), before + 1);
    }
    let n = admin.call(cmd("GET").arg("n"), LONG).unwrap();
    assert_eq!(n, Value::BulkString(b"50".to_vec()));
}

#[test]
fn threads_of_a_dead_server_share_their_dials_and_come_back_together() {
    let mut server = Server::start(&[]);
    let target = server.target("");
    let mut cons: Vec<_> = (0..17).map(|_| dial(&target).unwrap()).collect();
    let before = attempts(&target);
    server.kill();
    let died = clock::now();
    thread::scope(|s| {
        let lanes: Vec<_> = cons
            .iter_mut()
            .map(|con| {
                s.spawn(|| {
                    con.call(&cmd("PING"), LONG).unwrap_err();
                    while let Err(e) = dial(&target) {
                        assert_eq!(e.kind(), ErrorKind::Connect);
                        assert!(died.elapsed() < LONG);
                    }
                })
            })
            .collect();
        while attempts(&target) < before + 3 {
            assert!(died.elapsed() < LONG);
            nap();
        }
        server.restart();
        for lane in lanes {
            lane.join().unwrap();
        }
    });
    // one a second while it was down, and one for each once it was back
    let spent = attempts(&target) - before;
    assert!(spent <= died.elapsed().as_secs() + 2 + 17, "{spent}");
}

#[test]
fn a_peer_that_accepts_and_says_nothing_holds_up_neither_deadline_nor_stop() {
    let target = stub(vec![Box::new(silence), Box::new(silence)]);
    let started = clock::now();
    let e = Connection::dial(&target, "test", None, SHORT).unwrap_err();
    assert_eq!(
        (e.kind(), e.message()),
        (ErrorKind::Connect, "no answer to HELLO within 200 ms")
    );
    assert_eq!(e.endpoint(), Some(target.endpoint()));

    let interrupt = Arc::new(Interrupt::default());
    thread::scope(|s| {
        let dialler = s.spawn(|| Connection::dial(&target, "test", Some(&interrupt), LONG));
        while attempts(&target) < 2 {
            assert!(started.elapsed() < LONG);
            nap();
        }
        interrupt.cut(STOP);
        assert_eq!(
            dialler.join().unwrap().unwrap_err().kind(),
            ErrorKind::Stopped
        );
    });
    assert!(started.elapsed() < LONG);
}

#[test]
fn a_cut_ends_a_call_and_is_not_held_against_the_server() {
    let asked = Arc::new(AtomicU32::new(0));
    let heard = Arc::clone(&asked);
    let target = stub(vec![after_a_command(move |peer| {
        heard.store(1, Ordering::SeqCst);
        silence(peer);
    })]);
    let interrupt = Arc::new(Interrupt::default());
    let mut con = Connection::dial(&target, "test", Some(&interrupt), LONG).unwrap();
    thread::scope(|s| {
        let caller = s.spawn(|| con.call(&cmd("INFO"), LONG).unwrap_err());
        while asked.load(Ordering::SeqCst) == 0 {
            nap();
        }
        interrupt.cut(2);
        let e = caller.join().unwrap();
        assert_eq!(
            (e.message(), e.outcome()),
            ("cut off by this process", Outcome::Unknown)
        );
    });
    assert!(con.is_broken() && Gate::of(&target).is_proven());
}

#[test]
fn answers_that_break_off_leave_the_outcome_unknown() {
    let half = |said: &'static [u8]| {
        after_a_command(move |mut peer| {
            peer.write_all(said).unwrap();
            silence(peer);
        })
    };
    let reset = after_a_command(|peer| {
        let peer = socket2::Socket::from(peer);
        peer.set_linger(Some(Duration::ZERO)).unwrap();
    });
    let trickle = after_a_command(|mut peer| {
        while peer.write_all(b"*1\r\n").is_ok() {
            nap();
        }
    });
    for (script, kind) in [
        (half(b""), ErrorKind::Timeout),
        (half(b"$5\r\nab"), ErrorKind::Timeout),
        (half(b"what?\r\n"), ErrorKind::Protocol),
        (half(b"+OK\r\n+OK\r\n"), ErrorKind::Protocol),
        (after_a_command(drop), ErrorKind::Io),
        (reset, ErrorKind::Io),
        (trickle, ErrorKind::Timeout),
    ] {
        let target = stub(vec![script]);
        let mut con = dial(&target).unwrap();
        assert!(Gate::of(&target).is_proven());
        let started = clock::now();
        let e = con.call(cmd("INCR").arg("n"), SHORT).unwrap_err();
        assert_eq!((e.kind(), e.outcome()), (kind, Outcome::Unknown), "{e}");
        assert!(con.is_broken() && started.elapsed() < LONG);
        assert!(!Gate::of(&target).is_proven());
        let e = con.call(&cmd("PING"), SHORT).unwrap_err();
        assert_eq!(
            (e.kind(), e.outcome()),
            (ErrorKind::Io, Outcome::NotApplied)
        );
        assert_eq!(
            con.send(b"x", SHORT).unwrap_err().outcome(),
            Outcome::NotApplied
        );
    }
}

#[test]
fn a_server_that_is_full_or_loading_is_named_and_asked_again() {
    let full = |mut peer: TcpStream| {
        peer.write_all(b"-ERR max number of clients reached\r\n")
            .unwrap();
    };
    let loading = |mut peer: TcpStream| {
        hear_ping(&mut peer);
        let text = b"-LOADING Redis is loading the dataset in memory\r\n";
        peer.write_all(&text.repeat(3)).unwrap();
    };
    let target = stub(vec![
        Box::new(full),
        Box::new(loading),
        after_a_command(silence),
    ]);
    let e = dial(&target).unwrap_err();
    assert_eq!(e.server_class(), Some(ServerClass::Transient));
    assert!(
        e.is_retryable() && e.message().contains("maxclients"),
        "{e}"
    );
    let e = dial(&target).unwrap_err();
    assert_eq!(
        (e.server_class(), e.is_retryable()),
        (Some(ServerClass::Loading), true)
    );
    dial(&target).unwrap();
}

#[test]
fn who_is_refused_a_write_by_a_replica_tells_all_who_are_connected_to_it() {
    let server = Server::start(&[]);
    let target = server.target("");
    let (mut one, mut other) = (dial(&target).unwrap(), dial(&target).unwrap());
    let role = |c: &mut Connection, host: &str, port: &str| {
        let mut role = cmd("REPLICAOF");
        c.call(role.arg(host).arg(port), LONG).unwrap();
    };
    role(&mut one, "127.0.0.1", "1");
    let reads = |c: &mut Connection| c.call(cmd("EXISTS").arg("k"), LONG).is_ok();
    assert!(reads(&mut other), "nobody can tell by reading");
    let e = one.call(cmd("SET").arg("k").arg("v"), LONG).unwrap_err();
    assert_eq!(e.server_class(), Some(ServerClass::ReadOnly), "{e}");
    assert!(one.is_outdated() && other.is_outdated());
    let e = other.check_idle().unwrap_err();
    assert_eq!(
        (e.kind(), e.outcome()),
        (ErrorKind::Io, Outcome::NotApplied)
    );
    assert!(!reads(&mut other));
    dial(&target).unwrap_err();

    let mut operator = UnixStream::connect(server.dir.join("s")).unwrap();
    operator.write_all(b"REPLICAOF NO ONE\r\n").unwrap();
    operator.read_exact(&mut [0; 5]).unwrap();
    let mut new = dial(&target).unwrap();
    assert!(!new.is_outdated());
    one.heed(&e);
    one.heed(&Error::server("call", b"READONLY of old"));
    assert!(
        reads(&mut new),
        "what is told late concerns those of before"
    );
}

#[test]
fn raw_bytes_go_both_ways() {
    let server = Server::start(&[]);
    let mut con = dial(&server.target("")).unwrap();
    let mut buf = [0; 64];
    for spin in [Duration::ZERO, SHORT] {
        con.send(b"*1\r\n$4\r\nPING\r\n", LONG).unwrap();
        let n = con.recv(&mut buf, spin, LONG).unwrap();
        assert_eq!(&buf[..n], b"+PONG\r\n");
    }
    con.check_idle().unwrap();
    let e = con.recv(&mut buf, Duration::ZERO, SHORT).unwrap_err();
    assert_eq!(
        (e.kind(), e.outcome()),
        (ErrorKind::Timeout, Outcome::Unknown)
    );
    assert!(con.is_broken());
}

#[test]
fn commands_are_named_by_their_first_key() {
    for (line, key) in [
        ("GET k", Some("k")),
        ("EVALSHA abc 1 k v", Some("k")),
        ("EVAL abc 0 v", None),
        ("XREADGROUP GROUP g c COUNT 1 STREAMS k >", Some("k")),
        ("XGROUP CREATE k g 0", Some("k")),
        ("CONFIG GET maxmemory", None),
        ("TIME", None),
    ] {
        let args: Vec<_> = line.split(' ').map(str::as_bytes).collect();
        let found = key_of(line.split(' ').next().unwrap(), &args);
        assert_eq!(found, key.map(str::as_bytes), "{line}");
    }
}

#[test]
fn who_has_no_time_to_dial_holds_nobody_up() {
    let server = Server::start(&[]);
    let target = server.target("");
    let e = Connection::dial(&target, "test", None, Duration::ZERO).unwrap_err();
    assert_eq!(
        (e.kind(), e.outcome()),
        (ErrorKind::Connect, Outcome::NotApplied)
    );
    assert!(
        Gate::of(&target).down().is_none(),
        "nothing was learned of the server"
    );
    dial(&target).unwrap();
}

#[test]
fn all_who_use_an_ended_connection_hear_what_ended_it() {
    let hangs_up = |peer: TcpStream| drop(peer);
    let target = stub(vec![after_a_command(hangs_up), after_a_command(silence)]);
    let duplex = || Duplex::of(dial(&target).unwrap());
    let said = |e: &Error| e.message().to_owned();

    let ended = duplex();
    ended.send(b"PING\r\n", LONG).unwrap();
    let first = ended.recv(&mut [0; 9], LONG).unwrap_err();
    let (taken, second) = ended.send(b"PING\r\n", LONG).unwrap_err();
    assert_eq!((taken, said(&second)), (0, said(&first)));
    assert_eq!(said(&ended.check_idle().unwrap_err()), said(&second));

    let ended = duplex();
    ended.send(b"PING\r\n", LONG).unwrap();
    assert_eq!(ended.recv(&mut [0; 9], SHORT).unwrap(), None);
    let (given_up, cut_off) = thread::scope(|s| {
        let reader = s.spawn(|| ended.recv(&mut [0; 9], LONG).unwrap_err());
        nap();
        (ended.give_up(SHORT), reader.join().unwrap())
    });
    assert_eq!(given_up.kind(), ErrorKind::Timeout);
    assert_eq!(
        (cut_off.kind(), said(&cut_off)),
        (given_up.kind(), said(&given_up))
    );
}
