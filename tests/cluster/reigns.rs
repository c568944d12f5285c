//! Whether each partition had one owner at a time, by the order of the claims in the server's own log of
//! commands: no handler call of an older claim begins after the first of a newer one.

use std::collections::{BTreeMap, HashMap};

use streamlane::testing::Kind;

use crate::{command_log, fleet::Fleet};

/// A lane's life: an instance, and when the handler was made.
type Life = (String, u64);

/// A handler call begins.
#[derive(Debug)]
struct Start {
    ns: u64,
    life: Life,
    /// It was about to when the process was frozen, and nothing could hold it back.
    was_under_way: bool,
}

/// Whose claims are whose.
struct Names {
    /// What tells the processes apart, by instance, as they said themselves.
    epochs: HashMap<String, String>,
}

/// Fails unless handler calls began in the order of the claims under which they did. For a server that
/// has stopped and never rewrote its log.
#[track_caller]
pub fn one_at_a_time(fleet: &Fleet) {
    let names = Names {
        epochs: fleet.epochs(),
    };
    let tenures = command_log::tenures(&fleet.server);
    let (mut changes, mut under_way) = (0, 0);
    for (p, starts) in starts(fleet) {
        let tenures = &tenures[&p];
        changes += tenures.len() - 1;
        let mut at = 0;
        let mut of: HashMap<&Life, usize> = HashMap::new();
        for (n, start) in starts.iter().enumerate() {
            let tenure = of.get(&start.life).copied().or_else(|| {
                let mut later = (at..).zip(&tenures[at..]);
                let found = later.find(|(_, claim)| names.is_of(claim, &start.life.0));
                found.map(|(i, _)| i)
            });
            match tenure {
                Some(i) if i >= at => {
                    of.insert(&start.life, i);
                    at = i;
                }
                _ if start.was_under_way => under_way += 1,
                _ => panic!(
                    "a call of partition {p} began when another's had: {start:?} after {:?}, of {:?}",
                    &starts[n.saturating_sub(3)..n],
                    &tenures[at.saturating_sub(3)..(at + 3).min(tenures.len())]
                ),
            }
        }
    }
    eprintln!(
        "{changes} times a partition changed hands; {under_way} calls were frozen as they began"
    );
}

/// By partition, as time went on.
fn starts(fleet: &Fleet) -> BTreeMap<u32, Vec<Start>> {
    let mut ends: HashMap<String, Vec<u64>> = HashMap::new();
    let mut all: BTreeMap<u32, Vec<Start>> = BTreeMap::new();
    fleet.logs.each_handled(|e| match e.kind {
        Kind::Killed => {
            let ends = ends.entry(e.instance.to_string()).or_default();
            ends.push(e.time_ns);
        }
        Kind::Started => all.entry(e.partition).or_default().push(Start {
            ns: e.time_ns,
            life: (e.instance.to_string(), e.epoch),
            was_under_way: false,
        }),
        _ => {}
    });
    for starts in all.values_mut() {
        starts.sort_by_key(|s| s.ns);
        let mut latest: HashMap<Life, u64> = HashMap::new();
        for start in starts {
            let before = latest.insert(start.life.clone(), start.ns);
            let before = before.unwrap_or(start.life.1);
            let ends = ends.get(&start.life.0).into_iter().flatten();
            // of the notes before and after a freeze one may be older than the last call
            start.was_under_way = ends.clone().any(|end| (before..start.ns).contains(end));
        }
    }
    all
}

impl Names {
    /// Whether this claim, `<id>|<pod>`, is that of this instance, `<pod>.<number>`.
    fn is_of(&self, claim: &str, instance: &str) -> bool {
        let (_, pod) = claim.split_once('|').unwrap();
        let Some((pod, epoch)) = pod.split_once('#') else {
            return instance == format!("foreign-{pod}");
        };
        if let Some(said) = self.epochs.get(instance) {
            return said == epoch;
        }
        // it was killed before it could say so
        let of_pod = instance.split_once('.').is_some_and(|(of, _)| of == pod);
        of_pod && self.epochs.values().all(|said| said != epoch)
    }
}
