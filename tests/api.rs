//! What users build upon without ever reading it: which types cross threads, which traits can be boxed,
//! how large a result is, which enums may grow.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

use std::{
    collections::BTreeSet,
    error::Error as StdError,
    fmt::{Debug, Display},
    fs,
    hash::Hash,
    mem::size_of,
    path::Path,
};

use streamlane::*;

fn send_and_sync<T: Send + Sync>() {}
fn send<T: Send>() {}
fn sendable(_: impl Send) {}
fn is_error<T: StdError + Send + Sync + 'static>() {}
fn shown<T: Display + Debug>() {}
fn owned<T: Send + Sync + Clone + Debug + 'static>() {}
fn small<T: Copy + Eq + Hash + Debug + Send + Sync + 'static>() {}

/// That this compiles is the proof.
#[test]
fn types_cross_threads() {
    owned::<Streams>();
    owned::<Publisher>();
    owned::<BufferedPublisher>();
    owned::<Outbox>();
    owned::<StateStore>();
    owned::<Append>();
    owned::<StateEvent>();
    owned::<Command>();
    owned::<Commit>();
    owned::<Reply>();
    owned::<PartlyFailed>();
    owned::<Settings>();
    owned::<ConsumerSettings>();
    owned::<TopicSettings>();
    owned::<ProducerSettings>();
    owned::<ConnectionString>();
    owned::<Secret>();
    owned::<OwnedMessage>();
    owned::<OwnedBatch>();
    owned::<Outgoing<'static>>();
    owned::<Published>();
    owned::<Delayed>();
    owned::<Idempotency>();
    owned::<Forwarder>();
    owned::<Forwarding>();
    owned::<Source<'static>>();
    owned::<Stopped>();
    owned::<PartitionStatus>();
    owned::<Health>();
    owned::<Snapshot>();
    owned::<Gap>();
    owned::<Admin>();
    owned::<Reset>();
    owned::<ResetTo>();
    owned::<ResetPreview>();
    owned::<PartitionPreview>();
    owned::<Headers<'static>>();
    owned::<HeaderIter<'static>>();
    owned::<Fields<'static>>();
    owned::<Text<'static>>();
    owned::<Malformed>();

    send_and_sync::<Consumer>();
    send_and_sync::<DedicatedPublisher>();
    send_and_sync::<Receipt>();
    send_and_sync::<Flushed>();
    send_and_sync::<Closed>();
    send_and_sync::<Undelivered>();
    send_and_sync::<Error>();
    send_and_sync::<Failure>();
    send_and_sync::<Scratch>();
    owned::<Json>();
    owned::<As<'static, str>>();
    send_and_sync::<HasHandler>();
    send_and_sync::<NoHandler>();
    send_and_sync::<Message<'static>>();
    send::<ConsumerBuilder>();
    send::<ConsumerBuilder<HasHandler>>();
    send_and_sync::<Condition>();
    send_and_sync::<Transaction<'static>>();
    send::<Draft<'static, &Publisher>>();
    send::<Draft<'static, &mut DedicatedPublisher>>();
    send::<DraftOnce<'static, &Publisher>>();
    send::<DraftDelayed<'static, &Publisher>>();
    send_and_sync::<Claim>();

    small::<StreamId>();
    small::<Published>();
    small::<ErrorKind>();
    small::<Outcome>();
    small::<ServerClass>();
    small::<LaneState>();
    small::<GapCause>();
}

