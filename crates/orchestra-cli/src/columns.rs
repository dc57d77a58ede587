//! Text in columns, for people. Formats only.

use std::fmt::Write as _;

/// A line: a label on the left, and cells that end below each other.
pub struct Row {
    pub label: String,
    /// The figures. Every row of a table has as many.
    pub cells: Vec<String>,
}

impl Row {
    pub fn new<const N: usize>(label: impl Into<String>, cells: [String; N]) -> Self {
        Self { label: label.into(), cells: cells.into() }
    }
}

/// All rows, one per line.
pub fn aligned(rows: &[Row]) -> String {
    let width = |of: &dyn Fn(&Row) -> usize| rows.iter().map(of).max().unwrap_or(0);
    let label_width = width(&|r| r.label.chars().count());
    let columns = width(&|r| r.cells.len());
    let widths: Vec<usize> =
        (0..columns).map(|c| width(&|r| r.cells.get(c).map_or(0, |cell| cell.chars().count()))).collect();
    let mut text = String::new();
    for Row { label, cells } in rows {
        // Writing to a string cannot fail.
        let _ = write!(text, "{label:<label_width$}");
        for (cell, width) in cells.iter().zip(&widths) {
            let _ = write!(text, "  {cell:>width$}");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_each_other() {
        let rows = [
            Row::new("head", ["median", "min", "max"].map(String::from)),
            Row::new("a longer label", ["12,345", "5.00", "99,999"].map(String::from)),
        ];
        assert_eq!(
            aligned(&rows),
            "head            median   min     max\na longer label  12,345  5.00  99,999\n"
        );
    }
}
