//! Ordered, durable messaging over Redis Streams, for services written without async.
//!
//! A topic is a number of partitions, each a Redis stream. Messages with equal keys go to one partition
//! and are handled in the order in which they were published. A consumer is a named reader of a topic:
//! each partition has a *lane* (one thread, one connection, one reused arena) that reads it with blocking
//! `XREAD`s, lends what it read to your handler, and keeps a position in Redis of what is finished. What
//! was published is handled at least once, whatever crashes. There is no async runtime anywhere, and in
//! steady state publishing, reading, handling and position keeping allocate nothing.
//!
//! # A tour
//!
//! ```
//! use std::time::Duration;
//! use streamlane::{Message, Streams};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = streamlane::testing::PrivateServer::start()?;
//! # let url = server.url();
//! let streams = Streams::connect(url)?; // such as "redis://127.0.0.1:6379"
//!
//! let publisher = streams.publisher("orders")?;
//! publisher.publish("order-1", "OrderPlaced", br#"{"id":1}"#)?;
//!
//! let consumer = streams
//!     .consumer("orders")
//!     .name("billing")
//!     .messages(|_partition| |m: &Message<'_>| {
//!         println!("{} {} {}", m.id(), m.key(), m.message_type());
//!         Ok(())
//!     })
//!     .start()?;
//!
//! consumer.drain(Duration::from_secs(5))?; // handle everything up to the tail, then stop
//! # Ok(()) }
//! ```
//!
//! - [`Streams`] is the way in: a server and its [`Settings`].
//! - [`Publisher`] is shared by threads; other ways to [publish](#publishing) are for other needs.
//! - [`ConsumerBuilder`] takes [`messages`](ConsumerBuilder::messages) one by one,
//!   [`batches`](ConsumerBuilder::batches), or [`json`](ConsumerBuilder::json) decoded with strings
//!   borrowed from a scratch copy; a [`Codec`] adds other formats. It makes a [`Consumer`].
//! - [`Message`] and [`Batch`] are lent for one call; the compiler sees to it that nothing is kept.
//! - [`Error`] tells what was tried, where, whether it took effect and whether retrying can help.
//! - [`Streams::ownership`] tells how instances share the partitions.
//! - [`Streams::health`] is a verdict from memory, [`Streams::partitions`] what it is based on: how far each partition
//!   is, how many messages wait and for how long. [`Rule`] has the list of what is judged.
//! - [`Streams::admin`] moves positions by hand: it shows what a reset would do, and does it. It looks after
//!   [dead letters](#dead-letters) and topics, too, and reads entries and what is pending without being a consumer.
//!
//! # The error contract
//!
//! What a handler returns decides what becomes of a message. Read this before writing one: the compiler
//! accepts a handler that drops money without a word.
//!
//! | what happened | the handler says | what the lane does | the position |
//! |---|---|---|---|
//! | done | `Ok(())` | goes on | moves past it |
//! | it will never succeed | `parse(m)?` | logs, counts, steps over it ([`OnError::BestEffort`]) | moves past it |
//! | it must not be skipped | `post(m).or_block()?` | hands it over again after 1, 2, 4, 8, 16, then every 30 s | stays before it |
//! | once more, a little later | `call(m).or_retry_after(d)?` | hands it over once more after `d`, then as a bare `?` | stays, then as a bare `?` |
//! | it will never succeed, and must not be lost | `book(m).or_dead_letter()?` | makes it a [dead letter](#dead-letters), goes on | moves past it |
//! | nothing more can be done here | `check(m).or_stop()?` | stops this partition | stays before it |
//! | the handler panics | | as a bare `?`; the handler is made anew | as a bare `?` |
//! | the process dies in the call, or the call never ends | | hands it over again, `MaxDeliveries` (20) times in all; then [as a bare `?`, without a call](#messages-that-kill) | stays, then as a bare `?` |
//!
//! A bare `?` on any error is an ordinary error. [`OnError`] decides what that means:
//! [`BestEffort`](OnError::BestEffort) (the default) steps over the message,
//! [`StopPartition`](OnError::StopPartition) stops the partition before it, [`Fail`](OnError::Fail)
//! stops every consumer and makes [`Streams::wait`] return the error. Nothing is retried unless the
//! handler asks for it: only it knows whether a second attempt can help and does no harm. Or the consumer
//! asks for it with [`Park`](OnError::Park): then a message that failed is handed over again so often, in
//! its place and with growing pauses ([`ConsumerBuilder::park`]), and becomes a dead letter after that. A message
//! may ask for fewer attempts than that ([`Draft::max_attempts`]).
//!
//! Which message is concerned:
//!
//! - with [`messages`](ConsumerBuilder::messages) and [`json`](ConsumerBuilder::json), the one that
//!   failed, alone;
//! - with [`batches`](ConsumerBuilder::batches), the whole batch, unless the handler marks its progress
//!   with [`Batch::done`] or uses [`Batch::each`]: then the first message that is not done, alone, and
//!   the rest is handed over again.
//!
//! ```
//! use std::io;
//! use streamlane::{HandlerResult, Message, OrAction};
//!
//! fn post_to_ledger(_: &Message<'_>) -> Result<(), io::Error> {
//!     Ok(())
//! }
//!
//! fn handle(m: &Message<'_>) -> HandlerResult {
//!     let text = std::str::from_utf8(m.body())?; // malformed: skipped, which is right
//!     if text.is_empty() {
//!         return Err("an order without content".into()); // so is this
//!     }
//!     post_to_ledger(m).or_block()?; // skipping this would lose money: wait for the ledger
//!     Ok(())
//! }
//! # let _: fn(&Message<'_>) -> HandlerResult = handle;
//! ```
//!
//! An error *type* can say it once for all with [`ConsumerBuilder::classify`]. Blocking is not free: the
//! partition's backlog grows meanwhile, and trimming (`MaxLen`) may eat what is not read yet. It is right
//! for "the ledger is down" and wrong for "this message is broken".
//!
//! Entries that are no proper messages (no body or type, a broken header block or reference) never reach a message
//! handler: they are ordinary errors, with their id in the log, and under `Park` never tried again. Batch handlers see them in their place,
//! marked as [`malformed`](Message::malformed).
//!
//! # Messages that kill
//!
//! A message whose handler ends the process (it aborts, overflows the stack, has no memory left) or never comes
//! back is handed over again by the next process, which it ends as well. So that this is not for ever, each lane
//! of an ordered consumer writes down the first message it hands over, and how many lanes in a row have begun
//! with it: one small write whenever a partition is taken up, and nothing after that. A lane that finds that two
//! before it did not get past their first message reads on one by one for a batch, and writes each message
//! down before it hands it over, so that a death is put down to the message that was in hand and to none
//! beside it. One that has been handed over `MaxDeliveries` times (20, [`ConsumerBuilder::max_deliveries`]) is
//! not handed over any more. It counts as an ordinary failure with an error that says so, which goes to
//! `classify` and the policy as any other: [`BestEffort`](OnError::BestEffort) steps over it with an error in
//! the log, [`StopPartition`](OnError::StopPartition) and [`Fail`](OnError::Fail) stop before it, at each start
//! anew, until the limit is raised or the position is reset, and [`Park`](OnError::Park) makes it a dead letter
//! at once, with the reason `deliveries`.
//!
//! What counts of an ordered consumer is a call that began and never came back: the process died, was killed or was cut off by the end
//! of `ShutdownTimeoutSeconds`, its claim ended, or its partition was given away as stalled
//! (`HandOverWhenStalled`). Calls that come back do not count, with whatever result, and neither does the time
//! in which a message blocks or waits for its next attempt of a second or more; nor do stops and
//! handovers in which the handler heeds [`is_cancelled`](Message::is_cancelled). A good message that takes longer
//! than processes are let live at your place needs a higher limit, or none: 0.
//!
//! # Dead letters
//!
//! A dead letter is a message that failed for good, kept with all its bytes beside what is known of it: where
//! it comes from, the error, when it failed, how often it was tried and why it was given up. The letter and
//! the position behind the message are stored by one script, both or neither, so whatever is killed at
//! whatever moment, no message is lost in between and none is a letter twice. What is no proper message
//! becomes one at once under [`Park`](OnError::Park). Of a batch without marks every message becomes one.
//!
//! [`Admin::dead_letters`] lists, counts, deletes and replays them. An ordered consumer has nothing of its own
//! that could be replayed into, so a replay is a new message of the topic, for all its consumers and behind
//! what was published since: [`ReplayTo`] makes you say so. About `DeadLetters:MaxLen` (100 000) of them are
//! kept, for `DeadLetters:MaxAgeSeconds` if that is set; older ones go when one is added, so have a look
//! before: each is an error in the log, and `parked` of [`Streams::partitions`] counts them.
//!
//! Services in other languages find them in the stream `re:d:{topic}:consumer`. The fields of the letter come
//! first; `!` says how many these are, itself included, and what follows are the fields of the message as they
//! were, whatever they are called.
//!
//! | field | what it holds |
//! |---|---|
//! | `!` | how many fields the letter has of its own |
//! | `!since`, `!until` | when the message failed first and last, in milliseconds of the server's clock |
//! | `!topic`, `!partition`, `!last` | where it was, and its id there |
//! | `!first` | the id it had when it was published first: another than `!last` once it was replayed |
//! | `!attempts`, `!deliveries` | how often it was handed over again by policy, and handed over in all |
//! | `!error` | the error, its first KiB |
//! | `!consumer` | whose message it was |
//! | `!reason` | `retries`, `deliveries` (see [messages that kill](#messages-that-kill)), `handler`, `malformed` or `payload-missing` |
//! | `!payload` | of a body that was [kept apart](#large-bodies), what the field `x` said of it; the letter has the body itself, in the field `b` |
//! | `!omitted` | how many fields of the message were too many to keep (above 3000); absent if none |
//!
//! # Queues
//!
//! Where the order does not matter, messages are work to be shared. Under [`Delivery::WorkQueue`] every instance
//! reads every partition, each message goes to whichever member of the group is free, and is acknowledged for
//! itself. Under [`Delivery::LeasedQueue`] each partition has one owner, as with ordered consumers, and messages
//! are acknowledged one by one all the same.
//!
//! ```no_run
//! use std::time::Duration;
//! use streamlane::{Delivery, Message, Streams};
//!
//! # fn send(_: &Message<'_>) -> Result<(), std::io::Error> { Ok(()) }
//! # fn main() -> Result<(), streamlane::Error> {
//! let streams = Streams::connect("redis://127.0.0.1:6379")?;
//! let consumer = streams
//!     .consumer("mails")
//!     .name("sender")
//!     .delivery(Delivery::WorkQueue)
//!     .batch_size(10)                // what one member takes at a time: few, where each takes long
//!     .retry(5)                      // again after 1, 2, 4, 8, 16 s; then it is a dead letter
//!     .retry_pauses(Duration::from_secs(1), Duration::from_secs(60))
//!     .messages(|_partition| |m: &Message<'_>| Ok(send(m)?))
//!     .start()?;
//! # drop(consumer); Ok(()) }
//! ```
//!
//! | mode | who reads a partition | what is finished is kept as | order of equal keys |
//! |---|---|---|---|
//! | [`Ordered`](Delivery::Ordered) | its owner | a position | kept |
//! | [`WorkQueue`](Delivery::WorkQueue) | everybody | acknowledgements of a consumer group | none |
//! | [`LeasedQueue`](Delivery::LeasedQueue) | its owner | acknowledgements of a consumer group | kept until a message is tried again out of its place; always with [`Park`](OnError::Park) |
//!
//! What a failure does is said as for ordered consumers, and there is one policy more: [`OnError::Retry`] puts a
//! failed message aside, so that it holds nothing up, and has it handed over again after a growing pause, up to
//! `Retry:Attempts` times (5); then it becomes a [dead letter](#dead-letters). It keeps its id, its partition and
//! all its bytes, [`attempt`](Message::attempt) counts on, and no other consumer of the topic sees any of this.
//! `or_retry_after(d)?` does the same with this pause; under other policies it does so once, in a `LeasedQueue` in
//! place, and then the policy decides. A message's successor is stored by the script that
//! acknowledges it, both or neither. [`ReplayTo::ThisConsumer`] hands a dead letter to the group that failed at it
//! and to nobody else. What is tried again is read by a lane of its own (its status has the partition
//! [`RETRIES`](PartitionStatus::RETRIES)), in each instance, also of a `LeasedQueue`.
//!
//! A handler may take as long as it likes: while it runs, and while messages wait behind it, they are kept alive
//! at the server, and nobody takes them. What a process had that died is taken over by a member whose lane is free as soon as its
//! sign of life has ended (`Instances:LeaseTtlMs`); at once after a stop, and at once when it starts again
//! under its own `PodName`. What nobody gave a sign of for `Claim:IdleMs` (5 min), as members of other
//! implementations do not, is claimed by whoever looks next. A process that was suspended for longer than its sign
//! of life does not finish what another has taken over meanwhile: its acknowledgements are refused, counted as
//! `late` and logged, since these messages were handled twice. And of what is finished here nothing is handled here again, even if
//! its acknowledgement cannot be delivered for now.
//!
//! What is finished is acknowledged with the next read, and while others of a batch are handled every
//! `PersistIntervalMs`, between two calls: a process that dies in a long call repeats what it had finished just
//! before. How often a message was given out without a result is counted by the server, an answer that was lost
//! included. After the third time it is handed over alone, so that those beside it are not taken for what ends processes, and after `MaxDeliveries`
//! (20) it fails [without a call](#messages-that-kill). A deploy counts as one for what was in hand.
//!
//! A group that is lost with its stream, or destroyed, is made again where it was, with an error in the log that
//! says what is known: how far it is finished is written down every second. `AckDelete` deletes what is finished:
//! `Immediate` for topics that nobody else reads; `AllGroups` within a second or two of every consumer of the
//! topic having finished it. Consumers of this library and all groups are seen to; one that keeps positions in
//! another implementation is not, and wants `None`. Where a consumer has no position or group, or keeps none
//! (`Persist: None`), nothing is deleted, which the log says. Trimming by `MaxLen` deletes whatever is oldest, pending or not, and leaves behind that it
//! is pending (`KEEPREF`, as servers call that): whoever comes upon it tells it as lost, with up to ten ids, and acknowledges
//! it away. What `AllGroups` deletes was acknowledged by all groups, which Redis 8.2 makes sure of itself (`ACKED`). [`Admin::reset`] moves a group, and has to be told what becomes of what is
//! [pending](Reset::pending). `MaxInFlight` bounds how many calls run at once in a process.
//!
//! Queues need a topic whose partitions lie together (`CoLocatePartitions`), and cannot be [forwarded](Forwarder)
//! from. A name keeps what is finished in one way on a topic: two modes under one name are refused.
//!
//! # Positions, and what a crash costs
//!
//! Everything up to a partition's position is finished. It is kept in memory without a lock and stored
//! by a background thread within `PersistIntervalMs` (1 s) of each change ([`Persist::AsyncBatch`]). A
//! crash hands over again what was handled since it was last stored, and loses nothing.
//! [`Persist::SyncBatch`] and [`Persist::SyncMessage`] store it before the next batch or message is
//! handed over, at the cost of a round trip; a graceful [`stop`](Consumer::stop) stores it in any case.
//!
//! A consumer that starts goes on at its stored position. [`StartFrom`] says where one begins that has
//! none, or moves one, once.
//!
//! # Several instances
//!
//! Instances of one consumer, which are processes with the same topic and consumer name, share its
//! partitions. Each partition has one owner: who claims it in Redis and renews the claim
//! (`Instances:LeaseTtlMs`, 30 s, and `Instances:LeaseRenewMs`, 10 s). Whoever joins has its share within
//! an interval of renewal, and only the lanes that move notice. A stop finishes what is in hand, stores
//! positions and releases the claims, and the others read on within a second; the partitions of an
//! instance that died without a word are another's when its claims have ended.
//!
//! An instance that was suspended, starved or cut off cannot do harm. It counts for itself until when its
//! claims hold, on a clock that goes on while the machine sleeps, and from then on starts no handler call;
//! one that runs is told by [`is_cancelled`](Message::is_cancelled), and its result does not count. Each
//! position is stored by a script that compares the claim first, so that even a late write is refused.
//!
//! [`Streams::ownership`] tells who owns what, [`Admin::ownership`] does from outside, and health says when
//! partitions are nobody's. `Instances:MaxPartitions` and `Instances:PartitionModulo` narrow what one
//! instance takes; `HandOverWhenStalled` gives a partition away whose handler does not come back. With
//! [`Instances::Static`] each instance is told its number instead, and keeps the partitions of that number.
//!
//! # Publishing
//!
//! [`publish`](Publisher::publish) is one `XADD`, written once and never sent again by itself. When it
//! fails, [`Error::outcome`] says whether the message was stored: [`Outcome::NotApplied`] may be
//! published again, [`Outcome::Unknown`] may be stored already. Topics are trimmed while publishing, to
//! `MaxLen` (10 000) messages a partition *whether they were read or not*: choose it well above what
//! arrives during the longest outage of a consumer.
//!
//! There is a way to publish for each need, and all of them write the same entries:
//!
//! | to | use | it costs | after a lost answer |
//! |---|---|---|---|
//! | publish from many threads | [`Publisher`] | one round trip, over a connection they share | unknown |
//! | publish with the least latency | [`DedicatedPublisher`] | one round trip, over a connection of its own | unknown |
//! | publish many at once | [`publish_batch`](Publisher::publish_batch) | one round trip per 512 | unknown, message by message |
//! | never wait for a server | [`BufferedPublisher`] | a copy in memory, lost with the process | counted as unknown, never sent again |
//! | publish again without fear | [`Draft::dedupe`] | one round trip and a marker | publish it again |
//! | publish later | [`Draft::deliver_after`], [`Draft::deliver_at`] | one round trip, and memory of the server until then | unknown; with a dedupe id publish it again |
//! | change state and tell of it, both or neither | [`Outbox`] | two round trips | unknown as a whole: look at the state |
//! | keep what happened as the state | [`StateStore`] | two round trips | append again with the same version |
//! | pass messages on into another topic, each once | [`Forwarder`] | one round trip and a marker | forward it again |
//!
//! [`publish_json`](Publisher::publish_json) writes a serde value, under a type that is its own
//! ([`MessageType`]) or given ([`As`]). A handler that must not do its work twice
//! [claims](Idempotency::claim) it first. [`Streams::published`] counts what became of every message.
//!
//! A delayed message waits on the server and is published when it is due on the *server's* clock, never
//! before, by whatever process uses the topic then: one at a time, which a lease of 3 s makes out, on a
//! thread called `delays`. While its sender runs that is within milliseconds; where it died, within some 4 s.
//! [`Publisher::cancel`] withdraws it until then. Its place in its partition is the one it gets when it is
//! published. Where nothing is delayed, this is one short question for each topic about once a second. An
//! ACL user who is to publish what is due needs [a few rights more](DraftDelayed::publish) than one who publishes.
//!
//! # Large bodies
//!
//! With `ClaimCheck` set for a topic, publishing keeps bodies above `PayloadInlineMax` (64 KiB) apart: each is
//! a *payload*, a key of its own with a time to live of `PayloadTtlSeconds` (7 days), written in one step with
//! the entry that refers to it, both or neither. The stream stays small, and whoever reads it decides how
//! many bodies are in memory at a time: as many as `BatchBytes` allows, and one in any case. Handlers notice
//! nothing: they are given the body, from an arena like any other. A consumer understands references whatever
//! its own settings say; services in other languages see an empty body and a field that they do not know.
//!
//! - Nothing deletes a payload but its time. No consumer that is done with it takes it from another, from a
//!   reset or from a retry. Choose `PayloadTtlSeconds` longer than any consumer may lag behind: where messages are kept
//!   by number (`MaxLen`) alone, one may outlive its body.
//! - No handler is ever called without the body. A message whose payload has expired is an error of kind
//!   [`PayloadMissing`](ErrorKind::PayloadMissing): ordinary, as one that is malformed, and under
//!   [`Park`](OnError::Park) a dead letter at once, with the reason `payload-missing`.
//! - A [dead letter](#dead-letters) has the body itself, in its place among the fields: it lasts as long as the
//!   letter does, and is deleted and trimmed with it. A replay keeps it apart again, with all its time before
//!   it. A letter whose body was lost is replayed only when [asked for](DeadLetters::even_without_body).
//! - What retries out of its place ([`Delivery`]) still refers to its payload. What waits for its time
//!   ([`deliver_after`](Draft::deliver_after)) and the events of a [`StateStore`] have their bodies with
//!   them, for they may be kept for longer than payloads live.
//! - A reference is an id and a length, and names no key: the key is made of the prefix and the topic of
//!   who reads. So a forged one can lead to a payload of the same topic, and to nothing else; one in any other form
//!   makes the entry [malformed](Malformed::Reference), and nothing is looked up.
//! - Consumers need the rights to `GETRANGE` and `STRLEN` on `re:x:{topic}:*`, publishers those to run scripts, with
//!   `SET` and `DEL` there.
//!
//! On the wire: the field `b` is there and empty, and the field `x` holds 32 hexadecimal digits in lower case, a
//! blank, and the length of the body as a decimal. The payload is the string under `re:x:{topic}:` and these digits
//! (where `CoLocatePartitions` is false, under `re:x:{stream key}:`). Beside a body that is not empty a field `x`
//! means nothing.
//!
//! # When Redis is away
//!
//! Every lane comes back by itself after any outage, restart, failover or refusal, within 5 s of the
//! server answering. While a server is down, the whole process asks it about once a second, and each
//! partition writes one log line every 30 s. Calls keep to their deadlines meanwhile. A server that has
//! become a replica still answers who only reads: as soon as it refuses one connection a write, all of the
//! consumer's leave it, and look for its successor by name.
//!
//! # Operating it
//!
//! - [`tool`](mod@tool): the program `streamlane`, which looks and mends from outside.
//! - [`metrics`](mod@metrics): everything that is counted and measured, and how to have it collected.
//! - [`Rule`]: what health is judged by, with every threshold.
//! - [`keys`](mod@keys): every key on the server, what it holds and how long it lives.
//! - [`retention_guide`](mod@retention_guide): how long messages are kept, and who may delete them.
//!
//! # Settings
//!
//! [`Settings`] come from a JSON file, the environment (`Streams__Consumers__0__BatchSize=500`) and code;
//! code overrides the environment, which overrides the file. Everything that is wrong is refused at
//! start, all at once, by name and with the fix.
//!
//! # Features
//!
//! | feature | what it adds |
//! |---|---|
//! | `testing` | the module `testing`: private servers, fault tools and the log checker |
//! | `http` | `Streams::serve_http`: metrics and health for Prometheus and for probes |
//! | `cli` | the program `streamlane`, for people on call |
//!
//! # What it does not do (yet)
//!
//! TLS and clusters are not in this version. Settings that would need them are refused rather than
//! ignored.

