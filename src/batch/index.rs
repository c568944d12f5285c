//! Where the messages of a reply lie. The reply is scanned in place, as it arrives, and taken up again
//! at the entry where it broke off.

use crate::{
    net::resp::{Cursor, Head, Scan, Span, Stop},
    wire::{Field, Headers, Malformed, REFERENCE, Reference, StreamId},
};

/// One message: its id, and where its parts lie in the arena.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) id: StreamId,
    /// Of one that is kept apart the reference, until it is [`here`](Body::Here).
    pub(crate) body: Span,
    pub(crate) message_type: Span,
    pub(crate) key: Span,
    /// Where the first field's name starts, for everything that is read seldom.
    pub(crate) fields: u32,
    pub(crate) pairs: u32,
    /// How many entries of this read lie at or before it, left-out ones included.
    pub(crate) nth: u32,
    pub(crate) malformed: Option<Malformed>,
    pub(crate) kept: Body,
}

/// Where the body of a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Body {
    /// In the arena.
    Here,
    /// In a key of its own.
    Apart,
    /// It should be in a key of its own, and is not.
    Missing,
}

/// Which message types a consumer wants; none named means all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter(Box<[Box<[u8]>]>);

impl Filter {
    pub(crate) fn new(types: impl IntoIterator<Item: AsRef<str>>) -> Self {
        let mut types: Vec<Box<[u8]>> = types
            .into_iter()
            .filter(|t| !t.as_ref().trim().is_empty())
            .map(|t| t.as_ref().as_bytes().into())
            .collect();
        types.sort();
        types.dedup();
        Self(types.into())
    }

    fn wants(&self, first_type: Option<&[u8]>) -> bool {
        self.0.is_empty() || first_type.is_some_and(|t| self.0.iter().any(|w| **w == *t))
    }
}

/// How far a reply is understood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// All of it; it ends at this offset.
    Whole(usize),
    /// More bytes are needed, at least up to this offset.
    Partial(usize),
    /// It is the server's refusal instead.
    Refused(Span),
}

/// The messages of one read.
#[derive(Debug)]
pub(crate) struct Index {
    records: Vec<Record>,
    at: usize,
    part: Part,
    streams: Streams,
    /// Of several streams only the one asked for is ours.
    several: bool,
    found: bool,
    last: Option<StreamId>,
    read: u32,
    nils: u32,
    /// How many bodies were kept apart.
    apart: u32,
    filtered: u32,
    /// The ids of entries that are no records, for whoever has to answer for each; `None` for who has not.
    aside: Option<Vec<(StreamId, Aside)>>,
}

/// Why an entry that was read is no record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Aside {
    /// The consumer does not want its type.
    Unwanted,
    /// It was deleted from the stream since it was given to the group.
    Gone,
}

/// What comes next in the reply.
#[derive(Clone, Copy, Debug)]
enum Part {
    Top,
    Stream { left: usize },
    Entries { left: usize, streams_left: usize },
    End,
}

/// How the streams of the reply are laid out.
#[derive(Clone, Copy, Debug)]
enum Streams {
    /// An array of pairs, each an array of its own.
    Nested,
    /// A map, or the same flattened: key, entries, key, entries.
    Flat,
}

impl Index {
    pub(crate) fn with_capacity(messages: usize) -> Self {
        Self {
            records: Vec::with_capacity(messages),
            at: 0,
            part: Part::Top,
            streams: Streams::Nested,
            several: false,
            found: false,
            last: None,
            read: 0,
            nils: 0,
            filtered: 0,
            apart: 0,
            aside: None,
        }
    }

    /// Keeps the ids of entries that are no records, too.
    pub(crate) fn keeping_aside(self) -> Self {
        Self {
            aside: Some(Vec::new()),
            ..self
        }
    }

    /// Begins a new reply, at this offset of the arena.
    pub(crate) fn clear(&mut self, at: usize) {
        self.records.clear();
        self.at = at;
        self.part = Part::Top;
        self.found = false;
        self.last = None;
        self.read = 0;
        self.nils = 0;
        self.filtered = 0;
        self.aside.iter_mut().for_each(Vec::clear);
        self.apart = 0;
    }

    pub(crate) fn records(&self) -> &[Record] {
        &self.records
    }

    pub(crate) fn records_mut(&mut self) -> &mut Vec<Record> {
        &mut self.records
    }

    /// The entries that are no records, where they are kept.
    pub(crate) fn aside(&self) -> &[(StreamId, Aside)] {
        self.aside.as_deref().unwrap_or_default()
    }

    /// Whether there are messages whose bodies were kept apart when this was read.
    pub(crate) fn has_apart(&self) -> bool {
        self.apart > 0
    }

