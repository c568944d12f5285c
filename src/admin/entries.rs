//! Reading entries without being a consumer: one by its id, a range, or the newest.

use std::{cmp::Reverse, fmt, sync::Arc, time::Duration};

use crate::{
    Admin, Error, Headers, Malformed, Result, StreamId,
    clock::RoundTrip,
    consume::Extent,
    error::ErrorKind,
    net::{Connection, Deadline},
    wire::{Entry, REFERENCE, Reference, check_topic},
};

use super::{
    Shared, TIMEOUT,
    pending::no_such_partition,
    topics::{WINDOW, never_created},
};

/// The bytes of entries that one question aims at.
const PAGE_BYTES: usize = 1 << 20;
/// A page ends early behind so many bytes.
const MOST_BYTES: usize = 16 << 20;
const FIRST_STEP: usize = 16;
const LARGEST_STEP: usize = 1000;
/// The most entries of a page.
const LARGEST_PAGE: usize = 10_000;
/// The most entries of what is recent.
const MOST_RECENT: usize = 1000;
/// So many bytes of a body are shown.
const SHOWN: usize = 48;

/// An entry as it lies in its stream. Displayed, it is a few lines that say what it holds, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StoredEntry {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: u32,
    /// Its id.
    pub id: StreamId,
    /// Its fields, names and values, in the order in which they are stored, whatever they are.
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Some entries.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct EntryPage {
    /// The entries, in the order that was asked for.
    pub entries: Vec<StoredEntry>,
    /// Where the next page begins; `None` when there is none.
    pub next: Option<StreamId>,
}

impl StoredEntry {
    /// The type of the message; `None` when it has none.
    pub fn message_type(&self) -> Option<&[u8]> {
        self.field(b"t")
    }

    /// The key of the message; `None` when it has none or an empty one.
    pub fn key(&self) -> Option<&[u8]> {
        self.field(b"k").filter(|key| !key.is_empty())
    }

    /// The body of the message; `None` when it has none, or when it is [kept apart](Self::is_apart).
    pub fn body(&self) -> Option<&[u8]> {
        self.field(b"b").filter(|_| !self.is_apart())
    }

    /// Whether the body is kept apart (`ClaimCheck`).
    pub fn is_apart(&self) -> bool {
        self.reference().is_some()
    }

    /// The headers of the message.
    pub fn headers(&self) -> Headers<'_> {
        Headers::new(self.field(b"h").unwrap_or_default())
    }

    /// The value of the last field of this name, as readers take it.
    pub fn field(&self, name: &[u8]) -> Option<&[u8]> {
        let found = self.fields.iter().rfind(|(n, _)| n == name);
        found.map(|(_, value)| &value[..])
    }

    /// The bytes of all its fields.
    pub(super) fn size(&self) -> usize {
        self.fields.iter().map(|(n, v)| n.len() + v.len()).sum()
    }

    /// Where the body is that is kept apart: its field `x`, where that means something.
    fn reference(&self) -> Option<&[u8]> {
        self.field(b"b").filter(|body| body.is_empty())?;
        self.field(REFERENCE)
    }

    /// The message it is, and how many headers it has.
    fn message(&self) -> Result<(Entry<'_>, usize), Malformed> {
        let pairs = self.fields.iter().map(|(n, v)| (&n[..], &v[..]));
        let message = Entry::from_pairs(pairs)?;
        if self
            .reference()
            .is_some_and(|r| Reference::parse(r).is_none())
        {
            return Err(Malformed::Reference);
        }
        let mut headers = 0;
        for header in Headers::new(message.headers) {
            header?;
            headers += 1;
        }
        Ok((message, headers))
    }
}

impl fmt::Display for StoredEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, partition) = (self.id, self.partition);
        let at = RoundTrip(id.timestamp());
        write!(f, "entry {id}  partition {partition}  {at}")?;
        let (message, headers) = match self.message() {
            Ok(message) => message,
            Err(why) => {
                write!(f, "  UNDECODABLE: {why}")?;
                for (name, value) in &self.fields {
                    let (name, value) = (legible(name), Shown(value));
                    write!(f, "\n{name:<9} {value}")?;
                }
                return Ok(());
            }
        };
        let mut line = |label: &str, value: &[u8]| write!(f, "\n{label:<9} {}", legible(value));
        line("type", message.message_type)?;
        line("key", message.key)?;
        if !message.correlation_id.is_empty() {
            line("corr", message.correlation_id)?;
        }
        if let Some(trace) = message.traceparent {
            line("trace", trace)?;
        }
        if headers > 0 {
            let shown = Headers::new(message.headers);
            write!(f, "\n{:<9} {headers}  {shown:?}", "headers")?;
        }
        match self.reference().and_then(Reference::parse) {
            Some(reference) => {
                let (n, id) = (reference.len(), reference.id().escape_ascii());
                write!(f, "\n{:<9} {n} bytes, kept apart as {id}", "body")
            }
            None => write!(f, "\n{:<9} {}", "body", Shown(message.body)),
        }
    }
}

