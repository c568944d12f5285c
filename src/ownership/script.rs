//! The scripts that owners keep to. Each looks and acts in one step, on the server's clock.

use crate::net::script::Script;

/// Lua: who owns a partition, by the ownership hash and the set of expiries beside it; false where that is nobody.
macro_rules! owner_of {
    () => {
        r"local function owner_of(p, hash, set, by_field)
  local owner = redis.call('HGET', hash, p)
  if owner and not by_field then
    local t = redis.call('TIME')
    local score = redis.call('ZSCORE', set, p)
    if score and tonumber(score) <= t[1] * 1000 + math.floor(t[2] / 1000) then owner = false end
  end
  return owner
end
"
    };
}
pub(crate) use owner_of;

/// One renewal: shows that the instance lives, extends what it holds, claims what is free and meant for it,
/// and says what it holds that is meant for another.
///
/// What is meant for whom is planned anew each time, and alike by every member: what is free goes to
/// whoever has least, and then whoever has most gives to whoever has least, until nobody could give to
/// one who has less by two. So the members end up at most one apart, and what has settled stays. Members
/// that keep to the fair share of the specification, which end their values in no incarnation, are meant
/// to have that share, and as long as one of them lives nobody gives below it. Nobody is meant to have
/// more than it takes: what a member does not take it says in a field of its own, `takes:<id>`, as the
/// most it takes and the partitions it refuses, which goes when its presence goes.
///
/// Claims that were deleted though we certainly hold them are made again, and while they are nothing is
/// claimed or meant for another: what looks free may have been deleted, too.
///
/// `KEYS`: the ownership hash; the sorted set of expiries that stands beside it where the server has no
/// expiry of hash fields. `ARGV`: our value; TTL in ms; partitions; our presence field; `f` where fields
/// expire by themselves, else `s`; `first` for the first renewal of this process, `again` while the last
/// one certainly holds, else `back`; the most we take; `1` if we may claim what is free and give up what is not meant for us, else `0`; then
/// three lists of partitions, each as numbers between blanks: what we certainly hold, what we claim and
/// keep whoever it is meant for, and what we refuse; and until when it counts, in ms by the server's clock:
/// what reaches the server later does nothing, for whoever sent it has given it up, and may be no more.
///
/// It answers `superseded` and the value of a later process that has our presence, and has done no more than
/// to give an end to what had none, for that process may be no more; else four texts and
/// the fields of the hash: what we hold; what of it is meant for another; what was made again, with a `p`
/// in front when our presence was; in how many ms the first field of another ends (-1: there is none), how
/// many fields `HLEN` counts now, and the server's clock.
pub(super) const CYCLE: Script = Script {
    text: r"#!lua flags=allow-oom
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
if now > tonumber(ARGV[12]) then return redis.error_reply('LATE it does not count any more') end
local hash, set = KEYS[1], KEYS[2]
local me, ttl, n, presence = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local by_field, standing, most = ARGV[5] == 'f', ARGV[6], math.min(tonumber(ARGV[7]), n)
local may_claim = ARGV[8] == '1'
local function numbers(text)
  local those = {}
  for p in string.gmatch(text, '%d+') do those[tonumber(p)] = true end
  return those
end
local certain, beyond, refused = numbers(ARGV[9]), numbers(ARGV[10]), ARGV[11]
if not by_field then
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', set, '-inf', now)) do
    redis.call('HDEL', hash, name)
    redis.call('ZREM', set, name)
  end
end
local function extend(name)
  if by_field then
    redis.call('HPEXPIRE', hash, ttl, 'FIELDS', 1, name)
  else
    redis.call('ZADD', set, now + ttl, name)
  end
end
local function remaining(name)
  if by_field then return redis.call('HPTTL', hash, 'FIELDS', 1, name)[1] end
  local score = redis.call('ZSCORE', set, name)
  return score and score - now or -1
end

local live = redis.call('HGET', hash, presence)
if live and live ~= me and standing ~= 'first' then
  for _, name in ipairs(redis.call('HKEYS', hash)) do
    if remaining(name) < 0 then extend(name) end
  end
  return {'superseded', live}
end
if by_field then redis.call('DEL', set) end
if live ~= me then redis.call('HSET', hash, presence, me) end
extend(presence)
local restored = {}
if standing == 'again' then
  if not live then restored[1] = 'p' end
  for p = 0, n - 1 do
    if certain[p] and redis.call('HSETNX', hash, p, me) == 1 then
      extend(tostring(p))
      restored[#restored + 1] = p
    end
  end
end
may_claim = may_claim and not restored[1]
local takes = 'takes:' .. string.sub(presence, 3)
if most < n or refused ~= '' then
  redis.call('HSET', hash, takes, most .. ' ' .. refused)
  extend(takes)
elseif redis.call('HDEL', hash, takes) == 1 then
  redis.call('ZREM', set, takes)
end

local field, members, by_value, foreign, soonest = {}, {}, {}, false, -1
local all = redis.call('HGETALL', hash)
for i = 1, #all, 2 do
  local name, value = all[i], all[i + 1]
  field[name] = value
  if value ~= me and name ~= takes then
    local left = remaining(name)
    if left < 0 then
      extend(name)
      left = ttl
    end
    if soonest < 0 or left < soonest then soonest = left end
  end
  if string.sub(name, 1, 2) == 'i:' and not by_value[value] then
    local m = {id = string.sub(name, 3), value = value, has = 0, gives = {}, most = n, refuses = {}}
    members[#members + 1], by_value[value] = m, m
    m.ours = string.find(value, '#%x%x%x%x%x%x%x%x$')
    foreign = foreign or not m.ours
  end
end
table.sort(members, function(a, b) return a.value < b.value end)
local keeps = foreign and math.ceil(n / #members) or 0
for _, m in ipairs(members) do
  if not m.ours then
    m.most = keeps
  elseif field['takes:' .. m.id] then
    local limit, rest = string.match(field['takes:' .. m.id], '^(%d+)(.*)')
    m.most, m.refuses = tonumber(limit or n), numbers(rest or '')
  end
end

local mine, plan = by_value[me], {}
local function give(p, m)
  plan[p] = m
  m.has = m.has + 1
  if m ~= mine or not beyond[p] then m.gives[#m.gives + 1] = p end
end
local function poorest(p)
  local least
  for _, m in ipairs(members) do
    if m.has < m.most and not m.refuses[p] and (not least or m.has < least.has) then least = m end
  end
  return least
end
local function lighten(m)
  for i = #m.gives, 1, -1 do
    local p = m.gives[i]
    local to = poorest(p)
    if to and (m.refuses[p] or m.has > m.most or m.has > keeps and to.has + 2 <= m.has) then
      m.has = m.has - 1
      table.remove(m.gives, i)
      give(p, to)
      return true
    end
  end
end
for p = 0, n - 1 do
  local m = by_value[field[tostring(p)]]
  if m then give(p, m) end
end
for p = 0, n - 1 do
  if not field[tostring(p)] then
    local wanted = beyond[p] and mine.has < mine.most and not mine.refuses[p]
    local m = wanted and mine or poorest(p)
    if m then give(p, m) end
  end
end
local even = {}
while true do
  local most_loaded
  for _, m in ipairs(members) do
    if not even[m] and (not most_loaded or m.has > most_loaded.has) then most_loaded = m end
  end
  if not most_loaded then break end
  if lighten(most_loaded) then even = {} else even[most_loaded] = true end
end

local held, surplus = {}, {}
for p = 0, n - 1 do
  local name = tostring(p)
  if may_claim and not field[name] and plan[p] == mine then
    redis.call('HSET', hash, name, me)
    field[name] = me
    all[#all + 1], all[#all + 2] = name, me
  end
  if field[name] == me then
    extend(name)
    held[#held + 1] = p
    if may_claim and plan[p] ~= mine then surplus[#surplus + 1] = p end
  end
end
return {table.concat(held, ' '), table.concat(surplus, ' '), table.concat(restored, ' '), string.format('%.0f %.0f %.0f', soonest, redis.call('HLEN', hash), now), all}",
    sha1: "a8e2d9e8e139e1ecce70932dc2bc8bfc8333963d",
    commands: "+eval +evalsha +time +hget +hset +hsetnx +hdel +hkeys +hlen +hgetall +hpexpire +hpttl +del +zadd +zrem +zscore +zrangebyscore",
};

/// Gives up fields of ours, and none that has come to be another's; with our presence goes what we take.
/// `KEYS` as for [`CYCLE`]; `ARGV`: our value, the fields, and until when it counts as for [`CYCLE`]: what
/// was given up and taken again is not given up by what comes late. It answers how many were given up.
///
/// Only the thread that renews may run it: to a renewal under way, what was just given up is still ours.
pub(super) const RELEASE: Script = Script {
    text: r"#!lua flags=allow-oom
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
if now > tonumber(ARGV[#ARGV]) then return redis.error_reply('LATE it does not count any more') end
local gone = 0
local function drop(name)
  redis.call('HDEL', KEYS[1], name)
  redis.call('ZREM', KEYS[2], name)
end
for i = 2, #ARGV - 1 do
  local name = ARGV[i]
  if redis.call('HGET', KEYS[1], name) == ARGV[1] then
    drop(name)
    if string.sub(name, 1, 2) == 'i:' then drop('takes:' .. string.sub(name, 3)) end
    gone = gone + 1
  end
end
return gone",
    sha1: "aa3c49d102a988aca49865678679f39900782a0e",
    commands: "+eval +evalsha +time +hget +hdel +zrem",
};

/// What is to count whenever it comes.
pub(super) const ALWAYS: u64 = u64::MAX;

#[cfg(all(test, not(loom)))]
mod tests;
