//! A command of the user's own, and a reply to one.

use std::{fmt, ops::Range};

use redis::Value;

use crate::{
    StreamId,
    error::{Error, ErrorKind},
    net::resp,
    wire::ID_MAX,
};

/// A command of yours, to run in a transaction of the outbox, or in a [session](crate::Admin::session).
///
/// Name what is a key with [`key`](Self::key): keys must live in the slot of the topic, which is checked
/// before anything is sent. Values are sent as they are, bytes and all; nothing in them can become a
/// command of its own.
///
/// ```
/// use streamlane::Command;
///
/// let save = Command::new("HSET").key("re:{orders}:state:17").arg("version").arg(8);
/// assert_eq!(format!("{save:?}"), "HSET re:{orders}:state:17 (+ 2 arguments)");
/// ```
#[derive(Clone)]
#[must_use = "a command does nothing before it is called, or a transaction that holds it is committed"]
pub struct Command {
    /// All words as they go out, without the count before them.
    packed: Vec<u8>,
    words: Vec<Word>,
}

/// Where a word lies in what is packed.
#[derive(Clone, Debug)]
struct Word {
    at: Range<usize>,
    is_key: bool,
}

impl Command {
    /// A command of this name, such as `HSET`.
    pub fn new(name: impl AsRef<[u8]>) -> Self {
        let command = Self {
            packed: Vec::new(),
            words: Vec::new(),
        };
        command.word(name.as_ref(), false)
    }

    /// Adds a key. A command may have several.
    pub fn key(self, key: impl AsRef<[u8]>) -> Self {
        self.word(key.as_ref(), true)
    }

    /// Adds an argument: text, bytes, a whole number or an id.
    pub fn arg(self, arg: impl Argument) -> Self {
        arg.give(|bytes| self.word(bytes, false))
    }

    fn word(mut self, bytes: &[u8], is_key: bool) -> Self {
        resp::arg(&mut self.packed, bytes);
        let end = self.packed.len() - b"\r\n".len();
        self.words.push(Word {
            at: end - bytes.len()..end,
            is_key,
        });
        self
    }

    /// Writes it as it goes out.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        resp::command(out, self.words.len());
        out.extend_from_slice(&self.packed);
    }

    /// Its name in capitals.
    pub(crate) fn name(&self) -> String {
        let name = self.words().next().unwrap_or_default();
        String::from_utf8_lossy(name).to_ascii_uppercase()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        let keys = self.words.iter().filter(|w| w.is_key);
        keys.map(|w| &self.packed[w.at.clone()])
    }

    fn words(&self) -> impl Iterator<Item = &[u8]> {
        self.words.iter().map(|w| &self.packed[w.at.clone()])
    }

    /// Refuses what would end the transaction it is part of, change the connection, or keep it waiting.
    pub(super) fn check(&self) -> Result<(), Error> {
        let name = self.name();
        let why = match &*name {
            "" => "it has no name",
            "MULTI" | "EXEC" | "DISCARD" | "WATCH" | "UNWATCH" => {
                "the transaction is begun, watched over and ended for you"
            }
            name if let Some(why) = not_alone(name) => why,
            "BLPOP" | "BRPOP" | "BRPOPLPUSH" | "BLMOVE" | "BLMPOP" | "BZPOPMIN" | "BZPOPMAX"
            | "BZMPOP" | "WAIT" | "WAITAOF" => "it waits, and nothing may wait in a transaction",
            "XREAD" | "XREADGROUP" if self.has_word(b"BLOCK") => {
                "it waits, and nothing may wait in a transaction"
            }
            _ => return self.check_keys(&name),
        };
        Err(refused(&name, why))
    }

    /// Refuses what a connection cannot be asked that is to be used again.
    pub(crate) fn check_alone(&self) -> Result<(), Error> {
        let name = self.name();
        let why = match &*name {
            "" => Some("it has no name"),
            name => not_alone(name),
        };
        why.map_or(Ok(()), |why| {
            let what = format!("command {name:?} cannot be called: {why}");
            Err(Error::new(ErrorKind::Argument, "call", what))
        })
    }

    fn check_keys(&self, name: &str) -> Result<(), Error> {
        if self.keys().any(<[u8]>::is_empty) {
            return Err(refused(name, "a key of it is empty"));
        }
        Ok(())
    }

    fn has_word(&self, word: &[u8]) -> bool {
        self.words().any(|w| w.eq_ignore_ascii_case(word))
    }
}

