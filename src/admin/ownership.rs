//! Who owns what, for whoever is no member.

use std::{collections::BTreeMap, time::Duration};

use redis::Value;

use crate::{
    Admin, Error, Instances, Member, Ownership, Result, Standing,
    error::ErrorKind,
    net::{Connection, Deadline},
    wire::{Claimant, Keys, PRESENCE, check_consumer, check_topic, topic::TopicRecord},
};

use super::{Shared, TIMEOUT};

impl Admin {
    /// Who owns the partitions of a consumer right now, as its claims say. Changes nothing. Blocks for up to
    /// 30 s, usually for a few round trips.
    ///
    /// # Errors
    ///
    /// A server that cannot be reached or refuses.
    pub fn ownership(
        &self,
        topic: impl AsRef<str>,
        consumer: impl AsRef<str>,
    ) -> Result<Ownership> {
        let (topic, consumer) = (topic.as_ref(), consumer.as_ref());
        check_topic(topic)?;
        check_consumer(consumer)?;
        let by = Deadline::after(TIMEOUT);
        let Shared { keys, .. } = &*self.shared;
        let mut c = self.shared.connect(by)?;
        let claims = claims(&mut c, keys, topic, consumer, by)?;
        let mut cmd = redis::cmd("HMGET");
        cmd.arg(keys.topic_meta(topic)).arg(&TopicRecord::FIELDS);
        let record = c.ask_fields(&cmd, TopicRecord::FIELDS.len(), by.left())?;
        let record = TopicRecord::parse([
            record[0].as_deref(),
            record[1].as_deref(),
            record[2].as_deref(),
        ]);

        let (topic, consumer) = (topic.into(), consumer.into());
        let mut seen = Ownership::unseen(&topic, &consumer, Instances::Lease, None, Duration::ZERO);
        seen.standing = Standing::Holding;
        let mut owners = BTreeMap::new();
        for (field, value) in &claims {
            let member = Member::from(&Claimant::read(value.as_bytes()));
            if field.starts_with(PRESENCE) {
                seen.members.push(member);
            } else if let Ok(p) = field.parse::<u32>() {
                owners.insert(p, member);
            }
        }
        let claimed = owners.keys().last().map_or(0, |p| p + 1);
        let n = record.partitions.unwrap_or(claimed).max(claimed);
        seen.owners = (0..n).map(|p| owners.remove(&p)).collect();
        Ok(seen)
    }
}

/// The claims and signs of life of a consumer that have not ended: field and value.
pub(super) fn claims(
    c: &mut Connection,
    keys: &Keys,
    topic: &str,
    consumer: &str,
    by: Deadline,
) -> Result<BTreeMap<String, String>> {
    let mut fields = redis::cmd("HGETALL");
    fields.arg(keys.ownership(topic, consumer));
    // Where hash fields do not expire by themselves, a set beside them says when they do.
    let mut ends = redis::cmd("ZRANGE");
    ends.arg(keys.expiries(topic, consumer));
    ends.arg(0).arg(-1).arg("WITHSCORES");
    let mut answers = Vec::with_capacity(3);
    for answer in c.pipeline(&[fields, ends, redis::cmd("TIME")], by.left())? {
        answers.push(texts(answer?)?);
    }
    let now: f64 = match &answers[2][..] {
        [seconds, micros] => {
            let number = |text: &str| text.parse::<f64>().unwrap_or(0.0);
            number(seconds) * 1000.0 + number(micros) / 1000.0
        }
        _ => 0.0,
    };
    let over = |field: &str| {
        let mut ends = answers[1].chunks_exact(2);
        let end = ends.find(|pair| pair[0] == field);
        end.and_then(|pair| pair[1].parse::<f64>().ok())
            .is_some_and(|end| end <= now)
    };
    let all = answers[0].chunks_exact(2);
    let live = all.filter(|pair| !over(&pair[0]));
    Ok(live
        .map(|pair| (pair[0].clone(), pair[1].clone()))
        .collect())
}

fn texts(answer: Value) -> Result<Vec<String>> {
    match answer {
        Value::Array(items) => items
            .into_iter()
            .map(|item| match item {
                Value::BulkString(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
                Value::SimpleString(text) => Ok(text),
                Value::Double(n) => Ok(n.to_string()),
                Value::Int(n) => Ok(n.to_string()),
                _ => Err(not_texts()),
            })
            .collect(),
        _ => Err(not_texts()),
    }
}

fn not_texts() -> Error {
    let what = "the answer is no list of texts";
    Error::new(ErrorKind::Protocol, "read claims", what)
}
