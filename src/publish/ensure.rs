//! Making sure that a topic exists as it is configured.

use std::ops::Range;

use redis::Value;

use crate::{
    Result, TopicSettings,
    clock::{self, RoundTrip},
    error::ServerClass,
    net::{
        Connection, Deadline,
        script::{Script, by_hash_first},
    },
    wire::{
        InstanceId, Keys,
        topic::{self, Decision, TopicRecord, check_partitioner, decide, field},
    },
};

use super::unread;

/// The stream key of each partition of a topic.
pub(crate) type StreamKeys = Vec<Box<[u8]>>;

/// On whose behalf a topic is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role<'a> {
    /// It routes by key, so it must agree with the topic about how.
    Publisher,
    /// The one of this name. It takes what it finds.
    Consumer(&'a str),
    /// Somebody who looks after it, and takes what there is.
    Operator,
}

/// Key: the topic's metadata. Argument: a number of partitions. Records it unless there are as many: two
/// that let a topic grow at the same time must not end with the smaller number.
pub(super) const RAISE: Script = Script {
    text: "#!lua
local n = tonumber(redis.call('HGET', KEYS[1], 'partitions') or '')
if n and n >= tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'partitions', ARGV[1])
return 1",
    sha1: "7b5a0317bf416033c9c01b0af3bc0fd1c4b000da",
    commands: "+eval +evalsha +hget +hset",
};

/// After so many partitions in a row of which there is nothing, there are no more.
const WINDOW: u32 = 64;
/// No topic has more partitions than this, whatever a field says.
pub(super) const MOST_PARTITIONS: u32 = 65_536;

/// A topic, and the settings of whoever looks at it.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) keys: &'a Keys,
    pub(crate) name: &'a str,
    pub(crate) settings: &'a TopicSettings,
}

impl Subject<'_> {
    /// The stream keys of these partitions.
    pub(super) fn streams(&self, partitions: Range<u32>) -> StreamKeys {
        let co_located = self.settings.co_locate_partitions;
        partitions
            .map(|p| {
                let key = self.keys.stream(self.name, p, co_located);
                key.into_bytes().into()
            })
            .collect()
    }

    fn meta(&self) -> String {
        self.keys.topic_meta(self.name)
    }
}

/// Creates the topic's metadata and streams where they are missing, and checks them against what is
/// configured. Several processes may do so at once. Metadata that is gone while partitions are still
/// there is made anew after these, loudly.
///
/// # Errors
///
/// A configured number of partitions below the recorded one, for a publisher a partitioner other than the
/// recorded one, an unknown codec version, or a server that cannot be reached or refuses.
pub(crate) fn ensure(
    connection: &mut Connection,
    topic: Subject<'_>,
    role: Role<'_>,
    by: Deadline,
) -> Result<StreamKeys> {
    let Subject { name, settings, .. } = topic;
    let mut record = read(connection, topic, by)?;
    if record.partitions.is_none() || record.version.is_none() {
        let wanted = decide(name, settings.partitions, &record)?.partitions();
        let mut left = match record.partitions {
            Some(_) => None,
            None => survey(connection, topic, role, by)?,
        };
        if left.is_some() && read(connection, topic, by)?.partitions.is_some() {
            left = None; // what was found is of somebody who made the topic meanwhile
        }
        record = make(connection, topic, left.unwrap_or(wanted), by)?;
        if let Some(n) = left {
            raise(connection, topic, n, by)?;
            record.partitions = record.partitions.max(left);
            log::error!(
                "topic {name}: its metadata was gone; it is made anew with {n} partitions, of which the \
                 highest has left something, and the partitioner {:?}: see what deletes keys \
                 (maxmemory-policy, a TTL, a person)",
                settings.partitioner
            );
        }
    }
    if role == Role::Publisher {
        check_partitioner(name, &settings.partitioner, &record)?;
    }
    let decision = match (settings.partitions, record.partitions) {
        (Some(to), Some(from)) if to < from => {
            let told = unread::tell(connection, topic, role, to..from, by);
            decide(name, Some(to), &record).map_err(|e| {
                let what = format!("{}; {told}", e.message());
                e.saying(what)
            })?
        }
        _ => decide(name, settings.partitions, &record)?,
    };
    let streams = topic.streams(0..decision.partitions());
    create_streams(connection, &streams, by)?;
    if let Decision::Grow { from, to } = decision {
        log::warn!(
            "topic {name}: partition count increased from {from} to {to}; the ordering of keys \
             that move to another partition is not kept across the change. Publishers and consumers that \
             run take up the new partitions within their TopicRefreshMs"
        );
        raise(connection, topic, to, by)?;
    }
    Ok(streams)
}

