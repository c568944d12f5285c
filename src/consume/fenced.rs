//! Storing positions under a claim: scripts that look at the claim, the reset marker and the stored
//! position first, and store a position only if nothing speaks against it.
//!
//! Ids are compared as texts, for numbers of 64 bits lose their last digits in Lua.

use crate::{net::script::Script, ownership::owner_of};

/// Lua: the two halves of the id that a position begins with, without leading zeros; nothing where it is none.
/// `less` compares two halves as numbers.
macro_rules! parts_of_ids {
    () => {
        r"local function less(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end
local function parts(value)
  local ms, seq = string.match(value .. '|', '^0*(%d+)-0*(%d+)|')
  local most = '18446744073709551615'
  if ms and not less(most, ms) and not less(most, seq) then return ms, seq end
end
"
    };
}

/// `KEYS`: the position hash; the hash of diagnostics; the ownership hash; the set of expiries beside
/// it. `ARGV`: our claim; `f` where hash fields expire by themselves, else `s`; then a partition, its
/// value, and its ordinal or nothing, and so on.
///
/// It answers one letter for each, as [`Fate::of`] reads them. What is stored already, as where the answer
/// was lost, is not written again: in the server's own log of commands positions only rise.
pub(super) const STORE: Script = Script {
    text: concat!(
        "#!lua flags=allow-oom\n",
        parts_of_ids!(),
        r"local positions, meta, hash, set = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local me, by_field = ARGV[1], ARGV[2] == 'f'
local function behind(value, stored)
  -- mostly both halves have as many digits as before
  if value > stored
    and string.find(value, '-', 1, true) == string.find(stored, '-', 1, true)
    and string.find(value, '|', 1, true) == string.find(stored, '|', 1, true) then
    return false
  end
  local ms, seq = parts(value)
  local stored_ms, stored_seq = parts(stored)
  if not stored_ms then return false end
  if ms ~= stored_ms then return less(ms, stored_ms) end
  return less(seq, stored_seq)
end
local partitions, fields = {}, {}
for i = 3, #ARGV, 3 do
  partitions[#partitions + 1] = ARGV[i]
  fields[#fields + 1] = ARGV[i]
  fields[#fields + 1] = '__reset:' .. ARGV[i]
end
local owners = redis.call('HMGET', hash, unpack(partitions))
if not by_field then
  local t = redis.call('TIME')
  local now = t[1] * 1000 + math.floor(t[2] / 1000)
  for i, score in ipairs(redis.call('ZMSCORE', set, unpack(partitions))) do
    if score and tonumber(score) <= now then owners[i] = false end
  end
end
local found = redis.call('HMGET', positions, unpack(fields))
local fates, moved, counted = {}, {}, {}
for i, p in ipairs(partitions) do
  local value, ordinal = ARGV[3 * i + 1], ARGV[3 * i + 2]
  local stored, reset = found[2 * i - 1], found[2 * i]
  if not owners[i] then
    fates[i] = 'm'
  elseif owners[i] ~= me then
    fates[i] = 'o'
  elseif reset then
    fates[i] = 'r'
  elseif stored and behind(value, stored) then
    fates[i] = 'b'
  else
    fates[i] = 'd'
    if stored ~= value then
      moved[#moved + 1] = p
      moved[#moved + 1] = value
    end
    if ordinal ~= '' then
      counted[#counted + 1] = p .. ':ordinal'
      counted[#counted + 1] = ordinal
    end
  end
end
if #moved > 0 then redis.call('HSET', positions, unpack(moved)) end
if #counted > 0 then redis.call('HSET', meta, unpack(counted)) end
return table.concat(fates)"
    ),
    sha1: "e6dcc5a10608fd24c4dea3fafcb28ceb7cd69504",
    commands: "+eval +evalsha +time +hmget +hset +zmscore",
};

/// The position of one partition, wherever the stored one is: a reset, or a stream that is another.
///
/// `KEYS`: the position hash; the ownership hash; the set of expiries beside it. `ARGV`: our claim, or
/// nothing where there are none; `f` or `s` as for [`STORE`]; the partition; the value; and the value of
/// the marker that asks for it, or nothing. It answers a letter as [`STORE`] does; the marker is deleted.
pub(super) const MOVE: Script = Script {
    text: concat!(
        "#!lua flags=allow-oom\n",
        owner_of!(),
        r"local positions, hash, set = KEYS[1], KEYS[2], KEYS[3]
local me, by_field, p, value, marker = ARGV[1], ARGV[2] == 'f', ARGV[3], ARGV[4], ARGV[5]
if me ~= '' then
  local owner = owner_of(p, hash, set, by_field)
  if not owner then return 'm' end
  if owner ~= me then return 'o' end
end
local found = redis.call('HGET', positions, '__reset:' .. p)
if found and found ~= marker then return 'r' end
redis.call('HSET', positions, p, value)
redis.call('HDEL', positions, '__reset:' .. p)
return 'd'"
    ),
    sha1: "cdb0db89d4a05b6a9b30f8888551230162c4e243",
    commands: "+eval +evalsha +time +hget +hset +hdel +zscore",
};

/// How often lanes of a partition began with a message.
///
/// `KEYS`: the hash of diagnostics; the ownership hash; the set of expiries beside it. `ARGV`: our claim;
/// `f` or `s` as for [`STORE`]; the partition; the field, and its value. It answers a letter as [`STORE`] does.
pub(super) const COUNT: Script = Script {
    text: concat!(
        "#!lua flags=allow-oom\n",
        owner_of!(),
        r"local meta, hash, set = KEYS[1], KEYS[2], KEYS[3]
local me, by_field, p, field, value = ARGV[1], ARGV[2] == 'f', ARGV[3], ARGV[4], ARGV[5]
local owner = owner_of(p, hash, set, by_field)
if not owner then return 'm' end
if owner ~= me then return 'o' end
redis.call('HSET', meta, field, value)
return 'd'"
    ),
    sha1: "63b1d537728ec68ecccb9fd23e89ca271f3f5aa9",
    commands: "+eval +evalsha +time +hget +hset +zscore",
};

/// A dead letter, and the position of its partition moved past its message: both or neither.
///
/// `KEYS`: the position hash; the hash of diagnostics; the ownership hash; the set of expiries beside it;
/// the dead letters; what is noted of them. `ARGV`: our claim, or nothing where there are none; `f` or `s`
/// as for [`STORE`]; the partition; its new value, or nothing where positions are not stored; its ordinal
/// or nothing; the id of the message; how many letters to keep; for how many milliseconds, or 0; how many
/// milliseconds ago the message failed first, and last; how many own fields the letter has; then its
/// fields, the message's behind its own, as [`Letter`](crate::wire::Letter) has them.
///
/// It answers a letter as [`STORE`] does, with the id of the dead letter behind a `d`. What was done
/// already, as where the answer was lost, is not done again: the last letter of each partition is noted.
/// That holds also where the position was moved back since, unless that letter was deleted or replayed.
pub(super) const PARK: Script = Script {
    text: concat!(
        "#!lua flags=allow-oom\n",
        owner_of!(),
        parts_of_ids!(),
        r"local positions, meta, hash, set, letters, marks = unpack(KEYS)
local me, by_field, p, value, ordinal, id = ARGV[1], ARGV[2] == 'f', ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local function reached(value, stored)
  local ms, seq = parts(value)
  local stored_ms, stored_seq = parts(stored)
  if not stored_ms then return false end
  if ms ~= stored_ms then return less(ms, stored_ms) end
  return not less(stored_seq, seq)
end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
if me ~= '' then
  local owner = owner_of(p, hash, set, by_field)
  if not owner then return 'm' end
  if owner ~= me then return 'o' end
end
local found = redis.call('HMGET', positions, p, '__reset:' .. p)
if found[2] and value ~= '' then return 'r' end
local mark = redis.call('HGET', marks, 'p' .. p) or ''
local last, letter = string.match(mark, '^(%d+%-%d+) (%d+%-%d+)$')
if value ~= '' and found[1] and reached(value, found[1]) then
  if last == id then return 'd' .. letter end
  return 'b'
end
local kept = last == id and redis.call('HEXISTS', marks, letter) == 0
if not kept or #redis.call('XRANGE', letters, letter, letter) == 0 then
  local function ago(ms) return string.format('%.0f', now - ms) end
  letter = redis.call('XADD', letters, 'MAXLEN', '~', ARGV[7], '*', '!', ARGV[11],
    '!since', ago(ARGV[9]), '!until', ago(ARGV[10]), unpack(ARGV, 12))
  redis.call('HSET', marks, 'p' .. p, id .. ' ' .. letter)
  if ARGV[8] ~= '0' then redis.call('XTRIM', letters, 'MINID', '~', ago(ARGV[8])) end
end
if value ~= '' then
  redis.call('HSET', positions, p, value)
  if ordinal ~= '' then redis.call('HSET', meta, p .. ':ordinal', ordinal) end
end
return 'd' .. letter"
    ),
    sha1: "4eca8bfe47e34611f577b2ecfdf7b8d4ebd9dbe0",
    commands: "+eval +evalsha +time +hget +hmget +hset +hexists +zscore +xadd +xrange +xtrim",
};

/// What became of one position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Stored,
    /// Nobody has a claim: it is to be made again.
    Unclaimed,
    /// Another has the claim: nothing of ours counts any more.
    Anothers,
    /// A reset waits to be taken.
    Reset,
    /// What is stored lies ahead.
    Behind,
}

impl Fate {
    pub(super) fn of(letter: u8) -> Option<Self> {
        Some(match letter {
            b'd' => Self::Stored,
            b'm' => Self::Unclaimed,
            b'o' => Self::Anothers,
            b'r' => Self::Reset,
            b'b' => Self::Behind,
            _ => return None,
        })
    }

    /// Why a position is not stored, for people.
    pub(super) fn why(self) -> &'static str {
        match self {
            Self::Stored => "it is stored",
            Self::Unclaimed => "the claim is gone from the server, and is made again",
            Self::Anothers => "another instance owns the partition",
            Self::Reset => "a reset waits to be taken",
            Self::Behind => "what is stored lies ahead",
        }
    }
}
