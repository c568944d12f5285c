//! What a member of a group does to the server, each in one step: a script that first compares who the
//! entry belongs to. A plain `XCLAIM` by somebody who was given up for dead would steal an entry back, and
//! a plain `XACK` of his succeeds while another handles it.

use crate::{net::script::Script, ownership::owner_of};

/// How the scripts of a lane begin. `KEYS`: the stream; the ownership hash, and the set of expiries beside it.
/// `ARGV`: the group; the member; its claim, or nothing where partitions are not claimed; `f` where hash
/// fields expire by themselves, else `s`; the partition; `x` where what is acknowledged is deleted from the
/// stream, else `k`.
///
/// They answer with an error `UNCLAIMED` or `CLAIMED` where the partition is nobody's, or another's.
macro_rules! of_a_lane {
    ($rest:literal) => {
        concat!(
            "#!lua flags=allow-oom\n",
            owner_of!(),
            r"local key, hash, set = KEYS[1], KEYS[2], KEYS[3]
local group, me, claim, by_field, p, deletes = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == 'f', ARGV[5], ARGV[6] == 'x'
if claim ~= '' then
  local owner = owner_of(p, hash, set, by_field)
  if not owner then return redis.error_reply('UNCLAIMED the partition is nobody\'s') end
  if owner ~= claim then return redis.error_reply('CLAIMED the partition is another\'s') end
end
",
            $rest
        )
    };
}

