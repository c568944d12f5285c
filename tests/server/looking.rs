//! Looking at entries, at what is pending and at groups: page by page, and never at the server's expense.
#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use streamlane::{
    testing::{self, PrivateServer},
    *,
};

use crate::{queues::as_pod, support::*};

const MILLION: u64 = 1_000_000;
const MS: u64 = 1_700_000_000_000;

fn text(server: &PrivateServer, command: &[&str]) -> String {
    server.command(command).unwrap().text()
}

fn int(server: &PrivateServer, command: &[&str]) -> u64 {
    let n = server.command(command).unwrap().int().unwrap();
    n.cast_unsigned()
}

/// Adds entries with the ids `<MS + n>-0`, without waiting for each.
fn add_many(server: &PrivateServer, key: &str, range: std::ops::Range<u64>) {
    let mut client = server.client().unwrap();
    let mut at = range.start;
    while at < range.end {
        let end = (at + 10_000).min(range.end);
        let mut bytes = String::new();
        for n in at..end {
            let id = format!("{}-0", MS + n);
            let _ = write!(
                bytes,
                "*9\r\n$4\r\nXADD\r\n${}\r\n{key}\r\n${}\r\n{id}\r\n$1\r\nb\r\n$1\r\nx\r\n$1\r\nt\r\n$1\r\nT\r\n$1\r\nk\r\n$1\r\ny\r\n",
                key.len(),
                id.len()
            );
        }
        client.send_bytes(bytes.as_bytes()).unwrap();
        for _ in at..end {
            client.receive().unwrap();
        }
        at = end;
    }
}

fn id(n: u64) -> StreamId {
    StreamId::new(MS + n, 0)
}

fn made(server: &PrivateServer, topic: &str, partitions: u32) -> Admin {
    let admin = Streams::connect(server.url()).unwrap().admin();
    let settings = TopicSettings::default().partitions(partitions);
    admin.create(topic, settings).unwrap();
    admin
}

/// Gives entries to members of a group of another implementation.
fn give(server: &PrivateServer, key: &str, group: &str, member: &str, n: u64) {
    let (n, count) = (n.to_string(), "COUNT");
    server
        .command(&[
            "XREADGROUP",
            "GROUP",
            group,
            member,
            count,
            &n,
            "STREAMS",
            key,
            ">",
        ])
        .unwrap();
}

#[test]
fn a_partition_is_read_page_by_page_in_both_directions() {
    let server = server();
    let admin = made(&server, "paged", 2);
    add_many(&server, "re:s:{paged}:1", 0..250);
    for newest_first in [false, true] {
        let mut entries = admin.entries("paged", 1);
        if newest_first {
            entries = entries.newest_first();
        }
        let (mut seen, mut from, mut pages) = (Vec::new(), None, 0);
        loop {
            let page = entries.page(from, 60).unwrap();
            assert!(page.entries.len() <= 60);
            seen.extend(page.entries.iter().map(|e| e.id));
            pages += 1;
            from = page.next;
            if from.is_none() {
                break;
            }
        }
        let mut expected: Vec<_> = (0..250).map(id).collect();
        if newest_first {
            expected.reverse();
        }
        assert_eq!((seen, pages), (expected, 5));
        let some = entries.since(id(10)).until(id(19));
        let page = some.page(None, 4).unwrap();
        let ids: Vec<_> = page.entries.iter().map(|e| e.id).collect();
        let (expected, next) = if newest_first {
            ([19, 18, 17, 16], id(15))
        } else {
            ([10, 11, 12, 13], id(14))
        };
        assert_eq!(ids, expected.map(id));
        let rest = some.page(page.next, 100).unwrap();
        assert_eq!(rest.entries.len(), 6);
        if !newest_first {
            assert_eq!(rest.entries[0].id, next);
        }
        assert_eq!(rest.next, None);
    }
    let none = admin.entries("paged", 0).page(None, 10).unwrap();
    assert_eq!((none.entries.len(), none.next), (0, None));
    let e = admin.entries("paged", 2).page(None, 1).unwrap_err();
    assert!(e.to_string().contains("no partition 2"), "{e}");
    let e = admin.entries("paged-never", 0).page(None, 1).unwrap_err();
    assert!(e.to_string().contains("never been created"), "{e}");
}

