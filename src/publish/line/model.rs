//! Every order in which callers, answers and deadlines can meet on a line.

use std::io;

use loom::thread;

use super::*;
use crate::sync::Condvar;

/// The time that a caller brings.
#[derive(Clone, Copy)]
enum Time {
    Enough,
    /// None at all: to this one the line was silent for all of it.
    None,
    /// None any more: it was spent elsewhere.
    Spent,
}

impl Time {
    fn deadline(self) -> Deadline {
        let long = Duration::from_secs(1000);
        match self {
            Self::Enough => Deadline::after(long),
            Self::None => Deadline::after(Duration::ZERO),
            Self::Spent => Deadline::spent(long),
        }
    }
}

/// A server that answers a command of one letter with that letter.
struct Echo {
    pipe: Mutex<Pipe>,
    something: Condvar,
    /// The answer after which nothing more should be sent.
    last: Option<u8>,
    /// The commands of those who have no time.
    hasty: Vec<u8>,
    /// Whether those who have no time to wait for an answer hear none.
    is_slow: bool,
}

struct Pipe {
    taken: Vec<u8>,
    answers: Vec<u8>,
    /// How many more answers it gives.
    left: usize,
    then: Then,
    shut: bool,
}

/// What a server does once it has given its answers.
#[derive(Clone, Copy, PartialEq)]
enum Then {
    /// It takes what it is sent and says nothing any more.
    Silence,
    /// It takes nothing any more.
    Refuse,
    /// It takes what it is sent, and hangs up once its answers are read.
    HangUp,
}

impl Echo {
    fn answering(left: usize, then: Then) -> Line<Self> {
        Line::new(Self {
            pipe: Mutex::new(Pipe {
                taken: Vec::new(),
                answers: Vec::new(),
                left,
                then,
                shut: false,
            }),
            something: Condvar::new(),
            last: None,
            hasty: Vec::new(),
            is_slow: false,
        })
    }

    fn always() -> Line<Self> {
        Self::answering(9, Then::Silence)
    }

    fn slow() -> Line<Self> {
        let mut line = Self::always();
        line.far.is_slow = true;
        line
    }

    fn until(last: u8) -> Line<Self> {
        let mut line = Self::always();
        line.far.last = Some(last);
        line
    }

    fn broken() -> Error {
        Error::io("receive", io::ErrorKind::UnexpectedEof.into()).with_outcome(Outcome::Unknown)
    }
}

impl Far for Echo {
    type Answer = u8;

