//! A handler's error, and what it asks the lane to do.

use std::{
    any::{Any, type_name},
    error::Error as StdError,
    fmt,
    time::Duration,
};

use crate::{Error, ErrorKind, Malformed, Message};

/// What a handler returns.
pub type HandlerResult<T = ()> = std::result::Result<T, Failure>;

/// What a lane does about a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Action {
    /// An ordinary error: the consumer's policy decides ([`OnError`](crate::OnError); by default the
    /// message is logged, counted and stepped over).
    Skip,
    /// Never step over it: the same message is handed over again after 1, 2, 4, 8, 16 and then every
    /// 30 seconds, for ever. Only this partition waits.
    Block,
    /// Hand it over once more after this long; if it fails again the policy decides. In place, but in a
    /// [`WorkQueue`](crate::Delivery::WorkQueue) behind others. Under [`OnError::Retry`](crate::OnError::Retry) it
    /// is one of its attempts, out of place and with this pause.
    RetryAfter(Duration),
    /// Make it a dead letter and go on behind it, whatever the policy: it is kept for a person to look at,
    /// see [`Admin::dead_letters`](crate::Admin::dead_letters).
    DeadLetter,
    /// Stop this partition and leave its position before the message.
    Stop,
}

/// A handler's error together with what it asks for.
///
/// It does not implement [`std::error::Error`], so that a bare `?` can turn any error into one; that
/// means [`Action::Skip`], unless the consumer's `classify` hook knows the error type better.
pub struct Failure {
    action: Option<Action>,
    source: Box<dyn StdError + Send + Sync>,
    /// Known where the error is converted, and nowhere else.
    type_name: &'static str,
}

impl Failure {
    /// A failure that asks for `action`, whatever the consumer's `classify` hook says.
    pub fn new(action: Action, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self {
            action: Some(action),
            source: source.into(),
            type_name: "error",
        }
    }

    /// What it asks for; `None` for a bare `?`.
    pub fn action(&self) -> Option<Action> {
        self.action
    }

    /// The error behind it.
    pub fn error(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &*self.source
    }

    /// The name of the error's type, for logs and counters; `error` when it was a plain text.
    pub fn type_name(&self) -> &'static str {
        self.type_name
    }

    /// A message that is none, whatever its body holds.
    #[cold]
    pub(crate) fn malformed(why: Malformed) -> Self {
        let what = format!("the entry is malformed: {why}");
        Error::new(ErrorKind::Malformed, "decode", what).into()
    }

    /// A panic as an ordinary error of `who`.
    #[cold]
    pub(crate) fn panicked(who: &'static str, payload: &(dyn Any + Send)) -> Self {
        let said = panic_text(payload);
        HandlerPanic { who, said }.into()
    }

    /// What a codec said, as said of this message. What it asks for and its name stay.
    #[cold]
    pub(crate) fn decoding(self, message: &Message<'_>) -> Self {
        let (id, bytes) = (message.id(), message.body().len());
        let what = format!("message {id}: a body of {bytes} bytes does not decode");
        let error = Error::new(ErrorKind::Malformed, "decode", what).caused_by(self.source);
        Self {
            source: error.into(),
            ..self
        }
    }

    pub(crate) fn into_error(self) -> Box<dyn StdError + Send + Sync> {
        self.source
    }

    fn of<E: Into<Box<dyn StdError + Send + Sync>>>(action: Option<Action>, error: E) -> Self {
        Self {
            action,
            source: error.into(),
            type_name: short_name::<E>(),
        }
    }
}

/// The last part of a type's path, without its arguments.
fn short_name<E>() -> &'static str {
    let name = type_name::<E>();
    let path = name.split('<').next().unwrap_or(name);
    match path.rsplit("::").next().unwrap_or(path) {
        "&str" | "String" | "Box" => "error",
        short => short,
    }
}

