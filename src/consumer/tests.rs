//! Lanes that come and go while their siblings run.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use parking_lot::Mutex;

use super::*;
use crate::{
    Message, Persist, Settings, TopicSettings, clock,
    consume::Stored,
    testing::{PrivateServer, eventually},
};

const PATIENCE: Duration = Duration::from_secs(20);

/// A consumer of two partitions, and what it has handled: partition and body.
struct Case {
    server: PrivateServer,
    streams: Streams,
    consumer: Consumer,
    seen: Arc<Mutex<Vec<(u32, String)>>>,
    /// Handlers of partition 1 wait while this is set.
    hold: Arc<AtomicBool>,
}

fn case(persist: Persist) -> Case {
    let server = PrivateServer::start().unwrap();
    let topic = TopicSettings::default().partitions(2).max_len(1_000_000);
    let settings = Settings::default().connection_string(server.url());
    let streams = Streams::open(settings.with_topic("t", topic)).unwrap();
    let seen = Arc::<Mutex<Vec<(u32, String)>>>::default();
    let hold = Arc::new(AtomicBool::new(false));
    let (all, held) = (Arc::clone(&seen), Arc::clone(&hold));
    let consumer = streams.consumer("t").name("c").persist(persist);
    let consumer = if persist.is_sync() {
        consumer
    } else {
        consumer.persist_interval(PATIENCE)
    };
    let consumer = consumer
        .block(PATIENCE) // whatever waits for a read to end shows
        .shared(move |m: &Message<'_>| {
            let body = String::from_utf8_lossy(m.body()).into_owned();
            all.lock().push((m.partition(), body));
            let done = || m.partition() != 1 || !held.load(SeqCst);
            eventually(PATIENCE, done);
            Ok(())
        })
        .start()
        .unwrap();
    Case {
        server,
        streams,
        consumer,
        seen,
        hold,
    }
}

impl Case {
    fn running(&self) -> &Arc<Running> {
        &self.consumer.running
    }

    fn publish(&self, partition: u32, range: Range<u32>) {
        let publisher = self.streams.publisher("t").unwrap();
        for n in range {
            let body = n.to_string();
            let draft = publisher.message("T", &body).partition(partition);
            draft.publish().unwrap();
        }
    }

    fn bodies(&self, partition: u32) -> Vec<String> {
        let seen = self.seen.lock();
        let ours = seen.iter().filter(|(p, _)| *p == partition);
        ours.map(|(_, body)| body.clone()).collect()
    }

    #[track_caller]
    fn handles(&self, partition: u32, n: u32) {
        eventually(PATIENCE, || self.bodies(partition).len() >= n as usize);
        let expected: Vec<_> = (0..n).map(|n| n.to_string()).collect();
        assert_eq!(self.bodies(partition), expected);
    }

    /// What the server has on record.
    fn stored(&self, partition: u32) -> Stored {
        let field = partition.to_string();
        let value = self.server.command(&["HGET", "re:p:{t}:c", &field]);
        let value = value.unwrap().text();
        Stored {
            id: value.split('|').next().unwrap().parse().unwrap(),
            ordinal: None,
        }
    }

    fn partitions(&self) -> Vec<u32> {
        self.consumer
            .partitions()
            .iter()
            .map(|p| p.partition)
            .collect()
    }

    fn stop(&self, partition: u32, within: Duration) -> Left {
        self.running().stop_lane(partition, clock::now() + within)
    }

    fn start(&self, partition: u32) -> Result<()> {
        self.running().start_lane(partition, self.stored(partition))
    }
}

#[test]
fn a_lane_leaves_with_its_position_stored_and_comes_back_there() {
    for persist in [
        Persist::AsyncBatch,
        Persist::SyncBatch,
        Persist::SyncMessage,
    ] {
        let case = case(persist);
        for p in 0..2 {
            case.publish(p, 0..10);
            case.handles(p, 10);
        }
        let begun = clock::now();
        assert_eq!(case.stop(1, PATIENCE), Left::Gone);
        assert!(begun.elapsed() < PATIENCE / 2, "it waited for something");
        assert_eq!(case.partitions(), [0]);
        assert_eq!(case.consumer.position(1), None);
        let table = &case.running().table;
        assert_eq!(case.stored(1).id, table.load(1).id, "{persist:?}");
        assert_eq!(case.stop(1, PATIENCE), Left::Gone, "it is not here");

        for p in 0..2 {
            case.publish(p, 10..20);
        }
        case.handles(0, 20);
        case.handles(1, 10);
        case.start(1).unwrap();
        case.handles(1, 20);
        assert_eq!(case.start(1).unwrap_err().kind(), ErrorKind::Stopped);
        assert_eq!(case.partitions(), [0, 1]);
        let connects = case.consumer.partitions()[0].connects;
        assert_eq!(connects, 1, "the other lane kept its connection");
        let stopped = case.consumer.drain(PATIENCE).unwrap();
        assert_eq!(stopped.unsaved, [] as [u32; 0]);
        assert_eq!(case.stored(1).id, stopped.positions[1]);
        assert_eq!(case.start(1).unwrap_err().kind(), ErrorKind::Stopped);
    }
}

