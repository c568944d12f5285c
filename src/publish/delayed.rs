//! Messages that are published later: what is said of one, and how it goes into its topic's bucket.

use std::{
    fmt,
    str::FromStr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::{
    Result, StreamId, clock,
    error::{Error, ErrorKind, Outcome},
    net::{
        resp::{self, Head},
        script::Form,
    },
    wire::Entry,
};

use super::{
    Draft, Encoder,
    bucket::{BucketKeys, CANCEL, LEASE, SCHEDULE, item},
    counts::Count,
    message::Publish,
    once::Dedupe,
};

/// When a message is to be published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum When {
    /// On the server's clock.
    After(Duration),
    At(SystemTime),
}

/// Nothing is kept for longer; the script says so too.
const LONGEST: Duration = Duration::from_hours(87_660);

impl When {
    /// As the script takes it: how to read it, and milliseconds.
    pub(super) fn encode(self) -> Result<(&'static [u8], u64)> {
        let (how, time) = match self {
            Self::After(delay) if delay > LONGEST => return Err(too_late()),
            Self::After(delay) => (&b"after"[..], delay),
            Self::At(moment) => match moment.duration_since(UNIX_EPOCH) {
                // beyond this even the script could not tell
                Ok(time) if time > LONGEST * 100 => return Err(too_late()),
                Ok(time) => (&b"at"[..], time),
                Err(_) => {
                    let why = "it is to be delivered before 1970: is that a time?";
                    return Err(Error::new(ErrorKind::Argument, "publish", why));
                }
            },
        };
        Ok((how, clock::ceil_ms(time)))
    }
}

#[cold]
fn too_late() -> Error {
    let why = "it is to be delivered in more than 10 years: nothing is kept for so long";
    Error::new(ErrorKind::Argument, "publish", why)
}

/// A message that waits for its time on the server; see [`Draft::deliver_after`].
///
/// It can be [withdrawn](crate::Publisher::cancel) with this, by another process too: it is written as text
/// and read from it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Delayed {
    partition: u32,
    due_ms: u64,
    /// Its id in the bucket.
    added_us: u64,
    token: u64,
    repeated: bool,
}

impl Delayed {
    /// When it is due, on the server's clock.
    pub fn due(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.due_ms)
    }

    /// The partition it goes to.
    pub fn partition(&self) -> u32 {
        self.partition
    }

    /// Whether a message with its dedupe id had been scheduled or published before, so that nothing was
    /// scheduled now: then all this is about the first. It may have been published or withdrawn since. Never
    /// true without a dedupe id.
    pub fn repeated(&self) -> bool {
        self.repeated
    }

    /// What the marker of a dedupe id says of a message that was scheduled.
    pub(super) fn parse_marker(found: &[u8], partition: u32) -> Option<Self> {
        let delayed = Self::parse(found.strip_prefix(b"~")?, partition)?;
        Some(Self {
            repeated: true,
            ..delayed
        })
    }

    /// From when it is due and its id.
    fn parse(text: &[u8], partition: u32) -> Option<Self> {
        let (due, id) = str::from_utf8(text).ok()?.split_once(' ')?;
        let (us, token) = id.split_once('-')?;
        Some(Self {
            partition,
            due_ms: number(due)?,
            added_us: number(us)?,
            token: hexadecimal(token)?,
            repeated: false,
        })
    }

    /// Its id in the bucket.
    pub(super) fn id(&self) -> String {
        format!("{:016}-{:016x}", self.added_us, self.token)
    }
}

fn number(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

fn hexadecimal(text: &str) -> Option<u64> {
    let digits = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
    u64::from_str_radix(text, 16).ok().filter(|_| digits)
}

/// Its partition, when it is due in milliseconds since 1970, and its id: `3 1764507600000 …`.
impl fmt::Display for Delayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.partition, self.due_ms, self.id())
    }
}

/// Reads what [`Display`](fmt::Display) writes; [`repeated`](Self::repeated) is not part of it.
impl FromStr for Delayed {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let read = || {
            let (partition, rest) = text.split_once(' ')?;
            let partition = u32::try_from(number(partition)?).ok()?;
            Self::parse(rest.as_bytes(), partition)
        };
        read().ok_or_else(|| {
            let why = format!("{text:?} is no delayed message: write one down as it is displayed");
            Error::new(ErrorKind::Argument, "read", why)
        })
    }
}

/// A message under construction that is published later; see [`Draft::deliver_after`].
#[derive(Debug)]
#[must_use = "nothing is sent before `publish` is called"]
pub struct DraftDelayed<'a, P> {
    draft: Draft<'a, P>,
    when: When,
}

