use std::io::BufRead;

use super::*;
use crate::testing::eventually;

fn aof() -> ServerBuilder {
    PrivateServer::builder().aof(Aof::Always)
}

#[test]
fn a_server_answers_and_leaves_nothing_behind() {
    let server = PrivateServer::start().unwrap();
    assert_eq!(server.command(&["PING"]).unwrap().text(), "PONG");
    assert!(server.url().starts_with("redis+unix:///"));
    let engine = server.engine().unwrap();
    assert!(engine.version.0 >= 7, "{engine}");
    let refused = server.command(&["NOSUCH"]).unwrap_err().to_string();
    assert!(refused.contains("unknown command"), "{refused}");
    let (dir, pid) = (server.dir().to_owned(), server.pid().unwrap());
    drop(server);
    assert!(!dir.exists());
    assert!(!runs(pid));
}

#[test]
fn what_the_append_only_file_holds_outlives_a_kill() {
    let server = aof().tcp().start().unwrap();
    let (port, pid) = (server.port(), server.pid());
    server.command(&["SET", "k", "v"]).unwrap();
    server.kill();
    assert_eq!(server.pid(), None);
    assert!(server.command(&["PING"]).is_err());
    assert!(server.pause().is_err());
    server.restart().unwrap();
    assert_ne!(server.pid(), pid);
    let mut tcp = Client::connect(([127, 0, 0, 1], port).into()).unwrap();
    assert_eq!(tcp.command(&["GET", "k"]).unwrap().text(), "v");
    server.stop().unwrap();
    assert!(server.log().contains("bye bye"), "{}", server.log());
    // a restart of a running one is a crash and a start
    server.restart().unwrap();
    server.restart().unwrap();
    assert_eq!(server.command(&["GET", "k"]).unwrap().text(), "v");
}

#[test]
fn a_server_can_be_seen_loading() {
    let server = aof().start().unwrap();
    let mut client = server.client().unwrap();
    for n in 0..2000 {
        client.send(&["SET", &n.to_string(), "x"]).unwrap();
    }
    for _ in 0..2000 {
        client.receive().unwrap();
    }
    client.command(&["BGREWRITEAOF"]).unwrap();
    let rewritten = || {
        let info = server.command(&["INFO", "persistence"]).unwrap().text();
        info.contains("aof_rewrite_in_progress:0") && info.contains("aof_rewrite_scheduled:0")
    };
    assert!(eventually(PATIENCE, rewritten));
    let slowly = [
        "--key-load-delay",
        "1000",
        "--loading-process-events-interval-bytes",
        "1024",
    ];
    server.restart_with(&slowly).unwrap();
    let refused = server.command(&["PING"]).unwrap_err().to_string();
    assert!(refused.starts_with("LOADING"), "{refused}");
    server.restart().unwrap();
    assert_eq!(server.command(&["DBSIZE"]).unwrap().int(), Some(2000));
}

#[test]
fn a_frozen_server_is_silent_until_it_goes_on() {
    let server = PrivateServer::start().unwrap();
    let mut client = server.client().unwrap();
    client.set_patience(Duration::from_millis(50)).unwrap();
    server.pause().unwrap();
    let silent = client.command(&["PING"]).unwrap_err();
    assert_eq!(silent.kind(), ErrorKind::WouldBlock);
    server.resume().unwrap();
    client.set_patience(PATIENCE).unwrap();
    assert_eq!(client.receive().unwrap().text(), "PONG");
    // a frozen one can be stopped, too
    server.pause().unwrap();
    server.stop().unwrap();
}

#[test]
fn passwords_may_hold_anything() {
    let password = r#"p@s#s/%25+:=?&x "\'"#;
    let server = PrivateServer::builder().password(password).tcp();
    let server = server.start().unwrap();
    assert_eq!(server.command(&["PING"]).unwrap().text(), "PONG");
    let mut stranger = Client::connect_unix(server.socket_path()).unwrap();
    let refused = stranger.command(&["PING"]).unwrap_err().to_string();
    assert!(refused.starts_with("NOAUTH"), "{refused}");
    for url in [server.url(), server.tcp_url()] {
        let (_, rest) = url.split_once("p%40s%23s%2F%2525").unwrap();
        assert!(rest.starts_with("%2B%3A%3D%3F%26x%20%22%5C%27"), "{url}");
    }
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let missing = PrivateServer::builder().binary("no-such-server").start();
    let missing = missing.unwrap_err().to_string();
    assert!(
        missing.contains("apt-get install redis-server"),
        "{missing}"
    );
    let wrong = PrivateServer::builder().config("no-such-setting 1").start();
    let wrong = wrong.unwrap_err().to_string();
    assert!(wrong.contains("no-such-setting"), "{wrong}");
}

#[test]
fn a_sentinel_is_a_server_as_well() {
    let master = PrivateServer::builder().tcp().start().unwrap();
    let sentinel = PrivateServer::builder()
        .tcp()
        .arg("--sentinel")
        .config(format!("sentinel monitor m 127.0.0.1 {} 1", master.port()))
        .start()
        .unwrap();
    let at = sentinel.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "m"]);
    assert_eq!(at.unwrap().items()[1].int(), Some(master.port().into()));
}

#[test]
fn a_node_of_a_cluster_is_a_server_as_well() {
    let node = PrivateServer::builder().tcp().config("cluster-enabled yes");
    let node = node.start().unwrap();
    let all = ["CLUSTER", "ADDSLOTSRANGE", "0", "16383"];
    assert_eq!(node.command(&all).unwrap().text(), "OK");
    let info = node.command(&["CLUSTER", "INFO"]).unwrap().text();
    assert!(info.contains("cluster_slots_assigned:16384"), "{info}");
}

#[test]
fn the_server_dies_with_a_process_that_was_killed() {
    // the child is this test again: it starts a server, tells about it and waits to be killed
    const CHILD: &str = "STREAMLANE_TEST_GUARD_CHILD";
    if env::var_os(CHILD).is_some() {
        let server = PrivateServer::start().unwrap();
        println!("\nat {} {}", server.pid().unwrap(), server.dir().display());
        rest(PATIENCE * 10);
    }
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "--nocapture"])
        .arg(std::thread::current().name().unwrap())
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = io::BufReader::new(child.stdout.take().unwrap());
    let at = out
        .lines()
        .map_while(Result::ok)
        .find(|l| l.starts_with("at "))
        .unwrap();
    let mut at = at.split(' ').skip(1);
    let pid: u32 = at.next().unwrap().parse().unwrap();
    let dir = PathBuf::from(at.next().unwrap());
    assert!(runs(pid) && dir.exists());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(eventually(PATIENCE, || !runs(pid) && !dir.exists()));
}

/// Whether a process lives; one that only waits to be reaped does not.
fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ")
        .next()
        .is_some_and(|s| !s.is_empty() && !s.starts_with('Z'))
}
