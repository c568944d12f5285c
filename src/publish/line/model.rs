//! Every order in which callers, answers and deadlines can meet on a line.

use std::io;

use loom::thread;

use super::*;
use crate::sync::Condvar;

const LONG: Duration = Duration::from_secs(1000);

/// A server that answers a command of one letter with that letter.
#[derive(Default)]
struct Echo {
    pipe: Mutex<Pipe>,
    something: Condvar,
}

#[derive(Default)]
struct Pipe {
    answers: Vec<u8>,
    /// How many more answers it gives before it says nothing any more.
    left: usize,
    /// Whether it hangs up then.
    hangs_up: bool,
    shut: bool,
}

impl Echo {
    fn answering(left: usize, hangs_up: bool) -> Line<Self> {
        let echo = Self::default();
        *echo.pipe.lock() = Pipe {
            left,
            hangs_up,
            ..Pipe::default()
        };
        Line::new(echo)
    }

    fn broken() -> Error {
        Error::io("receive", io::ErrorKind::UnexpectedEof.into()).with_outcome(Outcome::Unknown)
    }
}

impl Far for Echo {
    type Answer = u8;

    fn send(&self, bytes: &[u8], _: Duration) -> Result<(), (usize, Error)> {
        for (n, letter) in bytes.iter().enumerate() {
            let mut pipe = self.pipe.lock();
            if pipe.shut || (pipe.left == 0 && pipe.hangs_up) {
                pipe.shut = true;
                self.something.notify_all();
                return Err((n, Self::broken()));
            }
            if pipe.left > 0 {
                pipe.left -= 1;
                pipe.answers.extend([b'+', *letter, b'\r', b'\n']);
                self.something.notify_all();
            }
        }
        Ok(())
    }

    fn receive(&self, buf: &mut [u8], timeout: Duration) -> Result<Option<usize>> {
        let mut pipe = self.pipe.lock();
        loop {
            if pipe.shut {
                return Err(Self::broken());
            }
            if !pipe.answers.is_empty() {
                let n = pipe.answers.len();
                buf[..n].copy_from_slice(&pipe.answers);
                pipe.answers.clear();
                return Ok(Some(n));
            }
            if timeout.is_zero() {
                return Ok(None);
            }
            self.something.wait(&mut pipe);
        }
    }

    fn check_idle(&self) -> Result<()> {
        Ok(())
    }

    fn give_up(&self, _: Duration) -> Error {
        self.shut();
        Error::new(ErrorKind::Timeout, "receive", "silent")
    }

    fn shut(&self) {
        self.pipe.lock().shut = true;
        self.something.notify_all();
    }

    fn answer(&self, _: Head, text: &[u8], tag: u32) -> (Result<u8>, bool) {
        assert_eq!(u32::from(text[0]), tag, "the answer to another's question");
        (Ok(text[0]), false)
    }

    fn about(&self, e: Error, _: u32) -> Error {
        e
    }
}

fn call(line: &Line<Echo>, letter: u8, within: Duration) -> Option<Result<u8>> {
    let seat = Arc::new(Seat::default());
    line.call(&seat, &[letter], letter.into(), Deadline::after(within))
}

/// Callers with their times, all at once, and what each is told.
fn meet<const N: usize>(
    line: fn() -> Line<Echo>,
    within: [Duration; N],
    told: fn(&Line<Echo>, [Option<Result<u8>>; N]),
) {
    bounded(None, line, within, told);
}

/// As [`meet`], with so many preemptions at most instead of as many as the environment says.
fn bounded<const N: usize>(
    preemptions: Option<usize>,
    line: fn() -> Line<Echo>,
    within: [Duration; N],
    told: fn(&Line<Echo>, [Option<Result<u8>>; N]),
) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions.or(model.preemption_bound);
    model.check(move || {
        let line = Arc::new(line());
        let others: Vec<_> = (1..N)
            .map(|n| {
                let line = Arc::clone(&line);
                thread::spawn(move || call(&line, b'a' + n as u8, within[n]))
            })
            .collect();
        let mut results = vec![call(&line, b'a', within[0])];
        results.extend(others.into_iter().map(|t| t.join().unwrap()));
        let s = line.state.lock();
        assert!(!s.has_writer && !s.has_reader, "a role was left behind");
        assert!(s.queue.is_empty(), "something was left unsent");
        assert!(s.is_dead() || s.written == s.begun);
        drop(s);
        told(&line, results.try_into().unwrap());
    });
}

fn all_answered<const N: usize>(line: &Line<Echo>, results: [Option<Result<u8>>; N]) {
    for (n, r) in results.into_iter().enumerate() {
        assert_eq!(r.unwrap().unwrap(), b'a' + n as u8);
    }
    assert!(!line.is_over() && line.state.lock().tickets.is_empty());
}

#[test]
fn model_two_callers_have_their_own_answers() {
    meet(|| Echo::answering(9, false), [LONG; 2], all_answered);
}

#[test]
fn model_three_callers_have_their_own_answers() {
    meet(|| Echo::answering(9, false), [LONG; 3], all_answered);
}

#[test]
fn model_four_callers_have_their_own_answers() {
    bounded(
        Some(2), // all that a build can wait for
        || Echo::answering(9, false),
        [LONG; 4],
        all_answered,
    );
}

/// One has no time at all: it may read, write or wait when it finds out. The other goes on, and the
/// answer that nobody waits for is nobody's.
#[test]
fn model_a_caller_without_time_leaves_the_others_alone() {
    meet(
        || Echo::answering(9, false),
        [LONG, Duration::ZERO],
        |line, [patient, hasty]| {
            assert_eq!(patient.unwrap().unwrap(), b'a');
            if let Err(e) = hasty.unwrap() {
                assert_eq!(e.kind(), ErrorKind::Timeout);
            }
            if !line.is_over() {
                assert_eq!(call(line, b'z', LONG).unwrap().unwrap(), b'z');
            }
        },
    );
}

#[test]
fn model_two_without_time_are_in_nobodys_way() {
    meet(
        || Echo::answering(9, false),
        [LONG, Duration::ZERO, Duration::ZERO],
        |_, [patient, ..]| {
            // what was silent for all of a caller's time is given up once nobody waits
            if let Some(answer) = patient {
                assert_eq!(answer.unwrap(), b'a');
            }
        },
    );
}

/// The line ends after one answer: the other caller is told, whatever it was doing, and what did not go
/// out is not called unknown.
#[test]
fn model_everybody_hears_of_the_end() {
    meet(
        || Echo::answering(1, true),
        [LONG; 2],
        |line, results| {
            let answered = results.iter().filter(|r| matches!(r, Some(Ok(_)))).count();
            assert!(answered <= 1);
            for r in results {
                match r {
                    Some(Err(e)) => assert_eq!(e.kind(), ErrorKind::Io),
                    Some(Ok(_)) | None => {}
                }
            }
            assert!(line.is_over() && line.state.lock().tickets.is_empty());
        },
    );
}

#[test]
fn model_three_hear_of_the_end() {
    meet(
        || Echo::answering(1, true),
        [LONG; 3],
        |line, _| assert!(line.is_over() && line.state.lock().tickets.is_empty()),
    );
}
