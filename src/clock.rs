//! The only place that reads clocks. Four of them, never compared with one another: the wall clock
//! (for people and for ids), the monotonic clock (for deadlines and ladders), its coarse twin
//! (a few nanoseconds to read, a few milliseconds wide; for watching), and the one that goes on while the
//! machine is suspended (for leases).

use std::{
    fmt,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use jiff::{Timestamp, tz::Offset};
#[cfg(not(loom))]
use rustix::time::{ClockId, clock_gettime};

/// Now, on the monotonic clock.
#[cfg(not(loom))]
#[allow(clippy::disallowed_methods)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// In models time stands still, for each of their runs has to go as the one before.
#[cfg(loom)]
#[allow(clippy::disallowed_methods)]
pub(crate) fn now() -> Instant {
    static STILL: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    *STILL
}

/// Milliseconds since some fixed moment, on the coarse monotonic clock.
#[cfg(not(loom))]
pub(crate) fn coarse_ms() -> u64 {
    let t = clock_gettime(ClockId::MonotonicCoarse);
    t.tv_sec.cast_unsigned() * 1000 + t.tv_nsec.cast_unsigned() / 1_000_000
}

/// Milliseconds since the machine was started, the time it was suspended included.
#[cfg(not(loom))]
pub(crate) fn boot_ms() -> u64 {
    let t = clock_gettime(ClockId::Boottime);
    t.tv_sec.cast_unsigned() * 1000 + t.tv_nsec.cast_unsigned() / 1_000_000
}

/// As [`now`], in models.
#[cfg(loom)]
pub(crate) fn boot_ms() -> u64 {
    coarse_ms()
}

/// As [`now`], in models.
#[cfg(loom)]
pub(crate) fn coarse_ms() -> u64 {
    1 << 32
}

/// Now, on the wall clock.
#[allow(clippy::disallowed_methods)]
pub(crate) fn wall() -> SystemTime {
    SystemTime::now()
}

/// Milliseconds since the Unix epoch; 0 for moments before it.
pub(crate) fn unix_ms(t: SystemTime) -> u64 {
    t.duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_millis() as u64)
}

/// Milliseconds of a duration, rounded up, so that a wait never becomes 0 or too short.
pub(crate) fn ceil_ms(d: Duration) -> u64 {
    let ms = u64::from(d.subsec_nanos().div_ceil(1_000_000));
    d.as_secs().saturating_mul(1000).saturating_add(ms)
}

/// A moment of UTC as peers write it: `2026-11-29T20:21:00.1945215+00:00`, seven digits of a second.
/// Displaying it allocates nothing.
pub(crate) struct RoundTrip(pub(crate) SystemTime);

impl fmt::Display for RoundTrip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let t = Timestamp::try_from(self.0).unwrap_or(Timestamp::UNIX_EPOCH);
        write!(f, "{:.7}+00:00", Offset::UTC.to_datetime(t))
    }
}

/// Reads a moment such as `2026-01-31T08:00:00Z` or `…+02:00`.
pub(crate) fn parse_moment(text: &str) -> Result<SystemTime, String> {
    text.parse::<Timestamp>()
        .and_then(SystemTime::try_from)
        .map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_as_peers_write_them() {
        for text in [
            "2026-11-29T20:21:00.1945215+00:00",
            "1970-01-01T00:00:00.0000000+00:00",
            "2024-02-29T23:59:59.9999999+00:00",
        ] {
            let t = parse_moment(text).unwrap();
            assert_eq!(RoundTrip(t).to_string(), text);
        }
        assert_eq!(
            parse_moment("2026-01-31T10:00:00+02:00").unwrap(),
            parse_moment("2026-01-31T08:00:00Z").unwrap()
        );
        assert!(parse_moment("2026-01-31").is_err());
    }

    #[test]
    fn short_waits_never_round_to_nothing() {
        for (d, ms) in [
            (0, 0),
            (1, 1),
            (999, 1),
            (1000, 1),
            (1001, 2),
            (250_000, 250),
        ] {
            assert_eq!(ceil_ms(Duration::from_micros(d)), ms);
        }
    }

    #[test]
    fn the_coarse_clock_moves() {
        let (fine, coarse) = (now(), coarse_ms());
        while coarse_ms() == coarse {
            assert!(fine.elapsed() < Duration::from_secs(5));
        }
    }
}
