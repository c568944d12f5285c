//! What the server's answers in a transaction mean.

use redis::Value;

use crate::{
    Result,
    error::{Error, ErrorKind, Outcome},
};

use super::{Condition, Reply};

/// What the answers to the first write mean.
pub(super) struct Begun {
    /// Whether all conditions hold, or what was refused first.
    pub(super) holds: Result<bool>,
    pub(super) in_multi: bool,
}

/// Judges the answers to the WATCH, if there is a condition, to what the conditions read, and to MULTI.
pub(super) fn look(conditions: &[Condition], answers: Vec<Result<Value>>) -> Begun {
    let mut answers = answers.into_iter();
    let watch = if conditions.is_empty() {
        None
    } else {
        answers.next()
    };
    let multi = answers.next_back().unwrap_or(Ok(Value::Nil));
    let in_multi = matches!(multi, Ok(Value::Okay));
    let agreed = |step: &str, answer: Result<Value>| {
        match answer {
            Ok(Value::Okay) => Ok(()),
            Ok(_) => Err(odd("the answer is not OK").with_outcome(Outcome::NotApplied)),
            Err(e) => Err(e),
        }
        .map_err(|e| in_step(step, e))
    };
    let look = || {
        watch.map_or(Ok(()), |answer| agreed("WATCH", answer))?;
        let mut all = true;
        for (condition, answer) in conditions.iter().zip(answers) {
            let read = condition.read();
            let key = read.keys().next().unwrap_or_default();
            let reply = answer.map_err(|e| in_step(&read.name(), e).on_key(key))?;
            all = all && condition.holds(&Reply::of(reply));
        }
        agreed("MULTI", multi).map(|()| all)
    };
    Begun {
        holds: look(),
        in_multi,
    }
}

/// What the answers to the second write mean.
#[derive(Debug)]
pub(super) enum Executed {
    /// All ran, with these answers.
    Done(Vec<Value>),
    /// Something watched has changed. Nothing ran.
    Raced,
    /// Which command was refused first, if it was one, and why.
    Failed(Option<usize>, Error),
}

/// Judges the answers to the commands of a transaction and, last, to its EXEC.
pub(super) fn judge(mut answers: Vec<Result<Value>>) -> Executed {
    const BECAUSE: &str = "EXECABORT Transaction discarded because of: ";
    let exec = answers.pop().unwrap_or(Ok(Value::Nil));
    let queued = |a: &Result<Value>| match a {
        Ok(Value::SimpleString(text)) => text == "QUEUED",
        answer => answer.is_err(),
    };
    if !answers.iter().all(queued) {
        let why = "a command was not put in the queue of its transaction";
        return Executed::Failed(None, odd(why));
    }
    let n = answers.len();
    let mut refusals = answers.into_iter().enumerate();
    let refused = refusals.find_map(|(i, a)| Some((i, a.err()?)));
    match (exec, refused) {
        // what EXEC says then is only that there was one
        (Err(_), Some((i, e))) => Executed::Failed(Some(i), e),
        (Err(e), None) => Executed::Failed(
            None,
            match e.message().strip_prefix(BECAUSE) {
                Some(reason) => in_step("EXEC", Error::server("outbox", reason.as_bytes())),
                None => in_step("EXEC", e),
            },
        ),
        (Ok(Value::Nil), None) => Executed::Raced,
        (Ok(Value::Array(values)), None) if values.len() == n => Executed::Done(values),
        _ => Executed::Failed(None, odd("the answer to EXEC fits no transaction")),
    }
}

/// Says in which step of a transaction it went wrong.
#[cold]
pub(super) fn in_step(step: &str, e: Error) -> Error {
    let what = format!("{step}: {}", e.message());
    e.saying(what)
}