/// Text as it is, with what would move a terminal's cursor spelled out.
fn legible(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for c in String::from_utf8_lossy(bytes).chars() {
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// The beginning of some bytes: how many they are, in hexadecimal digits, and as text.
struct Shown<'a>(&'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[..self.0.len().min(SHOWN)];
        let more = if self.0.len() > SHOWN { "…" } else { "" };
        write!(f, "{} bytes", self.0.len())?;
        if shown.is_empty() {
            return Ok(());
        }
        write!(f, "\n{:<9} ", "")?;
        for byte in shown {
            write!(f, "{byte:02x}")?;
        }
        write!(f, "{more}\n{:<9} ", "")?;
        for byte in shown {
            let c = if byte.is_ascii_graphic() || *byte == b' ' {
                char::from(*byte)
            } else {
                '.'
            };
            write!(f, "{c}")?;
        }
        f.write_str(more)
    }
}

impl Admin {
    /// One entry by its id; `None` where there is none. Displayed, it tells what it holds. Blocks for up to 30 s,
    /// usually for a few round trips.
    ///
    /// # Errors
    ///
    /// A name that no topic can have, a topic that was never created, or a partition that it does not have; a server
    /// that cannot be reached or refuses.
    pub fn entry(
        &self,
        topic: impl Into<String>,
        partition: u32,
        id: StreamId,
    ) -> Result<Option<StoredEntry>> {
        let page = self
            .entries(topic, partition)
            .since(id)
            .until(id)
            .page(None, 1);
        Ok(page
            .map_err(|e| e.during("look at an entry"))?
            .entries
            .pop())
    }

    /// The entries of a partition, the oldest first. All of them, until it is said which.
    ///
    /// ```no_run
    /// use streamlane::Streams;
    ///
    /// # fn main() -> Result<(), streamlane::Error> {
    /// # let streams = Streams::connect("redis://127.0.0.1:6379")?;
    /// let newest = streams.admin().entries("orders", 0).newest_first();
    /// let mut page = newest.page(None, 20)?;
    /// while let Some(next) = page.next {
    ///     page = newest.page(Some(next), 20)?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn entries(&self, topic: impl Into<String>, partition: u32) -> Entries {
        Entries {
            shared: Arc::clone(&self.shared),
            topic: topic.into(),
            partition,
            since: StreamId::MIN,
            until: StreamId::MAX,
            newest_first: false,
            timeout: TIMEOUT,
        }
    }

    /// The newest entries of all partitions together, the newest first: up to `most` of them (at least 1, at most
    /// 1000). Blocks for up to 30 s, usually for a few round trips for each partition.
    ///
    /// # Errors
    ///
    /// A name that no topic can have, or a topic that was never created; a server that cannot be reached or refuses.
    pub fn recent(&self, topic: impl AsRef<str>, most: usize) -> Result<Vec<StoredEntry>> {
        let topic = topic.as_ref();
        let most = most.clamp(1, MOST_RECENT);
        check_topic(topic)?;
        let by = Deadline::after(TIMEOUT);
        let mut c = self.shared.connect(by)?;
        let recent = self.shared.recent(&mut c, topic, most, by);
        recent.map_err(|e| e.during("look at what is recent"))
    }
}

/// The entries of one partition, or those of them that are wanted; see [`Admin::entries`].
///
/// Every call connects for itself, and each of its round trips takes up to the timeout (30 s) and asks for about a
/// MiB, so that large entries hold up nobody.
#[derive(Clone)]
#[must_use = "nothing is read before `page`"]
pub struct Entries {
    shared: Arc<Shared>,
    topic: String,
    partition: u32,
    since: StreamId,
    until: StreamId,
    newest_first: bool,
    timeout: Duration,
}

impl Entries {
    /// Only from this id on.
    pub fn since(mut self, id: StreamId) -> Self {
        self.since = id;
        self
    }

    /// Only up to this id.
    pub fn until(mut self, id: StreamId) -> Self {
        self.until = id;
        self
    }

    /// The newest first.
    pub fn newest_first(mut self) -> Self {
        self.newest_first = true;
        self
    }

