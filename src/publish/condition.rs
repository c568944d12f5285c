//! What must hold for a transaction to be carried out.

use std::fmt;

use crate::error::{Error, ErrorKind};

use super::{Argument, Command, Reply};

/// What must be true on the server for a transaction to be carried out, from the moment it is looked at
/// until the transaction is done: a change in between counts as a condition that does not hold.
///
/// ```
/// use streamlane::{Command, Condition};
///
/// let key = "re:{orders}:state:17";
/// let unchanged = Condition::hash_equal(key, "version", 7);
/// let rich = Condition::check(Command::new("HGET").key(key).arg("balance"), |reply| {
///     reply.int().is_some_and(|balance| balance >= 100)
/// });
/// # drop((unchanged, rich));
/// ```
#[must_use = "a condition does nothing before a transaction that holds it is committed"]
pub struct Condition {
    read: Command,
    test: Test,
}

/// What a reply must be.
enum Test {
    Text(Vec<u8>),
    NotText(Vec<u8>),
    Int(i64),
    Passes(Box<dyn Fn(&Reply) -> bool + Send + Sync>),
}

impl Condition {
    /// The field of the hash has this value.
    pub fn hash_equal(key: impl AsRef<[u8]>, field: impl Argument, value: impl Argument) -> Self {
        Self::new(hget(key, field), Test::Text(bytes(value)))
    }

    /// The field of the hash has another value, or there is no such field or hash.
    pub fn hash_not_equal(
        key: impl AsRef<[u8]>,
        field: impl Argument,
        value: impl Argument,
    ) -> Self {
        Self::new(hget(key, field), Test::NotText(bytes(value)))
    }

    /// The hash has no such field, or there is no hash.
    pub fn hash_not_exists(key: impl AsRef<[u8]>, field: impl Argument) -> Self {
        Self::new(Command::new("HEXISTS").key(key).arg(field), Test::Int(0))
    }

    /// There is such a key, of whatever type.
    pub fn key_exists(key: impl AsRef<[u8]>) -> Self {
        Self::new(Command::new("EXISTS").key(key), Test::Int(1))
    }

    /// There is no such key.
    pub fn key_not_exists(key: impl AsRef<[u8]>) -> Self {
        Self::new(Command::new("EXISTS").key(key), Test::Int(0))
    }

    /// The string has this value.
    pub fn string_equal(key: impl AsRef<[u8]>, value: impl Argument) -> Self {
        let read = Command::new("GET").key(key);
        Self::new(read, Test::Text(bytes(value)))
    }

    /// The stream has so many entries; 0 if there is none.
    pub fn stream_len(key: impl AsRef<[u8]>, entries: u64) -> Self {
        // No stream is as long as that: what does not fit holds nowhere.
        let entries = i64::try_from(entries).unwrap_or(-1);
        Self::new(Command::new("XLEN").key(key), Test::Int(entries))
    }

    /// What your command answers passes your test.
    ///
    /// The command must only read, and must name a key: its keys are watched until the transaction is
    /// done. `test` runs between the two round trips of the transaction, while other callers of the
    /// outbox wait, and should be quick. If it panics nothing was applied, and the panic goes on to the
    /// caller.
    pub fn check(read: Command, test: impl Fn(&Reply) -> bool + Send + Sync + 'static) -> Self {
        Self::new(read, Test::Passes(Box::new(test)))
    }

    fn new(read: Command, test: Test) -> Self {
        Self { read, test }
    }

    pub(super) fn read(&self) -> &Command {
        &self.read
    }

    /// Refuses a condition that nothing could be watched for.
    pub(super) fn check_read(&self) -> Result<(), Error> {
        self.read.check()?;
        if self.read.keys().next().is_some() {
            return Ok(());
        }
        let what = format!(
            "the condition by {:?} names no key, so nothing could be watched: say which word is one \
             with Command::key",
            self.read
        );
        Err(Error::new(ErrorKind::Argument, "outbox", what))
    }

    pub(super) fn holds(&self, reply: &Reply) -> bool {
        match &self.test {
            Test::Text(value) => reply.text() == Some(value),
            Test::NotText(value) => reply.text() != Some(value),
            Test::Int(n) => *reply == Reply::Int(*n),
            Test::Passes(test) => test(reply),
        }
    }
}

fn hget(key: impl AsRef<[u8]>, field: impl Argument) -> Command {
    Command::new("HGET").key(key).arg(field)
}

fn bytes(value: impl Argument) -> Vec<u8> {
    value.give(<[u8]>::to_vec)
}

impl fmt::Debug for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Condition").field(&self.read).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_hold_for_what_they_say_and_nothing_else() {
        let text = |t: &str| Reply::Text(t.into());
        let (nil, int) = (Reply::Nil, Reply::Int);
        for (condition, reply, holds) in [
            (Condition::hash_equal("k", "f", "v"), text("v"), true),
            (Condition::hash_equal("k", "f", 17), text("17"), true),
            (Condition::hash_equal("k", "f", "v"), text("V"), false),
            (Condition::hash_equal("k", "f", ""), nil.clone(), false),
            (Condition::hash_not_equal("k", "f", "v"), text("w"), true),
            (Condition::hash_not_equal("k", "f", "v"), nil.clone(), true),
            (Condition::hash_not_equal("k", "f", "v"), text("v"), false),
            (Condition::hash_not_exists("k", "f"), int(0), true),
            (Condition::hash_not_exists("k", "f"), int(1), false),
            (Condition::key_exists("k"), int(1), true),
            (Condition::key_exists("k"), int(0), false),
            (Condition::key_not_exists("k"), int(0), true),
            (Condition::key_not_exists("k"), int(1), false),
            (Condition::string_equal("k", b"\0"), text("\0"), true),
            (Condition::string_equal("k", ""), nil.clone(), false),
            (Condition::stream_len("k", 3), int(3), true),
            (Condition::stream_len("k", 3), int(4), false),
            (Condition::stream_len("k", u64::MAX), int(i64::MAX), false),
            (Condition::stream_len("k", 0), nil.clone(), false),
            (
                Condition::check(Command::new("GET").key("k"), |r| *r == Reply::Nil),
                nil,
                true,
            ),
        ] {
            assert_eq!(condition.holds(&reply), holds, "{condition:?} {reply:?}");
            condition.check_read().unwrap();
        }
    }

    #[test]
    fn a_condition_that_watches_nothing_is_refused() {
        let c = Condition::check(Command::new("GET").arg("k"), |_| true);
        let e = c.check_read().unwrap_err();
        assert!(
            e.to_string().contains("GET") && e.to_string().contains("Command::key"),
            "{e}"
        );
        let c = Condition::check(Command::new("EXEC").key("k"), |_| true);
        assert_eq!(c.check_read().unwrap_err().kind(), ErrorKind::Argument);
    }
}
