//! The live view: a pure function of what was seen and of the size of the screen.

use streamlane::{ConsumerProgress, PartitionProgress, ProgressState};

use crate::{
    demo::grouped,
    out::{cut, shown},
    place::date,
    status::{id, number, owner, summary, word},
};

use super::history::Rates;

/// What is to be shown.
pub(crate) struct Screen<'a> {
    /// Where the server is.
    pub(crate) place: &'a str,
    pub(crate) progress: &'a ConsumerProgress,
    /// Of each partition.
    pub(crate) rates: &'a [Rates],
    /// Why what is shown is not of now.
    pub(crate) trouble: Option<&'a str>,
}

/// Lines above and below the partitions.
const AROUND: usize = 6;

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Column {
    Partition,
    State,
    Lag,
    Pending,
    Rate,
    Spark,
    Position,
    Tail,
    Owner,
}

impl Column {
    fn name(self) -> &'static str {
        match self {
            Self::Partition => "part",
            Self::State => "state",
            Self::Lag => "lag",
            Self::Pending => "pending",
            Self::Rate => "rate/s",
            Self::Spark => "rate so far",
            Self::Position => "position",
            Self::Tail => "tail",
            Self::Owner => "owner",
        }
    }

    fn is_number(self) -> bool {
        matches!(
            self,
            Self::Partition | Self::Lag | Self::Pending | Self::Rate
        )
    }
}

/// The lines of the screen, none wider and no more than there is room for.
pub(crate) fn view(screen: &Screen<'_>, width: usize, height: usize) -> Vec<String> {
    let all = screen.progress;
    let mut lines = vec![
        both_ends(
            &format!(
                "{} / {}",
                shown(all.topic.as_bytes()),
                shown(all.consumer.as_bytes())
            ),
            &format!("{}  {}", screen.place, date(all.at)),
            width,
        ),
        summary(all),
        pace(screen),
        screen
            .trouble
            .map_or(String::new(), |why| format!("! {}", shown(why.as_bytes()))),
    ];
    let columns = columns(width, all.is_group);
    lines.push(row(&columns, |c| c.name().to_owned()));
    let room = height.saturating_sub(AROUND);
    let (chosen, left_out) = choose(&all.partitions, room);
    for p in chosen {
        let rates = screen.rates.get(p.partition as usize);
        let spark = columns.iter().find(|(c, _)| *c == Column::Spark);
        let spark = spark.map_or(0, |(_, width)| *width);
        lines.push(row(&columns, |c| cell(c, p, rates, spark)));
    }
    if all.partitions.is_empty() {
        lines.push("there is no such topic".to_owned());
    }
    if let Some(left_out) = left_out {
        lines.push(left_out);
    }
    while lines.len() + 1 < height {
        lines.push(String::new());
    }
    lines.push("q or ctrl-c ends".to_owned());
    lines.truncate(height);
    let fitting = lines.iter().map(|line| cut(line.trim_end(), width));
    fitting.collect()
}

/// Columns and their widths: what matters most is always there, the rest where there is room.
fn columns(width: usize, is_group: bool) -> Vec<(Column, usize)> {
    let mut columns = vec![
        (Column::Partition, 5),
        (Column::State, 9),
        (Column::Lag, 10),
        (Column::Rate, 8),
        (Column::Spark, 12),
        (Column::Owner, 14),
    ];
    if is_group {
        columns.insert(3, (Column::Pending, 9));
    }
    let mut left = width.saturating_sub(columns.iter().map(|(_, w)| w + 2).sum());
    let before_owner = |columns: &Vec<_>| columns.len() - 1;
    for column in [Column::Position, Column::Tail] {
        if left >= 24 + 2 {
            columns.insert(before_owner(&columns), (column, 22));
            left -= 24;
        }
    }
    let (spark, more) = (left / 2, left - left / 2);
    for (column, width) in &mut columns {
        match column {
            Column::Spark => *width += spark.min(48),
            Column::Owner => *width += more + spark.saturating_sub(48),
            _ => {}
        }
    }
    columns
}

