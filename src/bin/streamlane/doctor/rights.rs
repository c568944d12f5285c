//! What a user may do, as the server says when it is asked what it would say.

use streamlane::{Command, ErrorKind, Session};

use crate::end::Result;

use super::facts::{Subject, ask};

/// What somebody does with a server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Role {
    Publish,
    Consume,
    Queue,
    Operate,
}

impl Role {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Publish => "publishing",
            Self::Consume => "consuming in order",
            Self::Queue => "consuming as a queue",
            Self::Operate => "operating with this program",
        }
    }
}

/// One command that a role needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Right {
    pub(crate) role: Role,
    pub(crate) command: &'static str,
    pub(crate) held: Held,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Held {
    Yes,
    /// The server's own words.
    No(String),
    Unknown,
}

/// What each role needs, as it would be said of keys of a topic that nobody has. `S`, `H` and `D` stand for a stream, a
/// hash of positions, and a stream of dead letters. Done for real, on keys that are not there, none of them changes
/// anything; but those that begin with a `!` would, and are not.
const NEEDS: [(Role, &str); 30] = [
    (Role::Publish, "XADD S NOMKSTREAM * b x t x"),
    (Role::Publish, "HMGET H f"),
    (Role::Publish, "!HSET H f x"),
    (Role::Publish, "EVAL return~1 0"),
    (Role::Publish, "EXISTS S"),
    (Role::Consume, "XREAD COUNT 1 STREAMS S 0-0"),
    (Role::Consume, "XINFO STREAM S"),
    (Role::Consume, "XREVRANGE S + - COUNT 1"),
    (Role::Consume, "HGETALL H"),
    (Role::Consume, "HDEL H f"),
    (Role::Consume, "!HSET H f x"),
    (Role::Consume, "EVAL return~1 1 H"),
    (
        Role::Consume,
        "EVALSHA 0000000000000000000000000000000000000000 1 H",
    ),
    (Role::Queue, "XREADGROUP GROUP g m STREAMS S >"),
    (Role::Queue, "XGROUP SETID S g 0-0"),
    (Role::Queue, "XINFO GROUPS S"),
    (Role::Queue, "XPENDING S g"),
    (Role::Queue, "XACK S g 1-1"),
    (Role::Queue, "XCLAIM S g m 0 1-1"),
    (Role::Queue, "ZRANGE H 0 0"),
    (Role::Queue, "ZREM H f"),
    (Role::Operate, "XRANGE S - + COUNT 1"),
    (Role::Operate, "XLEN S"),
    (Role::Operate, "XDEL D 1-1"),
    (Role::Operate, "XTRIM S MAXLEN 0"),
    (Role::Operate, "UNLINK S"),
    (Role::Operate, "PTTL S"),
    (Role::Operate, "TIME"),
    (Role::Operate, "INFO"),
    (Role::Operate, "CONFIG GET save"),
];

/// A key of a topic that nobody has.
pub(super) fn probe_key(prefix: &str, kind: &str) -> String {
    match kind {
        "s" => format!("{prefix}s:{{streamlane-doctor}}:0"),
        kind => format!("{prefix}{kind}:{{streamlane-doctor}}:doctor"),
    }
}

/// Finds out what a user may do, without doing anything: by asking the server what it would say, or where that may not
/// be asked, of oneself, by what it says about keys that are not there.
pub(super) fn look(
    session: &mut Session,
    subject: &Subject<'_>,
    user: Option<&str>,
) -> Result<Vec<Right>> {
    let mut dry = user.is_some();
    let mut rights = Vec::with_capacity(NEEDS.len());
    for (role, need) in NEEDS {
        let words: Vec<_> = words(need.trim_start_matches('!'), subject.prefix);
        let command = need
            .trim_start_matches('!')
            .split(' ')
            .next()
            .unwrap_or_default();
        let mut held = Held::Unknown;
        if let Some(user) = user.filter(|_| dry) {
            let asked = Command::new("ACL").arg("DRYRUN").arg(user);
            let asked = words.iter().fold(asked, Command::arg);
            match ask(session, &asked, subject.timeout)? {
                Some(answer) => held = read(answer.text().unwrap_or_default()),
                None => dry = false,
            }
        }
        if held == Held::Unknown && !dry && subject.user.is_none() && !need.starts_with('!') {
            held = probe(session, &words, subject)?;
        }
        rights.push(Right {
            role,
            command,
            held,
        });
    }
    Ok(rights)
}

fn words(need: &str, prefix: &str) -> Vec<String> {
    let word = |word: &str| match word {
        "S" => probe_key(prefix, "s"),
        "H" => probe_key(prefix, "p"),
        "D" => probe_key(prefix, "d"),
        word => word.replace('~', " "),
    };
    need.split(' ').map(word).collect()
}

/// What a dry run says.
fn read(answer: &[u8]) -> Held {
    if answer == b"OK" {
        return Held::Yes;
    }
    Held::No(String::from_utf8_lossy(answer).into_owned())
}

fn probe(session: &mut Session, words: &[String], subject: &Subject<'_>) -> Result<Held> {
    let command = Command::new(&words[0]);
    let command = words[1..].iter().fold(command, Command::arg);
    match session.call(&command, subject.timeout) {
        Ok(_) => Ok(Held::Yes),
        Err(e) if e.server_code() == Some("NOPERM") => Ok(Held::No(e.to_string())),
        // whatever else it says, it was let through
        Err(e) if e.kind() == ErrorKind::Server => Ok(Held::Yes),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_asked_of_keys_that_nobody_has() {
        assert_eq!(
            words("EVAL return~1 1 H", "re:"),
            ["EVAL", "return 1", "1", "re:p:{streamlane-doctor}:doctor"]
        );
        for (_, need) in NEEDS {
            for word in words(need, "x:").iter().filter(|w| w.contains('{')) {
                assert!(
                    word.starts_with("x:") && word.contains("{streamlane-doctor}"),
                    "{word}"
                );
            }
        }
        assert_eq!(read(b"OK"), Held::Yes);
        assert_eq!(read(b"User x has no"), Held::No("User x has no".into()));
    }
}