impl<E: Into<Box<dyn StdError + Send + Sync>>> From<E> for Failure {
    #[cold]
    fn from(error: E) -> Self {
        Self::of(None, error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut told = self.source.to_string();
        f.write_str(&told)?;
        let mut cause = self.source.source();
        while let Some(e) = cause {
            let text = e.to_string();
            // Some errors tell their cause themselves.
            if !told.ends_with(&text) {
                write!(f, ": {text}")?;
            }
            told = text;
            cause = e.source();
        }
        Ok(())
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failure")
            .field("action", &self.action)
            .field("type", &self.type_name)
            .field("error", &self.source)
            .finish()
    }
}

/// A panic of the user's code.
#[derive(Debug)]
struct HandlerPanic {
    who: &'static str,
    said: String,
}

impl fmt::Display for HandlerPanic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {} panicked: {}", self.who, self.said)
    }
}

impl StdError for HandlerPanic {}

/// What a panic said.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "(no text)".into())
}

/// Says at the place an error happens what is to be done about it: `post(order)?` is an ordinary error,
/// `post(order).or_block()?` must never be stepped over.
pub trait OrAction<T> {
    /// Asks for [`Action::Block`].
    ///
    /// # Errors
    ///
    /// The error, with the action.
    fn or_block(self) -> HandlerResult<T>;

    /// Asks for [`Action::RetryAfter`].
    ///
    /// # Errors
    ///
    /// The error, with the action.
    fn or_retry_after(self, pause: Duration) -> HandlerResult<T>;

    /// Asks for [`Action::DeadLetter`].
    ///
    /// # Errors
    ///
    /// The error, with the action.
    fn or_dead_letter(self) -> HandlerResult<T>;

    /// Asks for [`Action::Stop`].
    ///
    /// # Errors
    ///
    /// The error, with the action.
    fn or_stop(self) -> HandlerResult<T>;
}

impl<T, E: Into<Box<dyn StdError + Send + Sync>>> OrAction<T> for Result<T, E> {
    fn or_block(self) -> HandlerResult<T> {
        self.map_err(|e| Failure::of(Some(Action::Block), e))
    }

    fn or_retry_after(self, pause: Duration) -> HandlerResult<T> {
        self.map_err(|e| Failure::of(Some(Action::RetryAfter(pause)), e))
    }

    fn or_dead_letter(self) -> HandlerResult<T> {
        self.map_err(|e| Failure::of(Some(Action::DeadLetter), e))
    }

    fn or_stop(self) -> HandlerResult<T> {
        self.map_err(|e| Failure::of(Some(Action::Stop), e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct LedgerDown;
    impl fmt::Display for LedgerDown {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("ledger is down")
        }
    }
    impl StdError for LedgerDown {}

    fn post(ok: bool) -> Result<u8, LedgerDown> {
        ok.then_some(7).ok_or(LedgerDown)
    }

    #[test]
    fn the_action_is_named_where_the_error_happens() {
        let bare: Failure = post(false).map_err(Into::into).unwrap_err();
        assert_eq!((bare.action(), bare.type_name()), (None, "LedgerDown"));
        let second = Duration::from_secs(1);
        for (r, action) in [
            (post(false).or_block(), Action::Block),
            (
                post(false).or_retry_after(second),
                Action::RetryAfter(second),
            ),
            (post(false).or_dead_letter(), Action::DeadLetter),
            (post(false).or_stop(), Action::Stop),
        ] {
            let f = r.unwrap_err();
            assert_eq!((f.action(), f.type_name()), (Some(action), "LedgerDown"));
            assert!(f.error().is::<LedgerDown>());
            assert_eq!(f.to_string(), "ledger is down");
        }
        assert_eq!(post(true).or_block().unwrap(), 7);
    }

    #[test]
    fn any_error_and_any_text_can_be_thrown() {
        fn parse(text: &str) -> HandlerResult {
            if text.is_empty() {
                return Err("nothing to read".into());
            }
            text.parse::<u32>()?;
            Ok(())
        }
        assert_eq!(parse("x").unwrap_err().type_name(), "ParseIntError");
        assert_eq!(parse("").unwrap_err().type_name(), "error");
        assert!(parse("1").is_ok());
    }
}
