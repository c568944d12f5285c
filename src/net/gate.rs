//! When a dial may begin. A server that is down is asked by one thread about once a second, however
//! many want in; as soon as one dial succeeds all of them go. While all is well nobody waits, or, after
//! a time without dials, for the first of those who come together.

use std::{
    collections::HashMap,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use super::{interrupt::Interrupt, target::Target};
use crate::{
    backoff::jittered,
    clock,
    error::{Error, ErrorKind, ServerClass},
    quiet::{HeldBack, Quiet},
    sync::Mutex,
};

/// Between two dials to a server that has not proven itself, lengthened by the jitter.
const SPACING: Duration = Duration::from_secs(1);
/// How long a call without an answer speaks against the server. By then a dial has told more, if
/// anybody needs the server at all.
const SILENCE: Duration = Duration::from_secs(15);
/// How long one success speaks for the server.
const FRESH: Duration = Duration::from_secs(1);

/// The rule, without clock, lock or log.
///
/// A success *proves* the server: for a second dials are free, unless somebody loses a connection.
/// Without proof one dial may begin at a time, the next when the first succeeds or a second has
/// passed. A dial that gets no answer therefore holds back nobody for longer than one that is refused.
#[derive(Debug)]
struct Pace {
    proven: Option<Instant>,
    /// When the next dial may begin, while there is no proof.
    next: Instant,
    down: Option<Down>,
}

#[derive(Debug)]
struct Down {
    since: Instant,
    since_wall: SystemTime,
    failures: u64,
    last: String,
    /// What the server answered, if it did.
    said: Option<(ServerClass, Box<str>)>,
    /// Whether a line was written about it, so that its end deserves one.
    announced: bool,
}

impl Pace {
    fn new(now: Instant) -> Self {
        Self {
            proven: None,
            next: now,
            down: None,
        }
    }

    /// Lets a dial begin, or says when to ask again.
    fn ask(&mut self, now: Instant, spacing: Duration) -> Result<(), Instant> {
        if let Some(proven) = self.proven {
            if now.saturating_duration_since(proven) < FRESH {
                return Ok(());
            }
            self.proven = None;
            self.next = now;
        }
        if now < self.next {
            return Err(self.next);
        }
        self.next = now + spacing;
        Ok(())
    }

    /// A connection was lost.
    fn suspect(&mut self) {
        if let Some(proven) = self.proven.take() {
            self.next = proven;
        }
    }

    /// Ends the outage, if there was one, and returns it.
    fn succeeded(&mut self, now: Instant) -> Option<Down> {
        self.proven = Some(now);
        self.down.take()
    }

    /// Returns false when the dial that failed began before the last success: it is old news.
    fn failed(&mut self, begun: Instant, now: Instant, spacing: Duration, why: &str) -> bool {
        if let Some(proven) = self.proven {
            if begun < proven {
                return false;
            }
            self.proven = None;
            self.next = now + spacing;
        }
        let down = self.down.get_or_insert_with(|| Down {
            since: begun,
            since_wall: clock::wall(),
            failures: 0,
            last: String::new(),
            said: None,
            announced: false,
        });
        down.failures += 1;
        why.clone_into(&mut down.last);
        true
    }

    /// A dial was given up for reasons of its own: the next may begin.
    fn abandoned(&mut self, now: Instant) {
        if self.proven.is_none() {
            self.next = now;
        }
    }
}

/// By endpoint and login.
type Gates = HashMap<(String, u64), Arc<Gate>>;

/// The gate of one endpoint, shared by the whole process.
#[derive(Debug)]
pub(crate) struct Gate {
    name: Box<str>,
    state: Mutex<State>,
    attempts: AtomicU64,
    /// How often the server was found to have become a replica.
    pub(super) demotions: AtomicU64,
}

#[derive(Debug)]
struct State {
    pace: Pace,
    waiting: Vec<Arc<Interrupt>>,
    /// The last call that got no answer in time, unless a dial has succeeded since.
    unanswered: Option<(Instant, String)>,
    log: Quiet,
    last_attempt: Instant,
}

impl Gate {
    /// The gate of the target's endpoint and login; logins are told apart because one that is refused
    /// must not hold back another.
    ///
    /// Gates outlive the connections and targets that use them, for what they know matters most
    /// when there are none. One that nobody holds is forgotten a minute after its last dial.
    pub(crate) fn of(target: &Target) -> Arc<Self> {
        static GATES: LazyLock<Mutex<Gates>> = LazyLock::new(Mutex::default);
        let name = (target.endpoint().to_owned(), target.login_hash());
        let mut gates = GATES.lock();
        if let Some(gate) = gates.get(&name) {
            return Arc::clone(gate);
        }
        let now = clock::now();
        gates.retain(|_, gate| {
            Arc::strong_count(gate) > 1
                || now
                    .saturating_duration_since(gate.state.lock().last_attempt)
                    .as_secs()
                    < 60
        });
        let gate = Arc::new(Self::new(target.endpoint(), now));
        gates.insert(name, Arc::clone(&gate));
        gate
    }

    fn new(name: &str, now: Instant) -> Self {
        Self {
            name: name.into(),
            state: Mutex::new(State {
                pace: Pace::new(now),
                waiting: Vec::new(),
                unanswered: None,
                log: Quiet::default(),
                last_attempt: now,
            }),
            attempts: AtomicU64::new(0),
            demotions: AtomicU64::new(0),
        }
    }

    /// How many dials have begun.
    #[cfg(test)]
    pub(crate) fn attempts(&self) -> u64 {
        self.attempts.load(Ordering::Relaxed)
    }

    /// Why the server cannot be reached, while it cannot.
    pub(crate) fn down(&self) -> Option<String> {
        let (now, state) = (clock::now(), self.state.lock());
        let Some(down) = &state.pace.down else {
            let (at, why) = state.unanswered.as_ref()?;
            let fresh = now.saturating_duration_since(*at) < SILENCE;
            return fresh.then(|| why.clone());
        };
        let seconds = now.saturating_duration_since(down.since).as_secs_f64();
        Some(format!(
            "{} has been out of reach for {seconds:.1} s: {}",
            self.name, down.last
        ))
    }

    /// To be called when an established connection was lost: the next dial is made alone.
    pub(crate) fn suspect(&self) {
        self.state.lock().pace.suspect();
    }

    /// To be called when a call got no answer in time: as [`Self::suspect`], and the server counts as
    /// [`down`](Self::down) until a dial tells more. Those who publish notice a server that hangs by
    /// nothing else.
    pub(crate) fn unanswered(&self, why: String) {
        let mut state = self.state.lock();
        state.pace.suspect();
        state.unanswered = Some((clock::now(), why));
    }

    /// Whether the last dial succeeded and no connection was lost since.
    #[cfg(test)]
    pub(super) fn is_proven(&self) -> bool {
        self.state.lock().pace.proven.is_some()
    }

    /// Waits until a dial may begin, until `deadline` at most, or until `interrupt` is cut.
    ///
    /// Fails with [`ErrorKind::Stopped`], or with [`ErrorKind::Connect`], saying since when the
    /// server is down and why the last dial failed.
    pub(crate) fn enter(
        &self,
        interrupt: &Arc<Interrupt>,
        deadline: Instant,
    ) -> Result<Pass<'_>, Error> {
        let begun = clock::now();
        let mut waits = false;
        let turn = loop {
            let seen = interrupt.wakes();
            if interrupt.is_cut() {
                break Err(stopped(&self.name));
            }
            let now = clock::now();
            let mut state = self.state.lock();
            let next = match state.pace.ask(now, jittered(SPACING)) {
                Ok(()) => {
                    state.last_attempt = now;
                    self.attempts.fetch_add(1, Ordering::Relaxed);
                    break Ok(Pass {
                        gate: self,
                        begun: now,
                        told: false,
                    });
                }
                Err(_) if now >= deadline => break Err(self.given_up(&state.pace, begun, now)),
                Err(next) => next,
            };
            if !state.waiting.iter().any(|w| Arc::ptr_eq(w, interrupt)) {
                state.waiting.push(Arc::clone(interrupt));
                waits = true;
            }
            drop(state);
            interrupt.wait(seen, next.min(deadline));
        };
        if waits {
            let mut state = self.state.lock();
            state.waiting.retain(|w| !Arc::ptr_eq(w, interrupt));
        }
        turn
    }

    #[cold]
    fn given_up(&self, pace: &Pace, begun: Instant, now: Instant) -> Error {
        let waited = clock::ceil_ms(now - begun);
        let message = match &pace.down {
            Some(down) => format!(
                "the server has been down for {:.1} s, since {}; \
                 failed dials: {}, the last: {}",
                now.saturating_duration_since(down.since).as_secs_f64(),
                clock::RoundTrip(down.since_wall),
                down.failures,
                down.last
                    .strip_prefix(&format!("connect at {}: ", self.name))
                    .unwrap_or(&down.last),
            ),
            None => format!("waited {waited} ms for another dial, which has no answer yet"),
        };
        let said = pace.down.as_ref().and_then(|down| down.said.clone());
        Error::new(ErrorKind::Connect, "connect", message)
            .at(&*self.name)
            .with_server(said)
    }
}

