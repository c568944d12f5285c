//! What goes to standard output: lines and tables for people, JSON for programs.

use std::{
    fmt::{Display, Write as _},
    io::{self, BufWriter, IsTerminal, Write},
};

use serde::Serialize;

use crate::{end::Result, open::Global};

/// Standard output, of one kind or the other.
pub(crate) struct Out {
    to: BufWriter<io::Stdout>,
    json: bool,
    each_at_once: bool,
}

impl Out {
    pub(crate) fn of(global: &Global) -> Self {
        Self {
            to: BufWriter::new(io::stdout()),
            json: global.json,
            each_at_once: io::stdout().is_terminal(),
        }
    }

    /// From now on each line is written as soon as it is there.
    pub(crate) fn at_once(mut self) -> Self {
        self.each_at_once = true;
        self
    }

    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// A line for people.
    pub(crate) fn line(&mut self, text: impl Display) -> Result<()> {
        if !self.json {
            writeln!(self.to, "{text}")?;
            self.written()?;
        }
        Ok(())
    }

    /// An object for programs, on a line of its own.
    pub(crate) fn object(&mut self, object: &impl Serialize) -> Result<()> {
        if self.json {
            serde_json::to_writer(&mut self.to, object)?;
            self.to.write_all(b"\n")?;
            self.written()?;
        }
        Ok(())
    }

    /// One or the other.
    pub(crate) fn show<T: Serialize>(
        &mut self,
        item: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<()> {
        if self.json {
            self.object(item)
        } else {
            self.line(text(item))
        }
    }

    /// Bytes as they are.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> Result<()> {
        self.to.write_all(bytes)?;
        self.written()
    }

    /// What is written is out when this returns.
    pub(crate) fn flush(&mut self) -> Result<()> {
        Ok(self.to.flush()?)
    }

    fn written(&mut self) -> Result<()> {
        if self.each_at_once {
            self.to.flush()?;
        }
        Ok(())
    }
}

/// Rows whose columns are as wide as their widest text.
pub(crate) struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Columns by their names; those with a `>` before them are numbers, which end in one line.
    pub(crate) fn new(head: &[&'static str]) -> Self {
        Self {
            head: head.to_vec(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn row(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    pub(crate) fn rows(head: &[&'static str], rows: impl IntoIterator<Item = Vec<String>>) -> Self {
        let mut table = Self::new(head);
        table.rows.extend(rows);
        table
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.head.iter().map(|name| name.trim_start_matches('>'));
        let wide = |text: &str| text.chars().count();
        let mut widths: Vec<_> = names.clone().map(wide).collect();
        for row in &self.rows {
            for (width, text) in widths.iter_mut().zip(row) {
                *width = wide(text).max(*width);
            }
        }
        let mut line = |cells: &mut dyn Iterator<Item = &str>| {
            let mut text = String::new();
            for ((cell, width), name) in cells.zip(&widths).zip(&self.head) {
                let fill = " ".repeat(width - wide(cell));
                let (left, right) = if name.starts_with('>') {
                    (&*fill, "")
                } else {
                    ("", &*fill)
                };
                let _ = write!(text, "{left}{cell}{right}  ");
            }
            writeln!(f, "{}", text.trim_end())
        };
        line(&mut names.clone())?;
        for row in &self.rows {
            line(&mut row.iter().map(String::as_str))?;
        }
        Ok(())
    }
}

/// Text from elsewhere, with nothing in it that a terminal would take for an order.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for c in String::from_utf8_lossy(bytes).chars() {
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// As [`shown`], of a text of several lines.
pub(crate) fn shown_lines(text: &str) -> String {
    let lines = text.lines().map(|line| shown(line.as_bytes()));
    lines.collect::<Vec<_>>().join("\n")
}

/// No more of a text than so many characters, and a sign that there was more.
pub(crate) fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let kept = text.chars().take(most.saturating_sub(1));
    kept.chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_their_names() {
        let rows = [
            vec!["0".into(), "billing".into()],
            vec!["1000".into(), "ü".into()],
        ];
        let table = Table::rows(&[">n", "who"], rows);
        assert_eq!(table.to_string(), "   n  who\n   0  billing\n1000  ü\n");
    }

    #[test]
    fn a_terminal_is_given_no_orders() {
        assert_eq!(
            shown(b"a\x1b[2J\n\xff\xc2\x9b"),
            "a\\u{1b}[2J\\n\u{fffd}\\u{9b}"
        );
        assert_eq!(shown("grün {}".as_bytes()), "grün {}");
        assert_eq!(
            (cut("abc", 3), cut("abcd", 3)),
            ("abc".into(), "ab…".into())
        );
    }
}
