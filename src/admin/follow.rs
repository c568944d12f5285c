//! Reading a topic as it grows, without being a consumer of it.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    Admin, Result, StreamId,
    consume::Extent,
    net::{Connection, Deadline},
    wire::check_topic,
};

use super::{
    ResetTo, Shared, StoredEntry, TIMEOUT,
    entries::{Told, stored},
    topics::{WINDOW, never_created},
};

/// The bytes of entries that one question aims at, and how many entries of each partition at first and at most.
const PAGE_BYTES: usize = 1 << 20;
const FIRST_STEP: usize = 4;
const LARGEST_STEP: usize = 1000;

/// What a read answers: the entries of each stream that has any.
type Answer = Option<Vec<(Vec<u8>, Vec<Told>)>>;

impl Admin {
    /// Reads all partitions of a topic from a place on, and what is published later, without being a consumer: no
    /// position, group or claim is written. Blocks for up to 30 s, usually for a few round trips.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use streamlane::{ResetTo, Streams};
    ///
    /// # fn main() -> Result<(), streamlane::Error> {
    /// # let streams = Streams::connect("redis://127.0.0.1:6379")?;
    /// let mut follow = streams.admin().follow("orders", ResetTo::End)?;
    /// loop {
    ///     for entry in follow.next(Duration::from_secs(1))? {
    ///         println!("{entry}");
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// A name that no topic can have, or a topic that was never created; a server that cannot be reached or refuses.
    pub fn follow(&self, topic: impl Into<String>, from: ResetTo) -> Result<Follow> {
        let topic = topic.into();
        check_topic(&topic)?;
        let by = Deadline::after(TIMEOUT);
        let begin = || -> Result<Follow> {
            let mut c = self.shared.connect(by)?;
            let layout = self.shared.layout(&mut c, &topic, by)?;
            if layout.partitions == 0 {
                return Err(never_created(&topic));
            }
            let keys = self.shared.streams(&topic, &layout);
            let mut places = Vec::with_capacity(keys.len());
            for window in keys.chunks(WINDOW) {
                let ends = Extent::of_all(&mut c, window, by.left())?.into_iter();
                places.extend(ends.map(|end| end.map_or(StreamId::MIN, |end| end.last)));
            }
            let of_place = |end| match from {
                ResetTo::Start => StreamId::MIN,
                ResetTo::End => end,
                ResetTo::Id(id) => id,
                ResetTo::Date(moment) => StreamId::starting_at(moment).before(),
            };
            let partitions = (0..).zip(keys.into_iter().zip(places));
            Ok(Follow {
                shared: Arc::clone(&self.shared),
                topic: topic.clone(),
                partitions: partitions
                    .map(|(partition, (key, end))| Place {
                        partition,
                        key,
                        after: of_place(end),
                    })
                    .collect(),
                connection: Some(c),
                step: FIRST_STEP,
            })
        };
        begin().map_err(|e| e.during("follow a topic"))
    }
}

/// A way through a topic; see [`Admin::follow`]. Partitions that are added later are not among it.
pub struct Follow {
    shared: Arc<Shared>,
    topic: String,
    partitions: Vec<Place>,
    connection: Option<Connection>,
    /// How many entries of each partition are asked for.
    step: usize,
}

/// How far one partition was read.
struct Place {
    partition: u32,
    key: String,
    after: StreamId,
}

impl Follow {
    /// The next entries, those of all partitions in the order of their ids; none where there were none within
    /// `wait`. Blocks for up to that, and up to 30 s for the server. Zero only looks.
    ///
    /// # Errors
    ///
    /// A server that cannot be reached or refuses. The next call connects again, and misses nothing.
    pub fn next(&mut self, wait: Duration) -> Result<Vec<StoredEntry>> {
        let answer = self.read(wait);
        if answer.is_err() {
            self.connection = None;
        }
        let answer = answer.map_err(|e| e.during("follow a topic"))?;
        let (mut entries, mut bytes) = (Vec::new(), 0);
        for (key, told) in answer.into_iter().flatten() {
            let of = self.partitions.iter_mut();
            let Some(place) = of.into_iter().find(|p| p.key.as_bytes() == key) else {
                continue;
            };
            for told in told {
                let entry = stored(&self.topic, place.partition, &place.key, told)?;
                bytes += entry.size();
                place.after = entry.id;
                entries.push(entry);
            }
        }
        if !entries.is_empty() {
            let each = (bytes / entries.len()).max(1) * self.partitions.len();
            self.step = (PAGE_BYTES / each).clamp(1, LARGEST_STEP);
        }
        entries.sort_by_key(|e| (e.id, e.partition));
        Ok(entries)
    }

    /// Up to where a partition was read; `None` where there is none.
    pub fn position(&self, partition: u32) -> Option<StreamId> {
        Some(self.partitions.get(partition as usize)?.after)
    }

    fn read(&mut self, wait: Duration) -> Result<Answer> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(self.shared.connect(Deadline::after(TIMEOUT))?),
        };
        let mut cmd = redis::cmd("XREAD");
        cmd.arg("COUNT").arg(self.step);
        if !wait.is_zero() {
            let ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).max(1);
            cmd.arg("BLOCK").arg(ms);
        }
        cmd.arg("STREAMS");
        for place in &self.partitions {
            cmd.arg(&*place.key);
        }
        for place in &self.partitions {
            cmd.arg(place.after.to_string());
        }
        connection.ask(&cmd, wait.saturating_add(TIMEOUT))
    }
}

impl fmt::Debug for Follow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follow")
            .field("topic", &self.topic)
            .finish_non_exhaustive()
    }
}
