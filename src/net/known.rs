//! Servers that are known to break on what somebody may ask of them, and what is therefore not asked.

/// What is wrong with a range of versions of Redis, and what is done about it here.
///
/// Who connects to such a server finds it in the log; this is for tools that look at servers beforehand.
#[derive(Debug)]
#[non_exhaustive]
pub struct ServerTrouble {
    /// From this version on.
    first: [u32; 3],
    /// Up to this one.
    last: [u32; 3],
    /// What happens.
    pub what: &'static str,
    /// What is done about it here.
    pub avoided: &'static str,
    /// The first version without it.
    pub mended: &'static str,
    /// Whether `XAUTOCLAIM` is not to be sent.
    pub(crate) no_autoclaim: bool,
}

/// What is known. What has to be avoided on any version is not in here, for nobody has to be told.
const TROUBLES: &[ServerTrouble] = &[
    ServerTrouble {
        first: [7, 0, 0],
        last: [7, 0, 4],
        what: "XAUTOCLAIM over messages that were trimmed can crash it, and overrun its memory (CVE-2022-31144, \
               CVE-2022-35951)",
        avoided: "XAUTOCLAIM is not sent, so that what a member in another language has and gives no sign of is \
                  not claimed",
        mended: "7.0.5",
        no_autoclaim: true,
    },
    ServerTrouble {
        first: [8, 2, 0],
        last: [8, 2, 2],
        what: "XACKDEL with several ids overruns its stack, and crashes it (CVE-2025-62507)",
        avoided: "XACKDEL is not sent",
        mended: "8.2.3",
        no_autoclaim: false,
    },
];

impl ServerTrouble {
    /// What is known to be wrong with this version of Redis, which is written as `INFO` has it in `redis_version`
    /// (`8.2.1`). Nothing is known of what is written in another way. Asks no server.
    ///
    /// ```
    /// let trouble = streamlane::ServerTrouble::of("8.2.1").unwrap();
    /// assert_eq!(trouble.mended, "8.2.3");
    /// assert!(streamlane::ServerTrouble::of("8.2.3").is_none());
    /// ```
    pub fn of(version: &str) -> Option<&'static Self> {
        let version = parse(version)?;
        TROUBLES
            .iter()
            .find(|t| (t.first..=t.last).contains(&version))
    }
}

/// `7.0.15`, and whatever may follow.
fn parse(text: &str) -> Option<[u32; 3]> {
    let mut parts = text.split(['.', '-', '+']).map(|part| part.parse().ok());
    Some([
        parts.next()??,
        parts.next()??,
        parts.next().flatten().unwrap_or(0),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_break_are_told_from_those_that_do_not() {
        for (version, mended) in [
            ("6.2.7", None),
            ("7.0.0", Some("7.0.5")),
            ("7.0.3", Some("7.0.5")),
            ("7.0.4", Some("7.0.5")),
            ("7.0.5", None),
            ("7.0.15", None),
            ("7.2.4", None),
            ("8.1.9", None),
            ("8.2.0", Some("8.2.3")),
            ("8.2", Some("8.2.3")),
            ("8.2.2-rc1", Some("8.2.3")),
            ("8.2.3", None),
            ("9.1.2", None),
            ("new", None),
            ("", None),
        ] {
            let found = ServerTrouble::of(version);
            assert_eq!(found.map(|t| t.mended), mended, "{version}");
        }
        let [old, new] = TROUBLES else {
            panic!("say here what is new");
        };
        assert!(old.no_autoclaim && !new.no_autoclaim);
    }
}
