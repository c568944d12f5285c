//! The ways to publish, all of them saying numbers.

use std::time::Duration;

use streamlane::{
    Append, As, Command, Condition, Forwarding, Outgoing, Published, Receipt, Result, Source,
    StreamId, Streams,
    testing::{PrivateServer, Reply},
};

use crate::{PARTITIONS, PATIENCE};

/// A way to publish, to a topic of its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Many threads, one connection.
    Shared,
    Dedicated,
    Batch,
    Json,
    JsonBatch,
    Buffered,
    /// Under a dedupe id.
    Once,
    OnceBatch,
    Outbox,
    StateStore,
    Forwarder,
}

/// Says numbers, and answers for each what it was told.
pub type Voice = Box<dyn FnMut(&[u64]) -> Vec<Result<Stored>> + Send>;

/// A number that is stored.
#[derive(Clone, Copy, Debug)]
pub struct Stored {
    /// As which entry, where that is told.
    pub id: Option<StreamId>,
    /// Whether it was stored by an earlier call.
    pub before: bool,
}

/// The numbers of one voice begin this far from those of the one before.
const APART: u64 = 1_000_000;
/// How many numbers are said at a time by the ways that take several.
const BATCH: u64 = 8;
/// How long dedupe ids are remembered.
const TTL: Duration = Duration::from_hours(1);
/// The key of all messages: the order of one voice is kept.
const KEY: &str = "k";
/// The source of what is forwarded, and the name of the state that is stored.
const NAME: &str = "numbers";

impl Way {
    pub const ALL: [Self; 11] = [
        Self::Shared,
        Self::Dedicated,
        Self::Batch,
        Self::Json,
        Self::JsonBatch,
        Self::Buffered,
        Self::Once,
        Self::OnceBatch,
        Self::Outbox,
        Self::StateStore,
        Self::Forwarder,
    ];

    pub fn topic(self) -> String {
        format!("{self:?}")
    }

    /// The key of a partition.
    pub fn stream(self, partition: u32) -> String {
        format!("re:s:{{{}}}:{partition}", self.topic())
    }

    /// Whether it is made to say a number again until it is known to be stored. The others never do, for
    /// they would say it twice.
    pub fn insists(self) -> bool {
        use Way::{Forwarder, Once, OnceBatch, Outbox, StateStore};
        matches!(self, Once | OnceBatch | Outbox | StateStore | Forwarder)
    }

    /// How many numbers it says at a time.
    pub fn breath(self) -> u64 {
        use Way::{Batch, Buffered, JsonBatch, OnceBatch};
        match self {
            Batch | Buffered | JsonBatch | OnceBatch => BATCH,
            _ => 1,
        }
    }

    /// Which voice says a number.
    pub fn voice_of(number: u64) -> usize {
        (number / APART) as usize
    }

    /// The first number of a voice.
    pub fn first_of(voice: usize) -> u64 {
        voice as u64 * APART
    }

    /// What says the numbers, each in a thread of its own.
    pub fn voices(self, streams: &Streams) -> Vec<Voice> {
        let topic = self.topic();
        if self == Self::Shared {
            let publisher = streams.publisher(topic).unwrap();
            let voice = |p| {
                let publisher = publisher.clone();
                one_by_one(move |_, body| {
                    let message = publisher.message("T", body).key(KEY).partition(p);
                    message.publish().map(now)
                })
            };
            return (0..PARTITIONS).map(voice).collect();
        }
        vec![self.voice(streams, topic)]
    }

