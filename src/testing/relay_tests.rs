use std::io::ErrorKind;

use super::*;
use crate::testing::{Client, eventually, rest};

const LONG: Duration = Duration::from_secs(20);

fn between() -> (PrivateServer, Relay, Client) {
    let server = PrivateServer::start().unwrap();
    let relay = Relay::to(&server).unwrap();
    let client = Client::connect(relay.addr()).unwrap();
    (server, relay, client)
}

fn ping(client: &mut Client) -> io::Result<String> {
    client.command(&["PING"]).map(|r| r.text())
}

/// No answer for a while, and the connection stays.
fn assert_silent(client: &mut Client) {
    client.set_patience(Duration::from_millis(100)).unwrap();
    let e = client.receive().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::WouldBlock, "{e}");
    client.set_patience(LONG).unwrap();
}

#[test]
fn without_faults_everything_passes() {
    let (server, relay, mut client) = between();
    let big = vec![b'x'; 3_000_000];
    client.command(&[b"SET", &b"k"[..], &big]).unwrap();
    assert_eq!(
        client.command(&["GET", "k"]).unwrap(),
        crate::testing::Reply::Bulk(big)
    );
    assert_eq!((relay.accepted(), relay.open()), (1, 1));
    drop(client);
    assert!(eventually(LONG, || relay.open() == 0));
    assert!(relay.url().starts_with("redis://127.0.0.1:"));
    let tcp = PrivateServer::builder().tcp().start().unwrap();
    let relay = Relay::to_addr(([127, 0, 0, 1], tcp.port()).into()).unwrap();
    assert_eq!(
        ping(&mut Client::connect(relay.addr()).unwrap()).unwrap(),
        "PONG"
    );
    drop(server);
}

#[test]
fn a_black_hole_takes_old_connections_and_spares_new_ones() {
    let (_server, relay, mut old) = between();
    ping(&mut old).unwrap();
    for way in [Way::Requests, Way::Replies] {
        relay.fault_existing(way, Fault::BlackHole);
    }
    old.send(&["PING"]).unwrap();
    assert_silent(&mut old);
    let mut new = Client::connect(relay.addr()).unwrap();
    assert_eq!(ping(&mut new).unwrap(), "PONG");
    // an end does not get through a dead link either
    relay.fault_existing(Way::Requests, Fault::BlackHole);
    drop(new);
    let noticed = eventually(Duration::from_millis(100), || relay.open() < 2);
    assert!(!noticed);
    relay.heal();
    assert_eq!(old.receive().unwrap().text(), "PONG");
    assert!(eventually(LONG, || relay.open() == 1));
}

#[test]
fn faults_for_new_connections_spare_the_old() {
    let (_server, relay, mut old) = between();
    ping(&mut old).unwrap();
    relay.fault_new(Way::Replies, Fault::BlackHole);
    let mut new = Client::connect(relay.addr()).unwrap();
    new.send(&["PING"]).unwrap();
    assert_silent(&mut new);
    assert_eq!(ping(&mut old).unwrap(), "PONG");
}

#[test]
fn swallowed_replies_leave_the_command_done() {
    let (server, relay, mut client) = between();
    relay.fault(Way::Replies, Fault::Swallow);
    client.send(&["INCR", "n"]).unwrap();
    assert_silent(&mut client);
    assert_eq!(server.command(&["GET", "n"]).unwrap().int(), Some(1));
    // what was swallowed does not come later
    relay.heal();
    assert_eq!(ping(&mut client).unwrap(), "PONG");
}

#[test]
fn delays_hold_bytes_back_and_can_be_lifted() {
    let (_server, relay, mut client) = between();
    let (start, delay) = (clock::now(), Duration::from_millis(60));
    relay.fault(Way::Replies, Fault::Delay(delay));
    ping(&mut client).unwrap();
    assert!(start.elapsed() >= delay);
    relay.fault(Way::Requests, Fault::Delay(Duration::from_hours(1)));
    client.send(&["PING"]).unwrap();
    assert_silent(&mut client);
    relay.heal();
    assert_eq!(client.receive().unwrap().text(), "PONG");
}

#[test]
fn a_trickle_passes_byte_by_byte() {
    let (_server, relay, mut client) = between();
    let (start, each) = (clock::now(), Duration::from_millis(5));
    relay.fault(Way::Replies, Fault::Trickle(each));
    assert_eq!(ping(&mut client).unwrap(), "PONG");
    assert!(start.elapsed() >= each * "+PONG\r\n".len() as u32);
}

#[test]
fn a_cut_comes_after_so_many_bytes() {
    let (_server, relay, mut client) = between();
    relay.fault(Way::Replies, Fault::CutAfter(7 + 3));
    assert_eq!(ping(&mut client).unwrap(), "PONG");
    client.send(&["PING"]).unwrap();
    for want in [Some(b'+'), Some(b'P'), Some(b'O'), None] {
        assert_eq!(client.byte().unwrap(), want);
    }
    assert!(eventually(LONG, || relay.open() == 0));
    // the count begins anew with each connection
    let mut next = Client::connect(relay.addr()).unwrap();
    assert_eq!(ping(&mut next).unwrap(), "PONG");
}

#[test]
fn closing_and_resetting_look_different_to_the_client() {
    let (server, relay, mut client) = between();
    ping(&mut client).unwrap();
    relay.close();
    assert_eq!(client.byte().unwrap(), None);
    let mut client = Client::connect(relay.addr()).unwrap();
    ping(&mut client).unwrap();
    relay.reset();
    assert_eq!(
        client.byte().unwrap_err().kind(),
        ErrorKind::ConnectionReset
    );
    assert_eq!(relay.open(), 0);
    let clients = || server.command(&["CLIENT", "LIST"]).unwrap().text();
    assert!(eventually(LONG, || clients().lines().count() == 1));
}

#[test]
fn a_reset_does_not_wait_for_a_peer_that_takes_nothing() {
    let (server, relay, mut client) = between();
    server
        .command(&["SET", "k", &"x".repeat(20_000_000)])
        .unwrap();
    client.send(&["GET", "k"]).unwrap();
    assert_eq!(client.byte().unwrap(), Some(b'$'));
    // every buffer on the way is full once the server gets rid of nothing more
    let waiting = || {
        let list = server.command(&["CLIENT", "LIST"]).unwrap().text();
        let (_, omem) = list.split_once(" omem=").unwrap();
        omem.split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let mut before = 0;
    let full = || {
        rest(Duration::from_millis(50));
        let now = waiting();
        std::mem::replace(&mut before, now) == now && now > 0
    };
    assert!(eventually(LONG, full));
    let start = clock::now();
    relay.reset();
    assert!(start.elapsed() < LONG);
}

#[test]
fn new_connections_can_be_refused_for_a_while() {
    let (server, relay, mut old) = between();
    ping(&mut old).unwrap();
    relay.refuse_new(true).unwrap();
    relay.refuse_new(true).unwrap();
    let refused = Client::connect(relay.addr()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(ping(&mut old).unwrap(), "PONG");
    relay.refuse_new(false).unwrap();
    relay.refuse_new(false).unwrap();
    let mut new = Client::connect(relay.addr()).unwrap();
    assert_eq!(ping(&mut new).unwrap(), "PONG");
    assert_eq!(relay.accepted(), 2);
    // a server that is down: accepted, then closed
    server.kill();
    let mut none = Client::connect(relay.addr()).unwrap();
    assert!(none.byte().unwrap_or(None).is_none());
    assert!(eventually(LONG, || relay.accepted() == 3));
}
