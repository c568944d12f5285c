//! The machine: which core runs what, what time it is, and who used how much of it.

use std::{fs, num::NonZeroU64, str::FromStr};

use rustix::{
    thread::{CpuSet, clock_nanosleep_absolute, sched_getaffinity, sched_setaffinity},
    time::{ClockId, Timespec, clock_gettime},
};

use crate::Outcome;

/// Who shares a core with whom.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cores {
    /// Server and client are together on one.
    One,
    /// Each has one.
    Each,
    /// Server and client are together on two.
    Two,
}

impl FromStr for Cores {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "1" => Ok(Self::One),
            "1+1" => Ok(Self::Each),
            "2" => Ok(Self::Two),
            _ => Err("the cores are 1, 1+1 or 2"),
        }
    }
}

/// The cores of server and client. Threads and processes inherit what their maker has.
pub(crate) struct Placement {
    server: Vec<usize>,
    client: Vec<usize>,
    /// How many there are to choose from.
    of: u32,
}

impl Placement {
    pub(crate) fn new(cores: Cores) -> Outcome<Self> {
        let allowed = sched_getaffinity(None)?;
        let mut usable = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
        let first = usable.next().ok_or("no core to run on")?;
        let mut second = || usable.next().ok_or("there is only one core");
        let (server, client) = match cores {
            Cores::One => (vec![first], vec![first]),
            Cores::Each => (vec![first], vec![second()?]),
            Cores::Two => {
                let both = vec![first, second()?];
                (both.clone(), both)
            }
        };
        Ok(Self {
            server,
            client,
            of: allowed.count(),
        })
    }

    pub(crate) fn for_server(&self) -> Outcome<()> {
        pin(&self.server)
    }

    pub(crate) fn for_client(&self) -> Outcome<()> {
        pin(&self.client)
    }
}

fn pin(cpus: &[usize]) -> Outcome<()> {
    let mut set = CpuSet::new();
    for cpu in cpus {
        set.set(*cpu);
    }
    Ok(sched_setaffinity(None, &set)?)
}

/// One moment: the time, and the CPU time used so far by this process and by the server, in nanoseconds.
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    pub(crate) at: u64,
    pub(crate) client: u64,
    pub(crate) server: u64,
}

impl Mark {
    pub(crate) fn now(server_pid: u32) -> Self {
        Self {
            server: used_by(server_pid),
            client: nanos(clock_gettime(ClockId::ProcessCPUTime)),
            at: now_ns(),
        }
    }
}

/// Nanoseconds on the monotonic clock.
pub(crate) fn now_ns() -> u64 {
    nanos(clock_gettime(ClockId::Monotonic))
}

/// Sleeps to a moment of [`now_ns`].
pub(crate) fn sleep_until(at_ns: u64) {
    let at = Timespec {
        tv_sec: (at_ns / 1_000_000_000).cast_signed(),
        tv_nsec: (at_ns % 1_000_000_000).cast_signed(),
    };
    // a signal only makes it too short
    let _ = clock_nanosleep_absolute(ClockId::Monotonic, &at);
}

/// Lets this thread wake up at the moment it asks for, not some 50 µs later.
pub(crate) fn wake_on_time() {
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}

fn nanos(t: Timespec) -> u64 {
    t.tv_sec.cast_unsigned() * 1_000_000_000 + t.tv_nsec.cast_unsigned()
}

/// CPU time of all threads of a process; what cannot be read counts nothing.
fn used_by(pid: u32) -> u64 {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return 0;
    };
    let used = |task: fs::DirEntry| -> Option<u64> {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse().ok()
    };
    tasks.flatten().filter_map(used).sum()
}

/// What figures depend on.
pub(crate) fn conditions(rounds: usize, placement: &Placement) -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = info
        .lines()
        .find_map(|l| l.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown", |(_, name)| name);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    format!(
        "machine: {cpu}, {} cores, Linux {}, load {}\n\
         server on {:?}, client on {:?} of the cores; {rounds} rounds; figures: median [min-max]",
        placement.of,
        kernel.trim(),
        load.split(' ').next().unwrap_or("?"),
        placement.server,
        placement.client,
    )
}
