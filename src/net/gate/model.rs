//! Every order in which two dials can meet at the gate.

use loom::thread;

use super::*;
use crate::net::interrupt::STOP;

const LONG: Duration = Duration::from_secs(20);

/// One dial is under way and a second thread wants in, while the first comes to an `end`. A
/// wake-up that is missed shows as a deadlock.
fn second_in_line(end: fn(Pass<'_>, &Interrupt), told: fn(Result<Pass<'_>, Error>)) {
    loom::model(move || {
        let gate = Arc::new(Gate::new("here", clock::now()));
        let interrupt = Arc::new(Interrupt::default());
        let first = gate.enter(&Arc::default(), clock::now() + LONG).unwrap();
        let (there, theirs) = (Arc::clone(&gate), Arc::clone(&interrupt));
        let second = thread::spawn(move || told(there.enter(&theirs, clock::now() + LONG)));
        end(first, &interrupt);
        second.join().unwrap();
        assert!(gate.state.lock().waiting.is_empty(), "left in line");
    });
}

#[test]
fn who_waits_is_let_in_however_the_first_dial_ends() {
    second_in_line(|first, _| first.succeeded(), |r| r.unwrap().succeeded());
    second_in_line(|first, _| first.abandoned(), |r| r.unwrap().succeeded());
}

#[test]
fn who_is_stopped_leaves_the_line() {
    second_in_line(
        |first, interrupt| {
            interrupt.cut(STOP);
            first.failed(&Error::config("no"));
        },
        |r| assert_eq!(r.unwrap_err().kind(), ErrorKind::Stopped),
    );
}
