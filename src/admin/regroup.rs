//! Moving a consumer that is a group: its groups are set to another place, and what is pending in them is dealt
//! with as asked.

use crate::{
    Result, StreamId,
    error::Error,
    net::{
        Connection, Deadline,
        script::{Script, by_hash_first},
    },
    queue::{Birth, Mark, found, groups, is_gone, mark_field},
};

/// What becomes of messages that members were given and have not acknowledged, when their group is moved.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Pending {
    /// They stay pending, and are handled by whoever has them or takes them over: beside what is read from the
    /// new place on.
    Keep,
    /// They are acknowledged without having been handled: nothing of before the reset is handled after it.
    Drop,
}

/// `KEYS`: the stream. `ARGV`: the group; the most entries; where the group is to be. Acknowledges what is pending,
/// whoever has it, and moves the group when that was all: what members are given from the new place on is not to be
/// taken for it. Says how many these were.
const DROP: Script = Script {
    text: r"#!lua flags=allow-oom
local found, ids = redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', ARGV[2]), {}
for i, entry in ipairs(found) do ids[i] = entry[1] end
if #ids > 0 then redis.call('XACK', KEYS[1], ARGV[1], unpack(ids)) end
if #ids < tonumber(ARGV[2]) then redis.call('XGROUP', 'SETID', KEYS[1], ARGV[1], ARGV[3]) end
return #ids",
    sha1: "565b966a09ff31e1fc968e01b392c37491dfdd16",
    commands: "+eval +evalsha +xpending +xack +xgroup",
};

/// So many entries are dropped by one call.
const AT_ONCE: u64 = 500;

/// How a group stands in one stream.
pub(super) struct Standing {
    /// The last entry that was given to a member; `None` where there is no such group.
    pub(super) delivered: Option<StreamId>,
    pub(super) pending: u64,
}

pub(super) fn standing(
    c: &mut Connection,
    stream: &str,
    group: &str,
    by: Deadline,
) -> Result<Standing> {
    let all = groups(c, stream.as_bytes(), by.left())?;
    let ours = all.iter().find(|g| *g.name == *group.as_bytes());
    Ok(Standing {
        delivered: ours.map(|g| g.delivered),
        pending: ours.map_or(0, |g| g.pending),
    })
}

/// Moves the group of one stream. `meta` is where is written down how far it is.
pub(super) fn set(
    c: &mut Connection,
    (stream, meta, partition): (&str, &str, u32),
    group: &str,
    to: StreamId,
    pending: Option<Pending>,
    by: Deadline,
) -> Result<()> {
    let moved = if pending == Some(Pending::Drop) {
        drop_and_move(c, (stream, group), to, by)
    } else {
        set_id(c, (stream, group), to, by)
    };
    match moved {
        Err(e) if is_gone(&e) => {
            let birth = Birth::After(to);
            if !found(c, stream.as_bytes(), group, birth, by.left())? {
                // A member was quicker, and had it begin elsewhere.
                set_id(c, (stream, group), to, by)?;
            }
        }
        moved => moved?,
    }
    // Should the group be lost before a member writes this down.
    let mut mark = redis::cmd("HSET");
    mark.arg(meta)
        .arg(mark_field(partition))
        .arg(Mark::at(to).stored());
    c.call(&mark, by.left()).map(drop)
}

fn set_id(
    c: &mut Connection,
    (stream, group): (&str, &str),
    to: StreamId,
    by: Deadline,
) -> Result<()> {
    let mut set = redis::cmd("XGROUP");
    set.arg("SETID").arg(stream).arg(group).arg(to.to_string());
    c.call(&set, by.left()).map(drop)
}

fn drop_and_move(
    c: &mut Connection,
    (stream, group): (&str, &str),
    to: StreamId,
    by: Deadline,
) -> Result<()> {
    let (most, to) = (AT_ONCE.to_string(), to.to_string());
    let args = [group.as_bytes(), most.as_bytes(), to.as_bytes()];
    loop {
        let dropped = by_hash_first(|form| {
            let cmd = DROP.on_key(form, stream.as_bytes(), &args);
            c.ask::<u64>(&cmd, by.left())
        });
        let dropped = dropped.map_err(|e: Error| {
            DROP.saying_what_to_grant(e, &[stream])
                .on_key(stream.as_bytes())
        })?;
        if dropped < AT_ONCE {
            return Ok(());
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::testing::PrivateServer;

    #[test]
    fn the_server_knows_the_script_by_its_hash() {
        let server = PrivateServer::start().unwrap();
        let known = server.command(&["SCRIPT", "LOAD", DROP.text]).unwrap();
        assert_eq!(known.text(), DROP.sha1);
    }
}