/// An answer that fits nothing: nobody can tell what was done.
#[cold]
pub(super) fn odd(why: &'static str) -> Error {
    Error::new(ErrorKind::Protocol, "outbox", why).with_outcome(Outcome::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ServerClass;

    fn queued() -> Result<Value> {
        answer("+QUEUED\r\n")
    }

    fn answer(wire: &str) -> Result<Value> {
        redis::parse_redis_value(wire.as_bytes())
            .map_err(|e| Error::new(ErrorKind::Protocol, "call", e.to_string()))
    }

    fn no(text: &str) -> Result<Value> {
        Err(Error::server("call", text.as_bytes()))
    }

    const ABORT: &str = "EXECABORT Transaction discarded because of previous errors.";

    #[test]
    fn the_first_refused_command_is_named_and_not_the_abort_it_caused() {
        let oom = "OOM command not allowed when used memory > 'maxmemory'.";
        for (answers, command, class, retryable) in [
            (
                vec![queued(), no("NOPERM no"), no(oom), no(ABORT)],
                Some(1),
                ServerClass::NoPermission,
                false,
            ),
            (
                vec![no(oom), queued(), no(ABORT)],
                Some(0),
                ServerClass::OutOfMemory,
                true,
            ),
            (
                vec![
                    queued(),
                    no(&format!(
                        "EXECABORT Transaction discarded because of: {oom}"
                    )),
                ],
                None,
                ServerClass::OutOfMemory,
                true,
            ),
            (
                vec![
                    queued(),
                    no("EXECABORT Transaction discarded because of: READONLY You can't"),
                ],
                None,
                ServerClass::ReadOnly,
                true,
            ),
            (
                vec![queued(), no("LOADING")],
                None,
                ServerClass::Loading,
                true,
            ),
        ] {
            match judge(answers) {
                Executed::Failed(at, e) => {
                    assert_eq!((at, e.server_class()), (command, Some(class)), "{e}");
                    assert_eq!(e.is_retryable(), retryable, "{e}");
                    assert_eq!(e.outcome(), Outcome::NotApplied);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn conditions_are_asked_only_after_all_was_granted() {
        let ok = || Ok(Value::Okay);
        let one = || Ok(Value::Int(1));
        let exists = || Condition::key_exists("{t}k");
        let err = |text: &str| no(text);
        for (conditions, answers, holds, in_multi) in [
            (vec![], vec![ok()], Some(true), true),
            (vec![exists()], vec![ok(), one(), ok()], Some(true), true),
            (
                vec![exists(), exists()],
                vec![ok(), one(), Ok(Value::Int(0)), ok()],
                Some(false),
                true,
            ),
            (vec![exists()], vec![err("NOPERM"), one(), ok()], None, true),
            (
                vec![exists()],
                vec![ok(), err("WRONGTYPE"), ok()],
                None,
                true,
            ),
            (
                vec![exists()],
                vec![ok(), one(), err("NOPERM")],
                None,
                false,
            ),
            (vec![], vec![err("NOPERM")], None, false),
            // what another command left behind would be part of this one
            (vec![], vec![queued()], None, false),
            (vec![exists()], vec![queued(), one(), ok()], None, true),
        ] {
            let shown = format!("{conditions:?} {answers:?}");
            let begun = look(&conditions, answers);
            assert_eq!(begun.in_multi, in_multi, "{shown}");
            if let Err(e) = &begun.holds {
                assert_eq!(e.outcome(), Outcome::NotApplied, "{shown}");
            }
            assert_eq!(begun.holds.ok(), holds, "{shown}");
        }
    }

    #[test]
    fn nil_is_a_race_and_an_answer_to_each_is_done() {
        assert!(matches!(
            judge(vec![queued(), Ok(Value::Nil)]),
            Executed::Raced
        ));
        let id = || Value::BulkString(b"1-0".to_vec());
        let both = Ok(Value::Array(vec![Value::Int(1), id()]));
        match judge(vec![queued(), queued(), both]) {
            Executed::Done(values) => assert_eq!(values, [Value::Int(1), id()]),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_fits_no_transaction_is_known_to_nobody() {
        let array = |n| Ok(Value::Array(vec![Value::Int(1); n]));
        for answers in [
            // run at once, as behind a proxy that has lost the MULTI
            vec![Ok(Value::Int(1)), no("ERR EXEC without MULTI")],
            vec![Ok(Value::Int(1)), array(1)],
            vec![Ok(Value::Okay), Ok(Value::Nil)],
            vec![queued(), array(2)],
            vec![queued(), queued(), array(1)],
            vec![queued(), Ok(Value::Okay)],
            vec![no("OOM"), array(1)],
            vec![no("OOM"), Ok(Value::Nil)],
        ] {
            let shown = format!("{answers:?}");
            match judge(answers) {
                Executed::Failed(None, e) => {
                    let what = (e.kind(), e.outcome());
                    assert_eq!(what, (ErrorKind::Protocol, Outcome::Unknown), "{shown}");
                }
                other => panic!("{shown}: {other:?}"),
            }
        }
    }
}
