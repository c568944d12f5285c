//! Which consumers a topic has, and in which way each keeps what is finished: written down by each when it
//! starts, so that a name is used in one way only, and whoever deletes messages knows who has to have read them.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    AckDelete, Delivery, Persist, Result,
    error::{Error, ErrorKind},
    net::{
        Connection,
        script::{Script, by_hash_first},
    },
    wire::Keys,
};

/// In which way a consumer keeps what is finished.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Keeps {
    /// Not at all.
    Nothing,
    Positions,
    /// In its consumer group.
    Group,
    /// In its consumer group, and deletes what is.
    DeletingGroup,
}

impl Keeps {
    const ALL: [(Self, &'static str, &'static str); 4] = [
        (Self::Nothing, "nothing", "nothing (Persist None)"),
        (Self::Positions, "positions", "positions (Delivery Ordered)"),
        (
            Self::Group,
            "group",
            "a consumer group (Delivery WorkQueue or LeasedQueue)",
        ),
        (
            Self::DeletingGroup,
            "group, deleting",
            "a consumer group that deletes what is finished (AckDelete Immediate)",
        ),
    ];

    pub(crate) fn of(delivery: Delivery, persist: Persist, delete: AckDelete) -> Self {
        match (delivery.is_queue(), persist, delete) {
            (true, _, AckDelete::Immediate) => Self::DeletingGroup,
            (true, ..) => Self::Group,
            (false, Persist::None, _) => Self::Nothing,
            (false, ..) => Self::Positions,
        }
    }

    pub(crate) fn is_group(self) -> bool {
        matches!(self, Self::Group | Self::DeletingGroup)
    }

    fn parse(text: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(_, t, _)| *t == text);
        found.map(|(keeps, ..)| *keeps)
    }

    /// As it is stored, and for people.
    fn texts(self) -> (&'static str, &'static str) {
        let found = Self::ALL.iter().find(|(keeps, ..)| *keeps == self);
        found.map_or(("", ""), |(_, stored, told)| (stored, told))
    }
}

/// `KEYS`: the consumers of the topic; the positions of this one. `ARGV`: its name; how it keeps what is
/// finished. It answers nothing when that is written down; `m` and how the name is used, when that is another
/// way; `o` and the name of another consumer that is in the way of one that deletes, or deletes itself.
const REGISTER: Script = Script {
    text: r"#!lua flags=allow-oom
local name, keeps = ARGV[1], ARGV[2]
local function group(k) return string.sub(k, 1, 5) == 'group' end
local there = redis.call('HGET', KEYS[1], name)
if not there and redis.call('EXISTS', KEYS[2]) == 1 then there = 'positions' end
if there and group(there) ~= group(keeps) then return 'm' .. there end
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  if all[i] ~= name and (keeps == 'group, deleting' or all[i + 1] == 'group, deleting') then return 'o' .. all[i] end
end
redis.call('HSET', KEYS[1], name, keeps)
return ''",
    sha1: "0258dfc7f80b3852bc45f9ececb9c61871aae993",
    commands: "+eval +evalsha +hget +hset +hgetall +exists",
};

