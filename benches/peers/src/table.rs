//! The tables, and whether they count.

use crate::{
    Outcome,
    figures::{Way, column, measure, ratio, spread},
    options::Options,
    peers::{FLOOR, TYPED},
};

/// Where the floor is not so much faster than the redis crate, the machine was busy with something else.
const COUNTS_FROM: f64 = 3.5;

/// What is shown of the figures of a row: the name, and which of them it is. Ratios are of the first.
pub(crate) type Columns<'a> = &'a [(&'a str, usize)];

/// Measures the ways and prints their table. Returns how many times as good as the redis crate the floor
/// is, if both were measured.
pub(crate) fn compare(
    options: &Options,
    title: &str,
    columns: Columns<'_>,
    mut ways: Vec<Way<'_>>,
) -> Outcome<Option<f64>> {
    ways.retain(|w| options.wants(title, &w.label));
    let Some(((name, main), others)) = columns.split_first().filter(|_| !ways.is_empty()) else {
        return Ok(None);
    };
    let samples = measure(options.rounds, &mut ways)?;
    let find = |label| ways.iter().position(|w| w.label == label);
    let base = |label| Some(column(&samples[find(label)?], *main));
    let (typed, floor) = (base(TYPED), base(FLOOR));

    println!("\n**{title}**\n");
    let ratios = [format!("x {TYPED}"), format!("x {FLOOR}")];
    let names = others.iter().map(|(name, _)| (*name).to_owned());
    row([String::new(), (*name).into()]
        .into_iter()
        .chain(ratios)
        .chain(names));
    println!("|{}", "---|".repeat(columns.len() + 3));
    for (way, own) in ways.iter().zip(&samples) {
        let figures = column(own, *main);
        let ratios = [by(&figures, typed.as_ref()), by(&figures, floor.as_ref())];
        let others = others.iter().map(|(_, c)| spread(&column(own, *c)));
        let first = [way.label.clone(), spread(&figures)];
        row(first.into_iter().chain(ratios).chain(others));
    }
    Ok(floor.zip(typed).map(|(floor, typed)| ratio(&floor, &typed)))
}

/// Whether a table of what can only be fast on a machine with nothing else to do counts.
pub(crate) fn counts(times: Option<f64>) -> bool {
    let Some(times) = times.filter(|times| *times < COUNTS_FROM) else {
        return true;
    };
    println!("\nThis does not count: {FLOOR} is {times:.2} x {TYPED}, less than {COUNTS_FROM}.");
    false
}

fn by(figures: &[f64], base: Option<&Vec<f64>>) -> String {
    base.map_or_else(|| "-".into(), |base| format!("{:.2}", ratio(figures, base)))
}

fn row(cells: impl Iterator<Item = String>) {
    println!("| {} |", cells.collect::<Vec<_>>().join(" | "));
}
