//! Taking over what other members have been given and will not finish.

use crate::{
    Result, StreamId,
    error::{Error, ErrorKind},
    net::{Connection, script::by_hash_first},
};

use super::{
    plan::{GroupPlan, Source},
    scripts::TAKE,
};

/// How many entries are taken over by one call: a larger one would hold the server up.
const AT_ONCE: u64 = 200;

/// What was taken over.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub(super) entries: u64,
    /// Entries beside those that are gone from the stream.
    pub(super) gone: Vec<StreamId>,
    /// There may be more.
    pub(super) more: bool,
}

/// So many ids are told of entries that are gone.
const SHOWN: usize = 10;

/// Ids of entries that are gone, for people.
pub(super) fn shown(ids: &[StreamId]) -> String {
    let mut texts: Vec<_> = ids.iter().take(SHOWN).map(StreamId::to_string).collect();
    if ids.len() > SHOWN {
        texts.push("...".into());
    }
    texts.join(" ")
}

/// Makes what is pending under the name of `other`, or of all others where that is empty, pending under ours;
/// how often it was delivered stays. No more than `rounds` round trips are made; `taken` is what came of them,
/// also where one failed.
///
/// # Errors
///
/// The server's, and the connection's. What was taken over is ours all the same, and what was on its way may be.
pub(super) fn take_over(
    connection: &mut Connection,
    plan: &GroupPlan,
    of: (Source, &[u8]),
    (other, rounds): (&str, usize),
    taken: &mut Taken,
) -> Result<()> {
    for _ in 0..rounds {
        let some = take_some(connection, plan, of, other)?;
        taken.entries += some.entries;
        taken.gone.extend(some.gone);
        taken.more = some.more;
        if !taken.more {
            break;
        }
    }
    Ok(())
}

fn take_some(
    connection: &mut Connection,
    plan: &GroupPlan,
    (source, stream): (Source, &[u8]),
    other: &str,
) -> Result<Taken> {
    let answer: redis::Value = by_hash_first(|form| {
        let cmd = plan.command(
            (&TAKE, form),
            (source, stream),
            &[other, &AT_ONCE.to_string()],
        );
        connection.ask(&cmd, plan.timeout)
    })
    .map_err(|e| {
        let e = TAKE.saying_what_to_grant(e, &[&*String::from_utf8_lossy(stream)]);
        e.during("take over pending messages").on_key(stream)
    })?;
    let wrong = || {
        let what = "the answer is none of the script's";
        Error::new(ErrorKind::Protocol, "take over pending messages", what)
    };
    let redis::Value::Array(answer) = answer else {
        return Err(wrong());
    };
    let Some((redis::Value::Int(found), gone)) = answer.split_first() else {
        return Err(wrong());
    };
    let id = |value: &redis::Value| match value {
        redis::Value::BulkString(text) => StreamId::parse(text),
        _ => None,
    };
    let found = u64::try_from(*found).unwrap_or_default();
    Ok(Taken {
        entries: found.saturating_sub(gone.len() as u64),
        gone: gone.iter().filter_map(id).collect(),
        more: found >= AT_ONCE,
    })
}
