//! `streamlane entry`, and entries as they are shown.

use serde_json::{Value, json};
use streamlane::{StoredEntry, StreamId};

use crate::{
    end::{End, Result},
    open::Global,
    out::{Out, shown},
    place::date,
    stderr::say,
    text::{Bytes, insert},
};

/// Show one entry with all it has
///
///   streamlane entry orders 3 1726000000000-0
///
/// Status 1 when there is none.
///
/// With --json an object: "topic", "partition", "id", "at", "type", "key",
/// "correlation_id", "traceparent", "headers" (a list of objects with "name" and
/// "value"), "body" (null when it is kept apart), "apart", "fields" (all there are,
/// as headers are). What is no UTF-8 is told as "body_hex" and the like.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Entry {
    /// The topic
    topic: String,
    /// The partition
    partition: u32,
    /// The entry
    id: StreamId,
}

impl Entry {
    pub(crate) fn run(&self, global: &Global) -> Result {
        let found = global
            .admin()?
            .entry(&self.topic, self.partition, self.id)?;
        let Some(entry) = found else {
            say(format_args!(
                "{}[{}] has no entry at {}",
                self.topic, self.partition, self.id
            ));
            return Ok(End::Wrong);
        };
        let mut out = Out::of(global);
        let mut object = object(&entry);
        let fields = entry.fields.iter().map(|(n, v)| pair(n, v));
        object["fields"] = fields.collect();
        out.object(&object)?;
        out.line(&entry)?;
        out.flush()?;
        Ok(End::Done)
    }
}

/// An entry for programs.
pub(crate) fn object(entry: &StoredEntry) -> Value {
    let mut object = json!({
        "topic": entry.topic,
        "partition": entry.partition,
        "id": entry.id.to_string(),
        "at": date(entry.id.timestamp()),
        "apart": entry.is_apart(),
    });
    for (name, value) in [
        ("type", entry.message_type()),
        ("key", entry.key()),
        ("correlation_id", entry.field(b"c")),
        ("traceparent", entry.field(b"p")),
        ("body", entry.body()),
    ] {
        insert(&mut object, name, value.map(Bytes));
    }
    let headers = entry.headers().iter().flatten();
    object["headers"] = headers.map(|(n, v)| pair(n, v)).collect();
    object
}

fn pair(name: &[u8], value: &[u8]) -> Value {
    let mut pair = json!({});
    insert(&mut pair, "name", Some(Bytes(name)));
    insert(&mut pair, "value", Some(Bytes(value)));
    pair
}

/// An entry for people, on a line.
pub(crate) fn line(entry: &StoredEntry) -> String {
    let text = |bytes: Option<&[u8]>| bytes.map_or("-".into(), shown);
    let body = match entry.body() {
        Some(body) => shown(body),
        None if entry.is_apart() => "(kept apart)".into(),
        None => "(none)".into(),
    };
    format!(
        "{} p{} {} {} {} {body}",
        date(entry.id.timestamp()),
        entry.partition,
        entry.id,
        text(entry.message_type()),
        text(entry.key()),
    )
}
