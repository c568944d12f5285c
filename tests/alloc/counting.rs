//! An allocator that counts what each thread asks of it.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    fs,
    sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering::Relaxed},
};

#[global_allocator]
static COUNTING: Counting = Counting;

struct Counting;

/// One thread's allocations and reallocations since it began.
struct Slot {
    thread: AtomicI32,
    calls: AtomicU64,
    bytes: AtomicU64,
}

/// More threads than all paths together start.
const SLOTS: usize = 1024;
static TABLE: [Slot; SLOTS] = [const {
    Slot {
        thread: AtomicI32::new(0),
        calls: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
    }
}; SLOTS];
static USED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static MINE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Counts without allocating. A thread that is past its thread-locals counts nowhere.
fn count(bytes: usize) {
    let _ = MINE.try_with(|mine| {
        let at = mine.get().unwrap_or_else(|| {
            let at = USED.fetch_add(1, Relaxed);
            if let Some(slot) = TABLE.get(at) {
                slot.thread
                    .store(rustix::thread::gettid().as_raw_nonzero().get(), Relaxed);
            }
            mine.set(Some(at));
            at
        });
        if let Some(slot) = TABLE.get(at) {
            slot.calls.fetch_add(1, Relaxed);
            slot.bytes.fetch_add(bytes as u64, Relaxed);
        }
    });
}

// SAFETY: every call is handed to the system's allocator as it came, and its answer back; counting on
// the way touches atomics and a thread-local that has neither initialiser nor destructor, so it
// neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`, which is the same there.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract of `alloc_zeroed`, which is the same there.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: `block` came from the system's allocator by one of the calls here, with this layout.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: `block` came from the system's allocator by one of the calls here, with this layout.
        unsafe { System.dealloc(block, layout) }
    }
}

/// What one live thread has asked for so far.
#[derive(Debug)]
pub struct Count {
    pub name: String,
    thread: i32,
    pub calls: u64,
    pub bytes: u64,
}

/// The counts of all live threads whose name begins with one of these.
pub fn sample(names: &[&str]) -> Vec<Count> {
    assert!(USED.load(Relaxed) < SLOTS, "more threads than slots");
    let mut found = Vec::new();
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap();
        let thread: i32 = task.file_name().to_str().unwrap().parse().unwrap();
        // A thread may end while we look.
        let Ok(name) = fs::read_to_string(task.path().join("comm")) else {
            continue;
        };
        let name = name.trim().to_owned();
        if names.iter().any(|n| name.starts_with(n)) {
            // Numbers are used again: the newest slot is the live thread's.
            let slot = TABLE.iter().rfind(|s| s.thread.load(Relaxed) == thread);
            let of = |n: fn(&Slot) -> &AtomicU64| slot.map_or(0, |s| n(s).load(Relaxed));
            found.push(Count {
                name,
                thread,
                calls: of(|s| &s.calls),
                bytes: of(|s| &s.bytes),
            });
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// What happened between two samples of the same threads.
pub fn between(before: &[Count], after: Vec<Count>) -> Vec<Count> {
    let threads = |all: &[Count]| all.iter().map(|c| c.thread).collect::<Vec<_>>();
    assert_eq!(threads(before), threads(&after), "the threads changed");
    let mut grown = after;
    for (c, b) in grown.iter_mut().zip(before) {
        c.calls -= b.calls;
        c.bytes -= b.bytes;
    }
    grown
}
