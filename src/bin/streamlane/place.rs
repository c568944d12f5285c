//! Times and places in a topic, as people write them.

use std::{
    str::FromStr,
    time::{Duration, SystemTime},
};

use crossbeam_channel::bounded;
use jiff::Timestamp;
use streamlane::{ResetTo, StreamId};

/// A place in the partitions of a topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    Start,
    End,
    /// Strictly behind this entry.
    After(StreamId),
    /// At the first entry of this moment or later.
    At(SystemTime),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "start" => return Ok(Self::Start),
            "end" => return Ok(Self::End),
            _ => {}
        }
        if let Ok(id) = text.parse() {
            return Ok(Self::After(id));
        }
        moment(text).map(Self::At).map_err(|_| {
            "neither start, end, an id (1726000000000-0), a date with its offset \
             (2026-01-31T08:00:00Z) nor how long ago (90m)"
                .into()
        })
    }
}

impl From<Place> for ResetTo {
    fn from(place: Place) -> Self {
        match place {
            Place::Start => Self::Start,
            Place::End => Self::End,
            Place::After(id) => Self::Id(id),
            Place::At(moment) => Self::Date(moment),
        }
    }
}

/// A date with its offset, or how long ago.
pub(crate) fn moment(text: &str) -> Result<SystemTime, String> {
    if let Ok(ago) = duration(text) {
        return now()
            .checked_sub(ago)
            .ok_or_else(|| "before all time".into());
    }
    let date = text.parse::<Timestamp>();
    date.and_then(SystemTime::try_from).map_err(|_| {
        "neither a date with its offset (2026-01-31T08:00:00Z) nor how long ago (90m)".into()
    })
}

/// What the clock of this machine says.
pub(crate) fn now() -> SystemTime {
    SystemTime::try_from(Timestamp::now()).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Lets so much time pass.
pub(crate) fn wait(time: Duration) {
    let (_open, never) = bounded::<()>(0);
    let _ = never.recv_timeout(time);
}

/// A whole number and its unit: 500ms, 10s, 5m, 2h, 7d.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let odd = || "a whole number and its unit is wanted: 500ms, 10s, 5m, 2h or 7d".to_owned();
    let unit = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(odd)?;
    let (number, unit) = text.split_at(unit);
    let number: u64 = number.parse().map_err(|_| odd())?;
    let ms = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(odd()),
    };
    let ms = number.checked_mul(ms).filter(|ms| *ms <= 366 * 86_400_000);
    let ms = ms.ok_or("more than a year")?;
    if ms == 0 {
        return Err("more than nothing is wanted".into());
    }
    Ok(Duration::from_millis(ms))
}

/// A moment to the millisecond.
pub(crate) fn date(moment: SystemTime) -> String {
    let moment = Timestamp::try_from(moment).unwrap_or(Timestamp::UNIX_EPOCH);
    format!("{moment:.3}")
}

/// How long something takes or took, in the two units that say most.
pub(crate) fn span(d: Duration) -> String {
    let s = d.as_secs();
    match s {
        0 => format!("{} ms", d.as_millis()),
        1..60 => format!("{}.{} s", s, d.subsec_millis() / 100),
        60..3600 => format!("{} m {:02} s", s / 60, s % 60),
        3600..86_400 => format!("{} h {:02} m", s / 3600, s / 60 % 60),
        _ => format!("{} d {:02} h", s / 86_400, s / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn places_are_read_as_people_write_them() {
        let date = UNIX_EPOCH + Duration::from_hours(491_624);
        for (text, place) in [
            ("start", Place::Start),
            ("end", Place::End),
            ("0-0", Place::After(StreamId::MIN)),
            (
                "1726000000000-42",
                Place::After(StreamId::new(1_726_000_000_000, 42)),
            ),
            ("2026-01-31T08:00:00Z", Place::At(date)),
            ("2026-01-31T10:00:00+02:00", Place::At(date)),
        ] {
            assert_eq!(text.parse(), Ok(place), "{text}");
        }
        let Ok(Place::At(then)) = "2h".parse() else {
            panic!("no moment")
        };
        let ago = now().duration_since(then).unwrap();
        assert!((7200..7260).contains(&ago.as_secs()), "{ago:?}");
        for text in [
            "",
            "Start",
            "5",
            "1-2-3",
            "2026-01-31",
            "2026-01-31T08:00:00",
            "-5m",
        ] {
            let e = text.parse::<Place>().unwrap_err();
            assert!(e.contains("2026-01-31T08:00:00Z"), "{text}: {e}");
        }
    }

    #[test]
    fn durations_have_a_unit() {
        for (text, ms) in [
            ("1ms", 1),
            ("10s", 10_000),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("7d", 604_800_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in [
            "",
            "5",
            "s",
            "1.5s",
            "0s",
            "5 s",
            "5S",
            "400d",
            "99999999999999999999s",
            "-1s",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn spans_and_dates_are_short() {
        for (ms, text) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_500, "1.5 s"),
            (61_000, "1 m 01 s"),
            (3_660_000, "1 h 01 m"),
            (90_000_000, "1 d 01 h"),
        ] {
            assert_eq!(span(Duration::from_millis(ms)), text);
        }
        assert_eq!(
            date(UNIX_EPOCH + Duration::from_millis(1_500)),
            "1970-01-01T00:00:01.500Z"
        );
    }
}
