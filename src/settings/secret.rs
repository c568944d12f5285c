//! Texts that must not be printed, or not whole.

use std::fmt;

/// What stands in place of a secret.
pub(crate) const MASK: &str = "***";

/// A password. Printing it, in whatever way, prints `***`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The text itself. It must not be logged.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl<T: Into<String>> From<T> for Secret {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

/// Where the server is: a URL (`redis://user:password@host:6379/0`) or
/// `host:port,password=...,connectTimeout=1500`. Printing it leaves out every password in it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ConnectionString(String);

impl ConnectionString {
    /// The text itself, with any password in it. It must not be logged.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl<T: Into<String>> From<T> for ConnectionString {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for ConnectionString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&masked(&self.0))
    }
}

impl fmt::Debug for ConnectionString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", masked(&self.0))
    }
}

/// `text` without its passwords. Where it is unclear how far one reaches, too much is masked.
fn masked(text: &str) -> String {
    mask_pairs(&mask_authority(text))
}

/// Masks what stands before the host of a URL, but for a user name.
fn mask_authority(text: &str) -> String {
    let Some(start) = text.find("://").map(|i| i + 3) else {
        return text.into();
    };
    // the last one: a password may hold a bare @ or / that should have been escaped
    let Some(end) = text.rfind('@').filter(|end| *end >= start) else {
        return text.into();
    };
    let login = &text[start..end];
    if split_after_password(login).is_some() {
        // the @ may stand in a password behind the host
        return format!("{}{MASK}{}", &text[..start], next_pair(&text[end..]));
    }
    let user = login.split_once(':').map_or("", |(user, _)| user);
    let colon = if user.is_empty() { "" } else { ":" };
    format!("{}{user}{colon}{MASK}{}", &text[..start], &text[end..])
}

/// Masks the values of `password=` and the like.
fn mask_pairs(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, value)) = split_after_password(rest) {
        out.push_str(before);
        out.push_str(MASK);
        rest = next_pair(value);
    }
    out + rest
}

/// Splits behind the `=` of the first pair whose name speaks of a password.
fn split_after_password(text: &str) -> Option<(&str, &str)> {
    text.match_indices('=').find_map(|(i, _)| {
        let name = text[..i].rsplit([',', '&', '?', ';']).next()?;
        let name = name.to_ascii_lowercase();
        ["pass", "pwd", "secret", "token"]
            .iter()
            .any(|word| name.contains(word))
            .then(|| text.split_at(i + 1))
    })
}

/// The rest of `text` from the separator before the next `name=`. A separator with no name behind
/// it may belong to the password.
fn next_pair(text: &str) -> &str {
    let is_name = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_alphanumeric());
    text.match_indices([',', '&', ';'])
        .find(|(i, _)| {
            text[i + 1..]
                .split_once('=')
                .is_some_and(|(name, _)| is_name(name.trim()))
        })
        .map_or("", |(i, _)| &text[i..])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_no_secret_stays_readable() {
        for (text, shown) in [
            ("redis://h:6379/2", "redis://h:6379/2"),
            ("redis://user:pw@h:1/0", "redis://user:***@h:1/0"),
            ("redis://:pw@h", "redis://***@h"),
            ("redis://pw@h", "redis://***@h"),
            ("redis://u:p@w/x@h", "redis://u:***@h"),
            ("redis://h?password=pw&db=1", "redis://h?password=***&db=1"),
            ("h:6379,ssl=true", "h:6379,ssl=true"),
            ("h:1,Password = p,w,ssl=true", "h:1,Password =***,ssl=true"),
            ("h:1,password=p@w", "h:1,password=***"),
            ("", ""),
        ] {
            assert_eq!(ConnectionString::from(text).to_string(), shown, "{text}");
        }
        assert_eq!(format!("{:?} {0}", Secret::from("pw")), "*** ***");
    }

    proptest! {
        #[test]
        fn a_password_is_never_shown(pw in "[A-Z@:/?#!. ]{1,12}", user in "[a-z]{0,4}") {
            for text in [
                format!("redis://{user}:{pw}Q@h:6379/0"),
                format!("redis://{}Q@h", pw.replace(':', "")),
                format!("h:6379,user={user},password={pw}Q,ssl=true"),
                format!("h:6379,ssl=true,Password={pw}Q"),
                format!("redis://h:6379/?password={pw}Q&x=1"),
            ] {
                let c = ConnectionString::from(&*text);
                let shown = format!("{c} {c:?}");
                prop_assert!(!shown.contains('Q'), "{text} is shown as {shown}");
                let unclear = text.contains("?password") && text.contains('@');
                prop_assert!(unclear || shown.contains("@h") || shown.contains("h:6379"));
            }
        }
    }
}
