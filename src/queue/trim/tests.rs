#![allow(clippy::unwrap_used)]

use super::*;
use crate::{net::Target, testing::PrivateServer};

const LONG: Duration = Duration::from_secs(20);

struct World {
    server: PrivateServer,
    connection: Connection,
}

/// A server with a stream `s` of so many entries, with ids 1-0 and up.
fn world(server: PrivateServer, n: u64) -> World {
    let target = Target::parse(&server.url()).unwrap();
    let connection = Connection::dial(&target, "test", None, LONG).unwrap();
    for i in 1..=n {
        server
            .command(&["XADD", "s", &format!("{i}-0"), "b", "x"])
            .unwrap();
    }
    World { server, connection }
}

impl World {
    fn trim(&mut self, leave: Leave, exact: bool) -> u64 {
        let timeout = LONG;
        let how = How { exact, timeout };
        trim(&mut self.connection, b"s", leave, how, &mut || true).unwrap()
    }

    fn first(&self) -> String {
        let entries = self
            .server
            .command(&["XRANGE", "s", "-", "+", "COUNT", "1"]);
        let entries = entries.unwrap();
        entries
            .items()
            .first()
            .map_or(String::new(), |e| e.items()[0].text())
    }

    fn len(&self) -> i64 {
        self.server.command(&["XLEN", "s"]).unwrap().int().unwrap()
    }
}

#[test]
fn whole_nodes_go_first_and_the_rest_where_it_is_to_be_exact() {
    let mut w = world(PrivateServer::start().unwrap(), 3350);
    let id = |ms| StreamId::new(ms, 0);
    assert_eq!(w.trim(Leave::From(id(1151)), false), 1100);
    assert_eq!((w.len(), &*w.first()), (2250, "1101-0"));
    assert_eq!(w.trim(Leave::From(id(1151)), true), 50);
    assert_eq!((w.len(), &*w.first()), (2200, "1151-0"));
    assert_eq!(w.trim(Leave::From(StreamId::MIN), true), 0);
    assert_eq!(w.trim(Leave::Newest(120), false), 2050);
    assert_eq!(w.trim(Leave::Newest(120), true), 30);
    assert_eq!((w.len(), &*w.first()), (120, "3231-0"));
    assert_eq!(w.trim(Leave::Newest(0), true), 120);
    w.server.command(&["DEL", "s"]).unwrap();
    assert_eq!(w.trim(Leave::From(id(9)), true), 0, "no stream");
}

#[test]
fn so_many_of_the_oldest_go_and_none_from_an_id_on() {
    let mut w = world(PrivateServer::start().unwrap(), 3350);
    let mut oldest = |id, most| {
        let upto = (StreamId::new(id, 0), most);
        trim_oldest(&mut w.connection, b"s", upto, LONG, &mut || true).unwrap()
    };
    assert_eq!(oldest(3000, 0), 0);
    assert_eq!(oldest(3000, 1234), 1234);
    assert_eq!(oldest(1300, 1000), 65, "1235 to 1299");
    assert_eq!(oldest(1300, 1000), 0);
    assert_eq!((w.len(), &*w.first()), (2051, "1300-0"));
}

#[test]
fn it_ends_between_two_steps_when_it_is_told_to() {
    let mut w = world(PrivateServer::start().unwrap(), 2500);
    let how = How {
        exact: true,
        timeout: LONG,
    };
    let leave = Leave::Newest(0);
    let done = trim(&mut w.connection, b"s", leave, how, &mut || false).unwrap();
    assert_eq!((done, w.len()), (1000, 1500));
}

#[test]
fn nodes_that_are_larger_than_a_step_are_got_rid_of_too() {
    let server = PrivateServer::builder()
        .config("stream-node-max-entries 3000")
        .config("stream-node-max-bytes 0")
        .start()
        .unwrap();
    let mut w = world(server, 7000);
    assert_eq!(w.trim(Leave::Newest(500), false), 6000);
    assert_eq!(w.len(), 1000);
}

#[test]
fn a_node_whose_last_entries_were_deleted_is_not_left_behind_empty() {
    for tail in [150, 199] {
        let mut w = world(PrivateServer::start().unwrap(), 300);
        for i in tail..=200 {
            let id = format!("{i}-0");
            w.server.command(&["XDEL", "s", &id]).unwrap();
        }
        let left = tail - 101;
        let done = w.trim(Leave::From(StreamId::new(tail, 0)), true);
        assert_eq!(done, 100 + left, "{tail}");
        let facts = w.server.command(&["XINFO", "STREAM", "s"]).unwrap();
        let nodes = facts
            .items()
            .chunks(2)
            .find(|pair| pair[0].text() == "radix-tree-keys")
            .map(|pair| pair[1].int());
        assert_eq!(nodes, Some(Some(1)), "the node of 101 to 200 is gone");
        let reloaded = w.server.command(&["DEBUG", "RELOAD"]).unwrap();
        assert_eq!(reloaded.text(), "OK");
        assert_eq!(w.len(), 100);
    }
}
