//! Publishing the message of a dead letter once more.

use std::{borrow::Cow, time::SystemTime};

use crate::{
    Result, StreamId, clock,
    error::{Error, ErrorKind},
    monitor::LetterCounts,
    net::{
        Connection,
        script::{Script, by_hash_first},
    },
    queue::Origin,
    wire::{FIRST_ID, Headers, PAYLOAD_MISSING, REFERENCE, REFERENCE_MAX, Reference, pack_one},
};

use super::dead_letters::{DeadLetter, DeadLetters};

/// Who gets the message of a dead letter that is replayed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ReplayTo {
    /// It is published as a new message on its partition, so that every consumer of the topic is given it,
    /// those included which handled it the first time.
    EveryConsumerOfTheTopic,
    /// Only the consumer that failed at it is given it once more, which has to read the topic as a
    /// [queue](crate::Delivery): its attempts begin anew, and it keeps its id.
    ThisConsumer,
}

/// What became of a dead letter that was to be replayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Replay {
    /// Its message is published again, as this one.
    Replayed(StreamId),
    /// It had been replayed before, and nothing was done.
    Before(Replayed),
    /// There is no such letter any more.
    Gone,
    /// It is no proper message, and would be none the next time: publish a mended one instead.
    Malformed,
    /// Its body was kept apart and is lost, and it was not asked for
    /// [even without](DeadLetters::even_without_body).
    PayloadMissing,
}

/// As what a dead letter was replayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Replayed {
    /// The id of the new message.
    pub id: StreamId,
    /// When, on the server's clock.
    pub at: SystemTime,
}

impl Replayed {
    /// As it is noted: the milliseconds and the id.
    pub(super) fn parse(mark: &[u8]) -> Option<Self> {
        let mut parts = mark.split(|b| *b == b' ');
        let ms = std::str::from_utf8(parts.next()?).ok()?.parse().ok()?;
        Some(Self {
            id: StreamId::parse(parts.next()?)?,
            at: StreamId::new(ms, 0).timestamp(),
        })
    }
}

/// `KEYS`: the dead letters; what is noted of them; the stream of the partition; the payload, where the body is
/// to be kept apart. `ARGV`: the id of the letter; with a payload, the milliseconds that it lives, and the body;
/// the fields of the new message. It answers `d` and the new id; `a` and what is noted, when that was done
/// before; `g` when there is no such letter; `n` when there is no such stream. When there are many more notes
/// than letters, some are looked at, and those of letters that are gone are deleted: never so many at a time
/// that the server is held up.
const REPLAY: Script = Script {
    text: r"#!lua
local letters, marks, stream = unpack(KEYS)
local id = ARGV[1]
local mark = redis.call('HGET', marks, id)
if mark then return 'a' .. mark end
if #redis.call('XRANGE', letters, id, id) == 0 then return 'g' end
local first, payload = 2, KEYS[4]
if payload then
  redis.call('SET', payload, ARGV[3], 'PX', ARGV[2])
  first = 4
end
local new = redis.pcall('XADD', stream, 'NOMKSTREAM', '*', unpack(ARGV, first))
local refused = type(new) == 'table'
if payload and (refused or not new) then redis.call('DEL', payload) end
if refused then return new end
if not new then return 'n' end
local t = redis.call('TIME')
redis.call('HSET', marks, id, string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000)) .. ' ' .. new)
if redis.call('HLEN', marks) > 2 * redis.call('XLEN', letters) + 1000 then
  for _, field in ipairs(redis.call('HRANDFIELD', marks, 100)) do
    if string.match(field, '^%d+%-%d+$') and #redis.call('XRANGE', letters, field, field) == 0 then
      redis.call('HDEL', marks, field)
    end
  end
end
return 'd' .. new",
    sha1: "99ee8915d8f03c87fd1297c48c36df200e1eaf4f",
    commands: "+eval +evalsha +time +hget +hset +hdel +hlen +hrandfield +xadd +xlen +xrange +set +del",
};

impl DeadLetters {
    /// Replays those as well whose bodies were kept apart and are lost, with an empty body and marked as such: the
    /// header `streamlane-payload-missing` says how many bytes it had. Otherwise they are not replayed.
    pub fn even_without_body(mut self) -> Self {
        self.even_without_body = true;
        self
    }

    /// Refuses, with a configuration error, a topic whose partitions lie in several slots.
    pub(super) fn refuse_spread(&self) -> Result<()> {
        match self.shared.settings.topics.get(&self.topic) {
            Some(topic) if !topic.co_locate_partitions => Err(Error::config(format!(
                "topic {:?} has CoLocatePartitions false, so its messages and the dead letters lie in different \
                 slots of a cluster, and cannot be written together; publish the message again by hand",
                self.topic
            ))),
            _ => Ok(()),
        }
    }