/// Puts a topic's record right that is gone, or says less than `seen`, while the topic is in use. Returns
/// how many partitions there are.
pub(crate) fn restore(
    connection: &mut Connection,
    topic: Subject<'_>,
    seen: u32,
    by: Deadline,
) -> Result<u32> {
    let found = read(connection, topic, by)?.partitions;
    if let Some(n) = found.filter(|n| *n >= seen) {
        return Ok(n);
    }
    let n = survey(connection, topic, Role::Publisher, by)?;
    let n = n.map_or(seen, |n| n.max(seen));
    make(connection, topic, n, by)?;
    raise(connection, topic, n, by)?;
    let was = match found {
        Some(found) => format!("says {found} partitions"),
        None => "is gone".to_owned(),
    };
    log::error!(
        "topic {}: its metadata {was} while the topic is in use with {seen}; it is set to {n} again: a \
         topic never shrinks, so see what changes or deletes it (maxmemory-policy, a TTL, a person)",
        topic.name
    );
    Ok(n)
}

fn read(connection: &mut Connection, topic: Subject<'_>, by: Deadline) -> Result<TopicRecord> {
    let mut cmd = redis::cmd("HMGET");
    cmd.arg(topic.meta()).arg(&TopicRecord::FIELDS);
    let values = connection.ask_fields(&cmd, TopicRecord::FIELDS.len(), by.left())?;
    let get = |i: usize| values[i].as_deref();
    Ok(TopicRecord::parse([get(0), get(1), get(2)]))
}

/// Records what is not recorded yet, and returns what is then: somebody else may have been first.
fn make(
    connection: &mut Connection,
    topic: Subject<'_>,
    partitions: u32,
    by: Deadline,
) -> Result<TopicRecord> {
    let (meta, settings) = (topic.meta(), topic.settings);
    // The partitioner first: whoever sees how many partitions there are sees it, too.
    let fields = [
        (field::PARTITIONER, settings.partitioner.clone()),
        (field::PARTITIONS, partitions.to_string()),
        (field::VERSION, topic::VERSION.to_string()),
        (field::CREATED, RoundTrip(clock::wall()).to_string()),
        (field::MAX_LEN, settings.max_len.to_string()),
    ];
    let cmds: Vec<_> = fields
        .iter()
        .map(|(field, value)| {
            let mut cmd = redis::cmd("HSETNX");
            cmd.arg(&meta).arg(field).arg(value);
            cmd
        })
        .collect();
    for made in connection.pipeline(&cmds, by.left())? {
        made?;
    }
    read(connection, topic, by)
}

/// Records that there are so many partitions, unless there are more.
fn raise(connection: &mut Connection, topic: Subject<'_>, n: u32, by: Deadline) -> Result<()> {
    let (meta, n) = (topic.meta(), n.to_string());
    let raised = by_hash_first(|form| {
        let cmd = RAISE.on_key(form, meta.as_bytes(), &[n.as_bytes()]);
        connection.ask::<u8>(&cmd, by.left())
    });
    match raised {
        // Without scripts as peers do it: should two collide, the larger number is restored by its watcher.
        Err(e) if e.server_class() == Some(ServerClass::NoPermission) => {
            let mut cmd = redis::cmd("HSET");
            cmd.arg(&meta).arg(field::PARTITIONS).arg(n);
            connection.call(&cmd, by.left()).map(drop)
        }
        raised => raised.map(drop),
    }
}

