use std::{io, sync::mpsc, thread};

use super::*;
use crate::sync::Condvar;

const LONG: Duration = Duration::from_mins(1);
const SHORT: Duration = Duration::from_secs(1);
/// More than a quarter of that.
const LATER_MS: u64 = 300;

/// A far end that does what the test says, when it says it.
#[derive(Default)]
struct Puppet {
    strings: Mutex<Strings>,
    pulled: Condvar,
}

#[derive(Default)]
struct Strings {
    /// Every write, whole.
    writes: Vec<Vec<u8>>,
    answers: Vec<u8>,
    /// Whether a write waits before it takes anything, except for the first so many.
    is_stuck: bool,
    passes: usize,
    /// Which write fails, the first being 1, and how much it takes before that.
    breaks: Option<(usize, usize)>,
    is_gone: bool,
    is_shut: bool,
    given_up: usize,
    looks: usize,
}

impl Puppet {
    fn pull<T>(&self, f: impl FnOnce(&mut Strings) -> T) -> T {
        let done = f(&mut self.strings.lock());
        self.pulled.notify_all();
        done
    }

    fn says(&self, text: &str) {
        self.pull(|s| s.answers.extend_from_slice(text.as_bytes()));
    }

    /// Waits until the strings hang as wanted.
    fn until(&self, mut f: impl FnMut(&Strings) -> bool) {
        let mut s = self.strings.lock();
        let deadline = clock::now() + LONG;
        while !f(&s) {
            let late = self.pulled.wait_until(&mut s, deadline).timed_out();
            assert!(!late, "not in time");
        }
    }
}

fn broken() -> Error {
    Error::io("send", io::ErrorKind::BrokenPipe.into()).with_outcome(Outcome::Unknown)
}

impl Far for Puppet {
    type Answer = String;

    fn send(&self, bytes: &[u8], timeout: Duration) -> Result<(), (usize, Error)> {
        let mut s = self.strings.lock();
        s.writes.push(bytes.to_vec());
        let number = s.writes.len();
        self.pulled.notify_all();
        let by = clock::now() + timeout;
        while s.is_stuck && number > s.passes && !s.is_shut {
            if self.pulled.wait_until(&mut s, by).timed_out() {
                let late = Error::io("send", io::ErrorKind::TimedOut.into());
                return Err((0, late.with_outcome(Outcome::Unknown)));
            }
        }
        match s.breaks {
            Some((at, n)) if at == number => Err((n, broken())),
            _ if s.is_shut || s.is_gone => Err((0, broken())),
            _ => Ok(()),
        }
    }

    fn receive(&self, buf: &mut [u8], timeout: Duration) -> Result<Option<usize>> {
        let mut s = self.strings.lock();
        let by = clock::now() + timeout;
        loop {
            if !s.answers.is_empty() {
                let n = s.answers.len();
                buf[..n].copy_from_slice(&s.answers);
                s.answers.clear();
                return Ok(Some(n));
            }
            if s.is_shut || s.is_gone {
                return Err(broken());
            }
            if self.pulled.wait_until(&mut s, by).timed_out() {
                return Ok(None);
            }
        }
    }

    fn check_idle(&self) -> Result<()> {
        self.pull(|s| {
            s.looks += 1;
            if s.is_gone { Err(broken()) } else { Ok(()) }
        })
    }

    fn give_up(&self, _: Duration) -> Error {
        self.pull(|s| {
            s.is_shut = true;
            s.given_up += 1;
        });
        Error::new(ErrorKind::Timeout, "receive", "silent").with_outcome(Outcome::Unknown)
    }

    fn shut(&self) {
        self.pull(|s| s.is_shut = true);
    }

    fn answer(&self, reply: Head, text: &[u8], _: u32) -> (Result<String>, bool) {
        match reply {
            Head::Error(_) => (
                Err(Error::server("publish", text)),
                text.starts_with(b"READONLY"),
            ),
            Head::Scalar(_) => (
                Err(Error::new(ErrorKind::Protocol, "publish", "no id")),
                false,
            ),
            _ => (Ok(String::from_utf8_lossy(text).into_owned()), false),
        }
    }

    fn about(&self, e: Error, tag: u32) -> Error {
        e.on_key(format!("caller {tag}"))
    }
}

fn line() -> Arc<Line<Puppet>> {
    Arc::new(Line::new(Puppet::default()))
}

type Told = Option<Result<String>>;