impl<'a, P> DraftDelayed<'a, P> {
    pub(super) fn new(draft: Draft<'a, P>, when: When) -> Self {
        Self { draft, when }
    }
}

#[expect(private_bounds, reason = "made only by publishers of this crate")]
impl<P: Publish> DraftDelayed<'_, P> {
    /// Has the server keep it until it is due. Blocks for one round trip, or two where the server has
    /// to be told the script; the user needs the rights to run scripts.
    ///
    /// Somebody has to publish it then, with rights that this call does not need: besides those to scripts and
    /// `XADD`, to `EXISTS`, `TIME`, `GET`, `SET`, `PEXPIRE`, `DEL`, `HGET`, `HDEL`, `ZADD`, `ZREM`, `ZRANGE` and
    /// `ZRANGEBYSCORE`, on the keys `re:dl:*` and `re:di:*` and those of the topic. Where this process lacks one of
    /// them it warns.
    ///
    /// # Errors
    ///
    /// As for [`Publisher::publish`](crate::Publisher::publish), and for a time before 1970 or more than 10
    /// years away. After an unknown outcome it may be kept, and be published when it is due; to do it
    /// again without a risk give it a [dedupe id](Draft::dedupe).
    pub fn publish(self) -> Result<Delayed> {
        let Self { draft, when } = self;
        draft.publisher.delay(&draft.message, when)
    }
}

/// A message with all that is said of it.
#[derive(Clone, Copy)]
pub(super) struct Kept<'a> {
    pub(super) entry: &'a Entry<'a>,
    pub(super) dedupe: Option<Dedupe<'a>>,
    pub(super) partition: u32,
    /// As [`When::encode`] has it.
    pub(super) when: (&'static [u8], u64),
}

impl Encoder {
    /// The bucket in which messages for this partition wait.
    fn bucket(&self, partition: u32) -> BucketKeys {
        BucketKeys::new(&self.plan().keys, &self.tag(partition))
    }

    /// Which of the streams that its bucket is moved to is this partition's.
    fn target(&self, partition: u32) -> u32 {
        if self.plan().settings.co_locate_partitions {
            partition
        } else {
            0
        }
    }

    /// Adds the command that puts an entry into its bucket; the item is written to `room` meanwhile.
    pub(super) fn schedule(
        &self,
        out: &mut Vec<u8>,
        room: &mut Vec<u8>,
        kept: Kept<'_>,
        form: Form,
    ) {
        let Kept {
            entry,
            dedupe,
            partition,
            when: (how, ms),
        } = kept;
        let settings = &self.plan().settings;
        let trimmed = item::Trimmed {
            how: settings.trim,
            max_len: settings.max_len,
        };
        room.clear();
        item::begin(room, self.target(partition), trimmed, entry.pair_count());
        entry.each_pair(|name, value| {
            item::text(room, name);
            item::text(room, value);
        });
        let more = usize::from(dedupe.is_some());
        let keys = self.bucket(partition);
        SCHEDULE.begin(out, form, 3 + more, 5 + more);
        resp::arg(out, keys.bucket.as_bytes());
        resp::arg(out, keys.items.as_bytes());
        resp::arg(out, keys.lease.as_bytes());
        if let Some(dedupe) = dedupe {
            resp::arg_joined(out, self.marker_prefix(partition), dedupe.id);
        }
        resp::arg(out, how);
        resp::arg_number(out, ms);
        resp::arg(out, room);
        resp::arg(out, self.plan().delays.token().as_bytes());
        resp::arg_number(out, clock::ceil_ms(LEASE));
        if let Some(dedupe) = dedupe {
            resp::arg_number(out, clock::ceil_ms(dedupe.ttl));
        }
    }

    /// What the server's reply to [`schedule`](Self::schedule) means. Counts the message, and tells the
    /// mover of it where nobody else would look in time.
    pub(super) fn scheduled(&self, head: Head, text: &[u8], partition: u32) -> Result<Delayed> {
        let plan = self.plan();
        if let Head::Error(_) = head {
            let prefix = plan.keys.prefix();
            let keys = ["dl:", "di:", "once:"].map(|family| format!("{prefix}{family}"));
            let e = Error::server("publish", text);
            let e = SCHEDULE.saying_what_to_grant(e, &keys.each_ref().map(|k| &**k));
            return Err(self.about(e, partition));
        }
        if text == b"far" {
            return Err(self.about(too_late(), partition));
        }
        if let Some(found) = text.strip_prefix(b"=") {
            let at_once = |id: StreamId| Delayed {
                partition,
                due_ms: id.ms(),
                added_us: 0,
                token: 0,
                repeated: true,
            };
            let found = Delayed::parse_marker(found, partition)
                .or_else(|| StreamId::parse(found).map(at_once));
            self.count_repeated();
            return found.ok_or_else(|| {
                let why = "the marker of its dedupe id holds what no publisher has written: delete it or \
                           use another dedupe id";
                let e = Error::config(why).with_outcome(Outcome::NotApplied);
                self.about(e, partition)
            });
        }
        let (text, first) = match text.strip_suffix(b" !") {
            Some(text) => (text, true),
            None => (text, false),
        };
        let Some(delayed) = Delayed::parse(text, partition) else {
            let why = "the reply is none that delaying has";
            let e = Error::new(ErrorKind::Protocol, "publish", why);
            return Err(self.about(e.with_outcome(Outcome::Unknown), partition));
        };
        plan.counts.add(Count::Scheduled, 1);
        if first {
            plan.delays.wake();
        }
        Ok(delayed)
    }

