//! The thread that asks the server how far each partition is behind. It works for everybody in the process,
//! independently of lanes and handlers, and disturbs nobody: what it cannot find out is not known, and it asks
//! again later.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    Result, Snapshot, clock,
    consume::Extent,
    error::{Error, ErrorKind},
    net::{
        Background, Connection, Interrupt, STOP, Skim, Target,
        resp::{self, Cursor, Head},
    },
    queue::{GroupPlan, is_gone},
    quiet::{HeldBack, Quiet},
};

use super::{
    PartitionStatus,
    sample::{first_of, group_of},
    sight::{Answer, Sight},
};

/// How often it looks whether anything has moved, which asks no server, and whether it is time to ask.
const TICK: Duration = Duration::from_secs(1);
/// How many streams are asked about in one round trip, at most and to begin with. Each answer holds two whole
/// entries, which can be large.
const MOST: usize = 64;
const FEW: usize = 4;
/// After a round trip that was this slow the next is about fewer, after one that was this quick about more.
const SLOW_MS: u64 = 250;
const QUICK_MS: u64 = 25;
/// Where the answers take long they are asked for less often: the share of the time they may take is one in so
/// many.
const SHARE: u64 = 100;
/// How many of the first pending entries are looked at.
const PENDING: &[u8] = b"100";

/// Who has partitions to be looked at.
pub(crate) trait Sampled: Send + Sync {
    /// Has everybody note how far they are. Asks no server.
    fn note(&self);
    /// Every partition that is here now.
    fn subjects(&self) -> Vec<Subject>;
}

/// A partition to be asked about.
pub(crate) struct Subject {
    pub(crate) topic: Arc<str>,
    pub(crate) consumer: Arc<str>,
    pub(crate) partition: u32,
    pub(crate) key: Box<[u8]>,
    /// Where a group keeps what is finished.
    pub(crate) group: Option<Arc<GroupPlan>>,
    /// How far it is now.
    pub(crate) position: Snapshot,
    pub(crate) sight: Arc<Sight>,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.partition {
            PartitionStatus::RETRIES => write!(f, "{}[retries]/{}", self.topic, self.consumer),
            p => write!(f, "{}[{p}]/{}", self.topic, self.consumer),
        }
    }
}

/// What the sampler is told once.
pub(crate) struct SamplerTerms {
    pub(crate) target: Arc<Target>,
    pub(crate) client_name: String,
    /// How often each partition is asked about.
    pub(crate) interval: Duration,
    /// How long connecting may take, and one round trip.
    pub(crate) timeout: Duration,
}

/// The sampler of a process, which begins when it is first needed.
pub(crate) struct Sampler {
    shared: Arc<Shared>,
    thread: Background,
}

struct Shared {
    terms: SamplerTerms,
    interrupt: Arc<Interrupt>,
    sampled: Box<dyn Sampled>,
}

impl Sampler {
    pub(crate) fn new(terms: SamplerTerms, sampled: impl Sampled + 'static) -> Self {
        let interrupt = Arc::<Interrupt>::default();
        Self {
            thread: Background::new(Arc::clone(&interrupt), Duration::ZERO),
            shared: Arc::new(Shared {
                terms,
                interrupt,
                sampled: Box::new(sampled),
            }),
        }
    }

    /// Starts the thread unless it runs. Without it everything goes on, and lags are not known.
    pub(crate) fn start(&self) {
        let sample = || {
            let mut turns = Turns::new(Arc::clone(&self.shared));
            move || turns.run()
        };
        let without = "it is not known how far consumers are behind";
        self.thread.start("sampler", without, sample);
    }
}

/// What the thread has.
struct Turns {
    shared: Arc<Shared>,
    connection: Option<Connection>,
    questions: Vec<u8>,
    skim: Skim,
    /// How many streams the next round trip is about.
    many: usize,
    quiet: Quiet,
}