/// A call on a thread of its own; it has reached its place in line when this returns.
fn call(line: &Arc<Line<Puppet>>, command: &str, within: Duration) -> mpsc::Receiver<Told> {
    let (told, hear) = mpsc::channel();
    let before = line.state.lock().queued;
    let there = Arc::clone(line);
    let command = command.to_owned();
    let call = move || {
        let by = Deadline::after(within);
        let tag = u32::from(command.as_bytes()[0]);
        let _ = told.send(there.call(&Arc::default(), command.as_bytes(), tag, by));
    };
    let named = thread::Builder::new().name("caller".to_owned());
    named.spawn(call).expect("a thread");
    let deadline = clock::now() + LONG;
    while line.state.lock().queued == before {
        assert!(clock::now() < deadline, "not in line in time");
        thread::yield_now();
    }
    hear
}

/// A line with one call on it that is through with writing.
fn reading(command: &str) -> (Arc<Line<Puppet>>, mpsc::Receiver<Told>) {
    let line = line();
    let reader = call(&line, command, LONG);
    let deadline = clock::now() + LONG;
    while !line.state.lock().has_reader {
        assert!(clock::now() < deadline, "not reading in time");
        thread::yield_now();
    }
    (line, reader)
}

/// Waits until the coarse clock has moved on by more than this.
fn pass(ms: u64) {
    let until = clock::coarse_ms() + ms;
    while clock::coarse_ms() <= until {
        thread::yield_now();
    }
}

/// Whether a line refuses the next call.
fn closed(line: &Line<Puppet>) -> bool {
    let next = line.call(&Arc::default(), b"next", 0, Deadline::after(LONG));
    next.is_none() && line.is_over()
}

fn told(hear: &mpsc::Receiver<Told>) -> Result<String> {
    hear.recv_timeout(LONG)
        .expect("told in time")
        .expect("the line takes calls")
}

fn outcome(hear: &mpsc::Receiver<Told>) -> Outcome {
    told(hear).expect_err("a failure").outcome()
}

/// A line whose first write, of this command, is under way.
fn writing(command: &str) -> (Arc<Line<Puppet>>, mpsc::Receiver<Told>) {
    let line = line();
    line.far.pull(|s| s.is_stuck = true);
    let writer = call(&line, command, LONG);
    line.far.until(|s| s.writes.len() == 1);
    (line, writer)
}

fn go_on(line: &Line<Puppet>) {
    line.far.pull(|s| s.is_stuck = false);
}

fn assert_written(line: &Line<Puppet>, what: &[&str]) {
    line.far.until(|s| s.writes.len() >= what.len());
    let writes = line.far.pull(|s| s.writes.clone());
    let writes: Vec<_> = writes.iter().map(|w| String::from_utf8_lossy(w)).collect();
    assert_eq!(writes, what);
}

#[test]
fn what_comes_during_a_write_goes_out_with_the_next_and_each_has_its_answer() {
    let (line, a) = writing("a");
    let others = ["b", "c", "d"].map(|c| call(&line, c, LONG));
    go_on(&line);
    assert_written(&line, &["a", "bcd"]);
    line.far.says("+1\r\n-ERR no\r\n+3\r\n+4\r\n");
    assert_eq!(told(&a).unwrap(), "1");
    assert_eq!(told(&others[0]).unwrap_err().server_code(), Some("ERR"));
    assert_eq!(told(&others[1]).unwrap(), "3");
    assert_eq!(told(&others[2]).unwrap(), "4");
    assert!(!line.is_over());
}

#[test]
fn an_answer_in_pieces_is_put_together_by_whoever_reads() {
    let line = line();
    let a = call(&line, "a", LONG);
    let b = call(&line, "b", LONG);
    line.far.says("+first\r\n+sec");
    assert_eq!(told(&a).unwrap(), "first");
    line.far.says("ond\r\n");
    assert_eq!(told(&b).unwrap(), "second");
}

/// A line on which `w` waits for its answer in front of `x`, who reads, and `y`: the old reader left while
/// `w` was still writing for the others.
fn reading_behind_another() -> (Arc<Line<Puppet>>, [mpsc::Receiver<Told>; 3]) {
    let (line, reader) = reading("r");
    line.far.pull(|s| s.is_stuck = true);
    let w = call(&line, "w", LONG);
    line.far.until(|s| s.writes.len() == 2);
    let [x, y] = ["x", "y"].map(|c| call(&line, c, LONG));
    line.far.pull(|s| s.passes = 2);
    assert_written(&line, &["r", "w", "xy"]);
    line.far.says("+r\r\n");
    assert_eq!(told(&reader).expect("its answer"), "r");
    go_on(&line);
    let deadline = clock::now() + LONG;
    let waits = |t: &Ticket<String>| t.seat.as_ref().is_some_and(|s| s.is_parked());
    while !line.state.lock().tickets.front().is_some_and(waits) {
        assert!(clock::now() < deadline, "not parked in time");
        thread::yield_now();
    }
    (line, [w, x, y])
}