#[test]
fn one_entry_is_told_and_the_newest_of_all_partitions_are_merged() {
    let server = server();
    let streams = open(&server.url(), "told", 3);
    let publisher = streams.publisher("told").unwrap();
    let stored = publisher
        .message("OrderPlaced", "{}")
        .key("k-1")
        .header("source", "web")
        .partition(2)
        .publish()
        .unwrap();
    let admin = streams.admin();
    let entry = admin.entry("told", 2, stored).unwrap().unwrap();
    assert_eq!((entry.id, entry.partition), (stored, 2));
    assert_eq!(entry.message_type(), Some(&b"OrderPlaced"[..]));
    assert_eq!(entry.key(), Some(&b"k-1"[..]));
    assert_eq!(entry.headers().get("source"), Ok(Some(&b"web"[..])));
    let lines = entry.to_string();
    for line in [
        "type      OrderPlaced",
        "key       k-1",
        "headers   1  source=web",
        "body      2 bytes",
        "          7b7d",
    ] {
        assert!(lines.lines().any(|l| l == line), "{line} in\n{lines}");
    }
    assert_eq!(admin.entry("told", 2, stored.next()).unwrap(), None);
    assert_eq!(admin.entry("told", 1, stored).unwrap(), None);

    // ids that were never given yet, spread over partitions
    let far = stored.ms() + 1_000_000;
    for n in 0..90 {
        let key = format!("re:s:{{told}}:{}", n % 3);
        let id = format!("{}-0", far + n);
        server.command(&["XADD", &key, &id, "b", ""]).unwrap();
    }
    let recent = admin.recent("told", 40).unwrap();
    let ids: Vec<_> = recent.iter().map(|e| e.id.ms() - far).collect();
    assert_eq!(ids, (50..90).rev().collect::<Vec<_>>());
    assert!(
        recent
            .iter()
            .all(|e| u64::from(e.partition) == (e.id.ms() - far) % 3)
    );
    assert!(recent[0].to_string().contains("UNDECODABLE"));
    assert_eq!(admin.recent("told", 1000).unwrap().len(), 91);
}