/// What a dial that was called away returns.
#[cold]
pub(super) fn stopped(endpoint: &str) -> Error {
    Error::new(
        ErrorKind::Stopped,
        "connect",
        "called away before it was done",
    )
    .at(endpoint)
}

/// The permission for one dial. To be told how it went; dropped untold, the dial counts as failed.
#[derive(Debug)]
#[must_use]
pub(crate) struct Pass<'a> {
    gate: &'a Gate,
    begun: Instant,
    told: bool,
}

impl Pass<'_> {
    /// The server answered: whoever waits goes now.
    pub(crate) fn succeeded(mut self) {
        self.told = true;
        let now = clock::now();
        let (over, waiting) = {
            let mut state = self.gate.state.lock();
            let over = state.pace.succeeded(now);
            state.unanswered = None;
            (over, std::mem::take(&mut state.waiting))
        };
        wake(waiting);
        if let Some(down) = over.filter(|down| down.announced) {
            log::warn!(
                "{} answers again after {:.1} s and {} failed dials",
                self.gate.name,
                now.saturating_duration_since(down.since).as_secs_f64(),
                down.failures
            );
        }
    }

    /// The dial failed. One failure in half a minute is logged as an error, the others for debugging.
    pub(crate) fn failed(mut self, error: &Error) {
        self.told = true;
        self.fail(&error.to_string(), error.server_said());
    }

    /// The dial was given up before it could tell anything of the server, as at a stop.
    pub(crate) fn abandoned(mut self) {
        self.told = true;
        let waiting = {
            let mut state = self.gate.state.lock();
            state.pace.abandoned(clock::now());
            std::mem::take(&mut state.waiting)
        };
        wake(waiting);
    }

    fn fail(&self, why: &str, said: Option<(ServerClass, Box<str>)>) {
        let now = clock::now();
        let line = {
            let mut state = self.gate.state.lock();
            if !state.pace.failed(self.begun, now, jittered(SPACING), why) {
                return;
            }
            // The window outlasts an outage, or a server that comes and goes would fill the log.
            let line = state.log.permit();
            if let Some(down) = &mut state.pace.down {
                down.announced |= line.is_some();
                down.said = said;
            }
            line
        };
        match line {
            None => log::debug!("{why}"),
            Some(0) => log::error!("{why}; further attempts are a second or more apart"),
            Some(more) => log::error!("{why}{}", HeldBack(more)),
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if !self.told {
            self.fail(
                &format!("connect at {}: the dial was not finished", self.gate.name),
                None,
            );
        }
    }
}

