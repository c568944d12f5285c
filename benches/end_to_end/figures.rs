//! Rounds of measurements, and the tables they end in.

use crate::{Outcome, options::Options};

/// One way of doing a thing: its name, and how it is measured once. Gives one figure per column.
pub(crate) struct Way<'a> {
    pub(crate) label: String,
    is_floor: bool,
    run: Box<dyn FnMut() -> Outcome<Vec<f64>> + 'a>,
}

impl<'a> Way<'a> {
    pub(crate) fn new(
        label: impl Into<String>,
        run: impl FnMut() -> Outcome<Vec<f64>> + 'a,
    ) -> Self {
        Self {
            label: label.into(),
            is_floor: false,
            run: Box::new(run),
        }
    }

    /// One that all ways are compared with.
    pub(crate) fn floor(
        label: impl Into<String>,
        run: impl FnMut() -> Outcome<Vec<f64>> + 'a,
    ) -> Self {
        Self {
            is_floor: true,
            ..Self::new(label, run)
        }
    }
}

/// The figures of one way, round by round.
pub(crate) type Samples = Vec<Vec<f64>>;

/// Measures each way once a round, each round beginning with another.
pub(crate) fn measure(rounds: usize, ways: &mut [Way<'_>]) -> Outcome<Vec<Samples>> {
    let mut samples = vec![Samples::new(); ways.len()];
    for round in 0..rounds {
        for turn in 0..ways.len() {
            let i = (round + turn) % ways.len();
            samples[i].push((ways[i].run)()?);
        }
    }
    Ok(samples)
}

/// One column of them.
pub(crate) fn column(samples: &Samples, c: usize) -> Vec<f64> {
    samples.iter().map(|round| round[c]).collect()
}

/// The median over rounds of a figure by another of the same round.
pub(crate) fn ratio(figures: &[f64], by: &[f64]) -> f64 {
    median(figures.iter().zip(by).map(|(a, b)| a / b).collect())
}

/// Measures the ways and prints the table: for each column the figure, and then what it is by that of
/// each floor.
pub(crate) fn compare(
    options: &Options,
    title: &str,
    columns: &[&str],
    mut ways: Vec<Way<'_>>,
) -> Outcome<()> {
    ways.retain(|w| options.wants(title, &w.label));
    if ways.is_empty() {
        return Ok(());
    }
    let samples = measure(options.rounds, &mut ways)?;
    let floors: Vec<_> = (0..ways.len()).filter(|i| ways[*i].is_floor).collect();
    let names: Vec<_> = floors.iter().map(|f| &*ways[*f].label).collect();
    println!("\n**{title}**\n");
    if !names.is_empty() {
        println!("x: by {}\n", names.join(" / "));
    }
    let heads = columns.iter().map(|c| format!(" {c} | x |"));
    println!("| |{}", heads.collect::<String>());
    println!("|---|{}", "---|---|".repeat(columns.len()));
    for (way, sample) in ways.iter().zip(&samples) {
        let cells = (0..columns.len()).map(|c| {
            let own = column(sample, c);
            let by = floors
                .iter()
                .map(|floor| format!("{:.2}", ratio(&own, &column(&samples[*floor], c))));
            let by = by.collect::<Vec<_>>().join(" / ");
            format!(" {} | {by} |", spread(&own))
        });
        println!("| {} |{}", way.label, cells.collect::<String>());
    }
    Ok(())
}

/// The median and, in brackets, the extremes.
pub(crate) fn spread(figures: &[f64]) -> String {
    let least = figures.iter().copied().fold(f64::INFINITY, f64::min);
    let most = figures.iter().copied().fold(0.0, f64::max);
    let middle = median(figures.to_vec());
    let digits = usize::from(middle < 100.0);
    format!("{middle:.digits$} [{least:.digits$}-{most:.digits$}]")
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