/// Why a command of this name can be called nowhere.
fn not_alone(name: &str) -> Option<&'static str> {
    match name {
        "SUBSCRIBE" | "PSUBSCRIBE" | "SSUBSCRIBE" | "UNSUBSCRIBE" | "PUNSUBSCRIBE"
        | "SUNSUBSCRIBE" | "MONITOR" | "SYNC" | "PSYNC" => Some("its answers never end"),
        "AUTH" | "HELLO" | "SELECT" | "CLIENT" | "RESET" | "QUIT" | "ASKING" | "READONLY"
        | "READWRITE" | "REPLCONF" | "SHUTDOWN" => Some("it changes or ends the connection"),
        _ => None,
    }
}

fn refused(name: &str, why: &str) -> Error {
    let what = format!("command {name:?} cannot be part of a transaction: {why}");
    Error::new(ErrorKind::Argument, "outbox", what)
}

/// Name and keys. Values are not shown: they may be secret.
impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())?;
        for key in self.keys() {
            write!(f, " {}", key.escape_ascii())?;
        }
        match self.words.iter().skip(1).filter(|w| !w.is_key).count() {
            0 => Ok(()),
            n => write!(f, " (+ {n} arguments)"),
        }
    }
}

/// What can be an argument of a [`Command`]: texts, bytes, whole numbers and ids, by value or reference.
pub trait Argument: sealed::Sealed {
    /// Gives the bytes that are sent.
    #[doc(hidden)]
    fn give<R>(&self, to: impl FnOnce(&[u8]) -> R) -> R;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! arguments {
    ($($t:ty, |$v:ident| $bytes:expr;)*) => {$(
        impl sealed::Sealed for $t {}

        impl Argument for $t {
            fn give<R>(&self, to: impl FnOnce(&[u8]) -> R) -> R {
                let $v = self;
                to($bytes)
            }
        }
    )*};
}

arguments! {
    str, |v| v.as_bytes();
    String, |v| v.as_bytes();
    [u8], |v| v;
    Vec<u8>, |v| v;
    Box<[u8]>, |v| v;
    u32, |v| v.to_string().as_bytes();
    u64, |v| v.to_string().as_bytes();
    usize, |v| v.to_string().as_bytes();
    i32, |v| v.to_string().as_bytes();
    i64, |v| v.to_string().as_bytes();
    StreamId, |v| v.encode(&mut [0; ID_MAX]);
}

impl<const N: usize> sealed::Sealed for [u8; N] {}

impl<const N: usize> Argument for [u8; N] {
    fn give<R>(&self, to: impl FnOnce(&[u8]) -> R) -> R {
        to(self)
    }
}

impl<T: sealed::Sealed + ?Sized> sealed::Sealed for &T {}

impl<T: Argument + ?Sized> Argument for &T {
    fn give<R>(&self, to: impl FnOnce(&[u8]) -> R) -> R {
        (*self).give(to)
    }
}

/// What the server answered to a [`Command`].
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Reply {
    /// Nothing: there is no such key, field or member.
    Nil,
    /// A whole number; also what is true (1) or false (0).
    Int(i64),
    /// A text or bytes, a status such as `OK` included; also a number that is not whole.
    Text(Vec<u8>),
    /// Replies in a row, as for `HMGET`; names and values in turn, as for `HGETALL`.
    Array(Vec<Reply>),
    /// An error within an array: its text. An error that is the whole reply is an [`Error`].
    Failed(String),
}

impl Reply {
    /// The bytes of a text; `None` for anything else.
    pub fn text(&self) -> Option<&[u8]> {
        match self {
            Self::Text(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// A whole number, also one that was sent as a text; `None` for anything else.
    pub fn int(&self) -> Option<i64> {
        match self {
            Self::Int(n) => Some(*n),
            Self::Text(bytes) => str::from_utf8(bytes).ok()?.parse().ok(),
            _ => None,
        }
    }

    /// What is in an array; nothing for anything else.
    pub fn items(&self) -> &[Reply] {
        match self {
            Self::Array(items) => items,
            _ => &[],
        }
    }

    pub(crate) fn of(value: Value) -> Self {
        let array = |values: Vec<Value>| Self::Array(values.into_iter().map(Self::of).collect());
        match value {
            Value::Int(n) => Self::Int(n),
            Value::Boolean(b) => Self::Int(b.into()),
            Value::Okay => Self::Text(b"OK".to_vec()),
            Value::BulkString(bytes) | Value::BigNumber(bytes) => Self::Text(bytes),
            Value::SimpleString(text) | Value::VerbatimString { text, .. } => {
                Self::Text(text.into_bytes())
            }
            Value::Double(n) => Self::Text(n.to_string().into_bytes()),
            Value::Array(values) | Value::Set(values) | Value::Push { data: values, .. } => {
                array(values)
            }
            Value::Map(pairs) => array(pairs.into_iter().flat_map(|(k, v)| [k, v]).collect()),
            Value::Attribute { data, .. } => Self::of(*data),
            Value::ServerError(e) => Self::Failed(error_line(&e)),
            // a nil; kinds to come, too
            _ => Self::Nil,
        }
    }
}

/// An error reply as the server spelled it.
fn error_line(e: &redis::ServerError) -> String {
    match e.details() {
        Some(details) => format!("{} {details}", e.code()),
        None => e.code().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_go_out_word_by_word() {
        let id: StreamId = "5-1".parse().unwrap();
        let c = Command::new("XADD")
            .key("{t}:k")
            .arg(id)
            .arg(b"n")
            .arg(-7)
            .arg(String::from("a b\r\nc"));
        let mut out = Vec::new();
        c.encode(&mut out);
        let wire: &[u8] =
            b"*6\r\n$4\r\nXADD\r\n$5\r\n{t}:k\r\n$3\r\n5-1\r\n$1\r\nn\r\n$2\r\n-7\r\n\
            $6\r\na b\r\nc\r\n";
        assert_eq!(
            out.escape_ascii().to_string(),
            wire.escape_ascii().to_string()
        );
        assert_eq!(c.keys().collect::<Vec<_>>(), [b"{t}:k"]);
    }

    #[test]
    fn nothing_of_a_value_is_shown() {
        let c = Command::new("set").key("k\n").arg("secret").arg(1);
        assert_eq!(format!("{c:?}"), "SET k\\n (+ 2 arguments)");
    }

    #[test]
    fn what_would_break_a_transaction_is_refused_by_name() {
        for name in [
            "MULTI",
            "exec",
            "Discard",
            "WATCH",
            "unwatch",
            "SUBSCRIBE",
            "monitor",
            "SELECT",
            "QUIT",
            "reset",
            "client",
            "hello",
            "auth",
            "blpop",
            "bzmpop",
            "wait",
            "",
        ] {
            let e = Command::new(name).arg("x").check().unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Argument);
            assert!(e.to_string().contains(&name.to_uppercase()), "{e}");
        }
        let read = Command::new("XREAD")
            .arg("block")
            .arg(5)
            .arg("STREAMS")
            .key("s")
            .arg("$");
        assert!(read.check().is_err());
        assert!(Command::new("SET").key("").arg("v").check().is_err());
        for fine in [
            Command::new("SET").key("k").arg(""),
            Command::new("XREAD").arg("STREAMS").key("s").arg("0"),
            Command::new("PUBLISH").arg("channel").arg("text"),
        ] {
            fine.check().unwrap();
        }
    }

    #[test]
    fn replies_of_every_shape_are_handed_on() {
        let of = |wire: &[u8]| Reply::of(redis::parse_redis_value(wire).unwrap());
        let text = |t: &str| Reply::Text(t.into());
        for (wire, want) in [
            (&b"$-1\r\n"[..], Reply::Nil),
            (b"_\r\n", Reply::Nil),
            (b":-3\r\n", Reply::Int(-3)),
            (b"#t\r\n", Reply::Int(1)),
            (b"+OK\r\n", text("OK")),
            (b"+fine\r\n", text("fine")),
            (b"$2\r\nab\r\n", text("ab")),
            (b",1.5\r\n", text("1.5")),
            (b"=6\r\ntxt:ab\r\n", text("ab")),
            (
                b"%1\r\n+k\r\n*1\r\n:1\r\n",
                Reply::Array(vec![text("k"), Reply::Array(vec![Reply::Int(1)])]),
            ),
            (
                b"*1\r\n-WRONGTYPE Operation\r\n",
                Reply::Array(vec![Reply::Failed("WRONGTYPE Operation".into())]),
            ),
            (
                b"*1\r\n-ERR no\r\n",
                Reply::Array(vec![Reply::Failed("ERR no".into())]),
            ),
        ] {
            assert_eq!(of(wire), want, "{}", wire.escape_ascii());
        }
        assert_eq!(of(b"$2\r\n17\r\n").int(), Some(17));
        assert_eq!(of(b"+x\r\n").int(), None);
        assert_eq!(
            (of(b":1\r\n").text(), of(b":1\r\n").items().len()),
            (None, 0)
        );
    }
}
