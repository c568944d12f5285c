//! `streamlane ownership`: who has which partition.

use serde::Serialize;
use streamlane::Member;

use crate::{
    end::{End, Result},
    open::Global,
    out::{Out, Table, shown},
};

/// Show who owns the partitions of a consumer
///
///   streamlane ownership orders billing
///
/// Status 1 when no instance is there, or when a partition is nobody's while
/// others have owners. Members of a work queue own nothing, which is right.
///
/// With --json an object with "topic", "consumer", "whole" (whether each
/// partition has an owner), "partitions" (each with "partition" and "owner", an
/// object of "instance", "pod" and "epoch", or null) and "members".
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Ownership {
    /// The topic
    topic: String,
    /// The consumer
    consumer: String,
}

#[derive(Serialize)]
struct Shown {
    topic: String,
    consumer: String,
    whole: bool,
    partitions: Vec<Partition>,
    members: Vec<Instance>,
}

#[derive(Serialize)]
struct Partition {
    partition: usize,
    owner: Option<Instance>,
}

#[derive(Serialize)]
#[expect(clippy::struct_field_names, reason = "as the documentation calls them")]
struct Instance {
    instance: String,
    pod: String,
    epoch: String,
}

impl From<&Member> for Instance {
    fn from(m: &Member) -> Self {
        Self {
            instance: m.instance.clone(),
            pod: m.pod.clone(),
            epoch: m.epoch.clone(),
        }
    }
}

impl Ownership {
    pub(crate) fn run(&self, global: &Global) -> Result {
        let map = global.admin()?.ownership(&self.topic, &self.consumer)?;
        let owned = map.owners.iter().flatten().count();
        let well = judge(owned, map.owners.len(), map.members.len());
        let shown = Shown {
            topic: self.topic.clone(),
            consumer: self.consumer.clone(),
            whole: map.is_whole() && owned > 0,
            partitions: (map.owners.iter().enumerate())
                .map(|(partition, owner)| Partition {
                    partition,
                    owner: owner.as_ref().map(Instance::from),
                })
                .collect(),
            members: map.members.iter().map(Instance::from).collect(),
        };
        let mut out = Out::of(global);
        out.object(&shown)?;
        if !out.is_json() {
            let people: Vec<_> = shown.partitions.iter().map(row).collect();
            out.raw(
                Table::rows(&[">partition", "owner", "instance", "epoch"], people)
                    .to_string()
                    .as_bytes(),
            )?;
            let names: Vec<_> = map
                .members
                .iter()
                .map(|m| crate::out::shown(m.to_string().as_bytes()))
                .collect();
            out.line(format_args!(
                "{} instance(s): {}",
                names.len(),
                names.join(", ")
            ))?;
        }
        out.flush()?;
        Ok(End::well(well))
    }
}

fn judge(owned: usize, partitions: usize, members: usize) -> bool {
    let whole = owned == partitions || owned == 0;
    whole && partitions > 0 && owned + members > 0
}

fn row(p: &Partition) -> Vec<String> {
    let of = |f: fn(&Instance) -> &String| {
        p.owner
            .as_ref()
            .map_or(String::new(), |o| shown(f(o).as_bytes()))
    };
    let pod = match &p.owner {
        None => "nobody".into(),
        Some(_) => of(|o| &o.pod),
    };
    vec![
        p.partition.to_string(),
        pod,
        of(|o| &o.instance),
        of(|o| &o.epoch),
    ]
}

#[cfg(test)]
mod tests {
    use super::judge;

    #[test]
    fn what_is_owned_in_part_or_by_nobody_is_wrong() {
        for (owned, partitions, members, well) in [
            (4, 4, 2, true),
            (4, 4, 0, true), // claims of others, which show no presence
            (3, 4, 2, false),
            (0, 4, 2, true), // a work queue
            (0, 4, 0, false),
            (0, 0, 0, false),
        ] {
            assert_eq!(
                judge(owned, partitions, members),
                well,
                "{owned} {partitions} {members}"
            );
        }
    }
}