    /// Adds the command that takes a message out of its bucket.
    pub(super) fn withdraw(&self, out: &mut Vec<u8>, delayed: &Delayed, form: Form) {
        let keys = self.bucket(delayed.partition);
        CANCEL.begin(out, form, 2, 1);
        resp::arg(out, keys.bucket.as_bytes());
        resp::arg(out, keys.items.as_bytes());
        resp::arg(out, delayed.id().as_bytes());
    }

    /// What the server's reply to [`withdraw`](Self::withdraw) means.
    pub(super) fn withdrawn(&self, head: Head, text: &[u8], partition: u32) -> Result<bool> {
        match (head, text) {
            (Head::Scalar(_), b"0") => Ok(false),
            (Head::Scalar(_), b"1") => Ok(true),
            (Head::Error(_), _) => {
                let prefix = self.plan().keys.prefix();
                let keys = ["dl:", "di:"].map(|family| format!("{prefix}{family}"));
                let e = Error::server("cancel", text);
                Err(CANCEL.saying_what_to_grant(e, &keys.each_ref().map(|k| &**k)))
            }
            _ => {
                let why = "the reply is none that withdrawing has";
                let e = Error::new(ErrorKind::Protocol, "cancel", why);
                Err(e.with_outcome(Outcome::Unknown))
            }
        }
        .map_err(|e| self.about(e, partition).during("cancel"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_bounded_and_never_rounded_down() {
        let ms = Duration::from_millis;
        let at = |d| When::At(UNIX_EPOCH + d);
        let day = Duration::from_hours(24);
        for (when, how, expected) in [
            (When::After(Duration::ZERO), "after", 0),
            (When::After(Duration::from_nanos(1)), "after", 1),
            (When::After(LONGEST), "after", 315_576_000_000),
            (at(Duration::ZERO), "at", 0),
            (at(Duration::from_micros(1001)), "at", 2),
            (at(30_000 * day), "at", 30_000 * 86_400_000),
        ] {
            assert_eq!(when.encode().unwrap(), (how.as_bytes(), expected));
        }
        for (when, named) in [
            (When::After(LONGEST + ms(1)), "10 years"),
            (When::After(Duration::MAX), "10 years"),
            (When::At(UNIX_EPOCH - ms(1)), "1970"),
            (at(Duration::from_secs(1 << 50)), "10 years"),
        ] {
            let e = when.encode().unwrap_err();
            assert_eq!(
                (e.kind(), e.outcome()),
                (ErrorKind::Argument, Outcome::NotApplied)
            );
            assert!(e.to_string().contains(named), "{e}");
        }
    }

    #[test]
    fn what_is_delayed_is_written_down_and_read() {
        let delayed = Delayed {
            partition: 3,
            due_ms: 1_764_507_600_123,
            added_us: 1_764_507_500_000_123,
            token: 0xab,
            repeated: false,
        };
        let text = "3 1764507600123 1764507500000123-00000000000000ab";
        assert_eq!(delayed.to_string(), text);
        assert_eq!(text.parse::<Delayed>().unwrap(), delayed);
        let due = UNIX_EPOCH + Duration::from_millis(1_764_507_600_123);
        assert_eq!((delayed.due(), delayed.partition()), (due, 3));
        let marker = format!("~{}", &text[2..]);
        let found = Delayed::parse_marker(marker.as_bytes(), 3).unwrap();
        assert!(found.repeated() && found.id() == delayed.id());
        for bad in [
            "",
            "3",
            "3 1",
            "3 1 1",
            "3 1 1-ab",
            "x 1 1-00000000000000ab",
            "3 +1 1-00000000000000ab",
            "3 1 1-+0000000000000ab",
            "4294967296 1 1-00000000000000ab",
        ] {
            assert_eq!(
                bad.parse::<Delayed>().unwrap_err().kind(),
                ErrorKind::Argument
            );
        }
    }
}
