//! Publishing once under a dedupe id: a script that appends and leaves a marker, or finds the marker
//! of an earlier call.

use std::time::Duration;

use crate::{
    Result, StreamId, clock,
    error::{Error, ErrorKind, Outcome},
    net::{
        resp::{self, Head},
        script::{Form, Script},
    },
    wire::Entry,
};

use super::{Delayed, Encoder};

/// What became of a message with a dedupe id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct Published {
    /// The id of the message in its stream: of this one, or of the one that was stored before.
    pub id: StreamId,
    /// Whether a message with this dedupe id had been stored before, so that nothing was stored now. It
    /// may have been handled and trimmed away since. Never true without a dedupe id.
    pub repeated: bool,
}

impl Published {
    /// Of a message that was stored just now.
    pub(super) fn new(id: StreamId) -> Self {
        Self {
            id,
            repeated: false,
        }
    }
}

impl From<Published> for StreamId {
    fn from(published: Published) -> Self {
        published.id
    }
}

/// Under which id a message is stored once, and for how long that is remembered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Dedupe<'a> {
    pub(super) id: &'a [u8],
    pub(super) ttl: Duration,
}

/// The longest id that is taken: it becomes part of a key.
const LONGEST_ID: usize = 1024;

/// The longest time anything is remembered; the server adds it to its clock.
const LONGEST_TTL: Duration = Duration::from_hours(100 * 366 * 24);

/// Refuses what can be no marker: an id that is blank or too long, or a time as [`check_ttl`] does.
pub(super) fn check_marker(operation: &'static str, id: &[u8], ttl: Duration) -> Result<()> {
    let why = match id.len() {
        _ if id.trim_ascii().is_empty() => {
            "the id is empty or blank, so everything would be taken for the first".to_owned()
        }
        n if n > LONGEST_ID => {
            format!("the id has {n} bytes, more than {LONGEST_ID}: use a hash of it")
        }
        _ => return check_ttl(operation, ttl),
    };
    Err(Error::new(ErrorKind::Argument, operation, why))
}

/// Refuses a time below a millisecond or beyond all use.
pub(super) fn check_ttl(operation: &'static str, ttl: Duration) -> Result<()> {
    if (Duration::from_millis(1)..=LONGEST_TTL).contains(&ttl) {
        return Ok(());
    }
    let why =
        format!("it is to be remembered for {ttl:?}: say 1 ms or more, and at most 100 years");
    Err(Error::new(ErrorKind::Argument, operation, why))
}

/// Keys: the stream, the marker, and the payload where the body is kept apart. Arguments: the milliseconds to
/// remember it for; with a payload, the milliseconds that it lives, and the body; then what follows the
/// key in XADD. What may be refused is refused before anything is appended: the marker is written empty
/// first, and an empty one counts as none. That the payload cannot be deleted again never hides why nothing was
/// appended. Ids stay text throughout: numbers would lose their last
/// digits. A server without memory refuses the script as it does an XADD.
pub(super) const ONCE: Script = Script {
    text: "#!lua
local id = redis.call('GET', KEYS[2])
if id and id ~= '' then return '=' .. id end
redis.call('SET', KEYS[2], '', 'PX', ARGV[1])
local first = 2
if KEYS[3] then
  redis.call('SET', KEYS[3], ARGV[3], 'PX', ARGV[2])
  first = 4
end
id = redis.pcall('XADD', KEYS[1], unpack(ARGV, first))
if type(id) == 'table' then
  if KEYS[3] then redis.pcall('DEL', KEYS[3]) end
  return id
end
redis.call('SET', KEYS[2], id, 'PX', ARGV[1])
return id",
    sha1: "1c697e07ed20ded1160c04d1cd570bb13646b93d",
    commands: "+eval +evalsha +get +set +xadd +del",
};

/// What the script puts before an id that it found.
const FOUND: &[u8] = b"=";

impl Encoder {
    /// Adds the command that appends an entry unless that was done before.
    pub(super) fn once(
        &self,
        out: &mut Vec<u8>,
        entry: &Entry<'_>,
        dedupe: Dedupe<'_>,
        partition: u32,
        form: Form,
    ) {
        if self.payloads().takes(entry.body.len()) {
            return self.once_apart(out, entry, dedupe, partition, form);
        }
        ONCE.begin(out, form, 2, 1 + self.args_after_key(entry));
        self.once_keys(out, dedupe, partition);
        resp::arg_number(out, clock::ceil_ms(dedupe.ttl));
        self.after_key(out, entry);
    }

    pub(super) fn once_keys(&self, out: &mut Vec<u8>, dedupe: Dedupe<'_>, partition: u32) {
        resp::arg(out, self.stream(partition));
        resp::arg_joined(out, self.marker_prefix(partition), dedupe.id);
    }

    /// What the server's reply to [`once`](Self::once) means. Counts the message.
    pub(super) fn published(&self, head: Head, text: &[u8], partition: u32) -> Result<Published> {
        let Some(found) = text.strip_prefix(FOUND) else {
            let id = self.id(head, text, partition).map(Published::new);
            return id.map_err(|e| ONCE.saying_what_to_grant(e, &[&self.marker_family()]));
        };
        let Some(id) = StreamId::parse(found) else {
            if Delayed::parse_marker(found, partition).is_some() {
                let why = "a message with this dedupe id waits for its time, or was withdrawn: publish this \
                           one with a delay too, to learn which, or use another dedupe id";
                let e = Error::new(ErrorKind::Argument, "publish", why);
                return Err(self.about(e, partition));
            }
            let why = "the marker of its dedupe id holds something else than an entry's id: it was not \
                       written by a publisher, so delete it or use another dedupe id";
            let e = Error::config(why).with_outcome(Outcome::NotApplied);
            return Err(self.about(e, partition));
        };
        self.count_repeated();
        Ok(Published { id, repeated: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_has_an_id_and_a_time_within_bounds() {
        let ms = Duration::from_millis;
        let (one, long, longer) = (
            &b"x"[..],
            vec![b'x'; LONGEST_ID],
            vec![b'x'; LONGEST_ID + 1],
        );
        for (id, ttl, refused) in [
            (one, ms(1), None),
            (&long, LONGEST_TTL, None),
            (b"\0\xff{}", ms(1000), None),
            (b"", ms(1), Some("blank")),
            (b" \n", ms(1), Some("blank")),
            (&longer, ms(1), Some("1024")),
            (one, Duration::ZERO, Some("1 ms")),
            (one, Duration::from_nanos(999_999), Some("1 ms")),
            (one, LONGEST_TTL + ms(1), Some("100 years")),
            (one, Duration::MAX, Some("100 years")),
        ] {
            let checked = check_marker("publish", id, ttl);
            match (checked, refused) {
                (Ok(()), None) => {}
                (Err(e), Some(named)) => {
                    assert_eq!((e.kind(), e.operation()), (ErrorKind::Argument, "publish"));
                    assert!(e.to_string().contains(named), "{e}");
                }
                (checked, _) => panic!("{ttl:?}: {checked:?}"),
            }
        }
    }
}
