//! Servers that are known to break on what somebody may ask of them, and what is therefore not asked.

/// A range of versions, and what is wrong with it.
#[derive(Debug)]
pub(crate) struct Trouble {
    /// From this version on.
    first: [u32; 3],
    /// Up to this one.
    last: [u32; 3],
    /// What happens.
    pub(crate) what: &'static str,
    /// What is done about it here.
    pub(crate) avoided: &'static str,
    /// The first version without it.
    pub(crate) mended: &'static str,
    /// Whether `XAUTOCLAIM` is not to be sent.
    pub(crate) no_autoclaim: bool,
}

/// What is known. What has to be avoided on any version is not in here, for nobody has to be told.
pub(crate) const TROUBLES: &[Trouble] = &[
    Trouble {
        first: [7, 0, 0],
        last: [7, 0, 4],
        what: "XAUTOCLAIM over messages that were trimmed can crash it, and overrun its memory (CVE-2022-31144, \
               CVE-2022-35951)",
        avoided: "XAUTOCLAIM is not sent, so that what a member in another language has and gives no sign of is \
                  not claimed",
        mended: "7.0.5",
        no_autoclaim: true,
    },
    Trouble {
        first: [8, 2, 0],
        last: [8, 2, 2],
        what: "XACKDEL with several ids overruns its stack, and crashes it (CVE-2025-62507)",
        avoided: "XACKDEL is not sent",
        mended: "8.2.3",
        no_autoclaim: false,
    },
];

/// What is wrong with a server of this version.
pub(crate) fn trouble_of(version: Option<&str>) -> Option<&'static Trouble> {
    let version = parse(version?)?;
    TROUBLES
        .iter()
        .find(|t| (t.first..=t.last).contains(&version))
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
            let found = trouble_of(Some(version));
            assert_eq!(found.map(|t| t.mended), mended, "{version}");
        }
        assert!(trouble_of(None).is_none());
        let [old, new] = TROUBLES else {
            panic!("say here what is new");
        };
        assert!(old.no_autoclaim && !new.no_autoclaim);
    }
}
