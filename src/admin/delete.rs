//! Deleting a topic: exactly what belongs to it, in small steps, and not while somebody uses it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use redis::Value;

use crate::{
    Admin, Error, Result,
    consume::Extent,
    error::ErrorKind,
    net::{Connection, Deadline},
    queue::is_ours,
    wire::{KeyName, KeyRow, KeyUse, Keys, Owner, PRESENCE, check_topic, escaped},
};

use super::{
    Shared, TIMEOUT,
    groups::{Group, MOST_MEMBERS, groups_of, members_of},
    layout::Layout,
    ownership::claims,
    sweep::sweep,
    topics::WINDOW,
};

/// A member of a group that has given no sign of life for so long is taken for dead. Of this library's own members
/// their claims tell.
const ALIVE: Duration = Duration::from_mins(1);
/// How many keys are deleted by one round trip.
const AT_ONCE: usize = 100;

impl Admin {
    /// Begins to describe how a topic is to be deleted: its streams and all that belongs to it and to its
    /// consumers. Nothing is done before [`preview`](DeleteTopic::preview) or [`apply`](DeleteTopic::apply).
    ///
    /// ```no_run
    /// use streamlane::Streams;
    ///
    /// # fn main() -> Result<(), streamlane::Error> {
    /// # let streams = Streams::connect("redis://127.0.0.1:6379")?;
    /// let delete = streams.admin().delete("orders");
    /// println!("{}", delete.preview()?); // what would go, what would stay, and who is in the way
    /// let keys = delete.apply()?;
    /// println!("{keys} keys deleted");
    /// # Ok(()) }
    /// ```
    pub fn delete(&self, topic: impl Into<String>) -> DeleteTopic {
        DeleteTopic {
            shared: Arc::clone(&self.shared),
            topic: topic.into(),
            dead_letters: false,
            force: false,
            timeout: TIMEOUT,
        }
    }
}

/// Deletes a topic; see [`Admin::delete`].
///
/// What belongs to a topic is found by the names of its keys, so all keys of the server are looked through, in small
/// steps with pauses between them. Each is deleted by an `UNLINK` of its own, whose memory the server frees beside its
/// work. Should that be interrupted, it may be done again.
///
/// *Stop who publishes to the topic and who reads it first.* Publishers are not seen, and whoever runs on makes the
/// topic anew, with what it knows of it.
#[derive(Clone)]
#[must_use = "nothing is done before `preview` or `apply`"]
pub struct DeleteTopic {
    shared: Arc<Shared>,
    topic: String,
    dead_letters: bool,
    force: bool,
    timeout: Duration,
}

/// What deleting a topic would do, as of one moment. Displayed, it is some lines, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeletePreview {
    /// The topic.
    pub topic: String,
    /// How many partitions it has; 0 when there is no such topic.
    pub partitions: u32,
    /// How many entries these hold.
    pub entries: u64,
    /// How many of them groups have given out and do not have back.
    pub pending: u64,
    /// How many keys of each kind would be deleted, by the names that the page about keys has for them.
    pub deleted: Vec<(String, u64)>,
    /// The same of what would stay: dead letters, unless they are asked for, and what is yours.
    pub kept: Vec<(String, u64)>,
    /// Who reads the topic right now, as `consumer: member`: without [`force`](DeleteTopic::force) nothing is
    /// deleted.
    pub alive: Vec<String>,
}

impl DeletePreview {
    /// How many keys would be deleted. The place of the topic on the list of topics is none.
    pub fn keys(&self) -> u64 {
        self.deleted.iter().map(|(_, n)| n).sum()
    }
}

impl fmt::Display for DeletePreview {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            topic,
            partitions,
            entries,
            pending,
            ..
        } = self;
        write!(
            f,
            "delete {topic}  {partitions} partitions, {entries} entries, {pending} pending, {} keys",
            self.keys()
        )?;
        for (kind, n) in &self.deleted {
            write!(f, "\n  {kind}  {n}")?;
        }
        for (kind, n) in &self.kept {
            write!(f, "\n  kept: {kind}  {n}")?;
        }
        for who in &self.alive {
            write!(f, "\nWarning: in use by {who}")?;
        }
        Ok(())
    }
}

/// What was found of a topic.
struct Found {
    layout: Layout,
    /// How many keys of each use.
    keys: BTreeMap<KeyUse, u64>,
    entries: u64,
    pending: u64,
    alive: Vec<String>,
}

impl DeleteTopic {
    /// Deletes the dead letters of all its consumers, too (default: they are kept).
    pub fn dead_letters(mut self) -> Self {
        self.dead_letters = true;
        self
    }

    /// Deletes it even while it is read. Who reads it makes it anew, or fails.
    pub fn force(mut self) -> Self {
        self.force = true;
        self
    }