    fn send(&self, bytes: &[u8], timeout: Duration) -> Result<(), (usize, Error)> {
        let in_no_time = timeout.is_zero();
        assert!(!in_no_time || bytes.iter().all(|letter| self.hasty.contains(letter)));
        for (n, letter) in bytes.iter().enumerate() {
            let mut pipe = self.pipe.lock();
            if pipe.shut || (pipe.left == 0 && pipe.then == Then::Refuse) {
                pipe.shut = true;
                self.something.notify_all();
                return Err((n, Self::broken()));
            }
            pipe.taken.push(*letter);
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
            let is_there = !pipe.answers.is_empty();
            if is_there && !(self.is_slow && timeout.is_zero()) {
                let n = pipe.answers.len();
                buf[..n].copy_from_slice(&pipe.answers);
                pipe.answers.clear();
                return Ok(Some(n));
            }
            if pipe.left == 0 && pipe.then == Then::HangUp {
                return Err(Self::broken());
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
        (Ok(text[0]), self.last == Some(text[0]))
    }

    fn about(&self, e: Error, _: u32) -> Error {
        e
    }
}

/// One call, and whether what it is told is what the server has seen of it.
fn call_from(
    seat: &Arc<Seat<u8>>,
    line: &Line<Echo>,
    letter: u8,
    time: Time,
) -> Option<Result<u8>> {
    let told = line.call(seat, &[letter], letter.into(), time.deadline());
    let taken = line.far.pipe.lock().taken.clone();
    let times = taken.iter().filter(|l| **l == letter).count();
    match &told {
        Some(Ok(answer)) => assert_eq!((*answer, times), (letter, 1)),
        Some(Err(e)) if e.outcome() == Outcome::NotApplied => assert_eq!(times, 0),
        Some(Err(_)) => assert!(times <= 1),
        None => assert_eq!(times, 0),
    }
    told
}

fn call(line: &Line<Echo>, letter: u8, time: Time) -> Option<Result<u8>> {
    call_from(&Arc::default(), line, letter, time)
}

/// What a line is like when everybody has left.
fn assert_left_alone(line: &Line<Echo>) {
    let s = line.state.lock();
    let a_role = s.has_writer || s.has_reader;
    assert!(s.is_dead() || !a_role, "a role was left behind");
    assert!(s.queue.is_empty(), "something was left unsent");
    assert!(s.is_dead() || s.written == s.begun);
    assert!(s.tickets.iter().all(|t| t.seat.is_none()));
    assert_eq!(line.leaving.load(Ordering::Relaxed), 0);
}

fn check(preemptions: Option<usize>, run: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions.or(model.preemption_bound);
    model.check(run);
}

/// Callers with their times, all at once, and what each is told.
fn meet<const N: usize>(
    line: fn() -> Line<Echo>,
    times: [Time; N],
    told: fn(&Line<Echo>, [Option<Result<u8>>; N]),
) {
    bounded(None, line, times, told);
}

/// As [`meet`], with so many preemptions at most instead of as many as the environment says.
fn bounded<const N: usize>(
    preemptions: Option<usize>,
    line: fn() -> Line<Echo>,
    times: [Time; N],
    told: fn(&Line<Echo>, [Option<Result<u8>>; N]),
) {
    check(preemptions, move || {
        let mut line = line();
        let hasty = (b'a'..).zip(times);
        let hasty = hasty.filter(|(_, time)| !matches!(time, Time::Enough));
        line.far.hasty = hasty.map(|(letter, _)| letter).collect();
        let line = Arc::new(line);
        let others: Vec<_> = (1..N)
            .map(|n| {
                let line = Arc::clone(&line);
                thread::spawn(move || call(&line, b'a' + n as u8, times[n]))
            })
            .collect();
        let mut results = vec![call(&line, b'a', times[0])];
        results.extend(others.into_iter().map(|t| t.join().unwrap()));
        assert_left_alone(&line);
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
    meet(Echo::always, [Time::Enough; 2], all_answered);
}

#[test]
fn model_three_callers_have_their_own_answers() {
    meet(Echo::always, [Time::Enough; 3], all_answered);
}

#[test]
fn model_four_callers_have_their_own_answers() {
    bounded(
        Some(2), // all that a build can wait for
        Echo::always,
        [Time::Enough; 4],
        all_answered,
    );
}

/// One has no time left: it may read, write or wait when it finds out. The other goes on, and the answer
/// that nobody waits for is nobody's.
#[test]
fn model_a_caller_without_time_leaves_the_others_alone() {
    for server in [Echo::always, Echo::slow] {
        meet(
            server,
            [Time::Enough, Time::Spent],
            |line, [patient, hasty]| {
                assert_eq!(patient.unwrap().unwrap(), b'a');
                if let Err(e) = hasty.unwrap() {
                    assert_eq!(e.kind(), ErrorKind::Timeout);
                }
                assert_eq!(call(line, b'z', Time::Enough).unwrap().unwrap(), b'z');
                assert!(line.state.lock().tickets.is_empty());
            },
        );
    }
}

#[test]
fn model_two_without_time_are_in_nobodys_way() {
    meet(
        Echo::slow,
        [Time::Enough, Time::Spent, Time::Spent],
        |_, [patient, ..]| assert_eq!(patient.unwrap().unwrap(), b'a'),
    );
}

/// To one the line was silent for all of its time. Nobody else comes then, but the other keeps its own
/// time.
#[test]
fn model_a_silent_line_closes_behind_those_who_are_on_it() {
    for others in [Time::None, Time::Spent] {
        bounded(
            Some(2),
            Echo::slow,
            [Time::Enough, Time::None, others],
            |line, [patient, silent, _]| {
                if let Some(answer) = patient {
                    assert_eq!(answer.unwrap(), b'a');
                }
                let is_silent = matches!(silent, Some(Err(_)));
                assert!(!is_silent || line.is_over());
            },
        );
    }
}

/// The line ends after one answer: the other caller is told, whatever it was doing, and what did not go
/// out is not called unknown.
#[test]
fn model_everybody_hears_of_the_end() {
    meet(
        || Echo::answering(1, Then::Refuse),
        [Time::Enough; 2],
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
        || Echo::answering(1, Then::Refuse),
        [Time::Enough; 3],
        |line, _| assert!(line.is_over() && line.state.lock().tickets.is_empty()),
    );
}

#[test]
fn model_three_hear_that_the_server_hung_up() {
    meet(
        || Echo::answering(1, Then::HangUp),
        [Time::Enough; 3],
        |line, results| {
            let answered = results.iter().filter(|r| matches!(r, Some(Ok(_)))).count();
            assert_eq!(answered, 1);
            assert!(line.is_over() && line.state.lock().tickets.is_empty());
        },
    );
}

/// Who gives up while it is said that the line is dead makes nobody believe otherwise.
#[test]
fn model_one_without_time_meets_the_end() {
    meet(
        || Echo::answering(0, Then::HangUp),
        [Time::Enough, Time::Enough, Time::None],
        |line, _| assert!(line.state.lock().is_dead()),
    );
}

/// What is in line when an answer says that this is the end of the line is answered, and nothing that
/// comes later is taken.
#[test]
fn model_a_line_closes_behind_those_who_are_in_it() {
    meet(
        || Echo::until(b'a'),
        [Time::Enough; 3],
        |line, [a, others @ ..]| {
            assert_eq!(a.unwrap().unwrap(), b'a');
            for told in others.into_iter().flatten() {
                told.unwrap();
            }
            assert!(line.is_over() && line.state.lock().tickets.is_empty());
        },
    );
}

/// Whatever role one without time has, or is given at the last moment, goes on to those who have time.
#[test]
fn model_one_without_time_holds_up_neither_of_two() {
    bounded(
        Some(2),
        Echo::slow,
        [Time::Spent, Time::Enough, Time::Enough],
        |_, [_, patient @ ..]| {
            for told in patient {
                told.unwrap().unwrap();
            }
        },
    );
}

/// A caller comes back at once, to the seat that it had when it gave up, while what it left behind is still
/// in line.
#[test]
fn model_who_gave_up_comes_back_to_its_seat() {
    check(None, || {
        let mut line = Echo::slow();
        line.far.hasty = vec![b'h'];
        let line = Arc::new(line);
        let other = Arc::clone(&line);
        let other = thread::spawn(move || call(&other, b'o', Time::Enough));
        let seat = Arc::default();
        let _ = call_from(&seat, &line, b'h', Time::Spent);
        let again = call_from(&seat, &line, b'a', Time::Enough);
        again.unwrap().unwrap();
        other.join().unwrap().unwrap().unwrap();
        assert_left_alone(&line);
    });
}

/// Who was just answered goes on while the next comes, who then lets it go first.
#[test]
fn model_callers_come_back_while_others_leave() {
    check(None, || {
        let line = Arc::new(Echo::always());
        let other = Arc::clone(&line);
        let both = |line: &Line<Echo>, letters: [u8; 2]| {
            let seat = Arc::default();
            for letter in letters {
                call_from(&seat, line, letter, Time::Enough)
                    .unwrap()
                    .unwrap();
            }
        };
        let other = thread::spawn(move || both(&other, *b"cd"));
        both(&line, *b"ab");
        other.join().unwrap();
        assert_left_alone(&line);
    });
}

/// Somebody else is about to leave all the time, so that everybody lets others go first. One has no time
/// when it finds that nobody came.
#[test]
fn model_a_caller_lets_others_go_first() {
    check(Some(3), || {
        let mut line = Echo::slow();
        line.far.hasty = vec![b'h'];
        line.leaving.store(1, Ordering::Relaxed);
        let line = Arc::new(line);
        let patient = [b'a', b'b'].map(|letter| {
            let line = Arc::clone(&line);
            thread::spawn(move || call(&line, letter, Time::Enough))
        });
        let _ = call(&line, b'h', Time::Spent);
        for patient in patient {
            patient.join().unwrap().unwrap().unwrap();
        }
        line.leaving.fetch_sub(1, Ordering::Relaxed);
        assert_left_alone(&line);
    });
}