/// A batch counts what is done without a lock, so two threads must not share one.
#[test]
fn a_batch_stays_on_its_lane() {
    trait Ambiguous<Marker> {
        fn holds() -> bool {
            true
        }
    }
    struct IfSync;
    impl<T: ?Sized> Ambiguous<()> for T {}
    impl<T: ?Sized + Sync> Ambiguous<IfSync> for T {}
    // If `Batch` were `Sync` there would be two candidates, and this would not compile.
    assert!(<Batch<'static> as Ambiguous<_>>::holds());
}

struct Handles;

impl BatchHandler for Handles {
    fn handle(&mut self, _: &Batch<'_>) -> HandlerResult {
        Ok(())
    }
}

impl MessageHandler for Handles {
    fn handle(&mut self, _: &Message<'_>) -> HandlerResult {
        Ok(())
    }
}

#[test]
fn handlers_can_be_chosen_at_run_time() {
    let batches: [Box<dyn BatchHandler>; 2] = [Box::new(Handles), Box::new(|_: &Batch<'_>| Ok(()))];
    let messages: [Box<dyn MessageHandler>; 2] =
        [Box::new(Handles), Box::new(|_: &Message<'_>| Ok(()))];
    sendable(batches);
    sendable(messages);
    let typed = typed::<u64Of>(|n: u64, _: &Message<'_>| {
        assert!(n > 0);
        Ok(())
    });
    sendable(typed);
    sendable(typed_batch::<u64Of>(|n, batch| {
        assert_eq!(n.len(), batch.len());
        Ok(())
    }));
}

#[allow(non_camel_case_types)]
struct u64Of;

impl Schema for u64Of {
    type Of<'a> = u64;
}

#[test]
fn results_are_small() {
    // An error is one pointer, so that the usual case carries nothing for it.
    assert_eq!(size_of::<Error>(), size_of::<usize>());
    assert_eq!(size_of::<Option<Error>>(), size_of::<usize>());
    assert_eq!(size_of::<Result<()>>(), size_of::<usize>());
    assert_eq!(size_of::<StreamId>(), 16);
    assert!(size_of::<Result<StreamId>>() <= 24);
    assert!(size_of::<Message<'_>>() <= 4 * size_of::<usize>());
}

#[test]
fn errors_are_errors() {
    is_error::<Error>();
    is_error::<Malformed>();
    shown::<Error>();
    shown::<Failure>();
    shown::<StreamId>();
    shown::<ResetPreview>();
    shown::<Text<'static>>();
    let no_id = "no id".parse::<StreamId>().or_block();
    assert_eq!(no_id.unwrap_err().action(), Some(Action::Block));
}

/// These are complete by their meaning, and matching all of one is what they are for.
const CLOSED: [&str; 7] = [
    "Append",
    "Commit",
    "Completion",
    "Forwarding",
    "Outcome",
    "Sight",
    "Status",
];

/// All other enums that users match on may grow without breaking them.
#[test]
fn enums_may_grow() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let root = fs::read_to_string(src.join("lib.rs")).unwrap();
    let exports: BTreeSet<&str> = root
        .lines()
        .filter(|l| !l.starts_with("//!"))
        .flat_map(|l| l.split(|c: char| !c.is_alphanumeric()))
        .collect();
    let choices = fs::read_to_string(src.join("settings/key.rs")).unwrap();
    assert!(choices.contains("#[non_exhaustive]\n        pub enum $name"));
    let rules = fs::read_to_string(src.join("observe/health.rs")).unwrap();
    assert!(rules.contains("#[non_exhaustive]\n        pub enum $name"));

    let mut seen = BTreeSet::new();
    let mut dirs = vec![src.clone()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                if path != src.join("testing") {
                    dirs.push(path);
                }
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            for (at, found) in text.match_indices("pub enum ") {
                let name = &text[at + found.len()..];
                let name = name.split(|c: char| !c.is_alphanumeric()).next().unwrap();
                if name.is_empty() || !exports.contains(name) {
                    continue;
                }
                let mut above = text[..at].lines().rev().take(5);
                let grows = above
                    .any(|l| ["#[non_exhaustive]", "choices! {", "rules! {"].contains(&l.trim()));
                assert_ne!(
                    grows,
                    CLOSED.contains(&name),
                    "{name} in {}",
                    path.display()
                );
                seen.insert(name.to_owned());
            }
        }
    }
    assert!(seen.len() >= 12, "{seen:?}");
}
