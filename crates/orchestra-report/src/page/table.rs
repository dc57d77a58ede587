//! Tables that a script sorts and filters, and that are whole without it.

use maud::{Markup, html};

/// A cell, and the number that it is sorted by where it is one.
pub struct Cell {
    body: Markup,
    number: Option<f64>,
}

impl Cell {
    fn is_empty(&self) -> bool {
        ["–", ""].contains(&self.body.0.as_str())
    }
}

pub fn text(text: impl AsRef<str>) -> Cell {
    Cell { body: html! { (text.as_ref()) }, number: None }
}

pub fn number(value: f64, text: impl AsRef<str>) -> Cell {
    Cell { body: html! { (text.as_ref()) }, number: Some(value) }
}

pub fn count(n: u64) -> Cell {
    number(n as f64, crate::human::count(n))
}

pub fn markup(body: Markup) -> Cell {
    Cell { body, number: None }
}

/// Stands for what there is nothing of.
pub fn none() -> Cell {
    number(-1.0, "–")
}

/// A table with a head for each column. One without anything in it is left out.
pub fn table(caption: &str, heads: &[&str], mut rows: Vec<Vec<Cell>>) -> Markup {
    let is_used = |at: usize| rows.is_empty() || rows.iter().any(|row| !row[at].is_empty());
    let used: Vec<bool> = (0..heads.len()).map(is_used).collect();
    let mut heads = heads.to_vec();
    keep(&mut heads, &used);
    rows.iter_mut().for_each(|row| keep(row, &used));
    html! {
        div.table {
            table {
                caption { (caption) }
                thead { tr { @for (at, head) in heads.iter().enumerate() {
                    th.n[is_number(&rows, at)] scope="col" { (head) }
                } } }
                tbody {
                    @for row in rows {
                        tr {
                            @for cell in row {
                                @match cell.number {
                                    Some(number) => td data-n=(super::chart::short(number)) { (cell.body) },
                                    None => td { (cell.body) },
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn keep<T>(cells: &mut Vec<T>, used: &[bool]) {
    let mut at = used.iter();
    cells.retain(|_| at.next().copied().unwrap_or(true));
}

/// Whether a column has numbers: its head stands above them.
fn is_number(rows: &[Vec<Cell>], column: usize) -> bool {
    rows.first().and_then(|row| row.get(column)).is_some_and(|cell| cell.number.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_without_anything_in_it_is_left_out_with_its_head() {
        let rows = vec![vec![text("one"), none(), text("")], vec![text("two"), none(), text("lost")]];
        let table = table("Devices", &["device", "power", "lost"], rows).0;
        assert!(table.contains("device") && table.contains("lost") && !table.contains("power"), "{table}");
        assert_eq!(table.matches("<td").count(), 4);
    }
}