#[test]
fn a_partition_that_was_elsewhere_goes_on_where_it_is_stored() {
    let case = case(Persist::AsyncBatch);
    case.publish(1, 0..5);
    case.handles(1, 5);
    assert_eq!(case.stop(1, PATIENCE), Left::Gone);
    // Somebody else handles the next three, and this table knows nothing of it.
    case.publish(1, 5..8);
    case.publish(1, 5..6);
    let ids = case.server.command(&["XRANGE", "re:s:{t}:1", "-", "+"]);
    let id = ids.unwrap().items()[7].items()[0].text();
    let theirs: StreamId = id.parse().unwrap();
    let set = ["HSET", "re:p:{t}:c", "1", &id];
    case.server.command(&set).unwrap();
    case.start(1).unwrap();
    case.handles(1, 6);
    assert_eq!(case.stop(1, PATIENCE), Left::Gone);
    assert!(case.stored(1).id > theirs);
}

#[test]
fn a_lane_that_does_not_end_in_time_is_told_of_and_leaves_later() {
    let case = case(Persist::AsyncBatch);
    case.hold.store(true, SeqCst);
    case.publish(1, 0..2);
    case.handles(1, 1);
    assert_eq!(case.stop(1, Duration::from_millis(50)), Left::StillRunning);
    assert_eq!(case.partitions(), [0, 1], "it is not gone");
    let e = case.running().start_lane(1, Stored::default());
    assert_eq!(e.unwrap_err().kind(), ErrorKind::Stopped);
    case.hold.store(false, SeqCst);
    assert!(eventually(PATIENCE, || case.partitions() == [0]));
    assert_eq!(case.stop(1, PATIENCE), Left::Gone);
    case.start(1).unwrap();
    case.handles(1, 2);
}

#[test]
fn a_position_that_cannot_be_stored_is_told_of_and_stored_later() {
    let case = case(Persist::AsyncBatch);
    case.publish(1, 0..3);
    case.handles(1, 3);
    let key = "re:p:{t}:c";
    case.server.command(&["RENAME", key, "aside"]).unwrap();
    case.server.command(&["SET", key, "no hash"]).unwrap();
    assert_eq!(case.stop(1, Duration::from_millis(200)), Left::Unstored);
    assert_eq!(case.partitions(), [0]);
    case.server.command(&["DEL", key]).unwrap();
    assert_eq!(case.stop(1, PATIENCE), Left::Gone);
    assert_eq!(case.stored(1).id, case.running().table.load(1).id);
}

#[test]
fn lanes_that_come_to_a_paused_consumer_are_paused() {
    let case = case(Persist::AsyncBatch);
    assert_eq!(case.stop(1, PATIENCE), Left::Gone);
    assert!(!case.consumer.pause_partition(1), "it is not here");
    case.consumer.pause();
    case.start(1).unwrap();
    // and one that nobody has heard of before
    case.running().start_lane(40, Stored::default()).unwrap();
    let paused = || {
        let all = case.consumer.partitions();
        all.iter().all(|p| p.state == LaneState::Paused) && all.len() == 3
    };
    // the first lane was reading before; the others never did
    let held = || {
        case.running()
            .lanes
            .all()
            .iter()
            .all(|l| l.seat.interrupt.bits() & PAUSE != 0)
    };
    assert!(held() && !paused());
    case.publish(1, 0..1);
    assert!(!eventually(Duration::from_millis(50), || !case
        .bodies(1)
        .is_empty()));
    case.consumer.resume();
    case.handles(1, 1);
    let position = case.consumer.position(40);
    assert_eq!(position.map(|p| p.id), Some(StreamId::MIN));
}

#[test]
fn nothing_is_left_behind_by_lanes_that_come_and_go() {
    let case = case(Persist::AsyncBatch);
    case.publish(1, 0..30);
    case.handles(1, 30);
    for _ in 0..50 {
        assert_eq!(case.stop(1, PATIENCE), Left::Gone);
        case.start(1).unwrap();
    }
    let threads = case.running().threads.lock().len();
    assert!(threads <= 5, "{threads}");
    let totals = case.running().lanes.totals();
    assert_eq!(totals.handled, 30);
    let _ = case.consumer.stop();
    let clients = || {
        let list = case.server.command(&["CLIENT", "LIST"]).unwrap().text();
        list.matches("streams-rd").count()
    };
    assert!(eventually(PATIENCE, || clients() == 0));
}
