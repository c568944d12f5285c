//! A member of another make, which knows the wire format and nothing of us: partitions go to and fro
//! between it and ours, whoever ends and however.

use std::{
    process::{Command, Stdio},
    time::Duration,
};

use streamlane::testing::{Event, Recorder};

use crate::{
    PARTITIONS,
    claims::Claims,
    command_log,
    common::{CONSUMER, SLACK, TOPIC, process::Process, turn, worker::Keeps},
    excuses::Excuses,
    fleet::{Fleet, INTERVAL, TTL, WINDOW},
    reigns,
};

/// In whole seconds, as the specification has it.
const FOREIGN_TTL: Duration = Duration::from_secs(2);
const FOREIGN_RENEW: Duration = Duration::from_millis(500);
/// How long others may take, beyond the end of claims, to own what was a dead one's.
const NOTICE: Duration = Duration::from_secs(2);

#[test]
fn a_foreign_member_shares_with_ours_hands_over_and_takes_over() {
    let _turn = turn();
    let mut fleet = Fleet::under_load(Keeps::Within(INTERVAL));
    if !fields_expire(&fleet) {
        eprintln!("SKIPPED: the fields of this server's hashes do not expire");
        return;
    }
    fleet.join("a");
    fleet.await_even(1);

    // it comes, and ours make room; then it makes room for another of ours
    let one = Foreign::join(&fleet, "one");
    shared(&fleet, "joined", 2, NOTICE);
    fleet.join("b");
    shared(&fleet, "made room", 3, NOTICE);

    // it goes, as it should and then not, and ours take over
    one.leave();
    shared(&fleet, "left", 2, FOREIGN_RENEW);
    let two = Foreign::join(&fleet, "two");
    shared(&fleet, "joined", 3, NOTICE);
    two.kill(&fleet);
    shared(&fleet, "killed", 2, FOREIGN_TTL + NOTICE);

    // ours go, not as they should and then so, and it takes over
    let three = Foreign::join(&fleet, "three");
    shared(&fleet, "joined", 3, NOTICE);
    fleet.up.remove("a").unwrap().kill();
    shared(&fleet, "killed ours", 2, TTL + FOREIGN_RENEW + NOTICE);
    fleet.leave("b");
    shared(&fleet, "ours left", 1, FOREIGN_RENEW + SLACK);
    fleet.join("c");
    shared(&fleet, "ours joined", 2, NOTICE);

    fleet.settle();
    three.leave();
    fleet.end();
    let report = Excuses::check(&fleet.logs, WINDOW);
    let mut handled = [0, 0];
    fleet.logs.each_handled(|e| {
        handled[usize::from(e.instance.contains("foreign"))] += 1;
    });
    eprintln!(
        "of ours {}, of the foreign {} lines",
        handled[0], handled[1]
    );
    assert!(handled.iter().all(|n| *n > 1000), "{report}");
    fleet.server.stop().unwrap();
    reigns::one_at_a_time(&fleet);
    command_log::positions_only_rise(&fleet.server);
}

/// Waits until so many members have their fair share.
#[track_caller]
fn shared(fleet: &Fleet, what: &str, members: usize, bound: Duration) {
    let took = fleet.await_even(members);
    eprintln!("{what}: {members} share evenly after {took:?}");
    assert!(took < bound, "{took:?}: {:#?}", Claims::read(&fleet.server));
}

fn fields_expire(fleet: &Fleet) -> bool {
    let expire = ["HEXPIRE", "no-hash", "1", "FIELDS", "1", "no-field"];
    fleet.server.command(&expire).is_ok()
}

struct Foreign {
    process: Process,
    name: String,
}

impl Foreign {
    fn join(fleet: &Fleet, pod: &str) -> Self {
        let name = format!("foreign-{pod}");
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cluster/member.py");
        let child = Command::new("python3")
            .arg(program)
            .arg(fleet.server.socket_path())
            .args([TOPIC, CONSUMER, &PARTITIONS.to_string(), pod])
            .arg(FOREIGN_TTL.as_secs().to_string())
            .arg(FOREIGN_RENEW.as_secs_f64().to_string())
            .arg(&fleet.logs.handled)
            .arg(&name)
            .stdin(Stdio::null())
            .spawn();
        Self {
            process: Process(child.unwrap()),
            name,
        }
    }

    #[track_caller]
    fn leave(mut self) {
        self.process.terminate();
        let end = self.process.0.wait().unwrap();
        assert!(end.success(), "{}: {end}", self.name);
    }

    #[track_caller]
    fn kill(self, fleet: &Fleet) {
        let log = Recorder::append(&fleet.logs.handled).unwrap();
        // before and after, for what it handles in between
        log.record(&Event::killed(&self.name)).unwrap();
        self.process.kill();
        log.record(&Event::killed(&self.name)).unwrap();
    }
}
