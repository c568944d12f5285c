//! What the server says to a renewal.

use std::{collections::BTreeSet, time::Duration};

use redis::Value;

use crate::wire::{Claimant, PRESENCE};

use super::share::View;

/// What a renewal came to.
#[derive(Debug)]
pub(super) enum Renewal {
    Renewed(View),
    /// A later process has taken our place.
    Superseded(Claimant),
}

/// Reads what [`CYCLE`] answers.
pub(super) fn read(answer: Value) -> Option<Renewal> {
    let Value::Array(parts) = answer else {
        return None;
    };
    let mut parts = parts.into_iter();
    let held = text(&parts.next()?)?;
    if held == "superseded" {
        let by = text(&parts.next()?)?;
        return Some(Renewal::Superseded(Claimant::read(by.as_bytes())));
    }
    let surplus = text(&parts.next()?)?;
    let restored = text(&parts.next()?)?;
    let (presence_gone, restored) = match restored.strip_prefix('p') {
        Some(rest) => (true, rest),
        None => (false, &*restored),
    };
    let times = text(&parts.next()?)?;
    let mut times = times.split(' ');
    let [first_end, length, now_ms] = std::array::from_fn(|_| times.next().unwrap_or_default());
    let first_end: f64 = first_end.parse().ok()?;
    let Value::Array(fields) = parts.next()? else {
        return None;
    };
    let mut view = View {
        held: numbers(&held)?,
        surplus: numbers(&surplus)?,
        restored: numbers(restored)?,
        presence_gone,
        // none either where somebody set one beyond all time
        first_end: Duration::try_from_secs_f64(first_end / 1000.0).ok(),
        length: length.parse().ok()?,
        now_ms: now_ms.parse().ok()?,
        ..View::default()
    };
    for pair in fields.chunks_exact(2) {
        let (field, claimant) = (text(&pair[0])?, Claimant::read(text(&pair[1])?.as_bytes()));
        if field.starts_with(PRESENCE) {
            view.members.insert(claimant);
        } else if let Ok(p) = field.parse() {
            view.owners.insert(p, claimant);
        }
    }
    Some(Renewal::Renewed(view))
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

fn numbers(text: &str) -> Option<BTreeSet<u32>> {
    text.split_ascii_whitespace()
        .map(|n| n.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_beyond_all_time_keeps_no_answer_from_being_read() {
        let text = |text: &str| Value::BulkString(text.into());
        let ends = [
            ("-1", None),
            ("0", Some(Duration::ZERO)),
            ("2300", Some(Duration::from_millis(2300))),
            ("inf", None),
            (&*format!("1{:0300}", 0), None),
        ];
        for (end, first_end) in ends {
            let times = format!("{end} 7 1796031745267");
            let parts = ["0 2", "2", "p", &times].map(text);
            let answer = [&parts[..], &[Value::Array(Vec::new())]].concat();
            let Some(Renewal::Renewed(view)) = read(Value::Array(answer)) else {
                panic!("{end}");
            };
            let view = (view.first_end, view.length, view.presence_gone);
            assert_eq!(view, (first_end, 7, true), "{end}");
        }
    }
}