impl Turns {
    fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            connection: None,
            questions: Vec::new(),
            skim: Skim::default(),
            many: FEW,
            quiet: Quiet::default(),
        }
    }

    fn run(&mut self) {
        let shared = Arc::clone(&self.shared);
        while !shared.interrupt.sleep(TICK, STOP) {
            shared.sampled.note();
            let now_ms = clock::coarse_ms();
            let mut due = shared.sampled.subjects();
            // Half a turn early rather than a whole one late.
            due.retain(|s| s.sight.is_due(now_ms + TICK.as_millis() as u64 / 2));
            if due.is_empty() {
                continue;
            }
            if let Err(e) = self.sample(&due)
                && shared.interrupt.bits() & STOP == 0
            {
                self.failed(&e);
            }
        }
    }

    fn sample(&mut self, due: &[Subject]) -> Result<()> {
        let kept = self.connection.take();
        let kept = kept.and_then(|mut c| c.check_idle().is_ok().then_some(c));
        let mut connection = match kept {
            Some(connection) => connection,
            None => self.dial()?,
        };
        let mut rest = due;
        let mut later = None;
        while !rest.is_empty() && self.shared.interrupt.bits() & STOP == 0 {
            let (some, more) = rest.split_at(self.many.min(rest.len()));
            if let Err(e) = self.ask(&mut connection, some) {
                if !e.keeps_connection() {
                    self.many = 1;
                    return Err(e);
                }
                later = Some(e);
            }
            rest = more;
        }
        self.connection = Some(connection);
        later.map_or(Ok(()), Err)
    }

    fn dial(&self) -> Result<Connection> {
        let Shared {
            terms, interrupt, ..
        } = &*self.shared;
        Connection::dial(
            &terms.target,
            &terms.client_name,
            Some(interrupt),
            terms.timeout,
        )
    }

    /// Asks about some partitions in one round trip.
    ///
    /// # Errors
    ///
    /// Those of the connection; and the server's own when it will be ready later.
    fn ask(&mut self, connection: &mut Connection, some: &[Subject]) -> Result<()> {
        let terms = &self.shared.terms;
        self.questions.clear();
        let mut asked = Vec::new();
        for (i, subject) in some.iter().enumerate() {
            let questions = render(&mut self.questions, subject);
            asked.extend(questions.iter().map(|q| (i, *q)));
        }
        let mut answers: Vec<Told> = some.iter().map(|_| Told::default()).collect();
        let began_ms = clock::coarse_ms();
        let take = |n: usize, answer: &[u8]| {
            let (i, question) = asked[n];
            answers[i].take(question, answer, &some[i]);
        };
        let (questions, n) = (&self.questions, asked.len());
        let asking = self
            .skim
            .exchange(connection, questions, n, terms.timeout, take);
        asking.map_err(|e| e.during("ask how far consumers are behind"))?;
        let now_ms = clock::coarse_ms();
        let took = now_ms.saturating_sub(began_ms);
        if took > SLOW_MS {
            self.many = (self.many / 2).max(1);
        } else if took < QUICK_MS {
            self.many = (self.many * 2).min(MOST);
        }
        let due_ms = now_ms + (terms.interval.as_millis() as u64).max(took * SHARE);
        let mut later = None;
        for (subject, told) in some.iter().zip(answers) {
            let about = |e: Error| e.on_key(&*subject.key).at(connection.endpoint());
            match told.stream {
                Err(e) if e.is_retryable() || !e.keeps_connection() => later = Some(about(e)),
                Err(e) => {
                    if subject.sight.refused(due_ms) {
                        self.tell(subject, "how far it is behind", &about(e));
                    }
                }
                Ok(stream) => {
                    let answer = Answer {
                        stream,
                        group: told.group,
                        first: told.first,
                    };
                    if let (Some(plan), Some(group)) = (&subject.group, told.group) {
                        plan.saw_pending(subject.partition, group.pending);
                    }
                    subject.sight.sampled(subject.position, &answer, due_ms);
                    if let Some(e) = told.refusal
                        && subject.sight.half_refused()
                    {
                        self.tell(subject, "what is pending", &about(e));
                    }
                }
            }
        }
        later.map_or(Ok(()), Err)
    }

    fn tell(&mut self, subject: &Subject, what: &str, e: &Error) {
        if let Some(more) = self.quiet.permit() {
            let more = HeldBack(more);
            log::warn!("{subject}: {what} is not known, and so not part of health: {e}{more}");
        }
    }

    fn failed(&mut self, e: &Error) {
        // Of a server that is away others tell.
        match e.kind() {
            ErrorKind::Connect | ErrorKind::Io | ErrorKind::Timeout | ErrorKind::Server => {
                log::debug!("how far consumers are behind is not known: {e}");
            }
            _ => {
                if let Some(more) = self.quiet.permit() {
                    let more = HeldBack(more);
                    log::warn!("how far consumers are behind is not known: {e}; asked again{more}");
                }
            }
        }
    }
}

/// One question about a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Question {
    Pending,
    Groups,
    Stream,
}

/// Renders the questions about a partition. The stream comes last, so that it holds at least what its group was
/// given.
fn render(out: &mut Vec<u8>, subject: &Subject) -> &'static [Question] {
    let (key, mut all) = (&*subject.key, &[Question::Stream][..]);
    if let Some(plan) = &subject.group {
        let group = plan.member.group.as_bytes();
        resp::whole(out, &[b"XPENDING", key, group, b"-", b"+", PENDING]);
        resp::whole(out, &[b"XINFO", b"GROUPS", key]);
        all = &[Question::Pending, Question::Groups, Question::Stream];
    }
    Extent::ask(out, key);
    all
}

/// What was answered about a partition.
struct Told {
    stream: Result<Option<Extent>>,
    group: Option<super::sample::Group>,
    first: super::sample::First,
    /// What else the server will not tell.
    refusal: Option<Error>,
}

impl Default for Told {
    fn default() -> Self {
        Self {
            stream: Ok(None),
            group: None,
            first: super::sample::First::default(),
            refusal: None,
        }
    }
}

impl Told {
    fn take(&mut self, question: Question, answer: &[u8], subject: &Subject) {
        let name = subject.group.as_ref().map_or("", |g| &*g.member.group);
        match question {
            Question::Stream => self.stream = Extent::read(answer),
            _ if self.is_refused(question, answer) => {}
            Question::Groups => self.group = group_of(answer, name.as_bytes()),
            Question::Pending => self.first = first_of(answer),
        }
    }

    /// Whether the answer is an error. A group or stream that is not there is the lane's to tell.
    fn is_refused(&mut self, question: Question, answer: &[u8]) -> bool {
        let Ok(Head::Error(text)) = Cursor::new(answer, 0).head() else {
            return false;
        };
        let about = match question {
            Question::Groups => "XINFO",
            _ => "XPENDING",
        };
        let e = Error::server(about, text.of(answer));
        if !is_gone(&e) && !e.is_retryable() {
            self.refusal = Some(e);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_no_refusal() {
        for (answer, refused) in [
            ("-ERR no such key\r\n", false),
            ("-NOGROUP no such key or group\r\n", false),
            ("-LOADING the data\r\n", false),
            ("-NOPERM no permission\r\n", true),
            ("-WRONGTYPE of something else\r\n", true),
        ] {
            let mut told = Told::default();
            assert!(told.is_refused(Question::Groups, answer.as_bytes()));
            assert_eq!(told.refusal.is_some(), refused, "{answer}");
        }
        assert!(!Told::default().is_refused(Question::Groups, b"*0\r\n"));
    }
}