    /// How long a round trip may take (default 30 s).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Up to `most` of them (at least 1, at most 10 000) from `from` on, which is the `next` of the page before, or
    /// `None` for the first page. Ends early behind 16 MiB. Blocks for a few round trips.
    ///
    /// # Errors
    ///
    /// A name that no topic can have, a topic that was never created, or a partition that it does not have; a server
    /// that cannot be reached or refuses.
    pub fn page(&self, from: Option<StreamId>, most: usize) -> Result<EntryPage> {
        let operation = "read entries";
        check_topic(&self.topic)?;
        let by = || Deadline::after(self.timeout);
        let read = || {
            let mut c = self.shared.connect(by())?;
            let layout = self.shared.layout(&mut c, &self.topic, by())?;
            if layout.partitions == 0 {
                return Err(never_created(&self.topic));
            }
            if self.partition >= layout.partitions {
                return Err(no_such_partition(&self.topic, self.partition));
            }
            let keys = &self.shared.keys;
            let key = keys.stream(&self.topic, self.partition, layout.co_located);
            let of = (self.topic.as_str(), self.partition, key.as_str());
            let mut range = (self.since, self.until);
            if let Some(from) = from {
                if self.newest_first {
                    range.1 = range.1.min(from);
                } else {
                    range.0 = range.0.max(from);
                }
            }
            let most = most.clamp(1, LARGEST_PAGE);
            read(&mut c, of, range, self.newest_first, most, self.timeout)
        };
        read().map_err(|e| e.during(operation))
    }
}

impl fmt::Debug for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entries")
            .field("topic", &self.topic)
            .field("partition", &self.partition)
            .finish_non_exhaustive()
    }
}

/// An entry as the server tells it.
pub(super) type Told = (Vec<u8>, Vec<(Vec<u8>, Vec<u8>)>);

/// The entry that was told.
pub(super) fn stored(
    topic: &str,
    partition: u32,
    key: &str,
    (id, fields): Told,
) -> Result<StoredEntry> {
    let Some(id) = StreamId::parse(&id) else {
        let what = "the reply has an entry whose id is none";
        return Err(Error::new(ErrorKind::Protocol, "XRANGE", what).on_key(key));
    };
    Ok(StoredEntry {
        topic: topic.into(),
        partition,
        id,
        fields,
    })
}

/// Reads a page in steps of about as many bytes each.
fn read(
    c: &mut Connection,
    (topic, partition, key): (&str, u32, &str),
    (mut since, mut until): (StreamId, StreamId),
    newest_first: bool,
    most: usize,
    timeout: Duration,
) -> Result<EntryPage> {
    let (mut entries, mut bytes, mut step) = (Vec::new(), 0, FIRST_STEP);
    loop {
        let asked = step.min(most - entries.len());
        let mut cmd = redis::cmd(if newest_first { "XREVRANGE" } else { "XRANGE" });
        let (first, second) = if newest_first {
            (until, since)
        } else {
            (since, until)
        };
        cmd.arg(key).arg(first.to_string()).arg(second.to_string());
        cmd.arg("COUNT").arg(asked);
        let told: Vec<Told> = c.ask(&cmd, timeout)?;
        let got = told.len();
        let mut here = 0;
        for told in told {
            let entry = stored(topic, partition, key, told)?;
            here += entry.size();
            entries.push(entry);
        }
        let next = match entries.last().map(|e| e.id) {
            Some(last) if got == asked => follow(last, newest_first),
            _ => None,
        };
        let Some(next) = next.filter(|next| since <= *next && *next <= until) else {
            return Ok(EntryPage {
                entries,
                next: None,
            });
        };
        bytes += here;
        if entries.len() == most || bytes >= MOST_BYTES {
            let next = Some(next);
            return Ok(EntryPage { entries, next });
        }
        *if newest_first { &mut until } else { &mut since } = next;
        step = (PAGE_BYTES / (here / got).max(1)).clamp(1, LARGEST_STEP);
    }
}

/// The id that a way through a stream goes on at; `None` behind the end of all ids.
fn follow(last: StreamId, newest_first: bool) -> Option<StreamId> {
    if !newest_first {
        return (last < StreamId::MAX).then(|| last.next());
    }
    match (last.ms(), last.seq()) {
        (0, 0) => None,
        (ms, 0) => Some(StreamId::new(ms - 1, u64::MAX)),
        (ms, seq) => Some(StreamId::new(ms, seq - 1)),
    }
}