    /// What the message at `nth` says of where its body is, if that is not here; `bytes` are those it was read
    /// from.
    pub(crate) fn reference(&self, nth: usize, bytes: &[u8]) -> Option<Reference> {
        let record = self.records.get(nth).filter(|r| r.kept != Body::Here)?;
        Reference::parse(record.body.of(bytes))
    }

    /// Says where the body is that the message at `nth` refers to; `None` where there is none.
    pub(crate) fn found(&mut self, nth: usize, body: Option<Span>) {
        let record = &mut self.records[nth];
        match body {
            Some(body) => (record.body, record.kept) = (body, Body::Here),
            None => record.kept = Body::Missing,
        }
    }

    /// The last id read, wanted or not.
    pub(crate) fn last(&self) -> Option<StreamId> {
        self.last
    }

    /// How many entries were read, those left out included.
    pub(crate) fn read(&self) -> u32 {
        self.read
    }

    /// How many entries the filter left out.
    pub(crate) fn filtered(&self) -> u32 {
        self.filtered
    }

    /// Where the first entry starts that is not understood yet.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Goes on as far as `bytes` allow, in the answer to a read of the stream `key` after `cursor`.
    ///
    /// # Errors
    ///
    /// When the bytes are not such an answer. Entries understood before stay understood, but nothing
    /// of a reply that is wrong somewhere should be believed.
    // By itself, so that its registers are its own: what it is inlined into is large.
    #[inline(never)]
    pub(crate) fn advance(
        &mut self,
        bytes: &[u8],
        key: &[u8],
        cursor: StreamId,
        filter: &Filter,
    ) -> Result<Progress, &'static str> {
        match self.run(bytes, key, cursor, filter) {
            Ok(progress) => Ok(progress),
            Err(Stop::Short(need)) => Ok(Progress::Partial(need)),
            Err(Stop::Bad(why)) => Err(why),
        }
    }

    fn run(
        &mut self,
        bytes: &[u8],
        key: &[u8],
        cursor: StreamId,
        filter: &Filter,
    ) -> Scan<Progress> {
        loop {
            let mut c = Cursor::new(bytes, self.at);
            self.part = match self.part {
                Part::Top => match self.top(&mut c, bytes)? {
                    Ok(part) => part,
                    Err(refusal) => return Ok(Progress::Refused(refusal)),
                },
                Part::Stream { left: 0 } => {
                    if self.several && !self.found {
                        return Err(Stop::Bad("several streams, and none that was asked for"));
                    }
                    if self.nils > 0 && self.read == 0 {
                        return Err(Stop::Bad("only nil entries: nowhere to go on from"));
                    }
                    Part::End
                }
                Part::Stream { left } => self.stream(&mut c, bytes, key, left)?,
                Part::Entries {
                    left: 0,
                    streams_left,
                } => Part::Stream { left: streams_left },
                Part::Entries { left, streams_left } => {
                    for left in (0..left).rev() {
                        self.entry(&mut c, bytes, cursor, filter).inspect_err(|_| {
                            self.part = Part::Entries {
                                left: left + 1,
                                streams_left,
                            };
                        })?;
                        self.at = c.at();
                    }
                    Part::Stream { left: streams_left }
                }
                Part::End => return Ok(Progress::Whole(self.at)),
            };
            self.at = c.at();
        }
    }

    fn top(&mut self, c: &mut Cursor<'_>, bytes: &[u8]) -> Scan<Result<Part, Span>> {
        let streams = loop {
            match c.head()? {
                Head::Nil => return Ok(Ok(Part::End)),
                Head::Error(text) => return Ok(Err(text)),
                Head::Array(n) => {
                    self.streams = Streams::Nested;
                    // A flattened map starts with a key instead of a pair.
                    if n > 0 && !matches!(Cursor::new(bytes, c.at()).head()?, Head::Array(_)) {
                        if n % 2 != 0 {
                            return Err(Stop::Bad("a stream key without its entries"));
                        }
                        self.streams = Streams::Flat;
                        break n / 2;
                    }
                    break n;
                }
                Head::Map(n) => {
                    self.streams = Streams::Flat;
                    break n;
                }
                Head::Push(n) => {
                    for _ in 0..n {
                        c.skip()?;
                    }
                }
                Head::Attribute(pairs) => {
                    for _ in 0..2 * pairs {
                        c.skip()?;
                    }
                }
                Head::Text(_) | Head::Scalar(_) => {
                    return Err(Stop::Bad("a scalar where streams belong"));
                }
            }
        };
        self.several = streams > 1;
        Ok(Ok(Part::Stream { left: streams }))
    }

    fn stream(&mut self, c: &mut Cursor<'_>, bytes: &[u8], key: &[u8], left: usize) -> Scan<Part> {
        if matches!(self.streams, Streams::Nested) && c.head()? != Head::Array(2) {
            return Err(Stop::Bad("a stream that is no pair of key and entries"));
        }
        let name = c.text()?.ok_or(Stop::Bad("a stream without a key"))?;
        // A proxy may rename keys: a single stream is the answer whatever it is called.
        if self.several && name.of(bytes) != key {
            c.skip()?;
            return Ok(Part::Stream { left: left - 1 });
        }
        self.found = true;
        match c.head()? {
            Head::Array(n) => Ok(Part::Entries {
                left: n,
                streams_left: left - 1,
            }),
            Head::Nil => Ok(Part::Stream { left: left - 1 }),
            _ => Err(Stop::Bad("something other than entries")),
        }
    }

    #[inline]
    fn entry(
        &mut self,
        c: &mut Cursor<'_>,
        bytes: &[u8],
        cursor: StreamId,
        filter: &Filter,
    ) -> Scan<()> {
        match c.aggregate()? {
            Head::Array(2) => {}
            Head::Nil => {
                self.nils += 1;
                return Ok(());
            }
            _ => return Err(Stop::Bad("an entry that is no pair of id and fields")),
        }
        let id = c.text()?.ok_or(Stop::Bad("an entry without an id"))?;
        let id = StreamId::parse(id.of(bytes)).ok_or(Stop::Bad("an id that is none"))?;
        if id <= self.last.unwrap_or(cursor) {
            return Err(Stop::Bad("an id at or before one already read"));
        }
        let (fields, odd) = match c.aggregate()? {
            Head::Array(n) => (n / 2, n % 2 != 0),
            Head::Map(n) => (n, false),
            Head::Nil => {
                if let Some(aside) = &mut self.aside {
                    aside.push((id, Aside::Gone));
                    self.read += 1;
                    self.last = Some(id);
                    return Ok(());
                }
                (0, false)
            }
            _ => return Err(Stop::Bad("something other than fields")),
        };
        let mut r = Record {
            id,
            body: Span::default(),
            message_type: Span::default(),
            key: Span::default(),
            fields: c.at() as u32,
            pairs: fields as u32,
            nth: self.read + 1,
            malformed: None,
            kept: Body::Here,
        };
        let mut seen = Seen::default();
        for _ in 0..fields {
            let name = match c.one_byte() {
                Some(byte) => Field::of(&[byte]),
                None => match c.text()? {
                    Some(name) => Field::of(name.of(bytes)),
                    None => Field::Other,
                },
            };
            let value = c.text()?.unwrap_or_default();
            match name {
                Field::Body => (r.body, seen.body) = (value, true),
                Field::Type => {
                    r.message_type = value;
                    seen.first_type.get_or_insert(value);
                }
                Field::Key => r.key = value,
                Field::Headers => seen.headers = Some(value),
                // A reference is looked for where it means something.
                Field::CorrelationId | Field::Traceparent | Field::Reference | Field::Other => {}
            }
        }
        if odd {
            c.skip()?;
        }
        self.read += 1;
        self.last = Some(id);
        if !filter.wants(seen.first_type.map(|t| t.of(bytes))) {
            self.filtered += 1;
            if let Some(aside) = &mut self.aside {
                aside.push((id, Aside::Unwanted));
            }
            return Ok(());
        }
        r.malformed = if odd {
            Some(Malformed::OddFields)
        } else if !seen.body {
            Some(Malformed::NoBody)
        } else if seen.first_type.is_none() {
            Some(Malformed::NoType)
        } else if seen
            .headers
            .is_some_and(|h| Headers::new(h.of(bytes)).check().is_err())
        {
            Some(Malformed::Headers)
        } else {
            None
        };
        self.records.push(r);
        if r.body.len == 0 {
            self.refer(bytes);
        }
        Ok(())
    }

    /// Takes note of a reference to where the body is, in the last entry, whose body is empty.
    #[cold]
    #[inline(never)]
    fn refer(&mut self, bytes: &[u8]) {
        let Some(r) = self.records.last_mut() else {
            return;
        };
        let mut c = Cursor::new(bytes, r.fields as usize);
        let mut reference = None;
        for _ in 0..r.pairs {
            // The entry was scanned before: neither can be missing now.
            let (Ok(name), Ok(value)) = (c.text(), c.text()) else {
                return;
            };
            if name.is_some_and(|name| name.of(bytes) == REFERENCE) {
                reference = value.or(Some(Span::default()));
            }
        }
        let Some(reference) = reference.filter(|_| r.malformed.is_none()) else {
            return;
        };
        if Reference::parse(reference.of(bytes)).is_none() {
            r.malformed = Some(Malformed::Reference);
            return;
        }
        (r.body, r.kept) = (reference, Body::Apart);
        self.apart += 1;
    }
}

#[derive(Default)]
struct Seen {
    body: bool,
    first_type: Option<Span>,
    headers: Option<Span>,
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "index_properties.rs"]
mod properties;
