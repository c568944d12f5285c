//! Which partitions are whose where instances are numbered: arithmetic, the same in every instance. No
//! clock, no server.

use std::{
    fmt::{self, Write as _},
    ops::Range,
};

use log::Level;

/// How many instances the environment says there are.
pub(super) const COUNT: &str = "STREAMS_INSTANCE_COUNT";
/// Which of them the environment says this one is.
const INDEX: &str = "STREAMS_INSTANCE_INDEX";

/// Which of how many instances this one is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    index: u32,
    count: u32,
    pod: Option<String>,
}

/// Something that people should know, and how much it matters.
pub(crate) type Remark = (Level, String);

impl Place {
    /// What the settings say goes before the environment, and that before the number at the end of the
    /// pod's name. Settings that contradict one another were refused when they were checked; an environment
    /// that contradicts itself costs remarks.
    pub(crate) fn find(
        count: Option<u32>,
        index: Option<u32>,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> (Self, Vec<Remark>) {
        let mut remarks = Vec::new();
        let set = |name: &str| {
            let text = lookup(name)?.trim().to_owned();
            (!text.is_empty()).then_some(text)
        };
        let mut from_env = |name: &str, least: u32| {
            let text = set(name)?;
            let value = digits(&text).filter(|n| *n >= least);
            if value.is_none() {
                let what = format!(
                    "{name} is {text:?}, and not a whole number from {least}: as if it were not set"
                );
                remarks.push((Level::Warn, what));
            }
            value
        };
        let count = count.or_else(|| from_env(COUNT, 1)).unwrap_or(1);
        let index = index.or_else(|| from_env(INDEX, 0));
        let pod = set("POD_NAME");
        let index = index.unwrap_or_else(|| match pod.as_deref() {
            Some(pod) => ordinal(pod).unwrap_or_else(|| {
                let what = format!(
                    "the pod's name {pod:?} ends in no number, and neither Instances:Index nor {INDEX} is \
                     set: this is taken for instance 0"
                );
                remarks.push((Level::Info, what));
                0
            }),
            None => 0,
        });
        (Self { index, count, pod }, remarks)
    }

    /// The partitions that this instance owns of so many.
    pub(crate) fn range(&self, partitions: u32) -> Range<u32> {
        if self.index >= self.count {
            return partitions..partitions;
        }
        let (each, over) = (partitions / self.count, partitions % self.count);
        let start = self.index * each + self.index.min(over);
        start..start + each + u32::from(self.index < over)
    }

    /// Which instance owns this one of so many partitions.
    fn owner(&self, partition: u32, partitions: u32) -> u32 {
        let (each, over) = (partitions / self.count, partitions % self.count);
        let by_the_greater = (each + 1) * over;
        if partition < by_the_greater {
            partition / (each + 1)
        } else {
            over + (partition - by_the_greater) / each
        }
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// What is odd about this place among so many partitions.
    pub(super) fn oddities(&self, partitions: u32) -> Vec<Remark> {
        let (index, count) = (self.index, self.count);
        let mut remarks = Vec::new();
        if index >= count {
            let what = format!(
                "instance {index} is none of {count}, which are numbered from 0, and owns NOTHING: set \
                 Instances:Count or {COUNT} to the number of instances that run"
            );
            remarks.push((Level::Error, what));
        }
        if partitions < count {
            let what = format!(
                "there are {partitions} partitions for {count} instances: those numbered from {partitions} \
                 on own nothing"
            );
            remarks.push((Level::Warn, what));
        }
        remarks
    }

    /// The ownership of so many partitions as it is meant to be, in one line.
    pub(crate) fn line(&self, partitions: u32) -> String {
        let own: Vec<u32> = self.range(partitions).collect();
        let mut line = format!(
            "instance {}/{} (pod {}) owns partitions [{}] of {partitions} | full map:",
            self.index,
            self.count,
            self.pod.as_deref().unwrap_or("unknown"),
            Each(&own)
        );
        for p in 0..partitions {
            let _ = write!(line, " {p}->{}", self.name(self.owner(p, partitions)));
        }
        line
    }

    /// What another instance is called, going by what this one is called.
    fn name(&self, index: u32) -> String {
        match self.pod.as_deref() {
            // A name with another number in it says nothing of the others'.
            Some(pod) if ordinal(pod) == Some(self.index) => {
                let stem = pod.trim_end_matches(|c: char| c.is_ascii_digit());
                format!("{stem}{index}")
            }
            Some(pod) if index == self.index => pod.to_owned(),
            _ => format!("i{index}"),
        }
    }
}

/// The number at the end of a pod's name, as a `StatefulSet` gives it: `svc-3`.
fn ordinal(pod: &str) -> Option<u32> {
    let (stem, number) = pod.rsplit_once('-')?;
    digits(number).filter(|_| !stem.is_empty())
}

/// A number without sign or blanks.
fn digits(text: &str) -> Option<u32> {
    let plain = text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| plain)
}

/// Partitions, one by one: `0,1,2,3`.
pub(super) struct Each<'a>(pub(super) &'a [u32]);

