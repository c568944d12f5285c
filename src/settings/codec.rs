//! How each type of value is read from text, written to text, and explained.

use std::{fmt::Display, marker::PhantomData, str::FromStr, time::Duration, time::SystemTime};

use super::secret::{ConnectionString, MASK, Secret};
use crate::clock::{self, RoundTrip};

/// A type of value and the limits of one setting.
pub(crate) trait Codec {
    type Value;
    const LIST: bool = false;
    const SECRET: bool = false;

    /// What may be given, to follow "give".
    fn allowed(&self) -> String;

    fn unit(&self) -> &'static str {
        ""
    }

    /// `None` when the text is not allowed.
    fn read(&self, text: &str) -> Option<Self::Value>;

    /// The value, or the items of a list; nothing when unset.
    fn write(&self, value: &Self::Value) -> Vec<String>;

    /// The same with secrets masked.
    fn show(&self, value: &Self::Value) -> Vec<String> {
        self.write(value)
    }

    fn put(&self, slot: &mut Self::Value, item: Option<usize>, text: &str) -> bool {
        match (item, self.read(text)) {
            (None, Some(value)) => {
                *slot = value;
                true
            }
            _ => false,
        }
    }
}

pub(crate) const fn is_list<C: Codec>(_: &C) -> bool {
    C::LIST
}

pub(crate) const fn is_secret<C: Codec>(_: &C) -> bool {
    C::SECRET
}

/// A whole number with its unit, smallest and greatest value.
pub(crate) struct Whole<T>(pub(crate) &'static str, pub(crate) T, pub(crate) T);

impl<T: Copy + PartialOrd + Display + FromStr> Codec for Whole<T> {
    type Value = T;

    fn allowed(&self) -> String {
        format!("a whole number from {} to {}", self.1, self.2)
    }

    fn unit(&self) -> &'static str {
        self.0
    }

    fn read(&self, text: &str) -> Option<T> {
        let n = text.trim().parse().ok()?;
        (self.1 <= n && n <= self.2).then_some(n)
    }

    fn write(&self, value: &T) -> Vec<String> {
        vec![value.to_string()]
    }
}

/// A part of a whole.
pub(crate) struct Share;

impl Codec for Share {
    type Value = f64;

    fn allowed(&self) -> String {
        "a number from 0 to 1".into()
    }

    fn read(&self, text: &str) -> Option<f64> {
        let share = text.trim().parse().ok()?;
        (0.0..=1.0).contains(&share).then_some(share)
    }

    fn write(&self, value: &f64) -> Vec<String> {
        vec![value.to_string()]
    }
}

/// A span of time, as a whole number of some unit between two limits.
pub(crate) struct Span {
    unit: &'static str,
    nanos: u64,
    limits: Whole<u64>,
}

pub(crate) const fn millis(min: u64, max: u64) -> Span {
    Span {
        unit: "milliseconds",
        nanos: 1_000_000,
        limits: Whole("", min, max),
    }
}

pub(crate) const fn seconds(min: u64, max: u64) -> Span {
    Span {
        unit: "seconds",
        nanos: 1_000_000_000,
        limits: Whole("", min, max),
    }
}

pub(crate) const fn micros(min: u64, max: u64) -> Span {
    Span {
        unit: "microseconds",
        nanos: 1000,
        limits: Whole("", min, max),
    }
}

impl Codec for Span {
    type Value = Duration;

    fn allowed(&self) -> String {
        self.limits.allowed()
    }

    fn unit(&self) -> &'static str {
        self.unit
    }

    fn read(&self, text: &str) -> Option<Duration> {
        let n = self.limits.read(text)?;
        Some(Duration::from_nanos(n.checked_mul(self.nanos)?))
    }

    fn write(&self, value: &Duration) -> Vec<String> {
        // upwards, so that a short wait never becomes none
        vec![value.as_nanos().div_ceil(self.nanos.into()).to_string()]
    }
}

/// `true` or `false`.
pub(crate) struct Flag;

impl Codec for Flag {
    type Value = bool;

    fn allowed(&self) -> String {
        "true or false".into()
    }