/// Acknowledges what is this member's. After the common arguments: the ids, ascending. It answers a letter for
/// each: `d` when that was done, `x` when the entry is not this member's (any more). Where nobody else has
/// anything all can be acknowledged without a look at each, and `y` stands for one that was nobody's, whichever
/// that is.
pub(super) const ACK: Script = Script {
    text: of_a_lane!(
        r"local n = #ARGV - 6
local function acknowledge(ids, from)
  local n = 0
  for i = from, #ids, 1000 do
    local last = math.min(i + 999, #ids)
    n = n + redis.call('XACK', key, group, unpack(ids, i, last))
    if deletes then redis.call('XDEL', key, unpack(ids, i, last)) end
  end
  return n
end
local members = redis.call('XPENDING', key, group)[4] or {}
if #members == 1 and members[1][1] == me then
  local done = acknowledge(ARGV, 7)
  return string.rep('d', done) .. string.rep('y', n - done)
end
local mine, found = {}, redis.call('XPENDING', key, group, ARGV[7], ARGV[#ARGV], n, me)
for _, entry in ipairs(found) do mine[entry[1]] = true end
local done, fates = {}, {}
for i = 7, #ARGV do
  local id = ARGV[i]
  if mine[id] or #found == n and #redis.call('XPENDING', key, group, id, id, 1, me) == 1 then
    done[#done + 1] = id
    fates[#fates + 1] = 'd'
  else
    fates[#fates + 1] = 'x'
  end
end
acknowledge(done, 1)
return table.concat(fates)"
    ),
    sha1: "cb73fdad6c103b5edb69e3086652c8993c18a128",
    commands: "+eval +evalsha +time +hget +zscore +xpending +xack +xdel",
};

/// Makes an entry a dead letter and acknowledges it: both or neither. Two more `KEYS`: the dead letters; what
/// is noted of them. After the common arguments: the id; how many letters to keep; for how many milliseconds,
/// or 0; how many milliseconds ago the message failed first, and last; how many own fields the letter has;
/// then its fields, the message's behind its own, as [`Letter`](crate::wire::Letter) has them.
///
/// It answers the id of the letter, or `x` when the entry is not this member's (any more).
pub(super) const PARK: Script = Script {
    text: of_a_lane!(
        r"local letters, id = KEYS[4], ARGV[7]
if #redis.call('XPENDING', key, group, id, id, 1, me) == 0 then return 'x' end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local function ago(ms) return string.format('%.0f', now - ms) end
local letter = redis.call('XADD', letters, 'MAXLEN', '~', ARGV[8], '*', '!', ARGV[12],
  '!since', ago(ARGV[10]), '!until', ago(ARGV[11]), unpack(ARGV, 13))
redis.call('XACK', key, group, id)
if deletes then redis.call('XDEL', key, id) end
if ARGV[9] ~= '0' then redis.call('XTRIM', letters, 'MINID', '~', ago(ARGV[9])) end
return letter"
    ),
    sha1: "182b397ffaac4ce97e7fd7fc34983bf648489044",
    commands: "+eval +evalsha +time +hget +zscore +xpending +xack +xdel +xadd +xtrim",
};

/// Puts an entry into the delay bucket and acknowledges it: both or neither. Two more `KEYS`: the bucket, its
/// items. After the common arguments: the id; the id of the item; the delay in milliseconds; then the fields.
///
/// It answers `d` when that was done, or had been, and `x` when the entry is not this member's (any more).
pub(super) const RETRY: Script = Script {
    text: of_a_lane!(
        r"local bucket, items, id, item = KEYS[4], KEYS[5], ARGV[7], ARGV[8]
if #redis.call('XPENDING', key, group, id, id, 1, me) == 0 then
  return redis.call('HEXISTS', items, item) == 1 and 'd' or 'x'
end
local t = redis.call('TIME')
local due = t[1] * 1000 + math.floor(t[2] / 1000) + ARGV[9]
redis.call('HSET', items, item, cmsgpack.pack({'1', '', '~', unpack(ARGV, 10)}))
redis.call('ZADD', bucket, string.format('%.0f', due), item)
redis.call('XACK', key, group, id)
if deletes then redis.call('XDEL', key, id) end
return 'd'"
    ),
    sha1: "d55803ab1c47ba9b5b2aa2af0c3d1f7b991f3552",
    commands: "+eval +evalsha +time +hget +zscore +xpending +xack +xdel +hset +hexists +zadd",
};

/// Keeps entries alive that are in the hands of a handler. `KEYS`: the stream. `ARGV`: the group; the member;
/// the ids, ascending. How often they were delivered stays. It answers how many are not this member's (any
/// more).
pub(super) const KEEP: Script = Script {
    text: r"#!lua flags=allow-oom
local key, group, me = KEYS[1], ARGV[1], ARGV[2]
local n, mine = #ARGV - 2, {}
local found = redis.call('XPENDING', key, group, ARGV[3], ARGV[#ARGV], n, me)
for _, entry in ipairs(found) do mine[entry[1]] = true end
local kept = {}
for i = 3, #ARGV do
  local id = ARGV[i]
  if mine[id] or #found == n and #redis.call('XPENDING', key, group, id, id, 1, me) == 1 then
    kept[#kept + 1] = id
  end
end
for i = 1, #kept, 1000 do
  local those = {unpack(kept, i, math.min(i + 999, #kept))}
  those[#those + 1] = 'JUSTID'
  redis.call('XCLAIM', key, group, me, 0, unpack(those))
end
return n - #kept",
    sha1: "0297996c88608293404e6cd9985d416dec83aa37",
    commands: "+eval +evalsha +xpending +xclaim",
};

/// Takes over what other members have and will not finish. After the common arguments: another member, or
/// nothing for all others; how many entries at most. How often they were delivered stays.
///
/// It answers how many were looked at, and the ids of those that are gone from the stream.
pub(super) const TAKE: Script = Script {
    text: of_a_lane!(
        r"local from, count = ARGV[7], tonumber(ARGV[8])
local found = {}
local function look(member)
  for _, entry in ipairs(redis.call('XPENDING', key, group, '-', '+', count - #found, member)) do
    found[#found + 1] = entry[1]
  end
end
if from ~= '' then
  look(from)
else
  for _, member in ipairs(redis.call('XPENDING', key, group)[4] or {}) do
    if member[1] ~= me and #found < count then look(member[1]) end
  end
end
local answer, there = {#found}, {}
for i = 1, #found, 1000 do
  local those = {unpack(found, i, math.min(i + 999, #found))}
  those[#those + 1] = 'JUSTID'
  for _, id in ipairs(redis.call('XCLAIM', key, group, me, 0, unpack(those))) do there[id] = true end
end
for _, id in ipairs(found) do
  if not there[id] then answer[#answer + 1] = id end
end
return answer"
    ),
    sha1: "debeabf0faf0826a0a04e89feadd980dbdd1b167",
    commands: "+eval +evalsha +time +hget +zscore +xpending +xclaim",
};

/// Removes a member that has nothing. `KEYS`: the stream. `ARGV`: the group; the other member. It answers
/// whether that was so.
pub(super) const PRUNE: Script = Script {
    text: r"#!lua flags=allow-oom
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) > 0 then return 0 end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return 1",
    sha1: "06b14abbd039f8787e7a7c52ccbeb3ae092e2750",
    commands: "+eval +evalsha +xpending +xgroup",
};

/// Who lives. `KEYS`: the ownership hash, and the set of expiries beside it. It answers the values of the
/// presence fields that have not ended.
pub(super) const LIVE: Script = Script {
    text: r"#!lua flags=allow-oom,no-writes
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local all, live = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #all, 2 do
  if string.sub(all[i], 1, 2) == 'i:' then
    local score = redis.call('ZSCORE', KEYS[2], all[i])
    if not score or tonumber(score) > now then live[#live + 1] = all[i + 1] end
  end
end
return live",
    sha1: "0fc82c2a3de396c2978410265441cee7d31b357c",
    commands: "+eval +evalsha +time +hgetall +zscore",
};

/// Writes down how far a group is, so that it can be made again there when it is lost. `KEYS`: the stream; the
/// hash of diagnostics. `ARGV`: the group; the field. It answers how many entries are pending, the first of
/// them or nothing, and the last that was delivered.
pub(super) const MARK: Script = Script {
    text: r"#!lua flags=allow-oom
local pending = redis.call('XPENDING', KEYS[1], ARGV[1])
local last
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local of = {}
  for i = 1, #group, 2 do of[group[i]] = group[i + 1] end
  if of['name'] == ARGV[1] then last = of['last-delivered-id'] end
end
if not last then return redis.error_reply('NOGROUP it is gone') end
local mark = (pending[2] or '') .. ' ' .. last
if redis.call('HGET', KEYS[2], ARGV[2]) ~= mark then redis.call('HSET', KEYS[2], ARGV[2], mark) end
return {pending[1], pending[2] or '', last}",
    sha1: "e3623fd5473c5d667c5601592d7f6a5295090d91",
    commands: "+eval +evalsha +xpending +xinfo +hget +hset",
};

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::testing::PrivateServer;

    #[test]
    fn the_server_knows_each_script_by_its_hash() {
        let server = PrivateServer::start().unwrap();
        for script in [ACK, PARK, RETRY, KEEP, TAKE, PRUNE, LIVE, MARK] {
            let known = server.command(&["SCRIPT", "LOAD", script.text]).unwrap();
            assert_eq!(known.text(), script.sha1, "{}", script.text);
        }
    }
}