#[test]
fn a_reader_wakes_whom_it_tells_before_it_waits_again() {
    let (line, [w, x, y]) = reading_behind_another();
    line.far.says("+w\r\n");
    assert_eq!(told(&w).unwrap(), "w");
    line.far.says("+x\r\n+y\r\n");
    assert_eq!(told(&x).unwrap(), "x");
    assert_eq!(told(&y).unwrap(), "y");
}

#[test]
fn a_reader_that_finds_the_end_wakes_whom_it_has_told_before() {
    let (line, [w, x, y]) = reading_behind_another();
    line.far.says("+w\r\n?\r\n");
    assert_eq!(told(&w).unwrap(), "w");
    assert_eq!(told(&x).unwrap_err().kind(), ErrorKind::Protocol);
    assert_eq!(outcome(&y), Outcome::Unknown);
}

#[test]
fn a_common_write_that_breaks_tells_apart_who_may_have_been_heard() {
    let (line, a) = writing("a");
    let others = ["bb", "cc", "dd"].map(|c| call(&line, c, LONG));
    line.far.pull(|s| s.breaks = Some((2, 3)));
    go_on(&line);
    for (hear, key) in others.iter().zip(["caller 98", "caller 99", "caller 100"]) {
        let e = told(hear).unwrap_err();
        let whole = key == "caller 98";
        let outcome = if whole {
            Outcome::Unknown
        } else {
            Outcome::NotApplied
        };
        assert_eq!(
            (e.kind(), e.outcome(), e.key()),
            (ErrorKind::Io, outcome, Some(key))
        );
    }
    assert_eq!(outcome(&a), Outcome::Unknown);
    assert!(closed(&line));
}

#[test]
fn an_end_found_by_the_reader_leaves_the_write_under_way_to_the_writer() {
    let (line, reader) = reading("r");
    line.far.pull(|s| s.is_stuck = true);
    let writer = call(&line, "w", LONG);
    line.far.until(|s| s.writes.len() == 2);
    let queued = call(&line, "q", LONG);
    line.far.says("?\r\n");
    for (hear, outcome) in [
        (reader, Outcome::Unknown),
        (writer, Outcome::NotApplied),
        (queued, Outcome::NotApplied),
    ] {
        let e = told(&hear).unwrap_err();
        assert_eq!((e.kind(), e.outcome()), (ErrorKind::Protocol, outcome));
    }
    assert_written(&line, &["r", "w"]);
}

#[test]
fn a_line_that_was_idle_is_looked_at_before_anything_is_sent() {
    let line = line();
    pass(IDLE_MS + 1);
    let a = call(&line, "a", LONG);
    pass(IDLE_MS + 1);
    let while_another_waits = call(&line, "b", LONG);
    line.far.says("+1\r\n+2\r\n");
    assert_eq!(told(&a).unwrap(), "1");
    assert_eq!(told(&while_another_waits).unwrap(), "2");
    pass(IDLE_MS + 1);
    line.far.pull(|s| s.is_gone = true);
    assert_eq!(outcome(&call(&line, "c", LONG)), Outcome::NotApplied);
    assert_written(&line, &["a", "b"]);
    assert_eq!(line.far.strings.lock().looks, 2);
}

#[test]
fn who_gives_up_leaves_its_place_so_that_its_answer_is_nobodys() {
    let (line, first) = reading("f");
    let hasty = call(&line, "h", SHORT);
    let patient = call(&line, "p", LONG);
    pass(LATER_MS);
    line.far.says("+1\r\n"); // the hasty one reads from here on
    assert_eq!(told(&first).unwrap(), "1");
    let e = told(&hasty).unwrap_err();
    assert_eq!(
        (e.kind(), e.outcome()),
        (ErrorKind::Timeout, Outcome::Unknown)
    );
    line.far.says("+2\r\n+3\r\n");
    assert_eq!(told(&patient).unwrap(), "3");
    assert!(!line.is_over());
}

#[test]
fn what_is_silent_for_most_of_a_callers_time_takes_no_more_calls() {
    let line = line();
    let hasty = call(&line, "h", SHORT);
    let patient = call(&line, "p", LONG);
    pass(LATER_MS);
    let another = call(&line, "a", LONG);
    assert_eq!(outcome(&hasty), Outcome::Unknown);
    assert!(closed(&line));
    line.far.says("+1\r\n+2\r\n+3\r\n");
    assert_eq!(told(&patient).unwrap(), "2");
    assert_eq!(told(&another).unwrap(), "3");
    assert_eq!(line.far.strings.lock().given_up, 0);
}