mod admin;
mod backoff;
mod batch;
mod clock;
mod consume;
mod consumer;
mod error;
mod fence;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod handler;
mod monitor;
mod net;
mod observe;
mod ownership;
mod policy;
mod position;
mod publish;
mod queue;
mod quiet;
mod retention;
mod settings;
mod streams;
mod sync;
#[cfg(feature = "testing")]
pub mod testing;
mod trace;
mod trims;
mod wire;

pub use admin::{
    Admin, ConsumerProgress, DeadLetter, DeadLetterPage, DeadLetters, DeletePreview, DeleteTopic,
    Entries, EntryPage, Follow, GroupDescription, GroupMember, GroupPartition,
    PartitionDescription, PartitionPreview, PartitionProgress, Pending, PendingMessage,
    PendingMessages, PendingOrder, PendingPage, ProgressState, Replay, ReplayTo, Replayed,
    ReplayedAll, Reset, ResetDirection, ResetPreview, ResetTo, Session, StoredEntry, TopicConsumer,
    TopicDescription, TopicPage,
};
pub use admin::{ConsumerInfo, ConsumerKind, Forget, Forgotten, PartitionTrim, TrimTo, TrimTopic};
pub use batch::{Batch, Fields, Json, Message, Messages, OwnedBatch, OwnedMessage, Scratch, Text};
pub use consume::{Gap, GapCause};
pub use consumer::{Consumer, ConsumerBuilder, HasHandler, NoHandler, Stopped};
pub use error::{Error, ErrorKind, Outcome, Result, ServerClass};
pub use handler::{
    Action, BatchHandler, Codec, Failure, HandlerResult, MessageHandler, OrAction, Schema,
    TypedBatchHandler, TypedHandler, typed, typed_batch,
};
pub use monitor::LaneState;
pub use net::ServerTrouble;
#[cfg(feature = "http")]
pub use observe::HttpServer;
pub use observe::{
    Grade, Health, HealthContext, HealthData, Instrument, InstrumentKind, Metrics, PartitionStatus,
    Reason, Rule, Sample, Silence, Status, Value, evaluate, find_silent, grade,
};
pub use ownership::{Member, Ownership, Standing};
pub use position::Snapshot;
pub use publish::{
    Append, Argument, As, BufferedPublisher, Claim, Closed, Command, Commit, Committed, Completion,
    Condition, DedicatedPublisher, Delayed, Draft, DraftDelayed, DraftOnce, Flushed, Forwarder,
    Forwarding, Idempotency, MessageType, Outbox, Outgoing, PartlyFailed, PublishStatus, Published,
    Publisher, Receipt, Reply, Sight, Source, StateEvent, StateStore, Transaction, Undelivered,
};
pub use retention::PartitionSweep;
#[doc(hidden)]
pub use settings::settings_table;
pub use settings::{
    AckDelete, ConnectionString, ConsumerSettings, Delivery, Instances, OnError, Persist,
    PositionAhead, ProducerSettings, ReadMode, Secret, Settings, StartFrom, TopicSettings, Trim,
};
pub use streams::Streams;
pub use trace::{Span, SpanEnd, SpanError, SpanHooks, SpanKind, SpanValue};
pub use trims::{TrimReason, Trimmed};
pub use wire::{DeadLetterReason, HeaderIter, Headers, Malformed, StreamId, Traceparent};
#[doc(hidden)]
pub use wire::{keys_of, keys_table};

#[cfg(doc)]
#[doc = include_str!("docs/keys.md")]
pub mod keys {}

#[cfg(doc)]
#[doc = include_str!("docs/performance.md")]
pub mod performance {}

#[cfg(doc)]
#[doc = include_str!("docs/retention.md")]
pub mod retention_guide {}

#[cfg(doc)]
#[doc = include_str!("docs/tool.md")]
pub mod tool {}

#[cfg(doc)]
#[doc = include_str!("docs/metrics.md")]
pub mod metrics {}

/// The blocks of the README are compiled with the tests, where the feature is on that one of them shows.
#[cfg(all(doctest, feature = "http"))]
#[doc = include_str!("../README.md")]
struct Readme;