    /// Takes what was done into the counters of this process.
    pub(super) fn count_done(&self, change: impl FnOnce(&mut LetterCounts)) {
        let counts = &self.shared.counts;
        counts.count(&self.topic, &self.consumer, change);
    }

    pub(super) fn replay_counted(
        &self,
        connection: &mut Connection,
        letter: &DeadLetter,
        to: ReplayTo,
    ) -> Result<Replay> {
        let done = self.replay_one(connection, letter, to);
        match done {
            Ok(Replay::Replayed(_)) => self.count_done(|counts| counts.replayed += 1),
            Ok(Replay::Before(_) | Replay::Gone) => {}
            Ok(Replay::Malformed | Replay::PayloadMissing) | Err(_) => {
                self.count_done(|counts| counts.not_replayed += 1);
            }
        }
        done
    }

    fn replay_one(
        &self,
        connection: &mut Connection,
        letter: &DeadLetter,
        to: ReplayTo,
    ) -> Result<Replay> {
        if letter.lost_body().is_some() && !self.even_without_body {
            return Ok(Replay::PayloadMissing);
        }
        let keys = &self.shared.keys;
        let (fields, stream) = match to {
            ReplayTo::EveryConsumerOfTheTopic => {
                let stream = keys.stream(&self.topic, letter.partition, true);
                (fields(letter), stream)
            }
            ReplayTo::ThisConsumer => {
                let stream = keys.retries(&self.topic, &self.consumer);
                (fields_of_its_own(letter), stream)
            }
        };
        let Some(mut fields) = fields else {
            return Ok(Replay::Malformed);
        };
        let payload = self.take_apart(letter, &mut fields);
        let answer = by_hash_first(|form| {
            let (name, script) = REPLAY.named(form);
            let mut cmd = redis::cmd(name);
            cmd.arg(script).arg(3 + usize::from(payload.is_some()));
            cmd.arg(keys.dead_letters(&self.topic, &self.consumer));
            cmd.arg(keys.dead_letters_meta(&self.topic, &self.consumer));
            cmd.arg(&*stream);
            if let Some(payload) = &payload {
                cmd.arg(&payload.key).arg(letter.id.to_string());
                cmd.arg(payload.ttl_ms).arg(&payload.body[..]);
            } else {
                cmd.arg(letter.id.to_string());
            }
            for (name, value) in &fields {
                cmd.arg(&name[..]).arg(&value[..]);
            }
            connection.ask::<Vec<u8>>(&cmd, self.timeout)
        });
        let answer = answer.map_err(|e| {
            let letters = keys.dead_letters(&self.topic, &self.consumer);
            REPLAY
                .saying_what_to_grant(e, &[&letters, &keys.payload(&self.topic)])
                .during("replay a dead letter")
                .on_key(&*stream)
        })?;
        let odd = || {
            let what = "the answer is none of the script's";
            Error::new(ErrorKind::Protocol, "replay a dead letter", what)
        };
        let (first, rest) = answer.split_first().ok_or_else(odd)?;
        match first {
            b'd' => Ok(Replay::Replayed(StreamId::parse(rest).ok_or_else(odd)?)),
            b'a' => Ok(Replay::Before(Replayed::parse(rest).ok_or_else(odd)?)),
            b'g' => Ok(Replay::Gone),
            b'n' => {
                let what = match to {
                    ReplayTo::EveryConsumerOfTheTopic => {
                        "the partition has no stream under this key, so nobody would read it there"
                    }
                    ReplayTo::ThisConsumer => {
                        "the consumer does not read the topic as a queue, and has nothing of its own to replay \
                         into: say ReplayTo::EveryConsumerOfTheTopic, if that is what should be"
                    }
                };
                Err(Error::config(what)
                    .during("replay a dead letter")
                    .on_key(&*stream))
            }
            _ => Err(odd()),
        }
    }
}

impl DeadLetter {
    /// What refers to a body that is kept apart, and so is lost: otherwise the letter had it.
    pub(super) fn reference(&self) -> Option<&[u8]> {
        let is_empty = self.field(b"b").is_some_and(<[u8]>::is_empty);
        self.field(REFERENCE).filter(|_| is_empty)
    }

    /// That, if it is a proper one.
    pub(super) fn lost_body(&self) -> Option<Reference> {
        Reference::parse(self.reference()?)
    }
}

/// A body that is to be kept apart.
struct Payload<'a> {
    key: Vec<u8>,
    ttl_ms: u64,
    body: Cow<'a, [u8]>,
}