#[test]
fn who_comes_with_little_time_left_does_not_call_the_line_silent() {
    let line = line();
    pass(1000); // longer than the caller's time
    let told = line.call(&Arc::default(), b"a", 0, Deadline::spent(SHORT));
    let told = told.expect("open");
    assert_eq!(told.unwrap_err().kind(), ErrorKind::Timeout);
    assert!(!line.is_over());
}

#[test]
fn a_parked_caller_gives_up_as_the_reader_does() {
    let line = line();
    let first = call(&line, "f", LONG);
    let patient = call(&line, "p", LONG);
    let hasty = call(&line, "h", SHORT);
    pass(LATER_MS);
    line.far.says("+1\r\n"); // the patient one reads from here on
    assert_eq!(told(&first).unwrap(), "1");
    assert_eq!(outcome(&hasty), Outcome::Unknown);
    line.far.says("+2\r\n+3\r\n");
    assert_eq!(told(&patient).unwrap(), "2");
    let next = call(&line, "n", LONG);
    line.far.says("+4\r\n");
    assert_eq!(told(&next).unwrap(), "4");
}

#[test]
fn who_gives_up_before_its_command_went_out_takes_it_along() {
    let (line, writer) = writing("w");
    let queued = [("aa", LONG), ("hhh", SHORT), ("b", LONG)].map(|(c, t)| call(&line, c, t));
    assert_eq!(outcome(&queued[1]), Outcome::NotApplied);
    go_on(&line);
    assert_written(&line, &["w", "aab"]);
    line.far.says("+w\r\n+a\r\n+b\r\n");
    assert_eq!(told(&writer).unwrap(), "w");
    assert_eq!(told(&queued[0]).unwrap(), "a");
    assert_eq!(told(&queued[2]).unwrap(), "b");
}

#[test]
fn what_was_silent_all_the_time_is_not_waited_for_again() {
    let line = line();
    assert_eq!(outcome(&call(&line, "a", SHORT)), Outcome::Unknown);
    assert!(line.is_over());
    assert_eq!(line.far.strings.lock().given_up, 1);
}

#[test]
fn what_is_merely_slow_is_kept() {
    let line = line();
    let first = call(&line, "f", LONG);
    let hasty = call(&line, "h", SHORT);
    pass(LATER_MS);
    line.far.says("+1\r\n");
    assert_eq!(told(&first).unwrap(), "1");
    assert_eq!(outcome(&hasty), Outcome::Unknown);
    assert!(!line.is_over());
    let next = call(&line, "n", LONG);
    line.far.says("+2\r\n+3\r\n");
    assert_eq!(told(&next).unwrap(), "3");
}

#[test]
fn what_stops_in_mid_word_is_given_up() {
    let line = line();
    let hasty = call(&line, "h", SHORT);
    pass(LATER_MS);
    line.far.says("+ha");
    assert_eq!(outcome(&hasty), Outcome::Unknown);
    assert!(line.is_over());
}

#[test]
fn more_answers_than_questions_end_the_line() {
    for surplus in ["+2\r\n", "+"] {
        let line = line();
        let a = call(&line, "a", LONG);
        line.far.says(&format!("+1\r\n{surplus}"));
        assert_eq!(told(&a).unwrap(), "1");
        assert!(line.is_over() && line.far.strings.lock().is_shut);
    }
}

#[test]
fn after_an_answer_that_is_none_nobody_takes_the_next_for_its_own() {
    let line = line();
    let callers = ["a", "b"].map(|c| call(&line, c, LONG));
    line.far.says(":1\r\n+2\r\n");
    for hear in &callers {
        assert_eq!(told(hear).unwrap_err().kind(), ErrorKind::Protocol);
    }
    assert!(line.is_over() && line.far.strings.lock().is_shut);
}

#[test]
fn an_answer_to_what_was_not_sent_yet_ends_the_line() {
    let (line, reader) = reading("r");
    line.far.pull(|s| s.is_stuck = true);
    let writer = call(&line, "w", LONG);
    line.far.until(|s| s.writes.len() == 2);
    let queued = call(&line, "q", LONG);
    line.far.says("+r\r\n+w\r\n+q\r\n");
    assert_eq!(told(&reader).unwrap(), "r");
    assert_eq!(told(&writer).unwrap(), "w");
    assert_eq!(outcome(&queued), Outcome::NotApplied);
}

#[test]
fn after_a_change_of_role_only_what_is_under_way_is_finished() {
    let line = line();
    let a = call(&line, "a", LONG);
    let b = call(&line, "b", LONG);
    line.far
        .says("-READONLY You can't write against a read only replica.\r\n");
    assert_eq!(told(&a).unwrap_err().server_code(), Some("READONLY"));
    assert!(closed(&line));
    line.far.says("+2\r\n");
    assert_eq!(told(&b).unwrap(), "2");
}
