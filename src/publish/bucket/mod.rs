//! Delay buckets: what is to be appended to a stream later, kept on the server until it is due.
//!
//! A bucket is a sorted set of item ids, by the milliseconds of the server's clock at which each is due, and
//! a hash of the [items](item). Ids sort in the order in which they were added: the microsecond they were
//! added in, of 16 digits and made larger where it must be, then `-` and what tells processes apart.

mod delays;
pub(crate) mod item;
mod mover;

use std::time::Duration;

use redis::Value;

use crate::{
    Result,
    error::{Error, ErrorKind, Outcome},
    net::{
        Connection,
        script::{Script, by_hash_first},
    },
    wire::Keys,
};

pub(crate) use delays::{Delays, Terms};

/// Publishes what is due, in the order in which it became due, and in the order in which it was added where
/// that is the same.
///
/// Keys: the bucket, its items, where letters about broken items go (or the bucket again, where there is no
/// such place), then the streams, all in one slot. Arguments: how many are published at most; where letters
/// go, what follows the key in the XADD of one as far as it is the same for all, from `!` on.
///
/// Answers how many were published; in how many milliseconds the next is due, or -1 where there is none;
/// then the id and a text for each that could not be: why, and what follows. An empty id is for something that holds up all, such as
/// a server without memory: then nothing more was tried. Whatever else is wrong with one item is no matter of
/// the others: it is put off by a minute (where its stream is none of those given, by a second, for a topic
/// may have grown), or becomes a letter. What has no item is gone, and is said to be. Doing it again does what
/// is left.
///
/// It ends early after a mebibyte, so that it never holds the server up for long.
pub(crate) const MOVE: Script = Script {
    text: "#!lua
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local answer, moved, bytes = {0, -1}, 0, 0
local function say(id, what)
    answer[#answer + 1] = id
    answer[#answer + 1] = what
end
local function put_off(id, ms, why)
    redis.call('ZADD', KEYS[1], now + ms, id)
    say(id, why .. '; it is tried again in ' .. (ms == 1000 and 'a second' or 'a minute'))
end
local function take_out(id)
    redis.call('ZREM', KEYS[1], id)
    redis.call('HDEL', KEYS[2], id)
end
local function one(...)
    if select('#', ...) == 2 then return ... end
end
local function read(item)
    local good, parts = one(pcall(cmsgpack.unpack, item))
    if not good or type(parts) ~= 'table' then return end
    if #parts < 5 or #parts % 2 == 0 then return end
    for i = 1, #parts do
        if type(parts[i]) ~= 'string' then return end
    end
    return parts, tonumber(parts[1])
end
local function try(f)
    local good, e = pcall(f)
    if not good then return type(e) == 'table' and e.err or tostring(e) end
end
local function holds_up_all(why)
    for _, text in ipairs({'OOM ', 'READONLY ', 'MISCONF ', 'NOREPLICAS ', 'NOPERM', 'ACL failure',
        'user executing the script'}) do
        if string.find(why, text, 1, true) then return true end
    end
end
local function broken(id, item, why)
    local e = 'there is no place for letters'
    if KEYS[3] ~= KEYS[1] then
        local letter = {unpack(ARGV, 2)}
        for _, text in ipairs({'!since', now, '!until', now, '!error', why, 'item', item}) do
            letter[#letter + 1] = text
        end
        e = try(function() redis.call('XADD', KEYS[3], unpack(letter)) end)
    end
    if e then return put_off(id, 60000, why .. '; no dead letter: ' .. e) end
    take_out(id)
    say(id, why .. '; it is kept as a dead letter')
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])) do
    if bytes >= 1048576 then break end
    local item = redis.call('HGET', KEYS[2], id)
    if not item then
        take_out(id)
        say(id, 'its item is gone, and the message with it')
    else
        bytes = bytes + #item
        local parts, target = read(item)
        if not target then
            broken(id, item, 'its item is broken')
        elseif target < 1 or not KEYS[3 + target] then
            put_off(id, 1000, 'its partition is not known here')
        else
            local e = try(function()
                if parts[2] == '' then
                    redis.call('XADD', KEYS[3 + target], '*', unpack(parts, 4))
                else
                    redis.call('XADD', KEYS[3 + target], 'MAXLEN', parts[3], parts[2], '*', unpack(parts, 4))
                end
            end)
            if not e then
                take_out(id)
                moved = moved + 1
            elseif holds_up_all(e) then
                say('', e)
                break
            else
                put_off(id, 60000, e)
            end
        end
    end
end
answer[1] = moved
local head = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if head[2] then answer[2] = math.max(0, math.ceil(tonumber(head[2]) - now)) end
return answer",
    sha1: "9bfcae407909ad77c97ebf122fee6af3b6376e5b",
    commands: "+eval +evalsha +time +zrange +zrangebyscore +zadd +zrem +hget +hdel +xadd",
};