fn wake(waiting: Vec<Arc<Interrupt>>) {
    for w in waiting {
        w.wake();
    }
}

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use super::*;
    use crate::net::interrupt::STOP;

    const LONG: Duration = Duration::from_secs(20);
    const TICK: Duration = Duration::from_millis(1);

    /// How a simulated dial goes.
    enum Dial {
        Refused,
        Silent(Duration),
    }

    /// So many threads that want in for a minute of outage, on a clock of their own; afterwards the
    /// server is back. Returns how many dials they made in the minute, and how long after it the
    /// last of them was in.
    fn outage(threads: usize, dial: &Dial, mut pace: Pace, start: Instant) -> (u32, Duration) {
        let back = start + Duration::from_mins(1);
        let mut dialling: Vec<Option<(Instant, Instant)>> = vec![None; threads];
        let mut inside = vec![false; threads];
        let (mut attempts, mut now) = (0, start);
        while inside.contains(&false) {
            for i in 0..threads {
                match dialling[i] {
                    _ if inside[i] => {}
                    Some((begun, ends)) if now >= ends => {
                        dialling[i] = None;
                        pace.failed(begun, now, jittered(SPACING), "refused");
                    }
                    Some(_) => {}
                    None if pace.ask(now, jittered(SPACING)).is_err() => {}
                    None if now >= back => {
                        pace.succeeded(now);
                        inside[i] = true;
                    }
                    None => {
                        attempts += 1;
                        let lasts = match dial {
                            Dial::Refused => TICK,
                            Dial::Silent(time) => *time,
                        };
                        dialling[i] = Some((now, now + lasts));
                    }
                }
            }
            now += TICK;
        }
        (attempts, now - back)
    }

    #[test]
    fn a_minute_of_outage_costs_at_most_sixty_dials_and_ends_for_all_together() {
        let start = clock::now();
        for dial in [Dial::Refused, Dial::Silent(Duration::from_millis(900))] {
            let (attempts, took) = outage(17, &dial, Pace::new(start), start);
            assert!((40..=60).contains(&attempts), "{attempts}");
            assert!(took < Duration::from_millis(1500), "{took:?}");
        }
        // the server was fine a moment ago, then everybody lost their connection
        let mut lost = Pace::new(start);
        lost.succeeded(start);
        lost.suspect();
        let (attempts, _) = outage(17, &Dial::Refused, lost, start);
        assert!(attempts <= 60, "{attempts}");
    }

    #[test]
    fn dials_that_get_no_answer_hold_nobody_back() {
        let start = clock::now();
        let silent = Dial::Silent(Duration::from_secs(5));
        let (attempts, took) = outage(17, &silent, Pace::new(start), start);
        assert!((40..=60).contains(&attempts), "{attempts}");
        assert!(took < Duration::from_millis(5500), "{took:?}");
    }

    #[test]
    fn nobody_waits_while_all_is_well() {
        let t = clock::now();
        let mut p = Pace::new(t);
        p.ask(t, SPACING).unwrap();
        p.succeeded(t);
        for ms in 0..5000 {
            let now = t + Duration::from_millis(ms);
            // a lost connection now and then, as a killed client is
            if ms % 300 == 0 {
                p.suspect();
            }
            p.ask(now, SPACING).unwrap();
            p.succeeded(now);
        }
    }

    #[test]
    fn old_news_does_not_close_the_gate_and_a_dial_called_away_frees_its_place() {
        let t = clock::now();
        let mut p = Pace::new(t);
        p.ask(t, SPACING).unwrap();
        assert_eq!(p.ask(t + TICK, SPACING), Err(t + SPACING));
        p.abandoned(t + TICK);
        p.ask(t + TICK, SPACING).unwrap();
        p.succeeded(t + TICK);
        assert!(!p.failed(t, t + 2 * TICK, SPACING, "timed out"));
        p.ask(t + 2 * TICK, SPACING).unwrap();
        assert!(p.failed(t + 2 * TICK, t + 3 * TICK, SPACING, "refused"));
        assert_eq!(p.ask(t + 4 * TICK, SPACING), Err(t + 3 * TICK + SPACING));
    }

    #[test]
    fn those_who_wait_go_as_soon_as_the_first_is_in() {
        let gate = Gate::new("here", clock::now());
        let first = gate.enter(&Arc::default(), clock::now() + LONG).unwrap();
        let started = clock::now();
        thread::scope(|s| {
            let others: Vec<_> = (0..8)
                .map(|_| {
                    s.spawn(|| {
                        let pass = gate.enter(&Arc::default(), clock::now() + LONG).unwrap();
                        pass.succeeded();
                    })
                })
                .collect();
            first.succeeded();
            for o in others {
                o.join().unwrap();
            }
        });
        assert_eq!(gate.attempts(), 9);
        assert!(gate.state.lock().waiting.is_empty());
        assert!(started.elapsed() < LONG);
    }

    #[test]
    fn who_waits_in_vain_learns_why_and_who_is_stopped_leaves() {
        let gate = Gate::new("here:1", clock::now());
        let idle = Arc::default();
        let pass = gate.enter(&idle, clock::now() + LONG).unwrap();
        let e = gate.enter(&idle, clock::now()).unwrap_err();
        assert!(e.message().contains("another dial"), "{e}");
        drop(pass);
        let e = gate.enter(&idle, clock::now()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Connect);
        assert!(e.is_retryable());
        let text = e.to_string();
        assert!(
            text.starts_with("connect at here:1: the server has been down"),
            "{text}"
        );
        assert!(text.contains("the dial was not finished"), "{text}");

        let interrupt = Arc::new(Interrupt::default());
        thread::scope(|s| {
            let waiter = s.spawn(|| {
                // the gate opens by itself once a second: fail until stopped
                loop {
                    match gate.enter(&interrupt, clock::now() + LONG) {
                        Ok(pass) => pass.failed(&Error::config("no")),
                        Err(e) => return e,
                    }
                }
            });
            interrupt.set(STOP);
            assert_eq!(waiter.join().unwrap().kind(), ErrorKind::Stopped);
        });
        assert!(gate.state.lock().waiting.is_empty());
    }

    #[test]
    fn one_endpoint_and_user_have_one_gate() {
        let gate = |url| Gate::of(&Target::parse(url).unwrap());
        let a = gate("redis://gate.invalid:7000/1");
        assert!(Arc::ptr_eq(&a, &gate("redis://gate.invalid:7000/2")));
        assert!(!Arc::ptr_eq(&a, &gate("redis://bob:x@gate.invalid:7000")));
        assert!(!Arc::ptr_eq(&a, &gate("redis://gate.invalid:7001")));
    }
    #[test]
    fn a_call_without_an_answer_counts_against_the_server_until_a_dial_succeeds() {
        let (gate, idle) = (Gate::new("h:1", clock::now()), Arc::default());
        let dial = || gate.enter(&idle, clock::now() + LONG).unwrap().succeeded();
        dial();
        gate.unanswered("no answer".to_owned());
        assert_eq!(gate.down().as_deref(), Some("no answer"));
        assert!(!gate.is_proven());
        dial();
        assert_eq!(gate.down(), None);
    }
}