#[test]
fn large_entries_come_in_small_pages() {
    let server = server();
    let streams = open(&server.url(), "bulky", 1);
    let publisher = streams.publisher("bulky").unwrap();
    for n in 0..30_u8 {
        publisher.publish("k", "T", vec![n; 1 << 20]).unwrap();
    }
    let entries = streams.admin().entries("bulky", 0);
    let (mut n, mut from) = (0, None);
    loop {
        let page = entries.page(from, 1000).unwrap();
        let bytes: usize = page
            .entries
            .iter()
            .filter_map(|e| e.body())
            .map(<[u8]>::len)
            .sum();
        assert!(bytes <= 33 << 20, "{bytes}");
        n += page.entries.len();
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    assert_eq!(n, 30);
}

#[test]
fn what_is_pending_is_found_by_partition_member_and_idle_time() {
    let server = server();
    let admin = made(&server, "stuck", 2);
    let key = |p: u32| format!("re:s:{{stuck}}:{p}");
    let none = admin.pending("stuck", "g");
    assert_eq!(none.page(None, 10).unwrap().messages, []);
    assert_eq!(none.count().unwrap(), 0);
    assert_eq!(admin.group("stuck", "g").unwrap(), None);
    for p in 0..2 {
        add_many(&server, &key(p), 0..1300);
        server
            .command(&["XGROUP", "CREATE", &key(p), "g", "0"])
            .unwrap();
    }
    give(&server, &key(0), "g", "a", 700);
    give(&server, &key(0), "g", "b", 500);
    give(&server, &key(1), "g", "b", 100);
    // long ago, and often
    let old = (MS + 3).to_string() + "-0";
    server
        .command(&[
            "XCLAIM",
            &key(0),
            "g",
            "a",
            "0",
            &old,
            "IDLE",
            "3600000",
            "RETRYCOUNT",
            "9",
        ])
        .unwrap();

    let all = admin.pending("stuck", "g");
    let (mut seen, mut from) = (Vec::new(), None);
    loop {
        let page = all.page(from, 450).unwrap();
        assert!(page.messages.len() == 450 || page.next.is_none());
        seen.extend(page.messages.into_iter().map(|m| (m.partition, m.id)));
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    let first = (0..1200).map(|n| (0, id(n)));
    let expected: Vec<_> = first.chain((0..100).map(|n| (1, id(n)))).collect();
    assert_eq!(seen, expected);
    assert_eq!(all.count().unwrap(), 1300);

    let of_b = all.clone().member("b");
    let page = of_b.page(None, 10_000).unwrap();
    assert_eq!(page.messages.len(), 600);
    assert!(page.messages.iter().all(|m| m.member == "b"));
    let there = of_b.partition(1);
    assert_eq!(there.page(None, 10_000).unwrap().messages.len(), 100);
    assert_eq!(there.count().unwrap(), 100);
    let idle = all.clone().min_idle(Duration::from_mins(30));
    let page = idle.page(None, 10).unwrap();
    assert_eq!((page.messages.len(), page.next), (1, None));
    let m = &page.messages[0];
    assert_eq!((m.id, m.deliveries, &*m.member), (id(3), 9, "a"));
    assert!(m.idle >= Duration::from_hours(1));
    let mut page = all.page(None, 10).unwrap();
    page.sort_by(PendingOrder::Idle);
    assert_eq!(page.messages[0].id, id(3));
    page.sort_by(PendingOrder::Id);
    assert_eq!(page.messages[0].id, id(0));
    let e = all.partition(7).page(None, 1).unwrap_err();
    assert!(e.to_string().contains("no partition 7"), "{e}");

    let g = admin.group("stuck", "g").unwrap().unwrap();
    assert_eq!((g.partitions.len(), g.pending()), (2, 1300));
    let p = &g.partitions[0];
    assert_eq!(p.delivered, Some(id(1199)));
    assert_eq!((p.unread, p.unread_exact, p.pending), (100, true, 1200));
    assert_eq!(p.oldest.as_ref().map(|m| m.id), Some(id(0)));
    assert_eq!(p.members, 2);
    assert_eq!(g.partitions[1].unread, 1200);
    let members = g.members.unwrap();
    let of: Vec<_> = members.iter().map(|m| (&*m.name, m.pending)).collect();
    assert_eq!(of, [("a", 700), ("b", 600)]);
    // What the server says of what is unread is wrong where entries were deleted.
    let ids: Vec<_> = (1250..1300).map(|n| id(n).to_string()).collect();
    let key = key(0);
    let mut delete = vec!["XDEL", &key];
    delete.extend(ids.iter().map(String::as_str));
    server.command(&delete).unwrap();
    let g = admin.group("stuck", "g").unwrap().unwrap();
    assert_eq!(g.partitions[0].unread, 50);
}

#[test]
fn the_retries_of_a_queue_are_among_what_it_has() {
    let server = server();
    let streams = as_pod(&server, "retrying", 1, "svc-0");
    let (entered, seen) = (Seen::default(), Seen::default());
    let (enter, leave) = (entered.clone(), seen.clone());
    let gate = Arc::new(AtomicBool::new(false));
    let open = Arc::clone(&gate);
    let consumer = streams
        .consumer("retrying")
        .name("c")
        .delivery(Delivery::WorkQueue)
        .block(Duration::from_millis(100))
        .retry(3)
        .retry_pauses(Duration::from_millis(50), Duration::from_millis(50))
        .shared(move |m: &Message<'_>| -> HandlerResult {
            enter.push(m.attempt());
            match (m.body(), m.attempt()) {
                (b"0", 1) => Err("again")?,
                (b"1", 1) => Err("in an hour").or_retry_after(Duration::from_hours(1))?,
                (b"0", _) => {
                    while !open.load(Relaxed) {
                        thread::sleep(Duration::from_millis(5));
                    }
                }
                _ => {}
            }
            leave.push(());
            Ok(())
        })
        .start()
        .unwrap();
    publish(&streams, "retrying", 0..2);
    entered.wait_for(3);
    let admin = streams.admin();
    let page = admin.pending("retrying", "c").page(None, 10).unwrap();
    let of: BTreeSet<_> = page.messages.iter().map(|m| m.partition).collect();
    assert!(of.contains(&PartitionStatus::RETRIES), "{page:?}");
    assert!(page.messages.iter().all(|m| m.member.starts_with("svc-0#")));
    let g = admin.group("retrying", "c").unwrap().unwrap();
    let last = g.partitions.last().unwrap();
    assert_eq!(
        (last.partition, last.pending),
        (PartitionStatus::RETRIES, 1)
    );
    assert_eq!((g.waiting, g.dead_letters), (1, 0));
    gate.store(true, Relaxed);
    seen.wait_for(1);
    consumer.stop();
}

/// Looks at all there is about a topic of a million entries, and deletes another one.
fn look_at_a_million(admin: &Admin) {
    let d = admin.describe("million").unwrap().unwrap();
    assert_eq!((d.entries(), d.partitions[0].groups), (MILLION, 1));
    let g = admin.group("million", "g").unwrap().unwrap();
    let p = &g.partitions[0];
    assert_eq!((p.pending, p.unread_exact), (100_000, false));
    assert!(p.unread >= 10_000);
    let pending = admin.pending("million", "g");
    assert_eq!(pending.count().unwrap(), 100_000);
    assert_eq!(pending.page(None, 10_000).unwrap().messages.len(), 10_000);
    let nothing = pending.clone().min_idle(Duration::from_hours(10));
    let page = nothing.page(None, 10).unwrap();
    assert_eq!(page.messages, []);
    assert_eq!(pending.member("x").page(None, 10).unwrap().messages, []);
    assert_eq!(admin.recent("million", 1000).unwrap().len(), 1000);
    let middle = admin.entries("million", 0).since(id(MILLION / 2));
    for entries in [middle.clone(), middle.newest_first()] {
        let page = entries.page(None, 10_000).unwrap();
        assert_eq!(page.entries.len(), 10_000);
    }
    assert!(admin.entry("million", 0, id(700_000)).unwrap().is_some());
    let reset = admin.reset("million", "o", ResetTo::Id(id(MILLION / 2)));
    let preview = reset.preview().unwrap();
    let p = &preview.partitions[0];
    assert!(p.entries >= 250_000 && !p.exact, "{preview}");
    admin.adopt().unwrap();
    admin.grow("million", 0).unwrap_err();
    let delete = admin.delete("short-lived").force();
    assert_eq!(delete.preview().unwrap().entries, MILLION);
    delete.apply().unwrap();
}

/// Whatever is looked at, the server is never held up.
#[test]
fn r83_a_million_entries_are_looked_at_without_holding_anybody_up() {
    let server = server();
    let admin = made(&server, "million", 1);
    let key = "re:s:{million}:0";
    add_many(&server, key, 0..MILLION);
    assert_eq!(int(&server, &["XLEN", key]), MILLION);
    server
        .command(&["XGROUP", "CREATE", key, "g", "0"])
        .unwrap();
    for _ in 0..20 {
        give(&server, key, "g", "m", 5000);
    }
    // and keys of others
    server
        .command(&["DEBUG", "POPULATE", "200000", "re:x:{other}:"])
        .unwrap();
    let slow = ["CONFIG", "SET", "slowlog-log-slower-than", "50000"];
    assert_eq!(text(&server, &slow), "OK");
    // The server counts the time that the machine gave to others, too: what is slow is so every time.
    let mut always: Option<BTreeSet<String>> = None;
    for _ in 0..4 {
        made(&server, "short-lived", 1);
        let copy = ["COPY", key, "re:s:{short-lived}:0", "REPLACE"];
        assert_eq!(int(&server, &copy), 1);
        text(&server, &["SLOWLOG", "RESET"]);
        look_at_a_million(&admin);
        let log = server.command(&["SLOWLOG", "GET", "100"]).unwrap();
        let command = |entry: &testing::Reply| {
            let args = entry.items()[3].items().iter();
            args.map(testing::Reply::text).collect::<Vec<_>>().join(" ")
        };
        let slow: BTreeSet<_> = log.items().iter().map(command).collect();
        let before = always.take().unwrap_or_else(|| slow.clone());
        let still: BTreeSet<_> = before.intersection(&slow).cloned().collect();
        if still.is_empty() {
            return;
        }
        always = Some(still);
    }
    panic!("slow every time: {always:?}");
}
