//! Where a group begins, and where it begins again when it was lost.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    AckDelete, Result, StreamId, clock,
    consume::{Extent, KNOWN, Lane, RETRIES, Stored},
    error::{Error, ErrorKind, Outcome},
    net::Connection,
};

use super::{group::Group, low_water::groups, plan::GroupPlan};

/// So many finished messages are remembered when their group was lost, the newest, and for how long: they are
/// given out again at once, or never.
const MOST_FINISHED: usize = 10_000;
pub(super) const REMEMBERED_MS: u64 = 60_000;

/// Where groups begin that there is no mark of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Birth {
    /// Behind what is there when it is made.
    Tail,
    /// Behind this id.
    After(StreamId),
}

impl Birth {
    fn text(self) -> String {
        match self {
            Self::Tail => "$".into(),
            Self::After(id) => id.to_string(),
        }
    }
}

/// How far a group was when that was written down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    /// How many were delivered and not acknowledged; not written down.
    pub(super) many: u64,
    /// The first that was delivered and not acknowledged.
    pub(super) pending: Option<StreamId>,
    /// The last that was delivered.
    pub(super) delivered: StreamId,
}

impl Mark {
    /// As [`MARK`](super::scripts::MARK) writes it.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let blank = text.iter().position(|b| *b == b' ')?;
        let (pending, delivered) = (&text[..blank], &text[blank + 1..]);
        Some(Self {
            many: 0,
            pending: match pending {
                b"" => None,
                id => Some(StreamId::parse(id)?),
            },
            delivered: StreamId::parse(delivered)?,
        })
    }

    /// Of a group that begins after `id` with nothing pending.
    pub(crate) fn at(id: StreamId) -> Self {
        Self {
            many: 0,
            pending: None,
            delivered: id,
        }
    }

    /// As it is written down.
    pub(crate) fn stored(self) -> String {
        let pending = self.pending.map(|id| id.to_string());
        format!("{} {}", pending.unwrap_or_default(), self.delivered)
    }

    /// Everything up to here is finished.
    pub(super) fn finished(self) -> StreamId {
        match self.pending {
            Some(first) if first <= self.delivered => first.before(),
            _ => self.delivered,
        }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pending {
            Some(first) => write!(
                f,
                "the first pending was {first}, the last delivered {}",
                self.delivered
            ),
            None => write!(
                f,
                "nothing was pending, and the last delivered was {}",
                self.delivered
            ),
        }
    }
}

/// The field of the hash of diagnostics that holds the mark of a lane.
pub(crate) fn mark_field(lane: u32) -> String {
    match RETRIES {
        retries if retries == lane => "retries:group".into(),
        _ => format!("{lane}:group"),
    }
}

/// Makes a group where there is none; the stream, too. True when there was none. Blocks for a round trip.
pub(crate) fn found(
    connection: &mut Connection,
    stream: &[u8],
    group: &str,
    birth: Birth,
    timeout: Duration,
) -> Result<bool> {
    let mut cmd = redis::cmd("XGROUP");
    cmd.arg("CREATE")
        .arg(stream)
        .arg(group)
        .arg(birth.text())
        .arg("MKSTREAM");
    match connection.call(&cmd, timeout) {
        Ok(_) => Ok(true),
        Err(e) if e.server_code() == Some("BUSYGROUP") => Ok(false),
        Err(e) => Err(e.during("make the consumer group").on_key(stream)),
    }
}

impl GroupPlan {
    /// Makes the group on every stream where there is none, that of retries included. Where it was once it is
    /// made where it was. Blocks for a few round trips for each.
    pub(crate) fn found_all(
        &self,
        connection: &mut Connection,
        streams: &[Box<[u8]>],
    ) -> Result<Vec<Stored>> {
        if self.ack_delete == AckDelete::Immediate {
            self.refuse_others(connection, streams)?;
        }
        let known = self.known(connection)?;
        let all = (0..).zip(streams.iter().map(|s| &**s));
        for (lane, stream) in all.chain([(RETRIES, self.keys.retries.as_bytes())]) {
            let there = Extent::of(connection, stream, self.timeout)?;
            if let Some(Reborn {
                after,
                why,
                mark: Some(mark),
            }) = again(connection, self, (lane, stream, &there), known)?
            {
                log::error!(
                    "{}: the consumer group {:?} was LOST while nobody was there, and was made again after {after}, \
                     {why}; when it was last looked at {mark}",
                    stream.escape_ascii(),
                    self.member.group,
                );
            }
        }
        let partitions = streams.len() as u32;
        if known.is_none_or(|known| known < partitions) {
            let mut know = redis::cmd("HSET");
            know.arg(&self.keys.meta).arg(KNOWN).arg(partitions);
            connection.call(&know, self.timeout)?;
        }
        Ok(vec![Stored::default(); streams.len()])
    }

