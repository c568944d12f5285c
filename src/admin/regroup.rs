//! Moving a consumer that is a group: its groups are set to another place, and what is pending in them is dealt
//! with as asked.

use std::time::Duration;

use crate::{
    Result, StreamId,
    error::Error,
    net::{
        Connection, Deadline,
        script::{Script, by_hash_first},
    },
    queue::{Mark, low_water::groups, mark_field},
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

/// `KEYS`: the stream. `ARGV`: the group; the most entries. Acknowledges what is pending, whoever has it; says how
/// many these were.
const DROP: Script = Script {
    text: r"#!lua flags=allow-oom
local found, ids = redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', ARGV[2]), {}
for i, entry in ipairs(found) do ids[i] = entry[1] end
if #ids > 0 then redis.call('XACK', KEYS[1], ARGV[1], unpack(ids)) end
return #ids",
    sha1: "7295a60857ba1a3128f90ddb226d7c855b5487e1",
    commands: "+eval +evalsha +xpending +xack",
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
    let mut set = redis::cmd("XGROUP");
    set.arg("SETID").arg(stream).arg(group).arg(to.to_string());
    match c.call(&set, by.left()) {
        Err(e)
            if matches!(e.server_code(), Some("NOGROUP"))
                || e.message().contains("requires the key") =>
        {
            let mut create = redis::cmd("XGROUP");
            create
                .arg("CREATE")
                .arg(stream)
                .arg(group)
                .arg(to.to_string())
                .arg("MKSTREAM");
            c.call(&create, by.left())?;
        }
        done => drop(done?),
    }
    if pending == Some(Pending::Drop) {
        while drop_some(c, stream, group, by.left())? == AT_ONCE {}
    }
    // Should the group be lost before a member writes this down.
    let mut mark = redis::cmd("HSET");
    mark.arg(meta)
        .arg(mark_field(partition))
        .arg(Mark::at(to).stored());
    c.call(&mark, by.left()).map(drop)
}

fn drop_some(c: &mut Connection, stream: &str, group: &str, timeout: Duration) -> Result<u64> {
    let dropped = by_hash_first(|form| {
        let cmd = DROP.on_key(
            form,
            stream.as_bytes(),
            &[group.as_bytes(), AT_ONCE.to_string().as_bytes()],
        );
        c.ask::<u64>(&cmd, timeout)
    });
    dropped.map_err(|e: Error| {
        DROP.saying_what_to_grant(e, &[stream])
            .on_key(stream.as_bytes())
    })
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