    fn read(&self, text: &str) -> Option<bool> {
        text.trim().to_ascii_lowercase().parse().ok()
    }

    fn write(&self, value: &bool) -> Vec<String> {
        vec![value.to_string()]
    }
}

/// Any text, verbatim.
pub(crate) struct Text;

impl Codec for Text {
    type Value = String;

    fn allowed(&self) -> String {
        "text".into()
    }

    fn read(&self, text: &str) -> Option<String> {
        Some(text.into())
    }

    fn write(&self, value: &String) -> Vec<String> {
        vec![value.clone()]
    }
}

/// The start of every key; blank counts as the default.
pub(crate) struct Prefix(pub(crate) &'static str);

impl Codec for Prefix {
    type Value = String;

    fn allowed(&self) -> String {
        // a brace before the hash tag would decide the cluster slot of every key
        "text without braces".into()
    }

    fn read(&self, text: &str) -> Option<String> {
        let text = if text.trim().is_empty() { self.0 } else { text };
        (!text.contains(['{', '}'])).then(|| text.into())
    }

    fn write(&self, value: &String) -> Vec<String> {
        vec![value.clone()]
    }
}

/// A password.
pub(crate) struct Password;

impl Codec for Password {
    type Value = Secret;
    const SECRET: bool = true;

    fn allowed(&self) -> String {
        "text".into()
    }

    fn read(&self, text: &str) -> Option<Secret> {
        Some(text.into())
    }

    fn write(&self, value: &Secret) -> Vec<String> {
        vec![value.reveal().into()]
    }

    fn show(&self, _: &Secret) -> Vec<String> {
        vec![MASK.into()]
    }
}

/// Where the server is, possibly with a password in it.
pub(crate) struct Server;

impl Codec for Server {
    type Value = ConnectionString;
    const SECRET: bool = true;

    fn allowed(&self) -> String {
        "a redis:// URL or host:port,name=value,...".into()
    }

    fn read(&self, text: &str) -> Option<ConnectionString> {
        Some(text.into())
    }

    fn write(&self, value: &ConnectionString) -> Vec<String> {
        vec![value.reveal().into()]
    }

    fn show(&self, value: &ConnectionString) -> Vec<String> {
        vec![value.to_string()]
    }
}

/// A moment with its offset from UTC.
pub(crate) struct Moment;

impl Codec for Moment {
    type Value = SystemTime;

    fn allowed(&self) -> String {
        "a date and time with offset, such as 2026-01-31T08:00:00Z".into()
    }

    fn read(&self, text: &str) -> Option<SystemTime> {
        clock::parse_moment(text.trim()).ok()
    }

    fn write(&self, value: &SystemTime) -> Vec<String> {
        vec![RoundTrip(*value).to_string()]
    }
}

/// A list of texts.
pub(crate) struct Texts;

impl Codec for Texts {
    type Value = Vec<String>;
    const LIST: bool = true;

    fn allowed(&self) -> String {
        "a list of texts, its items numbered from 0".into()
    }

    fn read(&self, _: &str) -> Option<Vec<String>> {
        None
    }

    fn write(&self, value: &Vec<String>) -> Vec<String> {
        value.clone()
    }

    fn put(&self, slot: &mut Vec<String>, item: Option<usize>, text: &str) -> bool {
        match item {
            Some(i) if i < slot.len() => slot[i] = text.into(),
            Some(i) if i == slot.len() => slot.push(text.into()),
            _ => return false,
        }
        true
    }
}

/// The variants of an enum made by `choices!`.
pub(crate) trait Named: Copy + PartialEq + 'static {
    const ALL: &'static [(&'static str, Self)];
}

/// One name out of a few, in any case.
pub(crate) struct Choice<T>(PhantomData<T>);

pub(crate) const fn choice<T: Named>() -> Choice<T> {
    Choice(PhantomData)
}

impl<T: Named> Codec for Choice<T> {
    type Value = T;

    fn allowed(&self) -> String {
        let names: Vec<_> = T::ALL.iter().map(|(name, _)| *name).collect();
        format!("one of {}", names.join(", "))
    }

