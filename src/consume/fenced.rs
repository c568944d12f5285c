//! Storing positions under a claim: a script that looks at the claim, the reset marker and the stored
//! position first, and stores each position only if nothing speaks against it.

use crate::{
    net::{
        resp,
        script::{Form, Script},
    },
    position::Snapshot,
    wire::{Claimant, InstanceId, POSITION_MAX, PositionValue},
};

/// `KEYS`: the ownership hash; the set of expiries beside it; the position hash. `ARGV`: our claim; `f`
/// where hash fields expire by themselves, else `s`; then a partition and its value, and so on.
///
/// It answers one letter for each, as [`Fate::of`] reads them. Ids are compared as texts, for numbers of
/// 64 bits lose their last digits here.
pub(super) const FENCED: Script = Script {
    text: r"#!lua flags=allow-oom
local hash, set, positions = KEYS[1], KEYS[2], KEYS[3]
local me, by_field = ARGV[1], ARGV[2] == 'f'
local now
if not by_field then
  local t = redis.call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end
local function less(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end
local function id(value)
  local ms, seq = string.match(value .. '|', '^0*(%d+)-0*(%d+)|')
  local most = '18446744073709551615'
  if ms and not less(most, ms) and not less(most, seq) then return ms, seq end
end
local function behind(value, stored)
  local ms, seq = id(value)
  local stored_ms, stored_seq = id(stored)
  if not stored_ms then return false end
  if ms ~= stored_ms then return less(ms, stored_ms) end
  return less(seq, stored_seq)
end
local fates = {}
for i = 3, #ARGV, 2 do
  local p, value, fate = ARGV[i], ARGV[i + 1], 'd'
  local owner = redis.call('HGET', hash, p)
  if owner and not by_field then
    local score = redis.call('ZSCORE', set, p)
    if score and tonumber(score) <= now then owner = false end
  end
  if not owner then
    fate = 'm'
  elseif owner ~= me then
    fate = 'o'
  elseif redis.call('HEXISTS', positions, '__reset:' .. p) == 1 then
    fate = 'r'
  else
    local stored = redis.call('HGET', positions, p)
    if stored and behind(value, stored) then
      fate = 'b'
    else
      redis.call('HSET', positions, p, value)
    end
  end
  fates[#fates + 1] = fate
end
return table.concat(fates)",
    sha1: "6362b6cf20668a142ecbe85082b5c32f979a44c4",
    commands: "+eval +evalsha +time +hget +hset +hexists +zscore",
};

/// What became of one position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Stored,
    /// Nobody has a claim: it is to be made again.
    Unclaimed,
    /// Another has the claim: nothing of ours counts any more.
    Owned,
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
            b'o' => Self::Owned,
            b'r' => Self::Reset,
            b'b' => Self::Behind,
            _ => return None,
        })
    }
}

/// The keys and values that stay the same from one call to the next.
#[derive(Clone, Debug)]
pub(crate) struct Fencing {
    pub(crate) hash: Box<[u8]>,
    pub(crate) set: Box<[u8]>,
    pub(crate) claimant: Claimant,
    pub(crate) by_field: bool,
}

impl Fencing {
    /// Adds the command that stores these positions. One reply comes back.
    pub(super) fn store(
        &self,
        out: &mut Vec<u8>,
        form: Form,
        positions_key: &[u8],
        writer: InstanceId,
        positions: &[(u32, Snapshot)],
    ) {
        FENCED.begin(out, form, 3, 2 + 2 * positions.len());
        resp::arg(out, &self.hash);
        resp::arg(out, &self.set);
        resp::arg(out, positions_key);
        resp::arg(out, self.claimant.as_str().as_bytes());
        resp::arg(out, if self.by_field { b"f" } else { b"s" });
        for (p, s) in positions {
            resp::arg_number(out, u64::from(*p));
            let value = PositionValue { id: s.id, writer };
            resp::arg(out, value.encode(&mut [0; POSITION_MAX]));
        }
    }
}