impl DeadLetters {
    /// Takes a body out of the fields that is to be kept apart: because it was, or because of its size.
    fn take_apart<'a>(
        &self,
        letter: &DeadLetter,
        fields: &mut Vec<Field<'a>>,
    ) -> Option<Payload<'a>> {
        let topic = self.shared.settings.topic(&self.topic);
        let (_, body) = fields.iter_mut().rfind(|(name, _)| *name == b"b")?;
        if body.is_empty() || !letter.was_apart && body.len() <= topic.most_inline() {
            return None;
        }
        let reference = Reference::mint(body.len());
        let payload = Payload {
            key: [
                self.shared.keys.payload(&self.topic).as_bytes(),
                reference.id(),
            ]
            .concat(),
            ttl_ms: clock::ceil_ms(topic.payload_ttl),
            body: std::mem::take(body),
        };
        let reference = reference.encode(&mut [0; REFERENCE_MAX]).to_vec();
        fields.push((REFERENCE, reference.into()));
        Some(payload)
    }
}

/// Name and value.
type Field<'a> = (&'a [u8], Cow<'a, [u8]>);

/// The fields of an entry of the consumer's own retry stream. `None` when they make no proper message.
fn fields_of_its_own(letter: &DeadLetter) -> Option<Vec<Field<'_>>> {
    let own = Origin::anew(letter.partition, letter.first_id).pairs();
    let own = own
        .into_iter()
        .map(|(name, value)| (name.as_bytes(), value.into_bytes().into()));
    Some(own.chain(message(letter, Vec::new())?).collect())
}

/// The fields of the new message: those it had, and in its headers the id that it had first. `None` when they
/// make no proper message.
fn fields(letter: &DeadLetter) -> Option<Vec<Field<'_>>> {
    let mut added = Vec::new();
    // one that was replayed before keeps the first of all
    let block = letter.field(b"h").unwrap_or_default();
    if Headers::new(block).get(FIRST_ID).ok()?.is_none() {
        added.push((FIRST_ID, letter.first_id.to_string()));
    }
    message(letter, added)
}

/// The fields of the message, with these headers and what says that it has lost its body. `None` when they make
/// no proper message.
fn message<'a>(letter: &'a DeadLetter, mut added: Vec<(&str, String)>) -> Option<Vec<Field<'a>>> {
    letter.message_type()?;
    let lost = letter.lost_body();
    if lost.is_none() && (letter.body().is_none() || letter.reference().is_some()) {
        return None;
    }
    let mut fields: Vec<_> = letter
        .fields
        .iter()
        .map(|(name, value)| (&name[..], Cow::from(&value[..])))
        .collect();
    // Readers take the last field of a name.
    let at = fields.iter().rposition(|(name, _)| *name == b"h");
    let block = at.map_or(&b""[..], |at| &letter.fields[at].1);
    Headers::new(block).check().ok()?;
    if let Some(lost) = lost {
        added.push((PAYLOAD_MISSING, lost.len().to_string()));
    }
    if added.is_empty() {
        return Some(fields);
    }
    let mut block = block.to_vec();
    for (name, value) in &added {
        pack_one(&mut block, name.as_bytes());
        pack_one(&mut block, value.as_bytes());
    }
    match at {
        Some(at) => fields[at].1 = block.into(),
        None => fields.push((b"h", block.into())),
    }
    if lost.is_some() {
        fields.retain(|(name, _)| name != REFERENCE);
    }
    Some(fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::PrivateServer;

    #[test]
    fn the_server_knows_the_script_by_its_hash() {
        let server = PrivateServer::start().unwrap();
        let known = server.command(&["SCRIPT", "LOAD", REPLAY.text]).unwrap();
        assert_eq!(known.text(), REPLAY.sha1);
    }

    #[test]
    fn notes_of_letters_that_are_gone_go_little_by_little() {
        const STALE: i64 = 2000;
        let server = PrivateServer::start().unwrap();
        server.command(&["XADD", "s", "1-1", "b", ""]).unwrap();
        let stale = (0..STALE).map(|n| [format!("7-{n}"), "1 1-0".to_owned()]);
        let stale: Vec<String> = stale.flatten().collect();
        let head = ["HSET", "marks", "p0", "8-0 9-0"].map(str::to_owned);
        server.command(&[&head[..], &stale].concat()).unwrap();
        let notes = || server.command(&["HLEN", "marks"]).unwrap().int().unwrap();
        for n in 1..=5 {
            let (id, before) = (format!("9-{n}"), notes());
            server.command(&["XADD", "letters", &id, "!", "1"]).unwrap();
            let replay = ["EVAL", REPLAY.text, "3", "letters", "marks", "s", &id];
            let replay = [&replay[..], &["b", "body"]].concat();
            assert!(server.command(&replay).unwrap().text().starts_with('d'));
            assert!((before - 99..before).contains(&notes()), "{}", notes());
            // the second time it is known
            assert!(server.command(&replay).unwrap().text().starts_with('a'));
        }
        // what is noted of partitions, and of letters that are there, stays
        let kept = ["HMGET", "marks", "p0", "9-1", "9-5"];
        let kept = server.command(&kept).unwrap();
        assert!(kept.items().iter().all(|n| !n.text().is_empty()));
    }
}