/// Writes down that a consumer reads the topic. Blocks for a round trip, or two.
///
/// # Errors
///
/// A configuration error when its name is used in another way on this topic, or when it or another deletes
/// messages that the other would have to read; and, of a group, the server's refusal.
pub(crate) fn register(
    connection: &mut Connection,
    keys: &Keys,
    (topic, consumer): (&str, &str),
    keeps: Keeps,
    timeout: Duration,
) -> Result<()> {
    let (key, positions) = (keys.consumers(topic), keys.positions(topic, consumer));
    let answer = by_hash_first(|form| {
        let (name, script) = REGISTER.named(form);
        let mut cmd = redis::cmd(name);
        cmd.arg(script).arg(2).arg(&key).arg(&positions);
        cmd.arg(consumer).arg(keeps.texts().0);
        connection.ask::<String>(&cmd, timeout)
    });
    let answer = match answer {
        // Who deletes nothing and needs no scripts is let in all the same.
        Err(e) if e.keeps_connection() && !e.is_retryable() && !keeps.is_group() => {
            log::debug!(
                "{topic}/{consumer}: not written down among the consumers of the topic: {e}"
            );
            return Ok(());
        }
        Err(e) => {
            let e = REGISTER.saying_what_to_grant(e, &[&key, &positions]);
            return Err(e
                .during("join the consumers of the topic")
                .on_key(key.as_bytes()));
        }
        Ok(answer) => answer,
    };
    let what = match answer.split_at_checked(1) {
        None => return Ok(()),
        Some(("m", there)) => format!(
            "consumer {consumer:?} keeps what is finished as {} on topic {topic:?}, and is to keep it as {}: what is \
             finished in one is not in the other; use another Consumer name, or, when nobody uses it any more, \
             HDEL {key} {consumer:?}",
            Keeps::parse(there).map_or(there, |k| k.texts().1),
            keeps.texts().1,
        ),
        Some((_, other)) => format!(
            "AckDelete Immediate deletes messages that other consumers of topic {topic:?} have not read, and {other:?} \
             is one: of the two only one can read this topic; say AckDelete None and leave deleting to trimming, or, \
             when nobody uses that name any more, HDEL {key} {other:?}"
        ),
    };
    Err(Error::new(ErrorKind::Config, "start", what))
}

/// The consumers of a topic, by name. Those that were written in another implementation are not among them.
pub(crate) fn registered(
    connection: &mut Connection,
    keys: &Keys,
    topic: &str,
    timeout: Duration,
) -> Result<BTreeMap<String, Keeps>> {
    let mut cmd = redis::cmd("HGETALL");
    cmd.arg(keys.consumers(topic));
    let all: BTreeMap<String, String> = connection.ask(&cmd, timeout)?;
    let all = all.into_iter();
    Ok(all
        .filter_map(|(name, keeps)| Some((name, Keeps::parse(&keeps)?)))
        .collect())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{
        Keeps::{DeletingGroup, Group, Nothing, Positions},
        *,
    };
    use crate::testing::PrivateServer;

    #[test]
    fn the_server_knows_the_script_by_its_hash() {
        let server = PrivateServer::start().unwrap();
        let known = server.command(&["SCRIPT", "LOAD", REGISTER.text]).unwrap();
        assert_eq!(known.text(), REGISTER.sha1);
    }

    #[test]
    fn a_name_is_used_in_one_way_and_who_deletes_reads_alone() {
        let server = PrivateServer::start().unwrap();
        let register = |topic: &str, name: &str, keeps: Keeps, there: &[&str]| {
            let mut args = vec![
                "EVAL",
                REGISTER.text,
                "2",
                topic,
                there.first().unwrap_or(&"-"),
            ];
            args.extend([name, keeps.texts().0]);
            server.command(&args).unwrap().text()
        };
        assert_eq!(register("t", "a", Positions, &[]), "");
        assert_eq!(register("t", "a", Nothing, &[]), "", "the same mode");
        assert_eq!(register("t", "a", Group, &[]), "mnothing");
        assert_eq!(register("t", "b", Group, &[]), "");
        assert_eq!(register("t", "b", Positions, &[]), "mgroup");
        assert_eq!(register("t", "b", DeletingGroup, &[]), "oa");
        assert_eq!(register("u", "b", DeletingGroup, &[]), "");
        assert_eq!(register("u", "b", Group, &[]), "", "it may stop deleting");
        assert_eq!(register("u", "b", DeletingGroup, &[]), "");
        assert_eq!(register("u", "a", Positions, &[]), "ob");
        assert_eq!(register("u", "c", Group, &[]), "ob");
        // positions of before there was a register
        server.command(&["HSET", "p", "0", "1-0|x"]).unwrap();
        assert_eq!(register("v", "a", Group, &["p"]), "mpositions");
        for (keeps, stored, _) in Keeps::ALL {
            assert_eq!(Keeps::parse(stored), Some(keeps));
        }
    }
}
