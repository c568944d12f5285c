//! Random steps of one to eight processes while messages pour in.

use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

use streamlane::testing::eventually;

use crate::{
    command_log,
    common::{dice::Dice, number_from_env, turn, worker::Keeps},
    excuses::Excuses,
    fleet::{Fleet, INTERVAL, TTL, WINDOW},
    reigns,
};

const MOST: usize = 8;
/// For how long a process is frozen: longer than its claims last.
const FROST: Duration = TTL.saturating_mul(3);
/// How soon after a process comes, goes, or comes back everything is owned evenly: a claim ends, somebody
/// notices, and hands over.
const BOUND: Duration = TTL.saturating_add(Duration::from_secs(3));

#[derive(Clone, Copy, Debug)]
enum Step {
    Join,
    Leave,
    Kill,
    Freeze,
}

#[test]
fn instances_that_come_go_are_killed_and_are_frozen_own_each_partition_one_at_a_time() {
    let _turn = turn();
    let steps = number_from_env("STREAMLANE_CLUSTER_STEPS").unwrap_or(30);
    let mut churn = Churn {
        dice: Dice::new("churn"),
        fleet: Fleet::under_load(Keeps::Within(INTERVAL)),
        frozen: BTreeMap::new(),
    };
    churn.fleet.join("svc-0");
    churn.fleet.await_even(1);
    for n in 0..steps {
        churn.wait(200..1500);
        churn.step(n);
        if churn.dice.one_in(4) {
            churn.rest();
        }
    }
    churn.rest();
    let Churn { mut fleet, .. } = churn;
    fleet.settle();
    fleet.end();
    let report = Excuses::check(&fleet.logs, WINDOW);
    fleet.server.stop().unwrap();
    reigns::one_at_a_time(&fleet);
    let stored = command_log::positions_only_rise(&fleet.server).len();
    eprintln!("{stored} positions were stored, each behind the one before it");
    assert!(stored as u64 > steps && report.counts.handled > 1000);
}

struct Churn {
    dice: Dice,
    fleet: Fleet,
    /// By pod: when it is let go on.
    frozen: BTreeMap<String, Instant>,
}

impl Churn {
    fn step(&mut self, n: u64) {
        let awake = self.awake();
        let all: Vec<String> = self.fleet.up.keys().cloned().collect();
        let mut steps = Vec::new();
        if all.len() < MOST {
            // twice, so that there are not always few
            steps.extend([Step::Join, Step::Join]);
        }
        // somebody stays at work
        if awake.len() > 1 {
            steps.extend([Step::Leave, Step::Kill, Step::Freeze]);
        }
        let step = self.pick(&steps);
        let pod = match step {
            Step::Join => {
                let free = (0..MOST).map(|n| format!("svc-{n}"));
                let free: Vec<_> = free.filter(|pod| !all.contains(pod)).collect();
                self.pick(&free)
            }
            Step::Kill => self.pick(&all),
            Step::Leave | Step::Freeze => self.pick(&awake),
        };
        let last_awake = awake == [pod.clone()];
        eprintln!("step {n}: {step:?} {pod}, of {}", all.len());
        match step {
            Step::Join => self.fleet.join(&pod),
            Step::Leave => drop(self.fleet.leave(&pod)),
            Step::Kill => {
                assert!(!last_awake);
                self.frozen.remove(&pod);
                self.fleet.up.remove(&pod).unwrap().kill();
            }
            Step::Freeze => {
                self.fleet.up[&pod].freeze();
                self.frozen.insert(pod, Instant::now() + FROST);
            }
        }
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.dice.below(from.len() as u64) as usize].clone()
    }

    fn awake(&self) -> Vec<String> {
        let up = self.fleet.up.keys();
        up.filter(|pod| !self.frozen.contains_key(*pod))
            .cloned()
            .collect()
    }

    /// Lets a random time pass, in which those go on that were frozen for long enough.
    fn wait(&mut self, ms: std::ops::Range<u64>) {
        let until = Instant::now() + self.dice.ms(ms);
        self.thaw(until);
    }

    fn thaw(&mut self, until: Instant) {
        while let Some((pod, at)) = self.frozen.iter().min_by_key(|(_, at)| **at)
            && *at <= until
        {
            thread::sleep(at.saturating_duration_since(Instant::now()));
            eprintln!("{pod} goes on");
            self.fleet.up[pod].thaw();
            let pod = pod.clone();
            self.frozen.remove(&pod);
        }
        thread::sleep(until.saturating_duration_since(Instant::now()));
    }

    /// Waits until all have what is due to them.
    #[track_caller]
    fn rest(&mut self) {
        let last = self.frozen.values().max().copied();
        self.thaw(last.unwrap_or_else(Instant::now));
        for worker in self.fleet.up.values() {
            worker.await_ready();
        }
        let n = self.fleet.up.len();
        let took = self.fleet.await_even(n);
        eprintln!("{n} members share evenly after {took:?}");
        assert!(took < BOUND, "{took:?}");
        // and it stays so
        let moved = eventually(Duration::from_millis(300), || {
            !crate::claims::Claims::read(&self.fleet.server).is_even(n)
        });
        assert!(!moved, "what was even stays");
    }
}