    fn voice(self, streams: &Streams, topic: String) -> Voice {
        match self {
            Self::Shared | Self::Dedicated => {
                let mut publisher = streams.publisher(topic).unwrap().dedicated();
                one_by_one(move |_, body| publisher.publish(KEY, "T", body).map(now))
            }
            Self::Batch | Self::OnceBatch => {
                let publisher = streams.publisher(topic).unwrap();
                Box::new(move |numbers| {
                    let bodies = texts(numbers);
                    let message = |body| {
                        let m = Outgoing::new("T", body).key(KEY);
                        if self.insists() {
                            m.dedupe(body, TTL)
                        } else {
                            m
                        }
                    };
                    let messages: Vec<_> = bodies.iter().map(message).collect();
                    let mut results = Vec::new();
                    publisher.publish_batch_into(&messages, &mut results);
                    results.into_iter().map(|r| r.map(once)).collect()
                })
            }
            Self::Json => {
                let publisher = streams.publisher(topic).unwrap();
                one_by_one(move |n, _| publisher.publish_json(KEY, &As("T", &n)).map(now))
            }
            Self::JsonBatch => {
                let publisher = streams.publisher(topic).unwrap();
                Box::new(move |numbers| {
                    let values: Vec<_> = numbers.iter().map(|n| (KEY, As("T", n))).collect();
                    let results = publisher.publish_json_batch(&values);
                    results.into_iter().map(|r| r.map(now)).collect()
                })
            }
            Self::Buffered => {
                let publisher = streams.buffered(topic).unwrap();
                Box::new(move |numbers| {
                    let bodies = texts(numbers);
                    let enqueue =
                        |body| publisher.enqueue_tracked(&Outgoing::new("T", body).key(KEY));
                    let receipts: Vec<_> = bodies.iter().map(enqueue).collect();
                    let wait = |r: Result<Receipt>| r?.wait(PATIENCE).expect("settled").map(now);
                    receipts.into_iter().map(wait).collect()
                })
            }
            Self::Once => {
                let publisher = streams.publisher(topic).unwrap();
                one_by_one(move |_, body| {
                    let message = publisher.message("T", body).key(KEY).dedupe(body, TTL);
                    message.publish().map(once)
                })
            }
            Self::Outbox => {
                let outbox = streams.outbox(topic).unwrap();
                let key = outbox.state_key(NAME).unwrap();
                one_by_one(move |n, body| {
                    let unsaid = Condition::hash_not_exists(&key, n);
                    let set = Command::new("HSET").key(&key).arg(n).arg("");
                    let message = Outgoing::new("T", body).key(KEY);
                    let said = outbox.transaction().when(unsaid).command(set);
                    let commit = said.publish(message).commit()?;
                    Ok(commit.committed().map_or(BEFORE, |done| now(done.ids[0])))
                })
            }
            Self::StateStore => {
                let store = streams.state_store(topic).unwrap();
                // the ids it tells are those in the state
                one_by_one(move |n, body| {
                    match store.append(NAME, n, &[Outgoing::new("T", body)])? {
                        Append::Appended(_) => Ok(Stored {
                            id: None,
                            before: false,
                        }),
                        Append::Conflict => Ok(BEFORE),
                    }
                })
            }
            Self::Forwarder => {
                let forwarder = streams.forwarder(topic).unwrap();
                one_by_one(move |n, body| {
                    let source = Source::in_order(NAME, position(n));
                    let message = Outgoing::new("T", body).key(KEY);
                    match forwarder.forward(&source, &[message])? {
                        Forwarding::Forwarded(ids) => Ok(now(ids[0])),
                        Forwarding::AlreadyForwarded => Ok(BEFORE),
                        other @ Forwarding::OutOfOrder { .. } => panic!("{n}: {other:?}"),
                    }
                })
            }
        }
    }

    /// That what is kept beside the messages agrees with them.
    #[track_caller]
    pub fn check_state(self, server: &PrivateServer, said: &[u64]) {
        let state = |what: &str| format!("re:{{{}}}:state:{what}", self.topic());
        let ask = |command: &[&str]| server.command(command).unwrap();
        let number = |text: &Reply| text.text().parse::<u64>().unwrap();
        let kept: Vec<_> = match self {
            Self::Outbox => {
                let all = ask(&["HKEYS", &state(NAME)]);
                let mut kept: Vec<_> = all.items().iter().map(number).collect();
                kept.sort_unstable();
                kept
            }
            Self::StateStore => {
                let all = ask(&["XRANGE", &state(NAME), "-", "+"]);
                let body = |e: &Reply| number(&e.items()[1].items()[1]);
                all.items().iter().map(body).collect()
            }
            Self::Forwarder => {
                let mark = ask(&["HGET", &state("forward:high-water"), NAME]).text();
                assert_eq!(mark, position(said.len() as u64 - 1).to_string());
                return;
            }
            _ => return,
        };
        assert_eq!(kept, said, "{self:?}: state and stream");
    }
}

fn position(n: u64) -> StreamId {
    StreamId::new(n + 1, 0)
}

fn texts(numbers: &[u64]) -> Vec<String> {
    numbers.iter().map(u64::to_string).collect()
}

/// Stored by an earlier call, under an id that is not told.
const BEFORE: Stored = Stored {
    id: None,
    before: true,
};

fn now(id: StreamId) -> Stored {
    Stored {
        id: Some(id),
        before: false,
    }
}

fn once(published: Published) -> Stored {
    Stored {
        id: Some(published.id),
        before: published.repeated,
    }
}

fn one_by_one(mut say: impl FnMut(u64, &str) -> Result<Stored> + Send + 'static) -> Voice {
    Box::new(move |numbers| {
        let each = numbers.iter().map(|n| say(*n, &n.to_string()));
        each.collect()
    })
}