/// One more than the highest partition of which there is something: its stream, or a position or a claim
/// of the consumer. `None` when there is nothing, as of a topic that never was.
pub(crate) fn survey(
    connection: &mut Connection,
    topic: Subject<'_>,
    role: Role<'_>,
    by: Deadline,
) -> Result<Option<u32>> {
    let mut found = None;
    for first in (0..MOST_PARTITIONS).step_by(WINDOW as usize) {
        let window = topic.streams(first..(first + WINDOW).min(MOST_PARTITIONS));
        let there = exist(connection, &window, by)?;
        let Some(highest) = there.iter().rposition(|there| *there) else {
            break;
        };
        found = Some(first + highest as u32 + 1);
    }
    if let Role::Consumer(consumer) = role {
        let places = [
            topic.keys.positions(topic.name, consumer),
            topic.keys.ownership(topic.name, consumer),
        ];
        for key in places {
            let mut cmd = redis::cmd("HKEYS");
            cmd.arg(key);
            let fields = match connection.ask::<Vec<Vec<u8>>>(&cmd, by.left()) {
                Ok(fields) => fields,
                // What may not be looked at tells nothing.
                Err(e) if e.keeps_connection() => continue,
                Err(e) => return Err(e),
            };
            let highest = fields.iter().filter_map(|f| partition(f)).max();
            found = found.max(highest.map(|p| p + 1));
        }
    }
    Ok(found)
}

/// The partition that a field is about; others have other names.
fn partition(field: &[u8]) -> Option<u32> {
    let digits = field.iter().all(u8::is_ascii_digit);
    let p = str::from_utf8(field).ok()?.parse().ok()?;
    (digits && p < MOST_PARTITIONS).then_some(p)
}

fn exist(connection: &mut Connection, streams: &[Box<[u8]>], by: Deadline) -> Result<Vec<bool>> {
    let cmds: Vec<_> = streams
        .iter()
        .map(|key| {
            let mut cmd = redis::cmd("EXISTS");
            cmd.arg(&**key);
            cmd
        })
        .collect();
    let there = connection.pipeline(&cmds, by.left())?.into_iter();
    there
        .map(|there| Ok(matches!(there?, Value::Int(1))))
        .collect()
}

/// A stream exists once a group was made on it. The group itself is not wanted.
fn create_streams(connection: &mut Connection, streams: &[Box<[u8]>], by: Deadline) -> Result<()> {
    let there = exist(connection, streams, by)?;
    let group = format!("__streamlane-ensure-{}", InstanceId::random());
    let mut cmds = Vec::new();
    for key in streams
        .iter()
        .zip(there)
        .filter_map(|(key, there)| (!there).then_some(key))
    {
        let mut make = redis::cmd("XGROUP");
        make.arg("CREATE")
            .arg(&**key)
            .arg(&group)
            .arg("$")
            .arg("MKSTREAM");
        let mut drop_group = redis::cmd("XGROUP");
        drop_group.arg("DESTROY").arg(&**key).arg(&group);
        cmds.extend([make, drop_group]);
    }
    if cmds.is_empty() {
        return Ok(());
    }
    for made in connection.pipeline(&cmds, by.left())? {
        match made {
            Err(e) if e.server_code() == Some("BUSYGROUP") => {}
            other => drop(other?),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_numbers_name_partitions() {
        for (field, p) in [
            ("0", Some(0)),
            ("12", Some(12)),
            ("65535", Some(65_535)),
            ("65536", None),
            ("99999999999", None),
            ("+1", None),
            (" 1", None),
            ("", None),
            ("i:1b3a45ca", None),
            ("__reset:3", None),
        ] {
            assert_eq!(partition(field.as_bytes()), p, "{field:?}");
        }
    }
}