    /// How long each round trip may take (default 30 s).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// What it would do, as of now. Changes nothing. Blocks for as long as it takes to look through the keys of the
    /// server, some seconds for a million.
    ///
    /// # Errors
    ///
    /// A name that no topic can have; a server that cannot be reached or refuses.
    pub fn preview(&self) -> Result<DeletePreview> {
        let mut c = self.connect()?;
        let found = self.look(&mut c).map_err(failed)?;
        let (mut deleted, mut kept) = (Vec::new(), Vec::new());
        for (of, n) in found.keys {
            let kind = KeyRow::about(of).pattern();
            let goes = self.deletes(of);
            if goes { &mut deleted } else { &mut kept }.push((kind, n));
        }
        Ok(DeletePreview {
            topic: self.topic.clone(),
            partitions: found.layout.partitions,
            entries: found.entries,
            pending: found.pending,
            deleted,
            kept,
            alive: found.alive,
        })
    }

    /// Does it. Returns how many keys were deleted. Blocks for about twice as long as [`preview`](Self::preview).
    ///
    /// # Errors
    ///
    /// As [`preview`](Self::preview); [`ErrorKind::Argument`] while somebody reads the topic, unless
    /// [forced](Self::force). After an error some may be deleted. It may be done again.
    pub fn apply(&self) -> Result<u64> {
        let mut c = self.connect()?;
        let found = self.look(&mut c).map_err(failed)?;
        if !self.force && !found.alive.is_empty() {
            let (topic, alive) = (&self.topic, found.alive.join(", "));
            let what = format!(
                "topic {topic:?} is in use by {alive}: stop them and try again when their claims have run out, or \
                 force it"
            );
            return Err(Error::new(ErrorKind::Argument, "delete a topic", what));
        }
        let deleted = self.sweep_away(&mut c, &found.layout);
        let n = deleted.map_err(failed)?;
        let topic = &self.topic;
        log::warn!(
            "topic {topic}: deleted as asked for, {n} keys with {} entries",
            found.entries
        );
        Ok(n)
    }

    fn connect(&self) -> Result<Connection> {
        check_topic(&self.topic)?;
        let by = Deadline::after(self.timeout);
        self.shared.connect(by).map_err(failed)
    }

    /// Whether keys of this use go with the topic.
    fn deletes(&self, of: KeyUse) -> bool {
        let is_letters = matches!(of, KeyUse::DeadLetters | KeyUse::DeadLettersMeta);
        match KeyRow::about(of).owner {
            Owner::Topic | Owner::Place | Owner::Consumer => self.dead_letters || !is_letters,
            Owner::Prefix | Owner::User => false,
        }
    }

    /// Hands the keys to `take` whose names say that they are of this topic, and what else they say.
    fn sweep(
        &self,
        c: &mut Connection,
        layout: &Layout,
        mut take: impl FnMut(&mut Connection, Vec<(KeyName<'_>, &[u8])>) -> Result<()>,
    ) -> Result<()> {
        let Shared { keys, .. } = &*self.shared;
        let (prefix, topic) = (escaped(keys.prefix()), escaped(&self.topic));
        let together = format!("{prefix}*{{{topic}}}*");
        let spread = format!("{prefix}*s:{topic}:*");
        let patterns = [Some(together), (!layout.co_located).then_some(spread)];
        for pattern in patterns.into_iter().flatten() {
            sweep(c, &pattern, self.timeout, |c, found| {
                let ours = |key| of_topic(keys, &self.topic, key).map(|name| (name, key));
                let ours: Vec<_> = found.iter().filter_map(|key| ours(&**key)).collect();
                if ours.is_empty() {
                    return Ok(());
                }
                take(c, ours)
            })?;
        }
        Ok(())
    }

    fn look(&self, c: &mut Connection) -> Result<Found> {
        let Shared { keys, .. } = &*self.shared;
        let topic = &self.topic;
        let by = || Deadline::after(self.timeout);
        let layout = self.shared.layout(c, topic, by())?;
        let mut found = Found {
            keys: BTreeMap::new(),
            entries: 0,
            pending: 0,
            alive: Vec::new(),
            layout,
        };
        let mut claiming = BTreeSet::new();
        self.sweep(c, &found.layout, |_, ours| {
            for (name, _) in ours {
                *found.keys.entry(name.of).or_default() += 1;
                if name.of == KeyUse::Claims {
                    claiming.insert(name.consumer.to_owned());
                }
            }
            Ok(())
        })?;
        for consumer in &claiming {
            let claims = claims(c, keys, topic, consumer, by())?;
            let signs = claims.iter().filter(|(field, _)| {
                field.starts_with(PRESENCE) || field.bytes().all(|b| b.is_ascii_digit())
            });
            let members: BTreeSet<&String> = signs.map(|(_, value)| value).collect();
            let told = members.iter().map(|member| format!("{consumer}: {member}"));
            found.alive.extend(told);
        }
        let streams = self.shared.streams(topic, &found.layout);
        for window in streams.chunks(WINDOW) {
            for stream in Extent::of_all(c, window, by().left())? {
                found.entries += stream.unwrap_or_default().length();
            }
            for (stream, groups) in window.iter().zip(groups_of(c, window, by())?) {
                for group in groups {
                    found.pending += group.pending;
                    if group.members > 0 {
                        found.alive.extend(alive(c, stream, &group, by())?);
                    }
                }
            }
        }
        found.alive.sort_unstable();
        found.alive.dedup();
        Ok(found)
    }

    /// Deletes what belongs to the topic: its record last, so that it can be done again.
    fn sweep_away(&self, c: &mut Connection, layout: &Layout) -> Result<u64> {
        let Shared { keys, .. } = &*self.shared;
        let mut n = 0;
        self.sweep(c, layout, |c, ours| {
            let goes = |of| self.deletes(of) && !matches!(of, KeyUse::TopicMeta);
            let ours = ours.iter().filter(|(name, _)| goes(name.of));
            let ours: Vec<_> = ours.map(|(_, key)| *key).collect();
            for some in ours.chunks(AT_ONCE) {
                n += unlink(c, some, self.timeout)?;
            }
            Ok(())
        })?;
        let meta = keys.topic_meta(&self.topic);
        n += unlink(c, &[meta.as_bytes()], self.timeout)?;
        let mut cmd = redis::cmd("ZREM");
        cmd.arg(keys.topics()).arg(&self.topic);
        c.call(&cmd, self.timeout)?;
        Ok(n)
    }
}

fn failed(e: Error) -> Error {
    e.during("delete a topic")
}

/// What the name of a key says, if it is one of this topic.
fn of_topic<'a>(keys: &Keys, topic: &str, key: &'a [u8]) -> Option<KeyName<'a>> {
    let name = keys.read(key)?;
    let is_of_topics = !matches!(name.of, KeyUse::Dedupe | KeyUse::Topics);
    (is_of_topics && name.topic == topic).then_some(name)
}