    /// How many partitions of the topic the consumer has known; `None` before it ever began.
    fn known(&self, connection: &mut Connection) -> Result<Option<u32>> {
        let mut known = redis::cmd("HGET");
        known.arg(&self.keys.meta).arg(KNOWN);
        let known: Option<Vec<u8>> = connection.ask(&known, self.timeout)?;
        Ok(known.and_then(|n| str::from_utf8(&n).ok()?.parse().ok()))
    }

    /// Refuses to delete what other groups have not read, whoever reads through them.
    fn refuse_others(&self, connection: &mut Connection, streams: &[Box<[u8]>]) -> Result<()> {
        for stream in streams {
            let groups = groups(connection, stream, self.timeout)?;
            let other = groups
                .iter()
                .find(|g| *g.name != *self.member.group.as_bytes());
            if let Some(other) = other {
                let what = format!(
                    "AckDelete Immediate would delete messages under the consumer group {:?}, which reads {}, too: \
                     say AckDelete AllGroups, or None, or XGROUP DESTROY that group when nobody uses it any more",
                    String::from_utf8_lossy(&other.name),
                    stream.escape_ascii()
                );
                return Err(Error::new(ErrorKind::Config, "start", what));
            }
        }
        Ok(())
    }

    /// Makes the group on streams that were added to a topic: nothing that was ever in them may be missed.
    pub(crate) fn found_added(
        &self,
        connection: &mut Connection,
        added: impl Iterator<Item = Box<[u8]>>,
    ) -> Result<()> {
        for stream in added {
            found(
                connection,
                &stream,
                &self.member.group,
                Birth::After(StreamId::MIN),
                self.timeout,
            )?;
        }
        Ok(())
    }
}

/// A group that was made again.
pub(super) struct Reborn {
    /// What is delivered next comes after this.
    pub(super) after: String,
    pub(super) why: &'static str,
    /// How far it was.
    pub(super) mark: Option<Mark>,
}

/// Makes the group of a lane's stream where there is none: where it was as far as anybody knows, the
/// smallest of what is known; so nothing is passed over, and what was finished behind it is handed over
/// again. Of the partitions so many were `known` when the consumer last began; the stream was seen as `there`.
/// `None` when there is one. Blocks for two round trips.
fn again(
    connection: &mut Connection,
    plan: &GroupPlan,
    (lane, stream, there): (u32, &[u8], &Extent),
    known: Option<u32>,
) -> Result<Option<Reborn>> {
    let mut stored = redis::cmd("HGET");
    stored.arg(&plan.keys.meta).arg(mark_field(lane));
    let stored: Option<Vec<u8>> = connection.ask(&stored, plan.timeout)?;
    let stored = stored.and_then(|text| Mark::parse(&text));
    let seen = plan.marks.lock().get(&lane).copied();
    let mark = [stored, seen]
        .into_iter()
        .flatten()
        .min_by_key(|m| m.finished());
    let fresh = match lane {
        RETRIES => Birth::After(StreamId::MIN),
        // Added while nobody was there: nothing that was ever in it may be missed.
        _ if known.is_some_and(|known| lane >= known) => Birth::After(StreamId::MIN),
        _ => plan.birth,
    };
    let (mut birth, mut why) = match mark {
        Some(mark) => (Birth::After(mark.finished()), "as far as it was finished"),
        None => (fresh, "where StartFrom says, since nothing else is known"),
    };
    if mark.is_some_and(|mark| mark.finished() > there.last) {
        // The stream is another one, whose ids have begun anew.
        birth = Birth::After(StreamId::MIN);
        why = "at the beginning, since the stream is another one";
    }
    let made = found(connection, stream, &plan.member.group, birth, plan.timeout)?;
    Ok(made.then(|| Reborn {
        after: birth.text(),
        why,
        mark,
    }))
}

/// Whether a refusal says that the group is gone, or the stream with it: however the server puts it.
pub(crate) fn is_gone(e: &Error) -> bool {
    matches!(e.server_code(), Some("NOGROUP" | "UNBLOCKED"))
        || e.server_code() == Some("ERR")
            && ["no such key", "requires the key"]
                .iter()
                .any(|text| e.message().contains(text))
}

