//! What is on record of a topic, and which streams it has.

use std::time::SystemTime;

use crate::{
    Result, TopicSettings,
    clock::parse_moment,
    net::{Connection, Deadline},
    publish::{Role, Subject, survey},
    wire::topic::{TopicRecord, field},
};

use super::Shared;

/// A topic as it lies on the server.
pub(super) struct Layout {
    /// 0 where there is neither a record nor a stream.
    pub(super) partitions: u32,
    /// Whether the number of partitions is on record; otherwise the streams were counted.
    pub(super) recorded: bool,
    pub(super) co_located: bool,
    pub(super) created: Option<SystemTime>,
    pub(super) partitioner: Option<String>,
    pub(super) max_len: Option<u64>,
}

impl Shared {
    /// Looks a topic up. Blocks for a few round trips.
    pub(super) fn layout(&self, c: &mut Connection, topic: &str, by: Deadline) -> Result<Layout> {
        const FIELDS: [&str; 5] = [
            field::PARTITIONS,
            field::VERSION,
            field::PARTITIONER,
            field::CREATED,
            field::MAX_LEN,
        ];
        let mut cmd = redis::cmd("HMGET");
        cmd.arg(self.keys.topic_meta(topic)).arg(&FIELDS);
        let values = c.ask_fields(&cmd, FIELDS.len(), by.left())?;
        let get = |i: usize| values[i].as_deref();
        let text = |i| str::from_utf8(get(i)?).ok();
        let record = TopicRecord::parse([get(0), get(1), get(2)]);
        let co_located = self.is_co_located(c, topic, by)?;
        let partitions = if let Some(n) = record.partitions {
            n
        } else {
            let settings = TopicSettings::default().co_locate_partitions(co_located);
            let subject = Subject {
                keys: &self.keys,
                name: topic,
                settings: &settings,
            };
            survey(c, subject, Role::Operator, by)?.unwrap_or(0)
        };
        Ok(Layout {
            partitions,
            recorded: record.partitions.is_some(),
            co_located,
            created: text(3).and_then(|t| parse_moment(t).ok()),
            partitioner: record.partitioner.map(String::from),
            max_len: text(4).and_then(|n| n.parse().ok()),
        })
    }

    /// How a topic is laid out: as its streams are, or where there is none, as the settings say.
    pub(super) fn is_co_located(
        &self,
        c: &mut Connection,
        topic: &str,
        by: Deadline,
    ) -> Result<bool> {
        let exists = [true, false].map(|co_located| {
            let mut cmd = redis::cmd("EXISTS");
            cmd.arg(self.keys.stream(topic, 0, co_located));
            cmd
        });
        let mut there = Vec::with_capacity(2);
        for answer in c.pipeline(&exists, by.left())? {
            there.push(matches!(answer?, redis::Value::Int(1)));
        }
        Ok(match there[..] {
            [false, true] => false,
            [false, false] => self.settings.topic(topic).co_locate_partitions,
            _ => true,
        })
    }

    /// The stream keys of a topic's partitions.
    pub(super) fn streams(&self, topic: &str, layout: &Layout) -> Vec<String> {
        let key = |p| self.keys.stream(topic, p, layout.co_located);
        (0..layout.partitions).map(key).collect()
    }
}
