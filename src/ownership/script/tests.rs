//! Members of every kind that come, go, die and return, on a real server whose time is moved by hand,
//! beside a model that says what becomes of each field, and when it ends.
#![allow(clippy::unwrap_used, reason = "tests")]

mod checks;
mod plan;
mod world;

use std::sync::OnceLock;

use proptest::{collection::btree_set, prelude::*};

use super::{CYCLE, RELEASE, Script};
use crate::testing::PrivateServer;
use world::{Event, Meddling, N, Taste, World};

fn tastes() -> impl Strategy<Value = Taste> {
    let foreign = Taste {
        foreign: true,
        ..Taste::plain()
    };
    let narrow = (0..=N, btree_set(0..N, 0..6)).prop_map(|(most, refused)| Taste {
        most,
        refused,
        foreign: false,
    });
    prop_oneof![5 => Just(Taste::plain()), 2 => narrow, 2 => Just(foreign)]
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let meddling = prop_oneof![
        4 => (0..N).prop_map(Meddling::Claim),
        2 => (0..5u32).prop_map(Meddling::Presence),
        2 => (0..N).prop_map(Meddling::End),
        1 => Just(Meddling::Hash),
        1 => Just(Meddling::Set),
    ];
    let event = prop_oneof![
        4 => (0..5u32, tastes()).prop_map(|(id, taste)| Event::Join(id, taste)),
        16 => (0..8usize).prop_map(Event::Cycle),
        6 => (0..8usize).prop_map(Event::Release),
        1 => (0..8usize).prop_map(Event::Leave),
        1 => (0..8usize).prop_map(Event::Die),
        6 => (1..60u32).prop_map(Event::Wait),
        3 => meddling.prop_map(Event::Meddle),
    ];
    prop::collection::vec(event, 1..60)
}

#[test]
fn the_server_knows_each_script_by_its_hash() {
    let server = PrivateServer::start().unwrap();
    for script in [&CYCLE, &RELEASE] {
        let known = server.command(&["SCRIPT", "LOAD", script.text]).unwrap();
        assert_eq!(known.text(), script.sha1, "{}", script.text);
    }
}

#[test]
fn what_comes_late_does_nothing() {
    let server = PrivateServer::start().unwrap();
    let run = |script: &Script, args: &[&str], by: u64| {
        let (hash, set, by) = ("re:o:{t}:c", "re:e:{t}:c", by.to_string());
        let command = [&["EVAL", script.text, "2", hash, set], args, &[&by]];
        server.command(&command.concat())
    };
    let fields = || {
        let all = server.command(&["HKEYS", "re:o:{t}:c"]).unwrap();
        all.items().len()
    };
    let now = crate::clock::unix_ms(crate::clock::wall());
    let renewal = [
        "x|a#0badcafe",
        "60000",
        "4",
        "i:x",
        "s",
        "first",
        "4",
        "1",
        "",
        "",
        "",
    ];
    let release = ["x|a#0badcafe", "0", "1", "i:x"];
    for (script, args, before, after) in
        [(&CYCLE, &renewal[..], 0, 5), (&RELEASE, &release[..], 5, 2)]
    {
        let late = run(script, args, now - 60_000).unwrap_err();
        assert!(late.to_string().contains("LATE"), "{late}");
        assert_eq!(fields(), before);
        run(script, args, now + 60_000).unwrap();
        assert_eq!(fields(), after);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn members_never_share_a_partition_and_settle_evenly(events in events()) {
        static SERVER: OnceLock<PrivateServer> = OnceLock::new();
        let server = SERVER.get_or_init(|| PrivateServer::start().unwrap());
        let mut world = World::new(server);
        for event in events {
            world.happen(event);
        }
        // Peers leave a field that has no end as it is.
        if world
            .alive()
            .iter()
            .all(|i| world.members[*i].taste.foreign)
        {
            world.join(9, Taste::plain());
        }
        world.settle();
        world.assert_settled();
    }
}