impl Group {
    /// The group is gone: makes it again, and says what that means.
    pub(super) fn heal(lane: &mut Lane<Self>, e: &Error) -> Result<()> {
        if lane.reader.is_outstanding() || !e.keeps_connection() {
            lane.reader.disconnect();
        }
        lane.connect()?;
        let (plan, n, key) = (
            Arc::clone(&lane.progress.plan),
            lane.progress.lane,
            lane.reader.key().to_vec(),
        );
        let Some(connection) = lane.reader.connection() else {
            return Err(Error::new(
                ErrorKind::Io,
                "make the group again",
                "not connected",
            ));
        };
        let there = Extent::of(connection, &key, plan.timeout)?;
        let known = plan.known(connection)?;
        let reborn = again(connection, &plan, (n, &key, &there), known);
        let progress = &mut lane.progress;
        let owed = progress.debts.forget();
        progress.finished.extend(owed);
        if may_be_another(&there, &progress.finished) {
            progress.finished.clear(); // rather handled twice than taken for one of another stream
        }
        let surplus = progress.finished.len().saturating_sub(MOST_FINISHED);
        progress.finished.drain(..surplus);
        progress.finished_until_ms = clock::coarse_ms() + REMEMBERED_MS;
        progress.behind = true;
        let Some(Reborn { after, why, mark }) = reborn.inspect_err(|made| {
            if made.outcome() == Outcome::NotApplied {
                return; // and is tried again
            }
            // It may be there by now, and then nobody finds that it is not.
            lane.monitor.note_gap(None, true);
            log::error!(
                "{lane}: the consumer group {:?} of the stream {} was LOST (the server says {}), and may have been \
                 made again where it was: {made}",
                plan.member.group,
                key.escape_ascii(),
                e.server_code().unwrap_or("nothing"),
            );
        })?
        else {
            return Ok(()); // another was quicker, and has said so
        };
        lane.monitor.note_gap(None, true);
        let was = mark.map_or("nobody knows how far it was".into(), |mark| {
            mark.to_string()
        });
        log::error!(
            "{lane}: the consumer group {:?} of the stream {} was LOST (the server says {}), and was made again \
             after {after}, {why}; when it was last looked at {was}; what was published since may be gone with \
             the stream, and what was finished behind may be handled again",
            plan.member.group,
            key.escape_ascii(),
            e.server_code().unwrap_or("nothing"),
        );
        Ok(())
    }
}

/// Whether a stream may be another than the one in which these were finished, which gave the same ids: all it ever
/// held comes after the first of them.
fn may_be_another(there: &Extent, finished: &[StreamId]) -> bool {
    let earliest = finished.iter().min();
    earliest.is_some_and(|earliest| {
        there
            .first
            .is_none_or(|first| there.removed == 0 && first >= *earliest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_finished_counts_in_a_stream_that_is_surely_the_same() {
        let id = StreamId::new;
        let holds = |first: Option<StreamId>, removed| Extent {
            first,
            removed,
            ..Extent::default()
        };
        let finished = [id(7, 0), id(5, 1), id(9, 0)];
        for (there, another) in [
            (holds(None, 0), true),
            (holds(None, 3), true),
            (holds(Some(id(5, 0)), 0), false),
            (holds(Some(id(5, 1)), 0), true),
            (holds(Some(id(9, 0)), 0), true),
            (holds(Some(id(9, 0)), 1), false),
        ] {
            assert_eq!(may_be_another(&there, &finished), another, "{there:?}");
        }
        assert!(!may_be_another(&Extent::default(), &[]));
    }

    #[test]
    fn a_mark_says_up_to_where_everything_is_finished() {
        let id = StreamId::new;
        for (text, finished) in [
            (&b" 0-0"[..], Some(id(0, 0))),
            (b" 5-3", Some(id(5, 3))),
            (b"4-0 5-3", Some(id(4, 0).before())),
            (b"5-3 5-3", Some(id(5, 2))),
            // a claim may leave what is older than a group that was moved back
            (b"9-0 5-3", Some(id(5, 3))),
            (b"5-3", None),
            (b"x 5-3", None),
            (b"4-0 ", None),
            (b"", None),
        ] {
            let mark = Mark::parse(text);
            assert_eq!(
                mark.map(Mark::finished),
                finished,
                "{}",
                text.escape_ascii()
            );
        }
    }

    #[test]
    fn a_group_that_is_gone_is_known_by_whatever_the_server_says() {
        for (text, gone) in [
            ("NOGROUP No such key 's' or consumer group 'g'", true),
            ("UNBLOCKED the stream key no longer exists", true),
            ("ERR no such key", true),
            ("WRONGTYPE Operation against a key", false),
            ("ERR syntax error", false),
            ("LOADING", false),
        ] {
            assert_eq!(
                is_gone(&Error::server("read", text.as_bytes())),
                gone,
                "{text}"
            );
        }
    }
}