    fn read(&self, text: &str) -> Option<T> {
        let same = |name: &str| name.eq_ignore_ascii_case(text.trim());
        T::ALL
            .iter()
            .find(|(n, _)| same(n))
            .map(|(_, value)| *value)
    }

    fn write(&self, value: &T) -> Vec<String> {
        let names = T::ALL.iter().filter(|(_, v)| v == value);
        names.map(|(name, _)| (*name).into()).collect()
    }
}

/// A value that may be unset; blank counts as unset.
pub(crate) struct Opt<C>(pub(crate) C);

impl<C: Codec> Codec for Opt<C> {
    type Value = Option<C::Value>;
    const SECRET: bool = C::SECRET;

    fn allowed(&self) -> String {
        self.0.allowed()
    }

    fn unit(&self) -> &'static str {
        self.0.unit()
    }

    fn read(&self, text: &str) -> Option<Self::Value> {
        if text.trim().is_empty() {
            return Some(None);
        }
        self.0.read(text).map(Some)
    }

    fn write(&self, value: &Self::Value) -> Vec<String> {
        value.iter().flat_map(|v| self.0.write(v)).collect()
    }

    fn show(&self, value: &Self::Value) -> Vec<String> {
        value.iter().flat_map(|v| self.0.show(v)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_within_their_limits() {
        let c = Whole("messages", 1u32, 100);
        for (text, value) in [
            ("1", Some(1)),
            (" 100 ", Some(100)),
            ("0", None),
            ("101", None),
            ("-1", None),
            ("4294967297", None),
            ("1.5", None),
            ("", None),
            ("ten", None),
        ] {
            assert_eq!(c.read(text), value, "{text:?}");
        }
        assert_eq!(c.allowed(), "a whole number from 1 to 100");
    }

    #[test]
    fn a_share_is_a_part_of_one() {
        for (text, value) in [
            ("0", Some(0.0)),
            (" 0.8", Some(0.8)),
            ("1", Some(1.0)),
            ("1.01", None),
            ("-0.1", None),
            ("80%", None),
            ("NaN", None),
            ("", None),
        ] {
            assert_eq!(Share.read(text), value, "{text:?}");
        }
        assert_eq!(Share.write(&0.8), ["0.8"]);
    }

    #[test]
    fn spans_are_written_upwards_and_never_as_nothing() {
        let c = millis(0, 5000);
        assert_eq!(c.write(&Duration::from_micros(1)), ["1"]);
        assert_eq!(c.write(&Duration::from_micros(1500)), ["2"]);
        assert_eq!(c.read("1500"), Some(Duration::from_millis(1500)));
        assert_eq!(micros(0, 9).read("9"), Some(Duration::from_micros(9)));
        assert_eq!(seconds(0, u64::MAX).read("18446744073709551615"), None);
        assert_eq!(c.read(&c.write(&Duration::MAX)[0]), None);
    }

    #[test]
    fn flags_and_moments_and_lists() {
        assert_eq!(Flag.read(" True"), Some(true));
        assert_eq!(Flag.read("FALSE"), Some(false));
        assert_eq!(Flag.read("1"), None);
        let t = Moment.read("2026-01-31T10:00:00+02:00").unwrap();
        assert_eq!(Moment.write(&t), ["2026-01-31T08:00:00.0000000+00:00"]);
        assert_eq!(Moment.read("2026-01-31"), None);
        let mut list = vec![];
        assert!(Texts.put(&mut list, Some(0), "a"));
        assert!(!Texts.put(&mut list, Some(2), "c"));
        assert!(Texts.put(&mut list, Some(0), "b"));
        assert!(!Texts.put(&mut list, None, "b"));
        assert_eq!(list, ["b"]);
    }

    #[test]
    fn a_blank_optional_is_unset_and_a_blank_prefix_the_default() {
        assert_eq!(Opt(Text).read("  "), Some(None));
        assert_eq!(Opt(Whole("", 0u32, 9)).read(""), Some(None));
        assert_eq!(Prefix("re:").read(" ").as_deref(), Some("re:"));
        assert_eq!(Prefix("re:").read(" x ").as_deref(), Some(" x "));
        assert_eq!(Prefix("re:").read("a{b"), None);
    }
}
