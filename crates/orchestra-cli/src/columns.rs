//! Text in columns, for people. Formats only.

pub use comfy_table::CellAlignment;
use comfy_table::{ColumnConstraint, Table, presets};

/// A line for each row, its cells below those of the others. `rest` is where all but the first stand in their columns; a column without any text is left out.
pub fn aligned<Row: AsRef<[String]>>(
    rows: impl IntoIterator<Item = Row>,
    rest: CellAlignment,
) -> Vec<String> {
    let rows: Vec<Row> = rows.into_iter().collect();
    let mut table = Table::new();
    table.load_style(presets::NOTHING).add_rows(rows.iter().map(AsRef::as_ref));
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if at > 0 {
            column.set_cell_alignment(rest);
        }
        if rows.iter().all(|row| row.as_ref()[at].is_empty()) {
            column.set_constraint(ColumnConstraint::Hidden);
        }
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_stand_below_each_other_by_the_columns_that_they_take() {
        let rows =
            [["head", "", "median", "min"], ["a longer label", "", "12,345", "5.00"], ["日本", "", "1", "2"]];
        assert_eq!(
            aligned(rows.map(|row| row.map(str::to_owned)), CellAlignment::Right),
            ["head            median   min", "a longer label  12,345  5.00", "日本                 1     2"]
        );
    }
}