impl Shared {
    fn recent(
        &self,
        c: &mut Connection,
        topic: &str,
        most: usize,
        by: Deadline,
    ) -> Result<Vec<StoredEntry>> {
        let layout = self.layout(c, topic, by)?;
        if layout.partitions == 0 {
            return Err(never_created(topic));
        }
        let streams = self.streams(topic, &layout);
        // Where each partition ends, so that only those are read whose entries can be among the newest.
        let mut ends = Vec::with_capacity(streams.len());
        for (i, window) in streams.chunks(WINDOW).enumerate() {
            for (j, end) in Extent::of_all(c, window, by.left())?.iter().enumerate() {
                let newest = end.and_then(|end| end.newest);
                ends.extend(newest.map(|newest| (newest, i * WINDOW + j)));
            }
        }
        ends.sort_unstable_by_key(|end| Reverse(*end));
        let mut newest: Vec<StoredEntry> = Vec::new();
        for (end, p) in ends {
            let least = newest.get(most - 1).map_or(StreamId::MIN, |e| e.id);
            if end <= least {
                break;
            }
            let of = (topic, p as u32, streams[p].as_str());
            let page = read(c, of, (least, StreamId::MAX), true, most, by.left())?;
            newest.extend(page.entries);
            newest.sort_by_key(|e| Reverse((e.id, e.partition)));
            newest.truncate(most);
        }
        Ok(newest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(fields: &[(&str, &[u8])]) -> StoredEntry {
        let owned = |(n, v): &(&str, &[u8])| (n.as_bytes().to_vec(), v.to_vec());
        StoredEntry {
            topic: "orders".into(),
            partition: 3,
            id: StreamId::new(1_700_000_000_000, 7),
            fields: fields.iter().map(owned).collect(),
        }
    }

    #[test]
    fn an_entry_is_told_line_by_line() {
        let trace = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let full = entry(&[
            ("b", b"{\"id\":\x001}"),
            ("t", b"OrderPlaced"),
            ("k", b"a\nb"),
            ("c", b"c-1"),
            ("p", trace),
            ("h", b"6:source3:web1:a0:"),
        ]);
        assert_eq!(
            full.to_string(),
            "entry 1700000000000-7  partition 3  2023-11-14T22:13:20.0000000+00:00\n\
             type      OrderPlaced\n\
             key       a\\nb\n\
             corr      c-1\n\
             trace     00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n\
             headers   2  source=web; a=\n\
             body      9 bytes\n\
             \x20         7b226964223a00317d\n\
             \x20         {\"id\":.1}"
        );
        let plain = entry(&[("b", b""), ("t", b"T")]).to_string();
        assert!(
            plain.ends_with("\ntype      T\nkey       \nbody      0 bytes"),
            "{plain}"
        );
        let long = entry(&[("b", &[b'x'; 49]), ("t", b"T")]).to_string();
        let x = "x".repeat(48);
        assert!(
            long.contains("49 bytes") && long.ends_with(&format!("{x}…")),
            "{long}"
        );
        let exact = entry(&[("b", &[b'x'; 48]), ("t", b"T")]).to_string();
        assert!(exact.ends_with(&x), "{exact}");
        let apart = b"0123456789abcdef0123456789abcdef 65537";
        let apart = entry(&[("b", b""), ("t", b"T"), ("x", apart)]);
        assert!(apart.is_apart() && apart.body().is_none());
        let told = apart.to_string();
        assert!(
            told.ends_with("65537 bytes, kept apart as 0123456789abcdef0123456789abcdef"),
            "{told}"
        );
    }

    #[test]
    fn what_is_no_message_is_told_field_by_field() {
        for (fields, why) in [
            (&[("t", &b"T"[..])][..], "field `b`"),
            (
                &[("b", &b"x"[..]), ("t", b"T"), ("h", b"9:x")][..],
                "field `h`",
            ),
            (
                &[("b", &b""[..]), ("t", b"T"), ("x", b"y")][..],
                "field `x`",
            ),
        ] {
            let told = entry(fields).to_string();
            let head = told.lines().next().unwrap();
            assert!(
                head.contains("  UNDECODABLE: ") && head.contains(why),
                "{told}"
            );
            assert!(told.contains("\nt         1 bytes"), "{told}");
        }
    }

    #[test]
    fn a_way_through_a_stream_goes_on_at_the_neighbour() {
        let id = StreamId::new;
        for (last, newest_first, next) in [
            (id(5, 0), false, Some(id(5, 1))),
            (id(5, u64::MAX), false, Some(id(6, 0))),
            (StreamId::MAX, false, None),
            (id(5, 1), true, Some(id(5, 0))),
            (id(5, 0), true, Some(id(4, u64::MAX))),
            (StreamId::MIN, true, None),
        ] {
            assert_eq!(follow(last, newest_first), next, "{last} {newest_first}");
        }
    }
}
