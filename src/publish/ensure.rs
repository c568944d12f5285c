//! Making sure that a topic exists as it is configured.

use std::time::Duration;

use crate::{
    Result, TopicSettings,
    clock::{self, RoundTrip},
    net::{Connection, Deadline},
    wire::{
        InstanceId, Keys,
        topic::{self, Decision, TopicRecord, check_partitioner, decide, field},
    },
};

/// The stream key of each partition of a topic.
pub(crate) type StreamKeys = Vec<Box<[u8]>>;

/// On whose behalf a topic is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// It routes by key, so it must agree with the topic about how.
    Publisher,
    /// It takes what it finds.
    Consumer,
}

/// Creates the topic's metadata and streams where they are missing, and checks them against what is
/// configured. Several processes may do so at once.
///
/// # Errors
///
/// A configured number of partitions below the recorded one, for a publisher a partitioner other than the
/// recorded one, an unknown codec version, or a server that cannot be reached or refuses.
pub(crate) fn ensure(
    connection: &mut Connection,
    keys: &Keys,
    name: &str,
    settings: &TopicSettings,
    role: Role,
    by: Deadline,
) -> Result<StreamKeys> {
    let meta = keys.topic_meta(name);
    let mut record = read(connection, &meta, by.left())?;
    if record.partitions.is_none() || record.version.is_none() {
        let partitions = decide(name, settings.partitions, &record)?.partitions();
        create(connection, &meta, partitions, settings, by.left())?;
        // Somebody else may have been first.
        record = read(connection, &meta, by.left())?;
    }
    if role == Role::Publisher {
        check_partitioner(name, &settings.partitioner, &record)?;
    }
    let decision = decide(name, settings.partitions, &record)?;
    let streams: StreamKeys = (0..decision.partitions())
        .map(|p| {
            keys.stream(name, p, settings.co_locate_partitions)
                .into_bytes()
                .into()
        })
        .collect();
    create_streams(connection, &streams, by)?;
    if let Decision::Grow { from, to } = decision {
        log::warn!(
            "topic {name}: partition count increased from {from} to {to}; the ordering of keys \
             that move to another partition is not kept across the change, and consumers that run already \
             read only the old partitions until they are restarted"
        );
        let mut cmd = redis::cmd("HSET");
        cmd.arg(&meta).arg(field::PARTITIONS).arg(to);
        connection.call(&cmd, by.left())?;
    }
    Ok(streams)
}

fn read(connection: &mut Connection, meta: &str, timeout: Duration) -> Result<TopicRecord> {
    let mut cmd = redis::cmd("HMGET");
    cmd.arg(meta).arg(&TopicRecord::FIELDS);
    let values = connection.ask_fields(&cmd, TopicRecord::FIELDS.len(), timeout)?;
    let get = |i: usize| values[i].as_deref();
    Ok(TopicRecord::parse([get(0), get(1), get(2)]))
}

fn create(
    connection: &mut Connection,
    meta: &str,
    partitions: u32,
    settings: &TopicSettings,
    timeout: Duration,
) -> Result<()> {
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
            cmd.arg(meta).arg(field).arg(value);
            cmd
        })
        .collect();
    connection
        .pipeline(&cmds, timeout)?
        .into_iter()
        .try_for_each(|r| r.map(drop))
}

/// A stream exists once a group was made on it. The group itself is not wanted.
fn create_streams(connection: &mut Connection, streams: &[Box<[u8]>], by: Deadline) -> Result<()> {
    let exists: Vec<_> = streams
        .iter()
        .map(|key| {
            let mut cmd = redis::cmd("EXISTS");
            cmd.arg(&**key);
            cmd
        })
        .collect();
    let exists = connection.pipeline(&exists, by.left())?;
    let group = format!("__streamlane-ensure-{}", InstanceId::random());
    let mut cmds = Vec::new();
    for (key, exists) in streams.iter().zip(exists) {
        if matches!(exists?, redis::Value::Int(1)) {
            continue;
        }
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