fn row(columns: &[(Column, usize)], text: impl Fn(Column) -> String) -> String {
    let cells = columns.iter().map(|(column, width)| {
        let text = cut(&text(*column), *width);
        let fill = " ".repeat(width - text.chars().count());
        if column.is_number() {
            fill + &text
        } else {
            text + &fill
        }
    });
    cells.collect::<Vec<_>>().join("  ")
}

fn cell(column: Column, p: &PartitionProgress, rates: Option<&Rates>, width: usize) -> String {
    match column {
        Column::Partition => p.partition.to_string(),
        Column::State => word(p.state).into(),
        Column::Lag => number(p.lag),
        Column::Pending => number(p.pending),
        Column::Rate => rates.and_then(Rates::now).map_or("?".into(), whole),
        Column::Spark => rates.map_or(String::new(), |rates| sparkline(rates, width)),
        Column::Position => id(p.position),
        Column::Tail => id(p.tail),
        Column::Owner => owner(p),
    }
}

/// The latest rates, each as high as it is beside the highest of them.
fn sparkline(rates: &Rates, width: usize) -> String {
    let from = rates.finished.len().saturating_sub(width);
    let latest = || rates.finished.iter().skip(from);
    let most = latest()
        .flatten()
        .fold(0.0_f64, |most, rate| most.max(*rate));
    latest()
        .map(|rate| rate.map_or(' ', |rate| bar(rate, most)))
        .collect()
}

#[expect(clippy::cast_sign_loss, reason = "rates are never negative")]
fn bar(rate: f64, most: f64) -> char {
    if rate <= 0.0 || most <= 0.0 {
        return BARS[0];
    }
    let last = BARS.len() - 1;
    // What moves at all stands out from what does not.
    BARS[((rate / most * 7.0).ceil() as usize).clamp(1, last)]
}

#[expect(clippy::cast_sign_loss, reason = "rates are never negative")]
fn whole(rate: f64) -> String {
    match rate {
        0.0 => "0".into(),
        rate if rate < 10.0 => format!("{rate:.1}"),
        rate => grouped(rate.round() as u64),
    }
}

/// What there is room for, in the order of their numbers: where that is not all, what needs somebody first, then what
/// is behind. Says what is left out.
fn choose(all: &[PartitionProgress], room: usize) -> (Vec<&PartitionProgress>, Option<String>) {
    if all.len() <= room {
        return (all.iter().collect(), None);
    }
    let mut chosen: Vec<_> = all.iter().collect();
    chosen.sort_by_key(|p| (urgency(p.state), p.partition));
    let left_out = chosen.split_off(room.saturating_sub(1));
    chosen.sort_by_key(|p| p.partition);
    let wrong = left_out.iter().filter(|p| p.state.is_wrong()).count();
    let behind = left_out
        .iter()
        .filter(|p| p.state == ProgressState::Behind)
        .count();
    let text = format!(
        "... and {} more: {wrong} in capitals, {behind} behind, {} others",
        left_out.len(),
        left_out.len() - wrong - behind
    );
    (chosen, Some(text))
}

fn urgency(state: ProgressState) -> u8 {
    match state {
        state if state.is_wrong() => 0,
        ProgressState::Behind => 1,
        _ => 2,
    }
}

/// All partitions together.
fn pace(screen: &Screen<'_>) -> String {
    let sum = |of: fn(&Rates) -> Option<f64>| {
        let known: Vec<_> = screen.rates.iter().filter_map(of).collect();
        if known.is_empty() {
            "?".into()
        } else {
            whole(known.iter().sum())
        }
    };
    let (added, finished) = (sum(|r| r.added), sum(Rates::now));
    format!("published {added}/s, finished {finished}/s")
}

fn both_ends(left: &str, right: &str, width: usize) -> String {
    let taken = left.chars().count() + right.chars().count();
    format!(
        "{left}{}{right}",
        " ".repeat(width.saturating_sub(taken).max(2))
    )
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