/// Who reads a stream in this group of other implementations: of our own members their claims tell.
fn alive(c: &mut Connection, stream: &str, group: &Group, by: Deadline) -> Result<Vec<String>> {
    let Group { name, members, .. } = group;
    if *members > MOST_MEMBERS {
        return Ok(vec![format!(
            "{name}: {members} members, too many to look at"
        )]);
    }
    let members = members_of(c, stream, name, by)?.into_iter();
    let lives = members.filter(|m| m.idle < ALIVE && !is_ours(&m.name));
    Ok(lives.map(|m| format!("{name}: {}", m.name)).collect())
}

/// Deletes each of these keys by itself, in one round trip. Says how many there were.
fn unlink(c: &mut Connection, keys: &[&[u8]], timeout: Duration) -> Result<u64> {
    let unlink = |key: &&[u8]| {
        let mut cmd = redis::cmd("UNLINK");
        cmd.arg(*key);
        cmd
    };
    let cmds: Vec<_> = keys.iter().map(unlink).collect();
    let mut n = 0;
    for answer in c.pipeline(&cmds, timeout)? {
        n += u64::from(answer? == Value::Int(1));
    }
    Ok(n)
}

impl fmt::Debug for DeleteTopic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeleteTopic")
            .field("topic", &self.topic)
            .field("dead_letters", &self.dead_letters)
            .field("force", &self.force)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_keys_of_the_topic_itself_are_its_keys() {
        let keys = Keys::default();
        let ours = |key: &str| of_topic(&keys, "orders", key.as_bytes()).is_some();
        for key in [
            "re:s:{orders}:0",
            "re:s:orders:0",
            "re:x:{orders}:00ff",
            "re:x:{re:s:orders:7}:00ff",
            "re:{orders}:state:x",
        ] {
            assert!(ours(key), "{key}");
        }
        for key in [
            "re:s:{orders2}:0",
            "re:s:orders:2:0",
            "re:s:my:orders:0",
            "re:x:{re:s:my:orders:7}:00ff",
            "re:x:{a}:{orders}",
            "re:dedupe:{orders}:1",
            "re:{a}:state:{orders}",
            "re:{orders}:view:o:v",
            "x:s:{orders}:0",
            "re:topics",
        ] {
            assert!(!ours(key), "{key}");
        }
    }

    #[test]
    fn a_preview_reads_line_by_line() {
        let preview = DeletePreview {
            topic: "orders".into(),
            partitions: 2,
            entries: 30,
            pending: 1,
            deleted: vec![("m:{T}".into(), 1), ("s:{T}:p".into(), 2)],
            kept: vec![("d:{T}:C".into(), 1)],
            alive: vec!["billing: 1b3a|svc-0".into()],
        };
        assert_eq!(
            preview.to_string(),
            "delete orders  2 partitions, 30 entries, 1 pending, 3 keys\n\
             \x20 m:{T}  1\n  s:{T}:p  2\n  kept: d:{T}:C  1\n\
             Warning: in use by billing: 1b3a|svc-0"
        );
    }
}