/// Keys: the bucket, its items, the mover's lease, and the marker of a dedupe id if there is one. Arguments:
/// `after` or `at`, milliseconds, the item, what tells processes apart, how long the lease lasts; the
/// milliseconds to remember the dedupe id for. Times are those of the server's clock.
///
/// What is due before all others, and soon, makes who adds it the mover, for nobody else knows of it: that is
/// said with `!` behind when it is due, and the id. A marker that is found is answered behind `=`. What is due
/// too late is answered with `far`.
pub(super) const SCHEDULE: Script = Script {
    text: "#!lua
local t = redis.call('TIME')
local us = t[1] * 1000000 + t[2]
local now = math.ceil(us / 1000)
local due = tonumber(ARGV[2])
if ARGV[1] == 'after' then due = due + now end
if due - now > 315576000000 then return 'far' end
if KEYS[4] then
    local found = redis.call('GET', KEYS[4])
    if found and found ~= '' then return '=' .. found end
    redis.call('SET', KEYS[4], '', 'PX', ARGV[6])
end
local last = redis.call('ZREVRANGEBYSCORE', KEYS[1], due, due, 'LIMIT', 0, 1)[1]
last = last and tonumber(string.sub(last, 1, 16))
if last and last >= us then us = last + 1 end
local head = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
local first = due - now < 2000 and (not head or tonumber(head) > due)
if first then redis.call('SET', KEYS[3], ARGV[4], 'PX', ARGV[5]) end
local id
repeat
    id = string.format('%016.0f-%s', us, ARGV[4])
    us = us + 1
until redis.call('HSETNX', KEYS[2], id, ARGV[3]) == 1
redis.call('ZADD', KEYS[1], due, id)
local answer = string.format('%.0f %s', due, id)
if KEYS[4] then redis.call('SET', KEYS[4], '~' .. answer, 'PX', ARGV[6]) end
return first and answer .. ' !' or answer",
    sha1: "7db0f889f95c866195aed1f739caacee5ab85cdf",
    commands: "+eval +evalsha +time +zrange +zrevrangebyscore +zadd +hsetnx +get +set",
};

/// Keys: the bucket, its items. Argument: an id. Says whether it was there.
pub(super) const CANCEL: Script = Script {
    text: "#!lua flags=allow-oom
local there = redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
return there",
    sha1: "293d1d7b0e082ef044af1c6c5b33bb1da42f8a8c",
    commands: "+eval +evalsha +zrem +hdel",
};

/// How long the mover's lease lasts unless it is renewed.
pub(super) const LEASE: Duration = Duration::from_secs(3);

/// The keys of the bucket of a topic's delayed messages.
#[derive(Debug)]
pub(super) struct BucketKeys {
    pub(super) bucket: String,
    pub(super) items: String,
    pub(super) lease: String,
}

impl BucketKeys {
    /// `tag` is the topic, or the key of a stream that is kept apart from the others.
    pub(super) fn new(keys: &Keys, tag: &str) -> Self {
        Self {
            bucket: keys.delays(tag),
            items: keys.delay_items(tag),
            lease: keys.delay_lease(tag),
        }
    }
}

/// A bucket, and where what is in it goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due<'a, K> {
    pub(crate) bucket: &'a [u8],
    pub(crate) items: &'a [u8],
    /// Where letters about broken items go, and how such a letter begins; see [`MOVE`].
    pub(crate) letters: Option<(&'a [u8], &'a [&'a [u8]])>,
    /// The streams, in the order in which items count them.
    pub(crate) targets: &'a [K],
}

/// What became of what was due.
#[derive(Debug, Default)]
pub(crate) struct Moved {
    /// How many were appended to their streams.
    pub(crate) published: u64,
    /// When the next is due; `None` when the bucket is empty.
    pub(crate) next: Option<Duration>,
    /// Those that could not be, why, and what follows.
    pub(crate) put_off: Vec<(String, String)>,
    /// What holds up all of them.
    pub(crate) refused: Option<Error>,
}

/// No more are moved at a time.
const AT_A_TIME: u32 = 100;

impl<K: AsRef<[u8]>> Due<'_, K> {
    /// Moves what is due, as much as one script may. Blocks for a round trip, or two when the server has to
    /// be told the script.
    ///
    /// # Errors
    ///
    /// The server's refusal of the whole. After any other error the connection must be given up. Doing it
    /// again does what is left.
    pub(crate) fn publish(&self, connection: &mut Connection, timeout: Duration) -> Result<Moved> {
        let (letters, letter) = self.letters.unwrap_or((self.bucket, &[]));
        let answer = by_hash_first(|form| {
            let (name, script) = MOVE.named(form);
            let mut cmd = redis::cmd(name);
            cmd.arg(script).arg(3 + self.targets.len());
            cmd.arg(self.bucket).arg(self.items).arg(letters);
            for key in self.targets {
                cmd.arg(key.as_ref());
            }
            cmd.arg(AT_A_TIME).arg(letter);
            connection.call(&cmd, timeout)
        });
        let answer = answer.map_err(|e| {
            let keys = [self.bucket, self.items].map(String::from_utf8_lossy);
            MOVE.saying_what_to_grant(e, &[&keys[0], &keys[1]])
        });
        read(&answer?).ok_or_else(|| {
            let what = "the answer is none that moving has";
            let e = Error::new(ErrorKind::Protocol, "move what is due", what);
            e.with_outcome(Outcome::Unknown).on_key(self.bucket)
        })
    }
}

fn read(answer: &Value) -> Option<Moved> {
    let Value::Array(parts) = answer else {
        return None;
    };
    let [Value::Int(moved), Value::Int(next), troubles @ ..] = &parts[..] else {
        return None;
    };
    let mut all = Moved {
        published: u64::try_from(*moved).ok()?,
        next: u64::try_from(*next).ok().map(Duration::from_millis),
        ..Moved::default()
    };
    for pair in troubles.chunks(2) {
        let [Value::BulkString(id), Value::BulkString(why)] = pair else {
            return None;
        };
        if id.is_empty() {
            all.refused = Some(Error::server("move what is due", why));
        } else {
            let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
            all.put_off.push((text(id), text(why)));
        }
    }
    Some(all)
}

#[cfg(all(test, not(loom)))]
mod tests;