impl fmt::Display for Each<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, p) in self.0.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            write!(f, "{comma}{p}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(index: u32, count: u32, pod: Option<&str>) -> Place {
        Place {
            index,
            count,
            pod: pod.map(str::to_owned),
        }
    }

    #[test]
    fn ranges_cover_every_partition_once_and_evenly() {
        for (partitions, count) in [
            (1, 1),
            (8, 1),
            (8, 4),
            (8, 3),
            (4, 2),
            (5, 2),
            (2, 4),
            (65_536, 7),
            (3, u32::MAX),
        ] {
            let mut next = 0;
            let mut sizes = Vec::new();
            for i in 0..count.min(partitions + 2) {
                let me = place(i, count, None);
                let range = me.range(partitions);
                assert_eq!(range.start, next, "{i}/{count} of {partitions}");
                next = range.end;
                sizes.push(range.len());
                for p in range {
                    assert_eq!(me.owner(p, partitions), i, "{p} of {partitions}/{count}");
                }
            }
            assert_eq!(next, partitions);
            let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
            assert!(most - least <= 1, "{sizes:?}");
        }
        let of = |i, count, n| place(i, count, None).range(n).collect::<Vec<_>>();
        assert_eq!([of(0, 2, 4), of(1, 2, 4)], [[0, 1], [2, 3]]);
        assert_eq!((of(0, 2, 5), of(1, 2, 5)), (vec![0, 1, 2], vec![3, 4]));
    }

    #[test]
    fn the_line_names_the_others_after_this_one() {
        for (place, partitions, line) in [
            (
                place(0, 2, Some("svc-0")),
                4,
                "instance 0/2 (pod svc-0) owns partitions [0,1] of 4 | full map: 0->svc-0 1->svc-0 \
                 2->svc-1 3->svc-1",
            ),
            (
                place(1, 2, Some("a-7d4f8b-x2k9p")),
                2,
                "instance 1/2 (pod a-7d4f8b-x2k9p) owns partitions [1] of 2 | full map: 0->i0 \
                 1->a-7d4f8b-x2k9p",
            ),
            (
                place(0, 3, Some("svc-5")),
                3,
                "instance 0/3 (pod svc-5) owns partitions [0] of 3 | full map: 0->svc-5 1->i1 2->i2",
            ),
            (
                place(2, 2, None),
                2,
                "instance 2/2 (pod unknown) owns partitions [] of 2 | full map: 0->i0 1->i1",
            ),
            (
                place(3, 4, Some("svc--3")),
                2,
                "instance 3/4 (pod svc--3) owns partitions [] of 2 | full map: 0->svc--0 1->svc--1",
            ),
        ] {
            assert_eq!(place.line(partitions), line);
        }
    }

    #[test]
    fn a_statefulset_numbers_its_pods() {
        for (pod, number) in [
            ("svc-0", Some(0)),
            ("svc-12", Some(12)),
            ("bet-processing-3", Some(3)),
            ("svc--3", Some(3)),
            ("svc-abc", None),
            ("", None),
            ("  ", None),
            ("svc", None),
            ("-0", None),
            ("svc-", None),
            ("svc-7d4f8b-x2k9p", None),
            ("svc- 3", None),
            ("svc-+3", None),
            ("svc-99999999999", None),
        ] {
            assert_eq!(ordinal(pod), number, "{pod:?}");
        }
    }

    #[test]
    fn settings_go_before_the_environment_and_that_before_the_name() {
        type Env<'a> = &'a [(&'a str, &'a str)];
        let all: Env<'_> = &[(COUNT, " 5 "), (INDEX, "\t3\n"), ("POD_NAME", " svc-4 ")];
        let malformed: Env<'_> = &[(COUNT, "-2"), (INDEX, "+1"), ("POD_NAME", "svc-2")];
        for (count, index, env, found, levels) in [
            (Some(9), Some(8), all, (8, 9), vec![]),
            (None, Some(1), all, (1, 5), vec![]),
            (Some(7), None, all, (3, 7), vec![]),
            (None, None, all, (3, 5), vec![]),
            (None, None, &all[2..], (4, 1), vec![]),
            (None, None, &[], (0, 1), vec![]),
            (None, None, &[(COUNT, " "), (INDEX, "")], (0, 1), vec![]),
            (None, None, malformed, (2, 1), vec![Level::Warn; 2]),
            (None, None, &[(COUNT, "0")], (0, 1), vec![Level::Warn]),
            (
                None,
                None,
                &[(COUNT, "nonsense"), ("POD_NAME", "svc-x")],
                (0, 1),
                vec![Level::Warn, Level::Info],
            ),
            (
                None,
                None,
                &[(COUNT, "2"), ("POD_NAME", "svc-5")],
                (5, 2),
                vec![],
            ),
        ] {
            let lookup = |name: &str| {
                let value = env.iter().find(|(n, _)| *n == name);
                value.map(|(_, v)| (*v).to_owned())
            };
            let (place, remarks) = Place::find(count, index, lookup);
            assert_eq!((place.index, place.count), found, "{env:?}");
            let told: Vec<_> = remarks.iter().map(|(level, _)| *level).collect();
            assert_eq!(told, levels, "{remarks:?}");
        }
    }

    #[test]
    fn who_can_own_nothing_says_so() {
        let levels = |p: &Place, n| -> Vec<_> { p.oddities(n).iter().map(|r| r.0).collect() };
        assert!(levels(&place(1, 2, None), 2).is_empty());
        assert_eq!(levels(&place(0, 3, None), 2), [Level::Warn]);
        let stray = place(5, 2, Some("svc-5"));
        assert!(stray.range(8).is_empty());
        assert_eq!(levels(&stray, 8), [Level::Error]);
        assert!(stray.oddities(8)[0].1.contains(COUNT));
    }
}
